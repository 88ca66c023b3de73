/* cost.h - seconds of an op on one GPU.
 *
 * The time of a kernel follows a roofline model with the rates that kernels reach in practice:
 *
 *   t = gap + max (FLOPs / (matmul rate x efficiency), bytes / (copy bandwidth x memory share))
 *
 * The memory share is that of the kernel's class (weft_op_kernel).
 *
 * A matmul of m x n x k is cut into tiles; its efficiency is the share of the last wave of tiles
 * that the SMs fill (wave quantisation), the share of the tiles' area that is real (tile
 * quantisation), and k / (k + k_half) for the prologue and epilogue of each tile, whose seconds do
 * not depend on the dtype: k_half of fp8 is larger than that of bf16, as its rate is. A product
 * with fewer tiles than SMs, such as the weight gradient of a narrow layer, is split along k. The
 * number of parts is the fastest whose tiles fit in one wave; the partial sums are written and read
 * once in fp32 (split-K: NVIDIA CUTLASS, media/docs/cpp/efficient_gemm.md, "Parallelized
 * Reductions"; cuBLASLt sets the number of parts by CUBLASLT_ALGO_CONFIG_SPLITK_NUM). Attention
 * reaches a share of the matmul rate, which grows with the keys of a query and with the width of
 * heads. For heads that the stack's kernels do not run on matrix units (weft_stack_takes_heads),
 * attention reaches a share of the rate without matrix units. For Weft's own kernels (own_kernels
 * of the stack) bandwidth and attention follow from how these kernels run (gpu_kernels.h), and a
 * product may be split into parts that need several waves. The formula contains no constants of a
 * device: they come from topologies/ and stacks/. A measured table, keyed by op and shape, may
 * replace the formula (cost_table.h).
 *
 * Communication kernels hold SMs (streaming multiprocessors or compute units). The waves of a
 * kernel that runs at the same time use only the other SMs. If the pieces of a product run on
 * several streams (piece_streams), each piece fills the last wave of the piece before. On a CPU a
 * rank is one thread, and nothing runs at the same time. */
#pragma once
#include "core/base/sheet.h"
#include "core/cluster/cluster.h"
#include "core/job/stack.h"
#include "core/plan/cost_table.h"
#include "core/plan/gpu_kernels.h"
#include "core/program/program.h"

/* The inputs of op costs. The caller owns all of them. */
struct weft_cost {
  const struct weft_cluster *cluster;
  const union weft_stack *stack;
  const weft_cost_table *table; /* NULL: formulas only */
  gboolean deterministic; /* whether deterministic_mode is on: some kernels are then slower, by
                           * factors of the stack */
  enum weft_fp8_price fp8; /* the scaling recipe that sets the rate of fp8 products */
  enum weft_fp8_recipe fp8_recipe;
  enum weft_fp8_lifetime fp8_weights; /* how long weights that were converted to fp8 are kept */
  gboolean drops; /* whether attention in one kernel is priced with dropout of probabilities */
  gboolean fp8_attention; /* whether attention in one kernel is priced with fp8 products */
  /* whether attention is the fastest on the GPU (attention_backend = auto): of the two kinds of
   * kernels of core/gpu_kernels.def; nothing is known of cuDNN's */
  gboolean timed_attention;
  double expert_outputs; /* outputs of an expert for each inner element of it, if experts are priced
                          * as those of GPT-OSS; 0: they are not */
  gboolean even_experts; /* whether the router gives each expert the same number of tokens */
  gboolean compiled; /* whether a compiler joins pointwise kernels (enable_compile) */
  double loss; /* fraction of the stack's loss_ bytes that the loss moves: 0 if it is fused */
};

/* converts_kept: whether an op converts a weight to fp8, or transposes its codes, and the software
 * keeps the result at least for the step. omits: whether the software has the result from before
 * the microbatch of the op, so that it does not launch the op. */
gboolean weft_cost_converts_kept (const struct weft_cost *cost, const weft_program *program,
                                  uint32_t op);
gboolean weft_cost_omits (const struct weft_cost *cost, const weft_program *program, uint32_t op);

/* Seconds of one kernel while communication holds `sms_taken` SMs. */
double weft_cost_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                         const struct weft_shape *shape, uint32_t sms_taken);

/* Seconds of a kernel on lane host while no other rank of the node uses host memory: the kernel's
 * bytes divided by the bandwidth of host memory, which all ranks of the node share. Arithmetic does
 * not count: Adam does a dozen operations for each 28 to 30 bytes, and the cores of a server do far
 * more operations in the time of those bytes (ZeRO-Offload, arXiv 2101.06840, section 5.1: a CPU
 * Adam with vector units, threads and tiles). On topology cpu the host is the thread that runs all
 * kernels of the rank. */
double weft_cost_host_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                              const struct weft_shape *shape);

/* The terms of the roofline formula for a kernel that runs on all SMs: seconds = gap + max (work,
 * memory). The work of a matmul is flops / (rate x waves x tiles x depth) + sums; the work of
 * attention is flops / (rate x share). Terms that do not apply to a kernel are 0. */
struct weft_cost_parts {
  double flops, bytes;
  double rate, bandwidth;           /* FLOP/s at full efficiency; B/s that kernels reach */
  double waves, tiles, depth, share; /* factors of the rate, at most 1 */
  double splits, sums; /* number of split-K parts; seconds to add up the partial sums */
  double gap, work, memory;         /* seconds */
  enum weft_kernel_limit limit;     /* why a kernel of own_kernels does not reach the bandwidth */
};
struct weft_cost_parts weft_cost_split (const struct weft_cost *cost, enum weft_op_kind kind,
                                        const struct weft_shape *shape);

/* A number of a topology or stack file. */
struct weft_cost_field {
  const struct weft_sheet *sheet;
  unsigned row; /* of sheet->table */
};
enum { WEFT_COST_FIELDS = 5 };

/* The numbers from which the rate of a kernel's limit follows, work or memory, and its gap. Returns
 * how many there are. */
unsigned weft_cost_fields (const struct weft_cost *cost, enum weft_op_kind kind,
                           const struct weft_shape *shape,
                           struct weft_cost_field field[WEFT_COST_FIELDS]);

/* Seconds of the kernels that sum a bias gradient after the product of a weight gradient: a part of
 * the op's seconds for stacks with own_kernels; 0 for other ops and stacks, whose software adds it
 * in the product. */
double weft_cost_bias (const struct weft_cost *cost, const weft_program *program, uint32_t op);

/* Sets seconds[op] for every kernel of a program; the entries of other ops are not changed. A fused
 * op (fuse.c) has no kernel gap, and does not load bytes that the previous op has already loaded.
 * On a CPU the executor runs one op after the other, so a fused op costs as much as a separate
 * op. */
void weft_cost_program (const struct weft_cost *cost, const weft_program *program,
                        uint32_t sms_taken, double *seconds);

/* Interconnect between the ranks of a group. */
enum weft_domain {
  WEFT_DOMAIN_SWITCH,  /* the switch of one node (NVLink) */
  WEFT_DOMAIN_BOTH,    /* several nodes with a switch in each */
  WEFT_DOMAIN_NETWORK, /* several nodes with one rank each */
  WEFT_DOMAIN_OTHER,   /* PCIe or host memory within a node, possibly also a network */
};
enum weft_domain weft_cost_domain (const struct weft_cluster *cluster, uint32_t n_nodes,
                                   uint32_t n_local);

/* SMs that the communication kernel of an op holds while it runs. */
uint32_t weft_cost_sms (const union weft_stack *stack, enum weft_op_kind kind);

/* SMs that a collective holds if it overlaps a matmul through a user buffer (tp_comm_overlap). */
uint32_t weft_cost_piece_sms (const union weft_stack *stack, enum weft_op_kind kind);

/* SMs that a collective holds if its buffers are registered with the collective library (nccl_ub):
 * the number in sms.def for the domain, but at most the number without registration. Within the
 * switch of a node, only kernels for symmetric windows (`symmetric` TRUE) need few SMs. If buffers
 * are registered locally (`symmetric` FALSE), a collective within the switch holds as many SMs as
 * without registration. */
uint32_t weft_cost_registered_sms (const struct weft_cost *cost, enum weft_op_kind kind,
                                   enum weft_domain domain, gboolean symmetric);
