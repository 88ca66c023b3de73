#include "planner/variants.h"
#include "core/base/csv.h"
#include "core/base/error.h"
#include "core/base/mix.h"
#include "core/base/output.h"
#include "core/base/suggest.h"
#include "core/base/units.h"
#include "core/job/flags.h"
#include "planner/workers.h"
#include <stdio.h>
#include <string.h>

/* Columns beside those of the lists and of the numbers of a cell. */
#define JOB "job"
#define FATE "fate"
#define REASON "reason"

/* Combinations that one process predicts between two writes of the file. */
enum { BATCH = 4 };

/* ------------------------------------------------------------------- lists */

static struct weft_variants_list *
list_at (const weft_variants *x, unsigned i)
{
  return x->list->pdata[i];
}

static void
list_free (void *data)
{
  struct weft_variants_list *list = data;

  g_free (list->name);
  g_strfreev (list->value);
  g_free (list);
}

/* Whether the setting of a list exists. */
static gboolean
check_name (const char *name, const char *value, GError **error)
{
  g_autoptr (weft_settings) scratch = weft_settings_new ();
  g_autofree char *word = g_strconcat (name, "=", value, NULL);

  return weft_flags_words (word, scratch, error);
}

static gboolean
add_list (weft_variants *x, const char *text, GError **error)
{
  g_auto (GStrv) pair = g_strsplit (text, "=", 2);
  g_autofree char *name = g_strdup (g_str_has_prefix (pair[0], "--") ? pair[0] + 2 : pair[0]);

  if (!pair[1] || !*pair[1] || strchr (text, ' '))
    return weft_bad_input (error, "found \"%s\", wanted a setting and its values: KNOB=a,b,c",
                           text);
  for (unsigned i = 0; i < x->list->len; i++)
    if (weft_same_name (list_at (x, i)->name, name))
      return weft_bad_input (error, "%s: found two lists, wanted one", name);
  g_auto (GStrv) value = g_strsplit (pair[1], ",", -1);
  for (char **at = value; *at; at++)
    if (!**at || g_strv_contains ((const char *const *) at + 1, *at))
      return weft_bad_input (error, "%s: found \"%s\", wanted different values between commas",
                             name, pair[1]);
  if (!check_name (name, value[0], error))
    return FALSE;
  struct weft_variants_list *list = g_new0 (struct weft_variants_list, 1);
  list->name = g_steal_pointer (&name);
  list->n = g_strv_length (value);
  list->value = g_steal_pointer (&value);
  g_ptr_array_add (x->list, list);
  return TRUE;
}

weft_variants *
weft_variants_new (weft_settings *base, const char *const *lists,
                   const struct weft_exec_ops *executor, const char *version, GError **error)
{
  g_autoptr (weft_variants) x = g_new0 (weft_variants, 1);
  uint64_t n = 1;

  x->base = base;
  x->executor = executor;
  x->version = version;
  x->list = g_ptr_array_new_with_free_func (list_free);
  x->others = g_ptr_array_new_with_free_func (g_free);
  for (; *lists; lists++) {
    if (!add_list (x, *lists, error))
      return NULL;
    n *= list_at (x, x->list->len - 1)->n;
    if (n > WEFT_VARIANTS_MOST) {
      weft_bad_input (error, "found more than %d combinations, wanted shorter lists",
                      WEFT_VARIANTS_MOST);
      return NULL;
    }
  }
  x->n = (uint32_t) n;
  x->cell = g_new0 (struct weft_summary, x->n);
  return g_steal_pointer (&x);
}

void
weft_variants_free (weft_variants *x)
{
  g_ptr_array_unref (x->list);
  g_ptr_array_unref (x->others);
  g_free (x->cell);
  g_free (x);
}

const char *
weft_variants_value (const weft_variants *x, uint32_t cell, unsigned list)
{
  for (unsigned i = x->list->len; i-- > list + 1;)
    cell /= list_at (x, i)->n;
  return list_at (x, list)->value[cell % list_at (x, list)->n];
}

/* ----------------------------------------------------------------- predict */

static void
copy_settings (const weft_settings *from, weft_settings *to)
{
  for (unsigned i = 0; i < weft_settings_count (from); i++) {
    const struct weft_setting *s = weft_settings_at (from, i);
    if (s->default_only)
      weft_settings_add_default (to, s->section, s->key, s->value, s->where);
    else
      weft_settings_add (to, s->section, s->key, s->value, s->where);
  }
}

static gboolean
build_job (const weft_variants *x, uint32_t cell, struct weft_job *job, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();

  copy_settings (x->base, settings);
  for (unsigned i = 0; i < x->list->len; i++) {
    const char *name = list_at (x, i)->name;
    g_autofree char *word = g_strconcat (name, "=", weft_variants_value (x, cell, i), NULL);
    if (!weft_flags_words (word, settings, error))
      return FALSE;
  }
  return weft_job_build (settings, job, error);
}

/* The open cells of one batch. */
struct batch {
  const weft_variants *x;
  const struct weft_variants_run *run;
  const uint32_t *cell;
};

static void
predict (void *user, uint32_t task, void *result)
{
  const struct batch *b = user;
  g_autoptr (GError) error = NULL;
  const struct weft_summary_seer seer = { b->run->see, b->run->user, b->cell[task] };
  struct weft_job job;

  if (build_job (b->x, b->cell[task], &job, &error))
    weft_summary_predict_seen (&job, b->x->executor, result, seer.see ? &seer : NULL);
  else
    weft_summary_refuse (result, error);
}

static gboolean
run_batch (weft_variants *x, const struct weft_variants_run *run, const uint32_t *cell, uint32_t n,
           GError **error)
{
  struct batch batch = { x, run, cell };
  g_autofree struct weft_summary *result = g_new0 (struct weft_summary, n);
  g_autofree gboolean *done = g_new0 (gboolean, n);
  const struct weft_workers tasks = {
    .n_tasks = n,
    .n_workers = run->n_workers,
    .result_bytes = sizeof *result,
    .run = predict,
    .user = &batch
  };

  if (!weft_workers_run (&tasks, result, done, error))
    return FALSE;
  for (uint32_t i = 0; i < n; i++)
    if (done[i])
      x->cell[cell[i]] = result[i];
    else
      return weft_run_error (error, "the process that predicted a combination ended early");
  return TRUE;
}

/* -------------------------------------------------------------------- file */

/* Hash of everything that decides the predictions, except for the values of the lists. */
static char *
job_hash (const weft_variants *x)
{
  g_autoptr (GString) all = g_string_new (x->executor->name);
  uint64_t hash = WEFT_HASH_BEGIN;

  g_string_append_printf (all, "\n%s\n", x->version);
  for (unsigned i = 0; i < weft_settings_count (x->base); i++) {
    const struct weft_setting *s = weft_settings_at (x->base, i);
    g_string_append_printf (all, "%s %s=%s\n", s->section, s->key, s->value);
  }
  for (gsize i = 0; i < all->len; i++)
    hash = weft_hash_byte (hash, (uint8_t) all->str[i]);
  return g_strdup_printf ("%016" G_GINT64_MODIFIER "x", hash);
}

static char *
header (const weft_variants *x)
{
  GString *line = g_string_new (JOB);

  for (unsigned i = 0; i < x->list->len; i++) {
    g_string_append_c (line, ',');
    weft_csv_append (line, list_at (x, i)->name);
  }
  g_string_append (line, "," FATE);
  for (unsigned i = 0; i < WEFT_N_SUMMARY_NUMBER; i++)
    g_string_append_printf (line, ",%s", weft_summary_number_words[i]);
  g_string_append (line, "," REASON);
  return g_string_free (line, FALSE);
}

static void
append_cell (GString *text, const weft_variants *x, uint32_t i, const char *hash)
{
  const struct weft_summary *cell = &x->cell[i];

  g_string_append (text, hash);
  for (unsigned list = 0; list < x->list->len; list++) {
    g_string_append_c (text, ',');
    weft_csv_append (text, weft_variants_value (x, i, list));
  }
  g_string_append_c (text, ',');
  weft_csv_append (text, weft_summary_fate_words[cell->fate]);
  for (unsigned k = 0; k < WEFT_N_SUMMARY_NUMBER; k++) {
    g_autofree char *number =
        weft_summary_has_numbers (cell) ? weft_units_print (cell->number[k]) : g_strdup ("");
    g_string_append_printf (text, ",%s", number);
  }
  g_string_append_c (text, ',');
  weft_csv_append (text, cell->reason);
  g_string_append_c (text, '\n');
}

static gboolean
save (const weft_variants *x, const char *path, GError **error)
{
  g_autofree char *hash = job_hash (x), *head = header (x);
  g_autoptr (GString) text = g_string_new (head);

  g_string_append_c (text, '\n');
  for (guint i = 0; i < x->others->len; i++)
    g_string_append_printf (text, "%s\n", (const char *) x->others->pdata[i]);
  for (uint32_t i = 0; i < x->n; i++)
    if (x->cell[i].fate != WEFT_SUMMARY_OPEN)
      append_cell (text, x, i, hash);
  weft_output *output = weft_output_open (path, error);
  if (!output)
    return FALSE;
  fputs (text->str, weft_output_stream (output)); /* weft_output_close() reports errors */
  return weft_output_close (output, error);
}

/* The combination of a row of the file; x->n if it is not in the lists. */
static uint32_t
cell_of (const weft_variants *x, const weft_csv *csv, unsigned row)
{
  uint32_t cell = 0;

  for (unsigned i = 0; i < x->list->len; i++) {
    const struct weft_variants_list *list = list_at (x, i);
    unsigned at = 0;
    while (at < list->n && strcmp (list->value[at], weft_csv_cell (csv, row, 1 + i)) != 0)
      at++;
    if (at == list->n)
      return x->n;
    cell = cell * list->n + at;
  }
  return cell;
}

static gboolean
read_cell (const weft_variants *x, const weft_csv *csv, unsigned row, struct weft_summary *cell,
           GError **error)
{
  unsigned at = 1 + x->list->len;
  const char *fate = weft_csv_cell (csv, row, at);

  for (cell->fate = WEFT_SUMMARY_OK; cell->fate < WEFT_N_SUMMARY_FATE; cell->fate++)
    if (strcmp (weft_summary_fate_words[cell->fate], fate) == 0)
      break;
  if (cell->fate == WEFT_N_SUMMARY_FATE) {
    g_autofree char *words = g_strjoinv (", ", (char **) weft_summary_fate_words + WEFT_SUMMARY_OK);
    weft_bad_input (error, "%s: found \"%s\", wanted one of %s", FATE, fate, words);
    return weft_csv_blame (csv, row, error);
  }
  for (unsigned k = 0; k < WEFT_N_SUMMARY_NUMBER && weft_summary_has_numbers (cell); k++)
    if (!weft_units_parse (weft_csv_cell (csv, row, at + 1 + k), "", &cell->number[k], error))
      return weft_csv_blame (csv, row, error);
  g_strlcpy (cell->reason, weft_csv_cell (csv, row, at + 1 + WEFT_N_SUMMARY_NUMBER),
             sizeof cell->reason);
  return TRUE;
}

static char *
line_of (const weft_csv *csv, unsigned row)
{
  GString *line = g_string_new (NULL);

  for (unsigned i = 0; i < csv->n_column; i++) {
    if (i)
      g_string_append_c (line, ',');
    weft_csv_append (line, weft_csv_cell (csv, row, i));
  }
  return g_string_free (line, FALSE);
}

/* Whether the file has the columns that these variants would write. */
static gboolean
check_columns (const weft_variants *x, const weft_csv *csv, GError **error)
{
  g_autofree char *wanted = header (x);
  GString *found = g_string_new (NULL);

  for (unsigned i = 0; i < csv->n_column; i++) {
    if (i)
      g_string_append_c (found, ',');
    weft_csv_append (found, csv->column[i]);
  }
  gboolean same = strcmp (found->str, wanted) == 0;
  g_string_free (found, TRUE);
  return same || weft_bad_input (error,
                                 "%s: found another table, wanted the columns %s: name another "
                                 "file, or the settings in the order of the file",
                                 csv->name, wanted);
}

gboolean
weft_variants_load (weft_variants *x, const char *path, GError **error)
{
  g_autofree char *text = NULL, *hash = job_hash (x);
  gsize length;

  if (!g_file_test (path, G_FILE_TEST_EXISTS))
    return TRUE;
  if (!g_file_get_contents (path, &text, &length, error))
    return FALSE;
  g_autoptr (weft_csv) csv = weft_csv_parse (text, (gssize) length, path, error);
  if (!csv || !check_columns (x, csv, error))
    return FALSE;
  for (unsigned row = 0; row < csv->n_row; row++) {
    if (strcmp (weft_csv_cell (csv, row, 0), hash) != 0) {
      weft_bad_input (error,
                      "found a row of another job or version of Weft (%s), wanted rows of this one "
                      "(%s): name another file",
                      weft_csv_cell (csv, row, 0), hash);
      return weft_csv_blame (csv, row, error);
    }
    uint32_t i = cell_of (x, csv, row);
    if (i == x->n) {
      g_ptr_array_add (x->others, line_of (csv, row));
      continue;
    }
    x->known += x->cell[i].fate == WEFT_SUMMARY_OPEN;
    if (!read_cell (x, csv, row, &x->cell[i], error))
      return FALSE;
  }
  return TRUE;
}

void
weft_variants_forget (weft_variants *x)
{
  for (uint32_t i = 0; i < x->n; i++)
    x->cell[i] = (struct weft_summary){ 0 };
  x->known = 0;
}

gboolean
weft_variants_run (weft_variants *x, const struct weft_variants_run *run, GError **error)
{
  g_autofree uint32_t *open = g_new (uint32_t, x->n);
  uint32_t n = 0, batch = BATCH * g_get_num_processors ();

  for (uint32_t i = 0; i < x->n; i++)
    if (x->cell[i].fate == WEFT_SUMMARY_OPEN)
      open[n++] = i;
  for (uint32_t at = 0; at < n; at += batch) {
    if (run->stop && run->stop (run->user))
      return TRUE;
    if (!run_batch (x, run, open + at, MIN (batch, n - at), error) ||
        (run->csv && !save (x, run->csv, error)))
      return FALSE;
    if (run->progress)
      run->progress (run->user, MIN (at + batch, n), n);
  }
  return TRUE;
}
