/* The order in which the launches of all ranks are issued. A launch is one op, or several ops that
 * are issued together (such as an ncclGroup).
 *
 * Each lane of a rank has a cursor, which points to its next launch. A launch is issued when all
 * launches that it waits for have been issued. A collective is issued only when the cursors of all
 * its members point to it.
 *
 *   one GPU per rank   All ranks of a pipeline stage share one cursor, so their calls have the same
 *                      order for any number of ranks and processes. A collective over several
 *                      stages has the same place in the order of all these stages.
 *   one GPU for all    Each rank has a cursor of its own. Sends and receives are completed when the
 *                      peers have begun the matching receives and sends. A call is enqueued after
 *                      the calls that it waits for, so the GPU cannot deadlock. */
#include "exec_gpu/issue.h"
#include "core/base/error.h"
#include "exec_gpu/emit.h"
#include "exec_gpu/order.h"

struct issue {
  struct gpu_machine *m;
  /* number of ranks that have the same calls, of which the first represents the others: the ranks
   * of a stage; 1 if all ranks share one GPU */
  uint32_t n_alike;
  /* [rank][lane]: number of launches of the lane that have been issued */
  uint32_t (*cursor)[WEFT_N_LANE];
  /* in stress mode, the generator of the random order of lanes; else NULL */
  GRand *rand;
  /* by rank: number of launches of lane d2h (copies of row counts to the host) for which the host
   * has waited */
  uint32_t *counts_read;
  gboolean waits;                  /* the host may now wait for the row counts of one more launch */
  /* array of struct gpu_rank_unit: the members of the current collective */
  GArray *members;
};

/* Number of the set of ranks with the same calls to which a rank belongs. */
static uint32_t
set_of (const struct issue *x, uint32_t rank)
{
  return x->m->shared ? rank : weft_mesh_stage (&x->m->base.plan->mesh, rank);
}

/* Rank `i` of a set; rank 0 represents the others. */
static uint32_t
rank_of (const struct issue *x, uint32_t set, uint32_t i)
{
  return x->m->shared ? set : weft_mesh_stage_rank (&x->m->base.plan->mesh, set, i);
}

static struct gpu_unit *
head_of (const struct issue *x, uint32_t row, uint32_t lane)
{
  const struct gpu_rank *r = &x->m->rank[row];
  uint32_t at = x->cursor[row][lane];

  return at < gpu_units_of (r, lane) ? gpu_unit_at (r, lane, at) : NULL;
}

/* Whether a launch must wait because the host has not yet read its row counts (the numbers of rows
 * that are sent and received). The host waits for row counts only when no other launch can be
 * issued: the ranks that compute the row counts may depend on other launches. */
static gboolean
is_held (const struct issue *x, uint32_t row, const struct gpu_unit *u)
{
  return u->counts_unit > x->counts_read[row] && !x->waits;
}

static gboolean
is_ready (const struct issue *x, uint32_t row, const struct gpu_unit *u)
{
  if (is_held (x, row, u))
    return FALSE;
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (u->wait[lane] > x->cursor[row][lane])
      return FALSE;
  return TRUE;
}

/* Whether two ops have the same kind and the same group of ranks. Sends and receives have a group,
 * too. */
static gboolean
is_like (const struct weft_op *a, const struct weft_op *b)
{
  return a->kind == b->kind && a->group == b->group;
}

static gboolean
is_there (const struct issue *x, uint32_t row)
{
  for (uint32_t i = 0; i < x->members->len; i++)
    if (g_array_index (x->members, struct gpu_rank_unit, i).r->row == row)
      return TRUE;
  return FALSE;
}

/* Collects the members of the next collective of a lane, in group order. FALSE: the collective is
 * not yet the next op of some member's lane. */
static gboolean
gather_members (struct issue *x, uint32_t row, uint32_t lane)
{
  const struct gpu_rank *r = &x->m->rank[row];
  const struct weft_op *op = &r->p->op[gpu_unit_op (r, head_of (x, row, lane), 0)];
  struct weft_group group = weft_mesh_group (&x->m->base.plan->mesh, r->rank, op->group);

  g_array_set_size (x->members, 0);
  for (uint32_t i = 0; i < weft_group_size (&group); i++) {
    uint32_t other = rank_of (x, set_of (x, weft_group_rank (&group, i)), 0);
    struct gpu_rank_unit at = { &x->m->rank[other], head_of (x, other, lane) };
    if (is_there (x, other))
      continue;
    if (!at.u || !is_ready (x, other, at.u) ||
        !is_like (&at.r->p->op[gpu_unit_op (at.r, at.u, 0)], op))
      return FALSE;
    g_array_append_val (x->members, at);
  }
  return TRUE;
}

/* Issues a launch on a rank and on all ranks with the same calls (in a job with a GPU for each
 * rank, all ranks of the pipeline stage). `talks`: whether the launch uses communicators. */
static gboolean
emit_alike (struct issue *x, struct gpu_rank_unit at, gboolean talks, GError **error)
{
  uint32_t index = (uint32_t) (at.u - at.r->unit);

  x->cursor[at.r->row][at.u->lane]++;
  if (at.u->counts_unit > x->counts_read[at.r->row]) {
    x->counts_read[at.r->row] = at.u->counts_unit;
    x->waits = FALSE;
  }
  for (uint32_t i = 0; i < x->n_alike; i++) {
    struct gpu_rank *r = &x->m->rank[rank_of (x, set_of (x, at.r->row), i)];
    struct gpu_rank_unit here = { r, r->here ? &r->unit[index] : NULL };
    if (r->here && !(talks ? gpu_emit_launch : gpu_emit_local) (here, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
issue_collective (struct issue *x, GError **error)
{
  const struct gpu_rank_unit *there = &g_array_index (x->members, struct gpu_rank_unit, 0);
  const struct weft_op *op = &there->r->p->op[gpu_unit_op (there->r, there->u, 0)];
  gboolean alone = weft_mesh_group_size (&x->m->base.plan->mesh, op->group) == 1;

  if (x->m->shared) {
    for (uint32_t i = 0; i < x->members->len; i++)
      x->cursor[there[i].r->row][there[i].u->lane]++;
    return gpu_emit_collective (there, x->members->len, error);
  }
  for (uint32_t i = 0; i < x->members->len; i++)
    if (!emit_alike (x, there[i], !alone, error))
      return FALSE;
  return TRUE;
}

static gboolean
have_others_come (struct gpu_rank_unit at)
{
  for (uint32_t i = 0; i < at.u->n; i++) {
    uint32_t row, peer;
    if (!gpu_transfer_peer (at.r, gpu_unit_op (at.r, at.u, i), &row, &peer))
      return FALSE;
    const struct gpu_rank *other = &at.r->m->rank[row];
    if (!other->unit[other->unit_of[peer]].posted)
      return FALSE;
  }
  return TRUE;
}

/* Issues sends and receives that are launched together. Ranks that share a GPU need two calls: one
 * that begins the transfers and one that completes them. *moved: whether this call issued
 * anything. */
static gboolean
issue_transfers (struct issue *x, struct gpu_rank_unit at, gboolean *moved, GError **error)
{
  *moved = TRUE;
  if (!x->m->shared)
    return emit_alike (x, at, TRUE, error);
  if (!at.u->posted)
    return gpu_emit_post (at, error);
  if ((*moved = have_others_come (at))) {
    x->cursor[at.r->row][at.u->lane]++;
    return gpu_emit_leave (at, error);
  }
  return TRUE;
}

/* Issues the next launch of a lane, or the first part of it, if its dependencies allow it. *moved:
 * whether anything was issued. */
static gboolean
try_head (struct issue *x, struct gpu_rank_unit at, gboolean *moved, GError **error)
{
  enum weft_op_class class = weft_op_info[at.r->p->op[gpu_unit_op (at.r, at.u, 0)].kind].class;

  if (class == WEFT_CLASS_P2P)
    return issue_transfers (x, at, moved, error);
  *moved = class != WEFT_CLASS_COLLECTIVE || gather_members (x, at.r->row, at.u->lane);
  if (!*moved)
    return TRUE;
  return class == WEFT_CLASS_COLLECTIVE ? issue_collective (x, error)
                                        : emit_alike (x, at, FALSE, error);
}

static gboolean
try_lane (struct issue *x, uint32_t row, uint32_t lane, gboolean *moved, GError **error)
{
  struct gpu_rank_unit at = { &x->m->rank[row], NULL };
  gboolean again = TRUE;

  while (again && (at.u = head_of (x, row, lane)) && is_ready (x, row, at.u)) {
    if (!try_head (x, at, &again, error))
      return FALSE;
    *moved |= again;
    again = again && !x->rand;
  }
  return TRUE;
}

static gboolean
report_stuck (const struct issue *x, GError **error)
{
  g_autoptr (GString) text = g_string_new ("all ranks wait for each other:");
  gboolean stuck = FALSE;

  for (uint32_t set = 0; set < x->m->n / x->n_alike; set++)
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
      uint32_t row = rank_of (x, set, 0);
      const struct gpu_rank *r = &x->m->rank[row];
      const struct gpu_unit *u = head_of (x, row, lane);
      if (!u)
        continue;
      uint32_t op = gpu_unit_op (r, u, 0);
      g_autofree char *label = weft_op_label (r->p, op);
      g_string_append_printf (text, " rank %u at op %u (%s);", r->rank, op, label);
      stuck = TRUE;
    }
  return !stuck || weft_run_error (error, "%s", text->str);
}

/* The lanes of all ranks, as rank * WEFT_N_LANE + lane. Lanes of communication come first, because
 * other ranks may be waiting for them. */
static uint32_t *
lanes_in_order (const struct issue *x, uint32_t *n)
{
  uint32_t *at = g_new (uint32_t, x->m->n * WEFT_N_LANE);

  *n = 0;
  for (uint32_t set = 0; set < x->m->n / x->n_alike; set++)
    for (uint32_t lane = WEFT_N_LANE; lane-- > 0;)
      at[(*n)++] = rank_of (x, set, 0) * WEFT_N_LANE + lane;
  return at;
}

static void
shuffle (GRand *rand, uint32_t *at, uint32_t n)
{
  for (uint32_t i = n; i > 1; i--) {
    uint32_t other = (uint32_t) g_rand_int_range (rand, 0, (gint32) i), kept = at[i - 1];
    at[i - 1] = at[other];
    at[other] = kept;
  }
}

static gboolean
issue_units (struct issue *x, GError **error)
{
  uint32_t n;
  g_autofree uint32_t *at = lanes_in_order (x, &n);
  gboolean moved = TRUE;

  while (moved || !x->waits) {
    x->waits = !moved;
    moved = FALSE;
    if (x->rand)
      shuffle (x->rand, at, n);
    for (uint32_t i = 0; i < n; i++)
      if (!try_lane (x, at[i] / WEFT_N_LANE, at[i] % WEFT_N_LANE, &moved, error))
        return FALSE;
  }
  return report_stuck (x, error);
}

gboolean
gpu_issue_all (struct gpu_machine *m, GError **error)
{
  struct issue x = { .m = m,
                     .n_alike = m->shared ? 1 : weft_mesh_stage_size (&m->base.plan->mesh),
                     .cursor = g_malloc0_n (m->n, sizeof *x.cursor),
                     .counts_read = g_new0 (uint32_t, m->n) };
  gboolean ok = TRUE;

  if (m->own.stress)
    x.rand = g_rand_new_with_seed ((guint32) m->own.stress);
  x.members = g_array_new (FALSE, FALSE, sizeof (struct gpu_rank_unit));
  for (uint32_t i = 0; ok && i < m->n_script; i++)
    ok = gpu_emit_start (&m->script[i], error);
  ok = ok && issue_units (&x, error);
  for (uint32_t i = 0; ok && i < m->n_script; i++)
    ok = gpu_emit_end (&m->script[i], error);
  g_array_unref (x.members);
  g_free (x.cursor);
  g_free (x.counts_read);
  if (x.rand)
    g_rand_free (x.rand);
  return ok;
}
