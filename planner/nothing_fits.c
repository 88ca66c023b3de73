/* What a search says if no strategy fits: the strategies that need least memory, and a number of
 * GPUs on which one fits. */
#include "planner/searcher.h"
#include "core/base/error.h"
#include <string.h>

/* Largest numbers of candidates whose memory is measured, in
 * weft_searcher_find_closest() and, for each cluster
 * size, in anything_fits(). They are limited because measuring memory builds the candidate's
 * programs. */
enum { MOST_CLOSEST = 12, MOST_TRIES = 4 };

static int
compare_bytes (const void *a, const void *b)
{
  const struct weft_candidate *x = *(struct weft_candidate *const *) a,
                              *y = *(struct weft_candidate *const *) b;

  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Those of `all` with one fate that were not expanded, sorted by memory in ascending order. The
 * caller frees the array. */
static GPtrArray *
by_bytes (const GPtrArray *all, enum weft_fate fate)
{
  GPtrArray *list = g_ptr_array_new ();

  for (guint i = 0; i < all->len; i++) {
    struct weft_candidate *c = all->pdata[i];
    if (c->fate == fate && !c->expanded)
      g_ptr_array_add (list, c);
  }
  g_ptr_array_sort (list, compare_bytes);
  return list;
}

/* Expands the `most` families with one fate whose leanest members have the lowest bounds on memory.
 * Returns the strategies with this fate, sorted by memory in ascending order. The caller frees the
 * array. */
static GPtrArray *
leanest (struct searcher *s, enum weft_fate fate, guint most)
{
  g_autoptr (GPtrArray) families = by_bytes (s->families, fate);

  for (guint i = 0; i < MIN (families->len, most); i++)
    weft_searcher_expand (s, families->pdata[i]);
  return by_bytes (s->strategies, fate);
}

gboolean
weft_searcher_find_closest (struct searcher *s, GError **error)
{
  g_autoptr (GPtrArray) list = leanest (s, WEFT_FATE_MEMORY, MOST_CLOSEST);
  guint n = MIN (list->len, MOST_CLOSEST);
  uint64_t least_bytes = UINT64_MAX;

  for (guint i = 0; i < n && !weft_searcher_stops (s); i++) {
    struct weft_candidate *c = g_ptr_array_index (list, i);
    weft_searcher_progress (s, "looking for what nearly fits", i, n);
    if (c->bytes >= least_bytes)
      break;
    if (!weft_searcher_weigh (s, c, error))
      return FALSE;
    least_bytes = MIN (least_bytes, c->bytes);
  }
  return TRUE;
}

/* Sets *fits to TRUE if one of the strategies with the lowest bounds on memory fits. */
static gboolean
anything_fits (struct searcher *s, gboolean *fits, GError **error)
{
  if (!weft_searcher_begin (s, error))
    return FALSE;
  for (guint i = 0; i < s->families->len && !weft_searcher_stops (s); i++) {
    struct weft_candidate *c = s->families->pdata[i];
    if (c->level == WEFT_SPACE_SCHEDULES && c->fate == WEFT_FATE_PRUNED)
      weft_searcher_expand (s, c);
    else if (c->fate == WEFT_FATE_PRUNED)
      weft_searcher_look_at_family (s, c);
  }
  g_autoptr (GPtrArray) list = leanest (s, WEFT_FATE_PRUNED, MOST_TRIES);
  *fits = FALSE;
  for (guint i = 0; i < MIN (list->len, MOST_TRIES) && !*fits && !weft_searcher_stops (s); i++) {
    struct weft_candidate *c = g_ptr_array_index (list, i);
    if (!weft_searcher_rank (s, c, error))
      return FALSE;
    *fits = c->fate == WEFT_FATE_RANKED;
  }
  return TRUE;
}

gboolean
weft_search_fits (const struct weft_job *job, const struct weft_search_options *options,
                  gboolean *fits, GError **error)
{
  struct searcher s = weft_searcher_of (job, options);
  gboolean ok = anything_fits (&s, fits, error);

  weft_searcher_clear (&s);
  return ok;
}

static gboolean
fits_on (struct searcher *outer, uint32_t gpus, gboolean *fits, GError **error)
{
  struct weft_job job = *outer->job;

  return weft_cluster_resize (&job.cluster, gpus, 0, error) &&
         weft_search_fits (&job, outer->options, fits, error);
}

/* Doubles the number of GPUs until a strategy fits. Then tries three sizes between the last size on
 * which no strategy fits and this size. */
gboolean
weft_searcher_find_enough (struct searcher *s, uint32_t *enough, GError **error)
{
  const struct weft_cluster *cluster = &s->job->cluster;
  uint64_t node = (uint64_t) cluster->f.node_gpus;
  uint64_t most = node * (uint64_t) cluster->f.fabric_max_nodes;
  uint64_t few = cluster->n_gpus, gpus = few < node ? node : 2 * few;
  gboolean fits = FALSE;

  for (; gpus <= most && !fits && !weft_searcher_stops (s); gpus *= 2) {
    weft_searcher_progress (s, "trying more GPUs", (uint32_t) gpus, (uint32_t) most);
    if (!fits_on (s, (uint32_t) gpus, &fits, error))
      return FALSE;
    if (fits)
      break;
    few = gpus;
  }
  if (!fits)
    return TRUE;
  *enough = (uint32_t) gpus;
  for (uint64_t part = 5; part < 8 && !weft_searcher_stops (s); part++) {
    if (few * part % (4 * node))
      continue;
    if (!fits_on (s, (uint32_t) (few * part / 4), &fits, error))
      return FALSE;
    if (fits) {
      *enough = (uint32_t) (few * part / 4);
      break;
    }
  }
  return TRUE;
}

/* Most candidates whose broken rules are looked up. */
enum { MOST_LOOKED_UP = 2000 };

/* Counts a broken rule by its name, which the message begins with: "rule NAME: ...". Returns how
 * often it was counted. */
static guint
count_rule (GHashTable *times, const char *message)
{
  char *name = g_strndup (message, strcspn (message, ":"));
  guint n = GPOINTER_TO_UINT (g_hash_table_lookup (times, name)) + 1;

  g_hash_table_replace (times, name, GUINT_TO_POINTER (n));
  return n;
}

/* The message of the rule that candidates break most often; NULL: none was looked up. The caller
 * frees it. */
static char *
commonest_rule (const struct searcher *s)
{
  g_autoptr (GHashTable) times = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  const GPtrArray *lists[] = { s->families, s->strategies };
  char *commonest = NULL;
  guint n_looked_up = 0, most = 0;

  for (unsigned k = 0; k < G_N_ELEMENTS (lists); k++)
    for (guint i = 0; i < lists[k]->len && n_looked_up < MOST_LOOKED_UP; i++) {
      const struct weft_candidate *c = lists[k]->pdata[i];
      const struct weft_job job = weft_space_job (s->job, &c->choice);
      g_autoptr (GError) broken = NULL;
      if (c->fate != WEFT_FATE_RULE || weft_job_check (&job, &broken))
        continue;
      guint n = count_rule (times, broken->message);
      n_looked_up++;
      if (n <= most)
        continue;
      most = n;
      g_free (commonest);
      commonest = g_strdup (broken->message);
    }
  return commonest;
}

void
weft_searcher_explain (struct searcher *s, const weft_search *search, GError **error)
{
  const uint32_t *n = search->by_fate;

  if (n[WEFT_FATE_SIMULATED])
    return;
  if (s->refused && n[WEFT_FATE_RULE] == search->n) {
    g_propagate_error (error, g_steal_pointer (&s->refused));
  } else if (s->fault) {
    g_propagate_error (error, g_error_copy (s->fault));
  } else if (s->stopped) {
    weft_run_error (error, "stopped before a strategy was simulated");
  } else {
    g_autofree char *rule = n[WEFT_FATE_RULE] ? commonest_rule (s) : NULL;
    g_set_error (error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE,
                 "none of %u strategies fits: %u do not fit in memory, %u break a rule%s%s",
                 search->n, n[WEFT_FATE_MEMORY], n[WEFT_FATE_RULE], rule ? ", most often " : "",
                 rule ? rule : "");
  }
}
