/* Training with the CUDA executor without a GPU: a double of the device (computing_cuda.h) computes
 * with the emulated kernels, in the order of the calls or in a random order that streams and events
 * allow. */
#include "core/base/sanitize.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/doubles/computing_cuda.h"
#include "tests/made/own.h"
#include "tests/runner/folder.h"
#include "tests/made/random_job.h"
#include "tests/made/trained_cases.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <string.h>

/* Seeds of computing_cuda_new(). Seed 0 runs work in the order of the calls, every other seed in
 * another random order. */
enum { IN_ORDER, SHUFFLED = 7 };

/* Only every SPARSE-th case runs, all with `./weft test --long`. With sanitizers, switching between
 * emulated threads is ten times slower. */
#define SPARSE (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 9 : weft_tests_cases (2, 1))

#define ZERO1 "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
#define FP32 "precision=fp32 "

static const struct trained_bound fp32 = { .loss = 1e-6, .norm = 1e-6, .gradient = 1e-5 };

/* Trains a job on the computing device. Returns NULL if the device does not support the job. */
static trained *
train (uint32_t seed, const char *words, struct weft_exec_options how)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (seed);
  trained *t = trained_new (&d->calls, words, &how);

  assert_int_equal (d->n_open, 0);
  return t;
}

static void
losses_norms_and_gradients_are_those_of_the_cpu (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (IN_ORDER);

  (void) state;
  for (uint32_t i = 0; i < UINT32_MAX; i += weft_tests_cases (2, 1)) {
    g_autofree char *words = trained_alone_words (i);
    if (!words)
      break;
    assert_true (trained_as_on_the_cpu (&d->calls, i));
  }
  assert_int_equal (d->n_open, 0);
}

static void
ranks_that_share_a_gpu_do_what_one_rank_does (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < trained_n_cases; i += SPARSE) {
    g_autoptr (computing_cuda) d = computing_cuda_new (SHUFFLED + i);
    if (!trained_as_one_rank (&d->calls, i))
      print_message ("left out, a kernel is missing: %s\n", trained_cases[i].words);
    assert_int_equal (d->n_open, 0);
  }
}

static void
runs_and_graphs_have_the_same_bits (void **state)
{
  g_autoptr (computing_cuda) in_order = computing_cuda_new (IN_ORDER),
                             shuffled = computing_cuda_new (SHUFFLED);

  (void) state;
  trained_in_graphs (&in_order->calls);
  trained_twice (&shuffled->calls);
  assert_int_equal (in_order->n_open + shuffled->n_open, 0);
}

/* Runs every third case that NCCL supports with one device per rank, so that ranks communicate by
 * communicators. Work runs in a random order that streams and events allow, as single calls or as
 * graphs. */
static void
ranks_with_a_gpu_each_have_the_bits_of_those_that_share_one (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < trained_n_cases; i += 3 * SPARSE) {
    g_autofree char *words = trained_words (&trained_cases[i]);
    struct weft_exec_options own = { .own = made_own (&weft_exec_cuda, "graph=%d", i % 2 == 0) };
    g_autoptr (trained) together = train (IN_ORDER, words, trained_shared (words));
    g_autoptr (trained) apart = together ? train (SHUFFLED + i, words, own) : NULL;
    if (apart)
      trained_assert_same (apart, together, words);
  }
}

/* ---------------------------------------------------------------------- experts */

#define EXPERTS                                                                                    \
  TRAINED_LLAMA FP32 "num_moe_experts=4 moe_router_topk=2 moe_ffn_hidden_size=24 "                 \
                     "moe_load_imbalance=4 "
#define DEEPSEEK                                                                                   \
  "model=deepseek-nano topology=cpu reduction_order=fast precision=fp32 num_layers=2 "             \
  "seq_length=8 micro_batch_size=1 global_batch_size=4 moe_load_imbalance=8 "

/* Runs jobs with one device per rank. The results must be bitwise equal to the results of ranks
 * that share one device, and near the results of the CPU. Each rank has a host thread, which waits
 * for row counts while other ranks compute. */
static void
assert_apart_as_together (const char *const *jobs, unsigned n)
{
  for (unsigned i = 0; i < n; i++) {
    struct weft_exec_options own = { 0 };
    g_autoptr (trained) cpu = trained_new (NULL, jobs[i], NULL);
    g_autoptr (trained) together = train (IN_ORDER, jobs[i], trained_shared (jobs[i]));
    g_autoptr (trained) apart = train (SHUFFLED + i, jobs[i], own);
    assert_true (together && apart);
    trained_assert_same (apart, together, jobs[i]);
    trained_assert_near (apart, cpu, fp32, jobs[i]);
  }
}

static void
rows_by_counts_go_between_gpus_as_between_ranks_that_share_one (void **state)
{
  static const char *const jobs[] = {
    EXPERTS "gpus=2 expert_model_parallel_size=2 ",
    EXPERTS "gpus=4 expert_model_parallel_size=4 moe_token_dispatcher_type=flex ",
    EXPERTS "gpus=4 pipeline_model_parallel_size=2 expert_model_parallel_size=2 ",
    DEEPSEEK "gpus=2 expert_model_parallel_size=2 ",
  };

  (void) state;
  assert_apart_as_together (jobs, G_N_ELEMENTS (jobs));
}

/* Ranks that hold parts of the same experts gather rows, and add partial results in the order of
 * ranks. So another order of execution must give the same bits. */
static void
parts_of_experts_gather_and_add_rows_by_counts (void **state)
{
  static const char *const jobs[] = {
    EXPERTS "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true ",
    EXPERTS "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true "
            "expert_model_parallel_size=2 ",
    EXPERTS "gpus=4 expert_tensor_parallel_size=2 expert_model_parallel_size=2 ",
  };

  (void) state;
  assert_apart_as_together (jobs, G_N_ELEMENTS (jobs));
}

/* With `poison`, memory that the step has not written is NaN. With `stress`, ops are issued in a
 * random order that the plan allows. Neither option may change a bit of the results. */
static void
nobody_reads_what_nobody_has_written (void **state)
{
  (void) state;
  for (uint32_t i = 1; i < trained_n_cases; i += 4 * SPARSE) {
    g_autofree char *words = trained_words (&trained_cases[i]);
    struct weft_exec_options how = trained_shared (words);
    g_autoptr (trained) plain = train (IN_ORDER, words, how);
    made_own_add (&how.own, &weft_exec_cuda, "poison stress=%u", 5 + i);
    g_autoptr (trained) poisoned = plain ? train (IN_ORDER, words, how) : NULL;
    if (plain)
      trained_assert_same (poisoned, plain, words);
  }
}

static void
ops_of_a_graph_have_times (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (IN_ORDER);
  struct weft_exec_options how = { .own = made_own (&weft_exec_cuda, "ranks-per-gpu=2 graph"),
                                   .times = TRUE };
  g_autoptr (GError) error = NULL;
  g_autoptr (real_job) job =
      real_job_try (&d->calls, TRAINED_GPT2 FP32 "gpus=2 " ZERO1, &how, &error);

  (void) state;
  weft_state_init (job->state, 3);
  for (job->control.step = 1; job->control.step <= 3; job->control.step++) {
    g_autoptr (weft_timeline) t = weft_exec_step (job->x, &error);
    assert_non_null (t);
    for (uint32_t row = 0; row < t->n; row++)
      for (uint32_t op = 0; op < job->plan->role[0]->n_op; op++)
        if (weft_op_info[job->plan->role[0]->op[op].kind].class == WEFT_CLASS_COMPUTE)
          assert_true (t->begin[row][op] > 0 && t->end[row][op] >= t->begin[row][op]);
  }
}

/* ------------------------------------------------------------------------- memory */

static void
what_is_allocated_was_planned (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (IN_ORDER);
  uint64_t planned, gone;

  (void) state;
  trained_memory (&d->calls, &planned, &gone);
  assert_true (planned > 0 && gone > planned);
}

static void
state_that_lives_on_the_host_trains_as_that_of_the_device (void **state)
{
  static const char *const jobs[] = {
    TRAINED_GPT2 FP32 "gpus=2 optimizer_cpu_offload=true optimizer_offload_fraction=0.4 ",
    TRAINED_LLAMA FP32 "gpus=2 " ZERO1
                       "optimizer_cpu_offload=true overlap_cpu_optimizer_d2h_h2d=true",
    TRAINED_LLAMA FP32 "num_layers=4 cpu_offloading=true cpu_offloading_num_layers=2 ",
    TRAINED_GPT2 FP32 "gpus=2 distributed_config=fsdp2 offload_policy=cpu "
                      "defer_fsdp_grad_sync=false",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autoptr (trained) cpu = trained_new (NULL, jobs[i], NULL);
    g_autoptr (trained) device = train (SHUFFLED + i, jobs[i], trained_shared (jobs[i]));
    trained_assert_near (device, cpu, fp32, jobs[i]);
  }
}

static void
threads_share_what_the_cpu_updates_bit_by_bit (void **state)
{
  static const char words[] = TRAINED_GPT2 FP32 "optimizer_cpu_offload=true ";
  struct weft_exec_options alone = trained_shared (words), many = alone;

  (void) state;
  made_own_add (&alone.own, &weft_exec_cuda, "threads=1");
  made_own_add (&many.own, &weft_exec_cuda, "threads=3");
  g_autoptr (trained) one = train (IN_ORDER, words, alone);
  g_autoptr (trained) three = train (IN_ORDER, words, many);
  trained_assert_same (three, one, words);
}

/* -------------------------------------------------------------------------- steps */

static real_job *
open_job (computing_cuda *d, const char *words)
{
  struct weft_exec_options how = trained_shared (words);
  g_autoptr (GError) error = NULL;
  real_job *job = real_job_try (d ? &d->calls : NULL, words, d ? &how : NULL, &error);

  if (!job)
    fail_msg ("%s: %s", words, error->message);
  weft_state_init (job->state, 3);
  return job;
}

static void
run_parts (real_job *job)
{
  g_autoptr (weft_parts) parts = weft_parts_new (job->plan);
  g_autoptr (GError) error = NULL;

  job->control.step = 1;
  for (uint32_t i = 0; i < parts->n; i++)
    assert_true (weft_exec_part (job->x, parts, i, &error));
  g_autoptr (weft_timeline) t = weft_exec_end_parts (job->x, &error);
  assert_non_null (t);
}

static void
a_step_in_parts_has_the_bits_of_a_whole_one (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (SHUFFLED);
  g_autoptr (real_job) whole = open_job (d, TRAINED_GPT2 FP32 "gpus=2 " ZERO1),
                       parted = open_job (d, TRAINED_GPT2 FP32 "gpus=2 " ZERO1);

  (void) state;
  double loss = real_job_step (whole)->loss;
  run_parts (parted);
  assert_true (weft_exec_metrics (parted->x)->loss == loss);
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    assert_null (real_other_tensor (parted->state, whole->state, kind));
}

static void
an_evaluation_changes_nothing (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (SHUFFLED);
  g_autoptr (real_job) job = open_job (d, TRAINED_LLAMA FP32 "gpus=2 tensor_model_parallel_size=2");

  (void) state;
  real_job_step (job);
  uint64_t before = real_hash (job->state, WEFT_STATE_WEIGHT);
  double loss = real_job_evaluate (job)->loss;
  assert_true (real_job_evaluate (job)->loss == loss);
  assert_true (real_hash (job->state, WEFT_STATE_WEIGHT) == before);
  /* A training step on the same tokens has the loss of the evaluation. */
  assert_true (real_job_step (job)->loss == loss);
  assert_true (real_hash (job->state, WEFT_STATE_WEIGHT) != before);
}

static void
a_step_whose_gradients_overflow_is_skipped_by_all_ranks (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (SHUFFLED);
  g_autoptr (real_job) job =
      open_job (d, TRAINED_GPT2 "precision=fp16 grad_reduce_in_fp32=true gpus=2 " ZERO1);
  double scale = job->control.loss_scale;

  (void) state;
  uint64_t before = real_hash (job->state, WEFT_STATE_MASTER);
  job->control.loss_scale = 1e30;
  assert_true (real_job_step (job)->skipped);
  assert_true (job->x->metrics[0].skipped && job->x->metrics[1].skipped);
  assert_true (real_hash (job->state, WEFT_STATE_MASTER) == before);
  job->control.loss_scale = scale;
  assert_false (real_job_step (job)->skipped);
  assert_true (real_hash (job->state, WEFT_STATE_MASTER) != before);
}

/* -------------------------------------------------------------------- checkpoints */

static void
load (real_job *job, const char *dir)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *passed_over = NULL;
  struct weft_progress progress;

  if (!weft_checkpoint_load (job->state, &job->plan->job, dir, &progress, &passed_over, &error))
    fail_msg ("%s", error->message);
  job->control.step = progress.step;
}

static void
a_checkpoint_of_a_gpu_goes_on_there_and_on_the_cpu (void **state)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (SHUFFLED);
  const char *words = TRAINED_LLAMA FP32 "gpus=2 " ZERO1,
             *other = TRAINED_LLAMA FP32 "gpus=2 tensor_model_parallel_size=2";
  g_autoptr (real_job) whole = open_job (d, words), resumed = open_job (d, words),
                       tensor = open_job (d, other), cpu = open_job (NULL, other);
  const char *dir = *state;
  g_autoptr (GError) error = NULL;

  real_job_step (whole);
  assert_true (weft_checkpoint_save (whole->state, &whole->plan->job,
                                     &(struct weft_progress){ .step = 1 }, dir, 0, &error));
  load (resumed, dir);
  load (tensor, dir);
  load (cpu, dir);
  double loss = real_job_step (whole)->loss;
  assert_true (real_job_step (resumed)->loss == loss);
  assert_float_equal (real_job_step (tensor)->loss, loss, 1e-6 * loss);
  assert_float_equal (real_job_step (cpu)->loss, loss, 1e-6 * loss);
  assert_null (real_other_tensor (resumed->state, whole->state, WEFT_STATE_MASTER));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (losses_norms_and_gradients_are_those_of_the_cpu),
  cmocka_unit_test (ranks_that_share_a_gpu_do_what_one_rank_does),
  cmocka_unit_test (runs_and_graphs_have_the_same_bits),
  cmocka_unit_test (ranks_with_a_gpu_each_have_the_bits_of_those_that_share_one),
  cmocka_unit_test (rows_by_counts_go_between_gpus_as_between_ranks_that_share_one),
  cmocka_unit_test (parts_of_experts_gather_and_add_rows_by_counts),
  cmocka_unit_test (nobody_reads_what_nobody_has_written),
  cmocka_unit_test (ops_of_a_graph_have_times),
  cmocka_unit_test (what_is_allocated_was_planned),
  cmocka_unit_test (state_that_lives_on_the_host_trains_as_that_of_the_device),
  cmocka_unit_test (threads_share_what_the_cpu_updates_bit_by_bit),
  cmocka_unit_test (a_step_in_parts_has_the_bits_of_a_whole_one),
  cmocka_unit_test (an_evaluation_changes_nothing),
  cmocka_unit_test (a_step_whose_gradients_overflow_is_skipped_by_all_ranks),
  cmocka_unit_test_setup_teardown (a_checkpoint_of_a_gpu_goes_on_there_and_on_the_cpu,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests, .seconds = 45)
