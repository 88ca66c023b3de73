/* `./weft test`: which tests a name selects, the order of flags, the messages for unknown names and
 * flags, objects of sources that changed during a build, and the GPUs that the CUDA module is built
 * for.  These tests build nothing. */
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <glib/gstdio.h>
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

/* Runs the test program with these arguments, as ctest does, and returns its output. */
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

/* Runs the launcher `weft` with words that it must refuse, separated by blanks, and returns what it
 * printed. */
static struct said
launched (const char *program, const char *words)
{
  g_auto (GStrv) list = g_strsplit (words, " ", -1);
  return run (program, (const char *const *) list);
}

static void
a_word_that_is_no_flag_runs_no_test (void **state)
{
  static const char weft[] = WEFT_SOURCE_DIR "/weft";

  (void) state;
  assert_said (launched (weft, "test --no-install --atack"), 2, "did you mean --attack?");
  assert_said (launched (weft, "test --verbsoe --no-install"), 2, "did you mean --verbose?");
  assert_said (launched (weft, "test -R fp8 layuot --no-install"), 2, "did you mean layout?");
  assert_said (launched (weft, "test layout --no-install -R"), 2, "found no value after -R");
  assert_said (launched (weft, "test layout one two --no-install"), 2, "found \"two\" after");
  assert_said (launched (weft, "test --attack --no-install x"), 2, "[SEED [PERCENT]]");
  assert_said (launched (weft, "test 7 --no-install --attack 1 2"), 2, "found \"2\" after");
  assert_said (launched (weft, "test --asan --no-install --tsan"), 2, "wanted one of them");
}

static void
write_program (const char *folder, const char *name, const char *text)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autofree char *parent = g_path_get_dirname (path);
  g_autofree char *all = g_strconcat ("#!/bin/sh\n", text, "\n", NULL);

  assert_int_equal (g_mkdir_with_parents (parent, 0755), 0);
  assert_true (g_file_set_contents (path, all, -1, NULL));
  assert_int_equal (g_chmod (path, 0755), 0);
}

/* Makes a source tree with a copy of the launcher, one test file, and doubles of the programs that
 * build and test. The doubles of ctest and run.sh print their arguments. */
static void
make_tree (const char *folder)
{
  g_autofree char *text = NULL;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/weft", &text, NULL, NULL));
  write_program (folder, "weft", strchr (text, '\n') + 1);
  write_program (folder, "tests/core/test_layout.c", "");
  write_program (folder, "tests/attack/run.sh", "echo attack \"${1##*/}\" \"$2\" \"$3\"");
  write_program (folder, "bin/dpkg-query",
                 "for p; do case $p in -*) ;; *) printf '%s:installed ' $p; esac; done");
  write_program (folder, "bin/apt-get", "echo installs; exit 1");
  write_program (folder, "bin/cmake", "exit 0");
  write_program (folder, "bin/ninja", "exit 0");
  write_program (folder, "bin/ctest",
                 "case $1 in --help) echo '  -L <regex>, --label-regex <regex>';;"
                 " *) shift 2; echo ctest \"$@\" in $WEFT_TEST_FUNCTION ${WEFT_TEST_LONG:+long};;"
                 " esac");
}

static struct said
launched_in (const char *tree, const char *words)
{
  g_autofree char *script = g_strdup_printf (
      "PATH=%s/bin:$PATH CTEST_PARALLEL_LEVEL=1 exec bash %s/weft %s", tree, tree, words);
  const char *const shell[] = { "-c", script, NULL };
  return run ("/bin/sh", shell);
}

static gboolean
is_older (const GStatBuf *a, const GStatBuf *b)
{
  return a->st_mtim.tv_sec < b->st_mtim.tv_sec ||
         (a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec < b->st_mtim.tv_nsec);
}

static void
flags_stand_in_any_order (void **state)
{
  const char *tree = *state;

  make_tree (tree);
  assert_said (launched_in (tree, "test --no-install --attack 7 1"), 0, "attack build 7 1");
  assert_said (launched_in (tree, "test 7 1 --attack --asan"), 0, "attack build-asan 7 1");
  assert_said (launched_in (tree, "--tsan test --attack 7"), 0, "attack build-tsan 7");
  assert_said (launched_in (tree, "test --long layout --no-install"), 0,
               "ctest --output-on-failure -R ^(layout)$ --no-tests=error in long");
  assert_said (launched_in (tree, "test -L gpu layout --no-install"), 0,
               "ctest --output-on-failure -R ^(layout)$ --no-tests=error -L gpu in");
  assert_said (launched_in (tree, "test layout -L gpu --no-install a_bucket"), 0,
               "--no-tests=error --verbose -L gpu in a_bucket");
}

/* The double of ninja writes an object, and changes a source of the tree while it runs. */
static void
a_source_that_changes_during_a_build_makes_its_objects_stale (void **state)
{
  const char *tree = *state;
  g_autofree char *object = g_build_filename (tree, "build", "a.o", NULL);
  g_autofree char *source = g_build_filename (tree, "core", "a.c", NULL);
  g_autofree char *changes =
      g_strdup_printf ("sleep 0.02; echo changed >%s; sleep 0.02; echo built >%s", source, object);
  g_autofree char *only_builds = g_strdup_printf ("sleep 0.02; echo built >%s", object);
  GStatBuf made, changed;

  make_tree (tree);
  write_program (tree, "core/a.c", "");
  write_program (tree, "CMakeLists.txt", "");
  write_program (tree, "CMakePresets.json", "");
  write_program (tree, "bin/ninja", changes);
  assert_said (launched_in (tree, "test --no-install layout"), 0, "ctest");
  assert_int_equal (g_stat (object, &made) | g_stat (source, &changed), 0);
  assert_true (is_older (&made, &changed));
  write_program (tree, "bin/ninja", only_builds);
  assert_said (launched_in (tree, "test --no-install layout"), 0, "ctest");
  assert_int_equal (g_stat (object, &made), 0);
  assert_false (is_older (&made, &changed));
}

/* Options of the last cmake. */
static void
assert_configured (const char *tree, const char *wanted)
{
  g_autofree char *path = g_build_filename (tree, "options", NULL), *found = NULL;

  if (!g_file_get_contents (path, &found, NULL, NULL))
    found = g_strdup ("none\n");
  assert_string_equal (g_strchomp (found), wanted);
  g_unlink (path);
}

/* The double of cmake writes what the launcher reads in CMake's cache. */
static void
the_cuda_module_is_quick_to_build_until_all_gpus_are_asked_for (void **state)
{
  const char *tree = *state;

  make_tree (tree);
  write_program (tree, "CMakePresets.json", "");
  write_program (tree, "nvcc", "");
  write_program (tree, "bin/cmake",
                 "echo \"$@\" >options; : >build/build.ninja\n"
                 "echo CMAKE_HOME_DIRECTORY:INTERNAL=$PWD >build/CMakeCache.txt\n"
                 "echo CMAKE_CUDA_COMPILER:FILEPATH=$PWD/nvcc >>build/CMakeCache.txt\n"
                 "case $* in *quick*)"
                 " echo WEFT_CUDA_ARCHITECTURES:STRING=quick >>build/CMakeCache.txt;; esac");
  assert_said (launched_in (tree, "test --no-install layout"), 0, "ctest");
  if (g_file_test ("/dev/nvidia0", G_FILE_TEST_EXISTS)) {
    assert_configured (tree, "--preset release");
    return;
  }
  assert_configured (tree, "-D WEFT_CUDA_ARCHITECTURES=quick --preset release");
  assert_said (launched_in (tree, "test --no-install --long layout"), 0, "ctest");
  assert_configured (tree, "none");
  assert_said (launched_in (tree, "test --no-install --long"), 0, "ctest");
  assert_configured (tree, "-U WEFT_CUDA_ARCHITECTURES --preset release");
  assert_said (launched_in (tree, "test --no-install"), 0, "ctest");
  assert_configured (tree, "none");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_name_that_no_test_has_is_corrected),
  cmocka_unit_test (one_function_of_a_file_runs_alone),
  cmocka_unit_test (a_function_that_the_file_has_not_is_corrected),
  cmocka_unit_test (a_word_that_is_no_flag_runs_no_test),
  cmocka_unit_test_setup_teardown (flags_stand_in_any_order, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (a_source_that_changes_during_a_build_makes_its_objects_stale,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_cuda_module_is_quick_to_build_until_all_gpus_are_asked_for,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
