/* Launches of a rank, and the waits between them.
 *
 * A lane is a stream, which executes its launches in order; events order launches of different
 * streams. The waits are the transitive reduction of the plan's order, which is unique: a launch
 * waits for an event only if neither its other waits nor the order of its lane imply this wait.
 *
 * Some launches have no device work (they only free memory, or are collectives of one rank). Such a
 * launch is not part of the order: a launch that depends on it inherits its dependencies. */
#include "exec_gpu/order.h"
#include "exec_gpu/counted.h"
#include <string.h>

static void
count_units (struct gpu_rank *r)
{
  const weft_program *p = r->p;

  r->unit = g_new0 (struct gpu_unit, p->n_op + 1);
  r->unit_of = g_new (uint32_t, p->n_op + 1);
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    r->first_unit[lane] = r->n_unit;
    for (uint32_t pos = 0; pos < p->lane_n[lane];) {
      struct gpu_unit *u = &r->unit[r->n_unit];
      u->lane = (uint8_t) lane;
      u->index = r->n_unit - r->first_unit[lane];
      u->pos = pos;
      u->n = weft_program_group_end (p, lane, pos) - pos;
      for (uint32_t i = 0; i < u->n; i++)
        r->unit_of[p->lane_ops[lane][pos++]] = r->n_unit;
      r->n_unit++;
    }
  }
  r->first_unit[WEFT_N_LANE] = r->n_unit;
}

/* Collects the dependencies of each launch on launches of other lanes. Launches of one lane run in
 * order, so dependencies inside a lane need no entry. */
static void
find_needs (struct gpu_rank *r)
{
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    struct gpu_unit *u = &r->unit[r->unit_of[op]];
    u->need[GPU_START] = u->index == 0;
    for (uint32_t d = r->p->op[op].deps; d < r->p->op[op + 1].deps; d++) {
      const struct gpu_unit *other = &r->unit[r->unit_of[r->p->deps[d]]];
      if (other->lane != u->lane)
        u->need[other->lane] = MAX (u->need[other->lane], other->index + 1);
    }
  }
  r->end.lane = WEFT_LANE_GPU;
  r->end.index = gpu_units_of (r, WEFT_LANE_GPU);
  r->end.need[GPU_START] = r->end.index == 0;
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (lane != WEFT_LANE_GPU)
      r->end.need[lane] = gpu_units_of (r, lane);
}

/* ------------------------------------------------------------------------- nothing */

static void
count_call (void *n, const struct weft_kernel *k)
{
  (void) k;
  ++*(uint32_t *) n;
}

static gboolean
is_nothing (const struct gpu_rank *r, uint32_t op)
{
  const struct weft_op *row = &r->p->op[op];
  const struct weft_place alone = { 0, 1 };
  uint32_t calls = 0;

  switch (weft_op_info[row->kind].class) {
  case WEFT_CLASS_COMPUTE:
    weft_bind_kernels (&r->bind, op, count_call, &calls);
    return calls == 0;
  case WEFT_CLASS_COPY:
    return weft_op_shape (r->p, op)->dim[0] == 0;
  case WEFT_CLASS_COLLECTIVE:
    if (weft_mesh_group_size (&r->m->base.plan->mesh, row->group) > 1 ||
        row->kind == WEFT_OP_SHIFT || row->reduce == WEFT_REDUCE_PREMUL)
      return FALSE;
    const struct weft_bound_operands bound = weft_bind_collective (&r->bind, op, &alone);
    return bound.slice == bound.data;
  case WEFT_CLASS_P2P:
    break;
  }
  return FALSE;
}

static void
find_idle (struct gpu_rank *r)
{
  for (uint32_t i = 0; i < r->n_unit; i++) {
    struct gpu_unit *u = &r->unit[i];
    u->idle = TRUE;
    for (uint32_t j = 0; j < u->n; j++)
      u->idle = u->idle && is_nothing (r, gpu_unit_op (r, u, j));
  }
}

static void
widen (uint32_t *into, const uint32_t *with)
{
  for (uint32_t column = 0; column < GPU_COLUMNS; column++)
    into[column] = MAX (into[column], with[column]);
}

/* Replaces dependencies on launches without device work by the dependencies of those launches. */
static void
settle_needs (struct gpu_rank *r, struct gpu_unit *u)
{
  uint32_t need[GPU_COLUMNS] = { [GPU_START] = u->need[GPU_START] };

  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (u->need[lane])
      widen (need, gpu_unit_at (r, lane, u->need[lane] - 1)->implies);
  if (u->index)
    widen (need, gpu_unit_at (r, u->lane, u->index - 1)->implies);
  memcpy (u->need, need, sizeof need);
  if (u->idle)
    memcpy (u->implies, need, sizeof need);
  else
    u->implies[u->lane] = u->index + 1;
}

/* ------------------------------------------------------------------------- order */

static void
come_after (struct gpu_unit *u, const struct gpu_unit *other)
{
  widen (u->before, other->before);
  u->before[other->lane] = MAX (u->before[other->lane], other->index + 1);
}

/* The last launch of a lane that launch `u` depends on, or NULL. */
static const struct gpu_unit *
needed (const struct gpu_rank *r, const struct gpu_unit *u, uint32_t lane)
{
  return u->need[lane] ? gpu_unit_at (r, lane, u->need[lane] - 1) : NULL;
}

/* Whether a wait is redundant: another launch that `u` waits for is itself ordered after the
 * awaited launch. */
static gboolean
is_implied (const struct gpu_rank *r, const struct gpu_unit *u, uint32_t column)
{
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    const struct gpu_unit *other = lane == column ? NULL : needed (r, u, lane);
    if (other && other->before[column] >= u->need[column])
      return TRUE;
  }
  return column == u->lane || (column == GPU_START && r->origin && u->lane == WEFT_LANE_GPU);
}

static void
order_unit (struct gpu_rank *r, struct gpu_unit *u)
{
  settle_needs (r, u);
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (needed (r, u, lane))
      come_after (u, needed (r, u, lane));
  u->before[GPU_START] = MAX (u->before[GPU_START], u->need[GPU_START]);
  for (uint32_t column = 0; column < GPU_COLUMNS && !u->idle; column++) {
    if (u->need[column] == 0 || is_implied (r, u, column))
      continue;
    u->wait[column] = u->need[column];
    if (column != GPU_START)
      gpu_unit_at (r, column, u->need[column] - 1)->awaited = TRUE;
  }
}

static gboolean
may_follow (const struct gpu_unit *u, const uint32_t *cursor)
{
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (u->need[lane] > cursor[lane])
      return FALSE;
  return TRUE;
}

/* Visits launches in a topological order. Such an order exists, because the plan was proved free of
 * deadlocks. */
static void
order_units (struct gpu_rank *r)
{
  uint32_t cursor[WEFT_N_LANE] = { 0 };
  gboolean moved = TRUE;

  while (moved) {
    moved = FALSE;
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
      while (cursor[lane] < gpu_units_of (r, lane) &&
             may_follow (gpu_unit_at (r, lane, cursor[lane]), cursor)) {
        order_unit (r, gpu_unit_at (r, lane, cursor[lane]++));
        moved = TRUE;
      }
  }
  order_unit (r, &r->end);
}

/* Number from 0 to 7 for the kind of a transfer: send or receive; to or from the next or the
 * previous stage; in the pipeline group or in the world group. */
static uint32_t
kind_of (const struct weft_op *row, gboolean recv, gboolean back)
{
  return 4 * recv + 2 * back + (row->group == WEFT_GROUP_WORLD);
}

/* Numbers the transfers of each kind, to match sends and receives: the k-th send to a neighbouring
 * stage belongs to the neighbour's k-th receive from this rank. */
static void
count_transfers (struct gpu_rank *r)
{
  r->transfer_of = g_new0 (uint32_t, r->p->n_op + 1);
  r->taken = g_new0 (weft_gpu_event *, r->p->n_op + 1);
  for (uint32_t i = 0; i < G_N_ELEMENTS (r->transfer); i++)
    r->transfer[i] = g_new (uint32_t, r->p->n_op + 1);
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    if (weft_op_info[row->kind].class != WEFT_CLASS_P2P)
      continue;
    uint32_t kind = kind_of (row, row->kind == WEFT_OP_RECV, row->peer < 0);
    r->transfer_of[op] = r->n_transfer[kind];
    r->transfer[kind][r->n_transfer[kind]++] = op;
  }
}

gboolean
gpu_transfer_peer (const struct gpu_rank *r, uint32_t op, uint32_t *row, uint32_t *peer)
{
  const struct weft_op *mine = &r->p->op[op];
  gboolean recv = mine->kind == WEFT_OP_RECV, back = mine->peer < 0;
  uint32_t rank = weft_mesh_beside (&r->m->base.plan->mesh, r->rank, back ? -1 : 1);

  if (rank == WEFT_NO_RANK)
    return FALSE;
  const struct gpu_rank *other = &r->m->rank[rank];
  uint32_t kind = kind_of (mine, !recv, !back);
  if (r->transfer_of[op] >= other->n_transfer[kind])
    return FALSE;
  *row = rank;
  *peer = other->transfer[kind][r->transfer_of[op]];
  return TRUE;
}

/* For each launch with row counts, finds the last launch that copies these row counts to the
 * host. */
static void
find_told (struct gpu_rank *r)
{
  for (uint32_t op = 0; op < r->p->n_op && !r->m->shared; op++) {
    struct gpu_unit *u = &r->unit[r->unit_of[op]];
    if (!gpu_is_counted (r->p->op[op].kind))
      continue;
    struct gpu_unit *copy = &r->unit[r->unit_of[gpu_counted_source (r->p, op)]];
    u->counts_unit = MAX (u->counts_unit, copy->index + 1);
    copy->awaited = TRUE;
  }
}

void
gpu_order_open (struct gpu_rank *r)
{
  count_units (r);
  find_needs (r);
  find_idle (r);
  order_units (r);
  find_told (r);
  count_transfers (r);
}

void
gpu_order_close (struct gpu_rank *r)
{
  g_free (r->unit);
  g_free (r->unit_of);
  g_free (r->transfer_of);
  g_free (r->taken);
  for (uint32_t i = 0; i < G_N_ELEMENTS (r->transfer); i++)
    g_free (r->transfer[i]);
}
