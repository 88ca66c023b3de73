/* The numbers of ranks and the groups of a mesh in both orders, tp-cp-ep-dp-pp and tp-cp-ep-pp-dp:
 * examples that Megatron-Core's documentation gives, and all groups of many meshes against the
 * coordinates of their ranks. */
#include "core/program/mesh.h"
#include "tests/runner/runner.h"
#include <glib.h>

static struct weft_mesh
make (uint32_t tp, uint32_t cp, uint32_t dp, uint32_t pp, gboolean inside)
{
  struct weft_mesh m = weft_mesh_make (tp, cp, dp, pp);

  m.stages_inside = inside;
  m.etp = tp;
  m.ep = cp;
  return m;
}

static void
assert_ranks (const struct weft_mesh *m, enum weft_group_kind kind, const uint32_t *wanted,
              uint32_t n)
{
  for (uint32_t i = 0; i < n; i++) {
    struct weft_group g = weft_mesh_group (m, wanted[i], kind);
    assert_int_equal (weft_group_size (&g), n);
    assert_int_equal (weft_group_rank (&g, i), wanted[i]);
    assert_int_equal (weft_group_index (&g, wanted[i]), i);
  }
}

#define assert_group(m, kind, ...)                                                                 \
  assert_ranks ((m), (kind), (const uint32_t[]){ __VA_ARGS__ },                                    \
                sizeof ((const uint32_t[]){ __VA_ARGS__ }) / sizeof (uint32_t))

/* megatron/core/parallel_state.py, release core_v0.13.0: the groups in the comments of
 * generate_masked_orthogonal_rank_groups() and of initialize_model_parallel(). */
static void
megatron_documents_these_groups (void **state)
{
  (void) state;
  const struct weft_mesh eight = make (2, 1, 2, 2, TRUE), sixteen = make (2, 1, 2, 4, FALSE);

  for (uint32_t i = 0; i < 4; i++)
    assert_group (&eight, WEFT_GROUP_DP, i, i + 4);
  for (uint32_t i = 0; i < 16; i += 4) {
    assert_group (&sixteen, WEFT_GROUP_DP, i, i + 2);
    assert_group (&sixteen, WEFT_GROUP_DP, i + 1, i + 3);
    assert_group (&sixteen, WEFT_GROUP_TP, i, i + 1);
    assert_group (&sixteen, WEFT_GROUP_TP, i + 2, i + 3);
    assert_group (&sixteen, WEFT_GROUP_PP, i / 4, i / 4 + 4, i / 4 + 8, i / 4 + 12);
  }
}

/* The same 16 ranks in the other order, by the equations of RankGenerator. */
static void
stages_inside_keep_a_pipeline_together (void **state)
{
  (void) state;
  struct weft_mesh m = make (2, 1, 2, 4, TRUE), c = make (1, 2, 2, 2, TRUE);

  assert_group (&m, WEFT_GROUP_PP, 0, 2, 4, 6);
  assert_group (&m, WEFT_GROUP_PP, 9, 11, 13, 15);
  assert_group (&m, WEFT_GROUP_DP, 5, 13);
  assert_group (&m, WEFT_GROUP_EMBD, 8, 14);
  assert_group (&m, WEFT_GROUP_MP, 8, 9, 10, 11, 12, 13, 14, 15);
  assert_group (&m, WEFT_GROUP_STAGE, 4, 5, 12, 13);
  assert_group (&c, WEFT_GROUP_DP, 2, 3, 6, 7);
  assert_group (&c, WEFT_GROUP_MP, 1, 3);
  assert_group (&c, WEFT_GROUP_EDP, 2, 6);
  assert_int_equal (weft_mesh_stage (&m, 13), 2);
  assert_int_equal (weft_mesh_beside (&m, 4, 1), 6);
  assert_int_equal (weft_mesh_beside (&m, 8, -1), WEFT_NO_RANK);
  m.ring = TRUE;
  assert_int_equal (weft_mesh_beside (&m, 8, -1), 14);
  assert_int_equal (weft_mesh_beside (&m, 15, 1), 9);
}

/* What RankGenerator of core_v0.13.0 returns for order tp-cp-ep-pp-dp with tp = cp = dp = pp = 2,
 * and for experts with tp = 1, ep = 4. */
static void
megatron_makes_these_groups (void **state)
{
  (void) state;
  struct weft_mesh m = make (2, 2, 2, 2, TRUE);

  m.etp = 1;
  m.ep = 4;
  assert_group (&m, WEFT_GROUP_DP, 0, 2, 8, 10);
  assert_group (&m, WEFT_GROUP_DP, 5, 7, 13, 15);
  assert_group (&m, WEFT_GROUP_CP, 12, 14);
  assert_group (&m, WEFT_GROUP_PP, 11, 15);
  assert_group (&m, WEFT_GROUP_MP, 2, 3, 6, 7);
  assert_group (&m, WEFT_GROUP_EP, 8, 9, 10, 11);
  assert_group (&m, WEFT_GROUP_EDP, 6, 14);
  assert_group (&m, WEFT_GROUP_EMP, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* ------------------------------------------------------------------- all groups */

/* Coordinates of a rank; `copy` is its index among the ranks that hold the same dense weights. */
struct place {
  uint32_t tp, cp, dp, pp, etp, ep, edp, copy;
};

static uint32_t
take (uint32_t *rest, uint32_t size)
{
  uint32_t at = *rest % size;

  *rest /= size;
  return at;
}

static struct place
place_of (const struct weft_mesh *m, uint32_t rank)
{
  struct place at = { 0 };
  uint32_t dense = rank, experts = rank, replicas = m->n_ranks / m->pp / (m->etp * m->ep);

  at.tp = take (&dense, m->tp);
  at.cp = take (&dense, m->cp);
  at.etp = take (&experts, m->etp);
  at.ep = take (&experts, m->ep);
  if (m->stages_inside) {
    at.pp = take (&dense, m->pp);
    assert_int_equal (take (&experts, m->pp), at.pp);
  }
  at.dp = take (&dense, m->dp);
  at.edp = take (&experts, replicas);
  if (!m->stages_inside)
    at.pp = dense;
  at.copy = at.cp + m->cp * at.dp;
  return at;
}

/* What all members of a group have in common, as one number: the coordinates that the group does
 * not span, in numbers below BASE. */
#define BASE 1000
#define ALL(a, b, c) (((uint64_t) (a) *BASE + (b)) * BASE + (c))

static uint64_t
common (const struct weft_mesh *m, const struct place *at, enum weft_group_kind kind)
{
  uint32_t share = m->cp * m->dp / m->instances, ends = at->pp == 0 || at->pp == m->pp - 1;
  uint32_t expert_share = m->n_ranks / m->pp / (m->etp * m->ep) / m->expert_instances;

  switch (kind) {
  case WEFT_GROUP_TP:
    return ALL (at->cp, at->dp, at->pp);
  case WEFT_GROUP_CP:
    return ALL (at->tp, at->dp, at->pp);
  case WEFT_GROUP_DP:
    return ALL (at->tp, 0, at->pp);
  case WEFT_GROUP_PP:
    return ALL (at->tp, at->cp, at->dp);
  case WEFT_GROUP_EMBD:
    return ALL (at->tp + m->tp * at->cp, at->dp, m->pp == 1 || ends ? BASE - 1 : at->pp);
  case WEFT_GROUP_MP:
    return ALL (0, at->cp, at->dp);
  case WEFT_GROUP_STAGE:
    return ALL (0, 0, at->pp);
  case WEFT_GROUP_WORLD:
    return 0;
  case WEFT_GROUP_INTRA:
    return ALL (at->tp, at->pp, m->instances > 1 ? at->copy / share : at->copy);
  case WEFT_GROUP_INTER:
    return ALL (at->tp, at->pp, at->copy % share);
  case WEFT_GROUP_INSTANCE:
    return at->copy / share;
  case WEFT_GROUP_EP:
    return ALL (at->etp, at->edp, at->pp);
  case WEFT_GROUP_ETP:
    return ALL (at->ep, at->edp, at->pp);
  case WEFT_GROUP_TP_EP:
    return ALL (0, at->edp, at->pp);
  case WEFT_GROUP_EDP:
    return ALL (at->etp, at->ep, at->pp);
  case WEFT_GROUP_EDP_INTRA:
    return ALL (at->etp + m->etp * at->ep, at->pp,
                m->expert_instances > 1 ? at->edp / expert_share : at->edp);
  case WEFT_GROUP_EMP:
    return at->edp;
  default:
    return ALL (at->tp + m->tp * at->cp, at->dp, MIN (at->pp, m->pp - 1 - at->pp));
  }
}

/* Members of a group are in the order of their numbers, and have the same coordinates on the axes
 * that the group does not span. */
static void
check_group (const struct weft_mesh *m, const struct place *at, uint32_t rank,
             enum weft_group_kind kind)
{
  struct weft_group g = weft_mesh_group (m, rank, kind);
  uint32_t n = 0;

  if (!weft_mesh_has_role (m, kind, at[rank].pp))
    return;
  for (uint32_t other = 0; other < m->n_ranks; other++)
    if (common (m, &at[other], kind) == common (m, &at[rank], kind)) {
      assert_true (n < weft_group_size (&g));
      assert_int_equal (weft_group_rank (&g, n), other);
      assert_int_equal (weft_group_index (&g, other), n);
      n++;
    }
  assert_int_equal (n, weft_group_size (&g));
  assert_int_equal (n, weft_mesh_group_size (m, kind));
}

static void
check_mesh (const struct weft_mesh *m)
{
  static const enum weft_group_kind kinds[] = {
    WEFT_GROUP_TP,    WEFT_GROUP_CP,       WEFT_GROUP_DP,        WEFT_GROUP_PP,  WEFT_GROUP_EMBD,
    WEFT_GROUP_MP,    WEFT_GROUP_STAGE,    WEFT_GROUP_WORLD,     WEFT_GROUP_EP,  WEFT_GROUP_ETP,
    WEFT_GROUP_TP_EP, WEFT_GROUP_EDP,      WEFT_GROUP_EDP_INTRA, WEFT_GROUP_EMP, WEFT_GROUP_INTRA,
    WEFT_GROUP_INTER, WEFT_GROUP_INSTANCE, WEFT_GROUP_MIRROR,
  };
  g_autofree struct place *at = g_new (struct place, m->n_ranks);

  for (uint32_t rank = 0; rank < m->n_ranks; rank++)
    at[rank] = place_of (m, rank);
  for (uint32_t rank = 0; rank < m->n_ranks; rank++) {
    assert_int_equal (weft_mesh_stage (m, rank), at[rank].pp);
    for (size_t i = 0; i < G_N_ELEMENTS (kinds); i++)
      if ((kinds[i] != WEFT_GROUP_MIRROR || m->mirror) &&
          (kinds[i] != WEFT_GROUP_INSTANCE || m->instances > 1))
        check_group (m, at, rank, kinds[i]);
  }
  for (uint32_t stage = 0; stage < m->pp; stage++)
    for (uint32_t i = 0; i < weft_mesh_stage_size (m); i++) {
      uint32_t rank = weft_mesh_stage_rank (m, stage, i);
      assert_int_equal (at[rank].pp, stage);
      assert_int_equal (weft_mesh_place (m, rank, WEFT_GROUP_STAGE).at, i);
    }
}

/* Checks a mesh with experts on tp x cp ranks and each number of instances of whole replicas, and
 * one with whole experts, for which the stages must lie outside. */
static void
check_sizes (uint32_t tp, uint32_t cp, uint32_t dp, uint32_t pp, gboolean inside)
{
  struct weft_mesh m = make (tp, cp, dp, pp, inside);

  m.mirror = pp % 2 == 0;
  for (m.instances = 1; m.instances <= dp; m.instances++)
    if (dp % m.instances == 0) {
      m.expert_instances = m.instances;
      check_mesh (&m);
    }
  m.ep = m.etp = m.instances = m.expert_instances = 1;
  if (!inside)
    check_mesh (&m);
}

static void
groups_have_equal_coordinates_in_both_orders (void **state)
{
  (void) state;
  for (uint32_t tp = 1; tp <= 3; tp++)
    for (uint32_t cp = 1; cp <= 4; cp *= 2)
      for (uint32_t dp = 1; dp <= 4; dp++)
        for (uint32_t pp = 1; pp <= 4; pp++)
          for (int inside = 0; inside < 2; inside++)
            check_sizes (tp, cp, dp, pp, inside && pp > 1);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (megatron_documents_these_groups),
  cmocka_unit_test (megatron_makes_these_groups),
  cmocka_unit_test (stages_inside_keep_a_pipeline_together),
  cmocka_unit_test (groups_have_equal_coordinates_in_both_orders),
};

WEFT_TESTS (tests)
