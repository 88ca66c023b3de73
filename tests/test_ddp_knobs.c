/* Knobs of the data-parallel wrapper, each by name: the ops, sizes and order that it changes. */
#include "tests/nano.h"

/* ------------------------------------------- calculate_per_token_loss */

#define PER_TOKEN "--calculate-per-token-loss", "true"

/* Replicas leave sums of sums; the whole buffer is divided once, by what all of them have counted. */
static void
calculate_per_token_loss_divides_gradients_by_tokens_after_all_sums (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (PER_TOKEN, OVERLAP, STAGES ("2"), BATCH ("16"), NULL);
  g_autoptr (weft_plan) without = plan_of (OVERLAP, STAGES ("2"), BATCH ("16"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    const weft_program *p = plan->role[r];
    uint32_t told = nth (p, WEFT_OP_BROADCAST, "tokens", 0);
    uint32_t added = nth (p, WEFT_OP_ALL_REDUCE, "tokens", 0);
    uint32_t divided = nth (p, WEFT_OP_SCALE, "", 0);
    assert_int_equal (count (p, WEFT_OP_SCALE, ""), 1);
    assert_int_equal (count (without->role[r], WEFT_OP_SCALE, ""), n_buckets (p));
    assert_int_equal (count (without->role[r], WEFT_OP_BROADCAST, ""), 0);
    assert_int_equal (p->op[told].group, WEFT_GROUP_PP);
    assert_int_equal (p->op[told].peer, -1);
    assert_int_equal (p->op[added].group, WEFT_GROUP_DP);
    assert_near (weft_op_bytes (p, told), 4);
    assert_near (weft_op_bytes (p, added), 4);
    assert_true (comes_after (p, told, added) && comes_after (p, added, divided));
    for (uint32_t k = 0; k < n_buckets (p); k++)
      assert_true (comes_after (p, named (p, WEFT_OP_ALL_REDUCE, "bucket", k), divided));
    assert_true (comes_after (p, nth (p, WEFT_OP_ALL_REDUCE, "tied", 0), divided));
    assert_true (comes_after (p, divided, nth (p, WEFT_OP_GRAD_NORM, "", 0)));
    assert_int_equal (elements (p, divided) * weft_dtype_bytes (weft_op_shape (p, divided)->dtype),
                      p->buf[p->buf[p->param[0].grad].base].bytes);
  }
}

/* The loss is a sum: its gradient is divided by one, where it was by the tokens of the replica. */
static void
calculate_per_token_loss_sums_the_loss (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (PER_TOKEN, BATCH ("16"), NULL);
  g_autoptr (weft_plan) without = plan_of (BATCH ("16"), NULL);
  const weft_program *p = plan->role[0], *q = without->role[0];
  uint32_t loss = nth (p, WEFT_OP_XENT, "", 0);

  (void) state;
  assert_int_equal (weft_op_shape (p, nth (p, WEFT_OP_XENT_BWD, "", 0))->dim[2], 1);
  assert_int_equal (weft_op_shape (q, nth (q, WEFT_OP_XENT_BWD, "", 0))->dim[2], 2 * 128);
  assert_true (p->uses[p->op[loss].uses + 3].buf != WEFT_NO_BUF);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (calculate_per_token_loss_divides_gradients_by_tokens_after_all_sums),
    cmocka_unit_test (calculate_per_token_loss_sums_the_loss),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
