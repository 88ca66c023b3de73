/* The values of each axis that are worth trying. An axis is one row of axes.def. If the user set
 * the axis, the only value is the user's. */
#include "planner/space.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
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

struct axis {
  enum { KNOB, TRAIN } table;
  unsigned field;
  /* A function that lists the values of an axis. It writes the values to out[] and returns their
   * number. `job` has the values of the earlier axes. */
  uint32_t (*values) (const struct weft_job *job, int64_t out[MOST_VALUES]);
};

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

static uint32_t
as_given_precision (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->train.precision, out);
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

/* Lists the schedules with the trait `searched`. With a single stage, lists only the first of them.
 * With several chunks per rank, lists only schedules that allow any number of chunks. */
static uint32_t
schedules (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  gboolean staged = job->strategy.pipeline_model_parallel_size > 1;
  uint32_t n = 0;

  for (unsigned i = 0; i < WEFT_N_SCHEDULE; i++) {
    const struct weft_schedule_row *row = &weft_schedules[i];
    if (row->searched && (staged || n == 0) &&
        (!has_chunks (job) || row->chunks == WEFT_CHUNKS_ANY))
      out[n++] = i;
  }
  return n;
}

static uint32_t
if_staged (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  return only (job->strategy.pipeline_model_parallel_size > 1, out);
}

static uint32_t
recomputes (const struct weft_job *job, int64_t out[MOST_VALUES])
{
  out[0] = WEFT_RECOMPUTE_NONE;
  out[1] = WEFT_RECOMPUTE_FULL;
  return job->strategy.activation_checkpointing ? 1 : 2;
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
  return weft_job_is_torch (job) ? only (FALSE, out) : if_replicated (job, out);
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

/* ---------------------------------------------------------------------- combinations */

static const struct axis axes[WEFT_N_AXIS] = {
#define AXIS(table, field, values) { table, WEFT_##table##_##field, values },
#include "planner/axes.def"
#undef AXIS
};

static gboolean
is_fixed (const struct weft_job *job, const struct axis *axis)
{
  return axis->table == KNOB ? job->knob_set[axis->field] : job->train_set[axis->field];
}

static union weft_value *
setting (struct weft_job *job, const struct axis *axis)
{
  return axis->table == KNOB ? &job->strategy.at[axis->field] : &job->train.at[axis->field];
}

static const struct weft_field *
field_of (const struct axis *axis)
{
  const struct weft_table *table = axis->table == KNOB ? &weft_strategy_table : &weft_train_table;

  return &table->field[axis->field];
}

const struct weft_field *
weft_space_field (enum weft_axis axis)
{
  return field_of (&axes[axis]);
}

static int32_t
pack (int64_t value)
{
  WEFT_INVARIANT (value == WEFT_NONE || (value > INT32_MIN && value <= INT32_MAX));
  return value == WEFT_NONE ? WEFT_CHOICE_NONE : (int32_t) value;
}

static int64_t
unpack (int32_t value)
{
  return value == WEFT_CHOICE_NONE ? WEFT_NONE : value;
}

/* The job whose choices are listed, with the values of the axes so far. */
struct listing {
  struct weft_job job;
  const struct weft_space_ranges *ranges; /* NULL: no limits */
  struct weft_choice choice;
  GArray *out;
};

static uint32_t
values_of (struct listing *l, size_t depth, int64_t values[MOST_VALUES])
{
  const struct axis *axis = &axes[depth];
  const struct weft_space_range *range = l->ranges ? &l->ranges->of[depth] : NULL;

  if (range && range->n > 0) {
    memcpy (values, range->value, range->n * sizeof *values);
    return range->n;
  }
  return is_fixed (&l->job, axis) ? only (setting (&l->job, axis)->i, values)
                                  : axis->values (&l->job, values);
}

/* Lists all choices of the axes from number `depth` on. A value outside the range of its setting is
 * left out. */
static void
enumerate (struct listing *l, size_t depth)
{
  int64_t values[MOST_VALUES];

  if (depth == WEFT_N_AXIS) {
    g_array_append_val (l->out, l->choice);
    return;
  }
  union weft_value *at = setting (&l->job, &axes[depth]), before = *at;
  uint32_t n = values_of (l, depth, values);
  for (uint32_t i = 0; i < n; i++) {
    at->i = values[i];
    if (!weft_field_holds (field_of (&axes[depth]), *at))
      continue;
    l->choice.value[depth] = pack (values[i]);
    enumerate (l, depth + 1);
  }
  *at = before;
}

GArray *
weft_space_enumerate_within (const struct weft_job *job, const struct weft_space_ranges *ranges)
{
  struct listing l = { .job = *job,
                       .ranges = ranges,
                       .out = g_array_new (FALSE, TRUE, sizeof (struct weft_choice)) };

  enumerate (&l, 0);
  return l.out;
}

GArray *
weft_space_enumerate (const struct weft_job *job)
{
  return weft_space_enumerate_within (job, NULL);
}

/* The number of the axis with the name `key`; WEFT_N_AXIS: there is none. */
static unsigned
axis_named (const char *key)
{
  unsigned i = 0;

  while (i < WEFT_N_AXIS && strcmp (key, field_of (&axes[i])->name) != 0)
    i++;
  return i;
}

gboolean
weft_space_lists (const char *key)
{
  unsigned axis = axis_named (key);

  return axis < WEFT_N_AXIS && field_of (&axes[axis])->type != WEFT_TYPE_TEXT;
}

gboolean
weft_space_limit (struct weft_space_ranges *ranges, const char *key, const char *text,
                  GError **error)
{
  unsigned axis = axis_named (key);

  if (axis == WEFT_N_AXIS)
    return weft_bad_input (error,
                           "%s: found a list of values, wanted one value: weft plan does "
                           "not search this setting",
                           key);
  struct weft_space_range *range = &ranges->of[axis];
  g_auto (GStrv) word = g_strsplit (text, ",", -1);
  *range = (struct weft_space_range){ 0 };
  for (unsigned i = 0; word[i]; i++) {
    union weft_value value;
    if (range->n == WEFT_SPACE_VALUES)
      return weft_bad_input (error, "%s: found more than %d values", key, WEFT_SPACE_VALUES);
    if (!weft_field_parse (field_of (&axes[axis]), g_strstrip (word[i]), &value, error))
      return FALSE;
    range->value[range->n++] = value.i;
  }
  return TRUE;
}

struct weft_job
weft_space_job (const struct weft_job *job, const struct weft_choice *choice)
{
  struct weft_job chosen = *job;

  for (unsigned i = 0; i < WEFT_N_AXIS; i++)
    setting (&chosen, &axes[i])->i = unpack (choice->value[i]);
  /* weft_job_derive() chooses the precision of a job in which it is not set */
  if (chosen.train.precision != job->train.precision)
    chosen.train_set[WEFT_TRAIN_precision] = TRUE;
  weft_job_derive (&chosen);
  return chosen;
}

uint32_t
weft_space_values (const struct weft_job *job, enum weft_axis axis,
                   int64_t values[WEFT_SPACE_VALUES])
{
  struct weft_job open = *job;
  int64_t all[MOST_VALUES];
  uint32_t n = 0;

  if (axes[axis].table == KNOB)
    setting (&open, &axes[axis])->i = weft_strategy_defaults ()->at[axes[axis].field].i;
  uint32_t listed = axes[axis].values (&open, all);
  for (uint32_t i = 0; i < listed; i++)
    if (weft_field_holds (field_of (&axes[axis]), (union weft_value){ .i = all[i] }))
      values[n++] = all[i];
  return n;
}

union weft_value *
weft_space_setting (struct weft_job *job, enum weft_axis axis)
{
  return setting (job, &axes[axis]);
}

void
weft_space_settle (struct weft_job *job, enum weft_axis first, enum weft_axis last)
{
  for (unsigned axis = first; axis <= last; axis++) {
    int64_t values[WEFT_SPACE_VALUES];
    union weft_value *at = setting (job, &axes[axis]);
    uint32_t n = weft_space_values (job, axis, values), i = 0;
    while (i < n && values[i] != at->i)
      i++;
    if (n > 0 && i == n)
      at->i = values[0];
  }
}

void
weft_space_forget (struct weft_job *job)
{
  union weft_train defaults;

  weft_table_defaults (&weft_train_table, defaults.at);
  for (unsigned i = 0; i < WEFT_N_AXIS; i++)
    *setting (job, &axes[i]) = axes[i].table == KNOB ? weft_strategy_defaults ()->at[axes[i].field]
                                                     : defaults.at[axes[i].field];
}

void
weft_space_close (struct weft_job *job)
{
  for (unsigned i = 0; i < WEFT_N_AXIS; i++)
    if (axes[i].table == KNOB)
      job->knob_set[axes[i].field] = TRUE;
    else
      job->train_set[axes[i].field] = TRUE;
}

gboolean
weft_space_varies (const char *key)
{
  unsigned axis = axis_named (key);

  return strcmp (key, WEFT_LAYERS_PER_CHUNK) == 0 ||
         (axis < WEFT_N_AXIS && axes[axis].values != as_given_precision);
}
