/* Steps whose gradients are not finite: all ranks must skip the update or, if no norm is computed,
 * all must update. */
#include "exec_cpu/exec_cpu.h"
#include "kernels/kernel.h"
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
  "gpus=8",
  "gpus=4 pipeline_model_parallel_size=4",
  "gpus=4 use_distributed_optimizer=true",
  LAZY "gpus=8",
  LAZY "gpus=8 pipeline_model_parallel_size=2",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2",
};
static const char *const orders[] = { "canonical", "fast" };

static real_job *
open_job (const char *model, const char *strategy, const char *more)
{
  g_autofree char *words = g_strdup_printf ("%s %s %s", model, strategy, more);
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "poison") };
  real_job *job = real_job_open (words, &how);

  weft_state_init (job->state, SEED);
  real_job_step (job);
  return job;
}

static uint32_t
find (const weft_state *state, const char *name)
{
  for (uint32_t i = 0; i < weft_state_count (state); i++)
    if (g_str_equal (weft_state_at (state, i)->name, name))
      return i;
  fail_msg ("there is no tensor %s", name);
  return 0;
}

/* One element of a weight, with its value and the value of its master. */
struct element {
  uint32_t tensor;
  uint64_t at;
  float weight, master;
};

/* An element of the embedding that the next step reads. Only some sequences contain its token, and
 * only the first stage holds the embedding, so the fault begins on one rank. */
static struct element
element_of_next_step (real_job *job)
{
  struct element e = { .tensor = find (job->state, "embedding.weight") };
  g_autofree int32_t *tokens = real_tokens (job->plan, (uint32_t) job->control.step + 1);

  e.at = (uint64_t) tokens[3] * weft_state_at (job->state, e.tensor)->columns;
  weft_state_read (job->state, e.tensor, WEFT_STATE_WEIGHT, e.at, 1, &e.weight);
  weft_state_read (job->state, e.tensor, WEFT_STATE_MASTER, e.at, 1, &e.master);
  return e;
}

static void
write_element (real_job *job, const struct element *e)
{
  weft_state_write (job->state, e->tensor, WEFT_STATE_WEIGHT, e->at, 1, &e->weight);
  weft_state_write (job->state, e->tensor, WEFT_STATE_MASTER, e->at, 1, &e->master);
}

static void
spoil (real_job *job, float value)
{
  struct element e = element_of_next_step (job);

  e.weight = e.master = value;
  write_element (job, &e);
}

/* Runs a step that must be skipped: weights and moments do not change, and all ranks report it. */
static void
assert_skips (real_job *job, const char *what)
{
  uint64_t before[WEFT_STATE_GRAD];

  for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
    before[kind] = real_hash (job->state, kind);
  if (isfinite (real_job_step (job)->loss))
    fail_msg ("%s: the loss is finite", what);
  for (uint32_t row = 0; row < job->x->actors->n; row++)
    if (!job->x->metrics[row].skipped || isfinite (job->x->metrics[row].grad_norm))
      fail_msg ("%s: rank %u does not skip the step", what, row);
  for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
    if (real_hash (job->state, kind) != before[kind])
      fail_msg ("%s: %s is another", what, weft_state_kind_words[kind]);
}

/* Repeats the skipped step after the damaged weight was restored. Its results must be those of
 * `unharmed`, a job without a skipped step. */
static void
assert_recovers (real_job *job, real_job *unharmed, const char *what)
{
  job->control.step--;
  const struct weft_metrics *a = real_job_step (job), *b = real_job_step (unharmed);
  if (memcmp (a, b, sizeof *a))
    fail_msg ("%s: loss %.17g and norm %.17g, wanted %.17g and %.17g", what, a->loss, a->grad_norm,
              b->loss, b->grad_norm);
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    if (real_other_tensor (job->state, unharmed->state, kind))
      fail_msg ("%s: %s is another afterwards", what, weft_state_kind_words[kind]);
}

static void
skip_and_recover (const char *model, const char *strategy, const char *order)
{
  static const float values[] = { INFINITY, NAN };
  g_autofree char *more = g_strdup_printf ("reduction_order=%s", order);

  for (unsigned v = 0; v < G_N_ELEMENTS (values); v++) {
    g_autofree char *what =
        g_strdup_printf ("%s %s %s, %g", model, strategy, order, (double) values[v]);
    g_autoptr (real_job) job = open_job (model, strategy, more);
    g_autoptr (real_job) unharmed = open_job (model, strategy, more);
    struct element good = element_of_next_step (job);
    spoil (job, values[v]);
    assert_skips (job, what);
    write_element (job, &good);
    assert_recovers (job, unharmed, what);
  }
}

static void
a_step_that_is_not_finite_is_skipped_by_all_ranks (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++)
      for (unsigned o = 0; o < G_N_ELEMENTS (orders); o++)
        skip_and_recover (models[m], strategies[s], orders[o]);
}

/* Weights that are stored in fp8 are not written by Adam, but rounded from the masters afterwards.
 * A skipped step must not change them either. */
static void
weights_in_fp8_outlast_a_skipped_step (void **state)
{
  static const char *const stored[] = {
    "gpus=1 fp8_param_gather=true use_distributed_optimizer=true",
    LAZY "gpus=4 fp8_param_gather=true",
    LAZY "gpus=4 fp8_param_gather=true reuse_grad_buf_for_mxfp8_param_ag=true",
    "gpus=4 fp8_param_gather=true use_megatron_fsdp=true zero_dp_strategy=2",
    "gpus=4 fp8_param_gather=true use_megatron_fsdp=true zero_dp_strategy=3 "
    "keep_fp8_transpose_cache=true",
  };

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (stored); s++)
    for (unsigned o = 0; o < G_N_ELEMENTS (orders); o++)
      skip_and_recover (models[1], stored[s], orders[o]);
}

/* Only the norm shows that a gradient is not finite. Without clipping there is no norm, so the
 * update writes weights that are not finite. */
static void
without_a_norm_nothing_is_skipped (void **state)
{
  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
    g_autoptr (real_job) job = open_job (models[0], strategies[s], "clip_grad=0");
    uint64_t before = real_hash (job->state, WEFT_STATE_WEIGHT);
    spoil (job, INFINITY);
    assert_false (isfinite (real_job_step (job)->loss));
    for (uint32_t row = 0; row < job->x->actors->n; row++)
      assert_true (!job->x->metrics[row].skipped && isnan (job->x->metrics[row].grad_norm));
    assert_true (real_hash (job->state, WEFT_STATE_WEIGHT) != before);
    assert_false (isfinite (real_job_step (job)->loss));
  }
}

static float
clipped (float squares, double limit, float found)
{
  struct weft_control control = { .clip_grad = limit };
  float factor = -1;
  struct weft_kernel k = { .kind = WEFT_OP_CLIP,
                           .control = &control,
                           .operand = { { &squares, 1, WEFT_FP32, 0 },
                                        { &found, 1, WEFT_FP32, 0 },
                                        { &factor, 1, WEFT_FP32, 0 } } };

  weft_cpu_clip (&k, 0, 1);
  return factor;
}

static void
a_norm_is_clipped_to_its_limit_and_one_that_is_not_finite_to_nothing (void **state)
{
  (void) state;
  assert_true (clipped (0.25f, 1, 0) == 1);
  assert_true (fabs ((double) clipped (16, 1, 0) - 1 / (4 + 1e-6)) < 1e-7);
  assert_true (clipped (INFINITY, 1, 0) == 0 && clipped (NAN, 1, 0) == 0);
  assert_true (clipped (0.25f, 1, 1) == 0); /* the third argument of clipped() is found_inf */
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_step_that_is_not_finite_is_skipped_by_all_ranks),
  cmocka_unit_test (weights_in_fp8_outlast_a_skipped_step),
  cmocka_unit_test (without_a_norm_nothing_is_skipped),
  cmocka_unit_test (a_norm_is_clipped_to_its_limit_and_one_that_is_not_finite_to_nothing),
};

WEFT_TESTS (tests, .seconds = 7)
