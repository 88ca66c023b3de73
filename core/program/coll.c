#include "core/program/coll.h"
#include "core/program/program.h"
#include <math.h>

static uint32_t
node_of (const struct weft_fabric *f, const struct weft_group *g, uint32_t member)
{
  return weft_fabric_node (f, weft_group_rank (g, member));
}

/* Members are numbered along the cluster, so a uniform group is k blocks of g. */
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

struct weft_flow
weft_coll_shift (const struct weft_group *g, uint32_t member, gboolean back)
{
  uint32_t n = weft_group_size (g), to = (member + (back ? n - 1 : 1)) % n;

  return (struct weft_flow){ weft_group_rank (g, member), weft_group_rank (g, to), FALSE };
}

uint32_t
weft_coll_flows (const struct weft_coll_shape *shape, const struct weft_fabric *f, uint32_t member,
                 struct weft_flow flows[2])
{
  const struct weft_group *g = &shape->group;
  uint32_t from = weft_group_rank (g, member), n = 0;

  if (!shape->uniform) {
    uint32_t to = weft_group_rank (g, (member + 1) % shape->n);
    flows[0] =
        (struct weft_flow){ from, to, weft_fabric_node (f, from) != weft_fabric_node (f, to) };
    return 1;
  }
  uint32_t block = member / shape->n_local * shape->n_local;
  if (shape->n_local > 1)
    flows[n++] = (struct weft_flow){
      from, weft_group_rank (g, block + (member - block + 1) % shape->n_local), FALSE
    };
  if (shape->n_nodes > 1)
    flows[n++] =
        (struct weft_flow){ from, weft_group_rank (g, (member + shape->n_local) % shape->n), TRUE };
  return n;
}

static void
add_load (GArray *loads, const struct weft_load *load)
{
  for (guint i = 0; i < loads->len; i++) {
    const struct weft_load *l = &g_array_index (loads, struct weft_load, i);
    if (l->local == load->local && l->remote == load->remote && l->capacity == load->capacity)
      return;
  }
  g_array_append_vals (loads, load, 1);
}

static gboolean
add_distinct (gpointer key, gpointer value, gpointer loads)
{
  (void) key;
  add_load (loads, value);
  return TRUE;
}

static void
count_flow (const struct weft_fabric *f, const struct weft_flow *flow, double *latency,
            GHashTable *by_link)
{
  struct weft_route route;

  weft_fabric_route (f, flow->from, flow->to, &route);
  *latency = fmax (*latency, route.latency);
  for (uint32_t i = 0; i < route.n; i++) {
    gpointer key = GUINT_TO_POINTER (route.link[i] + 1);
    struct weft_load *load = g_hash_table_lookup (by_link, key);
    if (!load) {
      load = g_new0 (struct weft_load, 1);
      load->capacity = weft_fabric_capacity (f, route.link[i]);
      g_hash_table_insert (by_link, key, load);
    }
    (*(flow->remote ? &load->remote : &load->local))++;
  }
}

static struct weft_load *
take_loads (GHashTable *by_link, uint32_t *n)
{
  GArray *loads = g_array_new (FALSE, FALSE, sizeof (struct weft_load));

  g_hash_table_foreach_remove (by_link, add_distinct, loads);
  *n = loads->len;
  return (struct weft_load *) (void *) g_array_free (loads, FALSE);
}

static void
find_loads (struct weft_coll_shape *shape, const struct weft_fabric *f)
{
  g_autoptr (GHashTable) by_link = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  g_autoptr (GHashTable) next = g_hash_table_new_full (NULL, NULL, NULL, g_free);

  for (uint32_t i = 0; i < shape->n && shape->n > 1; i++) {
    struct weft_flow flows[2], shift = weft_coll_shift (&shape->group, i, FALSE);
    uint32_t n = weft_coll_flows (shape, f, i, flows);
    for (uint32_t j = 0; j < n; j++)
      count_flow (f, &flows[j], flows[j].remote ? &shape->remote_latency : &shape->local_latency,
                  by_link);
    count_flow (f, &shift, &shape->next_latency, next);
  }
  shape->load = take_loads (by_link, &shape->n_load);
  shape->next = take_loads (next, &shape->n_next);
}

void
weft_coll_shape_outline (struct weft_coll_shape *shape, const struct weft_fabric *f,
                         const struct weft_group *group)
{
  uint32_t n = weft_group_size (group), n_local = 1;

  while (n_local < n && node_of (f, group, n_local) == node_of (f, group, 0))
    n_local++;
  *shape = (struct weft_coll_shape){ .group = *group, .n = n, .n_local = n_local };
  shape->uniform = is_uniform (f, group, n, n_local);
  shape->n_nodes = shape->uniform ? n / n_local : 0;
  for (uint32_t i = 0; i < n && !shape->uniform; i++)
    shape->n_nodes += i == 0 || node_of (f, group, i) != node_of (f, group, i - 1);
}

void
weft_coll_shape_init (struct weft_coll_shape *shape, const struct weft_fabric *f,
                      const struct weft_group *group)
{
  weft_coll_shape_outline (shape, f, group);
  find_loads (shape, f);
}

void
weft_coll_shape_release (struct weft_coll_shape *shape)
{
  g_free (shape->load);
  g_free (shape->next);
  *shape = (struct weft_coll_shape){ 0 };
}

/* Bytes (as a share of S) and steps of the algorithms, for n ranks on k nodes of g. */
struct algorithm {
  const char *name;
  double (*share) (enum weft_op_kind kind, const struct weft_coll_shape *s);
  void (*steps) (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t *local,
                 uint32_t *remote);
};

static double
ring_share (enum weft_op_kind kind, const struct weft_coll_shape *s)
{
  double n = s->n;
  switch (weft_op_even (kind)) {
  case WEFT_OP_ALL_REDUCE:
    return 2 * (n - 1) / n;
  case WEFT_OP_REDUCE_SCATTER:
  case WEFT_OP_ALL_GATHER:
    return (n - 1) / n;
  case WEFT_OP_BROADCAST:
    return 1;
  default:
    return -1;
  }
}

static void
ring_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t *local,
            uint32_t *remote)
{
  uint32_t rounds = kind == WEFT_OP_ALL_REDUCE ? 2 : 1;

  *remote = rounds * (s->n_nodes - 1);
  *local = rounds * (s->n - 1) - *remote;
}

/* A node sends S up and S down, halved over two trees and doubled by two children: 2 S. */
static double
tree_share (enum weft_op_kind kind, const struct weft_coll_shape *s)
{
  return kind == WEFT_OP_ALL_REDUCE && s->uniform ? 2 : -1;
}

static void
tree_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t *local,
            uint32_t *remote)
{
  (void) kind;
  *local = 2 * (s->n_local - 1);
  *remote = s->n_nodes > 1 ? 2 * (uint32_t) ceil (log2 (s->n_nodes)) : 0;
}

static double
direct_share (enum weft_op_kind kind, const struct weft_coll_shape *s)
{
  return weft_op_swaps (kind) ? (s->n - 1.0) / s->n : ring_share (kind, s);
}

static void
direct_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t *local,
              uint32_t *remote)
{
  uint32_t phases = kind == WEFT_OP_ALL_REDUCE ? 2 : 1;

  *local = s->n_nodes == 1 ? phases : 0;
  *remote = s->n_nodes > 1 ? phases : 0;
}

static const struct algorithm ring = { "ring", ring_share, ring_steps },
                              tree = { "tree", tree_share, tree_steps },
                              direct = { "direct", direct_share, direct_steps };

/* What may be chosen from, NULL-terminated. */
static const struct algorithm *const *
algorithms_for (enum weft_op_kind kind, enum weft_coll_choice choice)
{
  static const struct algorithm *const quick[] = { &ring, &tree, NULL },
                                       *const at_once[] = { &direct, NULL },
                                       *const pinned[] = { &ring, NULL };
  gboolean sums = choice == WEFT_COLL_CANONICAL && kind != WEFT_OP_BROADCAST;

  return weft_op_swaps (kind) || sums ? at_once : choice == WEFT_COLL_RING ? pinned : quick;
}

/* Of what a rank sends, the share that leaves its node; -1 where it has one flow, of one kind.
 * Directly everyone sends as much to each of the others; rings leave a node once. */
static double
remote_part (const struct algorithm *a, const struct weft_coll_shape *s)
{
  if (!s->uniform || s->n_nodes == 1)
    return -1;
  if (a == &direct)
    return (double) (s->n - s->n_local) / (s->n - 1);
  return 1.0 / s->n_local;
}

static struct weft_traffic
plan_with (const struct algorithm *a, const struct weft_coll_shape *s, enum weft_op_kind kind,
           double bytes, double base)
{
  double total = bytes > WEFT_COLL_SCALAR_BYTES ? bytes * a->share (kind, s) : 0, longest = 0;
  double remote = remote_part (a, s);
  struct weft_traffic t = { .algorithm = a->name,
                            .bytes_local = round (remote < 0 ? total : total * (1 - remote)),
                            .bytes_remote = round (remote < 0 ? total : total * remote) };

  a->steps (kind, s, &t.steps_local, &t.steps_remote);
  t.latency = base + t.steps_local * s->local_latency + t.steps_remote * s->remote_latency;
  for (uint32_t i = 0; i < s->n_load; i++)
    longest =
        fmax (longest, (s->load[i].local * t.bytes_local + s->load[i].remote * t.bytes_remote) /
                           s->load[i].capacity);
  t.seconds = t.latency + longest;
  return t;
}

static struct weft_traffic
plan_shift (const struct weft_coll_shape *s, double bytes, double base)
{
  struct weft_traffic t = {
    .algorithm = "shift", .bytes_local = bytes, .steps_local = 1, .latency = base + s->next_latency
  };
  double longest = 0;

  for (uint32_t i = 0; i < s->n_next; i++)
    longest = fmax (longest, s->next[i].local * bytes / s->next[i].capacity);
  t.seconds = t.latency + longest;
  return t;
}

struct weft_traffic
weft_coll_plan (const struct weft_coll_shape *s, enum weft_op_kind kind, double bytes, double base,
                enum weft_coll_choice choice)
{
  struct weft_traffic best = { .algorithm = "none", .seconds = INFINITY };

  if (s->n == 1)
    return (struct weft_traffic){ .algorithm = "none" };
  if (kind == WEFT_OP_SHIFT)
    return plan_shift (s, bytes, base);
  for (const struct algorithm *const *a = algorithms_for (kind, choice); *a; a++)
    if ((*a)->share (kind, s) >= 0) {
      struct weft_traffic t = plan_with (*a, s, kind, bytes, base);
      if (t.seconds < best.seconds)
        best = t;
    }
  return best;
}

/* Reduce-scatter: in round r rank i passes on piece i - r - 1, which ends, summed, at its owner.
 * All-gather: in round r rank i passes on piece i - r. */
static void
ring_phase (GArray *moves, uint32_t n, uint32_t first_round, gboolean reduce)
{
  for (uint32_t r = 0; r + 1 < n; r++)
    for (uint32_t i = 0; i < n; i++) {
      uint32_t piece = (i + 2 * n - r - (reduce ? 1 : 0)) % n;
      struct weft_move move = { first_round + r, i, (i + 1) % n, piece, reduce };
      g_array_append_val (moves, move);
    }
}

/* From one member to the next: the whole tensor, as all its pieces. */
static void
chain_phase (GArray *moves, uint32_t n)
{
  for (uint32_t r = 0; r + 1 < n; r++)
    for (uint32_t piece = 0; piece < n; piece++) {
      struct weft_move move = { r, r, r + 1, piece, FALSE };
      g_array_append_val (moves, move);
    }
}

/* Owners first: their moves stand together. */
static void
direct_phase (GArray *moves, uint32_t n, uint32_t round, gboolean reduce)
{
  for (uint32_t to = 0; to < n; to++)
    for (uint32_t from = 0; from < n; from++)
      if (from != to) {
        struct weft_move move = { round, from, to, reduce ? to : from, reduce };
        g_array_append_val (moves, move);
      }
}

GArray *
weft_coll_shift_moves (uint32_t n, uint32_t distance)
{
  GArray *moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));

  for (uint32_t i = 0; i < n; i++) {
    struct weft_move move = { 0, i, (i + distance) % n, 0, FALSE };
    g_array_append_val (moves, move);
  }
  return moves;
}

GArray *
weft_coll_ring_moves (enum weft_op_kind kind, uint32_t n)
{
  GArray *moves;

  if (kind != weft_op_even (kind))
    return weft_coll_direct_moves (kind, n);
  moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_REDUCE_SCATTER)
    ring_phase (moves, n, 0, TRUE);
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_ALL_GATHER)
    ring_phase (moves, n, kind == WEFT_OP_ALL_REDUCE ? n - 1 : 0, FALSE);
  if (kind == WEFT_OP_BROADCAST)
    chain_phase (moves, n);
  if (weft_op_swaps (kind))
    direct_phase (moves, n, 0, FALSE);
  return moves;
}

GArray *
weft_coll_direct_moves (enum weft_op_kind kind, uint32_t n)
{
  GArray *moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));

  kind = weft_op_even (kind);
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_REDUCE_SCATTER)
    direct_phase (moves, n, 0, TRUE);
  if (kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_ALL_GATHER)
    direct_phase (moves, n, kind == WEFT_OP_ALL_REDUCE, FALSE);
  if (kind == WEFT_OP_BROADCAST)
    chain_phase (moves, n);
  if (weft_op_swaps (kind))
    direct_phase (moves, n, 0, FALSE);
  return moves;
}

static gint
compare_moves (gconstpointer a, gconstpointer b)
{
  const struct weft_move *m = a, *n = b;

  if (m->round != n->round)
    return m->round < n->round ? -1 : 1;
  if (m->to != n->to)
    return m->to < n->to ? -1 : 1;
  return m->from < n->from ? -1 : m->from > n->from;
}

GArray *
weft_coll_moves (const struct weft_op *op, uint32_t n, enum weft_coll_choice choice)
{
  GArray *moves = op->kind == WEFT_OP_SHIFT       ? weft_coll_shift_moves (n, MAX (op->peer, 1))
                  : choice == WEFT_COLL_CANONICAL ? weft_coll_direct_moves (op->kind, n)
                                                  : weft_coll_ring_moves (op->kind, n);

  for (uint32_t i = 0; i < moves->len && op->peer < 0; i++) {
    struct weft_move *move = &g_array_index (moves, struct weft_move, i);
    move->from = n - 1 - move->from;
    move->to = n - 1 - move->to;
  }
  g_array_sort (moves, compare_moves);
  return moves;
}
