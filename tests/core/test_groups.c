/* Files of groups of nodes: what they mean, and what is refused. */
#include "core/cluster/fabric.h"
#include "core/cluster/groups.h"
#include "core/cluster/rails.h"
#include "tests/made/made.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"

#define OLD "[nodes old]\nfrom = dgx-a100\ncount = 2\n"
#define NEW "[nodes new]\nfrom = dgx-h100\ncount = 1\n"

/* A file of its own for each text, because a process reads a file once. */
static gboolean
load (const char *folder, const char *text, struct weft_cluster *c, GError **error)
{
  static unsigned files;
  g_autofree char *name = g_strdup_printf ("groups%u.ini", files++),
                  *path = g_build_filename (folder, name, NULL);

  assert_true (g_file_set_contents (path, text, -1, NULL));
  return weft_cluster_load (path, c, error);
}

static struct weft_cluster
loaded (const char *folder, const char *text)
{
  g_autoptr (GError) error = NULL;
  struct weft_cluster c;

  if (!load (folder, text, &c, &error))
    fail_msg ("%s", error->message);
  return c;
}

static void
nodes_are_in_the_order_of_the_file (void **state)
{
  struct weft_cluster c = loaded (*state, OLD NEW "[nodes more]\nfrom = dgx-a100\ncount = 1\n");

  assert_int_equal (c.n_nodes, 4);
  assert_int_equal (c.n_gpus, 32);
  assert_int_equal (c.groups->group->len, 3);
  assert_int_equal (c.groups->n_kinds, 2);
  static const uint32_t kind[] = { 0, 0, 1, 0 };
  for (uint32_t node = 0; node < 4; node++)
    assert_int_equal (weft_cluster_kind_of (&c, 8 * node + 3), kind[node]);
}

static void
links_have_the_rate_of_their_own_node (void **state)
{
  struct weft_cluster c = loaded (*state, OLD NEW), old, new;
  struct weft_fabric f = weft_fabric_make (&c);

  assert_true (weft_cluster_load ("dgx-a100", &old, NULL) &&
               weft_cluster_load ("dgx-h100", &new, NULL));
  for (uint32_t gpu = 0; gpu < c.n_gpus; gpu++) {
    const union weft_cluster_fields *own = gpu < 16 ? &old.f : &new.f;
    const double wanted[] = { [WEFT_LINK_PORT_UP] = own->node_intra_bandwidth,
                              [WEFT_LINK_PCIE_DOWN] = own->gpu_host_link,
                              [WEFT_LINK_HOST_UP] = own->gpu_host_link,
                              [WEFT_LINK_MEMORY] = own->node_host_bandwidth,
                              [WEFT_LINK_NIC_UP] = own->node_nic_bandwidth,
                              [WEFT_LINK_NIC_DOWN] = own->node_nic_bandwidth };
    for (uint32_t kind = 0; kind < G_N_ELEMENTS (wanted); kind++)
      if (wanted[kind] > 0)
        assert_near (weft_fabric_capacity (&f, weft_fabric_owner (&f, kind, gpu)), wanted[kind]);
  }
}

static void
together_the_kinds_are_as_the_slowest (void **state)
{
  struct weft_cluster c = loaded (*state, OLD NEW), old, new;

  assert_true (weft_cluster_load ("dgx-a100", &old, NULL) &&
               weft_cluster_load ("dgx-h100", &new, NULL));
  assert_near (c.f.gpu_bf16, old.f.gpu_bf16);
  assert_near (c.f.node_nic_bandwidth, old.f.node_nic_bandwidth);
  assert_near (c.f.gpu_memory, fmin (old.f.gpu_memory, new.f.gpu_memory));
  assert_true (c.f.node_nvls_bandwidth == 0);
  assert_near (c.f.node_intra_latency, fmax (old.f.node_intra_latency, new.f.node_intra_latency));
  assert_near (c.f.fabric_latency, old.f.fabric_latency);
  assert_near (weft_cluster_of_kind (&c, 1)->f.gpu_bf16, new.f.gpu_bf16);
  assert_near (weft_cluster_of_kind (&c, 1)->f.fabric_latency, old.f.fabric_latency);
}

static void
a_group_may_differ_from_its_topology (void **state)
{
  struct weft_cluster c = loaded (*state, OLD "node_nic_bandwidth = 10GB/s\n[fabric]\n"
                                              "latency = 20us\n");

  assert_near (c.f.node_nic_bandwidth, 10e9);
  assert_near (c.f.fabric_latency, 20e-6);
  assert_false (weft_cluster_is_mixed (&c));
}

static void
what_is_wrong_is_named_with_its_line (void **state)
{
  static const struct {
    const char *text, *message;
  } bad[] = {
    { "[nodes a]\ncount = 2\n", ":2: [nodes a] found no key from, wanted a topology" },
    { "[nodes a]\nfrom = dgx-a100\n", ":2: [nodes a] found no key count, wanted a number" },
    { "[nodes a]\nfrom = dgx-a100\ncount = none\n",
      ":3: [nodes a] count: found \"none\", wanted a number of nodes" },
    { "[nodes a]\nfrom = dgx-a100\ncount = 0\n", ":3: [nodes a] count: found \"0\", wanted" },
    { "[nodes a]\nfrom = dgx-a10\ncount = 1\n", ":2: [nodes a] " },
    { "[nodes a]\nfrom = cpu\ncount = 1\n",
      ":2: [nodes a] from: found \"cpu\", wanted a topology with one kind of nodes" },
    { "[nodes a]\nfrom = tpu-v4\ncount = 1\n", "from: found \"tpu-v4\", wanted" },
    { OLD "[nodes b]\nfrom = v100-4x\ncount = 1\n",
      ":5: [nodes b] from: found \"v100-4x\" with node_gpus = 4, wanted 8 as in [nodes old]" },
    { OLD "memory = 40GB\n", ":4: [nodes old] found key \"memory\", wanted from, count or" },
    { OLD "gpu_memorie = 40GB\n", ":4: [nodes old] found key \"gpu_memorie\", wanted from" },
    { OLD "gpu_memory = much\n", ":4: [nodes old] gpu_memory: found \"much\", wanted" },
    { OLD "[fabric]\nlatenzy = 1us\n", ":5: [fabric] found key \"latenzy\", wanted" },
    { OLD "[fabric]\nkind = torus\n", ":5: [fabric] " },
    { OLD "[gpu]\nmemory = 1\n", ":5: [gpu] unknown section in a file of groups of nodes" },
    { OLD "[fabric]\nleaf_oversubscription = 2\n", "found leaf_oversubscription = 2" },
    { OLD "[fabric]\nmax_nodes = 1\n", "found 2 nodes, wanted at most max_nodes = 1" },
    { OLD "[nodes b]\nfrom = nested.ini\ncount = 1\n",
      ":5: [nodes b] from: found \"nested.ini\", wanted a topology with one kind of nodes" },
    { NEW
      "[nodes 2]\nfrom = dgx-a100\ncount = 1\n[nodes 3]\nfrom = hgx-h200\ncount = 1\n[nodes 4]\n"
      "from = dgx-b200\ncount = 1\n[nodes 5]\nfrom = hgx-a800\ncount = 1\n",
      ": [nodes 5] found more than 4 kinds of nodes, wanted at most 4" },
  };
  g_autofree char *nested = g_build_filename (*state, "nested.ini", NULL);
  assert_true (g_file_set_contents (nested, OLD, -1, NULL));
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autoptr (GError) error = NULL;
    struct weft_cluster c;
    if (load (*state, bad[i].text, &c, &error) || !strstr (error->message, bad[i].message))
      fail_msg ("%s\nfound: %s\nwanted: %s", bad[i].text, error ? error->message : "no error",
                bad[i].message);
  }
}

static void
the_size_is_that_of_the_groups (void **state)
{
  struct weft_cluster c = loaded (*state, OLD NEW);
  g_autoptr (GError) error = NULL, other = NULL, set = NULL;

  assert_true (weft_cluster_resize (&c, 24, 0, NULL) && weft_cluster_resize (&c, 0, 3, NULL));
  assert_false (weft_cluster_resize (&c, 16, 0, &error));
  assert_non_null (strstr (error->message, "gpus: found 16, wanted all 3 nodes of the groups in"));
  assert_false (weft_cluster_resize (&c, 0, 2, &other));
  assert_non_null (strstr (other->message, "nodes: found 2, wanted all 3 nodes"));
  assert_false (weft_cluster_may_set (&c, WEFT_CLUSTER_gpu_memory, &set));
  assert_non_null (strstr (set->message, "several kinds of nodes, wanted it in "));
}

#define TEST(name)                                                                                 \
  cmocka_unit_test_setup_teardown (name, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  TEST (nodes_are_in_the_order_of_the_file),    TEST (links_have_the_rate_of_their_own_node),
  TEST (together_the_kinds_are_as_the_slowest), TEST (a_group_may_differ_from_its_topology),
  TEST (what_is_wrong_is_named_with_its_line),  TEST (the_size_is_that_of_the_groups),
};

WEFT_TESTS (tests)
