/* fp8 on the device (kernels/fp8.h): largest magnitudes, quantisation with one scale or block
 * scales, transposed copies, and products with fp8 weights. For a product, the codes, which 16-bit
 * types represent exactly, are expanded into scratch in the type of the other factor, and the scale
 * multiplies the sums. */
#include "kernels/cuda/fp8.cuh"

enum { MOST_BLOCKS = 8192, MOST_PARTS = 1024 };

/* ------------------------------------------------------------------------- amax */

static unsigned
amax_parts (uint64_t n)
{
  return blocks_for (n, THREADS * 16, MOST_PARTS);
}

WEFT_CUDA_SCRATCH (amax, amax_parts (s->dim[0]) * sizeof (float))
WEFT_CUDA_SCRATCH (quantise_delayed, amax_parts (s->dim[0]) * sizeof (float))

__global__ void
largest_of_parts (struct array x, uint64_t n, float *part)
{
  __shared__ float room[32];
  float most = 0;

  for (WEFT_EACH (i, n))
    most = fmaxf (most, fabsf (get (x, i)));
  most = block_most (most, room);
  if (threadIdx.x == 0)
    part[blockIdx.x] = most;
}

__global__ void
largest_of_all (const float *part, unsigned parts, float *amax, bool keeps)
{
  __shared__ float room[32];
  float most = keeps ? *amax : 0;

  for (unsigned i = threadIdx.x; i < parts; i += THREADS)
    most = fmaxf (most, part[i]);
  most = block_most (most, room);
  if (threadIdx.x == 0)
    *amax = most;
}

const char *
weft_cuda_amax (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  unsigned parts = amax_parts (l->dim[0]);
  float *part = (float *) l->scratch;

  WEFT_LAUNCH (largest_of_parts, parts, THREADS, 0, l->stream, array_of (&o[0]), l->dim[0], part);
  WEFT_LAUNCH (largest_of_all, 1, THREADS, 0, l->stream, part, parts, (float *) o[1].data,
               (bool) o[1].accumulate);
  return launched ();
}

__global__ void
amax_update (const float *seen, float *amax, uint64_t n)
{
  for (WEFT_EACH (i, n))
    amax[i] = weft_fp8_next_amax (seen[i], amax[i]);
}

const char *
weft_cuda_amax_update (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (amax_update, blocks_for (l->dim[0], THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               (const float *) l->operand[0].data, (float *) l->operand[1].data, l->dim[0]);
  return launched ();
}

/* --------------------------------------------------------------------- rounding */

__global__ void
quantise (struct array x, const float *amax, struct array y, uint64_t n)
{
  float largest = *amax, scale = weft_fp8_scale_to (largest, weft_fp8_most (y.dtype == WEFT_E5M2));

  for (WEFT_EACH (i, n))
    ((uint8_t *) y.data)[i] = code_of (weft_fp8_scaled (get (x, i), scale, largest), y.dtype);
}

const char *
weft_cuda_quantise (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;

  WEFT_LAUNCH (quantise, blocks_for (l->dim[0], THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&o[0]), (const float *) o[1].data, array_of (&o[2]), l->dim[0]);
  return launched ();
}

/* Quantises and finds the largest magnitude in one pass. */
__global__ void
quantise_and_look (struct array x, const float *amax, struct array y, uint64_t n, float *part)
{
  __shared__ float room[32];
  float largest = *amax, scale = weft_fp8_scale_to (largest, weft_fp8_most (y.dtype == WEFT_E5M2));
  float most = 0;

  for (WEFT_EACH (i, n)) {
    float value = get (x, i);
    most = fmaxf (most, fabsf (value));
    ((uint8_t *) y.data)[i] = code_of (weft_fp8_scaled (value, scale, largest), y.dtype);
  }
  most = block_most (most, room);
  if (threadIdx.x == 0)
    part[blockIdx.x] = most;
}

const char *
weft_cuda_quantise_delayed (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  unsigned parts = amax_parts (l->dim[0]);
  float *part = (float *) l->scratch;

  WEFT_LAUNCH (quantise_and_look, parts, THREADS, 0, l->stream, array_of (&o[0]),
               (const float *) o[1].data, array_of (&o[2]), l->dim[0], part);
  WEFT_LAUNCH (largest_of_all, 1, THREADS, 0, l->stream, part, parts, (float *) o[3].data, true);
  return launched ();
}

/* ---------------------------------------------------------------------- block scales */

/* Quantises one square of BLOCK rows and columns: first the blocks of its rows, then those of its
 * columns, in strips of SIDE columns that are read from the cache the second time. */
template <int BLOCK>
__global__ void
round_square (struct array x, struct matrix m, struct rounded y, struct rounded yt, bool square)
{
  enum { N = BLOCK / SIDE };
  __shared__ float tile[BLOCK][SIDE + 1];
  __shared__ float room[32];
  uint64_t line_of_squares = block_of_many (), lines = weft_fp8_blocks (m.rows, BLOCK);
  uint64_t row = line_of_squares * BLOCK, column = (uint64_t) blockIdx.x * BLOCK;
  unsigned lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
  const struct corner at = { row, column, line_of_squares };
  float value[N], all = -1;

  if (row >= m.rows)
    return;
  if (square)
    all = largest_of_square<BLOCK> (x, m, at, room);
  round_rows<BLOCK> (x, m, at, y, all);
  for (unsigned strip = 0; yt.code && strip < BLOCK; strip += SIDE) {
    for (unsigned line = first; line < BLOCK; line += LINES)
      tile[line][lane] = element (x, m, row + line, column + strip + lane);
    __syncthreads ();
    for (unsigned line = first; line < SIDE; line += LINES) {
      uint64_t c = column + strip + line;
      WEFT_UNROLL
      for (int i = 0; i < N; i++)
        value[i] = tile[lane + i * SIDE][line];
      if (c >= m.columns)
        continue;
      uint8_t scale = round_line<N> (value, yt, c * m.rows + row, m.rows - row, all);
      if (lane == 0 && (!square || c == column))
        put_scale (yt, (square ? blockIdx.x : c) * lines + line_of_squares, scale);
    }
    __syncthreads ();
  }
}

static dim3
squares_of (struct matrix m, unsigned side)
{
  return grid_of_many (blocks_for (m.columns, side, ~0u), blocks_for (m.rows, side, ~0u));
}

const char *
weft_cuda_quantise_blocks (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct matrix m = { l->dim[0], l->dim[1] };
  struct rounded y = rounded_of (&o[1]), yt = rounded_of (&o[3]);
  bool square = l->dim[3] != 0;

  if (l->dim[2] == WEFT_MX_BLOCK)
    WEFT_LAUNCH (round_square<WEFT_MX_BLOCK>, squares_of (m, WEFT_MX_BLOCK), THREADS, 0, l->stream,
                 array_of (&o[0]), m, y, yt, square);
  else if (l->dim[2] == 128)
    WEFT_LAUNCH (round_square<128>, squares_of (m, 128), THREADS, 0, l->stream, array_of (&o[0]),
                 m, y, yt, square);
  else
    return "blocks of other than 32 or 128 elements";
  return launched ();
}

__global__ void
transpose (const uint8_t *x, uint8_t *y, struct matrix m)
{
  __shared__ uint8_t tile[SIDE][SIDE + 4];
  uint64_t row = block_of_many () * SIDE, column = (uint64_t) blockIdx.x * SIDE;
  unsigned lane = threadIdx.x % SIDE;

  for (unsigned line = threadIdx.x / SIDE; line < SIDE; line += LINES)
    if (row + line < m.rows && column + lane < m.columns)
      tile[line][lane] = x[(row + line) * m.columns + column + lane];
  __syncthreads ();
  for (unsigned line = threadIdx.x / SIDE; line < SIDE; line += LINES)
    if (row + lane < m.rows && column + line < m.columns)
      y[(column + line) * m.rows + row + lane] = tile[lane][line];
}

const char *
weft_cuda_transpose (const struct weft_cuda_launch *l)
{
  struct matrix m = { l->dim[0], l->dim[1] };

  WEFT_LAUNCH (transpose, squares_of (m, SIDE), THREADS, 0, l->stream,
               (const uint8_t *) l->operand[0].data, (uint8_t *) l->operand[1].data, m);
  return launched ();
}

/* --------------------------------------------------------------------- products */

enum { X, W, SCALE, B, Y };
enum { DX = 3 }; /* operand number that the input gradient has after dy, wt and scale */
enum { M, N, K };

/* Converts codes to the type of `to`. With block scales, multiplies each by its block's scale. */
__global__ void
expand (const uint8_t *w, const uint8_t *scale, struct array to, uint64_t rows, uint64_t terms)
{
  uint64_t blocks = weft_mx_blocks (terms);

  for (WEFT_EACH (i, rows * terms)) {
    float of = scale ? weft_e8m0_float (scale[i / terms * blocks + i % terms / WEFT_MX_BLOCK]) : 1;
    put (to, i, weft_e4m3_float (w[i]) * of);
  }
}

/* Computes alpha and beta for cuBLASLt: to[0] and to[1]. */
__global__ void
factors (const float *amax, float *to)
{
  to[0] = weft_fp8_unscale (*amax);
  to[1] = 0;
}

enum { FACTORS = 256 /* bytes */ };

static uint64_t
align (uint64_t bytes)
{
  return (bytes + 255) / 256 * 256;
}

/* Scratch bytes that a product with fp8 weights needs after the scratch of the matmul itself. */
static uint64_t
expanded_bytes (uint64_t weights, uint32_t dtype)
{
  return FACTORS + align (weights * (dtype == WEFT_FP32 ? 4 : 2));
}

WEFT_CUDA_SCRATCH (matmul_fp8,
                   WEFT_BLAS_SCRATCH + expanded_bytes (s->dim[1] * s->dim[2], s->dtype))
WEFT_CUDA_SCRATCH (matmul_dgrad_fp8,
                   WEFT_BLAS_SCRATCH + expanded_bytes (s->dim[1] * s->dim[2], s->dtype))

/* Expands the weights to 16 bits or fp32 and computes the scale that multiplies the sums. Both are
 * written at the end of the scratch. */
static const char *
expand_weights (struct weft_cuda_launch *l, struct weft_cuda_gemm *g)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t weights = g->n * g->k;
  bool blocks = o[SCALE].dtype == WEFT_E8M0;

  uint8_t *own = weft_cuda_take (l, expanded_bytes (weights, o[X].dtype));
  struct array wide = { own + FACTORS, o[X].dtype };
  g->b = wide.data;
  g->scale = blocks ? NULL : (const float *) own;
  WEFT_LAUNCH (expand, blocks_for (weights, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               (const uint8_t *) o[W].data, blocks ? (const uint8_t *) o[SCALE].data : NULL, wide,
               g->n, g->k);
  if (!blocks)
    WEFT_LAUNCH (factors, 1, 1, 0, l->stream, (const float *) o[SCALE].data, (float *) own);
  return launched ();
}

/* y (m, columns) = x (m, terms) w (columns, terms)^T */
static struct weft_cuda_gemm
gemm_of (const struct weft_cuda_launch *l, uint64_t columns, uint64_t terms,
         const struct weft_cuda_operand *y)
{
  struct weft_cuda_gemm g = {};

  g.m = l->dim[M];
  g.n = columns;
  g.k = terms;
  g.a = l->operand[X].data;
  g.y = y->data;
  g.b_turned = 1;
  g.dtype = l->operand[X].dtype;
  g.y_dtype = y->dtype;
  return g;
}

const char *
weft_cuda_matmul_fp8 (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (l, l->dim[N], l->dim[K], &o[Y]);
  const char *error = expand_weights (&on, &g);

  error = error ? error : weft_cuda_convert_bias (&on, &o[B], &o[Y], &g.bias);
  return error ? error : weft_cuda_multiply (&on, &g);
}

const char *
weft_cuda_matmul_dgrad_fp8 (const struct weft_cuda_launch *l)
{
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (l, l->dim[K], l->dim[N], &l->operand[DX]);
  const char *error = expand_weights (&on, &g);

  return error ? error : weft_cuda_multiply (&on, &g);
}
