/* Collectives and transfers between stages. A thread never waits in these functions. If all members
 * have finished the previous round of a collective, a function executes this rank's part of the
 * next round; else it returns FALSE. */
#include "exec_cpu/collectives.h"
#include "core/base/fold.h"
#include "exec_cpu/arena.h"
#include "exec_cpu/launch.h"
#include "exec_cpu/ready.h"
#include "kernels/float.h"
#include "kernels/sums.h"
#include <string.h>

void
cpu_moves_free (struct cpu_moves *moves)
{
  g_array_unref (moves->list);
  g_free (moves->first);
  g_free (moves);
}

uint64_t
cpu_moves_key (const struct weft_op *row, uint32_t n)
{
  return (uint64_t) row->group << 48 | (uint64_t) row->kind << 40 |
         (uint64_t) (uint8_t) row->peer << 32 | n;
}

uint64_t
cpu_moves_slot_bytes (const struct cpu_moves *moves, const struct weft_shape *shape)
{
  return (shape->dim[0] / moves->n_pieces + 1) * weft_dtype_bytes (shape->dtype);
}

static const struct cpu_moves *
moves_of (const struct cpu_machine *m, const struct weft_op *row, uint32_t n)
{
  uint64_t key = cpu_moves_key (row, n);
  return g_hash_table_lookup (m->moves, &key);
}

/* One round of a collective, as one member executes it. */
struct round {
  const struct cpu_comm *c;
  enum weft_op_kind kind;
  uint32_t me, n;
  uint32_t n_pieces; /* pieces of the tensor: a multiple of n unless all members end with all */
  enum weft_dtype dtype;
  enum weft_reduce reduce;
  uint64_t elements;
  float divisor; /* the sum over all members is divided by this number */
  uint64_t slot; /* bytes of a slot (struct weft_move) */
  /* all-to-all, or all-gather of rows: input and output are two separate operands */
  gboolean swaps;
  /* context-parallel shift: copies the whole tensor of one neighbour into another operand */
  gboolean shifts;
  /* bytes of a row if each member sends a variable number of rows (op with row counts); else 0 */
  uint64_t row;
};

/* -------------------------------------------------------------------- sums */

static void
least_floats (float *into, const float *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    into[i] = from[i] < into[i] ? from[i] : into[i];
}

static void
most_floats (float *into, const float *from, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    into[i] = from[i] > into[i] ? from[i] : into[i];
}

static int64_t
add_words (int64_t a, int64_t b)
{
  return a + b;
}

static int64_t
least_words (int64_t a, int64_t b)
{
  return MIN (a, b);
}

static int64_t
most_words (int64_t a, int64_t b)
{
  return MAX (a, b);
}

/* Functions that reduce two terms. The reduction avg (average) uses the function for sums; the sum
 * is divided at the end. */
static const struct {
  void (*floats) (float *into, const float *from, uint64_t n);
  int64_t (*words) (int64_t a, int64_t b);
} joins[] = {
  [WEFT_REDUCE_SUM] = { weft_sums_add, add_words },
  [WEFT_REDUCE_AVG] = { weft_sums_add, add_words },
  [WEFT_REDUCE_PREMUL] = { weft_sums_add, add_words },
  [WEFT_REDUCE_MIN] = { least_floats, least_words },
  [WEFT_REDUCE_MAX] = { most_floats, most_words },
};

/* Partial results of n elements each: one for each level of the reduction tree. */
struct stack {
  const struct round *d;
  uint64_t n;
  float entry[WEFT_FOLD_MOST_DEPTH][WEFT_STRETCH];
};

static void
join_entries (void *stack, uint32_t below)
{
  struct stack *s = stack;

  joins[s->d->reduce].floats (s->entry[below], s->entry[below + 1], s->n);
  weft_round (s->d->dtype, s->n, s->entry[below]);
}

/* Reduces elements [first, first + n) of n_term arrays (n <= WEFT_STRETCH) in the tree order of
 * core/base/fold.h, divides the results by d->divisor and writes them to `out`. */
static void
join_block (uint8_t *const *term, uint32_t n_term, const struct round *d, uint64_t first,
            uint64_t n, uint8_t *out)
{
  enum weft_dtype dtype = d->dtype;
  struct stack stack;
  uint32_t top = 0;

  stack.d = d;
  stack.n = n;
  for (uint32_t i = 0; i < n_term; i++) {
    float *entry = stack.entry[top];
    const float *floats = weft_floats (term[i], dtype, first, n, entry);
    if (floats != entry)
      memcpy (entry, floats, n * sizeof *floats);
    top = weft_fold_push (top, i, n_term, join_entries, &stack);
  }
  if (d->divisor != 1)
    for (uint64_t i = 0; i < n; i++)
      stack.entry[0][i] /= d->divisor;
  weft_store (out, dtype, first, n, stack.entry[0]);
}

static void
join_words (uint8_t *const *term, uint32_t n_term, const struct round *d, uint64_t first,
            uint64_t n, uint8_t *out)
{
  for (uint64_t i = first; i < first + n; i++) {
    int64_t all = ((const int64_t *) (const void *) term[0])[i];
    for (uint32_t t = 1; t < n_term; t++)
      all = joins[d->reduce].words (all, ((const int64_t *) (const void *) term[t])[i]);
    ((int64_t *) (void *) out)[i] = all;
  }
}

/* ------------------------------------------------------------- collectives */

static uint64_t
piece_start (const struct round *d, uint32_t piece)
{
  return d->elements * piece / d->n_pieces;
}

static uint32_t
owner_of (const struct round *d, uint32_t piece)
{
  return (uint32_t) ((uint64_t) piece * d->n / d->n_pieces);
}

/* The part of the tensor that belongs to a member: its first element. */
static uint64_t
share_start (const struct round *d, uint32_t member)
{
  return d->elements * member / d->n;
}

/* Returns the address of piece 0 as if the pieces of `member` were contiguous: adding the offset of
 * `piece` in the whole tensor gives the address of the piece. The pieces that the member itself
 * owns are in its slice, which may be a separate buffer. */
static uint8_t *
piece_of (const struct round *d, uint32_t member, uint32_t piece)
{
  const struct cpu_post *post = &d->c->post[member];

  return owner_of (d, piece) == member
             ? post->bound.slice - share_start (d, member) * weft_dtype_bytes (d->dtype)
             : post->bound.data;
}

/* The address of the message that a move brings, as piece_of() gives it: in a slot of this member,
 * or in the tensor of the sender. Only before an all-gather a member has its own pieces in its
 * slice; in other collectives they are in its tensor, until the sums are complete. */
static uint8_t *
message_of (const struct round *d, const struct weft_move *move)
{
  uint64_t first = piece_start (d, move->piece) * weft_dtype_bytes (d->dtype);

  if (move->slot && !move->fetch)
    return d->c->slots[d->me] + (move->slot - 1) * d->slot - first;
  return d->kind == WEFT_OP_ALL_GATHER ? piece_of (d, move->from, move->piece)
                                       : d->c->post[move->from].bound.data;
}

/* One reduction step: sums one piece of the tensor over the members that send it to this member and
 * this member itself. The members are added in the order of their ranks. */
static void
reduce_piece (struct round d, const struct weft_move *move, uint32_t n_move)
{
  uint8_t *term[n_move + 1], *mine = d.c->post[d.me].bound.data, *to;
  uint32_t n_term = 0, piece = move->piece;
  uint64_t end = piece_start (&d, piece + 1);
  gboolean placed = FALSE;

  for (uint32_t i = 0; i < n_move; i++) {
    if (!placed && move[i].from > d.me) {
      term[n_term++] = mine;
      placed = TRUE;
    }
    term[n_term++] = message_of (&d, &move[i]);
  }
  if (!placed)
    term[n_term++] = mine;
  to = move->own ? piece_of (&d, d.me, piece) : mine;
  d.divisor = move->complete ? d.divisor : 1;
  for (uint64_t at = piece_start (&d, piece); at < end; at += WEFT_STRETCH) {
    uint64_t n = MIN (WEFT_STRETCH, end - at);
    (d.dtype == WEFT_INT64 ? join_words : join_block) (term, n_term, &d, at, n, to);
  }
}

/* Copies one piece that another member sends: into a slot of this member, into this member's
 * tensor, or, at the end of a reduce-scatter, into its slice. */
static void
store_piece (const struct round *d, const struct weft_move *move)
{
  uint64_t size = weft_dtype_bytes (d->dtype), first = piece_start (d, move->piece) * size;
  uint8_t *to = move->fetch ? d->c->slots[d->me] + (move->slot - 1) * d->slot - first
                : move->own ? piece_of (d, d->me, move->piece)
                            : d->c->post[d->me].bound.data;

  memcpy (to + first, message_of (d, move) + first,
          piece_start (d, move->piece + 1) * size - first);
}

/* All-to-all: copies the piece that another member sends to this member.  Received pieces are
 * ordered by rank. */
static void
take_piece (const struct round *d, uint32_t from)
{
  uint64_t size = weft_dtype_bytes (d->dtype), mine = share_start (d, d->me);

  memcpy (d->c->post[d->me].bound.slice + share_start (d, from) * size,
          d->c->post[from].bound.data + mine * size, (share_start (d, d->me + 1) - mine) * size);
}

/* Context-parallel shift: copies the whole tensor of the neighbouring member `from`. */
static void
take_whole (const struct round *d, uint32_t from)
{
  memcpy (d->c->post[d->me].bound.slice, d->c->post[from].bound.data,
          d->elements * weft_dtype_bytes (d->dtype));
}

/* Number of rows that `member` sends to member `to`. With `before` set, the number of rows that
 * `member` sends to all members with a lower number than `to`. */
static uint64_t
rows_for (const struct round *d, uint32_t member, uint32_t to, gboolean before)
{
  const struct weft_operand *send = &d->c->post[member].bound.send;
  uint64_t per = send->n / d->n, first = before ? 0 : to * per, last = (to + !before) * per,
           sum = 0;

  for (uint64_t i = first; i < last; i++)
    sum += (uint64_t) ((const int64_t *) send->data)[i];
  return sum;
}

/* All-to-all with unequal numbers of rows: copies the rows that member `from` sends to this member.
 * Received rows are ordered by sender. */
static void
take_rows (const struct round *d, uint32_t from)
{
  uint64_t at = 0;

  for (uint32_t i = 0; i < from; i++)
    at += rows_for (d, i, d->me, FALSE);
  memcpy (d->c->post[d->me].bound.slice + at * d->row,
          d->c->post[from].bound.data + rows_for (d, from, d->me, TRUE) * d->row,
          rows_for (d, from, d->me, FALSE) * d->row);
}

/* All-gather with unequal numbers of rows: copies the rows of member `from`. All members have the
 * same table of row counts. */
static void
gather_rows (const struct round *d, uint32_t from)
{
  memcpy (d->c->post[d->me].bound.slice + rows_for (d, d->me, from, TRUE) * d->row,
          d->c->post[from].bound.data, rows_for (d, d->me, from, FALSE) * d->row);
}

/* Reduce-scatter with unequal numbers of rows: adds, over all members, the rows that this member
 * owns. */
static void
sum_rows (const struct round *d)
{
  uint8_t *term[d->n];
  uint64_t columns = d->row / weft_dtype_bytes (d->dtype),
           at = rows_for (d, d->me, d->me, TRUE) * columns,
           end = at + rows_for (d, d->me, d->me, FALSE) * columns;
  uint8_t *to = d->c->post[d->me].bound.slice - at * weft_dtype_bytes (d->dtype);

  for (uint32_t i = 0; i < d->n; i++)
    term[i] = d->c->post[i].bound.data;
  for (; at < end; at += WEFT_STRETCH)
    join_block (term, d->n, d, at, MIN (WEFT_STRETCH, end - at), to);
}

static void
take (const struct round *d, uint32_t from)
{
  (d->kind == WEFT_OP_ALL_GATHER_V ? gather_rows : d->row ? take_rows : take_piece) (d, from);
}

/* Before an all-gather: copies this member's slice to its place in the whole tensor, unless the
 * slice is a part of the tensor's buffer. */
static void
store_own_piece (const struct round *d)
{
  uint64_t size = weft_dtype_bytes (d->dtype), first = share_start (d, d->me);
  const struct cpu_post *post = &d->c->post[d->me];

  if (post->bound.slice != post->bound.data + first * size)
    memcpy (post->bound.data + first * size, post->bound.slice,
            (share_start (d, d->me + 1) - first) * size);
}

static void
run_round (const struct round *d, const struct cpu_moves *moves, uint32_t round)
{
  const struct weft_move *list = &g_array_index (moves->list, struct weft_move, 0);
  uint32_t at = moves->first[round * d->n + d->me], end = moves->first[round * d->n + d->me + 1];

  if (d->kind == WEFT_OP_REDUCE_SCATTER_V) {
    sum_rows (d);
    return;
  }
  while (at < end) {
    uint32_t n = 1;
    if (list[at].reduce && !list[at].fetch) {
      while (at + n < end && list[at + n].reduce && list[at + n].piece == list[at].piece)
        n++;
      reduce_piece (*d, &list[at], n);
    } else if (d->shifts) {
      take_whole (d, list[at].from);
    } else if (d->swaps) {
      take (d, list[at].from);
    } else {
      store_piece (d, &list[at]);
    }
    at += n;
  }
}

static void
count_unit (struct cpu_rank *r, enum weft_group_kind kind)
{
  struct cpu_comm *c = r->comm[kind];
  uint64_t all = ++r->unit[kind] * c->n;

  if (atomic_fetch_add (&c->count, 1) + 1 == all)
    cpu_ready_wake_group (r->m, &c->group);
}

static struct round
round_of (const struct cpu_rank *r, uint32_t op, const struct cpu_moves *moves)
{
  const struct weft_op *row = &r->p->op[op];
  const struct weft_shape *shape = weft_op_shape (r->p, op);
  struct cpu_comm *c = r->comm[row->group];

  return (struct round){ .c = c,
                         .kind = row->kind,
                         .me = weft_group_index (&c->group, r->rank),
                         .n = c->n,
                         .n_pieces = moves->n_pieces,
                         .dtype = shape->dtype,
                         .reduce = row->reduce,
                         .elements = shape->dim[0],
                         .divisor = row->reduce == WEFT_REDUCE_AVG ? c->n : 1,
                         .slot = cpu_moves_slot_bytes (moves, shape),
                         .swaps = weft_op_swaps (row->kind) || row->kind == WEFT_OP_ALL_GATHER_V,
                         .shifts = row->kind == WEFT_OP_SHIFT,
                         .row = row->kind != weft_op_even (row->kind)
                                    ? shape->dim[1] * weft_dtype_bytes (shape->dtype)
                                    : 0 };
}

/* Collective with reduction premul_sum (NCCL's name): divides this member's input by the divisor,
 * in place, before the sum. */
static void
divide (uint8_t *data, const struct weft_shape *shape)
{
  float block[WEFT_STRETCH], divisor = shape->dim[1];

  for (uint64_t at = 0; at < shape->dim[0]; at += WEFT_STRETCH) {
    uint64_t n = MIN (WEFT_STRETCH, shape->dim[0] - at);
    const float *floats = weft_floats (data, shape->dtype, at, n, block);
    for (uint64_t i = 0; i < n; i++)
      block[i] = floats[i] / divisor;
    weft_store (data, shape->dtype, at, n, block);
  }
}

static void
arrive (struct cpu_rank *r, uint32_t op)
{
  const struct weft_op *row = &r->p->op[op];
  struct cpu_comm *c = r->comm[row->group];
  struct weft_place member = { weft_group_index (&c->group, r->rank), c->n };
  struct cpu_post *post = &c->post[member.at];

  cpu_arena_touch (r, op);
  post->arrived = cpu_now (r->m);
  post->bound = weft_bind_collective (&r->bind, op, &member);
  if (row->reduce == WEFT_REDUCE_PREMUL)
    divide (post->bound.data, weft_op_shape (r->p, op));
  count_unit (r, row->group);
}

/* The time when the last member started the collective.  The collective begins then, so the time to
 * wake the other members is part of its duration. */
static double
last_arrival (const struct cpu_comm *c)
{
  double last = 0;
  for (uint32_t i = 0; i < c->n; i++)
    last = MAX (last, c->post[i].arrived);
  return last;
}

gboolean
cpu_collective_advance (struct cpu_rank *r, enum weft_lane lane, uint32_t op)
{
  struct cpu_lane *l = &r->lane[lane];
  enum weft_group_kind kind = r->p->op[op].group;
  struct cpu_comm *c = r->comm[kind];

  if (!l->posted) {
    arrive (r, op);
    l->posted = TRUE;
    l->round = 0;
    return TRUE;
  }
  if (atomic_load (&c->count) < r->unit[kind] * c->n)
    return FALSE;
  const struct cpu_moves *moves = moves_of (r->m, &r->p->op[op], c->n);
  if (l->round < moves->n_rounds) {
    struct round d = round_of (r, op, moves);
    if (l->round == 0 && d.me == 0)
      c->begin = last_arrival (c);
    if (l->round == 0 && r->p->op[op].kind == WEFT_OP_ALL_GATHER)
      store_own_piece (&d);
    if (l->round == 0 && d.swaps)
      take (&d, d.me);
    run_round (&d, moves, l->round++);
    count_unit (r, kind);
    return TRUE;
  }
  l->posted = FALSE;
  cpu_launch_end (r, op, c->begin, cpu_now (r->m));
  l->cursor++;
  return TRUE;
}

/* --------------------------------------------------------------- transfers */

static uint32_t
direction_of (const struct cpu_rank *r, uint32_t op)
{
  return r->p->op[op].peer < 0;
}

static void
post_send (struct cpu_rank *r, uint32_t op)
{
  uint32_t d = direction_of (r, op);

  r->out[d]->data = cpu_arena_at (r, cpu_use (r, op, 0)->buf);
  r->out[d]->sent = cpu_now (r->m);
  atomic_store (&r->out[d]->posted, ++r->sent[d]);
  cpu_ready_wake (r->m, r->out[d]->to);
}

static void
post_group (struct cpu_rank *r, enum weft_lane lane, uint32_t first, uint32_t last)
{
  for (uint32_t i = first; i < last; i++) {
    uint32_t op = r->p->lane_ops[lane][i];
    cpu_arena_touch (r, op);
    if (!cpu_skips (r, op) && r->p->op[op].kind == WEFT_OP_SEND)
      post_send (r, op);
  }
}

static gboolean
receive (struct cpu_rank *r, uint32_t op, double *begin)
{
  uint32_t d = direction_of (r, op);
  struct cpu_channel *channel = r->in[d];
  const struct weft_use *use = cpu_use (r, op, 0);

  if (atomic_load (&channel->posted) <= r->received[d])
    return FALSE;
  channel->begin = *begin = MAX (channel->sent, r->lane[r->p->op[op].lane].arrived);
  memcpy (cpu_arena_at (r, use->buf), channel->data, r->p->buf[use->buf].bytes);
  atomic_store (&channel->taken, ++r->received[d]);
  /* wakes the sender: out[d] is the channel in the opposite direction, and leads to the sender */
  cpu_ready_wake (r->m, r->out[d]->to);
  return TRUE;
}

/* Whether a send or a receive, after both sides were posted, has ended. A receive copies the data
 * in this function. *begin: the time when the second of both sides was posted. */
static gboolean
is_over (struct cpu_rank *r, uint32_t op, double *begin)
{
  const struct cpu_channel *channel = r->out[direction_of (r, op)];

  if (cpu_skips (r, op)) {
    *begin = cpu_now (r->m);
    return TRUE;
  }
  if (r->p->op[op].kind == WEFT_OP_RECV)
    return receive (r, op, begin);
  if (atomic_load (&channel->taken) < r->sent[direction_of (r, op)])
    return FALSE;
  *begin = channel->begin;
  return TRUE;
}

gboolean
cpu_transfers_advance (struct cpu_rank *r, enum weft_lane lane)
{
  struct cpu_lane *l = &r->lane[lane];
  uint32_t first = l->cursor, last = weft_program_group_end (r->p, lane, first);
  uint32_t all = (uint32_t) (((uint64_t) 1 << (last - first)) - 1), before = l->round;

  g_assert (last - first <= 32);
  if (!l->posted) {
    post_group (r, lane, first, last);
    l->posted = TRUE;
    l->round = 0;
    l->arrived = cpu_now (r->m);
    return TRUE;
  }
  for (uint32_t i = first; i < last; i++) {
    uint32_t op = r->p->lane_ops[lane][i];
    double begin;
    if ((l->round >> (i - first) & 1) || !is_over (r, op, &begin))
      continue;
    l->round |= 1u << (i - first);
    cpu_launch_end (r, op, begin, cpu_now (r->m));
  }
  if (l->round == all) {
    l->posted = FALSE;
    l->cursor = last;
  }
  return l->round != before || !l->posted;
}
