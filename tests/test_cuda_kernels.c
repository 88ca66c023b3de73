/* The kernels of CUDA against the fp64 references, on the CPU: tests/emulated_cuda.h runs the code of
 * kernels/cuda/ thread by thread.  On a GPU the same calls are made by test_gpu_kernels.c. */
#include "kernels/cuda/table.h"
#include "kernels/float.h"
#include "tests/emulated_cuda_c.h"
#include "tests/kernel_case.h"
#include <math.h>

enum { N_TRIAL = 12 /* of each op */, N_TILE_TRIAL = 4 };

/* Ops whose shapes kernel_case.h does not draw. */
#define OTHERS "norm_dgrad norm_wgrad bias add_positions dropout dropout_add dropout_bwd"

static gboolean
is_tested (int kind)
{
  return weft_cuda_launchers[kind] && !kernel_case_is_one_of (weft_op_info[kind].word, OTHERS);
}

/* ---------------------------------------------------------------------- a stand-in for cuBLASLt */

static float
element (const void *data, enum weft_dtype dtype, uint64_t at)
{
  float room;
  return *weft_floats (data, dtype, at, 1, &room);
}

const char *
weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  (void) on;
  for (uint64_t m = 0; m < g->m; m++)
    for (uint64_t n = 0; n < g->n; n++) {
      uint64_t at = m * g->n + n;
      float sum = g->accumulate ? element (g->y, g->y_dtype, at) : 0;
      for (uint64_t k = 0; k < g->k; k++)
        sum += element (g->a, g->dtype, g->a_turned ? k * g->m + m : m * g->k + k) *
               element (g->b, g->dtype, g->b_turned ? n * g->k + k : k * g->n + n);
      sum += g->bias ? element (g->bias, g->y_dtype, n) : 0;
      weft_store (g->y, g->y_dtype, at, 1, &sum);
    }
  return NULL;
}

/* ------------------------------------------------------------------------------- one call */

/* Scratch is as large as said and not a byte more: what lies behind it must stay. */
static void
launch (const struct weft_kernel *k)
{
  struct weft_cuda_launch l = weft_cuda_launch_of (k);
  g_autofree uint8_t *scratch = NULL;

  l.scratch_bytes = weft_cuda_scratch (k->kind, &k->shape);
  l.scratch = scratch = g_malloc (l.scratch_bytes + 64);
  memset (scratch, 0xff, l.scratch_bytes + 64);
  assert_null (weft_cuda_launchers[k->kind](&l));
  for (uint64_t i = 0; i < 64; i++)
    assert_int_equal (scratch[l.scratch_bytes + i], 0xff);
}

static void
check (const struct kernel_case *made)
{
  struct weft_kernel cuda = kernel_case_as_stored (made), other = kernel_case_as_stored (made);
  struct weft_kernel reference = kernel_case_as_doubles (made);

  emulated_order_of_threads (FALSE);
  launch (&cuda);
  emulated_order_of_threads (TRUE);
  launch (&other);
  weft_kernels[made->k.kind].reference (&reference);
  for (uint32_t o = 0; o < made->n; o++) {
    const struct weft_operand *x = &cuda.operand[o], *y = &other.operand[o];
    if (!x->data)
      continue;
    kernel_case_compare (made, o, &cuda, &reference);
    if (memcmp (x->data, y->data, x->n * weft_dtype_bytes (x->dtype)) != 0)
      fail_msg ("%s: %s depends on the order of threads", weft_op_info[made->k.kind].word,
                made->argument[o].name);
  }
  kernel_case_free_memory (made, &cuda);
  kernel_case_free_memory (made, &other);
  kernel_case_free_memory (made, &reference);
}

static void
a_cuda_kernel_does_what_its_reference_does (void **state)
{
  GRand *rand = g_rand_new_with_seed (11);

  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (int trial = 0; trial < N_TRIAL && is_tested (kind); trial++) {
      struct kernel_case made;
      kernel_case_make (rand, &made, (enum weft_op_kind) kind);
      made.k.canonical = FALSE;
      made.rounds_inside =
          made.k.shape.dim[4] == 64 && g_str_has_prefix (weft_op_info[kind].word, "attention");
      kernel_case_fit (&made);
      check (&made);
      kernel_case_clear (&made);
    }
  g_rand_free (rand);
}

/* --------------------------------------------------------------------- tiles of attention */

static void
make_attention (GRand *rand, struct kernel_case *made, enum weft_op_kind kind, uint64_t width)
{
  static const uint64_t lengths[] = { 1, 16, 63, 64, 65, 130 };
  uint64_t groups = (uint64_t) g_rand_int_range (rand, 1, 3);
  uint64_t dim[] = { 1, lengths[g_rand_int_range (rand, 0, G_N_ELEMENTS (lengths))], 2 * groups,
                     groups, width };

  kernel_case_make (rand, made, kind);
  memcpy (made->k.shape.dim, dim, sizeof dim);
  made->k.shape.dtype = g_rand_boolean (rand) ? WEFT_BF16 : WEFT_FP16;
  made->k.shape.dim[5] = made->k.shape.dim[6] = 0;
  made->k.canonical = FALSE;
  made->rounds_inside = TRUE;
  for (uint32_t o = 0; o < made->n; o++) {
    g_free (made->k.operand[o].data);
    kernel_case_make_operand (rand, made, o);
  }
  kernel_case_fit (made);
}

static void
tiles_of_attention_do_what_the_reference_does (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_ATTENTION, WEFT_OP_ATTENTION_BWD };
  GRand *rand = g_rand_new_with_seed (12);

  (void) state;
  for (unsigned i = 0; i < 2 * N_TILE_TRIAL; i++)
    for (uint64_t width = 64; width <= 128; width *= 2) {
      struct kernel_case made;
      make_attention (rand, &made, kinds[i % 2], width);
      check (&made);
      kernel_case_clear (&made);
    }
  g_rand_free (rand);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (a_cuda_kernel_does_what_its_reference_does),
    cmocka_unit_test (tiles_of_attention_do_what_the_reference_does),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
