#include "interop/automodel.h"
#include "interop/pipelining.h"
#include "interop/tree.h"
#include "interop/yaml.h"
#include "core/base/error.h"
#include <string.h>

static gboolean
has_stages (const weft_reading *reading)
{
  return weft_reading_int (reading, "pipeline_model_parallel_size") > 1;
}

/* ----------------------------------------------------------------------------------- batch */

/* With pipeline stages, Automodel runs the pipeline once for each local batch. Weft runs it once
 * per step, so several local batches are refused. */
static gboolean
local_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 local = g_ascii_strtoll (value, NULL, 10), replicas = weft_reading_replicas (reading);
  gint64 global = weft_reading_int (reading, "global_batch_size");

  if (!has_stages (reading))
    weft_reading_set (reading, "micro_batch_size", value);
  else if (replicas > 0 && global > 0 && global != local * replicas)
    return weft_bad_input (error,
                           "%" G_GINT64_FORMAT " sequences are no batch of one pass through the "
                           "pipeline, which has %" G_GINT64_FORMAT
                           "; Weft has no passes one after the other",
                           global, local * replicas);
  return TRUE;
}

static char *
local_out (const weft_reading *reading)
{
  gint64 replicas = weft_reading_replicas (reading);
  gint64 global = weft_reading_int (reading, "global_batch_size");

  if (!has_stages (reading))
    return weft_texts_int (weft_reading_int (reading, "micro_batch_size"));
  return replicas > 0 && global % replicas == 0 ? weft_texts_int (global / replicas) : NULL;
}

static gboolean
microbatch_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  if (has_stages (reading))
    weft_reading_set (reading, "micro_batch_size", value);
  return TRUE;
}

static char *
microbatch_out (const weft_reading *reading)
{
  return has_stages (reading) ? weft_texts_int (weft_reading_int (reading, "micro_batch_size"))
                              : NULL;
}

/* Refuses 0: Automodel always clips, so a limit of 0 would make every gradient 0. */
static gboolean
clip_in (weft_reading *reading, const char *value, GError **error)
{
  if (g_ascii_strtod (value, NULL) <= 0)
    return weft_bad_input (error, "found %s, wanted a limit above 0", value);
  weft_reading_set (reading, "clip_grad", value);
  return TRUE;
}

static char *
clip_out (const weft_reading *reading)
{
  const char *limit = weft_reading_text (reading, "clip_grad");
  return g_ascii_strtod (limit, NULL) > 0 ? g_strdup (limit) : NULL;
}

/* ------------------------------------------------------------------------------- precision */

/* Names of data types in PyTorch and in Weft. */
static const struct dtype {
  const char *theirs, *ours;
} dtypes[] = {
  { "bfloat16", "bf16" }, { "float32", "fp32" }, { "float", "fp32" },
  { "float16", "fp16" },  { "half", "fp16" },
};

static const char *
dtype_of (const char *theirs)
{
  const char *name = g_str_has_prefix (theirs, "torch.") ? theirs + strlen ("torch.") : theirs;

  for (unsigned i = 0; i < G_N_ELEMENTS (dtypes); i++)
    if (strcmp (dtypes[i].theirs, name) == 0)
      return dtypes[i].ours;
  return name;
}

static const char *
dtype_there (const char *ours)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (dtypes); i++)
    if (strcmp (dtypes[i].ours, ours) == 0)
      return dtypes[i].theirs;
  return ours;
}

static gboolean
param_in (weft_reading *reading, const char *value, GError **error)
{
  if (strcmp (value, "bf16") != 0 && strcmp (value, "fp32") != 0)
    return weft_bad_input (error, "found %s, wanted bfloat16 or float32", value);
  weft_reading_set (reading, "precision", value);
  return TRUE;
}

/* The policy has only bf16 and fp32. Precision fp8 is refused elsewhere, under its own name. */
static char *
param_out (const weft_reading *reading)
{
  gboolean fsdp2 = strcmp (weft_reading_text (reading, "distributed_config"), "fsdp2") == 0;
  gboolean fp32 = strcmp (weft_reading_text (reading, "precision"), "fp32") == 0;

  return fsdp2 ? g_strdup (fp32 ? "fp32" : "bf16") : NULL;
}

/* --------------------------------------------------------------------------------- reading */

static gboolean
is_dtype (const char *key)
{
  return g_str_has_suffix (key, "dtype");
}

static void
name_dtypes (GArray *values)
{
  for (unsigned i = 0; i < values->len; i++) {
    struct weft_yaml_value *value = &g_array_index (values, struct weft_yaml_value, i);
    const char *ours = is_dtype (value->path) ? dtype_of (value->text) : value->text;
    if (ours != value->text) {
      char *text = g_strdup (ours);
      g_free (value->text);
      value->text = text;
    }
  }
}

static const char *
given (const weft_keys_read *keys, const char *key)
{
  const struct weft_given *found = weft_keys_value (keys, weft_automodel.schema, key);
  return found ? found->value : NULL;
}

/* Whether fp32 weights exist, as in Weft's FSDP2, which stores weights in fp32. In Automodel, FSDP2
 * with weights in bf16 has no fp32 copy unless the optimizer makes one. */
static gboolean
keeps_fp32 (const weft_keys_read *keys)
{
  const char *strategy = given (keys, "distributed.strategy");

  return (strategy && strcmp (strategy, "fsdp2") != 0) ||
         g_strcmp0 (given (keys, "model.torch_dtype"), "fp32") == 0 ||
         g_strcmp0 (given (keys, "optimizer.master_weights"), "true") == 0;
}

/* Whether a mixed precision policy is given without the data type of the computation. */
static gboolean
lacks_param (const weft_keys_read *keys)
{
  return !given (keys, "distributed.mp_policy.param_dtype") &&
         (given (keys, "distributed.mp_policy.reduce_dtype") ||
          given (keys, "distributed.mp_policy.output_dtype") ||
          given (keys, "distributed.mp_policy._target_"));
}

static gboolean
automodel_read (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GArray) values = weft_yaml_values (text, name, error);

  if (!values)
    return FALSE;
  name_dtypes (values);
  if (!weft_tree_keys (values, name, &weft_automodel, NULL, out, error))
    return FALSE;
  if (lacks_param (out))
    return weft_bad_input (error,
                           "%s: distributed.mp_policy has no param_dtype; wanted bfloat16 or "
                           "float32",
                           name);
  if (!keeps_fp32 (out))
    g_ptr_array_add (out->unknown,
                     g_strdup_printf ("%s: weights are stored in bf16, without a copy in fp32, "
                                      "which Weft always has; wanted model.torch_dtype: float32, "
                                      "or optimizer.master_weights: true",
                                      name));
  return TRUE;
}

/* --------------------------------------------------------------------------------- writing */

/* Returns the name of the model at Hugging Face, if the source of the model names it, else the name
 * of the model in Weft. The caller frees it. */
static char *
model_name (const struct weft_job *job)
{
  static const char begin[] = "Hugging Face ";
  const char *source = g_quark_to_string ((GQuark) job->model.source);
  const char *name = g_quark_to_string ((GQuark) job->model.name);

  if (source && g_str_has_prefix (source, begin))
    return g_strndup (source + strlen (begin), strcspn (source + strlen (begin), " ,;"));
  return g_strdup (name && *name ? name : "MODEL");
}

/* Returns a copy of the keys in which data types have the names of PyTorch. */
static weft_keys_read *
with_dtypes (const struct weft_target *target, const weft_keys_read *keys)
{
  weft_keys_read *out = weft_keys_read_new ();

  for (unsigned i = 0; i < keys->given->len; i++) {
    const struct weft_given *key = &g_array_index (keys->given, struct weft_given, i);
    const char *name = target->schema->key[key->key].name;
    weft_keys_add (out, target->schema, "", name,
                   is_dtype (name) ? dtype_there (key->value) : key->value, "export", NULL);
  }
  return out;
}

static char *
automodel_write (const struct weft_target *target, const weft_keys_read *keys,
                 const struct weft_job *job)
{
  g_autoptr (weft_keys_read) theirs = with_dtypes (target, keys);
  g_autofree char *model = model_name (job);

  g_autofree char *length = weft_texts_int (job->model.seq_length);
  weft_keys_add (theirs, target->schema, "", "dataset.seq_len", length, "export", NULL);
  g_autofree char *tree = weft_tree_yaml (target, theirs);
  return g_strdup_printf (
      "# One strategy as a recipe of %s, on %u GPUs.\n"
      "# The recipe needs the model, its data and the optimizer: sections model, dataset,\n"
      "# dataloader, loss_fn and optimizer. The model of this strategy is %s.\n%s",
      target->release, job->cluster.n_gpus, model, tree);
}

static char *
automodel_launch (const struct weft_job *job)
{
  unsigned per_node = (unsigned) MIN ((int64_t) job->cluster.n_gpus, job->cluster.f.node_gpus);

  return g_strdup_printf ("torchrun --nproc-per-node %u --nnodes %u "
                          "examples/llm_finetune/finetune.py --config FILE.yaml",
                          per_node, job->cluster.n_gpus / MAX (per_node, 1));
}

/* ---------------------------------------------------------------------------------- tables */

static const struct weft_key keys[] = {
#define ONE FALSE
#define MANY TRUE
#define ARG(name, kind, many, def, dest, choices)                                                  \
  { name, WEFT_KEY_##kind, many, def, dest, choices },
#include "interop/schemas/automodel.def"
#undef ONE
#undef MANY
};
static const struct weft_schema schema = { keys, G_N_ELEMENTS (keys), FALSE };

#define FORM_OF(id) static const struct weft_form id = { id##_in, id##_out };
FORM_OF (local)
FORM_OF (microbatch)
FORM_OF (clip)
FORM_OF (param)
#undef FORM_OF

static const struct weft_key_row rows[] = {
#define SETS(k, value, pairs, cond) { .key = k, .theirs = value, .sets = pairs, .when = cond },
#define SETS_ALSO(k, value, pairs, cond, others)                                                   \
  { .key = k, .theirs = value, .sets = pairs, .when = cond, .also = others },
#define FORM(k, pairs, cond, id)                                                                   \
  { .key = k, .theirs = "*", .sets = pairs, .when = cond, .form = &id },
#define FORM_ALSO(k, pairs, id, others)                                                            \
  { .key = k, .theirs = "*", .sets = pairs, .when = "", .form = &id, .also = others },
#define ASSUMES(pairs, cond) { .sets = pairs, .when = cond },
#define ELSEWHERE(setting, why)                                                                    \
  { .sets = #setting "=*", .when = "", .doc = why, .elsewhere = TRUE },
#define QUIET(k, why) { .key = k, .theirs = "*", .sets = "", .when = "", .doc = why },
#define REFUSES(cond, why) { .sets = "", .when = cond, .doc = why },
#include "interop/automodel.def"
#include "interop/texts.h"
};

/* Keys that every export has: weights in fp32, as Weft's FSDP2 stores them, and AdamW. */
static const struct weft_always always[] = { { "model.torch_dtype", "fp32" },
                                             { "optimizer._target_", "torch.optim.AdamW" } };

const struct weft_target weft_automodel = {
  .name = "nemo-automodel",
  .release = "NeMo Automodel v0.4.0",
  .doc = "recipe in YAML",
  .stack = "automodel",
  .prefix = "",
  .model = "the recipe names a model of Hugging Face",
  .schema = &schema,
  .rows = rows,
  .n_rows = G_N_ELEMENTS (rows),
  .always = always,
  .n_always = G_N_ELEMENTS (always),
  .same_names = TRUE,
  .read = automodel_read,
  .write = automodel_write,
  .launch = automodel_launch,
};
