/* fabric.h - the links of a cluster, and the route of links between two GPUs.
 *
 * A fabric is one file of this folder behind struct weft_fabric_ops: rails.c, torus.c. Field `kind`
 * in section [fabric] of a topology names the fabric.
 *
 * Links have a direction and a capacity. A link that cannot be a bottleneck (a non-blocking switch
 * core, the ports of a switch that is not oversubscribed) is not modelled. Each fabric declares its
 * own kinds of links. For each kind, it defines the number of links in a cluster and the link that
 * serves a GPU. */
#pragma once
#include "core/cluster/cluster.h"

/*  constant           word     operations   doc */
#define WEFT_FABRIC_LIST(X)                                                                        \
  X (WEFT_FABRIC_RAILS, "rails", weft_rails, "a switch in each node, a leaf switch for each rail") \
  X (WEFT_FABRIC_TORUS, "torus", weft_torus,                                                       \
     "chips on three axes, with links to their neighbours")                                        \
  X (WEFT_FABRIC_PLATFORM, "platform", weft_platform_fabric,                                       \
     "a switch in each node, links and routes between nodes from a SimGrid platform file")
enum weft_fabric_kind {
#define WEFT_FABRIC_ID(id, word, ops, doc) id,
  WEFT_FABRIC_LIST (WEFT_FABRIC_ID)
#undef WEFT_FABRIC_ID
      WEFT_N_FABRIC
};
extern const char *const weft_fabric_words[]; /* NULL-terminated */

enum { WEFT_MAX_AXES = 3, WEFT_MAX_WAYS = 6, WEFT_MAX_LINK_KINDS = 16, WEFT_MAX_ROUTE = 128 };

struct weft_route {
  uint32_t n, link[WEFT_MAX_ROUTE];
  double latency; /* seconds that a message takes in addition to its bytes divided by the rate */
};

/* How collectives use a fabric.
 *
 * tiers: two axes, one within a node and one between nodes, for NCCL's rings and trees.
 * grid: up to three axes of chips with links to their neighbours, for rings along every axis in
 * both directions.
 *
 * The flows of a collective form classes, called ways. A fabric of tiers has one way per axis. A
 * grid has two ways per axis, one for each direction: way 2 axis + 0 goes up, way 2 axis + 1 goes
 * down. */
enum weft_fabric_style { WEFT_FABRIC_TIERS, WEFT_FABRIC_GRID };
enum { WEFT_WAY_LOCAL, WEFT_WAY_REMOTE }; /* axes of a tiered fabric; their numbers are also the
                                           * numbers of its ways */

struct weft_fabric {
  const struct weft_cluster *cluster;
  const struct weft_fabric_ops *ops;
  uint32_t side[WEFT_MAX_AXES];            /* grids only: number of chips along each axis */
  /* grids only: whether the last chip of each axis has a link to the first chip */
  gboolean wraps;
  const struct weft_platform *platform;    /* kind platform only */
  gboolean uneven; /* whether links of one kind may have different capacities */
  /* the links of kind k have the ids first[k] to first[k + 1] - 1 */
  uint32_t first[WEFT_MAX_LINK_KINDS + 1];
};

struct weft_link_kind {
  /* its name, which ends with " up" or " down" if links of the opposite direction are another
   * kind */
  const char *word, *doc;
  /* Number of links of one kind in a cluster. */
  uint32_t (*count) (const struct weft_fabric *f);
  /* The number, from 0, of the link of this kind that serves a GPU. */
  uint32_t (*owner) (const struct weft_fabric *f, uint32_t gpu);
  double (*capacity) (const struct weft_fabric *f); /* bytes/s of one link */
  const char *also; /* another name, without a direction; NULL: none */
};

struct weft_fabric_ops {
  enum weft_fabric_style style;
  uint32_t n_axis, n_kind;
  const char *const *axis;           /* name of each axis of the fabric */
  const struct weft_link_kind *kind; /* kinds of links; the rows of WEFT_HOST_LINKS are
                                        consecutive */
  uint32_t host_kind;                /* index in `kind` of the first row of WEFT_HOST_LINKS */
  /* whether an engine of the chip, not its cores, moves data, so that communication occupies no
   * SMs */
  gboolean has_engines;

  /* Number of GPUs of a cluster if the job sets no size; NULL: the GPUs of one node. */
  uint32_t (*default_gpus) (const struct weft_cluster *cluster);

  /* Whether a cluster can have this number of GPUs. FALSE: *error is set. NULL function: every
   * number is possible. */
  gboolean (*check) (const struct weft_cluster *cluster, GError **error);

  /* Bytes/s of a link, for kinds whose links differ; a negative number: that of its kind. NULL: no
   * links differ. */
  double (*capacity) (const struct weft_fabric *f, uint32_t link);

  /* Sets the sides of a grid in `side`, and in `wraps` whether each axis has wraparound links. A
   * platform: sets `platform`. NULL for other fabrics. */
  void (*measure) (struct weft_fabric *f);

  /* Texts for reports that describe the links inside a node and the links between nodes. The caller
   * frees the texts. */
  char *(*inside) (const struct weft_cluster *cluster);
  char *(*network) (const struct weft_cluster *cluster);

  /* The node of a GPU, and its place among the GPUs of that node. */
  uint32_t (*node) (const struct weft_fabric *f, uint32_t gpu);
  uint32_t (*slot) (const struct weft_fabric *f, uint32_t gpu);

  /* Writes the coordinates of a GPU to at[]. Only grids call this function. */
  void (*place) (const struct weft_fabric *f, uint32_t gpu, uint32_t at[WEFT_MAX_AXES]);

  /* Number of consecutive GPUs, from GPU 0, that the fastest kind of link connects
   * (weft_fabric_domain()). */
  uint32_t (*domain) (const struct weft_cluster *cluster);

  /* Number of consecutive GPUs, from GPU 0, in the largest parts into which the fabric divides a
   * cluster (weft_fabric_part()). NULL: every GPU has a place of its own. */
  uint32_t (*part) (const struct weft_cluster *cluster);

  /* Fills the route from GPU `from` to GPU `to`.  The caller passes an empty route with latency
   * 0. */
  void (*route) (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
                 struct weft_route *route);
};

#define WEFT_FABRIC_OPS(id, word, ops, doc) extern const struct weft_fabric_ops ops;
WEFT_FABRIC_LIST (WEFT_FABRIC_OPS)
#undef WEFT_FABRIC_OPS

/* Whether a cluster can have this number of GPUs. FALSE: *error is set. */
gboolean weft_fabric_check (const struct weft_cluster *cluster, GError **error);

/* Whether the field in row `row` of weft_cluster_table may be set on a cluster with these fields.
 * FALSE with an error for fabric_kind, because the kind decides which fields a topology file must
 * give, and for a field that this kind of fabric does not have. */
gboolean weft_fabric_may_set (const union weft_cluster_fields *fields, unsigned row,
                              GError **error);

/* Number of consecutive GPUs, from GPU 0, that the fastest kind of link connects. */
uint32_t weft_fabric_domain (const struct weft_cluster *cluster);

/* Number of consecutive GPUs in the largest parts (PCIe switches, nodes, scalable units, pods) into
 * which the fabric divides a cluster, so that routes inside a part differ from routes between
 * parts; 1: the cluster is a single part. 0: every GPU has a place of its own, as on a grid, or the
 * nodes differ. */
uint32_t weft_fabric_part (const struct weft_cluster *cluster);

/* The fabric of a cluster.  The result points to `cluster`, which must outlive it. */
struct weft_fabric weft_fabric_make (const struct weft_cluster *cluster);

/* The functions of the kind of fabric that a cluster has. */
const struct weft_fabric_ops *weft_fabric_ops (const struct weft_cluster *cluster);

/* The capacity of a link in bytes/s. */
double weft_fabric_capacity (const struct weft_fabric *f, uint32_t link);

/* The kind of a link, as an index in ops->kind. */
uint32_t weft_fabric_kind (const struct weft_fabric *f, uint32_t link);

/* The link of kind `kind` that serves GPU `gpu`. */
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

/* The route from GPU `from` to GPU `to`.  If both directions of an axis are equally short, `way`
 * chooses the direction. */
void weft_fabric_route_way (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
                            struct weft_route *route);

/* The route from one GPU to another (weft_fabric_route_way() with way 0). */
void weft_fabric_route (const struct weft_fabric *f, uint32_t from, uint32_t to,
                        struct weft_route *route);

/* The route from host memory to a GPU, or, if `to_gpu` is FALSE, from the GPU to host memory. */
void weft_fabric_host_route (const struct weft_fabric *f, uint32_t gpu, gboolean to_gpu,
                             struct weft_route *route);

/* The route that kernels on the CPU use to their operands in host memory. */
void weft_fabric_memory_route (const struct weft_fabric *f, uint32_t gpu, struct weft_route *route);

/* Smallest link capacity on a route, in bytes/s: the rate of a flow that shares no link with other
 * flows. */
double weft_fabric_route_rate (const struct weft_fabric *f, const struct weft_route *route);

/* ------------------------------------------------------------- for fabrics */

/* Appends to the route the link of one kind that serves the GPU. Appends nothing if the cluster has
 * no links of this kind. */
void weft_route_cross (const struct weft_fabric *f, struct weft_route *route, uint32_t kind,
                       uint32_t gpu);

/* Formats two rates in one unit: "361 of 450 GB/s", the reachable rate and then the vendor's rate.
 * The caller frees the text. */
char *weft_rate_pair (double reachable, double spec, const char *unit);

/* Links between GPUs and their host, which all fabrics have: the index of each row in
 * WEFT_HOST_LINKS, and the functions (count, owner, capacity) that these rows use. */
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
