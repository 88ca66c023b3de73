#include "cli/size_page.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/report/report.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DAY 86400.0

struct weft_cli_size_band
weft_cli_size_days (const struct weft_cli_size_page *page, const struct weft_size_point *p)
{
  const struct weft_job job = weft_size_job (page->size, p);
  const struct weft_traits traits = weft_traits_of (&job);
  struct weft_band band = weft_bands_of (page->sure->bands, &traits, WEFT_TIME);

  return (struct weft_cli_size_band){ p->days * (1 + band.low), p->days * (1 + band.high) };
}

const char *
weft_cli_size_currency (const weft_size *size, unsigned topology)
{
  return g_quark_to_string ((GQuark) size->topology[topology].site.currency);
}

/* ------------------------------------------------------------------------ cells */

/* A number rounded for display, "305 k"; "-" for NaN. The caller frees the text. */
static char *
human (double value, const char *unit)
{
  g_autofree char *text = isnan (value) ? g_strdup ("-") : weft_units_human (value, unit);
  return g_strdup (g_strstrip (text));
}

/* A time: "441 ms", "17.8 min", "1.43 h", "34.7 days". The caller frees the text. */
static char *
time_text (double seconds)
{
  static const struct {
    double least, unit;
    const char *name;
  } units[] = { { 2 * DAY, DAY, "days" }, { 7200, 3600, "h" }, { 120, 60, "min" } };

  for (unsigned i = 0; i < G_N_ELEMENTS (units); i++)
    if (seconds >= units[i].least)
      return g_strdup_printf ("%.3g %s", seconds / units[i].unit, units[i].name);
  return human (seconds, "s");
}

/* A number of days with two or three significant digits. The caller frees the text. */
static char *
days_text (double days)
{
  if (days < 0.1)
    return g_strdup_printf ("%.2g", days);
  int digits = days < 10 ? 2 : days < 100 ? 1 : 0;
  return isnan (days) ? g_strdup ("-") : g_strdup_printf ("%.*f", digits, days);
}

static char *
range_text (double low, double high)
{
  g_autofree char *a = days_text (low), *b = days_text (high);
  return isnan (low) ? g_strdup ("-") : g_strdup_printf ("%s..%s", a, b);
}

/* "tp 4 pp 2 dp 64 mbs 1": the sizes of the mesh that are not 1. The caller frees the text. */
static char *
mesh_text (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  const struct {
    const char *name;
    int64_t n;
  } sizes[] = { { "tp", s->tensor_model_parallel_size },
                { "cp", s->context_parallel_size },
                { "ep", s->expert_model_parallel_size },
                { "pp", s->pipeline_model_parallel_size },
                { "dp", weft_job_dp (job) },
                { "mbs", job->train.micro_batch_size } };
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (sizes); i++)
    if (sizes[i].n > 1)
      g_string_append_printf (text, "%s%s %" G_GINT64_FORMAT, text->len ? " " : "", sizes[i].name,
                              sizes[i].n);
  return g_strdup (text->len ? text->str : "one GPU");
}

/* Marks in the first column of the table. */
#define FRONT "*"
#define LATE "!"

/* Whether a run meets the deadline by its predicted time, but not by the slow end of its band. */
static gboolean
may_be_late (const struct weft_cli_size_page *page, const struct weft_size_point *p)
{
  return p->days <= page->options->days && weft_cli_size_days (page, p).high > page->options->days;
}

static double
tokens_per_cost (const struct weft_cli_size_page *page, const struct weft_size_point *p)
{
  return page->options->tokens / p->cost;
}

/* Columns of the table: X (head, order in which columns are left out on a narrow terminal, 0:
 * never; text of the cell). */
#define COLUMN_LIST(X)                                                                             \
  X ("strategy", 0, mesh_text (&job))                                                              \
  X ("batch", 3, g_strdup_printf ("%" G_GINT64_FORMAT, p->batch))                                  \
  X ("step", 5, human (p->found.step, "s"))                                                        \
  X ("MFU %", 6, g_strdup_printf ("%.1f", 100 * p->found.mfu))                                     \
  X ("goodput %", 8, g_strdup_printf ("%.1f", 100 * p->goodput.goodput))                           \
  X ("days", 0, g_strdup_printf ("%s%s", days, may_be_late (page, p) ? LATE : " "))                \
  X ("band", 0, range_text (band.low, band.high))                                                  \
  X ("GPU-hours", 7, human (p->gpu_hours, ""))                                                     \
  X ("cost", 0, human (p->cost, ""))                                                               \
  X ("tokens/cost", 4, human (tokens_per_cost (page, p), ""))                                      \
  X ("kWh", 2, human (p->kwh, ""))                                                                 \
  X ("kg CO2", 1, human (p->co2_kg, ""))

#define COUNT_COLUMN(head, drop, make) +1
enum { N_COLUMN = 0 COLUMN_LIST (COUNT_COLUMN), MOST_DROPS = 8 };
#undef COUNT_COLUMN

static const struct {
  const char *head;
  int drop;
} columns[N_COLUMN] = {
#define COLUMN_ROW(head, drop, make) { head, drop },
  COLUMN_LIST (COLUMN_ROW)
#undef COLUMN_ROW
};

/* A row of the table. Its texts are owned. */
struct cells {
  char *text[N_COLUMN];
};

static struct cells
cells_of (const struct weft_cli_size_page *page, const struct weft_size_point *p)
{
  const struct weft_job job = weft_size_job (page->size, p);
  const struct weft_cli_size_band band = weft_cli_size_days (page, p);
  g_autofree char *days = days_text (p->days);
#define CELL(head, drop, make) make,
  struct cells cells = { { COLUMN_LIST (CELL) } };
#undef CELL

  return cells;
}

static void
clear_cells (struct cells *cells)
{
  for (unsigned i = 0; i < N_COLUMN; i++)
    g_free (cells->text[i]);
}

/* ------------------------------------------------------------------------ the table */

/* Width of the first three columns: mark, cluster and number of GPUs. */
static int
name_width (const weft_size *size)
{
  size_t width = strlen ("cluster");

  for (unsigned i = 0; i < size->n_topology; i++)
    width = MAX (width, strlen (size->topology[i].name));
  return (int) width;
}

static const char *
name_of (const weft_size *size, const struct weft_size_point *p)
{
  return size->topology[p->topology].name;
}

/* Computes the widths of the columns. The width 0 leaves a column out: no row has a number for it,
 * or the terminal is too narrow. */
static void
find_widths (const struct cells *rows, unsigned n, int used, int *width)
{
  for (unsigned k = 0; k < N_COLUMN; k++) {
    gboolean known = FALSE;
    width[k] = (int) strlen (columns[k].head);
    for (unsigned i = 0; i < n; i++) {
      known |= rows[i].text[k] && !g_str_equal (rows[i].text[k], "-");
      width[k] = MAX (width[k], rows[i].text[k] ? (int) strlen (rows[i].text[k]) : 0);
    }
    width[k] = known ? width[k] : 0;
    used += width[k] ? 2 + width[k] : 0;
  }
  for (int drop = 1; drop <= MOST_DROPS && used > weft_cli_columns (); drop++)
    for (unsigned k = 0; k < N_COLUMN; k++)
      if (columns[k].drop == drop && width[k]) {
        used -= 2 + width[k];
        width[k] = 0;
      }
}

static void
print_cell (unsigned k, const char *text, int width)
{
  if (width)
    printf (k == 0 ? "  %-*s" : "  %*s", width, text);
}

static void
print_row (const struct weft_cli_size_page *page, const struct weft_size_point *p,
           const struct cells *cells, const int *width)
{
  const weft_size *size = page->size;
  int used =
      printf ("%s %-*s %7u", p->front ? FRONT : " ", name_width (size), name_of (size, p), p->gpus);

  if (p->found.fate == WEFT_SIZE_FOUND) {
    for (unsigned k = 0; k < N_COLUMN; k++)
      print_cell (k, cells->text[k], width[k]);
    printf ("\n");
    return;
  }
  g_autofree char *why = g_strdup_printf ("%s%s%s", weft_size_fate_words[p->found.fate],
                                          *p->found.why ? ": " : "", p->found.why);
  printf ("  ");
  weft_cli_print_beside (why, used + 2, weft_cli_columns ());
}

static void
print_table (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;
  unsigned n = size->point->len;
  g_autofree struct cells *rows = g_new0 (struct cells, n + 1);
  int width[N_COLUMN], names = name_width (size);

  for (unsigned i = 0; i < n; i++)
    if (weft_size_at (size->point, i)->found.fate == WEFT_SIZE_FOUND)
      rows[i] = cells_of (page, weft_size_at (size->point, i));
  find_widths (rows, n, 2 + names + 8, width);
  printf ("\n  %-*s %7s", names, "cluster", "GPUs");
  for (unsigned k = 0; k < N_COLUMN; k++)
    print_cell (k, columns[k].head, width[k]);
  printf ("\n");
  for (unsigned i = 0; i < n; i++) {
    print_row (page, weft_size_at (size->point, i), &rows[i], width);
    clear_cells (&rows[i]);
  }
}

static void
print_legend (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;
  gboolean late = FALSE, found = FALSE;

  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    found |= p->found.fate == WEFT_SIZE_FOUND;
    late |= p->found.fate == WEFT_SIZE_FOUND && may_be_late (page, p);
  }
  if (!found)
    return;
  g_autofree char *text = g_strdup_printf (
      FRONT " no other cluster of the table is both faster and %s; band: days if the step time is "
            "off by as much as in 80 %% of published runs%s%s",
      size->priced ? "cheaper" : "has fewer GPU-hours",
      late ? "; " LATE " misses the deadline at the slow end of its band" : "",
      size->priced ? "" : "; no cost: the site gives no price for some topology");
  weft_cli_print_wrapped (text, 2, weft_cli_columns ());
}

/* ------------------------------------------------------------------------ the best */

/* Prints a paragraph of the details, which is a name and a text. */
enum { INDENT = 14 };

static void G_GNUC_PRINTF (2, 3) print_detail (const char *name, const char *format, ...)
{
  va_list values;

  va_start (values, format);
  g_autofree char *text = g_strdup_vprintf (format, values);
  va_end (values);
  printf ("  %-*s", INDENT - 2, name);
  weft_cli_print_wrapped (text, INDENT, weft_cli_columns ());
}

static void
append_part (GString *parts, const char *word, double mtbf)
{
  g_autofree char *every = time_text (mtbf);

  g_string_append_printf (parts, "%s%s every %s", parts->len ? ", " : "", word, every);
}

static void
print_failures (const struct weft_size_point *p)
{
  const struct weft_failures *f = &p->failures;
  g_autoptr (GString) parts = g_string_new (NULL);

  for (unsigned i = 0; i < WEFT_N_FAILING; i++)
    if (isfinite (f->part[i]))
      append_part (parts, weft_failing_words[i], f->part[i]);
  if (isinf (f->mtbf)) {
    print_detail ("failures", "the site gives no MTBF: nothing fails, goodput is 1");
    return;
  }
  g_autofree char *every = time_text (f->mtbf), *restart = time_text (f->restart);
  print_detail ("failures",
                "one every %s (%s), %.3g in this run; %s until training continues, %u "
                "spare node%s",
                every, parts->str, p->seconds.mean / f->mtbf, restart, f->spares,
                f->spares == 1 ? "" : "s");
}

static void
print_checkpoint (const struct weft_size_point *p)
{
  const struct weft_failures *f = &p->failures;
  const struct weft_goodput *g = &p->goodput;
  g_autofree char *bytes = human (f->bytes, "B"), *write = time_text (f->write),
                  *rate = human (f->bandwidth, "B/s"), *stop = time_text (f->stop),
                  *young = time_text (g->young), *daly = time_text (g->daly),
                  *interval = time_text (g->interval), *mtbf = time_text (f->mtbf);

  if (isnan (f->bandwidth))
    print_detail ("checkpoint", "%s; the site gives no storage bandwidth: it takes no time", bytes);
  else
    print_detail ("checkpoint", "%s at %s take %s and stop training for %s", bytes, rate, write,
                  stop);
  if (isinf (f->mtbf))
    return;
  print_detail ("interval", "Young: sqrt (2 x %s x %s) = %s; Daly: %s; taken: %.0f steps, %s", stop,
                mtbf, young, daly, g->steps, interval);
  print_detail ("goodput",
                "%.2f %%: checkpoints take %.2f %%, failures %.2f %%, waiting for "
                "repairs %.2f %%",
                100 * g->goodput, 100 * g->checkpoints, 100 * g->failures, 100 * g->waits);
}

static void
print_days (const struct weft_cli_size_page *page, const struct weft_size_point *p)
{
  const struct weft_cli_size_band band = weft_cli_size_days (page, p);
  g_autofree char *step = human (p->found.step, "s"),
                  *spread = range_text (p->seconds.p10 / DAY, p->seconds.p90 / DAY),
                  *p50 = days_text (p->seconds.p50 / DAY), *days = days_text (p->days),
                  *range = range_text (band.low, band.high);

  print_detail ("days", "%.0f steps x %s / goodput %.4f = %s", p->steps, step, p->goodput.goodput,
                days);
  print_detail ("", "by failures: %s at 10 and 90 %%, %s at 50 %% of %d simulated runs", spread,
                p50, WEFT_GOODPUT_TRIALS);
  print_detail ("", "by errors of predictions: %s", range);
}

static void
print_batches (const struct weft_cli_size_page *page, const struct weft_size_point *best)
{
  const weft_size *size = page->size;
  const struct weft_job job = weft_size_job (size, best);
  int64_t unit = job.train.micro_batch_size * weft_job_dp (&job);
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < size->batches->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->batches, i);
    g_autofree char *days = days_text (p->days);
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT " (%" G_GINT64_FORMAT "): %s days",
                            i ? ", " : "", p->batch, p->batch / unit, days);
  }
  print_detail ("batch",
                "%" G_GINT64_FORMAT " sequences (microbatches: %" G_GINT64_FORMAT
                "), at least %" G_GINT64_FORMAT " with this strategy%s%s",
                best->batch, best->batch / unit, unit, text->len ? "; " : "", text->str);
}

/* The cheapest point of a topology that keeps deadline and budget; NULL: none. */
static const struct weft_size_point *
cheapest_of (const struct weft_cli_size_page *page, unsigned topology)
{
  const weft_size *size = page->size;
  const struct weft_size_point *best = NULL;

  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (p->topology == topology && weft_size_meets (p, page->options) &&
        (!best || weft_size_price (size, p) < weft_size_price (size, best)))
      best = p;
  }
  return best;
}

/* For each topology, prints the cheapest run (without prices: the run with the fewest GPU-hours),
 * and how many tokens of training a unit of its cost gives. */
static void
print_each (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;

  if (size->n_topology < 2)
    return;
  printf ("\n%s of each topology%s\n", size->priced ? "cheapest" : "fewest GPU-hours",
          isnan (page->options->days) && isnan (page->options->budget) ? ""
                                                                       : ", within the limits");
  for (unsigned i = 0; i < size->n_topology; i++) {
    const struct weft_size_point *p = cheapest_of (page, i);
    g_autofree char *days = p ? days_text (p->days) : NULL,
                    *hours = p ? human (p->gpu_hours, "") : NULL,
                    *cost = p ? human (p->cost, "") : NULL,
                    *tokens = p ? human (tokens_per_cost (page, p), "") : NULL;
    const char *currency = weft_cli_size_currency (size, i), *s = p && p->gpus == 1 ? "" : "s";
    printf ("  %-*s", name_width (size), size->topology[i].name);
    if (!p)
      printf ("  none\n");
    else if (size->priced)
      printf ("  %u GPU%s, %s days, %s %s: %s tokens for %s 1\n", p->gpus, s, days, currency, cost,
              tokens, currency);
    else
      printf ("  %u GPU%s, %s days, %s GPU-hours\n", p->gpus, s, days, hours);
  }
}

static void
print_best (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;
  const struct weft_size_point *p = weft_size_at (size->point, (unsigned) size->best);
  const struct weft_job job = weft_size_job (size, p);
  const struct weft_cli_answer answer = { &job, p->found.step, p->found.bytes };
  g_autofree char *days = days_text (p->days), *hours = human (p->gpu_hours, ""),
                  *cost = human (p->cost, "");

  printf ("\n%s%s: %u x %s, %s days, %s GPU-hours", size->priced ? "cheapest" : "fewest GPU-hours",
          isnan (page->options->days) ? "" : " that meets the deadline", p->gpus, name_of (size, p),
          days, hours);
  if (size->priced)
    printf (", %s %s", weft_cli_size_currency (size, p->topology), cost);
  printf ("\n");
  print_days (page, p);
  print_failures (p);
  print_checkpoint (p);
  print_batches (page, p);
  weft_cli_print_sure (page->sure, &answer);
  printf ("\nin detail:  weft plan with the same model and stack, and --topology %s --gpus %u "
          "--global-batch-size %" G_GINT64_FORMAT "\n",
          name_of (size, p), p->gpus, p->batch);
}

/* ------------------------------------------------------------------------ the page */

static void
print_head (const struct weft_cli_size_page *page)
{
  const struct weft_size_options *o = page->options;
  const struct weft_job *job = &page->size->topology[0].job;
  g_autofree char *tokens = human (o->tokens, ""), *batch = human (o->batch_tokens, ""),
                  *budget = human (o->budget, "");

  printf ("%s, %s tokens%s, stack %s, %s\n", g_quark_to_string ((GQuark) job->model.name), tokens,
          page->chinchilla ? " (20 for each parameter that a token uses)" : "",
          g_quark_to_string ((GQuark) job->stack.name), weft_precision_words[job->train.precision]);
  if (job->train_set[WEFT_TRAIN_global_batch_size])
    printf ("%" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT " tokens in a step",
            job->train.global_batch_size, job->model.seq_length);
  else
    printf ("about %s tokens in a step, sequences of %" G_GINT64_FORMAT " tokens", batch,
            job->model.seq_length);
  if (!isnan (o->days))
    printf ("; deadline %g day%s", o->days, o->days == 1 ? "" : "s");
  if (!isnan (o->budget))
    printf ("; budget %s", budget);
  printf ("\nsite %s; %u cluster%s searched, %.1f s%s\n", page->site, page->size->searches,
          page->size->searches == 1 ? "" : "s", page->size->wall_seconds,
          page->size->stopped ? "; interrupted: this is what is known so far" : "");
}

static void
print_fewest (const weft_size *size)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < size->n_topology; i++)
    if (size->topology[i].fewest)
      g_string_append_printf (text, "%s%u x %s", text->len ? ", " : "", size->topology[i].fewest,
                              size->topology[i].name);
  if (!text->len)
    return;
  g_autofree char *line =
      g_strdup_printf ("fewest GPUs on which a strategy fits, of the sizes tried: %s", text->str);
  weft_cli_print_wrapped (line, 2, weft_cli_columns ());
}

void
weft_cli_size_text (const struct weft_cli_size_page *page)
{
  print_head (page);
  print_fewest (page->size);
  if (page->size->point->len) {
    print_table (page);
    print_legend (page);
  }
  if (page->size->point->len)
    print_each (page);
  if (page->size->best >= 0)
    print_best (page);
  else if (!page->size->stopped)
    printf ("\nno cluster that was searched meets the limits\n");
}

/* ------------------------------------------------------------------------ JSON */

/* X (name, value): members of a JSON point that are known only after its search. */
#define NUMBER_LIST(X)                                                                             \
  X ("step_s", p->found.step)                                                                      \
  X ("mfu", p->found.mfu)                                                                          \
  X ("tokens_per_s", p->found.tokens_per_s)                                                        \
  X ("memory_bytes", p->found.bytes)                                                               \
  X ("gap", p->found.gap)                                                                          \
  X ("steps", p->steps)                                                                            \
  X ("days", p->days)                                                                              \
  X ("days_low", band.low)                                                                         \
  X ("days_high", band.high)                                                                       \
  X ("days_p10", p->seconds.p10 / DAY)                                                             \
  X ("days_p50", p->seconds.p50 / DAY)                                                             \
  X ("days_p90", p->seconds.p90 / DAY)                                                             \
  X ("gpu_hours", p->gpu_hours)                                                                    \
  X ("cost", p->cost)                                                                              \
  X ("kwh", p->kwh)                                                                                \
  X ("co2_kg", p->co2_kg)                                                                          \
  X ("goodput", p->goodput.goodput)                                                                \
  X ("mtbf_s", p->failures.mtbf)                                                                   \
  X ("checkpoint_bytes", p->failures.bytes)                                                        \
  X ("checkpoint_write_s", p->failures.write)                                                      \
  X ("checkpoint_stop_s", p->failures.stop)                                                        \
  X ("restart_s", p->failures.restart)                                                             \
  X ("young_interval_s", p->goodput.young)                                                         \
  X ("daly_interval_s", p->goodput.daly)                                                           \
  X ("checkpoint_interval_s", p->goodput.interval)                                                 \
  X ("lost_to_checkpoints", p->goodput.checkpoints)                                                \
  X ("lost_to_failures", p->goodput.failures)                                                      \
  X ("lost_to_repairs", p->goodput.waits)

static void
add_found (JsonBuilder *b, const struct weft_cli_size_page *page, const struct weft_size_point *p)
{
  const struct weft_cli_size_band band = weft_cli_size_days (page, p);
  struct weft_job job = weft_size_job (page->size, p);
  const struct weft_cli_answer answer = { &job, p->found.step, p->found.bytes };

#define ADD_NUMBER(name, value) weft_json_real_or_null (b, name, value);
  NUMBER_LIST (ADD_NUMBER)
#undef ADD_NUMBER
  weft_json_int (b, "spare_nodes", p->failures.spares);
  weft_json_bool (b, "front", p->front);
  json_builder_set_member_name (b, "strategy");
  weft_report_build_strategy (&job, b);
  json_builder_set_member_name (b, "train");
  weft_report_build_train (&job, b);
  weft_cli_add_sure (page->sure, b, &answer);
}

static void
add_points (JsonBuilder *b, const struct weft_cli_size_page *page, const char *member,
            const GArray *points)
{
  weft_json_array (b, member);
  for (unsigned i = 0; i < points->len; i++) {
    const struct weft_size_point *p = weft_size_at (points, i);
    json_builder_begin_object (b);
    weft_json_text (b, "topology", name_of (page->size, p));
    weft_json_int (b, "gpus", p->gpus);
    weft_json_int (b, "global_batch_size", p->batch);
    weft_json_text (b, "fate", weft_size_fate_words[p->found.fate]);
    weft_json_text (b, "why", p->found.why);
    if (p->found.fate == WEFT_SIZE_FOUND)
      add_found (b, page, p);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

void
weft_cli_size_json (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.size/1");
  weft_json_real (b, "tokens", page->options->tokens);
  weft_json_real_or_null (b, "deadline_days", page->options->days);
  weft_json_real_or_null (b, "budget", page->options->budget);
  weft_json_text (b, "site", page->site);
  weft_json_int (b, "searches", size->searches);
  weft_json_real (b, "wall_s", size->wall_seconds);
  weft_json_bool (b, "stopped", size->stopped);
  weft_json_array (b, "topologies");
  for (unsigned i = 0; i < size->n_topology; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, "topology", size->topology[i].name);
    weft_json_text (b, "currency", weft_cli_size_currency (size, i));
    weft_json_int (b, "fewest_gpus", size->topology[i].fewest);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  if (size->best >= 0)
    weft_json_int (b, "best", size->best);
  else
    weft_json_null (b, "best");
  add_points (b, page, "points", size->point);
  add_points (b, page, "batches", size->batches);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}
