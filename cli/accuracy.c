#include "cli/accuracy.h"
#include "cli/accuracy_fit.h"
#include "cli/cli.h"
#include "cli/figures/figures.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "planner/bands.h"
#include "planner/sweeps.h"
#include "planner/nccl.h"
#include <math.h>
#include <string.h>

/* A row is listed as unexplained if the absolute value of its error is larger than this. */
#define LARGE 0.3

/* The errors of a source are called large if the mean of their absolute values, or their mean
 * (bias), exceeds the goals of the project. */
#define LARGE_MEAN 0.12
#define LARGE_BIAS 0.05

struct page {
  const weft_errors *errors;
  weft_conf *notes; /* the file validation/accuracy.ini */
  GPtrArray *sources;
  GString *text;
};

/* The value of a key of accuracy.ini; NULL if the file does not set the key. */
static const char *
note_of (const struct page *p, const char *section, const char *key)
{
  for (unsigned i = 0; i < p->notes->n_entry; i++)
    if (g_str_equal (p->notes->entry[i].section, section) &&
        g_str_equal (p->notes->entry[i].key, key))
      return p->notes->entry[i].value;
  return NULL;
}

/* The remark in accuracy.ini on the errors of a source; NULL: none. */
static const char *
remark_of (const struct page *p, const char *source, enum weft_quantity quantity)
{
  g_autofree char *section = g_strdup_printf ("source %s", source);

  return note_of (p, section, quantity == WEFT_TIME ? "time" : "memory");
}

static double
limit_of (const struct page *p, const char *key)
{
  const char *value = note_of (p, "limits", key);
  return value ? g_ascii_strtod (value, NULL) : NAN;
}

/* Appends " VALUE |" to a row of a Markdown table; for NaN an empty cell. */
static void
append_cell (GString *text, const char *format, double value)
{
  if (isnan (value))
    g_string_append (text, "  |");
  else
    g_string_append_printf (text, format, value);
}

/* ----------------------------------------------------------------------------- summary */

static void
append_summary (const struct page *p)
{
  uint32_t counted = 0, predicted = 0;

  for (uint32_t i = 0; i < p->errors->n_row; i++) {
    counted += p->errors->row[i].tier != 'C';
    predicted += p->errors->row[i].tier != 'C' && !p->errors->row[i].refused;
  }
  g_string_append_printf (
      p->text,
      "# Accuracy of predictions\n\n"
      "`weft validate --record validation/errors.csv --accuracy docs/accuracy.md` writes this "
      "page from\npublished measurements ([validation.md](validation.md)). Errors are predicted / "
      "measured - 1, in %%.\n\n"
      "Of %u rows of tiers A and B, %u are predicted (%.1f %%). Mean by source, without sources "
      "apart: step\ntime **%.1f %%**, memory **%.1f %%**. `tests/planner/test_bands.c` holds them "
      "to at most %.1f %% and\n%.1f %%, and predicts a sample of the rows again.\n\n"
      "![predicted against measured, by source; dashed: 10 %% above and below](accuracy.svg)\n\n",
      counted, predicted, counted ? 100.0 * predicted / counted : 0,
      100 * weft_errors_mean (p->sources, WEFT_TIME),
      100 * weft_errors_mean (p->sources, WEFT_MEMORY), 100 * limit_of (p, "time_by_source"),
      100 * limit_of (p, "memory_by_source"));
}

/* ------------------------------------------------------------------------------ groups */

static void
append_errors (GString *text, const struct weft_validate_errors *e)
{
  if (e->n)
    g_string_append_printf (text, " %u | %.1f | %.1f | %.1f | %+.1f |", e->n, 100 * e->mape,
                            100 * e->median, 100 * e->p90, 100 * e->bias);
  else
    g_string_append (text, "  |  |  |  |  |");
}

/* Appends the table cell with the remarks on a source. */
static void
append_remarks (const struct page *p, const char *source)
{
  const char *time = remark_of (p, source, WEFT_TIME);
  const char *memory = remark_of (p, source, WEFT_MEMORY);

  g_string_append_printf (p->text, " %s%s%s%s |", time ? time : "", time && memory ? "; " : "",
                          memory ? "memory: " : "", memory ? memory : "");
}

/* Appends a table of groups. `remarks`: whether the table has a column with the remarks on
 * sources. */
static void
append_groups (const struct page *p, const GPtrArray *groups, const char *head, gboolean remarks)
{
  GString *text = p->text;

  g_string_append_printf (text,
                          "| %s | times | mean | median | p90 | bias | memories | mean | median | "
                          "p90 | bias |%s\n|---|---|---|---|---|---|---|---|---|---|---|%s\n",
                          head, remarks ? " largest errors |" : "", remarks ? "---|" : "");
  for (guint i = 0; i < groups->len; i++) {
    const struct weft_error_group *group = g_ptr_array_index (groups, i);
    g_string_append_printf (text, "| %s%s |", group->name, group->apart ? " (apart)" : "");
    append_errors (text, &group->of[WEFT_TIME]);
    append_errors (text, &group->of[WEFT_MEMORY]);
    if (remarks)
      append_remarks (p, group->name);
    g_string_append_c (text, '\n');
  }
}

static void
append_sources (const struct page *p)
{
  g_string_append (p->text, "## By source\n\n");
  append_groups (p, p->sources, "source", TRUE);
  g_string_append_printf (p->text,
                          "| mean by source | | %.1f | | | | | %.1f | | | | |\n\nSources that are "
                          "apart count in no total, with the reason in `assumptions.ini`.\n\n",
                          100 * weft_errors_mean (p->sources, WEFT_TIME),
                          100 * weft_errors_mean (p->sources, WEFT_MEMORY));
}

static void
append_kinds (const struct page *p)
{
  g_autoptr (GPtrArray) kinds = weft_errors_group (p->errors, weft_errors_kind_name);

  g_string_append (p->text, "## By GPU, software, model and parallelism\n\nSoftware is named by "
                            "the stack on which its stack builds ([stacks](../stacks/README.md)); "
                            "a job\nwith pipeline stages counts there, whatever else it has.\n\n");
  append_groups (p, kinds, "group", FALSE);
  g_string_append_c (p->text, '\n');
}

/* ------------------------------------------------------------------------------- bands */

static void
append_coverage (const struct page *p, weft_bands *bands, enum weft_quantity quantity,
                 enum weft_nearness nearness)
{
  struct weft_coverage c = weft_bands_coverage (bands, quantity, nearness);

  if (c.rows)
    g_string_append_printf (p->text, "| %s | %s | %u | %u | %.0f %% | %.2f |\n",
                            quantity == WEFT_TIME ? "step time" : "memory",
                            weft_nearness_docs[nearness], c.rows, c.sources, 100 * c.share,
                            c.width);
}

static void
append_bands (const struct page *p)
{
  g_autoptr (weft_bands) bands = weft_bands_new (p->errors);

  g_string_append_printf (
      p->text,
      "## Bands\n\n"
      "`weft sim`, `plan`, `memory` and `explain` print the band in which %.0f %% of published "
      "runs like the\njob lie: from the narrowest group of runs with at least %d rows (GPU, stack, "
      "kind of model, kind of\nparallelism, size; `planner/bands.h` has the ladder of groups), "
      "the 10th to the 90th percentile of\nmeasured / predicted, and a margin for what one source "
      "differs from others. The table shows how many\nrows lie in the band that is made without "
      "any row of their own source, each source counted once.\n\n"
      "| band | the group has | rows | sources | in the band | upper / lower end, median |\n"
      "|---|---|---|---|---|---|\n",
      100 * WEFT_BAND_SHARE, WEFT_BAND_ROWS);
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++)
    for (int nearness = 0; nearness < WEFT_N_NEARNESS; nearness++)
      append_coverage (p, bands, quantity, nearness);
  g_string_append (p->text,
                   "\nIn the last rows of time and of memory every row is judged by the band of "
                   "all rows of other sources. A\nfit of constants to these rows makes bands "
                   "narrower than those of a new cluster: compare the columns\n*fitted* and *left "
                   "out* under [Constants](#constants).\n\n");
}

/* ------------------------------------------------------------------------------- order */

static void
append_order (const struct page *p, const struct weft_sweep_order *order)
{
  g_string_append_printf (p->text, "| %s%s | %u | %u | %.2f | %.2f |", order->name,
                          order->apart ? " (apart)" : "", order->rows, order->strategies,
                          order->spearman, order->kendall);
  if (order->pairs)
    g_string_append_printf (p->text, " %.0f %% of %u |", 100 * order->right, order->pairs);
  else
    g_string_append (p->text, " |");
  g_string_append_printf (p->text, " %s: %u%s |\n", order->best, order->place,
                          order->top ? "" : ", outside of the first tenth");
}

static void
append_orders (const struct page *p)
{
  g_autoptr (GArray) orders = weft_sweeps_order (p->errors);
  struct weft_ratio_error ratio = weft_sweeps_ratio_error (p->errors);
  uint32_t n = 0, top = 0, high = 0;

  g_string_append (
      p->text,
      "## Order of strategies\n\n"
      "A sweep is all rows of one source with the same model, sequence and GPU (columns `source`, "
      "`model_ref` or\n`layers`, `hidden`, `heads`, `kv_heads`, `seq`, `gpu`), with at least "
      "eight strategies (knobs, micro batch,\nprecision). Rows are ordered by GPU-seconds of a "
      "sequence. *Pairs* are two rows with the same GPUs, batch,\nprecision and release of the "
      "software: the part that is predicted in the right order.\n\n"
      "| sweep | rows | strategies | Spearman | Kendall | pairs in order | "
      "place of the fastest row |\n"
      "|---|---|---|---|---|---|---|\n");
  for (guint i = 0; i < orders->len; i++) {
    const struct weft_sweep_order *order = &g_array_index (orders, struct weft_sweep_order, i);
    append_order (p, order);
    n += !order->apart;
    top += !order->apart && order->top;
    high += !order->apart && order->spearman >= 0.9;
  }
  g_string_append_printf (
      p->text,
      "\nOf %u sweeps that count, %u have a rank correlation of at least 0.9, and in %u the "
      "fastest\nrow is in the first tenth of the predicted order. Errors that all strategies of a "
      "model and a cluster\nhave in common cancel in ratios: in %.0f %% of %u pairs (%u sweeps, "
      "however small) the ratio of two predicted\ntimes is off by at most **%.1f %%**. `weft plan` "
      "marks strategies within this error of the best.\n\n",
      n, high, top, 100 * WEFT_SWEEP_SHARE, ratio.pairs, ratio.sweeps, 100 * ratio.error);
}

/* ------------------------------------------------------------------------- collectives */

static gboolean
append_collectives (const struct page *p, GError **error)
{
  g_autoptr (weft_nccl) nccl = weft_nccl_load (NULL, NULL, error);

  if (!nccl)
    return FALSE;
  weft_nccl_predict (nccl, NULL, NULL);
  g_autofree const char **fabrics = weft_nccl_fabrics (nccl);
  g_string_append (p->text, "## Collectives\n\nMedian of the absolute errors in % and number of "
                            "rows (`weft validate --nccl`), by size of the tensor\nin decades "
                            "from the size in the head of a column on.\n\n| fabric |");
  for (int size = 0; size < WEFT_N_NCCL_SIZE; size++)
    g_string_append_printf (p->text, " %s |", weft_nccl_size_names[size]);
  g_string_append (p->text, " all |\n|---|");
  for (int size = 0; size <= WEFT_N_NCCL_SIZE; size++)
    g_string_append (p->text, "---|");
  g_string_append_c (p->text, '\n');
  for (unsigned i = 0; i == 0 || fabrics[i - 1]; i++) {
    g_string_append_printf (p->text, "| %s |", fabrics[i] ? fabrics[i] : "all");
    for (int size = 0; size <= WEFT_N_NCCL_SIZE; size++) {
      struct weft_validate_errors e = weft_nccl_sum (nccl, fabrics[i], size);
      append_cell (p->text, " %.1f", 100 * e.median);
      if (e.n)
        g_string_append_printf (p->text, " (%u) |", e.n);
    }
    g_string_append_c (p->text, '\n');
  }
  g_string_append_c (p->text, '\n');
  return TRUE;
}

/* ------------------------------------------------------------------------- unexplained */

static void
append_large_sources (const struct page *p, enum weft_quantity quantity)
{
  const char *what = quantity == WEFT_TIME ? "step time" : "memory";

  for (guint i = 0; i < p->sources->len; i++) {
    const struct weft_error_group *group = g_ptr_array_index (p->sources, i);
    const struct weft_validate_errors *e = &group->of[quantity];
    const char *remark = remark_of (p, group->name, quantity);
    if (e->n && !group->apart && (e->mape > LARGE_MEAN || fabs (e->bias) > LARGE_BIAS))
      g_string_append_printf (p->text, "- `%s`, %s: mean %.1f %%, bias %+.1f %%%s%s\n",
                              group->name, what, 100 * e->mape, 100 * e->bias,
                              remark ? "; " : "", remark ? remark : "");
  }
}

/* Appends the sections [contradiction NAME] of accuracy.ini: published figures that contradict one
 * another. */
static void
append_contradictions (const struct page *p)
{
  g_string_append (p->text, "\nPublished figures that contradict one another, so that no model can "
                            "predict all of them:\n\n");
  for (unsigned i = 0; i < p->notes->n_entry; i++) {
    const struct weft_conf_entry *e = &p->notes->entry[i];
    if (g_str_has_prefix (e->section, "contradiction "))
      g_string_append_printf (p->text, "- %s\n", e->value);
  }
}

static gboolean
is_large (const struct weft_error_row *row)
{
  return weft_error_counts (row) &&
         (fabs (row->time_error) > LARGE || fabs (row->memory_error) > LARGE);
}

static void
append_unexplained (const struct page *p)
{
  g_string_append_printf (p->text,
                          "## What stays unexplained\n\nSources with a mean error over %.0f %% or "
                          "a bias over %.0f %%:\n\n",
                          100 * LARGE_MEAN, 100 * LARGE_BIAS);
  append_large_sources (p, WEFT_TIME);
  append_large_sources (p, WEFT_MEMORY);
  append_contradictions (p);
  g_string_append_printf (p->text,
                          "\nRows that count and whose error exceeds %.0f %% (`weft validate "
                          "--explain ID` shows one):\n\n"
                          "| row | predicted s | time | predicted GiB | memory |\n"
                          "|---|---|---|---|---|\n",
                          100 * LARGE);
  for (uint32_t i = 0; i < p->errors->n_row; i++) {
    const struct weft_error_row *row = &p->errors->row[i];
    if (!is_large (row))
      continue;
    g_string_append_printf (p->text, "| `%s` |", row->id);
    append_cell (p->text, " %.3g |", row->time_s);
    append_cell (p->text, " %+.0f |", 100 * row->time_error);
    append_cell (p->text, " %.3g |", row->memory_gib);
    append_cell (p->text, " %+.0f |", 100 * row->memory_error);
    g_string_append_c (p->text, '\n');
  }
}

/* -------------------------------------------------------------------------------- page */

static gboolean
append_page (struct page *p, GError **error)
{
  append_summary (p);
  append_sources (p);
  append_kinds (p);
  append_bands (p);
  append_orders (p);
  if (!weft_cli_accuracy_fit (p->text, error) || !append_collectives (p, error))
    return FALSE;
  append_unexplained (p);
  return TRUE;
}

char *
weft_cli_accuracy_beside (const char *path)
{
  gboolean page = g_str_has_suffix (path, ".md");
  g_autofree char *stem = g_strndup (path, strlen (path) - (page ? strlen (".md") : 0));

  return g_strconcat (stem, ".svg", NULL);
}

gboolean
weft_cli_accuracy (const weft_errors *errors, const char *path, GError **error)
{
  g_autofree char *beside = weft_cli_accuracy_beside (path);
  g_autoptr (weft_figure) picture = weft_cli_figure_accuracy (errors);
  g_autofree char *notes_path =
      g_build_filename (weft_data_dir (), "validation", "accuracy.ini", NULL);
  g_autoptr (weft_conf) notes = weft_conf_load (notes_path, error);
  g_autoptr (GPtrArray) sources = weft_errors_group (errors, weft_errors_source_name);
  g_autoptr (GString) text = g_string_new (NULL);
  struct page page = { errors, notes, sources, text };

  return notes && append_page (&page, error) && weft_figure_write (picture, beside, FALSE, error) &&
         weft_cli_write (path, text->str, error);
}
