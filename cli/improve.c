#include "cli/improve.h"
#include "cli/ask.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include <math.h>
#include <stdio.h>

void
weft_cli_given_free (weft_cli_given *given)
{
  g_clear_pointer (&given->search, weft_search_free);
  g_free (given);
}

weft_cli_given *
weft_cli_given_new (const weft_cli_input *input, const struct weft_search_options *options,
                    GError **error)
{
  g_autoptr (weft_cli_given) given = g_new0 (weft_cli_given, 1);
  struct weft_search_options one = *options;
  GError *wrong = NULL;

  if (!weft_job_build (input->settings, &given->job, error))
    return NULL;
  struct weft_job fixed = given->job;
  weft_space_close (&fixed);
  one.finalists = 1;
  one.near_miss = FALSE;
  given->search = weft_search_run (&fixed, &one, &wrong);
  if (wrong && wrong->code != WEFT_ERROR_INFEASIBLE) {
    g_propagate_error (error, wrong);
    return NULL;
  }
  g_clear_error (&wrong);
  return g_steal_pointer (&given);
}

/* The last value that the command line gives to a key. */
static const char *
last_value (const weft_settings *settings, const char *key)
{
  const char *value = NULL;

  for (unsigned i = 0; i < weft_settings_count (settings); i++)
    if (g_str_equal (weft_settings_at (settings, i)->key, key))
      value = weft_settings_at (settings, i)->value;
  return value;
}

/* Whether a setting is left open by its last value: the word "any", or a list. Texts may contain
 * commas. */
#define ANY "any"

static gboolean
is_open (const weft_settings *settings, const char *key)
{
  const char *last = last_value (settings, key);

  return weft_space_lists (key) && (g_str_equal (last, ANY) || strchr (last, ','));
}

weft_settings *
weft_cli_open_settings (const weft_cli_input *input, gboolean improve,
                        struct weft_space_ranges *ranges, GError **error)
{
  g_autoptr (weft_settings) open = weft_settings_new ();

  for (unsigned i = 0; i < weft_settings_count (input->settings); i++) {
    const struct weft_setting *s = weft_settings_at (input->settings, i);
    if (improve && i < input->n_from_file && weft_space_varies (s->key))
      continue;
    if (is_open (input->settings, s->key)) {
      const char *last = last_value (input->settings, s->key);
      if (!g_str_equal (last, ANY) && !weft_space_limit (ranges, s->key, last, error))
        return NULL;
    } else if (s->default_only)
      weft_settings_add_default (open, s->section, s->key, s->value, s->where);
    else
      weft_settings_add (open, s->section, s->key, s->value, s->where);
  }
  return g_steal_pointer (&open);
}

/* ------------------------------------------------------------------------ text */

static const weft_report *
report_of (const weft_cli_given *given)
{
  return given->search->candidate[0].report;
}

void
weft_cli_given_print (const weft_cli_given *given)
{
  const weft_report *report = report_of (given);
  const struct weft_candidate *c = &given->search->candidate[0];

  printf ("\nthe job as it is: ");
  if (report) {
    g_autofree char *time = weft_units_human (c->seconds, "s");
    printf ("%s a step, %.0f tokens/s per GPU, MFU %.1f %%, %.1f GB\n", time,
            report->iteration.tokens_per_s_per_gpu, 100 * report->iteration.mfu,
            (double) c->bytes * 1e-9);
  } else
    printf ("does not fit; it needs at least %.1f of %.1f GB\n", (double) c->bytes * 1e-9,
            weft_plan_capacity (&given->job) * 1e-9);
}

/* Appends the settings of a table that the search varies and in which two jobs differ:
 * "micro_batch_size 1 -> 2". */
static void
append_changes (GString *text, const struct weft_table *table, const union weft_value *from,
                const union weft_value *to)
{
  for (unsigned i = 0; i < table->n; i++) {
    const struct weft_field *field = &table->field[i];
    if (!weft_space_varies (field->name))
      continue;
    g_autofree char *before = weft_field_print (field, from[i]);
    g_autofree char *after = weft_field_print (field, to[i]);
    if (!g_str_equal (before, after))
      g_string_append_printf (text, "%s%s %s -> %s", text->len ? ", " : "", field->name, before,
                              after);
  }
}

static void
print_changes (const struct weft_job *from, const struct weft_job *to)
{
  g_autoptr (GString) text = g_string_new (NULL);

  append_changes (text, &weft_train_table, from->train.at, to->train.at);
  append_changes (text, &weft_strategy_table, from->strategy.at, to->strategy.at);
  printf ("  changes  ");
  weft_cli_print_wrapped (text->len ? text->str : "none", 11, weft_cli_columns ());
}

void
weft_cli_given_compare (const weft_cli_given *given, const struct weft_candidate *best,
                        const struct weft_job *chosen, double error)
{
  double before = given->search->candidate[0].seconds;

  if (before > 0) {
    double ratio = before / best->seconds;
    g_autofree char *from = weft_units_human (before, "s");
    g_autofree char *to = weft_units_human (best->seconds, "s");
    printf ("\nthe best is %.2f times as fast as the job as it is: %s -> %s", ratio, from, to);
    printf (ratio <= 1 + error ? "; within the errors of predictions\n" : "\n");
  } else
    printf ("\nthe best fits, the job as it is does not\n");
  print_changes (&given->job, chosen);
}

/* ------------------------------------------------------------------------ JSON */

void
weft_cli_given_add (const weft_cli_given *given, JsonBuilder *b)
{
  const weft_report *report = report_of (given);

  weft_json_object (b, "given");
  weft_json_bool (b, "fits", report != NULL);
  json_builder_set_member_name (b, "strategy");
  weft_report_build_strategy (&given->job, b);
  json_builder_set_member_name (b, "train");
  weft_report_build_train (&given->job, b);
  if (report) {
    json_builder_set_member_name (b, "iteration");
    weft_report_build_iteration (report, b);
    json_builder_set_member_name (b, "memory");
    weft_report_build_memory (report, b);
  }
  json_builder_end_object (b);
}
