/* fabric.h - the links of a cluster, and the links that a byte crosses.
 *
 * A fabric is one file of this folder behind struct weft_fabric_ops: rails.c, torus.c.  Field
 * `kind` of a topology's section [fabric] names it.
 *
 * Links have a direction and a capacity.  A link that cannot be a bottleneck (a non-blocking switch
 * core, the ports of a switch that is not oversubscribed) does not exist.  Each fabric declares its
 * own kinds of links; a kind says how many of its links a cluster has and which of them serves a
 * GPU. */
#pragma once
#include "core/cluster/cluster.h"

/*  constant           word     operations   doc */
#define WEFT_FABRIC_LIST(X)                                                                        \
  X (WEFT_FABRIC_RAILS, "rails", weft_rails, "a switch in each node, a leaf switch for each rail") \
  X (WEFT_FABRIC_TORUS, "torus", weft_torus, "chips on three axes, with links to their neighbours")
enum weft_fabric_kind {
#define WEFT_FABRIC_ID(id, word, ops, doc) id,
  WEFT_FABRIC_LIST (WEFT_FABRIC_ID)
#undef WEFT_FABRIC_ID
      WEFT_N_FABRIC
};

enum { WEFT_MAX_AXES = 3, WEFT_MAX_WAYS = 6, WEFT_MAX_LINK_KINDS = 16, WEFT_MAX_ROUTE = 128 };

struct weft_route {
  uint32_t n, link[WEFT_MAX_ROUTE];
  double latency; /* seconds of one step over this path */
};

/* How collectives go over a fabric.
 *
 *   tiers   two axes: within a node, between nodes.  NCCL's rings and trees.
 *   grid    up to three axes of chips with links to their neighbours.  Rings along every axis, in
 *           both directions.
 *
 * A way numbers the classes of flows of a collective. Tiers have one way per axis. Grids have two
 * ways per axis, one for each direction: 2 axis + 0 is up, 2 axis + 1 is down. */
enum weft_fabric_style { WEFT_FABRIC_TIERS, WEFT_FABRIC_GRID };
enum { WEFT_WAY_LOCAL, WEFT_WAY_REMOTE }; /* of a tiered fabric: axes and ways alike */

struct weft_fabric {
  const struct weft_cluster *cluster;
  const struct weft_fabric_ops *ops;
  uint32_t side[WEFT_MAX_AXES];            /* of a grid: chips along each axis */
  gboolean wraps;                          /* of a grid: the last chip of an axis meets the first */
  uint32_t first[WEFT_MAX_LINK_KINDS + 1]; /* ids of kind k: [first[k], first[k + 1]) */
};

/* A kind of links.  Ids and owners count from 0 within the kind. */
struct weft_link_kind {
  const char *word, *doc;
  uint32_t (*count) (const struct weft_fabric *f);
  uint32_t (*owner) (const struct weft_fabric *f, uint32_t gpu);
  double (*capacity) (const struct weft_fabric *f); /* bytes/s of one of them */
};

struct weft_fabric_ops {
  enum weft_fabric_style style;
  uint32_t n_axis, n_kind;
  const char *const *axis;           /* words */
  const struct weft_link_kind *kind; /* of links; those to the host stand together */
  uint32_t host_kind;                /* the first of WEFT_HOST_LINKS among them */
  gboolean has_engines;              /* communication takes no SMs: engines of the chip move it */

  /* Number of GPUs if the job gives no size; NULL: one node. */
  uint32_t (*default_gpus) (const struct weft_cluster *cluster);

  /* Whether a cluster of this size can be built; if not, sets an error.  NULL: every size can. */
  gboolean (*check) (const struct weft_cluster *cluster, GError **error);

  /* Finds `side` and `wraps`; NULL where there are none. */
  void (*measure) (struct weft_fabric *f);

  /* A short text for the links inside a node, and one for those between nodes.  Caller frees. */
  char *(*inside) (const struct weft_cluster *cluster);
  char *(*network) (const struct weft_cluster *cluster);

  /* The node of a GPU, and its place among the GPUs of that node. */
  uint32_t (*node) (const struct weft_fabric *f, uint32_t gpu);
  uint32_t (*slot) (const struct weft_fabric *f, uint32_t gpu);

  /* Grids: coordinates of a GPU. */
  void (*place) (const struct weft_fabric *f, uint32_t gpu, uint32_t at[WEFT_MAX_AXES]);

  /* weft_fabric_domain(). */
  uint32_t (*domain) (const struct weft_cluster *cluster);

  /* Fills the route from GPU to GPU.  The caller passes an empty route with latency 0. */
  void (*route) (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
                 struct weft_route *route);
};

#define WEFT_FABRIC_OPS(id, word, ops, doc) extern const struct weft_fabric_ops ops;
WEFT_FABRIC_LIST (WEFT_FABRIC_OPS)
#undef WEFT_FABRIC_OPS

/* Whether the cluster, with its size, can be built. */
gboolean weft_fabric_check (const struct weft_cluster *cluster, GError **error);

/* Number of consecutive GPUs, from GPU 0, that the fastest kind of link connects. */
uint32_t weft_fabric_domain (const struct weft_cluster *cluster);

struct weft_fabric weft_fabric_make (const struct weft_cluster *cluster);
const struct weft_fabric_ops *weft_fabric_ops (const struct weft_cluster *cluster);

/* Bytes/s of a link, and its kind. */
double weft_fabric_capacity (const struct weft_fabric *f, uint32_t link);
uint32_t weft_fabric_kind (const struct weft_fabric *f, uint32_t link);

/* Which link of a kind serves a GPU. */
uint32_t weft_fabric_owner (const struct weft_fabric *f, uint32_t kind, uint32_t gpu);

static inline uint32_t
weft_fabric_links (const struct weft_fabric *f)
{
  return f->first[f->ops->n_kind];
}

static inline uint32_t
weft_fabric_ways (const struct weft_fabric *f)
{
  return f->ops->style == WEFT_FABRIC_GRID ? 2 * f->ops->n_axis : f->ops->n_axis;
}

static inline uint32_t
weft_fabric_node (const struct weft_fabric *f, uint32_t gpu)
{
  return f->ops->node (f, gpu);
}

/* The route from GPU to GPU.  If both directions of an axis are equally short, `way` chooses. */
void weft_fabric_route_way (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
                            struct weft_route *route);

/* The same with way 0. */
void weft_fabric_route (const struct weft_fabric *f, uint32_t from, uint32_t to,
                        struct weft_route *route);

/* Host memory to a GPU, or back. */
void weft_fabric_host_route (const struct weft_fabric *f, uint32_t gpu, gboolean to_gpu,
                             struct weft_route *route);

/* The memory of a GPU's host, where a kernel of the CPU finds its operands. */
void weft_fabric_memory_route (const struct weft_fabric *f, uint32_t gpu, struct weft_route *route);

/* Smallest capacity on a route: what one flow alone gets, in bytes/s. */
double weft_fabric_route_rate (const struct weft_fabric *f, const struct weft_route *route);

/* ------------------------------------------------------------- for fabrics */

/* Appends the link of this kind that serves the GPU, if there are links of this kind. */
void weft_route_cross (const struct weft_fabric *f, struct weft_route *route, uint32_t kind,
                       uint32_t gpu);

/* "361 of 450 GB/s": reachable, then as printed, in one unit.  Caller frees. */
char *weft_rate_pair (double reachable, double spec, const char *unit);

/* Links between GPUs and their host, which all fabrics have: rows for a table of kinds. */
enum {
  WEFT_HOST_PCIE_UP,
  WEFT_HOST_PCIE_DOWN,
  WEFT_HOST_SWITCH_UP,
  WEFT_HOST_SWITCH_DOWN,
  WEFT_HOST_MEMORY,
  WEFT_N_HOST_LINK
};
uint32_t weft_link_each_gpu (const struct weft_fabric *f);
uint32_t weft_link_of_gpu (const struct weft_fabric *f, uint32_t gpu);
uint32_t weft_link_each_node (const struct weft_fabric *f);
uint32_t weft_link_of_node (const struct weft_fabric *f, uint32_t gpu);
uint32_t weft_link_each_switch (const struct weft_fabric *f);
uint32_t weft_link_of_switch (const struct weft_fabric *f, uint32_t gpu);
double weft_link_host_rate (const struct weft_fabric *f);
double weft_link_memory_rate (const struct weft_fabric *f);

#define WEFT_HOST_LINKS                                                                            \
  { "pcie up", "GPU to its PCIe switch", weft_link_each_gpu, weft_link_of_gpu,                     \
    weft_link_host_rate },                                                                         \
  { "pcie down", "PCIe switch to a GPU", weft_link_each_gpu, weft_link_of_gpu,                     \
    weft_link_host_rate },                                                                         \
  { "host up", "PCIe switch to the host, shared by its GPUs", weft_link_each_switch,               \
    weft_link_of_switch, weft_link_host_rate },                                                    \
  { "host down", "host to a PCIe switch", weft_link_each_switch, weft_link_of_switch,              \
    weft_link_host_rate },                                                                         \
  { "host memory", "memory bus of a node", weft_link_each_node, weft_link_of_node,                 \
    weft_link_memory_rate },
