/* Chakra traces: every file is decoded again with protobuf and compared with the program: counts,
 * dependencies, bytes, groups, and the tags of sends and receives. */
#include "interop/chakra/chakra.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <chakra.pb-c.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

typedef Weft__Chakra__Node node;

static weft_plan *
make_plan (const char *words)
{
  g_autoptr (weft_settings) list = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) word = g_strsplit (words, " ", -1);
  struct weft_job job;
  weft_plan *plan = NULL;

  for (char **at = word; *at; at++) {
    char *equals = strchr (*at, '=');
    const char *section, *key;
    gboolean boolean;
    *equals = '\0';
    assert_true (weft_job_flag (*at, &section, &key, &boolean));
    weft_settings_add (list, section, key, equals + 1, "--test");
  }
  if (!weft_job_build (list, &job, &error) || !(plan = weft_plan_new (&job, &error)))
    fail_msg ("%s", error->message);
  return plan;
}

/* The next message of a file, without its length; NULL at the end. */
static const uint8_t *
next_message (const uint8_t **at, const uint8_t *end, size_t *n)
{
  unsigned shift = 0;

  *n = 0;
  if (*at == end)
    return NULL;
  do {
    assert_true (*at < end && shift < 64);
    *n |= (size_t) (**at & 0x7f) << shift;
    shift += 7;
  } while (*(*at)++ & 0x80);
  assert_true (*n <= (size_t) (end - *at));
  *at += *n;
  return *at - *n;
}

static void
free_node (void *data)
{
  weft__chakra__node__free_unpacked (data, NULL);
}

/* The nodes of a rank's trace; the caller frees the array. */
static GPtrArray *
read_nodes (const char *folder, uint32_t rank)
{
  g_autofree char *name = g_strdup_printf ("weft.%u.et", rank), *bytes = NULL;
  g_autofree char *path = g_build_filename (folder, name, NULL);
  GPtrArray *nodes = g_ptr_array_new_with_free_func (free_node);
  gsize length;
  size_t n;

  assert_true (g_file_get_contents (path, &bytes, &length, NULL));
  const uint8_t *at = (const uint8_t *) bytes, *end = at + length;
  const uint8_t *message = next_message (&at, end, &n);
  Weft__Chakra__GlobalMetadata *head = weft__chakra__global_metadata__unpack (NULL, n, message);
  assert_non_null (head);
  weft__chakra__global_metadata__free_unpacked (head, NULL);
  while ((message = next_message (&at, end, &n))) {
    node *one = weft__chakra__node__unpack (NULL, n, message);
    assert_non_null (one);
    g_ptr_array_add (nodes, one);
  }
  return nodes;
}

static const Weft__Chakra__Attribute *
attribute (const node *n, const char *name)
{
  for (size_t i = 0; i < n->n_attr; i++)
    if (strcmp (n->attr[i]->name, name) == 0)
      return n->attr[i];
  return NULL;
}

static int64_t
int64_of (const node *n, const char *name)
{
  const Weft__Chakra__Attribute *a = attribute (n, name);

  assert_non_null (a);
  assert_int_equal (a->value_case, WEFT__CHAKRA__ATTRIBUTE__VALUE_INT64_VAL);
  return a->int64_val;
}

static int32_t
int32_of (const node *n, const char *name)
{
  const Weft__Chakra__Attribute *a = attribute (n, name);

  assert_non_null (a);
  assert_int_equal (a->value_case, WEFT__CHAKRA__ATTRIBUTE__VALUE_INT32_VAL);
  return a->int32_val;
}

static gboolean
depends (const node *n, uint64_t id)
{
  for (size_t i = 0; i < n->n_data_deps; i++)
    if (n->data_deps[i] == id)
      return TRUE;
  return FALSE;
}

/* Dependencies of the program are data dependencies, and every node comes after those it waits
 * for. */
static void
check_dependencies (const weft_program *p, uint32_t op, const node *n)
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    assert_true (depends (n, 2 * (uint64_t) p->deps[d]));
  for (size_t i = 0; i < n->n_data_deps; i++)
    assert_true (n->data_deps[i] / 2 < op);
  for (size_t i = 0; i < n->n_ctrl_deps; i++) {
    assert_int_equal (p->op[n->ctrl_deps[i] / 2].lane, p->op[op].lane);
    assert_true (depends (n, n->ctrl_deps[i]));
  }
  gboolean grouped = (p->op[op].flags & WEFT_OP_GROUPED) != 0;
  if (p->pos[op] > 0 && !grouped)
    assert_true (depends (n, 2 * (uint64_t) p->lane_ops[p->op[op].lane][p->pos[op] - 1]));
}

/* The members of a group, from comm_groups.json, are those of the mesh. */
static void
check_group (const weft_plan *plan, JsonObject *groups, uint32_t rank, const struct weft_op *row,
             const node *n)
{
  const Weft__Chakra__Attribute *name = attribute (n, "pg_name");
  struct weft_group g = weft_mesh_group (&plan->mesh, rank, row->group);

  assert_non_null (name);
  JsonArray *members = json_object_get_array_member (groups, name->string_val);
  assert_int_equal (json_array_get_length (members), weft_group_size (&g));
  for (uint32_t i = 0; i < weft_group_size (&g); i++)
    assert_int_equal (json_array_get_int_element (members, i), weft_group_rank (&g, i));
}

static void
check_op (const weft_plan *plan, JsonObject *groups, uint32_t rank, uint32_t op, const node *n)
{
  const weft_program *p = plan->role[weft_mesh_stage (&plan->mesh, rank)];
  const struct weft_op *row = &p->op[op];
  double bytes = weft_op_bytes (p, op);

  check_dependencies (p, op, n);
  switch (n->type) {
  case WEFT__CHAKRA__NODE_TYPE__COMM_COLL_NODE:
    check_group (plan, groups, rank, row, n);
    if (int64_of (n, "comm_type") == WEFT__CHAKRA__COLLECTIVE_COMM_TYPE__ALL_GATHER)
      bytes = ceil (bytes / weft_mesh_group_size (&plan->mesh, row->group));
    assert_int_equal (int64_of (n, "comm_size"), (int64_t) bytes);
    break;
  case WEFT__CHAKRA__NODE_TYPE__COMM_SEND_NODE:
  case WEFT__CHAKRA__NODE_TYPE__COMM_RECV_NODE:
    assert_int_equal (int64_of (n, "comm_size"), (int64_t) bytes);
    break;
  case WEFT__CHAKRA__NODE_TYPE__COMP_NODE:
    assert_int_equal (int64_of (n, "num_ops"), (int64_t) fmax (1, weft_op_flops (p, op)));
    assert_int_equal (attribute (n, "tensor_size")->uint64_val, (uint64_t) bytes);
    break;
  default:
    assert_int_equal (attribute (n, "tensor_size")->uint64_val, (uint64_t) bytes);
  }
}

/* Counts a send up and its receive down, by sender, receiver and tag, with its bytes. */
static void
count_transfer (GHashTable *open, const node *n)
{
  char *key = g_strdup_printf ("%d-%d-%d-%" G_GINT64_FORMAT, int32_of (n, "comm_src"),
                               int32_of (n, "comm_dst"), int32_of (n, "comm_tag"),
                               int64_of (n, "comm_size"));
  int by = n->type == WEFT__CHAKRA__NODE_TYPE__COMM_SEND_NODE ? 1 : -1;
  int sum = GPOINTER_TO_INT (g_hash_table_lookup (open, key)) + by;

  assert_true (sum >= -1 && sum <= 1);
  g_hash_table_replace (open, key, GINT_TO_POINTER (sum));
}

/* Checks the traces of all ranks. Returns the number of transfers. */
static guint
check_traces (const weft_plan *plan, const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "comm_groups.json", NULL);
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GHashTable) open = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  GHashTableIter iter;
  void *sum;

  assert_true (json_parser_load_from_file (parser, path, NULL));
  JsonObject *groups = json_node_get_object (json_parser_get_root (parser));
  for (uint32_t rank = 0; rank < plan->mesh.n_ranks; rank++) {
    const weft_program *p = plan->role[weft_mesh_stage (&plan->mesh, rank)];
    g_autoptr (GPtrArray) nodes = read_nodes (folder, rank);
    guint at = 0;
    for (uint32_t op = 0; op < p->n_op; op++)
      for (int half = 0; half < (p->op[op].kind == WEFT_OP_SHIFT ? 2 : 1); half++) {
        const node *n = nodes->pdata[at++];
        assert_int_equal (n->id, 2 * (uint64_t) op + half);
        check_op (plan, groups, rank, op, n);
        if (attribute (n, "comm_tag"))
          count_transfer (open, n);
      }
    assert_int_equal (at, nodes->len);
  }
  g_hash_table_iter_init (&iter, open);
  while (g_hash_table_iter_next (&iter, NULL, &sum))
    assert_int_equal (GPOINTER_TO_INT (sum), 0);
  return g_hash_table_size (open);
}

static guint
write_and_check (const char *folder, const char *words)
{
  g_autoptr (weft_plan) plan = make_plan (words);
  g_autofree char *path = g_build_filename (folder, "et", NULL);
  g_autoptr (GError) error = NULL;
  uint64_t bytes;

  if (!weft_chakra_write (plan, path, -1, &bytes, &error))
    fail_msg ("%s", error->message);
  assert_true (bytes > 0);
  guint transfers = check_traces (plan, path);
  weft_test_remove (path);
  return transfers;
}

static void
traces_of_a_pipeline_are_its_programs (void **state)
{
  assert_true (write_and_check (*state, "model=llama-nano topology=dgx-h100 gpus=8 "
                                        "global_batch_size=16 pipeline_model_parallel_size=2 "
                                        "tensor_model_parallel_size=2 sequence_parallel=true "
                                        "use_distributed_optimizer=true") > 0);
}

static void
traces_of_an_interleaved_ring_are_its_programs (void **state)
{
  assert_true (write_and_check (*state, "model=llama-nano topology=dgx-h100 gpus=4 "
                                        "global_batch_size=8 pipeline_model_parallel_size=4 "
                                        "virtual_pipeline_model_parallel_size=2") > 0);
}

static void
traces_of_ring_attention_and_experts_are_their_programs (void **state)
{
  assert_true (write_and_check (*state, "model=llama-nano topology=dgx-h100 gpus=4 "
                                        "global_batch_size=4 context_parallel_size=4") > 0);
  assert_int_equal (write_and_check (*state, "model=mixtral-nano topology=dgx-h100 gpus=4 "
                                             "global_batch_size=4 "
                                             "expert_model_parallel_size=4"),
                    0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (traces_of_a_pipeline_are_its_programs, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (traces_of_an_interleaved_ring_are_its_programs,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (traces_of_ring_attention_and_experts_are_their_programs,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
