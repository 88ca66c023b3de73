/* The search: its answers, its space, its output. */
#include "core/base/error.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include "core/report/report.h"
#include "exec_sim/exec_sim.h"
#include "planner/planner.h"
#include "planner/shorten.h"
#include "planner/space.h"
#include "tests/made/open_job.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>

static weft_search *
search_all (const struct weft_job *job, uint32_t finalists)
{
  struct weft_search_options options = { .finalists = finalists };
  g_autoptr (GError) error = NULL;
  weft_search *search = weft_search_run (job, &options, &error);

  if (error)
    fail_msg ("%s", error->message);
  return search;
}

/* The job `small` fixes the micro batch size. The search may choose all other axes of its space. */
static const char *const small[] = {
  "model", "llama-nano",       "topology", "dgx-h100", "gpus", "8", "global-batch-size",
  "32",    "micro-batch-size", "2",        NULL
};
static const char *const real[] = { "model", "gpt2-large",        "topology", "dgx-a100", "nodes",
                                    "2",     "global-batch-size", "128",      NULL };
/* Flags of the job `several`, which has many microbatches per step. */
static const char *const several[] = { "model",
                                       "gpt2-large",
                                       "topology",
                                       "dgx-a100",
                                       "gpus",
                                       "4",
                                       "micro-batch-size",
                                       "1",
                                       "global-batch-size",
                                       "64",
                                       "overlap-grad-reduce",
                                       "true",
                                       NULL };

static void
no_strategy_of_the_space_beats_the_answer (void **state)
{
  struct weft_job job = open_job (small);
  struct weft_exec_options folded = { 0 };
  g_autoptr (weft_search) search = search_all (&job, 10);
  g_autoptr (GArray) space = weft_space_enumerate (&job);
  double best = search->candidate[0].seconds;
  uint32_t legal = 0;

  (void) state;
  for (guint i = 0; i < space->len; i++) {
    struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, i));
    g_autoptr (GError) error = NULL;
    if (!weft_job_check (&one, NULL))
      continue;
    g_autoptr (weft_plan) plan = weft_plan_new (&one, &error);
    assert_null (error);
    g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_sim, plan, &folded, &error);
    assert_null (error);
    if (t->seconds < best * (1 - 1e-9) && weft_plan_fits (plan))
      fail_msg ("candidate %u takes %.9g s, the answer %.9g s", i, t->seconds, best);
    legal++;
  }
  assert_true (legal > 100);
  assert_int_equal (space->len, search->n);
}

static void
bound_is_below_clock_and_clock_below_simulation (void **state)
{
  struct weft_job job = open_job (real);
  g_autoptr (weft_search) search = search_all (&job, 40);

  (void) state;
  for (uint32_t i = 0; i < search->n_listed; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->fate < WEFT_FATE_RANKED)
      continue;
    assert_true (c->bound > 0 && c->bound <= c->clock);
    if (c->fate == WEFT_FATE_SIMULATED)
      assert_true (c->clock <= c->seconds * (1 + 1e-9));
  }
  assert_true (search->by_fate[WEFT_FATE_SIMULATED] == 40);
}

static weft_report *
run_in_full (const struct weft_job *job, const struct weft_exec_ops *ops)
{
  struct weft_exec_options folded = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = weft_plan_new (job, &error);
  assert_null (error);
  g_autoptr (weft_timeline) t = weft_exec_run (ops, plan, &folded, &error);
  assert_null (error);
  weft_report *report = weft_report_new (plan, t);
  report->plan = NULL; /* the caller frees plan and timeline */
  report->timeline = NULL;
  return report;
}

static gboolean
is_near (double a, double b)
{
  return fabs (a - b) <= 0.02 * fabs (b);
}

/* Asserts that a candidate's times and memory, which the search extrapolates from two short steps,
 * equal those of a simulation of the full step. */
static void
is_what_it_is_in_full (const struct weft_job *job, const struct weft_candidate *c)
{
  g_autoptr (weft_report) clock = run_in_full (job, &weft_exec_clock);
  g_autoptr (weft_report) full = run_in_full (job, &weft_exec_sim);
  const weft_report *line = c->report;

  assert_true (is_near (c->clock, clock->iteration.time_s));
  assert_true (is_near (c->seconds, full->iteration.time_s));
  assert_int_equal (c->bytes, full->peak_bytes);
  assert_true (c->seconds == line->iteration.time_s);
  assert_true (is_near (line->iteration.mfu, full->iteration.mfu));
  assert_true (is_near (line->iteration.hfu, full->iteration.hfu));
  assert_true (is_near (line->iteration.tokens_per_s, full->iteration.tokens_per_s));
  assert_true (is_near (line->overlap.compute_s, full->overlap.compute_s));
  assert_true (is_near (line->overlap.compute_s + line->overlap.bubble_s +
                            line->overlap.exposed_communication_s,
                        full->iteration.time_s));
}

static void
short_steps_tell_time_and_memory_of_long_ones (void **state)
{
  struct weft_job job = open_job (several);
  g_autoptr (weft_search) search = search_all (&job, 20);
  uint32_t n_long = 0;

  (void) state;
  for (uint32_t i = 0; i < search->by_fate[WEFT_FATE_SIMULATED]; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    struct weft_job one = weft_space_job (&job, &c->choice);
    struct weft_shortened shortened;
    weft_shorten (&one, &shortened);
    if (shortened.n == 1)
      continue;
    is_what_it_is_in_full (&one, c);
    n_long++;
  }
  assert_true (n_long >= 5);
}

static void
the_order_is_by_simulated_time_and_counts_add_up (void **state)
{
  struct weft_job job = open_job (small);
  g_autoptr (weft_search) search = search_all (&job, 7);
  uint32_t sum = 0;

  (void) state;
  for (int fate = 0; fate <= WEFT_FATE_SIMULATED; fate++)
    sum += search->by_fate[fate];
  assert_int_equal (sum, search->n);
  assert_int_equal (search->by_fate[WEFT_FATE_SIMULATED], 7);
  for (uint32_t i = 1; i < 7; i++)
    assert_true (search->candidate[i - 1].seconds <= search->candidate[i].seconds);
  assert_true (search->gap >= 0 && search->gap < 1);
}

static void
a_knob_that_was_given_stays (void **state)
{
  static const char *const fixed[] = { "model",
                                       "llama-nano",
                                       "topology",
                                       "dgx-h100",
                                       "gpus",
                                       "8",
                                       "global-batch-size",
                                       "64",
                                       "pipeline-model-parallel-size",
                                       "4",
                                       "pipeline-schedule",
                                       "gpipe",
                                       "use-distributed-optimizer",
                                       "false",
                                       "micro-batch-size",
                                       "2",
                                       NULL };
  struct weft_job job = open_job (fixed);
  g_autoptr (GArray) space = weft_space_enumerate (&job);

  (void) state;
  /* Number of strategies: three choices of recompute (none, one or both of the two layers of a
   * stage) for each of six choices of data and tensor parallelism. With two replicas five: the DDP
   * wrapper with or without gradient overlap, sharded gradients with or without parameter overlap,
   * and sharded units. With two tensor parallel ranks one. */
  assert_int_equal (space->len, 3 * ((2 + 2 + 1) + 1));
  for (guint i = 0; i < space->len; i++) {
    struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, i));
    assert_int_equal (one.strategy.pipeline_model_parallel_size, 4);
    assert_int_equal (one.strategy.pipeline_schedule, WEFT_SCHEDULE_GPIPE);
    assert_int_equal (one.train.micro_batch_size, 2);
    assert_false (one.strategy.use_distributed_optimizer);
  }
}

/* The whole space contains every strategy of the usual one, and its families contain each of its
 * strategies once. */
static void
the_whole_space_contains_the_usual_one (void **state)
{
  const struct weft_space_ranges whole = { .whole = TRUE };
  struct weft_job job = open_job (small);
  g_autoptr (GArray) usual = weft_space_enumerate (&job);
  g_autoptr (GArray) all = weft_space_enumerate_within (&job, &whole);
  g_autoptr (GArray) families = g_array_new (FALSE, FALSE, sizeof (struct weft_choice));
  uint32_t at = 0, sum = 0;

  (void) state;
  assert_true (all->len > 2 * usual->len);
  for (guint i = 0; i < all->len && at < usual->len; i++)
    at += memcmp (&g_array_index (all, struct weft_choice, i),
                  &g_array_index (usual, struct weft_choice, at), sizeof (struct weft_choice)) == 0;
  assert_int_equal (at, usual->len);
  weft_space_families (&job, &whole, NULL, 0, WEFT_SPACE_KERNELS, families);
  for (guint i = 0; i < families->len; i++)
    sum += weft_space_count (&job, &whole, &g_array_index (families, struct weft_choice, i),
                             WEFT_SPACE_KERNELS);
  assert_int_equal (sum, all->len);
  assert_int_equal (weft_space_count (&job, &whole, NULL, 0), all->len);
}

/* Both orders of stages and replicas are tried where they place a group differently: not in a
 * single node, nor if runs of tensor parallel ranks fill the nodes of one scalable unit, nor for
 * one stage or one replica, nor where a rule refuses the order. */
static void
both_orders_are_searched_where_links_differ (void **state)
{
  static const struct {
    const char *gpus, *tensor, *stages, *experts, *model;
    uint32_t n;
  } cases[] = {
    { "8", "1", "2", "1", "llama3-8b", 1 },     { "16", "1", "2", "1", "llama3-8b", 2 },
    { "16", "1", "1", "1", "llama3-8b", 1 },    { "16", "8", "2", "1", "llama3-8b", 1 },
    { "32", "8", "2", "1", "llama3-8b", 1 },    { "512", "8", "2", "1", "llama3-8b", 2 },
    { "32", "2", "2", "1", "mixtral-8x7b", 2 }, { "32", "2", "2", "8", "mixtral-8x7b", 1 },
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (cases); i++) {
    const char *words[] = { "model",
                            cases[i].model,
                            "topology",
                            "dgx-h100",
                            "gpus",
                            cases[i].gpus,
                            "tensor-model-parallel-size",
                            cases[i].tensor,
                            "pipeline-model-parallel-size",
                            cases[i].stages,
                            "expert-model-parallel-size",
                            cases[i].experts,
                            "global-batch-size",
                            "512",
                            NULL };
    struct weft_job job = open_job (words);
    int64_t values[WEFT_SPACE_VALUES];
    assert_int_equal (weft_space_values (&job, WEFT_AXIS_use_tp_pp_dp_mapping, values), cases[i].n);
  }
}

/* A list limits an axis to its values, and others stay open; precision is searched only if it is
 * limited. A wrong value and a setting that is no axis are refused. */
static void
a_list_limits_an_axis (void **state)
{
  struct weft_job job = open_job (small);
  struct weft_space_ranges ranges = { 0 };
  g_autoptr (GError) error = NULL;
  uint32_t n_fp8 = 0;

  (void) state;
  assert_true (weft_space_limit (&ranges, "tensor_model_parallel_size", "2, 4", NULL));
  assert_true (weft_space_limit (&ranges, "precision", "bf16,fp8", NULL));
  g_autoptr (GArray) space = weft_space_enumerate_within (&job, &ranges);
  for (guint i = 0; i < space->len; i++) {
    struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, i));
    int64_t tensor = one.strategy.tensor_model_parallel_size;
    assert_true (tensor == 2 || tensor == 4);
    n_fp8 += one.train.precision == WEFT_FP8;
  }
  assert_int_equal (2 * n_fp8, space->len);
  assert_false (weft_space_limit (&ranges, "tensor_model_parallel_size", "2,x", &error));
  assert_non_null (strstr (error->message, "found \"x\""));
  g_clear_error (&error);
  assert_false (weft_space_limit (&ranges, "hidden_dropout", "0,0.1", &error));
}

/* Whether a strategy of the search space has these `n` values; `wanted`: pairs of axis and
 * value. */
static gboolean
has (GArray *space, const int64_t wanted[][2], unsigned n)
{
  for (guint i = 0; i < space->len; i++) {
    const struct weft_choice *choice = &g_array_index (space, struct weft_choice, i);
    unsigned same = 0;
    while (same < n && choice->value[wanted[same][0]] == wanted[same][1])
      same++;
    if (same == n)
      return TRUE;
  }
  return FALSE;
}

/* The search space contains published strategies, and no strategy of the space breaks a rule: Llama
 * 3.1 405B (arXiv 2407.21783, Table 4) without and with context parallelism; DeepSeek-V3, whose
 * number of layers (61) is prime; Mixtral with one rank per expert. */
static void
the_space_has_what_was_published (void **state)
{
  static const struct {
    const char *words[11];
    int64_t wanted[6][2];
    unsigned n;
  } cases[] = {
    { { "model", "llama3.1-405b", "topology", "dgx-h100", "nodes", "1024", "global-batch-size",
        "2048", NULL },
      { { WEFT_AXIS_tensor_model_parallel_size, 8 },
        { WEFT_AXIS_pipeline_model_parallel_size, 16 },
        { WEFT_AXIS_account_for_loss_in_pipeline_split, TRUE },
        { WEFT_AXIS_virtual_pipeline_model_parallel_size, 8 },
        { WEFT_AXIS_sequence_parallel, TRUE },
        { WEFT_AXIS_context_parallel_size, 1 } },
      6 },
    { { "model", "llama3.1-405b", "topology", "dgx-h100", "nodes", "2048", "seq-length", "131072",
        "global-batch-size", "128", NULL },
      { { WEFT_AXIS_tensor_model_parallel_size, 8 },
        { WEFT_AXIS_context_parallel_size, 16 },
        { WEFT_AXIS_pipeline_model_parallel_size, 16 } },
      3 },
    { { "model", "deepseek-v3", "topology", "dgx-h100", "nodes", "256", "global-batch-size", "2048",
        NULL },
      { { WEFT_AXIS_pipeline_model_parallel_size, 16 },
        { WEFT_AXIS_decoder_last_pipeline_num_layers, 1 },
        { WEFT_AXIS_expert_model_parallel_size, 64 },
        { WEFT_AXIS_expert_tensor_parallel_size, 1 },
        { WEFT_AXIS_recompute_method, WEFT_RECOMPUTE_BLOCK } },
      5 },
    { { "model", "mixtral-8x7b", "topology", "dgx-h100", "nodes", "4", "global-batch-size", "128",
        NULL },
      { { WEFT_AXIS_expert_model_parallel_size, 8 },
        { WEFT_AXIS_tensor_model_parallel_size, 2 },
        { WEFT_AXIS_overlap_p2p_comm, TRUE } },
      3 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_job job = open_job (cases[i].words);
    g_autoptr (GArray) space = weft_space_enumerate (&job);
    g_autoptr (GError) error = NULL;
    assert_true (has (space, cases[i].wanted, cases[i].n));
    for (guint k = 0; k < space->len; k += 97) {
      struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, k));
      if (!weft_job_check (&one, &error))
        fail_msg ("%s: %s", cases[i].words[1], error->message);
    }
  }
}

/* Returns the simulated step time of gpt3-175b on 256 GPUs with an interleaved schedule. `overlap`
 * lists further flags and their values, ended by NULL. */
static double
interleaved_seconds (const char *const *overlap)
{
  static const char *const common[] = { "model",
                                        "gpt3-175b",
                                        "topology",
                                        "dgx-h100",
                                        "nodes",
                                        "32",
                                        "global-batch-size",
                                        "128",
                                        "micro-batch-size",
                                        "1",
                                        "tensor-model-parallel-size",
                                        "2",
                                        "pipeline-model-parallel-size",
                                        "16",
                                        "virtual-pipeline-model-parallel-size",
                                        "6",
                                        "sequence-parallel",
                                        "true",
                                        "overlap-p2p-comm",
                                        "true",
                                        "batch-p2p-comm",
                                        "false",
                                        "batch-p2p-sync",
                                        "false",
                                        "use-distributed-optimizer",
                                        "true" };
  const char *words[G_N_ELEMENTS (common) + 10] = { NULL };
  struct weft_exec_options folded = { 0 };
  g_autoptr (GError) error = NULL;

  memcpy (words, common, sizeof common);
  for (unsigned i = 0; overlap[i]; i++)
    words[G_N_ELEMENTS (common) + i] = overlap[i];
  struct weft_job job = open_job (words);
  weft_job_derive (&job);
  g_autoptr (weft_plan) plan = weft_plan_new (&job, &error);
  if (!plan)
    fail_msg ("%s", error->message);
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_sim, plan, &folded, &error);
  assert_null (error);
  return t->seconds;
}

/* Overlap of data parallel communication in an interleaved pipeline saves time only if all stages
 * communicate at once ("aligned"). Otherwise reductions delay the last microbatch, all-gathers
 * delay the first microbatch, and a step gets slower. gathers-ahead = 1 avoids nine tenths of the
 * delay by all-gathers. Unless gradients are sharded, the search tries only aligned overlap. */
static void
overlap_of_a_pipeline_is_aligned (void **state)
{
  static const char *const words[] = { "model", "gpt3-175b", "topology",          "dgx-h100",
                                       "nodes", "32",        "global-batch-size", "256",
                                       NULL };
  static const char *const none[] = { NULL },
                           *const grad[] = { "overlap-grad-reduce", "true", NULL },
                           *const grad_aligned[] = { "overlap-grad-reduce", "true",
                                                     "grad-sync-func", "aligned", NULL },
                           *const param[] = { "overlap-grad-reduce",
                                              "true",
                                              "grad-sync-func",
                                              "aligned",
                                              "overlap-param-gather",
                                              "true",
                                              "gathers-ahead",
                                              "0",
                                              NULL },
                           *const ahead[] = { "overlap-grad-reduce",
                                              "true",
                                              "grad-sync-func",
                                              "aligned",
                                              "overlap-param-gather",
                                              "true",
                                              "gathers-ahead",
                                              "1",
                                              NULL },
                           *const param_aligned[] = { "overlap-grad-reduce",
                                                      "true",
                                                      "grad-sync-func",
                                                      "aligned",
                                                      "overlap-param-gather",
                                                      "true",
                                                      "align-param-gather",
                                                      "true",
                                                      NULL };
  struct weft_job job = open_job (words);
  g_autoptr (GArray) space = weft_space_enumerate (&job);
  uint32_t n_aligned = 0;

  (void) state;
  for (guint i = 0; i < space->len; i++) {
    struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, i));
    const union weft_strategy *s = &one.strategy;
    gboolean once = weft_job_sharding (&one) < WEFT_SHARD_GRADS;
    assert_int_equal (s->grad_sync_func == WEFT_SYNC_ALIGNED,
                      s->overlap_grad_reduce && once && s->pipeline_model_parallel_size > 1);
    if (once)
      assert_int_equal (s->align_param_gather,
                        s->overlap_param_gather && weft_job_interleaves (&one));
    n_aligned += s->align_param_gather != 0;
  }
  assert_true (n_aligned > 10);
  double without = interleaved_seconds (none), aligned = interleaved_seconds (grad_aligned);
  assert_true (interleaved_seconds (grad) > without && aligned < without);
  double stalled = interleaved_seconds (param) - without;
  assert_true (stalled > 0 && interleaved_seconds (ahead) < without + 0.1 * stalled);
  assert_true (interleaved_seconds (param_aligned) < aligned);
}

/* 27 layers, which few numbers of stages divide. For each of 1 to 27 stages, the search space must
 * have a strategy whose stages have at least one layer each. */
static void
layers_that_no_pipeline_divides_are_spread_over_all_stages (void **state)
{
  (void) state;
  for (uint32_t p = 1; p <= 27; p++) {
    g_autofree char *stages = g_strdup_printf ("%u", p), *gpus = g_strdup_printf ("%u", 8 * p);
    const char *const words[] = { "model",
                                  "llama-nano",
                                  "num-layers",
                                  "27",
                                  "topology",
                                  "dgx-h100",
                                  "gpus",
                                  gpus,
                                  "global-batch-size",
                                  "64",
                                  "pipeline-model-parallel-size",
                                  stages,
                                  NULL };
    struct weft_job job = open_job (words);
    g_autoptr (GArray) space = weft_space_enumerate (&job);
    assert_true (space->len > 0);
    for (guint i = 0; i < space->len; i++) {
      struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, i));
      uint32_t ranks[27], sum = 0;
      for (uint32_t r = 0; r < p; r++)
        ranks[r] = r;
      g_autofree char *problem = weft_job_stages_problem (&one);
      assert_null (problem);
      if (weft_job_chunks (&one) > 1)
        continue;
      g_autofree uint32_t *layers = weft_job_stage_layers (&one, ranks, p);
      for (uint32_t r = 0; r < p; r++) {
        assert_in_range (layers[r], 1, 27);
        sum += layers[r];
      }
      assert_int_equal (sum, 27);
    }
  }
}

/* The search uses only wrappers and parallel axes that the stack file lists. llm-foundry has only
 * data parallelism, torchtitan all axes; both have FSDP2. */
static void
only_what_the_stack_has_is_searched (void **state)
{
  static const char *const stacks[] = { "llm-foundry", "torchtitan" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (stacks); i++) {
    const char *const words[] = { "stack", stacks[i],  "model",    "llama-nano",        "gpus",
                                  "4",     "topology", "dgx-h100", "global-batch-size", "16",
                                  NULL };
    struct weft_job job = open_job (words);
    assert_int_equal (job.strategy.distributed_config, WEFT_FSDP2);
    g_autoptr (weft_search) search = search_all (&job, 10);
    assert_true (search->by_fate[WEFT_FATE_SIMULATED] > 0);
    for (uint32_t k = 0; k < search->by_fate[WEFT_FATE_SIMULATED]; k++) {
      struct weft_job one = weft_space_job (&job, &search->candidate[k].choice);
      assert_int_equal (one.strategy.distributed_config, WEFT_FSDP2);
      assert_false (one.strategy.use_megatron_fsdp);
      if (i == 0)
        assert_int_equal (one.strategy.tensor_model_parallel_size *
                              one.strategy.pipeline_model_parallel_size *
                              one.strategy.context_parallel_size,
                          1);
    }
  }
}

static void
a_model_that_fits_nowhere_is_infeasible (void **state)
{
  static const char *const big[] = { "model", "gpt3-175b",         "topology", "l40s-pcie", "gpus",
                                     "8",     "global-batch-size", "8",        NULL };
  struct weft_job job = open_job (big);
  struct weft_search_options options = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_search) search = weft_search_run (&job, &options, &error);

  (void) state;
  assert_non_null (error);
  assert_int_equal (error->code, WEFT_ERROR_INFEASIBLE);
  assert_int_equal (weft_error_exit_status (error), 4);
  assert_int_equal (search->by_fate[WEFT_FATE_MEMORY] + search->by_fate[WEFT_FATE_RULE], search->n);
}

/* Three pipeline stages do not divide eight GPUs, whatever else a strategy chooses. */
static void
where_every_strategy_breaks_a_rule_the_rule_is_named (void **state)
{
  static const char *const thirds[] = { "model",
                                        "llama3-8b",
                                        "topology",
                                        "dgx-h100",
                                        "gpus",
                                        "8",
                                        "global-batch-size",
                                        "32",
                                        "pipeline-model-parallel-size",
                                        "3",
                                        NULL };
  struct weft_job job = open_job (thirds);
  struct weft_search_options options = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_search) search = weft_search_run (&job, &options, &error);

  (void) state;
  assert_int_equal (search->by_fate[WEFT_FATE_RULE], search->n);
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE));
  if (!strstr (error->message, "most often rule world: gpus = 8"))
    fail_msg ("found \"%s\"", error->message);
}

/* Llama 3 70B needs 16 bytes per parameter and activations, and so at least 14 H100 GPUs. On fewer
 * the search names the strategy that needs least memory, and a sufficient number of GPUs. */
static void
where_nothing_fits_the_closest_strategy_and_enough_gpus_are_named (void **state)
{
  static const char *const big[] = { "model", "llama3-70b",        "topology", "dgx-h100", "gpus",
                                     "4",     "global-batch-size", "32",       NULL };
  struct weft_job job = open_job (big);
  struct weft_search_options options = { .near_miss = TRUE };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_search) search = weft_search_run (&job, &options, &error);

  (void) state;
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE));
  assert_non_null (search->closest);
  assert_true ((double) search->closest->bytes > job.cluster.f.gpu_memory);
  for (uint32_t i = 0; i < search->n_listed; i++)
    if (search->candidate[i].weighed)
      assert_true (search->candidate[i].bytes >= search->closest->bytes);
  assert_in_range (search->enough_gpus, 14, 64);
  assert_true (weft_cluster_resize (&job.cluster, search->enough_gpus, 0, NULL));
  g_autoptr (weft_search) larger = search_all (&job, 1);
  assert_int_equal (larger->by_fate[WEFT_FATE_SIMULATED], 1);
}

/* memory-headroom is the share of GPU memory that must stay free. With one half, no ranked strategy
 * uses more than half of the memory; without headroom, some strategy does. */
static void
memory_headroom_stays_free (void **state)
{
  struct weft_job job = open_job (real);

  (void) state;
  job.cluster.f.gpu_memory = 16e9;
  g_autoptr (weft_search) all = search_all (&job, 10);
  job.train.memory_headroom = 0.5;
  g_autoptr (weft_search) half = search_all (&job, 10);
  uint64_t most = 0;
  for (uint32_t i = 0; i < all->by_fate[WEFT_FATE_SIMULATED]; i++)
    most = MAX (most, all->candidate[i].bytes);
  assert_true (most > 8000000000u);
  for (uint32_t i = 0; i < half->by_fate[WEFT_FATE_SIMULATED]; i++)
    assert_true (half->candidate[i].bytes <= 8000000000u);
}

struct patience {
  unsigned asked, most;
};

static gboolean
loses_patience (void *user)
{
  struct patience *p = user;

  return ++p->asked > p->most;
}

/* A search that is stopped at any moment returns the candidates simulated so far, best first. */
static void
a_stopped_search_keeps_its_ranking (void **state)
{
  struct weft_job job = open_job (real);
  struct patience patience = { .most = G_MAXUINT };
  struct weft_search_options options = { .near_miss = TRUE,
                                         .stop = loses_patience,
                                         .user = &patience };
  g_autoptr (weft_search) whole = weft_search_run (&job, &options, NULL);
  unsigned some = 0, all = patience.asked;

  (void) state;
  assert_false (whole->stopped);
  for (unsigned early = 1; early < all; early *= 3) {
    unsigned most = all - early;
    g_autoptr (GError) error = NULL;
    patience = (struct patience){ .most = most };
    g_autoptr (weft_search) search = weft_search_run (&job, &options, &error);
    uint32_t n = search->by_fate[WEFT_FATE_SIMULATED];
    assert_true (n > 0 || error);
    assert_int_equal (search->stopped, patience.asked > most);
    for (uint32_t i = 1; i < n; i++)
      assert_true (search->candidate[i - 1].seconds <= search->candidate[i].seconds);
    some += search->stopped && n > 0;
  }
  assert_true (some > 0);
}

/* Finalists of a search (simulated candidates) fit in memory. Their programs are freed, because
 * those of ten finalists on a large cluster took gigabytes. */
static void
finalists_fit_and_were_proved (void **state)
{
  struct weft_job job = open_job (real);
  g_autoptr (weft_search) search = search_all (&job, 10);

  (void) state;
  for (uint32_t i = 0; i < search->by_fate[WEFT_FATE_SIMULATED]; i++) {
    g_autoptr (GError) error = NULL;
    const struct weft_candidate *c = &search->candidate[i];
    struct weft_job one = weft_space_job (&job, &c->choice);
    g_autoptr (weft_plan) plan = weft_plan_new (&one, &error);
    assert_non_null (plan);
    assert_true (weft_plan_fits (plan));
    assert_int_equal (c->bytes, weft_plan_worst_bytes (plan));
    for (uint32_t role = 0; role < c->plan->n_roles; role++)
      assert_null (c->plan->role[role]);
  }
}

/* A search that has simulated many times the ops that it should ends as soon as no other strategy
 * can be more than 4 % faster. The fastest strategy of all is at most as much faster as it says. */
static void
long_steps_have_fewer_finalists (void **state)
{
  struct weft_job job = open_job (real);
  struct weft_search_options options = { .most_ops = 1 };
  g_autoptr (weft_search) few = weft_search_run (&job, &options, NULL), all = search_all (&job, 10);

  (void) state;
  assert_in_range (few->by_fate[WEFT_FATE_SIMULATED], 1, 9);
  assert_true (few->gap <= 0.04);
  assert_true (few->candidate[0].seconds * (1 - few->gap) <= all->candidate[0].seconds);
}

/* Lower bounds rule out most of the 2,946 strategies. */
static void
few_strategies_of_fsdp2_need_a_program (void **state)
{
  static const char *const words[] = {
    "model", "llama3-8b", "stack",    "torchtitan", "nodes", "8", "global-batch-size",
    "64",    "topology",  "dgx-h100", NULL
  };
  struct weft_job job = open_job (words);
  g_autoptr (weft_search) search = search_all (&job, 10);

  (void) state;
  assert_true (search->n > 2000);
  assert_in_range (search->plans.by_depth[WEFT_PLAN_PRICED], 10, 200);
  assert_in_range (search->plans.by_depth[WEFT_PLAN_PLACED], 10, 60);
  assert_in_range (search->plans.by_depth[WEFT_PLAN_PROVED], 10, 60);
  assert_in_range (search->plans.of_layers, 1, 100);
}

static void
plan_prints_the_document_of_the_contract (void **state)
{
  const char *argv[] = {
    WEFT_BINARY,           "plan", "--model",     "llama-nano", "--topology", "cpu", "--gpus", "4",
    "--global-batch-size", "16",   "--finalists", "3",          "--json",     NULL
  };
  static const char *const numbers[] = { "space", "pruned", "simulated", "wall_s", "gap", NULL };
  static const char *const parts[] = { "strategy", "train", "iteration", "memory", NULL };
  g_autofree char *out = NULL, *err = NULL;
  g_autoptr (JsonParser) parser = json_parser_new ();
  int status;

  (void) state;
  assert_true (g_spawn_sync (NULL, (char **) argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &out, &err,
                             &status, NULL));
  assert_int_equal (status, 0);
  assert_true (json_parser_load_from_data (parser, out, -1, NULL));
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.plan/1");
  for (int i = 0; numbers[i]; i++)
    assert_true (json_object_has_member (root, numbers[i]));
  JsonArray *best = json_object_get_array_member (root, "best");
  assert_int_equal (json_array_get_length (best), 3);
  for (int i = 0; parts[i]; i++)
    assert_true (json_object_has_member (json_array_get_object_element (best, 0), parts[i]));
  assert_int_equal (json_object_get_int_member (json_array_get_object_element (best, 2), "rank"),
                    3);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (no_strategy_of_the_space_beats_the_answer),
  cmocka_unit_test (bound_is_below_clock_and_clock_below_simulation),
  cmocka_unit_test (short_steps_tell_time_and_memory_of_long_ones),
  cmocka_unit_test (the_order_is_by_simulated_time_and_counts_add_up),
  cmocka_unit_test (a_knob_that_was_given_stays),
  cmocka_unit_test (the_whole_space_contains_the_usual_one),
  cmocka_unit_test (both_orders_are_searched_where_links_differ),
  cmocka_unit_test (a_list_limits_an_axis),
  cmocka_unit_test (the_space_has_what_was_published),
  cmocka_unit_test (overlap_of_a_pipeline_is_aligned),
  cmocka_unit_test (layers_that_no_pipeline_divides_are_spread_over_all_stages),
  cmocka_unit_test (only_what_the_stack_has_is_searched),
  cmocka_unit_test (a_model_that_fits_nowhere_is_infeasible),
  cmocka_unit_test (where_every_strategy_breaks_a_rule_the_rule_is_named),
  cmocka_unit_test (where_nothing_fits_the_closest_strategy_and_enough_gpus_are_named),
  cmocka_unit_test (memory_headroom_stays_free),
  cmocka_unit_test (a_stopped_search_keeps_its_ranking),
  cmocka_unit_test (finalists_fit_and_were_proved),
  cmocka_unit_test (long_steps_have_fewer_finalists),
  cmocka_unit_test (few_strategies_of_fsdp2_need_a_program),
  cmocka_unit_test (plan_prints_the_document_of_the_contract),
};

WEFT_TESTS (tests, .seconds = 30)
