#include "tests/doubles/warpgroup_trial.h"
#include "kernels/cuda/pipeline.cuh"
#include "tests/doubles/emulated_cuda.h"

enum { ROWS = TRIAL_ROWS, ALL_TERMS = TRIAL_TERMS, THREADS = 2 * GROUP };

/* Byte offset of element (row, column) of a tile, in the 128-byte swizzle of the PTX manual. A tile
 * consists of panels with rows of 128 bytes. The 16-byte unit u of a row is stored at unit u XOR
 * (row modulo 8). */
static unsigned
place (unsigned rows, unsigned row, unsigned column)
{
  unsigned unit = column % 64 / 8;

  return column / 64 * rows * 128 + row * 128 + (unit ^ row % 8) * 16 + column % 8 * 2;
}

/* Writes a matrix to `to` in the layout of shared memory. `turned`: writes the transposed
 * matrix. */
template <class T>
static void
lay_out (uint8_t *to, const float *matrix, unsigned rows, unsigned columns, bool turned)
{
  for (unsigned row = 0; row < rows; row++)
    for (unsigned column = 0; column < columns; column++) {
      unsigned at = turned ? place (columns, column, row) : place (rows, row, column);
      T x;
      set (&x, matrix[row * columns + column]);
      memcpy (to + at, &x, sizeof x);
    }
}

struct memory {
  alignas (16) uint8_t a[ROWS * ALL_TERMS * 2], b[ALL_TERMS * TRIAL_MOST_COLUMNS * 2];
};

static void
copy_tile (uint8_t *to, const uint8_t *from, unsigned bytes)
{
  for (unsigned i = threadIdx.x * 16; i < bytes; i += THREADS * 16)
    WEFT_COPY (to + i, from + i);
  WEFT_COPY_COMMIT ();
}

/* Loads the fragments (registers) of the left matrix a. With g = lane / 4 and t = lane % 4, words 0
 * to 3 of a lane contain terms 2t and 2t + 1 (words 2 and 3: plus 8) of rows g, g + 8, g and g +
 * 8. */
template <class T>
static void
load_fragments (uint32_t (&words)[ALL_TERMS / TERMS][4], const float *a)
{
  unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;

  for (unsigned k = 0; k < ALL_TERMS / TERMS; k++)
    for (unsigned w = 0; w < 4; w++) {
      const float *at = a + (row + w % 2 * 8) * ALL_TERMS + k * TERMS + lane % 4 * 2 + w / 2 * 8;
      words[k][w] = two<T> (at[0], at[1]);
    }
}

/* Stores the accumulators of a lane to c. With g = lane / 4, a lane holds two of every 8 columns,
 * in rows g and g + 8 of the warp's 16 rows. */
template <int N>
static void
store_sums (float *c, const float (&sum)[N / 8][4])
{
  unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;

  for (unsigned n = 0; n < N / 8; n++)
    for (unsigned e = 0; e < 4; e++)
      c[(row + e / 2 * 8) * N + n * 8 + lane % 4 * 2 + e % 2] = sum[n][e];
}

struct call {
  struct warpgroup_trial trial;
  const struct memory *memory;
  const float *a;
  float *c;
};

/* Returns the descriptor of the left matrix for the calling warpgroup, which reads 64 rows of the
 * tile (a panel of the tile, if the tile is transposed). */
static uint64_t
left_of (const uint8_t *a, const struct warpgroup_trial &trial)
{
  unsigned group = threadIdx.x / GROUP;
  unsigned row =
      group * 64 + (trial.fault == WARPGROUP_WARPS_DIFFER ? threadIdx.x / 32 % 4 * 8 : 0);

  return trial.a_turned ? tile_turned<ALL_TERMS> (a + group * ALL_TERMS * ROW) : tile_from (a, row);
}

template <class T, int N, bool TURNED_A, bool TURNED_B>
static void
issue (const struct warpgroup_trial &trial, float (&sum)[N / 8][4],
       const uint32_t (&fragments)[ALL_TERMS / TERMS][4], const uint8_t *a, const uint8_t *b)
{
  uint64_t left = left_of (a, trial);
  uint64_t right = TURNED_B ? tile_turned<ALL_TERMS> (b) : tile_from (b, 0);

  for (int k = 0; k < ALL_TERMS / TERMS; k++) {
    uint64_t b_at = right + (TURNED_B ? turned_terms_at (k) : terms_at<N> (k));
    uint64_t a_at = left + (TURNED_A ? turned_terms_at (k) : terms_at<ROWS> (k));
    if (trial.a_in_registers)
      multiply_fragments<T, N, TURNED_B> (sum, fragments[k], b_at);
    else
      multiply_tiles<T, N, TURNED_A, TURNED_B> (sum, a_at, b_at, k > 0);
  }
  products_commit ();
}

template <class T, int N, bool TURNED_A, bool TURNED_B>
static void
kernel (const struct call &call)
{
  enum warpgroup_fault fault = call.trial.fault;
  uint8_t *a = emulated_shared, *b = a + sizeof call.memory->a;
  uint32_t fragments[ALL_TERMS / TERMS][4];
  float sum[N / 8][4] = {};

  load_fragments<T> (fragments, call.a);
  copy_tile (a, call.memory->a, sizeof call.memory->a);
  copy_tile (b, call.memory->b, ALL_TERMS * N * 2);
  WEFT_COPY_WAIT (0);
  if (fault != WARPGROUP_COPY_UNSEEN)
    copies_are_seen ();
  __syncthreads ();
  if (fault != WARPGROUP_NO_FENCE)
    products_begin ();
  issue<T, N, TURNED_A, TURNED_B> (call.trial, sum, fragments, a, b);
  if (fault == WARPGROUP_TILE_COPIED)
    copy_tile (b, call.memory->b, ALL_TERMS * N * 2);
  if (fault == WARPGROUP_SUM_WRITTEN)
    sum[0][1] = 1;
  if (fault == WARPGROUP_FRAGMENT_WRITTEN)
    fragments[1][2] ^= 1;
  if (fault == WARPGROUP_READ_EARLY || fault == WARPGROUP_NEVER_WAITED)
    store_sums<N> (call.c, sum);
  if (fault != WARPGROUP_NEVER_WAITED)
    products_wait<0> ();
  if (fault != WARPGROUP_READ_EARLY && fault != WARPGROUP_NEVER_WAITED)
    store_sums<N> (call.c, sum);
}

template <class T, int N, bool TURNED_A>
static void
by_right (const struct call &call)
{
  if (call.trial.b_turned)
    kernel<T, N, TURNED_A, true> (call);
  else
    kernel<T, N, TURNED_A, false> (call);
}

template <class T, int N>
static void
by_left (const struct call &call)
{
  if (call.trial.a_turned)
    by_right<T, N, true> (call);
  else
    by_right<T, N, false> (call);
}

template <class T>
static void
run (struct call &call, struct memory *memory, const float *b)
{
  const struct warpgroup_trial &trial = call.trial;

  lay_out<T> (memory->a, call.a, ROWS, ALL_TERMS, trial.a_turned);
  /* The right tile has the terms as rows if b_turned, and the columns of b as rows otherwise. */
  lay_out<T> (memory->b, b, ALL_TERMS, trial.columns, !trial.b_turned);
  emulated_allow (NULL, sizeof *memory);
  emulated_run (NULL, dim3 (1), dim3 (THREADS), sizeof *memory, [&] {
    if (trial.columns == 64)
      by_left<T, 64> (call);
    else
      by_left<T, 128> (call);
  });
}

void
warpgroup_try (const struct warpgroup_trial *trial, const float *a, const float *b, float *c)
{
  static struct memory memory;
  struct call call = { *trial, &memory, a, c };

  if (trial->fp16)
    run<fp16> (call, &memory, b);
  else
    run<bf16> (call, &memory, b);
}

/* ------------------------------------------------------------------------- descriptors */

template <int N>
static uint64_t
describe (const struct warpgroup_view *v)
{
  const bf16 *tile = (const bf16 *) (emulated_shared + v->tile);

  return v->turned ? tile_turned<N> (tile + v->outer / PANEL * N * PANEL) +
                         turned_terms_at (v->term / TERMS)
                   : tile_from (tile, v->outer) + terms_at<N> (v->term / TERMS);
}

template <int N>
static unsigned
place_in (unsigned row, unsigned column)
{
  bf16 *tile = (bf16 *) emulated_shared;

  return (unsigned) (tile_place<N> (tile, row, column / 8) + column % 8 - tile) * sizeof *tile;
}

uint64_t
warpgroup_describe (const struct warpgroup_view *v)
{
  return v->rows == 64 ? describe<64> (v) : v->rows == 128 ? describe<128> (v) : describe<256> (v);
}

unsigned
warpgroup_place (unsigned rows, unsigned row, unsigned column)
{
  return rows == 64    ? place_in<64> (row, column)
         : rows == 128 ? place_in<128> (row, column)
                       : place_in<256> (row, column);
}

unsigned
warpgroup_read (uint64_t bits, bool turned, unsigned outer, unsigned term)
{
  return (unsigned) emulated_matrix_place (bits, turned, outer, term);
}

void
warpgroup_copy (const struct warpgroup_matrix *m, int row, int column, uint16_t *tile)
{
  const uint64_t step = m->columns * sizeof *m->at, all = step * m->rows;
  const struct tensor_view v = { m->at,
                                 { m->columns, m->rows, 1, 1, 1 },
                                 { step, all, all, all },
                                 { WARPGROUP_BOX, WARPGROUP_BOX, 1, 1, 1 } };
  const unsigned bytes = WARPGROUP_BOX * WARPGROUP_BOX * sizeof *tile;
  tensor_map map;

  if (make_map (&map, v))
    abort ();
  emulated_run (NULL, dim3 (1), dim3 (1), bytes + sizeof (uint64_t), [&] {
    uint64_t *full = (uint64_t *) (emulated_shared + bytes);
    mbarrier_init (full, 1);
    mbarriers_are_seen ();
    mbarrier_expect (full, bytes);
    load_box (emulated_shared, &map, tensor_place{ { column, row } }, full);
    mbarrier_wait (full, 0);
    memcpy (tile, emulated_shared, bytes);
  });
}
