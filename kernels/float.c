#include "kernels/float.h"

const float *
weft_floats (const void *data, enum weft_dtype dtype, uint64_t first, uint64_t n, float *room)
{
  if (dtype == WEFT_FP32)
    return (const float *) data + first;
  const uint16_t *from = (const uint16_t *) data + first;
  for (uint64_t i = 0; i < n; i++)
    room[i] = weft_bf16_float (from[i]);
  return room;
}

void
weft_store (void *data, enum weft_dtype dtype, uint64_t first, uint64_t n, const float *value)
{
  if (dtype == WEFT_FP32) {
    memmove ((float *) data + first, value, n * sizeof *value);
    return;
  }
  uint16_t *to = (uint16_t *) data + first;
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_bf16_round (value[i]);
}

void
weft_round (enum weft_dtype dtype, uint64_t n, float *value)
{
  if (dtype == WEFT_FP32)
    return;
  for (uint64_t i = 0; i < n; i++)
    value[i] = weft_bf16_float (weft_bf16_round (value[i]));
}
