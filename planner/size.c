#include "planner/size.h"
#include "core/base/error.h"
#include "core/report/report.h"
#include "planner/size_points.h"
#include "planner/workers.h"
#include <math.h>
#include <string.h>

const char *const weft_size_fate_words[] = { WEFT_SIZE_FATE_LIST (WEFT_WORD_TEXT) NULL };

/* ------------------------------------------------------------------------ tasks of workers */

/* The tasks of a worker process. */
enum task_kind {
  SEARCH,  /* finds the best strategy */
  REPRICE, /* simulates the strategy of a point with another batch */
  FEWEST   /* finds the fewest GPUs on which any strategy fits */
};

struct task {
  enum task_kind kind;
  struct weft_job job;
};

struct round {
  const struct weft_size_options *options;
  const char *phase;
  GArray *tasks; /* struct task */
};

struct outcome {
  struct weft_size_found found;
  uint32_t fewest;
};

static struct weft_search_options
search_options (const struct round *r, enum task_kind kind)
{
  return (struct weft_search_options){ .finalists = kind == REPRICE ? 1 : r->options->finalists,
                                       .n_workers = 1, /* the searches run in several processes */
                                       .stop = r->options->stop,
                                       .user = r->options->user };
}

static void
take_best (const weft_search *search, struct weft_size_found *found)
{
  const struct weft_candidate *best = &search->candidate[0];

  found->stopped = search->stopped;
  if (!search->by_fate[WEFT_FATE_SIMULATED])
    return;
  found->fate = WEFT_SIZE_FOUND;
  found->choice = best->choice;
  found->step = best->seconds;
  found->bytes = (double) best->bytes;
  found->mfu = best->report->iteration.mfu;
  found->tokens_per_s = best->report->iteration.tokens_per_s;
  found->gap = search->gap;
}

static void
search (const struct round *r, const struct task *task, struct weft_size_found *found)
{
  const struct weft_search_options options = search_options (r, task->kind);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_search) search = weft_search_run (&task->job, &options, &error);

  found->wall_seconds = search->wall_seconds;
  take_best (search, found);
  if (found->fate == WEFT_SIZE_FOUND || search->stopped)
    return;
  found->fate = search->n && search->by_fate[WEFT_FATE_RULE] == search->n ? WEFT_SIZE_REFUSED
                                                                          : WEFT_SIZE_UNFIT;
  g_strlcpy (found->why, error ? error->message : "", sizeof found->why);
}

/* Whether any strategy fits on `gpus` GPUs. */
static gboolean
fits (const struct round *r, const struct task *task, uint32_t gpus)
{
  const struct weft_search_options options = search_options (r, task->kind);
  struct weft_job job = task->job;
  gboolean fits = FALSE;

  return weft_size_resize (&job, gpus, r->options->batch_tokens, NULL) &&
         weft_search_fits (&job, &options, &fits, NULL) && fits;
}

static gboolean
stops (const struct weft_size_options *options)
{
  return options->stop && options->stop (options->user);
}

/* Doubles the number of GPUs until a strategy fits. Then tries three sizes between the last size on
 * which no strategy fits and this size. Returns 0 if no strategy fits on any size. */
static uint32_t
fewest (const struct round *r, const struct task *task)
{
  const struct weft_cluster *c = &task->job.cluster;
  uint32_t most = weft_size_limit (c, r->options->most_gpus), gpus = 1, last = 0;

  while (gpus <= most && !stops (r->options) && !fits (r, task, gpus)) {
    last = gpus;
    gpus = weft_size_double (c, gpus);
  }
  if (gpus > most || stops (r->options))
    return 0;
  for (uint32_t part = 1; part < 4; part++) {
    uint32_t between = weft_size_round (c, last + (gpus - last) * part / 4);
    if (between > last && between < gpus && fits (r, task, between))
      return between;
  }
  return gpus;
}

static void
run_task (void *user, uint32_t i, void *result)
{
  const struct round *r = user;
  const struct task *task = &g_array_index (r->tasks, struct task, i);
  struct outcome *out = result;

  if (stops (r->options))
    return;
  if (task->kind == FEWEST)
    out->fewest = fewest (r, task);
  else
    search (r, task, &out->found);
}

static void
show_progress (void *user, uint32_t done, uint32_t of)
{
  const struct round *r = user;
  g_autofree char *text = g_strdup_printf ("%s: %u of %u", r->phase, done, of);

  if (r->options->progress)
    r->options->progress (r->options->user, text);
}

/* Runs the tasks of a round in worker processes. The caller frees the outcomes; NULL with an
 * error. */
static struct outcome *
run_tasks (struct round *r, GError **error)
{
  g_autofree struct outcome *outcome = g_new0 (struct outcome, r->tasks->len + 1);
  g_autofree gboolean *done = g_new0 (gboolean, r->tasks->len + 1);
  const struct weft_workers workers = { .n_tasks = r->tasks->len,
                                        .n_workers = r->options->n_workers,
                                        .result_bytes = sizeof (struct outcome),
                                        .run = run_task,
                                        .user = r,
                                        .progress = show_progress,
                                        .progress_user = r };

  show_progress (r, 0, r->tasks->len);
  if (r->tasks->len && !weft_workers_run (&workers, outcome, done, error))
    return NULL;
  for (unsigned i = 0; i < r->tasks->len; i++)
    if (!done[i]) {
      outcome[i].found.fate = WEFT_SIZE_REFUSED;
      g_strlcpy (outcome[i].found.why, "the process of the search ended",
                 sizeof outcome->found.why);
    }
  return g_steal_pointer (&outcome);
}

static struct round
round_of (const struct weft_size_options *options, const char *phase)
{
  return (struct round){ options, phase, g_array_new (FALSE, TRUE, sizeof (struct task)) };
}

/* ------------------------------------------------------------------------ rounds */

static gboolean
find_fewest (weft_size *size, const struct weft_size_options *options, GError **error)
{
  struct round r = round_of (options, "finding the fewest GPUs");

  for (unsigned i = 0; i < size->n_topology; i++) {
    const struct task task = { FEWEST, size->topology[i].job };
    g_array_append_val (r.tasks, task);
  }
  g_autofree struct outcome *outcome = run_tasks (&r, error);
  for (unsigned i = 0; outcome && i < size->n_topology; i++)
    size->topology[i].fewest = outcome[i].fewest;
  g_array_unref (r.tasks);
  return outcome != NULL;
}

/* The progress message of a round that searches `n` clusters. */
static char *
phase_of (const weft_size *size, const char *what, unsigned n)
{
  return g_strdup_printf ("%s (%u searched before): %u cluster%s", what, size->searches, n,
                          n == 1 ? "" : "s");
}

/* Searches the best strategy for all points of an array that have no result yet. Points whose
 * cluster does not exist are marked as refused. */
static gboolean
search_open (weft_size *size, GArray *points, enum task_kind kind,
             const struct weft_size_options *options, GError **error)
{
  struct round r = round_of (options, NULL);
  g_autoptr (GArray) which = g_array_new (FALSE, FALSE, sizeof (unsigned));

  for (unsigned i = 0; i < points->len; i++) {
    struct weft_size_point *p = &g_array_index (points, struct weft_size_point, i);
    struct task task = { .kind = kind };
    if (p->found.fate == WEFT_SIZE_OPEN && !p->found.stopped &&
        weft_size_point_job (size, p, kind == REPRICE, &task.job)) {
      g_array_append_val (r.tasks, task);
      g_array_append_val (which, i);
    }
  }
  g_autofree char *phase =
      phase_of (size, kind == REPRICE ? "other batches" : "searching", r.tasks->len);
  r.phase = phase;
  g_autofree struct outcome *outcome = run_tasks (&r, error);
  for (unsigned i = 0; outcome && i < which->len; i++) {
    unsigned at = g_array_index (which, unsigned, i);
    g_array_index (points, struct weft_size_point, at).found = outcome[i].found;
  }
  size->searches += kind == SEARCH ? which->len : 0;
  g_array_unref (r.tasks);
  return outcome != NULL;
}

/* Searches in rounds until no topology has another size to search. */
static gboolean
search_sizes (weft_size *size, const struct weft_size_options *options, GError **error)
{
  while (!stops (options)) {
    unsigned before = size->point->len;
    for (unsigned i = 0; i < size->n_topology; i++)
      weft_size_propose (size, i, options);
    if (size->point->len == before)
      return TRUE;
    if (!search_open (size, size->point, SEARCH, options, error))
      return FALSE;
    weft_size_settle (size, size->point, options);
  }
  return TRUE;
}

/* Other batches that are tried, as multiples of the batch of the best point. */
static const struct {
  int64_t times, parts;
} batch_ratios[] = { { 1, 4 }, { 1, 2 }, { 2, 1 }, { 4, 1 } };

/* Simulates the strategy of the best point with other batches that the data-parallel ranks can
 * divide. */
static gboolean
search_batches (weft_size *size, const struct weft_size_options *options, GError **error)
{
  if (size->best < 0)
    return TRUE;
  const struct weft_size_point *best = weft_size_at (size->point, (unsigned) size->best);
  const struct weft_job job = weft_size_job (size, best);
  int64_t unit = job.train.micro_batch_size * weft_job_dp (&job);

  for (unsigned i = 0; i < G_N_ELEMENTS (batch_ratios); i++) {
    struct weft_size_point p = *best;
    p.batch = best->batch * batch_ratios[i].times / batch_ratios[i].parts;
    p.found.fate = WEFT_SIZE_OPEN;
    if (p.batch * batch_ratios[i].parts == best->batch * batch_ratios[i].times &&
        p.batch % unit == 0)
      g_array_append_val (size->batches, p);
  }
  if (!search_open (size, size->batches, REPRICE, options, error))
    return FALSE;
  for (unsigned i = size->batches->len; i-- > 0;)
    if (weft_size_at (size->batches, i)->found.fate != WEFT_SIZE_FOUND)
      g_array_remove_index (size->batches, i);
  weft_size_settle (size, size->batches, options);
  return TRUE;
}

/* ------------------------------------------------------------------------ the whole */

static gboolean
load_topologies (weft_size *size, weft_settings *settings, const char *const *names,
                 const weft_site *site, GError **error)
{
  size->n_topology = g_strv_length ((char **) names);
  size->topology = g_new0 (struct weft_size_topology, size->n_topology);
  for (unsigned i = 0; i < size->n_topology; i++) {
    struct weft_size_topology *t = &size->topology[i];
    t->name = g_strdup (names[i]);
    weft_settings_add (settings, "cluster", "topology", names[i], "topology");
    if (!weft_job_assemble (settings, &t->job, error) ||
        !weft_cluster_one_kind (&t->job.cluster, "weft size", error))
      return FALSE;
    if (!t->job.train_set[WEFT_TRAIN_memory_headroom])
      t->job.train.memory_headroom = WEFT_SEARCH_HEADROOM;
    weft_site_of (site, names[i], &t->site);
  }
  return TRUE;
}

/* Whether the job itself sets its number of GPUs. */
static gboolean
has_size (const weft_settings *settings)
{
  for (unsigned i = 0; i < weft_settings_count (settings); i++) {
    const struct weft_setting *s = weft_settings_at (settings, i);
    if (g_str_equal (s->section, "cluster") &&
        (g_str_equal (s->key, "gpus") || g_str_equal (s->key, "nodes")))
      return TRUE;
  }
  return FALSE;
}

static void
add_own_sizes (weft_size *size, const struct weft_size_options *options)
{
  for (unsigned i = 0; i < size->n_topology; i++)
    weft_size_add (size, i, size->topology[i].job.cluster.n_gpus, options);
}

static void
add_given_sizes (weft_size *size, const struct weft_size_options *options)
{
  for (unsigned i = 0; i < size->n_topology; i++)
    for (unsigned k = 0; k < options->n_gpus; k++)
      weft_size_add (size, i, options->gpus[k], options);
}

static gboolean
run (weft_size *size, gboolean own, const struct weft_size_options *options, GError **error)
{
  if (options->n_gpus)
    add_given_sizes (size, options);
  else if (own)
    add_own_sizes (size, options);
  if (size->point->len) {
    if (!search_open (size, size->point, SEARCH, options, error))
      return FALSE;
    weft_size_settle (size, size->point, options);
  } else if (!find_fewest (size, options, error) || !search_sizes (size, options, error))
    return FALSE;
  weft_size_finish (size, options);
  return stops (options) || search_batches (size, options, error);
}

weft_size *
weft_size_run (weft_settings *settings, const char *const *topologies, const weft_site *site,
               const struct weft_size_options *options, GError **error)
{
  g_autoptr (weft_size) size = g_new0 (weft_size, 1);
  gint64 start = g_get_monotonic_time ();
  gboolean own = has_size (settings);

  size->best = -1;
  size->point = g_array_new (FALSE, TRUE, sizeof (struct weft_size_point));
  size->batches = g_array_new (FALSE, TRUE, sizeof (struct weft_size_point));
  if (!load_topologies (size, settings, topologies, site, error) ||
      !run (size, own, options, error))
    return NULL;
  size->stopped = stops (options);
  size->wall_seconds = (double) (g_get_monotonic_time () - start) * 1e-6;
  return g_steal_pointer (&size);
}

void
weft_size_free (weft_size *size)
{
  for (unsigned i = 0; size->topology && i < size->n_topology; i++)
    g_free (size->topology[i].name);
  g_free (size->topology);
  g_array_unref (size->point);
  g_array_unref (size->batches);
  g_free (size);
}
