/* What NCCL requires of windows (registered buffers): all members of a communicator have windows of
 * the same size and layout, and open them in the same order. Collectives that NCCL cannot run. */
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/random_job.h"
#include "tests/doubles/recorded_cuda.h"
#include "tests/runner/runner.h"
#include <string.h>

#define NANO "model=gpt2-nano topology=cpu seq_length=16 num_layers=4 global_batch_size=8 "
#define MIRRORED NANO "pipeline_model_parallel_size=2 pipeline_schedule=dualpipe "
#define ZERO1 "use_distributed_optimizer=true overlap_grad_reduce=true "

/* ------------------------------------------------------------------------ windows */

struct windows {
  uint32_t n, symmetric, between_stages;
};

static const struct recorded_thing *
thing_at (const recorded_cuda *d, uint32_t number)
{
  return g_ptr_array_index (d->things, number);
}

/* Opens a job and counts its windows. Ranks of one stage have consecutive numbers, so color and
 * size of a communicator show whether it joins ranks of several stages. */
static struct windows
open_and_count (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &options, &error);
  uint32_t stage = weft_mesh_stage_size (&plan->mesh);
  struct windows w = { 0 };

  if (!x)
    fail_msg ("%s: %s", words, error->message);
  for (uint32_t i = 0; i < d->things->len; i++) {
    const struct recorded_thing *window = thing_at (d, i), *comm;
    if (window->kind != RECORDED_window_open)
      continue;
    comm = thing_at (d, window->parent - 1);
    w.n++;
    w.symmetric += window->flag;
    w.between_stages += window->device / stage != (uint32_t) comm->color / stage || comm->n > stage;
  }
  weft_exec_cuda.close (x);
  assert_int_equal (d->n_open, 0);
  return w;
}

/* DualPipe: the two copies of a stage have different programs, and so perhaps different layouts of
 * memory. Communicators that join both copies must get no windows. */
static void
windows_are_of_ranks_with_one_program (void **state)
{
  (void) state;
  struct windows one = open_and_count (NANO ZERO1 "gpus=2 nccl_ub=true");
  assert_int_equal (one.n, 2);
  assert_int_equal (one.symmetric, 2);
  struct windows mirrored = open_and_count (MIRRORED "gpus=4 nccl_ub=true");
  /* communicators between the two copies of a stage have no windows */
  assert_int_equal (mirrored.n, 4);
  assert_int_equal (mirrored.symmetric, 4);
  assert_int_equal (mirrored.between_stages, 0);
}

/* disable_symmetric_registration: each member registers its memory independently, so the windows
 * are not symmetric. */
static void
memory_may_be_registered_with_a_communicator_alone (void **state)
{
  (void) state;
  struct windows w =
      open_and_count (NANO ZERO1 "gpus=2 nccl_ub=true disable_symmetric_registration=true");
  assert_int_equal (w.n, 2);
  assert_int_equal (w.symmetric, 0);
}

/* NCCL runs its own algorithms only. */
static void
collectives_from_files_are_refused (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (NANO "gpus=2 reduction_order=fast collective_algorithm_files=dp:%s",
                      WEFT_SOURCE_DIR "/docs/ideas/ring.txt");
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };

  (void) state;
  assert_null (weft_exec_cuda_open (&d->calls, plan, &options, &error));
  assert_non_null (strstr (error->message, "found files, wanted none on GPUs"));
  assert_int_equal (d->n_open, 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (windows_are_of_ranks_with_one_program),
  cmocka_unit_test (memory_may_be_registered_with_a_communicator_alone),
  cmocka_unit_test (collectives_from_files_are_refused),
};

WEFT_TESTS (tests)
