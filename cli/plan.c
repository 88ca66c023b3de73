/* weft plan: searches strategies, prints the ten best ones and why each is slower than the
 * first. */
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/improve.h"
#include "cli/interrupt.h"
#include "cli/software.h"
#include "cli/sure.h"
#include "cli/watch.h"
#include "cli/written.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include "core/report/report.h"
#include "core/base/units.h"
#include "planner/sweeps.h"
#include "planner/memory_risk.h"
#include "planner/planner.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------ text */

/* A part of the step, and by how many seconds it exceeds the same part of the best strategy. */
struct excess {
  char text[48];
  double more;
};

static gboolean
recomputes (const weft_report *r)
{
  return weft_job_recompute (&r->plan->job).granularity != WEFT_RECOMPUTE_NONE;
}

static struct excess
kernels (const weft_report *best, const weft_report *other)
{
  struct excess all = { "more work in kernels",
                        other->overlap.compute_s - best->overlap.compute_s };

  if (recomputes (other) && !recomputes (best))
    g_strlcpy (all.text, "recompute", sizeof all.text);
  return all;
}

/* The excess of exposed communication, named by the axis whose exposed communication has grown by
 * the most seconds. Exposed times of two axes may cover the same second, so the excess of the axis
 * may be greater. */
static struct excess
communication (const weft_report *best, const weft_report *other)
{
  struct excess all = { "exposed communication", other->overlap.exposed_communication_s -
                                                     best->overlap.exposed_communication_s };
  double most = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    double more = other->axis[lane].exposed_s - best->axis[lane].exposed_s;
    if (!weft_lane_traits[lane].communicates || more <= most)
      continue;
    most = more;
    g_snprintf (all.text, sizeof all.text, "exposed %s communication", weft_lane_words[lane]);
  }
  return all;
}

/* Names the part of the step (kernels, bubble or exposed communication of an axis) that exceeds the
 * same part of the best strategy by the most seconds. The caller frees the text. */
static char *
why_it_loses (const weft_report *best, const weft_report *other)
{
  const struct excess parts[] = {
    kernels (best, other),
    { "bubble", other->overlap.bubble_s - best->overlap.bubble_s },
    communication (best, other),
  };
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

/* The knobs that overlap communication and are on, in short words: "grad+param". The caller frees
 * the text. */
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

/* A number as text; "-" for NaN. */
static char *
real (double value, int digits)
{
  return isnan (value) ? g_strdup ("-") : g_strdup_printf ("%.*f", digits, value);
}

/* The modules of selective recompute. Without a list it is attention. */
static const char *
recomputed_modules (const union weft_strategy *s)
{
  return s->recompute_modules == weft_strategy_defaults ()->recompute_modules
             ? weft_recompute_words[WEFT_RECOMPUTE_SELECTIVE]
             : g_quark_to_string ((GQuark) s->recompute_modules);
}

/* What is kept in host memory. The caller frees the text. */
static char *
offload_text (const union weft_strategy *s)
{
  if (s->cpu_offloading)
    return g_strdup_printf ("%" G_GINT64_FORMAT " layers%s", s->cpu_offloading_num_layers,
                            s->optimizer_cpu_offload ? "+optim" : "");
  return g_strdup (s->optimizer_cpu_offload ? "optim" : "none");
}

/* The bucket size in elements; "-" for the default. The caller frees the text. */
static char *
bucket_text (const union weft_strategy *s)
{
  return s->bucket_size == WEFT_NONE ? g_strdup ("-")
                                     : weft_units_human ((double) s->bucket_size, "");
}

static char *
recompute_text (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;

  if (s->recompute_granularity == WEFT_RECOMPUTE_FULL &&
      s->recompute_method == WEFT_RECOMPUTE_BLOCK)
    return g_strdup_printf ("%" G_GINT64_FORMAT " of %u layers", s->recompute_num_layers,
                            weft_job_most_layers (job));
  if (s->recompute_granularity == WEFT_RECOMPUTE_SELECTIVE)
    return g_strdup (recomputed_modules (s));
  return g_strdup (weft_recompute_words[s->recompute_granularity]);
}

static const char *
schedule_word (const union weft_strategy *s)
{
  return s->pipeline_model_parallel_size > 1 ? weft_schedule_words[s->pipeline_schedule] : "-";
}

/* The order of replicas and stages in the numbers of the ranks, from the inside. */
static const char *
order_word (const union weft_strategy *s)
{
  if (s->pipeline_model_parallel_size == 1)
    return "-";
  return s->use_tp_pp_dp_mapping ? "pp-dp" : "dp-pp";
}

/* The contents of the page: the search around a job, and how certain its predictions are. */
struct page {
  const struct weft_job *job;
  const weft_search *search;
  weft_cli_sure *sure;
  struct weft_ratio_error ratio;
  const weft_cli_given *given; /* --improve: the job as it is; otherwise NULL */
};

/* Whether a candidate may in reality need more memory than the GPU has. `job`: the job with the
 * strategy of the candidate. */
static gboolean
is_risky (const struct page *page, const struct weft_job *job, const struct weft_candidate *c)
{
  return weft_memory_is_risky (page->sure->bands, job, (double) c->bytes);
}

/* The memory in GB as text, followed by RISK if the strategy may in reality not fit. The caller
 * frees the text. */
#define RISK "!"

static char *
memory_text (const struct page *page, const struct weft_job *job, const struct weft_candidate *c)
{
  return g_strdup_printf ("%.1f%s", (double) c->bytes * 1e-9, is_risky (page, job, c) ? RISK : " ");
}

/* Whether the predicted time of a strategy is so near to that of the best that the strategy may in
 * reality be faster. */
static gboolean
is_tied (const struct page *page, const struct weft_candidate *c)
{
  const struct weft_candidate *best = &page->search->candidate[0];

  return c != best && c->seconds > 0 && c->seconds <= best->seconds * (1 + page->ratio.error);
}

/* The step time as text, followed by TIED if the strategy may in reality be faster than the best
 * strategy. The caller frees the text. */
#define TIED "~"

static char *
step_text (const struct page *page, const struct weft_candidate *c)
{
  g_autofree char *time = c->seconds > 0 ? weft_units_human (c->seconds, "s") : g_strdup ("-");
  return g_strconcat (time, is_tied (page, c) ? TIED : " ", NULL);
}

/* Columns of the table: X (head, whether the column is always shown, text of the cell). A column
 * that is not always shown is shown only if its cells differ between strategies. */
#define COLUMN_LIST(X)                                                                             \
  X ("tp", TRUE, number (s->tensor_model_parallel_size))                                           \
  X ("cp", FALSE, number (s->context_parallel_size))                                               \
  X ("ep", FALSE, number (s->expert_model_parallel_size))                                          \
  X ("pp", TRUE, number (s->pipeline_model_parallel_size))                                         \
  X ("vp", FALSE, number (weft_job_chunks (job)))                                                  \
  X ("dp", TRUE, number (weft_job_dp (job)))                                                       \
  X ("order", FALSE, g_strdup (order_word (s)))                                                    \
  X ("mbs", FALSE, number (job->train.micro_batch_size))                                           \
  X ("schedule", FALSE, g_strdup (schedule_word (s)))                                              \
  X ("recompute", FALSE, recompute_text (job))                                                     \
  X ("precision", FALSE, g_strdup (weft_precision_words[job->train.precision]))                    \
  X ("offload", FALSE, offload_text (s))                                                           \
  X ("shards", FALSE, g_strdup (optimizer_word (s)))                                               \
  X ("groups", FALSE, number (weft_job_instances (job)))                                           \
  X ("bucket", FALSE, bucket_text (s))                                                             \
  X ("overlap", FALSE, overlap_text (s))                                                           \
  X ("step", TRUE, step_text (page, c))                                                            \
  X ("tok/s/GPU", TRUE, real (c->report ? c->report->iteration.tokens_per_s_per_gpu : NAN, 0))     \
  X ("MFU %", TRUE, real (c->report ? 100 * c->report->iteration.mfu : NAN, 1))                    \
  X ("mem GB", TRUE, memory_text (page, job, c))

#define COUNT_COLUMN(head, always, make) +1
enum { N_COLUMN = 0 COLUMN_LIST (COUNT_COLUMN), N_STRATEGY = N_COLUMN - 4 };
#undef COUNT_COLUMN

static const struct {
  const char *head;
  gboolean always;
} columns[N_COLUMN] = {
#define COLUMN_ROW(head, always, make) { head, always },
  COLUMN_LIST (COLUMN_ROW)
#undef COLUMN_ROW
};

/* A row of the table. Its texts are owned. */
struct cells {
  char *text[N_COLUMN];
};

static struct cells
cells_of (const struct page *page, const struct weft_candidate *c)
{
  const struct weft_job chosen = weft_space_job (page->job, &c->choice), *job = &chosen;
  const union weft_strategy *s = &job->strategy;
#define CELL(head, always, make) make,
  struct cells cells = { { COLUMN_LIST (CELL) } };
#undef CELL

  return cells;
}

static void
clear_cells (struct cells *cells)
{
  for (unsigned i = 0; i < N_COLUMN; i++)
    g_free (cells->text[i]);
}

/* A strategy as one line of text: "tp 4, cp 1, ...". The caller frees the text. */
static char *
strategy_text (const struct page *page, const struct weft_candidate *c)
{
  struct cells cells = cells_of (page, c);
  GString *text = g_string_new (NULL);

  for (unsigned i = 0; i < N_STRATEGY; i++)
    g_string_append_printf (text, "%s%s %s", i ? ", " : "", columns[i].head, cells.text[i]);
  clear_cells (&cells);
  return g_string_free (text, FALSE);
}

/* The width of a column. 0: the cells of all rows are equal, and the column is left out. */
static int
width_of (const struct cells *rows, uint32_t n, unsigned column)
{
  size_t width = strlen (columns[column].head);
  gboolean differ = columns[column].always;

  for (uint32_t i = 0; i < n; i++) {
    width = MAX (width, strlen (rows[i].text[column]));
    differ |= !g_str_equal (rows[i].text[column], rows[0].text[column]);
  }
  return differ ? (int) width : 0;
}

/* Prints a cell of the table: words are aligned left, numbers right. */
static int
print_cell (const char *text, int width, gboolean word)
{
  return width ? printf (word ? "  %-*s" : "  %*s", width, text) : 0;
}

static gboolean
is_word (unsigned column, const struct cells *row)
{
  return column < N_STRATEGY && !g_ascii_isdigit (*row->text[column]);
}

static void
print_common (const struct cells *rows, const int *width)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < N_STRATEGY; i++)
    if (!width[i])
      g_string_append_printf (text, "%s%s %s", text->len ? ", " : "", columns[i].head,
                              rows[0].text[i]);
  if (text->len)
    printf ("all with %s\n", text->str);
}

/* Leaves out columns until the rows fit the terminal: first tokens/s/GPU, then MFU, which both
 * follow from the step time. */
static void
drop_columns (int *width, int terminal)
{
  int used = 2;

  for (unsigned k = 0; k < N_COLUMN; k++)
    used += width[k] ? 2 + width[k] : 0;
  for (unsigned k = N_STRATEGY + 1; k < N_STRATEGY + 3 && used > terminal; k++) {
    used -= 2 + width[k];
    width[k] = 0;
  }
}

/* Indentation of a reason that is printed below its row, because it does not fit beside the row. */
enum { REASON_INDENT = 6 };

static void
print_table (const struct page *page)
{
  const weft_search *search = page->search;
  uint32_t n = search->by_fate[WEFT_FATE_SIMULATED];
  g_autofree struct cells *rows = g_new (struct cells, n);
  int width[N_COLUMN], terminal = weft_cli_columns ();

  for (uint32_t i = 0; i < n; i++)
    rows[i] = cells_of (page, &search->candidate[i]);
  for (unsigned k = 0; k < N_COLUMN; k++)
    width[k] = width_of (rows, n, k);
  drop_columns (width, terminal);
  int head = printf ("\n #") - 1;
  for (unsigned k = 0; k < N_COLUMN; k++)
    head += print_cell (columns[k].head, width[k], is_word (k, &rows[0]));
  printf ("%s\n", head + 18 <= terminal ? "  against the best" : "");
  for (uint32_t i = 0; i < n; i++) {
    const struct weft_candidate *c = search->candidate;
    g_autofree char *why = i ? why_it_loses (c->report, c[i].report) : g_strdup ("the best");
    int used = printf ("%2u", i + 1);
    for (unsigned k = 0; k < N_COLUMN; k++)
      used += print_cell (rows[i].text[k], width[k], is_word (k, &rows[0]));
    if (used + 2 + (int) strlen (why) <= terminal)
      printf ("  %s\n", why);
    else
      printf ("\n%*s%s\n", REASON_INDENT, "", why);
  }
  print_common (rows, width);
  for (uint32_t i = 0; i < n; i++)
    clear_cells (&rows[i]);
}

/* Prints what the mark RISK means, if a strategy of the table has it, and names the fastest
 * strategy without the mark. */
static void
print_risk (const struct page *page)
{
  uint32_t n = page->search->by_fate[WEFT_FATE_SIMULATED], risky = 0, safe = n;
  double error = 0;

  for (uint32_t i = n; i-- > 0;) {
    const struct weft_candidate *c = &page->search->candidate[i];
    struct weft_job job = weft_space_job (page->job, &c->choice);
    if (is_risky (page, &job, c)) {
      risky++;
      error = weft_memory_error (page->sure->bands, &job);
    } else
      safe = i;
  }
  if (!risky)
    return;
  g_autofree char *memory = weft_units_human (page->job->cluster.f.gpu_memory, "B");
  g_autofree char *which = safe == n
                               ? g_strdup ("all of these strategies have this risk")
                               : g_strdup_printf ("the fastest without this risk is %u", safe + 1);
  g_autofree char *text = g_strdup_printf (
      RISK " may not fit: memory of published runs exceeds its prediction by up to %.0f %%, and "
           "with that it exceeds the %s of the GPU; %s",
      100 * error, g_strstrip (memory), which);
  weft_cli_print_wrapped (text, 2, weft_cli_columns ());
}

/* Prints what the mark TIED means, if a strategy of the table has it. */
static void
print_tied (const struct page *page)
{
  uint32_t tied = 0;

  for (uint32_t i = 0; i < page->search->by_fate[WEFT_FATE_SIMULATED]; i++)
    tied += is_tied (page, &page->search->candidate[i]);
  if (!tied)
    return;
  g_autofree char *text = g_strdup_printf (
      TIED " may be faster than the best: in %.0f %% of pairs of published strategies, the ratio "
           "of predicted times is off by up to %.1f %%",
      100 * WEFT_SWEEP_SHARE, 100 * page->ratio.error);
  weft_cli_print_wrapped (text, 2, weft_cli_columns ());
}

static void
print_sure (const struct page *page, const struct weft_job *best)
{
  const struct weft_candidate *c = &page->search->candidate[0];
  const struct weft_cli_answer answer = { best, c->seconds, (double) c->bytes };

  weft_cli_print_sure (page->sure, &answer);
}

static void
print_near_miss (const struct page *page)
{
  const weft_search *search = page->search;
  const struct weft_candidate *c = search->closest ? search->closest : search->miss;

  if (!c)
    return;
  g_autofree char *time = weft_units_human (c->clock, "s");
  g_autofree char *strategy = strategy_text (page, c);
  printf ("\n%s (%s a step, needs %.1f of %.1f GB):\n  ",
          search->closest ? "closest to fitting" : "fastest that does not fit", time,
          (double) c->bytes * 1e-9, weft_plan_capacity (page->job) * 1e-9);
  weft_cli_print_wrapped (strategy, 2, weft_cli_columns ());
}

/* For a job for which no strategy fits in memory, prints the size of a cluster on which one
 * fits. */
static void
print_enough (const struct weft_job *job, const weft_search *search)
{
  if (search->by_fate[WEFT_FATE_SIMULATED] || search->stopped)
    return;
  if (search->enough_gpus)
    printf ("\n%u GPUs of this kind would do: a strategy fits (of the sizes tried, the smallest)\n",
            search->enough_gpus);
  else
    printf ("\nno larger cluster of topology %s was found on which a strategy fits\n",
            g_quark_to_string (job->cluster.topology));
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
  if (search->stopped)
    printf ("\nInterrupted: this is the ranking so far.");
  else if (n[WEFT_FATE_SIMULATED])
    printf ("\nThe best is within %.1f %% of the optimum of this space under the model.",
            100 * search->gap);
  printf ("\n");
}

/* Prints the command line of weft sim that simulates the best strategy. */
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
  printf (" --memory-headroom %g%s\n", job->train.memory_headroom, graph ? " --graph" : "");
}

static void
print_text (const struct page *page, gboolean graph)
{
  g_autoptr (GString) head = g_string_new (NULL);
  const struct weft_job *job = page->job;

  weft_report_print_where (job, head);
  fputs (head->str, stdout);
  printf ("%" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT " tokens in a step\n",
          job->train.global_batch_size, job->model.seq_length);
  print_counts (page->search);
  printf ("%.3g %% of the GPU memory is kept free (--memory-headroom).\n",
          100 * job->train.memory_headroom);
  if (page->given)
    weft_cli_given_print (page->given);
  if (page->search->by_fate[WEFT_FATE_SIMULATED]) {
    const struct weft_candidate *first = page->search->candidate;
    struct weft_job best = weft_space_job (job, &first->choice);
    print_table (page);
    if (page->given)
      weft_cli_given_compare (page->given, first, &best, page->ratio.error);
    print_risk (page);
    print_tied (page);
    print_near_miss (page);
    print_sure (page, &best);
    print_command (&best, graph);
  } else {
    print_near_miss (page);
    print_enough (job, page->search);
  }
}

/* ------------------------------------------------------------------------ JSON */

static void
add_best (JsonBuilder *b, const struct page *page, const struct weft_candidate *c, uint32_t rank)
{
  struct weft_job chosen = weft_space_job (page->job, &c->choice);
  const struct weft_cli_answer answer = { &chosen, c->seconds, (double) c->bytes };

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
  weft_json_bool (b, "memory_risk", is_risky (page, &chosen, c));
  weft_json_bool (b, "tied_with_best", is_tied (page, c));
  weft_cli_add_sure (page->sure, b, &answer);
  json_builder_end_object (b);
}

static void
print_json (const struct page *page)
{
  const struct weft_job *job = page->job;
  const weft_search *search = page->search;
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
  weft_json_bool (b, "stopped", search->stopped);
  weft_json_real (b, "memory_headroom", job->train.memory_headroom);
  weft_json_real (b, "memory_error", weft_memory_error (page->sure->bands, job));
  weft_json_real_or_null (b, "ratio_error", page->ratio.error);
  if (search->enough_gpus)
    weft_json_int (b, "enough_gpus", search->enough_gpus);
  if (page->given)
    weft_cli_given_add (page->given, b);
  weft_json_array (b, "best");
  for (uint32_t i = 0; i < search->by_fate[WEFT_FATE_SIMULATED]; i++)
    add_best (b, page, &search->candidate[i], i + 1);
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* --------------------------------------------------------------------- command */

/* The flags of `weft plan` that are not settings of the job. */
struct wishes {
  const char *finalists;
  gboolean graph, improve, whole;
  struct weft_cli_wanted wanted; /* the file that is written */
};

/* Refuses wishes that contradict each other, before the search. */
static gboolean
check_wishes (const weft_cli_input *input, const struct wishes *wishes, int64_t *finalists,
              GError **error)
{
  if (wishes->finalists && !weft_cli_number ("finalists", "a number of strategies",
                                             wishes->finalists, 1, finalists, error))
    return FALSE;
  if (wishes->wanted.software && !weft_target_find (wishes->wanted.software, error))
    return FALSE;
  if (wishes->wanted.software && !wishes->wanted.output)
    return weft_bad_input (error, "--for %s: found no --output, wanted the file to write",
                           wishes->wanted.software);
  if (wishes->improve && !input->operand)
    return weft_bad_input (error, "--improve: found no JOB, wanted the job to improve");
  return TRUE;
}

/* The job around which strategies are searched. */
static gboolean
assemble (const weft_settings *settings, struct weft_job *job, GError **error)
{
  if (!weft_job_assemble (settings, job, error))
    return FALSE;
  if (!job->train_set[WEFT_TRAIN_memory_headroom])
    job->train.memory_headroom = WEFT_SEARCH_HEADROOM;
  return TRUE;
}

/* Largest number of searches for one answer with --for. Each search fixes settings that the
 * software cannot express at the values that the software has. */
enum { MOST_ROUNDS = 4 };

/* Searches around *job. With --for, searches again until the software can express a simulated
 * strategy: settings that it cannot express are fixed at the values that it has. If no search finds
 * such a strategy, those of the last one are changed. A search without a feasible strategy is
 * returned with *error. */
static weft_search *
search_for (weft_settings *settings, const struct weft_search_options *options,
            const struct wishes *wishes, struct weft_job *job, struct weft_cli_written *written,
            GError **error)
{
  const struct weft_cli_wanted *wanted = &wishes->wanted;
  g_autofree struct weft_job *asked = g_memdup2 (job, sizeof *job);

  for (unsigned round = 1;; round++) {
    g_autoptr (weft_search) search = weft_search_run (job, options, error);
    if (search->by_fate[WEFT_FATE_SIMULATED])
      written->job = weft_space_job (job, &search->candidate[0].choice);
    if (*error || search->stopped || !wanted->software)
      return g_steal_pointer (&search);
    if (!weft_cli_written_choose (written, wanted, job, search, error))
      return NULL;
    if (wanted->partial || !written->result->n_not)
      return g_steal_pointer (&search);
    if (round == MOST_ROUNDS || !weft_cli_software_adopt (written->result, settings))
      return weft_cli_written_change (written, asked, job, search, error)
                 ? g_steal_pointer (&search)
                 : NULL;
    weft_cli_written_clear (written);
    if (!assemble (settings, job, error))
      return NULL;
  }
}

static void
print_page (const struct page *page, const weft_cli_input *input, const struct wishes *wishes)
{
  if (input->json)
    print_json (page);
  else
    print_text (page, wishes->graph);
}

static int
plan (const weft_cli_input *input, const struct wishes *wishes)
{
  g_autoptr (GError) error = NULL;
  struct weft_space_ranges ranges = { .whole = wishes->whole };
  g_autoptr (weft_settings) settings =
      weft_cli_open_settings (input, wishes->improve, &ranges, &error);
  g_auto (weft_cli_written) written = { 0 };
  struct weft_job job;
  struct weft_cli_watch watch =
      weft_cli_watch_start (isatty (STDERR_FILENO), g_get_monotonic_time ());
  struct weft_search_options options = { .progress = weft_cli_watch_show,
                                         .stop = weft_cli_is_interrupted,
                                         .user = &watch,
                                         .near_miss = TRUE,
                                         .graph = wishes->graph,
                                         .ranges = &ranges };
  int64_t finalists = 0;

  if (!settings || !check_wishes (input, wishes, &finalists, &error) ||
      !assemble (settings, &job, &error))
    return weft_cli_fail (error);
  weft_cli_warn (&job);
  options.finalists = finalists;
  weft_cli_catch_interrupt ();
  g_autoptr (weft_cli_sure) sure = weft_cli_sure_new (&error);
  g_autoptr (weft_cli_given) given =
      sure && wishes->improve ? weft_cli_given_new (input, &options, &error) : NULL;
  if (!sure || (wishes->improve && !given))
    return weft_cli_fail (error);
  g_autoptr (weft_search) search = search_for (settings, &options, wishes, &job, &written, &error);
  weft_cli_watch_clear (&watch);
  if (error && error->code != WEFT_ERROR_INFEASIBLE) {
    int status = weft_cli_fail (error);
    return search && search->stopped ? WEFT_CLI_EXIT_BY_SIGINT : status;
  }
  const struct page page = { &job, search, sure, weft_sweeps_ratio_error (sure->errors), given };
  print_page (&page, input, wishes);
  if (error || (wishes->wanted.output && !search->stopped &&
                !weft_cli_written_save (&written, &wishes->wanted, &error)))
    return weft_cli_fail (error);
  return search->stopped ? WEFT_CLI_EXIT_BY_SIGINT : 0;
}

int
weft_cli_plan (int argc, char **argv)
{
  g_auto (weft_cli_input) input = { 0 };
  struct wishes wishes = { 0 };
  g_autofree char *names = weft_target_names (", ", TRUE);
  g_autofree char *software =
      g_strconcat ("write FILE as a configuration of this software (weft export): ", names, NULL);
  const struct weft_cli_flag flags[] = {
    { "finalists", "N", "best strategies that SimGrid simulates [10, fewer if steps are long]",
      NULL, &wishes.finalists },
    { .name = "graph", .on = &wishes.graph, .doc = WEFT_OPTION_PREDICTED_GRAPH_DOC },
    { .name = "whole-space",
      .on = &wishes.whole,
      .doc = "also search schedules that split the backward pass, selective recompute, offload, "
             "groups of sharding, bucket sizes, tp_comm_overlap and the order of stages and "
             "replicas on the cluster" },
    { .name = "improve",
      .on = &wishes.improve,
      .doc = "predict JOB as it is, and search also what JOB fixes; flags stay fixed" },
    { "output", "FILE", "write the best strategy to FILE, as a job file", NULL,
      &wishes.wanted.output },
    { "for", "SOFTWARE", software, NULL, &wishes.wanted.software },
    { .name = "partial",
      .on = &wishes.wanted.partial,
      .doc = "leave out settings that the software cannot express" },
  };
  const struct weft_cli_page page = {
    .usage = "weft plan [JOB] [flags]",
    .doc =
        "Searches all strategies that the job leaves open: tensor, context, expert and pipeline "
        "parallel sizes, chunks of stages, micro batch size, schedule, recompute, "
        "sharding and overlap.  A knob that is given stays fixed; a list (4,8) limits the "
        "search to these values; any searches a knob that JOB fixes.  Memory is exact; closed "
        "formulas rank the strategies that fit; SimGrid simulates the best.  Every strategy leaves "
        "5 % of the GPU memory free (--memory-headroom).  ! marks strategies that may not fit, ~ "
        "those that may be faster than the best, by the errors of predictions of published runs "
        "(docs/accuracy.md).  Ctrl-C ends the search "
        "with the ranking so far, and with status 130.  Ends with status 4 if no strategy is "
        "feasible; then the strategy closest to fitting is shown, and a number of GPUs on which "
        "one fits.",
    .examples =
        "  weft plan --model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 256\n"
        "  weft plan job.ini --pipeline-model-parallel-size 4,8 --micro-batch-size any --json\n"
        "  weft plan train.sh --from megatron-lm --topology dgx-h100 --improve\n"
        "  weft plan --model llama3.1-8b --seq-length 8192 --topology dgx-h100 --nodes 4 \\\n"
        "      --global-batch-size 256 --stack torchtitan --for torchtitan --output best.toml\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? plan (&input, &wishes) : status;
}
