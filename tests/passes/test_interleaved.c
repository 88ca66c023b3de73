/* Interleaved schedules: the layers of a rank, microbatches in flight, step times if only layers
 * take time, and where each mode of p2p overlap posts sends and receives. */
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"
#include <math.h>

#define MODEL                                                                                      \
  "hidden_size=16 num_attention_heads=2 ffn_hidden_size=32 vocab_size=64 seq_length=8 "            \
  "topology=dgx-h100 "
#define FOUR                                                                                       \
  MODEL "num_layers=8 gpus=4 pipeline_model_parallel_size=4 global_batch_size=8 "                  \
        "virtual_pipeline_model_parallel_size=2 "
#define ASIDE "batch_p2p_comm=false overlap_p2p_comm=true "
#define FLUSH ASIDE "overlap_p2p_comm_warmup_flush=true "

/* ------------------------------------------------------------------------ time */

/* Durations for these tests: each chunk has one layer, whose forward takes 1 s and whose backward
 * takes 2 s. All other ops take no time. */
static double
layer_seconds (void *user, uint32_t actor, uint32_t op)
{
  const weft_program *p = ((weft_program *const *) user)[actor];

  switch (p->op[op].kind) {
  case WEFT_OP_ATTENTION:
    return 1;
  case WEFT_OP_ATTENTION_BWD:
    return 2;
  default:
    return 0;
  }
}

/* If transfers take no time, a step of an interleaved schedule takes m (tF + tB) + (p - 1) (tF +
 * tB) / v, where tF and tB are the times of all v chunks of a rank. Here the passes of one chunk
 * take 1 s and 2 s. */
static void
the_bubble_is_that_of_a_chunk_where_transfers_are_free (void **state)
{
  static const struct {
    const char *words;
    uint32_t p, v, m;
  } cases[] = {
    { FOUR, 4, 2, 8 },
    { FOUR ASIDE, 4, 2, 8 },
    { FOUR FLUSH, 4, 2, 8 },
    { MODEL "num_layers=4 gpus=2 pipeline_model_parallel_size=2 global_batch_size=4 "
            "virtual_pipeline_model_parallel_size=2 " ASIDE,
      2, 2, 4 },
    { MODEL "num_layers=9 gpus=3 pipeline_model_parallel_size=3 global_batch_size=9 "
            "virtual_pipeline_model_parallel_size=3 " FLUSH,
      3, 3, 9 },
    { MODEL "num_layers=4 gpus=4 pipeline_model_parallel_size=4 global_batch_size=8", 4, 1, 8 },
  };
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    double wanted = 3.0 * (cases[i].m * cases[i].v + cases[i].p - 1);
    double found = makespan_of (layer_seconds, cases[i].words);
    if (fabs (found - wanted) > 1e-9)
      fail_msg ("%s: %g, wanted %g", cases[i].words, found, wanted);
  }
}

/* ------------------------------------------------------------------------ memory */

static void
a_rank_keeps_as_many_chunks_as_it_warms_up_with_and_one_more (void **state)
{
  (void) state;
  for (uint32_t n = 4; n <= 8; n += 4)
    for (uint32_t r = 0; r < 4; r++) {
      g_autofree char *words = g_strdup_printf (FOUR "microbatch_group_size_per_vp_stage=%u", n);
      g_autoptr (weft_program) p = built (words, r);
      assert_int_equal (most_norms_kept (p), MIN (16, 2 * (3 - r) + n + 1));
    }
}

/* ------------------------------------------------------------------------ layers */

static void
chunk_q_of_rank_r_is_stage_q_p_plus_r (void **state)
{
  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    g_autoptr (weft_program) p = built (FOUR, r);
    for (uint32_t i = 0; i < p->n_param; i++)
      if (p->param[i].layer != WEFT_NO_LAYER)
        assert_int_equal (p->param[i].layer, p->param[i].chunk * 4 + r);
  }
}

/* Each chunk has flat buffers and buckets of its own. As in Megatron-Core, bucket_size applies only
 * to the first chunk of the first pipeline rank. */
static void
virtual_pipeline_model_parallel_size_gives_each_chunk_its_own_buckets (void **state)
{
  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    g_autoptr (weft_program) p = built (FOUR "overlap_grad_reduce=true bucket_size=1 ", r);
    g_autoptr (GHashTable) one = g_hash_table_new (NULL, NULL), two = g_hash_table_new (NULL, NULL);
    GHashTable *buckets[] = { one, two };
    uint32_t flat[2] = { WEFT_NO_BUF, WEFT_NO_BUF }, tensors = 0;
    for (uint32_t i = 0; i < p->n_param; i++) {
      const struct weft_param *param = &p->param[i];
      g_hash_table_add (buckets[param->chunk], GUINT_TO_POINTER (param->bucket + 1));
      flat[param->chunk] = p->buf[param->grad].base;
      tensors += param->chunk == 0;
    }
    assert_int_equal (g_hash_table_size (buckets[0]), r == 0 ? tensors : 1);
    assert_int_equal (g_hash_table_size (buckets[1]), 1);
    assert_int_not_equal (flat[0], flat[1]);
  }
}

/* ------------------------------------------------------------------------ exchanges */

/* Returns the number of transfers in the launch that starts at position `first` of a lane. */
static uint32_t
group_of (const weft_program *p, enum weft_lane lane, uint32_t first)
{
  return weft_program_group_end (p, lane, first) - first;
}

static void
batch_p2p_comm_makes_one_launch_of_up_to_four_transfers (void **state)
{
  g_autoptr (weft_program) p = built (FOUR, 1), apart = built (FOUR "batch_p2p_comm=false", 1);
  uint32_t n_four = 0, lane = WEFT_LANE_PP;

  (void) state;
  for (uint32_t i = 0; i < p->lane_n[lane]; i += group_of (p, lane, i))
    n_four += group_of (p, lane, i) == 4;
  /* In the middle of the schedule, a slot has four transfers: a send and a receive on both sides.
   * The first and the last slots have fewer. */
  assert_true (n_four >= 5);
  assert_int_equal (p->lane_n[WEFT_LANE_PP_BACK], 0);
  for (uint32_t i = 0; i < apart->lane_n[lane]; i++)
    assert_int_equal (group_of (apart, lane, i), 1);
  /* Without batch_p2p_comm, an odd rank receives first and an even rank sends first. Sends and
   * receives are on two lanes. */
  for (uint32_t i = 0; i < apart->lane_n[lane]; i++)
    assert_int_equal (apart->op[apart->lane_ops[lane][i]].kind, WEFT_OP_RECV);
  for (uint32_t i = 0; i < apart->lane_n[WEFT_LANE_PP_BACK]; i++)
    assert_int_equal (apart->op[apart->lane_ops[WEFT_LANE_PP_BACK][i]].kind, WEFT_OP_SEND);
}

static uint32_t
transfer_of (const weft_program *p, const char *name, uint32_t micro, uint32_t chunk)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_named (p, op, name) && p->op[op].micro == micro && p->op[op].chunk == chunk)
      return op;
  fail_msg ("no %s of %u", name, micro);
  return WEFT_NO_OP;
}

static uint32_t
kernel_of (const weft_program *p, enum weft_op_kind kind, uint32_t micro, uint32_t chunk)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].micro == micro && p->op[op].chunk == chunk)
      return op;
  fail_msg ("no kernel");
  return WEFT_NO_OP;
}

/* Rank 1 of 4 runs 8 forward passes of warmup (F0 to F3 of both chunks, a and b), then F4a B0b F5a
 * B1b ... With overlap_p2p_comm, the input of F5a is received while B0b runs; without, after
 * B0b. */
static void
overlap_p2p_comm_receives_the_next_input_beside_a_backward (void **state)
{
  g_autoptr (weft_program) turn = built (FOUR "batch_p2p_comm=false", 1),
                           aside = built (FOUR ASIDE, 1);

  (void) state;
  uint32_t recv = transfer_of (turn, "recv_forward", 5, 0),
           backward = kernel_of (turn, WEFT_OP_ATTENTION_BWD, 0, 1);
  assert_true (comes_after (turn, backward, recv));
  recv = transfer_of (aside, "recv_forward", 5, 0);
  backward = kernel_of (aside, WEFT_OP_ATTENTION_BWD, 0, 1);
  assert_false (comes_after (aside, backward, recv));
  assert_false (comes_after (aside, recv, backward));
  assert_true (comes_after (aside, recv, kernel_of (aside, WEFT_OP_ATTENTION, 5, 0)));
  /* With overlapped p2p communication, a backward pass waits for the send before the last send, so
   * that only one send is in flight. */
  assert_true (comes_after (aside, transfer_of (aside, "send_forward", 4, 0),
                            kernel_of (aside, WEFT_OP_ATTENTION_BWD, 1, 1)));
  assert_false (comes_after (aside, transfer_of (aside, "send_forward", 5, 0),
                             kernel_of (aside, WEFT_OP_ATTENTION_BWD, 1, 1)));
}

static void
overlap_p2p_comm_warmup_flush_receives_one_slot_ahead (void **state)
{
  g_autoptr (weft_program) aside = built (FOUR ASIDE, 1), flush = built (FOUR FLUSH, 1);

  (void) state;
  assert_true (comes_after (aside, kernel_of (aside, WEFT_OP_ATTENTION, 0, 0),
                            transfer_of (aside, "recv_forward", 1, 0)));
  assert_false (comes_after (flush, kernel_of (flush, WEFT_OP_ATTENTION, 0, 0),
                             transfer_of (flush, "recv_forward", 1, 0)));
  /* overlap_p2p_comm_warmup_flush, at the end of the schedule, where only backward passes are left:
   * a gradient is received during the backward pass before the pass that needs it. */
  assert_true (comes_after (aside, kernel_of (aside, WEFT_OP_ATTENTION_BWD, 6, 0),
                            transfer_of (aside, "recv_backward", 7, 0)));
  assert_false (comes_after (flush, kernel_of (flush, WEFT_OP_ATTENTION_BWD, 6, 0),
                             transfer_of (flush, "recv_backward", 7, 0)));
}

/* microbatch_group_size_per_vp_stage = n on 4 ranks: the first rank receives tensors from the last
 * rank, as inputs of its second chunk, and keeps each until the schedule runs this chunk. At most n
 * - 4 + 1 tensors wait. */
static void
microbatch_group_size_per_vp_stage_is_what_the_first_rank_keeps (void **state)
{
  (void) state;
  for (uint32_t n = 4; n <= 8; n += 4) {
    g_autofree char *words = g_strdup_printf (FOUR "microbatch_group_size_per_vp_stage=%u", n);
    g_autoptr (weft_program) p = built (words, 0);
    uint32_t most = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      uint32_t waiting = 0;
      for (uint32_t got = 0; got <= op && p->op[op].kind == WEFT_OP_ATTENTION; got++)
        waiting += is_named (p, got, "recv_forward") &&
                   kernel_of (p, WEFT_OP_ATTENTION, p->op[got].micro, p->op[got].chunk) >= op;
      most = MAX (most, waiting);
    }
    assert_int_equal (most, n - 4 + 1);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_bubble_is_that_of_a_chunk_where_transfers_are_free),
  cmocka_unit_test (a_rank_keeps_as_many_chunks_as_it_warms_up_with_and_one_more),
  cmocka_unit_test (chunk_q_of_rank_r_is_stage_q_p_plus_r),
  cmocka_unit_test (virtual_pipeline_model_parallel_size_gives_each_chunk_its_own_buckets),
  cmocka_unit_test (batch_p2p_comm_makes_one_launch_of_up_to_four_transfers),
  cmocka_unit_test (overlap_p2p_comm_receives_the_next_input_beside_a_backward),
  cmocka_unit_test (overlap_p2p_comm_warmup_flush_receives_one_slot_ahead),
  cmocka_unit_test (microbatch_group_size_per_vp_stage_is_what_the_first_rank_keeps),
};

WEFT_TESTS (tests)
