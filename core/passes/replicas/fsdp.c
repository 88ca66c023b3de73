/* Weights of Megatron-FSDP. A unit is the parameters that are all-gathered together.
 *
 *   units           A unit is gathered before its forward and again before its backward, and
 *                   resharded after both passes. Weights outside units stay gathered until the step
 *                   ends. While a unit runs, the next units are prefetched, as long as the
 *                   prefetched units have fewer elements than half of
 *                   suggested_communication_unit_size.
 *   recompute       Recompute does not prefetch. A recomputed unit is resharded only when another
 *                   unit is gathered, so that the last unit of a recomputed block is still gathered
 *                   when its backward begins.
 *   double buffers  At most two units are gathered at one time. */
#include "core/passes/replicas/fsdp.h"
#include "core/job/unit_modules.h"

/* Lower limit of the default unit size, in elements (param_and_grad_buffer.py). */
#define LEAST_UNIT_SIZE ((uint64_t) 1000000000)

/* Returns the first parameter of a layer's attention or MLP block, which is the weight of its norm.
 * If the MLP has no norm, this is fc1 or the router. */
static uint32_t
norm_of (const struct weft_step *s, uint32_t layer, enum weft_layer_param norm)
{
  if (norm == WEFT_NORM2_WEIGHT)
    return weft_params_of_mlp (s, layer);
  return weft_params_of_layer (s, layer, norm);
}

/* Whether a parameter of multi-token prediction is outside the transformer layer of its depth
 * (extra prediction layer). Only the transformer layer is an FSDP unit. */
static gboolean
is_beside_layer (const struct weft_step *s, uint32_t param)
{
  uint32_t layer = weft_param_at (s, param)->layer;

  return layer != WEFT_NO_LAYER && layer >= s->model->num_layers &&
         (param < norm_of (s, layer, WEFT_NORM1_WEIGHT) ||
          param >= norm_of (s, layer, WEFT_MTP_NORM_WEIGHT));
}

/* Returns the FSDP unit of a parameter. Each layer has two unit numbers, for attention and for the
 * MLP; if the whole layer is one unit, only the first number is used. Two more numbers follow, for
 * the embedding and for the output layer. */
uint32_t
weft_fsdp_unit (const struct weft_step *s, uint32_t param)
{
  uint32_t layer = weft_param_at (s, param)->layer;
  gboolean embedding = param == weft_params_of_end (s, WEFT_EMBED_WEIGHT) ||
                       param == weft_params_of_end (s, WEFT_POSITION_WEIGHT) ||
                       param == weft_params_of_end (s, WEFT_EMBED_NORM_WEIGHT) ||
                       param == weft_params_of_end (s, WEFT_EMBED_NORM_BIAS);
  enum weft_unit part = embedding ? WEFT_UNIT_EMBEDDING : WEFT_UNIT_HEAD;
  uint32_t number = 2 * (s->model->num_layers + s->model->mtp_num_layers) + !embedding;

  if (is_beside_layer (s, param))
    return WEFT_NO_UNIT;

  if (layer != WEFT_NO_LAYER) {
    gboolean whole = s->replicas->unit_modules >> WEFT_UNIT_LAYER & 1;
    gboolean first = param < norm_of (s, layer, WEFT_NORM2_WEIGHT);
    part = whole ? WEFT_UNIT_LAYER : first ? WEFT_UNIT_ATTENTION : WEFT_UNIT_MLP;
    number = 2 * layer + (part == WEFT_UNIT_MLP);
  }
  return s->replicas->unit_modules >> part & 1 ? number : WEFT_NO_UNIT;
}

/* Sets the parameter range of each bucket, and whether the bucket belongs to an FSDP unit. Tensors
 * of a unit are consecutive (core/program/layout.h). */
static void
note_units (struct weft_step *s)
{
  for (uint32_t i = weft_params_count (s); i-- > 0;) {
    struct weft_bucket_state *state = &s->replicas->bucket[s->params->layout.place[i].bucket];
    state->first_param = i;
    state->end_param = MAX (state->end_param, i + 1);
    state->unit = weft_step_flat (s, s->params->layout.place[i].bucket)->cut_weights &&
                  weft_fsdp_unit (s, i) != WEFT_NO_UNIT;
  }
}

gboolean
weft_fsdp_is_unit (const struct weft_step *s, uint32_t g)
{
  return s->replicas->bucket[s->params->layout.bucket_of[s->params->layout.group[g].first]].unit;
}

uint32_t
weft_fsdp_number (const struct weft_step *s, uint32_t g)
{
  return weft_fsdp_unit (
      s, s->replicas->bucket[s->params->layout.bucket_of[s->params->layout.group[g].first]]
             .first_param);
}

static gboolean
is_same_unit (const struct weft_step *s, uint32_t g, uint32_t other)
{
  uint32_t number = weft_fsdp_number (s, g);

  return g == other || (number != WEFT_NO_UNIT && number == weft_fsdp_number (s, other));
}

/* Sets *first to the first launch group of the FSDP unit that contains launch group g. Returns the
 * end of the unit's launch groups. They are consecutive: one for the unit's experts, one for its
 * other weights. */
static uint32_t
unit_end (const struct weft_step *s, uint32_t g, uint32_t *first)
{
  uint32_t end = g + 1;

  for (*first = g; *first > 0 && is_same_unit (s, g, *first - 1);)
    --*first;
  while (end < s->params->layout.n_group && is_same_unit (s, g, end))
    end++;
  return end;
}

/* Returns suggested_communication_unit_size. If the job does not set it, returns twice the mean
 * size of FSDP units, or the bucket size if there are no units, but at least LEAST_UNIT_SIZE. */
static uint64_t
unit_size (const struct weft_step *s)
{
  uint64_t sum = 0, n = 0;

  if (s->strategy->suggested_communication_unit_size != WEFT_NONE)
    return s->strategy->suggested_communication_unit_size;
  for (uint32_t g = 0; g < s->params->layout.n_group; g++)
    if (weft_fsdp_is_unit (s, g)) {
      sum += weft_fsdp_group_size (s, g);
      n += g == 0 || !is_same_unit (s, g, g - 1);
    }
  if (n)
    return MAX (LEAST_UNIT_SIZE, 2 * sum / n);
  return MAX (LEAST_UNIT_SIZE,
              s->strategy->bucket_size == WEFT_NONE ? 0 : (uint64_t) s->strategy->bucket_size);
}

uint64_t
weft_fsdp_size (const struct weft_step *s, uint32_t k)
{
  return weft_ddp_bucket_size (s, weft_fsdp_like (s, k));
}

uint64_t
weft_fsdp_group_size (const struct weft_step *s, uint32_t g)
{
  uint64_t sum = 0;
  uint32_t n;

  for (const uint32_t *k = weft_ddp_members (s, g, &n), *end = k + n; k < end; k++)
    sum += weft_fsdp_size (s, *k);
  return sum;
}

uint64_t
weft_fsdp_slice_size (const struct weft_step *s, uint32_t k)
{
  enum weft_group_kind sharing = weft_bucket_sharing (s, weft_fsdp_like (s, k));

  return weft_fsdp_size (s, k) / weft_mesh_group_size (s->mesh, sharing);
}

uint32_t
weft_fsdp_slice (struct weft_step *s, uint32_t flat, uint32_t k)
{
  return weft_params_flat_view (s, flat, k, weft_fsdp_slice_size (s, k), "slice");
}

void
weft_fsdp_start (struct weft_step *s)
{
  weft_ddp_start (s);
  note_units (s);
  s->replicas->unit_size = unit_size (s);
  if (s->sharding->shard_grads)
    weft_fsdp_start_grads (s);
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    if (!weft_step_flat (s, k)->cut_weights)
      continue;
    s->replicas->bucket[k].weights = WEFT_NO_BUF;
    s->replicas->bucket[k].weight_slice = weft_fsdp_slice (s, weft_step_flat (s, k)->weights, k);
    s->replicas->bucket[k].weight_shard = weft_outer_owned (s, s->replicas->bucket[k].weight_slice);
  }
}

void
weft_fsdp_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint64_t offset,
                     uint32_t *view)
{
  uint64_t size =
      whole == WEFT_NO_BUF ? 0 : weft_dtype_bytes (weft_build_buf_at (s->b, whole)->dtype);

  for (uint32_t i = s->replicas->bucket[k].first_param; i < s->replicas->bucket[k].end_param; i++) {
    uint64_t first = s->params->layout.place[i].start - s->params->layout.bucket[k].start;
    if (s->params->layout.place[i].bucket == k)
      view[i] = whole == WEFT_NO_BUF ? WEFT_NO_BUF
                                     : weft_params_view (s, i, whole, offset + first * size);
  }
}

static void
reshard (struct weft_step *s, uint32_t g)
{
  uint32_t n;

  for (const uint32_t *k = weft_ddp_members (s, g, &n), *end = k + n; k < end; k++) {
    s->replicas->bucket[*k].weights = WEFT_NO_BUF;
    weft_fsdp_set_views (s, *k, WEFT_NO_BUF, 0, s->params->weight_view);
    if (weft_fp8_weights_transpose_behind (s, *k))
      weft_fsdp_set_views (s, *k, WEFT_NO_BUF, 0, s->replicas->transposed);
  }
  s->replicas->group[g].idle = s->replicas->group[g].gathered = FALSE;
}

/* Returns the destination of an all-gather: the buffer of gathered weights, without the transposed
 * fp8 copy that follows the weights in the buffer. */
static uint32_t
gathered_of (struct weft_step *s, uint32_t k)
{
  uint64_t bytes = weft_fsdp_size (s, k) * weft_dtype_bytes (weft_step_flat (s, k)->dtype);
  uint32_t weights = s->replicas->bucket[k].weights;

  return weft_fp8_weights_transpose_behind (s, k)
             ? weft_build_view (s->b, weights, 0, bytes, "codes")
             : weights;
}

static void
gather_bucket (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  uint64_t n = weft_fsdp_size (s, k);
  enum weft_dtype dtype = weft_step_flat (s, k)->dtype;
  gboolean copied = weft_fp8_weights_transpose_behind (s, k);
  uint64_t bytes = n * weft_dtype_bytes (dtype);

  state->weights = weft_step_buffer (s, WEFT_BUF_GATHERED, dtype, copied ? 2 * n : n, "whole");
  struct weft_op row = weft_ddp_row (s, WEFT_OP_ALL_GATHER, "gather", k);
  row.flags = flags;
  state->gathered =
      weft_ddp_collective (s, row, WEFT_SHAPE (dtype, n),
                           WEFT_USES (WEFT_R (state->weight_slice), WEFT_W (gathered_of (s, k))));
  weft_fsdp_set_views (s, k, state->weights, 0, s->params->weight_view);
  if (copied)
    weft_fsdp_set_views (s, k, state->weights, bytes, s->replicas->transposed);
}

static void
gather (struct weft_step *s, uint32_t g)
{
  struct weft_op at = s->at;
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);

  for (uint32_t i = 0; i < s->params->layout.n_group; i++)
    if (s->replicas->group[i].idle)
      reshard (s, i);
  s->at.layer = WEFT_NO_LAYER;
  for (uint32_t i = 0; i < n; i++)
    weft_outer_gather (s, bucket[i], i ? WEFT_OP_GROUPED : 0);
  for (uint32_t i = 0; i < n; i++)
    gather_bucket (s, bucket[i], i ? WEFT_OP_GROUPED : 0);
  s->at = at;
}

/* Returns the last bucket of a launch group. When the all-gather of this bucket has ended, all
 * buckets of the launch group are gathered. */
static const struct weft_bucket_state *
newest (const struct weft_step *s, uint32_t g)
{
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);

  return &s->replicas->bucket[bucket[n - 1]];
}

static gboolean
is_there (const struct weft_step *s, uint32_t g)
{
  return newest (s, g)->weights != WEFT_NO_BUF;
}

gboolean
weft_fsdp_reaches (const struct weft_step *s, uint32_t g, uint32_t other)
{
  uint64_t between = 0;

  for (uint32_t i = MIN (g, other) + 1; i < MAX (g, other); i++)
    between += weft_fsdp_group_size (s, i);
  return between < s->replicas->unit_size / 2;
}

/* Prefetch: gathers the launch groups that follow g in the direction of the current pass, as long
 * as weft_fsdp_reaches() is TRUE. With double buffers, gathers at most one further FSDP unit. */
static void
prefetch (struct weft_step *s, uint32_t g)
{
  uint32_t step = s->at.phase == WEFT_PHASE_FORWARD ? 1 : (uint32_t) -1, units = 0;

  for (uint32_t next = g + step;
       next < s->params->layout.n_group &&
       s->params->layout.group[next].chunk == s->params->layout.group[g].chunk &&
       weft_fsdp_reaches (s, g, next);
       next += step) {
    units += weft_fsdp_is_unit (s, next) && !is_same_unit (s, next, next - step);
    if (s->strategy->fsdp_double_buffer && units == 2)
      return;
    s->replicas->group[next].idle = FALSE;
    if (!is_there (s, next))
      gather (s, next);
  }
}

/* Gathers the launch groups of an FSDP unit that are not gathered at present. */
static void
gather_unit (struct weft_step *s, uint32_t first, uint32_t end)
{
  for (uint32_t i = first; i < end; i++)
    s->replicas->group[i].idle = FALSE;
  for (uint32_t i = first; i < end; i++)
    if (!is_there (s, i))
      gather (s, i);
}

/* Gathers an FSDP unit with the unit's experts, and prefetches the next units. Kernels wait for all
 * launch groups of the unit (megatron_fsdp.py, pre_forward_param_unshard). */
static void
enter_unit (struct weft_step *s, uint32_t g)
{
  uint32_t first, end = unit_end (s, g, &first);
  uint32_t pass = 2 * s->replicas->n_cell + (s->at.phase == WEFT_PHASE_FORWARD);

  gather_unit (s, first, end);
  if (s->replicas->group[g].entered == pass || s->at.phase == WEFT_PHASE_RECOMPUTE)
    return;
  for (uint32_t i = first; i < end; i++)
    s->replicas->group[i].entered = pass;
  prefetch (s, s->at.phase == WEFT_PHASE_FORWARD ? end - 1 : first);
}

void
weft_fsdp_before_read (struct weft_step *s, uint32_t param)
{
  uint32_t g = weft_ddp_group_of (s, param);
  struct weft_group_state *group = &s->replicas->group[g];
  uint32_t first, end = unit_end (s, g, &first);

  enter_unit (s, g);
  for (uint32_t i = first; i < end; i++)
    if (newest (s, i)->gathered != WEFT_NO_OP)
      weft_next_kernel_waits_for (s, newest (s, i)->gathered);
  if (!group->gathered)
    weft_fp8_weights_gathered (s, g);
  group->gathered = TRUE;
}

void
weft_fsdp_gather_first (struct weft_step *s, uint32_t chunk)
{
  uint32_t g = weft_ddp_first_group (s, chunk), first;
  struct weft_op at = s->at;

  if (g == WEFT_NO_GROUP)
    return;
  uint32_t end = unit_end (s, g, &first);
  s->at.phase = WEFT_PHASE_FORWARD;
  gather_unit (s, first, end);
  prefetch (s, end - 1);
  s->at = at;
}

static void
leave_unit (struct weft_step *s, uint32_t g)
{
  uint32_t first, end = unit_end (s, g, &first);

  for (uint32_t i = first; i < end; i++) {
    if (!weft_fsdp_is_unit (s, i))
      continue;
    if (s->at.phase == WEFT_PHASE_RECOMPUTE)
      s->replicas->group[i].idle = TRUE;
    else
      reshard (s, i);
  }
}

/* Reshards the FSDP unit of the block that runs last in a layer: the MLP in forward, attention in
 * backward. */
void
weft_fsdp_reshard_layer (struct weft_step *s, uint32_t layer)
{
  gboolean forward = s->at.phase == WEFT_PHASE_FORWARD || s->at.phase == WEFT_PHASE_RECOMPUTE;
  enum weft_layer_param last = forward ? WEFT_NORM2_WEIGHT : WEFT_NORM1_WEIGHT;

  leave_unit (s, weft_ddp_group_of (s, norm_of (s, layer, last)));
}

/* Reshards the unit of attention or of the MLP, unless one unit contains both. */
void
weft_fsdp_reshard_module (struct weft_step *s, uint32_t param)
{
  uint32_t layer = weft_param_at (s, param)->layer;

  if (layer != WEFT_NO_LAYER && weft_ddp_group_of (s, norm_of (s, layer, WEFT_NORM1_WEIGHT)) ==
                                    weft_ddp_group_of (s, norm_of (s, layer, WEFT_NORM2_WEIGHT)))
    return;
  leave_unit (s, weft_ddp_group_of (s, param));
}

void
weft_fsdp_finish (struct weft_step *s)
{
  weft_ddp_finish_whole (s);
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    if (weft_step_flat (s, k)->cut_weights && s->replicas->bucket[k].weights != WEFT_NO_BUF)
      weft_emit (s, WEFT_OP_RELEASE, "release_weights",
                 WEFT_SHAPE (weft_step_flat (s, k)->dtype, 0),
                 WEFT_USES (WEFT_R (gathered_of (s, k))));
  weft_ddp_join_across (s);
}
