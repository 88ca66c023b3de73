#include "core/base/error.h"
#include "core/job/flags.h"
#include "api/inside.h"
#include <limits.h>
#include <string.h>

bool
weft_api_words (const char *call, size_t n, const char *const *words, weft_error *error)
{
  if (n > INT_MAX)
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                               "%s: found %zu words, wanted at most %d", call, n, INT_MAX);
  if (n && !weft_api_given (call, "words", words, error))
    return false;
  for (size_t i = 0; i < n; i++)
    if (!weft_api_given (call, "word", words[i], error))
      return false;
  return true;
}

weft_job *
weft_job_open (size_t n, const char *const *words, weft_error *error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  GError *reason = NULL;
  struct weft_job job;
  weft_plan *plan = NULL;

  if (!weft_api_words ("job_open", n, words, error))
    return NULL;
  if (weft_flags_read ((int) n, words, "cpu", settings, &reason) &&
      weft_job_build (settings, &job, &reason))
    plan = weft_plan_new (&job, &reason);
  if (!plan) {
    weft_api_fail (error, reason);
    return NULL;
  }
  weft_job *self = g_new0 (weft_job, 1);
  self->plan = plan;
  self->notes = weft_job_warnings (&plan->job);
  for (const char *const *flag = weft_settings_ignored (settings); *flag; flag++)
    g_ptr_array_add (self->notes, g_strconcat (*flag, ": this flag has no effect", NULL));
  weft_api_done (error);
  return self;
}

void
weft_job_close (weft_job *job)
{
  if (!job)
    return;
  g_ptr_array_unref (job->notes);
  weft_plan_free (job->plan);
  g_free (job);
}

void
weft_job_describe (const weft_job *job, weft_job_facts *facts)
{
  uint64_t most = 0;

  if (!facts)
    return;
  *facts = (weft_job_facts){ 0 };
  if (!job)
    return;
  const struct weft_job *j = &job->plan->job;
  for (uint32_t role = 0; role < job->plan->n_roles; role++)
    most = MAX (most, weft_plan_arena_bytes (job->plan, role));
  *facts = (weft_job_facts){ .ranks = job->plan->mesh.n_ranks,
                             .replicas = (uint32_t) weft_job_dp (j),
                             .stages = job->plan->mesh.pp,
                             .microbatches = (uint32_t) weft_job_microbatches (j),
                             .micro_batch_size = (uint32_t) j->train.micro_batch_size,
                             .global_batch_size = (uint32_t) j->train.global_batch_size,
                             .seq_length = (uint32_t) j->model.seq_length,
                             .vocab_size = (uint32_t) j->model.vocab_size,
                             .parameters = weft_model_parameters (&j->model),
                             .planned_bytes = most };
}

const char *
weft_job_note (const weft_job *job, size_t i)
{
  return job && i < job->notes->len ? job->notes->pdata[i] : NULL;
}

uint64_t
weft_job_row (const weft_job *job, uint32_t replica, uint32_t micro, uint32_t i)
{
  return !job ? 0 : (uint64_t) weft_job_sequence (&job->plan->job, replica, micro) + i;
}
