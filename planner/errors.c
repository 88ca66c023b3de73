#include "planner/errors.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "planner/published.h"
#include <math.h>
#include <string.h>

enum column {
#define COLUMN(name, ...) COLUMN_##name,
#include "planner/errors.def"
  N_COLUMN
};

static const char *const columns[N_COLUMN] = {
#define COLUMN(name, doc) #name,
#include "planner/errors.def"
};

/* ----------------------------------------------------------------------------- reading */

static int
layout_of (const char *word)
{
  for (int i = 0; i < WEFT_N_LAYOUT; i++)
    if (g_str_equal (weft_layout_words[i], word))
      return i;
  return -1;
}

/* A cell of the CSV row that is read. */
struct reading {
  const weft_csv *csv;
  unsigned row;
  int at[N_COLUMN];
};

static const char *
cell (const struct reading *r, enum column column)
{
  return weft_csv_cell (r->csv, r->row, r->at[column]);
}

static double
number (const struct reading *r, enum column column)
{
  return weft_published_number (cell (r, column));
}

static gboolean
read_row (const struct reading *r, struct weft_error_row *row, GError **error)
{
  struct weft_traits *traits = &row->traits;

  *row = (struct weft_error_row){ .id = cell (r, COLUMN_id),
                                  .source = cell (r, COLUMN_source),
                                  .sweep = cell (r, COLUMN_sweep),
                                  .strategy = cell (r, COLUMN_strategy),
                                  .tier = *cell (r, COLUMN_tier),
                                  .apart = g_str_equal (cell (r, COLUMN_totals), "apart"),
                                  .sequences = number (r, COLUMN_sequences),
                                  .time_s = number (r, COLUMN_time_s),
                                  .time_error = number (r, COLUMN_time_error),
                                  .memory_gib = number (r, COLUMN_memory_gib),
                                  .memory_error = number (r, COLUMN_memory_error) };
  if (*cell (r, COLUMN_refused_by)) {
    row->refused = cell (r, COLUMN_refused_by);
    return TRUE;
  }
  g_strlcpy (traits->gpu, cell (r, COLUMN_gpu), sizeof traits->gpu);
  g_strlcpy (traits->stack, cell (r, COLUMN_stack), sizeof traits->stack);
  g_strlcpy (traits->family, cell (r, COLUMN_family), sizeof traits->family);
  g_strlcpy (traits->precision, cell (r, COLUMN_precision), sizeof traits->precision);
  traits->capability = (int32_t) g_ascii_strtoll (cell (r, COLUMN_capability), NULL, 10);
  traits->gpus = (uint32_t) g_ascii_strtoull (cell (r, COLUMN_gpus), NULL, 10);
  traits->layout = layout_of (cell (r, COLUMN_layout));
  traits->experts = *cell (r, COLUMN_experts) == '1';
  if (traits->layout >= 0)
    return TRUE;
  g_autofree char *wanted = g_strjoinv (", ", (char **) weft_layout_words);
  return weft_bad_input (error, "layout: found \"%s\", wanted one of %s", cell (r, COLUMN_layout),
                         wanted);
}

/* Makes the record of errors from the rows of `csv` and takes ownership of `csv`. NULL returns
 * NULL. */
static weft_errors *
take (weft_csv *csv, GError **error)
{
  if (!csv)
    return NULL;
  g_autoptr (weft_errors) errors = g_new0 (weft_errors, 1);
  struct reading r = { .csv = csv };

  errors->csv = csv;
  errors->row = g_new0 (struct weft_error_row, csv->n_row + 1);
  for (int i = 0; i < N_COLUMN; i++)
    if ((r.at[i] = weft_csv_find (csv, columns[i])) < 0) {
      weft_bad_input (error, "%s:1: found no column \"%s\"", csv->name, columns[i]);
      return NULL;
    }
  for (r.row = 0; r.row < csv->n_row; r.row++)
    if (!read_row (&r, &errors->row[errors->n_row++], error)) {
      weft_csv_blame (csv, r.row, error);
      return NULL;
    }
  return g_steal_pointer (&errors);
}

weft_errors *
weft_errors_load (const char *path, GError **error)
{
  g_autofree char *bundled = g_build_filename (weft_data_dir (), "validation", "errors.csv", NULL);

  if (!path && !g_file_test (bundled, G_FILE_TEST_EXISTS))
    return g_new0 (weft_errors, 1);
  return take (weft_csv_load (path ? path : bundled, error), error);
}

weft_errors *
weft_errors_parse (const char *text, const char *name, GError **error)
{
  return take (weft_csv_parse (text, -1, name, error), error);
}

void
weft_errors_free (weft_errors *errors)
{
  g_clear_pointer (&errors->csv, weft_csv_free);
  g_free (errors->row);
  g_free (errors);
}

/* ----------------------------------------------------------------------------- writing */

/* Numbers are written with five digits. This is far more precise than the errors, and the line of a
 * row whose prediction did not change stays the same. */
static void
append_number (GString *text, double value)
{
  char digits[G_ASCII_DTOSTR_BUF_SIZE];

  g_string_append_c (text, ',');
  if (!isnan (value))
    g_string_append (text, g_ascii_formatd (digits, sizeof digits, "%.5g", value));
}

static void
append_text (GString *text, const char *cell_text)
{
  g_string_append_c (text, ',');
  weft_csv_append (text, cell_text);
}

static void
append_traits (GString *text, const struct weft_validate_row *row)
{
  const struct weft_traits *t = &row->traits;

  append_text (text, t->gpu);
  g_string_append_printf (text, ",%d", t->capability);
  append_text (text, t->stack);
  append_text (text, t->family);
  g_string_append_printf (text, ",%u,%s,%d", t->gpus, weft_layout_words[t->layout], t->experts);
  append_text (text, t->precision);
  append_text (text, row->sweep);
  g_string_append_printf (text, ",%08x", row->strategy);
  append_number (text, row->sequences);
}

static void
append_row (GString *text, const struct weft_validate_row *row)
{
  weft_csv_append (text, row->id);
  append_text (text, row->source);
  g_string_append_printf (text, ",%c,%s", row->tier, row->apart ? "apart" : "counted");
  if (row->rule)
    g_string_append (text, ",,,,,,,,,,,");
  else
    append_traits (text, row);
  append_number (text, row->rule ? NAN : row->predicted_s);
  append_number (text, row->time_error);
  append_number (text, row->rule || isnan (row->memory_error) ? NAN : row->predicted_gib);
  append_number (text, row->memory_error);
  append_text (text, row->rule ? row->rule : "");
  g_string_append_c (text, '\n');
}

char *
weft_errors_record (const weft_validation *v)
{
  GString *text = g_string_new (NULL);

  for (int i = 0; i < N_COLUMN; i++)
    g_string_append_printf (text, "%s%s", i ? "," : "", columns[i]);
  g_string_append_c (text, '\n');
  for (uint32_t i = 0; i < v->n_row; i++)
    append_row (text, &v->row[i]);
  return g_string_free (text, FALSE);
}

/* ------------------------------------------------------------------------------- rows */

gboolean
weft_error_counts (const struct weft_error_row *row)
{
  return row->tier != 'C' && !row->apart && !row->refused;
}

double
weft_error_of (const struct weft_error_row *row, enum weft_quantity quantity)
{
  return quantity == WEFT_TIME ? row->time_error : row->memory_error;
}

/* ------------------------------------------------------------------------------ groups */

char *
weft_errors_source_name (const struct weft_error_row *row)
{
  return g_strdup (row->source);
}

char *
weft_errors_kind_name (const struct weft_error_row *row)
{
  const struct weft_traits *t = &row->traits;

  return g_strdup_printf ("%s, %s, %s, %s", weft_traits_short_gpu (t), t->family,
                          t->experts ? "experts" : "dense", weft_layout_words[t->layout]);
}

static void
group_free (void *data)
{
  struct weft_error_group *group = data;

  g_free (group->name);
  g_free (group);
}

/* Returns the errors of the published runs whose name names[row] is `name`. Takes ownership of
 * `name`. Returns NULL if no error of these runs is known. */
static struct weft_error_group *
group_new (const weft_errors *errors, char *name, char *const *names)
{
  struct weft_error_group *group = g_new0 (struct weft_error_group, 1);
  g_autofree double *all = g_new (double, errors->n_row + 1);

  *group = (struct weft_error_group){ .name = name, .apart = TRUE };
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < errors->n_row; i++)
      if (names[i] && g_str_equal (names[i], name)) {
        group->apart &= errors->row[i].apart;
        all[n++] = weft_error_of (&errors->row[i], quantity);
      }
    group->of[quantity] = weft_validate_errors_of (all, n);
  }
  if (group->of[WEFT_TIME].n || group->of[WEFT_MEMORY].n)
    return group;
  group_free (group);
  return NULL;
}

static int
by_name (gconstpointer a, gconstpointer b)
{
  const struct weft_error_group *const *x = a, *const *y = b;
  return strcmp ((*x)->name, (*y)->name);
}

GPtrArray *
weft_errors_group (const weft_errors *errors, weft_error_name *name)
{
  GPtrArray *groups = g_ptr_array_new_with_free_func (group_free);
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (GPtrArray) owned = g_ptr_array_new_with_free_func (g_free);

  for (uint32_t i = 0; i < errors->n_row; i++) {
    const struct weft_error_row *row = &errors->row[i];
    g_ptr_array_add (owned, row->tier == 'C' || row->refused ? NULL : name (row));
  }
  for (guint i = 0; i < owned->len; i++) {
    char *text = g_ptr_array_index (owned, i);
    if (!text || !g_hash_table_add (seen, text))
      continue;
    struct weft_error_group *group =
        group_new (errors, g_strdup (text), (char *const *) owned->pdata);
    if (group)
      g_ptr_array_add (groups, group);
  }
  g_ptr_array_sort (groups, by_name);
  return groups;
}

double
weft_errors_mean (const GPtrArray *groups, enum weft_quantity quantity)
{
  double sum = 0;
  unsigned n = 0;

  for (guint i = 0; i < groups->len; i++) {
    const struct weft_error_group *group = g_ptr_array_index (groups, i);
    if (!group->apart && group->of[quantity].n) {
      sum += group->of[quantity].mape;
      n++;
    }
  }
  return n ? sum / n : NAN;
}
