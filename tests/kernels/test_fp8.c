/* fp8: all 256 codes of E4M3 against the tables of the OCP specification (OFP8 1.0, table 1),
 * rounding against doubles, kernels against their references. */
#include "kernels/fp8.h"
#include "core/plan/cost.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/runner/runner.h"

/* largest relative rounding error of a normal number with 3 bits of mantissa */
#define HALF_STEP 0x1p-4

/* Returns the value of an E4M3 code, computed from its definition: sign, exponent with bias 7,
 * mantissa of three bits. */
static double
value_of (unsigned code)
{
  int exponent = code >> 3 & 15, mantissa = code & 7;
  double size = exponent ? ldexp (8 + mantissa, exponent - 7 - 3) : ldexp (mantissa, 1 - 7 - 3);

  return code >> 7 ? -size : size;
}

static gboolean
is_nan_code (unsigned code)
{
  return (code & 0x7f) == 0x7f;
}

static void
every_code_has_the_value_of_the_specification (void **state)
{
  (void) state;
  for (unsigned code = 0; code < 256; code++) {
    float found = weft_e4m3_float ((uint8_t) code);
    if (is_nan_code (code)) {
      assert_true (isnan (found));
      continue;
    }
    assert_true ((double) found == value_of (code));
    assert_int_equal (!!signbit (found), code >> 7);
  }
  assert_true (weft_e4m3_float (0x7e) == 448);
  /* code 0x08 is the smallest normal number of E4M3 */
  assert_true (weft_e4m3_float (0x08) == 0x1p-6f);
  /* code 0x01 is the smallest positive number of E4M3 */
  assert_true (weft_e4m3_float (0x01) == 0x1p-9f);
}

static void
every_value_is_rounded_to_its_own_code (void **state)
{
  (void) state;
  for (unsigned code = 0; code < 256; code++)
    if (!is_nan_code (code))
      assert_int_equal (weft_e4m3_round (weft_e4m3_float ((uint8_t) code)), code);
  assert_int_equal (weft_e4m3_round (NAN) & 0x7f, 0x7f);
}

/* A value halfway between two codes is rounded to the even code; the next float on either side is
 * rounded to the nearer code. */
static void
between_two_codes_the_nearer_wins_and_ties_go_to_even (void **state)
{
  (void) state;
  for (unsigned code = 0; code < 0x7e; code++)
    for (unsigned sign = 0; sign < 256; sign += 128) {
      double low = value_of (code), high = value_of (code + 1), middle = (low + high) / 2;
      float tie = (float) (sign ? -middle : middle);
      assert_int_equal (weft_e4m3_round (tie), (code + (code & 1)) | sign);
      assert_int_equal (weft_e4m3_round (nextafterf (tie, 0)), code | sign);
      assert_int_equal (weft_e4m3_round (nextafterf (tie, sign ? -INFINITY : INFINITY)),
                        (code + 1) | sign);
    }
}

static void
what_is_too_large_is_stored_as_the_largest (void **state)
{
  static const float large[] = { 448, 449, 464, 465, 1e6f, 0x1p127f, INFINITY };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (large); i++) {
    assert_int_equal (weft_e4m3_round (large[i]), 0x7e);
    assert_int_equal (weft_e4m3_round (-large[i]), 0xfe);
  }
}

static void
scales_of_blocks_are_the_least_powers_of_two_that_leave_no_element_out (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);

  (void) state;
  for (unsigned code = 1; code < 255; code++)
    assert_true ((double) weft_e8m0_float ((uint8_t) code) == ldexp (1, (int) code - 127));
  assert_true ((double) weft_e8m0_float (0) == 0x1p-127);
  assert_true (isnan (weft_e8m0_float (255)));
  assert_int_equal (weft_e8m0_scale (0), 0);
  assert_int_equal (weft_e8m0_scale (448), 127);
  assert_int_equal (weft_e8m0_scale (nextafterf (448, 449)), 128);
  for (int i = 0; i < 1000; i++) {
    float largest = (float) exp2 (g_rand_double_range (rand, -100, 100));
    double scale = weft_e8m0_float (weft_e8m0_scale (largest));
    assert_true ((double) largest <= 448 * scale * (1 + 0x1p-23));
    assert_true ((double) largest > 448 * scale / 2);
  }
}

/* ------------------------------------------------------------------------ tensors */

enum { MOST = 40 * 70 };

struct tensor {
  uint64_t rows, columns;
  float x[MOST];
  uint8_t code[MOST], turned[MOST], scale[MOST], scale_t[MOST];
  float largest;
};

static void
draw (GRand *rand, struct tensor *t)
{
  static const uint64_t sides[] = { 1, 5, 31, 32, 33, 40 };

  t->rows = sides[g_rand_int_range (rand, 0, G_N_ELEMENTS (sides))];
  t->columns = sides[g_rand_int_range (rand, 0, G_N_ELEMENTS (sides))] + 30;
  for (uint64_t i = 0; i < t->rows * t->columns; i++)
    t->x[i] = (float) (g_rand_double_range (rand, -1, 1) * exp2 (g_rand_int_range (rand, -6, 1)));
}

static struct weft_kernel
kernel (enum weft_op_kind kind, uint64_t a, uint64_t b)
{
  return (struct weft_kernel){ .kind = kind, .shape = { .dim = { a, b } } };
}

static void
run (struct weft_kernel *k, uint32_t parts)
{
  for (uint32_t part = parts; part-- > 0;)
    weft_kernels[k->kind].cpu (k, part, parts);
}

static void
quantise (struct tensor *t, uint32_t parts)
{
  uint64_t n = t->rows * t->columns;
  struct weft_kernel amax = kernel (WEFT_OP_AMAX, n, 0), q = kernel (WEFT_OP_QUANTISE, n, 0);

  amax.operand[0] = q.operand[0] = (struct weft_operand){ t->x, n, WEFT_FP32, FALSE };
  amax.operand[1] = q.operand[1] = (struct weft_operand){ &t->largest, 1, WEFT_FP32, FALSE };
  q.operand[2] = (struct weft_operand){ t->code, n, WEFT_FP8, FALSE };
  run (&amax, 1);
  run (&q, parts);
}

/* The quantisation error of an element is at most half a step of a mantissa of three bits (normal
 * numbers), or half of the smallest step (subnormal numbers). */
static void
a_tensor_is_off_by_a_sixteenth_of_each_normal_element_at_most (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (4);

  (void) state;
  for (int trial = 0; trial < 200; trial++) {
    struct tensor t;
    draw (rand, &t);
    quantise (&t, 1 + (uint32_t) trial % 3);
    double unscale = weft_fp8_unscale (t.largest), most = 0;
    for (uint64_t i = 0; i < t.rows * t.columns; i++) {
      double x = t.x[i], found = weft_e4m3_float (t.code[i]) * unscale;
      most = fmax (most, fabs (x));
      gboolean normal = fabs (x) >= 0x1p-6 * unscale;
      double allowed = normal ? HALF_STEP * fabs (x) * (1 + 1e-6) : 0x1p-10 * unscale * (1 + 1e-6);
      assert_true (fabs (found - x) <= allowed);
    }
    assert_true ((double) t.largest == most);
  }
}

static void
quantise_does_what_its_reference_does (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);

  (void) state;
  for (int trial = 0; trial < 50; trial++) {
    struct tensor t;
    double x[MOST], y[MOST], amax;
    draw (rand, &t);
    quantise (&t, 1);
    uint64_t n = t.rows * t.columns;
    struct weft_kernel k = kernel (WEFT_OP_QUANTISE, n, 0);
    amax = (double) t.largest;
    /* The reference gets x times the scale as the kernel computes it, rounded to fp32. Otherwise
     * the reference could decide a tie between two fp8 values differently. */
    for (uint64_t i = 0; i < n; i++)
      x[i] = (double) (t.x[i] * weft_fp8_scale (t.largest)) * amax / 448;
    k.operand[0].data = x;
    k.operand[1].data = &amax;
    k.operand[2] = (struct weft_operand){ y, n, WEFT_FP8, FALSE };
    weft_ref_quantise (&k);
    for (uint64_t i = 0; i < n; i++)
      assert_true (fabs ((double) weft_e4m3_float (t.code[i]) - y[i]) <= 1e-6 * fabs (y[i]));
  }
}

/* Scales of tensors with extreme magnitudes, as in Transformer Engine: 1 for a magnitude of 0,
 * infinity or NaN; FLT_MAX for tiny magnitudes. */
static void
scales_are_finite_and_never_zero (void **state)
{
  static const float whole[] = { 0, INFINITY, NAN }, tiny[] = { 1e-36f, 0x1p-126f, 0x1p-149f };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (whole); i++) {
    assert_true (weft_fp8_scale (whole[i]) == 1 && weft_fp8_unscale (whole[i]) == 1);
    assert_true (weft_fp8_scale (tiny[i]) == FLT_MAX && weft_fp8_unscale (tiny[i]) > 0);
  }
  assert_true (weft_fp8_scale (2e-36f) == 448 / 2e-36f);
  assert_true (weft_fp8_scale (FLT_MAX) == 448 / FLT_MAX);
}

/* A tensor with infinite elements must not stay unnoticed. Its amax is infinite, so the scale is 1
 * and infinite elements become NaN. With the amax of an earlier step (delayed scaling), they become
 * the largest number. */
static void
a_tensor_that_overflowed_is_seen (void **state)
{
  static const enum weft_dtype types[] = { WEFT_FP8, WEFT_E5M2 };
  float x[] = { 1, -INFINITY, 0.5f, INFINITY, 1e30f, -0.0f, NAN, -2 }, largest = 0;
  const uint64_t n = G_N_ELEMENTS (x);

  (void) state;
  for (size_t type = 0; type < 2; type++) {
    struct weft_kernel amax = kernel (WEFT_OP_AMAX, n, 0), q = kernel (WEFT_OP_QUANTISE, n, 0);
    float most = weft_fp8_most (types[type] == WEFT_E5M2), before = most, got[8];
    double exact[8], amax_of = INFINITY, y[8];
    uint8_t code[8];
    amax.operand[0] = q.operand[0] = (struct weft_operand){ x, n, WEFT_FP32, FALSE };
    amax.operand[1] = q.operand[1] = (struct weft_operand){ &largest, 1, WEFT_FP32, FALSE };
    q.operand[2] = (struct weft_operand){ code, n, types[type], FALSE };
    run (&amax, 1);
    assert_true (isinf (largest));
    run (&q, 1);
    const float *seen = weft_floats (code, types[type], 0, n, got);
    const float wanted[] = { 1, NAN, 0.5f, NAN, most, 0, NAN, -2 };
    for (uint64_t i = 0; i < n; i++)
      assert_true (seen[i] == wanted[i] || (isnan (seen[i]) && isnan (wanted[i])));
    for (uint64_t i = 0; i < n; i++)
      exact[i] = (double) x[i];
    q.operand[0].data = exact;
    q.operand[1].data = &amax_of;
    q.operand[2].data = y;
    weft_ref_quantise (&q);
    for (uint64_t i = 0; i < n; i++)
      assert_true (y[i] == (double) wanted[i] || (isnan (y[i]) && isnan (wanted[i])));
    q.operand[0].data = x;
    q.operand[1].data = &before;
    q.operand[2].data = code;
    run (&q, 1);
    assert_true (weft_floats (code, types[type], 0, n, got)[3] == most && isnan (got[6]));
  }
}

static void
transposing_twice_gives_back_what_there_was (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (6);

  (void) state;
  for (int trial = 0; trial < 50; trial++) {
    struct tensor t;
    uint8_t back[MOST];
    draw (rand, &t);
    quantise (&t, 1);
    uint64_t n = t.rows * t.columns;
    struct weft_kernel there = kernel (WEFT_OP_TRANSPOSE, t.rows, t.columns),
                       again = kernel (WEFT_OP_TRANSPOSE, t.columns, t.rows);
    there.operand[0] = (struct weft_operand){ t.code, n, WEFT_FP8, FALSE };
    there.operand[1] = again.operand[0] = (struct weft_operand){ t.turned, n, WEFT_FP8, FALSE };
    again.operand[1] = (struct weft_operand){ back, n, WEFT_FP8, FALSE };
    run (&there, 1 + (uint32_t) trial % 3);
    for (uint64_t i = 0; i < n; i++)
      assert_int_equal (t.turned[i % t.columns * t.rows + i / t.columns], t.code[i]);
    run (&again, 1);
    assert_memory_equal (back, t.code, n);
  }
}

static void
quantise_mx (struct tensor *t)
{
  uint64_t n = t->rows * t->columns;
  struct weft_kernel k = kernel (WEFT_OP_QUANTISE_BLOCKS, t->rows, t->columns);

  k.shape.dim[2] = WEFT_MX_BLOCK;
  k.operand[0] = (struct weft_operand){ t->x, n, WEFT_FP32, FALSE };
  k.operand[1] = (struct weft_operand){ t->code, n, WEFT_FP8, FALSE };
  k.operand[2] = (struct weft_operand){ t->scale, 0, WEFT_E8M0, FALSE };
  k.operand[3] = (struct weft_operand){ t->turned, n, WEFT_FP8, FALSE };
  k.operand[4] = (struct weft_operand){ t->scale_t, 0, WEFT_E8M0, FALSE };
  run (&k, 1);
}

/* MXFP8 quantisation writes the matrix and its transpose. Both copies have blocks along their rows.
 * Scales are powers of two, so the results must equal those in double exactly. */
static void
quantise_mx_does_what_its_reference_does_in_both_directions (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);

  (void) state;
  for (int trial = 0; trial < 50; trial++) {
    static double x[MOST], y[MOST], scale[MOST], yt[MOST], scale_t[MOST];
    struct tensor t;
    draw (rand, &t);
    quantise_mx (&t);
    uint64_t n = t.rows * t.columns;
    struct weft_kernel k = kernel (WEFT_OP_QUANTISE_BLOCKS, t.rows, t.columns);
    k.shape.dim[2] = WEFT_MX_BLOCK;
    double *data[] = { x, y, scale, yt, scale_t };
    for (uint64_t i = 0; i < n; i++)
      x[i] = (double) t.x[i];
    for (unsigned o = 0; o < G_N_ELEMENTS (data); o++)
      k.operand[o] = (struct weft_operand){ data[o], 0, WEFT_FP8, FALSE };
    weft_ref_quantise_blocks (&k);
    for (uint64_t i = 0; i < n; i++) {
      assert_true ((double) weft_e4m3_float (t.code[i]) == y[i]);
      assert_true ((double) weft_e4m3_float (t.turned[i]) == yt[i]);
    }
    for (uint64_t i = 0; i < t.rows * weft_mx_blocks (t.columns); i++)
      assert_true ((double) weft_e8m0_float (t.scale[i]) == scale[i]);
    for (uint64_t i = 0; i < t.columns * weft_mx_blocks (t.rows); i++)
      assert_true ((double) weft_e8m0_float (t.scale_t[i]) == scale_t[i]);
  }
}

/* ----------------------------------------------------------------------- products */

struct product {
  struct weft_kernel k, reference;
  float x[MOST], y[MOST], bias[MOST];
  double dx[MOST], dw[MOST], ds[MOST], db[MOST], dy[MOST];
};

/* Copies the operands of the kernel as doubles, for the reference. */
static void
mirror (struct product *p, const struct tensor *w, uint64_t m, gboolean mx)
{
  p->reference = p->k;
  for (uint64_t i = 0; i < m * w->columns; i++)
    p->dx[i] = (double) p->x[i];
  for (uint64_t i = 0; i < w->rows * w->columns; i++)
    p->dw[i] = (double) weft_e4m3_float (w->code[i]);
  for (uint64_t i = 0; mx && i < w->rows * weft_mx_blocks (w->columns); i++)
    p->ds[i] = (double) weft_e8m0_float (w->scale[i]);
  for (uint64_t i = 0; i < w->rows; i++)
    p->db[i] = (double) p->bias[i];
  if (!mx)
    p->ds[0] = (double) w->largest;
  p->reference.operand[0].data = p->dx;
  p->reference.operand[1].data = p->dw;
  p->reference.operand[2].data = p->ds;
}

static void
products_of_codes_and_scales_are_those_of_their_references (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (8);

  (void) state;
  for (int trial = 0; trial < 60; trial++) {
    static struct product p;
    struct tensor w;
    gboolean mx = trial & 1, dgrad = trial & 2;
    uint64_t m = 1 + (uint64_t) trial % 9;
    draw (rand, &w);
    (mx ? quantise_mx (&w) : quantise (&w, 1));
    uint64_t n = w.rows, k = w.columns;
    p.k = kernel (dgrad ? WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS : WEFT_OP_MATMUL_FP8_WEIGHTS, m,
                  dgrad ? k : n);
    /* inner dimension of the matmul: the columns of w in forward, the rows of w in dgrad */
    p.k.shape.dim[2] = dgrad ? n : k;
    for (uint64_t i = 0; i < m * k; i++)
      p.x[i] = (float) g_rand_double_range (rand, -1, 1);
    for (uint64_t i = 0; i < n; i++)
      p.bias[i] = (float) g_rand_double_range (rand, -1, 1);
    p.k.operand[0] = (struct weft_operand){ p.x, m * k, WEFT_FP32, FALSE };
    p.k.operand[1] = (struct weft_operand){ w.code, n * k, WEFT_FP8, FALSE };
    p.k.operand[2] = (struct weft_operand){ mx ? (void *) w.scale : (void *) &w.largest, 1,
                                            mx ? WEFT_E8M0 : WEFT_FP32, FALSE };
    if (!dgrad)
      p.k.operand[3] = (struct weft_operand){ p.bias, n, WEFT_FP32, FALSE };
    p.k.operand[dgrad ? 3 : 4] = (struct weft_operand){ p.y, m * n, WEFT_FP32, FALSE };
    mirror (&p, &w, m, mx);
    if (!dgrad)
      p.reference.operand[3].data = p.db;
    p.reference.operand[dgrad ? 3 : 4].data = p.dy;
    run (&p.k, 1 + (uint32_t) trial % 2);
    weft_kernels[p.k.kind].reference (&p.reference);
    for (uint64_t i = 0; i < m * n; i++)
      assert_true (fabs ((double) p.y[i] - p.dy[i]) <= 1e-5 * (1 + fabs (p.dy[i])));
  }
}

/* The cost model must count one byte per fp8 weight, and for activations the bytes of the training
 * type. */
static void
a_product_reads_its_weights_at_a_byte_each (void **state)
{
  const struct weft_shape shape = { .dim = { 100, 30, 20 }, .dtype = WEFT_BF16 };
  const struct weft_op_info *narrow = &weft_op_info[WEFT_OP_MATMUL_FP8_WEIGHTS],
                            *wide = &weft_op_info[WEFT_OP_MATMUL];

  (void) state;
  assert_true (wide->bytes (&shape) - narrow->bytes (&shape) == 30 * 20);
  assert_true (wide->flops (&shape) == narrow->flops (&shape));
  assert_true (weft_op_info[WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS].bytes (&shape) ==
               narrow->bytes (&shape));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_code_has_the_value_of_the_specification),
  cmocka_unit_test (every_value_is_rounded_to_its_own_code),
  cmocka_unit_test (between_two_codes_the_nearer_wins_and_ties_go_to_even),
  cmocka_unit_test (what_is_too_large_is_stored_as_the_largest),
  cmocka_unit_test (scales_of_blocks_are_the_least_powers_of_two_that_leave_no_element_out),
  cmocka_unit_test (a_tensor_is_off_by_a_sixteenth_of_each_normal_element_at_most),
  cmocka_unit_test (quantise_does_what_its_reference_does),
  cmocka_unit_test (scales_are_finite_and_never_zero),
  cmocka_unit_test (a_tensor_that_overflowed_is_seen),
  cmocka_unit_test (transposing_twice_gives_back_what_there_was),
  cmocka_unit_test (quantise_mx_does_what_its_reference_does_in_both_directions),
  cmocka_unit_test (products_of_codes_and_scales_are_those_of_their_references),
  cmocka_unit_test (a_product_reads_its_weights_at_a_byte_each),
};

WEFT_TESTS (tests)
