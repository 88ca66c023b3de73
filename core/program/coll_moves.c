#include "core/program/coll.h"
#include "core/program/program.h"

/* Appends the moves of one ring phase over n ranks. Reduce-scatter: in round r, rank i sends piece
 * i - r - 1 (modulo n); after the last round each piece's owner has the complete sum. All-gather:
 * in round r, rank i sends piece i - r. */
static void
ring_phase (GArray *moves, uint32_t n, uint32_t first_round, gboolean reduce)
{
  for (uint32_t r = 0; r + 1 < n; r++)
    for (uint32_t i = 0; i < n; i++) {
      uint32_t piece = (i + 2 * n - r - (reduce ? 1 : 0)) % n;
      gboolean last = reduce && r + 2 == n;
      struct weft_move move = { first_round + r, i, (i + 1) % n, piece, reduce, last, last };
      g_array_append_val (moves, move);
    }
}

/* Appends the moves of a broadcast as a chain: each member sends the whole tensor, as n pieces, to
 * the next member. */
static void
chain_phase (GArray *moves, uint32_t n)
{
  for (uint32_t r = 0; r + 1 < n; r++)
    for (uint32_t piece = 0; piece < n; piece++) {
      struct weft_move move = { .round = r, .from = r, .to = r + 1, .piece = piece };
      g_array_append_val (moves, move);
    }
}

/* Appends the moves of one round in which every member sends one piece to every other member. Moves
 * are sorted by destination. */
static void
direct_phase (GArray *moves, uint32_t n, uint32_t round, gboolean reduce)
{
  for (uint32_t to = 0; to < n; to++)
    for (uint32_t from = 0; from < n; from++)
      if (from != to) {
        struct weft_move move = { round, from, to, reduce ? to : from, reduce, reduce, reduce };
        g_array_append_val (moves, move);
      }
}

GArray *
weft_coll_shift_moves (uint32_t n, uint32_t distance)
{
  GArray *moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));

  for (uint32_t i = 0; i < n; i++) {
    struct weft_move move = { .from = i, .to = (i + distance) % n };
    g_array_append_val (moves, move);
  }
  return moves;
}

GArray *
weft_coll_ring_moves (enum weft_op_kind kind, uint32_t n)
{
  GArray *moves;

  if (kind != weft_op_even (kind))
    return weft_coll_direct_moves (kind, n);
  moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_REDUCE_SCATTER)
    ring_phase (moves, n, 0, TRUE);
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_ALL_GATHER)
    ring_phase (moves, n, kind == WEFT_OP_ALL_REDUCE ? n - 1 : 0, FALSE);
  if (kind == WEFT_OP_BROADCAST)
    chain_phase (moves, n);
  if (weft_op_swaps (kind))
    direct_phase (moves, n, 0, FALSE);
  return moves;
}

GArray *
weft_coll_direct_moves (enum weft_op_kind kind, uint32_t n)
{
  GArray *moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));

  kind = weft_op_even (kind);
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_REDUCE_SCATTER)
    direct_phase (moves, n, 0, TRUE);
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_ALL_GATHER)
    direct_phase (moves, n, kind == WEFT_OP_ALL_REDUCE, FALSE);
  if (kind == WEFT_OP_BROADCAST)
    chain_phase (moves, n);
  if (weft_op_swaps (kind))
    direct_phase (moves, n, 0, FALSE);
  return moves;
}

static gint
compare_moves (gconstpointer a, gconstpointer b)
{
  const struct weft_move *m = a, *n = b;

  if (m->round != n->round)
    return m->round < n->round ? -1 : 1;
  if (m->to != n->to)
    return m->to < n->to ? -1 : 1;
  return m->from < n->from ? -1 : m->from > n->from;
}

/* Counts the members of a broadcast or a shift from the end if the op goes backwards. */
static void
turn (GArray *moves, const struct weft_op *op, uint32_t n)
{
  for (uint32_t i = 0; i < moves->len && op->peer < 0; i++) {
    struct weft_move *move = &g_array_index (moves, struct weft_move, i);
    move->from = n - 1 - move->from;
    move->to = n - 1 - move->to;
  }
}

GArray *
weft_coll_data_moves (const struct weft_op *op, const weft_algo *a)
{
  GArray *moves = g_array_copy (a->moves);

  turn (moves, op, a->n);
  g_array_sort (moves, compare_moves);
  return moves;
}

GArray *
weft_coll_moves (const struct weft_op *op, uint32_t n, enum weft_coll_choice choice)
{
  GArray *moves = op->kind == WEFT_OP_SHIFT       ? weft_coll_shift_moves (n, MAX (op->peer, 1))
                  : choice == WEFT_COLL_CANONICAL ? weft_coll_direct_moves (op->kind, n)
                                                  : weft_coll_ring_moves (op->kind, n);

  turn (moves, op, n);
  g_array_sort (moves, compare_moves);
  return moves;
}
