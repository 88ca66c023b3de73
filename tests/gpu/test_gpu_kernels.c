/* The CUDA kernels on a GPU, through the module that the executor loads: the cases that
 * test_cuda_kernels.c runs on the emulator. Without a GPU the tests are skipped, with the reason.
 *
 * test_gpu gpu_kernels: runs every op in its own process, several at once, so that a failing kernel
 * does not stop the others
 *
 * test_gpu gpu_kernels -- OP: runs the cases of one op */
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/cuda_case.h"
#include "tests/made/trained_cases.h"
#include "tests/runner/runner.h"
#include <gio/gio.h>
#include <unistd.h>

enum { GUARD = 256 /* bytes behind the scratch memory, which the kernels must not change */ };

struct gpu {
  const struct weft_gpu_calls *calls;
  weft_gpu_stream *stream;
  const char *only; /* name of the kind of op to test; NULL: all kinds */
  uint32_t fused;   /* number of calls that cuDNN computed */
};

static void
must (const char *error, const char *call)
{
  if (error)
    fail_msg ("%s: %s", call, error);
}

#define CALL(gpu, name, ...) must ((gpu)->calls->name ((gpu)->calls->self, ##__VA_ARGS__), #name)

static void
copy (struct gpu *gpu, enum weft_gpu_way way, void *to, const void *from, uint64_t bytes)
{
  const struct weft_gpu_copy copy = { way, to, from, bytes };

  CALL (gpu, copy, &copy, gpu->stream);
  CALL (gpu, finish, gpu->stream);
}

/* Allocates memory on the GPU and copies `data` to it. */
static void *
put (struct gpu *gpu, const void *data, uint64_t bytes)
{
  void *at = NULL;

  CALL (gpu, alloc, WEFT_POOL_DEVICE, MAX (bytes, 1), &at);
  copy (gpu, WEFT_GPU_TO_DEVICE, at, data, bytes);
  return at;
}

static void
take (struct gpu *gpu, void *at, void *data, uint64_t bytes)
{
  copy (gpu, WEFT_GPU_TO_HOST, data, at, bytes);
  CALL (gpu, release, WEFT_POOL_DEVICE, at);
}

static uint64_t
bytes_of (const struct weft_operand *o)
{
  return o->n * weft_dtype_bytes (o->dtype);
}

/* Runs a kernel call whose scratch is full of NaN, and checks that the bytes behind the scratch are
 * unchanged. */
static void
run (struct gpu *gpu, const struct weft_kernel *k)
{
  uint64_t bytes = gpu->calls->scratch (gpu->calls->self, k);
  g_autofree uint8_t *filled = g_malloc (bytes + GUARD);

  memset (filled, 0xff, bytes + GUARD);
  struct weft_gpu_scratch scratch = { put (gpu, filled, bytes + GUARD), bytes };
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
  control.corrected = weft_control_correction (&control);
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

static const char *only; /* name of the kind of op that this process tests */

/* Finds the GPU of the machine; the set-up of a test. The state is a struct gpu, or NULL on a
 * machine without a GPU. */
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
  gpu->only = only;
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
  struct weft_gpu_device found;
  struct gpu *gpu = *state;
  CALL (gpu, describe, 0, &found);
  return (struct cuda_case_device){ has_kernel, launch, gpu, gpu->only,
                                    (int) (10 * found.major + found.minor) };
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

/* cuDNN must compute the attention cases that it supports on Hopper. On older GPUs it has no engine
 * for some of these cases, and Weft's kernels compute them. */
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
  if (!cuda_case_has (&device, WEFT_OP_ATTENTION) &&
      !cuda_case_has (&device, WEFT_OP_ATTENTION_BWD))
    return;
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

static int
be_one_of_them (void)
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
  };

  return cmocka_run_group_tests (tests, find_gpu, leave_gpu);
}

/* ------------------------------------------------------------------- a process for each op */

enum { AT_ONCE = 8, MOST_SECONDS = 60 };

static struct one {
  const char *word;
  GSubprocess *process; /* process that tests the op; NULL: it has not been started */
} ones[WEFT_N_OP];
static uint32_t n_ones, n_begun;

static void
begin_another (void)
{
  g_autofree char *self = g_file_read_link ("/proc/self/exe", NULL);
  g_autoptr (GError) error = NULL;
  struct one *one = &ones[n_begun];

  if (n_begun == n_ones)
    return;
  n_begun++;
  one->process = g_subprocess_new (G_SUBPROCESS_FLAGS_STDOUT_PIPE | G_SUBPROCESS_FLAGS_STDERR_MERGE,
                                   &error, self, weft_tests_running (), "--", one->word, NULL);
  if (!one->process)
    fail_msg ("%s", error->message);
}

/* Returns what a process has printed, without the lines about tests that passed. The caller frees
 * it. */
static char *
complaint (const char *said)
{
  g_auto (GStrv) lines = g_strsplit (said, "\n", -1);
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; lines[i]; i++)
    if (*lines[i] && !g_str_has_prefix (lines[i], "[ RUN ") && !strstr (lines[i], "  OK ]") &&
        !g_str_has_prefix (lines[i], "[=="))
      g_string_append_printf (text, "\n  %s", lines[i]);
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static void
an_op (void **state)
{
  struct one *one = *state;
  g_autofree char *said = NULL;
  g_autoptr (GError) error = NULL;

  if (!g_subprocess_communicate_utf8 (one->process, NULL, NULL, &said, NULL, &error))
    fail_msg ("%s", error->message);
  begin_another ();
  if (g_subprocess_get_successful (one->process))
    return;
  g_autofree char *text = complaint (said);
  if (g_subprocess_get_if_signaled (one->process))
    fail_msg ("%s: signal %d%s", one->word, g_subprocess_get_term_sig (one->process), text);
  fail_msg ("%s: status %d%s", one->word, g_subprocess_get_exit_status (one->process), text);
}

static void
every_kernel_of_the_module_has_a_case (void **state)
{
  const struct cuda_case_device device = device_of (state);
  cuda_case_is_complete (&device);
}

static int
begin_some (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < AT_ONCE; i++)
    begin_another ();
  return 0;
}

static int
end_all (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < n_begun; i++)
    g_clear_object (&ones[i].process);
  return 0;
}

static int
be_all (void)
{
  const struct CMUnitTest whole[] = { cmocka_unit_test (every_kernel_of_the_module_has_a_case) };
  struct CMUnitTest tests[WEFT_N_OP] = { 0 };
  const struct weft_gpu_calls *calls = weft_cuda_load (NULL);
  int failed = cmocka_run_group_tests (whole, find_gpu, leave_gpu);

  for (int kind = 0; calls && kind < WEFT_N_OP; kind++)
    if (calls->has_kernel (calls->self, (enum weft_op_kind) kind)) {
      struct one *one = &ones[n_ones];
      one->word = weft_op_info[kind].word;
      tests[n_ones++] =
          (struct CMUnitTest){ .name = one->word, .test_func = an_op, .initial_state = one };
    }
  return n_ones == 0 ? failed
                     : failed + _cmocka_run_group_tests ("ops", tests, n_ones, begin_some, end_all);
}

static int
be_all_or_one (int argc, char **argv)
{
  if (argc == 1)
    return be_all ();
  only = argv[1];
  alarm (MOST_SECONDS);
  return be_one_of_them ();
}

WEFT_TESTS_MADE_BY (be_all_or_one)
