/* Knobs that act at slots of the schedule: gradient collectives and weight gathers that start on
 * all ranks at once, head gradients that are deferred to the end of the step, and shapes that are
 * sent before tensors. */
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"

#define MODEL                                                                                      \
  "hidden_size=64 num_attention_heads=4 ffn_hidden_size=128 vocab_size=128 seq_length=32 "         \
  "topology=dgx-h100 batch_p2p_sync=false "
#define THREE                                                                                      \
  MODEL "num_layers=12 gpus=8 pipeline_model_parallel_size=4 global_batch_size=16 "                \
        "virtual_pipeline_model_parallel_size=3 overlap_grad_reduce=true "
#define SHARDED THREE "use_distributed_optimizer=true overlap_param_gather=true "
#define STAGES MODEL "num_layers=4 gpus=4 pipeline_model_parallel_size=2 global_batch_size=8 "

/* Returns the number of forward or backward passes (one attention kernel each) that begin before
 * `op`. */
static uint32_t
cells_before (const weft_program *p, uint32_t op, gboolean forward)
{
  enum weft_op_kind kind = forward ? WEFT_OP_ATTENTION : WEFT_OP_ATTENTION_BWD;
  uint32_t n = 0;

  for (uint32_t i = 0; i < op; i++)
    n += p->op[i].kind == kind;
  return n;
}

static uint32_t
collective_of (const weft_program *p, enum weft_op_kind kind, uint32_t chunk)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].lane == WEFT_LANE_DP)
      for (uint32_t i = 0; i < p->n_param; i++) {
        g_autofree char *name = g_strdup_printf (
            "%s %u", kind == WEFT_OP_ALL_GATHER ? "gather" : "bucket", p->param[i].bucket);
        if (p->param[i].chunk == chunk && is_named (p, op, name))
          return op;
      }
  fail_msg ("no collective of chunk %u", chunk);
  return WEFT_NO_OP;
}

/* Four stages of three chunks; 8 microbatches in two groups of 4. On rank 0, the last backward
 * passes of chunks 2, 1 and 0 are in slots 15, 19 and 23. An aligned collective of rank r starts r
 * slots later, which is the same time on all ranks. */
static void
grad_sync_func_aligned_starts_a_chunk_at_one_slot_on_all_ranks (void **state)
{
  static const uint32_t last_slot[] = { 23, 19, 15 };

  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    g_autoptr (weft_program) own = built (THREE, r);
    g_autoptr (weft_program) p = built (THREE "grad_sync_func=aligned ", r);
    for (uint32_t q = 0; q < 3; q++) {
      uint32_t op = collective_of (p, WEFT_OP_ALL_REDUCE, q);
      /* Slots are counted from 0. A collective that would start after the last slot is launched at
       * the end of the last slot. */
      assert_int_equal (cells_before (p, op, FALSE), MIN (last_slot[q] + r, 23) + 1);
      assert_int_equal (cells_before (own, collective_of (own, WEFT_OP_ALL_REDUCE, q), FALSE),
                        last_slot[q] + 1);
    }
  }
}

static void
grad_sync_func_aligned_without_chunks_leaves_later_stages_to_the_bubble (void **state)
{
  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    g_autoptr (weft_program) p =
        built (STAGES "overlap_grad_reduce=true bucket_size=1 grad_sync_func=aligned ", r);
    uint32_t first = WEFT_NO_OP, last = 0;
    for (uint32_t op = p->n_op; op-- > 0;) {
      if (p->op[op].kind == WEFT_OP_ALL_REDUCE && has_name (p, op, "bucket"))
        first = op;
      if (p->op[op].kind == WEFT_OP_ATTENTION_BWD)
        last = MAX (last, op);
    }
    assert_int_equal (first < last, r == 0);
  }
}

/* align_param_gather. Forward slots 0 to 3 belong to chunk 0, slots 4 to 7 to chunk 1, slots 8 to
 * 11 to chunk 2. Chunks 0 and 1 are gathered at the begin of the step, and chunk 2 at forward slot
 * 4 - r on rank r. */
static void
align_param_gather_asks_for_two_chunks_at_once_and_for_the_third_at_its_slot (void **state)
{
  static const char *const names[] = { "align_param_gather=true ", "param_sync_func=aligned " };

  (void) state;
  for (uint32_t r = 0; r < 4; r++)
    for (uint32_t i = 0; i < G_N_ELEMENTS (names); i++) {
      g_autofree char *words = g_strconcat (SHARDED, names[i], NULL);
      g_autoptr (weft_program) own = built (SHARDED "gathers_ahead=0", r), p = built (words, r);
      for (uint32_t q = 0; q < 3; q++) {
        uint32_t op = collective_of (p, WEFT_OP_ALL_GATHER, q);
        assert_int_equal (cells_before (p, op, TRUE), q < 2 ? 0 : 4 - r);
        /* In `own`, without the alignment knob, a chunk is gathered when its first forward pass
         * begins. */
        op = collective_of (own, WEFT_OP_ALL_GATHER, q);
        assert_int_equal (cells_before (own, op, TRUE), 4 * q);
      }
    }
}

/* Whether the gather of chunk 0 waits for the first input that the stage receives. */
static gboolean
waits_for_input (const weft_program *p)
{
  uint32_t op = 0;

  while (p->op[op].kind != WEFT_OP_RECV)
    op++;
  return comes_after (p, op, collective_of (p, WEFT_OP_ALL_GATHER, 0));
}

/* gathers_ahead = 1 without aligned collectives: chunk 0 is gathered when the step begins, and
 * chunk q when chunk q - 1 begins on the same stage. */
static void
gathers_ahead_launches_a_chunk_when_the_chunk_before_it_begins (void **state)
{
  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    g_autoptr (weft_program) p = built (SHARDED "gathers_ahead=1", r);
    g_autoptr (weft_program) late = built (SHARDED "gathers_ahead=0", r);
    for (uint32_t q = 0; q < 3; q++) {
      uint32_t op = collective_of (p, WEFT_OP_ALL_GATHER, q);
      assert_int_equal (cells_before (p, op, TRUE), q ? 4 * (q - 1) : 0);
    }
    assert_false (waits_for_input (p));
    assert_int_equal (waits_for_input (late), r > 0);
  }
}

/* Megatron-FSDP's start_param_sync() (megatron_fsdp.py) gathers the first unit of a chunk and the
 * units that are prefetched with it. The small unit size bounds this prefetch. */
static void
align_param_gather_gathers_the_first_unit_of_a_sharded_chunk (void **state)
{
  static const char *const levels[] = { "1 ", "2 ", "3 " };

  (void) state;
  for (uint32_t r = 0; r < 4; r++)
    for (uint32_t i = 0; i < G_N_ELEMENTS (levels); i++) {
      g_autofree char *words =
          g_strconcat (THREE "overlap_param_gather=true use_megatron_fsdp=true align_param_gather="
                             "true suggested_communication_unit_size=2 zero_dp_strategy=",
                       levels[i], NULL);
      g_autoptr (weft_program) p = built (words, r);
      uint32_t gathers[13] = { 0 }, cells = 0;
      for (uint32_t op = 0; op < p->n_op; op++)
        if (p->op[op].kind == WEFT_OP_ATTENTION)
          cells++;
        else if (p->op[op].kind == WEFT_OP_ALL_GATHER && p->op[op].lane == WEFT_LANE_DP &&
                 cells <= 12)
          gathers[cells]++;
      /* gathered before the first forward pass: at least one unit of chunk 0 and one of chunk 1; at
       * forward slot 4 - r: at least one unit of chunk 2 */
      assert_true (gathers[0] >= 2);
      assert_true (gathers[4 - r] >= 1);
    }
}

static uint32_t
head_gradient (const weft_program *p, uint32_t micro)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_MATMUL_WGRAD && is_named (p, op, "head") &&
        p->op[op].micro == micro)
      return op;
  fail_msg ("no head gradient");
  return WEFT_NO_OP;
}

static uint32_t
last_backward (const weft_program *p)
{
  uint32_t last = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ATTENTION_BWD)
      last = op;
  return last;
}

#define DEFER STAGES "gradient_accumulation_fusion=true defer_embedding_wgrad_compute=true "

static void
defer_embedding_wgrad_compute_puts_head_gradients_behind_the_last_backward (void **state)
{
  g_autoptr (weft_program) p = built (DEFER "overlap_grad_reduce=true ", 1),
                           first = built (DEFER "wgrad_deferral_limit=1 ", 1),
                           never = built (STAGES, 1);

  (void) state;
  for (uint32_t micro = 0; micro < 4; micro++) {
    assert_true (head_gradient (p, micro) > last_backward (p));
    assert_int_equal (head_gradient (first, micro) > last_backward (first), micro == 0);
    assert_true (head_gradient (never, micro) < last_backward (never));
  }
  /* The reduction of the head's bucket must wait for all deferred weight gradients of the head.
   * (Megatron-Core does not wait.) */
  uint32_t bucket = WEFT_NO_OP;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ALL_REDUCE && is_named (p, op, "bucket 0"))
      bucket = op;
  for (uint32_t micro = 0; micro < 4; micro++)
    assert_true (comes_after (p, head_gradient (p, micro), bucket));
}

/* Deferred weight gradients keep the logits alive. wgrad_deferral_limit bounds the number of
 * microbatches whose logits are kept; 0: no bound. */
static void
wgrad_deferral_limit_bounds_what_waits (void **state)
{
  (void) state;
  for (uint32_t limit = 0; limit < 4; limit++) {
    g_autofree char *words = g_strdup_printf (DEFER "wgrad_deferral_limit=%u ", limit);
    g_autoptr (weft_program) p = built (words, 1);
    uint32_t waiting = 0, end = last_backward (p);
    for (uint32_t i = 0; i < p->n_buf; i++)
      waiting += g_str_equal (p->name[p->buf[i].name], "logits") && p->buf[i].first < end &&
                 p->buf[i].last > end;
    assert_int_equal (waiting, limit ? limit : 4);
  }
}

static void
variable_seq_lengths_sends_24_bytes_and_waits_for_the_device (void **state)
{
  g_autoptr (weft_program) p = built (STAGES "variable_seq_lengths=true ", 1),
                           plain = built (STAGES, 1);
  uint32_t shapes = 0, tensors = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    shapes += is_named (p, op, "shape");
    tensors += has_name (p, op, "send_") || has_name (p, op, "recv_");
    if (is_named (p, op, "shape")) {
      assert_int_equal (p->op[op].lane, WEFT_LANE_WORLD);
      assert_int_equal (weft_op_bytes (p, op), 24);
    }
  }
  assert_int_equal (shapes, tensors);
  assert_int_equal (count_kind (p, WEFT_OP_COPY_OUT) - count_kind (plain, WEFT_OP_COPY_OUT),
                    p->lane_n[WEFT_LANE_D2H] - 1);
  /* The host must read the shape of a tensor before the tensor is received. */
  for (uint32_t op = 0, read = WEFT_NO_OP; op < p->n_op; op++) {
    if (is_named (p, op, "shapes"))
      read = op;
    if (has_name (p, op, "recv_"))
      assert_true (comes_after (p, read, op));
  }
}

static void
use_ring_exchange_p2p_is_one_launch_whatever_batch_p2p_comm_says (void **state)
{
  g_autoptr (weft_program) ring =
      built (STAGES "batch_p2p_comm=false use_ring_exchange_p2p=true ", 1),
                           batch = built (STAGES, 1);

  (void) state;
  assert_int_equal (ring->lane_n[WEFT_LANE_PP], batch->lane_n[WEFT_LANE_PP]);
  for (uint32_t i = 0; i < ring->lane_n[WEFT_LANE_PP]; i++)
    assert_int_equal (ring->op[ring->lane_ops[WEFT_LANE_PP][i]].flags & WEFT_OP_GROUPED,
                      batch->op[batch->lane_ops[WEFT_LANE_PP][i]].flags & WEFT_OP_GROUPED);
}

static void
pipeline_model_parallel_comm_backend_ucc_leaves_all_sms_to_kernels (void **state)
{
  g_autoptr (weft_plan) nccl = weft_test_plan (STAGES),
                        ucc = weft_test_plan (STAGES "pipeline_model_parallel_comm_backend=ucc ");
  const weft_program *p = ucc->role[0];

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_SEND) {
      assert_int_equal (weft_plan_sms (ucc, p, op, NULL), 0);
      assert_true (weft_plan_sms (nccl, nccl->role[0], op, NULL) > 0);
    }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (grad_sync_func_aligned_starts_a_chunk_at_one_slot_on_all_ranks),
  cmocka_unit_test (grad_sync_func_aligned_without_chunks_leaves_later_stages_to_the_bubble),
  cmocka_unit_test (align_param_gather_asks_for_two_chunks_at_once_and_for_the_third_at_its_slot),
  cmocka_unit_test (gathers_ahead_launches_a_chunk_when_the_chunk_before_it_begins),
  cmocka_unit_test (align_param_gather_gathers_the_first_unit_of_a_sharded_chunk),
  cmocka_unit_test (defer_embedding_wgrad_compute_puts_head_gradients_behind_the_last_backward),
  cmocka_unit_test (wgrad_deferral_limit_bounds_what_waits),
  cmocka_unit_test (variable_seq_lengths_sends_24_bytes_and_waits_for_the_device),
  cmocka_unit_test (use_ring_exchange_p2p_is_one_launch_whatever_batch_p2p_comm_says),
  cmocka_unit_test (pipeline_model_parallel_comm_backend_ucc_leaves_all_sms_to_kernels),
};

WEFT_TESTS (tests)
