#include "core/base/error.h"
#include "core/job/finetune.h"
#include "core/job/job.h"
#include "core/cluster/fabric.h"
#include "core/job/collectives.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include "core/job/unit_modules.h"
#include "core/job/loss.h"
#include "core/base/zigzag.h"
#include <math.h>
#include <string.h>

#define S(knob) j->strategy.knob
#define M(field) j->model.field
#define T(field) j->train.field
#define I "%" G_GINT64_FORMAT
#define N "%s"

static int64_t
mesh (const struct weft_job *j)
{
  return S (tensor_model_parallel_size) * S (pipeline_model_parallel_size) *
         S (context_parallel_size);
}

/* The first kind of parallelism of a job that the list of its stack does not contain; NULL if the
 * list contains all. */
static const char *
lacking_parallelism (const struct weft_job *j)
{
  const gboolean used[WEFT_N_PARALLELISM] = {
    [WEFT_PARALLELISM_TP] = j->strategy.tensor_model_parallel_size > 1,
    [WEFT_PARALLELISM_SP] = j->strategy.sequence_parallel,
    [WEFT_PARALLELISM_CP] = j->strategy.context_parallel_size > 1,
    [WEFT_PARALLELISM_PP] = j->strategy.pipeline_model_parallel_size > 1,
    [WEFT_PARALLELISM_EP] = j->strategy.expert_model_parallel_size > 1,
  };

  for (int kind = 0; kind < WEFT_N_PARALLELISM; kind++)
    if (used[kind] && !weft_stack_lists (j->stack.parallelism, weft_parallelism_words[kind]))
      return weft_parallelism_words[kind];
  return NULL;
}

static int64_t
expert_mesh (const struct weft_job *j)
{
  return weft_job_expert_tp (j) * S (expert_model_parallel_size) * S (pipeline_model_parallel_size);
}

/* Whether experts are distributed over ranks, so that their gradients are reduced in groups of
 * their own. */
static gboolean
spreads_experts (const struct weft_job *j)
{
  return M (num_moe_experts) > 0 && (S (expert_model_parallel_size) > 1 ||
                                     weft_job_expert_tp (j) != S (tensor_model_parallel_size));
}

static int64_t
expert_replicas (const struct weft_job *j)
{
  return j->cluster.n_gpus / expert_mesh (j);
}

static gboolean
power_of_two (int64_t n)
{
  return n > 0 && (n & (n - 1)) == 0;
}

static int64_t
replicas (const struct weft_job *j)
{
  return weft_job_dp (j) * S (context_parallel_size);
}

/* Whether the job sets a knob whose value is text. */
static gboolean
has_text (int64_t value)
{
  const char *text = g_quark_to_string ((GQuark) value);
  return text && *text && !g_str_equal (text, "none");
}

static int64_t
cp_heads (const struct weft_job *j)
{
  return MAX (1, weft_job_cp_heads (j));
}

static gboolean
slides (const struct weft_job *j)
{
  return M (sliding_window) > 0 && M (sliding_window) < M (seq_length);
}

static gboolean
sees_chunks (const struct weft_job *j)
{
  return M (attention_chunk_size) > 0 && M (attention_chunk_size) < M (seq_length);
}

/* The first invalid name in megatron_fsdp_unit_modules; NULL if all are valid. */
static const char *
unknown_unit (const struct weft_job *j)
{
  g_autofree char *name = NULL, *text = NULL;

  weft_job_units (j, &name);
  text = name ? weft_unit_modules_problem (name, &j->model) : NULL;
  return g_intern_string (text);
}

/* A feature of the model's layers that no code of Weft supports; NULL if there is none. */
static const char *
odd_layer (const struct weft_job *j)
{
  gboolean odd = M (norm_placement) != WEFT_NORM_PRE || M (residual) != WEFT_RESIDUAL_SEQUENTIAL;

  if (M (qk_l2_norm))
    return "qk_l2_norm: L2-normalised queries and keys";
  if (M (num_moe_experts) && odd)
    return "experts with norm_placement other than pre, or residual other than sequential";
  if (M (kv_lora_rank) && odd)
    return "multi-latent attention with norm_placement other than pre, or residual other than "
           "sequential";
  return M (softmax_type) == WEFT_SOFTMAX_VANILLA ? NULL : "softmax_type: attention sinks";
}

/* Whether attention scores are more than products of queries and keys: soft-capped, or with the
 * biases of ALiBi. */
static gboolean
bends_scores (const struct weft_job *j)
{
  return M (attn_logit_softcapping) > 0 || M (position_embedding_type) == WEFT_ALIBI;
}

static gboolean
has_plan (const struct weft_job *j)
{
  return has_text (S (tp_plan));
}

static gboolean
fuses_division (const struct weft_job *j)
{
  gboolean bf16 = weft_job_dtype (j) == WEFT_BF16 && !S (grad_reduce_in_fp32);

  return S (use_megatron_fsdp) && !bf16 && !S (average_in_collective) &&
         !S (calculate_per_token_loss) && T (reduction_order) != WEFT_ORDER_CANONICAL;
}

static gboolean
hybrid (const struct weft_job *j)
{
  return S (use_megatron_fsdp) && weft_job_instances (j) > 1;
}

/* Whether the sequences that one gradient collective sums form a node of the canonical tree. If
 * gradients are reduced once per step, these are the sequences of a replica. If they are reduced in
 * every microbatch, these are the sequences of a microbatch of all replicas; with several
 * instances, all sequences of an instance. */
static gboolean
reduces_blocks (const struct weft_job *j)
{
  if (!weft_job_reduces_each (j))
    return power_of_two (T (global_batch_size) / weft_job_dp (j));
  if (hybrid (j))
    return power_of_two (T (global_batch_size) / weft_job_instances (j));
  return weft_job_microbatches (j) == 1 || power_of_two (T (micro_batch_size) * weft_job_dp (j));
}

/* Whether tensor-parallel ranks get equal shares of `units`. In canonical order, they must get
 * equally many leaves of the sum over `units` (kernels/leaves.h). */
static gboolean
deals_leaves (const struct weft_job *j, int64_t units)
{
  int64_t tp = S (tensor_model_parallel_size);

  return units % tp == 0 && (T (reduction_order) != WEFT_ORDER_CANONICAL ||
                             weft_job_leaves (j, (uint64_t) units) % tp == 0);
}

/* Whether each tensor-parallel rank has either whole query groups, or an equal share of the columns
 * of one query group. */
static gboolean
shares_groups (const struct weft_job *j)
{
  int64_t tp = S (tensor_model_parallel_size), groups = M (num_query_groups);

  return groups % tp == 0 || (tp % groups == 0 && groups * M (kv_channels) % tp == 0);
}

static gboolean
shares_leaves (const struct weft_job *j)
{
  return T (reduction_order) != WEFT_ORDER_CANONICAL ||
         (deals_leaves (j, (int64_t) weft_job_attention_units (j)) &&
          deals_leaves (j, M (ffn_hidden_size)));
}

/* Number of ranks (expert tensor parallel times expert parallel) whose tokens may be routed to one
 * expert. */
static int64_t
expert_sources (const struct weft_job *j)
{
  return weft_job_expert_tp (j) * S (expert_model_parallel_size);
}

/* Number of ranks that share the tokens of a sequence. */
static int64_t
sequence_ranks (const struct weft_job *j)
{
  return S (tensor_model_parallel_size) * S (context_parallel_size);
}

/* Number of replicas whose sequences are routed to one expert. */
static int64_t
expert_batches (const struct weft_job *j)
{
  return spreads_experts (j) ? expert_sources (j) / sequence_ranks (j) : 1;
}

/* Whether the tokens that are routed to an expert form a node of the tree of canonical sums. These
 * tokens come from parts of a sequence on context-parallel ranks, or from replicas. If they come
 * from only some of the tensor-parallel ranks, they are gathered first. */
static gboolean
experts_see_nodes (const struct weft_job *j)
{
  int64_t all = expert_sources (j), one = sequence_ranks (j), tp = S (tensor_model_parallel_size);

  if (!spreads_experts (j) || (all < tp && tp % all == 0))
    return TRUE;
  return all >= one ? all % one == 0 && power_of_two (all / one) : all % tp == 0 && one % all == 0;
}

static gboolean
shares_expert_leaves (const struct weft_job *j)
{
  return weft_job_leaves (j, M (moe_ffn_hidden_size)) % weft_job_expert_tp (j) == 0 &&
         weft_job_leaves (j, M (moe_shared_expert_intermediate_size)) %
                 S (tensor_model_parallel_size) ==
             0;
}

/* Classes whose knobs apply to a data-parallel strategy; the first class is its own. */
#define CLASSES(id, word, doc, classes) classes,
static const char *const strategy_classes[] = { WEFT_DISTRIBUTED_LIST (CLASSES) };

static gboolean
names (const char *classes, const char *one)
{
  g_auto (GStrv) word = g_strsplit (classes, " ", -1);
  return g_strv_contains ((const char *const *) word, one);
}

/* Whether knobs of `class` do not apply to the chosen data-parallel strategy, but apply to another
 * one. A knob is a setting of the strategy of a job; `class` is the name of a class of the training
 * software that has knobs as members, such as "FSDP2Config". */
static gboolean
is_foreign (const struct weft_job *j, const char *class)
{
  gboolean others = FALSE;

  for (unsigned i = 0; i < G_N_ELEMENTS (strategy_classes); i++)
    others = others || names (strategy_classes[i], class);
  return others && !names (strategy_classes[S (distributed_config)], class);
}

static gboolean
is_foreign_knob (const struct weft_job *j, const struct weft_field *knob)
{
  g_auto (GStrv) source = g_strsplit (knob->source, " ", -1);

  for (unsigned i = 0; source[i]; i++)
    if (!is_foreign (j, source[i]))
      return FALSE;
  return TRUE;
}

/* The first knob that differs from its default although the chosen data-parallel strategy does not
 * have it; NULL if there is none. */
static const struct weft_field *
foreign_knob (const struct weft_job *j)
{
  for (unsigned i = 0; i < WEFT_N_KNOB; i++) {
    const struct weft_field *knob = &weft_strategy_table.field[i];
    if (knob->type != WEFT_TYPE_METHOD && !weft_knob_is_default (&j->strategy, i) &&
        is_foreign_knob (j, knob))
      return knob;
  }
  return NULL;
}

/* Knobs of the class that belongs to the chosen data-parallel strategy, as text for a message. */
static const char *
own_knobs (const struct weft_job *j)
{
  g_auto (GStrv) class = g_strsplit (strategy_classes[S (distributed_config)], " ", 2);
  g_autoptr (GString) list = g_string_new (NULL);

  for (unsigned i = 0; i < WEFT_N_KNOB; i++) {
    const struct weft_field *knob = &weft_strategy_table.field[i];
    if (knob->type != WEFT_TYPE_METHOD && names (knob->source, class[0]))
      g_string_append_printf (list, "%s%s", list->len ? ", " : "", knob->name);
  }
  return g_intern_string (list->str);
}

static int64_t
chunks (const struct weft_job *j)
{
  return weft_job_chunks (j);
}

/* Number of microbatches that a rank runs for one chunk before it continues with the next chunk
 * (interleaved schedule). */
static int64_t
group (const struct weft_job *j)
{
  return S (microbatch_group_size_per_vp_stage) == WEFT_NONE
             ? S (pipeline_model_parallel_size)
             : S (microbatch_group_size_per_vp_stage);
}

/* The rule of the pipeline schedule that the job's numbers of ranks, chunks and microbatches break;
 * WEFT_SPEC_FITS if they break none. With a schedule file always WEFT_SPEC_FITS, because the file
 * contains the grid. */
static enum weft_spec_rule
broken_spec (const struct weft_job *j)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (j);
  return weft_job_schedule_file (j) ? WEFT_SPEC_FITS : weft_spec_broken (&spec);
}

/* The problem of the file pipeline_schedule_file, as text; NULL: there is none. */
static const char *
schedule_file_problem (const struct weft_job *j)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_grid) grid = weft_job_schedule_file (j) ? weft_job_grid (j, &error) : NULL;
  g_autofree char *place = grid ? weft_grid_place_problem (grid) : NULL;

  return g_intern_string (error ? error->message : place);
}

/* What is wrong with the list collective_algorithm_files or with its files; NULL: nothing. */
static const char *
collective_files_problem (const struct weft_job *j)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) files = weft_job_algorithms (j, &error);

  (void) files;
  return error ? g_intern_string (error->message) : NULL;
}

/* Number of layers of the largest stage. */
static int64_t
stage_layers (const struct weft_job *j)
{
  return weft_job_most_layers (j);
}

static const char *
stages_problem (const struct weft_job *j)
{
  g_autofree char *text = weft_job_stages_problem (j);
  return g_intern_string (text);
}

static int64_t
rotary_width (const struct weft_job *j)
{
  return llround (M (kv_channels) * M (rotary_percent));
}

static int64_t
microbatch_tokens (const struct weft_job *j)
{
  return T (micro_batch_size) * M (seq_length);
}

static int64_t
qkv_width (const struct weft_job *j)
{
  return (M (num_attention_heads) + 2 * M (num_query_groups)) * M (kv_channels);
}

/* Columns of the widest activation of a layer. The gate of an MLP is included. */
static int64_t
widest (const struct weft_job *j)
{
  int64_t experts = M (moe_router_topk) * MAX (M (hidden_size), 2 * M (moe_ffn_hidden_size));
  int64_t mlp = MAX (2 * M (ffn_hidden_size), MAX (M (num_moe_experts), experts));

  return MAX (MAX (M (hidden_size), mlp), MAX (M (vocab_size), qkv_width (j)));
}

/* Upper bound of the bytes of all buffers of a step if no memory is reused. It counts five fp32
 * numbers per parameter, and for every microbatch the activations of forward and backward, and the
 * logits. */
static double
step_bytes (const struct weft_job *j)
{
  double experts = M (moe_router_topk) * (6.0 * M (hidden_size) + 8.0 * M (moe_ffn_hidden_size));
  double layer = 12.0 * M (hidden_size) + 4.0 * qkv_width (j) + 8.0 * M (ffn_hidden_size) +
                 experts + 4.0 * M (num_moe_experts) +
                 8.0 * M (moe_shared_expert_intermediate_size);
  double tokens = (double) microbatch_tokens (j) * weft_job_microbatches (j);

  return 4 * (5.0 * weft_model_parameters (&j->model) +
              tokens * (M (num_layers) * layer + 2.0 * M (vocab_size)));
}

/* Upper bound of the number of gradient buckets on a stage. A bucket has at least one tensor; all
 * buckets except the last bucket and those of tied weights reach the size threshold. Counts 1 for
 * the default threshold, which allows at most one bucket per matrix. */
static int64_t
most_buckets (const struct weft_job *j)
{
  int64_t tensors = 44 * (stage_layers (j) * chunks (j) + M (mtp_num_layers)) + 6;
  int64_t numel = weft_model_parameters (&j->model) / S (pipeline_model_parallel_size);

  if (S (bucket_size) == WEFT_NONE || !S (overlap_grad_reduce) || S (disable_bucketing))
    return 1;
  return MIN (tensors, numel / S (bucket_size) + 3);
}

static gboolean
full (const struct weft_job *j)
{
  return S (recompute_granularity) == WEFT_RECOMPUTE_FULL;
}

static gboolean
has_unknown_module (const struct weft_job *j)
{
  g_autofree char *unknown = NULL;

  weft_job_modules (j, &unknown);
  return unknown != NULL;
}

/* The first recompute module in the job that the model does not have; NULL if there is none. */
static const char *
absent_module (const struct weft_job *j)
{
  const struct {
    enum weft_recompute_module module;
    int64_t size;
  } parts[] = {
    { WEFT_MODULE_MOE, M (num_moe_experts) },
    { WEFT_MODULE_MOE_ACT, M (num_moe_experts) },
    { WEFT_MODULE_SHARED_EXPERTS, M (moe_shared_expert_intermediate_size) },
    { WEFT_MODULE_MLA_UP_PROJ, M (kv_lora_rank) },
  };
  g_autofree char *unknown = NULL;
  uint32_t set = weft_job_modules (j, &unknown);

  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++)
    if (set >> parts[i].module & 1 && parts[i].size == 0)
      return weft_module_words[parts[i].module];
  return NULL;
}

/* Whether selective recompute includes only attention, and the attention kernel stores no scores,
 * so that nothing is recomputed. */
static gboolean
runs_nothing_again (const struct weft_job *j)
{
  return S (recompute_granularity) == WEFT_RECOMPUTE_SELECTIVE &&
         S (attention_backend) != WEFT_ATTENTION_UNFUSED &&
         weft_job_recompute (j).modules == 1u << WEFT_MODULE_CORE_ATTN;
}

static gboolean
is_built (int64_t precision)
{
  return precision == WEFT_BF16 || precision == WEFT_FP16 || precision == WEFT_FP32;
}

/* Whether the job sets any knob of a dynamic loss scale. */
static gboolean
has_dynamic_scale (const struct weft_job *j)
{
  return j->train_set[WEFT_TRAIN_initial_loss_scale] || j->train_set[WEFT_TRAIN_min_loss_scale] ||
         j->train_set[WEFT_TRAIN_loss_scale_window] || j->train_set[WEFT_TRAIN_hysteresis];
}

/* Whether the job can compute fp8 products: on a GPU with fp8 tensor cores, or on a CPU, which
 * converts fp8 to a wider type. FALSE with autocast, because products then have the type of
 * autocast. */
static gboolean
multiplies_fp8 (const struct weft_job *j)
{
  return T (precision) == WEFT_FP8 && j->cluster.f.gpu_fp8 > 0 && !S (enable_autocast);
}

/* Whether fp8 products have one scale per block of elements, not per tensor. */
static gboolean
multiplies_blocks (const struct weft_job *j)
{
  return T (precision) == WEFT_FP8 &&
         (S (fp8_recipe) == WEFT_FP8_BLOCKWISE || S (fp8_recipe) == WEFT_FP8_MX);
}

/* Whether weights that are stored in fp8, if there are any, have the scales that fp8 products
 * use. */
static gboolean
keeps_what_it_multiplies (const struct weft_job *j)
{
  if (T (precision) != WEFT_FP8 || !S (fp8_param_gather))
    return TRUE;
  return S (fp8_recipe) != WEFT_FP8_BLOCKWISE &&
         !S (reuse_grad_buf_for_mxfp8_param_ag) == (S (fp8_recipe) != WEFT_FP8_MX);
}

/* Whether FSDP2 supports this type for storing or sending. */
static gboolean
is_kept (const struct weft_job *j, int64_t precision)
{
  return precision == WEFT_FP32 || precision == weft_job_dtype (j);
}

static const char *
truth (int64_t value)
{
  return value ? "true" : "false";
}

static gboolean
combines (const struct weft_job *j)
{
  return S (overlap_moe_expert_parallel_comm);
}

/* ----------------------------------------------------------------- frozen parts, adapters */

static gboolean
tunes (const struct weft_job *j)
{
  return weft_job_frozen (j, NULL) != 0;
}

static gboolean
is_none (int64_t quark)
{
  return strcmp (g_quark_to_string ((GQuark) quark), "none") == 0;
}

static gboolean
has_unknown_name (const struct weft_job *j,
                  uint32_t (*parse) (const struct weft_job *job, char **unknown))
{
  g_autofree char *unknown = NULL;

  parse (j, &unknown);
  return unknown != NULL;
}

/* Whether every pipeline stage has a layer. */
static gboolean
fills_stages (const struct weft_job *j)
{
  weft_grid *grid = weft_job_grid (j, NULL);
  g_autofree uint32_t *rank = g_new (uint32_t, grid->n_stages);
  uint32_t least = UINT32_MAX;

  for (uint32_t i = 0; i < grid->n_stages; i++)
    rank[i] = grid->place[i] / grid->n_chunks;
  g_autofree uint32_t *layers = weft_job_stage_layers (j, rank, grid->n_stages);
  for (uint32_t i = 0; i < grid->n_stages; i++)
    least = MIN (least, layers[i]);
  weft_grid_free (grid);
  return least > 0;
}

#define LISTED(id, text, ...) " " text

/* For each row of rules.def, defines two functions: the check, and the text for the message if the
 * check fails. */
#define RULE(id, condition, doc, ...)                                                              \
  static gboolean id##_holds (const struct weft_job *j)                                            \
  {                                                                                                \
    return (condition);                                                                            \
  }                                                                                                \
  static char *id##_found (G_GNUC_UNUSED const struct weft_job *j)                                 \
  {                                                                                                \
    return g_strdup_printf (__VA_ARGS__);                                                          \
  }
#define WARNING RULE
#include "core/rules.def"

const struct weft_rule weft_rules[] = {
#define RULE(id, condition, doc, ...) { #id, doc, FALSE },
#define WARNING(id, condition, doc, ...) { #id, doc, TRUE },
#include "core/rules.def"
};
const unsigned weft_n_rules = G_N_ELEMENTS (weft_rules);

static const struct {
  gboolean (*holds) (const struct weft_job *j);
  char *(*found) (const struct weft_job *j);
} checks[] = {
#define RULE(id, ...) { id##_holds, id##_found },
#define WARNING RULE
#include "core/rules.def"
};

gboolean
weft_job_check (const struct weft_job *job, GError **error)
{
  for (unsigned i = 0; i < weft_n_rules; i++) {
    if (weft_rules[i].warning || checks[i].holds (job))
      continue;
    g_autofree char *found = checks[i].found (job);
    return weft_bad_input (error, "rule %s: %s: %s", weft_rules[i].name, found, weft_rules[i].doc);
  }
  return TRUE;
}

/* Warns of knobs that their own software has deprecated. Weft accepts these knobs, and they have no
 * effect. */
static void
warn_deprecated (const struct weft_job *job, GPtrArray *warnings)
{
  static const char mark[] = "none: deprecated";

  for (unsigned i = 0; i < WEFT_N_KNOB; i++) {
    const struct weft_field *knob = &weft_strategy_table.field[i];
    if (g_str_has_prefix (knob->affects, mark) &&
        !weft_knob_is_default (&job->strategy, i))
      g_ptr_array_add (warnings, g_strdup_printf ("%s has no effect: %s", knob->name,
                                                  knob->affects + strlen ("none: ")));
  }
}

GPtrArray *
weft_job_warnings (const struct weft_job *job)
{
  GPtrArray *warnings = g_ptr_array_new_with_free_func (g_free);

  for (unsigned i = 0; i < weft_n_rules; i++) {
    if (!weft_rules[i].warning || checks[i].holds (job))
      continue;
    g_autofree char *found = checks[i].found (job);
    g_ptr_array_add (warnings,
                     g_strdup_printf ("%s: %s: %s", weft_rules[i].name, found, weft_rules[i].doc));
  }
  warn_deprecated (job, warnings);
  if (job->unknown_keys)
    g_ptr_array_add (warnings, g_strdup_printf ("model config: unknown keys were ignored: %s",
                                                g_quark_to_string (job->unknown_keys)));
  return warnings;
}
