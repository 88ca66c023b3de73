/* made.h - clusters with round numbers and plans made by hand, for tests with known answers.
 *
 * A made cluster has no latencies and no overheads. Every GPU has its own NVLink port of 100 GB/s,
 * PCIe link of 100 GB/s and NIC of 50 GB/s, so transfers share a link only if a test arranges it. A
 * made kernel is an attention op, whose time is inversely proportional to its number of SMs. */
#pragma once
#include "core/plan/cost.h"
#include "core/exec/exec.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/own.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* CMocka requires these headers before its own. */

#include <cmocka.h>

#define MADE_PORT 100e9
#define MADE_NIC 50e9
#define MADE_HOST 100e9
#define MADE_SMS 132
#define MADE_US 1e-6

#define assert_near(found, wanted) made_assert_near ((found), (wanted), #found, __FILE__, __LINE__)

/* Asserts that `found` is within a relative error of 1e-9 of `wanted`. */
static inline void
made_assert_near (double found, double wanted, const char *what, const char *file, int line)
{
  if (!(fabs (found - wanted) <= 1e-9 * fabs (wanted)))
    fail_msg ("%s:%d: %s: found %.15g, wanted %.15g", file, line, what, found, wanted);
}

static inline struct weft_cluster
made_cluster (uint32_t nodes, uint32_t node_gpus)
{
  struct weft_cluster c = { .n_gpus = nodes * node_gpus, .n_nodes = nodes };

  weft_table_defaults (&weft_cluster_table, c.f.at);
  c.f.gpu_sms = MADE_SMS;
  c.f.gpu_memory = c.f.gpu_memory_bandwidth = 1e18;
  c.f.gpu_bf16 = 2e12;
  c.f.gpu_host_link = MADE_HOST;
  c.f.node_gpus = c.f.node_nics = node_gpus;
  c.f.node_intra = WEFT_NVLINK;
  c.f.node_intra_bandwidth = MADE_PORT;
  c.f.node_nic_bandwidth = MADE_NIC;
  c.f.node_gpus_per_switch = 1;
  c.f.node_host_bandwidth = 1e15;
  c.f.fabric_nodes_per_unit = nodes;
  c.f.fabric_units_per_pod = 64;
  return c;
}

/* A job whose software stack has no overheads, and whose communication needs no SMs. */
static inline struct weft_job
made_job (const struct weft_cluster *cluster)
{
  struct weft_job job = { .cluster = *cluster };

  weft_table_defaults (&weft_stack_table, job.stack.at);
  job.stack.kernel_gap = job.stack.collective_base_latency = job.stack.launch_seconds = 0;
  job.stack.attention_forward_share = job.stack.memory_share = 1;
  job.stack.collective_sms = job.stack.p2p_sms = 0;
  return job;
}

/* The most links between nodes that a piece of a ring over k nodes of g ranks passes on its way
 * over `links` links, counted link by link from every start. The last rank of each node sends to
 * the next node. */
static inline uint32_t
made_links_between_nodes (uint32_t links, double k, double g)
{
  uint32_t most = 0, of_node = (uint32_t) g;

  for (uint32_t start = 0; start < of_node && k > 1; start++) {
    uint32_t n = 0;
    for (uint32_t link = start; link < start + links; link++)
      n += link % of_node == of_node - 1;
    most = MAX (most, n);
  }
  return most;
}

/* ---------------------------------------------------------------- programs */

static inline struct weft_op
made_row (weft_builder *b, enum weft_op_kind kind, const char *name)
{
  return (struct weft_op) { .kind = kind,
                           .lane = WEFT_LANE_GPU,
                           .layer = WEFT_NO_LAYER,
                           .micro = WEFT_NO_MICRO,
                           .name = weft_build_name (b, name) };
}

static inline struct weft_shape
made_bytes (uint64_t bytes)
{
  g_assert (bytes % 4 == 0);
  return (struct weft_shape) { .dim = { bytes / 4 }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };
}

/* Appends a kernel that takes this many microseconds if it has all SMs: 2 x 1000 x 1000 FLOPs at 2
 * TFLOP/s are one microsecond. */
static inline uint32_t
made_kernel (weft_builder *b, uint32_t microseconds)
{
  struct weft_op row = made_row (b, WEFT_OP_ATTENTION, "kernel");
  struct weft_shape shape = { .dim = { microseconds, 1000, 1, 1, 1 },
                              .dtype = WEFT_BF16,
                              .out_dtype = WEFT_BF16 };
  return weft_build_op (b, &row, &shape);
}

static inline uint32_t
made_collective (weft_builder *b, enum weft_op_kind kind, enum weft_group_kind group,
                 uint64_t bytes)
{
  struct weft_op row = made_row (b, kind, weft_group_word (group));
  struct weft_shape shape = made_bytes (bytes);

  row.group = group;
  row.lane = weft_group_lane (group);
  return weft_build_op (b, &row, &shape);
}

static inline uint32_t
made_transfer (weft_builder *b, enum weft_op_kind kind, int peer, uint64_t bytes)
{
  struct weft_op row = made_row (b, kind, "transfer");
  struct weft_shape shape = made_bytes (bytes);

  row.group = WEFT_GROUP_PP;
  row.lane = WEFT_LANE_PP;
  row.peer = peer;
  return weft_build_op (b, &row, &shape);
}

static inline uint32_t
made_copy (weft_builder *b, enum weft_op_kind kind, uint64_t bytes)
{
  struct weft_op row = made_row (b, kind, "copy");
  struct weft_shape shape = made_bytes (bytes);

  row.lane = weft_op_enters_device (kind) ? WEFT_LANE_H2D : WEFT_LANE_D2H;
  return weft_build_op (b, &row, &shape);
}

/* ------------------------------------------------------------------- plans */

static inline void
made_role (weft_plan *plan, uint32_t role, weft_builder *b)
{
  weft_program *p = weft_builder_freeze (b);
  struct weft_cost cost = weft_plan_cost (plan);
  double *seconds = g_new (double, p->n_op + 1);

  plan->role[role] = p;
  plan->seconds[role] = seconds;
  weft_cost_program (&cost, p, 0, seconds);
  for (uint32_t op = 0; op < p->n_op; op++)
    if (weft_op_info[p->op[op].kind].class != WEFT_CLASS_COMPUTE)
      seconds[op] = weft_plan_comm_seconds (plan, weft_mesh_stage_rank (&plan->mesh, role, 0), op);
  weft_memory_plan (p, seconds, G_MAXUINT64, &plan->memory[role]);
}

/* Makes a plan of the builders' programs, one per stage, and checks it like any other plan. The
 * test fails if a check refuses it. */
static inline weft_plan *
made_plan (const struct weft_job *job, struct weft_mesh mesh, weft_builder *const *builder)
{
  weft_plan *plan = g_new0 (weft_plan, 1);
  g_autoptr (GError) error = NULL;

  g_assert (mesh.n_ranks == job->cluster.n_gpus);
  plan->job = *job;
  plan->mesh = mesh;
  plan->fabric = weft_fabric_make (&plan->job.cluster);
  plan->n_roles = mesh.pp;
  plan->role = g_new0 (weft_program *, mesh.pp);
  plan->memory = g_new0 (struct weft_memory, mesh.pp);
  plan->seconds = g_new0 (double *, mesh.pp);
  for (uint32_t role = 0; role < mesh.pp; role++)
    made_role (plan, role, builder[role]);
  if (!weft_plan_check (plan, &error))
    fail_msg ("%s", error->message);
  return plan;
}

/* Returns a plan whose only op is a collective over all GPUs. */
static inline weft_plan *
made_collective_plan (const struct weft_job *job, enum weft_op_kind kind, uint64_t bytes)
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  made_collective (b, kind, WEFT_GROUP_DP, bytes);
  return made_plan (job, weft_mesh_make (1, 1, job->cluster.n_gpus, 1), &b);
}

/* Builds a real job from flags: "--num-layers", "4" ..., ended by NULL. */
static inline void
made_real_job (struct weft_job *job, const char *const *flags)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  const char *section, *key;
  gboolean boolean;

  for (; *flags; flags += 2) {
    g_assert (flags[1] && weft_job_flag (flags[0] + 2, &section, &key, &boolean));
    weft_settings_add (settings, section, key, flags[1], flags[0]);
  }
  if (!weft_job_build (settings, job, &error))
    fail_msg ("%s", error->message);
}

static inline weft_plan *
made_real_plan (const struct weft_job *job)
{
  g_autoptr (GError) error = NULL;
  weft_plan *plan = weft_plan_new (job, &error);

  if (!plan)
    fail_msg ("%s", error->message);
  return plan;
}

/* ----------------------------------------------------------------- running */

/* Runs a plan on an executor. `own`: options of this executor as text (own.h). */
static inline weft_timeline *
made_run_with (const struct weft_exec_ops *exec, const weft_plan *plan, const char *own)
{
  const struct weft_exec_options options = { .own = made_own (exec, "%s", own) };
  g_autoptr (GError) error = NULL;
  weft_timeline *t = weft_exec_run (exec, plan, &options, &error);

  if (!t)
    fail_msg ("%s", error->message);
  return t;
}

/* Asserts that every rank of the unfolded timeline `whole` has the times of its representative in
 * the folded timeline. */
static inline void
made_assert_same_dates (const weft_plan *plan, const weft_timeline *folded,
                        const weft_timeline *whole)
{
  g_autoptr (weft_actors) actors = weft_actors_new (&plan->fabric, &plan->mesh, TRUE);

  assert_int_equal (whole->n, plan->mesh.n_ranks);
  assert_int_equal (folded->n, actors->n);
  for (uint32_t row = 0; row < whole->n; row++) {
    uint32_t actor = actors->actor_of[whole->rank[row]];
    for (uint32_t op = 0; op < plan->role[whole->role[row]]->n_op; op++) {
      assert_near (folded->begin[actor][op], whole->begin[row][op]);
      assert_near (folded->end[actor][op], whole->end[row][op]);
    }
  }
  assert_int_equal (folded->contended, whole->contended);
}

/* Simulates the plan folded and unfolded. Asserts that both timelines agree, and returns the folded
 * timeline. */
static inline weft_timeline *
made_run (const weft_plan *plan)
{
  weft_timeline *folded = made_run_with (&weft_exec_sim, plan, "");
  g_autoptr (weft_timeline) whole = made_run_with (&weft_exec_sim, plan, "unfolded");

  made_assert_same_dates (plan, folded, whole);
  return folded;
}
