#include "core/job/job.h"
#include "core/job/aliases.h"
#include "core/job/sections.h"
#include "core/job/stages.h"
#include "core/base/error.h"
#include "core/base/sheet.h"
#include "core/base/suggest.h"
#include <string.h>

static gboolean
is_flag (const struct weft_setting *setting)
{
  return g_str_has_prefix (setting->where, "--");
}

/* Puts the place of the setting (file and line, or flag) before the message. Always returns
 * FALSE. */
static gboolean
blame (const struct weft_setting *setting, GError **error)
{
  if (is_flag (setting))
    g_prefix_error (error, "%s: ", setting->where);
  else
    g_prefix_error (error, "%s: [%s] ", setting->where, setting->section);
  return FALSE;
}

/* The key, of all keys of a section, whose name is nearest to a mistyped one. */
static const char *
suggest_key (const struct weft_section *section, const char *typed)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new ();

  for (size_t i = 0; i < WEFT_N_PART_KEY; i++)
    if (strcmp (weft_part_keys[i].section, section->name) == 0)
      g_ptr_array_add (names, (char *) weft_part_keys[i].key);
  for (unsigned i = 0; i < section->table->n; i++)
    if (section->table->field[i].type != WEFT_TYPE_METHOD)
      g_ptr_array_add (names, (char *) section->table->field[i].name);
  g_ptr_array_add (names, NULL);
  return weft_suggest_strv (typed, (const char *const *) names->pdata);
}

static gboolean
unknown_section (const char *name, GError **error)
{
  const char *names[WEFT_N_SECTION + 1] = { NULL };

  for (size_t i = 0; i < WEFT_N_SECTION; i++)
    names[i] = weft_sections[i].name;
  const char *near = weft_suggest_strv (name, names);
  if (near)
    return weft_bad_input (error, "unknown section; did you mean [%s]?", near);
  g_autofree char *all = g_strjoinv ("] [", (char **) names);
  return weft_bad_input (error, "unknown section; a job has [%s]", all);
}

static gboolean
unknown_key (const struct weft_section *section, const char *key, GError **error)
{
  const struct weft_alias *alias = weft_alias_find (key);
  const char *home, *name, *near;
  gboolean boolean;

  if (weft_job_flag (key, &home, &name, &boolean) && strcmp (home, section->name) == 0)
    return weft_bad_input (error, "unknown key \"%s\"; did you mean %s?", key, name);
  if (weft_job_flag (key, &home, &name, &boolean))
    return weft_bad_input (error, "unknown key \"%s\"; it belongs in [%s]%s%s", key, home,
                           strcmp (name, key) ? " as " : "", strcmp (name, key) ? name : "");
  if (alias) {
    g_autofree char *text = weft_alias_text (alias);
    return weft_bad_input (error, "unknown key \"%s\"; as a flag it stands for %s", key, text);
  }
  near = suggest_key (section, key);
  if (near)
    return weft_bad_input (error, "unknown key \"%s\"; did you mean %s?", key, near);
  return weft_bad_input (error, "unknown key \"%s\"", key);
}

/* Checks that a value is one line of text, so that it can be printed and read again. */
static gboolean
check_value (const struct weft_setting *setting, GError **error)
{
  if (!g_utf8_validate (setting->value, -1, NULL))
    return weft_bad_input (error, "%s: found bytes that are not UTF-8, wanted text", setting->key);
  for (const char *c = setting->value; *c; c++)
    if (g_ascii_iscntrl (*c))
      return weft_bad_input (error, "%s: found control character 0x%02x, wanted one line of text",
                             setting->key, (unsigned char) *c);
  return TRUE;
}

static gboolean
check_setting (const struct weft_setting *setting, GError **error)
{
  const struct weft_section *section = weft_section_find (setting->section);

  if (!section)
    return unknown_section (setting->section, error);
  if (!weft_part_key_find (section->name, setting->key) &&
      weft_table_find (section->table, setting->key) < 0)
    return unknown_key (section, setting->key, error);
  return check_value (setting, error);
}

gboolean
weft_settings_check (const weft_settings *settings, GError **error)
{
  for (unsigned i = 0; i < weft_settings_count (settings); i++)
    if (!check_setting (weft_settings_at (settings, i), error))
      return blame (weft_settings_at (settings, i), error);
  return TRUE;
}

/* The last setting of a key; NULL if the key was not set. */
static const struct weft_setting *
last_of (const weft_settings *settings, const char *section, const char *key)
{
  for (unsigned i = weft_settings_count (settings); i-- > 0;)
    if (weft_same_name (weft_settings_at (settings, i)->section, section) &&
        weft_same_name (weft_settings_at (settings, i)->key, key))
      return weft_settings_at (settings, i);
  return NULL;
}

/* Sets the error "no model: give ...; for example A, B, C". Always returns FALSE. */
static gboolean
missing (const char *noun, const char *how, char **names, GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; names[i] && i < 8; i++)
    g_string_append_printf (text, "%s%s", i ? ", " : "; for example ", names[i]);
  g_string_append_printf (text, " (weft %s lists all)", noun);
  return weft_bad_input (error, "%s%s", how, text->str);
}

/* Fields that a job without a model config must give; weft_model_complete() sets the other
 * fields. */
static const char *const shape[] = { "num_layers", "hidden_size", "num_attention_heads",
                                     "vocab_size" };

static gboolean
load_config (const struct weft_setting *config, struct weft_job *job, GError **error)
{
  g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);

  if (!weft_model_load (config->value, &job->model, unknown, error))
    return blame (config, error);
  g_ptr_array_add (unknown, NULL);
  g_autofree char *keys = g_strjoinv (", ", (char **) unknown->pdata);
  job->unknown_keys = *keys ? g_quark_from_string (keys) : 0;
  return TRUE;
}

static gboolean
load_model (const weft_settings *settings, struct weft_job *job, GError **error)
{
  const struct weft_setting *config = last_of (settings, "model", "config");
  size_t given = 0;

  if (config)
    return load_config (config, job, error);
  while (given < G_N_ELEMENTS (shape) && last_of (settings, "model", shape[given]))
    given++;
  if (given == G_N_ELEMENTS (shape))
    return TRUE;
  g_auto (GStrv) names = weft_model_names ();
  return missing ("models", "no model: give [model] config = NAME, or --model NAME", names, error);
}

static gboolean
load_cluster (const weft_settings *settings, struct weft_job *job, GError **error)
{
  const struct weft_setting *topology = last_of (settings, "cluster", "topology");

  if (topology)
    return weft_cluster_load (topology->value, &job->cluster, error) ? TRUE
                                                                     : blame (topology, error);
  g_auto (GStrv) names = weft_sheet_names (&weft_cluster_sheet);
  return missing ("topologies", "no cluster: give [cluster] topology = NAME, or --topology NAME",
                  names, error);
}

/* Stores the name by which the stack was loaded, so that a printed job loads the same stack. */
static gboolean
load_stack (const weft_settings *settings, struct weft_job *job, GError **error)
{
  const struct weft_setting *name = last_of (settings, "stack", "name");

  if (!weft_stack_load (name ? name->value : "weft", &job->stack, error))
    return name ? blame (name, error) : FALSE;
  if (name)
    job->stack.name = g_quark_from_string (name->value);
  return TRUE;
}

static gboolean
apply_setting (const struct weft_setting *setting, struct weft_job *job, GError **error)
{
  const struct weft_section *section = weft_section_find (setting->section);

  if (weft_part_key_find (section->name, setting->key))
    return TRUE;
  int row = weft_table_find (section->table, setting->key);
  union weft_value *value = &weft_section_values (job, section)[row];
  if (section->table == &weft_cluster_table && !weft_cluster_may_set (&job->cluster, row, error))
    return blame (setting, error);
  if (setting->default_only && !weft_field_is_default (&section->table->field[row], *value))
    return TRUE;
  if (!weft_field_parse (&section->table->field[row], setting->value, value, error))
    return blame (setting, error);
  if (section->table == &weft_strategy_table)
    job->knob_set[row] = TRUE;
  if (section->table == &weft_train_table)
    job->train_set[row] = TRUE;
  return TRUE;
}

/* Applies settings in order: later settings override earlier ones. A field that a job file sets
 * also overrides the model config or topology that a flag names. */
static gboolean
apply_settings (const weft_settings *settings, struct weft_job *job, GError **error)
{
  for (unsigned i = 0; i < weft_settings_count (settings); i++)
    if (!apply_setting (weft_settings_at (settings, i), job, error))
      return FALSE;
  return TRUE;
}

/* Computes fields of the model that are not given from those that are. A model from a config counts
 * as giving every field except seq_length, whose default is the longest sequence that the model
 * supports. */
static gboolean
complete_model (const weft_settings *settings, struct weft_job *job, GError **error)
{
  gboolean config = last_of (settings, "model", "config") != NULL;
  const char *typed[WEFT_N_MODEL_FIELD];

  for (unsigned i = 0; i < WEFT_N_MODEL_FIELD; i++)
    typed[i] = config && i != WEFT_MODEL_seq_length ? weft_model_table.field[i].name : NULL;
  for (unsigned i = 0; i < weft_settings_count (settings); i++) {
    const struct weft_setting *setting = weft_settings_at (settings, i);
    if (!weft_same_name (setting->section, "model"))
      continue;
    int row = weft_table_find (&weft_model_table, setting->key);
    if (row >= 0)
      typed[row] = setting->key;
  }
  return weft_model_complete (&job->model, typed, error);
}

/* Parses a setting of the job that is a count and no field of a table; 0 if it is not given. */
static gboolean
parse_size (const struct weft_setting *setting, int64_t *size, GError **error)
{
  union weft_value value;

  *size = 0;
  if (!setting)
    return TRUE;
  const struct weft_field field = {
    .name = setting->key, .type = WEFT_TYPE_INT, .def = "1", .lo = "1", .hi = "16777216", .unit = ""
  };
  if (!weft_field_parse (&field, setting->value, &value, error))
    return blame (setting, error);
  *size = value.i;
  return TRUE;
}

/* Reads the size of the cluster in GPUs or in nodes. A size given by a flag replaces a size given
 * in a file; two flags, or two settings of files, must agree. */
static gboolean
resize_cluster (const weft_settings *settings, struct weft_job *job, GError **error)
{
  const struct weft_setting *by_gpus = last_of (settings, "cluster", "gpus");
  const struct weft_setting *by_nodes = last_of (settings, "cluster", "nodes");
  int64_t gpus, nodes;

  if (by_gpus && by_nodes && is_flag (by_gpus) && !is_flag (by_nodes))
    by_nodes = NULL;
  if (by_gpus && by_nodes && is_flag (by_nodes) && !is_flag (by_gpus))
    by_gpus = NULL;
  if (!parse_size (by_gpus, &gpus, error) || !parse_size (by_nodes, &nodes, error))
    return FALSE;
  if (!by_gpus && !by_nodes)
    return weft_cluster_settle (&job->cluster, error);
  if (!weft_cluster_resize (&job->cluster, gpus, nodes, error))
    return blame (by_gpus ? by_gpus : by_nodes, error);
  return TRUE;
}

/* Reads Megatron-LM's num_layers_per_virtual_pipeline_stage, which gives the number of layers of a
 * chunk instead of the number of chunks. */
static gboolean
divide_chunks (const weft_settings *settings, struct weft_job *job, GError **error)
{
  const struct weft_setting *given = last_of (settings, "strategy", WEFT_LAYERS_PER_CHUNK);
  int64_t layers = job->model.num_layers, p = job->strategy.pipeline_model_parallel_size, each;

  if (!parse_size (given, &each, error) || !given)
    return !given;
  if (p > 1 && layers % p == 0 && layers / p % each == 0) {
    job->strategy.virtual_pipeline_model_parallel_size = layers / p / each;
    job->knob_set[WEFT_KNOB_virtual_pipeline_model_parallel_size] = TRUE;
    return TRUE;
  }
  weft_bad_input (error,
                  "found %" G_GINT64_FORMAT " layers per chunk with num_layers = %" G_GINT64_FORMAT
                  " and pipeline_model_parallel_size = %" G_GINT64_FORMAT
                  ", wanted a pipeline of at least 2 stages and a divisor of the layers of a stage",
                  each, layers, p);
  return blame (given, error);
}

static void
set_defaults (struct weft_job *job)
{
  memset (job, 0, sizeof *job);
  for (size_t i = 0; i < WEFT_N_SECTION; i++)
    weft_table_defaults (weft_sections[i].table, weft_section_values (job, &weft_sections[i]));
}

gboolean
weft_job_assemble (const weft_settings *settings, struct weft_job *job, GError **error)
{
  job->unknown_keys = 0;
  set_defaults (job);
  if (!weft_settings_check (settings, error) || !load_model (settings, job, error) ||
      !load_cluster (settings, job, error) || !load_stack (settings, job, error) ||
      !apply_settings (settings, job, error) || !complete_model (settings, job, error) ||
      !divide_chunks (settings, job, error) || !resize_cluster (settings, job, error))
    return FALSE;
  weft_job_derive (job);
  return weft_strategy_check (&job->strategy, error);
}

gboolean
weft_job_build (const weft_settings *settings, struct weft_job *job, GError **error)
{
  return weft_job_assemble (settings, job, error) && weft_job_check (job, error);
}

/* The precision if [train] sets none. On a CPU this is fp32: most CPUs have no bf16 arithmetic, and
 * emulating bf16 is slower and less exact. */
static enum weft_dtype
default_precision (const struct weft_job *job)
{
  gboolean cpu = weft_cluster_is_cpu (&job->cluster);

  return job->strategy.bf16   ? WEFT_BF16
         : job->strategy.fp16 ? WEFT_FP16
         : cpu                ? WEFT_FP32
                              : WEFT_BF16;
}

/* The data-parallel strategy if the job sets none: the first strategy in the list of the stack. */
static int64_t
default_wrapper (const struct weft_job *job)
{
  const char *first = g_quark_to_string ((GQuark) job->stack.wrappers);
  size_t length = strcspn (first, " ");

  for (int64_t w = 0; w < WEFT_N_DISTRIBUTED; w++)
    if (strlen (weft_distributed_words[w]) == length &&
        strncmp (weft_distributed_words[w], first, length) == 0)
      return w;
  return WEFT_MEGATRON_DDP;
}

void
weft_job_derive (struct weft_job *job)
{
  union weft_train *train = &job->train;

  if (!job->train_set[WEFT_TRAIN_precision])
    train->precision = default_precision (job);
  if (!job->knob_set[WEFT_KNOB_distributed_config] &&
      job->strategy.distributed_config == WEFT_MEGATRON_DDP)
    job->strategy.distributed_config = default_wrapper (job);
  if (job->strategy.distributed_config == WEFT_MEGATRON_FSDP)
    job->strategy.use_megatron_fsdp = TRUE;
  int64_t stages = weft_job_layout_stages (job), p = job->strategy.pipeline_model_parallel_size;
  gboolean open = weft_schedules[job->strategy.pipeline_schedule].chunks == WEFT_CHUNKS_ANY;
  if (open && stages > p && stages % p == 0 &&
      job->strategy.virtual_pipeline_model_parallel_size == WEFT_NONE)
    job->strategy.virtual_pipeline_model_parallel_size = stages / p;
  /* Megatron-FSDP: sharded gradients require overlap_grad_reduce, sharded weights also require
   * overlap_param_gather. */
  if (weft_job_sharding (job) >= WEFT_SHARD_GRADS)
    job->strategy.overlap_grad_reduce = TRUE;
  if (weft_job_sharding (job) >= WEFT_SHARD_PARAMS)
    job->strategy.overlap_param_gather = TRUE;
  if (train->global_batch_size == WEFT_NONE)
    train->global_batch_size = train->micro_batch_size * weft_job_dp (job);
  if (train->reduction_order == WEFT_NONE)
    train->reduction_order =
        weft_cluster_is_cpu (&job->cluster) ? WEFT_ORDER_CANONICAL : WEFT_ORDER_FAST;
}

static void
add_flag_names (GPtrArray *names, const struct weft_table *table)
{
  for (unsigned i = 0; i < table->n; i++) {
    if (table->field[i].type == WEFT_TYPE_METHOD)
      continue;
    char *name = g_strdelimit (g_strdup (table->field[i].name), "_", '-');
    g_ptr_array_add (names, name);
    if (table->field[i].type == WEFT_TYPE_BOOL)
      g_ptr_array_add (names, g_strconcat ("no-", name, NULL));
  }
}

gboolean
weft_job_unknown_flag (const char *flag, GError **error)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);

  while (*flag == '-')
    flag++;
  for (size_t i = 0; i < WEFT_N_PART_KEY; i++)
    g_ptr_array_add (names, g_strdup (weft_part_keys[i].flag));
  for (size_t i = 0; i < WEFT_N_SECTION; i++)
    add_flag_names (names, weft_sections[i].table);
  for (unsigned i = 0; i < weft_n_aliases; i++)
    g_ptr_array_add (names, g_strdelimit (g_strdup (weft_aliases[i].name), "_", '-'));
  g_ptr_array_add (names, NULL);
  const char *near = weft_suggest_strv (flag, (const char *const *) names->pdata);
  if (near)
    return weft_bad_input (error, "unknown flag --%s; did you mean --%s?", flag, near);
  return weft_bad_input (error, "unknown flag --%s", flag);
}
