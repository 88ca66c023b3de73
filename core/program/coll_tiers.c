/* Collectives over nodes and the network between them, as NCCL runs them. */
#include "core/program/coll_style.h"
#include <math.h>

static uint32_t
node_of (const struct weft_fabric *f, const struct weft_group *g, uint32_t member)
{
  return weft_fabric_node (f, weft_group_rank (g, member));
}

/* Whether every node has the same number of members. Members are numbered along the cluster, so
 * such a group consists of k blocks of g members. */
static gboolean
is_uniform (const struct weft_fabric *f, const struct weft_group *g, uint32_t n, uint32_t n_local)
{
  if (n % n_local)
    return FALSE;
  for (uint32_t i = 0; i < n; i++) {
    gboolean same = i % n_local == 0 ? i == 0 || node_of (f, g, i) != node_of (f, g, i - 1)
                                     : node_of (f, g, i) == node_of (f, g, i - 1);
    if (!same)
      return FALSE;
  }
  return TRUE;
}

/* Side 0: members of the first node; side 1: nodes. */
static void
outline (struct weft_coll_shape *shape, const struct weft_fabric *f)
{
  const struct weft_group *g = &shape->group;
  uint32_t n = shape->n, n_local = 1, n_nodes = 0;

  while (n_local < n && node_of (f, g, n_local) == node_of (f, g, 0))
    n_local++;
  shape->uniform = is_uniform (f, g, n, n_local);
  for (uint32_t i = 0; i < n && !shape->uniform; i++)
    n_nodes += i == 0 || node_of (f, g, i) != node_of (f, g, i - 1);
  shape->side[WEFT_WAY_LOCAL] = n_local;
  shape->side[WEFT_WAY_REMOTE] = shape->uniform ? n / n_local : n_nodes;
}

static uint32_t
find_flows (const struct weft_coll_shape *shape, const struct weft_fabric *f, uint32_t member,
            struct weft_flow flows[WEFT_MAX_WAYS])
{
  const struct weft_group *g = &shape->group;
  uint32_t from = weft_group_rank (g, member), n = 0, n_local = shape->side[WEFT_WAY_LOCAL];

  if (!shape->uniform) {
    uint32_t to = weft_group_rank (g, (member + 1) % shape->n);
    gboolean remote = weft_fabric_node (f, from) != weft_fabric_node (f, to);
    flows[0] = (struct weft_flow){ from, to, remote ? WEFT_WAY_REMOTE : WEFT_WAY_LOCAL };
    return 1;
  }
  uint32_t block = member / n_local * n_local;
  if (n_local > 1)
    flows[n++] =
        (struct weft_flow){ from, weft_group_rank (g, block + (member - block + 1) % n_local),
                            WEFT_WAY_LOCAL };
  if (shape->side[WEFT_WAY_REMOTE] > 1)
    flows[n++] = (struct weft_flow){ from, weft_group_rank (g, (member + n_local) % shape->n),
                                     WEFT_WAY_REMOTE };
  return n;
}

/* Sets the bytes of each way: the share `remote` of `total` leaves the node. If a rank has only one
 * flow, this flow has all bytes. */
static void
split (const struct weft_coll_shape *s, double total, double remote, double bytes[WEFT_MAX_WAYS])
{
  gboolean one_flow = !s->uniform || s->side[WEFT_WAY_REMOTE] == 1;

  bytes[WEFT_WAY_LOCAL] = one_flow ? total : total * (1 - remote);
  bytes[WEFT_WAY_REMOTE] = one_flow ? total : total * remote;
}

/* Each ring of a node leaves the node at one GPU. */
static gboolean
ring_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
            double bytes[WEFT_MAX_WAYS])
{
  double share = weft_coll_ring_share (kind, s->n);

  split (s, whole * share, 1.0 / s->side[WEFT_WAY_LOCAL], bytes);
  return share >= 0;
}

static void
ring_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  uint32_t rounds = kind == WEFT_OP_ALL_REDUCE ? 2 : 1;

  steps[WEFT_WAY_REMOTE] = rounds * (s->side[WEFT_WAY_REMOTE] - 1);
  steps[WEFT_WAY_LOCAL] = rounds * (s->n - 1) - steps[WEFT_WAY_REMOTE];
}

/* In each of two trees a node sends S / 2 to its parent, and in the tree in which it is an inner
 * node S / 2 to each of two children: 2 S. */
static gboolean
tree_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
            double bytes[WEFT_MAX_WAYS])
{
  split (s, whole * 2, 1.0 / s->side[WEFT_WAY_LOCAL], bytes);
  return kind == WEFT_OP_ALL_REDUCE && s->uniform;
}

static void
tree_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  uint32_t nodes = s->side[WEFT_WAY_REMOTE];

  (void) kind;
  steps[WEFT_WAY_LOCAL] = 2 * (s->side[WEFT_WAY_LOCAL] - 1);
  steps[WEFT_WAY_REMOTE] = nodes > 1 ? 2 * (uint32_t) ceil (log2 (nodes)) : 0;
}

/* Every rank sends the same amount to each other rank. */
static gboolean
direct_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
              double bytes[WEFT_MAX_WAYS])
{
  double share = weft_op_swaps (kind) ? (s->n - 1.0) / s->n : weft_coll_ring_share (kind, s->n);

  split (s, whole * share, (double) (s->n - s->side[WEFT_WAY_LOCAL]) / (s->n - 1), bytes);
  return share >= 0;
}

static void
direct_steps (enum weft_op_kind kind, const struct weft_coll_shape *s,
              uint32_t steps[WEFT_MAX_AXES])
{
  uint32_t phases = weft_coll_phases (kind);

  steps[WEFT_WAY_LOCAL] = s->side[WEFT_WAY_REMOTE] == 1 ? phases : 0;
  steps[WEFT_WAY_REMOTE] = s->side[WEFT_WAY_REMOTE] > 1 ? phases : 0;
}

static const struct weft_coll_algorithm ring = { "ring", ring_bytes, ring_steps },
                                        tree = { "tree", tree_bytes, tree_steps },
                                        direct = { "direct", direct_bytes, direct_steps };

static const struct weft_coll_algorithm *const *
algorithms (enum weft_op_kind kind, enum weft_coll_choice choice)
{
  static const struct weft_coll_algorithm *const quick[] = { &ring, &tree, NULL },
                                                 *const at_once[] = { &direct, NULL },
                                                 *const pinned[] = { &ring, NULL };

  if (weft_op_swaps (kind) || weft_coll_sums_at_owner (kind, choice))
    return at_once;
  return choice == WEFT_COLL_RING ? pinned : quick;
}

const struct weft_coll_style weft_coll_tiers = { outline, find_flows, algorithms };
