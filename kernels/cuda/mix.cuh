/* mix.cuh - core/base/mix.h (integer hash) for the device. */
#pragma once
#include "core/base/mix.h"
#include "kernels/cuda/device.cuh"

static __device__ __forceinline__ uint64_t
mix_bits (uint64_t z)
{
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static __device__ __forceinline__ uint64_t
mix (uint64_t z)
{
  return mix_bits (z + WEFT_MIX_STEP);
}
