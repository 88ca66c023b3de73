/* actors.h - who is really simulated: one representative for each class of ranks that behave alike.
 *
 * Ranks and links are coloured until nothing changes (colour refinement): two ranks keep one colour
 * when they run the same program, their neighbours have the same colours, so have the members of
 * their groups, which lie on the cluster in the same way, and every pattern of traffic takes them
 * over links of the same colours; two links when the same number of flows of each pattern and rank
 * colour crosses them.  Such a partition is equitable, and max-min sharing gives all flows of a
 * class one rate: simulating one flow a class, entering each link as often as its class crosses
 * that link, is exact.  (McKay 1981, equitable partitions; the weights are the ones SimGrid adds
 * when a link occurs several times in a route.)
 *
 * A symmetric job on a symmetric cluster ends with one actor a role.  What breaks the symmetry (a
 * stage that ends inside a node, an oversubscribed leaf serving only part of a stage ...) leaves
 * more actors, in the limit every rank. */
#pragma once
#include "core/cluster/fabric.h"
#include "core/program/mesh.h"

/* The patterns of traffic: where a rank sends to.  Beside these, which are the same on every fabric,
 * each group below has one pattern for each way of the fabric. */
#define WEFT_PATTERN_LIST(X)                                                                       \
  X (WEFT_PATTERN_CP_RING_NEXT, "cp ring next", "ring attention: keys to the next rank")           \
  X (WEFT_PATTERN_CP_RING_BACK, "cp ring back", "ring attention: keys and their gradients back")   \
  X (WEFT_PATTERN_TP_RING_NEXT, "tp ring next", "pieces of a product to the next rank")            \
  X (WEFT_PATTERN_NEXT, "next", "next stage")                                                      \
  X (WEFT_PATTERN_PREVIOUS, "previous", "stage before")                                            \
  X (WEFT_PATTERN_H2D, "h2d", "from the host")                                                     \
  X (WEFT_PATTERN_D2H, "d2h", "to the host")                                                       \
  X (WEFT_PATTERN_HOST, "host", "the host's memory, for kernels that run there")
enum weft_pattern { WEFT_PATTERN_LIST (WEFT_WORD_ID) WEFT_N_PATTERN };

/* Groups whose collectives move bytes over links.  The collectives of all others carry scalars,
 * which ride in the latency. */
#define WEFT_PATTERN_GROUPS                                                                        \
  WEFT_GROUP_DP, WEFT_GROUP_TP, WEFT_GROUP_CP, WEFT_GROUP_CP_HEADS, WEFT_GROUP_CP_RING,            \
      WEFT_GROUP_EP, WEFT_GROUP_TP_EP, WEFT_GROUP_ETP, WEFT_GROUP_ECP, WEFT_GROUP_EDP,             \
      WEFT_GROUP_EDP_INTRA, WEFT_GROUP_EMBD, WEFT_GROUP_INTRA, WEFT_GROUP_INTER, WEFT_GROUP_OUTER, \
      WEFT_GROUP_MIRROR, WEFT_GROUP_STAGE

/* All actors of one communicator. */
struct weft_comm {
  enum weft_group_kind kind;
  uint32_t rank; /* one real member: its real group gives sizes and neighbours */
  uint32_t n_actor, *actor;
};

/* Links a flow of one actor and pattern enters, repeated as often as its class crosses them. */
struct weft_path {
  gboolean exists;
  uint32_t n, *link;
};

#define WEFT_NO_ACTOR 0xffffffffu

typedef struct weft_actors {
  uint32_t n;
  uint32_t *rank, *role, *stands_for; /* of each actor: representative, stage, ranks of its class */
  uint32_t *actor_of;                 /* rank -> actor */
  uint32_t n_comm;
  struct weft_comm *comm;
  uint32_t *comm_of;                  /* [actor][WEFT_N_GROUP] -> comm; WEFT_NO_ACTOR: no member */
  uint32_t *peer;                     /* [actor][2]: next stage, stage before, or WEFT_NO_ACTOR */
  gboolean folded;
  uint32_t n_pattern;                 /* WEFT_N_PATTERN and those of groups */
  struct weft_path *path;             /* [actor][n_pattern]; NULL without a fabric */
  uint32_t n_link;
  double *capacity;                   /* bytes/s of the links that paths name */
} weft_actors;

/* `fold` FALSE keeps every rank apart. */
weft_actors *weft_actors_new (const struct weft_fabric *fabric, const struct weft_mesh *mesh,
                              gboolean fold);

/* One actor a role and no links: for proofs about order, where the cluster does not matter. */
weft_actors *weft_actors_new_roles (const struct weft_mesh *mesh);
void weft_actors_free (weft_actors *actors);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_actors, weft_actors_free)

/* The pattern of a group's flows on one way of the fabric. */
uint32_t weft_group_pattern (enum weft_group_kind kind, uint32_t way);

/* The pattern of a shift, whichever nodes the neighbour is on; tensor parallel ones go forward
 * only. */
uint32_t weft_ring_pattern (enum weft_group_kind kind, gboolean back);

static inline const struct weft_path *
weft_actors_path (const weft_actors *a, uint32_t actor, uint32_t pattern)
{
  return &a->path[(size_t) actor * a->n_pattern + pattern];
}
