/* An axis is a setting and the values worth trying; one that the user gave has one value.  Axes are a
 * table, so a new knob joins the search with one row. */
#include "planner/space.h"

struct axis {
  enum { KNOB, TRAIN } table;
  unsigned field;
  /* Values into out[], returns how many; `job` is complete for the axes before this one. */
  uint32_t (*values) (const struct weft_job *job, int64_t out[32]);
};

static uint32_t
stages (const struct weft_job *job, int64_t out[32])
{
  uint32_t n = 0;
  for (int64_t p = 1; p <= job->model.num_layers && p <= job->cluster.n_gpus && n < 32; p++)
    if (job->model.num_layers % p == 0 && job->cluster.n_gpus % p == 0)
      out[n++] = p;
  return n;
}

/* One where the GPUs do not suffice, which is for the rules to say. */
static int64_t
replicas (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  return MAX (1, job->cluster.n_gpus /
                     (s->pipeline_model_parallel_size * s->tensor_model_parallel_size *
                      s->context_parallel_size));
}

static uint32_t
micro_batches (const struct weft_job *job, int64_t out[32])
{
  int64_t dp = replicas (job);
  uint32_t n = 0;

  for (int64_t b = 1; b <= 16 && job->train.global_batch_size % (b * dp) == 0; b *= 2)
    out[n++] = b;
  return n;
}

static uint32_t
both (const struct weft_job *job, int64_t out[32])
{
  (void) job;
  out[0] = FALSE;
  out[1] = TRUE;
  return 2;
}

static uint32_t
only_true (const struct weft_job *job, int64_t out[32])
{
  (void) job;
  out[0] = TRUE;
  return 1;
}

static uint32_t
only_false (const struct weft_job *job, int64_t out[32])
{
  (void) job;
  out[0] = FALSE;
  return 1;
}

static gboolean
replicated (const struct weft_job *job)
{
  return replicas (job) > 1;
}

/* A pipeline of one stage has no schedule to choose. */
static uint32_t
schedules (const struct weft_job *job, int64_t out[32])
{
  out[0] = WEFT_SCHEDULE_1F1B;
  out[1] = WEFT_SCHEDULE_GPIPE;
  return job->strategy.pipeline_model_parallel_size > 1 ? 2 : 1;
}

static uint32_t
recomputes (const struct weft_job *job, int64_t out[32])
{
  (void) job;
  out[0] = WEFT_RECOMPUTE_NONE;
  out[1] = WEFT_RECOMPUTE_FULL;
  return 2;
}

static uint32_t
if_replicated (const struct weft_job *job, int64_t out[32])
{
  return replicated (job) ? both (job, out) : (out[0] = FALSE, 1);
}

/* A strategy that the user names is not changed for another. */
static uint32_t
fsdp_or_not (const struct weft_job *job, int64_t out[32])
{
  if (job->strategy.distributed_config == WEFT_MEGATRON_FSDP)
    return only_true (job, out);
  return weft_job_is_torch (job) ? only_false (job, out) : if_replicated (job, out);
}

static uint32_t
fusion (const struct weft_job *job, int64_t out[32])
{
  return weft_job_is_torch (job) ? only_false (job, out) : only_true (job, out);
}

/* Levels 0 and 1 are what the bucketed wrapper does; the first value is the knob's own default. */
static uint32_t
levels (const struct weft_job *job, int64_t out[32])
{
  if (!job->strategy.use_megatron_fsdp) {
    out[0] = WEFT_NO_SHARD;
    return 1;
  }
  out[0] = WEFT_SHARD_GRADS;
  out[1] = WEFT_SHARD_PARAMS;
  return 2;
}

/* Megatron-FSDP says by its level what is split. */
static uint32_t
if_wrapped (const struct weft_job *job, int64_t out[32])
{
  return job->strategy.use_megatron_fsdp || weft_job_is_torch (job) ? only_false (job, out)
                                                                    : if_replicated (job, out);
}

/* What is split is reduced on the way in any case. */
static uint32_t
overlaps (const struct weft_job *job, int64_t out[32])
{
  if (weft_job_is_torch (job))
    return only_false (job, out);
  return job->strategy.use_megatron_fsdp ? only_true (job, out) : if_replicated (job, out);
}

static uint32_t
if_sharded_and_overlapped (const struct weft_job *job, int64_t out[32])
{
  gboolean fsdp = job->strategy.use_megatron_fsdp;
  gboolean possible =
      (fsdp || job->strategy.use_distributed_optimizer) && job->strategy.overlap_grad_reduce;

  if (fsdp && job->strategy.data_parallel_sharding_strategy == WEFT_SHARD_PARAMS)
    return only_true (job, out);
  return possible ? both (job, out) : (out[0] = FALSE, 1);
}

/* The last three cost nothing and save, so they are set and not searched. */
static const struct axis axes[] = {
  { KNOB, WEFT_KNOB_pipeline_model_parallel_size, stages },
  { TRAIN, WEFT_TRAIN_micro_batch_size, micro_batches },
  { KNOB, WEFT_KNOB_pipeline_schedule, schedules },
  { KNOB, WEFT_KNOB_recompute_granularity, recomputes },
  { KNOB, WEFT_KNOB_use_megatron_fsdp, fsdp_or_not },
  { KNOB, WEFT_KNOB_data_parallel_sharding_strategy, levels },
  { KNOB, WEFT_KNOB_use_distributed_optimizer, if_wrapped },
  { KNOB, WEFT_KNOB_overlap_grad_reduce, overlaps },
  { KNOB, WEFT_KNOB_overlap_param_gather, if_sharded_and_overlapped },
  { KNOB, WEFT_KNOB_deallocate_pipeline_outputs, only_true },
  { KNOB, WEFT_KNOB_gradient_accumulation_fusion, fusion },
  { KNOB, WEFT_KNOB_batch_p2p_sync, only_false },
};

static gboolean
is_fixed (const struct weft_job *job, const struct axis *axis)
{
  return axis->table == KNOB ? job->knob_set[axis->field] : job->train_set[axis->field];
}

/* Full recompute in blocks of one layer unless the user said otherwise. */
static void
complete (struct weft_job *job)
{
  union weft_strategy *s = &job->strategy;

  if (s->recompute_granularity == WEFT_RECOMPUTE_FULL) {
    if (s->recompute_method == WEFT_NONE)
      s->recompute_method = WEFT_RECOMPUTE_UNIFORM;
    if (s->recompute_num_layers == WEFT_NONE)
      s->recompute_num_layers = 1;
  }
  weft_job_derive (job);
}

static void
enumerate (struct weft_job *job, size_t depth, GArray *out)
{
  int64_t values[32];

  if (depth == G_N_ELEMENTS (axes)) {
    struct weft_candidate candidate = { .job = *job };
    complete (&candidate.job);
    g_array_append_val (out, candidate);
    return;
  }
  const struct axis *axis = &axes[depth];
  union weft_value *at =
      axis->table == KNOB ? &job->strategy.at[axis->field] : &job->train.at[axis->field];
  if (is_fixed (job, axis)) {
    enumerate (job, depth + 1, out);
    return;
  }
  union weft_value before = *at;
  uint32_t n = axis->values (job, values);
  for (uint32_t i = 0; i < n; i++) {
    at->i = values[i];
    enumerate (job, depth + 1, out);
  }
  *at = before;
}

GArray *
weft_space_enumerate (const struct weft_job *job)
{
  GArray *out = g_array_new (FALSE, TRUE, sizeof (struct weft_candidate));
  struct weft_job open = *job;

  enumerate (&open, 0, out);
  return out;
}
