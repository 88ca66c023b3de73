/* Programs as JSON and Graphviz text: all documented members exist, and the text is well-formed. */
#include "core/program/program_json.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <string.h>

static const char text[] =
    "program 1 role 1 of 4\n"
    "name 0 \"q\\\"kv\\\\\"\n"
    "shape 0 bf16 64 32 16\n"
    "shape 1 bf16 1024 out fp32\n"
    "buf 0 weights device bf16 L3 \"q\\\"kv\\\\\" bytes 8192 at 256 permanent\n"
    "buf 1 activations device bf16 m0 \"q\\\"kv\\\\\" bytes 4096 at 8448\n"
    "buf 2 activations device fp32 \"q\\\"kv\\\\\" bytes 64 at 32 in 1\n"
    "op 0 dp all_reduce G c0 \"q\\\"kv\\\\\" s1 over dp reduce avg user_buffer experts uses rw0\n"
    "op 1 gpu matmul F L3 m5 c2 \"q\\\"kv\\\\\" s0 recompute uses r0 r- w1 after 0\n"
    "op 2 pp send F c0 \"q\\\"kv\\\\\" s1 over pp peer +1 uses r1 after 1\n"
    "op 3 pp recv F c0 \"q\\\"kv\\\\\" s1 over pp peer -1 grouped\n"
    "end\n";

struct fixture {
  weft_program *p;
  JsonNode *root;
  JsonObject *object;
};

static void
append_piece (const char *piece, void *json)
{
  g_string_append (json, piece);
}

static int
set_up (void **state)
{
  struct fixture *f = g_new0 (struct fixture, 1);
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) json = g_string_new (NULL);

  f->p = weft_program_parse (text, "text", &error);
  if (!f->p)
    fail_msg ("%s", error->message);
  weft_program_write_json (f->p, append_piece, json);
  f->root = json_from_string (json->str, &error);
  if (!f->root)
    fail_msg ("%s", error->message);
  f->object = json_node_get_object (f->root);
  *state = f;
  return 0;
}

static int
tear_down (void **state)
{
  struct fixture *f = *state;

  json_node_unref (f->root);
  weft_program_free (f->p);
  g_free (f);
  return 0;
}

static JsonObject *
row (const struct fixture *f, const char *array, unsigned i)
{
  return json_array_get_object_element (json_object_get_array_member (f->object, array), i);
}

/* Asserts that a member of a JSON object has the value `wanted`, given as JSON text. */
static void
assert_member (JsonObject *object, const char *member, const char *wanted)
{
  JsonNode *node = json_object_get_member (object, member);

  if (!node)
    fail_msg ("no member %s", member);
  g_autofree char *found = json_to_string (node, FALSE);
  assert_string_equal (found, wanted);
}

static void
the_document_names_its_schema_and_role (void **state)
{
  const struct fixture *f = *state;

  assert_member (f->object, "schema", "\"weft.program/1\"");
  assert_member (f->object, "role", "1");
  assert_member (f->object, "n_roles", "4");
  assert_int_equal (json_array_get_length (json_object_get_array_member (f->object, "ops")), 4);
  assert_int_equal (json_array_get_length (json_object_get_array_member (f->object, "buffers")), 3);
}

static void
a_kernel_has_no_axis_but_a_cost (void **state)
{
  JsonObject *op = row (*state, "ops", 1);

  assert_member (op, "op", "1");
  assert_member (op, "kind", "\"matmul\"");
  assert_member (op, "lane", "\"gpu\"");
  assert_member (op, "axis", "null");
  assert_member (op, "layer", "3");
  assert_member (op, "chunk", "2");
  assert_member (op, "micro", "5");
  assert_member (op, "phase", "\"F\"");
  assert_member (op, "label", "\"L3 q\\\"kv\\\\ m5\"");
  assert_member (op, "bytes", "7168");
  assert_member (op, "dtype", "\"bf16\"");
  assert_member (op, "shape", "[64,32,16]");
  assert_member (op, "flags", "[\"recompute\"]");
  assert_member (op, "after", "[0]");
  assert_member (op, "uses",
                 "[{\"buffer\":0,\"read\":true,\"write\":false},"
                 "{\"buffer\":null,\"read\":true,\"write\":false},"
                 "{\"buffer\":1,\"read\":false,\"write\":true}]");
  assert_true (json_object_get_double_member (op, "flops") == 2.0 * 64 * 32 * 16);
}

static void
communication_has_an_axis_and_who_it_reaches (void **state)
{
  JsonObject *reduce = row (*state, "ops", 0), *send = row (*state, "ops", 2);

  assert_member (reduce, "axis", "\"dp\"");
  assert_member (reduce, "layer", "null");
  assert_member (reduce, "micro", "null");
  assert_member (reduce, "reduce", "\"avg\"");
  assert_member (reduce, "out_dtype", "\"fp32\"");
  assert_member (reduce, "bytes", "2048");
  assert_member (reduce, "flags", "[\"user_buffer\",\"experts\"]");
  assert_member (send, "axis", "\"pp\"");
  assert_member (send, "peer", "1");
  assert_member (row (*state, "ops", 3), "flags", "[\"grouped\"]");
}

static void
a_buffer_says_where_and_when_it_lives (void **state)
{
  JsonObject *owner = row (*state, "buffers", 0), *used = row (*state, "buffers", 1);
  JsonObject *view = row (*state, "buffers", 2);

  assert_member (owner, "flags", "[\"permanent\"]");
  assert_member (owner, "first", "0");
  assert_member (owner, "last", "3");
  assert_member (owner, "base", "null");
  assert_member (used, "kind", "\"activations\"");
  assert_member (used, "pool", "\"device\"");
  assert_member (used, "bytes", "4096");
  assert_member (used, "offset", "8448");
  assert_member (used, "first", "1");
  assert_member (used, "last", "2");
  assert_member (view, "base", "1");
  assert_member (view, "offset", "32");
  assert_member (view, "first", "null");
  assert_member (view, "last", "null");
}

static void
graphviz_shows_lanes_and_both_kinds_of_edges (void **state)
{
  const struct fixture *f = *state;
  g_autofree char *dot = weft_program_dot (f->p);

  assert_true (g_str_has_prefix (dot, "digraph program {\n"));
  assert_true (g_str_has_suffix (dot, "}\n"));
  assert_non_null (strstr (dot, "subgraph cluster_gpu {"));
  assert_null (strstr (dot, "cluster_tp"));
  assert_non_null (strstr (dot, "1 [label=\"1 matmul\\nL3 q\\\"kv\\\\ m5\""));
  assert_non_null (strstr (dot, "\n  0 -> 1;\n"));
  assert_non_null (strstr (dot, "\n    2 -> 3 [color=gray60"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (the_document_names_its_schema_and_role, set_up, tear_down),
  cmocka_unit_test_setup_teardown (a_kernel_has_no_axis_but_a_cost, set_up, tear_down),
  cmocka_unit_test_setup_teardown (communication_has_an_axis_and_who_it_reaches, set_up,
                                   tear_down),
  cmocka_unit_test_setup_teardown (a_buffer_says_where_and_when_it_lives, set_up, tear_down),
  cmocka_unit_test_setup_teardown (graphviz_shows_lanes_and_both_kinds_of_edges, set_up,
                                   tear_down),
};

WEFT_TESTS (tests)
