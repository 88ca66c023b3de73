/* Sums and exchanges over the memory of ranks that share a GPU.  One thread joins all terms of one
 * element, in the order of core/base/fold.h: the bits are those of the CPU executor. */
#include "core/base/fold.h"
#include "exec_cuda/module/sums.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <string.h>

#define MOST_DEPTH 7 /* of a fold over WEFT_CUDA_MOST_SHARED */
#define THREADS 256
#define MOST_BLOCKS 1024

struct terms {
  const void *at[WEFT_CUDA_MOST_SHARED];
};

struct sum {
  uint8_t how;
  float before, after;
  uint32_t n_term;
  void *out;
  uint64_t n;
};

static __device__ float
wide (float x)
{
  return x;
}
static __device__ float
wide (__nv_bfloat16 x)
{
  return __bfloat162float (x);
}
static __device__ float
wide (__half x)
{
  return __half2float (x);
}

template <class T> static __device__ T narrow (float x);
template <>
__device__ float
narrow<float> (float x)
{
  return x;
}
template <>
__device__ __nv_bfloat16
narrow<__nv_bfloat16> (float x)
{
  return __float2bfloat16_rn (x);
}
template <>
__device__ __half
narrow<__half> (float x)
{
  return __float2half_rn (x);
}

static __device__ float
joined (uint8_t how, float a, float b)
{
  if (how == WEFT_CUDA_LEAST)
    return b < a ? b : a;
  if (how == WEFT_CUDA_MOST)
    return b > a ? b : a;
  return __fadd_rn (a, b);
}

template <class T>
static __global__ void
join_floats (terms t, sum s)
{
  uint64_t step = (uint64_t) gridDim.x * blockDim.x;

  for (uint64_t e = (uint64_t) blockIdx.x * blockDim.x + threadIdx.x; e < s.n; e += step) {
    float stack[MOST_DEPTH];
    uint32_t top = 0;
    for (uint32_t i = 0; i < s.n_term; i++) {
      float x = wide (((const T *) t.at[i])[e]);
      stack[top] = s.before == 1 ? x : wide (narrow<T> (__fdiv_rn (x, s.before)));
      uint32_t merges = i + 1 < s.n_term ? __ffs ((int) (i + 1)) - 1 : __popc (i);
      for (; merges; merges--, top--)
        stack[top - 1] = wide (narrow<T> (joined (s.how, stack[top - 1], stack[top])));
      top++;
    }
    ((T *) s.out)[e] = narrow<T> (s.after == 1 ? stack[0] : __fdiv_rn (stack[0], s.after));
  }
}

template <class T>
static __global__ void
join_words (terms t, sum s)
{
  uint64_t step = (uint64_t) gridDim.x * blockDim.x;

  for (uint64_t e = (uint64_t) blockIdx.x * blockDim.x + threadIdx.x; e < s.n; e += step) {
    T all = ((const T *) t.at[0])[e];
    for (uint32_t i = 1; i < s.n_term; i++) {
      T x = ((const T *) t.at[i])[e];
      all = s.how == WEFT_CUDA_LEAST   ? (x < all ? x : all)
            : s.how == WEFT_CUDA_MOST ? (x > all ? x : all)
                                          : all + x;
    }
    ((T *) s.out)[e] = all;
  }
}

static unsigned
blocks_for (uint64_t n)
{
  uint64_t blocks = (n + THREADS - 1) / THREADS;
  return (unsigned) (blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

static const char *
launched (void)
{
  cudaError_t error = cudaGetLastError ();
  return error == cudaSuccess ? NULL : cudaGetErrorString (error);
}

extern "C" const char *
weft_cuda_join_terms (const struct weft_cuda_join *j, void *stream)
{
  cudaStream_t on = (cudaStream_t) stream;
  sum s = { j->how, j->before, j->after, j->n_term, j->out, j->n };
  unsigned blocks = blocks_for (j->n);
  terms t;

  if (j->n_term > WEFT_CUDA_MOST_SHARED)
    return "more than 64 ranks share a GPU";
  if (j->n == 0)
    return NULL;
  for (uint32_t i = 0; i < j->n_term; i++)
    t.at[i] = j->term[i];
  switch (j->dtype) {
  case WEFT_FP32:
    join_floats<float><<<blocks, THREADS, 0, on>>> (t, s);
    break;
  case WEFT_BF16:
    join_floats<__nv_bfloat16><<<blocks, THREADS, 0, on>>> (t, s);
    break;
  case WEFT_FP16:
    join_floats<__half><<<blocks, THREADS, 0, on>>> (t, s);
    break;
  case WEFT_INT32:
    join_words<int32_t><<<blocks, THREADS, 0, on>>> (t, s);
    break;
  case WEFT_INT64:
    join_words<int64_t><<<blocks, THREADS, 0, on>>> (t, s);
    break;
  default:
    return "no sum of bytes";
  }
  return launched ();
}

/* ------------------------------------------------------------------- rows by counts */

struct rows {
  const void *from[WEFT_CUDA_MOST_SHARED];
  const int64_t *send[WEFT_CUDA_MOST_SHARED];
  void *to[WEFT_CUDA_MOST_SHARED];
  uint32_t n, each;
  uint64_t row;
};

/* Rows that a member has for others: entries [first, last) of its counts. */
static __device__ uint64_t
rows_of (const rows *x, uint32_t member, uint32_t first, uint32_t last)
{
  uint64_t sum = 0;

  for (uint32_t i = first * x->each; i < last * x->each; i++)
    sum += (uint64_t) x->send[member][i];
  return sum;
}

/* Block (i, j) takes what member j has for member i. */
static __global__ void
exchange (const __grid_constant__ rows x)
{
  uint32_t i = blockIdx.x, j = blockIdx.y;
  __shared__ uint64_t first, at, n;

  if (threadIdx.x == 0) {
    first = rows_of (&x, j, 0, i) * x.row;
    n = rows_of (&x, j, i, i + 1) * x.row;
    at = 0;
    for (uint32_t k = 0; k < j; k++)
      at += rows_of (&x, k, i, i + 1) * x.row;
  }
  __syncthreads ();
  const uint8_t *from = (const uint8_t *) x.from[j] + first;
  uint8_t *to = (uint8_t *) x.to[i] + at;
  for (uint64_t b = threadIdx.x + (uint64_t) blockIdx.z * blockDim.x; b < n;
       b += (uint64_t) blockDim.x * gridDim.z)
    to[b] = from[b];
}

extern "C" const char *
weft_cuda_exchange_rows (const struct weft_cuda_exchange *e, void *stream)
{
  rows x = {};

  if (e->n > WEFT_CUDA_MOST_SHARED)
    return "more than 64 ranks share a GPU";
  for (uint32_t i = 0; i < e->n; i++) {
    x.from[i] = e->from[i];
    x.send[i] = e->send[i];
    x.to[i] = e->to[i];
  }
  x.n = e->n;
  x.each = e->each;
  x.row = e->row;
  exchange<<<dim3 (e->n, e->n, 16), THREADS, 0, (cudaStream_t) stream>>> (x);
  return launched ();
}

/* -------------------------------------------------------------------------- scalars */

extern "C" uint64_t
weft_cuda_scalar (enum weft_dtype dtype, double value)
{
  const float f = (float) value;
  const __nv_bfloat16 b = __float2bfloat16 (f);
  const __half h = __float2half (f);
  uint64_t bits = 0;

  if (dtype == WEFT_BF16)
    memcpy (&bits, &b, sizeof b);
  else if (dtype == WEFT_FP16)
    memcpy (&bits, &h, sizeof h);
  else
    memcpy (&bits, &f, sizeof f);
  return bits;
}
