/* The kernels of CUDA on a GPU, through the module that the executor loads: the cases that
 * test_cuda_kernels.c gives the emulator.  Without a GPU they are skipped, and say why. */
#include "exec_cuda/exec_cuda.h"
#include "tests/cuda_case.h"
#include "tests/trained_cases.h"

enum { GUARD = 256 /* bytes behind scratch that must stay */ };

struct gpu {
  const struct weft_cuda_calls *calls;
  weft_cuda_stream *stream;
  uint32_t fused; /* calls that were the library's */
};

#define CALL(gpu, name, ...) assert_null ((gpu)->calls->name ((gpu)->calls->self, ##__VA_ARGS__))

static void
copy (struct gpu *gpu, enum weft_cuda_way way, void *to, const void *from, uint64_t bytes)
{
  const struct weft_cuda_copy copy = { way, to, from, bytes };

  CALL (gpu, copy, &copy, gpu->stream);
  CALL (gpu, finish, gpu->stream);
}

/* On the GPU, with the content of `data`. */
static void *
put (struct gpu *gpu, const void *data, uint64_t bytes)
{
  void *at = NULL;

  CALL (gpu, alloc, WEFT_POOL_DEVICE, MAX (bytes, 1), &at);
  copy (gpu, WEFT_CUDA_TO_DEVICE, at, data, bytes);
  return at;
}

static void
take (struct gpu *gpu, void *at, void *data, uint64_t bytes)
{
  copy (gpu, WEFT_CUDA_TO_HOST, data, at, bytes);
  CALL (gpu, release, WEFT_POOL_DEVICE, at);
}

static uint64_t
bytes_of (const struct weft_operand *o)
{
  return o->n * weft_dtype_bytes (o->dtype);
}

/* With scratch full of NaN, and a guard behind it. */
static void
run (struct gpu *gpu, const struct weft_kernel *k)
{
  uint64_t bytes = gpu->calls->scratch (gpu->calls->self, k);
  g_autofree uint8_t *filled = g_malloc (bytes + GUARD);

  memset (filled, 0xff, bytes + GUARD);
  struct weft_cuda_scratch scratch = { put (gpu, filled, bytes + GUARD), bytes };
  CALL (gpu, kernel, k, 1, &scratch, gpu->stream);
  CALL (gpu, finish, gpu->stream);
  take (gpu, scratch.at, filled, bytes + GUARD);
  for (uint64_t i = 0; i < GUARD; i++)
    assert_int_equal (filled[bytes + i], 0xff);
}

static void
launch (void *user, const struct weft_kernel *k, gboolean again)
{
  struct gpu *gpu = user;
  struct weft_kernel there = *k;
  struct weft_control control = { 0 };

  gpu->fused += !again && k->fused && gpu->calls->fuses (gpu->calls->self, k);
  if (k->control)
    control = *k->control;
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
    if (k->operand[o].data)
      there.operand[o].data = put (gpu, k->operand[o].data, bytes_of (&k->operand[o]));
  there.control = put (gpu, &control, sizeof control);
  run (gpu, &there);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
    if (k->operand[o].data)
      take (gpu, there.operand[o].data, k->operand[o].data, bytes_of (&k->operand[o]));
  take (gpu, (void *) (uintptr_t) there.control, &control, sizeof control);
}

static gboolean
has_kernel (void *user, enum weft_op_kind kind)
{
  struct gpu *gpu = user;
  return gpu->calls->has_kernel (gpu->calls->self, kind);
}

/* Made by the first test; NULL: there is no GPU. */
static int
find_gpu (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autofree struct gpu *gpu = g_new0 (struct gpu, 1);

  *state = NULL;
  if (!(gpu->calls = weft_cuda_load (&error))) {
    print_message ("no GPU: %s\n", error->message);
    return 0;
  }
  CALL (gpu, choose, 0);
  CALL (gpu, stream_open, FALSE, &gpu->stream);
  *state = g_steal_pointer (&gpu);
  return 0;
}

static int
leave_gpu (void **state)
{
  struct gpu *gpu = *state;

  if (gpu)
    CALL (gpu, stream_close, gpu->stream);
  g_free (gpu);
  return 0;
}

static struct cuda_case_device
device_of (void **state)
{
  if (!*state)
    skip ();
  struct weft_cuda_device found;
  struct gpu *gpu = *state;
  CALL (gpu, describe, 0, &found);
  return (struct cuda_case_device){ has_kernel, launch, gpu, (int) (10 * found.major + found.minor) };
}

/* ------------------------------------------------------------------------------- tests */

static void
a_kernel_does_on_a_gpu_what_its_reference_does (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_drawn (&device);
}

static void
tiles_of_attention_do_what_the_reference_does (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_tiles (&device);
}

static void
ops_with_shapes_of_their_own_do_what_the_cpu_does (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_fixed (&device);
}

static void
attention_on_a_gpu_is_that_of_the_cpu (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_attention (&device);
}

/* Where there is cuDNN.  What an older GPU has no engine for, own kernels compute. */
static void
attention_by_cudnn_is_that_of_the_cpu (void **state)
{
  const struct cuda_case_device device = device_of (state);
  struct gpu *gpu = *state;
  const char *why = trained_no_library (gpu->calls);

  if (why) {
    print_message ("%s\n", why);
    skip ();
  }
  cuda_case_fused_attention (&device);
  print_message ("%u calls were cuDNN's\n", gpu->fused);
  assert_true (gpu->fused > 0);
}

static void
unfused_attention_on_a_gpu_is_that_of_the_cpu (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_scores (&device);
}

static void
numbers_of_one_byte_on_a_gpu_are_those_of_the_cpu (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_fp8 (&device);
}

static void
experts_on_a_gpu_do_what_their_references_do (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_experts (&device);
}

static void
weights_on_a_gpu_are_rounded_by_the_lots_of_the_cpu (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_lots (&device);
}

static void
every_kernel_of_the_module_has_a_case (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_is_complete (&device);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (a_kernel_does_on_a_gpu_what_its_reference_does),
    cmocka_unit_test (tiles_of_attention_do_what_the_reference_does),
    cmocka_unit_test (ops_with_shapes_of_their_own_do_what_the_cpu_does),
    cmocka_unit_test (attention_on_a_gpu_is_that_of_the_cpu),
    cmocka_unit_test (attention_by_cudnn_is_that_of_the_cpu),
    cmocka_unit_test (unfused_attention_on_a_gpu_is_that_of_the_cpu),
    cmocka_unit_test (numbers_of_one_byte_on_a_gpu_are_those_of_the_cpu),
    cmocka_unit_test (experts_on_a_gpu_do_what_their_references_do),
    cmocka_unit_test (weights_on_a_gpu_are_rounded_by_the_lots_of_the_cpu),
    cmocka_unit_test (every_kernel_of_the_module_has_a_case),
  };
  return cmocka_run_group_tests (tests, find_gpu, leave_gpu);
}
