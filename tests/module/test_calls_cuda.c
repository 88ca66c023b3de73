/* The CUDA module (exec_gpu/cuda/module/calls_cuda.c) on doubles of CUDA and NCCL (fake_cuda.h):
 * whether it executes the calls of the executor correctly, and obeys the rules of both
 * libraries. */
#include "exec_gpu/cuda/exec_cuda.h"
#include "exec_gpu/cuda/module/driver.h"
#include "tests/doubles/fake_cuda.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/made/trained_cases.h"
#include "tests/runner/runner.h"
#include <string.h>

#define ZERO1 "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
#define FP32 "precision=fp32 "

const struct weft_gpu_calls *weft_gpu_calls_open (const char **why);

/* The calls of the module, opened once for all tests: weft_cuda_open() reads the environment and
 * searches for a GPU. */
static const struct weft_gpu_calls *
module (void)
{
  static const struct weft_gpu_calls *calls;
  const char *why = NULL;

  if (!calls && !(calls = weft_gpu_calls_open (&why)))
    fail_msg ("%s", why);
  return calls;
}

static trained *
train (const char *words, struct weft_exec_options how)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (7);
  const char *left;

  fake_cuda_begin (d, 0);
  trained *t = trained_new (module (), words, &how);
  fake_cuda_end (&left);
  if (left || d->n_open)
    fail_msg ("%s: left: %s, %u things of the device", words, left ? left : "nothing", d->n_open);
  return t;
}

/* ------------------------------------------------------------------------- training */

static void
the_module_trains_as_the_cpu_does (void **state)
{
  static const struct trained_bound fp32 = { .loss = 1e-6, .norm = 1e-6, .gradient = 1e-5 };
  static const struct {
    const char *words;
    const char *own; /* options of the CUDA executor, as text in the format of own.h */
    struct weft_exec_options how;
  } runs[] = {
    { TRAINED_GPT2 FP32 "gpus=2 " ZERO1 "nccl_ub=true ", "graph", { .times = TRUE } },
    { TRAINED_LLAMA FP32 "gpus=2 pipeline_model_parallel_size=2 ", "", { .total = TRUE } },
    { TRAINED_EXPERTS FP32 "gpus=2 expert_model_parallel_size=2 moe_load_imbalance=64 ",
      "",
      { .times = FALSE } },
    { TRAINED_GPT2 FP32 "gpus=2 ", "ranks-per-gpu=2 graph", { .times = FALSE } },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (runs); i++) {
    struct weft_exec_options how = runs[i].how;
    how.own = made_own (&weft_exec_cuda, "%s", runs[i].own);
    g_autoptr (trained) wanted = trained_new (NULL, runs[i].words, NULL),
                        found = train (runs[i].words, how);
    assert_true (wanted && found);
    trained_assert_near (found, wanted, fp32, runs[i].words);
  }
}

/* ------------------------------------------------------------------------- failures */

static gboolean
live (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  weft_exec *x = weft_exec_cuda_open (module (), plan, options, error);
  gboolean ok = x != NULL;

  for (int step = 0; step < 2 && ok; step++) {
    g_autoptr (weft_timeline) t = weft_exec_step (x, error);
    ok = t != NULL;
  }
  weft_exec_cuda.close (x);
  return ok;
}

static void
fail_calls (const char *words, struct weft_exec_options options, uint64_t stride)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  uint64_t all = 0, told = 0;

  for (uint64_t n = 0; n <= all; n += n ? stride : 1) {
    g_autoptr (computing_cuda) d = computing_cuda_new (0);
    g_autoptr (GError) error = NULL;
    const char *left;
    fake_cuda_begin (d, n);
    gboolean ok = live (plan, &options, &error);
    uint64_t made = fake_cuda_end (&left);
    all = n ? all : made;
    told += !ok;
    if (left || d->n_open || ok != (error == NULL) || (n == 0 && !ok))
      fail_msg ("%s: call %u of %u fails: %s; left: %s, %u things of the device", words,
                (unsigned) n, (unsigned) all, error ? error->message : "-", left ? left : "nothing",
                d->n_open);
  }
  assert_true (told > all / stride / 4);
}

#define TINY                                                                                       \
  "model=gpt2-nano topology=cpu reduction_order=fast precision=fp32 num_layers=1 hidden_size=8 "   \
  "num_attention_heads=1 num_query_groups=1 kv_channels=8 ffn_hidden_size=16 vocab_size=16 "       \
  "seq_length=4 max_position_embeddings=4 micro_batch_size=1 global_batch_size=2 "

/* Every run lets one call to CUDA or NCCL fail: call 1, then call 1 + `stride`, and so on. The
 * failed call must be reported as the error, and all resources must be released. */
static void
any_call_may_fail_and_nothing_is_left (void **state)
{
  const struct weft_exec_options graph = { .own = made_own (&weft_exec_cuda, "graph"),
                                           .times = TRUE },
                                 late = { .own = made_own (&weft_exec_cuda, "deadline=5") };

  (void) state;
  fail_calls (TINY "gpus=1 ", graph, 31);
  fail_calls (TINY "gpus=2 " ZERO1 "nccl_ub=true ", late, 89);
}

/* The module as it was built finds all symbols. Without a GPU it says what is missing: the driver
 * or the GPU. */
static void
the_module_that_was_built_can_be_loaded (void **state)
{
  g_autoptr (GError) error = NULL;

  (void) state;
  if (!weft_cuda_load (&error) && !strstr (error->message, "cannot be used: no NVIDIA driver") &&
      !strstr (error->message, "cannot be used: NVIDIA driver") &&
      !strstr (error->message, "cannot be used: no GPU"))
    fail_msg ("%s", error->message);
}

/* Functions that older releases of NCCL lack are weak: one GPU needs none of them. */
static void
newer_functions_of_nccl_are_not_needed_to_load (void **state)
{
  static const char *const newer[] = { "ncclAlltoAll", "ncclCommWindowRegister",
                                       "ncclCommWindowDeregister" };
  g_autofree char *readelf = g_find_program_in_path ("readelf"), *out = NULL;

  (void) state;
  if (!readelf || !g_file_test (WEFT_BUILD_DIR "/libweft_cuda.so", G_FILE_TEST_EXISTS))
    skip ();
  assert_true (g_spawn_command_line_sync (
      "readelf -W --dyn-syms " WEFT_BUILD_DIR "/libweft_cuda.so", &out, NULL, NULL, NULL));
  for (unsigned i = 0; i < G_N_ELEMENTS (newer); i++) {
    g_autofree char *weak = g_strdup_printf ("WEAK +DEFAULT +UND %s\\b", newer[i]);
    if (!g_regex_match_simple (weak, out, 0, 0))
      fail_msg ("%s is not weak", newer[i]);
  }
}

/* The double's device has compute capability 8. */
static void
where_the_module_has_no_code_for_a_gpu_the_driver_compiles (void **state)
{
  (void) state;
  assert_true (weft_driver_compiles (TRUE));
  assert_false (weft_driver_compiles (FALSE));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (where_the_module_has_no_code_for_a_gpu_the_driver_compiles),
  cmocka_unit_test (newer_functions_of_nccl_are_not_needed_to_load),
  cmocka_unit_test (the_module_that_was_built_can_be_loaded),
  cmocka_unit_test (the_module_trains_as_the_cpu_does),
  cmocka_unit_test (any_call_may_fail_and_nothing_is_left),
};

WEFT_TESTS (tests)
