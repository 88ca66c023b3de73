/* Weights of one byte: fp8_param_gather, and MXFP8 with reuse_grad_buf_for_mxfp8_param_ag.
 *
 *   what        matrices of the layers' linear maps; embedding, head, norms and biases stay as they are
 *   E4M3        codes in a flat buffer of bytes and one float for each tensor, its largest magnitude.
 *               After Adam every rank finds the largest of its slices, ranks that share agree on the
 *               maximum, and each rounds its own slices of the masters; codes are then gathered
 *               (Megatron-Core fp8_utils.py, quantize_param_shard; current scaling)
 *   MXFP8       tensors have codes and scales of their own, in both directions.  They are made of bf16
 *               masters that are gathered through the gradient buffer: its first bytes, two for each
 *               element.  That room is cleared before a gradient comes (param_and_grad_buffer.py)
 *   the copy    input gradients read the weights the other way round.  The copy of E4M3 is made
 *                 standing    after each gather, in a flat buffer like that of the codes
 *                 beside      after each gather, behind the codes of a unit, and let go with them
 *                 for use     when backward first reads it, and let go with the layer
 *
 * Products are taken in the precision of training: only storage and transport are fp8. */
#include "core/passes/step.h"

#define MX_BLOCK 32 /* elements with one scale: OCP Microscaling Formats 1.0 */

static gboolean
reuses_gradients (const struct weft_step *s)
{
  return s->strategy->reuse_grad_buf_for_mxfp8_param_ag;
}

static struct weft_param *
param_at (const struct weft_step *s, uint32_t param)
{
  return &g_array_index (s->params, struct weft_param, param);
}

gboolean
weft_fp8_stores (const struct weft_step *s, uint32_t param)
{
  static const enum weft_layer_param matrices[] = { WEFT_QKV_WEIGHT, WEFT_PROJ_WEIGHT,
                                                    WEFT_FC1_WEIGHT, WEFT_FC2_WEIGHT };
  uint32_t layer = param_at (s, param)->layer;

  if (!s->strategy->fp8_param_gather || layer == WEFT_NO_LAYER)
    return FALSE;
  for (size_t i = 0; i < G_N_ELEMENTS (matrices); i++)
    if (s->layer_param[weft_step_slot (s, layer) * WEFT_N_LAYER_PARAM + matrices[i]] == param)
      return TRUE;
  return FALSE;
}

/* ------------------------------------------------------------------------ buffers */

/* Whether the copy that lies the other way round stays as long as the weights are whole, or is made
 * for use. */
static gboolean
copy_stays (const struct weft_step *s)
{
  return !s->wrapper->units || s->strategy->keep_fp8_transpose_cache;
}

gboolean
weft_fp8_copies (const struct weft_step *s, uint32_t k)
{
  return s->wrapper->shard_weights && weft_step_flat (s, k)->dtype == WEFT_FP8 && copy_stays (s);
}

static uint32_t
own_buffer (struct weft_step *s, uint32_t param, enum weft_dtype dtype, uint64_t n)
{
  uint32_t buf = weft_step_permanent (s, WEFT_BUF_WEIGHTS, dtype, n, "fp8");

  weft_build_buf_at (s->b, buf)->name = param_at (s, param)->name;
  weft_build_buf_at (s->b, buf)->layer = param_at (s, param)->layer;
  return buf;
}

static uint64_t
blocks (uint64_t columns)
{
  return (columns + MX_BLOCK - 1) / MX_BLOCK;
}

static void
add_mx (struct weft_step *s, uint32_t i)
{
  struct weft_param *row = param_at (s, i);
  uint64_t n = row->rows * row->columns;

  s->weight_view[i] = own_buffer (s, i, WEFT_FP8, n);
  row->scale = own_buffer (s, i, WEFT_E8M0, row->rows * blocks (row->columns));
  s->turned[i] = own_buffer (s, i, WEFT_FP8, n);
  s->turned_scale[i] = own_buffer (s, i, WEFT_E8M0, row->columns * blocks (row->rows));
}

static void
add_scale (struct weft_step *s, uint32_t i, uint32_t place)
{
  struct weft_param *row = param_at (s, i);

  row->scale = weft_build_view (s->b, s->scales, (uint64_t) place * 4, 4, "scale");
  weft_build_buf_at (s->b, row->scale)->name = row->name;
  weft_build_buf_at (s->b, row->scale)->layer = row->layer;
  s->turned_scale[i] = row->scale;
}

/* Codes lie where storage() has put them: in a buffer of bytes of each chunk.  Those of the first
 * buffers. */
static uint64_t
stored_bytes (const struct weft_step *s, uint32_t n_buffer)
{
  uint64_t bytes = 0;

  for (uint32_t i = 0; i < n_buffer; i++)
    if (g_array_index (s->flat, struct weft_flat, i).dtype == WEFT_FP8)
      bytes += weft_layout_numel (&s->layout, i);
  return bytes;
}

static void
add_turned (struct weft_step *s, uint32_t flat, uint32_t i)
{
  uint32_t buffer = s->layout.bucket[s->layout.place[i].bucket].buffer;
  uint64_t start = s->layout.place[i].start - s->layout.first[buffer];

  s->turned[i] = weft_params_view (s, i, flat, stored_bytes (s, buffer) + start);
}

void
weft_fp8_build (struct weft_step *s)
{
  uint32_t n = s->params->len, n_stored = 0, flat = WEFT_NO_BUF;

  s->turned = g_new (uint32_t, n);
  s->turned_scale = g_new (uint32_t, n);
  s->scales = WEFT_NO_BUF;
  for (uint32_t i = 0; i < n; i++) {
    s->turned[i] = s->turned_scale[i] = WEFT_NO_BUF;
    n_stored += weft_fp8_stores (s, i);
  }
  if (n_stored && !reuses_gradients (s))
    s->scales = weft_step_permanent (s, WEFT_BUF_WEIGHTS, WEFT_FP32, n_stored, "fp8 scales");
  if (n_stored && !reuses_gradients (s) && copy_stays (s) && !s->wrapper->shard_weights)
    flat = weft_step_permanent (s, WEFT_BUF_WEIGHTS, WEFT_FP8, stored_bytes (s, s->flat->len),
                                "fp8 transposed");
  for (uint32_t i = 0, place = 0; i < n; i++) {
    if (!weft_fp8_stores (s, i))
      continue;
    if (reuses_gradients (s))
      add_mx (s, i);
    else
      add_scale (s, i, place++);
    if (flat != WEFT_NO_BUF)
      add_turned (s, flat, i);
  }
}

gboolean
weft_fp8_is_staged (const struct weft_step *s, uint32_t k)
{
  return reuses_gradients (s) && weft_step_flat (s, k)->dtype == WEFT_FP8;
}

uint32_t
weft_fp8_staging (struct weft_step *s, uint32_t k)
{
  const struct weft_bucket *bucket = &s->layout.bucket[k];
  uint64_t first = bucket->start - s->layout.first[bucket->buffer];
  uint32_t view = weft_build_view (s->b, weft_step_flat (s, k)->grads, first * 2,
                                   (bucket->end - bucket->start) * 2, "staging");

  weft_build_buf_at (s->b, view)->dtype = WEFT_BF16;
  return view;
}

/* ------------------------------------------------------------------- after the update */

static uint64_t
slice_size (const struct weft_step *s, uint32_t k)
{
  return weft_step_elements (s, s->bucket[k].master);
}

/* Whose slices make up one whole. */
static enum weft_group_kind
sharing (const struct weft_step *s)
{
  return s->mesh->outer_slices > 1 ? WEFT_GROUP_DP : weft_mesh_sharing (s->mesh);
}

static void
find_largest (struct weft_step *s)
{
  if (s->scales == WEFT_NO_BUF) /* a stage without layers */
    return;
  weft_emit (s, WEFT_OP_ZERO, "zero_amax",
             WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, s->scales)),
             WEFT_USES (WEFT_W (s->scales)));
  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    if (weft_step_flat (s, k)->dtype == WEFT_FP8)
      weft_emit (s, WEFT_OP_AMAX, "amax", WEFT_SHAPE (WEFT_FP32, slice_size (s, k)),
                 WEFT_USES (WEFT_R (s->bucket[k].master), WEFT_RW (s->scales)));
  weft_reduce_all (s, sharing (s), WEFT_REDUCE_MAX, s->scales, "amax");
}

/* Masters become codes, or the bf16 that codes will be made of. */
static void
convert (struct weft_step *s, uint32_t k)
{
  const struct weft_bucket_state *state = &s->bucket[k];
  struct weft_shape shape = WEFT_SHAPE (WEFT_FP32, slice_size (s, k));

  shape.out_dtype = weft_fp8_is_staged (s, k) ? WEFT_BF16 : WEFT_FP8;
  if (weft_fp8_is_staged (s, k))
    weft_emit (s, WEFT_OP_CAST, "stage", shape,
               WEFT_USES (WEFT_R (state->master), WEFT_W (state->weight_shard)));
  else
    weft_emit (
        s, WEFT_OP_QUANTISE, "quantise", shape,
        WEFT_USES (WEFT_R (state->master), WEFT_R (s->scales), WEFT_W (state->weight_shard)));
}

static void
convert_all (struct weft_step *s)
{
  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    if (weft_step_flat (s, k)->dtype == WEFT_FP8)
      convert (s, k);
}

/* The room of gradients is free when a step begins, where its forward gathers. */
static gboolean
stages_ahead (const struct weft_step *s)
{
  return reuses_gradients (s) && s->chain->n_gather > 0;
}

void
weft_fp8_stage (struct weft_step *s)
{
  struct weft_op at = s->at;

  if (!stages_ahead (s))
    return;
  weft_states_build (s);
  s->at.phase = WEFT_PHASE_OPTIMIZER;
  convert_all (s);
  s->at = at;
}

void
weft_fp8_update (struct weft_step *s)
{
  if (!s->strategy->fp8_param_gather || stages_ahead (s))
    return;
  if (!reuses_gradients (s))
    find_largest (s);
  convert_all (s);
}

/* ------------------------------------------------------------- once a group is whole */

static void
turn (struct weft_step *s, uint32_t i)
{
  const struct weft_param *row = param_at (s, i);

  weft_emit (s, WEFT_OP_TRANSPOSE, "transpose", WEFT_SHAPE (WEFT_FP8, row->rows, row->columns),
             WEFT_USES (WEFT_R (s->weight_view[i]), WEFT_W (s->turned[i])));
}

static void
quantise_staged (struct weft_step *s, uint32_t i)
{
  const struct weft_param *row = param_at (s, i);
  uint32_t k = s->layout.place[i].bucket, staging = s->bucket[k].weights;
  const struct weft_buf *room = weft_build_buf_at (s->b, staging);
  uint64_t offset = (s->layout.place[i].start - s->layout.bucket[k].start) * 2;
  uint32_t view = weft_build_view (s->b, room->base, room->offset + offset,
                                   row->rows * row->columns * 2, "staging");
  struct weft_shape shape = WEFT_SHAPE (WEFT_BF16, row->rows, row->columns, MX_BLOCK, 0, 2);

  weft_build_buf_at (s->b, view)->dtype = WEFT_BF16;
  shape.out_dtype = WEFT_FP8;
  weft_emit (s, WEFT_OP_QUANTISE_BLOCKS, "quantise", shape,
             WEFT_USES (WEFT_R (view), WEFT_W (s->weight_view[i]), WEFT_W (row->scale),
                        WEFT_W (s->turned[i]), WEFT_W (s->turned_scale[i])));
}

static void
clear_staging (struct weft_step *s, uint32_t k)
{
  weft_emit (s, WEFT_OP_ZERO, "zero_staging",
             WEFT_SHAPE (WEFT_BF16, weft_step_elements (s, s->bucket[k].weights)),
             WEFT_USES (WEFT_W (s->bucket[k].weights)));
}

void
weft_fp8_whole (struct weft_step *s, uint32_t group)
{
  struct weft_op at = s->at;

  if (!s->strategy->fp8_param_gather || (!reuses_gradients (s) && !copy_stays (s)))
    return;
  s->at.flags = 0;
  if (!s->wrapper->shard_weights)
    s->at.phase = WEFT_PHASE_OPTIMIZER;
  for (uint32_t i = 0; i < s->params->len; i++) {
    if (s->layout.bucket[s->layout.place[i].bucket].group != group || !weft_fp8_stores (s, i))
      continue;
    s->at.layer = param_at (s, i)->layer;
    (reuses_gradients (s) ? quantise_staged : turn) (s, i);
  }
  s->at.layer = WEFT_NO_LAYER;
  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    if (s->layout.bucket[k].group == group && weft_fp8_is_staged (s, k))
      clear_staging (s, k);
  s->at = at;
}

/* ------------------------------------------------------------------------- in use */

uint32_t
weft_fp8_turned (struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = param_at (s, param);

  if (s->turned[param] == WEFT_NO_BUF) {
    s->turned[param] =
        weft_step_buffer (s, WEFT_BUF_GATHERED, WEFT_FP8, row->rows * row->columns, "transposed");
    turn (s, param);
  }
  return s->turned[param];
}

void
weft_fp8_leave (struct weft_step *s, uint32_t layer)
{
  if (!s->strategy->fp8_param_gather || copy_stays (s))
    return;
  for (int which = 0; which < WEFT_N_LAYER_PARAM; which++) {
    uint32_t i = s->layer_param[weft_step_slot (s, layer) * WEFT_N_LAYER_PARAM + which];
    if (i != WEFT_NO_PARAM)
      s->turned[i] = WEFT_NO_BUF;
  }
}
