/* weft fit: adjusts constants of topologies and stacks to published or own measurements. */
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/executors.h"
#include "core/base/pace.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "planner/fit.h"
#include <math.h>
#include <stdio.h>
#include <unistd.h>

struct ask {
  const char *constants, *assumptions, *source, *rounds, *jobs, *executor;
  gboolean update, thin;
};

enum { MOST_ROUNDS = 8, FILE_EVERY = 10 * G_USEC_PER_SEC };

/* Prints a line of progress. In a file, lines are printed only every few seconds. */
static void
show_progress (void *user, const char *what, uint32_t done, uint32_t of)
{
  weft_pace *pace = user;

  if (isatty (STDERR_FILENO))
    fprintf (stderr, "\r%s: %u of %u rows\033[K", what, done, of);
  else if (weft_pace_due (pace, g_get_monotonic_time ()))
    fprintf (stderr, "weft: %s: %u of %u rows\n", what, done, of);
}

/* ------------------------------------------------------------------------------ text */

static void
print_share (double share, const char *format)
{
  if (isnan (share))
    printf (" %7s", "-");
  else
    printf (format, 100 * share);
}

static char *
number_with_unit (const struct weft_constant *c, double value)
{
  return g_strdup_printf ("%.4g%s", value, c->sheet->table->field[c->row].unit);
}

static void
print_constants (const weft_constants *constants, const weft_fit *fit)
{
  printf ("%-12s %-12s %6s %5s %5s %6s %6s %6s\n", "prior", "fitted", "+- %", "rows", "mem",
          "sens.", "time %", "mem %");
  for (uint32_t k = 0; k < fit->n_constant; k++) {
    const struct weft_constant *c = &constants->constant[k];
    const struct weft_fitted *x = &fit->constant[k];
    g_autofree char *name = weft_constant_name (c);
    g_autofree char *prior = number_with_unit (c, c->prior);
    g_autofree char *value = number_with_unit (c, x->value);
    g_autofree char *low = number_with_unit (c, c->low), *high = number_with_unit (c, c->high);
    printf ("%s, within %s..%s%s\n", name, low, high, x->on_bound ? ": on its bound" : "");
    printf ("%-12s %-12s %6.1f %5u %5u %6.3f %6.1f %6.1f\n", prior, value,
            100 * x->standard_error, x->n_time, x->n_memory, x->sensitivity,
            100 * x->time_without, 100 * x->memory_without);
  }
}

static void
print_sources (const weft_fit *fit, gboolean memory)
{
  printf ("\n%-12s %5s %7s %7s %7s %7s\n", memory ? "memory" : "step time", "rows", "prior %",
          "fitted", "bias", "left out");
  for (uint32_t s = 0; s < fit->n_source; s++) {
    const struct weft_fit_error *e = memory ? fit->source[s].memory : fit->source[s].time;
    if (e[WEFT_FIT_PRIOR].n == 0)
      continue;
    printf ("%-12s %5u", fit->source[s].name, e[WEFT_FIT_FITTED].n);
    print_share (e[WEFT_FIT_PRIOR].mean, " %7.1f");
    print_share (e[WEFT_FIT_FITTED].mean, " %7.1f");
    print_share (e[WEFT_FIT_FITTED].bias, " %+7.1f");
    print_share (e[WEFT_FIT_LEFT_OUT].mean, " %7.1f");
    printf ("\n");
  }
  const double *mean = memory ? fit->memory : fit->time;
  printf ("%-18s", "mean by source");
  print_share (mean[WEFT_FIT_PRIOR], " %7.1f");
  print_share (mean[WEFT_FIT_FITTED], " %7.1f");
  printf (" %7s", "");
  print_share (mean[WEFT_FIT_LEFT_OUT], " %7.1f");
  printf ("\n");
}

static void
print_text (const weft_constants *constants, const weft_fit *fit)
{
  printf ("%u constants, %u rounds.  Under each constant: its prior and its fitted value, the "
          "standard error,\nthe numbers of times and memories that depend on it, their mean "
          "sensitivity, and the mean errors by\nsource if this constant keeps its prior value.\n\n",
          fit->n_constant, fit->n_round);
  print_constants (constants, fit);
  print_sources (fit, FALSE);
  if (!isnan (fit->memory[WEFT_FIT_PRIOR]))
    print_sources (fit, TRUE);
}

/* ------------------------------------------------------------------------------ JSON */

static void
add_constant (JsonBuilder *b, const struct weft_constant *c, const struct weft_fitted *x)
{
  g_autofree char *name = weft_constant_name (c);

  json_builder_begin_object (b);
  weft_json_text (b, "constant", name);
  weft_json_real (b, "prior", c->prior);
  weft_json_real (b, "low", c->low);
  weft_json_real (b, "high", c->high);
  weft_json_real (b, "fitted", x->value);
  weft_json_real_or_null (b, "standard_error", x->standard_error);
  weft_json_int (b, "time_rows", x->n_time);
  weft_json_int (b, "memory_rows", x->n_memory);
  weft_json_real (b, "sensitivity", x->sensitivity);
  weft_json_real_or_null (b, "time_without", x->time_without);
  weft_json_real_or_null (b, "memory_without", x->memory_without);
  weft_json_bool (b, "on_bound", x->on_bound);
  json_builder_end_object (b);
}

static void
add_errors (JsonBuilder *b, const char *member, const struct weft_fit_error *e)
{
  weft_json_object (b, member);
  weft_json_int (b, "n", e->n);
  for (int state = 0; state < WEFT_N_FIT_STATE; state++) {
    weft_json_object (b, weft_fit_state_names[state]);
    weft_json_real_or_null (b, "mean", e[state].mean);
    weft_json_real_or_null (b, "bias", e[state].bias);
    json_builder_end_object (b);
  }
  json_builder_end_object (b);
}

static void
add_means (JsonBuilder *b, const char *member, const double *mean)
{
  weft_json_object (b, member);
  for (int state = 0; state < WEFT_N_FIT_STATE; state++)
    weft_json_real_or_null (b, weft_fit_state_names[state], mean[state]);
  json_builder_end_object (b);
}

static void
print_json (const weft_constants *constants, const weft_fit *fit)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.fit/1");
  weft_json_int (b, "rounds", fit->n_round);
  add_means (b, "time_by_source", fit->time);
  add_means (b, "memory_by_source", fit->memory);
  weft_json_array (b, "constants");
  for (uint32_t k = 0; k < fit->n_constant; k++)
    add_constant (b, &constants->constant[k], &fit->constant[k]);
  json_builder_end_array (b);
  weft_json_array (b, "sources");
  for (uint32_t s = 0; s < fit->n_source; s++) {
    json_builder_begin_object (b);
    weft_json_text (b, "source", fit->source[s].name);
    add_errors (b, "time", fit->source[s].time);
    add_errors (b, "memory", fit->source[s].memory);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* --------------------------------------------------------------------------- command */

/* Writes the fitted values of those constants that any row depends on. */
static gboolean
update_files (const weft_constants *constants, const weft_fit *fit, GError **error)
{
  for (uint32_t k = 0; k < fit->n_constant; k++) {
    const struct weft_fitted *x = &fit->constant[k];
    if (x->n_time + x->n_memory == 0)
      continue;
    g_autofree char *how = g_strdup_printf ("weft fit, %u rows, +-%.2g %%",
                                            x->n_time + x->n_memory, 100 * x->standard_error);
    if (!weft_constant_write (&constants->constant[k], x->value, how, error))
      return FALSE;
  }
  return TRUE;
}

static int
run (const weft_cli_input *input, const struct ask *ask)
{
  g_autoptr (GError) error = NULL;
  weft_pace pace = { FILE_EVERY, g_get_monotonic_time () };
  int64_t jobs = 0, rounds = MOST_ROUNDS;
  g_autofree char *bundled =
      g_build_filename (weft_data_dir (), "validation", "published.csv", NULL);

  if ((ask->jobs &&
       !weft_cli_number ("jobs", "a number of processes", ask->jobs, 1, &jobs, &error)) ||
      (ask->rounds &&
       !weft_cli_number ("rounds", "a number of rounds", ask->rounds, 0, &rounds, &error)))
    return weft_cli_fail (error);
  struct weft_fit_options options = { .executor = weft_cli_executor (ask->executor, &error),
                                      .jobs = jobs,
                                      .most_rounds = rounds,
                                      .source = ask->source,
                                      .thin = ask->thin,
                                      .progress = show_progress,
                                      .user = &pace };
  if (!options.executor)
    return weft_cli_fail (error);
  g_autoptr (weft_published) table =
      weft_published_load (input->operand ? input->operand : bundled, &error);
  g_autoptr (weft_assumptions) assumptions =
      table ? weft_assumptions_load (ask->assumptions, &error) : NULL;
  g_autoptr (weft_constants) constants =
      assumptions ? weft_constants_load (ask->constants, &error) : NULL;
  g_autoptr (weft_fit) fit =
      constants ? weft_fit_new (table, assumptions, constants, &options, &error) : NULL;
  if (isatty (STDERR_FILENO))
    fprintf (stderr, "\r\033[K");
  if (!fit || (ask->update && !update_files (constants, fit, &error)))
    return weft_cli_fail (error);
  if (input->json)
    print_json (constants, fit);
  else
    print_text (constants, fit);
  return 0;
}

int
weft_cli_fit (int argc, char **argv)
{
  struct ask ask = { 0 };
  const struct weft_cli_flag flags[] = {
    { "constants", "FILE", "fit the constants of FILE instead of validation/fit.ini", NULL,
      &ask.constants },
    { "assumptions", "FILE", "use FILE instead of validation/assumptions.ini", NULL,
      &ask.assumptions },
    { "source", "PATTERN", "only rows with id SOURCE-... whose SOURCE matches the pattern", NULL,
      &ask.source },
    { "thin", NULL,
      "of runs that differ only in the number of GPUs and the batch in proportion, use only the "
      "one with the fewest GPUs", &ask.thin, NULL },
    { "rounds", "N", "most rounds; 0: only the errors and sensitivities at the prior values [8]",
      NULL, &ask.rounds },
    { "update", NULL, "write the fitted values into the files of topologies and stacks",
      &ask.update, NULL },
    { "jobs", "N", "processes that predict rows [one per processor]", NULL, &ask.jobs },
    { "executor", weft_cli_executor_names (),
      "SimGrid with contention, or closed formulas without [sim]", NULL, &ask.executor },
  };
  const struct weft_cli_page page = {
    .usage = "weft fit [CSV] [flags] [--json]",
    .doc = "Fits constants of topologies and stacks to measured steps: finds the values, within "
           "their ranges, with the smallest errors of predictions.  Prints each constant with its "
           "standard error and the rows that depend on it, and the errors of each source before "
           "and after the fit and without its own rows.  The default CSV is "
           "validation/published.csv; docs/validation.md explains the method and how to fit three "
           "runs of your own.",
    .examples = "  weft fit --rounds 0\n"
                "  weft fit --update\n"
                "  weft fit mine.csv --constants mine.ini\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
  };
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
