/* gpu_kernels.h - seconds of Weft's own CUDA kernels, from how they run (core/gpu_kernels.def).
 *
 * MEMORY. The blocks of a kernel that run at once have a limited number of loads in flight. A round
 * of these blocks takes `waits` times the latency of memory, so that
 *
 *   t >= ceil (elements / (elements of a block x blocks at once)) x waits x latency
 *
 * (Little's law). Blocks at once: the grid, at most the SMs times the blocks for which an SM has
 * threads and registers. Arithmetic takes
 *
 *   t >= elements x instructions / (lanes x clock)
 *
 * and the same for special functions (exponential, reciprocal, square root), of which an SM
 * computes an eighth as many.
 *
 * ATTENTION. A block has an outer tile of rows, and passes over the inner tiles that the mask
 * leaves it. Its stages run one after the other; a stage takes as long as its products on tensor
 * cores or as the work on scores, whichever is longer, and then 100 cycles (estimate: the results
 * of the last product, and a barrier of 256 threads) in which nothing runs. Where two blocks share
 * an SM, or warpgroups take turns, stages overlap instead. The first tile waits for memory, and the
 * products of the last stage are not hidden. The last blocks end at different times: half of the
 * longest block is added.
 *
 * The formulas hold for GPUs whose memory latency is known (memory_latency of the topology), those
 * of attention for compute capability 9.0 and heads up to 128 wide, 16 bits. */
#pragma once
#include "core/cluster/cluster.h"
#include "core/program/op.h"

/* What limits a kernel. */
enum weft_kernel_limit {
  WEFT_LIMIT_BANDWIDTH,
  WEFT_LIMIT_FLIGHT, /* too few loads in flight */
  WEFT_LIMIT_INSTRUCTIONS,
  WEFT_LIMIT_SPECIALS,
  WEFT_N_LIMIT
};
extern const char *const weft_limit_words[WEFT_N_LIMIT + 1];

struct weft_memory_kernel {
  const char *kernel;          /* its name; NULL: the shape does not determine its grid */
  uint32_t threads, registers; /* of a block; of a thread */
  uint32_t most_blocks;        /* largest grid; 0: no limit */
  uint32_t most_on_sm;         /* blocks that shared memory leaves to an SM; 0: no limit */
  uint32_t each;               /* elements of the result that a thread handles at a time */
  uint32_t rows;               /* not 0: rows (dimension 1) that a block handles from end to end */
  gboolean by_row;             /* the last block of each row is partly empty */
  uint32_t wide;               /* not 0: rows of more bytes have blocks with twice the threads, one
                                * on an SM, because they fill its shared memory */
  gboolean flat;               /* only dimension 0 counts elements */
  /* not 0: teams of norm_rows.cuh: rows of a block if a row fits into a warp; most threads of a
   * block otherwise; most packs of 16 bytes of a thread in a warp */
  uint32_t team[3];
  uint32_t team_registers[6]; /* with 1, 2, 3, 4 packs of a thread in a warp, 1, 2 in a block */
  /* not 0: instead of most_blocks, the blocks that run at once on 132 multiprocessors, also on
   * other GPUs: blocks on each if a row fits into a warp; otherwise threads on each where they hold
   * one pack of a row, and where they hold two */
  uint32_t resident[3];
  double waits, instructions, specials;
  double block_waits; /* waits where a block computes a row; 0: the same */
};

struct weft_attention_stage {
  double products;               /* number of products of the tile, 2 outer x inner x width FLOPs */
  double instructions, specials; /* for each score */
};

struct weft_attention_kernel {
  const char *kernel;           /* its name */
  gboolean producer;            /* one of the kernels with a producer warp */
  uint32_t width;               /* of heads, padded to 64 or 128; 0: both */
  uint32_t outer, inner, on_sm; /* rows of the tiles; blocks on an SM */
  gboolean by_key;              /* outer tiles are keys, inner ones queries of a group's heads */
  gboolean apart;               /* stages of warpgroups overlap (ping-pong), so that a tile takes as
                                 * long as all its products or all its work on scores */
  double after;                 /* bytes of each query gradient that a last kernel moves */
  struct weft_attention_stage stage[4];
};

/* How a kernel is launched for a shape. */
struct weft_kernel_grid {
  uint64_t blocks;
  uint32_t threads, on_sm; /* threads of a block; blocks that an SM can hold at once */
  double elements, waits;  /* of a block in one round; latencies of the round */
};

/* The rows of an op; NULL or 0: none. */
const struct weft_memory_kernel *weft_memory_kernel (enum weft_op_kind kind);
struct weft_kernel_grid
weft_memory_grid (const struct weft_memory_kernel *k, const struct weft_shape *s);

/* The least seconds of a kernel by loads in flight and arithmetic, and which of them; 0 if the op
 * has no row or the GPU's latency is not known. */
double
weft_memory_kernel_seconds (const struct weft_cluster *c, enum weft_op_kind kind,
                            const struct weft_shape *s, double sms, enum weft_kernel_limit *limit);

/* Seconds in which the bias gradients of a product of m x n output gradients are summed, by a
 * second pass over them: columns.cuh; without gaps. */
double
weft_bias_sum_seconds (const struct weft_cluster *c, const struct weft_shape *s, double bandwidth);

/* Whether attention of this op, shape and GPU has rows. */
gboolean weft_attention_kernel_takes (const struct weft_cluster *c, enum weft_op_kind kind,
                                      const struct weft_shape *s);

/* Blocks of the kernel of this name; 0: no row has it. */
uint64_t weft_attention_kernel_blocks (const char *kernel, const struct weft_shape *s);

/* Which kernels of attention run, and on what. */
struct weft_attention_run {
  double rate, sms;  /* FLOP/s of tensor cores on all SMs; SMs that the kernels have */
  gboolean producer; /* the kernels with a producer warp */
};
double weft_attention_kernel_seconds (const struct weft_cluster *c, enum weft_op_kind kind,
                                      const struct weft_shape *s,
                                      const struct weft_attention_run *run);
