#include "planner/memory_fix.h"
#include "exec_sim/exec_sim.h"
#include "planner/bound.h"
#include "planner/shorten.h"
#include "planner/workers.h"
#include <math.h>

/* Limits for the combinations with the same number of changes: how many are planned (MOST_PLANS
 * with a known lower bound of the step time, MOST_UNBOUNDED without), and how many of those that
 * fit are simulated (MOST_SHOWN). Plans are made in rounds of ROUND combinations. */
enum { MOST_PLANS = 256, MOST_UNBOUNDED = 16, ROUND = 32, MOST_SHOWN = 8 };

/* At most this many combinations of the same changes, in different variants, are simulated. */
enum { MOST_VARIANTS = 2 };

/* A combination of changes, from which its job can be made again. */
struct combination {
  unsigned n;
  enum weft_change change[WEFT_FIX_MOST];
  unsigned variant[WEFT_FIX_MOST];
  double bound; /* lower bound of the step time, in seconds; INFINITY: no bound is known */
};

struct finder {
  const struct weft_job *job;
  const struct weft_memory_fix_options *options;
  weft_memory_fixes *found;
  GHashTable *caches; /* settings of a search space (GBytes) -> its weft_segment_cache */
  GHashTable *seen;   /* settings of all jobs so far (GBytes) */
  GArray *parents;    /* combinations of one change fewer that do not fit (struct combination) */
  GArray *beyond;     /* combinations with the current number of changes that do not fit */
  GArray *open;       /* combinations that may fit (struct combination) */
  GArray *alone;      /* single changes that fit (struct combination) */
  const char *phase;
  uint32_t steps; /* plans and simulations so far */
};

/* Whether the user has asked to end the search. */
static gboolean
stops (const struct finder *f)
{
  return f->options->stop && f->options->stop (f->options->user);
}

/* ---------------------------------------------------------------- combinations */

/* Applies the changes of a combination to a job. */
static gboolean
apply (const struct combination *c, struct weft_job *job)
{
  for (unsigned i = 0; i < c->n; i++)
    if (!weft_change_make (c->change[i], c->variant[i], job))
      return FALSE;
  return TRUE;
}

static GBytes *
settings_of (const struct weft_job *job)
{
  GByteArray *all = g_byte_array_new ();

  g_byte_array_append (all, (const guint8 *) &job->strategy, sizeof job->strategy);
  g_byte_array_append (all, (const guint8 *) &job->train, sizeof job->train);
  return g_byte_array_free_to_bytes (all);
}

/* Adds the settings of a job to a set. FALSE: the set already has equal settings, because different
 * changes may lead to the same job. */
static gboolean
is_new (GHashTable *seen, const struct weft_job *job)
{
  return g_hash_table_add (seen, settings_of (job));
}

/* Returns the cache for a job. Jobs of one search space share a cache (segments.h). */
static weft_segment_cache *
cache_of (struct finder *f, const struct weft_job *job)
{
  struct weft_job space = *job;

  weft_space_forget (&space);
  GBytes *settings = settings_of (&space);
  weft_segment_cache *cache = g_hash_table_lookup (f->caches, settings);
  if (cache) {
    g_bytes_unref (settings);
    return cache;
  }
  cache = weft_segment_cache_new ();
  g_hash_table_insert (f->caches, settings, cache);
  return cache;
}

static void
start (struct finder *f)
{
  f->seen =
      g_hash_table_new_full (g_bytes_hash, g_bytes_equal, (GDestroyNotify) g_bytes_unref, NULL);
  f->caches = g_hash_table_new_full (g_bytes_hash, g_bytes_equal, (GDestroyNotify) g_bytes_unref,
                                     (GDestroyNotify) weft_segment_cache_free);
}

static void
end (struct finder *f)
{
  g_hash_table_unref (f->seen);
  g_hash_table_unref (f->caches);
}

static gboolean
is_legal (const struct weft_job *job)
{
  return weft_strategy_check (&job->strategy, NULL) && weft_job_check (job, NULL);
}

static gboolean
keeps (const struct finder *f, const struct weft_job *job)
{
  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (f->options->knob_kept[i] && job->strategy.at[i].i != f->job->strategy.at[i].i)
      return FALSE;
  for (unsigned i = 0; i < WEFT_N_TRAIN_FIELD; i++)
    if (f->options->train_kept[i] && job->train.at[i].i != f->job->train.at[i].i)
      return FALSE;
  return TRUE;
}

/* Adds a combination to f->open if it may fit, by a lower bound of its memory; otherwise to
 * f->beyond, whose combinations are combined with one more change. */
static void
sort_in (struct finder *f, struct combination *c)
{
  struct weft_job job = *f->job;

  if (!apply (c, &job) || !is_new (f->seen, &job))
    return;
  if (!keeps (f, &job)) {
    f->found->kept++;
    return;
  }
  gboolean legal = is_legal (&job);
  struct weft_bound bound = { 0 };
  if (legal) {
    bound = weft_bound_passes (cache_of (f, &job), &job);
    c->bound = bound.seconds > 0 ? bound.seconds : INFINITY;
  }
  f->found->illegal += !legal;
  f->found->too_large += legal && bound.bytes > f->options->limit;
  g_array_append_val (legal && bound.bytes <= f->options->limit ? f->open : f->beyond, *c);
}

/* Whether the last change of a combination fits alone, so that no other change is needed. */
static gboolean
fits_alone (const struct finder *f, const struct combination *c)
{
  for (uint32_t i = 0; i < f->alone->len; i++) {
    const struct combination *one = &g_array_index (f->alone, struct combination, i);
    if (one->change[0] == c->change[c->n - 1] && one->variant[0] == c->variant[c->n - 1])
      return TRUE;
  }
  return FALSE;
}

/* Sorts in all combinations of one change more than `parent`. Changes are combined in the order of
 * the table, because later changes depend on the mesh. */
static void
extend (struct finder *f, const struct combination *parent)
{
  struct combination c = *parent;
  unsigned first = c.n ? c.change[c.n - 1] + 1 : 0, at = c.n++;

  for (c.change[at] = first; c.change[at] < WEFT_N_CHANGE; c.change[at]++)
    for (c.variant[at] = 0; TRUE; c.variant[at]++) {
      struct weft_job job = *f->job;
      if (!apply (&c, &job))
        break;
      if (!fits_alone (f, &c))
        sort_in (f, &c);
    }
}

static int
by_bound (const void *a, const void *b)
{
  const struct combination *x = a, *y = b;

  return (x->bound > y->bound) - (x->bound < y->bound);
}

/* ----------------------------------------------------------------- predictions */

struct outcome {
  gboolean made;
  gboolean fits;
  double bytes, clock, seconds;
};

static double
seconds_of (const struct weft_shortened *shortened, weft_plan *const plan[2],
            const struct weft_exec_ops *executor)
{
  const struct weft_exec_options folded = { 0 };
  double seconds[2];

  for (uint32_t i = 0; i < shortened->n; i++) {
    g_autoptr (weft_timeline) t = weft_exec_run (executor, plan[i], &folded, NULL);
    if (!t)
      return NAN;
    seconds[i] = t->seconds;
  }
  return weft_shortened_seconds (shortened, seconds);
}

/* Predicts a job from plans of short steps that are not proved. */
static struct outcome
predict (const struct finder *f, const struct weft_job *job, gboolean simulate)
{
  struct weft_shortened shortened;
  weft_plan *plan[2] = { NULL, NULL };
  struct outcome out = { .made = TRUE, .fits = TRUE };
  double bytes[2];

  weft_shorten (job, &shortened);
  for (uint32_t i = 0; i < shortened.n && out.made; i++) {
    plan[i] = weft_plan_new_draft (&shortened.job[i], WEFT_PLAN_PLACED, NULL, NULL);
    out.made = plan[i] != NULL;
    if (!out.made)
      break;
    bytes[i] = (double) weft_plan_worst_bytes (plan[i]);
    out.fits &= weft_plan_host_fits (plan[i]);
  }
  if (out.made) {
    out.bytes = weft_shortened_bytes (&shortened, bytes);
    out.fits &= out.bytes <= f->options->limit;
    out.clock = seconds_of (&shortened, plan, &weft_exec_clock);
    out.seconds = simulate ? seconds_of (&shortened, plan, &weft_exec_sim) : NAN;
  }
  g_clear_pointer (&plan[0], weft_plan_free);
  g_clear_pointer (&plan[1], weft_plan_free);
  return out;
}

struct batch {
  const struct finder *f;
  struct weft_memory_fix *fix;
  gboolean finals;
};

static void
run_task (void *user, uint32_t task, void *result)
{
  const struct batch *batch = user;
  const struct weft_memory_fix *fix = &batch->fix[task];
  struct outcome *out = result;

  if (stops (batch->f))
    return;
  *out = predict (batch->f, &fix->job, batch->finals);
  if (!batch->finals || !out->made || fix->n == 0)
    return;
  g_autoptr (weft_plan) whole = weft_plan_new (&fix->job, NULL);
  out->made = whole != NULL;
  if (!whole)
    return;
  out->bytes = (double) weft_plan_worst_bytes (whole);
  out->fits = out->bytes <= batch->f->options->limit && weft_plan_host_fits (whole);
}

static void
show_progress (void *user, uint32_t done, uint32_t of)
{
  const struct finder *f = user;
  const struct weft_search_progress now = {
    .phase = f->phase, .done = done, .of = of, .steps = f->steps + done, .best = INFINITY
  };

  if (f->options->progress)
    f->options->progress (f->options->user, &now);
}

/* Predicts all jobs of an array in worker processes. `finals`: with simulated times, and memory
 * from whole, proved plans. The caller frees the outcomes; NULL with an error. */
static struct outcome *
run_batch (struct finder *f, struct weft_memory_fix *fix, uint32_t n, gboolean finals,
           GError **error)
{
  g_autofree struct outcome *outcome = g_new0 (struct outcome, n + 1);
  g_autofree gboolean *done = g_new0 (gboolean, n + 1);
  struct batch batch = { f, fix, finals };
  const struct weft_workers workers = { .n_tasks = n,
                                        .n_workers = f->options->n_workers,
                                        .result_bytes = sizeof (struct outcome),
                                        .run = run_task,
                                        .user = &batch,
                                        .progress = show_progress,
                                        .progress_user = f };

  if (n && !weft_workers_run (&workers, outcome, done, error))
    return NULL;
  for (uint32_t i = 0; i < n; i++)
    outcome[i].made &= done[i];
  f->steps += n;
  return g_steal_pointer (&outcome);
}

/* ------------------------------------------------------------------- selection */

static struct weft_memory_fix
fix_of (const struct finder *f, const struct combination *c)
{
  struct weft_memory_fix fix = { .job = *f->job, .n = c->n, .seconds = NAN };

  apply (c, &fix.job);
  for (unsigned i = 0; i < c->n; i++)
    fix.change[i] = c->change[i];
  return fix;
}

static int
by_clock (const void *a, const void *b)
{
  const struct weft_memory_fix *x = a, *y = b;

  return (x->clock > y->clock) - (x->clock < y->clock);
}

static int
by_seconds (const void *a, const void *b)
{
  const struct weft_memory_fix *x = a, *y = b;

  if (x->n != y->n)
    return x->n < y->n ? -1 : 1;
  return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

/* Stores the job that needs least memory among the jobs that do not fit. */
static void
note_closest (struct finder *f, const struct weft_memory_fix *fix)
{
  struct weft_memory_fix *closest = &f->found->closest;

  if (closest->n == 0 || fix->bytes < closest->bytes)
    *closest = *fix;
}

/* Makes the plans of the open combinations from `first` on. Appends those that fit to `fitting`;
 * the others may be combined with more changes. */
static gboolean
plan_round (struct finder *f, uint32_t first, uint32_t n, GArray *fitting, GError **error)
{
  g_autofree struct weft_memory_fix *fix = g_new0 (struct weft_memory_fix, n + 1);

  for (uint32_t i = 0; i < n; i++)
    fix[i] = fix_of (f, &g_array_index (f->open, struct combination, first + i));
  g_autofree struct outcome *outcome = run_batch (f, fix, n, FALSE, error);
  for (uint32_t i = 0; outcome && i < n; i++) {
    const struct combination *c = &g_array_index (f->open, struct combination, first + i);
    fix[i].bytes = outcome[i].bytes;
    fix[i].clock = outcome[i].clock;
    if (outcome[i].made && outcome[i].fits) {
      g_array_append_vals (fitting, &fix[i], 1);
      g_array_append_vals (f->alone, c, c->n == 1);
    } else if (outcome[i].made) {
      f->found->too_large++;
      note_closest (f, &fix[i]);
      g_array_append_vals (f->beyond, c, 1);
    }
  }
  return outcome != NULL;
}

/* Returns how many open combinations may be planned, from the first one of the sorted array. */
static uint32_t
count_planned (const GArray *open)
{
  uint32_t known = 0;

  while (known < open->len && isfinite (g_array_index (open, struct combination, known).bound))
    known++;
  return known > MOST_PLANS ? MOST_PLANS : known + MIN (open->len - known, MOST_UNBOUNDED);
}

/* Makes the plans of open combinations from the lowest time bound on. All single changes are
 * planned; of the others, rounds of plans until MOST_SHOWN fit. */
static gboolean
plan_open (struct finder *f, GArray *fitting, GError **error)
{
  g_array_sort (f->open, by_bound);
  uint32_t n = count_planned (f->open);
  gboolean single = n > 0 && g_array_index (f->open, struct combination, 0).n == 1;

  f->phase = "planning";
  for (uint32_t i = 0; i < n && (single || fitting->len < MOST_SHOWN) && !stops (f); i += ROUND)
    if (!plan_round (f, i, MIN (n - i, ROUND), fitting, error))
      return FALSE;
  return TRUE;
}

static gboolean
changes_alike (const struct weft_memory_fix *a, const struct weft_memory_fix *b)
{
  for (unsigned i = 0; i < a->n; i++)
    if (a->change[i] != b->change[i])
      return FALSE;
  return a->n == b->n;
}

/* Moves the fastest jobs to the front: at most MOST_SHOWN, of which at most MOST_VARIANTS have the
 * same changes. Returns their number. */
static uint32_t
choose_fastest (GArray *fitting)
{
  struct weft_memory_fix *fix = (struct weft_memory_fix *) (void *) fitting->data;
  uint32_t n = 0;

  g_array_sort (fitting, by_clock);
  for (uint32_t i = 0; i < fitting->len && n < MOST_SHOWN; i++) {
    uint32_t alike = 0;
    for (uint32_t k = 0; k < n; k++)
      alike += changes_alike (&fix[k], &fix[i]);
    if (alike < MOST_VARIANTS)
      fix[n++] = fix[i];
  }
  return n;
}

/* Simulates the fastest of the fitting jobs and appends them to the result. */
static gboolean
simulate (struct finder *f, GArray *fitting, GArray *result, GError **error)
{
  struct weft_memory_fix *fix = (struct weft_memory_fix *) (void *) fitting->data;
  uint32_t n = choose_fastest (fitting);

  f->found->fitting += fitting->len;
  f->phase = "simulating";
  g_autofree struct outcome *outcome = run_batch (f, fix, n, TRUE, error);
  for (uint32_t i = 0; outcome && i < n; i++) {
    if (!outcome[i].made || !outcome[i].fits)
      continue;
    fix[i].bytes = outcome[i].bytes;
    fix[i].seconds = outcome[i].seconds;
    g_array_append_val (result, fix[i]);
  }
  return outcome != NULL;
}

/* Tries all combinations of one change more than the parents. */
static gboolean
try_more (struct finder *f, GArray *result, GError **error)
{
  g_autoptr (GArray) fitting = g_array_new (FALSE, FALSE, sizeof (struct weft_memory_fix));

  g_array_set_size (f->open, 0);
  f->beyond = g_array_new (FALSE, FALSE, sizeof (struct combination));
  for (uint32_t i = 0; i < f->parents->len; i++)
    extend (f, &g_array_index (f->parents, struct combination, i));
  gboolean ok = plan_open (f, fitting, error) && simulate (f, fitting, result, error);
  g_array_unref (f->parents);
  f->parents = g_steal_pointer (&f->beyond);
  return ok;
}

/* Predicts the job as given. */
static gboolean
predict_given (struct finder *f, GError **error)
{
  struct weft_memory_fix *given = &f->found->given;

  *given = (struct weft_memory_fix){ .job = *f->job };
  g_autoptr (weft_plan) whole = weft_plan_new (f->job, error);
  if (!whole)
    return FALSE;
  g_autofree struct outcome *outcome = run_batch (f, given, 1, TRUE, error);
  if (!outcome)
    return FALSE;
  given->bytes = (double) weft_plan_worst_bytes (whole);
  given->seconds = outcome->made ? outcome->seconds : NAN;
  f->found->given_fits = given->bytes <= f->options->limit && weft_plan_host_fits (whole);
  return TRUE;
}

/* Three changes are tried only if no pair fits. */
static gboolean
try_all (struct finder *f, GArray *result, GError **error)
{
  struct combination none = { 0 };

  if (!predict_given (f, error))
    return FALSE;
  if (f->found->given_fits)
    return TRUE;
  is_new (f->seen, f->job);
  g_array_append_val (f->parents, none);
  for (unsigned n = 1; n <= 2 || (n <= WEFT_FIX_MOST && result->len == 0); n++)
    if (!stops (f) && !try_more (f, result, error))
      return FALSE;
  f->found->stopped = stops (f);
  return TRUE;
}

weft_memory_fixes *
weft_memory_fix_find (const struct weft_job *job, const struct weft_memory_fix_options *options,
                      GError **error)
{
  g_autoptr (weft_memory_fixes) found = g_new0 (weft_memory_fixes, 1);
  GArray *result = g_array_new (FALSE, FALSE, sizeof (struct weft_memory_fix));
  struct finder f = {
    .job = job,
    .options = options,
    .found = found,
    .parents = g_array_new (FALSE, FALSE, sizeof (struct combination)),
    .open = g_array_new (FALSE, FALSE, sizeof (struct combination)),
    .alone = g_array_new (FALSE, FALSE, sizeof (struct combination)),
  };

  start (&f);
  gboolean ok = weft_cluster_one_kind (&job->cluster, "the search for changes", error) &&
                try_all (&f, result, error);

  g_array_sort (result, by_seconds);
  found->n = result->len;
  found->fix = (struct weft_memory_fix *) (void *) g_array_free (result, FALSE);
  if (found->n)
    found->closest.n = 0;
  g_array_unref (f.parents);
  g_array_unref (f.open);
  g_array_unref (f.alone);
  end (&f);
  return ok ? g_steal_pointer (&found) : NULL;
}

void
weft_memory_fixes_free (weft_memory_fixes *fixes)
{
  g_free (fixes->fix);
  g_free (fixes);
}

/* ---------------------------------------------------------------- short advice */

/* Whether a lower bound of the job's memory fits the GPU. The bound needs only a program of a few
 * layers. */
static gboolean
may_fit (weft_segment_cache *cache, const struct weft_job *job)
{
  return weft_bound_passes (cache, job).bytes <= weft_plan_capacity (job);
}

/* Makes the proved plan of a job. NULL if its memory does not fit. Most combinations do not fit, so
 * a plan without proofs (a draft) is made first. */
static weft_plan *
fitting_plan (weft_segment_cache *cache, const struct weft_job *job)
{
  g_autoptr (weft_plan) draft = is_legal (job) && may_fit (cache, job)
                                    ? weft_plan_new_draft (job, WEFT_PLAN_PLACED, NULL, NULL)
                                    : NULL;

  if (!draft || !weft_plan_fits (draft))
    return NULL;
  if (draft->allocated)
    return weft_plan_new (job, NULL); /* a draft has no offsets that could be proved */
  return weft_plan_check (draft, NULL) ? g_steal_pointer (&draft) : NULL;
}

/* Tries all combinations of `more` advised changes, from change `first` on, in the order of the
 * table. */
static weft_plan *
try_advised (struct finder *f, const struct weft_job *job, unsigned first, unsigned more)
{
  if (more == 0)
    return is_new (f->seen, job) ? fitting_plan (cache_of (f, job), job) : NULL;
  for (unsigned i = first; i < WEFT_N_CHANGE; i++) {
    struct weft_job changed = *job;
    for (unsigned v = 0; weft_changes[i].advised && weft_change_make (i, v, &changed); v++) {
      weft_plan *plan = try_advised (f, &changed, i + 1, more - 1);
      if (plan)
        return plan;
      changed = *job;
    }
  }
  return NULL;
}

weft_plan *
weft_memory_fix_first (const struct weft_job *job)
{
  struct finder f = { .job = job };
  weft_plan *plan = NULL;

  start (&f);
  for (unsigned n = 1; n <= WEFT_FIX_MOST && !plan && !weft_cluster_is_mixed (&job->cluster); n++)
    plan = try_advised (&f, job, 0, n);
  end (&f);
  return plan;
}
