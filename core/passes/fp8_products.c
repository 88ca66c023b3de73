/* precision = fp8: what surrounds linear maps that are taken in fp8 (NVIDIA Transformer Engine, whose
 * recipes fp8_recipe names; Megatron-Core takes them over).
 *
 *   inputs      forward converts the input of a map and keeps the copy of one byte for its weight
 *               gradient: the input itself goes, unless another kernel reads it later.  With
 *               cpu_offloading inputs leave as they are, and are converted again in backward.
 *   delayed     a scale follows from the largest magnitudes of earlier steps, so one pass converts;
 *               those of this step, one of each tensor, are agreed on before the update.
 *   tensorwise  the largest magnitude is found first, by a pass of its own.
 *   blockwise   128 elements have a scale in fp32: one pass, 1/32 more bytes.
 *   mxfp8       32 elements have a scale of one byte: likewise. */
#include "core/passes/step.h"

/* Bytes of scales, as a share: 4 of 128, 1 of 32. */
#define ELEMENTS_OF_A_SCALE_BYTE 32

static gboolean
has_blocks (const struct weft_step *s)
{
  return s->strategy->fp8_recipe == WEFT_FP8_BLOCKWISE || s->strategy->fp8_recipe == WEFT_FP8_MX;
}

uint64_t
weft_fp8_room (const struct weft_step *s, uint64_t n)
{
  return has_blocks (s) ? n + (n + ELEMENTS_OF_A_SCALE_BYTE - 1) / ELEMENTS_OF_A_SCALE_BYTE : n;
}

void
weft_fp8_measure (struct weft_step *s, uint32_t buf, uint64_t n)
{
  enum weft_dtype dtype = weft_build_buf_at (s->b, buf)->dtype;

  s->n_fp8 += s->at.micro == 0;
  if (s->strategy->fp8_recipe != WEFT_FP8_TENSORWISE)
    return;
  uint32_t largest = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "amax");
  weft_emit (s, WEFT_OP_ZERO, "amax", WEFT_SHAPE (WEFT_FP32, 1), WEFT_USES (WEFT_W (largest)));
  weft_emit (s, WEFT_OP_AMAX, "amax", WEFT_SHAPE (dtype, n),
             WEFT_USES (WEFT_R (buf), WEFT_RW (largest)));
}

uint32_t
weft_fp8_input (struct weft_step *s, uint32_t x, const char *name)
{
  gpointer key = GUINT_TO_POINTER (x + 1), known;

  if (s->linear_dtype != WEFT_FP8 || s->strategy->cpu_offloading)
    return weft_cast (s, x, s->linear_dtype, name);
  if (!s->fp8_inputs)
    s->fp8_inputs = g_hash_table_new (NULL, NULL);
  if (g_hash_table_lookup_extended (s->fp8_inputs, key, NULL, &known))
    return GPOINTER_TO_UINT (known);
  uint32_t copy = weft_cast (s, x, WEFT_FP8, name);
  g_hash_table_insert (s->fp8_inputs, key, GUINT_TO_POINTER (copy));
  return copy;
}

/* One number for each tensor that was converted, over all that share it or have others of the batch. */
void
weft_fp8_agree (struct weft_step *s)
{
  if (s->n_fp8 == 0 || s->strategy->fp8_recipe != WEFT_FP8_DELAYED)
    return;
  uint32_t largest =
      weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, s->n_fp8, "amax_history");
  weft_reduce_all (s, WEFT_GROUP_TP, WEFT_REDUCE_MAX, largest, "amax");
  weft_reduce_all (s, WEFT_GROUP_DP, WEFT_REDUCE_MAX, largest, "amax");
}
