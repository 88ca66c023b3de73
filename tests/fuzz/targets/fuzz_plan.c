/* The flags of a job as text ("model=gpt2-nano gpus=4 ..."): a job must be refused with a message
 * or have a plan, and no internal check may fail. */
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/job/flags.h"
#include "core/plan/plan.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

/* only jobs with at most this many layers x microbatches x stages are planned */
#define MOST_OPS (1 << 12)
#define MOST_GPUS 256

/* Builds a job from words. Words with a slash are refused, because they are paths and a fuzzer must
 * not open files of this machine. Invalid UTF-8 is refused, because messages quote words. */
static gboolean
build (const char *words, struct weft_job *job, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();

  if (strchr (words, '/') || !g_utf8_validate (words, -1, NULL))
    return weft_bad_input (error, "a path, or no text");
  return weft_flags_words (words, settings, error) && weft_job_build (settings, job, error);
}

static gboolean
is_large (const struct weft_job *job)
{
  double layers = (double) job->model.num_layers * (double) weft_job_microbatches (job);

  return layers * (double) job->strategy.pipeline_model_parallel_size > MOST_OPS ||
         job->cluster.n_gpus > MOST_GPUS;
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autofree char *words = g_strndup ((const char *) data, size);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = NULL;
  struct weft_job job;

  g_strdelimit (words, "\n\t", ' ');
  gboolean good = build (words, &job, &error);
  g_assert_true (good == (error == NULL));
  if (good && !is_large (&job)) {
    plan = weft_plan_new (&job, &error);
    g_assert_true ((plan == NULL) == (error != NULL));
  }
  if (error) {
    g_assert_false (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_BUG));
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
  }
  return 0;
}
