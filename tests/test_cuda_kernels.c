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

/* What a device has, and how calls reach it: of so many one, and its repetition, with operands that begin
 * one element behind where memory is aligned, as parts of larger arrays may; 0: none. */
struct how {
  gboolean warpgroups;
  unsigned askew;
};

/* Scratch is as large as said and not a byte more: what lies behind it must stay. */
static void
run (const struct weft_kernel *k, gboolean warpgroups)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);
  g_autofree uint8_t *scratch = NULL;

  l.warpgroups = (uint8_t) warpgroups;
  l.scratch_bytes = weft_cuda_scratch (k->kind, &k->shape);
  l.scratch = scratch = g_malloc (l.scratch_bytes + 64);
  memset (scratch, 0xff, l.scratch_bytes + 64);
  assert_null (weft_cuda_launchers[k->kind](&l));
  for (uint64_t i = 0; i < 64; i++)
    assert_int_equal (scratch[l.scratch_bytes + i], 0xff);
}

/* Operands that share memory do so again. */
static void
run_askew (const struct weft_kernel *k, gboolean warpgroups)
{
  struct weft_kernel moved = *k;
  uint8_t *memory[WEFT_MOST_OPERANDS] = { NULL };

  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *from = &k->operand[o];
    uint32_t same = 0;
    while (k->operand[same].data != from->data)
      same++;
    if (same == o && from->data) {
      memory[o] = g_malloc (cuda_case_bytes (from) + 16);
      moved.operand[o].data = memory[o] + weft_dtype_bytes (from->dtype);
      memcpy (moved.operand[o].data, from->data, cuda_case_bytes (from));
    } else
      moved.operand[o].data = moved.operand[same].data;
  }
  run (&moved, warpgroups);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    if (memory[o])
      memcpy (k->operand[o].data, moved.operand[o].data, cuda_case_bytes (&k->operand[o]));
    g_free (memory[o]);
  }
}

static void
launch (void *user, const struct weft_kernel *k, gboolean again)
{
  const struct how *how = user;
  static unsigned n; /* calls, without repetitions */

  n += !again;
  emulated_order_of_threads (again);
  (how->askew && n % how->askew == 0 ? run_askew : run) (k, how->warpgroups);
}

static struct how plain = { FALSE, 0 }, some_askew = { FALSE, 4 }, all_askew = { FALSE, 1 },
                  warpgroups = { TRUE, 0 };
static struct cuda_case_device device = { has_kernel, launch, &plain },
                               sometimes = { has_kernel, launch, &some_askew },
                               askew = { has_kernel, launch, &all_askew };

/* It has products of warpgroups. */
static struct cuda_case_device hopper = { has_kernel, launch, &warpgroups };

static void
a_cuda_kernel_does_what_its_reference_does (void **state)
{
  (void) state;
  cuda_case_drawn (&sometimes);
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
  cuda_case_scores (&sometimes);
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
  cuda_case_experts (&sometimes);
}

static void
operands_may_begin_at_any_element (void **state)
{
  (void) state;
  cuda_case_fixed (&askew);
  cuda_case_fp8 (&askew);
  cuda_case_lots (&askew);
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
  cuda_case_expert_codes (&hopper);
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
    cmocka_unit_test (operands_may_begin_at_any_element),
    cmocka_unit_test (weights_are_rounded_by_the_lots_of_the_cpu),
    cmocka_unit_test (products_of_experts_by_warpgroups_are_those_of_the_cpu),
    cmocka_unit_test (every_kernel_of_cuda_has_a_case),
  };
  device.only = sometimes.only = askew.only = hopper.only = argc > 1 ? argv[1] : NULL;
  return cmocka_run_group_tests (tests, NULL, NULL);
}
