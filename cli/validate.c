/* weft validate: predicts every row of a table of published measurements and prints the errors. */
#include "cli/accuracy.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/figure_flags.h"
#include "cli/figures/figures.h"
#include "cli/outputs.h"
#include "cli/executors.h"
#include "cli/validate_sweeps.h"
#include "cli/validate_nccl.h"
#include "core/base/pace.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "planner/validate.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct ask {
  const char *tier, *group, *source, *most, *csv, *explain, *jobs, *executor, *assumptions;
  const char *record, *accuracy;
  struct weft_cli_figure_ask figure;
  gboolean verbose, nccl;
};

/* Microseconds between two lines of progress in a file. On a terminal each line replaces the
 * previous one. */
enum { FILE_EVERY = 10 * G_USEC_PER_SEC };

/* Prints a line of progress if it is due. `user` is the weft_pace that says how often lines are
 * printed. */
static void
show_progress (void *user, uint32_t done, uint32_t of)
{
  weft_pace *pace = user;

  if (isatty (STDERR_FILENO))
    fprintf (stderr, "\r%u of %u rows\033[K", done, of);
  else if (weft_pace_due (pace, g_get_monotonic_time ()))
    fprintf (stderr, "weft: %u of %u rows\n", done, of);
}

static void
clear_progress (void)
{
  if (isatty (STDERR_FILENO))
    fprintf (stderr, "\r\033[K");
}

/* ------------------------------------------------------------------------ text */

static void
print_errors (const char *name, int width, const struct weft_validate_errors *e)
{
  printf ("%-*s %5u", width, name, e->n);
  if (e->n)
    printf ("  %7.1f %7.1f %7.1f %7.1f  %+7.1f", 100 * e->mape, 100 * e->median, 100 * e->p90,
            100 * e->max, 100 * e->bias);
  printf ("\n");
}

static void
print_head (const char *name, int width)
{
  printf ("%-*s  rows   mean %%  median     p90   worst     bias\n", width, name);
}

static int
widest_name (const weft_validation *v)
{
  int width = strlen ("mean by source");

  for (uint32_t i = 0; i < v->n_group; i++)
    width = MAX (width, (int) strlen (v->group[i].name));
  for (uint32_t i = 0; i < v->n_source; i++)
    width = MAX (width, (int) strlen (v->source[i].name) + (int) strlen (" (apart)"));
  return width;
}

static void
print_groups (const struct weft_validate_group *group, uint32_t n, gboolean memory, int width)
{
  for (uint32_t i = 0; i < n; i++) {
    const struct weft_validate_errors *e = memory ? &group[i].memory : &group[i].time;
    g_autofree char *name = g_strconcat (group[i].name, group[i].apart ? " (apart)" : "", NULL);
    if (e->n)
      print_errors (name, width, e);
  }
}

static void
print_summaries (const weft_validation *v, gboolean memory, int width)
{
  double by_source = memory ? v->memory_by_source : v->time_by_source;

  print_head (memory ? "memory by group" : "step time by group", width);
  print_groups (v->group, v->n_group, memory, width);
  printf ("\n");
  print_head (memory ? "memory by source" : "step time by source", width);
  print_groups (v->source, v->n_source, memory, width);
  if (!isnan (by_source))
    printf ("%-*s        %7.1f\n", width, "mean by source", 100 * by_source);
  print_errors ("all rows", width, memory ? &v->memory : &v->time);
}

static gboolean
has_memory (const weft_validation *v)
{
  for (uint32_t i = 0; i < v->n_source; i++)
    if (v->source[i].memory.n)
      return TRUE;
  return FALSE;
}

static void
print_all (const weft_validation *v, int width)
{
  print_summaries (v, FALSE, width);
  if (!has_memory (v))
    return;
  printf ("\n");
  print_summaries (v, TRUE, width);
}

/* Maximum width of lines in columns, for files and for wide terminals. */
enum { MOST_COLUMNS = 160 };

struct refusals {
  const char *rule, *why;
  uint32_t n;
};

/* Prints, for each rule, the number of rows that it refused, and an example. */
static void
print_refusals (const weft_validation *v)
{
  g_autoptr (GArray) all = g_array_new (FALSE, TRUE, sizeof (struct refusals));

  for (uint32_t i = 0; i < v->n_row; i++) {
    struct refusals *same = NULL;
    for (guint r = 0; v->row[i].rule && r < all->len && !same; r++)
      if (g_str_equal (g_array_index (all, struct refusals, r).rule, v->row[i].rule))
        same = &g_array_index (all, struct refusals, r);
    struct refusals one = { v->row[i].rule, v->row[i].why, 1 };
    if (same)
      same->n++;
    else if (v->row[i].rule)
      g_array_append_val (all, one);
  }
  if (all->len)
    printf ("\nrefused by rule\n");
  for (guint r = 0; r < all->len; r++) {
    const struct refusals *one = &g_array_index (all, struct refusals, r);
    printf ("%5u  %-20s", one->n, one->rule);
    weft_cli_print_rest (one->why, 28, MIN (weft_cli_columns (), MOST_COLUMNS));
  }
}

static void
print_share (double error)
{
  if (isnan (error))
    printf (" %8s", "");
  else
    printf (" %+7.1f%%", 100 * error);
}

static void
print_value (double value)
{
  if (isnan (value))
    printf (" %9s", "-");
  else
    printf (" %9.4g", value);
}

static void
print_rows (const weft_validation *v)
{
  printf ("\n%-14s    predicted  measured    error     GiB  measured    error\n", "row");
  for (uint32_t i = 0; i < v->n_row; i++) {
    const struct weft_validate_row *row = &v->row[i];
    printf ("%-14s %c ", row->id, row->tier);
    if (row->rule) {
      printf ("refused: %s\n", row->why);
      continue;
    }
    print_value (row->predicted_s);
    print_value (row->measured_s);
    print_share (row->time_error);
    print_value (row->predicted_gib);
    print_value (row->measured_gib);
    print_share (row->memory_error);
    printf ("\n");
  }
}

static void
print_text (const weft_validation *v, const weft_errors *errors, gboolean verbose)
{
  printf ("%u rows: %u predicted, %u refused; %.1f s.  Errors are predicted / measured - 1 in %%; "
          "tier C is\nnot counted, rows apart are in no total.\n\n",
          v->n_row, v->n_predicted, v->n_row - v->n_predicted, v->wall_seconds);
  print_all (v, widest_name (v));
  weft_cli_print_sweeps (errors);
  print_refusals (v);
  if (verbose)
    print_rows (v);
}

/* ------------------------------------------------------------------------ JSON */

static void
add_errors (JsonBuilder *b, const struct weft_validate_errors *e)
{
  weft_json_int (b, "n", e->n);
#define ADD(name, doc) weft_json_real_or_null (b, #name, e->name);
  WEFT_VALIDATE_ERROR_LIST (ADD)
#undef ADD
}

static void
add_refused (JsonBuilder *b, const weft_validation *v)
{
  weft_json_array (b, "refused");
  for (uint32_t i = 0; i < v->n_row; i++) {
    if (!v->row[i].rule)
      continue;
    json_builder_begin_object (b);
    weft_json_text (b, "id", v->row[i].id);
    weft_json_text (b, "rule", v->row[i].rule);
    weft_json_text (b, "why", v->row[i].why);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
add_groups (JsonBuilder *b, const char *member, const char *name,
            const struct weft_validate_group *group, uint32_t n)
{
  weft_json_array (b, member);
  for (uint32_t i = 0; i < n; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, name, group[i].name);
    weft_json_bool (b, "apart", group[i].apart);
    add_errors (b, &group[i].time);
    weft_json_object (b, "memory");
    add_errors (b, &group[i].memory);
    json_builder_end_object (b);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
add_means (JsonBuilder *b, const weft_validation *v)
{
  weft_json_object (b, "mean_by_source");
  weft_json_real_or_null (b, "time", v->time_by_source);
  weft_json_real_or_null (b, "memory", v->memory_by_source);
  json_builder_end_object (b);
}

static void
add_row (JsonBuilder *b, const struct weft_validate_row *row)
{
  json_builder_begin_object (b);
  weft_json_text (b, "id", row->id);
  weft_json_text (b, "group", row->group);
  weft_json_text (b, "tier", (const char[]){ row->tier, '\0' });
  weft_json_real_or_null (b, "predicted_time_s", row->predicted_s);
  weft_json_real_or_null (b, "measured_time_s", row->measured_s);
  weft_json_real_or_null (b, "time_error", row->time_error);
  weft_json_real_or_null (b, "predicted_memory_gib", row->predicted_gib);
  weft_json_real_or_null (b, "measured_memory_gib", row->measured_gib);
  weft_json_real_or_null (b, "memory_error", row->memory_error);
  json_builder_end_object (b);
}

static void
print_json (const weft_validation *v, const weft_errors *errors)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.validate/1");
  weft_json_int (b, "rows", v->n_row);
  weft_json_int (b, "predicted", v->n_predicted);
  add_refused (b, v);
  weft_json_object (b, "time");
  add_errors (b, &v->time);
  json_builder_end_object (b);
  weft_json_object (b, "memory");
  add_errors (b, &v->memory);
  json_builder_end_object (b);
  add_means (b, v);
  add_groups (b, "groups", "group", v->group, v->n_group);
  add_groups (b, "sources", "source", v->source, v->n_source);
  weft_cli_add_sweeps (b, errors);
  weft_json_array (b, "per_row");
  for (uint32_t i = 0; i < v->n_row; i++)
    if (!v->row[i].rule)
      add_row (b, &v->row[i]);
  json_builder_end_array (b);
  weft_json_real (b, "wall_s", v->wall_seconds);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* ------------------------------------------------------------------------- CSV */

static void
append_number (GString *text, double value)
{
  g_autofree char *number = isnan (value) ? g_strdup ("") : weft_units_print (value);
  g_string_append_printf (text, ",%s", number);
}

static gboolean
write_csv (const weft_validation *v, const char *path, GError **error)
{
  g_autoptr (GString) text =
      g_string_new ("id,group,tier,predicted_time_s,measured_time_s,time_error,"
                    "predicted_memory_gib,measured_memory_gib,memory_error,refused_by\n");

  for (uint32_t i = 0; i < v->n_row; i++) {
    const struct weft_validate_row *row = &v->row[i];
    const double numbers[] = { row->predicted_s,   row->measured_s,   row->time_error,
                               row->predicted_gib, row->measured_gib, row->memory_error };
    weft_csv_append (text, row->id);
    g_string_append_c (text, ',');
    weft_csv_append (text, row->group);
    g_string_append_printf (text, ",%c", row->tier);
    for (unsigned n = 0; n < G_N_ELEMENTS (numbers); n++)
      append_number (text, numbers[n]);
    g_string_append_c (text, ',');
    weft_csv_append (text, row->rule ? row->rule : "");
    g_string_append_c (text, '\n');
  }
  return weft_cli_write (path, text->str, error);
}

/* --------------------------------------------------------------------- explain */

static int
find_row (const weft_published *table, const char *id)
{
  for (unsigned i = 0; i < table->csv->n_row; i++)
    if (g_str_equal (weft_published_cell (table, i, WEFT_COLUMN_id), id))
      return i;
  return -1;
}

static void
print_applied (const weft_row_job *row)
{
  const char *rule = NULL;

  for (unsigned i = 0; i < row->applied->len; i++) {
    const struct weft_applied *a = g_ptr_array_index (row->applied, i);
    if (a->rule != rule)
      printf ("\n[%s]\n", a->rule);
    rule = a->rule;
    printf ("%5u  %s%s%s\n", a->line, g_str_equal (a->key, "why") ? "because " : a->key,
            g_str_equal (a->key, "why") ? "" : " = ", a->value);
  }
}

/* Prints the assumptions for a row, rule by rule, and the resulting job file. */
static int
explain (const weft_published *table, const weft_assumptions *assumptions, const char *id)
{
  g_autoptr (GError) error = NULL, refusal = NULL;
  int row = find_row (table, id);

  if (row < 0) {
    weft_bad_input (&error, "%s: found no row \"%s\"", table->csv->name, id);
    return weft_cli_fail (error);
  }
  printf ("%s:%u  %s\n%s\n", table->csv->name, table->csv->line[row + 1], id,
          weft_published_cell (table, row, WEFT_COLUMN_source));
  for (unsigned c = WEFT_COLUMN_layers; c <= WEFT_COLUMN_offload; c++)
    printf ("%s%s = %s", (c - WEFT_COLUMN_layers) % 5 ? ", " : "\n  ", weft_published_name (c),
            weft_published_cell (table, row, c));
  printf ("\n");
  g_autoptr (weft_row_job) job = weft_row_job_new (assumptions, table, row, &refusal);
  print_applied (job);
  if (refusal) {
    printf ("\nrefused: %s\n", refusal->message);
    return 0;
  }
  g_autofree char *text = weft_job_print (&job->job);
  printf ("\n# as a job file\n%s", text);
  return 0;
}

/* --------------------------------------------------------------------- command */

static gboolean
read_most (const char *text, double *most, GError **error)
{
  char *end;

  *most = text ? g_ascii_strtod (text, &end) : INFINITY;
  if (text && (end == text || *end || !(*most >= 0)))
    return weft_bad_input (error, "--max-mape: found \"%s\", wanted a share such as 0.1", text);
  return TRUE;
}

static gboolean
read_options (const struct ask *ask, struct weft_validate_options *options, GError **error)
{
  int64_t jobs = 0;

  if (ask->tier && strspn (ask->tier, "ABC,") != strlen (ask->tier))
    return weft_bad_input (error, "--tier: found \"%s\", wanted letters of A, B and C", ask->tier);
  if (ask->jobs && !weft_cli_number ("jobs", "a number of processes", ask->jobs, 1, &jobs, error))
    return FALSE;
  *options = (struct weft_validate_options){ .executor = weft_cli_executor (ask->executor, error),
                                             .jobs = jobs,
                                             .tier = ask->tier,
                                             .group = ask->group,
                                             .source = ask->source,
                                             .progress = show_progress };
  return options->executor != NULL;
}

/* Exit status 3 if the mean error exceeds --max-mape, or if no row could be compared; else 0. */
static int
judge (const weft_validation *v, const char *text, double most)
{
  if (!text || v->time.mape <= most)
    return 0;
  if (v->time.n == 0)
    fprintf (stderr, "weft: --max-mape %s: no row has a step time to compare\n", text);
  else
    fprintf (stderr, "weft: mean error of the step time %.1f %%, wanted at most %.1f %%\n",
             100 * v->time.mape, 100 * most);
  return 3;
}

static gboolean
check_outputs (const struct ask *ask, GError **error)
{
  g_autofree char *picture = ask->accuracy ? weft_cli_accuracy_beside (ask->accuracy) : NULL;
  const struct weft_cli_output written[] = { { "csv", ask->csv },
                                             { "record", ask->record },
                                             { "accuracy", ask->accuracy },
                                             { "accuracy", picture },
                                             { "figure", ask->figure.path } };

  return weft_cli_figure_check (&ask->figure, error) &&
         weft_cli_check_outputs (written, G_N_ELEMENTS (written), NULL, error);
}

/* Whether --accuracy or --figure is given without any other flag. They then show the bundled record
 * of errors. */
static gboolean
is_page_only (const weft_cli_input *input, const struct ask *ask)
{
  const char *const others[] = { input->operand, ask->record, ask->tier,    ask->group,
                                 ask->source,    ask->most,   ask->explain, ask->csv };

  for (unsigned i = 0; i < G_N_ELEMENTS (others); i++)
    if (others[i])
      return FALSE;
  return ask->accuracy || ask->figure.path;
}

static gboolean
draw_errors (const weft_errors *errors, const struct weft_cli_figure_ask *ask, GError **error)
{
  g_autoptr (weft_figure) figure = weft_cli_figure_accuracy (errors);

  return weft_cli_figure_write (ask, figure, error);
}

/* Writes the page of accuracy and the figure from the bundled record of errors, without predicting
 * any row. */
static int
write_page (const struct ask *ask)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_errors) errors =
      check_outputs (ask, &error) ? weft_errors_load (NULL, &error) : NULL;

  return errors && (!ask->accuracy || weft_cli_accuracy (errors, ask->accuracy, &error)) &&
                 draw_errors (errors, &ask->figure, &error)
             ? 0
             : weft_cli_fail (error);
}

static int
run (const weft_cli_input *input, const struct ask *ask)
{
  g_autoptr (GError) error = NULL;
  struct weft_validate_options options;
  g_autofree char *bundled =
      g_build_filename (weft_data_dir (), "validation", "published.csv", NULL);
  weft_pace pace = { FILE_EVERY, g_get_monotonic_time () };
  double most;

  if (!read_options (ask, &options, &error) || !read_most (ask->most, &most, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_published) table =
      weft_published_load (input->operand ? input->operand : bundled, &error);
  g_autoptr (weft_assumptions) assumptions =
      table ? weft_assumptions_load (ask->assumptions, &error) : NULL;
  if (!assumptions || !check_outputs (ask, &error))
    return weft_cli_fail (error);
  if (ask->explain)
    return explain (table, assumptions, ask->explain);
  options.user = &pace;
  g_autoptr (weft_validation) v = weft_validate (table, assumptions, &options, &error);
  clear_progress ();
  g_autofree char *record = v ? weft_errors_record (v) : NULL;
  g_autoptr (weft_errors) errors = v ? weft_errors_parse (record, "record", &error) : NULL;
  if (!errors || (ask->csv && !write_csv (v, ask->csv, &error)) ||
      (ask->record && !weft_cli_write (ask->record, record, &error)) ||
      (ask->accuracy && !weft_cli_accuracy (errors, ask->accuracy, &error)) ||
      !draw_errors (errors, &ask->figure, &error))
    return weft_cli_fail (error);
  if (input->json)
    print_json (v, errors);
  else
    print_text (v, errors, ask->verbose);
  return judge (v, ask->most, most);
}

/* weft validate --nccl. Most flags do not apply, because the table of collectives has no tiers,
 * groups and jobs. */
static int
run_nccl (const weft_cli_input *input, const struct ask *ask)
{
  const char *const others[] = { ask->tier, ask->group, ask->source, ask->most,    ask->explain,
                                 ask->csv,  ask->jobs,  ask->record, ask->accuracy,
                                 ask->figure.path };
  g_autoptr (GError) error = NULL;

  for (unsigned i = 0; i < G_N_ELEMENTS (others); i++)
    if (others[i]) {
      weft_bad_input (&error,
                      "--nccl: found another flag, wanted only --assumptions, --verbose and "
                      "--json");
      return weft_cli_fail (error);
    }
  return weft_cli_validate_nccl (input->operand, ask->assumptions, ask->verbose, input->json);
}

int
weft_cli_validate (int argc, char **argv)
{
  struct ask ask = { 0 };
  const struct weft_cli_flag flags[] = {
    { "tier", "AB", "only rows of these tiers, such as A or AB", NULL, &ask.tier },
    { "group", "PATTERN", "only groups that match the pattern (* and ?)", NULL, &ask.group },
    { "source", "NAME", "only rows with id NAME-..., or with a source that matches the pattern",
      NULL, &ask.source },
    { "max-mape", "SHARE", "end with status 3 if the mean error of the time exceeds this", NULL,
      &ask.most },
    { "csv", "FILE", "write one line per row to FILE", NULL, &ask.csv },
    { "record", "FILE", "write the errors that bands and docs/accuracy.md are made of to FILE",
      NULL, &ask.record },
    { "accuracy", "FILE",
      "write the page of errors (docs/accuracy.md) to FILE and its picture beside it; without "
      "other flags it is about the recorded errors, and nothing is predicted",
      NULL, &ask.accuracy },
    WEFT_CLI_FIGURE_FLAGS (&ask.figure, "predicted against measured; without other flags, the "
                                        "recorded errors"),
    { "explain", "ID", "show how row ID becomes a job, with the line of every assumption", NULL,
      &ask.explain },
    { "nccl", NULL,
      "predict measured collectives instead; the default CSV is then validation/nccl.csv",
      &ask.nccl },
    { "verbose", NULL, "print one line per row", &ask.verbose, NULL },
    { "jobs", "N", "processes that predict rows [one per processor]", NULL, &ask.jobs },
    { "executor", weft_cli_executor_names (),
      "SimGrid with contention, or closed formulas without [sim]", NULL, &ask.executor },
    { "assumptions", "FILE",
      "use FILE instead of validation/assumptions.ini; with --nccl, of validation/nccl.ini", NULL,
      &ask.assumptions },
  };
  const struct weft_cli_page page = {
    .usage = "weft validate [CSV] [flags] [--json]",
    .doc =
        "Predicts every row of a table of published measurements and prints the errors, predicted "
        "/ measured - 1, by group, by source and overall.  The default CSV is "
        "validation/published.csv; docs/validation.md explains the output.  Ends with status 3 if "
        "the mean error of the step time exceeds --max-mape.",
    .examples = "  weft validate\n"
                "  weft validate --source mosaic --tier A --verbose\n"
                "  weft validate --explain mosaic-004\n"
                "  weft validate --nccl --verbose\n"
                "  weft validate --record validation/errors.csv --accuracy docs/accuracy.md\n"
                "  weft validate mine.csv --max-mape 0.1 --csv errors.csv --json\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
  };
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  if (status != WEFT_CLI_GO_ON)
    return status;
  if (ask.nccl)
    return run_nccl (&input, &ask);
  return is_page_only (&input, &ask) ? write_page (&ask) : run (&input, &ask);
}
