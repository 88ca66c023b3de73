/* Megatron-FSDP: replicas keep slices, and units (layers) are made whole for as long as they are
 * needed (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py).
 *
 *   weights     a unit is gathered before its forward and again before its backward, and let go
 *               after each; what lies outside units stays whole until the step ends.  While a unit
 *               runs, the units that come next are gathered, as long as there are fewer than half
 *               of suggested_communication_unit_size elements of them.
 *   recompute   forward that runs again asks for nothing ahead, and lets a unit go only when another
 *               has to be gathered: the last one of a block is still whole when its backward begins.
 *   gradients   kernels leave the whole gradient of a unit; the last one of the unit launches its
 *               reduce-scatter, in every microbatch, and slices are added on the same lane.  Before
 *               that, kernels wait for the oldest reductions while more than
 *               suggested_communication_unit_size elements are on their way.
 *   double buffers   at most two units are whole at one time, and at most two have whole gradients:
 *               one on its way, one in the making. */
#include "core/step.h"

/* The floor of the default, elements (param_and_grad_buffer.py). */
#define LEAST_UNIT_SIZE ((uint64_t) 1000000000)

/* Tensors of a bucket follow each other: layout.h. */
static void
note_units (struct weft_step *s)
{
  for (uint32_t i = s->params->len; i-- > 0;) {
    struct weft_bucket_state *state = &s->bucket[s->layout.place[i].bucket];
    state->first_param = i;
    state->unit = s->wrapper->shard_weights &&
                  g_array_index (s->params, struct weft_param, i).layer != WEFT_NO_LAYER;
  }
}

/* suggested_communication_unit_size: twice the mean unit, or the bucket size, and never small. */
static uint64_t
unit_size (const struct weft_step *s)
{
  uint64_t sum = 0, n = 0;

  if (s->strategy->suggested_communication_unit_size != WEFT_NONE)
    return s->strategy->suggested_communication_unit_size;
  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    if (s->bucket[k].unit) {
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
slice_view (struct weft_step *s, uint32_t flat, uint32_t k)
{
  return weft_params_flat_view (
      s, flat, k, size_of (s, k) / weft_mesh_group_size (s->mesh, WEFT_GROUP_DP), "slice");
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

  weft_ddp_start (s);
  note_units (s);
  s->unit_size = unit_size (s);
  if (!s->wrapper->shard_grads)
    return;
  for (uint32_t k = 0; k < s->layout.n_bucket; k++) {
    struct weft_bucket_state *state = &s->bucket[k];
    state->grads = WEFT_NO_BUF;
    state->grad_shard = slice_view (s, weft_step_flat (s, k)->grads, k);
    weft_sum_start (&state->sum, state->grad_shard, size_of (s, k) / replicas, WEFT_LANE_DP);
    if (!s->wrapper->shard_weights)
      continue;
    state->weights = WEFT_NO_BUF;
    state->weight_shard = slice_view (s, weft_step_flat (s, k)->weights, k);
  }
  if (weft_head_has_own_sum (s))
    start_head (s);
}

/* ----------------------------------------------------------------------- weights */

/* Views of all tensors of a bucket in the buffer that holds it whole. */
static void
set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view)
{
  uint64_t size =
      whole == WEFT_NO_BUF ? 0 : weft_dtype_bytes (weft_build_buf_at (s->b, whole)->dtype);

  uint32_t first = s->bucket[k].first_param, end = first + s->bucket[k].n_param;

  for (uint32_t i = first; i < end; i++)
    view[i] = whole == WEFT_NO_BUF
                  ? WEFT_NO_BUF
                  : weft_params_view (
                        s, i, whole, (s->layout.place[i].start - s->layout.bucket[k].start) * size);
}

static void
let_go (struct weft_step *s, uint32_t k)
{
  s->bucket[k].weights = WEFT_NO_BUF;
  s->bucket[k].idle = FALSE;
  set_views (s, k, WEFT_NO_BUF, s->weight_view);
}

static void
gather (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  struct weft_op at = s->at;

  for (uint32_t i = 0; i < s->layout.n_bucket; i++)
    if (s->bucket[i].idle)
      let_go (s, i);
  s->at.layer = WEFT_NO_LAYER;
  state->weights = weft_step_buffer (s, WEFT_BUF_GATHERED, s->dtype, size_of (s, k), "whole");
  state->gathered = weft_ddp_collective (
      s, weft_ddp_row (s, WEFT_OP_ALL_GATHER, "gather", k), WEFT_SHAPE (s->dtype, size_of (s, k)),
      WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weights)));
  set_views (s, k, state->weights, s->weight_view);
  s->at = at;
}

gboolean
weft_fsdp_reaches (const struct weft_step *s, uint32_t k, uint32_t other)
{
  uint64_t between = 0;

  for (uint32_t i = MIN (k, other) + 1; i < MAX (k, other); i++)
    between += size_of (s, i);
  return between < s->unit_size / 2;
}

/* The buckets after k in the direction of the pass, until enough is on its way: of units only one
 * where two have to do. */
static void
prefetch (struct weft_step *s, uint32_t k)
{
  uint32_t step = s->at.phase == WEFT_PHASE_FORWARD ? 1 : (uint32_t) -1, units = 0;

  for (uint32_t next = k + step; next < s->layout.n_bucket && weft_fsdp_reaches (s, k, next);
       next += step) {
    units += s->bucket[next].unit;
    if (s->strategy->fsdp_double_buffer && units == 2)
      return;
    s->bucket[next].idle = FALSE;
    if (s->bucket[next].weights == WEFT_NO_BUF)
      gather (s, next);
  }
}

void
weft_fsdp_before_use (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;
  struct weft_bucket_state *state = &s->bucket[k];

  state->idle = FALSE;
  if (state->weights == WEFT_NO_BUF)
    gather (s, k);
  if (state->entered != s->pass && s->at.phase != WEFT_PHASE_RECOMPUTE) {
    state->entered = s->pass;
    prefetch (s, k);
  }
  g_array_append_val (s->wait_for, state->gathered);
}

void
weft_fsdp_leave (struct weft_step *s, uint32_t layer)
{
  uint32_t norm = s->layer_param[(layer - s->first_layer) * WEFT_N_LAYER_PARAM + WEFT_NORM1_WEIGHT];
  uint32_t k = s->layout.place[norm].bucket;

  if (!s->bucket[k].unit)
    return;
  if (s->at.phase == WEFT_PHASE_RECOMPUTE)
    s->bucket[k].idle = TRUE;
  else
    let_go (s, k);
}

void
weft_fsdp_finish (struct weft_step *s)
{
  for (uint32_t k = 0; k < s->layout.n_bucket && s->wrapper->shard_weights; k++)
    if (s->bucket[k].weights != WEFT_NO_BUF)
      weft_emit (s, WEFT_OP_RELEASE, "release_weights", WEFT_SHAPE (s->dtype, 0),
                 WEFT_USES (WEFT_R (s->bucket[k].weights)));
}

/* --------------------------------------------------------------------- gradients */

/* What a bucket is rounded up by belongs to no tensor and is cleared. */
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

/* The next kernel waits for the oldest reduction; returns how many elements that is. */
static uint64_t
wait_for_oldest (struct weft_step *s)
{
  struct weft_reduction oldest = g_array_index (s->reducing, struct weft_reduction, 0);

  g_array_append_val (s->wait_for, oldest.op);
  g_array_remove_index (s->reducing, 0);
  return size_of (s, oldest.bucket);
}

static uint32_t
reducing_units (const struct weft_step *s)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < s->reducing->len; i++)
    n += s->bucket[g_array_index (s->reducing, struct weft_reduction, i).bucket].unit;
  return n;
}

static void
make_whole_gradient (struct weft_step *s, uint32_t k)
{
  while (s->strategy->fsdp_double_buffer && s->bucket[k].unit && reducing_units (s) > 1)
    wait_for_oldest (s);
  s->bucket[k].grads =
      weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype, size_of (s, k), "unit_gradients");
  clear_padding (s, k, s->bucket[k].grads);
}

static void
make_room (struct weft_step *s)
{
  uint64_t queued = 0;

  for (uint32_t i = 0; i < s->reducing->len; i++)
    queued += size_of (s, g_array_index (s->reducing, struct weft_reduction, i).bucket);
  while (queued > s->unit_size)
    queued -= wait_for_oldest (s);
}

static void
reduce (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  uint64_t n = size_of (s, k);
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  make_room (s);
  weft_ddp_check (s, state->grads, n, k);
  weft_ddp_scale (s, state->grads, n);
  uint32_t leaf = s->canonical ? weft_sum_leaf (s, &state->sum)
                               : weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype,
                                                   state->sum.n, "reduced");
  state->reduced = weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_REDUCE_SCATTER, "bucket", k),
                                        WEFT_SHAPE (s->grad_dtype, n),
                                        WEFT_USES (WEFT_RW (state->grads), WEFT_W (leaf)));
  weft_sum_add (s, &state->sum, leaf);
  struct weft_reduction row = { k, state->reduced };
  g_array_append_val (s->reducing, row);
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
weft_fsdp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  uint32_t k = s->layout.place[param].bucket;

  (void) grad;
  if (++s->bucket[k].n_ready < s->bucket[k].n_param)
    return;
  reduce (s, k);
  set_views (s, k, WEFT_NO_BUF, s->grad_view);
  for (uint32_t i = 0; i < s->bucket[k].n_param; i++)
    s->grad_left[s->bucket[k].first_param + i] = FALSE;
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
weft_fsdp_head_end (struct weft_step *s, struct weft_use grad)
{
  (void) grad;
  if (weft_head_has_own_sum (s))
    reduce (s, head_bucket (s));
}

uint32_t
weft_fsdp_reduced (struct weft_step *s, uint32_t param)
{
  return s->bucket[s->layout.place[param].bucket].grad_shard;
}

uint32_t
weft_fsdp_reduced_head (struct weft_step *s)
{
  return s->bucket[head_bucket (s)].sum.main;
}
