/* Measured traces: the traces of tests/traces, whose sums are known from its script; a trace that
 * weft sim writes, which must come back as the same classes and times; and bad files. */
#include "core/base/error.h"
#include "core/exec/exec.h"
#include "core/report/trace.h"
#include "core/report/waterfall.h"
#include "interop/traces/costs.h"
#include "interop/traces/kineto.h"
#include "interop/traces/measured.h"
#include "interop/traces/names.h"
#include "interop/traces/stack_fit.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------- plans */

static weft_plan *
make_plan (const char *const (*settings)[3], unsigned n)
{
  g_autoptr (weft_settings) list = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  weft_plan *plan = NULL;

  for (unsigned i = 0; i < n; i++)
    weft_settings_add (list, settings[i][0], settings[i][1], settings[i][2], "--test");
  if (!weft_job_build (list, &job, &error) || !(plan = weft_plan_new (&job, &error)))
    fail_msg ("%s", error->message);
  return plan;
}

/* The job of the traces of tests/traces: two tensor parallel, two data parallel ranks. */
static weft_plan *
traced_plan (void)
{
  static const char *const settings[][3] = {
    { "model", "config", "gpt2-nano" },
    { "cluster", "topology", "dgx-h100" },
    { "cluster", "gpus", "4" },
    { "train", "global_batch_size", "8" },
    { "strategy", "tensor_model_parallel_size", "2" },
    { "strategy", "use_distributed_optimizer", "true" },
  };
  return make_plan (settings, G_N_ELEMENTS (settings));
}

static weft_trace *
load (const char *path)
{
  const struct weft_trace_options options = { NULL };
  g_autoptr (GError) error = NULL;
  weft_trace *trace = weft_trace_load (path, &options, &error);

  if (!trace)
    fail_msg ("%s", error->message);
  return trace;
}

static weft_measured *
measure (const weft_plan *plan, weft_trace *trace, const char *step)
{
  g_autoptr (GError) error = NULL;
  weft_measured *m = weft_measured_new (plan, trace, step, &error);

  if (!m)
    fail_msg ("%s", error->message);
  return m;
}

static void
assert_near (double found, double wanted, double tolerance)
{
  if (!(fabs (found - wanted) <= tolerance))
    fail_msg ("found %.12g, wanted %.12g", found, wanted);
}

/* ---------------------------------------------------------------------- known sums */

/* Checks one cell: calls, microseconds busy, microseconds of the step. */
static void
check_cell (const weft_measured *m, enum weft_work work, unsigned axis, double calls, double busy,
            double alone)
{
  const struct weft_breakdown_cell *c = &m->mean.cell[work][axis];

  assert_near (c->calls, calls, 1e-9);
  assert_near (c->busy_s, busy * 1e-6, 1e-12);
  assert_near (c->alone_s, alone * 1e-6, 1e-12);
}

/* The sums of make_traces.py, whose comments explain the exposed times. `all_reduce`: the axis of
 * the all-reduce. */
static void
check_sums (const weft_measured *m, unsigned all_reduce)
{
  assert_near (m->mean.seconds, 1000e-6, 1e-12);
  check_cell (m, WEFT_WORK_MATMUL, WEFT_LANE_GPU, 2, 500, 500);
  check_cell (m, WEFT_WORK_ATTENTION, WEFT_LANE_GPU, 1, 100, 100);
  check_cell (m, WEFT_WORK_NORM, WEFT_LANE_GPU, 1, 50, 50);
  check_cell (m, WEFT_WORK_OPTIMIZER, WEFT_LANE_GPU, 1, 60, 60);
  check_cell (m, WEFT_WORK_COPY, WEFT_LANE_GPU, 1, 10, 10);
  check_cell (m, WEFT_WORK_OTHER, WEFT_LANE_GPU, 1, 40, 40);
  check_cell (m, WEFT_WORK_ALL_REDUCE, all_reduce, 1, 150, 100);
  check_cell (m, WEFT_WORK_REDUCE_SCATTER, WEFT_LANE_DP, 1, 100, 100);
  check_cell (m, WEFT_WORK_HOST_COPY, WEFT_LANE_H2D, 1, 10, 10);
  assert_near (m->mean.host_s, 6e-6, 1e-12);
  assert_near (m->mean.idle_s, 24e-6, 1e-12);
  assert_int_equal (m->unknown->len, 1);
  assert_string_equal (g_array_index (m->unknown, struct weft_measured_name, 0).name,
                       "void mystery_kernel(int)");
}

static void
profiles_of_pytorch_have_the_sums_of_their_script (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = traced_plan ();
  g_autoptr (weft_trace) trace = load (WEFT_SOURCE_DIR "/tests/traces/ranks");
  g_autoptr (weft_measured) m = measure (plan, trace, NULL);
  g_autoptr (weft_trace) one = load (WEFT_SOURCE_DIR "/tests/traces/ranks/rank2.json.gz");
  g_autoptr (weft_measured) of_one = measure (plan, one, "11");

  assert_int_equal (m->n_ranks, 4);
  assert_int_equal (m->note->len, 0);
  check_sums (m, WEFT_LANE_TP);
  check_sums (of_one, WEFT_LANE_TP);
  assert_true (m->counted_s == 0);
}

/* A database has no process groups: one all-reduce is nearest to the one call of axis dp. */
static void
profiles_of_nsight_systems_have_the_sums_of_their_script (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = traced_plan ();
  g_autoptr (weft_trace) trace = load (WEFT_SOURCE_DIR "/tests/traces/nsys.sqlite");
  g_autoptr (weft_measured) m = measure (plan, trace, NULL);

  assert_int_equal (m->n_ranks, 4);
  check_sums (m, WEFT_LANE_DP);
  assert_near (m->counted_s, 150e-6, 1e-12);
}

static void
the_terms_of_a_waterfall_add_up_to_the_step (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = traced_plan ();
  g_autoptr (weft_trace) trace = load (WEFT_SOURCE_DIR "/tests/traces/ranks");
  g_autoptr (weft_measured) m = measure (plan, trace, NULL);
  struct weft_waterfall w = weft_waterfall_new (&plan->job, &m->mean);
  double sum = 0;

  for (int term = 0; term < WEFT_N_TERM; term++)
    sum += w.seconds[term];
  assert_near (sum, 1000e-6, 1e-12);
  assert_near (w.seconds[WEFT_TERM_AXIS + WEFT_LANE_TP], 100e-6, 1e-12);
}

static void
a_window_in_seconds_cuts_kernels_off (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = traced_plan ();
  g_autoptr (weft_trace) trace = load (WEFT_SOURCE_DIR "/tests/traces/ranks");
  g_autoptr (weft_measured) m = measure (plan, trace, "0.0001:0.00035");

  assert_near (m->mean.seconds, 250e-6, 1e-12);
  check_cell (m, WEFT_WORK_MATMUL, WEFT_LANE_GPU, 0, 200, 200);
  check_cell (m, WEFT_WORK_ATTENTION, WEFT_LANE_GPU, 1, 50, 50);
}

/* ---------------------------------------------------------------------- round trip */

static weft_plan *
pipelined_plan (void)
{
  static const char *const settings[][3] = {
    { "model", "config", "mixtral-nano" },
    { "cluster", "topology", "dgx-h100" },
    { "cluster", "gpus", "8" },
    { "train", "global_batch_size", "16" },
    { "strategy", "pipeline_model_parallel_size", "2" },
    { "strategy", "tensor_model_parallel_size", "2" },
    { "strategy", "expert_model_parallel_size", "2" },
    { "strategy", "sequence_parallel", "true" },
    { "strategy", "overlap_grad_reduce", "true" },
    { "strategy", "use_distributed_optimizer", "true" },
  };
  return make_plan (settings, G_N_ELEMENTS (settings));
}

/* Times in a trace are rounded to nanoseconds. */
static void
check_same (const struct weft_breakdown *a, const struct weft_breakdown *b, double ops)
{
  const double near = 1e-9 * ops;

  assert_near (b->seconds, a->seconds, 1e-9);
  assert_near (b->host_s + b->idle_s, a->host_s + a->idle_s, near);
  for (int work = 0; work < WEFT_N_WORK; work++) {
    assert_near (b->flops[work], a->flops[work], 1e-9 * a->flops[work]);
    for (int axis = 0; axis < WEFT_N_AXIS; axis++) {
      const struct weft_breakdown_cell *x = &a->cell[work][axis], *y = &b->cell[work][axis];
      assert_near (y->calls, x->calls, 1e-9);
      assert_near (y->busy_s, x->busy_s, near);
      assert_near (y->alone_s, x->alone_s, near);
    }
  }
}

static void
a_trace_of_weft_comes_back_as_the_same_classes_and_times (void **state)
{
  g_autofree char *path = g_build_filename (*state, "own.json.gz", NULL);
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = pipelined_plan ();
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &options, &error);

  if (!t || !weft_trace_write (plan, t, 0, path, &error))
    fail_msg ("%s", error->message);
  g_autoptr (weft_trace) trace = load (path);
  g_autoptr (weft_measured) m = measure (plan, trace, NULL);
  struct weft_breakdown predicted = weft_breakdown_of_timeline (plan, t, m->roles);
  double sum = predicted.host_s + predicted.idle_s + weft_breakdown_compute (&predicted);
  for (int axis = 0; axis < WEFT_N_AXIS; axis++)
    sum += weft_breakdown_exposed (&predicted, axis);
  assert_near (sum, t->seconds, 1e-9 * t->seconds);
  assert_true (predicted.cell[WEFT_WORK_ALL_TO_ALL][WEFT_LANE_EP].busy_s > 0);
  check_same (&predicted, &m->mean, (double) t->n_ops);
}

/* weft sim writes a trace whose seconds are known. The cost table made from the trace must have
 * exactly these seconds. */
static void
a_cost_table_has_the_seconds_of_the_traced_ops (void **state)
{
  g_autofree char *path = g_build_filename (*state, "own.json", NULL);
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = pipelined_plan ();
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &options, &error);

  if (!t || !weft_trace_write (plan, t, 0, path, &error))
    fail_msg ("%s", error->message);
  g_autoptr (weft_trace) trace = load (path);
  g_autoptr (weft_measured) m = measure (plan, trace, NULL);
  g_autoptr (weft_costs) costs = weft_costs_new (plan, t, trace, m);
  assert_true (costs->row->len > 40);
  for (guint i = 0; i < costs->class->len; i++) {
    const struct weft_costs_class *c = &g_array_index (costs->class, struct weft_costs_class, i);
    assert_int_equal (c->joined, c->calls);
  }
  for (guint i = 0; i < costs->row->len; i++) {
    const struct weft_measurement *r = &g_array_index (costs->row, struct weft_measurement, i);
    const struct weft_cost cost = weft_plan_cost (plan);
    if (weft_op_is_product (r->kind))
      assert_near (r->seconds, weft_cost_kernel (&cost, r->kind, &r->shape, 0), 2e-9);
  }
}

/* A profile with recorded shapes: a product of 128 x 64 with 64 x 96 is the matmul of that
 * size. */
static void
shapes_of_operands_join_products (void **state)
{
  (void) state;
  const struct weft_trace_options shapes = { .shapes = TRUE };
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = traced_plan ();
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &options, &error);
  g_autoptr (weft_trace) trace =
      weft_trace_load (WEFT_SOURCE_DIR "/tests/traces/ranks", &shapes, &error);
  g_autoptr (weft_measured) m = measure (plan, trace, "10");
  g_autoptr (weft_costs) costs = weft_costs_new (plan, t, trace, m);
  int products = 0;

  for (guint i = 0; i < costs->row->len; i++) {
    const struct weft_measurement *r = &g_array_index (costs->row, struct weft_measurement, i);
    if (!weft_op_is_product (r->kind))
      continue;
    products++;
    assert_near (r->seconds, 300e-6, 1e-12);
  }
  assert_int_equal (products, 1);
}

static weft_plan *
plan_with_shares (const char *norm, const char *pointwise)
{
  const char *const settings[][3] = {
    { "model", "config", "llama3-8b" },
    { "model", "num_layers", "2" },
    { "cluster", "topology", "dgx-h100" },
    { "cluster", "gpus", "2" },
    { "train", "global_batch_size", "2" },
    { "stack", "kernel_gap", "0" },
    { "stack", "norm_memory_share", norm },
    { "stack", "memory_share", pointwise },
    { "strategy", "tensor_model_parallel_size", "2" },
  };
  return make_plan (settings, G_N_ELEMENTS (settings));
}

static double
fitted_value (const GArray *fitted, unsigned row)
{
  for (guint i = 0; i < fitted->len; i++) {
    const struct weft_stack_fitted *f = &g_array_index (fitted, struct weft_stack_fitted, i);
    if (f->row == row)
      return f->after;
  }
  return NAN;
}

/* A profile of a stack with other shares: the fit finds these shares, and leaves the plan as it
 * was. */
static void
a_stack_fit_finds_the_shares_of_the_traced_stack (void **state)
{
  g_autofree char *path = g_build_filename (*state, "own.json", NULL);
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = plan_with_shares ("0.8", "0.9");
  g_autoptr (weft_plan) traced = plan_with_shares ("0.4", "0.6");
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, traced, &options, &error);
  double before = plan->seconds[0][0];

  if (!t || !weft_trace_write (traced, t, 0, path, &error))
    fail_msg ("%s", error->message);
  g_autoptr (weft_trace) trace = load (path);
  g_autoptr (weft_measured) m = measure (plan, trace, NULL);
  g_autoptr (GArray) fitted = weft_stack_fit_new (plan, m);
  g_autofree char *text = weft_stack_fit_print (plan, fitted, "a test");
  assert_near (fitted_value (fitted, WEFT_STACK_norm_memory_share), 0.4, 1e-3);
  assert_near (fitted_value (fitted, WEFT_STACK_memory_share), 0.6, 1e-3);
  assert_true (plan->seconds[0][0] == before);
  assert_non_null (strstr (text, "base = weft\nname = weft-fitted\n"));
}

/* ------------------------------------------------------------------------ classes */

static void
names_of_kernels_have_classes (void **state)
{
  (void) state;
  static const struct {
    const char *name;
    enum weft_work work;
  } rows[] = {
    { "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", WEFT_WORK_MATMUL },
    { "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", WEFT_WORK_MATMUL },
    { "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<>>>",
      WEFT_WORK_ATTENTION },
    { "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3", WEFT_WORK_ATTENTION },
    { "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", WEFT_WORK_SEND_RECV },
    { "ncclKernel_AllReduce_RING_LL_Sum_float", WEFT_WORK_ALL_REDUCE },
    { "triton_red_fused_add_mean_mul_pow_rsqrt_1", WEFT_WORK_NORM },
    { "triton_poi_fused_mul_silu_3", WEFT_WORK_POINTWISE },
    { "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>", WEFT_WORK_NORM },
    { "void scaled_upper_triang_masked_softmax_warp_forward<>", WEFT_WORK_SOFTMAX },
    { "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>",
      WEFT_WORK_POINTWISE },
    { "void transformer_engine::cast_transpose_fused_kernel<>", WEFT_WORK_QUANTISE },
    { "_unpermute_kernel", WEFT_WORK_DISPATCH },
    { "something_else", WEFT_WORK_OTHER },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++)
    if (weft_names_work (rows[i].name) != rows[i].work)
      fail_msg ("%s: found class %s", rows[i].name,
                weft_work_words[weft_names_work (rows[i].name)]);
}

/* --------------------------------------------------------------------------- bad files */

static void
refused (const char *text, const char *part)
{
  const struct weft_trace_options options = { NULL };
  g_autoptr (weft_trace) trace = weft_trace_new ("t");
  g_autoptr (GError) error = NULL;

  assert_false (weft_kineto_parse (trace, text, strlen (text), "t.json", &options, &error));
  if (!strstr (error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, part);
}

static void
damaged_profiles_are_refused_with_what_was_found (void **state)
{
  (void) state;
  refused ("{\"traceEvents\": [{\"ph\": \"X\"", "is the file complete?");
  refused ("{\"traceEvents\": [}", "byte ");
  refused ("{}", "found no list \"traceEvents\"");
  refused ("{\"traceEvents\": []}", "none of a GPU");
  refused ("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"dur\":1}]", "wanted \"ts\"");
  refused ("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"ts\":1,\"dur\":-1}]", "\"dur\"");
  refused ("[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"ts\":1,\"dur\":1,"
           "\"args\":{\"kind\":\"soup\"}}]",
           "an op of Weft");
}

static void
refuse_file (const char *path, const char *part)
{
  const struct weft_trace_options options = { NULL };
  g_autoptr (GError) error = NULL;

  assert_null (weft_trace_load (path, &options, &error));
  if (!strstr (error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, part);
}

static void
shortened_and_foreign_files_are_refused (void **state)
{
  g_autofree char *path = g_build_filename (*state, "rank0.json.gz", NULL), *bytes = NULL;
  g_autofree char *base = g_build_filename (*state, "rank0.sqlite", NULL);
  gsize n;

  refuse_file (*state, "wanted the traces of the ranks");
  g_assert_true (
      g_file_get_contents (WEFT_SOURCE_DIR "/tests/traces/ranks/rank1.json.gz", &bytes, &n, NULL));
  g_assert_true (g_file_set_contents (path, bytes, (gssize) n / 2, NULL));
  refuse_file (path, "gzip");
  g_assert_true (g_file_set_contents (base, "SQLite format 3", 16, NULL));
  refuse_file (base, "rank0.sqlite: ");
  g_remove (path);
}

static void
refuse_step (const weft_plan *plan, const char *path, const char *step, const char *part)
{
  g_autoptr (weft_trace) trace = load (path);
  g_autoptr (GError) error = NULL;

  assert_null (weft_measured_new (plan, trace, step, &error));
  if (!strstr (error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, part);
}

static void
steps_and_jobs_that_do_not_exist_are_refused (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = traced_plan (), larger = pipelined_plan ();
  const char *path = WEFT_SOURCE_DIR "/tests/traces/ranks";

  refuse_step (plan, path, "13", "wanted one of the steps 10, 11, 12");
  refuse_step (plan, path, "soup", "found \"soup\"");
  refuse_step (larger, path, NULL, "found a trace of a job with 4 ranks, wanted 8");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (profiles_of_pytorch_have_the_sums_of_their_script),
  cmocka_unit_test (profiles_of_nsight_systems_have_the_sums_of_their_script),
  cmocka_unit_test (the_terms_of_a_waterfall_add_up_to_the_step),
  cmocka_unit_test (a_window_in_seconds_cuts_kernels_off),
  cmocka_unit_test_setup_teardown (a_trace_of_weft_comes_back_as_the_same_classes_and_times,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (a_cost_table_has_the_seconds_of_the_traced_ops,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (shapes_of_operands_join_products),
  cmocka_unit_test_setup_teardown (a_stack_fit_finds_the_shares_of_the_traced_stack,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (names_of_kernels_have_classes),
  cmocka_unit_test (damaged_profiles_are_refused_with_what_was_found),
  cmocka_unit_test_setup_teardown (shortened_and_foreign_files_are_refused, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (steps_and_jobs_that_do_not_exist_are_refused),
};

WEFT_TESTS (tests)
