/* Checkpoints of Muon, of AdamW with 8-bit moments and of LoRA: a resumed run continues bit for bit
 * under another strategy; a checkpoint of another optimizer or another lora_alpha is refused. */
#include "core/base/error.h"
#include "tests/made/real_job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include "train/checkpoint.h"
#include "train/manifest.h"
#include <string.h>

#define JOB                                                                                        \
  "topology=cpu model=llama-nano num_layers=2 hidden_size=32 num_attention_heads=4 kv_channels=8 " \
  "num_query_groups=2 ffn_hidden_size=48 vocab_size=96 seq_length=16 "                             \
  "max_position_embeddings=16 global_batch_size=4 "
#define MUON JOB "optimizer=muon "
#define EIGHT JOB "optimizer=adamw_8bit min_8bit_size=300 "

enum { SAVED = 2, STEPS = 4 };

/* A job whose weights are others than those of a checkpoint. */
static real_job *
fresh (const char *words)
{
  real_job *job = real_job_open (words, NULL);

  weft_state_init (job->state, 99);
  real_job_step (job);
  return job;
}

static gboolean
load (real_job *job, const char *dir, char **notes, GError **error)
{
  struct weft_progress progress;

  if (!weft_checkpoint_load (job->state, &job->plan->job, dir, &progress, notes, error))
    return FALSE;
  job->control.step = progress.step;
  return TRUE;
}

static void
check_resume (const char *first, const char *second, const char *dir)
{
  g_autoptr (real_job) whole = real_job_open (first, NULL);
  g_autoptr (real_job) resumed = fresh (second);
  g_autoptr (GError) error = NULL;
  g_autofree char *notes = NULL;

  weft_state_init (whole->state, 5);
  while (whole->control.step < SAVED)
    real_job_step (whole);
  real_job_save (whole, dir);
  if (!load (resumed, dir, &notes, &error))
    fail_msg ("%s: %s", second, error->message);
  while (whole->control.step < STEPS)
    assert_true (real_job_step (whole)->loss == real_job_step (resumed)->loss);
  for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
    assert_null (real_other_tensor (whole->state, resumed->state, kind));
}

static void
runs_resume_under_another_strategy_bit_for_bit (void **state)
{
  check_resume (MUON "gpus=1", MUON "gpus=4 pipeline_model_parallel_size=2 "
                                    "tensor_model_parallel_size=2", *state);
  check_resume (MUON "precision=bf16 gpus=2 tensor_model_parallel_size=2",
                MUON "precision=bf16 gpus=4 use_distributed_optimizer=true "
                     "overlap_grad_reduce=true bucket_size=2000", *state);
  check_resume (EIGHT "gpus=1", EIGHT "gpus=4 use_distributed_optimizer=true "
                                      "pipeline_model_parallel_size=2", *state);
  check_resume (EIGHT "precision=bf16 gpus=4 use_distributed_optimizer=true "
                      "overlap_grad_reduce=true bucket_size=2000",
                EIGHT "precision=bf16 gpus=1", *state);
  check_resume (EIGHT "reduction_order=fast gpus=2 tensor_model_parallel_size=2",
                EIGHT "reduction_order=fast gpus=2 tensor_model_parallel_size=2", *state);
}

static void
assert_refused (const char *saved, const char *resumed, const char *dir, const char *wanted)
{
  g_autoptr (real_job) a = fresh (saved), b = fresh (resumed);
  uint64_t before = real_hash (b->state, WEFT_STATE_MASTER);
  g_autoptr (GError) error = NULL;
  g_autofree char *notes = NULL;

  real_job_save (a, dir);
  assert_false (load (b, dir, &notes, &error));
  if (!strstr (error->message, wanted))
    fail_msg ("found: %s\nwanted: %s", error->message, wanted);
  assert_true (real_hash (b->state, WEFT_STATE_MASTER) == before);
}

static void
state_of_another_optimizer_is_refused (void **state)
{
  assert_refused (MUON "gpus=1", JOB "gpus=1", *state,
                  "of another optimizer: found momentum_buffer of layers.0.qkv.weight, wanted "
                  "exp_avg and exp_avg_sq (optimizer = adam)");
  assert_refused (JOB "gpus=1", MUON "gpus=1", *state,
                  "found exp_avg and exp_avg_sq of layers.0.qkv.weight, wanted momentum_buffer");
  assert_refused (JOB "gpus=1", EIGHT "gpus=1", *state,
                  "found exp_avg and exp_avg_sq of embedding.weight, wanted state1 and state2");
  assert_refused (EIGHT "gpus=1", JOB "gpus=1", *state,
                  "found state1 and state2 of embedding.weight, wanted exp_avg and exp_avg_sq");
  assert_refused (EIGHT "reduction_order=fast gpus=1",
                  EIGHT "reduction_order=fast gpus=2 tensor_model_parallel_size=2", *state,
                  "they resume with the number of tensor and expert parallel ranks");
}

static void
another_lora_alpha_is_refused (void **state)
{
  const char *wanted = "num_attention_heads = 4, lora_alpha = 8";
  gboolean older;

  assert_refused (JOB "gpus=1 lora_dim=2 lora_alpha=8", JOB "gpus=1 lora_dim=2 lora_alpha=16",
                  *state, "lora_alpha = 16");
  assert_true (weft_manifest_fits (wanted, wanted, &older) && !older);
  assert_true (weft_manifest_fits ("num_attention_heads = 4", wanted, &older) && older);
  assert_false (weft_manifest_fits ("num_attention_heads = 8", wanted, &older));
  assert_false (weft_manifest_fits (wanted, "num_attention_heads = 4", &older));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (runs_resume_under_another_strategy_bit_for_bit,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (state_of_another_optimizer_is_refused, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (another_lora_alpha_is_refused, weft_test_folder_make,
                                   weft_test_folder_remove),
};
WEFT_TESTS (tests)
