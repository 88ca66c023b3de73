/* cost.h - seconds of an op on one GPU.
 *
 * Kernels follow a roofline with reachable roofs:
 *
 *   t = gap + max (FLOPs / (matmul rate x efficiency), bytes / (copy bandwidth x memory share))
 *
 * A matmul of m x n x k is cut into tiles; its efficiency is the share of the last wave of tiles
 * that the SMs fill (wave quantisation), the share of the tiles' area that is real (tile
 * quantisation), and k / (k + k_half) for the prologue of each tile.  A product with fewer tiles
 * than SMs, such as the weight gradient of a narrow layer, is split along k into as many parts as
 * is quickest and no more than one wave holds; the partial sums are written and read once in fp32
 * (split-K: NVIDIA CUTLASS, media/docs/cpp/efficient_gemm.md, "Parallelized Reductions"; cuBLASLt's
 * algorithms have it as CUBLASLT_ALGO_CONFIG_SPLITK_NUM).  Attention reaches a fixed share of the
 * matmul rate, or, for heads that the stack's kernels do not take on matrix units, of the rate
 * without them.  The formula knows no device: its constants come from topologies/ and stacks/,
 * which say also what kernels take (weft_stack_takes_heads).  A measured table, keyed by op and
 * shape, may replace the formula (cost_table.h).
 *
 * SMs (what a kernel's blocks run on: streaming multiprocessors, compute units) that communication
 * holds are missing from the waves of a kernel that runs at the same time.  On a CPU a rank is one
 * thread, and nothing runs at the same time. */
#pragma once
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "core/plan/cost_table.h"
#include "core/program/program.h"

/* What the price of an op depends on; all borrowed. */
struct weft_cost {
  const struct weft_cluster *cluster;
  const union weft_stack *stack;
  const weft_cost_table *table; /* NULL: formulas alone */
  gboolean deterministic;       /* deterministic_mode: some kernels are slower, as the stack says */
};

/* Seconds of one kernel when `sms_taken` SMs are busy with communication. */
double weft_cost_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                         const struct weft_shape *shape, uint32_t sms_taken);

/* Seconds of a kernel on lane host, alone on its node: its bytes over the bandwidth of host memory,
 * which all ranks of the node share.  Adam does a dozen operations for each 28 to 30 bytes, far
 * fewer than the cores of a server could do in that time (ZeRO-Offload, arXiv 2101.06840, section
 * 5.1, builds its CPU Adam on vector units, threads and tiles for that reason).  On topology cpu
 * the host is the thread that runs all kernels of the rank. */
double weft_cost_host_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                              const struct weft_shape *shape);

/* The terms of the formula, for a kernel that has all SMs: seconds = gap + max (work, memory).  The
 * work of a matmul is flops / (rate x waves x tiles x depth) + sums, that of attention is
 * flops / (rate x share); terms that do not apply are 0. */
struct weft_cost_parts {
  double flops, bytes;
  double rate, bandwidth;           /* FLOP/s, B/s: rate before efficiency, bandwidth after */
  double waves, tiles, depth, share;
  double splits, sums; /* parts of a product's inner dimension; seconds to add them up */
  double gap, work, memory;         /* seconds */
};
struct weft_cost_parts weft_cost_split (const struct weft_cost *cost, enum weft_op_kind kind,
                                        const struct weft_shape *shape);

/* Seconds of every kernel of a program, by op; entries of ops that are no kernels stay as they are.
 * A fused op (fuse.c) has no gap before it, and does not load again what the op before it has
 * loaded.  The executor of a CPU runs op after op: there a fused op costs as much as alone. */
void weft_cost_program (const struct weft_cost *cost, const weft_program *program,
                        uint32_t sms_taken, double *seconds);

/* What lies between the ranks of a group. */
enum weft_domain {
  WEFT_DOMAIN_SWITCH,  /* the switch of one node (NVLink) */
  WEFT_DOMAIN_BOTH,    /* several nodes with a switch in each */
  WEFT_DOMAIN_NETWORK, /* several nodes, one rank of each */
  WEFT_DOMAIN_OTHER,   /* PCIe or memory, perhaps beside a network */
};
enum weft_domain weft_cost_domain (const struct weft_cluster *cluster, uint32_t n_nodes,
                                   uint32_t n_local);

/* SMs an op's communication kernel holds while it runs. */
uint32_t weft_cost_sms (const union weft_stack *stack, enum weft_op_kind kind);

/* The same for a collective that overlaps a matmul through a user buffer (tp_comm_overlap). */
uint32_t weft_cost_user_sms (enum weft_op_kind kind);

/* The same for buffers that are registered with the collective library (nccl_ub): as sms.def says
 * for the domain, and never more than without registration.  The kernels that need few SMs behind
 * the switch of a node are those for symmetric windows: with buffers that are registered locally a
 * collective takes as many SMs there as without registration. */
uint32_t weft_cost_registered_sms (const struct weft_cost *cost, enum weft_op_kind kind,
                                   enum weft_domain domain, gboolean symmetric);
