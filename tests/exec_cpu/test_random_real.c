/* Random legal jobs with real numbers: allocated memory must be the planned memory, the ops those
 * of the simulation, and in canonical order the bits those of one rank.
 *
 * test_exec_cpu random_real -- [SEED [JOBS]]: other jobs, or fewer of them */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include "train/state.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEED 2026
/* numbers of jobs: usually, and with `./weft test --long` */
#define JOBS (WEFT_THREAD_SANITIZER || WEFT_ADDRESS_SANITIZER ? 200 : 250)
#define ALL_JOBS 1200
#define MOST_RANKS 12
#define MOST_PARAMETERS 200000
#define MOST_TOKENS 2500
/* limit of a job's parameters x tokens per step; larger jobs are not drawn */
#define MOST_PRODUCTS 40000000

/* Whether gradients of the job may overflow and are checked for it. If the loss is a sum over all
 * tokens, gradients times the loss scale may exceed the range of fp16. */
static gboolean
overflows (const struct weft_job *job)
{
  return job->train.precision == WEFT_FP16 && job->strategy.calculate_per_token_loss &&
         job->strategy.check_for_nan_in_grad;
}

/* Whether the text of a job asks for at most MOST_RANKS ranks. Most random jobs have more ranks. */
static gboolean
may_be_small (const char *words)
{
  const char *ranks = strstr (words, " gpus=");

  return ranks && g_ascii_strtoull (ranks + strlen (" gpus="), NULL, 10) <= MOST_RANKS;
}

static gboolean
is_small (const struct weft_job *job)
{
  int64_t tokens = job->train.global_batch_size * job->model.seq_length,
          parameters = (int64_t) weft_model_parameters (&job->model);

  return tokens <= MOST_TOKENS && parameters <= MOST_PARAMETERS &&
         tokens * parameters <= MOST_PRODUCTS;
}

/* The job `words` with a smaller vocabulary and shorter sequences. Large ones take most of the time
 * of a run, but do not change the program. One job in eight stays as it is. */
static char *
shorter (GRand *rand, const char *words, const struct weft_job *job)
{
  uint32_t vocabulary = 64 + 16 * (uint32_t) g_rand_int_range (rand, 0, 3);
  const char *sequence = job->model.seq_length > 32 ? " seq_length=16" : "";

  return g_rand_int_range (rand, 0, 8)
             ? g_strdup_printf ("%s vocab_size=%u%s", words, vocabulary, sequence)
             : g_strdup (words);
}

/* Draws a job that can run on this machine; its cluster does not change the numbers. Buffers of
 * experts get room for all tokens (moe_load_imbalance). */
static char *
small_job (GRand *rand, struct weft_job *job)
{
  for (;;) {
    g_autofree char *plain = weft_random_job (rand);
    const char *order = g_rand_int_range (rand, 0, 10) ? "" : " reduction_order=canonical";
    g_autofree char *drawn = g_strconcat (plain, " moe_load_imbalance=64", order, NULL);
    if (!may_be_small (drawn) || !weft_test_job (drawn, job, NULL))
      continue;
    g_autofree char *words = shorter (rand, drawn, job);
    if (weft_test_job (words, job, NULL) && !overflows (job) && is_small (job))
      return g_steal_pointer (&words);
  }
}

/* Sets the first weight to NaN and runs a step. With check_for_nan_in_grad, the step may end with
 * an error. Other jobs skip the update or store NaN. */
static void
run_not_finite (const char *words, const struct weft_job *job, weft_exec *x)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_state) state = weft_state_new (x);
  const float bad = NAN;

  weft_state_write (state, 0, WEFT_STATE_WEIGHT, 0, 1, &bad);
  weft_state_write (state, 0, WEFT_STATE_MASTER, 0, 1, &bad);
  g_autoptr (weft_timeline) real = weft_exec_step (x, &error);
  if (!real && !job->strategy.check_for_nan_in_grad)
    fail_msg ("%s: %s", words, error->message);
}

/* Checks that every op of every rank has times in both timelines, and that exactly the planned
 * bytes are allocated. If `spoils`, then runs a step with a weight that is NaN. */
static void
check_against_simulation (const char *words, const weft_plan *plan, gboolean spoils)
{
  g_autoptr (GError) error = NULL;
  uint64_t n = (uint64_t) plan->job.train.global_batch_size * (plan->job.model.seq_length + 1);
  g_autofree int32_t *tokens = g_new0 (int32_t, n);
  struct weft_control control = {
    .step = 1, .tokens = tokens, .beta1 = 0.9, .beta2 = 0.9, .epsilon = 1e-8, .clip_grad = 1
  };
  struct weft_exec_options options = { .control = &control };
  struct weft_exec_options unfolded = { .own = made_own (&weft_exec_sim, "unfolded") };
  g_autoptr (weft_timeline) sim = weft_exec_run (&weft_exec_sim, plan, &unfolded, &error);
  weft_exec *x = weft_exec_cpu.open (plan, &options, &error);

  if (!sim || !x)
    fail_msg ("%s: %s", words, error->message);
  g_autoptr (weft_timeline) real = weft_exec_step (x, &error);
  if (!real)
    fail_msg ("%s: %s", words, error->message);
  assert_int_equal (real->n, sim->n);
  for (uint32_t row = 0; row < real->n; row++) {
    uint32_t role = real->role[row];
    const struct weft_memory *memory = &plan->memory[role];
    assert_int_equal (real->rank[row], sim->rank[row]);
    assert_int_equal (x->allocated[row],
                      memory->planned[WEFT_POOL_DEVICE] + memory->planned[WEFT_POOL_SYMMETRIC]);
    assert_int_equal (x->allocated_host[row], memory->planned[WEFT_POOL_HOST]);
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++) {
      assert_true (isfinite (sim->begin[row][op]) && isfinite (sim->end[row][op]));
      assert_true (real->begin[row][op] <= real->end[row][op]);
    }
  }
  if (spoils)
    run_not_finite (words, &plan->job, x);
  weft_exec_cpu.close (x);
}

/* Whether fp8 scales depend on the size of a microbatch, because they are computed from the whole
 * microbatch or from blocks of its tokens. */
static gboolean
scales_microbatches (const char *words)
{
  return strstr (words, "precision=fp8") && !strstr (words, "fp8_recipe=delayed");
}

/* Returns the text of the job `words` with one rank in place of several. */
static char *
alone_of (const char *words)
{
  /* The job stores weights in fp8. So the job on one rank must round its weights to fp8 too, which
   * needs use_distributed_optimizer. */
  gboolean rounds = strstr (words, "fp8_param_gather=true") != NULL;

  return g_strconcat (
      words, " topology=cpu gpus=1 pipeline_model_parallel_size=1",
      scales_microbatches (words) ? "" : " micro_batch_size=1",
      rounds && !strstr (words, "use_megatron_fsdp") ? "" : " use_distributed_optimizer=false",
      " overlap_param_gather=false tensor_model_parallel_size=1 sequence_parallel=false "
      "tp_comm_overlap=false",
      " expert_model_parallel_size=1 moe_token_dispatcher_type=alltoall "
      "context_parallel_size=1 cp_comm_type=p2p "
      "hierarchical_context_parallel_sizes=none",
      " num_distributed_optimizer_instances=1 dp_replicate_size=1 "
      "reduce_scatter_with_fp32_accumulation=false",
      " overlap_grad_reduce=false recompute_granularity=none "
      "recompute_method=none recompute_num_layers=none "
      "recompute_modules=none num_microbatches_with_partial_activation_checkpoints=none "
      "activation_checkpointing=false delay_wgrad_compute=false "
      "overlap_moe_expert_parallel_comm=false moe_shared_expert_overlap=false "
      "optimizer_cpu_offload=false cpu_offloading=false virtual_pipeline_model_parallel_size=none "
      "batch_p2p_comm=true overlap_p2p_comm=false overlap_p2p_comm_warmup_flush=false "
      "grad_sync_func=none align_param_gather=false "
      "defer_embedding_wgrad_compute=false use_ring_exchange_p2p=false pipeline_schedule=1f1b "
      "decoder_first_pipeline_num_layers=none decoder_last_pipeline_num_layers=none "
      "account_for_embedding_in_pipeline_split=false account_for_loss_in_pipeline_split=false "
      "pipeline_model_parallel_layout=none pipeline_schedule_file=none dp_size=none "
      "param_sync_func=none enable_async_tensor_parallel=false cross_entropy_chunks=none",
      strstr (words, "=linear") ? " cross_entropy_fusion_impl=native" : "", NULL);
}

static struct real_result
run_plan (const weft_plan *plan, const struct real_run *run)
{
  g_autoptr (GError) error = NULL;
  struct real_result result;

  if (!weft_test_run_plan (plan, run, &result, &error))
    fail_msg ("%s: %s", run->words, error->message);
  return result;
}

static void
check_against_one_rank (const char *words, const weft_plan *plan)
{
  gboolean staged = strstr (words, "reuse_grad_buf_for_mxfp8_param_ag=true") != NULL;
  g_autofree char *alone = alone_of (words);
  struct real_result many =
      run_plan (plan, &(struct real_run){ .words = words, .steps = 2, .poison = TRUE });
  struct real_result shuffled = run_plan (
      plan, &(struct real_run){ .words = words, .steps = 2, .poison = TRUE, .stress = 11 });
  struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = 2 });

  /* The bf16 weights were gathered in the gradient buffer, so its gradients cannot be compared. */
  if (staged)
    many.gradients = shuffled.gradients = one.gradients;
  if (!weft_test_same_bits (&one, &many, 2))
    fail_msg ("%s: loss %.17g norm %.17g, of one rank %.17g and %.17g, gradients %s", words,
              many.loss[0], many.norm[0], one.loss[0], one.norm[0],
              many.gradients == one.gradients ? "same" : "other");
  if (!weft_test_same_bits (&one, &shuffled, 2))
    fail_msg ("%s: another interleaving gives other bits", words);
}

/* Compares a job in fast order with one rank, with a tolerance: sums of the same numbers are
 * rounded in another order. Muon multiplies such differences, and blockwise it computes others:
 * only what comes before its first update is compared. */
static void
check_near_one_rank (const char *words)
{
  g_autofree char *alone = alone_of (words);
  struct real_result many = weft_test_run (&(struct real_run){ .words = words, .steps = 2 });
  struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = 2 });

  if (strstr (words, "optimizer=muon")) {
    many.loss[1] = one.loss[1];
    many.norm[1] = one.norm[1];
    many.eval_loss = one.eval_loss;
  }
  if (!weft_test_is_near (&many, &one, 2))
    fail_msg ("%s: loss %.9g %.9g norm %.9g %.9g, of one rank %.9g %.9g and %.9g %.9g", words,
              many.loss[0], many.loss[1], many.norm[0], many.norm[1], one.loss[0], one.loss[1],
              one.norm[0], one.norm[1]);
}

/* Whether 16-bit gradients are rounded less often than on one rank, because they are added in
 * fp32. */
static gboolean
rounds_less (const struct weft_job *job)
{
  return job->strategy.reduce_scatter_with_fp32_accumulation && job->train.precision != WEFT_FP32 &&
         !job->strategy.grad_reduce_in_fp32;
}

/* Whether tensors are rounded when they are sent between stages. On one rank they are not. */
static gboolean
rounds_between_stages (const struct weft_job *job)
{
  int64_t dtype = job->strategy.pipeline_dtype;

  return dtype != WEFT_NONE && dtype != WEFT_FP32 && dtype != job->train.precision;
}

/* Whether a collective divides gradients by the number of replicas in a type that loses bits of
 * small numbers (fp16, or fp8 in the first step, in which scales are 1). On one rank, gradients are
 * divided earlier, so kernels compute with smaller numbers. */
static gboolean
divides_small_later (const struct weft_job *job)
{
  return job->strategy.average_in_collective &&
         (job->train.precision == WEFT_FP16 || job->train.precision == WEFT_FP8 ||
          weft_job_product_dtype (job) == WEFT_FP16);
}

/* Whether each rank computes a part of a gradient, and no op adds the parts. */
static gboolean
drifts_apart (const struct weft_job *job)
{
  return job->strategy.finalize_model_grads_func == WEFT_FINALIZE_NONE;
}

/* Whether the set of tokens that exceed the capacity and are dropped depends on how the batch is
 * split into microbatches and ranks. */
static gboolean
drops_together (const struct weft_job *job)
{
  return job->strategy.moe_expert_capacity_factor > 0 && job->model.num_moe_experts > 0 &&
         (job->train.micro_batch_size > 1 || job->strategy.context_parallel_size > 1 ||
          job->strategy.tensor_model_parallel_size > 1);
}

/* Whether the job has other bits than one rank even in canonical order. */
static gboolean
computes_otherwise (const struct weft_job *job)
{
  return rounds_less (job) || rounds_between_stages (job) || divides_small_later (job) ||
         drops_together (job) || drifts_apart (job);
}

/* Whether the job computes and sends all numbers in fp32. */
static gboolean
is_fp32 (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;

  return job->train.precision == WEFT_FP32 && weft_job_product_dtype (job) == WEFT_FP32 &&
         !k->fp8_param_gather;
}

/* number of jobs in fast order that are compared with one rank */
#define NEAR 60

static void
random_jobs_run_as_planned_and_simulated (void **state)
{
  const struct weft_tests_draw *draw = *state;
  g_autoptr (GRand) rand = g_rand_new_with_seed (draw->seed);
  uint32_t canonical = 0, near = 0;

  for (uint32_t i = 0; i < draw->jobs; i++) {
    struct weft_job job;
    g_autofree char *words = small_job (rand, &job);
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_plan) plan = weft_plan_new (&job, &error);
    if (!plan)
      fail_msg ("%s: %s", words, error->message);
    check_against_simulation (words, plan, i % 4 == 0);
    if (computes_otherwise (&job))
      continue;
    if (job.train.reduction_order != WEFT_ORDER_CANONICAL) {
      if (is_fp32 (&job) && near++ < NEAR)
        check_near_one_rank (words);
      continue;
    }
    if (job.train.global_batch_size & (job.train.global_batch_size - 1))
      continue;
    check_against_one_rank (words, plan);
    canonical++;
  }
  print_message ("%u jobs, %u of them against one rank, %u near one\n", draw->jobs, canonical,
                 MIN (near, NEAR));
  assert_true (draw->jobs < 100 || canonical > draw->jobs / 10);
}

static struct weft_tests_draw draw = { .seed = SEED };

static int
read_draw (int argc, char **argv)
{
  draw.jobs = weft_tests_cases (JOBS, ALL_JOBS);
  weft_tests_read_draw (argc, argv, &draw);
  return WEFT_TESTS_RUN;
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_prestate (random_jobs_run_as_planned_and_simulated, &draw),
};

WEFT_TESTS (tests, .seconds = 12, .begin = read_draw)
