/* Layers of experts: what is sent, what is kept for backward, which ranks reduce gradients, and
 * that the distribution of the experts changes no bit. */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2
#define STRIDE (WEFT_THREAD_SANITIZER ? 10 : WEFT_ADDRESS_SANITIZER ? 5 : 1)

/* ------------------------------------------------------------------------ real steps */

#define SMALL                                                                                      \
  " hidden_size=32 num_attention_heads=4 num_query_groups=2 kv_channels=8 ffn_hidden_size=96"      \
  " moe_ffn_hidden_size=24 seq_length=16 global_batch_size=8"

static const char *const models[] = {
  "model=mixtral-nano" SMALL,
  "model=mixtral-nano" SMALL " moe_shared_expert_intermediate_size=40 moe_first_dense_layers=1 "
  "moe_router_score_function=sigmoid moe_router_topk=4 moe_router_topk_scaling_factor=2.5 "
  "moe_router_num_groups=2 moe_router_group_topk=1",
  "model=mixtral-nano" SMALL " moe_router_pre_softmax=true moe_layer_freq=2 activation=gelu "
  "num_moe_experts=4 moe_router_topk=4",
};

static const char *const precisions[] = {
  "precision=fp32",
  "precision=bf16 grad_reduce_in_fp32=true",
  "precision=bf16",
};

#define EP(n) "expert_model_parallel_size=" #n " "
#define ETP(n) "expert_tensor_parallel_size=" #n " "
#define TP(n) "tensor_model_parallel_size=" #n " sequence_parallel=true "
#define CP(n, kind) "context_parallel_size=" #n " cp_comm_type=" #kind " "

static const char *const strategies[] = {
  EP (2) "gpus=2",
  EP (4) "gpus=4",
  EP (2) "gpus=4",
  EP (4) "gpus=8 overlap_grad_reduce=true bucket_size=20000",
  EP (2) "gpus=8 average_in_collective=true",
  EP (2) "gpus=2 micro_batch_size=2 calculate_per_token_loss=true",
  EP (2) "gpus=2 micro_batch_size=4",
  EP (2) "gpus=4 use_distributed_optimizer=true",
  EP (4) "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
         "bucket_size=10000",
  EP (2) "gpus=8 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
         "disable_bucketing=true average_in_collective=true",
  EP (2) "gpus=4 use_distributed_optimizer=true optimizer_cpu_offload=true "
         "optimizer_offload_fraction=0.6",
  EP (2) "gpus=4 pipeline_model_parallel_size=2",
  EP (4) "gpus=8 pipeline_model_parallel_size=2 pipeline_schedule=gpipe "
         "use_distributed_optimizer=true overlap_grad_reduce=true",
  EP (2) "gpus=4 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
         "batch_p2p_comm=false overlap_p2p_comm=true",
  EP (2) "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
  EP (2) "gpus=4 recompute_granularity=full recompute_method=block recompute_num_layers=3",
  EP (2) "gpus=2 recompute_granularity=selective recompute_modules=layernorm",
  EP (2) "gpus=2 recompute_granularity=selective recompute_modules=moe",
  EP (2) "gpus=4 recompute_granularity=selective recompute_modules=moe,layernorm "
         "delay_wgrad_compute=true",
  EP (4) "gpus=4 recompute_granularity=selective recompute_modules=moe_act",
  EP (2) "gpus=4 delay_wgrad_compute=true overlap_grad_reduce=true",
  EP (2) "gpus=2 cpu_offloading=true cpu_offloading_num_layers=2",
  EP (2) "gpus=2 moe_load_imbalance=1.5 enable_compile=true",
  EP (2) "gpus=4 moe_token_dispatcher_type=flex",
  TP (2) EP (4) ETP (1) "gpus=4 moe_token_dispatcher_type=flex",
  TP (2) "gpus=2",
  TP (2) "gpus=4 delay_wgrad_compute=true use_distributed_optimizer=true",
  TP (2) EP (2) "gpus=4",
  TP (2) EP (4) "gpus=8 use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=10000",
  TP (2) EP (2) "gpus=4 micro_batch_size=2",
  TP (2) EP (2) "gpus=8 pipeline_model_parallel_size=2",
  TP (2) EP (2) "gpus=4 recompute_granularity=full recompute_method=uniform "
                "recompute_num_layers=1",
  TP (2) EP (2) ETP (1) "gpus=2",
  TP (2) EP (2) ETP (1) "gpus=4 use_distributed_optimizer=true overlap_param_gather=true "
                        "overlap_grad_reduce=true",
  TP (2) EP (4) ETP (1) "gpus=4",
  TP (2) EP (4) ETP (1) "gpus=8 micro_batch_size=2",
  TP (2) EP (4) ETP (1) "gpus=8 pipeline_model_parallel_size=2",
  ETP (2) "gpus=2",
  EP (2) ETP (2) "gpus=4",
  EP (2) ETP (4) "gpus=8 use_distributed_optimizer=true",
  TP (2) EP (2) "gpus=4 cpu_offloading=true cpu_offloading_num_layers=2",
  EP (2) CP (2, p2p) "gpus=2",
  EP (2) CP (2, a2a) "gpus=4",
  EP (4) CP (2, all_gather) "gpus=4",
  EP (2) CP (4, p2p) "gpus=4",
  EP (2) CP (4, all_gather) "gpus=8 use_distributed_optimizer=true",
  TP (2) CP (2, p2p) "gpus=4",
  TP (2) CP (2, p2p) EP (2) "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true",
  TP (2) CP (2, all_gather) EP (4) ETP (1) "gpus=4",
  TP (2) CP (2, all_gather) EP (2) ETP (1) "gpus=8 pipeline_model_parallel_size=2",
  TP (2) ETP (1) "gpus=2",
  TP (2) ETP (1) "gpus=4 use_distributed_optimizer=true micro_batch_size=2",
  TP (2) ETP (1) "gpus=4 average_in_collective=true delay_wgrad_compute=true",
  TP (2) EP (2) ETP (1) "gpus=8 average_in_collective=true",
  TP (4) EP (2) ETP (1) "gpus=4 recompute_granularity=selective recompute_modules=moe",
  TP (4) ETP (2) "gpus=8 pipeline_model_parallel_size=2",
  TP (2) CP (2, p2p) ETP (1) "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true",
};

static const struct real_sweep sweep = {
  .models = models,
  .n_models = G_N_ELEMENTS (models),
  .precisions = precisions,
  .n_precisions = G_N_ELEMENTS (precisions),
  .strategies = strategies,
  .n_strategies = G_N_ELEMENTS (strategies),
  .steps = STEPS,
  .stride = STRIDE,
};

static void
experts_of_several_ranks_give_the_bits_of_one (void **state)
{
  (void) state;
  weft_test_check_sweep (&sweep);
}

/* moe_expert_capacity_factor: which tokens are dropped depends on the other tokens of the
 * microbatch on the same rank. In the strategies of this table, all ranks have whole microbatches,
 * so all strategies drop the same tokens. */
static void
tokens_over_capacity_are_dropped_alike_on_any_number_of_ranks (void **state)
{
  static const char *const some[] = { EP (2) "gpus=2",
                                      EP (4) "gpus=4 use_distributed_optimizer=true",
                                      EP (2) "gpus=4 pipeline_model_parallel_size=2",
                                      EP (2) "gpus=4 moe_pad_expert_input_to_capacity=true",
                                      EP (2) ETP (2) "gpus=4",
                                      EP (2) ETP (2) "gpus=4 moe_pad_expert_input_to_capacity=true",
                                      EP (4) ETP (2) "gpus=8 moe_pad_expert_input_to_capacity=true "
                                                     "use_distributed_optimizer=true",
                                      "gpus=2 moe_pad_expert_input_to_capacity=true" };
  g_autofree char *model = g_strconcat (models[0], " moe_expert_capacity_factor=0.8", NULL);

  (void) state;
  for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++) {
    struct real_result one =
        weft_test_run_words (model, precisions[p], "gpus=1", (struct real_run){ .steps = STEPS });
    struct real_result all = weft_test_run_words (models[0], precisions[p], "gpus=1",
                                                  (struct real_run){ .steps = STEPS });
    assert_true (one.loss[0] != all.loss[0]);
    for (unsigned s = 0; s < G_N_ELEMENTS (some); s++)
      weft_test_check_one (&sweep, model, precisions[p], some[s], &one, s);
  }
}

/* moe_expert_capacity_factor with tensor parallelism: each rank drops tokens of its own part of the
 * sequence, so the bits differ from those of one rank. Padded and unpadded rows of experts must
 * still give the same bits. */
static void
padding_changes_no_bits_of_tensor_parallel_ranks (void **state)
{
  static const char *const some[] = { TP (2) EP (2) "gpus=4 ",
                                      TP (2) EP (4) ETP (1) "gpus=4 micro_batch_size=2 ",
                                      TP (2) CP (2, p2p) EP (2) "gpus=4 " };
  g_autofree char *model = g_strconcat (models[1], " moe_expert_capacity_factor=0.8", NULL);

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (some); s++) {
    g_autofree char *padded = g_strconcat (some[s], "moe_pad_expert_input_to_capacity=true", NULL);
    struct real_result plain =
        weft_test_run_words (model, precisions[1], some[s], (struct real_run){ .steps = STEPS });
    weft_test_check_one (&sweep, model, precisions[1], padded, &plain, s);
  }
}

static void
check_fast (const char *words, const struct real_result *one)
{
  g_autofree char *strategy = g_strconcat (words, " reduction_order=fast", NULL);
  struct real_result fast =
      weft_test_run_words (models[1], precisions[0], strategy, (struct real_run){ .steps = STEPS });

  if (!weft_test_is_near (&fast, one, STEPS))
    fail_msg ("%s: loss %.9g and %.9g, norm %.9g and %.9g", strategy, fast.loss[1], one->loss[1],
              fast.norm[1], one->norm[1]);
}

static void
fast_order_is_close_to_canonical (void **state)
{
  struct real_result one =
      weft_test_run_words (models[1], precisions[0], "gpus=1", (struct real_run){ .steps = STEPS });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s += 3)
    check_fast (strategies[s], &one);
}

/* ------------------------------------------------------------------------- programs */

/* Two layers, the second with experts. Microbatches of T = 2 * 64 tokens, K = 2 of E = 8 experts
 * per token, hidden size H = 64, expert width F = 96. */
#define WORDS                                                                                      \
  "num_layers=2 hidden_size=64 num_attention_heads=4 ffn_hidden_size=128 vocab_size=256 "          \
  "seq_length=64 num_moe_experts=8 moe_router_topk=2 moe_ffn_hidden_size=96 activation=swiglu "    \
  "moe_first_dense_layers=1 micro_batch_size=2 precision=bf16 topology=dgx-h100 gpus=8 "
enum { T = 128, K = 2, E = 8, H = 64, F = 96 };

static uint32_t
nth (const weft_program *p, enum weft_op_kind kind, const char *name, uint32_t n)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && has_name (p, op, name) && n-- == 0)
      return op;
  fail_msg ("no %s of %s", name, weft_op_words[kind]);
  return 0;
}

/* Four ranks with two experts each. The all-to-all dispatcher sends T K H elements of tokens and T
 * K routing weights in each direction, and each rank sends the counts of its E experts (8 bytes
 * each). The host waits for the counts, which are the sizes of the all-to-all. */
static void
expert_model_parallel_size_sends_each_token_to_its_experts (void **state)
{
  g_autoptr (weft_program) p = built (WORDS "expert_model_parallel_size=4", 0);
  uint32_t counts = nth (p, WEFT_OP_ALL_GATHER, "counts", 0),
           there = nth (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", 0),
           weights = nth (p, WEFT_OP_ALL_TO_ALL_V, "dispatch_prob", 0),
           back = nth (p, WEFT_OP_ALL_TO_ALL_V, "combine", 0),
           up = nth (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0),
           host = nth (p, WEFT_OP_COPY_OUT, "splits", 0);

  (void) state;
  assert_int_equal (p->op[there].group, WEFT_GROUP_EP);
  assert_int_equal (p->op[there].lane, WEFT_LANE_EP);
  assert_true (weft_op_bytes (p, counts) == 4 * 8 * E);
  assert_true (weft_op_bytes (p, there) == 2.0 * T * K * H);
  assert_true (weft_op_bytes (p, weights) == 2.0 * T * K);
  assert_true (weft_op_bytes (p, back) == 2.0 * T * K * H);
  /* one layer with experts: three all-to-alls in forward, three in backward */
  assert_int_equal (count_kind (p, WEFT_OP_ALL_TO_ALL_V), 6);
  assert_true (comes_after (p, counts, host) && comes_after (p, host, there));
  assert_true (comes_after (p, there, up) && comes_after (p, up, back));
  assert_int_equal (weft_op_shape (p, up)->dim[0], T * K);
  assert_int_equal (weft_op_shape (p, up)->dim[3], E / 4);
  assert_true (weft_op_flops (p, up) == 2.0 * T * K * 2 * F * H);
}

static uint32_t
launches (const weft_program *p)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += p->op[op].kind == WEFT_OP_ALL_TO_ALL_V && !(p->op[op].flags & WEFT_OP_GROUPED);
  return n;
}

/* The flex dispatcher sends as many bytes as the all-to-all dispatcher. The flex dispatcher sends
 * rows and routing weights in one launch, in forward and in backward, where the all-to-all
 * dispatcher needs a launch for each. */
static void
moe_token_dispatcher_type_flex_sends_tokens_and_weights_in_one_launch (void **state)
{
  g_autoptr (weft_program) plain = built (WORDS "expert_model_parallel_size=4", 0);
  g_autoptr (weft_program) flex =
      built (WORDS "expert_model_parallel_size=4 moe_token_dispatcher_type=flex", 0);

  (void) state;
  assert_int_equal (launches (plain), 6);
  assert_int_equal (launches (flex), 4);
  for (uint32_t i = 0; i < 2; i++) {
    /* nth() compares the beginning of names, so "dispatch" also finds "dispatch_prob": every second
     * match is "dispatch". */
    uint32_t weights = nth (flex, WEFT_OP_ALL_TO_ALL_V, "dispatch_prob", i),
             tokens = nth (flex, WEFT_OP_ALL_TO_ALL_V, "dispatch", 2 * i);
    assert_true (flex->op[weights].flags & WEFT_OP_GROUPED);
    assert_int_equal (flex->pos[weights], flex->pos[tokens] + 1);
    assert_true (weft_op_bytes (flex, weights) == 2.0 * T * K);
    assert_true (weft_op_bytes (flex, tokens) == 2.0 * T * K * H);
  }
}

static void
experts_of_one_rank_send_nothing (void **state)
{
  g_autoptr (weft_program) p = built (WORDS, 0);

  (void) state;
  assert_int_equal (count_kind (p, WEFT_OP_ALL_TO_ALL_V), 0);
  for (uint32_t op = 0; op < p->n_op; op++)
    assert_int_not_equal (p->op[op].lane, WEFT_LANE_EP);
  assert_int_equal (weft_op_shape (p, nth (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0))->dim[3], E);
}

static uint64_t
numel (const weft_program *p, const char *name)
{
  uint64_t n = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    if (g_str_has_prefix (p->name[p->param[i].name], name))
      n += p->param[i].rows * p->param[i].columns;
  return n;
}

/* Each rank holds a quarter of the experts. Gradients of experts are reduced over 2 replicas, all
 * other gradients over 8. Both are divided by 8, because an expert receives the tokens of 4
 * ranks. */
static void
gradients_of_experts_are_reduced_by_those_who_hold_them (void **state)
{
  g_autoptr (weft_program) p = built (WORDS "expert_model_parallel_size=4", 0);
  g_autoptr (weft_program) one = built (WORDS, 0);
  uint64_t expert = 0, dense = 0;

  (void) state;
  assert_int_equal (numel (one, "experts."), E * 3 * F * H);
  assert_int_equal (numel (p, "experts."), E / 4 * 3 * F * H);
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_ALL_REDUCE || !has_name (p, op, "bucket"))
      continue;
    assert_true (p->op[op].group == WEFT_GROUP_EDP || p->op[op].group == WEFT_GROUP_DP);
    *(p->op[op].group == WEFT_GROUP_EDP ? &expert : &dense) += elements (p, op);
  }
  assert_int_equal (expert, numel (p, "experts."));
  assert_int_equal (expert + dense, numel (p, ""));
  assert_int_equal (count_kind (p, WEFT_OP_SCALE), 2);
  for (uint32_t i = 0; i < 2; i++)
    assert_int_equal (weft_op_shape (p, nth (p, WEFT_OP_SCALE, "scale", i))->dim[2], 8);
}

static void
average_in_collective_divides_experts_by_who_shares_them_out (void **state)
{
  g_autoptr (weft_program) p =
      built (WORDS "expert_model_parallel_size=4 average_in_collective=true", 0);

  (void) state;
  assert_int_equal (count_kind (p, WEFT_OP_SCALE), 1);
  assert_int_equal (weft_op_shape (p, nth (p, WEFT_OP_SCALE, "scale_experts", 0))->dim[2], 4);
}

/* With two tensor parallel ranks and sequence parallelism, each rank routes HALF = T / 2 tokens. */
#define TENSOR WORDS "tensor_model_parallel_size=2 sequence_parallel=true "
enum { HALF = T / 2 };

/* Experts that are split over tensor parallel ranks: the ranks with parts of the same experts
 * all-gather the received rows and routing weights, and reduce-scatter the outputs. Backward does
 * the opposite. */
static void
expert_tensor_parallel_size_gathers_rows_and_adds_what_parts_make (void **state)
{
  g_autoptr (weft_program) p = built (TENSOR "expert_model_parallel_size=2", 0);
  uint32_t counts = nth (p, WEFT_OP_ALL_GATHER, "counts", 0),
           there = nth (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", 0),
           rows = nth (p, WEFT_OP_ALL_GATHER_V, "dispatch", 0),
           weights = nth (p, WEFT_OP_ALL_GATHER_V, "dispatch_prob", 0),
           up = nth (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0),
           sum = nth (p, WEFT_OP_REDUCE_SCATTER_V, "combine", 0),
           back = nth (p, WEFT_OP_ALL_TO_ALL_V, "combine", 0);

  (void) state;
  assert_int_equal (p->op[counts].group, WEFT_GROUP_TP_EP);
  assert_true (weft_op_bytes (p, counts) == 4 * 8 * E);
  assert_true (weft_op_bytes (p, there) == 2.0 * HALF * K * H);
  assert_true (weft_op_bytes (p, rows) == 2 * 2.0 * HALF * K * H);
  assert_true (weft_op_bytes (p, weights) == 2 * 2.0 * HALF * K);
  assert_true (weft_op_bytes (p, sum) == 2 * 2.0 * HALF * K * H);
  assert_true (weft_op_bytes (p, back) == 2.0 * HALF * K * H);
  assert_int_equal (p->op[rows].group, WEFT_GROUP_ETP);
  assert_int_equal (p->op[sum].group, WEFT_GROUP_ETP);
  assert_true (comes_after (p, there, rows) && comes_after (p, rows, up));
  assert_true (comes_after (p, up, sum) && comes_after (p, sum, back));
  assert_int_equal (count_kind (p, WEFT_OP_ALL_TO_ALL_V), 6);
  assert_int_equal (count_kind (p, WEFT_OP_ALL_GATHER_V), 3);
  assert_int_equal (count_kind (p, WEFT_OP_REDUCE_SCATTER_V), 3);
  assert_int_equal (weft_op_shape (p, up)->dim[0], 2 * HALF * K);
  assert_int_equal (weft_op_shape (p, up)->dim[1], 2 * F / 2);
  assert_int_equal (numel (p, "experts."), E / 2 * 3 * F * H / 2);
}

/* With expert_tensor_parallel_size = 1, the ranks of a tensor parallel group hold different
 * experts, and no rows are gathered. */
static void
expert_tensor_parallel_size_of_one_leaves_experts_whole (void **state)
{
  g_autoptr (weft_program) p =
      built (TENSOR "expert_model_parallel_size=4 expert_tensor_parallel_size=1", 0);
  uint32_t there = nth (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", 0);

  (void) state;
  assert_true (weft_op_bytes (p, there) == 2.0 * HALF * K * H);
  assert_int_equal (count_kind (p, WEFT_OP_ALL_TO_ALL_V), 6);
  assert_int_equal (count_kind (p, WEFT_OP_ALL_GATHER_V), 0);
  assert_int_equal (count_kind (p, WEFT_OP_REDUCE_SCATTER_V), 0);
  assert_int_equal (numel (p, "experts."), E / 4 * 3 * F * H);
}

/* In canonical order the gradient of a weight is computed from all rows of a sequence at once.
 * Tensor parallel ranks hold parts of a sequence, so they all-gather the operands of the weight
 * gradient (for the two matmuls of an expert and four microbatches); each rank keeps its piece of
 * the result. In fast order nothing is gathered. */
static void
ranks_that_hold_the_same_experts_gather_rows_for_gradients (void **state)
{
#define ALIKE                                                                                      \
  WORDS TP (4) ETP (1) "topology=cpu micro_batch_size=1 global_batch_size=8 gpus=8 "               \
                       "expert_model_parallel_size=2 reduction_order="
  g_autoptr (weft_program) p = built (ALIKE "canonical", 0), fast = built (ALIKE "fast", 0);
  uint32_t rows = nth (p, WEFT_OP_ALL_GATHER_V, "expert_fc1", 0),
           wgrad = nth (p, WEFT_OP_MOE_MATMUL_WGRAD, "expert_fc1", 0),
           piece = nth (p, WEFT_OP_KEEP_PIECE, "sequence", 0);

  (void) state;
  assert_int_equal (count_kind (fast, WEFT_OP_ALL_GATHER_V), 0);
  assert_int_equal (count_kind (p, WEFT_OP_ALL_GATHER_V), 4 * 2 * 2);
  assert_int_equal (p->op[rows].group, WEFT_GROUP_ECP);
  assert_int_equal (count_kind (p, WEFT_OP_KEEP_PIECE), 4 * 2);
  assert_int_equal (weft_op_shape (p, piece)->dim[1], 2);
  assert_int_equal (weft_op_shape (p, wgrad)->dim[5], 4);
}

/* moe_pad_expert_input_to_capacity: every expert has the same number of rows on every rank. So the
 * program uses all-gather and reduce-scatter of equal pieces, and the host does not wait for counts
 * (the only copy to the host is that of the metrics). */
static void
padded_rows_are_gathered_in_equal_shares (void **state)
{
  g_autoptr (weft_program) p =
      built (TENSOR "expert_model_parallel_size=2 moe_expert_capacity_factor=1 "
                    "moe_pad_expert_input_to_capacity=true",
             0);
  uint64_t capacity = HALF * K / E;

  (void) state;
  assert_int_equal (count_kind (p, WEFT_OP_ALL_GATHER_V), 0);
  assert_int_equal (elements (p, nth (p, WEFT_OP_ALL_GATHER, "dispatch", 0)), 2 * E * capacity * H);
  assert_int_equal (elements (p, nth (p, WEFT_OP_REDUCE_SCATTER, "combine", 0)),
                    2 * E * capacity * H);
  assert_int_equal (count_kind (p, WEFT_OP_COPY_OUT), 1);
}

/* A shared expert is split over tensor parallel ranks like any MLP, with the all-gather and
 * reduce-scatter of sequence parallelism. The router is whole on every rank. */
static void
shared_experts_are_cut_by_tensor_parallel_ranks_and_the_router_is_not (void **state)
{
  g_autoptr (weft_program) p = built (TENSOR "moe_shared_expert_intermediate_size=80", 0);
  uint32_t in = nth (p, WEFT_OP_ALL_GATHER, "shared_fc1", 0),
           out = nth (p, WEFT_OP_REDUCE_SCATTER, "shared_fc2", 0),
           router = nth (p, WEFT_OP_MATMUL, "router", 0),
           joined = nth (p, WEFT_OP_ALL_REDUCE, "shared_gradient", 0);

  (void) state;
  assert_int_equal (numel (p, "shared."), 3 * 80 * H / 2);
  assert_int_equal (numel (p, "router."), E * H);
  assert_int_equal (elements (p, in), T * H);
  assert_int_equal (elements (p, out), T * H);
  assert_int_equal (weft_op_shape (p, router)->dim[0], HALF);
  assert_int_equal (p->op[joined].group, WEFT_GROUP_TP);
}

/* expert_tensor_parallel_size = 1: all eight ranks are replicas of the experts, but only four ranks
 * are replicas of each other parameter. So the average of expert gradients over eight ranks is
 * multiplied by 8 / 4. */
static void
average_in_collective_multiplies_whole_experts_of_tensor_parallel_ranks (void **state)
{
  g_autoptr (weft_program) p =
      built (TENSOR "expert_tensor_parallel_size=1 average_in_collective=true", 0);
  const struct weft_shape *shape = weft_op_shape (p, nth (p, WEFT_OP_SCALE, "scale_experts", 0));

  (void) state;
  assert_int_equal (shape->dim[2], 4);
  assert_int_equal (shape->dim[3], 8);
}

static void
use_distributed_optimizer_cuts_experts_among_their_replicas (void **state)
{
  g_autoptr (weft_program) p =
      built (WORDS "expert_model_parallel_size=4 use_distributed_optimizer=true", 0);

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_REDUCE_SCATTER)
      continue;
    uint32_t adam = nth (p, WEFT_OP_ADAM, "", p->op[op].group == WEFT_GROUP_EDP);
    assert_int_equal (elements (p, op),
                      elements (p, adam) * (p->op[op].group == WEFT_GROUP_EDP ? 2 : 8));
  }
  assert_int_equal (p->op[nth (p, WEFT_OP_ALL_REDUCE, "grad_norm", 0)].group, WEFT_GROUP_WORLD);
  assert_int_equal (count_kind (p, WEFT_OP_MOE_SQUARES), 0);
}

/* The gradient norm without use_distributed_optimizer. Ranks that hold different experts add the
 * sums of squares of their expert gradients. All other gradients are equal on these ranks and are
 * counted once. */
static void
the_norm_is_of_all_experts_and_of_one_copy_of_the_rest (void **state)
{
  g_autoptr (weft_program) p = built (WORDS "expert_model_parallel_size=4", 0);
  uint32_t add = nth (p, WEFT_OP_MOE_SQUARES, "", 0),
           experts = nth (p, WEFT_OP_ALL_REDUCE, "expert_grad_norm", 0);

  (void) state;
  assert_int_equal (p->op[experts].group, WEFT_GROUP_EMP);
  assert_true (comes_after (p, experts, add));
  assert_true (comes_after (p, add, nth (p, WEFT_OP_CLIP, "", 0)));
}

/* ---------------------------------------------------------------- imbalance, capacity */

static void
moe_load_imbalance_multiplies_rows_on_the_way_and_at_experts (void **state)
{
  g_autoptr (weft_program) p =
      built (WORDS "expert_model_parallel_size=4 moe_load_imbalance=1.5", 0);
  uint32_t there = nth (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", 0);
  uint32_t up = nth (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0);

  (void) state;
  assert_true (weft_op_bytes (p, there) == 1.5 * 2 * T * K * H);
  assert_int_equal (elements (p, up), T * K * 3 / 2);
  uint32_t u = p->uses[p->op[up].uses + 3].buf;
  assert_int_equal (p->buf[u].bytes, 2 * T * K * 3 / 2 * 2 * F);
}

/* topology=cpu, which computes real numbers: buffers must have room for the worst case, that all
 * tokens are routed to the experts of one rank. */
static void
a_run_on_cpus_has_room_for_everybody_at_one_rank (void **state)
{
  g_autoptr (weft_program) p =
      built (WORDS "expert_model_parallel_size=4 topology=cpu precision=fp32", 0);
  uint32_t up = nth (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0);
  uint32_t u = p->uses[p->op[up].uses + 3].buf;

  (void) state;
  assert_int_equal (elements (p, up), T * K);
  assert_int_equal (p->buf[u].bytes, 4 * T * 4 * K * 2 * F);
}

/* moe_pad_expert_input_to_capacity: every expert gets C = ceil (T K factor / E) rows, whatever the
 * routing. So all sizes are fixed, and the host does not wait for counts. */
static void
moe_pad_expert_input_to_capacity_sends_fixed_sizes (void **state)
{
  g_autoptr (weft_program) p =
      built (WORDS "expert_model_parallel_size=4 moe_expert_capacity_factor=1.2 "
                   "moe_pad_expert_input_to_capacity=true",
             0);
  uint64_t capacity = (uint64_t) ceil (1.2 * T * K / E);

  (void) state;
  assert_int_equal (count_kind (p, WEFT_OP_ALL_TO_ALL_V), 0);
  assert_int_equal (count_kind (p, WEFT_OP_ALL_TO_ALL), 6);
  assert_int_equal (elements (p, nth (p, WEFT_OP_ALL_TO_ALL, "dispatch", 0)), E * capacity * H);
  /* the only copy to the host is that of the step's metrics */
  assert_int_equal (count_kind (p, WEFT_OP_COPY_OUT), 1);
}

static void
moe_expert_capacity_factor_bounds_the_room_of_experts (void **state)
{
  g_autoptr (weft_program) p = built (WORDS "expert_model_parallel_size=4 topology=cpu "
                                            "precision=fp32 moe_expert_capacity_factor=1",
                                      0);
  uint32_t up = nth (p, WEFT_OP_MOE_MATMUL, "expert_fc1", 0);
  uint32_t u = p->uses[p->op[up].uses + 3].buf;

  (void) state;
  assert_int_equal (p->buf[u].bytes, 4 * (E / 4) * 4 * (T * K / E) * 2 * F);
}

/* --------------------------------------------------------------------------- memory */

/* Activations that a layer with experts keeps besides attention, in bf16 unless stated: the two
 * inputs of its MLP half; routing scores (fp32), choices, row numbers and counts; and for each row
 * the permuted input, its routing weight, and the outputs of fc1 and of the activation. */
static void
a_layer_keeps_scores_and_the_rows_of_its_experts (void **state)
{
  g_autoptr (weft_program) p = built (WORDS "global_batch_size=16", 0);
  uint64_t kept = 0, router = 4 * T * E + 2 * 4 * T * K + 8 * E;
  uint64_t rows = 2 * T * K * (H + 1 + 2 * F + F), inputs = 2 * 2 * T * H;
  uint32_t fc2 = nth (p, WEFT_OP_MOE_MATMUL, "expert_fc2", 0);
  static const char *const names[] = { "residual1",  "norm2",     "scores",   "choice",
                                       "row",        "counts",    "dispatch", "dispatch_prob",
                                       "expert_fc1", "expert_act" };

  (void) state;
  for (uint32_t b = 0; b < p->n_buf; b++) {
    const struct weft_buf *buf = &p->buf[b];
    for (unsigned i = 0; i < G_N_ELEMENTS (names); i++)
      if (buf->layer == 1 && buf->first < fc2 && buf->last > fc2 + 8 && buf->base == WEFT_NO_BUF &&
          g_str_equal (p->name[buf->name], names[i]))
        kept += buf->bytes;
  }
  assert_int_equal (kept, router + rows + inputs);
}

static double
flops_with (const char *activation)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      "model=mixtral-nano topology=dgx-h100 gpus=1 global_batch_size=2 moe_first_dense_layers=1 "
      "moe_shared_expert_intermediate_size=64 activation=%s",
      activation);
  double flops = 0;

  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    flops += weft_op_flops (plan->role[0], op);
  return flops;
}

static void
a_gate_doubles_the_first_map_whatever_its_nonlinearity (void **state)
{
  (void) state;
  assert_true (flops_with ("geglu") == flops_with ("swiglu"));
  assert_true (flops_with ("quick_geglu") == flops_with ("swiglu"));
  assert_true (flops_with ("gelu") < flops_with ("swiglu"));
}

static void
a_plan_with_room_for_even_shares_is_not_run_on_a_cpu (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = weft_test_plan ("model=mixtral-nano topology=dgx-h100 gpus=2 "
                                               "global_batch_size=4 expert_model_parallel_size=2");
  const struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;

  assert_null (weft_exec_cpu.open (plan, &options, &error));
  assert_non_null (strstr (error->message, "moe_load_imbalance: found 1, wanted at least 2"));
}

/* Returns the traffic of one dispatch all-to-all between the 16 ranks of two nodes. */
static struct weft_traffic
dispatched (const char *backend, const char *more)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      "model=mixtral-nano topology=dgx-h100 gpus=16 global_batch_size=16 num_moe_experts=16 "
      "moe_router_topk=4 expert_model_parallel_size=16 moe_token_dispatcher_type=flex "
      "moe_flex_dispatcher_backend=%s %s", backend, more);
  struct weft_group group = weft_mesh_group (&plan->mesh, 0, WEFT_GROUP_EP);
  const struct weft_shape shape = { .dim = { 1 << 28, 1024 }, .dtype = WEFT_BF16 };
  struct weft_coll_shape ranks = { 0 };

  weft_coll_shape_init (&ranks, &plan->fabric, &group);
  struct weft_traffic t = weft_plan_traffic (plan, &ranks, WEFT_OP_ALL_TO_ALL_V, &shape);
  weft_coll_shape_release (&ranks);
  return t;
}

/* Traffic of DeepEP. A token is sent once to each node that has one of its four experts. A node of
 * two has one with probability 1 - 2^-4, so 2 (1 - 1/16) copies are sent between nodes instead of
 * 4; seven eighths of them are forwarded over NVLink. Over NVLink a token is sent once to each of
 * the 16 ranks that has one of its experts, instead of 4 copies. If the router chooses one of two
 * groups of experts first, the token is sent to one node only. */
static void
deepep_sends_a_token_once_to_each_rank (void **state)
{
  struct weft_traffic each = dispatched ("none", ""), once = dispatched ("deepep", "");
  struct weft_traffic grouped =
      dispatched ("hybridep", "moe_router_num_groups=2 moe_router_group_topk=1 ");
  double remote = each.bytes[WEFT_WAY_REMOTE], local = each.bytes[WEFT_WAY_LOCAL];

  (void) state;
  assert_near (once.bytes[WEFT_WAY_REMOTE], remote * 2 * (1 - 1.0 / 16) / 4);
  assert_near (grouped.bytes[WEFT_WAY_REMOTE], remote / 4);
  double ranks = 16 * (1 - pow (15.0 / 16, 4)) / 4;
  assert_near (once.bytes[WEFT_WAY_LOCAL], (local + remote * 7 / 8) * ranks);
  assert_true (once.seconds < each.seconds && grouped.seconds < once.seconds);
  assert_near (once.latency, each.latency);
}

/* moe_priced_with_next_experts: of 16 experts on 16 ranks, 4 in a row are on 4 ranks of a node. */
static void
experts_in_a_row_are_on_few_ranks (void **state)
{
  struct weft_traffic each = dispatched ("none", "");
  struct weft_traffic next = dispatched ("deepep", "moe_priced_with_next_experts=true ");
  double remote = each.bytes[WEFT_WAY_REMOTE], local = each.bytes[WEFT_WAY_LOCAL];

  (void) state;
  assert_near (next.bytes[WEFT_WAY_REMOTE], remote / 4);
  assert_near (next.bytes[WEFT_WAY_LOCAL], local + remote * 7 / 8);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (experts_of_several_ranks_give_the_bits_of_one),
  cmocka_unit_test (tokens_over_capacity_are_dropped_alike_on_any_number_of_ranks),
  cmocka_unit_test (padding_changes_no_bits_of_tensor_parallel_ranks),
  cmocka_unit_test (fast_order_is_close_to_canonical),
  cmocka_unit_test (expert_model_parallel_size_sends_each_token_to_its_experts),
  cmocka_unit_test (moe_token_dispatcher_type_flex_sends_tokens_and_weights_in_one_launch),
  cmocka_unit_test (experts_of_one_rank_send_nothing),
  cmocka_unit_test (gradients_of_experts_are_reduced_by_those_who_hold_them),
  cmocka_unit_test (average_in_collective_divides_experts_by_who_shares_them_out),
  cmocka_unit_test (expert_tensor_parallel_size_gathers_rows_and_adds_what_parts_make),
  cmocka_unit_test (expert_tensor_parallel_size_of_one_leaves_experts_whole),
  cmocka_unit_test (ranks_that_hold_the_same_experts_gather_rows_for_gradients),
  cmocka_unit_test (padded_rows_are_gathered_in_equal_shares),
  cmocka_unit_test (shared_experts_are_cut_by_tensor_parallel_ranks_and_the_router_is_not),
  cmocka_unit_test (average_in_collective_multiplies_whole_experts_of_tensor_parallel_ranks),
  cmocka_unit_test (use_distributed_optimizer_cuts_experts_among_their_replicas),
  cmocka_unit_test (the_norm_is_of_all_experts_and_of_one_copy_of_the_rest),
  cmocka_unit_test (moe_load_imbalance_multiplies_rows_on_the_way_and_at_experts),
  cmocka_unit_test (a_run_on_cpus_has_room_for_everybody_at_one_rank),
  cmocka_unit_test (moe_pad_expert_input_to_capacity_sends_fixed_sizes),
  cmocka_unit_test (moe_expert_capacity_factor_bounds_the_room_of_experts),
  cmocka_unit_test (a_layer_keeps_scores_and_the_rows_of_its_experts),
  cmocka_unit_test (a_gate_doubles_the_first_map_whatever_its_nonlinearity),
  cmocka_unit_test (a_plan_with_room_for_even_shares_is_not_run_on_a_cpu),
  cmocka_unit_test (deepep_sends_a_token_once_to_each_rank),
  cmocka_unit_test (experts_in_a_row_are_on_few_ranks),
};

WEFT_TESTS (tests, .seconds = 14)
