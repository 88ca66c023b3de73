#include "planner/memory_changes.h"
#include "core/job/loss.h"
#include "core/job/stages.h"
#include "planner/space.h"

/* -------------------------------------------------------------------- sharding */

static gboolean
has_replicas (const struct weft_job *job)
{
  return weft_job_dp (job) * job->strategy.context_parallel_size > 1;
}

static gboolean
shard_optimizer (struct weft_job *job, unsigned variant)
{
  if (variant > 0 || job->strategy.use_distributed_optimizer || job->strategy.use_megatron_fsdp ||
      weft_job_is_torch (job) || !has_replicas (job))
    return FALSE;
  job->strategy.use_distributed_optimizer = TRUE;
  return TRUE;
}

/* Changes the job to Megatron-FSDP with a sharding level above that of the job. */
static gboolean
use_fsdp (struct weft_job *job, enum weft_sharding level)
{
  if (weft_job_is_torch (job) || !has_replicas (job) || weft_job_sharding (job) >= (int) level)
    return FALSE;
  job->strategy.use_distributed_optimizer = FALSE;
  job->strategy.use_megatron_fsdp = TRUE;
  job->strategy.data_parallel_sharding_strategy = level;
  if (job->knob_set[WEFT_KNOB_zero_dp_strategy])
    job->strategy.zero_dp_strategy = level;
  return TRUE;
}

static gboolean
shard_gradients (struct weft_job *job, unsigned variant)
{
  return variant == 0 && use_fsdp (job, WEFT_SHARD_GRADS);
}

/* Shards weights too, which are then communicated in every microbatch. */
static gboolean
shard_everything (struct weft_job *job, unsigned variant)
{
  return variant == 0 && use_fsdp (job, WEFT_SHARD_PARAMS);
}

static gboolean
use_fsdp2 (struct weft_job *job, unsigned variant)
{
  if (variant > 0 || job->strategy.distributed_config != WEFT_TORCH_DDP || !has_replicas (job))
    return FALSE;
  job->strategy.distributed_config = WEFT_FSDP2;
  return TRUE;
}

/* ----------------------------------------------------------------- activations */

static gboolean
set_flag (int64_t *knob, unsigned variant, gboolean value)
{
  if (variant > 0 || *knob == value)
    return FALSE;
  *knob = value;
  return TRUE;
}

static gboolean
parallelise_sequence (struct weft_job *job, unsigned variant)
{
  return job->strategy.tensor_model_parallel_size > 1 &&
         set_flag (&job->strategy.sequence_parallel, variant, TRUE);
}

/* Computes the head in chunks: in many small models, the logits are the largest activation. */
static gboolean
chunk_head (struct weft_job *job, unsigned variant)
{
  if (variant > 0 || weft_job_fuses_head (job))
    return FALSE;
  job->strategy.cross_entropy_loss_fusion = TRUE;
  job->strategy.cross_entropy_fusion_impl = WEFT_LOSS_LINEAR;
  return TRUE;
}

static gboolean
fuse_attention (struct weft_job *job, unsigned variant)
{
  if (variant > 0 || job->strategy.attention_backend != WEFT_ATTENTION_UNFUSED)
    return FALSE;
  job->strategy.attention_backend = WEFT_ATTENTION_FLASH;
  return TRUE;
}

static gboolean
free_outputs (struct weft_job *job, unsigned variant)
{
  return job->strategy.pipeline_model_parallel_size > 1 &&
         set_flag (&job->strategy.deallocate_pipeline_outputs, variant, TRUE);
}

static gboolean
use_leaner_schedule (struct weft_job *job, unsigned variant)
{
  uint32_t leaner = weft_schedules[job->strategy.pipeline_schedule].leaner;

  if (job->strategy.pipeline_model_parallel_size == 1)
    return FALSE;
  for (int64_t schedule = 0; schedule < WEFT_N_SCHEDULE; schedule++)
    if (leaner >> schedule & 1 && variant-- == 0) {
      job->strategy.pipeline_schedule = schedule;
      return TRUE;
    }
  return FALSE;
}

static gboolean
shrink_micro_batch (struct weft_job *job, unsigned variant)
{
  int64_t divisor = (int64_t) 2 << MIN (variant, 32);

  if (job->train.micro_batch_size % divisor)
    return FALSE;
  job->train.micro_batch_size /= divisor;
  return TRUE;
}

/* Variants are the sets of modules. A model without one of them breaks a rule. The first set has no
 * effect if attention keeps no probabilities: the job then stays as it is. */
static gboolean
recompute_modules (struct weft_job *job, unsigned variant)
{
  if (variant >= WEFT_N_RECOMPUTE_SETS ||
      job->strategy.recompute_granularity == WEFT_RECOMPUTE_FULL)
    return FALSE;
  if (variant == 0 && job->strategy.attention_backend != WEFT_ATTENTION_UNFUSED)
    return TRUE;
  job->strategy.recompute_granularity = WEFT_RECOMPUTE_SELECTIVE;
  job->strategy.recompute_modules =
      g_quark_from_static_string (weft_recompute_sets[variant].modules);
  return TRUE;
}

/* Variant 0 recomputes all layers, the others some layers of each chunk. */
static gboolean
recompute_layers (struct weft_job *job, unsigned variant)
{
  int64_t some[WEFT_SPACE_VALUES];

  if (job->strategy.recompute_granularity == WEFT_RECOMPUTE_FULL &&
      job->strategy.recompute_method == WEFT_RECOMPUTE_UNIFORM)
    return FALSE;
  job->strategy.recompute_granularity = WEFT_RECOMPUTE_FULL;
  job->strategy.recompute_method = variant ? WEFT_RECOMPUTE_BLOCK : WEFT_RECOMPUTE_UNIFORM;
  uint32_t n = weft_space_values (job, WEFT_AXIS_recompute_num_layers, some);
  if (variant > (variant ? n : 0))
    return FALSE;
  job->strategy.recompute_num_layers = variant ? some[variant - 1] : 1;
  return TRUE;
}

/* ------------------------------------------------------------------------ mesh */

/* Sets an axis to the `variant`-th of its values that exceed its value now. */
static gboolean
enlarge (struct weft_job *job, enum weft_axis axis, unsigned variant)
{
  int64_t values[WEFT_SPACE_VALUES];
  union weft_value *at = weft_space_setting (job, axis);
  uint32_t n = weft_space_values (job, axis, values);

  for (uint32_t i = 0; i < n; i++)
    if (values[i] > at->i && variant-- == 0) {
      at->i = values[i];
      return TRUE;
    }
  return FALSE;
}

/* Resets the division of layers among stages, so that weft_space_settle() divides them again. */
static void
forget_division (struct weft_job *job)
{
  static const enum weft_knob knobs[] = {
    WEFT_KNOB_account_for_embedding_in_pipeline_split,
    WEFT_KNOB_account_for_loss_in_pipeline_split,
    WEFT_KNOB_decoder_first_pipeline_num_layers,
    WEFT_KNOB_decoder_last_pipeline_num_layers,
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (knobs); i++) {
    job->strategy.at[knobs[i]] = weft_strategy_defaults ()->at[knobs[i]];
    job->knob_set[knobs[i]] = FALSE;
  }
}

static gboolean
enlarge_pipeline (struct weft_job *job, unsigned variant)
{
  int64_t chunks = job->strategy.virtual_pipeline_model_parallel_size;

  if (weft_job_layout_stages (job) ||
      !enlarge (job, WEFT_AXIS_pipeline_model_parallel_size, variant))
    return FALSE;
  forget_division (job);
  weft_space_settle (job, WEFT_AXIS_account_for_embedding_in_pipeline_split,
                     WEFT_AXIS_virtual_pipeline_model_parallel_size);
  if (job->strategy.virtual_pipeline_model_parallel_size != chunks)
    weft_space_settle (job, WEFT_AXIS_overlap_p2p_comm, WEFT_AXIS_batch_p2p_comm);
  return TRUE;
}

static gboolean
enlarge_tensor (struct weft_job *job, unsigned variant)
{
  gboolean alone = job->strategy.tensor_model_parallel_size == 1;

  if (!enlarge (job, WEFT_AXIS_tensor_model_parallel_size, variant))
    return FALSE;
  job->strategy.sequence_parallel |= alone;
  return TRUE;
}

static gboolean
enlarge_context (struct weft_job *job, unsigned variant)
{
  return enlarge (job, WEFT_AXIS_context_parallel_size, variant);
}

static gboolean
enlarge_expert (struct weft_job *job, unsigned variant)
{
  return enlarge (job, WEFT_AXIS_expert_model_parallel_size, variant);
}

/* ----------------------------------------------------------------- host memory */

/* Variants offload all of the state, a half and a quarter, for hosts with little memory. */
static gboolean
offload_optimizer (struct weft_job *job, unsigned variant)
{
  static const double fraction[] = { 1, 0.5, 0.25 };

  if (variant >= G_N_ELEMENTS (fraction) ||
      (job->strategy.optimizer_cpu_offload &&
       job->strategy.optimizer_offload_fraction >= fraction[variant]))
    return FALSE;
  job->strategy.optimizer_cpu_offload = job->strategy.overlap_cpu_optimizer_d2h_h2d = TRUE;
  job->strategy.optimizer_offload_fraction = fraction[variant];
  return TRUE;
}

static gboolean
offload_shards (struct weft_job *job, unsigned variant)
{
  if (variant > 0 || job->strategy.distributed_config != WEFT_FSDP2 ||
      job->strategy.offload_policy == WEFT_OFFLOAD_CPU)
    return FALSE;
  job->strategy.offload_policy = WEFT_OFFLOAD_CPU;
  return TRUE;
}

/* Variants offload a quarter, a half, three quarters, and all layers but the last. */
static gboolean
offload_activations (struct weft_job *job, unsigned variant)
{
  enum { PARTS = 4 };
  int64_t all = job->model.num_layers;

  if (variant >= PARTS)
    return FALSE;
  job->strategy.cpu_offloading = TRUE;
  job->strategy.cpu_offloading_num_layers = MIN (all * (variant + 1) / PARTS, all - 1);
  return job->strategy.cpu_offloading_num_layers > 0;
}

/* ------------------------------------------------------------------- precision */

static gboolean
narrow_gradients (struct weft_job *job, unsigned variant)
{
  if (job->strategy.distributed_config != WEFT_FSDP2)
    return set_flag (&job->strategy.grad_reduce_in_fp32, variant, FALSE);
  if (variant > 0 || job->strategy.mp_policy_reduce_dtype != WEFT_FP32 ||
      weft_job_dtype (job) != WEFT_BF16)
    return FALSE;
  job->strategy.mp_policy_reduce_dtype = WEFT_BF16;
  return TRUE;
}

static gboolean
drop_masters (struct weft_job *job, unsigned variant)
{
  return job->strategy.use_megatron_fsdp &&
         set_flag (&job->strategy.preserve_fp32_weights, variant, FALSE);
}

/* ----------------------------------------------------------------------- table */

const struct weft_change_row weft_changes[WEFT_N_CHANGE] = {
#define CHANGE(id, function, says, text, ...)                                                      \
  [WEFT_CHANGE_##                                                                                  \
      id] = { .name = #id, .make = function, .numerics = says, .doc = text, ##__VA_ARGS__ },
#include "planner/memory_changes.def"
};

const char *
weft_change_numerics (enum weft_change change, const struct weft_job *job)
{
  const struct weft_change_row *row = &weft_changes[change];

  return row->experts_only && job->model.num_moe_experts == 0 ? NULL : row->numerics;
}

gboolean
weft_change_make (enum weft_change change, unsigned variant, struct weft_job *job)
{
  const struct weft_job before = *job;

  if (!weft_changes[change].make (job, variant))
    return FALSE;
  weft_job_derive (job);
  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    job->knob_set[i] |= job->strategy.at[i].i != before.strategy.at[i].i;
  for (unsigned i = 0; i < WEFT_N_TRAIN_FIELD; i++)
    job->train_set[i] |= job->train.at[i].i != before.train.at[i].i;
  return TRUE;
}

/* Appends the flag that gives a setting its value. */
static void
append_flag (GPtrArray *flags, const struct weft_field *field, union weft_value value)
{
  g_autofree char *name = g_strdelimit (g_strdup (field->name), "_", '-');
  g_autofree char *text = weft_field_print (field, value);

  if (field->type == WEFT_TYPE_BOOL)
    g_ptr_array_add (flags, g_strdup_printf ("--%s%s", value.i ? "" : "no-", name));
  else
    g_ptr_array_add (flags, g_strdup_printf ("--%s %s", name, text));
}

static void
append_flags (GPtrArray *flags, const struct weft_table *table, const union weft_value *from,
              const union weft_value *to)
{
  for (unsigned i = 0; i < table->n; i++)
    if (from[i].i != to[i].i)
      append_flag (flags, &table->field[i], to[i]);
}

GPtrArray *
weft_change_flags (const struct weft_job *from, const struct weft_job *to)
{
  GPtrArray *flags = g_ptr_array_new_with_free_func (g_free);

  append_flags (flags, &weft_strategy_table, from->strategy.at, to->strategy.at);
  append_flags (flags, &weft_train_table, from->train.at, to->train.at);
  if (!from->train_set[WEFT_TRAIN_global_batch_size])
    append_flag (flags, &weft_train_table.field[WEFT_TRAIN_global_batch_size],
                 from->train.at[WEFT_TRAIN_global_batch_size]);
  return flags;
}
