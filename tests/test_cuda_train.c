/* Training on the CUDA executor with numbers, where there is no GPU. */
#include "tests/computing_cuda.h"
#include "tests/trained.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define SIZES " topology=cpu reduction_order=fast precision=fp32 num_layers=2 hidden_size=32 num_attention_heads=4 kv_channels=8 ffn_hidden_size=64 vocab_size=96 seq_length=16 max_position_embeddings=16 micro_batch_size=1 global_batch_size=4 "

static void
first (void **state)
{
  (void) state;
  const char *w[] = {"model=gpt2-nano num_query_groups=4" SIZES, "model=llama-nano num_query_groups=2" SIZES};
  for (int i = 0; i < 2; i++) {
    g_autoptr (computing_cuda) d = computing_cuda_new (0);
    g_autoptr (trained) cpu = trained_new (NULL, w[i], NULL);
    g_autoptr (trained) gpu = trained_new (&d->calls, w[i], NULL);
    trained_assert_near (gpu, cpu, (struct trained_bound){1e-5,1e-5,1e-5}, w[i]);
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (first),
  };

  return cmocka_run_group_tests (tests, NULL, NULL);
}
