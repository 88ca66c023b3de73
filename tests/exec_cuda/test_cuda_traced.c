/* Times of ops, computed from the device's records of kernels (CUPTI). */
#include "core/report/trace.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/runner/folder.h"
#include "tests/made/random_job.h"
#include "tests/doubles/recorded_cuda.h"
#include "tests/made/own.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define NANO                                                                                       \
  "model=gpt2-nano topology=cpu seq_length=16 num_layers=1 global_batch_size=2 gpus=2 "            \
  "reduction_order=fast"

static uint32_t
op_of (const weft_program *p, enum weft_op_kind kind, uint32_t skip)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && skip-- == 0)
      return op;
  fail_msg ("there is no such op");
  return 0;
}

static void
add (recorded_cuda *d, const char *name, uint32_t row, uint32_t op, uint64_t begin, uint64_t end)
{
  const struct weft_gpu_activity a = { TRUE, row, op, name, begin, end };

  g_array_append_val (d->activity, a);
}

static void
add_stray (recorded_cuda *d, const char *name, uint64_t begin, uint64_t end)
{
  const struct weft_gpu_activity a = { .name = name, .begin = begin, .end = end };

  g_array_append_val (d->activity, a);
}

static weft_timeline *
step (recorded_cuda *d, const weft_plan *plan, gboolean shared)
{
  struct weft_exec_options options = { .own = made_own (&weft_exec_cuda,
                                                        "times=cupti ranks-per-gpu=%u",
                                                        shared ? plan->mesh.n_ranks : 1),
                                       .times = TRUE };
  g_autoptr (GError) error = NULL;
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &options, &error);

  if (!x)
    fail_msg ("%s", error->message);
  weft_timeline *t = weft_exec_step (x, &error);
  if (!t)
    fail_msg ("%s", error->message);
  x->ops->close (x);
  assert_int_equal (d->n_open, 0);
  return t;
}

static void
assert_times (const weft_timeline *t, uint32_t row, uint32_t op, double begin, double end)
{
  assert_float_equal (t->begin[row][op], begin, 1e-12);
  assert_float_equal (t->end[row][op], end, 1e-12);
}

static uint32_t
count (const recorded_cuda *d, enum recorded_kind kind)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < d->call->len; i++)
    n += recorded_call_at (d, i)->kind == kind;
  return n;
}

static void
an_op_lasts_from_the_first_of_its_kernels_to_the_last (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  const weft_program *p = plan->role[0];
  uint32_t first = op_of (p, WEFT_OP_MATMUL, 0), second = op_of (p, WEFT_OP_MATMUL, 1);

  (void) state;
  recorded_cuda_trace (d);
  add (d, "control", 0, WEFT_NO_OP, 1000000, 1000100);
  add (d, "a", 0, first, 1001000, 1002000);
  add (d, "b", 0, first, 1002500, 1004000);
  add (d, "a", 1, first, 1003000, 1003500);
  add (d, "c", 0, second, 1006000, 1007000);
  g_autoptr (weft_timeline) t = step (d, plan, FALSE);
  assert_times (t, 0, first, 1e-6, 4e-6);
  assert_times (t, 1, first, 3e-6, 3.5e-6);
  assert_times (t, 0, second, 6e-6, 7e-6);
  assert_float_equal (t->seconds, 7e-6, 1e-12);
  assert_int_equal (t->parts->len, 4); /* the whole step has a record too, which belongs to no op */
  assert_true (t->strays->len == 0 && t->lost == 0 && !t->remark);
  /* the executor records no timed events between kernels */
  assert_int_equal (count (d, RECORDED_stamp), 0);
}

/* Every op has a begin and an end. An op without work on the device has length 0, at the end of the
 * previous op of its lane. */
static void
what_is_nothing_ends_when_its_lane_has_come_there (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  const weft_program *p = plan->role[0];
  uint32_t first = op_of (p, WEFT_OP_MATMUL, 0);

  (void) state;
  recorded_cuda_trace (d);
  add (d, "a", 0, first, 1000, 3000);
  g_autoptr (weft_timeline) t = step (d, plan, FALSE);
  for (uint32_t op = 0; op < p->n_op; op++)
    assert_true (t->begin[0][op] >= 0 && t->end[0][op] >= t->begin[0][op]);
  uint32_t next = p->lane_ops[p->op[first].lane][p->pos[first] + 1];
  assert_times (t, 0, next, 2e-6, 2e-6);
}

/* If ranks share a GPU, one member of a group executes the collective. The timeline must state its
 * times for all members. */
static void
members_of_a_collective_have_the_time_of_the_one_that_does_it (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  uint32_t op = op_of (plan->role[0], WEFT_OP_ALL_REDUCE, 0);

  (void) state;
  recorded_cuda_trace (d);
  add (d, "control", 0, WEFT_NO_OP, 1000, 1010);
  add (d, "join", 0, op, 5000, 6000);
  add (d, "join", 0, op, 6000, 7000);
  g_autoptr (weft_timeline) t = step (d, plan, TRUE);
  assert_times (t, 0, op, 4e-6, 6e-6);
  assert_times (t, 1, op, 4e-6, 6e-6);
}

static void
kernels_of_no_op_are_summed_by_name_and_lost_ones_counted (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();

  (void) state;
  recorded_cuda_trace (d);
  d->lost = 5;
  add (d, "control", 0, WEFT_NO_OP, 1000, 1010);
  add_stray (d, "ncclDevKernel", 2000, 2500);
  add (d, "of no rank", 77, 0, 2100, 2200);
  add (d, "of no op", 0, plan->role[0]->n_op, 2300, 2400);
  add_stray (d, "ncclDevKernel", 3000, 3500);
  g_autoptr (weft_timeline) t = step (d, plan, FALSE);
  assert_int_equal (t->lost, 5);
  assert_true (t->parts->len == 0 && t->strays->len == 3);
  const struct weft_timeline_stray *s = &g_array_index (t->strays, struct weft_timeline_stray, 0);
  assert_string_equal (s->name, "ncclDevKernel");
  assert_int_equal (s->n, 2);
  assert_float_equal (s->seconds, 1e-6, 1e-12);
}

static void
a_device_that_does_not_tell_has_times_of_events_and_says_so (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (weft_timeline) t = step (d, plan, FALSE);

  (void) state;
  assert_non_null (strstr (t->remark, "op times are measured with events: "));
  assert_true (count (d, RECORDED_stamp) > plan->role[0]->n_op);
  assert_null (t->parts);
}

static void
a_trace_shows_kernels_inside_their_ops (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autofree char *path = g_build_filename (*state, "trace.json", NULL), *text = NULL;
  g_autofree char *wanted = NULL;
  uint32_t op = op_of (plan->role[0], WEFT_OP_MATMUL, 0);

  recorded_cuda_trace (d);
  add (d, "control", 0, WEFT_NO_OP, 1000, 1010);
  add (d, "a \"kernel\"", 0, op, 3000, 4000);
  g_autoptr (weft_timeline) t = step (d, plan, FALSE);
  assert_true (weft_trace_write (plan, t, 0, path, NULL));
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_non_null (strstr (text, "\"cat\":\"part\""));
  assert_non_null (strstr (text, "a \\\"kernel\\\""));
  wanted = g_strdup_printf ("\"args\":{\"op\":%u}}", op);
  assert_non_null (strstr (text, wanted));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (an_op_lasts_from_the_first_of_its_kernels_to_the_last),
  cmocka_unit_test (what_is_nothing_ends_when_its_lane_has_come_there),
  cmocka_unit_test (members_of_a_collective_have_the_time_of_the_one_that_does_it),
  cmocka_unit_test (kernels_of_no_op_are_summed_by_name_and_lost_ones_counted),
  cmocka_unit_test (a_device_that_does_not_tell_has_times_of_events_and_says_so),
  cmocka_unit_test_setup_teardown (a_trace_shows_kernels_inside_their_ops, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests)
