/* That the emulator of CUDA's kernels minds what a GPU does not forgive (tests/emulated_cuda.hh): whoever does
 * it does not come back. */
#include "core/base/sanitize.h"
#include "tests/emulator_trial.h"
#include <glib.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static const char *const words[EMULATOR_N_FAULT] = {
  [EMULATOR_NO_FAULT] = "nothing wrong",
  [EMULATOR_LANES_ENDED] = "lanes that have ended",
  [EMULATOR_LANES_APART] = "lanes in different exchanges",
  [EMULATOR_WARP_SHORT] = "a warp of 16 lanes",
  [EMULATOR_PACK_ASKEW] = "sixteen bytes at a multiple of four",
  [EMULATOR_COPY_ASKEW] = "a copy from a multiple of four",
  [EMULATOR_MATRIX_ASKEW] = "rows of a matrix at multiples of eight bytes",
  [EMULATOR_BEHIND] = "a word behind shared memory",
  [EMULATOR_NOT_ASKED] = "more shared memory than was asked for",
  [EMULATOR_GRID_HIGH] = "65536 rows of blocks",
  [EMULATOR_GRID_EMPTY] = "no block",
  [EMULATOR_BLOCK_WIDE] = "1025 threads",
  [EMULATOR_READ_BEHIND] = "a word read behind shared memory",
  [EMULATOR_OWN_BEHIND] = "a word behind an array of a thread",
};

/* The signal that a child dies of; 0: none. */
static int
end_of (enum emulator_fault fault)
{
  const struct rlimit no_core = { 0, 0 };
  int status = 0;
  pid_t child = fork ();

  if (child == 0) {
    setrlimit (RLIMIT_CORE, &no_core);
    signal (SIGABRT, SIG_DFL);
    signal (SIGILL, SIG_DFL);
    fclose (stderr);
    emulator_try (fault);
    _exit (0);
  }
  assert_true (child > 0 && waitpid (child, &status, 0) == child);
  return WIFSIGNALED (status) ? WTERMSIG (status) : WEXITSTATUS (status);
}

static void
a_fault_ends_the_program (void **state)
{
  const int end = WEFT_ADDRESS_SANITIZER ? EMULATOR_N_FAULT : EMULATOR_MINDED;

  (void) state;
  assert_int_equal (end_of (EMULATOR_NO_FAULT), 0);
  for (int fault = EMULATOR_NO_FAULT + 1; fault < end; fault++)
    if (end_of ((enum emulator_fault) fault) == 0)
      fail_msg ("%s: nobody minds", words[fault]);
}

static void
shared_memory_holds_nothing_of_the_launch_before (void **state)
{
  (void) state;
  assert_true (isnan (emulator_left_over (TRUE)));
  assert_true (isnan (emulator_left_over (FALSE)));
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (a_fault_ends_the_program),
    cmocka_unit_test (shared_memory_holds_nothing_of_the_launch_before),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
