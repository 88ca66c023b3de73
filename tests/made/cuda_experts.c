/* MoE kernels of a device: whole layers against the fp64 references; ops and shapes that a layer on
 * one rank does not have against the CPU kernels. */
#include "tests/made/expert_layer.h"

enum { N_TRIAL = 5 };

/* Draws a random layer. Three of four layers have widths that tensor cores support. */
static void
choose (GRand *rand, struct layer *l, int trial)
{
  expert_layer_choose (rand, l, trial % 2);
  l->canonical = FALSE;
  l->s.l = 1;
  l->dtype = (enum weft_dtype) expert_layer_pick (rand, "0 1 2");
  l->grad_dtype = g_rand_boolean (rand) ? l->dtype : WEFT_FP32;
  if (trial % 4 == 3)
    return;
  l->s.h = (uint64_t) expert_layer_pick (rand, "8 40 136");
  l->s.f = (uint64_t) expert_layer_pick (rand, "16 72");
}

static void
run_and_compare (struct layer *l, GRand *rand, unsigned *compared)
{
  static const double tolerance[] = { [WEFT_FP32] = 4e-5, [WEFT_BF16] = 0.06, [WEFT_FP16] = 0.01 };
  struct layer other = *l, reference = *l;

  reference.doubles = TRUE;
  other.again = TRUE;
  expert_layer_open (l);
  expert_layer_open (&other);
  expert_layer_open (&reference);
  expert_layer_fill (rand, l);
  expert_layer_copy_inputs (l, &other, 0);
  expert_layer_copy_inputs (l, &reference, 0);
  expert_layer_run (l);
  expert_layer_run (&other);
  expert_layer_run (&reference);
  expert_layer_same_bits (l, &other);
  if (expert_layer_same_choice (l, &reference)) {
    expert_layer_compare (l, &reference, tolerance[l->dtype]);
    ++*compared;
  }
  expert_layer_close (l);
  expert_layer_close (&other);
  expert_layer_close (&reference);
}

static void
check_layers (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (7);
  unsigned compared = 0;
  gboolean wanted = FALSE;

  for (int kind = 0; kind < WEFT_N_OP; kind++)
    wanted |= g_str_has_prefix (weft_op_info[kind].word, "moe_") &&
              cuda_case_has (d, (enum weft_op_kind) kind);
  for (int trial = 0; wanted && trial < 2 * N_TRIAL; trial++) {
    struct layer l;
    choose (rand, &l, trial);
    l.device = d;
    run_and_compare (&l, rand, &compared);
  }
  assert_true (!wanted || compared > N_TRIAL);
  g_rand_free (rand);
}

static void
check (const struct cuda_case_device *d, struct weft_kernel *k, double tolerance)
{
  cuda_case_alike (d, k, tolerance);
  cuda_case_free (k);
}

static const union weft_model no_model;

enum { EXPERTS = 5, SOURCES = 6, MOST_ROWS = 3 };

static void
check_sources (const struct cuda_case_device *d)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_GROUP, WEFT_OP_MOE_UNGROUP };
  static const uint64_t columns[] = { 1, 16, 21 }, inner[] = { 0, 1, 2, 6 };
  GRand *rand = g_rand_new_with_seed (8);

  for (unsigned i = 0; i < 48; i++) {
    enum weft_dtype dtype = (enum weft_dtype) (i % 3);
    uint64_t rows = EXPERTS * SOURCES * MOST_ROWS, wide = columns[i / 2 % 3];
    struct weft_kernel k = { .kind = kinds[i % 2],
                             .shape = { .dim = { rows, wide, EXPERTS, SOURCES, i / 24 * MOST_ROWS,
                                                 inner[i / 6 % 4] } },
                             .model = &no_model };
    k.operand[0] = cuda_case_counts (rand, EXPERTS * SOURCES * 2, 1);
    k.operand[1] = cuda_case_floats (rand, rows * wide, dtype);
    k.operand[2] = cuda_case_floats (rand, rows * wide, dtype);
    check (d, &k, 0);
  }
  for (unsigned i = 0; i < 2; i++) {
    struct weft_kernel k = { .kind = WEFT_OP_MOE_TURN,
                             .shape = { .dim = { 3, 7, 1 + i } },
                             .model = &no_model };
    k.operand[0] = cuda_case_counts (rand, 21 * (1 + i), 9);
    k.operand[1] = cuda_case_counts (rand, 21 * (1 + i), 9);
    check (d, &k, 0);
  }
  g_rand_free (rand);
}

static void
check_weights (const struct cuda_case_device *d)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_WEIGH, WEFT_OP_MOE_WEIGH_BWD };
  GRand *rand = g_rand_new_with_seed (9);

  for (unsigned i = 0; i < 12; i++) {
    enum weft_dtype dtype = (enum weft_dtype) (i / 2 % 3);
    uint64_t rows = EXPERTS * MOST_ROWS, wide = i < 6 ? 40 : 7;
    struct weft_kernel k = { .kind = kinds[i % 2],
                             .shape = { .dim = { rows, wide, EXPERTS,
                                                 i % 4 == 3 ? MOST_ROWS : 0 } },
                             .model = &no_model };
    k.operand[0] = cuda_case_floats (rand, rows * wide, dtype);
    k.operand[1] = cuda_case_floats (rand, rows, dtype);
    k.operand[2] = cuda_case_counts (rand, EXPERTS, MOST_ROWS);
    for (uint32_t o = 3; o < 5 + i % 2; o++)
      k.operand[o] = cuda_case_floats (rand, o == 5 ? rows : rows * wide, dtype);
    check (d, &k, 1e-6);
  }
  g_rand_free (rand);
}

static void
check_tallies (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (10);
  struct weft_kernel k = { .kind = WEFT_OP_MOE_TALLY,
                           .shape = { .dim = { 300, 40, 3 } },
                           .model = &no_model };

  k.operand[0] = cuda_case_floats (rand, 900, WEFT_INT32);
  k.operand[1] = cuda_case_floats (rand, 40, WEFT_FP32);
  for (uint64_t i = 0; i < 900; i++)
    ((int32_t *) k.operand[0].data)[i] = g_rand_int_range (rand, 0, 40);
  for (uint64_t e = 0; e < 40; e++)
    ((float *) k.operand[1].data)[e] = (float) e;
  check (d, &k, 0);
  g_rand_free (rand);
}

/* Checks grouped GEMM with several tiles in every dimension, and unequal numbers of rows per
 * expert, of which some are 0. */
void
cuda_case_expert_products (const struct cuda_case_device *d)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_MATMUL, WEFT_OP_MOE_MATMUL_DGRAD,
                                             WEFT_OP_MOE_MATMUL_WGRAD };
  static const int64_t rows[][EXPERTS] = { { 3, 0, 139, 17, 140 }, { 330, 0, 1, 2, 7 } };
  GRand *rand = g_rand_new_with_seed (11);

  for (unsigned i = 0; i < 9; i++) {
    enum weft_dtype dtype = i < 3 ? WEFT_BF16 : i < 6 ? WEFT_FP32 : WEFT_FP16;
    const uint64_t m = i < 6 ? 300 : 340, n = i < 6 ? 72 : 24, wide = i < 6 ? 136 : 328;
    struct weft_kernel k = { .kind = kinds[i % 3],
                             .shape = { .dim = { m, n, wide, EXPERTS, 0 } },
                             .model = &no_model };
    gboolean sums = kinds[i % 3] == WEFT_OP_MOE_MATMUL_WGRAD;
    uint64_t x = kinds[i % 3] == WEFT_OP_MOE_MATMUL ? wide : n;
    k.operand[0] = cuda_case_floats (rand, m * x, dtype);
    k.operand[1] = cuda_case_floats (rand, sums ? m * wide : EXPERTS * n * wide, dtype);
    k.operand[2] = cuda_case_floats (rand, EXPERTS, WEFT_INT64);
    k.operand[3] = cuda_case_floats (rand, sums ? EXPERTS * n * wide : m * (n + wide - x),
                                     sums && i < 6 ? WEFT_FP32 : dtype);
    k.operand[3].accumulate = sums;
    memcpy (k.operand[2].data, rows[i / 6], sizeof rows[0]);
    check (d, &k, 4e-5);
  }
  g_rand_free (rand);
}

void
cuda_case_experts (const struct cuda_case_device *d)
{
  check_layers (d);
  check_sources (d);
  check_weights (d);
  check_tallies (d);
  cuda_case_expert_products (d);
}
