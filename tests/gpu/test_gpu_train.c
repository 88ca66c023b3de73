/* Training on a GPU: the checks that test_cuda_train.c runs on a double of a device. Without a GPU
 * the tests are skipped, with the reason. */
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/trained_cases.h"
#include "tests/runner/runner.h"

#define MIB ((uint64_t) 1 << 20)

static const struct weft_gpu_calls *calls; /* calls of the GPU; NULL on a machine without a GPU */

static const struct weft_gpu_calls *
gpu (void **state)
{
  (void) state;
  if (!calls)
    skip ();
  return calls;
}

/* Returns the number of the job that the running test trains. A test function that calls this is
 * registered once per job, so that a failing job does not hide the other jobs. */
static uint32_t
number_of (void **state)
{
  return GPOINTER_TO_UINT (*state) - 1;
}

static void
one_rank_does_what_the_cpu_does (void **state)
{
  if (!trained_as_on_the_cpu (gpu (state), number_of (state)))
    skip ();
}

/* Jobs with wide heads and experts. Hopper runs wgmma kernels, other GPUs run other kernels; the
 * checks are the same. */
static void
wide_heads_and_experts_train_as_on_the_cpu (void **state)
{
  if (!trained_wide_as_on_the_cpu (gpu (state), number_of (state), FALSE))
    skip ();
}

static void
ranks_that_share_a_gpu_do_what_one_rank_does (void **state)
{
  if (!trained_as_one_rank (gpu (state), number_of (state)))
    skip ();
}

static void
two_runs_have_the_same_bits (void **state)
{
  trained_twice (gpu (state));
}

static void
attention_by_cudnn_trains_as_that_of_the_cpu (void **state)
{
  const char *why = trained_no_library (gpu (state));

  if (why) {
    print_message ("%s\n", why);
    skip ();
  }
  trained_fused (calls);
}

static void
graphs_have_the_bits_of_single_calls (void **state)
{
  trained_in_graphs (gpu (state));
}

/* The executor allocates at least the planned memory, and less than 1 GiB more: scratch of cuBLASLt
 * on every lane, and the rest of the large pieces in which the device allocates. */
static void
what_is_allocated_was_planned (void **state)
{
  uint64_t planned, gone;

  trained_memory (gpu (state), &planned, &gone);
  print_message ("planned %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT " beside them\n",
                 planned, gone - planned);
  assert_true (gone >= planned && gone - planned < 1024 * MIB);
}

/* Returns the name of a test: the text of its job without TRAINED_SIZES, which all jobs contain.
 * Frees `words`. */
static char *
short_name (char *words)
{
  g_auto (GStrv) parts = g_strsplit (words, TRAINED_SIZES, -1);

  g_free (words);
  return g_strjoinv ("", parts);
}

static void
add (GArray *tests, CMUnitTestFunction function, const char *name, uint32_t number)
{
  const struct CMUnitTest test = { .name = name,
                                   .test_func = function,
                                   .initial_state = GUINT_TO_POINTER (number + 1) };

  g_array_append_val (tests, test);
}

#define ADD(tests, function) add (tests, function, #function, 0)

static int
train_all (int argc, char **argv)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GArray) tests = g_array_new (FALSE, FALSE, sizeof (struct CMUnitTest));
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);
  char *name;

  (void) argc;
  (void) argv;
  if (!(calls = weft_cuda_load (&error)))
    print_message ("%s\n", error->message);
  for (uint32_t i = 0; (name = trained_alone_words (i)); i++) {
    g_ptr_array_add (names, name = short_name (name));
    add (tests, one_rank_does_what_the_cpu_does, name, i);
  }
  ADD (tests, two_runs_have_the_same_bits);
  ADD (tests, graphs_have_the_bits_of_single_calls);
  ADD (tests, what_is_allocated_was_planned);
  for (uint32_t i = 0; i < trained_n_cases; i++) {
    g_ptr_array_add (names, name = short_name (trained_words (&trained_cases[i])));
    add (tests, ranks_that_share_a_gpu_do_what_one_rank_does, name, i);
  }
  for (uint32_t i = 0; i < trained_n_wide; i++)
    add (tests, wide_heads_and_experts_train_as_on_the_cpu, trained_wide[i].words, i);
  ADD (tests, attention_by_cudnn_trains_as_that_of_the_cpu);
  return _cmocka_run_group_tests ("gpu_train", (struct CMUnitTest *) (void *) tests->data,
                                  tests->len, NULL, NULL);
}

WEFT_TESTS_MADE_BY (train_all)
