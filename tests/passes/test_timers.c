/* timers, timing_log_level, barrier_with_L1_time: where measured phases begin and end, what they
 * wait for, and their spans in a trace. */
#include "core/report/trace.h"
#include "tests/runner/folder.h"
#include "tests/made/made.h"
#include "tests/made/nano.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"

#define NANO                                                                                       \
  "model=gpt2-nano topology=dgx-h100 gpus=4 global_batch_size=8 use_distributed_optimizer=true "   \
  "overlap_grad_reduce=true overlap_param_gather=true bucket_size=50000 batch_p2p_sync=false "
#define MEASURED NANO "timers=standard "

static uint32_t
edges (const weft_program *p, const char *name)
{
  return count (p, WEFT_OP_TIMER, name);
}

static void
nobody_measures_unless_asked_to (void **state)
{
  static const char *const jobs[] = { NANO, NANO "timing_log_level=2", MEASURED };
  g_autoptr (weft_program) plain = built (NANO, 0);
  g_autofree char *text = weft_program_print (plain);

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    g_autoptr (weft_program) p = built (jobs[j], 0);
    g_autofree char *same = weft_program_print (p);
    assert_string_equal (same, text);
  }
}

static void
level_1_measures_the_parts_of_a_step_and_level_2_every_microbatch (void **state)
{
  static const char *const once[] = {
    "forward-backward",           "all-grads-sync",
    "embedding-grads-all-reduce", "optimizer-copy-to-main-grad",
    "optimizer-clip-main-grad",   "optimizer-inner-step",
    "params-all-gather",
  };

  (void) state;
  for (unsigned level = 1; level <= 2; level++) {
    g_autofree char *words = g_strdup_printf (MEASURED "timing_log_level=%u", level);
    g_autoptr (weft_program) p = built (words, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS (once); i++)
      assert_int_equal (edges (p, once[i]), 2);
    assert_int_equal (edges (p, "forward-compute"), level == 2 ? 2 * 2 : 0);
    assert_int_equal (edges (p, "backward-compute"), level == 2 ? 2 * 2 : 0);
  }
}

/* A timer op is ordered with every other op: the host waits for all earlier ops before it takes the
 * time, and launches later ops only then. */
static void
an_edge_parts_all_lanes (void **state)
{
  static const char *const jobs[] = {
    MEASURED "timing_log_level=2",
    MEASURED "timing_log_level=1 pipeline_model_parallel_size=2",
    "model=gpt2-nano topology=dgx-h100 gpus=4 global_batch_size=8 distributed_config=fsdp2 "
    "offload_policy=cpu timers=standard timing_log_level=2",
    "model=gpt2-nano topology=dgx-h100 gpus=2 global_batch_size=8 timers=standard "
    "timing_log_level=2 optimizer_cpu_offload=true overlap_cpu_optimizer_d2h_h2d=true",
  };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    g_autoptr (weft_program) p = built (jobs[j], 0);
    g_autofree uint32_t *before = weft_program_order (p);
    for (uint32_t op = 0; op < p->n_op; op++)
      for (uint32_t other = 0; other < p->n_op && p->op[op].kind == WEFT_OP_TIMER; other++)
        if (other != op)
          assert_true (weft_ordered (p, before, MIN (op, other), MAX (op, other)));
  }
}

static void
all_ranks_meet_before_a_phase_of_level_1_unless_told_not_to (void **state)
{
  g_autoptr (weft_program) p = built (MEASURED "timing_log_level=2", 0);
  g_autoptr (weft_program) apart =
      built (MEASURED "timing_log_level=2 barrier_with_L1_time=false", 0);
  g_autoptr (weft_program) alone =
      built ("model=gpt2-nano topology=dgx-h100 gpus=1 timers=standard timing_log_level=2", 0);
  uint32_t starts = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean starts_here = p->op[op].kind == WEFT_OP_TIMER && elements (p, op) == 1 &&
                           !strstr (p->name[p->op[op].name], "-compute");
    starts += starts_here;
    if (starts_here)
      assert_true (is_named (p, op - 1, "barrier"));
  }
  assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "barrier"), starts);
  assert_int_equal (p->op[nth (p, WEFT_OP_ALL_REDUCE, "barrier", 0)].group, WEFT_GROUP_WORLD);
  assert_int_equal (count (apart, WEFT_OP_ALL_REDUCE, "barrier"), 0);
  assert_int_equal (count (alone, WEFT_OP_ALL_REDUCE, "barrier"), 0);
}

static double
seconds (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "");
  return t->seconds;
}

/* Timers make the host wait, so they prevent overlap and make a step longer. */
static void
measuring_takes_time (void **state)
{
  double plain = seconds (NANO), one = seconds (MEASURED "timing_log_level=1"),
         two = seconds (MEASURED "timing_log_level=2"),
         apart = seconds (MEASURED "timing_log_level=1 barrier_with_L1_time=false");

  (void) state;
  assert_true (plain < apart && apart < one && one < two);
}

static void
measuring_changes_no_bits (void **state)
{
#define SMALL                                                                                      \
  "topology=cpu model=gpt2-nano num_layers=4 hidden_size=24 kv_channels=6 ffn_hidden_size=40 "     \
  "seq_length=16 global_batch_size=8 precision=bf16 "
  static const char *const strategies[] = {
    "gpus=4 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
    "overlap_param_gather=true bucket_size=3000",
    "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3",
    "gpus=2 optimizer_cpu_offload=true overlap_cpu_optimizer_d2h_h2d=true",
  };
  struct real_result one = weft_test_run (&(struct real_run){ SMALL, 2 });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
    g_autofree char *words =
        g_strconcat (SMALL "timers=standard timing_log_level=2 ", strategies[s], NULL);
    weft_test_check_run (&(struct real_run){ words, 2, .stress = 4, .poison = TRUE }, &one);
  }
}

/* In a trace, the span "forward-backward" must contain all spans "backward-compute". */
static void
a_trace_has_a_span_for_each_phase (void **folder)
{
  g_autoptr (weft_plan) plan = weft_test_plan (MEASURED "timing_log_level=2");
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "unfolded");
  g_autofree char *path = g_build_filename (*folder, "trace.json", NULL), *text = NULL;
  unsigned spans = 0, named = 0;

  assert_true (weft_trace_write (plan, t, 1, path, NULL));
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  g_auto (GStrv) line = g_strsplit (text, "\n", -1);
  for (unsigned i = 0; line[i]; i++) {
    spans += strstr (line[i], "\"cat\":\"timer\"") != NULL;
    named += strstr (line[i], "{\"name\":\"timers\"}") != NULL;
  }
  assert_int_equal (spans, count_kind (plan->role[0], WEFT_OP_TIMER) / 2);
  assert_int_equal (named, 1);
  assert_non_null (strstr (text, "\"name\":\"backward-compute\""));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (nobody_measures_unless_asked_to),
  cmocka_unit_test (level_1_measures_the_parts_of_a_step_and_level_2_every_microbatch),
  cmocka_unit_test (an_edge_parts_all_lanes),
  cmocka_unit_test (all_ranks_meet_before_a_phase_of_level_1_unless_told_not_to),
  cmocka_unit_test (measuring_takes_time),
  cmocka_unit_test (measuring_changes_no_bits),
  cmocka_unit_test_setup_teardown (a_trace_has_a_span_for_each_phase, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests)
