/* The CUDA kernels against the fp64 references, on the CPU: the emulator
 * (tests/doubles/emulated_cuda.hh) runs the code of kernels/cuda/ thread by thread.
 * test_gpu_kernels.c makes the same calls on a GPU.
 *
 * test_emulated cuda_kernels [-- OP]: all cases, or those of one op */
#include "exec_gpu/cuda/module/fused.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/table.h"
#include "tests/made/cuda_case.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/doubles/fenced.h"
#include "tests/runner/runner.h"

/* ----------------------------------------------------------------------------- the device */

static gboolean
has_kernel (void *user, enum weft_op_kind kind)
{
  (void) user;
  return weft_cuda_launchers[kind] != NULL;
}

/* An emulated device. `warpgroups`: its use of wgmma. `askew`: in every askew-th call, operands
 * begin one element after an aligned address, as slices of arrays may; 0: in no call. */
struct how {
  enum weft_cuda_warpgroups warpgroups;
  unsigned askew;
};

static void
run (const struct weft_kernel *k, enum weft_cuda_warpgroups warpgroups, gboolean again)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);

  l.warpgroups = (uint8_t) warpgroups;
  l.scratch_bytes = weft_cuda_scratch (k->kind, &k->shape);
  l.scratch_bytes = MAX (l.scratch_bytes, weft_fused_producer_scratch (k, l.warpgroups));
  l.scratch = l.scratch_bytes ? fenced_new (l.scratch_bytes, 0, !again) : NULL;
  assert_null (weft_cuda_launchers[k->kind](&l));
  fenced_free (l.scratch);
}

/* Returns the first operand that has the same memory as operand o. */
static uint32_t
first_in (const struct weft_kernel *k, uint32_t o)
{
  uint32_t same = 0;

  while (k->operand[same].data != k->operand[o].data)
    same++;
  return same;
}

static gboolean
is_shared (const struct weft_kernel *k, uint32_t o)
{
  for (uint32_t other = 0; other < WEFT_MOST_OPERANDS; other++)
    if (other != o && k->operand[other].data == k->operand[o].data)
      return TRUE;
  return FALSE;
}

/* Whether the kernel overwrites all elements of an operand. Some kernels leave unused rows or
 * pieces unchanged. */
static gboolean
is_written_anew (const struct weft_kernel *k, uint32_t o, unsigned flags)
{
  const char *word = weft_op_info[k->kind].word;

  return flags == KERNEL_WRITES && !k->operand[o].accumulate && !is_shared (k, o) &&
         !g_str_has_prefix (word, "moe_") && !g_str_equal (word, "settle");
}

/* Runs a call with every operand in fenced memory of its exact size (fenced.h). Operands end at the
 * end of the pages in the first run, and begin at the begin of the pages in the second run, so that
 * accesses before and behind the operand end the test. Operands that share memory in the call share
 * fenced memory. Outputs are filled with NaN. */
static void
run_fenced (const struct weft_kernel *k, const struct how *how, gboolean askew, gboolean again)
{
  struct kernel_argument argument[WEFT_MOST_OPERANDS] = { 0 };
  struct weft_kernel moved = *k;

  kernel_case_arguments (k->kind, argument);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *from = &k->operand[o];
    uint32_t same = first_in (k, o);
    if (!from->data || same < o) {
      moved.operand[o].data = from->data ? moved.operand[same].data : NULL;
      continue;
    }
    uint8_t *to = fenced_new (cuda_case_bytes (from),
                              askew ? (unsigned) weft_dtype_bytes (from->dtype) : 0, !again);
    if (!is_written_anew (k, o, argument[o].flags & (KERNEL_READS | KERNEL_WRITES)))
      memcpy (to, from->data, cuda_case_bytes (from));
    moved.operand[o].data = to;
  }
  run (&moved, how->warpgroups, again);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
    if (k->operand[o].data && first_in (k, o) == o) {
      memcpy (k->operand[o].data, moved.operand[o].data, cuda_case_bytes (&k->operand[o]));
      fenced_free (moved.operand[o].data);
    }
}

static void
launch (void *user, const struct weft_kernel *k, gboolean again)
{
  const struct how *how = user;
  static unsigned n; /* number of calls on the device so far, without repetitions */

  n += !again;
  emulated_order_of_threads (again);
  run_fenced (k, how, how->askew && n % how->askew == 0, again);
}

static struct how plain = { WEFT_NO_WARPGROUPS, 0 }, some_askew = { WEFT_NO_WARPGROUPS, 4 },
                  all_askew = { WEFT_NO_WARPGROUPS, 1 }, warpgroups = { WEFT_WARPGROUPS, 0 },
                  producing = { WEFT_WARPGROUPS_PRODUCER, 0 };
static struct cuda_case_device device = { has_kernel, launch, &plain },
                               sometimes = { has_kernel, launch, &some_askew },
                               askew = { has_kernel, launch, &all_askew };

/* a device of compute capability 9.0, which has wgmma */
static struct cuda_case_device hopper = { has_kernel, launch, &warpgroups },
                               producer = { has_kernel, launch, &producing };

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
attention_with_a_producer_warp_does_what_the_reference_does (void **state)
{
  (void) state;
  cuda_case_tiles (&producer);
}

static void
attention_with_a_producer_warp_is_that_of_the_cpu (void **state)
{
  (void) state;
  cuda_case_attention (&producer);
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

static int
read_op (int argc, char **argv)
{
  device.only = sometimes.only = askew.only = hopper.only = producer.only =
      argc > 1 ? argv[1] : NULL;
  return WEFT_TESTS_RUN;
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_cuda_kernel_does_what_its_reference_does),
  cmocka_unit_test (tiles_of_attention_do_what_the_reference_does),
  cmocka_unit_test (ops_with_shapes_of_their_own_do_what_the_cpu_does),
  cmocka_unit_test (attention_on_cuda_is_that_of_the_cpu),
  cmocka_unit_test (attention_of_warpgroups_does_what_the_reference_does),
  cmocka_unit_test (attention_of_warpgroups_is_that_of_the_cpu),
  cmocka_unit_test (attention_with_a_producer_warp_does_what_the_reference_does),
  cmocka_unit_test (attention_with_a_producer_warp_is_that_of_the_cpu),
  cmocka_unit_test (unfused_attention_on_cuda_is_that_of_the_cpu),
  cmocka_unit_test (numbers_of_one_byte_on_cuda_are_those_of_the_cpu),
  cmocka_unit_test (experts_on_cuda_do_what_their_references_do),
  cmocka_unit_test (operands_may_begin_at_any_element),
  cmocka_unit_test (weights_are_rounded_by_the_lots_of_the_cpu),
  cmocka_unit_test (products_of_experts_by_warpgroups_are_those_of_the_cpu),
  cmocka_unit_test (every_kernel_of_cuda_has_a_case),
};

WEFT_TESTS (tests, .seconds = 35, .begin = read_op)
