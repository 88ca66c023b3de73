/* Grouped GEMM by wgmma, two warpgroups per block: tiles of 128 rows (64 per warpgroup) and 128 or
 * 256 columns.
 *
 * Terms come in slices of 64, copied two ahead. Products of a slice continue while those of the
 * next are issued. There is one barrier per slice, after the products of the slice before last have
 * finished: the next copy overwrites that slice. */
#include "kernels/cuda/moe_gemm.cuh"
#include "kernels/cuda/warpgroup.cuh"

enum { THREADS = 2 * GROUP, ROWS = 128, SLICE = 64 /* terms */, STAGES = 4 };

/* A matrix in memory: `lines` lines of `width` contiguous elements, one after the other. */
template <class T> struct lines_of {
  const T *at;
  uint64_t lines, width;
};

/* Copies LINES lines of WIDTH elements into a tile. Elements outside the matrix become 0. */
template <int LINES, int WIDTH, class T>
static __device__ __forceinline__ void
fetch (T *tile, const lines_of<T> &from, uint64_t line, uint64_t column)
{
  const unsigned each = WIDTH / 8, together = THREADS / each;
  unsigned l = threadIdx.x / each, c = threadIdx.x % each;
  const T *at = from.at + (line + l) * from.width + column + c * 8;
  int64_t left = column + c * 8 < from.width ? (int64_t) (from.lines - line - l) : 0;
  T *to = tile_place<LINES> (tile, l, c);

  static_assert (together % 8 == 0, "places of a column are alike in all lines of a thread");
  WEFT_UNROLL
  for (unsigned i = 0; i < LINES; i += together) {
    WEFT_COPY_OR_ZERO (to + i * PANEL, at, (int64_t) i < left);
    at += together * from.width;
  }
}

/* Copies a slice of a factor with SIZE rows (columns of b). Lines are rows, or, if TURNED,
 * terms. */
template <int SIZE, bool TURNED, class T>
static __device__ __forceinline__ void
fetch_factor (T *tile, const lines_of<T> &from, uint64_t row, uint64_t term)
{
  if (TURNED)
    fetch<SLICE, SIZE> (tile, from, term, row);
  else
    fetch<SIZE, SLICE> (tile, from, row, term);
}

/* Both factors are stored as lines (struct lines_of). A term is one index of the inner dimension of
 * the product. Forward: a line has all terms of a row, of x or of the weights. dgrad: a line of dy
 * has all terms of a row, a line of the weights has one term of all columns. wgrad: a line has one
 * term of all rows (dy) or of all columns (x). */
template <enum way WAY, class T, int N> struct tile_of_warpgroups {
  static const bool A_TURNED = WAY == WGRAD, B_TURNED = WAY != FORWARD;
  lines_of<T> a, b;
  uint64_t row, column;
  int slices;
  T *stages;
  float sum[N / 8][4];

  __device__ __forceinline__ T *stage (int i) const
  {
    return stages + i % STAGES * (ROWS + N) * SLICE;
  }

  __device__ __forceinline__ void copy (int i) const
  {
    uint64_t term = (uint64_t) i * SLICE;

    if (i < slices) {
      fetch_factor<ROWS, A_TURNED> (stage (i), a, row, term);
      fetch_factor<N, B_TURNED> (stage (i) + ROWS * SLICE, b, column, term);
    }
    WEFT_COPY_COMMIT ();
  }

  /* Issues sum += the products of slice i, for this warpgroup's rows. */
  __device__ __forceinline__ void begin (int i)
  {
    const T *left = stage (i), *right = left + ROWS * SLICE;
    unsigned group = threadIdx.x / GROUP;
    uint64_t x =
        A_TURNED ? tile_turned<SLICE> (left + group * SLICE * PANEL) : tile_from (left, group * 64);
    uint64_t y = B_TURNED ? tile_turned<SLICE> (right) : tile_from (right, 0);

    WEFT_UNROLL
    for (int k = 0; k < SLICE / TERMS; k++)
      multiply_tiles<T, N, A_TURNED, B_TURNED> (
          sum, x + (A_TURNED ? turned_terms_at (k) : terms_at<ROWS> (k)),
          y + (B_TURNED ? turned_terms_at (k) : terms_at<N> (k)), true);
    products_commit ();
  }

  __device__ __forceinline__ void multiply (int i)
  {
    tiles_arrive<1> ();
    products_begin ();
    begin (i);
    copy (i + 2);
  }
};

template <class T, int N>
static __device__ __forceinline__ void
leave_tile (const struct grouped &g, const struct share &s, const float (&sum)[N / 8][4])
{
  unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  leave_shared<T> leave = { g, s };

  WEFT_UNROLL
  for (int n = 0; n < N / 8; n++)
    WEFT_UNROLL
  for (int half = 0; half < 2; half++)
    leave (row + half * 8, n * 8 + lane % 4 * 2, sum[n][half * 2], sum[n][half * 2 + 1]);
}

template <enum way WAY, class T, int N>
static __device__ __forceinline__ void
make_tile (const struct grouped &g)
{
  const bool A_TURNED = WAY == WGRAD, B_TURNED = WAY != FORWARD;
  WEFT_TILES_SHARED (T, shared);
  struct share s;

  if (!share_of<WAY, ROWS, N> (g, &s))
    return;
  tile_of_warpgroups<WAY, T, N> t = {
    { (const T *) g.a.data + s.a, A_TURNED ? s.terms : s.rows, A_TURNED ? s.rows : s.terms },
    { (const T *) g.b.data + s.b, B_TURNED ? s.terms : s.columns, B_TURNED ? s.columns : s.terms },
    s.row,
    s.column,
    (int) ((s.terms + SLICE - 1) / SLICE),
    shared
  };

  hold (t.sum);
  t.copy (0);
  t.copy (1);
  if (t.slices > 0) {
    t.multiply (0);
    for (int i = 1; i < t.slices; i++) {
      t.multiply (i);
      products_wait<1> (); /* waits for the products of the previous slice */
    }
    products_wait<0> ();
    hold (t.sum);
  }
  leave_tile<T, N> (g, s, t.sum);
}

template <enum way WAY, class T, int N>
__global__ void
__launch_bounds__ (THREADS, 1) warpgroup_tiles (struct grouped g)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    make_tile<WAY, T, N> (g);
  else
    no_warpgroups ();
}

/* ------------------------------------------------------------------------------ launches */

template <enum way WAY, class T, int N>
static const char *
run_columns (const struct weft_cuda_launch *l, const struct grouped &g, uint64_t room)
{
  const size_t bytes = sizeof (T) * STAGES * (ROWS + N) * SLICE;
  const char *error = allow (warpgroup_tiles<WAY, T, N>, bytes);

  if (error)
    return error;
  WEFT_LAUNCH ((warpgroup_tiles<WAY, T, N>), (grid_of<WAY, ROWS, N> (g, room)), THREADS, bytes,
               l->stream, g);
  return launched ();
}

template <enum way WAY, class T>
static const char *
run (const struct weft_cuda_launch *l, const struct grouped &g, uint64_t room)
{
  return g.columns <= 128 ? run_columns<WAY, T, 128> (l, g, room)
                          : run_columns<WAY, T, 256> (l, g, room);
}

template <class T>
static const char *
run_way (const struct weft_cuda_launch *l, const struct grouped &g, enum way way, uint64_t room)
{
  return way == FORWARD ? run<FORWARD, T> (l, g, room)
         : way == DGRAD ? run<DGRAD, T> (l, g, room)
                        : run<WGRAD, T> (l, g, room);
}

const char *
weft_cuda_moe_warpgroups (const struct weft_cuda_launch *l, const struct grouped *g, enum way way,
                          uint64_t room)
{
  return g->a.dtype == WEFT_BF16 ? run_way<bf16> (l, *g, way, room)
                                 : run_way<fp16> (l, *g, way, room);
}
