#include "core/program/mesh.h"

const char *const weft_group_words[] = {
#define WEFT_GROUP_ROW(id, word, lane, doc) word,
  WEFT_GROUP_LIST (WEFT_GROUP_ROW)
#undef WEFT_GROUP_ROW
      NULL
};

const char *
weft_group_word (enum weft_group_kind kind)
{
  return weft_group_words[kind];
}

struct weft_mesh
weft_mesh_make (uint32_t tp, uint32_t cp, uint32_t dp, uint32_t pp)
{
  return (struct weft_mesh){
    .tp = tp,
    .cp = cp,
    .dp = dp,
    .pp = pp,
    .n_ranks = tp * cp * dp * pp,
    .cp_heads = 1,
    .ep = 1,
    .etp = 1,
    .instances = 1,
    .expert_instances = 1,
    .outer_slices = 1,
  };
}

uint32_t
weft_mesh_beside (const struct weft_mesh *m, uint32_t rank, int by)
{
  uint32_t size = weft_mesh_stage_size (m), stage = rank / size;
  int ends = by > 0 ? stage + 1 == m->pp : stage == 0;

  if (ends && (!m->ring || m->pp == 1))
    return WEFT_NO_RANK;
  return (uint32_t) ((rank + m->n_ranks + (int64_t) by * size) % m->n_ranks);
}

/* Number of ranks of dp (dp x cp) in one instance (copy) of the sharded optimizer state. */
static uint32_t
share (const struct weft_mesh *m)
{
  return m->cp * m->dp / m->instances;
}

/* Number of ranks of edp (replicas of the experts) in one instance of the experts' optimizer
 * state. */
static uint32_t
expert_share (const struct weft_mesh *m)
{
  return weft_mesh_expert_replicas (m) / m->expert_instances;
}

/* Number of ranks that together hold all experts of a layer exactly once (etp x ep). */
static uint32_t
experts (const struct weft_mesh *m)
{
  return m->etp * m->ep;
}

/* Number of ranks with the same experts among the tp x cp ranks that share one sequence. */
static uint32_t
expert_sequence (const struct weft_mesh *m)
{
  uint32_t sequence = m->tp * m->cp;
  return sequence > experts (m) ? sequence / experts (m) : 1;
}

/* Groups of ranks: kind, two nested sizes and the strides of both sizes, for a mesh m */
#define EXTENT_LIST(X)                                                                             \
  X (NONE, 1, 1, 0, 0)                                                                             \
  X (TP, m->tp, 1, 1, 0)                                                                           \
  X (CP, m->cp, 1, m->tp, 0)                                                                       \
  X (CP_HEADS, m->cp_heads, 1, m->tp, 0)                                                           \
  X (CP_RING, m->cp / m->cp_heads, 1, m->tp *m->cp_heads, 0)                                       \
  X (EP, m->ep, 1, m->etp, 0)                                                                      \
  X (ETP, m->etp, 1, 1, 0)                                                                         \
  X (TP_EP, experts (m), 1, 1, 0)                                                                  \
  X (ECP, expert_sequence (m), 1, experts (m), 0)                                                  \
  X (EDP, weft_mesh_expert_replicas (m), 1, experts (m), 0)                                        \
  X (EDP_INTRA, m->expert_instances > 1 ? expert_share (m) : 1, 1, experts (m), 0)                 \
  X (DP, m->cp *m->dp, 1, m->tp, 0)                                                                \
  X (PP, m->pp, 1, weft_mesh_stage_size (m), 0)                                                    \
  X (EMBD, m->pp > 1 ? 2 : 1, 1, (m->pp - 1) * weft_mesh_stage_size (m), 0)                        \
  X (INTRA, m->instances > 1 ? share (m) : 1, 1, m->tp, 0)                                         \
  X (INTER, m->hybrid ? 1 : m->instances, 1, m->tp *share (m), 0)                                  \
  X (OUTER, m->hybrid ? m->instances : 1, 1, m->tp *share (m), 0)                                  \
  X (INSTANCE, m->instances > 1 ? m->tp *share (m) : 1, m->instances > 1 ? m->pp : 1, 1,           \
     weft_mesh_stage_size (m))                                                                     \
  X (EMP, experts (m), m->pp, 1, weft_mesh_stage_size (m))                                         \
  X (MIRROR, m->mirror ? 2 : 1, 1, weft_mesh_stage_size (m), 0)                                    \
  X (MP, m->tp, m->pp, 1, weft_mesh_stage_size (m))                                                \
  X (STAGE, weft_mesh_stage_size (m), 1, 1, 0)                                                     \
  X (WORLD, m->n_ranks, 1, 1, 0)

/* Each row of EXTENT_LIST becomes a function, because planning computes groups of one kind millions
 * of times. */
#define EXTENT_FUNCTION(id, inner, outer, inner_stride, outer_stride)                              \
  static struct weft_group extent_##id (const struct weft_mesh *m)                                 \
  {                                                                                                \
    (void) m;                                                                                      \
    return (struct weft_group){ 0, { inner, outer }, { inner_stride, outer_stride } };             \
  }
EXTENT_LIST (EXTENT_FUNCTION)

static struct weft_group
extent (const struct weft_mesh *m, enum weft_group_kind kind)
{
#define EXTENT_ROW(id, ...) [WEFT_GROUP_##id] = extent_##id,
  static struct weft_group (*const of[WEFT_N_GROUP]) (const struct weft_mesh *) = { EXTENT_LIST (
      EXTENT_ROW) };

  return of[kind](m);
}

/* Sets the group of two pipeline stages that mirror each other (stages r and p-1-r): the rank in
 * the lower stage, and the distance to the rank in the other stage. */
static void
find_mirror (const struct weft_mesh *m, uint32_t rank, struct weft_group *g)
{
  uint32_t size = weft_mesh_stage_size (m), stage = rank / size, other = m->pp - 1 - stage;
  uint32_t lower = stage < other ? stage : other;

  g->first = rank % size + lower * size;
  g->stride[0] = (stage > other ? stage - other : other - stage) * size;
}

struct weft_group
weft_mesh_group (const struct weft_mesh *m, uint32_t rank, enum weft_group_kind kind)
{
  struct weft_group g = extent (m, kind);

  g.first = rank;
  if (kind == WEFT_GROUP_MIRROR && m->mirror) {
    find_mirror (m, rank, &g);
    return g;
  }
  for (int level = 0; level < 2; level++)
    if (g.n[level] > 1)
      g.first -= rank / g.stride[level] % g.n[level] * g.stride[level];
  return g;
}

uint32_t
weft_group_index (const struct weft_group *g, uint32_t rank)
{
  uint32_t away = rank - g->first;
  uint32_t outer = g->n[1] > 1 ? away / g->stride[1] : 0;
  uint32_t rest = away - outer * g->stride[1];

  return outer * g->n[0] + (g->n[0] > 1 ? rest / g->stride[0] : 0);
}

int
weft_mesh_has_role (const struct weft_mesh *m, enum weft_group_kind kind, uint32_t role)
{
  return kind != WEFT_GROUP_EMBD || role == 0 || role == m->pp - 1;
}

uint32_t
weft_mesh_group_size (const struct weft_mesh *m, enum weft_group_kind kind)
{
  struct weft_group g = extent (m, kind);
  return weft_group_size (&g);
}
