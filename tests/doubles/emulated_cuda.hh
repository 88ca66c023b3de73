/* emulated_cuda.hh - enough of CUDA C++ to run a kernel on the CPU, thread by thread.
 *
 * The .cu files of kernels/cuda/ are also compiled by the C++ compiler of the host, with
 * WEFT_CUDA_EMULATOR, so that tests without a GPU can compare their results with the fp64
 * references.  Indices, barriers, shuffles, fragments of tensor cores and layouts in shared memory
 * are those of the device; speed, memory spaces and the order of blocks are not.
 *
 * Threads of a block are fibres.  Each runs until it waits at a barrier or at a warp exchange; then
 * the next one runs.  emulated_order_of_threads() reverses the order of threads and blocks, so that
 * a kernel that lacks a barrier gives other results.  A build with the thread sanitizer reports
 * every data race, whatever the results are (emulated_races.hh).
 *
 * Errors that a GPU does not tolerate, or does not report, end the program with a message: a launch
 * beyond the limits of a device; lanes of a warp at different exchanges; threads of a block at
 * different barriers; accesses that are not aligned to their size (the kernels are compiled with
 * -fsanitize=alignment).  Shared memory is NaN until a block writes it. */
#pragma once
#include "tests/doubles/emulated_products.hh"
#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>

struct emulated_index {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  dim3 (unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x (x_), y (y_), z (z_)
  {
  }
};

struct alignas (16) uint4 {
  uint32_t x, y, z, w;
};

/* threadIdx and blockIdx of the running thread. */
extern emulated_index threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern uint8_t emulated_shared[];

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
/* The linker script collects these variables by `noinit`: templates lose section names (GCC bug
 * 41091). */
#define __shared__ static __attribute__ ((noinit)) /* emulated_static.ld collects these variables */
#define __grid_constant__

/* Allows a kernel `bytes` bytes of dynamic shared memory, more than the default limit of 48 KB,
 * like cudaFuncSetAttribute(). Returns NULL, or an error message. */
const char *emulated_allow (const void *kernel, size_t bytes);

/* Returns the largest size that emulated_allow() accepts. */
size_t emulated_most_shared (void);

/* Launches a kernel: calls `thread` for every thread of the blocks that run
 * (emulated_run_blocks()). */
void emulated_run (const void *kernel, dim3 grid, dim3 block, size_t shared,
                   const std::function<void ()> &thread);
/* Adds a launch of this kernel to the counts that emulated_launches() returns. */
void emulated_count (const char *kernel);

void __syncthreads (int line = __builtin_LINE ());
void __syncwarp (int line = __builtin_LINE ());

/* A warp exchange, which is one instruction on a device: each of the 32 lanes passes its operand
 * `mine` at the same `line` of the kernel. The last lane calls `make` once with the operands of all
 * lanes; then all lanes continue. */
typedef void emulated_maker (void *const *lane);
void emulated_meet (void *mine, emulated_maker *make, int line);
/* Fails unless the mask of a warp exchange names all 32 lanes. */
void emulated_all_lanes (unsigned mask);

/* The running thread stops until a thread or an arriving copy calls emulated_wake() for the same
 * object. */
void emulated_sleep (const void *on);
void emulated_wake (const void *on);

/* Checks a read of `bytes` by an instruction that requires aligned shared memory. */
void emulated_read_shared (const void *at, size_t bytes);

/* cp.async (PTX): an asynchronous copy to shared memory. The data arrive when the thread waits for
 * the group of the copy; until then the destination is NaN. `from` NULL: zeros. */
void emulated_copy (void *to, const void *from, size_t bytes = 16);
void emulated_copy_commit (void);
void emulated_copy_wait (unsigned open);

/* One lane's part of a shuffle: its value (`mine`), the lane whose value it reads (`from`), and the
 * value that it has read (`out`). */
template <class T> struct emulated_shuffle {
  T mine, out;
  unsigned from;

  static void
  make (void *const *lane)
  {
    for (unsigned l = 0; l < 32; l++) {
      emulated_shuffle *to = (emulated_shuffle *) lane[l];
      to->out = ((const emulated_shuffle *) lane[to->from])->mine;
    }
  }
};

template <class T>
T
__shfl_sync (unsigned all, T value, unsigned from, int line = __builtin_LINE ())
{
  emulated_all_lanes (all);
  emulated_shuffle<T> s = { value, value, from % 32 };
  emulated_meet (&s, s.make, line);
  return s.out;
}

template <class T>
T
__shfl_xor_sync (unsigned all, T value, unsigned mask, int line = __builtin_LINE ())
{
  return __shfl_sync (all, value, threadIdx.x % 32 ^ mask, line);
}

static inline void
emulated_vote (void *const *lane)
{
  unsigned bits = 0;

  for (unsigned l = 0; l < 32; l++)
    bits |= *(const unsigned *) lane[l] << l;
  for (unsigned l = 0; l < 32; l++)
    *(unsigned *) lane[l] = bits;
}

/* __ballot_sync(): a vote over all 32 lanes of a warp. */
static inline unsigned
__ballot_sync (unsigned all, int yes, int line = __builtin_LINE ())
{
  emulated_all_lanes (all);
  unsigned bits = yes != 0;
  emulated_meet (&bits, emulated_vote, line);
  return bits;
}

static inline int
__popc (unsigned bits)
{
  return __builtin_popcount (bits);
}

/* CUDA's __byte_perm(): numbers the bytes of `a` 0 to 3 and of `b` 4 to 7. The four lowest
 * hexadecimal digits choose the bytes of the result, lowest first. */
static inline uint32_t
__byte_perm (uint32_t a, uint32_t b, uint32_t digits)
{
  uint64_t both = (uint64_t) b << 32 | a;
  uint32_t out = 0;

  for (unsigned i = 0; i < 4; i++)
    out |= (uint32_t) (both >> (digits >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
}

static inline float
rsqrtf (float x)
{
  return 1 / sqrtf (x);
}

#define WEFT_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
  ((void) (stream), weft_cuda_loads_only ()                                                        \
                        ? (void) 0                                                                 \
                        : (emulated_count (#kernel),                                               \
                           emulated_run ((const void *) kernel, grid, block, shared,               \
                                         [=] { kernel (__VA_ARGS__); })))
#define WEFT_DYNAMIC_SHARED(type, name) type *name = (type *) emulated_shared
