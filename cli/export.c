#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/software.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include <stdio.h>

static void
print_line (const struct weft_interop_line *line, int columns)
{
  int used = printf ("  %-42s %-22s %-15s ", line->ours, line->value ? line->value : "",
                     weft_export_state_words[line->state]);

  g_autofree char *rest = line->theirs
                              ? g_strconcat (line->theirs, line->why ? ": " : "", line->why, NULL)
                              : g_strdup (line->why ? line->why : "");
  weft_cli_print_beside (rest, used, columns);
}

/* Prints the lines of the report: all settings of one state, then those of the next state. */
static void
print_report (const weft_interop_result *result)
{
  static const int order[] = { WEFT_EXPORT_NOT, WEFT_EXPORT_MAPPED, WEFT_EXPORT_ELSEWHERE,
                               WEFT_EXPORT_DEFAULT, WEFT_EXPORT_OWN };

  printf ("%s\n\n", result->target->release);
  for (unsigned s = 0; s < G_N_ELEMENTS (order); s++)
    for (unsigned i = 0; i < result->lines->len; i++) {
      const struct weft_interop_line *line = result->lines->pdata[i];
      if (line->state == order[s])
        print_line (line, weft_cli_columns ());
    }
}

static void
print_json (const weft_interop_result *result)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.export/1");
  weft_json_text (b, "for", result->target->name);
  weft_json_text (b, "release", result->target->release);
  weft_json_text (b, "text", result->text);
  if (result->launch)
    weft_json_text (b, "launch", result->launch);
  weft_json_array (b, "settings");
  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    json_builder_begin_object (b);
    weft_json_text (b, "setting", line->ours);
    weft_json_text (b, "value", line->value ? line->value : "");
    weft_json_text (b, "state", weft_export_state_words[line->state]);
    weft_json_text (b, "key", line->theirs ? line->theirs : "");
    weft_json_text (b, "why", line->why ? line->why : "");
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

struct wishes {
  const char *software, *output;
  gboolean report, partial, json;
};

static gboolean
show (const weft_interop_result *result, const struct wishes *wishes, GError **error)
{
  if (wishes->output && !weft_cli_write (wishes->output, result->text, error))
    return FALSE;
  if (wishes->json)
    print_json (result);
  else if (wishes->report)
    print_report (result);
  else if (!wishes->output)
    fputs (result->text, stdout);
  if (!wishes->json && !wishes->report)
    weft_cli_software_note_written (result);
  return TRUE;
}

static gboolean
run (const weft_cli_input *input, const struct wishes *wishes, GError **error)
{
  g_autofree struct weft_job *job = g_new (struct weft_job, 1);

  if (!wishes->software)
    return weft_bad_input (error, "export needs --for SOFTWARE; see weft export --help");
  const struct weft_target *target = weft_target_find (wishes->software, error);
  if (!target || !weft_cli_job (input, job, error))
    return FALSE;
  g_autoptr (weft_interop_result) result = weft_export (target, job, error);
  return result &&
         (wishes->report || wishes->json ||
          weft_cli_software_is_whole (result, wishes->partial, error)) &&
         show (result, wishes, error);
}

int
weft_cli_export (int argc, char **argv)
{
  g_autoptr (GError) error = NULL;
  g_auto (weft_cli_input) input = { 0 };
  struct wishes wishes = { 0 };
  g_autofree char *names = weft_target_names (", ", TRUE);
  g_autofree char *software =
      g_strconcat ("the software whose configuration is written: ", names, NULL);
  const struct weft_cli_flag flags[] = {
    { "for", "SOFTWARE", software, NULL, &wishes.software },
    { "output", "FILE", "write the configuration to FILE", NULL, &wishes.output },
    { "report", NULL,
      "print a line for every setting instead: mapped, default there, not expressible",
      &wishes.report, NULL },
    { "partial", NULL, "leave out settings that the software cannot express", &wishes.partial,
      NULL },
  };
  const struct weft_cli_page page = {
    .usage = "weft export [JOB] --for SOFTWARE [flags]",
    .doc =
        "Writes a job as the configuration of other software.  Keys are those of a named release "
        "of the software.  A job that it cannot express is refused (exit status 3).  What is "
        "exported imports to the same job.",
    .examples = "  weft export job.ini --for megatron-lm --output train.sh\n"
                "  weft export --model llama3-8b --topology dgx-h100 --tp 8 --for megatron-lm "
                "--report\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  if (status != WEFT_CLI_GO_ON)
    return status;
  wishes.json = input.json;
  return run (&input, &wishes, &error) ? 0 : weft_cli_fail (error);
}
