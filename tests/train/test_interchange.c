/* A model is exported to a file for other software and imported with another strategy. The imported
 * state must have the same bits, and a second export the same bytes. */
#include "tests/runner/folder.h"
#include "tests/made/real_job.h"
#include "train/hugging_face.h"
#include "tests/runner/runner.h"
#include <string.h>

static const char *const models[] = { "gpt2", "llama", "qwen2", "qwen3" };
static const char *const precisions[] = { "fp32", "bf16" };

static const char *const strategies[] = {
  "gpus=1",
  "gpus=2 pipeline_model_parallel_size=2",
  "gpus=4 use_distributed_optimizer=true",
  "gpus=4 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "overlap_param_gather=true bucket_size=700",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2",
  "gpus=4 distributed_config=fsdp2",
  "gpus=4 pipeline_model_parallel_size=2 distributed_config=fsdp2",
};

/* Opens a job that reduces gradients in the type of the training precision. FSDP2 reduces in fp32
 * unless mp_policy_reduce_dtype is set. */
static real_job *
open_job (const char *model, const char *precision, const char *strategy)
{
  g_autofree char *words =
      g_strdup_printf ("topology=cpu global_batch_size=4 precision=%s %s%s%s "
                       "model=" WEFT_SOURCE_DIR "/tests/vectors/%s/config.json",
                       precision, strategy,
                       strstr (strategy, "fsdp2") ? " mp_policy_reduce_dtype=" : "",
                       strstr (strategy, "fsdp2") ? precision : "", model);
  return real_job_open (words, NULL);
}

/* Returns a job after one step from initial weights. Its fp32 masters are no bf16 numbers, and with
 * overlap its new weights are not gathered yet, so an export must read the masters from their
 * owners. */
static real_job *
trained (const char *model, const char *precision, const char *strategy)
{
  real_job *job = open_job (model, precision, strategy);

  weft_state_init (job->state, 5);
  real_job_step (job);
  return job;
}

struct bytes {
  char *data;
  gsize n;
};

static struct bytes
export_bytes (real_job *job, enum weft_state_kind kind, const char *path)
{
  g_autoptr (GError) error = NULL;
  struct bytes bytes;

  if (!weft_hf_export (job->state, &job->plan->job.model, kind, path, &error) ||
      !g_file_get_contents (path, &bytes.data, &bytes.n, &error))
    fail_msg ("%s", error->message);
  return bytes;
}

static void
assert_same_bytes (struct bytes a, struct bytes b, const char *what)
{
  if (a.n != b.n || memcmp (a.data, b.data, a.n))
    fail_msg ("%s: files of %u and %u bytes differ", what, (unsigned) a.n, (unsigned) b.n);
}

static void
import_whole (real_job *job, const char *path)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *unused = NULL;

  if (!weft_hf_import (job->state, &job->plan->job.model, path, &unused, &error))
    fail_msg ("%s", error->message);
  if (unused)
    fail_msg ("not used: %s", unused);
}

static void
assert_same_state (real_job *a, real_job *b, enum weft_state_kind kind, const char *what)
{
  const char *other = real_other_tensor (a->state, b->state, kind);

  if (other)
    fail_msg ("%s: %s of %s is another", what, weft_state_kind_words[kind], other);
}

/* Exports one job and imports the file into another job. Both states must have the same bits, and
 * an export of the second job the same bytes. */
static void
assert_passes (real_job *from, real_job *to, enum weft_state_kind kind, const char *path,
               const char *what)
{
  struct bytes out = export_bytes (from, kind, path);

  import_whole (to, path);
  assert_same_state (from, to, WEFT_STATE_WEIGHT, what);
  if (kind == WEFT_STATE_MASTER || weft_state_dtype (from->state) == WEFT_FP32)
    assert_same_state (from, to, WEFT_STATE_MASTER, what);
  struct bytes again = export_bytes (to, kind, path);
  assert_same_bytes (out, again, what);
  g_free (out.data);
  g_free (again.data);
}

static void
models_go_from_any_strategy_to_any_other (void **folder)
{
  g_autofree char *path = g_build_filename (*folder, "model.safetensors", NULL);

  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++) {
      g_autoptr (real_job) one = trained (models[m], precisions[p], strategies[0]);
      for (unsigned a = 0; a < G_N_ELEMENTS (strategies); a++) {
        g_autoptr (real_job) from = trained (models[m], precisions[p], strategies[a]);
        for (unsigned b = 0; b < G_N_ELEMENTS (strategies); b++) {
          g_autofree char *what = g_strdup_printf ("%s %s, from %s to %s", models[m], precisions[p],
                                                   strategies[a], strategies[b]);
          g_autoptr (real_job) to = open_job (models[m], precisions[p], strategies[b]);
          assert_passes (from, to, WEFT_STATE_WEIGHT, path, what);
          assert_same_state (one, to, WEFT_STATE_WEIGHT, what);
          assert_passes (from, to, WEFT_STATE_MASTER, path, what);
          assert_same_state (one, to, WEFT_STATE_MASTER, what);
        }
      }
    }
}

/* A file in bf16 does not contain masters, so the masters after import are the bf16 weights. */
static void
masters_of_an_imported_bf16_model_are_its_weights (void **folder)
{
  g_autofree char *path = g_build_filename (*folder, "model.safetensors", NULL);
  g_autoptr (real_job) from = trained ("qwen3", "bf16", strategies[3]);
  g_autoptr (real_job) to = open_job ("qwen3", "bf16", strategies[2]);

  assert_passes (from, to, WEFT_STATE_WEIGHT, path, "bf16");
  assert_non_null (real_other_tensor (from->state, to->state, WEFT_STATE_MASTER));
  assert_true (real_hash (to->state, WEFT_STATE_MASTER) ==
               real_hash (to->state, WEFT_STATE_WEIGHT));
}

/* Two jobs with different strategies that import the same file must have the same losses. */
static void
training_goes_on_alike_from_a_file (void **folder)
{
  g_autofree char *path = g_build_filename (*folder, "model.safetensors", NULL);

  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++) {
      g_autoptr (real_job) one = open_job (models[m], precisions[p], strategies[0]);
      weft_state_init (one->state, 6);
      struct bytes file = export_bytes (one, WEFT_STATE_MASTER, path);
      for (unsigned s = 1; s < G_N_ELEMENTS (strategies); s++) {
        g_autoptr (real_job) first = open_job (models[m], precisions[p], strategies[0]);
        g_autoptr (real_job) other = open_job (models[m], precisions[p], strategies[s]);
        weft_state_init (other->state, 7);
        weft_state_init (first->state, 6);
        import_whole (other, path);
        for (int step = 0; step < 2; step++)
          assert_true (real_job_step (other)->loss == real_job_step (first)->loss);
        assert_same_state (first, other, WEFT_STATE_WEIGHT, strategies[s]);
        assert_same_state (first, other, WEFT_STATE_EXP_AVG_SQ, strategies[s]);
      }
      g_free (file.data);
    }
}

static unsigned
count_names (const weft_safetensors *file, const char *part)
{
  unsigned n = 0;

  for (uint32_t i = 0; i < weft_safetensors_count (file); i++)
    n += strstr (weft_safetensors_at (file, i)->name, part) != NULL;
  return n;
}

static void
assert_tied_once (const char *model, const char *embedding, const char *path)
{
  g_autoptr (real_job) job = trained (model, "bf16", strategies[3]);
  struct bytes out = export_bytes (job, WEFT_STATE_WEIGHT, path);
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
  unsigned ours = 0;

  for (uint32_t i = 0; i < weft_state_count (job->state); i++) {
    ours += strcmp (weft_state_at (job->state, i)->name, "embedding.weight") == 0;
    assert_null (strstr (weft_state_at (job->state, i)->name, "head.weight"));
  }
  assert_int_equal (ours, 1);
  assert_int_equal (count_names (file, embedding), 1);
  assert_int_equal (count_names (file, "lm_head"), 0);
  g_free (out.data);
}

static void
a_tied_embedding_is_one_tensor_though_two_stages_hold_it (void **folder)
{
  g_autofree char *path = g_build_filename (*folder, "model.safetensors", NULL);

  assert_tied_once ("gpt2", "wte.weight", path);
  assert_tied_once ("qwen2", "embed_tokens.weight", path);
}

static void
gradients_are_the_same_file_under_every_strategy (void **folder)
{
  g_autofree char *path = g_build_filename (*folder, "gradients.safetensors", NULL);

  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++) {
      g_autoptr (real_job) one = trained (models[m], precisions[p], strategies[0]);
      struct bytes wanted = export_bytes (one, WEFT_STATE_GRAD, path);
      for (unsigned s = 1; s < G_N_ELEMENTS (strategies); s++) {
        g_autoptr (real_job) other = trained (models[m], precisions[p], strategies[s]);
        struct bytes found = export_bytes (other, WEFT_STATE_GRAD, path);
        assert_same_bytes (found, wanted, strategies[s]);
        g_free (found.data);
      }
      g_free (wanted.data);
    }
}

#define TEST(name)                                                                                 \
  cmocka_unit_test_setup_teardown (name, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  TEST (models_go_from_any_strategy_to_any_other),
  TEST (masters_of_an_imported_bf16_model_are_its_weights),
  TEST (training_goes_on_alike_from_a_file),
  TEST (a_tied_embedding_is_one_tensor_though_two_stages_hold_it),
  TEST (gradients_are_the_same_file_under_every_strategy),
};

WEFT_TESTS (tests, .seconds = 20)
