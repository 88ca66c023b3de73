/* Collectives over rows between GPUs that each have a rank. The numbers of rows (row counts) are
 * known only during the step, for example when a MoE layer sends tokens to experts.
 *
 * A copy op of the plan copies the row counts to the host before the collective is issued. The host
 * waits for the event of this copy, then issues sends and receives of exactly these numbers of
 * rows. Two members that have no rows for each other issue no send and no receive: both know the
 * row counts.
 *
 *   all_to_all_v       sends each member its part and receives this member's part from each member
 *   all_gather_v       sends this member's rows to all members and receives their rows
 *   reduce_scatter_v   sends each member the terms of its rows and adds the received terms in the
 *                      order of the members (core/program/coll.h: direct) */
#include "exec_gpu/counted.h"
#include "exec_gpu/comm.h"
#include "exec_gpu/script.h"

gboolean
gpu_is_counted (enum weft_op_kind kind)
{
  return kind != weft_op_even (kind);
}

/* --------------------------------------------------------- row counts on the host */

static uint32_t
owner_of (const weft_program *p, uint32_t op, uint32_t operand)
{
  return weft_buf_owner (p, p->uses[p->op[op].uses + operand].buf);
}

/* The last copy op before `op` on a lane of copies that writes buffer `buf`; WEFT_NO_OP: there is
 * none. */
static uint32_t
copy_into (const weft_program *p, enum weft_lane lane, uint32_t op, uint32_t buf)
{
  uint32_t newest = WEFT_NO_OP;

  for (uint32_t i = 0; i < p->lane_n[lane]; i++) {
    uint32_t copy = p->lane_ops[lane][i];
    gboolean moves = weft_op_is_pooled_copy (p->op[copy].kind);
    if (moves && copy < op && owner_of (p, copy, 1) == buf)
      newest = copy;
  }
  return newest;
}

/* The buffer that contains the row counts of an operand. Row counts that backward reads again may
 * have been offloaded to the host and copied back (core/passes/layer/offload.c); in this case,
 * returns the buffer from which they were offloaded. */
static uint32_t
first_owner_of (const weft_program *p, uint32_t op, uint32_t operand)
{
  uint32_t buf = owner_of (p, op, operand), back = copy_into (p, WEFT_LANE_H2D, op, buf);
  uint32_t gone =
      back == WEFT_NO_OP ? WEFT_NO_OP : copy_into (p, WEFT_LANE_D2H, back, owner_of (p, back, 0));

  return gone == WEFT_NO_OP ? buf : owner_of (p, gone, 0);
}

/* Returns the number of the operand of the copy op `copy` that contains the row counts of operand
 * `operand` of the collective `op`. WEFT_NO_OP: `copy` does not copy them. */
static uint32_t
table_of (const weft_program *p, uint32_t copy, uint32_t op, uint32_t operand)
{
  uint32_t n = p->op[copy + 1].uses - p->op[copy].uses, first = first_owner_of (p, op, operand);

  for (uint32_t i = 0; i < n && p->op[copy].kind == WEFT_OP_COPY_OUT; i++)
    if (p->uses[p->op[copy].uses + i].buf != WEFT_NO_BUF && owner_of (p, copy, i) == first)
      return i;
  return WEFT_NO_OP;
}

uint32_t
gpu_counted_source (const weft_program *p, uint32_t op)
{
  gboolean swaps = weft_op_swaps (p->op[op].kind);

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_D2H]; i++) {
    uint32_t copy = p->lane_ops[WEFT_LANE_D2H][i];
    if (table_of (p, copy, op, 1) != WEFT_NO_OP &&
        (!swaps || table_of (p, copy, op, 3) != WEFT_NO_OP))
      return copy;
  }
  return WEFT_NO_OP;
}

/* Distance in bytes from the start of the owning buffer to `at`, an address in a view of that
 * buffer. */
static uint64_t
offset_of (const struct gpu_rank *r, const void *at, uint32_t buf)
{
  return (uint64_t) ((const uint8_t *) at - weft_bind_at (&r->bind, weft_buf_owner (r->p, buf)));
}

/* Returns where the row counts of an operand are in the mailbox, which is their copy in host
 * memory. */
static const int64_t *
mailed (const struct gpu_rank *r, uint32_t op, uint32_t operand)
{
  uint32_t copy = gpu_counted_source (r->p, op), table = table_of (r->p, copy, op, operand);
  const struct weft_use *mine = weft_bind_use (&r->bind, op, operand);
  uint32_t table_buf = weft_bind_use (&r->bind, copy, table)->buf;
  const uint8_t *at = r->mailbox + r->slot[copy];

  for (uint32_t i = 0; i < table; i++)
    at += gpu_slot_bytes (gpu_mail_bytes (r, copy, i));
  at += offset_of (r, weft_bind_operand (&r->bind, mine).data, mine->buf);
  at -= offset_of (r, weft_bind_at (&r->bind, table_buf), table_buf);
  return (const int64_t *) (const void *) at;
}

/* Sum of the row counts of members [first, last). Returns G_MAXUINT64, a number of rows that fits
 * into no buffer, if a count is negative or the sum overflows. */
static uint64_t
rows_of (const struct gpu_counted *x, const int64_t *counts, uint32_t first, uint32_t last)
{
  uint64_t sum = 0;

  for (uint64_t i = (uint64_t) first * x->each; i < (uint64_t) last * x->each; i++) {
    if (counts[i] < 0 || (uint64_t) counts[i] > G_MAXUINT64 - sum)
      return G_MAXUINT64;
    sum += (uint64_t) counts[i];
  }
  return sum;
}

/* ------------------------------------------------------------------------ opening */

static struct weft_place
place_of (const struct gpu_rank *r, uint32_t op)
{
  return weft_mesh_place (&r->m->base.plan->mesh, r->rank, r->p->op[op].group);
}

/* The scratch stores the rows that other members send to this member, before they are added. */
uint64_t
gpu_counted_scratch (const struct gpu_rank *r, uint32_t op)
{
  uint32_t lane = r->p->op[op].lane, end = weft_program_group_end (r->p, lane, r->p->pos[op]);
  uint64_t bytes = 0;

  for (uint32_t i = r->p->pos[op]; i < end && !r->m->shared; i++) {
    uint32_t other = r->p->lane_ops[lane][i];
    if (r->p->op[other].kind == WEFT_OP_REDUCE_SCATTER_V)
      bytes +=
          (place_of (r, other).of - 1) * r->p->buf[weft_bind_use (&r->bind, other, 2)->buf].bytes;
  }
  return bytes;
}

static void
open_sum (struct gpu_counted *x, struct gpu_rank_unit at, uint32_t op)
{
  x->parts = (uint8_t *) at.r->scratch[at.u->lane].at +
             gpu_counted_scratch (at.r, gpu_unit_op (at.r, at.u, 0)) -
             gpu_counted_scratch (at.r, op);
  x->term = g_new0 (const void *, x->n);
  x->sum = g_new (struct weft_gpu_join, 1);
  *x->sum = (struct weft_gpu_join){ .dtype = x->dtype,
                                    .how = WEFT_GPU_ADD,
                                    .before = 1,
                                    .after = 1,
                                    .n_term = x->n,
                                    .term = x->term,
                                    .out = x->to };
}

void
gpu_counted_emit (struct gpu_rank_unit at, uint32_t op)
{
  const struct gpu_rank *r = at.r;
  const struct weft_shape *shape = weft_op_shape (r->p, op);
  const struct weft_place me = place_of (r, op);
  const struct weft_bound_operands bound = weft_bind_collective (&r->bind, op, &me);
  struct gpu_counted *x = g_new0 (struct gpu_counted, 1);
  GPtrArray *all = gpu_script_of (r->m, r)->counted;

  x->comm = gpu_comm_of (r, &r->p->op[op]);
  x->kind = r->p->op[op].kind;
  x->n = me.of;
  x->me = me.at;
  x->each = (uint32_t) (bound.send.n / me.of);
  x->counts = mailed (r, op, 1);
  x->got = weft_op_swaps (x->kind) ? mailed (r, op, 3) : NULL;
  x->from = bound.data;
  x->to = bound.slice;
  x->columns = shape->dim[1];
  x->dtype = shape->dtype;
  x->row = x->columns * weft_dtype_bytes (x->dtype);
  x->from_rows = r->p->buf[weft_bind_use (&r->bind, op, 0)->buf].bytes / x->row;
  x->to_rows = r->p->buf[weft_bind_use (&r->bind, op, 2)->buf].bytes / x->row;
  if (x->kind == WEFT_OP_REDUCE_SCATTER_V)
    open_sum (x, at, op);
  g_ptr_array_add (all, x);
  gpu_script_call (at, op, GPU_COUNTED)->at = all->len - 1;
}

/* The sum reads the rows that the exchange of the reduce-scatter has received from the other
 * members. */
void
gpu_counted_end (struct gpu_rank_unit at, uint32_t op)
{
  struct gpu_script *s = gpu_script_of (at.r->m, at.r);

  for (uint32_t i = s->call->len; at.r->p->op[op].kind == WEFT_OP_REDUCE_SCATTER_V && i-- > 0;) {
    const struct gpu_call *c = &g_array_index (s->call, struct gpu_call, i);
    if (c->kind != GPU_COUNTED || c->op != op)
      continue;
    uint32_t number = c->at;
    gpu_script_call (at, op, GPU_TOTAL)->at = number;
    return;
  }
}

void
gpu_counted_free (void *counted)
{
  struct gpu_counted *x = counted;

  g_free (x->term);
  g_free (x->sum);
  g_free (x);
}

/* --------------------------------------------------------------------------- a step */

/* The rows that are sent to a member or received from a member: address of the first row, and
 * number of rows. */
struct load {
  uint8_t *at;
  uint64_t rows;
};

static struct load
load_to (const struct gpu_counted *x, uint32_t member)
{
  uint32_t part = x->kind == WEFT_OP_ALL_GATHER_V ? x->me : member;
  uint64_t before = x->kind == WEFT_OP_ALL_GATHER_V ? 0 : rows_of (x, x->counts, 0, part);

  return (struct load){ x->from + before * x->row, rows_of (x, x->counts, part, part + 1) };
}

static struct load
load_from (const struct gpu_counted *x, uint32_t member)
{
  const int64_t *counts = x->got ? x->got : x->counts;

  if (x->kind == WEFT_OP_REDUCE_SCATTER_V)
    return (struct load){ x->parts + (member - (member > x->me)) * x->to_rows * x->row,
                          rows_of (x, counts, x->me, x->me + 1) };
  return (struct load){ x->to + rows_of (x, counts, 0, member) * x->row,
                        rows_of (x, counts, member, member + 1) };
}

/* Whether the rows of all row counts fit into the buffers. More rows would overwrite other
 * buffers. */
static gboolean
fits (const struct gpu_counted *x)
{
  gboolean gathers = x->kind == WEFT_OP_ALL_GATHER_V, sums = x->kind == WEFT_OP_REDUCE_SCATTER_V;
  uint64_t own = rows_of (x, x->counts, x->me, x->me + 1), all = rows_of (x, x->counts, 0, x->n);

  return (gathers ? own : all) <= x->from_rows && (sums     ? own
                                                   : x->got ? rows_of (x, x->got, 0, x->n)
                                                            : all) <= x->to_rows;
}

static const char *
give (const struct gpu_script *s, const struct gpu_counted *x, const struct load *load,
      uint32_t member, gboolean recv, weft_gpu_stream *stream)
{
  const struct weft_gpu_transfer t = { .comm = x->comm,
                                       .data = load->at,
                                       .n = load->rows * x->columns,
                                       .dtype = x->dtype,
                                       .peer = member };

  if (t.n == 0)
    return NULL;
  return recv ? GPU_CALL (s->m, recv, &t, stream) : GPU_CALL (s->m, send, &t, stream);
}

/* A member also sends its own rows to itself, except in a reduce-scatter, where the sum reads them
 * in place. */
const char *
gpu_counted_send (const struct gpu_script *s, const struct gpu_call *call)
{
  const struct gpu_counted *x = g_ptr_array_index (s->counted, call->at);
  const char *said = NULL;

  if (!fits (x))
    return "the buffer is too small for the counted rows";
  for (uint32_t i = 0; i < x->n && !said; i++) {
    struct load to = load_to (x, i), from = load_from (x, i);
    if (x->sum && i == x->me)
      continue;
    said = give (s, x, &to, i, FALSE, call->stream);
    if (!said)
      said = give (s, x, &from, i, TRUE, call->stream);
  }
  return said;
}

const char *
gpu_counted_sum (const struct gpu_script *s, const struct gpu_call *call)
{
  struct gpu_counted *x = g_ptr_array_index (s->counted, call->at);

  for (uint32_t i = 0; i < x->n; i++)
    x->term[i] = (i == x->me ? load_to (x, i) : load_from (x, i)).at;
  x->sum->n = rows_of (x, x->counts, x->me, x->me + 1) * x->columns;
  return x->sum->n == 0 ? NULL : GPU_CALL (s->m, join, x->sum, call->stream);
}
