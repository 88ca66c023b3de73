#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "interop/interop.h"
#include <stdio.h>
#include <string.h>

/* Largest size of a file of settings that is read, in bytes. */
#define MOST_BYTES ((gsize) 16 << 20)

struct wishes {
  const char *software, *output;
  gboolean report, partial;
};

static gboolean
is_set (const weft_settings *settings, const char *key)
{
  for (unsigned i = 0; i < weft_settings_count (settings); i++)
    if (strcmp (weft_settings_at (settings, i)->key, key) == 0)
      return TRUE;
  return FALSE;
}

/* Refuses a file that lacks a setting which the other software needs, unless a flag gives the
 * setting. */
static gboolean
is_complete (const weft_interop_result *result, const weft_settings *flags, const char *name,
             GError **error)
{
  for (unsigned i = 0; i < result->needed->len; i++) {
    const char *key = result->needed->pdata[i];
    g_autofree char *flag = g_strdelimit (g_strdup (key), "_", '-');
    if (!is_set (flags, key))
      return weft_bad_input (error, "%s: no key says %s, and %s has no default for it; give --%s",
                             name, key, result->target->release, flag);
  }
  return TRUE;
}

/* The number of GPUs that the flags give, as a number or as nodes of a topology; 0: no flag gives
 * it. */
static gint64
gpus_of (const weft_settings *flags)
{
  struct weft_cluster cluster;
  gint64 gpus = 0, nodes = 0, per_node = 0;

  for (unsigned i = 0; i < weft_settings_count (flags); i++) {
    const struct weft_setting *flag = weft_settings_at (flags, i);
    if (strcmp (flag->key, "gpus") == 0)
      gpus = g_ascii_strtoll (flag->value, NULL, 10);
    else if (strcmp (flag->key, "nodes") == 0)
      nodes = g_ascii_strtoll (flag->value, NULL, 10);
    else if (strcmp (flag->key, "topology") == 0 && weft_cluster_load (flag->value, &cluster, NULL))
      per_node = cluster.f.node_gpus;
  }
  return CLAMP (gpus > 0 ? gpus : nodes * per_node, 0, (gint64) 1 << 24);
}

static void
print_report (const weft_interop_result *result)
{
  for (int state = WEFT_IMPORT_NOT; state >= WEFT_IMPORT_MAPPED; state--)
    for (unsigned i = 0; i < result->lines->len; i++) {
      const struct weft_interop_line *line = result->lines->pdata[i];
      if (line->state == state)
        printf ("  %s%-44s %-24s %s%s%s\n", result->target->prefix, line->theirs, line->value,
                weft_import_state_words[line->state], line->why ? ": " : "",
                line->why ? line->why : "");
    }
}

static void
print_json (const weft_interop_result *result, const char *job)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.import/1");
  weft_json_text (b, "from", result->target->name);
  weft_json_text (b, "release", result->target->release);
  weft_json_text (b, "job", job);
  weft_json_array (b, "keys");
  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    json_builder_begin_object (b);
    weft_json_text (b, "key", line->theirs);
    weft_json_text (b, "value", line->value);
    weft_json_text (b, "state", weft_import_state_words[line->state]);
    weft_json_text (b, "why", line->why ? line->why : "");
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* Prints on stderr which settings an import leaves out or does not need. */
static void
note (const weft_interop_result *result)
{
  unsigned quiet = 0;

  for (unsigned i = 0; i < result->unknown->len; i++)
    fprintf (stderr, "weft: note: left out: %s\n", (const char *) result->unknown->pdata[i]);
  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    quiet += line->state == WEFT_IMPORT_QUIET;
    if (line->state == WEFT_IMPORT_NOT)
      fprintf (stderr, "weft: note: left out: %s: %s%s %s\n", line->why, result->target->prefix,
               line->theirs, line->value);
  }
  fprintf (stderr, "weft: note: %s: %u keys, %u without effect on a step; --report lists them\n",
           result->target->release, result->lines->len, quiet);
}

static gboolean
show (const weft_interop_result *result, const struct wishes *wishes, gboolean json,
      const struct weft_job *job, GError **error)
{
  g_autofree char *text = weft_job_print (job);

  if (wishes->output && !weft_cli_write (wishes->output, text, error))
    return FALSE;
  if (json)
    print_json (result, text);
  else if (wishes->report)
    print_report (result);
  else if (!wishes->output)
    fputs (text, stdout);
  if (!json && !wishes->report)
    note (result);
  return TRUE;
}

static gboolean
run (weft_cli_input *input, const struct wishes *wishes, GError **error)
{
  g_autofree struct weft_job *job = g_new (struct weft_job, 1);
  const char *name = input->operand;
  gsize length = 0;

  if (!wishes->software || !name)
    return weft_bad_input (error, "import needs FILE and --from SOFTWARE; see weft import --help");
  const struct weft_target *target = weft_target_find (wishes->software, error);
  g_autofree char *text = target ? weft_file_read (name, MOST_BYTES, &length, error) : NULL;
  if (!text || !weft_file_check_text (text, length, name, error))
    return FALSE;
  if (target->model && !weft_settings_touch (input->settings, "model"))
    return weft_bad_input (error,
                           "%s: a configuration of %s does not contain the model; give --model",
                           name, target->release);
  struct weft_import_options options = { gpus_of (input->settings), input->settings,
                                         wishes->partial };
  g_autoptr (weft_interop_result) result = weft_import (target, text, name, &options, error);
  if (!result || !is_complete (result, input->settings, name, error))
    return FALSE;
  weft_settings_take (result->settings, input->settings);
  if (!weft_job_build (result->settings, job, error))
    return FALSE;
  weft_cli_warn (job);
  return show (result, wishes, input->json, job, error);
}

int
weft_cli_import (int argc, char **argv)
{
  g_autoptr (GError) error = NULL;
  g_auto (weft_cli_input) input = { 0 };
  struct wishes wishes = { 0 };
  g_autofree char *software = weft_target_names ("|");
  const struct weft_cli_flag flags[] = {
    { "from", software, "the software whose configuration FILE is", NULL, &wishes.software },
    { "output", "FILE", "write the job to FILE", NULL, &wishes.output },
    { "report", NULL, "print a line for every key instead of the job", &wishes.report, NULL },
    { "partial", NULL,
      "leave out unknown keys, and keys that change a step and that Weft does not have",
      &wishes.partial, NULL },
  };
  const struct weft_cli_page page = {
    .usage = "weft import FILE --from SOFTWARE --topology NAME [flags]",
    .doc = "Reads the configuration of other software and prints it as a job file.  Settings that "
           "the file does not give have the defaults of that software, not those of Weft.  A shell "
           "script is read and not run.",
    .examples = "  weft import train.sh --from megatron-lm --topology dgx-h100 --output job.ini\n"
                "  weft import model_config.yaml --from megatron-lm --topology dgx-h100 --gpus 8 "
                "--report\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
    .foreign = TRUE,
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  if (status != WEFT_CLI_GO_ON)
    return status;
  return run (&input, &wishes, &error) ? 0 : weft_cli_fail (error);
}
