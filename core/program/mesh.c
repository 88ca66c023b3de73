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

/* One row a kind: the two nested sizes and strides, as functions of the mesh. */
static struct weft_group
extent (const struct weft_mesh *m, enum weft_group_kind kind)
{
  uint32_t stage = weft_mesh_stage_size (m), many = m->instances > 1;
  uint32_t share = m->cp * m->dp / m->instances; /* ranks of dp in one instance */
  uint32_t experts = m->etp * m->ep, sequence = m->tp * m->cp;
  uint32_t alike = weft_mesh_expert_replicas (m) / m->expert_instances; /* of edp */
  const struct weft_group table[WEFT_N_GROUP] = {
    [WEFT_GROUP_NONE] = { 0, { 1, 1 }, { 0, 0 } },
    [WEFT_GROUP_TP] = { 0, { m->tp, 1 }, { 1, 0 } },
    [WEFT_GROUP_CP] = { 0, { m->cp, 1 }, { m->tp, 0 } },
    [WEFT_GROUP_CP_HEADS] = { 0, { m->cp_heads, 1 }, { m->tp, 0 } },
    [WEFT_GROUP_CP_RING] = { 0, { m->cp / m->cp_heads, 1 }, { m->tp * m->cp_heads, 0 } },
    [WEFT_GROUP_EP] = { 0, { m->ep, 1 }, { m->etp, 0 } },
    [WEFT_GROUP_ETP] = { 0, { m->etp, 1 }, { 1, 0 } },
    [WEFT_GROUP_TP_EP] = { 0, { experts, 1 }, { 1, 0 } },
    [WEFT_GROUP_ECP] = { 0, { sequence > experts ? sequence / experts : 1, 1 }, { experts, 0 } },
    [WEFT_GROUP_EDP] = { 0, { weft_mesh_expert_replicas (m), 1 }, { experts, 0 } },
    [WEFT_GROUP_EDP_INTRA] = { 0, { m->expert_instances > 1 ? alike : 1, 1 }, { experts, 0 } },
    [WEFT_GROUP_DP] = { 0, { m->cp * m->dp, 1 }, { m->tp, 0 } },
    [WEFT_GROUP_PP] = { 0, { m->pp, 1 }, { stage, 0 } },
    [WEFT_GROUP_EMBD] = { 0, { m->pp > 1 ? 2 : 1, 1 }, { (m->pp - 1) * stage, 0 } },
    [WEFT_GROUP_INTRA] = { 0, { many ? share : 1, 1 }, { m->tp, 0 } },
    [WEFT_GROUP_INTER] = { 0, { m->hybrid ? 1 : m->instances, 1 }, { m->tp * share, 0 } },
    [WEFT_GROUP_OUTER] = { 0, { m->hybrid ? m->instances : 1, 1 }, { m->tp * share, 0 } },
    [WEFT_GROUP_INSTANCE] = { 0, { many ? m->tp * share : 1, many ? m->pp : 1 }, { 1, stage } },
    [WEFT_GROUP_EMP] = { 0, { experts, m->pp }, { 1, stage } },
    [WEFT_GROUP_MIRROR] = { 0, { m->mirror ? 2 : 1, 1 }, { stage, 0 } },
    [WEFT_GROUP_MP] = { 0, { m->tp, m->pp }, { 1, stage } },
    [WEFT_GROUP_STAGE] = { 0, { stage, 1 }, { 1, 0 } },
    [WEFT_GROUP_WORLD] = { 0, { m->n_ranks, 1 }, { 1, 0 } },
  };
  return table[kind];
}

/* The lower of two stages that mirror each other, and how far they are apart. */
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
