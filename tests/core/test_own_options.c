/* Options that only one executor has: how command line words or a struct of the API become
 * weft_exec_options, and how the executor reads them. */
#include "core/exec/exec.h"
#include "tests/runner/runner.h"
#include <string.h>

static union weft_clock_options
read_clock (const struct weft_own_options *own)
{
  union weft_clock_options clock;

  memset (&clock, 0xff, sizeof clock);
  weft_own_options_read (own, weft_exec_clock.options, clock.at);
  return clock;
}

static void
zeroed_options_are_the_defaults (void **state)
{
  const struct weft_own_options none = { 0 };
  union weft_clock_options clock = read_clock (&none);

  (void) state;
  assert_true (!clock.unfolded && !clock.graph && !clock.roles);
}

static void
a_struct_of_options_arrives_as_it_was (void **state)
{
  const union weft_clock_options given = { { .roles = TRUE, .graph = TRUE } };
  const struct weft_own_options own = weft_own_options_of (weft_exec_clock.options, given.at);
  union weft_clock_options clock = read_clock (&own);

  (void) state;
  assert_memory_equal (&clock, &given, sizeof given);
}

static void
options_are_set_by_name_one_after_the_other (void **state)
{
  const struct weft_table *table = weft_exec_clock.options;
  g_autoptr (GError) unknown = NULL, wrong = NULL;
  struct weft_own_options own = { 0 };

  (void) state;
  assert_true (weft_own_options_set (&own, table, "unfolded", "true", NULL));
  assert_true (weft_own_options_set (&own, table, "roles", "true", NULL));
  assert_true (weft_own_options_set (&own, table, "unfolded", "false", NULL));
  union weft_clock_options clock = read_clock (&own);
  assert_true (!clock.unfolded && !clock.graph && clock.roles);
  assert_false (weft_own_options_set (&own, table, "graf", "true", &unknown));
  assert_non_null (
      strstr (unknown->message, "unknown option of executor clock \"graf\"; did you mean graph?"));
  assert_false (weft_own_options_set (&own, table, "graph", "often", &wrong));
  assert_non_null (strstr (wrong->message, "graph: found \"often\", wanted true|false"));
}

/* Processes of one job compare the text of their executor options. So an option that is set to its
 * default must be printed like an option that is not set. */
static void
printed_options_are_values_not_what_was_given (void **state)
{
  const struct weft_table *table = weft_exec_clock.options;
  struct weft_own_options none = { 0 }, given = { 0 };

  (void) state;
  assert_true (weft_own_options_set (&given, table, "graph", "false", NULL));
  g_autofree char *a = weft_own_options_print (&none, table);
  g_autofree char *b = weft_own_options_print (&given, table);
  assert_string_equal (a, "unfolded false\ngraph false\nroles false\n");
  assert_string_equal (a, b);
  assert_true (weft_own_options_set (&given, table, "graph", "true", NULL));
  g_autofree char *c = weft_own_options_print (&given, table);
  assert_string_equal (c, "unfolded false\ngraph true\nroles false\n");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (zeroed_options_are_the_defaults),
  cmocka_unit_test (a_struct_of_options_arrives_as_it_was),
  cmocka_unit_test (options_are_set_by_name_one_after_the_other),
  cmocka_unit_test (printed_options_are_values_not_what_was_given),
};

WEFT_TESTS (tests)
