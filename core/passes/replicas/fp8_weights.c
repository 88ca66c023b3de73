/* Weights that are stored and all-gathered in fp8: fp8_param_gather, and MXFP8 with
 * reuse_grad_buf_for_mxfp8_param_ag. Embedding, output layer, norms and biases are not stored in
 * fp8. Codes are fp8 values.
 *
 *   E4M3        Codes are in a flat buffer of bytes. Each tensor also has one float, its largest
 *               magnitude. After Adam each rank computes the largest magnitude of its slices, and
 *               an all-reduce takes the maximum over the ranks that share the tensor. Each rank
 *               quantises its slices of the fp32 master weights, and codes are all-gathered
 *               (Megatron-Core fp8_utils.py, quantize_param_shard; current scaling).
 *   MXFP8       Each tensor has two sets of codes and scales: untransposed and transposed. Both
 *               are computed from bf16 copies of the master weights. These copies are all-gathered
 *               in the memory of the gradient buffer, from its start, with two bytes for each
 *               element. That memory is zeroed before gradients are added
 *               (param_and_grad_buffer.py).
 *   transposed  Input gradients read transposed weights. E4M3 has a transposed copy:
 *                 standing  written after each all-gather, in a permanent flat buffer
 *                 behind    written after each all-gather, in the buffer of an FSDP unit's codes,
 *                           after the codes; freed together with the codes
 *                 on use    written when backward first reads it; freed after the layer
 *
 * Only storage and communication of weights use fp8. Matrix products run in the training dtype. */
#include "core/passes/replicas/buckets.h"

#define MX_BLOCK 32 /* elements that share one scale (OCP Microscaling Formats 1.0) */

static gboolean
reuses_gradients (const struct weft_step *s)
{
  return s->strategy->reuse_grad_buf_for_mxfp8_param_ag;
}

/* ------------------------------------------------------------------------ buffers */

/* Whether the transposed copy of fp8 weights exists as long as the gathered weights. FALSE: the
 * copy is computed when backward first reads it. */
static gboolean
copy_stays (const struct weft_step *s)
{
  return !s->sharding->unit_of || s->strategy->keep_fp8_transpose_cache;
}

gboolean
weft_fp8_weights_transpose_behind (const struct weft_step *s, uint32_t k)
{
  return s->sharding->shard_weights && weft_step_flat (s, k)->dtype == WEFT_FP8 && copy_stays (s);
}

static uint32_t
own_buffer (struct weft_step *s, uint32_t param, enum weft_dtype dtype, uint64_t n)
{
  uint32_t buf = weft_step_permanent (s, WEFT_BUF_WEIGHTS, dtype, n, "fp8");

  weft_build_buf_at (s->b, buf)->name = weft_param_at (s, param)->name;
  weft_build_buf_at (s->b, buf)->layer = weft_param_at (s, param)->layer;
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
  struct weft_param *row = weft_param_at (s, i);
  uint64_t n = row->rows * row->columns;

  s->params->weight_view[i] = own_buffer (s, i, WEFT_FP8, n);
  row->scale = own_buffer (s, i, WEFT_E8M0, row->rows * blocks (row->columns));
  s->replicas->transposed[i] = own_buffer (s, i, WEFT_FP8, n);
  s->replicas->transposed_scale[i] =
      own_buffer (s, i, WEFT_E8M0, row->columns * blocks (row->rows));
}

static void
add_scale (struct weft_step *s, uint32_t i, uint32_t place)
{
  struct weft_param *row = weft_param_at (s, i);

  row->scale = weft_build_view (s->b, s->replicas->scales, (uint64_t) place * 4, 4, "scale");
  weft_build_buf_at (s->b, row->scale)->name = row->name;
  weft_build_buf_at (s->b, row->scale)->layer = row->layer;
  s->replicas->transposed_scale[i] = row->scale;
}

/* Number of bytes of fp8 codes in the first `n_buffer` flat buffers. */
static uint64_t
stored_bytes (const struct weft_step *s, uint32_t n_buffer)
{
  uint64_t bytes = 0;

  for (uint32_t i = 0; i < n_buffer; i++)
    if (g_array_index (s->params->flat, struct weft_flat, i).dtype == WEFT_FP8)
      bytes += weft_layout_numel (&s->params->layout, i);
  return bytes;
}

static void
add_transposed (struct weft_step *s, uint32_t flat, uint32_t i)
{
  uint32_t buffer = s->params->layout.bucket[s->params->layout.place[i].bucket].buffer;
  uint64_t start = s->params->layout.place[i].start - s->params->layout.first[buffer];

  s->replicas->transposed[i] = weft_params_view (s, i, flat, stored_bytes (s, buffer) + start);
}

void
weft_fp8_weights_build (struct weft_step *s)
{
  uint32_t n = weft_params_count (s), n_stored = 0, flat = WEFT_NO_BUF;

  s->replicas->transposed = g_new (uint32_t, n);
  s->replicas->transposed_scale = g_new (uint32_t, n);
  s->replicas->scales = WEFT_NO_BUF;
  for (uint32_t i = 0; i < n; i++) {
    s->replicas->transposed[i] = s->replicas->transposed_scale[i] = WEFT_NO_BUF;
    n_stored += weft_params_is_fp8 (s, i);
  }
  if (n_stored && !reuses_gradients (s))
    s->replicas->scales =
        weft_step_permanent (s, WEFT_BUF_WEIGHTS, WEFT_FP32, n_stored, "fp8 scales");
  if (n_stored && !reuses_gradients (s) && copy_stays (s) && !s->sharding->shard_weights)
    flat = weft_step_permanent (s, WEFT_BUF_WEIGHTS, WEFT_FP8,
                                stored_bytes (s, s->params->flat->len), "fp8 transposed");
  for (uint32_t i = 0, place = 0; i < n; i++) {
    if (!weft_params_is_fp8 (s, i))
      continue;
    if (reuses_gradients (s))
      add_mx (s, i);
    else
      add_scale (s, i, place++);
    if (flat != WEFT_NO_BUF)
      add_transposed (s, flat, i);
  }
}

gboolean
weft_fp8_weights_is_staged (const struct weft_step *s, uint32_t k)
{
  return reuses_gradients (s) && weft_step_flat (s, k)->dtype == WEFT_FP8;
}

uint32_t
weft_fp8_weights_staging (struct weft_step *s, uint32_t k)
{
  const struct weft_bucket *bucket = &s->params->layout.bucket[k];
  uint64_t first = bucket->start - s->params->layout.first[bucket->buffer];
  uint32_t view = weft_build_view (s->b, weft_step_flat (s, k)->grads, first * 2,
                                   (bucket->end - bucket->start) * 2, "staging");

  weft_build_buf_at (s->b, view)->dtype = WEFT_BF16;
  return view;
}

/* ------------------------------------------------------------------- after the update */

/* Returns the group of ranks whose slices together are a whole flat buffer. */
static enum weft_group_kind
sharing (const struct weft_step *s)
{
  return s->mesh->outer_slices > 1 ? WEFT_GROUP_DP : weft_mesh_sharing (s->mesh);
}

static void
find_largest (struct weft_step *s, const uint32_t *master)
{
  if (s->replicas->scales == WEFT_NO_BUF) /* there are no scales on a stage without layers */
    return;
  weft_emit (s, WEFT_OP_ZERO, "zero_amax",
             WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, s->replicas->scales)),
             WEFT_USES (WEFT_W (s->replicas->scales)));
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    if (weft_step_flat (s, k)->dtype == WEFT_FP8)
      weft_emit (s, WEFT_OP_AMAX, "amax", WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, master[k])),
                 WEFT_USES (WEFT_R (master[k]), WEFT_RW (s->replicas->scales)));
  weft_reduce_all (s, sharing (s), WEFT_REDUCE_MAX, s->replicas->scales, "amax");
}

/* Converts this rank's slice of the fp32 master weights of bucket k to fp8 codes. For MXFP8,
 * converts the slice to bf16, from which codes are computed after the all-gather. */
static void
convert (struct weft_step *s, uint32_t k, uint32_t master)
{
  const struct weft_bucket_state *state = &s->replicas->bucket[k];
  struct weft_shape shape = WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, master));

  shape.out_dtype = weft_fp8_weights_is_staged (s, k) ? WEFT_BF16 : WEFT_FP8;
  if (weft_fp8_weights_is_staged (s, k))
    weft_emit (s, WEFT_OP_CAST, "stage", shape,
               WEFT_USES (WEFT_R (master), WEFT_W (state->weight_shard)));
  else
    weft_emit (
        s, WEFT_OP_QUANTISE, "quantise", shape,
        WEFT_USES (WEFT_R (master), WEFT_R (s->replicas->scales), WEFT_W (state->weight_shard)));
}

static void
convert_all (struct weft_step *s, const uint32_t *master)
{
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    if (weft_step_flat (s, k)->dtype == WEFT_FP8)
      convert (s, k, master[k]);
}

/* MXFP8: whether forward all-gathers weights in the memory of the gradient buffer. This memory
 * contains no gradients when a step begins. */
gboolean
weft_fp8_weights_stages_ahead (const struct weft_step *s)
{
  return reuses_gradients (s) && s->replicas->chain->n_gather > 0;
}

void
weft_fp8_weights_stage (struct weft_step *s, const uint32_t *master)
{
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_OPTIMIZER;
  convert_all (s, master);
  s->at = at;
}

void
weft_fp8_weights_update (struct weft_step *s, const uint32_t *master)
{
  if (!s->strategy->fp8_param_gather || weft_fp8_weights_stages_ahead (s))
    return;
  if (!reuses_gradients (s))
    find_largest (s, master);
  convert_all (s, master);
}

/* ------------------------------------------------------------- once a group is whole */

static void
transpose (struct weft_step *s, uint32_t i)
{
  const struct weft_param *row = weft_param_at (s, i);

  weft_emit (s, WEFT_OP_TRANSPOSE, "transpose", WEFT_SHAPE (WEFT_FP8, row->rows, row->columns),
             WEFT_USES (WEFT_R (s->params->weight_view[i]), WEFT_W (s->replicas->transposed[i])));
}

static void
quantise_staged (struct weft_step *s, uint32_t i)
{
  const struct weft_param *row = weft_param_at (s, i);
  uint32_t k = s->params->layout.place[i].bucket, staging = s->replicas->bucket[k].weights;
  const struct weft_buf *room = weft_build_buf_at (s->b, staging);
  uint64_t offset = (s->params->layout.place[i].start - s->params->layout.bucket[k].start) * 2;
  uint32_t view = weft_build_view (s->b, room->base, room->offset + offset,
                                   row->rows * row->columns * 2, "staging");
  struct weft_shape shape = WEFT_SHAPE (WEFT_BF16, row->rows, row->columns, MX_BLOCK, 0, 2);

  weft_build_buf_at (s->b, view)->dtype = WEFT_BF16;
  shape.out_dtype = WEFT_FP8;
  weft_emit (s, WEFT_OP_QUANTISE_BLOCKS, "quantise", shape,
             WEFT_USES (WEFT_R (view), WEFT_W (s->params->weight_view[i]), WEFT_W (row->scale),
                        WEFT_W (s->replicas->transposed[i]),
                        WEFT_W (s->replicas->transposed_scale[i])));
}

static void
clear_staging (struct weft_step *s, uint32_t k)
{
  weft_emit (s, WEFT_OP_ZERO, "zero_staging",
             WEFT_SHAPE (WEFT_BF16, weft_step_elements (s, s->replicas->bucket[k].weights)),
             WEFT_USES (WEFT_W (s->replicas->bucket[k].weights)));
}

void
weft_fp8_weights_gathered (struct weft_step *s, uint32_t group)
{
  struct weft_op at = s->at;

  if (!s->strategy->fp8_param_gather || (!reuses_gradients (s) && !copy_stays (s)))
    return;
  s->at.flags = 0;
  if (!s->sharding->shard_weights)
    s->at.phase = WEFT_PHASE_OPTIMIZER;
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    if (s->params->layout.bucket[s->params->layout.place[i].bucket].group != group ||
        !weft_params_is_fp8 (s, i))
      continue;
    s->at.layer = weft_param_at (s, i)->layer;
    (reuses_gradients (s) ? quantise_staged : transpose) (s, i);
  }
  s->at.layer = WEFT_NO_LAYER;
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    if (s->params->layout.bucket[k].group == group && weft_fp8_weights_is_staged (s, k))
      clear_staging (s, k);
  s->at = at;
}

/* ------------------------------------------------------------------------- in use */

uint32_t
weft_fp8_weights_transposed (struct weft_step *s, uint32_t param, uint32_t *scale)
{
  const struct weft_param *row = weft_param_at (s, param);

  if (s->replicas->transposed[param] == WEFT_NO_BUF) {
    s->replicas->transposed[param] =
        weft_step_buffer (s, WEFT_BUF_GATHERED, WEFT_FP8, row->rows * row->columns, "transposed");
    transpose (s, param);
  }
  *scale = s->replicas->transposed_scale[param];
  return s->replicas->transposed[param];
}

void
weft_fp8_weights_end (struct weft_step *s)
{
  g_free (s->replicas->transposed);
  g_free (s->replicas->transposed_scale);
}

void
weft_fp8_weights_free_transposed (struct weft_step *s, uint32_t layer)
{
  if (!s->strategy->fp8_param_gather || copy_stays (s))
    return;
  for (int which = 0; which < WEFT_N_LAYER_PARAM; which++) {
    uint32_t i = weft_params_of_layer (s, layer, which);
    if (i != WEFT_NO_PARAM)
      s->replicas->transposed[i] = WEFT_NO_BUF;
  }
}
