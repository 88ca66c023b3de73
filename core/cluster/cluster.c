#include "core/cluster/fabric.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "core/base/sheet.h"

#define FABRIC_WORD(id, word, ops, doc) word,
static const char *const weft_fabric_words[] = { WEFT_FABRIC_LIST (FABRIC_WORD) NULL };

static const struct weft_field fields[] = {
#define FIELD_TEXT WEFT_ROW_TEXT
#define FIELD_INT WEFT_ROW_INT
#define FIELD_REAL WEFT_ROW_REAL
#define FIELD_WORD WEFT_ROW_WORD
#include "core/cluster.def"
};

const struct weft_table weft_cluster_table = { "topology field", fields, G_N_ELEMENTS (fields) };

static const char *const sections[] = { "gpu", "node", "fabric", "cost", NULL };

/* No fp8 unit, no spine and no thinning of the fabric are what a plain cluster has. */
static const unsigned optional[] = {
  WEFT_CLUSTER_cost_table,
  WEFT_CLUSTER_gpu_capability,
  WEFT_CLUSTER_gpu_fp8_spec,
  WEFT_CLUSTER_gpu_fp8,
  WEFT_CLUSTER_gpu_cuda_core_spec,
  WEFT_CLUSTER_fabric_kind,
  WEFT_CLUSTER_fabric_spine_latency,
  WEFT_CLUSTER_fabric_nodes_per_unit,
  WEFT_CLUSTER_fabric_units_per_pod,
  WEFT_CLUSTER_fabric_leaf_oversubscription,
  WEFT_CLUSTER_fabric_spine_oversubscription,
  WEFT_CLUSTER_fabric_max_nodes,
  WEFT_CLUSTER_fabric_sharp,
};

const struct weft_sheet weft_cluster_sheet = {
  .table = &weft_cluster_table,
  .folder = "topologies",
  .sections = sections,
  .prefixed = TRUE,
  .optional = optional,
  .n_optional = G_N_ELEMENTS (optional),
};

/* Ranks that run on threads of one machine come in any number: unasked, one. */
static uint32_t
default_gpus (const struct weft_cluster *cluster)
{
  return weft_cluster_is_cpu (cluster) ? 1 : cluster->f.node_gpus;
}

gboolean
weft_cluster_load (const char *name_or_path, struct weft_cluster *cluster, GError **error)
{
  if (!weft_sheet_load (&weft_cluster_sheet, name_or_path, cluster->f.at, error))
    return FALSE;
  cluster->topology = g_quark_from_string (name_or_path);
  cluster->n_nodes = 1;
  cluster->n_gpus = default_gpus (cluster);
  return TRUE;
}

static gboolean
check_nodes (const struct weft_cluster *cluster, int64_t nodes, GError **error)
{
  const int64_t most = MIN (cluster->f.fabric_max_nodes, G_MAXINT32 / cluster->f.node_gpus);

  if (nodes >= 1 && nodes <= most)
    return TRUE;
  return weft_bad_input (
      error, "nodes: found %" G_GINT64_FORMAT ", wanted 1..%" G_GINT64_FORMAT " on topology %s",
      nodes, most, g_quark_to_string (cluster->topology));
}

/* `nodes`, when not 0, has been checked. */
static gboolean
check_gpus (const struct weft_cluster *cluster, int64_t gpus, int64_t nodes, GError **error)
{
  const char *topology = g_quark_to_string (cluster->topology);
  const int64_t node_gpus = cluster->f.node_gpus;

  if (gpus < 1)
    return weft_bad_input (error, "gpus: found %" G_GINT64_FORMAT ", wanted 1 or more", gpus);
  if (gpus > node_gpus && gpus % node_gpus != 0)
    return weft_bad_input (error,
                           "gpus: found %" G_GINT64_FORMAT ", wanted up to %" G_GINT64_FORMAT
                           " or a multiple of it: whole nodes of topology %s",
                           gpus, node_gpus, topology);
  if (nodes > 0 && gpus != nodes * node_gpus && !(nodes == 1 && gpus < node_gpus))
    return weft_bad_input (error,
                           "gpus: found %" G_GINT64_FORMAT ", wanted %" G_GINT64_FORMAT
                           ", which is what nodes = %" G_GINT64_FORMAT " of topology %s have",
                           gpus, nodes * node_gpus, nodes, topology);
  return TRUE;
}

gboolean
weft_cluster_resize (struct weft_cluster *cluster, int64_t gpus, int64_t nodes, GError **error)
{
  const int64_t node_gpus = cluster->f.node_gpus;

  if (nodes != 0 && !check_nodes (cluster, nodes, error))
    return FALSE;
  if (gpus != 0) {
    if (!check_gpus (cluster, gpus, nodes, error))
      return FALSE;
    nodes = gpus / node_gpus + (gpus < node_gpus);
    if (!check_nodes (cluster, nodes, error)) {
      g_prefix_error (error, "gpus = %" G_GINT64_FORMAT ": ", gpus);
      return FALSE;
    }
  }
  cluster->n_nodes = MAX (nodes, 1);
  cluster->n_gpus = gpus ? gpus : nodes > 1 ? nodes * node_gpus : default_gpus (cluster);
  return TRUE;
}

char **
weft_cluster_names (void)
{
  return weft_data_names (weft_cluster_sheet.folder, WEFT_SHEET_SUFFIX);
}
