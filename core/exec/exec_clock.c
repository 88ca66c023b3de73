/* The clock executor prices each op by formula. It respects lanes (streams), dependencies and the
 * common start of collectives, but ops never share links or SMs. If no ops contend in the simulator
 * either, both report the same step time; otherwise the clock's step time is a lower bound of the
 * simulator's. The clock is fast enough to rank a whole search space. */
#include "core/exec/exec.h"
#include "core/base/invariant.h"
#include "core/plan/replay.h"

static const struct weft_field fields[] = { WEFT_CLOCK_OPTION_LIST (WEFT_OPTION_FIELD) };
static const struct weft_table table = { "option of executor clock", fields,
                                         G_N_ELEMENTS (fields) };

struct clock {
  weft_exec base;
  uint32_t *issued;   /* by row: number of ops issued so far, in program order */
  weft_host **hosts;  /* by role */
  GHashTable *prices; /* seconds of communication ops that actor_price() has computed before */
};

static void
clock_close (weft_exec *x)
{
  struct clock *c = (struct clock *) x;

  if (!c)
    return;
  weft_hosts_free (c->hosts, c->base.plan->n_roles);
  weft_actors_free (c->base.actors);
  g_hash_table_unref (c->prices);
  g_free (c->issued);
  g_free (c);
}

static weft_exec *
clock_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  struct clock *c = g_new0 (struct clock, 1);
  union weft_clock_options own;

  weft_own_options_read (&options->own, &table, own.at);
  c->base.ops = &weft_exec_clock;
  c->base.plan = plan;
  c->base.actors = own.roles ? weft_actors_new_roles (&plan->mesh)
                             : weft_actors_new (&plan->fabric, &plan->mesh, !own.unfolded);
  c->issued = g_new0 (uint32_t, c->base.actors->n);
  c->prices =
      g_hash_table_new_full (g_bytes_hash, g_bytes_equal, (GDestroyNotify) g_bytes_unref, g_free);
  if (!weft_exec_check_size (plan, c->base.actors, error) ||
      !weft_exec_hosts (plan, own.graph != 0, &c->hosts, error)) {
    clock_close (&c->base);
    return NULL;
  }
  return &c->base;
}

/* Does nothing but check that `op` has been issued before: the replay reads the dependencies from
 * the plan. */
static gboolean
clock_wait (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op, GError **error)
{
  const struct clock *c = (const struct clock *) x;

  (void) lane, (void) error;
  WEFT_INVARIANT (op < c->issued[row]);
  return TRUE;
}

static gboolean
clock_issue (weft_exec *x, uint32_t row, uint32_t op, GError **error)
{
  struct clock *c = (struct clock *) x;

  (void) error;
  WEFT_INVARIANT (op == c->issued[row]);
  c->issued[row]++;
  return TRUE;
}

static double
actor_price (struct clock *c, uint32_t actor, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];
  uint32_t who = weft_op_info[row->kind].class == WEFT_CLASS_COLLECTIVE
                     ? c->base.actors->comm_of[(size_t) actor * WEFT_N_GROUP + row->group]
                     : actor;
  /* A collective that is launched in a group with others has its own price: the seconds that it
   * adds to the group. */
  gboolean joins =
      row->flags & WEFT_OP_GROUPED && weft_op_info[row->kind].class == WEFT_CLASS_COLLECTIVE;
  uint32_t key[] = { who, p->role, joins ? op : row->shape,
                     row->kind | row->group << 8 | (uint8_t) row->peer << 16 |
                         (uint32_t) joins << 24 };
  g_autoptr (GBytes) bytes = g_bytes_new (key, sizeof key);
  double *price = g_hash_table_lookup (c->prices, bytes);

  if (!price) {
    price = g_new (double, 1);
    *price = weft_plan_comm_seconds (c->base.plan, c->base.actors->rank[actor], op);
    g_hash_table_insert (c->prices, g_bytes_ref (bytes), price);
  }
  return *price;
}

static double
clock_seconds (void *user, uint32_t actor, uint32_t op)
{
  struct clock *c = user;
  const weft_actors *a = c->base.actors;
  const weft_program *p = c->base.plan->role[a->role[actor]];

  if (weft_op_info[p->op[op].kind].class == WEFT_CLASS_COMPUTE)
    return weft_plan_seconds_of (c->base.plan, p->role, a->rank[actor])[op];
  if (a->n == c->base.plan->n_roles)
    return c->base.plan->seconds[p->role][op];
  return actor_price (c, actor, p, op);
}

static weft_timeline *
clock_drain (weft_exec *x, GError **error)
{
  struct clock *c = (struct clock *) x;
  g_autoptr (weft_timeline) t = weft_timeline_new (x->plan, x->actors, x->ops->name);
  struct weft_replay replay = { .actors = x->actors,
                                .role = x->plan->role,
                                .seconds = clock_seconds,
                                .user = x,
                                .hosts = c->hosts,
                                .begin = t->begin,
                                .end = t->end };

  if (!weft_replay_run (&replay, error))
    return NULL;
  weft_timeline_add_launches (t, x->plan, c->hosts);
  weft_timeline_finish (t, x->plan);
  return g_steal_pointer (&t);
}

const struct weft_exec_ops weft_exec_clock = {
  .name = "clock",
  .doc = "prices each op by formula, without contention",
  .flags = WEFT_EXEC_VIRTUAL | WEFT_EXEC_TIMES,
  .options = &table,
  .open = clock_open,
  .wait = clock_wait,
  .issue = clock_issue,
  .drain = clock_drain,
  .close = clock_close,
};
