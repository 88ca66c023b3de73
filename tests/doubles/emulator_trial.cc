#include "tests/doubles/emulator_trial.h"
#include "kernels/cuda/pipeline.cuh"
#include "tests/doubles/emulated_cuda.h"
#include "tests/doubles/fenced.h"

enum { WORDS = 64 };

alignas (16) static uint16_t memory[8 * WORDS + 8];

/* Reads x in a way that the compiler cannot remove. */
static void
use (float x)
{
  asm volatile("" : : "r"(x));
}

__global__ void
exchange (enum emulator_fault fault, float x)
{
  unsigned lane = threadIdx.x % 32;

  if (fault == EMULATOR_LANES_ENDED && lane >= 16)
    return;
  if (fault == EMULATOR_LANES_APART && lane >= 16)
    x += __shfl_xor_sync (~0u, x, 1);
  else
    x += __shfl_xor_sync (fault == EMULATOR_MASK_HALF ? 0xffffu : ~0u, x, 1);
  use (warp_sum (x));
}

__global__ void
load (enum emulator_fault fault)
{
  WEFT_DYNAMIC_SHARED (bf16, shared);
  const bf16 *from = (const bf16 *) memory + (fault == EMULATOR_PACK_ASKEW ? 2 : 0);
  pack<bf16> some = *(const pack<bf16> *) from;

  use (to_float (some.at[0]));
  from = (const bf16 *) memory + threadIdx.x * 8 + (fault == EMULATOR_COPY_ASKEW ? 2 : 0);
  WEFT_COPY (shared + threadIdx.x * 8, from);
  WEFT_COPY_COMMIT ();
  WEFT_COPY_WAIT (0);
  __syncwarp ();
  uint32_t a[4];
  load_a (a, shared, 8 + (fault == EMULATOR_MATRIX_ASKEW ? 4 : 0), 0, 0);
  if (fault == EMULATOR_BEHIND)
    shared[WORDS * 8].bits = 1;
  if (fault == EMULATOR_READ_BEHIND)
    use (to_float (shared[WORDS * 8]));
}

/* A kernel that reads its own array, with the fault one element beyond the end. The asm statement
 * hides where the pointer comes from, so that the compiler cannot see the fault. */
__global__ void
keep (enum emulator_fault fault)
{
  int own[4] = { 1, 2, 3, 4 }, *at = own;

  asm("" : "+r"(at));
  __syncthreads ();
  use ((float) at[fault == EMULATOR_OWN_BEHIND ? 4 : 3]);
}

__global__ void
meet (enum emulator_fault fault)
{
  if (fault == EMULATOR_BARRIER_LEFT && threadIdx.x == 5)
    return;
  if (fault == EMULATOR_BARRIERS && threadIdx.x >= 32)
    __syncthreads ();
  else
    __syncthreads ();
}

/* Reads or writes, depending on the fault, an element in front of or behind the n elements of
 * `data`. */
__global__ void
touch (enum emulator_fault fault, float *data, int n)
{
  if (fault == EMULATOR_PAGE_READ || fault == EMULATOR_SLACK_READ)
    use (data[n]);
  if (fault == EMULATOR_PAGE_WRITTEN || fault == EMULATOR_SLACK_WRITTEN)
    data[fault == EMULATOR_PAGE_WRITTEN ? -1 : n] = 1;
}

/* Each thread writes 16 bytes of shared memory, which other threads read. The barrier between them
 * is missing if the fault is EMULATOR_RACE_BLOCK. */
__global__ void
share (enum emulator_fault fault, float *once)
{
  WEFT_DYNAMIC_SHARED (float, room);
  unsigned me = threadIdx.x, next = me ^ 1, far = me ^ 32;

  room[4 * me] = (float) me;
  if (fault != EMULATOR_RACE_BLOCK)
    __syncthreads ();
  use (warp_sum (room[4 * far]));
  __syncthreads ();
  use (warp_sum (room[4 * next]));
  if (fault != EMULATOR_RACE_SHUFFLE)
    __syncwarp ();
  room[4 * me] = 0;
  __syncwarp ();
  WEFT_COPY (room + 4 * me, memory + 8 * me);
  WEFT_COPY_COMMIT ();
  WEFT_COPY_WAIT (0);
  if (fault != EMULATOR_RACE_COPY && fault != EMULATOR_RACE_MATRIX)
    __syncwarp ();
  if (fault == EMULATOR_RACE_MATRIX) {
    uint32_t a[4];
    load_matrices (a, (const bf16 *) (room + 4 * next), false);
  } else {
    use (room[4 * next]);
  }
  if (me == 0 && (fault == EMULATOR_RACE_GRID || blockIdx.x == 0))
    *once = 1;
}

__global__ void
nothing (void)
{
}

/* ----------------------------------------------------------------------------- pipelines */

enum { BOX = 64 /* rows and columns */, BOX_BYTES = BOX * BOX * 2, PIPE_THREADS = 3 * GROUP };
enum { PIPE_BYTES = 2 * BOX_BYTES + 64, FLOATS = 4 };

struct pipe {
  enum emulator_fault fault;
  tensor_map map;
  float *sum;
  uint32_t *turn;
};

/* The producer: copies a box, waits until it was read, and adds four floats to device memory. */
static void
feed (const struct pipe &p, uint8_t *box, uint64_t *full, uint64_t *empty)
{
  static const int more[] = { -16, 16 };
  bool wrong = p.fault == EMULATOR_BYTES_FEW || p.fault == EMULATOR_BYTES_MANY;
  float *floats = (float *) (box + BOX_BYTES);

  mbarrier_expect (full, BOX_BYTES + (wrong ? more[p.fault == EMULATOR_BYTES_MANY] : 0));
  load_box (box + (p.fault == EMULATOR_BOX_ASKEW ? 64 : 0), &p.map, tensor_place{}, full);
  mbarrier_wait (empty, 0);
  for (int i = 0; i < FLOATS; i++)
    store_for_products (floats + i, 1.0f);
  if (p.fault != EMULATOR_STORE_UNSEEN)
    copies_are_seen ();
  turn_wait (p.turn, p.fault == EMULATOR_TURN_EARLY ? 1 : 0);
  add_floats (p.sum, floats, sizeof *floats * FLOATS);
  stores_commit ();
  if (p.fault == EMULATOR_STORE_OVERTAKEN)
    mbarrier_arrive (empty + 2);
  stores_have_read ();
  if (p.fault != EMULATOR_STORE_LEFT)
    stores_are_done<0> ();
  turn_pass (p.turn);
}

static void
read_box (const struct pipe &p, uint64_t *full, uint64_t *empty)
{
  mbarrier_wait (full, 0);
  if (p.fault == EMULATOR_PHASE_NEVER)
    mbarrier_wait (full, 1);
  named_sync (1, p.fault == EMULATOR_NAMED_APART && threadIdx.x >= GROUP ? GROUP : 2 * GROUP);
  if (p.fault == EMULATOR_NAMED_LEFT)
    named_arrive (2, 3 * GROUP);
  if (threadIdx.x == 0)
    mbarrier_arrive (empty);
  if (threadIdx.x == 0 && p.fault == EMULATOR_PHASE_LEFT)
    mbarrier_arrive (empty + 1);
  if (threadIdx.x == 0 && p.fault == EMULATOR_ARRIVAL_MORE)
    mbarrier_arrive (full), mbarrier_expect (full, 16), mbarrier_arrive (full);
  if (threadIdx.x == 0 && p.fault == EMULATOR_STORE_OVERTAKEN) {
    mbarrier_wait (empty + 2, 0);
    store_for_products ((float *) ((uint8_t *) full - BOX_BYTES), 2.0f);
  }
}

__global__ void
flow (struct pipe p)
{
  WEFT_TILES_SHARED (uint8_t, box);
  uint64_t *full = (uint64_t *) (box + 2 * BOX_BYTES), *empty = full + 1;

  if (threadIdx.x == 0) {
    mbarrier_init (full, 1);
    mbarrier_init (empty, 1);
    mbarrier_init (empty + 1, 2);
    mbarrier_init (empty + 2, 1);
    if (p.fault != EMULATOR_MBARRIER_UNSEEN)
      mbarriers_are_seen ();
  }
  __syncthreads ();
  if (warpgroup_number () == 2) {
    if (p.fault == EMULATOR_GIVEN_ODD)
      registers_give<28> ();
    else
      registers_give<24> ();
    if (threadIdx.x == 2 * GROUP)
      feed (p, box, full, empty);
  } else {
    if (p.fault == EMULATOR_TAKEN_MORE)
      registers_take<248> ();
    else if (p.fault != EMULATOR_TAKEN_APART || threadIdx.x >= 32)
      registers_take<240> ();
    read_box (p, full, empty);
  }
}

static void
try_pipe (enum emulator_fault fault)
{
  alignas (16) static float sum[FLOATS];
  uint32_t turn = 0;
  uint64_t row = fault == EMULATOR_MAP_ASKEW ? 8 : 16; /* bytes */
  const struct tensor_view v = {
    memory, { 8, 8, 1, 1, 1 }, { row, row * 8, row * 8, row * 8 }, { BOX, BOX, 1, 1, 1 }
  };
  struct pipe p = { fault, {}, sum, &turn };

  if (make_map (&p.map, v))
    abort ();
  WEFT_LAUNCH (flow, 1, PIPE_THREADS, PIPE_BYTES, NULL, p);
}

static void
try_memory (enum emulator_fault fault)
{
  bool slack = fault == EMULATOR_SLACK_WRITTEN || fault == EMULATOR_SLACK_READ;
  int n = slack ? 3 : 4;
  float *data = (float *) fenced_new (n * sizeof (float), 0, fault != EMULATOR_PAGE_WRITTEN);

  WEFT_LAUNCH (touch, 1, 1, 0, NULL, fault, data, n);
  fenced_free (data);
}

void
emulator_try (enum emulator_fault fault)
{
  dim3 grid (fault == EMULATOR_GRID_EMPTY ? 0 : 1, fault == EMULATOR_GRID_HIGH ? 65536 : 1);
  dim3 block (fault == EMULATOR_BLOCK_WIDE ? 1025 : 32);
  size_t shared = fault == EMULATOR_NOT_ASKED ? 49 << 10 : 0;

  WEFT_LAUNCH (exchange, 1, fault == EMULATOR_WARP_SHORT ? 48 : 64, 0, NULL, fault, 1);
  WEFT_LAUNCH (load, 1, 32, WORDS * 16, NULL, fault);
  WEFT_LAUNCH (keep, 1, 64, 0, NULL, fault);
  WEFT_LAUNCH (nothing, grid, block, shared, NULL);
  WEFT_LAUNCH (meet, 1, 64, 0, NULL, fault);
  try_memory (fault);
  try_pipe (fault);
  float once = 0, *to = &once;
  WEFT_LAUNCH (share, 2, 64, 64 * 16, NULL, fault, to);
}

__global__ void
look_beside (float *found)
{
  WEFT_DYNAMIC_SHARED (float, room);

  room[threadIdx.x] = 1;
  if (threadIdx.x == 1)
    *found = room[0];
}

float
emulator_neighbour (int backwards)
{
  float found = 0, *to = &found;

  emulated_order_of_threads (backwards);
  WEFT_LAUNCH (look_beside, 1, 32, 128, NULL, to);
  return found;
}

__global__ void
number_blocks (float *found)
{
  *found = (float) blockIdx.x;
}

float
emulator_last_block (int backwards)
{
  float found = 0, *to = &found;

  emulated_order_of_threads (backwards);
  WEFT_LAUNCH (number_blocks, 2, 1, 0, NULL, to);
  return found;
}

__global__ void
copy_early (float *found)
{
  WEFT_DYNAMIC_SHARED (float, room);

  room[0] = 0;
  WEFT_COPY (room, memory);
  WEFT_COPY_COMMIT ();
  *found = room[0];
  WEFT_COPY_WAIT (0);
}

float
emulator_copied_early (void)
{
  float found = 0, *to = &found;

  WEFT_LAUNCH (copy_early, 1, 1, 16, NULL, to);
  return found;
}

static __device__ void
leave_one (float *at, float *found)
{
  if (threadIdx.x == 0 && blockIdx.x == 1)
    *found = at[31];
  __syncthreads ();
  at[threadIdx.x] = 1;
}

__global__ void
remember (bool dynamic, float *found)
{
  WEFT_DYNAMIC_SHARED (float, room);
  __shared__ float own[32];

  leave_one (dynamic ? room : own, found);
}

template <class T>
__global__ void
remember_as (T *found)
{
  __shared__ T own[32];

  leave_one (own, found);
}

float
emulator_left_over (enum emulator_memory which)
{
  float found = 0, *to = &found;

  if (which == EMULATOR_STATIC_OF_TEMPLATE)
    WEFT_LAUNCH (remember_as<float>, 2, 32, 0, NULL, to);
  else
    WEFT_LAUNCH (remember, 2, 32, 128, NULL, which == EMULATOR_DYNAMIC, to);
  return found;
}
