/* plan.h - everything an executor needs and nothing it may write: job, mesh, programs, memory, who
 * is simulated and what every op costs.  Owns all of it; read-only once made. */
#pragma once
#include "core/plan/actors.h"
#include "core/program/coll.h"
#include "core/plan/cost.h"
#include "core/job/job.h"
#include "core/plan/memory.h"
#include "core/program/program.h"

typedef struct weft_plan {
  struct weft_job job;
  struct weft_mesh mesh;
  struct weft_fabric fabric; /* points into job.cluster */
  uint32_t n_roles;
  weft_program **role;
  struct weft_memory *memory; /* by role */
  weft_cost_table *table;     /* of [cluster] cost_table; NULL: formulas alone */
  double **seconds;           /* [role][op]: alone on its GPU, links to itself */
} weft_plan;

/* What prices its ops; borrows from the plan. */
static inline struct weft_cost
weft_plan_cost (const weft_plan *plan)
{
  return (struct weft_cost){ &plan->job.cluster, &plan->job.stack, plan->table,
                             plan->job.strategy.deterministic_mode };
}

/* A collective of one group: the quickest algorithm, or, where the cost table has the op, a delay
 * of as many seconds as were measured. */
struct weft_traffic weft_plan_traffic (const weft_plan *plan, const struct weft_coll_shape *group,
                                       enum weft_op_kind kind, const struct weft_shape *shape);

/* A send from one rank to another, likewise: bytes[0] move after the latency, or a delay where
 * the cost table has `send`. */
struct weft_traffic weft_plan_transfer (const weft_plan *plan, uint32_t from, uint32_t to,
                                        const struct weft_shape *shape);

/* SMs that an op takes from kernels while it runs; `group` is that of a collective, else NULL. */
uint32_t weft_plan_sms (const weft_plan *plan, const weft_program *program, uint32_t op,
                        const struct weft_coll_shape *group);

/* Builds every role, plans memory, proves the result (check.h).  The job has passed its rules. */
weft_plan *weft_plan_new (const struct weft_job *job, GError **error);

/* The same up to a point, for who looks at hundreds and shows none of them: ops with their prices; or
 * offsets of all buffers, too, which are not proved.  Nothing is run by such a plan. */
enum weft_plan_depth { WEFT_PLAN_PRICED, WEFT_PLAN_PLACED, WEFT_PLAN_PROVED };
weft_plan *weft_plan_new_draft (const struct weft_job *job, enum weft_plan_depth depth,
                                GError **error);

/* The same of what happens once before the first step: first weights, then broadcast_params(); or of
 * broadcast_params() alone.  Parameters and flat buffers lie where the plan of the step has them.
 * Refused where nothing happens (step.h, weft_init_does_something()). */
weft_plan *weft_plan_new_startup (const struct weft_job *job, GError **error);
weft_plan *weft_plan_new_broadcast (const struct weft_job *job, GError **error);
void weft_plan_free (weft_plan *plan);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_plan, weft_plan_free)

/* All proofs of check.h again. */
gboolean weft_plan_check (const weft_plan *plan, GError **error);

/* GPU bytes that libraries take beside the arena: the stack's context, communicators, workspace. */
uint64_t weft_plan_reserved_bytes (const weft_plan *plan, uint32_t role);

/* GPU bytes at the peak of making weights for Megatron-FSDP: the weights and fp32 weights that a rank
 * keeps, and beside them the whole module that they are cut from, or with init_fsdp_with_meta_device
 * one bucket of it at a time.  0 where a strategy makes weights where they stay. */
uint64_t weft_plan_init_bytes (const weft_plan *plan, uint32_t role);

/* Planned and reserved device bytes of a role; the largest role; the largest without padding, below which
 * no placement of buffers comes; bytes of the host pool that the ranks of one node have together, of the
 * fullest; whether every role and every node fits. */
uint64_t weft_plan_peak_bytes (const weft_plan *plan, uint32_t role);
uint64_t weft_plan_worst_bytes (const weft_plan *plan);
uint64_t weft_plan_least_bytes (const weft_plan *plan);
uint64_t weft_plan_host_bytes (const weft_plan *plan);
gboolean weft_plan_host_fits (const weft_plan *plan);
gboolean weft_plan_fits (const weft_plan *plan);

/* Seconds of a communication or copy op of one rank by the closed formula, alone on the cluster; of a
 * collective that joins a launch, the seconds that it adds. */
double weft_plan_comm_seconds (const weft_plan *plan, uint32_t rank, uint32_t op);

/* Bytes of a copy on the host link: those that it has, or where it was measured those that take as long
 * there when nothing else is on the link. */
double weft_plan_copy_bytes (const weft_plan *plan, uint32_t rank, uint32_t op);
