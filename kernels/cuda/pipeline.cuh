/* pipeline.cuh - warps of a block with different roles, on compute capability 9.0: one warp
 * copies tiles to shared memory (Tensor Memory Accelerator, TMA), warpgroups multiply them.
 *
 * An mbarrier is a word of shared memory with phases. A phase ends after a number of arrivals,
 * and after all bytes have come that threads expect (PTX ISA, "mbarrier"). mbarrier_wait (b, p)
 * returns when the phase of parity p has ended; phases have parity 0, 1, 0, ..., and the phase
 * before the first one counts as ended. A ring of STAGES tiles has two mbarriers per tile:
 * `full` ends when the tile has come, `empty` when all warps have read it. In both, use number i
 * of the ring is phase i / STAGES of tile i % STAGES.
 *
 * A tensor map describes a tensor of up to five dimensions in device memory, and a box of it
 * that one instruction copies to a tile of warpgroup.cuh. Elements of a box beyond the tensor
 * become 0.
 *
 * Registers can be moved from one warpgroup to another: registers_give, then registers_take,
 * each executed by whole warpgroups. A block never has more than when it started: a take waits
 * until enough were given. */
#pragma once
#include "kernels/cuda/warpgroup.cuh"
#ifndef WEFT_CUDA_EMULATOR
#include <cuda.h>
#endif

enum { TENSOR_DIMS = 5 };

/* A tensor of 16-bit elements: sizes of its dimensions, the fastest first; distances in bytes of
 * neighbours in all dimensions but the first, multiples of 16; sizes of the box. The box has one
 * panel of columns in the first dimension. */
struct tensor_view {
  const void *at; /* a multiple of 16 */
  uint64_t dim[TENSOR_DIMS], step[TENSOR_DIMS - 1];
  uint32_t box[TENSOR_DIMS];
};

struct tensor_place {
  int32_t at[TENSOR_DIMS];
};

/* ----------------------------------------------------------------------------- emulated */

#ifdef WEFT_CUDA_EMULATOR
#include "tests/doubles/emulated_pipeline.hh"

typedef emulated_tensor_map tensor_map;

static inline const char *
make_map (tensor_map *map, const struct tensor_view &v)
{
  return emulated_make_map (map, v.at, v.dim, v.step, v.box);
}

#define map_is_needed(map) ((void) (map))
#define mbarrier_init emulated_mbarrier_init
#define mbarriers_are_seen emulated_mbarriers_are_seen
#define mbarrier_arrive emulated_mbarrier_arrive
#define mbarrier_expect emulated_mbarrier_expect
#define mbarrier_wait emulated_mbarrier_wait
#define load_bytes emulated_load_bytes
#define store_bytes(to, from, bytes) emulated_store_bytes (to, from, bytes, false)
#define add_floats(to, from, bytes) emulated_store_bytes (to, from, bytes, true)
#define stores_commit emulated_stores_commit
#define stores_have_read emulated_stores_have_read
#define named_sync emulated_named_sync
#define named_arrive emulated_named_arrive
#define next_ticket emulated_next_ticket
#define turn_wait emulated_turn_wait
#define turn_pass emulated_turn_pass

template <int OPEN>
static inline void
stores_are_done (void)
{
  emulated_stores_are_done (OPEN);
}

static inline void
load_box (void *to, const tensor_map *map, const struct tensor_place &place, uint64_t *b)
{
  emulated_load_box (to, map, place.at, b);
}

template <class T>
static inline void
store_for_products (T *to, T x)
{
  *to = x;
  emulated_copy_arrived (to);
}

template <int N>
static inline void
registers_give (void)
{
  emulated_registers (N, false);
}

template <int N>
static inline void
registers_take (void)
{
  emulated_registers (N, true);
}

#else
/* -------------------------------------------------------------------------- tensor maps */

typedef CUtensorMap tensor_map;
typedef decltype (&cuTensorMapEncodeTiled) tensor_encoder;

/* The driver's function, looked up at its first use: the module is not linked with the driver. */
static inline tensor_encoder
find_encoder (void)
{
  static tensor_encoder known;
  tensor_encoder encode = __atomic_load_n (&known, __ATOMIC_ACQUIRE);
  enum cudaDriverEntryPointQueryResult found;

  if (!encode &&
      (cudaGetDriverEntryPointByVersion ("cuTensorMapEncodeTiled", (void **) &encode, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
       found != cudaDriverEntryPointSuccess))
    return NULL;
  __atomic_store_n (&known, encode, __ATOMIC_RELEASE);
  return encode;
}

/* Returns NULL or an error text. */
static inline const char *
make_map (tensor_map *map, const struct tensor_view &v)
{
  const cuuint32_t every[TENSOR_DIMS] = { 1, 1, 1, 1, 1 };
  tensor_encoder encode = find_encoder ();

  if (!encode)
    return "the driver has no cuTensorMapEncodeTiled";
  return encode (map, CU_TENSOR_MAP_DATA_TYPE_UINT16, TENSOR_DIMS, (void *) v.at, v.dim, v.step,
                 v.box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? NULL
             : "the driver refuses a tensor map";
}

/* Loads the map itself ahead of its first use. */
static __device__ __forceinline__ void
map_is_needed (const tensor_map *map)
{
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---------------------------------------------------------------------------- mbarriers */

static __device__ __forceinline__ void
mbarrier_init (uint64_t *b, unsigned arrivals)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at (b)), "r"(arrivals)
               : "memory");
}

/* After the thread's mbarrier_init(), and before a barrier of the block. */
static __device__ __forceinline__ void
mbarriers_are_seen (void)
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  copies_are_seen ();
}

static __device__ __forceinline__ void
mbarrier_arrive (uint64_t *b)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at (b)) : "memory");
}

/* Arrives, and makes the phase wait for `bytes` bytes of copies. */
static __device__ __forceinline__ void
mbarrier_expect (uint64_t *b, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at (b)),
               "r"(bytes)
               : "memory");
}

static __device__ __forceinline__ void
mbarrier_wait (uint64_t *b, unsigned parity)
{
  asm volatile("{\n.reg .pred ended;\nagain:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
               "@ended bra over;\nbra again;\nover:\n}" ::"r"(shared_at (b)),
               "r"(parity)
               : "memory");
}

/* ------------------------------------------------------------------------------- copies */

/* Copies the box at `place` to a tile; its bytes count at mbarrier b. */
static __device__ __forceinline__ void
load_box (void *to, const tensor_map *map, const struct tensor_place &place, uint64_t *b)
{
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_at (to)),
               "l"(map), "r"(place.at[0]), "r"(place.at[1]), "r"(place.at[2]), "r"(place.at[3]),
               "r"(place.at[4]), "r"(shared_at (b))
               : "memory");
}

/* Copies contiguous bytes; addresses and number are multiples of 16. */
static __device__ __forceinline__ void
load_bytes (void *to, const void *from, unsigned bytes, uint64_t *b)
{
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
               "[%3];" ::"r"(shared_at (to)),
               "l"(from), "r"(bytes), "r"(shared_at (b))
               : "memory");
}

/* Copies contiguous bytes from shared to device memory, or adds floats there. */
static __device__ __forceinline__ void
store_bytes (void *to, const void *from, unsigned bytes)
{
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_at (from)), "r"(bytes)
               : "memory");
}

static __device__ __forceinline__ void
add_floats (void *to, const void *from, unsigned bytes)
{
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(shared_at (from)), "r"(bytes)
      : "memory");
}

static __device__ __forceinline__ void
stores_commit (void)
{
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until shared memory of the thread's stores may be written again. */
static __device__ __forceinline__ void
stores_have_read (void)
{
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Waits until all but the newest OPEN groups of the thread's stores are written. */
template <int OPEN>
static __device__ __forceinline__ void
stores_are_done (void)
{
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(OPEN) : "memory");
}

/* A store that products or bulk copies read after copies_are_seen() and a barrier. */
template <class T>
static __device__ __forceinline__ void
store_for_products (T *to, T x)
{
  *to = x;
}

/* ---------------------------------------------------------------- barriers and registers */

/* A barrier of some threads, number 1 to 15 of the block: waits for `threads` arrivals, of which
 * this thread's is one. */
static __device__ __forceinline__ void
named_sync (unsigned number, unsigned threads)
{
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Arrives without waiting. */
static __device__ __forceinline__ void
named_arrive (unsigned number, unsigned threads)
{
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

template <int N>
static __device__ __forceinline__ void
registers_give (void)
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
static __device__ __forceinline__ void
registers_take (void)
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ------------------------------------------------------------------------ turns of blocks */

/* Counts the callers: 0, 1, ... */
static __device__ __forceinline__ uint32_t
next_ticket (uint32_t *count)
{
  return atomicAdd (count, 1);
}

/* Waits until turn_pass() was called n times for this word, which began as 0; then sees what the
 * callers have written before. */
static __device__ __forceinline__ void
turn_wait (const uint32_t *turn, uint32_t n)
{
  uint32_t now;

  do
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  while (now != n);
  asm volatile("fence.proxy.async;" ::: "memory");
}

static __device__ __forceinline__ void
turn_pass (uint32_t *turn)
{
  asm volatile("fence.proxy.async;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn)
               : "memory");
}
#endif

/* Number of this thread's warpgroup, by an exchange: so the compiler knows that branches on it do
 * not divide a warp, which would serialise its products. */
static __device__ __forceinline__ int
warpgroup_number (void)
{
  return (int) __shfl_sync (~0u, threadIdx.x / GROUP, 0);
}

/* -------------------------------------------------------------------------------- rings */

/* The mbarriers of a ring of N tiles. Use number i of the ring is for use in tile i % N. */
template <int N> struct ring {
  uint64_t *full, *empty;

  /* One thread arrives at `full`; `readers` warps arrive at `empty`. */
  __device__ __forceinline__ void open (unsigned readers) const
  {
    for (int i = 0; i < N; i++) {
      mbarrier_init (full + i, 1);
      mbarrier_init (empty + i, readers);
    }
  }

  /* Waits until tile i may be overwritten, and announces its bytes. Returns their mbarrier. */
  __device__ __forceinline__ uint64_t *begin (unsigned i, unsigned bytes) const
  {
    mbarrier_wait (empty + i % N, i / N % 2 ^ 1);
    mbarrier_expect (full + i % N, bytes);
    return full + i % N;
  }

  __device__ __forceinline__ void wait (unsigned i) const
  {
    mbarrier_wait (full + i % N, i / N % 2);
  }

  /* This warp has read tile i. */
  __device__ __forceinline__ void release (unsigned i) const
  {
    if (threadIdx.x % 32 == 0)
      mbarrier_arrive (empty + i % N);
  }
};
