#include "core/program/fabric.h"
#include <math.h>

const char *const weft_link_words[] = { WEFT_LINK_LIST (WEFT_WORD_TEXT) NULL };

static uint32_t
n_units (const struct weft_cluster *c)
{
  return (c->n_nodes + c->f.fabric_nodes_per_unit - 1) / c->f.fabric_nodes_per_unit;
}

static uint32_t
nic_of_slot (const struct weft_cluster *c, uint32_t slot)
{
  return slot * c->f.node_nics / c->f.node_gpus;
}

static uint32_t
count (const struct weft_cluster *c, enum weft_link_kind kind)
{
  uint32_t switches = (c->f.node_gpus + c->f.node_gpus_per_switch - 1) / c->f.node_gpus_per_switch;
  uint32_t pods = (n_units (c) + c->f.fabric_units_per_pod - 1) / c->f.fabric_units_per_pod;
  gboolean leaf = c->f.fabric_leaf_oversubscription > 1,
           spine = c->f.fabric_spine_oversubscription > 1;
  const uint32_t table[WEFT_N_LINK] = {
    [WEFT_LINK_PORT_UP] = c->n_gpus,
    [WEFT_LINK_PORT_DOWN] = c->n_gpus,
    [WEFT_LINK_PCIE_UP] = c->n_gpus,
    [WEFT_LINK_PCIE_DOWN] = c->n_gpus,
    [WEFT_LINK_HOST_UP] = c->n_nodes * switches,
    [WEFT_LINK_HOST_DOWN] = c->n_nodes * switches,
    [WEFT_LINK_MEMORY] = c->n_nodes,
    [WEFT_LINK_NIC_UP] = c->n_nodes * c->f.node_nics,
    [WEFT_LINK_NIC_DOWN] = c->n_nodes * c->f.node_nics,
    [WEFT_LINK_LEAF_UP] = leaf ? n_units (c) * c->f.node_nics : 0,
    [WEFT_LINK_LEAF_DOWN] = leaf ? n_units (c) * c->f.node_nics : 0,
    [WEFT_LINK_SPINE_UP] = spine ? pods : 0,
    [WEFT_LINK_SPINE_DOWN] = spine ? pods : 0,
  };
  return table[kind];
}

struct weft_fabric
weft_fabric_make (const struct weft_cluster *cluster)
{
  struct weft_fabric f = { .cluster = cluster };

  for (int kind = 0; kind < WEFT_N_LINK; kind++)
    f.first[kind + 1] = f.first[kind] + count (cluster, kind);
  return f;
}

enum weft_link_kind
weft_fabric_kind (const struct weft_fabric *f, uint32_t link)
{
  int kind = 0;
  while (link >= f->first[kind + 1])
    kind++;
  return kind;
}

/* Oversubscription is ports down over ports up: a unit's leaf has one port down for each node, a
 * pod all NICs of its units. */
double
weft_fabric_capacity (const struct weft_fabric *f, uint32_t link)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  double leaf = c->fabric_nodes_per_unit * c->node_nic_bandwidth;
  double pod = leaf * c->node_nics * c->fabric_units_per_pod;
  const double table[WEFT_N_LINK] = {
    [WEFT_LINK_PORT_UP] = c->node_intra_bandwidth,
    [WEFT_LINK_PORT_DOWN] = c->node_intra_bandwidth,
    [WEFT_LINK_PCIE_UP] = c->gpu_host_link,
    [WEFT_LINK_PCIE_DOWN] = c->gpu_host_link,
    [WEFT_LINK_HOST_UP] = c->gpu_host_link,
    [WEFT_LINK_HOST_DOWN] = c->gpu_host_link,
    [WEFT_LINK_MEMORY] = c->node_host_bandwidth,
    [WEFT_LINK_NIC_UP] = c->node_nic_bandwidth,
    [WEFT_LINK_NIC_DOWN] = c->node_nic_bandwidth,
    [WEFT_LINK_LEAF_UP] = leaf / c->fabric_leaf_oversubscription,
    [WEFT_LINK_LEAF_DOWN] = leaf / c->fabric_leaf_oversubscription,
    [WEFT_LINK_SPINE_UP] = pod / c->fabric_spine_oversubscription,
    [WEFT_LINK_SPINE_DOWN] = pod / c->fabric_spine_oversubscription,
  };
  return table[weft_fabric_kind (f, link)];
}

uint32_t
weft_fabric_owner (const struct weft_fabric *f, enum weft_link_kind kind, uint32_t gpu)
{
  const struct weft_cluster *c = f->cluster;
  uint32_t node = gpu / c->f.node_gpus, slot = gpu % c->f.node_gpus, nic = nic_of_slot (c, slot);
  uint32_t unit = node / c->f.fabric_nodes_per_unit;
  uint32_t switches = (c->f.node_gpus + c->f.node_gpus_per_switch - 1) / c->f.node_gpus_per_switch;
  uint32_t at_switch = node * switches + slot / c->f.node_gpus_per_switch;
  const uint32_t table[WEFT_N_LINK] = {
    [WEFT_LINK_PORT_UP] = gpu,
    [WEFT_LINK_PORT_DOWN] = gpu,
    [WEFT_LINK_PCIE_UP] = gpu,
    [WEFT_LINK_PCIE_DOWN] = gpu,
    [WEFT_LINK_HOST_UP] = at_switch,
    [WEFT_LINK_HOST_DOWN] = at_switch,
    [WEFT_LINK_MEMORY] = node,
    [WEFT_LINK_NIC_UP] = node * c->f.node_nics + nic,
    [WEFT_LINK_NIC_DOWN] = node * c->f.node_nics + nic,
    [WEFT_LINK_LEAF_UP] = unit * c->f.node_nics + nic,
    [WEFT_LINK_LEAF_DOWN] = unit * c->f.node_nics + nic,
    [WEFT_LINK_SPINE_UP] = unit / c->f.fabric_units_per_pod,
    [WEFT_LINK_SPINE_DOWN] = unit / c->f.fabric_units_per_pod,
  };
  return f->first[kind] + table[kind];
}

static void
cross (const struct weft_fabric *f, struct weft_route *route, enum weft_link_kind kind,
       uint32_t gpu)
{
  if (f->first[kind] < f->first[kind + 1])
    route->link[route->n++] = weft_fabric_owner (f, kind, gpu);
}

static void
local_route (const struct weft_fabric *f, uint32_t from, uint32_t to, struct weft_route *route)
{
  enum weft_intra intra = f->cluster->f.node_intra;

  cross (f, route, WEFT_LINK_PORT_UP, from);
  if (intra == WEFT_PCIE)
    cross (f, route, WEFT_LINK_PCIE_UP, from);
  if (intra == WEFT_SHARED_MEMORY)
    cross (f, route, WEFT_LINK_MEMORY, from);
  if (intra == WEFT_PCIE)
    cross (f, route, WEFT_LINK_PCIE_DOWN, to);
  cross (f, route, WEFT_LINK_PORT_DOWN, to);
  route->latency = f->cluster->f.node_intra_latency;
}

void
weft_fabric_route (const struct weft_fabric *f, uint32_t from, uint32_t to,
                   struct weft_route *route)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  uint32_t rail_from = nic_of_slot (f->cluster, from % c->node_gpus);
  uint32_t rail_to = nic_of_slot (f->cluster, to % c->node_gpus);
  uint32_t node_from = weft_fabric_node (f, from), node_to = weft_fabric_node (f, to);
  uint32_t unit_from = node_from / c->fabric_nodes_per_unit,
           unit_to = node_to / c->fabric_nodes_per_unit;

  *route = (struct weft_route){ 0 };
  if (node_from == node_to) {
    local_route (f, from, to, route);
    return;
  }
  gboolean over_spine = unit_from != unit_to || rail_from != rail_to;
  gboolean over_core = unit_from / c->fabric_units_per_pod != unit_to / c->fabric_units_per_pod;
  cross (f, route, WEFT_LINK_PCIE_UP, from);
  cross (f, route, WEFT_LINK_NIC_UP, from);
  if (over_spine)
    cross (f, route, WEFT_LINK_LEAF_UP, from);
  if (over_core) {
    cross (f, route, WEFT_LINK_SPINE_UP, from);
    cross (f, route, WEFT_LINK_SPINE_DOWN, to);
  }
  if (over_spine)
    cross (f, route, WEFT_LINK_LEAF_DOWN, to);
  cross (f, route, WEFT_LINK_NIC_DOWN, to);
  cross (f, route, WEFT_LINK_PCIE_DOWN, to);
  route->latency = c->fabric_latency + (over_spine ? c->fabric_spine_latency : 0);
}

void
weft_fabric_host_route (const struct weft_fabric *f, uint32_t gpu, gboolean to_gpu,
                        struct weft_route *route)
{
  *route = (struct weft_route){ 0 };
  cross (f, route, WEFT_LINK_MEMORY, gpu);
  cross (f, route, to_gpu ? WEFT_LINK_HOST_DOWN : WEFT_LINK_HOST_UP, gpu);
  cross (f, route, to_gpu ? WEFT_LINK_PCIE_DOWN : WEFT_LINK_PCIE_UP, gpu);
  route->latency = 0;
}

void
weft_fabric_memory_route (const struct weft_fabric *f, uint32_t gpu, struct weft_route *route)
{
  *route = (struct weft_route){ 0 };
  cross (f, route, WEFT_LINK_MEMORY, gpu);
}

double
weft_fabric_route_rate (const struct weft_fabric *f, const struct weft_route *route)
{
  double rate = INFINITY;
  for (uint32_t i = 0; i < route->n; i++)
    rate = fmin (rate, weft_fabric_capacity (f, route->link[i]));
  return rate;
}
