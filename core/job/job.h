/* job.h - what a user asks for: model, cluster, batch and precision, stack, strategy.
 *
 * A job is a file (INI), flags, or both; flags override the file.  Every error names where the
 * wrong word stands: file, line, section and key, or the flag. */
#pragma once
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "core/base/conf.h"
#include "core/job/model.h"
#include "core/job/strategy.h"

enum weft_train_field {
#define FIELD_INT(name, ...) WEFT_TRAIN_##name,
#define FIELD_WORD(name, ...) WEFT_TRAIN_##name,
#define FIELD_BOOL(name, ...) WEFT_TRAIN_##name,
#define FIELD_REAL(name, ...) WEFT_TRAIN_##name,
#include "core/train.def"
  WEFT_N_TRAIN_FIELD
};

union weft_train {
  struct {
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
  GQuark unknown_keys;                     /* of the model's config.json, "a, b"; 0: none */
  gboolean knob_set[WEFT_N_KNOB];          /* given by the user: the planner leaves them alone */
  gboolean train_set[WEFT_N_TRAIN_FIELD];
};

/* A setting before it is applied: "strategy", "overlap_grad_reduce", "true", from "job.ini:12". */
struct weft_setting {
  char *section, *key, *value, *where;
};

/* Collects settings: all of a file, or one flag.  Order matters, the later wins. */
typedef struct weft_settings weft_settings;
weft_settings *weft_settings_new (void);
void weft_settings_free (weft_settings *settings);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_settings, weft_settings_free)
gboolean weft_settings_add_file (weft_settings *settings, const char *path, GError **error);
void weft_settings_add_conf (weft_settings *settings, const weft_conf *conf);
void weft_settings_add (weft_settings *settings, const char *section, const char *key,
                        const char *value, const char *where);

/* All of `from`, in order; it is empty afterwards. */
void weft_settings_take (weft_settings *settings, weft_settings *from);

/* Whether anything was set in a section. */
gboolean weft_settings_touch (const weft_settings *settings, const char *section);

/* The section a flag belongs to ("tensor-model-parallel-size" -> strategy, "nodes" -> cluster,
 * "num-layers" -> model, ...), its canonical key, and whether it is boolean; FALSE when unknown. */
gboolean weft_job_flag (const char *flag, const char **section, const char **key,
                        gboolean *boolean);

/* Sets "unknown flag --x; did you mean --y?".  Always returns FALSE. */
gboolean weft_job_unknown_flag (const char *flag, GError **error);

/* Whether sections and keys exist and values are one line of text; not yet what they say. */
gboolean weft_settings_check (const weft_settings *settings, GError **error);

/* Builds the job: loads the model and the topology, applies every setting in order, fills what
 * follows (data parallel size, global batch, reduction order), then checks fields, pending knobs
 * and rules. */
gboolean weft_job_build (const weft_settings *settings, struct weft_job *job, GError **error);

/* The same without the rules: a planner starts from a job whose open knobs may break them. */
gboolean weft_job_assemble (const weft_settings *settings, struct weft_job *job, GError **error);

/* Applies the rules of rules.def to a finished job; the error begins with the rule's name. */
gboolean weft_job_check (const struct weft_job *job, GError **error);

/* Fills what follows from other settings: when a job is built, and for each planner candidate. */
void weft_job_derive (struct weft_job *job);

/* Whether replicas are PyTorch's business (fsdp2, ddp), not Megatron-Core's. */
gboolean weft_job_is_torch (const struct weft_job *job);

/* What replicas split: the level of Megatron-FSDP, by either of its names; no_shard without it. */
int weft_job_sharding (const struct weft_job *job);

/* megatron_fsdp_unit_modules as 1 << enum weft_unit (unit_modules.h): layers where nothing is said
 * and weights are split.  The first name that matches nothing is left in *unknown (NULL: not
 * wanted); caller frees. */
uint32_t weft_job_units (const struct weft_job *job, char **unknown);

/* Groups of replicas that hold all of what is sharded, each its own copy:
 * num_distributed_optimizer_instances, or dp_replicate_size. */
int64_t weft_job_instances (const struct weft_job *job);

/* The same of experts that ranks share out: FSDP2 cuts those among all who hold them
 * (NeMo Automodel, mesh dimension ep_shard). */
int64_t weft_job_expert_instances (const struct weft_job *job);

/* Ranks that share the products of one expert: those of tensor parallelism unless said otherwise. */
int64_t weft_job_expert_tp (const struct weft_job *job);

/* Of the experts that a token chooses, as many as one rank can have. */
int64_t weft_job_choices (const struct weft_job *job);

/* Sums over what tensor parallel ranks share out, in `units` equal parts, are taken in leaves
 * (kernels/leaves.h): how many on all ranks together; 0 where there is no order to keep. */
#define WEFT_MOST_LEAVES 8
uint32_t weft_job_leaves (const struct weft_job *job, uint64_t units);

/* Those of attention: columns of keys, or heads where keys come out of a latent. */
uint64_t weft_job_attention_units (const struct weft_job *job);

/* Rows of the embedding, over all tensor parallel ranks: the vocabulary, in equal shares. */
uint64_t weft_job_padded_vocab (const struct weft_job *job);

/* What weights and the residual stream are kept in: the precision of training, and bf16 where that is
 * fp8, which is for the operands of linear maps alone. */
enum weft_dtype weft_job_dtype (const struct weft_job *job);

/* What matrix products are taken in: weft_job_dtype(), or with enable_autocast autocast_dtype, which
 * unset is params_dtype; and those of the layers' linear maps, fp8 where that is the precision of
 * training. */
enum weft_dtype weft_job_product_dtype (const struct weft_job *job);
enum weft_dtype weft_job_linear_dtype (const struct weft_job *job);

/* Whether the loss is multiplied before backward, and gradients are divided again before they are
 * used: in fp16, or where grad_scale_func or a loss_scale ask for it; and whether the scale follows
 * what overflows (Megatron-Core's DynamicGradScaler). */
gboolean weft_job_scales_loss (const struct weft_job *job);
gboolean weft_job_scales_dynamically (const struct weft_job *job);

/* check_for_nan_in_grad, but with a dynamic scale, where a gradient that is not finite is expected
 * now and then (Megatron-LM arguments.py). */
gboolean weft_job_checks_nan (const struct weft_job *job);

/* What backward runs again, by recompute_granularity or by activation_checkpointing: each layer as a
 * whole, or with Megatron-FSDP its MLP. */
struct weft_job_recompute {
  enum weft_recompute granularity;
  enum weft_recompute_method method; /* of full recompute */
  int64_t layers;                    /* recompute_num_layers, likewise; WEFT_NONE: not given */
  uint32_t modules;                  /* of selective recompute: 1 << enum weft_recompute_module */
};
struct weft_job_recompute weft_job_recompute (const struct weft_job *job);

/* The names in recompute_modules, separated by commas or blanks, as 1 << enum weft_recompute_module;
 * the first that is none is left in `unknown` (caller frees), else NULL. */
uint32_t weft_job_modules (const struct weft_job *job, char **unknown);

/* Whether gradients are reduced in every microbatch, not once a step. */
gboolean weft_job_reduces_each (const struct weft_job *job);

/* First sequence of the global batch in a microbatch of a replica.  Where gradients are reduced once
 * a step a replica's sequences stand together; where every microbatch is reduced, those of a
 * microbatch and of one group that reduces it do: canonical sums are then taken over blocks (fold.h). */
/* Neighbours among context parallel ranks that deal out heads: 1 for a ring or a gather, all for
 * a2a, the first of hierarchical_context_parallel_sizes for a2a+p2p, or 0 where those are not two
 * numbers. */
int64_t weft_job_cp_heads (const struct weft_job *job);
int64_t weft_job_sequence (const struct weft_job *job, int64_t replica, int64_t micro);

/* Data parallel size (replicas of one pipeline, without context parallel ranks) and microbatches of
 * one rank: what remains of the GPUs and of the global batch.  Valid after the rules passed. */
int64_t weft_job_dp (const struct weft_job *job);
int64_t weft_job_microbatches (const struct weft_job *job);

/* rules.def as a table, for `weft rules` and the tests. */
struct weft_rule {
  const char *name, *doc;
  gboolean warning; /* printed, not refused */
};
extern const struct weft_rule weft_rules[];
extern const unsigned weft_n_rules;

/* Warnings of a job, one char * each; the array owns them. */
GPtrArray *weft_job_warnings (const struct weft_job *job);

/* The job as an INI text that builds the same job.  Caller frees. */
char *weft_job_print (const struct weft_job *job);
