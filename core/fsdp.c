/* Megatron-FSDP: replicas keep slices, and units (layers) are made whole for as long as they are
 * needed (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py).
 *
 *   weights     a unit is gathered before its forward and again before its backward, and let go
 *               after each; what lies outside units stays whole until the step ends.  While a unit
 *               runs, the units that come next are gathered, as long as there are fewer than half
 *               of suggested_communication_unit_size elements of them.
 *   gradients   kernels leave the whole gradient of a unit; the last one of the unit launches its
 *               reduce-scatter, in every microbatch, and slices are added on the same lane.  Later
 *               kernels wait for the oldest reductions while more than
 *               suggested_communication_unit_size elements are on their way.
 *   double buffers   at most two units are whole, and at most two on their way, at one time. */
#include "core/step.h"

/* The floor of the default, elements (param_and_grad_buffer.py). */
#define LEAST_UNIT_SIZE ((uint64_t) 1000000000)

static gboolean
is_unit (const struct weft_step *s, uint32_t k)
{
  for (uint32_t i = 0; i < s->params->len; i++)
    if (s->layout.place[i].bucket == k)
      return g_array_index (s->params, struct weft_param, i).layer != WEFT_NO_LAYER;
  return FALSE;
}

/* suggested_communication_unit_size: twice the mean unit, or the bucket size, and never small. */
static uint64_t
unit_size (const struct weft_step *s)
{
  uint64_t sum = 0, n = 0;

  if (s->strategy->suggested_communication_unit_size != WEFT_NONE)
    return s->strategy->suggested_communication_unit_size;
  for (uint32_t k = 0; k < s->layout.n_bucket && s->shard_weights; k++)
    if (is_unit (s, k)) {
      sum += weft_ddp_bucket_size (s, k);
      n++;
    }
  if (n)
    return MAX (LEAST_UNIT_SIZE, 2 * sum / n);
  return MAX (LEAST_UNIT_SIZE,
              s->strategy->bucket_size == WEFT_NONE ? 0 : (uint64_t) s->strategy->bucket_size);
}

/* The tied head of a single stage, whose gradient is reduced like a bucket of its own. */
static uint32_t
head_bucket (const struct weft_step *s)
{
  return s->layout.n_bucket;
}

static uint64_t
size_of (const struct weft_step *s, uint32_t k)
{
  uint32_t embedding = s->end_param[WEFT_EMBED_WEIGHT];
  return weft_ddp_bucket_size (s, k < s->layout.n_bucket ? k : s->layout.place[embedding].bucket);
}

static uint32_t
slice_view (struct weft_step *s, uint32_t flat, enum weft_dtype dtype, uint32_t k)
{
  uint64_t replicas = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP),
           size = weft_dtype_bytes (dtype);
  return weft_build_view (s->b, flat, s->layout.bucket[k].start / replicas * size,
                          size_of (s, k) / replicas * size, "slice");
}

static void
start_head (struct weft_step *s)
{
  struct weft_bucket_state *state = &s->bucket[head_bucket (s)];
  uint64_t n = size_of (s, head_bucket (s)) / weft_mesh_group_size (s->mesh, WEFT_GROUP_DP);

  state->grads = WEFT_NO_BUF;
  state->grad_shard =
      weft_step_permanent (s, WEFT_BUF_GRADIENTS, s->grad_dtype, n, "head_gradients");
  weft_build_buf_at (s->b, state->grad_shard)->slice = WEFT_GROUP_DP;
  weft_sum_start (&state->sum, state->grad_shard, n, WEFT_LANE_DP);
}

void
weft_fsdp_start (struct weft_step *s)
{
  uint32_t replicas = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP);

  for (uint32_t k = 0; k < s->layout.n_bucket; k++) {
    struct weft_bucket_state *state = &s->bucket[k];
    state->grads = WEFT_NO_BUF;
    state->grad_shard = slice_view (s, s->grads, s->grad_dtype, k);
    weft_sum_start (&state->sum, state->grad_shard, size_of (s, k) / replicas, WEFT_LANE_DP);
    if (!s->shard_weights)
      continue;
    state->weights = WEFT_NO_BUF;
    state->weight_shard = slice_view (s, s->weights, s->dtype, k);
  }
  if (weft_head_has_own_sum (s))
    start_head (s);
}

/* ----------------------------------------------------------------------- weights */

static gboolean
runs_backward (const struct weft_step *s)
{
  return s->at.phase != WEFT_PHASE_FORWARD;
}

/* Views of all tensors of a bucket in the buffer that holds it whole. */
static void
set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view)
{
  uint64_t size =
      whole == WEFT_NO_BUF ? 0 : weft_dtype_bytes (weft_build_buf_at (s->b, whole)->dtype);

  for (uint32_t i = 0; i < s->params->len; i++)
    if (s->layout.place[i].bucket == k)
      view[i] =
          whole == WEFT_NO_BUF
              ? WEFT_NO_BUF
              : weft_params_view (s, i, whole,
                                  (s->layout.place[i].start - s->layout.bucket[k].start) * size);
}

static void
gather (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  struct weft_op at = s->at;

  s->at.layer = WEFT_NO_LAYER;
  state->weights = weft_step_buffer (s, WEFT_BUF_GATHERED, s->dtype, size_of (s, k), "whole");
  state->gathered = weft_ddp_collective (
      s, weft_ddp_row (s, WEFT_OP_ALL_GATHER, "gather", k), WEFT_SHAPE (s->dtype, size_of (s, k)),
      WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weights)));
  set_views (s, k, state->weights, s->weight_view);
  s->at = at;
}

static uint32_t
whole_units (const struct weft_step *s)
{
  uint32_t n = 0;

  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    n += s->bucket[k].weights != WEFT_NO_BUF && is_unit (s, k);
  return n;
}

/* The buckets after k in the direction of the pass, until enough is on its way. */
static void
prefetch (struct weft_step *s, uint32_t k)
{
  uint64_t ahead = 0, enough = unit_size (s) / 2;
  uint32_t step = runs_backward (s) ? (uint32_t) -1 : 1;

  for (uint32_t next = k + step; next < s->layout.n_bucket && ahead < enough; next += step) {
    if (s->bucket[next].weights == WEFT_NO_BUF) {
      if (s->strategy->fsdp_double_buffer && is_unit (s, next) && whole_units (s) == 2)
        return;
      gather (s, next);
    }
    ahead += size_of (s, next);
  }
}

void
weft_fsdp_before_use (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;
  struct weft_bucket_state *state = &s->bucket[k];

  if (state->weights == WEFT_NO_BUF)
    gather (s, k);
  if (state->entered != s->pass) {
    state->entered = s->pass;
    prefetch (s, k);
  }
  g_array_append_val (s->wait_for, state->gathered);
}

void
weft_fsdp_leave (struct weft_step *s, uint32_t layer)
{
  for (uint32_t i = 0; i < s->params->len && s->shard_weights; i++)
    if (g_array_index (s->params, struct weft_param, i).layer == layer) {
      struct weft_bucket_state *state = &s->bucket[s->layout.place[i].bucket];
      state->weights = s->weight_view[i] = WEFT_NO_BUF;
    }
}

/* --------------------------------------------------------------------- gradients */

/* Slices end between rows: what they round up to belongs to no tensor and is cleared. */
static void
clear_padding (struct weft_step *s, uint32_t k, uint32_t grads)
{
  uint32_t like =
      k < s->layout.n_bucket ? k : s->layout.place[s->end_param[WEFT_EMBED_WEIGHT]].bucket;
  uint64_t size = weft_dtype_bytes (s->grad_dtype), used = s->layout.bucket[like].unpadded;

  if (used == size_of (s, k))
    return;
  uint32_t rest =
      weft_build_view (s->b, grads, used * size, (size_of (s, k) - used) * size, "padding");
  weft_emit (s, WEFT_OP_ZERO, "padding", WEFT_SHAPE (s->grad_dtype, size_of (s, k) - used),
             WEFT_USES (WEFT_W (rest)));
}

static void
make_whole_gradient (struct weft_step *s, uint32_t k)
{
  s->bucket[k].grads =
      weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype, size_of (s, k), "unit_gradients");
  clear_padding (s, k, s->bucket[k].grads);
}

/* Room on the way: the next kernel waits for the oldest reductions. */
static void
make_room (struct weft_step *s, uint32_t k)
{
  uint64_t queued = 0, most = unit_size (s);

  g_array_append_val (s->reducing, k);
  for (uint32_t i = 0; i < s->reducing->len; i++)
    queued += size_of (s, g_array_index (s->reducing, uint32_t, i));
  while (s->reducing->len > 1 &&
         (queued > most || (s->strategy->fsdp_double_buffer && s->reducing->len > 2))) {
    uint32_t oldest = g_array_index (s->reducing, uint32_t, 0);
    queued -= size_of (s, oldest);
    g_array_append_val (s->wait_for, s->bucket[oldest].reduced);
    g_array_remove_index (s->reducing, 0);
  }
}

static void
reduce (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  uint64_t n = size_of (s, k);
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  weft_ddp_check (s, state->grads, n, k);
  weft_ddp_scale (s, state->grads, n);
  uint32_t leaf = s->canonical ? weft_sum_leaf (s, &state->sum)
                               : weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype,
                                                   state->sum.n, "reduced");
  state->reduced = weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_REDUCE_SCATTER, "bucket", k),
                                        WEFT_SHAPE (s->grad_dtype, n),
                                        WEFT_USES (WEFT_RW (state->grads), WEFT_W (leaf)));
  weft_sum_add (s, &state->sum, leaf);
  make_room (s, k);
  s->at = at;
  state->grads = WEFT_NO_BUF;
}

/* The second kernel that adds to a tensor in one microbatch, a tied head's or its embedding's, adds
 * to what the first has left. */
struct weft_use
weft_fsdp_grad_begin (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;
  gboolean again = s->grad_left[param];

  if (s->bucket[k].grads == WEFT_NO_BUF) {
    make_whole_gradient (s, k);
    set_views (s, k, s->bucket[k].grads, s->grad_view);
  }
  s->grad_left[param] = TRUE;
  return (struct weft_use){ .buf = s->grad_view[param], .read = again, .write = 1 };
}

void
weft_fsdp_grad_end (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;

  if (++s->bucket[k].n_ready < s->bucket[k].n_param)
    return;
  reduce (s, k);
  set_views (s, k, WEFT_NO_BUF, s->grad_view);
  for (uint32_t i = 0; i < s->params->len; i++)
    if (s->layout.place[i].bucket == k)
      s->grad_left[i] = FALSE;
  s->bucket[k].n_ready = 0;
}

struct weft_use
weft_fsdp_head_begin (struct weft_step *s)
{
  uint32_t k = head_bucket (s), embedding = s->end_param[WEFT_EMBED_WEIGHT];

  if (!weft_head_has_own_sum (s))
    return weft_fsdp_grad_begin (s, embedding);
  make_whole_gradient (s, k);
  return (struct weft_use) WEFT_W (weft_params_view (s, embedding, s->bucket[k].grads, 0));
}

void
weft_fsdp_head_end (struct weft_step *s)
{
  if (weft_head_has_own_sum (s))
    reduce (s, head_bucket (s));
}
