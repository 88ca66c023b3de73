#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/sheets.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/cluster/fabric.h"
#include "core/cluster/groups.h"
#include "core/cluster/platform.h"
#include <stdio.h>
#include <string.h>

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

/* ---------------------------------------------------------------- groups of nodes */

static const struct weft_node_group *
group_at (const struct weft_groups *groups, guint i)
{
  return &g_array_index (groups->group, struct weft_node_group, i);
}

static const union weft_value *
values_of (const struct weft_groups *groups, guint i)
{
  return groups->slowest[1u << group_at (groups, i)->kind].f.at;
}

/* Width of a column of the list of groups. */
static int
width_of (const struct weft_groups *groups, const char *const *heads, unsigned k)
{
  int width = (int) strlen (heads[k]);

  for (guint i = 0; i < groups->group->len; i++) {
    g_autofree char *text = cell (values_of (groups, i), k);
    width = MAX (width, (int) g_utf8_strlen (text, -1));
  }
  return width;
}

enum { NAME_WIDTH = 12, NODES_WIDTH = 10, FROM_WIDTH = 14 };

/* Number of columns, counted from the left, that fit the terminal. */
static unsigned
columns_that_fit (const struct weft_groups *groups, const char *const *heads)
{
  int left = weft_cli_columns () - NAME_WIDTH - NODES_WIDTH - FROM_WIDTH;
  unsigned n = 0;

  while (heads[n] && (left -= width_of (groups, heads, n) + 2) >= -2)
    n++;
  return n;
}

static void
print_group (const struct weft_groups *groups, const char *const *heads, guint i, uint32_t first)
{
  const struct weft_node_group *g = group_at (groups, i);
  g_autofree char *nodes = g_strdup_printf ("%u-%u", first, first + g->count - 1);
  unsigned shown = columns_that_fit (groups, heads);

  printf ("%-*s%-*s%-*s", NAME_WIDTH, g->name, NODES_WIDTH, nodes, FROM_WIDTH, g->from);
  for (unsigned k = 0; k < shown; k++) {
    g_autofree char *text = cell (values_of (groups, i), k);
    printf ("%-*s", k + 1 < shown ? width_of (groups, heads, k) + 2 : 0, text);
  }
  printf ("\n");
}

static void
print_groups (const struct weft_groups *groups, const char *const *heads)
{
  unsigned shown = columns_that_fit (groups, heads);
  uint32_t first = 0;

  printf ("%s: %u nodes in %u groups, %u kind%s of nodes\n\n", groups->path, groups->n_nodes,
          groups->group->len, groups->n_kinds, groups->n_kinds == 1 ? "" : "s");
  printf ("%-*s%-*s%-*s", NAME_WIDTH, "group", NODES_WIDTH, "nodes", FROM_WIDTH, "from");
  for (unsigned k = 0; k < shown; k++)
    printf ("%-*s", k + 1 < shown ? width_of (groups, heads, k) + 2 : 0, heads[k]);
  printf ("\n");
  for (guint i = 0; i < groups->group->len; first += group_at (groups, i++)->count)
    print_group (groups, heads, i, first);
  printf ("\n`weft topologies NAME` shows each number of a topology with its source.\n");
}

static void
build_group (JsonBuilder *b, const struct weft_groups *groups, guint i, uint32_t first)
{
  const struct weft_node_group *g = group_at (groups, i);

  json_builder_begin_object (b);
  weft_json_text (b, "name", g->name);
  weft_json_text (b, "from", g->from);
  weft_json_int (b, "first_node", first);
  weft_json_int (b, "nodes", g->count);
  weft_json_int (b, "kind", g->kind);
  weft_json_object (b, "fields");
  for (unsigned row = 0; row < WEFT_N_CLUSTER_FIELD; row++)
    if (weft_cluster_has (&groups->slowest[1u << g->kind], row))
      weft_json_value (b, weft_cluster_table.field[row].name, &weft_cluster_table.field[row],
                       values_of (groups, i)[row]);
  json_builder_end_object (b);
  json_builder_end_object (b);
}

static void
print_groups_json (const struct weft_groups *groups)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  uint32_t first = 0;

  json_builder_begin_object (b);
  weft_json_text (b, "path", groups->path);
  weft_json_int (b, "nodes", groups->n_nodes);
  weft_json_int (b, "kinds", groups->n_kinds);
  weft_json_array (b, "groups");
  for (guint i = 0; i < groups->group->len; first += group_at (groups, i++)->count)
    build_group (b, groups, i, first);
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static const char *const heads[] = { COLUMN_LIST (COLUMN_HEAD) NULL };

static int
show_groups (const char *path, gboolean json)
{
  g_autoptr (GError) error = NULL;
  const struct weft_groups *groups = weft_groups_get (path, &error);

  if (!groups)
    return weft_cli_fail (error);
  if (json)
    print_groups_json (groups);
  else
    print_groups (groups, heads);
  return 0;
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
  static const struct weft_cli_sheet_form forms[] = {
    { weft_groups_is_file, show_groups, NULL },
    { weft_platform_is_file, show_platform, "a SimGrid platform (.xml)" },
    { NULL, NULL, NULL },
  };
  static const struct weft_cli_sheets kind = {
    .sheet = &weft_cluster_sheet,
    .command = "topologies",
    .example = "dgx-h100",
    .heads = heads,
    .cell = cell,
    .forms = forms,
  };
  return weft_cli_sheets (&kind, argc, argv);
}
