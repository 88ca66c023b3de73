/* emulated_cuda.hh - enough of CUDA C++ to run a kernel on the CPU, thread by thread.
 *
 * The .cu files of kernels/cuda/ are compiled once more by the C++ compiler of the host with
 * WEFT_CUDA_EMULATOR, and what they compute is compared with the fp64 references where there is no
 * GPU.  Indices, barriers, shuffles, fragments of tensor cores and what lies in shared memory are
 * as on the device; speed, memory spaces and the order of blocks are not.
 *
 * Threads of a block are fibres.  They run one after the other until each stands at a barrier or at
 * an exchange within its warp, in an order that emulated_order_of_threads() turns round, and that
 * of blocks with it: a kernel that lacks a barrier gives other numbers in another order.  In a
 * build with the thread sanitizer two threads that touch the same bytes, and one writes, are told
 * whatever the numbers are (emulated_races.hh).
 *
 * What a GPU would not forgive, or would not even mention, ends the program with a message: a
 * launch over the limits of a device; a warp of which not all lanes come to the same exchange, and
 * a block of which not all threads come to the same barrier; words that do not begin at multiples
 * of their size (the kernels are compiled with -fsanitize=alignment).  Shared memory holds NaN
 * until a block has written it. */
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

/* Indices of the running thread. */
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
#define __shared__ static __attribute__ ((noinit)) /* emulated_static.ld */
#define __grid_constant__

/* As cudaFuncSetAttribute() does, a kernel may be given more dynamic shared memory than 48 KB:
 * NULL, or why not. */
const char *emulated_allow (const void *kernel, size_t bytes);
size_t emulated_most_shared (void);
void emulated_run (const void *kernel, dim3 grid, dim3 block, size_t shared,
                   const std::function<void ()> &thread);
void emulated_count (const char *kernel); /* emulated_launches() */

void __syncthreads (int line = __builtin_LINE ());
void __syncwarp (int line = __builtin_LINE ());

/* All lanes of a warp come to the same place, `line` of the kernel, and each leaves something; when
 * all have, `make` is called once with what the 32 left, and only then do they go on: on a device
 * it is one instruction. */
typedef void emulated_maker (void *const *lane);
void emulated_meet (void *mine, emulated_maker *make, int line);
void emulated_all_lanes (unsigned mask); /* that an exchange names */

/* Checks a read of `bytes` by an instruction that requires aligned shared memory. */
void emulated_read_shared (const void *at, size_t bytes);

/* Sixteen bytes on their way to shared memory: they arrive when the thread waits for their group,
 * and not before; until then what they will replace is NaN (cp.async of PTX).  From NULL: zeros. */
void emulated_copy (void *to, const void *from, size_t bytes = 16);
void emulated_copy_commit (void);
void emulated_copy_wait (unsigned open);

/* A shuffle: the value of a lane, and the lane that it reads from. */
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

/* A vote over all 32 lanes of a warp. */
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

/* Selects four of eight bytes (a, then b) by the four hexadecimal digits, lowest first. */
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
