#include "interop/torchtitan.h"
#include "interop/pipelining.h"
#include "interop/toml.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include <string.h>

static gint64
int_of_key (const weft_reading *reading, const char *key, gint64 absent)
{
  const char *text = weft_reading_key (reading, key);
  return text ? g_ascii_strtoll (text, NULL, 10) : absent;
}

/* ----------------------------------------------------------------------------------- model */

/* Flavors of torchtitan/models/llama3/__init__.py and qwen3/__init__.py that are bundled models of
 * Weft.  torchtitan's Llama 3 scales the rotary frequencies, so it is Llama 3.1
 * (llama3/model/args.py). */
static const struct flavor {
  const char *name, *flavor, *model;
} flavors[] = {
  { "llama3", "8B", "llama3.1-8b" },
  { "llama3", "70B", "llama3.1-70b" },
  { "llama3", "405B", "llama3.1-405b" },
  { "qwen3", "0.6B", "qwen3-0.6b" },
  { "qwen3", "1.7B", "qwen3-1.7b" },
  { "qwen3", "4B", "qwen3-4b" },
  { "qwen3", "8B", "qwen3-8b" },
  { "qwen3", "14B", "qwen3-14b" },
  { "qwen3", "32B", "qwen3-32b" },
  { "qwen3", "30B-A3B", "qwen3-30b-a3b" },
  { "qwen3", "235B-A22B", "qwen3-235b-a22b" },
};

/* Whether a field is a length of sequences, which a flavor does not define. */
static gboolean
is_length (const char *field)
{
  return strcmp (field, "seq_length") == 0 || strcmp (field, "max_position_embeddings") == 0;
}

/* Whether a job must have the same value of this field as the flavor.  Names and lengths of
 * sequences may differ, and rotary scaling has a check of its own. */
static gboolean
is_compared (const struct weft_field *field)
{
  return field->type != WEFT_TYPE_TEXT && !is_length (field->name) &&
         !g_str_has_prefix (field->name, "rotary_scaling");
}

/* A sentence that names the flavors. Always returns FALSE. */
static gboolean
unknown_flavor (const char *name, const char *flavor, GError **error)
{
  g_autoptr (GString) known = g_string_new (NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (flavors); i++)
    g_string_append_printf (known, "%s%s %s", i ? ", " : "", flavors[i].name, flavors[i].flavor);
  return weft_bad_input (error, "%s %s is none of the models that Weft knows: %s", name, flavor,
                         known->str);
}

static gboolean
flavor_in (weft_reading *reading, const char *value, GError **error)
{
  const char *name = weft_reading_key (reading, "model.name");
  union weft_model model;

  for (unsigned i = 0; i < G_N_ELEMENTS (flavors); i++) {
    if (strcmp (flavors[i].flavor, value) != 0 ||
        strcmp (flavors[i].name, name ? name : "llama3") != 0)
      continue;
    if (!weft_model_load (flavors[i].model, &model, NULL, error))
      return FALSE;
    for (unsigned f = 0; f < weft_model_table.n; f++) {
      const struct weft_field *field = &weft_model_table.field[f];
      g_autofree char *text = weft_field_print (field, model.at[f]);
      if (!is_length (field->name))
        weft_reading_set (reading, field->name, text);
    }
    return TRUE;
  }
  return unknown_flavor (name ? name : "llama3", value, error);
}

/* Whether the job has the model of a flavor. */
static gboolean
has_flavor (const weft_reading *reading, const struct flavor *flavor)
{
  union weft_model model;

  if (!weft_model_load (flavor->model, &model, NULL, NULL))
    return FALSE;
  for (unsigned f = 0; f < weft_model_table.n; f++) {
    const struct weft_field *field = &weft_model_table.field[f];
    g_autofree char *text = weft_field_print (field, model.at[f]);
    if (is_compared (field) && g_strcmp0 (text, weft_reading_text (reading, field->name)) != 0)
      return FALSE;
  }
  return TRUE;
}

static const struct flavor *
flavor_of (const weft_reading *reading)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (flavors); i++)
    if (has_flavor (reading, &flavors[i]))
      return &flavors[i];
  return NULL;
}

static char *
flavor_out (const weft_reading *reading)
{
  const struct flavor *flavor = flavor_of (reading);
  return flavor ? g_strdup (flavor->flavor) : NULL;
}

/* The function that reads the key model.flavor also reads model.name. */
static gboolean
name_in (weft_reading *reading, const char *value, GError **error)
{
  return weft_reading_key (reading, "model.flavor") || unknown_flavor (value, "debugmodel", error);
}

static char *
name_out (const weft_reading *reading)
{
  const struct flavor *flavor = flavor_of (reading);
  return flavor ? g_strdup (flavor->name) : NULL;
}

/* Returns NULL: without a flavor, torchtitan trains its debugmodel, which Weft does not have. */
static char *
weft_titan_model (const weft_reading *reading)
{
  (void) reading;
  return NULL;
}

/* The largest position is the sequence length of the training (update_from_config in
 * llama3/model/args.py). */
static char *
weft_titan_positions (const weft_reading *reading)
{
  return g_strdup (weft_reading_text (reading, "seq_length"));
}

/* ----------------------------------------------------------------------------------- batch */

static gboolean
local_in (weft_reading *reading, const char *value, GError **error)
{
  (void) error;
  weft_reading_set (reading, "micro_batch_size", value);
  return TRUE;
}

static char *
local_out (const weft_reading *reading)
{
  return weft_texts_int (weft_reading_int (reading, "micro_batch_size"));
}

static gboolean
pipeline_batch_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 replicas = weft_reading_replicas (reading);

  if (replicas < 1)
    return weft_bad_input (error, "with pipeline stages the batch depends on the number of GPUs; "
                                  "give --gpus or --nodes");
  weft_reading_set_int (reading, "global_batch_size", g_ascii_strtoll (value, NULL, 10) * replicas);
  return TRUE;
}

static char *
pipeline_batch_out (const weft_reading *reading)
{
  gint64 replicas = weft_reading_replicas (reading),
         global = weft_reading_int (reading, "global_batch_size");
  return replicas > 0 && global % replicas == 0 ? weft_texts_int (global / replicas) : NULL;
}

/* The global batch by default: a local batch of 8 sequences on every replica. */
static char *
weft_titan_global (const weft_reading *reading)
{
  gint64 replicas = weft_reading_replicas (reading);
  return replicas > 0 ? weft_texts_int (8 * replicas) : NULL;
}

/* Reads the global batch; -1: one local batch of every replica. With pipeline stages, torchtitan
 * runs the pipeline once for each local batch. Weft runs it once per step, so several are
 * refused. */
static gboolean
global_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 global = g_ascii_strtoll (value, NULL, 10);
  gint64 step =
      int_of_key (reading, "training.local_batch_size", 8) * weft_reading_replicas (reading);

  if (global < 0)
    return TRUE;
  if (weft_reading_int (reading, "pipeline_model_parallel_size") > 1 && step > 0 && global != step)
    return weft_bad_input (
        error,
        "%s is no batch of one pass through the pipeline, which has %" G_GINT64_FORMAT
        " sequences; Weft has no passes one after the other",
        value, step);
  weft_reading_set_int (reading, "global_batch_size", global);
  return TRUE;
}

static char *
global_out (const weft_reading *reading)
{
  if (weft_reading_int (reading, "pipeline_model_parallel_size") > 1)
    return NULL;
  return weft_texts_int (weft_reading_int (reading, "global_batch_size"));
}

/* Refuses several replicas with shard degree 1, which torchtitan runs as DDP under autocast. */
static gboolean
replicate_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 n = g_ascii_strtoll (value, NULL, 10);

  if (n > 1 && int_of_key (reading, "parallelism.data_parallel_shard_degree", -1) == 1)
    return weft_bad_input (error, "replicas without shards are DDP under autocast, which Weft does "
                                  "not have; wanted data_parallel_shard_degree = -1");
  weft_reading_set (reading, "dp_replicate_size", value);
  return TRUE;
}

static char *
replicate_out (const weft_reading *reading)
{
  return g_strdup (weft_reading_text (reading, "dp_replicate_size"));
}

/* ------------------------------------------------------------------------------- recompute */

/* Number of recomputed layers of a chunk. torchtitan recomputes every n-th layer; Weft recomputes
 * the same number, from the first layer on. */
static gint64
recomputed (const weft_reading *reading, gint64 every)
{
  gint64 chunks = MAX (weft_reading_int (reading, "virtual_pipeline_model_parallel_size"), 1);
  gint64 parts = chunks * MAX (weft_reading_int (reading, "pipeline_model_parallel_size"), 1);
  return every > 0 ? weft_reading_int (reading, "num_layers") / parts / every : 0;
}

static const char *
mode_of (const weft_reading *reading)
{
  const char *mode = weft_reading_key (reading, "activation_checkpoint.mode");
  return mode ? mode : "selective";
}

static char *
weft_titan_granularity (const weft_reading *reading)
{
  return g_strdup (strcmp (mode_of (reading), "none") == 0 ? "none" : "full");
}

static char *
weft_titan_method (const weft_reading *reading)
{
  const char *mode = mode_of (reading);
  return g_strdup (strcmp (mode, "none") == 0   ? "none"
                   : strcmp (mode, "full") == 0 ? "uniform"
                                                : "block");
}

static char *
weft_titan_recomputed (const weft_reading *reading)
{
  const char *mode = mode_of (reading);

  if (strcmp (mode, "selective") != 0)
    return g_strdup (strcmp (mode, "full") == 0 ? "1" : "none");
  return weft_texts_int (MAX (
      recomputed (reading, int_of_key (reading, "activation_checkpoint.selective_ac_option", 2)),
      1));
}

static gboolean
checkpointing_in (weft_reading *reading, const char *value, GError **error)
{
  (void) reading; /* COMPUTES rows of torchtitan.def compute the three settings */
  if (strcmp (value, "memory_budget") == 0)
    return weft_bad_input (error, "Weft has no recompute by memory budget; wanted none, full or "
                                  "selective with a number of layers");
  return TRUE;
}

static char *
checkpointing_out (const weft_reading *reading)
{
  const char *granularity = weft_reading_text (reading, "recompute_granularity");

  if (strcmp (granularity, "none") == 0)
    return g_strdup ("none");
  if (strcmp (granularity, "full") != 0)
    return NULL;
  return g_strdup (strcmp (weft_reading_text (reading, "recompute_method"), "uniform") == 0
                       ? "full"
                       : "selective");
}

static gboolean
option_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 every;

  if (strcmp (mode_of (reading), "selective") != 0 ||
      g_ascii_string_to_signed (value, 10, 1, 4096, &every, NULL))
    return TRUE;
  return weft_bad_input (error,
                         "found \"%s\", wanted a number: every n-th layer; Weft does not "
                         "choose activations by ops",
                         value);
}

static char *
option_out (const weft_reading *reading)
{
  gint64 wanted = weft_reading_int (reading, "recompute_num_layers");

  if (strcmp (weft_reading_text (reading, "recompute_method"), "block") != 0)
    return NULL;
  for (gint64 every = 1; every <= 4096; every++)
    if (recomputed (reading, every) == wanted)
      return weft_texts_int (every);
  return NULL;
}

/* ------------------------------------------------------------------------ reading, writing */

/* The number of GPUs as the product of the degrees of parallelism; 0: a degree is not known. */
static gint64
gpus_of (const weft_keys_read *keys)
{
  static const char *const degrees[] = {
    "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree",
    "parallelism.tensor_parallel_degree",     "parallelism.pipeline_parallel_degree",
    "parallelism.context_parallel_degree",
  };
  gint64 gpus = 1;

  for (unsigned i = 0; i < G_N_ELEMENTS (degrees); i++) {
    const struct weft_given *given = weft_keys_value (keys, weft_torchtitan.schema, degrees[i]);
    gint64 degree = given ? g_ascii_strtoll (given->value, NULL, 10) : i == 0 ? -1 : 1;
    if (degree < 1 || degree > 1 << 24)
      return 0;
    gpus = MIN (gpus * degree, (gint64) 1 << 24);
  }
  return gpus;
}

static gboolean
torchtitan_read (const char *text, const char *name, weft_keys_read *out, GError **error)
{
  g_autoptr (GArray) values = weft_toml_values (text, name, error);

  if (!values)
    return FALSE;
  for (unsigned i = 0; i < values->len; i++) {
    const struct weft_toml_value *value = &g_array_index (values, struct weft_toml_value, i);
    g_autofree char *where = g_strdup_printf ("%s:%u", name, value->line);
    if (!weft_keys_add (out, weft_torchtitan.schema, "", value->path,
                        *value->text ? value->text : "none", where, error))
      return FALSE;
  }
  out->gpus = gpus_of (out);
  return TRUE;
}

/* Appends the value in TOML: numbers and true or false as they are, texts in quotes. */
static void
append_value (GString *out, const struct weft_key *key, const char *value)
{
  gboolean text = key->kind == WEFT_KEY_TEXT;

  g_string_append_printf (out, text ? "\"%s\"\n" : "%s\n", value);
}

static char *
torchtitan_write (const struct weft_target *target, const weft_keys_read *keys,
                  const struct weft_job *job)
{
  GString *out = g_string_new (NULL);
  g_autofree char *table = g_strdup ("");

  g_string_append_printf (out, "# One strategy as a job configuration of %s, on %u GPUs.\n",
                          target->release, job->cluster.n_gpus);
  for (unsigned k = 0; k < target->schema->n; k++) {
    const struct weft_given *given = weft_keys_given (keys, k);
    const char *name = target->schema->key[k].name, *dot = strrchr (name, '.');
    if (!given)
      continue;
    g_autofree char *here = g_strndup (name, dot - name);
    if (strcmp (here, table) != 0)
      g_string_append_printf (out, "\n[%s]\n", here);
    g_free (table);
    table = g_steal_pointer (&here);
    g_string_append_printf (out, "%s = ", dot + 1);
    append_value (out, &target->schema->key[k], given->value);
  }
  return g_string_free (out, FALSE);
}

/* ---------------------------------------------------------------------------------- tables */

static const struct weft_key keys[] = {
#define ONE FALSE
#define MANY TRUE
#define ARG(name, kind, many, def, dest, choices)                                                  \
  { name, WEFT_KEY_##kind, many, def, dest, choices },
#include "interop/schemas/torchtitan.def"
#undef ONE
#undef MANY
};
static const struct weft_schema schema = { keys, G_N_ELEMENTS (keys), FALSE };

#define FORM_OF(id) static const struct weft_form id = { id##_in, id##_out };
FORM_OF (flavor)
FORM_OF (name)
FORM_OF (local)
FORM_OF (pipeline_batch)
FORM_OF (global)
FORM_OF (replicate)
FORM_OF (checkpointing)
FORM_OF (option)
#undef FORM_OF

static const struct weft_key_row rows[] = {
#define SETS(k, value, pairs, cond) { .key = k, .theirs = value, .sets = pairs, .when = cond },
#define FORM(k, pairs, cond, id)                                                                   \
  { .key = k, .theirs = "*", .sets = pairs, .when = cond, .form = &id },
#define ASSUMES(pairs, cond) { .sets = pairs, .when = cond },
#define COMPUTES(setting, cond, function)                                                          \
  { .sets = #setting "=*", .when = cond, .compute = function },
#define QUIET(k, why) { .key = k, .theirs = "*", .sets = "", .when = "", .doc = why },
#define REFUSES(cond, why) { .sets = "", .when = cond, .doc = why },
#include "interop/torchtitan.def"
#include "interop/texts.h"
};

const struct weft_target weft_torchtitan = {
  .name = "torchtitan",
  .release = "torchtitan v0.2.2",
  .doc = "job configuration in TOML",
  .stack = "torchtitan",
  .prefix = "",
  .schema = &schema,
  .rows = rows,
  .n_rows = G_N_ELEMENTS (rows),
  .read = torchtitan_read,
  .write = torchtitan_write,
};
