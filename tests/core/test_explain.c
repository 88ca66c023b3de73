/* weft explain prints formulas with their values, one per row. The values must add up to the
 * numbers of the plan and the report. */
#include "core/report/explain.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>
static const char *const jobs[] = {
  "model=llama3-8b topology=dgx-h100 gpus=8 num_layers=4 use_distributed_optimizer=true",
  "model=llama3-8b topology=dgx-h100 gpus=16 num_layers=4 pipeline_model_parallel_size=2 "
  "global_batch_size=32 use_megatron_fsdp=true zero_dp_strategy=3",
  "model=gpt2 topology=dgx-a100 gpus=8 grad_reduce_in_fp32=true overlap_grad_reduce=true",
  "model=gpt2-nano topology=cpu gpus=4 pipeline_model_parallel_size=4 global_batch_size=8",
  "model=llama-nano topology=cpu gpus=2 use_megatron_fsdp=true zero_dp_strategy=2",
  "model=gpt2-nano topology=l40s-pcie gpus=1",
};

struct known {
  weft_plan *plan;
  weft_timeline *timeline;
  weft_report *report;
};

static struct known
know (const char *words)
{
  g_autoptr (GError) error = NULL;
  struct known k = { .plan = weft_test_plan ("%s", words) };

  k.timeline = weft_exec_run (&weft_exec_sim, k.plan, &(struct weft_exec_options){ 0 }, &error);
  assert_non_null (k.timeline);
  k.report = weft_report_new (k.plan, k.timeline);
  return k;
}

static void
forget (struct known *k)
{
  weft_report_free (k->report);
  weft_timeline_free (k->timeline);
  weft_plan_free (k->plan);
}

static void
assert_close (double found, double wanted)
{
  if (!(fabs (found - wanted) <= 1e-12 * fabs (wanted)))
    fail_msg ("found %.17g, wanted %.17g", found, wanted);
}

static const struct weft_explain_row *
row_at (const weft_explain *e, enum weft_explain_topic topic, guint i)
{
  return &g_array_index (e->section[topic].row, struct weft_explain_row, i);
}

static const struct weft_explain_row *
row_of (const weft_explain *e, enum weft_explain_topic topic, const char *what)
{
  for (guint i = 0; i < e->section[topic].row->len; i++)
    if (strcmp (row_at (e, topic, i)->what, what) == 0)
      return row_at (e, topic, i);
  fail_msg ("no row \"%s\"", what);
  return NULL;
}

/* The sum of all rows of one section of `weft explain`, without the rows that are subtotals. */
static double
total (const weft_explain *e, enum weft_explain_topic topic)
{
  double sum = 0;

  for (guint i = 0; i < e->section[topic].row->len; i++)
    if (!row_at (e, topic, i)->sum)
      sum += row_at (e, topic, i)->value * MAX (1, row_at (e, topic, i)->count);
  return sum;
}

static void
each_role_of_each_job (void (*check) (const struct known *k, const weft_explain *e))
{
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    struct known k = know (jobs[i]);
    for (uint32_t role = 0; role < k.plan->n_roles; role++) {
      g_autoptr (weft_explain) e = weft_explain_new (k.report, role);
      check (&k, e);
    }
    forget (&k);
  }
}

/* ------------------------------------------------------------------- the sums */

static void
check_state (const struct known *k, const weft_explain *e)
{
  const struct weft_memory *memory = &k->plan->memory[e->role];
  const uint64_t *kind = memory->permanent[WEFT_POOL_DEVICE];
  double wanted = kind[WEFT_BUF_WEIGHTS] + kind[WEFT_BUF_GRADIENTS] + kind[WEFT_BUF_OPTIMIZER];

  assert_true (total (e, WEFT_EXPLAIN_STATE) == wanted);
  assert_true (row_of (e, WEFT_EXPLAIN_STATE, "model state")->value == wanted);
}

static void
model_state_is_what_the_memory_plan_keeps (void **state)
{
  (void) state;
  each_role_of_each_job (check_state);
}

static void
check_memory (const struct known *k, const weft_explain *e)
{
  double peak = k->report->role[e->role].peak_bytes;

  assert_true (total (e, WEFT_EXPLAIN_MEMORY) == peak);
  assert_true (row_of (e, WEFT_EXPLAIN_MEMORY, "peak")->value == peak);
}

static void
memory_adds_up_to_the_reported_peak (void **state)
{
  (void) state;
  each_role_of_each_job (check_memory);
}

static void
check_seconds (const struct known *k, const weft_explain *e)
{
  const weft_program *p = k->plan->role[e->role];
  double moved = 0, computed = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    *(weft_op_info[p->op[op].kind].class == WEFT_CLASS_COMPUTE ? &computed : &moved) +=
        k->plan->seconds[e->role][op];
  assert_close (row_of (e, WEFT_EXPLAIN_TRANSFERS, "all transfers")->value, moved);
  assert_close (total (e, WEFT_EXPLAIN_TRANSFERS), moved);
  assert_close (row_of (e, WEFT_EXPLAIN_KERNELS, "all kernels")->value, computed);
  assert_close (total (e, WEFT_EXPLAIN_KERNELS),
                row_of (e, WEFT_EXPLAIN_KERNELS, "layer and microbatch")->value);
}

static void
seconds_are_those_that_the_plan_gives_its_ops (void **state)
{
  (void) state;
  each_role_of_each_job (check_seconds);
}

static void
check_step (const struct known *k, const weft_explain *e)
{
  double sum = row_of (e, WEFT_EXPLAIN_STEP, "kernels")->value +
               row_of (e, WEFT_EXPLAIN_STEP, "exposed transfers")->value +
               row_of (e, WEFT_EXPLAIN_STEP, "idle")->value;

  assert_true (row_of (e, WEFT_EXPLAIN_STEP, "step")->value == k->timeline->seconds);
  assert_true (fabs (sum - k->timeline->seconds) < 1e-9 * sum);
  assert_true (row_of (e, WEFT_EXPLAIN_STEP, "MFU")->value == k->report->iteration.mfu);
}

static void
the_step_is_the_sum_of_its_parts (void **state)
{
  (void) state;
  each_role_of_each_job (check_step);
}

/* Every tensor of the model belongs to one pipeline stage, except a tied embedding, which belongs
 * to the first and the last stage. */
static void
stages_hold_the_parameters_of_the_model (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    struct known k = know (jobs[i]);
    const union weft_model *m = &k.plan->job.model;
    double sum = 0;
    for (uint32_t role = 0; role < k.plan->n_roles; role++) {
      g_autoptr (weft_explain) e = weft_explain_new (k.report, role);
      sum += row_of (e, WEFT_EXPLAIN_PARAMETERS, "this stage")->value;
    }
    if (m->share_embeddings_and_output_weights && k.plan->n_roles > 1)
      sum -= (double) m->vocab_size * m->hidden_size;
    assert_true (sum == (double) weft_model_parameters (m));
    forget (&k);
  }
}

/* ------------------------------------------------------------------- sharding */

static void
a_job_finds_its_own_state_among_the_levels (void **state)
{
  (void) state;
  for (int level = 0; level < 4; level++) {
    g_autofree char *words =
        g_strdup_printf ("model=gpt2 topology=dgx-h100 gpus=8 use_megatron_fsdp=true "
                         "zero_dp_strategy=%d grad_reduce_in_fp32=true global_batch_size=32",
                         level);
    struct known k = know (words);
    g_autoptr (weft_explain) e = weft_explain_new (k.report, 0);
    assert_int_equal (e->section[WEFT_EXPLAIN_LEVELS].row->len, 4);
    assert_true (row_at (e, WEFT_EXPLAIN_LEVELS, level)->value ==
                 row_of (e, WEFT_EXPLAIN_STATE, "model state")->value);
    for (guint i = 0; i < 3; i++)
      assert_true (row_at (e, WEFT_EXPLAIN_LEVELS, i)->value >
                   row_at (e, WEFT_EXPLAIN_LEVELS, i + 1)->value);
    forget (&k);
  }
}

static void
one_replica_has_no_levels_and_one_stage_no_bubble (void **state)
{
  struct known k = know (jobs[G_N_ELEMENTS (jobs) - 1]);
  g_autoptr (weft_explain) e = weft_explain_new (k.report, 0);

  (void) state;
  assert_int_equal (e->section[WEFT_EXPLAIN_LEVELS].row->len, 0);
  assert_int_equal (e->section[WEFT_EXPLAIN_PIPELINE].row->len, 0);
  forget (&k);
}

/* ------------------------------------------------------------------ by hand */

/* The formulas that weft explain prints contain the numbers of the job, here gpt2-nano on 4
 * pipeline stages, one replica, 8 microbatches (jobs[3]). */
static void
formulas_carry_the_numbers_of_the_job (void **state)
{
  struct known k = know (jobs[3]);
  g_autoptr (weft_explain) e = weft_explain_new (k.report, 0);

  (void) state;
  assert_string_equal (row_of (e, WEFT_EXPLAIN_BATCH, "replicas")->formula,
                       "4 GPUs / (tensor 1 x pipeline 4 x context 1)");
  assert_string_equal (row_of (e, WEFT_EXPLAIN_BATCH, "microbatches")->formula,
                       "8 sequences / (1 replicas x 1 sequences)");
  assert_true (row_of (e, WEFT_EXPLAIN_PIPELINE, "bubble over work")->value == 3.0 / 8);
  assert_string_equal (row_of (e, WEFT_EXPLAIN_PIPELINE, "bubble of the step")->formula,
                       "(p - 1) / (m + p - 1) = 3 / 11");
  assert_string_equal (row_of (e, WEFT_EXPLAIN_PARAMETERS, "qkv.weight")->formula, "192 x 64");
  assert_non_null (
      strstr (row_of (e, WEFT_EXPLAIN_MEMORY, "activations")->formula, "4 microbatches in flight"));
  forget (&k);
}

static void
the_terms_of_a_kernel_give_its_price (void **state)
{
  struct known k = know (jobs[0]);
  const weft_program *p = k.plan->role[0];
  struct weft_cost cost = weft_plan_cost (k.plan);
  uint32_t products = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind == WEFT_OP_RELEASE ||
        weft_op_info[p->op[op].kind].class != WEFT_CLASS_COMPUTE)
      continue;
    struct weft_cost_parts c = weft_cost_split (&cost, p->op[op].kind, weft_op_shape (p, op));
    assert_true (c.gap + fmax (c.work, c.memory) == k.plan->seconds[0][op]);
    assert_close (c.memory, c.bytes / c.bandwidth);
    if (c.waves > 0)
      assert_close (c.work, c.flops / (c.rate * c.waves * c.tiles * c.depth) + c.sums);
    if (c.share > 0)
      assert_close (c.work, c.flops / (c.rate * c.share));
    products += c.waves > 0;
  }
  assert_true (products > 12);
  forget (&k);
}

/* ---------------------------------------------------------------- the command */

static char *
weft (const char *words, int *status)
{
  g_autofree char *line = g_strdup_printf ("%s explain %s", WEFT_BINARY, words);
  g_autofree char *err = NULL;
  char *out = NULL;
  int wait = 0;

  assert_true (g_spawn_command_line_sync (line, &out, &err, &wait, NULL));
  *status = WEXITSTATUS (wait);
  return out;
}

static void
the_command_prints_a_page_or_one_document (void **state)
{
  int status;
  g_autofree char *page = weft ("--model gpt2-nano --topology dgx-h100 --gpus 2", &status);
  g_autofree char *text = weft ("--model gpt2-nano --topology dgx-h100 --gpus 2 --json", &status);
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  assert_int_equal (status, 0);
  assert_non_null (strstr (page, "\nModel state  (Rajbhandari"));
  assert_true (json_parser_load_from_data (parser, text, -1, NULL));
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.explain/1");
  assert_int_equal (json_array_get_length (json_object_get_array_member (root, "sections")),
                    WEFT_N_EXPLAIN);
}

static void
a_stage_that_is_not_there_is_refused (void **state)
{
  int status;
  g_autofree char *out = weft ("--model gpt2-nano --topology dgx-h100 --gpus 2 --role 1", &status);

  (void) state;
  assert_int_equal (status, 2);
  assert_string_equal (out, "");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (model_state_is_what_the_memory_plan_keeps),
  cmocka_unit_test (memory_adds_up_to_the_reported_peak),
  cmocka_unit_test (seconds_are_those_that_the_plan_gives_its_ops),
  cmocka_unit_test (the_step_is_the_sum_of_its_parts),
  cmocka_unit_test (stages_hold_the_parameters_of_the_model),
  cmocka_unit_test (a_job_finds_its_own_state_among_the_levels),
  cmocka_unit_test (one_replica_has_no_levels_and_one_stage_no_bubble),
  cmocka_unit_test (formulas_carry_the_numbers_of_the_job),
  cmocka_unit_test (the_terms_of_a_kernel_give_its_price),
  cmocka_unit_test (the_command_prints_a_page_or_one_document),
  cmocka_unit_test (a_stage_that_is_not_there_is_refused),
};

WEFT_TESTS (tests)
