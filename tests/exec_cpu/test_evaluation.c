/* Evaluation is the forward half of a step: it changes no state and reports the loss that a
 * training step on the same batch would report. */
#include "exec_cpu/exec_cpu.h"
#include "tests/made/own.h"
#include "tests/made/real_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

enum { SEED = 3 };

#define SIZES                                                                                      \
  "topology=cpu num_layers=4 hidden_size=24 kv_channels=6 ffn_hidden_size=40 seq_length=16 "       \
  "global_batch_size=8 "
static const char *const models[] = {
  SIZES "model=gpt2-nano precision=fp32",
  SIZES "model=gpt2-nano precision=bf16 share_embeddings_and_output_weights=false",
  SIZES "model=llama-nano precision=bf16 grad_reduce_in_fp32=true qk_layernorm=true",
};

#define LAZY                                                                                       \
  "use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "             \
  "bucket_size=3000 "
static const char *const strategies[] = {
  "gpus=1",
  "gpus=4",
  "gpus=1 micro_batch_size=2",
  "gpus=4 pipeline_model_parallel_size=4",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=gpipe overlap_grad_reduce=true",
  "gpus=4 use_distributed_optimizer=true",
  LAZY "gpus=4",
  LAZY "gpus=4 pipeline_model_parallel_size=2",
  "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2",
};
static const char *const orders[] = { "canonical", "fast" };

static real_job *
open_job (const char *model, const char *strategy, const char *order)
{
  g_autofree char *words = g_strdup_printf ("%s %s reduction_order=%s", model, strategy, order);
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "poison") };
  real_job *job = real_job_open (words, &how);

  weft_state_init (job->state, SEED);
  return job;
}

/* ------------------------------------------------------------- what a rank holds */

/* Whether the content of a buffer must survive between steps: permanent buffers except workspace
 * (scalars, tokens). */
static gboolean
is_kept (const struct weft_buf *b)
{
  return b->permanent && b->base == WEFT_NO_BUF && b->kind != WEFT_BUF_WORKSPACE;
}

/* Returns the bytes of all kept buffers (is_kept()) of one kind, in the order of ranks and buffers.
 * The caller frees the array. */
static GByteArray *
kept_bytes (real_job *job, enum weft_buf_kind kind)
{
  GByteArray *all = g_byte_array_new ();

  for (uint32_t row = 0; row < job->x->actors->n; row++) {
    const weft_program *p = job->plan->role[job->x->actors->role[row]];
    for (uint32_t b = 0; b < p->n_buf; b++) {
      if (!is_kept (&p->buf[b]) || p->buf[b].kind != kind)
        continue;
      guint at = all->len;
      g_byte_array_set_size (all, at + p->buf[b].bytes);
      job->x->ops->read (job->x, row, b, 0, p->buf[b].bytes, all->data + at);
    }
  }
  return all;
}

struct kept {
  GByteArray *bytes[WEFT_N_BUF_KIND];
};

static struct kept
look (real_job *job)
{
  struct kept kept;

  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    kept.bytes[kind] = kept_bytes (job, kind);
  assert_true (kept.bytes[WEFT_BUF_WEIGHTS]->len > 0 && kept.bytes[WEFT_BUF_GRADIENTS]->len > 0 &&
               kept.bytes[WEFT_BUF_OPTIMIZER]->len > 0);
  return kept;
}

/* Asserts that the kept buffers of two jobs have the same bytes, and frees both copies. `weights`
 * FALSE: buffers of weights may differ. */
static void
assert_same_kept (struct kept a, struct kept b, gboolean weights, const char *what)
{
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++) {
    const GByteArray *x = a.bytes[kind], *y = b.bytes[kind];
    gboolean same = x->len == y->len && (x->len == 0 || memcmp (x->data, y->data, x->len) == 0);
    if (!same && (weights || kind != WEFT_BUF_WEIGHTS))
      fail_msg ("%s: evaluation changes %s", what, weft_buf_kind_words[kind]);
    g_byte_array_unref (a.bytes[kind]);
    g_byte_array_unref (b.bytes[kind]);
  }
}

/* Asserts that an evaluation changes no state. `fetches`: weights are gathered at their first use,
 * so that the evaluation gathers them; then copies of weights on ranks that do not own them may
 * change. */
static void
assert_changes_nothing (real_job *job, gboolean fetches, const char *what)
{
  uint64_t before[WEFT_N_STATE_KIND];
  struct kept kept = look (job);

  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    before[kind] = real_hash (job->state, kind);
  real_job_evaluate (job);
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    if (real_hash (job->state, kind) != before[kind])
      fail_msg ("%s: evaluation changes %s", what, weft_state_kind_words[kind]);
  struct kept now = look (job);
  assert_same_kept (kept, now, !fetches, what);
}

static void
evaluation_changes_nothing (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++)
      for (unsigned o = 0; o < G_N_ELEMENTS (orders); o++) {
        g_autoptr (real_job) job = open_job (models[m], strategies[s], orders[o]);
        g_autofree char *what = g_strdup_printf ("%s %s %s", models[m], strategies[s], orders[o]);
        gboolean lazy = job->plan->job.strategy.overlap_param_gather;
        assert_changes_nothing (job, FALSE, what);
        real_job_step (job);
        real_job_step (job);
        assert_changes_nothing (job, lazy, what);
        assert_changes_nothing (job, FALSE, what);
      }
}

/* A run with evaluations between all steps must give bit for bit the results of a run without
 * evaluations. */
static void
evaluation_leaves_no_trace_in_the_steps_after_it (void **state)
{
  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++)
    for (unsigned o = 0; o < G_N_ELEMENTS (orders); o++) {
      g_autoptr (real_job) plain = open_job (models[1], strategies[s], orders[o]);
      g_autoptr (real_job) looked_at = open_job (models[1], strategies[s], orders[o]);
      for (int step = 0; step < 3; step++) {
        real_job_evaluate (looked_at);
        const struct weft_metrics *a = real_job_step (plain), *b = real_job_step (looked_at);
        assert_memory_equal (a, b, sizeof *a);
      }
      for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
        assert_null (real_other_tensor (plain->state, looked_at->state, kind));
    }
}

static void
evaluation_finds_the_loss_of_the_step (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++)
      for (unsigned o = 0; o < G_N_ELEMENTS (orders); o++) {
        g_autoptr (real_job) job = open_job (models[m], strategies[s], orders[o]);
        for (int step = 0; step < 3; step++) {
          double alone = real_job_evaluate (job)->loss, whole = real_job_step (job)->loss;
          if (!isfinite (alone) || alone != whole)
            fail_msg ("%s %s %s: step %d: evaluation finds %.17g, the step %.17g", models[m],
                      strategies[s], orders[o], step + 1, alone, whole);
        }
      }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (evaluation_changes_nothing),
  cmocka_unit_test (evaluation_leaves_no_trace_in_the_steps_after_it),
  cmocka_unit_test (evaluation_finds_the_loss_of_the_step),
};

WEFT_TESTS (tests, .seconds = 5)
