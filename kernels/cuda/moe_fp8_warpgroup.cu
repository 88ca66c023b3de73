/* Grouped GEMM with fp8 factors by wgmma, two warpgroups per block: tiles of 128 rows (64 per
 * warpgroup) and 128 columns, with slices of 128 terms. (mma.sync is no alternative: for sm_90 and
 * sm_100, ptxas compiles its fp8 form to two fp16 products after conversions.)
 *
 * wgmma needs the terms of both fp8 factors along rows (PTX ISA, wgmma: transposing is for 16-bit
 * types only). The weights of dgrad and both factors of wgrad have their terms across rows: these
 * codes are loaded into registers, where four words of four codes are transposed bytewise. So one
 * copy of the codes is enough for all three products, as on the CPU.
 *
 * Sums in fp8 tensor cores keep about 14 bits (DeepSeek-V3, arXiv 2412.19437, 3.3.2): the sums of
 * each 128 terms are added to fp32 sums, where block scales are applied.
 *
 * While slice i is multiplied, slice i + 1 is transposed and slice i + 2 is fetched, with one
 * barrier per slice. */
#include "kernels/cuda/codes_of_warpgroups.cuh"
#include "kernels/cuda/moe_fp8.cuh"

enum { FACTOR_BYTES = SIDE_OF_TILE * ROW, STAGE_BYTES = 2 * FACTOR_BYTES, STAGES = 3 };
/* SUMS_ROW: floats per row of sums: 8 more than the tile has columns, so that the rows of a
 * fragment lie in different memory banks. */
enum { SUMS_ROW = SIDE_OF_TILE + 8 };
enum { ROW_SCALES, COLUMN_SCALES, N_SCALES };
enum { WORDS = ROW / (THREADS_OF_TILE / 32) /* words of 4 codes per thread, one per term */ };

/* ----------------------------------------------------------------------------- factors */

/* A factor, of which this block needs the rows (columns of b) from `row` on. */
template <bool TURNED> struct feed {
  const struct codes &from;
  uint64_t row;
  uint32_t word[TURNED ? WORDS : 1];

  /* Copies sixteen codes at a time. Codes outside the array become 0. */
  __device__ __forceinline__ void copy (uint8_t *tile, uint64_t term) const
  {
    WEFT_UNROLL
    for (unsigned i = threadIdx.x; i < SIDE_OF_TILE * ROW / WORD; i += THREADS_OF_TILE) {
      uint64_t line = row + i / (ROW / WORD), column = term + i % (ROW / WORD) * WORD;
      bool there = line < from.lines && column < from.width;
      WEFT_COPY_OR_ZERO (code_place (tile, i / (ROW / WORD), i % (ROW / WORD)),
                         from.at + (there ? line * from.width + column : 0), there);
    }
  }

  /* Loads four codes of each of 16 terms; lanes load neighbouring columns. */
  __device__ __forceinline__ void fetch (uint64_t term)
  {
    uint64_t column = row + threadIdx.x % 32 * 4, line = term + threadIdx.x / 32 * WORDS;

    WEFT_UNROLL
    for (unsigned i = 0; i < WORDS; i++)
      word[i] = line + i < from.lines && column < from.width
                    ? *(const uint32_t *) (from.at + (line + i) * from.width + column)
                    : 0;
  }

  __device__ __forceinline__ void begin (uint8_t *tile, uint64_t term)
  {
    if constexpr (TURNED)
      fetch (term);
    else
      copy (tile, term);
  }

  __device__ __forceinline__ void end (uint8_t *tile)
  {
    if constexpr (TURNED)
      store_turned (tile, word);
  }
};

/* ------------------------------------------------------------------------------- tiles */

template <enum way WAY, bool WIDE> struct tile_of_codes {
  feed<WAY == WGRAD> a;
  feed<WAY != FORWARD> b;
  const struct share &s;
  uint64_t block;
  int slices;
  uint8_t *stages;
  float scale; /* scale for the next slice: of a row or of a column */
  float sum[SIDE_OF_TILE / 8][4], part[SIDE_OF_TILE / 8][4];

  __device__ __forceinline__ uint8_t *stage (int i) const
  {
    return stages + i % STAGES * STAGE_BYTES;
  }

  /* Scales of slice i. They lie behind the buffers, in space for the scales of two slices. */
  __device__ __forceinline__ float *scales (int i, int which) const
  {
    return (float *) (stages + STAGES * STAGE_BYTES) + (i % 2 * N_SCALES + which) * SIDE_OF_TILE;
  }

  __device__ __forceinline__ void begin (int i)
  {
    if (i < slices) {
      a.begin (stage (i), (uint64_t) i * ROW);
      b.begin (stage (i) + FACTOR_BYTES, (uint64_t) i * ROW);
    }
    WEFT_COPY_COMMIT ();
  }

  __device__ __forceinline__ void end (int i)
  {
    if (i < slices) {
      a.end (stage (i));
      b.end (stage (i) + FACTOR_BYTES);
    }
  }

  __device__ __forceinline__ void fetch_scale (int i)
  {
    unsigned at = threadIdx.x % SIDE_OF_TILE;

    if (block && i < slices)
      scale = threadIdx.x < SIDE_OF_TILE ? scale_of (a.from, s.row + at, s.rows, i, block)
                                         : scale_of (b.from, s.column + at, s.columns, i, block);
  }

  __device__ __forceinline__ void multiply (int i)
  {
    const uint8_t *left = stage (i);
    uint64_t x = tile_from (left, threadIdx.x / GROUP * 64), y = tile_from (left + FACTOR_BYTES, 0);

    hold (part);
    products_begin ();
    WEFT_UNROLL
    for (int k = 0; k < ROW / TERMS_OF_CODES; k++)
      multiply_codes<WIDE> (part, x + k * TERMS_OF_CODES / WORD, y + k * TERMS_OF_CODES / WORD,
                            k > 0);
    products_commit ();
  }

  /* Adds the products of slice i, times the scales of its block of terms, to the fp32 sums. */
  __device__ __forceinline__ void add (int i)
  {
    unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const float *rows = scales (i, ROW_SCALES) + row,
                *columns = scales (i, COLUMN_SCALES) + lane % 4 * 2;
    float of_row[2] = { 1, 1 };

    for (int half = 0; half < 2 && block; half++)
      of_row[half] = rows[half * 8];
    WEFT_UNROLL
    for (int n = 0; n < SIDE_OF_TILE / 8; n++)
      WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      sum[n][e] += part[n][e] * of_row[e / 2] * (block ? columns[n * 8 + e % 2] : 1);
  }

  /* Stores the tile through shared memory (reusing the buffers): neighbouring threads store
   * neighbouring elements, and one loop handles all elements. */
  __device__ __forceinline__ void leave (const struct grouped &g, float by)
  {
    unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    float *tile = (float *) stages;
    const leave_pair to_y (g, s);

    __syncthreads ();
    WEFT_UNROLL
    for (int n = 0; n < SIDE_OF_TILE / 8; n++)
      WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      tile[(row + e / 2 * 8) * SUMS_ROW + n * 8 + lane % 4 * 2 + e % 2] = sum[n][e] * by;
    __syncthreads ();
    for (unsigned i = threadIdx.x; i < SIDE_OF_TILE * SIDE_OF_TILE / 2; i += blockDim.x) {
      unsigned r = i / (SIDE_OF_TILE / 2), c = i % (SIDE_OF_TILE / 2) * 2;
      to_y (r, c, tile[r * SUMS_ROW + c], tile[r * SUMS_ROW + c + 1]);
    }
  }

  __device__ __forceinline__ void make (void)
  {
    begin (0);
    end (0);
    begin (1);
    fetch_scale (0);
    for (int i = 0; i < slices; i++) {
      if (block)
        scales (i, threadIdx.x / SIDE_OF_TILE)[threadIdx.x % SIDE_OF_TILE] = scale;
      tiles_arrive<1> ();
      multiply (i);
      end (i + 1);
      begin (i + 2);
      fetch_scale (i + 1);
      products_wait<0> ();
      hold (part);
      add (i);
    }
  }
};

template <enum way WAY, bool WIDE>
static __device__ __forceinline__ void
make_tile (const struct grouped &g, const struct factors &of)
{
  WEFT_TILES_SHARED (uint8_t, shared);
  struct codes a, b;
  struct share s;

  if (!tile_here<WAY, SIDE_OF_TILE, SIDE_OF_TILE> (g, of, &s, &a, &b))
    return;
  tile_of_codes<WAY, WIDE> t = { { a, s.row, {} }, { b, s.column, {} }, s, of.block,
                                 (int) ((s.terms + ROW - 1) / ROW), shared };

  t.make ();
  t.leave (g, of.block ? 1 : a.whole * b.whole);
}

template <enum way WAY, bool WIDE>
__global__ void
__launch_bounds__ (THREADS_OF_TILE, 1) warpgroup_codes (struct grouped g, struct factors of)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    make_tile<WAY, WIDE> (g, of);
  else
    no_warpgroups ();
}

/* ------------------------------------------------------------------------------ launches */

template <enum way WAY, bool WIDE>
static const char *
run (const struct weft_cuda_launch *l, const struct grouped &g, const struct factors &of,
     uint64_t room)
{
  const size_t bytes = STAGES * STAGE_BYTES + 2 * N_SCALES * SIDE_OF_TILE * sizeof (float);
  const char *error = allow (warpgroup_codes<WAY, WIDE>, bytes);

  if (error)
    return error;
  WEFT_LAUNCH ((warpgroup_codes<WAY, WIDE>), (grid_of<WAY, SIDE_OF_TILE, SIDE_OF_TILE> (g, room)),
               THREADS_OF_TILE, bytes, l->stream, g, of);
  return launched ();
}

/* Operand types: activations and weights are E4M3; only gradients can be E5M2. */
const char *
weft_cuda_moe_fp8_warpgroups (const struct weft_cuda_launch *l, const struct grouped *g,
                              const struct factors *of, enum way way, uint64_t room)
{
  bool wide = of->a_dtype == WEFT_E5M2;

  if (way == FORWARD)
    return run<FORWARD, false> (l, *g, *of, room);
  if (way == DGRAD)
    return wide ? run<DGRAD, true> (l, *g, *of, room) : run<DGRAD, false> (l, *g, *of, room);
  return wide ? run<WGRAD, true> (l, *g, *of, room) : run<WGRAD, false> (l, *g, *of, room);
}
