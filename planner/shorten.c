#include "planner/shorten.h"
#include "core/job/pipeline.h"
#include <math.h>

/* The number of microbatches that the schedule handles as one group. */
static int64_t
group_of (const union weft_strategy *s)
{
  int64_t chunks = s->virtual_pipeline_model_parallel_size;

  if (s->microbatch_group_size_per_vp_stage != WEFT_NONE)
    return s->microbatch_group_size_per_vp_stage;
  if (weft_schedules[s->pipeline_schedule].steady)
    return chunks == WEFT_NONE ? 1 : s->pipeline_model_parallel_size;
  return s->pipeline_model_parallel_size + s->pipeline_model_parallel_size % 2;
}

/* The number of microbatches from which on every further group adds the same time. In interleaved
 * schedules a rank runs at most (chunks - 1) * group + 2 * stages forward passes before its first
 * backward pass: fewer than two groups of at least `stages` microbatches have. */
static int64_t
fill_of (const union weft_strategy *s)
{
  const struct weft_schedule_row *row = &weft_schedules[s->pipeline_schedule];
  int64_t stages = s->pipeline_model_parallel_size, group = group_of (s);

  if (group == 1)
    return stages + 2;
  return row->steady ? 2 * MAX (stages, group) : MAX (2, row->settles) * stages + 2;
}

/* The number of microbatches by which the second short step is longer. Where cells repeat for every
 * microbatch only on average, this is half the number of stages, and at least four, so that the
 * difference of the two steps is an average. It is even, because dualpipe needs an even number. */
static int64_t
difference_of (const union weft_strategy *s)
{
  if (weft_schedules[s->pipeline_schedule].steady)
    return group_of (s);
  return MAX (2, s->pipeline_model_parallel_size / 4) * 2;
}

/* The microbatches of the first short step. In schedules with groups, its last group has as many
 * microbatches as that of the long step of `all`. */
static int64_t
first_of (const union weft_strategy *s, int64_t all)
{
  int64_t fill = fill_of (s), group = group_of (s);

  if (!weft_schedules[s->pipeline_schedule].steady)
    return fill;
  fill = (fill + group - 1) / group * group;
  return fill + (all - fill) % group;
}

struct weft_job
weft_shorten_to (const struct weft_job *job, int64_t microbatches)
{
  struct weft_job shorter = *job;

  shorter.train.global_batch_size = microbatches * job->train.micro_batch_size * weft_job_dp (job);
  return shorter;
}

struct weft_job
weft_shorten_most (const struct weft_job *job)
{
  return weft_shorten_to (job, MAX (2, group_of (&job->strategy)));
}

/* Uses two short steps if the long step has at least three times the microbatches of the first
 * short step (with fewer, two short steps would not cost less) and if the short steps break no
 * rule. For example, a schedule from a file allows only one number of microbatches. */
void
weft_shorten (const struct weft_job *job, struct weft_shortened *shortened)
{
  int64_t all = weft_job_microbatches (job), first = first_of (&job->strategy, all);
  int64_t difference = difference_of (&job->strategy);

  shortened->job[0] = weft_shorten_to (job, first);
  shortened->job[1] = weft_shorten_to (job, first + difference);
  shortened->further = (double) (all - first - difference) / (double) difference;
  shortened->n = 2;
  if (all >= 3 * first && weft_job_check (&shortened->job[0], NULL) &&
      weft_job_check (&shortened->job[1], NULL))
    return;
  shortened->job[0] = *job;
  shortened->n = 1;
}

double
weft_shortened_seconds (const struct weft_shortened *shortened, const double seconds[2])
{
  if (shortened->n == 1)
    return seconds[0];
  return seconds[1] + shortened->further * (seconds[1] - seconds[0]);
}

/* Schedules that begin with all forward passes keep the activations of all microbatches. */
gboolean
weft_shortened_grows (const struct weft_shortened *shortened)
{
  enum weft_schedule schedule = shortened->job[0].strategy.pipeline_schedule;

  return weft_schedules[schedule].in_flight == WEFT_IN_FLIGHT_ALL;
}

/* If memory does not grow, the bytes of the two short steps differ only in the padding between
 * buffers, and the result is the larger value. */
double
weft_shortened_bytes (const struct weft_shortened *shortened, const double bytes[2])
{
  if (shortened->n == 1)
    return bytes[0];
  if (!weft_shortened_grows (shortened))
    return fmax (bytes[0], bytes[1]);
  return bytes[1] + shortened->further * fmax (0, bytes[1] - bytes[0]);
}

static double
further (const struct weft_shortened *shortened, double shorter, double longer)
{
  return weft_shortened_seconds (shortened, (const double[]){ shorter, longer });
}

static struct weft_report_overlap
further_overlap (const struct weft_shortened *shortened, const struct weft_report_overlap *a,
                 const struct weft_report_overlap *b, double late, double step)
{
  struct weft_report_overlap sum = {
    .compute_s = further (shortened, a->compute_s, b->compute_s),
    .communication_s = further (shortened, a->communication_s, b->communication_s),
    .exposed_communication_s =
        further (shortened, a->exposed_communication_s, b->exposed_communication_s),
    .bubble_s = further (shortened, a->bubble_s, b->bubble_s) + late,
    .launch_wait_s = further (shortened, a->launch_wait_s, b->launch_wait_s),
  };

  sum.overlap_fraction =
      sum.communication_s > 0 ? 1 - sum.exposed_communication_s / sum.communication_s : 0;
  sum.bubble_fraction = sum.bubble_s / step;
  return sum;
}

/* Extrapolates the FLOPs of a report. Model FLOPs are proportional to the tokens. Executed FLOPs
 * are extrapolated linearly, like seconds. */
static struct weft_report_iteration
further_iteration (const struct weft_shortened *shortened, const struct weft_job *job,
                   const struct weft_report_iteration *a, const struct weft_report_iteration *b,
                   double late)
{
  double step = further (shortened, a->time_s, b->time_s) + late;
  double tokens = (double) job->train.global_batch_size /
                  (double) shortened->job[1].train.global_batch_size * b->time_s / step;
  double hardware = further (shortened, a->hfu * a->time_s, b->hfu * b->time_s) / step;

  return (struct weft_report_iteration){
    .time_s = step,
    .tokens_per_s = b->tokens_per_s * tokens,
    .tokens_per_s_per_gpu = b->tokens_per_s_per_gpu * tokens,
    .model_tflops_per_gpu = b->model_tflops_per_gpu * tokens,
    .hardware_tflops_per_gpu = b->hardware_tflops_per_gpu * hardware / b->hfu,
    .mfu = b->mfu * tokens,
    .hfu = hardware,
  };
}

/* Extrapolates the communication of one axis. */
static struct weft_report_axis
further_axis (const struct weft_shortened *shortened, const struct weft_report_axis *a,
              const struct weft_report_axis *b)
{
  return (struct weft_report_axis){ .busy_s = further (shortened, a->busy_s, b->busy_s),
                                    .exposed_s = further (shortened, a->exposed_s, b->exposed_s),
                                    .bytes = further (shortened, a->bytes, b->bytes) };
}

void
weft_shortened_report (const struct weft_shortened *shortened, const struct weft_job *job,
                       weft_report *const of[2], double late, weft_report *report)
{
  report->iteration = of[0]->iteration;
  report->overlap = of[0]->overlap;
  if (shortened->n == 1)
    return;
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    report->axis[lane] = further_axis (shortened, &of[0]->axis[lane], &of[1]->axis[lane]);
  report->iteration =
      further_iteration (shortened, job, &of[0]->iteration, &of[1]->iteration, late);
  report->overlap =
      further_overlap (shortened, &of[0]->overlap, &of[1]->overlap, late, report->iteration.time_s);
}
