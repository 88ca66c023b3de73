/* Kernels of Muon and of AdamW with 8-bit moments: agreement with their references in fp64, parts
 * against the whole, matrices from the parts of several ranks, and the table of 8-bit numbers. */
#include "core/program/cut.h"
#include "kernels/eight_bits.h"
#include "kernels/muon.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------ the table */

/* Steps of bitsandbytes' create_dynamic_map: near 1 the 64 (128) numbers of the last decade, and
 * every smaller decade half as many. */
static void
codes_of_8_bits_are_denser_for_larger_numbers (void **state)
{
  (void) state;
  for (int is_signed = 0; is_signed < 2; is_signed++) {
    const float *table = weft_eight_bits_table (is_signed);
    uint32_t in_last = 0, in_first = 0;
    for (int i = 0; i < 256; i++) {
      assert_true (i == 0 || table[i - 1] < table[i]);
      in_last += table[i] > 0.1f && table[i] < 1;
      in_first += table[i] > 1e-7f && table[i] < 1e-6f;
    }
    assert_int_equal (in_last, is_signed ? 64 : 128);
    assert_int_equal (in_first, is_signed ? 1 : 2);
    assert_true (table[255] == 1);
    assert_true (fabs (table[0] - (is_signed ? -0.99296875 : 0)) < 1e-7);
    assert_true (fabs (table[254] - (is_signed ? 0.99296875 : 0.996484375)) < 1e-7);
  }
  assert_true (fabs (weft_eight_bits_table (TRUE)[128] - 5.5e-7) < 1e-12);
  assert_true (fabs (weft_eight_bits_table (FALSE)[1] - 3.25e-7) < 1e-12);
}

static void
a_code_is_the_nearest_number_with_the_same_sign (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);

  (void) state;
  for (int i = 0; i < 20000; i++) {
    gboolean is_signed = i % 2;
    const float *table = weft_eight_bits_table (is_signed);
    double size = pow (10, g_rand_double_range (rand, -7, 0));
    float x = (float) (is_signed && i % 4 == 1 ? -size : size), nearest = INFINITY;
    for (int c = 0; c < 256; c++)
      if ((!is_signed || signbit (table[c]) == signbit (x) || table[c] == 0) &&
          fabsf (table[c] - x) < fabsf (nearest - x) && (x > 0 || table[c] != 0))
        nearest = table[c];
    assert_true (fabsf (table[weft_eight_bits_code (table, x)] - x) <= fabsf (nearest - x));
  }
  assert_true (weft_eight_bits_table (TRUE)[weft_eight_bits_code (weft_eight_bits_table (TRUE),
                                                                  0)] == 0);
}

/* ------------------------------------------------------------------------ 8-bit Adam */

enum { ELEMENTS = 1000, BLOCKS = 4 };

struct moments {
  float grad[ELEMENTS], weight[ELEMENTS], scale[2][BLOCKS];
  uint8_t code[2][ELEMENTS];
};

static struct weft_control
control_of (uint64_t step)
{
  return (struct weft_control){ .step = step, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95,
                                .epsilon = 1e-8, .weight_decay = 0.1 };
}

static struct weft_kernel
kernel_of (struct moments *m, const struct weft_control *control)
{
  return (struct weft_kernel){ .kind = WEFT_OP_ADAM_8BIT,
                               .shape = { .dim = { ELEMENTS }, .dtype = WEFT_FP32 },
                               .control = control,
                               .decay = TRUE,
                               .operand = { { m->grad, ELEMENTS, WEFT_FP32, 0 },
                                            { 0 },
                                            { m->weight, ELEMENTS, WEFT_FP32, 1 },
                                            { 0 },
                                            { m->code[0], ELEMENTS, WEFT_UINT8, 1 },
                                            { m->code[1], ELEMENTS, WEFT_UINT8, 1 },
                                            { m->scale[0], BLOCKS, WEFT_FP32, 1 },
                                            { m->scale[1], BLOCKS, WEFT_FP32, 1 } } };
}

static void
draw (GRand *rand, float *out, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    out[i] = (float) g_rand_double_range (rand, -1, 1);
}

/* The reference keeps its weights and scales as doubles. Its codes may differ by one where a moment
 * lies between two numbers, which the next step can see: so each step begins with equal states. */
static void
adam_with_8_bits_agrees_with_its_reference (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (8);
  struct moments m = { 0 };
  double grad[ELEMENTS], weight[ELEMENTS], scale[2][BLOCKS];

  (void) state;
  draw (rand, m.weight, ELEMENTS);
  for (uint64_t step = 1; step <= 5; step++) {
    const struct weft_control control = control_of (step);
    draw (rand, m.grad, ELEMENTS);
    struct moments before = m;
    struct weft_kernel k = kernel_of (&m, &control), reference = kernel_of (&before, &control);
    for (int i = 0; i < ELEMENTS; i++) {
      grad[i] = m.grad[i];
      weight[i] = m.weight[i];
    }
    for (int i = 0; i < 2 * BLOCKS; i++)
      scale[i / BLOCKS][i % BLOCKS] = m.scale[i / BLOCKS][i % BLOCKS];
    reference.operand[0].data = grad;
    reference.operand[2].data = weight;
    reference.operand[6].data = scale[0];
    reference.operand[7].data = scale[1];
    weft_cpu_adam_8bit (&k, 0, 1);
    weft_ref_adam_8bit (&reference);
    for (int i = 0; i < ELEMENTS; i++) {
      assert_true (fabs (m.weight[i] - weight[i]) < 2e-6);
      assert_in_range (m.code[0][i] + 1 - before.code[0][i], 0, 2);
      assert_in_range (m.code[1][i] + 1 - before.code[1][i], 0, 2);
    }
    for (int i = 0; i < 2 * BLOCKS; i++)
      assert_true (fabs (m.scale[i / BLOCKS][i % BLOCKS] / scale[i / BLOCKS][i % BLOCKS] - 1) <
                   1e-5);
  }
}

static void
parts_of_adam_with_8_bits_agree_with_the_whole (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (9);
  const struct weft_control control = control_of (1);
  struct moments whole = { 0 };

  (void) state;
  draw (rand, whole.weight, ELEMENTS);
  draw (rand, whole.grad, ELEMENTS);
  struct moments parts = whole;
  struct weft_kernel a = kernel_of (&whole, &control), b = kernel_of (&parts, &control);
  weft_cpu_adam_8bit (&a, 0, 1);
  for (uint32_t part = 0; part < 3; part++)
    weft_cpu_adam_8bit (&b, part, 3);
  assert_memory_equal (&whole, &parts, sizeof whole);
}

/* ------------------------------------------------------------------------------ Muon */

enum { MOST = 48 * 96 };

static union weft_train settings = { .muon_momentum = 0.9,
                                     .muon_coefficient_type = WEFT_MUON_QUINTIC,
                                     .muon_extra_scale_factor = 1 };

/* Runs a kernel and its reference on the same fp32 inputs, and compares what they write. */
static void
compare (struct weft_kernel *k, uint32_t n_operands, uint32_t written, double tolerance)
{
  static double doubles[4][2 * MOST];
  struct weft_kernel reference = *k;

  for (uint32_t i = 0; i < n_operands; i++) {
    for (uint64_t e = 0; e < k->operand[i].n && k->operand[i].data; e++)
      doubles[i][e] = ((float *) k->operand[i].data)[e];
    if (k->operand[i].data)
      reference.operand[i].data = doubles[i];
    assert_true (!k->operand[i].data ||
                 k->operand[i].n == weft_kernels[k->kind].extent (k, i));
  }
  weft_kernels[k->kind].cpu (k, 0, 1);
  weft_kernels[k->kind].reference (&reference);
  for (uint64_t e = 0; e < k->operand[written].n; e++)
    assert_true (fabs (((float *) k->operand[written].data)[e] - doubles[written][e]) < tolerance);
}

#define FLOATS(array, count) { (array), (count), WEFT_FP32, 0 }

static void
kernels_of_muon_agree_with_their_references (void **state)
{
  static const uint64_t sizes[][2] = { { 24, 96 }, { 48, 40 }, { 33, 33 }, { 1, 7 }, { 40, 1 } };
  static float x[MOST], a[MOST], y[MOST], factor = 0.5f;
  const struct weft_control control = control_of (1);
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (sizes); i++) {
    uint64_t rows = sizes[i][0], columns = sizes[i][1], n = rows * columns;
    uint64_t tall = rows > columns, least = MIN (rows, columns), most = MAX (rows, columns);
    struct weft_kernel k = { .control = &control, .train = &settings, .decay = TRUE,
                             .matrix = { .rows = rows, .columns = columns, .ways = 1 } };
    draw (rand, x, n);
    draw (rand, y, n);
    draw (rand, a, least * least);
    k.kind = WEFT_OP_MUON_MOMENTUM;
    k.shape = (struct weft_shape){ .dim = { n } };
    memcpy (k.operand, (struct weft_operand[]){ FLOATS (x, n), FLOATS (&factor, 1), FLOATS (y, n) },
            3 * sizeof *k.operand);
    compare (&k, 3, 2, 1e-6);
    k.kind = WEFT_OP_MUON_TAKE;
    memcpy (k.operand,
            (struct weft_operand[]){ FLOATS (y, n), FLOATS (x, n), FLOATS (&factor, 1),
                                     FLOATS (y, n) },
            4 * sizeof *k.operand);
    compare (&k, 4, 3, 1e-6);
    k.kind = WEFT_OP_MUON_NORMALISE;
    k.shape = (struct weft_shape){ .dim = { rows, columns, 1, WEFT_MUON_WHOLE } };
    memcpy (k.operand, (struct weft_operand[]){ FLOATS (x, n), FLOATS (y, n) },
            2 * sizeof *k.operand);
    compare (&k, 2, 1, 1e-6);
    k.kind = WEFT_OP_NEWTON_SCHULZ;
    k.shape = (struct weft_shape){ .dim = { least, least, most, 0, 1, tall } };
    memcpy (k.operand,
            (struct weft_operand[]){ FLOATS (y, n), { 0 }, FLOATS (x, least * least) },
            3 * sizeof *k.operand);
    compare (&k, 3, 2, 1e-5);
    k.shape = (struct weft_shape){ .dim = { least, least, least, 1, 1, tall } };
    memcpy (k.operand,
            (struct weft_operand[]){ FLOATS (a, least * least), { 0 }, FLOATS (x, least * least) },
            3 * sizeof *k.operand);
    compare (&k, 3, 2, 1e-3);
    k.shape = (struct weft_shape){ .dim = { rows, columns, least, 2, 3, tall } };
    memcpy (k.operand,
            (struct weft_operand[]){ FLOATS (y, n), FLOATS (a, least * least), FLOATS (x, n) },
            3 * sizeof *k.operand);
    compare (&k, 3, 2, 1e-4);
    k.kind = WEFT_OP_MUON_UPDATE;
    k.shape = (struct weft_shape){ .dim = { rows, columns, 1, WEFT_MUON_WHOLE } };
    memcpy (k.operand,
            (struct weft_operand[]){ FLOATS (y, n), FLOATS (&factor, 1), FLOATS (x, n), { 0 } },
            4 * sizeof *k.operand);
    compare (&k, 4, 2, 1e-5);
  }
}

/* Five steps bring every singular value of a random matrix near 1: the rows of the result are
 * nearly orthogonal. The band is that of the coefficients (0.7 to 1.2 squared). */
static void
five_steps_make_the_rows_orthogonal (void **state)
{
  enum { ROWS = 16, COLUMNS = 64 };
  static float x[2][ROWS * COLUMNS], gram[ROWS * ROWS], polynomial[ROWS * ROWS];
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);
  struct weft_kernel k = { .kind = WEFT_OP_MUON_NORMALISE,
                           .shape = { .dim = { ROWS, COLUMNS, 1, 0 } },
                           .train = &settings,
                           .matrix = { .rows = ROWS, .columns = COLUMNS, .ways = 1 },
                           .operand = { FLOATS (x[1], ROWS * COLUMNS),
                                        FLOATS (x[0], ROWS * COLUMNS) } };

  (void) state;
  draw (rand, x[1], ROWS * COLUMNS);
  weft_cpu_muon_normalise (&k, 0, 1);
  k.kind = WEFT_OP_NEWTON_SCHULZ;
  for (uint64_t step = 0; step < 5; step++) {
    float *from = x[step % 2], *to = x[(step + 1) % 2];
    const struct {
      struct weft_shape shape;
      float *x, *a, *y;
      uint64_t n;
    } products[] = {
      { { .dim = { ROWS, ROWS, COLUMNS, 0, step } }, from, NULL, gram, ROWS * ROWS },
      { { .dim = { ROWS, ROWS, ROWS, 1, step } }, gram, NULL, polynomial, ROWS * ROWS },
      { { .dim = { ROWS, COLUMNS, ROWS, 2, step } }, from, polynomial, to, ROWS * COLUMNS },
    };
    for (unsigned i = 0; i < G_N_ELEMENTS (products); i++) {
      k.shape = products[i].shape;
      k.operand[0].data = products[i].x;
      k.operand[1].data = products[i].a;
      k.operand[2] = (struct weft_operand) FLOATS (products[i].y, products[i].n);
      for (uint32_t part = 0; part < 2; part++) /* parts agree with the whole: gram is exact */
        weft_cpu_newton_schulz (&k, part, 2);
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j <= i; j++) {
      double sum = 0;
      for (int c = 0; c < COLUMNS; c++)
        sum += (double) x[1][i * COLUMNS + c] * x[1][j * COLUMNS + c];
      if (i == j)
        assert_true (sum > 0.49 && sum < 1.45);
      else
        assert_true (fabs (sum) < 0.3);
    }
}

/* The matrices of [q | k | v] are the same from one rank as from two ranks that divide the rows of
 * each block, and from two that divide columns. */
static void
a_matrix_has_the_same_bits_from_every_number_of_ranks (void **state)
{
  enum { ROWS = 16, COLUMNS = 6, TAIL = 4, N = ROWS * COLUMNS };
  static const uint32_t first[] = { [WEFT_MUON_QUERIES] = 0, [WEFT_MUON_KEYS] = ROWS - 2 * TAIL,
                                    [WEFT_MUON_VALUES] = ROWS - TAIL };
  static float whole[N], parts[N], one[N], two[N];
  g_autoptr (GRand) rand = g_rand_new_with_seed (11);

  (void) state;
  draw (rand, whole, N);
  for (uint32_t block = WEFT_MUON_WHOLE; block <= WEFT_MUON_VALUES; block++)
    for (int cut = WEFT_CUT_ROWS; cut <= WEFT_CUT_COLUMNS; cut++) {
      gboolean by_rows = cut == WEFT_CUT_ROWS;
      uint64_t rows = weft_muon_rows (ROWS, TAIL, block), part = N / 2;
      struct weft_kernel k = { .shape = { .dim = { rows, COLUMNS, 1, block } },
                               .matrix = { ROWS, COLUMNS, TAIL, 1, 0, WEFT_CUT_NONE },
                               .operand = { FLOATS (whole, N), FLOATS (one, rows * COLUMNS) } };
      for (uint64_t i = 0; i < N; i++) {
        struct weft_param param = { .rows = by_rows ? ROWS / 2 : ROWS,
                                    .columns = by_rows ? COLUMNS : COLUMNS / 2,
                                    .whole_rows = ROWS, .whole_columns = COLUMNS,
                                    .tail = by_rows ? TAIL / 2 : 0, .ways = 2, .cut = cut };
        struct weft_cut_run run;
        assert_true (weft_cut_run (&param, (uint32_t) (i / part), i % part, i % part + 1, &run));
        parts[i] = whole[run.first];
      }
      weft_cpu_muon_normalise (&k, 0, 1);
      k.shape.dim[2] = 2;
      k.matrix = (struct weft_matrix){ by_rows ? ROWS / 2 : ROWS, by_rows ? COLUMNS : COLUMNS / 2,
                                       by_rows ? TAIL / 2 : TAIL, 2, 0, cut };
      k.operand[0].data = parts;
      k.operand[1].data = two;
      weft_cpu_muon_normalise (&k, 0, 1);
      assert_memory_equal (one, two, rows * COLUMNS * sizeof *one);
      assert_true ((one[0] > 0) == (whole[first[block] * COLUMNS] > 0));
    }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (codes_of_8_bits_are_denser_for_larger_numbers),
  cmocka_unit_test (a_code_is_the_nearest_number_with_the_same_sign),
  cmocka_unit_test (adam_with_8_bits_agrees_with_its_reference),
  cmocka_unit_test (parts_of_adam_with_8_bits_agree_with_the_whole),
  cmocka_unit_test (kernels_of_muon_agree_with_their_references),
  cmocka_unit_test (five_steps_make_the_rows_orthogonal),
  cmocka_unit_test (a_matrix_has_the_same_bits_from_every_number_of_ranks),
};
WEFT_TESTS (tests)
