#include "cli/cli.h"
#include "cli/sheets.h"
#include "core/cluster/fabric.h"
#include "core/base/units.h"

/* Columns of the table: X(ID, head, text of the cell from `cluster` and its fields `f`). */
#define COLUMN_LIST(X)                                                                             \
  X (COLUMN_GPU, "GPU", g_strdup (g_quark_to_string (f->gpu_name)))                                \
  X (COLUMN_GPUS, "per node", g_strdup_printf ("%d", (int) f->node_gpus))                          \
  X (COLUMN_MEMORY, "memory", weft_units_human (f->gpu_memory, "B"))                               \
  X (COLUMN_BF16, "bf16", weft_rate_pair (f->gpu_bf16, f->gpu_bf16_spec, "FLOP/s"))                \
  X (COLUMN_INTRA, "inside a node", weft_fabric_ops (cluster)->inside (cluster))                   \
  X (COLUMN_NICS, "network", weft_fabric_ops (cluster)->network (cluster))

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
  const struct weft_cluster size = { .f = *f }, *cluster = &size;

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
