/* Collectives over chips that have links to their neighbours only.
 *
 * A group that fills a box of the grid cuts the tensor into as many parts as the box has axes. Each
 * part is reduced along the axes in a different order (part 0: x, y, z; part 1: y, z, x; ...), so
 * that all axes are in use at any time. A reduce-scatter along an axis of a chips leaves 1/a of the
 * part for the next axis. If the a chips form a ring, pieces are sent in both directions. If they
 * form a line, each link carries every piece from one side of the link to the other side, which is
 * twice as much. (Rings in both directions over several axes at once: Austin et al. 2025, "How to
 * Scale Your Model", chapter "Sharding".)
 *
 * Bytes and steps of a collective along one axis of a chips, for a part of S bytes:
 *
 *   all_gather, reduce_scatter  (a-1)/a S on each link of a line, half of this on each link of a
 *                               ring; a - 1 steps on a line, a/2 on a ring
 *   all_to_all                  pieces are sent directly to their owners: floor(a^2/4)/a S on the
 *                               middle link of a line, half of this on each link of a ring
 *                               (bisection of the ring)
 *
 * All flows go to neighbours. Every link of an axis counts as loaded like the most loaded link of
 * the axis. A group that fills no box runs one plain ring in the order of its members. */
#include "core/program/coll_style.h"

static uint32_t
coordinate (const struct weft_coll_shape *s, uint32_t member, int axis)
{
  return member / s->stride[axis] % s->side[axis];
}

/* Members 0, block, 2 block ... of the group: counts how many of them, from member 0 on, lie at
 * equal distances along this axis and at equal coordinates on the other axes. Sets *step to the
 * distance. */
static uint32_t
run_along (const struct weft_fabric *f, const struct weft_group *g, int axis, uint32_t block,
           uint32_t n, uint32_t *step)
{
  uint32_t first[WEFT_MAX_AXES], at[WEFT_MAX_AXES], count = 1;

  f->ops->place (f, weft_group_rank (g, 0), first);
  for (*step = 0; count * block < n; count++) {
    f->ops->place (f, weft_group_rank (g, count * block), at);
    for (uint32_t other = 0; other < f->ops->n_axis; other++)
      if ((int) other != axis && at[other] != first[other])
        return count;
    if (at[axis] <= first[axis])
      return count;
    if (count == 1)
      *step = at[axis] - first[axis];
    if (at[axis] != first[axis] + count * *step)
      return count;
  }
  return count;
}

/* Whether the members of a group fill a box of the grid: every member is at the place that follows
 * from the member's index and the distance between members along each axis. */
static gboolean
fills_box (const struct weft_coll_shape *s, const struct weft_fabric *f,
           const uint32_t step[WEFT_MAX_AXES])
{
  uint32_t first[WEFT_MAX_AXES], at[WEFT_MAX_AXES];

  f->ops->place (f, weft_group_rank (&s->group, 0), first);
  for (uint32_t i = 0; i < s->n; i++) {
    f->ops->place (f, weft_group_rank (&s->group, i), at);
    for (uint32_t axis = 0; axis < f->ops->n_axis; axis++)
      if (at[axis] != first[axis] + coordinate (s, i, axis) * step[axis])
        return FALSE;
  }
  return TRUE;
}

static void
outline (struct weft_coll_shape *s, const struct weft_fabric *f)
{
  uint32_t block = 1, step[WEFT_MAX_AXES] = { 0 };

  for (uint32_t axis = 0; axis < WEFT_MAX_AXES; axis++) {
    s->stride[axis] = block;
    s->side[axis] =
        axis < f->ops->n_axis ? run_along (f, &s->group, axis, block, s->n, &step[axis]) : 1;
    s->ring[axis] = f->wraps && s->side[axis] > 1 && s->side[axis] * step[axis] == f->side[axis];
    block *= s->side[axis];
  }
  s->uniform = block == s->n && fills_box (s, f, step);
}

static uint32_t
find_flows (const struct weft_coll_shape *s, const struct weft_fabric *f, uint32_t member,
            struct weft_flow flows[WEFT_MAX_WAYS])
{
  const struct weft_group *g = &s->group;
  uint32_t from = weft_group_rank (g, member), n = 0;

  if (!s->uniform) {
    flows[0] = weft_coll_shift (g, member, FALSE);
    return 1;
  }
  for (uint32_t way = 0; way < weft_fabric_ways (f); way++) {
    uint32_t axis = way / 2, side = s->side[axis], at = coordinate (s, member, axis);
    gboolean down = way % 2, at_end = at == (down ? 0 : side - 1);
    if (side == 1 || (at_end && !s->ring[axis]))
      continue;
    uint32_t next = (at + (down ? side - 1 : 1)) % side;
    uint32_t to = member + next * s->stride[axis] - at * s->stride[axis];
    flows[n++] = (struct weft_flow){ from, weft_group_rank (g, to), way };
  }
  return n;
}

/* Sets the bytes that one flow of each way (direction along an axis) moves. share[axis] is the
 * share of the tensor that crosses the axis. In a ring half of this share moves in each direction.
 * On a line the whole share moves in each direction. */
static void
share_out (const struct weft_coll_shape *s, const double share[WEFT_MAX_AXES], double whole,
           double bytes[WEFT_MAX_WAYS])
{
  for (int way = 0; way < WEFT_MAX_WAYS; way++)
    bytes[way] = share[way / 2] * whole / (s->ring[way / 2] ? 2 : 1);
}

static uint32_t
axes_used (const struct weft_coll_shape *s)
{
  uint32_t n = 0;

  for (int axis = 0; axis < WEFT_MAX_AXES; axis++)
    n += s->side[axis] > 1;
  return n;
}

/* For each axis, adds the share of the tensor that a reduce-scatter of one part sends along the
 * axis. The reduce-scatter begins with axis `first`. */
static void
add_part (const struct weft_coll_shape *s, int first, double part, double share[WEFT_MAX_AXES])
{
  for (int i = 0; i < WEFT_MAX_AXES; i++) {
    int axis = (first + i) % WEFT_MAX_AXES;
    double side = s->side[axis];
    share[axis] += part * (side - 1) / side;
    part /= side;
  }
}

static gboolean
ring_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
            double bytes[WEFT_MAX_WAYS])
{
  double share[WEFT_MAX_AXES] = { 0 }, n_axis = axes_used (s);

  if (weft_coll_ring_share (kind, s->n) < 0)
    return FALSE;
  if (!s->uniform) {
    bytes[0] = whole * weft_coll_ring_share (kind, s->n);
    return TRUE;
  }
  for (int axis = 0; axis < WEFT_MAX_AXES; axis++)
    if (s->side[axis] > 1 && weft_op_even (kind) == WEFT_OP_BROADCAST)
      share[axis] = 1 / n_axis;
    else if (s->side[axis] > 1)
      add_part (s, axis, weft_coll_phases (kind) / n_axis, share);
  share_out (s, share, whole, bytes);
  return TRUE;
}

static void
ring_steps (enum weft_op_kind kind, const struct weft_coll_shape *s, uint32_t steps[WEFT_MAX_AXES])
{
  if (!s->uniform)
    steps[0] = weft_coll_phases (kind) * (s->n - 1);
  for (int axis = 0; axis < WEFT_MAX_AXES && s->uniform; axis++)
    steps[axis] = weft_coll_phases (kind) * (s->ring[axis] ? s->side[axis] / 2 : s->side[axis] - 1);
}

/* Bytes of the direct algorithm. In a group that fills no box, the members form one plain ring, in
 * which a piece crosses n/2 links on average. */
static gboolean
direct_bytes (enum weft_op_kind kind, const struct weft_coll_shape *s, double whole,
              double bytes[WEFT_MAX_WAYS])
{
  double share[WEFT_MAX_AXES] = { 0 }, phases = weft_coll_phases (kind);

  if (!weft_op_swaps (kind) && weft_coll_ring_share (kind, s->n) < 0)
    return FALSE;
  if (!s->uniform) {
    bytes[0] = whole * phases * (s->n - 1.0) / 2;
    return TRUE;
  }
  for (int axis = 0; axis < WEFT_MAX_AXES; axis++) {
    uint64_t side = s->side[axis], crossing = side * side / 4;
    share[axis] = phases * (double) crossing / (double) side;
  }
  share_out (s, share, whole, bytes);
  return TRUE;
}

static const struct weft_coll_algorithm rings = { "rings", ring_bytes, ring_steps, .simple = TRUE },
                                        direct = { "direct", direct_bytes, ring_steps,
                                                   .simple = TRUE };

static const struct weft_coll_algorithm *const *
algorithms (enum weft_op_kind kind, enum weft_coll_choice choice)
{
  static const struct weft_coll_algorithm *const in_rings[] = { &rings, NULL }, *const at_once[] = {
    &direct, NULL
  };

  return weft_op_swaps (kind) || weft_coll_sums_at_owner (kind, choice) ? at_once : in_rings;
}

const struct weft_coll_style weft_coll_grid = { outline, find_flows, algorithms };
