/* precision = fp8 with real numbers: with every recipe the loss falls as in bf16, several ranks
 * give bit for bit the results of one rank, and a run resumes from a checkpoint as if it had never
 * stopped. */
#include "tests/runner/folder.h"
#include "tests/made/random_job.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <math.h>

#define TINY                                                                                       \
  "topology=cpu num_layers=4 hidden_size=32 num_attention_heads=4 kv_channels=8 "                  \
  "ffn_hidden_size=64 vocab_size=96 seq_length=32 max_position_embeddings=32 "                     \
  "global_batch_size=8 "
#define GPT2 "model=gpt2-nano num_query_groups=4 " TINY
#define LLAMA "model=llama-nano num_query_groups=2 " TINY

static const char *const recipes[] = { "precision=bf16 ", "precision=fp8 fp8_recipe=delayed ",
                                       "precision=fp8 fp8_recipe=tensorwise ",
                                       "precision=fp8 fp8_recipe=blockwise ",
                                       "precision=fp8 fp8_recipe=mxfp8 " };
enum { BF16, DELAYED, TENSORWISE, BLOCKWISE };

static real_job *
opened (const char *model, const char *recipe, const char *strategy)
{
  g_autofree char *words = g_strconcat (model, recipe, strategy, NULL);

  return real_job_open (words, NULL);
}

/* The data contain only 97 of the 512 tokens of the vocabulary, so the loss falls when the model
 * learns which tokens occur. After 25 steps the loss must be within 0.5 % of that in bf16. */
static void
every_recipe_learns_nearly_as_bf16_does (void **state)
{
  static const char *const models[] = { GPT2, LLAMA };

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    double wanted = 0;
    for (unsigned r = 0; r < G_N_ELEMENTS (recipes); r++) {
      g_autoptr (real_job) job = opened (models[m], recipes[r], "gpus=1 vocab_size=512");
      weft_state_init (job->state, 5);
      double first = real_job_step (job)->loss, last = 0;
      for (int step = 1; step < 25; step++)
        last = real_job_step (job)->loss;
      wanted = r == BF16 ? last : wanted;
      assert_true (last < first - 0.3);
      assert_true (fabs (last - wanted) < 0.005 * wanted);
      assert_true (r == BF16 || last != wanted);
    }
  }
}

/* Ranks that hold parts of a tensor agree on one scale, so recipes with one scale per tensor give
 * bit for bit the results of one rank, however tensors are split. */
static void
one_scale_for_a_tensor_gives_the_bits_of_one_rank (void **state)
{
  static const char *const strategies[] = {
    "gpus=4",
    "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
    "gpus=2 pipeline_model_parallel_size=2",
    "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe micro_batch_size=1",
    "gpus=4 pipeline_model_parallel_size=2 tensor_model_parallel_size=2",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true",
    "gpus=2 tensor_model_parallel_size=2 sequence_parallel=true tp_comm_overlap=true",
    "gpus=2 context_parallel_size=2",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=2 recompute_granularity=full "
    "recompute_method=uniform recompute_num_layers=1",
    "gpus=1 cpu_offloading=true cpu_offloading_num_layers=2",
    "gpus=1 delay_wgrad_compute=true",
    "gpus=1 disable_parameter_transpose_cache=true",
  };

  (void) state;
  for (unsigned r = DELAYED; r <= TENSORWISE; r++) {
    g_autofree char *model = g_strconcat (GPT2, recipes[r], NULL);
    weft_test_check_strategies (model, strategies, G_N_ELEMENTS (strategies));
  }
}

/* residual=parallel_one_norm: qkv and fc1 read the same input. The input is quantised once, or
 * twice with cpu_offloading. Both programs must give the same bits. */
static void
one_input_of_two_products_has_one_history (void **state)
{
  static const char *const strategies[] = {
    "gpus=1 cpu_offloading=true cpu_offloading_num_layers=1",
    "gpus=2 tensor_model_parallel_size=2",
  };
  g_autofree char *model =
      g_strconcat (GPT2, recipes[DELAYED], " residual=parallel_one_norm ", NULL);

  (void) state;
  weft_test_check_strategies (model, strategies, G_N_ELEMENTS (strategies));
}

/* Recipes with blocks give bit for bit the results of one rank if no tensor is split: sequence
 * lengths are multiples of the block, so no block contains two sequences. */
static void
blocks_give_the_bits_of_one_rank_where_nobody_cuts_tensors (void **state)
{
  static const char *const strategies[] = {
    "gpus=1 micro_batch_size=1 disable_parameter_transpose_cache=true",
    "gpus=4 micro_batch_size=1",
    "gpus=2 micro_batch_size=1 use_megatron_fsdp=true zero_dp_strategy=2",
    "gpus=2 micro_batch_size=1 pipeline_model_parallel_size=2"
  };

  (void) state;
  for (unsigned r = BLOCKWISE; r < G_N_ELEMENTS (recipes); r++) {
    g_autofree char *model = g_strconcat (LLAMA, recipes[r], NULL);
    weft_test_check_strategies (model, strategies, G_N_ELEMENTS (strategies));
  }
}

/* fp8_param_gather: weights are stored in fp8, and matmuls read the stored values. DDP and
 * Megatron-FSDP must give the same bits. */
static void
weights_that_are_kept_in_fp8_are_multiplied_as_they_are (void **state)
{
  static const char *const kept[] = {
    "gpus=2 use_distributed_optimizer=true fp8_param_gather=true ",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3 fp8_param_gather=true",
  };

  (void) state;
  g_autofree char *alone =
      g_strconcat (GPT2, recipes[TENSORWISE],
                   "gpus=1 use_distributed_optimizer=true fp8_param_gather=true", NULL);
  const struct real_result one = weft_test_run (&(struct real_run){ .words = alone, .steps = 2 });
  for (unsigned i = 0; i < G_N_ELEMENTS (kept); i++) {
    g_autofree char *words = g_strconcat (GPT2, recipes[TENSORWISE], kept[i], NULL);
    weft_test_check_bits (words, 2, &one, i);
  }
}

/* ---------------------------------------------------------------------- magnitudes */

static int
find_tensor (const weft_state *state, const char *name)
{
  for (uint32_t i = 0; i < weft_state_count (state); i++)
    if (g_str_equal (weft_state_at (state, i)->name, name))
      return (int) i;
  return -1;
}

/* Delayed scaling: after a step, the state holds the largest magnitudes of input, weight and output
 * gradient in this step. The magnitude of the weight is that before the optimizer update. */
static void
magnitudes_of_a_step_are_state_behind_it (void **state)
{
  g_autoptr (real_job) job = opened (GPT2, recipes[DELAYED], "gpus=2 tensor_model_parallel_size=2");
  int weight = find_tensor (job->state, "layers.1.fc1.weight"),
      amax = find_tensor (job->state, "layers.1.fc1.amax");
  float value[64 * 32], found[3], largest = 0;

  (void) state;
  assert_true (weight >= 0 && amax >= 0);
  weft_state_init (job->state, 5);
  weft_state_read (job->state, (uint32_t) amax, WEFT_STATE_WEIGHT, 0, 3, found);
  assert_true (found[0] == 0 && found[1] == 0 && found[2] == 0);
  weft_state_read (job->state, (uint32_t) weight, WEFT_STATE_WEIGHT, 0, 64 * 32, value);
  for (int i = 0; i < 64 * 32; i++)
    largest = fmaxf (largest, fabsf (value[i]));
  real_job_step (job);
  weft_state_read (job->state, (uint32_t) amax, WEFT_STATE_WEIGHT, 0, 3, found);
  assert_true (found[0] > 0 && found[1] == largest && found[2] > 0);
  assert_true (isfinite (real_job_evaluate (job)->loss));
  float again[3];
  weft_state_read (job->state, (uint32_t) amax, WEFT_STATE_WEIGHT, 0, 3, again);
  /* an evaluation leaves the recorded magnitudes (amax) unchanged */
  assert_memory_equal (found, again, sizeof found);
}

/* --------------------------------------------------------------------- checkpoints */

static real_job *
resumed (const char *recipe, const char *strategy, const char *dir)
{
  g_autofree char *passed_over = NULL;
  g_autoptr (GError) error = NULL;
  real_job *job = opened (GPT2, recipe, strategy);
  struct weft_progress progress;

  weft_state_init (job->state, 77);
  if (!weft_checkpoint_load (job->state, &job->plan->job, dir, &progress, &passed_over, &error))
    fail_msg ("%s", error->message);
  job->control.step = progress.step;
  return job;
}

/* Each run resumes under another strategy: with its own recipe (the bits must be those of an
 * uninterrupted run) and with other recipes (the loss must be finite). Only delayed scaling has
 * state in the checkpoint; a run that changes to delayed scaling begins with new state. */
static void
a_run_goes_on_bit_for_bit_and_from_one_recipe_to_another (void **folder)
{
  static const char other[] = "gpus=4 tensor_model_parallel_size=2 pipeline_model_parallel_size=2";

  for (unsigned a = 0; a < 3; a++) {
    g_autofree char *name = g_strdup_printf ("from-%u", a);
    g_autofree char *dir = g_build_filename (*folder, name, NULL);
    g_autoptr (real_job) job = opened (GPT2, recipes[a], "gpus=2 use_distributed_optimizer=true");
    weft_state_init (job->state, 5);
    real_job_step (job);
    const struct weft_progress progress = { .step = job->control.step, .seed = 1 };
    assert_true (weft_checkpoint_save (job->state, &job->plan->job, &progress, dir, 0, NULL));
    real_job_step (job);
    for (unsigned b = 0; b < 3; b++) {
      g_autoptr (real_job) then = resumed (recipes[b], other, dir);
      double loss = real_job_step (then)->loss;
      assert_true (isfinite (loss));
      if (a == b)
        assert_null (real_other_tensor (job->state, then->state, WEFT_STATE_MASTER));
    }
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_recipe_learns_nearly_as_bf16_does),
  cmocka_unit_test (one_scale_for_a_tensor_gives_the_bits_of_one_rank),
  cmocka_unit_test (one_input_of_two_products_has_one_history),
  cmocka_unit_test (blocks_give_the_bits_of_one_rank_where_nobody_cuts_tensors),
  cmocka_unit_test (weights_that_are_kept_in_fp8_are_multiplied_as_they_are),
  cmocka_unit_test (magnitudes_of_a_step_are_state_behind_it),
  cmocka_unit_test_setup_teardown (a_run_goes_on_bit_for_bit_and_from_one_recipe_to_another,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests, .seconds = 8)
