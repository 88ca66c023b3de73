#include "cli/cli.h"
#include "cli/executors.h"
#include "cli/outputs.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "train/measure.h"
#include "train/memory_check.h"
#include <stdio.h>
#include <string.h>

#define LEAST_STEPS 7
#define JOB_SECONDS 1.0
#define GRID_STEPS 3
#define GRID_SECONDS 0.25

static const char examples[] = "  weft measure --model gpt2-nano --gpus 2 --output here.costs\n"
                               "  weft sim --model gpt2-nano --topology cpu --precision fp32 "
                               "--gpus 2 --cost-table here.costs\n"
                               "  weft measure --gpus 4 --output any.costs\n"
                               "  weft measure --executor cuda --model gpt2 --topology hgx-h200 "
                               "--gpus 1 --output h200.costs\n";

/* ------------------------------------------------------------------------- grid */

/* Models that together use every kernel, from small ones to the largest that a CPU can train. */
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
/* Every entry sets the same keys, because the settings of one entry remain when the next entry is
 * applied. */
static const char *const cpu_grid[] = {
  NARROW GPT,   MIDDLE GPT,   WIDE GPT,     NARROW RELU2,
  MIDDLE RELU2, NARROW LLAMA, MIDDLE LLAMA, WIDE LLAMA,
};
static const char *const cpu_precisions[] = { "fp32", "bf16", NULL };

/* Two layers of published models. Smaller models would not use all of a GPU. */
static const char *const gpu_grid[] = {
  "model=gpt2 num_layers=2 seq_length=1024 micro_batch_size=16 ",
  "model=gpt2-xl num_layers=2 seq_length=1024 micro_batch_size=8 ",
  "model=qwen2.5-1.5b num_layers=2 seq_length=1024 micro_batch_size=8 ",
  "model=qwen3-8b num_layers=2 seq_length=4096 micro_batch_size=1 ",
  "model=llama3-8b num_layers=2 seq_length=8192 micro_batch_size=1 ",
};
static const char *const gpu_precisions[] = { "bf16", NULL };

/* The models, precisions and numbers of ranks that are measured if the user names no model. */
static const struct grid {
  const char *const *model, *const *precision;
  unsigned n;
  uint32_t least_ranks; /* least number of ranks of the measurement on several ranks */
} on_cpu = { cpu_grid, cpu_precisions, G_N_ELEMENTS (cpu_grid), 2 },
  on_gpu = { gpu_grid, gpu_precisions, G_N_ELEMENTS (gpu_grid), 1 };

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

/* The arguments of weft measure, and the state of the measurement. */
struct asked {
  const weft_cli_input *input;
  const struct weft_exec_ops *ops;
  const char *output;
  weft_measure *m;
  gboolean launched; /* whether the host seconds of GPU launches, launch[], were measured */
  double launch[WEFT_N_HOST_COST];
};

static gboolean
runs_on_host (const struct weft_exec_ops *ops, const void *unused)
{
  (void) unused;
  return (ops->flags & WEFT_EXEC_HOST) != 0;
}

static gboolean
runs_on_gpus (const struct weft_exec_ops *ops, const void *unused)
{
  return !runs_on_host (ops, unused);
}

static gboolean
check_machine (const struct asked *a, const struct weft_job *job, GError **error)
{
  gboolean on_host = runs_on_host (a->ops, NULL);

  if (weft_cluster_is_cpu (&job->cluster) == on_host)
    return TRUE;
  g_autofree char *others =
      weft_cli_executors_with (weft_cli_real_executors (), runs_on_gpus, NULL);
  g_autofree char *wanted = on_host ? g_strdup_printf ("cpu (or --executor %s)", others)
                                    : g_strdup ("one with GPUs, like hgx-h200");
  return weft_bad_input (error,
                         "topology: found \"%s\", wanted %s: weft measure times this machine",
                         g_quark_to_string (job->cluster.topology), wanted);
}

static weft_plan *
make_plan (const struct asked *a, GError **error)
{
  struct weft_job job;

  if (!weft_cli_job (a->input, &job, error) || !check_machine (a, &job, error))
    return NULL;
  /* the plan must not depend on the results of earlier measurements */
  job.cluster.f.cost_table = 0;
  g_autoptr (weft_plan) plan = weft_plan_new (&job, error);
  if (!plan || !weft_memory_check (plan, a->ops, error))
    return NULL;
  return g_steal_pointer (&plan);
}

static gboolean
measure_job (const struct asked *a, const weft_plan *plan, GError **error)
{
  fprintf (stderr, "weft: measuring steps of the job on %u ranks\n", plan->mesh.n_ranks);
  if (!weft_measure_steps (a->m, plan, LEAST_STEPS, JOB_SECONDS, error))
    return FALSE;
  return plan->mesh.n_ranks == 1 || weft_measure_comm (a->m, plan, error);
}

static void
say_model (const struct weft_job *job)
{
  fprintf (stderr, "weft: measuring %s, width %d, %s, on %u ranks\n",
           weft_activation_words[job->model.activation], (int) job->model.hidden_size,
           weft_precision_words[job->train.precision], job->cluster.n_gpus);
}

/* Measures a model with two microbatches on each rank. */
static gboolean
measure_model (const struct asked *a, const char *words, const char *precision, uint32_t ranks,
               GError **error)
{
  const char *micro = strstr (words, "micro_batch_size=");
  uint64_t each = micro ? g_ascii_strtoull (strchr (micro, '=') + 1, NULL, 10) : 1;
  g_autofree char *size =
      g_strdup_printf ("gpus=%u global_batch_size=%" G_GUINT64_FORMAT " precision=%s", ranks,
                       2 * each * ranks, precision);

  add_words (a->input->settings, words);
  add_words (a->input->settings, size);
  g_autoptr (weft_plan) plan = make_plan (a, error);
  if (!plan)
    return FALSE;
  say_model (&plan->job);
  return weft_measure_steps (a->m, plan, GRID_STEPS, GRID_SECONDS, error) &&
         (ranks == 1 || weft_measure_comm (a->m, plan, error));
}

static gboolean
measure_models (const struct asked *a, const struct grid *grid, uint32_t ranks, GError **error)
{
  for (const char *const *precision = grid->precision; *precision; precision++)
    for (unsigned i = 0; i < grid->n; i++)
      if (!measure_model (a, grid->model[i], *precision, ranks, error))
        return FALSE;
  return TRUE;
}

/* Measures all models on one rank, then on the number of ranks that the user requested. */
static gboolean
measure_grid (const struct asked *a, struct weft_job *job, GError **error)
{
  const struct grid *grid = runs_on_host (a->ops, NULL) ? &on_cpu : &on_gpu;

  add_words (a->input->settings, grid->model[0]);
  add_words (a->input->settings, "precision=fp32");
  if (!weft_cli_job (a->input, job, error) || !check_machine (a, job, error))
    return FALSE;
  uint32_t ranks = MAX (job->cluster.n_gpus, grid->least_ranks);

  job->cluster.n_gpus = ranks;
  return measure_models (a, grid, 1, error) &&
         (ranks == 1 || measure_models (a, grid, ranks, error));
}

/* Measures collectives of 2, 4, 8 ... ranks, up to the number of ranks of the job. */
static gboolean
measure_groups (weft_measure *m, const struct weft_job *job, uint32_t ranks, GError **error)
{
  if (ranks == 1)
    fprintf (stderr, "weft: one rank: no collectives to measure\n");
  for (uint32_t n = 2; n <= ranks; n *= 2) {
    fprintf (stderr, "weft: measuring collectives of %u ranks\n", n);
    if (!weft_measure_comm_sizes (m, job, n, error))
      return FALSE;
  }
  return TRUE;
}

/* ------------------------------------------------------------------------- output */

static char *
print_table (const struct asked *a, const GArray *rows, const struct weft_job *job)
{
  GString *text = g_string_new (NULL);
  g_autofree char *machine = a->ops->machine_name ();

  g_string_append_printf (text,
                          "# Seconds on %s, executor %s, %u processors, reduction order %s (weft "
                          "measure)\n# OP TYPE RESULT RANKS DIMENSIONS SECONDS\n",
                          machine, a->ops->name, g_get_num_processors (),
                          weft_reduction_order_words[job->train.reduction_order]);
  if (a->launched)
    weft_cost_table_print_launches (text, a->launch);
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
add_launches (JsonBuilder *b, const double *seconds)
{
  static const char *const words[] = { WEFT_HOST_COST_LIST (WEFT_WORD_TEXT) };

  weft_json_object (b, "host");
  for (int i = 0; i < WEFT_N_HOST_COST; i++)
    weft_json_real (b, words[i], seconds[i]);
  json_builder_end_object (b);
}

static void
print_json (const struct asked *a, const GArray *rows)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autofree char *machine = a->ops->machine_name ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.measure/1");
  weft_json_text (b, "executor", a->ops->name);
  weft_json_text (b, runs_on_host (a->ops, NULL) ? "cpu" : "gpu", machine);
  if (a->launched)
    add_launches (b, a->launch);
  weft_json_array (b, "rows");
  for (guint i = 0; i < rows->len; i++)
    add_row (b, &g_array_index (rows, struct weft_measurement, i));
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static gboolean
answer (const struct asked *a, const struct weft_job *job, GError **error)
{
  g_autoptr (GArray) rows = weft_measure_rows (a->m);
  g_autofree char *text = print_table (a, rows, job);

  if (a->input->json)
    print_json (a, rows);
  else if (!a->output)
    fputs (text, stdout);
  return !a->output || weft_cli_write (a->output, text, error);
}

/* Measures the host seconds of launches, and the copies between a GPU and its host. */
static gboolean
measure_hosts (struct asked *a, const struct weft_job *job, GError **error)
{
  if (!a->ops->time_launches)
    return TRUE;
  a->launched = a->ops->time_launches (a->launch, error);
  return a->launched && weft_measure_host_copies (a->m, job, error);
}

static int
run (struct asked *a)
{
  g_autoptr (weft_measure) m = weft_measure_new (a->ops);
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  a->m = m;
  if (a->input->operand || weft_settings_touch (a->input->settings, "model")) {
    g_autoptr (weft_plan) plan = make_plan (a, &error);
    if (!plan || !measure_job (a, plan, &error))
      return weft_cli_fail (error);
    job = plan->job;
  } else if (!measure_grid (a, &job, &error)) {
    return weft_cli_fail (error);
  }
  if (!measure_hosts (a, &job, &error) || !measure_groups (m, &job, job.cluster.n_gpus, &error) ||
      !answer (a, &job, &error))
    return weft_cli_fail (error);
  return 0;
}

int
weft_cli_measure (int argc, char **argv)
{
  const char *output = NULL, *executor = NULL;
  const struct weft_cli_flag flags[] = {
    { .name = "executor",
      .value = weft_cli_real_executor_names (),
      .text = &executor,
      .doc = "measure the processors or the GPUs of this machine [cpu]" },
    { .name = "output",
      .value = "FILE",
      .text = &output,
      .doc = "write the cost table to FILE [stdout]" },
  };
  const struct weft_cli_page page = {
    .usage = "weft measure [JOB] [flags] [--output FILE] [--json]",
    .doc =
        "Runs a few steps of a job on this machine and writes the time of every kernel, collective "
        "and copy: a cost table, with which weft sim predicts this machine.  The table also serves "
        "other strategies of the same model: a shape that was not measured is extrapolated from "
        "the nearest one.  Without a model, weft measure runs small models of every kind, in fp32 "
        "and bf16, on one rank and on --gpus ranks [2]: this takes a minute or two, and the table "
        "predicts any model, less accurately.  With an executor of GPUs (--executor cuda) each "
        "rank is a GPU of the given topology; without a model, layers of real models are measured "
        "in bf16.  Nothing else "
        "should run on the machine meanwhile.",
    .examples = examples,
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
    .topology = "cpu",
  };
  g_auto (weft_cli_input) input = { 0 };
  g_autoptr (GError) error = NULL;

  int status = weft_cli_begin (&page, argc, argv, &input);
  if (status != WEFT_CLI_GO_ON)
    return status;
  const struct weft_cli_output written = { "output", output };
  if (!weft_cli_check_outputs (&written, 1, NULL, &error))
    return weft_cli_fail (error);
  struct asked asked = { .input = &input,
                         .ops = weft_cli_real_executor (executor, &error),
                         .output = output };
  if (!asked.ops || (asked.ops->load && !asked.ops->load (&error)))
    return weft_cli_fail (error);
  return run (&asked);
}
