#include "core/program/coll_style.h"
#include "core/cluster/groups.h"
#include <math.h>

static const struct weft_coll_style *
style_of (enum weft_fabric_style style)
{
  static const struct weft_coll_style *const table[] = {
    [WEFT_FABRIC_TIERS] = &weft_coll_tiers,
    [WEFT_FABRIC_GRID] = &weft_coll_grid,
  };
  return table[style];
}

/* Bytes that a rank sends in a ring of n ranks, as a share of the full tensor. */
#define RING_SHARE_LIST(X)                                                                         \
  X (WEFT_OP_ALL_REDUCE, 2 * (n - 1) / n)                                                          \
  X (WEFT_OP_REDUCE_SCATTER, (n - 1) / n)                                                          \
  X (WEFT_OP_ALL_GATHER, (n - 1) / n)                                                              \
  X (WEFT_OP_BROADCAST, 1)

double
weft_coll_ring_share (enum weft_op_kind kind, double n)
{
#define SHARE(op, share)                                                                           \
  case op:                                                                                         \
    return share;
  switch (weft_op_even (kind)) {
    RING_SHARE_LIST (SHARE)
  default:
    return -1;
  }
#undef SHARE
}

const char *
weft_coll_ring_text (enum weft_op_kind kind)
{
#define TEXT(op, share)                                                                            \
  case op:                                                                                         \
    return #share;
  switch (weft_op_even (kind)) {
    RING_SHARE_LIST (TEXT)
  default:
    return NULL;
  }
#undef TEXT
}

uint32_t
weft_coll_phases (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_REDUCE ? 2 : 1;
}

gboolean
weft_coll_sums_at_owner (enum weft_op_kind kind, enum weft_coll_choice choice)
{
  return choice == WEFT_COLL_CANONICAL && kind != WEFT_OP_BROADCAST;
}

struct weft_flow
weft_coll_shift (const struct weft_group *g, uint32_t member, gboolean back)
{
  uint32_t n = weft_group_size (g), to = (member + (back ? n - 1 : 1)) % n;

  return (struct weft_flow){ weft_group_rank (g, member), weft_group_rank (g, to), 0 };
}

uint32_t
weft_coll_flows (const struct weft_coll_shape *shape, const struct weft_fabric *f, uint32_t member,
                 struct weft_flow flows[WEFT_MAX_WAYS])
{
  return style_of (shape->style)->flows (shape, f, member, flows);
}

/* ------------------------------------------------------------------- loads */

static gboolean
same_load (const struct weft_load *a, const struct weft_load *b)
{
  for (int way = 0; way < WEFT_MAX_WAYS; way++)
    if (a->flows[way] != b->flows[way])
      return FALSE;
  return a->capacity == b->capacity;
}

static gboolean
add_distinct (gpointer key, gpointer value, gpointer data)
{
  GArray *loads = data;

  (void) key;
  for (guint i = 0; i < loads->len; i++)
    if (same_load (&g_array_index (loads, struct weft_load, i), value))
      return TRUE;
  g_array_append_vals (loads, value, 1);
  return TRUE;
}

static void
count_flow (const struct weft_fabric *f, const struct weft_flow *flow, double *latency,
            GHashTable *by_link)
{
  struct weft_route route;

  weft_fabric_route_way (f, flow->from, flow->to, flow->way, &route);
  *latency = fmax (*latency, route.latency);
  for (uint32_t i = 0; i < route.n; i++) {
    gpointer key = GUINT_TO_POINTER (route.link[i] + 1);
    struct weft_load *load = g_hash_table_lookup (by_link, key);
    if (!load) {
      load = g_new0 (struct weft_load, 1);
      load->capacity = weft_fabric_capacity (f, route.link[i]);
      g_hash_table_insert (by_link, key, load);
    }
    load->flows[flow->way]++;
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
    struct weft_flow flows[WEFT_MAX_WAYS], shift = weft_coll_shift (&shape->group, i, FALSE);
    uint32_t n = weft_coll_flows (shape, f, i, flows);
    for (uint32_t j = 0; j < n; j++)
      count_flow (f, &flows[j], &shape->latency[weft_coll_axis (shape, flows[j].way)], by_link);
    count_flow (f, &shift, &shape->next_latency, next);
  }
  shape->load = take_loads (by_link, &shape->n_load);
  shape->next = take_loads (next, &shape->n_next);
}

/* The cluster as the slowest members of a group see it. */
static const struct weft_cluster *
cluster_of (const struct weft_fabric *f, const struct weft_group *group)
{
  uint32_t kinds = 0;

  if (!weft_cluster_is_mixed (f->cluster))
    return f->cluster;
  for (uint32_t i = 0; i < weft_group_size (group); i++)
    kinds |= 1u << weft_cluster_kind_of (f->cluster, weft_group_rank (group, i));
  return weft_cluster_of_kinds (f->cluster, kinds);
}

void
weft_coll_shape_outline (struct weft_coll_shape *shape, const struct weft_fabric *f,
                         const struct weft_group *group)
{
  *shape = (struct weft_coll_shape){ .group = *group,
                                     .n = weft_group_size (group),
                                     .style = f->ops->style,
                                     .cluster = cluster_of (f, group) };
  style_of (shape->style)->outline (shape, f);
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

/* --------------------------------------------------------- closed formulas */

double
weft_coll_link_bytes (const struct weft_load *load, const struct weft_traffic *t)
{
  double bytes = 0;

  for (int way = 0; way < WEFT_MAX_WAYS; way++)
    bytes += load->flows[way] * t->bytes[way];
  return bytes;
}

static double
longest (const struct weft_load *loads, uint32_t n, const struct weft_traffic *t)
{
  double seconds = 0;

  for (uint32_t i = 0; i < n; i++)
    seconds = fmax (seconds, weft_coll_link_bytes (&loads[i], t) / loads[i].capacity);
  return seconds;
}

/* Bits of the algorithms (enum weft_algorithm) and protocols (enum weft_protocol) among which the
 * communication library chooses. */
struct choices {
  unsigned algorithms, protocols;
};

static unsigned
listed (int64_t list, const char *const *words)
{
  unsigned bits = 0;

  for (unsigned i = 0; words[i]; i++)
    bits |= weft_stack_lists (list, words[i]) ? 1u << i : 0;
  return bits;
}

static struct choices
choices_of (const union weft_stack *stack)
{
  static const struct choices plain = { 1u << WEFT_ALGORITHM_RING | 1u << WEFT_ALGORITHM_TREE,
                                        1u << WEFT_PROTOCOL_SIMPLE };

  if (!stack)
    return plain;
  return (struct choices){ listed (stack->collective_algorithms, weft_algorithm_words),
                           listed (stack->collective_protocols, weft_protocol_words) };
}

unsigned
weft_coll_protocols (const union weft_stack *stack)
{
  return choices_of (stack).protocols;
}

static gboolean
plan_with (const struct weft_coll_algorithm *a, const struct weft_coll_shape *s,
           enum weft_op_kind kind, double bytes, const union weft_stack *stack,
           enum weft_protocol protocol, struct weft_traffic *t)
{
  struct weft_coll_terms terms;

  *t = (struct weft_traffic){ .algorithm = a->name, .protocol = protocol };
  if (!weft_coll_has_protocol (s, protocol) || (a->simple && protocol != WEFT_PROTOCOL_SIMPLE) ||
      !a->bytes (kind, s, bytes > WEFT_COLL_SCALAR_BYTES ? bytes : 0, t->bytes))
    return FALSE;
  weft_coll_terms_of (s, stack, protocol, bytes, t->bytes, &terms);
  if (a->adjust)
    a->adjust (s, stack, protocol, bytes, t->bytes, &terms);
  for (int way = 0; way < WEFT_MAX_WAYS; way++)
    t->bytes[way] = round (t->bytes[way] * weft_coll_wire (s, protocol, way));
  a->steps (kind, s, t->steps);
  t->latency = terms.late * terms.base;
  for (int axis = 0; axis < WEFT_MAX_AXES; axis++) {
    t->step[axis] = terms.late * terms.step[axis];
    t->latency += t->steps[axis] * t->step[axis];
  }
  double links = longest (s->load, s->n_load, t) * terms.slow;
  double known = fmax (links, terms.least);
  double busy = fmax (known, terms.hidden);
  double chunk = a->relays ? weft_coll_chunk_latency (s, stack, protocol) : 0;
  t->estimate = t->latency / (kind == WEFT_OP_ALL_REDUCE ? 1 : terms.late) + known * terms.counted;
  t->seconds = t->latency + busy + 2 * sqrt (chunk * busy) + terms.fill;
  return TRUE;
}

static struct weft_traffic
plan_shift (const struct weft_coll_shape *s, double bytes, double base)
{
  struct weft_traffic t = { .algorithm = "shift",
                            .bytes = { bytes },
                            .steps = { 1 },
                            .step = { s->next_latency },
                            .latency = base + s->next_latency };

  t.seconds = t.latency + longest (s->next, s->n_next, &t);
  return t;
}

static struct weft_traffic
quickest (const struct weft_coll_shape *s, enum weft_op_kind kind, double bytes,
          const union weft_stack *stack, enum weft_coll_choice choice, struct choices choices)
{
  struct weft_traffic best = { .algorithm = "none", .estimate = INFINITY }, t;
  const struct weft_coll_algorithm *const *a = style_of (s->style)->algorithms (kind, choice);

  for (; *a; a++)
    for (unsigned p = 0; p < WEFT_N_PROTOCOL; p++)
      if (((*a)->choices == 0 || (*a)->choices & choices.algorithms) &&
          choices.protocols >> p & 1 && plan_with (*a, s, kind, bytes, stack, p, &t) &&
          t.estimate < best.estimate)
        best = t;
  return best;
}

struct weft_traffic
weft_coll_plan (const struct weft_coll_shape *s, enum weft_op_kind kind, double bytes,
                const union weft_stack *stack, enum weft_coll_choice choice)
{
  if (s->n == 1)
    return (struct weft_traffic){ .algorithm = "none" };
  if (kind == WEFT_OP_SHIFT)
    return plan_shift (s, bytes, stack ? stack->collective_base_latency : 0);
  struct weft_traffic t = quickest (s, kind, bytes, stack, choice, choices_of (stack));
  /* If the library lists no algorithm for this op, the op uses a ring or trees with protocol
   * Simple. */
  return isinf (t.estimate) ? quickest (s, kind, bytes, stack, choice, choices_of (NULL)) : t;
}

uint32_t
weft_coll_steps (const struct weft_traffic *t)
{
  uint32_t steps = 0;

  for (int axis = 0; axis < WEFT_MAX_AXES; axis++)
    steps += t->steps[axis];
  return steps;
}

double
weft_coll_step_latency (const struct weft_traffic *t, uint32_t step)
{
  int axis = WEFT_MAX_AXES - 1;

  for (uint32_t before = 0; axis > 0 && step >= before + t->steps[axis]; axis--)
    before += t->steps[axis];
  return t->step[axis];
}

double
weft_coll_base_latency (const struct weft_traffic *t)
{
  double base = t->latency;

  for (int axis = 0; axis < WEFT_MAX_AXES; axis++)
    base -= t->steps[axis] * t->step[axis];
  return base;
}
