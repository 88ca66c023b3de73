#include "interop/deepspeed.h"
#include "interop/tree.h"
#include "interop/yaml.h"
#include "core/base/error.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Returns the value of a key as a number; 0: the key is not given. */
static gint64
int_of_key (const weft_reading *reading, const char *key)
{
  const char *text = weft_reading_key (reading, key);
  return text ? g_ascii_strtoll (text, NULL, 10) : 0;
}

static gboolean
is_true (const weft_reading *reading, const char *setting)
{
  return g_strcmp0 (weft_reading_text (reading, setting), "true") == 0;
}

static gboolean
is_precision (const weft_reading *reading, const char *precision)
{
  return g_strcmp0 (weft_reading_text (reading, "precision"), precision) == 0;
}

/* ----------------------------------------------------------------------------------- batch */

/* Computes the size of a microbatch from the two other keys of the batch, as DeepSpeed does
 * (_set_batch_related_parameters). */
static char *
weft_deepspeed_micro (const weft_reading *reading)
{
  gint64 batch = int_of_key (reading, "train_batch_size");
  gint64 steps = MAX (int_of_key (reading, "gradient_accumulation_steps"), 1);
  gint64 replicas = weft_reading_replicas (reading);

  return batch > 0 && replicas > 0 ? weft_texts_int (batch / replicas / steps) : NULL;
}

static char *
weft_deepspeed_global (const weft_reading *reading)
{
  gint64 micro = int_of_key (reading, "train_micro_batch_size_per_gpu");
  gint64 steps = MAX (int_of_key (reading, "gradient_accumulation_steps"), 1);
  gint64 replicas = weft_reading_replicas (reading);

  return micro > 0 && replicas > 0 ? weft_texts_int (micro * steps * replicas) : NULL;
}

/* Checks that the three keys of the batch agree, as DeepSpeed does (_batch_assertion). */
static gboolean
accumulation_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 steps = g_ascii_strtoll (value, NULL, 10), replicas = weft_reading_replicas (reading);
  gint64 batch = int_of_key (reading, "train_batch_size");
  gint64 micro = int_of_key (reading, "train_micro_batch_size_per_gpu");

  if (batch > 0 && micro > 0 && replicas > 0 && batch != micro * steps * replicas)
    return weft_bad_input (error,
                           "train_batch_size = %" G_GINT64_FORMAT " is not %" G_GINT64_FORMAT
                           " sequences in %s microbatches on %" G_GINT64_FORMAT " replicas",
                           batch, micro, value, replicas);
  return TRUE;
}

static char *
accumulation_out (const weft_reading *reading)
{
  gint64 each = weft_reading_int (reading, "micro_batch_size") * weft_reading_replicas (reading);
  gint64 batch = weft_reading_int (reading, "global_batch_size");

  return each > 0 && batch % each == 0 ? weft_texts_int (batch / each) : NULL;
}

/* ------------------------------------------------------------------------------- precision */

static gboolean
bf16_in (weft_reading *reading, const char *value, GError **error)
{
  if (strcmp (value, "true") != 0)
    return TRUE;
  if (int_of_key (reading, "zero_optimization.stage") < 1)
    return weft_bad_input (error, "without ZeRO, DeepSpeed keeps no fp32 master of bf16 weights, "
                                  "which Weft always has; wanted zero_optimization.stage = 1, 2 "
                                  "or 3");
  weft_reading_set (reading, "precision", "bf16");
  return TRUE;
}

static char *
bf16_out (const weft_reading *reading)
{
  const char *level = weft_reading_text (reading, "data_parallel_sharding_strategy");
  gboolean sharded =
      is_true (reading, "use_distributed_optimizer") || g_str_has_prefix (level, "optim_grads");
  return sharded && is_precision (reading, "bf16") ? g_strdup ("true") : NULL;
}

/* Checks that gradients are added and communicated in the same data type, because Weft has one type
 * for both. */
static gboolean
types_agree (weft_reading *reading, const char *value, const char *other, GError **error)
{
  const char *theirs = weft_reading_key (reading, other);
  const char *precision = weft_reading_text (reading, "precision");

  if (!theirs)
    theirs = precision;
  if (strcmp (value, theirs) != 0)
    return weft_bad_input (error,
                           "found %s, with %s = %s; Weft adds up and communicates gradients "
                           "in one type, so both must be equal",
                           value, other, theirs);
  if (strcmp (value, "fp32") != 0 && strcmp (value, precision) != 0)
    return weft_bad_input (error, "found %s, wanted fp32 or %s, the type of the weights", value,
                           precision);
  return TRUE;
}

static gboolean
communicated_in (weft_reading *reading, const char *value, GError **error)
{
  if (!types_agree (reading, value, "data_types.grad_accum_dtype", error))
    return FALSE;
  if (strcmp (value, "fp32") == 0 && !is_precision (reading, "fp32"))
    weft_reading_set (reading, "grad_reduce_in_fp32", "true");
  return TRUE;
}

static char *
communicated_out (const weft_reading *reading)
{
  return is_true (reading, "grad_reduce_in_fp32") && !is_precision (reading, "fp32")
             ? g_strdup ("fp32")
             : NULL;
}

static gboolean
accumulated_in (weft_reading *reading, const char *value, GError **error)
{
  return types_agree (reading, value, "communication_data_type", error);
}

static char *
accumulated_out (const weft_reading *reading)
{
  return communicated_out (reading);
}

/* Reads the loss scale; 0 stands for a dynamic loss scale. */
static gboolean
loss_scale_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  weft_reading_set (reading, "loss_scale", g_ascii_strtod (value, NULL) > 0 ? value : "none");
  return TRUE;
}

static char *
loss_scale_out (const weft_reading *reading)
{
  return g_strdup (weft_reading_text (reading, "loss_scale"));
}

static gboolean
scale_power_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 power = g_ascii_strtoll (value, NULL, 10);
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  if (power < 0 || power > 99)
    return weft_bad_input (error, "found %s, wanted 0 to 99", value);
  weft_reading_set (reading, "initial_loss_scale",
                    g_ascii_dtostr (text, sizeof text, ldexp (1, (int) power)));
  return TRUE;
}

static char *
scale_power_out (const weft_reading *reading)
{
  int power;
  double scale = g_ascii_strtod (weft_reading_text (reading, "initial_loss_scale"), NULL);

  return frexp (scale, &power) == 0.5 && power >= 1 ? weft_texts_int (power - 1) : NULL;
}

/* ------------------------------------------------------------------------------------ ZeRO */

/* With pipeline stages, DeepSpeed does not overlap the reduction of gradients. */
static gboolean
overlap_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 stage = int_of_key (reading, "zero_optimization.stage");
  gboolean staged = weft_reading_int (reading, "pipeline_model_parallel_size") > 1;

  if (stage >= 2 && strcmp (value, "true") != 0)
    return weft_bad_input (error, "found false, wanted true: Weft reduces sharded gradients during "
                                  "the backward pass");
  weft_reading_set (reading, "overlap_grad_reduce", staged ? "false" : value);
  return TRUE;
}

static char *
overlap_out (const weft_reading *reading)
{
  return g_strdup (weft_reading_text (reading, "overlap_grad_reduce"));
}

/* Sets suggested_communication_unit_size to twice the value, because in Weft half of it limits the
 * prefetch. */
static gboolean
prefetch_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 elements = g_ascii_strtoll (value, NULL, 10);

  if (elements < 1 || elements > (gint64) 1e14)
    return weft_bad_input (error, "found %s, wanted 1 to 1e14", value);
  weft_reading_set_int (reading, "suggested_communication_unit_size", 2 * elements);
  return TRUE;
}

static char *
prefetch_out (const weft_reading *reading)
{
  const char *text = weft_reading_text (reading, "suggested_communication_unit_size");
  gint64 elements = (gint64) g_ascii_strtod (text, NULL);

  return elements > 0 && elements % 2 == 0 ? weft_texts_int (elements / 2) : NULL;
}

/* -------------------------------------------------------------------------------- pipeline */

static gboolean
interval_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 layers = g_ascii_strtoll (value, NULL, 10);

  (void) error;
  if (layers < 1)
    return TRUE;
  weft_reading_set (reading, "recompute_granularity", "full");
  weft_reading_set (reading, "recompute_method", "uniform");
  weft_reading_set_int (reading, "recompute_num_layers", layers);
  return TRUE;
}

static char *
interval_out (const weft_reading *reading)
{
  gint64 layers = weft_reading_int (reading, "recompute_num_layers");
  gboolean full = strcmp (weft_reading_text (reading, "recompute_granularity"), "full") == 0 &&
                  strcmp (weft_reading_text (reading, "recompute_method"), "uniform") == 0;

  return full && layers > 0 ? weft_texts_int (layers) : NULL;
}

/* ------------------------------------------------------------------------ reading, writing */

/* Removes keys with the value "auto", which the training program replaces. */
static void
drop_auto (GArray *values)
{
  for (unsigned i = values->len; i--;)
    if (strcmp (g_array_index (values, struct weft_yaml_value, i).text, "auto") == 0)
      g_array_remove_index (values, i);
}

static gboolean
deepspeed_read (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GArray) values = weft_json_values (text, name, error);

  if (!values)
    return FALSE;
  drop_auto (values);
  return weft_tree_keys (values, name, &weft_deepspeed, NULL, out, error);
}

static char *
deepspeed_write (const struct weft_target *target, const weft_keys_read *keys,
                 const struct weft_job *job)
{
  (void) job;
  return weft_tree_json (target, keys);
}

/* Arguments have the names of Megatron-DeepSpeed's training program. */
static char *
deepspeed_launch (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  unsigned per_node = (unsigned) MIN ((int64_t) job->cluster.n_gpus, job->cluster.f.node_gpus);
  GString *out = g_string_new (NULL);

  g_string_append_printf (out, "deepspeed --num_nodes %u --num_gpus %u PROGRAM.py",
                          job->cluster.n_gpus / MAX (per_node, 1), per_node);
  if (k->tensor_model_parallel_size > 1)
    g_string_append_printf (out, " --tensor-model-parallel-size %" PRId64,
                            k->tensor_model_parallel_size);
  if (k->pipeline_model_parallel_size > 1)
    g_string_append_printf (out, " --pipeline-model-parallel-size %" PRId64,
                            k->pipeline_model_parallel_size);
  g_string_append (out, " --deepspeed_config FILE.json");
  return g_string_free (out, FALSE);
}

/* ---------------------------------------------------------------------------------- tables */

static const struct weft_key keys[] = {
#define ONE FALSE
#define MANY TRUE
#define ARG(name, kind, many, def, dest, choices)                                                  \
  { name, WEFT_KEY_##kind, many, def, dest, choices },
#include "interop/schemas/deepspeed.def"
#undef ONE
#undef MANY
};
static const struct weft_schema schema = { keys, G_N_ELEMENTS (keys), FALSE };

#define FORM_OF(id) static const struct weft_form id = { id##_in, id##_out };
FORM_OF (accumulation)
FORM_OF (bf16)
FORM_OF (communicated)
FORM_OF (accumulated)
FORM_OF (loss_scale)
FORM_OF (scale_power)
FORM_OF (overlap)
FORM_OF (prefetch)
FORM_OF (interval)
#undef FORM_OF

static const struct weft_key_row rows[] = {
#define SETS(k, value, pairs, cond) { .key = k, .theirs = value, .sets = pairs, .when = cond },
#define SETS_ALSO(k, value, pairs, others)                                                         \
  { .key = k, .theirs = value, .sets = pairs, .when = "", .also = others },
#define SETS_NEEDS(k, value, pairs, other, why)                                                    \
  { .key = k, .theirs = value, .sets = pairs, .when = "", .with = other, .without_it = why },
#define FORM(k, pairs, cond, id)                                                                   \
  { .key = k, .theirs = "*", .sets = pairs, .when = cond, .form = &id },
#define FORM_ALSO(k, pairs, id, others)                                                            \
  { .key = k, .theirs = "*", .sets = pairs, .when = "", .form = &id, .also = others },
#define ASSUMES(pairs, cond) { .sets = pairs, .when = cond },
#define COMPUTES(setting, function) { .sets = #setting "=*", .when = "", .compute = function },
#define ELSEWHERE(setting, cond, why)                                                              \
  { .sets = #setting "=*", .when = cond, .doc = why, .elsewhere = TRUE },
#define QUIET(k, why) { .key = k, .theirs = "*", .sets = "", .when = "", .doc = why },
#define REFUSES(cond, why) { .sets = "", .when = cond, .doc = why },
#include "interop/deepspeed.def"
#include "interop/texts.h"
};

const struct weft_target weft_deepspeed = {
  .name = "deepspeed",
  .release = "DeepSpeed v0.18.3",
  .doc = "configuration in JSON",
  .stack = "deepspeed",
  .prefix = "",
  .model = "the training program makes the model",
  .schema = &schema,
  .rows = rows,
  .n_rows = G_N_ELEMENTS (rows),
  .read = deepspeed_read,
  .write = deepspeed_write,
  .launch = deepspeed_launch,
};
