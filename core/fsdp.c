/* Weights of Megatron-FSDP.
 *
 *   units       a unit is gathered before its forward and again before its backward, and let go
 *               after each; what lies outside units stays whole until the step ends.  While a unit
 *               runs, the units that come next are gathered, as long as there are fewer than half
 *               of suggested_communication_unit_size elements of them.
 *   recompute   forward that runs again asks for nothing ahead, and lets a unit go only when another
 *               has to be gathered: the last one of a block is still whole when its backward begins.
 *   double buffers   at most two units are whole at one time. */
#include "core/fsdp.h"
#include "core/unit_modules.h"

/* The floor of the default, elements (param_and_grad_buffer.py). */
#define LEAST_UNIT_SIZE ((uint64_t) 1000000000)

/* The two halves of a layer begin with a norm each. */
static uint32_t
norm_of (const struct weft_step *s, uint32_t layer, enum weft_layer_param norm)
{
  return s->layer_param[(layer - s->first_layer) * WEFT_N_LAYER_PARAM + norm];
}

/* Units are numbered: two for the halves of each layer, the first where they are one, then those of
 * the ends. */
uint32_t
weft_fsdp_unit (const struct weft_step *s, uint32_t param)
{
  uint32_t layer = g_array_index (s->params, struct weft_param, param).layer;
  gboolean embedding =
      param == s->end_param[WEFT_EMBED_WEIGHT] || param == s->end_param[WEFT_POSITION_WEIGHT];
  enum weft_unit part = embedding ? WEFT_UNIT_EMBEDDING : WEFT_UNIT_HEAD;
  uint32_t number = 2 * s->model->num_layers + !embedding;

  if (layer != WEFT_NO_LAYER) {
    gboolean whole = s->unit_modules >> WEFT_UNIT_LAYER & 1;
    gboolean first = param < norm_of (s, layer, WEFT_NORM2_WEIGHT);
    part = whole ? WEFT_UNIT_LAYER : first ? WEFT_UNIT_ATTENTION : WEFT_UNIT_MLP;
    number = 2 * layer + (part == WEFT_UNIT_MLP);
  }
  return s->unit_modules >> part & 1 ? number : WEFT_NO_UNIT;
}

/* Tensors of a bucket follow each other: layout.h. */
static void
note_units (struct weft_step *s)
{
  for (uint32_t i = s->params->len; i-- > 0;) {
    struct weft_bucket_state *state = &s->bucket[s->layout.place[i].bucket];
    state->first_param = i;
    state->unit = s->wrapper->shard_weights && weft_fsdp_unit (s, i) != WEFT_NO_UNIT;
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

uint64_t
weft_fsdp_size (const struct weft_step *s, uint32_t k)
{
  return weft_ddp_bucket_size (s, weft_fsdp_like (s, k));
}

uint64_t
weft_fsdp_slice_size (const struct weft_step *s, uint32_t k)
{
  return weft_fsdp_size (s, k) / weft_mesh_group_size (s->mesh, weft_mesh_sharing (s->mesh));
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
  s->unit_size = unit_size (s);
  if (s->wrapper->shard_grads)
    weft_fsdp_start_grads (s);
  for (uint32_t k = 0; k < s->layout.n_bucket && s->wrapper->shard_weights; k++) {
    s->bucket[k].weights = WEFT_NO_BUF;
    s->bucket[k].weight_slice = weft_fsdp_slice (s, weft_step_flat (s, k)->weights, k);
    s->bucket[k].weight_shard = weft_outer_owned (s, s->bucket[k].weight_slice);
  }
}

void
weft_fsdp_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint32_t *view)
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
  weft_fsdp_set_views (s, k, WEFT_NO_BUF, s->weight_view);
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
  weft_outer_gather (s, k);
  state->weights =
      weft_step_buffer (s, WEFT_BUF_GATHERED, s->dtype, weft_fsdp_size (s, k), "whole");
  state->gathered =
      weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_ALL_GATHER, "gather", k),
                           WEFT_SHAPE (s->dtype, weft_fsdp_size (s, k)),
                           WEFT_USES (WEFT_R (state->weight_slice), WEFT_W (state->weights)));
  weft_fsdp_set_views (s, k, state->weights, s->weight_view);
  s->at = at;
}

gboolean
weft_fsdp_reaches (const struct weft_step *s, uint32_t k, uint32_t other)
{
  uint64_t between = 0;

  for (uint32_t i = MIN (k, other) + 1; i < MAX (k, other); i++)
    between += weft_fsdp_size (s, i);
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

static uint32_t
bucket_of (const struct weft_step *s, uint32_t param)
{
  return s->layout.place[param].bucket;
}

static void
leave_bucket (struct weft_step *s, uint32_t k)
{
  if (!s->bucket[k].unit)
    return;
  if (s->at.phase == WEFT_PHASE_RECOMPUTE)
    s->bucket[k].idle = TRUE;
  else
    let_go (s, k);
}

/* Forward ends with the second half, backward with the first. */
void
weft_fsdp_leave (struct weft_step *s, uint32_t layer)
{
  gboolean forward = s->at.phase == WEFT_PHASE_FORWARD || s->at.phase == WEFT_PHASE_RECOMPUTE;
  enum weft_layer_param last = forward ? WEFT_NORM2_WEIGHT : WEFT_NORM1_WEIGHT;

  leave_bucket (s, bucket_of (s, norm_of (s, layer, last)));
}

/* Half a layer; the other half may be in the same unit. */
void
weft_fsdp_through (struct weft_step *s, uint32_t param)
{
  uint32_t layer = g_array_index (s->params, struct weft_param, param).layer;

  if (layer != WEFT_NO_LAYER && bucket_of (s, norm_of (s, layer, WEFT_NORM1_WEIGHT)) ==
                                    bucket_of (s, norm_of (s, layer, WEFT_NORM2_WEIGHT)))
    return;
  leave_bucket (s, bucket_of (s, param));
}

void
weft_fsdp_finish (struct weft_step *s)
{
  for (uint32_t k = 0; k < s->layout.n_bucket && s->wrapper->shard_weights; k++)
    if (s->bucket[k].weights != WEFT_NO_BUF)
      weft_emit (s, WEFT_OP_RELEASE, "release_weights", WEFT_SHAPE (s->dtype, 0),
                 WEFT_USES (WEFT_R (s->bucket[k].weights)));
  weft_ddp_join_across (s);
}
