/* cluster.h - GPUs, nodes and the fabric between them: a topology file plus a size.
 *
 * Field `fabric_kind` names the fabric; fabric.h lists its links and places its GPUs. */
#pragma once
#include "core/base/field.h"
#include "core/base/words.h"

enum weft_cluster_field {
#define FIELD_TEXT(name, ...) WEFT_CLUSTER_##name,
#define FIELD_INT(name, ...) WEFT_CLUSTER_##name,
#define FIELD_REAL(name, ...) WEFT_CLUSTER_##name,
#define FIELD_WORD(name, ...) WEFT_CLUSTER_##name,
#include "core/cluster.def"
  WEFT_N_CLUSTER_FIELD
};

union weft_cluster_fields {
  struct {
#define FIELD_TEXT(name, ...) int64_t name;
#define FIELD_INT(name, ...) int64_t name;
#define FIELD_REAL(name, ...) double name;
#define FIELD_WORD(name, ...) int64_t name;
#include "core/cluster.def"
  };
  union weft_value at[WEFT_N_CLUSTER_FIELD];
};

struct weft_cluster {
  union weft_cluster_fields f;
  uint32_t n_gpus, n_nodes;
  GQuark topology; /* name or path that was passed to weft_cluster_load() */
};

/* Whether the ranks are threads of one machine. These ranks share its memory bus and have one core
 * each. */
static inline gboolean
weft_cluster_is_cpu (const struct weft_cluster *c)
{
  return c->f.node_intra == WEFT_SHARED_MEMORY;
}

/* FLOP/s that the best large matmuls of a dtype reach in a long run: the rate of a short benchmark,
 * times the fraction of this rate that the power limit leaves. A GPU sets its clock by the power
 * over many milliseconds, so attention kernels between the matmuls run at the same reduced clock. A
 * step with few matmuls draws less power, and its matmuls are then faster than this rate. */
double weft_cluster_matmul_rate (const struct weft_cluster *cluster, enum weft_dtype dtype);

/* The rate of weft_cluster_matmul_rate() for 4-bit floats (NVFP4); 0 if the GPU has no such
 * matmuls. */
static inline double
weft_cluster_nvfp4_rate (const struct weft_cluster *c)
{
  return c->f.gpu_nvfp4 * c->f.gpu_nvfp4_sustained;
}

extern const struct weft_table weft_cluster_table;

/* Loads topologies/NAME.ini, the path of such a file, or a SimGrid platform file (platform.h),
 * whose path ends with .xml. Sets the default size: the size that the fabric defines (a
 * torus: the product of its sides), otherwise one node. The default size of topology cpu is one
 * rank. */
gboolean weft_cluster_load (const char *name_or_path, struct weft_cluster *cluster, GError **error);

/* Sets the size from `gpus` or `nodes` (0: not given). A cluster is a part of one node or a number
 * of whole nodes. On topology cpu one node may have any number of GPUs (ranks). If both are 0, sets
 * the default size. */
gboolean weft_cluster_resize (struct weft_cluster *cluster, int64_t gpus, int64_t nodes,
                              GError **error);

/* Sets the default size again if the fabric defines a default size (a torus: the product of its
 * sides). Callers use it after they have set fields of the cluster, if the job sets no size. */
gboolean weft_cluster_settle (struct weft_cluster *cluster, GError **error);

/* Whether clusters with this kind of fabric have the field in row `row` of weft_cluster_table. */
gboolean weft_cluster_has (const struct weft_cluster *cluster, unsigned row);

/* Whether a job may set the field in row `row` of weft_cluster_table. Returns FALSE with an error
 * for fabric_kind, and for a field that only other kinds of fabric have. */
gboolean weft_cluster_may_set (const struct weft_cluster *cluster, unsigned row, GError **error);
