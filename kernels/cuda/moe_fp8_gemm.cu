/* Grouped GEMM with fp8 factors by mma.sync: tiles of moe_gemm.cu whose codes are converted to fp16
 * on their way to shared memory, for shapes that moe_fp8_warpgroup.cu does not support. fp16 holds
 * every E4M3 and E5M2 number exactly and sums are fp32, so results equal those of fp8 tensor cores
 * with full accumulation, at fp16 speed on every device. Sums over a block of terms are multiplied
 * by the block's two scales before they are added. With per-tensor scales, the total sum is
 * multiplied. */
#include "kernels/cuda/moe_fp8.cuh"
#include "kernels/cuda/products.cuh"

enum { A, A_SCALE, B, B_SCALE, COUNTS, Y };
enum { M, N, K, EXPERTS, STRIDE, BLOCK = 7 };
enum {
  CODES = 8 /* codes that a thread fetches at a time */,
  FETCHES = TILE * SLICE / CODES / TILE_THREADS
};

/* ------------------------------------------------------------------------------ codes */

/* Converts two codes to two fp16 numbers in a word. */
static __device__ __forceinline__ uint32_t
halves_of (uint32_t pair, bool wide)
{
  if (wide) /* an E5M2 code is the upper byte of an fp16 */
    return (pair & 0xff) << 8 | (pair & 0xff00) << 16;
#if !defined(WEFT_CUDA_EMULATOR) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t two_halves;
  asm ("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two_halves) : "h"((uint16_t) pair));
  return two_halves;
#else
  return two<fp16> (weft_e4m3_float ((uint8_t) pair), weft_e4m3_float ((uint8_t) (pair >> 8)));
#endif
}

/* A thread's part of a slice (TILE rows and SLICE terms of a factor), in registers. */
struct fetched {
  uint32_t word[FETCHES][CODES / 4];
};

/* Loads eight codes of one row of the array (`line`). Codes outside the array are 0. */
static __device__ __forceinline__ void
fetch_codes (uint32_t word[CODES / 4], const struct codes &from, uint64_t line, uint64_t column)
{
  const uint8_t *at = from.at + line * from.width + column;

  word[0] = word[1] = 0;
  if (line >= from.lines || column >= from.width)
    return;
  if (from.packed && column + CODES <= from.width) {
    word[0] = ((const uint32_t *) at)[0];
    word[1] = ((const uint32_t *) at)[1];
    return;
  }
  for (unsigned i = 0; i < CODES && column + i < from.width; i++)
    word[i / 4] |= (uint32_t) at[i] << i % 4 * 8;
}

/* Loads a thread's part of a slice. Rows of the array are rows of the factor or, if TURNED, its
 * terms. */
template <bool TURNED>
static __device__ __forceinline__ void
fetch_slice (struct fetched *f, const struct codes &from, uint64_t row, uint64_t term)
{
  const int wide = TURNED ? TILE : SLICE, each = wide / CODES;

  WEFT_UNROLL
  for (int n = 0; n < FETCHES; n++) {
    int i = threadIdx.x + n * TILE_THREADS, line = i / each, column = i % each * CODES;
    fetch_codes (f->word[n], from, (TURNED ? term : row) + line, (TURNED ? row : term) + column);
  }
}

template <bool TURNED>
static __device__ __forceinline__ void
store_slice (fp16 *tile, const struct fetched &f, bool wide_codes)
{
  const int wide = TURNED ? TILE : SLICE, each = wide / CODES;

  WEFT_UNROLL
  for (int n = 0; n < FETCHES; n++) {
    int i = threadIdx.x + n * TILE_THREADS, line = i / each, column = i % each * CODES;
    uint4 *to = (uint4 *) (tile + line * (wide + TILE_PAD) + column);
    to->x = halves_of (f.word[n][0], wide_codes);
    to->y = halves_of (f.word[n][0] >> 16, wide_codes);
    to->z = halves_of (f.word[n][1], wide_codes);
    to->w = halves_of (f.word[n][1] >> 16, wide_codes);
  }
}

/* -------------------------------------------------------------------------- scales */

/* sum += part times the scales of its rows and columns, from shared memory; clears part. */
static __device__ __forceinline__ void
add_scaled (float (*sum)[WARP_COLUMNS / 8][4], float (*part)[WARP_COLUMNS / 8][4],
            const float *row_scale, const float *column_scale)
{
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned row = warp % 2 * WARP_ROWS + lane / 4, column = warp / 2 * WARP_COLUMNS + lane % 4 * 2;

  WEFT_UNROLL
  for (int i = 0; i < WARP_ROWS / 16; i++)
    WEFT_UNROLL
    for (int j = 0; j < WARP_COLUMNS / 8; j++)
      WEFT_UNROLL
      for (int e = 0; e < 4; e++) {
        sum[i][j][e] += part[i][j][e] * row_scale[row + i * 16 + e / 2 * 8] *
                        column_scale[column + j * 8 + e % 2];
        part[i][j][e] = 0;
      }
}

/* ---------------------------------------------------------------------------- tiles */

/* Shared memory of a thread block: two slices of each factor. */
enum { SHARED_BYTES = 2 * 2 * STAGE * sizeof (fp16) };

/* Computes a tile: slices are fetched into one half of the buffers while the other half is
 * multiplied. Sums of one block of terms and total sums are separate variables: an array indexed at
 * run time would not stay in registers. */
template <enum way WAY>
static __device__ __forceinline__ void
make_tile (const struct codes &a, const struct codes &b, const struct share &s, uint64_t block,
           float (*sum)[WARP_COLUMNS / 8][4])
{
  const bool A_TURNED = WAY == WGRAD, B_TURNED = WAY != FORWARD;
  WEFT_DYNAMIC_SHARED (fp16, tiles); /* SHARED_BYTES */
  __shared__ float row_scale[2][TILE], column_scale[2][TILE];
  uint64_t slices = (s.terms + SLICE - 1) / SLICE, each = block ? block / SLICE : slices;
  float part[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
  struct fetched of_a, of_b;
  unsigned i = threadIdx.x, warp = i / 32;
  /* Experts have few rows: warps without rows skip the products. */
  bool busy =
      s.row + warp % 2 * WARP_ROWS < s.rows && s.column + warp / 2 * WARP_COLUMNS < s.columns;

  for (uint64_t n = 0; n < slices; n++) {
    unsigned now = n % 2, of = n / each % 2;
    fetch_slice<A_TURNED> (&of_a, a, s.row, n * SLICE);
    fetch_slice<B_TURNED> (&of_b, b, s.column, n * SLICE);
    fp16 *a_tile = tiles + 2 * now * STAGE, *b_tile = a_tile + STAGE;
    store_slice<A_TURNED> (a_tile, of_a, a.wide);
    store_slice<B_TURNED> (b_tile, of_b, b.wide);
    if (n % each == 0 && i < TILE)
      row_scale[of][i] = scale_of (a, s.row + i, s.rows, n / each, block);
    else if (n % each == 0)
      column_scale[of][i - TILE] = scale_of (b, s.column + i - TILE, s.columns, n / each, block);
    __syncthreads ();
    if (busy)
      multiply_slice<A_TURNED, B_TURNED> (part, a_tile, b_tile);
    if (busy && (n % each == each - 1 || n == slices - 1))
      add_scaled (sum, part, row_scale[of], column_scale[of]);
  }
}

static_assert (SUMS_BYTES <= (size_t) SHARED_BYTES, "sums have the room of slices");

template <enum way WAY>
__global__ void
__launch_bounds__ (TILE_THREADS) fp8_tiles (struct grouped g, struct factors of)
{
  float sum[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
  struct codes a, b;
  struct share s;

  if (!tile_here<WAY, TILE, TILE> (g, of, &s, &a, &b))
    return;
  make_tile<WAY> (a, b, s, of.block, sum);
  WEFT_DYNAMIC_SHARED (float, room);
  leave_tile (sum, room, leave_pair (g, s));
}

/* ------------------------------------------------------------------------------ launches */

/* Whether the wgmma kernels of moe_fp8_warpgroup.cu support this call. The rows of both factors'
 * arrays must begin at multiples of 16 bytes. */
static bool
warpgroups_take (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uintptr_t at = (uintptr_t) o[A].data | (uintptr_t) o[B].data;

  return l->warpgroups && l->dim[BLOCK] != WEFT_MX_BLOCK && o[B].dtype == WEFT_FP8 &&
         at % 16 == 0 && l->dim[N] % 16 == 0 && l->dim[K] % 16 == 0;
}

template <enum way WAY>
static const char *
run (const struct weft_cuda_launch *l, struct grouped g)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t room = o[A].n / (WAY == FORWARD ? l->dim[K] : l->dim[N]);
  const struct weft_cuda_rows all = { l->dim[M], room, l->dim[STRIDE], TILE };
  struct factors of = { array_of (&o[A_SCALE]), array_of (&o[B_SCALE]), o[A].dtype, o[B].dtype,
                        l->dim[BLOCK], l->dim[N] };

  if (of.block == 0 && o[A_SCALE].n != l->dim[EXPERTS])
    return "an expert's rows have more than one scale";
  g.a = array_of (&o[A]);
  g.b = array_of (&o[B]);
  g.y = array_of (&o[Y]);
  g.experts = l->dim[EXPERTS];
  weft_cuda_find_experts (l, &o[COUNTS], &g, &all);
  if (warpgroups_take (l))
    return weft_cuda_moe_fp8_warpgroups (l, &g, &of, WAY, room);
  WEFT_LAUNCH (fp8_tiles<WAY>, (grid_of<WAY, TILE, TILE> (g, room)), TILE_THREADS, SHARED_BYTES,
               l->stream, g, of);
  return launched ();
}

WEFT_CUDA_SCRATCH (moe_fp8_matmul, weft_cuda_experts_bytes (s->dim[EXPERTS]))
WEFT_CUDA_SCRATCH (moe_fp8_matmul_dgrad, weft_cuda_experts_bytes (s->dim[EXPERTS]))
WEFT_CUDA_SCRATCH (moe_fp8_matmul_wgrad, weft_cuda_experts_bytes (s->dim[EXPERTS]))

const char *
weft_cuda_moe_fp8_matmul (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.columns = l->dim[N];
  g.terms = l->dim[K];
  return run<FORWARD> (l, g);
}

const char *
weft_cuda_moe_fp8_matmul_dgrad (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.columns = l->dim[K];
  g.terms = l->dim[N];
  return run<DGRAD> (l, g);
}

const char *
weft_cuda_moe_fp8_matmul_wgrad (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.rows = l->dim[N];
  g.columns = l->dim[K];
  g.adds = l->operand[Y].accumulate;
  return run<WGRAD> (l, g);
}
