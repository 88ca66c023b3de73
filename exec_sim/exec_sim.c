#include "exec_sim/exec_sim.h"
#include "core/plan/cost.h"
#include "core/base/error.h"
#include "core/job/collectives.h"
#include "exec_sim/bridge.h"
#include "exec_sim/machine.h"
#include <math.h>
#include <string.h>

static void advance (struct sim *x, uint32_t actor);

gboolean
sim_deps_done (const struct sim *x, uint32_t actor, uint32_t op)
{
  const weft_program *p = sim_program (x, actor);

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    uint32_t dep = p->deps[d];
    if (p->pos[dep] >= sim_lane_at (x, actor, p->op[dep].lane)->cursor)
      return FALSE;
  }
  return TRUE;
}

struct asked {
  const struct sim *x;
  uint32_t actor;
};

static double
end_of (void *user, uint32_t op)
{
  const struct asked *a = user;
  const weft_program *p = sim_program (a->x, a->actor);

  return p->pos[op] < sim_lane_at (a->x, a->actor, p->op[op].lane)->cursor
             ? a->x->t->end[a->actor][op]
             : NAN;
}

gboolean
sim_host_issues (struct sim *x, uint32_t actor, uint32_t op, double *date)
{
  const weft_host *host = x->hosts[x->base.actors->role[actor]];
  struct asked asked = { x, actor };

  *date = -INFINITY;
  return !host || weft_host_issues (host, &x->clock[actor], op, end_of, &asked, date);
}

/* Whether a communication kernel occupies its SMs from its launch on, as on a GPU. FALSE on
 * topology cpu: a rank is one thread, which does other work while it waits for peers and is busy
 * only while bytes move. */
static gboolean
holds_sms_while_waiting (const struct sim *x)
{
  return !weft_cluster_is_cpu (&x->base.plan->job.cluster);
}

static uint32_t
comm_of (const struct sim *x, uint32_t actor, uint32_t op)
{
  uint8_t group = sim_program (x, actor)->op[op].group;
  return x->base.actors->comm_of[(size_t) actor * WEFT_N_GROUP + group];
}

static void
hold_sms (struct sim *x, uint32_t actor, uint32_t op, int sign)
{
  const weft_program *p = sim_program (x, actor);
  gboolean meets = weft_op_info[p->op[op].kind].class == WEFT_CLASS_COLLECTIVE;
  uint32_t sms = weft_plan_sms (x->base.plan, p, op,
                                meets ? &sim_comm_at (x, comm_of (x, actor, op))->shape : NULL);

  sim_gpu_take_sms (x, actor, sign * (int32_t) sms);
}

/* The first op of a lane (a queue of ops, like a CUDA stream) that has not ended. */
static uint32_t
op_of (const struct sim *x, uint32_t actor, enum weft_lane lane)
{
  return sim_program (x, actor)->lane_ops[lane][sim_lane_at (x, actor, lane)->cursor];
}

/* Starts the flow of one actor, the representative of a class of ranks that behave alike, over the
 * links that this class uses (actors.h). `most` limits the rate, in bytes per second. */
static void
start_paced_flow (struct sim *x, uint32_t actor, uint32_t pattern, double bytes, double most,
                  double latency, uint64_t tag)
{
  const struct weft_path *path = weft_actors_path (x->base.actors, actor, pattern);
  weft_bridge_paced_flow (bytes, path->link, bytes > 0 ? path->n : 0, most, latency, tag);
}

static void
start_flow (struct sim *x, uint32_t actor, uint32_t pattern, double bytes, double latency,
            uint64_t tag)
{
  start_paced_flow (x, actor, pattern, bytes, INFINITY, latency, tag);
}

/* Marks the timeline as contended if an op took longer than it takes alone. */
static void
mark_contention (struct sim *x, double took, double alone)
{
  if (took > alone * (1 + 1e-9))
    x->t->contended = TRUE;
}

/* Records that communication of `actor` on a lane waited from `since` until now for actor `behind`,
 * which has just launched its side of the communication. */
static void
note_wait (struct sim *x, uint32_t actor, uint32_t behind, enum weft_lane lane, double since)
{
  int64_t key = ((int64_t) actor * x->base.actors->n + behind) * WEFT_N_LANE + lane;
  double seconds = weft_bridge_now () - since;

  if (!x->waits || actor == behind || seconds <= 0)
    return;
  double *sum = g_hash_table_lookup (x->waits, &key);
  if (!sum) {
    sum = g_new0 (double, 1);
    g_hash_table_insert (x->waits, g_memdup2 (&key, sizeof key), sum);
  }
  *sum += seconds;
}

/* ------------------------------------------------------------- collectives */

/* Latency of one round of a collective, in seconds. */
static double
round_latency (const struct weft_traffic *t, uint32_t round)
{
  return weft_coll_step_latency (t, round) + (round == 0 ? weft_coll_base_latency (t) : 0);
}

/* Starts the flow of one member of a context-parallel shift. Unlike in other collectives, a rank
 * sends to one neighbour only. */
static void
start_shift (struct sim *x, uint32_t c, uint32_t actor, uint32_t op, double latency)
{
  enum weft_group_kind kind = x->base.actors->comm[c].kind;
  gboolean back = sim_program (x, actor)->op[op].peer < 0;

  x->collective[c].pending++;
  start_flow (x, actor, weft_ring_pattern (kind, back), x->collective[c].traffic.bytes[0], latency,
              sim_tag (SIM_COLLECTIVE, actor, c));
}

/* Rate of a collective's flows over one class of links, in bytes per second. (fabric.h calls such a
 * class a way: one axis of the network, or one direction of a torus axis.) A collective algorithm
 * is a pipeline: data that a rank sends to another node is also forwarded inside that node. So the
 * flows over all classes end at one time, which the busiest link determines. Without this rate
 * limit, a class with few bytes would get its fair share of a link that the busiest class also
 * uses, would end early, and would thereby delay the whole collective. */
static double
pace (const struct weft_traffic *t, uint32_t way)
{
  double seconds = t->seconds - t->latency;

  return t->bytes[way] > 0 && seconds > 0 ? t->bytes[way] / seconds : INFINITY;
}

static void
start_member_flows (struct sim *x, uint32_t c, uint32_t actor, double latency)
{
  struct sim_collective *m = &x->collective[c];
  enum weft_group_kind kind = x->base.actors->comm[c].kind;
  uint32_t op = op_of (x, actor, weft_group_lane (kind));

  if (sim_program (x, actor)->op[op].kind == WEFT_OP_SHIFT) {
    start_shift (x, c, actor, op, latency);
    return;
  }
  for (uint32_t way = 0; way < weft_fabric_ways (&x->base.plan->fabric); way++) {
    uint32_t pattern = weft_group_pattern (kind, way);
    double bytes = m->traffic.bytes[way];
    if (!weft_actors_path (x->base.actors, actor, pattern)->exists)
      continue;
    m->pending++;
    start_paced_flow (x, actor, pattern, bytes / m->n_rounds, pace (&m->traffic, way), latency,
                      sim_tag (SIM_COLLECTIVE, actor, c));
  }
}

static gboolean
moves_nothing (const struct weft_traffic *t)
{
  for (int way = 0; way < WEFT_MAX_WAYS; way++)
    if (t->bytes[way] > 0)
      return FALSE;
  return TRUE;
}

static void
start_round (struct sim *x, uint32_t c)
{
  struct sim_collective *m = &x->collective[c];
  const struct weft_comm *comm = &x->base.actors->comm[c];
  double latency = m->n_rounds > 1 ? round_latency (&m->traffic, m->round)
                                   : m->traffic.latency;

  for (uint32_t i = 0; i < comm->n_actor && m->round == 0 && !holds_sms_while_waiting (x); i++)
    hold_sms (x, comm->actor[i], op_of (x, comm->actor[i], weft_group_lane (comm->kind)), 1);
  /* If the collective puts no bytes on any link, it takes only its latency: one timer serves all
   * members. */
  if (m->rounds && !moves_nothing (&m->traffic)) {
    sim_start_data_round (x, c);
    return;
  }
  if (moves_nothing (&m->traffic)) {
    m->pending = 1;
    weft_bridge_after (latency, sim_tag (SIM_COLLECTIVE, SIM_NO_FLOW, c));
    return;
  }
  for (uint32_t i = 0; i < comm->n_actor; i++)
    start_member_flows (x, c, comm->actor[i], latency);
}

static void
finish_collective (struct sim *x, uint32_t c)
{
  struct sim_collective *m = &x->collective[c];
  const struct weft_comm *comm = &x->base.actors->comm[c];
  double now = weft_bridge_now ();

  mark_contention (x, now - m->begin, m->traffic.seconds);
  double begin = m->begin;
  *m = (struct sim_collective){ 0 };
  for (uint32_t i = 0; i < comm->n_actor; i++) {
    uint32_t actor = comm->actor[i], lane = weft_group_lane (comm->kind);
    struct sim_lane *l = sim_lane_at (x, actor, lane);
    const weft_program *p = sim_program (x, actor);
    uint32_t last = weft_program_group_end (p, lane, l->cursor);
    hold_sms (x, actor, op_of (x, actor, lane), -1);
    for (; l->cursor < last; l->cursor++) {
      x->t->begin[actor][op_of (x, actor, lane)] = begin;
      x->t->end[actor][op_of (x, actor, lane)] = now;
    }
    l->posted = FALSE;
  }
  for (uint32_t i = 0; i < comm->n_actor; i++)
    advance (x, comm->actor[i]);
}

static void
collective_flow_done (struct sim *x, uint32_t c, uint32_t actor)
{
  struct sim_collective *m = &x->collective[c];

  if (actor != SIM_NO_FLOW)
    x->flow_ends[actor] += weft_bridge_now ();
  if (--m->pending)
    return;
  if (++m->round < m->n_rounds)
    start_round (x, c);
  else
    finish_collective (x, c);
}

/* The last op of the ops that are launched together with the first op of a lane. */
static uint32_t
group_last (const struct sim *x, uint32_t actor, enum weft_lane lane)
{
  const weft_program *p = sim_program (x, actor);

  return p
      ->lane_ops[lane][weft_program_group_end (p, lane, sim_lane_at (x, actor, lane)->cursor) - 1];
}

static void
arrive (struct sim *x, uint32_t actor, uint32_t op)
{
  const weft_program *p = sim_program (x, actor);
  uint32_t c = comm_of (x, actor, op);
  struct sim_collective *m = &x->collective[c];
  const struct weft_comm *comm = &x->base.actors->comm[c];

  sim_lane_at (x, actor, p->op[op].lane)->posted = TRUE;
  sim_lane_at (x, actor, p->op[op].lane)->since = weft_bridge_now ();
  if (holds_sms_while_waiting (x))
    hold_sms (x, actor, op, 1);
  if (++m->arrived < comm->n_actor)
    return;
  for (uint32_t i = 0; i < comm->n_actor; i++)
    note_wait (x, comm->actor[i], actor, p->op[op].lane,
               sim_lane_at (x, comm->actor[i], p->op[op].lane)->since);
  const struct sim_traffic *traffic =
      sim_traffic_of (x, c, p, group_last (x, actor, p->op[op].lane));
  m->traffic = traffic->t;
  m->rounds = traffic->rounds;
  m->n_rounds = m->rounds && !moves_nothing (&m->traffic) ? m->traffic.data->n_rounds
                : x->own.step_by_step ? MAX (1, weft_coll_steps (&m->traffic))
                                      : 1;
  m->begin = weft_bridge_now ();
  start_round (x, c);
}

/* --------------------------------------------------------------- transfers */

static void
finish_group (struct sim *x, uint32_t actor, uint32_t lane)
{
  const weft_program *p = sim_program (x, actor);
  struct sim_lane *l = sim_lane_at (x, actor, lane);
  uint32_t last = weft_program_group_end (p, lane, l->cursor);
  double now = weft_bridge_now ();

  for (uint32_t i = l->cursor; i < last; i++) {
    x->t->end[actor][p->lane_ops[lane][i]] = now;
    if (holds_sms_while_waiting (x))
      hold_sms (x, actor, p->lane_ops[lane][i], -1);
  }
  l->cursor = last;
  l->posted = FALSE;
  advance (x, actor);
}

static void
transfer_done (struct sim *x, uint32_t actor, uint32_t direction)
{
  uint32_t peer = x->base.actors->peer[2 * actor + direction];
  struct sim_post *sent = &x->send[2 * actor + direction], *got = &x->recv[2 * peer + !direction];
  uint32_t both[2][2] = { { actor, sent->op }, { peer, got->op } };

  mark_contention (x, weft_bridge_now () - sent->begin, sent->alone);
  if (!holds_sms_while_waiting (x))
    hold_sms (x, peer, got->op, -1);
  sent->op = got->op = WEFT_NO_OP;
  for (int i = 0; i < 2; i++) {
    uint32_t lane = sim_program (x, both[i][0])->op[both[i][1]].lane;
    if (--sim_lane_at (x, both[i][0], lane)->pending == 0)
      finish_group (x, both[i][0], lane);
  }
}

static void
start_transfer (struct sim *x, uint32_t actor, uint32_t direction)
{
  const weft_plan *plan = x->base.plan;
  uint32_t peer = x->base.actors->peer[2 * actor + direction], rank = x->base.actors->rank[actor];
  struct sim_post *sent = &x->send[2 * actor + direction];
  struct weft_traffic traffic =
      weft_plan_transfer (plan, rank, weft_mesh_beside (&plan->mesh, rank, direction ? -1 : 1),
                          weft_op_shape (sim_program (x, actor), sent->op));

  sent->begin = weft_bridge_now ();
  sent->alone = traffic.seconds;
  note_wait (x, actor, peer, WEFT_LANE_PP, sent->posted);
  note_wait (x, peer, actor, WEFT_LANE_PP, x->recv[2 * peer + !direction].posted);
  x->t->begin[actor][sent->op] = sent->begin;
  x->t->begin[peer][x->recv[2 * peer + !direction].op] = sent->begin;
  /* on topology cpu, the thread of the receiver copies the data */
  if (!holds_sms_while_waiting (x))
    hold_sms (x, peer, x->recv[2 * peer + !direction].op, 1);
  start_flow (x, actor, direction ? WEFT_PATTERN_PREVIOUS : WEFT_PATTERN_NEXT, traffic.bytes[0],
              traffic.latency, sim_tag (SIM_TRANSFER, direction, actor));
}

static void
post_transfer (struct sim *x, uint32_t actor, uint32_t op)
{
  const struct weft_op *row = &sim_program (x, actor)->op[op];
  uint32_t direction = row->peer < 0, peer = x->base.actors->peer[2 * actor + direction];

  if (holds_sms_while_waiting (x))
    hold_sms (x, actor, op, 1);
  if (row->kind == WEFT_OP_SEND) {
    x->send[2 * actor + direction] = (struct sim_post){ .op = op, .posted = weft_bridge_now () };
    if (x->recv[2 * peer + !direction].op != WEFT_NO_OP)
      start_transfer (x, actor, direction);
  } else {
    x->recv[2 * actor + direction] = (struct sim_post){ .op = op, .posted = weft_bridge_now () };
    if (x->send[2 * peer + !direction].op != WEFT_NO_OP)
      start_transfer (x, peer, !direction);
  }
}

/* Whether the ops that are launched together with the first op of a lane may start: all
 * dependencies of all these ops have ended. */
static gboolean
group_may_start (const struct sim *x, uint32_t actor, uint32_t lane)
{
  const weft_program *p = sim_program (x, actor);
  uint32_t first = sim_lane_at (x, actor, lane)->cursor,
           last = weft_program_group_end (p, lane, first);

  for (uint32_t i = first; i < last; i++)
    if (!sim_deps_done (x, actor, p->lane_ops[lane][i]))
      return FALSE;
  return TRUE;
}

static void
launch_group (struct sim *x, uint32_t actor, uint32_t lane)
{
  const weft_program *p = sim_program (x, actor);
  struct sim_lane *l = sim_lane_at (x, actor, lane);
  uint32_t first = l->cursor, last = weft_program_group_end (p, lane, first);

  l->posted = TRUE;
  l->pending = last - first;
  for (uint32_t i = first; i < last; i++)
    post_transfer (x, actor, p->lane_ops[lane][i]);
}

/* On topology cpu, a rank has one thread: an op of another lane (a copy, or compute beside the
 * compute lane) pauses the rank's compute lane. Ops that move only tokens or scalars are too short
 * to count. */
static void
pause_thread (struct sim *x, uint32_t actor, uint32_t op, int sign)
{
  enum weft_op_kind kind = sim_program (x, actor)->op[op].kind;

  if (!holds_sms_while_waiting (x) && !weft_op_info[kind].mailbox)
    sim_gpu_take_sms (x, actor, sign);
}

static void
start_copy (struct sim *x, uint32_t actor, uint32_t op)
{
  const weft_plan *plan = x->base.plan;
  const weft_program *p = sim_program (x, actor);

  sim_lane_at (x, actor, p->op[op].lane)->posted = TRUE;
  x->t->begin[actor][op] = weft_bridge_now ();
  pause_thread (x, actor, op, 1);
  start_flow (x, actor,
              weft_op_enters_device (p->op[op].kind) ? WEFT_PATTERN_H2D : WEFT_PATTERN_D2H,
              weft_plan_copy_bytes (plan, x->base.actors->rank[actor], op),
              plan->job.stack.kernel_gap, sim_tag (SIM_COPY, p->op[op].lane, actor));
}

/* Seconds of a copy or of a kernel outside the compute lane if it shares no link. A slow GPU makes
 * kernels longer, not copies and not kernels of the host. */
static double
alone (const struct sim *x, uint32_t actor, uint32_t op)
{
  const weft_program *p = sim_program (x, actor);
  gboolean kernel = weft_op_info[p->op[op].kind].class == WEFT_CLASS_COMPUTE &&
                    (p->op[op].lane != WEFT_LANE_HOST || !holds_sms_while_waiting (x));

  const double *seconds =
      kernel ? weft_plan_seconds_of (x->base.plan, p->role, x->base.actors->rank[actor])
             : x->base.plan->seconds[p->role];
  return seconds[op] * (kernel ? sim_kernel_factor (x, actor, op) : 1);
}

/* Starts a kernel that is not on the compute lane. Such a kernel is either on a communication lane,
 * for example the sum after a reduction, or on the host. The time of a host kernel follows from its
 * bytes and from the host memory bandwidth, which all ranks of the node share. */
static void
start_side_kernel (struct sim *x, uint32_t actor, uint32_t op)
{
  const weft_program *p = sim_program (x, actor);

  sim_lane_at (x, actor, p->op[op].lane)->posted = TRUE;
  x->t->begin[actor][op] = weft_bridge_now ();
  pause_thread (x, actor, op, 1);
  if (p->op[op].lane == WEFT_LANE_HOST && holds_sms_while_waiting (x))
    start_flow (x, actor, WEFT_PATTERN_HOST, weft_op_bytes (p, op), 0,
                sim_tag (SIM_COPY, p->op[op].lane, actor));
  else
    weft_bridge_after (alone (x, actor, op), sim_tag (SIM_COPY, p->op[op].lane, actor));
}

static void
copy_done (struct sim *x, uint32_t actor, uint32_t lane)
{
  struct sim_lane *l = sim_lane_at (x, actor, lane);
  const weft_program *p = sim_program (x, actor);
  uint32_t op = p->lane_ops[lane][l->cursor];

  pause_thread (x, actor, op, -1);
  x->t->end[actor][op] = weft_bridge_now ();
  mark_contention (x, x->t->end[actor][op] - x->t->begin[actor][op],
                   alone (x, actor, op));
  l->cursor++;
  l->posted = FALSE;
  advance (x, actor);
}

/* ---------------------------------------------------------------- executor */

/* A tenth of a nanosecond: tolerance for rounding in sums of dates. */
#define DATE_TOLERANCE 1e-10

/* Whether the host has issued the first op of a lane. If the date of issue is in the future, the
 * function sets a timer that starts the lane at that date. */
static gboolean
host_has_issued (struct sim *x, uint32_t actor, uint32_t lane)
{
  struct sim_lane *l = sim_lane_at (x, actor, lane);
  double now = weft_bridge_now (), date;

  if (!sim_host_issues (x, actor, group_last (x, actor, lane), &date))
    return FALSE;
  if (date <= now + DATE_TOLERANCE)
    return TRUE;
  if (!l->waking)
    weft_bridge_after (date - now, sim_tag (SIM_WAKE, lane, actor));
  l->waking = TRUE;
  return FALSE;
}

static void
advance_lane (struct sim *x, uint32_t actor, uint32_t lane)
{
  const weft_program *p = sim_program (x, actor);
  struct sim_lane *l = sim_lane_at (x, actor, lane);

  if (l->posted || l->cursor == p->lane_n[lane])
    return;
  uint32_t op = p->lane_ops[lane][l->cursor];
  enum weft_op_class class = weft_op_info[p->op[op].kind].class;
  gboolean grouped = class == WEFT_CLASS_P2P || class == WEFT_CLASS_COLLECTIVE;
  if ((grouped ? !group_may_start (x, actor, lane) : !sim_deps_done (x, actor, op)) ||
      !host_has_issued (x, actor, lane))
    return;
  if (class == WEFT_CLASS_P2P)
    launch_group (x, actor, lane);
  else if (class == WEFT_CLASS_COLLECTIVE)
    arrive (x, actor, op);
  else if (class == WEFT_CLASS_COMPUTE)
    start_side_kernel (x, actor, op);
  else
    start_copy (x, actor, op);
}

/* Starts every op of this rank that can start now. Flows and timers of these ops end later. */
static void
advance (struct sim *x, uint32_t actor)
{
  const weft_program *p = sim_program (x, actor);

  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
    if (lane != WEFT_LANE_GPU && p->lane_n[lane])
      advance_lane (x, actor, lane);
  sim_gpu_advance (x, actor);
}

static void
on_event (void *user, uint64_t tag)
{
  struct sim *x = user;
  uint32_t actor_or_comm = (uint32_t) tag, detail = tag >> 32 & 0xfffffff;

  switch ((enum sim_event) (tag >> 60)) {
  case SIM_KERNELS:
    if (sim_gpu_fired (x, actor_or_comm, detail))
      advance (x, actor_or_comm);
    break;
  case SIM_COLLECTIVE:
    collective_flow_done (x, actor_or_comm, detail);
    break;
  case SIM_TRANSFER:
    transfer_done (x, actor_or_comm, detail);
    break;
  case SIM_COPY:
    copy_done (x, actor_or_comm, detail);
    break;
  case SIM_WAKE:
    sim_lane_at (x, actor_or_comm, detail)->waking = FALSE;
    advance (x, actor_or_comm);
    break;
  }
}

/* Frees everything that depends on the actors. */
static void
drop_machine (struct sim *x)
{
  if (x->open)
    weft_bridge_close ();
  x->open = FALSE;
  for (uint32_t c = 0; c < x->base.actors->n_comm; c++)
    if (x->comm[c].known) {
      weft_coll_shape_release (&x->comm[c].shape);
      g_hash_table_unref (x->comm[c].traffic);
    }
  sim_gpu_close (x);
  for (uint32_t actor = 0; actor < x->base.actors->n; actor++)
    weft_host_clock_clear (&x->clock[actor]);
  g_free (x->clock);
  weft_actors_free (x->base.actors);
  g_free (x->lane);
  g_free (x->collective);
  g_free (x->comm);
  g_free (x->send);
  g_free (x->recv);
  g_free (x->issued);
  g_free (x->flow_ends);
  g_clear_pointer (&x->waits, g_hash_table_unref);
  g_clear_pointer (&x->t, weft_timeline_free);
}

static void
sim_close (weft_exec *base)
{
  struct sim *x = (struct sim *) base;

  if (!x)
    return;
  if (x->base.actors)
    drop_machine (x);
  weft_hosts_free (x->hosts, x->base.plan->n_roles);
  weft_disturb_clear (&x->disturb);
  g_free (x);
}

static struct sim_post *
empty_posts (uint32_t n)
{
  struct sim_post *posts = g_new0 (struct sim_post, n + 1);
  for (uint32_t i = 0; i < n; i++)
    posts[i].op = WEFT_NO_OP;
  return posts;
}

static const struct weft_field fields[] = { WEFT_SIM_OPTION_LIST (WEFT_OPTION_FIELD) };
static const struct weft_table table = { "option of executor sim", fields, G_N_ELEMENTS (fields) };

/* Makes the actors of the step: classes of ranks that behave alike. With jitter, and if collective
 * algorithms are data, whose flows have no symmetry, every rank is a class of its own. */
static weft_actors *
make_actors (const struct sim *x)
{
  const weft_plan *plan = x->base.plan;
  gboolean uneven = x->disturb.slow || x->disturb.share;
  const struct weft_uneven how = { x->disturb.slow, x->disturb.share, uneven ? x->rounds : 0 };

  return weft_actors_new_uneven (&plan->fabric, &plan->mesh,
                                 !x->own.unfolded && x->disturb.jitter == 0 &&
                                     !weft_job_has_algorithms (&plan->job),
                                 &how);
}

/* Makes everything that depends on the actors, and opens the bridge. Takes ownership of `a`. */
static gboolean
make_machine (struct sim *x, weft_actors *a, GError **error)
{
  x->base.actors = a;
  x->lane = g_new0 (struct sim_lane, (size_t) a->n * WEFT_N_LANE);
  x->collective = g_new0 (struct sim_collective, a->n_comm + 1);
  x->comm = g_new0 (struct sim_comm, a->n_comm + 1);
  x->send = empty_posts (2 * a->n);
  x->recv = empty_posts (2 * a->n);
  x->issued = g_new0 (uint32_t, a->n);
  x->flow_ends = g_new0 (double, a->n + 1);
  if (x->own.waits)
    x->waits = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, g_free);
  x->clock = g_new0 (struct weft_host_clock, a->n + 1);
  for (uint32_t actor = 0; actor < a->n; actor++)
    x->clock[actor] = weft_host_clock_new (x->hosts[a->role[actor]]);
  x->t = weft_timeline_new (x->base.plan, a, "sim");
  sim_gpu_open (x);
  x->open = weft_bridge_open (on_event, x, error);
  for (uint32_t link = 0; x->open && link < a->n_link; link++)
    weft_bridge_link (a->capacity[link]);
  return x->open;
}

static gboolean
with_flag (gboolean good, const char *flag, GError **error)
{
  if (!good)
    g_prefix_error (error, "%s: ", flag);
  return good;
}

/* Reads the options that disturb the step. */
static gboolean
read_disturbance (struct sim *x, GError **error)
{
  const struct weft_fabric *f = &x->base.plan->fabric;
  const char *slow = g_quark_to_string ((GQuark) x->own.straggler),
             *link = g_quark_to_string ((GQuark) x->own.link);

  x->disturb.jitter = x->own.jitter;
  x->disturb.seed = (uint64_t) x->own.jitter_seed;
  return with_flag (weft_disturb_stragglers (&x->disturb, f, slow, error), "--straggler", error) &&
         with_flag (weft_disturb_links (&x->disturb, f, link, error), "--link", error);
}

static gboolean
check_size (const struct sim *x, const weft_actors *a, GError **error)
{
  if (x->disturb.jitter == 0)
    return weft_exec_check_size (x->base.plan, a, error);
  return weft_exec_check_size (x->base.plan, a, NULL) ||
         weft_bad_input (error,
                         "--jitter makes every rank differ: found %u ranks, wanted so few that "
                         "they have at most %u ops in total: use fewer GPUs or microbatches",
                         a->n, WEFT_EXEC_MOST_OPS);
}

static weft_exec *
sim_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  struct sim *x = g_new0 (struct sim, 1);

  x->base = (weft_exec){ .ops = &weft_exec_sim, .plan = plan };
  x->rounds = 1;
  weft_own_options_read (&options->own, &table, x->own.at);
  weft_actors *a = read_disturbance (x, error) ? make_actors (x) : NULL;
  if (!a || !check_size (x, a, error) ||
      !weft_exec_hosts (plan, x->own.graph != 0, &x->hosts, error)) {
    if (a)
      weft_actors_free (a);
    sim_close (&x->base);
    return NULL;
  }
  if (!make_machine (x, a, error)) {
    sim_close (&x->base);
    return NULL;
  }
  return &x->base;
}

/* Only checks that `op` has been issued before: the simulation reads dependencies from the plan.
 * sim_issue() checks that ops are issued in program order. */
static gboolean
sim_wait (weft_exec *base, uint32_t row, enum weft_lane lane, uint32_t op, GError **error)
{
  const struct sim *x = (const struct sim *) base;

  (void) lane, (void) error;
  g_assert (op < x->issued[row]);
  return TRUE;
}

static gboolean
sim_issue (weft_exec *base, uint32_t row, uint32_t op, GError **error)
{
  struct sim *x = (struct sim *) base;

  (void) error;
  g_assert (op == x->issued[row]);
  x->issued[row]++;
  return TRUE;
}

static gboolean
all_done (const struct sim *x, GError **error)
{
  for (uint32_t actor = 0; actor < x->base.actors->n; actor++)
    for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++)
      if (sim_lane_at (x, actor, lane)->cursor != sim_program (x, actor)->lane_n[lane]) {
        g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN, "rank %u: deadlock on lane %s at op %u",
                     x->base.actors->rank[actor], weft_lane_words[lane],
                     sim_program (x, actor)->lane_ops[lane][sim_lane_at (x, actor, lane)->cursor]);
        return FALSE;
      }
  return TRUE;
}

static gboolean
run_step (struct sim *x, GError **error)
{
  for (uint32_t actor = 0; actor < x->base.actors->n; actor++)
    advance (x, actor);
  if (!weft_bridge_run (error) || !all_done (x, error))
    return FALSE;
  weft_timeline_add_launches (x->t, x->base.plan, x->hosts);
  weft_timeline_finish (x->t, x->base.plan);
  return TRUE;
}

/* Largest difference between the times of two actors of one role. */
static double
difference (const struct sim *x, uint32_t a, uint32_t b)
{
  const weft_program *p = sim_program (x, a);
  double most = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    most = fmax (most, fabs (x->t->begin[a][op] - x->t->begin[b][op]));
    most = fmax (most, fabs (x->t->end[a][op] - x->t->end[b][op]));
  }
  return fmax (most, fabs (x->flow_ends[a] - x->flow_ends[b]) / (p->n_op + 1));
}

/* Largest difference between the times of actors that only the last round of splitting has
 * separated. */
static double
misfit (const struct sim *x)
{
  const weft_actors *a = x->base.actors;
  g_autoptr (GHashTable) first = g_hash_table_new (NULL, NULL);
  double most = 0;

  for (uint32_t i = 0; a->like && i < a->n; i++) {
    gpointer found, key = GUINT_TO_POINTER (a->like[i]);
    if (g_hash_table_lookup_extended (first, key, NULL, &found))
      most = fmax (most, difference (x, GPOINTER_TO_UINT (found), i));
    else
      g_hash_table_insert (first, key, GUINT_TO_POINTER (i));
  }
  return most;
}

/* Simulates a folded, disturbed step again with one more round of splitting. FALSE without an
 * error: the classes of this round are too many to simulate. */
static gboolean
split_more (struct sim *x, GError **error)
{
  x->rounds++;
  weft_actors *a = make_actors (x);
  if (!weft_exec_check_size (x->base.plan, a, NULL)) {
    weft_actors_free (a);
    return FALSE;
  }
  drop_machine (x);
  return make_machine (x, a, error) && run_step (x, error);
}

static gboolean
settle (struct sim *x, GError **error)
{
  GError *failed = NULL;

  while ((x->t->misfit = misfit (x)) > WEFT_SAME_TIME * x->t->seconds)
    if (!split_more (x, &failed))
      break;
  if (failed)
    g_propagate_error (error, failed);
  return !failed;
}

static void
add_waits (struct sim *x)
{
  GHashTableIter iter;
  gpointer key, seconds;

  if (!x->waits)
    return;
  x->t->waits = g_array_new (FALSE, FALSE, sizeof (struct weft_timeline_wait));
  g_hash_table_iter_init (&iter, x->waits);
  while (g_hash_table_iter_next (&iter, &key, &seconds)) {
    int64_t number = *(const int64_t *) key, pair = number / WEFT_N_LANE;
    struct weft_timeline_wait wait = { (uint32_t) (pair / x->base.actors->n),
                                       (uint32_t) (pair % x->base.actors->n),
                                       (enum weft_lane) (number % WEFT_N_LANE),
                                       *(const double *) seconds };
    g_array_append_val (x->t->waits, wait);
  }
}

static weft_timeline *
sim_drain (weft_exec *base, GError **error)
{
  struct sim *x = (struct sim *) base;

  if (!run_step (x, error) || !settle (x, error))
    return NULL;
  if (x->base.actors->folded && (weft_disturb_any (&x->disturb) || x->own.waits))
    x->t->row_of = g_memdup2 (x->base.actors->actor_of,
                              x->base.plan->mesh.n_ranks * sizeof (uint32_t));
  add_waits (x);
  x->t->engine = weft_bridge_version ();
  x->t->n_activities = weft_bridge_activities ();
  return g_steal_pointer (&x->t);
}

const struct weft_exec_ops weft_exec_sim = {
  .name = "sim",
  .doc = "SimGrid: contention on links and SMs",
  .flags = WEFT_EXEC_VIRTUAL | WEFT_EXEC_TIMES,
  .options = &table,
  .open = sim_open,
  .wait = sim_wait,
  .issue = sim_issue,
  .drain = sim_drain,
  .close = sim_close,
};

const struct weft_exec_ops *const weft_predictors[] = { &weft_exec_sim, &weft_exec_clock, NULL };
