/* Training on a GPU: what test_cuda_train.c shows on a device that computes on the CPU, on the real one.
 * Without a GPU all of it is skipped, and the reason is told. */
#include "exec_cuda/exec_cuda.h"
#include "tests/trained_cases.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MIB ((uint64_t) 1 << 20)

static const struct weft_cuda_calls *
gpu (void **state)
{
  if (!*state)
    skip ();
  return *state;
}

static void
losses_norms_and_gradients_are_those_of_the_cpu (void **state)
{
  trained_as_on_the_cpu (gpu (state));
}

static void
ranks_that_share_a_gpu_do_what_one_rank_does (void **state)
{
  const struct weft_cuda_calls *calls = gpu (state);

  for (uint32_t i = 0; i < trained_n_cases; i++)
    if (!trained_as_one_rank (calls, i))
      print_message ("left out, a kernel is missing: %s\n", trained_cases[i].words);
}

static void
two_runs_have_the_same_bits (void **state)
{
  trained_twice (gpu (state));
}

static void
attention_by_cudnn_trains_as_that_of_the_cpu (void **state)
{
  const struct weft_cuda_calls *calls = gpu (state);
  const char *why = trained_no_library (calls);

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

/* The library of products has its scratch on every lane, and the device gives memory in large pieces. */
static void
what_is_allocated_was_planned (void **state)
{
  uint64_t planned, gone;

  trained_memory (gpu (state), &planned, &gone);
  print_message ("planned %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT " beside them\n",
                 planned, gone - planned);
  assert_true (gone >= planned && gone - planned < 1024 * MIB);
}

static int
find_gpu (void **state)
{
  g_autoptr (GError) error = NULL;

  *state = (void *) (uintptr_t) weft_cuda_load (&error);
  if (!*state)
    print_message ("%s\n", error->message);
  return 0;
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (losses_norms_and_gradients_are_those_of_the_cpu),
    cmocka_unit_test (ranks_that_share_a_gpu_do_what_one_rank_does),
    cmocka_unit_test (two_runs_have_the_same_bits),
    cmocka_unit_test (attention_by_cudnn_trains_as_that_of_the_cpu),
    cmocka_unit_test (graphs_have_the_bits_of_single_calls),
    cmocka_unit_test (what_is_allocated_was_planned),
  };

  return cmocka_run_group_tests (tests, find_gpu, NULL);
}
