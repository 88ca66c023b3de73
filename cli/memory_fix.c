#include "cli/memory_fix.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/watch.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "planner/memory_risk.h"
#include "planner/sweeps.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------- arguments */

/* Reads the name of a knob or of a setting of the batch. */
static gboolean
keep (const char *name, struct weft_memory_fix_options *options, GError **error)
{
  int knob = weft_table_find (&weft_strategy_table, name);
  int train = weft_table_find (&weft_train_table, name);

  if (knob < 0 && train < 0)
    return weft_table_unknown (&weft_strategy_table, name, error);
  if (knob >= 0)
    options->knob_kept[knob] = TRUE;
  else
    options->train_kept[train] = TRUE;
  return TRUE;
}

static gboolean
read_names (const char *text, struct weft_memory_fix_options *options, GError **error)
{
  g_auto (GStrv) names = g_strsplit_set (text, ", ", -1);
  gboolean ok = TRUE;

  for (unsigned i = 0; names[i] && ok; i++)
    ok = !*names[i] || keep (names[i], options, error);
  if (!ok)
    g_prefix_error (error, "--keep: ");
  return ok;
}

static gboolean
read_limit (const char *text, const struct weft_job *job, double *limit, GError **error)
{
  if (!weft_units_parse (text, "B", limit, error)) {
    g_prefix_error (error, "--memory-limit: ");
    return FALSE;
  }
  if (*limit > 0 && *limit <= job->cluster.f.gpu_memory)
    return TRUE;
  g_autofree char *memory = weft_units_human (job->cluster.f.gpu_memory, "B");
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_INPUT,
               "--memory-limit: found %s, wanted more than 0 and at most the memory of the GPU, %s",
               text, g_strstrip (memory));
  return FALSE;
}

gboolean
weft_cli_fix_options (const struct weft_cli_fix_wishes *wishes, const struct weft_job *job,
                      struct weft_memory_fix_options *options, GError **error)
{
  *options = (struct weft_memory_fix_options){ .limit = weft_plan_capacity (job) };
  if (!wishes->fix && (wishes->limit || wishes->keep)) {
    g_set_error (error, WEFT_ERROR, WEFT_ERROR_INPUT, "--%s needs --fix",
                 wishes->limit ? "memory-limit" : "keep");
    return FALSE;
  }
  return (!wishes->limit || read_limit (wishes->limit, job, &options->limit, error)) &&
         (!wishes->keep || read_names (wishes->keep, options, error));
}

/* ------------------------------------------------------------------------ text */

struct page {
  const weft_memory_fixes *fixes;
  const struct weft_memory_fix_options *options;
  weft_cli_sure *sure;
};

/* The loss of speed against the job as given, as a fraction of its step time; NaN: not known. */
static double
loss_of (const struct page *page, const struct weft_memory_fix *fix)
{
  return fix->seconds / page->fixes->given.seconds - 1;
}

/* Whether the job may in reality need more than the limit. */
static gboolean
is_risky (const struct page *page, const struct weft_memory_fix *fix)
{
  return fix->bytes * (1 + weft_memory_error (page->sure->bands, &fix->job)) > page->options->limit;
}

/* The flags of a fix on one line, as a shell reads them. The caller frees the text. */
static char *
flags_line (const struct page *page, const struct weft_memory_fix *fix)
{
  g_autoptr (GPtrArray) flags = weft_change_flags (&page->fixes->given.job, &fix->job);

  g_ptr_array_add (flags, NULL);
  return g_strjoinv (" ", (char **) flags->pdata);
}

/* Returns the effects of the changes on the result of the training, as texts without duplicates.
 * The caller frees the array. */
static GPtrArray *
numerics_of (const struct weft_memory_fix *fix)
{
  GPtrArray *texts = g_ptr_array_new ();

  for (unsigned i = 0; i < fix->n; i++) {
    const char *text = weft_change_numerics (fix->change[i], &fix->job);
    if (text && !g_ptr_array_find_with_equal_func (texts, text, g_str_equal, NULL))
      g_ptr_array_add (texts, (char *) text);
  }
  return texts;
}

/* The numbers of a job: step time, memory, and a mark if it may not fit. */
static void
print_numbers (const struct page *page, const struct weft_memory_fix *fix)
{
  g_autofree char *time =
      isnan (fix->seconds) ? g_strdup ("-") : weft_units_human (fix->seconds, "s");
  g_autofree char *bytes = weft_units_human (fix->bytes, "B");

  printf ("%10s %9s%s  ", time, bytes, fix->n && is_risky (page, fix) ? "!" : " ");
}

static void
print_fix (const struct page *page, const struct weft_memory_fix *fix, unsigned number)
{
  g_autofree char *flags = flags_line (page, fix);
  g_autoptr (GPtrArray) numerics = numerics_of (fix);
  g_autoptr (GString) what = g_string_new (NULL);

  for (unsigned i = 0; i < fix->n; i++)
    g_string_append_printf (what, "%s%s", i ? "; " : "", weft_changes[fix->change[i]].doc);
  for (unsigned i = 0; i < numerics->len; i++)
    g_string_append_printf (what, "; changes numerics: %s", (const char *) numerics->pdata[i]);
  double loss = loss_of (page, fix);
  if (isnan (loss))
    printf ("%3u       - ", number);
  else
    printf ("%3u %+6.1f %% ", number, 100 * loss);
  print_numbers (page, fix);
  weft_cli_print_wrapped (what->str, 35, weft_cli_columns ());
  printf ("      %s\n", flags);
}

static void
print_risk (const struct page *page)
{
  double error = 0;
  unsigned risky = 0;

  for (uint32_t i = 0; i < page->fixes->n; i++)
    if (is_risky (page, &page->fixes->fix[i])) {
      error = fmax (error, weft_memory_error (page->sure->bands, &page->fixes->fix[i].job));
      risky++;
    }
  if (!risky)
    return;
  g_autofree char *text = g_strdup_printf (
      "! may not fit: memory of published runs exceeds its prediction by up to %.0f %%, and with "
      "that it exceeds the limit",
      100 * error);
  putchar ('\n');
  weft_cli_print_wrapped (text, 2, weft_cli_columns ());
}

/* Prints how far ratios of predicted times may be off: losses that differ by less may be equal. */
static void
print_ties (const struct page *page)
{
  struct weft_ratio_error ratio = weft_sweeps_ratio_error (page->sure->errors);
  g_autofree char *text = g_strdup_printf (
      "in %.0f %% of pairs of published strategies, the ratio of predicted times is off by up to "
      "%.1f %%: losses that differ by less may be in another order",
      100 * WEFT_SWEEP_SHARE, 100 * ratio.error);

  weft_cli_print_wrapped (text, 2, weft_cli_columns ());
}

static void
print_none (const struct page *page)
{
  const struct weft_memory_fix *closest = &page->fixes->closest;

  printf ("\nno combination of up to %d changes fits", WEFT_FIX_MOST);
  if (closest->n) {
    g_autofree char *bytes = weft_units_human (closest->bytes, "B");
    g_autofree char *flags = flags_line (page, closest);
    printf ("; of those that were planned, this needs least, %s:\n      %s\n", g_strstrip (bytes),
            flags);
  } else
    putchar ('\n');
  printf ("use more GPUs, fewer settings to keep, or a smaller model\n");
}

static void
print_counts (const struct page *page)
{
  const weft_memory_fixes *f = page->fixes;
  g_autofree char *text = g_strdup_printf (
      "tried: %u combinations fit, %u do not, %u break a rule, %u change what --keep names",
      f->fitting, f->too_large, f->illegal, f->kept);

  putchar ('\n');
  weft_cli_print_wrapped (text, 2, weft_cli_columns ());
  if (f->stopped)
    printf ("stopped: other changes may fit, too\n");
}

static void
print_given (const struct page *page)
{
  const weft_memory_fixes *f = page->fixes;
  g_autofree char *limit = weft_units_human (page->options->limit, "B");
  g_autofree char *bytes = weft_units_human (f->given.bytes, "B");

  printf ("the job as given needs %s and %s %s\n", g_strstrip (bytes),
          f->given_fits ? "fits" : "does not fit", g_strstrip (limit));
}

static void
print_band (const struct page *page)
{
  const struct weft_memory_fix *best = &page->fixes->fix[0];
  const struct weft_cli_answer answer = { &best->job, best->seconds, best->bytes };

  printf ("\nfor the first change:");
  weft_cli_print_sure (page->sure, &answer);
}

static void
print_text (const struct page *page)
{
  const weft_memory_fixes *f = page->fixes;

  print_given (page);
  if (f->given_fits)
    return;
  if (f->n == 0) {
    print_none (page);
    print_counts (page);
    return;
  }
  printf ("\n  #   slower       step    memory   change, and flags to add\n");
  printf ("  -       - ");
  print_numbers (page, &f->given);
  printf ("none: the job as given, if it could run\n");
  for (uint32_t i = 0; i < f->n; i++) {
    if (i && f->fix[i].n != f->fix[i - 1].n)
      printf ("\n    %u changes together\n", f->fix[i].n);
    print_fix (page, &f->fix[i], i + 1);
  }
  print_risk (page);
  print_ties (page);
  print_counts (page);
  print_band (page);
}

/* ------------------------------------------------------------------------ JSON */

static void
build_fix (JsonBuilder *b, const struct page *page, const struct weft_memory_fix *fix)
{
  g_autoptr (GPtrArray) flags = weft_change_flags (&page->fixes->given.job, &fix->job);
  g_autoptr (GPtrArray) numerics = numerics_of (fix);
  const struct weft_cli_answer answer = { &fix->job, fix->seconds, fix->bytes };

  json_builder_begin_object (b);
  weft_json_array (b, "changes");
  for (unsigned i = 0; i < fix->n; i++)
    json_builder_add_string_value (b, weft_changes[fix->change[i]].name);
  json_builder_end_array (b);
  weft_json_array (b, "flags");
  for (unsigned i = 0; i < flags->len; i++)
    json_builder_add_string_value (b, flags->pdata[i]);
  json_builder_end_array (b);
  weft_json_int (b, "peak_bytes", (int64_t) fix->bytes);
  weft_json_real_or_null (b, "time_s", fix->seconds);
  weft_json_real_or_null (b, "loss", loss_of (page, fix));
  weft_json_array (b, "changes_numerics");
  for (unsigned i = 0; i < numerics->len; i++)
    json_builder_add_string_value (b, numerics->pdata[i]);
  json_builder_end_array (b);
  weft_json_bool (b, "memory_risk", is_risky (page, fix));
  weft_cli_add_sure (page->sure, b, &answer);
  json_builder_end_object (b);
}

static void
build_given (JsonBuilder *b, const struct page *page)
{
  weft_json_object (b, "given");
  weft_json_bool (b, "fits", page->fixes->given_fits);
  weft_json_int (b, "peak_bytes", (int64_t) page->fixes->given.bytes);
  weft_json_real_or_null (b, "time_s", page->fixes->given.seconds);
  json_builder_end_object (b);
}

static void
print_json (const struct page *page)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  const weft_memory_fixes *f = page->fixes;

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.memory_fix/1");
  json_builder_set_member_name (b, "job");
  weft_report_build_job (&f->given.job, b);
  weft_json_real (b, "limit_bytes", page->options->limit);
  build_given (b, page);
  weft_json_array (b, "fixes");
  for (uint32_t i = 0; i < f->n; i++)
    build_fix (b, page, &f->fix[i]);
  json_builder_end_array (b);
  json_builder_set_member_name (b, "closest");
  if (f->closest.n)
    build_fix (b, page, &f->closest);
  else
    json_builder_add_null_value (b);
  weft_json_object (b, "tried");
  weft_json_int (b, "fit", f->fitting);
  weft_json_int (b, "too_large", f->too_large);
  weft_json_int (b, "break_a_rule", f->illegal);
  weft_json_int (b, "change_a_kept_setting", f->kept);
  json_builder_end_object (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

int
weft_cli_fix (const struct weft_job *job, struct weft_memory_fix_options *options,
              weft_cli_sure *sure, gboolean json)
{
  g_autoptr (GError) error = NULL;
  struct weft_cli_watch watch =
      weft_cli_watch_start (isatty (STDERR_FILENO), g_get_monotonic_time ());

  options->progress = weft_cli_watch_show;
  options->stop = weft_cli_is_interrupted;
  options->user = &watch;
  weft_cli_catch_interrupt ();
  g_autoptr (weft_memory_fixes) fixes = weft_memory_fix_find (job, options, &error);
  weft_cli_watch_clear (&watch);
  if (!fixes)
    return weft_cli_fail (error);
  const struct page page = { fixes, options, sure };
  if (json)
    print_json (&page);
  else
    print_text (&page);
  if (fixes->stopped)
    return WEFT_CLI_EXIT_BY_SIGINT;
  return fixes->given_fits ? 0 : 3;
}
