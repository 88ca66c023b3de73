#include "cli/cli.h"
#include "cli/sheets.h"
#include "core/cluster/cluster.h"
#include "core/base/units.h"

/* "361 of 450 GB/s": reachable, then as printed, in one unit. */
static char *
pair (double reachable, double spec, const char *unit)
{
  g_autofree char *printed = weft_units_human (spec, unit);
  const double scale = g_ascii_strtod (printed, NULL) / spec;
  return g_strdup_printf ("%.3g of %s", reachable * scale, printed);
}

static char *
nics (const union weft_cluster_fields *f)
{
  g_autofree char *rate = weft_units_human (8 * f->node_nic_bandwidth_spec, "b/s");
  return g_strdup_printf ("%" G_GINT64_FORMAT " x %s", f->node_nics, rate);
}

static char *
intra (const union weft_cluster_fields *f)
{
  g_autofree char *rate = pair (f->node_intra_bandwidth, f->node_intra_bandwidth_spec, "B/s");
  return g_strdup_printf ("%s %s", weft_intra_words[f->node_intra], rate);
}

/* X(ID, head, text of the cell from `f`) */
#define COLUMN_LIST(X)                                                                             \
  X (COLUMN_GPU, "GPU", g_strdup (g_quark_to_string (f->gpu_name)))                                \
  X (COLUMN_GPUS, "per node", g_strdup_printf ("%d", (int) f->node_gpus))                          \
  X (COLUMN_MEMORY, "memory", weft_units_human (f->gpu_memory, "B"))                               \
  X (COLUMN_BF16, "bf16", pair (f->gpu_bf16, f->gpu_bf16_spec, "FLOP/s"))                          \
  X (COLUMN_INTRA, "inside a node", intra (f))                                                     \
  X (COLUMN_NICS, "network", nics (f))

#define COLUMN_ID(id, head, text) id,
#define COLUMN_HEAD(id, head, text) head,
#define COLUMN_CELL(id, head, text)                                                                \
  case id:                                                                                         \
    return text;

enum column { COLUMN_LIST (COLUMN_ID) };

static char *
cell (const union weft_value *values, unsigned column)
{
  const union weft_cluster_fields *f = (const union weft_cluster_fields *) values;

  switch ((enum column) column) {
    COLUMN_LIST (COLUMN_CELL)
  }
  g_assert_not_reached ();
}

int
weft_cli_topologies (int argc, char **argv)
{
  static const char *const heads[] = { COLUMN_LIST (COLUMN_HEAD) NULL };
  static const struct weft_cli_sheets kind = {
    .sheet = &weft_cluster_sheet,
    .command = "topologies",
    .example = "dgx-h100",
    .heads = heads,
    .cell = cell,
  };
  return weft_cli_sheets (&kind, argc, argv);
}
