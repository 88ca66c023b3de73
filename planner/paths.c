#include "planner/paths.h"
#include "core/job/pipeline.h"
#include "planner/alike.h"
#include <math.h>
#include <string.h>

/* The lanes on which cells depend on each other. Ops of other lanes belong to one cell. */
static const enum weft_lane lanes[] = { WEFT_LANE_GPU, WEFT_LANE_DP, WEFT_LANE_DP_OUTER,
                                        WEFT_LANE_H2D, WEFT_LANE_D2H };
enum { GPU, N_LANES = G_N_ELEMENTS (lanes) };

/* The moments at which a cell begins, and at which it ends: a lane is free, or the input has
 * arrived; the output can be sent. */
enum { INPUT = N_LANES, N_FROM, OUTPUT = N_LANES, N_TO };

/* Kinds of cells. The first forward pass of a chunk, which may gather weights for the whole step,
 * is a kind of its own. */
enum kind { FIRST, FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD, N_KIND };

struct path {
  gboolean known;
  double way[N_FROM][N_TO]; /* seconds; -INFINITY: there is no path */
  double transfer;          /* seconds in which the output is sent */
  gboolean late;            /* the input is received only after all earlier kernels */
};

struct weft_paths {
  uint32_t n_ranks, n_chunks;
  struct path path[]; /* [rank][chunk][kind] */
};

static size_t
bytes_for (uint32_t n_ranks, uint32_t n_chunks)
{
  return sizeof (struct weft_paths) + (size_t) n_ranks * n_chunks * N_KIND * sizeof (struct path);
}

size_t
weft_paths_bytes (const struct weft_paths *paths)
{
  return bytes_for (paths->n_ranks, paths->n_chunks);
}

size_t
weft_paths_most_bytes (const struct weft_job *job)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (job);

  return bytes_for (spec.n_ranks, weft_job_chunks (job));
}

/* The index of a path in `path`. */
static size_t
place_of (const struct weft_paths *paths, uint32_t rank, uint32_t chunk, enum kind kind)
{
  return ((size_t) rank * paths->n_chunks + chunk) * N_KIND + kind;
}

/* ------------------------------------------------------------------- kinds of cells */

/* Of each chunk of a rank: the number of its microbatches, and of their forward passes, input
 * gradients and weight gradients so far. */
struct count {
  uint32_t n, forward, input, weight;
};

static struct count *
count_chunks (const weft_grid *grid, uint32_t rank)
{
  struct count *count = g_new0 (struct count, grid->n_chunks);

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
    count[grid->cell[rank][i].chunk].n += grid->cell[rank][i].phase == WEFT_PHASE_FORWARD;
  return count;
}

/* Counts a cell of a chunk and returns its kind. */
static enum kind
count_cell (struct count *chunk, const struct weft_cell *cell)
{
  switch (cell->phase) {
  case WEFT_PHASE_FORWARD:
    return chunk->forward++ ? FORWARD : FIRST;
  case WEFT_PHASE_INPUT_GRAD:
    chunk->input++;
    return INPUT_GRAD;
  case WEFT_PHASE_WEIGHT_GRAD:
    chunk->weight++;
    return WEIGHT_GRAD;
  default:
    chunk->input++;
    chunk->weight++;
    return BACKWARD;
  }
}

/* Whether the cell that was counted last is the last backward pass of a chunk. Its collectives
 * also reduce what earlier microbatches have added. */
static gboolean
is_last (const struct count *chunk, enum kind kind)
{
  return kind >= BACKWARD && (kind == WEIGHT_GRAD ? chunk->weight : chunk->input) == chunk->n;
}

/* ---------------------------------------------------------------------------- cuts */

/* A rank that is measured. */
struct rank {
  const weft_plan *plan;
  const weft_program *p;
  const weft_grid *grid;
  const double *seconds;
  uint32_t number;       /* the rank whose cells the program runs */
  uint32_t *start;       /* the ops of cell i are [start[i], start[i + 1]) */
  uint32_t *recv, *send; /* [micro][chunk][backward]: transfers of input and output; WEFT_NO_OP */
};

static gboolean
is_transfer (const struct weft_op *op)
{
  return op->lane == WEFT_LANE_PP || op->lane == WEFT_LANE_PP_BACK;
}

/* Whether an op is of a kernel or collective of a cell. */
static gboolean
is_of (const struct weft_op *op, const struct weft_cell *cell)
{
  gboolean again = op->phase == WEFT_PHASE_RECOMPUTE &&
                   (cell->phase == WEFT_PHASE_BACKWARD || cell->phase == WEFT_PHASE_INPUT_GRAD);

  return op->micro == cell->micro && op->chunk == cell->chunk && !is_transfer (op) &&
         !weft_lane_traits[op->lane].copies && (op->phase == cell->phase || again);
}

/* The place of a pass in an array [micro][chunk][phase]. */
static size_t
pass_at (const struct rank *r, uint32_t micro, uint32_t chunk, enum weft_phase phase)
{
  return ((size_t) micro * r->grid->n_chunks + chunk) * WEFT_N_PHASE + phase;
}

/* Marks the passes that have ops. A stage that only embeds tokens computes no input gradients. */
static gboolean *
find_passes (const struct rank *r)
{
  size_t n = (size_t) r->grid->n_micro * r->grid->n_chunks * WEFT_N_PHASE;
  gboolean *has = g_new0 (gboolean, n);

  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    if (row->micro < r->grid->n_micro && row->chunk < r->grid->n_chunks && !is_transfer (row) &&
        !weft_lane_traits[row->lane].copies)
      has[pass_at (r, row->micro, row->chunk, row->phase)] = TRUE;
  }
  return has;
}

/* Sets start[]. The last cell ends with the last kernel of a microbatch. FALSE: the ops of a cell
 * were not found. */
static gboolean
cut (struct rank *r)
{
  const struct weft_cell *cell = r->grid->cell[r->number];
  g_autofree gboolean *has = find_passes (r);
  uint32_t n = r->grid->n_cell[r->number], next = 0;

  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    while (next < n && !has[pass_at (r, cell[next].micro, cell[next].chunk, cell[next].phase)])
      r->start[next++] = op;
    if (next < n && is_of (row, &cell[next]))
      r->start[next++] = op;
    if (row->lane == WEFT_LANE_GPU && row->micro != WEFT_NO_MICRO)
      r->start[n] = op + 1;
  }
  return next == n;
}

static uint32_t *
transfer_at (const struct rank *r, uint32_t *of, uint32_t micro, uint32_t chunk, gboolean backward)
{
  return &of[(micro * r->grid->n_chunks + chunk) * 2 + backward];
}

static void
find_transfers (struct rank *r)
{
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    if (is_transfer (row) && row->micro < r->grid->n_micro && row->chunk < r->grid->n_chunks)
      *transfer_at (r, row->kind == WEFT_OP_SEND ? r->send : r->recv, row->micro, row->chunk,
                    row->phase != WEFT_PHASE_FORWARD) = op;
  }
}

/* The op that receives the input (sends the output) of a cell, or WEFT_NO_OP. */
static uint32_t
transfer_of (const struct rank *r, uint32_t *of, const struct weft_cell *cell)
{
  return cell->phase == WEFT_PHASE_WEIGHT_GRAD
             ? WEFT_NO_OP
             : *transfer_at (r, of, cell->micro, cell->chunk, cell->phase != WEFT_PHASE_FORWARD);
}

/* --------------------------------------------------------------------------- paths */

static void
keep_later (double *to, const double *by)
{
  for (int i = 0; i < N_FROM; i++)
    to[i] = fmax (to[i], by[i]);
}

/* Whether an op that waits for `dep` also waits for the receive `recv`. */
static gboolean
waits_for (const weft_program *p, uint32_t dep, uint32_t recv)
{
  return recv != WEFT_NO_OP && p->op[dep].lane == p->op[recv].lane && p->pos[recv] <= p->pos[dep];
}

/* The state of a walk through the ops of a cell: from each moment at which the cell begins, the
 * seconds until a lane is free (free[lane]) and until an op ends (end[op - from]). */
struct walk {
  uint32_t from, to, recv;
  double (*end)[N_FROM], free[WEFT_N_LANE][N_FROM];
};

static void
walk_op (const struct rank *r, struct walk *w, uint32_t op)
{
  const weft_program *p = r->p;
  double *end = w->end[op - w->from], *lane = w->free[p->op[op].lane];

  memcpy (end, lane, sizeof w->free[0]);
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    uint32_t dep = p->deps[d];
    if (is_transfer (&p->op[dep]) && waits_for (p, dep, w->recv))
      end[INPUT] = fmax (end[INPUT], 0);
    else if (dep >= w->from && !is_transfer (&p->op[dep]))
      keep_later (end, w->end[dep - w->from]);
  }
  for (int i = 0; i < N_FROM; i++)
    lane[i] = end[i] += weft_least_seconds (p, r->seconds, op);
}

static void
forget (double *seconds, size_t n)
{
  for (size_t i = 0; i < n; i++)
    seconds[i] = -INFINITY;
}

static struct walk
walk_cell (const struct rank *r, uint32_t i)
{
  const struct weft_cell *cell = &r->grid->cell[r->number][i];
  struct walk w = { r->start[i], r->start[i + 1], transfer_of (r, r->recv, cell) };

  w.end = g_malloc_n (w.to - w.from, sizeof *w.end);
  forget (*w.end, (size_t) (w.to - w.from) * N_FROM);
  forget (*w.free, WEFT_N_LANE * N_FROM);
  for (int lane = 0; lane < N_LANES; lane++)
    w.free[lanes[lane]][lane] = 0;
  for (uint32_t op = w.from; op < w.to; op++)
    if (!is_transfer (&r->p->op[op]) && r->p->op[op].micro == cell->micro)
      walk_op (r, &w, op);
  return w;
}

/* Whether the input of cell i is received only after all kernels of earlier cells. With several
 * chunks, this differs between the warm-up and the other passes of a schedule. */
static gboolean
is_late (const struct rank *r, uint32_t i, uint32_t recv)
{
  const weft_program *p = r->p;
  uint32_t last = r->start[i];

  while (last > 0 && p->op[last - 1].lane != WEFT_LANE_GPU)
    last--;
  if (recv == WEFT_NO_OP || last == 0 || r->grid->n_chunks > 1 ||
      weft_job_schedule (&r->plan->job)->exchange == WEFT_EXCHANGE_FREE)
    return FALSE;
  for (uint32_t d = p->op[recv].deps; d < p->op[recv + 1].deps; d++)
    if (p->deps[d] == last - 1)
      return TRUE;
  return FALSE;
}

static struct path
measure_cell (const struct rank *r, uint32_t i)
{
  uint32_t send = transfer_of (r, r->send, &r->grid->cell[r->number][i]);
  struct walk w = walk_cell (r, i);
  struct path path = { .known = TRUE, .late = is_late (r, i, w.recv) };
  double out[N_FROM];

  forget (out, N_FROM);
  for (uint32_t d = send == WEFT_NO_OP ? 0 : r->p->op[send].deps;
       send != WEFT_NO_OP && d < r->p->op[send + 1].deps; d++)
    if (r->p->deps[d] >= w.from && r->p->deps[d] < w.to)
      keep_later (out, w.end[r->p->deps[d] - w.from]);
  for (int from = 0; from < N_FROM; from++) {
    for (int lane = 0; lane < N_LANES; lane++)
      path.way[from][lane] = w.free[lanes[lane]][from];
    path.way[from][OUTPUT] = out[from];
  }
  path.transfer = send == WEFT_NO_OP ? 0 : r->seconds[send];
  g_free (w.end);
  return path;
}

/* Takes over the shorter of the paths of two cells. */
static void
lower (struct path *to, const struct path *by)
{
  if (!to->known) {
    *to = *by;
    return;
  }
  for (int from = 0; from < N_FROM; from++)
    for (int at = 0; at < N_TO; at++)
      to->way[from][at] = fmin (to->way[from][at], by->way[from][at]);
  to->transfer = fmin (to->transfer, by->transfer);
  to->late = to->late && by->late;
}

/* Measures a rank, as paths of rank `to`. */
static gboolean
measure_rank (struct weft_paths *paths, struct rank *r, uint32_t to)
{
  size_t n = (size_t) r->grid->n_micro * r->grid->n_chunks * 2;
  g_autofree uint32_t *start = r->start = g_new0 (uint32_t, r->grid->n_cell[r->number] + 1);
  g_autofree uint32_t *recv = r->recv = g_new (uint32_t, n), *send = r->send = g_new (uint32_t, n);
  g_autofree struct count *count = count_chunks (r->grid, r->number);

  for (size_t i = 0; i < n; i++)
    recv[i] = send[i] = WEFT_NO_OP;
  if (!cut (r))
    return FALSE;
  find_transfers (r);
  for (uint32_t i = 0; i < r->grid->n_cell[r->number]; i++) {
    const struct weft_cell *cell = &r->grid->cell[r->number][i];
    enum kind kind = count_cell (&count[cell->chunk], cell);
    if (is_last (&count[cell->chunk], kind) && r->grid->n_micro > 1)
      continue;
    struct path path = measure_cell (r, i);
    lower (&paths->path[place_of (paths, to, cell->chunk, kind)], &path);
  }
  return TRUE;
}

/* What is measured: the plan has the programs of the first and the last rank of each class of ranks
 * that are alike. */
struct measuring {
  const weft_plan *plan;
  const weft_grid *grid;
  weft_placements *placements;
  uint32_t *first, *last; /* by rank */
};

/* The seconds of the ops of a role. Conversions of weights that the software runs once in a step
 * take none: later microbatches do without them. */
static double *
seconds_of (const weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  struct weft_cost cost = weft_plan_cost (plan);
  double *seconds = g_memdup2 (plan->seconds[role], p->n_op * sizeof *seconds);

  for (uint32_t op = 0; op < p->n_op; op++)
    if (weft_cost_converts_kept (&cost, p, op))
      seconds[op] = 0;
  return seconds;
}

static gboolean
measure_own (const struct measuring *m, struct weft_paths *paths, uint32_t rank)
{
  g_autofree double *seconds = seconds_of (m->plan, rank);
  struct rank r = { m->plan, m->plan->role[rank], m->grid, seconds, rank };

  return measure_rank (paths, &r, rank);
}

/* Measures rank `to` on the program of `from`, with the seconds of its own transfers and
 * collectives. Mostly these are the same. */
static gboolean
measure_alike (const struct measuring *m, struct weft_paths *paths, uint32_t from, uint32_t to)
{
  const weft_program *p = m->plan->role[from];
  g_autofree double *before = seconds_of (m->plan, from),
                    *seconds = g_memdup2 (before, p->n_op * sizeof *seconds);
  struct rank r = { m->plan, p, m->grid, seconds, from };

  weft_plan_price_comm (m->plan, p, to, m->placements, seconds);
  if (memcmp (seconds, before, p->n_op * sizeof *seconds) != 0)
    return measure_rank (paths, &r, to);
  for (size_t i = 0; i < paths->n_chunks * N_KIND; i++)
    if (paths->path[place_of (paths, from, 0, 0) + i].known)
      lower (&paths->path[place_of (paths, to, 0, 0) + i],
             &paths->path[place_of (paths, from, 0, 0) + i]);
  return TRUE;
}

/* Measures all ranks. Returns NULL if the ops of a cell are not contiguous. */
static struct weft_paths *
measure (const struct measuring *m)
{
  const uint32_t n = m->grid->n_ranks;
  struct weft_paths *paths = g_malloc0 (bytes_for (n, m->grid->n_chunks));
  gboolean good = m->plan->n_roles == n;

  paths->n_ranks = n;
  paths->n_chunks = m->grid->n_chunks;
  for (uint32_t rank = 0; rank < n && good; rank++)
    if (m->plan->role[rank])
      good = measure_own (m, paths, rank);
  for (uint32_t rank = 0; rank < n && good; rank++)
    if (!m->plan->role[rank])
      good = measure_alike (m, paths, m->first[rank], rank) &&
             measure_alike (m, paths, m->last[rank], rank);
  if (good)
    return paths;
  g_free (paths);
  return NULL;
}

struct weft_paths *
weft_paths_of_job (const struct weft_job *few, weft_placements *placements)
{
  g_autoptr (weft_grid) grid = weft_job_grid (few, NULL);

  if (!grid)
    return NULL;
  g_autofree uint32_t *first = g_new (uint32_t, grid->n_ranks),
                      *last = g_new (uint32_t, grid->n_ranks);
  g_autofree gboolean *wanted = g_new0 (gboolean, grid->n_ranks);
  weft_alike_ranks (few, grid, first, last);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    wanted[first[rank]] = wanted[last[rank]] = TRUE;
  g_autoptr (weft_plan) plan = weft_plan_new_some (few, wanted, placements, NULL);
  const struct measuring m = { plan, grid, placements, first, last };
  return plan ? measure (&m) : NULL;
}

/* -------------------------------------------------------------------------- replay */

/* An output of a cell: when it can be sent, and the seconds of the transfer. */
struct output {
  double ready, transfer;
};

struct replay {
  const struct weft_paths *paths;
  const weft_grid *grid;
  const struct weft_ends *ends; /* NULL: not known */
  struct output *output;        /* [rank][chunk][micro][backward]; ready < 0: not yet */
  double (*free)[N_LANES];      /* by rank: when each lane is free */
  struct count **count;         /* by rank */
  uint32_t *next;               /* by rank: the next cell */
  double *last;                 /* [rank][chunk]: when the last backward pass begins */
  gboolean unknown;             /* a cell was not measured */
};

static struct output *
output_at (const struct replay *r, uint32_t rank, uint32_t chunk, uint32_t micro, gboolean backward)
{
  size_t place = rank * r->grid->n_chunks + chunk;

  return &r->output[(place * r->grid->n_micro + micro) * 2 + backward];
}

/* Sets *input to the output of another rank for which a cell waits, or to NULL. FALSE: the cell
 * cannot run yet. */
static gboolean
find_input (const struct replay *r, uint32_t rank, const struct weft_cell *cell,
            const struct output **input)
{
  gboolean forward = cell->phase == WEFT_PHASE_FORWARD;
  uint32_t from = rank, chunk = cell->chunk;

  *input = NULL;
  if (cell->phase == WEFT_PHASE_WEIGHT_GRAD ||
      !(forward ? weft_grid_prev : weft_grid_next) (r->grid, &from, &chunk) || from == rank)
    return TRUE;
  *input = output_at (r, from, chunk, cell->micro, !forward);
  return (*input)->ready >= 0;
}

static void
run_cell (struct replay *r, uint32_t rank, const struct weft_cell *cell, const struct output *input)
{
  enum kind kind = count_cell (&r->count[rank][cell->chunk], cell);
  const struct path *path = &r->paths->path[place_of (r->paths, rank, cell->chunk, kind)];
  double begin[N_FROM], end[N_TO];

  memcpy (begin, r->free[rank], sizeof r->free[rank]);
  begin[INPUT] = -INFINITY;
  if (input)
    begin[INPUT] = fmax (input->ready, path->late ? begin[GPU] : 0) + input->transfer;
  forget (end, N_TO);
  for (int from = 0; from < N_FROM; from++)
    for (int to = 0; to < N_TO; to++)
      end[to] = MAX (end[to], begin[from] + path->way[from][to]);
  if (kind == FIRST && r->ends) {
    double gathered = weft_ends_at (r->ends, rank, cell->chunk)->gathered;
    end[GPU] = fmax (end[GPU], gathered);
    end[OUTPUT] = fmax (end[OUTPUT], gathered);
  }
  if (is_last (&r->count[rank][cell->chunk], kind) && kind != INPUT_GRAD)
    r->last[rank * r->grid->n_chunks + cell->chunk] = fmax (begin[GPU], begin[INPUT]);
  memcpy (r->free[rank], end, sizeof r->free[rank]);
  if (kind != WEIGHT_GRAD)
    *output_at (r, rank, cell->chunk, cell->micro, kind >= BACKWARD) =
        (struct output){ fmax (0, end[OUTPUT]), path->transfer };
  r->unknown = r->unknown || !path->known;
}

/* Runs the cells of a rank until one must wait. Returns whether a cell has run. */
static gboolean
run_rank (struct replay *r, uint32_t rank)
{
  uint32_t before = r->next[rank];
  const struct output *input;

  while (r->next[rank] < r->grid->n_cell[rank] &&
         find_input (r, rank, &r->grid->cell[rank][r->next[rank]], &input))
    run_cell (r, rank, &r->grid->cell[rank][r->next[rank]++], input);
  return r->next[rank] > before;
}

/* All lanes are free at the begin of the step. The kernels of the first rank begin later. */
static void
begin (struct replay *r)
{
  const weft_grid *grid = r->grid;
  size_t n = (size_t) grid->n_ranks * grid->n_chunks * grid->n_micro * 2;

  r->output = g_new (struct output, n);
  for (size_t i = 0; i < n; i++)
    r->output[i].ready = -1;
  r->free = g_malloc0_n (grid->n_ranks, sizeof *r->free);
  r->count = g_new (struct count *, grid->n_ranks);
  r->next = g_new0 (uint32_t, grid->n_ranks);
  r->last = g_new0 (double, grid->n_ranks * grid->n_chunks);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    r->count[rank] = count_chunks (grid, rank);
  r->free[0][GPU] = r->ends ? weft_ends_at (r->ends, 0, 0)->before : 0;
}

static void
end (struct replay *r)
{
  for (uint32_t rank = 0; rank < r->grid->n_ranks; rank++)
    g_free (r->count[rank]);
  g_free (r->count);
  g_free (r->output);
  g_free (r->free);
  g_free (r->next);
  g_free (r->last);
}

/* The least seconds until the gradients of a chunk, and of the chunks whose last backward passes
 * begin later, are reduced one after the other, and the rank has ended its step. */
static double
reduced_by (const struct replay *r, uint32_t rank, uint32_t chunk)
{
  const double *last = &r->last[rank * r->grid->n_chunks];
  uint32_t final = chunk;
  double seconds = last[chunk];

  for (uint32_t i = 0; i < r->grid->n_chunks; i++) {
    if (last[i] < last[chunk] || (last[i] == last[chunk] && i != chunk))
      continue;
    seconds += weft_ends_at (r->ends, rank, i)->reduced;
    final = last[i] > last[final] ? i : final;
  }
  return seconds + weft_ends_at (r->ends, rank, final)->tail;
}

/* The least seconds until a rank has ended its step. */
static double
ended_by (const struct replay *r, uint32_t rank)
{
  double seconds = 0;

  for (int lane = 0; lane < N_LANES; lane++)
    seconds = fmax (seconds, r->free[rank][lane]);
  if (!r->ends)
    return seconds;
  seconds = fmax (seconds, r->free[rank][GPU] + weft_ends_at (r->ends, rank, 0)->after);
  for (uint32_t chunk = 0; chunk < r->grid->n_chunks; chunk++)
    seconds = fmax (seconds, reduced_by (r, rank, chunk));
  return seconds;
}

double
weft_paths_replay (const struct weft_paths *paths, const weft_grid *grid,
                   const struct weft_ends *ends)
{
  struct replay r = { .paths = paths, .grid = grid, .ends = ends };
  gboolean moves = TRUE;
  double most = 0;

  begin (&r);
  while (moves) {
    moves = FALSE;
    for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
      moves = run_rank (&r, rank) || moves;
  }
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    most = fmax (most, ended_by (&r, rank));
  end (&r);
  return r.unknown ? 0 : most;
}
