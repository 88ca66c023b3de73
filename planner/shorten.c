#include "planner/shorten.h"
#include "core/job/schedule.h"
#include <math.h>

/* Microbatches that schedules take together. */
static int64_t
group_of (const union weft_strategy *s)
{
  int64_t chunks = s->virtual_pipeline_model_parallel_size;

  if (s->microbatch_group_size_per_vp_stage != WEFT_NONE)
    return s->microbatch_group_size_per_vp_stage;
  if (s->pipeline_schedule == WEFT_SCHEDULE_1F1B)
    return chunks == WEFT_NONE ? 1 : s->pipeline_model_parallel_size;
  return s->pipeline_model_parallel_size + s->pipeline_model_parallel_size % 2;
}

struct weft_job
weft_shorten_to (const struct weft_job *job, int64_t microbatches)
{
  struct weft_job shorter = *job;

  shorter.train.global_batch_size = microbatches * job->train.micro_batch_size * weft_job_dp (job);
  return shorter;
}

/* Two short steps cost less than the long one where it has three times the microbatches of one; where a
 * rule refuses them they say nothing, as of a schedule from a file, which is made for as many as there
 * are. */
void
weft_shorten (const struct weft_job *job, struct weft_shortened *shortened)
{
  int64_t stages = job->strategy.pipeline_model_parallel_size, group = group_of (&job->strategy);
  int64_t fill = group > 1 ? 2 * stages + 2 : stages + 2, all = weft_job_microbatches (job);
  int64_t first = (fill + group - 1) / group * group;

  first += (all - first) % group; /* what is left over stays left over */
  shortened->job[0] = weft_shorten_to (job, first);
  shortened->job[1] = weft_shorten_to (job, first + group);
  shortened->further = (double) (all - first - group) / group;
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

/* What two placements of buffers lose differs a little, and is no growth. */
double
weft_shortened_bytes (const struct weft_shortened *shortened, const double bytes[2])
{
  if (shortened->n == 1)
    return bytes[0];
  if (shortened->job[0].strategy.pipeline_schedule != WEFT_SCHEDULE_GPIPE)
    return fmax (bytes[0], bytes[1]);
  return bytes[1] + shortened->further * fmax (0, bytes[1] - bytes[0]);
}
