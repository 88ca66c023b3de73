#include "planner/sweeps.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A run of a sweep: one row of the recorded errors. */
struct run {
  const struct weft_error_row *row;
  double predicted, measured; /* predicted and measured GPU-seconds per sequence */
};

static int
by_sweep (const void *a, const void *b)
{
  const struct run *x = a, *y = b;
  int order = strcmp (x->row->sweep, y->row->sweep);
  return order ? order : (x->row > y->row) - (x->row < y->row);
}

/* The rows with a predicted and a measured time, sorted by sweep. */
static GArray *
runs_of (const weft_errors *errors)
{
  GArray *runs = g_array_new (FALSE, FALSE, sizeof (struct run));

  for (uint32_t i = 0; i < errors->n_row; i++) {
    const struct weft_error_row *row = &errors->row[i];
    if (row->tier == 'C' || row->refused || isnan (row->time_error))
      continue;
    double share = row->traits.gpus / row->sequences;
    struct run run = { row, row->time_s * share, row->time_s / (1 + row->time_error) * share };
    g_array_append_val (runs, run);
  }
  g_array_sort (runs, by_sweep);
  return runs;
}

/* The index after the last row of the sweep that begins at a row. */
static guint
end_of (const GArray *runs, guint begin)
{
  const char *sweep = g_array_index (runs, struct run, begin).row->sweep;
  guint end = begin;

  while (end < runs->len && g_str_equal (g_array_index (runs, struct run, end).row->sweep, sweep))
    end++;
  return end;
}

static gboolean
are_alike (const struct run *a, const struct run *b)
{
  return a->row->traits.gpus == b->row->traits.gpus && a->row->sequences == b->row->sequences &&
         g_str_equal (a->row->traits.precision, b->row->traits.precision) &&
         g_str_equal (a->row->traits.stack, b->row->traits.stack);
}

/* ------------------------------------------------------------------------ correlations */

static int
sign (double difference)
{
  return (difference > 0) - (difference < 0);
}

/* The rank (position in sorted order, from 1) of value `of`. Equal values all have the mean of
 * their ranks. */
static double
rank_of (const double *value, guint n, guint of)
{
  double rank = 0.5;

  for (guint i = 0; i < n; i++)
    rank += value[of] > value[i] ? 1 : value[of] < value[i] ? 0 : 0.5;
  return rank;
}

static double
spearman (const double *a, const double *b, guint n)
{
  double product = 0, of_a = 0, of_b = 0, middle = (n + 1) / 2.0;

  for (guint i = 0; i < n; i++) {
    double x = rank_of (a, n, i) - middle, y = rank_of (b, n, i) - middle;
    product += x * y;
    of_a += x * x;
    of_b += y * y;
  }
  return product / sqrt (of_a * of_b);
}

/* Whether two runs are the same job: every prediction is equal for both. */
static gboolean
are_repeats (const struct run *a, const struct run *b)
{
  return are_alike (a, b) && g_str_equal (a->row->strategy, b->row->strategy) &&
         a->predicted == b->predicted;
}

/* The mean of the measured values of all repeats of a run. */
static double
mean_of_repeats (const struct run *run, guint n, guint of)
{
  double sum = 0, count = 0;

  for (guint i = 0; i < n; i++)
    if (are_repeats (&run[i], &run[of])) {
      sum += run[i].measured;
      count++;
    }
  return sum / count;
}

static void
correlate (const struct run *run, guint n, struct weft_sweep_order *order)
{
  g_autofree double *predicted = g_new (double, n), *measured = g_new (double, n),
                    *mean = g_new (double, n);

  for (guint i = 0; i < n; i++) {
    predicted[i] = run[i].predicted;
    measured[i] = run[i].measured;
    mean[i] = mean_of_repeats (run, n, i);
  }
  order->spearman = spearman (predicted, measured, n);
  order->reachable = spearman (mean, measured, n);
}

/* Computes Kendall's tau-b, and counts the pairs of alike rows. */
static void
count_pairs (const struct run *run, guint n, struct weft_sweep_order *order)
{
  double agree = 0, of_predicted = 0, of_measured = 0, right = 0;

  for (guint i = 0; i < n; i++)
    for (guint k = 0; k < i; k++) {
      int x = sign (run[i].predicted - run[k].predicted);
      int y = sign (run[i].measured - run[k].measured);
      agree += x * y;
      of_predicted += x != 0;
      of_measured += y != 0;
      if (y != 0 && are_alike (&run[i], &run[k])) {
        order->pairs++;
        right += x == y;
      }
    }
  order->kendall = agree / sqrt (of_predicted * of_measured);
  order->right = order->pairs ? right / order->pairs : NAN;
}

static void
place_best (const struct run *run, guint n, struct weft_sweep_order *order)
{
  guint best = 0;

  for (guint i = 1; i < n; i++)
    if (run[i].measured < run[best].measured)
      best = i;
  order->best = run[best].row->id;
  order->place = 1;
  for (guint i = 0; i < n; i++)
    order->place += run[i].predicted < run[best].predicted;
  order->top = order->place <= (n + 9) / 10;
}

static uint32_t
count_strategies (const struct run *run, guint n)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);

  for (guint i = 0; i < n; i++)
    g_hash_table_add (seen, (char *) run[i].row->strategy);
  return g_hash_table_size (seen);
}

GArray *
weft_sweeps_order (const weft_errors *errors)
{
  g_autoptr (GArray) runs = runs_of (errors);
  GArray *orders = g_array_new (FALSE, TRUE, sizeof (struct weft_sweep_order));

  for (guint begin = 0, end; begin < runs->len; begin = end) {
    const struct run *run = &g_array_index (runs, struct run, begin);
    end = end_of (runs, begin);
    struct weft_sweep_order order = { .name = run->row->sweep,
                                     .apart = run->row->apart,
                                     .rows = end - begin,
                                     .strategies = count_strategies (run, end - begin) };
    if (order.strategies < WEFT_SWEEP_STRATEGIES)
      continue;
    correlate (run, order.rows, &order);
    count_pairs (run, order.rows, &order);
    place_best (run, order.rows, &order);
    g_array_append_val (orders, order);
  }
  return orders;
}

/* ------------------------------------------------------------------------------ ratios */

struct pair {
  double error, weight;
};

static int
by_size (const void *a, const void *b)
{
  double x = ((const struct pair *) a)->error, y = ((const struct pair *) b)->error;
  return (x > y) - (x < y);
}

/* Appends the ratio errors of all pairs of a sweep, with a total weight of 1. */
static void
append_pairs (const struct run *run, guint n, GArray *pairs)
{
  guint begin = pairs->len;

  for (guint i = 0; i < n; i++)
    for (guint k = 0; k < i; k++) {
      struct pair pair = { fabs (log1p (run[i].row->time_error) - log1p (run[k].row->time_error)),
                           0 };
      if (weft_error_counts (run[i].row) && are_alike (&run[i], &run[k]))
        g_array_append_val (pairs, pair);
    }
  for (guint i = begin; i < pairs->len; i++)
    g_array_index (pairs, struct pair, i).weight = 1.0 / (pairs->len - begin);
}

struct weft_ratio_error
weft_sweeps_ratio_error (const weft_errors *errors)
{
  g_autoptr (GArray) runs = runs_of (errors);
  g_autoptr (GArray) pairs = g_array_new (FALSE, FALSE, sizeof (struct pair));
  struct weft_ratio_error ratio = { .error = NAN };
  double sum = 0;

  for (guint begin = 0, end; begin < runs->len; begin = end) {
    guint before = pairs->len;
    end = end_of (runs, begin);
    append_pairs (&g_array_index (runs, struct run, begin), end - begin, pairs);
    ratio.sweeps += pairs->len > before;
  }
  ratio.pairs = pairs->len;
  g_array_sort (pairs, by_size);
  for (guint i = 0; i < pairs->len && isnan (ratio.error); i++) {
    const struct pair *pair = &g_array_index (pairs, struct pair, i);
    if ((sum += pair->weight) >= WEFT_SWEEP_SHARE * ratio.sweeps * (1 - 1e-12))
      ratio.error = expm1 (pair->error);
  }
  return ratio;
}
