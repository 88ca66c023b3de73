/* Gradients of Megatron-FSDP. Kernels write whole gradients of an FSDP unit. In every microbatch,
 * the last gradient launches the unit's reduce-scatter, and the reduced slices are added on the
 * lane of the collective. Before the launch, if more than suggested_communication_unit_size
 * elements are being reduced, kernels wait for the oldest reductions. With double buffers at most
 * two units have whole gradients at one time: the unit whose gradients are being reduced, and the
 * unit whose gradients are being computed. */
#include "core/passes/replicas/fsdp.h"

static void
start_slice (struct weft_step *s, uint32_t k, uint32_t slice)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  state->grads = WEFT_NO_BUF;
  state->grad_slice = slice;
  state->grad_shard = weft_outer_owned (s, slice);
  weft_sum_start (&state->sum, slice, weft_fsdp_slice_size (s, k), WEFT_LANE_DP);
}

void
weft_fsdp_start_grads (struct weft_step *s)
{
  uint32_t head = weft_fsdp_head (s);

  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    if (weft_step_flat (s, k)->cut_grads)
      start_slice (s, k, weft_fsdp_slice (s, weft_step_flat (s, k)->grads, k));
  if (!weft_head_has_own_sum (s))
    return;
  uint32_t slice = weft_step_permanent (s, WEFT_BUF_GRADIENTS, s->grad_dtype,
                                        weft_fsdp_slice_size (s, head), "head_gradients");
  weft_build_buf_at (s->b, slice)->slice = weft_mesh_sharing (s->mesh);
  start_slice (s, head, slice);
  s->params->layout.bucket_of[head] = head;
  s->params->layout.group[s->params->layout.n_group] = (struct weft_bucket_group){ head, 1 };
}

/* Zeroes the padding of a bucket, which no kernel writes. */
static void
clear_padding (struct weft_step *s, uint32_t k, uint32_t grads)
{
  uint64_t size = weft_dtype_bytes (s->grad_dtype);
  uint64_t used = s->params->layout.bucket[weft_fsdp_like (s, k)].unpadded;

  if (used == weft_fsdp_size (s, k))
    return;
  uint32_t rest =
      weft_build_view (s->b, grads, used * size, (weft_fsdp_size (s, k) - used) * size, "padding");
  weft_emit (s, WEFT_OP_ZERO, "padding", WEFT_SHAPE (s->grad_dtype, weft_fsdp_size (s, k) - used),
             WEFT_USES (WEFT_W (rest)));
}

/* Makes the next kernel wait for the oldest reduction in flight. Returns the number of elements of
 * that reduction. */
static uint64_t
wait_for_oldest (struct weft_step *s)
{
  struct weft_reduction oldest = g_array_index (s->replicas->reducing, struct weft_reduction, 0);

  weft_next_kernel_waits_for (s, oldest.op);
  g_array_remove_index (s->replicas->reducing, 0);
  return weft_fsdp_group_size (s, oldest.group);
}

/* Returns the number of FSDP units whose gradients are being reduced. Launch groups of the unit of
 * bucket k (for its experts, or for its other weights) are not counted. */
static uint32_t
reducing_units (const struct weft_step *s, uint32_t k)
{
  uint32_t n = 0, before = WEFT_NO_UNIT, mine = s->params->layout.bucket[k].group;

  for (uint32_t i = 0; i < s->replicas->reducing->len; i++) {
    uint32_t g = g_array_index (s->replicas->reducing, struct weft_reduction, i).group;
    gboolean beside = g != mine && weft_fsdp_number (s, g) == weft_fsdp_number (s, mine);
    if (!weft_fsdp_is_unit (s, g) || beside)
      continue;
    n += weft_fsdp_number (s, g) != before;
    before = weft_fsdp_number (s, g);
  }
  return n;
}

/* Creates the buffer for the whole gradients of bucket k. With double buffers, kernels first wait
 * until at most one unit is being reduced. */
static void
add_unit_gradients (struct weft_step *s, uint32_t k)
{
  while (s->strategy->fsdp_double_buffer && s->replicas->bucket[k].unit &&
         reducing_units (s, k) > 1)
    wait_for_oldest (s);
  s->replicas->bucket[k].grads = weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype,
                                                   weft_fsdp_size (s, k), "unit_gradients");
  clear_padding (s, k, s->replicas->bucket[k].grads);
}

/* Makes kernels wait for the oldest reductions until at most unit_size elements are being
 * reduced. */
static void
make_room (struct weft_step *s)
{
  uint64_t queued = 0;

  for (uint32_t i = 0; i < s->replicas->reducing->len; i++)
    queued += weft_fsdp_group_size (
        s, g_array_index (s->replicas->reducing, struct weft_reduction, i).group);
  while (queued > s->replicas->unit_size)
    queued -= wait_for_oldest (s);
}

static void
prepare (struct weft_step *s, uint32_t k)
{
  weft_ddp_check (s, s->replicas->bucket[k].grads, weft_fsdp_size (s, k), k);
  weft_ddp_scale_bucket (s, k);
}

/* Appends the reduce-scatter of bucket k. Returns the buffer with the reduced slice of this
 * microbatch. */
static uint32_t
scatter (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  struct weft_op row = weft_ddp_row (s, WEFT_OP_REDUCE_SCATTER, "bucket", k);
  uint32_t leaf = s->canonical ? weft_sum_leaf (s, &state->sum)
                               : weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype,
                                                   state->sum.n, "reduced");

  row.flags = flags;
  state->reduced = weft_ddp_collective (s, row, weft_ddp_shape (s, weft_fsdp_size (s, k)),
                                        WEFT_USES (WEFT_RW (state->grads), WEFT_W (leaf)));
  state->grads = WEFT_NO_BUF;
  return leaf;
}

/* Reduces all buckets of a launch group in one launch. Adds the reduced slices to the slices of
 * earlier microbatches. */
static void
reduce (struct weft_step *s, uint32_t g)
{
  struct weft_op at = s->at;
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);
  g_autofree uint32_t *leaf = g_new (uint32_t, n);

  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  make_room (s);
  for (uint32_t i = 0; i < n; i++)
    prepare (s, bucket[i]);
  for (uint32_t i = 0; i < n; i++)
    leaf[i] = scatter (s, bucket[i], i ? WEFT_OP_GROUPED : 0);
  struct weft_reduction row = { g, s->replicas->bucket[bucket[n - 1]].reduced };
  g_array_append_val (s->replicas->reducing, row);
  for (uint32_t i = 0; i < n; i++)
    weft_sum_add (s, &s->replicas->bucket[bucket[i]].sum, leaf[i]);
  for (uint32_t i = 0; i < n && s->last_micro; i++)
    weft_outer_reduce (s, bucket[i], i ? WEFT_OP_GROUPED : 0);
  s->at = at;
}

/* If two kernels compute gradients of one tensor in a microbatch (tied output layer and embedding),
 * the second kernel adds its gradient to that of the first kernel. */
struct weft_use
weft_fsdp_grad_begin (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->params->layout.place[param].bucket;
  gboolean again = s->replicas->grad_left[param];

  if (!weft_step_flat (s, k)->cut_grads)
    return weft_ddp_grad_begin (s, param);
  if (s->replicas->bucket[k].grads == WEFT_NO_BUF) {
    add_unit_gradients (s, k);
    weft_fsdp_set_views (s, k, s->replicas->bucket[k].grads, 0, s->params->grad_view);
  }
  s->replicas->grad_left[param] = TRUE;
  struct weft_use whole = { .buf = s->params->grad_view[param], .read = again, .write = 1 };
  return weft_sum_sources (s, &s->replicas->sum[param], whole);
}

/* Removes the views of a bucket's whole gradients after the reduction of the bucket. */
static void
forget_gradients (struct weft_step *s, uint32_t k)
{
  weft_fsdp_set_views (s, k, WEFT_NO_BUF, 0, s->params->grad_view);
  for (uint32_t i = s->replicas->bucket[k].first_param; i < s->replicas->bucket[k].end_param; i++)
    if (s->params->layout.place[i].bucket == k)
      s->replicas->grad_left[i] = FALSE;
}

void
weft_fsdp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  uint32_t g = weft_ddp_group_of (s, param), n;

  if (!weft_step_flat (s, s->params->layout.place[param].bucket)->cut_grads) {
    weft_ddp_grad_end (s, param, grad);
    return;
  }
  weft_sum_join_sources (s, &s->replicas->sum[param], grad, s->params->grad_view[param]);
  if (++s->replicas->group[g].n_ready < s->replicas->group[g].n_param)
    return;
  reduce (s, g);
  for (const uint32_t *k = weft_ddp_members (s, g, &n), *end = k + n; k < end; k++)
    forget_gradients (s, *k);
  s->replicas->group[g].n_ready = 0;
}

struct weft_use
weft_fsdp_head_begin (struct weft_step *s)
{
  uint32_t k = weft_fsdp_head (s), embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT);

  if (!weft_head_has_own_sum (s))
    return weft_fsdp_grad_begin (s, embedding);
  add_unit_gradients (s, k);
  return (struct weft_use) WEFT_W (
      weft_params_view (s, embedding, s->replicas->bucket[k].grads, 0));
}

void
weft_fsdp_head_end (struct weft_step *s, struct weft_use grad)
{
  (void) grad;
  if (weft_head_has_own_sum (s))
    reduce (s, s->params->layout.n_group);
}

uint32_t
weft_fsdp_reduced (struct weft_step *s, uint32_t param)
{
  return s->replicas->bucket[s->params->layout.place[param].bucket].grad_shard;
}

uint32_t
weft_fsdp_reduced_head (struct weft_step *s)
{
  return s->replicas->bucket[weft_fsdp_head (s)].grad_shard;
}
