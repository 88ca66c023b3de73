#include "core/plan/software.h"
#include <math.h>

static gboolean
is_group (const weft_plan *plan, const struct weft_group *group, enum weft_group_kind kind)
{
  struct weft_group g = weft_mesh_group (&plan->mesh, group->first, kind);

  return g.n[0] == group->n[0] && g.n[1] == group->n[1] && g.stride[0] == group->stride[0] &&
         (g.n[1] == 1 || g.stride[1] == group->stride[1]);
}

/* Whether the members of a group hold the same weights and shard the state of their optimizer. */
static gboolean
shares_optimizer (const weft_plan *plan, const struct weft_group *group)
{
  static const enum weft_group_kind kinds[] = { WEFT_GROUP_DP, WEFT_GROUP_INTRA, WEFT_GROUP_EDP,
                                                WEFT_GROUP_EDP_INTRA };
  const union weft_strategy *s = &plan->job.strategy;

  if (!s->use_distributed_optimizer || s->distributed_config != WEFT_MEGATRON_DDP)
    return FALSE;
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    if (is_group (plan, group, kinds[i]))
      return TRUE;
  return FALSE;
}

/* Whether the members of a group hold shards of the same weights. */
static gboolean
shares_weights (const weft_plan *plan, const struct weft_group *group)
{
  return plan->job.strategy.distributed_config != WEFT_MEGATRON_DDP &&
         is_group (plan, group, WEFT_GROUP_DP);
}

/* Whether tensor-parallel ranks gather or scatter an activation along its sequence dimension. */
static gboolean
divides_sequence (const weft_plan *plan, const struct weft_group *group, enum weft_op_kind kind)
{
  return plan->job.strategy.sequence_parallel && is_group (plan, group, WEFT_GROUP_TP) &&
         (kind == WEFT_OP_ALL_GATHER || kind == WEFT_OP_REDUCE_SCATTER);
}

/* Whether FSDP2 reduces gradients of distributed experts in the dtype of the stored weights. */
static gboolean
reduces_narrow (const weft_plan *plan, const struct weft_group *group, enum weft_op_kind kind)
{
  const union weft_strategy *s = &plan->job.strategy;

  return plan->job.stack.narrow_shards && s->distributed_config == WEFT_FSDP2 &&
         s->expert_model_parallel_size > 1 && kind == WEFT_OP_REDUCE_SCATTER &&
         is_group (plan, group, WEFT_GROUP_EDP) && !is_group (plan, group, WEFT_GROUP_DP);
}

double
weft_software_bytes (const weft_plan *plan, const struct weft_coll_shape *group,
                     enum weft_op_kind kind, const struct weft_shape *shape)
{
  double bytes = weft_op_info[kind].bytes (shape);

  if (reduces_narrow (plan, &group->group, kind))
    return bytes * MIN (1, (double) weft_dtype_bytes (weft_job_dtype (&plan->job)) /
                               weft_dtype_bytes (shape->dtype));
  return plan->job.strategy.fp8_priced_as == WEFT_FP8_PRICE_ROWWISE &&
                 plan->job.stack.rowwise_gathers_16 && weft_dtype_bytes (shape->dtype) == 1 &&
                 divides_sequence (plan, &group->group, kind)
             ? 2 * bytes
             : bytes;
}

/* Reads and writes of the whole tensor by the kernels around a collective. */
static double
sweeps (const weft_plan *plan, const struct weft_group *group, enum weft_op_kind kind)
{
  const union weft_stack *stack = &plan->job.stack;

  if (stack->sequence_copies && divides_sequence (plan, group, kind))
    return 2;
  if (!shares_weights (plan, group))
    return 0;
  if (kind == WEFT_OP_ALL_GATHER)
    return stack->gather_sweeps;
  return kind == WEFT_OP_REDUCE_SCATTER ||
                 (kind == WEFT_OP_ALL_REDUCE && stack->all_reduces_gradients == 2)
             ? stack->reduction_sweeps
             : 0;
}

void
weft_software_reorder (const weft_plan *plan, const struct weft_coll_shape *group,
                       enum weft_op_kind kind, double bytes, struct weft_traffic *t)
{
  const union weft_stack *stack = &plan->job.stack;
  double rate = group->cluster->f.gpu_memory_bandwidth * stack->memory_share;
  double seconds = sweeps (plan, &group->group, kind) * bytes / rate;

  t->latency += seconds;
  t->seconds += seconds;
}

enum weft_op_kind
weft_software_kind (const weft_plan *plan, const struct weft_coll_shape *group,
                    enum weft_op_kind kind)
{
  const union weft_stack *stack = &plan->job.stack;
  gboolean replaced = (kind == WEFT_OP_REDUCE_SCATTER && stack->all_reduces_gradients) ||
                      (kind == WEFT_OP_ALL_GATHER && stack->broadcasts_weights);

  if (kind == WEFT_OP_REDUCE_SCATTER && stack->all_reduces_gradients == 2 &&
      shares_weights (plan, &group->group))
    return WEFT_OP_ALL_REDUCE;
  if (!replaced || !shares_optimizer (plan, &group->group))
    return kind;
  return kind == WEFT_OP_ALL_GATHER ? WEFT_OP_BROADCAST : WEFT_OP_ALL_REDUCE;
}

double
weft_software_launches (const weft_plan *plan, const struct weft_coll_shape *group,
                        enum weft_op_kind kind, double elements)
{
  const weft_program *p = plan->role[weft_mesh_stage (&plan->mesh, group->group.first)];
  double all = 0;

  if (kind != WEFT_OP_BROADCAST)
    return 1;
  for (uint32_t i = 0; i < p->n_param; i++)
    all += (double) p->param[i].rows * (double) p->param[i].columns;
  return fmax (1, elements / all * MIN (p->n_param, group->n));
}

static void
multiply (struct weft_traffic *t, double times)
{
  t->seconds *= times;
  t->latency *= times;
  for (int way = 0; way < WEFT_MAX_WAYS; way++) {
    t->bytes[way] *= times;
    t->chunk[way] *= times;
  }
}

void
weft_software_repeat (const weft_plan *plan, double launches, struct weft_traffic *t)
{
  const struct weft_cluster *c = &plan->job.cluster;
  double chunks = 0;

  if (launches <= 1)
    return;
  if (plan->fabric.ops->style == WEFT_FABRIC_TIERS)
    chunks = WEFT_CHUNK_BYTES * (t->steps[WEFT_WAY_LOCAL] / c->f.node_intra_bandwidth +
                                 t->steps[WEFT_WAY_REMOTE] / c->f.node_nic_bandwidth);
  t->seconds += chunks;
  t->latency += chunks;
  multiply (t, launches);
}

/* The part of a layer's weights that are freed after their recomputation: more than
 * gather_reuse_elements elements of weights are used before their backward pass, which are the
 * weights after them in forward, counted there and once more in backward. */
static double
freed_before_backward (const weft_plan *plan, const weft_program *p)
{
  double after = 0, freed = 0;
  uint32_t layer = WEFT_NO_LAYER;

  for (uint32_t i = p->n_param; i-- > 0;) {
    const struct weft_param *w = &p->param[i];
    double n = (double) w->whole_rows * (double) w->whole_columns;
    layer = layer == WEFT_NO_LAYER ? w->layer : layer;
    if (w->layer == WEFT_NO_LAYER || w->layer != layer)
      continue;
    freed += 2 * after > plan->job.stack.gather_reuse_elements ? n : 0;
    after += n;
  }
  return after > 0 ? freed / after : 0;
}

/* Gathers of the software for each gather of the program. */
static double
gathers (const weft_plan *plan, const weft_program *p)
{
  return plan->job.stack.gather_reuse_elements > 0 &&
                 weft_job_recompute (&plan->job).granularity == WEFT_RECOMPUTE_FULL
             ? 1 + freed_before_backward (plan, p) / 2
             : 1;
}

void
weft_software_gather_again (const weft_plan *plan, const struct weft_coll_shape *group,
                            enum weft_op_kind kind, struct weft_traffic *t)
{
  const weft_program *p = plan->role[weft_mesh_stage (&plan->mesh, group->group.first)];

  if (kind == WEFT_OP_ALL_GATHER && shares_weights (plan, &group->group))
    multiply (t, gathers (plan, p));
}

/* Weights of a stage, and their elements: those that an op gathers, or those that stay gathered. */
struct held {
  double weights, elements;
};

static struct held
count_weights (const weft_plan *plan, const weft_program *p, gboolean persistent)
{
  struct held all = { 0 };

  for (uint32_t i = 0; i < p->n_param; i++) {
    double n = (double) p->param[i].whole_rows * (double) p->param[i].whole_columns;
    if ((n < plan->job.stack.gather_persistent_elements) == persistent) {
      all.weights++;
      all.elements += n;
    }
  }
  return all;
}

double
weft_software_parts (const weft_plan *plan, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];
  gboolean all_gathers = row->kind == WEFT_OP_ALL_GATHER;

  if (row->lane != WEFT_LANE_DP || plan->job.stack.host_rank_seconds == 0 ||
      (!all_gathers && (row->kind != WEFT_OP_REDUCE_SCATTER ||
                        plan->job.stack.all_reduces_gradients == 2)))
    return 0;
  struct held held = count_weights (plan, p, FALSE);
  double elements = (double) weft_op_shape (p, op)->dim[0];
  double weights = held.elements > 0 ? elements / held.elements * held.weights : 0;
  return weft_mesh_group_size (&plan->mesh, row->group) * (p->n_param ? weights : 1) *
         (all_gathers ? gathers (plan, p) : 1);
}

double
weft_software_persistent_parts (const weft_plan *plan, const weft_program *p)
{
  return weft_mesh_group_size (&plan->mesh, WEFT_GROUP_DP) *
         count_weights (plan, p, TRUE).weights;
}

void
weft_software_scatter (const weft_plan *plan, uint32_t to, const struct weft_shape *shape,
                       double rate, struct weft_traffic *t)
{
  struct weft_group group = weft_mesh_group (&plan->mesh, to, WEFT_GROUP_TP);
  struct weft_coll_shape ranks;

  if (!plan->job.stack.scattered_sends || plan->mesh.tp == 1 ||
      plan->job.strategy.sequence_parallel)
    return;
  weft_coll_shape_init (&ranks, &plan->fabric, &group);
  t->latency += weft_plan_traffic (plan, &ranks, WEFT_OP_ALL_GATHER, shape).seconds;
  t->bytes[0] /= plan->mesh.tp;
  t->seconds = t->latency + t->bytes[0] / rate;
  weft_coll_shape_release (&ranks);
}
