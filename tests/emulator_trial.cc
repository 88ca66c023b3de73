#include "tests/emulator_trial.h"
#include "kernels/cuda/fragments.cuh"

enum { WORDS = 64 };

alignas (16) static uint16_t memory[8 * WORDS];
static volatile float sink; /* what is read for it is really read */

__global__ void
exchange (enum emulator_fault fault, float x)
{
  unsigned lane = threadIdx.x % 32;

  if (fault == EMULATOR_LANES_ENDED && lane >= 16)
    return;
  if (fault == EMULATOR_LANES_APART && lane >= 16)
    x += __shfl_xor_sync (~0u, x, 1);
  else
    x += __shfl_xor_sync (~0u, x, 1);
  sink = warp_sum (x);
}

__global__ void
load (enum emulator_fault fault)
{
  WEFT_DYNAMIC_SHARED (bf16, shared);
  const bf16 *from = (const bf16 *) memory + (fault == EMULATOR_PACK_ASKEW ? 2 : 0);
  pack<bf16> some = *(const pack<bf16> *) from;

  sink = to_float (some.at[0]);
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
    sink = to_float (shared[WORDS * 8]);
}

/* The compiler does not see how far it goes. */
__global__ void
keep (enum emulator_fault fault)
{
  int own[4] = { 1, 2, 3, 4 }, *at = own;

  asm ("" : "+r"(at));
  __syncthreads ();
  sink = (float) at[fault == EMULATOR_OWN_BEHIND ? 4 : 3];
}

__global__ void
nothing (void)
{
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
}

__global__ void
remember (int dynamic, float *found)
{
  WEFT_DYNAMIC_SHARED (float, room);
  __shared__ float own[32];
  float *at = dynamic ? room : own;

  *found = at[threadIdx.x];
  at[threadIdx.x] = 1;
}

float
emulator_left_over (int dynamic)
{
  float found = 0, *to = &found;

  for (int i = 0; i < 2; i++)
    WEFT_LAUNCH (remember, 1, 32, 128, NULL, dynamic, to);
  return found;
}
