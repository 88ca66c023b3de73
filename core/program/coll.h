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
#include "core/program/fabric.h"
#include "core/program/mesh.h"
#include "core/program/op.h"

#define WEFT_COLL_SCALAR_BYTES 176

struct weft_flow {
  uint32_t from, to; /* GPUs */
  gboolean remote;
};

/* What one link carries: local and remote flows that cross it, and its capacity. */
struct weft_load {
  uint32_t local, remote;
  double capacity;
};

struct weft_coll_shape {
  struct weft_group group;
  uint32_t n, n_local, n_nodes;
  gboolean uniform;
  double local_latency, remote_latency, next_latency; /* of one step */
  uint32_t n_load, n_next;
  struct weft_load *load, *next; /* next: of a shift, whose flows all count as local */
};

struct weft_traffic {
  const char *algorithm;
  double bytes_local, bytes_remote; /* of one flow, whole collective */
  uint32_t steps_local, steps_remote;
  double latency;                   /* base + all steps */
  double seconds;                   /* the closed formula, alone on the cluster */
};

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

/* Flows that member i sends; returns how many (0, 1 or 2). */
uint32_t weft_coll_flows (const struct weft_coll_shape *shape, const struct weft_fabric *fabric,
                          uint32_t member, struct weft_flow flows[2]);

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
