#include "core/job/flags.h"
#include "planner/planner.h"
#include "planner/variants.h"
#include "api/inside.h"
#include <math.h>

/* --------------------------------------------------------------------- searches */

struct weft_open_ranking {
  struct weft_job job;
  weft_search *search;
  GPtrArray *given;  /* words of the job, as the caller gave them */
  GPtrArray **words; /* words of each strategy, made on first use */
  weft_ranking_options options;
  gboolean stop; /* the caller has asked to end the search */
  GError *reason;
};

static void
report_progress (void *user, const struct weft_search_progress *now)
{
  weft_ranking *r = user;

  if (r->options.progress &&
      !r->options.progress (r->options.user, now->phase, now->done, now->of, now->best))
    r->stop = TRUE;
}

static gboolean
is_stopped (void *user)
{
  return ((weft_ranking *) user)->stop;
}

static void
run_search (void *user)
{
  static const struct weft_space_ranges whole = { .whole = TRUE };
  weft_ranking *r = user;
  const struct weft_search_options options = { .finalists = r->options.finalists,
                                               .ranges = r->options.whole_space ? &whole : NULL,
                                               .n_workers = 1,
                                               .progress = report_progress,
                                               .stop = is_stopped,
                                               .user = r };

  r->search = weft_search_run (&r->job, &options, &r->reason);
}

static gboolean
read_job (size_t n, const char *const *words, struct weft_job *job, GError **reason)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();

  return weft_flags_read ((int) n, words, NULL, settings, reason) &&
         weft_job_assemble (settings, job, reason);
}

weft_ranking *
weft_ranking_open (size_t n, const char *const *words, const weft_ranking_options *options,
                   weft_error *error)
{
  if (!weft_api_words ("ranking_open", n, words, error))
    return NULL;
  weft_ranking *r = g_new0 (weft_ranking, 1);
  r->given = g_ptr_array_new_with_free_func (g_free);
  for (size_t i = 0; i < n; i++)
    g_ptr_array_add (r->given, g_strdup (words[i]));
  if (options)
    r->options = *options;
  if (!read_job (n, words, &r->job, &r->reason) || !weft_api_in_thread (run_search, r, error) ||
      r->reason) {
    if (r->reason)
      weft_api_fail (error, g_steal_pointer (&r->reason));
    weft_ranking_close (r);
    return NULL;
  }
  r->words = g_new0 (GPtrArray *, MAX (r->search->n_listed, 1));
  weft_api_done (error);
  return r;
}

void
weft_ranking_close (weft_ranking *r)
{
  if (!r)
    return;
  for (uint32_t i = 0; r->words && i < r->search->n_listed; i++)
    g_clear_pointer (&r->words[i], g_ptr_array_unref);
  g_free (r->words);
  g_clear_pointer (&r->search, weft_search_free);
  g_ptr_array_unref (r->given);
  g_free (r);
}

void
weft_ranking_describe (const weft_ranking *r, weft_ranking_facts *facts)
{
  if (!facts)
    return;
  *facts = (weft_ranking_facts){ 0 };
  if (!r)
    return;
  const uint32_t *n = r->search->by_fate;
  *facts = (weft_ranking_facts){ .space = r->search->n,
                                 .break_a_rule = n[WEFT_FATE_RULE],
                                 .do_not_fit = n[WEFT_FATE_MEMORY],
                                 .ruled_out = n[WEFT_FATE_PRUNED],
                                 .ranked = n[WEFT_FATE_RANKED] + n[WEFT_FATE_SIMULATED],
                                 .simulated = n[WEFT_FATE_SIMULATED],
                                 .gap = r->search->gap,
                                 .wall_s = r->search->wall_seconds,
                                 .stopped = r->search->stopped };
}

/* Adds a column for each axis of the search. */
static void
add_axes (weft_table *table, const weft_search *search, const struct weft_job *base)
{
  size_t first = weft_table_columns (table);

  for (enum weft_axis axis = 0; axis < WEFT_N_AXIS; axis++)
    weft_api_add_texts (table, weft_space_field (axis)->name, weft_space_field (axis)->doc);
  for (uint32_t i = 0; i < search->n_listed; i++) {
    struct weft_job job = weft_space_job (base, &search->candidate[i].choice);
    for (enum weft_axis axis = 0; axis < WEFT_N_AXIS; axis++) {
      g_autofree char *value =
          weft_field_print (weft_space_field (axis), *weft_space_setting (&job, axis));
      weft_api_set_text (table, first + axis, i, value);
    }
  }
}

/* The search stores 0 for a time that it has not computed. A table has NaN for a missing value. */
static double
or_nan (double seconds)
{
  return seconds > 0 ? seconds : NAN;
}

weft_table *
weft_ranking_table (const weft_ranking *r, weft_error *error)
{
  if (!weft_api_given ("ranking_table", "ranking", r, error))
    return NULL;
  const weft_search *search = r->search;
  weft_table *table = weft_api_table_new (search->n_listed);
  int32_t *fate =
      weft_api_add_words (table, "fate", "what became of the strategy", weft_fate_words);
  double *step = weft_api_add_reals (table, "step_s", "s", "simulated step time");
  double *clock = weft_api_add_reals (table, "clock_s", "s", "step time without contention");
  double *bound = weft_api_add_reals (table, "bound_s", "s", "lower bound of the step time");
  int64_t *bytes = weft_api_add_integers (table, "bytes", "B", "memory of the fullest rank");

  for (uint32_t i = 0; i < search->n_listed; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    fate[i] = (int32_t) c->fate;
    step[i] = or_nan (c->seconds);
    clock[i] = or_nan (c->clock);
    bound[i] = or_nan (c->bound);
    bytes[i] = c->bytes ? (int64_t) c->bytes : -1;
  }
  add_axes (table, search, &r->job);
  weft_api_done (error);
  return table;
}

/* The words of the caller, then a flag for every axis. */
static GPtrArray *
make_words (const weft_ranking *r, size_t rank)
{
  GPtrArray *words = g_ptr_array_new_with_free_func (g_free);
  struct weft_job job = weft_space_job (&r->job, &r->search->candidate[rank].choice);

  for (guint i = 0; i < r->given->len; i++)
    g_ptr_array_add (words, g_strdup (r->given->pdata[i]));
  for (enum weft_axis axis = 0; axis < WEFT_N_AXIS; axis++) {
    const struct weft_field *field = weft_space_field (axis);
    union weft_value value = *weft_space_setting (&job, axis);
    g_autofree char *name = g_strdelimit (g_strdup (field->name), "_", '-');
    g_autofree char *text = weft_field_print (field, value);
    if (field->type == WEFT_TYPE_BOOL)
      g_ptr_array_add (words, g_strdup_printf ("--%s%s", value.i ? "" : "no-", name));
    else
      g_ptr_array_add (words, g_strdup_printf ("--%s=%s", name, text));
  }
  return words;
}

const char *
weft_ranking_word (const weft_ranking *r, size_t rank, size_t i)
{
  if (!r || rank >= r->search->n_listed)
    return NULL;
  if (!r->words[rank])
    r->words[rank] = make_words (r, rank);
  return i < r->words[rank]->len ? r->words[rank]->pdata[i] : NULL;
}

/* ----------------------------------------------------------------------- sweeps */

struct sweep {
  weft_variants *variants;
  gboolean done;
  GError *reason;
};

static void
run_sweep (void *user)
{
  struct sweep *sweep = user;
  const struct weft_variants_run run = { .n_workers = 1 };

  sweep->done = weft_variants_run (sweep->variants, &run, &sweep->reason);
}

static weft_table *
sweep_table (const weft_variants *v)
{
  weft_table *table = weft_api_table_new (v->n);

  for (unsigned list = 0; list < v->list->len; list++) {
    const struct weft_variants_list *of = v->list->pdata[list];
    size_t value = weft_api_add_texts (table, g_intern_string (of->name), "value of the setting");
    for (uint32_t i = 0; i < v->n; i++)
      weft_api_set_text (table, value, i, weft_variants_value (v, i, list));
  }
  int32_t *fate =
      weft_api_add_words (table, "fate", "what became of the job", weft_summary_fate_words);
  for (uint32_t i = 0; i < v->n; i++)
    fate[i] = (int32_t) v->cell[i].fate;
#define ADD_NUMBER(member, doc)                                                                    \
  double *member = weft_api_add_reals (table, #member, "", doc);                                   \
  for (uint32_t i = 0; i < v->n; i++)                                                              \
    member[i] = weft_summary_has_numbers (&v->cell[i]) ? v->cell[i].member : NAN;
  WEFT_SUMMARY_NUMBER_LIST (ADD_NUMBER)
#undef ADD_NUMBER
  size_t reason = weft_api_add_texts (table, "reason", "why a job was refused");
  for (uint32_t i = 0; i < v->n; i++)
    weft_api_set_text (table, reason, i, v->cell[i].reason[0] ? v->cell[i].reason : NULL);
  return table;
}

/* The lists as weft_variants_new() takes them: NULL-terminated. The caller frees the array. */
static const char **
end_lists (size_t n, const char *const *lists)
{
  const char **ended = g_new0 (const char *, n + 1);

  for (size_t i = 0; i < n; i++)
    ended[i] = lists[i];
  return ended;
}

weft_table *
weft_sweep_table (size_t n, const char *const *words, size_t n_lists, const char *const *lists,
                  const char *executor, weft_error *error)
{
  g_autoptr (weft_settings) base = weft_settings_new ();
  struct sweep sweep = { 0 };
  weft_table *table = NULL;

  if (!weft_api_words ("sweep", n, words, error) ||
      !weft_api_words ("sweep lists", n_lists, lists, error))
    return NULL;
  const struct weft_exec_ops *ops = weft_api_predictor (executor, error);
  if (!ops)
    return NULL;
  g_autofree const char **ended = end_lists (n_lists, lists);
  if (weft_flags_read ((int) n, words, NULL, base, &sweep.reason))
    sweep.variants = weft_variants_new (base, ended, ops, weft_version (), &sweep.reason);
  if (sweep.variants && weft_api_in_thread (run_sweep, &sweep, error) && sweep.done)
    table = sweep_table (sweep.variants);
  g_clear_pointer (&sweep.variants, weft_variants_free);
  if (table)
    weft_api_done (error);
  else if (sweep.reason)
    weft_api_fail (error, sweep.reason);
  return table;
}
