#include "planner/fit.h"
#include "core/base/error.h"
#include "planner/least_squares.h"
#include "planner/row_plans.h"
#include "planner/workers.h"
#include <math.h>
#include <string.h>

const char *const weft_fit_state_names[] = { WEFT_FIT_STATE_LIST (WEFT_WORD_TEXT) NULL };

/* A smaller slope of a residual is rounding: the residual does not depend on the constant. */
#define NO_SLOPE 1e-5

/* The fit ends after a round that reduces the loss by less than this share of it. */
#define ENOUGH 2e-3

/* A row of the table that the fit uses. */
struct row {
  unsigned index;  /* row of the table */
  uint32_t source;
  double measured_s, measured_bytes; /* NaN: not measured */
};

/* Residuals: the time of every row, then the memory of every row. */
struct fit {
  const weft_published *table;
  const weft_assumptions *assumptions;
  const weft_constants *constants;
  const struct weft_fit_options *options;
  GArray *row;       /* struct row */
  GHashTable *series; /* series_of() a row: its place in `row` */
  GPtrArray *source; /* names, by struct row.source */
  struct weft_least_squares problem;
  const char *stage; /* name of the current stage, for progress reports */
  const double *at;  /* logarithms of the constants; for row i they begin at at + i * stride */
  size_t stride;
  gboolean sloped;   /* whether the caller needs slopes (derivatives of the residuals) */
};

static struct row *
row_at (const struct fit *f, uint32_t i)
{
  return &g_array_index (f->row, struct row, i);
}

/* -------------------------------------------------------- measurements that the fit uses */

static uint32_t
source_of (struct fit *f, const char *id)
{
  const char *dash = strrchr (id, '-');
  char *name = dash ? g_strndup (id, dash - id) : g_strdup (id);
  guint at;

  if (g_ptr_array_find_with_equal_func (f->source, name, g_str_equal, &at)) {
    g_free (name);
    return at;
  }
  g_ptr_array_add (f->source, name);
  return f->source->len - 1;
}

/* Whether a column differs between the runs of a weak-scaling series: one job on more and more
 * GPUs, with a global batch in proportion to the GPUs. */
static gboolean
grows (enum weft_published_column column)
{
  return column == WEFT_COLUMN_id || column == WEFT_COLUMN_num_gpus || column == WEFT_COLUMN_dp ||
         column == WEFT_COLUMN_global_batch || column >= WEFT_COLUMN_iter_time_s;
}

static double
number_in (const struct fit *f, unsigned index, enum weft_published_column column)
{
  return weft_published_number (weft_published_cell (f->table, index, column));
}

/* The text that all runs of the series of a row have in common. The caller frees it. */
static char *
series_of (const struct fit *f, unsigned index)
{
  GString *text = g_string_new (NULL);
  double gpus = number_in (f, index, WEFT_COLUMN_num_gpus);
  double batch = number_in (f, index, WEFT_COLUMN_global_batch);

  for (unsigned column = 0; column < WEFT_N_COLUMN; column++)
    if (!grows ((enum weft_published_column) column))
      g_string_append_printf (
          text, "%s,",
          weft_published_cell (f->table, index, (enum weft_published_column) column));
  g_string_append_printf (text, "%g", batch / gpus);
  return g_string_free (text, FALSE);
}

/* Adds a row. With `thin`, a weak-scaling series has only its row with the fewest GPUs, because the
 * other rows have nearly the same errors, and their programs are long. */
static void
add_to_series (struct fit *f, const struct row *row)
{
  double gpus = number_in (f, row->index, WEFT_COLUMN_num_gpus);
  g_autofree char *series = series_of (f, row->index);
  gpointer known;

  if (!f->options->thin || !isnan (row->measured_bytes)) {
    g_array_append_val (f->row, *row);
    return;
  }
  if (!g_hash_table_lookup_extended (f->series, series, NULL, &known)) {
    g_hash_table_insert (f->series, g_steal_pointer (&series), GUINT_TO_POINTER (f->row->len));
    g_array_append_val (f->row, *row);
    return;
  }
  struct row *smallest = row_at (f, GPOINTER_TO_UINT (known));
  if (gpus < number_in (f, smallest->index, WEFT_COLUMN_num_gpus))
    *smallest = *row;
}

/* Adds a row of tier A or B whose job obeys the rules and whose time or memory was measured. */
static void
add_row (struct fit *f, unsigned index, uint32_t *n_refused)
{
  g_autoptr (GError) refusal = NULL;
  const char *id = weft_published_cell (f->table, index, WEFT_COLUMN_id);

  if (*weft_published_cell (f->table, index, WEFT_COLUMN_tier) == 'C')
    return;
  g_autoptr (weft_row_job) job =
      weft_row_job_new (f->assumptions, f->table, index, &refusal);
  gboolean refused = refusal || !weft_cluster_one_kind (&job->job.cluster, "weft fit", &refusal);
  *n_refused += refused;
  if (refused || job->totals == WEFT_TOTALS_APART)
    return;
  struct row row = { index, source_of (f, id), weft_row_job_seconds (job),
                     weft_row_job_bytes (job) };
  if (f->options->source &&
      !g_pattern_match_simple (f->options->source, f->source->pdata[row.source]))
    return;
  if (!isnan (row.measured_s) || !isnan (row.measured_bytes))
    add_to_series (f, &row);
}

/* ------------------------------------------------------------------------- predictions */

struct outcome {
  double residual[2]; /* time, memory */
  double slope[];      /* by constant: slopes of the time, then of the memory */
};

/* Predicts time and memory of a row with the constants exp (at[k]), and sets its two residuals. */
static void
predict (const struct fit *f, const struct row *row, weft_row_plans *plans,
         const gboolean *applies, const double *at, double residual[2])
{
  uint32_t n = f->constants->n;
  union weft_cluster_fields cluster = plans->job->job.cluster.f;
  union weft_stack stack = plans->job->job.stack;
  g_autofree double *value = g_new (double, n + 1);

  for (uint32_t k = 0; k < n; k++)
    value[k] = exp (at[k]);
  weft_constants_set (f->constants, applies, value, &cluster, &stack);
  weft_row_plans_price (plans, &cluster, &stack);
  residual[0] = isnan (row->measured_s)
                    ? NAN
                    : log (weft_row_plans_seconds (plans, f->options->executor, NULL) /
                           row->measured_s);
  residual[1] = isnan (row->measured_bytes)
                    ? NAN
                    : log (weft_row_plans_bytes (plans) / row->measured_bytes);
}

/* The change of the logarithm of a constant from which its slope is computed: negative if a
 * positive change would exceed the upper bound. */
static double
change_of (const struct fit *f, uint32_t k, double at)
{
  return at + WEFT_FIT_CHANGE > f->problem.high[k] ? -WEFT_FIT_CHANGE : WEFT_FIT_CHANGE;
}

static void
find_slopes (const struct fit *f, const struct row *row, weft_row_plans *plans,
             const gboolean *applies, const double *at, struct outcome *outcome)
{
  uint32_t n = f->constants->n;
  g_autofree double *changed = g_memdup2 (at, n * sizeof *at);
  double residual[2];

  for (uint32_t k = 0; k < n; k++) {
    double change = change_of (f, k, at[k]);
    if (!applies[k])
      continue;
    changed[k] = at[k] + change;
    predict (f, row, plans, applies, changed, residual);
    changed[k] = at[k];
    for (int kind = 0; kind < 2; kind++) {
      double slope = (residual[kind] - outcome->residual[kind]) / change;
      outcome->slope[kind * n + k] = fabs (slope) > NO_SLOPE ? slope : 0; /* NaN: 0 */
    }
  }
}

static void
predict_task (void *user, uint32_t task, void *result)
{
  const struct fit *f = user;
  const struct row *row = row_at (f, task);
  struct outcome *outcome = result;
  const double *at = f->at + task * f->stride;
  g_autofree gboolean *applies = g_new0 (gboolean, f->constants->n + 1);
  weft_row_job *job = weft_row_job_new (f->assumptions, f->table, row->index, NULL);

  weft_constants_of (f->constants, job, applies);
  g_autoptr (weft_row_plans) plans = weft_row_plans_new (job, NULL);
  outcome->residual[0] = outcome->residual[1] = NAN;
  if (!plans)
    return;
  predict (f, row, plans, applies, at, outcome->residual);
  if (f->sloped)
    find_slopes (f, row, plans, applies, at, outcome);
}

static void
report (void *user, uint32_t done, uint32_t of)
{
  const struct fit *f = user;

  if (f->options->progress)
    f->options->progress (f->options->user, f->stage, done, of);
}

/* Predicts all rows. at + i * stride: logarithms of the constants of row i. Sets the residuals
 * r[n_r] and, unless `slope` is NULL, the slopes. */
static gboolean
predict_rows (struct fit *f, const char *stage, const double *at, size_t stride, double *r,
              double *slope, GError **error)
{
  uint32_t n_row = f->row->len, n = f->constants->n;
  size_t bytes = sizeof (struct outcome) + 2 * n * sizeof (double);
  g_autofree char *results = g_malloc (n_row * bytes);
  g_autofree gboolean *done = g_new (gboolean, n_row);
  const struct weft_workers workers = { .n_tasks = n_row,
                                        .n_workers = f->options->jobs,
                                        .result_bytes = bytes,
                                        .run = predict_task,
                                        .user = f,
                                        .progress = report,
                                        .progress_user = f };

  f->stage = stage;
  f->at = at;
  f->stride = stride;
  f->sloped = slope != NULL;
  if (!weft_workers_run (&workers, results, done, error))
    return FALSE;
  for (uint32_t i = 0; i < n_row; i++)
    for (int kind = 0; kind < 2; kind++) {
      const struct outcome *outcome = (const void *) (results + i * bytes);
      if (!done[i])
        return weft_run_error (error, "the process that predicted row %s was ended",
                               weft_published_cell (f->table, row_at (f, i)->index,
                                                    WEFT_COLUMN_id));
      r[kind * n_row + i] = outcome->residual[kind];
      if (slope)
        memcpy (slope + ((size_t) kind * n_row + i) * n, outcome->slope + kind * n,
                n * sizeof *slope);
    }
  return TRUE;
}

/* ------------------------------------------------------------------------------ rounds */

/* The state of the search. */
struct search {
  double *x, *r, *slope; /* [constants], [residuals], [residuals][constants] */
  double loss;
};

/* Searches along the step for a smaller loss: the whole step, then parts of it. */
static gboolean
take_step (struct fit *f, struct search *s, gboolean *better, GError **error)
{
  const struct weft_least_squares *p = &f->problem;
  g_autofree double *next = g_new (double, p->n_x + 1), *tried = g_new (double, p->n_x + 1);
  g_autofree double *r = g_new (double, p->n_r + 1);

  *better = FALSE;
  weft_least_squares_step (p, s->x, s->r, s->slope, next);
  for (double part = 1; part > 0.2 && !*better; part /= 2) {
    for (uint32_t k = 0; k < p->n_x; k++)
      tried[k] = s->x[k] + part * (next[k] - s->x[k]);
    if (!predict_rows (f, "trying a step", tried, 0, r, NULL, error))
      return FALSE;
    double loss = weft_least_squares_loss (p, tried, r);
    *better = loss < s->loss * (1 - ENOUGH);
    if (loss < s->loss) {
      memcpy (s->x, tried, p->n_x * sizeof *s->x);
      memcpy (s->r, r, p->n_r * sizeof *s->r);
      s->loss = loss;
    }
  }
  return TRUE;
}

/* Each round computes slopes and takes a step. At the end the slopes are those of the last x. */
static gboolean
search (struct fit *f, struct search *s, uint32_t *n_round, GError **error)
{
  gboolean better = TRUE;

  for (*n_round = 0;; (*n_round)++) {
    if (!predict_rows (f, "slopes", s->x, 0, s->r, s->slope, error))
      return FALSE;
    s->loss = weft_least_squares_loss (&f->problem, s->x, s->r);
    if (!better || *n_round == f->options->most_rounds)
      return TRUE;
    if (!take_step (f, s, &better, error))
      return FALSE;
  }
}

/* ------------------------------------------------------------------------------ errors */

/* Errors of one source; `kind` 0: time, 1: memory. */
static struct weft_fit_error
error_of (const struct fit *f, const double *r, uint32_t source, int kind)
{
  struct weft_fit_error e = { 0 };

  for (uint32_t i = 0; i < f->row->len; i++) {
    double residual = r[kind * f->row->len + i];
    if (row_at (f, i)->source != source || isnan (residual))
      continue;
    e.n++;
    e.mean += fabs (expm1 (residual));
    e.bias += expm1 (residual);
  }
  e.mean = e.n ? e.mean / e.n : NAN;
  e.bias = e.n ? e.bias / e.n : NAN;
  return e;
}

/* The mean of the sources' mean errors. */
static double
mean_of (const struct fit *f, const double *r, int kind)
{
  double sum = 0;
  uint32_t n = 0;

  for (uint32_t s = 0; s < f->source->len; s++) {
    struct weft_fit_error e = error_of (f, r, s, kind);
    sum += e.n ? e.mean : 0;
    n += e.n > 0;
  }
  return n ? sum / n : NAN;
}

static void
note_errors (const struct fit *f, const double *r, enum weft_fit_state state, weft_fit *fit)
{
  for (uint32_t s = 0; s < f->source->len; s++) {
    fit->source[s].time[state] = error_of (f, r, s, 0);
    fit->source[s].memory[state] = error_of (f, r, s, 1);
  }
  fit->time[state] = mean_of (f, r, 0);
  fit->memory[state] = mean_of (f, r, 1);
}

/* ------------------------------------------------------------- without a source or a constant */

/* Predicts the published runs of each source with constants that were fitted without the runs of
 * this source. */
static gboolean
leave_out (struct fit *f, const struct search *s, weft_fit *fit, GError **error)
{
  const struct weft_least_squares *p = &f->problem;
  uint32_t n_row = f->row->len, n = p->n_x;
  g_autofree double *at = g_new (double, (size_t) n_row * n + 1), *weight = g_new (double, p->n_r);
  g_autofree double *x = g_new (double, n + 1), *r = g_new (double, p->n_r + 1);
  struct weft_least_squares without = *p;

  without.weight = weight;
  for (uint32_t source = 0; source < f->source->len; source++) {
    for (uint32_t i = 0; i < p->n_r; i++)
      weight[i] = row_at (f, i % n_row)->source == source ? 0 : p->weight[i];
    weft_least_squares_step (&without, s->x, s->r, s->slope, x);
    for (uint32_t i = 0; i < n_row; i++)
      if (row_at (f, i)->source == source)
        memcpy (at + (size_t) i * n, x, n * sizeof *x);
  }
  if (!predict_rows (f, "sources left out", at, n, r, NULL, error))
    return FALSE;
  note_errors (f, r, WEFT_FIT_LEFT_OUT, fit);
  return TRUE;
}

/* Computes the mean errors with constant k at its prior value, in the linear model. */
static void
without_constant (const struct fit *f, const struct search *s, uint32_t k,
                  struct weft_fitted *fitted)
{
  const struct weft_least_squares *p = &f->problem;
  g_autofree double *x = g_memdup2 (s->x, p->n_x * sizeof *s->x);
  g_autofree double *next = g_new (double, p->n_x), *r = g_memdup2 (s->r, p->n_r * sizeof *s->r);
  g_autofree double *low = g_memdup2 (p->low, p->n_x * sizeof *p->low);
  g_autofree double *high = g_memdup2 (p->high, p->n_x * sizeof *p->high);
  struct weft_least_squares fixed = *p;

  fixed.low = low;
  fixed.high = high;
  low[k] = high[k] = p->prior[k];
  weft_least_squares_step (&fixed, x, r, s->slope, next);
  for (uint32_t i = 0; i < p->n_r; i++)
    for (uint32_t l = 0; l < p->n_x; l++)
      r[i] += s->slope[(size_t) i * p->n_x + l] * (next[l] - x[l]);
  fitted->time_without = mean_of (f, r, 0);
  fitted->memory_without = mean_of (f, r, 1);
}

static void
describe (const struct fit *f, const struct search *s, weft_fit *fit)
{
  const struct weft_least_squares *p = &f->problem;
  g_autofree double *error = g_new (double, p->n_x + 1);

  weft_least_squares_errors (p, s->r, s->slope, error);
  for (uint32_t k = 0; k < p->n_x; k++) {
    struct weft_fitted *fitted = &fit->constant[k];
    fitted->value = exp (s->x[k]);
    fitted->standard_error = error[k];
    fitted->on_bound = s->x[k] <= p->low[k] + 1e-6 || s->x[k] >= p->high[k] - 1e-6;
    for (uint32_t i = 0; i < p->n_r; i++) {
      double slope = s->slope[(size_t) i * p->n_x + k];
      gboolean depends = slope != 0 && !isnan (s->r[i]);
      fitted->n_time += depends && i < f->row->len;
      fitted->n_memory += depends && i >= f->row->len;
      fitted->sensitivity += depends ? fabs (slope) : 0;
    }
    fitted->sensitivity /= fmax (1, fitted->n_time + fitted->n_memory);
    without_constant (f, s, k, fitted);
  }
}

/* ------------------------------------------------------------------------------- the fit */

/* Sets the weights of residuals and the priors. The caller frees what the problem points to. */
static void
state_problem (struct fit *f)
{
  uint32_t n_row = f->row->len, n = f->constants->n;
  double *weight = g_new0 (double, 2 * n_row + 1), *prior = g_new (double, n + 1);
  double *spread = g_new (double, n + 1);
  double *low = g_new (double, n + 1), *high = g_new (double, n + 1);
  g_autofree double *rows = g_new0 (double, f->source->len + 1);

  for (uint32_t i = 0; i < n_row; i++)
    rows[row_at (f, i)->source]++;
  for (uint32_t i = 0; i < 2 * n_row; i++)
    weight[i] = fmin (1, WEFT_FIT_ROWS / rows[row_at (f, i % n_row)->source]) /
                (WEFT_FIT_NOISE * WEFT_FIT_NOISE);
  for (uint32_t k = 0; k < n; k++) {
    const struct weft_constant *c = &f->constants->constant[k];
    prior[k] = log (c->prior);
    low[k] = log (c->low);
    high[k] = log (c->high);
    spread[k] = c->spread;
  }
  f->problem = (struct weft_least_squares){ .n_x = n,
                                            .n_r = 2 * n_row,
                                            .weight = weight,
                                            .prior = prior,
                                            .spread = spread,
                                            .low = low,
                                            .high = high,
                                            .elbow = WEFT_FIT_NOISE };
}

static gboolean
run_fit (struct fit *f, weft_fit *fit, GError **error)
{
  uint32_t n = f->problem.n_x, n_r = f->problem.n_r;
  g_autofree double *x = g_memdup2 (f->problem.prior, n * sizeof *x), *r = g_new (double, n_r + 1);
  g_autofree double *slope = g_new (double, (size_t) n_r * n + 1);
  struct search s = { x, r, slope, INFINITY };

  if (!predict_rows (f, "prior values", x, 0, r, NULL, error))
    return FALSE;
  note_errors (f, r, WEFT_FIT_PRIOR, fit);
  if (!search (f, &s, &fit->n_round, error))
    return FALSE;
  note_errors (f, r, WEFT_FIT_FITTED, fit);
  describe (f, &s, fit);
  return leave_out (f, &s, fit, error);
}

static void
fit_clear (struct fit *f)
{
  g_array_unref (f->row);
  g_hash_table_unref (f->series);
  g_ptr_array_unref (f->source);
  g_free ((void *) f->problem.weight);
  g_free ((void *) f->problem.prior);
  g_free ((void *) f->problem.spread);
  g_free ((void *) f->problem.low);
  g_free ((void *) f->problem.high);
}

weft_fit *
weft_fit_new (const weft_published *table, const weft_assumptions *assumptions,
              const weft_constants *constants, const struct weft_fit_options *options,
              GError **error)
{
  g_autoptr (weft_fit) fit = g_new0 (weft_fit, 1);
  struct fit f = { .table = table, .assumptions = assumptions, .constants = constants,
                   .options = options, .row = g_array_new (FALSE, FALSE, sizeof (struct row)),
                   .series = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL),
                   .source = g_ptr_array_new_with_free_func (g_free) };

  for (unsigned i = 0; i < table->csv->n_row; i++)
    add_row (&f, i, &fit->n_refused);
  fit->n_constant = constants->n;
  fit->constant = g_new0 (struct weft_fitted, constants->n + 1);
  fit->n_source = f.source->len;
  fit->source = g_new0 (struct weft_fit_source, fit->n_source + 1);
  for (uint32_t s = 0; s < fit->n_source; s++)
    fit->source[s].name = g_strdup (f.source->pdata[s]);
  gboolean good = f.row->len > 0;
  if (good) {
    state_problem (&f);
    good = run_fit (&f, fit, error);
  } else
    weft_bad_input (error, "%s: found no row of tier A or B that can be predicted",
                    table->csv->name);
  fit_clear (&f);
  return good ? g_steal_pointer (&fit) : NULL;
}

void
weft_fit_free (weft_fit *fit)
{
  for (uint32_t s = 0; s < fit->n_source; s++)
    g_free (fit->source[s].name);
  g_free (fit->source);
  g_free (fit->constant);
  g_free (fit);
}
