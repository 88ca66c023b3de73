/* Appends the calls of a collective: library calls, or copies and sums on a shared GPU. */
#include "exec_gpu/collectives.h"
#include "core/base/error.h"
#include "core/program/coll.h"
#include "exec_gpu/comm.h"
#include "exec_gpu/comms.h"
#include "exec_gpu/counted.h"
#include "exec_gpu/script.h"
#include <string.h>

/* Whether the executor can find the row counts of a collective over rows. The GPU computes the row
 * counts. Ranks that share a GPU read the row counts there; otherwise the plan must have an op that
 * copies the row counts to the host. */
static gboolean
can_count (const struct gpu_machine *m, const weft_program *p, uint32_t op)
{
  return m->shared || !gpu_is_counted (p->op[op].kind) || gpu_counted_source (p, op) != WEFT_NO_OP;
}

static gboolean
has_equal_parts (const struct gpu_machine *m, const struct weft_op *row,
                 const struct weft_shape *shape)
{
  gboolean whole = row->kind == WEFT_OP_ALL_REDUCE || row->kind == WEFT_OP_BROADCAST ||
                   row->kind == WEFT_OP_SHIFT;

  return m->shared || whole || gpu_is_counted (row->kind) ||
         shape->dim[0] % weft_mesh_group_size (&m->base.plan->mesh, row->group) == 0;
}

gboolean
gpu_collective_check (const struct gpu_machine *m, const weft_program *p, GError **error)
{
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    if (weft_op_info[row->kind].class != WEFT_CLASS_COLLECTIVE)
      continue;
    if (!can_count (m, p, op))
      return weft_bad_input (
          error,
          "op %u: the cuda executor has no %s between GPUs: the plan does not copy the row counts "
          "to the host",
          op, weft_op_words[row->kind]);
    if (m->own.graph && !m->shared && gpu_is_counted (row->kind))
      return weft_bad_input (
          error,
          "--graph: found %s (op %u), whose counts the host reads during the step; wanted "
          "moe_pad_expert_input_to_capacity, or no --graph",
          weft_op_words[row->kind], op);
    if (!has_equal_parts (m, row, weft_op_shape (p, op)))
      return weft_bad_input (error,
                             "op %u, %s: found %" G_GUINT64_FORMAT " elements, wanted a multiple "
                             "of the %u members: NCCL needs equal parts",
                             op, weft_op_words[row->kind], weft_op_shape (p, op)->dim[0],
                             weft_mesh_group_size (&m->base.plan->mesh, row->group));
  }
  return TRUE;
}

/* ------------------------------------------------------------ ranks that share a GPU */

struct meeting {
  const struct gpu_rank_unit *member;
  /* members of the collective; number of the op in the program of the first member */
  uint32_t n, op;
  const struct weft_op *row;
  const struct weft_shape *shape;
  struct weft_bound_operands *bound; /* by member */
  uint64_t size;                     /* size of an element in bytes */
};

static uint64_t
piece_start (const struct meeting *x, uint32_t piece)
{
  return x->shape->dim[0] * piece / x->n;
}

static uint64_t
piece_bytes (const struct meeting *x, uint32_t piece)
{
  return (piece_start (x, piece + 1) - piece_start (x, piece)) * x->size;
}

/* The address of a piece of the tensor on a member. The piece that the member itself owns is in its
 * slice, which may be outside the whole tensor. */
static uint8_t *
piece_of (const struct meeting *x, uint32_t member, uint32_t piece)
{
  return piece == member ? x->bound[member].slice
                         : x->bound[member].data + piece_start (x, piece) * x->size;
}

static void
copy (const struct meeting *x, void *to, const void *from, uint64_t bytes)
{
  GArray *copies = gpu_script_of (x->member[0].r->m, x->member[0].r)->copy;
  struct weft_gpu_copy c = { WEFT_GPU_ON_DEVICE, to, from, bytes };

  if (to == from || bytes == 0)
    return;
  g_array_append_val (copies, c);
  gpu_script_call (x->member[0], x->op, GPU_COPY)->at = copies->len - 1;
}

/* Appends one sum of a reduction: it adds the parts that all members have of one piece, and stores
 * the result on one member. The members' parts are added in the order of their ranks. */
static void
join (const struct meeting *x, const struct weft_move *move)
{
  static const uint8_t hows[] = { [WEFT_REDUCE_SUM] = WEFT_GPU_ADD,
                                  [WEFT_REDUCE_AVG] = WEFT_GPU_ADD,
                                  [WEFT_REDUCE_PREMUL] = WEFT_GPU_ADD,
                                  [WEFT_REDUCE_MIN] = WEFT_GPU_LEAST,
                                  [WEFT_REDUCE_MAX] = WEFT_GPU_MOST };
  struct gpu_script *s = gpu_script_of (x->member[0].r->m, x->member[0].r);
  gboolean premul = x->row->reduce == WEFT_REDUCE_PREMUL;
  struct weft_gpu_join *j = g_new0 (struct weft_gpu_join, 1);
  const void **term = g_new (const void *, x->n);
  uint64_t start = piece_start (x, move->piece);

  for (uint32_t i = 0; i < x->n; i++)
    term[i] = x->bound[i].data + start * x->size;
  j->dtype = x->shape->dtype;
  j->how = hows[x->row->reduce];
  j->before = premul ? (float) x->shape->dim[1] : 1;
  j->after = x->row->reduce == WEFT_REDUCE_AVG ? (float) x->n : 1;
  j->n_term = x->n;
  j->term = term;
  j->out = piece_of (x, move->to, move->piece);
  j->n = piece_start (x, move->piece + 1) - start;
  g_ptr_array_add (s->join, j);
  gpu_script_call (x->member[0], x->op, GPU_JOIN)->at = s->join->len - 1;
}

static void
move_one (const struct meeting *x, const struct weft_move *move)
{
  const struct weft_bound_operands *from = &x->bound[move->from], *to = &x->bound[move->to];

  if (x->row->kind == WEFT_OP_SHIFT)
    copy (x, to->slice, from->data, x->shape->dim[0] * x->size);
  else if (weft_op_swaps (x->row->kind))
    copy (x, to->slice + piece_start (x, move->from) * x->size,
          from->data + piece_start (x, move->to) * x->size, piece_bytes (x, move->to));
  else
    copy (x, to->data + piece_start (x, move->piece) * x->size,
          piece_of (x, move->from, move->piece), piece_bytes (x, move->piece));
}

/* In an all-gather or all-to-all, each member also copies its own piece from its input to its
 * output. */
static void
keep_own (const struct meeting *x)
{
  for (uint32_t i = 0; i < x->n; i++) {
    struct weft_move own = { .from = i, .to = i, .piece = i };
    if (x->row->kind == WEFT_OP_ALL_GATHER || x->row->kind == WEFT_OP_ALL_TO_ALL)
      move_one (x, &own);
  }
}

/* Appends the calls of a reduction over a group of one rank: no other rank sends data. */
static void
keep_term (const struct meeting *x)
{
  const struct weft_move own = { .reduce = TRUE };

  if (x->row->reduce == WEFT_REDUCE_PREMUL)
    join (x, &own);
  else
    copy (x, x->bound[0].slice, x->bound[0].data, x->shape->dim[0] * x->size);
}

/* Appends the copies and sums of a collective. The ranks share the GPU, so a sum reads the inputs
 * of all members directly. The order of summation is always the canonical one, for any
 * reduction_order. */
static void
emit_moves (const struct meeting *x)
{
  g_autoptr (GArray) moves = weft_coll_moves (x->row, x->n, WEFT_COLL_CANONICAL);
  const struct weft_move *before = NULL;

  keep_own (x);
  if (x->n == 1 && (x->row->kind == WEFT_OP_ALL_REDUCE || x->row->kind == WEFT_OP_REDUCE_SCATTER))
    keep_term (x);
  for (uint32_t i = 0; i < moves->len; i++) {
    const struct weft_move *move = &g_array_index (moves, struct weft_move, i);
    gboolean same = before && before->reduce && before->round == move->round &&
                    before->to == move->to && before->piece == move->piece;
    if (!move->reduce)
      move_one (x, move);
    /* one sum reads all members' inputs, so all moves into one piece need only one call of
     * join() */
    else if (!same)
      join (x, move);
    before = move;
  }
}

static void
emit_exchange (const struct meeting *x)
{
  static const uint8_t hows[] = { [WEFT_OP_ALL_TO_ALL_V] = WEFT_GPU_SWAP,
                                  [WEFT_OP_ALL_GATHER_V] = WEFT_GPU_GATHER,
                                  [WEFT_OP_REDUCE_SCATTER_V] = WEFT_GPU_SUM };
  struct gpu_script *s = gpu_script_of (x->member[0].r->m, x->member[0].r);
  struct weft_gpu_exchange *e = g_new0 (struct weft_gpu_exchange, 1);
  const void **from = g_new (const void *, x->n);
  const int64_t **send = g_new (const int64_t *, x->n);
  void **to = g_new (void *, x->n);

  for (uint32_t i = 0; i < x->n; i++) {
    from[i] = x->bound[i].data;
    send[i] = x->bound[i].send.data;
    to[i] = x->bound[i].slice;
  }
  *e = (struct weft_gpu_exchange){ .how = hows[x->row->kind],
                                   .dtype = x->shape->dtype,
                                   .n = x->n,
                                   .each = (uint32_t) (x->bound[0].send.n / x->n),
                                   .row = x->shape->dim[1] * x->size,
                                   .from = from,
                                   .send = send,
                                   .to = to };
  g_ptr_array_add (s->exchange, e);
  gpu_script_call (x->member[0], x->op, GPU_EXCHANGE)->at = s->exchange->len - 1;
}

void
gpu_collective_shared (const struct gpu_rank_unit *member, uint32_t n, uint32_t i)
{
  g_autofree struct weft_bound_operands *bound = g_new (struct weft_bound_operands, n);
  uint32_t op = gpu_unit_op (member[0].r, member[0].u, i);
  const weft_program *p = member[0].r->p;
  struct meeting x = { .member = member,
                       .n = n,
                       .op = op,
                       .row = &p->op[op],
                       .shape = weft_op_shape (p, op),
                       .bound = bound,
                       .size = weft_dtype_bytes (weft_op_shape (p, op)->dtype) };

  for (uint32_t j = 0; j < n; j++) {
    struct weft_place place = { j, n };
    bound[j] = weft_bind_collective (&member[j].r->bind, gpu_unit_op (member[j].r, member[j].u, i),
                                     &place);
  }
  if (gpu_is_counted (x.row->kind))
    emit_exchange (&x);
  else
    emit_moves (&x);
}

/* ------------------------------------------------------------ ranks with a GPU each */

static void
emit_transfer (struct gpu_rank_unit at, uint32_t op, gboolean recv,
               const struct weft_gpu_transfer *t)
{
  GArray *transfers = gpu_script_of (at.r->m, at.r)->transfer;

  g_array_append_val (transfers, *t);
  gpu_script_call (at, op, recv ? GPU_RECV : GPU_SEND)->at = transfers->len - 1;
}

/* Appends a call that sends to, or receives from, a neighbouring pipeline stage. */
static void
emit_neighbour (struct gpu_rank_unit at, uint32_t op)
{
  const struct weft_op *row = &at.r->p->op[op];
  const struct weft_buf *buf = &at.r->p->buf[weft_bind_use (&at.r->bind, op, 0)->buf];
  struct weft_gpu_transfer t = { .comm = gpu_comm_of (at.r, row),
                                 .data = weft_bind_at (&at.r->bind,
                                                       weft_bind_use (&at.r->bind, op, 0)->buf),
                                 .n = buf->bytes / weft_dtype_bytes (buf->dtype),
                                 .dtype = buf->dtype,
                                 .peer = gpu_comm_peer (at.r, row) };

  emit_transfer (at, op, row->kind == WEFT_OP_RECV, &t);
}

/* Appends a context-parallel shift: sends the whole buffer to one member and receives a buffer from
 * another member. */
static void
emit_shift (struct gpu_rank_unit at, uint32_t op, struct weft_place me,
            const struct weft_bound_operands *bound)
{
  const struct weft_op *row = &at.r->p->op[op];
  const struct weft_shape *shape = weft_op_shape (at.r->p, op);
  uint32_t away = row->peer < 0 ? me.of - 1 : MAX (row->peer, 1) % me.of;
  struct weft_gpu_transfer t = { .comm = gpu_comm_of (at.r, row),
                                 .data = bound->data,
                                 .n = shape->dim[0],
                                 .dtype = shape->dtype,
                                 .peer = (me.at + away) % me.of };

  emit_transfer (at, op, FALSE, &t);
  t.data = bound->slice;
  t.peer = (me.at + me.of - away) % me.of;
  emit_transfer (at, op, TRUE, &t);
}

static gboolean
emit_nccl (struct gpu_rank_unit at, uint32_t op, struct weft_place me, GError **error)
{
  const struct weft_op *row = &at.r->p->op[op];
  const struct weft_shape *shape = weft_op_shape (at.r->p, op);
  const struct weft_bound_operands bound = weft_bind_collective (&at.r->bind, op, &me);
  gboolean gathers = row->kind == WEFT_OP_ALL_GATHER;
  gboolean whole = row->kind == WEFT_OP_ALL_REDUCE || row->kind == WEFT_OP_BROADCAST;
  struct weft_gpu_collective c = { .kind = row->kind,
                                   .comm = gpu_comm_of (at.r, row),
                                   .from = gathers ? bound.slice : bound.data,
                                   .to = gathers || whole ? bound.data : bound.slice,
                                   .n = shape->dim[0] / (whole ? 1 : me.of),
                                   .dtype = shape->dtype,
                                   .reduce = row->reduce,
                                   .root = row->peer < 0 ? me.of - 1 : 0 };
  GArray *collectives = gpu_script_of (at.r->m, at.r)->collective;

  if (row->kind == WEFT_OP_SHIFT) {
    emit_shift (at, op, me, &bound);
    return TRUE;
  }
  if (row->reduce == WEFT_REDUCE_PREMUL &&
      !gpu_comms_scaled (at.r, c.comm, shape, &c.scaled, error))
    return FALSE;
  g_array_append_val (collectives, c);
  gpu_script_call (at, op, GPU_COLLECTIVE)->at = collectives->len - 1;
  return TRUE;
}

gboolean
gpu_collective_library (struct gpu_rank_unit at, uint32_t op, GError **error)
{
  const struct weft_op *row = &at.r->p->op[op];

  if (weft_op_info[row->kind].class == WEFT_CLASS_P2P) {
    emit_neighbour (at, op);
    return TRUE;
  }
  if (gpu_is_counted (row->kind)) {
    gpu_counted_emit (at, op);
    return TRUE;
  }
  return emit_nccl (at, op, weft_mesh_place (&at.r->m->base.plan->mesh, at.r->rank, row->group),
                    error);
}
