/* `./weft test NAME FUNCTION`: which tests a name selects, and the message for an unknown name.
 * These tests build nothing. */
#include "tests/runner/runner.h"
#include <glib.h>
#include <string.h>
#include <sys/wait.h>

struct said {
  int status;
  char *out, *err;
};

static struct said
run (const char *program, const char *const *words)
{
  g_autoptr (GStrvBuilder) builder = g_strv_builder_new ();
  g_autoptr (GError) error = NULL;
  struct said said = { -1, NULL, NULL };
  int status;

  g_strv_builder_add (builder, program);
  g_strv_builder_addv (builder, (const char **) (gpointer) words);
  g_auto (GStrv) argv = g_strv_builder_end (builder);
  if (!g_spawn_sync (NULL, argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &said.out, &said.err, &status,
                     &error))
    fail_msg ("%s", error->message);
  said.status = WIFEXITED (status) ? WEXITSTATUS (status) : -1;
  return said;
}

static void
assert_said (struct said said, int status, const char *part)
{
  g_autofree char *out = said.out, *err = said.err, *all = g_strconcat (out, err, NULL);

  assert_int_equal (said.status, status);
  if (!strstr (all, part))
    fail_msg ("%s\nwanted: %s", all, part);
}

/* Runs this test program, as ctest does. */
static struct said
room (const char *const *words)
{
  g_autofree char *self = g_file_read_link ("/proc/self/exe", NULL);
  return run (self, words);
}

static struct said
launcher (const char *name)
{
  const char *const words[] = { "--no-install", "test", name, NULL };
  return run (WEFT_SOURCE_DIR "/weft", words);
}

static void
a_name_that_no_test_has_is_corrected (void **state)
{
  (void) state;
  assert_said (launcher ("layuot"), 2, "found \"layuot\"");
  assert_said (launcher ("layuot"), 2, "did you mean layout?");
  assert_said (launcher ("kernel_s"), 2, "did you mean kernels?");
}

static void
one_function_of_a_file_runs_alone (void **state)
{
  static const char *const exact[] = { "lengths", "no_line_is_long", NULL };
  static const char *const pattern[] = { "lengths", "no_*_is_long", NULL };

  (void) state;
  assert_said (room (exact), 0, "PASSED  ] 1 test");
  assert_said (room (pattern), 0, "PASSED  ] 3 test");
}

static void
a_function_that_the_file_has_not_is_corrected (void **state)
{
  static const char *const mistyped[] = { "lengths", "no_line_is_lon", NULL };
  static const char *const elsewhere[] = { "lenghts", NULL };
  static const char *const words[] = { "lengths", "no_line_is_long", "more", NULL };

  (void) state;
  assert_said (room (mistyped), 2, "did you mean no_line_is_long?");
  assert_said (room (elsewhere), 2, "did you mean lengths?");
  assert_said (room (words), 2, "wanted -- before words");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_name_that_no_test_has_is_corrected),
  cmocka_unit_test (one_function_of_a_file_runs_alone),
  cmocka_unit_test (a_function_that_the_file_has_not_is_corrected),
};

WEFT_TESTS (tests)
