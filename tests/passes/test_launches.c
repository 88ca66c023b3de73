/* Launches inside of layers. enable_compile fuses pointwise ops that follow each other into one
 * kernel. Hugging Face attention copies a flag to the host in every layer, unless
 * patch_is_packed_sequence is set. */
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

#define LAYERS 3
#define MICROS 2
#define JOB                                                                                        \
  "num_layers=3 hidden_size=1024 num_attention_heads=8 ffn_hidden_size=4096 vocab_size=512 "       \
  "seq_length=1024 topology=dgx-h100 gpus=2 global_batch_size=4 position_embedding_type=rope "     \
  "fused_add_norm=0 "                                                                              \
  "qk_layernorm=true normalization=rmsnorm "
#define WIDTH (1024.0 * 1024 * 2) /* bytes of one read or write of the residual stream */

static uint32_t
find (const weft_program *p, const char *name, enum weft_phase phase)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].layer == 1 && p->op[op].micro == 0 && p->op[op].phase == phase &&
        strcmp (p->name[p->op[op].name], name) == 0 && p->op[op].kind != WEFT_OP_CAST)
      return op;
  fail_msg ("no %s", name);
  return WEFT_NO_OP;
}

static char *
fused_names (const weft_program *p, uint32_t layer)
{
  GString *names = g_string_new (NULL);

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].flags & WEFT_OP_FUSED && p->op[op].layer == layer && p->op[op].micro == 0)
      g_string_append_printf (names, "%s %s,", weft_phase_words[p->op[op].phase],
                              p->name[p->op[op].name]);
  return g_string_free (names, FALSE);
}

static void
enable_compile_joins_pointwise_ops_that_follow_each_other (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (JOB);
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "enable_compile=true");
  g_autoptr (weft_plan) cast = weft_test_plan (
      JOB "enable_compile=true precision=fp32 enable_autocast=true autocast_dtype=bf16");
  g_autofree char *none = fused_names (plain->role[0], 1), *some = fused_names (plan->role[0], 1),
                  *more = fused_names (cast->role[0], 1);

  (void) state;
  assert_string_equal (none, "");
  assert_string_equal (some, "F rope,F norm2,B qk_norm,");
  assert_string_equal (more, "F norm1,F rope,F residual1,F norm2,F norm2,F residual2,"
                             "B norm2,B qk_norm,B norm1,");
  assert_int_equal (plan->role[0]->n_op, plain->role[0]->n_op);
}

/* enable_compile: an unfused norm needs a launch gap, and reads and writes the residual stream. A
 * norm that is fused with the sum before it costs only one write. A fused rotary embedding moves no
 * bytes of its own. */
static void
enable_compile_moves_a_shared_operand_once_and_leaves_no_gap (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (JOB);
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "enable_compile=true");
  const weft_program *p = plan->role[0];
  double gap = plan->job.stack.kernel_gap,
         band = plan->job.cluster.f.gpu_memory_bandwidth * plan->job.stack.memory_share;
  uint32_t norm = find (p, "norm2", WEFT_PHASE_FORWARD),
           rope = find (p, "rope", WEFT_PHASE_FORWARD),
           sum = find (p, "residual1", WEFT_PHASE_FORWARD);

  (void) state;
  assert_near (plain->seconds[0][norm], gap + 2 * WIDTH / band);
  assert_near (plan->seconds[0][norm], WIDTH / band);
  assert_near (plan->seconds[0][sum], gap + 3 * WIDTH / band);
  assert_true (plan->seconds[0][rope] == 0);
  g_autoptr (weft_timeline) was = made_run (plain), is = made_run (plan);
  assert_true (is->seconds < was->seconds);
}

static void
enable_compile_costs_nothing_less_where_ops_run_one_by_one (void **state)
{
  static const char job[] = "model=llama-nano topology=cpu gpus=2 global_batch_size=4 ";
  g_autoptr (weft_plan) plain = weft_test_plan ("%s", job);
  g_autoptr (weft_plan) plan = weft_test_plan ("%senable_compile=true", job);

  (void) state;
  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    assert_near (plan->seconds[0][op], plain->seconds[0][op]);
}

static void
a_fused_op_is_printed_and_parsed_back (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "enable_compile=true");
  g_autofree char *text = weft_program_print (plan->role[0]);
  g_autoptr (weft_program) parsed = weft_program_parse (text, "it", NULL);
  g_autofree char *again = weft_program_print (parsed);

  (void) state;
  assert_non_null (strstr (text, " fused "));
  assert_string_equal (again, text);
}

/* ------------------------------------------------------------ packed sequences */

static uint32_t
questions (const char *words, enum weft_distributed strategy)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  uint32_t n = 0;

  assert_true (weft_test_job (words, &job, &error));
  job.strategy.distributed_config = strategy;
  g_autoptr (weft_plan) plan = weft_plan_new (&job, &error);
  assert_non_null (plan);
  const weft_program *p = plan->role[0];
  g_autofree uint32_t *before = weft_program_order (p);
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_COPY_OUT || strcmp (p->name[p->op[op].name], "packed") != 0)
      continue;
    uint32_t next = op + 1; /* the next kernel on the lane gpu must wait for the copy */
    while (p->op[next].lane != WEFT_LANE_GPU)
      next++;
    assert_true (weft_ordered (p, before, op, next));
    n++;
  }
  return n;
}

static void
patch_is_packed_sequence_spares_the_host_a_wait_in_every_layer (void **state)
{
  static const char ask[] = JOB, patched[] = JOB "patch_is_packed_sequence=true",
                    pairs[] = JOB "micro_batch_size=2";

  (void) state;
  assert_int_equal (questions (ask, WEFT_FSDP2), LAYERS * MICROS);
  assert_int_equal (questions (patched, WEFT_FSDP2), 0);
  assert_int_equal (questions (pairs, WEFT_FSDP2), 0);
  assert_int_equal (questions (ask, WEFT_MEGATRON_DDP), 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (enable_compile_joins_pointwise_ops_that_follow_each_other),
  cmocka_unit_test (enable_compile_moves_a_shared_operand_once_and_leaves_no_gap),
  cmocka_unit_test (enable_compile_costs_nothing_less_where_ops_run_one_by_one),
  cmocka_unit_test (a_fused_op_is_printed_and_parsed_back),
  cmocka_unit_test (patch_is_packed_sequence_spares_the_host_a_wait_in_every_layer),
};

WEFT_TESTS (tests)
