#include "planner/sensitivity.h"
#include "core/base/error.h"
#include "planner/workers.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define CHANGE 0.1

#define F(name) offsetof (struct weft_cluster, f.name)
enum { MOST_FIELDS = 12 };

/* Fields of the cluster that each quantity multiplies; 0 ends a list. The vendor's peaks stay as
 * they are, so that MFU keeps its denominator. */
static const size_t fields[WEFT_N_SENSITIVITY][MOST_FIELDS] = {
  [WEFT_SENSITIVITY_FLOPS] = { F (gpu_bf16), F (gpu_fp8), F (gpu_nvfp4), F (gpu_fp32) },
  [WEFT_SENSITIVITY_HBM] = { F (gpu_memory_bandwidth) },
  [WEFT_SENSITIVITY_NVLINK] = { F (node_intra_bandwidth), F (node_ll_bandwidth),
                                F (node_ll128_bandwidth), F (node_ll_channel_bandwidth),
                                F (node_nvls_bandwidth) },
  [WEFT_SENSITIVITY_NIC] = { F (node_nic_bandwidth), F (fabric_ll_bandwidth),
                             F (fabric_link_bandwidth) },
};

#define ROW(id, word_, doc_) { .word = word_, .doc = doc_ },
static const struct weft_sensitivity rows_of_words[] = { WEFT_SENSITIVITY_LIST (ROW) };

struct tasks {
  const struct weft_job *job;
  const struct weft_exec_ops *executor;
};

/* Global batch that is nearest to `factor` times that of the job, in whole microbatches of all
 * replicas, and different from it. */
static int64_t
other_batch (const struct weft_job *job, double factor)
{
  int64_t now = job->train.global_batch_size,
          unit = job->train.micro_batch_size * weft_job_dp (job),
          wanted = (int64_t) llround ((double) now * factor / (double) unit) * unit;

  if (wanted == now)
    wanted += factor < 1 ? -unit : unit;
  return wanted;
}

/* Changes one quantity of a job. Returns the new quantity divided by the old one. */
static double
change (struct weft_job *job, enum weft_sensitivity_kind kind, double factor)
{
  if (kind == WEFT_SENSITIVITY_BATCH) {
    int64_t before = job->train.global_batch_size;
    job->train.global_batch_size = other_batch (job, factor);
    return (double) job->train.global_batch_size / (double) before;
  }
  for (unsigned i = 0; i < MOST_FIELDS && fields[kind][i]; i++)
    *(double *) (void *) ((char *) &job->cluster + fields[kind][i]) *= factor;
  return factor;
}

static double
factor_of (uint32_t task)
{
  return task % 2 ? 1 - CHANGE : 1 + CHANGE;
}

/* Task 0 is the job itself; tasks 2 k + 1 and 2 k + 2 have less and more of quantity k. */
static void
predict (void *user, uint32_t task, void *result)
{
  const struct tasks *t = user;
  g_autoptr (GError) error = NULL;
  struct weft_job job = *t->job;

  if (task)
    change (&job, (task - 1) / 2, factor_of (task));
  if (job.train.global_batch_size <= 0)
    weft_bad_input (&error, "the batch is one microbatch of each replica");
  else if (weft_job_check (&job, &error))
    weft_summary_predict (&job, t->executor, result);
  if (error)
    weft_summary_refuse (result, error);
}

static int
by_rate (const void *a, const void *b)
{
  const struct weft_sensitivity *x = a, *y = b;
  double left = isnan (x->rate) ? -1 : fabs (x->rate),
         right = isnan (y->rate) ? -1 : fabs (y->rate);

  return (left < right) - (left > right);
}

static void
fill (struct weft_sensitivity *row, const struct weft_job *job, enum weft_sensitivity_kind kind)
{
  struct weft_job less = *job, more = *job;

  row->down = change (&less, kind, 1 - CHANGE);
  row->up = change (&more, kind, 1 + CHANGE);
  row->step = row->rate = NAN;
  if (!weft_summary_has_numbers (&row->less) || !weft_summary_has_numbers (&row->more))
    return;
  double quantity = log (row->up / row->down);
  row->step = log (row->more.step_s / row->less.step_s) / quantity;
  row->rate = log (row->more.tokens_per_s / row->less.tokens_per_s) / quantity;
}

gboolean
weft_sensitivity_run (const struct weft_job *job, const struct weft_exec_ops *executor,
                      struct weft_summary *as_is, struct weft_sensitivity rows[WEFT_N_SENSITIVITY],
                      GError **error)
{
  struct tasks user = { job, executor };
  struct weft_summary result[1 + 2 * WEFT_N_SENSITIVITY];
  gboolean done[1 + 2 * WEFT_N_SENSITIVITY];
  const struct weft_workers tasks = {
    .n_tasks = G_N_ELEMENTS (result), .result_bytes = sizeof *result, .run = predict, .user = &user
  };

  if (!weft_cluster_one_kind (&job->cluster, "weft sweep --sensitivity", error) ||
      !weft_workers_run (&tasks, result, done, error))
    return FALSE;
  for (unsigned i = 0; i < G_N_ELEMENTS (done); i++)
    if (!done[i])
      return weft_run_error (error, "a process that predicted a change ended early");
  *as_is = result[0];
  for (unsigned k = 0; k < WEFT_N_SENSITIVITY; k++) {
    rows[k] = rows_of_words[k];
    rows[k].less = result[2 * k + 1];
    rows[k].more = result[2 * k + 2];
    fill (&rows[k], job, k);
  }
  qsort (rows, WEFT_N_SENSITIVITY, sizeof *rows, by_rate);
  return TRUE;
}
