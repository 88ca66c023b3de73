/* mesh.h - ranks as coordinates on the mesh axes, groups as arithmetic.
 *
 * Ranks are numbered in Megatron's order tp-cp-ep-dp-pp: the coordinate tp changes fastest. For
 * dense layers, with t, c and d ranks on the axes tp, cp and dp,
 *   rank = tp + t * (cp + c * (dp + d * pp))
 * For experts, with et and e ranks on the axes etp and ep, the rank number is
 *   rank = etp + et * (ep + e * (edp + Ed * pp)),   Ed = t c d / (et e)
 * With mesh.stages_inside the order is tp-cp-ep-pp-dp: with p stages, and et e = t c if p > 1,
 *   rank = tp + t * (cp + c * (pp + p * dp)) = etp + et * (ep + e * (pp + p * edp))
 * (Megatron-Core parallel_state.py, RankGenerator). In both orders the ranks of a stage have an
 * order of their own, tp-cp-dp (weft_mesh_stage_rank()). A group is stored as at most two nested
 * strides, not as an array of ranks. */
#pragma once
#include "core/base/zigzag.h"
#include <stddef.h>
#include <stdint.h>

/* The kinds of groups (process groups). Each row: constant, name, lane of the group's collectives,
 * members. */
#define WEFT_GROUP_LIST(X)                                                                         \
  X (WEFT_GROUP_NONE, "-", WEFT_LANE_GPU, "no group: a local op")                                  \
  X (WEFT_GROUP_TP, "tp", WEFT_LANE_TP, "ranks that share every matrix product")                   \
  X (WEFT_GROUP_CP, "cp", WEFT_LANE_CP, "ranks that share a sequence")                             \
  X (WEFT_GROUP_CP_HEADS, "cp_heads", WEFT_LANE_CP, "cp neighbours that exchange heads (Ulysses)") \
  X (WEFT_GROUP_CP_RING, "cp_ring", WEFT_LANE_CP, "one rank per cp_heads group: ring attention")   \
  X (WEFT_GROUP_EP, "ep", WEFT_LANE_EP, "ranks that share a layer's experts")                      \
  X (WEFT_GROUP_ETP, "etp", WEFT_LANE_TP, "expert tensor parallel ranks")                          \
  X (WEFT_GROUP_TP_EP, "tp_ep", WEFT_LANE_EP, "etp x ep: ranks that share all experts")            \
  X (WEFT_GROUP_ECP, "ecp", WEFT_LANE_CP, "ranks with the same experts and sequence")              \
  X (WEFT_GROUP_EDP, "edp", WEFT_LANE_DP, "ranks that reduce gradients of the same experts")       \
  X (WEFT_GROUP_EDP_INTRA, "edp_intra", WEFT_LANE_DP, "ranks of edp that share one optimizer")     \
  X (WEFT_GROUP_DP, "dp", WEFT_LANE_DP, "dp x cp: ranks that reduce dense gradients")              \
  X (WEFT_GROUP_PP, "pp", WEFT_LANE_PP, "the stages of one pipeline")                              \
  X (WEFT_GROUP_EMBD, "embd", WEFT_LANE_PP, "first and last stage, which hold a tied embedding")   \
  X (WEFT_GROUP_INTRA, "intra", WEFT_LANE_DP, "ranks of dp that share one optimizer")              \
  X (WEFT_GROUP_INTER, "inter", WEFT_LANE_DP, "one rank of each instance, with the same slice")    \
  X (WEFT_GROUP_OUTER, "outer", WEFT_LANE_DP_OUTER, "the same ranks in hybrid sharding")           \
  X (WEFT_GROUP_INSTANCE, "instance", WEFT_LANE_WORLD, "tp x intra x pp: ranks of one optimizer")  \
  X (WEFT_GROUP_EMP, "emp", WEFT_LANE_WORLD, "etp x ep x pp: ranks with one copy of the experts")  \
  X (WEFT_GROUP_MIRROR, "mirror", WEFT_LANE_DP, "ranks r and p-1-r: two copies of one stage")      \
  X (WEFT_GROUP_MP, "mp", WEFT_LANE_WORLD, "tp x pp: ranks of one replica")                        \
  X (WEFT_GROUP_STAGE, "stage", WEFT_LANE_WORLD, "tp x dp x cp: all ranks of one stage")           \
  X (WEFT_GROUP_WORLD, "world", WEFT_LANE_WORLD, "all ranks")
enum weft_group_kind {
#define WEFT_GROUP_ROW(id, word, lane, doc) id,
  WEFT_GROUP_LIST (WEFT_GROUP_ROW)
#undef WEFT_GROUP_ROW
      WEFT_N_GROUP
};
extern const char *const weft_group_words[]; /* NULL-terminated */
const char *weft_group_word (enum weft_group_kind kind);

struct weft_mesh {
  uint32_t tp, cp, dp, pp; /* sizes of the dense parallel axes */
  uint32_t n_ranks;
  /* number of ranks in a Ulysses group: context parallel neighbours that exchange heads by an
   * all-to-all. Ring attention runs among cp / cp_heads ranks, one of each Ulysses group */
  uint32_t cp_heads;
  uint32_t ep, etp; /* sizes of the expert parallel axes; 1 in a model without experts */
  /* number of full copies of the sharded state (optimizer instances). With one copy the groups
   * intra, inter, outer and instance are empty */
  uint32_t instances;
  /* number of optimizer instances of the experts; 1 if the shards of expert state span all
   * instances */
  uint32_t expert_instances;
  /* HSDP whose instances (copies of the shards) divide the optimizer state: the number of slices
   * into which they divide a shard; otherwise 1 */
  uint32_t outer_slices;
  /* TRUE: HSDP, whose instances (copies of the shards) reduce gradients in group outer, on a lane
   * of its own; FALSE: in group inter */
  uint32_t hybrid;
  /* TRUE: bidirectional schedule, in which rank p-1-r of a pipeline of p ranks holds copies of the
   * stages of rank r */
  uint32_t mirror;
  /* TRUE: the stage after the last rank's stage is on the first rank again, because every rank
   * holds several model chunks (virtual pipeline stages) */
  uint32_t ring;
  /* TRUE: order tp-cp-ep-pp-dp, in which the ranks of one pipeline are close together and replicas
   * far apart; FALSE: tp-cp-ep-dp-pp */
  uint32_t stages_inside;
};

/* A group of n[0] * n[1] ranks. Member i is rank first + (i % n[0]) * stride[0] + (i / n[0]) *
 * stride[1]. */
struct weft_group {
  uint32_t first, n[2], stride[2];
};

struct weft_mesh weft_mesh_make (uint32_t tp, uint32_t cp, uint32_t dp, uint32_t pp);

static inline uint32_t
weft_mesh_stage_size (const struct weft_mesh *m)
{
  return m->tp * m->cp * m->dp;
}

/* Number of ranks that hold copies of the same experts. */
static inline uint32_t
weft_mesh_expert_replicas (const struct weft_mesh *m)
{
  return weft_mesh_stage_size (m) / (m->ep * m->etp);
}

/* Whether the ranks of a stage divide experts in another way than dense tensors: with expert
 * parallelism, or with another tensor parallel size. */
static inline int
weft_mesh_deals_experts (const struct weft_mesh *m)
{
  return m->ep > 1 || m->etp != m->tp;
}

/* Number of replicas (each of tp x cp ranks with sequences of its own) that an expert group of etp
 * x ep ranks spans. An expert receives whole sequences from so many replicas; 1 if the expert group
 * lies inside one replica. */
static inline uint32_t
weft_mesh_expert_sequences (const struct weft_mesh *m)
{
  uint32_t all = m->ep * m->etp, one = m->tp * m->cp;
  return all > one ? all / one : 1;
}

/* The group of ranks that divide the optimizer state into slices: of dense weights
 * (weft_mesh_sharing), and of experts (weft_mesh_expert_sharing). */
static inline enum weft_group_kind
weft_mesh_sharing (const struct weft_mesh *m)
{
  return m->instances > 1 ? WEFT_GROUP_INTRA : WEFT_GROUP_DP;
}

static inline enum weft_group_kind
weft_mesh_expert_sharing (const struct weft_mesh *m)
{
  return m->expert_instances > 1 ? WEFT_GROUP_EDP_INTRA : WEFT_GROUP_EDP;
}

/* Number of slices into which the optimizer state is divided: of dense weights (weft_mesh_slots),
 * and of experts (weft_mesh_expert_slots). */
static inline uint32_t
weft_mesh_slots (const struct weft_mesh *m)
{
  return m->cp * m->dp / m->instances * m->outer_slices;
}

static inline uint32_t
weft_mesh_expert_slots (const struct weft_mesh *m)
{
  return weft_mesh_expert_replicas (m) / m->expert_instances * m->outer_slices;
}

/* Number of the optimizer slice that a rank owns. `place` is the rank's index in group dp, and for
 * slices of expert weights the rank's index in group edp. */
static inline uint32_t
weft_mesh_slot (const struct weft_mesh *m, uint32_t place)
{
  uint32_t share = m->cp * m->dp / m->instances;
  return place % share * m->outer_slices + place / share % m->outer_slices;
}

static inline uint32_t
weft_mesh_expert_slot (const struct weft_mesh *m, uint32_t place)
{
  uint32_t share = weft_mesh_expert_replicas (m) / m->expert_instances;
  return place % share * m->outer_slices + place / share % m->outer_slices;
}

/* The group of ranks that hold the same optimizer slice, one rank of each instance (copy of the
 * sharded state). */
static inline enum weft_group_kind
weft_mesh_across (const struct weft_mesh *m)
{
  return m->hybrid ? WEFT_GROUP_OUTER : WEFT_GROUP_INTER;
}

/* Difference between the numbers of a rank and of its neighbour in the next pipeline stage. So many
 * consecutive ranks belong to one stage. */
static inline uint32_t
weft_mesh_stage_stride (const struct weft_mesh *m)
{
  return m->stages_inside ? m->tp * m->cp : weft_mesh_stage_size (m);
}

/* The pipeline stage (role) to which a rank belongs. */
static inline uint32_t
weft_mesh_stage (const struct weft_mesh *m, uint32_t rank)
{
  return rank / weft_mesh_stage_stride (m) % m->pp;
}

/* The rank number of rank `i` of a stage, for i below weft_mesh_stage_size(). */
static inline uint32_t
weft_mesh_stage_rank (const struct weft_mesh *m, uint32_t stage, uint32_t i)
{
  uint32_t run = weft_mesh_stage_stride (m);
  return i % run + run * (stage + m->pp * (i / run));
}

/* The rank with the same tensor, context and data parallel coordinates in the next pipeline stage
 * (by = 1) or the previous stage (by = -1). Beyond the first or last stage: WEFT_NO_RANK, or with
 * mesh.ring the rank at the other end of the pipeline. */
#define WEFT_NO_RANK UINT32_MAX
uint32_t weft_mesh_beside (const struct weft_mesh *m, uint32_t rank, int by);

/* Returns the group of kind `kind` that contains a rank. */
struct weft_group weft_mesh_group (const struct weft_mesh *m, uint32_t rank,
                                   enum weft_group_kind kind);

static inline uint32_t
weft_group_size (const struct weft_group *g)
{
  return g->n[0] * g->n[1];
}

/* The rank number of member `i` of a group. */
static inline uint32_t
weft_group_rank (const struct weft_group *g, uint32_t i)
{
  return g->first + i % g->n[0] * g->stride[0] + i / g->n[0] * g->stride[1];
}

/* Index of a rank in a group: the inverse of weft_group_rank(). */
uint32_t weft_group_index (const struct weft_group *g, uint32_t rank);

/* A rank's position in its group: its index, and the size of the group. */
static inline struct weft_place
weft_mesh_place (const struct weft_mesh *m, uint32_t rank, enum weft_group_kind kind)
{
  struct weft_group g = weft_mesh_group (m, rank, kind);
  return (struct weft_place){ weft_group_index (&g, rank), weft_group_size (&g) };
}

/* Whether the ranks of pipeline stage `role` belong to groups of kind `kind`. */
int weft_mesh_has_role (const struct weft_mesh *m, enum weft_group_kind kind, uint32_t role);

/* Number of ranks in a group of kind `kind`. */
uint32_t weft_mesh_group_size (const struct weft_mesh *m, enum weft_group_kind kind);
