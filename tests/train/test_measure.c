/* weft measure: the cost table of a job has a row for every op, and predictions with it use only
 * these rows. */
#include "train/measure.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "train/comm_bench.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>

#define TINY                                                                                       \
  "topology=cpu model=gpt2-nano num_layers=2 seq_length=16 hidden_size=16 num_attention_heads=2 "  \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=32 global_batch_size=4 precision=fp32"
#define REPLICAS TINY " gpus=2 use_distributed_optimizer=true"
#define STAGES TINY " gpus=4 pipeline_model_parallel_size=2"

static GArray *
measure (const weft_plan *plan)
{
  g_autoptr (weft_measure) m = weft_measure_new (&weft_exec_cpu);
  g_autoptr (GError) error = NULL;

  if (!weft_measure_steps (m, plan, 2, 0, &error) ||
      (plan->mesh.n_ranks > 1 && !weft_measure_comm (m, plan, &error)))
    fail_msg ("%s", error->message);
  return weft_measure_rows (m);
}

static uint32_t
ranks_of (const weft_plan *plan, const weft_program *p, uint32_t op)
{
  switch (weft_op_info[p->op[op].kind].class) {
  case WEFT_CLASS_COLLECTIVE:
    return weft_mesh_group_size (&plan->mesh, p->op[op].group);
  case WEFT_CLASS_P2P:
    return 2;
  default:
    return plan->mesh.n_ranks;
  }
}

/* Returns the seconds of an op by a cost table with these rows, as printed into the file; negative
 * if the table has no row for the op. */
static double
printed (const GArray *rows, const weft_plan *plan, const weft_program *p, uint32_t op)
{
  enum weft_op_kind kind = p->op[op].kind == WEFT_OP_RECV ? WEFT_OP_SEND : p->op[op].kind;
  const struct weft_shape *shape = weft_op_shape (p, op);
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  for (guint i = 0; i < rows->len; i++) {
    const struct weft_measurement *m = &g_array_index (rows, struct weft_measurement, i);
    if (m->kind == kind && m->ranks == ranks_of (plan, p, op) && m->shape.dtype == shape->dtype &&
        m->shape.out_dtype == shape->out_dtype &&
        memcmp (m->shape.dim, shape->dim, sizeof shape->dim) == 0)
      return g_ascii_strtod (g_ascii_formatd (text, sizeof text, "%.6g", m->seconds), NULL);
  }
  return -1;
}

static gboolean
is_measured (const weft_program *p, uint32_t op)
{
  return weft_op_info[p->op[op].kind].class != WEFT_CLASS_COPY && p->op[op].kind != WEFT_OP_RELEASE;
}

/* ------------------------------------------------------------------------ tests */

static void
every_op_of_a_job_has_a_row_and_its_price (void **state)
{
  static const char *const jobs[] = { TINY, REPLICAS, STAGES,
                                      TINY " precision=bf16 recompute_granularity=full "
                                           "recompute_method=uniform recompute_num_layers=1" };
  (void) state;

  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", jobs[i]);
    g_autoptr (GArray) rows = measure (plan);
    g_autoptr (weft_plan) priced = weft_test_plan_priced (jobs[i], rows);
    for (uint32_t role = 0; role < priced->n_roles; role++)
      for (uint32_t op = 0; op < priced->role[role]->n_op; op++) {
        if (!is_measured (priced->role[role], op))
          continue;
        double seconds = printed (rows, priced, priced->role[role], op);
        if (seconds < 0)
          fail_msg ("%s: no row for %s", jobs[i], weft_op_words[priced->role[role]->op[op].kind]);
        assert_near (priced->seconds[role][op], seconds);
      }
  }
}

static void
no_row_is_of_nothing (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (STAGES);
  g_autoptr (GArray) rows = measure (plan);
  (void) state;

  for (guint i = 0; i < rows->len; i++) {
    const struct weft_measurement *m = &g_array_index (rows, struct weft_measurement, i);
    assert_true (m->seconds > 0 && m->kind != WEFT_OP_RECV);
    assert_true (weft_op_info[m->kind].class != WEFT_CLASS_COPY);
  }
}

/* On one rank no op overlaps with another or waits, so kernels take exactly the times of their
 * rows. */
static void
the_kernels_of_one_rank_add_up_to_their_rows (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY);
  g_autoptr (GArray) rows = measure (plan);
  g_autoptr (weft_plan) priced = weft_test_plan_priced (TINY, rows);
  g_autoptr (weft_timeline) t = made_run (priced);
  const weft_program *p = priced->role[0];
  double ran = 0, wanted = 0, copies = 0;
  (void) state;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_measured (p, op)) {
      ran += t->end[0][op] - t->begin[0][op];
      wanted += printed (rows, priced, p, op);
    } else if (weft_op_info[p->op[op].kind].class == WEFT_CLASS_COPY) {
      copies += priced->seconds[0][op];
    }
  assert_near (ran, wanted);
  assert_true (t->seconds >= wanted && t->seconds <= wanted + copies);
}

/* A transfer with a measured row is simulated as a delay of this time, not as a flow over links. */
static void
a_measured_send_takes_what_its_row_says (void **state)
{
  const struct weft_measurement row = { WEFT_OP_SEND, 2, { { 16 * 16 }, WEFT_FP32, WEFT_FP32 }, 3 };
  g_autoptr (GArray) rows = g_array_new (FALSE, FALSE, sizeof row);
  uint32_t n = 0;
  (void) state;

  g_array_append_val (rows, row);
  g_autoptr (weft_plan) plan = weft_test_plan_priced (STAGES, rows);
  g_autoptr (weft_timeline) t = made_run (plan);
  for (uint32_t i = 0; i < t->n; i++) {
    const weft_program *p = plan->role[t->role[i]];
    for (uint32_t op = 0; op < p->n_op; op++)
      if (p->op[op].kind == WEFT_OP_RECV) {
        assert_near (plan->seconds[t->role[i]][op], 3.0);
        n++;
      }
  }
  assert_true (n >= 4);
  /* A step with two microbatches has at least two transfers, one after the other, of 3 seconds
   * each. */
  assert_true (t->seconds > 2 * 3.0);
}

static void
the_grid_covers_sizes_of_all_collectives (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_ALL_REDUCE, WEFT_OP_REDUCE_SCATTER,
                                             WEFT_OP_ALL_GATHER, WEFT_OP_ALL_TO_ALL };
  g_autoptr (weft_plan) plan = weft_test_plan (REPLICAS);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) group = weft_comm_bench_of_group (&plan->job, 4, &error);
  g_autoptr (weft_plan) stages = weft_comm_bench_of_stages (&plan->job, &error);
  uint32_t seen[WEFT_N_OP] = { 0 };
  (void) state;

  assert_true (group && stages);
  assert_int_equal (group->mesh.n_ranks, 4);
  for (uint32_t op = 0; op < group->role[0]->n_op; op++)
    seen[group->role[0]->op[op].kind]++;
  for (uint32_t op = 0; op < stages->role[1]->n_op; op++)
    seen[stages->role[1]->op[op].kind]++;
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    assert_int_equal (seen[kinds[i]], 9 * WEFT_COMM_BENCH_REPEATS);
  assert_int_equal (seen[WEFT_OP_SEND], 9 * WEFT_COMM_BENCH_REPEATS);
  assert_int_equal (seen[WEFT_OP_RECV], 9 * WEFT_COMM_BENCH_REPEATS);
}

/* `weft sim --cost-table` accepts the table that `weft measure` writes. `weft measure` refuses a
 * topology that is not this machine. */
static void
the_command_writes_a_table_that_sim_takes (void **state)
{
  static const char job[] = " --model gpt2-nano --num-layers 1 --seq-length 16 --precision fp32";
  g_autofree char *dir = g_dir_make_tmp ("weft-measure-XXXXXX", NULL);
  g_autofree char *table = g_build_filename (dir, "here.costs", NULL);
  g_autofree char *measured = g_strdup_printf ("%s measure%s --output %s", WEFT_BINARY, job, table);
  g_autofree char *predicted =
      g_strdup_printf ("%s sim%s --topology cpu --cost-table %s", WEFT_BINARY, job, table);
  g_autofree char *refused = g_strdup_printf ("%s measure%s --topology dgx-h100", WEFT_BINARY, job);
  const char *commands[] = { measured, predicted, refused };
  (void) state;

  for (unsigned i = 0; i < G_N_ELEMENTS (commands); i++) {
    g_autofree char *out = NULL, *said = NULL;
    int status = -1;
    assert_true (g_spawn_command_line_sync (commands[i], &out, &said, &status, NULL));
    assert_int_equal (WEXITSTATUS (status), i == 2 ? 2 : 0);
  }
  g_autoptr (weft_cost_table) read = weft_cost_table_load (table, NULL);
  assert_non_null (read);
  g_unlink (table);
  g_rmdir (dir);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_op_of_a_job_has_a_row_and_its_price),
  cmocka_unit_test (no_row_is_of_nothing),
  cmocka_unit_test (the_kernels_of_one_rank_add_up_to_their_rows),
  cmocka_unit_test (a_measured_send_takes_what_its_row_says),
  cmocka_unit_test (the_grid_covers_sizes_of_all_collectives),
  cmocka_unit_test (the_command_writes_a_table_that_sim_takes),
};

WEFT_TESTS (tests)
