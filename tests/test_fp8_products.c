/* precision = fp8: linear maps of layers multiply in fp8, and nothing else does. */
#include "core/report.h"
#include "tests/made.h"

static weft_plan *
plan_of (const char *precision, const char *flag, const char *value)
{
  const char *words[] = { "--model",
                          "llama-nano",
                          "--topology",
                          "dgx-h100",
                          "--gpus",
                          "2",
                          "--precision",
                          precision,
                          "--global-batch-size",
                          "4",
                          "--use-distributed-optimizer",
                          "true",
                          flag,
                          value,
                          NULL };
  struct weft_job job;

  made_real_job (&job, words);
  return made_real_plan (&job);
}

static const struct weft_shape *
shape_at (const weft_program *p, uint32_t op)
{
  return &p->shape[p->op[op].shape];
}

static gboolean
multiplies (enum weft_op_kind kind)
{
  return kind == WEFT_OP_MATMUL || kind == WEFT_OP_MATMUL_DGRAD || kind == WEFT_OP_MATMUL_WGRAD ||
         kind == WEFT_OP_MATMUL_FP8 || kind == WEFT_OP_MATMUL_DGRAD_FP8;
}

static void
linear_maps_of_layers_are_fp8_and_the_rest_is_bf16 (void **state)
{
  g_autoptr (weft_plan) plan = plan_of ("fp8", NULL, NULL);
  const weft_program *p = plan->role[0];
  uint32_t linear = 0, head = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_dtype dtype = shape_at (p, op)->dtype;
    if (p->op[op].kind == WEFT_OP_ATTENTION || p->op[op].kind == WEFT_OP_ATTENTION_BWD)
      assert_int_equal (dtype, WEFT_BF16);
    if (!multiplies (p->op[op].kind))
      continue;
    gboolean layer = p->op[op].layer != WEFT_NO_LAYER;
    assert_int_equal (dtype, layer ? WEFT_FP8 : WEFT_BF16);
    linear += layer;
    head += !layer;
  }
  assert_int_equal (linear, 2 * 8 * 4 * 3); /* microbatches, layers, maps, products */
  assert_int_equal (head, 2 * 3);
}

/* In forward the input and the weight; in backward the gradient, the weight and the input again. */
static void
what_is_multiplied_is_converted_first (void **state)
{
  g_autoptr (weft_plan) plan = plan_of ("fp8", NULL, NULL);
  g_autoptr (weft_plan) kept = plan_of ("fp8", "--fp8-param-gather", "true");
  const weft_plan *plans[] = { plan, kept };
  const uint32_t wanted[] = { 5, 3 };

  (void) state;
  for (int i = 0; i < 2; i++) {
    const weft_program *p = plans[i]->role[0];
    uint32_t casts = 0;
    for (uint32_t op = 0; op < p->n_op; op++)
      casts += p->op[op].kind == WEFT_OP_CAST && shape_at (p, op)->out_dtype == WEFT_FP8 &&
               p->op[op].layer != WEFT_NO_LAYER;
    assert_int_equal (casts, 2 * 8 * 4 * wanted[i]);
  }
}

static void
weights_gradients_and_their_traffic_are_those_of_bf16 (void **state)
{
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", NULL, NULL), bf16 = plan_of ("bf16", NULL, NULL);
  g_autoptr (weft_report) a = weft_report_new (fp8, NULL), b = weft_report_new (bf16, NULL);
  double bytes[2] = { 0 };
  const weft_plan *plans[] = { fp8, bf16 };

  (void) state;
  assert_int_equal (a->role[0].by_kind[WEFT_BUF_OPTIMIZER], b->role[0].by_kind[WEFT_BUF_OPTIMIZER]);
  for (int i = 0; i < 2; i++)
    for (uint32_t op = 0; op < plans[i]->role[0]->n_op; op++)
      if (weft_op_info[plans[i]->role[0]->op[op].kind].class == WEFT_CLASS_COLLECTIVE)
        bytes[i] += weft_op_bytes (plans[i]->role[0], op);
  assert_true (bytes[0] == bytes[1] && bytes[0] > 0);
}

static void
utilisation_is_a_share_of_the_fp8_peak (void **state)
{
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", NULL, NULL), bf16 = plan_of ("bf16", NULL, NULL);

  (void) state;
  assert_true (weft_report_printed_peak (&fp8->job) == fp8->job.cluster.f.gpu_fp8_spec);
  assert_true (weft_report_printed_peak (&bf16->job) == bf16->job.cluster.f.gpu_bf16_spec);
}

static void
gpus_without_the_unit_and_autocast_are_refused (void **state)
{
  static const char *const cases[][2] = { { "dgx-a100", "false" },
                                          { "cpu", "false" },
                                          { "dgx-h100", "true" } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (weft_settings) settings = weft_settings_new ();
    g_autoptr (GError) error = NULL;
    struct weft_job job;
    weft_settings_add (settings, "model", "config", "gpt2-nano", "test");
    weft_settings_add (settings, "cluster", "topology", cases[i][0], "test");
    weft_settings_add (settings, "train", "precision", "fp8", "test");
    weft_settings_add (settings, "strategy", "enable_autocast", cases[i][1], "test");
    assert_false (weft_job_build (settings, &job, &error));
    assert_true (g_str_has_prefix (error->message, "rule precision: "));
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (linear_maps_of_layers_are_fp8_and_the_rest_is_bf16),
    cmocka_unit_test (what_is_multiplied_is_converted_first),
    cmocka_unit_test (weights_gradients_and_their_traffic_are_those_of_bf16),
    cmocka_unit_test (utilisation_is_a_share_of_the_fp8_peak),
    cmocka_unit_test (gpus_without_the_unit_and_autocast_are_refused),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
