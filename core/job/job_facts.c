/* Numbers and words that follow from the settings of a job. */
#include "core/job/finetune.h"
#include "core/job/unit_modules.h"
#include <string.h>

int64_t
weft_job_dp (const struct weft_job *job)
{
  const union weft_strategy *strategy = &job->strategy;
  int64_t pipeline = strategy->tensor_model_parallel_size * strategy->pipeline_model_parallel_size *
                     strategy->context_parallel_size;
  return MAX (job->cluster.n_gpus / pipeline, 1);
}

double
weft_job_flops_per_token (const struct weft_job *job)
{
  gboolean causal = job->train.flops_convention == WEFT_COUNT_CAUSAL;
  const struct weft_tuned_flops tuned = weft_job_tuned_flops (job, causal);

  return weft_job_frozen (job, NULL) ? weft_tuned_flops_sum (&tuned)
                                     : weft_model_flops_per_token (&job->model, causal);
}

gboolean
weft_job_is_torch (const struct weft_job *job)
{
  return job->strategy.distributed_config == WEFT_FSDP2 ||
         job->strategy.distributed_config == WEFT_TORCH_DDP;
}

int
weft_job_sharding (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;

  if (!k->use_megatron_fsdp)
    return WEFT_NO_SHARD;
  return job->knob_set[WEFT_KNOB_zero_dp_strategy] ? k->zero_dp_strategy
                                                   : k->data_parallel_sharding_strategy;
}

enum weft_fp8_lifetime
weft_job_fp8_lifetime (const struct weft_job *job)
{
  gboolean sharded = weft_job_sharding (job) == WEFT_SHARD_PARAMS ||
                     job->strategy.distributed_config == WEFT_FSDP2;
  gboolean short_lived = sharded || job->strategy.disable_parameter_transpose_cache;
  int64_t most = short_lived ? WEFT_FP8_FOR_MICROBATCH : WEFT_FP8_ALWAYS;

  return (enum weft_fp8_lifetime) MIN (job->stack.fp8_weight_lifetime, most);
}

enum weft_dtype
weft_job_dtype (const struct weft_job *job)
{
  return job->train.precision == WEFT_FP8 ? WEFT_BF16 : (enum weft_dtype) job->train.precision;
}

enum weft_dtype
weft_job_product_dtype (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;

  if (k->enable_autocast && k->autocast_dtype != WEFT_NONE)
    return (enum weft_dtype) k->autocast_dtype;
  return weft_job_dtype (job);
}

enum weft_dtype
weft_job_linear_dtype (const struct weft_job *job)
{
  return job->train.precision == WEFT_FP8 ? WEFT_FP8 : weft_job_product_dtype (job);
}

static gboolean
has_loss_scale (const struct weft_job *job)
{
  return job->train.at[WEFT_TRAIN_loss_scale].i != WEFT_NONE;
}

gboolean
weft_job_scales_loss (const struct weft_job *job)
{
  return job->train.precision == WEFT_FP16 || has_loss_scale (job) ||
         job->strategy.grad_scale_func == WEFT_GRAD_SCALE_LOSS;
}

gboolean
weft_job_scales_dynamically (const struct weft_job *job)
{
  return weft_job_scales_loss (job) && !has_loss_scale (job);
}

gboolean
weft_job_checks_nan (const struct weft_job *job)
{
  return job->strategy.check_for_nan_in_grad && !weft_job_scales_dynamically (job);
}

uint32_t
weft_job_modules (const struct weft_job *job, char **unknown)
{
  const char *text = g_quark_to_string ((GQuark) job->strategy.recompute_modules);

  *unknown = NULL;
  return strcmp (text, "none") == 0 ? 1u << WEFT_MODULE_CORE_ATTN
                                    : weft_word_set (text, weft_module_words, unknown);
}

/* Whether recompute_modules has an effect. With full recompute it applies to the microbatches that
 * are excluded from full recompute. */
static gboolean
takes_modules (const union weft_strategy *k)
{
  const char *text = g_quark_to_string ((GQuark) k->recompute_modules);

  return k->recompute_granularity == WEFT_RECOMPUTE_SELECTIVE ||
         (k->recompute_granularity == WEFT_RECOMPUTE_FULL && strcmp (text, "none") != 0 &&
          k->num_microbatches_with_partial_activation_checkpoints != WEFT_NONE);
}

struct weft_job_recompute
weft_job_recompute (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  g_autofree char *unknown = NULL;

  if (k->activation_checkpointing && k->use_megatron_fsdp)
    return (struct weft_job_recompute){ .granularity = WEFT_RECOMPUTE_SELECTIVE,
                                        .modules = 1u << WEFT_MODULE_MLP };
  if (k->activation_checkpointing)
    return (struct weft_job_recompute){ WEFT_RECOMPUTE_FULL, WEFT_RECOMPUTE_UNIFORM, 1, 0 };
  return (struct weft_job_recompute){ .granularity = k->recompute_granularity,
                                      .method = k->recompute_method,
                                      .layers = k->recompute_num_layers,
                                      .modules = takes_modules (k)
                                                     ? weft_job_modules (job, &unknown)
                                                     : 0 };
}

uint32_t
weft_job_units (const struct weft_job *job, char **unknown)
{
  const char *text = g_quark_to_string ((GQuark) job->strategy.megatron_fsdp_unit_modules);
  uint32_t set = weft_unit_modules (text, &job->model, unknown);

  if (set || weft_job_sharding (job) < WEFT_SHARD_PARAMS)
    return set;
  return 1u << WEFT_UNIT_LAYER;
}

int64_t
weft_job_choices (const struct weft_job *job)
{
  return MIN (job->model.moe_router_topk,
              job->model.num_moe_experts / job->strategy.expert_model_parallel_size);
}

int64_t
weft_job_expert_tp (const struct weft_job *job)
{
  int64_t etp = job->strategy.expert_tensor_parallel_size;
  return etp == WEFT_NONE ? job->strategy.tensor_model_parallel_size : etp;
}

uint64_t
weft_job_attention_units (const struct weft_job *job)
{
  const union weft_model *m = &job->model;
  return (uint64_t) (m->num_query_groups * (m->kv_lora_rank ? 1 : m->kv_channels));
}

uint32_t
weft_job_leaves (const struct weft_job *job, uint64_t units)
{
  uint32_t n = WEFT_MOST_LEAVES;

  while (units % n)
    n /= 2;
  return job->train.reduction_order == WEFT_ORDER_CANONICAL ? n : 0;
}

uint64_t
weft_job_padded_vocab (const struct weft_job *job)
{
  uint64_t vocab = job->model.vocab_size, tp = job->strategy.tensor_model_parallel_size;
  uint64_t unit = job->strategy.make_vocab_size_divisible_by;

  if (job->strategy.make_vocab_size_divisible_by == WEFT_NONE) {
    if (tp == 1)
      return vocab;
    unit = WEFT_JOB_VOCAB_UNIT;
  }
  unit = job->train.reduction_order == WEFT_ORDER_CANONICAL ? WEFT_MOST_LEAVES : unit * tp;
  return (vocab + unit - 1) / unit * unit;
}

/* Parses two numbers that are separated by a comma, such as "2,4". */
static gboolean
read_sizes (const char *text, int64_t size[2])
{
  g_auto (GStrv) word = g_strsplit (text ? text : "", ",", -1);

  if (g_strv_length (word) != 2)
    return FALSE;
  for (unsigned i = 0; i < 2; i++)
    if (!g_ascii_string_to_signed (g_strstrip (word[i]), 10, 1, 1024, &size[i], NULL))
      return FALSE;
  return TRUE;
}

int64_t
weft_job_cp_heads (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  int64_t size[2];

  if (k->cp_comm_type == WEFT_CP_A2A)
    return k->context_parallel_size;
  if (k->cp_comm_type != WEFT_CP_A2A_P2P)
    return 1;
  if (!read_sizes (g_quark_to_string ((GQuark) k->hierarchical_context_parallel_sizes), size) ||
      size[0] * size[1] != k->context_parallel_size)
    return 0;
  return size[0];
}

int64_t
weft_job_instances (const struct weft_job *job)
{
  return MAX (job->strategy.num_distributed_optimizer_instances, job->strategy.dp_replicate_size);
}

int64_t
weft_job_expert_instances (const struct weft_job *job)
{
  gboolean goes_through = job->strategy.distributed_config == WEFT_FSDP2;

  return job->model.num_moe_experts == 0 || goes_through ? 1 : weft_job_instances (job);
}

gboolean
weft_job_reduces_each (const struct weft_job *job)
{
  return job->strategy.distributed_config == WEFT_FSDP2
             ? !job->strategy.defer_fsdp_grad_sync
             : weft_job_sharding (job) >= WEFT_SHARD_GRADS;
}

int64_t
weft_job_sequence (const struct weft_job *job, int64_t replica, int64_t micro)
{
  int64_t size = job->train.micro_batch_size, replicas = weft_job_dp (job);
  int64_t instances = job->strategy.use_megatron_fsdp ? weft_job_instances (job) : 1;
  int64_t share = replicas / instances;

  if (weft_job_reduces_each (job))
    return replica / share * (job->train.global_batch_size / instances) +
           (micro * share + replica % share) * size;
  return replica * (job->train.global_batch_size / replicas) + micro * size;
}

int64_t
weft_job_microbatches (const struct weft_job *job)
{
  return job->train.global_batch_size / (job->train.micro_batch_size * weft_job_dp (job));
}
