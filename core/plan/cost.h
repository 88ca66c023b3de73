/* cost.h - seconds of an op on one GPU.
 *
 * Kernels follow a roofline with reachable roofs:
 *
 *   t = gap + max (FLOPs / (matmul rate x efficiency), bytes / (copy bandwidth x memory share))
 *
 * A matmul of m x n x k is cut into tiles; its efficiency is the share of the last wave of tiles
 * that the SMs fill (wave quantisation), the share of the tiles' area that is real (tile
 * quantisation), and k / (k + k_half) for the prologue of each tile. A product with fewer tiles
 * than SMs, such as the weight gradient of a narrow layer, is split along k into as many parts as
 * is quickest and no more than one wave holds; the partial sums are written and read once in fp32
 * (split-K: NVIDIA CUTLASS, media/docs/cpp/efficient_gemm.md, "Parallelized Reductions"; cuBLASLt's
 * algorithms have it as CUBLASLT_ALGO_CONFIG_SPLITK_NUM). Attention reaches a fixed share of the
 * matmul rate. For heads that the stack's kernels do not run on matrix units
 * (weft_stack_takes_heads) it reaches a share of the rate without matrix units. The formula
 * contains no device: its constants come from topologies/ and stacks/. A measured table, keyed by
 * op and shape, may replace the formula (cost_table.h).
 *
 * SMs (streaming multiprocessors or compute units, on which the blocks of a kernel run) that
 * communication holds are missing from the waves of a kernel that runs at the same time. On a CPU a
 * rank is one thread, and nothing runs at the same time. */
#pragma once
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "core/plan/cost_table.h"
#include "core/program/program.h"

/* The inputs of the price of an op. The caller owns all of them. */
struct weft_cost {
  const struct weft_cluster *cluster;
  const union weft_stack *stack;
  const weft_cost_table *table; /* NULL: formulas only */
  gboolean deterministic; /* deterministic_mode: some kernels are slower, by factors of the stack */
};

/* Seconds of one kernel while communication holds `sms_taken` SMs. */
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
  double rate, bandwidth;           /* FLOP/s before efficiency; B/s after it */
  double waves, tiles, depth, share; /* factors of the rate, at most 1 */
  double splits, sums; /* split-K parts; seconds to add them up */
  double gap, work, memory;         /* seconds */
};
struct weft_cost_parts weft_cost_split (const struct weft_cost *cost, enum weft_op_kind kind,
                                        const struct weft_shape *shape);

/* Seconds of every kernel of a program, by op; entries of ops that are no kernels are not changed.
 * A fused op (fuse.c) has no gap before it, and does not load again the bytes that the previous op
 * has loaded. On a CPU the executor runs one op after the other, so a fused op costs as much as a
 * separate op. */
void weft_cost_program (const struct weft_cost *cost, const weft_program *program,
                        uint32_t sms_taken, double *seconds);

/* Interconnect between the ranks of a group. */
enum weft_domain {
  WEFT_DOMAIN_SWITCH,  /* the switch of one node (NVLink) */
  WEFT_DOMAIN_BOTH,    /* several nodes with a switch in each */
  WEFT_DOMAIN_NETWORK, /* several nodes with one rank each */
  WEFT_DOMAIN_OTHER,   /* PCIe or memory, possibly with a network */
};
enum weft_domain weft_cost_domain (const struct weft_cluster *cluster, uint32_t n_nodes,
                                   uint32_t n_local);

/* SMs that the communication kernel of an op holds while it runs. */
uint32_t weft_cost_sms (const union weft_stack *stack, enum weft_op_kind kind);

/* SMs that a collective holds if it overlaps a matmul through a user buffer (tp_comm_overlap). */
uint32_t weft_cost_user_sms (enum weft_op_kind kind);

/* SMs that a collective holds if its buffers are registered with the collective library (nccl_ub):
 * the number in sms.def for the domain, and never more than without registration. Within the switch
 * of a node only the kernels for symmetric windows (`symmetric`) need few SMs. With buffers that
 * are registered locally, a collective holds as many SMs there as without registration. */
uint32_t weft_cost_registered_sms (const struct weft_cost *cost, enum weft_op_kind kind,
                                   enum weft_domain domain, gboolean symmetric);
