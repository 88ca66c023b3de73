/* weft measure on GPUs, with a double of a device that models only the time of its streams. The
 * cost table must contain the times of kernels without the cost of recording these times, and must
 * predict a step that records none. */
#include "core/exec/timeline_file.h"
#include "core/report/compare.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "exec_gpu/launches.h"
#include "tests/doubles/recorded_cuda.h"
#include "train/measure.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <math.h>
#include <unistd.h>

#define TINY                                                                                       \
  "topology=hgx-h200 model=gpt2-nano num_layers=2 precision=bf16 reduction_order=fast "            \
  "global_batch_size=4 micro_batch_size=2"
#define REPLICAS TINY " gpus=2 use_distributed_optimizer=true"

/* The duration of a kernel: any number, but equal for equal kernels. */
static double
seconds_of (const struct weft_kernel *k)
{
  uint64_t sum = (uint64_t) k->kind * 7919;

  for (unsigned d = 0; d < G_N_ELEMENTS (k->shape.dim); d++)
    sum = sum * 31 + k->shape.dim[d];
  return 1e-6 * (double) (20 + sum % 100);
}

static recorded_cuda *device;

static weft_exec *
open_recorded (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  recorded_cuda_forget (device);
  return weft_exec_cuda_open (&device->calls, plan, options, error);
}

static struct weft_exec_ops
recorded_ops (double stamp)
{
  struct weft_exec_ops ops = weft_exec_cuda;

  device->seconds = seconds_of;
  device->stamp = stamp;
  device->byte = 1e-9;
  ops.open = open_recorded;
  return ops;
}

static GArray *
measure (const weft_plan *plan, double stamp, gboolean comm)
{
  const struct weft_exec_ops ops = recorded_ops (stamp);
  g_autoptr (weft_measure) m = weft_measure_new (&ops);
  g_autoptr (GError) error = NULL;

  if (!weft_measure_steps (m, plan, 2, 0, &error) || (comm && !weft_measure_comm (m, plan, &error)))
    fail_msg ("%s", error->message);
  return weft_measure_rows (m);
}

/* Seconds of a step by the clock of the device, if no times of ops are recorded. */
static double
step_seconds (const weft_plan *plan)
{
  struct weft_control control = { .step = 1, .loss_scale = 1 };
  const struct weft_exec_options options = { .control = &control, .total = TRUE };
  weft_exec *x = weft_exec_cuda_open (&device->calls, plan, &options, NULL);
  g_autofree int32_t *tokens =
      g_new0 (int32_t, plan->job.train.global_batch_size * (plan->job.model.seq_length + 1));

  control.tokens = tokens;
  g_autoptr (weft_timeline) t = weft_exec_step (x, NULL);
  double seconds = t->seconds;
  weft_exec_cuda.close (x);
  return seconds;
}

static int
make_device (void **state)
{
  (void) state;
  device = recorded_cuda_new ();
  return 0;
}

static int
free_device (void **state)
{
  (void) state;
  assert_int_equal (device->n_open, 0);
  recorded_cuda_free (device);
  return 0;
}

/* ------------------------------------------------------------------------------- tests */

static void
what_asking_for_times_costs_is_in_no_row (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY " gpus=1");
  g_autoptr (GArray) quick = measure (plan, 0, FALSE), slow = measure (plan, 3e-6, FALSE);
  (void) state;

  assert_int_equal (quick->len, slow->len);
  assert_true (quick->len > 20);
  for (guint i = 0; i < quick->len; i++) {
    const struct weft_measurement *a = &g_array_index (quick, struct weft_measurement, i);
    const struct weft_measurement *b = &g_array_index (slow, struct weft_measurement, i);
    assert_int_equal (a->kind, b->kind);
    if (!(fabs (a->seconds - b->seconds) <= 0.5e-6))
      fail_msg ("%s: found %g, wanted %g", weft_op_words[a->kind], b->seconds, a->seconds);
  }
}

static void
a_table_predicts_the_step_that_nobody_asked (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY " gpus=1");
  g_autoptr (GArray) rows = measure (plan, 2e-6, FALSE);
  g_autoptr (weft_plan) priced = weft_test_plan_priced (TINY " gpus=1", rows);
  double wanted = step_seconds (plan);
  (void) state;

  g_autoptr (weft_timeline) t = made_run (priced);
  if (!(fabs (t->seconds / wanted - 1) < 0.05))
    fail_msg ("found %g s, wanted %g within 5 %%", t->seconds, wanted);
}

static void
collectives_between_gpus_have_rows (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (REPLICAS);
  g_autoptr (GArray) rows = measure (plan, 0, TRUE);
  uint32_t seen[WEFT_N_OP] = { 0 };
  (void) state;

  for (guint i = 0; i < rows->len; i++) {
    const struct weft_measurement *m = &g_array_index (rows, struct weft_measurement, i);
    assert_true (m->seconds > 0);
    if (weft_op_info[m->kind].class == WEFT_CLASS_COLLECTIVE)
      assert_int_equal (m->ranks, 2);
    seen[m->kind]++;
  }
  assert_true (seen[WEFT_OP_REDUCE_SCATTER] && seen[WEFT_OP_ALL_GATHER] && seen[WEFT_OP_MATMUL]);
}

/* weft_measure_comm_sizes() must write one row into the cost table for each of nine message sizes
 * of each collective. An all-to-all must use different buffers for input and output, as NCCL
 * requires. */
static void
the_grid_of_collectives_runs_on_gpus (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (REPLICAS);
  const struct weft_exec_ops ops = recorded_ops (0);
  g_autoptr (weft_measure) m = weft_measure_new (&ops);
  uint32_t seen[WEFT_N_OP] = { 0 };
  (void) state;

  assert_true (weft_measure_comm_sizes (m, &plan->job, 4, NULL));
  for (guint i = 0; i < device->collective->len; i++) {
    const struct weft_gpu_collective *c =
        &g_array_index (device->collective, struct weft_gpu_collective, i);
    assert_true (c->kind != WEFT_OP_ALL_TO_ALL || c->from != c->to);
  }
  g_autoptr (GArray) rows = weft_measure_rows (m);
  for (guint i = 0; i < rows->len; i++)
    seen[g_array_index (rows, struct weft_measurement, i).kind]++;
  assert_int_equal (seen[WEFT_OP_ALL_REDUCE], 9);
  assert_int_equal (seen[WEFT_OP_ALL_GATHER], 9);
  assert_int_equal (seen[WEFT_OP_ALL_TO_ALL], 9);
}

/* Measures copies of several sizes in both directions. Each copy in the cost table must have the
 * time that the recording device models, and the simulator must use these times. */
static void
copies_to_and_from_the_host_have_rows_that_predict_them (void **state)
{
  static const char words[] = TINY " gpus=1 optimizer_cpu_offload=true";
  g_autoptr (weft_plan) plan = weft_test_plan (words);
  const struct weft_exec_ops ops = recorded_ops (0);
  g_autoptr (weft_measure) m = weft_measure_new (&ops);
  uint32_t seen = 0;
  (void) state;

  /* the device copies a byte in 1e-6 s, much longer than the host link of the topology needs */
  device->byte = 1e-6;
  assert_true (weft_measure_host_copies (m, &plan->job, NULL));
  g_autoptr (GArray) rows = weft_measure_rows (m);
  for (guint i = 0; i < rows->len; i++) {
    const struct weft_measurement *row = &g_array_index (rows, struct weft_measurement, i);
    assert_true (row->kind == WEFT_OP_TO_HOST || row->kind == WEFT_OP_FROM_HOST);
    assert_near (row->seconds, 1e-6 * weft_op_info[row->kind].bytes (&row->shape));
  }
  assert_int_equal (rows->len, 2 * 2 * 9);
  g_autoptr (weft_plan) priced = weft_test_plan_priced (words, rows);
  g_autoptr (weft_timeline) t = made_run (priced);
  const weft_program *p = priced->role[0];
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_TO_HOST || weft_op_bytes (p, op) < 4096)
      continue;
    double wanted = 1e-6 * weft_op_bytes (p, op), took = t->end[0][op] - t->begin[0][op];
    /* An interpolated price, between two measured sizes, may be off by 15 %. */
    if (!(fabs (took / wanted - 1) < 0.15))
      fail_msg ("op %u: found %g s, wanted %g", op, took, wanted);
    seen++;
  }
  assert_true (seen > 0);
}

/* Numbers of calls of prepare() and of the kernels in them. prepare() is called once per GPU before
 * the first step, with all kernels of the GPU. */
static uint32_t n_prepared, n_kernels;

static const char *
note_prepared (void *self, const struct weft_kernel *k, uint32_t n,
               const struct weft_gpu_scratch *scratch, weft_gpu_stream *stream)
{
  (void) self, (void) scratch;
  assert_true (stream && k);
  n_prepared++;
  n_kernels += n;
  return NULL;
}

static void
kernels_are_prepared_once_before_the_first_step (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (REPLICAS);
  const struct weft_exec_options options = { 0 };
  uint32_t played = 0;
  (void) state;

  device->calls.prepare = note_prepared;
  weft_exec *x = weft_exec_cuda_open (&device->calls, plan, &options, NULL);
  assert_non_null (x);
  assert_int_equal (n_prepared, 2);
  assert_int_equal (device->kernel->len, 0);
  g_autoptr (weft_timeline) t = weft_exec_step (x, NULL);
  for (guint i = 0; i < device->kernel->len; i++)
    played += g_array_index (device->kernel, struct recorded_kernel, i).n;
  assert_int_equal (n_prepared, 2);
  assert_int_equal (n_kernels, played);
  weft_exec_cuda.close (x);
}

/* Replaces the device's query of free memory. Each call returns less free memory than the call
 * before, as if the executor had started something that needs memory in between. */
static const char *
shrink (void *self, uint64_t *left, uint64_t *all)
{
  static const uint64_t gone[] = { 500, 10000, 70, 30, 9 };
  recorded_cuda *d = self;

  assert_true (d->n_looks < G_N_ELEMENTS (gone));
  d->room = (d->n_looks ? d->room : 100000) - gone[d->n_looks];
  d->n_looks++;
  *left = d->room;
  *all = 100000;
  return NULL;
}

static void
memory_that_is_not_the_plans_has_a_name (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (REPLICAS);
  const struct weft_exec_options options = { 0 };
  (void) state;

  device->calls.room = shrink;
  weft_exec *x = weft_exec_cuda_open (&device->calls, plan, &options, NULL);
  g_autoptr (weft_timeline) first = weft_exec_step (x, NULL), t = weft_exec_step (x, NULL);
  assert_true (t->knows_reserved);
  assert_int_equal (t->reserved[WEFT_RESERVED_CONTEXT], 500);
  /* scratch of cuBLASLt that the device reports for its matmuls */
  assert_int_equal (t->reserved[WEFT_RESERVED_SCRATCH], 4096);
  assert_int_equal (t->reserved[WEFT_RESERVED_COMMUNICATORS], 70);
  assert_int_equal (t->reserved[WEFT_RESERVED_PRODUCTS], 30);
  assert_int_equal (t->reserved[WEFT_RESERVED_STEP], 9);
  weft_exec_cuda.close (x);
}

/* weft compare with two timeline files prints the measured reserved memory beside the predicted
 * one. */
static void
a_comparison_names_what_libraries_took (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY " gpus=1");
  g_autoptr (weft_timeline) t = made_run (plan);
  g_autofree char *path = NULL;
  g_autoptr (GString) text = g_string_new (NULL);
  weft_timeline *read = NULL;
  weft_plan *again = NULL;
  int file = g_file_open_tmp ("weft-measure-XXXXXX", &path, NULL);
  (void) state;

  close (file);
  t->knows_reserved = TRUE;
  t->reserved[WEFT_RESERVED_CONTEXT] = 5000000;
  t->reserved[WEFT_RESERVED_STEP] = 2000000;
  assert_true (weft_timeline_save (plan, t, path, NULL));
  assert_true (weft_timeline_load (path, &again, &read, NULL));
  g_unlink (path);
  assert_true (read->knows_reserved);
  assert_int_equal (weft_timeline_reserved (read), 7000000);
  g_autoptr (weft_timeline) predicted = made_run (plan);
  const struct weft_compare_side a = { "predicted", plan, predicted }, b = { "real", again, read };
  g_autoptr (weft_compare) compare = weft_compare_new (&a, &b, 0);
  weft_compare_print (compare, G_MAXINT, text);
  assert_non_null (strstr (text->str, "B  7 MB measured: context 5 MB"));
  assert_non_null (strstr (text->str, "first_step 2 MB"));
  assert_non_null (strstr (text->str, "MB predicted"));
  weft_timeline_free (read);
  weft_plan_free (again);
}

#define WITH_DEVICE(test) cmocka_unit_test_setup_teardown (test, make_device, free_device)

/* Launch times of kernels and graphs. The device does nothing, so the times are those of this
 * machine, and are not checked. Checked are the numbers of launches and graphs, and that all
 * resources are closed. */
static void
launches_are_timed_one_by_one_and_as_graphs (void **state)
{
  double seconds[WEFT_N_HOST_COST] = { -1, -1, -1 };
  g_autoptr (GError) error = NULL;
  guint kernels = 0, graphs = 0;

  (void) state;
  recorded_cuda_forget (device);
  assert_true (weft_gpu_time_launches (&device->calls, seconds, &error));
  for (int i = 0; i < WEFT_N_HOST_COST; i++)
    assert_true (seconds[i] >= 0 && seconds[i] < 1);
  for (guint i = 0; i < device->call->len; i++) {
    enum recorded_kind kind = recorded_call_at (device, i)->kind;
    kernels += kind == RECORDED_kernel;
    graphs += kind == RECORDED_graph_run;
  }
  /* 9 rounds of 256 single launches; then a graph of one kernel and a graph of 256 kernels are
   * captured. */
  assert_int_equal (kernels, 9 * 256 + 1 + 256);
  assert_int_equal (graphs, 2 * 9 * 16);
}

static const struct CMUnitTest tests[] = {
  WITH_DEVICE (launches_are_timed_one_by_one_and_as_graphs),
  WITH_DEVICE (what_asking_for_times_costs_is_in_no_row),
  WITH_DEVICE (a_table_predicts_the_step_that_nobody_asked),
  WITH_DEVICE (collectives_between_gpus_have_rows),
  WITH_DEVICE (the_grid_of_collectives_runs_on_gpus),
  WITH_DEVICE (copies_to_and_from_the_host_have_rows_that_predict_them),
  WITH_DEVICE (kernels_are_prepared_once_before_the_first_step),
  WITH_DEVICE (memory_that_is_not_the_plans_has_a_name),
  WITH_DEVICE (a_comparison_names_what_libraries_took),
};

WEFT_TESTS (tests, .seconds = 6)
