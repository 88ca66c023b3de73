/* Mutants (programs that lack one dependency) are run with real numbers, in random orders that
 * their dependencies allow. A mutant that the checker (check.h) accepts must keep its bits. Of the
 * mutants that the checker refuses, most have other bits within a few seeds, which shows that the
 * checker is right. */
#include "core/plan/check.h"
#include "core/base/sanitize.h"
#include "tests/made/mutant.h"
#include "tests/made/questions.h"
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <stdint.h>

#define SEEDS_WRONG 40
#define SEEDS_RIGHT 4
/* The address sanitizer ends a program that reads a freed buffer, as refused mutants do. With the
 * sanitizer, only accepted mutants run; the sanitizer must not report them. */
#define RUNS_WRONG !WEFT_ADDRESS_SANITIZER

static const char *const jobs[] = {
  "gpus=4 overlap_grad_reduce=true overlap_param_gather=true use_distributed_optimizer=true "
  "bucket_size=2000",
  "gpus=4 pipeline_model_parallel_size=2 overlap_grad_reduce=true bucket_size=2000 "
  "share_embeddings_and_output_weights=true batch_p2p_sync=false",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=gpipe batch_p2p_sync=false "
  "deallocate_pipeline_outputs=true",
};

struct tally {
  uint32_t refused, shown, passed;
};

/* The first seed with which a mutant has other bits or deadlocks; 0: none. */
static uint32_t
seeds_until_it_shows (const weft_plan *plan, const struct real_result *good, uint32_t seeds)
{
  for (uint32_t seed = 1; seed <= seeds; seed++) {
    struct real_run run = { .steps = 1, .stress = seed, .poison = TRUE };
    struct real_result found;
    g_autoptr (GError) error = NULL;
    if (!weft_test_run_plan (plan, &run, &found, &error) || !weft_test_same_bits (good, &found, 1))
      return seed;
  }
  return 0;
}

static void
try_edge (weft_plan *plan, uint32_t role, uint32_t op, uint32_t edge,
          const struct real_result *good, struct tally *n)
{
  weft_program *whole = plan->role[role];
  g_autoptr (weft_program) mutant = weft_mutant_without_edge (whole, op, edge);

  plan->role[role] = mutant;
  if (is_proved (plan)) {
    n->passed++;
    uint32_t seed = seeds_until_it_shows (plan, good, SEEDS_RIGHT);
    if (seed)
      fail_msg ("role %u, op %u without op %u passes the proofs and changes bits with seed %u",
                role, op, whole->deps[edge], seed);
  } else {
    n->refused++;
    n->shown += RUNS_WRONG && seeds_until_it_shows (plan, good, SEEDS_WRONG) > 0;
  }
  plan->role[role] = whole;
}

static void
dependencies_that_matter_show_in_the_bits (void **state)
{
  struct tally n = { 0 };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    g_autoptr (weft_plan) plan = weft_test_plan (
        "num_layers=4 hidden_size=16 num_attention_heads=2 kv_channels=8 ffn_hidden_size=32 "
        "vocab_size=64 seq_length=8 activation=swiglu precision=fp32 topology=cpu "
        "global_batch_size=8 %s",
        jobs[j]);
    struct real_run run = { .steps = 1, .poison = TRUE };
    struct real_result good;
    g_autoptr (GError) error = NULL;
    assert_true (weft_test_run_plan (plan, &run, &good, &error));
    for (uint32_t role = 0; role < plan->n_roles; role++)
      for (uint32_t op = 0; op < plan->role[role]->n_op; op++)
        for (uint32_t d = plan->role[role]->op[op].deps; d < plan->role[role]->op[op + 1].deps; d++)
          try_edge (plan, role, op, d, &good, &n);
  }
  print_message ("%u dependencies refused by the proofs, %u of them show within %d seeds; %u that "
                 "pass keep all bits\n",
                 n.refused, n.shown, SEEDS_WRONG, n.passed);
  assert_true (n.refused > 50 && n.passed > 0);
  assert_true (!RUNS_WRONG || n.shown * 10 > n.refused * 6);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (dependencies_that_matter_show_in_the_bits),
};

WEFT_TESTS (tests, .seconds = 15)
