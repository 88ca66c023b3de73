/* Weights of FSDP2: PyTorch's fully_shard as NeMo Automodel sets it up.
 *
 * Each replica stores a shard of the rows of every tensor, in fp32. A unit is the parameters that
 * are gathered together: those of a layer, or those outside layers (root). Before a unit runs, its
 * shards are converted and packed (copy-in), all-gathered, and unpacked into whole tensors
 * (copy-out). After its forward or backward pass the unit is resharded, except the root and the
 * last layer after forward. With several pipeline stages all units stay gathered until the next
 * backward that reduces gradients: with defer_fsdp_grad_sync until the last (Automodel
 * components/distributed/parallelizer_utils.py and components/moe/fsdp_mixin.py).
 *
 *   copy-in, gather  Both run on lane dp. As in PyTorch, all-gather i + 2 waits for copy-out i, so
 *                    at most two packed buffers exist.
 *   forward          A unit is gathered when its forward begins. Kernels of the previous unit may
 *                    still run.
 *   backward         The all-gather of unit i - 1 starts when the copy-out of unit i is enqueued.
 *   experts          The experts of a layer are a unit inside the unit of the layer. They are
 *                    gathered when their first kernel is appended.
 *   explicit         With enable_fsdp2_prefetch, unit i starts the all-gathers of the next
 *                    fsdp2_forward_prefetch_depth units in forward, and of the next
 *                    fsdp2_backward_prefetch_depth units in backward.
 *
 * Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (unshard, wait_for_unshard,
 * _backward_prefetch), _fsdp_state.py (root hooks), _fsdp_collectives.py (copy-in, copy-out). */
#include "core/passes/replicas/fsdp2.h"

void
weft_fsdp2_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view)
{
  uint64_t at = 0;

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (s->params->layout.place[i].bucket != k)
      continue;
    view[i] = WEFT_NO_BUF;
    if (whole == WEFT_NO_BUF)
      continue;
    view[i] = weft_params_view (s, i, whole, at);
    at += param->rows * param->columns * weft_dtype_bytes (weft_build_buf_at (s->b, whole)->dtype);
  }
}

/* --------------------------------------------------------------------------- start */

static uint32_t
ranks_of (const struct weft_step *s, uint32_t k)
{
  return weft_mesh_group_size (s->mesh, weft_bucket_sharing (s, k));
}

static void
start_unit (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_fsdp2_unit *u = &f->unit[k];
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  const struct weft_chunk *chunk = &s->chunk[s->params->layout.bucket[k].chunk];
  gboolean last = u->layer == chunk->first_layer + chunk->n_layers - 1;

  u->slice = weft_ddp_bucket_size (s, k) / ranks_of (s, k);
  u->whole = s->params->layout.bucket[k].unpadded;
  u->stays = f->pipelined || u->layer == WEFT_NO_LAYER || last;
  u->wire = WEFT_NO_BUF;
  u->left = WEFT_NO_OP;
  state->weights = state->grads = WEFT_NO_BUF;
  state->weight_shard =
      weft_params_flat_view (s, weft_step_flat (s, k)->weights, k, u->slice, "pieces");
  state->grad_shard =
      weft_params_flat_view (s, weft_step_flat (s, k)->grads, k, u->slice, "pieces");
}

/* Creates a slot: a communication buffer for the shards of all ranks of unit k. */
static struct weft_fsdp2_slot
new_slot (struct weft_step *s, uint32_t k)
{
  uint64_t n = weft_ddp_bucket_size (s, k);
  uint32_t wire = weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->dtype, n, "gathered_pieces");
  uint32_t mine = weft_build_view (s->b, wire, 0, n * weft_dtype_bytes (s->dtype), "my_pieces");

  weft_build_buf_at (s->b, mine)->shard = weft_bucket_sharing (s, k);
  return (struct weft_fsdp2_slot){ .wire = wire, .mine = mine, .free = WEFT_NO_OP };
}

/* Returns the number of communication buffers (slots): for the unit that runs, and for the units
 * that are being gathered. */
static uint32_t
count_slots (const struct weft_step *s, const struct weft_fsdp2 *f)
{
  int64_t forward = s->strategy->fsdp2_forward_prefetch_depth;

  return f->explicit ? MAX (MAX (1, forward) + 1, s->strategy->fsdp2_backward_prefetch_depth) : 2;
}

static void
note_units (struct weft_step *s)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    uint32_t k = s->params->layout.place[i].bucket;
    f->unit[k].layer = weft_param_at (s, i)->layer;
    f->unit[k].expert = weft_bucket_of_experts (s, k);
  }
  for (uint32_t q = 0, k = 0; q < s->n_chunks; q++) {
    gboolean root = k < f->n_unit && f->unit[k].layer == WEFT_NO_LAYER;
    uint32_t first = k += root;
    while (k < f->n_unit && s->params->layout.bucket[k].chunk == q)
      k++;
    f->chunk[q] =
        (struct weft_fsdp2_chunk){ first, k, root, FALSE, WEFT_NO_OP, WEFT_NO_OP, WEFT_NO_OP };
  }
}

void
weft_fsdp2_start (struct weft_step *s)
{
  uint32_t n = s->params->layout.n_bucket;
  struct weft_fsdp2 plan = { .n_unit = n,
                             .pipelined = s->mesh->pp > 1,
                             .splits = weft_grid_splits (s->grid),
                             .explicit = s->strategy->enable_fsdp2_prefetch && s->mesh->pp == 1,
                             .copied_in = WEFT_NO_OP,
                             .sent = WEFT_NO_OP,
                             .fetched = WEFT_NO_BUF,
                             .leaving = WEFT_NO_BUF,
                             .reduced = { WEFT_NO_BUF, WEFT_NO_BUF },
                             .reduce_dtype = s->strategy->mp_policy_reduce_dtype };
  uint32_t n_slot = count_slots (s, &plan);
  size_t units = sizeof plan + n * sizeof (struct weft_fsdp2_unit);
  size_t slots = n_slot * sizeof (struct weft_fsdp2_slot), each = weft_params_count (s);
  size_t chunks = s->n_chunks * sizeof (struct weft_fsdp2_chunk);
  char *room = g_malloc0 (units + slots + chunks + each * (sizeof (gboolean) + sizeof (uint32_t)));
  struct weft_fsdp2 *f = s->replicas->own = room;

  weft_ddp_start (s);
  *f = plan;
  f->ring = (struct weft_fsdp2_slot *) (void *) (room + units);
  f->chunk = (struct weft_fsdp2_chunk *) (void *) (room + units + slots);
  f->started = (gboolean *) (void *) (room + units + slots + chunks);
  f->on_host = (uint32_t *) (void *) (f->started + each);
  f->n_slot = n_slot;
  note_units (s);
  for (uint32_t k = 0; k < n; k++)
    start_unit (s, k);
  for (uint32_t i = 0; i < n_slot; i++)
    f->ring[i].wire = WEFT_NO_BUF;
  weft_fsdp2_start_grads (s);
  if (s->on_host)
    weft_fsdp2_start_host (s);
}

/* ------------------------------------------------------------------------- gathers */

/* Returns the next ring slot that is not in use, or f->n_slot if all slots are in use. A slot may
 * be in use for long, because recomputed layers run between the prefetch of a unit and its use. */
static uint32_t
next_slot (struct weft_fsdp2 *f)
{
  for (uint32_t i = 0; i < f->n_slot; i++) {
    uint32_t slot = f->turn++ % f->n_slot;
    if (!f->ring[slot].taken)
      return slot;
  }
  return f->n_slot;
}

/* Reserves a slot (communication buffer) for the all-gather of unit k. Layers use the slots of a
 * ring in turn. If a layer differs in size or ranks from the previous user of the slot (for example
 * the first layer with experts), the buffers of the slot are replaced. The root unit, and a layer
 * that finds all slots in use, have new buffers. */
static struct weft_fsdp2_slot
take_slot (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_fsdp2_unit *u = &f->unit[k];
  struct weft_op at = s->at;

  u->slot = u->layer == WEFT_NO_LAYER ? f->n_slot : next_slot (f);
  if (u->slot == f->n_slot)
    return new_slot (s, k);
  struct weft_fsdp2_slot *slot = &f->ring[u->slot];
  if (slot->wire == WEFT_NO_BUF ||
      weft_step_elements (s, slot->wire) != weft_ddp_bucket_size (s, k) ||
      weft_build_buf_at (s->b, slot->mine)->shard != weft_bucket_sharing (s, k)) {
    uint32_t free = slot->wire == WEFT_NO_BUF ? WEFT_NO_OP : slot->free;
    s->at.layer = s->at.micro = WEFT_NO_LAYER;
    *slot = new_slot (s, k);
    slot->free = free;
    s->at = at;
  }
  slot->taken = TRUE;
  return *slot;
}

/* Starts the all-gather of a unit. Does nothing if the unit is gathered, if its all-gather is in
 * flight, or if only one rank holds the unit. */
static void
start_gather (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_fsdp2_unit *u = &f->unit[k];
  struct weft_op at = s->at;
  struct weft_op copy = { .kind = WEFT_OP_CAST, .name = weft_build_name (s->b, "copy_in") };
  struct weft_op gather = { .kind = WEFT_OP_ALL_GATHER,
                            .group = weft_bucket_sharing (s, k),
                            .name = weft_build_name (s->b, "gather") };

  if (s->replicas->bucket[k].weights != WEFT_NO_BUF || u->wire != WEFT_NO_BUF ||
      ranks_of (s, k) == 1)
    return;
  s->at.layer = u->layer;
  struct weft_fsdp2_slot slot = take_slot (s, k);
  struct weft_shape shape = WEFT_SHAPE (s->weight_dtype, u->slice);
  shape.out_dtype = s->dtype;
  const uint32_t before[] = { weft_fsdp2_chunk (s)->streams, u->left, slot.free };
  uint32_t n_before = G_N_ELEMENTS (before);
  uint32_t pieces =
      s->on_host ? weft_fsdp2_fetch (s, k, before, n_before) : s->replicas->bucket[k].weight_shard;
  f->copied_in =
      weft_emit_on (s, WEFT_LANE_DP, copy, shape, WEFT_USES (WEFT_R (pieces), WEFT_W (slot.mine)));
  for (uint32_t i = 0; i < n_before; i++)
    weft_build_dep (s->b, before[i]);
  uint64_t n = weft_ddp_bucket_size (s, k);
  weft_emit_on (s, WEFT_LANE_DP, gather, WEFT_SHAPE (s->dtype, n),
                WEFT_USES (WEFT_R (slot.mine), WEFT_W (slot.wire)));
  u->wire = slot.wire;
  s->at = at;
}

static void
unpack (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_fsdp2_unit *u = &f->unit[k];
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  s->at.flags |= u->expert ? WEFT_OP_EXPERTS : 0;
  state->gathered =
      weft_emit (s, WEFT_OP_UNPACK, "copy_out", WEFT_SHAPE (s->dtype, u->slice, ranks_of (s, k)),
                 WEFT_USES (WEFT_R (u->wire), WEFT_W (state->weights)));
  if (u->slot < f->n_slot) {
    f->ring[u->slot].free = state->gathered;
    f->ring[u->slot].taken = FALSE;
  }
  u->wire = WEFT_NO_BUF;
}

/* Converts the weights of a unit that only one rank holds. Such a unit needs no all-gather. */
static void
convert (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  struct weft_shape shape = WEFT_SHAPE (s->weight_dtype, weft_fsdp2 (s)->unit[k].whole);

  shape.out_dtype = s->dtype;
  state->gathered = weft_emit (s, WEFT_OP_CAST, "convert", shape,
                               WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weights)));
}

static void
copy_out (struct weft_step *s, uint32_t k)
{
  const struct weft_fsdp2_unit *u = &weft_fsdp2 (s)->unit[k];
  struct weft_op at = s->at;

  s->at.layer = u->layer;
  s->replicas->bucket[k].weights =
      weft_step_buffer (s, WEFT_BUF_GATHERED, s->dtype, u->whole, "whole");
  (ranks_of (s, k) > 1 ? unpack : convert) (s, k);
  s->at = at;
  weft_fsdp2_set_views (s, k, s->replicas->bucket[k].weights, s->params->weight_view);
}

/* Gathers unit k, unless the unit is already gathered. Later all-gathers must wait for a copy-out.
 * In forward they wait for the copy-out of the previous unit, which `held` stores. The function
 * then stores the copy-out of unit k in `held`. In backward later all-gathers wait for the copy-out
 * of unit k. */
static void
gather_unit (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2_chunk *c = weft_fsdp2_chunk (s);

  if (s->replicas->bucket[k].weights != WEFT_NO_BUF)
    return;
  start_gather (s, k);
  if (!weft_fsdp2_goes_back (s) && c->held != WEFT_NO_OP)
    c->streams = c->held;
  copy_out (s, k);
  if (weft_fsdp2_goes_back (s))
    c->streams = s->replicas->bucket[k].gathered;
  else
    c->held = s->replicas->bucket[k].gathered;
}

void
weft_fsdp2_reshard (struct weft_step *s, uint32_t k)
{
  if (s->replicas->bucket[k].weights == WEFT_NO_BUF)
    return;
  s->replicas->bucket[k].weights = WEFT_NO_BUF;
  weft_fsdp2_set_views (s, k, WEFT_NO_BUF, s->params->weight_view);
  weft_fsdp2 (s)->unit[k].left = weft_build_last (s->b, WEFT_LANE_GPU);
}

/* ---------------------------------------------------------------------------- hooks */

/* Converts the number of an FSDP unit to its index in the order of forward, or an index back to a
 * number. The two differ only in the order of a layer and its experts. */
static uint32_t
mirrored (const struct weft_fsdp2 *f, uint32_t k)
{
  if (f->unit[k].expert)
    return k + 1;
  return k > 0 && f->unit[k - 1].expert ? k - 1 : k;
}

static void
pre_forward (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  const struct weft_fsdp2_chunk *c = weft_fsdp2_chunk (s);
  uint32_t ahead = f->explicit && k >= c->first && s->at.phase == WEFT_PHASE_FORWARD
                       ? (uint32_t) s->strategy->fsdp2_forward_prefetch_depth
                       : 0;

  uint32_t at = mirrored (f, k);

  gather_unit (s, k);
  for (uint32_t i = 1; i <= ahead && at + i < c->end; i++)
    start_gather (s, mirrored (f, at + i));
}

/* Gathers unit k, and starts the all-gathers of the units that backward runs next. Backward runs
 * the root unit (parameters outside layers) first and the last layer second. */
static void
pre_backward (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  const struct weft_fsdp2_chunk *c = weft_fsdp2_chunk (s);
  uint32_t from = k < c->first ? c->end : k;
  int64_t depth = f->explicit && k >= c->first ? s->strategy->fsdp2_backward_prefetch_depth : 0;

  gather_unit (s, k);
  for (uint32_t i = 1; i <= MAX (1, depth) && from >= c->first + i; i++)
    start_gather (s, from - i);
}

static uint32_t
unit_of (const struct weft_step *s, uint32_t layer)
{
  uint32_t norm = weft_params_of_layer (s, layer, WEFT_NORM1_WEIGHT);

  return s->params->layout.place[norm].bucket;
}

/* Gathers the FSDP unit of a layer before a forward or backward pass. pre_forward() also gathers
 * layers for recompute. leave_forward() does not reshard the layer whose backward runs next. */
void
weft_fsdp2_before_layer (struct weft_step *s, uint32_t layer)
{
  (weft_fsdp2_goes_back (s) ? pre_backward : pre_forward) (s, unit_of (s, layer));
}

/* Gathers experts when their first weight is read, because the unit of experts lies inside the unit
 * of a layer. The weight gradients are the last kernels of experts. Backward therefore marks the
 * unit of experts as passed at the first read. */
void
weft_fsdp2_before_read (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->params->layout.place[param].bucket;
  struct weft_fsdp2_unit *u = &weft_fsdp2 (s)->unit[k];

  if (!u->expert)
    return;
  u->passed |= weft_fsdp2_goes_back (s);
  (weft_fsdp2_goes_back (s) ? pre_backward : pre_forward) (s, k);
}

static void
leave_forward (struct weft_step *s, uint32_t k)
{
  const struct weft_fsdp2_unit *u = &weft_fsdp2 (s)->unit[k];

  if (!u->stays && !(s->at.phase == WEFT_PHASE_RECOMPUTE && s->backward_layer == u->layer))
    weft_fsdp2_reshard (s, k);
}

/* If the schedule splits backward passes, the gradients of a unit are complete long after backward
 * read its weights. The weights are therefore resharded directly after the read. The next forward
 * gathers them again. */
static void
leave_backward (struct weft_step *s, uint32_t k)
{
  const struct weft_fsdp2 *f = weft_fsdp2 (s);

  if (f->splits && !f->unit[k].stays)
    weft_fsdp2_reshard (s, k);
}

void
weft_fsdp2_after_layer (struct weft_step *s, uint32_t layer)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint32_t k = unit_of (s, layer), experts = mirrored (f, k);

  if (weft_fsdp2_goes_back (s)) {
    f->unit[k].passed = TRUE;
    leave_backward (s, k);
    if (experts != k)
      leave_backward (s, experts);
    weft_fsdp2_post_backward (s, k);
    return;
  }
  if (experts != k)
    leave_forward (s, experts);
  leave_forward (s, k);
}

void
weft_fsdp2_begin_cell (struct weft_step *s)
{
  struct weft_fsdp2_chunk *c = weft_fsdp2_chunk (s);

  if (s->at.phase == WEFT_PHASE_FORWARD && !c->forward_begun) {
    c->streams = weft_build_last (s->b, WEFT_LANE_GPU);
    c->forward_begun = TRUE;
  }
  if (c->root && s->at.phase != WEFT_PHASE_WEIGHT_GRAD)
    (s->at.phase == WEFT_PHASE_FORWARD ? pre_forward : pre_backward) (s, c->first - 1);
}
