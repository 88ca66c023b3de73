/* traits.h - numbers that depend on the architecture (core/model.def), shared by CPU kernels,
 * references and launchers of CUDA kernels.
 *
 *   scale       of attention scores: 1 / root of query_pre_attn_scalar, or of a head's width
 *   multiplier  of embeddings, rounded to the type in which embeddings are stored (transformers
 *               modeling_gemma.py creates the normalizer in that type)
 *   slope       ALiBi: subtracted from a score for each token between query and key (Press et al.
 *               2021, arXiv:2108.12409) */
#pragma once
#include "kernels/float.h"
#include "kernels/kernel.h"
#include <math.h>

static inline float
weft_attention_scale (const struct weft_kernel *k, uint64_t width)
{
  double scalar = k->model->query_pre_attn_scalar;
  return 1 / sqrtf (scalar > 0 ? (float) scalar : (float) width);
}

static inline float
weft_embedding_multiplier (const struct weft_kernel *k)
{
  double m = k->model->embedding_multiplier;
  float multiplier = (float) (m > 0 ? m : sqrt ((double) k->model->hidden_size));

  weft_round ((enum weft_dtype) k->shape.dtype, 1, &multiplier);
  return multiplier;
}

/* ALiBi slope of head `head` of n heads. The first p heads, p the largest power of two not above n,
 * use a geometric sequence that starts at 2^(-8 / p). The other heads use every second number of
 * the sequence for 2 p heads. */
static inline double
weft_alibi_slope (uint64_t n, uint64_t head)
{
  uint64_t p = 1;

  while (2 * p <= n)
    p *= 2;
  return head < p ? exp2 (-8.0 * (double) (head + 1) / (double) p)
                  : exp2 (-4.0 * (double) (2 * (head - p) + 1) / (double) p);
}

/* The slope of one of this rank's heads; 0 without ALiBi. */
static inline double
weft_kernel_slope (const struct weft_kernel *k, uint64_t head)
{
  if (k->model->position_embedding_type != WEFT_ALIBI)
    return 0;
  return weft_alibi_slope ((uint64_t) k->model->num_attention_heads,
                           k->tp.at / weft_kernel_group_ranks (k) * weft_kernel_heads (k) + head);
}
