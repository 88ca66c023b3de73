/* Stochastic rounding of bf16 weights. Rounding must be unbiased, and the random number of an
 * element must be the same on every rank that may update the element. */
#include "kernels/stochastic.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "tests/made/random_job.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <math.h>
#include <string.h>

/* An fp32 number is rounded to bf16 with each of the 65,536 random numbers. The number of results
 * that are rounded up must be the distance from the lower bf16 neighbour, in units of 1/65536 of
 * the gap. */
static void
of_all_draws_as_many_go_up_as_the_float_is_above_its_neighbour (void **state)
{
  GRand *rand = g_rand_new_with_seed (5);

  (void) state;
  for (int i = 0; i < 40; i++) {
    /* 0xbfffffff clears the highest exponent bit: the number is finite, positive or negative */
    uint32_t bits = g_rand_int (rand) & 0xbfffffffu, ups = 0;
    float x = weft_bits_float (bits), low = weft_bits_float (bits & 0xffff0000u);
    float high = weft_bits_float ((bits & 0xffff0000u) + 0x10000u);
    for (uint32_t draw = 0; draw <= 0xffff; draw++) {
      float y = weft_bf16_stochastic (x, (uint16_t) draw);
      assert_true (y == low || y == high);
      ups += y != low;
    }
    assert_int_equal (ups, bits & 0xffff);
  }
  g_rand_free (rand);
}

static void
what_bf16_holds_and_what_is_no_number_stay (void **state)
{
  static const uint32_t same[] = { 0,           0x80000000u, 0x3f800000u,
                                   0xc2280000u, 0x7f800000u, 0xff800000u };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (same); i++)
    for (uint32_t draw = 0; draw <= 0xffff; draw += 0x1111)
      assert_int_equal (
          weft_float_bits (weft_bf16_stochastic (weft_bits_float (same[i]), (uint16_t) draw)),
          same[i]);
  assert_true (isnan (weft_bf16_stochastic (NAN, 0xffff)));
}

/* -------------------------------------------------------------------------- the update */

enum { N = 4000 };

struct weights {
  uint16_t param[N];
  float grad[N], m[N], v[N];
};

static void
start (struct weights *w)
{
  memset (w, 0, sizeof *w);
  for (int i = 0; i < N; i++) {
    w->param[i] = weft_bf16_round (1);
    w->grad[i] = 1;
  }
}

static void
update (struct weights *w, const struct weft_control *control, gboolean drawn,
        const struct weft_whole *whole, uint64_t first, uint64_t n)
{
  struct weft_kernel k = { .kind = WEFT_OP_ADAM,
                           .shape = { .dim = { n, 1, drawn }, .dtype = WEFT_BF16 },
                           .control = control,
                           .whole = *whole };

  k.operand[0] = (struct weft_operand){ w->grad + first, n, WEFT_FP32, 0 };
  k.operand[2] = (struct weft_operand){ w->param + first, n, WEFT_BF16, 1 };
  k.operand[4] = (struct weft_operand){ w->m + first, n, WEFT_FP32, 1 };
  k.operand[5] = (struct weft_operand){ w->v + first, n, WEFT_FP32, 1 };
  for (uint32_t part = 3; part-- > 0;)
    weft_cpu_adam (&k, part, 3);
}

#define WHOLE(first) ((struct weft_whole){ 99, (first), G_MAXUINT64, 0, 0 })

/* Twenty steps subtract 0.0003 each from 1. bf16 numbers just below 1 are 0.0039 apart, so rounding
 * to nearest never leaves 1. The mean of stochastically rounded numbers must follow the steps. */
static void
steps_too_small_for_bf16_are_taken_in_the_mean (void **state)
{
  struct weft_control control = {
    .seed = 3, .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8
  };
  g_autofree struct weights *lot = g_new (struct weights, 1), *nearest = g_new (struct weights, 1);
  double sum = 0;

  (void) state;
  start (lot);
  start (nearest);
  for (control.step = 1; control.step <= 20; control.step++) {
    update (lot, &control, TRUE, &WHOLE (0), 0, N);
    update (nearest, &control, FALSE, &WHOLE (0), 0, N);
  }
  for (int i = 0; i < N; i++) {
    assert_true (weft_bf16_float (nearest->param[i]) == 1);
    sum += (double) weft_bf16_float (lot->param[i]) / N;
  }
  /* `sum` is the mean of N elements after twenty steps. The rounding error of one step has a
   * standard deviation of at most 0.0039 / 2. */
  double deviation = 0.0039 / 2 * sqrt (20.0 / N);
  assert_true (fabs (sum - (1 - 20 * 3e-4)) < 5 * deviation);
}

/* The random number of an element depends on its place in the tensor. So one call, calls for pieces
 * of the rows, and two ranks with half of the columns each must give the same bits. */
static void
who_updates_an_element_does_not_matter (void **state)
{
  enum { COLUMNS = 40, HALF = COLUMNS / 2 };
  struct weft_control control = { .step = 7, .seed = 3, .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95 };
  g_autofree struct weights *one = g_new (struct weights, 1), *pieces = g_new (struct weights, 1),
                            *columns = g_new (struct weights, 1);

  (void) state;
  start (one);
  start (pieces);
  start (columns);
  update (one, &control, TRUE, &WHOLE (0), 0, N);
  update (pieces, &control, TRUE, &WHOLE (0), 0, 1300);
  update (pieces, &control, TRUE, &WHOLE (1300), 1300, N - 1300);
  assert_memory_equal (one->param, pieces->param, sizeof one->param);
  for (uint64_t rank = 0; rank < 2; rank++) {
    struct weft_whole part = { 99, 0, HALF, COLUMNS, rank * HALF };
    update (columns, &control, TRUE, &part, rank * N / 2, N / 2);
  }
  for (int i = 0; i < N; i++) {
    int row = i / COLUMNS, column = i % COLUMNS, rank = column / HALF;
    assert_int_equal (one->param[i], columns->param[rank * N / 2 + row * HALF + column % HALF]);
  }
  control.step++;
  start (pieces);
  update (pieces, &control, TRUE, &WHOLE (0), 0, N);
  assert_memory_not_equal (one->param, pieces->param, sizeof one->param);
}

/* ------------------------------------------------------------------------- whole steps */

#define PLAIN                                                                                      \
  "topology=cpu precision=bf16 global_batch_size=8 seq_length=16 hidden_size=32 num_layers=2 "     \
  "use_megatron_fsdp=true preserve_fp32_weights=false "
#define STOCHASTIC PLAIN "bf16_stochastic_round=true "

static void
every_sharding_has_the_bits_of_one_rank (void **state)
{
  static const char *const models[] = { "model=gpt2-nano ffn_hidden_size=64 ",
                                        "model=mixtral-nano num_layers=1 moe_ffn_hidden_size=24 " };
  static const char *const strategies[] = {
    "gpus=4 zero_dp_strategy=1",
    "gpus=4 zero_dp_strategy=3",
    "gpus=4 zero_dp_strategy=2 tensor_model_parallel_size=2 sequence_parallel=true",
    "gpus=4 zero_dp_strategy=3 pipeline_model_parallel_size=2",
    "gpus=4 zero_dp_strategy=3 expert_model_parallel_size=2",
  };

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    g_autofree char *alone = g_strconcat (STOCHASTIC, models[m], "gpus=1", NULL),
                    *nearest = g_strconcat (PLAIN, models[m], "gpus=1", NULL);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = 3 });
    struct real_result other = weft_test_run (&(struct real_run){ .words = nearest, .steps = 3 });
    assert_true (one.loss[0] == other.loss[0] && one.gradients != 0);
    assert_true (one.weights != other.weights && one.loss[2] < one.loss[0]);
    for (unsigned i = m; i < G_N_ELEMENTS (strategies); i++) {
      g_autofree char *words = g_strconcat (STOCHASTIC, models[m], strategies[i], NULL);
      if (m == (strstr (words, "expert_model") != NULL) || i == 1)
        weft_test_check_bits (words, 3, &one, i);
    }
  }
}

/* Runs 25 steps; returns the last loss. */
static double
last_loss (const char *choice)
{
  g_autofree char *words =
      g_strconcat ("model=gpt2-nano ffn_hidden_size=64 topology=cpu precision=bf16 gpus=1 "
                   "global_batch_size=8 seq_length=32 hidden_size=32 num_layers=2 ",
                   choice, NULL);
  g_autoptr (real_job) job = real_job_open (words, NULL);
  double loss = 0;

  weft_state_init (job->state, 5);
  for (int step = 0; step < 25; step++)
    loss = real_job_step (job)->loss;
  return loss;
}

/* The two ways in which 8 billion parameters fit one GPU (docs/training.md). Half of the optimizer
 * on the host gives the same bits. Without masters the loss after 25 steps differs from that with
 * masters by at most 0.5 %. */
static void
what_saves_memory_of_the_optimizer_keeps_the_loss (void **state)
{
  double whole = last_loss ("");
  double half = last_loss ("optimizer_cpu_offload=true optimizer_offload_fraction=0.5 "
                           "overlap_cpu_optimizer_d2h_h2d=true");
  double none = last_loss ("use_megatron_fsdp=true preserve_fp32_weights=false "
                           "bf16_stochastic_round=true");

  (void) state;
  assert_true (half == whole);
  assert_true (none != whole && fabs (none - whole) < 0.005 * whole);
}

static void
weights_with_masters_are_not_drawn_for (void **state)
{
  g_autoptr (weft_plan) masters = weft_test_plan (
      "model=gpt2-nano topology=cpu gpus=2 precision=bf16 bf16_stochastic_round=true");
  g_autoptr (weft_plan) none = weft_test_plan ("model=gpt2-nano gpus=2 " STOCHASTIC);
  const weft_program *of[] = { masters->role[0], none->role[0] };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (of); i++)
    for (uint32_t op = 0; op < of[i]->n_op; op++)
      if (of[i]->op[op].kind == WEFT_OP_ADAM)
        assert_int_equal (weft_op_shape (of[i], op)->dim[2], i);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (of_all_draws_as_many_go_up_as_the_float_is_above_its_neighbour),
  cmocka_unit_test (what_bf16_holds_and_what_is_no_number_stay),
  cmocka_unit_test (steps_too_small_for_bf16_are_taken_in_the_mean),
  cmocka_unit_test (who_updates_an_element_does_not_matter),
  cmocka_unit_test (every_sharding_has_the_bits_of_one_rank),
  cmocka_unit_test (what_saves_memory_of_the_optimizer_keeps_the_loss),
  cmocka_unit_test (weights_with_masters_are_not_drawn_for),
};

WEFT_TESTS (tests)
