/* Collectives over nodes and the network between nodes, as NCCL runs them. */
#include "core/program/coll_style.h"
#include <math.h>

static uint32_t
node_of (const struct weft_fabric *f, const struct weft_group *g, uint32_t member)
{
  return weft_fabric_node (f, weft_group_rank (g, member));
}

/* Whether every node has an equal number of members. Members are numbered in the order of the
 * cluster's nodes, so that such a group consists of k blocks of g members. */
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

/* Sets side[0] to the number of members on the first node, and side[1] to the number of nodes. */
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

/* Sets the bytes that one flow of each way (class of flows) moves. The share `remote` of `total`
 * leaves the node. If a rank has only one flow, this flow moves all bytes. */
static void
split (const struct weft_coll_shape *s, double total, double remote, double bytes[WEFT_MAX_WAYS])
{
  gboolean one_flow = !s->uniform || s->side[WEFT_WAY_REMOTE] == 1;

  bytes[WEFT_WAY_LOCAL] = one_flow ? total : total * (1 - remote);
  bytes[WEFT_WAY_REMOTE] = one_flow ? total : total * remote;
}

/* Bytes of the rings. In each ring, one GPU of a node sends to the next node; every other GPU sends
 * to the next GPU of its node. */
static gboolean
ring_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
            double bytes[WEFT_MAX_WAYS])
{
  double share = weft_coll_ring_share (kind, s->n);

  split (s, whole * share, 1.0 / s->side[WEFT_WAY_LOCAL], bytes);
  return share >= 0;
}

/* A piece passes 2 (n - 1) links of a ring in an all-reduce, and n - 1 in other collectives. Every
 * g-th link of the ring leads to another node. The collective waits for the piece whose first link
 * does so, because it passes the most links between nodes: 2 k in an all-reduce over k nodes of
 * three or more ranks. NCCL 2.12 to 2.22 counted 2 k, other releases count 2 (k - 1)
 * (src/graph/tuning.cc). */
static void
ring_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  uint64_t rounds = kind == WEFT_OP_ALL_REDUCE ? 2 : 1, nodes = s->side[WEFT_WAY_REMOTE];
  uint64_t links = rounds * (s->n - 1);

  steps[WEFT_WAY_REMOTE] = nodes > 1 ? (uint32_t) ((links * nodes + s->n - 1) / s->n) : 0;
  steps[WEFT_WAY_LOCAL] = (uint32_t) links - steps[WEFT_WAY_REMOTE];
}

/* In a ring over several nodes the host posts every message to the NIC. A step inside a node
 * therefore takes at least as long as the post. NCCL counts three posts per step for protocol
 * Simple, and one post for the other protocols. */
void
weft_coll_wait_for_posts (const struct weft_coll_shape *s, enum weft_protocol protocol,
                          struct weft_coll_terms *terms)
{
  double posts = (protocol == WEFT_PROTOCOL_SIMPLE ? 3 : 1) * s->cluster->f.fabric_post_latency;

  if (s->side[WEFT_WAY_REMOTE] > 1)
    terms->step[WEFT_WAY_LOCAL] = fmax (terms->step[WEFT_WAY_LOCAL], posts);
}

/* Whether every channel of a ring over several nodes carries 64 bytes or more of each rank. */
static gboolean
fills_channels (const struct weft_coll_shape *s, const union weft_stack *stack, double whole)
{
  return s->side[WEFT_WAY_REMOTE] > 1 && whole >= 64. * s->n * stack->collective_sms;
}

/* NCCL's "plateau effect of ring" (src/graph/tuning.cc): when all channels of a ring over several
 * nodes are in use, its latency in Simple is 1.4 times as long, 1.9 times before the A100. */
static void
adjust_ring (const struct weft_coll_shape *s, const union weft_stack *stack,
             enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
             struct weft_coll_terms *terms)
{
  (void) bytes;
  int64_t capability = s->cluster->f.gpu_capability;

  weft_coll_wait_for_posts (s, protocol, terms);
  if (stack && capability > 0 && protocol == WEFT_PROTOCOL_SIMPLE &&
      fills_channels (s, stack, whole))
    terms->late = capability < 80 ? 1.9 : 1.4;
}

/* Multiples of the tensor size S that a node sends to other nodes, in two trees. The node sends
 * S / 2 to each neighbour in each tree. With four or more nodes, a node has a parent and two
 * children in one tree and is a leaf of the other tree: 2 S. Two nodes have one neighbour in each
 * tree: S. Three nodes form two chains, whose middles differ: 3/2 S.  (ncclGetDtree in
 * src/graph/trees.cc of NVIDIA/nccl.) */
double
weft_coll_tree_share (const struct weft_coll_shape *s)
{
  return fmin (s->side[WEFT_WAY_REMOTE], 4) / 2;
}

uint32_t
weft_coll_tree_hops (const struct weft_coll_shape *s)
{
  uint32_t nodes = s->side[WEFT_WAY_REMOTE];

  return nodes > 1 ? 2 * (uint32_t) ceil (log2 (nodes)) : 0;
}

static gboolean
tree_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
            double bytes[WEFT_MAX_WAYS])
{
  split (s, whole * 2, 1.0 / s->side[WEFT_WAY_LOCAL], bytes);
  if (s->side[WEFT_WAY_REMOTE] > 1)
    bytes[WEFT_WAY_REMOTE] = whole * weft_coll_tree_share (s) / s->side[WEFT_WAY_LOCAL];
  return kind == WEFT_OP_ALL_REDUCE && s->uniform;
}

static void
tree_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  (void) kind;
  steps[WEFT_WAY_LOCAL] = 2 * (s->side[WEFT_WAY_LOCAL] - 1);
  steps[WEFT_WAY_REMOTE] = weft_coll_tree_hops (s);
}

/* Shares of the rate of the links at which NCCL counts a tree in a node and over several nodes,
 * beside the flags of LL and LL128: 0.92; in LL 1 / 3.8 of it, where half of the bytes are flags;
 * in LL128 within a node 7 / 9 of it, where 120 of 128 bytes are data (src/graph/tuning.cc). */
static double
counted_rate (const struct weft_coll_shape *s, enum weft_protocol protocol)
{
  static const double shares[WEFT_N_PROTOCOL][2] = {
    [WEFT_PROTOCOL_SIMPLE] = { 0.92, 0.92 },
    [WEFT_PROTOCOL_LL] = { 0.92 * 2 / 3.8, 0.92 * 2 / 3.8 },
    [WEFT_PROTOCOL_LL128] = { 0.92 * 7 / 9 * 128 / 120, 0.92 },
  };

  return shares[protocol][s->side[WEFT_WAY_REMOTE] > 1];
}

/* The share of the rate of the links that the pipeline of a tree reaches for a tensor of 64 B,
 * 128 B, 256 B and so on: measured by the authors of NCCL (treeCorrectionFactor in
 * src/graph/tuning.cc since 2.8). */
static double
pipeline_share (enum weft_protocol protocol, double whole)
{
  static const double shares[WEFT_N_PROTOCOL][24] = {
    [WEFT_PROTOCOL_SIMPLE] = { .9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
                               .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, 1 },
    [WEFT_PROTOCOL_LL] = { 1,  1,  1,  1,  .9, .8, .7, .7, .7, .7, .6, .5,
                           .4, .4, .5, .6, .7, .8, .9, 1,  1,  1,  1,  1 },
    [WEFT_PROTOCOL_LL128] = { 1,  1,  1,  1,  1,  .9, .8, .8, .8, .7, .6, .6,
                              .6, .6, .6, .6, .8, .9, .9, .9, .9, 1,  1,  1 },
  };
  double size = whole >= 64 ? floor (log2 (whole / 64)) : 0;

  return size < 24 ? shares[protocol][(int) size] : 1;
}

/* Only NCCL's trees are known to fall short of the links: software without protocols has plain
 * trees. */
static void
adjust_tree (const struct weft_coll_shape *s, const union weft_stack *stack,
             enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
             struct weft_coll_terms *terms)
{
  (void) bytes;
  if (!stack || weft_cluster_is_cpu (s->cluster))
    return;
  /* The share includes the rate of the kernel in LL128. */
  terms->hidden = 0;
  terms->slow = 1 / pipeline_share (protocol, whole);
  terms->counted = 1 / counted_rate (s, protocol);
}

/* PAT (parallel aggregated trees): each rank sends the bytes of a ring, in log2 k steps. Requires
 * one rank per node. */
static gboolean
pat_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
           double bytes[WEFT_MAX_WAYS])
{
  enum weft_op_kind even = weft_op_even (kind);

  return (even == WEFT_OP_ALL_GATHER || even == WEFT_OP_REDUCE_SCATTER) && s->uniform &&
         s->side[WEFT_WAY_LOCAL] == 1 && ring_bytes (kind, s, whole, bytes);
}

static void
pat_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  (void) kind;
  steps[WEFT_WAY_LOCAL] = 0;
  steps[WEFT_WAY_REMOTE] = (uint32_t) ceil (log2 (s->side[WEFT_WAY_REMOTE]));
}

/* The host posts as many messages as for a ring, although a PAT collective takes fewer steps. NCCL
 * assumes 3/4 of the bandwidth of a ring (src/graph/tuning.cc). */
static void
adjust_pat (const struct weft_coll_shape *s, const union weft_stack *stack,
            enum weft_protocol protocol, double whole, const double bytes[WEFT_MAX_WAYS],
            struct weft_coll_terms *terms)
{
  (void) stack, (void) protocol, (void) whole;
  terms->base += 3 * s->n * s->cluster->f.fabric_post_latency;
  terms->least = bytes[WEFT_WAY_REMOTE] / (0.75 * s->cluster->f.node_nic_bandwidth);
}

/* Every rank sends an equal amount to each other rank of the group. */
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

#define CHOICE(id) .choices = 1u << WEFT_ALGORITHM_##id, .relays = TRUE
static const struct weft_coll_algorithm
    ring = { "ring", ring_bytes, ring_steps, adjust_ring, CHOICE (RING) },
    tree = { "tree", tree_bytes, tree_steps, adjust_tree,
             .choices = 1u << WEFT_ALGORITHM_TREE },
    pat = { "pat", pat_bytes, pat_steps, adjust_pat, CHOICE (PAT), .simple = TRUE },
    direct = { "direct", direct_bytes, direct_steps, .simple = TRUE };

static const struct weft_coll_algorithm *const *
algorithms (enum weft_op_kind kind, enum weft_coll_choice choice)
{
  static const struct weft_coll_algorithm
      *const quick[] = { &ring, &tree, &weft_coll_nvls, &pat, NULL },
      *const at_once[] = { &direct, NULL }, *const pinned[] = { &ring, NULL };

  if (weft_op_swaps (kind) || weft_coll_sums_at_owner (kind, choice))
    return at_once;
  return choice == WEFT_COLL_RING ? pinned : quick;
}

const struct weft_coll_style weft_coll_tiers = { outline, find_flows, algorithms };
