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
 *              s = n-1.  Over k > 1 nodes, s / g of the steps, rounded up, are between nodes.
 *              (Patarasuk and Yuan 2009; NCCL's bus bandwidth definition in nccl-tests
 *              PERFORMANCE.md.)
 *   tree       all_reduce over double binary trees: 2 S per node between nodes, 2 ((g-1) +
 *              ceil(log2 k)) steps (NCCL's tree; Sanders, Speck, Traeff 2009).
 *   direct     every rank sends to every other rank.  all_to_all: (n-1)/n S in one step.  In
 *              canonical order the other collectives also use direct, with the bytes of the ring
 *              and one step per phase.  (n-g)/(n-1) of the bytes that a rank sends leave the node.
 *   shift      every rank sends S to the next rank: one step of a ring over all GPUs in order.
 *   nvls       all_reduce in the switches of NVLink: a GPU sends and receives S for the sums and
 *              S / h for the results of h <= 32 heads, in one step, in loops of chunks; between
 *              nodes the double binary trees run.  (NVLink SHARP; NCCL's algorithms NVLS and
 *              NVLSTree.)
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
 * Each protocol has its own base latency and step latency.  LL sends 8 bytes for 4 bytes of data,
 * LL128 sends 128 bytes for 120.  In Simple, a rank waits c seconds for each chunk that it passes
 * on.  With small chunks there are many waits; with large chunks the next rank starts late.  With
 * the best chunk size both cost 2 sqrt (c t) together (rings).
 *
 * NCCL chooses the pair of algorithm and protocol whose time is the least by NCCL's own estimate
 * (src/graph/tuning.cc of NVIDIA/nccl).  The estimate is the formula above without waits for chunks
 * and without the rate of the kernel in LL128, which NCCL takes to be the rate of the links.  So
 * NCCL uses LL128 for some sizes that Simple would move faster.
 *
 * The latency of a ring in Simple over several nodes is 1.4 times as long (1.9 times before the
 * A100) when all channels are in use (NCCL's "plateau effect of ring").
 *
 * The pipeline of a tree reaches only a part of the rate of its links for tensors of 1 KiB to 256
 * MiB, down to a half, by a table of NCCL's authors (treeCorrectionFactor in src/graph/tuning.cc).
 * t is longer by this, waits for chunks are part of it, and the estimate counts 0.92 of the rest.
 *
 * A small tensor uses few of NCCL's channels (src/enqueue.cc).  In LL, every channel in use carries
 * collective_channel_bytes_ll of each rank of a ring, so a larger tensor takes at least as long as
 * one channel needs for these bytes.
 *
 * NVLS works in loops, in which every channel handles a chunk of every head: l loops of t / l
 * seconds.  A loop passes three stages, so the first and the last loop add 2 t / l, and each loop
 * waits c seconds.  There are few loops of large chunks: 16 channels, 8 heads and chunks of 64 KiB
 * make loops of 8 MiB, and the 32 channels and 32 heads of a large NVLink domain loops of 64 MiB
 * (calcCollChunking() of src/enqueue.cc).  Before NCCL 2.20, a channel took collective_nvls_chunk
 * bytes of each rank before the next channel got any.
 *
 * Flows of many nodes collide at switches: bytes between k nodes take 1 + congestion * log2 k times
 * as long.
 *
 * A scalar payload (one float, or an exact sum, exact.h) costs only latency, no transfer time. */
#pragma once
#include "core/cluster/fabric.h"
#include "core/collective/algorithm.h"
#include "core/job/stack.h"
#include "core/program/mesh.h"
#include "core/program/op.h"

#define WEFT_COLL_SCALAR_BYTES 176

/* One flow that a member of a group sends: its destination, and its way (class of flows on the
 * fabric, fabric.h). */
struct weft_flow {
  uint32_t from, to, way;
};

/* Load of a link: number of flows of each way (class of flows, fabric.h) that cross the link, and
 * the capacity of the link in bytes per second. */
struct weft_load {
  uint32_t flows[WEFT_MAX_WAYS];
  double capacity;
};

/* Placement of a group on a fabric. In a fabric of nodes and a network (tiers), side[0] is the
 * number of members per node and side[1] the number of nodes. In a grid of chips, member i has
 * coordinate (i / stride[a]) % side[a] on axis a. ring[a] says whether the members fill a whole
 * axis that wraps around, and so form a ring. */
struct weft_coll_shape {
  struct weft_group group;
  enum weft_fabric_style style;
  uint32_t n, side[WEFT_MAX_AXES], stride[WEFT_MAX_AXES];
  gboolean uniform, ring[WEFT_MAX_AXES];
  /* latency of one step in protocol Simple, in seconds: along each axis, and (next_latency) of a
   * shift to the next rank */
  double latency[WEFT_MAX_AXES], next_latency;
  /* cluster of the fabric; the cluster must outlive the shape */
  const struct weft_cluster *cluster;
  uint32_t n_load, n_next;
  /* next: loads of links in a shift, in which each rank sends to the next rank; the flows of a
   * shift are counted as way 0 */
  struct weft_load *load, *next;
};

struct weft_traffic {
  const char *algorithm;
  enum weft_protocol protocol;
  /* bytes of one flow of each way in the whole collective, with the flags of the protocol */
  double bytes[WEFT_MAX_WAYS];
  uint32_t steps[WEFT_MAX_AXES];
  /* seconds of one step of the collective along each axis of the fabric */
  double step[WEFT_MAX_AXES];
  double latency; /* base latency plus the latency of all steps, in seconds */
  /* duration in seconds by the closed formula, without other traffic on the links */
  double seconds;
  /* duration in seconds that the collective library estimates when the library chooses */
  double estimate;
  /* an algorithm that is data; NULL: one of the library. For data: bytes of a chunk on a link of
   * each way; `bytes` is then the most that a rank sends, and `steps` counts rounds */
  const weft_algo *data;
  double chunk[WEFT_MAX_WAYS];
};

/* Returns the axis along which the flows of a way (class of flows, fabric.h) move. */
static inline uint32_t
weft_coll_axis (const struct weft_coll_shape *shape, uint32_t way)
{
  return shape->style == WEFT_FABRIC_GRID ? way / 2 : way;
}

/* Fills all of *shape: the placement of members, latencies, and the loads of links. The caller
 * frees the content of *shape with weft_coll_shape_release(). */
void weft_coll_shape_init (struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                           const struct weft_group *group);

/* Sets only the placement of members, which is enough for weft_coll_flows(). The result needs no
 * weft_coll_shape_release(). */
void weft_coll_shape_outline (struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                              const struct weft_group *group);
void weft_coll_shape_release (struct weft_coll_shape *shape);

/* Which algorithms weft_coll_plan() may choose. Canonical order (one order of summation for all
 * strategies) requires the direct algorithm: one rank receives all terms of a sum and adds them. */
enum weft_coll_choice {
  WEFT_COLL_QUICKEST, /* chooses the fastest algorithm and protocol by the library's estimate */
  WEFT_COLL_CANONICAL,
  /* chooses a ring: setting deterministic_mode, which pins NCCL to one algorithm (NCCL_ALGO) */
  WEFT_COLL_RING
};

/* Traffic of the fastest algorithm that `choice` allows, for `bytes` of the full tensor. If `stack`
 * is NULL, the software has no latencies, and only protocol Simple, rings and trees. */
struct weft_traffic weft_coll_plan (const struct weft_coll_shape *shape, enum weft_op_kind kind,
                                    double bytes, const union weft_stack *stack,
                                    enum weft_coll_choice choice);

/* Traffic of an algorithm that is data, which must be for the members of the group, on a fabric of
 * tiers. Its rounds run one after the other: a round lasts as long as its busiest link needs. The
 * latencies of messages add up along the longest chain of messages that wait for each other. */
struct weft_traffic weft_coll_plan_data (const struct weft_coll_shape *shape,
                                         const weft_algo *algorithm, double bytes,
                                         const union weft_stack *stack);

/* Latency of a round, and the seconds that its bytes take on idle links. */
struct weft_coll_round {
  double latency, busy;
};

/* The rounds of traffic whose algorithm is data; together they take traffic->seconds. Returns
 * traffic->data->n_rounds rounds, which the caller frees. */
struct weft_coll_round *weft_coll_rounds (const struct weft_coll_shape *shape,
                                          const struct weft_traffic *traffic);

/* The way (class of flows) of a message between two ranks on a fabric of tiers. */
uint32_t weft_coll_way (const struct weft_fabric *fabric, uint32_t from, uint32_t to);

/* The flow from a member to the next member of the group, or with `back` to the previous member. */
struct weft_flow weft_coll_shift (const struct weft_group *group, uint32_t member, gboolean back);

/* Lists the flows that member i sends, at most one per way (class of flows, fabric.h). Returns the
 * number of flows. */
uint32_t weft_coll_flows (const struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                          uint32_t member, struct weft_flow flows[WEFT_MAX_WAYS]);

/* Share of the tensor that each of n ranks sends to the next rank in a ring; -1 for an op without a
 * ring algorithm. */
double weft_coll_ring_share (enum weft_op_kind kind, double n);

/* The same as an expression: "(n - 1) / n"; static. NULL: rings do not do this op. */
const char *weft_coll_ring_text (enum weft_op_kind kind);

/* Bytes that cross a link during a collective. */
double weft_coll_link_bytes (const struct weft_load *load, const struct weft_traffic *traffic);

/* Number of steps of a collective along all axes. */
uint32_t weft_coll_steps (const struct weft_traffic *traffic);

/* Latency in seconds of step number `step`. Steps along the last axis have the lowest numbers. */
double weft_coll_step_latency (const struct weft_traffic *traffic, uint32_t step);

/* Latency in seconds before the first step of a collective. */
double weft_coll_base_latency (const struct weft_traffic *traffic);

/* A collective is a list of moves (struct weft_move, algorithm.h). In round r, rank `from` sends
 * piece `piece` of n to rank `to`, which adds or stores the piece. In an all-to-all, the piece is
 * the part of `from`'s tensor that is addressed to `to`. All reduce moves of one round with one
 * destination and one piece form a single sum over their sources and the value at the destination.
 * The sum runs in member order, as fold.h defines. */

/* Returns the moves of a shift: in one round every rank sends its whole tensor, as piece 0, to the
 * rank `distance` places away. The caller frees the array. */
GArray *weft_coll_shift_moves (uint32_t n, uint32_t distance);

/* Returns all moves (struct weft_move) of a ring collective over n ranks, in round order. The
 * caller frees the array. */
GArray *weft_coll_ring_moves (enum weft_op_kind kind, uint32_t n);

/* Returns the moves of the direct algorithm, for canonical order (the order of summation that gives
 * equal bits for all strategies). A reduce-scatter is one round, in which the owner of each piece
 * receives and adds all values. An all-gather is one round, in which every owner sends its piece to
 * all ranks. An all-reduce is both rounds. Each rank sends as many bytes as in a ring. A broadcast
 * adds nothing and uses the chain of weft_coll_ring_moves(). The caller frees the array. */
GArray *weft_coll_direct_moves (enum weft_op_kind kind, uint32_t n);

/* Returns the moves of a collective op among n members, sorted by round, then `to`, then `from`.
 * Members are counted from the end if the last member is the root of a broadcast, or if a shift
 * goes backwards. A choice other than WEFT_COLL_CANONICAL uses the ring. weft_coll_data_moves()
 * returns those of an algorithm that is data, in the same order. The caller frees the array. */
struct weft_op;
GArray *weft_coll_data_moves (const struct weft_op *op, const weft_algo *algorithm);
GArray *weft_coll_moves (const struct weft_op *op, uint32_t n, enum weft_coll_choice choice);
