/* moe_router_enable_expert_bias: the token counts ("tallies") per expert, the update of the biases,
 * and that biases are part of the state: equal under all strategies and stored in checkpoints. */
#include "core/base/sanitize.h"
#include "kernels/kernel.h"
#include "tests/runner/folder.h"
#include "tests/made/questions.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define RATE 0.001

/* --------------------------------------------------------------------------- kernels */

static struct weft_operand
of (void *data, uint64_t n, enum weft_dtype dtype)
{
  return (struct weft_operand){ .data = data, .n = n, .dtype = dtype };
}

static void
tokens_are_counted_by_the_experts_they_chose (void **state)
{
  int32_t choice[] = { 0, 2, 2, 3, 0, 2 };
  float tally[4] = { 1, 0, 0, 5 };
  double reference[4] = { 1, 0, 0, 5 };
  const float wanted[4] = { 3, 0, 3, 6 };
  struct weft_kernel k = { .kind = WEFT_OP_MOE_TALLY, .shape = { .dim = { 3, 4, 2 } } };

  (void) state;
  k.operand[0] = of (choice, 6, WEFT_INT32);
  k.operand[1] = of (tally, 4, WEFT_FP32);
  weft_kernels[k.kind].cpu (&k, 0, 1);
  k.operand[1] = of (reference, 4, WEFT_FP32);
  weft_kernels[k.kind].reference (&k);
  for (int e = 0; e < 4; e++) {
    assert_true (tally[e] == wanted[e]);
    assert_true (reference[e] == (double) wanted[e]);
  }
}

/* Two rows (layers) of four experts, with means of 3 and 2 tokens per expert. The bias of an expert
 * with more tokens than the mean falls by one step. With fewer tokens it rises by one step, and
 * with exactly the mean it stays. */
static void
biases_go_towards_the_mean_by_one_step (void **state)
{
  float tally[] = { 1, 3, 3, 5, 2, 2, 2, 2 }, bias[] = { 0.5F, 0, 0.25F, 0, 1, 2, 3, 4 };
  double tallies[] = { 1, 3, 3, 5, 2, 2, 2, 2 }, reference[] = { 0.5, 0, 0.25, 0, 1, 2, 3, 4 };
  const float wanted[] = { 0.501F, 0, 0.25F, -0.001F, 1, 2, 3, 4 };
  union weft_model model;
  struct weft_kernel k = { .kind = WEFT_OP_MOE_BALANCE,
                           .shape = { .dim = { 2, 4 } },
                           .model = &model };

  (void) state;
  weft_table_defaults (&weft_model_table, model.at);
  assert_true (model.moe_router_bias_update_rate == RATE);
  k.operand[0] = of (tally, 8, WEFT_FP32);
  k.operand[1] = of (bias, 8, WEFT_FP32);
  weft_kernels[k.kind].cpu (&k, 0, 1);
  k.operand[0] = of (tallies, 8, WEFT_FP32);
  k.operand[1] = of (reference, 8, WEFT_FP32);
  weft_kernels[k.kind].reference (&k);
  for (int e = 0; e < 8; e++) {
    assert_true (bias[e] == wanted[e]);
    assert_true (fabs (reference[e] - (double) wanted[e]) < 1e-7);
  }
}

/* -------------------------------------------------------------------------- programs */

#define WORDS                                                                                      \
  "num_layers=4 hidden_size=64 num_attention_heads=4 ffn_hidden_size=128 vocab_size=256 "          \
  "seq_length=64 num_moe_experts=8 moe_router_topk=2 moe_ffn_hidden_size=96 activation=swiglu "    \
  "moe_first_dense_layers=1 precision=bf16 topology=dgx-h100 gpus=8 global_batch_size=16 "         \
  "moe_router_score_function=sigmoid moe_router_enable_expert_bias=true "

static uint32_t
find (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && is_named (p, op, name))
      return op;
  fail_msg ("no %s", name);
  return WEFT_NO_OP;
}

/* moe_router_enable_expert_bias sums the token counts of experts over all ranks of the stage, once
 * per step: 4 bytes for each expert of each layer with experts. */
static void
moe_router_enable_expert_bias_adds_tallies_before_the_update (void **state)
{
  g_autoptr (weft_program) p = built (WORDS, 0);
  g_autoptr (weft_program) plain = built (WORDS "moe_router_enable_expert_bias=false", 0);
  uint32_t sum = find (p, WEFT_OP_ALL_REDUCE, "tallies"),
           update = find (p, WEFT_OP_MOE_BALANCE, "expert_bias"),
           route = find (p, WEFT_OP_MOE_ROUTE, "route"),
           count = find (p, WEFT_OP_MOE_TALLY, "tally");

  (void) state;
  assert_int_equal (count_kind (plain, WEFT_OP_MOE_TALLY), 0);
  assert_int_equal (count_kind (p, WEFT_OP_MOE_TALLY), 3 * 2); /* layers x microbatches */
  assert_int_equal (p->op[sum].group, WEFT_GROUP_STAGE);
  assert_true (weft_op_bytes (p, sum) == 3 * 8 * 4);
  assert_int_equal (p->op[update].phase, WEFT_PHASE_FINALIZE);
  assert_true (comes_after (p, count, sum) && comes_after (p, sum, update));
  assert_true (update < find (p, WEFT_OP_ADAM, "adam"));
  uint32_t bias = p->uses[p->op[route].uses + 1].buf;
  assert_int_equal (weft_buf_owner (p, bias), p->uses[p->op[update].uses + 1].buf);
  assert_int_equal (p->buf[bias].bytes, 8 * 4);
  for (uint32_t i = 0; i < p->n_param; i++)
    assert_string_not_equal (p->name[p->param[i].name], WEFT_EXPERT_BIAS);
}

static void
what_is_run_again_is_counted_once (void **state)
{
  static const char *const words[] = {
    WORDS "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
    WORDS "recompute_granularity=selective recompute_modules=moe",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    g_autoptr (weft_program) p = built (words[i], 0);
    assert_int_equal (count_kind (p, WEFT_OP_MOE_ROUTE), 3 * 2 * 2);
    assert_int_equal (count_kind (p, WEFT_OP_MOE_TALLY), 3 * 2);
  }
}

/* ------------------------------------------------------------------------ real steps */

#define SMALL                                                                                      \
  "topology=cpu model=mixtral-nano num_layers=4 hidden_size=32 num_attention_heads=4 "             \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=64 moe_ffn_hidden_size=24 seq_length=16 "      \
  "global_batch_size=8 moe_router_score_function=sigmoid moe_router_enable_expert_bias=true "      \
  "moe_router_bias_update_rate=0.05 "
enum { STEPS = 3 };

static const char *const strategies[] = {
  "gpus=2",
  "gpus=4 expert_model_parallel_size=4 use_distributed_optimizer=true overlap_grad_reduce=true",
  "gpus=4 expert_model_parallel_size=2 pipeline_model_parallel_size=2",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe",
  "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true",
  "gpus=2 context_parallel_size=2",
  "gpus=2 recompute_granularity=selective recompute_modules=moe",
  "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
};

static void
biases_are_those_of_one_rank_under_every_strategy (void **state)
{
  static const char *const precisions[] = { "precision=fp32 ", "precision=bf16 " };

  (void) state;
  for (int p = 0; p < 2; p++) {
    g_autofree char *alone = g_strconcat (SMALL, precisions[p], "gpus=1", NULL);
    g_autofree char *without = g_strconcat (alone, " moe_router_enable_expert_bias=false", NULL);
    struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });
    struct real_result none =
        weft_test_run (&(struct real_run){ .words = without, .steps = STEPS });
    assert_true (one.loss[0] == none.loss[0] && one.loss[1] != none.loss[1]);
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
      g_autofree char *words = g_strconcat (SMALL, precisions[p], strategies[s], NULL);
      weft_test_check_bits (words, STEPS, &one, s);
    }
  }
}

/* Returns the index of the state tensor with the expert biases of a layer. */
static uint32_t
bias_of (const weft_state *state, uint32_t layer)
{
  g_autofree char *name = g_strdup_printf ("layers.%u.%s", layer, WEFT_EXPERT_BIAS);

  for (uint32_t i = 0; i < weft_state_count (state); i++)
    if (g_str_equal (weft_state_at (state, i)->name, name))
      return i;
  fail_msg ("no %s", name);
  return 0;
}

static void
read_biases (real_job *job, uint32_t layer, float bias[8])
{
  uint32_t tensor = bias_of (job->state, layer);

  assert_int_equal (weft_state_at (job->state, tensor)->rows, 8);
  weft_state_read (job->state, tensor, WEFT_STATE_MASTER, 0, 8, bias);
}

/* A training step changes biases; an evaluation must not change any. */
static void
an_evaluation_moves_nothing (void **state)
{
  real_job *job = real_job_open (SMALL "precision=bf16 gpus=2", NULL);
  float first[8], after[8];
  unsigned moved = 0;

  (void) state;
  weft_state_init (job->state, 3);
  read_biases (job, 0, first);
  for (int e = 0; e < 8; e++)
    assert_true (first[e] == 0);
  real_job_step (job);
  read_biases (job, 0, first);
  for (int e = 0; e < 8; e++) {
    assert_true (first[e] == 0 || fabsf (first[e]) == 0.05F);
    moved += first[e] != 0;
  }
  assert_true (moved > 1);
  real_job_evaluate (job);
  read_biases (job, 0, after);
  assert_memory_equal (first, after, sizeof first);
  real_job_close (job);
}

/* A job under another strategy loads the checkpoint of a job on two GPUs. Both jobs must have the
 * same loss and the same biases after their next step. */
static void
biases_are_in_checkpoints (void **state)
{
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s += 2) {
    g_autofree char *dir = g_strdup_printf ("%s/%u", (const char *) *state, s);
    g_autofree char *there = g_strconcat (SMALL "precision=bf16 ", strategies[s], NULL);
    real_job *a = real_job_open (SMALL "precision=bf16 gpus=2", NULL),
             *b = real_job_open (there, NULL);
    struct weft_progress progress = { .step = 2, .seed = 3 };
    g_autoptr (GError) error = NULL;
    g_autofree char *passed_over = NULL;
    float mine[8], other[8];

    weft_state_init (a->state, 3);
    real_job_step (a);
    real_job_step (a);
    assert_true (weft_checkpoint_save (a->state, &a->plan->job, &progress, dir, 0, &error));
    assert_true (
        weft_checkpoint_load (b->state, &b->plan->job, dir, &progress, &passed_over, &error));
    b->control.step = a->control.step;
    assert_true (real_job_step (a)->loss == real_job_step (b)->loss);
    for (uint32_t layer = 0; layer < 4; layer++) {
      read_biases (a, layer, mine);
      read_biases (b, layer, other);
      assert_memory_equal (mine, other, sizeof mine);
    }
    real_job_close (a);
    real_job_close (b);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (tokens_are_counted_by_the_experts_they_chose),
  cmocka_unit_test (biases_go_towards_the_mean_by_one_step),
  cmocka_unit_test (moe_router_enable_expert_bias_adds_tallies_before_the_update),
  cmocka_unit_test (what_is_run_again_is_counted_once),
  cmocka_unit_test (biases_are_those_of_one_rank_under_every_strategy),
  cmocka_unit_test (an_evaluation_moves_nothing),
  cmocka_unit_test_setup_teardown (biases_are_in_checkpoints, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests)
