/* Multi-token prediction: the ops of a step, gradients against finite differences of the loss, and
 * that training on several ranks gives bit for bit the results of one rank. */
#include "core/job/model.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/questions.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2

/* ------------------------------------------------------------------------ the program */

static uint32_t
count_named (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += p->op[op].kind == kind && is_named (p, op, name);
  return n;
}

static const struct weft_param *
param_named (const weft_program *p, const char *name)
{
  for (uint32_t i = 0; i < p->n_param; i++)
    if (g_str_equal (p->name[p->param[i].name], name))
      return &p->param[i];
  return NULL;
}

/* mtp_num_layers = 2: three heads and three losses per microbatch. Backward begins with the model's
 * own loss (depth 0), and continues with depth 2 and depth 1. */
static void
each_depth_has_a_joint_a_layer_a_head_and_a_loss (void **state)
{
  g_autoptr (weft_program) p = built (
      "topology=cpu model=llama-nano mtp_num_layers=2 seq_length=16 global_batch_size=2 gpus=1 "
      "reduction_order=fast fused_loss=0",
      0);
  uint64_t depth[3], n = 0;

  (void) state;
  assert_int_equal (count_named (p, WEFT_OP_MATMUL, "mtp_proj"), 2 * 2);
  assert_int_equal (count_named (p, WEFT_OP_CONCAT, "mtp_joined"), 2 * 2);
  assert_int_equal (count_named (p, WEFT_OP_MATMUL, "head"), 3 * 2);
  assert_int_equal (count_named (p, WEFT_OP_MATMUL_WGRAD, "head"), 3 * 2);
  assert_int_equal (count_named (p, WEFT_OP_MATMUL, "qkv"), (8 + 2) * 2);
  assert_int_equal (count_kind (p, WEFT_OP_EMBED), 3 * 2);
  assert_int_equal (count_kind (p, WEFT_OP_COPY_IN), 2 * 3 * 2);
  for (uint32_t op = 0; op < p->n_op && n < 3; op++)
    if (p->op[op].kind == WEFT_OP_XENT_BWD)
      depth[n++] = weft_op_shape (p, op)->dim[4];
  assert_int_equal (depth[0], 0);
  assert_int_equal (depth[1], 2);
  assert_int_equal (depth[2], 1);
}

/* The prediction layers on the last stage look up tokens in a copy of the embedding. The gradients
 * of both copies are summed, and the gradient norm counts the parameters once. */
static void
the_last_stage_has_a_copy_of_the_embedding (void **state)
{
#define PIPE                                                                                       \
  "topology=cpu model=deepseek-nano seq_length=16 global_batch_size=4 gpus=2 "                     \
  "pipeline_model_parallel_size=2 "
  g_autoptr (weft_program) first = built (PIPE, 0), last = built (PIPE, 1),
                           without = built (PIPE "mtp_num_layers=0", 1);
  const struct weft_param *own = param_named (first, "embedding.weight"),
                          *copy = param_named (last, "embedding.weight");

  (void) state;
  assert_true (own->tied && !own->duplicate);
  assert_true (copy->tied && copy->duplicate);
  assert_int_equal (own->rows * own->columns, copy->rows * copy->columns);
  assert_null (param_named (without, "embedding.weight"));
  assert_non_null (param_named (last, "head.weight"));
  assert_int_equal (count_named (first, WEFT_OP_ALL_REDUCE, "tied embedding"), 1);
  assert_int_equal (count_named (last, WEFT_OP_ALL_REDUCE, "tied embedding"), 1);
  assert_int_equal (count_named (without, WEFT_OP_ALL_REDUCE, "tied embedding"), 0);
}

static uint64_t
all_elements (const weft_program *p)
{
  uint64_t n = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    n += p->param[i].duplicate ? 0 : p->param[i].rows * p->param[i].columns;
  return n;
}

/* Full recompute of the prediction layer (multi-token prediction): recompute_method uniform runs
 * its projection and its layer again; block does not, as in Megatron-Core. */
static void
uniform_recompute_runs_the_joint_and_the_layer_again (void **state)
{
#define ONE                                                                                        \
  "topology=cpu model=llama-nano mtp_num_layers=1 seq_length=16 global_batch_size=1 gpus=1 "       \
  "recompute_granularity=full recompute_num_layers=1 recompute_method="
  g_autoptr (weft_program) uniform = built (ONE "uniform", 0), block = built (ONE "block", 0);

  (void) state;
  assert_int_equal (count_named (uniform, WEFT_OP_MATMUL, "mtp_proj"), 2);
  assert_int_equal (count_named (block, WEFT_OP_MATMUL, "mtp_proj"), 1);
  assert_int_equal (count_named (uniform, WEFT_OP_EMBED, "embedding"), 2);
}

/* All stages together must have the published parameters. The main model has 671,026,419,200. The
 * prediction layer adds a layer of experts, three norms and a matrix of 7168 x 2 * 7168; it shares
 * embedding and head with the model (its published files, with copies of both, have 14 B
 * parameters). Correction biases of the routers are state, but not parameters of programs. */
static void
stages_of_deepseek_v3_have_all_parameters (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan ("model=deepseek-v3 topology=dgx-h100 gpus=2048 seq_length=4096 "
                      "pipeline_model_parallel_size=16 expert_model_parallel_size=64 "
                      "pipeline_model_parallel_layout=Et*3|(tttt|)*14ttmL global_batch_size=15360");
  const union weft_model *m = &plan->job.model;
  uint64_t n = 0, experts = 0;

  (void) state;
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    n += all_elements (p);
    for (uint32_t i = 0; i < p->n_param; i++)
      if (p->param[i].group == WEFT_GROUP_TP_EP)
        experts += p->param[i].rows * p->param[i].columns;
  }
  uint64_t corrections = (uint64_t) m->num_moe_experts * (uint64_t) (58 + 1);
  assert_int_equal (n + 63 * experts + corrections,
                    weft_model_parameters (m) + weft_model_mtp_parameters (m));
  assert_int_equal (weft_model_parameters (m), 671026419200ull);
  assert_int_equal (weft_model_mtp_parameters (m), 11610068224ull);
}

/* ------------------------------------------------------------------------------ slopes */

static double
objective (real_job *job)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_timeline) t = NULL;

  job->control.forward_only = TRUE;
  t = weft_exec_step (job->x, &error);
  assert_non_null (t);
  const struct weft_metrics *m = weft_exec_metrics (job->x);
  return m->loss + job->plan->job.model.mtp_loss_scaling_factor * m->mtp_loss;
}

static void
move (real_job *job, uint32_t tensor, const float *from, const float *along, float step)
{
  uint64_t n =
      weft_state_at (job->state, tensor)->rows * weft_state_at (job->state, tensor)->columns;
  g_autofree float *value = g_new (float, n);

  for (uint64_t i = 0; i < n; i++)
    value[i] = from[i] + step * along[i];
  weft_state_write (job->state, tensor, WEFT_STATE_WEIGHT, 0, n, value);
}

/* Moves a tensor along its gradient and compares the measured slope of the loss with the square of
 * the gradient. Both are equal if the gradient is right. */
static void
check_slope (real_job *job, uint32_t tensor)
{
  const struct weft_state_tensor *t = weft_state_at (job->state, tensor);
  uint64_t n = t->rows * t->columns;
  g_autofree float *grad = g_new (float, n), *value = g_new (float, n);
  double square = 0;

  weft_state_read (job->state, tensor, WEFT_STATE_GRAD, 0, n, grad);
  weft_state_read (job->state, tensor, WEFT_STATE_WEIGHT, 0, n, value);
  for (uint64_t i = 0; i < n; i++)
    square += (double) grad[i] * (double) grad[i];
  assert_true (square > 0);
  float step = (float) (2e-2 / sqrt (square));
  move (job, tensor, value, grad, step);
  double above = objective (job);
  move (job, tensor, value, grad, -step);
  double below = objective (job);
  move (job, tensor, value, grad, 0);
  double slope = (above - below) / (2 * (double) step);
  /* the loss is a sum of fp32 numbers, so its rounding error disturbs the measured slope */
  double noise = 5e-7 / (double) step;
  if (fabs (slope - square) > 0.02 * square + noise)
    fail_msg ("%s: slope %g along a gradient of square %g", t->name, slope, square);
}

static void
gradients_are_slopes_of_the_loss_and_the_predictions (void **state)
{
  static const char *const jobs[] = {
    "model=llama-nano num_layers=2 seq_length=16 gpus=1 mtp_num_layers=1 ",
    "model=llama-nano num_layers=2 seq_length=16 gpus=1 mtp_num_layers=2 reduction_order=fast ",
    "model=llama-nano num_layers=2 seq_length=16 gpus=4 mtp_num_layers=2 reduction_order=fast "
    "tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2 ",
  };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    g_autofree char *words =
        g_strconcat (jobs[j],
                     "mtp_loss_scaling_factor=0.7 topology=cpu precision=fp32 clip_grad=0 "
                     "global_batch_size=4 micro_batch_size=2",
                     NULL);
    g_autoptr (real_job) job = real_job_open (words, NULL);
    weft_state_init (job->state, 42);
    job->control.lr = job->control.weight_decay = 0;
    real_job_step (job);
    for (uint32_t t = 0; t < weft_state_count (job->state); t++)
      check_slope (job, t);
  }
}

/* ------------------------------------------------------------------------- real steps */

#define DEEPSEEK                                                                                   \
  "topology=cpu model=deepseek-nano num_layers=4 seq_length=16 precision=fp32 "                    \
  "global_batch_size=8 "
#define LLAMA                                                                                      \
  "topology=cpu model=llama-nano num_layers=4 num_query_groups=4 seq_length=16 precision=fp32 "    \
  "global_batch_size=8 mtp_num_layers=1 "

static void
check_bits (const char *model, const char *const *strategies, unsigned n)
{
  g_autofree char *alone = g_strconcat (model, "gpus=1", NULL);
  struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });

  assert_true (one.loss[1] < one.loss[0]);
  for (unsigned s = 0; s < n; s++) {
    g_autofree char *words = g_strconcat (model, strategies[s], NULL);
    weft_test_check_bits (words, STEPS, &one, s);
  }
}

static void
experts_that_predict_give_the_bits_of_one_rank (void **state)
{
  static const char *const strategies[] = {
    "gpus=1 micro_batch_size=2",
    "gpus=2",
    "gpus=2 pipeline_model_parallel_size=2",
    "gpus=4 expert_model_parallel_size=4 use_distributed_optimizer=true overlap_grad_reduce=true "
    "bucket_size=20000",
    "gpus=4 pipeline_model_parallel_size=2 expert_model_parallel_size=2 "
    "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=4 use_megatron_fsdp=true zero_dp_strategy=2 pipeline_model_parallel_size=2 "
    "micro_batch_size=2",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=zb-v",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe",
    "gpus=2 cpu_offloading=true cpu_offloading_num_layers=3",
    "gpus=1 micro_batch_size=2 delay_wgrad_compute=true",
    "gpus=2 pipeline_model_parallel_size=2 gradient_accumulation_fusion=true "
    "defer_embedding_wgrad_compute=true wgrad_deferral_limit=2",
    "gpus=2 recompute_granularity=selective recompute_modules=layernorm,mlp",
  };

  (void) state;
  check_bits (DEEPSEEK, strategies, G_N_ELEMENTS (strategies));
  check_bits (DEEPSEEK "mtp_num_layers=2 ", strategies, G_N_ELEMENTS (strategies));
}

static void
predictions_give_the_bits_of_one_rank_on_ranks_that_share_tensors_and_sequences (void **state)
{
  static const char *const strategies[] = {
    "gpus=2 tensor_model_parallel_size=2",
    "gpus=4 tensor_model_parallel_size=4 sequence_parallel=true",
    "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2 "
    "use_distributed_optimizer=true micro_batch_size=2",
    "gpus=2 tensor_model_parallel_size=2 cross_entropy_loss_fusion=true",
    "gpus=2 context_parallel_size=2",
    "gpus=4 context_parallel_size=4 cp_comm_type=all_gather",
    "gpus=4 context_parallel_size=2 cp_comm_type=a2a tensor_model_parallel_size=2 "
    "sequence_parallel=true recompute_granularity=full recompute_method=uniform "
    "recompute_num_layers=1",
    "gpus=4 virtual_pipeline_model_parallel_size=2 pipeline_model_parallel_size=2 "
    "batch_p2p_comm=false overlap_p2p_comm=true tensor_model_parallel_size=2",
  };

  (void) state;
  check_bits (LLAMA, strategies, G_N_ELEMENTS (strategies));
  check_bits (LLAMA "hidden_dropout=0.1 ", strategies, G_N_ELEMENTS (strategies));
  check_bits (LLAMA "mtp_num_layers=3 ", strategies, G_N_ELEMENTS (strategies));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (each_depth_has_a_joint_a_layer_a_head_and_a_loss),
  cmocka_unit_test (the_last_stage_has_a_copy_of_the_embedding),
  cmocka_unit_test (uniform_recompute_runs_the_joint_and_the_layer_again),
  cmocka_unit_test (stages_of_deepseek_v3_have_all_parameters),
  cmocka_unit_test (gradients_are_slopes_of_the_loss_and_the_predictions),
  cmocka_unit_test (experts_that_predict_give_the_bits_of_one_rank),
  cmocka_unit_test (
      predictions_give_the_bits_of_one_rank_on_ranks_that_share_tensors_and_sequences),
};

WEFT_TESTS (tests, .seconds = 9)
