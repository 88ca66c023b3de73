/* coll_style.h - how collectives go over one style of fabric (fabric.h): coll_tiers.c, coll_grid.c.
 *
 * A style says where the members of a group send, and which algorithms there are.  An algorithm
 * says how many bytes every flow of a way moves and how many steps each axis takes; coll.c turns
 * that into seconds. */
#pragma once
#include "core/program/coll.h"

struct weft_coll_algorithm {
  const char *name;

  /* Bytes of one flow of each way, for a tensor of `whole` bytes; FALSE where the algorithm does
   * not know the op, or not for such a group. */
  gboolean (*bytes) (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
                     double bytes[WEFT_MAX_WAYS]);
  void (*steps) (enum weft_op_kind kind, const struct weft_coll_shape *s,
                 uint32_t steps[WEFT_MAX_AXES]);
};

struct weft_coll_style {
  /* Fills in `side`, `stride`, `ring` and `uniform`; group and n are known. */
  void (*outline) (struct weft_coll_shape *shape, const struct weft_fabric *f);

  /* Flows that a member sends; how many. */
  uint32_t (*flows) (const struct weft_coll_shape *shape, const struct weft_fabric *f,
                     uint32_t member, struct weft_flow flows[WEFT_MAX_WAYS]);

  /* What may be chosen from, NULL-terminated. */
  const struct weft_coll_algorithm *const *(*algorithms) (enum weft_op_kind kind,
                                                          enum weft_coll_choice choice);
};

extern const struct weft_coll_style weft_coll_tiers;

/* A ring over n ranks sends this share of the tensor from each rank to the next; -1 for an op that
 * has no ring. */
double weft_coll_ring_share (enum weft_op_kind kind, double n);

/* All-reduce is a reduce-scatter and an all-gather. */
uint32_t weft_coll_phases (enum weft_op_kind kind);

/* Whether canonical order wants the sums of this op taken by their owners. */
gboolean weft_coll_sums_at_owner (enum weft_op_kind kind, enum weft_coll_choice choice);
