/* Gradients of FSDP2.
 *
 * When the backward of an FSDP unit ends, its whole gradients are packed in mp_policy_reduce_dtype
 * and reduce-scattered. The resulting slice is added to the fp32 gradient that the rank stores. At
 * most one reduce-scatter is in flight: packing of the next unit waits for the reduce-scatter, and
 * the end of backward waits for all of them. The root unit (parameters outside layers) is reduced
 * last. With dp_replicate_size each slice is then all-reduced between the replicas of the shards,
 * on a separate lane.
 *
 * If the schedule splits backward passes, a unit is reduced after its last weight gradient pass.
 *
 * With defer_fsdp_grad_sync, whole gradients are added on the device over all microbatches, in the
 * dtype of the reduction. The sum is reduced once in each step.
 *
 * In canonical order (equal bits for all strategies) all partial sums have the dtype of the
 * reduction, like the gradients of a run on one rank. The loss is already a mean, so collectives
 * only add.
 *
 * Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (post_backward,
 * finalize_backward), _fsdp_collectives.py (foreach_reduce), _fsdp_param.py
 * (to_accumulated_grad_if_needed). */
#include "core/passes/replicas/fsdp2.h"

static uint32_t
ranks (const struct weft_step *s, uint32_t k)
{
  return weft_mesh_group_size (s->mesh, weft_bucket_sharing (s, k));
}

/* Returns the lane of the kernels that add reduced slices over microbatches. */
static enum weft_lane
sum_lane (const struct weft_step *s, uint32_t k)
{
  return s->on_host ? WEFT_LANE_HOST : weft_fsdp2_slice_lane (s, k);
}

/* --------------------------------------------------------------------------- start */

static void
keep_unit (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_fsdp2_unit *u = &f->unit[k];

  u->kept = WEFT_NO_BUF;
  weft_sum_start (&s->replicas->bucket[k].sum, s->replicas->bucket[k].grad_shard, u->slice,
                  sum_lane (s, k));
  if (!f->keeps)
    return;
  u->kept = weft_step_buffer (s, WEFT_BUF_GRADIENTS, f->reduce_dtype, u->whole, "kept_gradients");
  weft_build_buf_at (s->b, u->kept)->layer = u->layer;
  g_autofree uint32_t *view = g_new0 (uint32_t, weft_params_count (s));
  weft_fsdp2_set_views (s, k, u->kept, view);
  for (uint32_t i = 0; i < weft_params_count (s); i++)
    if (s->params->layout.place[i].bucket == k)
      weft_sum_place (&s->replicas->sum[i], view[i]);
}

/* Creates the separate sum for the gradient of a tied output layer. The gradient is one tensor: the
 * shards of all ranks, in the order of ranks, are the tensor with padding at its end. */
static void
keep_head (struct weft_step *s)
{
  const struct weft_layout_place *place =
      &s->params->layout.place[weft_params_of_end (s, WEFT_EMBED_WEIGHT)];
  struct weft_bucket_state *state = &s->replicas->bucket[weft_fsdp2_head (s)];
  struct weft_sum *sum = weft_head_sum (s);
  uint64_t numel = s->replicas->sum[weft_params_of_end (s, WEFT_EMBED_WEIGHT)].n;

  state->grad_shard = (s->on_host ? weft_host_permanent : weft_step_permanent) (
      s, WEFT_BUF_GRADIENTS, s->grad_dtype, place->piece, "head_gradients");
  weft_build_buf_at (s->b, state->grad_shard)->slice = weft_mesh_sharing (s->mesh);
  weft_sum_start (&state->sum, state->grad_shard, place->piece, sum_lane (s, weft_fsdp2_head (s)));
  state->grads = WEFT_NO_BUF;
  weft_sum_start (sum, WEFT_NO_BUF, numel, WEFT_LANE_GPU);
}

void
weft_fsdp2_start_grads (struct weft_step *s)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);

  f->keeps = s->strategy->defer_fsdp_grad_sync && s->n_micro > 1;
  for (uint32_t k = 0; k < f->n_unit; k++)
    keep_unit (s, k);
  if (weft_head_has_own_sum (s))
    keep_head (s);
}

/* ------------------------------------------------------------------------- leaving */

/* Used with defer_fsdp_grad_sync. Returns the operand into which a kernel writes the gradient of a
 * microbatch. The first microbatch is written directly into the stored sum if the dtypes are equal;
 * later gradients are added to the sum. */
static struct weft_use
begin_kept (struct weft_step *s, uint32_t param)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  gboolean again = s->replicas->grad_left[param],
           there = !f->started[param] && s->dtype == f->reduce_dtype;

  if (s->canonical)
    return weft_sum_begin (s, &s->replicas->sum[param]);
  if (!again)
    s->params->grad_view[param] = there ? s->replicas->sum[param].main
                                        : weft_step_buffer (s, WEFT_BUF_WORKSPACE, s->dtype,
                                                            s->replicas->sum[param].n, "grad");
  s->replicas->grad_left[param] = TRUE;
  return (struct weft_use){ .buf = s->params->grad_view[param], .read = again, .write = 1 };
}

static void
end_kept (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_sum *sum = &s->replicas->sum[param];
  struct weft_shape shape = WEFT_SHAPE (s->dtype, sum->n);

  s->replicas->grad_left[param] = FALSE;
  shape.out_dtype = f->reduce_dtype;
  if (s->canonical)
    weft_sum_end (s, sum, grad);
  else if (grad.buf != sum->main && f->started[param])
    weft_emit (s, WEFT_OP_GRAD_ADD, "grad_add", shape,
               WEFT_USES (WEFT_RW (sum->main), WEFT_R (grad.buf)));
  else if (grad.buf != sum->main)
    weft_emit (s, WEFT_OP_CAST, "grad_cast", shape,
               WEFT_USES (WEFT_R (grad.buf), WEFT_W (sum->main)));
  f->started[param] = TRUE;
}

struct weft_use
weft_fsdp2_grad_begin (struct weft_step *s, uint32_t param)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint32_t k = s->params->layout.place[param].bucket;
  gboolean again = s->replicas->grad_left[param];

  if (f->keeps)
    return begin_kept (s, param);
  if (s->replicas->bucket[k].grads == WEFT_NO_BUF) {
    s->replicas->bucket[k].grads =
        weft_step_buffer (s, WEFT_BUF_GRADIENTS, s->grad_dtype, f->unit[k].whole, "unit_gradients");
    weft_fsdp2_set_views (s, k, s->replicas->bucket[k].grads, s->params->grad_view);
  }
  s->replicas->grad_left[param] = TRUE;
  struct weft_use whole = { .buf = s->params->grad_view[param], .read = again, .write = 1 };
  return weft_sum_sources (s, &s->replicas->sum[param], whole);
}

void
weft_fsdp2_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  uint32_t k = s->params->layout.place[param].bucket;

  if (weft_fsdp2 (s)->keeps)
    end_kept (s, param, grad);
  else
    weft_sum_join_sources (s, &s->replicas->sum[param], grad, s->params->grad_view[param]);
  s->replicas->bucket[k].n_ready++;
  weft_fsdp2_post_backward (s, k);
}

/* Returns the buffer for the whole gradient of a tied output layer, which is reduced later. The
 * first call creates the buffer and zeroes its padding. */
static uint32_t
head_main (struct weft_step *s)
{
  uint32_t embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT),
           *grads = &s->replicas->bucket[weft_fsdp2_head (s)].grads;
  uint64_t n = s->params->layout.place[embedding].piece * ranks (s, weft_fsdp2_head (s)),
           numel = weft_head_sum (s)->n;
  uint64_t size = weft_dtype_bytes (s->grad_dtype);

  if (*grads == WEFT_NO_BUF) {
    *grads = weft_step_buffer (s, WEFT_BUF_GRADIENTS, s->grad_dtype, n, "head_gradient");
    if (n > numel)
      weft_emit (s, WEFT_OP_ZERO, "padding", WEFT_SHAPE (s->grad_dtype, n - numel),
                 WEFT_USES (WEFT_W (
                     weft_build_view (s->b, *grads, numel * size, (n - numel) * size, "padding"))));
    weft_head_sum (s)->main = weft_params_view (s, embedding, *grads, 0);
  }
  return weft_head_sum (s)->main;
}

struct weft_use
weft_fsdp2_head_begin (struct weft_step *s)
{
  if (!weft_head_has_own_sum (s))
    return weft_fsdp2_grad_begin (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT));
  uint32_t main = head_main (s);
  return weft_fsdp2 (s)->keeps ? weft_sum_begin (s, weft_head_sum (s))
                               : (struct weft_use) WEFT_W (main);
}

void
weft_fsdp2_head_end (struct weft_step *s, struct weft_use grad)
{
  const struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint32_t embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT),
           root = s->params->layout.place[embedding].bucket;

  if (weft_head_has_own_sum (s) && f->keeps)
    weft_sum_end (s, weft_head_sum (s), grad);
  if (!f->splits)
    return;
  /* the embedding's gradient of this microbatch may be complete already */
  if (!weft_head_has_own_sum (s) && f->keeps)
    end_kept (s, embedding, grad);
  s->replicas->bucket[root].n_ready++;
  weft_fsdp2_post_backward (s, root);
}

/* ------------------------------------------------------------------------ reducing */

/* Returns the buffer for a reduced slice of gradients. In canonical order this is a leaf of the
 * tree of additions, or with defer_fsdp_grad_sync the stored gradient. In other jobs it is the
 * stored gradient, if this is the first slice and the dtypes are equal. Otherwise it is a new
 * buffer, which is later added to the stored gradient. */
static uint32_t
arrival (struct weft_step *s, uint32_t k, gboolean first)
{
  struct weft_sum *sum = &s->replicas->bucket[k].sum;
  enum weft_dtype dtype = s->on_host ? s->main_dtype : weft_fsdp2 (s)->reduce_dtype;

  if (s->canonical)
    return weft_fsdp2 (s)->keeps ? sum->main : weft_sum_leaf (s, sum);
  if (first && dtype == s->main_dtype)
    return sum->main;
  return (s->on_host ? weft_host_buffer : weft_step_buffer) (s, WEFT_BUF_COMMUNICATION, dtype,
                                                             sum->n, "reduced");
}

/* Adds a reduced slice to the stored gradient. The first slice of a step is instead copied to the
 * stored gradient, unless the collective has already written it there. */
static void
join (struct weft_step *s, uint32_t k, uint32_t slice, gboolean first)
{
  struct weft_sum *sum = &s->replicas->bucket[k].sum;
  struct weft_shape shape = WEFT_SHAPE (weft_build_buf_at (s->b, slice)->dtype, sum->n);
  struct weft_op row = { .kind = first ? WEFT_OP_CAST : WEFT_OP_GRAD_ADD,
                         .name = weft_build_name (s->b, first ? "grad_cast" : "grad_add") };

  shape.out_dtype = s->main_dtype;
  if (s->canonical && !weft_fsdp2 (s)->keeps)
    weft_sum_add (s, sum, slice);
  else if (slice != sum->main && first)
    weft_emit_on (s, sum->lane, row, shape, WEFT_USES (WEFT_R (slice), WEFT_W (sum->main)));
  else if (slice != sum->main) {
    weft_emit_on (s, sum->lane, row, shape, WEFT_USES (WEFT_RW (sum->main), WEFT_R (slice)));
    if (s->on_host)
      weft_host_wait_for_copies (s);
  }
}

/* With offload_policy: copies a reduced slice to host memory, where the host adds it to the stored
 * gradient. weft_fsdp2_send() converts the slice to the dtype of the stored gradient. */
static void
join_on_host (struct weft_step *s, uint32_t k, uint32_t slice, gboolean first)
{
  uint32_t to = arrival (s, k, first);

  weft_fsdp2_send (s, k, slice, to, !first);
  join (s, k, to, first);
  if (!first)
    weft_fsdp2_added (s);
}

/* Returns the row of a gradient collective. The collective averages, as in PyTorch; in canonical
 * order it adds. */
static struct weft_op
reduction (struct weft_step *s, enum weft_op_kind kind, enum weft_group_kind group,
           const char *name)
{
  return (struct weft_op){ .kind = kind,
                           .group = group,
                           .name = weft_build_name (s->b, name),
                           .reduce = s->canonical ? WEFT_REDUCE_SUM : WEFT_REDUCE_AVG };
}

static void
scatter (struct weft_step *s, uint32_t k, uint32_t input, gboolean first)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint64_t n = s->replicas->bucket[k].sum.n;
  uint32_t slice = s->on_host ? weft_fsdp2_send_buffer (s, k) : arrival (s, k, first);

  weft_fsdp2_chunk (s)->reducing = weft_ddp_collective (
      s, reduction (s, WEFT_OP_REDUCE_SCATTER, weft_bucket_sharing (s, k), "reduce"),
      WEFT_SHAPE (f->reduce_dtype, n * ranks (s, k)), WEFT_USES (WEFT_RW (input), WEFT_W (slice)));
  if (s->mesh->instances > 1 && !weft_bucket_of_experts (s, k))
    weft_emit_on (s, weft_fsdp2_slice_lane (s, k),
                  reduction (s, WEFT_OP_ALL_REDUCE, weft_mesh_across (s->mesh), "replicate"),
                  WEFT_SHAPE (f->reduce_dtype, n), WEFT_USES (WEFT_RW (slice)));
  weft_fsdp2_follow_sent (s);
  (s->on_host ? join_on_host : join) (s, k, slice, first);
}

/* Makes the next kernel wait for the reduce-scatter of the previous FSDP unit. */
static void
wait_for_previous (struct weft_step *s)
{
  struct weft_fsdp2_chunk *c = weft_fsdp2_chunk (s);

  if (c->reducing != WEFT_NO_OP)
    weft_next_kernel_waits_for (s, c->reducing);
  c->reducing = WEFT_NO_OP;
}

/* Converts the gradients of a unit of experts that only one rank holds, and adds them to the stored
 * gradient. These gradients need no collective. */
static void
convert_unit (struct weft_step *s, uint32_t k, uint32_t from, gboolean first)
{
  uint32_t to = arrival (s, k, first);
  struct weft_shape shape =
      WEFT_SHAPE (weft_build_buf_at (s->b, from)->dtype, weft_fsdp2 (s)->unit[k].whole);

  shape.out_dtype = weft_build_buf_at (s->b, to)->dtype;
  weft_emit (s, WEFT_OP_CAST, "grad_cast", shape, WEFT_USES (WEFT_R (from), WEFT_W (to)));
  join (s, k, to, first);
}

static void
pack_unit (struct weft_step *s, uint32_t k, uint32_t from, gboolean first)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  const struct weft_fsdp2_unit *u = &f->unit[k];
  struct weft_shape shape =
      WEFT_SHAPE (f->keeps ? f->reduce_dtype : s->grad_dtype, u->slice, ranks (s, k));
  struct weft_op at = s->at;

  uint32_t input = weft_step_buffer (s, WEFT_BUF_COMMUNICATION, f->reduce_dtype,
                                     u->slice * ranks (s, k), "reduce_input");
  shape.out_dtype = f->reduce_dtype;
  wait_for_previous (s);
  s->at.flags |= u->expert ? WEFT_OP_EXPERTS : 0;
  weft_emit (s, WEFT_OP_PACK, "pack_gradients", shape, WEFT_USES (WEFT_R (from), WEFT_W (input)));
  s->at = at;
  scatter (s, k, input, first);
}

static void
reduce_unit (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  uint32_t from = f->keeps ? f->unit[k].kept : s->replicas->bucket[k].grads;
  gboolean first = f->unit[k].n_reduced++ == 0;

  (ranks (s, k) > 1 ? pack_unit : convert_unit) (s, k, from, first);
}

/* Reduces the separate gradient sum of a tied output layer. Called when the unit `root`, which
 * contains the embedding, is reduced. */
static void
reduce_head (struct weft_step *s, uint32_t root)
{
  uint32_t k = weft_fsdp2_head (s);

  wait_for_previous (s);
  scatter (s, k, s->replicas->bucket[k].grads, weft_fsdp2 (s)->unit[root].n_reduced == 0);
  s->replicas->bucket[k].grads = WEFT_NO_BUF;
}

/* Whether this backward pass reduces gradients. FALSE with defer_fsdp_grad_sync before the last
 * microbatch. */
static gboolean
syncs (const struct weft_step *s)
{
  return !weft_fsdp2 (s)->keeps || s->last_micro || weft_fsdp2 (s)->splits;
}

/* Returns the unit that contains an embedding to which a tied output layer on this stage adds its
 * gradient, or WEFT_NO_UNIT. */
static uint32_t
head_root (const struct weft_step *s)
{
  uint32_t embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT);
  gboolean adds = embedding != WEFT_NO_PARAM && weft_step_has_head (s) &&
                  weft_params_of_end (s, WEFT_HEAD_WEIGHT) == WEFT_NO_PARAM;

  return adds ? s->params->layout.place[embedding].bucket : WEFT_NO_UNIT;
}

/* Whether all gradients of an FSDP unit are complete and no kernel reads the unit's weights any
 * more. Usually this refers to the current microbatch. If the schedule splits backward passes, it
 * refers to all microbatches (PyTorch torch/distributed/pipelining/stage.py reduces after the last
 * microbatch). */
static gboolean
is_through (const struct weft_step *s, uint32_t k)
{
  const struct weft_fsdp2 *f = weft_fsdp2 (s);
  const struct weft_bucket_state *state = &s->replicas->bucket[k];
  uint32_t due = state->n_param + (k == head_root (s));

  return f->splits ? state->n_ready == due * s->n_micro
                   : f->unit[k].passed && state->n_ready >= state->n_param;
}

void
weft_fsdp2_post_backward (struct weft_step *s, uint32_t k)
{
  struct weft_fsdp2 *f = weft_fsdp2 (s);
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  struct weft_op at = s->at;

  if (!is_through (s, k))
    return;
  f->unit[k].passed = FALSE;
  state->n_ready = 0;
  if (!f->pipelined || !f->keeps || s->last_micro || f->splits)
    weft_fsdp2_reshard (s, k);
  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = f->unit[k].layer;
  s->at.chunk = s->params->layout.bucket[k].chunk;
  if (weft_head_has_own_sum (s) && k == head_root (s) && syncs (s))
    reduce_head (s, k);
  if (syncs (s))
    reduce_unit (s, k);
  s->at = at;
  if (f->keeps)
    return;
  state->grads = WEFT_NO_BUF;
  weft_fsdp2_set_views (s, k, WEFT_NO_BUF, s->params->grad_view);
  for (uint32_t i = 0; i < weft_params_count (s); i++)
    if (s->params->layout.place[i].bucket == k)
      s->replicas->grad_left[i] = FALSE;
}

/* Makes the next kernel wait for all reductions of a backward pass. */
static void
join_all (struct weft_step *s)
{
  uint32_t newest[] = { weft_build_last (s->b, WEFT_LANE_DP),
                        weft_build_last (s->b, weft_fsdp2_slice_lane (s, weft_fsdp2_head (s))),
                        s->on_host ? weft_fsdp2 (s)->sent : WEFT_NO_OP };

  weft_fsdp2_chunk (s)->reducing = WEFT_NO_OP;
  for (unsigned i = 0; i < G_N_ELEMENTS (newest); i++)
    if (newest[i] != WEFT_NO_OP)
      weft_next_kernel_waits_for (s, newest[i]);
}

void
weft_fsdp2_end_cell (struct weft_step *s)
{
  struct weft_fsdp2_chunk *c = weft_fsdp2_chunk (s);

  if (s->at.phase == WEFT_PHASE_FORWARD) {
    if (c->held != WEFT_NO_OP)
      c->streams = c->held;
    c->held = WEFT_NO_OP;
    return;
  }
  c->forward_begun = FALSE;
  if (c->root) {
    weft_fsdp2 (s)->unit[c->first - 1].passed = TRUE;
    weft_fsdp2_post_backward (s, c->first - 1);
  }
  if (syncs (s))
    join_all (s);
}

/* Scales gradients of experts to the mean over all replicas. The gradients are sums over expert
 * parallel groups, and were averaged over the ranks that hold the same experts. NeMo Automodel does
 * this after the last microbatch (components/training/utils.py, ep_ratio). */
static void
divide_experts (struct weft_step *s, uint32_t k)
{
  if (weft_fsdp2 (s)->unit[k].expert && !s->canonical)
    weft_ddp_scale_experts (s, s->replicas->bucket[k].grad_shard, ranks (s, k));
}

void
weft_fsdp2_finish (struct weft_step *s)
{
  join_all (s);
  for (uint32_t k = 0; k < weft_fsdp2 (s)->n_unit; k++)
    divide_experts (s, k);
}

/* Returns a view of this rank's shard of one tensor in the reduced slice of the tensor's unit. */
uint32_t
weft_fsdp2_reduced (struct weft_step *s, uint32_t param)
{
  const struct weft_layout_place *place = &s->params->layout.place[param];
  const struct weft_buf *row =
      weft_build_buf_at (s->b, s->replicas->bucket[place->bucket].grad_shard);
  uint64_t size = weft_dtype_bytes (row->dtype),
           offset = place->start - s->params->layout.bucket[place->bucket].start;

  return weft_build_view (s->b, row->base, row->offset + offset * size, place->piece * size,
                          "piece");
}

uint32_t
weft_fsdp2_reduced_head (struct weft_step *s)
{
  return s->replicas->bucket[weft_fsdp2_head (s)].sum.main;
}
