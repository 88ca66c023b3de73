/* fp8 kernels of a device against those of the CPU: quantisation, which must give the same codes
 * (fp8 values); matmuls with fp8 weights; matmuls of two fp8 factors. */
#include "kernels/cuda/fp8_scales.h"
#include "kernels/float.h"
#include "kernels/moe_scales.h"
#include "tests/made/cuda_case.h"

static void
run (const struct cuda_case_device *d, struct weft_kernel *k, double tolerance)
{
  cuda_case_alike (d, k, tolerance);
  cuda_case_free (k);
}

static const union weft_model no_model;

static struct weft_kernel
call_of (enum weft_op_kind kind, enum weft_dtype dtype, const uint64_t dim[3])
{
  struct weft_kernel k = { .kind = kind,
                           .shape = { .dtype = (uint8_t) dtype },
                           .model = &no_model };

  memcpy (k.shape.dim, dim, 3 * sizeof *dim);
  return k;
}

/* Returns random floats, of which some are 0 and some underflow to 0 in fp8. */
static struct weft_operand
spread_floats (GRand *rand, uint64_t n, enum weft_dtype dtype)
{
  struct weft_operand o = cuda_case_floats (rand, n, dtype);

  for (uint64_t i = 0; i < n; i += 3) {
    float value = i % 2 ? 0 : (float) g_rand_double_range (rand, -1e-3, 1e-3);
    weft_store (o.data, dtype, i, 1, &value);
  }
  return o;
}

/* Returns random fp8 values without NaN. */
static struct weft_operand
codes (GRand *rand, uint64_t n)
{
  struct weft_operand o = cuda_case_floats (rand, n, WEFT_FP8);

  for (uint64_t i = 0; i < n; i++)
    ((uint8_t *) o.data)[i] = (uint8_t) (g_rand_int_range (rand, 0, 0x7f) | i % 2 << 7);
  return o;
}

/* Returns random values of a given fp8 type. */
static struct weft_operand
codes_of (GRand *rand, uint64_t n, enum weft_dtype dtype)
{
  struct weft_operand o = codes (rand, n);

  o.dtype = (uint8_t) dtype;
  return o;
}

/* Checks the update of amax. The observed magnitudes include 0, infinity and NaN. */
static void
check_update (const struct cuda_case_device *d, GRand *rand)
{
  static const float shown[] = { 0, 0.5f, INFINITY, NAN };
  struct weft_kernel k = call_of (WEFT_OP_AMAX_UPDATE, WEFT_FP32, (const uint64_t[]){ 700, 0, 0 });

  k.operand[0] = cuda_case_floats (rand, 700, WEFT_FP32);
  k.operand[1] = cuda_case_floats (rand, 700, WEFT_FP32);
  k.operand[1].accumulate = TRUE;
  for (unsigned i = 0; i < 700; i++)
    ((float *) k.operand[0].data)[i] = shown[i % G_N_ELEMENTS (shown)];
  run (d, &k, 0);
}

/* Checks block quantisation with codes in row order, in column order or in both, and with one scale
 * per block of a row or per square block. */
static void
check_blocks (const struct cuda_case_device *d, GRand *rand, enum weft_dtype dtype)
{
  static const struct {
    uint64_t rows, columns, block, square;
    gboolean is[2];
    enum weft_dtype code;
  } cases[] = { { 70, 37, 32, 0, { TRUE, TRUE }, WEFT_FP8 },
                { 33, 65, 32, 0, { TRUE, FALSE }, WEFT_E5M2 },
                { 130, 140, 128, 0, { TRUE, TRUE }, WEFT_E5M2 },
                { 150, 270, 128, 1, { TRUE, TRUE }, WEFT_FP8 },
                { 129, 40, 128, 1, { FALSE, TRUE }, WEFT_FP8 } };

  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    uint64_t rows = cases[i].rows, columns = cases[i].columns, block = cases[i].block;
    struct weft_kernel k =
        call_of (WEFT_OP_QUANTISE_BLOCKS, dtype, (const uint64_t[]){ rows, columns, block });
    k.shape.dim[3] = cases[i].square;
    k.operand[0] = spread_floats (rand, rows * columns, dtype);
    for (uint32_t o = 1; o < 5; o++) {
      uint64_t n = weft_kernels[k.kind].extent (&k, o);
      enum weft_dtype scale = block == 32 ? WEFT_E8M0 : WEFT_FP32;
      if (cases[i].is[o > 2])
        k.operand[o] = o % 2                ? codes_of (rand, n, cases[i].code)
                       : scale != WEFT_FP32 ? codes_of (rand, n, scale)
                                            : cuda_case_floats (rand, n, scale);
    }
    run (d, &k, 0);
  }
}

/* Checks quantisation with an amax that is infinite (overflow), 0, or so small that the scale would
 * be infinite. Elements include infinities and NaN. */
static void
check_extremes (const struct cuda_case_device *d, GRand *rand, enum weft_dtype dtype,
                enum weft_dtype code)
{
  static const float largest[] = { INFINITY, 0, 0x1p-126f, 0x1p-149f };
  const float found[] = { INFINITY, -INFINITY, NAN, 1, -3e4f, 0x1p-126f, -0.0f };

  for (unsigned i = 0; i < G_N_ELEMENTS (largest); i++) {
    struct weft_kernel k = call_of (WEFT_OP_QUANTISE, dtype, (const uint64_t[]){ 70, 0, 0 });
    k.operand[0] = cuda_case_floats (rand, 70, dtype);
    for (unsigned j = 0; j < G_N_ELEMENTS (found); j++)
      weft_store (k.operand[0].data, dtype, 7 * j + i, 1, &found[j]);
    k.operand[1] = cuda_case_floats (rand, 1, WEFT_FP32);
    *(float *) k.operand[1].data = largest[i];
    k.operand[2] = codes_of (rand, 70, code);
    run (d, &k, 0);
  }
}

static void
check_rounding (const struct cuda_case_device *d, GRand *rand, enum weft_dtype dtype)
{
  const uint64_t n = 5000, rows = 70, columns = 37;
  const enum weft_dtype code = dtype == WEFT_BF16 ? WEFT_E5M2 : WEFT_FP8;
  struct weft_kernel amax = call_of (WEFT_OP_AMAX, dtype, (const uint64_t[]){ n, 0, 0 }),
                     turn = call_of (WEFT_OP_TRANSPOSE, WEFT_FP8,
                                     (const uint64_t[]){ rows, columns, 0 });

  amax.operand[0] = spread_floats (rand, n, dtype);
  amax.operand[1] = cuda_case_floats (rand, 1, WEFT_FP32);
  amax.operand[1].accumulate = dtype == WEFT_BF16;
  run (d, &amax, 0);
  for (int delayed = 0; delayed < 2; delayed++) {
    struct weft_kernel k = call_of (delayed ? WEFT_OP_QUANTISE_DELAYED : WEFT_OP_QUANTISE, dtype,
                                    (const uint64_t[]){ n, 0, 0 });
    k.operand[0] = spread_floats (rand, n, dtype);
    k.operand[1] = cuda_case_floats (rand, 1, WEFT_FP32);
    *(float *) k.operand[1].data = delayed ? 0.5f : 1;
    k.operand[2] = codes_of (rand, n, code);
    if (delayed) {
      k.operand[3] = cuda_case_floats (rand, 1, WEFT_FP32);
      k.operand[3].accumulate = TRUE;
    }
    run (d, &k, 0);
  }
  check_extremes (d, rand, dtype, code);
  check_blocks (d, rand, dtype);
  turn.operand[0] = codes (rand, rows * columns);
  turn.operand[1] = codes (rand, rows * columns);
  run (d, &turn, 0);
}

/* Checks the kernel that reorders pieces which a ring has received: it must give the result of an
 * all-gather. */
static void
check_places (const struct cuda_case_device *d, GRand *rand, enum weft_dtype code)
{
  const uint64_t n = 27, parts = 3;
  struct weft_kernel k = call_of (WEFT_OP_SETTLE, code, (const uint64_t[]){ n, parts, 0 });

  k.tp = (struct weft_place){ 1, (uint32_t) parts };
  k.operand[0] = codes_of (rand, n / parts, code);
  k.operand[1] = codes_of (rand, n - n / parts, code);
  k.operand[2] = codes_of (rand, n, code);
  run (d, &k, 0);
}

/* Returns fp8 scales: 1.5 for the whole tensor or, with `blocks`, a random power of 2 for each
 * block of 32 elements. */
static struct weft_operand
scale_of (GRand *rand, uint64_t rows, uint64_t terms, gboolean blocks)
{
  uint64_t n = blocks ? rows * weft_mx_blocks (terms) : 1;
  struct weft_operand o = cuda_case_floats (rand, n, blocks ? WEFT_E8M0 : WEFT_FP32);

  for (uint64_t i = 0; i < n && blocks; i++)
    ((uint8_t *) o.data)[i] = (uint8_t) g_rand_int_range (rand, 116, 120);
  if (!blocks)
    *(float *) o.data = 1.5f;
  return o;
}

/* Checks matmuls with fp8 weights. A bias whose type differs from that of the result is rounded to
 * the type of the result before the addition. */
static void
check_products (const struct cuda_case_device *d, GRand *rand, enum weft_dtype dtype,
                gboolean blocks)
{
  const uint64_t m = 9, n = 12, wide = 70, dim[3] = { m, n, wide };
  const double tolerance = dtype == WEFT_FP32 ? 2e-5 : dtype == WEFT_BF16 ? 0x1p-8 : 0x1p-11;
  struct weft_kernel y = call_of (WEFT_OP_MATMUL_FP8_WEIGHTS, dtype, dim),
                     dx = call_of (WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS, dtype, dim);

  y.operand[0] = cuda_case_floats (rand, m * wide, dtype);
  y.operand[1] = codes (rand, n * wide);
  y.operand[2] = scale_of (rand, n, wide, blocks);
  if (blocks)
    y.operand[3] = cuda_case_floats (rand, n, WEFT_FP32);
  y.operand[4] = cuda_case_floats (rand, m * n, dtype);
  run (d, &y, tolerance);
  dx.operand[0] = cuda_case_floats (rand, m * n, dtype);
  dx.operand[1] = codes (rand, n * wide);
  dx.operand[2] = scale_of (rand, wide, n, blocks);
  dx.operand[3] = cuda_case_floats (rand, m * wide, dtype);
  run (d, &dx, tolerance);
}

/* Returns n scales near 1. With `block` 0, each element is the amax of a whole tensor instead. */
static struct weft_operand
scales_of (GRand *rand, uint64_t n, uint64_t block, enum weft_dtype code)
{
  struct weft_operand o = cuda_case_floats (rand, n, block == 32 ? WEFT_E8M0 : WEFT_FP32);

  for (uint64_t i = 0; i < n; i++)
    if (block == 32)
      ((uint8_t *) o.data)[i] = (uint8_t) g_rand_int_range (rand, 125, 129);
    else if (block)
      ((float *) o.data)[i] = ldexpf (1, g_rand_int_range (rand, -2, 2));
    else
      ((float *) o.data)[i] = 0.75f * weft_fp8_most (code == WEFT_E5M2);
  return o;
}

/* Returns random fp8 values near 1, with some zeros. */
static struct weft_operand
mild_codes (GRand *rand, uint64_t n, enum weft_dtype dtype)
{
  struct weft_operand o = codes_of (rand, n, dtype);

  for (uint64_t i = 0; i < n; i++)
    ((uint8_t *) o.data)[i] =
        (uint8_t) (i % 11 ? g_rand_int_range (rand, 0x2c, 0x44) | i % 2 << 7 : 0);
  return o;
}

/* Checks forward, dgrad and wgrad of two fp8 factors, with scales per `block` elements (0: per
 * tensor). Dimensions are multiples of 16, as tensor cores require, but not of the block sizes.
 * Tensor cores of Hopper accumulate fp8 products with about fourteen bits (DeepSeek-V3, arXiv
 * 2412.19437, 3.3.2). */
static void
check_both (const struct cuda_case_device *d, GRand *rand, uint64_t block)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_FP8_MATMUL, WEFT_OP_FP8_MATMUL_DGRAD,
                                             WEFT_OP_FP8_MATMUL_WGRAD };

  if (d->arch && weft_fp8_refused (d->arch, block)) {
    print_message ("%s\n", weft_fp8_refused (d->arch, block));
    return;
  }
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++) {
    gboolean forward = i == 0, wgrad = i == 2;
    struct weft_kernel k = call_of (kinds[i], WEFT_FP8, (const uint64_t[]){ 48, 144, 160 });
    k.shape.dim[wgrad ? 4 : 5] = block;
    uint32_t n_operands = forward ? 6 : wgrad ? 6 : 5;
    for (uint32_t o = 0; o < n_operands; o++) {
      uint64_t n = weft_kernels[k.kind].extent (&k, o);
      enum weft_dtype code = o < 2 && !forward ? WEFT_E5M2 : WEFT_FP8;
      k.operand[o] = o == 0 || o == 2 ? mild_codes (rand, n, code)
                     : o < 4          ? scales_of (rand, n, block, code)
                                      : cuda_case_floats (rand, n, wgrad ? WEFT_FP32 : WEFT_BF16);
      k.operand[o].accumulate = wgrad && o >= 4;
    }
    run (d, &k, !wgrad ? 0x1p-8 : d->arch ? 0x1p-11 : 2e-5);
  }
}

/* ------------------------------------------------------------------------- experts */

/* Rows of the experts: more than a tile, none, and fewer than a block. Buffers have ROOM rows, of
 * which ROWS are in use. */
enum { EXPERTS = 4, ROWS = 310, ROOM = 330 };
static const int64_t rows_of[EXPERTS] = { 3, 0, 267, 40 };

static struct weft_operand
counts_of (void)
{
  return (struct weft_operand){ g_memdup2 (rows_of, sizeof rows_of), EXPERTS, WEFT_INT64, FALSE };
}

/* Returns the number of scales of all experts. `down`: TRUE: each block is a part of a column;
 * FALSE: each block is a square. */
static uint64_t
lines_of (uint64_t rows, uint64_t columns, uint64_t block, gboolean down)
{
  return weft_moe_lines (rows, EXPERTS, block) *
         (down ? columns : weft_fp8_blocks (columns, block));
}

/* Checks the quantisation of tokens (rows per expert from counts) and of weights (equally many rows
 * per expert). */
static void
check_rounding_of_experts (const struct cuda_case_device *d, GRand *rand, uint64_t block)
{
  const uint64_t columns = 72;

  for (int weights = 0; weights < 2; weights++) {
    enum weft_op_kind kind = block ? WEFT_OP_MOE_QUANTISE_BLOCKS : WEFT_OP_MOE_QUANTISE;
    const enum weft_dtype code = weights ? WEFT_FP8 : WEFT_E5M2,
                          scale = block == 32 ? WEFT_E8M0 : WEFT_FP32;
    uint64_t rows = weights ? ROWS / EXPERTS * EXPERTS : ROWS, room = weights ? rows : ROOM;
    gboolean square = weights && block == 128;
    struct weft_kernel k =
        call_of (kind, WEFT_BF16, (const uint64_t[]){ rows, columns, EXPERTS });
    k.operand[0] = spread_floats (rand, room * columns, WEFT_BF16);
    if (!weights)
      k.operand[1] = counts_of ();
    if (!block) {
      struct weft_kernel amax = k;
      amax.kind = WEFT_OP_MOE_AMAX;
      amax.operand[0] = spread_floats (rand, room * columns, WEFT_BF16);
      amax.operand[1] = weights ? k.operand[1] : counts_of ();
      amax.operand[2] = cuda_case_floats (rand, EXPERTS, WEFT_FP32);
      run (d, &amax, 0);
      k.operand[2] = scales_of (rand, EXPERTS, 0, code);
      k.operand[3] = codes_of (rand, room * columns, code);
      if (weights)
        k.operand[4] = cuda_case_floats (rand, EXPERTS, WEFT_FP32);
      k.operand[4].accumulate = TRUE;
    } else {
      k.shape.dim[4] = block;
      k.shape.dim[5] = square;
      k.operand[2] = codes_of (rand, room * columns, code);
      k.operand[3] = scales_of (rand, square ? lines_of (room, columns, block, FALSE)
                                             : room * weft_fp8_blocks (columns, block),
                                block, code);
      k.operand[4] = codes_of (rand, room * columns, code);
      k.operand[5] = scales_of (rand, lines_of (room, columns, block, TRUE), block, code);
      g_assert (k.operand[3].dtype == scale);
    }
    run (d, &k, 0);
  }
}

/* Returns the scales of a factor (tokens or weights) of a grouped GEMM: one per expert, per block
 * of a row, per square block or per block of a column. */
static struct weft_operand
scales_of_factor (GRand *rand, const struct weft_kernel *k, uint32_t operand, uint64_t rows,
                  uint64_t columns)
{
  uint64_t block = k->shape.dim[7];
  enum weft_dtype code = (enum weft_dtype) k->operand[operand].dtype;
  gboolean weights = operand == 2 && k->kind != WEFT_OP_MOE_FP8_MATMUL_WGRAD;
  gboolean down = k->kind == WEFT_OP_MOE_FP8_MATMUL_WGRAD ||
                  (weights && block == 32 && k->kind == WEFT_OP_MOE_FP8_MATMUL_DGRAD);

  if (!block)
    return scales_of (rand, EXPERTS, 0, code);
  if (down || (weights && block == 128))
    return scales_of (rand, lines_of (rows, columns, block, down), block, code);
  return scales_of (rand, rows * weft_fp8_blocks (columns, block), block, code);
}

/* Checks grouped GEMM of two fp8 factors. `odd`: TRUE: widths that prevent vector loads; FALSE:
 * multiples of 16, of which one spans several slices. `gradient`: fp8 type of output gradients. */
static void
check_products_of_experts (const struct cuda_case_device *d, GRand *rand, uint64_t block,
                           gboolean odd, enum weft_dtype gradient)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_FP8_MATMUL, WEFT_OP_MOE_FP8_MATMUL_DGRAD,
                                             WEFT_OP_MOE_FP8_MATMUL_WGRAD };
  const uint64_t n = odd ? 37 : 48, wide = odd ? 141 : 400;

  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++) {
    gboolean forward = i == 0, wgrad = i == 2;
    struct weft_kernel k = call_of (kinds[i], WEFT_FP8, (const uint64_t[]){ ROWS, n, wide });
    uint64_t first = forward ? wide : n, rows = wgrad ? ROOM : EXPERTS * n;
    k.shape.dim[3] = EXPERTS;
    k.shape.dim[7] = block;
    k.operand[0] = mild_codes (rand, ROOM * first, forward ? WEFT_FP8 : gradient);
    k.operand[1] = scales_of_factor (rand, &k, 0, ROOM, first);
    k.operand[2] = mild_codes (rand, rows * wide, WEFT_FP8);
    k.operand[3] = scales_of_factor (rand, &k, 2, rows, wide);
    k.operand[4] = counts_of ();
    k.operand[5] = cuda_case_floats (rand, wgrad ? EXPERTS * n * wide : ROOM * (n + wide - first),
                                     wgrad     ? WEFT_FP32
                                     : forward ? WEFT_BF16
                                               : WEFT_FP16);
    k.operand[5].accumulate = wgrad;
    run (d, &k, !wgrad ? 0x1p-8 : d->arch / 10 == 9 ? 0x1p-11 : 2e-5);
  }
}

void
cuda_case_expert_codes (const struct cuda_case_device *d)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (23);

  for (unsigned i = 0; i < 2; i++) {
    check_products_of_experts (d, rand, i * 128, FALSE, WEFT_E5M2);
    check_products_of_experts (d, rand, i * 128, FALSE, WEFT_FP8);
  }
}

void
cuda_case_fp8 (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (22);

  check_update (d, rand);
  check_places (d, rand, WEFT_FP8);
  check_places (d, rand, WEFT_E5M2);
  for (enum weft_dtype dtype = WEFT_FP32; dtype <= WEFT_FP16; dtype++) {
    check_rounding (d, rand, dtype);
    for (int blocks = 0; blocks < 2; blocks++)
      check_products (d, rand, dtype, blocks);
  }
  for (unsigned i = 0; i < 3; i++)
    check_both (d, rand, (const uint64_t[]){ 0, 32, 128 }[i]);
  for (unsigned i = 0; i < 3; i++) {
    check_rounding_of_experts (d, rand, (const uint64_t[]){ 0, 32, 128 }[i]);
    check_products_of_experts (d, rand, (const uint64_t[]){ 0, 32, 128 }[i], i == 1, WEFT_E5M2);
  }
  g_rand_free (rand);
}
