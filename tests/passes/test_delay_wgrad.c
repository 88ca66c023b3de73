/* delay_wgrad_compute splits backward into input gradients (B) and weight gradients (W): the order
 * and dependencies of both, and the buffers that stay alive in between. */
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"

#define LAYERS 8
#define MODEL                                                                                      \
  "num_layers=8 hidden_size=64 num_attention_heads=4 ffn_hidden_size=256 vocab_size=512 "          \
  "seq_length=64 topology=dgx-h100 activation=swiglu normalization=rmsnorm "
#define TWO MODEL "gpus=2 global_batch_size=4 overlap_grad_reduce=true bucket_size=1 "
#define STAGES                                                                                     \
  MODEL "gpus=2 pipeline_model_parallel_size=2 global_batch_size=4 batch_p2p_sync=false "

static gboolean
is_gradient (const weft_program *p, uint32_t op, enum weft_op_kind kind, uint32_t layer,
             uint32_t micro)
{
  return p->op[op].kind == kind && p->op[op].layer == layer && p->op[op].micro == micro;
}

/* Returns the first or the last kernel of a kind in a layer and microbatch. */
static uint32_t
find (const weft_program *p, enum weft_op_kind kind, uint32_t layer, uint32_t micro, gboolean last)
{
  uint32_t found = WEFT_NO_OP;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_gradient (p, op, kind, layer, micro) && (last || found == WEFT_NO_OP))
      found = op;
  assert_true (found != WEFT_NO_OP);
  return found;
}

static uint32_t
named (const weft_program *p, const char *name, uint32_t micro)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].micro == micro && strcmp (p->name[p->op[op].name], name) == 0)
      return op;
  fail_msg ("no %s", name);
  return WEFT_NO_OP;
}

static void
delay_wgrad_compute_puts_a_layers_weight_gradients_last (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (TWO);
  g_autoptr (weft_plan) plan = weft_test_plan (TWO "delay_wgrad_compute=true");
  const weft_program *p = plan->role[0], *q = plain->role[0];

  (void) state;
  for (uint32_t l = 0; l < LAYERS; l++) {
    uint32_t first = find (p, WEFT_OP_MATMUL_WGRAD, l, 0, FALSE);
    assert_true (first > find (p, WEFT_OP_NORM_BWD, l, 0, TRUE));
    assert_int_equal (p->op[first].phase, WEFT_PHASE_WEIGHT_GRAD);
    assert_int_equal (p->op[find (p, WEFT_OP_MATMUL_DGRAD, l, 0, TRUE)].phase,
                      WEFT_PHASE_INPUT_GRAD);
    assert_true (find (q, WEFT_OP_MATMUL_WGRAD, l, 0, FALSE) <
                 find (q, WEFT_OP_NORM_BWD, l, 0, FALSE));
    /* the weight gradients (W) of a layer run before the input gradients (B) of the previous
     * layer */
    if (l > 0)
      assert_true (find (p, WEFT_OP_MATMUL_WGRAD, l, 0, TRUE) <
                   find (p, WEFT_OP_MATMUL_DGRAD, l - 1, 0, FALSE));
  }
  assert_int_equal (p->n_op, q->n_op);
  assert_int_equal (count_kind (p, WEFT_OP_MATMUL_WGRAD), count_kind (q, WEFT_OP_MATMUL_WGRAD));
}

/* Every bucket has one tensor here. The reduction of a matmul weight waits for the weight gradients
 * (W) of its layer. The reduction of a norm weight waits only for the input gradients (B). */
static void
delay_wgrad_compute_makes_buckets_wait_for_weight_gradients (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TWO "delay_wgrad_compute=true");
  const weft_program *p = plan->role[0];
  uint32_t seen = 0;

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++) {
    const struct weft_param *param = &p->param[i];
    if (param->layer == WEFT_NO_LAYER)
      continue;
    g_autofree char *name = g_strdup_printf ("bucket %u", param->bucket);
    uint32_t after = kernels_before (p, named (p, name, 1));
    uint32_t w = p->pos[find (p, WEFT_OP_MATMUL_WGRAD, param->layer, 1, FALSE)];
    assert_int_equal (after > w, param->columns > 1);
    seen++;
  }
  assert_int_equal (seen, LAYERS * 6);
}

/* The gradient for the previous stage is sent before the weight gradients (W) of this stage's first
 * layer. These weight gradients do not wait for the send. */
static void
delay_wgrad_compute_sends_before_the_first_layers_weight_gradients (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (STAGES);
  g_autoptr (weft_plan) plan = weft_test_plan (STAGES "delay_wgrad_compute=true");
  const weft_program *p = plan->role[1], *q = plain->role[1];
  const uint32_t first_layer = LAYERS / 2;

  (void) state;
  for (uint32_t micro = 0; micro < 4; micro++) {
    uint32_t send = named (p, "send_backward", micro);
    uint32_t from = find (p, WEFT_OP_MATMUL_WGRAD, first_layer, micro, FALSE);
    assert_int_equal (kernels_before (p, send), p->pos[from]);
    assert_true (from > send);
    for (uint32_t i = 0; i < 4; i++) {
      g_autofree uint32_t *before = weft_program_order (p);
      uint32_t w = find (p, WEFT_OP_MATMUL_WGRAD, first_layer, micro, i > 0);
      assert_false (weft_ordered (p, before, send, w));
    }
    assert_true (kernels_before (q, named (q, "send_backward", micro)) >
                 q->pos[find (q, WEFT_OP_MATMUL_WGRAD, first_layer, micro, TRUE)]);
  }
  /* The first stage (role 0) has no previous stage, so it must send no gradient. */
  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    assert_false (plan->role[0]->op[op].kind == WEFT_OP_SEND && plan->role[0]->op[op].peer < 0);
}

static void
delay_wgrad_compute_shortens_a_pipelined_step (void **state)
{
  static const char wide[] =
      "hidden_size=4096 num_attention_heads=32 ffn_hidden_size=16384 seq_length=4096";
  g_autoptr (weft_plan) plain = weft_test_plan ("%s%s", STAGES, wide);
  g_autoptr (weft_plan) plan = weft_test_plan ("%s%s delay_wgrad_compute=true", STAGES, wide);
  g_autoptr (weft_timeline) was = made_run (plain), is = made_run (plan);

  (void) state;
  assert_true (is->seconds < was->seconds);
}

/* With delay_wgrad_compute, W reads gradients after B has ended: the weight gradient of fc2 reads
 * the gradient of the layer's output, and that of proj the gradient between attention and MLP. So B
 * must not overwrite the residual stream's gradient in place. */
static void
delay_wgrad_compute_keeps_what_is_still_to_be_read (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TWO "delay_wgrad_compute=true");
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t l = 0; l < LAYERS; l++) {
    uint32_t last = find (p, WEFT_OP_NORM_BWD, l, 0, TRUE), kept = 0;
    for (uint32_t op = 0; op < p->n_op; op++)
      if (is_gradient (p, op, WEFT_OP_MATMUL_WGRAD, l, 0))
        /* operands 0 and 1 of a weight gradient: output gradient and input */
        for (uint32_t u = 0; u < 2; u++) {
          const struct weft_buf *buf = &p->buf[p->uses[p->op[op].uses + u].buf];
          assert_true (buf->first < last && buf->last >= op);
          kept++;
        }
    assert_int_equal (kept, 4 * 2);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (delay_wgrad_compute_puts_a_layers_weight_gradients_last),
  cmocka_unit_test (delay_wgrad_compute_makes_buckets_wait_for_weight_gradients),
  cmocka_unit_test (delay_wgrad_compute_sends_before_the_first_layers_weight_gradients),
  cmocka_unit_test (delay_wgrad_compute_shortens_a_pipelined_step),
  cmocka_unit_test (delay_wgrad_compute_keeps_what_is_still_to_be_read),
};

WEFT_TESTS (tests)
