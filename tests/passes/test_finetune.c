/* Frozen parts and LoRA adapters: what they need in memory, which products they leave out, that
 * every strategy gives the bits of one rank, gradients against finite differences, and that frozen
 * weights stay as they were. */
#include "core/job/finetune.h"
#include "tests/made/questions.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/made/small_models.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define LORA "lora_dim=3 lora_alpha=8 "

static const char *const strategies[] = {
  "gpus=4 overlap_grad_reduce=true bucket_size=700",
  "gpus=2 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
  "gpus=2 tensor_model_parallel_size=2",
  "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true use_distributed_optimizer=true",
  "gpus=4 pipeline_model_parallel_size=2 tensor_model_parallel_size=2",
  "gpus=2 context_parallel_size=2",
};

static void
adapters_have_the_bits_of_one_rank_in_every_strategy (void **state)
{
  (void) state;
  weft_test_check_strategies (LLAMA LORA, strategies, G_N_ELEMENTS (strategies));
}

static void
parts_and_single_adapters_have_the_bits_of_one_rank (void **state)
{
  static const char *const models[] = {
    GPT2 "lora_dim=1 target_modules=linear_proj,linear_fc1 ",
    GPT2 "freeze=embedding,head ",
    LLAMA "freeze=embedding,attention,mlp ",
    LLAMA "freeze=norm,head,mlp ",
    LLAMA "precision=bf16 qk_layernorm=true freeze=embedding,norm,attention ",
    "model=gemma2-nano num_query_groups=2 " SIZES "lora_dim=2 target_modules=linear_fc2 ",
    "model=neox-nano num_query_groups=4 " SIZES LORA,
  };
  static const char *const one[] = {
    "gpus=4 pipeline_model_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true"
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++)
    weft_test_check_strategies (models[i], one, 1);
}

/* Recompute and interleaved stages run other ops, but give the same bits. */
static void
recompute_does_not_change_the_bits_of_adapters (void **state)
{
  static const char *const more[] = {
    "gpus=1 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
    "gpus=1 recompute_granularity=selective recompute_modules=mlp,layernorm",
    "gpus=2 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
    "overlap_p2p_comm=true batch_p2p_comm=false",
  };

  (void) state;
  weft_test_check_strategies (LLAMA LORA, more, G_N_ELEMENTS (more));
}

/* ------------------------------------------------------------------- memory and FLOPs */

static uint64_t
kept_bytes (const weft_program *p, enum weft_buf_kind kind)
{
  uint64_t sum = 0;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].permanent && p->buf[i].base == WEFT_NO_BUF && p->buf[i].kind == kind)
      sum += p->buf[i].bytes;
  return sum;
}

/* Elements of all adapters of the model LLAMA: r (inputs + outputs) of each linear map. */
enum { RANK = 3, LAYERS = 4, MAPS = (32 + 64) + (32 + 32) + (32 + 96) + (48 + 32) };

/* bf16 weights, fp32 gradients, and fp32 masters and moments, of adapters only. */
static void
only_adapters_have_gradients_and_optimizer_state (void **state)
{
  const uint64_t n = RANK * LAYERS * MAPS;
  g_autoptr (weft_program) all = built (LLAMA "precision=bf16 gpus=1", 0);
  g_autoptr (weft_program) p =
      built (LLAMA LORA "precision=bf16 gpus=1 grad_reduce_in_fp32=true reduction_order=fast", 0);

  (void) state;
  assert_int_equal (kept_bytes (p, WEFT_BUF_GRADIENTS), 4 * n);
  assert_int_equal (kept_bytes (p, WEFT_BUF_OPTIMIZER), 12 * n);
  assert_in_range (kept_bytes (p, WEFT_BUF_WEIGHTS), kept_bytes (all, WEFT_BUF_WEIGHTS) + 2 * n,
                   kept_bytes (all, WEFT_BUF_WEIGHTS) + 2 * n + 128 * p->n_param);
  for (uint32_t i = 0; i < p->n_param; i++) {
    gboolean adapter = strstr (p->name[p->param[i].name], "lora") != NULL;
    assert_int_equal (p->param[i].frozen, !adapter);
    assert_int_equal (p->param[i].grad == WEFT_NO_BUF, !adapter);
  }
}

/* FLOPs of matrix products with weights, of all microbatches. */
static double
product_flops (const weft_program *p)
{
  double sum = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_MATMUL || p->op[op].kind == WEFT_OP_MATMUL_DGRAD ||
        p->op[op].kind == WEFT_OP_MATMUL_WGRAD)
      sum += weft_op_info[p->op[op].kind].flops (weft_op_shape (p, op));
  return sum;
}

/* weft_job_tuned_flops() counts the input gradients of the first layer whole; backward leaves out
 * those of its lowest linear map with an adapter, of the map and of the adapter, and below. */
static void
products_have_the_flops_that_mfu_counts (void **state)
{
  static const struct {
    const char *words;
    double skipped; /* elements of matrices of the first layer without input gradients */
  } jobs[] = {
    { LORA, 64 * 32 + RANK * 32 },
    { "lora_dim=3 target_modules=linear_fc2 ", 64 * 32 + 32 * 32 + 96 * 32 + 32 * 48 + RANK * 48 },
    { "freeze=embedding,head ", 0 },
    { "freeze=embedding,norm,head ", 64 * 32 },
    { "freeze=norm,mlp ", 0 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autofree char *words = g_strconcat (LLAMA "gpus=1 ", jobs[i].words, NULL);
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
    const struct weft_tuned_flops f = weft_job_tuned_flops (&plan->job, TRUE);
    double tokens = 4 * 16, wanted = weft_tuned_flops_sum (&f) - f.pairs - 2 * jobs[i].skipped;
    assert_true (fabs (product_flops (plan->role[0]) - wanted * tokens) < 1);
  }
}

/* ------------------------------------------------------------------------- numbers */

/* Gives the second matrix of each adapter values, so that its first matrix has a gradient. */
static void
fill_adapters (real_job *job)
{
  for (uint32_t t = 0; t < weft_state_count (job->state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (job->state, t);
    uint64_t n = tensor->rows * tensor->columns;
    g_autofree float *value = g_new (float, n);
    if (tensor->frozen)
      continue;
    for (uint64_t i = 0; i < n; i++)
      value[i] = (float) (0.2 * sin (1.7 * (double) (i + t)));
    weft_state_write (job->state, t, WEFT_STATE_WEIGHT, 0, n, value);
  }
}

/* The loss after a tensor has moved by `step` along `direction`. */
static double
loss_at (real_job *job, uint32_t t, const float *direction, double step)
{
  const struct weft_state_tensor *tensor = weft_state_at (job->state, t);
  uint64_t n = tensor->rows * tensor->columns;
  g_autofree float *value = g_new (float, n), *moved = g_new (float, n);

  weft_state_read (job->state, t, WEFT_STATE_WEIGHT, 0, n, value);
  for (uint64_t i = 0; i < n; i++)
    moved[i] = (float) (value[i] + step * direction[i]);
  weft_state_write (job->state, t, WEFT_STATE_WEIGHT, 0, n, moved);
  double loss = real_job_evaluate (job)->loss;
  weft_state_write (job->state, t, WEFT_STATE_WEIGHT, 0, n, value);
  return loss;
}

/* Along a random direction d, (loss (w + e d) - loss (w - e d)) / 2 e is the product of gradient
 * and d. Kernels are fp32, but the loss is an exact sum. */
static void
check_gradient (real_job *job, uint32_t t, GRand *rand)
{
  const struct weft_state_tensor *tensor = weft_state_at (job->state, t);
  uint64_t n = tensor->rows * tensor->columns;
  g_autofree float *gradient = g_new (float, n), *direction = g_new (float, n);
  double product = 0, size = 0, step;

  weft_state_read (job->state, t, WEFT_STATE_GRAD, 0, n, gradient);
  for (uint64_t i = 0; i < n; i++)
    size += (double) gradient[i] * gradient[i];
  size = sqrt (size);
  assert_true (size > 1e-4);
  for (uint64_t i = 0; i < n; i++) {
    direction[i] =
        (float) (gradient[i] / size + g_rand_double_range (rand, -1, 1) / sqrt ((double) n));
    product += (double) gradient[i] * direction[i];
  }
  step = 0.01;
  double found =
      (loss_at (job, t, direction, step) - loss_at (job, t, direction, -step)) / step / 2;
  if (fabs (found - product) > 0.02 * fabs (product) + 2e-4)
    fail_msg ("%s: found %g by differences, wanted %g", tensor->name, found, product);
}

static void
gradients_of_adapters_are_finite_differences (void **state)
{
  g_autoptr (real_job) job = real_job_open (LLAMA "num_layers=2 gpus=1 clip_grad=0 " LORA, NULL);
  g_autoptr (GRand) rand = g_rand_new_with_seed (24);

  (void) state;
  weft_state_init (job->state, 5);
  fill_adapters (job);
  job->control.lr = 0;
  real_job_step (job);
  job->control.step = 0; /* evaluation reads the tokens of the first step */
  for (uint32_t t = 0; t < weft_state_count (job->state); t++)
    if (!weft_state_at (job->state, t)->frozen)
      check_gradient (job, t, rand);
}

/* Hash of the bits of all frozen tensors (`frozen`), or of all others. */
static uint64_t
hash_of (weft_state *state, gboolean frozen)
{
  uint64_t hash = 0xcbf29ce484222325u;

  for (uint32_t t = 0; t < weft_state_count (state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (state, t);
    uint64_t n = tensor->rows * tensor->columns;
    g_autofree uint32_t *word = g_new (uint32_t, n);
    if (tensor->frozen != frozen)
      continue;
    weft_state_read (state, t, WEFT_STATE_MASTER, 0, n, (float *) (void *) word);
    for (uint64_t i = 0; i < n; i++)
      hash = (hash ^ word[i]) * 0x100000001b3u;
  }
  return hash;
}

static void
steps_change_adapters_and_not_the_base (void **state)
{
  g_autoptr (real_job) job =
      real_job_open (LLAMA LORA "precision=bf16 gpus=4 tensor_model_parallel_size=2 "
                                "use_distributed_optimizer=true",
                     NULL);

  (void) state;
  weft_state_init (job->state, 5);
  uint64_t base = hash_of (job->state, TRUE), adapters = hash_of (job->state, FALSE);
  job->control.lr = 1e-2;
  for (int step = 0; step < 3; step++)
    real_job_step (job);
  assert_true (hash_of (job->state, TRUE) == base);
  assert_false (hash_of (job->state, FALSE) == adapters);
}

/* B is zero at the start, so the first loss is that of the base model. */
static void
the_loss_begins_at_the_base_and_falls (void **state)
{
  g_autoptr (real_job) plain = real_job_open (LLAMA "gpus=1", NULL);
  g_autoptr (real_job) job = real_job_open (LLAMA LORA "gpus=1", NULL);

  (void) state;
  weft_state_init (plain->state, 5);
  weft_state_init (job->state, 5);
  double first = real_job_evaluate (job)->loss, loss = first;
  assert_true (real_job_evaluate (plain)->loss == first);
  job->control.lr = 1e-2;
  for (int step = 0; step < 20; step++) {
    job->control.step = 0; /* the same tokens in every step */
    real_job_step (job);
  }
  job->control.step = 0;
  loss = real_job_evaluate (job)->loss;
  print_message ("%g -> %g\n", first, loss);
  assert_true (loss < first - 0.1);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (adapters_have_the_bits_of_one_rank_in_every_strategy),
  cmocka_unit_test (parts_and_single_adapters_have_the_bits_of_one_rank),
  cmocka_unit_test (recompute_does_not_change_the_bits_of_adapters),
  cmocka_unit_test (only_adapters_have_gradients_and_optimizer_state),
  cmocka_unit_test (products_have_the_flops_that_mfu_counts),
  cmocka_unit_test (gradients_of_adapters_are_finite_differences),
  cmocka_unit_test (steps_change_adapters_and_not_the_base),
  cmocka_unit_test (the_loss_begins_at_the_base_and_falls),
};

WEFT_TESTS (tests)
