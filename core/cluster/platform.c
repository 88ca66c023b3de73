/* A fabric whose network is a SimGrid platform (platform.h). Inside a node it is that of rails.c.
 * The host of a node stands for all its network ports. */
#include "core/cluster/platform.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/cluster/rails.h"

/* Kinds of links: those inside a node, in the order of rails.c, and the links of the platform. */
enum { CABLE = WEFT_LINK_MEMORY + 1, N_KIND };

static const struct weft_platform *
platform_of (const struct weft_cluster *cluster)
{
  return weft_platform_get (g_quark_to_string ((GQuark) cluster->f.fabric_platform), NULL);
}

static uint32_t
node_of (const struct weft_fabric *f, uint32_t gpu)
{
  return gpu / f->cluster->f.node_gpus;
}

static void
measure (struct weft_fabric *f)
{
  f->platform = platform_of (f->cluster);
}

static uint32_t
cables (const struct weft_fabric *f)
{
  return f->platform->link->len;
}

/* The first link of the route from the GPU's host to another host. */
static uint32_t
cable_of (const struct weft_fabric *f, uint32_t gpu)
{
  uint32_t n = f->platform->host->len, from = node_of (f, gpu);
  const struct weft_platform_route *route =
      n > 1 ? &f->platform->route[from * n + (from + 1) % n] : NULL;

  return route && route->n ? route->link[0] : 0;
}

static double
first_rate (const struct weft_fabric *f)
{
  return cables (f) ? g_array_index (f->platform->link, struct weft_platform_link, 0).bandwidth : 1;
}

static double
link_rate (const struct weft_fabric *f, uint32_t link)
{
  return link < f->first[CABLE] ? -1
                                : g_array_index (f->platform->link, struct weft_platform_link,
                                                 link - f->first[CABLE])
                                      .bandwidth;
}

static const struct weft_link_kind kinds[] = {
  WEFT_PORT_LINKS WEFT_HOST_LINKS { "cable", "link of the SimGrid platform", cables, cable_of,
                                    first_rate },
};
G_STATIC_ASSERT (G_N_ELEMENTS (kinds) == N_KIND);

static void
find_route (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
            struct weft_route *route)
{
  uint32_t n = f->platform->host->len, here = node_of (f, from),
           there = node_of (f, to);

  if (here == there) {
    weft_rails.route (f, from, to, way, route);
    return;
  }
  const struct weft_platform_route *cable = &f->platform->route[here * n + there];
  weft_route_cross (f, route, WEFT_LINK_PCIE_UP, from);
  for (uint32_t i = 0; i < cable->n; i++)
    route->link[route->n++] = f->first[CABLE] + cable->link[i];
  weft_route_cross (f, route, WEFT_LINK_PCIE_DOWN, to);
  route->latency = f->cluster->f.fabric_latency + cable->latency;
}

static uint32_t
slot_of (const struct weft_fabric *f, uint32_t gpu)
{
  return gpu % f->cluster->f.node_gpus;
}

static uint32_t
domain (const struct weft_cluster *cluster)
{
  return cluster->f.node_gpus;
}

static uint32_t
default_gpus (const struct weft_cluster *cluster)
{
  return platform_of (cluster)->host->len * cluster->f.node_gpus;
}

static gboolean
check (const struct weft_cluster *cluster, GError **error)
{
  uint32_t hosts = platform_of (cluster)->host->len;

  return cluster->n_nodes <= hosts ||
         weft_bad_input (error, "nodes: found %u, wanted at most %u: the hosts of %s",
                         cluster->n_nodes, hosts, g_quark_to_string (cluster->topology));
}

static char *
inside (const struct weft_cluster *cluster)
{
  return weft_rails.inside (cluster);
}

static char *
network (const struct weft_cluster *cluster)
{
  const struct weft_platform *p = platform_of (cluster);

  return g_strdup_printf ("SimGrid platform of %u hosts and %u links", p->host->len, p->link->len);
}

static const char *const axes[] = { "inside nodes", "between nodes" };

const struct weft_fabric_ops weft_platform_fabric = {
  .style = WEFT_FABRIC_TIERS,
  .n_axis = G_N_ELEMENTS (axes),
  .axis = axes,
  .n_kind = G_N_ELEMENTS (kinds),
  .kind = kinds,
  .host_kind = WEFT_LINK_PCIE_UP,
  .default_gpus = default_gpus,
  .check = check,
  .measure = measure,
  .capacity = link_rate,
  .node = node_of,
  .slot = slot_of,
  .domain = domain,
  .route = find_route,
  .inside = inside,
  .network = network,
};
