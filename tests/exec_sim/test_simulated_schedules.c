/* Every schedule in the simulator: programs made by hand, with kernels for cells, transfers between
 * them, and buffers for activations. Times must be those of the grid's replay (whose bubbles
 * test_schedules.c compares with closed formulas), and planned bytes those of the activations that
 * the grid keeps. */
#include "core/schedule/grid.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"
#include <stdlib.h>

/* Durations of a forward pass and of the two halves of a backward pass, in whole microseconds. */
struct lengths {
  uint32_t forward, input, weight;
};

static uint32_t
length_of (const struct weft_cell *cell, struct lengths t)
{
  return cell->phase == WEFT_PHASE_FORWARD      ? t.forward
         : cell->phase == WEFT_PHASE_INPUT_GRAD ? t.input
         : cell->phase == WEFT_PHASE_WEIGHT_GRAD ? t.weight
                                                 : t.input + t.weight;
}

/* An event of the schedule: the start or the end of a cell. At the end, the result of the cell is
 * sent. Events are ordered by time. */
struct event {
  double at;
  /* TRUE: start of the cell, FALSE: end. Of events at the same time, ends come first. */
  gboolean starts;
  uint32_t rank, index;
};

static int
compare_events (const void *a, const void *b)
{
  const struct event *x = a, *y = b;

  if (x->at != y->at)
    return x->at < y->at ? -1 : 1;
  if (x->starts != y->starts)
    return x->starts - y->starts;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  return (x->index > y->index) - (x->index < y->index);
}

static GArray *
events_of (const weft_grid *grid, struct lengths t, double *makespan)
{
  const struct weft_cell_times times = { t.forward, t.input, t.weight, 0 };
  GArray *events = g_array_new (FALSE, FALSE, sizeof (struct event));
  g_autofree double **start = g_new (double *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    start[rank] = g_new (double, grid->n_cell[rank]);
  *makespan = weft_grid_replay (grid, times, start);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
      struct event begin = { start[rank][i], TRUE, rank, i }, end = begin;
      end.at += length_of (&grid->cell[rank][i], t);
      end.starts = FALSE;
      g_array_append_val (events, begin);
      g_array_append_val (events, end);
    }
    g_free (start[rank]);
  }
  g_array_sort (events, compare_events);
  return events;
}

/* ------------------------------------------------------------------ programs */

enum { HALF_BYTES = 1 << 20 };

/* Builds the programs of all ranks at once. Arrays are indexed by key(): the op that receives a
 * cell's input, the op that receives its gradient, and the two buffers of activations that its
 * forward pass writes. */
struct maker {
  const weft_grid *grid;
  struct lengths t;
  weft_builder **b;
  uint32_t *input, *gradient, *half[2];
};

static uint32_t
key (const struct maker *m, uint32_t rank, uint32_t chunk, uint32_t micro)
{
  return (rank * m->grid->n_chunks + chunk) * m->grid->n_micro + micro;
}

static void
transfer (struct maker *m, uint32_t rank, const struct weft_cell *cell)
{
  gboolean forward = cell->phase == WEFT_PHASE_FORWARD;
  uint32_t to = rank, chunk = cell->chunk;

  if (cell->phase == WEFT_PHASE_WEIGHT_GRAD ||
      !(forward ? weft_grid_next : weft_grid_prev) (m->grid, &to, &chunk) || to == rank)
    return;
  /* A chunk may continue at the other end of the pipeline: then the first rank is the next rank of
   * the last one, and the last rank is the previous rank of the first one. */
  int peer = to == rank + 1 ? 1 : to + 1 == rank ? -1 : to == 0 ? 1 : -1;
  uint32_t kernel = weft_build_last (m->b[rank], WEFT_LANE_GPU);
  made_transfer (m->b[rank], WEFT_OP_SEND, peer, 4);
  weft_build_dep (m->b[rank], kernel);
  (forward ? m->input : m->gradient)[key (m, to, chunk, cell->micro)] =
    made_transfer (m->b[to], WEFT_OP_RECV, -peer, 4);
}

static void
make_cell (struct maker *m, uint32_t rank, const struct weft_cell *cell)
{
  weft_builder *b = m->b[rank];
  uint32_t k = key (m, rank, cell->chunk, cell->micro);
  const struct weft_buf half = { .bytes = HALF_BYTES,
                                 .base = WEFT_NO_BUF,
                                 .name = weft_build_name (b, "half"),
                                 .layer = WEFT_NO_LAYER,
                                 .micro = cell->micro,
                                 .kind = WEFT_BUF_ACTIVATIONS };
  gboolean forward = cell->phase == WEFT_PHASE_FORWARD;

  for (int i = 0; i < 2 && forward; i++)
    m->half[i][k] = weft_build_buf (b, &half);
  made_kernel (b, length_of (cell, m->t));
  if (forward || cell->phase != WEFT_PHASE_WEIGHT_GRAD)
    weft_build_use (b, m->half[0][k], !forward, forward);
  if (forward || cell->phase != WEFT_PHASE_INPUT_GRAD)
    weft_build_use (b, m->half[1][k], !forward, forward);
  if (cell->phase != WEFT_PHASE_WEIGHT_GRAD)
    weft_build_dep (b, (forward ? m->input : m->gradient)[k]);
}

static uint32_t *
nothing (size_t n)
{
  uint32_t *ops = g_new (uint32_t, n);

  for (size_t i = 0; i < n; i++)
    ops[i] = WEFT_NO_OP;
  return ops;
}

/* Whether a stage on the last rank sends microbatches to a stage on the first rank. */
static gboolean
goes_round (const weft_grid *grid)
{
  uint32_t rank = grid->n_ranks - 1, chunk = 0;

  return weft_grid_next (grid, &rank, &chunk) && rank == 0 && grid->n_ranks > 2;
}

static weft_plan *
plan_of (const weft_grid *grid, struct lengths t, double *makespan)
{
  size_t n = (size_t) grid->n_ranks * grid->n_chunks * grid->n_micro;
  struct weft_cluster cluster = made_cluster (1, grid->n_ranks);
  g_autoptr (GArray) events = events_of (grid, t, makespan);
  g_autoptr (GPtrArray) builders =
    g_ptr_array_new_with_free_func ((GDestroyNotify) weft_builder_free);
  struct weft_mesh mesh = weft_mesh_make (1, 1, 1, grid->n_ranks);

  cluster.f.node_intra_bandwidth = 1e18;
  struct weft_job job = made_job (&cluster);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    g_ptr_array_add (builders, weft_builder_new (rank, grid->n_ranks));
  struct maker m = { grid, t, (weft_builder **) builders->pdata,
                     nothing (n), nothing (n), { nothing (n), nothing (n) } };
  for (uint32_t i = 0; i < events->len; i++) {
    const struct event *e = &g_array_index (events, struct event, i);
    (e->starts ? make_cell : transfer) (&m, e->rank, &grid->cell[e->rank][e->index]);
  }
  g_free (m.input);
  g_free (m.gradient);
  g_free (m.half[0]);
  g_free (m.half[1]);
  mesh.ring = goes_round (grid);
  return made_plan (&job, mesh, (weft_builder *const *) builders->pdata);
}

static void
check_simulated (const struct weft_grid_spec *spec, struct lengths t)
{
  const struct weft_exec_ops *const machines[] = { &weft_exec_sim, &weft_exec_clock };
  double makespan;
  g_autoptr (weft_grid) grid = weft_grid_new (spec, NULL);
  g_autoptr (weft_plan) plan = plan_of (grid, t, &makespan);

  for (size_t i = 0; i < G_N_ELEMENTS (machines); i++) {
    g_autoptr (weft_timeline) timeline = made_run_with (machines[i], plan, "");
    assert_near (timeline->seconds, makespan * MADE_US);
  }
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    assert_near (plan->memory[rank].planned[WEFT_POOL_DEVICE],
                 weft_grid_in_flight (grid, rank) * 2 * HALF_BYTES);
}

static const struct lengths lengths[] = { { 300, 300, 300 }, { 300, 350, 250 }, { 500, 200, 700 } };

static void
simulated_schedules_take_as_long_as_their_grids (void **state)
{
  (void) state;
  static const uint32_t ranks[] = { 2, 4, 8 };

  for (int schedule = 0; weft_schedule_words[schedule]; schedule++)
    for (size_t i = 0; i < G_N_ELEMENTS (ranks); i++)
      for (uint32_t m = 2 * ranks[i]; m <= 20; m += 4)
        for (size_t k = 0; k < G_N_ELEMENTS (lengths); k++) {
          const struct weft_grid_spec spec = { schedule, ranks[i], 0, m, 0, 0 };
          check_simulated (&spec, lengths[k]);
        }
}

/* Schedules of fewer than 2 p microbatches on p ranks, in which some ranks are always idle. The
 * simulated step must take as long as the grid. */
static void
simulated_schedules_of_few_microbatches_take_as_long_as_their_grids (void **state)
{
  (void) state;
  for (int schedule = 0; schedule < WEFT_N_SCHEDULE; schedule++)
    for (uint32_t p = 3; p <= 8 && weft_schedules[schedule].least_micros == 0; p++)
      for (uint32_t m = 1; m < 2 * p; m += p - 2)
        check_simulated (&(struct weft_grid_spec){ schedule, p, 0, m, 0, 0 },
                         lengths[(p + m) % G_N_ELEMENTS (lengths)]);
}

static void
simulated_chunks_take_as_long_as_their_grids (void **state)
{
  (void) state;
  for (uint32_t p = 3; p <= 6; p++)
    for (uint32_t v = 2; v <= 3; v++)
      for (uint32_t group = p; group <= p + 1; group++) {
        const struct weft_grid_spec spec = { WEFT_SCHEDULE_1F1B, p, v, 2 * group, group, 0 };
        check_simulated (&spec, lengths[(p + v) % G_N_ELEMENTS (lengths)]);
      }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (simulated_schedules_take_as_long_as_their_grids),
  cmocka_unit_test (simulated_schedules_of_few_microbatches_take_as_long_as_their_grids),
  cmocka_unit_test (simulated_chunks_take_as_long_as_their_grids),
};

WEFT_TESTS (tests)
