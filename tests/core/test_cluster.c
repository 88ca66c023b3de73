#include "core/cluster/fabric.h"
#include "core/job/stack.h"
#include "core/base/conf.h"
#include "core/base/sheet.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static struct weft_cluster
load (const char *name)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster cluster;

  if (!weft_cluster_load (name, &cluster, &error))
    fail_msg ("%s: %s", name, error->message);
  return cluster;
}

static void
assert_near (double found, double wanted)
{
  if (fabs (found - wanted) > 1e-9 * fabs (wanted))
    fail_msg ("found %.17g, wanted %.17g", found, wanted);
}

static void
every_promised_topology_is_bundled_and_loads (void **state)
{
  static const char *const promised[] = { "cpu",      "dgx-a100",    "dgx-a100-40gb", "dgx-b200",
                                          "dgx-h100", "gb200-nvl72", "hgx-h200",      "l40s-pcie" };
  g_auto (GStrv) names = weft_sheet_names (&weft_cluster_sheet);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (promised); i++)
    assert_true (g_strv_contains ((const char *const *) names, promised[i]));
  for (unsigned i = 0; names[i]; i++)
    assert_int_equal (load (names[i]).n_nodes, 1);
}

static void
a_name_matches_whatever_its_case_and_dashes (void **state)
{
  (void) state;
  assert_near (load ("DGX_H100").f.gpu_bf16_spec, 989e12);
}

static void
no_bundled_topology_reaches_more_than_is_printed (void **state)
{
  g_auto (GStrv) names = weft_sheet_names (&weft_cluster_sheet);
  unsigned pairs = 0;

  (void) state;
  for (unsigned k = 0; names[k]; k++) {
    const struct weft_cluster cluster = load (names[k]);
    for (unsigned i = 0; i < weft_cluster_table.n; i++) {
      g_autofree char *spec = g_strconcat (weft_cluster_table.field[i].name, "_spec", NULL);
      int row = weft_table_find (&weft_cluster_table, spec);
      if (row < 0 || !weft_cluster_has (&cluster, i))
        continue;
      assert_true (cluster.f.at[i].r <= cluster.f.at[row].r);
      pairs++;
    }
  }
  /* A row NAME_spec is the rate that the vendor prints for NAME. Every cluster with a rail fabric
   * has seven such rows; the only torus has six. */
  assert_int_equal (pairs, 7 * g_strv_length (names) - 1);
}

static void
assert_commented (const weft_conf *conf)
{
  g_autofree char *text = NULL;

  assert_true (g_file_get_contents (conf->name, &text, NULL, NULL));
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  for (unsigned i = 0; i < conf->n_entry; i++) {
    const unsigned at = conf->entry[i].line - 1;
    gboolean commented = strchr (lines[at], '#') || lines[at - 1][0] == '#';
    if (!commented && strcmp (conf->entry[i].key, "name") != 0 &&
        strcmp (conf->entry[i].key, "base") != 0)
      fail_msg ("%s:%u: %s has no source", conf->name, at + 1, conf->entry[i].key);
  }
}

/* Every number of a bundled file must be stated in the file or in a base of it, with its source
 * in a comment on the same line or on the line before. */
/* Whether a bundled file may omit a field: a stack need not say of every fused kernel (the FUSION
 * rows of core/ops.def) that it has none. */
static gboolean
may_omit (const struct weft_sheet *sheet, unsigned field)
{
  static const unsigned fusions[] = {
#define FUSION(fused, first, second, field, ...) field,
#include "core/ops.def"
  };

  for (unsigned i = 0; sheet == &weft_stack_sheet && i < G_N_ELEMENTS (fusions); i++)
    if (fusions[i] == field)
      return TRUE;
  return FALSE;
}

static void
assert_sources (const struct weft_sheet *sheet, const char *name)
{
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (sheet, name, NULL);
  unsigned given = 0, wanted = 0;

  assert_non_null (file);
  for (unsigned i = 0; i < sheet->table->n; i++) {
    given += file->from[i].entry != NULL || may_omit (sheet, i);
    wanted += weft_sheet_has (sheet, file->values, i);
  }
  /* A bundled topology file gives every field except measured seconds. A file of a rail fabric may
   * also omit the kind of fabric (rails are the default) and SHARP (which users enable). */
  if (sheet == &weft_cluster_sheet)
    given += file->values[WEFT_CLUSTER_fabric_kind].i == WEFT_FABRIC_RAILS ? 3 : 1;
  assert_int_equal (given, wanted);
  assert_commented (file->conf->pdata[0]);
}

static void
every_bundled_number_is_given_with_its_source (void **state)
{
  g_auto (GStrv) clusters = weft_sheet_names (&weft_cluster_sheet);
  g_auto (GStrv) stacks = weft_sheet_names (&weft_stack_sheet);

  (void) state;
  for (unsigned i = 0; clusters[i]; i++)
    assert_sources (&weft_cluster_sheet, clusters[i]);
  for (unsigned i = 0; stacks[i]; i++)
    assert_sources (&weft_stack_sheet, stacks[i]);
}

static void
the_data_sheets_are_met (void **state)
{
  /* Figures of NVIDIA's data sheets: rates without sparsity, bandwidths in one direction. */
  static const struct {
    const char *name;
    double bf16, memory_bandwidth, intra, nic;
    int64_t sms, gpus, nics;
  } sheet[] = {
    { "dgx-a100", 312e12, 2039e9, 300e9, 25e9, 108, 8, 8 },
    { "dgx-a100-40gb", 312e12, 1555e9, 300e9, 25e9, 108, 8, 8 },
    { "dgx-h100", 989e12, 3.35e12, 450e9, 50e9, 132, 8, 8 },
    { "hgx-h200", 989e12, 4.8e12, 450e9, 50e9, 132, 8, 8 },
    { "dgx-b200", 2250e12, 8e12, 900e9, 50e9, 148, 8, 8 },
    { "gb200-nvl72", 2500e12, 8e12, 900e9, 50e9, 148, 72, 72 },
    { "l40s-pcie", 362e12, 864e9, 31.5e9, 25e9, 142, 8, 2 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (sheet); i++) {
    const struct weft_cluster cluster = load (sheet[i].name);
    assert_near (cluster.f.gpu_bf16_spec, sheet[i].bf16);
    assert_near (cluster.f.gpu_memory_bandwidth_spec, sheet[i].memory_bandwidth);
    assert_near (cluster.f.node_intra_bandwidth_spec, sheet[i].intra);
    assert_near (cluster.f.node_nic_bandwidth_spec, sheet[i].nic);
    assert_int_equal (cluster.f.gpu_sms, sheet[i].sms);
    assert_int_equal (cluster.f.node_gpus, sheet[i].gpus);
    assert_int_equal (cluster.f.node_nics, sheet[i].nics);
  }
}

static void
the_driver_leaves_less_than_the_chips_hold (void **state)
{
  /* Total memory of each GPU, as nvidia-smi prints it, in GiB. */
  static const struct {
    const char *name;
    double total;
  } sheet[] = {
    { "dgx-a100", 80 },        { "dgx-a100-40gb", 40 }, { "dgx-h100", 79.65 },
    { "hgx-h200", 140.4 },     { "dgx-b200", 179.06 },  { "gb200-nvl72", 185.03 },
    { "l40s-pcie", 44.99 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (sheet); i++) {
    const double gib = load (sheet[i].name).f.gpu_memory / 0x1p30;
    assert_true (gib < sheet[i].total);
    assert_true (gib > 0.98 * sheet[i].total);
  }
}

/* A port whose messages pass through the CPU of the host reaches less: Omni-Path. */
static void
rings_keep_three_quarters_of_nvlink_and_nine_tenths_of_a_port (void **state)
{
  g_auto (GStrv) names = weft_sheet_names (&weft_cluster_sheet);

  (void) state;
  for (unsigned i = 0; names[i]; i++) {
    const union weft_cluster_fields f = load (names[i]).f;
    if (f.fabric_kind != WEFT_FABRIC_RAILS)
      continue;
    double share = f.fabric_floor_latency > 0 ? 0.85 : 0.9;
    assert_true (f.node_nic_bandwidth > share * f.node_nic_bandwidth_spec);
    if (f.node_intra == WEFT_NVLINK)
      assert_true (f.node_intra_bandwidth > 0.75 * f.node_intra_bandwidth_spec);
    assert_true (f.fabric_latency > f.node_intra_latency);
  }
}

static void
a_loaded_cluster_is_one_node (void **state)
{
  (void) state;
  assert_int_equal (load ("dgx-h100").n_gpus, 8);
  assert_int_equal (load ("gb200-nvl72").n_gpus, 72);
  assert_int_equal (load ("cpu").n_gpus, 1);
  assert_string_equal (g_quark_to_string (load ("dgx-h100").topology), "dgx-h100");
}

static void
assert_size (const char *name, int64_t gpus, int64_t nodes, uint32_t n_gpus, uint32_t n_nodes)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster cluster = load (name);

  if (!weft_cluster_resize (&cluster, gpus, nodes, &error))
    fail_msg ("%s", error->message);
  assert_int_equal (cluster.n_gpus, n_gpus);
  assert_int_equal (cluster.n_nodes, n_nodes);
}

static void
a_size_is_gpus_or_nodes_or_both (void **state)
{
  (void) state;
  assert_size ("dgx-h100", 0, 0, 8, 1);
  assert_size ("dgx-h100", 0, 4, 32, 4);
  assert_size ("dgx-h100", 32, 0, 32, 4);
  assert_size ("dgx-h100", 32, 4, 32, 4);
  assert_size ("dgx-h100", 0, 8192, 65536, 8192);
  assert_size ("gb200-nvl72", 144, 0, 144, 2);
}

static void
a_part_of_one_node_is_allowed (void **state)
{
  (void) state;
  assert_size ("dgx-h100", 1, 0, 1, 1);
  assert_size ("dgx-h100", 6, 0, 6, 1);
  assert_size ("dgx-h100", 6, 1, 6, 1);
  assert_size ("gb200-nvl72", 36, 0, 36, 1);
}

static void
any_number_of_cpu_ranks_is_one_node (void **state)
{
  (void) state;
  assert_size ("cpu", 0, 0, 1, 1);
  assert_size ("cpu", 7, 0, 7, 1);
  assert_size ("cpu", 64, 1, 64, 1);
  assert_size ("cpu", 4096, 0, 4096, 1);
}

static void
assert_no_size (const char *name, int64_t gpus, int64_t nodes, const char *message)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster cluster = load (name);
  const uint32_t before = cluster.n_gpus;

  assert_false (weft_cluster_resize (&cluster, gpus, nodes, &error));
  assert_string_equal (error->message, message);
  assert_int_equal (cluster.n_gpus, before);
}

static void
a_wrong_size_says_what_was_found_and_wanted (void **state)
{
  (void) state;
  assert_no_size ("dgx-h100", 12, 0,
                  "gpus: found 12, wanted up to 8 GPUs or a multiple of it: whole nodes of "
                  "topology dgx-h100");
  assert_no_size ("dgx-h100", 8, 2,
                  "gpus: found 8, wanted 16 GPUs, which is what nodes = 2 of topology "
                  "dgx-h100 have");
  assert_no_size ("dgx-h100", 24, 2,
                  "gpus: found 24, wanted 16 GPUs, which is what nodes = 2 of topology "
                  "dgx-h100 have");
  assert_no_size ("dgx-h100", -1, 0, "gpus: found -1, wanted 1 GPU or more");
  assert_no_size ("dgx-h100", 0, -3, "nodes: found -3, wanted 1..8192 nodes on topology dgx-h100");
  assert_no_size ("dgx-h100", 0, 8193,
                  "nodes: found 8193, wanted 1..8192 nodes on topology dgx-h100");
  assert_no_size ("dgx-h100", 65544, 0,
                  "gpus = 65544: nodes: found 8193, wanted 1..8192 nodes on topology dgx-h100");
  assert_no_size ("cpu", 0, 2, "nodes: found 2, wanted 1..1 nodes on topology cpu");
  assert_no_size (
      "gb200-nvl72", INT64_MAX - INT64_MAX % 72, 0,
      "gpus = 9223372036854775800: nodes: found 128102389400760775, wanted 1..128 nodes "
      "on topology gb200-nvl72");
}

/* The error of loading dgx-h100.ini with `from` replaced by `to`, without the path. The caller
 * frees it. */
static char *
message_of (const char *from, const char *to)
{
  g_autofree char *good = weft_data_find ("topologies", "dgx-h100", WEFT_SHEET_SUFFIX, NULL);
  g_autofree char *text = NULL, *path = NULL;
  g_autoptr (GError) error = NULL;
  struct weft_cluster cluster;

  assert_true (g_file_get_contents (good, &text, NULL, NULL));
  const char *at = strstr (text, from);
  assert_non_null (at);
  g_autofree char *head = g_strndup (text, at - text);
  g_autofree char *bad = g_strconcat (head, to, at + strlen (from), NULL);
  close (g_file_open_tmp ("weft-XXXXXX.ini", &path, NULL));
  assert_true (g_file_set_contents (path, bad, -1, NULL));
  gboolean ok = weft_cluster_load (path, &cluster, &error);
  g_unlink (path);
  assert_false (ok);
  assert_true (g_str_has_prefix (error->message, path));
  return g_strdup (error->message + strlen (path));
}

/* Returns the number of the line of dgx-h100.ini that starts with `key`. */
static unsigned
line_of (const char *key)
{
  g_autofree char *path = weft_data_find ("topologies", "dgx-h100", WEFT_SHEET_SUFFIX, NULL);
  g_autofree char *text = NULL;
  unsigned line = 1;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  const char *found = strstr (text, key);
  assert_non_null (found);
  for (const char *c = text; c < found; c++)
    line += *c == '\n';
  return line;
}

static void
assert_bad_line (const char *from, const char *to, const char *wanted)
{
  g_autofree char *message = message_of (from, to);
  g_autofree char *whole = g_strdup_printf (":%u: %s", line_of (from), wanted);
  assert_string_equal (message, whole);
}

static void
a_bad_line_is_named_with_its_file_and_number (void **state)
{
  (void) state;
  assert_bad_line ("bf16 = 794TFLOP/s", "bf61 = 794TFLOP/s",
                   "[gpu] unknown key \"bf61\"; did you mean bf16?");
  assert_bad_line ("bf16 = 794TFLOP/s", "zzzzzzzz = 1", "[gpu] unknown key \"zzzzzzzz\"");
  assert_bad_line ("sms = 132", "sms = 0", 
                   "[gpu] sms: found \"0\", wanted 1..4096 (streaming multiprocessors)");
  assert_bad_line ("nics = 8", "nics = 1.5", 
                   "[node] nics: found \"1.5\", wanted 1..4096 (network ports of a node for GPU "
                   "traffic)");
  assert_bad_line ("memory = 79.11GiB", "memory = 79.11GFLOP/s",
                   "[gpu] memory: found \"79.11GFLOP/s\", wanted 1..1e15 B");
  assert_bad_line ("intra = nvlink", "intra = nvswitch",
                   "[node] intra: found \"nvswitch\", wanted nvlink|pcie|memory");
  assert_bad_line ("intra_latency = 3.4us", "intra_latency = -1us",
                   "[node] intra_latency: found \"-1us\", wanted 0..1 s");
}

static void
a_bad_section_is_named_with_its_first_line (void **state)
{
  (void) state;
  g_autofree char *message = message_of ("[fabric]", "[fabrik]");
  g_autofree char *wanted =
      g_strdup_printf (":%u: [fabrik] unknown section; did you mean [fabric]?",
                       line_of ("\nlatency = 14us") + 1);
  assert_string_equal (message, wanted);
}

static void
more_than_the_printed_rate_is_refused (void **state)
{
  (void) state;
  assert_bad_line ("bf16 = 794TFLOP/s", "bf16 = 990TFLOP/s",
                   "[gpu] bf16: found \"990TFLOP/s\", wanted at most bf16_spec (9.89e+14)");
}

static void
a_key_in_two_spellings_is_refused (void **state)
{
  (void) state;
  g_autofree char *message =
      message_of ("bf16_spec = 989TFLOP/s", "bf16-spec = 1\nBF16_spec = 989TFLOP/s");
  assert_non_null (
      strstr (message, "[gpu] BF16_spec is given twice, first as \"bf16-spec\" on line "));
}

static void
what_is_missing_is_named (void **state)
{
  (void) state;
  g_autofree char *key = message_of ("\nnics = 8", "\n#");
  assert_string_equal (key, ": [node] nics is missing: network ports of a node for GPU traffic; "
                            "wanted 1..4096");
  g_autofree char *name = message_of ("name = NVIDIA H100 80GB HBM3", "");
  assert_string_equal (name, ": [gpu] name is missing: product name; wanted text");
  g_autofree char *section = message_of ("[fabric]", "#");
  assert_non_null (strstr (section, "[node] \"ll_bandwidth\" is given twice"));
}

static void
a_file_without_a_section_says_so (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = NULL;
  struct weft_cluster cluster;

  (void) state;
  close (g_file_open_tmp ("weft-XXXXXX.ini", &path, NULL));
  assert_true (g_file_set_contents (path, "[gpu]\nsms = 1\n", -1, NULL));
  assert_false (weft_cluster_load (path, &cluster, &error));
  g_unlink (path);
  g_autofree char *wanted = g_strconcat (path, ": section [node] is missing", NULL);
  assert_string_equal (error->message, wanted);
}

/* A cluster of TPU v4 chips is a torus: the number of chips must fill a box of whole hosts.
 * Other numbers are refused. */
static void
a_torus_takes_numbers_that_fill_a_box (void **state)
{
  (void) state;
  assert_size ("tpu-v4", 0, 0, 4, 1);
  assert_size ("tpu-v4", 2, 0, 2, 1);
  assert_size ("tpu-v4", 0, 16, 64, 16);
  assert_size ("tpu-v4", 4096, 0, 4096, 1024);
  assert_no_size ("tpu-v4", 3, 0,
                  "topology tpu-v4: fabric_x, fabric_y, fabric_z: found any x any x any for "
                  "gpus = 3, wanted three whole numbers with that product, in hosts of 2 x 2 x 1 "
                  "chips");
  assert_no_size ("tpu-v4", 8192, 0,
                  "gpus = 8192: nodes: found 2048, wanted 1..1024 nodes on topology tpu-v4");
}

static void
three_sides_are_a_size_and_must_fit_another (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster c = load ("tpu-v4");

  (void) state;
  c.f.fabric_x = c.f.fabric_y = 4;
  c.f.fabric_z = 8;
  assert_true (weft_cluster_settle (&c, &error));
  assert_int_equal (c.n_gpus, 128);
  assert_int_equal (c.n_nodes, 32);
  assert_false (weft_cluster_resize (&c, 64, 0, &error));
  assert_string_equal (error->message,
                       "topology tpu-v4: fabric_x, fabric_y, fabric_z: found 4 x 4 x 8 for "
                       "gpus = 64, wanted three whole numbers with that product, in hosts of "
                       "2 x 2 x 1 chips");
  assert_int_equal (c.n_gpus, 128);
  g_clear_error (&error);
  c.f.fabric_host_z = 2;
  assert_false (weft_cluster_settle (&c, &error));
  assert_string_equal (error->message,
                       "topology tpu-v4: fabric_host_x, fabric_host_y, fabric_host_z: found "
                       "2 x 2 x 2, wanted a product of 4 chips (node_gpus)");
}

static void
a_field_of_another_fabric_is_refused (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster tpu = load ("tpu-v4"), dgx = load ("dgx-h100");

  (void) state;
  assert_bad_line ("nodes_per_unit = 32", "hop_latency = 1us",
                   "[fabric] found hop_latency with [fabric] kind = rails, wanted it only with "
                   "kind = torus");
  assert_true (weft_cluster_has (&tpu, WEFT_CLUSTER_fabric_x));
  assert_false (weft_cluster_has (&dgx, WEFT_CLUSTER_fabric_x));
  assert_true (weft_cluster_may_set (&dgx, WEFT_CLUSTER_node_nics, &error));
  assert_false (weft_cluster_may_set (&tpu, WEFT_CLUSTER_node_nics, &error));
  assert_string_equal (error->message,
                       "found nics with [fabric] kind = torus, wanted it only with kind = rails or "
                       "platform");
  g_clear_error (&error);
  assert_false (weft_cluster_may_set (&dgx, WEFT_CLUSTER_fabric_kind, &error));
  assert_string_equal (error->message,
                       "found a kind of fabric, wanted it in the topology file");
}

static void
an_unknown_topology_suggests_a_near_one (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster cluster;

  (void) state;
  assert_false (weft_cluster_load ("dgx-h10", &cluster, &error));
  assert_non_null (strstr (error->message, "did you mean dgx-h100?"));
}

static void
every_promised_stack_is_bundled_under_its_own_name (void **state)
{
  static const char *const promised[] = { "weft", "megatron-core", "torchtitan" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (promised); i++) {
    g_autoptr (GError) error = NULL;
    union weft_stack stack;
    if (!weft_stack_load (promised[i], &stack, &error))
      fail_msg ("%s: %s", promised[i], error->message);
    assert_string_equal (g_quark_to_string (stack.name), promised[i]);
    assert_true (stack.attention_backward_share < stack.attention_forward_share);
    assert_true (stack.p2p_sms < stack.collective_sms);
  }
}

static void
a_stack_file_may_give_only_what_differs (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = NULL;
  union weft_stack stack, plain;

  (void) state;
  close (g_file_open_tmp ("weft-XXXXXX.ini", &path, NULL));
  assert_true (g_file_set_contents (path, "[stack]\nname = mine\nkernel_gap = 3us\n", -1, NULL));
  assert_true (weft_stack_load (path, &stack, &error));
  weft_table_defaults (&weft_stack_table, plain.at);
  assert_near (stack.kernel_gap, 3e-6);
  assert_near (stack.memory_share, plain.memory_share);
  assert_true (g_file_set_contents (path, "[stack]\nkernel_gap = 3us\n", -1, NULL));
  assert_false (weft_stack_load (path, &stack, &error));
  assert_non_null (
      strstr (error->message, ": [stack] name is missing: name of the software stack"));
  g_unlink (path);
}

struct stack_text {
  const char *file, *text;
};

static void
write_stacks (const char *folder, const struct stack_text *stack, unsigned n)
{
  for (unsigned i = 0; i < n; i++) {
    g_autofree char *path = g_build_filename (folder, stack[i].file, NULL);
    assert_true (g_file_set_contents (path, stack[i].text, -1, NULL));
  }
}

static void
remove_stacks (const char *folder, const struct stack_text *stack, unsigned n)
{
  for (unsigned i = 0; i < n; i++) {
    g_autofree char *path = g_build_filename (folder, stack[i].file, NULL);
    g_unlink (path);
  }
  g_rmdir (folder);
}

static void
a_stack_has_the_fields_of_its_base_but_not_its_name (void **state)
{
  static const struct stack_text text[] = {
    { "old.ini", "[stack]\nname = old\nbase = megatron-core\nkernel_gap = 3us\nnorm_waits = 0\n" },
    { "new.ini", "[stack]\nname = new\nbase = old.ini\nkernel_gap = 4us\n" },
    { "same.ini", "[stack]\nbase = old.ini\n" },
  };
  g_autofree char *folder = g_dir_make_tmp ("weft-XXXXXX", NULL);
  g_autofree char *new = g_build_filename (folder, "new.ini", NULL);
  g_autofree char *same = g_build_filename (folder, "same.ini", NULL);
  g_autoptr (GError) error = NULL;
  union weft_stack stack, base;

  (void) state;
  write_stacks (folder, text, G_N_ELEMENTS (text));
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (&weft_stack_sheet, new, &error);
  assert_non_null (file);
  assert_int_equal (file->conf->len, 3);
  assert_true (file->from[WEFT_STACK_kernel_gap].conf == file->conf->pdata[0]);
  assert_true (file->from[WEFT_STACK_norm_waits].conf == file->conf->pdata[1]);
  assert_true (file->from[WEFT_STACK_host_waits].conf == file->conf->pdata[2]);
  assert_true (weft_stack_load (new, &stack, &error));
  assert_true (weft_stack_load ("megatron-core", &base, &error));
  assert_string_equal (g_quark_to_string (stack.name), "new");
  assert_near (stack.kernel_gap, 4e-6);
  stack.kernel_gap = base.kernel_gap;
  assert_int_equal (stack.norm_waits, 0);
  stack.norm_waits = base.norm_waits;
  stack.name = base.name;
  assert_memory_equal (&stack, &base, sizeof stack);
  assert_false (weft_stack_load (same, &stack, &error));
  assert_non_null (strstr (error->message, "same.ini: [stack] name is missing"));
  remove_stacks (folder, text, G_N_ELEMENTS (text));
}

static void
a_base_that_is_unknown_or_builds_on_its_file_is_refused (void **state)
{
  static const struct stack_text text[] = {
    { "a.ini", "[stack]\nname = a\nbase = b.ini\n" },
    { "b.ini", "[stack]\nname = b\n\nbase = a.ini\n" },
    { "c.ini", "[stack]\nname = c\nbase = c.ini\n" },
    { "d.ini", "[stack]\nname = d\nbase = llm-foundri\n" },
    { "e.ini", "[stack]\nname = e\nbase = f.ini\n" },
    { "f.ini", "[stack]\nname = f\nkernel_gap = long\n" },
  };
  static const struct stack_text wanted[] = {
    { "a.ini", "b.ini:4: [stack] base: found \"a.ini\", wanted a file that does not build on" },
    { "c.ini", "c.ini:3: [stack] base: found \"c.ini\", wanted a file that does not build on" },
    { "d.ini", "d.ini:3: [stack] base: found \"llm-foundri\", wanted another file: nothing named "
               "\"llm-foundri\" in stacks; did you mean llm-foundry?" },
    { "e.ini", "f.ini:3: [stack] kernel_gap" },
  };
  g_autofree char *folder = g_dir_make_tmp ("weft-XXXXXX", NULL);

  (void) state;
  write_stacks (folder, text, G_N_ELEMENTS (text));
  for (unsigned i = 0; i < G_N_ELEMENTS (wanted); i++) {
    g_autofree char *path = g_build_filename (folder, wanted[i].file, NULL);
    g_autoptr (GError) error = NULL;
    union weft_stack stack;
    assert_false (weft_stack_load (path, &stack, &error));
    if (!strstr (error->message, wanted[i].text))
      fail_msg ("%s: %s", wanted[i].file, error->message);
  }
  remove_stacks (folder, text, G_N_ELEMENTS (text));
}

/* A chain of stack files, each of which is the base of the next. The file of a release states only
 * what differs from its base: here the data-parallel wrappers that it has, and whether a step waits
 * for the host. */
static void
releases_state_only_what_differs (void **state)
{
  static const char *const chain[] = { "megatron-bridge-26.06", "megatron-bridge-26.02",
                                       "megatron-bridge-25.09", "megatron-core-0.13",
                                       "megatron-core-0.10",    "megatron-core-0.8",
                                       "megatron-core" };
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (&weft_stack_sheet, chain[0], NULL);

  (void) state;
  assert_int_equal (file->conf->len, G_N_ELEMENTS (chain));
  for (unsigned i = 0; i < G_N_ELEMENTS (chain); i++) {
    union weft_stack stack;
    assert_true (weft_stack_load (chain[i], &stack, NULL));
    assert_string_equal (g_quark_to_string (stack.name), chain[i]);
    assert_true (weft_stack_lists (stack.wrappers, "megatron_ddp"));
    assert_int_equal (weft_stack_lists (stack.wrappers, "fsdp2"), i != 5);
    assert_int_equal (weft_stack_lists (stack.wrappers, "megatron_fsdp"), i < 4 || i == 6);
    assert_int_equal (stack.step_waits, i < 3);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (releases_state_only_what_differs),
  cmocka_unit_test (every_promised_topology_is_bundled_and_loads),
  cmocka_unit_test (a_name_matches_whatever_its_case_and_dashes),
  cmocka_unit_test (no_bundled_topology_reaches_more_than_is_printed),
  cmocka_unit_test (every_bundled_number_is_given_with_its_source),
  cmocka_unit_test (the_data_sheets_are_met),
  cmocka_unit_test (the_driver_leaves_less_than_the_chips_hold),
  cmocka_unit_test (rings_keep_three_quarters_of_nvlink_and_nine_tenths_of_a_port),
  cmocka_unit_test (a_loaded_cluster_is_one_node),
  cmocka_unit_test (a_size_is_gpus_or_nodes_or_both),
  cmocka_unit_test (a_part_of_one_node_is_allowed),
  cmocka_unit_test (any_number_of_cpu_ranks_is_one_node),
  cmocka_unit_test (a_wrong_size_says_what_was_found_and_wanted),
  cmocka_unit_test (a_bad_line_is_named_with_its_file_and_number),
  cmocka_unit_test (a_bad_section_is_named_with_its_first_line),
  cmocka_unit_test (more_than_the_printed_rate_is_refused),
  cmocka_unit_test (a_key_in_two_spellings_is_refused),
  cmocka_unit_test (what_is_missing_is_named),
  cmocka_unit_test (a_file_without_a_section_says_so),
  cmocka_unit_test (a_torus_takes_numbers_that_fill_a_box),
  cmocka_unit_test (three_sides_are_a_size_and_must_fit_another),
  cmocka_unit_test (a_field_of_another_fabric_is_refused),
  cmocka_unit_test (an_unknown_topology_suggests_a_near_one),
  cmocka_unit_test (every_promised_stack_is_bundled_under_its_own_name),
  cmocka_unit_test (a_stack_file_may_give_only_what_differs),
  cmocka_unit_test (a_stack_has_the_fields_of_its_base_but_not_its_name),
  cmocka_unit_test (a_base_that_is_unknown_or_builds_on_its_file_is_refused),
};

WEFT_TESTS (tests)
