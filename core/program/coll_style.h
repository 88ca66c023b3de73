/* coll_style.h - interface of collectives on one style of fabric (fabric.h): coll_tiers.c,
 * coll_grid.c.
 *
 * A style defines to which members each member of a group sends, and the algorithms. An algorithm
 * defines how many bytes a flow of each way (a class of flows, fabric.h) moves and how many steps
 * each axis takes; coll.c computes the seconds of a collective from these numbers. */
#pragma once
#include "core/program/coll.h"

/* Latencies and rate of one algorithm with one protocol. */
struct weft_coll_terms {
  double base;                /* seconds before the first step */
  double step[WEFT_MAX_AXES]; /* seconds of a step along each axis */
  double least;               /* seconds that the bytes take at least, whatever the links */
  double hidden;              /* the same, by limits that the library does not include when it
                               * chooses */
};

struct weft_coll_algorithm {
  const char *name;

  /* Bytes of one flow of each way, for a tensor of `whole` bytes; FALSE if the algorithm does not
   * support the op or the group. */
  gboolean (*bytes) (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
                     double bytes[WEFT_MAX_WAYS]);
  void (*steps) (enum weft_op_kind kind, const struct weft_coll_shape *s,
                 uint32_t steps[WEFT_MAX_AXES]);

  /* Changes the terms of the protocol, for `bytes` that the first function has set; may be NULL.
   * `stack` may be NULL. */
  void (*adjust) (const struct weft_coll_shape *s, const union weft_stack *stack,
                  enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
                  struct weft_coll_terms *terms);
  unsigned choices; /* bit of enum weft_algorithm if the library chooses it; 0: nothing to choose */
  gboolean relays;  /* ranks pass on chunks that they receive */
  gboolean simple;  /* exists in protocol Simple only */
};

struct weft_coll_style {
  /* Fills `side`, `stride`, `ring` and `uniform`; group and n are set. */
  void (*outline) (struct weft_coll_shape *shape, const struct weft_fabric *f);

  /* Flows that a member sends; returns their number. */
  uint32_t (*flows) (const struct weft_coll_shape *shape, const struct weft_fabric *f,
                     uint32_t member, struct weft_flow flows[WEFT_MAX_WAYS]);

  /* Algorithms to choose from, NULL-terminated. */
  const struct weft_coll_algorithm *const *(*algorithms) (enum weft_op_kind kind,
                                                          enum weft_coll_choice choice);
};

extern const struct weft_coll_style weft_coll_tiers, weft_coll_grid;

/* Whether groups of this placement can use a protocol: whether the topology gives its latencies. */
gboolean weft_coll_has_protocol (const struct weft_coll_shape *s, enum weft_protocol protocol);

/* The terms of a protocol for flows of `bytes` data, for a tensor of `whole` bytes. */
void weft_coll_terms_of (const struct weft_coll_shape *s, const union weft_stack *stack,
                         enum weft_protocol protocol, double whole,
                         const double bytes[WEFT_MAX_WAYS], struct weft_coll_terms *terms);

/* Bytes that a flow occupies on its links for each byte of data: with flags, and with collisions
 * between nodes. */
double weft_coll_wire (const struct weft_coll_shape *s, enum weft_protocol protocol, uint32_t way);

/* Seconds for which a rank waits for each chunk that it passes on. */
double weft_coll_chunk_latency (const struct weft_coll_shape *s, const union weft_stack *stack,
                                enum weft_protocol protocol);

/* Share of the tensor that each of n ranks sends to the next in a ring; -1 for an op without a ring
 * algorithm. */
double weft_coll_ring_share (enum weft_op_kind kind, double n);

/* The number of phases: 2 for an all-reduce (reduce-scatter, all-gather), else 1. */
uint32_t weft_coll_phases (enum weft_op_kind kind);

/* Whether canonical order requires that the owner of each piece computes its sum. */
gboolean weft_coll_sums_at_owner (enum weft_op_kind kind, enum weft_coll_choice choice);
