#include "core/cluster/torus.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/base/units.h"
#include <string.h>

enum { X, Y, Z, N_AXES };

/* ------------------------------------------------------------------- sizes */

static void
host_box (const struct weft_cluster *cluster, uint32_t host[N_AXES])
{
  host[X] = cluster->f.fabric_host_x;
  host[Y] = cluster->f.fabric_host_y;
  host[Z] = cluster->f.fabric_host_z;
}

static gboolean
axes_wrap (const struct weft_cluster *cluster, const uint32_t side[N_AXES])
{
  int64_t multiple = cluster->f.fabric_wrap_multiple;

  for (int axis = 0; axis < N_AXES && multiple > 0; axis++)
    if (side[axis] % multiple)
      return FALSE;
  return multiple > 0;
}

/* Whether a box of chips is allowed. The box must consist of whole hosts, or fit in one host if the
 * cluster has fewer chips than a host. Its sides must be equal to those sides that the topology or
 * the job sets. */
static gboolean
is_allowed (const struct weft_cluster *cluster, const uint32_t side[N_AXES])
{
  const int64_t asked[] = { cluster->f.fabric_x, cluster->f.fabric_y, cluster->f.fabric_z };
  gboolean part = cluster->n_gpus < cluster->f.node_gpus;
  uint32_t host[N_AXES];

  host_box (cluster, host);
  for (int axis = 0; axis < N_AXES; axis++)
    if ((asked[axis] && asked[axis] != side[axis]) ||
        (part ? side[axis] > host[axis] : side[axis] % host[axis]))
      return FALSE;
  return TRUE;
}

static gboolean
is_better (const struct weft_cluster *cluster, const uint32_t a[N_AXES], const uint32_t b[N_AXES])
{
  gboolean wraps_a = axes_wrap (cluster, a), wraps_b = axes_wrap (cluster, b);

  if (wraps_a != wraps_b)
    return wraps_a;
  return a[X] + a[Y] + a[Z] < b[X] + b[Y] + b[Z];
}

/* Finds the best three sides of a box of n_gpus chips. A box with wraparound links is preferred,
 * then the smallest sum of sides, then the shortest first axis. Returns FALSE if no box is
 * allowed. */
static gboolean
find_sides (const struct weft_cluster *cluster, uint32_t side[N_AXES])
{
  uint32_t n = cluster->n_gpus;
  gboolean found = FALSE;

  for (uint32_t x = 1; x <= n; x++)
    for (uint32_t y = 1; n % x == 0 && y <= n / x; y++) {
      uint32_t tried[N_AXES] = { x, y, n / x / y };
      if (n / x % y || !is_allowed (cluster, tried))
        continue;
      if (!found || is_better (cluster, tried, side))
        memcpy (side, tried, sizeof tried);
      found = TRUE;
    }
  return found;
}

static void
measure (struct weft_fabric *f)
{
  if (!find_sides (f->cluster, f->side))
    /* the function check() of this fabric has refused this number of chips before */
    WEFT_UNREACHABLE ();
  f->wraps = axes_wrap (f->cluster, f->side);
}

/* The number of chips if the job sets no size: the product of the three sides, or the chips of one
 * host if a side is not set. */
static uint32_t
default_gpus (const struct weft_cluster *cluster)
{
  int64_t chips = cluster->f.fabric_x * cluster->f.fabric_y * cluster->f.fabric_z;

  return chips > 0 && chips <= G_MAXINT32 ? chips : cluster->f.node_gpus;
}

static char *
size_text (int64_t chips)
{
  return chips ? g_strdup_printf ("%" G_GINT64_FORMAT, chips) : g_strdup ("any");
}

static gboolean
refuse_sides (const struct weft_cluster *cluster, GError **error)
{
  const union weft_cluster_fields *c = &cluster->f;
  g_autofree char *x = size_text (c->fabric_x), *y = size_text (c->fabric_y),
                  *z = size_text (c->fabric_z);

  return weft_bad_input (
      error,
      "topology %s: fabric_x, fabric_y, fabric_z: found %s x %s x %s for gpus = %u, wanted three "
      "whole numbers with that product, in hosts of %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT
      " x %" G_GINT64_FORMAT " chips",
      g_quark_to_string (cluster->topology), x, y, z, cluster->n_gpus, c->fabric_host_x,
      c->fabric_host_y, c->fabric_host_z);
}

/* Largest number of links in a route. */
static uint32_t
diameter (const struct weft_cluster *cluster, const uint32_t side[N_AXES])
{
  uint32_t hops = 0;

  for (int axis = 0; axis < N_AXES; axis++)
    hops += axes_wrap (cluster, side) ? side[axis] / 2 : side[axis] - 1;
  return hops;
}

static gboolean
check (const struct weft_cluster *cluster, GError **error)
{
  const union weft_cluster_fields *c = &cluster->f;
  uint32_t side[N_AXES];

  if (c->fabric_host_x * c->fabric_host_y * c->fabric_host_z != c->node_gpus)
    return weft_bad_input (error,
                           "topology %s: fabric_host_x, fabric_host_y, fabric_host_z: found "
                           "%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT
                           ", wanted a product of %" G_GINT64_FORMAT " chips (node_gpus)",
                           g_quark_to_string (cluster->topology), c->fabric_host_x,
                           c->fabric_host_y, c->fabric_host_z, c->node_gpus);
  if (!find_sides (cluster, side))
    return refuse_sides (cluster, error);
  if (diameter (cluster, side) <= WEFT_MAX_ROUTE)
    return TRUE;
  return weft_bad_input (error,
                         "topology %s: found %u x %u x %u chips, up to %u links apart, wanted at "
                         "most %d links",
                         g_quark_to_string (cluster->topology), side[X], side[Y], side[Z],
                         diameter (cluster, side), WEFT_MAX_ROUTE);
}

/* ------------------------------------------------------------------ places */

static void
place (const struct weft_fabric *f, uint32_t gpu, uint32_t at[WEFT_MAX_AXES])
{
  at[X] = gpu % f->side[X];
  at[Y] = gpu / f->side[X] % f->side[Y];
  at[Z] = gpu / f->side[X] / f->side[Y];
}

static uint32_t
node_of (const struct weft_fabric *f, uint32_t gpu)
{
  uint32_t at[N_AXES], host[N_AXES], node = 0;

  place (f, gpu, at);
  host_box (f->cluster, host);
  for (int axis = N_AXES; axis-- > 0;)
    node = node * ((f->side[axis] + host[axis] - 1) / host[axis]) + at[axis] / host[axis];
  return node;
}

static uint32_t
slot_of (const struct weft_fabric *f, uint32_t gpu)
{
  uint32_t at[N_AXES], host[N_AXES], slot = 0;

  place (f, gpu, at);
  host_box (f->cluster, host);
  for (int axis = N_AXES; axis-- > 0;)
    slot = slot * host[axis] + at[axis] % host[axis];
  return slot;
}

static uint32_t
domain (const struct weft_cluster *cluster)
{
  return cluster->n_gpus;
}

/* ------------------------------------------------------------------- links */

/* Number of links in one direction along a line of chips: one per chip if the axis wraps, and one
 * fewer otherwise. */
static uint32_t
links_along (const struct weft_fabric *f, int axis)
{
  return f->side[axis] - (f->wraps && f->side[axis] > 1 ? 0 : 1);
}

static uint32_t
count_along (const struct weft_fabric *f, int axis)
{
  return f->cluster->n_gpus / f->side[axis] * links_along (f, axis);
}

/* Returns the link between chip `from` and the next chip of an axis, in the line of chips through
 * `at`. If the axis does not wrap, its last chip has no next chip; the result is then the last
 * link. */
static uint32_t
link_at (const struct weft_fabric *f, const uint32_t at[N_AXES], int axis, uint32_t from)
{
  uint32_t id = 0;

  for (int a = N_AXES; a-- > 0;)
    id = a == axis ? id * links_along (f, a) + MIN (from, links_along (f, a) - 1)
                   : id * f->side[a] + at[a];
  return id;
}

static uint32_t
link_of (const struct weft_fabric *f, uint32_t gpu, int axis, gboolean down)
{
  uint32_t at[N_AXES];

  place (f, gpu, at);
  uint32_t before = at[axis] > 0 ? at[axis] - 1 : f->wraps ? f->side[axis] - 1 : 0;
  return link_at (f, at, axis, down ? before : at[axis]);
}

#define AXIS_LINKS(name, axis)                                                                     \
  static uint32_t name##_count (const struct weft_fabric *f)                                       \
  {                                                                                                \
    return count_along (f, axis);                                                                  \
  }                                                                                                \
  static uint32_t name##_up (const struct weft_fabric *f, uint32_t gpu)                            \
  {                                                                                                \
    return link_of (f, gpu, axis, FALSE);                                                          \
  }                                                                                                \
  static uint32_t name##_down (const struct weft_fabric *f, uint32_t gpu)                          \
  {                                                                                                \
    return link_of (f, gpu, axis, TRUE);                                                           \
  }
AXIS_LINKS (x, X)
AXIS_LINKS (y, Y)
AXIS_LINKS (z, Z)

static double
link_rate (const struct weft_fabric *f)
{
  return f->cluster->f.fabric_link_bandwidth;
}

static const struct weft_link_kind kinds[] = {
  { "x up", "chip to the next along the first axis", x_count, x_up, link_rate },
  { "x down", "chip to the one before along the first axis", x_count, x_down, link_rate },
  { "y up", "chip to the next along the second axis", y_count, y_up, link_rate },
  { "y down", "chip to the one before along the second axis", y_count, y_down, link_rate },
  { "z up", "chip to the next along the third axis", z_count, z_up, link_rate },
  { "z down", "chip to the one before along the third axis", z_count, z_down, link_rate },
  WEFT_HOST_LINKS
};
G_STATIC_ASSERT (G_N_ELEMENTS (kinds) == WEFT_N_TORUS_LINK);

/* ------------------------------------------------------------------ routes */

/* Whether the route from one coordinate of an axis to another goes to lower coordinates, because
 * that direction is shorter. If both directions are equally long, the result is TRUE for the way
 * that goes down this axis. */
static gboolean
goes_down (const struct weft_fabric *f, int axis, uint32_t from, uint32_t to, uint32_t way)
{
  uint32_t side = f->side[axis], up = (to + side - from) % side;

  if (!f->wraps)
    return to < from;
  return 2 * up == side ? way == 2 * (uint32_t) axis + 1 : 2 * up > side;
}

static void
go_along (const struct weft_fabric *f, uint32_t at[N_AXES], int axis, uint32_t to, uint32_t way,
          struct weft_route *route)
{
  uint32_t side = f->side[axis];
  gboolean down = goes_down (f, axis, at[axis], to, way);

  while (at[axis] != to) {
    uint32_t next = (at[axis] + (down ? side - 1 : 1)) % side;
    uint32_t kind = WEFT_TORUS_X_UP + 2 * axis + down;
    route->link[route->n++] = f->first[kind] + link_at (f, at, axis, down ? next : at[axis]);
    at[axis] = next;
  }
}

static void
find_route (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
            struct weft_route *route)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  uint32_t at[N_AXES], end[N_AXES];

  place (f, from, at);
  place (f, to, end);
  for (int axis = 0; axis < N_AXES; axis++)
    go_along (f, at, axis, end[axis], way, route);
  if (route->n > 0)
    route->latency = c->fabric_latency + (route->n - 1) * c->fabric_hop_latency;
}

/* ------------------------------------------------------------------- words */

static char *
inside (const struct weft_cluster *cluster)
{
  const union weft_cluster_fields *c = &cluster->f;

  return g_strdup_printf ("same links as between hosts (%" G_GINT64_FORMAT "x%" G_GINT64_FORMAT
                          "x%" G_GINT64_FORMAT " chips)",
                          c->fabric_host_x, c->fabric_host_y, c->fabric_host_z);
}

static char *
network (const struct weft_cluster *cluster)
{
  const union weft_cluster_fields *c = &cluster->f;
  g_autofree char *rate =
      weft_rate_pair (c->fabric_link_bandwidth, c->fabric_link_bandwidth_spec, "B/s");
  return g_strdup_printf ("3D torus, 6 x %s", rate);
}

static const char *const axes[] = { "x", "y", "z" };

const struct weft_fabric_ops weft_torus = {
  .style = WEFT_FABRIC_GRID,
  .n_axis = N_AXES,
  .axis = axes,
  .n_kind = G_N_ELEMENTS (kinds),
  .kind = kinds,
  .host_kind = WEFT_TORUS_HOST,
  .has_engines = TRUE,
  .default_gpus = default_gpus,
  .check = check,
  .measure = measure,
  .inside = inside,
  .network = network,
  .node = node_of,
  .slot = slot_of,
  .place = place,
  .domain = domain,
  .route = find_route,
};
