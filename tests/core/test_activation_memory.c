/* Activation memory of a layer: the sizes of the buffers in programs against the formulas of
 * Korthikanti et al. (arXiv 2205.05198), for a small layer and for the models of the paper. */
#include "core/plan/activations.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>

/* --------------------------------------------------------------- layers, term by term */

#define SMALL                                                                                      \
  "num_layers=4 hidden_size=64 num_attention_heads=8 num_query_groups=8 kv_channels=8 "            \
  "ffn_hidden_size=256 vocab_size=512 seq_length=64 topology=dgx-h100 precision=bf16 gpus=8 "      \
  "micro_batch_size=2 global_batch_size=16 "
#define TENSOR "tensor_model_parallel_size=4 "
#define SEQUENCE TENSOR "sequence_parallel=true "
#define PAPER "attention_backend=unfused hidden_dropout=0.1 attention_dropout=0.1 "
#define SELECTIVE "recompute_granularity=selective "
#define FULL "recompute_granularity=full recompute_method=uniform recompute_num_layers=1 "

/* Activation bytes of a layer in units of X = s b h bytes, as in table 2 of arXiv 2205.05198 (s:
 * sequence length, b: microbatch size, h: hidden size). AS_H is a s / h for a heads. */
#define AS_H 8.0
static const struct {
  const char *words;
  double per_x;
} table[] = {
  { PAPER, 34 + 5 * AS_H },
  { PAPER TENSOR, 10 + 24 / 4.0 + 5 * AS_H / 4 },
  { PAPER SEQUENCE, (34 + 5 * AS_H) / 4 },
  { PAPER SELECTIVE, 34 },
  { PAPER TENSOR SELECTIVE, 10 + 24 / 4.0 },
  { PAPER SEQUENCE SELECTIVE, 34 / 4.0 },
  { PAPER FULL, 2 },
  { PAPER TENSOR FULL, 2 },
  { PAPER SEQUENCE FULL, 2 / 4.0 },
  /* Unfused attention without dropout keeps no dropout masks, and keeps one instead of two tensors
   * of s x s attention scores. */
  { "attention_backend=unfused ", 32 + 2 * AS_H },
  /* Flash attention keeps the log-sum-exp, 4 a s b bytes, which are 4 a / h = 0.5 of X. */
  { "", 32 + 0.5 },
  { "attention_backend=fused ", 32 + 0.5 },
  { SEQUENCE, (32 + 0.5) / 4 },
  { "hidden_dropout=0.1 " SEQUENCE, (34 + 0.5) / 4 },
  /* 4 key-value groups instead of 8 halve the bytes of keys and values. swiglu adds a second up
   * projection of the same width. */
  { "num_query_groups=4 activation=swiglu " SEQUENCE,
    (2 + 2 + 4 / 2.0 + 2 + 2 + 6 * 4 + 4 + 0.5) / 4 },
  /* Recompute of module mlp drops the outputs of its norm, of fc1 and of the activation; recompute
   * of module layernorm drops the outputs of both norms. */
  { SELECTIVE "recompute_modules=mlp", 32 + 0.5 - 2 - 16 },
  { SELECTIVE "recompute_modules=layernorm", 32 + 0.5 - 4 },
  { SEQUENCE SELECTIVE "recompute_modules=mlp,layernorm", (32 + 0.5 - 4 - 16) / 4 },
  /* A norm after attention or MLP keeps its input. Without a norm before them, attention and MLP
   * read the residual stream, which every layer keeps. */
  { "norm_placement=sandwich ", 32 + 0.5 + 4 },
  { "norm_placement=post ", 32 + 0.5 - 4 + 4 },
  { "norm_placement=sandwich " SEQUENCE, (32 + 0.5 + 4) / 4 },
  { "norm_placement=sandwich " SELECTIVE "recompute_modules=mlp,layernorm",
    32 + 0.5 + 4 - 4 - 16 },
  /* Parallel residual: attention and MLP read the same residual stream, so a layer keeps one
   * residual stream instead of two. With one norm, attention and MLP also read the same norm
   * output. */
  { "residual=parallel ", 32 + 0.5 - 2 },
  { "residual=parallel " SELECTIVE "recompute_modules=mlp,layernorm", 32 + 0.5 - 2 - 4 - 16 },
  { "residual=parallel_one_norm ", 32 + 0.5 - 2 - 2 },
  { "residual=parallel_one_norm " SELECTIVE "recompute_modules=mlp,layernorm",
    32 + 0.5 - 2 - 2 - 2 - 16 },
};

static double
formula (const weft_plan *plan)
{
  struct weft_kept kept[WEFT_MOST_ACTIVATIONS];
  uint32_t n = weft_activations_of_layer (&plan->job, kept);
  double sum = 0;

  for (uint32_t i = 0; i < n; i++)
    sum += kept[i].bytes;
  return sum;
}

static void
a_layer_keeps_what_the_table_says (void **state)
{
  const double x = 64 * 2 * 64;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (table); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan (SMALL "%s", table[i].words);
    double found = weft_activations_kept (plan->role[0], 1, 0);
    if (found != table[i].per_x * x)
      fail_msg ("%s: found %g of X, wanted %g", table[i].words, found / x, table[i].per_x);
    if (!strstr (table[i].words, "full") && found != formula (plan))
      fail_msg ("%s: found %g of X, by formula %g", table[i].words, found / x, formula (plan) / x);
  }
}

/* Each context parallel rank keeps the activations of its own part of each sequence. */
static void
context_ranks_keep_their_part (void **state)
{
  g_autoptr (weft_plan) one = weft_test_plan (SMALL "hidden_dropout=0.1");
  g_autoptr (weft_plan) two = weft_test_plan (SMALL "hidden_dropout=0.1 context_parallel_size=2");

  (void) state;
  assert_true (formula (one) == 2 * formula (two));
  assert_true (weft_activations_kept (one->role[0], 1, 0) ==
               2 * weft_activations_kept (two->role[0], 1, 0));
}

/* ------------------------------------------------------------------ the paper's models */

/* Table 3 of arXiv 2205.05198: four models with tensor parallel size 8, and microbatches of 4, 1, 1
 * and 1 sequences of 2048 tokens. Each job has twice as many microbatches as stages, so that the
 * first stage keeps as many microbatches as it can. */
static const struct {
  const char *model, *pipeline;
  uint32_t gpus, batch, micro;
  double as_h; /* a s / h */
} models[] = {
  { "megatron-22b", "", 8, 4, 4, 64 / 3.0 },
  { "gpt3-175b", "pipeline_model_parallel_size=8 virtual_pipeline_model_parallel_size=3 ", 64, 16,
    1, 16 },
  { "megatron-530b", "pipeline_model_parallel_size=35 virtual_pipeline_model_parallel_size=3 ", 280,
    70, 1, 12.8 },
  { "megatron-1t", "pipeline_model_parallel_size=64 ", 512, 128, 1, 12.8 },
};

static weft_plan *
plan_of (unsigned i, const char *more)
{
  return weft_test_plan ("topology=dgx-a100 model=%s gpus=%u tensor_model_parallel_size=8 "
                         "precision=bf16 micro_batch_size=%u global_batch_size=%u %s%s",
                         models[i].model, models[i].gpus, models[i].micro, models[i].batch,
                         models[i].pipeline, more);
}

/* Activations that a layer keeps, in units of X = s b h bytes. The model has two layers; the
 * first of them is measured. */
static double
kept_of_x (unsigned i, const char *more)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan ("topology=dgx-a100 model=%s num_layers=2 gpus=8 tensor_model_parallel_size=8 "
                      "precision=bf16 micro_batch_size=%u global_batch_size=%u %s",
                      models[i].model, models[i].micro, models[i].micro, more);
  const union weft_model *m = &plan->job.model;
  double x = (double) m->seq_length * m->hidden_size * models[i].micro;

  return weft_activations_kept (plan->role[0], 0, 0) / x;
}

/* arXiv 2205.05198. Section 5: selective recompute drops 70 % of the activations of GPT-3, and 65 %
 * of those of MT-NLG (530B). Figure 7: sequence parallelism nearly halves the activations of tensor
 * parallelism, and so does selective recompute. Both together leave less than 20 % (530B and 1T:
 * 20.2), and full recompute leaves 10 %. */
static void
the_papers_shares_of_memory_come_out (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++) {
    double tensor = kept_of_x (i, PAPER),
           both = kept_of_x (i, PAPER "sequence_parallel=true " SELECTIVE);
    double sequence = kept_of_x (i, PAPER "sequence_parallel=true"),
           full = kept_of_x (i, PAPER FULL);
    double selective = kept_of_x (i, PAPER SELECTIVE), s5 = 5 * models[i].as_h;

    assert_true (fabs (tensor - (10 + (24 + s5) / 8)) < 1e-9);
    assert_true (fabs (sequence - (34 + s5) / 8) < 1e-9);
    assert_true (fabs (selective - 13) < 1e-9);
    assert_true (fabs (both - 34 / 8.0) < 1e-9);
    assert_true (full == 2);
    assert_true (sequence / tensor > 0.55 && sequence / tensor < 0.68);
    assert_true (selective / tensor > 0.48 && selective / tensor < 0.63);
    assert_true (both / tensor > 0.15 && both / tensor < 0.205);
    assert_true (full / tensor > 0.07 && full / tensor < 0.10);
  }
  assert_true (fabs (1 -
                     kept_of_x (1, PAPER "sequence_parallel=true " SELECTIVE) /
                         kept_of_x (1, PAPER "sequence_parallel=true") -
                     0.70) < 0.005);
  assert_true (fabs (1 -
                     kept_of_x (2, PAPER "sequence_parallel=true " SELECTIVE) /
                         kept_of_x (2, PAPER "sequence_parallel=true") -
                     0.65) < 0.005);
}

/* The peak of activations on the first stage must be that of Megatron-LM's estimate (arXiv
 * 2205.05198, equation 5 with the factor of the interleaved schedule, plus the activations of the
 * embedding). The peak may be up to 6 % larger, because it contains temporary gradients and
 * attention scores. */
static void
the_first_stage_holds_what_megatron_estimates (void **state)
{
  (void) state;
  for (unsigned i = 1; i < G_N_ELEMENTS (models); i++) {
    g_autoptr (weft_plan) plan =
        plan_of (i, PAPER "sequence_parallel=true deallocate_pipeline_outputs=true " SELECTIVE);
    const struct weft_memory *memory = &plan->memory[0];
    double found = (double) memory->at_peak[WEFT_POOL_DEVICE][WEFT_BUF_ACTIVATIONS];
    double wanted = weft_activations_megatron (&plan->job);

    if (found < wanted || found > 1.06 * wanted)
      fail_msg ("%s: %.4g GB, Megatron-LM says %.4g", models[i].model, found / 1e9, wanted / 1e9);
  }
}

/* GPT-3 and MT-NLG with an interleaved schedule and sequence parallelism: the arena must be less
 * than 2 % larger than the largest sum of live buffers. Transfer buffers are live for longer than
 * kernel buffers, which could fragment the arena. */
static void
virtual_stages_and_split_sequences_waste_no_memory (void **state)
{
  (void) state;
  for (unsigned i = 1; i < 3; i++) {
    g_autoptr (weft_plan) plan = plan_of (i, "hidden_dropout=0.1 sequence_parallel=true");
    for (uint32_t role = 0; role < 2; role++) {
      const struct weft_memory *memory = &plan->memory[role];
      assert_true ((double) memory->planned[WEFT_POOL_DEVICE] <
                   1.02 * (double) memory->live[WEFT_POOL_DEVICE]);
    }
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_layer_keeps_what_the_table_says),
  cmocka_unit_test (context_ranks_keep_their_part),
  cmocka_unit_test (the_papers_shares_of_memory_come_out),
  cmocka_unit_test (the_first_stage_holds_what_megatron_estimates),
  cmocka_unit_test (virtual_stages_and_split_sequences_waste_no_memory),
};

WEFT_TESTS (tests)
