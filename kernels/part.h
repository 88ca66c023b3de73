/* part.h - divides the outputs of a kernel among the threads that compute it. */
#pragma once
#include <stdint.h>

struct weft_range {
  uint64_t begin, end;
};

/* Divides n items among threads in units of `grain` items, so that two threads do not write one
 * cache line. */
static inline struct weft_range
weft_part (uint64_t n, uint64_t grain, uint32_t part, uint32_t parts)
{
  uint64_t units = (n + grain - 1) / grain;
  uint64_t begin = units * part / parts * grain, end = units * (part + 1) / parts * grain;

  return (struct weft_range){ begin < n ? begin : n, end < n ? end : n };
}

static inline uint64_t
weft_least (uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}
