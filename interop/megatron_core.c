#include "interop/megatron_core.h"
#include "interop/megatron.h"
#include "interop/tree.h"
#include "interop/yaml.h"
#include "core/base/error.h"
#include <string.h>

static gboolean
is (const weft_reading *reading, const char *setting, const char *value)
{
  return g_strcmp0 (weft_reading_text (reading, setting), value) == 0;
}

static gboolean
is_true (const weft_reading *reading, const char *key)
{
  return g_strcmp0 (weft_reading_key (reading, key), "true") == 0;
}

/* ------------------------------------------------------------------ settings without a key */

static char *
needed (const weft_reading *reading)
{
  (void) reading;
  return NULL;
}

/* TransformerConfig.__post_init__ */
static char *
weft_megatron_core_ffn (const weft_reading *reading)
{
  return weft_texts_positive (4 * weft_reading_int (reading, "hidden_size"));
}

static char *
weft_megatron_core_kv_channels (const weft_reading *reading)
{
  gint64 heads = weft_reading_int (reading, "num_attention_heads");
  return heads > 0 ? weft_texts_positive (weft_reading_int (reading, "hidden_size") / heads) : NULL;
}

static char *
weft_megatron_core_heads (const weft_reading *reading)
{
  return weft_texts_positive (weft_reading_int (reading, "num_attention_heads"));
}

static char *
weft_megatron_core_expert_ffn (const weft_reading *reading)
{
  gint64 experts = weft_reading_int (reading, "num_moe_experts");
  return experts ? g_strdup (weft_reading_text (reading, "ffn_hidden_size")) : g_strdup ("0");
}

/* The sequence length is max_sequence_length, unless a flag gives another length. */
static gboolean
longest_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  weft_reading_set (reading, "max_position_embeddings", value);
  weft_reading_set (reading, "seq_length", value);
  return TRUE;
}

static char *
longest_out (const weft_reading *reading)
{
  return g_strdup (weft_reading_text (reading, "max_position_embeddings"));
}

/* ------------------------------------------------------------------------------ activation */

/* Fields of TransformerConfig for an activation. GELU in one kernel with its bias is the
 * approximation by tanh. */
static const struct activation {
  const char *ours, *function, *gated, *fused;
} activations[] = {
  { "gelu_erf", "torch.nn.functional.gelu", "false", "false" },
  { "gelu", "torch.nn.functional.gelu", "false", "true" },
  { "swiglu", "torch.nn.functional.silu", "true", "false" },
  { "swiglu", "torch.nn.functional.silu", "true", "true" },
  { "geglu", "torch.nn.functional.gelu", "true", "false" },
  { "squared_relu", "megatron.core.activations.squared_relu", "false", "false" },
};

static char *
weft_megatron_core_activation (const weft_reading *reading)
{
  const char *function = weft_reading_key (reading, "TransformerConfig.activation_func");
  const char *gated = is_true (reading, "TransformerConfig.gated_linear_unit") ? "true" : "false";
  const char *fused =
      is_true (reading, "TransformerConfig.bias_activation_fusion") ? "true" : "false";

  for (unsigned i = 0; i < G_N_ELEMENTS (activations); i++)
    if (strcmp (activations[i].function, function ? function : "torch.nn.functional.gelu") == 0 &&
        strcmp (activations[i].gated, gated) == 0 && strcmp (activations[i].fused, fused) == 0)
      return g_strdup (activations[i].ours);
  return NULL;
}

static const struct activation *
activation_of (const weft_reading *reading)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (activations); i++)
    if (is (reading, "activation", activations[i].ours))
      return &activations[i];
  return NULL;
}

/* Three fields together give the activation. */
static gboolean
function_in (weft_reading *reading, const char *value, GError **error)
{
  g_autofree char *activation = weft_megatron_core_activation (reading);

  if (!activation)
    return weft_bad_input (error,
                           "found %s: with these gated_linear_unit and bias_activation_fusion Weft "
                           "has no such activation",
                           value);
  weft_reading_set (reading, "activation", activation);
  return TRUE;
}

static char *
function_out (const weft_reading *reading)
{
  const struct activation *activation = activation_of (reading);
  return activation ? g_strdup (activation->function) : NULL;
}

static gboolean
gated_in (weft_reading *reading, const char *value, GError **error)
{
  return function_in (reading, value, error);
}

static char *
gated_out (const weft_reading *reading)
{
  const struct activation *activation = activation_of (reading);
  return activation ? g_strdup (activation->gated) : NULL;
}

static gboolean
fused_in (weft_reading *reading, const char *value, GError **error)
{
  return function_in (reading, value, error);
}

static char *
fused_out (const weft_reading *reading)
{
  const struct activation *activation = activation_of (reading);
  return activation ? g_strdup (activation->fused) : NULL;
}

/* ------------------------------------------------------------------------ precision, dropout */

static const struct dtype {
  const char *theirs, *ours;
} dtypes[] = {
  { "torch.bfloat16", "bf16" },
  { "torch.float16", "fp16" },
  { "torch.float32", "fp32" },
};

/* Reads the data type of transfers between stages. In Weft it is "none" if it is the training
 * precision. */
static gboolean
sent_in (weft_reading *reading, const char *value, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (dtypes); i++)
    if (strcmp (dtypes[i].theirs, value) == 0) {
      weft_reading_set (reading, "pipeline_dtype",
                        is (reading, "precision", dtypes[i].ours) ? "none" : dtypes[i].ours);
      return TRUE;
    }
  return weft_bad_input (error, "found %s, wanted torch.bfloat16, torch.float16 or torch.float32",
                         value);
}

static char *
sent_out (const weft_reading *reading)
{
  const char *type = weft_reading_text (reading, "pipeline_dtype");
  const char *ours = strcmp (type, "none") == 0 ? weft_reading_text (reading, "precision") : type;

  for (unsigned i = 0; i < G_N_ELEMENTS (dtypes); i++)
    if (strcmp (dtypes[i].ours, ours) == 0)
      return g_strdup (dtypes[i].theirs);
  return NULL;
}

/* Attention in one kernel computes its dropout in the kernel. */
static gboolean
dropout_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  gboolean unfused = is (reading, "attention_backend", "unfused");
  gboolean drops = g_ascii_strtod (value, NULL) > 0;

  weft_reading_set (reading, "attention_priced_with_dropout", drops && !unfused ? "true" : "false");
  return TRUE;
}

static char *
dropout_out (const weft_reading *reading)
{
  if (is (reading, "attention_backend", "unfused"))
    return NULL;
  return g_strdup (is (reading, "attention_priced_with_dropout", "true") ? "0.1" : "0");
}

/* ------------------------------------------------------------------------ reading, writing */

static gboolean
core_read (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GArray) values = weft_json_values (text, name, error);

  return values && weft_tree_keys (values, name, &weft_megatron_core, NULL, out, error);
}

/* The field that a job without experts may need beside those that its settings give. */
#define IDLE_EXPERTS "TransformerConfig.expert_tensor_parallel_size"

static char *
core_write (const struct weft_target *target, const weft_keys_read *keys,
            const struct weft_job *job)
{
  g_autoptr (weft_keys_read) all = weft_keys_read_new ();
  g_autofree char *size = weft_texts_positive (weft_megatron_idle_experts (job));

  for (guint i = 0; i < keys->given->len; i++) {
    const struct weft_given *given = &g_array_index (keys->given, struct weft_given, i);
    weft_keys_add (all, target->schema, target->prefix, target->schema->key[given->key].name,
                   given->value, given->where, NULL);
  }
  if (size)
    weft_keys_add (all, target->schema, target->prefix, IDLE_EXPERTS, size, "", NULL);
  return weft_tree_json (target, all);
}

/* ---------------------------------------------------------------------------------- tables */

static const struct weft_key keys[] = {
#define ONE FALSE
#define MANY TRUE
#define ARG(name, kind, many, def, dest, choices)                                                  \
  { name, WEFT_KEY_##kind, many, def, dest, choices },
#include "interop/schemas/megatron_core.def"
#undef ONE
#undef MANY
};
static const struct weft_schema schema = { keys, G_N_ELEMENTS (keys), FALSE };

#define FORM_OF(id) static const struct weft_form id = { id##_in, id##_out };
FORM_OF (longest)
FORM_OF (function)
FORM_OF (gated)
FORM_OF (fused)
FORM_OF (sent)
FORM_OF (dropout)
#undef FORM_OF

static const struct weft_key_row rows[] = {
#define SETS(k, value, pairs, cond) { .key = k, .theirs = value, .sets = pairs, .when = cond },
#define SETS_ALSO(k, value, pairs, others)                                                         \
  { .key = k, .theirs = value, .sets = pairs, .when = "", .also = others },
#define SETS_IF(k, value, pairs, cond, others)                                                     \
  { .key = k, .theirs = value, .sets = pairs, .when = cond, .also = others },
#define SETS_WITH(k, value, pairs, other)                                                          \
  { .key = k, .theirs = value, .sets = pairs, .when = "", .with = other },
#define FORM(k, pairs, cond, id)                                                                   \
  { .key = k, .theirs = "*", .sets = pairs, .when = cond, .form = &id },
#define FORM_ALSO(k, pairs, id, others)                                                            \
  { .key = k, .theirs = "*", .sets = pairs, .when = "", .form = &id, .also = others },
#define NEEDS(setting, cond) { .sets = #setting "=*", .when = cond, .compute = needed },
#define ASSUMES(pairs, cond) { .sets = pairs, .when = cond },
#define COMPUTES(setting, function) { .sets = #setting "=*", .when = "", .compute = function },
#define ELSEWHERE(setting, why)                                                                    \
  { .sets = #setting "=*", .when = "", .doc = why, .elsewhere = TRUE },
#define QUIET(k, why) { .key = k, .theirs = "*", .sets = "", .when = "", .doc = why },
#define REFUSES(cond, why) { .sets = "", .when = cond, .doc = why },
#include "interop/megatron_core.def"
#include "interop/texts.h"
};

const struct weft_target weft_megatron_core = {
  .name = "megatron-core",
  .release = "Megatron-Core core_v0.13.0",
  .doc = "fields of its configuration classes in JSON",
  .stack = "megatron-core-0.13",
  .prefix = "",
  .schema = &schema,
  .rows = rows,
  .n_rows = G_N_ELEMENTS (rows),
  .same_names = TRUE,
  .read = core_read,
  .write = core_write,
};
