/* fabric.h - the links of a cluster as arithmetic, and the links a byte crosses.
 *
 * Links have a direction and a capacity; links that cannot be a bottleneck (a non-blocking switch
 * core, leaf or spine ports that are not oversubscribed) do not exist.  Every link belongs to a
 * GPU, a PCIe switch, a NIC, a leaf of a scalable unit, a pod or a node; weft_fabric_owner() is
 * that map. */
#pragma once
#include "core/job/cluster.h"

/*  constant             word          belongs to */
#define WEFT_LINK_LIST(X)                                                                          \
  X (WEFT_LINK_PORT_UP, "port up", "GPU into its node's switch")                                   \
  X (WEFT_LINK_PORT_DOWN, "port down", "node's switch into a GPU")                                 \
  X (WEFT_LINK_PCIE_UP, "pcie up", "GPU to its PCIe switch")                                       \
  X (WEFT_LINK_PCIE_DOWN, "pcie down", "PCIe switch to a GPU")                                     \
  X (WEFT_LINK_HOST_UP, "host up", "PCIe switch to the host, shared by its GPUs")                  \
  X (WEFT_LINK_HOST_DOWN, "host down", "host to a PCIe switch")                                    \
  X (WEFT_LINK_MEMORY, "host memory", "memory bus of a node")                                      \
  X (WEFT_LINK_NIC_UP, "nic up", "NIC into the fabric")                                            \
  X (WEFT_LINK_NIC_DOWN, "nic down", "fabric into a NIC")                                          \
  X (WEFT_LINK_LEAF_UP, "leaf up", "bundle of a unit's leaf to the spines, one rail")              \
  X (WEFT_LINK_LEAF_DOWN, "leaf down", "spines to a unit's leaf, one rail")                        \
  X (WEFT_LINK_SPINE_UP, "spine up", "bundle of a pod to the core")                                \
  X (WEFT_LINK_SPINE_DOWN, "spine down", "core to a pod")
enum weft_link_kind { WEFT_LINK_LIST (WEFT_WORD_ID) WEFT_N_LINK };
extern const char *const weft_link_words[];

#define WEFT_MAX_ROUTE 12

struct weft_route {
  uint32_t n, link[WEFT_MAX_ROUTE];
  double latency; /* seconds of one step over this path */
};

struct weft_fabric {
  const struct weft_cluster *cluster;
  uint32_t first[WEFT_N_LINK + 1]; /* link ids of kind k: [first[k], first[k + 1]) */
};

struct weft_fabric weft_fabric_make (const struct weft_cluster *cluster);
double weft_fabric_capacity (const struct weft_fabric *f, uint32_t link);
enum weft_link_kind weft_fabric_kind (const struct weft_fabric *f, uint32_t link);

/* Which link of a kind serves a GPU. */
uint32_t weft_fabric_owner (const struct weft_fabric *f, enum weft_link_kind kind, uint32_t gpu);

static inline uint32_t
weft_fabric_node (const struct weft_fabric *f, uint32_t gpu)
{
  return gpu / f->cluster->f.node_gpus;
}

/* GPU to GPU; within a node over its switch, between nodes over the sender's rail. */
void weft_fabric_route (const struct weft_fabric *f, uint32_t from, uint32_t to,
                        struct weft_route *route);

/* Host memory to a GPU, or back. */
void weft_fabric_host_route (const struct weft_fabric *f, uint32_t gpu, gboolean to_gpu,
                             struct weft_route *route);

/* The memory of a GPU's host, where a kernel of the CPU finds its operands. */
void weft_fabric_memory_route (const struct weft_fabric *f, uint32_t gpu, struct weft_route *route);

/* Smallest capacity on a route: what one flow alone gets, in bytes/s. */
double weft_fabric_route_rate (const struct weft_fabric *f, const struct weft_route *route);
