/* Traffic of collectives, computed once for each communicator; the flows of algorithms that are
 * data. */
#include "exec_sim/bridge.h"
#include "exec_sim/machine.h"
#include <math.h>

static void
free_traffic (void *data)
{
  struct sim_traffic *traffic = data;

  g_free (traffic->rounds);
  g_free (traffic);
}

struct sim_comm *
sim_comm_at (struct sim *x, uint32_t c)
{
  struct sim_comm *comm = &x->comm[c];
  const weft_plan *plan = x->base.plan;

  if (comm->known)
    return comm;
  struct weft_group g =
      weft_mesh_group (&plan->mesh, x->base.actors->comm[c].rank, x->base.actors->comm[c].kind);
  weft_coll_shape_init (&comm->shape, &plan->fabric, &g);
  comm->traffic = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, free_traffic);
  comm->known = TRUE;
  return comm;
}

const struct sim_traffic *
sim_traffic_of (struct sim *x, uint32_t c, const weft_program *p, uint32_t op)
{
  struct sim_comm *comm = sim_comm_at (x, c);
  gboolean joins = p->op[op].flags & WEFT_OP_GROUPED;
  uint64_t key = (uint64_t) joins << 63 | (uint64_t) p->role << 40 |
                 (uint64_t) (joins ? op : p->op[op].shape) << 8 | p->op[op].kind;
  struct sim_traffic *known = g_hash_table_lookup (comm->traffic, &key);

  if (!known) {
    struct weft_shape shape = weft_program_launch_shape (p, op);
    known = g_new0 (struct sim_traffic, 1);
    known->t = weft_plan_traffic (x->base.plan, &comm->shape, p->op[op].kind, &shape);
    if (known->t.data)
      known->rounds = weft_coll_rounds (&comm->shape, &known->t);
    g_hash_table_insert (comm->traffic, g_memdup2 (&key, sizeof key), known);
  }
  return known;
}

/* Starts the flow of one message. Like the flows of other algorithms (pace() in exec_sim.c), the
 * flows of a round end together if nothing else uses their links. */
static void
start_message (struct sim *x, uint32_t c, const struct weft_group *group,
               const struct weft_algo_step *send)
{
  const struct sim_collective *m = &x->collective[c];
  const struct weft_fabric *f = &x->base.plan->fabric;
  const struct weft_coll_round *round = &m->rounds[m->round];
  uint32_t from = weft_group_rank (group, send->rank), to = weft_group_rank (group, send->peer);
  double bytes = m->traffic.chunk[weft_coll_way (f, from, to)];
  struct weft_route route;

  weft_fabric_route (f, from, to, &route);
  weft_bridge_paced_flow (bytes, route.link, bytes > 0 ? route.n : 0,
                          round->busy > 0 ? bytes / round->busy : INFINITY, round->latency,
                          sim_tag (SIM_COLLECTIVE, x->base.actors->actor_of[from], c));
}

void
sim_start_data_round (struct sim *x, uint32_t c)
{
  struct sim_collective *m = &x->collective[c];
  const weft_algo *a = m->traffic.data;
  const struct weft_group *group = &sim_comm_at (x, c)->shape.group;

  for (uint32_t i = 0; i < a->n_step; i++)
    if (a->step[i].kind == WEFT_STEP_SEND && a->step[i].round == m->round) {
      m->pending++;
      start_message (x, c, group, &a->step[i]);
    }
  if (m->pending == 0) {
    m->pending = 1;
    weft_bridge_after (m->rounds[m->round].latency, sim_tag (SIM_COLLECTIVE, SIM_NO_FLOW, c));
  }
}
