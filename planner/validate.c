#include "planner/validate.h"
#include "core/plan/allocator.h"
#include "core/base/error.h"
#include "planner/shorten.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Several threads build plans. One thread simulates them in the order of completion, because
 * SimGrid must stay on the thread that initialised it. The number of unfinished rows is limited,
 * so that plans do not fill the memory. Threads are POSIX threads, as in exec_cpu: the thread
 * sanitizer does not see GLib's locks. */
struct run {
  const weft_published *table;
  const weft_assumptions *assumptions;
  const struct weft_validate_options *options;
  weft_validation *validation;
  pthread_mutex_t lock; /* protects the fields below */
  pthread_cond_t changed;
  uint32_t n_begun, n_under_way, most_under_way; /* rows */
  GQueue planned;                                /* struct planned *, to be simulated */
};

/* A row in progress. A row that cannot be predicted has an error and no plan. */
struct planned {
  struct weft_validate_row *row;
  weft_row_job *job;
  struct weft_shortened shortened;
  weft_plan *plan[2]; /* plans of shortened.job[] */
  GError *error;
};

/* ------------------------------------------------------------------------ errors */

static int
compare (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* The smallest of n sorted numbers such that at least `share` of all numbers do not exceed it. */
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

/* Summarises the errors of the predicted rows with one name. */
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

/* Summarises the errors of all rows that count in totals. */
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

/* Each source counts once, however many rows it has. */
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

/* The groups or the sources of all rows; *n is their number. The caller frees the array. */
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

/* The name of the rule that an error reports: the word after "rule " in the message. If there is no
 * such word, the kind of error. */
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

/* Memory of the role that needs most, in bytes, counted as the source of the measurement counts
 * it. */
static double
counted_bytes (const weft_plan *plan, enum weft_measured_memory memory)
{
  double most = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    double libraries = (double) weft_plan_reserved_bytes (plan, role);
    double used = (double) weft_plan_peak_bytes (plan, role) - libraries, reserved = used;
    if (plan->job.stack.live_memory) {
      struct weft_allocated allocated = weft_allocator_run (plan, role);
      used = allocated.peak;
      reserved = weft_allocator_reserved (plan, role, &allocated);
    }
    if (memory == WEFT_MEMORY_DEVICE)
      most = fmax (most, reserved + libraries);
    else
      most = fmax (most, (memory == WEFT_MEMORY_RESERVED ? reserved : used) +
                             plan->job.stack.workspace_bytes);
  }
  return most;
}

static struct planned *
plan_row (const struct run *run, struct weft_validate_row *row)
{
  struct planned *p = g_new0 (struct planned, 1);

  p->row = row;
  p->job = weft_row_job_new (run->assumptions, run->table, p->row->index, &p->error);
  row->apart = p->job->totals == WEFT_TOTALS_APART;
  if (!p->error)
    weft_shorten (&p->job->job, &p->shortened);
  for (uint32_t i = 0; !p->error && i < p->shortened.n; i++)
    p->plan[i] = weft_plan_new (&p->shortened.job[i], &p->error);
  return p;
}

static void
predict (const struct run *run, struct planned *p)
{
  const struct weft_exec_ops *executor = run->options->executor;
  struct weft_exec_options folded = { 0 };
  double seconds[2], bytes[2];

  if (!p->error && p->job->graph == WEFT_MEASURED_GRAPH_STEP)
    weft_own_options_set (&folded.own, executor->options, "graph", "true", &p->error);
  for (uint32_t i = 0; !p->error && i < p->shortened.n; i++) {
    g_autoptr (weft_timeline) timeline =
        weft_exec_run (executor, p->plan[i], &folded, &p->error);
    seconds[i] = timeline ? timeline->seconds : NAN;
    bytes[i] = counted_bytes (p->plan[i], p->job->memory);
  }
  if (p->error)
    return;
  p->row->predicted_s = weft_shortened_seconds (&p->shortened, seconds);
  p->row->measured_s = weft_row_job_seconds (p->job);
  p->row->predicted_gib = weft_shortened_bytes (&p->shortened, bytes) / (1 << 30);
}

static void
finish (const struct run *run, struct planned *p)
{
  struct weft_validate_row *row = p->row;

  row->measured_gib = weft_published_number (
      weft_published_cell (run->table, row->index, WEFT_COLUMN_peak_mem_gib));
  if (p->job->gigabyte == WEFT_GIGABYTE_DECIMAL)
    row->measured_gib *= 1e9 / (1 << 30);
  row->time_error = row->predicted_s / row->measured_s - 1;
  row->memory_error = row->predicted_gib / row->measured_gib - 1;
  if (p->error) {
    row->rule = rule_of (p->error);
    row->why = g_strdup (p->error->message);
  }
}

static void
planned_free (struct planned *p)
{
  g_clear_error (&p->error);
  g_clear_pointer (&p->plan[0], weft_plan_free);
  g_clear_pointer (&p->plan[1], weft_plan_free);
  weft_row_job_free (p->job);
  g_free (p);
}

/* ------------------------------------------------------------------ all rows */

/* SOURCE of an id SOURCE-NUMBER. The caller frees it. */
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

/* Waits while the number of rows in progress is at its limit, then returns the next row; NULL if no
 * row is left. */
static struct weft_validate_row *
begin_row (struct run *run)
{
  weft_validation *v = run->validation;
  struct weft_validate_row *row = NULL;

  pthread_mutex_lock (&run->lock);
  while (run->n_begun < v->n_row && run->n_under_way == run->most_under_way)
    pthread_cond_wait (&run->changed, &run->lock);
  if (run->n_begun < v->n_row) {
    row = &v->row[run->n_begun++];
    run->n_under_way++;
  }
  pthread_mutex_unlock (&run->lock);
  return row;
}

static void *
planner_main (void *data)
{
  struct run *run = data;

  for (struct weft_validate_row *row; (row = begin_row (run));) {
    struct planned *p = plan_row (run, row);
    pthread_mutex_lock (&run->lock);
    g_queue_push_tail (&run->planned, p);
    pthread_cond_broadcast (&run->changed);
    pthread_mutex_unlock (&run->lock);
  }
  return NULL;
}

static struct planned *
take_planned (struct run *run)
{
  pthread_mutex_lock (&run->lock);
  while (g_queue_is_empty (&run->planned))
    pthread_cond_wait (&run->changed, &run->lock);
  struct planned *p = g_queue_pop_head (&run->planned);
  pthread_mutex_unlock (&run->lock);
  return p;
}

static void
end_row (struct run *run, struct planned *p)
{
  planned_free (p);
  pthread_mutex_lock (&run->lock);
  run->n_under_way--;
  pthread_cond_broadcast (&run->changed);
  pthread_mutex_unlock (&run->lock);
}

/* Simulates all planned rows as they are completed. Results are stored in the rows, so the order of
 * completion does not matter. */
static void
predict_planned (struct run *run)
{
  const struct weft_validate_options *o = run->options;
  uint32_t n_row = run->validation->n_row;

  for (uint32_t done = 0; done < n_row; done++) {
    struct planned *p = take_planned (run);
    predict (run, p);
    finish (run, p);
    end_row (run, p);
    if (o->progress)
      o->progress (o->user, done + 1, n_row);
  }
}

/* Predicts all rows with up to `jobs` threads. If only some threads can be created, these threads
 * plan all rows. */
static gboolean
predict_all (struct run *run, uint32_t jobs, GError **error)
{
  g_autofree pthread_t *thread = g_new0 (pthread_t, jobs);
  uint32_t n = 0;
  int failed = 0;

  pthread_mutex_init (&run->lock, NULL);
  pthread_cond_init (&run->changed, NULL);
  g_queue_init (&run->planned);
  run->most_under_way = jobs + 1;
  while (n < jobs && !(failed = pthread_create (&thread[n], NULL, planner_main, run)))
    n++;
  if (n > 0)
    predict_planned (run);
  for (uint32_t i = 0; i < n; i++)
    pthread_join (thread[i], NULL);
  pthread_mutex_destroy (&run->lock);
  pthread_cond_destroy (&run->changed);
  return n > 0 || weft_run_error (error, "no thread to make plans: %s", g_strerror (failed));
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
  if (!predict_all (&run, options->jobs ? options->jobs : g_get_num_processors (), error))
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
    g_free (validation->row[i].rule);
    g_free (validation->row[i].why);
  }
  g_free (validation->row);
  g_free (validation->group);
  g_free (validation->source);
  g_free (validation);
}
