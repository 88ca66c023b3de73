/* cluster.h - GPUs, nodes and the fabric between them: a topology file plus a size.
 *
 * Field `fabric_kind` names the fabric; fabric.h says which links there are and where a GPU is. */
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
  GQuark topology; /* name it was loaded by */
};

/* Ranks run on threads of one machine: they share its memory bus and have one core each. */
static inline gboolean
weft_cluster_is_cpu (const struct weft_cluster *c)
{
  return c->f.node_intra == WEFT_SHARED_MEMORY;
}

extern const struct weft_table weft_cluster_table;

/* Loads topologies/NAME.ini or a path.  Size is left at one node; see weft_cluster_resize. */
gboolean weft_cluster_load (const char *name_or_path, struct weft_cluster *cluster, GError **error);

/* Sets the size from `gpus` or `nodes` (0: not given).  A cluster is a part of one node or a number
 * of whole nodes.  On topology cpu one node has any number of GPUs (ranks). */
gboolean weft_cluster_resize (struct weft_cluster *cluster, int64_t gpus, int64_t nodes,
                              GError **error);

/* Call after fields were set.  If no size was given, derives it from the fields of fabrics that
 * define a size (a torus: its sides). */
gboolean weft_cluster_settle (struct weft_cluster *cluster, GError **error);

/* Whether a cluster with this kind of fabric has the field; whether a job may set it. */
gboolean weft_cluster_has (const struct weft_cluster *cluster, unsigned row);
gboolean weft_cluster_may_set (const struct weft_cluster *cluster, unsigned row, GError **error);
