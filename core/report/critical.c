#include "core/report/critical.h"
#include "core/base/error.h"
#include "core/exec/exec.h"
#include "core/plan/replay.h"

/* The replay of a timeline, in which the ops of one kind take `factor` times their seconds. */
struct rerun {
  const weft_plan *plan;
  weft_actors *actors;
  weft_host **hosts;
  double **seconds;      /* [actor][op]: seconds that the op took in the timeline */
  double **begin, **end; /* [actor][op]: times of the newest replay */
  uint32_t changed;      /* the kind whose ops are changed, or NO_KIND */
  double factor;
};

#define NO_KIND G_MAXUINT32

static const weft_program *
program_of (const struct rerun *r, uint32_t actor)
{
  return r->plan->role[r->actors->role[actor]];
}

/* The number of an op's kind, which is the lane and the operation. A receive counts as a send. */
static uint32_t
kind_of (const weft_program *p, uint32_t op)
{
  enum weft_op_kind kind = p->op[op].kind == WEFT_OP_RECV ? WEFT_OP_SEND : p->op[op].kind;

  return p->op[op].lane * WEFT_N_OP + kind;
}

static char *
kind_text (uint32_t kind)
{
  enum weft_lane lane = kind / WEFT_N_OP;
  const char *word = weft_op_info[kind % WEFT_N_OP].word;

  return lane == WEFT_LANE_GPU ? g_strdup (word)
                               : g_strdup_printf ("%s %s", weft_lane_words[lane], word);
}

static double
op_seconds (void *user, uint32_t actor, uint32_t op)
{
  const struct rerun *r = user;
  double seconds = r->seconds[actor][op];

  return kind_of (program_of (r, actor), op) == r->changed ? seconds * r->factor : seconds;
}

/* Runs the ops again and sets *step to the end of the last one. */
static gboolean
replay (struct rerun *r, weft_host **hosts, double *step, GError **error)
{
  const struct weft_replay replay = { .actors = r->actors,
                                      .role = r->plan->role,
                                      .seconds = op_seconds,
                                      .user = r,
                                      .hosts = hosts,
                                      .begin = r->begin,
                                      .end = r->end };

  if (!weft_replay_run (&replay, error))
    return FALSE;
  *step = 0;
  for (uint32_t actor = 0; actor < r->actors->n; actor++)
    for (uint32_t op = 0; op < program_of (r, actor)->n_op; op++)
      *step = MAX (*step, r->end[actor][op]);
  return TRUE;
}

/* Step time if the ops of one kind took `factor` times their seconds. */
static gboolean
step_with (struct rerun *r, uint32_t kind, double factor, double *step, GError **error)
{
  r->changed = kind;
  r->factor = factor;
  gboolean ok = replay (r, r->hosts, step, error);
  r->changed = NO_KIND;
  return ok;
}

/* ------------------------------------------------------------------------ the path */

/* The predecessor that ends last, of those that were compared. `op` is WEFT_NO_OP if there is
 * none. */
struct last {
  uint32_t row, op;
  double end;
};

static void
compare (const struct rerun *r, uint32_t actor, uint32_t op, struct last *last)
{
  if (last->op == WEFT_NO_OP || r->end[actor][op] > last->end)
    *last = (struct last){ actor, op, r->end[actor][op] };
}

/* Compares all ops that the launch of `op` waits for on its own rank: the op before the launch on
 * its lane, and the dependencies of all ops of the launch. */
static void
compare_own (const struct rerun *r, uint32_t actor, uint32_t op, struct last *last)
{
  const weft_program *p = program_of (r, actor);
  enum weft_lane lane = p->op[op].lane;
  uint32_t first = p->pos[op];

  while (p->op[p->lane_ops[lane][first]].flags & WEFT_OP_GROUPED)
    first--;
  if (first > 0)
    compare (r, actor, p->lane_ops[lane][first - 1], last);
  for (uint32_t i = first; i < weft_program_group_end (p, lane, first); i++) {
    uint32_t member = p->lane_ops[lane][i];
    for (uint32_t d = p->op[member].deps; d < p->op[member + 1].deps; d++)
      compare (r, actor, p->deps[d], last);
  }
}

/* The op of another member of a collective: the op of the same group that begins at the same
 * time. */
static uint32_t
same_collective (const struct rerun *r, uint32_t actor, const struct weft_op *like, double begin)
{
  const weft_program *p = program_of (r, actor);
  const uint32_t *ops = p->lane_ops[like->lane];
  uint32_t low = 0, high = p->lane_n[like->lane];

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (r->begin[actor][ops[middle]] < begin)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < p->lane_n[like->lane] && r->begin[actor][ops[low]] <= begin; low++)
    if (p->op[ops[low]].group == like->group && p->op[ops[low]].kind == like->kind)
      return ops[low];
  return WEFT_NO_OP;
}

static void
compare_members (const struct rerun *r, uint32_t actor, uint32_t op, struct last *last)
{
  const struct weft_op *like = &program_of (r, actor)->op[op];
  const weft_actors *a = r->actors;
  const struct weft_comm *comm = &a->comm[a->comm_of[(size_t) actor * WEFT_N_GROUP + like->group]];

  for (uint32_t i = 0; i < comm->n_actor; i++) {
    uint32_t other = comm->actor[i], same = same_collective (r, other, like, r->begin[actor][op]);
    if (other != actor && same != WEFT_NO_OP)
      compare_own (r, other, same, last);
  }
}

/* Whether an op of the peer stage is the other side of a transfer. */
static gboolean
is_other_side (const struct weft_op *mine, const struct weft_op *theirs)
{
  return weft_op_info[theirs->kind].class == WEFT_CLASS_P2P && theirs->kind != mine->kind &&
         theirs->peer == -mine->peer && theirs->micro == mine->micro &&
         theirs->phase == mine->phase;
}

/* Finds the other side of a transfer, which begins at the same time. `begin`: times of all ops. */
static uint32_t
other_side (const struct rerun *r, double *const *begin, uint32_t actor, uint32_t op,
            uint32_t *peer)
{
  const struct weft_op *mine = &program_of (r, actor)->op[op];

  *peer = r->actors->peer[2 * actor + (mine->peer < 0)];
  const weft_program *p = program_of (r, *peer);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    for (uint32_t i = 0; weft_lane_traits[lane].communicates && i < p->lane_n[lane]; i++) {
      uint32_t other = p->lane_ops[lane][i];
      if (begin[*peer][other] == begin[actor][op] && is_other_side (mine, &p->op[other]))
        return other;
    }
  return WEFT_NO_OP;
}

static void
compare_peer (const struct rerun *r, uint32_t actor, uint32_t op, struct last *last)
{
  uint32_t peer, other = other_side (r, r->begin, actor, op, &peer);

  if (other != WEFT_NO_OP)
    compare_own (r, peer, other, last);
}

/* The op whose end is the latest among all that `op` waits for. */
static struct last
before (const struct rerun *r, uint32_t actor, uint32_t op)
{
  enum weft_op_class class = weft_op_info[program_of (r, actor)->op[op].kind].class;
  struct last last = { 0, WEFT_NO_OP, 0 };

  compare_own (r, actor, op, &last);
  if (class == WEFT_CLASS_COLLECTIVE)
    compare_members (r, actor, op, &last);
  else if (class == WEFT_CLASS_P2P)
    compare_peer (r, actor, op, &last);
  return last;
}

static struct last
last_op (const struct rerun *r)
{
  struct last last = { 0, WEFT_NO_OP, 0 };

  for (uint32_t actor = 0; actor < r->actors->n; actor++)
    for (uint32_t op = 0; op < program_of (r, actor)->n_op; op++)
      compare (r, actor, op, &last);
  return last;
}

/* Follows the path from the last op to the first. */
static void
trace_path (const struct rerun *r, weft_critical *c)
{
  for (struct last at = last_op (r); at.op != WEFT_NO_OP;) {
    const struct weft_critical_op op = { at.row, at.op, r->begin[at.row][at.op],
                                         r->end[at.row][at.op] };
    g_array_append_val (c->path, op);
    at = before (r, at.row, at.op);
    c->launch_s += op.begin - (at.op == WEFT_NO_OP ? 0 : at.end);
  }
  struct weft_critical_op *path = (void *) c->path->data;
  for (guint i = 0, j = c->path->len; i + 1 < j; i++) {
    struct weft_critical_op swapped = path[i];
    path[i] = path[--j];
    path[j] = swapped;
  }
}

/* ----------------------------------------------------------------------- the kinds */

static void
clear_kind (gpointer data)
{
  g_free (((struct weft_critical_kind *) data)->what);
}

static int
compare_savings (gconstpointer a, gconstpointer b)
{
  const struct weft_critical_kind *x = a, *y = b;

  return (x->without_s > y->without_s) - (x->without_s < y->without_s);
}

/* Sums the path by kind, and replays the step without each of these kinds. */
static gboolean
weigh_kinds (struct rerun *r, weft_critical *c, GError **error)
{
  g_autofree struct weft_critical_kind *sum =
      g_new0 (struct weft_critical_kind, WEFT_N_LANE * WEFT_N_OP);

  for (guint i = 0; i < c->path->len; i++) {
    const struct weft_critical_op *at = &g_array_index (c->path, struct weft_critical_op, i);
    struct weft_critical_kind *kind = &sum[kind_of (program_of (r, at->row), at->op)];
    kind->ops++;
    kind->on_path_s += at->end - at->begin;
  }
  for (uint32_t k = 0; k < WEFT_N_LANE * WEFT_N_OP; k++) {
    if (sum[k].on_path_s <= 0)
      continue;
    if (!step_with (r, k, 0, &sum[k].without_s, error) ||
        !step_with (r, k, 0.9, &sum[k].tenth_less_s, error))
      return FALSE;
    sum[k].what = kind_text (k);
    g_array_append_val (c->kind, sum[k]);
  }
  g_array_sort (c->kind, compare_savings);
  return TRUE;
}

/* -------------------------------------------------------------------------- result */

/* Seconds of each op of a row of the timeline. The ops of a group launch have the same times: the
 * first op gets the seconds of all. */
static double *
measure (const weft_program *p, const double *begin, const double *end)
{
  double *seconds = g_new (double, p->n_op);

  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean joins = p->op[op].flags & WEFT_OP_GROUPED &&
                     weft_op_info[p->op[op].kind].class == WEFT_CLASS_COLLECTIVE;
    seconds[op] = joins ? 0 : MAX (end[op] - begin[op], 0);
  }
  return seconds;
}

static gboolean
is_alone (const weft_program *p, uint32_t op)
{
  return !(p->op[op].flags & WEFT_OP_GROUPED) &&
         weft_program_group_end (p, p->op[op].lane, p->pos[op]) == p->pos[op] + 1;
}

/* A transfer that is launched together with others ends, in the timeline, when the last of them
 * ends. Its own seconds are those of its other side, if that side is launched alone; otherwise the
 * seconds without contention. */
static void
measure_transfers (struct rerun *r, const weft_timeline *t, uint32_t actor)
{
  const weft_program *p = program_of (r, actor);

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_SEND || is_alone (p, op))
      continue;
    uint32_t peer, other = other_side (r, t->begin, actor, op, &peer);
    double formula = weft_plan_comm_seconds (r->plan, r->actors->rank[actor], op);
    if (other != WEFT_NO_OP && is_alone (program_of (r, peer), other))
      r->seconds[actor][op] = r->seconds[peer][other];
    else
      r->seconds[actor][op] = MIN (r->seconds[actor][op], formula);
  }
}

static void
rerun_clear (struct rerun *r)
{
  for (uint32_t actor = 0; r->seconds && actor < r->actors->n; actor++) {
    g_free (r->seconds[actor]);
    g_free (r->begin[actor]);
    g_free (r->end[actor]);
  }
  g_free (r->seconds);
  g_free (r->begin);
  g_free (r->end);
  if (r->hosts)
    weft_hosts_free (r->hosts, r->plan->n_roles);
  g_clear_pointer (&r->actors, weft_actors_free);
}
typedef struct rerun rerun;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (rerun, rerun_clear)

static gboolean
rerun_open (struct rerun *r, const weft_plan *plan, const weft_timeline *t, gboolean graph,
            GError **error)
{
  r->plan = plan;
  r->changed = NO_KIND;
  r->actors = weft_actors_new (&plan->fabric, &plan->mesh, t->folded);
  if (r->actors->n != t->n || !t->begin)
    return weft_bad_input (error, "found a timeline of %u ranks, wanted %u: it is of another plan",
                           t->n, r->actors->n);
  r->seconds = g_new0 (double *, t->n + 1);
  r->begin = g_new0 (double *, t->n + 1);
  r->end = g_new0 (double *, t->n + 1);
  for (uint32_t actor = 0; actor < t->n; actor++) {
    const weft_program *p = program_of (r, actor);
    r->seconds[actor] = measure (p, t->begin[actor], t->end[actor]);
    r->begin[actor] = g_new0 (double, p->n_op + 1);
    r->end[actor] = g_new0 (double, p->n_op + 1);
  }
  for (uint32_t actor = 0; actor < t->n; actor++)
    measure_transfers (r, t, actor);
  return weft_exec_hosts (plan, graph, &r->hosts, error);
}

weft_critical *
weft_critical_new (const weft_plan *plan, const weft_timeline *timeline, gboolean graph,
                   GError **error)
{
  g_autoptr (weft_critical) c = g_new0 (weft_critical, 1);
  g_auto (rerun) r = { 0 };

  c->path = g_array_new (FALSE, FALSE, sizeof (struct weft_critical_op));
  c->kind = g_array_new (FALSE, FALSE, sizeof (struct weft_critical_kind));
  g_array_set_clear_func (c->kind, clear_kind);
  if (!rerun_open (&r, plan, timeline, graph, error) ||
      !replay (&r, r.hosts, &c->step_s, error))
    return NULL;
  trace_path (&r, c);
  if (!weigh_kinds (&r, c, error) || !replay (&r, NULL, &c->without_launch_s, error))
    return NULL;
  return g_steal_pointer (&c);
}

void
weft_critical_free (weft_critical *critical)
{
  g_clear_pointer (&critical->path, g_array_unref);
  g_clear_pointer (&critical->kind, g_array_unref);
  g_free (critical);
}
