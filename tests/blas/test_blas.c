/* kernels/cuda/blas.c, which calls cuBLASLt: the matmuls of all ops on a double of the library
 * that checks its rules (playing_cublaslt.h), and how algorithms are chosen, saved and loaded. */
#include "kernels/cuda/blas.h"
#include "kernels/cuda/fp8_scales.h"
#include "kernels/cuda/producer.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/trial.h"
#include "kernels/float.h"
#include "tests/made/cuda_case.h"
#include "tests/runner/folder.h"
#include "tests/doubles/playing_cublaslt.h"
#include "tests/runner/runner.h"
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------ the device */

struct host {
  struct weft_cuda_blas *blas;
  uint8_t *scratch;
  uint64_t bytes; /* bytes of scratch that a call may use; 0: as many as its op needs */
  uint8_t warpgroups; /* enum weft_cuda_warpgroups */
  const char *error;
};

static gboolean
is_product (void *user, enum weft_op_kind kind)
{
  (void) user;
  return g_strrstr (weft_op_words[kind], "matmul") &&
         !g_str_has_prefix (weft_op_words[kind], "moe_");
}

static void
call (struct host *h, const struct weft_kernel *k)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);

  l.scratch_bytes = h->bytes ? h->bytes : weft_cuda_scratch (k->kind, &k->shape);
  l.scratch = h->scratch;
  l.blas = h->blas;
  l.stream = h;
  l.warpgroups = h->warpgroups;
  h->error = weft_cuda_launchers[k->kind](&l);
}

/* Bias gradients are only in the epilogue of products that were measured: here of small ones. */
static void
launch (void *user, const struct weft_kernel *k, gboolean again)
{
  const uint64_t *dim = k->shape.dim;
  struct host *h = user;

  if (k->kind == WEFT_OP_MATMUL_WGRAD && !again && dim[0] * dim[1] * dim[2] < 1 << 14) {
    weft_blas_only_prepare (h->blas, TRUE);
    call (h, k);
    weft_blas_only_prepare (h->blas, FALSE);
  }
  call (h, k);
  if (h->error)
    fail_msg ("%s: %s", weft_op_words[k->kind], h->error);
}

static struct host
open_host (int arch)
{
  struct host h = { 0 };

  playing_cublaslt = (struct playing_cublaslt){ .arch = arch };
  h.blas = weft_blas_new (&h.error);
  assert_null (h.error);
  assert_int_equal (posix_memalign ((void **) &h.scratch, 256, WEFT_BLAS_SCRATCH + (1 << 20)), 0);
  return h;
}

static void
close_host (struct host *h)
{
  weft_blas_free (h->blas);
  free (h->scratch);
}

static void
every_product_is_told_as_the_library_wants_it (void **state)
{
  struct host h = open_host (90);
  const struct cuda_case_device device = { is_product, launch, &h, .arch = 90 };

  (void) state;
  cuda_case_drawn (&device);
  assert_true (playing_cublaslt.n_products > 50 && playing_cublaslt.n_gradients > 5);
  close_host (&h);
}

static gboolean
is_code_kernel (void *user, enum weft_op_kind kind)
{
  (void) user;
  return weft_cuda_launchers[kind] != NULL;
}

static void
products_of_codes_are_told_as_each_gpu_wants_them (void **state)
{
  static const int arch[] = { 89, 90, 100, 120 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (arch); i++) {
    struct host h = open_host (arch[i]);
    const struct cuda_case_device device = { is_code_kernel, launch, &h, .arch = arch[i] };
    cuda_case_fp8 (&device);
    close_host (&h);
  }
}

/* ------------------------------------------------------------------------------ one product */

/* A matmul y (m, n) = x (m, k) w (n, k)^T + b (n) in bf16. The values are 0; every operand is
 * aligned to 256 bytes. */
static struct weft_kernel
product_of (enum weft_op_kind kind, uint64_t m, uint64_t n, uint64_t k)
{
  static const union weft_model model;
  struct weft_kernel made = { .kind = kind,
                              .shape = { .dtype = WEFT_BF16, .dim = { m, n, k } },
                              .model = &model };
  const uint64_t size[] = { m * k, n * k, n, m * n, m * n };

  for (unsigned o = 0; o < (kind == WEFT_OP_MATMUL ? 4 : 5); o++) {
    struct weft_operand *operand = &made.operand[o];
    *operand = (struct weft_operand){ NULL, size[o], WEFT_BF16, 0 };
    assert_int_equal (posix_memalign (&operand->data, 256, 2 * size[o] + 256), 0);
    memset (operand->data, 0, 2 * size[o]);
  }
  return made;
}

static void
free_product (struct weft_kernel *k)
{
  for (unsigned o = 0; o < WEFT_MOST_OPERANDS; o++)
    free (k->operand[o].data);
}

static void
prepare (struct host *h, const struct weft_kernel *k)
{
  weft_blas_only_prepare (h->blas, TRUE);
  call (h, k);
  weft_blas_only_prepare (h->blas, FALSE);
  assert_null (h->error);
}

/* A line of a file of choices is digits, followed by words that describe the chosen algorithm. Only
 * people and tests/gpu/run.sh read these words. */
static void
assert_choice_is_described (const char *path)
{
  static const char words[] =
      " m=16 n=24 k=8 type=bf16 out=bf16 a_turned=0 b_turned=1 accumulate=0 epilogue=0 bias=1 "
      "apart=0 algorithm=2 tile=0 stages=0 split_k=0 reduction=0 swizzle=0 custom=0 inner=0 "
      "scratch=0 tried=3 ms=1.00000 tflops=0.0\n";
  g_autofree char *text = NULL;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  if (!g_str_has_suffix (text, words))
    fail_msg ("found %s, wanted its end to be%s", text, words);
}

static void
the_fastest_algorithm_is_kept_in_a_file_and_found_again (void **state)
{
  g_autofree char *path = g_build_filename (*state, "products.txt", NULL);
  struct weft_kernel k = product_of (WEFT_OP_MATMUL, 16, 24, 8);
  struct host h = open_host (90);
  uint32_t found = 0;

  memset (k.operand[3].data, 0x55, 2 * 16 * 24);
  playing_cublaslt.fastest = 2;
  prepare (&h, &k);
  assert_true (playing_cublaslt.n_heuristics == 1 && playing_cublaslt.n_candidates == 3);
  /* one warm-up and one measured run of each algorithm; then six runs of the fastest */
  assert_int_equal (playing_cublaslt.n_products, 3 * 2 + 6);
  /* The trials of algorithms did not write into the call's output. */
  assert_int_equal (*(uint16_t *) k.operand[3].data, 0x5555);
  prepare (&h, &k);
  assert_true (playing_cublaslt.n_heuristics == 1 && playing_cublaslt.n_checks == 1);
  assert_true (weft_blas_save (h.blas, path, NULL));
  assert_choice_is_described (path);
  close_host (&h);

  h = open_host (90);
  assert_true (weft_blas_load (h.blas, path, &found, NULL) && found == 1);
  prepare (&h, &k);
  call (&h, &k);
  assert_null (h.error);
  assert_int_equal (playing_cublaslt.n_heuristics, 0);
  assert_int_equal (*(uint16_t *) k.operand[3].data, 0);

  /* The double of cuBLASLt rejects the saved algorithm, as a newer release of cuBLASLt may do. */
  playing_cublaslt.forgets = TRUE;
  prepare (&h, &k);
  assert_int_equal (playing_cublaslt.n_heuristics, 1);
  close_host (&h);

  h = open_host (100);
  assert_true (weft_blas_load (h.blas, path, &found, NULL) && found == 0);
  close_host (&h);
  free_product (&k);
}

/* A product with a long inner dimension and few tiles is also measured with that dimension cut,
 * into as many parts as the library and the scratch allow. */
static void
a_long_inner_dimension_is_cut_if_that_is_faster (void **state)
{
  (void) state;
  for (int32_t fast = 0; fast <= 4; fast += 4) {
    struct weft_kernel k = product_of (WEFT_OP_MATMUL, 8, 8, 4096);
    struct host h = open_host (90);
    free (k.operand[2].data);
    k.operand[2].data = NULL;
    playing_cublaslt.fast_parts = fast;
    prepare (&h, &k);
    assert_int_equal (playing_cublaslt.n_candidates, 3);
    assert_int_equal (playing_cublaslt.n_checks, 3 * 7);
    call (&h, &k);
    assert_null (h.error);
    assert_int_equal (playing_cublaslt.parts, fast);
    /* without scratch for the sums of the parts, the product is not cut */
    h.bytes = 1;
    call (&h, &k);
    assert_null (h.error);
    assert_int_equal (playing_cublaslt.parts, 0);
    close_host (&h);
    free_product (&k);
  }
}

static void
an_algorithm_that_wants_more_scratch_than_there_is_is_not_taken (void **state)
{
  struct weft_kernel k = product_of (WEFT_OP_MATMUL, 16, 24, 8);
  struct host h = open_host (90);

  (void) state;
  playing_cublaslt.wants = 1 << 20;
  prepare (&h, &k);
  memset (h.scratch, 0x55, 1 << 20);
  /* gives the call less scratch than the algorithm wants (1 MiB); the memory behind the scratch
   * must not change */
  h.bytes = 1 << 12;
  call (&h, &k);
  assert_null (h.error);
  assert_int_equal (h.scratch[1 << 12], 0x55);
  assert_int_equal (playing_cublaslt.n_heuristics, 2);
  close_host (&h);
  free_product (&k);
}

/* An epilogue that cuBLASLt cannot fuse into a matmul runs as a separate kernel. The double refuses
 * to fuse a bias into an output of width n = 1, and for n = 20 a GELU that also stores its input.
 * `dear`: the fused GELU is slower than a separate kernel. `questions`: how often blas.c asks for
 * algorithms. */
static void
what_the_library_does_not_add_follows (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    uint64_t n, questions;
    gboolean dear;
  } cases[] = { { WEFT_OP_MATMUL, 24, 1, FALSE },      { WEFT_OP_MATMUL, 1, 2, FALSE },
                { WEFT_OP_MATMUL_GELU, 24, 2, FALSE }, { WEFT_OP_MATMUL_GELU, 24, 2, TRUE },
                { WEFT_OP_MATMUL_GELU, 20, 2, FALSE }, { WEFT_OP_MATMUL_GELU, 1, 3, FALSE } };
  /* 0x4000 is 2 in bf16. GELU(2) = 1.9546, and the nearest bf16 number is 1.953. */
  const uint16_t two = 0x4000, gelu_of_two = 0x3ffa;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_kernel k = product_of (cases[i].kind, 16, cases[i].n, 8);
    gboolean gelu = cases[i].kind == WEFT_OP_MATMUL_GELU;
    struct host h = open_host (90);
    playing_cublaslt.dear_epilogues = cases[i].dear;
    for (uint64_t j = 0; j < cases[i].n; j++)
      ((uint16_t *) k.operand[2].data)[j] = two;
    prepare (&h, &k);
    assert_int_equal (playing_cublaslt.n_heuristics, cases[i].questions);
    call (&h, &k);
    assert_null (h.error);
    assert_int_equal (playing_cublaslt.n_heuristics, cases[i].questions);
    for (uint64_t j = 0; j < 16 * cases[i].n; j++) {
      assert_int_equal (((uint16_t *) k.operand[3].data)[j], two);
      if (gelu)
        assert_int_equal (((uint16_t *) k.operand[4].data)[j], gelu_of_two);
    }
    close_host (&h);
    free_product (&k);
  }
}

/* A weight gradient of 16 rows of dy, which are 2, and of zeros. The bias gradient was 5. */
static struct weft_kernel
weight_gradient (enum weft_dtype out, enum weft_dtype bias, gboolean adds)
{
  static const union weft_model model;
  enum { M = 16, N = 24, K = 8 };
  const uint64_t size[] = { M * N, M * K, N * K, N };
  const enum weft_dtype dtype[] = { WEFT_BF16, WEFT_BF16, out, bias };
  struct weft_kernel k = { .kind = WEFT_OP_MATMUL_WGRAD,
                           .shape = { .dtype = WEFT_BF16, .dim = { M, N, K } },
                           .model = &model };
  const float two = 2, five = 5;

  for (unsigned o = 0; o < 4; o++) {
    k.operand[o] = (struct weft_operand){ NULL, size[o], dtype[o], o > 1 && adds };
    assert_int_equal (posix_memalign (&k.operand[o].data, 256, 4 * size[o]), 0);
    memset (k.operand[o].data, 0, 4 * size[o]);
    for (uint64_t i = 0; i < size[o] && o % 3 == 0; i++)
      weft_store (k.operand[o].data, dtype[o], i, 1, o ? &five : &two);
  }
  return k;
}

/* cuBLASLt sums a bias gradient only if that was measured to be faster than a kernel; it cannot add
 * to a gradient, and stores the type of the weight gradient: sums of 16 bits that must be added or
 * converted are left to the kernel, and so are all in deterministic mode. `far`: how often the
 * library sums in one call. */
static void
a_bias_gradient_is_in_the_epilogue_where_that_is_faster_and_right (void **state)
{
  static const struct {
    enum weft_dtype out, bias;
    gboolean adds, dear, missing, deterministic, unmeasured;
    uint64_t far;
  } cases[] = { { .out = WEFT_BF16, .bias = WEFT_BF16, .far = 1 },
                { .out = WEFT_FP32, .bias = WEFT_FP32, .far = 1 },
                { .out = WEFT_FP32, .bias = WEFT_FP32, .adds = TRUE, .far = 1 },
                { .out = WEFT_FP32, .bias = WEFT_BF16, .far = 1 },
                { .out = WEFT_FP32, .bias = WEFT_BF16, .adds = TRUE, .far = 1 },
                { .out = WEFT_BF16, .bias = WEFT_BF16, .adds = TRUE },
                { .out = WEFT_BF16, .bias = WEFT_FP32 },
                { .out = WEFT_FP32, .bias = WEFT_FP32, .dear = TRUE },
                { .out = WEFT_FP32, .bias = WEFT_FP32, .missing = TRUE },
                { .out = WEFT_FP32, .bias = WEFT_FP32, .deterministic = TRUE },
                { .out = WEFT_FP32, .bias = WEFT_FP32, .unmeasured = TRUE } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_kernel k = weight_gradient (cases[i].out, cases[i].bias, cases[i].adds);
    const struct weft_operand *db = &k.operand[3];
    struct host h = open_host (90);
    float room;

    playing_cublaslt.dear_epilogues = cases[i].dear;
    playing_cublaslt.no_gradients = cases[i].missing;
    k.deterministic = cases[i].deterministic;
    if (!cases[i].unmeasured)
      prepare (&h, &k);
    assert_float_equal (*weft_floats (db->data, db->dtype, 0, 1, &room), 5, 0);
    for (float calls = 1; calls < 3; calls++) {
      uint64_t before = playing_cublaslt.n_gradients;
      call (&h, &k);
      assert_null (h.error);
      assert_int_equal (playing_cublaslt.n_gradients - before, cases[i].far);
      for (uint64_t n = 0; n < db->n; n++)
        assert_float_equal (*weft_floats (db->data, db->dtype, n, 1, &room),
                            cases[i].adds ? 5 + 32 * calls : 32, 0);
    }
    close_host (&h);
    free_product (&k);
  }
}

/* A product with a gate has one kernel instead of two if the GPU has warpgroup instructions and
 * that kernel was faster (on the double, kernels take no time), or without measuring if it is asked
 * for; a choice that the GPU cannot run any more is replaced. */
static void
a_gate_is_in_the_product_where_that_is_faster (void **state)
{
  static const struct {
    uint8_t warpgroups;
    gboolean measured;
    uint64_t products; /* of cuBLASLt in one call */
  } cases[] = { { WEFT_NO_WARPGROUPS, TRUE, 1 },
                { WEFT_WARPGROUPS, TRUE, 0 },
                { WEFT_WARPGROUPS, FALSE, 1 },
                { WEFT_WARPGROUPS_PRODUCER, FALSE, 0 } };
  static union weft_model model;

  (void) state;
  model.activation = WEFT_SWIGLU;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_kernel k = product_of (WEFT_OP_MATMUL_SWIGLU, 16, 32, 8);
    struct host h = open_host (90);
    h.warpgroups = cases[i].warpgroups;
    k.model = &model;
    free (k.operand[2].data);
    k.operand[2].data = NULL;
    memset (k.operand[4].data, 0x55, 2 * 16 * 16);
    if (cases[i].measured)
      prepare (&h, &k);
    assert_int_equal (*(uint16_t *) k.operand[4].data, 0x5555);
    for (unsigned calls = 0; calls < 3; calls++) {
      uint64_t before = playing_cublaslt.n_products;
      h.warpgroups = calls < 2 ? cases[i].warpgroups : WEFT_NO_WARPGROUPS;
      call (&h, &k);
      assert_null (h.error);
      assert_int_equal (playing_cublaslt.n_products - before, calls < 2 ? cases[i].products : 1);
      assert_int_equal (*(uint16_t *) k.operand[4].data, 0);
    }
    close_host (&h);
    free_product (&k);
  }
}

/* weft_cuda_load_only() loads kernels without computing: two calls of an op run its matmul once,
 * on memory outside the operands. GELU is fused into the matmul, or is a separate kernel if the
 * fused GELU is slower. */
static void
what_is_only_loaded_runs_once_on_operands_of_its_own (void **state)
{
  (void) state;
  for (int dear = 0; dear < 2; dear++) {
    struct weft_kernel k = product_of (WEFT_OP_MATMUL_GELU, 16, 24, 8);
    struct host h = open_host (90);
    playing_cublaslt.dear_epilogues = dear;
    prepare (&h, &k);
    uint64_t before = playing_cublaslt.n_products;
    memset (k.operand[3].data, 0x55, 2 * 16 * 24);
    memset (k.operand[4].data, 0x55, 2 * 16 * 24);
    weft_cuda_load_only (TRUE);
    call (&h, &k);
    call (&h, &k);
    weft_cuda_load_only (FALSE);
    assert_null (h.error);
    assert_int_equal (playing_cublaslt.n_products, before + 1);
    for (int i = 0; i < 16 * 24; i++)
      assert_true (((uint16_t *) k.operand[3].data)[i] == 0x5555 &&
                   ((uint16_t *) k.operand[4].data)[i] == 0x5555);
    close_host (&h);
    free_product (&k);
  }
}

/* Without memory for operands, the first suggestion is used, and a message on stderr says so. */
static void
without_memory_to_measure_the_first_suggestion_runs (void **state)
{
  struct weft_kernel k = product_of (WEFT_OP_MATMUL, 16, 24, 8);
  struct host h = open_host (90);

  (void) state;
  playing_cublaslt.fastest = 2;
  playing_cublaslt.no_memory = TRUE;
  prepare (&h, &k);
  assert_int_equal (playing_cublaslt.n_products, 0);
  call (&h, &k);
  assert_null (h.error);
  assert_int_equal (playing_cublaslt.n_products, 1);
  close_host (&h);
  free_product (&k);
}

/* Runs in a process of its own, because trial.c cannot use the GPU any more behind a matmul that
 * does not end. */
static int
be_hung (void)
{
  struct weft_kernel k = product_of (WEFT_OP_MATMUL_GELU, 16, 24, 8);
  struct host h = open_host (90);

  weft_trial_limit = 0.01;
  playing_cublaslt.hangs = 2;
  weft_blas_only_prepare (h.blas, TRUE);
  for (int i = 0; i < 2; i++) {
    call (&h, &k);
    if (!h.error || !strstr (h.error, "did not end"))
      return 1;
  }
  return playing_cublaslt.n_products == 2 && playing_cublaslt.n_freed == 0 ? 0 : 2;
}

static void
a_matmul_that_does_not_end_is_named_and_nothing_waits_for_it (void **state)
{
  pid_t child = fork ();
  int status = -1;

  (void) state;
  if (child == 0)
    _exit (be_hung ());
  assert_int_equal (waitpid (child, &status, 0), child);
  assert_true (WIFEXITED (status));
  assert_int_equal (WEXITSTATUS (status), 0);
}

static void
a_recipe_that_a_gpu_lacks_is_refused_with_one_that_it_has (void **state)
{
  (void) state;
  assert_non_null (strstr (weft_fp8_refused (80, 0), "Ada, Hopper or newer"));
  assert_null (weft_fp8_refused (89, 0));
  assert_null (weft_fp8_refused (90, 0));
  assert_null (weft_fp8_refused (90, 128));
  assert_non_null (strstr (weft_fp8_refused (90, 32), "blockwise on Hopper"));
  assert_non_null (strstr (weft_fp8_refused (89, 128), "use delayed or tensorwise"));
  assert_non_null (strstr (weft_fp8_refused (100, 128), "mxfp8 on Blackwell"));
  assert_null (weft_fp8_refused (103, 32));
  assert_null (weft_fp8_refused (120, 32));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_product_is_told_as_the_library_wants_it),
  cmocka_unit_test (products_of_codes_are_told_as_each_gpu_wants_them),
  cmocka_unit_test_setup_teardown (the_fastest_algorithm_is_kept_in_a_file_and_found_again,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (a_long_inner_dimension_is_cut_if_that_is_faster),
  cmocka_unit_test (an_algorithm_that_wants_more_scratch_than_there_is_is_not_taken),
  cmocka_unit_test (what_the_library_does_not_add_follows),
  cmocka_unit_test (a_bias_gradient_is_in_the_epilogue_where_that_is_faster_and_right),
  cmocka_unit_test (a_gate_is_in_the_product_where_that_is_faster),
  cmocka_unit_test (what_is_only_loaded_runs_once_on_operands_of_its_own),
  cmocka_unit_test (without_memory_to_measure_the_first_suggestion_runs),
  cmocka_unit_test (a_matmul_that_does_not_end_is_named_and_nothing_waits_for_it),
  cmocka_unit_test (a_recipe_that_a_gpu_lacks_is_refused_with_one_that_it_has),
};

WEFT_TESTS (tests)
