#include "core/plan/actors.h"
#include "core/base/invariant.h"
#include "core/program/coll.h"
#include "core/base/mix.h"
#include "core/cluster/groups.h"
#include <string.h>

struct colouring {
  const struct weft_fabric *f;
  const struct weft_mesh *m;
  uint32_t n_links;
  uint32_t *rank, n_rank; /* colour of each rank; number of colours of ranks */
  uint32_t *link, n_link; /* colour of each link; number of colours of links */
  /* [kind][first rank]: signature of the colours of the group that begins at this rank */
  uint64_t *group;
  /* [kind][first rank]: signature of the group's placement on the cluster. NULL: placement is
   * ignored */
  uint64_t *place;
  /* [kind][first rank]: index in `outline` + 1 for the group that begins at this rank; 0: not
   * computed yet */
  uint32_t *outlined;
  /* array of struct weft_coll_shape: the groups that were computed so far */
  GArray *outline;
};

static const enum weft_group_kind moving[] = { WEFT_PATTERN_GROUPS };

/* Every group has WEFT_MAX_WAYS pattern numbers, one per way (class of flows) of the fabric. A
 * fabric with fewer ways uses only the first of them. */
static uint32_t
n_patterns (void)
{
  return WEFT_N_PATTERN + G_N_ELEMENTS (moving) * WEFT_MAX_WAYS;
}

static enum weft_group_kind
pattern_group (uint32_t p)
{
  return p < WEFT_N_PATTERN ? WEFT_GROUP_NONE : moving[(p - WEFT_N_PATTERN) / WEFT_MAX_WAYS];
}

uint32_t
weft_group_pattern (enum weft_group_kind kind, uint32_t way)
{
  for (uint32_t i = 0; i < G_N_ELEMENTS (moving); i++)
    if (moving[i] == kind)
      return WEFT_N_PATTERN + i * WEFT_MAX_WAYS + way;
  WEFT_UNREACHABLE ();
}

/* Patterns of flows in which each rank sends to its neighbour in a ring. */
static const struct {
  enum weft_group_kind group;
  gboolean back;
} rings[WEFT_N_PATTERN] = {
  [WEFT_PATTERN_CP_RING_NEXT] = { WEFT_GROUP_CP_RING, FALSE },
  [WEFT_PATTERN_CP_RING_BACK] = { WEFT_GROUP_CP_RING, TRUE },
  [WEFT_PATTERN_TP_RING_NEXT] = { WEFT_GROUP_TP, FALSE },
};

uint32_t
weft_ring_pattern (enum weft_group_kind kind, gboolean back)
{
  for (uint32_t p = 0; p < WEFT_N_PATTERN; p++)
    if (rings[p].group == kind && rings[p].back == back)
      return p;
  WEFT_UNREACHABLE ();
}

static uint64_t
mix2 (uint64_t a, uint64_t b)
{
  return weft_mix (weft_mix (a) ^ b);
}

/* Returns the placement of a group on the cluster from a cache. The pointer is valid until the next
 * call. */
static const struct weft_coll_shape *
outline_of (const struct colouring *c, enum weft_group_kind kind, const struct weft_group *g)
{
  uint32_t *place = &c->outlined[(size_t) kind * c->m->n_ranks + g->first];

  if (*place == 0) {
    struct weft_coll_shape shape;
    weft_coll_shape_outline (&shape, c->f, g);
    g_array_append_val (c->outline, shape);
    *place = c->outline->len;
  }
  const struct weft_coll_shape *found =
      &g_array_index (c->outline, struct weft_coll_shape, *place - 1);
  WEFT_INVARIANT (memcmp (&found->group, g, sizeof *g) == 0);
  return found;
}

/* Iterates over the routes of one rank: first the routes of enum weft_pattern (host copies, stages,
 * ring shifts), then the flows of the rank's groups. */
struct walk {
  const struct colouring *c;
  uint32_t rank;
  /* next pattern of enum weft_pattern, and next index in moving[], whose routes have not been
   * returned yet */
  uint32_t next, group;
  uint32_t n_flow, flow;
  struct weft_flow flows[WEFT_MAX_WAYS];
  uint32_t pattern; /* pattern that the current route belongs to */
  struct weft_route route;
};

static struct walk
walk_from (const struct colouring *c, uint32_t rank)
{
  return (struct walk){ .c = c, .rank = rank };
}

/* Sets the route from a rank to its neighbour in a ring. Returns FALSE if the group has a single
 * rank. */
static gboolean
shift_route (struct walk *w, uint32_t p)
{
  struct weft_group g = weft_mesh_group (w->c->m, w->rank, rings[p].group);

  if (weft_group_size (&g) == 1)
    return FALSE;
  struct weft_flow flow = weft_coll_shift (&g, weft_group_index (&g, w->rank), rings[p].back);
  weft_fabric_route (w->c->f, flow.from, flow.to, &w->route);
  return TRUE;
}

static gboolean
stage_route (struct walk *w, int by)
{
  uint32_t peer = weft_mesh_beside (w->c->m, w->rank, by);

  if (peer == WEFT_NO_RANK)
    return FALSE;
  weft_fabric_route (w->c->f, w->rank, peer, &w->route);
  return TRUE;
}

static gboolean
pattern_route (struct walk *w, uint32_t p)
{
  switch ((enum weft_pattern) p) {
  case WEFT_PATTERN_H2D:
  case WEFT_PATTERN_D2H:
    weft_fabric_host_route (w->c->f, w->rank, p == WEFT_PATTERN_H2D, &w->route);
    return TRUE;
  case WEFT_PATTERN_HOST:
    weft_fabric_memory_route (w->c->f, w->rank, &w->route);
    return TRUE;
  case WEFT_PATTERN_NEXT:
    return stage_route (w, 1);
  case WEFT_PATTERN_PREVIOUS:
    return stage_route (w, -1);
  default:
    return shift_route (w, p);
  }
}

/* Fills w->flows with the flows that the rank sends in a group's collectives. Returns their
 * number. */
static uint32_t
group_flows (struct walk *w, enum weft_group_kind kind)
{
  const struct weft_mesh *m = w->c->m;
  struct weft_group g = weft_mesh_group (m, w->rank, kind);

  if (weft_group_size (&g) == 1 || !weft_mesh_has_role (m, kind, weft_mesh_stage (m, w->rank)))
    return 0;
  return weft_coll_flows (outline_of (w->c, kind, &g), w->c->f, weft_group_index (&g, w->rank),
                          w->flows);
}

static gboolean
next_route (struct walk *w)
{
  while (w->next < WEFT_N_PATTERN) {
    w->pattern = w->next++;
    if (pattern_route (w, w->pattern))
      return TRUE;
  }
  while (w->flow == w->n_flow) {
    if (w->group == G_N_ELEMENTS (moving))
      return FALSE;
    w->n_flow = group_flows (w, moving[w->group++]);
    w->flow = 0;
  }
  const struct weft_flow *flow = &w->flows[w->flow++];
  w->pattern = weft_group_pattern (moving[w->group - 1], flow->way);
  weft_fabric_route_way (w->c->f, flow->from, flow->to, flow->way, &w->route);
  return TRUE;
}

/* Writes a colour for each signature to colour[]: equal signatures get equal colours, numbered 0,
 * 1, 2 ... in order of first appearance. Returns the number of colours. */
static uint32_t
renumber (const uint64_t *signature, uint32_t n, uint32_t *colour)
{
  g_autoptr (GHashTable) known = g_hash_table_new (g_int64_hash, g_int64_equal);

  for (uint32_t i = 0; i < n; i++) {
    gpointer found;
    if (!g_hash_table_lookup_extended (known, &signature[i], NULL, &found)) {
      found = GUINT_TO_POINTER (g_hash_table_size (known));
      g_hash_table_insert (known, (gpointer) (uintptr_t) &signature[i], found);
    }
    colour[i] = GPOINTER_TO_UINT (found);
  }
  return g_hash_table_size (known);
}

static void
colour_links (struct colouring *c)
{
  g_autofree uint64_t *signature = g_new (uint64_t, c->n_links + 1);

  for (uint32_t link = 0; link < c->n_links; link++)
    signature[link] = weft_mix (c->link[link]);
  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    for (struct walk w = walk_from (c, rank); next_route (&w);)
      for (uint32_t i = 0; i < w.route.n; i++)
        signature[w.route.link[i]] += mix2 (c->rank[rank], w.pattern);
  c->n_link = renumber (signature, c->n_links, c->link);
}

static uint64_t
latency_bits (const struct weft_route *route)
{
  uint64_t bits;

  memcpy (&bits, &route->latency, sizeof bits);
  return bits;
}

/* Hash of the placement of a group on the cluster. */
static uint64_t
shape_bits (const struct weft_coll_shape *shape)
{
  uint64_t bits = shape->uniform;

  for (int axis = 0; axis < WEFT_MAX_AXES; axis++)
    bits = mix2 (bits, (uint64_t) shape->side[axis] << 1 | shape->ring[axis]);
  return bits;
}

/* Adds a rank's part to the placement signatures of groups whose collectives carry only scalars.
 * With the stages inside, one replica may lie in one part of the network and another in two. */
static void
sign_replicas (struct colouring *c, uint32_t rank)
{
  static const enum weft_group_kind kinds[] = { WEFT_GROUP_MP, WEFT_GROUP_EMP,
                                                WEFT_GROUP_INSTANCE };
  struct walk w = walk_from (c, rank);

  for (unsigned k = 0; k < G_N_ELEMENTS (kinds); k++) {
    struct weft_group g = weft_mesh_group (c->m, rank, kinds[k]);
    uint32_t n = group_flows (&w, kinds[k]);
    for (uint32_t i = 0; i < n; i++) {
      const struct weft_flow *flow = &w.flows[i];
      uint64_t how = shape_bits (outline_of (c, kinds[k], &g));
      weft_fabric_route_way (c->f, flow->from, flow->to, flow->way, &w.route);
      c->place[(size_t) kinds[k] * c->m->n_ranks + g.first] +=
          mix2 (mix2 (latency_bits (&w.route), how), flow->way);
    }
  }
}

/* Computes the placement signature of every group once, because placements, which decide the
 * latency of collectives, do not change during refinement. A signature is a sum over the members,
 * so the order of the members does not matter. */
static void
sign_places (struct colouring *c)
{
  c->place = g_new0 (uint64_t, (size_t) WEFT_N_GROUP * c->m->n_ranks);
  for (uint32_t rank = 0; rank < c->m->n_ranks && c->m->stages_inside; rank++)
    sign_replicas (c, rank);
  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    for (struct walk w = walk_from (c, rank); next_route (&w);) {
      enum weft_group_kind kind = pattern_group (w.pattern);
      if (kind == WEFT_GROUP_NONE)
        continue;
      struct weft_group g = weft_mesh_group (c->m, rank, kind);
      uint64_t how = shape_bits (outline_of (c, kind, &g));
      c->place[(size_t) kind * c->m->n_ranks + g.first] +=
          mix2 (mix2 (latency_bits (&w.route), how), w.pattern);
    }
}

/* The signature of a group: a hash of its members' colours in any order, and of its placement. */
static void
sign_groups (struct colouring *c)
{
  size_t n = (size_t) WEFT_N_GROUP * c->m->n_ranks;

  if (c->place)
    memcpy (c->group, c->place, n * sizeof *c->group);
  else
    memset (c->group, 0, n * sizeof *c->group);
  for (int kind = 0; kind < WEFT_N_GROUP; kind++)
    for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
      if (weft_mesh_has_role (c->m, kind, weft_mesh_stage (c->m, rank))) {
        struct weft_group g = weft_mesh_group (c->m, rank, kind);
        c->group[(size_t) kind * c->m->n_ranks + g.first] += mix2 (c->rank[rank], kind);
      }
}

static uint64_t
group_signature (const struct colouring *c, int kind, uint32_t rank)
{
  struct weft_group g = weft_mesh_group (c->m, rank, kind);
  return c->group[(size_t) kind * c->m->n_ranks + g.first];
}

/* The part of a rank's signature that its groups and its neighbours in the pipeline decide. */
static uint64_t
peers_signature (const struct colouring *c, uint32_t rank)
{
  uint64_t h = weft_mix (c->rank[rank]);

  for (int kind = 0; kind < WEFT_N_GROUP; kind++)
    h = mix2 (h, group_signature (c, kind, rank));
  for (int by = -1; by <= 1; by += 2) {
    uint32_t peer = weft_mesh_beside (c->m, rank, by);
    h = mix2 (h, peer == WEFT_NO_RANK ? G_MAXUINT32 : c->rank[peer]);
  }
  return h;
}

static uint64_t
rank_signature (const struct colouring *c, uint32_t rank)
{
  uint64_t h = peers_signature (c, rank);

  for (struct walk w = walk_from (c, rank); next_route (&w);) {
    gboolean of_group = pattern_group (w.pattern) != WEFT_GROUP_NONE;
    uint64_t sum = 0, latency = of_group ? 0 : latency_bits (&w.route);
    for (uint32_t i = 0; i < w.route.n; i++)
      sum += weft_mix (c->link[w.route.link[i]]);
    h = mix2 (mix2 (mix2 (h, w.pattern), sum), latency);
  }
  return h;
}

static void
colour_ranks (struct colouring *c, uint64_t (*sign) (const struct colouring *, uint32_t))
{
  g_autofree uint64_t *signature = g_new (uint64_t, c->m->n_ranks);

  sign_groups (c);
  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    signature[rank] = sign (c, rank);
  c->n_rank = renumber (signature, c->m->n_ranks, c->rank);
}

/* Gives links of one kind with different capacities different colours. */
static void
split_by_capacity (struct colouring *c)
{
  g_autofree uint64_t *signature = g_new (uint64_t, c->n_links + 1);

  for (uint32_t link = 0; link < c->n_links; link++) {
    double capacity = weft_fabric_capacity (c->f, link);
    uint64_t bits;
    memcpy (&bits, &capacity, sizeof bits);
    signature[link] = mix2 (c->link[link], bits);
  }
  c->n_link = renumber (signature, c->n_links, c->link);
}

/* Gives ranks of one stage on nodes of different kinds different colours. */
static void
split_by_node (struct colouring *c)
{
  g_autofree uint64_t *signature = g_new (uint64_t, c->m->n_ranks);

  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    signature[rank] = mix2 (c->rank[rank], weft_cluster_kind_of (c->f->cluster, rank));
  c->n_rank = renumber (signature, c->m->n_ranks, c->rank);
}

/* Sets the first colours of the refinement. `fold` TRUE: ranks of one stage have one colour, and
 * links of one kind have one colour. FALSE: every rank and every link has its own colour. */
static void
start_colours (struct colouring *c, gboolean fold)
{
  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    c->rank[rank] = fold ? weft_mesh_stage (c->m, rank) : rank;
  for (uint32_t link = 0; link < c->n_links; link++)
    c->link[link] = fold ? weft_fabric_kind (c->f, link) : link;
  c->n_rank = fold ? c->m->pp : c->m->n_ranks;
  c->n_link = fold ? c->f->ops->n_kind : c->n_links;
  if (fold && c->f->uneven)
    split_by_capacity (c);
  if (fold && weft_cluster_is_mixed (c->f->cluster))
    split_by_node (c);
}

/* Limit of ranks x rounds of the refinement: reaching the limit takes seconds. If one odd node
 * breaks the symmetry of a long ring, each round spreads the asymmetry by only one node. Beyond the
 * limit every rank gets its own colour, which is exact too. */
enum { MOST_WORK = 1 << 22 };

static void
refine (struct colouring *c)
{
  uint32_t ranks, links;
  uint64_t work = 0;

  sign_places (c);
  do {
    ranks = c->n_rank;
    links = c->n_link;
    colour_links (c);
    colour_ranks (c, rank_signature);
    work += c->m->n_ranks;
  } while ((c->n_rank != ranks || c->n_link != links) && work < MOST_WORK);
  if (c->n_rank != ranks || c->n_link != links)
    start_colours (c, FALSE);
}

/* Splits colours[0..n) so that members of a colour have the same factor. Returns the number of
 * colours. */
static uint32_t
split_by_factor (uint32_t *colour, const double *factor, uint32_t n)
{
  g_autofree uint64_t *signature = g_new (uint64_t, n + 1);

  for (uint32_t i = 0; i < n; i++) {
    uint64_t bits;
    memcpy (&bits, &factor[i], sizeof bits);
    signature[i] = mix2 (colour[i], bits);
  }
  return renumber (signature, n, colour);
}

/* Splits colours of ranks until groups and pipelines of equally coloured ranks are equally
 * coloured. Links are not considered. */
static void
settle_peers (struct colouring *c)
{
  uint32_t ranks;

  do {
    ranks = c->n_rank;
    colour_ranks (c, peers_signature);
  } while (c->n_rank != ranks);
}

/* Continues a finished refinement after a disturbance. Each round carries the asymmetry over the
 * links of one more flow. `before` receives the colours of ranks before the last round. Returns
 * whether the last round split no colour. */
static gboolean
refine_uneven (struct colouring *c, const struct weft_uneven *uneven, uint32_t *before)
{
  uint32_t ranks, links;

  if (uneven->slow)
    c->n_rank = split_by_factor (c->rank, uneven->slow, c->m->n_ranks);
  if (uneven->share)
    c->n_link = split_by_factor (c->link, uneven->share, c->n_links);
  settle_peers (c);
  for (uint32_t round = 0; round < uneven->rounds; round++) {
    ranks = c->n_rank;
    links = c->n_link;
    memcpy (before, c->rank, c->m->n_ranks * sizeof *before);
    colour_links (c);
    colour_ranks (c, rank_signature);
    settle_peers (c);
    if (c->n_rank == ranks && c->n_link == links)
      return TRUE;
  }
  /* Links of one colour must be crossed by flows of the same colours, as fill_paths() counts
   * them. */
  colour_links (c);
  return FALSE;
}

static void
fill_ranks (weft_actors *a, const struct weft_mesh *m, const uint32_t *colour, uint32_t n)
{
  a->n = n;
  a->actor_of = g_memdup2 (colour, m->n_ranks * sizeof *colour);
  a->rank = g_new (uint32_t, n);
  a->role = g_new (uint32_t, n);
  a->stands_for = g_new0 (uint32_t, n);
  for (uint32_t rank = m->n_ranks; rank-- > 0;) {
    a->rank[colour[rank]] = rank;
    a->stands_for[colour[rank]]++;
  }
  for (uint32_t i = 0; i < n; i++)
    a->role[i] = weft_mesh_stage (m, a->rank[i]);
  a->folded = n < m->n_ranks;
  a->peer = g_new (uint32_t, (size_t) n * 2);
  for (uint32_t i = 0; i < 2 * n; i++) {
    uint32_t peer = weft_mesh_beside (m, a->rank[i / 2], i % 2 ? -1 : 1);
    a->peer[i] = peer == WEFT_NO_RANK ? WEFT_NO_ACTOR : colour[peer];
  }
}

static struct weft_comm
make_comm (const weft_actors *a, const struct weft_mesh *m, enum weft_group_kind kind,
           uint32_t rank)
{
  struct weft_group g = weft_mesh_group (m, rank, kind);
  uint32_t size = weft_group_size (&g);
  struct weft_comm comm = { .kind = kind,
                            .rank = rank,
                            .actor = g_new (uint32_t, MIN (size, a->n)) };
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);

  for (uint32_t i = 0; i < size; i++) {
    uint32_t actor = a->actor_of[weft_group_rank (&g, i)];
    if (g_hash_table_add (seen, GUINT_TO_POINTER (actor + 1)))
      comm.actor[comm.n_actor++] = actor;
  }
  return comm;
}

/* Makes the communicators of the simulation. Groups of the same kind and signature behave alike and
 * share a communicator. Without folding every rank has its own colour, so no two groups share a
 * signature. */
static void
fill_comms (weft_actors *a, const struct colouring *c)
{
  GArray *comms = g_array_new (FALSE, FALSE, sizeof (struct weft_comm));
  g_autoptr (GHashTable) known = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);

  a->comm_of = g_new (uint32_t, (size_t) a->n * WEFT_N_GROUP);
  for (uint32_t i = 0; i < a->n; i++)
    for (int kind = 0; kind < WEFT_N_GROUP; kind++) {
      uint32_t *comm = &a->comm_of[(size_t) i * WEFT_N_GROUP + kind];
      uint64_t key = mix2 (group_signature (c, kind, a->rank[i]), kind);
      gpointer found;
      *comm = WEFT_NO_ACTOR;
      if (!weft_mesh_has_role (c->m, kind, a->role[i]))
        continue;
      if (!g_hash_table_lookup_extended (known, &key, NULL, &found)) {
        struct weft_comm made = make_comm (a, c->m, kind, a->rank[i]);
        found = GUINT_TO_POINTER (comms->len);
        g_array_append_val (comms, made);
        g_hash_table_insert (known, g_memdup2 (&key, sizeof key), found);
      }
      *comm = GPOINTER_TO_UINT (found);
    }
  a->n_comm = comms->len;
  a->comm = (struct weft_comm *) (void *) g_array_free (comms, FALSE);
}

static uint32_t
gcd (uint32_t a, uint32_t b)
{
  return b ? gcd (b, a % b) : a;
}

/* How often the flows of one actor in one traffic pattern cross a link of one colour. Links of a
 * colour are crossed equally often, so only the first of them is counted. */
struct crossing {
  uint32_t colour, actor, pattern, times;
};

struct crossings {
  GArray *all;
  GHashTable *at; /* maps (colour, actor, pattern) to its index in `all` + 1 */
};

static void
count_crossing (struct crossings *x, uint32_t colour, uint32_t actor, uint32_t pattern)
{
  int64_t key = ((int64_t) colour << 32 | actor) * n_patterns () + pattern;
  gpointer found = g_hash_table_lookup (x->at, &key);

  if (!found) {
    struct crossing first = { colour, actor, pattern, 0 };
    g_array_append_val (x->all, first);
    found = GUINT_TO_POINTER (x->all->len);
    g_hash_table_insert (x->at, g_memdup2 (&key, sizeof key), found);
  }
  g_array_index (x->all, struct crossing, GPOINTER_TO_UINT (found) - 1).times++;
}

static GArray *
count_crossings (const weft_actors *a, const struct colouring *c, const uint32_t *representative)
{
  g_autoptr (GHashTable) at = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);
  struct crossings x = { g_array_new (FALSE, FALSE, sizeof (struct crossing)), at };

  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    for (struct walk w = walk_from (c, rank); next_route (&w);)
      for (uint32_t i = 0; i < w.route.n; i++) {
        uint32_t colour = c->link[w.route.link[i]];
        if (representative[colour] == w.route.link[i])
          count_crossing (&x, colour, a->actor_of[rank], w.pattern);
      }
  return x.all;
}

static void
fill_paths (weft_actors *a, const struct colouring *c, const double *share)
{
  g_autofree uint32_t *representative = g_new (uint32_t, c->n_link + 1);
  g_autofree uint32_t *unit = g_new0 (uint32_t, c->n_link + 1);

  a->n_pattern = n_patterns ();
  a->path = g_new0 (struct weft_path, (size_t) a->n * a->n_pattern);
  a->n_link = c->n_link;
  a->capacity = g_new0 (double, c->n_link + 1);
  for (uint32_t link = c->n_links; link-- > 0;)
    representative[c->link[link]] = link;
  g_autoptr (GArray) all = count_crossings (a, c, representative);
  for (guint i = 0; i < all->len; i++) {
    const struct crossing *x = &g_array_index (all, struct crossing, i);
    unit[x->colour] = gcd (unit[x->colour], x->times);
  }
  for (uint32_t colour = 0; colour < c->n_link; colour++)
    a->capacity[colour] = weft_fabric_capacity (c->f, representative[colour]) *
                          (share ? share[representative[colour]] : 1) /
                          (unit[colour] ? unit[colour] : 1);
  for (guint i = 0; i < all->len; i++) {
    const struct crossing *x = &g_array_index (all, struct crossing, i);
    struct weft_path *path = &a->path[(size_t) x->actor * a->n_pattern + x->pattern];
    uint32_t times = x->times / unit[x->colour];
    path->exists = TRUE;
    path->link = g_renew (uint32_t, path->link, path->n + times);
    for (uint32_t t = 0; t < times; t++)
      path->link[path->n++] = x->colour;
  }
}

/* Sets a->like from the colours of ranks before the last round of the refinement. */
static void
fill_like (weft_actors *a, const uint32_t *before)
{
  a->like = g_new (uint32_t, a->n + 1);
  for (uint32_t i = 0; i < a->n; i++)
    a->like[i] = before[a->rank[i]];
}

weft_actors *
weft_actors_new (const struct weft_fabric *f, const struct weft_mesh *m, gboolean fold)
{
  return weft_actors_new_uneven (f, m, fold, &(struct weft_uneven){ 0 });
}

weft_actors *
weft_actors_new_uneven (const struct weft_fabric *f, const struct weft_mesh *m, gboolean fold,
                        const struct weft_uneven *uneven)
{
  weft_actors *a = g_new0 (weft_actors, 1);
  g_autofree uint32_t *before = NULL;
  struct colouring c = { .f = f, .m = m, .n_links = weft_fabric_links (f) };

  c.rank = g_new (uint32_t, m->n_ranks);
  c.link = g_new (uint32_t, c.n_links + 1);
  c.group = g_new (uint64_t, (size_t) WEFT_N_GROUP * m->n_ranks);
  c.outlined = g_new0 (uint32_t, (size_t) WEFT_N_GROUP * m->n_ranks);
  c.outline = g_array_new (FALSE, FALSE, sizeof (struct weft_coll_shape));
  start_colours (&c, fold);
  if (fold)
    refine (&c);
  if (uneven->rounds && c.n_rank < m->n_ranks) {
    before = g_new (uint32_t, m->n_ranks);
    if (refine_uneven (&c, uneven, before))
      g_clear_pointer (&before, g_free);
  }
  sign_groups (&c);
  fill_ranks (a, m, c.rank, c.n_rank);
  if (before)
    fill_like (a, before);
  fill_comms (a, &c);
  fill_paths (a, &c, uneven->share);
  g_free (c.outlined);
  g_array_unref (c.outline);
  g_free (c.place);
  g_free (c.rank);
  g_free (c.link);
  g_free (c.group);
  return a;
}

weft_actors *
weft_actors_new_roles (const struct weft_mesh *m)
{
  weft_actors *a = g_new0 (weft_actors, 1);
  struct colouring c = { .m = m, .n_rank = m->pp };

  c.rank = g_new (uint32_t, m->n_ranks);
  c.group = g_new (uint64_t, (size_t) WEFT_N_GROUP * m->n_ranks);
  for (uint32_t rank = 0; rank < m->n_ranks; rank++)
    c.rank[rank] = weft_mesh_stage (m, rank);
  sign_groups (&c);
  fill_ranks (a, m, c.rank, c.n_rank);
  fill_comms (a, &c);
  g_free (c.rank);
  g_free (c.group);
  return a;
}

void
weft_actors_free (weft_actors *a)
{
  for (uint32_t i = 0; i < a->n_comm; i++)
    g_free (a->comm[i].actor);
  for (size_t i = 0; a->path && i < (size_t) a->n * a->n_pattern; i++)
    g_free (a->path[i].link);
  g_free (a->path);
  g_free (a->comm);
  g_free (a->rank);
  g_free (a->role);
  g_free (a->stands_for);
  g_free (a->actor_of);
  g_free (a->comm_of);
  g_free (a->peer);
  g_free (a->capacity);
  g_free (a->like);
  g_free (a);
}
