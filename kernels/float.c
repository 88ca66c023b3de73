#include "kernels/float.h"
#include "kernels/fp8.h"

WEFT_WIDE static void
widen (float *to, const uint16_t *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_bf16_float (from[i]);
}

#define AT_ONCE 64

/* Converts floats to 16-bit codes. The codes are computed as 32-bit words first, because the
 * compiler vectorises that loop. */
static inline __attribute__ ((always_inline)) void
narrow_by (uint32_t (*code_of) (float), uint16_t *to, const float *from, uint64_t n)
{
  uint32_t code[AT_ONCE];

  for (uint64_t first = 0; first < n; first += AT_ONCE) {
    uint64_t some = n - first < AT_ONCE ? n - first : AT_ONCE;
    for (uint64_t i = 0; i < some; i++)
      code[i] = code_of (from[first + i]);
    for (uint64_t i = 0; i < some; i++)
      to[first + i] = (uint16_t) code[i];
  }
}

WEFT_WIDE static void
narrow (uint16_t *to, const float *from, uint64_t n)
{
  narrow_by (weft_bf16_code, to, from, n);
}

WEFT_WIDE static void
narrow_in_place (float *value, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) {
    uint32_t bits = weft_bf16_code (value[i]) << 16;
    memcpy (&value[i], &bits, sizeof bits);
  }
}

WEFT_WIDE static void
widen_fp16 (float *to, const uint16_t *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_fp16_float (from[i]);
}

WEFT_WIDE static void
narrow_fp16 (uint16_t *to, const float *from, uint64_t n)
{
  narrow_by (weft_fp16_code, to, from, n);
}

WEFT_WIDE static void
narrow_fp16_in_place (float *value, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    value[i] = weft_fp16_rounded (value[i]);
}

WEFT_WIDE static void
widen_bytes (float *to, const uint8_t *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_e4m3_float (from[i]);
}

WEFT_WIDE static void
narrow_to_bytes (uint8_t *to, const float *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_e4m3_round (from[i]);
}

WEFT_WIDE static void
widen_e5m2 (float *to, const uint8_t *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_e5m2_float (from[i]);
}

WEFT_WIDE static void
narrow_to_e5m2 (uint8_t *to, const float *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = weft_e5m2_round (from[i]);
}

const float *
weft_floats (const void *data, enum weft_dtype dtype, uint64_t first, uint64_t n, float *room)
{
  if (dtype == WEFT_FP32)
    return (const float *) data + first;
  if (dtype == WEFT_UINT8)
    for (uint64_t i = 0; i < n; i++)
      room[i] = ((const uint8_t *) data)[first + i];
  else if (dtype == WEFT_FP8)
    widen_bytes (room, (const uint8_t *) data + first, n);
  else if (dtype == WEFT_E5M2)
    widen_e5m2 (room, (const uint8_t *) data + first, n);
  else if (dtype == WEFT_FP16)
    widen_fp16 (room, (const uint16_t *) data + first, n);
  else
    widen (room, (const uint16_t *) data + first, n);
  return room;
}

void
weft_store (void *data, enum weft_dtype dtype, uint64_t first, uint64_t n, const float *value)
{
  if (dtype == WEFT_UINT8)
    for (uint64_t i = 0; i < n; i++)
      ((uint8_t *) data)[first + i] = (uint8_t) value[i];
  else if (dtype == WEFT_FP8)
    narrow_to_bytes ((uint8_t *) data + first, value, n);
  else if (dtype == WEFT_E5M2)
    narrow_to_e5m2 ((uint8_t *) data + first, value, n);
  else if (dtype == WEFT_FP16)
    narrow_fp16 ((uint16_t *) data + first, value, n);
  else if (dtype != WEFT_FP32)
    narrow ((uint16_t *) data + first, value, n);
  else if ((float *) data + first != value)
    memmove ((float *) data + first, value, n * sizeof *value);
}

void
weft_round (enum weft_dtype dtype, uint64_t n, float *value)
{
  if (dtype == WEFT_FP16)
    narrow_fp16_in_place (value, n);
  else if (dtype != WEFT_FP32)
    narrow_in_place (value, n);
}
