/* fp8_param_gather, reuse_grad_buf_for_mxfp8_param_ag, keep_fp8_transpose_cache: the buffers, ops,
 * sizes and order that these knobs change, and real steps with them. */
#include "exec_cpu/exec_cpu.h"
#include "kernels/fp8.h"
#include "tests/runner/folder.h"
#include "tests/made/nano.h"
#include "tests/made/random_job.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "train/checkpoint.h"
#include "tests/runner/runner.h"

#define FP8 SHARDED, "--fp8-param-gather", "true"
#define MX FP8, "--reuse-grad-buf-for-mxfp8-param-ag", "true"
#define LAZY OVERLAP, "--overlap-param-gather", "true"
#define LEVEL(n) "--use-megatron-fsdp", "true", "--zero-dp-strategy", n
#define LEVEL1 LEVEL ("1")
#define LEVEL3 LEVEL ("3"), "--fp8-param-gather", "true"
#define KEEP "--keep-fp8-transpose-cache", "true"
#define LAYERS 8 /* layers of gpt2-nano, each with four weight matrices */

static gboolean
is_fp8 (const struct weft_param *param)
{
  return param->scale != WEFT_NO_BUF;
}

/* Returns the permanent buffer with this name, or WEFT_NO_BUF. */
static uint32_t
standing (const weft_program *p, const char *name)
{
  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].permanent && p->buf[i].base == WEFT_NO_BUF &&
        g_str_equal (p->name[p->buf[i].name], name))
      return i;
  return WEFT_NO_BUF;
}

static uint64_t
bytes_of (const weft_program *p, const char *name)
{
  uint32_t buf = standing (p, name);
  return buf == WEFT_NO_BUF ? 0 : p->buf[buf].bytes;
}

static enum weft_dtype
dtype_of (const weft_program *p, uint32_t op)
{
  return weft_op_shape (p, op)->dtype;
}

/* ------------------------------------------------------------------------ stages */

static void
a_stage_without_layers_has_no_weights_in_fp8 (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan ("model=gpt2-nano topology=dgx-h100 gpus=4 pipeline_model_parallel_size=2 "
                      "decoder_first_pipeline_num_layers=0 use_distributed_optimizer=true "
                      "fp8_param_gather=true");

  (void) state;
  assert_int_equal (standing (plan->role[0], "fp8 weights"), WEFT_NO_BUF);
  assert_int_not_equal (standing (plan->role[1], "fp8 weights"), WEFT_NO_BUF);
}

/* ------------------------------------------------------------------------ buffers */

static void
fp8_param_gather_keys_buffers_by_type (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (FP8, NULL);
  const weft_program *p = plan->role[0];
  uint32_t n = 0, codes = standing (p, "fp8 weights"), others = standing (p, "weights");

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++) {
    const struct weft_param *param = &p->param[i];
    gboolean matrix = param->layer != WEFT_NO_LAYER && param->columns > 1;
    assert_int_equal (is_fp8 (param), matrix);
    assert_int_equal (p->buf[param->weight].base, matrix ? codes : others);
    assert_int_equal (p->buf[param->weight].dtype, matrix ? WEFT_FP8 : WEFT_BF16);
    assert_string_equal (p->name[p->buf[p->buf[param->grad].base].name],
                         matrix ? "fp8 gradients" : "gradients");
    n += matrix;
  }
  assert_int_equal (n, 4 * LAYERS);
  assert_int_equal (bytes_of (p, "fp8 scales"), 4 * n);
  assert_int_equal (bytes_of (p, "fp8 gradients"), 2 * bytes_of (p, "fp8 weights"));
}

/* fp8_param_gather on D replicas. Bytes per fp8 parameter: 1 for the weight, 1 for its transposed
 * copy, g for the gradient and 12 / D for the optimizer. Bytes per other parameter: 2 + g + 12 / D.
 */
static void
fp8_param_gather_leaves_a_byte_for_a_weight_and_one_for_its_copy (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (FP8, NULL);
  g_autoptr (weft_plan) wide = plan_of (FP8, "--grad-reduce-in-fp32", "true", NULL);
  const weft_program *p = plan->role[0];
  uint64_t codes = bytes_of (p, "fp8 weights"), others = bytes_of (p, "weights") / 2;

  (void) state;
  for (int i = 0; i < 2; i++) {
    const uint64_t *kind = (i ? wide : plan)->memory[0].permanent[WEFT_POOL_DEVICE];
    assert_int_equal (kind[WEFT_BUF_WEIGHTS], (1 + 1) * codes + 2 * others + 4 * 4 * LAYERS);
    assert_int_equal (kind[WEFT_BUF_GRADIENTS], (i ? 4 : 2) * (codes + others));
    assert_int_equal (kind[WEFT_BUF_OPTIMIZER], 12 * (codes + others) / 8);
  }
}

/* A weight stored in fp8 needs an fp32 master weight even if precision is fp32. */
static void
fp8_param_gather_has_a_master_beside_fp32 (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (FP8, "--precision", "fp32", NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (bytes_of (p, "master"), 4 * bytes_of (p, "fp8 weights") / 8);
  assert_int_equal (bytes_of (p, "exp_avg"),
                    (4 * bytes_of (p, "fp8 weights") + bytes_of (p, "weights")) / 8);
}

/* -------------------------------------------------------------------- collectives */

/* Each bucket of fp8 weights is gathered in a launch of its own. The launch of the last fp8 bucket
 * also gathers all buckets of other types. Likewise one launch reduces these buckets, after all
 * their gradients are complete. */
static void
fp8_param_gather_launches_other_buckets_with_the_last_of_bytes (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (FP8, OVERLAP, NULL);
  const weft_program *p = plan->role[0];
  uint32_t n = n_buckets (p), launches = 0, bytes = 0, last = WEFT_NO_OP;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind == WEFT_OP_EMBED_BWD)
      last = op;
    if (p->op[op].kind != WEFT_OP_ALL_GATHER)
      continue;
    launches += !(p->op[op].flags & WEFT_OP_GROUPED);
    bytes += dtype_of (p, op) == WEFT_FP8;
  }
  assert_true (bytes > 1 && bytes < n);
  assert_int_equal (launches, bytes);
  uint32_t first = named (p, WEFT_OP_REDUCE_SCATTER, "bucket", 0);
  assert_int_equal (weft_program_group_end (p, WEFT_LANE_DP, p->pos[first]) - p->pos[first],
                    n - bytes + 1);
  assert_true (comes_after (p, last, first));
  for (uint32_t k = 0; k < n; k++) {
    uint32_t reduce = named (p, WEFT_OP_REDUCE_SCATTER, "bucket", k);
    if (dtype_of (p, named (p, WEFT_OP_ALL_GATHER, "gather", k)) == WEFT_FP8 && k + 1 < n)
      /* the buckets of fp8 weights of the last layers are reduced during the backward pass */
      assert_true (reduce < last);
  }
}

static void
fp8_param_gather_agrees_on_magnitudes_rounds_and_gathers_bytes (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (FP8, NULL);
  const weft_program *p = plan->role[0];
  uint32_t agreed = nth (p, WEFT_OP_ALL_REDUCE, "amax", 0), gathered = 0;

  (void) state;
  assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "amax"), 1);
  assert_int_equal (p->op[agreed].reduce, WEFT_REDUCE_MAX);
  assert_int_equal (p->op[agreed].group, WEFT_GROUP_DP);
  assert_int_equal (elements (p, agreed), 4 * LAYERS);
  assert_int_equal (dtype_of (p, agreed), WEFT_FP32);
  uint32_t amax = nth (p, WEFT_OP_AMAX, "", 0), rounded = nth (p, WEFT_OP_QUANTISE, "", 0);
  uint32_t adam = nth (p, WEFT_OP_ADAM, "", n_buckets (p) - 1);
  assert_true (adam < amax && comes_after (p, amax, agreed) && comes_after (p, agreed, rounded));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t gather = named (p, WEFT_OP_ALL_GATHER, "gather", k);
    if (dtype_of (p, gather) != WEFT_FP8)
      continue;
    gathered += weft_op_bytes (p, gather);
    assert_true (comes_after (p, rounded, gather));
  }
  assert_int_equal (gathered, bytes_of (p, "fp8 weights"));
  assert_int_equal (count (p, WEFT_OP_TRANSPOSE, ""), 4 * LAYERS);
}

/* Forward matmuls read the fp8 weights. Input gradients read the transposed copy of the weights,
 * which is made once per step, after the bucket has been gathered. */
static void
fp8_param_gather_makes_the_copy_once_a_step_after_the_lazy_gather (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (FP8, LAZY, BATCH ("16"), NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count (p, WEFT_OP_TRANSPOSE, ""), 4 * LAYERS);
  assert_int_equal (count (p, WEFT_OP_MATMUL_FP8_WEIGHTS, ""), 2 * 4 * LAYERS);
  assert_int_equal (count (p, WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS, ""), 2 * 4 * LAYERS);
  for (uint32_t i = 0; i < 4 * LAYERS; i++) {
    uint32_t turn = nth (p, WEFT_OP_TRANSPOSE, "", i), codes = p->uses[p->op[turn].uses].buf;
    for (uint32_t q = 0; q < p->n_param; q++)
      if (p->param[q].weight == codes)
        assert_true (
            comes_after (p, named (p, WEFT_OP_ALL_GATHER, "gather", p->param[q].bucket), turn));
    assert_int_equal (p->buf[p->buf[p->uses[p->op[turn].uses + 1].buf].base].permanent, 1);
  }
}

static void
keep_fp8_transpose_cache_makes_the_copy_once_and_not_in_every_backward (void **state)
{
  g_autoptr (weft_plan) off = plan_of (LEVEL1, "--fp8-param-gather", "true", BATCH ("16"), NULL);
  g_autoptr (weft_plan) on = plan_of (LEVEL1, "--fp8-param-gather", "true", BATCH ("16"),
                                      "--keep-fp8-transpose-cache", "true", NULL);
  const weft_program *p = off->role[0], *q = on->role[0];

  (void) state;
  assert_int_equal (count (p, WEFT_OP_TRANSPOSE, ""), 2 * 4 * LAYERS);
  assert_int_equal (count (q, WEFT_OP_TRANSPOSE, ""), 4 * LAYERS);
  assert_int_equal (bytes_of (p, "fp8 transposed"), 0);
  assert_int_equal (bytes_of (q, "fp8 transposed"), bytes_of (q, "fp8 weights"));
  assert_int_equal (on->memory[0].permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS] -
                        off->memory[0].permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS],
                    bytes_of (q, "fp8 weights"));
  uint32_t turn = nth (p, WEFT_OP_TRANSPOSE, "", 0), copy = p->uses[p->op[turn].uses + 1].buf;
  assert_int_equal (p->op[turn].phase, WEFT_PHASE_BACKWARD);
  assert_int_equal (p->op[p->buf[copy].last].kind, WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS);
  assert_int_equal (p->op[p->buf[copy].last].layer, p->op[turn].layer);
}

/* ------------------------------------------------------------ slices of Megatron-FSDP */

/* fp8_param_gather at Megatron-FSDP level 3. Sharded bytes per fp8 parameter: 1 + g + 12 (g: size
 * of a gradient); per other parameter: 2 + g + 12. Only the scales of all weights are on every
 * rank. The transposed copy is not permanent, even with keep_fp8_transpose_cache. */
static void
all_that_stands_of_weights_in_fp8_is_a_slice_at_level_3 (void **state)
{
  (void) state;
  for (int keep = 0; keep < 2; keep++) {
    g_autoptr (weft_plan) plan = keep
                                     ? plan_of (LEVEL3, "--grad-reduce-in-fp32", "true", KEEP, NULL)
                                     : plan_of (LEVEL3, "--grad-reduce-in-fp32", "true", NULL);
    const weft_program *p = plan->role[0];
    const uint64_t *kind = plan->memory[0].permanent[WEFT_POOL_DEVICE];
    uint64_t codes = 0, others = bytes_of (p, "weights") / 2;
    for (uint32_t i = 0; i < p->n_param; i++)
      codes += is_fp8 (&p->param[i]) ? p->param[i].rows * p->param[i].columns : 0;
    assert_int_equal (bytes_of (p, "fp8 weights"), codes / 8);
    assert_int_equal (bytes_of (p, "fp8 transposed"), 0);
    assert_int_equal (kind[WEFT_BUF_WEIGHTS], codes / 8 + 2 * others + 4 * 4 * LAYERS);
    assert_int_equal (kind[WEFT_BUF_GRADIENTS], 4 * (codes / 8 + others));
    assert_int_equal (kind[WEFT_BUF_OPTIMIZER], 12 * (codes / 8 + others));
  }
}

/* Megatron-FSDP level 2: gradients are sharded; weights are whole and gathered once per step. */
static void
weights_in_fp8_are_whole_beside_slices_of_gradients_at_level_2 (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (LEVEL ("2"), "--fp8-param-gather", "true", BATCH ("16"), NULL);
  g_autoptr (weft_plan) kept = plan_of (LEVEL ("2"), "--fp8-param-gather", "true", KEEP, NULL);
  const weft_program *p = plan->role[0];
  uint64_t codes = bytes_of (p, "fp8 weights"), others = bytes_of (p, "weights") / 2;
  const uint64_t *kind = plan->memory[0].permanent[WEFT_POOL_DEVICE];

  (void) state;
  assert_int_equal (kind[WEFT_BUF_WEIGHTS], codes + 2 * others + 4 * 4 * LAYERS);
  assert_int_equal (kind[WEFT_BUF_GRADIENTS], 2 * (codes + others) / 8);
  assert_int_equal (bytes_of (kept->role[0], "fp8 transposed"), codes);
  assert_int_equal (count (p, WEFT_OP_ALL_GATHER, "gather"), n_buckets (p));
  assert_int_equal (count (p, WEFT_OP_REDUCE_SCATTER, "bucket"), 2 * n_buckets (p));
}

/* At level 3 a layer has two buckets: fp8 weights and other parameters. Both are gathered in one
 * launch before forward and in one launch before backward, and reduced in one launch after the last
 * gradient of the layer. */
static void
both_buckets_of_a_layer_are_one_launch (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    uint32_t n;
  } row[] = { { WEFT_OP_ALL_GATHER, 2 * 2 }, { WEFT_OP_REDUCE_SCATTER, 2 } }; /* microbatches: 2 */
  g_autoptr (weft_plan) plan = plan_of (LEVEL3, BATCH ("16"), NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    uint32_t codes = 0, joined = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (p->op[op].kind != row[i].kind)
        continue;
      joined += p->op[op].flags & WEFT_OP_GROUPED;
      codes += dtype_of (p, op) == WEFT_FP8;
    }
    assert_int_equal (joined, row[i].n * LAYERS);
    assert_int_equal (codes, i == 0 ? joined : 0);
  }
}

/* Megatron-FSDP level 3. Without keep_fp8_transpose_cache, the transposed copy of a weight is made
 * for one matmul of backward and then freed. With keep_fp8_transpose_cache, each gather of a unit
 * makes the copy, behind the fp8 weights in the same buffer. Recomputed layers stay gathered until
 * their backward pass has ended, so recompute makes no further copies. */
static void
keep_fp8_transpose_cache_keeps_the_copy_with_a_gathered_unit (void **state)
{
#define AGAIN                                                                                      \
  "--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"
  (void) state;
  for (int i = 0; i < 4; i++) {
    gboolean keep = i & 1, again = i & 2;
    g_autoptr (weft_plan) plan = keep && again ? plan_of (LEVEL3, BATCH ("16"), KEEP, AGAIN, NULL)
                                 : keep        ? plan_of (LEVEL3, BATCH ("16"), KEEP, NULL)
                                 : again       ? plan_of (LEVEL3, BATCH ("16"), AGAIN, NULL)
                                               : plan_of (LEVEL3, BATCH ("16"), NULL);
    const weft_program *p = plan->role[0];
    assert_int_equal (count (p, WEFT_OP_TRANSPOSE, ""), (keep ? 2 : 1) * 2 * 4 * LAYERS);
    for (uint32_t t = 0; t < count (p, WEFT_OP_TRANSPOSE, ""); t++) {
      uint32_t op = nth (p, WEFT_OP_TRANSPOSE, "", t);
      const struct weft_buf *codes = &p->buf[p->uses[p->op[op].uses].buf];
      const struct weft_buf *copy = &p->buf[p->uses[p->op[op].uses + 1].buf];
      if (!keep)
        assert_int_equal (p->op[op].phase, WEFT_PHASE_BACKWARD);
      assert_int_equal (codes->base == copy->base, keep);
      if (keep)
        assert_int_equal (copy->offset - codes->offset, p->buf[codes->base].bytes / 2);
      else
        assert_int_equal (p->op[copy->last].kind, WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS);
    }
  }
#undef AGAIN
}

/* -------------------------------------------------------------------------- MXFP8 */

static void
reuse_grad_buf_for_mxfp8_param_ag_gathers_bf16_through_the_gradients (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (MX, "--grad-reduce-in-fp32", "true", NULL);
  const weft_program *p = plan->role[0];
  uint32_t grads = standing (p, "fp8 gradients");
  uint64_t n = p->buf[grads].bytes / 4, gathered = 0, weights = bytes_of (p, "weights");

  (void) state;
  assert_int_equal (standing (p, "fp8 weights"), WEFT_NO_BUF);
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_buf *to = &p->buf[p->uses[p->op[op].uses + 1].buf];
    if (p->op[op].kind != WEFT_OP_ALL_GATHER || to->base != grads)
      continue;
    assert_int_equal (to->dtype, WEFT_BF16);
    /* The gathered bf16 weights are in the first half of the fp32 gradient buffer. */
    assert_true (to->offset + to->bytes <= 2 * n);
    gathered += weft_op_bytes (p, op);
  }
  assert_int_equal (gathered, 2 * n);
  for (uint32_t i = 0; i < p->n_param; i++)
    if (is_fp8 (&p->param[i])) {
      uint64_t size = p->param[i].rows * p->param[i].columns;
      assert_int_equal (p->buf[p->param[i].weight].base, WEFT_NO_BUF);
      assert_int_equal (p->buf[p->param[i].weight].bytes, size);
      assert_int_equal (p->buf[p->param[i].scale].bytes, size / 32);
      weights += 2 * (size + size / 32);
    }
  assert_int_equal (plan->memory[0].permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS], weights);
}

/* reuse_grad_buf_for_mxfp8_param_ag: master weights are rounded to bf16 into the gradient buffer,
 * gathered there and quantised; then the buffer is cleared. With overlap_param_gather (`lazy`) this
 * happens at the begin of a step, before the first gradient is written; otherwise at the end of the
 * step. */
static void
reuse_grad_buf_for_mxfp8_param_ag_clears_the_room_before_a_gradient_comes (void **state)
{
  (void) state;
  for (int lazy = 0; lazy < 2; lazy++) {
    g_autoptr (weft_plan) plan =
        lazy ? plan_of (MX, LAZY, BATCH ("16"), NULL) : plan_of (MX, BATCH ("16"), NULL);
    const weft_program *p = plan->role[0];
    uint32_t grads = standing (p, "fp8 gradients"), wgrad = WEFT_NO_OP, cleared = 0;
    for (uint32_t op = p->n_op; op-- > 0;)
      if (p->op[op].kind == WEFT_OP_MATMUL_WGRAD)
        wgrad = op;
    for (uint32_t op = 0; op < p->n_op; op++) {
      const struct weft_use *use = &p->uses[p->op[op].uses];
      gboolean clears = p->op[op].kind == WEFT_OP_ZERO && has_name (p, op, "zero_staging");
      if (p->op[op].kind == WEFT_OP_QUANTISE_BLOCKS || clears)
        assert_int_equal (op < wgrad, lazy);
      if (!clears)
        continue;
      assert_int_equal (p->buf[use[0].buf].base, grads);
      assert_int_equal (p->op[op - 1].kind,
                        cleared && !lazy ? p->op[op - 1].kind : WEFT_OP_QUANTISE_BLOCKS);
      cleared++;
    }
    assert_int_equal (count (p, WEFT_OP_QUANTISE_BLOCKS, ""), 4 * LAYERS);
    assert_int_equal (count (p, WEFT_OP_CAST, "stage"), cleared);
    assert_int_equal (count (p, WEFT_OP_AMAX, ""), 0);
  }
}

/* ---------------------------------------------------------------------- real steps */

#define TINY                                                                                       \
  "topology=cpu model=gpt2-nano num_layers=4 hidden_size=64 num_attention_heads=4 "                \
  "num_query_groups=4 kv_channels=16 ffn_hidden_size=96 seq_length=16 global_batch_size=8 "

static const char *const precisions[] = { "precision=fp32 ", "precision=bf16 ",
                                          "precision=bf16 grad_reduce_in_fp32=true " };
#define UNITS2 "use_megatron_fsdp=true zero_dp_strategy=2 fp8_param_gather=true "
#define UNITS3 "use_megatron_fsdp=true zero_dp_strategy=3 fp8_param_gather=true "
static const char *const e4m3[] = {
  "use_distributed_optimizer=true fp8_param_gather=true gpus=1",
  "use_distributed_optimizer=true fp8_param_gather=true gpus=2",
  "use_distributed_optimizer=true fp8_param_gather=true gpus=4 overlap_grad_reduce=true "
  "overlap_param_gather=true bucket_size=20000",
  "use_distributed_optimizer=true fp8_param_gather=true gpus=4 pipeline_model_parallel_size=2",
  "use_distributed_optimizer=true fp8_param_gather=true gpus=4 disable_bucketing=true "
  "num_distributed_optimizer_instances=2 overlap_grad_reduce=true",
  "use_megatron_fsdp=true zero_dp_strategy=1 fp8_param_gather=true gpus=1",
  "use_megatron_fsdp=true zero_dp_strategy=1 fp8_param_gather=true gpus=4",
  "use_megatron_fsdp=true zero_dp_strategy=1 fp8_param_gather=true gpus=2 "
  "keep_fp8_transpose_cache=true overlap_grad_reduce=true overlap_param_gather=true",
  UNITS2 "gpus=2",
  UNITS2 "gpus=4 micro_batch_size=1 keep_fp8_transpose_cache=true overlap_grad_reduce=true "
         "overlap_param_gather=true",
  UNITS2 "gpus=4 num_distributed_optimizer_instances=2 suggested_communication_unit_size=1",
  UNITS2 "gpus=4 pipeline_model_parallel_size=2",
  UNITS3 "gpus=2",
  UNITS3 "gpus=4 keep_fp8_transpose_cache=true",
  UNITS3 "gpus=4 pipeline_model_parallel_size=2 micro_batch_size=1",
  UNITS3 "gpus=2 keep_fp8_transpose_cache=true fsdp_double_buffer=true nccl_ub=true",
  UNITS3 "gpus=4 num_distributed_optimizer_instances=2",
  UNITS3 "gpus=4 num_distributed_optimizer_instances=2 outer_dp_sharding_strategy=optim",
  UNITS3 "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=2 "
         "keep_fp8_transpose_cache=true suggested_communication_unit_size=1",
  UNITS3 "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
  UNITS3 "gpus=2 megatron_fsdp_unit_modules=attention,mlp,head keep_fp8_transpose_cache=true",
  UNITS3 "gpus=2 megatron_fsdp_unit_modules=embedding,head",
};
#define MXFP8                                                                                      \
  "use_distributed_optimizer=true fp8_param_gather=true reuse_grad_buf_for_mxfp8_param_ag=true "
static const char *const mxfp8[] = {
  MXFP8 "gpus=1",
  MXFP8 "gpus=2",
  MXFP8 "gpus=1 micro_batch_size=4",
  MXFP8 "gpus=4 overlap_grad_reduce=true overlap_param_gather=true bucket_size=20000",
  MXFP8 "gpus=4 pipeline_model_parallel_size=2 overlap_grad_reduce=true overlap_param_gather=true",
};

static struct real_result
run (const char *precision, const char *strategy, uint64_t stress)
{
  g_autofree char *words = g_strconcat (TINY, precision, strategy, NULL);
  struct real_run how = { .words = words, .steps = 3, .poison = TRUE, .stress = stress };

  return weft_test_run (&how);
}

/* Compares all strategies with the first strategy, which has one rank. `gradients_stay`: TRUE:
 * gradients are compared too. FALSE: with MXFP8, the gather of weights has overwritten the
 * gradients. */
static void
check_bits (const char *const *strategy, size_t n, gboolean gradients_stay)
{
  for (size_t p = 0; p < G_N_ELEMENTS (precisions); p++) {
    struct real_result one = run (precisions[p], strategy[0], 0);
    assert_true (isfinite (one.loss[2]) && one.loss[2] < one.loss[0]);
    for (size_t s = 1; s < n; s++) {
      struct real_result other = run (precisions[p], strategy[s], s % 2 ? 0 : 5);
      if (!gradients_stay)
        other.gradients = one.gradients;
      if (!weft_test_same_bits (&one, &other, 3))
        fail_msg ("%s%s: loss %.17g, of one rank %.17g; gradients %s", precisions[p], strategy[s],
                  other.loss[2], one.loss[2], other.gradients == one.gradients ? "same" : "other");
    }
  }
}

static void
fp8_param_gather_gives_the_bits_of_one_rank (void **state)
{
  (void) state;
  check_bits (e4m3, G_N_ELEMENTS (e4m3), TRUE);
}

static void
reuse_grad_buf_for_mxfp8_param_ag_gives_the_bits_of_one_rank (void **state)
{
  (void) state;
  check_bits (mxfp8, G_N_ELEMENTS (mxfp8), FALSE);
}

/* With weights stored in fp8 (E4M3 or MXFP8), the loss after training must be within 5 % of the
 * loss with bf16 weights. */
static void
weights_in_fp8_learn (void **state)
{
  static const char *const strategy[] = { "gpus=1", "", "" };
  double loss[3] = { 0 };

  (void) state;
  for (int i = 0; i < 3; i++) {
    g_autofree char *words = g_strconcat (TINY, "precision=bf16 ",
                                          i == 0   ? strategy[0]
                                          : i == 1 ? e4m3[1]
                                                   : mxfp8[1],
                                          NULL);
    g_autoptr (real_job) job = real_job_open (words, NULL);
    weft_state_init (job->state, 5);
    double first = real_job_step (job)->loss;
    for (int step = 1; step < 30; step++)
      loss[i] = real_job_step (job)->loss;
    assert_true (loss[i] < first - 0.3);
  }
  assert_true (fabs (loss[1] - loss[0]) < 0.05 * loss[0]);
  assert_true (fabs (loss[2] - loss[0]) < 0.05 * loss[0]);
}

/* A state returns fp8 weights as the numbers that kernels compute with: the fp8 value times its
 * scale. */
static void
weights_are_codes_times_their_scale (void **state)
{
  g_autofree char *words = g_strconcat (TINY, "precision=bf16 ", e4m3[1], NULL);
  g_autoptr (real_job) job = real_job_open (words, NULL);
  const weft_program *p = job->plan->role[0];
  uint32_t seen = 0;

  (void) state;
  weft_state_init (job->state, 5);
  for (int steps = 0; steps < 2; steps++) {
    for (uint32_t t = 0; t < weft_state_count (job->state); t++) {
      const struct weft_state_tensor *tensor = weft_state_at (job->state, t);
      const struct weft_param *param = &p->param[t];
      uint64_t n = tensor->rows * tensor->columns;
      if (tensor->dtype != WEFT_FP8)
        continue;
      g_autofree float *value = g_new (float, n), *master = g_new (float, n);
      g_autofree uint8_t *code = g_new (uint8_t, n);
      float amax;
      job->x->ops->read (job->x, 1, param->weight, 0, n, code);
      job->x->ops->read (job->x, 1, param->scale, 0, 4, &amax);
      weft_state_read (job->state, t, WEFT_STATE_WEIGHT, 0, n, value);
      weft_state_read (job->state, t, WEFT_STATE_MASTER, 0, n, master);
      for (uint64_t i = 0; i < n; i++) {
        assert_true (value[i] == weft_e4m3_float (code[i]) * weft_fp8_unscale (amax));
        assert_true (fabsf (value[i] - master[i]) <= 0x1p-4f * amax);
      }
      seen++;
    }
    real_job_step (job);
  }
  assert_int_equal (seen, 2 * 4 * 4);
}

/* ---------------------------------------------------------------------- checkpoints */

static void
save_to (real_job *job, const char *dir)
{
  struct weft_progress progress = { .step = job->control.step, .seed = 1 };

  assert_true (weft_checkpoint_save (job->state, &job->plan->job, &progress, dir, 0, NULL));
}

static real_job *
resumed (const char *strategy, const char *dir)
{
  g_autofree char *words = g_strconcat (TINY, "precision=bf16 ", strategy, NULL);
  g_autofree char *passed_over = NULL;
  real_job *job = real_job_open (words, NULL);
  struct weft_progress progress;

  weft_state_init (job->state, 77);
  assert_true (
      weft_checkpoint_load (job->state, &job->plan->job, dir, &progress, &passed_over, NULL));
  job->control.step = progress.step;
  return job;
}

/* A checkpoint contains fp32 master weights, so a job with any storage of weights (bf16, E4M3,
 * MXFP8) and any sharding can resume it. The step after resuming depends on the weight type of the
 * resuming job, and not on the sharding of either job. */
static void
a_run_goes_into_fp8_and_out_of_it (void **folder)
{
  static const char plain[] = "gpus=2 use_distributed_optimizer=true";
  const char *const forms[] = { plain,   e4m3[1], e4m3[2],  mxfp8[1], mxfp8[3],
                                e4m3[6], e4m3[8], e4m3[12], e4m3[14], e4m3[17] };
  uint64_t last[G_N_ELEMENTS (forms)] = { 0 };

  for (unsigned a = 0; a < G_N_ELEMENTS (forms); a++) {
    g_autofree char *name = g_strdup_printf ("from-%u", a);
    g_autofree char *dir = g_build_filename (*folder, name, NULL);
    g_autofree char *words = g_strconcat (TINY, "precision=bf16 ", forms[a], NULL);
    g_autoptr (real_job) job = real_job_open (words, NULL);
    weft_state_init (job->state, 5);
    real_job_step (job);
    save_to (job, dir);
    uint64_t master = real_hash (job->state, WEFT_STATE_MASTER);
    real_job_step (job);
    uint64_t next = real_hash (job->state, WEFT_STATE_MASTER);
    for (unsigned b = 0; b < G_N_ELEMENTS (forms); b++) {
      g_autoptr (real_job) other = resumed (forms[b], dir);
      assert_int_equal (real_hash (other->state, WEFT_STATE_MASTER), master);
      real_job_step (other);
      last[b] = real_hash (other->state, WEFT_STATE_MASTER);
    }
    assert_int_equal (last[a], next);
    /* The forms 1 and 2, 3 and 4, and 5 to 9 with 1, have one recipe under different shardings:
     * their bits must be equal. */
    assert_int_equal (last[1], last[2]);
    for (unsigned b = 5; b < G_N_ELEMENTS (forms); b++)
      assert_int_equal (last[1], last[b]);
    assert_int_equal (last[3], last[4]);
    assert_true (last[0] != last[1] && last[1] != last[3]);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_stage_without_layers_has_no_weights_in_fp8),
  cmocka_unit_test (fp8_param_gather_keys_buffers_by_type),
  cmocka_unit_test (fp8_param_gather_leaves_a_byte_for_a_weight_and_one_for_its_copy),
  cmocka_unit_test (fp8_param_gather_has_a_master_beside_fp32),
  cmocka_unit_test (fp8_param_gather_launches_other_buckets_with_the_last_of_bytes),
  cmocka_unit_test (fp8_param_gather_agrees_on_magnitudes_rounds_and_gathers_bytes),
  cmocka_unit_test (fp8_param_gather_makes_the_copy_once_a_step_after_the_lazy_gather),
  cmocka_unit_test (keep_fp8_transpose_cache_makes_the_copy_once_and_not_in_every_backward),
  cmocka_unit_test (all_that_stands_of_weights_in_fp8_is_a_slice_at_level_3),
  cmocka_unit_test (weights_in_fp8_are_whole_beside_slices_of_gradients_at_level_2),
  cmocka_unit_test (both_buckets_of_a_layer_are_one_launch),
  cmocka_unit_test (keep_fp8_transpose_cache_keeps_the_copy_with_a_gathered_unit),
  cmocka_unit_test (reuse_grad_buf_for_mxfp8_param_ag_gathers_bf16_through_the_gradients),
  cmocka_unit_test (reuse_grad_buf_for_mxfp8_param_ag_clears_the_room_before_a_gradient_comes),
  cmocka_unit_test (fp8_param_gather_gives_the_bits_of_one_rank),
  cmocka_unit_test (reuse_grad_buf_for_mxfp8_param_ag_gives_the_bits_of_one_rank),
  cmocka_unit_test (weights_in_fp8_learn),
  cmocka_unit_test (weights_are_codes_times_their_scale),
  cmocka_unit_test_setup_teardown (a_run_goes_into_fp8_and_out_of_it, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests, .seconds = 9)
