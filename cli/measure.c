#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "exec_cpu/exec_cpu.h"
#include "train/measure.h"
#include "train/room.h"
#include <stdio.h>
#include <string.h>

#define LEAST_STEPS 7
#define JOB_SECONDS 1.0
#define GRID_STEPS 3
#define GRID_SECONDS 0.25

static const char examples[] = "  weft measure --model gpt2-nano --gpus 2 --output here.costs\n"
                               "  weft sim --model gpt2-nano --topology cpu --precision fp32 "
                               "--gpus 2 --cost-table here.costs\n"
                               "  weft measure --gpus 4 --output any.costs\n";

/* ------------------------------------------------------------------------- grid */

/* Models that together hold every kernel, from small to as large as a processor trains. */
#define NARROW                                                                                     \
  "hidden_size=64 num_attention_heads=4 num_query_groups=4 kv_channels=16 ffn_hidden_size=192 "    \
  "seq_length=64 max_position_embeddings=256 vocab_size=256 num_layers=2 "
#define MIDDLE                                                                                     \
  "hidden_size=256 num_attention_heads=4 num_query_groups=4 kv_channels=64 ffn_hidden_size=1024 "  \
  "seq_length=128 max_position_embeddings=256 vocab_size=1024 num_layers=2 "
#define WIDE                                                                                       \
  "hidden_size=768 num_attention_heads=12 num_query_groups=12 kv_channels=64 "                     \
  "ffn_hidden_size=3072 seq_length=256 max_position_embeddings=256 vocab_size=4096 "               \
  "num_layers=2 "
#define GPT "model=gpt2-nano qk_layernorm=false activation=gelu "
#define RELU2 "model=gpt2-nano qk_layernorm=false activation=squared_relu "
#define LLAMA "model=llama-nano qk_layernorm=true activation=swiglu num_query_groups=2 "
/* Every entry sets the same keys, so that none inherits from the one before. */
static const char *const grid[] = {
  NARROW GPT,   MIDDLE GPT,   WIDE GPT,     NARROW RELU2,
  MIDDLE RELU2, NARROW LLAMA, MIDDLE LLAMA, WIDE LLAMA,
};
static const char *const grid_precisions[] = { "fp32", "bf16" };

static void
add_words (weft_settings *settings, const char *words)
{
  g_auto (GStrv) word = g_strsplit (words, " ", -1);

  for (char **at = word; *at; at++) {
    char *equals = strchr (*at, '=');
    const char *section, *key;
    gboolean boolean;
    if (!equals)
      continue;
    *equals = '\0';
    if (!weft_job_flag (*at, &section, &key, &boolean))
      g_assert_not_reached ();
    weft_settings_add (settings, section, key, equals + 1, *at);
  }
}

/* ---------------------------------------------------------------------- measuring */

static gboolean
check_machine (const struct weft_job *job, GError **error)
{
  if (weft_cluster_is_cpu (&job->cluster))
    return TRUE;
  return weft_bad_input (error, "topology: found \"%s\", wanted cpu: what is timed is this machine",
                         g_quark_to_string (job->cluster.topology));
}

static weft_plan *
make_plan (const weft_cli_input *input, GError **error)
{
  struct weft_job job;

  if (!weft_cli_job (input, &job, error) || !check_machine (&job, error))
    return NULL;
  job.cluster.f.cost_table = 0; /* what is measured anew does not hang on what was */
  g_autoptr (weft_plan) plan = weft_plan_new (&job, error);
  if (!plan || !weft_room_check (plan, error))
    return NULL;
  return g_steal_pointer (&plan);
}

static gboolean
measure_job (weft_measure *m, const weft_plan *plan, GError **error)
{
  fprintf (stderr, "weft: steps of the job, ranks: %u\n", plan->mesh.n_ranks);
  if (!weft_measure_steps (m, plan, LEAST_STEPS, JOB_SECONDS, error))
    return FALSE;
  return plan->mesh.n_ranks == 1 || weft_measure_links (m, plan, error);
}

static void
say_model (const struct weft_job *job)
{
  fprintf (stderr, "weft: %s, width %d, %s, ranks: %u\n",
           weft_activation_words[job->model.activation], (int) job->model.hidden_size,
           weft_precision_words[job->train.precision], job->cluster.n_gpus);
}

/* Steps of every model of the grid on so many ranks. */
static gboolean
measure_models (weft_measure *m, const weft_cli_input *input, uint32_t ranks, GError **error)
{
  for (unsigned p = 0; p < G_N_ELEMENTS (grid_precisions); p++)
    for (unsigned i = 0; i < G_N_ELEMENTS (grid); i++) {
      g_autofree char *size = g_strdup_printf ("gpus=%u global_batch_size=%u precision=%s", ranks,
                                               2 * ranks, grid_precisions[p]);
      add_words (input->settings, grid[i]);
      add_words (input->settings, size);
      g_autoptr (weft_plan) plan = make_plan (input, error);
      if (!plan)
        return FALSE;
      say_model (&plan->job);
      if (!weft_measure_steps (m, plan, GRID_STEPS, GRID_SECONDS, error) ||
          (ranks > 1 && !weft_measure_links (m, plan, error)))
        return FALSE;
    }
  return TRUE;
}

/* One rank alone, and as many as were asked for, or two. */
static gboolean
measure_grid (weft_measure *m, const weft_cli_input *input, struct weft_job *job, GError **error)
{
  add_words (input->settings, grid[0]);
  add_words (input->settings, "precision=fp32");
  if (!weft_cli_job (input, job, error) || !check_machine (job, error))
    return FALSE;
  uint32_t ranks = MAX (job->cluster.n_gpus, 2);

  job->cluster.n_gpus = ranks;
  return measure_models (m, input, 1, error) && measure_models (m, input, ranks, error);
}

/* Groups of every size up to that of the job. */
static gboolean
measure_groups (weft_measure *m, const struct weft_job *job, uint32_t ranks, GError **error)
{
  for (uint32_t n = 2; n <= ranks; n *= 2) {
    fprintf (stderr, "weft: collectives of %u ranks\n", n);
    if (!weft_measure_grid (m, job, n, error))
      return FALSE;
  }
  return TRUE;
}

/* ------------------------------------------------------------------------- output */

static char *
cpu_name (void)
{
  g_autofree char *text = NULL;
  g_autoptr (GRegex) name = g_regex_new ("^model name\\s*:\\s*(.*)$", G_REGEX_MULTILINE, 0, NULL);
  g_autoptr (GMatchInfo) match = NULL;

  if (!g_file_get_contents ("/proc/cpuinfo", &text, NULL, NULL) ||
      !g_regex_match (name, text, 0, &match))
    return g_strdup ("an unknown processor");
  return g_match_info_fetch (match, 1);
}

static char *
print_table (const GArray *rows, const struct weft_job *job)
{
  GString *text = g_string_new (NULL);
  g_autofree char *cpu = cpu_name ();

  g_string_append_printf (text,
                          "# Seconds on %s, %u processors, reduction order %s (weft measure)\n"
                          "# OP TYPE RESULT RANKS DIMENSIONS SECONDS\n",
                          cpu, g_get_num_processors (),
                          weft_reduction_order_words[job->train.reduction_order]);
  for (guint i = 0; i < rows->len; i++)
    weft_cost_table_print (text, &g_array_index (rows, struct weft_measurement, i));
  return g_string_free (text, FALSE);
}

static void
add_row (JsonBuilder *b, const struct weft_measurement *row)
{
  json_builder_begin_object (b);
  weft_json_text (b, "op", weft_op_words[row->kind]);
  weft_json_text (b, "type", weft_dtype_words[row->shape.dtype]);
  weft_json_text (b, "result", weft_dtype_words[row->shape.out_dtype]);
  weft_json_int (b, "ranks", row->ranks);
  weft_json_array (b, "dimensions");
  for (unsigned i = 0; i < G_N_ELEMENTS (row->shape.dim) && row->shape.dim[i]; i++)
    json_builder_add_int_value (b, (gint64) row->shape.dim[i]);
  json_builder_end_array (b);
  weft_json_real (b, "seconds", row->seconds);
  json_builder_end_object (b);
}

static void
print_json (const GArray *rows)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autofree char *cpu = cpu_name ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.measure/1");
  weft_json_text (b, "cpu", cpu);
  weft_json_array (b, "rows");
  for (guint i = 0; i < rows->len; i++)
    add_row (b, &g_array_index (rows, struct weft_measurement, i));
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static gboolean
answer (const GArray *rows, const struct weft_job *job, const char *output, gboolean json,
        GError **error)
{
  g_autofree char *text = print_table (rows, job);

  if (json)
    print_json (rows);
  else if (!output)
    fputs (text, stdout);
  return !output || weft_cli_write (output, text, error);
}

static int
run (const weft_cli_input *input, const char *output)
{
  g_autoptr (weft_measure) m = weft_measure_new (&weft_exec_cpu);
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (input->operand || weft_settings_touch (input->settings, "model")) {
    g_autoptr (weft_plan) plan = make_plan (input, &error);
    if (!plan || !measure_job (m, plan, &error))
      return weft_cli_fail (error);
    job = plan->job;
  } else if (!measure_grid (m, input, &job, &error)) {
    return weft_cli_fail (error);
  }
  if (!measure_groups (m, &job, job.cluster.n_gpus, &error))
    return weft_cli_fail (error);
  g_autoptr (GArray) rows = weft_measure_rows (m);
  return answer (rows, &job, output, input->json, &error) ? 0 : weft_cli_fail (error);
}

int
weft_cli_measure (int argc, char **argv)
{
  const char *output = NULL;
  const struct weft_cli_flag flags[] = {
    { .name = "output", .value = "FILE", .text = &output, .doc = "write the table here [stdout]" },
  };
  const struct weft_cli_page page = {
    .usage = "weft measure [JOB] [flags] [--output FILE] [--json]",
    .doc =
        "Runs a few steps of a job on this machine and writes what every kernel, collective and\n"
        "transfer took: a cost table, with which weft sim predicts this machine.  It predicts "
        "other\n"
        "strategies of the same model too: shapes that were not measured follow the nearest "
        "one.\n"
        "Without a model it measures small models of every kind, in fp32 and bf16, on one rank "
        "and\n"
        "on --gpus of them [2]: that takes a minute or two, and predicts any model less exactly.\n"
        "The machine should have nothing else to do.",
    .examples = examples,
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
    .topology = "cpu",
  };
  g_auto (weft_cli_input) input = { 0 };
  g_autoptr (GError) error = NULL;

  if (!weft_cli_read (&page, argc, argv, &input, &error))
    return weft_cli_fail (error);
  return input.help ? weft_cli_help (&page) : run (&input, output);
}
