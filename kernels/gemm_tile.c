/* The innermost loops of a matrix product, one version per vector unit. All versions compute the
 * same chains of fused multiply-adds. */
#include "kernels/gemm.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static gboolean
always (void)
{
  return TRUE;
}

#define PLAIN_ROWS 4
#define PLAIN_COLUMNS 8

static void
multiply_plain (const struct weft_block *block, const float *a, const float *b, float *c)
{
  float sum[PLAIN_ROWS][PLAIN_COLUMNS] = { { 0 } };

  for (unsigned i = 0; i < PLAIN_ROWS && !block->fresh; i++)
    for (unsigned j = 0; j < PLAIN_COLUMNS; j++)
      sum[i][j] = c[i * block->c_row + j];
  for (uint64_t t = 0; t < block->terms; t++, a += block->a_step, b += block->b_step)
    for (unsigned i = 0; i < PLAIN_ROWS; i++)
      for (unsigned j = 0; j < PLAIN_COLUMNS; j++)
        sum[i][j] = fmaf (a[i], b[j], sum[i][j]);
  for (unsigned i = 0; i < PLAIN_ROWS; i++)
    for (unsigned j = 0; j < PLAIN_COLUMNS; j++)
      c[i * block->c_row + j] = sum[i][j];
}

#ifdef __x86_64__
#include <immintrin.h>

static gboolean
has_avx512 (void)
{
  return __builtin_cpu_supports ("avx512f") != 0;
}

static gboolean
has_avx2 (void)
{
  return __builtin_cpu_supports ("avx2") && __builtin_cpu_supports ("fma");
}

/* The sums of n_rows rows times two vectors stay in registers. */
#define MULTIPLY(name, features, vector, lanes, n_rows, zero, load, store, broadcast, fma)         \
  __attribute__ ((target (features))) static void name (const struct weft_block *block,            \
                                                        const float *a, const float *b, float *c)  \
  {                                                                                                \
    vector sum[n_rows][2];                                                                         \
    uint64_t a_step = block->a_step, b_step = block->b_step, c_row = block->c_row;                 \
    _Pragma ("GCC unroll 16") for (unsigned i = 0; i < n_rows; i++)                                \
    {                                                                                              \
      sum[i][0] = block->fresh ? zero () : load (c + i * c_row);                                   \
      sum[i][1] = block->fresh ? zero () : load (c + i * c_row + lanes);                           \
    }                                                                                              \
    for (uint64_t t = block->terms; t > 0; t--, a += a_step, b += b_step) {                        \
      vector left = load (b), right = load (b + lanes);                                            \
      _Pragma ("GCC unroll 16") for (unsigned i = 0; i < n_rows; i++)                              \
      {                                                                                            \
        vector factor = broadcast (a[i]);                                                          \
        sum[i][0] = fma (factor, left, sum[i][0]);                                                 \
        sum[i][1] = fma (factor, right, sum[i][1]);                                                \
      }                                                                                            \
    }                                                                                              \
    _Pragma ("GCC unroll 16") for (unsigned i = 0; i < n_rows; i++)                                \
    {                                                                                              \
      store (c + i * c_row, sum[i][0]);                                                            \
      store (c + i * c_row + lanes, sum[i][1]);                                                    \
    }                                                                                              \
  }

MULTIPLY (multiply_avx512, "avx512f", __m512, 16, 8, _mm512_setzero_ps, _mm512_loadu_ps,
          _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps)
MULTIPLY (multiply_avx2, "avx2,fma", __m256, 8, 4, _mm256_setzero_ps, _mm256_loadu_ps,
          _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps)
#endif

const struct weft_tile weft_tiles[] = {
#ifdef __x86_64__
  { "avx512f", 8, 32, has_avx512, multiply_avx512 },
  { "avx2", 4, 16, has_avx2, multiply_avx2 },
#endif
  { "plain", PLAIN_ROWS, PLAIN_COLUMNS, always, multiply_plain },
};
const uint32_t weft_n_tiles = G_N_ELEMENTS (weft_tiles);

const struct weft_tile *
weft_tile_best (void)
{
  const struct weft_tile *tile = weft_tiles;

  while (!tile->supported ())
    tile++;
  return tile;
}

void
weft_block_multiply (const struct weft_tile *tile, const struct weft_block *block, const float *a,
                     const float *b, float *c)
{
  for (uint64_t j = 0; j < block->columns; j += tile->columns, b += block->b_next) {
    const float *panel = a;
    for (uint64_t i = 0; i < block->rows; i += tile->rows, panel += block->a_next)
      tile->multiply (block, panel, b, c + i * block->c_row + j);
  }
}

/* The scratch of a thread: allocated by its first kernel that needs scratch, freed at the thread's
 * end. A thread-local array would be zeroed at every thread start. */
static pthread_key_t scratch;
static pthread_once_t scratch_made = PTHREAD_ONCE_INIT;

static void
make_scratch (void)
{
  if (pthread_key_create (&scratch, free) != 0)
    g_error ("cannot create the thread-local key for scratch");
}

float *
weft_scratch (void)
{
  static _Thread_local float *room;

  if (room)
    return room;
  pthread_once (&scratch_made, make_scratch);
  room = aligned_alloc (64, WEFT_SCRATCH_FLOATS * sizeof *room);
  if (!room || pthread_setspecific (scratch, room) != 0)
    g_error ("cannot allocate the scratch of a thread");
  return room;
}
