/* enable_autocast: where programs convert between dtypes, the memory of the converted copies, and
 * which buffers keep the dtype of the weights. */
#include "core/report/report.h"
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"

#define LAYERS 3
#define MICROS 2
#define PLAIN                                                                                      \
  "num_layers=3 hidden_size=64 num_attention_heads=4 ffn_hidden_size=256 vocab_size=512 "          \
  "seq_length=64 topology=dgx-h100 gpus=2 global_batch_size=4 precision=fp32 "
#define CAST PLAIN "enable_autocast=true autocast_dtype=bf16 "

static uint32_t
casts (const weft_program *p, const char *name, enum weft_phase phase, uint32_t layer)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += p->op[op].kind == WEFT_OP_CAST && is_named (p, op, name) && p->op[op].phase == phase &&
         p->op[op].layer == layer && p->op[op].micro == 0;
  return n;
}

static enum weft_dtype
operand (const weft_program *p, uint32_t op, uint32_t i)
{
  return p->buf[p->uses[p->op[op].uses + i].buf].dtype;
}

static void
enable_autocast_takes_products_in_autocast_dtype (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (CAST);
  const weft_program *p = plan->role[0];
  uint32_t products = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (weft_op_is_product (p->op[op].kind)) {
      gboolean weight = weft_op_info[p->op[op].kind].product == WEFT_PRODUCT_WGRAD;
      assert_int_equal (weft_op_shape (p, op)->dtype, WEFT_BF16);
      assert_int_equal (operand (p, op, 0), WEFT_BF16);
      assert_int_equal (operand (p, op, 1), WEFT_BF16);
      assert_true (!weight || operand (p, op, 2) == WEFT_FP32);
      products += !weight;
    }
    switch (p->op[op].kind) {
    case WEFT_OP_ATTENTION:
      assert_int_equal (operand (p, op, 0), WEFT_BF16);
      break;
    case WEFT_OP_ADD_NORM:
    case WEFT_OP_NORM:
    case WEFT_OP_NORM_BWD:
      assert_int_equal (operand (p, op, 0), WEFT_FP32);
      break;
    default:
      break;
    }
  }
  assert_int_equal (products, MICROS * 2 * (4 * LAYERS + 1));
}

/* enable_autocast: the residual stream stays in fp32. Forward converts activations to bf16 between
 * a norm and the next matmul, and back to fp32 before the residual sum; backward converts their
 * gradients at the same places. Each pass converts the four weights of a layer. */
static void
enable_autocast_converts_where_the_residual_stream_begins_and_ends (void **state)
{
  static const char *const forward[] = { "norm1", "proj", "norm2", "fc2" };
  static const char *const backward[] = { "fc2", "norm2", "proj", "norm1" };
  g_autoptr (weft_plan) plan = weft_test_plan (CAST);
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    for (unsigned i = 0; i < 4; i++) {
      assert_int_equal (casts (p, forward[i], WEFT_PHASE_FORWARD, layer), 1);
      assert_int_equal (casts (p, backward[i], WEFT_PHASE_BACKWARD, layer), 1);
    }
    assert_int_equal (casts (p, "cast_weight", WEFT_PHASE_FORWARD, layer), 4);
    assert_int_equal (casts (p, "cast_weight", WEFT_PHASE_BACKWARD, layer), 4);
  }
  /* the only weight outside the layers that is cast: that of the head (lm_head) */
  assert_int_equal (casts (p, "cast_weight", WEFT_PHASE_FORWARD, WEFT_NO_LAYER), 1);
}

/* The bf16 copies of all weights (2 bytes per element) are made in the forward pass of each
 * microbatch, and freed at the end of this forward pass. */
static void
enable_autocast_keeps_converted_weights_for_one_forward_pass (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (CAST);
  const weft_program *p = plan->role[0];
  uint64_t matrices = 0;
  uint32_t caches = 0;

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].columns > 1 && !g_str_has_prefix (p->name[p->param[i].name], "embedding"))
      matrices += p->param[i].rows * p->param[i].columns;
  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (strcmp (p->name[b->name], "cast_weights") != 0)
      continue;
    assert_int_equal (b->bytes, 2 * matrices);
    assert_int_equal (p->op[b->first].phase, WEFT_PHASE_FORWARD);
    assert_int_equal (p->op[b->last].phase, WEFT_PHASE_FORWARD);
    assert_int_equal (p->op[b->first].micro, p->op[b->last].micro);
    assert_int_equal (p->op[b->last].kind, WEFT_OP_RELEASE);
    caches++;
  }
  assert_int_equal (caches, MICROS);
}

static void
autocast_dtype_none_and_params_dtype_change_nothing (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (PLAIN);
  g_autoptr (weft_plan) none = weft_test_plan (PLAIN "enable_autocast=true");
  g_autoptr (weft_plan) same = weft_test_plan (PLAIN "enable_autocast=true autocast_dtype=fp32");
  g_autoptr (weft_plan) off = weft_test_plan (PLAIN "autocast_dtype=bf16");
  g_autofree char *wanted = weft_program_print (plain->role[0]);
  const weft_plan *plans[] = { none, same, off };

  (void) state;
  for (int i = 0; i < 3; i++) {
    g_autofree char *found = weft_program_print (plans[i]->role[0]);
    assert_string_equal (found, wanted);
  }
}

static void
enable_autocast_is_quicker_and_measured_against_the_peak_of_its_type (void **state)
{
  static const char wide[] = "hidden_size=4096 num_attention_heads=32 ffn_hidden_size=16384 "
                             "seq_length=4096";
  g_autoptr (weft_plan) plain = weft_test_plan ("%s%s", PLAIN, wide);
  g_autoptr (weft_plan) cast = weft_test_plan ("%s%s", CAST, wide);
  g_autoptr (weft_timeline) was = made_run (plain), is = made_run (cast);

  (void) state;
  assert_true (is->seconds < was->seconds);
  assert_near (weft_report_printed_peak (&plain->job), 494.5e12);
  assert_near (weft_report_printed_peak (&cast->job), 989e12);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (enable_autocast_takes_products_in_autocast_dtype),
  cmocka_unit_test (enable_autocast_converts_where_the_residual_stream_begins_and_ends),
  cmocka_unit_test (enable_autocast_keeps_converted_weights_for_one_forward_pass),
  cmocka_unit_test (autocast_dtype_none_and_params_dtype_change_nothing),
  cmocka_unit_test (enable_autocast_is_quicker_and_measured_against_the_peak_of_its_type),
};

WEFT_TESTS (tests)
