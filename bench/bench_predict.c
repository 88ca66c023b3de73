/* Prediction benchmark: compares `weft sim` with real CPU steps on this machine. For two models, it
 * measures a cost table with the plainest strategy on one and on two ranks, predicts the steps of
 * other strategies from it, and runs these strategies.
 *
 * Measuring and running alternate several times, because other load on the machine slows both. A
 * run is the median of its steps, and the fastest round of each strategy counts: other programs can
 * only add time. */
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/job/flags.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "train/measure.h"
#include "train/state.h"
#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST_TURNS 99
#define STEPS 5
#define WARM_UP 1
#define TABLE_STEPS 5
#define TABLE_SECONDS 0.2

#define SMALL "model=gpt2-nano global_batch_size=8"
#define LARGE                                                                                      \
  "model=gpt2-nano num_layers=4 hidden_size=256 num_attention_heads=8 num_query_groups=8 "         \
  "kv_channels=32 ffn_hidden_size=1024 vocab_size=1024 seq_length=128 global_batch_size=4"

static const struct model {
  const char *name, *words;
} models[] = { { "gpt2-nano", SMALL }, { "4 x 256", LARGE } };

static const char *const table_words[] = { NULL, "gpus=1", "gpus=2" };

/* The cost table is measured with the first strategy of each number of ranks. */
static const struct strategy {
  const char *name, *words;
  uint32_t ranks;
} strategies[] = {
  { "1 rank", "gpus=1", 1 },
  { "1 rank, full recompute",
    "gpus=1 recompute_granularity=full recompute_method=uniform recompute_num_layers=1", 1 },
  { "2 replicas", "gpus=2", 2 },
  { "2 replicas, distributed optimizer, overlap",
    "gpus=2 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true", 2 },
  { "2 stages, 1f1b", "gpus=2 pipeline_model_parallel_size=2", 2 },
  { "2 stages, full recompute",
    "gpus=2 pipeline_model_parallel_size=2 recompute_granularity=full recompute_method=uniform "
    "recompute_num_layers=1",
    2 },
};
#define N_STRATEGY G_N_ELEMENTS (strategies)

/* Seconds of a step of every strategy for one model: one number per round (at most MOST_TURNS). */
struct samples {
  double predicted[N_STRATEGY][MOST_TURNS], measured[N_STRATEGY][MOST_TURNS];
};

/* ----------------------------------------------------------------------------- jobs */

/* Plans the job. `table`: path of a cost table; NULL: the plan needs no prices. */
static weft_plan *
make_plan (const struct model *model, const char *words, const char *table, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job;

  if (!weft_flags_words ("topology=cpu precision=fp32", settings, error) ||
      !weft_flags_words (model->words, settings, error) ||
      !weft_flags_words (words, settings, error))
    return NULL;
  if (table)
    weft_settings_add (settings, "cluster", "cost_table", table, "table");
  return weft_job_build (settings, &job, error) ? weft_plan_new (&job, error) : NULL;
}

/* --------------------------------------------------------------------------- tables */

/* Writes the cost table: communication times are measured once, kernel times in each round. */
static gboolean
write_table (const struct model *model, uint32_t ranks, const GArray *comm, const char *path,
             GError **error)
{
  g_autoptr (weft_measure) m = weft_measure_new (&weft_exec_cpu);
  g_autoptr (weft_plan) plan = make_plan (model, table_words[ranks], NULL, error);
  g_autoptr (GString) text = g_string_new (NULL);

  if (!plan || !weft_measure_steps (m, plan, TABLE_STEPS, TABLE_SECONDS, error))
    return FALSE;
  g_autoptr (GArray) kernels = weft_measure_rows (m);
  for (guint i = 0; i < kernels->len; i++)
    weft_cost_table_print (text, &g_array_index (kernels, struct weft_measurement, i));
  for (guint i = 0; i < comm->len; i++)
    weft_cost_table_print (text, &g_array_index (comm, struct weft_measurement, i));
  return g_file_set_contents (path, text->str, -1, error);
}

static GArray *
measure_comm (const struct model *model, GError **error)
{
  g_autoptr (weft_measure) m = weft_measure_new (&weft_exec_cpu);
  g_autoptr (weft_plan) plan = make_plan (model, table_words[2], NULL, error);

  if (!plan || !weft_measure_comm_sizes (m, &plan->job, 2, error) ||
      !weft_measure_comm (m, plan, error))
    return NULL;
  return weft_measure_rows (m);
}

/* ---------------------------------------------------------------------------- steps */

static gint
compare_doubles (gconstpointer a, gconstpointer b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return x < y ? -1 : x > y;
}

static double
median (const double *value, uint32_t n)
{
  g_autofree double *sorted = g_memdup2 (value, n * sizeof *value);

  qsort (sorted, n, sizeof *sorted, compare_doubles);
  return 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
}

static double
fastest (const double *value, uint32_t n)
{
  double least = value[0];
  for (uint32_t i = 1; i < n; i++)
    least = fmin (least, value[i]);
  return least;
}

static gboolean
predict (const struct model *model, const struct strategy *s, const char *table, double *seconds,
         GError **error)
{
  static const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = make_plan (model, s->words, table, error);
  g_autoptr (weft_timeline) t = plan ? weft_exec_run (&weft_exec_sim, plan, &options, error) : NULL;

  *seconds = t ? t->seconds : NAN;
  return t != NULL;
}

static gboolean
time_steps (weft_exec *x, struct weft_control *control, double *seconds, GError **error)
{
  double took[STEPS];

  for (control->step = 1; control->step <= WARM_UP + STEPS; control->step++) {
    gint64 start = g_get_monotonic_time ();
    g_autoptr (weft_timeline) t = weft_exec_step (x, error);
    if (!t)
      return FALSE;
    if (control->step > WARM_UP)
      took[control->step - WARM_UP - 1] = (g_get_monotonic_time () - start) * 1e-6;
  }
  *seconds = median (took, STEPS);
  return TRUE;
}

static gboolean
run_steps (const struct model *model, const struct strategy *s, double *seconds, GError **error)
{
  g_autoptr (weft_plan) plan = make_plan (model, s->words, NULL, error);
  if (!plan)
    return FALSE;
  uint64_t n = (uint64_t) (plan->job.train.global_batch_size * (plan->job.model.seq_length + 1));
  g_autofree int32_t *tokens = g_new (int32_t, n);
  struct weft_control control = { .lr = 1e-4,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .epsilon = 1e-8,
                                  .weight_decay = 0.1,
                                  .clip_grad = plan->job.train.clip_grad,
                                  .tokens = tokens };
  const struct weft_exec_options options = { .control = &control };

  for (uint64_t i = 0; i < n; i++)
    tokens[i] = g_random_int_range (0, (gint32) plan->job.model.vocab_size);
  weft_exec *x = weft_exec_cpu.open (plan, &options, error);
  if (!x)
    return FALSE;
  weft_state *state = weft_state_new (x);
  weft_state_init (state, 1);
  weft_state_free (state);
  gboolean no_error = time_steps (x, &control, seconds, error);
  weft_exec_cpu.close (x);
  return no_error;
}

/* --------------------------------------------------------------------------- rounds */

static gboolean
run_round (const struct model *model, const GArray *comm, const char *path, uint32_t round,
           struct samples *out, GError **error)
{
  uint32_t ranks = 0;

  for (unsigned i = 0; i < N_STRATEGY; i++) {
    const struct strategy *s = &strategies[i];
    if (s->ranks != ranks && !write_table (model, s->ranks, comm, path, error))
      return FALSE;
    ranks = s->ranks;
    if (!predict (model, s, path, &out->predicted[i][round], error) ||
        !run_steps (model, s, &out->measured[i][round], error))
      return FALSE;
  }
  return TRUE;
}

static void
report (JsonBuilder *b, const struct model *model, const struct samples *all, uint32_t rounds,
        gboolean json)
{
  for (unsigned i = 0; i < N_STRATEGY; i++) {
    double predicted = fastest (all->predicted[i], rounds);
    double measured = fastest (all->measured[i], rounds);
    if (!json)
      printf ("%-10s %-44s %12.3f %11.3f %9.3f\n", model->name, strategies[i].name, 1e3 * predicted,
              1e3 * measured, predicted / measured);
    json_builder_begin_object (b);
    weft_json_text (b, "model", model->name);
    weft_json_text (b, "strategy", strategies[i].name);
    weft_json_real (b, "predicted_s", predicted);
    weft_json_real (b, "measured_s", measured);
    weft_json_real (b, "ratio", predicted / measured);
    json_builder_end_object (b);
  }
}

static gboolean
run_model (const struct model *model, uint32_t rounds, const char *path, struct samples *all,
           GError **error)
{
  g_autoptr (GArray) comm = measure_comm (model, error);

  for (uint32_t round = 0; comm && round < rounds; round++)
    if (!run_round (model, comm, path, round, all, error))
      return FALSE;
  return comm != NULL;
}

/* Prints preemptions: how much other programs on the machine interrupted the run. */
static void
print_preemptions (const struct rusage *before, gint64 start)
{
  struct rusage now;

  getrusage (RUSAGE_SELF, &now);
  double seconds = (g_get_monotonic_time () - start) * 1e-6;
  printf (
      "\npreempted %.0f times a second; on a machine that is not idle (more than a few times) the "
      "ratios mean nothing\n",
      (now.ru_nivcsw - before->ru_nivcsw) / seconds);
}

static gboolean
run_models (uint32_t rounds, const char *path, gboolean json, GError **error)
{
  g_autofree struct samples *all = g_new (struct samples, 1);
  g_autoptr (JsonBuilder) b = json_builder_new ();
  gint64 start = g_get_monotonic_time ();
  struct rusage before;

  getrusage (RUSAGE_SELF, &before);
  if (!json)
    printf ("%-10s %-44s %12s %11s %9s\n", "model", "strategy", "predicted ms", "measured ms",
            "ratio");
  json_builder_begin_array (b);
  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++) {
    if (!run_model (&models[i], rounds, path, all, error))
      return FALSE;
    report (b, &models[i], all, rounds, json);
    fflush (stdout);
  }
  json_builder_end_array (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  g_autofree char *text = json_to_string (root, TRUE);
  if (json)
    puts (text);
  else
    print_preemptions (&before, start);
  return TRUE;
}

int
main (int argc, char **argv)
{
  int rounds = 3;
  gboolean json = FALSE;
  const GOptionEntry entries[] = {
    { "json", 0, 0, G_OPTION_ARG_NONE, &json, "print one JSON array", NULL },
    { "turns", 0, 0, G_OPTION_ARG_INT, &rounds, "rounds; the fastest counts (3)", "N" },
    { NULL },
  };
  g_autoptr (GOptionContext) context = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;
  g_autofree char *path = NULL;
  int file = g_file_open_tmp ("weft-predict-XXXXXX", &path, &error);

  g_option_context_set_summary (context, "Predicted against measured steps on this processor.");
  g_option_context_add_main_entries (context, entries, NULL);
  gboolean no_error = file >= 0 && g_option_context_parse (context, &argc, &argv, &error) &&
                      run_models ((uint32_t) CLAMP (rounds, 1, MOST_TURNS), path, json, &error);
  if (file >= 0) {
    close (file);
    g_unlink (path);
  }
  if (no_error)
    return 0;
  fprintf (stderr, "bench_predict: %s\n", error->message);
  return weft_error_exit_status (error);
}
