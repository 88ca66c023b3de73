#include "core/plan/replay.h"
#include "core/base/error.h"
#include <math.h>
#include <string.h>

/* A lane of an actor: its next op, the time at which it is free, and the communication that it has
 * posted. */
struct lane {
  uint32_t cursor;
  double free_at;
  gboolean posted;
  uint32_t pending; /* sends and receives of the posted group whose peer has not posted its side */
  double group_end;
};

/* The next collective of a communicator, which some members have issued: the number of these
 * members, the first of them, and the latest time at which one of them was ready. */
struct meeting {
  uint32_t arrived, first_actor;
  double ready;
};

/* A posted send or receive across a stage boundary, which waits for the matching transfer of the
 * peer stage. */
struct post {
  uint32_t op; /* WEFT_NO_OP: no transfer has been posted */
  double ready;
};

struct run {
  const struct weft_replay *r;
  const weft_actors *a;
  struct lane *lanes;         /* [actor][lane] */
  struct meeting *meetings;   /* [comm] */
  /* [actor][direction]: sends to and receives from the next stage (direction 0) or the previous
   * stage (direction 1) */
  struct post *sends, *recvs;
  struct weft_host_clock *hosts; /* [actor] */
  GArray *dirty;              /* stack of actors whose lanes may advance */
  gboolean *is_dirty;
  GError *error;
};

static const weft_program *
program_of (const struct run *x, uint32_t actor)
{
  return x->r->role[x->a->role[actor]];
}

static struct lane *
lane_at (const struct run *x, uint32_t actor, enum weft_lane lane)
{
  return &x->lanes[(size_t) actor * WEFT_N_LANE + lane];
}

static void
mark (struct run *x, uint32_t actor)
{
  if (x->is_dirty[actor])
    return;
  x->is_dirty[actor] = TRUE;
  g_array_append_val (x->dirty, actor);
}

static double
cost (const struct run *x, uint32_t actor, uint32_t op)
{
  return x->r->seconds ? x->r->seconds (x->r->user, actor, op) : 0;
}

static void
record (const struct run *x, uint32_t actor, uint32_t op, double begin, double end)
{
  if (x->r->begin)
    x->r->begin[actor][op] = begin;
  if (x->r->end)
    x->r->end[actor][op] = end;
}

struct asked {
  const struct run *x;
  uint32_t actor;
};

static gboolean
has_ended (const struct run *x, uint32_t actor, uint32_t op)
{
  const weft_program *p = program_of (x, actor);

  return p->pos[op] < lane_at (x, actor, p->op[op].lane)->cursor;
}

static double
end_of (void *user, uint32_t op)
{
  const struct asked *a = user;

  return has_ended (a->x, a->actor, op) ? a->x->r->end[a->actor][op] : NAN;
}

/* Raises *ready to the time at which the host issues `op`. FALSE: that time is not known yet. */
static gboolean
issued (const struct run *x, uint32_t actor, uint32_t op, double *ready)
{
  const weft_host *host = x->r->hosts ? x->r->hosts[x->a->role[actor]] : NULL;
  struct asked asked = { x, actor };
  double date;

  if (!host)
    return TRUE;
  if (!weft_host_issues (host, &x->hosts[actor], op, end_of, &asked, &date))
    return FALSE;
  *ready = MAX (*ready, date);
  return TRUE;
}

/* Raises *ready to the time at which the dependencies of `op` have ended and the host has issued
 * `op`. FALSE: that time is not known yet. */
static gboolean
deps_ready (const struct run *x, uint32_t actor, uint32_t op, double *ready)
{
  const weft_program *p = program_of (x, actor);

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    uint32_t dep = p->deps[d];
    if (!has_ended (x, actor, dep))
      return FALSE;
    if (x->r->end)
      *ready = MAX (*ready, x->r->end[actor][dep]);
  }
  return issued (x, actor, op, ready);
}

static void
disagree (struct run *x, uint32_t a, uint32_t op_a, uint32_t b, uint32_t op_b)
{
  g_autofree char *one = weft_op_label (program_of (x, a), op_a),
                  *two = weft_op_label (program_of (x, b), op_b);

  if (!x->error)
    weft_bad_input (&x->error,
                    "role %u issues %s %s (op %u) where role %u issues %s %s (op %u): members of a "
                    "group must agree in kind, size, type and order",
                    x->a->role[a], weft_op_info[program_of (x, a)->op[op_a].kind].word, one, op_a,
                    x->a->role[b], weft_op_info[program_of (x, b)->op[op_b].kind].word, two, op_b);
}

/* Sets an error about an op whose stage or group does not exist for this role, or whose lane is
 * wrong for its group. */
static void
nobody_there (struct run *x, uint32_t actor, uint32_t op)
{
  const weft_program *p = program_of (x, actor);
  g_autofree char *text = weft_op_label (p, op);

  if (!x->error)
    weft_bad_input (&x->error,
                    "role %u issues %s %s (op %u), which has no partner: peer %+d, "
                    "group %s, lane %s",
                    x->a->role[actor], weft_op_info[p->op[op].kind].word, text, op, p->op[op].peer,
                    weft_group_word (p->op[op].group), weft_lane_words[p->op[op].lane]);
}

static gboolean
same_shape (const struct run *x, uint32_t a, uint32_t op_a, uint32_t b, uint32_t op_b)
{
  return memcmp (weft_op_shape (program_of (x, a), op_a), weft_op_shape (program_of (x, b), op_b),
                 sizeof (struct weft_shape)) == 0;
}

/* Whether two ops may share a group launch. TRUE: their kind, reduction, group of ranks and peer
 * are equal. */
static gboolean
is_alike (const struct weft_op *i, const struct weft_op *j)
{
  return i->kind == j->kind && i->reduce == j->reduce && i->group == j->group && i->peer == j->peer;
}

static gboolean
same_collective (const struct run *x, uint32_t a, uint32_t op_a, uint32_t b, uint32_t op_b)
{
  const weft_program *p = program_of (x, a), *q = program_of (x, b);
  const struct weft_op *i = &p->op[op_a], *j = &q->op[op_b];

  return is_alike (i, j) && i->micro == j->micro &&
         strcmp (p->name[i->name], q->name[j->name]) == 0 && same_shape (x, a, op_a, b, op_b);
}

/* The ops of the launch group that the next op of a lane begins; sets *n to their number. */
static const uint32_t *
group_of (const struct run *x, uint32_t actor, enum weft_lane lane, uint32_t *n)
{
  const weft_program *p = program_of (x, actor);
  uint32_t first = lane_at (x, actor, lane)->cursor;

  *n = weft_program_group_end (p, lane, first) - first;
  return &p->lane_ops[lane][first];
}

static void
finish_collective (struct run *x, struct meeting *m, const struct weft_comm *comm,
                   enum weft_lane lane)
{
  double end = m->ready;
  uint32_t n;
  const uint32_t *op = group_of (x, m->first_actor, lane, &n);

  for (uint32_t j = 0; j < n; j++)
    end += cost (x, m->first_actor, op[j]);
  for (uint32_t i = 0; i < comm->n_actor; i++) {
    uint32_t actor = comm->actor[i];
    struct lane *l = lane_at (x, actor, lane);
    op = group_of (x, actor, lane, &n);
    for (uint32_t j = 0; j < n; j++)
      record (x, actor, op[j], m->ready, end);
    l->cursor += n;
    l->free_at = end;
    l->posted = FALSE;
    mark (x, actor);
  }
  *m = (struct meeting){ 0 };
}

/* Sets an error if the launch of `actor` differs from the launch of the first member, or if the
 * collectives of the launch may not share a launch (is_alike()). */
static void
compare_launches (struct run *x, const struct meeting *m, uint32_t actor, enum weft_lane lane)
{
  uint32_t n_first, n;
  const uint32_t *first = group_of (x, m->first_actor, lane, &n_first),
                 *op = group_of (x, actor, lane, &n);
  const struct weft_op *row = program_of (x, actor)->op;

  for (uint32_t i = 0; i < MAX (n_first, n); i++)
    if (i >= n_first || i >= n || !is_alike (&row[op[0]], &row[op[i]]) ||
        !same_collective (x, m->first_actor, first[i], actor, op[i])) {
      disagree (x, m->first_actor, first[MIN (i, n_first - 1)], actor, op[MIN (i, n - 1)]);
      return;
    }
}

/* Records that an actor has issued its next collective. When the last member issues it, the
 * collective runs. */
static void
arrive (struct run *x, uint32_t actor, uint32_t op, double ready)
{
  const struct weft_op *row = &program_of (x, actor)->op[op];
  uint32_t c = x->a->comm_of[(size_t) actor * WEFT_N_GROUP + row->group];
  if (c == WEFT_NO_ACTOR || weft_group_lane (row->group) != row->lane) {
    nobody_there (x, actor, op);
    return;
  }
  const struct weft_comm *comm = &x->a->comm[c];
  struct meeting *m = &x->meetings[c];

  if (m->arrived == 0)
    m->first_actor = actor;
  compare_launches (x, m, actor, row->lane);
  m->ready = m->arrived ? MAX (m->ready, ready) : ready;
  if (++m->arrived == comm->n_actor)
    finish_collective (x, m, comm, row->lane);
}

/* Ends a launch group after all its transfers have ended; the lane continues with its next op. */
static void
finish_group (struct run *x, uint32_t actor, enum weft_lane lane)
{
  const weft_program *p = program_of (x, actor);
  struct lane *l = lane_at (x, actor, lane);
  uint32_t last = weft_program_group_end (p, lane, l->cursor);

  for (uint32_t i = l->cursor; i < last; i++) {
    uint32_t op = p->lane_ops[lane][i];
    if (x->r->end)
      x->r->end[actor][op] = l->group_end;
  }
  l->cursor = last;
  l->free_at = l->group_end;
  l->posted = FALSE;
  mark (x, actor);
}

/* Records begin and end of a transfer that has matched the peer's transfer. The last matched
 * transfer of a launch group ends the group. */
static void
meet (struct run *x, uint32_t actor, uint32_t op, double begin, double end)
{
  enum weft_lane lane = program_of (x, actor)->op[op].lane;
  struct lane *l = lane_at (x, actor, lane);

  record (x, actor, op, begin, end);
  l->group_end = MAX (l->group_end, end);
  if (--l->pending == 0)
    finish_group (x, actor, lane);
}

/* Posts a transfer, and completes it if the peer has posted its side. A send to the next stage
 * matches that stage's receive from the previous stage, and a send to the previous stage matches
 * that stage's receive from the next stage. */
static void
post_transfer (struct run *x, uint32_t actor, uint32_t op, double ready)
{
  const struct weft_op *row = &program_of (x, actor)->op[op];
  int direction = row->peer < 0;
  gboolean sends = row->kind == WEFT_OP_SEND;
  uint32_t peer = x->a->peer[2 * actor + direction];
  if (peer == WEFT_NO_ACTOR || ABS (row->peer) != 1) {
    nobody_there (x, actor, op);
    return;
  }
  struct post *mine = &(sends ? x->sends : x->recvs)[2 * actor + direction];
  struct post *theirs = &(sends ? x->recvs : x->sends)[2 * peer + !direction];

  if (theirs->op == WEFT_NO_OP) {
    *mine = (struct post){ op, ready };
    return;
  }
  uint32_t other = theirs->op;
  const struct weft_op *row2 = &program_of (x, peer)->op[other];
  if (row->micro != row2->micro || row->phase != row2->phase ||
      !same_shape (x, actor, op, peer, other))
    disagree (x, actor, op, peer, other);
  double begin = MAX (ready, theirs->ready);
  double end = begin + (sends ? cost (x, actor, op) : cost (x, peer, other));
  theirs->op = WEFT_NO_OP;
  meet (x, actor, op, begin, end);
  meet (x, peer, other, begin, end);
}

/* Whether all ops of the launch group that a lane begins next may start. Raises *ready to the time
 * at which the last of them may start. */
static gboolean
group_ready (const struct run *x, uint32_t actor, enum weft_lane lane, double *ready)
{
  uint32_t n;
  const uint32_t *op = group_of (x, actor, lane, &n);

  for (uint32_t i = 0; i < n; i++)
    if (!deps_ready (x, actor, op[i], ready))
      return FALSE;
  return TRUE;
}

static void
post_group (struct run *x, uint32_t actor, enum weft_lane lane, double ready)
{
  struct lane *l = lane_at (x, actor, lane);
  uint32_t n;
  const uint32_t *op = group_of (x, actor, lane, &n);

  l->posted = TRUE;
  l->pending = n;
  l->group_end = 0;
  for (uint32_t i = 0; i < n && !x->error; i++)
    post_transfer (x, actor, op[i], ready);
}

/* Runs the ops of one lane until an op must wait. Returns TRUE if at least one op was run or
 * posted. */
static gboolean
advance_lane (struct run *x, uint32_t actor, enum weft_lane lane)
{
  const weft_program *p = program_of (x, actor);
  struct lane *l = lane_at (x, actor, lane);
  gboolean moved = FALSE;

  while (l->cursor < p->lane_n[lane] && !l->posted && !x->error) {
    uint32_t op = p->lane_ops[lane][l->cursor];
    double ready = l->free_at;
    enum weft_op_class class = weft_op_info[p->op[op].kind].class;

    if (class == WEFT_CLASS_P2P || class == WEFT_CLASS_COLLECTIVE
            ? !group_ready (x, actor, lane, &ready)
            : !deps_ready (x, actor, op, &ready))
      break;
    if (class == WEFT_CLASS_P2P) {
      post_group (x, actor, lane, ready);
    } else if (class == WEFT_CLASS_COLLECTIVE) {
      l->posted = TRUE;
      arrive (x, actor, op, ready);
    } else {
      l->free_at = ready + cost (x, actor, op);
      record (x, actor, op, ready, l->free_at);
      l->cursor++;
    }
    moved = TRUE;
  }
  return moved;
}

static void
advance (struct run *x, uint32_t actor)
{
  gboolean moved = TRUE;

  while (moved && !x->error) {
    moved = FALSE;
    for (int lane = 0; lane < WEFT_N_LANE; lane++)
      moved |= advance_lane (x, actor, lane);
  }
}

static void
report_deadlock (struct run *x)
{
  GString *who = g_string_new (NULL);
  uint32_t listed = 0;

  for (uint32_t actor = 0; actor < x->a->n && listed < 12; actor++)
    for (int lane = 0; lane < WEFT_N_LANE && listed < 12; lane++) {
      const weft_program *p = program_of (x, actor);
      uint32_t cursor = lane_at (x, actor, lane)->cursor;
      if (cursor == p->lane_n[lane])
        continue;
      uint32_t op = p->lane_ops[lane][cursor];
      g_autofree char *text = weft_op_label (p, op);
      g_string_append_printf (who, "%srole %u lane %s at op %u (%s %s)", listed++ ? "; " : "",
                              p->role, weft_lane_words[lane], op, weft_op_info[p->op[op].kind].word,
                              text);
    }
  if (listed)
    weft_bad_input (&x->error, "deadlock: %s", who->str);
  g_string_free (who, TRUE);
}

gboolean
weft_replay_run (const struct weft_replay *r, GError **error)
{
  const weft_actors *a = r->actors;
  struct run x = { .r = r, .a = a };

  x.lanes = g_new0 (struct lane, (size_t) a->n * WEFT_N_LANE);
  x.meetings = g_new0 (struct meeting, a->n_comm + 1);
  x.sends = g_new (struct post, (size_t) a->n * 2);
  x.recvs = g_new (struct post, (size_t) a->n * 2);
  x.hosts = g_new0 (struct weft_host_clock, a->n + 1);
  for (uint32_t actor = 0; actor < a->n && r->hosts; actor++)
    x.hosts[actor] = weft_host_clock_new (r->hosts[a->role[actor]]);
  memset (x.sends, 0xff, (size_t) a->n * 2 * sizeof *x.sends);
  memset (x.recvs, 0xff, (size_t) a->n * 2 * sizeof *x.recvs);
  x.dirty = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  x.is_dirty = g_new0 (gboolean, a->n);
  for (uint32_t actor = a->n; actor-- > 0;)
    mark (&x, actor);
  while (x.dirty->len && !x.error) {
    uint32_t actor = g_array_index (x.dirty, uint32_t, x.dirty->len - 1);
    g_array_set_size (x.dirty, x.dirty->len - 1);
    x.is_dirty[actor] = FALSE;
    advance (&x, actor);
  }
  if (!x.error)
    report_deadlock (&x);
  g_free (x.lanes);
  g_free (x.meetings);
  g_free (x.sends);
  g_free (x.recvs);
  for (uint32_t actor = 0; actor < a->n; actor++)
    weft_host_clock_clear (&x.hosts[actor]);
  g_free (x.hosts);
  g_array_unref (x.dirty);
  g_free (x.is_dirty);
  if (x.error)
    g_propagate_error (error, x.error);
  return x.error == NULL;
}
