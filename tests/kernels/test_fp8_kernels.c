/* Products of two fp8 factors, and quantisation of the factors: all 256 codes of E5M2 against its
 * definition (OFP8 1.0, table 1), kernels against their references for every recipe. */
#include "kernels/fp8.h"
#include "kernels/kernel.h"
#include "tests/runner/runner.h"

/* Returns the value of an E5M2 code, computed from its definition: sign, exponent of five bits with
 * bias 15, mantissa of two bits. */
static double
e5m2_value (unsigned code)
{
  int exponent = code >> 2 & 31, mantissa = code & 3;
  double size = exponent ? ldexp (4 + mantissa, exponent - 15 - 2) : ldexp (mantissa, 1 - 15 - 2);

  return code >> 7 ? -size : size;
}

static void
every_code_of_e5m2_has_its_value_and_is_what_that_is_rounded_to (void **state)
{
  (void) state;
  for (unsigned code = 0; code < 256; code++) {
    float found = weft_e5m2_float ((uint8_t) code);
    unsigned size = code & 0x7f;
    if (size > 0x7c) {
      assert_true (isnan (found));
    } else if (size == 0x7c) {
      assert_true (isinf (found));
      /* infinity is rounded to the largest finite number */
      assert_int_equal (weft_e5m2_round (found), code - 1);
    } else {
      assert_true ((double) found == e5m2_value (code));
      assert_int_equal (weft_e5m2_round (found), code);
    }
  }
  assert_true (weft_e5m2_float (0x7b) == WEFT_E5M2_MOST);
  assert_int_equal (weft_e5m2_round (NAN) & 0x7f, 0x7f);
  assert_int_equal (weft_e5m2_round (-1e9f), 0xfb);
}

static void
between_two_codes_of_e5m2_the_nearer_wins_and_ties_go_to_even (void **state)
{
  (void) state;
  for (unsigned code = 0; code < 0x7b; code++)
    for (unsigned sign = 0; sign < 256; sign += 128) {
      double middle = (e5m2_value (code) + e5m2_value (code + 1)) / 2;
      float tie = (float) (sign ? -middle : middle);
      assert_int_equal (weft_e5m2_round (tie), (code + (code & 1)) | sign);
      assert_int_equal (weft_e5m2_round (nextafterf (tie, 0)), code | sign);
      assert_int_equal (weft_e5m2_round (nextafterf (tie, sign ? -INFINITY : INFINITY)),
                        (code + 1) | sign);
    }
}

/* ------------------------------------------------------------------------- factors */

#define MOST 40000

/* A matrix with the fp8 codes and scales of the matrix and of its transpose: as an executor stores
 * them, and as doubles for the reference. */
struct factor {
  uint64_t rows, columns;
  enum weft_dtype dtype;
  float x[MOST], amax, seen, scale[MOST], scale_t[MOST];
  uint8_t code[MOST], turned[MOST];
  double exact[MOST], value[MOST], scales[MOST], turned_value[MOST], turned_scales[MOST];
};

static const uint64_t blocks[] = { 0, 32, 128 };

static double
value_of (enum weft_dtype dtype, uint8_t code)
{
  return (double) (dtype == WEFT_E5M2 ? weft_e5m2_float (code) : weft_e4m3_float (code));
}

/* Draws a matrix with elements of several magnitudes and some rows of zeros. */
static void
draw (GRand *rand, struct factor *f, uint64_t rows, uint64_t columns)
{
  f->rows = rows;
  f->columns = columns;
  f->dtype = g_rand_int_range (rand, 0, 2) ? WEFT_E5M2 : WEFT_FP8;
  for (uint64_t i = 0; i < rows * columns; i++) {
    double size = exp2 (g_rand_int_range (rand, -9, 3));
    f->x[i] = (float) (i / columns % 7 == 3 ? 0 : size * g_rand_double_range (rand, -1, 1));
  }
}

static struct weft_operand
operand (void *data, uint64_t n, enum weft_dtype dtype)
{
  return (struct weft_operand){ data, n, (uint8_t) dtype, FALSE };
}

static void
run (const struct weft_kernel *k, uint32_t parts)
{
  for (uint32_t part = parts; part-- > 0;)
    weft_kernels[k->kind].cpu (k, part, parts);
}

/* Quantises the matrix with one scale (delayed scaling: the magnitude comes from an earlier step),
 * and transposes the fp8 values. */
static void
quantise_whole (struct factor *f)
{
  uint64_t n = f->rows * f->columns;
  struct weft_kernel k = { .kind = WEFT_OP_QUANTISE_DELAYED, .shape = { .dim = { n } } };
  struct weft_kernel turn = { .kind = WEFT_OP_TRANSPOSE,
                              .shape = { .dim = { f->rows, f->columns } } };

  f->seen = 0.25f;
  k.operand[0] = operand (f->x, n, WEFT_FP32);
  k.operand[1] = operand (&f->amax, 1, WEFT_FP32);
  k.operand[2] = turn.operand[0] = operand (f->code, n, f->dtype);
  k.operand[3] = operand (&f->seen, 1, WEFT_FP32);
  k.operand[3].accumulate = TRUE;
  turn.operand[1] = operand (f->turned, n, f->dtype);
  run (&k, 1);
  run (&turn, 1);
  f->scale[0] = f->scale_t[0] = f->amax;
}

static struct weft_kernel
blocks_kernel (const struct factor *f, uint64_t block, gboolean square)
{
  return (struct weft_kernel){ .kind = WEFT_OP_QUANTISE_BLOCKS,
                               .shape = { .dim = { f->rows, f->columns, block, square, 2 } } };
}

static void
quantise_blocks (struct factor *f, uint64_t block, gboolean square)
{
  uint64_t n = f->rows * f->columns;
  enum weft_dtype scale = block == 32 ? WEFT_E8M0 : WEFT_FP32;
  struct weft_kernel k = blocks_kernel (f, block, square);

  k.operand[0] = operand (f->x, n, WEFT_FP32);
  k.operand[1] = operand (f->code, n, f->dtype);
  k.operand[2] = operand (f->scale, MOST, scale);
  k.operand[3] = operand (f->turned, n, f->dtype);
  k.operand[4] = operand (f->scale_t, MOST, scale);
  run (&k, 1);
}

static void
quantise (struct factor *f, uint64_t block, gboolean square)
{
  /* Delayed scaling: this magnitude comes from an earlier tensor, and is smaller than some
   * elements. */
  f->amax = 2.5f;
  (block ? quantise_blocks (f, block, square) : quantise_whole (f));
}

static double
scale_at (const float *scale, uint64_t block, uint64_t i)
{
  return (double) (block == 32 ? weft_e8m0_float (((const uint8_t *) scale)[i]) : scale[i]);
}

/* Converts the matrix, its fp8 values and its scales to doubles, for the reference. */
static void
widen (struct factor *f, uint64_t block)
{
  uint64_t n = f->rows * f->columns, n_scale = block ? n : 1;

  for (uint64_t i = 0; i < n; i++) {
    f->exact[i] = (double) f->x[i];
    f->value[i] = value_of (f->dtype, f->code[i]);
    f->turned_value[i] = value_of (f->dtype, f->turned[i]);
  }
  for (uint64_t i = 0; i < n_scale; i++) {
    f->scales[i] = scale_at (f->scale, block, i);
    f->turned_scales[i] = scale_at (f->scale_t, block, i);
  }
}

static void
magnitudes_are_noted_while_a_tensor_is_rounded_by_those_of_before (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);
  static struct factor f;
  static double y[MOST];

  (void) state;
  for (int trial = 0; trial < 20; trial++) {
    draw (rand, &f, 1 + (uint64_t) trial * 3, 33);
    quantise (&f, 0, FALSE);
    widen (&f, 0);
    double amax = 2.5, seen = 0.25;
    uint64_t n = f.rows * f.columns;
    struct weft_kernel k = { .kind = WEFT_OP_QUANTISE_DELAYED, .shape = { .dim = { n } } };
    k.operand[0].data = f.exact;
    k.operand[1].data = &amax;
    k.operand[2] = operand (y, n, f.dtype);
    k.operand[3] = (struct weft_operand){ &seen, 1, WEFT_FP32, TRUE };
    weft_ref_quantise_delayed (&k);
    uint64_t other = 0;
    /* The fp8 value may be the neighbour of the reference's: a number that is halfway between two
     * fp8 values in fp32 may not be halfway in double. */
    for (uint64_t i = 0; i < n; i++)
      other += f.value[i] != y[i] && fabs (f.value[i] - y[i]) > 0.34 * fabs (y[i]) + 0x1p-9;
    assert_int_equal (other, 0);
    assert_true ((double) f.seen == seen);
  }
}

/* amax_update keeps the old magnitude if the observed magnitude is 0 (an expert without tokens),
 * infinity or NaN. A finite observed magnitude replaces the old one, here 2 and the smallest fp32
 * number. */
static void
a_tensor_that_showed_nothing_keeps_its_magnitude (void **state)
{
  float seen[] = { 2, 0, INFINITY, NAN, 0, 0x1p-149f }, amax[] = { 1, 3, 4, 5, 0, 6 };
  static const float wanted[] = { 2, 3, 4, 5, 0, 0x1p-149f };
  struct weft_kernel k = { .kind = WEFT_OP_AMAX_UPDATE, .shape = { .dim = { 6 } } };

  (void) state;
  k.operand[0] = operand (seen, 6, WEFT_FP32);
  k.operand[1] = operand (amax, 6, WEFT_FP32);
  run (&k, 2);
  assert_memory_equal (amax, wanted, sizeof wanted);
}

/* Scales of blocks are powers of two, so the results must equal those in double exactly. Blocks lie
 * along rows or are squares, in the matrix and in its transpose. */
static void
blocks_are_rounded_as_their_reference_does_in_both_directions (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (2);
  static struct factor f;
  static double y[MOST], scale[MOST], yt[MOST], scale_t[MOST];

  (void) state;
  for (int trial = 0; trial < 24; trial++) {
    uint64_t block = blocks[1 + trial % 2], n;
    gboolean square = block == 128 && trial % 4 > 1;
    draw (rand, &f, 1 + (uint64_t) g_rand_int_range (rand, 0, 150),
          1 + (uint64_t) g_rand_int_range (rand, 0, 260));
    quantise (&f, block, square);
    widen (&f, block);
    n = f.rows * f.columns;
    struct weft_kernel k = blocks_kernel (&f, block, square);
    double *data[] = { f.exact, y, scale, yt, scale_t };
    for (unsigned o = 0; o < G_N_ELEMENTS (data); o++)
      k.operand[o] = operand (data[o], n, f.dtype);
    weft_ref_quantise_blocks (&k);
    for (uint64_t i = 0; i < n; i++)
      assert_true (f.value[i] == y[i] && f.turned_value[i] == yt[i]);
    for (uint64_t i = 0; i < weft_extent_quantise_blocks (&k, 2); i++)
      assert_true (f.scales[i] == scale[i]);
    for (uint64_t i = 0; i < weft_extent_quantise_blocks (&k, 4); i++)
      assert_true (f.turned_scales[i] == scale_t[i]);
  }
}

/* ------------------------------------------------------------------------ products */

struct product {
  struct factor a, b;
  float bias[MOST], y[MOST], sums[MOST];
  double exact_bias[MOST], exact_y[MOST], exact_sums[MOST];
};

/* Gives a kernel and its reference the fp8 factors (m, t) and (n, t) as operands. */
static void
give (struct product *p, struct weft_kernel *k, struct weft_kernel *ref, uint64_t block)
{
  enum weft_dtype scale = block == 32 ? WEFT_E8M0 : WEFT_FP32;
  struct factor *f[] = { &p->a, &p->b };

  for (unsigned i = 0; i < 2; i++) {
    k->operand[2 * i] = operand (f[i]->code, f[i]->rows * f[i]->columns, f[i]->dtype);
    k->operand[2 * i + 1] = operand (f[i]->scale, 1, scale);
    ref->operand[2 * i] = operand (f[i]->value, f[i]->rows * f[i]->columns, f[i]->dtype);
    ref->operand[2 * i + 1] = operand (f[i]->scales, 1, scale);
  }
}

static void
check (const float *found, const double *wanted, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    assert_true (fabs ((double) found[i] - wanted[i]) <= 2e-5 * (1 + fabs (wanted[i])));
}

static void
run_product (struct product *p, struct weft_kernel *k, struct weft_kernel *ref, uint32_t parts)
{
  uint32_t out = k->kind == WEFT_OP_FP8_MATMUL ? 5 : 4;
  uint64_t n = p->a.rows * p->b.rows;

  k->operand[out] = operand (p->y, n, WEFT_FP32);
  ref->operand[out] = operand (p->exact_y, n, WEFT_FP32);
  k->operand[out].accumulate = ref->operand[out].accumulate = k->kind == WEFT_OP_FP8_MATMUL_WGRAD;
  for (uint64_t i = 0; i < n; i++) {
    p->y[i] = (float) (i % 5);
    p->exact_y[i] = (double) (i % 5);
  }
  run (k, parts);
  weft_kernels[k->kind].reference (ref);
  check (p->y, p->exact_y, n);
}

static void
forward_and_input_gradients_are_those_of_their_references (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);
  static struct product p;

  (void) state;
  for (int trial = 0; trial < 24; trial++) {
    uint64_t block = blocks[trial % 3], m = 1 + (uint64_t) trial * 2,
             t = 40 + 11 * (uint64_t) trial;
    gboolean forward = trial & 1;
    draw (rand, &p.a, m, t);
    draw (rand, &p.b, 30 + (uint64_t) trial * 4, t);
    quantise (&p.a, block, FALSE);
    quantise (&p.b, block, block == 128);
    widen (&p.a, block);
    widen (&p.b, block);
    struct weft_kernel k = { .kind = forward ? WEFT_OP_FP8_MATMUL : WEFT_OP_FP8_MATMUL_DGRAD,
                             .shape = { .dim = { m, forward ? p.b.rows : t, forward ? t : p.b.rows,
                                                 0, 0, block } } };
    struct weft_kernel ref = k;
    give (&p, &k, &ref, block);
    for (uint64_t i = 0; i < p.b.rows; i++)
      p.exact_bias[i] = (double) (p.bias[i] = (float) g_rand_double_range (rand, -1, 1));
    if (forward) {
      k.operand[4] = operand (p.bias, p.b.rows, WEFT_FP32);
      ref.operand[4] = operand (p.exact_bias, p.b.rows, WEFT_FP32);
    }
    run_product (&p, &k, &ref, 1 + (uint32_t) trial % 3);
  }
}

/* Sets element `at` of a tensor to -infinity, computes the largest magnitude of the tensor
 * (infinity), and quantises the tensor with that magnitude. The scale is then 1, and the infinite
 * element becomes NaN (weft_fp8_scaled()). */
static void
quantise_overflowed (struct factor *f, uint64_t at)
{
  uint64_t n = f->rows * f->columns;
  struct weft_kernel amax = { .kind = WEFT_OP_AMAX, .shape = { .dim = { n } } },
                     k = { .kind = WEFT_OP_QUANTISE, .shape = { .dim = { n } } };

  f->x[at] = -INFINITY;
  amax.operand[0] = k.operand[0] = operand (f->x, n, WEFT_FP32);
  amax.operand[1] = k.operand[1] = operand (&f->amax, 1, WEFT_FP32);
  k.operand[2] = operand (f->code, n, f->dtype);
  run (&amax, 1);
  run (&k, 1);
  f->scale[0] = f->amax;
}

/* A matmul with an infinite element: the row of the result to which this element contributes must
 * not be finite, whatever the other factor, so that found_inf and check_for_nan detect the
 * overflow. All other rows must stay finite. */
static void
an_infinite_element_is_seen_in_products (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);
  static struct product p;

  (void) state;
  for (int trial = 0; trial < 6; trial++) {
    const uint64_t m = 5, n = 40, t = 64, row = (uint64_t) trial % m;
    gboolean forward = trial & 1;
    struct weft_kernel k = { .kind = forward ? WEFT_OP_FP8_MATMUL : WEFT_OP_FP8_MATMUL_DGRAD,
                             .shape = { .dim = { m, forward ? n : t, forward ? t : n } } },
                       ref = k;
    draw (rand, &p.a, m, t);
    draw (rand, &p.b, n, t);
    quantise_overflowed (&p.a, row * t + 7 * (uint64_t) trial);
    quantise (&p.b, 0, FALSE);
    give (&p, &k, &ref, 0);
    k.operand[forward ? 5 : 4] = operand (p.y, m * n, WEFT_FP32);
    run (&k, 1);
    for (uint64_t i = 0; i < m * n; i++)
      assert_int_equal (!isfinite (p.y[i]), i / n == row);
  }
}

/* Weight gradients as products of two fp8 factors: both have blocks along rows. The sum over the
 * rows of the first factor is the bias gradient. */
static void
weight_gradients_are_added_as_by_their_reference (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (4);
  const union weft_model model = { .seq_length = 1 };
  static struct product p;

  (void) state;
  for (int trial = 0; trial < 24; trial++) {
    uint64_t block = blocks[trial % 3], m = 20 + 9 * (uint64_t) trial;
    draw (rand, &p.a, 1 + (uint64_t) trial * 3, m);
    draw (rand, &p.b, 40 + (uint64_t) trial, m);
    quantise (&p.a, block, FALSE);
    quantise (&p.b, block, FALSE);
    widen (&p.a, block);
    widen (&p.b, block);
    struct weft_kernel k = { .kind = WEFT_OP_FP8_MATMUL_WGRAD,
                             .model = &model,
                             .shape = { .dim = { m, p.a.rows, p.b.rows, 1, block } } };
    struct weft_kernel ref = k;
    give (&p, &k, &ref, block);
    memset (p.sums, 0, sizeof p.sums);
    memset (p.exact_sums, 0, sizeof p.exact_sums);
    k.operand[5] = operand (p.sums, p.a.rows, WEFT_FP32);
    ref.operand[5] = operand (p.exact_sums, p.a.rows, WEFT_FP32);
    run_product (&p, &k, &ref, 1 + (uint32_t) trial % 3);
    check (p.sums, p.exact_sums, p.a.rows);
  }
}

/* The cost model must count one byte per element of each factor, 1/32 byte more for the scales of
 * blocks of 32, and the bytes of the result's type. */
static void
factors_cost_a_byte_an_element_and_results_their_own_type (void **state)
{
  struct weft_shape shape = { .dim = { 128, 64, 256 }, .dtype = WEFT_FP8, .out_dtype = WEFT_BF16 };
  const struct weft_op_info *forward = &weft_op_info[WEFT_OP_FP8_MATMUL],
                            *wgrad = &weft_op_info[WEFT_OP_FP8_MATMUL_WGRAD];
  double factors = 128 * 256 + 64 * 256;

  (void) state;
  assert_true (forward->bytes (&shape) == factors + 2 * 128 * 64);
  assert_true (forward->flops (&shape) == 2.0 * 128 * 64 * 256);
  shape.dim[5] = 32;
  assert_true (forward->bytes (&shape) == factors * 33 / 32 + 2 * 128 * 64);
  assert_true (wgrad->bytes (&shape) == 128 * 256 + 128 * 64 + 2 * 2 * 64 * 256);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_code_of_e5m2_has_its_value_and_is_what_that_is_rounded_to),
  cmocka_unit_test (between_two_codes_of_e5m2_the_nearer_wins_and_ties_go_to_even),
  cmocka_unit_test (magnitudes_are_noted_while_a_tensor_is_rounded_by_those_of_before),
  cmocka_unit_test (a_tensor_that_showed_nothing_keeps_its_magnitude),
  cmocka_unit_test (blocks_are_rounded_as_their_reference_does_in_both_directions),
  cmocka_unit_test (forward_and_input_gradients_are_those_of_their_references),
  cmocka_unit_test (an_infinite_element_is_seen_in_products),
  cmocka_unit_test (weight_gradients_are_added_as_by_their_reference),
  cmocka_unit_test (factors_cost_a_byte_an_element_and_results_their_own_type),
};

WEFT_TESTS (tests)
