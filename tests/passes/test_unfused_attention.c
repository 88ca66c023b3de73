/* Attention as separate matmuls, and dropout: kernels against references, references against those
 * of flash attention, properties of the random masks, and training under many strategies. */
#include "core/base/sanitize.h"
#include "kernels/kernel.h"
#include "tests/made/real_run.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define MOST 4096
#define STRIDE (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 3 : 1)

/* ------------------------------------------------------------------------- kernels */

/* All operands of the ops of unfused attention. They exist twice: in fp64 for the reference, and in
 * fp32. */
enum array { QKV, SCORES, PROBS, OUT, DOUT, DPROBS, DSCORES, DQKV, LSE, N_ARRAY };
struct arrays {
  double d[N_ARRAY][MOST];
  float f[N_ARRAY][MOST];
};

struct shape {
  uint64_t batch, sequence, heads, groups, width, window;
};

static const struct shape shapes[] = {
  { 1, 1, 1, 1, 1, 0 },  { 2, 7, 3, 1, 4, 0 },  { 1, 19, 4, 2, 6, 0 },
  { 3, 5, 2, 2, 13, 0 }, { 2, 12, 4, 4, 3, 5 }, { 1, 9, 6, 3, 2, 1 },
};

/* Returns the kernel call of an op on the operands `s` and their shapes. */
static struct weft_kernel
call (enum weft_op_kind kind, const struct shape *s, const union weft_model *model)
{
  gboolean square = kind == WEFT_OP_SOFTMAX || kind == WEFT_OP_SOFTMAX_BWD;
  struct weft_kernel k = { .kind = kind, .model = model };

  k.shape.dim[0] = s->batch;
  k.shape.dim[1] = s->sequence;
  k.shape.dim[2] = s->heads;
  if (!square) {
    k.shape.dim[3] = s->groups;
    k.shape.dim[4] = s->width;
  }
  return k;
}

static void
bind (struct weft_kernel *k, struct arrays *a, gboolean doubles, const enum array *which)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[k->kind].operands, " ", -1);

  for (uint32_t i = 0; words[i]; i++) {
    uint64_t n = weft_kernels[k->kind].extent (k, i);
    assert_true (n <= MOST);
    k->operand[i] =
        (struct weft_operand){ .data = doubles ? (void *) a->d[which[i]] : (void *) a->f[which[i]],
                               .n = n,
                               .dtype = WEFT_FP32 };
  }
}

#define ARRAYS(...) ((const enum array[]){ __VA_ARGS__ })
#define CHAIN(X)                                                                                   \
  X (WEFT_OP_SCORES, QKV, SCORES)                                                                  \
  X (WEFT_OP_SOFTMAX, SCORES, PROBS)                                                               \
  X (WEFT_OP_WEIGHT_VALUES, PROBS, QKV, OUT)                                                       \
  X (WEFT_OP_WEIGHT_VALUES_BWD, DOUT, QKV, DPROBS)                                                 \
  X (WEFT_OP_SOFTMAX_BWD, DPROBS, PROBS)                                                           \
  X (WEFT_OP_SCORES_BWD, DPROBS, PROBS, DOUT, QKV, DQKV)

static void
run_reference (struct arrays *a, const struct shape *s, const union weft_model *model)
{
  struct weft_kernel k;

#define STEP(op, ...)                                                                              \
  k = call (op, s, model);                                                                         \
  bind (&k, a, TRUE, ARRAYS (__VA_ARGS__));                                                        \
  weft_kernels[op].reference (&k);
  CHAIN (STEP)
#undef STEP
}

static void
run_kernels (struct arrays *a, const struct shape *s, const union weft_model *model, uint32_t parts)
{
  struct weft_kernel k;

#define STEP(op, ...)                                                                              \
  k = call (op, s, model);                                                                         \
  bind (&k, a, FALSE, ARRAYS (__VA_ARGS__));                                                       \
  for (uint32_t part = 0; part < parts; part++)                                                    \
    weft_kernels[op].cpu (&k, part, parts);
  CHAIN (STEP)
#undef STEP
}

static void
run_flash (struct arrays *a, const struct shape *s, const union weft_model *model)
{
  struct weft_kernel k = call (WEFT_OP_ATTENTION, s, model);

  bind (&k, a, TRUE, ARRAYS (QKV, OUT, LSE));
  weft_ref_attention (&k);
  k = call (WEFT_OP_ATTENTION_BWD, s, model);
  bind (&k, a, TRUE, ARRAYS (QKV, OUT, LSE, DOUT, DQKV));
  weft_ref_attention_bwd (&k);
}

static void
fill (GRand *rand, struct arrays *a)
{
  for (int array = 0; array < N_ARRAY; array++)
    for (int i = 0; i < MOST; i++)
      a->d[array][i] = a->f[array][i] = (float) g_rand_double_range (rand, -2, 2);
}

static double
distance (const double *x, const double *y, uint64_t n)
{
  double most = 0;

  for (uint64_t i = 0; i < n; i++)
    most = fmax (most, fabs (x[i] - y[i]));
  return most;
}

static void
products_of_squares_are_flash_attention (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);
  g_autofree struct arrays *a = g_new0 (struct arrays, 1), *b = g_new0 (struct arrays, 1);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (shapes); i++) {
    union weft_model model = { .sliding_window = (int64_t) shapes[i].window };
    fill (rand, a);
    *b = *a;
    run_reference (a, &shapes[i], &model);
    run_flash (b, &shapes[i], &model);
    assert_true (distance (a->d[OUT], b->d[OUT], MOST) < 1e-12);
    assert_true (distance (a->d[DQKV], b->d[DQKV], MOST) < 1e-12);
  }
}

static void
kernels_are_close_to_their_references_whatever_their_parts (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (2);
  g_autofree struct arrays *a = g_new0 (struct arrays, 1), *b = g_new0 (struct arrays, 1);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (shapes); i++) {
    union weft_model model = { .sliding_window = (int64_t) shapes[i].window };
    fill (rand, a);
    *b = *a;
    run_reference (a, &shapes[i], &model);
    run_kernels (a, &shapes[i], &model, 1);
    run_kernels (b, &shapes[i], &model, 3);
    for (int array = 0; array < N_ARRAY; array++) {
      if (array == DSCORES || array == LSE)
        continue;
      for (int e = 0; e < MOST; e++)
        assert_true (fabs (a->f[array][e] - a->d[array][e]) < 1e-4);
    }
    assert_memory_equal (a->f, b->f, sizeof a->f);
  }
}

/* ------------------------------------------------------------------------- dropout */

enum { ROWS = 24, COLUMNS = 40, LENGTH = 6 };
struct drops {
  float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
  uint8_t mask[ROWS * COLUMNS];
};

struct where {
  uint64_t seed, step, rows, tokens, columns;
  enum weft_drop_site site;
  struct weft_random_key draw;
  struct weft_place tp, cp;
  gboolean forward_only;
};

static const union weft_model two_heads = { .num_attention_heads = 2, .seq_length = LENGTH };

static void
drop (struct drops *to, const struct where *w)
{
  const struct weft_control control = { .seed = w->seed,
                                        .step = w->step,
                                        .forward_only = w->forward_only };
  struct weft_kernel k = { .kind = WEFT_OP_DROPOUT,
                           .shape = { .dim = { w->rows, w->tokens, w->columns, w->site,
                                               (uint64_t) (0.25 * 0x1p32) } },
                           .tp = w->tp,
                           .cp = w->cp,
                           .model = &two_heads,
                           .control = &control,
                           .draw = w->draw };
  uint64_t n = weft_extent_dropout (&k, 0);

  g_assert (n <= ROWS * COLUMNS);
  k.operand[0] = (struct weft_operand){ .data = to->x, .n = n, .dtype = WEFT_FP32 };
  k.operand[1] = (struct weft_operand){ .data = to->y, .n = n, .dtype = WEFT_FP32 };
  k.operand[2] = (struct weft_operand){ .data = to->mask, .n = n, .dtype = WEFT_UINT8 };
  for (uint64_t i = 0; i < n; i++)
    to->x[i] = (float) i + 1;
  for (uint32_t part = 0; part < 2; part++)
    weft_cpu_dropout (&k, part, 2);
}

/* Where the rows of a dropout call are: four sequences of six tokens, which are sequences 8 to 11
 * of the batch. */
static const struct where whole = { .seed = 7,
                                    .step = 3,
                                    .rows = ROWS,
                                    .tokens = ROWS,
                                    .columns = COLUMNS,
                                    .site = WEFT_DROP_MLP,
                                    .draw = { 2, 8 } };

static void
a_quarter_is_missing_and_the_rest_has_grown (void **state)
{
  struct drops all;
  uint32_t missing = 0;

  (void) state;
  drop (&all, &whole);
  for (int i = 0; i < ROWS * COLUMNS; i++) {
    missing += !all.mask[i];
    assert_true (all.y[i] == (all.mask[i] ? all.x[i] * (float) (1 / 0.75) : 0));
  }
  assert_in_range (missing, ROWS * COLUMNS / 5, ROWS * COLUMNS * 3 / 10);
  struct where evaluation = whole;
  evaluation.forward_only = TRUE;
  drop (&all, &evaluation);
  assert_memory_equal (all.x, all.y, sizeof all.x);
}

#define ROW(mask, row) ((mask) + (row) *COLUMNS)

/* A mask depends on sequence, token and head, not on ranks: a rank with some of the sequences,
 * tokens or heads must draw the same mask for them as one rank with all of them. */
static void
draws_know_tokens_and_heads_not_ranks (void **state)
{
  struct where some = whole;
  struct drops all, part;

  (void) state;
  drop (&all, &whole);
  some.rows = some.tokens = 2 * LENGTH;
  some.draw.sequence += 2;
  drop (&part, &some);
  assert_memory_equal (part.mask, ROW (all.mask, 2 * LENGTH), 2 * LENGTH * COLUMNS);
  some = whole;
  some.rows = ROWS / 4; /* the mask for the rows of the third of four tensor parallel ranks */
  some.tp = (struct weft_place){ 2, 4 };
  drop (&part, &some);
  assert_memory_equal (part.mask, ROW (all.mask, ROWS / 2), ROWS / 4 * COLUMNS);
  some = whole;
  /* the dropout mask of the rows of the second of three context parallel ranks */
  some.rows = some.tokens = LENGTH / 3;
  some.cp = (struct weft_place){ 1, 3 };
  drop (&part, &some);
  assert_memory_equal (part.mask, ROW (all.mask, 1), COLUMNS);
  assert_memory_equal (ROW (part.mask, 1), ROW (all.mask, 4), COLUMNS);
}

static void
draws_of_probabilities_go_by_heads (void **state)
{
  const uint32_t square = LENGTH * LENGTH;
  struct where w = { .seed = 1,
                     .rows = 4 * LENGTH, /* rows of two sequences with two heads each */
                     .tokens = 2 * LENGTH,
                     .columns = LENGTH,
                     .site = WEFT_DROP_PROBABILITIES };
  struct drops all, part;

  (void) state;
  drop (&all, &w);
  w.rows = 2 * LENGTH;
  w.tp = (struct weft_place){ 1, 2 };
  /* The second of two tensor parallel ranks computes the second head of each sequence. */
  drop (&part, &w);
  assert_memory_equal (part.mask, all.mask + square, square);
  assert_memory_equal (part.mask + square, all.mask + 3 * square, square);
}

static void
draws_differ_by_seed_step_layer_and_site (void **state)
{
  struct where other[4] = { whole, whole, whole, whole };
  struct drops all, found;

  (void) state;
  other[0].seed++;
  other[1].step++;
  other[2].draw.layer++;
  other[3].site = WEFT_DROP_ATTENTION;
  drop (&all, &whole);
  for (unsigned i = 0; i < G_N_ELEMENTS (other); i++) {
    uint32_t same = 0;
    drop (&found, &other[i]);
    for (int e = 0; e < ROWS * COLUMNS; e++)
      same += found.mask[e] == all.mask[e];
    /* Two independent masks that keep 3/4 of the elements agree in 0.75^2 + 0.25^2 = 0.625 of all
     * places. */
    assert_in_range (same, ROWS * COLUMNS / 2, ROWS * COLUMNS * 3 / 4);
  }
}

static void
dropout_and_its_gradient_are_their_references (void **state)
{
  const struct weft_control control = { .seed = 1, .step = 1 };
  struct weft_kernel k = { .kind = WEFT_OP_DROPOUT_ADD,
                           .shape = { .dim = { LENGTH, LENGTH, 5, WEFT_DROP_MLP, 1u << 31 } },
                           .model = &two_heads,
                           .control = &control };
  float a[30], b[30], y[30];
  double da[30], db[30], dy[30];
  uint8_t mask[30], dmask[30];

  (void) state;
  for (int i = 0; i < 30; i++) {
    da[i] = a[i] = (float) i;
    db[i] = b[i] = (float) (100 - 3 * i);
  }
  k.operand[0] = (struct weft_operand){ a, 30, WEFT_FP32, FALSE };
  k.operand[1] = (struct weft_operand){ b, 30, WEFT_FP32, FALSE };
  k.operand[2] = (struct weft_operand){ y, 30, WEFT_FP32, FALSE };
  k.operand[3] = (struct weft_operand){ mask, 30, WEFT_UINT8, FALSE };
  weft_cpu_dropout_add (&k, 0, 1);
  k.operand[0].data = da, k.operand[1].data = db, k.operand[2].data = dy, k.operand[3].data = dmask;
  weft_ref_dropout_add (&k);
  assert_memory_equal (mask, dmask, sizeof mask);
  for (int i = 0; i < 30; i++)
    assert_true (y[i] == dy[i] && dy[i] == da[i] + (mask[i] ? 2 * db[i] : 0));
  k.operand[0].data = b, k.operand[1].data = mask, k.operand[2].data = y;
  weft_cpu_dropout_bwd (&k, 0, 1);
  k.operand[0].data = db, k.operand[2].data = dy;
  weft_ref_dropout_bwd (&k);
  for (int i = 0; i < 30; i++)
    assert_true (y[i] == dy[i] && y[i] == (mask[i] ? 2 * b[i] : 0));
}

/* A bias before dropout: its sum with the input is rounded, here to fp32. */
static void
dropout_of_a_sum_with_the_bias_is_its_reference (void **state)
{
  const struct weft_control control = { .seed = 1, .step = 1 };
  struct weft_kernel k = { .kind = WEFT_OP_BIAS_DROPOUT_ADD,
                           .shape = { .dim = { LENGTH, LENGTH, 5, WEFT_DROP_MLP, 1u << 31 } },
                           .model = &two_heads,
                           .control = &control };
  float x[30], bias[5], a[30], y[30];
  double dx[30], dbias[5], da[30], dy[30];
  uint8_t mask[30], dmask[30];

  (void) state;
  for (int i = 0; i < 30; i++) {
    dx[i] = x[i] = (float) (100 - 3 * i);
    da[i] = a[i] = (float) i;
    dbias[i % 5] = bias[i % 5] = (float) (i % 5) / 4;
  }
  const struct weft_operand operands[] = { { x, 30, WEFT_FP32, FALSE },
                                           { bias, 5, WEFT_FP32, FALSE },
                                           { a, 30, WEFT_FP32, FALSE },
                                           { y, 30, WEFT_FP32, FALSE },
                                           { mask, 30, WEFT_UINT8, FALSE } };
  memcpy (k.operand, operands, sizeof operands);
  for (uint32_t part = 0; part < 3; part++)
    weft_cpu_bias_dropout_add (&k, part, 3);
  k.operand[0].data = dx, k.operand[1].data = dbias, k.operand[2].data = da;
  k.operand[3].data = dy, k.operand[4].data = dmask;
  weft_ref_bias_dropout_add (&k);
  assert_memory_equal (mask, dmask, sizeof mask);
  for (int i = 0; i < 30; i++)
    assert_true (y[i] == dy[i] && dy[i] == da[i] + (mask[i] ? 2 * (dx[i] + dbias[i % 5]) : 0));
}

/* -------------------------------------------------------------------- real training */

#define STEPS 2
#define GPT2                                                                                       \
  "model=gpt2-nano seq_length=16 global_batch_size=8 hidden_size=32 num_attention_heads=4 "        \
  "num_query_groups=4 kv_channels=8 ffn_hidden_size=96 "
#define LLAMA                                                                                      \
  "model=llama-nano seq_length=16 global_batch_size=8 hidden_size=32 num_attention_heads=4 "       \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=96 "
#define UNFUSED "attention_backend=unfused "
#define DROPPED UNFUSED "attention_dropout=0.1 hidden_dropout=0.2 "

static const char *const jobs[] = {
  GPT2 UNFUSED "precision=fp32 ",
  LLAMA UNFUSED "precision=bf16 ",
  GPT2 DROPPED "precision=bf16 ",
  LLAMA DROPPED "precision=fp32 ",
  LLAMA "hidden_dropout=0.3 precision=bf16 grad_reduce_in_fp32=true ",
};

static const char *const strategies[] = {
  "gpus=2",
  "gpus=1 micro_batch_size=4",
  "gpus=4 micro_batch_size=2",
  "gpus=1 recompute_granularity=selective",
  "gpus=2 recompute_granularity=selective recompute_modules=core_attn,mlp,layernorm",
  "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=3",
  "gpus=4 pipeline_model_parallel_size=4 recompute_granularity=full recompute_method=block "
  "recompute_num_layers=1 num_microbatches_with_partial_activation_checkpoints=2",
  "gpus=2 pipeline_model_parallel_size=2 recompute_granularity=full recompute_method=uniform "
  "recompute_num_layers=1 num_microbatches_with_partial_activation_checkpoints=1 "
  "recompute_modules=core_attn,mlp",
  "gpus=4 pipeline_model_parallel_size=2 overlap_grad_reduce=true bucket_size=20000",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=2 recompute_granularity=selective",
  "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
  "bucket_size=20000 delay_wgrad_compute=true",
  "gpus=2 cpu_offloading=true cpu_offloading_num_layers=3",
  "gpus=1 cpu_offloading=true cpu_offloading_num_layers=2 cpu_offloading_double_buffering=true",
  "gpus=2 enable_compile=true average_in_collective=true",
  "gpus=2 tensor_model_parallel_size=2",
  "gpus=4 tensor_model_parallel_size=2 sequence_parallel=true recompute_granularity=selective",
};

/* strategies with context parallelism, which requires flash attention */
static const char *const shared[] = {
  "gpus=2 context_parallel_size=2",
  "gpus=4 context_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true",
  "gpus=4 context_parallel_size=2 cp_comm_type=all_gather use_distributed_optimizer=true",
  "gpus=4 context_parallel_size=2 cp_comm_type=a2a pipeline_model_parallel_size=2",
};

static struct real_result
train (const char *job, const char *strategy, uint32_t threads)
{
  g_autofree char *words = g_strdup_printf ("topology=cpu %s%s", job, strategy);

  return weft_test_run (
      &(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE, .threads = threads });
}

static void
compare (const char *job, const struct real_result *one, const char *strategy, uint32_t threads)
{
  g_autofree char *words = g_strdup_printf ("topology=cpu %s%s", job, strategy);

  weft_test_check_run (
      &(struct real_run){ .words = words, .steps = STEPS, .poison = TRUE, .threads = threads },
      one);
}

static void
dropout_and_unfused_attention_have_the_bits_of_one_rank (void **state)
{
  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    struct real_result one = train (jobs[j], "gpus=1", 1);
    assert_true (isfinite (one.loss[STEPS - 1]));
    for (unsigned s = j % STRIDE; s < G_N_ELEMENTS (strategies); s += STRIDE)
      compare (jobs[j], &one, strategies[s], s % 4 ? 1 : 2);
    for (unsigned s = 0; s < G_N_ELEMENTS (shared) && !strstr (jobs[j], "unfused"); s++)
      compare (jobs[j], &one, shared[s], 1);
  }
}

/* Unfused attention computes the function of flash attention with other roundings, so the losses of
 * both must be nearly equal. Dropout changes every loss; the first loss changes by less than
 * 0.2. */
static void
unfused_attention_learns_what_flash_does (void **state)
{
  struct real_result flash = train (LLAMA "precision=fp32 ", "gpus=1", 1);
  struct real_result unfused = train (LLAMA UNFUSED "precision=fp32 ", "gpus=1", 1);
  struct real_result dropped = train (LLAMA DROPPED "precision=fp32 ", "gpus=1", 1);

  (void) state;
  for (int i = 0; i < STEPS; i++)
    assert_true (fabs (flash.loss[i] - unfused.loss[i]) < 1e-5 && flash.loss[i] != dropped.loss[i]);
  assert_true (fabs (flash.loss[0] - dropped.loss[0]) < 0.2);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (products_of_squares_are_flash_attention),
  cmocka_unit_test (kernels_are_close_to_their_references_whatever_their_parts),
  cmocka_unit_test (a_quarter_is_missing_and_the_rest_has_grown),
  cmocka_unit_test (draws_know_tokens_and_heads_not_ranks),
  cmocka_unit_test (draws_of_probabilities_go_by_heads),
  cmocka_unit_test (draws_differ_by_seed_step_layer_and_site),
  cmocka_unit_test (dropout_and_its_gradient_are_their_references),
  cmocka_unit_test (dropout_of_a_sum_with_the_bias_is_its_reference),
  cmocka_unit_test (dropout_and_unfused_attention_have_the_bits_of_one_rank),
  cmocka_unit_test (unfused_attention_learns_what_flash_does),
};

WEFT_TESTS (tests)
