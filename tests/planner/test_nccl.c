/* Measured collectives (nccl-tests): rules assign a topology to each row, a row without such a
 * rule is refused with a reason, and the predicted time of a row is the time that the same
 * collective has in a step. */
#include "core/base/conf.h"
#include "core/base/error.h"
#include "planner/nccl.h"
#include "tests/made/made.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>

#define HEAD "collective,ranks,nodes,interconnect,size_bytes,busbw_GBps,time_us,source,notes\n"

/* Loads a table of one row with the rules that assign topologies. Returns NULL and sets *error if
 * the table is refused. */
static weft_nccl *
try (const char *folder, const char *row, const char *rules, GError **error)
{
  g_autofree char *table = g_build_filename (folder, "table.csv", NULL);
  g_autofree char *ini = g_build_filename (folder, "rules.ini", NULL);
  g_autofree char *text = g_strconcat (HEAD, row, "\n", NULL);

  assert_true (g_file_set_contents (table, text, -1, NULL));
  assert_true (g_file_set_contents (ini, rules, -1, NULL));
  return weft_nccl_load (table, ini, error);
}

static weft_nccl *
load (void **state, const char *row, const char *rules)
{
  g_autoptr (GError) error = NULL;
  weft_nccl *nccl = try (*state, row, rules, &error);

  if (!nccl)
    fail_msg ("%s", error->message);
  weft_nccl_predict (nccl, NULL, NULL);
  return nccl;
}

#define RULES "[interconnect = *H100*]\ntopology = dgx-h100\n"

static void
a_row_is_the_formula_of_a_step (void **state)
{
  g_autoptr (weft_nccl) nccl =
      load (state, "all_gather,16,2,8x H100 + IB,1000000000,,1,here,", RULES);
  const struct weft_nccl_row *row = &nccl->row[0];
  struct weft_cluster cluster;
  struct weft_group group = { .n = { 8, 2 }, .stride = { 1, 8 } };
  struct weft_coll_shape shape;

  assert_null (row->why);
  assert_true (weft_cluster_load ("dgx-h100", &cluster, NULL));
  assert_true (weft_cluster_resize (&cluster, 16, 0, NULL));
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  weft_coll_shape_init (&shape, &fabric, &group);
  struct weft_traffic t = weft_coll_plan (&shape, WEFT_OP_ALL_GATHER, 1e9,
                                          &row->stack, WEFT_COLL_QUICKEST);
  weft_coll_shape_release (&shape);
  assert_near (row->predicted_s, t.seconds);
  assert_near (row->error, t.seconds / 1e-6 - 1);
  assert_string_equal (row->fabric, "dgx-h100, network");
}

/* nccl-tests prints the bus bandwidth = bytes / seconds x 2 (n - 1) / n, from which the time
 * follows. */
static void
a_bus_bandwidth_is_a_time (void **state)
{
  g_autoptr (weft_nccl) nccl = load (state, "all_reduce,8,1,H100,8000000000,350,,here,", RULES);

  assert_near (nccl->row[0].measured_s, 14e9 / 350e9);
}

static void
what_a_rule_changes_is_changed (void **state)
{
  static const char row[] = "all_reduce,8,1,H100,8000000000,350,,here,outlier";
  g_autoptr (weft_nccl) plain = load (state, row, RULES);
  g_autoptr (weft_nccl) changed =
      load (state, row,
            RULES "[notes = outlier]\ncluster.node_intra_bandwidth = 100GB/s\nfabric = mine\n"
                  "context = far off\n");
  g_autoptr (weft_nccl) slow = load (state, row, RULES "[notes = out*]\nhost_per_rank = 1s\n");
  g_autoptr (weft_nccl) late = load (state, row, RULES "[ranks > 7]\nhost_before = 2s\n");

  assert_true (changed->row[0].predicted_s > 3 * plain->row[0].predicted_s);
  assert_string_equal (changed->row[0].fabric, "mine");
  assert_int_equal (weft_nccl_sum (changed, NULL, WEFT_N_NCCL_SIZE).n, 0);
  assert_int_equal (weft_nccl_sum (plain, NULL, WEFT_NCCL_6GIB).n, 1);
  assert_int_equal (weft_nccl_sum (plain, NULL, WEFT_NCCL_625MIB).n, 0);
  assert_near (slow->row[0].predicted_s, 8);
  assert_near (late->row[0].predicted_s, 2 + plain->row[0].predicted_s);
}

static void
a_row_without_the_facts_is_refused (void **state)
{
  static const struct {
    const char *row, *why;
  } cases[] = {
    { "all_reduce,8,1,H100,,350,,here,", "size" },
    { "all_reduce,8,1,H100,1024,,,here,", "neither" },
    { "all_reduce,8,1,H100,1024,0,,here,", "neither" },
    { "all_reduce,8,,H100,1024,1,,here,", "ranks" },
    { "all_reduce,9,2,H100,1024,1,,here,", "not equal" },
    { "all_reduce,16,1,H100,1024,1,,here,", "more ranks" },
    { "all_reduce,8,1,MI300X,1024,1,,here,", "no rule" },
    { "rdma_write,2,2,H100,1024,1,,here,", "not a collective" },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (weft_nccl) nccl = load (state, cases[i].row, RULES);
    if (!nccl->row[0].why || !strstr (nccl->row[0].why, cases[i].why))
      fail_msg ("%s: %s", cases[i].row, nccl->row[0].why);
    assert_true (isnan (nccl->row[0].error));
  }
}

static void
a_wrong_rule_names_its_line (void **state)
{
  static const char *const rules[] = { "[ranks = 8]\ntopologie = dgx-h100\n",
                                       "[rank = 8]\ntopology = dgx-h100\n",
                                       "[ranks = 8]\ntopology = dgx-h101\n",
                                       "[ranks = 8]\ncluster.node_gpu = 8\n",
                                       "[ranks = 8]\nhost_before = soon\n" };

  for (unsigned i = 0; i < G_N_ELEMENTS (rules); i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_nccl) nccl = try (*state, "all_reduce,8,1,H100,8,1,1,here,", rules[i], &error);
    assert_null (nccl);
    assert_non_null (strstr (error->message, "rules.ini:2: "));
  }
}

static void
double_links (void *user, struct weft_cluster *cluster, union weft_stack *stack)
{
  (void) user, (void) stack;
  cluster->f.node_intra_bandwidth *= 2;
}

static void
errors_of_other_constants_leave_the_predictions (void **state)
{
  g_autoptr (weft_nccl) nccl = load (state, "all_gather,8,1,H100,80000000000,350,,here,", RULES);
  double before = nccl->row[0].predicted_s, error;

  weft_nccl_errors (nccl, double_links, NULL, &error);
  assert_near (nccl->row[0].predicted_s, before);
  assert_true ((1 + error) * nccl->row[0].measured_s < 0.51 * before);
}

/* ------------------------------------------------------------------ the bundled table */

static void
the_bundled_table_is_predicted (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_nccl) nccl = weft_nccl_load (NULL, NULL, &error);
  uint32_t n = 0;

  (void) state;
  if (!nccl)
    fail_msg ("%s", error->message);
  weft_nccl_predict (nccl, NULL, NULL);
  for (uint32_t i = 0; i < nccl->n_row; i++)
    n += !nccl->row[i].why;
  assert_int_equal (nccl->n_row, 337);
  assert_int_equal (n, 241);
}

enum { ROWS_OF_A_CELL = 3 };

/* The value of a key of validation/accuracy.ini; `fallback` without that key. */
static double
limit_of (const char *section, const char *key, double fallback)
{
  g_autoptr (weft_conf) conf = weft_conf_load (WEFT_SOURCE_DIR "/validation/accuracy.ini", NULL);

  assert_non_null (conf);
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (g_str_equal (conf->entry[i].section, section) && g_str_equal (conf->entry[i].key, key))
      return g_ascii_strtod (conf->entry[i].value, NULL);
  return fallback;
}

/* A cell is a fabric and a decade of sizes. A cell with a limit of its own in accuracy.ini must
 * exceed the limit of all cells: a cell that no longer does leaves the list of exceptions. */
static void
check_cell (const weft_nccl *nccl, const char *fabric, enum weft_nccl_size size)
{
  g_autofree char *section = g_strdup_printf ("collectives %s", fabric);
  struct weft_validate_errors e = weft_nccl_sum (nccl, fabric, size);
  double all = limit_of ("limits", size == 0 ? "collectives_small" : "collectives", NAN);
  double own = limit_of (section, weft_nccl_size_names[size], NAN);

  assert_false (isnan (all));
  if (e.n < ROWS_OF_A_CELL && isnan (own))
    return;
  if (e.n == 0 || !(e.median <= (isnan (own) ? all : own)))
    fail_msg ("%s, %s: median error %.3f of %u rows, limit %.3f", fabric,
              weft_nccl_size_names[size], e.median, e.n, isnan (own) ? all : own);
  if (!isnan (own) && e.median <= all)
    fail_msg ("%s, %s: median error %.3f needs no exception in validation/accuracy.ini", fabric,
              weft_nccl_size_names[size], e.median);
}

static void
every_decade_of_every_fabric_is_within_its_limit (void **state)
{
  g_autoptr (weft_nccl) nccl = weft_nccl_load (NULL, NULL, NULL);

  (void) state;
  assert_non_null (nccl);
  weft_nccl_predict (nccl, NULL, NULL);
  g_autofree const char **fabrics = weft_nccl_fabrics (nccl);
  for (unsigned i = 0; fabrics[i]; i++)
    for (int size = 0; size < WEFT_N_NCCL_SIZE; size++)
      check_cell (nccl, fabrics[i], size);
}

static void
the_command_prints_the_table (void **state)
{
  struct answer text = weft_test_answer ("validate --nccl --verbose");
  struct answer json = weft_test_answer ("validate --nccl --json");
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  assert_int_equal (text.status, 0);
  assert_non_null (strstr (text.out, "dgx-h100, RoCE"));
  assert_non_null (strstr (text.out, "kernels of DeepEP"));
  assert_true (json_parser_load_from_data (parser, json.out, -1, NULL));
  JsonObject *top = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (top, "schema"), "weft.nccl/1");
  assert_int_equal (json_array_get_length (json_object_get_array_member (top, "per_row")), 337);
  weft_test_answer_free (&text);
  weft_test_answer_free (&json);
  weft_test_refused ("validate --nccl --tier A", 2, "--nccl");
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_FOLDER (a_row_is_the_formula_of_a_step),
  IN_FOLDER (a_bus_bandwidth_is_a_time),
  IN_FOLDER (what_a_rule_changes_is_changed),
  IN_FOLDER (a_row_without_the_facts_is_refused),
  IN_FOLDER (a_wrong_rule_names_its_line),
  IN_FOLDER (errors_of_other_constants_leave_the_predictions),
  cmocka_unit_test (the_bundled_table_is_predicted),
  cmocka_unit_test (every_decade_of_every_fabric_is_within_its_limit),
  cmocka_unit_test (the_command_prints_the_table),
};

WEFT_TESTS (tests)
