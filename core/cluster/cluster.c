#include "core/cluster/fabric.h"
#include "core/cluster/platform.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "core/base/sheet.h"

#define FABRIC_WORD(id, word, ops, doc) word,
const char *const weft_fabric_words[] = { WEFT_FABRIC_LIST (FABRIC_WORD) NULL };

/* Values of the columns "given" (must a file give the field) and "kinds" (which fabrics have it) of
 * core/cluster.def. */
enum { NEEDED = FALSE, OPTIONAL = TRUE };
#define ALL NULL
#define RAILS "rails platform"

static const struct weft_field fields[] = {
#define FIELD_TEXT(id, def_, given, kinds, doc_)                                                   \
  WEFT_ROW_TEXT (id, def_, doc_, .optional = given, .only = kinds)
#define FIELD_INT(id, def_, given, kinds, lo_, hi_, doc_)                                          \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_INT, def_, lo_, hi_, "", doc_, .optional = given, .only = kinds)
#define FIELD_REAL(id, def_, given, kinds, lo_, hi_, unit_, doc_)                                  \
  WEFT_ROW_NUMBER (id, WEFT_TYPE_REAL, def_, lo_, hi_, unit_, doc_, .optional = given,             \
                   .only = kinds)
#define FIELD_WORD(id, def_, given, kinds, words_, doc_)                                           \
  WEFT_ROW_WORD (id, def_, words_, doc_, .optional = given, .only = kinds)
#include "core/cluster.def"
};

const struct weft_table weft_cluster_table = { "topology field", fields, G_N_ELEMENTS (fields) };

static const char *const sections[] = { "gpu", "node", "fabric", "cost", NULL };

const struct weft_sheet weft_cluster_sheet = {
  .table = &weft_cluster_table,
  .folder = "topologies",
  .sections = sections,
  .prefixed = TRUE,
  .has_kinds = TRUE,
  .kind = WEFT_CLUSTER_fabric_kind,
};

double
weft_cluster_matmul_rate (const struct weft_cluster *c, enum weft_dtype dtype)
{
  const double fp32 = c->f.gpu_fp32 * c->f.gpu_fp32_sustained;
  const double bf16 = c->f.gpu_bf16 * c->f.gpu_bf16_sustained;
  const double fp8 = c->f.gpu_fp8 * c->f.gpu_fp8_sustained;
  const double rate[WEFT_N_DTYPE] = {
    [WEFT_FP32] = fp32, [WEFT_BF16] = bf16,  [WEFT_FP16] = bf16,
    [WEFT_FP8] = fp8,   [WEFT_INT32] = fp32, [WEFT_E5M2] = fp8,
  };
  return rate[dtype];
}

/* The default number of GPUs: the size that the fabric defines, or one node. On topology cpu, where
 * ranks are threads, the default is one rank. */
static uint32_t
default_gpus (const struct weft_cluster *cluster)
{
  const struct weft_fabric_ops *fabric = weft_fabric_ops (cluster);

  if (fabric->default_gpus)
    return fabric->default_gpus (cluster);
  return weft_cluster_is_cpu (cluster) ? 1 : cluster->f.node_gpus;
}

static uint32_t
nodes_of (const struct weft_cluster *cluster, int64_t gpus)
{
  return MAX (1, gpus / cluster->f.node_gpus);
}

/* Loads the topology that a SimGrid platform file names, with the network of the file. Its own
 * network has no links here, so nothing collides at its switches. */
static gboolean
load_platform (const char *path, struct weft_cluster *cluster, GError **error)
{
  const struct weft_platform *p = weft_platform_get (path, error);

  if (!p)
    return FALSE;
  if (!p->topology)
    return weft_bad_input (error,
                           "%s: found no property topology, wanted <prop id=\"topology\" "
                           "value=\"dgx-h100\"/> in the zone or cluster: the hosts are nodes of it",
                           path);
  if (!weft_sheet_load (&weft_cluster_sheet, p->topology, cluster->f.at, error)) {
    g_prefix_error (error, "%s: property topology: ", path);
    return FALSE;
  }
  if (cluster->f.fabric_kind != WEFT_FABRIC_RAILS || weft_cluster_is_cpu (cluster))
    return weft_bad_input (error,
                           "%s: property topology: found %s, wanted a topology of nodes with GPUs "
                           "and a network between them",
                           path, p->topology);
  cluster->f.fabric_kind = WEFT_FABRIC_PLATFORM;
  cluster->f.fabric_platform = (int64_t) g_quark_from_string (path);
  cluster->f.fabric_congestion = cluster->f.fabric_spine_latency = 0;
  return TRUE;
}

/* Whether the platform file of a topology file can be read. */
static gboolean
check_platform (const struct weft_cluster *cluster, GError **error)
{
  return cluster->f.fabric_kind != WEFT_FABRIC_PLATFORM ||
         weft_platform_get (g_quark_to_string ((GQuark) cluster->f.fabric_platform), error);
}

gboolean
weft_cluster_load (const char *name_or_path, struct weft_cluster *cluster, GError **error)
{
  if (weft_platform_is_file (name_or_path)
          ? !load_platform (name_or_path, cluster, error)
          : !weft_sheet_load (&weft_cluster_sheet, name_or_path, cluster->f.at, error) ||
                !check_platform (cluster, error))
    return FALSE;
  cluster->topology = g_quark_from_string (name_or_path);
  cluster->n_gpus = default_gpus (cluster);
  cluster->n_nodes = nodes_of (cluster, cluster->n_gpus);
  return TRUE;
}

static gboolean
check_nodes (const struct weft_cluster *cluster, int64_t nodes, GError **error)
{
  const int64_t most = MIN (cluster->f.fabric_max_nodes, G_MAXINT32 / cluster->f.node_gpus);

  if (nodes >= 1 && nodes <= most)
    return TRUE;
  return weft_bad_input (error,
                         "nodes: found %" G_GINT64_FORMAT ", wanted 1..%" G_GINT64_FORMAT
                         " nodes on topology %s",
                         nodes, most, g_quark_to_string (cluster->topology));
}

/* Checks the number of GPUs of a cluster. `nodes` is 0 (not given), or a number that check_nodes()
 * has accepted. */
static gboolean
check_gpus (const struct weft_cluster *cluster, int64_t gpus, int64_t nodes, GError **error)
{
  const char *topology = g_quark_to_string (cluster->topology);
  const int64_t node_gpus = cluster->f.node_gpus;

  if (gpus < 1)
    return weft_bad_input (error, "gpus: found %" G_GINT64_FORMAT ", wanted 1 GPU or more", gpus);
  if (gpus > node_gpus && gpus % node_gpus != 0)
    return weft_bad_input (error,
                           "gpus: found %" G_GINT64_FORMAT ", wanted up to %" G_GINT64_FORMAT
                           " GPUs or a multiple of it: whole nodes of topology %s",
                           gpus, node_gpus, topology);
  if (nodes > 0 && gpus != nodes * node_gpus && !(nodes == 1 && gpus < node_gpus))
    return weft_bad_input (error,
                           "gpus: found %" G_GINT64_FORMAT ", wanted %" G_GINT64_FORMAT
                           " GPUs, which is what nodes = %" G_GINT64_FORMAT " of topology %s have",
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
  struct weft_cluster sized = *cluster;
  gboolean whole = nodes > 1 || (nodes == 1 && cluster->f.fabric_kind == WEFT_FABRIC_PLATFORM);
  sized.n_gpus = gpus ? gpus : whole ? nodes * node_gpus : default_gpus (cluster);
  sized.n_nodes = nodes ? nodes : nodes_of (cluster, sized.n_gpus);
  if (!check_nodes (&sized, sized.n_nodes, error) || !weft_fabric_check (&sized, error))
    return FALSE;
  *cluster = sized;
  return TRUE;
}

gboolean
weft_cluster_settle (struct weft_cluster *cluster, GError **error)
{
  return !weft_fabric_ops (cluster)->default_gpus || weft_cluster_resize (cluster, 0, 0, error);
}

gboolean
weft_cluster_has (const struct weft_cluster *cluster, unsigned row)
{
  return weft_sheet_has (&weft_cluster_sheet, cluster->f.at, row);
}

/* Refuses field fabric_kind, because the kind of fabric decides which fields the topology file must
 * give. */
gboolean
weft_cluster_may_set (const struct weft_cluster *cluster, unsigned row, GError **error)
{
  if (row == WEFT_CLUSTER_fabric_kind)
    return weft_bad_input (error, "found a kind of fabric, wanted it in the topology file");
  return weft_sheet_check_kind (&weft_cluster_sheet, cluster->f.at, row, error);
}
