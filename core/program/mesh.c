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
  uint32_t stage = weft_mesh_stage (m, rank);
  int ends = by > 0 ? stage + 1 == m->pp : stage == 0;

  if (ends && (!m->ring || m->pp == 1))
    return WEFT_NO_RANK;
  int64_t other = (stage + m->pp + (int64_t) by) % m->pp;
  return (uint32_t) (rank + (other - stage) * weft_mesh_stage_stride (m));
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

/* A group of n ranks that are `stride` apart in rank numbers. */
static struct weft_group
apart (uint32_t n, uint32_t stride)
{
  return (struct weft_group){ 0, { n, 1 }, { stride, 0 } };
}

/* A group of n ranks of one stage, which are `stride` apart in the order of the stage's ranks. If
 * the stages lie inside, a stage consists of runs of t c consecutive ranks; a group lies in one
 * run, or has one rank of each run, or takes equal places of several runs. */
static struct weft_group
in_stage (const struct weft_mesh *m, uint32_t n, uint32_t stride)
{
  uint32_t run = weft_mesh_stage_stride (m), next = run * m->pp;

  if (n == 1 || n * stride <= run)
    return apart (n, stride);
  if (stride % run == 0)
    return apart (n, stride / run * next);
  return (struct weft_group){ 0, { run / stride, n / (run / stride) }, { stride, next } };
}

/* A group of n consecutive ranks (in the order of a stage's ranks) of every stage. */
static struct weft_group
of_stages (const struct weft_mesh *m, uint32_t n)
{
  if (m->stages_inside && n >= m->tp * m->cp)
    return apart (n * m->pp, 1);
  return (struct weft_group){ 0, { n, m->pp }, { 1, weft_mesh_stage_stride (m) } };
}

/* The groups of a mesh m, by kind; `first` is 0. */
#define EXTENT_LIST(X)                                                                             \
  X (NONE, apart (1, 0))                                                                           \
  X (TP, in_stage (m, m->tp, 1))                                                                   \
  X (CP, in_stage (m, m->cp, m->tp))                                                               \
  X (CP_HEADS, in_stage (m, m->cp_heads, m->tp))                                                   \
  X (CP_RING, in_stage (m, m->cp / m->cp_heads, m->tp * m->cp_heads))                              \
  X (EP, in_stage (m, m->ep, m->etp))                                                              \
  X (ETP, in_stage (m, m->etp, 1))                                                                 \
  X (TP_EP, in_stage (m, experts (m), 1))                                                          \
  X (ECP, in_stage (m, expert_sequence (m), experts (m)))                                          \
  X (EDP, in_stage (m, weft_mesh_expert_replicas (m), experts (m)))                                \
  X (EDP_INTRA, in_stage (m, m->expert_instances > 1 ? expert_share (m) : 1, experts (m)))         \
  X (DP, in_stage (m, m->cp * m->dp, m->tp))                                                       \
  X (PP, apart (m->pp, weft_mesh_stage_stride (m)))                                                \
  X (EMBD, apart (m->pp > 1 ? 2 : 1, (m->pp - 1) * weft_mesh_stage_stride (m)))                    \
  X (INTRA, in_stage (m, m->instances > 1 ? share (m) : 1, m->tp))                                 \
  X (INTER, in_stage (m, m->hybrid ? 1 : m->instances, m->tp * share (m)))                         \
  X (OUTER, in_stage (m, m->hybrid ? m->instances : 1, m->tp * share (m)))                         \
  X (INSTANCE, m->instances > 1 ? of_stages (m, m->tp * share (m)) : apart (1, 1))                 \
  X (EMP, of_stages (m, experts (m)))                                                              \
  X (MIRROR, apart (m->mirror ? 2 : 1, weft_mesh_stage_stride (m)))                                \
  X (MP, of_stages (m, m->tp))                                                                     \
  X (STAGE, in_stage (m, weft_mesh_stage_size (m), 1))                                             \
  X (WORLD, apart (m->n_ranks, 1))

/* Each row of EXTENT_LIST becomes a function, because planning computes groups of one kind millions
 * of times. */
#define EXTENT_FUNCTION(id, group)                                                                 \
  static struct weft_group extent_##id (const struct weft_mesh *m)                                 \
  {                                                                                                \
    (void) m;                                                                                      \
    return group;                                                                                  \
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
  uint32_t stride = weft_mesh_stage_stride (m), stage = weft_mesh_stage (m, rank);
  uint32_t other = m->pp - 1 - stage, lower = stage < other ? stage : other;

  g->first = rank - (stage - lower) * stride;
  g->stride[0] = (stage > other ? stage - other : other - stage) * stride;
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
  if (kind == WEFT_GROUP_EMBD) {
    g.first -= weft_mesh_stage (m, rank) == m->pp - 1 ? g.stride[0] : 0;
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
