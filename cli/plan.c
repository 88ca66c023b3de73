/* weft plan: searches strategies, prints the ten best ones and why each is slower than the
 * first. */
#include "cli/ask.h"
#include "cli/cli.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include "core/report/report.h"
#include "core/base/units.h"
#include "planner/planner.h"
#include <math.h>
#include <stdio.h>
#include <unistd.h>

static void
show_progress (void *user, const char *phase, uint32_t done, uint32_t of)
{
  (void) user;
  fprintf (stderr, "\r%s %u of %u strategies\033[K", phase, done, of);
}

static void
clear_progress (void)
{
  if (isatty (STDERR_FILENO))
    fprintf (stderr, "\r\033[K");
}

/* ------------------------------------------------------------------------ text */

/* Names the part of the step that is longer than in the best strategy by the largest amount:
 * kernels, bubble or exposed communication. The caller frees the text. */
static char *
why_it_loses (const weft_report *best, const weft_report *other)
{
  const struct weft_report_overlap *a = &best->overlap, *b = &other->overlap;
  const struct {
    const char *text;
    double more;
  } parts[] = { { "more work in kernels", b->compute_s - a->compute_s },
                { "bubble", b->bubble_s - a->bubble_s },
                { "exposed communication",
                  b->exposed_communication_s - a->exposed_communication_s } };
  int worst = 0;

  for (unsigned i = 1; i < G_N_ELEMENTS (parts); i++)
    if (parts[i].more > parts[worst].more)
      worst = i;
  double slower = other->iteration.time_s / best->iteration.time_s - 1;
  if (parts[worst].more <= 0)
    return g_strdup_printf ("%+.1f %%", 100 * slower);
  g_autofree char *seconds = weft_units_human (parts[worst].more, "s");
  return g_strdup_printf ("%+.1f %%: %s +%s", 100 * slower, parts[worst].text, seconds);
}

static const char *
optimizer_word (const union weft_strategy *s)
{
  if (s->use_megatron_fsdp)
    return weft_sharding_words[s->data_parallel_sharding_strategy];
  if (s->distributed_config == WEFT_FSDP2)
    return weft_sharding_words[WEFT_SHARD_PARAMS];
  return s->use_distributed_optimizer ? weft_sharding_words[WEFT_SHARD_OPTIM]
                                      : weft_sharding_words[WEFT_NO_SHARD];
}

/* The knobs that overlap communication and are on: "grad+param". The caller frees the text. */
static char *
overlap_text (const union weft_strategy *s)
{
  GString *text = g_string_new (NULL);

  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (weft_knob_traits[i].overlap && s->at[i].i)
      g_string_append_printf (text, "%s%s", text->len ? "+" : "", weft_knob_traits[i].overlap);
  if (text->len == 0)
    g_string_append (text, "none");
  return g_string_free (text, FALSE);
}

static char *
number (int64_t value)
{
  return g_strdup_printf ("%" G_GINT64_FORMAT, value);
}

static char *
recompute_text (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;

  if (s->recompute_granularity == WEFT_RECOMPUTE_FULL &&
      s->recompute_method == WEFT_RECOMPUTE_BLOCK)
    return g_strdup_printf ("%" G_GINT64_FORMAT " of %u layers", s->recompute_num_layers,
                            weft_job_most_layers (job));
  return g_strdup (weft_recompute_words[s->recompute_granularity]);
}

static const char *
schedule_word (const union weft_strategy *s)
{
  return s->pipeline_model_parallel_size > 1 ? weft_schedule_words[s->pipeline_schedule] : "-";
}

/* Columns of a strategy: head, width (negative: flush left), text of the cell. */
#define COLUMN_LIST(X)                                                                             \
  X ("tp", 3, number (s->tensor_model_parallel_size))                                              \
  X ("cp", 3, number (s->context_parallel_size))                                                   \
  X ("ep", 4, number (s->expert_model_parallel_size))                                              \
  X ("pp", 4, number (s->pipeline_model_parallel_size))                                            \
  X ("vp", 3, number (weft_job_chunks (job)))                                                      \
  X ("dp", 5, number (weft_job_dp (job)))                                                          \
  X ("mbs", 4, number (job->train.micro_batch_size))                                               \
  X (" schedule", -9, g_strconcat (" ", schedule_word (s), NULL))                                  \
  X (" recompute", -15, g_strconcat (" ", recompute, NULL))                                        \
  X ("shards", -18, g_strdup (optimizer_word (s)))                                                 \
  X ("overlap", -10, overlap_text (s))

static void
print_strategy (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  g_autofree char *recompute = recompute_text (job);
#define PRINT_COLUMN(head, width, make)                                                            \
  {                                                                                                \
    g_autofree char *text = make;                                                                  \
    printf (" %*s", width, text);                                                                  \
  }
  COLUMN_LIST (PRINT_COLUMN)
#undef PRINT_COLUMN
}

static void
print_heads (void)
{
#define PRINT_HEAD(head, width, make) printf (" %*s", width, head);
  COLUMN_LIST (PRINT_HEAD)
#undef PRINT_HEAD
}

static void
print_row (const struct weft_job *job, const struct weft_candidate *c, uint32_t rank,
           const weft_report *best)
{
  struct weft_job chosen = weft_space_job (job, &c->choice);
  g_autofree char *time = weft_units_human (c->seconds, "s");
  g_autofree char *why = rank > 1 ? why_it_loses (best, c->report) : g_strdup ("the best");

  printf ("%2u", rank);
  print_strategy (&chosen);
  printf (" %9s %8.0f %6.1f %7.1f   %s\n", time, c->report->iteration.tokens_per_s_per_gpu,
          100 * c->report->iteration.mfu, c->bytes * 1e-9, why);
}

static void
print_table (const struct weft_job *job, const weft_search *search)
{
  uint32_t n = search->by_fate[WEFT_FATE_SIMULATED];

  printf ("\n #");
  print_heads ();
  printf (" %9s %8s %6s %7s   against the best\n", "step", "tok/s/G", "MFU %", "mem GB");
  for (uint32_t i = 0; i < n; i++)
    print_row (job, &search->candidate[i], i + 1, search->candidate[0].report);
}

static void
print_near_miss (const struct weft_job *job, const weft_search *search)
{
  const struct weft_candidate *c = search->miss;

  if (!c)
    return;
  struct weft_job missed = weft_space_job (job, &c->choice);
  g_autofree char *time = weft_units_human (c->clock, "s");
  printf ("\nfastest that does not fit (%s, needs %.1f of %.1f GB):\n  ", time, c->bytes * 1e-9,
          job->cluster.f.gpu_memory * 1e-9);
  print_strategy (&missed);
  printf ("\n");
}

static void
print_counts (const weft_search *search)
{
  const uint32_t *n = search->by_fate;

  printf ("%u strategies: %u break a rule, %u do not fit, %u ruled out by lower bounds,\n"
          "%u ranked by closed formulas, %u of these simulated with SimGrid; %.1f s.",
          search->n, n[WEFT_FATE_RULE], n[WEFT_FATE_MEMORY], n[WEFT_FATE_PRUNED],
          n[WEFT_FATE_RANKED] + n[WEFT_FATE_SIMULATED], n[WEFT_FATE_SIMULATED],
          search->wall_seconds);
  if (n[WEFT_FATE_FAULT])
    printf ("\n%u left out because of a bug in Weft: %s", n[WEFT_FATE_FAULT],
            search->fault->message);
  if (n[WEFT_FATE_SIMULATED])
    printf ("\nThe best is within %.1f %% of the optimum of this space.", 100 * search->gap);
  printf ("\n");
}

/* Prints the command of weft sim that simulates the best strategy. */
static void
print_command (const struct weft_job *job, gboolean graph)
{
  printf ("\nin detail:  weft sim with the same model and cluster, and --micro-batch-size "
          "%" G_GINT64_FORMAT,
          job->train.micro_batch_size);
  for (unsigned i = 0; i < weft_strategy_table.n; i++) {
    const struct weft_field *field = &weft_strategy_table.field[i];
    if (weft_field_is_default (field, job->strategy.at[i]))
      continue;
    g_autofree char *value = weft_field_print (field, job->strategy.at[i]);
    g_autofree char *flag = g_strdelimit (g_strdup (field->name), "_", '-');
    if (field->type == WEFT_TYPE_BOOL)
      printf (" --%s%s", job->strategy.at[i].i ? "" : "no-", flag);
    else
      printf (" --%s %s", flag, value);
  }
  printf ("%s\n", graph ? " --graph" : "");
}

static void
print_text (const struct weft_job *job, const weft_search *search, gboolean graph)
{
  g_autoptr (GString) head = g_string_new (NULL);

  weft_report_print_where (job, head);
  fputs (head->str, stdout);
  printf ("%" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT " tokens in a step\n",
          job->train.global_batch_size, job->model.seq_length);
  print_counts (search);
  if (search->by_fate[WEFT_FATE_SIMULATED]) {
    struct weft_job best = weft_space_job (job, &search->candidate[0].choice);
    print_table (job, search);
    print_near_miss (job, search);
    print_command (&best, graph);
  } else {
    print_near_miss (job, search);
  }
}

/* ------------------------------------------------------------------------ JSON */

static void
add_best (JsonBuilder *b, const struct weft_job *job, const struct weft_candidate *c, uint32_t rank)
{
  struct weft_job chosen = weft_space_job (job, &c->choice);

  json_builder_begin_object (b);
  weft_json_int (b, "rank", rank);
  json_builder_set_member_name (b, "strategy");
  weft_report_build_strategy (&chosen, b);
  json_builder_set_member_name (b, "train");
  weft_report_build_train (&chosen, b);
  json_builder_set_member_name (b, "iteration");
  weft_report_build_iteration (c->report, b);
  json_builder_set_member_name (b, "memory");
  weft_report_build_memory (c->report, b);
  json_builder_end_object (b);
}

static void
print_json (const struct weft_job *job, const weft_search *search)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.plan/1");
  weft_json_int (b, "space", search->n);
  weft_json_object (b, "infeasible");
  weft_json_int (b, "memory", search->by_fate[WEFT_FATE_MEMORY]);
  weft_json_int (b, "rule", search->by_fate[WEFT_FATE_RULE]);
  weft_json_int (b, "fault", search->by_fate[WEFT_FATE_FAULT]);
  json_builder_end_object (b);
  weft_json_int (b, "pruned", search->by_fate[WEFT_FATE_PRUNED]);
  weft_json_int (b, "ranked",
                 search->by_fate[WEFT_FATE_RANKED] + search->by_fate[WEFT_FATE_SIMULATED]);
  weft_json_int (b, "simulated", search->by_fate[WEFT_FATE_SIMULATED]);
  weft_json_real (b, "wall_s", search->wall_seconds);
  weft_json_real (b, "gap", search->gap);
  weft_json_array (b, "best");
  for (uint32_t i = 0; i < search->by_fate[WEFT_FATE_SIMULATED]; i++)
    add_best (b, job, &search->candidate[i], i + 1);
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* --------------------------------------------------------------------- command */

static int
plan (const weft_cli_input *input, const char *finalists, gboolean graph)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  struct weft_search_options options = { .progress =
                                             isatty (STDERR_FILENO) ? show_progress : NULL };
  int64_t n = 0;

  if (finalists && !weft_cli_number ("finalists", finalists, 1, &n, &error))
    return weft_cli_fail (error);
  options.graph = graph;
  options.finalists = n;
  options.near_miss = !input->json;
  if (!weft_job_assemble (input->settings, &job, &error))
    return weft_cli_fail (error);
  weft_cli_warn (&job);
  g_autoptr (weft_search) search = weft_search_run (&job, &options, &error);
  clear_progress ();
  if (error && error->code != WEFT_ERROR_INFEASIBLE)
    return weft_cli_fail (error);
  if (input->json)
    print_json (&job, search);
  else
    print_text (&job, search, graph);
  return error ? weft_cli_fail (error) : 0;
}

int
weft_cli_plan (int argc, char **argv)
{
  g_auto (weft_cli_input) input = { 0 };
  gboolean graph = FALSE;
  const char *finalists = NULL;
  const struct weft_cli_flag flags[] = {
    { "finalists", "N", "number of best strategies that SimGrid simulates [10]", NULL, &finalists },
    { .name = "graph", .on = &graph, .doc = WEFT_OPTION_PREDICTED_GRAPH_DOC },
  };
  const struct weft_cli_page page = {
    .usage = "weft plan [JOB] [flags]",
    .doc =
        "Searches all strategies that the job leaves open: tensor, context, expert and pipeline "
        "parallel sizes, chunks of stages, micro batch size, schedule, recompute, data-parallel "
        "sharding and overlap.  A knob that is given stays fixed.  Memory is exact; closed "
        "formulas rank the strategies that fit; SimGrid simulates the best.  Ends with status 4 if "
        "no strategy is feasible.",
    .examples =
        "  weft plan --model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 256\n"
        "  weft plan job.ini --pipeline-model-parallel-size 4 --json\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? plan (&input, finalists, graph) : status;
}
