/* job.h - the input of a plan: model, cluster, batch and precision, stack, strategy.
 *
 * A job is a file (INI), flags, or both; flags override the file. Every error names the place of
 * the wrong word: file, line, section and key, or the flag. */
#pragma once
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "core/base/conf.h"
#include "core/job/model.h"
#include "core/job/strategy.h"

enum weft_train_field {
#define FIELD_TEXT(name, ...) WEFT_TRAIN_##name,
#define FIELD_INT(name, ...) WEFT_TRAIN_##name,
#define FIELD_WORD(name, ...) WEFT_TRAIN_##name,
#define FIELD_BOOL(name, ...) WEFT_TRAIN_##name,
#define FIELD_REAL(name, ...) WEFT_TRAIN_##name,
#include "core/train.def"
  WEFT_N_TRAIN_FIELD
};

union weft_train {
  struct {
#define FIELD_TEXT(name, ...) int64_t name;
#define FIELD_INT(name, ...) int64_t name;
#define FIELD_WORD(name, ...) int64_t name;
#define FIELD_BOOL(name, ...) int64_t name;
#define FIELD_REAL(name, ...) double name;
#include "core/train.def"
  };
  union weft_value at[WEFT_N_TRAIN_FIELD];
};

extern const struct weft_table weft_train_table;

struct weft_job {
  union weft_model model;
  struct weft_cluster cluster;
  union weft_train train;
  union weft_stack stack;
  union weft_strategy strategy;
  GQuark unknown_keys; /* unknown keys of the model's config.json, separated by commas; 0: none */
  /* indexed by knob: TRUE if the user set it, so that the planner does not change it */
  gboolean knob_set[WEFT_N_KNOB];
  gboolean train_set[WEFT_N_TRAIN_FIELD];
};

/* A setting that has not been applied yet, such as key "overlap_grad_reduce" of section "strategy"
 * with value "true", from place "job.ini:12". */
struct weft_setting {
  char *section, *key, *value, *where;
  gboolean default_only; /* TRUE: skip this setting if its field already differs from its default */
};

/* Key of section "strategy" that gives the number of layers of a chunk. The field
 * virtual_pipeline_model_parallel_size, the number of chunks, is computed from it. */
#define WEFT_LAYERS_PER_CHUNK "num_layers_per_virtual_pipeline_stage"

/* A list of settings: those of files and those of single flags. Later settings override earlier
 * ones. */
typedef struct weft_settings weft_settings;
weft_settings *weft_settings_new (void);
void weft_settings_free (weft_settings *settings);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_settings, weft_settings_free)
gboolean weft_settings_add_file (weft_settings *settings, const char *path, GError **error);
void weft_settings_add_conf (weft_settings *settings, const weft_conf *conf);
void weft_settings_add (weft_settings *settings, const char *section, const char *key,
                        const char *value, const char *where);

/* Like weft_settings_add(), but the setting is applied only if its field is at its default. */
void weft_settings_add_default (weft_settings *settings, const char *section, const char *key,
                                const char *value, const char *where);

/* Records a flag that was accepted without effect. */
void weft_settings_ignore (weft_settings *settings, const char *flag);

/* The flags that weft_settings_ignore() has recorded, without duplicates, in order. The array ends
 * with NULL. */
const char *const *weft_settings_ignored (const weft_settings *settings);

/* Appends all settings of `from` to another list, in order. `from` is empty afterwards. */
void weft_settings_take (weft_settings *settings, weft_settings *from);

unsigned weft_settings_count (const weft_settings *settings);
const struct weft_setting *weft_settings_at (const weft_settings *settings, unsigned i);

/* Whether any setting is in this section; NULL: whether there is any setting at all. */
gboolean weft_settings_touch (const weft_settings *settings, const char *section);

/* Finds the setting of a flag: its section ("tensor-model-parallel-size" -> strategy, "nodes" ->
 * cluster, "num-layers" -> model, ...), the name of its key, and whether it is boolean. FALSE if no
 * setting has this name. */
gboolean weft_job_flag (const char *flag, const char **section, const char **key,
                        gboolean *boolean);

/* Sets the error "unknown flag --x; did you mean --y?". Always returns FALSE. */
gboolean weft_job_unknown_flag (const char *flag, GError **error);

/* Checks that sections and keys exist and that each value is one line of text. Does not parse
 * values. */
gboolean weft_settings_check (const weft_settings *settings, GError **error);

/* Builds the job: loads model and topology, applies every setting in order, and computes settings
 * that follow from others (data-parallel size, global batch, order of summation). Then checks
 * fields, rules, and knobs that no code reads yet. */
gboolean weft_job_build (const weft_settings *settings, struct weft_job *job, GError **error);

/* Like weft_job_build(), but does not check the rules. The planner starts from this job: the knobs
 * that it will set may still break rules. */
gboolean weft_job_assemble (const weft_settings *settings, struct weft_job *job, GError **error);

/* Checks that the job satisfies the rules of rules.def. The error begins with the name of the first
 * rule that it breaks. */
gboolean weft_job_check (const struct weft_job *job, GError **error);

/* Computes settings that were not given and follow from other settings. Called when a job is built,
 * and for each candidate of the planner. */
void weft_job_derive (struct weft_job *job);

/* Model FLOPs to train one token, counted by the knob flops_convention. MFU is computed from these
 * FLOPs. If parts of the model are frozen, weft_job_tuned_flops() (finetune.h) counts them. */
double weft_job_flops_per_token (const struct weft_job *job);

/* Whether the data-parallel wrapper is PyTorch's (fsdp2, ddp) and not Megatron-Core's. */
gboolean weft_job_is_torch (const struct weft_job *job);

/* Sharding level of Megatron-FSDP: zero_dp_strategy if the user set it, else
 * data_parallel_sharding_strategy; no_shard without Megatron-FSDP. */
int weft_job_sharding (const struct weft_job *job);

/* How long the software keeps weights that it has converted to fp8: fp8_weight_lifetime of the
 * stack, but at most a microbatch with disable_parameter_transpose_cache, or if weights are
 * sharded, because each rank then gathers them for every pass. */
enum weft_fp8_lifetime weft_job_fp8_lifetime (const struct weft_job *job);

/* The knob megatron_fsdp_unit_modules as bits 1 << enum weft_unit (unit_modules.h). If the knob is
 * not set: layers, if weights are sharded. *unknown (may be NULL) receives the first name that
 * matches no module; the caller frees it. */
uint32_t weft_job_units (const struct weft_job *job, char **unknown);

/* Number of copies of the sharded state (instances). Each copy is sharded over its own group of
 * replicas. Value of num_distributed_optimizer_instances, or of dp_replicate_size. */
int64_t weft_job_instances (const struct weft_job *job);

/* Like weft_job_instances(), for expert weights. It is 1 with FSDP2, which shards expert weights
 * over all ranks that hold them (NeMo Automodel, mesh dimension ep_shard). */
int64_t weft_job_expert_instances (const struct weft_job *job);

/* Expert tensor-parallel size; by default the tensor-parallel size. */
int64_t weft_job_expert_tp (const struct weft_job *job);

/* Largest number of experts that a token can choose on one rank. */
int64_t weft_job_choices (const struct weft_job *job);

/* In canonical order, a sum over `units` equal parts that the tensor-parallel ranks share is
 * computed in leaves, one chain of additions each (kernels/leaves.h). Returns the number of leaves
 * on all ranks together; 0 in fast order. */
#define WEFT_MOST_LEAVES 8
uint32_t weft_job_leaves (const struct weft_job *job, uint64_t units);

/* Returns the number of units into which tensor parallelism and canonical order divide attention:
 * columns of keys, or heads in latent attention. */
uint64_t weft_job_attention_units (const struct weft_job *job);

/* Multiple of the vocabulary size that replaces make_vocab_size_divisible_by = none if there are
 * several tensor-parallel ranks: the default of Megatron-LM's arguments.py. */
#define WEFT_JOB_VOCAB_UNIT 128

/* Rows of the embedding with padding: the vocabulary is rounded up so that all tensor-parallel
 * ranks have the same number of rows. */
uint64_t weft_job_padded_vocab (const struct weft_job *job);

/* Type of weights and of the residual stream: the training precision, or bf16 if that is fp8 (fp8
 * is used for operands of linear maps only). */
enum weft_dtype weft_job_dtype (const struct weft_job *job);

/* Type of matrix products: weft_job_dtype(), or autocast_dtype if enable_autocast is set and gives
 * one. */
enum weft_dtype weft_job_product_dtype (const struct weft_job *job);

/* Type of the linear maps of layers: fp8 if that is the training precision, else
 * weft_job_product_dtype(). */
enum weft_dtype weft_job_linear_dtype (const struct weft_job *job);

/* Whether the loss is scaled before backward and gradients are unscaled before use: with fp16,
 * grad_scale_func or loss_scale. */
gboolean weft_job_scales_loss (const struct weft_job *job);

/* Whether the loss scale is dynamic (Megatron-Core's DynamicGradScaler): no loss_scale is given. */
gboolean weft_job_scales_dynamically (const struct weft_job *job);

/* Whether gradients that are not finite stop the job. The knob check_for_nan_in_grad sets this.
 * With a dynamic loss scale the result is always FALSE, because overflows are then normal
 * (Megatron-LM arguments.py). */
gboolean weft_job_checks_nan (const struct weft_job *job);

/* The activations that the backward pass recomputes, set by recompute_granularity or by
 * activation_checkpointing: every layer, or with Megatron-FSDP the MLP of every layer. */
struct weft_job_recompute {
  enum weft_recompute granularity;
  enum weft_recompute_method method; /* method of full recompute (recompute_method) */
  int64_t layers; /* recompute_num_layers of full recompute; WEFT_NONE: not given */
  /* with selective recompute, the modules that are recomputed: bits 1 << enum
   * weft_recompute_module */
  uint32_t modules;
};
struct weft_job_recompute weft_job_recompute (const struct weft_job *job);

/* The knob recompute_modules (names separated by commas or blanks) as bits 1 << enum
 * weft_recompute_module. `unknown` receives the first invalid name (the caller frees it), or
 * NULL. */
uint32_t weft_job_modules (const struct weft_job *job, char **unknown);

/* Whether gradients are reduced after every microbatch instead of once per step. */
gboolean weft_job_reduces_each (const struct weft_job *job);

/* Number of neighbouring context-parallel ranks that exchange heads (Ulysses): 1 for ring or
 * all-gather, all for a2a, the first of hierarchical_context_parallel_sizes for a2a+p2p; 0 if
 * hierarchical_context_parallel_sizes is not two numbers whose product is context_parallel_size. */
int64_t weft_job_cp_heads (const struct weft_job *job);

/* Index in the global batch of the first sequence of a microbatch of a replica. Canonical sums go
 * over blocks of consecutive sequences (fold.h). If gradients are reduced once per step, the
 * sequences of a replica are consecutive. If gradients are reduced in every microbatch, the
 * sequences of a microbatch are consecutive over the replicas that reduce together. */
int64_t weft_job_sequence (const struct weft_job *job, int64_t replica, int64_t micro);

/* Data-parallel size: number of GPUs divided by the GPUs of one pipeline with its tensor- and
 * context-parallel ranks. Valid after the rules have accepted the job. */
int64_t weft_job_dp (const struct weft_job *job);

/* Number of microbatches of each rank in a step, from the global batch. Valid after the rules have
 * accepted the job. */
int64_t weft_job_microbatches (const struct weft_job *job);

/* The rows of rules.def, for `weft rules` and the tests. */
struct weft_rule {
  const char *name, *doc;
  gboolean warning; /* a text for the user that is not an error */
};
extern const struct weft_rule weft_rules[];
extern const unsigned weft_n_rules;

/* Warnings of a job: texts, char *, which the array owns. */
GPtrArray *weft_job_warnings (const struct weft_job *job);

/* The job as INI text, from which the same job can be built. The caller frees the text. */
char *weft_job_print (const struct weft_job *job);
