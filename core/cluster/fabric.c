#include "core/cluster/fabric.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/base/sheet.h"
#include "core/base/units.h"
#include "core/cluster/groups.h"
#include <math.h>

const struct weft_fabric_ops *
weft_fabric_ops (const struct weft_cluster *cluster)
{
#define OPS(id, word, ops, doc) [id] = &ops,
  static const struct weft_fabric_ops *const table[WEFT_N_FABRIC] = { WEFT_FABRIC_LIST (OPS) };
#undef OPS
  return table[cluster->f.fabric_kind];
}

gboolean
weft_fabric_check (const struct weft_cluster *cluster, GError **error)
{
  const struct weft_fabric_ops *ops = weft_fabric_ops (cluster);
  return !ops->check || ops->check (cluster, error);
}

gboolean
weft_fabric_may_set (const union weft_cluster_fields *fields, unsigned row, GError **error)
{
  if (row == WEFT_CLUSTER_fabric_kind)
    return weft_bad_input (error, "found a kind of fabric, wanted it in the topology file");
  return weft_sheet_check_kind (&weft_cluster_sheet, fields->at, row, error);
}

uint32_t
weft_fabric_domain (const struct weft_cluster *cluster)
{
  return weft_fabric_ops (cluster)->domain (cluster);
}

uint32_t
weft_fabric_part (const struct weft_cluster *cluster)
{
  const struct weft_fabric_ops *ops = weft_fabric_ops (cluster);

  return ops->part && !weft_cluster_is_mixed (cluster) ? ops->part (cluster) : 0;
}

struct weft_fabric
weft_fabric_make (const struct weft_cluster *cluster)
{
  struct weft_fabric f = { .cluster = cluster, .ops = weft_fabric_ops (cluster) };

  WEFT_INVARIANT (f.ops->n_kind <= WEFT_MAX_LINK_KINDS);
  if (f.ops->measure)
    f.ops->measure (&f);
  for (uint32_t kind = 0; kind < f.ops->n_kind; kind++)
    f.first[kind + 1] = f.first[kind] + f.ops->kind[kind].count (&f);
  return f;
}

uint32_t
weft_fabric_kind (const struct weft_fabric *f, uint32_t link)
{
  uint32_t kind = 0;
  while (link >= f->first[kind + 1])
    kind++;
  return kind;
}

double
weft_fabric_capacity (const struct weft_fabric *f, uint32_t link)
{
  double own = f->uneven ? f->ops->capacity (f, link) : -1;

  return own >= 0 ? own : f->ops->kind[weft_fabric_kind (f, link)].capacity (f);
}

uint32_t
weft_fabric_owner (const struct weft_fabric *f, uint32_t kind, uint32_t gpu)
{
  return f->first[kind] + f->ops->kind[kind].owner (f, gpu);
}

void
weft_route_cross (const struct weft_fabric *f, struct weft_route *route, uint32_t kind,
                  uint32_t gpu)
{
  if (f->first[kind] < f->first[kind + 1])
    route->link[route->n++] = weft_fabric_owner (f, kind, gpu);
}

char *
weft_rate_pair (double reachable, double spec, const char *unit)
{
  g_autofree char *printed = weft_units_human (spec, unit);
  const double scale = g_ascii_strtod (printed, NULL) / spec;
  return g_strdup_printf ("%.3g of %s", reachable * scale, printed);
}

static void
begin (struct weft_route *route)
{
  route->n = 0;
  route->latency = 0;
}

void
weft_fabric_route_way (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
                       struct weft_route *route)
{
  begin (route);
  f->ops->route (f, from, to, way, route);
}

void
weft_fabric_route (const struct weft_fabric *f, uint32_t from, uint32_t to,
                   struct weft_route *route)
{
  weft_fabric_route_way (f, from, to, 0, route);
}

void
weft_fabric_host_route (const struct weft_fabric *f, uint32_t gpu, gboolean to_gpu,
                        struct weft_route *route)
{
  uint32_t host = f->ops->host_kind;

  begin (route);
  weft_route_cross (f, route, host + WEFT_HOST_MEMORY, gpu);
  weft_route_cross (f, route, host + (to_gpu ? WEFT_HOST_SWITCH_DOWN : WEFT_HOST_SWITCH_UP), gpu);
  weft_route_cross (f, route, host + (to_gpu ? WEFT_HOST_PCIE_DOWN : WEFT_HOST_PCIE_UP), gpu);
}

void
weft_fabric_memory_route (const struct weft_fabric *f, uint32_t gpu, struct weft_route *route)
{
  begin (route);
  weft_route_cross (f, route, f->ops->host_kind + WEFT_HOST_MEMORY, gpu);
}

double
weft_fabric_route_rate (const struct weft_fabric *f, const struct weft_route *route)
{
  double rate = INFINITY;
  for (uint32_t i = 0; i < route->n; i++)
    rate = fmin (rate, weft_fabric_capacity (f, route->link[i]));
  return rate;
}

/* ------------------------------------------------------- links to the host */

uint32_t
weft_link_each_gpu (const struct weft_fabric *f)
{
  return f->cluster->n_gpus;
}

uint32_t
weft_link_of_gpu (const struct weft_fabric *f, uint32_t gpu)
{
  (void) f;
  return gpu;
}

uint32_t
weft_link_each_node (const struct weft_fabric *f)
{
  return f->cluster->n_nodes;
}

uint32_t
weft_link_of_node (const struct weft_fabric *f, uint32_t gpu)
{
  return f->ops->node (f, gpu);
}

static uint32_t
switches (const struct weft_fabric *f)
{
  const union weft_cluster_fields *c = &f->cluster->f;
  return (c->node_gpus + c->node_gpus_per_switch - 1) / c->node_gpus_per_switch;
}

uint32_t
weft_link_each_switch (const struct weft_fabric *f)
{
  return f->cluster->n_nodes * switches (f);
}

uint32_t
weft_link_of_switch (const struct weft_fabric *f, uint32_t gpu)
{
  return f->ops->node (f, gpu) * switches (f) +
         f->ops->slot (f, gpu) / f->cluster->f.node_gpus_per_switch;
}

double
weft_link_host_rate (const struct weft_fabric *f)
{
  return f->cluster->f.gpu_host_link;
}

double
weft_link_memory_rate (const struct weft_fabric *f)
{
  return f->cluster->f.node_host_bandwidth;
}
