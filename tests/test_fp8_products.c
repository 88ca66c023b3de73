/* precision = fp8: linear maps of layers multiply in fp8, and nothing else does. */
#include "core/report/report.h"
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

/* In forward the input and the weight; in backward the gradient and the weight: the input is kept. */
static void
what_is_multiplied_is_converted_first (void **state)
{
  g_autoptr (weft_plan) plan = plan_of ("fp8", NULL, NULL);
  g_autoptr (weft_plan) kept = plan_of ("fp8", "--fp8-param-gather", "true");
  const weft_plan *plans[] = { plan, kept };
  const uint32_t wanted[] = { 4, 2 };

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
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", "--fp8-recipe", "blockwise");
  g_autoptr (weft_plan) bf16 = plan_of ("bf16", NULL, NULL);
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

/* Of the inputs of its four maps a layer keeps one byte, and two bytes of what others read too: what
 * attention made. */
static void
saved_inputs_have_one_byte (void **state)
{
  g_autoptr (weft_plan) fp8 = plan_of ("fp8", NULL, NULL), bf16 = plan_of ("bf16", NULL, NULL);
  const union weft_model *m = &fp8->job.model;
  uint64_t tokens = (uint64_t) m->seq_length, h = (uint64_t) m->hidden_size;
  uint64_t f = (uint64_t) m->ffn_hidden_size, layers = (uint64_t) m->num_layers;
  uint64_t q = (uint64_t) (m->num_attention_heads * m->kv_channels);

  (void) state;
  g_autoptr (weft_report) a = weft_report_new (fp8, NULL), b = weft_report_new (bf16, NULL);
  int64_t less = (int64_t) (b->role[0].by_kind[WEFT_BUF_ACTIVATIONS] -
                            a->role[0].by_kind[WEFT_BUF_ACTIVATIONS]);
  int64_t wanted = (int64_t) (layers * tokens * (h + h + f) - layers * tokens * q);
  assert_in_range (less, wanted * 7 / 10, wanted * 13 / 10);
}

static uint32_t
count_of (const weft_plan *plan, enum weft_op_kind kind)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    n += plan->role[0]->op[op].kind == kind;
  return n;
}

static void
recipes_find_their_scales_each_in_its_way (void **state)
{
  g_autoptr (weft_plan) delayed = plan_of ("fp8", "--fp8-recipe", "delayed");
  g_autoptr (weft_plan) tensor = plan_of ("fp8", "--fp8-recipe", "tensorwise");
  g_autoptr (weft_plan) block = plan_of ("fp8", "--fp8-recipe", "blockwise");
  g_autoptr (weft_plan) mx = plan_of ("fp8", "--fp8-recipe", "mxfp8");
  g_autofree char *a = weft_program_print (block->role[0]), *b = weft_program_print (mx->role[0]);
  const weft_program *p = delayed->role[0];
  uint64_t agreed = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ALL_REDUCE && strcmp (p->name[p->op[op].name], "amax") == 0)
      agreed += shape_at (p, op)->dim[0];
  assert_int_equal (agreed, 8 * 4 * 4); /* layers, maps, tensors of a microbatch */
  assert_int_equal (count_of (delayed, WEFT_OP_AMAX), 0);
  assert_int_equal (count_of (tensor, WEFT_OP_AMAX), 2 * 8 * 4 * 4);
  assert_int_equal (count_of (block, WEFT_OP_AMAX), 0);
  assert_string_equal (a, b); /* 4 bytes for 128 elements, 1 for 32 */
  for (uint32_t i = 0; i < mx->role[0]->n_buf; i++) {
    const struct weft_buf *buf = &mx->role[0]->buf[i];
    if (buf->dtype == WEFT_FP8 && buf->kind == WEFT_BUF_ACTIVATIONS)
      assert_int_equal (buf->bytes % 33, 0);
  }
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
    cmocka_unit_test (saved_inputs_have_one_byte),
    cmocka_unit_test (recipes_find_their_scales_each_in_its_way),
    cmocka_unit_test (utilisation_is_a_share_of_the_fp8_peak),
    cmocka_unit_test (gpus_without_the_unit_and_autocast_are_refused),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
