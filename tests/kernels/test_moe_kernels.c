/* MoE kernels: a whole layer against its fp64 reference, its gradients against difference
 * quotients, equal bits where kernels/kernel.h requires them, and routing cases worked out by
 * hand. */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/made/expert_layer.h"
#include "tests/runner/runner.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define N_TRIAL 40

static void
check_layers (gboolean drops, guint32 seed, double tolerance, enum weft_dtype dtype)
{
  GRand *rand = g_rand_new_with_seed (seed);
  unsigned compared = 0;

  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct layer cpu, reference;
    expert_layer_choose (rand, &cpu, drops);
    cpu.dtype = dtype;
    reference = cpu;
    reference.doubles = TRUE;
    expert_layer_open (&cpu);
    expert_layer_open (&reference);
    expert_layer_fill (rand, &cpu);
    expert_layer_copy_inputs (&cpu, &reference, 0);
    expert_layer_run (&cpu);
    expert_layer_run (&reference);
    if (expert_layer_same_choice (&cpu, &reference)) {
      expert_layer_compare (&cpu, &reference, tolerance);
      compared++;
    }
    expert_layer_close (&cpu);
    expert_layer_close (&reference);
  }
  g_rand_free (rand);
  assert_true (compared > N_TRIAL / 2);
}

static void
a_layer_of_experts_does_what_its_reference_does (void **state)
{
  (void) state;
  check_layers (FALSE, 1, 2e-5, WEFT_FP32);
  check_layers (FALSE, 2, 0.06, WEFT_BF16);
}

static void
tokens_over_capacity_are_dropped_as_in_the_reference (void **state)
{
  (void) state;
  check_layers (TRUE, 3, 2e-5, WEFT_FP32);
}

/* ------------------------------------------------------------------------ gradients */

static double
loss_of (const struct layer *l)
{
  double sum = 0;

  for (uint64_t i = 0; i < l->at[M].n; i++)
    sum += expert_layer_get (l, M, i) * expert_layer_get (l, DM, i);
  return sum;
}

static double
slope (struct layer *l, enum array a, uint64_t i)
{
  const double step = 1e-5, value = expert_layer_get (l, a, i);

  expert_layer_set (l, a, i, value + step);
  expert_layer_run (l);
  double above = loss_of (l);
  expert_layer_set (l, a, i, value - step);
  expert_layer_run (l);
  double below = loss_of (l);
  expert_layer_set (l, a, i, value);
  return (above - below) / (2 * step);
}

static void
check_slopes (struct layer *l, enum array of, enum array gradient, enum array more)
{
  uint64_t n = l->at[of].n;
  g_autofree double *given = g_new (double, n);
  double scale = 1;

  expert_layer_run (l);
  for (uint64_t i = 0; i < n; i++) {
    given[i] =
        expert_layer_get (l, gradient, i) + (more == NONE ? 0 : expert_layer_get (l, more, i));
    scale = fmax (scale, fabs (given[i]));
  }
  for (uint64_t i = 0; i < n; i += 1 + n / 60) {
    double found = slope (l, of, i);
    if (!(fabs (found - given[i]) <= 2e-6 * scale))
      fail_msg ("gradient of %s[%" PRIu64 "] is %.9g, the slope %.9g", expert_layer_name (of), i,
                given[i], found);
  }
}

static void
gradients_of_experts_and_router_are_slopes (void **state)
{
  GRand *rand = g_rand_new_with_seed (4);

  (void) state;
  for (int trial = 0; trial < N_TRIAL / 2; trial++) {
    struct layer l;
    expert_layer_choose (rand, &l, trial % 4 == 0);
    l.doubles = TRUE;
    l.canonical = FALSE;
    l.s.l = 1;
    expert_layer_open (&l);
    expert_layer_fill (rand, &l);
    check_slopes (&l, X, DX, DXR);
    check_slopes (&l, WR, DWR, NONE);
    check_slopes (&l, W1, DW1, NONE);
    check_slopes (&l, W2, DW2, NONE);
    expert_layer_close (&l);
  }
  g_rand_free (rand);
}

/* ----------------------------------------------------------------------------- bits */

static void
parts_together_have_the_bits_of_the_whole (void **state)
{
  GRand *rand = g_rand_new_with_seed (5);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct layer whole, split;
    expert_layer_choose (rand, &whole, trial % 3 == 0);
    whole.dtype = trial % 2 ? WEFT_BF16 : WEFT_FP32;
    split = whole;
    split.parts = 2 + (uint32_t) trial % 6;
    expert_layer_open (&whole);
    expert_layer_open (&split);
    expert_layer_fill (rand, &whole);
    expert_layer_copy_inputs (&whole, &split, 0);
    expert_layer_run (&whole);
    expert_layer_run (&split);
    expert_layer_same_bits (&whole, &split);
    expert_layer_close (&whole);
    expert_layer_close (&split);
  }
  g_rand_free (rand);
}

/* Adds the gradients `right` to the gradients `left`, element by element, rounded to the type of
 * gradients. */
static void
add_gradient (struct layer *left, const struct layer *right, enum array a)
{
  for (uint64_t i = 0; i < left->at[a].n; i++) {
    float sum = (float) expert_layer_get (left, a, i) + (float) expert_layer_get (right, a, i);
    weft_store (left->at[a].data, left->at[a].dtype, i, 1, &sum);
  }
}

/* Runs a layer on one sequence at a time, and adds the gradients along the tree of
 * core/base/fold.h. The sums are in entry[0]. */
static void
run_sequences (const struct layer *whole, struct layer *entry, uint32_t n)
{
  uint64_t tokens = whole->s.t / n;

  for (uint32_t i = 0, top = 0; i < n; i++) {
    struct layer *l = &entry[top];
    *l = *whole;
    l->s.t = tokens;
    l->s.l = whole->s.l / n;
    l->s.r = tokens * l->s.k;
    expert_layer_open (l);
    expert_layer_copy_inputs (whole, l, i * tokens);
    expert_layer_run (l);
    uint64_t row = tokens * whole->s.h * weft_dtype_bytes (whole->dtype);
    assert_memory_equal (l->at[M].data, (const char *) whole->at[M].data + i * row, row);
    assert_memory_equal (l->at[DX].data, (const char *) whole->at[DX].data + i * row, row);
    for (uint32_t merges = weft_fold_merges (i, n); merges; merges--, top--) {
      add_gradient (&entry[top - 1], &entry[top], DW1);
      add_gradient (&entry[top - 1], &entry[top], DW2);
      expert_layer_close (&entry[top]);
    }
    top++;
  }
}

static void
canonical_gradients_do_not_depend_on_how_many_sequences_come_at_once (void **state)
{
  GRand *rand = g_rand_new_with_seed (6);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct layer whole, entry[8];
    expert_layer_choose (rand, &whole, FALSE);
    whole.canonical = TRUE;
    uint32_t chunks = weft_chunks ((uint64_t) whole.model.seq_length);
    uint32_t sequences = (uint32_t) (whole.s.t / (uint64_t) whole.model.seq_length);
    whole.s.l = sequences * chunks;
    whole.dtype = trial % 2 ? WEFT_BF16 : WEFT_FP32;
    whole.grad_dtype = trial % 4 == 1 ? WEFT_BF16 : WEFT_FP32;
    expert_layer_open (&whole);
    expert_layer_fill (rand, &whole);
    expert_layer_run (&whole);
    run_sequences (&whole, entry, sequences);
    for (enum array a = DW2; a <= DW1; a += DW1 - DW2)
      for (uint64_t i = 0; i < whole.at[a].n; i++)
        if (expert_layer_get (&entry[0], a, i) != expert_layer_get (&whole, a, i))
          fail_msg ("%s[%" PRIu64 "]: %.9g by sequences, %.9g at once", expert_layer_name (a), i,
                    expert_layer_get (&entry[0], a, i), expert_layer_get (&whole, a, i));
    expert_layer_close (&entry[0]);
    expert_layer_close (&whole);
  }
  g_rand_free (rand);
}

/* -------------------------------------------------------------------------- by hand */

static void
route (union weft_model *m, float *logits, float *bias, int32_t *choice, float *prob)
{
  float scores[8];
  struct weft_kernel k = { .kind = WEFT_OP_MOE_ROUTE,
                           .shape = { .dim = { 1, 8, 2 } },
                           .model = m,
                           .operand = { { .data = logits, .n = 8 },
                                        { .data = bias, .n = 8 },
                                        { .data = scores, .n = 8 },
                                        { .data = choice, .n = 2, .dtype = WEFT_INT32 },
                                        { .data = prob, .n = 2 } } };

  weft_cpu_moe_route (&k, 0, 1);
}

static void
the_lower_expert_wins_a_tie_and_experts_stand_by_number (void **state)
{
  union weft_model m;
  float logits[8] = { 1, 3, 0, 3, 2, 3, 0, 0 }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  route (&m, logits, NULL, choice, prob);
  assert_int_equal (choice[0], 1);
  assert_int_equal (choice[1], 3);
  assert_true (prob[0] == 0.5f && prob[1] == 0.5f);
}

static void
a_bias_changes_the_choice_and_not_the_weights (void **state)
{
  union weft_model m;
  float logits[8] = { 0 }, bias[8] = { [6] = 0.2f, [7] = 0.1f }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  m.moe_router_score_function = WEFT_SCORE_SIGMOID;
  m.moe_router_topk_scaling_factor = 2.5;
  route (&m, logits, bias, choice, prob);
  assert_int_equal (choice[0], 6);
  assert_int_equal (choice[1], 7);
  assert_true (prob[0] == 1.25f && prob[1] == 1.25f);
}

static void
only_experts_of_the_best_groups_are_taken (void **state)
{
  union weft_model m;
  /* eight experts in four groups of two; the router may choose experts of only one group */
  float logits[8] = { 5, -9, 4, 4.5f, 3, 3, 0, 0 }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  m.moe_router_num_groups = 4;
  m.moe_router_group_topk = 1;
  route (&m, logits, NULL, choice, prob);
  assert_int_equal (choice[0], 2);
  assert_int_equal (choice[1], 3);
}

static void
logits_that_are_no_numbers_choose_somebody (void **state)
{
  union weft_model m;
  float logits[8] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  for (int pre = 0; pre < 2; pre++) {
    m.moe_router_pre_softmax = pre;
    route (&m, logits, NULL, choice, prob);
    assert_int_equal (choice[0], 0);
    assert_int_equal (choice[1], 1);
    assert_true (isnan (prob[0]));
  }
}

/* An expert must not get more rows than its capacity, which is the room of its buffers. So rows
 * whose routing weight is NaN must count towards the capacity like all other rows. */
static void
weights_that_are_no_numbers_do_not_exceed_the_capacity (void **state)
{
  int32_t choice[] = { 0, 0, 0, 0, 1 }, row[5];
  float prob[] = { 1, NAN, NAN, NAN, NAN };
  int64_t counts[2];
  struct weft_kernel k = { .kind = WEFT_OP_MOE_SORT,
                           .shape = { .dim = { 5, 1, 2, 2, 0, 1 } },
                           .operand = { { .data = choice, .n = 5, .dtype = WEFT_INT32 },
                                        { .data = prob, .n = 5 },
                                        { .data = counts, .n = 2, .dtype = WEFT_INT64 },
                                        { .data = row, .n = 5, .dtype = WEFT_INT32 } } };
  const int32_t wanted[] = { -1, 0, 1, -1, 2 };

  (void) state;
  weft_cpu_moe_sort (&k, 0, 1);
  assert_memory_equal (row, wanted, sizeof row);
  assert_true (counts[0] == 2 && counts[1] == 1);
}

/* Rows of three experts, received from two ranks in rank order: moe_group sorts them by expert, and
 * moe_ungroup restores rank order. */
static void
rows_are_regrouped_by_expert_and_back (void **state)
{
  int64_t by_source[] = { 1, 0, 2, 2, 1, 0 }, counts[6];
  float x[] = { 10, 12, 13, 20, 21, 22 }, y[6], again[6];
  const float wanted[] = { 10, 20, 21, 22, 12, 13 };
  struct weft_kernel turn = { .shape = { .dim = { 2, 3, 1 } },
                              .operand = { { .data = by_source, .n = 6, .dtype = WEFT_INT64 },
                                           { .data = counts, .n = 6, .dtype = WEFT_INT64 } } };
  struct weft_kernel group = { .shape = { .dim = { 6, 1, 3, 2, 0 } },
                               .operand = { { .data = counts, .n = 6, .dtype = WEFT_INT64 },
                                            { .data = x, .n = 6 },
                                            { .data = y, .n = 6 } } };

  (void) state;
  weft_cpu_moe_turn (&turn, 0, 1);
  weft_cpu_moe_group (&group, 0, 1);
  assert_memory_equal (y, wanted, sizeof y);
  group.operand[1].data = y;
  group.operand[2].data = again;
  weft_cpu_moe_ungroup (&group, 0, 1);
  assert_memory_equal (again, x, sizeof x);
}

/* The outputs of a token's experts are added: the result on one rank with all experts must be
 * bitwise equal to the result on two ranks with half of the experts each. */
static void
experts_of_a_token_are_added_as_ranks_with_blocks_of_them_would (void **state)
{
  float x[] = { 1, 0x1p-24f, 0x1p-24f, -1 }, y;
  int32_t row[] = { 0, 1, 2, 3 }, choice[] = { 0, 4, 5, 7 };
  struct weft_kernel k = { .shape = { .dim = { 1, 1, 4, 4, 8 } },
                           .canonical = TRUE,
                           .operand = { { .data = x, .n = 4 },
                                        { .data = row, .n = 4, .dtype = WEFT_INT32 },
                                        { .data = choice, .n = 4, .dtype = WEFT_INT32 },
                                        { .data = &y, .n = 1 } } };

  (void) state;
  weft_cpu_moe_unpermute (&k, 0, 1);
  assert_true (y == 1 + ((0x1p-24f + 0x1p-24f) - 1));
  k.canonical = FALSE;
  weft_cpu_moe_unpermute (&k, 0, 1);
  assert_true (y == 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_layer_of_experts_does_what_its_reference_does),
  cmocka_unit_test (tokens_over_capacity_are_dropped_as_in_the_reference),
  cmocka_unit_test (gradients_of_experts_and_router_are_slopes),
  cmocka_unit_test (parts_together_have_the_bits_of_the_whole),
  cmocka_unit_test (canonical_gradients_do_not_depend_on_how_many_sequences_come_at_once),
  cmocka_unit_test (the_lower_expert_wins_a_tie_and_experts_stand_by_number),
  cmocka_unit_test (a_bias_changes_the_choice_and_not_the_weights),
  cmocka_unit_test (only_experts_of_the_best_groups_are_taken),
  cmocka_unit_test (logits_that_are_no_numbers_choose_somebody),
  cmocka_unit_test (weights_that_are_no_numbers_do_not_exceed_the_capacity),
  cmocka_unit_test (rows_are_regrouped_by_expert_and_back),
  cmocka_unit_test (experts_of_a_token_are_added_as_ranks_with_blocks_of_them_would),
};

WEFT_TESTS (tests)
