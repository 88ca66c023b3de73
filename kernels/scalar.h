/* scalar.h - the loss and the squared gradient norm: one float, or in canonical order the words of
 * an exact sum. */
#pragma once
#include "core/base/exact.h"
#include "kernels/kernel.h"
#include <string.h>

static inline gboolean
weft_scalar_is_exact (const struct weft_operand *o)
{
  return o->dtype == WEFT_INT64;
}

static inline uint64_t
weft_scalar_extent (const struct weft_operand *o)
{
  return weft_scalar_is_exact (o) ? WEFT_EXACT_WORDS : 1;
}

/* Sets the scalar to 0 unless the op accumulates. */
static inline void
weft_scalar_begin (const struct weft_operand *o)
{
  if (!o->accumulate)
    memset (o->data, 0, weft_scalar_extent (o) * weft_dtype_bytes (o->dtype));
}
