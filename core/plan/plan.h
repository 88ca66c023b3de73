/* plan.h - everything an executor needs, read-only: job, mesh, fabric, programs, memory plans, and
 * the seconds of every op. The plan owns all these members. */
#pragma once
#include "core/cluster/groups.h"
#include "core/plan/actors.h"
#include "core/plan/algorithms.h"
#include "core/plan/allocator.h"
#include "core/program/coll.h"
#include "core/plan/cost.h"
#include "core/job/job.h"
#include "core/plan/memory.h"
#include "core/program/placements.h"
#include "core/program/program.h"

typedef struct weft_plan {
  struct weft_job job;
  struct weft_mesh mesh;
  struct weft_fabric fabric; /* points into job.cluster */
  uint32_t n_roles;
  weft_program **role;
  struct weft_memory *memory; /* by role */
  /* memory of software without an arena, by role; NULL: the software has an arena (live_memory =
   * 0) */
  struct weft_allocated *allocated;
  /* the table named by cost_table of [cluster]; NULL: all ops are priced by formula */
  weft_cost_table *table;
  weft_algorithms *algorithms; /* collective algorithms from files (collective_algorithm_files) */
  /* [role][op]: seconds of the op alone on the cluster, without concurrent kernels or traffic. On
   * a cluster with several kinds of nodes: on the slowest kind of GPU of the role */
  double **seconds;
  /* [role]: that kind; [role * kinds + kind][op]: seconds on each kind, and NULL for kinds that the
   * role is not on. Both NULL unless the cluster has several kinds of nodes */
  uint32_t *kind;
  double **on_kind;
} weft_plan;

/* Inputs of the op costs of a plan. Their pointers are valid as long as the plan exists. */
static inline struct weft_cost
weft_plan_cost (const weft_plan *plan)
{
  const union weft_strategy *k = &plan->job.strategy;
  gboolean native = k->cross_entropy_fusion_impl == WEFT_LOSS_NATIVE;

  return (struct weft_cost){
    .cluster = &plan->job.cluster,
    .stack = &plan->job.stack,
    .table = plan->table,
    .deterministic = k->deterministic_mode,
    .fp8 = (enum weft_fp8_price) k->fp8_priced_as,
    .fp8_recipe = (enum weft_fp8_recipe) k->fp8_recipe,
    .fp8_weights = weft_job_fp8_lifetime (&plan->job),
    .drops = k->attention_priced_with_dropout,
    .fp8_attention = k->attention_priced_in_fp8,
    .timed_attention = k->attention_backend == WEFT_ATTENTION_AUTO,
    .expert_outputs = k->experts_priced_as_gpt_oss
                          ? (double) plan->job.model.hidden_size /
                                (double) plan->job.model.moe_ffn_hidden_size
                          : 0,
    .even_experts = k->moe_priced_with_next_experts,
    .compiled = k->enable_compile,
    .loss = !k->cross_entropy_loss_fusion ? 1 : native ? plan->job.stack.loss_native_share : 0
  };
}

/* The cluster that prices the kernels of a role (plan->kind). */
static inline const struct weft_cluster *
weft_plan_role_cluster (const weft_plan *plan, uint32_t role)
{
  return weft_cluster_of_kind (&plan->job.cluster, plan->kind ? plan->kind[role] : 0);
}

/* As weft_plan_cost(), on one kind of GPU. */
static inline struct weft_cost
weft_plan_cost_on (const weft_plan *plan, uint32_t kind)
{
  struct weft_cost cost = weft_plan_cost (plan);

  cost.cluster = weft_cluster_of_kind (cost.cluster, kind);
  return cost;
}

/* Seconds of the ops of a role on the GPU of a rank, by op; of communication those of
 * plan->seconds. */
static inline const double *
weft_plan_seconds_of (const weft_plan *plan, uint32_t role, uint32_t rank)
{
  const struct weft_cluster *c = &plan->job.cluster;

  return plan->on_kind ? plan->on_kind[role * weft_cluster_n_kinds (c) +
                                       weft_cluster_kind_of (c, rank)]
                       : plan->seconds[role];
}

/* Traffic of a collective of one group. If the cost table contains the op, the traffic is a delay
 * of the measured seconds; otherwise it is the traffic of the fastest algorithm that the job
 * allows. */
struct weft_traffic weft_plan_traffic (const weft_plan *plan, const struct weft_coll_shape *group,
                                       enum weft_op_kind kind, const struct weft_shape *shape);

/* Traffic of a send between two ranks. If the cost table contains `send`, the traffic is a delay of
 * the measured seconds; otherwise bytes[0] is the size of the tensor. */
struct weft_traffic weft_plan_transfer (const weft_plan *plan, uint32_t from, uint32_t to,
                                        const struct weft_shape *shape);

/* SMs that an op takes from concurrent kernels. `group`: placement of the group of a collective;
 * NULL for other ops. */
uint32_t weft_plan_sms (const weft_plan *plan, const weft_program *program, uint32_t op,
                        const struct weft_coll_shape *group);

/* Makes the plan of a job: builds the program of every role (pipeline stage), plans memory, and
 * proves the result (check.h). The job must satisfy the rules of rules.def. Returns NULL with an
 * error on failure; the caller frees the plan. */
weft_plan *weft_plan_new (const struct weft_job *job, GError **error);

/* Makes a plan for a search over hundreds of candidates. WEFT_PLAN_OUTLINED: job, mesh and number
 * of roles, without programs. WEFT_PLAN_PRICED: ops and their costs. WEFT_PLAN_PLACED: also memory:
 * buffer offsets, or, for software without an arena, the blocks of its allocator. WEFT_PLAN_PROVED:
 * every buffer has an offset and the plan is checked (check.h); only such a plan may be executed.
 * `placements` may be shared by plans on equal clusters; NULL: the plan computes its own. */
enum weft_plan_depth {
  WEFT_PLAN_OUTLINED,
  WEFT_PLAN_PRICED,
  WEFT_PLAN_PLACED,
  WEFT_PLAN_PROVED
};
weft_plan *weft_plan_new_draft (const struct weft_job *job, enum weft_plan_depth depth,
                                weft_placements *placements, GError **error);

/* Like weft_plan_new_draft() with WEFT_PLAN_PRICED, but only role[r] with wanted[r] have a
 * program. */
weft_plan *weft_plan_new_some (const struct weft_job *job, const gboolean *wanted,
                               weft_placements *placements, GError **error);

/* Replaces the seconds of communication and copies of a program of the plan by those that they take
 * if the first rank of `role` runs it. */
void weft_plan_price_comm (const weft_plan *plan, const weft_program *p, uint32_t role,
                           weft_placements *placements, double *seconds);

/* The plans of the start-up before the first step: weft_plan_new_startup() computes initial weights
 * and then runs broadcast_params(); weft_plan_new_broadcast() runs broadcast_params() alone.
 * Parameters and flat buffers have the offsets of the step's plan. Both return NULL with an error
 * if there is no work at start-up (step.h, weft_init_does_something()). */
weft_plan *weft_plan_new_startup (const struct weft_job *job, GError **error);
weft_plan *weft_plan_new_broadcast (const struct weft_job *job, GError **error);
/* Frees the programs, their memory plans and their costs. The mesh, the fabric and the function for
 * the cost of transfers remain usable. */
void weft_plan_drop_programs (weft_plan *plan);
void weft_plan_free (weft_plan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_plan, weft_plan_free)

/* Prices all ops again, with other numbers in the topology and the stack. Programs and memory plans
 * do not change, so numbers that change programs or memory must be equal. */
void weft_plan_price (weft_plan *plan, const union weft_cluster_fields *cluster,
                      const union weft_stack *stack);

/* Runs all proofs of check.h on a plan again. */
gboolean weft_plan_check (const weft_plan *plan, GError **error);

/* GPU bytes that libraries allocate outside the arena, from the stack's values for context,
 * communicators and workspace; 0 on topology cpu. */
uint64_t weft_plan_reserved_bytes (const weft_plan *plan, uint32_t role);

/* Peak GPU bytes while Megatron-FSDP creates the weights: the sharded weights and masters that the
 * rank keeps, plus the whole module that the shards are cut from. If init_fsdp_with_meta_device is
 * on, only the largest bucket of the module is counted instead of the whole module. 0 for all other
 * strategies. */
uint64_t weft_plan_init_bytes (const weft_plan *plan, uint32_t role);

/* GPU bytes that an executor allocates for the arenas of a role. */
uint64_t weft_plan_arena_bytes (const weft_plan *plan, uint32_t role);

/* GPU bytes in use at the peak of a role: the arenas, or, for software without an arena, the blocks
 * of its allocator. */
uint64_t weft_plan_used_bytes (const weft_plan *plan, uint32_t role);

/* GPU bytes that a caching allocator has obtained but does not use at the peak. The allocator
 * returns these bytes to the driver before memory runs out. 0 for software with an arena. */
uint64_t weft_plan_cached_bytes (const weft_plan *plan, uint32_t role);

/* GPU bytes that a role uses, plus the GPU bytes that libraries reserve for it. */
uint64_t weft_plan_peak_bytes (const weft_plan *plan, uint32_t role);

/* GPU bytes that a role uses, plus reserved bytes, of the role with the largest sum. */
uint64_t weft_plan_worst_bytes (const weft_plan *plan);

/* GPU bytes that are live and reserved, without fragmentation, of the role with the largest sum: a
 * lower bound for any placement of buffers. */
uint64_t weft_plan_least_bytes (const weft_plan *plan);

/* Planned bytes of the host pools of all ranks of the node that needs most. */
uint64_t weft_plan_host_bytes (const weft_plan *plan);

/* Whether the host pools fit in the host memory of every node. */
gboolean weft_plan_host_fits (const weft_plan *plan);

/* Bytes of GPU memory that a plan may use: the GPU's memory minus the share memory_headroom. */
double weft_plan_capacity (const struct weft_job *job);

/* The same for the GPUs of a role: on several kinds of nodes, of the smallest. */
double weft_plan_role_capacity (const weft_plan *plan, uint32_t role);

/* The role whose memory comes nearest to the capacity of its GPUs, or exceeds it most. */
uint32_t weft_plan_tightest (const weft_plan *plan);

/* Whether every role fits on its GPU and the host pools fit on every node. */
gboolean weft_plan_fits (const weft_plan *plan);

/* Closed-form seconds of a communication or copy op of one rank that has the cluster to itself. For
 * a collective that joins a group launch, the seconds that it adds to the launch. */
double weft_plan_comm_seconds (const weft_plan *plan, uint32_t rank, uint32_t op);

/* The number of bytes that stands for a copy over the host link. If the copy was measured, this is
 * the number of bytes that an idle link moves in the measured time; otherwise the bytes of the
 * copy. */
double weft_plan_copy_bytes (const weft_plan *plan, uint32_t rank, uint32_t op);
