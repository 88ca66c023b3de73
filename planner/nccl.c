#include "planner/nccl.h"
#include "core/base/conf.h"
#include "core/base/csv.h"
#include "core/base/error.h"
#include "core/base/sheet.h"
#include "core/base/units.h"
#include "core/program/coll.h"
#include "planner/conditions.h"
#include <math.h>
#include <string.h>

static const char *const columns[] = {
#define COLUMN(name, ...) #name,
#include "planner/nccl.def"
  NULL
};

#define SIZE_NAME(id, name, end) name,
const char *const weft_nccl_size_names[] = { WEFT_NCCL_SIZE_LIST (SIZE_NAME) NULL };

/* ------------------------------------------------------------------------ rules */

/* The CSV row that is read. */
struct reading {
  weft_conf *conf;
  /* maps a name to its struct weft_cluster, because many rows have the same topology */
  GHashTable *topologies;
  char *cell[WEFT_N_NCCL_COLUMN];
  struct weft_nccl_row *row;
};

static gboolean
read_seconds (const char *value, double *seconds, GError **error)
{
  return weft_units_parse (value, "s", seconds, error);
}

static gboolean
read_topology (struct reading *r, const char *name, GError **error)
{
  struct weft_cluster *known = g_hash_table_lookup (r->topologies, name);

  if (!known) {
    struct weft_cluster loaded;
    if (!weft_cluster_load (name, &loaded, error))
      return FALSE;
    known = g_memdup2 (&loaded, sizeof loaded);
    g_hash_table_insert (r->topologies, g_strdup (name), known);
  }
  r->row->cluster = *known;
  return TRUE;
}

static gboolean
read_field (const struct weft_table *table, union weft_value *values, const char *name,
            const char *value, GError **error)
{
  int field = weft_table_find (table, name);

  if (field < 0)
    return weft_table_unknown (table, name, error);
  return weft_field_parse (&table->field[field], value, &values[field], error);
}

static gboolean
read_key (struct reading *r, const char *key, const char *value, GError **error)
{
  struct weft_nccl_row *row = r->row;
  const char *dot = strchr (key, '.');
  double nodes;

  if (g_str_equal (key, "topology"))
    return read_topology (r, value, error);
  if (g_str_has_prefix (key, "cluster."))
    return read_field (&weft_cluster_table, row->cluster.f.at, dot + 1, value, error);
  if (g_str_has_prefix (key, "stack."))
    return read_field (&weft_stack_table, row->stack.at, dot + 1, value, error);
  if (g_str_equal (key, "host_per_rank"))
    return read_seconds (value, &row->host_per_rank, error);
  if (g_str_equal (key, "host_before"))
    return read_seconds (value, &row->host_before, error);
  if (g_str_equal (key, "nodes")) {
    gboolean ok = weft_units_parse (value, "", &nodes, error);
    row->nodes = ok ? (uint32_t) nodes : 0;
    return ok;
  }
  if (g_str_equal (key, "fabric")) {
    g_free (row->fabric);
    row->fabric = g_strdup (value);
  } else if (g_str_equal (key, "refuse")) {
    g_free (row->why);
    row->why = g_strdup (value);
  } else if (g_str_equal (key, "context")) {
    row->context = g_intern_string (value);
  } else if (!g_str_equal (key, "why")) {
    return weft_bad_input (error, "unknown key \"%s\"; planner/nccl.h lists the keys", key);
  }
  return TRUE;
}

static void
clear_row (struct weft_nccl_row *row)
{
  g_clear_pointer (&row->why, g_free);
  g_clear_pointer (&row->fabric, g_free);
}

/* Applies the rules whose conditions the row meets. */
static gboolean
apply_rules (struct reading *r, GError **error)
{
  const char *section = NULL;
  g_autoptr (weft_conditions) conditions = NULL;

  for (unsigned i = 0; i < r->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &r->conf->entry[i];
    if (section != entry->section) {
      section = entry->section;
      g_clear_pointer (&conditions, weft_conditions_free);
      conditions = weft_conditions_parse (section, columns, error);
    }
    if (!conditions)
      return weft_conf_blame (r->conf, entry, error);
    if (weft_conditions_hold (conditions, r->cell) &&
        !read_key (r, entry->key, entry->value, error))
      return weft_conf_blame (r->conf, entry, error);
  }
  return TRUE;
}

/* ------------------------------------------------------------------------- rows */

static double
number (const struct reading *r, enum weft_nccl_column column)
{
  return *r->cell[column] ? g_ascii_strtod (r->cell[column], NULL) : NAN;
}

static const struct {
  const char *word;
  enum weft_op_kind kind;
} collectives[] = {
  { "all_reduce", WEFT_OP_ALL_REDUCE },         { "all_gather", WEFT_OP_ALL_GATHER },
  { "reduce_scatter", WEFT_OP_REDUCE_SCATTER }, { "all_to_all", WEFT_OP_ALL_TO_ALL },
  { "broadcast", WEFT_OP_BROADCAST },
};

static int
kind_of (const char *word)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (collectives); i++)
    if (g_str_equal (collectives[i].word, word))
      return collectives[i].kind;
  return -1;
}

/* Bytes that the bus bandwidth of nccl-tests counts for each byte of the tensor (PERFORMANCE.md of
 * NVIDIA/nccl-tests). */
static double
bus_share (enum weft_op_kind kind, double n)
{
  return kind == WEFT_OP_BROADCAST ? 1 : (kind == WEFT_OP_ALL_REDUCE ? 2 : 1) * (n - 1) / n;
}

/* Seconds that the row measured: the printed time, or the time by the printed bus bandwidth. */
static double
measured (const struct reading *r, const struct weft_nccl_row *row)
{
  double us = number (r, WEFT_NCCL_time_us), rate = number (r, WEFT_NCCL_busbw_GBps) * 1e9;

  return isnan (us) ? row->bytes * bus_share (row->kind, row->ranks) / rate : us * 1e-6;
}

static enum weft_nccl_size
size_of (double bytes)
{
#define SIZE_END(id, name, end) end,
  static const double ends[] = { WEFT_NCCL_SIZE_LIST (SIZE_END) };
  unsigned i = 0;

  while (i + 1 < WEFT_N_NCCL_SIZE && bytes >= ends[i])
    i++;
  return i;
}

static char *
name_fabric (const struct weft_nccl_row *row)
{
  return g_strdup_printf ("%s%s", g_quark_to_string (row->cluster.topology),
                          row->nodes > 1 ? ", network" : "");
}

/* Returns the reason why the measurement in a row cannot be predicted, as text that the caller
 * frees; NULL if it can be predicted. The rules for the row must have been applied. */
static char *
refusal (const struct reading *r, struct weft_nccl_row *row)
{
  g_autoptr (GError) error = NULL;

  if (row->kind < 0)
    return g_strdup_printf ("\"%s\" is not a collective of a step", r->cell[WEFT_NCCL_collective]);
  if (row->ranks < 2 || row->nodes < 1 || row->ranks % row->nodes)
    return g_strdup ("the number of ranks or of nodes is not printed, or nodes are not equal");
  if (row->bytes <= 0 || isnan (row->bytes))
    return g_strdup ("the size is not printed");
  if (!(row->measured_s > 0) || isinf (row->measured_s))
    return g_strdup ("neither a time nor a bus bandwidth above zero is printed");
  if (!row->cluster.topology)
    return g_strdup ("no rule names a topology for this interconnect");
  if (row->ranks / row->nodes > row->cluster.f.node_gpus)
    return g_strdup ("more ranks in a node than the topology has GPUs");
  if (!weft_cluster_resize (&row->cluster, 0, row->nodes, &error))
    return g_strdup (error->message);
  return NULL;
}

static gboolean
read_row (struct reading *r, const weft_csv *csv, unsigned at, const int *column,
          struct weft_nccl_row *row, GError **error)
{
  for (unsigned c = 0; c < WEFT_N_NCCL_COLUMN; c++)
    r->cell[c] = (char *) weft_csv_cell (csv, at, column[c]);
  r->row = row;
  row->line = csv->line[at + 1];
  row->kind = kind_of (r->cell[WEFT_NCCL_collective]);
  row->bytes = number (r, WEFT_NCCL_size_bytes);
  row->ranks = (uint32_t) fmax (0, number (r, WEFT_NCCL_ranks));
  row->nodes = (uint32_t) fmax (0, number (r, WEFT_NCCL_nodes));
  if (!apply_rules (r, error))
    return FALSE;
  if (row->kind >= 0)
    row->measured_s = measured (r, row);
  row->size = size_of (row->bytes);
  if (!row->why)
    row->why = refusal (r, row);
  if (!row->why && !row->fabric)
    row->fabric = name_fabric (row);
  return TRUE;
}

static gboolean
find_columns (const weft_csv *csv, int *column, GError **error)
{
  for (unsigned i = 0; i < WEFT_N_NCCL_COLUMN; i++) {
    column[i] = weft_csv_find (csv, columns[i]);
    if (column[i] < 0)
      return weft_bad_input (error, "%s:1: found no column \"%s\"; see validation/README.md",
                             csv->name, columns[i]);
  }
  return TRUE;
}

static gboolean
read_rows (weft_nccl *nccl, const weft_csv *csv, weft_conf *conf, GError **error)
{
  g_autoptr (GHashTable) topologies =
      g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  struct reading r = { .conf = conf, .topologies = topologies };
  union weft_stack stack;
  int column[WEFT_N_NCCL_COLUMN];

  if (!find_columns (csv, column, error) || !weft_stack_load ("weft", &stack, error))
    return FALSE;
  nccl->n_row = csv->n_row;
  nccl->row = g_new0 (struct weft_nccl_row, csv->n_row + 1);
  for (unsigned i = 0; i < csv->n_row; i++) {
    nccl->row[i] = (struct weft_nccl_row){ .stack = stack, .predicted_s = NAN, .error = NAN };
    if (!read_row (&r, csv, i, column, &nccl->row[i], error))
      return FALSE;
  }
  return TRUE;
}

static char *
bundled (const char *name)
{
  return g_build_filename (weft_data_dir (), "validation", name, NULL);
}

weft_nccl *
weft_nccl_load (const char *table, const char *rules, GError **error)
{
  g_autofree char *table_path = table ? g_strdup (table) : bundled ("nccl.csv");
  g_autofree char *rules_path = rules ? g_strdup (rules) : bundled ("nccl.ini");
  g_autoptr (weft_csv) csv = weft_csv_load (table_path, error);
  g_autoptr (weft_conf) conf = csv ? weft_conf_load (rules_path, error) : NULL;
  g_autoptr (weft_nccl) nccl = g_new0 (weft_nccl, 1);

  if (!conf || !read_rows (nccl, csv, conf, error))
    return NULL;
  return g_steal_pointer (&nccl);
}

void
weft_nccl_free (weft_nccl *nccl)
{
  if (!nccl)
    return;
  for (uint32_t i = 0; i < nccl->n_row; i++)
    clear_row (&nccl->row[i]);
  g_free (nccl->row);
  g_free (nccl);
}

/* ------------------------------------------------------------------ predictions */

/* The ranks of a row: the first ones of each node. */
static struct weft_group
group_of (const struct weft_nccl_row *row)
{
  return (struct weft_group){ .n = { row->ranks / row->nodes, row->nodes },
                              .stride = { 1, (uint32_t) row->cluster.f.node_gpus } };
}

static double
predict (const struct weft_nccl_row *row, weft_nccl_change change, void *user,
         const char **algorithm)
{
  struct weft_cluster cluster = row->cluster;
  union weft_stack stack = row->stack;
  struct weft_group group = group_of (row);
  struct weft_coll_shape shape;

  if (change)
    change (user, &cluster, &stack);
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  weft_coll_shape_init (&shape, &fabric, &group);
  struct weft_traffic t =
      weft_coll_plan (&shape, row->kind, row->bytes, &stack, WEFT_COLL_QUICKEST);
  weft_coll_shape_release (&shape);
  *algorithm = t.algorithm;
  return fmax (t.seconds + row->host_before, row->ranks / row->nodes * row->host_per_rank);
}

void
weft_nccl_predict (weft_nccl *nccl, weft_nccl_change change, void *user)
{
  for (uint32_t i = 0; i < nccl->n_row; i++) {
    struct weft_nccl_row *row = &nccl->row[i];
    if (row->why)
      continue;
    row->predicted_s = predict (row, change, user, &row->algorithm);
    row->error = row->predicted_s / row->measured_s - 1;
  }
}

void
weft_nccl_errors (const weft_nccl *nccl, weft_nccl_change change, void *user, double *error)
{
  const char *algorithm;

  for (uint32_t i = 0; i < nccl->n_row; i++) {
    const struct weft_nccl_row *row = &nccl->row[i];
    error[i] = row->why || row->context
                   ? NAN
                   : predict (row, change, user, &algorithm) / row->measured_s - 1;
  }
}

struct weft_validate_errors
weft_nccl_sum (const weft_nccl *nccl, const char *fabric, enum weft_nccl_size size)
{
  g_autofree double *error = g_new (double, nccl->n_row + 1);
  uint32_t n = 0;

  for (uint32_t i = 0; i < nccl->n_row; i++) {
    const struct weft_nccl_row *row = &nccl->row[i];
    if (row->why || row->context || (fabric && !g_str_equal (row->fabric, fabric)) ||
        (size != WEFT_N_NCCL_SIZE && row->size != size))
      continue;
    error[n++] = row->error;
  }
  return weft_validate_errors_of (error, n);
}

static int
compare_names (gconstpointer a, gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

const char **
weft_nccl_fabrics (const weft_nccl *nccl)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new ();

  for (uint32_t i = 0; i < nccl->n_row; i++) {
    const struct weft_nccl_row *row = &nccl->row[i];
    if (!row->why && !row->context &&
        !g_ptr_array_find_with_equal_func (names, row->fabric, g_str_equal, NULL))
      g_ptr_array_add (names, row->fabric);
  }
  g_ptr_array_sort (names, compare_names);
  g_ptr_array_add (names, NULL);
  return (const char **) g_ptr_array_free (g_steal_pointer (&names), FALSE);
}
