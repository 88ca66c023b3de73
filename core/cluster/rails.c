#include "core/cluster/rails.h"
#include "core/base/units.h"
#include "core/cluster/groups.h"

static uint32_t
node_of (const struct weft_fabric *f, uint32_t gpu)
{
  return gpu / f->cluster->f.node_gpus;
}

static uint32_t
slot_of (const struct weft_fabric *f, uint32_t gpu)
{
  return gpu % f->cluster->f.node_gpus;
}

static uint32_t
unit_of (const struct weft_fabric *f, uint32_t gpu)
{
  return node_of (f, gpu) / f->cluster->f.fabric_nodes_per_unit;
}

static uint32_t
rail_of (const struct weft_fabric *f, uint32_t gpu)
{
  return slot_of (f, gpu) * f->cluster->f.node_nics / f->cluster->f.node_gpus;
}

static uint32_t
domain (const struct weft_cluster *cluster)
{
  return cluster->f.node_gpus;
}

/* Units are parts if the spine switches above them take time or bandwidth, pods if the core switch
 * does. Between GPUs, only PCIe crosses the switches inside a node. */
static uint32_t
part (const struct weft_cluster *cluster)
{
  const union weft_cluster_fields *c = &cluster->f;
  gboolean core = c->fabric_spine_oversubscription > 1;
  gboolean spine = core || c->fabric_leaf_oversubscription > 1 || c->fabric_spine_latency > 0;
  int64_t unit = c->node_gpus * c->fabric_nodes_per_unit;
  const struct {
    int64_t gpus;
    gboolean differs;
  } parts[] = { { unit * c->fabric_units_per_pod, core },
                { unit, spine },
                { c->node_gpus, TRUE },
                { c->node_gpus_per_switch, c->node_intra == WEFT_PCIE } };

  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++)
    if (parts[i].differs && parts[i].gpus < cluster->n_gpus)
      return (uint32_t) parts[i].gpus;
  return 1;
}

/* ------------------------------------------------------------------- links */

double
weft_link_port_rate (const struct weft_fabric *f)
{
  return f->cluster->f.node_intra_bandwidth;
}

static uint32_t
nics (const struct weft_fabric *f)
{
  return f->cluster->n_nodes * f->cluster->f.node_nics;
}

static uint32_t
nic_of (const struct weft_fabric *f, uint32_t gpu)
{
  return node_of (f, gpu) * f->cluster->f.node_nics + rail_of (f, gpu);
}

static double
nic_rate (const struct weft_fabric *f)
{
  return f->cluster->f.node_nic_bandwidth;
}

static uint32_t
n_units (const struct weft_fabric *f)
{
  const struct weft_cluster *c = f->cluster;
  return (c->n_nodes + c->f.fabric_nodes_per_unit - 1) / c->f.fabric_nodes_per_unit;
}

static uint32_t
leaves (const struct weft_fabric *f)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  return c->fabric_leaf_oversubscription > 1 ? n_units (f) * c->node_nics : 0;
}

static uint32_t
leaf_of (const struct weft_fabric *f, uint32_t gpu)
{
  return unit_of (f, gpu) * f->cluster->f.node_nics + rail_of (f, gpu);
}

/* Bytes/s from a leaf switch down to its nodes: one port for each node of the scalable unit.
 * Oversubscription is the rate down divided by the rate up. The rate down of a pod is the sum of
 * the rates down of all its leaf switches. */
static double
leaf_ports (const struct weft_fabric *f)
{
  return f->cluster->f.fabric_nodes_per_unit * f->cluster->f.node_nic_bandwidth;
}

static double
leaf_rate (const struct weft_fabric *f)
{
  return leaf_ports (f) / f->cluster->f.fabric_leaf_oversubscription;
}

static uint32_t
pods (const struct weft_fabric *f)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  return c->fabric_spine_oversubscription > 1
             ? (n_units (f) + c->fabric_units_per_pod - 1) / c->fabric_units_per_pod
             : 0;
}

static uint32_t
pod_of (const struct weft_fabric *f, uint32_t gpu)
{
  return unit_of (f, gpu) / f->cluster->f.fabric_units_per_pod;
}

static double
pod_rate (const struct weft_fabric *f)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  return leaf_ports (f) * c->node_nics * c->fabric_units_per_pod / c->fabric_spine_oversubscription;
}

/* The fabric as a cluster would have it whose nodes are all like the node of a GPU. */
static struct weft_fabric
seen_from (const struct weft_fabric *f, uint32_t gpu)
{
  struct weft_fabric seen = *f;
  seen.cluster = weft_cluster_of_kind (f->cluster, weft_cluster_kind_of (f->cluster, gpu));
  return seen;
}

/* The capacity of a link of a node of its own kind. The links of a kind are numbered node by node.
 * Those above the nodes are the same for all (groups.h). */
static double
link_rate (const struct weft_fabric *f, uint32_t link)
{
  uint32_t kind = weft_fabric_kind (f, link), nodes = f->cluster->n_nodes;
  uint32_t of_node = (f->first[kind + 1] - f->first[kind]) / nodes;

  if (kind > WEFT_LINK_NIC_DOWN)
    return -1;
  uint32_t node = (link - f->first[kind]) / of_node;
  struct weft_fabric seen = seen_from (f, node * (uint32_t) f->cluster->f.node_gpus);
  return weft_rails.kind[kind].capacity (&seen);
}

static void
measure (struct weft_fabric *f)
{
  f->uneven = weft_cluster_is_mixed (f->cluster);
}

static const struct weft_link_kind kinds[] = {
  WEFT_PORT_LINKS WEFT_HOST_LINKS{ "nic up", "NIC into the fabric", nics, nic_of, nic_rate },
  { "nic down", "fabric into a NIC", nics, nic_of, nic_rate },
  { "leaf up", "bundle of a unit's leaf to the spines, one rail", leaves, leaf_of, leaf_rate },
  { "leaf down", "spines to a unit's leaf, one rail", leaves, leaf_of, leaf_rate },
  { "spine up", "bundle of a pod to the core", pods, pod_of, pod_rate },
  { "spine down", "core to a pod", pods, pod_of, pod_rate },
};
G_STATIC_ASSERT (G_N_ELEMENTS (kinds) == WEFT_N_LINK);

/* ------------------------------------------------------------------ routes */

static void
local_route (const struct weft_fabric *f, uint32_t from, uint32_t to, struct weft_route *route)
{
  enum weft_intra intra = f->cluster->f.node_intra;

  weft_route_cross (f, route, WEFT_LINK_PORT_UP, from);
  if (intra == WEFT_PCIE)
    weft_route_cross (f, route, WEFT_LINK_PCIE_UP, from);
  if (intra == WEFT_SHARED_MEMORY)
    weft_route_cross (f, route, WEFT_LINK_MEMORY, from);
  if (intra == WEFT_PCIE)
    weft_route_cross (f, route, WEFT_LINK_PCIE_DOWN, to);
  weft_route_cross (f, route, WEFT_LINK_PORT_DOWN, to);
  route->latency = seen_from (f, from).cluster->f.node_intra_latency;
}

/* A route within a node crosses the node's switch. A route between nodes crosses the NICs of sender
 * and receiver. It also crosses the spine switches, unless both NICs are on the same rail of the
 * same scalable unit. A route between pods also crosses the core switch. */
static void
find_route (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
            struct weft_route *route)
{
  const union weft_cluster_fields *c = &f->cluster->f;

  (void) way;
  if (node_of (f, from) == node_of (f, to)) {
    local_route (f, from, to, route);
    return;
  }
  gboolean over_spine =
      unit_of (f, from) != unit_of (f, to) || rail_of (f, from) != rail_of (f, to);
  gboolean over_core = pod_of (f, from) != pod_of (f, to);
  weft_route_cross (f, route, WEFT_LINK_PCIE_UP, from);
  weft_route_cross (f, route, WEFT_LINK_NIC_UP, from);
  if (over_spine)
    weft_route_cross (f, route, WEFT_LINK_LEAF_UP, from);
  if (over_core) {
    weft_route_cross (f, route, WEFT_LINK_SPINE_UP, from);
    weft_route_cross (f, route, WEFT_LINK_SPINE_DOWN, to);
  }
  if (over_spine)
    weft_route_cross (f, route, WEFT_LINK_LEAF_DOWN, to);
  weft_route_cross (f, route, WEFT_LINK_NIC_DOWN, to);
  weft_route_cross (f, route, WEFT_LINK_PCIE_DOWN, to);
  route->latency = c->fabric_latency + c->fabric_floor_latency +
                   (over_spine ? c->fabric_spine_latency : 0);
}

static char *
inside (const struct weft_cluster *cluster)
{
  const union weft_cluster_fields *c = &cluster->f;
  g_autofree char *rate =
      weft_rate_pair (c->node_intra_bandwidth, c->node_intra_bandwidth_spec, "B/s");
  return g_strdup_printf ("%s %s", weft_intra_words[c->node_intra], rate);
}

static char *
network (const struct weft_cluster *cluster)
{
  g_autofree char *rate = weft_units_human (8 * cluster->f.node_nic_bandwidth_spec, "b/s");
  return g_strdup_printf ("%" G_GINT64_FORMAT " x %s", cluster->f.node_nics, rate);
}

static const char *const axes[] = { "inside nodes", "between nodes" };

const struct weft_fabric_ops weft_rails = {
  .style = WEFT_FABRIC_TIERS,
  .n_axis = G_N_ELEMENTS (axes),
  .axis = axes,
  .n_kind = G_N_ELEMENTS (kinds),
  .kind = kinds,
  .host_kind = WEFT_LINK_PCIE_UP,
  .measure = measure,
  .capacity = link_rate,
  .node = node_of,
  .slot = slot_of,
  .domain = domain,
  .part = part,
  .route = find_route,
  .inside = inside,
  .network = network,
};
