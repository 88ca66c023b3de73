/* The report: its numbers for steps made by hand, where every number is known, and its HTML page
 * and JSON document for a real step. */
#include "core/exec/exec.h"
#include "core/report/report.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------- plans made by hand */

/* One op of a step made by hand, with its begin and end in seconds. */
struct made {
  enum weft_op_kind kind;
  enum weft_lane lane;
  enum weft_phase phase;
  uint16_t micro;
  double begin, end;
};

/* A program of the ops in `ops`. Each kernel is a matmul of 8 x 4 x 2; each other op moves 1000
 * fp32 numbers. */
static weft_program *
program_of (const struct made *ops, unsigned n, uint32_t role, uint32_t n_roles)
{
  g_autoptr (weft_builder) b = weft_builder_new (role, n_roles);

  for (unsigned i = 0; i < n; i++) {
    struct weft_op row = { .kind = ops[i].kind,
                           .lane = ops[i].lane,
                           .phase = ops[i].phase,
                           .micro = ops[i].micro,
                           .layer = WEFT_NO_LAYER,
                           .name = weft_build_name (b, "op") };
    struct weft_shape product = { .dim = { 8, 4, 2 }, .dtype = WEFT_FP32 };
    struct weft_shape moved = { .dim = { 1000 }, .dtype = WEFT_FP32 };
    weft_build_op (b, &row, ops[i].lane == WEFT_LANE_GPU ? &product : &moved);
  }
  return weft_builder_freeze (b);
}

/* Returns a plan of gpt2 without programs: one sequence of 1024 tokens per step; one GPU per stage
 * with a peak of 1 TFLOP/s in fp32. */
static weft_plan *
empty_plan (uint32_t n_roles)
{
  weft_plan *plan = g_new0 (weft_plan, 1);

  assert_true (weft_model_load ("gpt2", &plan->job.model, NULL, NULL));
  plan->job.train.global_batch_size = 1;
  plan->job.train.precision = WEFT_FP32;
  weft_table_defaults (&weft_cluster_table, plan->job.cluster.f.at);
  plan->job.cluster.n_gpus = plan->job.cluster.n_nodes = n_roles;
  plan->job.cluster.f.gpu_fp32_spec = 1e12;
  plan->job.cluster.f.gpu_bf16_spec = 4e12;
  plan->mesh = weft_mesh_make (1, 1, 1, n_roles);
  plan->fabric = weft_fabric_make (&plan->job.cluster);
  plan->n_roles = n_roles;
  plan->role = g_new0 (weft_program *, n_roles);
  plan->memory = g_new0 (struct weft_memory, n_roles);
  plan->seconds = g_new0 (double *, n_roles);
  return plan;
}

static weft_timeline *
empty_timeline (uint32_t n, double seconds)
{
  weft_timeline *t = g_new0 (weft_timeline, 1);

  t->n = n;
  t->rank = g_new0 (uint32_t, n);
  t->role = g_new0 (uint32_t, n);
  t->begin = g_new0 (double *, n);
  t->end = g_new0 (double *, n);
  t->seconds = seconds;
  t->executor = "hand";
  t->engine = "";
  return t;
}

static void
fill_row (weft_timeline *t, uint32_t row, const struct made *ops, unsigned n)
{
  t->begin[row] = g_new0 (double, n + 1);
  t->end[row] = g_new0 (double, n + 1);
  for (unsigned i = 0; i < n; i++) {
    t->begin[row][i] = ops[i].begin;
    t->end[row][i] = ops[i].end;
  }
}

struct step {
  weft_plan *plan;
  weft_timeline *timeline;
  weft_report *report;
};

static struct step
step_of (const struct made *ops, unsigned n, double seconds)
{
  struct step s = { empty_plan (1), empty_timeline (1, seconds), NULL };

  s.plan->role[0] = program_of (ops, n, 0, 1);
  fill_row (s.timeline, 0, ops, n);
  s.report = weft_report_new (s.plan, s.timeline);
  return s;
}

static void
step_free (struct step *s)
{
  weft_report_free (s->report);
  weft_timeline_free (s->timeline);
  weft_plan_free (s->plan);
}

#define KERNEL(begin, end)                                                                         \
  {                                                                                                \
    WEFT_OP_MATMUL, WEFT_LANE_GPU, WEFT_PHASE_FORWARD, 0, begin, end                               \
  }
#define REDUCE(begin, end)                                                                         \
  {                                                                                                \
    WEFT_OP_ALL_REDUCE, WEFT_LANE_DP, WEFT_PHASE_REDUCE, WEFT_NO_MICRO, begin, end                 \
  }
#define LOAD(begin, end)                                                                           \
  {                                                                                                \
    WEFT_OP_COPY_IN, WEFT_LANE_H2D, WEFT_PHASE_FORWARD, 0, begin, end                              \
  }

static void
near (double found, double wanted)
{
  if (!(fabs (found - wanted) <= 1e-12 * fmax (1, fabs (wanted))))
    fail_msg ("found %.17g, wanted %.17g", found, wanted);
}

/* ------------------------------------------------------------------------ waits */

/* Returns a step in which op `op` depends on op `need` and also waits for op `on`, whose memory it
 * reuses. */
static struct step
step_that_waits (const struct made *ops, unsigned n, uint32_t op, uint32_t need, uint32_t on)
{
  struct step s = step_of (ops, n, 10);
  const uint32_t pairs[2][2] = { { need, op }, { on, op } };
  struct weft_memory *memory = &s.plan->memory[0];

  weft_report_free (s.report);
  weft_program_add_deps (s.plan->role[0], pairs, 2);
  memory->n_wait = 1;
  memory->wait = g_new (struct weft_memory_wait, 1);
  memory->wait[0] = (struct weft_memory_wait){ op, on };
  s.report = weft_report_new (s.plan, s.timeline);
  return s;
}

/* In this step, the last kernel waits for a load and, because it reuses memory, for a reduction.
 * The kernel before it ends at second 2. The memory stall is the time from the end of the load (or
 * from second 2, if later) to the end of the reduction. */
static void
a_wait_for_memory_lasts_from_all_else_to_its_end (void **state)
{
  static const struct {
    double load, reduce, held;
  } cases[] = { { 3, 7, 4 }, { 1, 7, 5 }, { 8, 7, 0 }, { 3, 9, 6 }, { 3, 2, 0 } };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (cases); i++) {
    const struct made ops[] = { KERNEL (0, 2), LOAD (0, cases[i].load),
                                REDUCE (1, cases[i].reduce), KERNEL (9, 10) };
    struct step s = step_that_waits (ops, G_N_ELEMENTS (ops), 3, 1, 2);
    const struct weft_memory_stalls *stalls = &s.report->role[0].stalls;
    assert_int_equal (stalls->n_op, 1);
    assert_int_equal (stalls->n_kernel, 1);
    near (stalls->held_s, cases[i].held);
    assert_int_equal (stalls->cause->len, 1);
    const struct weft_memory_stall *w = &g_array_index (stalls->cause, struct weft_memory_stall, 0);
    assert_int_equal (w->lane, WEFT_LANE_DP);
    assert_int_equal (w->kind, WEFT_OP_ALL_REDUCE);
    assert_int_equal (w->ops, 1);
    near (w->held_s, cases[i].held);
    step_free (&s);
  }
}

/* Measured times may contradict the plan. Here a kernel begins at second 5, although the reduction
 * for which it should wait ends at second 7. The memory stall ends when the kernel begins. */
static void
what_has_begun_is_not_held (void **state)
{
  const struct made ops[] = { KERNEL (0, 2), LOAD (0, 3), REDUCE (1, 7), KERNEL (5, 10) };
  struct step s = step_that_waits (ops, G_N_ELEMENTS (ops), 3, 1, 2);

  (void) state;
  near (s.report->role[0].stalls.held_s, 2);
  step_free (&s);
}

/* ---------------------------------------------------------------------- overlap */

static void
communication_behind_kernels_is_not_exposed (void **state)
{
  const struct made ops[] = { KERNEL (0, 4), KERNEL (4, 10), REDUCE (2, 6) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 10);
  const struct weft_report_overlap *o = &s.report->overlap;

  (void) state;
  near (o->compute_s, 10);
  near (o->communication_s, 4);
  near (o->exposed_communication_s, 0);
  near (o->overlap_fraction, 1);
  near (o->bubble_s, 0);
  near (s.report->axis[WEFT_LANE_DP].busy_s, 4);
  near (s.report->axis[WEFT_LANE_DP].exposed_s, 0);
  near (s.report->axis[WEFT_LANE_DP].bytes, 4000);
  step_free (&s);
}

static void
communication_after_kernels_is_exposed (void **state)
{
  const struct made ops[] = { KERNEL (0, 4), REDUCE (4, 7) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 10);
  const struct weft_report_overlap *o = &s.report->overlap;

  (void) state;
  near (o->compute_s, 4);
  near (o->exposed_communication_s, 3);
  near (o->overlap_fraction, 0);
  near (o->bubble_s, 3);
  near (o->bubble_fraction, 0.3);
  step_free (&s);
}

static void
two_axes_at_once_count_once (void **state)
{
  const struct made ops[] = { KERNEL (0, 4), REDUCE (2, 6), LOAD (5, 8) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 8);
  const struct weft_report_overlap *o = &s.report->overlap;

  (void) state;
  near (o->communication_s, 6);
  near (o->exposed_communication_s, 4);
  near (o->overlap_fraction, 1.0 / 3);
  near (s.report->axis[WEFT_LANE_DP].exposed_s, 2);
  near (s.report->axis[WEFT_LANE_H2D].exposed_s, 3);
  near (o->bubble_s, 0);
  step_free (&s);
}

static void
kernels_with_gaps_hide_only_what_they_cover (void **state)
{
  const struct made ops[] = { KERNEL (1, 2), KERNEL (3, 4), KERNEL (5, 6), REDUCE (0, 7) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 8);

  (void) state;
  near (s.report->overlap.exposed_communication_s, 4);
  near (s.report->overlap.bubble_s, 1);
  step_free (&s);
}

static void
a_row_counts_as_the_ranks_it_stands_for (void **state)
{
  const struct made first[] = { KERNEL (0, 8) }, second[] = { KERNEL (0, 2) },
                    third[] = { KERNEL (0, 4) };
  struct step s = { empty_plan (2), empty_timeline (3, 8), NULL };

  (void) state;
  s.plan->role[0] = program_of (first, 1, 0, 2);
  s.plan->role[1] = program_of (second, 1, 1, 2);
  fill_row (s.timeline, 0, first, 1);
  fill_row (s.timeline, 1, second, 1);
  fill_row (s.timeline, 2, third, 1);
  s.timeline->role[1] = s.timeline->role[2] = 1;
  s.report = weft_report_new (s.plan, s.timeline);
  near (s.report->overlap.compute_s, (8 + (2 + 4) / 2.0) / 2);
  step_free (&s);
}

static void
nothing_divides_by_zero (void **state)
{
  struct step s = step_of (NULL, 0, 0);

  (void) state;
  near (s.report->overlap.overlap_fraction, 0);
  near (s.report->overlap.bubble_fraction, 0);
  near (s.report->iteration.tokens_per_s, 0);
  near (s.report->iteration.mfu, 0);
  step_free (&s);
}

static void
an_op_without_a_time_counts_nothing (void **state)
{
  const struct made ops[] = { KERNEL (0, 1), KERNEL (NAN, NAN), REDUCE (NAN, NAN) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 2);

  (void) state;
  near (s.report->overlap.compute_s, 1);
  near (s.report->overlap.communication_s, 0);
  step_free (&s);
}

/* -------------------------------------------------------------------- iteration */

/* gpt2: matmuls of 12 layers (12 x 768^2 weights each) and of the head (50257 x 768), and
 * attention with 12 x 768 x 1024. */
#define GPT2_FLOPS_PER_TOKEN (6.0 * (12.0 * 12 * 768 * 768 + 50257.0 * 768) + 6.0 * 12 * 768 * 1024)

static void
model_flops_are_six_n_and_causal_attention (void **state)
{
  const struct made ops[] = { KERNEL (0, 2) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 2);
  const struct weft_report_iteration *it = &s.report->iteration;

  (void) state;
  near (it->tokens_per_s, 512);
  near (it->model_tflops_per_gpu, 512 * GPT2_FLOPS_PER_TOKEN * 1e-12);
  near (it->mfu, 512 * GPT2_FLOPS_PER_TOKEN * 1e-12);
  step_free (&s);
}

static void
hardware_flops_are_those_of_the_ops (void **state)
{
  const struct made ops[] = { KERNEL (0, 1), KERNEL (1, 2) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 2);

  (void) state;
  near (s.report->iteration.hardware_tflops_per_gpu * 1e12, 2 * 2 * 8 * 4 * 2 / 2.0);
  step_free (&s);
}

static void
the_peak_is_that_of_the_precision (void **state)
{
  const struct made ops[] = { KERNEL (0, 1) };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 1);
  double fp32 = s.report->iteration.mfu;

  (void) state;
  weft_report_free (s.report);
  s.plan->job.train.precision = WEFT_BF16;
  s.report = weft_report_new (s.plan, s.timeline);
  near (s.report->iteration.mfu, fp32 / 4);
  step_free (&s);
}

/* -------------------------------------------------------------------- real steps */

static struct step
run (const char *const *settings)
{
  g_autoptr (weft_settings) list = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_exec_options options = { 0 };
  struct weft_job job;
  struct step s;

  for (unsigned i = 0; settings[i]; i += 3)
    weft_settings_add (list, settings[i], settings[i + 1], settings[i + 2], "--test");
  if (!weft_job_build (list, &job, &error) || !(s.plan = weft_plan_new (&job, &error)) ||
      !(s.timeline = weft_exec_run (&weft_exec_clock, s.plan, &options, &error)))
    fail_msg ("%s", error->message);
  s.report = weft_report_new (s.plan, s.timeline);
  return s;
}

static const char *const pipeline[] = { "model",
                                        "config",
                                        "gpt2-nano",
                                        "cluster",
                                        "topology",
                                        "dgx-h100",
                                        "cluster",
                                        "gpus",
                                        "4",
                                        "train",
                                        "global_batch_size",
                                        "8",
                                        "strategy",
                                        "pipeline_model_parallel_size",
                                        "2",
                                        NULL };

static void
kinds_and_padding_add_up_to_planned (void **state)
{
  struct step s = run (pipeline);

  (void) state;
  for (uint32_t role = 0; role < 2; role++) {
    const struct weft_report_role *row = &s.report->role[role];
    uint64_t sum = row->padding;
    for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
      sum += row->by_kind[kind];
    assert_int_equal (sum, row->planned_bytes);
    assert_int_equal (row->peak_bytes, row->planned_bytes + row->reserved_bytes);
    assert_true (row->live_bytes <= row->planned_bytes && row->live_bytes > 0);
    assert_true (row->peak_bytes <= s.report->peak_bytes);
  }
  step_free (&s);
}

static void
compute_exposed_and_idle_fill_the_step (void **state)
{
  struct step s = run (pipeline);
  const struct weft_report_overlap *o = &s.report->overlap;

  (void) state;
  near ((o->compute_s + o->exposed_communication_s + o->bubble_s) / s.timeline->seconds, 1);
  assert_true (o->bubble_fraction > 0 && o->overlap_fraction <= 1);
  assert_true (s.report->axis[WEFT_LANE_PP].bytes > 0);
  step_free (&s);
}

/* Hardware FLOPs exceed model FLOPs by the padding of the vocabulary. With full recompute they also
 * exceed them by one more forward pass. */
static void
recompute_counts_as_hardware_only (void **state)
{
  const char *again[G_N_ELEMENTS (pipeline) + 9];
  const char *const more[] = { "strategy", "recompute_granularity", "full",
                               "strategy", "recompute_method",      "uniform",
                               "strategy", "recompute_num_layers",  "1",
                               NULL };
  const unsigned n = G_N_ELEMENTS (pipeline) - 1;

  (void) state;
  memcpy (again, pipeline, n * sizeof *again);
  memcpy (again + n, more, sizeof more);
  struct step plain = run (pipeline), full = run (again);
  double extra = full.report->iteration.hardware_tflops_per_gpu * full.timeline->seconds /
                 (plain.report->iteration.hardware_tflops_per_gpu * plain.timeline->seconds);
  near (full.report->iteration.model_tflops_per_gpu * full.timeline->seconds,
        plain.report->iteration.model_tflops_per_gpu * plain.timeline->seconds);
  assert_true (extra > 1.2 && extra < 4.0 / 3 + 1e-9);
  step_free (&plain);
  step_free (&full);
}

/* ------------------------------------------------------------------------- JSON */

/* Members of the JSON document that scripts rely on, with their types: s string, d double, i
 * integer, b Boolean, o object. */
static const char *const members[] = {
  "schema:s",
  "job/model/num_layers:i",
  "job/cluster/gpus:i",
  "job/train/micro_batch_size:i",
  "job/strategy/tensor_model_parallel_size:i",
  "iteration/time_s:d",
  "iteration/tokens_per_s:d",
  "iteration/tokens_per_s_per_gpu:d",
  "iteration/model_tflops_per_gpu:d",
  "iteration/hardware_tflops_per_gpu:d",
  "iteration/mfu:d",
  "iteration/hfu:d",
  "iteration/flops_convention:s",
  "overlap/compute_s:d",
  "overlap/communication_s:d",
  "overlap/exposed_communication_s:d",
  "overlap/overlap_fraction:d",
  "overlap/bubble_s:d",
  "overlap/bubble_fraction:d",
  "overlap/by_axis/tp/busy_s:d",
  "overlap/by_axis/dp/exposed_s:d",
  "overlap/by_axis/pp/bytes:i",
  "overlap/by_axis/cp:o",
  "overlap/by_axis/ep:o",
  "overlap/by_axis/world:o",
  "overlap/by_axis/h2d:o",
  "overlap/by_axis/d2h:o",
  "memory/capacity_bytes:i",
  "memory/peak_bytes:i",
  "memory/fits:b",
  "memory/roles/1/role:i",
  "memory/roles/0/peak_bytes:i",
  "memory/roles/0/peak_op:s",
  "memory/roles/0/planned_bytes:i",
  "memory/roles/0/reserved_bytes:i",
  "memory/roles/0/by_kind/weights:i",
  "memory/roles/0/by_kind/gradients:i",
  "memory/roles/0/by_kind/optimizer:i",
  "memory/roles/0/by_kind/activations:i",
  "memory/roles/0/by_kind/gathered:i",
  "memory/roles/0/by_kind/communication:i",
  "memory/roles/0/by_kind/workspace:i",
  "memory/roles/0/by_kind/padding:i",
  "memory/roles/0/registered_bytes:i",
  "memory/roles/0/host_bytes:i",
  "engine/executor:s",
  "engine/simgrid:s",
  "engine/folded:b",
  "engine/ops:i",
  "engine/activities:i",
  "engine/wall_s:d",
};

static JsonNode *
document_of (const weft_report *report)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (JsonGenerator) generator = json_generator_new ();

  json_builder_begin_object (builder);
  weft_report_to_json (report, builder);
  json_builder_end_object (builder);
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  json_generator_set_root (generator, root);
  g_autofree char *text = json_generator_to_data (generator, NULL);
  JsonNode *again = json_from_string (text, NULL);
  assert_non_null (again);
  return again;
}

static JsonNode *
member (JsonNode *node, const char *path)
{
  g_auto (GStrv) names = g_strsplit (path, "/", -1);

  for (unsigned i = 0; node && names[i]; i++)
    if (JSON_NODE_HOLDS_ARRAY (node))
      node = json_array_get_element (json_node_get_array (node), atoi (names[i]));
    else
      node = json_object_get_member (json_node_get_object (node), names[i]);
  return node;
}

static gboolean
is_of_type (JsonNode *node, char type)
{
  if (type == 'o')
    return JSON_NODE_HOLDS_OBJECT (node);
  GType found = json_node_get_value_type (node);
  return (type == 's' && found == G_TYPE_STRING) || (type == 'b' && found == G_TYPE_BOOLEAN) ||
         (type == 'i' && found == G_TYPE_INT64) || (type == 'd' && found == G_TYPE_DOUBLE);
}

static void
the_document_has_every_member_scripts_rely_on (void **state)
{
  struct step s = run (pipeline);
  g_autoptr (JsonNode) root = document_of (s.report);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (members); i++) {
    g_auto (GStrv) parts = g_strsplit (members[i], ":", 2);
    JsonNode *node = member (root, parts[0]);
    if (!node || !is_of_type (node, *parts[1]))
      fail_msg ("%s: %s", members[i], node ? json_node_type_name (node) : "missing");
  }
  assert_string_equal (json_node_get_string (member (root, "schema")), "weft.sim/1");
  assert_int_equal (json_node_get_int (member (root, "job/strategy/dp_size")), 2);
  step_free (&s);
}

/* ------------------------------------------------------------------------- text */

static void
the_picture_shows_phases_waits_and_idle_time (void **state)
{
  const struct made ops[] = {
    { WEFT_OP_MATMUL, WEFT_LANE_GPU, WEFT_PHASE_FORWARD, 3, 0, 2 },
    { WEFT_OP_MATMUL, WEFT_LANE_GPU, WEFT_PHASE_BACKWARD, 27, 3, 5 },
    { WEFT_OP_ALL_REDUCE, WEFT_LANE_DP, WEFT_PHASE_REDUCE, WEFT_NO_MICRO, 4, 6 },
    { WEFT_OP_MATMUL, WEFT_LANE_GPU, WEFT_PHASE_OPTIMIZER, WEFT_NO_MICRO, 6, 7 },
  };
  struct step s = step_of (ops, G_N_ELEMENTS (ops), 7);
  struct weft_report_style style = { .columns = 60 };
  g_autoptr (GString) out = g_string_new (NULL);

  (void) state;
  weft_report_print_pipeline (s.report, style, out);
  assert_non_null (
      strstr (out->str, "\n  stage 0  33333333333333.......bbbbbbbbbbbbbb~~~~~~~#######\n"));
  step_free (&s);
}

static void
the_page_is_plain_unless_colour_is_asked_for (void **state)
{
  struct step s = run (pipeline);
  g_autoptr (GString) plain = g_string_new (NULL), colour = g_string_new (NULL);
  struct weft_report_style style = { .columns = 80 };

  (void) state;
  weft_report_print (s.report, style, plain);
  style.colour = TRUE;
  weft_report_print (s.report, style, colour);
  assert_null (strchr (plain->str, '\033'));
  assert_non_null (strchr (colour->str, '\033'));
  assert_non_null (strstr (plain->str, "pipeline 2"));
  step_free (&s);
}

/* The memory bars of the report are scaled to the memory of the GPU. If the largest role needs more
 * memory, they are scaled to this role. */
static void
a_bar_ends_where_memory_ends (void **state)
{
  struct step s = run (pipeline);
  g_autoptr (GString) out = g_string_new (NULL);
  struct weft_report_style style = { .columns = 80 };

  (void) state;
  s.report->capacity_bytes = s.report->peak_bytes / 2;
  s.report->fits = FALSE;
  weft_report_print_memory (s.report, style, out);
  assert_non_null (strstr (out->str, "DOES NOT FIT ("));
  assert_non_null (strstr (out->str, " without padding)"));
  const char *bar = strstr (out->str, "  stage 0");
  assert_int_equal (strcspn (bar, "\n"), 80);
  step_free (&s);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_wait_for_memory_lasts_from_all_else_to_its_end),
  cmocka_unit_test (what_has_begun_is_not_held),
  cmocka_unit_test (communication_behind_kernels_is_not_exposed),
  cmocka_unit_test (communication_after_kernels_is_exposed),
  cmocka_unit_test (two_axes_at_once_count_once),
  cmocka_unit_test (kernels_with_gaps_hide_only_what_they_cover),
  cmocka_unit_test (a_row_counts_as_the_ranks_it_stands_for),
  cmocka_unit_test (nothing_divides_by_zero),
  cmocka_unit_test (an_op_without_a_time_counts_nothing),
  cmocka_unit_test (model_flops_are_six_n_and_causal_attention),
  cmocka_unit_test (hardware_flops_are_those_of_the_ops),
  cmocka_unit_test (the_peak_is_that_of_the_precision),
  cmocka_unit_test (kinds_and_padding_add_up_to_planned),
  cmocka_unit_test (compute_exposed_and_idle_fill_the_step),
  cmocka_unit_test (recompute_counts_as_hardware_only),
  cmocka_unit_test (the_document_has_every_member_scripts_rely_on),
  cmocka_unit_test (the_picture_shows_phases_waits_and_idle_time),
  cmocka_unit_test (the_page_is_plain_unless_colour_is_asked_for),
  cmocka_unit_test (a_bar_ends_where_memory_ends),
};

WEFT_TESTS (tests)
