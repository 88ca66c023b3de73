/* A job as text. It contains the settings that the user gave, and the settings that differ from the
 * named files and from the defaults. The text is therefore short, and builds the same job. */
#include "core/job/job.h"
#include <string.h>

/* Appends a line KEY = TEXT. Escapes the characters that the INI reader would change: backslashes,
 * blanks at both ends, and a blank before a comment sign. */
static void
append_entry (GString *out, const char *key, const char *text)
{
  size_t length = strlen (text);

  g_string_append_printf (out, *text == '#' ? "%s =" : "%s = ", key);
  for (size_t i = 0; i < length; i++)
    if (text[i] == '\\')
      g_string_append (out, "\\\\");
    else if (text[i] == ' ' && (i == 0 || i + 1 == length || text[i + 1] == '#'))
      g_string_append (out, "\\s");
    else
      g_string_append_c (out, text[i]);
  g_string_append_c (out, '\n');
}

/* Prints the values that differ from `base` (NULL: all values), and those marked in `set` (may be
 * NULL). */
static void
append_fields (GString *out, const struct weft_table *table, const union weft_value *value,
               const union weft_value *base, const gboolean *set)
{
  for (unsigned i = 0; i < table->n; i++) {
    const struct weft_field *field = &table->field[i];
    if (field->type == WEFT_TYPE_METHOD || (base && base[i].i == value[i].i && !(set && set[i])))
      continue;
    g_autofree char *text = weft_field_print (field, value[i]);
    append_entry (out, field->name, text);
  }
}

/* A bundled model is printed by name; every setting of another model is printed. The sequence
 * length is always printed: otherwise a changed max_position_embeddings would change it when the
 * text is read. */
static void
append_model (GString *out, const struct weft_job *job)
{
  const char *name = g_quark_to_string ((GQuark) job->model.name);
  union weft_model base;

  g_string_append (out, "[model]\n");
  if (!name || !*name || !weft_model_load (name, &base, NULL, NULL)) {
    append_fields (out, &weft_model_table, job->model.at, NULL, NULL);
    return;
  }
  base.seq_length = WEFT_NONE;
  append_entry (out, "config", name);
  append_fields (out, &weft_model_table, job->model.at, base.at, NULL);
}

static void
append_cluster (GString *out, const struct weft_job *job)
{
  const char *name = g_quark_to_string (job->cluster.topology);
  struct weft_cluster base;
  gboolean known = name && weft_cluster_load (name, &base, NULL);

  g_string_append (out, "\n[cluster]\n");
  append_entry (out, "topology", name ? name : "");
  g_string_append_printf (out, "gpus = %u\n", job->cluster.n_gpus);
  append_fields (out, &weft_cluster_table, job->cluster.f.at, known ? base.f.at : NULL, NULL);
}

/* Copies the job to `base`, but resets training settings that the user did not give to their
 * defaults. */
static void
train_base (const struct weft_job *job, struct weft_job *base)
{
  union weft_train defaults;

  *base = *job;
  weft_table_defaults (&weft_train_table, defaults.at);
  for (unsigned i = 0; i < WEFT_N_TRAIN_FIELD; i++)
    if (!job->train_set[i])
      base->train.at[i] = defaults.at[i];
  weft_job_derive (base);
}

static void
append_train (GString *out, const struct weft_job *job)
{
  struct weft_job base;

  train_base (job, &base);
  g_string_append (out, "\n[train]\n");
  append_fields (out, &weft_train_table, job->train.at, base.train.at, job->train_set);
}

static void
append_stack (GString *out, const struct weft_job *job)
{
  const char *name = g_quark_to_string ((GQuark) job->stack.name);
  union weft_stack base;

  if (!weft_stack_load (name, &base, NULL))
    weft_table_defaults (&weft_stack_table, base.at);
  g_string_append (out, "\n[stack]\n");
  append_entry (out, "name", name);
  base.name = job->stack.name;
  append_fields (out, &weft_stack_table, job->stack.at, base.at, NULL);
}

char *
weft_job_print (const struct weft_job *job)
{
  GString *out = g_string_new (NULL);
  union weft_strategy base;

  append_model (out, job);
  append_cluster (out, job);
  append_train (out, job);
  append_stack (out, job);
  weft_table_defaults (&weft_strategy_table, base.at);
  g_string_append (out, "\n[strategy]\n");
  append_fields (out, &weft_strategy_table, job->strategy.at, base.at, job->knob_set);
  return g_string_free (out, FALSE);
}
