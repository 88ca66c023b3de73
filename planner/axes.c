/* The values of each axis that are worth trying. An axis is one row of axes.def. If the user set
 * the axis, the only value is the user's. */
#include "planner/axes.h"
#include "core/cluster/fabric.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include <string.h>

enum { MOST_VALUES = WEFT_SPACE_VALUES };

/* Least number of tokens of a sequence per context parallel rank. With fewer tokens, attention is
 * too short to overlap the transfers of keys and values. */
enum { LEAST_TOKENS = 2048 };

/* Largest number of chunks on a rank. More chunks add more transfer time than they remove
 * bubble. */
enum { MOST_CHUNKS = 8 };

static uint32_t
only (int64_t value, int64_t out[MOST_VALUES])
{
  out[0] = value;
  return 1;
}

static uint32_t
both (int64_t out[MOST_VALUES])
{
  out[0] = FALSE;
  out[1] = TRUE;
  return 2;
}

static uint32_t
never (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  (void) job;
  return only (FALSE, out);
}

/* ------------------------------------------------------------------------- the mesh */

/* Whether the job allows only data parallelism, as PyTorch's DistributedDataParallel does. */
static gboolean
has_replicas_alone (const struct weft_job *job)
{
  return job->strategy.distributed_config == WEFT_TORCH_DDP;
}

/* Number of GPUs divided by the tensor-, context- and pipeline-parallel sizes. A size that the
 * search has not chosen yet counts as 1, or as the user's value. */
static int64_t
ranks_left (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  return job->cluster.n_gpus / (s->tensor_model_parallel_size * s->context_parallel_size *
                                s->pipeline_model_parallel_size);
}

/* The sizes of tensor-parallel groups whose GPUs are all connected by the fastest kind of link. */
static uint32_t
tensor_ranks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t domain = MIN (job->cluster.n_gpus, weft_fabric_domain (&job->cluster));
  int64_t left = ranks_left (job);
  uint32_t n = 1;

  out[0] = 1;
  for (int64_t t = 2; t <= domain && n < MOST_VALUES; t++)
    if (domain % t == 0 && left % t == 0 && job->model.num_attention_heads % t == 0)
      out[n++] = t;
  return has_replicas_alone (job) ? only (1, out) : n;
}

static uint32_t
if_tensor (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->strategy.tensor_model_parallel_size > 1, out);
}

static uint32_t
context_ranks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t left = ranks_left (job);
  uint32_t n = 1;

  out[0] = 1;
  for (int64_t c = 2; left % c == 0 && job->model.seq_length % (2 * c) == 0 &&
                      job->model.seq_length / c >= LEAST_TOKENS;
       c *= 2)
    out[n++] = c;
  return has_replicas_alone (job) ? only (1, out) : n;
}

/* Whether the user set any knob that assigns layers to stages. */
static gboolean
deals_layers (const struct weft_job *job)
{
  return weft_job_layout_stages (job) > 0 ||
         job->knob_set[WEFT_KNOB_account_for_embedding_in_pipeline_split] ||
         job->knob_set[WEFT_KNOB_account_for_loss_in_pipeline_split] ||
         job->knob_set[WEFT_KNOB_decoder_first_pipeline_num_layers] ||
         job->knob_set[WEFT_KNOB_decoder_last_pipeline_num_layers];
}

static uint32_t
stages (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t left = ranks_left (job);
  uint32_t n = 0;

  for (int64_t p = 1; p <= MIN (left, job->model.num_layers) && n < MOST_VALUES; p++)
    if (left % p == 0)
      out[n++] = p;
  return n > 0 ? n : only (1, out);
}

/* Number of ranks that share one pipeline stage. */
static int64_t
ranks_of_stage (const struct weft_job *job)
{
  return job->cluster.n_gpus / job->strategy.pipeline_model_parallel_size;
}

/* The only value is 1: experts are small, so the search does not split them over tensor-parallel
 * ranks. */
static uint32_t
expert_tensor_ranks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->model.num_moe_experts > 0 ? 1 : WEFT_NONE, out);
}

static uint32_t
expert_ranks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t ranks = ranks_of_stage (job) / weft_job_expert_tp (job);
  uint32_t n = 1;

  out[0] = 1;
  for (int64_t e = 2; e <= MIN (ranks, job->model.num_moe_experts) && n < MOST_VALUES; e++)
    if (ranks % e == 0 && job->model.num_moe_experts % e == 0)
      out[n++] = e;
  return has_replicas_alone (job) ? only (1, out) : n;
}

/* Whether the order tp-cp-ep-pp-dp exists: a rule demands that experts have as many replicas as
 * dense weights. The device meshes of software with PyTorch's wrappers have the stages outside. */
static gboolean
may_nest_stages (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  gboolean alike = weft_job_expert_tp (job) * s->expert_model_parallel_size ==
                   s->tensor_model_parallel_size * s->context_parallel_size;

  return !weft_job_is_torch (job) && (job->model.num_moe_experts == 0 || alike);
}

/* Most GPUs of which each may be simulated separately. */
enum { MOST_UNLIKE = 1024 };

/* Whether all replicas lie alike in the parts of the cluster if each has its stages side by side.
 * If not, almost no rank behaves like another, and a large cluster takes too long to simulate. */
static gboolean
replicas_are_alike (const struct weft_job *job, int64_t part)
{
  int64_t replica = job->cluster.n_gpus / ranks_left (job);

  return part == 0 || part % replica == 0 || replica % part == 0 ||
         job->cluster.n_gpus <= MOST_UNLIKE;
}

/* Both orders of stages and replicas, if any group lies differently in the fabric. In both, runs of
 * tp * cp ranks stay together, so none does if the runs fill the largest parts of the cluster. */
static uint32_t
rank_orders (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  const union weft_strategy *s = &job->strategy;
  int64_t run = s->tensor_model_parallel_size * s->context_parallel_size;
  int64_t part = weft_fabric_part (&job->cluster);
  gboolean differ =
      s->pipeline_model_parallel_size > 1 && ranks_left (job) > 1 && (part == 0 || run % part != 0);

  return differ && may_nest_stages (job) && replicas_are_alike (job, part) ? both (out)
                                                                          : only (FALSE, out);
}

/* ----------------------------------------------------------------------- the layers */

static gboolean
are_dealt_evenly (const struct weft_job *job)
{
  return job->model.num_layers % job->strategy.pipeline_model_parallel_size == 0;
}

/* Whether embedding and head should each count as a layer. They should if all stages then have the
 * same number of layers, as with Llama 3.1 405B, which then counts 128 layers. */
static uint32_t
if_ends_count (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t p = job->strategy.pipeline_model_parallel_size;
  gboolean even = (job->model.num_layers + 2) % p == 0 && job->model.num_layers + 2 > p;

  return only (!deals_layers (job) && !are_dealt_evenly (job) && even, out);
}

/* Values for the layers of the first and of the last stage if the layers cannot be divided evenly.
 * WEFT_NONE: as many layers as the stages between them. The last stage, which computes the head,
 * has fewer layers than the other stages. If too few layers would remain for the last stage, the
 * first stage, which computes the embedding, also has fewer layers: 27 layers on 8 stages are 2,
 * six times 4, 1. */
struct ends {
  int64_t first, last;
};

static struct ends
uneven_ends (const struct weft_job *job)
{
  int64_t p = job->strategy.pipeline_model_parallel_size, layers = job->model.num_layers;
  int64_t most = (layers + p - 1) / p, last = layers - (p - 1) * most;

  if (deals_layers (job) || are_dealt_evenly (job) ||
      job->strategy.account_for_embedding_in_pipeline_split)
    return (struct ends){ WEFT_NONE, WEFT_NONE };
  if (last > 0)
    return (struct ends){ WEFT_NONE, last };
  while (layers - (p - 2) * most < 2 && most > 1)
    most--;
  int64_t rest = layers - (p - 2) * most;
  return (struct ends){ (rest + 1) / 2, rest / 2 };
}

static uint32_t
first_layers (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (uneven_ends (job).first, out);
}

static uint32_t
last_layers (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (uneven_ends (job).last, out);
}

static gboolean
may_interleave (const struct weft_job *job)
{
  const struct weft_schedule_row *row = weft_job_schedule (job);

  return job->strategy.pipeline_model_parallel_size > 1 && row && row->chunks == WEFT_CHUNKS_ANY &&
         weft_job_layout_stages (job) == 0;
}

static uint32_t
chunks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  struct weft_job chunked = *job;
  int64_t *v = &chunked.strategy.virtual_pipeline_model_parallel_size;
  uint32_t n = 1;

  out[0] = WEFT_NONE;
  for (*v = 2; may_interleave (job) && *v <= MOST_CHUNKS; ++*v) {
    g_autofree char *problem = weft_job_stages_problem (&chunked);
    if (!problem)
      out[n++] = *v;
  }
  return n;
}

static gboolean
has_chunks (const struct weft_job *job)
{
  return job->strategy.virtual_pipeline_model_parallel_size != WEFT_NONE;
}

static uint32_t
if_chunks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (has_chunks (job) && weft_job_interleaves (job), out);
}

static uint32_t
unless_chunks (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (!job->strategy.overlap_p2p_comm, out);
}

/* ------------------------------------------------------------------------- the step */

uint32_t
weft_axis_as_given_precision (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->train.precision, out);
}

/* Splitting matrix products into pieces overlaps their collectives, but makes each piece slower.
 * fp8 recipes with scales of blocks exclude it, because they quantise the gathered tensor. */
static uint32_t
tensor_overlaps (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  const union weft_strategy *s = &job->strategy;
  gboolean blocks = job->train.precision == WEFT_FP8 && s->fp8_recipe != WEFT_FP8_DELAYED &&
                    s->fp8_recipe != WEFT_FP8_TENSORWISE;

  return s->sequence_parallel && !s->enable_async_tensor_parallel && !blocks &&
                 !weft_job_is_torch (job)
             ? both (out)
             : only (FALSE, out);
}

/* Number of data-parallel replicas; 1 if there are too few GPUs, which a rule will report. */
static int64_t
replicas (const struct weft_job *job)
{
  return MAX (1, ranks_left (job));
}

/* Whether the microbatches can be divided into whole groups, as interleaved schedules require. By
 * default a group has one microbatch for each pipeline rank. */
static gboolean
are_whole_groups (const struct weft_job *job, int64_t microbatches)
{
  return !weft_job_interleaves (job) ||
         job->strategy.microbatch_group_size_per_vp_stage != WEFT_NONE ||
         microbatches % job->strategy.pipeline_model_parallel_size == 0;
}

static uint32_t
micro_batches (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t dp = replicas (job), batch = job->train.global_batch_size;
  uint32_t n = 0;

  for (int64_t b = 1; b <= 16 && batch % (b * dp) == 0; b *= 2)
    if (are_whole_groups (job, batch / (b * dp)))
      out[n++] = b;
  return n;
}

static gboolean
replicated (const struct weft_job *job)
{
  return replicas (job) > 1;
}

/* Whether a schedule suits the data-parallel wrapper: a wrapper that reduces each microbatch
 * excludes schedules that split the backward pass, and only Megatron-Core's DDP has schedules with
 * two copies of the model. */
static gboolean
suits_wrapper (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;

  if (weft_job_copies (job) > 1 && s->use_megatron_fsdp)
    return FALSE;
  return !weft_job_splits_backward (job) || !weft_job_reduces_each (job);
}

/* Whether a schedule exists for the numbers of the job and suits its knobs. */
static gboolean
has_schedule (const struct weft_job *job, enum weft_schedule schedule)
{
  struct weft_job one = *job;

  one.strategy.pipeline_schedule = schedule;
  const struct weft_grid_spec spec = weft_job_grid_spec (&one);
  g_autofree char *problem = weft_job_stages_problem (&one);
  return !problem && weft_spec_broken (&spec) == WEFT_SPEC_FITS && suits_wrapper (&one);
}

/* Whether lower bounds of a schedule are far too low: with two copies of the model they do not know
 * the work after the last pass (ends.h), and most of them no waits for tensor parallel ranks. The
 * search would have to build the programs of nearly all of these strategies. */
static gboolean
has_loose_bounds (const struct weft_job *job, enum weft_schedule schedule)
{
  return schedule == WEFT_SCHEDULE_DUALPIPE && job->strategy.tensor_model_parallel_size > 1;
}

/* Lists the schedules with the trait `searched` that exist for the numbers of stages, chunks and
 * microbatches. With a single stage, lists only the first of them. With several chunks per rank,
 * lists only schedules that allow any number of chunks: the others have their number anyway. */
static uint32_t
schedules (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  gboolean staged = job->strategy.pipeline_model_parallel_size > 1;
  uint32_t n = 0;

  for (unsigned i = 0; i < WEFT_N_SCHEDULE && (staged || n == 0); i++)
    if (weft_schedules[i].searched && (!staged || has_schedule (job, i)) &&
        !has_loose_bounds (job, i) &&
        (!has_chunks (job) || weft_schedules[i].chunks == WEFT_CHUNKS_ANY))
      out[n++] = i;
  return n;
}

static uint32_t
if_staged (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->strategy.pipeline_model_parallel_size > 1, out);
}

/* The search leaves out sets without layernorm that have a dearer module: norms cost least time for
 * the bytes that they save. */
const struct weft_recompute_set weft_recompute_sets[WEFT_N_RECOMPUTE_SETS] = {
  { "core_attn", WEFT_MODELS_UNFUSED, TRUE },
  { "layernorm", WEFT_MODELS_ANY, TRUE },
  { "mlp", WEFT_MODELS_DENSE, FALSE },
  { "layernorm,mlp", WEFT_MODELS_DENSE, TRUE },
  { "mla_up_proj", WEFT_MODELS_LATENT, FALSE },
  { "moe_act", WEFT_MODELS_EXPERTS, FALSE },
  { "shared_experts", WEFT_MODELS_SHARED, FALSE },
  { "layernorm,moe_act", WEFT_MODELS_EXPERTS, TRUE },
  { "layernorm,mla_up_proj,moe_act", WEFT_MODELS_LATENT, TRUE },
  { "moe", WEFT_MODELS_EXPERTS, FALSE },
  { "layernorm,moe", WEFT_MODELS_EXPERTS, TRUE },
};

/* Whether a set of modules has an effect on a model. `mlp` is left out for models with experts,
 * whose few dense layers it would recompute; the module of latent attention with moe_act for models
 * without experts. */
static gboolean
has_modules (const struct weft_job *job, const struct weft_recompute_set *set)
{
  const union weft_model *m = &job->model;
  const gboolean has[] = {
    [WEFT_MODELS_ANY] = TRUE,
    [WEFT_MODELS_DENSE] = m->num_moe_experts == 0,
    [WEFT_MODELS_EXPERTS] = m->num_moe_experts > 0,
    [WEFT_MODELS_SHARED] = m->moe_shared_expert_intermediate_size > 0,
    [WEFT_MODELS_LATENT] =
        m->kv_lora_rank > 0 && (m->num_moe_experts > 0 || !strstr (set->modules, "moe_act")),
    [WEFT_MODELS_UNFUSED] = job->strategy.attention_backend == WEFT_ATTENTION_UNFUSED,
  };

  return has[set->models];
}

/* Selective recompute is a knob of TransformerConfig, which PyTorch's wrappers do not read. */
static uint32_t
recomputes (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  uint32_t n = 0;

  out[n++] = WEFT_RECOMPUTE_NONE;
  if (job->strategy.activation_checkpointing)
    return n;
  if (!weft_job_is_torch (job))
    out[n++] = WEFT_RECOMPUTE_SELECTIVE;
  out[n++] = WEFT_RECOMPUTE_FULL;
  return n;
}

/* The job's own modules are tried only if the user asks for selective recompute: the default,
 * core_attn, is one of the sets. */
static uint32_t
recomputed_modules (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t own = job->strategy.recompute_modules;
  uint32_t n = 0;

  if (job->strategy.recompute_granularity != WEFT_RECOMPUTE_SELECTIVE)
    return only (own, out);
  if (job->knob_set[WEFT_KNOB_recompute_granularity])
    out[n++] = own;
  for (unsigned i = 0; i < WEFT_N_RECOMPUTE_SETS; i++)
    if (weft_recompute_sets[i].searched && has_modules (job, &weft_recompute_sets[i]))
      out[n++] = g_quark_from_static_string (weft_recompute_sets[i].modules);
  return n;
}

/* Full recompute of all layers (method uniform) or of some layers of each chunk (method block). */
static uint32_t
recompute_methods (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  if (job->strategy.recompute_granularity != WEFT_RECOMPUTE_FULL)
    return only (WEFT_NONE, out);
  out[0] = WEFT_RECOMPUTE_UNIFORM;
  out[1] = WEFT_RECOMPUTE_BLOCK;
  return job->knob_set[WEFT_KNOB_recompute_granularity] ? 1 : 2;
}

/* With `uniform`, each layer is recomputed separately. With `block`, the search tries to recompute
 * 1, 2 and 3 quarters of a chunk's layers. */
static uint32_t
recomputed_layers (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t layers = weft_job_most_layers (job);
  uint32_t n = 0;

  if (job->strategy.recompute_method != WEFT_RECOMPUTE_BLOCK)
    return only (job->strategy.recompute_method == WEFT_NONE ? WEFT_NONE : 1, out);
  for (int64_t quarter = 1; quarter < 4; quarter++) {
    int64_t some = layers * quarter / 4;
    if (some > 0 && (n == 0 || some > out[n - 1]))
      out[n++] = some;
  }
  return n;
}

/* Activation offload exists for one stage without recompute. Two passes that alternate exclude
 * it. */
static uint32_t
activation_offloads (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  const union weft_strategy *s = &job->strategy;
  gboolean possible = s->pipeline_model_parallel_size == 1 && job->model.num_layers > 1 &&
                      weft_job_recompute (job).granularity == WEFT_RECOMPUTE_NONE &&
                      !s->overlap_moe_expert_parallel_comm && !weft_job_is_torch (job);

  return possible ? both (out) : only (FALSE, out);
}

/* The search tries to offload 1, 2, 3 and 4 quarters of the layers, but never the last layer, whose
 * activations are used at once. */
static uint32_t
offloaded_layers (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t layers = job->model.num_layers;
  uint32_t n = 0;

  if (!job->strategy.cpu_offloading)
    return only (0, out);
  for (int64_t quarter = 1; quarter <= 4; quarter++) {
    int64_t some = MIN (layers * quarter / 4, layers - 1);
    if (some > 0 && (n == 0 || some > out[n - 1]))
      out[n++] = some;
  }
  return n;
}

/* ----------------------------------------------------------------------- the replicas */

static uint32_t
if_replicated (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return replicated (job) ? both (out) : only (FALSE, out);
}

/* Whether the search tries Megatron-FSDP. The search does not replace a data-parallel wrapper that
 * the user chose. */
static uint32_t
fsdp_or_not (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  if (job->strategy.distributed_config == WEFT_MEGATRON_FSDP)
    return only (TRUE, out);
  if (weft_job_is_torch (job) || weft_job_copies (job) > 1)
    return only (FALSE, out);
  return if_replicated (job, out);
}

static uint32_t
fusion (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (!weft_job_is_torch (job), out);
}

/* Sharding levels of Megatron-FSDP. The search omits the levels no_shard and optim, because they
 * are equal to the bucketed wrapper without and with the distributed optimizer. */
static uint32_t
levels (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  if (!job->strategy.use_megatron_fsdp)
    return only (WEFT_NO_SHARD, out);
  if (weft_job_splits_backward (job))
    return 0;
  out[0] = WEFT_SHARD_GRADS;
  out[1] = WEFT_SHARD_PARAMS;
  return 2;
}

/* This knob exists for the bucketed wrapper. Megatron-FSDP shards optimizer state by its sharding
 * level instead. */
static uint32_t
if_wrapped (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return job->strategy.use_megatron_fsdp || weft_job_is_torch (job) ? only (FALSE, out)
                                                                    : if_replicated (job, out);
}

/* The number of ranks that hold the same weights: data and context parallel ranks together. */
static int64_t
holders (const struct weft_job *job)
{
  return replicas (job) * job->strategy.context_parallel_size;
}

/* The number of ranks that hold the same expert weights; holders() for models without experts. */
static int64_t
expert_holders (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;

  return job->model.num_moe_experts
             ? ranks_of_stage (job) / (weft_job_expert_tp (job) * s->expert_model_parallel_size)
             : holders (job);
}

static gboolean
is_power_of_two (int64_t n)
{
  return n > 0 && (n & (n - 1)) == 0;
}

/* Numbers of groups of ranks that shard state among themselves: one group of all ranks, or one
 * group in each domain of the fastest kind of link, which is what hybrid sharding is for. Groups of
 * sizes between save less memory than one group, and less time than groups in a domain. */
static uint32_t
sharding_groups (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  int64_t all = holders (job), experts = expert_holders (job);
  int64_t inner = weft_fabric_domain (&job->cluster) / job->strategy.tensor_model_parallel_size;
  int64_t groups = inner > 1 ? all / inner : 1;
  gboolean ordered = job->train.reduction_order != WEFT_ORDER_CANONICAL || is_power_of_two (inner);

  out[0] = 1;
  out[1] = groups;
  return groups < 2 || all % inner || !ordered || experts % groups || experts / groups < 2 ? 1 : 2;
}

static gboolean
shards_optimizer (const struct weft_job *job)
{
  return job->strategy.use_distributed_optimizer || job->strategy.use_megatron_fsdp;
}

static uint32_t
instances (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return shards_optimizer (job) && !job->strategy.reduce_scatter_with_fp32_accumulation
             ? sharding_groups (job, out)
             : only (1, out);
}

/* Outer ranks of hybrid sharding can divide the optimizer state where weights are sharded. */
static uint32_t
outer_levels (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  out[0] = WEFT_NO_SHARD;
  out[1] = WEFT_SHARD_OPTIM;
  return job->strategy.num_distributed_optimizer_instances > 1 &&
                 weft_job_sharding (job) == WEFT_SHARD_PARAMS
             ? 2
             : 1;
}

static uint32_t
replicated_groups (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return job->strategy.distributed_config == WEFT_FSDP2 ? sharding_groups (job, out)
                                                        : only (1, out);
}

/* Bytes of optimizer state of a parameter: an fp32 master copy and two fp32 moments. */
enum { OPTIMIZER_BYTES = 12 };

/* The smallest fraction of the GPU memory that offload must free, to be tried. */
#define LEAST_OFFLOADED 0.05

/* Offload takes longer than the update on the GPU and pays only where its memory is needed. The
 * search therefore does not try it without sharding or in groups (full sharding saves most of that
 * memory and is faster), nor if the state that a rank keeps is a small part of its memory. It
 * offloads all optimizer state or none; parts are changes of `weft memory --fix`. */
static uint32_t
optimizer_offloads (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  const union weft_strategy *s = &job->strategy;
  double bytes =
      OPTIMIZER_BYTES * (double) weft_model_parameters (&job->model) / job->cluster.n_gpus;
  gboolean possible = shards_optimizer (job) && weft_job_instances (job) == 1 &&
                      !s->fp8_param_gather && (s->preserve_fp32_weights || !s->use_megatron_fsdp) &&
                      (!weft_job_scales_loss (job) || s->grad_reduce_in_fp32);

  return possible && bytes > LEAST_OFFLOADED * job->cluster.f.gpu_memory ? both (out)
                                                                         : only (FALSE, out);
}

static uint32_t
if_optimizer_offloaded (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->strategy.optimizer_cpu_offload, out);
}

/* Megatron-FSDP always reduces sharded gradients during the backward pass, so TRUE is the only
 * value that the search tries. */
static uint32_t
overlaps (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  if (weft_job_is_torch (job))
    return only (FALSE, out);
  return job->strategy.use_megatron_fsdp ? only (TRUE, out) : if_replicated (job, out);
}

static uint32_t
if_sharded_and_overlapped (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  gboolean fsdp = job->strategy.use_megatron_fsdp;
  gboolean possible =
      (fsdp || job->strategy.use_distributed_optimizer) && job->strategy.overlap_grad_reduce;

  if (fsdp && job->strategy.data_parallel_sharding_strategy == WEFT_SHARD_PARAMS)
    return only (TRUE, out);
  return possible ? both (out) : only (FALSE, out);
}

/* Without alignment, each stage launches its gradient reduction when its gradients are complete.
 * These reductions then delay the last microbatch on one stage after the other: every stage divides
 * its gradients first, and its reduction takes bandwidth from the transfer to the next stage.
 * Megatron-LM aligns reductions, unless the user disables this (training/arguments.py,
 * --no-align-grad-reduce). */
static uint32_t
if_reductions_align (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  const union weft_strategy *s = &job->strategy;
  gboolean aligns = s->overlap_grad_reduce && s->pipeline_model_parallel_size > 1 &&
                    !weft_job_is_torch (job) && !weft_job_splits_backward (job) &&
                    weft_job_sharding (job) < WEFT_SHARD_GRADS;

  return only (aligns ? WEFT_SYNC_ALIGNED : WEFT_NONE, out);
}

/* When the first microbatch reaches a chunk, the gather of the chunk's weights stalls this
 * microbatch on every stage. Megatron-LM therefore aligns gathers over stages, unless the user
 * disables this (--no-align-param-gather). */
static uint32_t
if_gathers_align (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->strategy.overlap_param_gather && weft_job_interleaves (job) &&
                   weft_job_sharding (job) < WEFT_SHARD_PARAMS,
               out);
}

/* With at least this many buckets, the last one, which no pass overlaps, is a small part of all. */
enum { MANY_BUCKETS = 16 };

/* Buckets of the default size, and of a quarter of it where a rank has few buckets. Larger buckets
 * only save latency, which the default, 1e6 elements for each replica, keeps small. */
static uint32_t
bucket_sizes (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  const union weft_strategy *s = &job->strategy;
  int64_t size = MAX (40000000, 1000000 * holders (job));
  double parameters = (double) weft_model_parameters (&job->model) /
                      (double) (s->tensor_model_parallel_size * s->pipeline_model_parallel_size);
  gboolean few = parameters < MANY_BUCKETS * (double) size && parameters > (double) size;

  out[0] = WEFT_NONE;
  out[1] = MIN (size / 4, G_MAXINT32);
  return few && s->overlap_grad_reduce && !s->use_megatron_fsdp && !weft_job_is_torch (job) ? 2 : 1;
}

/* ------------------------------------------------------------------- the whole space */

static gboolean
but_first (int64_t value, uint32_t place)
{
  (void) value;
  return place > 0;
}

static gboolean
wide_schedule (int64_t value, uint32_t place)
{
  (void) place;
  return weft_schedules[value].splits_backward;
}

static gboolean
wide_recompute (int64_t value, uint32_t place)
{
  (void) place;
  return value == WEFT_RECOMPUTE_SELECTIVE;
}

/* ------------------------------------------------------------------------- the table */

#define as_given_precision weft_axis_as_given_precision
const struct weft_axis_row weft_axes[WEFT_N_AXIS] = {
#define AXIS(table, field, values, wide)                                                           \
  { WEFT_AXIS_OF_##table, WEFT_##table##_##field, values, wide },
#include "planner/axes.def"
#undef AXIS
};
