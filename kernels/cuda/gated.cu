/* The first product of a gated MLP with swiglu in its epilogue, for compute capability 9.0: gate_up
 * (m, 2 f) = x (m, k) w (2 f, k)^T and y (m, f) = silu (gate) up. cuBLASLt has no such epilogue
 * (cublasLtEpilogue_t), and cuDNN's graphs have one matmul for each fusion. Backward reads gate_up,
 * so it is stored too; what is saved is that the kernel of swiglu reads it again: 4 of its 6 bytes
 * per element of y. Before the first step this kernel is timed beside the product of cuBLASLt and
 * the kernel of swiglu (choice_of_gated in blas.c). No GPU has run it yet.
 *
 * A block stays on its multiprocessor and computes one tile after the other: 128 rows by 128
 * columns of gate and the same 128 columns of up. Two consumer warpgroups have 64 rows each; their
 * sums are 64 x (128 + 128), so that gate and up of an element are in one thread. A producer warp
 * copies slices of 64 terms by TMA into a ring: 128 rows of x, and 128 rows of gate weights with
 * 128 of up weights behind them, which one product reads as a matrix of 256 columns. While the
 * consumers store a tile, the producer fills the ring for the next one.
 *
 * Results are rounded, staged in shared memory, and stored by bulk copies, a row at a time, which
 * proceed while the next tile is multiplied. Rows of the stage are 16 bytes longer than the 256
 * that they hold: so the eight rows that a warp writes at once are in different banks. swiglu is
 * applied to gate and up as they are stored.
 *
 *   registers of a thread: at the start, producer, consumer   168, 40, 232
 *   shared memory: stages, results, mbarriers                 4 x 49,152, 34,816, 64
 *   warps of an SM                                            12
 *
 * Cycles of an SM for a slice, at 2048 16-bit multiply-adds and 128 bytes of shared memory a cycle:
 * products 1024; shared memory: products 640, copies 384. From the L2 cache come 48 bytes a cycle,
 * if nothing waits. Blocks do not share copies (thread block clusters): a public kernel of the same
 * structure, 128 x 192 tiles without clusters, reached 777 TFLOP/s on an H100 for 8192 x 8192 x
 * 8192, with clusters 799, cuBLAS 798 (github.com/pranjalssh/fast.cu, README.md, kernels 6, 7,
 * 0). */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/pipeline.cuh"

enum {
  ROWS = 128,
  COLUMNS = 128 /* of gate, and of up */,
  SLICE = 64 /* terms */,
  STAGES = 4,
  CONSUMERS = 2,
  THREADS = (CONSUMERS + 1) * GROUP,
  PRODUCER_REGISTERS = 40,
  CONSUMER_REGISTERS = 232,
  X_TILE = ROWS * SLICE /* elements */,
  W_TILE = 2 * COLUMNS * SLICE,
  STAGE = X_TILE + W_TILE,
  LINE = COLUMNS + 8 /* elements from row to row of staged results */,
  RESULTS = 64 * LINE /* elements of a warpgroup */,
  STRIP = 8 /* tiles of rows that are computed together, so that weights stay in the L2 cache */
};

static const size_t BYTES =
    2 * (STAGES * STAGE + CONSUMERS * RESULTS) + 2 * STAGES * sizeof (uint64_t);

template <class T> struct gated {
  tensor_map x, w; /* w: terms, columns, gate and up */
  T *gate_up, *y;
  uint64_t m, f;
  unsigned slices, row_tiles, tiles;
};

/* silu (gate) up of one of the two elements in a word, with an exponential and a division to about
 * two units in the last place of fp32: results are 16 bits wide, and nothing hides the arithmetic
 * of an epilogue. */
template <class T>
static __device__ __forceinline__ float
gate_times (uint32_t gates, uint32_t ups, unsigned which)
{
  const float gate = element<T> (gates, which), up = element<T> (ups, which);

#ifdef WEFT_CUDA_EMULATOR
  return swiglu_value (gate, up);
#else
  return __fdividef (gate, 1 + __expf (-gate)) * up;
#endif
}

/* Place of a tile. */
struct gated_tile {
  unsigned row, column;
};

template <class T>
static __device__ __forceinline__ struct gated_tile
tile_at (const gated<T> &g, unsigned i)
{
  unsigned columns = g.tiles / g.row_tiles, first = i / (STRIP * columns) * STRIP;
  unsigned left = g.row_tiles - first, rows = left < STRIP ? left : (unsigned) STRIP,
           in_strip = i - first * columns;

  return { (first + in_strip % rows) * ROWS, in_strip / rows * COLUMNS };
}

template <class T> struct gated_block {
  const gated<T> &g;
  T *stages, *results;
  ring<STAGES> slices;

  __device__ __forceinline__ T *stage (unsigned i) const
  {
    return stages + i % STAGES * STAGE;
  }
};

/* The producer: one thread. */
template <class T>
static __device__ __forceinline__ void
produce (const gated_block<T> &b)
{
  const gated<T> &g = b.g;
  unsigned n = 0;

  map_is_needed (&g.x);
  map_is_needed (&g.w);
  for (unsigned i = blockIdx.x; i < g.tiles; i += gridDim.x) {
    const struct gated_tile t = tile_at (g, i);
    for (unsigned slice = 0; slice < g.slices; slice++, n++) {
      uint64_t *full = b.slices.begin (n, STAGE * sizeof (T));
      T *to = b.stage (n);
      int term = (int) (slice * SLICE), row = (int) t.row, column = (int) t.column;
      load_box (to, &g.x, tensor_place{ { term, row, 0, 0, 0 } }, full);
      for (int up = 0; up < 2; up++)
        load_box (to + X_TILE + up * COLUMNS * SLICE, &g.w,
                  tensor_place{ { term, column, up, 0, 0 } }, full);
    }
  }
}

/* sum (64, 256) = the products of all slices; `n` counts the slices of the block. */
template <class T>
static __device__ __forceinline__ void
multiply (const gated_block<T> &b, int group, float (&sum)[2 * COLUMNS / 8][4], unsigned *n)
{
  for (unsigned slice = 0; slice < b.g.slices; slice++, ++*n) {
    const T *stage = b.stage (*n);
    uint64_t x = tile_from (stage, (unsigned) group * 64), w = tile_from (stage + X_TILE, 0);
    b.slices.wait (*n);
    products_begin ();
    WEFT_UNROLL
    for (int k = 0; k < SLICE / TERMS; k++)
      multiply_tiles<T, 2 * COLUMNS, false, false> (
          sum, x + terms_at<ROWS> (k), w + terms_at<2 * COLUMNS> (k), slice > 0 || k > 0);
    products_commit ();
    products_wait<1> (); /* for the products of the slice before */
    if (slice > 0)
      b.slices.release (*n - 1);
  }
  products_wait<0> ();
  hold (sum);
  b.slices.release (*n - 1);
}

/* A warpgroup's part of a matrix of results: `at` is its first element; rows and columns that exist
 * from there on. */
template <class T> struct gated_part {
  T *at;
  uint64_t row, rows, columns; /* row: elements from row to row */
};

/* Stores the staged results, a row in each thread. */
template <class T>
static __device__ __forceinline__ void
store_results (const gated_part<T> &to, const T *from, int group)
{
  unsigned row = threadIdx.x % GROUP;
  uint64_t width = to.columns < COLUMNS ? to.columns : (uint64_t) COLUMNS;

  copies_are_seen ();
  named_sync (1 + (unsigned) group, GROUP);
  if (row < 64 && row < to.rows)
    store_bytes (to.at + row * to.row, from + row * LINE, (unsigned) (width * sizeof (T)));
  stores_commit ();
}

/* Stages the words that `word` makes of the sums, when the results before them have been read: word
 * (n, half) are the two results of columns 8 n on, in row g or g + 8 of the warp's 16. */
template <class T, class F>
static __device__ __forceinline__ void
stage_results (T *to, int group, const F &word)
{
  unsigned lane = threadIdx.x % 32, row = threadIdx.x % GROUP / 32 * 16 + lane / 4;

  stores_have_read ();
  named_sync (1 + (unsigned) group, GROUP);
  WEFT_UNROLL
  for (int n = 0; n < COLUMNS / 8; n++)
    WEFT_UNROLL
  for (int half = 0; half < 2; half++) {
    T *at = to + (row + half * 8) * LINE + n * 8 + lane % 4 * 2;
    store_for_products ((uint32_t *) at, word (n, half));
  }
}

template <class T>
static __device__ __forceinline__ void
leave (const gated_block<T> &b, int group, const struct gated_tile &t,
       const float (&sum)[2 * COLUMNS / 8][4])
{
  const gated<T> &g = b.g;
  const uint64_t row = t.row + (uint64_t) group * 64, rows = row < g.m ? g.m - row : 0,
                 columns = g.f - t.column;
  T *results = b.results + group * RESULTS;

  WEFT_UNROLL
  for (int up = 0; up < 2; up++) {
    stage_results (results, group, [&] (int n, int half) {
      const float *s = &sum[up * COLUMNS / 8 + n][half * 2];
      return two<T> (s[0], s[1]);
    });
    store_results (
        gated_part<T>{ g.gate_up + row * 2 * g.f + up * g.f + t.column, 2 * g.f, rows, columns },
        results, group);
  }
  stage_results (results, group, [&] (int n, int half) {
    const float *s = &sum[n][half * 2], *v = &sum[COLUMNS / 8 + n][half * 2];
    const uint32_t gate = two<T> (s[0], s[1]), up = two<T> (v[0], v[1]);
    return two<T> (gate_times<T> (gate, up, 0), gate_times<T> (gate, up, 1));
  });
  store_results (gated_part<T>{ g.y + row * g.f + t.column, g.f, rows, columns }, results, group);
}

template <class T>
static __device__ __forceinline__ void
consume (const gated_block<T> &b)
{
  const int group = warpgroup_number ();
  float sum[2 * COLUMNS / 8][4];
  unsigned n = 0;

  for (unsigned i = blockIdx.x; i < b.g.tiles; i += gridDim.x) {
    multiply (b, group, sum, &n);
    leave (b, group, tile_at (b.g, i), sum);
  }
  stores_are_done<0> ();
}

template <class T>
static __device__ __forceinline__ void
make_tiles (const gated<T> &g)
{
  WEFT_TILES_SHARED (T, shared);
  T *results = shared + STAGES * STAGE;
  uint64_t *barriers = (uint64_t *) (results + CONSUMERS * RESULTS);
  const gated_block<T> b = { g, shared, results, { barriers, barriers + STAGES } };

  if (threadIdx.x == 0) {
    b.slices.open (CONSUMERS * 4);
    mbarriers_are_seen ();
  }
  __syncthreads ();
  if (warpgroup_number () == CONSUMERS) {
    registers_give<PRODUCER_REGISTERS> ();
    if (threadIdx.x == CONSUMERS * GROUP)
      produce (b);
  } else {
    registers_take<CONSUMER_REGISTERS> ();
    consume (b);
  }
}

template <class T>
__global__ void
__launch_bounds__ (THREADS, 1) gated_tiles (const __grid_constant__ gated<T> g)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    make_tiles (g);
  else
    no_warpgroups ();
}

/* --------------------------------------------------------------------------- launches */

template <class T>
static const char *
run (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *p)
{
  const uint64_t f = p->n / 2, row = p->k * sizeof (T);
  const tensor_view x = { p->a,
                          { p->k, p->m, 1, 1, 1 },
                          { row, row, row, row },
                          { SLICE, ROWS, 1, 1, 1 } },
                    w = { p->b,
                          { p->k, f, 2, 1, 1 },
                          { row, f * row, f * row, f * row },
                          { SLICE, COLUMNS, 1, 1, 1 } };
  const unsigned slices = blocks_for (p->k, SLICE, ~0u), rows = blocks_for (p->m, ROWS, ~0u),
                 tiles = rows * blocks_for (f, COLUMNS, ~0u);
  gated<T> g = { {}, {}, (T *) p->aux, (T *) p->y, p->m, f, slices, rows, tiles };
  const char *error = allow (gated_tiles<T>, BYTES);

  error = error ? error : make_map (&g.x, x);
  error = error ? error : make_map (&g.w, w);
  if (error)
    return error;
  WEFT_LAUNCH (gated_tiles<T>, blocks_for (tiles, 1, multiprocessors ()), THREADS, BYTES,
               on->stream, g);
  return launched ();
}

/* Rows must begin at multiples of 16 bytes, for TMA and bulk copies. */
int
weft_cuda_gated_takes (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  const uintptr_t at = (uintptr_t) g->a | (uintptr_t) g->b | (uintptr_t) g->y | (uintptr_t) g->aux;

  return on->warpgroups && on->model.activation == WEFT_SWIGLU && !g->bias && !g->a_turned &&
         g->b_turned && g->dtype == g->y_dtype && g->dtype != WEFT_FP32 && g->n % 16 == 0 &&
         g->k % 8 == 0 && at % 16 == 0 && BYTES <= most_shared ();
}

const char *
weft_cuda_gated (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  return g->dtype == WEFT_BF16 ? run<bf16> (on, g) : run<fp16> (on, g);
}
