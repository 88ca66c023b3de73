/* precision = fp8: the matmuls of linear layers use fp8, and no other op does. */
#include "core/report/report.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

static weft_plan *
plan_of (const char *precision, const char *flag, const char *value)
{
  const char *words[] = { "--model",
                          "llama-nano",
                          "--topology",
                          "dgx-h100",
                          "--gpus",
                          "2",
                          "--precision",
                          precision,
                          "--global-batch-size",
                          "4",
                          "--use-distributed-optimizer",
                          "true",
                          flag,
                          value,
                          NULL };
  struct weft_job job;

  made_real_job (&job, words);
  return made_real_plan (&job);
}

static const struct weft_shape *
shape_at (const weft_program *p, uint32_t op)
{
  return &p->shape[p->op[op].shape];
}

static gboolean
multiplies (enum weft_op_kind kind)
{
  return kind == WEFT_OP_MATMUL || kind == WEFT_OP_MATMUL_DGRAD || kind == WEFT_OP_MATMUL_WGRAD ||
         kind == WEFT_OP_MATMUL_FP8_WEIGHTS || kind == WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS;
}

static gboolean
multiplies_fp8 (enum weft_op_kind kind)
{
  return kind == WEFT_OP_FP8_MATMUL || kind == WEFT_OP_FP8_MATMUL_DGRAD ||
         kind == WEFT_OP_FP8_MATMUL_WGRAD;
}

static enum weft_dtype
dtype_of (const weft_program *p, uint32_t op, uint32_t operand)
{
  return p->buf[p->uses[p->op[op].uses + operand].buf].dtype;
}

static void
linear_maps_of_layers_are_fp8_and_the_rest_is_bf16 (void **state)
{
  g_autoptr (weft_plan) plan = plan_of ("fp8", NULL, NULL);
  const weft_program *p = plan->role[0];
  uint32_t linear = 0, head = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_dtype dtype = shape_at (p, op)->dtype;
    if (p->op[op].kind == WEFT_OP_ATTENTION || p->op[op].kind == WEFT_OP_ATTENTION_BWD)
      assert_int_equal (dtype, WEFT_BF16);
    gboolean fp8 = multiplies_fp8 (p->op[op].kind);
    if (!multiplies (p->op[op].kind) && !fp8)
      continue;
    gboolean layer = p->op[op].layer != WEFT_NO_LAYER;
    assert_int_equal (layer, fp8);
    assert_int_equal (dtype, fp8 ? WEFT_FP8 : WEFT_BF16);
    assert_int_equal (shape_at (p, op)->out_dtype, WEFT_BF16);
    linear += layer;
    head += !layer;
  }
  /* forward, input and weight gradient matmuls: 2 microbatches x 8 layers x 4 weights x 3 */
  assert_int_equal (linear, 2 * 8 * 4 * 3);
  assert_int_equal (head, 2 * 3);
}

/* Both operands of an fp8 matmul are fp8 (operands 0 and 2), each with its scale in fp32 (1 and 3).
 * Weights and inputs are E4M3; output gradients are E5M2 unless fp8_format is e4m3. */
static void
fp8_format_says_what_gradients_are_rounded_to (void **state)
{
  static const char *const formats[] = { "hybrid", "e4m3" };

  (void) state;
  for (int i = 0; i < 2; i++) {
    g_autoptr (weft_plan) plan = plan_of ("fp8", "--fp8-format", formats[i]);
    const weft_program *p = plan->role[0];
    enum weft_dtype gradient = i ? WEFT_FP8 : WEFT_E5M2;
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (!multiplies_fp8 (p->op[op].kind))
        continue;
      gboolean forward = p->op[op].kind == WEFT_OP_FP8_MATMUL;
      assert_int_equal (dtype_of (p, op, 0), forward ? WEFT_FP8 : gradient);
      assert_int_equal (dtype_of (p, op, 1), WEFT_FP32);
      assert_int_equal (dtype_of (p, op, 2), WEFT_FP8);
      assert_int_equal (dtype_of (p, op, 3), WEFT_FP32);
    }
  }
}

/* Each linear layer quantises two tensors per microbatch: the input in forward, which backward
 * reuses, and the output gradient in backward. The weight is quantised once in a step; with
 * disable_parameter_transpose_cache in forward and in backward of each of the two microbatches;
 * with fp8_param_gather it is stored in fp8. */
static void
what_is_multiplied_is_converted_first (void **state)
{
  g_autoptr (weft_plan) plan = plan_of ("fp8", NULL, NULL);
  g_autoptr (weft_plan) kept = plan_of ("fp8", "--fp8-param-gather", "true");
  g_autoptr (weft_plan) often = plan_of ("fp8", "--disable-parameter-transpose-cache", "true");
  const weft_plan *plans[] = { plan, kept, often };
  const uint32_t wanted[] = { 2 * 2 + 1, 2 * 2, 2 * 4 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (plans); i++) {
    const weft_program *p = plans[i]->role[0];
    uint32_t casts = 0;
    for (uint32_t op = 0; op < p->n_op; op++)
      casts += p->op[op].kind == WEFT_OP_QUANTISE_DELAYED;
    assert_int_equal (casts, 8 * 4 * wanted[i]);
  }
}

static void
weights_gradients_and_their_traffic_are_those_of_bf16 (void **state)
{
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", "--fp8-recipe", "blockwise");
  g_autoptr (weft_plan) bf16 = plan_of ("bf16", NULL, NULL);
  g_autoptr (weft_report) a = weft_report_new (fp8, NULL), b = weft_report_new (bf16, NULL);
  double bytes[2] = { 0 };
  const weft_plan *plans[] = { fp8, bf16 };

  (void) state;
  assert_int_equal (a->role[0].by_kind[WEFT_BUF_OPTIMIZER], b->role[0].by_kind[WEFT_BUF_OPTIMIZER]);
  for (int i = 0; i < 2; i++)
    for (uint32_t op = 0; op < plans[i]->role[0]->n_op; op++)
      if (weft_op_info[plans[i]->role[0]->op[op].kind].class == WEFT_CLASS_COLLECTIVE)
        bytes[i] += weft_op_bytes (plans[i]->role[0], op);
  assert_true (bytes[0] == bytes[1] && bytes[0] > 0);
}

/* Inputs of the four linear layers are kept for backward in one byte per element instead of two.
 * The output of attention is also kept in bf16, because the backward of attention reads it. */
static void
saved_inputs_have_one_byte (void **state)
{
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", NULL, NULL), bf16 = plan_of ("bf16", NULL, NULL);
  const union weft_model *m = &fp8->job.model;
  uint64_t tokens = (uint64_t) m->seq_length, h = (uint64_t) m->hidden_size;
  uint64_t f = (uint64_t) m->ffn_hidden_size, layers = (uint64_t) m->num_layers;
  uint64_t q = (uint64_t) (m->num_attention_heads * m->kv_channels);

  (void) state;
  g_autoptr (weft_report) a = weft_report_new (fp8, NULL), b = weft_report_new (bf16, NULL);
  int64_t less = (int64_t) (b->role[0].by_kind[WEFT_BUF_ACTIVATIONS] -
                            a->role[0].by_kind[WEFT_BUF_ACTIVATIONS]);
  int64_t wanted = (int64_t) (layers * tokens * (h + h + f) - layers * tokens * q);
  assert_in_range (less, wanted * 7 / 10, wanted * 13 / 10);
}

static uint32_t
count_of (const weft_plan *plan, enum weft_op_kind kind)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    n += plan->role[0]->op[op].kind == kind;
  return n;
}

static void
recipes_find_their_scales_each_in_its_way (void **state)
{
  g_autoptr (weft_plan) delayed = plan_of ("fp8", "--fp8-recipe", "delayed");
  g_autoptr (weft_plan) tensor = plan_of ("fp8", "--fp8-recipe", "tensorwise");
  g_autoptr (weft_plan) block = plan_of ("fp8", "--fp8-recipe", "blockwise");
  g_autoptr (weft_plan) mx = plan_of ("fp8", "--fp8-recipe", "mxfp8");
  const weft_program *p = delayed->role[0];
  uint64_t agreed = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ALL_REDUCE && strcmp (p->name[p->op[op].name], "amax") == 0)
      agreed += shape_at (p, op)->dim[0];
  /* 8 layers, 4 linear layers in each, 3 quantised tensors for each linear layer */
  assert_int_equal (agreed, 8 * 4 * 3);
  assert_int_equal (count_of (delayed, WEFT_OP_AMAX), 0);
  assert_int_equal (count_of (tensor, WEFT_OP_AMAX),
                    /* one amax per step for each weight; one per microbatch for each input and
                     * output gradient (two microbatches) */
                    8 * 4 * (1 + 2 * 2));
  assert_int_equal (count_of (block, WEFT_OP_AMAX), 0);
  assert_int_equal (count_of (mx, WEFT_OP_AMAX), 0);
  /* With one scale per tensor, fp8 values are transposed by a kernel of their own: the weight for
   * the input gradient, once in a step, and both operands of the weight gradient. */
  assert_int_equal (count_of (tensor, WEFT_OP_TRANSPOSE), 8 * 4 * (1 + 2 * 2));
  assert_int_equal (count_of (block, WEFT_OP_TRANSPOSE), 0);
}

/* Returns the last op before `op` that writes the buffer of an operand. */
static uint32_t
maker_of (const weft_program *p, uint32_t op, uint32_t operand)
{
  uint32_t buf = p->uses[p->op[op].uses + operand].buf;

  while (op-- > 0)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf == buf && p->uses[u].write)
        return op;
  return WEFT_NO_OP;
}

/* Scales of blocks. Blockwise: 4 bytes per 128 elements of a row, and per 128 x 128 elements of a
 * weight. MXFP8: 1 byte per 32 elements. */
static void
scales_of_blocks_lie_in_buffers_of_their_own (void **state)
{
  static const struct {
    const char *recipe;
    enum weft_dtype dtype;
    uint64_t block, high;
  } recipes[] = { { "blockwise", WEFT_FP32, 128, 128 }, { "mxfp8", WEFT_E8M0, 32, 1 } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (recipes); i++) {
    g_autoptr (weft_plan) plan = plan_of ("fp8", "--fp8-recipe", recipes[i].recipe);
    const weft_program *p = plan->role[0];
    uint64_t block = recipes[i].block, high = recipes[i].high;
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (p->op[op].kind != WEFT_OP_FP8_MATMUL)
        continue;
      const uint64_t *dim = shape_at (p, op)->dim;
      const struct weft_use *use = &p->uses[p->op[op].uses];
      uint64_t columns = (dim[2] + block - 1) / block, size = weft_dtype_bytes (recipes[i].dtype);
      assert_int_equal (dim[5], block);
      assert_int_equal (p->buf[use[1].buf].dtype, recipes[i].dtype);
      assert_int_equal (p->buf[use[1].buf].bytes, dim[0] * columns * size);
      assert_int_equal (p->buf[use[3].buf].bytes, (dim[1] + high - 1) / high * columns * size);
    }
  }
}

/* The weight gradient reads the input quantised along columns. The forward kernel that quantises
 * the input along rows also writes this form. If the layer is recomputed, the recomputation writes
 * it instead. */
static void
blocks_are_turned_by_the_kernel_that_makes_them (void **state)
{
  static const char *const recompute[] = { "none",
                                           "full recompute_method=uniform recompute_num_layers=1" };

  (void) state;
  for (int i = 0; i < 2; i++) {
    g_autoptr (weft_plan) plan =
        weft_test_plan ("model=llama-nano topology=dgx-h100 gpus=1 global_batch_size=2 "
                        "precision=fp8 fp8_recipe=blockwise recompute_granularity=%s",
                        recompute[i]);
    const weft_program *p = plan->role[0];
    uint32_t both = 0, one = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (p->op[op].kind == WEFT_OP_QUANTISE_BLOCKS)
        *(shape_at (p, op)->dim[4] == 2 ? &both : &one) += 1;
      if (p->op[op].kind != WEFT_OP_FP8_MATMUL_WGRAD)
        continue;
      uint32_t gradient = maker_of (p, op, 0), input = maker_of (p, op, 2);
      assert_int_equal (p->op[gradient].phase, WEFT_PHASE_BACKWARD);
      assert_int_equal (p->op[input].phase, i ? WEFT_PHASE_RECOMPUTE : WEFT_PHASE_FORWARD);
      assert_int_equal (shape_at (p, input)->dim[4], 2);
    }
    /* quantised along rows and columns: inputs and output gradients of 8 layers with 4 linear
     * layers, in 2 microbatches, and weights once */
    assert_int_equal (both, 8 * 4 * (2 * 2 + 1));
    /* Quantised along rows only: with recompute of the layer the inputs in the forward pass,
     * because the recomputation quantises them again. */
    assert_int_equal (one, 2 * 8 * 4 * (i ? 1 : 0));
  }
}

/* Delayed scaling: the magnitudes of this step replace those of the previous step only after the
 * last matmul that uses the previous scales. */
static void
delayed_scales_are_new_after_the_last_product (void **state)
{
  g_autoptr (weft_plan) plan = plan_of ("fp8", NULL, NULL);
  const weft_program *p = plan->role[0];
  uint32_t history = WEFT_NO_BUF, seen = WEFT_NO_BUF, update = WEFT_NO_OP, last = 0;

  (void) state;
  for (uint32_t buf = 0; buf < p->n_buf; buf++) {
    const char *name = p->name[p->buf[buf].name];
    history = g_str_equal (name, "amax_history") ? buf : history;
    seen = g_str_equal (name, "amax_seen") ? buf : seen;
  }
  assert_int_equal (p->buf[history].bytes, 4 * 8 * 4 * 3);
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_use *use = &p->uses[p->op[op].uses];
    last = multiplies_fp8 (p->op[op].kind) ? op : last;
    if (p->op[op].kind == WEFT_OP_AMAX_UPDATE && use[1].buf == history) {
      assert_int_equal (use[0].buf, seen);
      update = op;
    }
    if (p->op[op].kind == WEFT_OP_QUANTISE_DELAYED) {
      assert_int_equal (p->buf[use[1].buf].base, history);
      assert_int_equal (p->buf[use[3].buf].base, seen);
      assert_int_equal (p->buf[use[1].buf].offset, p->buf[use[3].buf].offset);
    }
  }
  assert_true (update != WEFT_NO_OP && update > last);
}

static void
utilisation_is_a_share_of_the_fp8_peak (void **state)
{
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", NULL, NULL), bf16 = plan_of ("bf16", NULL, NULL);

  (void) state;
  assert_true (weft_report_printed_peak (&fp8->job) == fp8->job.cluster.f.gpu_fp8_spec);
  assert_true (weft_report_printed_peak (&bf16->job) == bf16->job.cluster.f.gpu_bf16_spec);
}

static void
gpus_without_the_unit_and_autocast_are_refused (void **state)
{
  static const char *const cases[][2] = {
    { "dgx-a100", "false" }, { "v100-4x", "false" }, { "cpu", "true" }, { "dgx-h100", "true" }
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (weft_settings) settings = weft_settings_new ();
    g_autoptr (GError) error = NULL;
    struct weft_job job;
    weft_settings_add (settings, "model", "config", "gpt2-nano", "test");
    weft_settings_add (settings, "cluster", "topology", cases[i][0], "test");
    weft_settings_add (settings, "train", "precision", "fp8", "test");
    weft_settings_add (settings, "strategy", "enable_autocast", cases[i][1], "test");
    assert_false (weft_job_build (settings, &job, &error));
    assert_true (g_str_has_prefix (error->message, "rule precision: "));
  }
}

/* fp8_priced_as predicts the time of another fp8 scaling or of NVFP4. The program is that of plain
 * fp8, so no executor with real numbers runs such a job. */
static void
fp8_priced_as_changes_the_time_alone (void **state)
{
#define ON_BLACKWELL "model=llama-nano topology=dgx-b200 gpus=1 precision=fp8 hidden_size=4096 "
  g_autoptr (weft_plan) fp8 = weft_test_plan (ON_BLACKWELL);
  g_autoptr (weft_plan) nvfp4 = weft_test_plan (ON_BLACKWELL "fp8_priced_as=nvfp4");
  g_autoptr (weft_plan) rows = weft_test_plan (ON_BLACKWELL "fp8_priced_as=rowwise");
  const struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;
  double less = 0, more = 0;

  (void) state;
  assert_int_equal (nvfp4->role[0]->n_op, fp8->role[0]->n_op);
  assert_true (weft_plan_worst_bytes (nvfp4) == weft_plan_worst_bytes (fp8));
  for (uint32_t op = 0; op < fp8->role[0]->n_op; op++) {
    assert_true (nvfp4->seconds[0][op] <= fp8->seconds[0][op]);
    assert_true (rows->seconds[0][op] >= fp8->seconds[0][op]);
    less += fp8->seconds[0][op] - nvfp4->seconds[0][op];
    more += rows->seconds[0][op] - fp8->seconds[0][op];
  }
  assert_true (less > 0 && more > 0);
  assert_null (weft_exec_cpu.open (nvfp4, &options, &error));
  assert_non_null (strstr (error->message, "fp8_priced_as: found nvfp4, wanted recipe"));
}

static void
attention_priced_with_dropout_changes_the_time_alone (void **state)
{
#define FLASH                                                                                      \
  "model=llama-nano topology=dgx-h100 gpus=1 seq_length=512 attention_random_ops=50 "              \
  "attention_priced_with_dropout="
  const struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) without = weft_test_plan (FLASH "false");
  g_autoptr (weft_plan) with = weft_test_plan (FLASH "true");

  (void) state;
  assert_int_equal (with->role[0]->n_op, without->role[0]->n_op);
  assert_true (weft_plan_worst_bytes (with) == weft_plan_worst_bytes (without));
  for (uint32_t op = 0; op < with->role[0]->n_op; op++) {
    enum weft_op_kind kind = with->role[0]->op[op].kind;
    gboolean draws = kind == WEFT_OP_ATTENTION || kind == WEFT_OP_ATTENTION_BWD;
    assert_int_equal (with->seconds[0][op] > without->seconds[0][op], draws);
  }
  assert_null (weft_exec_cpu.open (with, &options, &error));
  assert_non_null (strstr (error->message, "attention_priced_with_dropout: found true"));
  g_autoptr (weft_plan) narrow =
      weft_test_plan (FLASH "false attention_priced_in_fp8=true fp8_attention_gain=2");
  g_clear_error (&error);
  assert_null (weft_exec_cpu.open (narrow, &options, &error));
  assert_non_null (strstr (error->message, "attention_priced_in_fp8: found true"));
  g_autoptr (weft_plan) limited = weft_test_plan (
      "model=mixtral-nano topology=dgx-h100 gpus=1 experts_priced_as_gpt_oss=true");
  g_clear_error (&error);
  assert_null (weft_exec_cpu.open (limited, &options, &error));
  assert_non_null (strstr (error->message, "experts_priced_as_gpt_oss: found true"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (linear_maps_of_layers_are_fp8_and_the_rest_is_bf16),
  cmocka_unit_test (fp8_format_says_what_gradients_are_rounded_to),
  cmocka_unit_test (what_is_multiplied_is_converted_first),
  cmocka_unit_test (weights_gradients_and_their_traffic_are_those_of_bf16),
  cmocka_unit_test (saved_inputs_have_one_byte),
  cmocka_unit_test (recipes_find_their_scales_each_in_its_way),
  cmocka_unit_test (scales_of_blocks_lie_in_buffers_of_their_own),
  cmocka_unit_test (blocks_are_turned_by_the_kernel_that_makes_them),
  cmocka_unit_test (delayed_scales_are_new_after_the_last_product),
  cmocka_unit_test (utilisation_is_a_share_of_the_fp8_peak),
  cmocka_unit_test (gpus_without_the_unit_and_autocast_are_refused),
  cmocka_unit_test (fp8_priced_as_changes_the_time_alone),
  cmocka_unit_test (attention_priced_with_dropout_changes_the_time_alone),
};

WEFT_TESTS (tests)
