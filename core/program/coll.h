/* coll.h - collectives as data: who sends how much to whom, in how many steps; closed formulas.
 *
 * Symbols: n ranks, k nodes, g = n / k ranks of each node, S bytes of the full tensor.
 *
 *   ring       every rank sends f S bytes in s steps:  all_reduce f = 2(n-1)/n, s = 2(n-1);
 *              reduce_scatter, all_gather f = (n-1)/n, s = n-1; broadcast f = 1 (pipelined),
 *              s = n-1.  (Patarasuk and Yuan 2009; NCCL's bus bandwidth definition in nccl-tests
 *              PERFORMANCE.md.)
 *   tree       all_reduce over double binary trees: 2 S per node between nodes, 2 ((g-1) +
 *              ceil(log2 k)) steps (NCCL's tree; Sanders, Speck, Traeff 2009).
 *   direct     everyone to everyone: all_to_all (n-1)/n S, one step; in canonical order also the
 *              others, with the bytes of the ring in one step a phase; (n-g)/(n-1) of what a rank
 *              sends leave the node.
 *
 *   shift      every rank sends S to the next: one step of a ring over GPU after GPU.
 *
 * Over several nodes NCCL runs one ring for each GPU of a node, each entering and leaving the node
 * at another GPU.  Summed over these rings every GPU sends (g-1)/g of its bytes to the next GPU of
 * its node and 1/g over its own NIC to the GPU at the same place of the next node: two flows a
 * rank.  A group with unequal nodes runs one plain ring.
 *
 *   seconds = base + steps_local * intra_latency + steps_remote * fabric_latency
 *             + max over links of (bytes crossing it / capacity)
 *
 * A payload of scalars rides in the latency: one float, or an exact sum (exact.h). */
#pragma once
#include "core/cluster/fabric.h"
#include "core/program/mesh.h"
#include "core/program/op.h"

#define WEFT_COLL_SCALAR_BYTES 176

/* One flow of a member: to another GPU, on a way of the fabric (fabric.h). */
struct weft_flow {
  uint32_t from, to, way;
};

/* What one link carries: how many flows of each way cross it, and its capacity. */
struct weft_load {
  uint32_t flows[WEFT_MAX_WAYS];
  double capacity;
};

/* How a group lies on a fabric.  Of tiers: side 0 counts the members of a node, side 1 the nodes.
 * Of a grid: member i stands at (i / stride[a]) % side[a] along axis a, and the members along a
 * whole axis that wraps are a ring. */
struct weft_coll_shape {
  struct weft_group group;
  enum weft_fabric_style style;
  uint32_t n, side[WEFT_MAX_AXES], stride[WEFT_MAX_AXES];
  gboolean uniform, ring[WEFT_MAX_AXES];
  double latency[WEFT_MAX_AXES], next_latency; /* of one step */
  uint32_t n_load, n_next;
  struct weft_load *load, *next;               /* next: of a shift, whose flows all go way 0 */
};

struct weft_traffic {
  const char *algorithm;
  double bytes[WEFT_MAX_WAYS];   /* of one flow, whole collective */
  uint32_t steps[WEFT_MAX_AXES];
  double latency;                /* base + all steps */
  double seconds;                /* the closed formula, alone on the cluster */
};

/* The axis of a way. */
static inline uint32_t
weft_coll_axis (const struct weft_coll_shape *shape, uint32_t way)
{
  return shape->style == WEFT_FABRIC_GRID ? way / 2 : way;
}

void weft_coll_shape_init (struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                           const struct weft_group *group);

/* Only where the members lie: enough for weft_coll_flows(); nothing to release. */
void weft_coll_shape_outline (struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                              const struct weft_group *group);
void weft_coll_shape_release (struct weft_coll_shape *shape);

/* What may be chosen from.  In canonical order sums are taken where all terms are at hand: direct. */
enum weft_coll_choice {
  WEFT_COLL_QUICKEST,  /* by the closed formula */
  WEFT_COLL_CANONICAL,
  WEFT_COLL_RING       /* deterministic_mode, which wants one that is pinned (NCCL_ALGO) */
};

/* The algorithm for `bytes` (of the full tensor). */
struct weft_traffic weft_coll_plan (const struct weft_coll_shape *shape, enum weft_op_kind kind,
                                    double bytes, double base_latency,
                                    enum weft_coll_choice choice);

/* What member i sends to the next one, or with `back` to the one before. */
struct weft_flow weft_coll_shift (const struct weft_group *group, uint32_t member, gboolean back);

/* Flows that member i sends, at most one of each way; returns how many. */
uint32_t weft_coll_flows (const struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                          uint32_t member, struct weft_flow flows[WEFT_MAX_WAYS]);

/* Bytes that cross a link in a collective. */
double weft_coll_link_bytes (const struct weft_load *load, const struct weft_traffic *traffic);

/* All steps of a collective; the latency of one of them, those of the last axis first; and what the
 * collective waits before its first step. */
uint32_t weft_coll_steps (const struct weft_traffic *traffic);
double weft_coll_step_latency (const struct weft_coll_shape *shape,
                               const struct weft_traffic *traffic, uint32_t step);
double weft_coll_base_latency (const struct weft_coll_shape *shape,
                               const struct weft_traffic *traffic);

/* Collectives as moves: in round r, `from` sends piece `piece` of n to `to`, which adds it or stores
 * it; in an all_to_all it sends what it has for `to`, which stores it as that piece.  Several reduce
 * moves of one round, destination and piece are one sum: of their sources and what the destination
 * holds, in member order, as fold.h says. */
struct weft_move {
  uint32_t round, from, to, piece;
  gboolean reduce;
};
/* A shift: the whole tensor, as piece 0. */
GArray *weft_coll_shift_moves (uint32_t n, uint32_t distance);

/* All moves of a ring collective over n ranks, in round order; element type struct weft_move. */
GArray *weft_coll_ring_moves (enum weft_op_kind kind, uint32_t n);

/* Everyone to everyone, in canonical order: each piece is summed at its owner in one round, and
 * handed out in another.  Bytes are those of the ring.  A broadcast, which adds nothing, is the ring's. */
GArray *weft_coll_direct_moves (enum weft_op_kind kind, uint32_t n);

/* The moves of a collective op among n members, by round, then by `to`, then by `from`; where the
 * last member is the root, or the way goes back, members are counted from the end.  `choice`
 * quickest is the ring.  Caller frees. */
struct weft_op;
GArray *weft_coll_moves (const struct weft_op *op, uint32_t n, enum weft_coll_choice choice);
