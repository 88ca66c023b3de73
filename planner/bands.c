#include "planner/bands.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const weft_nearness_words[] = { WEFT_NEARNESS_LIST (WEFT_WORD_TEXT) NULL };
#define NEARNESS_DOC(id, word, doc) doc,
const char *const weft_nearness_docs[] = { WEFT_NEARNESS_LIST (NEARNESS_DOC) NULL };

static const struct {
  unsigned same;
  enum weft_nearness nearness;
} ladder[] = {
#define RUNG(same, nearness) { same, nearness },
  WEFT_BAND_LADDER (RUNG)
};

/* The fraction of the published runs that lie at an end of a band without margin, or beyond this
 * end. */
#define BEYOND 0.1

/* Least number of sources for a margin: with fewer sources, the margin says nothing about other
 * sources. */
enum { LEAST_SOURCES = 3 };

/* The published runs (rows of the recorded errors) for which the error of one quantity, step time
 * or memory, is known. They are sorted by measured / predicted. */
struct view {
  uint32_t n, n_source;
  const struct weft_error_row **row;
  double *log;      /* [run]: ln (measured / predicted) */
  uint32_t *source; /* [run]: number of the source of the run */
  uint8_t *same;    /* [i * n + k]: the traits that are equal in runs i and k */
  double margin[WEFT_N_NEARNESS]; /* logarithms of the margins; NaN: not computed yet */
};

struct weft_bands {
  struct view view[WEFT_N_QUANTITY];
};

enum { NO_SOURCE = UINT32_MAX };

/* -------------------------------------------------------------------------------- rows */

static int
by_error (const void *a, const void *b, void *user)
{
  enum weft_quantity quantity = *(enum weft_quantity *) user;
  double x = weft_error_of (*(const struct weft_error_row *const *) a, quantity);
  double y = weft_error_of (*(const struct weft_error_row *const *) b, quantity);

  return (x < y) - (x > y);
}

/* The traits that are equal in two runs, as bits. */
static unsigned
same_traits (const struct weft_traits *a, const struct weft_traits *b)
{
  return (strcmp (a->gpu, b->gpu) == 0 ? WEFT_SAME_GPU : 0) |
         (a->capability && a->capability == b->capability ? WEFT_SAME_GENERATION : 0) |
         (strcmp (a->stack, b->stack) == 0 ? WEFT_SAME_STACK : 0) |
         (strcmp (a->family, b->family) == 0 ? WEFT_SAME_FAMILY : 0) |
         (a->layout == b->layout ? WEFT_SAME_LAYOUT : 0) |
         (!a->experts == !b->experts ? WEFT_SAME_EXPERTS : 0) |
         (weft_job_size_of (a->gpus) == weft_job_size_of (b->gpus) ? WEFT_SAME_SIZE : 0) |
         (strcmp (a->precision, b->precision) == 0 ? WEFT_SAME_PRECISION : 0);
}

static void
number_sources (struct view *v)
{
  g_autoptr (GHashTable) numbers = g_hash_table_new (g_str_hash, g_str_equal);

  for (uint32_t i = 0; i < v->n; i++) {
    const char *source = v->row[i]->source;
    if (!g_hash_table_contains (numbers, source))
      g_hash_table_insert (numbers, (char *) source, GUINT_TO_POINTER (v->n_source++));
    v->source[i] = GPOINTER_TO_UINT (g_hash_table_lookup (numbers, source));
  }
}

static void
view_init (struct view *v, const weft_errors *errors, enum weft_quantity quantity)
{
  v->row = g_new (const struct weft_error_row *, errors->n_row + 1);
  for (uint32_t i = 0; i < errors->n_row; i++) {
    const struct weft_error_row *row = &errors->row[i];
    if (weft_error_counts (row) && !isnan (weft_error_of (row, quantity)))
      v->row[v->n++] = row;
  }
  g_qsort_with_data (v->row, (gint) v->n, sizeof *v->row, by_error, &quantity);
  v->log = g_new (double, v->n + 1);
  v->source = g_new (uint32_t, v->n + 1);
  for (uint32_t i = 0; i < v->n; i++)
    v->log[i] = -log1p (weft_error_of (v->row[i], quantity));
  number_sources (v);
  for (int nearness = 0; nearness < WEFT_N_NEARNESS; nearness++)
    v->margin[nearness] = NAN;
}

/* Finds the traits that are equal in each pair of rows. Called only when the first margin is
 * computed. */
static void
compare_rows (struct view *v)
{
  if (v->same)
    return;
  v->same = g_new (uint8_t, (gsize) v->n * v->n + 1);
  for (uint32_t i = 0; i < v->n; i++)
    for (uint32_t k = 0; k < v->n; k++)
      v->same[(gsize) i * v->n + k] =
          (uint8_t) same_traits (&v->row[i]->traits, &v->row[k]->traits);
}

weft_bands *
weft_bands_new (const weft_errors *errors)
{
  weft_bands *bands = g_new0 (weft_bands, 1);

  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++)
    view_init (&bands->view[quantity], errors, quantity);
  return bands;
}

void
weft_bands_free (weft_bands *bands)
{
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++) {
    g_free (bands->view[quantity].row);
    g_free (bands->view[quantity].log);
    g_free (bands->view[quantity].source);
    g_free (bands->view[quantity].same);
  }
  g_free (bands);
}

/* ------------------------------------------------------------------------------ groups */

/* The published runs on one rung of the ladder of bands.h. `without`: numbers of two sources whose
 * runs are left out. */
struct group {
  const struct view *view;
  const uint8_t *same; /* [row]: the traits that are equal in the row's run and the job */
  uint32_t without[2];
  unsigned rung;
  uint32_t n, n_source;
  uint32_t *of_source; /* number of runs of each source */
};

static gboolean
is_in (const struct group *g, uint32_t row)
{
  uint32_t source = g->view->source[row];

  return (g->same[row] & ladder[g->rung].same) == ladder[g->rung].same &&
         source != g->without[0] && source != g->without[1];
}

static void
count_rows (struct group *g)
{
  g->n = g->n_source = 0;
  memset (g->of_source, 0, g->view->n_source * sizeof *g->of_source);
  for (uint32_t i = 0; i < g->view->n; i++)
    if (is_in (g, i)) {
      g->n++;
      g->n_source += g->of_source[g->view->source[i]]++ == 0;
    }
}

/* Tries the rungs of the ladder (planner/bands.h) from g->rung on, and stops at the first rung with
 * enough published runs. */
static void
climb (struct group *g)
{
  count_rows (g);
  while (g->n < WEFT_BAND_ROWS && g->rung + 1 < G_N_ELEMENTS (ladder)) {
    g->rung++;
    count_rows (g);
  }
}

static double
weight_of (const struct group *g, uint32_t row)
{
  return fmin (1, WEFT_BAND_SOURCE_ROWS / g->of_source[g->view->source[row]]);
}

/* An end of the band without margin: the run nearest to the middle such that this run and the runs
 * beyond it have at least a tenth of the weight of all runs. */
static double
raw_end (const struct group *g, gboolean high)
{
  double all = 0, sum = 0, last = NAN;

  for (uint32_t i = 0; i < g->view->n; i++)
    all += is_in (g, i) ? weight_of (g, i) : 0;
  for (uint32_t k = 0; k < g->view->n && !(sum >= all * BEYOND * (1 - 1e-12)); k++) {
    uint32_t i = high ? g->view->n - 1 - k : k;
    if (is_in (g, i)) {
      sum += weight_of (g, i);
      last = g->view->log[i];
    }
  }
  return last;
}

/* ----------------------------------------------------------------------------- margins */

/* A number with a weight. */
struct weighed {
  double value, weight;
};

static int
by_value (const void *a, const void *b)
{
  double x = ((const struct weighed *) a)->value, y = ((const struct weighed *) b)->value;
  return (x > y) - (x < y);
}

/* The smallest value such that the values up to it have at least a fraction `share` of the weight;
 * NaN without values. */
static double
weighed_quantile (GArray *values, double share)
{
  const struct weighed *v = (const struct weighed *) (void *) values->data;
  double all = 0, sum = 0;

  g_array_sort (values, by_value);
  for (guint i = 0; i < values->len; i++)
    all += v[i].weight;
  for (guint i = 0; i < values->len; i++)
    if ((sum += v[i].weight) >= all * share * (1 - 1e-12))
      return v[i].value;
  return NAN;
}

static unsigned
first_rung (enum weft_nearness nearness)
{
  unsigned rung = 0;

  while (ladder[rung].nearness != nearness)
    rung++;
  return rung;
}

/* A published run and its band, which is computed without the runs of the same source. */
struct outside {
  uint32_t source;
  /* logarithms of the ends of the band; `by`: logarithm of the factor by which the run is outside
   * the band, negative if it is inside */
  double low, high, by;
};

/* The published runs whose bands have this nearness. The band of each run is made without the runs
 * of its own source. `without`: a source whose runs are left out of every band. */
static GArray *
rows_outside (struct view *v, enum weft_nearness nearness, uint32_t without)
{
  GArray *all = g_array_new (FALSE, FALSE, sizeof (struct outside));
  g_autofree uint32_t *of_source = g_new (uint32_t, v->n_source + 1);

  compare_rows (v);
  for (uint32_t i = 0; i < v->n; i++) {
    struct group g = { .view = v,
                       .same = &v->same[(gsize) i * v->n],
                       .without = { v->source[i], without },
                       .rung = first_rung (nearness),
                       .of_source = of_source };
    if (v->source[i] == without)
      continue;
    climb (&g);
    if (ladder[g.rung].nearness != nearness || g.n < WEFT_BAND_ROWS)
      continue;
    struct outside one = { v->source[i], raw_end (&g, FALSE), raw_end (&g, TRUE), 0 };
    one.by = fmax (one.low - v->log[i], v->log[i] - one.high);
    g_array_append_val (all, one);
  }
  return all;
}

/* Gives each source the same weight, 1, divided among its rows. *n_source becomes the number of
 * sources. */
static GArray *
weigh_by_source (const struct view *v, const GArray *outside, uint32_t *n_source)
{
  GArray *values = g_array_new (FALSE, FALSE, sizeof (struct weighed));
  g_autofree uint32_t *n = g_new0 (uint32_t, v->n_source + 1);

  *n_source = 0;
  for (guint i = 0; i < outside->len; i++)
    *n_source += n[g_array_index (outside, struct outside, i).source]++ == 0;
  for (guint i = 0; i < outside->len; i++) {
    const struct outside *one = &g_array_index (outside, struct outside, i);
    struct weighed value = { one->by, 1.0 / n[one->source] };
    g_array_append_val (values, value);
  }
  return values;
}

/* Returns the logarithm of the factor by which both ends of the bands of `nearness` are moved
 * outwards. If this nearness has too few sources, the result is that of the next nearness. */
static double
margin_without (struct view *v, enum weft_nearness nearness, uint32_t without)
{
  uint32_t n_source;
  g_autoptr (GArray) outside = rows_outside (v, nearness, without);
  g_autoptr (GArray) values = weigh_by_source (v, outside, &n_source);

  if (n_source < LEAST_SOURCES && nearness + 1 < WEFT_N_NEARNESS)
    return margin_without (v, nearness + 1, without);
  return n_source ? fmax (0, weighed_quantile (values, WEFT_BAND_SHARE)) : 0;
}

static double
margin_of (struct view *v, enum weft_nearness nearness)
{
  if (isnan (v->margin[nearness]))
    v->margin[nearness] = margin_without (v, nearness, NO_SOURCE);
  return v->margin[nearness];
}

/* ------------------------------------------------------------------------------- bands */

static double
median_error (const struct group *g)
{
  g_autoptr (GArray) sizes = g_array_new (FALSE, FALSE, sizeof (struct weighed));

  for (uint32_t i = 0; i < g->view->n; i++) {
    struct weighed one = { fabs (expm1 (-g->view->log[i])), is_in (g, i) ? weight_of (g, i) : 0 };
    if (one.weight > 0)
      g_array_append_val (sizes, one);
  }
  return weighed_quantile (sizes, 0.5);
}

struct weft_band
weft_bands_of (weft_bands *bands, const struct weft_traits *traits, enum weft_quantity quantity)
{
  struct view *v = &bands->view[quantity];
  g_autofree uint8_t *same = g_new (uint8_t, v->n + 1);
  g_autofree uint32_t *of_source = g_new (uint32_t, v->n_source + 1);
  struct group g = {
    .view = v, .same = same, .without = { NO_SOURCE, NO_SOURCE }, .of_source = of_source
  };

  for (uint32_t i = 0; i < v->n; i++)
    same[i] = (uint8_t) same_traits (traits, &v->row[i]->traits);
  climb (&g);
  struct weft_band band = { .rows = g.n,
                            .sources = g.n_source,
                            .rung = g.rung,
                            .same = ladder[g.rung].same,
                            .nearness = ladder[g.rung].nearness };
  for (uint32_t i = 0; i < v->n; i++) {
    band.software_rows += (same[i] & WEFT_SAME_FAMILY) != 0;
    band.hardware_rows += (same[i] & WEFT_SAME_GENERATION) != 0;
    band.near_rows += (same[i] & WEFT_SAME_FAMILY) && (same[i] & WEFT_SAME_GENERATION);
  }
  double margin = margin_of (v, band.nearness);
  band.low = expm1 (raw_end (&g, FALSE) - margin);
  band.high = expm1 (raw_end (&g, TRUE) + margin);
  band.margin = expm1 (margin);
  band.median = median_error (&g);
  return band;
}

struct weft_coverage
weft_bands_coverage (weft_bands *bands, enum weft_quantity quantity, enum weft_nearness nearness)
{
  struct view *v = &bands->view[quantity];
  struct weft_coverage coverage = { 0 };
  g_autoptr (GArray) outside = rows_outside (v, nearness, NO_SOURCE);
  g_autoptr (GArray) inside = weigh_by_source (v, outside, &coverage.sources);
  g_autoptr (GArray) widths = g_array_new (FALSE, FALSE, sizeof (struct weighed));
  g_autofree double *margin = g_new (double, v->n_source + 1);
  double all = 0, in = 0;

  for (uint32_t source = 0; source < v->n_source; source++)
    margin[source] = margin_without (v, nearness, source);
  for (guint i = 0; i < outside->len; i++) {
    const struct outside *one = &g_array_index (outside, struct outside, i);
    double weight = g_array_index (inside, struct weighed, i).weight;
    struct weighed width = { one->high - one->low + 2 * margin[one->source], weight };
    all += weight;
    in += one->by <= margin[one->source] ? weight : 0;
    g_array_append_val (widths, width);
  }
  coverage.rows = outside->len;
  coverage.share = all > 0 ? in / all : NAN;
  coverage.width = exp (weighed_quantile (widths, 0.5));
  return coverage;
}

/* ------------------------------------------------------------------------------- words */

static void
append_part (GString *text, const char *before, const char *part, const char *after)
{
  g_string_append_printf (text, "%s%s%s%s", text->len ? ", " : "", before, part, after);
}

char *
weft_band_group (const struct weft_band *band, const struct weft_traits *traits)
{
  GString *text = g_string_new (NULL);

  if (band->same & WEFT_SAME_GPU)
    append_part (text, "", weft_traits_short_gpu (traits), "");
  else if (band->same & WEFT_SAME_GENERATION)
    append_part (text, "GPUs of the generation of ", weft_traits_short_gpu (traits), "");
  if (band->same & WEFT_SAME_STACK)
    append_part (text, "stack ", traits->stack, "");
  else if (band->same & WEFT_SAME_FAMILY)
    append_part (text, "stacks built on ", traits->family, "");
  if (band->same & WEFT_SAME_EXPERTS)
    append_part (text, "", traits->experts ? "experts" : "dense models", "");
  if (band->same & WEFT_SAME_LAYOUT)
    append_part (text, "parallelism ", weft_layout_words[traits->layout], "");
  if (band->same & WEFT_SAME_PRECISION)
    append_part (text, "", traits->precision, "");
  if (band->same & WEFT_SAME_SIZE)
    append_part (text, "", weft_job_size_texts[weft_job_size_of (traits->gpus)], "");
  if (text->len == 0)
    g_string_append (text, "all GPUs and all software");
  return g_string_free (text, FALSE);
}

/* A text for messages: "was never measured" or "was measured in 3 runs only". The caller frees the
 * text. */
static char *
how_often (uint32_t rows)
{
  return rows ? g_strdup_printf ("was measured in %u run%s only", rows, rows == 1 ? "" : "s")
              : g_strdup ("was never measured");
}

char *
weft_band_warning (const struct weft_band *band, const struct weft_traits *traits)
{
  g_autofree char *near = how_often (band->near_rows);
  g_autofree char *software = how_often (band->software_rows);
  g_autofree char *hardware = how_often (band->hardware_rows);
  const char *gpu = weft_traits_short_gpu (traits);

  if (band->rows == 0)
    return g_strdup ("nothing was ever measured: the errors of validation/errors.csv are missing");
  if (band->nearness == WEFT_SOFTWARE_ONLY)
    return g_strdup_printf ("stack %s %s on GPUs like %s: these are runs on other GPUs, too",
                            traits->stack, near, gpu);
  if (band->nearness == WEFT_HARDWARE_ONLY)
    return g_strdup_printf ("software like stack %s %s: these are runs of other software",
                            traits->stack, software);
  if (band->nearness == WEFT_NOTHING_NEAR)
    return g_strdup_printf ("nothing near was ever measured: software like stack %s %s, and a GPU "
                            "like %s %s; these are all runs",
                            traits->stack, software, gpu, hardware);
  return NULL;
}
