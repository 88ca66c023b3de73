#include "planner/assumptions.h"
#include "planner/conditions.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/arithmetic.h"
#include <math.h>
#include <string.h>

static const char *const memory_words[] = { WEFT_MEASURED_MEMORY_LIST (WEFT_WORD_TEXT) NULL };
static const char *const peak_words[] = { WEFT_MEASURED_PEAK_LIST (WEFT_WORD_TEXT) NULL };
static const char *const flops_words[] = { WEFT_MEASURED_FLOPS_LIST (WEFT_WORD_TEXT) NULL };
static const char *const gigabyte_words[] = { WEFT_GIGABYTE_LIST (WEFT_WORD_TEXT) NULL };
static const char *const totals_words[] = { WEFT_MEASURED_TOTALS_LIST (WEFT_WORD_TEXT) NULL };
static const char *const graph_words[] = { WEFT_MEASURED_GRAPH_LIST (WEFT_WORD_TEXT) NULL };
static const char *const steps_words[] = { WEFT_MEASURED_STEPS_LIST (WEFT_WORD_TEXT) NULL };

#define MEASURED_RUNS                                                                              \
  {                                                                                                \
    .name = "measured.runs", .type = WEFT_TYPE_INT, .def = "1", .lo = "1", .hi = "65536",          \
    .unit = ""                                                                                     \
  }
#define MEASURED(key, words_)                                                                      \
  { .name = "measured." key, .type = WEFT_TYPE_WORD, .def = words_[0], .words = words_ }

/* A rule: the entries [first, first + n) of the file apply to rows that meet all its conditions. */
struct rule {
  weft_conditions *conditions;
  unsigned first, n;
};

struct weft_assumptions {
  weft_conf *conf;
  GArray *rule;
};

/* ----------------------------------------------------------------------- reading */

static const char *const columns[] = {
#define COLUMN(name, ...) #name,
#include "planner/published.def"
  NULL
};

static gboolean
find_column (const char *name, int *column, GError **error)
{
  return weft_conditions_column (columns, name, column, error);
}

static void
clear_rule (gpointer data)
{
  weft_conditions_free (((struct rule *) data)->conditions);
}

/* Reads a key "measured.NAME" of a rule and stores its value in the row. */
static gboolean
read_measured (const char *key, const char *value, weft_row_job *row, GError **error)
{
  const struct {
    struct weft_field field;
    int *word;
  } keys[] = {
    { MEASURED ("memory", memory_words), &row->memory },
    { MEASURED ("peak", peak_words), &row->peak },
    { MEASURED ("gigabyte", gigabyte_words), &row->gigabyte },
    { MEASURED ("flops", flops_words), &row->flops },
    { MEASURED ("totals", totals_words), &row->totals },
    { MEASURED ("graph", graph_words), &row->graph },
    { MEASURED ("steps", steps_words), &row->steps },
    { MEASURED_RUNS, &row->runs },
  };
  union weft_value word;

  for (unsigned i = 0; i < G_N_ELEMENTS (keys); i++)
    if (g_str_equal (key, keys[i].field.name)) {
      gboolean ok = weft_field_parse (&keys[i].field, value, &word, error);
      *keys[i].word = ok ? (int) word.i : 0;
      return ok;
    }
  g_autoptr (GString) names = g_string_new (keys[0].field.name);
  for (unsigned i = 1; i < G_N_ELEMENTS (keys); i++)
    g_string_append_printf (names, "%s%s", i + 1 < G_N_ELEMENTS (keys) ? ", " : " or ",
                            keys[i].field.name);
  return weft_bad_input (error, "unknown key \"%s\"; wanted %s", key, names->str);
}

static gboolean
starts (const char *key, const char *what)
{
  return g_str_has_prefix (key, what);
}

static void
add_setting (weft_settings *settings, const weft_conf *conf, const struct weft_applied *a)
{
  const char *dot = strchr (a->key, '.');
  g_autofree char *section = g_strndup (a->key, dot - a->key);
  g_autofree char *where = g_strdup_printf ("%s:%u", conf->name, a->line);

  weft_settings_add (settings, section, dot + 1, a->value, where);
}

/* Checks that assumptions.h lists this key and that the value of the key can be parsed. */
static gboolean
check_key (const weft_conf *conf, const struct weft_conf_entry *entry, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  weft_row_job nowhere;
  int column;

  if (g_str_equal (entry->key, "why"))
    return TRUE;
  if (starts (entry->key, "column."))
    return find_column (strchr (entry->key, '.') + 1, &column, error);
  if (starts (entry->key, "measured."))
    return read_measured (entry->key, entry->value, &nowhere, error);
  if (!strchr (entry->key, '.'))
    return weft_bad_input (error,
                           "unknown key \"%s\"; wanted why, column.NAME, SECTION.KEY of a job "
                           "file, or measured.NAME",
                           entry->key);
  struct weft_applied a = { .key = entry->key,
                            .value = (char *) entry->value,
                            .line = entry->line };
  add_setting (settings, conf, &a);
  return weft_settings_check (settings, error);
}

static gboolean
read_rules (weft_assumptions *assumptions, GError **error)
{
  const weft_conf *conf = assumptions->conf;

  for (unsigned i = 0; i < conf->n_entry; i++) {
    struct rule next = { .first = i };
    struct rule *last = assumptions->rule->len ? &g_array_index (assumptions->rule, struct rule,
                                                                 assumptions->rule->len - 1)
                                               : NULL;
    if (!check_key (conf, &conf->entry[i], error))
      return weft_conf_blame (conf, &conf->entry[i], error);
    if (last && conf->entry[last->first].section == conf->entry[i].section) {
      last->n++;
      continue;
    }
    next.n = 1;
    next.conditions = weft_conditions_parse (conf->entry[i].section, columns, error);
    g_array_append_val (assumptions->rule, next);
    if (!next.conditions)
      return weft_conf_blame (conf, &conf->entry[i], error);
  }
  return TRUE;
}

weft_assumptions *
weft_assumptions_load (const char *path, GError **error)
{
  g_autofree char *bundled =
      g_build_filename (weft_data_dir (), "validation", "assumptions.ini", NULL);
  g_autoptr (weft_assumptions) assumptions = g_new0 (weft_assumptions, 1);

  assumptions->rule = g_array_new (FALSE, TRUE, sizeof (struct rule));
  g_array_set_clear_func (assumptions->rule, clear_rule);
  assumptions->conf = weft_conf_load (path ? path : bundled, error);
  if (!assumptions->conf || !read_rules (assumptions, error))
    return NULL;
  return g_steal_pointer (&assumptions);
}

void
weft_assumptions_free (weft_assumptions *assumptions)
{
  if (!assumptions)
    return;
  g_array_unref (assumptions->rule);
  g_clear_pointer (&assumptions->conf, weft_conf_free);
  g_free (assumptions);
}

/* ---------------------------------------------------------------------- applying */

/* Replaces each {NAME} in a text by the cell of column NAME. Returns NULL with an error if a cell
 * is blank. */
static char *
fill_in (const char *text, const weft_row_job *row, GError **error)
{
  g_autoptr (GString) out = g_string_new (NULL);

  for (const char *c = text; *c; c++) {
    const char *end = *c == '{' ? strchr (c, '}') : NULL;
    if (!end) {
      g_string_append_c (out, *c);
      continue;
    }
    g_autofree char *name = g_strndup (c + 1, end - c - 1);
    int column;
    if (!find_column (name, &column, error))
      return NULL;
    if (!*row->cell[column]) {
      weft_bad_input (error, "rule blank: %s: found nothing, and no assumption for it", name);
      return NULL;
    }
    g_string_append (out, row->cell[column]);
    c = end;
  }
  return g_string_free (g_steal_pointer (&out), FALSE);
}

static void
free_applied (gpointer data)
{
  struct weft_applied *a = data;
  g_free (a->value);
  g_free (a);
}

/* Replaces an expression by its value: "6 * 4 / 8" by "3". Returns any other text unchanged. */
static char *
calculate (char *text)
{
  double value;

  if (!strchr (text, ' ') || !weft_arithmetic (text, NULL, NULL, &value))
    return text;
  g_free (text);
  return weft_units_print (value);
}

/* Refuses a key that gives a value for a column whose cell is not blank. Rules replace no value of
 * the source, and a rule without any effect is a mistake of its author. */
static gboolean
check_blank (const struct weft_conf_entry *entry, const weft_row_job *row, GError **error)
{
  const char *name = strchr (entry->key, '.');

  if (!starts (entry->key, "column."))
    return TRUE;
  const char *cell = row->cell[weft_published_find (name + 1)];
  if (!*cell)
    return TRUE;
  return weft_bad_input (error,
                         "rule [%s], line %u: %s = %s: found \"%s\" in this cell, wanted a blank "
                         "one; rules replace no printed value: add \"and %s = blank\" to the "
                         "conditions",
                         entry->section, entry->line, entry->key, entry->value, cell, name + 1);
}

static gboolean
apply_entry (const struct weft_conf_entry *entry, weft_row_job *row, GError **error)
{
  if (!check_blank (entry, row, error))
    return FALSE;
  g_autofree char *text = fill_in (entry->value, row, error);
  if (!text)
    return FALSE;
  g_autofree char *value = calculate (g_steal_pointer (&text));
  struct weft_applied *a = g_new (struct weft_applied, 1);
  *a = (struct weft_applied){ entry->section, entry->key, g_strdup (value), entry->line };
  g_ptr_array_add (row->applied, a);
  if (starts (entry->key, "measured."))
    return read_measured (entry->key, value, row, error);
  if (!starts (entry->key, "column."))
    return TRUE;
  char **cell = &row->cell[weft_published_find (strchr (entry->key, '.') + 1)];
  g_free (*cell);
  *cell = g_steal_pointer (&value);
  return TRUE;
}

static gboolean
apply_rule (const weft_conf *conf, const struct rule *rule, weft_row_job *row, GError **error)
{
  for (unsigned i = rule->first; i < rule->first + rule->n; i++)
    if (!apply_entry (&conf->entry[i], row, error))
      return FALSE;
  return TRUE;
}

static gboolean
is_setting (const char *key)
{
  return !g_str_equal (key, "why") && !starts (key, "column.") && !starts (key, "measured.");
}

static gboolean
build (const weft_assumptions *assumptions, weft_row_job *row, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();

  for (unsigned i = 0; i < row->applied->len; i++) {
    const struct weft_applied *a = g_ptr_array_index (row->applied, i);
    if (is_setting (a->key))
      add_setting (settings, assumptions->conf, a);
  }
  return weft_job_build (settings, &row->job, error);
}

weft_row_job *
weft_row_job_new (const weft_assumptions *assumptions, const weft_published *table, unsigned index,
                  GError **error)
{
  weft_row_job *row = g_new0 (weft_row_job, 1);

  row->runs = 1;
  row->applied = g_ptr_array_new_with_free_func (free_applied);
  for (unsigned i = 0; i < WEFT_N_COLUMN; i++)
    row->cell[i] = g_strdup (weft_published_cell (table, index, i));
  for (unsigned i = 0; i < assumptions->rule->len; i++) {
    const struct rule *rule = &g_array_index (assumptions->rule, struct rule, i);
    if (weft_conditions_hold (rule->conditions, row->cell) &&
        !apply_rule (assumptions->conf, rule, row, error))
      return row;
  }
  build (assumptions, row, error);
  return row;
}

void
weft_row_job_free (weft_row_job *row)
{
  if (!row)
    return;
  for (unsigned i = 0; i < WEFT_N_COLUMN; i++)
    g_free (row->cell[i]);
  g_ptr_array_unref (row->applied);
  g_free (row);
}

/* --------------------------------------------------------------------- measured */

static double
number (const weft_row_job *row, enum weft_published_column column)
{
  return weft_published_number (row->cell[column]);
}

/* FLOP/s of one GPU in a row: the number that the source prints, or the share that it prints of the
 * specified bf16 rate. */
static double
flops_per_second (const weft_row_job *row)
{
  double rate = number (row, WEFT_COLUMN_tflops_per_gpu) * 1e12;

  return isnan (rate) ? number (row, WEFT_COLUMN_mfu_pct) / 100 * row->job.cluster.f.gpu_bf16_spec
                      : rate;
}

double
weft_row_job_seconds (const weft_row_job *row)
{
  double tokens = (double) row->job.train.global_batch_size * row->job.model.seq_length;
  double of_one = tokens / row->job.cluster.n_gpus;
  double seconds = number (row, WEFT_COLUMN_iter_time_s);

  if (isnan (seconds))
    seconds = of_one / number (row, WEFT_COLUMN_tokens_per_s_per_gpu);
  if (isnan (seconds) && row->flops != WEFT_FLOPS_UNKNOWN)
    seconds = of_one *
              weft_model_flops_per_token (&row->job.model, row->flops == WEFT_FLOPS_CAUSAL) /
              flops_per_second (row);
  return seconds;
}

double
weft_row_job_bytes (const weft_row_job *row)
{
  static const double bytes[] = {
    [WEFT_GIGABYTE_BINARY] = 1 << 30,
    [WEFT_GIGABYTE_DECIMAL] = 1e9,
    [WEFT_GIGABYTE_MEBI] = 1000.0 * (1 << 20),
  };

  return number (row, WEFT_COLUMN_peak_mem_gib) * bytes[row->gigabyte];
}
