/* Tasks in threads: each runs once, and a failure is the error of the first task that failed. */
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/base/threads.h"
#include "tests/runner/runner.h"
#include <stdatomic.h>

enum { N = 500 };

struct counted {
  _Atomic uint32_t runs[N];
  uint32_t fails, breaks; /* tasks from these numbers on set an error, or break an invariant */
};

static void
count (void *user, uint32_t task, GError **error)
{
  struct counted *c = user;

  atomic_fetch_add (&c->runs[task], 1);
  WEFT_INVARIANT (task < c->breaks);
  if (task >= c->fails)
    weft_bad_input (error, "task %u", task);
}

static void
all_have_run_once (struct counted *c)
{
  for (uint32_t i = 0; i < N; i++)
    assert_int_equal (atomic_load (&c->runs[i]), 1);
}

static void
each_task_runs_once (void **state)
{
  (void) state;
  for (int alone = 0; alone < 2; alone++) {
    struct counted c = { .fails = N, .breaks = N };
    const struct weft_threads threads = { alone, count, &c };
    g_autoptr (GError) error = NULL;
    assert_true (weft_threads_run (&threads, N, &error));
    assert_null (error);
    all_have_run_once (&c);
    assert_true (weft_threads_run (&threads, 0, &error));
  }
}

static void
the_first_failure_is_the_error (void **state)
{
  (void) state;
  for (int alone = 0; alone < 2; alone++) {
    struct counted c = { .fails = 17, .breaks = 18 };
    const struct weft_threads threads = { alone, count, &c };
    g_autoptr (GError) error = NULL;
    assert_false (weft_threads_run (&threads, N, &error));
    assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_INPUT));
    assert_string_equal (error->message, "task 17");
    all_have_run_once (&c);
  }
}

static void
a_broken_invariant_fails_its_task_only (void **state)
{
  struct counted c = { .fails = N, .breaks = 3 };
  const struct weft_threads threads = { FALSE, count, &c };
  g_autoptr (GError) error = NULL;

  (void) state;
  assert_false (weft_threads_run (&threads, N, &error));
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_BUG));
  all_have_run_once (&c);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (each_task_runs_once),
  cmocka_unit_test (the_first_failure_is_the_error),
  cmocka_unit_test (a_broken_invariant_fails_its_task_only),
};

WEFT_TESTS (tests)
