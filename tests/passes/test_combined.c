/* overlap_moe_expert_parallel_comm: while one microbatch waits for an all-to-all of its experts,
 * kernels of another microbatch run. The tests check the order of the ops of a forward and a
 * backward pass on the lanes of kernels and experts, the forward passes that run ahead, the time
 * that the knob saves, and that no bit changes. */
#include "core/base/sanitize.h"
#include "core/report/report.h"
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2
#define STRIDE (WEFT_THREAD_SANITIZER ? 9 : WEFT_ADDRESS_SANITIZER ? 5 : 1)
#define ON " overlap_moe_expert_parallel_comm=true"
#define DELAYED ON " delay_wgrad_compute=true"

/* ------------------------------------------------------------------------ real steps */

#define SMALL                                                                                      \
  "topology=cpu model=mixtral-nano num_layers=8 hidden_size=32 num_attention_heads=4 "             \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=96 moe_ffn_hidden_size=24 seq_length=16 "      \
  "global_batch_size=16 "

static const char *const models[] = {
  SMALL "precision=bf16",
  SMALL "precision=bf16 grad_reduce_in_fp32=true moe_shared_expert_intermediate_size=40 "
        "moe_first_dense_layers=2",
  "topology=cpu model=deepseek-nano mtp_num_layers=1 seq_length=16 global_batch_size=16 "
  "precision=bf16 ",
  SMALL "precision=fp16 loss_scale=64 moe_layer_freq=2 moe_shared_expert_intermediate_size=40",
};

#define EP(n) "expert_model_parallel_size=" #n " "
#define CHUNKS "virtual_pipeline_model_parallel_size=2 "

static const char *const strategies[] = {
  EP (2) "gpus=2",
  EP (4) "gpus=4 overlap_grad_reduce=true bucket_size=10000",
  EP (2) "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
  EP (2) "gpus=2 micro_batch_size=2",
  EP (2) "gpus=8 micro_batch_size=2",
  EP (2) "gpus=4 recompute_granularity=selective recompute_modules=layernorm,mlp,moe_act",
  EP (2) "gpus=4 recompute_granularity=selective recompute_modules=moe",
  EP (2) "gpus=4 pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true " CHUNKS,
  EP (2) "gpus=4 pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true "
         "overlap_p2p_comm_warmup_flush=true virtual_pipeline_model_parallel_size=4",
  EP (2) "gpus=8 pipeline_model_parallel_size=4 overlap_grad_reduce=true " CHUNKS,
  EP (2) "gpus=8 pipeline_model_parallel_size=4 use_distributed_optimizer=true "
         "overlap_grad_reduce=true overlap_param_gather=true align_param_gather=true "
         "grad_sync_func=aligned deallocate_pipeline_outputs=true " CHUNKS,
};

static struct real_result
run (const char *model, const char *strategy, const char *more, unsigned seed)
{
  g_autofree char *words = g_strconcat (model, " ", strategy, more, NULL);

  return weft_test_run (&(struct real_run){
      .words = words, .steps = STEPS, .poison = TRUE, .stress = seed % 3 ? 0 : 1 + seed });
}

static void
passes_that_take_turns_give_the_bits_of_one_rank (void **state)
{
  static const char *const more[] = { ON, DELAYED };
  unsigned n = 0;

  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct real_result one = run (models[m], "gpus=1", "", 0);
    for (unsigned s = 0; s < 2 * G_N_ELEMENTS (strategies); s++, n++) {
      if (n % STRIDE)
        continue;
      g_autofree char *words = g_strconcat (models[m], " ", strategies[s / 2], more[s % 2], NULL);
      weft_test_check_bits (words, STEPS, &one, n);
    }
  }
}

/* ------------------------------------------------------------------------- programs */

/* A job with three layers with experts, whose experts are distributed over four ranks, and three
 * microbatches per rank. */
#define WORDS                                                                                      \
  "num_layers=3 hidden_size=64 num_attention_heads=4 ffn_hidden_size=128 vocab_size=256 "          \
  "seq_length=64 num_moe_experts=8 moe_router_topk=2 moe_ffn_hidden_size=96 activation=swiglu "    \
  "precision=bf16 topology=dgx-h100 gpus=4 expert_model_parallel_size=4 global_batch_size=12 "
enum { LAYERS = 3, MICROS = 3 };

static gboolean
is_at (const struct weft_op *op, uint32_t layer, uint32_t micro)
{
  return op->layer == layer && op->micro == micro;
}

static gboolean
is_backward (const struct weft_op *op)
{
  return op->phase != WEFT_PHASE_FORWARD;
}

/* Returns the first op with this kind and name in a layer and a microbatch. */
static uint32_t
find (const weft_program *p, enum weft_op_kind kind, const char *name, uint32_t layer,
      uint32_t micro)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && is_at (&p->op[op], layer, micro) && is_named (p, op, name))
      return op;
  fail_msg ("no %s of layer %u and microbatch %u", name, layer, micro);
  return WEFT_NO_OP;
}

/* Lists the all-to-alls of the forward pass of microbatch f and of the backward pass of microbatch
 * f - 1, which overlap, in the order of their lane: op name, F (forward) or B (backward), layer.
 * The caller frees the text. */
static char *
on_the_way (const weft_program *p, uint32_t f)
{
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_EP]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_EP][i];
    gboolean back = is_backward (&p->op[op]);
    if (p->op[op].micro == (back ? f - 1 : f))
      g_string_append_printf (text, "%s %c%u, ", p->name[p->op[op].name], back ? 'B' : 'F',
                              p->op[op].layer);
  }
  return g_string_free (text, FALSE);
}

static void
overlap_moe_expert_parallel_comm_sends_rows_of_two_microbatches_in_turn (void **state)
{
  g_autoptr (weft_program) p = built (WORDS ON, 0);
  g_autoptr (GString) wanted = g_string_new (NULL);

  (void) state;
  for (uint32_t j = 0; j < LAYERS; j++) {
    uint32_t b = LAYERS - 1 - j;
    g_string_append_printf (wanted,
                            "combine B%u, counts F%u, dispatch F%u, dispatch_prob F%u, "
                            "dispatch B%u, dispatch_prob B%u, combine F%u, ",
                            b, j, j, j, b, b, j);
  }
  for (uint32_t f = 1; f < MICROS; f++) {
    g_autofree char *found = on_the_way (p, f);
    assert_string_equal (found, wanted->str);
  }
}

/* Kernels of two passes that run together: the forward pass of layer j and the backward pass of
 * layer LAYERS - 1 - j. attend_f, mlp_f: attention and the first matmul of the experts (expert_fc1)
 * in the forward pass. mlp_b, attend_b: the input gradient of expert_fc1 and the gradient of
 * attention in the backward pass. mlp_w, attend_w: the weight gradients of expert_fc1 and of the
 * output projection of attention in the backward pass. */
struct nodes {
  uint32_t attend_f, mlp_f, mlp_b, attend_b, mlp_w, attend_w;
};

static struct nodes
nodes_of (const weft_program *p, uint32_t f, uint32_t j)
{
  uint32_t b = LAYERS - 1 - j;
  struct nodes n = { .attend_f = find (p, WEFT_OP_ATTENTION, "attention", j, f),
                     .mlp_f = find (p, WEFT_OP_MOE_MATMUL, "expert_fc1", j, f),
                     .mlp_b = find (p, WEFT_OP_MOE_MATMUL_DGRAD, "expert_fc1", b, f - 1),
                     .attend_b = find (p, WEFT_OP_ATTENTION_BWD, "attention", b, f - 1),
                     .mlp_w = find (p, WEFT_OP_MOE_MATMUL_WGRAD, "expert_fc1", b, f - 1),
                     .attend_w = find (p, WEFT_OP_MATMUL_WGRAD, "proj", b, f - 1) };
  return n;
}

static void
overlap_moe_expert_parallel_comm_computes_of_one_what_the_other_does_not_wait_for (void **state)
{
  g_autoptr (weft_program) p = built (WORDS ON, 0);

  (void) state;
  for (uint32_t f = 1; f < MICROS; f++)
    for (uint32_t j = 0; j < LAYERS; j++) {
      struct nodes n = nodes_of (p, f, j);
      uint32_t b = LAYERS - 1 - j;
      uint32_t return_b = find (p, WEFT_OP_ALL_TO_ALL_V, "combine", b, f - 1),
               go_f = find (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", j, f);
      /* finds the backward all-to-all "combine" of layer b; find() would return the forward op */
      for (uint32_t op = 0; op < p->n_op; op++) {
        if (!is_at (&p->op[op], b, f - 1) || !is_backward (&p->op[op]))
          continue;
        if (p->op[op].kind == WEFT_OP_ALL_TO_ALL_V && is_named (p, op, "combine"))
          return_b = op;
      }
      assert_true (return_b < n.attend_f && n.attend_f < n.mlp_b && n.mlp_b < go_f);
      assert_true (go_f < n.mlp_f && n.mlp_f < n.attend_b);
      assert_true (n.mlp_w < go_f);
      /* An all-to-all depends only on the kernels that produce its input. */
      uint32_t pack = find (p, WEFT_OP_MOE_PERMUTE, "dispatch", j, f);
      assert_int_equal (kernels_before (p, go_f), p->pos[pack] + 1);
      assert_false (comes_after (p, return_b, n.attend_f));
      assert_true (comes_after (p, return_b, n.mlp_b));
      assert_true (comes_after (p, go_f, n.mlp_f));
    }
}

static void
without_the_knob_one_pass_follows_the_other (void **state)
{
  g_autoptr (weft_program) p = built (WORDS, 0);
  uint32_t go = find (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", 1, 1);

  (void) state;
  assert_int_equal (kernels_before (p, go),
                    p->pos[find (p, WEFT_OP_MOE_PERMUTE, "dispatch_prob", 1, 1)] + 1);
  for (uint32_t i = 1; i < p->lane_n[WEFT_LANE_GPU]; i++) {
    const struct weft_op *a = &p->op[p->lane_ops[WEFT_LANE_GPU][i - 1]],
                         *b = &p->op[p->lane_ops[WEFT_LANE_GPU][i]];
    if (a->micro < MICROS && b->micro < MICROS && a->layer < LAYERS && b->layer < LAYERS)
      assert_int_equal (a->micro, b->micro);
  }
}

static void
delay_wgrad_compute_puts_weight_gradients_of_experts_beside_what_travels (void **state)
{
  g_autoptr (weft_program) p = built (WORDS DELAYED, 0);

  (void) state;
  for (uint32_t f = 1; f < MICROS; f++)
    for (uint32_t j = 0; j < LAYERS; j++) {
      struct nodes n = nodes_of (p, f, j);
      uint32_t go_f = find (p, WEFT_OP_ALL_TO_ALL_V, "dispatch", j, f), go_b = WEFT_NO_OP;
      for (uint32_t op = n.mlp_b; op < n.attend_b; op++)
        if (p->op[op].kind == WEFT_OP_ALL_TO_ALL_V && p->op[op].micro == f - 1 &&
            is_named (p, op, "dispatch"))
          go_b = op;
      assert_true (go_f < n.mlp_w && n.mlp_w < go_b && go_b < n.mlp_f);
      assert_int_equal (p->op[n.mlp_w].phase, WEFT_PHASE_WEIGHT_GRAD);
      assert_false (comes_after (p, n.mlp_w, go_b));
      assert_true (n.attend_b < n.attend_w);
    }
}

/* The matmul of the head (in forward) and the gradient of the embedding (in backward) belong to no
 * layer. They run after the weight gradients of the first layer. */
static void
a_pair_ends_with_what_lies_at_the_ends_of_the_pipeline (void **state)
{
  g_autoptr (weft_program) p = built (WORDS DELAYED, 0);
  uint32_t w = find (p, WEFT_OP_MATMUL_WGRAD, "qkv", 0, 0);
  uint32_t head = find (p, WEFT_OP_NORM, "final_norm", WEFT_NO_LAYER, 1);
  uint32_t embedding = find (p, WEFT_OP_EMBED_BWD, "embedding", WEFT_NO_LAYER, 0);

  (void) state;
  assert_true (w < head && head < embedding);
  assert_true (find (p, WEFT_OP_MOE_MATMUL, "expert_fc2", LAYERS - 1, 1) < w);
}

/* Two stages of two chunks: the gradient of a chunk's input is sent to the neighbouring stage
 * before the weight gradients of the chunk's first layer run, so that the neighbour need not wait
 * for these weight gradients. */
static void
stages_are_sent_what_they_wait_for_before_the_first_layers_weight_gradients (void **state)
{
  g_autoptr (weft_program) p = built (
      WORDS DELAYED " num_layers=8 gpus=8 pipeline_model_parallel_size=2 global_batch_size=16 "
                    "virtual_pipeline_model_parallel_size=2 batch_p2p_comm=false "
                    "overlap_p2p_comm=true",
      1);
  uint32_t checked = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    if (row->kind != WEFT_OP_SEND || !is_named (p, op, "send_backward"))
      continue;
    uint32_t first = row->chunk ? 6 : 2,
             w = find (p, WEFT_OP_MATMUL_WGRAD, "qkv", first, row->micro);
    assert_true (op < w);
    assert_true (find (p, WEFT_OP_ATTENTION_BWD, "attention", first, row->micro) < op);
    checked++;
  }
  assert_int_equal (checked, 2 * 4);
}

/* ------------------------------------------------------------------------- schedules */

static char *
row_of (const weft_grid *grid, uint32_t rank)
{
  g_autofree char *csv = weft_grid_csv (grid);
  g_auto (GStrv) line = g_strsplit (csv, "\n", -1);
  return g_strdup (line[rank]);
}

static void
one_forward_more_runs_ahead_and_the_others_meet_a_backward (void **state)
{
  struct weft_grid_spec spec = { WEFT_SCHEDULE_1F1B, 1, 0, 3, 0, 1 };
  g_autoptr (weft_grid) one = weft_grid_new (&spec, NULL);
  g_autofree char *row = row_of (one, 0);

  (void) state;
  assert_string_equal (row, "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2");
  for (uint32_t p = 2; p <= 8; p *= 2)
    for (uint32_t v = 2; v <= 3; v++) {
      struct weft_grid_spec plain = { WEFT_SCHEDULE_1F1B, p, v, 2 * p, 0, 0 }, more = plain;
      more.extra_warmup = 1;
      g_autoptr (weft_grid) a = weft_grid_new (&plain, NULL), b = weft_grid_new (&more, NULL);
      assert_true (weft_grid_check (b, NULL));
      for (uint32_t rank = 0; rank < p; rank++) {
        uint32_t warm = 2 * (p - 1 - rank) + (v - 1) * p, n = 2 * p * v, pairs = 0;
        for (uint32_t i = 0; i < b->n_cell[rank]; i++)
          pairs += b->cell[rank][i].paired;
        assert_int_equal (pairs, n - MIN (n, warm + 1));
        assert_true (weft_grid_in_flight (a, rank) == MIN (n, warm + 1));
        assert_true (weft_grid_in_flight (b, rank) == MIN (n, warm + 2));
      }
    }
}

/* Returns the largest number of microbatches whose input of layer 1 is kept at the same time. */
static uint32_t
in_flight (const char *words)
{
  g_autoptr (weft_program) p = built (words, 0);
  uint32_t most = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < p->n_buf; b++)
      n += p->buf[b].layer == 1 && strcmp (p->name[p->buf[b].name], "residual1") == 0 &&
           p->buf[b].first <= op && p->buf[b].last >= op;
    most = MAX (most, n);
  }
  return most;
}

static void
one_more_microbatch_is_kept (void **state)
{
  (void) state;
  assert_int_equal (in_flight (WORDS), 1);
  assert_int_equal (in_flight (WORDS ON), 2);
}

/* ------------------------------------------------------------------------- effect */

/* DeepSeek-V3 with 12 layers, so that it fits on 128 H100. The experts of a layer are distributed
 * over 64 ranks. */
#define DEEPSEEK                                                                                   \
  "model=deepseek-v3 mtp_num_layers=0 num_layers=12 moe_first_dense_layers=0 seq_length=4096 "     \
  "topology=dgx-h100 nodes=16 expert_model_parallel_size=64 pipeline_model_parallel_size=2 "       \
  "virtual_pipeline_model_parallel_size=2 batch_p2p_comm=false overlap_p2p_comm=true "             \
  "precision=bf16 use_distributed_optimizer=true global_batch_size=1024"

static struct weft_report_iteration
simulated (const char *words, double *exposed)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_timeline) t = made_run (plan);
  g_autoptr (weft_report) report = weft_report_new (plan, t);

  *exposed = report->axis[WEFT_LANE_EP].exposed_s / report->axis[WEFT_LANE_EP].busy_s;
  return report->iteration;
}

static void
a_step_of_deepseek_v3_is_faster_and_hides_what_travels (void **state)
{
  double plain, combined, delayed;
  double was = simulated (DEEPSEEK, &plain).time_s, is = simulated (DEEPSEEK ON, &combined).time_s,
         best = simulated (DEEPSEEK DELAYED, &delayed).time_s;

  (void) state;
  assert_true (plain > 0.99);
  assert_true (combined < 0.3 && delayed < 0.2);
  assert_true (is < 0.7 * was);
  assert_true (best < 0.95 * is);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (passes_that_take_turns_give_the_bits_of_one_rank),
  cmocka_unit_test (overlap_moe_expert_parallel_comm_sends_rows_of_two_microbatches_in_turn),
  cmocka_unit_test (
      overlap_moe_expert_parallel_comm_computes_of_one_what_the_other_does_not_wait_for),
  cmocka_unit_test (without_the_knob_one_pass_follows_the_other),
  cmocka_unit_test (delay_wgrad_compute_puts_weight_gradients_of_experts_beside_what_travels),
  cmocka_unit_test (a_pair_ends_with_what_lies_at_the_ends_of_the_pipeline),
  cmocka_unit_test (stages_are_sent_what_they_wait_for_before_the_first_layers_weight_gradients),
  cmocka_unit_test (one_forward_more_runs_ahead_and_the_others_meet_a_backward),
  cmocka_unit_test (one_more_microbatch_is_kept),
  cmocka_unit_test (a_step_of_deepseek_v3_is_faster_and_hides_what_travels),
};

WEFT_TESTS (tests, .seconds = 15)
