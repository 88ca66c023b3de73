/* The lines with which `weft plan` reports its progress, while it searches: when they are printed,
 * and what they say about time and memory. */
#include "cli/watch.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define SECOND ((gint64) G_USEC_PER_SEC)
enum { START = 5 };

static gboolean
tells_costs (struct weft_cli_watch *w, double bytes, double seconds, const char *part)
{
  g_autofree char *text = weft_cli_watch_costs (w, bytes, (gint64) ((START + seconds) * SECOND));

  if (text && part)
    assert_non_null (strstr (text, part));
  return text != NULL;
}

static void
a_minute_is_told_once (void **state)
{
  struct weft_cli_watch w = weft_cli_watch_start (FALSE, START * SECOND);

  (void) state;
  assert_false (tells_costs (&w, 1e9, 0, NULL));
  assert_false (tells_costs (&w, 1.99e9, 59.9, NULL));
  assert_true (tells_costs (&w, 1e9, 60, "more than 60 s; ctrl-C"));
  assert_false (tells_costs (&w, 1e9, 61, NULL));
  assert_false (tells_costs (&w, 9e9, 600, NULL));
}

static void
two_gigabytes_are_told_before_a_minute (void **state)
{
  struct weft_cli_watch w = weft_cli_watch_start (TRUE, START * SECOND);

  (void) state;
  assert_true (tells_costs (&w, 2e9, 1, "more than 2 GB of memory; ctrl-C"));
  assert_false (tells_costs (&w, 3e9, 90, NULL));
}

static char *
line_at (struct weft_cli_watch *w, const struct weft_search_progress *p, double seconds)
{
  return weft_cli_watch_line (w, p, (gint64) ((START + seconds) * SECOND));
}

static void
a_file_gets_a_line_every_ten_seconds (void **state)
{
  struct weft_cli_watch w = weft_cli_watch_start (FALSE, START * SECOND);
  struct weft_search_progress p = { .phase = "simulating", .done = 0, .of = 10, .best = NAN };

  (void) state;
  assert_null (line_at (&w, &p, 0));
  assert_null (line_at (&w, &p, 9.9));
  p.done = 2;
  g_autofree char *first = line_at (&w, &p, 10);
  assert_non_null (strstr (first, "simulating: 2 of 10"));
  assert_non_null (strstr (first, "about 40 s left"));
  assert_null (strstr (first, "best so far"));
  assert_null (line_at (&w, &p, 19));
  p.best = 2;
  g_autofree char *second = line_at (&w, &p, 20);
  assert_non_null (strstr (second, "best so far 2 s"));
}

/* `weft plan` prints the remaining time of its current phase, and not of the whole search. */
static void
a_new_phase_starts_its_own_clock (void **state)
{
  struct weft_cli_watch w = weft_cli_watch_start (TRUE, START * SECOND);
  struct weft_search_progress p = { .phase = "bounds", .done = 1, .of = 2, .best = NAN };

  (void) state;
  assert_null (line_at (&w, &p, 0.05));
  g_autofree char *bounds = line_at (&w, &p, 30);
  assert_non_null (strstr (bounds, "left"));
  p = (struct weft_search_progress){ .phase = "simulating", .done = 0, .of = 4, .best = NAN };
  g_autofree char *begin = line_at (&w, &p, 40);
  assert_null (strstr (begin, "left"));
  p.done = 1;
  g_autofree char *next = line_at (&w, &p, 42);
  assert_non_null (strstr (next, "about 6 s left"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_minute_is_told_once),
  cmocka_unit_test (two_gigabytes_are_told_before_a_minute),
  cmocka_unit_test (a_file_gets_a_line_every_ten_seconds),
  cmocka_unit_test (a_new_phase_starts_its_own_clock),
};

WEFT_TESTS (tests)
