/* coll.h - collectives as data: bytes and steps of each algorithm, and closed formulas for their
 * time.
 *
 * A fabric declares the style of its collectives (fabric.h). coll_tiers.c contains the algorithms
 * for nodes and the network between them, coll_grid.c those for chips with neighbours.
 *
 * Tiers.  Symbols: n ranks, k nodes, g = n / k ranks of each node, S bytes of the full tensor.
 *
 *   ring       every rank sends f S bytes in s steps:  all_reduce f = 2(n-1)/n, s = 2(n-1);
 *              reduce_scatter, all_gather f = (n-1)/n, s = n-1; broadcast f = 1 (pipelined),
 *              s = n-1.  (Patarasuk and Yuan 2009; NCCL's bus bandwidth definition in nccl-tests
 *              PERFORMANCE.md.)
 *   tree       all_reduce over double binary trees: 2 S per node between nodes, 2 ((g-1) +
 *              ceil(log2 k)) steps (NCCL's tree; Sanders, Speck, Traeff 2009).
 *   direct     every rank to every other: all_to_all (n-1)/n S, one step; in canonical order also
 *              the other collectives, with the bytes of the ring in one step per phase; (n-g)/(n-1)
 *              of the bytes a rank sends leave the node.
 *   shift      every rank sends S to the next: one step of a ring over all GPUs in order.
 *   nvls       all_reduce in the switches of NVLink: a GPU sends and receives S for the sums and
 *              S / g for the results, in one step; between nodes the trees above.  (NVLink SHARP;
 *              NCCL's algorithms NVLS and NVLSTree.)
 *   pat        all_gather and reduce_scatter of groups with one rank per node in log2 k steps, at
 *              3/4 of the rate of the ring.  (NCCL 2.23.)
 *
 * Over several nodes NCCL runs one ring per GPU of a node, each of which enters and leaves the node
 * at another GPU. Summed over these rings, every GPU sends (g-1)/g of its bytes to the next GPU of
 * its node and 1/g through its own NIC to the GPU at the same place of the next node: two flows per
 * rank. A group with unequal nodes runs one plain ring.
 *
 *   seconds = base + sum over axes of (steps * latency of a step) + t + 2 sqrt (c t)
 *   t       = max over links of (bytes crossing it / capacity), and the rate of the kernel
 *
 * Each protocol has a base and steps of its own.  LL sends 8 bytes for 4 bytes of data, LL128 128
 * for 120.  In Simple, a rank waits c for each chunk that it passes on.  Small chunks cost many
 * waits, large chunks fill the pipeline late; the best size leaves 2 sqrt (c t).
 *
 * NCCL chooses the algorithm and the protocol with the least time by its own estimate
 * (src/graph/tuning.cc of NVIDIA/nccl): the formula above without waits for chunks, and without the
 * rate of the kernel in LL128, which NCCL takes to be that of the links.  So NCCL uses LL128 for
 * some sizes that Simple would move faster.
 *
 * A small tensor uses few of NCCL's channels (src/enqueue.cc): in LL, every channel in use carries
 * collective_channel_bytes_ll of each rank of a ring, so a larger tensor takes at least as long as
 * one channel needs for these bytes.  Before NCCL 2.20, an NVLS channel took collective_nvls_chunk
 * bytes of each rank before the next channel got any.
 *
 * Flows of many nodes collide at switches: bytes between k nodes take 1 + congestion * log2 k times
 * as long.
 *
 * A scalar payload (one float, or an exact sum, exact.h) is part of the latency. */
#pragma once
#include "core/cluster/fabric.h"
#include "core/job/stack.h"
#include "core/program/mesh.h"
#include "core/program/op.h"

#define WEFT_COLL_SCALAR_BYTES 176

/* One flow of a member: its destination, and its way on the fabric (fabric.h). */
struct weft_flow {
  uint32_t from, to, way;
};

/* Load of a link: number of flows of each way that cross it, and its capacity. */
struct weft_load {
  uint32_t flows[WEFT_MAX_WAYS];
  double capacity;
};

/* Placement of a group on a fabric. Tiers: side 0 counts the members of a node, side 1 the nodes.
 * Grid: member i stands at (i / stride[a]) % side[a] along axis a; the members along a whole axis
 * that wraps form a ring. */
struct weft_coll_shape {
  struct weft_group group;
  enum weft_fabric_style style;
  uint32_t n, side[WEFT_MAX_AXES], stride[WEFT_MAX_AXES];
  gboolean uniform, ring[WEFT_MAX_AXES];
  double latency[WEFT_MAX_AXES], next_latency; /* seconds of one step in Simple */
  const struct weft_cluster *cluster; /* cluster of the fabric; must outlive the shape */
  uint32_t n_load, n_next;
  struct weft_load *load, *next; /* next: loads of a shift, whose flows all use way 0 */
};

struct weft_traffic {
  const char *algorithm;
  enum weft_protocol protocol;
  double bytes[WEFT_MAX_WAYS];   /* bytes of one flow in the whole collective, with flags */
  uint32_t steps[WEFT_MAX_AXES];
  double step[WEFT_MAX_AXES];    /* seconds of one step */
  double latency;                /* base latency and all steps */
  double seconds;                /* by the closed formula, without other traffic */
  double estimate;               /* seconds that the library assumes when it chooses */
};

/* The axis along which the flows of a way go (fabric.h). */
static inline uint32_t
weft_coll_axis (const struct weft_coll_shape *shape, uint32_t way)
{
  return shape->style == WEFT_FABRIC_GRID ? way / 2 : way;
}

/* Fills all of *shape: the placement of members, latencies and loads. Free it with
 * weft_coll_shape_release(). */
void weft_coll_shape_init (struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                           const struct weft_group *group);

/* Fills only the placement of members, which is enough for weft_coll_flows(); nothing to
 * release. */
void weft_coll_shape_outline (struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                              const struct weft_group *group);
void weft_coll_shape_release (struct weft_coll_shape *shape);

/* Which algorithms may be chosen. Canonical order requires the direct algorithm: each sum is
 * computed on the rank that has all its terms. */
enum weft_coll_choice {
  WEFT_COLL_QUICKEST,  /* the fastest one by the closed formula */
  WEFT_COLL_CANONICAL,
  WEFT_COLL_RING       /* deterministic_mode, which pins an algorithm (NCCL_ALGO) */
};

/* Traffic of the chosen algorithm for `bytes` of the full tensor. `stack` NULL: software without
 * latencies that has protocol Simple, rings and trees. */
struct weft_traffic weft_coll_plan (const struct weft_coll_shape *shape, enum weft_op_kind kind,
                                    double bytes, const union weft_stack *stack,
                                    enum weft_coll_choice choice);

/* The flow from member i to the next member (to the previous one if `back`). */
struct weft_flow weft_coll_shift (const struct weft_group *group, uint32_t member, gboolean back);

/* Flows that member i sends, at most one per way; returns their number. */
uint32_t weft_coll_flows (const struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                          uint32_t member, struct weft_flow flows[WEFT_MAX_WAYS]);

/* Bytes that cross a link in a collective. */
double weft_coll_link_bytes (const struct weft_load *load, const struct weft_traffic *traffic);

/* The number of steps of a collective. */
uint32_t weft_coll_steps (const struct weft_traffic *traffic);

/* The latency of one step. Steps of the last axis come first. */
double weft_coll_step_latency (const struct weft_traffic *traffic, uint32_t step);

/* The latency before the first step. */
double weft_coll_base_latency (const struct weft_traffic *traffic);

/* A collective is a list of moves. In round r, `from` sends piece `piece` of n to `to`, which adds
 * or stores it; in an all_to_all, the piece is the part that `from` has for `to`. Several reduce
 * moves of one round, destination and piece are one sum over their sources and the value at the
 * destination, in member order, as fold.h defines. */
struct weft_move {
  uint32_t round, from, to, piece;
  gboolean reduce;
};
/* Moves of a shift: every rank sends the whole tensor, as piece 0. */
GArray *weft_coll_shift_moves (uint32_t n, uint32_t distance);

/* All moves of a ring collective over n ranks in round order: struct weft_move. */
GArray *weft_coll_ring_moves (enum weft_op_kind kind, uint32_t n);

/* Moves of the direct algorithm in canonical order: each piece is summed at its owner in one round,
 * and sent to all in another. It moves as many bytes as a ring. A broadcast, which adds nothing,
 * uses the ring. */
GArray *weft_coll_direct_moves (enum weft_op_kind kind, uint32_t n);

/* Moves of a collective op among n members, sorted by round, then `to`, then `from`. If the last
 * member is the root, or the direction is back, members are counted from the end. A choice other
 * than canonical uses the ring. The caller frees the array. */
struct weft_op;
GArray *weft_coll_moves (const struct weft_op *op, uint32_t n, enum weft_coll_choice choice);
