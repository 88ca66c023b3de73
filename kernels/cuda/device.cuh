/* device.cuh - shared parts of the kernels: stored types and fp32, reductions in a warp and a
 * block, launching. With WEFT_CUDA_EMULATOR it compiles as C++ for the CPU. */
#pragma once
#include "core/base/words.h"
#include "kernels/cuda/launch.h"
#ifdef WEFT_CUDA_EMULATOR
#include "kernels/float.h"
#include WEFT_CUDA_EMULATOR
#define WEFT_UNROLL
#define WEFT_UNROLL_4
#else
#include <cuda_runtime.h>
#define WEFT_UNROLL _Pragma ("unroll")
#define WEFT_UNROLL_4 _Pragma ("unroll 4")
#define WEFT_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
  do {                                                                                             \
    if (weft_cuda_loads_only ())                                                                   \
      load (kernel);                                                                               \
    else                                                                                           \
      kernel<<<grid, block, shared, (cudaStream_t) (stream)>>> (__VA_ARGS__);                      \
  } while (0)

/* Loads a kernel by querying its attributes. launched() returns the error. */
template <class F>
static void
load (F *kernel)
{
  struct cudaFuncAttributes attributes;

  (void) cudaFuncGetAttributes (&attributes, (const void *) kernel);
}
#define WEFT_DYNAMIC_SHARED(type, name)                                                            \
  extern __shared__ __align__ (128) uint8_t weft_shared_bytes[];                                   \
  type *name = (type *) weft_shared_bytes
#endif

/* Takes bytes from the end of the scratch, at a multiple of 256; the rest remains for later
 * users. */
static inline uint8_t *
weft_cuda_take (struct weft_cuda_launch *l, uint64_t bytes)
{
  l->scratch_bytes = (l->scratch_bytes - bytes) / 256 * 256;
  return (uint8_t *) l->scratch + l->scratch_bytes;
}

/* ---------------------------------------------------------------------- stored types */

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

#ifdef WEFT_CUDA_EMULATOR
#define BF16_FLOAT(bits) weft_bf16_float (bits)
#define FP16_FLOAT(bits) weft_fp16_float (bits)
#define FLOAT_BF16(f) weft_bf16_round (f)
#define FLOAT_FP16(f) weft_fp16_round (f)
#else
#define BF16_FLOAT(bits) __uint_as_float ((uint32_t) (bits) << 16)
static __device__ __forceinline__ float
FP16_FLOAT (uint16_t bits)
{
  float f;
  asm ("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}
static __device__ __forceinline__ uint16_t
FLOAT_BF16 (float f)
{
  uint16_t bits;
  asm ("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  return bits;
}
static __device__ __forceinline__ uint16_t
FLOAT_FP16 (float f)
{
  uint16_t bits;
  asm ("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
  return bits;
}
#endif

static __device__ __forceinline__ float
to_float (float x)
{
  return x;
}
static __device__ __forceinline__ float
to_float (bf16 x)
{
  return BF16_FLOAT (x.bits);
}
static __device__ __forceinline__ float
to_float (fp16 x)
{
  return FP16_FLOAT (x.bits);
}
static __device__ __forceinline__ void
set (float *to, float x)
{
  *to = x;
}
static __device__ __forceinline__ void
set (bf16 *to, float x)
{
  to->bits = FLOAT_BF16 (x);
}
static __device__ __forceinline__ void
set (fp16 *to, float x)
{
  to->bits = FLOAT_FP16 (x);
}

/* An array of any floating type: for operands that are read once, or whose type differs from the
 * others. */
struct array {
  void *data;
  uint32_t dtype;
};

static inline struct array
array_of (const struct weft_cuda_operand *o)
{
  struct array a = { o->data, o->dtype };
  return a;
}

static __device__ __forceinline__ float
get (struct array a, uint64_t i)
{
  return a.dtype == WEFT_FP32   ? ((const float *) a.data)[i]
         : a.dtype == WEFT_BF16 ? to_float (((const bf16 *) a.data)[i])
                                : to_float (((const fp16 *) a.data)[i]);
}

static __device__ __forceinline__ void
put (struct array a, uint64_t i, float x)
{
  if (a.dtype == WEFT_FP32)
    ((float *) a.data)[i] = x;
  else if (a.dtype == WEFT_BF16)
    set ((bf16 *) a.data + i, x);
  else
    set ((fp16 *) a.data + i, x);
}

/* Elements that are accessed together: 16 bytes, in arrays that begin at a multiple of 16. */
template <class T> struct alignas (16) pack {
  static const int n = 16 / sizeof (T);
  T at[n];
};

/* Like pack, with a single element: for all other arrays. */
template <class T> struct single {
  static const int n = 1;
  T at[n];
};

static inline bool
begins_at_pack (const void *at)
{
  return ((uintptr_t) at & 15) == 0;
}

/* ------------------------------------------------- asynchronous copies to shared memory */

/* Copies 16 or 8 bytes (cp.async), or writes zeros if there is no source. A copy is complete after
 * WEFT_COPY_WAIT() for its group and a barrier. */
#ifdef WEFT_CUDA_EMULATOR
#define WEFT_COPY(to, from) emulated_copy (to, from)
#define WEFT_COPY_OR_ZERO(to, from, there) emulated_copy (to, (there) ? (from) : NULL)
#define WEFT_COPY_8_OR_ZERO(to, from, there) emulated_copy (to, (there) ? (from) : NULL, 8)
#define WEFT_COPY_COMMIT() emulated_copy_commit ()
#define WEFT_COPY_WAIT(open) emulated_copy_wait (open)
#else
#define WEFT_COPY(to, from)                                                                        \
  asm volatile ("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(                                 \
                    (uint32_t) __cvta_generic_to_shared (to)),                                     \
                "l"(from)                                                                          \
                : "memory")
#define WEFT_COPY_OR_ZERO(to, from, there)                                                         \
  asm volatile ("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(                             \
                    (uint32_t) __cvta_generic_to_shared (to)),                                     \
                "l"(from), "r"((there) ? 16 : 0)                                                   \
                : "memory")
#define WEFT_COPY_8_OR_ZERO(to, from, there)                                                       \
  asm volatile ("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(                              \
                    (uint32_t) __cvta_generic_to_shared (to)),                                     \
                "l"(from), "r"((there) ? 8 : 0)                                                    \
                : "memory")
#define WEFT_COPY_COMMIT() asm volatile ("cp.async.commit_group;" ::: "memory")
#define WEFT_COPY_WAIT(open) asm volatile ("cp.async.wait_group %0;" ::"n"(open) : "memory")
#endif

/* ------------------------------------------------------------------------ reductions */

static __device__ __forceinline__ float
warp_sum (float x)
{
  for (unsigned mask = 16; mask; mask /= 2)
    x += __shfl_xor_sync (~0u, x, mask);
  return x;
}

static __device__ __forceinline__ float
warp_most (float x)
{
  for (unsigned mask = 16; mask; mask /= 2)
    x = fmaxf (x, __shfl_xor_sync (~0u, x, mask));
  return x;
}

/* Sum over all threads of a block of whole warps, at most 32; `room` is 32 floats of shared
 * memory. */
static __device__ __forceinline__ float
block_sum (float x, float *room)
{
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;

  x = warp_sum (x);
  __syncthreads (); /* all threads have read what an earlier call left in `room` */
  if (lane == 0)
    room[warp] = x;
  __syncthreads ();
  return warp_sum (lane < warps ? room[lane] : 0.0f);
}

static __device__ __forceinline__ float
block_most (float x, float *room)
{
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;

  x = warp_most (x);
  __syncthreads ();
  if (lane == 0)
    room[warp] = x;
  __syncthreads ();
  return warp_most (lane < warps ? room[lane] : -INFINITY);
}

/* -------------------------------------------------------------------------- launching */

/* Number of blocks for n items, `each` per block; at least 1, at most `most`. */
static inline unsigned
blocks_for (uint64_t n, uint64_t each, uint64_t most)
{
  uint64_t blocks = (n + each - 1) / each;
  blocks = blocks < most ? blocks : most;
  return (unsigned) (blocks ? blocks : 1);
}

/* Largest grid dimension in y and in z (CUDA programming guide). */
enum { MOST_IN_Y = 65535 };

/* A grid of x times y blocks; a y beyond the limit continues in z. There may be a few extra blocks,
 * which see an index of at least y and return. */
static inline dim3
grid_of_many (unsigned x, uint64_t y)
{
  unsigned z = blocks_for (y, MOST_IN_Y, ~0u);
  dim3 grid (x, blocks_for (y, z, ~0u), z);

  return grid;
}

static __device__ __forceinline__ uint64_t
block_of_many ()
{
  return (uint64_t) blockIdx.z * gridDim.y + blockIdx.y;
}

/* Loops over n items with all threads of a grid. */
#define WEFT_EACH(i, n)                                                                            \
  uint64_t i = (uint64_t) blockIdx.x * blockDim.x + threadIdx.x,                                   \
           i##_step = (uint64_t) blockDim.x * gridDim.x;                                           \
  i < (n);                                                                                         \
  i += i##_step

/* Returns NULL or the error text, and clears the error. */
#ifndef WEFT_CUDA_EMULATOR
static inline const char *
told (cudaError_t error)
{
  if (error != cudaSuccess)
    (void) cudaGetLastError ();
  return error == cudaSuccess ? NULL : cudaGetErrorString (error);
}
#endif

/* Error of the launch, or NULL. */
static inline const char *
launched (void)
{
#ifdef WEFT_CUDA_EMULATOR
  return NULL;
#else
  return told (cudaGetLastError ());
#endif
}

/* Largest shared memory of a block on the current device, static variables included: 227 KB for
 * compute capability 9.0 and 10.0, 163 for 8.0, 99 for 8.6, 8.9 and 12.0 (CUDA programming guide,
 * "Technical Specifications per Compute Capability"). */
static inline size_t
most_shared (void)
{
#ifdef WEFT_CUDA_EMULATOR
  return emulated_most_shared ();
#else
  int device = 0, bytes = 0;

  return cudaGetDevice (&device) == cudaSuccess &&
                 cudaDeviceGetAttribute (&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
                     cudaSuccess
             ? (size_t) bytes
             : 0;
#endif
}

/* Multiprocessors of the current device; of the emulator a few, so that blocks have several
 * tiles. */
static inline unsigned
multiprocessors (void)
{
#ifdef WEFT_CUDA_EMULATOR
  return 3;
#else
  int device = 0, n = 0;

  return cudaGetDevice (&device) == cudaSuccess &&
                 cudaDeviceGetAttribute (&n, cudaDevAttrMultiProcessorCount, device) == cudaSuccess
             ? (unsigned) n
             : 1;
#endif
}

/* Requests `bytes` of shared memory for a kernel: CUDA requires this above 48 KB. */
template <class F>
static const char *
allow (F *kernel, size_t bytes)
{
#ifdef WEFT_CUDA_EMULATOR
  return emulated_allow ((const void *) kernel, bytes);
#else
  return told (cudaFuncSetAttribute ((const void *) kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int) bytes));
#endif
}

/* Calls FUNCTION<T> (arguments) with T the type of an operand. */
#define WEFT_BY_DTYPE(dtype, FUNCTION, ...)                                                        \
  ((dtype) == WEFT_FP32   ? FUNCTION<float> (__VA_ARGS__)                                          \
   : (dtype) == WEFT_BF16 ? FUNCTION<bf16> (__VA_ARGS__)                                           \
                          : FUNCTION<fp16> (__VA_ARGS__))
