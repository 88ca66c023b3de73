#include "core/report/waterfall.h"
#include "core/report/report.h"

double
weft_waterfall_model_flops (const struct weft_job *job)
{
  double tokens = (double) job->train.global_batch_size * job->model.seq_length;
  return weft_job_flops_per_token (job) * tokens / job->cluster.n_gpus;
}

/* FLOPs of the classes whose kernels could run at the peak. */
static double
peak_flops (const struct weft_breakdown *b)
{
  return b->flops[WEFT_WORK_MATMUL] + b->flops[WEFT_WORK_ATTENTION];
}

static gboolean
has_peak (int work)
{
  return work == WEFT_WORK_MATMUL || work == WEFT_WORK_ATTENTION;
}

struct weft_waterfall
weft_waterfall_new (const struct weft_job *job, const struct weft_breakdown *b)
{
  struct weft_waterfall w = { 0 };
  double peak = weft_report_printed_peak (job), model = weft_waterfall_model_flops (job);

  w.seconds[WEFT_TERM_PEAK] = model / peak;
  w.seconds[WEFT_TERM_MORE] = (peak_flops (b) - model) / peak;
  for (int work = 0; work < WEFT_WORK_ALL_REDUCE; work++) {
    double *term = &w.seconds[WEFT_TERM_WORK + work];
    for (int axis = 0; axis < WEFT_N_AXIS; axis++)
      *term += b->cell[work][axis].alone_s;
    if (has_peak (work))
      *term -= b->flops[work] / peak;
  }
  for (int axis = 0; axis < WEFT_N_AXIS; axis++)
    w.seconds[WEFT_TERM_AXIS + axis] = weft_breakdown_exposed (b, axis);
  w.seconds[WEFT_TERM_HOST] = b->host_s;
  w.seconds[WEFT_TERM_IDLE] = b->idle_s;
  if (job->strategy.pipeline_model_parallel_size > 1) {
    static const int joined[] = { WEFT_TERM_IDLE, WEFT_TERM_AXIS + WEFT_LANE_PP };
    for (unsigned i = 0; i < G_N_ELEMENTS (joined); i++) {
      w.seconds[WEFT_TERM_PIPELINE] += w.seconds[joined[i]];
      w.seconds[joined[i]] = 0;
    }
  }
  return w;
}

char *
weft_term_name (unsigned term)
{
  static const char *const words[] = { [WEFT_TERM_PEAK] = "model FLOPs at the peak",
                                       [WEFT_TERM_MORE] = "more FLOPs: recompute ...",
                                       [WEFT_TERM_HOST] = "waits for the host",
                                       [WEFT_TERM_IDLE] = "idle",
                                       [WEFT_TERM_PIPELINE] = "waits for stages, pp" };

  if (term >= WEFT_TERM_WORK && term < WEFT_TERM_AXIS) {
    int work = term - WEFT_TERM_WORK;
    return g_strdup_printf (has_peak (work) ? "%s below the peak" : "%s", weft_work_words[work]);
  }
  if (term >= WEFT_TERM_AXIS && term < WEFT_TERM_HOST)
    return g_strdup_printf ("exposed %s", weft_axis_word (term - WEFT_TERM_AXIS));
  return g_strdup (words[term]);
}
