/* The critical path of a simulated step (core/report/critical.h): a hand-made step whose path and
 * savings are known, and properties that hold for random jobs. */
#include "core/report/critical.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

static weft_critical *
critical_of (const weft_plan *plan, const weft_timeline *timeline)
{
  g_autoptr (GError) error = NULL;
  weft_critical *critical = weft_critical_new (plan, timeline, FALSE, &error);

  if (!critical)
    fail_msg ("%s", error->message);
  return critical;
}

static const struct weft_critical_kind *
kind_named (const weft_critical *critical, const char *what)
{
  for (guint i = 0; i < critical->kind->len; i++) {
    const struct weft_critical_kind *kind =
        &g_array_index (critical->kind, struct weft_critical_kind, i);
    if (g_str_equal (kind->what, what))
      return kind;
  }
  fail_msg ("the path has no op of kind %s", what);
  return NULL;
}

/* Kernel 100 us, then an all-reduce of 400 us beside a kernel of 150 us, then a kernel of 30 us
 * that waits for the all-reduce. The kernel of 150 us is not on the path. */
static void
a_kernel_beside_a_longer_collective_is_not_on_the_path (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 2);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t first = made_kernel (b, 100);
  uint32_t reduce = made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 40000000);
  weft_build_dep (b, first);
  made_kernel (b, 150);
  made_kernel (b, 30);
  weft_build_dep (b, reduce);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  g_autoptr (weft_critical) c = critical_of (plan, t);
  const struct weft_critical_kind *kernels = kind_named (c, "attention"),
                                  *collectives = kind_named (c, "dp all_reduce");

  (void) state;
  assert_near (c->step_s, 530 * MADE_US);
  assert_int_equal (c->path->len, 3);
  assert_int_equal (kernels->ops, 2);
  assert_near (kernels->on_path_s, 130 * MADE_US);
  assert_near (kernels->without_s, 400 * MADE_US);
  assert_near (kernels->tenth_less_s, 517 * MADE_US);
  assert_near (collectives->on_path_s, 400 * MADE_US);
  assert_near (collectives->without_s, 280 * MADE_US);
  assert_near (collectives->tenth_less_s, 490 * MADE_US);
  assert_true (c->launch_s == 0);
  assert_string_equal (g_array_index (c->kind, struct weft_critical_kind, 0).what,
                       "dp all_reduce");
}

/* Two stages: the path goes through the slower stage, and through the transfer between both. */
static void
the_path_crosses_stages_where_one_waits_for_the_other (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 2);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) sender = weft_builder_new (0, 2), receiver = weft_builder_new (1, 2);
  weft_builder *both[] = { sender, receiver };
  uint32_t first = made_kernel (sender, 200);
  made_transfer (sender, WEFT_OP_SEND, 1, 4000000);
  weft_build_dep (sender, first);
  made_kernel (sender, 20);
  uint32_t received = made_transfer (receiver, WEFT_OP_RECV, -1, 4000000);
  made_kernel (receiver, 50);
  weft_build_dep (receiver, received);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 2), both);
  g_autoptr (weft_timeline) t = made_run (plan);
  g_autoptr (weft_critical) c = critical_of (plan, t);
  double transfer = t->seconds - 250 * MADE_US;

  (void) state;
  assert_int_equal (c->path->len, 3);
  assert_int_equal (g_array_index (c->path, struct weft_critical_op, 0).row, 0);
  assert_int_equal (g_array_index (c->path, struct weft_critical_op, 2).row, 1);
  assert_near (kind_named (c, "pp send")->on_path_s, transfer);
  assert_near (kind_named (c, "pp send")->without_s, 250 * MADE_US);
}

/* Asserts that the path has no hole: each op begins at or after the end of the op before, and the
 * waits between are those for launches. */
static void
check_path (const weft_critical *c)
{
  double end = 0, busy = 0, waits = 0;

  for (guint i = 0; i < c->path->len; i++) {
    const struct weft_critical_op *at = &g_array_index (c->path, struct weft_critical_op, i);
    assert_true (at->begin >= end && at->end >= at->begin);
    waits += at->begin - end;
    busy += at->end - at->begin;
    end = at->end;
  }
  assert_true (fabs (end - c->step_s) <= 1e-12 + 1e-9 * c->step_s);
  assert_true (fabs (waits - c->launch_s) <= 1e-9 * c->step_s);
  assert_true (fabs (busy + waits - c->step_s) <= 1e-9 * c->step_s);
}

static void
check_savings (const weft_critical *c)
{
  double previous = 0;

  for (guint i = 0; i < c->kind->len; i++) {
    const struct weft_critical_kind *k = &g_array_index (c->kind, struct weft_critical_kind, i);
    assert_true (k->without_s >= previous);
    assert_true (k->without_s <= c->step_s * (1 + 1e-9));
    assert_true (k->tenth_less_s <= c->step_s * (1 + 1e-9));
    assert_true (k->tenth_less_s >= k->without_s * (1 - 1e-9));
    /* without launches, the path stays a chain of ops, whose other ops take as long as before */
    assert_true (c->launch_s > 0 || k->without_s >= c->step_s * (1 - 1e-9) - k->on_path_s);
    previous = k->without_s;
  }
  assert_true (c->without_launch_s <= c->step_s * (1 + 1e-9));
}

static void
a_replay_of_a_simulated_step_takes_as_long (void **state)
{
  GRand *rand = g_rand_new_with_seed (20261124);

  (void) state;
  for (unsigned done = 0; done < 60;) {
    g_autofree char *words = weft_random_job (rand);
    struct weft_job job;
    g_autoptr (GError) error = NULL;
    if (!weft_test_job (words, &job, &error))
      continue;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "");
    g_autoptr (weft_critical) c = critical_of (plan, t);
    /* group launches of transfers are replayed without contention */
    if (fabs (c->step_s - t->seconds) > (t->contended ? 0.01 : 1e-6) * t->seconds)
      fail_msg ("%s: the replay takes %.9g s, the simulation %.9g s", words, c->step_s, t->seconds);
    check_path (c);
    check_savings (c);
    done++;
  }
  g_rand_free (rand);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_kernel_beside_a_longer_collective_is_not_on_the_path),
  cmocka_unit_test (the_path_crosses_stages_where_one_waits_for_the_other),
  cmocka_unit_test (a_replay_of_a_simulated_step_takes_as_long),
};

WEFT_TESTS (tests)
