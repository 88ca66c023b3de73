#include "core/cluster/groups.h"
#include "core/base/error.h"
#include "core/base/sheet.h"
#include "core/cluster/fabric.h"
#include "core/cluster/platform.h"
#include <string.h>

#define NODES "nodes "

/* A group while its file is read. `first`: the first entry of its section; `from`, `count`: the
 * entries that every group has. */
struct draft {
  const struct weft_conf_entry *first, *from, *count;
  int64_t n;
  union weft_cluster_fields f;
};

struct reading {
  const weft_conf *conf;
  GArray *draft; /* struct draft */
};

static gboolean
is_group (const char *section)
{
  return g_str_has_prefix (section, NODES) && section[strlen (NODES)];
}

static gboolean
has_groups (const weft_conf *conf)
{
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (is_group (conf->entry[i].section))
      return TRUE;
  return FALSE;
}

gboolean
weft_groups_is_file (const char *path)
{
  if (!g_str_has_suffix (path, WEFT_SHEET_SUFFIX))
    return FALSE;
  g_autoptr (weft_conf) conf = weft_conf_load (path, NULL);
  return conf && has_groups (conf);
}

/* ---------------------------------------------------------------- entries */

static struct draft *
draft_at (const struct reading *r, guint i)
{
  return &g_array_index (r->draft, struct draft, i);
}

/* The draft of a section, which is made at the first entry of the section. */
static struct draft *
draft_of (struct reading *r, const struct weft_conf_entry *entry)
{
  for (guint i = 0; i < r->draft->len; i++)
    if (strcmp (draft_at (r, i)->first->section, entry->section) == 0)
      return draft_at (r, i);
  struct draft made = { .first = entry };
  g_array_append_val (r->draft, made);
  return draft_at (r, r->draft->len - 1);
}

/* Finds the entries `from` and `count` of all groups, and refuses other sections. */
static gboolean
find_groups (struct reading *r, GError **error)
{
  for (unsigned i = 0; i < r->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &r->conf->entry[i];
    if (strcmp (entry->section, "fabric") == 0)
      continue;
    if (!is_group (entry->section)) {
      weft_bad_input (error, "unknown section in a file of groups of nodes, wanted [nodes NAME] or "
                             "[fabric]");
      return weft_conf_blame (r->conf, entry, error);
    }
    struct draft *d = draft_of (r, entry);
    if (strcmp (entry->key, "from") == 0)
      d->from = entry;
    else if (strcmp (entry->key, "count") == 0)
      d->count = entry;
  }
  return TRUE;
}

static gboolean
lacks (const struct reading *r, const struct draft *d, const char *what, GError **error)
{
  weft_bad_input (error, "found no key %s", what);
  return weft_conf_blame (r->conf, d->first, error);
}

static gboolean
read_count (const struct reading *r, struct draft *d, GError **error)
{
  gint64 n;

  if (!g_ascii_string_to_signed (d->count->value, 10, 1, 1 << 20, &n, NULL)) {
    weft_bad_input (error, "count: found \"%s\", wanted a number of nodes, 1 to 1048576",
                    d->count->value);
    return weft_conf_blame (r->conf, d->count, error);
  }
  d->n = n;
  return TRUE;
}

/* The topology of a group: a relative path counts from the folder of the file. The caller frees. */
static char *
topology_of (const struct reading *r, const struct draft *d)
{
  g_autofree char *folder = g_path_get_dirname (r->conf->name);
  g_autofree char *beside = g_build_filename (folder, d->from->value, NULL);
  gboolean there = g_str_has_suffix (d->from->value, WEFT_SHEET_SUFFIX) &&
                   !g_path_is_absolute (d->from->value) &&
                   g_file_test (beside, G_FILE_TEST_IS_REGULAR);

  return there ? g_steal_pointer (&beside) : g_strdup (d->from->value);
}

static gboolean
load_from (const struct reading *r, struct draft *d, GError **error)
{
  g_autofree char *name = topology_of (r, d);
  gboolean nested = weft_groups_is_file (name) || weft_platform_is_file (name);
  struct weft_cluster base;

  if (!nested && !weft_sheet_load (&weft_cluster_sheet, name, base.f.at, error))
    return weft_conf_blame (r->conf, d->from, error);
  if (nested || base.f.fabric_kind != WEFT_FABRIC_RAILS || weft_cluster_is_cpu (&base)) {
    weft_bad_input (error,
                    "from: found \"%s\", wanted a topology with one kind of nodes, with GPUs "
                    "and [fabric] kind = rails",
                    d->from->value);
    return weft_conf_blame (r->conf, d->from, error);
  }
  if (base.f.cost_table && *g_quark_to_string ((GQuark) base.f.cost_table)) {
    weft_bad_input (error,
                    "from: found \"%s\" with a cost_table, wanted a topology without one: a "
                    "table is for one kind of GPU",
                    d->from->value);
    return weft_conf_blame (r->conf, d->from, error);
  }
  d->f = base.f;
  return TRUE;
}

/* Sets one field. `name`: its name in core/cluster.def. */
static gboolean
set_field (const struct weft_conf_entry *entry, const char *name, union weft_cluster_fields *f,
           GError **error)
{
  int row = weft_table_find (&weft_cluster_table, name);

  if (row < 0)
    return weft_bad_input (error,
                           "found key \"%s\", wanted from, count or a field of "
                           "core/cluster.def, as node_nic_bandwidth",
                           entry->key);
  struct weft_field field = weft_cluster_table.field[row];
  field.name = entry->key;
  return weft_field_parse (&field, entry->value, &f->at[row], error);
}

/* Sets the fields of a group that differ from its topology. */
static gboolean
read_fields (const struct reading *r, struct draft *d, GError **error)
{
  for (unsigned i = 0; i < r->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &r->conf->entry[i];
    if (strcmp (entry->section, d->first->section) != 0 || entry == d->from || entry == d->count)
      continue;
    gboolean own = g_str_has_prefix (entry->key, "gpu_") || g_str_has_prefix (entry->key, "node_");
    if (!own) {
      weft_bad_input (error,
                      "found key \"%s\", wanted from, count or a field of the GPU or the "
                      "node, as gpu_memory or node_nic_bandwidth",
                      entry->key);
      return weft_conf_blame (r->conf, entry, error);
    }
    if (!set_field (entry, entry->key, &d->f, error))
      return weft_conf_blame (r->conf, entry, error);
  }
  return TRUE;
}

static gboolean
read_groups (struct reading *r, GError **error)
{
  if (!find_groups (r, error))
    return FALSE;
  for (guint i = 0; i < r->draft->len; i++) {
    struct draft *d = draft_at (r, i);
    if (!d->from)
      return lacks (r, d, "from, wanted a topology, as from = dgx-h100", error);
    if (!d->count)
      return lacks (r, d, "count, wanted a number of nodes", error);
    if (!read_count (r, d, error) || !load_from (r, d, error) || !read_fields (r, d, error))
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- network */

static gboolean
is_of_fabric (unsigned row)
{
  return g_str_has_prefix (weft_cluster_table.field[row].name, "fabric_");
}

/* Sets the network of all groups: that of the first topology, with the fields of [fabric]. */
static gboolean
read_fabric (const struct reading *r, GError **error)
{
  union weft_cluster_fields *first = &draft_at (r, 0)->f;

  for (unsigned i = 0; i < r->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &r->conf->entry[i];
    if (strcmp (entry->section, "fabric") != 0)
      continue;
    g_autofree char *name = g_strconcat ("fabric_", entry->key, NULL);
    int row = weft_table_find (&weft_cluster_table, name);
    if ((row >= 0 && !weft_fabric_may_set (first, (unsigned) row, error)) ||
        !set_field (entry, name, first, error))
      return weft_conf_blame (r->conf, entry, error);
  }
  for (guint g = 1; g < r->draft->len; g++)
    for (unsigned row = 0; row < WEFT_N_CLUSTER_FIELD; row++)
      if (is_of_fabric (row))
        draft_at (r, g)->f.at[row] = first->at[row];
  return TRUE;
}

/* Fields in which all nodes must agree: the numbers of links, and what the links are. */
static gboolean
check_alike (const struct reading *r, GError **error)
{
  static const unsigned rows[] = { WEFT_CLUSTER_node_gpus, WEFT_CLUSTER_node_nics,
                                   WEFT_CLUSTER_node_gpus_per_switch, WEFT_CLUSTER_node_intra };
  const struct draft *first = draft_at (r, 0);

  for (guint g = 1; g < r->draft->len; g++)
    for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
      const struct draft *d = draft_at (r, g);
      const struct weft_field *field = &weft_cluster_table.field[rows[i]];
      if (d->f.at[rows[i]].i == first->f.at[rows[i]].i)
        continue;
      g_autofree char *found = weft_field_print (field, d->f.at[rows[i]]),
                      *wanted = weft_field_print (field, first->f.at[rows[i]]);
      weft_bad_input (error, "from: found \"%s\" with %s = %s, wanted %s as in [%s]",
                      d->from->value, field->name, found, wanted, first->first->section);
      return weft_conf_blame (r->conf, d->from, error);
    }
  return TRUE;
}

static gboolean
check_switches (const struct reading *r, GError **error)
{
  const union weft_cluster_fields *f = &draft_at (r, 0)->f;
  int64_t nodes = 0;

  for (guint g = 0; g < r->draft->len; g++)
    nodes += draft_at (r, g)->n;
  if (f->fabric_leaf_oversubscription > 1 || f->fabric_spine_oversubscription > 1)
    return weft_bad_input (error,
                           "%s: [fabric]: found leaf_oversubscription = %g, "
                           "spine_oversubscription = %g, wanted 1 with groups of nodes",
                           r->conf->name, f->fabric_leaf_oversubscription,
                           f->fabric_spine_oversubscription);
  return nodes <= f->fabric_max_nodes ||
         weft_bad_input (error,
                         "%s: found %" G_GINT64_FORMAT " nodes, wanted at most max_nodes = "
                         "%" G_GINT64_FORMAT " of [fabric]",
                         r->conf->name, nodes, f->fabric_max_nodes);
}

/* ---------------------------------------------------------------- kinds */

/* Whether 0 in a rate stands for "no limit of its own". */
static gboolean
means_no_limit (unsigned row)
{
  return row == WEFT_CLUSTER_node_ll_bandwidth || row == WEFT_CLUSTER_node_ll_channel_bandwidth ||
         row == WEFT_CLUSTER_node_ll128_bandwidth;
}

/* Whether 0 in a latency stands for "not used". */
static gboolean
means_unused (unsigned row)
{
  return row == WEFT_CLUSTER_node_intra_latency_ll || row == WEFT_CLUSTER_node_intra_latency_ll128;
}

/* The slower of two values of a field: the smaller number, or the longer time. */
static union weft_value
slower (unsigned row, union weft_value a, union weft_value b)
{
  const struct weft_field *field = &weft_cluster_table.field[row];

  if (field->type == WEFT_TYPE_INT)
    return a.i <= b.i ? a : b;
  if (field->type != WEFT_TYPE_REAL)
    return a;
  gboolean time = strcmp (field->unit, "s") == 0;
  if ((means_no_limit (row) && a.r == 0) || (means_unused (row) && b.r == 0))
    return b;
  if ((means_no_limit (row) && b.r == 0) || (means_unused (row) && a.r == 0))
    return a;
  return (time ? a.r >= b.r : a.r <= b.r) ? a : b;
}

static void
join_fields (union weft_cluster_fields *to, const union weft_cluster_fields *other)
{
  g_autofree char *names = g_strdup_printf ("%s + %s", g_quark_to_string ((GQuark) to->gpu_name),
                                            g_quark_to_string ((GQuark) other->gpu_name));
  gboolean same = to->gpu_name == other->gpu_name;

  for (unsigned row = 0; row < WEFT_N_CLUSTER_FIELD; row++)
    to->at[row] = slower (row, to->at[row], other->at[row]);
  if (!same)
    to->gpu_name = (int64_t) g_quark_from_string (names);
}

/* The kind of a group: that of an earlier group with equal fields, or a new one. -1 with an error:
 * too many kinds. */
static int
kind_of (struct weft_groups *groups, const struct reading *r, const struct draft *d, GError **error)
{
  for (uint32_t kind = 0; kind < groups->n_kinds; kind++)
    if (memcmp (&groups->slowest[1 << kind].f, &d->f, sizeof d->f) == 0)
      return (int) kind;
  if (groups->n_kinds == WEFT_MOST_KINDS) {
    weft_bad_input (error, "found more than %d kinds of nodes, wanted at most %d", WEFT_MOST_KINDS,
                    WEFT_MOST_KINDS);
    weft_conf_blame (r->conf, d->first, error);
    return -1;
  }
  groups->slowest[1 << groups->n_kinds].f = d->f;
  return (int) groups->n_kinds++;
}

static gboolean
add_groups (struct weft_groups *groups, const struct reading *r, GError **error)
{
  for (guint g = 0; g < r->draft->len; g++) {
    const struct draft *d = draft_at (r, g);
    int kind = kind_of (groups, r, d, error);
    if (kind < 0)
      return FALSE;
    struct weft_node_group made = { g_strdup (d->first->section + strlen (NODES)),
                                    g_strdup (d->from->value), (uint32_t) d->n, (uint32_t) kind };
    g_array_append_val (groups->group, made);
    groups->kind_of = g_renew (uint32_t, groups->kind_of, groups->n_nodes + made.count);
    for (uint32_t i = 0; i < made.count; i++)
      groups->kind_of[groups->n_nodes++] = made.kind;
  }
  return TRUE;
}

/* Fills `slowest` for sets of several kinds. */
static void
join_kinds (struct weft_groups *groups)
{
  for (uint32_t set = 1; set < 1u << groups->n_kinds; set++) {
    struct weft_cluster *c = &groups->slowest[set];
    uint32_t rest = set & (set - 1); /* the set without its first kind */
    if (rest) {
      *c = groups->slowest[set ^ rest];
      join_fields (&c->f, &groups->slowest[rest].f);
    }
    c->topology = g_quark_from_string (groups->path);
    c->n_nodes = groups->n_nodes;
    c->n_gpus = groups->n_nodes * (uint32_t) c->f.node_gpus;
  }
}

static void
free_groups (struct weft_groups *groups)
{
  for (guint g = 0; g < groups->group->len; g++) {
    g_free (g_array_index (groups->group, struct weft_node_group, g).name);
    g_free (g_array_index (groups->group, struct weft_node_group, g).from);
  }
  g_array_unref (groups->group);
  g_free (groups->kind_of);
  g_free (groups->path);
  g_free (groups);
}

static struct weft_groups *
load (const char *path, GError **error)
{
  g_autoptr (weft_conf) conf = weft_conf_load (path, error);
  g_autoptr (GArray) drafts = g_array_new (FALSE, FALSE, sizeof (struct draft));
  struct reading r = { conf, drafts };

  if (!conf || !read_groups (&r, error) || !read_fabric (&r, error) || !check_alike (&r, error) ||
      !check_switches (&r, error))
    return NULL;
  struct weft_groups *groups = g_new0 (struct weft_groups, 1);
  groups->path = g_strdup (path);
  groups->group = g_array_new (FALSE, FALSE, sizeof (struct weft_node_group));
  if (!add_groups (groups, &r, error)) {
    free_groups (groups);
    return NULL;
  }
  join_kinds (groups);
  return groups;
}

const struct weft_groups *
weft_groups_get (const char *path, GError **error)
{
  static GMutex lock;
  static GHashTable *known; /* path -> struct weft_groups */

  g_mutex_lock (&lock);
  if (!known)
    known = g_hash_table_new (g_str_hash, g_str_equal);
  struct weft_groups *groups = g_hash_table_lookup (known, path);
  if (!groups && (groups = load (path, error)))
    g_hash_table_insert (known, g_strdup (path), groups);
  g_mutex_unlock (&lock);
  return groups;
}

gboolean
weft_cluster_one_kind (const struct weft_cluster *c, const char *what, GError **error)
{
  return !weft_cluster_is_mixed (c) ||
         weft_bad_input (error,
                         "rule one_kind: %s takes a cluster whose nodes are all alike, found "
                         "%u kinds of nodes in %s; weft sim predicts a given strategy on it",
                         what, c->groups->n_kinds, c->groups->path);
}
