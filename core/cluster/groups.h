/* groups.h - clusters with several kinds of nodes: a topology file whose sections are groups of
 * nodes.
 *
 *   [nodes new]                 a group, with a name of its own
 *   from = dgx-h100             the topology of its nodes: a bundled name or a path
 *   count = 2
 *
 *   [nodes old]
 *   from = dgx-a100
 *   count = 2
 *   node_nic_bandwidth = 20GB/s fields of the GPU and the node that differ from this topology
 *
 *   [fabric]                    fields of the network; those that are missing are as in the
 *   latency = 14us              topology of the first group
 *
 * The nodes of a cluster are those of the groups, in the order of the file. Groups whose nodes are
 * equal in all fields are one kind. A cluster with one kind is in no way different from one
 * without groups, except that its size is given.
 *
 * Nodes of all kinds have as many GPUs, network ports and GPUs per PCIe switch, and the same kind
 * of links inside. A collective runs at the protocols and latencies of the slowest kind that its
 * members are on. Links have the rates of their own node. */
#pragma once
#include "core/cluster/cluster.h"

enum { WEFT_MOST_KINDS = 4 };

struct weft_node_group {
  char *name, *from;
  uint32_t count, kind;
};

struct weft_groups {
  char *path;
  GArray *group; /* struct weft_node_group */
  uint32_t n_kinds, n_nodes;
  uint32_t *kind_of; /* by node */
  /* by set of kinds (a bit for each): a cluster that has, for each field, the slowest value of
   * these kinds; for a single kind its own values. Its size is that of the whole cluster. */
  struct weft_cluster slowest[1 << WEFT_MOST_KINDS];
};

/* Whether a topology file has groups of nodes. FALSE for bundled names and files that cannot be
 * read. */
gboolean weft_groups_is_file (const char *path);

/* The groups of a file, which are kept until the process ends. NULL with an error: file, line, key,
 * what was found and what was wanted. */
const struct weft_groups *weft_groups_get (const char *path, GError **error);

/* Whether a cluster has several kinds of nodes. */
static inline gboolean
weft_cluster_is_mixed (const struct weft_cluster *c)
{
  return c->groups && c->groups->n_kinds > 1;
}

static inline uint32_t
weft_cluster_n_kinds (const struct weft_cluster *c)
{
  return weft_cluster_is_mixed (c) ? c->groups->n_kinds : 1;
}

/* The kind of the nodes that hold a GPU. */
static inline uint32_t
weft_cluster_kind_of (const struct weft_cluster *c, uint32_t gpu)
{
  return weft_cluster_is_mixed (c) ? c->groups->kind_of[gpu / c->f.node_gpus] : 0;
}

/* The cluster as GPUs of this set of kinds see it: `c` itself unless it is mixed. */
static inline const struct weft_cluster *
weft_cluster_of_kinds (const struct weft_cluster *c, uint32_t set)
{
  return weft_cluster_is_mixed (c) ? &c->groups->slowest[set] : c;
}

static inline const struct weft_cluster *
weft_cluster_of_kind (const struct weft_cluster *c, uint32_t kind)
{
  return weft_cluster_of_kinds (c, 1u << kind);
}

/* Refuses a cluster with several kinds of nodes, by the rule one_kind. `what` names the command or
 * function that needs one kind. */
gboolean weft_cluster_one_kind (const struct weft_cluster *cluster, const char *what,
                                GError **error);
