/* A run is saved, loaded with another strategy and continued: its results must be bitwise equal to
 * those of an uninterrupted run. */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/own.h"
#include "tests/runner/folder.h"
#include "tests/made/real_job.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <string.h>

enum { STEPS = 4, SAVED = 2, SEED = 11 };
#define SPARSE (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER)
/* number of pairs of a model and a precision: usually each precision once; more with `./weft test
 * --long` */
#define TURNS weft_tests_cases (4, 8)

/* The models of this file are narrow, because the tests make hundreds of runs. */
#define SIZES                                                                                      \
  "num_layers=4 hidden_size=24 kv_channels=6 ffn_hidden_size=40 seq_length=16 global_batch_size=8"
static const char *const models[] = {
  "model=gpt2-nano " SIZES,
  "model=gpt2-nano share_embeddings_and_output_weights=false " SIZES,
  "model=llama-nano qk_layernorm=true " SIZES,
};
static const char *const precisions[] = {
  "precision=fp32",
  "precision=bf16",
  "precision=bf16 grad_reduce_in_fp32=true",
  "precision=fp16 grad_reduce_in_fp32=true",
};

#define SHARDED "use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=3000 "
#define LAZY SHARDED "overlap_param_gather=true "
static const char *const strategies[] = {
  "gpus=1",
  "gpus=2",
  "gpus=8",
  "gpus=2 use_distributed_optimizer=true",
  LAZY "gpus=4",
  LAZY "gpus=8 pad_buckets_for_high_nccl_busbw=true",
  "gpus=2 pipeline_model_parallel_size=2",
  "gpus=4 pipeline_model_parallel_size=4",
  SHARDED "gpus=4 pipeline_model_parallel_size=2",
  LAZY "gpus=4 pipeline_model_parallel_size=2",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=1 num_distributed_optimizer_instances=2",
  "gpus=8 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=3 "
  "num_distributed_optimizer_instances=2 outer_dp_sharding_strategy=optim",
  "gpus=2 optimizer_cpu_offload=true optimizer_offload_fraction=0.4",
  LAZY "gpus=4 optimizer_cpu_offload=true overlap_cpu_optimizer_d2h_h2d=true",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3 optimizer_cpu_offload=true "
  "optimizer_offload_fraction=0.6 cpu_offloading=true cpu_offloading_num_layers=2",
  LAZY "gpus=8 context_parallel_size=4",
  "gpus=4 distributed_config=fsdp2",
  "gpus=8 distributed_config=fsdp2 pipeline_model_parallel_size=2 dp_replicate_size=2",
  "gpus=4 distributed_config=fsdp2 offload_policy=cpu defer_fsdp_grad_sync=false",
  NULL
};
enum { N = G_N_ELEMENTS (strategies) - 1 };

/* Results of a run: metrics of every step, and hashes of its state at the end. */
struct left {
  double loss[STEPS], norm[STEPS];
  uint64_t state[WEFT_N_STATE_KIND];
};

/* Returns the settings for a precision under a strategy: FSDP2 has another knob for the type in
 * which gradients are added. */
static const char *
told (const char *precision, const char *strategy)
{
  gboolean fsdp2 = strstr (strategy, "fsdp2") != NULL;

  if (strstr (precision, "grad_reduce_in_fp32"))
    return fsdp2 ? "precision=bf16" : precision;
  return fsdp2 && strstr (precision, "bf16") ? "precision=bf16 mp_policy_reduce_dtype=bf16"
                                             : precision;
}

static real_job *
open_job (const char *model, const char *precision, const char *strategy)
{
  g_autofree char *words =
      g_strdup_printf ("topology=cpu %s %s %s", model, told (precision, strategy), strategy);
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "poison") };

  return real_job_open (words, &how);
}

/* Continues a training run to the end of step `last`. */
static void
run_to (real_job *job, uint64_t last, struct left *left)
{
  while (job->control.step < last) {
    const struct weft_metrics *m = real_job_step (job);
    left->loss[job->control.step - 1] = m->loss;
    left->norm[job->control.step - 1] = m->grad_norm;
  }
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    left->state[kind] = real_hash (job->state, kind);
}

static void
save (real_job *job, const char *dir)
{
  struct weft_progress progress = { .step = job->control.step, .seed = SEED };
  g_autoptr (GError) error = NULL;

  if (!weft_checkpoint_save (job->state, &job->plan->job, &progress, dir, 0, &error))
    fail_msg ("%s", error->message);
}

/* Trains to the end without an interruption, and saves a checkpoint after step SAVED in `dir`. */
static void
run_whole (real_job *job, const char *dir, struct left *left)
{
  weft_state_init (job->state, SEED);
  run_to (job, SAVED, left);
  save (job, dir);
  run_to (job, STEPS, left);
}

/* Loads the checkpoint and trains to the end. Before, weights are initialised with another seed, so
 * that a tensor that is not loaded changes the results. */
static void
run_resumed (real_job *job, const char *dir, struct left *left)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *passed_over = NULL;
  struct weft_progress progress;

  weft_state_init (job->state, SEED + 1);
  if (!weft_checkpoint_load (job->state, &job->plan->job, dir, &progress, &passed_over, &error))
    fail_msg ("%s", error->message);
  assert_null (passed_over);
  assert_int_equal (progress.step, SAVED);
  assert_int_equal (progress.seed, SEED);
  job->control.step = progress.step;
  run_to (job, STEPS, left);
}

static void
assert_same_run (const struct left *a, const struct left *b, const char *what)
{
  for (int step = SAVED; step < STEPS; step++)
    if (a->loss[step] != b->loss[step] || a->norm[step] != b->norm[step])
      fail_msg ("%s: step %d: loss %.17g, wanted %.17g; norm %.17g, wanted %.17g", what, step + 1,
                a->loss[step], b->loss[step], a->norm[step], b->norm[step]);
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    if (a->state[kind] != b->state[kind])
      fail_msg ("%s: %s is another", what, weft_state_kind_words[kind]);
}

/* Whether a strategy supports a precision: FSDP2 does not scale the loss, which fp16 needs. */
static gboolean
goes_with (const char *precision, const char *strategy)
{
  return !strstr (precision, "fp16") || !strstr (strategy, "fsdp2");
}

/* Whether the test includes a pair of strategies (save with a, load with b). A checkpoint does not
 * depend on the strategy that will load it, so not all pairs are needed: each pair with one rank in
 * two models and precisions of the TURNS (with `./weft test --long`: in all), and each other pair
 * in one. With a sanitizer, a seventh of all pairs. */
static gboolean
is_tried (unsigned a, unsigned b, unsigned turn)
{
  if (SPARSE)
    return (a + 2 * b + turn) % 7 == 0;
  if (a == 0 || b == 0)
    return (a + b + turn) % weft_tests_cases (2, 1) == 0;
  return (a + b + turn) % TURNS == 0;
}

/* Tests pairs of strategies of a list. Each strategy saves into a folder of its own, from which the
 * other strategies resume. */
static void
resume_among (const char *const *list, const char *folder, const char *model, const char *precision,
              unsigned turn)
{
  struct left whole[N], resumed;

  for (unsigned a = 0; list[a] && goes_with (precision, list[a]); a++) {
    g_autofree char *name = g_strdup_printf ("%s-%s-%u", model, precision, a);
    g_autofree char *dir = g_build_filename (folder, g_strdelimit (name, " /", '-'), NULL);
    g_autoptr (real_job) job = open_job (model, precision, list[a]);
    run_whole (job, dir, &whole[a]);
    assert_same_run (&whole[a], &whole[0], list[a]);
    for (unsigned b = 0; list[b] && goes_with (precision, list[b]); b++) {
      if (!is_tried (a, b, turn))
        continue;
      g_autofree char *what =
          g_strdup_printf ("%s %s: from %s to %s", model, precision, list[a], list[b]);
      g_autoptr (real_job) other = open_job (model, precision, list[b]);
      run_resumed (other, dir, &resumed);
      assert_same_run (&resumed, &whole[a], what);
    }
  }
}

static void
resuming_anywhere_is_never_having_stopped (void **folder)
{
  unsigned turn = 0;

  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++)
      if (weft_tests_long () ? m == 0 || (m + p) % 2 == 0 : (m + p) % 3 == 0)
        resume_among (strategies, *folder, models[m], precisions[p], turn++);
}

#define EXPERTS "model=mixtral-nano moe_ffn_hidden_size=24 num_query_groups=2 " SIZES
#define TP "tensor_model_parallel_size=2 sequence_parallel=true "

static void
experts_go_on_on_any_ranks_whole_or_in_parts (void **folder)
{
  static const char *const list[] = {
    "gpus=1",
    "gpus=4 expert_model_parallel_size=4 use_distributed_optimizer=true",
    TP "gpus=2",
    TP "gpus=2 expert_tensor_parallel_size=1 expert_model_parallel_size=2",
    TP "gpus=8 expert_tensor_parallel_size=1 expert_model_parallel_size=4 "
       "use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=3000",
    TP "gpus=4 expert_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=4 expert_tensor_parallel_size=2 expert_model_parallel_size=2 context_parallel_size=2",
    NULL
  };

  resume_among (list, *folder, EXPERTS, precisions[0], 0);
  resume_among (list, *folder, EXPERTS, precisions[2], 1);
}

/* Stochastic rounding: random numbers depend only on the step and the element, so a run can be
 * resumed under any strategy. */
static void
weights_that_are_rounded_by_lot_go_on_anywhere (void **folder)
{
  static const char *const list[] = { "gpus=1 zero_dp_strategy=1", "gpus=4 zero_dp_strategy=3",
                                      TP "gpus=4 zero_dp_strategy=2",
                                      "gpus=4 pipeline_model_parallel_size=2 zero_dp_strategy=1",
                                      NULL };

  resume_among (list, *folder, models[0],
                "precision=bf16 use_megatron_fsdp=true preserve_fp32_weights=false "
                "bf16_stochastic_round=true",
                0);
}

/* In fast order rounding depends on the strategy, so this test resumes a run under the strategy
 * that saved it. */
static void
in_fast_order_a_run_goes_on_under_its_own_strategy (void **folder)
{
  for (unsigned i = 0; i < N; i++) {
    g_autofree char *words = g_strconcat (strategies[i], " reduction_order=fast", NULL);
    g_autofree char *name = g_strdup_printf ("fast-%u", i);
    g_autofree char *dir = g_build_filename (*folder, name, NULL);
    g_autoptr (real_job) job = open_job (models[0], precisions[1], words);
    g_autoptr (real_job) other = open_job (models[0], precisions[1], words);
    struct left whole, resumed;
    run_whole (job, dir, &whole);
    run_resumed (other, dir, &resumed);
    assert_same_run (&resumed, &whole, words);
  }
}

/* With overlap_param_gather, ranks have old weights after a step until the next gather. A save must
 * read each element from its owner. */
static void
saving_right_after_a_lazy_step_saves_what_the_owners_have (void **folder)
{
  g_autofree char *lazy = g_build_filename (*folder, "lazy", NULL);
  g_autofree char *fresh = g_build_filename (*folder, "fresh", NULL);
  g_autoptr (real_job) a = open_job (models[0], "precision=fp32", strategies[5]);
  g_autoptr (real_job) b = open_job (models[0], "precision=fp32", strategies[0]);
  struct left left, other, resumed;

  weft_state_init (a->state, SEED);
  weft_state_init (b->state, SEED);
  run_to (a, 1, &left);
  run_to (b, 1, &other);
  save (a, lazy);
  assert_memory_equal (left.state, other.state, sizeof left.state);
  real_job_evaluate (a);
  save (a, fresh);
  for (int i = 0; i < 2; i++) {
    g_autoptr (real_job) c = open_job (models[0], "precision=fp32", strategies[3]);
    g_autofree char *passed_over = NULL;
    struct weft_progress progress;
    assert_true (weft_checkpoint_load (c->state, &c->plan->job, i ? fresh : lazy, &progress,
                                       &passed_over, NULL));
    for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
      resumed.state[kind] = real_hash (c->state, kind);
    assert_memory_equal (resumed.state, left.state, WEFT_STATE_GRAD * sizeof *left.state);
  }
}

#define TEST(name)                                                                                 \
  cmocka_unit_test_setup_teardown (name, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  TEST (resuming_anywhere_is_never_having_stopped),
  TEST (experts_go_on_on_any_ranks_whole_or_in_parts),
  TEST (weights_that_are_rounded_by_lot_go_on_anywhere),
  TEST (in_fast_order_a_run_goes_on_under_its_own_strategy),
  TEST (saving_right_after_a_lazy_step_saves_what_the_owners_have),
};

WEFT_TESTS (tests, .seconds = 20)
