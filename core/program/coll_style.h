/* coll_style.h - interface of collectives on one style of fabric (fabric.h): coll_tiers.c,
 * coll_grid.c.
 *
 * A style defines to which members each member of a group sends, and the algorithms. An algorithm
 * defines how many bytes a flow of each way (a class of flows, fabric.h) moves and how many steps
 * each axis takes; coll.c computes the seconds of a collective from these numbers. */
#pragma once
#include "core/program/coll.h"

struct weft_coll_algorithm {
  const char *name;

  /* Bytes of one flow of each way, for a tensor of `whole` bytes; FALSE if the algorithm does not
   * support the op or the group. */
  gboolean (*bytes) (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
                     double bytes[WEFT_MAX_WAYS]);
  void (*steps) (enum weft_op_kind kind, const struct weft_coll_shape *s,
                 uint32_t steps[WEFT_MAX_AXES]);
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

/* Share of the tensor that each of n ranks sends to the next in a ring; -1 for an op without a ring
 * algorithm. */
double weft_coll_ring_share (enum weft_op_kind kind, double n);

/* The number of phases: 2 for an all-reduce (reduce-scatter, all-gather), else 1. */
uint32_t weft_coll_phases (enum weft_op_kind kind);

/* Whether canonical order requires that the owner of each piece computes its sum. */
gboolean weft_coll_sums_at_owner (enum weft_op_kind kind, enum weft_coll_choice choice);
