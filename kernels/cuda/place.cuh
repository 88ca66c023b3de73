/* place.cuh - weft_position() of core/base/zigzag.h for the device: the position of one of this
 * rank's tokens in its sequence. */
#pragma once
#include "kernels/cuda/device.cuh"

static __host__ __device__ __forceinline__ uint64_t
position_of (struct weft_cuda_spot cp, uint64_t tokens, uint64_t t)
{
  uint64_t half = tokens / 2;

  if (cp.of <= 1)
    return t;
  return t < half ? cp.at * half + t : (2 * cp.of - 1 - cp.at) * half + (t - half);
}
