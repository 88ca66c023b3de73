#include "planner/validate.h"
#include "core/base/error.h"
#include "planner/workers.h"
#include "planner/row_plans.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct run {
  const weft_published *table;
  const weft_assumptions *assumptions;
  const struct weft_validate_options *options;
  weft_validation *validation;
};

/* The result that a worker process returns for one row. Messages that are too long are cut off. */
struct outcome {
  double predicted_s, measured_s, predicted_bytes, measured_bytes;
  gboolean apart, refused;
  struct weft_traits traits;
  double sequences;
  uint32_t strategy;
  char sweep[128];
  char rule[64], why[1024];
};

/* ------------------------------------------------------------------------ errors */

static int
compare (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* The smallest of n sorted numbers that is at least as large as a fraction `share` of all
 * numbers. */
static double
quantile (const double *sorted, uint32_t n, double share)
{
  uint32_t at = (uint32_t) ceil (share * n);
  return sorted[MAX (at, 1) - 1];
}

static double
median (const double *sorted, uint32_t n)
{
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

struct weft_validate_errors
weft_validate_errors_of (const double *error, uint32_t n)
{
  struct weft_validate_errors e = { 0 };
  g_autofree double *size = g_new (double, n + 1);

  for (uint32_t i = 0; i < n; i++) {
    if (isnan (error[i]))
      continue;
    size[e.n++] = fabs (error[i]);
    e.bias += error[i];
    e.mape += fabs (error[i]);
  }
  if (e.n == 0)
    return (struct weft_validate_errors){ 0, NAN, NAN, NAN, NAN, NAN };
  qsort (size, e.n, sizeof *size, compare);
  e.bias /= e.n;
  e.mape /= e.n;
  e.median = median (size, e.n);
  e.p90 = quantile (size, e.n, 0.9);
  e.max = size[e.n - 1];
  return e;
}

typedef const char *name_of (const struct weft_validate_row *row);

static const char *
group_of (const struct weft_validate_row *row)
{
  return row->group;
}

static const char *
source_of (const struct weft_validate_row *row)
{
  return row->source;
}

/* Computes the errors of a group: of all predicted rows for which name() returns its name. */
static void
sum_up (const weft_validation *v, name_of *name, struct weft_validate_group *group)
{
  g_autofree double *times = g_new (double, v->n_row), *memories = g_new (double, v->n_row);
  uint32_t n = 0;

  group->apart = TRUE;
  for (uint32_t i = 0; i < v->n_row; i++) {
    const struct weft_validate_row *row = &v->row[i];
    if (row->tier == 'C' || row->rule || !g_str_equal (name (row), group->name))
      continue;
    group->apart &= row->apart;
    times[n] = row->time_error;
    memories[n++] = row->memory_error;
  }
  group->time = weft_validate_errors_of (times, n);
  group->memory = weft_validate_errors_of (memories, n);
}

/* Computes the summary of the errors of all rows that count in totals. */
static void
sum_up_all (weft_validation *v)
{
  g_autofree double *times = g_new (double, v->n_row), *memories = g_new (double, v->n_row);
  uint32_t n = 0;

  for (uint32_t i = 0; i < v->n_row; i++) {
    const struct weft_validate_row *row = &v->row[i];
    if (row->tier == 'C' || row->apart)
      continue;
    times[n] = row->time_error;
    memories[n++] = row->memory_error;
  }
  v->time = weft_validate_errors_of (times, n);
  v->memory = weft_validate_errors_of (memories, n);
}

/* Computes the summary over sources: every source has the same weight, however many rows it has. */
static void
average_sources (weft_validation *v)
{
  double time = 0, memory = 0;
  uint32_t n_time = 0, n_memory = 0;

  for (uint32_t i = 0; i < v->n_source; i++) {
    const struct weft_validate_group *source = &v->source[i];
    if (source->apart)
      continue;
    time += source->time.n ? source->time.mape : 0;
    memory += source->memory.n ? source->memory.mape : 0;
    n_time += source->time.n > 0;
    n_memory += source->memory.n > 0;
  }
  v->time_by_source = n_time ? time / n_time : NAN;
  v->memory_by_source = n_memory ? memory / n_memory : NAN;
}

static int
compare_names (gconstpointer a, gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

/* The list of all groups, or of all sources, of the rows; *n is their number. The caller frees the
 * array. */
static struct weft_validate_group *
group_up (const weft_validation *v, name_of *name, uint32_t *n)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new ();

  for (uint32_t i = 0; i < v->n_row; i++)
    if (!g_ptr_array_find_with_equal_func (names, name (&v->row[i]), g_str_equal, NULL))
      g_ptr_array_add (names, (char *) name (&v->row[i]));
  g_ptr_array_sort (names, compare_names);
  struct weft_validate_group *all = g_new0 (struct weft_validate_group, names->len + 1);
  for (uint32_t i = 0; i < names->len; i++) {
    struct weft_validate_group *group = &all[*n];
    group->name = g_ptr_array_index (names, i);
    sum_up (v, name, group);
    *n += group->time.n || group->memory.n;
  }
  return all;
}

/* ------------------------------------------------------------------ one row */

/* The name of the rule that an error reports: the word after "rule " in the message. If the message
 * has no such word, the kind of error. */
static char *
rule_of (const GError *error)
{
  const char *text = strstr (error->message, "rule ");

  if (text) {
    text += strlen ("rule ");
    return g_strndup (text, strcspn (text, ":"));
  }
  if (strstr (error->message, "not built yet"))
    return g_strdup ("not_built");
  return g_strdup (error->code == WEFT_ERROR_INPUT ? "input" : "run");
}

static void
refuse (struct outcome *outcome, const GError *error)
{
  g_autofree char *rule = rule_of (error);

  outcome->refused = TRUE;
  g_strlcpy (outcome->rule, rule, sizeof outcome->rule);
  g_strlcpy (outcome->why, error->message, sizeof outcome->why);
}

/* Writes a name that is equal for all rows of a sweep: runs of one source with the same model,
 * sequence length and GPU. */
static void
name_sweep (const weft_row_job *job, const char *source, char *sweep, gsize size)
{
  char *const *cell = job->cell;
  g_autofree char *shape =
      g_strjoin ("x", cell[WEFT_COLUMN_layers], cell[WEFT_COLUMN_hidden], cell[WEFT_COLUMN_heads],
                 cell[WEFT_COLUMN_kv_heads], NULL);

  g_snprintf (sweep, size, "%s/%s/%s/%s", source,
              *cell[WEFT_COLUMN_model_ref] ? cell[WEFT_COLUMN_model_ref] : shape,
              cell[WEFT_COLUMN_seq], cell[WEFT_COLUMN_gpu]);
}

/* A hash of the settings of a strategy: the knobs that differ from their defaults, the micro batch
 * and the precision. Two runs of a sweep have equal hashes if they differ only in GPUs and
 * batch. */
static uint32_t
hash_strategy (const struct weft_job *job)
{
  g_autoptr (GString) text = g_string_new (NULL);

  g_string_append_printf (text, "%" G_GINT64_FORMAT ",%s", job->train.micro_batch_size,
                          weft_precision_words[job->train.precision]);
  for (unsigned i = 0; i < weft_strategy_table.n; i++) {
    const struct weft_field *field = &weft_strategy_table.field[i];
    if (weft_field_is_default (field, job->strategy.at[i]))
      continue;
    g_autofree char *value = weft_field_print (field, job->strategy.at[i]);
    g_string_append_printf (text, ",%s=%s", field->name, value);
  }
  return g_str_hash (text->str);
}

static void
describe (const weft_row_job *job, const char *source, struct outcome *outcome)
{
  outcome->traits = weft_traits_of (&job->job);
  outcome->sequences = (double) job->job.train.global_batch_size;
  outcome->strategy = hash_strategy (&job->job);
  name_sweep (job, source, outcome->sweep, sizeof outcome->sweep);
}

static void
predict_row (void *user, uint32_t task, void *result)
{
  const struct run *run = user;
  struct outcome *outcome = result;
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_row_plans) plans = NULL;
  weft_row_job *job = weft_row_job_new (run->assumptions, run->table,
                                        run->validation->row[task].index, &error);

  outcome->apart = job->totals == WEFT_TOTALS_APART;
  outcome->measured_s = error ? NAN : weft_row_job_seconds (job);
  outcome->measured_bytes = weft_row_job_bytes (job);
  if (!error)
    describe (job, run->validation->row[task].source, outcome);
  if (error)
    weft_row_job_free (job);
  else if ((plans = weft_row_plans_new (job, &error))) {
    outcome->predicted_s = weft_row_plans_seconds (plans, run->options->executor, &error);
    outcome->predicted_bytes = weft_row_plans_bytes (plans);
  }
  if (error)
    refuse (outcome, error);
}

static void
finish (struct weft_validate_row *row, const struct outcome *outcome)
{
  row->apart = outcome->apart;
  row->measured_gib = outcome->measured_bytes / (1 << 30);
  if (outcome->refused) {
    row->rule = g_strdup (outcome->rule);
    row->why = g_strdup (outcome->why);
    row->time_error = row->memory_error = NAN;
    return;
  }
  row->traits = outcome->traits;
  row->sweep = g_strdup (outcome->sweep);
  row->sequences = outcome->sequences;
  row->strategy = outcome->strategy;
  row->predicted_s = outcome->predicted_s;
  row->measured_s = outcome->measured_s;
  row->predicted_gib = outcome->predicted_bytes / (1 << 30);
  row->time_error = row->predicted_s / row->measured_s - 1;
  row->memory_error = row->predicted_gib / row->measured_gib - 1;
}

/* ------------------------------------------------------------------ all rows */

/* The SOURCE part of a row's id SOURCE-NUMBER. The caller frees the text. */
static char *
source_name (const char *id)
{
  const char *dash = strrchr (id, '-');
  return dash ? g_strndup (id, dash - id) : g_strdup (id);
}

static gboolean
is_asked_for (const weft_published *table, unsigned row, const struct weft_validate_options *o)
{
  const char *id = weft_published_cell (table, row, WEFT_COLUMN_id);
  const char *source = weft_published_cell (table, row, WEFT_COLUMN_source);
  g_autofree char *prefix = source_name (id);

  if (o->tier && !strchr (o->tier, *weft_published_cell (table, row, WEFT_COLUMN_tier)))
    return FALSE;
  if (o->group &&
      !g_pattern_match_simple (o->group, weft_published_cell (table, row, WEFT_COLUMN_group)))
    return FALSE;
  return !o->source || g_str_equal (o->source, prefix) ||
         g_pattern_match_simple (o->source, source);
}

static weft_validation *
choose_rows (const weft_published *table, const struct weft_validate_options *options)
{
  weft_validation *v = g_new0 (weft_validation, 1);

  v->row = g_new0 (struct weft_validate_row, table->csv->n_row);
  for (unsigned i = 0; i < table->csv->n_row; i++)
    if (is_asked_for (table, i, options))
      v->row[v->n_row++] = (struct weft_validate_row){
        .index = i,
        .id = weft_published_cell (table, i, WEFT_COLUMN_id),
        .group = weft_published_cell (table, i, WEFT_COLUMN_group),
        .source = source_name (weft_published_cell (table, i, WEFT_COLUMN_id)),
        .tier = *weft_published_cell (table, i, WEFT_COLUMN_tier),
        .predicted_s = NAN,
        .measured_s = NAN,
        .predicted_gib = NAN,
      };
  return v;
}

/* Predicts all rows in up to `jobs` processes. */
static gboolean
predict_all (struct run *run, GError **error)
{
  const struct weft_validate_options *o = run->options;
  weft_validation *v = run->validation;
  g_autofree struct outcome *outcome = g_new (struct outcome, v->n_row);
  g_autofree gboolean *done = g_new (gboolean, v->n_row);
  const struct weft_workers workers = { .n_tasks = v->n_row,
                                  .n_workers = o->jobs,
                                  .result_bytes = sizeof *outcome,
                                  .run = predict_row,
                                  .user = run,
                                  .progress = o->progress,
                                  .progress_user = o->user };

  if (!weft_workers_run (&workers, outcome, done, error))
    return FALSE;
  for (uint32_t i = 0; i < v->n_row; i++) {
    if (!done[i])
      outcome[i] = (struct outcome){ .refused = TRUE,
                                     .measured_bytes = NAN,
                                     .rule = "run",
                                     .why = "the process that predicted this row was ended" };
    finish (&v->row[i], &outcome[i]);
  }
  return TRUE;
}

weft_validation *
weft_validate (const weft_published *table, const weft_assumptions *assumptions,
               const struct weft_validate_options *options, GError **error)
{
  gint64 start = g_get_monotonic_time ();
  g_autoptr (weft_validation) v = choose_rows (table, options);
  struct run run = {
    .table = table, .assumptions = assumptions, .options = options, .validation = v
  };

  if (v->n_row == 0) {
    weft_bad_input (error, "%s: found no row that matches --tier, --group and --source",
                    table->csv->name);
    return NULL;
  }
  if (!predict_all (&run, error))
    return NULL;
  for (uint32_t i = 0; i < v->n_row; i++)
    v->n_predicted += !v->row[i].rule;
  sum_up_all (v);
  v->group = group_up (v, group_of, &v->n_group);
  v->source = group_up (v, source_of, &v->n_source);
  average_sources (v);
  v->wall_seconds = (g_get_monotonic_time () - start) * 1e-6;
  return g_steal_pointer (&v);
}

void
weft_validation_free (weft_validation *validation)
{
  for (uint32_t i = 0; i < validation->n_row; i++) {
    g_free (validation->row[i].source);
    g_free (validation->row[i].sweep);
    g_free (validation->row[i].rule);
    g_free (validation->row[i].why);
  }
  g_free (validation->row);
  g_free (validation->group);
  g_free (validation->source);
  g_free (validation);
}
