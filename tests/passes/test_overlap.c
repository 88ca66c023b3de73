/* tp_comm_overlap and enable_async_tensor_parallel: which matmuls are split into pieces, the
 * dependencies of each piece, permanent buffers, and the SMs that the overlapped communication
 * uses. */
#include "core/plan/cost.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define TINY                                                                                       \
  "num_layers=3 hidden_size=64 num_attention_heads=8 num_query_groups=4 kv_channels=8 "            \
  "ffn_hidden_size=96 vocab_size=1000 seq_length=32 activation=swiglu normalization=rmsnorm "      \
  "topology=dgx-h100 precision=bf16 global_batch_size=2 micro_batch_size=2 gpus=4 "                \
  "tensor_model_parallel_size=4 sequence_parallel=true "
#define OVERLAP TINY "tp_comm_overlap=true "
#define ASYNC TINY "enable_async_tensor_parallel=true "
#define T 4
#define TOKENS 64
#define HIDDEN 64
#define A (2u * TOKENS * HIDDEN)

enum { MOST = 16 };

/* Finds the ops of layer 1 with this phase, kind and name, in order. Returns their number. */
static uint32_t
list (const weft_program *p, enum weft_op_kind kind, enum weft_phase phase, const char *name,
      uint32_t *op)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < p->n_op; i++)
    if (p->op[i].kind == kind && p->op[i].layer == 1 && p->op[i].phase == phase &&
        is_named (p, i, name)) {
      assert_true (n < MOST);
      op[n++] = i;
    }
  return n;
}

static gboolean
run_beside (const weft_program *p, uint32_t a, uint32_t b)
{
  return !comes_after (p, a, b) && !comes_after (p, b, a);
}

/* An all-gather as a ring over the T tensor parallel ranks has T matmuls of TOKENS / T rows and T -
 * 1 transfers. A rank multiplies a piece while it sends this piece to the next rank. */
static void
expect_gather_ring (const char *words, enum weft_op_kind kind, enum weft_phase phase,
                    const char *name)
{
  g_autoptr (weft_program) p = built (words, 0);
  uint32_t product[MOST], step[MOST];

  assert_int_equal (list (p, kind, phase, name, product), T);
  assert_int_equal (list (p, WEFT_OP_SHIFT, phase, name, step), T - 1);
  for (uint32_t j = 0; j < T; j++) {
    assert_int_equal (weft_op_shape (p, product[j])->dim[0], TOKENS / T);
    assert_int_equal (p->op[product[j]].peer, -(int) j);
    if (j + 1 < T)
      assert_true (run_beside (p, product[j], step[j]));
    if (j > 0) {
      assert_true (comes_after (p, step[j - 1], product[j]));
      assert_int_equal (weft_op_bytes (p, step[j - 1]), A / T);
    }
  }
}

/* Expects four matmuls of a quarter of the columns each. The reduce-scatter of each result overlaps
 * with the next matmul. */
static void
expect_split (const char *words, const char *name)
{
  g_autoptr (weft_program) p = built (words, 0);
  uint32_t product[MOST], scatter[MOST], all = 0;

  assert_int_equal (list (p, WEFT_OP_MATMUL, WEFT_PHASE_FORWARD, name, product), 4);
  assert_int_equal (list (p, WEFT_OP_REDUCE_SCATTER, WEFT_PHASE_FORWARD, name, scatter), 4);
  for (int j = 0; j < 4; j++) {
    assert_int_equal (weft_op_shape (p, product[j])->dim[0], TOKENS);
    assert_int_equal (weft_op_shape (p, product[j])->dim[1], HIDDEN / 4);
    assert_true (comes_after (p, product[j], scatter[j]));
    if (j < 3)
      assert_true (run_beside (p, product[j + 1], scatter[j]));
    all += weft_op_bytes (p, scatter[j]);
  }
  assert_int_equal (all, A);
}

/* A reduce-scatter as a ring over the T tensor parallel ranks has T matmuls, one for the rows of
 * each rank. The rank's own rows come last; the results of the other T - 1 matmuls are sent to the
 * ranks that own the rows. */
static void
expect_scatter_ring (const char *words, enum weft_op_kind kind, enum weft_phase phase,
                     const char *name)
{
  g_autoptr (weft_program) p = built (words, 0);
  uint32_t product[MOST], step[MOST], sum[MOST];

  assert_int_equal (list (p, kind, phase, name, product), T);
  assert_int_equal (list (p, WEFT_OP_SHIFT, phase, name, step), T - 1);
  assert_int_equal (list (p, WEFT_OP_SUM_SLICES, phase, name, sum), 1);
  for (uint32_t j = 0; j + 1 < T; j++) {
    assert_int_equal (p->op[product[j]].peer, j + 1);
    assert_int_equal (p->op[step[j]].peer, j + 1);
    assert_true (comes_after (p, product[j], step[j]));
    assert_true (run_beside (p, product[j + 1], step[j]));
    assert_true (comes_after (p, step[j], sum[0]));
  }
  assert_int_equal (p->op[product[T - 1]].peer, 0);
}

static uint32_t
count (const char *words, enum weft_op_kind kind, enum weft_phase phase, const char *name)
{
  g_autoptr (weft_program) p = built (words, 0);
  uint32_t op[MOST];
  return list (p, kind, phase, name, op);
}

#define F WEFT_PHASE_FORWARD
#define B WEFT_PHASE_BACKWARD

static void
gathers_go_round_a_ring (void **state)
{
  (void) state;
  expect_gather_ring (OVERLAP, WEFT_OP_MATMUL, F, "qkv");
  expect_gather_ring (OVERLAP, WEFT_OP_MATMUL, F, "fc1");
  expect_gather_ring (OVERLAP, WEFT_OP_MATMUL_DGRAD, B, "proj");
  expect_gather_ring (OVERLAP, WEFT_OP_MATMUL_DGRAD, B, "fc2");
  assert_int_equal (count (OVERLAP "tp_comm_overlap_ag=false", WEFT_OP_SHIFT, F, "qkv"), 0);
  assert_int_equal (count (OVERLAP "tp_comm_overlap_ag=false", WEFT_OP_ALL_GATHER, F, "qkv"), 1);
  assert_int_equal (count (OVERLAP "tp_comm_overlap_ag=false", WEFT_OP_ALL_GATHER, B, "fc2"), 1);
  expect_gather_ring (OVERLAP "recompute_granularity=full recompute_method=uniform "
                              "recompute_num_layers=1",
                      WEFT_OP_MATMUL, WEFT_PHASE_RECOMPUTE, "fc1");
}

static void
scatters_follow_a_split_product (void **state)
{
  (void) state;
  expect_split (OVERLAP, "proj");
  expect_split (OVERLAP, "fc2");
  assert_int_equal (count (OVERLAP "tp_comm_overlap_rs=false", WEFT_OP_REDUCE_SCATTER, F, "proj"),
                    1);
}

static void
input_gradients_are_sent_to_whose_rows_they_are (void **state)
{
  static const char on[] = OVERLAP "tp_comm_overlap_rs_dgrad=true";

  (void) state;
  expect_scatter_ring (on, WEFT_OP_MATMUL_DGRAD, B, "qkv");
  expect_scatter_ring (on, WEFT_OP_MATMUL_DGRAD, B, "fc1");
  assert_int_equal (count (on, WEFT_OP_REDUCE_SCATTER, B, "fc1"), 0);
  assert_int_equal (count (on, WEFT_OP_ALL_GATHER, B, "fc1"), 1);
  assert_int_equal (count (OVERLAP, WEFT_OP_SHIFT, B, "fc1"), 0);
}

static void
a_compiler_makes_rings_of_all (void **state)
{
  (void) state;
  expect_gather_ring (ASYNC, WEFT_OP_MATMUL, F, "qkv");
  expect_gather_ring (ASYNC, WEFT_OP_MATMUL_DGRAD, B, "fc2");
  expect_scatter_ring (ASYNC, WEFT_OP_MATMUL, F, "proj");
  expect_scatter_ring (ASYNC, WEFT_OP_MATMUL_DGRAD, B, "qkv");
}

/* tp_comm_overlap_disable_qkv and tp_comm_overlap_disable_fc1: the named linear layer is one matmul
 * with one collective in forward and backward. The other layers are still split into pieces. */
static void
one_map_may_stay_plain (void **state)
{
  static const char qkv[] =
      OVERLAP "tp_comm_overlap_rs_dgrad=true tp_comm_overlap_disable_qkv=true";
  static const char fc1[] = OVERLAP "tp_comm_overlap_disable_fc1=true";

  (void) state;
  assert_int_equal (count (qkv, WEFT_OP_SHIFT, F, "qkv"), 0);
  assert_int_equal (count (qkv, WEFT_OP_SHIFT, B, "qkv"), 0);
  assert_int_equal (count (qkv, WEFT_OP_REDUCE_SCATTER, B, "qkv"), 1);
  assert_int_equal (count (qkv, WEFT_OP_SHIFT, F, "fc1"), T - 1);
  assert_int_equal (count (qkv, WEFT_OP_SHIFT, B, "fc1"), T - 1);
  assert_int_equal (count (fc1, WEFT_OP_SHIFT, F, "fc1"), 0);
  assert_int_equal (count (fc1, WEFT_OP_SHIFT, F, "qkv"), T - 1);
}

/* Returns the bytes of the permanent communication buffer of a matmul (named like "qkv_fprop"), or
 * 0 if the matmul has none. */
static uint64_t
room (const char *words, const char *name)
{
  g_autoptr (weft_program) p = built (words, 0);

  for (uint32_t b = 0; b < p->n_buf; b++)
    if (p->buf[b].permanent && p->buf[b].kind == WEFT_BUF_COMMUNICATION &&
        g_str_equal (p->name[p->buf[b].name], name))
      return p->buf[b].bytes;
  return 0;
}

/* Transformer Engine allocates one permanent buffer for each overlapped matmul: A bytes (the input
 * of a layer in bf16), or (2 T - 1) / T * A bytes for a reduce-scatter ring over T ranks. */
static void
named_products_have_buffers_that_stay (void **state)
{
  static const char *const all[] = { "qkv_fprop",  "qkv_dgrad", "qkv_wgrad", "proj_fprop",
                                     "proj_dgrad", "fc1_fprop", "fc1_dgrad", "fc1_wgrad",
                                     "fc2_fprop",  "fc2_dgrad" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (all); i++) {
    assert_int_equal (room (OVERLAP, all[i]), A);
    assert_int_equal (room (TINY, all[i]), 0);
  }
  assert_int_equal (room (OVERLAP "tp_comm_bulk_dgrad=false", "qkv_dgrad"), 0);
  assert_int_equal (room (OVERLAP "tp_comm_bulk_wgrad=false", "fc1_wgrad"), 0);
  assert_int_equal (room (OVERLAP "tp_comm_overlap_rs=false", "proj_fprop"), 0);
  assert_int_equal (room (OVERLAP "tp_comm_overlap_rs_dgrad=true", "qkv_wgrad"),
                    (2 * T - 1) * A / T);
  assert_int_equal (room (OVERLAP "tp_comm_overlap_rs_dgrad=true", "qkv_dgrad"), 0);
}

static uint32_t
sms (const char *words, enum weft_op_kind kind, enum weft_phase phase, const char *name)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  uint32_t op[MOST];

  assert_true (list (plan->role[0], kind, phase, name, op) > 0);
  return weft_plan_sms (plan, plan->role[0], op[0], NULL);
}

static void
communication_beside_products_takes_its_own_sms (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY);

  (void) state;
  assert_int_equal (sms (OVERLAP, WEFT_OP_SHIFT, F, "qkv"), 1);
  assert_int_equal (sms (OVERLAP "stack=megatron-core", WEFT_OP_SHIFT, F, "qkv"), 0);
  assert_int_equal (sms (OVERLAP "piece_shift_sms=3", WEFT_OP_SHIFT, F, "qkv"), 3);
  assert_int_equal (sms (OVERLAP "piece_collective_sms=5", WEFT_OP_REDUCE_SCATTER, F, "proj"), 5);
  assert_int_equal (sms (OVERLAP, WEFT_OP_REDUCE_SCATTER, F, "proj"), 16);
  assert_int_equal (sms (OVERLAP, WEFT_OP_ALL_GATHER, B, "qkv"), 16);
  assert_int_equal (sms (OVERLAP, WEFT_OP_REDUCE_SCATTER, B, "fc1"), 16);
  assert_int_equal (sms (OVERLAP "tp_comm_bulk_wgrad=false", WEFT_OP_REDUCE_SCATTER, B, "fc1"),
                    plan->job.stack.collective_sms);
}

/* Returns the seconds of the forward matmuls `name` of layer 1, with the layer sizes of GPT-3 175B
 * and four tensor parallel ranks. *n_shared: the number of pieces whose last wave of tiles is
 * shared with the next piece. */
static double
forward_seconds (const char *words, const char *name, uint32_t *n_shared)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan ("num_layers=3 hidden_size=12288 num_attention_heads=96 ffn_hidden_size=49152 "
                      "vocab_size=51200 "
                      "seq_length=2048 topology=dgx-h100 precision=bf16 global_batch_size=1 gpus=4 "
                      "tensor_model_parallel_size=4 sequence_parallel=true kernel_gap=0 %s",
                      words);
  const weft_program *p = plan->role[0];
  uint32_t op[MOST], n = list (p, WEFT_OP_MATMUL, F, name, op);
  double seconds = 0;

  *n_shared = 0;
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal ((p->op[op[i]].flags & WEFT_OP_PIECE) != 0,
                      *n_shared == i && i + 1 < n && plan->job.stack.piece_streams > 1);
    *n_shared += (p->op[op[i]].flags & WEFT_OP_PIECE) != 0;
    seconds += plan->seconds[0][op[i]];
  }
  return seconds;
}

/* Waves of tiles on 132 SMs. qkv has 16 x 36 tiles, 4.36 waves: as one matmul it takes 5 waves. As
 * four pieces on one stream (1.09 waves each) it takes 4 x 2 waves. On several streams a piece
 * fills up the last wave of the piece before it: 3 x 1.09 + 2 waves. proj has 16 x 48 tiles: 6
 * waves, 4 x 2, and 3 x 1.45 + 2. */
static void
pieces_on_several_streams_share_waves (void **state)
{
  static const struct {
    const char *name;
    double tiles;
  } maps[] = { { "qkv", 16 * 36 }, { "proj", 16 * 48 } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (maps); i++) {
    uint32_t n;
    double waves = maps[i].tiles / 132, one = forward_seconds ("", maps[i].name, &n) / ceil (waves);
    assert_int_equal (n, 0);
    double alone = forward_seconds ("tp_comm_overlap=true piece_streams=1", maps[i].name, &n);
    assert_int_equal (n, 0);
    assert_true (fabs (alone / one - 4 * ceil (waves / 4)) < 1e-6);
    double shared = forward_seconds ("tp_comm_overlap=true piece_streams=3", maps[i].name, &n);
    assert_int_equal (n, 3);
    assert_true (fabs (shared / one - (3 * waves / 4 + ceil (waves / 4))) < 1e-6);
    double held =
        forward_seconds ("tp_comm_overlap=true piece_streams=3 piece_rate_share=0.5",
                         maps[i].name, &n);
    assert_true (fabs (held / one - (3 * waves / 2 + ceil (waves / 4))) < 1e-6);
  }
}

/* With large matmuls, tp_comm_overlap hides communication and makes the step shorter. */
static void
pieces_hide_communication (void **state)
{
  static const char big[] = "model=llama3.1-405b topology=dgx-h100 gpus=8 num_layers=2 "
                            "seq_length=8192 tensor_model_parallel_size=8 sequence_parallel=true "
                            "global_batch_size=1 ";
  double seconds[2];

  (void) state;
  for (int i = 0; i < 2; i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_plan) plan =
        weft_test_plan ("%s tp_comm_overlap=%s", big, i ? "true" : "false");
    struct weft_exec_options options = { .control = NULL };
    g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_sim, plan, &options, &error);
    if (!t)
      fail_msg ("%s", error->message);
    seconds[i] = 0;
    for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
      seconds[i] = MAX (seconds[i], t->end[0][op]);
  }
  assert_true (seconds[1] < seconds[0]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (gathers_go_round_a_ring),
  cmocka_unit_test (scatters_follow_a_split_product),
  cmocka_unit_test (input_gradients_are_sent_to_whose_rows_they_are),
  cmocka_unit_test (a_compiler_makes_rings_of_all),
  cmocka_unit_test (one_map_may_stay_plain),
  cmocka_unit_test (named_products_have_buffers_that_stay),
  cmocka_unit_test (communication_beside_products_takes_its_own_sms),
  cmocka_unit_test (pieces_on_several_streams_share_waves),
  cmocka_unit_test (pieces_hide_communication),
};

WEFT_TESTS (tests)
