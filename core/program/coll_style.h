/* coll_style.h - interface of collectives on one style of fabric (fabric.h): coll_tiers.c,
 * coll_grid.c.
 *
 * A style defines to which members each member of a group sends, and lists the algorithms. An
 * algorithm defines the bytes that a flow of each way (class of flows, fabric.h) moves, and the
 * number of steps along each axis. From these numbers coll.c computes the seconds of a
 * collective. */
#pragma once
#include "core/program/coll.h"

/* Latencies and transfer limit of one algorithm with one protocol. */
struct weft_coll_terms {
  double base; /* base: latency in seconds before the first step of a collective */
  /* step: latency in seconds of each step of a collective, by axis of the fabric */
  double step[WEFT_MAX_AXES];
  /* least: lower limit of the transfer time in seconds, however fast the links are */
  double least;
  /* hidden: another lower limit, which the estimate of the library does not include (coll.h) */
  double hidden;
  /* fill: seconds in addition to the transfer, while a pipeline of chunks fills and drains; the
   * estimate of the library does not include them */
  double fill;
  /* slow: the transfer takes this many times as long as on the links; counted: the library counts
   * it this many times in its estimate; late: the latency is this many times that of the steps,
   * which the estimate includes for all-reduces only. All are 1 unless an algorithm sets them. */
  double slow, counted, late;
};

struct weft_coll_algorithm {
  const char *name;

  /* Sets the bytes that one flow of each way (class of flows, fabric.h) moves for a tensor of
   * `whole` bytes. Returns FALSE if the algorithm does not support the op or the group. */
  gboolean (*bytes) (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
                     double bytes[WEFT_MAX_WAYS]);
  void (*steps) (enum weft_op_kind kind, const struct weft_coll_shape *s,
                 uint32_t steps[WEFT_MAX_AXES]);

  /* Changes *terms for an algorithm whose flows move `bytes` for a tensor of `whole` bytes. Before
   * the call, *terms has the latencies and the transfer limit of the protocol. NULL: the algorithm
   * changes nothing. `stack` may be NULL. */
  void (*adjust) (const struct weft_coll_shape *s, const union weft_stack *stack,
                  enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
                  struct weft_coll_terms *terms);
  /* bit of enum weft_algorithm, if the library must list the algorithm before the algorithm can be
   * chosen; 0: always available */
  unsigned choices;
  gboolean relays; /* TRUE: ranks pass on chunks that they receive, and wait for each chunk */
  gboolean simple; /* TRUE: the algorithm exists in protocol Simple only */
};

struct weft_coll_style {
  /* Sets `side`, `stride`, `ring` and `uniform` of *shape. The caller has set group and n. */
  void (*outline) (struct weft_coll_shape *shape, const struct weft_fabric *f);

  /* Lists the flows that a member sends. Returns the number of flows. */
  uint32_t (*flows) (const struct weft_coll_shape *shape, const struct weft_fabric *f,
                     uint32_t member, struct weft_flow flows[WEFT_MAX_WAYS]);

  /* Returns the algorithms among which `choice` can choose, NULL-terminated. */
  const struct weft_coll_algorithm *const *(*algorithms) (enum weft_op_kind kind,
                                                          enum weft_coll_choice choice);
};

extern const struct weft_coll_style weft_coll_tiers, weft_coll_grid;

/* Algorithm nvls of tiers (coll_nvls.c). */
extern const struct weft_coll_algorithm weft_coll_nvls;

/* Multiples of the tensor that a node sends to other nodes in two binary trees, and the links
 * between nodes that a piece passes on its way up and down. */
double weft_coll_tree_share (const struct weft_coll_shape *s);
uint32_t weft_coll_tree_hops (const struct weft_coll_shape *s);

/* In a group over several nodes the host posts every message to the NIC: a step inside a node takes
 * at least as long as the post. */
void weft_coll_wait_for_posts (const struct weft_coll_shape *s, enum weft_protocol protocol,
                               struct weft_coll_terms *terms);

/* The protocols that the library has: bits of enum weft_protocol. */
unsigned weft_coll_protocols (const union weft_stack *stack);

/* Whether a collective of this group can use a protocol. The topology must state the latencies of
 * the protocol. */
gboolean weft_coll_has_protocol (const struct weft_coll_shape *s, enum weft_protocol protocol);

/* Sets *terms to the latencies and the transfer limit of a protocol. `whole`: bytes of the tensor;
 * `bytes`: data that one flow of each way (class of flows, fabric.h) moves. */
void weft_coll_terms_of (const struct weft_coll_shape *s, const union weft_stack *stack,
                         enum weft_protocol protocol, double whole,
                         const double bytes[WEFT_MAX_WAYS], struct weft_coll_terms *terms);

/* Bytes that one byte of a flow's data occupies on a link. This factor includes the flags of the
 * protocol. For flows between nodes, it also includes the slowdown by collisions at switches. */
double weft_coll_wire (const struct weft_coll_shape *s, enum weft_protocol protocol, uint32_t way);

/* Seconds that a rank waits for each chunk that it receives and passes on to the next rank. */
double weft_coll_chunk_latency (const struct weft_coll_shape *s, const union weft_stack *stack,
                                enum weft_protocol protocol);

/* Number of phases of a collective: 2 for an all-reduce (reduce-scatter, then all-gather), 1 for
 * other collectives. */
uint32_t weft_coll_phases (enum weft_op_kind kind);

/* Whether every piece must be summed by its owner in one round (canonical order). A broadcast has
 * no sum. */
gboolean weft_coll_sums_at_owner (enum weft_op_kind kind, enum weft_coll_choice choice);
