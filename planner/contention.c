#include "planner/contention.h"
#include <math.h>
#include <stdlib.h>

/* The kernels of a role: seconds alone, and with some SMs taken. */
struct kernel {
  double seconds, slow;
};

/* One role of a plan. */
struct stage {
  const weft_plan *plan;
  const weft_program *p;
  const double *seconds; /* by op, without contention */
  uint32_t *sms;         /* by op: SMs that communication takes */
  double kernels;        /* seconds of all kernels */
};

static gboolean
is_kernel (const weft_program *p, uint32_t op)
{
  return p->op[op].lane == WEFT_LANE_GPU &&
         weft_op_info[p->op[op].kind].class == WEFT_CLASS_COMPUTE;
}

/* SMs that each op takes from kernels; 0 for kernels. */
static uint32_t *
find_sms (const weft_plan *plan, const weft_program *p)
{
  struct weft_coll_shape shape[WEFT_N_GROUP];
  gboolean known[WEFT_N_GROUP] = { FALSE };
  uint32_t *sms = g_new0 (uint32_t, p->n_op + 1);
  uint32_t rank = weft_mesh_stage_rank (&plan->mesh, p->role, 0);

  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_group_kind kind = p->op[op].group;
    gboolean meets = weft_op_info[p->op[op].kind].class == WEFT_CLASS_COLLECTIVE;
    if (p->op[op].lane == WEFT_LANE_GPU || !weft_op_is_comm (p->op[op].kind))
      continue;
    if (meets && !known[kind]) {
      struct weft_group group = weft_mesh_group (&plan->mesh, rank, kind);
      weft_coll_shape_outline (&shape[kind], &plan->fabric, &group);
      known[kind] = TRUE;
    }
    sms[op] = weft_plan_sms (plan, p, op, meets ? &shape[kind] : NULL);
  }
  return sms;
}

/* Kernels that lose the smallest share of their speed come first. */
static int
by_loss (const void *a, const void *b)
{
  const struct kernel *x = a, *y = b;
  double kept_x = x->seconds * y->slow, kept_y = y->seconds * x->slow;

  return (kept_x < kept_y) - (kept_x > kept_y);
}

/* The least seconds that `cover` seconds of communication with `sms` SMs add to the kernels. */
static double
lengthening (const struct stage *s, uint32_t sms, double cover)
{
  struct weft_cost cost = weft_plan_cost_on (s->plan, 0);
  g_autofree double *slow = g_new0 (double, s->p->n_op + 1);
  g_autofree struct kernel *kernel = g_new (struct kernel, s->p->n_op + 1);
  double sum = 0;
  uint32_t n = 0;

  weft_cost_program (&cost, s->p, sms, slow);
  for (uint32_t op = 0; op < s->p->n_op; op++)
    if (is_kernel (s->p, op) && s->seconds[op] > 0)
      kernel[n++] = (struct kernel){ s->seconds[op], fmax (slow[op], s->seconds[op]) };
  qsort (kernel, n, sizeof *kernel, by_loss);
  for (uint32_t i = 0; i < n && cover > 0; i++) {
    double share = fmin (1, cover / kernel[i].slow);
    sum += share * (kernel[i].slow - kernel[i].seconds);
    cover -= share * kernel[i].slow;
  }
  return sum + fmax (0, cover);
}

/* Seconds of the communication of a lane that takes at least `sms` SMs. */
static double
covered_by (const struct stage *s, enum weft_lane lane, uint32_t sms)
{
  double sum = 0;

  for (uint32_t op = 0; op < s->p->n_op; op++)
    if (s->p->op[op].lane == lane && s->sms[op] >= sms)
      sum += s->seconds[op];
  return sum;
}

/* The next larger number of SMs that an op of a lane takes; 0: none. */
static uint32_t
next_sms (const struct stage *s, enum weft_lane lane, uint32_t sms)
{
  uint32_t next = 0;

  for (uint32_t op = 0; op < s->p->n_op; op++)
    if (s->p->op[op].lane == lane && s->sms[op] > sms && (next == 0 || s->sms[op] < next))
      next = s->sms[op];
  return next;
}

/* A cheap estimate of lengthening(): most kernels lose at most twice the share of the SMs that are
 * taken. Where it is too low, the bound is only less tight. */
static double
estimate (const struct stage *s, uint32_t sms, double cover)
{
  return cover * fmin (1, 2.0 * sms / (double) s->plan->job.cluster.f.gpu_sms);
}

static double
bound_of (const struct stage *s, double known)
{
  double most = 0;

  for (enum weft_lane lane = 0; lane < WEFT_N_LANE; lane++)
    for (uint32_t sms = 0; (sms = next_sms (s, lane, sms));) {
      double cover = covered_by (s, lane, sms);
      if (s->kernels + estimate (s, sms, cover) > known)
        most = fmax (most, s->kernels + lengthening (s, sms, cover));
    }
  return most > known ? most : 0;
}

double
weft_contention_bound (const weft_plan *plan, double known)
{
  double most = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    g_autofree uint32_t *sms = find_sms (plan, p);
    struct stage s = { plan, p, plan->seconds[role], sms, 0 };
    for (uint32_t op = 0; op < p->n_op; op++)
      s.kernels += is_kernel (p, op) ? s.seconds[op] : 0;
    most = fmax (most, bound_of (&s, known));
  }
  return most;
}

static gboolean
crosses (const struct weft_route *route, uint32_t link)
{
  for (uint32_t i = 0; i < route->n; i++)
    if (route->link[i] == link)
      return TRUE;
  return FALSE;
}

/* Number of ranks of the stage of `rank`, on its node, whose copies cross a link. */
static uint32_t
sharers (const weft_plan *plan, uint32_t rank, uint32_t link)
{
  const uint32_t gpus = (uint32_t) plan->job.cluster.f.node_gpus, first = rank / gpus * gpus;
  uint32_t n = 0;

  for (uint32_t other = first; other < MIN (first + gpus, plan->mesh.n_ranks); other++) {
    struct weft_route route;
    weft_fabric_host_route (&plan->fabric, other, TRUE, &route);
    n += crosses (&route, link) &&
         weft_mesh_stage (&plan->mesh, other) == weft_mesh_stage (&plan->mesh, rank);
  }
  return n;
}

double
weft_contention_copies (const weft_plan *plan, uint32_t role)
{
  const uint32_t rank = weft_mesh_stage_rank (&plan->mesh, role, 0);
  struct weft_route route;
  double most = 1;

  weft_fabric_host_route (&plan->fabric, rank, TRUE, &route);
  for (uint32_t i = 0; i < route.n; i++)
    most = fmax (most, sharers (plan, rank, route.link[i]) *
                           weft_fabric_route_rate (&plan->fabric, &route) /
                           weft_fabric_capacity (&plan->fabric, route.link[i]));
  return most;
}
