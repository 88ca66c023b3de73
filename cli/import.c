#include "cli/cli.h"
#include "cli/software.h"
#include "interop/wiring.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include <stdio.h>
#include <string.h>

struct wishes {
  const char *software, *output;
  gboolean report, partial;
};

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
    weft_cli_software_note_read (result);
  return TRUE;
}

/* The topology that the flags give; NULL: none. */
static const char *
base_of (const weft_settings *flags)
{
  for (unsigned i = weft_settings_count (flags); i--;)
    if (strcmp (weft_settings_at (flags, i)->key, "topology") == 0)
      return weft_settings_at (flags, i)->value;
  return NULL;
}

/* Prints a topology file: that of --topology, with the wiring of the operand. */
static gboolean
show_wiring (const struct weft_wiring_format *format, const weft_cli_input *input,
             const struct wishes *wishes, GError **error)
{
  const char *base = base_of (input->settings);
  struct weft_wiring wiring;
  gsize length;

  if (!base)
    return weft_bad_input (error,
                           "%s shows wires, not how fast a GPU is; give --topology with the "
                           "same GPU, whose other numbers are taken",
                           format->doc);
  g_autofree char *text = weft_file_read (input->operand, 16 << 20, &length, error);
  if (!text || !weft_file_check_text (text, length, input->operand, error) ||
      !format->read (text, input->operand, &wiring, error))
    return FALSE;
  g_autofree char *out = weft_wiring_topology (&wiring, base, format->doc, error);
  if (!out || (wishes->output && !weft_cli_write (wishes->output, out, error)))
    return FALSE;
  if (!wishes->output)
    fputs (out, stdout);
  fprintf (stderr,
           "weft: note: %u GPUs with %u NVLinks, %u ports, %u GPUs on a PCIe switch (0: the "
           "file does not show it)\n",
           wiring.gpus, wiring.links, wiring.nics, wiring.per_switch);
  return TRUE;
}

static gboolean
run (weft_cli_input *input, const struct wishes *wishes, GError **error)
{
  g_autofree struct weft_job *job = g_new (struct weft_job, 1);
  const struct weft_wiring_format *format =
      wishes->software && input->operand ? weft_wiring_format (wishes->software) : NULL;

  if (format)
    return show_wiring (format, input, wishes, error);
  if (!wishes->software || !input->operand)
    return weft_bad_input (error, "import needs FILE and --from SOFTWARE; see weft import --help");
  g_autoptr (weft_interop_result) result = weft_cli_software_read (
      wishes->software, input->operand, input->settings, wishes->partial, error);
  if (!result)
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
  g_autofree char *names = weft_target_names (", ", FALSE);
  g_autofree char *software = g_strconcat ("the software whose configuration FILE is: ", names,
                                           "; or nvidia-smi, nccl", NULL);
  const struct weft_cli_flag flags[] = {
    { "from", "SOFTWARE", software, NULL, &wishes.software },
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
           "script is read and not run.  From nvidia-smi (its topo -m) and nccl (its "
           "NCCL_TOPO_DUMP_FILE) a topology file is printed: that of --topology, with the GPUs, "
           "links and ports of FILE.",
    .examples = "  weft import train.sh --from megatron-lm --topology dgx-h100 --output job.ini\n"
                "  weft import model_config.yaml --from megatron-lm --topology dgx-h100 --gpus 8 "
                "--report\n"
                "  weft import topo.txt --from nvidia-smi --topology dgx-h100 --output node.ini\n",
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
