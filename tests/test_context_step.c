/* Steps of ranks that share sequences: real numbers, what is sent, and what is refused. */
#include "core/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "tests/random_job.h"
#include "tests/real_run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define STEPS 2

#define SMALL                                                                                      \
  " seq_length=16 global_batch_size=4 hidden_size=32 num_attention_heads=8 num_query_groups=4 "    \
  "kv_channels=8 ffn_hidden_size=96 num_layers=4 "
static const char *const models[] = { "model=gpt2-nano" SMALL, "model=llama-nano qk_layernorm=true" SMALL };

static const char *const kinds[] = {
  "context_parallel_size=2 cp_comm_type=p2p gpus=2",
  "context_parallel_size=4 cp_comm_type=p2p gpus=4",
  "context_parallel_size=2 cp_comm_type=all_gather gpus=2",
  "context_parallel_size=4 cp_comm_type=all_gather gpus=4",
  "context_parallel_size=2 cp_comm_type=a2a gpus=2",
  "context_parallel_size=4 cp_comm_type=a2a gpus=4",
  "context_parallel_size=4 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=2,2 gpus=4",
  "context_parallel_size=2 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=1,2 gpus=2",
};

static struct real_result
run_words (const char *model, const char *strategy, const char *more, struct real_run run)
{
  g_autofree char *words =
      g_strdup_printf ("topology=cpu %s %s %s micro_batch_size=1", model, strategy, more);

  run.words = words;
  run.steps = STEPS;
  return weft_test_run (&run);
}

static void
expect_same (const struct real_result *one, const struct real_result *other, const char *words)
{
  if (!weft_test_same_bits (one, other, STEPS))
    fail_msg ("%s: loss %.17g, of one rank %.17g; norm %.17g and %.17g; gradients %s; weights %s",
              words, other->loss[0], one->loss[0], other->norm[0], one->norm[0],
              other->gradients == one->gradients ? "same" : "other",
              other->weights == one->weights ? "same" : "other");
}

static void
every_kind_has_the_bits_of_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result one = run_words (models[m], "gpus=1", "", (struct real_run){ 0 });
    for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
      struct real_result other =
          run_words (models[m], kinds[k], "", (struct real_run){ .poison = TRUE });
      expect_same (&one, &other, kinds[k]);
    }
  }
}

static gboolean
is_near (double a, double b)
{
  return fabs (a - b) <= 1e-6 * fabs (b);
}

static void
in_fast_order_every_kind_is_near_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result one =
        run_words (models[m], "gpus=1", "reduction_order=fast", (struct real_run){ 0 });
    for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
      struct real_result other = run_words (models[m], kinds[k], "reduction_order=fast",
                                            (struct real_run){ .poison = TRUE });
      for (unsigned i = 0; i < STEPS; i++)
        if (!is_near (other.loss[i], one.loss[i]) || !is_near (other.norm[i], one.norm[i]))
          fail_msg ("%s: loss %.9g, of one rank %.9g; norm %.9g and %.9g", kinds[k], other.loss[i],
                    one.loss[i], other.norm[i], one.norm[i]);
    }
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (every_kind_has_the_bits_of_one_rank),
    cmocka_unit_test (in_fast_order_every_kind_is_near_one_rank),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
