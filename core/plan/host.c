#include "core/plan/host.h"
#include "core/job/pipeline.h"
#include "core/plan/launches.h"
#include "core/plan/software.h"
#include <math.h>

/* ------------------------------------------------------------------- launches */

static gboolean
launches (const struct weft_cost *cost, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];

  if (row->flags & (WEFT_OP_GROUPED | WEFT_OP_FUSED) || row->lane == WEFT_LANE_HOST ||
      weft_cost_omits (cost, p, op))
    return FALSE;
  return row->kind == WEFT_OP_CLIP || weft_op_info[row->kind].class != WEFT_CLASS_COMPUTE ||
         weft_op_bytes (p, op) > 0;
}

static uint32_t
count_launches (const struct weft_cost *cost, const weft_program *p)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += launches (cost, p, op);
  return n;
}

/* ---------------------------------------------------------------------- waits */

/* Host seconds of a launch: the measured time, or the stack's value if there is no measurement. */
static double
cost_of (const weft_plan *plan, enum weft_host_cost what)
{
  const union weft_stack *stack = &plan->job.stack;
  const double stated[] = { [WEFT_HOST_CALL] = stack->launch_seconds,
                            [WEFT_HOST_GRAPH] = stack->graph_launch,
                            [WEFT_HOST_NODE] = stack->graph_node };

  return weft_cost_table_launch (plan->table, what, stated[what]);
}

/* Whether the framework runs the backward pass of an op in C++, which takes host_backward_share of
 * the time of the forward pass. A linear module has two ops in its backward pass. */
static gboolean
is_faster_backward (const union weft_stack *stack, enum weft_op_kind kind)
{
  enum weft_kernel_class kernel = weft_op_kernel (kind);

  return !stack->host_python_backward ||
         (weft_op_info[kind].class == WEFT_CLASS_COMPUTE && kernel != WEFT_KERNEL_DISPATCH &&
          kernel != WEFT_KERNEL_ATTENTION);
}

/* The framework's host time for an op, beyond its launch. `share`: the time of the pass, as a
 * fraction of that of the forward pass. */
static double
host_time (const union weft_stack *stack, const weft_program *p, uint32_t op, double share)
{
  enum weft_op_kind kind = p->op[op].kind;
  const double kernel[WEFT_N_KERNEL] = {
    [WEFT_KERNEL_MATMUL] = stack->host_matmul_seconds,
    [WEFT_KERNEL_NORM] = stack->host_norm_seconds,
    [WEFT_KERNEL_ATTENTION] = stack->host_attention_seconds,
    [WEFT_KERNEL_DISPATCH] = stack->host_dispatch_seconds,
    [WEFT_KERNEL_OPTIMIZER] = stack->host_optimizer_seconds,
  };
  const double class[] = {
    [WEFT_CLASS_COMPUTE] = kernel[weft_op_kernel (kind)],
    [WEFT_CLASS_COLLECTIVE] = stack->host_collective_seconds,
    [WEFT_CLASS_P2P] = stack->host_p2p_seconds,
    [WEFT_CLASS_COPY] = 0,
  };
  double experts = weft_op_info[kind].experts ? (double) weft_op_shape (p, op)->dim[3] : 0;

  return stack->host_op_seconds * share +
         class[weft_op_info[kind].class] * (is_faster_backward (stack, kind) ? share : 1) +
         experts * stack->host_expert_seconds * (stack->host_python_backward ? 1 : share);
}

struct maker {
  const weft_plan *plan;
  const weft_program *p;
  gboolean graph;
  GArray *segment, *awaited;
  gboolean *waited;           /* [op]: whether a segment already waits for the op */
  uint32_t *counts_copy;      /* [buffer]: newest copy of the buffer to the host */
  uint32_t last[WEFT_N_LANE]; /* newest op of each lane */
  uint32_t in_layer;          /* newest kernel of a layer */
  gboolean gathered;          /* whether an op before gathered weights */
};

static uint32_t *
nothing_told (const weft_program *p)
{
  uint32_t *counts_copy = g_new (uint32_t, p->n_buf + 1);

  for (uint32_t buf = 0; buf < p->n_buf; buf++)
    counts_copy[buf] = WEFT_NO_OP;
  return counts_copy;
}

static void
note_told (const weft_program *p, uint32_t op, uint32_t *counts_copy)
{
  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
    if (p->op[op].kind == WEFT_OP_COPY_OUT && p->uses[u].buf != WEFT_NO_BUF)
      counts_copy[weft_buf_owner (p, p->uses[u].buf)] = op;
}

/* The newest op that copies to the host the row counts that an all-to-all reads. Returns WEFT_NO_OP
 * if the all-to-all reads no row counts, or no op has copied its row counts to the host. */
static uint32_t
copy_of_counts (const weft_program *p, uint32_t op, const uint32_t *counts_copy)
{
  uint32_t newest = WEFT_NO_OP;

  gboolean counted = weft_op_is_counted (p->op[op].kind);

  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses && counted; u++) {
    uint32_t buf = p->uses[u].buf;
    uint32_t copy = buf == WEFT_NO_BUF ? WEFT_NO_OP : counts_copy[weft_buf_owner (p, buf)];
    if (copy != WEFT_NO_OP && (newest == WEFT_NO_OP || copy > newest))
      newest = copy;
  }
  return newest;
}

static void
await (struct maker *m, uint32_t op)
{
  if (op == WEFT_NO_OP || m->waited[op])
    return;
  m->waited[op] = TRUE;
  g_array_append_val (m->awaited, op);
}

/* Adds the copies that the host must wait for before it issues the op. Returns whether the op
 * depends on a transfer between stages. */
static gboolean
await_copies (struct maker *m, uint32_t op)
{
  const weft_program *p = m->p;
  gboolean exchanged = FALSE;

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
    const struct weft_op *dep = &p->op[p->deps[d]];
    exchanged |= weft_op_info[dep->kind].class == WEFT_CLASS_P2P;
    if (dep->kind == WEFT_OP_COPY_OUT && m->plan->job.stack.host_waits)
      await (m, p->deps[d]);
  }
  await (m, copy_of_counts (p, op, m->counts_copy));
  return exchanged;
}

/* Whether the host waits for the device after each batch of transfers. The host waits only in
 * Megatron-Core's schedules: in other schedules the wait would delay the next transfer. */
static gboolean
synchronises (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  const struct weft_schedule_row *row = weft_job_schedule (job);

  return job->stack.host_waits && s->batch_p2p_comm && s->batch_p2p_sync && row && row->host_waits;
}

/* Whether the op gathers the weights of one unit of a fully sharded model. */
static gboolean
gathers_weights (const weft_plan *plan, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];

  return row->kind == WEFT_OP_ALL_GATHER && !(row->flags & WEFT_OP_GROUPED) &&
         row->lane == WEFT_LANE_DP &&
         (plan->job.strategy.distributed_config == WEFT_FSDP2 ||
          weft_job_sharding (&plan->job) >= WEFT_SHARD_PARAMS);
}

/* Adds waits for the newest op of every lane, so that the host issues the first kernel after an
 * exchange only when the device is idle. */
static void
await_device (struct maker *m)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    await (m, m->last[lane]);
}

static void
await_what_is_before (struct maker *m, uint32_t op)
{
  const union weft_stack *stack = &m->plan->job.stack;
  gboolean exchanged = await_copies (m, op);
  enum weft_op_kind before = op ? m->p->op[op - 1].kind : WEFT_N_OP;

  if ((before == WEFT_OP_TIMER && stack->host_waits) ||
      (before == WEFT_OP_CLIP && stack->norm_waits))
    await (m, op - 1);
  if ((exchanged && m->p->op[op].lane == WEFT_LANE_GPU && synchronises (&m->plan->job)) ||
      (stack->gather_waits && gathers_weights (m->plan, m->p, op)) ||
      (stack->expert_clamp_waits && m->plan->job.strategy.experts_priced_as_gpt_oss &&
       m->p->op[op].kind == WEFT_OP_MOE_ACT))
    await_device (m);
}

uint32_t
weft_host_reads (const weft_program *p)
{
  g_autofree uint32_t *counts_copy = nothing_told (p);

  for (uint32_t op = 0; op < p->n_op; op++) {
    note_told (p, op, counts_copy);
    if (copy_of_counts (p, op, counts_copy) != WEFT_NO_OP)
      return op;
  }
  return WEFT_NO_OP;
}

/* Whether the op is the first kernel of a pass through a layer. */
static gboolean
enters_layer (struct maker *m, uint32_t op)
{
  const struct weft_op *row = &m->p->op[op];

  if (row->layer == WEFT_NO_LAYER || row->lane != WEFT_LANE_GPU ||
      row->phase > WEFT_PHASE_RECOMPUTE)
    return FALSE;
  const struct weft_op *was = m->in_layer == WEFT_NO_OP ? NULL : &m->p->op[m->in_layer];
  m->in_layer = op;
  return !was || row->layer != was->layer || row->micro != was->micro || row->phase != was->phase;
}

static gboolean
is_backward (enum weft_phase phase)
{
  return phase == WEFT_PHASE_BACKWARD || phase == WEFT_PHASE_INPUT_GRAD ||
         phase == WEFT_PHASE_WEIGHT_GRAD;
}

/* Host seconds of the copies around a collective of weights or gradients. The first gather of a
 * step comes after the gather of small weights that ended the step before. */
static double
ranks_time (struct maker *m, uint32_t op)
{
  double parts = weft_software_parts (m->plan, m->p, op);

  if (!m->gathered && gathers_weights (m->plan, m->p, op)) {
    m->gathered = TRUE;
    parts += weft_software_persistent_parts (m->plan, m->p);
  }
  return parts * m->plan->job.stack.host_rank_seconds;
}

/* Host seconds of a launch: the launch itself, and the framework's code around it. */
static double
launch_time (struct maker *m, uint32_t op, double launch)
{
  const union weft_stack *stack = &m->plan->job.stack;
  struct weft_cost cost = weft_plan_cost (m->plan);
  double share = is_backward (m->p->op[op].phase) ? stack->host_backward_share : 1;
  double framework = host_time (stack, m->p, op, share);

  cost.cluster = weft_plan_role_cluster (m->plan, m->p->role);
  if (enters_layer (m, op))
    framework += stack->host_layer_seconds * share;
  framework += ranks_time (m, op);
  return launch + framework / cost.cluster->f.node_host_speed +
         weft_launches_host (&cost, m->p->op[op].kind, weft_op_shape (m->p, op), launch);
}

/* Fills the launch segments, and the running sum of launch seconds of every op. */
static void
fill (struct maker *m, weft_host *h)
{
  struct weft_launch_segment first = { 0 };
  struct weft_cost cost = weft_plan_cost (m->plan);
  double each = cost_of (m->plan, WEFT_HOST_CALL);
  double sum = m->graph ? cost_of (m->plan, WEFT_HOST_GRAPH) +
                              cost_of (m->plan, WEFT_HOST_NODE) * count_launches (&cost, m->p)
                        : 0;

  g_array_append_val (m->segment, first);
  for (uint32_t op = 0; op < m->p->n_op; op++) {
    struct weft_launch_segment next = { sum, m->awaited->len };
    if (!m->graph)
      await_what_is_before (m, op);
    if (m->awaited->len > next.awaited)
      g_array_append_val (m->segment, next);
    if (!m->graph && launches (&cost, m->p, op))
      sum += launch_time (m, op, each);
    h->upto[op] = sum;
    h->segment_of[op] = m->segment->len - 1;
    m->last[m->p->op[op].lane] = op;
    note_told (m->p, op, m->counts_copy);
  }
  h->n_segment = m->segment->len;
  h->launches = sum;
  g_array_append_val (m->segment, ((struct weft_launch_segment){ sum, m->awaited->len }));
}

static weft_host *
make (const weft_plan *plan, const weft_program *p, gboolean graph)
{
  struct maker m = { .plan = plan,
                     .p = p,
                     .graph = graph,
                     .segment = g_array_new (FALSE, FALSE, sizeof (struct weft_launch_segment)),
                     .awaited = g_array_new (FALSE, FALSE, sizeof (uint32_t)),
                     .waited = g_new0 (gboolean, p->n_op + 1),
                     .counts_copy = nothing_told (p),
                     .in_layer = WEFT_NO_OP };
  weft_host *h = g_new0 (weft_host, 1);

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    m.last[lane] = WEFT_NO_OP;
  h->upto = g_new (double, p->n_op + 1);
  h->segment_of = g_new (uint32_t, p->n_op + 1);
  fill (&m, h);
  h->segment = (struct weft_launch_segment *) (void *) g_array_free (m.segment, FALSE);
  h->awaited = (uint32_t *) (void *) g_array_free (m.awaited, FALSE);
  g_free (m.waited);
  g_free (m.counts_copy);
  return h;
}

/* ---------------------------------------------------------------------- dates */

struct weft_host_clock
weft_host_clock_new (const weft_host *h)
{
  struct weft_host_clock clock = { 0 };

  if (!h)
    return clock;
  clock.begin = g_new (double, h->n_segment);
  clock.begin[0] = -h->lead;
  clock.open = 1;
  return clock;
}

void
weft_host_clock_clear (struct weft_host_clock *clock)
{
  g_clear_pointer (&clock->begin, g_free);
}

/* Begins the next segment: when the host has issued the previous segment and all ops that the next
 * segment waits for have ended. Returns FALSE if the end of one of these ops is not known yet. */
static gboolean
begin_next (const weft_host *h, struct weft_host_clock *clock, weft_host_end end, void *user)
{
  const struct weft_launch_segment *next = &h->segment[clock->open];
  double begin = clock->begin[clock->open - 1] + (next->before - next[-1].before);

  for (uint32_t i = next->awaited; i < next[1].awaited; i++) {
    double ended = end (user, h->awaited[i]);
    if (isnan (ended))
      return FALSE;
    begin = fmax (begin, ended);
  }
  clock->begin[clock->open++] = begin;
  return TRUE;
}

gboolean
weft_host_issues (const weft_host *h, struct weft_host_clock *clock, uint32_t op, weft_host_end end,
                  void *user, double *date)
{
  uint32_t s = h->segment_of[op];

  while (clock->open <= s)
    if (!begin_next (h, clock, end, user))
      return FALSE;
  *date = clock->begin[s] + (h->upto[op] - h->segment[s].before);
  return TRUE;
}

static double
latest (const weft_program *p, const double *end, uint32_t op, double date)
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    date = fmax (date, end[p->deps[d]]);
  return date;
}

double
weft_host_waited (const weft_host *h, const weft_program *p, const double *begin, const double *end)
{
  double sum = 0, free_at = 0;

  for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_GPU]; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    const struct weft_launch_segment *s = &h->segment[h->segment_of[op]];
    double ready = latest (p, end, op, free_at);
    for (uint32_t j = s->awaited; j < s[1].awaited; j++)
      ready = fmax (ready, end[h->awaited[j]]);
    sum += fmax (0, begin[op] - ready);
    free_at = end[op];
  }
  return sum;
}

/* ----------------------------------------------------------------------- lead */

static double
end_of (void *end, uint32_t op)
{
  return ((const double *) end)[op];
}

/* Plays one step of the role alone with a given lead. Returns the end of the step. *issued is the
 * time at which the host has issued all ops. */
static double
play_step (const weft_plan *plan, const weft_program *p, weft_host *h, double lead, double *end,
           double *issued)
{
  double free_at[WEFT_N_LANE] = { 0 }, step = 0;

  h->lead = lead;
  struct weft_host_clock clock = weft_host_clock_new (h);
  *issued = -lead;
  for (uint32_t op = 0; op < p->n_op; op++) {
    double *lane = &free_at[p->op[op].lane];
    weft_host_issues (h, &clock, op, end_of, end, issued);
    *lane = end[op] = latest (p, end, op, fmax (*issued, *lane)) + plan->seconds[p->role][op];
    step = fmax (step, end[op]);
  }
  weft_host_clock_clear (&clock);
  return step;
}

enum { MOST_STEPS = 8 };

/* Sets the lead of the host. Returns FALSE if the host is always ahead of the device, so that no op
 * waits for its launch. */
static gboolean
find_lead (const weft_plan *plan, const weft_program *p, weft_host *h)
{
  g_autofree double *end = g_new (double, p->n_op + 1);
  double issued, step;

  if (plan->job.stack.step_waits || p->n_op == 0)
    return TRUE;
  if (h->n_segment == 1 && play_step (plan, p, h, INFINITY, end, &issued) >= h->launches)
    return FALSE;
  double lead = 0, was = -1;
  for (int i = 0; i < MOST_STEPS && fabs (lead - was) > 1e-9 * lead; i++) {
    was = lead;
    step = play_step (plan, p, h, was, end, &issued);
    lead = fmax (0, step - issued);
  }
  h->lead = lead;
  return TRUE;
}

weft_host *
weft_host_new (const weft_plan *plan, uint32_t role, gboolean graph)
{
  const weft_program *p = plan->role[role];
  double cost = graph ? cost_of (plan, WEFT_HOST_GRAPH) + cost_of (plan, WEFT_HOST_NODE)
                      : cost_of (plan, WEFT_HOST_CALL);

  if (cost <= 0 || weft_cluster_is_cpu (&plan->job.cluster))
    return NULL;
  g_autoptr (weft_host) h = make (plan, p, graph);
  return find_lead (plan, p, h) ? g_steal_pointer (&h) : NULL;
}

void
weft_host_free (weft_host *h)
{
  g_free (h->segment);
  g_free (h->awaited);
  g_free (h->segment_of);
  g_free (h->upto);
  g_free (h);
}

weft_host **
weft_hosts_new (const weft_plan *plan, gboolean graph)
{
  weft_host **hosts = g_new0 (weft_host *, plan->n_roles + 1);

  for (uint32_t role = 0; role < plan->n_roles; role++)
    hosts[role] = weft_host_new (plan, role, graph);
  return hosts;
}

void
weft_hosts_free (weft_host **hosts, uint32_t n_roles)
{
  for (uint32_t role = 0; hosts && role < n_roles; role++)
    if (hosts[role])
      weft_host_free (hosts[role]);
  g_free (hosts);
}
