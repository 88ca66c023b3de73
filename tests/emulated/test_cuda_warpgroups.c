/* Training steps on a double of a device with wgmma (compute capability 9.0): attention and grouped
 * GEMM in 16 bits and fp8 must use wgmma kernels, and results must be near those of the CPU. */
#include "core/base/sanitize.h"
#include "kernels/cuda/producer.h"
#include "tests/doubles/computing_cuda.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/made/trained_cases.h"
#include "tests/runner/runner.h"

#define SPARSE (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 5 : 1)

/* wgmma kernels by purpose. A step must launch all kernels of a purpose (attention, grouped GEMM,
 * fp8 grouped GEMM), or none. */
static const struct {
  enum trained_by by;
  const char *kernel;
} kernels[] = {
  { TRAINED_ATTENTION, "warpgroup_forward" }, { TRAINED_ATTENTION, "warpgroup_queries" },
  { TRAINED_ATTENTION, "warpgroup_keys" },    { TRAINED_PRODUCTS, "warpgroup_tiles" },
  { TRAINED_CODES, "warpgroup_codes" },      { TRAINED_GATE, "gated_tiles" },
};

static void
check (uint32_t number, gboolean warpgroups)
{
  g_autoptr (computing_cuda) d = computing_cuda_new (number);
  const struct trained_wide *c = &trained_wide[number];
  uint64_t before[G_N_ELEMENTS (kernels)];

  d->warpgroups = warpgroups;
  for (unsigned i = 0; i < G_N_ELEMENTS (kernels); i++)
    before[i] = emulated_launches (kernels[i].kernel);
  assert_true (trained_wide_as_on_the_cpu (&d->calls, number, number % 3 == 0));
  for (unsigned i = 0; i < G_N_ELEMENTS (kernels); i++)
    if ((emulated_launches (kernels[i].kernel) > before[i]) !=
        (warpgroups && c->by & kernels[i].by))
      fail_msg ("%s: %s", c->words, kernels[i].kernel);
  assert_int_equal (d->n_open, 0);
}

static void
steps_by_warpgroups_are_those_of_the_cpu (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < trained_n_wide; i += SPARSE)
    check (i, TRUE);
}

/* A device without wgmma must launch none of the wgmma kernels. */
static void
steps_without_them_are_so_too (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < trained_n_wide; i += 8)
    check (i, FALSE);
}

/* Attention with a producer warp. Its backward supports whole sequences only. */
static void
steps_with_a_producer_warp_are_those_of_the_cpu (void **state)
{
  (void) state;
  for (uint32_t i = 0; i < trained_n_wide; i += 2 * SPARSE) {
    const struct trained_wide *c = &trained_wide[i];
    uint64_t forward = emulated_launches ("producer_forward"),
             backward = emulated_launches ("producer_backward");
    if (!(c->by & TRAINED_ATTENTION))
      continue;
    g_autoptr (computing_cuda) d = computing_cuda_new (i);
    d->warpgroups = WEFT_WARPGROUPS_PRODUCER;
    assert_true (trained_wide_as_on_the_cpu (&d->calls, i, i % 3 == 0));
    assert_true (emulated_launches ("producer_forward") > forward);
    assert_int_equal (emulated_launches ("producer_backward") > backward,
                      !strstr (c->words, "context_parallel_size"));
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (steps_by_warpgroups_are_those_of_the_cpu),
  cmocka_unit_test (steps_without_them_are_so_too),
  cmocka_unit_test (steps_with_a_producer_warp_are_those_of_the_cpu),
};

WEFT_TESTS (tests, .seconds = 7)
