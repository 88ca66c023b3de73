/* actors.h - folding: the simulator runs one representative (actor) for each class of ranks that
 * behave alike.
 *
 * Ranks and links are coloured until nothing changes (colour refinement). Two ranks keep the same
 * colour if they run the same program, their neighbours have the same colours, the members of their
 * groups have the same colours and are placed on the cluster in the same way, and the routes of
 * both ranks cross links of the same colours in every traffic pattern. Two links keep the same
 * colour if the same number of flows of each pattern and rank colour crosses them. The resulting
 * partition is equitable, and max-min sharing gives all flows of a class the same rate. It is
 * therefore exact to simulate one flow per class, which enters each link as often as the flows of
 * the class cross that link. (McKay 1981, equitable partitions; SimGrid weights a link in the same
 * way when a route contains the link several times.)
 *
 * A symmetric job on a symmetric cluster has one actor per role. Asymmetry (a stage that ends
 * inside a node, an oversubscribed leaf that serves only part of a stage ...) needs more actors, in
 * the limit one per rank.
 *
 * DISTURBANCES. A slow GPU or link breaks the symmetry, and in theory its effect passes from link
 * to link through the whole cluster, because flows share links. In practice the effect ends after a
 * few links. weft_actors_new_uneven() therefore starts from the classes of the undisturbed cluster
 * and splits them in a limited number of rounds. The caller simulates these classes and then checks
 * them with `like`: if actors that only the last round has separated behave equally, the classes of
 * one round earlier behave as the simulation shows, each rank has neighbours and links of these
 * classes, and the result is that of all ranks simulated one by one. Otherwise the caller takes one
 * more round. */
#pragma once
#include "core/cluster/fabric.h"
#include "core/program/mesh.h"

/* Traffic patterns: the neighbour a rank sends to. The patterns of this list are the same on every
 * fabric. In addition, each group of WEFT_PATTERN_GROUPS has one pattern per way of the fabric
 * (fabric.h). */
#define WEFT_PATTERN_LIST(X)                                                                       \
  X (WEFT_PATTERN_CP_RING_NEXT, "cp ring next", "ring attention: keys to the next rank")           \
  X (WEFT_PATTERN_CP_RING_BACK, "cp ring back", "ring attention: keys and their gradients back")   \
  X (WEFT_PATTERN_TP_RING_NEXT, "tp ring next", "pieces of a product to the next rank")            \
  X (WEFT_PATTERN_NEXT, "next", "next stage")                                                      \
  X (WEFT_PATTERN_PREVIOUS, "previous", "previous stage")                                          \
  X (WEFT_PATTERN_H2D, "h2d", "from the host")                                                     \
  X (WEFT_PATTERN_D2H, "d2h", "to the host")                                                       \
  X (WEFT_PATTERN_HOST, "host", "host memory, for kernels on the host")
enum weft_pattern { WEFT_PATTERN_LIST (WEFT_WORD_ID) WEFT_N_PATTERN };

/* Groups whose collectives move bytes over links. The collectives of all other groups carry
 * scalars, and their cost is part of the latency. */
#define WEFT_PATTERN_GROUPS                                                                        \
  WEFT_GROUP_DP, WEFT_GROUP_TP, WEFT_GROUP_CP, WEFT_GROUP_CP_HEADS, WEFT_GROUP_CP_RING,            \
      WEFT_GROUP_EP, WEFT_GROUP_TP_EP, WEFT_GROUP_ETP, WEFT_GROUP_ECP, WEFT_GROUP_EDP,             \
      WEFT_GROUP_EDP_INTRA, WEFT_GROUP_EMBD, WEFT_GROUP_INTRA, WEFT_GROUP_INTER, WEFT_GROUP_OUTER, \
      WEFT_GROUP_MIRROR, WEFT_GROUP_STAGE

/* A communicator of the simulation, and the actors that are its members. */
struct weft_comm {
  enum weft_group_kind kind;
  /* the rank of the communicator whose group in the mesh defines sizes and neighbours */
  uint32_t rank;
  uint32_t n_actor, *actor;
};

/* The links of the flow of one actor in one pattern. Each link is repeated as often as the flows of
 * the actor's class cross it. `exists` is FALSE if the actor has no flow in this pattern. */
struct weft_path {
  gboolean exists;
  uint32_t n, *link;
};

#define WEFT_NO_ACTOR 0xffffffffu

typedef struct weft_actors {
  uint32_t n;
  /* by actor: its representative rank, the stage of this rank, and the number of ranks in the
   * class */
  uint32_t *rank, *role, *stands_for;
  uint32_t *actor_of;                 /* rank -> actor */
  uint32_t n_comm;
  struct weft_comm *comm;
  /* [actor][WEFT_N_GROUP]: index of the communicator in `comm`; WEFT_NO_ACTOR: the actor is not a
   * member */
  uint32_t *comm_of;
  /* by actor: the actor of the next stage and that of the previous stage; WEFT_NO_ACTOR: there is
   * no such stage */
  uint32_t *peer;
  gboolean folded;
  uint32_t n_pattern;                 /* number of patterns: WEFT_N_PATTERN plus the patterns of
                                       * the groups */
  /* [actor * n_pattern + pattern]; NULL if there is no fabric */
  struct weft_path *path;
  uint32_t n_link;
  /* bytes/s of each link, for the links that the paths of actors cross */
  double *capacity;
  /* by actor: number of its class before the last round of splitting, so actors that only this
   * round has separated have equal numbers. NULL: the classes are exact without a check */
  uint32_t *like;
} weft_actors;

/* A disturbance of the symmetry. */
struct weft_uneven {
  const double *slow;  /* by rank: factor of its kernel times; NULL: none is slow */
  const double *share; /* by link: share of its capacity; NULL: all links have their capacity */
  uint32_t rounds;     /* rounds of splitting, at least 1; 0 only without a disturbance */
};

/* Finds the actors (representative ranks) of a cluster. `fold` FALSE: every rank is an actor of its
 * own. */
weft_actors *weft_actors_new (const struct weft_fabric *fabric, const struct weft_mesh *mesh,
                              gboolean fold);

/* As weft_actors_new(), for a disturbed cluster (DISTURBANCES above). Without `fold` the result is
 * exact and `rounds` is not used. */
weft_actors *weft_actors_new_uneven (const struct weft_fabric *fabric, const struct weft_mesh *mesh,
                                     gboolean fold, const struct weft_uneven *uneven);

/* Makes one actor (representative rank) per role, without links. Proofs about the order of ops use
 * these actors, because the order of ops does not depend on the cluster. */
weft_actors *weft_actors_new_roles (const struct weft_mesh *mesh);
void weft_actors_free (weft_actors *actors);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_actors, weft_actors_free)

/* The pattern of the flows that collectives of a group of this kind send on one way of the fabric.
 * A way is a class of flows (fabric.h). */
uint32_t weft_group_pattern (enum weft_group_kind kind, uint32_t way);

/* The pattern of a ring shift to the next rank, or, if `back`, to the previous rank. Tensor
 * parallel groups have no shift back. */
uint32_t weft_ring_pattern (enum weft_group_kind kind, gboolean back);

static inline const struct weft_path *
weft_actors_path (const weft_actors *a, uint32_t actor, uint32_t pattern)
{
  return &a->path[(size_t) actor * a->n_pattern + pattern];
}
