/* The kernels of CUDA against the fp64 references, on the CPU: tests/emulated_cuda.hh runs the code of
 * kernels/cuda/ thread by thread.  On a GPU the same calls are made by test_gpu_kernels.c.
 *
 *   test_cuda_kernels [OP]    all cases, or those of one op */
#include "kernels/cuda/table.h"
#include "tests/cuda_case.h"
#include "tests/emulated_cuda.h"

/* ----------------------------------------------------------------------------- the device */

static gboolean
has_kernel (void *user, enum weft_op_kind kind)
{
  (void) user;
  return weft_cuda_launchers[kind] != NULL;
}

/* Scratch is as large as said and not a byte more: what lies behind it must stay. */
static void
launch (void *user, const struct weft_kernel *k, gboolean again)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);
  g_autofree uint8_t *scratch = NULL;

  emulated_order_of_threads (again);
  l.warpgroups = *(const gboolean *) user;
  l.scratch_bytes = weft_cuda_scratch (k->kind, &k->shape);
  l.scratch = scratch = g_malloc (l.scratch_bytes + 64);
  memset (scratch, 0xff, l.scratch_bytes + 64);
  assert_null (weft_cuda_launchers[k->kind](&l));
  for (uint64_t i = 0; i < 64; i++)
    assert_int_equal (scratch[l.scratch_bytes + i], 0xff);
}

static gboolean no = FALSE, yes = TRUE;
static struct cuda_case_device device = { has_kernel, launch, &no };

/* It has products of warpgroups. */
static struct cuda_case_device hopper = { has_kernel, launch, &yes };

static void
a_cuda_kernel_does_what_its_reference_does (void **state)
{
  (void) state;
  cuda_case_drawn (&device);
}

static void
tiles_of_attention_do_what_the_reference_does (void **state)
{
  (void) state;
  cuda_case_tiles (&device);
}

static void
ops_with_shapes_of_their_own_do_what_the_cpu_does (void **state)
{
  (void) state;
  cuda_case_fixed (&device);
}

static void
attention_on_cuda_is_that_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_attention (&device);
}

static void
attention_of_warpgroups_does_what_the_reference_does (void **state)
{
  (void) state;
  cuda_case_tiles (&hopper);
}

static void
attention_of_warpgroups_is_that_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_attention (&hopper);
}

static void
unfused_attention_on_cuda_is_that_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_scores (&device);
}

static void
numbers_of_one_byte_on_cuda_are_those_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_fp8 (&device);
}

static void
experts_on_cuda_do_what_their_references_do (void **state)
{
  (void) state;
  cuda_case_experts (&device);
}

static void
weights_are_rounded_by_the_lots_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_lots (&device);
}

static void
products_of_experts_by_warpgroups_are_those_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_expert_products (&hopper);
}

static void
every_kernel_of_cuda_has_a_case (void **state)
{
  (void) state;
  if (device.only)
    skip ();
  cuda_case_is_complete (&device);
}

int
main (int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (a_cuda_kernel_does_what_its_reference_does),
    cmocka_unit_test (tiles_of_attention_do_what_the_reference_does),
    cmocka_unit_test (ops_with_shapes_of_their_own_do_what_the_cpu_does),
    cmocka_unit_test (attention_on_cuda_is_that_of_the_cpu),
    cmocka_unit_test (attention_of_warpgroups_does_what_the_reference_does),
    cmocka_unit_test (attention_of_warpgroups_is_that_of_the_cpu),
    cmocka_unit_test (unfused_attention_on_cuda_is_that_of_the_cpu),
    cmocka_unit_test (numbers_of_one_byte_on_cuda_are_those_of_the_cpu),
    cmocka_unit_test (experts_on_cuda_do_what_their_references_do),
    cmocka_unit_test (weights_are_rounded_by_the_lots_of_the_cpu),
    cmocka_unit_test (products_of_experts_by_warpgroups_are_those_of_the_cpu),
    cmocka_unit_test (every_kernel_of_cuda_has_a_case),
  };
  device.only = hopper.only = argc > 1 ? argv[1] : NULL;
  return cmocka_run_group_tests (tests, NULL, NULL);
}
