#include "core/base/error.h"
#include "core/job/flags.h"
#include "core/report/report.h"
#include "core/passes/step.h"
#include "exec_sim/exec_sim.h"
#include "api/inside.h"
#include <limits.h>
#include <string.h>

/* Checks the number of words, and that none of the words is NULL. */
static bool
check_words (size_t n, const char *const *words, weft_error *error)
{
  if (n > INT_MAX)
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                               "job_open: found %zu words, wanted at most %d", n, INT_MAX);
  if (n && !weft_api_given ("job_open", "words", words, error))
    return false;
  for (size_t i = 0; i < n; i++)
    if (!weft_api_given ("job_open", "word", words[i], error))
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

  if (!check_words (n, words, error))
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

/* --------------------------------------------------------------------- prediction */

static const struct weft_exec_ops *
find_executor (const char *name, weft_error *error)
{
  g_autoptr (GString) known = g_string_new (NULL);

  for (unsigned i = 0; weft_predictors[i]; i++) {
    if (!name || strcmp (name, weft_predictors[i]->name) == 0)
      return weft_predictors[i];
    g_string_append_printf (known, "%s%s", i ? " or " : "", weft_predictors[i]->name);
  }
  weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT, "executor: found \"%s\", wanted %s", name,
                      known->str);
  return NULL;
}

static gboolean
predict_startup (const struct weft_exec_ops *executor, const weft_plan *plan, double *seconds,
                 GError **reason)
{
  const struct weft_exec_options options = { 0 };

  *seconds = 0;
  if (!weft_init_broadcasts (&plan->job))
    return TRUE;
  g_autoptr (weft_plan) startup = weft_plan_new_broadcast (&plan->job, reason);
  g_autoptr (weft_timeline) t =
      startup ? weft_exec_run (executor, startup, &options, reason) : NULL;
  if (t)
    *seconds = t->seconds;
  return t != NULL;
}

struct prediction {
  const weft_job *job;
  const struct weft_exec_ops *ops;
  weft_prediction out;
  GError *reason;
  GAsyncQueue *done; /* queue to which the prediction is sent when it is complete */
};

static void
run_prediction (struct prediction *p)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_timeline) t = weft_exec_run (p->ops, p->job->plan, &options, &p->reason);
  double startup;

  if (!t || !predict_startup (p->ops, p->job->plan, &startup, &p->reason))
    return;
  g_autoptr (weft_report) r = weft_report_new (p->job->plan, t);
  p->out = (weft_prediction){ .seconds = r->iteration.time_s,
                              .tokens_per_s = r->iteration.tokens_per_s,
                              .mfu = r->iteration.mfu,
                              .compute_s = r->overlap.compute_s,
                              .exposed_communication_s = r->overlap.exposed_communication_s,
                              .bubble_s = r->overlap.bubble_s,
                              .broadcast_params_s = startup,
                              .peak_bytes = r->peak_bytes,
                              .fits = r->fits };
}

static void
run_in_thread (gpointer prediction, gpointer unused)
{
  struct prediction *p = prediction;

  (void) unused;
  run_prediction (p);
  g_async_queue_push (p->done, p);
}

/* SimGrid has one engine per process, which belongs to the thread that created it. Therefore one
 * thread, which never ends, runs all predictions, one after the other. */
static gpointer
start_thread (gpointer unused)
{
  (void) unused;
  return g_thread_pool_new (run_in_thread, NULL, 1, TRUE, NULL);
}

static void
predict_in_thread (struct prediction *p)
{
  static GOnce once = G_ONCE_INIT;
  GThreadPool *pool = g_once (&once, start_thread, NULL);

  if (!pool) {
    g_set_error (&p->reason, WEFT_ERROR, WEFT_ERROR_RUN, "predict: cannot start a thread");
    return;
  }
  p->done = g_async_queue_new ();
  g_thread_pool_push (pool, p, NULL);
  g_async_queue_pop (p->done);
  g_async_queue_unref (p->done);
}

bool
weft_job_predict (const weft_job *job, const char *executor, weft_prediction *out,
                  weft_error *error)
{
  struct prediction p = { .job = job };

  if (!weft_api_given ("predict", "job", job, error) ||
      !weft_api_given ("predict", "out", out, error) || !(p.ops = find_executor (executor, error)))
    return false;
  predict_in_thread (&p);
  if (p.reason)
    return weft_api_fail (error, p.reason);
  *out = p.out;
  return weft_api_done (error);
}
