#include "core/report/disturbance.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Number of waits that are printed; JSON has all waits. */
enum { MOST_LINES = 8 };

/* Waits that are shorter than this share of the step are not listed. */
#define NOTABLE 1e-4

/* Waits on one lane for different ranks of a stage are joined into one line if they differ by less
 * than this share. */
#define ALIKE 1e-2

/* ----------------------------------------------------------------- compute */

/* The row of the timeline that stands for a rank. */
static uint32_t
row_of (const weft_timeline *t, uint32_t rank)
{
  return t->row_of ? t->row_of[rank] : rank;
}

/* Seconds that each row waits on each lane, [row * WEFT_N_LANE + lane]. The caller frees them. */
static double *
waited (const weft_timeline *t)
{
  double *seconds = g_new0 (double, (size_t) t->n *WEFT_N_LANE + 1);

  for (guint i = 0; t->waits && i < t->waits->len; i++) {
    const struct weft_timeline_wait *wait = &g_array_index (t->waits, struct weft_timeline_wait, i);
    seconds[(size_t) wait->row * WEFT_N_LANE + wait->lane] += wait->seconds;
  }
  return seconds;
}

/* For each row and lane the longest wait for one other row; NULL: no wait. The caller frees the
 * array. */
static const struct weft_timeline_wait **
longest (const weft_timeline *t)
{
  const struct weft_timeline_wait **most =
      g_new0 (const struct weft_timeline_wait *, (size_t) t->n *WEFT_N_LANE + 1);

  for (guint i = 0; t->waits && i < t->waits->len; i++) {
    const struct weft_timeline_wait *wait = &g_array_index (t->waits, struct weft_timeline_wait, i),
                                    **at = &most[(size_t) wait->row * WEFT_N_LANE + wait->lane];
    if (!*at || wait->seconds > (*at)->seconds ||
        (wait->seconds == (*at)->seconds && wait->behind < (*at)->behind))
      *at = wait;
  }
  return most;
}

/* Adds the ranks of a row to the line of equal lane and cause. */
static void
add_waiting (GArray *lines, const weft_timeline *t, const struct weft_timeline_wait *wait,
             double seconds)
{
  struct weft_waiting line = { .lane = wait->lane,
                               .ranks = t->stands_for[wait->row],
                               .behind = t->rank[wait->behind],
                               .behind_ranks = t->stands_for[wait->behind],
                               .seconds = seconds };

  for (guint i = 0; i < lines->len; i++) {
    struct weft_waiting *known = &g_array_index (lines, struct weft_waiting, i);
    if (known->lane == line.lane && known->behind == line.behind) {
      known->ranks += line.ranks;
      known->seconds = fmax (known->seconds, seconds);
      return;
    }
  }
  g_array_append_val (lines, line);
}

static int
by_stage (const void *a, const void *b, void *mesh)
{
  const struct weft_waiting *x = a, *y = b;
  uint32_t left = weft_mesh_stage (mesh, x->behind), right = weft_mesh_stage (mesh, y->behind);

  if (x->lane != y->lane)
    return x->lane < y->lane ? -1 : 1;
  if (left != right)
    return left < right ? -1 : 1;
  return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

/* Joins lines of one lane whose ranks wait for different ranks of one stage. */
static void
join_lines (GArray *lines, struct weft_mesh mesh)
{
  struct weft_waiting *line = (struct weft_waiting *) (void *) lines->data;
  guint kept = 0;

  g_array_sort_with_data (lines, by_stage, &mesh);
  for (guint i = 0; i < lines->len; i++) {
    struct weft_waiting *last = kept ? &line[kept - 1] : NULL;
    if (!last || last->lane != line[i].lane ||
        weft_mesh_stage (&mesh, last->behind) != weft_mesh_stage (&mesh, line[i].behind) ||
        line[i].seconds < last->seconds * (1 - ALIKE)) {
      line[kept++] = line[i];
      continue;
    }
    last->ranks += line[i].ranks;
    last->behind_ranks += line[i].behind_ranks;
    last->behind = MIN (last->behind, line[i].behind);
  }
  g_array_set_size (lines, kept);
}

static int
by_seconds (const void *a, const void *b)
{
  const struct weft_waiting *x = a, *y = b;

  if (x->seconds != y->seconds)
    return x->seconds > y->seconds ? -1 : 1;
  return (x->behind > y->behind) - (x->behind < y->behind);
}

weft_disturbance *
weft_disturbance_new (const weft_timeline *undisturbed, const weft_timeline *disturbed,
                      const struct weft_mesh *mesh)
{
  weft_disturbance *d = g_new0 (weft_disturbance, 1);
  g_autofree double *before = waited (undisturbed), *now = waited (disturbed);
  g_autofree const struct weft_timeline_wait **most = longest (disturbed);

  d->undisturbed_s = undisturbed->seconds;
  d->step_s = disturbed->seconds;
  d->misfit_s = disturbed->misfit;
  d->exact = disturbed->misfit <= WEFT_SAME_TIME * disturbed->seconds;
  d->rows = disturbed->n;
  d->ranks = mesh->n_ranks;
  d->waiting = g_array_new (FALSE, FALSE, sizeof (struct weft_waiting));
  for (size_t i = 0; i < (size_t) disturbed->n * WEFT_N_LANE; i++) {
    uint32_t row = row_of (undisturbed, disturbed->rank[i / WEFT_N_LANE]);
    double more = now[i] - before[(size_t) row * WEFT_N_LANE + i % WEFT_N_LANE];
    if (most[i] && more > NOTABLE * disturbed->seconds)
      add_waiting (d->waiting, disturbed, most[i], more);
  }
  join_lines (d->waiting, *mesh);
  g_array_sort (d->waiting, by_seconds);
  return d;
}

void
weft_disturbance_free (weft_disturbance *d)
{
  g_array_unref (d->waiting);
  g_free (d);
}

static int
by_size (const void *a, const void *b)
{
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

/* The percentile of sorted numbers, interpolated between neighbours. */
static double
percentile (const double *sorted, uint32_t n, double share)
{
  double at = share * (n - 1);
  uint32_t below = (uint32_t) at, above = MIN (below + 1, n - 1);

  return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

void
weft_disturbance_set_runs (weft_disturbance *d, const double *seconds, uint32_t n)
{
  g_autofree double *sorted = g_memdup2 (seconds, n * sizeof *seconds);
  double sum = 0;

  qsort (sorted, n, sizeof *sorted, by_size);
  for (uint32_t i = 0; i < n; i++)
    sum += sorted[i];
  d->step_s = sum / n;
  d->spread = (struct weft_spread){ n,
                                    sum / n,
                                    sorted[0],
                                    percentile (sorted, n, 0.05),
                                    percentile (sorted, n, 0.5),
                                    percentile (sorted, n, 0.95),
                                    sorted[n - 1] };
}

/* ------------------------------------------------------------------- print */

static char *
time_text (double seconds)
{
  return g_strchomp (weft_units_human (seconds, "s"));
}

static void
print_waiting (const struct weft_waiting *w, GString *out)
{
  g_autofree char *seconds = time_text (w->seconds);

  g_string_append_printf (out, "  %-18s%10s   %u rank%s wait%s for rank %u",
                          weft_lane_words[w->lane], seconds, w->ranks, w->ranks == 1 ? "" : "s",
                          w->ranks == 1 ? "s" : "", w->behind);
  if (w->behind_ranks > 1)
    g_string_append_printf (out, " and %u of its stage", w->behind_ranks - 1);
  g_string_append_c (out, '\n');
}

static void
print_spread (const weft_disturbance *d, GString *out)
{
  const struct weft_spread *s = &d->spread;
  const double value[] = { s->least, s->p5, s->p50, s->p95, s->most };
  static const char *const word[] = { "least", "5 %", "median", "95 %", "most" };

  g_string_append_printf (out, "%-20s%10u   kernel times vary by %g %%\n", "runs", s->runs,
                          100 * d->jitter);
  for (unsigned i = 0; i < G_N_ELEMENTS (value); i++) {
    g_autofree char *text = time_text (value[i]);
    g_string_append_printf (out, "  %-18s%10s\n", word[i], text);
  }
}

static void
print_waits (const weft_disturbance *d, GString *out)
{
  if (d->waiting->len == 0)
    return;
  g_string_append (out, "longer waits than undisturbed, of the rank that waits most\n");
  for (guint i = 0; i < MIN (d->waiting->len, MOST_LINES); i++)
    print_waiting (&g_array_index (d->waiting, struct weft_waiting, i), out);
  if (d->waiting->len > MOST_LINES)
    g_string_append_printf (out, "  and %u more, see --json\n", d->waiting->len - MOST_LINES);
}

void
weft_disturbance_print (const weft_disturbance *d, GString *out)
{
  g_autofree char *before = time_text (d->undisturbed_s), *now = time_text (d->step_s);
  g_autofree char *more = time_text (fabs (d->step_s - d->undisturbed_s));
  g_autofree char *cost = g_strconcat (d->step_s < d->undisturbed_s ? "-" : "+", more, NULL);

  g_string_append_printf (out, "\ndisturbance%s%s%s%s\n", d->straggler && *d->straggler ? " " : "",
                          d->straggler ? d->straggler : "", d->link && *d->link ? " " : "",
                          d->link ? d->link : "");
  g_string_append_printf (out, "%-20s%10s\n", "undisturbed step", before);
  g_string_append_printf (out, "%-20s%10s\n",
                          d->spread.runs ? "mean of the runs" : "disturbed step", now);
  g_string_append_printf (out, "%-20s%10s   %+.2f %%\n", "cost", cost,
                          100 * (d->step_s / d->undisturbed_s - 1));
  g_string_append_printf (out, "%-20s%10u   classes of %u ranks\n", "simulated", d->rows, d->ranks);
  if (!d->exact) {
    g_autofree char *misfit = time_text (d->misfit_s);
    g_string_append_printf (out, "%-20s%10s   difference of ranks that were simulated as one\n",
                            "approximate", misfit);
  }
  if (d->spread.runs)
    print_spread (d, out);
  print_waits (d, out);
}

/* -------------------------------------------------------------------- JSON */

static void
add_spread (const weft_disturbance *d, JsonBuilder *b)
{
  const struct weft_spread *s = &d->spread;

  weft_json_object (b, "jitter");
  weft_json_real (b, "variation", d->jitter);
  weft_json_int (b, "runs", s->runs);
  weft_json_real (b, "mean_s", s->mean);
  weft_json_real (b, "least_s", s->least);
  weft_json_real (b, "p5_s", s->p5);
  weft_json_real (b, "p50_s", s->p50);
  weft_json_real (b, "p95_s", s->p95);
  weft_json_real (b, "most_s", s->most);
  json_builder_end_object (b);
}

static void
add_waits (const weft_disturbance *d, JsonBuilder *b)
{
  weft_json_array (b, "waits");
  for (guint i = 0; i < d->waiting->len; i++) {
    const struct weft_waiting *w = &g_array_index (d->waiting, struct weft_waiting, i);
    json_builder_begin_object (b);
    weft_json_text (b, "axis", weft_lane_words[w->lane]);
    weft_json_int (b, "ranks", w->ranks);
    weft_json_int (b, "for_rank", w->behind);
    weft_json_int (b, "for_ranks", w->behind_ranks);
    weft_json_real (b, "seconds", w->seconds);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

void
weft_disturbance_to_json (const weft_disturbance *d, JsonBuilder *b)
{
  weft_json_object (b, "disturbance");
  weft_json_text (b, "straggler", d->straggler ? d->straggler : "");
  weft_json_text (b, "link", d->link ? d->link : "");
  weft_json_real (b, "undisturbed_time_s", d->undisturbed_s);
  weft_json_real (b, "time_s", d->step_s);
  weft_json_real (b, "cost_s", d->step_s - d->undisturbed_s);
  weft_json_real (b, "cost_fraction", d->step_s / d->undisturbed_s - 1);
  weft_json_bool (b, "exact", d->exact);
  weft_json_real (b, "misfit_s", d->misfit_s);
  if (d->spread.runs)
    add_spread (d, b);
  else
    weft_json_null (b, "jitter");
  add_waits (d, b);
  json_builder_end_object (b);
}
