#include "interop/chakra/chakra.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include <chakra.pb-c.h>
#include <errno.h>
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* Version of the schema in the metadata: the one that ASTRA-sim's own generators write. */
#define SCHEMA_VERSION "0.0.4"

/* A node has at most these attributes. */
enum { MOST_ATTRIBUTES = 8 };

/* The transfers between two ranks in one direction, counted to give each pair of send and receive
 * the same tag. */
struct channel {
  uint32_t peer, way, count;
};

struct writer {
  const weft_plan *plan;
  const weft_program *program;
  uint32_t rank;
  FILE *out;
  uint64_t bytes;
  GHashTable *group; /* numbers of groups, from 1, by group_key() */
  GArray *channel;   /* array of struct channel, for sends and for receives */
  GByteArray *packed;
};

/* ---------------------------------------------------------------------- messages */

/* Writes a message after its length. */
static void
write_message (struct writer *w, const ProtobufCMessage *message)
{
  size_t n = protobuf_c_message_get_packed_size (message), rest = n;
  uint8_t head[10];
  unsigned used = 0;

  g_byte_array_set_size (w->packed, (guint) n);
  protobuf_c_message_pack (message, w->packed->data);
  do {
    head[used++] = (uint8_t) (rest & 0x7f) | (rest > 0x7f ? 0x80 : 0);
    rest >>= 7;
  } while (rest);
  fwrite (head, 1, used, w->out);
  fwrite (w->packed->data, 1, n, w->out);
  w->bytes += used + n;
}

/* A node under construction, with the memory of its attributes and dependencies. */
struct node {
  Weft__Chakra__Node message;
  Weft__Chakra__Attribute attribute[MOST_ATTRIBUTES], *list[MOST_ATTRIBUTES];
  GArray *data, *ctrl; /* uint64_t */
};

static Weft__Chakra__Attribute *
add_attribute (struct node *node, const char *name, Weft__Chakra__Attribute__ValueCase kind)
{
  size_t n = node->message.n_attr++;

  g_assert (n < MOST_ATTRIBUTES);
  node->list[n] = &node->attribute[n];
  weft__chakra__attribute__init (node->list[n]);
  node->list[n]->name = (char *) name;
  node->list[n]->value_case = kind;
  return node->list[n];
}

/* Adds an attribute. The types of attributes are those that Chakra's feeder reads
 * (src/feeder/et_feeder_node.cpp). */
static void
add_int32 (struct node *node, const char *name, uint32_t value)
{
  add_attribute (node, name, WEFT__CHAKRA__ATTRIBUTE__VALUE_INT32_VAL)->int32_val = (int32_t) value;
}

static void
add_int64 (struct node *node, const char *name, double value)
{
  add_attribute (node, name, WEFT__CHAKRA__ATTRIBUTE__VALUE_INT64_VAL)->int64_val = (int64_t) value;
}

static void
add_uint64 (struct node *node, const char *name, double value)
{
  add_attribute (node, name, WEFT__CHAKRA__ATTRIBUTE__VALUE_UINT64_VAL)->uint64_val =
      (uint64_t) value;
}

static void
add_truth (struct node *node, const char *name, gboolean value)
{
  add_attribute (node, name, WEFT__CHAKRA__ATTRIBUTE__VALUE_BOOL_VAL)->bool_val = value;
}

/* ------------------------------------------------------------------ dependencies */

static void
add_id (GArray *ids, uint64_t id)
{
  for (guint i = 0; i < ids->len; i++)
    if (g_array_index (ids, uint64_t, i) == id)
      return;
  g_array_append_val (ids, id);
}

/* Adds the numbers of the nodes of an op. A shift has two nodes, other ops have one. */
static void
add_op (const weft_program *p, GArray *ids, uint32_t op)
{
  add_id (ids, 2 * (uint64_t) op);
  if (p->op[op].kind == WEFT_OP_SHIFT)
    add_id (ids, 2 * (uint64_t) op + 1);
}

static gboolean
is_grouped (const weft_program *p, const uint32_t *lane, uint32_t at)
{
  return (p->op[lane[at]].flags & WEFT_OP_GROUPED) != 0;
}

/* Adds the ops of the previous launch on the lane of an op. */
static void
add_lane_order (const weft_program *p, GArray *ids, uint32_t op)
{
  const uint32_t *lane = p->lane_ops[p->op[op].lane];
  uint32_t at = p->pos[op];

  while (at > 0 && is_grouped (p, lane, at))
    at--;
  if (at == 0)
    return;
  do
    add_op (p, ids, lane[--at]);
  while (at > 0 && is_grouped (p, lane, at));
}

static void
add_dependencies (const weft_program *p, struct node *node, uint32_t op)
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    add_op (p, node->data, p->deps[d]);
  add_lane_order (p, node->ctrl, op);
  for (guint i = 0; i < node->ctrl->len; i++)
    add_id (node->data, g_array_index (node->ctrl, uint64_t, i));
}

/* ------------------------------------------------------------------------ groups */

/* Key of a group in the hash table: its kind and its first member. */
static uint64_t
group_key (enum weft_group_kind kind, uint32_t first)
{
  return (uint64_t) kind << 32 | first;
}

static uint32_t
group_number (const struct writer *w, enum weft_group_kind kind)
{
  struct weft_group g = weft_mesh_group (&w->plan->mesh, w->rank, kind);
  uint64_t key = group_key (kind, weft_group_rank (&g, 0));

  return GPOINTER_TO_UINT (g_hash_table_lookup (w->group, &key));
}

/* Appends a group to the text of comm_groups.json and numbers it, if it is new. */
static void
add_group (GHashTable *groups, GString *text, const struct weft_group *g, uint64_t key)
{
  if (g_hash_table_contains (groups, &key))
    return;
  uint32_t number = g_hash_table_size (groups) + 1;
  g_hash_table_insert (groups, g_memdup2 (&key, sizeof key), GUINT_TO_POINTER (number));
  g_string_append_printf (text, "%s\n  \"%u\": [", number > 1 ? "," : "{", number);
  for (uint32_t i = 0; i < weft_group_size (g); i++)
    g_string_append_printf (text, "%s%u", i ? ", " : "", weft_group_rank (g, i));
  g_string_append_c (text, ']');
}

/* Numbers all groups of the collectives of all ranks. Returns the text of comm_groups.json. */
static char *
number_groups (const weft_plan *plan, GHashTable *groups)
{
  GString *text = g_string_new (NULL);

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    gboolean used[WEFT_N_GROUP] = { FALSE };
    uint32_t size = weft_mesh_stage_size (&plan->mesh);
    for (uint32_t op = 0; op < p->n_op; op++)
      if (weft_op_info[p->op[op].kind].class == WEFT_CLASS_COLLECTIVE)
        used[p->op[op].group] = TRUE;
    for (int kind = 0; kind < WEFT_N_GROUP; kind++)
      for (uint32_t i = 0; i < size && used[kind]; i++) {
        struct weft_group g =
            weft_mesh_group (&plan->mesh, weft_mesh_stage_rank (&plan->mesh, role, i), kind);
        add_group (groups, text, &g, group_key (kind, weft_group_rank (&g, 0)));
      }
  }
  g_string_append (text, text->len ? "\n}\n" : "{}\n");
  return g_string_free (text, FALSE);
}

/* ------------------------------------------------------------------------- nodes */

/* Returns the tag of the next transfer between this rank and `peer`. The tag has the way of the
 * transfer (a number below 128, equal on sender and receiver) and the number of earlier transfers
 * of this way. `receives`: 0 or 1. */
static uint32_t
next_tag (struct writer *w, uint32_t peer, uint32_t way, uint32_t receives)
{
  struct channel new = { peer, way << 1 | receives, 0 };

  for (guint i = 0; i < w->channel->len; i++) {
    struct channel *c = &g_array_index (w->channel, struct channel, i);
    if (c->peer == new.peer && c->way == new.way)
      return way << 24 | ++c->count;
  }
  g_array_append_val (w->channel, new);
  return way << 24;
}

static void
make_transfer (struct writer *w, struct node *node, uint32_t peer, uint32_t way, gboolean receives)
{
  node->message.type =
      receives ? WEFT__CHAKRA__NODE_TYPE__COMM_RECV_NODE : WEFT__CHAKRA__NODE_TYPE__COMM_SEND_NODE;
  add_int32 (node, "comm_src", receives ? peer : w->rank);
  add_int32 (node, "comm_dst", receives ? w->rank : peer);
  add_int32 (node, "comm_tag", next_tag (w, peer, way, receives));
}

/* Ways (kinds) of transfers, which number tags: to the next stage, to the previous stage, and from
 * WAY_RING on, one for each kind of group, between neighbours of a ring. */
enum { WAY_NEXT, WAY_BACK, WAY_RING };

static void
make_p2p (struct writer *w, struct node *node, uint32_t op)
{
  const struct weft_op *row = &w->program->op[op];
  gboolean receives = row->kind == WEFT_OP_RECV;
  int towards = receives ? -row->peer : row->peer; /* the direction in which the data moves */

  make_transfer (w, node, weft_mesh_beside (&w->plan->mesh, w->rank, row->peer),
                 towards > 0 ? WAY_NEXT : WAY_BACK, receives);
  add_int64 (node, "comm_size", weft_op_bytes (w->program, op));
}

/* Makes one half of a shift: the send to the member that is `peer` places after this one in the
 * group, or the receive from the member that is `peer` places before it. */
static void
make_shift (struct writer *w, struct node *node, uint32_t op, gboolean receives)
{
  const struct weft_op *row = &w->program->op[op];
  struct weft_group g = weft_mesh_group (&w->plan->mesh, w->rank, row->group);
  uint32_t n = weft_group_size (&g), at = weft_group_index (&g, w->rank);
  uint32_t distance = row->peer < 0 ? n - 1 : MAX (row->peer, 1) % n;
  uint32_t other = receives ? (at + n - distance) % n : (at + distance) % n;

  make_transfer (w, node, weft_group_rank (&g, other), WAY_RING + row->group, receives);
  add_int64 (node, "comm_size", weft_op_bytes (w->program, op));
}

static void
make_collective (struct writer *w, struct node *node, uint32_t op, char *name)
{
  static const struct {
    enum weft_op_kind kind;
    Weft__Chakra__CollectiveCommType type;
  } types[] = {
    { WEFT_OP_ALL_REDUCE, WEFT__CHAKRA__COLLECTIVE_COMM_TYPE__ALL_REDUCE },
    { WEFT_OP_ALL_GATHER, WEFT__CHAKRA__COLLECTIVE_COMM_TYPE__ALL_GATHER },
    { WEFT_OP_REDUCE_SCATTER, WEFT__CHAKRA__COLLECTIVE_COMM_TYPE__REDUCE_SCATTER },
    { WEFT_OP_ALL_TO_ALL, WEFT__CHAKRA__COLLECTIVE_COMM_TYPE__ALL_TO_ALL },
    { WEFT_OP_BROADCAST, WEFT__CHAKRA__COLLECTIVE_COMM_TYPE__BROADCAST },
  };
  const struct weft_op *row = &w->program->op[op];
  double bytes = weft_op_bytes (w->program, op);

  node->message.type = WEFT__CHAKRA__NODE_TYPE__COMM_COLL_NODE;
  for (unsigned i = 0; i < G_N_ELEMENTS (types); i++)
    if (types[i].kind == weft_op_even (row->kind))
      add_int64 (node, "comm_type", types[i].type);
  if (weft_op_even (row->kind) == WEFT_OP_ALL_GATHER)
    bytes = ceil (bytes / weft_mesh_group_size (&w->plan->mesh, row->group));
  add_int64 (node, "comm_size", bytes);
  g_snprintf (name, 16, "%u", group_number (w, row->group));
  add_attribute (node, "pg_name", WEFT__CHAKRA__ATTRIBUTE__VALUE_STRING_VAL)->string_val = name;
}

static void
make_kernel (struct writer *w, struct node *node, uint32_t op)
{
  node->message.type = WEFT__CHAKRA__NODE_TYPE__COMP_NODE;
  add_int64 (node, "num_ops", fmax (1, weft_op_flops (w->program, op)));
  add_uint64 (node, "tensor_size", weft_op_bytes (w->program, op));
}

static void
make_copy (struct writer *w, struct node *node, uint32_t op)
{
  enum weft_op_kind kind = w->program->op[op].kind;

  if (!weft_op_is_pooled_copy (kind)) {
    make_kernel (w, node, op);
    return;
  }
  node->message.type = weft_op_enters_device (kind) ? WEFT__CHAKRA__NODE_TYPE__MEM_LOAD_NODE
                                                    : WEFT__CHAKRA__NODE_TYPE__MEM_STORE_NODE;
  add_uint64 (node, "tensor_size", weft_op_bytes (w->program, op));
}

static void
make_node (struct writer *w, struct node *node, uint32_t op, gboolean second, char *group)
{
  const struct weft_op *row = &w->program->op[op];

  add_truth (node, "is_cpu_op", row->lane == WEFT_LANE_HOST);
  if (row->kind == WEFT_OP_SHIFT)
    make_shift (w, node, op, second);
  else if (weft_op_info[row->kind].class == WEFT_CLASS_COLLECTIVE)
    make_collective (w, node, op, group);
  else if (weft_op_info[row->kind].class == WEFT_CLASS_P2P)
    make_p2p (w, node, op);
  else if (weft_op_info[row->kind].class == WEFT_CLASS_COPY)
    make_copy (w, node, op);
  else
    make_kernel (w, node, op);
}

static void
write_node (struct writer *w, uint32_t role, uint32_t op, gboolean second)
{
  struct node node = { .data = g_array_new (FALSE, FALSE, sizeof (uint64_t)),
                       .ctrl = g_array_new (FALSE, FALSE, sizeof (uint64_t)) };
  g_autofree char *label = weft_op_label (w->program, op);
  double seconds = w->plan->seconds[role][op];
  char group[16];

  weft__chakra__node__init (&node.message);
  node.message.id = 2 * (uint64_t) op + (second ? 1 : 0);
  node.message.name = label;
  node.message.attr = node.list;
  make_node (w, &node, op, second, group);
  seconds = isfinite (seconds) && seconds > 0 ? seconds : 0;
  node.message.duration_micros = (uint64_t) ceil (seconds * 1e6);
  add_int64 (&node, "weft.duration_ns", seconds * 1e9);
  add_dependencies (w->program, &node, op);
  node.message.data_deps = (uint64_t *) (void *) node.data->data;
  node.message.n_data_deps = node.data->len;
  node.message.ctrl_deps = (uint64_t *) (void *) node.ctrl->data;
  node.message.n_ctrl_deps = node.ctrl->len;
  write_message (w, &node.message.base);
  g_array_unref (node.data);
  g_array_unref (node.ctrl);
}

/* ------------------------------------------------------------------------- files */

static void
write_nodes (struct writer *w, uint32_t role)
{
  Weft__Chakra__GlobalMetadata head;

  weft__chakra__global_metadata__init (&head);
  head.version = (char *) SCHEMA_VERSION;
  write_message (w, &head.base);
  for (uint32_t op = 0; op < w->program->n_op; op++) {
    write_node (w, role, op, FALSE);
    if (w->program->op[op].kind == WEFT_OP_SHIFT)
      write_node (w, role, op, TRUE);
  }
}

static gboolean
write_rank (const weft_plan *plan, GHashTable *groups, const char *folder, uint32_t rank,
            uint64_t *bytes, GError **error)
{
  uint32_t role = weft_mesh_stage (&plan->mesh, rank);
  g_autofree char *name = g_strdup_printf ("weft.%u.et", rank);
  g_autofree char *path = g_build_filename (folder, name, NULL);
  weft_output *output = weft_output_open (path, error);

  if (!output)
    return FALSE;
  struct writer w = { .plan = plan,
                      .program = plan->role[role],
                      .rank = rank,
                      .out = weft_output_stream (output),
                      .group = groups,
                      .channel = g_array_new (FALSE, FALSE, sizeof (struct channel)),
                      .packed = g_byte_array_new () };
  write_nodes (&w, role);
  g_array_unref (w.channel);
  g_byte_array_unref (w.packed);
  *bytes += w.bytes;
  return weft_output_close (output, error);
}

static gboolean
write_text (const char *folder, const char *name, const char *text, GError **error)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  weft_output *output = weft_output_open (path, error);

  if (!output)
    return FALSE;
  fputs (text, weft_output_stream (output));
  return weft_output_close (output, error);
}

gboolean
weft_chakra_write (const weft_plan *plan, const char *folder, int64_t only, uint64_t *bytes,
                   GError **error)
{
  g_autoptr (GHashTable) groups = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);
  g_autofree char *text = number_groups (plan, groups);
  uint32_t first = only < 0 ? 0 : (uint32_t) only;
  uint32_t last = only < 0 ? plan->mesh.n_ranks - 1 : (uint32_t) only;

  *bytes = 0;
  if (g_mkdir_with_parents (folder, 0777))
    return weft_run_error (error, "%s: %s", folder, g_strerror (errno));
  if (!write_text (folder, "comm_groups.json", text, error))
    return FALSE;
  for (uint32_t rank = first; rank <= last; rank++)
    if (!write_rank (plan, groups, folder, rank, bytes, error))
      return FALSE;
  return TRUE;
}
