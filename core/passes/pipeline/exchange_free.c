/* Sends and receives of pipeline stages for schedules whose order of transfers no framework has
 * published. Transfers overlap kernels.
 *
 * The order of transfers comes from a replay of the schedule. In the replay a forward, an input
 * gradient and a weight gradient each take one unit of time, an unsplit backward takes two units,
 * and a transfer takes no time. The transfers of a rank are sorted by the time at which the sender
 * has computed the tensor. A rank posts each transfer before its first forward or backward pass
 * that ends after this time. A receive therefore overlaps the pass that runs when the tensor is
 * sent.
 *
 * All ranks use the same replay, so the order cannot deadlock: a posted transfer waits only for
 * passes that end no later in the replay, and these passes wait only for earlier transfers. */
#include "core/passes/pipeline/posting.h"
#include <stdlib.h>

struct move {
  double ready;
  uint32_t rank, index; /* the tensor is computed by pass number `index` of pipeline rank `rank` */
  gboolean sends;
  /* the forward or backward pass of this rank that computes the tensor (send) or reads it
   * (receive) */
  struct weft_cell cell;
  /* before: number of the forward or backward pass (cell) of this rank before which the transfer is
   * posted */
  uint32_t before;
};

struct weft_moves {
  GArray *list; /* struct move */
  uint32_t posted;
};

static int
compare_moves (const void *a, const void *b)
{
  const struct move *x = a, *y = b;

  if (x->ready != y->ready)
    return x->ready < y->ready ? -1 : 1;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  return (x->index > y->index) - (x->index < y->index);
}

static const struct weft_cell_times unit = { .forward = 1, .input = 1, .weight = 1 };

static double
length (const struct weft_cell *cell)
{
  return cell->phase == WEFT_PHASE_BACKWARD ? unit.input + unit.weight : unit.forward;
}

/* Adds the transfer of the tensor that pass number `index` of `rank` computes. Does nothing if this
 * rank neither sends nor receives the tensor. */
static void
add_move (struct weft_step *s, uint32_t rank, uint32_t index, double ready)
{
  const struct weft_cell *made = &s->grid->cell[rank][index];
  gboolean forward = made->phase == WEFT_PHASE_FORWARD;
  struct move move = {
    .ready = ready, .rank = rank, .index = index, .sends = rank == s->role, .cell = *made
  };
  uint32_t to = rank, chunk = made->chunk;

  if (made->phase == WEFT_PHASE_WEIGHT_GRAD ||
      !(forward ? weft_grid_next : weft_grid_prev) (s->grid, &to, &chunk) || to == rank ||
      (to != s->role && rank != s->role))
    return;
  if (!move.sends)
    move.cell.chunk = chunk;
  g_array_append_val (s->pipeline->moves->list, move);
}

static double **
replay (const weft_grid *grid)
{
  double **start = g_new (double *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    start[rank] = g_new (double, grid->n_cell[rank] + 1);
  weft_grid_replay (grid, unit, start);
  return start;
}

static void
list_moves (struct weft_step *s)
{
  const weft_grid *grid = s->grid;
  double **start = replay (grid);
  const struct weft_cell *row = grid->cell[s->role];
  uint32_t cell = 0;

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
      add_move (s, rank, i, start[rank][i] + length (&grid->cell[rank][i]));
  g_array_sort (s->pipeline->moves->list, compare_moves);
  for (uint32_t i = 0; i < s->pipeline->moves->list->len; i++) {
    struct move *move = &g_array_index (s->pipeline->moves->list, struct move, i);
    while (cell < grid->n_cell[s->role] &&
           start[s->role][cell] + length (&row[cell]) <= move->ready)
      cell++;
    move->before = cell;
  }
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    g_free (start[rank]);
  g_free (start);
}

static void
post (struct weft_step *s, const struct move *move)
{
  weft_exchange_begin (s, WEFT_POST_ASIDE);
  if (move->sends)
    weft_exchange_send (s, &move->cell);
  else
    weft_exchange_receive (s, &move->cell);
  weft_exchange_end (s);
}

/* Makes the end of the step wait for all pipeline transfers. */
static void
finish (struct weft_step *s)
{
  static const enum weft_lane lanes[] = { WEFT_LANE_PP, WEFT_LANE_PP_BACK };

  for (size_t i = 0; i < G_N_ELEMENTS (lanes); i++) {
    uint32_t newest = weft_build_last (s->b, lanes[i]);
    if (newest != WEFT_NO_OP)
      weft_next_kernel_waits_for (s, newest);
  }
  g_array_unref (s->pipeline->moves->list);
  g_clear_pointer (&s->pipeline->moves, g_free);
}

void
weft_exchange_free (struct weft_step *s, uint32_t i, weft_kernels *beside)
{
  if (i == 0) {
    s->pipeline->moves = g_new0 (struct weft_moves, 1);
    s->pipeline->moves->list = g_array_new (FALSE, FALSE, sizeof (struct move));
    list_moves (s);
  }
  for (; s->pipeline->moves->posted < s->pipeline->moves->list->len; s->pipeline->moves->posted++) {
    const struct move *move =
        &g_array_index (s->pipeline->moves->list, struct move, s->pipeline->moves->posted);
    if (move->before > i)
      break;
    post (s, move);
  }
  weft_exchange_run_beside (s, beside);
  if (i == s->grid->n_cell[s->role])
    finish (s);
}
