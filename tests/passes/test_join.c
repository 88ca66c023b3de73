/* Fused kernels: a residual sum with the norm after it, a matmul with gelu, a bias with the
 * residual sum after it, with dropout or without. The tests check which pairs become one op, how
 * much memory traffic this saves, and that training has the same bits. */
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/made/trained.h"
#include "tests/runner/runner.h"

#define LAYERS 4
#define MODEL                                                                                      \
  "num_layers=4 hidden_size=64 num_attention_heads=4 ffn_hidden_size=256 vocab_size=512 "          \
  "seq_length=64 topology=dgx-h100 gpus=2 global_batch_size=4 "

static uint32_t
count (const weft_program *p, enum weft_op_kind kind)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += p->op[op].kind == kind;
  return n;
}

/* Lists the names of the ops of a kind in the first microbatch, in order. The caller frees the
 * text. */
static char *
named (const weft_program *p, enum weft_op_kind kind)
{
  GString *names = g_string_new (NULL);

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].micro == 0)
      g_string_append_printf (names, "%s%s", names->len ? " " : "", p->name[p->op[op].name]);
  return g_string_free (names, FALSE);
}

static void
check_kind (const char *words, uint32_t role, enum weft_op_kind kind, const char *wanted)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autofree char *found = named (plan->role[role], kind);

  assert_string_equal (found, wanted);
}

static void
check (const char *words, uint32_t role, const char *wanted)
{
  check_kind (words, role, WEFT_OP_ADD_NORM, wanted);
}

#define INSIDE "norm2 norm2 norm2 norm2"
#define ALL "norm2 norm1 norm2 norm1 norm2 norm1 norm2 final_norm"

static void
a_sum_and_its_norm_are_one_op_inside_layers_and_between_them (void **state)
{
  (void) state;
  check (MODEL, 0, ALL);
  check (MODEL "normalization=rmsnorm tensor_model_parallel_size=2", 0, ALL);
  check (MODEL "tensor_model_parallel_size=2 sequence_parallel=true", 0, ALL);
  check (MODEL "use_distributed_optimizer=true overlap_param_gather=true "
               "overlap_grad_reduce=true",
         0, ALL);
  check (MODEL "num_moe_experts=4 moe_router_topk=2 moe_ffn_hidden_size=96 activation=swiglu", 0,
         ALL);
}

static void
the_first_norm_of_a_stage_has_no_sum_of_its_own (void **state)
{
  (void) state;
  check (MODEL "pipeline_model_parallel_size=2", 0, "norm2 norm1 norm2");
  check (MODEL "pipeline_model_parallel_size=2", 1, "norm2 norm1 norm2 final_norm");
}

static void
dropout_and_stacks_without_the_kernel_keep_two_ops (void **state)
{
  (void) state;
  check (MODEL "hidden_dropout=0.1", 0, "");
  check (MODEL "stack=megatron-core", 0, "");
  check (MODEL "fused_add_norm=0", 0, "");
}

/* Recompute: the last residual sum of a recomputed block is followed by a norm outside the block.
 * This norm is not recomputed, so it is not fused with the recomputed sum. If only norms are
 * recomputed, no sum is there to be fused with them. */
static void
what_is_run_again_has_the_sums_that_are_run_again_with_it (void **state)
{
  (void) state;
  check (MODEL "recompute_granularity=full recompute_method=uniform recompute_num_layers=2", 0,
         ALL " norm2 norm1 norm2 norm2 norm1 norm2");
  check (MODEL "recompute_granularity=selective recompute_modules=layernorm", 0, ALL);
}

/* FSDP2 gathers the next unit between the last residual sum of a layer and the first norm of the
 * next unit. So this sum and this norm cannot be one kernel. */
static void
a_sum_that_a_unit_is_gathered_behind_stays_by_itself (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (MODEL "distributed_config=fsdp2");
  const weft_program *p = plan->role[0];
  g_autofree char *found = named (p, WEFT_OP_ADD_NORM);

  (void) state;
  assert_string_equal (found, INSIDE);
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ADD)
      assert_string_equal (p->name[p->op[op].name], "residual2");
}

static double
traffic (const weft_program *p)
{
  double bytes = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    bytes += p->op[op].lane == WEFT_LANE_GPU ? weft_op_bytes (p, op) : 0;
  return bytes;
}

/* The fused kernel of a residual sum and a norm does not read the sum from memory again. Each fused
 * pair saves one pass over the residual stream and one launch. */
static void
each_pair_saves_one_pass_over_the_stream_and_one_launch (void **state)
{
  g_autoptr (weft_plan) two = weft_test_plan (MODEL "fused_add_norm=0");
  g_autoptr (weft_plan) one = weft_test_plan (MODEL);
  const double stream = 64.0 * 64 * 2;
  uint32_t pairs = count (one->role[0], WEFT_OP_ADD_NORM);

  (void) state;
  assert_int_equal (pairs, 2 * 2 * LAYERS);
  assert_int_equal (one->role[0]->n_op + pairs, two->role[0]->n_op);
  assert_near (traffic (two->role[0]) - traffic (one->role[0]), pairs * stream);
  assert_int_equal (count (one->role[0], WEFT_OP_ADD), 0);
  /* The first norm, norm1 of layer 0, has no residual sum before it and cannot be fused. */
  assert_int_equal (count (one->role[0], WEFT_OP_NORM), 2);
}

/* -------------------------------------------------------------------------------- gelu */

static void
count_gelu (const char *words, uint32_t forward, uint32_t again, uint32_t backward)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  const weft_program *p = plan->role[0];
  uint32_t found[3] = { 0 };

  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean runs_again = p->op[op].flags & WEFT_OP_RECOMPUTE;
    found[0] += p->op[op].kind == WEFT_OP_MATMUL_GELU && !runs_again;
    found[1] += p->op[op].kind == WEFT_OP_MATMUL_GELU && runs_again;
    found[2] += p->op[op].kind == WEFT_OP_MATMUL_DGRAD_GELU;
  }
  assert_int_equal (found[0], forward);
  assert_int_equal (found[1], again);
  assert_int_equal (found[2], backward);
}

/* In forward, gelu is fused into the matmul before it; in backward, the derivative of gelu is fused
 * into the matmul of the input gradient. All counts are for two microbatches. */
static void
a_product_ends_with_gelu_and_its_gradient_with_the_slope (void **state)
{
  const uint32_t n = 2 * LAYERS;

  (void) state;
  count_gelu (MODEL, n, 0, n);
  count_gelu (MODEL "tensor_model_parallel_size=2 global_batch_size=2", n, 0, n);
  count_gelu (MODEL "delay_wgrad_compute=true overlap_grad_reduce=true", n, 0, n);
  count_gelu (MODEL "recompute_granularity=selective recompute_modules=mlp", n, n, n);
  count_gelu (MODEL "cpu_offloading=true cpu_offloading_num_layers=3", n, 0, n - 2 * 3);
  count_gelu (MODEL "fused_gelu=0", 0, 0, 0);
  count_gelu (MODEL "activation=swiglu", 0, 0, 0);
  count_gelu (MODEL "activation=squared_relu", 0, 0, 0);
  count_gelu (MODEL "activation=gelu_erf", 0, 0, 0);
  count_gelu (MODEL "stack=megatron-core", 0, 0, 0);
}

/* The first projection of a gated MLP and swiglu are one op on stacks that ask for it, with the sum
 * of their predicted times: which kernels run is measured. */
static void
a_product_ends_with_a_gate_at_the_price_of_both (void **state)
{
  g_autoptr (weft_plan) two = weft_test_plan (MODEL "activation=swiglu"),
                        one = weft_test_plan (MODEL "activation=swiglu fused_swiglu=1");
  const weft_program *p = one->role[0], *q = two->role[0];
  struct weft_cost cost = weft_plan_cost (two);
  double seconds = 0;

  (void) state;
  assert_int_equal (count (p, WEFT_OP_SWIGLU), 0);
  assert_int_equal (count (q, WEFT_OP_MATMUL_SWIGLU), 0);
  assert_int_equal (count (p, WEFT_OP_MATMUL_SWIGLU), count (q, WEFT_OP_SWIGLU));
  assert_int_equal (count (p, WEFT_OP_SWIGLU_BWD), count (q, WEFT_OP_SWIGLU_BWD));
  for (uint32_t op = 0; op + 1 < q->n_op; op++)
    if (q->op[op + 1].kind == WEFT_OP_SWIGLU)
      seconds = weft_cost_kernel (&cost, q->op[op].kind, weft_op_shape (q, op), 0) +
                weft_cost_kernel (&cost, WEFT_OP_SWIGLU, weft_op_shape (q, op + 1), 0);
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_MATMUL_SWIGLU)
      assert_near (weft_cost_kernel (&cost, p->op[op].kind, weft_op_shape (p, op), 0), seconds);
}

/* The fused kernel of a matmul and gelu writes the input of gelu only if a backward pass will read
 * it: without recompute in the forward pass; with recompute only in the recomputation. */
static void
the_input_of_gelu_is_kept_where_backward_reads_it (void **state)
{
  g_autoptr (weft_plan) keeps = weft_test_plan (MODEL);
  g_autoptr (weft_plan) makes_again =
      weft_test_plan (MODEL "recompute_granularity=selective recompute_modules=mlp");
  const weft_program *of[] = { keeps->role[0], makes_again->role[0] };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (of); i++)
    for (uint32_t op = 0; op < of[i]->n_op; op++) {
      if (of[i]->op[op].kind != WEFT_OP_MATMUL_GELU)
        continue;
      gboolean kept = i == 0 || of[i]->op[op].flags & WEFT_OP_RECOMPUTE;
      assert_int_equal (of[i]->uses[of[i]->op[op].uses + 3].buf != WEFT_NO_BUF, kept);
      assert_int_equal (weft_op_shape (of[i], op)->dim[5], kept);
    }
}

/* With the fused kernels, gelu reads no input from memory in forward, and its output gradient is
 * neither written nor read in backward. This saves three passes over memory and two launches per
 * layer and microbatch. */
static void
gelu_costs_three_passes_and_two_launches_less (void **state)
{
  g_autoptr (weft_plan) two = weft_test_plan (MODEL "fused_gelu=0");
  g_autoptr (weft_plan) one = weft_test_plan (MODEL);
  const double pass = 64.0 * 256 * 2;

  (void) state;
  assert_int_equal (one->role[0]->n_op + 2 * 2 * LAYERS, two->role[0]->n_op);
  assert_near (traffic (two->role[0]) - traffic (one->role[0]), 2 * LAYERS * 3 * pass);
  assert_int_equal (count (one->role[0], WEFT_OP_GELU), 0);
  assert_int_equal (count (one->role[0], WEFT_OP_GELU_BWD), 0);
}

/* ------------------------------------------------------------------------- bias and sum */

#define ON_TWO MODEL "global_batch_size=2 add_bias_linear=true tensor_model_parallel_size=2 "
#define SUMS "residual1 residual2 residual1 residual2 residual1 residual2 residual1 residual2"

static void
a_bias_after_an_all_reduce_and_the_residual_sum_are_one_op (void **state)
{
  (void) state;
  check_kind (ON_TWO "fused_bias_add=1", 0, WEFT_OP_BIAS_ADD, SUMS);
  check_kind (ON_TWO "fused_bias_add=1 sequence_parallel=true", 0, WEFT_OP_BIAS_ADD, SUMS);
  check_kind (ON_TWO "fused_bias_add=1", 0, WEFT_OP_ADD_NORM, "");
  check_kind ("model=gpt2-nano topology=cpu gpus=2 global_batch_size=4 num_layers=1 "
              "tensor_model_parallel_size=2 fused_bias_add=1",
              0, WEFT_OP_BIAS_ADD, "residual1 residual2");
}

static void
without_a_bias_of_its_own_a_residual_sum_stays (void **state)
{
  (void) state;
  check_kind (ON_TWO, 0, WEFT_OP_BIAS_ADD, "");
  check_kind (MODEL "fused_bias_add=1 add_bias_linear=true", 0, WEFT_OP_BIAS_ADD, "");
  check_kind (ON_TWO "fused_bias_add=1 hidden_dropout=0.1", 0, WEFT_OP_BIAS_ADD, "");
  check_kind (MODEL "fused_bias_add=1 tensor_model_parallel_size=2", 0, WEFT_OP_BIAS_ADD, "");
}

#define DROPS "hidden_dropout=0.1 fused_bias_add="

/* With dropout, the fused kernel also draws the mask, once more in recompute. */
static void
a_bias_before_dropout_and_the_residual_sum_are_one_op (void **state)
{
  (void) state;
  check_kind (ON_TWO DROPS "1", 0, WEFT_OP_BIAS_DROPOUT_ADD, SUMS);
  check_kind (ON_TWO DROPS "1 sequence_parallel=true", 0, WEFT_OP_BIAS_DROPOUT_ADD, SUMS);
  check_kind (ON_TWO DROPS "1 recompute_granularity=full recompute_method=uniform "
                           "recompute_num_layers=1",
              0, WEFT_OP_BIAS_DROPOUT_ADD, SUMS " " SUMS);
  check_kind (ON_TWO DROPS "0", 0, WEFT_OP_BIAS_DROPOUT_ADD, "");
  check_kind (MODEL DROPS "1 add_bias_linear=true", 0, WEFT_OP_BIAS_DROPOUT_ADD, "");
}

/* The fused kernel of a bias and a residual sum neither writes nor reads the intermediate result
 * after the addition of the bias. */
static void
each_bias_and_sum_saves_two_passes_and_one_launch (void **state)
{
  g_autoptr (weft_plan) two = weft_test_plan (ON_TWO "fused_add_norm=0");
  g_autoptr (weft_plan) one = weft_test_plan (ON_TWO "fused_add_norm=0 fused_bias_add=1");
  const double stream = 64.0 * 64 * 2;
  uint32_t pairs = count (one->role[0], WEFT_OP_BIAS_ADD);

  (void) state;
  assert_int_equal (pairs, 2 * 2 * LAYERS);
  assert_int_equal (one->role[0]->n_op + pairs, two->role[0]->n_op);
  assert_near (traffic (two->role[0]) - traffic (one->role[0]), pairs * 2 * stream);
  assert_int_equal (count (one->role[0], WEFT_OP_BIAS), 0);
  assert_int_equal (count (one->role[0], WEFT_OP_ADD), 0);

  g_autoptr (weft_plan) drops_two = weft_test_plan (ON_TWO DROPS "0");
  g_autoptr (weft_plan) drops_one = weft_test_plan (ON_TWO DROPS "1");
  assert_int_equal (drops_one->role[0]->n_op + pairs, drops_two->role[0]->n_op);
  assert_near (traffic (drops_two->role[0]) - traffic (drops_one->role[0]), pairs * 2 * stream);
  assert_int_equal (count (drops_one->role[0], WEFT_OP_DROPOUT_ADD), 0);
}

static void
no_bit_of_training_depends_on_it (void **state)
{
  static const char *const jobs[] = {
    "model=gpt2-nano topology=cpu gpus=2 global_batch_size=4 seq_length=16 num_layers=3 ",
    "model=gpt2-nano topology=cpu gpus=2 global_batch_size=4 seq_length=16 num_layers=2 "
    "precision=bf16 tensor_model_parallel_size=2 recompute_granularity=selective "
    "recompute_modules=mlp ",
    "model=gpt2-nano topology=cpu gpus=2 global_batch_size=4 seq_length=16 num_layers=2 "
    "tensor_model_parallel_size=2 ",
    "model=gpt2-nano topology=cpu gpus=2 global_batch_size=4 seq_length=16 num_layers=2 "
    "precision=bf16 reduction_order=fast tensor_model_parallel_size=2 sequence_parallel=true ",
    "model=llama-nano topology=cpu gpus=2 global_batch_size=4 seq_length=16 num_layers=2 "
    "precision=bf16 tensor_model_parallel_size=2 sequence_parallel=true "
    "recompute_granularity=full recompute_method=uniform recompute_num_layers=2 ",
    "model=gpt2-nano topology=cpu gpus=2 global_batch_size=4 seq_length=16 num_layers=2 "
    "precision=bf16 tensor_model_parallel_size=2 sequence_parallel=true hidden_dropout=0.2 ",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    const struct weft_exec_options how = { 0 };
    g_autofree char *joined = g_strconcat (jobs[i], "fused_bias_add=1", NULL);
    g_autofree char *plain = g_strconcat (jobs[i], "fused_add_norm=0 fused_gelu=0", NULL);
    g_autoptr (trained) one = trained_new (NULL, joined, &how);
    g_autoptr (trained) two = trained_new (NULL, plain, &how);
    trained_assert_same (one, two, jobs[i]);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_sum_and_its_norm_are_one_op_inside_layers_and_between_them),
  cmocka_unit_test (the_first_norm_of_a_stage_has_no_sum_of_its_own),
  cmocka_unit_test (dropout_and_stacks_without_the_kernel_keep_two_ops),
  cmocka_unit_test (what_is_run_again_has_the_sums_that_are_run_again_with_it),
  cmocka_unit_test (a_sum_that_a_unit_is_gathered_behind_stays_by_itself),
  cmocka_unit_test (each_pair_saves_one_pass_over_the_stream_and_one_launch),
  cmocka_unit_test (a_product_ends_with_gelu_and_its_gradient_with_the_slope),
  cmocka_unit_test (a_product_ends_with_a_gate_at_the_price_of_both),
  cmocka_unit_test (the_input_of_gelu_is_kept_where_backward_reads_it),
  cmocka_unit_test (gelu_costs_three_passes_and_two_launches_less),
  cmocka_unit_test (a_bias_after_an_all_reduce_and_the_residual_sum_are_one_op),
  cmocka_unit_test (without_a_bias_of_its_own_a_residual_sum_stays),
  cmocka_unit_test (a_bias_before_dropout_and_the_residual_sum_are_one_op),
  cmocka_unit_test (each_bias_and_sum_saves_two_passes_and_one_launch),
  cmocka_unit_test (no_bit_of_training_depends_on_it),
};

WEFT_TESTS (tests)
