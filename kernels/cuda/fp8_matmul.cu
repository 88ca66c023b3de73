/* fp8 x fp8 products on fp8 tensor cores through cuBLASLt. The terms of both factors are
 * contiguous; the scales are rearranged into the library's layout (fp8_scales.h) at the end of
 * the scratch. Accumulation is full precision except in forward with per-tensor scales, as in
 * NVIDIA Transformer Engine (module/base.py, _2X_ACC_FPROP). With 128-element scales the library
 * has no full-precision kernels (Transformer Engine, cpp_extensions/gemm.py; PyTorch,
 * get_scale_mode). */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8_scales.h"

enum { THREADS = 256, MOST_BLOCKS = 1024, ALIGN = 256 /* bytes */ };
enum { A, A_SCALE, W, W_SCALE, B, Y, DX = 4, DW = 4, DB };
enum { M, N, K, BLOCK = 5, WGRAD_BLOCK = 4 };

static uint64_t
bytes_of (const struct weft_fp8_layout *l)
{
  uint64_t n = weft_fp8_layout_count (l) * (l->block == WEFT_MX_BLOCK ? 1 : sizeof (float));
  return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Upper bound of the scratch bytes: those of the matmul itself, of the scales of both factors, and
 * of a bias that is converted to another type. Scales of squares need less. */
static uint64_t
product_bytes (uint64_t a_rows, uint64_t b_rows, uint64_t terms, uint64_t block)
{
  struct weft_fp8_layout a = weft_fp8_layout_of (a_rows, terms, block, 0);
  struct weft_fp8_layout b = weft_fp8_layout_of (b_rows, terms, block, 0);

  return WEFT_BLAS_SCRATCH + bytes_of (&a) + bytes_of (&b) +
         (b_rows * sizeof (float) + ALIGN - 1) / ALIGN * ALIGN;
}

WEFT_CUDA_SCRATCH (fp8_matmul, product_bytes (s->dim[M], s->dim[N], s->dim[K], s->dim[BLOCK]))
WEFT_CUDA_SCRATCH (fp8_matmul_dgrad, product_bytes (s->dim[M], s->dim[K], s->dim[N], s->dim[BLOCK]))
WEFT_CUDA_SCRATCH (fp8_matmul_wgrad,
                   product_bytes (s->dim[N], s->dim[K], s->dim[M], s->dim[WGRAD_BLOCK]))

/* Rearranges scales into the library's layout; padding gets a scale of 0. */
template <class T>
__global__ void
lay_out (const T *from, T *to, struct weft_fp8_layout l, uint64_t rows, uint64_t blocks)
{
  for (WEFT_EACH (i, rows * blocks)) {
    uint64_t row = i / blocks, block = i % blocks;
    bool is = row < l.rows && block < l.blocks;
    to[weft_fp8_layout_place (&l, row, block)] = is ? from[row * l.blocks + block] : T (0);
  }
}

/* The factor by which the codes of a tensor are multiplied. */
__global__ void
unscale (const float *amax, float *to, uint32_t dtype)
{
  *to = 1 / weft_fp8_scale_to (*amax, weft_fp8_most (dtype == WEFT_E5M2));
}

/* Writes the scales of a factor, in the library's layout, to the end of the scratch. Returns their
 * address. */
static const void *
take_scales (struct weft_cuda_launch *on, const struct weft_cuda_operand *factor,
             const struct weft_fp8_layout *l)
{
  bool bytes = l->block == WEFT_MX_BLOCK;
  uint64_t rows = bytes       ? weft_fp8_up (l->rows, 128)
                  : l->square ? l->rows
                              : weft_fp8_up (l->rows, 4);
  uint64_t blocks = bytes || l->square ? weft_fp8_up (l->blocks, 4) : l->blocks;
  unsigned grid = blocks_for (rows * blocks, THREADS, MOST_BLOCKS);

  uint8_t *to = weft_cuda_take (on, bytes_of (l));
  if (l->block == 0)
    WEFT_LAUNCH (unscale, 1, 1, 0, on->stream, (const float *) factor[1].data, (float *) to,
                 factor->dtype);
  else if (bytes)
    WEFT_LAUNCH (lay_out<uint8_t>, grid, THREADS, 0, on->stream, (const uint8_t *) factor[1].data,
                 to, *l, rows, blocks);
  else
    WEFT_LAUNCH (lay_out<float>, grid, THREADS, 0, on->stream, (const float *) factor[1].data,
                 (float *) to, *l, rows, blocks);
  return to;
}

/* y (rows[0], rows[1]) = a (rows[0], terms) b (rows[1], terms)^T */
static struct weft_cuda_gemm
gemm_of (struct weft_cuda_launch *on, const uint64_t rows[2], uint64_t terms, uint64_t block,
         bool square)
{
  const struct weft_cuda_operand *o = on->operand;
  struct weft_fp8_layout a = weft_fp8_layout_of (rows[0], terms, block, 0),
                         b = weft_fp8_layout_of (rows[1], terms, block, square);
  struct weft_cuda_gemm g = {};

  g.m = rows[0];
  g.n = rows[1];
  g.k = terms;
  g.a = o[A].data;
  g.b = o[W].data;
  g.b_turned = 1;
  g.dtype = o[A].dtype;
  g.b_dtype = o[W].dtype;
  g.block = (uint8_t) block;
  g.square = square;
  g.a_scale = take_scales (on, &o[A], &a);
  g.b_scale = take_scales (on, &o[W], &b);
  return g;
}

static void
set_result (struct weft_cuda_gemm *g, const struct weft_cuda_operand *y)
{
  g->y = y->data;
  g->y_dtype = y->dtype;
  g->accumulate = y->accumulate;
}

const char *
weft_cuda_fp8_matmul (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const uint64_t rows[] = { l->dim[M], l->dim[N] };
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g =
      gemm_of (&on, rows, l->dim[K], l->dim[BLOCK], l->dim[BLOCK] > WEFT_MX_BLOCK);

  set_result (&g, &o[Y]);
  g.fast = l->dim[BLOCK] == 0;
  const char *error = weft_cuda_convert_bias (&on, &o[B], &o[Y], &g.bias);
  error = error ? error : launched ();
  return error ? error : weft_cuda_multiply (&on, &g);
}

const char *
weft_cuda_fp8_matmul_dgrad (const struct weft_cuda_launch *l)
{
  const uint64_t rows[] = { l->dim[M], l->dim[K] };
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g =
      gemm_of (&on, rows, l->dim[N], l->dim[BLOCK], l->dim[BLOCK] > WEFT_MX_BLOCK);

  set_result (&g, &l->operand[DX]);
  const char *error = launched ();
  return error ? error : weft_cuda_multiply (&on, &g);
}

/* Rows of fp8 codes and their scales, which the bias gradient sums. */
struct row_codes {
  const uint8_t *code;
  const void *scale;
  uint64_t terms, block;
  uint32_t dtype;
};

static __device__ __forceinline__ float
value_of (struct row_codes r, uint64_t row, uint64_t t)
{
  uint8_t code = r.code[row * r.terms + t];
  float value = r.dtype == WEFT_E5M2 ? weft_e5m2_float (code) : weft_e4m3_float (code);

  if (r.block == 0)
    return value;
  uint64_t at = row * weft_fp8_blocks (r.terms, r.block) + t / r.block;
  return value * (r.block == WEFT_MX_BLOCK ? weft_e8m0_float (((const uint8_t *) r.scale)[at])
                                           : ((const float *) r.scale)[at]);
}

__global__ void
sum_rows (struct row_codes r, struct array db, bool keeps)
{
  __shared__ float room[32];
  uint64_t row = blockIdx.x;
  float sum = 0, factor = 1;

  for (uint64_t t = threadIdx.x; t < r.terms; t += THREADS)
    sum += value_of (r, row, t);
  sum = block_sum (sum, room);
  if (r.block == 0)
    factor = 1 / weft_fp8_scale_to (*(const float *) r.scale, weft_fp8_most (r.dtype == WEFT_E5M2));
  if (threadIdx.x == 0)
    put (db, row, sum * factor + (keeps ? get (db, row) : 0));
}

const char *
weft_cuda_fp8_matmul_wgrad (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const uint64_t rows[] = { l->dim[N], l->dim[K] };
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (&on, rows, l->dim[M], l->dim[WGRAD_BLOCK], false);

  set_result (&g, &o[DW]);
  const char *error = launched ();
  error = error ? error : weft_cuda_multiply (&on, &g);
  if (error || !o[DB].data)
    return error;
  struct row_codes r = { (const uint8_t *) o[A].data, o[A_SCALE].data, l->dim[M],
                         l->dim[WGRAD_BLOCK], o[A].dtype };
  WEFT_LAUNCH (sum_rows, (unsigned) rows[0], THREADS, 0, l->stream, r, array_of (&o[DB]),
               (bool) o[DB].accumulate);
  return launched ();
}
