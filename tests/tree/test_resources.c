/* kernels/cuda/RESOURCES.md: registers, stack, shared memory and blocks of every kernel, from the
 * module that was built. Fails if a hot kernel (kernels/cuda/hot.def) spills registers, or if the
 * page is not that of the module, for the GPUs that the module was built for; prints which are left
 * out. `./weft test --long` builds it for all. */
#include "tests/runner/runner.h"
#include <glib.h>
#include <string.h>
#include <sys/wait.h>

#define MODULE WEFT_BUILD_DIR "/libweft_cuda.so"

static int
run_script (const char *arguments, char **said)
{
  g_autofree char *command =
      g_strdup_printf ("python3 -B %s/kernels/cuda/resources.py %s", WEFT_SOURCE_DIR, arguments);
  g_autofree char *out = NULL;
  int status = -1;

  assert_true (g_spawn_command_line_sync (command, &out, said, &status, NULL));
  assert_true (WIFEXITED (status));
  return WEXITSTATUS (status);
}

static void
no_hot_kernel_spills_and_the_page_is_that_of_the_module (void **state)
{
  g_autofree char *python = g_find_program_in_path ("python3"),
                  *filter = g_find_program_in_path ("c++filt"), *said = NULL;

  (void) state;
  if (!python || !filter || !g_file_test (MODULE, G_FILE_TEST_EXISTS))
    skip ();
  int status = run_script ("--check " MODULE, &said);
  if (status == 2)
    skip ();
  if (status != 0)
    fail_msg ("%s", said);
  print_message ("%s", said);
}

static void
a_module_that_does_not_exist_is_named (void **state)
{
  g_autofree char *python = g_find_program_in_path ("python3"), *said = NULL;

  (void) state;
  if (!python)
    skip ();
  assert_int_equal (run_script ("/nowhere/module.so", &said), 2);
  assert_non_null (strstr (said, "found no /nowhere/module.so"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (no_hot_kernel_spills_and_the_page_is_that_of_the_module),
  cmocka_unit_test (a_module_that_does_not_exist_is_named),
};

WEFT_TESTS (tests)
