/* cost.h - seconds of an op on one GPU.
 *
 * Kernels follow a roofline with reachable roofs:
 *
 *   t = gap + max (FLOPs / (matmul rate x efficiency), bytes / (copy bandwidth x memory share))
 *
 * A matmul of m x n x k is cut into tiles; its efficiency is the share of the last wave of tiles
 * that the SMs fill (wave quantisation), the share of the tiles' area that is real (tile
 * quantisation), and k / (k + k_half) for the prologue of each tile.  A product that has fewer tiles
 * than there are SMs, as weight gradients of narrow layers, is split along k into as many parts as is
 * quickest and no more than one wave holds; their sums cross memory in fp32 once each way (split-K:
 * NVIDIA CUTLASS, media/docs/cpp/efficient_gemm.md, "Parallelized Reductions"; cuBLASLt's algorithms
 * have it as CUBLASLT_ALGO_CONFIG_SPLITK_NUM).  Attention takes a fixed share of the matmul rate,
 * or, by kernels without tensor cores, of the CUDA cores'.  All constants come from topologies/ and
 * stacks/; a measured table, keyed by op and shape, may stand in front of the formula
 * (cost_table.h).
 *
 * SMs that communication kernels hold are missing from the waves of a kernel that runs beside
 * them; on a CPU, where a rank is one thread, nothing runs beside them. */
#pragma once
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "core/plan/cost_table.h"
#include "core/program/program.h"

/* What prices ops; borrowed. */
struct weft_cost {
  const struct weft_cluster *cluster;
  const union weft_stack *stack;
  const weft_cost_table *table; /* NULL: formulas alone */
  gboolean deterministic;       /* deterministic_mode: some kernels are slower, as the stack says */
};

/* Seconds of one kernel when `sms_taken` SMs are busy with communication. */
double weft_cost_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                         const struct weft_shape *shape, uint32_t sms_taken);

/* Seconds of a kernel on lane host, alone on its node: the bytes it moves over the bandwidth of host
 * memory, which all ranks of the node share.  Adam does a dozen operations for each 28 to 30 bytes, far
 * below what the cores of a server could do meanwhile (ZeRO-Offload, arXiv 2101.06840, section 5.1,
 * builds its CPU Adam on vector units, threads and tiles for that reason).  On topology cpu a rank is
 * one thread and the host is where its kernels run anyway. */
double weft_cost_host_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                              const struct weft_shape *shape);

/* The terms of the formula, for a kernel that has all SMs: seconds = gap + max (work, memory).  A
 * matmul's work is flops / (rate x waves x tiles x depth) + sums, attention's flops / (rate x share);
 * 0 where a term has no part. */
struct weft_cost_parts {
  double flops, bytes;
  double rate, bandwidth;           /* FLOP/s, B/s: rate before efficiency, bandwidth after */
  double waves, tiles, depth, share;
  double splits, sums; /* parts of a product's inner dimension; seconds to add them up */
  double gap, work, memory;         /* seconds */
};
struct weft_cost_parts weft_cost_split (const struct weft_cost *cost, enum weft_op_kind kind,
                                        const struct weft_shape *shape);

/* Seconds of every kernel of a program, by op; ops that are no kernels are left alone.  An op that is
 * fused (fuse.c) has no gap before it, and moves nothing again that the op before it has at hand; on a
 * CPU, whose executor runs op after op, it costs as much as alone. */
void weft_cost_program (const struct weft_cost *cost, const weft_program *program,
                        uint32_t sms_taken, double *seconds);

/* What lies between the ranks of a group. */
enum weft_domain {
  WEFT_DOMAIN_NVLINK,  /* the NVLink switch of one node */
  WEFT_DOMAIN_BOTH,    /* several nodes, and NVLink in each */
  WEFT_DOMAIN_NETWORK, /* several nodes, one rank of each */
  WEFT_DOMAIN_OTHER,   /* PCIe or memory, perhaps beside a network */
};
enum weft_domain weft_cost_domain (const struct weft_cluster *cluster, uint32_t n_nodes,
                                   uint32_t n_local);

/* SMs an op's communication kernel holds while it runs. */
uint32_t weft_cost_sms (const union weft_stack *stack, enum weft_op_kind kind);

/* The same of one that runs beside a product through a buffer of its own. */
uint32_t weft_cost_user_sms (enum weft_op_kind kind);

/* The same when the buffers are registered with NCCL (nccl_ub): what sms.def says of the domain, and
 * never more than without.  Registered locally, not as a symmetric window, they spare the network and
 * NVLink SHARP their copies, but the kernels that need few SMs inside an NVLink domain are those for
 * windows: there the collective takes as many as ever. */
uint32_t weft_cost_registered_sms (const struct weft_cost *cost, enum weft_op_kind kind,
                                   enum weft_domain domain, gboolean symmetric);
