/* PyTorch's DistributedDataParallel: which gradients share a bucket, the order in which buckets are
 * filled and launched, and the cost of the copies. */
#include "core/passes/step.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"
#include <string.h>

#define MIB ((uint64_t) 1 << 20)
#define LAYERS 4
/* A layer of this model has 12 h^2 = 12.6 M elements with the hidden size h = 1024, 25.2 MB in
 * bf16. */
#define MODEL                                                                                      \
  "num_layers=4 hidden_size=1024 num_attention_heads=16 ffn_hidden_size=4096 vocab_size=2000 "     \
  "seq_length=64 activation=gelu normalization=layernorm topology=dgx-h100 "                       \
  "distributed_config=ddp "
#define TWO MODEL "gpus=2 "

static gboolean
is_bucket (const weft_program *p, uint32_t op)
{
  return p->op[op].kind == WEFT_OP_ALL_REDUCE &&
         g_str_has_prefix (p->name[p->op[op].name], "bucket");
}

static uint32_t
count (const weft_program *p, const char *name)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += is_named (p, op, name);
  return n;
}

/* Returns the number of copies of gradients into the bucket that `op` reduces: the copies after the
 * previous reduction. *last: the last of these copies. */
static uint32_t
copies_before (const weft_program *p, uint32_t op, uint32_t *last)
{
  uint32_t n = 0;

  *last = WEFT_NO_OP;
  while (op-- > 0 && !is_bucket (p, op))
    if (is_named (p, op, "to_bucket")) {
      *last = MAX (*last == WEFT_NO_OP ? 0 : *last, op);
      n++;
    }
  return n;
}

/* DDP reduces a bucket when a gradient fills it to 1 MiB (the first bucket) or to 25 MiB (all other
 * buckets). The last bucket has the remaining gradients. */
static void
buckets_close_at_one_and_at_25_mebibytes (void **state)
{
  g_autoptr (weft_program) p = built (TWO, 0);
  uint32_t n = 0, copies = 0;
  uint64_t all = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    uint32_t last;
    if (!is_bucket (p, op))
      continue;
    uint64_t bytes = weft_op_shape (p, op)->dim[0] * 2, limit = n ? 25 * MIB : MIB;
    copies += copies_before (p, op, &last);
    uint64_t newest = weft_op_shape (p, last)->dim[0] * 2;
    all += bytes;
    n++;
    assert_true (bytes - newest < limit);
    assert_true (bytes >= limit || copies == p->n_param);
  }
  assert_true (n >= 4);
  assert_int_equal (copies, p->n_param);
  assert_int_equal (count (p, "from_bucket"), p->n_param);
  uint64_t elements = 0;
  for (uint32_t i = 0; i < p->n_param; i++)
    elements += p->param[i].rows * p->param[i].columns;
  assert_int_equal (all, 2 * elements);
}

/* Gradients are copied into buckets in the order of backward: first the head, then the final norm
 * and the layers from the last to the first. */
static void
gradients_fill_buckets_as_they_arrive (void **state)
{
  g_autoptr (weft_program) p = built (TWO, 0);
  uint32_t layer = WEFT_NO_LAYER, n = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (!is_named (p, op, "to_bucket"))
      continue;
    if (n++ == 0) { /* the gradient of the head has 4 MB and fills the first bucket alone */
      assert_int_equal (weft_op_shape (p, op)->dim[0], 2000 * 1024);
      assert_true (is_bucket (p, op + 1));
    }
    if (p->op[op].layer != WEFT_NO_LAYER) {
      assert_true (layer == WEFT_NO_LAYER || p->op[op].layer <= layer);
      layer = p->op[op].layer;
    }
    /* the kernel that copies a gradient into its bucket also divides it by the number of
     * replicas */
    assert_int_equal (weft_op_shape (p, op)->dim[2], 2);
  }
  assert_int_equal (layer, 0);
}

/* Only the gradients of the last microbatch are reduced, as if the other microbatches ran in
 * no_sync(). Each reduction waits for the last copy into its bucket. */
static void
only_the_last_microbatch_is_reduced_beside_its_backward (void **state)
{
  g_autoptr (weft_program) one = built (TWO, 0);
  g_autoptr (weft_program) many = built (TWO "global_batch_size=8", 0);
  g_autofree uint32_t *before = weft_program_order (many);
  uint32_t n = 0;

  (void) state;
  assert_int_equal (count (one, "to_bucket"), count (many, "to_bucket"));
  for (uint32_t op = 0; op < many->n_op; op++) {
    uint32_t last;
    if (!is_bucket (many, op))
      continue;
    copies_before (many, op, &last);
    assert_int_equal (many->op[last].micro, 3);
    assert_true (weft_ordered (many, before, last, op));
    assert_int_equal (many->op[op].reduce, WEFT_REDUCE_SUM);
    n++;
  }
  assert_true (n >= 4);
}

/* A gradient is copied back from its bucket after the reduction of this bucket. */
static void
sums_are_copied_back_when_they_are_there (void **state)
{
  g_autoptr (weft_program) p = built (TWO, 0);
  g_autofree uint32_t *before = weft_program_order (p);

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (!is_named (p, op, "from_bucket"))
      continue;
    uint32_t bucket = weft_buf_owner (p, p->uses[p->op[op].uses].buf), found = 0;
    for (uint32_t other = 0; other < op; other++)
      if (is_bucket (p, other) && p->uses[p->op[other].uses].buf == bucket) {
        assert_true (weft_ordered (p, before, other, op));
        found++;
      }
    assert_int_equal (found, 1);
  }
}

/* On several replicas, buckets are permanent copies of all gradients. One replica has no
 * buckets. */
static void
buckets_take_as_much_as_gradients (void **state)
{
  g_autoptr (weft_plan) two = weft_test_plan (TWO);
  g_autoptr (weft_plan) one = weft_test_plan (MODEL "gpus=1");
  const uint64_t *a = two->memory[0].permanent[WEFT_POOL_DEVICE],
                 *b = one->memory[0].permanent[WEFT_POOL_DEVICE];

  (void) state;
  assert_int_equal (a[WEFT_BUF_COMMUNICATION], a[WEFT_BUF_GRADIENTS]);
  assert_int_equal (b[WEFT_BUF_COMMUNICATION], 0);
  assert_int_equal (a[WEFT_BUF_GRADIENTS], b[WEFT_BUF_GRADIENTS]);
  assert_int_equal (a[WEFT_BUF_OPTIMIZER], b[WEFT_BUF_OPTIMIZER]);
  assert_int_equal (count (one->role[0], "to_bucket"), 0);
}

/* A stage with two chunks of one layer each. Each chunk has its own DDP wrapper, so its buckets
 * begin anew with a small one, and the gradients of the second chunk are copied back before the
 * last backward pass of the first chunk begins. */
static void
chunks_of_a_stage_are_wrapped_by_themselves (void **state)
{
  g_autoptr (weft_program) p =
      built (MODEL "gpus=8 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2 "
                   "batch_p2p_comm=false overlap_p2p_comm=true global_batch_size=16",
             0);
  uint32_t n[2] = { 0 }, copies[2] = { 0 }, last[2] = { 0 }, first_backward = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    uint32_t chunk = p->op[op].chunk;
    if (is_bucket (p, op) && n[chunk]++ == 0)
      assert_true (weft_op_shape (p, op)->dim[0] * 2 < 25 * MIB);
    if (is_named (p, op, "from_bucket")) {
      copies[chunk]++;
      last[chunk] = op;
    }
    if (p->op[op].phase == WEFT_PHASE_BACKWARD && chunk == 0 && p->op[op].micro == 3 &&
        !first_backward)
      first_backward = op;
  }
  assert_true (n[0] >= 2 && n[1] >= 2);
  assert_int_equal (copies[0] + copies[1], p->n_param);
  assert_true (last[1] < first_backward && first_backward < last[0]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (buckets_close_at_one_and_at_25_mebibytes),
  cmocka_unit_test (gradients_fill_buckets_as_they_arrive),
  cmocka_unit_test (only_the_last_microbatch_is_reduced_beside_its_backward),
  cmocka_unit_test (sums_are_copied_back_when_they_are_there),
  cmocka_unit_test (buckets_take_as_much_as_gradients),
  cmocka_unit_test (chunks_of_a_stage_are_wrapped_by_themselves),
};

WEFT_TESTS (tests)
