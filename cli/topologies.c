#include "cli/cli.h"
#include "cli/sheets.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/cluster/fabric.h"
#include "core/cluster/platform.h"
#include <stdio.h>

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

/* ---------------------------------------------------------------- SimGrid platforms */

/* The least and the largest bandwidth of the links. */
static void
find_range (const struct weft_platform *p, double range[2])
{
  range[0] = range[1] = g_array_index (p->link, struct weft_platform_link, 0).bandwidth;
  for (guint i = 1; i < p->link->len; i++) {
    double bandwidth = g_array_index (p->link, struct weft_platform_link, i).bandwidth;
    range[0] = MIN (range[0], bandwidth);
    range[1] = MAX (range[1], bandwidth);
  }
}

static void
print_platform (const char *path, const struct weft_platform *p)
{
  double range[2] = { 0, 0 };

  if (p->link->len)
    find_range (p, range);
  g_autofree char *least = weft_units_human (range[0], "B/s");
  g_autofree char *most = weft_units_human (range[1], "B/s");
  printf ("%s: the network of a SimGrid platform; hosts: %u; links: %u, of %s%s%s\n\n", path,
          p->host->len, p->link->len, least, range[1] > range[0] ? " to " : "",
          range[1] > range[0] ? most : "");
  printf ("Its hosts are nodes of topology %s, which has the other numbers and their sources:\n"
          "`weft topologies %s`. A job takes the file as `--topology %s`.\n",
          p->topology, p->topology, path);
}

static void
print_platform_json (const char *path, const struct weft_platform *p)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "name", path);
  weft_json_text (b, "topology", p->topology);
  weft_json_array (b, "hosts");
  for (guint i = 0; i < p->host->len; i++)
    json_builder_add_string_value (b, p->host->pdata[i]);
  json_builder_end_array (b);
  weft_json_array (b, "links");
  for (guint i = 0; i < p->link->len; i++) {
    const struct weft_platform_link *link = &g_array_index (p->link, struct weft_platform_link, i);
    json_builder_begin_object (b);
    weft_json_text (b, "name", link->name);
    weft_json_real (b, "bandwidth", link->bandwidth);
    weft_json_real (b, "latency", link->latency);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static int
show_platform (const char *path, gboolean json)
{
  g_autoptr (GError) error = NULL;
  const struct weft_platform *p = weft_platform_get (path, &error);

  if (!p)
    return weft_cli_fail (error);
  (json ? print_platform_json : print_platform) (path, p);
  return 0;
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
    .claims = weft_platform_is_file,
    .show = show_platform,
  };
  return weft_cli_sheets (&kind, argc, argv);
}
