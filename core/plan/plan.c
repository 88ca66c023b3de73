#include "core/plan/plan.h"
#include "core/plan/check.h"
#include "core/plan/cost.h"
#include "core/plan/software.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/base/threads.h"
#include "core/passes/step.h"
#include <math.h>
#include <string.h>

static struct weft_traffic
measured (double seconds)
{
  return (struct weft_traffic){ .algorithm = "measured", .latency = seconds, .seconds = seconds };
}

struct transfer_question {
  double latency, rate;
};

static double
transfer_seconds (const void *question, enum weft_op_kind kind, const struct weft_shape *shape,
                  uint32_t ranks)
{
  const struct transfer_question *q = question;

  (void) ranks;
  return q->latency + weft_op_info[kind].bytes (shape) / q->rate;
}

struct weft_traffic
weft_plan_transfer (const weft_plan *plan, uint32_t from, uint32_t to,
                    const struct weft_shape *shape)
{
  struct weft_route route;

  weft_fabric_route (&plan->fabric, from, to, &route);
  struct transfer_question q = { plan->job.stack.collective_base_latency + route.latency,
                                 weft_fabric_route_rate (&plan->fabric, &route) };
  double seconds = plan->table ? weft_cost_table_seconds (plan->table, WEFT_OP_SEND, shape, 2,
                                                          transfer_seconds, &q)
                               : -1;
  if (seconds >= 0)
    return measured (seconds);
  struct weft_traffic t = { .algorithm = "send",
                            .bytes = { weft_op_info[WEFT_OP_SEND].bytes (shape) },
                            .latency = q.latency,
                            .seconds = transfer_seconds (&q, WEFT_OP_SEND, shape, 2) };
  weft_software_scatter (plan, to, shape, q.rate, &t);
  return t;
}

static double
p2p_seconds (const weft_plan *plan, uint32_t rank, const weft_program *p, uint32_t op)
{
  uint32_t peer = weft_mesh_beside (&plan->mesh, rank, p->op[op].peer);
  gboolean sends = p->op[op].kind == WEFT_OP_SEND;

  return weft_plan_transfer (plan, sends ? rank : peer, sends ? peer : rank, weft_op_shape (p, op))
      .seconds;
}

static double
host_link_seconds (const void *question, enum weft_op_kind kind, const struct weft_shape *shape,
                   uint32_t ranks)
{
  const struct transfer_question *q = question;

  (void) ranks;
  return q->latency + weft_op_info[kind].bytes (shape) / q->rate;
}

static double
copy_seconds (const weft_plan *plan, uint32_t rank, const weft_program *p, uint32_t op,
              struct transfer_question *q)
{
  enum weft_op_kind kind = p->op[op].kind;
  const struct weft_shape *shape = weft_op_shape (p, op);
  struct weft_route route;

  weft_fabric_host_route (&plan->fabric, rank, weft_op_enters_device (kind), &route);
  *q = (struct transfer_question){ plan->job.stack.kernel_gap,
                                   weft_fabric_route_rate (&plan->fabric, &route) };
  double seconds = plan->table
                       ? weft_cost_table_seconds (plan->table, kind, shape, 1, host_link_seconds, q)
                       : -1;
  return seconds < 0 ? host_link_seconds (q, kind, shape, 1) : seconds;
}

double
weft_plan_copy_bytes (const weft_plan *plan, uint32_t rank, uint32_t op)
{
  const weft_program *p = plan->role[weft_mesh_stage (&plan->mesh, rank)];
  struct transfer_question q;

  if (!plan->table)
    return weft_op_bytes (p, op);
  return MAX (copy_seconds (plan, rank, p, op, &q) - q.latency, 0) * q.rate;
}

/* The mean number of places (ranks or nodes) that a token goes to if token t has the k experts from
 * number t k on, and each place has the same number of experts (moe_priced_with_next_experts). */
static double
places_of_next (uint64_t experts, uint64_t k, uint64_t places)
{
  const uint64_t each = MAX (1, experts / MAX (1, places));
  uint64_t sum = 0;

  for (uint64_t token = 0; token < experts; token++)
    sum += MIN (places, (token * k + k - 1) / each - token * k / each + 1);
  return (double) sum / (double) experts;
}

/* Number of tokens sent, as a fraction of the number of token copies, if a token is sent only once
 * to every place (rank or node) that has some of its experts. With k experts spread over n places,
 * a token is expected at n (1 - (1 - 1/n)^k) places. Routing by groups of experts
 * (moe_router_group_topk) restricts a token to fewer places. */
static double
once_a_place (const struct weft_job *job, uint32_t places)
{
  const double k = (double) job->model.moe_router_topk;
  const double groups = (double) job->model.moe_router_num_groups;
  double n = places;

  if (job->strategy.moe_priced_with_next_experts)
    return places_of_next ((uint64_t) job->model.num_moe_experts, (uint64_t) k, places) / k;
  if (groups > 0)
    n = fmin (n, (double) job->model.moe_router_group_topk * fmax (1, n / groups));
  return n * (1 - pow (1 - 1 / n, k)) / k;
}

/* The seconds that the busiest link of a collective needs for its bytes. */
static double
longest_link (const struct weft_coll_shape *group, const struct weft_traffic *t)
{
  double most = 0;

  for (uint32_t i = 0; i < group->n_load; i++)
    most = fmax (most, weft_coll_link_bytes (&group->load[i], t) / group->load[i].capacity);
  return most;
}

/* Whether the dispatcher of the job (moe_flex_dispatcher_backend) sends each token only once to
 * every rank of `group` in an op of this kind. An all-to-all of equal shares sends tokens of
 * experts only if Ulysses context parallelism, which uses the same kind of op, is off. */
static gboolean
goes_once_a_rank (const weft_plan *plan, const struct weft_coll_shape *group,
                  enum weft_op_kind kind)
{
  return plan->job.strategy.moe_flex_dispatcher_backend != WEFT_FLEX_NONE &&
         weft_op_swaps (kind) && (weft_op_is_counted (kind) || plan->mesh.cp_heads == 1) &&
         group->style == WEFT_FABRIC_TIERS && group->n > 1;
}

/* DeepEP sends a token once to each rank that has some of its experts (is_token_in_rank of
 * csrc/kernels/intranode.cu), and its combine op returns the sum of their outputs. Between nodes a
 * token is sent once per node, to the rank with the sender's local index, and that rank sends
 * copies on over NVLink. The combine op first adds the outputs within a node, then returns one sum
 * per node (deepseek-ai/DeepEP, README.md). */
static void
send_once_a_rank (const weft_plan *plan, const struct weft_coll_shape *group,
                  struct weft_traffic *t)
{
  double local = group->side[WEFT_WAY_LOCAL], before = longest_link (group, t);

  if (group->side[WEFT_WAY_REMOTE] > 1)
    t->bytes[WEFT_WAY_LOCAL] += t->bytes[WEFT_WAY_REMOTE] * (local - 1) / local;
  t->bytes[WEFT_WAY_LOCAL] *= once_a_place (&plan->job, group->n);
  t->bytes[WEFT_WAY_REMOTE] *= once_a_place (&plan->job, group->side[WEFT_WAY_REMOTE]);
  if (before > 0)
    t->seconds = t->latency + (t->seconds - t->latency) * longest_link (group, t) / before;
}

struct coll_question {
  const weft_plan *plan;
  const struct weft_coll_shape *group;
};

static struct weft_traffic
closed_form (const struct coll_question *q, enum weft_op_kind kind, const struct weft_shape *shape)
{
  const struct weft_job *job = &q->plan->job;

  enum weft_coll_choice choice = job->train.reduction_order == WEFT_ORDER_CANONICAL
                                     ? WEFT_COLL_CANONICAL
                                 : job->strategy.deterministic_mode ? WEFT_COLL_RING
                                                                    : WEFT_COLL_QUICKEST;

  double bytes = weft_software_bytes (q->plan, q->group, kind, shape);
  kind = weft_software_kind (q->plan, q->group, kind);
  double launches = weft_software_launches (q->plan, q->group, kind, (double) shape->dim[0]);
  const weft_algo *data =
      weft_algorithms_find (q->plan->algorithms, &q->group->group, kind);
  struct weft_traffic traffic =
      data ? weft_coll_plan_data (q->group, data, bytes / launches, &job->stack)
           : weft_coll_plan (q->group, kind, bytes / launches, &job->stack, choice);
  weft_software_repeat (q->plan, launches, &traffic);
  weft_software_reorder (q->plan, q->group, kind, bytes, &traffic);
  weft_software_gather_again (q->plan, q->group, kind, &traffic);
  if (goes_once_a_rank (q->plan, q->group, kind))
    send_once_a_rank (q->plan, q->group, &traffic);
  return traffic;
}

static double
closed_seconds (const void *question, enum weft_op_kind kind, const struct weft_shape *shape,
                uint32_t ranks)
{
  (void) ranks;
  return closed_form (question, kind, shape).seconds;
}

struct weft_traffic
weft_plan_traffic (const weft_plan *plan, const struct weft_coll_shape *group,
                   enum weft_op_kind kind, const struct weft_shape *shape)
{
  struct coll_question q = { plan, group };
  double seconds =
      plan->table ? weft_cost_table_seconds (plan->table, kind, shape, group->n, closed_seconds, &q)
                  : -1;

  if (seconds < 0)
    return closed_form (&q, kind, shape);
  return measured (seconds);
}

static double
launch_seconds (const weft_plan *plan, const struct weft_coll_shape *group, const weft_program *p,
                uint32_t op)
{
  struct weft_shape shape = weft_program_launch_shape (p, op);

  return weft_plan_traffic (plan, group, p->op[op].kind, &shape).seconds;
}

static gboolean
is_registered (const weft_program *p, uint32_t op)
{
  uint32_t first = p->op[op].uses;
  return first < p->op[op + 1].uses && p->uses[first].buf != WEFT_NO_BUF &&
         p->buf[p->uses[first].buf].pool == WEFT_POOL_SYMMETRIC;
}

uint32_t
weft_plan_sms (const weft_plan *plan, const weft_program *p, uint32_t op,
               const struct weft_coll_shape *group)
{
  struct weft_cost cost = weft_plan_cost (plan);
  gboolean sends = weft_op_info[p->op[op].kind].class == WEFT_CLASS_P2P;

  if (plan->fabric.ops->has_engines)
    return 0;
  if (sends && plan->job.strategy.pipeline_model_parallel_comm_backend == WEFT_P2P_UCC)
    return 0;
  if (p->op[op].flags & WEFT_OP_USER_BUFFER)
    return weft_cost_piece_sms (cost.stack, p->op[op].kind);
  if (!group || !is_registered (p, op))
    return weft_cost_sms (cost.stack, p->op[op].kind);
  return weft_cost_registered_sms (&cost, p->op[op].kind,
                                   weft_cost_domain (cost.cluster, group->side[WEFT_WAY_REMOTE],
                                                     group->side[WEFT_WAY_LOCAL]),
                                   !plan->job.strategy.disable_symmetric_registration);
}

static double
collective_seconds (const weft_plan *plan, const struct weft_coll_shape *group,
                    const weft_program *p, uint32_t op)
{
  double seconds = launch_seconds (plan, group, p, op);

  if (p->op[op].flags & WEFT_OP_GROUPED)
    seconds -= launch_seconds (plan, group, p, p->lane_ops[p->op[op].lane][p->pos[op] - 1]);
  return seconds;
}

/* Seconds of a send, a receive or a copy of a program that rank `rank` runs. */
static double
alone_seconds (const weft_plan *plan, uint32_t rank, const weft_program *p, uint32_t op)
{
  return weft_op_info[p->op[op].kind].class == WEFT_CLASS_P2P
             ? p2p_seconds (plan, rank, p, op)
             : copy_seconds (plan, rank, p, op, &(struct transfer_question){ 0 });
}

double
weft_plan_comm_seconds (const weft_plan *plan, uint32_t rank, uint32_t op)
{
  const weft_program *p = plan->role[weft_mesh_stage (&plan->mesh, rank)];

  if (weft_op_info[p->op[op].kind].class != WEFT_CLASS_COLLECTIVE)
    return alone_seconds (plan, rank, p, op);
  struct weft_group group = weft_mesh_group (&plan->mesh, rank, p->op[op].group);
  struct weft_coll_shape shape;
  weft_coll_shape_init (&shape, &plan->fabric, &group);
  double seconds = collective_seconds (plan, &shape, p, op);
  weft_coll_shape_release (&shape);
  return seconds;
}

/* Computes the costs of a program's communication ops, for the first rank of a role. */
struct prices {
  const weft_plan *plan;
  const weft_program *p;
  uint32_t rank;
  GHashTable *known; /* GHashTable: seconds by (kind, shape, group, peer) of an op */
  weft_placements *placements;
};

static double
alone (struct prices *x, uint32_t op)
{
  const struct weft_op *row = &x->p->op[op];

  if (weft_op_info[row->kind].class != WEFT_CLASS_COLLECTIVE)
    return alone_seconds (x->plan, x->rank, x->p, op);
  struct weft_group group = weft_mesh_group (&x->plan->mesh, x->rank, row->group);
  return collective_seconds (x->plan,
                             weft_placements_get (x->placements, &x->plan->fabric, &group), x->p,
                             op);
}

/* Seconds of a communication op. They are stored, because many ops are alike. If a collective joins
 * a launch group, returns the seconds that it adds to the group, which are not stored. */
static double
comm_seconds (struct prices *x, uint32_t op)
{
  const struct weft_op *row = &x->p->op[op];
  if (row->flags & WEFT_OP_GROUPED && weft_op_info[row->kind].class == WEFT_CLASS_COLLECTIVE)
    return alone (x, op);
  uint64_t key = (uint64_t) row->shape << 32 | (uint64_t) row->kind << 16 | row->group << 8 |
                 (uint8_t) row->peer;
  double *price = g_hash_table_lookup (x->known, &key);

  if (!price) {
    price = g_new (double, 1);
    *price = alone (x, op);
    g_hash_table_insert (x->known, g_memdup2 (&key, sizeof key), price);
  }
  return *price;
}

/* The kinds of nodes that hold ranks of a role, as a set. */
static uint32_t
kinds_of (const weft_plan *plan, uint32_t role)
{
  uint32_t size = weft_mesh_stage_size (&plan->mesh), set = 0;

  if (!weft_cluster_is_mixed (&plan->job.cluster))
    return 1;
  for (uint32_t i = 0; i < size; i++)
    set |= 1u << weft_cluster_kind_of (&plan->job.cluster,
                                       weft_mesh_stage_rank (&plan->mesh, role, i));
  return set;
}

/* Sets the kernels' seconds of a role on each kind of GPU that it is on, and the slowest of these
 * kinds, in which its kernels take longest together. */
static void
price_kinds (weft_plan *plan, const weft_program *p)
{
  uint32_t n = weft_cluster_n_kinds (&plan->job.cluster), set = kinds_of (plan, p->role);
  double longest = -1;

  for (uint32_t kind = 0; kind < n; kind++) {
    double **seconds = &plan->on_kind[p->role * n + kind], sum = 0;
    struct weft_cost cost = weft_plan_cost_on (plan, kind);
    g_clear_pointer (seconds, g_free);
    if (!(set >> kind & 1))
      continue;
    *seconds = g_new0 (double, p->n_op + 1);
    weft_cost_program (&cost, p, 0, *seconds);
    for (uint32_t op = 0; op < p->n_op; op++)
      sum += (*seconds)[op];
    if (sum > longest)
      plan->kind[p->role] = kind;
    longest = fmax (longest, sum);
  }
}

void
weft_plan_price_comm (const weft_plan *plan, const weft_program *p, uint32_t role,
                      weft_placements *placements, double *seconds)
{
  struct prices x = { .plan = plan,
                      .p = p,
                      .rank = weft_mesh_stage_rank (&plan->mesh, role, 0),
                      .placements = placements,
                      .known =
                          g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, g_free) };

  for (uint32_t op = 0; op < p->n_op; op++)
    if (weft_op_info[p->op[op].kind].class != WEFT_CLASS_COMPUTE)
      seconds[op] = comm_seconds (&x, op);
  g_hash_table_unref (x.known);
}

static double *
price_program (weft_plan *plan, const weft_program *p, weft_placements *placements)
{
  double *seconds = g_new (double, p->n_op + 1);
  if (plan->on_kind)
    price_kinds (plan, p);
  struct weft_cost cost = weft_plan_cost_on (plan, plan->kind ? plan->kind[p->role] : 0);

  weft_cost_program (&cost, p, 0, seconds);
  weft_plan_price_comm (plan, p, p->role, placements, seconds);
  return seconds;
}

typedef weft_program *(*build_program) (const struct weft_job *job, const struct weft_mesh *mesh,
                                        uint32_t role);

double
weft_plan_capacity (const struct weft_job *job)
{
  return job->cluster.f.gpu_memory * (1 - job->train.memory_headroom);
}

double
weft_plan_role_capacity (const weft_plan *plan, uint32_t role)
{
  const struct weft_cluster *c =
      weft_cluster_of_kinds (&plan->job.cluster, kinds_of (plan, role));

  return c->f.gpu_memory * (1 - plan->job.train.memory_headroom);
}

uint32_t
weft_plan_tightest (const weft_plan *plan)
{
  uint32_t tightest = 0;
  double least = INFINITY;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    double left = weft_plan_role_capacity (plan, role) - (double) weft_plan_peak_bytes (plan, role);
    if (left < least) {
      least = left;
      tightest = role;
    }
  }
  return tightest;
}

/* Bytes of GPU memory that a plan may use besides those of libraries. */
static uint64_t
free_bytes (const weft_plan *plan, uint32_t role)
{
  double bytes =
      weft_plan_role_capacity (plan, role) - (double) weft_plan_reserved_bytes (plan, role);

  return bytes > 0 ? (uint64_t) bytes : 0;
}

/* Plans the memory of a role. Software without an arena needs no offsets. If its plan is to be
 * executed, buffers get offsets nevertheless, but no op waits for bytes. */
static void
remember (weft_plan *plan, uint32_t role, enum weft_plan_depth depth)
{
  weft_program *p = plan->role[role];
  struct weft_memory *memory = &plan->memory[role];

  if (!plan->allocated) {
    weft_memory_plan (p, plan->seconds[role], free_bytes (plan, role), memory);
    return;
  }
  plan->allocated[role] = weft_allocator_run (&plan->job, p);
  if (depth >= WEFT_PLAN_PROVED) {
    weft_memory_plan (p, plan->seconds[role], G_MAXUINT64, memory);
    return;
  }
  weft_memory_live (p, memory);
  memory->planned[WEFT_POOL_HOST] = memory->live[WEFT_POOL_HOST];
}

static void
build_role (weft_plan *plan, uint32_t role, build_program build, weft_placements *placements)
{
  plan->role[role] = build (&plan->job, &plan->mesh, role);
  plan->seconds[role] = price_program (plan, plan->role[role], placements);
}

void
weft_plan_price (weft_plan *plan, const union weft_cluster_fields *cluster,
                 const union weft_stack *stack)
{
  g_autoptr (weft_placements) placements = weft_placements_new ();

  plan->job.cluster.f = *cluster;
  plan->job.stack = *stack;
  plan->fabric = weft_fabric_make (&plan->job.cluster);
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    g_free (plan->seconds[role]);
    plan->seconds[role] = price_program (plan, plan->role[role], placements);
  }
}

struct building {
  weft_plan *plan;
  build_program build;
  enum weft_plan_depth depth;
  weft_placements *placements;
  const gboolean *wanted; /* by role; NULL: all roles */
};

static void
build_guarded (void *data)
{
  const struct building *b = data;

  for (uint32_t role = 0; role < b->plan->n_roles; role++)
    if (!b->wanted || b->wanted[role])
      build_role (b->plan, role, b->build, b->placements);
}

static void
remember_one (void *data, uint32_t role, GError **error)
{
  const struct building *b = data;

  (void) error;
  remember (b->plan, role, b->depth);
}

static void
check_one (void *data, uint32_t role, GError **error)
{
  const weft_program *p = ((const weft_plan *) data)->role[role];

  if (weft_check_program (p, error))
    weft_check_addresses (p, error);
}

/* To start threads takes longer than to place or to prove shorter programs. */
enum { LEAST_OPS_FOR_THREADS = 20000 };

static gboolean
is_short (const weft_plan *plan)
{
  uint64_t n_ops = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    n_ops += plan->role[role]->n_op;
  return n_ops < LEAST_OPS_FOR_THREADS;
}

/* Plans the memory of all roles. A role does not depend on the others. */
static gboolean
remember_all (struct building *b, GError **error)
{
  struct weft_threads threads = { .run = remember_one, .user = b };

  if (b->depth < WEFT_PLAN_PLACED)
    return TRUE;
  threads.alone = is_short (b->plan);
  return weft_threads_run (&threads, b->plan->n_roles, error);
}

gboolean
weft_plan_check (const weft_plan *plan, GError **error)
{
  const struct weft_threads threads = { is_short (plan), check_one, (void *) plan };

  return weft_threads_run (&threads, plan->n_roles, error) &&
         weft_check_roles (&plan->mesh, plan->role, error);
}

/* Proves a plan (check.h). A failure is a bug of Weft and not of the input. */
static gboolean
prove (const weft_plan *plan, GError **error)
{
  g_autoptr (GError) failure = NULL;

  if (weft_plan_check (plan, &failure))
    return TRUE;
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_BUG,
               "internal error: the plan fails its proof; please report it with this job: %s",
               failure->message);
  return FALSE;
}

static weft_plan *
make_plan (const struct weft_job *job, struct building building, GError **error)
{
  const enum weft_plan_depth depth = building.depth;
  g_autoptr (weft_placements) own = building.placements ? NULL : weft_placements_new ();
  g_autoptr (weft_plan) plan = g_new0 (weft_plan, 1);

  plan->job = *job;
  plan->mesh = weft_step_mesh (job);
  plan->fabric = weft_fabric_make (&plan->job.cluster);
  plan->n_roles = plan->mesh.pp;
  plan->role = g_new0 (weft_program *, plan->n_roles);
  plan->memory = g_new0 (struct weft_memory, plan->n_roles);
  if (job->stack.live_memory && depth >= WEFT_PLAN_PLACED)
    plan->allocated = g_new0 (struct weft_allocated, plan->n_roles);
  plan->seconds = g_new0 (double *, plan->n_roles);
  if (weft_cluster_is_mixed (&job->cluster)) {
    plan->kind = g_new0 (uint32_t, plan->n_roles);
    plan->on_kind = g_new0 (double *, plan->n_roles * weft_cluster_n_kinds (&job->cluster));
  }
  if (!(plan->algorithms = weft_algorithms_new (job, &plan->mesh, error)))
    return NULL;
  if (depth == WEFT_PLAN_OUTLINED)
    return g_steal_pointer (&plan);
  const char *table = g_quark_to_string ((GQuark) job->cluster.f.cost_table);
  if (table && *table && !(plan->table = weft_cost_table_load (table, error)))
    return NULL;
  building.plan = plan;
  building.placements = building.placements ? building.placements : own;
  if (!weft_guarded (build_guarded, &building, error) || !remember_all (&building, error))
    return NULL;
  if (building.build == weft_step_build && !building.wanted &&
      !weft_algorithms_check_used (plan->algorithms, plan->role, error))
    return NULL;
  return depth < WEFT_PLAN_PROVED || prove (plan, error) ? g_steal_pointer (&plan) : NULL;
}

weft_plan *
weft_plan_new (const struct weft_job *job, GError **error)
{
  return weft_plan_new_draft (job, WEFT_PLAN_PROVED, NULL, error);
}

weft_plan *
weft_plan_new_draft (const struct weft_job *job, enum weft_plan_depth depth,
                     weft_placements *placements, GError **error)
{
  return make_plan (
      job,
      (struct building){ .build = weft_step_build, .depth = depth, .placements = placements },
      error);
}

weft_plan *
weft_plan_new_some (const struct weft_job *job, const gboolean *wanted,
                    weft_placements *placements, GError **error)
{
  return make_plan (job,
                    (struct building){ .build = weft_step_build,
                                       .depth = WEFT_PLAN_PRICED,
                                       .placements = placements,
                                       .wanted = wanted },
                    error);
}

weft_plan *
weft_plan_new_startup (const struct weft_job *job, GError **error)
{
  if (weft_init_does_something (job))
    return make_plan (
        job, (struct building){ .build = weft_init_build, .depth = WEFT_PLAN_PROVED }, error);
  weft_bad_input (
      error,
      "there is no work before the first step: perform_initialization = false, and "
      "broadcast_params needs several replicas with whole weights, found %s",
      weft_init_keeps_slices (job) ? "sharded weights" : "one replica");
  return NULL;
}

weft_plan *
weft_plan_new_broadcast (const struct weft_job *job, GError **error)
{
  /* the start-up creates no weights, because the weights of this job exist before it */
  struct weft_job given = *job;

  given.strategy.perform_initialization = FALSE;
  return weft_plan_new_startup (&given, error);
}

void
weft_plan_drop_programs (weft_plan *plan)
{
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    g_clear_pointer (&plan->role[role], weft_program_free);
    weft_memory_clear (&plan->memory[role]);
    g_clear_pointer (&plan->seconds[role], g_free);
  }
  uint32_t n = weft_cluster_n_kinds (&plan->job.cluster);
  for (uint32_t i = 0; plan->on_kind && i < plan->n_roles * n; i++)
    g_clear_pointer (&plan->on_kind[i], g_free);
}

void
weft_plan_free (weft_plan *plan)
{
  weft_plan_drop_programs (plan);
  g_free (plan->role);
  g_free (plan->memory);
  g_free (plan->allocated);
  g_free (plan->seconds);
  g_free (plan->kind);
  g_free (plan->on_kind);
  if (plan->table)
    weft_cost_table_free (plan->table);
  if (plan->algorithms)
    weft_algorithms_free (plan->algorithms);
  g_free (plan);
}

/* Sums the CUDA context, the workspace, and one communicator for each kind of group that the role
 * uses. */
uint64_t
weft_plan_reserved_bytes (const weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  gboolean used[WEFT_N_GROUP] = { FALSE };
  double bytes = plan->job.stack.context_bytes + plan->job.stack.workspace_bytes;

  /* On topology cpu ranks are threads, without CUDA context and NCCL channels. */
  if (weft_cluster_is_cpu (&plan->job.cluster))
    return 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    used[p->op[op].group] = TRUE;
  for (int kind = WEFT_GROUP_NONE + 1; kind < WEFT_N_GROUP; kind++)
    if (used[kind])
      bytes += plan->job.stack.communicator_bytes;
  return bytes;
}

/* Bytes of the weights and fp32 master weights that a rank stores. */
static uint64_t
kept_weights (const weft_program *p)
{
  uint64_t bytes = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    gboolean master = b->kind == WEFT_BUF_OPTIMIZER && g_str_equal (p->name[b->name], "master");
    if (b->permanent && b->base == WEFT_NO_BUF && (b->kind == WEFT_BUF_WEIGHTS || master))
      bytes += b->bytes;
  }
  return bytes;
}

/* Returns the number of elements of all parameters. Sets *largest to the number of elements of the
 * largest bucket. */
static uint64_t
module_elements (const weft_program *p, uint64_t *largest)
{
  uint64_t all = 0;

  *largest = 0;
  for (uint32_t i = 0; i < p->n_param; i++) {
    uint64_t bucket = 0;
    for (uint32_t j = 0; j < p->n_param; j++)
      if (p->param[j].bucket == p->param[i].bucket)
        bucket += p->param[j].rows * p->param[j].columns;
    *largest = MAX (*largest, bucket);
    all += p->param[i].rows * p->param[i].columns;
  }
  return all;
}

uint64_t
weft_plan_init_bytes (const weft_plan *plan, uint32_t role)
{
  const union weft_strategy *k = &plan->job.strategy;
  const weft_program *p = plan->role[role];
  uint64_t largest, all;

  if (!k->use_megatron_fsdp)
    return 0;
  all = module_elements (p, &largest);
  return kept_weights (p) + (k->init_fsdp_with_meta_device ? largest : all) *
                                weft_dtype_bytes (weft_job_dtype (&plan->job));
}

uint64_t
weft_plan_arena_bytes (const weft_plan *plan, uint32_t role)
{
  return plan->memory[role].planned[WEFT_POOL_DEVICE] +
         plan->memory[role].planned[WEFT_POOL_SYMMETRIC];
}

uint64_t
weft_plan_used_bytes (const weft_plan *plan, uint32_t role)
{
  return plan->allocated ? (uint64_t) plan->allocated[role].peak
                         : weft_plan_arena_bytes (plan, role);
}

uint64_t
weft_plan_cached_bytes (const weft_plan *plan, uint32_t role)
{
  if (!plan->allocated)
    return 0;
  const struct weft_allocated *a = &plan->allocated[role];
  double libraries = (double) weft_plan_reserved_bytes (plan, role);
  double reserved = weft_allocator_reserved (&plan->job, plan->role[role], a, libraries);
  return (uint64_t) (reserved - a->peak);
}

uint64_t
weft_plan_peak_bytes (const weft_plan *plan, uint32_t role)
{
  return weft_plan_used_bytes (plan, role) + weft_plan_reserved_bytes (plan, role);
}

uint64_t
weft_plan_worst_bytes (const weft_plan *plan)
{
  uint64_t worst = 0;
  for (uint32_t role = 0; role < plan->n_roles; role++)
    worst = MAX (worst, weft_plan_peak_bytes (plan, role));
  return worst;
}

uint64_t
weft_plan_least_bytes (const weft_plan *plan)
{
  uint64_t worst = 0;

  if (plan->allocated)
    return weft_plan_worst_bytes (plan);
  for (uint32_t role = 0; role < plan->n_roles; role++)
    worst = MAX (worst, plan->memory[role].live[WEFT_POOL_DEVICE] +
                            plan->memory[role].live[WEFT_POOL_SYMMETRIC] +
                            weft_plan_reserved_bytes (plan, role));
  return worst;
}

uint64_t
weft_plan_host_bytes (const weft_plan *plan)
{
  g_autofree uint64_t *node = g_new0 (uint64_t, plan->job.cluster.n_nodes + 1);
  uint64_t worst = 0;

  for (uint32_t rank = 0; rank < plan->mesh.n_ranks; rank++) {
    uint64_t *here = &node[weft_fabric_node (&plan->fabric, rank)];
    *here += plan->memory[weft_mesh_stage (&plan->mesh, rank)].planned[WEFT_POOL_HOST];
    worst = MAX (worst, *here);
  }
  return worst;
}

gboolean
weft_plan_host_fits (const weft_plan *plan)
{
  return weft_plan_host_bytes (plan) <= plan->job.cluster.f.node_host_memory;
}

gboolean
weft_plan_fits (const weft_plan *plan)
{
  uint32_t tightest = weft_plan_tightest (plan);

  return (double) weft_plan_peak_bytes (plan, tightest) <=
             weft_plan_role_capacity (plan, tightest) &&
         weft_plan_host_fits (plan);
}
