/* precision = fp8 in layers with experts. The tests compare the kernels with their references, and
 * check the ops of a program. Training must reduce the loss as training in bf16 does. Training on
 * several ranks must give bit for bit the results of training on one rank, however the experts are
 * distributed. */
#include "kernels/fp8_blocks.h"
#include "kernels/moe.h"
#include "tests/runner/folder.h"
#include "tests/made/random_job.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"
#include <math.h>

/* ------------------------------------------------------------------------- kernels */

/* Numbers of rows (tokens) of the experts: none, fewer than a block, and more than a block. No
 * expert after the first begins at a multiple of the block. */
enum { EXPERTS = 4, N = 40, K = 72, MOST_ROWS = 400 };
static const int64_t rows_of[EXPERTS] = { 45, 0, 7, 131 };

static const uint64_t blocks[] = { 0, 32, 128 };

struct factor {
  uint64_t rows, columns, groups;
  enum weft_dtype dtype;
  float x[MOST_ROWS * K], amax[8], seen[8];
  uint8_t code[MOST_ROWS * K], down[MOST_ROWS * K];
  /* scales: floats, or E8M0 bytes with MXFP8 */
  float scale[MOST_ROWS * K], scale_down[MOST_ROWS * K];
  double exact[MOST_ROWS * K], value[MOST_ROWS * K], value_down[MOST_ROWS * K];
  double scales[MOST_ROWS * K], scales_down[MOST_ROWS * K];
};

static struct weft_operand
operand (void *data, uint64_t n, enum weft_dtype dtype)
{
  return (struct weft_operand){ data, n, (uint8_t) dtype, FALSE };
}

static struct weft_operand
counts (gboolean given)
{
  static int64_t n[EXPERTS];

  memcpy (n, rows_of, sizeof n);
  return given ? operand (n, EXPERTS, WEFT_INT64) : (struct weft_operand){ 0 };
}

static uint64_t
all_rows (void)
{
  return (uint64_t) (rows_of[0] + rows_of[1] + rows_of[2] + rows_of[3]);
}

static double
value_of (enum weft_dtype dtype, uint8_t code)
{
  return (double) (dtype == WEFT_E5M2 ? weft_e5m2_float (code) : weft_e4m3_float (code));
}

static double
scale_of (const float *scale, uint64_t block, uint64_t i)
{
  return (double) (block == 32 ? weft_e8m0_float (((const uint8_t *) scale)[i]) : scale[i]);
}

static void
draw (GRand *rand, struct factor *f, uint64_t rows, uint64_t columns)
{
  f->rows = rows;
  f->columns = columns;
  f->groups = EXPERTS;
  for (uint64_t i = 0; i < rows * columns; i++) {
    f->x[i] = (float) (exp2 (g_rand_int_range (rand, -9, 3)) * g_rand_double_range (rand, -1, 1));
    f->exact[i] = (double) f->x[i];
  }
}

static void
run (const struct weft_kernel *k, uint32_t parts)
{
  for (uint32_t part = parts; part-- > 0;)
    weft_kernels[k->kind].cpu (k, part, parts);
}

/* Returns the number of scales of a quantised matrix: of blocks along columns (`down`), along rows,
 * or in squares. */
static uint64_t
room_of (const struct factor *f, uint64_t block, gboolean down, gboolean square)
{
  uint64_t lines = weft_moe_lines (f->rows, f->groups, block);

  return down ? lines * f->columns
              : (square ? lines : f->rows) * weft_fp8_blocks (f->columns, block);
}

/* Quantises tokens (`counted`: with row counts per expert) or weights, along rows and along
 * columns; weights with blocks of 128 x 128. Asserts that the fp8 values agree with the
 * reference. */
static void
quantise_blocks (struct factor *f, uint64_t block, gboolean counted)
{
  static double y[MOST_ROWS * K], scale[MOST_ROWS * K], down[MOST_ROWS * K], scale_d[MOST_ROWS * K];
  enum weft_dtype type = block == 32 ? WEFT_E8M0 : WEFT_FP32;
  gboolean square = !counted && block == 128;
  uint64_t n = f->rows * f->columns, most = room_of (f, block, FALSE, square),
           most_down = room_of (f, block, TRUE, square);
  struct weft_kernel k = {
    .kind = WEFT_OP_MOE_QUANTISE_BLOCKS,
    .shape = { .dim = { f->rows, f->columns, EXPERTS, 0, block, square, 2 } },
    .operand = { operand (f->x, n, WEFT_FP32), counts (counted), operand (f->code, n, f->dtype),
                 operand (f->scale, most, type), operand (f->down, n, f->dtype),
                 operand (f->scale_down, most_down, type) }
  };
  struct weft_kernel ref = k;

  memset (f->scale, 0, sizeof f->scale);
  memset (f->scale_down, 0, sizeof f->scale_down);
  run (&k, 3);
  ref.operand[0].data = f->exact;
  ref.operand[2].data = y;
  ref.operand[3].data = scale;
  ref.operand[4].data = down;
  ref.operand[5].data = scale_d;
  weft_ref_moe_quantise_blocks (&ref);
  for (uint64_t i = 0; i < (counted ? all_rows () * f->columns : n); i++)
    assert_true (value_of (f->dtype, f->code[i]) == y[i] &&
                 value_of (f->dtype, f->down[i]) == down[i]);
  for (uint64_t i = 0; i < most; i++)
    f->scales[i] = scale_of (f->scale, block, i);
  for (uint64_t i = 0; i < most_down; i++)
    f->scales_down[i] = scale_of (f->scale_down, block, i);
}

/* Quantises with one scale per expert, from the magnitudes of the previous step. Asserts that the
 * new magnitude `seen` of an expert is the largest magnitude among its rows, or its old value if
 * this is larger. */
static void
quantise_whole (struct factor *f, gboolean counted)
{
  uint64_t n = f->rows * f->columns, first = 0;
  struct weft_kernel k = { .kind = WEFT_OP_MOE_QUANTISE,
                           .shape = { .dim = { f->rows, f->columns, EXPERTS, 0 } },
                           .operand = { operand (f->x, n, WEFT_FP32), counts (counted),
                                        operand (f->amax, EXPERTS, WEFT_FP32),
                                        operand (f->code, n, f->dtype),
                                        operand (f->seen, EXPERTS, WEFT_FP32) } };

  k.operand[4].accumulate = TRUE;
  for (int e = 0; e < EXPERTS; e++) {
    f->amax[e] = e == 2 ? 0 : 1.5f + (float) e;
    f->seen[e] = 0.25f;
  }
  run (&k, 3);
  for (uint64_t e = 0; e < EXPERTS; e++) {
    uint64_t end = first + (counted ? (uint64_t) rows_of[e] : f->rows / EXPERTS) * f->columns;
    float most = 0.25f;
    for (uint64_t i = first; i < end; i++) {
      float by = weft_fp8_scale_to (f->amax[e], weft_fp8_most (f->dtype == WEFT_E5M2));
      uint8_t code = f->dtype == WEFT_E5M2 ? weft_e5m2_round (f->x[i] * by)
                                           : weft_e4m3_round (f->x[i] * by);
      assert_int_equal (f->code[i], code);
      most = fmaxf (most, fabsf (f->x[i]));
    }
    assert_true (f->seen[e] == most);
    f->scales[e] = f->scales_down[e] = (double) f->amax[e];
    f->scale[e] = f->scale_down[e] = f->amax[e];
    first = end;
  }
  memcpy (f->down, f->code, sizeof f->down);
}

static void
quantise (struct factor *f, uint64_t block, gboolean counted)
{
  block ? quantise_blocks (f, block, counted) : quantise_whole (f, counted);
  for (uint64_t i = 0; i < f->rows * f->columns; i++) {
    f->value[i] = value_of (f->dtype, f->code[i]);
    f->value_down[i] = value_of (f->dtype, f->down[i]);
  }
}

static void
rows_of_experts_are_measured_and_rounded_by_themselves (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);
  static struct factor f;
  double most[EXPERTS];
  float found[EXPERTS];

  (void) state;
  for (int i = 0; i < 12; i++) {
    draw (rand, &f, all_rows () + (uint64_t) i % 2 * 9, K - (uint64_t) i);
    f.dtype = i % 3 ? WEFT_FP8 : WEFT_E5M2;
    quantise (&f, blocks[i % 3], TRUE);
    struct weft_kernel k = { .kind = WEFT_OP_MOE_AMAX,
                             .shape = { .dim = { f.rows, f.columns, EXPERTS, 0 } },
                             .operand = { operand (f.x, f.rows * f.columns, WEFT_FP32),
                                          counts (TRUE), operand (found, EXPERTS, WEFT_FP32) } };
    struct weft_kernel ref = k;
    ref.operand[0].data = f.exact;
    ref.operand[2].data = most;
    run (&k, 2);
    weft_ref_moe_amax (&ref);
    for (int e = 0; e < EXPERTS; e++)
      assert_true ((double) found[e] == most[e]);
  }
}

/* A grouped matmul of token rows and expert weights: forward, input gradient or weight gradient. */
struct product {
  enum weft_op_kind kind;
  const struct factor *a, *b;
  gboolean a_down, b_down;
  uint64_t elements;
};

static void
give (struct weft_kernel *k, struct weft_kernel *ref, uint32_t at, const struct factor *f,
      gboolean down, uint64_t block)
{
  enum weft_dtype type = block == 32 ? WEFT_E8M0 : WEFT_FP32;
  gboolean square = at == 2 && block == 128 && k->kind != WEFT_OP_MOE_FP8_MATMUL_WGRAD;
  uint64_t n = f->rows * f->columns, scales = block ? room_of (f, block, down, square) : EXPERTS;

  k->operand[at] = operand ((void *) (down ? f->down : f->code), n, f->dtype);
  k->operand[at + 1] = operand ((void *) (down ? f->scale_down : f->scale), scales, type);
  ref->operand[at] = operand ((void *) (down ? f->value_down : f->value), n, f->dtype);
  ref->operand[at + 1] = operand ((void *) (down ? f->scales_down : f->scales), scales, type);
}

/* Asserts that a matmul agrees with its reference, and that splitting the kernel into parts changes
 * no bit. */
static void
check_product (const struct product *p, uint64_t block)
{
  static float y[MOST_ROWS * K], parts[MOST_ROWS * K];
  static double exact[MOST_ROWS * K];
  struct weft_kernel k = { .kind = p->kind,
                           .shape = { .dim = { all_rows (), N, K, EXPERTS } } };
  struct weft_kernel ref = k;

  k.shape.dim[7] = ref.shape.dim[7] = block;
  give (&k, &ref, 0, p->a, p->a_down, block);
  give (&k, &ref, 2, p->b, p->b_down, block);
  k.operand[4] = ref.operand[4] = counts (TRUE);
  k.operand[5] = operand (y, p->elements, WEFT_FP32);
  ref.operand[5] = operand (exact, p->elements, WEFT_FP32);
  run (&k, 1);
  weft_kernels[p->kind].reference (&ref);
  double largest = 0;
  for (uint64_t i = 0; i < p->elements; i++)
    largest = fmax (largest, fabs (exact[i]));
  assert_true (largest > 0);
  for (uint64_t i = 0; i < p->elements; i++)
    assert_true (fabs ((double) y[i] - exact[i]) <= 1e-5 * largest);
  k.operand[5].data = parts;
  run (&k, 3);
  assert_memory_equal (y, parts, p->elements * sizeof *y);
}

static void
products_of_experts_are_those_of_what_codes_and_scales_stand_for (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (4);
  static struct factor x, w, dy;

  (void) state;
  x.dtype = w.dtype = WEFT_FP8;
  dy.dtype = WEFT_E5M2;
  draw (rand, &x, all_rows (), K);
  draw (rand, &w, EXPERTS * N, K);
  draw (rand, &dy, all_rows (), N);
  for (unsigned i = 0; i < G_N_ELEMENTS (blocks); i++) {
    uint64_t block = blocks[i];
    const struct product products[] = {
      { WEFT_OP_MOE_FP8_MATMUL, &x, &w, FALSE, FALSE, all_rows () * N },
      { WEFT_OP_MOE_FP8_MATMUL_DGRAD, &dy, &w, FALSE, block == 32, all_rows () * K },
      { WEFT_OP_MOE_FP8_MATMUL_WGRAD, &dy, &x, TRUE, TRUE, EXPERTS * N * K },
    };
    quantise (&x, block, TRUE);
    quantise (&w, block, FALSE);
    quantise (&dy, block, TRUE);
    for (unsigned p = 0; p < G_N_ELEMENTS (products); p++)
      check_product (&products[p], block);
  }
}

/* ------------------------------------------------------------------------ training */

#define EXPERTS_MODEL                                                                              \
  "model=mixtral-nano topology=cpu num_layers=2 hidden_size=32 num_attention_heads=4 "             \
  "kv_channels=8 num_query_groups=4 ffn_hidden_size=48 moe_ffn_hidden_size=48 num_moe_experts=4 "  \
  "vocab_size=96 seq_length=32 max_position_embeddings=32 global_batch_size=8 "

static const char *const recipes[] = { "precision=bf16 ", "precision=fp8 fp8_recipe=delayed ",
                                       "precision=fp8 fp8_recipe=tensorwise ",
                                       "precision=fp8 fp8_recipe=blockwise ",
                                       "precision=fp8 fp8_recipe=mxfp8 " };
enum { BF16, DELAYED, TENSORWISE, BLOCKWISE };

static real_job *
opened (const char *recipe, const char *strategy)
{
  g_autofree char *words = g_strconcat (EXPERTS_MODEL, recipe, strategy, NULL);

  return real_job_open (words, NULL);
}

static void
every_recipe_learns_nearly_as_bf16_does (void **state)
{
  double wanted = 0;

  (void) state;
  for (unsigned r = 0; r < G_N_ELEMENTS (recipes); r++) {
    g_autoptr (real_job) job = opened (recipes[r], "gpus=1 vocab_size=256 global_batch_size=4");
    weft_state_init (job->state, 5);
    double first = real_job_step (job)->loss, last = 0;
    for (int step = 1; step < 16; step++)
      last = real_job_step (job)->loss;
    wanted = r == BF16 ? last : wanted;
    if (last > first - 0.15)
      fail_msg ("%s: from %g to %g", recipes[r], first, last);
    assert_true (fabs (last - wanted) < 0.005 * wanted);
    assert_true (r == BF16 || last != wanted);
  }
}

static void
check_strategies (unsigned recipe, const char *const *strategies, unsigned n)
{
  g_autofree char *model = g_strconcat (EXPERTS_MODEL, recipes[recipe], NULL);

  weft_test_check_strategies (model, strategies, n);
}

/* Recipes with one scale per expert give bit for bit the results of one rank under every strategy.
 * A tensorwise scale is that of the tokens of one microbatch on one replica; a delayed scale comes
 * from the previous step. */
static void
one_scale_for_an_expert_gives_the_bits_of_one_rank (void **state)
{
  static const char *const strategies[] = {
    "gpus=4 expert_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true",
    "gpus=2 pipeline_model_parallel_size=2",
    "gpus=2 tensor_model_parallel_size=2 expert_tensor_parallel_size=1 sequence_parallel=true",
    "gpus=4 tensor_model_parallel_size=2 expert_tensor_parallel_size=2 sequence_parallel=true "
    "expert_model_parallel_size=2",
    "gpus=4 tensor_model_parallel_size=2 expert_tensor_parallel_size=1 sequence_parallel=true "
    "expert_model_parallel_size=4",
    "gpus=2 context_parallel_size=2",
    "gpus=4 context_parallel_size=2 expert_model_parallel_size=4",
    "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=1 recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
    "gpus=2 expert_model_parallel_size=2 delay_wgrad_compute=true",
  };

  (void) state;
  check_strategies (TENSORWISE, strategies, G_N_ELEMENTS (strategies));
  /* Delayed scales come from the previous step, so the distribution of microbatches over ranks does
   * not matter: the first five strategies are enough. */
  check_strategies (DELAYED, strategies, 5);
}

static void
blocks_of_experts_give_the_bits_of_one_rank_where_nobody_cuts_tensors (void **state)
{
  static const char *const strategies[] = {
    "gpus=4 expert_model_parallel_size=4 ",
    "gpus=2 pipeline_model_parallel_size=2 ",
    "gpus=4 expert_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2",
  };

  (void) state;
  for (unsigned r = BLOCKWISE; r < G_N_ELEMENTS (recipes); r++)
    check_strategies (r, strategies, G_N_ELEMENTS (strategies));
}

/* ---------------------------------------------------------------------- magnitudes */

static int
find_tensor (const weft_state *state, const char *name)
{
  for (uint32_t i = 0; i < weft_state_count (state); i++)
    if (g_str_equal (weft_state_at (state, i)->name, name))
      return (int) i;
  return -1;
}

/* Reads the largest magnitudes of input, weight and output gradient of each expert of layer 1,
 * whichever ranks hold the experts. */
static void
read_magnitudes (weft_state *state, float found[3 * 4])
{
  int amax = find_tensor (state, "layers.1.experts.fc1.amax");

  assert_true (amax >= 0);
  assert_int_equal (weft_state_at (state, (uint32_t) amax)->rows, 12);
  weft_state_read (state, (uint32_t) amax, WEFT_STATE_WEIGHT, 0, 12, found);
}

/* Eight tokens for sixteen experts: most experts have no tokens in a step, and must keep their
 * previous magnitudes. */
static void
an_expert_without_tokens_keeps_its_scale (void **state)
{
  enum { MANY = 16, N_STEP = 6 };
  g_autoptr (real_job) job =
      opened (recipes[DELAYED], "gpus=1 num_moe_experts=16 seq_length=8 "
                                "max_position_embeddings=8 global_batch_size=1");
  int amax = find_tensor (job->state, "layers.1.experts.fc1.amax");
  float before[MANY] = { 0 }, after[MANY];
  unsigned kept = 0, changed = 0;

  (void) state;
  weft_state_init (job->state, 5);
  for (int step = 0; step < N_STEP; step++) {
    real_job_step (job);
    weft_state_read (job->state, (uint32_t) amax, WEFT_STATE_WEIGHT, 0, MANY, after);
    for (int e = 0; e < MANY; e++) {
      assert_true (after[e] > 0 || before[e] == 0);
      kept += before[e] > 0 && after[e] == before[e];
      changed += before[e] > 0 && after[e] != before[e];
    }
    memcpy (before, after, sizeof before);
  }
  assert_true (kept > 0 && changed > 0);
}

/* --------------------------------------------------------------------- checkpoints */

/* Ranks with two or four experts each resume a checkpoint of four ranks with one expert each. Each
 * expert must keep its magnitudes. */
static void
a_run_goes_on_where_experts_lie_elsewhere (void **folder)
{
  static const char *const others[] = { "gpus=1", "gpus=2 expert_model_parallel_size=2",
                                        "gpus=2 pipeline_model_parallel_size=2" };
  g_autofree char *dir = g_build_filename (*folder, "experts", NULL);
  g_autoptr (real_job) job = opened (recipes[DELAYED], "gpus=4 expert_model_parallel_size=4");
  float before[12], after[12];

  weft_state_init (job->state, 5);
  real_job_step (job);
  const struct weft_progress progress = { .step = job->control.step, .seed = 1 };
  assert_true (weft_checkpoint_save (job->state, &job->plan->job, &progress, dir, 0, NULL));
  read_magnitudes (job->state, before);
  for (int i = 0; i < 12; i++)
    assert_true (before[i] > 0);
  /* The two experts have different weights; otherwise the test would not notice that they are
   * exchanged. */
  assert_true (before[4] != before[5]);
  real_job_step (job);
  for (unsigned i = 0; i < G_N_ELEMENTS (others); i++) {
    g_autofree char *passed_over = NULL;
    g_autoptr (GError) error = NULL;
    g_autoptr (real_job) then = opened (recipes[DELAYED], others[i]);
    struct weft_progress found;
    weft_state_init (then->state, 77);
    if (!weft_checkpoint_load (then->state, &then->plan->job, dir, &found, &passed_over, &error))
      fail_msg ("%s", error->message);
    read_magnitudes (then->state, after);
    assert_memory_equal (before, after, sizeof before);
    then->control.step = found.step;
    real_job_step (then);
    assert_null (real_other_tensor (job->state, then->state, WEFT_STATE_MASTER));
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (rows_of_experts_are_measured_and_rounded_by_themselves),
  cmocka_unit_test (products_of_experts_are_those_of_what_codes_and_scales_stand_for),
  cmocka_unit_test (every_recipe_learns_nearly_as_bf16_does),
  cmocka_unit_test (one_scale_for_an_expert_gives_the_bits_of_one_rank),
  cmocka_unit_test (blocks_of_experts_give_the_bits_of_one_rank_where_nobody_cuts_tensors),
  cmocka_unit_test (an_expert_without_tokens_keeps_its_scale),
  cmocka_unit_test_setup_teardown (a_run_goes_on_where_experts_lie_elsewhere,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
