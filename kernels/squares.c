/* Squared gradient norms that were computed in parts: adds two partial results. */
#include "kernels/scalar.h"

uint64_t
weft_extent_moe_squares (const struct weft_kernel *k, uint32_t operand)
{
  return weft_scalar_extent (&k->operand[operand]);
}

/* The words of an exact sum are added as integers, one by one (core/base/exact.h). */
void
weft_cpu_moe_squares (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *to = &k->operand[0], *from = &k->operand[1];

  (void) part;
  (void) parts;
  for (uint64_t i = 0; i < weft_scalar_extent (to); i++)
    if (weft_scalar_is_exact (to))
      ((int64_t *) to->data)[i] += ((const int64_t *) from->data)[i];
    else
      ((float *) to->data)[i] += ((const float *) from->data)[i];
}

void
weft_ref_moe_squares (const struct weft_kernel *k)
{
  *(double *) k->operand[0].data += *(const double *) k->operand[1].data;
}
