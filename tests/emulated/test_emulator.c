/* The CUDA emulator (tests/doubles/emulated_cuda.hh) must detect faults of kernels that a GPU would
 * not tolerate or not report, and must end the program. */
#include "core/base/sanitize.h"
#include "kernels/cuda/launch.h"
#include "tests/doubles/computing_cuda.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/doubles/emulator_trial.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const words[EMULATOR_N_FAULT] = {
  [EMULATOR_NO_FAULT] = "no fault",
  [EMULATOR_LANES_ENDED] = "lanes that have ended",
  [EMULATOR_LANES_APART] = "lanes in different exchanges",
  [EMULATOR_WARP_SHORT] = "a warp of 16 lanes",
  [EMULATOR_PACK_ASKEW] = "sixteen bytes at a multiple of four",
  [EMULATOR_COPY_ASKEW] = "a copy from a multiple of four",
  [EMULATOR_MATRIX_ASKEW] = "rows of a matrix at multiples of eight bytes",
  [EMULATOR_BEHIND] = "a word beyond shared memory",
  [EMULATOR_NOT_ASKED] = "more shared memory than was allowed",
  [EMULATOR_GRID_HIGH] = "65536 rows of blocks",
  [EMULATOR_GRID_EMPTY] = "no block",
  [EMULATOR_BLOCK_WIDE] = "1025 threads",
  [EMULATOR_MASK_HALF] = "an exchange that names half of a warp",
  [EMULATOR_BARRIER_LEFT] = "a thread that has ended before a barrier",
  [EMULATOR_BARRIERS] = "threads at different barriers",
  [EMULATOR_PAGE_READ] = "an element read beyond memory that ends with a page",
  [EMULATOR_PAGE_WRITTEN] = "an element written before memory that begins with a page",
  [EMULATOR_SLACK_WRITTEN] = "an element written beyond memory that ends within a page",
  [EMULATOR_MBARRIER_UNSEEN] = "a copy to an mbarrier that is not visible",
  [EMULATOR_PHASE_NEVER] = "a wait for a phase that never ends",
  [EMULATOR_PHASE_LEFT] = "an end in the middle of a phase",
  [EMULATOR_ARRIVAL_MORE] = "two arrivals in a phase of one",
  [EMULATOR_BYTES_FEW] = "more bytes than an mbarrier expects",
  [EMULATOR_BYTES_MANY] = "fewer bytes than an mbarrier expects",
  [EMULATOR_BOX_ASKEW] = "a box at a multiple of 64 bytes",
  [EMULATOR_MAP_ASKEW] = "a tensor map with rows at multiples of eight bytes",
  [EMULATOR_NAMED_APART] = "threads that count differently at a named barrier",
  [EMULATOR_NAMED_LEFT] = "a named barrier that nobody completes",
  [EMULATOR_GIVEN_ODD] = "setmaxnreg of 28",
  [EMULATOR_TAKEN_MORE] = "more registers taken than given",
  [EMULATOR_TAKEN_APART] = "a warp without the registers of its warpgroup",
  [EMULATOR_STORE_UNSEEN] = "a bulk store without a fence",
  [EMULATOR_STORE_LEFT] = "a bulk store without a wait",
  [EMULATOR_STORE_OVERTAKEN] = "a write of data that a bulk store has yet to read",
  [EMULATOR_TURN_EARLY] = "a turn that has not come",
  [EMULATOR_READ_BEHIND] = "a word read beyond shared memory",
  [EMULATOR_OWN_BEHIND] = "a word beyond an array of a thread",
  [EMULATOR_SLACK_READ] = "an element read beyond memory that ends within a page",
  [EMULATOR_RACE_BLOCK] = "a word of another warp without a barrier",
  [EMULATOR_RACE_SHUFFLE] = "a word of another lane after a shuffle alone",
  [EMULATOR_RACE_COPY] = "a copy of another lane without a barrier",
  [EMULATOR_RACE_MATRIX] = "a matrix that others have copied without a barrier",
  [EMULATOR_RACE_GRID] = "two blocks that write to one place",
};

/* Runs a kernel with the fault `fault`. Returns the number of data races that were detected. */
static int
commit (int fault)
{
  emulator_try ((enum emulator_fault) fault);
  return emulated_races ();
}

/* Calls run (what) in a child process. Returns the signal that ended it, or its exit status; 0: no
 * error was detected. */
static int
end_of (int (*run) (int what), int what)
{
  const struct rlimit no_core = { 0, 0 };
  int status = 0;
  pid_t child = fork ();

  if (child == 0) {
    setrlimit (RLIMIT_CORE, &no_core);
    signal (SIGABRT, SIG_DFL);
    signal (SIGILL, SIG_DFL);
    signal (SIGSEGV, SIG_DFL);
    fclose (stderr);
    _exit (run (what));
  }
  assert_true (child > 0 && waitpid (child, &status, 0) == child);
  return WIFSIGNALED (status) ? WTERMSIG (status) : WEXITSTATUS (status);
}

/* Whether this build can detect the fault; some faults are found only by a sanitizer. */
static gboolean
is_minded (int fault)
{
  return fault < EMULATOR_ADDRESSES ||
         (fault < EMULATOR_RACES ? WEFT_ADDRESS_SANITIZER : WEFT_THREAD_SANITIZER);
}

static void
a_fault_ends_the_program (void **state)
{
  (void) state;
  assert_int_equal (end_of (commit, EMULATOR_NO_FAULT), 0);
  for (int fault = EMULATOR_NO_FAULT + 1; fault < EMULATOR_N_FAULT; fault++)
    if (is_minded (fault) && end_of (commit, fault) == 0)
      fail_msg ("%s: not detected", words[fault]);
}

/* Reads an element of an arena, as a kernel would whose only operand is the first N_OPERAND
 * elements. In builds with the address sanitizer, other elements must be inaccessible. */
enum { N_OPERAND = 7 };

static int
read_arena (int element)
{
  computing_cuda *d = computing_cuda_new (0);
  volatile float *at = computing_map (d, WEFT_POOL_DEVICE, 2 * N_OPERAND * sizeof *at);
  const struct weft_cuda_launch launch = { .operand = {
                                               { (void *) at, N_OPERAND, WEFT_FP32, 0 } } };

  computing_let_host (d, TRUE);
  computing_fence (d, &launch, 1);
  return isnan (at[element]) ? 0 : 1;
}

static void
kernels_of_a_step_see_their_operands_alone (void **state)
{
  (void) state;
  assert_int_equal (end_of (read_arena, N_OPERAND - 1), 0);
  if (WEFT_ADDRESS_SANITIZER)
    assert_int_not_equal (end_of (read_arena, N_OPERAND), 0);
}

/* The results of kernels with races must differ if threads and blocks run in another order. The
 * test is skipped with the thread sanitizer, which would report the races. */
static void
threads_and_blocks_in_another_order_leave_other_numbers (void **state)
{
  (void) state;
  if (WEFT_THREAD_SANITIZER)
    skip ();
  assert_true (emulator_neighbour (FALSE) == 1 && isnan (emulator_neighbour (TRUE)));
  assert_true (emulator_last_block (FALSE) == 1 && emulator_last_block (TRUE) == 0);
  emulated_order_of_threads (FALSE);
}

static void
a_copy_has_not_come_before_it_is_waited_for (void **state)
{
  (void) state;
  assert_true (isnan (emulator_copied_early ()));
}

static void
shared_memory_holds_nothing_of_the_block_before (void **state)
{
  (void) state;
  assert_true (isnan (emulator_left_over (EMULATOR_DYNAMIC)));
  assert_true (isnan (emulator_left_over (EMULATOR_STATIC)));
  assert_true (isnan (emulator_left_over (EMULATOR_STATIC_OF_TEMPLATE)));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_fault_ends_the_program),
  cmocka_unit_test (kernels_of_a_step_see_their_operands_alone),
  cmocka_unit_test (threads_and_blocks_in_another_order_leave_other_numbers),
  cmocka_unit_test (a_copy_has_not_come_before_it_is_waited_for),
  cmocka_unit_test (shared_memory_holds_nothing_of_the_block_before),
};

WEFT_TESTS (tests)
