#include "interop/accelerate.h"
#include "interop/tree.h"
#include "interop/yaml.h"
#include "core/base/error.h"
#include <string.h>

static gboolean
is (const weft_reading *reading, const char *setting, const char *value)
{
  return g_strcmp0 (weft_reading_text (reading, setting), value) == 0;
}

/* Returns NULL: accelerate has no default for the setting, so a key must give it. */
static char *
needed (const weft_reading *reading)
{
  (void) reading;
  return NULL;
}

/* ------------------------------------------------------------------------------- precision */

/* MULTI_GPU keeps weights in fp32 and computes under autocast; the other types convert the
 * weights. */
static gboolean
mixed_in (weft_reading *reading, const char *value, GError **error)
{
  const char *type = weft_reading_key (reading, "distributed_type");
  gboolean casts = g_strcmp0 (type, "MULTI_GPU") == 0 || g_strcmp0 (type, "NO") == 0;
  gboolean scales = g_strcmp0 (type, "DEEPSPEED") == 0 || g_strcmp0 (type, "MEGATRON_LM") == 0;

  if (strcmp (value, "no") == 0)
    return TRUE;
  if (strcmp (value, "bf16") != 0 && !(scales && strcmp (value, "fp16") == 0))
    return weft_bad_input (error, "found %s, wanted no or bf16%s", value,
                           scales ? " or fp16"
                                  : ": Weft has no such computation with this "
                                    "distributed_type");
  weft_reading_set (reading, "precision", casts ? "fp32" : value);
  if (casts) {
    weft_reading_set (reading, "enable_autocast", "true");
    weft_reading_set (reading, "autocast_dtype", value);
  }
  return TRUE;
}

static char *
mixed_out (const weft_reading *reading)
{
  const char *precision = weft_reading_text (reading, "precision");
  gboolean cast = is (reading, "enable_autocast", "true");

  if (is (reading, "distributed_config", "ddp"))
    return cast && strcmp (precision, "fp32") == 0 && is (reading, "autocast_dtype", "bf16")
               ? g_strdup ("bf16")
               : NULL;
  /* a loss scale exists with MEGATRON_LM, and with DEEPSPEED, which stands for this sharding level
   * in accelerate.def */
  gboolean scales =
      is (reading, "distributed_config", "megatron_ddp") ||
      (is (reading, "distributed_config", "megatron_fsdp") &&
       is (reading, "data_parallel_sharding_strategy", "optim_grads_params"));
  gboolean half = strcmp (precision, "fp16") == 0 && scales;
  return !cast && (half || strcmp (precision, "bf16") == 0) ? g_strdup (precision) : NULL;
}

/* ------------------------------------------------------------------------------- DeepSpeed */

static gboolean
stage_in (weft_reading *reading, const char *value, GError **error)
{
  (void) reading;
  return strcmp (value, "3") == 0 ||
         weft_bad_input (error,
                         "found %s, wanted 3; write the other stages in DeepSpeed's own "
                         "file, which weft import reads with --from deepspeed",
                         value);
}

static char *
stage_out (const weft_reading *reading)
{
  (void) reading; /* the key distributed_type is written instead */
  return NULL;
}

/* ------------------------------------------------------------------------ reading, writing */

static gboolean
accelerate_read (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GArray) values = weft_yaml_values (text, name, error);

  if (!values || !weft_tree_keys (values, name, &weft_accelerate, NULL, out, error))
    return FALSE;
  const struct weft_given *gpus = weft_keys_value (out, weft_accelerate.schema, "num_processes");
  gint64 n = gpus ? g_ascii_strtoll (gpus->value, NULL, 10) : 0;
  out->gpus = CLAMP (n, 0, 1 << 24);
  return TRUE;
}

static void
add_int (weft_keys_read *keys, const char *key, gint64 value)
{
  g_autofree char *text = g_strdup_printf ("%" G_GINT64_FORMAT, value);
  weft_keys_add (keys, weft_accelerate.schema, "", key, text, "export", NULL);
}

/* Adds the keys for the number of processes and machines, and for the sizes of the mesh, whose
 * product must be the number of processes. */
static void
add_sizes (weft_keys_read *keys, const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  gint64 replicas = weft_job_dp (job);
  unsigned per_node = (unsigned) MIN ((int64_t) job->cluster.n_gpus, job->cluster.f.node_gpus);

  weft_keys_add (keys, weft_accelerate.schema, "", "compute_environment", "LOCAL_MACHINE", "export",
                 NULL);
  add_int (keys, "num_processes", job->cluster.n_gpus);
  add_int (keys, "num_machines", job->cluster.n_gpus / MAX (per_node, 1));
  if (k->distributed_config == WEFT_FSDP2 &&
      (k->tensor_model_parallel_size > 1 || k->context_parallel_size > 1 ||
       k->dp_replicate_size > 1))
    add_int (keys, "parallelism_config.parallelism_config_dp_shard_size",
             replicas / MAX (k->dp_replicate_size, 1));
  if (k->distributed_config == WEFT_MEGATRON_DDP)
    add_int (keys, "megatron_lm_config.megatron_lm_num_micro_batches",
             job->train.global_batch_size / MAX (job->train.micro_batch_size * replicas, 1));
}

static char *
accelerate_write (const struct weft_target *target, const weft_keys_read *keys,
                  const struct weft_job *job)
{
  g_autoptr (weft_keys_read) all = weft_keys_read_new ();

  for (unsigned i = 0; i < keys->given->len; i++) {
    const struct weft_given *key = &g_array_index (keys->given, struct weft_given, i);
    weft_keys_add (all, target->schema, "", target->schema->key[key->key].name, key->value,
                   "export", NULL);
  }
  add_sizes (all, job);
  return weft_tree_yaml (target, all);
}

static char *
accelerate_launch (const struct weft_job *job)
{
  (void) job;
  return g_strdup ("accelerate launch --config_file FILE.yaml PROGRAM.py");
}

/* ---------------------------------------------------------------------------------- tables */

static const struct weft_key keys[] = {
#define ONE FALSE
#define MANY TRUE
#define ARG(name, kind, many, def, dest, choices)                                                  \
  { name, WEFT_KEY_##kind, many, def, dest, choices },
#include "interop/schemas/accelerate.def"
#undef ONE
#undef MANY
};
static const struct weft_schema schema = { keys, G_N_ELEMENTS (keys), FALSE };

static const struct weft_form mixed = { mixed_in, mixed_out }, stage = { stage_in, stage_out };

static const struct weft_key_row rows[] = {
#define SETS(k, value, pairs, cond) { .key = k, .theirs = value, .sets = pairs, .when = cond },
#define SETS_NEEDS(k, value, pairs, others, other, why)                                            \
  { .key = k,                                                                                      \
    .theirs = value,                                                                               \
    .sets = pairs,                                                                                 \
    .when = "",                                                                                    \
    .also = others,                                                                                \
    .with = other,                                                                                 \
    .without_it = why },
#define FORM(k, pairs, id) { .key = k, .theirs = "*", .sets = pairs, .when = "", .form = &id },
#define NEEDS(setting) { .sets = #setting "=*", .when = "", .compute = needed },
#define ASSUMES(pairs, cond) { .sets = pairs, .when = cond },
#define ELSEWHERE(setting, cond, why)                                                              \
  { .sets = #setting "=*", .when = cond, .doc = why, .elsewhere = TRUE },
#define QUIET(k, why) { .key = k, .theirs = "*", .sets = "", .when = "", .doc = why },
#define REFUSES(cond, why) { .sets = "", .when = cond, .doc = why },
#include "interop/accelerate.def"
};

const struct weft_target weft_accelerate = {
  .name = "accelerate",
  .release = "accelerate v1.12.0",
  .doc = "configuration in YAML",
  .stack = "weft",
  .prefix = "",
  .model = "the training program makes the model",
  .schema = &schema,
  .rows = rows,
  .n_rows = G_N_ELEMENTS (rows),
  .read = accelerate_read,
  .write = accelerate_write,
  .launch = accelerate_launch,
};
