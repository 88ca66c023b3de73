#include "core/job/schedule.h"

const struct weft_schedule_info weft_schedule_infos[] = {
  [WEFT_SCHEDULE_1F1B] = { WEFT_GRID_LOOP, 0, 1 },
  [WEFT_SCHEDULE_GPIPE] = { WEFT_GRID_LOOP, 1, 1 },
  [WEFT_SCHEDULE_ZB_H1] = { WEFT_GRID_LOOP, 1, 1 },
  [WEFT_SCHEDULE_ZB_H2] = { WEFT_GRID_LOOP, 1, 1 },
  [WEFT_SCHEDULE_ZB_V] = { WEFT_GRID_V, 2, 1 },
  [WEFT_SCHEDULE_V_HALF] = { WEFT_GRID_V, 2, 1 },
  [WEFT_SCHEDULE_V_MIN] = { WEFT_GRID_V, 2, 1 },
  [WEFT_SCHEDULE_DUALPIPE] = { WEFT_GRID_TWO_WAYS, 1, 2 },
  [WEFT_SCHEDULE_DUALPIPEV] = { WEFT_GRID_V, 2, 1 },
};

struct weft_grid_spec
weft_job_grid_spec (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;

  return (struct weft_grid_spec){
    .schedule = s->pipeline_schedule,
    .n_ranks = s->pipeline_model_parallel_size,
    .n_chunks = MAX (s->virtual_pipeline_model_parallel_size, 0),
    .n_micro = weft_job_microbatches (job),
    .group = MAX (s->microbatch_group_size_per_vp_stage, 0),
    .extra_warmup = s->overlap_moe_expert_parallel_comm,
  };
}

const char *
weft_job_schedule_file (const struct weft_job *job)
{
  const char *path = g_quark_to_string ((GQuark) job->strategy.pipeline_schedule_file);

  return path && *path && !g_str_equal (path, "none") ? path : NULL;
}

uint32_t
weft_spec_chunks (const struct weft_grid_spec *spec)
{
  uint32_t own = weft_schedule_infos[spec->schedule].n_chunks;

  return spec->n_chunks ? spec->n_chunks : MAX (own, 1);
}

uint32_t
weft_spec_group (const struct weft_grid_spec *spec)
{
  return spec->group ? spec->group : spec->n_ranks;
}

static gboolean
chunks_fit (const struct weft_grid_spec *spec)
{
  uint32_t own = weft_schedule_infos[spec->schedule].n_chunks;

  return own ? weft_spec_chunks (spec) == own : weft_spec_chunks (spec) <= UINT8_MAX;
}

/* Groups are of interleaved ranks alone. */
static gboolean
group_fits (const struct weft_grid_spec *spec)
{
  uint32_t group = weft_spec_group (spec);

  return spec->schedule != WEFT_SCHEDULE_1F1B || weft_spec_chunks (spec) == 1 ||
         (group >= spec->n_ranks && group <= spec->n_micro);
}

static gboolean
rest_fits (const struct weft_grid_spec *spec)
{
  uint32_t rest = spec->n_micro % weft_spec_group (spec);

  return spec->schedule != WEFT_SCHEDULE_1F1B || weft_spec_chunks (spec) == 1 || rest == 0 ||
         rest >= spec->n_ranks;
}

static gboolean
is_even (const struct weft_grid_spec *spec)
{
  return weft_schedule_infos[spec->schedule].shape != WEFT_GRID_TWO_WAYS ||
         (spec->n_ranks % 2 == 0 && spec->n_micro % 2 == 0);
}

static gboolean
has_enough (const struct weft_grid_spec *spec)
{
  gboolean dual =
      spec->schedule == WEFT_SCHEDULE_DUALPIPE || spec->schedule == WEFT_SCHEDULE_DUALPIPEV;

  return !dual || spec->n_micro >= 2 * spec->n_ranks;
}

enum weft_spec_rule
weft_spec_broken (const struct weft_grid_spec *spec)
{
  static gboolean (*const holds[]) (const struct weft_grid_spec *spec) = {
    [WEFT_SPEC_CHUNKS] = chunks_fit, [WEFT_SPEC_GROUP] = group_fits,  [WEFT_SPEC_REST] = rest_fits,
    [WEFT_SPEC_EVEN] = is_even,      [WEFT_SPEC_ENOUGH] = has_enough,
  };
  enum weft_spec_rule rule = 0;

  while (rule < WEFT_SPEC_FITS && holds[rule](spec))
    rule++;
  return rule;
}
