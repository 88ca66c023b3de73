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
#include "core/program/fabric.h"
#include "core/program/mesh.h"

/* The patterns of traffic: which GPU or host a rank sends to. */
#define WEFT_PATTERN_LIST(X)                                                                       \
  X (WEFT_PATTERN_DP_LOCAL, "dp local", "ring inside the node, gradients")                         \
  X (WEFT_PATTERN_DP_REMOTE, "dp remote", "ring between nodes, gradients")                         \
  X (WEFT_PATTERN_TP_LOCAL, "tp local", "ring inside the node, tensor parallel")                   \
  X (WEFT_PATTERN_TP_REMOTE, "tp remote", "ring between nodes, tensor parallel")                   \
  X (WEFT_PATTERN_CP_LOCAL, "cp local", "ring inside the node, context parallel")                  \
  X (WEFT_PATTERN_CP_REMOTE, "cp remote", "ring between nodes, context parallel")                  \
  X (WEFT_PATTERN_CP_HEADS_LOCAL, "cp heads local", "inside the node, heads dealt out")            \
  X (WEFT_PATTERN_CP_HEADS_REMOTE, "cp heads remote", "between nodes, heads dealt out")            \
  X (WEFT_PATTERN_CP_RING_LOCAL, "cp ring local", "inside the node, ranks that pass keys on")      \
  X (WEFT_PATTERN_CP_RING_REMOTE, "cp ring remote", "between nodes, ranks that pass keys on")      \
  X (WEFT_PATTERN_CP_RING_NEXT, "cp ring next", "keys to the next rank")                           \
  X (WEFT_PATTERN_CP_RING_BACK, "cp ring back", "keys and their gradients to the rank before")     \
  X (WEFT_PATTERN_EP_LOCAL, "ep local", "inside the node, expert parallel")                        \
  X (WEFT_PATTERN_EP_REMOTE, "ep remote", "between nodes, expert parallel")                        \
  X (WEFT_PATTERN_TP_EP_LOCAL, "tp_ep local", "inside the node, tensor and expert parallel")       \
  X (WEFT_PATTERN_TP_EP_REMOTE, "tp_ep remote", "between nodes, tensor and expert parallel")       \
  X (WEFT_PATTERN_ETP_LOCAL, "etp local", "inside the node, parts of an expert")                   \
  X (WEFT_PATTERN_ETP_REMOTE, "etp remote", "between nodes, parts of an expert")                   \
  X (WEFT_PATTERN_ECP_LOCAL, "ecp local", "inside the node, parts of sequences that see one expert") \
  X (WEFT_PATTERN_ECP_REMOTE, "ecp remote", "between nodes, parts of sequences that see one expert") \
  X (WEFT_PATTERN_EDP_LOCAL, "edp local", "ring inside the node, replicas of experts")             \
  X (WEFT_PATTERN_EDP_REMOTE, "edp remote", "ring between nodes, replicas of experts")             \
  X (WEFT_PATTERN_EDP_INTRA_LOCAL, "edp_intra local", "inside the node, experts of one instance") \
  X (WEFT_PATTERN_EDP_INTRA_REMOTE, "edp_intra remote", "between nodes, experts of one instance") \
  X (WEFT_PATTERN_EMBD_LOCAL, "embd local", "first and last stage, same node")                     \
  X (WEFT_PATTERN_EMBD_REMOTE, "embd remote", "first and last stage, other nodes")                 \
  X (WEFT_PATTERN_INTRA_LOCAL, "intra local", "ring inside the node, one instance")                \
  X (WEFT_PATTERN_INTRA_REMOTE, "intra remote", "ring between nodes, one instance")                \
  X (WEFT_PATTERN_INTER_LOCAL, "inter local", "ring inside the node, across instances")            \
  X (WEFT_PATTERN_INTER_REMOTE, "inter remote", "ring between nodes, across instances")            \
  X (WEFT_PATTERN_OUTER_LOCAL, "outer local", "ring inside the node, hybrid sharding")             \
  X (WEFT_PATTERN_OUTER_REMOTE, "outer remote", "ring between nodes, hybrid sharding")             \
  X (WEFT_PATTERN_MIRROR_LOCAL, "mirror local", "two copies of one stage, same node")              \
  X (WEFT_PATTERN_MIRROR_REMOTE, "mirror remote", "two copies of one stage, other nodes")          \
  X (WEFT_PATTERN_STAGE_LOCAL, "stage local", "all ranks of one stage, same node")                  \
  X (WEFT_PATTERN_STAGE_REMOTE, "stage remote", "all ranks of one stage, other nodes")              \
  X (WEFT_PATTERN_NEXT, "next", "next stage")                                                      \
  X (WEFT_PATTERN_PREVIOUS, "previous", "stage before")                                            \
  X (WEFT_PATTERN_H2D, "h2d", "from the host")                                                     \
  X (WEFT_PATTERN_D2H, "d2h", "to the host")                                                       \
  X (WEFT_PATTERN_HOST, "host", "the host's memory, for kernels that run there")
enum weft_pattern { WEFT_PATTERN_LIST (WEFT_WORD_ID) WEFT_N_PATTERN };

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
  struct weft_path *path;             /* [actor][WEFT_N_PATTERN]; NULL without a fabric */
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

/* The pattern of a collective's local or remote flows. */
enum weft_pattern weft_group_pattern (enum weft_group_kind kind, gboolean remote);
