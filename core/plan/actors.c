#include "core/plan/actors.h"
#include "core/program/coll.h"
#include "core/base/mix.h"
#include <string.h>

struct colouring {
  const struct weft_fabric *f;
  const struct weft_mesh *m;
  uint32_t n_links;
  uint32_t *rank, n_rank; /* colour of each rank, colours */
  uint32_t *link, n_link; /* likewise of links */
  uint64_t *group;        /* [kind][first rank]: signature of the group's colours */
  uint64_t *place;        /* likewise, of how the group lies on the cluster; NULL: no matter */
  uint32_t *outlined;     /* [kind][first rank]: place in `outline`, counted from 1; 0: not there yet */
  GArray *outline;        /* struct weft_coll_shape, of groups that were looked at */
};

/* Which group a collective pattern belongs to; WEFT_GROUP_NONE for the others. */
static const struct {
  enum weft_group_kind group;
  gboolean remote;
} patterns[WEFT_N_PATTERN] = {
  [WEFT_PATTERN_DP_LOCAL] = { WEFT_GROUP_DP, FALSE },
  [WEFT_PATTERN_DP_REMOTE] = { WEFT_GROUP_DP, TRUE },
  [WEFT_PATTERN_TP_LOCAL] = { WEFT_GROUP_TP, FALSE },
  [WEFT_PATTERN_TP_REMOTE] = { WEFT_GROUP_TP, TRUE },
  [WEFT_PATTERN_CP_LOCAL] = { WEFT_GROUP_CP, FALSE },
  [WEFT_PATTERN_CP_REMOTE] = { WEFT_GROUP_CP, TRUE },
  [WEFT_PATTERN_CP_HEADS_LOCAL] = { WEFT_GROUP_CP_HEADS, FALSE },
  [WEFT_PATTERN_CP_HEADS_REMOTE] = { WEFT_GROUP_CP_HEADS, TRUE },
  [WEFT_PATTERN_CP_RING_LOCAL] = { WEFT_GROUP_CP_RING, FALSE },
  [WEFT_PATTERN_CP_RING_REMOTE] = { WEFT_GROUP_CP_RING, TRUE },
  [WEFT_PATTERN_EP_LOCAL] = { WEFT_GROUP_EP, FALSE },
  [WEFT_PATTERN_EP_REMOTE] = { WEFT_GROUP_EP, TRUE },
  [WEFT_PATTERN_TP_EP_LOCAL] = { WEFT_GROUP_TP_EP, FALSE },
  [WEFT_PATTERN_TP_EP_REMOTE] = { WEFT_GROUP_TP_EP, TRUE },
  [WEFT_PATTERN_ETP_LOCAL] = { WEFT_GROUP_ETP, FALSE },
  [WEFT_PATTERN_ETP_REMOTE] = { WEFT_GROUP_ETP, TRUE },
  [WEFT_PATTERN_ECP_LOCAL] = { WEFT_GROUP_ECP, FALSE },
  [WEFT_PATTERN_ECP_REMOTE] = { WEFT_GROUP_ECP, TRUE },
  [WEFT_PATTERN_EDP_LOCAL] = { WEFT_GROUP_EDP, FALSE },
  [WEFT_PATTERN_EDP_REMOTE] = { WEFT_GROUP_EDP, TRUE },
  [WEFT_PATTERN_EDP_INTRA_LOCAL] = { WEFT_GROUP_EDP_INTRA, FALSE },
  [WEFT_PATTERN_EDP_INTRA_REMOTE] = { WEFT_GROUP_EDP_INTRA, TRUE },
  [WEFT_PATTERN_EMBD_LOCAL] = { WEFT_GROUP_EMBD, FALSE },
  [WEFT_PATTERN_EMBD_REMOTE] = { WEFT_GROUP_EMBD, TRUE },
  [WEFT_PATTERN_INTRA_LOCAL] = { WEFT_GROUP_INTRA, FALSE },
  [WEFT_PATTERN_INTRA_REMOTE] = { WEFT_GROUP_INTRA, TRUE },
  [WEFT_PATTERN_INTER_LOCAL] = { WEFT_GROUP_INTER, FALSE },
  [WEFT_PATTERN_INTER_REMOTE] = { WEFT_GROUP_INTER, TRUE },
  [WEFT_PATTERN_OUTER_LOCAL] = { WEFT_GROUP_OUTER, FALSE },
  [WEFT_PATTERN_OUTER_REMOTE] = { WEFT_GROUP_OUTER, TRUE },
  [WEFT_PATTERN_MIRROR_LOCAL] = { WEFT_GROUP_MIRROR, FALSE },
  [WEFT_PATTERN_MIRROR_REMOTE] = { WEFT_GROUP_MIRROR, TRUE },
  [WEFT_PATTERN_STAGE_LOCAL] = { WEFT_GROUP_STAGE, FALSE },
  [WEFT_PATTERN_STAGE_REMOTE] = { WEFT_GROUP_STAGE, TRUE },
};

/* Likewise of patterns that go from each rank to its neighbour in a ring. */
static const struct {
  enum weft_group_kind group;
  gboolean back;
} rings[WEFT_N_PATTERN] = {
  [WEFT_PATTERN_CP_RING_NEXT] = { WEFT_GROUP_CP_RING, FALSE },
  [WEFT_PATTERN_CP_RING_BACK] = { WEFT_GROUP_CP_RING, TRUE },
  [WEFT_PATTERN_TP_RING_NEXT] = { WEFT_GROUP_TP, FALSE },
};

enum weft_pattern
weft_ring_pattern (enum weft_group_kind kind, gboolean back)
{
  for (int p = 0; p < WEFT_N_PATTERN; p++)
    if (rings[p].group == kind && rings[p].back == back)
      return p;
  g_assert_not_reached ();
}

enum weft_pattern
weft_group_pattern (enum weft_group_kind kind, gboolean remote)
{
  for (int p = 0; p < WEFT_N_PATTERN; p++)
    if (patterns[p].group == kind && patterns[p].remote == remote)
      return p;
  g_assert_not_reached ();
}

static uint64_t
mix2 (uint64_t a, uint64_t b)
{
  return weft_mix (weft_mix (a) ^ b);
}

/* Ranks of a large group may stand far apart, with those of its like between them.  Valid until the
 * next call. */
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
  g_assert (memcmp (&found->group, g, sizeof *g) == 0);
  return found;
}

/* The route of a pattern from a rank; FALSE when the rank sends nothing of the kind. */
static gboolean
collective_route (const struct colouring *c, enum weft_pattern p, uint32_t rank,
                  struct weft_route *route)
{
  enum weft_group_kind kind = patterns[p].group;
  struct weft_group g = weft_mesh_group (c->m, rank, kind);
  struct weft_flow flows[2];

  if (weft_group_size (&g) == 1 || !weft_mesh_has_role (c->m, kind, weft_mesh_stage (c->m, rank)))
    return FALSE;
  const struct weft_coll_shape *shape = outline_of (c, kind, &g);
  uint32_t n = weft_coll_flows (shape, c->f, weft_group_index (&g, rank), flows);
  for (uint32_t i = 0; i < n; i++)
    if (flows[i].remote == patterns[p].remote) {
      weft_fabric_route (c->f, flows[i].from, flows[i].to, route);
      return TRUE;
    }
  return FALSE;
}

/* To the neighbour in the ring. */
static gboolean
shift_route (const struct colouring *c, enum weft_pattern p, uint32_t rank,
             struct weft_route *route)
{
  struct weft_group g = weft_mesh_group (c->m, rank, rings[p].group);

  if (weft_group_size (&g) == 1)
    return FALSE;
  struct weft_flow flow = weft_coll_shift (&g, weft_group_index (&g, rank), rings[p].back);
  weft_fabric_route (c->f, flow.from, flow.to, route);
  return TRUE;
}

static gboolean
route_of (const struct colouring *c, enum weft_pattern p, uint32_t rank, struct weft_route *route)
{
  if (patterns[p].group != WEFT_GROUP_NONE)
    return collective_route (c, p, rank, route);
  if (rings[p].group != WEFT_GROUP_NONE)
    return shift_route (c, p, rank, route);
  if (p == WEFT_PATTERN_H2D || p == WEFT_PATTERN_D2H) {
    weft_fabric_host_route (c->f, rank, p == WEFT_PATTERN_H2D, route);
    return TRUE;
  }
  if (p == WEFT_PATTERN_HOST) {
    weft_fabric_memory_route (c->f, rank, route);
    return TRUE;
  }
  uint32_t peer = weft_mesh_beside (c->m, rank, p == WEFT_PATTERN_NEXT ? 1 : -1);
  if (peer == WEFT_NO_RANK)
    return FALSE;
  weft_fabric_route (c->f, rank, peer, route);
  return TRUE;
}

/* Dense colours 0, 1, 2 ... in the order signatures first appear; returns how many. */
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
    for (int p = 0; p < WEFT_N_PATTERN; p++) {
      struct weft_route route;
      if (route_of (c, p, rank, &route))
        for (uint32_t i = 0; i < route.n; i++)
          signature[route.link[i]] += mix2 (c->rank[rank], p);
    }
  c->n_link = renumber (signature, c->n_links, c->link);
}

static uint64_t
latency_bits (const struct weft_route *route)
{
  uint64_t bits;

  memcpy (&bits, &route->latency, sizeof bits);
  return bits;
}

/* A collective has one latency for all its flows, by how its group lies; that never changes.  Sums
 * over members do not depend on their order. */
static void
sign_places (struct colouring *c)
{
  c->place = g_new0 (uint64_t, (size_t) WEFT_N_GROUP * c->m->n_ranks);
  for (int p = 0; p < WEFT_N_PATTERN; p++)
    for (uint32_t rank = 0; rank < c->m->n_ranks; rank++) {
      enum weft_group_kind kind = patterns[p].group;
      struct weft_route route;
      if (kind == WEFT_GROUP_NONE || !collective_route (c, p, rank, &route))
        continue;
      struct weft_group g = weft_mesh_group (c->m, rank, kind);
      const struct weft_coll_shape *shape = outline_of (c, kind, &g);
      uint64_t how = (uint64_t) shape->n_local << 32 | shape->n_nodes << 1 | shape->uniform;
      c->place[(size_t) kind * c->m->n_ranks + shape->group.first] +=
          mix2 (mix2 (latency_bits (&route), how), p);
    }
}

/* A signature is a multiset of colours, beside the place. */
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

static uint64_t
rank_signature (const struct colouring *c, uint32_t rank)
{
  uint64_t h = weft_mix (c->rank[rank]);

  for (int kind = 0; kind < WEFT_N_GROUP; kind++)
    h = mix2 (h, group_signature (c, kind, rank));
  for (int by = -1; by <= 1; by += 2) {
    uint32_t peer = weft_mesh_beside (c->m, rank, by);
    h = mix2 (h, peer == WEFT_NO_RANK ? G_MAXUINT32 : c->rank[peer]);
  }
  for (int p = 0; p < WEFT_N_PATTERN; p++) {
    struct weft_route route;
    uint64_t sum = 0, latency = 0;
    if (route_of (c, p, rank, &route)) {
      if (patterns[p].group == WEFT_GROUP_NONE)
        latency = latency_bits (&route);
      for (uint32_t i = 0; i < route.n; i++)
        sum += weft_mix (c->link[route.link[i]]);
    }
    h = mix2 (mix2 (h, sum), latency);
  }
  return h;
}

static void
colour_ranks (struct colouring *c)
{
  g_autofree uint64_t *signature = g_new (uint64_t, c->m->n_ranks);

  sign_groups (c);
  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    signature[rank] = rank_signature (c, rank);
  c->n_rank = renumber (signature, c->m->n_ranks, c->rank);
}

/* All ranks and all links, or those of each kind alone, have a colour of their own. */
static void
start_colours (struct colouring *c, gboolean fold)
{
  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    c->rank[rank] = fold ? weft_mesh_stage (c->m, rank) : rank;
  for (uint32_t link = 0; link < c->n_links; link++)
    c->link[link] = fold ? weft_fabric_kind (c->f, link) : link;
  c->n_rank = fold ? c->m->pp : c->m->n_ranks;
  c->n_link = fold ? WEFT_N_LINK : c->n_links;
}

/* Where one odd node breaks the symmetry of a long ring a round moves it only one node on.  After
 * this many (ranks x rounds), seconds, all ranks are kept apart: that is exact as well. */
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
    colour_ranks (c);
    work += c->m->n_ranks;
  } while ((c->n_rank != ranks || c->n_link != links) && work < MOST_WORK);
  if (c->n_rank != ranks || c->n_link != links)
    start_colours (c, FALSE);
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

/* Groups of one kind with one signature behave alike and are one communicator.  Without folding
 * every rank has its own colour, so no two groups share a signature. */
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

/* How often flows of (actor, pattern) cross one link of a colour, counted on one of them. */
struct crossing {
  uint32_t colour, actor, pattern, times;
};

static GArray *
count_crossings (const weft_actors *a, const struct colouring *c, const uint32_t *representative)
{
  GArray *all = g_array_new (FALSE, FALSE, sizeof (struct crossing));
  g_autoptr (GHashTable) at = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);

  for (uint32_t rank = 0; rank < c->m->n_ranks; rank++)
    for (int p = 0; p < WEFT_N_PATTERN; p++) {
      struct weft_route route;
      if (!route_of (c, p, rank, &route))
        continue;
      for (uint32_t i = 0; i < route.n; i++) {
        uint32_t colour = c->link[route.link[i]], actor = a->actor_of[rank];
        if (representative[colour] != route.link[i])
          continue;
        int64_t key = ((int64_t) colour << 32 | actor) * WEFT_N_PATTERN + p;
        gpointer found = g_hash_table_lookup (at, &key);
        if (!found) {
          struct crossing first = { colour, actor, p, 0 };
          g_array_append_val (all, first);
          found = GUINT_TO_POINTER (all->len);
          g_hash_table_insert (at, g_memdup2 (&key, sizeof key), found);
        }
        g_array_index (all, struct crossing, GPOINTER_TO_UINT (found) - 1).times++;
      }
    }
  return all;
}

static void
fill_paths (weft_actors *a, const struct colouring *c)
{
  g_autofree uint32_t *representative = g_new (uint32_t, c->n_link + 1);
  g_autofree uint32_t *unit = g_new0 (uint32_t, c->n_link + 1);

  a->path = g_new0 (struct weft_path, (size_t) a->n * WEFT_N_PATTERN);
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
    a->capacity[colour] =
        weft_fabric_capacity (c->f, representative[colour]) / (unit[colour] ? unit[colour] : 1);
  for (guint i = 0; i < all->len; i++) {
    const struct crossing *x = &g_array_index (all, struct crossing, i);
    struct weft_path *path = &a->path[(size_t) x->actor * WEFT_N_PATTERN + x->pattern];
    uint32_t times = x->times / unit[x->colour];
    path->exists = TRUE;
    path->link = g_renew (uint32_t, path->link, path->n + times);
    for (uint32_t t = 0; t < times; t++)
      path->link[path->n++] = x->colour;
  }
}

weft_actors *
weft_actors_new (const struct weft_fabric *f, const struct weft_mesh *m, gboolean fold)
{
  weft_actors *a = g_new0 (weft_actors, 1);
  struct colouring c = { .f = f, .m = m, .n_links = f->first[WEFT_N_LINK] };

  c.rank = g_new (uint32_t, m->n_ranks);
  c.link = g_new (uint32_t, c.n_links + 1);
  c.group = g_new (uint64_t, (size_t) WEFT_N_GROUP * m->n_ranks);
  c.outlined = g_new0 (uint32_t, (size_t) WEFT_N_GROUP * m->n_ranks);
  c.outline = g_array_new (FALSE, FALSE, sizeof (struct weft_coll_shape));
  start_colours (&c, fold);
  if (fold)
    refine (&c);
  sign_groups (&c);
  fill_ranks (a, m, c.rank, c.n_rank);
  fill_comms (a, &c);
  fill_paths (a, &c);
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
  for (size_t i = 0; a->path && i < (size_t) a->n * WEFT_N_PATTERN; i++)
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
  g_free (a);
}
