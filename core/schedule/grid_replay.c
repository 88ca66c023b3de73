/* Replays a grid: every rank runs its cells in order, and each cell begins as soon as its inputs
 * are ready. */
#include "core/base/error.h"
#include "core/schedule/order.h"

/* A work item of a cell (forward, input gradient or weight gradient) that other cells wait for. */
struct event {
  uint32_t part, place, micro;
};

struct replay {
  const weft_grid *grid;
  /* durations, at index place * stride; with stride 0 all places have the same durations */
  const struct weft_cell_times *times;
  uint32_t stride;
  double transfer; /* seconds that the output of a stage takes to a stage of another rank */
  double **start;  /* start time of each cell, [rank][cell]; NULL: not stored */
  double *end;     /* end time of each event; negative: the event has not ended */
  double *clock;   /* by rank: end of the last cell that has run */
  uint32_t *next;  /* by rank: index of the next cell to run */
};

static size_t
event_index (const weft_grid *grid, struct event e)
{
  return ((size_t) e.place * grid->n_micro + e.micro) * WEFT_N_CELL_WORK + e.part;
}

/* The events that must end before a cell may start: at most two. */
static uint32_t
needs (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell, struct event need[2])
{
  uint32_t n = 0, place = weft_grid_place (grid, rank, cell->chunk), micro = cell->micro, other;

  if (weft_cell_does (cell, WEFT_CELL_WORK_INPUT)) {
    need[n++] = (struct event){ WEFT_CELL_WORK_FORWARD, place, micro };
    if ((other = weft_grid_beside (grid, place, 1)) != WEFT_NO_PLACE)
      need[n++] = (struct event){ WEFT_CELL_WORK_INPUT, other, micro };
  } else if (weft_cell_does (cell, WEFT_CELL_WORK_WEIGHT)) {
    need[n++] = (struct event){ WEFT_CELL_WORK_INPUT, place, micro };
  } else if ((other = weft_grid_beside (grid, place, -1)) != WEFT_NO_PLACE) {
    need[n++] = (struct event){ WEFT_CELL_WORK_FORWARD, other, micro };
  }
  return n;
}

static double
duration (const struct replay *r, uint32_t rank, const struct weft_cell *cell)
{
  const struct weft_cell_times *times =
      &r->times[weft_grid_place (r->grid, rank, cell->chunk) * r->stride];

  return (weft_cell_does (cell, WEFT_CELL_WORK_FORWARD) ? times->forward : 0) +
         (weft_cell_does (cell, WEFT_CELL_WORK_INPUT) ? times->input : 0) +
         (weft_cell_does (cell, WEFT_CELL_WORK_WEIGHT) ? times->weight : 0);
}

/* Time at which all inputs of a cell are ready, but not earlier than `start`. Negative if an input
 * has not ended. */
static double
ready (const struct replay *r, uint32_t rank, const struct weft_cell *cell, double start)
{
  struct event need[2];

  for (uint32_t n = needs (r->grid, rank, cell, need); n-- > 0;) {
    double end = r->end[event_index (r->grid, need[n])];
    if (end < 0)
      return end;
    start = MAX (start, end + (need[n].place / r->grid->n_chunks == rank ? 0 : r->transfer));
  }
  return start;
}

/* Number of cells that start together: 2 for a pair, else 1. */
static uint32_t
n_together (const struct replay *r, uint32_t rank)
{
  return r->grid->cell[rank][r->next[rank]].paired && r->times->pair > 0 ? 2 : 1;
}

static void
end_cell (struct replay *r, uint32_t rank, uint32_t i, double start)
{
  const struct weft_cell *cell = &r->grid->cell[rank][i];
  uint32_t place = weft_grid_place (r->grid, rank, cell->chunk);

  if (r->start)
    r->start[rank][i] = start;
  for (uint32_t part = 0; part < WEFT_N_CELL_WORK; part++)
    if (weft_cell_does (cell, part))
      r->end[event_index (r->grid, (struct event){ part, place, cell->micro })] = r->clock[rank];
}

/* Runs the next cell, or the next pair of cells, of a rank. Returns the number of cells that ran; 0
 * if the rank must wait. */
static uint32_t
run_next (struct replay *r, uint32_t rank)
{
  const struct weft_cell *cell = &r->grid->cell[rank][r->next[rank]];
  uint32_t n = n_together (r, rank);
  double start = r->clock[rank];

  for (uint32_t i = 0; i < n && start >= 0; i++)
    start = ready (r, rank, &cell[i], start);
  if (start < 0)
    return 0;
  r->clock[rank] = start + (n > 1 ? r->times->pair : duration (r, rank, cell));
  for (uint32_t i = 0; i < n; i++)
    end_cell (r, rank, r->next[rank] + i, start);
  return n;
}

/* Runs the cells of a rank until it must wait; returns whether any cell ran. */
static gboolean
run_rank (struct replay *r, uint32_t rank)
{
  uint32_t from = r->next[rank];

  for (uint32_t n = 1; n && r->next[rank] < r->grid->n_cell[rank]; r->next[rank] += n)
    n = run_next (r, rank);
  return r->next[rank] > from;
}

/* Queue of ranks that may be able to advance. waits[rank]: whether the rank is in the queue. */
struct queue {
  uint32_t *rank, n_ranks, head, n;
  gboolean *waits;
};

static void
enqueue (struct queue *q, uint32_t rank)
{
  if (q->waits[rank])
    return;
  q->rank[(q->head + q->n++) % q->n_ranks] = rank;
  q->waits[rank] = TRUE;
}

static uint32_t
dequeue (struct queue *q)
{
  uint32_t rank = q->rank[q->head];

  q->head = (q->head + 1) % q->n_ranks;
  q->n--;
  q->waits[rank] = FALSE;
  return rank;
}

/* A cell depends only on neighbouring stages, so after a rank has advanced, only ranks with a
 * neighbouring stage may be able to advance. */
static void
enqueue_neighbours (struct queue *q, const weft_grid *grid, uint32_t rank)
{
  for (uint32_t chunk = 0; chunk < grid->n_chunks; chunk++)
    for (int by = -1; by <= 1; by += 2) {
      uint32_t place = weft_grid_beside (grid, weft_grid_place (grid, rank, chunk), by);
      if (place != WEFT_NO_PLACE && place / grid->n_chunks != rank)
        enqueue (q, place / grid->n_chunks);
    }
}

static void
run (struct replay *r)
{
  uint32_t n = r->grid->n_ranks;
  g_autofree uint32_t *rank = g_new (uint32_t, n);
  g_autofree gboolean *waits = g_new0 (gboolean, n);
  struct queue q = { .rank = rank, .n_ranks = n, .waits = waits };

  for (uint32_t i = 0; i < n; i++)
    enqueue (&q, i);
  while (q.n) {
    uint32_t next = dequeue (&q);
    if (run_rank (r, next))
      enqueue_neighbours (&q, r->grid, next);
  }
}

static void
replay_init (struct replay *r, const weft_grid *grid)
{
  size_t n_events = (size_t) WEFT_N_CELL_WORK * weft_grid_places (grid) * grid->n_micro;

  r->grid = grid;
  r->end = g_new (double, n_events);
  for (size_t i = 0; i < n_events; i++)
    r->end[i] = -1;
  r->clock = g_new0 (double, grid->n_ranks);
  r->next = g_new0 (uint32_t, grid->n_ranks);
}

static void
replay_clear (struct replay *r)
{
  g_free (r->end);
  g_free (r->clock);
  g_free (r->next);
}

/* Runs all cells, and sets end[] to the end of the last cell of each rank, unless it is NULL.
 * Returns the makespan. */
static double
makespan (struct replay *r, const weft_grid *grid, double *end)
{
  double last = 0;

  replay_init (r, grid);
  run (r);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    last = MAX (last, r->clock[rank]);
    if (end)
      end[rank] = r->clock[rank];
  }
  replay_clear (r);
  return last;
}

double
weft_grid_replay (const weft_grid *grid, struct weft_cell_times times, double **start)
{
  struct replay r = { .times = &times, .start = start };

  return makespan (&r, grid, NULL);
}

double
weft_grid_replay_uneven (const weft_grid *grid, const struct weft_cell_times *times,
                         double transfer, double *end)
{
  struct replay r = { .times = times, .stride = 1, .transfer = transfer };

  return makespan (&r, grid, end);
}

/* The functions below check that a grid contains every work item of every microbatch once. The
 * replay then finds deadlocks. */

static gboolean
check_cell (const weft_grid *grid, uint32_t rank, uint32_t i, GError **error)
{
  const struct weft_cell *cell = &grid->cell[rank][i];

  if (cell->phase >= WEFT_N_PHASE || !weft_cell_kinds[cell->phase].works)
    return weft_bad_input (error, "cell %u of rank %u is neither F, B, I nor W", i, rank);
  if (cell->chunk >= grid->n_chunks)
    return weft_bad_input (error, "cell %u of rank %u is of chunk %u, wanted %u chunks, from 0", i,
                           rank, cell->chunk, grid->n_chunks);
  if (cell->micro < grid->n_micro &&
      grid->copy_of[cell->micro] == weft_grid_copy (grid, rank, cell->chunk))
    return TRUE;
  g_autofree char *text = weft_cell_print (grid, rank, cell);
  if (cell->micro < grid->n_micro)
    return weft_bad_input (error,
                           "rank %u runs %s, but microbatch %u belongs to the other copy of the "
                           "model",
                           rank, text, cell->micro);
  return weft_bad_input (error, "rank %u runs %s, wanted %u stages and %u microbatches, from 0",
                         rank, text, grid->n_stages, grid->n_micro);
}

static gboolean
count_parts (const weft_grid *grid, uint32_t rank, uint8_t *paid, GError **error)
{
  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct weft_cell *cell = &grid->cell[rank][i];
    if (!check_cell (grid, rank, i, error))
      return FALSE;
    for (uint32_t part = 0; part < WEFT_N_CELL_WORK; part++) {
      struct event e = { part, weft_grid_place (grid, rank, cell->chunk), cell->micro };
      if (!weft_cell_does (cell, part) || !paid[event_index (grid, e)]++)
        continue;
      g_autofree char *text = weft_cell_print (grid, rank, cell);
      return weft_bad_input (error, "rank %u does %s twice, wanted once", rank, text);
    }
  }
  return TRUE;
}

static gboolean
check_paid (const weft_grid *grid, struct event e, const uint8_t *paid, GError **error)
{
  const uint8_t *has = &paid[event_index (grid, e)];
  enum weft_phase lost = WEFT_PHASE_FORWARD;

  if (has[WEFT_CELL_WORK_FORWARD] && has[WEFT_CELL_WORK_INPUT] && has[WEFT_CELL_WORK_WEIGHT])
    return TRUE;
  if (has[WEFT_CELL_WORK_FORWARD])
    lost = has[WEFT_CELL_WORK_INPUT]    ? WEFT_PHASE_WEIGHT_GRAD
           : has[WEFT_CELL_WORK_WEIGHT] ? WEFT_PHASE_INPUT_GRAD
                                        : WEFT_PHASE_BACKWARD;
  return weft_bad_input (error, "%u%s%u is missing, wanted once on rank %u", grid->stage[e.place],
                         weft_phase_words[lost], e.micro, e.place / grid->n_chunks);
}

static gboolean
check_once (const weft_grid *grid, GError **error)
{
  size_t n_events = (size_t) WEFT_N_CELL_WORK * weft_grid_places (grid) * grid->n_micro;
  g_autofree uint8_t *paid = g_new0 (uint8_t, n_events);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    if (!count_parts (grid, rank, paid, error))
      return FALSE;
  for (uint32_t row = 0; row < weft_grid_places (grid); row++)
    for (uint32_t micro = 0; micro < grid->n_micro; micro++) {
      struct event e = { WEFT_CELL_WORK_FORWARD, grid->place[row], micro };
      if (grid->copy_of[micro] == grid->copy[e.place] && !check_paid (grid, e, paid, error))
        return FALSE;
    }
  return TRUE;
}

/* The event that a blocked rank waits for. */
static struct event
waits_for (const struct replay *r, uint32_t rank)
{
  struct event need[2] = { 0 };
  uint32_t n = needs (r->grid, rank, &r->grid->cell[rank][r->next[rank]], need);

  while (n > 1 && r->end[event_index (r->grid, need[0])] >= 0)
    need[0] = need[--n];
  return need[0];
}

static const struct weft_cell *
event_cell (const weft_grid *grid, struct event e)
{
  uint32_t rank = e.place / grid->n_chunks, chunk = e.place % grid->n_chunks;
  const struct weft_cell *cell = grid->cell[rank];

  while (cell->micro != e.micro || cell->chunk != chunk || !weft_cell_does (cell, e.part))
    cell++;
  return cell;
}

/* Sets the error for a deadlock. Follows the waits of blocked ranks until they form a cycle, and
 * names one wait of the cycle. The inputs of cells alone cannot form a cycle, so some rank in the
 * cycle must run another cell before the cell that is needed. */
static gboolean
blame (const struct replay *r, uint32_t rank, GError **error)
{
  const weft_grid *grid = r->grid;
  const struct weft_cell *wanted = NULL, *before = NULL;
  uint32_t owner = rank;

  for (uint32_t hop = 0; hop < grid->n_ranks || wanted == before; hop++) {
    rank = owner;
    struct event e = waits_for (r, rank);
    owner = e.place / grid->n_chunks;
    wanted = event_cell (grid, e);
    before = &grid->cell[owner][r->next[owner]];
  }
  g_autofree char *waiter = weft_cell_print (grid, rank, &grid->cell[rank][r->next[rank]]);
  g_autofree char *text = weft_cell_print (grid, owner, wanted);
  g_autofree char *blocker = weft_cell_print (grid, owner, before);
  return weft_bad_input (error, "%s never starts: it waits for %s, which rank %u runs after %s",
                         waiter, text, owner, blocker);
}

/* Checks that a cell and its partner can run together, if the cell is paired. */
static gboolean
check_pair (const weft_grid *grid, uint32_t rank, uint32_t i, GError **error)
{
  const struct weft_cell *cell = &grid->cell[rank][i];

  if (!cell->paired)
    return TRUE;
  if (weft_cell_does (cell, WEFT_CELL_WORK_FORWARD) && i + 1 < grid->n_cell[rank] &&
      weft_cell_does (&cell[1], WEFT_CELL_WORK_INPUT) && !cell[1].paired)
    return TRUE;
  g_autofree char *text = weft_cell_print (grid, rank, cell);
  return weft_bad_input (error, "%s is in a pair on rank %u, wanted a forward and a backward", text,
                         rank);
}

static gboolean
check_pairs (const weft_grid *grid, GError **error)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
      if (!check_pair (grid, rank, i, error))
        return FALSE;
  return TRUE;
}

static gboolean
blame_pair (const struct replay *r, GError **error)
{
  uint32_t rank = 0;

  while (r->next[rank] == r->grid->n_cell[rank] || n_together (r, rank) == 1)
    rank++;
  const struct weft_cell *cell = &r->grid->cell[rank][r->next[rank]];
  g_autofree char *first = weft_cell_print (r->grid, rank, cell);
  g_autofree char *second = weft_cell_print (r->grid, rank, &cell[1]);
  return weft_bad_input (error,
                         "%s and %s of rank %u never start together: one waits for the other",
                         first, second, rank);
}

/* Replays the grid and reports a deadlock. If `pair` is 0, the cells of a pair run one after the
 * other, and the error names a cell. If `pair` is above 0, they start together, and the error names
 * a pair. */
static gboolean
check_waits (const weft_grid *grid, double pair, GError **error)
{
  const struct weft_cell_times times = { 1, 1, 1, pair };
  struct replay r = { .times = &times };
  gboolean good = TRUE;

  replay_init (&r, grid);
  run (&r);
  for (uint32_t rank = 0; rank < grid->n_ranks && good; rank++)
    if (r.next[rank] < grid->n_cell[rank])
      good = pair > 0 ? blame_pair (&r, error) : blame (&r, rank, error);
  replay_clear (&r);
  return good;
}

gboolean
weft_grid_check (const weft_grid *grid, GError **error)
{
  return check_once (grid, error) && check_pairs (grid, error) && check_waits (grid, 0, error) &&
         check_waits (grid, 1, error);
}
