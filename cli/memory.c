#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/memory_fix.h"
#include "cli/sure.h"
#include "core/plan/activations.h"
#include "core/plan/allocator.h"
#include "core/base/json.h"
#include "core/base/error.h"
#include "core/report/report.h"
#include "core/base/units.h"
#include <math.h>
#include <stdio.h>

/* ---------------------------------------------------------------------- output */

static void
print_advice (const weft_report *report, const weft_plan *fitting)
{
  if (report->fits) {
    g_autofree char *left = weft_units_human (report->capacity_bytes - report->peak_bytes, "B");
    printf ("\n%s free on the fullest GPU\n", left);
    return;
  }
  if (!fitting) {
    g_autofree char *none = g_strdup_printf (
        "\nNo combination of %d changes (optimizer sharding and offload, microbatch size, "
        "recompute, pipeline and tensor size) makes it fit: use more GPUs or a smaller model.",
        WEFT_FIX_MOST);
    weft_cli_print_wrapped (none, 0, weft_cli_columns ());
    return;
  }
  g_autoptr (GPtrArray) flags = weft_change_flags (&report->plan->job, &fitting->job);
  g_autofree char *peak = weft_units_human (weft_plan_worst_bytes (fitting), "B");
  printf ("\nit fits, with a peak of %s, with:\n", peak);
  for (unsigned i = 0; i < flags->len; i++)
    printf ("  %s\n", (const char *) flags->pdata[i]);
  printf ("\nweft memory --fix lists all changes that make it fit, with their step times\n");
}

/* Prints the bytes of activations that one layer keeps for one microbatch. */
static void
print_layer (const struct weft_job *job)
{
  struct weft_kept kept[WEFT_MOST_ACTIVATIONS];
  uint32_t n = weft_activations_of_layer (job, kept);
  double bytes = 0;

  for (uint32_t i = 0; i < n; i++)
    bytes += kept[i].bytes;
  g_autofree char *sum = weft_units_human (bytes, "B");
  if (n)
    printf ("\na layer without full recompute keeps %s per microbatch,\n"
            "in %u tensors (see weft explain)\n",
            g_strstrip (sum), n);
}

/* Bytes of the first step of a run on the GPU that needs most of them: fewer than those of every
 * step, if the first update allocates the state of the optimizer (late_moments in core/stack.def)
 */
static uint64_t
first_step_bytes (const weft_plan *plan)
{
  uint64_t most = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    uint64_t used = plan->allocated
                        ? (uint64_t) weft_allocator_run_first (&plan->job, plan->role[role]).peak
                        : weft_plan_used_bytes (plan, role);
    most = MAX (most, used + weft_plan_reserved_bytes (plan, role));
  }
  return most;
}

static void
print_first_step (const weft_plan *plan)
{
  uint64_t bytes = first_step_bytes (plan);
  g_autofree char *text = weft_units_human (bytes, "B");

  if (bytes < weft_plan_worst_bytes (plan))
    printf ("\nthe first step needs %s: its update allocates the state of the optimizer\n",
            g_strstrip (text));
}

static void
print_text (const weft_report *report, const weft_plan *fitting, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  struct weft_report_style style = { weft_cli_columns (), weft_cli_has_colour () };
  g_autoptr (GString) out = g_string_new (NULL);

  weft_report_print_job (&report->plan->job, out);
  g_string_append_c (out, '\n');
  weft_report_print_memory (report, style, out);
  weft_cli_print_fitting (out->str);
  print_layer (&report->plan->job);
  print_first_step (report->plan);
  print_advice (report, fitting);
  weft_cli_print_sure (sure, answer);
}

static void
build_change (JsonBuilder *b, const weft_report *report, const weft_plan *fitting)
{
  json_builder_set_member_name (b, "change");
  if (!fitting) {
    json_builder_add_null_value (b);
    return;
  }
  g_autoptr (GPtrArray) flags = weft_change_flags (&report->plan->job, &fitting->job);
  json_builder_begin_object (b);
  weft_json_array (b, "flags");
  for (unsigned i = 0; i < flags->len; i++)
    json_builder_add_string_value (b, flags->pdata[i]);
  json_builder_end_array (b);
  weft_json_int (b, "peak_bytes", weft_plan_worst_bytes (fitting));
  json_builder_end_object (b);
}

static void
print_json (const weft_report *report, const weft_plan *fitting, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.memory/1");
  json_builder_set_member_name (b, "job");
  weft_report_build_job (&report->plan->job, b);
  json_builder_set_member_name (b, "memory");
  weft_report_build_memory (report, b);
  weft_json_int (b, "first_step_bytes", first_step_bytes (report->plan));
  build_change (b, report, fitting);
  weft_cli_add_sure (sure, b, answer);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static int
run (const weft_cli_input *input, const struct weft_cli_fix_wishes *wishes)
{
  g_autoptr (GError) error = NULL;
  struct weft_memory_fix_options options;
  struct weft_job job;

  if (!weft_cli_job (input, &job, &error) || !weft_cli_fix_options (wishes, &job, &options, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_cli_sure) sure = weft_cli_sure_new (&error);
  if (!sure)
    return weft_cli_fail (error);
  if (wishes->fix)
    return weft_cli_fix (&job, &options, sure, input->json);
  g_autoptr (weft_plan) plan = weft_plan_new (&job, &error);
  if (!plan)
    return weft_cli_fail (error);
  g_autoptr (weft_report) report = weft_report_new (plan, NULL);
  g_autoptr (weft_plan) fitting = report->fits ? NULL : weft_memory_fix_first (&plan->job);
  const struct weft_cli_answer answer = { &plan->job, NAN, (double) report->peak_bytes };
  if (input->json)
    print_json (report, fitting, sure, &answer);
  else
    print_text (report, fitting, sure, &answer);
  return report->fits ? 0 : 3;
}

int
weft_cli_memory (int argc, char **argv)
{
  struct weft_cli_fix_wishes wishes = { 0 };
  const struct weft_cli_flag flags[] = {
    { .name = "fix",
      .on = &wishes.fix,
      .doc = "list the changes that make the job fit, with memory, step time and flags to paste" },
    { "memory-limit", "BYTES", "with --fix: use at most so much, such as 40GB [GPU memory]", NULL,
      &wishes.limit },
    { "keep", "KNOBS", "with --fix: settings that stay as they are, separated by commas", NULL,
      &wishes.keep },
  };
  const struct weft_cli_page page = {
    .usage = "weft memory [JOB] [flags] [--json]",
    .doc =
        "Prints what fills the memory of the GPUs of each stage, and where the peak is.  The "
        "columns are the bytes alive at the peak; padding is lost between buffers; reserved is "
        "memory of libraries.  If the job does not fit, weft memory prints a small change "
        "that makes it fit, and ends with status 3.  With --fix it tries every change that saves "
        "memory, alone and in pairs: sharding, recompute, sizes of the mesh and of the "
        "microbatch, host memory, precision.  It prints those that make the job fit, with the "
        "loss of speed against the job as given, and says which of them change numerics.",
    .examples = "  weft memory --model llama2-7b --topology dgx-h100\n"
                "  weft memory job.ini --pipeline-model-parallel-size 4 --json\n"
                "  weft memory job.ini --fix --keep tensor_model_parallel_size,micro_batch_size\n"
                "  weft memory job.ini --fix --memory-limit 60GB\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &wishes) : status;
}
