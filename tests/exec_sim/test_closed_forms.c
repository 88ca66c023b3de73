/* The simulator compared with textbook formulas, to 1e-9: collectives on one node and over several
 * nodes, pipelines of equal stages with free communication, and numbers of kept activations. */
#include "core/schedule/grid.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

/* Tensors have multiples of SLICE bytes. So no byte is rounded, and a ring is faster than a
 * tree. */
#define SLICE UINT64_C (40000000)
#define LOCAL_LATENCY 3e-6
#define REMOTE_LATENCY 7e-6
#define BASE 5e-6

static const struct {
  enum weft_op_kind kind;
  /* a round of a ring has n - 1 steps; in each step a rank sends 1/n of the tensor to its
   * neighbour */
  double rounds;
} rings[] = {
  { WEFT_OP_ALL_REDUCE, 2 },
  { WEFT_OP_REDUCE_SCATTER, 1 },
  { WEFT_OP_ALL_GATHER, 1 },
};

static struct weft_job
job_with_latencies (uint32_t nodes, uint32_t node_gpus)
{
  struct weft_cluster cluster = made_cluster (nodes, node_gpus);
  struct weft_job job;

  cluster.f.node_intra_latency = LOCAL_LATENCY;
  cluster.f.fabric_latency = REMOTE_LATENCY;
  job = made_job (&cluster);
  job.stack.collective_base_latency = BASE;
  return job;
}

/* Seconds of a ring over k nodes of g GPUs (n = k g ranks). In each round a GPU sends (n - 1)/n of
 * the tensor: (g - 1)/g of these bytes within its node, and 1/g over its NIC. */
static double
ring_seconds (double rounds, double k, double g, double bytes)
{
  double n = k * g, sent = rounds * (n - 1) / n * bytes;
  double steps_remote = made_links_between_nodes ((uint32_t) (rounds * (n - 1)), k, g);
  double steps_local = rounds * (n - 1) - steps_remote;
  double local = sent * (k > 1 ? (g - 1) / g : 1) / MADE_PORT;
  double remote = k > 1 ? sent / g / MADE_NIC : 0;

  return BASE + steps_local * LOCAL_LATENCY + steps_remote * REMOTE_LATENCY + fmax (local, remote);
}

static void
check_rings (uint32_t nodes, uint32_t node_gpus, gboolean step_by_step)
{
  struct weft_job job = job_with_latencies (nodes, node_gpus);
  job.stack.collective_algorithms = g_quark_from_static_string ("ring");
  uint64_t bytes = SLICE * nodes * node_gpus * node_gpus;

  for (size_t i = 0; i < G_N_ELEMENTS (rings); i++) {
    g_autoptr (weft_plan) plan = made_collective_plan (&job, rings[i].kind, bytes);
    for (int unfolded = 0; unfolded < 2; unfolded++) {
      g_autofree char *own =
          g_strdup_printf ("unfolded=%d step-by-step=%d", unfolded, step_by_step);
      g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, own);
      assert_near (t->seconds, ring_seconds (rings[i].rounds, nodes, node_gpus, bytes));
      assert_false (t->contended);
    }
  }
}

static void
a_ring_on_one_node_takes_its_formula (void **state)
{
  (void) state;
  for (uint32_t n = 2; n <= 64; n++)
    check_rings (1, n, FALSE);
}

static void
rings_over_nodes_take_their_formula (void **state)
{
  static const uint32_t sizes[][2] = { { 2, 1 }, { 3, 1 }, { 17, 1 }, { 64, 1 }, { 2, 2 }, { 3, 2 },
                                       { 2, 8 }, { 5, 4 }, { 4, 8 },  { 8, 8 },  { 7, 9 } };
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (sizes); i++)
    check_rings (sizes[i][0], sizes[i][1], FALSE);
}

static void
fluid_flows_end_with_the_last_step (void **state)
{
  static const uint32_t sizes[][2] = { { 1, 2 },  { 1, 3 }, { 1, 8 }, { 1, 64 }, { 2, 1 },
                                       { 16, 1 }, { 2, 4 }, { 4, 2 }, { 3, 5 } };
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (sizes); i++)
    check_rings (sizes[i][0], sizes[i][1], TRUE);
}

static void
the_clock_knows_the_same_formulas (void **state)
{
  (void) state;
  for (uint32_t nodes = 1; nodes <= 4; nodes++) {
    struct weft_job job = job_with_latencies (nodes, 4);
    uint64_t bytes = SLICE * nodes * 16;
    g_autoptr (weft_plan) plan = made_collective_plan (&job, WEFT_OP_ALL_REDUCE, bytes);
    g_autoptr (weft_timeline) t = made_run_with (&weft_exec_clock, plan, "");
    assert_near (t->seconds, ring_seconds (2, nodes, 4, bytes));
  }
}

/* --------------------------------------------------------------- pipelines */

#define FORWARD_US 300
#define BACKWARD_US 700

/* Builder of the program of one pipeline stage: one kernel per cell of the schedule, and transfers
 * between the cells. */
struct stage {
  weft_builder *b;
  uint32_t rank, n_ranks, exchange;
};

static void
transfer (struct stage *s, enum weft_op_kind kind, int peer, const struct weft_cell *cell,
          gboolean grouped)
{
  uint32_t kernel = weft_build_last (s->b, WEFT_LANE_GPU);
  struct weft_op row = made_row (s->b, kind, "transfer");
  struct weft_shape shape = made_bytes (4);

  row.group = WEFT_GROUP_PP;
  row.lane = WEFT_LANE_PP;
  row.peer = peer;
  row.micro = cell->micro;
  row.phase = cell->phase;
  row.flags = grouped ? WEFT_OP_GROUPED : 0;
  s->exchange = weft_build_op (s->b, &row, &shape);
  if (kernel != WEFT_NO_OP)
    weft_build_dep (s->b, kernel);
}

/* Sends the result of cell `done` to the neighbour stage that needs the result, and receives the
 * input of cell `next`. A send and a receive with the same neighbour are one launch group. */
static void
exchange (struct stage *s, const struct weft_cell *done, const struct weft_cell *next)
{
  int to = !done ? 0 : done->phase == WEFT_PHASE_FORWARD ? 1 : -1;
  int from = !next ? 0 : next->phase == WEFT_PHASE_FORWARD ? -1 : 1;
  gboolean sends = to && s->rank + to < s->n_ranks;

  if (sends)
    transfer (s, WEFT_OP_SEND, to, done, FALSE);
  if (from && s->rank + from < s->n_ranks)
    transfer (s, WEFT_OP_RECV, from, next, sends && to == from);
}

static void
play (weft_builder *b, const weft_grid *grid, uint32_t rank)
{
  struct stage s = { b, rank, grid->n_ranks, WEFT_NO_OP };
  const struct weft_cell *cell = grid->cell[rank];

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    exchange (&s, i ? &cell[i - 1] : NULL, &cell[i]);
    made_kernel (b, cell[i].phase == WEFT_PHASE_FORWARD ? FORWARD_US : BACKWARD_US);
    if (s.exchange != WEFT_NO_OP)
      weft_build_dep (b, s.exchange);
  }
  exchange (&s, &cell[grid->n_cell[rank] - 1], NULL);
}

static weft_plan *
pipeline_plan (enum weft_schedule schedule, uint32_t p, uint32_t m)
{
  struct weft_cluster cluster = made_cluster (1, p);
  const struct weft_grid_spec spec = { .schedule = schedule, .n_ranks = p, .n_micro = m };
  g_autoptr (weft_grid) grid = weft_grid_new (&spec, NULL);
  g_autoptr (GPtrArray) builders =
      g_ptr_array_new_with_free_func ((GDestroyNotify) weft_builder_free);

  cluster.f.node_intra_bandwidth = 1e18;
  struct weft_job job = made_job (&cluster);
  for (uint32_t rank = 0; rank < p; rank++) {
    g_ptr_array_add (builders, weft_builder_new (rank, p));
    play (builders->pdata[rank], grid, rank);
  }
  return made_plan (&job, weft_mesh_make (1, 1, 1, p), (weft_builder *const *) builders->pdata);
}

/* Returns the seconds in which kernels of a rank run. */
static double
busy (const weft_plan *plan, const weft_timeline *t, uint32_t row)
{
  const weft_program *p = plan->role[t->role[row]];
  double sum = 0;

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_GPU]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    sum += t->end[row][op] - t->begin[row][op];
  }
  return sum;
}

static void
check_pipeline (enum weft_schedule schedule, uint32_t p, uint32_t m)
{
  const double slot = (FORWARD_US + BACKWARD_US) * MADE_US;
  g_autoptr (weft_plan) plan = pipeline_plan (schedule, p, m);
  const struct weft_exec_ops *const machines[] = { &weft_exec_sim, &weft_exec_clock };

  for (size_t i = 0; i < G_N_ELEMENTS (machines); i++) {
    g_autoptr (weft_timeline) t = made_run_with (machines[i], plan, "");
    assert_near (t->seconds, (m + p - 1) * slot);
    for (uint32_t row = 0; row < t->n; row++) {
      assert_near (busy (plan, t, row), m * slot);
      double bubble = (t->seconds - busy (plan, t, row)) / busy (plan, t, row);
      assert_true (fabs (bubble - (p - 1.0) / m) < 1e-9);
    }
  }
}

static void
a_pipeline_of_equal_stages_idles_p_minus_one_slots (void **state)
{
  static const uint32_t stages[] = { 1, 2, 3, 4, 5, 8, 16 };
  static const uint32_t micros[] = { 1, 2, 3, 4, 7, 8, 16, 33 };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (stages); i++)
    for (size_t j = 0; j < G_N_ELEMENTS (micros); j++) {
      check_pipeline (WEFT_SCHEDULE_1F1B, stages[i], micros[j]);
      check_pipeline (WEFT_SCHEDULE_GPIPE, stages[i], micros[j]);
    }
}

/* In 1F1B, the first backward pass of stage r starts as early as possible: when the forward pass
 * has reached the last stage and the gradient has returned to stage r. */
static void
the_first_backward_comes_when_the_gradient_arrives (void **state)
{
  const uint32_t p = 4, m = 8;
  g_autoptr (weft_plan) plan = pipeline_plan (WEFT_SCHEDULE_1F1B, p, m);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "");

  (void) state;
  for (uint32_t row = 0; row < t->n; row++) {
    uint32_t r = t->role[row], warm = p - 1 - r;
    uint32_t first_backward = plan->role[r]->lane_ops[WEFT_LANE_GPU][warm + 1];
    assert_near (t->begin[row][first_backward], (p * FORWARD_US + warm * BACKWARD_US) * MADE_US);
  }
}

/* ------------------------------------------------------------- activations */

/* Returns the largest number of buffers with this name (one per microbatch) in a layer that are
 * alive at once. */
static uint32_t
in_flight (const weft_program *p, const char *name, uint32_t layer)
{
  uint32_t most = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    uint32_t alive = 0;
    for (uint32_t i = 0; i < p->n_buf; i++)
      alive += p->buf[i].layer == layer && p->buf[i].base == WEFT_NO_BUF &&
               strcmp (p->name[p->buf[i].name], name) == 0 && p->buf[i].first <= op &&
               op <= p->buf[i].last;
    most = MAX (most, alive);
  }
  return most;
}

static void
check_in_flight (const char *schedule, uint32_t p, uint32_t m)
{
  g_autofree char *stages = g_strdup_printf ("%u", p), *batch = g_strdup_printf ("%u", m);
  const char *flags[] = {
    "--model", "gpt2-nano", "--num-layers", stages, "--topology", "dgx-h100", "--gpus", stages,
    "--pipeline-model-parallel-size", stages, "--global-batch-size", batch,
    "--pipeline-schedule", schedule, NULL
  };
  struct weft_job job;

  made_real_job (&job, flags);
  g_autoptr (weft_plan) plan = made_real_plan (&job);
  for (uint32_t r = 0; r < p; r++) {
    uint32_t wanted = strcmp (schedule, "gpipe") == 0 ? m : MIN (m, p - r);
    assert_int_equal (in_flight (plan->role[r], "qkv", r), wanted);
  }
}

static void
stage_r_of_1f1b_keeps_p_minus_r_microbatches_alive (void **state)
{
  static const uint32_t sizes[][2] = { { 1, 3 }, { 2, 1 }, { 2, 5 }, { 4, 2 },
                                       { 4, 4 }, { 4, 8 }, { 8, 9 } };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (sizes); i++)
    check_in_flight ("1f1b", sizes[i][0], sizes[i][1]);
}

static void
gpipe_keeps_all_microbatches_alive (void **state)
{
  static const uint32_t sizes[][2] = { { 2, 1 }, { 2, 5 }, { 4, 3 }, { 4, 8 }, { 8, 9 } };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (sizes); i++)
    check_in_flight ("gpipe", sizes[i][0], sizes[i][1]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_ring_on_one_node_takes_its_formula),
  cmocka_unit_test (rings_over_nodes_take_their_formula),
  cmocka_unit_test (fluid_flows_end_with_the_last_step),
  cmocka_unit_test (the_clock_knows_the_same_formulas),
  cmocka_unit_test (a_pipeline_of_equal_stages_idles_p_minus_one_slots),
  cmocka_unit_test (the_first_backward_comes_when_the_gradient_arrives),
  cmocka_unit_test (stage_r_of_1f1b_keeps_p_minus_r_microbatches_alive),
  cmocka_unit_test (gpipe_keeps_all_microbatches_alive),
};

WEFT_TESTS (tests)
