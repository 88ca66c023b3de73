/* SimGrid platform files as clusters: their hosts, links and routes, what is refused, and that a
 * step on them takes as long as on the same network described by a topology. */
#include "core/cluster/platform.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"

#define HEAD "<?xml version='1.0'?>\n"                                                             \
             "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"                    \
             "<platform version=\"4.1\">\n"
#define TAIL "</platform>\n"
#define ZONE HEAD "<zone id=\"z\" routing=\"Full\">\n<prop id=\"topology\" value=\"dgx-a100\"/>\n"
#define HOSTS "<host id=\"a\" speed=\"1Gf\"/>\n<host id=\"b\" speed=\"1Gf\"/>\n"
#define NIC "192GBps"

static const char cluster[] =
    HEAD "<cluster id=\"c\" prefix=\"node-\" suffix=\"\" radical=\"0-1\" speed=\"1Gf\" bw=\"" NIC
         "\" lat=\"0us\">\n  <prop id=\"topology\" value=\"dgx-a100\"/>\n</cluster>\n" TAIL;
static const char zone[] = ZONE HOSTS
    "<link id=\"l1\" bandwidth=\"" NIC "\" sharing_policy=\"SPLITDUPLEX\"/>\n"
    "<link id=\"l2\" bandwidth=\"1536Gbps\" latency=\"0\" sharing_policy=\"SPLITDUPLEX\"/>\n"
    "<route src=\"a\" dst=\"b\"><link_ctn id=\"l1\" direction=\"UP\"/>"
    "<link_ctn id=\"l2\" direction=\"DOWN\"/></route>\n</zone>\n" TAIL;

static char *
write_file (const char *folder, const char *name, const char *text)
{
  char *path = g_build_filename (folder, name, NULL);

  assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

static double
seconds (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_timeline) t = made_run (plan);

  return t->seconds;
}

/* Two DGX A100 with eight NICs of 24 GB/s, as a topology; as one link of 192 GB/s per host, in a
 * cluster element and with routes. All GPUs are in one group, whose flows fill the NICs equally. */
static void
a_step_takes_as_long_as_on_the_same_network (void **state)
{
#define JOB "model=gpt2-medium global_batch_size=32 "
  const char *const files[] = { cluster, zone };
  double wanted = seconds (JOB "topology=dgx-a100 nodes=2 fabric_congestion=0 "
                               "node_nic_bandwidth=24GB/s");

  for (unsigned i = 0; i < G_N_ELEMENTS (files); i++) {
    g_autofree char *path = write_file (*state, i ? "zone.xml" : "cluster.xml", files[i]);
    g_autofree char *words = g_strconcat (JOB "topology=", path, NULL);
    assert_near (seconds (words), wanted);
  }
}

/* The routes of a platform as text: "a b 3.5e-06 l1_UP 1.92e+11 ...", one line for each pair. */
static char *
routes_text (const struct weft_platform *p)
{
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; i < p->host->len * p->host->len; i++) {
    const struct weft_platform_route *route = &p->route[i];
    if (i / p->host->len == i % p->host->len)
      continue;
    g_string_append_printf (text, "%s %s %g", (char *) p->host->pdata[i / p->host->len],
                            (char *) p->host->pdata[i % p->host->len], route->latency);
    for (uint32_t k = 0; k < route->n; k++) {
      const struct weft_platform_link *link =
          &g_array_index (p->link, struct weft_platform_link, route->link[k]);
      g_string_append_printf (text, " %s %g", link->name, link->bandwidth);
    }
    g_string_append_c (text, '\n');
  }
  return g_string_free (text, FALSE);
}

/* The expected routes are those that SimGrid 3.32 itself prints for these files
 * (Host::route_to()). */
static void
routes_are_those_that_simgrid_reads (void **state)
{
  static const char three[] = ZONE HOSTS
      "<host id=\"c\" speed=\"1Gf\"/>\n"
      "<link id=\"l1\" bandwidth=\"192GBps\" latency=\"1us\" sharing_policy=\"SPLITDUPLEX\"/>\n"
      "<link id=\"l2\" bandwidth=\"1536Gbps\" latency=\"2us\" sharing_policy=\"SPLITDUPLEX\"/>\n"
      "<link id=\"s\" bandwidth=\"10GiBps\" latency=\"500ns\"/>\n"
      "<route src=\"a\" dst=\"b\"><link_ctn id=\"l1\" direction=\"UP\"/><link_ctn id=\"s\"/>"
      "<link_ctn id=\"l2\" direction=\"DOWN\"/></route>\n"
      "<route src=\"a\" dst=\"c\"><link_ctn id=\"l1\" direction=\"UP\"/><link_ctn id=\"s\"/>"
      "</route>\n"
      "<route src=\"b\" dst=\"c\" symmetrical=\"NO\"><link_ctn id=\"l2\" direction=\"UP\"/>"
      "</route>\n"
      "<route src=\"c\" dst=\"b\" symmetrical=\"NO\"><link_ctn id=\"s\"/></route>\n</zone>\n" TAIL;
  static const char members[] =
      HEAD "<cluster id=\"c\" prefix=\"n-\" suffix=\".x\" radical=\"0-1,5\" speed=\"1Gf\" "
           "bw=\"192GBps\" lat=\"1us\" bb_bw=\"1.6Tbps\" bb_lat=\"1us\"/>\n" TAIL;
  static const struct {
    const char *name, *text, *routes;
  } cases[] = {
    { "three.xml", three,
      "a b 3.5e-06 l1_UP 1.92e+11 s 1.07374e+10 l2_DOWN 1.92e+11\n"
      "a c 1.5e-06 l1_UP 1.92e+11 s 1.07374e+10\n"
      "b a 3.5e-06 l2_UP 1.92e+11 s 1.07374e+10 l1_DOWN 1.92e+11\n"
      "b c 2e-06 l2_UP 1.92e+11\n"
      "c a 1.5e-06 s 1.07374e+10 l1_DOWN 1.92e+11\n"
      "c b 5e-07 s 1.07374e+10\n" },
    { "members.xml", members,
      "n-0.x n-1.x 3e-06 c_link_0_UP 1.92e+11 c_backbone 2e+11 c_link_1_DOWN 1.92e+11\n"
      "n-0.x n-5.x 3e-06 c_link_0_UP 1.92e+11 c_backbone 2e+11 c_link_5_DOWN 1.92e+11\n"
      "n-1.x n-0.x 3e-06 c_link_1_UP 1.92e+11 c_backbone 2e+11 c_link_0_DOWN 1.92e+11\n"
      "n-1.x n-5.x 3e-06 c_link_1_UP 1.92e+11 c_backbone 2e+11 c_link_5_DOWN 1.92e+11\n"
      "n-5.x n-0.x 3e-06 c_link_5_UP 1.92e+11 c_backbone 2e+11 c_link_0_DOWN 1.92e+11\n"
      "n-5.x n-1.x 3e-06 c_link_5_UP 1.92e+11 c_backbone 2e+11 c_link_1_DOWN 1.92e+11\n" },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autofree char *path = write_file (*state, cases[i].name, cases[i].text);
    const struct weft_platform *p = weft_platform_get (path, NULL);
    assert_non_null (p);
    g_autofree char *text = routes_text (p);
    assert_string_equal (text, cases[i].routes);
  }
}

/* A backbone that all hosts share limits them together. */
static void
a_shared_backbone_is_shared (void **state)
{
  static const char text[] =
      HEAD "<cluster id=\"c\" prefix=\"n\" suffix=\"\" radical=\"0-3\" speed=\"1Gf\" bw=\"10GBps\" "
           "lat=\"1us\" bb_bw=\"10GBps\" bb_lat=\"2us\"><prop id=\"topology\" value=\"dgx-a100\"/>"
           "</cluster>\n" TAIL;
  g_autofree char *path = write_file (*state, "backbone.xml", text);
  struct weft_cluster c = { 0 };
  struct weft_coll_shape shape;
  struct weft_group group = { 0, { 4, 1 }, { 8, 0 } };

  assert_true (weft_cluster_load (path, &c, NULL));
  assert_int_equal (c.n_gpus, 32);
  struct weft_fabric f = weft_fabric_make (&c);
  weft_coll_shape_init (&shape, &f, &group);
  struct weft_traffic t = weft_coll_plan (&shape, WEFT_OP_ALL_GATHER, 1e9, NULL, WEFT_COLL_RING);
  assert_near (t.seconds - t.latency, 4 * 0.75e9 / 10e9);
  assert_near (shape.latency[WEFT_WAY_REMOTE], c.f.fabric_latency + 4e-6);
  weft_coll_shape_release (&shape);
}

static void
what_has_no_meaning_is_refused_with_its_line (void **state)
{
#define LINK "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1us\"/>\n"
  static const struct {
    const char *text, *wanted;
  } bad[] = {
    { HEAD "<zone id=\"z\" routing=\"Floyd\"/>\n" TAIL,
      ":4: found routing=\"Floyd\", wanted Full" },
    { ZONE "<zone id=\"y\" routing=\"Full\"/></zone>" TAIL, ":6: found a second zone" },
    { ZONE HOSTS HOSTS "</zone>" TAIL, ":8: found host \"a\" a second time" },
    { ZONE HOSTS LINK "</zone>" TAIL, "found no route from host a to host b" },
    { ZONE HOSTS LINK LINK "</zone>" TAIL, ":9: found link \"l\" a second time" },
    { ZONE "<link id=\"l\" bandwidth=\"fast\"/></zone>" TAIL, ":6: found bandwidth \"fast\"" },
    { ZONE "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1 day\"/></zone>" TAIL,
      ":6: found latency \"1 day\"" },
    { ZONE "<link id=\"l\" bandwidth=\"1GBps\" sharing_policy=\"FATPIPE\"/></zone>" TAIL,
      ":6: found sharing_policy=\"FATPIPE\"" },
    { ZONE "<link id=\"l\"/></zone>" TAIL, ":6: <link>: found no attribute bandwidth" },
    { ZONE "<host id=\"a\" speed=\"1Gf\" pstate=\"1\"/></zone>" TAIL,
      ":6: <host>: found attribute pstate=\"1\"" },
    { ZONE HOSTS "<route src=\"a\" dst=\"c\"/></zone>" TAIL, ":8: found no host \"c\" above" },
    { ZONE HOSTS "<route src=\"a\" dst=\"b\"><link_ctn id=\"m\"/></route></zone>" TAIL,
      ":8: found no link \"m\" above" },
    { ZONE HOSTS LINK "<route src=\"a\" dst=\"b\"><link_ctn id=\"l\" direction=\"UP\"/></route>"
                      "</zone>" TAIL,
      ":9: link \"l\" has no direction" },
    { ZONE HOSTS LINK "<route src=\"a\" dst=\"b\"><link_ctn id=\"l\"/></route>\n"
                      "<route src=\"b\" dst=\"a\"><link_ctn id=\"l\"/></route></zone>" TAIL,
      ":10: found a second route from host b to host a" },
    { ZONE "<trace id=\"t\"/></zone>" TAIL, ":6: found <trace>, wanted zone" },
    { HEAD "<config/>" TAIL, ":4: found <config>" },
    { HEAD "<cluster id=\"c\" prefix=\"\" suffix=\"\" radical=\"9-1\" speed=\"1f\" bw=\"1GBps\" "
           "lat=\"0\"/>" TAIL,
      ":4: found radical=\"9-1\"" },
    { "<platform version=\"3\"/>", ":1: found version=\"3\"" },
    { HEAD "</zone>", "Error on line 4" },
    { HEAD "<zone id=\"z\" routing=\"Full\"><host id=\"a\" speed=\"1Gf\"/></zone>" TAIL,
      "found no property topology" },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autofree char *name = g_strdup_printf ("bad%u.xml", i);
    g_autofree char *path = write_file (*state, name, bad[i].text);
    g_autoptr (GError) error = NULL;
    struct weft_cluster c = { 0 };
    assert_false (weft_cluster_load (path, &c, &error));
    if (!strstr (error->message, bad[i].wanted) || !strstr (error->message, name))
      fail_msg ("%u: found \"%s\", wanted \"%s\"", i, error->message, bad[i].wanted);
  }
}

static void
a_job_has_at_most_the_hosts_of_the_file (void **state)
{
  g_autofree char *path = write_file (*state, "cluster.xml", cluster);
  g_autoptr (GError) error = NULL;
  struct weft_cluster c = { 0 };

  assert_true (weft_cluster_load (path, &c, NULL));
  assert_int_equal (c.n_nodes, 2);
  assert_true (weft_cluster_resize (&c, 0, 1, NULL));
  assert_int_equal (c.n_gpus, 8);
  assert_true (weft_cluster_resize (&c, 8, 0, NULL));
  assert_int_equal (c.n_nodes, 1);
  assert_false (weft_cluster_resize (&c, 24, 0, &error));
  assert_non_null (strstr (error->message, "nodes: found 3, wanted at most 2"));
}

#define TEST(f) cmocka_unit_test_setup_teardown (f, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  TEST (a_step_takes_as_long_as_on_the_same_network),
  TEST (routes_are_those_that_simgrid_reads),
  TEST (a_shared_backbone_is_shared),
  TEST (what_has_no_meaning_is_refused_with_its_line),
  TEST (a_job_has_at_most_the_hosts_of_the_file),
};

WEFT_TESTS (tests)
