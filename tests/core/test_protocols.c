/* NCCL protocols (Simple, LL, LL128) and algorithms (ring, tree, NVLS, PAT): each has its own
 * latencies, bytes and rates. A plan uses the combination whose time the library estimates to be
 * the least. */
#include "core/program/placements.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

/* A cluster of `nodes` nodes with `gpus` GPUs each, with round latencies and rates for every NCCL
 * protocol. */
static struct weft_cluster
cluster_of (uint32_t nodes, uint32_t gpus)
{
  struct weft_cluster c = made_cluster (nodes, gpus);

  c.f.node_intra_latency = 4e-6;
  c.f.node_intra_latency_ll = 1e-6;
  c.f.node_intra_latency_ll128 = 2e-6;
  c.f.fabric_latency = 20e-6;
  c.f.fabric_latency_ll = 5e-6;
  c.f.fabric_latency_ll128 = 10e-6;
  return c;
}

static union weft_stack
stack_of (const char *protocols, const char *algorithms)
{
  union weft_stack stack;

  weft_table_defaults (&weft_stack_table, stack.at);
  stack.collective_base_latency = 10e-6;
  stack.collective_base_latency_ll = 6e-6;
  stack.collective_base_latency_ll128 = 8e-6;
  stack.collective_protocols = g_quark_from_string (protocols);
  stack.collective_algorithms = g_quark_from_string (algorithms);
  return stack;
}

static struct weft_traffic
plan_of (const struct weft_cluster *cluster, const union weft_stack *stack, enum weft_op_kind kind,
         double bytes)
{
  struct weft_fabric fabric = weft_fabric_make (cluster);
  struct weft_group group = { .n = { cluster->n_gpus, 1 }, .stride = { 1, 0 } };
  struct weft_coll_shape shape;

  weft_coll_shape_init (&shape, &fabric, &group);
  struct weft_traffic t = weft_coll_plan (&shape, kind, bytes, stack, WEFT_COLL_QUICKEST);
  weft_coll_shape_release (&shape);
  return t;
}

/* An all-gather over a ring of 8 has 7 steps and sends 7/8 of the bytes, with the latency and the
 * rate of each protocol. */
static void
each_protocol_has_its_latency_and_its_flags (void **state)
{
  struct weft_cluster c = cluster_of (1, 8);
  union weft_stack simple = stack_of ("simple", "ring"), ll = stack_of ("ll", "ring"),
                   ll128 = stack_of ("ll128", "ring");

  (void) state;
  assert_near (plan_of (&c, &simple, WEFT_OP_ALL_GATHER, 80e6).seconds, 38e-6 + 70e6 / MADE_PORT);
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 80e6).seconds, 13e-6 + 2 * 70e6 / MADE_PORT);
  assert_near (plan_of (&c, &ll128, WEFT_OP_ALL_GATHER, 90e6).seconds,
               22e-6 + 128. / 120 * 78.75e6 / MADE_PORT);
  c.f.node_ll_bandwidth = 10e9;
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 80e6).seconds, 13e-6 + 70e6 / 10e9);
}

static void
each_protocol_is_taken_for_some_sizes (void **state)
{
  struct weft_cluster c = cluster_of (1, 8);
  union weft_stack all = stack_of ("simple ll ll128", "ring");

  (void) state;
  assert_int_equal (plan_of (&c, &all, WEFT_OP_ALL_GATHER, 1e3).protocol, WEFT_PROTOCOL_LL);
  assert_int_equal (plan_of (&c, &all, WEFT_OP_ALL_GATHER, 10e6).protocol, WEFT_PROTOCOL_LL128);
  assert_int_equal (plan_of (&c, &all, WEFT_OP_ALL_GATHER, 1e9).protocol, WEFT_PROTOCOL_SIMPLE);
}

/* NCCL estimates LL128 by the rate of the links, and does not know that its kernel is slow here.
 * For an all-gather of 90 MB over a ring of 8, the estimate of LL128 is 22 us + 840 us, and that of
 * Simple 138 us + 788 us. So NCCL chooses LL128, whose kernel then takes 78.75 MB / 50 GB/s. */
static void
the_library_chooses_by_its_own_estimate (void **state)
{
  struct weft_cluster c = cluster_of (1, 8);
  union weft_stack both = stack_of ("simple ll128", "ring");

  (void) state;
  both.collective_base_latency = 110e-6;
  c.f.node_ll128_bandwidth = 50e9;
  struct weft_traffic t = plan_of (&c, &both, WEFT_OP_ALL_GATHER, 90e6);
  assert_int_equal (t.protocol, WEFT_PROTOCOL_LL128);
  assert_near (t.estimate, 22e-6 + 84e6 / MADE_PORT);
  assert_near (t.seconds, 22e-6 + 78.75e6 / 50e9);
}

/* A channel takes 1 kB of each of 8 ranks. An all-gather sends 7/8 of the tensor, so one channel of
 * 1 GB/s needs 7 us for its 7 kB, and 3.5 us for a tensor of half that size. Between nodes, the
 * rate of the network counts. */
static void
a_small_tensor_uses_few_channels (void **state)
{
  struct weft_cluster c = cluster_of (1, 8), nodes = cluster_of (8, 1);
  union weft_stack ll = stack_of ("ll", "ring");

  (void) state;
  double between = plan_of (&nodes, &ll, WEFT_OP_ALL_GATHER, 80e3).seconds;
  c.f.node_ll_channel_bandwidth = nodes.f.node_ll_channel_bandwidth = 1e9;
  ll.collective_channel_bytes_ll = 1e3;
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 4e3).seconds, 13e-6 + 3.5e-6);
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 8e3).seconds, 13e-6 + 7e-6);
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 80e3).seconds, 13e-6 + 7e-6);
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 80e6).seconds, 13e-6 + 140e6 / MADE_PORT);
  assert_near (plan_of (&nodes, &ll, WEFT_OP_ALL_GATHER, 80e3).seconds, between);
}

/* Nodes with 16 channels. 8 GPUs exchange 9/8 of a tensor with the switches at 50 GB/s. */
static struct weft_cluster
with_switches (uint32_t nodes, uint32_t gpus)
{
  struct weft_cluster c = cluster_of (nodes, gpus);

  c.f.node_nvls_bandwidth = 50e9;
  c.f.node_nvls_latency = 25e-6;
  return c;
}

#define KIB 1024.
#define SWITCHES(bytes) ((bytes) *1.125 / 50e9)

/* Chunks of 16, 32, 64 and 128 KiB make loops of 2, 4, 8 and 16 MiB. Two loops are exposed, and
 * each loop after the first waits 3 us. */
static void
switches_work_in_loops_of_chunks (void **state)
{
  struct weft_cluster c = with_switches (1, 8);
  union weft_stack nvls = stack_of ("simple", "nvls");
  static const struct {
    double mib, loop;
  } cases[] = { { 1, 1 }, { 2, 2 }, { 7, 2 }, { 8, 4 }, { 64, 8 }, { 1023, 8 }, { 1024, 16 } };

  (void) state;
  nvls.collective_chunk_latency = 3e-6;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    double mib = KIB * KIB, loops = cases[i].mib / cases[i].loop;
    assert_near (plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, cases[i].mib * mib).seconds,
                 25e-6 + SWITCHES ((cases[i].mib + 2 * cases[i].loop) * mib) + (loops - 1) * 3e-6);
  }
  c.f.node_nvls_channels = 32;
  assert_near (plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, 4 * KIB * KIB).seconds,
               25e-6 + SWITCHES (12 * KIB * KIB));
}

/* 32 of 72 GPUs are heads, whose ports carry what leaves the node. Two nodes have chunks of 64 KiB
 * for 256 MiB, and 128 KiB for 512 MiB. A hop of the trees forwards the chunks of 16 channels of a
 * head at the rate of its port. */
static void
few_gpus_of_a_large_node_add (void **state)
{
  struct weft_cluster one = with_switches (1, 72), two = with_switches (2, 72);
  union weft_stack nvls = stack_of ("simple", "nvls");
  double mib = KIB * KIB, rate = 50e9 / (1 + 1 / 32.), port = two.f.node_nic_bandwidth;

  (void) state;
  assert_near (plan_of (&one, &nvls, WEFT_OP_ALL_REDUCE, 256 * mib).seconds,
               25e-6 + (256 + 2 * 32) * mib / rate);
  struct weft_traffic t = plan_of (&two, &nvls, WEFT_OP_ALL_REDUCE, 255 * mib);
  assert_near (t.bytes[WEFT_WAY_REMOTE], 255 / 32. * mib);
  assert_near (t.seconds, t.latency + (255 + 2 * 32) * mib / rate + 2 * mib / port);
  t = plan_of (&two, &nvls, WEFT_OP_ALL_REDUCE, 256 * mib);
  assert_near (t.seconds, t.latency + (256 + 2 * 64) * mib / rate + 2 * 2 * mib / port);
}

/* 16 channels take 16 KiB of each of 8 ranks, one after another: 128 KiB fill one, 2 MiB all. */
static void
old_releases_fill_one_channel_of_the_switches_after_another (void **state)
{
  struct weft_cluster c = with_switches (1, 8);
  union weft_stack nvls = stack_of ("simple", "nvls");
  double full = 25e-6 + 3 * SWITCHES (2048 * KIB);

  (void) state;
  assert_near (plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, 512 * KIB).seconds,
               25e-6 + 3 * SWITCHES (512 * KIB));
  nvls.collective_nvls_chunk = 16 * KIB;
  assert_near (plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, 64 * KIB).seconds,
               25e-6 + 3 * SWITCHES (1024 * KIB));
  assert_near (plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, 128 * KIB).seconds, full);
  assert_near (plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, 2048 * KIB).seconds, full);
}

/* A topology file that states no latency per protocol gets only the protocol Simple, with its
 * general latencies. */
static void
a_topology_without_latencies_has_simple_only (void **state)
{
  struct weft_cluster c = made_cluster (2, 4);
  union weft_stack all = stack_of ("simple ll ll128", "ring tree nvls pat");

  (void) state;
  c.f.node_intra_latency = c.f.fabric_latency = 1e-6;
  struct weft_traffic t = plan_of (&c, &all, WEFT_OP_ALL_REDUCE, 1e3);
  assert_int_equal (t.protocol, WEFT_PROTOCOL_SIMPLE);
  c.f.node_intra_latency_ll = 1e-9;
  assert_int_equal (plan_of (&c, &all, WEFT_OP_ALL_REDUCE, 1e3).protocol, WEFT_PROTOCOL_SIMPLE);
  c.f.fabric_latency_ll = 1e-9;
  assert_int_equal (plan_of (&c, &all, WEFT_OP_ALL_REDUCE, 1e3).protocol, WEFT_PROTOCOL_LL);
}

/* The time of an all-gather in chunks: with t = 70 MB / 100 GB/s = 700 us for the bytes and c = 7
 * us per chunk, the best number of chunks costs 2 sqrt (c t) = 140 us in addition. */
static void
chunks_that_are_passed_on_cost_waits (void **state)
{
  struct weft_cluster c = cluster_of (1, 8);
  union weft_stack simple = stack_of ("simple", "ring"), ll = stack_of ("ll", "ring");
  double before = plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 80e6).seconds;

  (void) state;
  simple.collective_chunk_latency = ll.collective_chunk_latency = 7e-6;
  assert_near (plan_of (&c, &simple, WEFT_OP_ALL_GATHER, 80e6).seconds, 38e-6 + 840e-6);
  assert_near (plan_of (&c, &simple, WEFT_OP_ALL_TO_ALL, 80e6).seconds, 14e-6 + 700e-6);
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 80e6).seconds, before);
}

static void
switches_add_in_one_step (void **state)
{
  struct weft_cluster plain = cluster_of (1, 8), c = with_switches (1, 8),
                      two = with_switches (2, 8);
  union weft_stack nvls = stack_of ("simple ll ll128", "nvls");

  (void) state;
  assert_string_equal (plan_of (&plain, &nvls, WEFT_OP_ALL_REDUCE, 80e6).algorithm, "ring");
  struct weft_traffic t = plan_of (&c, &nvls, WEFT_OP_ALL_REDUCE, 80e6);
  assert_string_equal (t.algorithm, "nvls");
  assert_near (t.estimate, 25e-6 + 90e6 / 50e9);
  assert_string_equal (plan_of (&c, &nvls, WEFT_OP_ALL_GATHER, 80e6).algorithm, "ring");
  t = plan_of (&two, &nvls, WEFT_OP_ALL_REDUCE, 80e6);
  assert_near (t.latency, 25e-6 + 2 * 20e-6);
  assert_near (t.bytes[WEFT_WAY_REMOTE], 10e6);
}

static void
two_nodes_send_half_of_what_inner_nodes_of_a_tree_send (void **state)
{
  struct weft_cluster two = cluster_of (2, 1), three = cluster_of (3, 1), four = cluster_of (4, 1);
  union weft_stack tree = stack_of ("simple", "tree");

  (void) state;
  assert_near (plan_of (&two, &tree, WEFT_OP_ALL_REDUCE, 8e6).bytes[WEFT_WAY_REMOTE], 8e6);
  assert_near (plan_of (&three, &tree, WEFT_OP_ALL_REDUCE, 8e6).bytes[WEFT_WAY_REMOTE], 12e6);
  assert_near (plan_of (&four, &tree, WEFT_OP_ALL_REDUCE, 8e6).bytes[WEFT_WAY_REMOTE], 16e6);
}

/* 16 channels carry 64 bytes of each of 16 ranks from 16 KiB on. Then a ring in Simple over two
 * nodes has 1.4 times the latency, 1.9 times on a V100. NCCL's estimate has it for all-reduces. */
static void
rings_between_nodes_slow_down_when_their_channels_are_full (void **state)
{
  struct weft_cluster two = cluster_of (2, 8), one = cluster_of (1, 16);
  union weft_stack simple = stack_of ("simple", "ring"), ll = stack_of ("ll", "ring");

  (void) state;
  two.f.gpu_capability = one.f.gpu_capability = 80;
  simple.collective_sms = ll.collective_sms = 16;
  double small = plan_of (&two, &simple, WEFT_OP_ALL_GATHER, 16e3).latency;
  struct weft_traffic t = plan_of (&two, &simple, WEFT_OP_ALL_GATHER, 16 * KIB);
  assert_near (t.latency, 1.4 * small);
  assert_near (t.seconds - t.estimate, 0.4 * small);
  t = plan_of (&two, &simple, WEFT_OP_ALL_REDUCE, 16 * KIB);
  assert_near (t.seconds, t.estimate);
  assert_near (t.latency, 1.4 * plan_of (&two, &simple, WEFT_OP_ALL_REDUCE, 16e3).latency);
  assert_near (plan_of (&two, &ll, WEFT_OP_ALL_GATHER, 16 * KIB).latency,
               plan_of (&two, &ll, WEFT_OP_ALL_GATHER, 16e3).latency);
  assert_near (plan_of (&one, &simple, WEFT_OP_ALL_GATHER, 16 * KIB).latency,
               plan_of (&one, &simple, WEFT_OP_ALL_GATHER, 16e3).latency);
  two.f.gpu_capability = 70;
  assert_near (plan_of (&two, &simple, WEFT_OP_ALL_GATHER, 16 * KIB).latency, 1.9 * small);
}

/* The pipeline of a tree reaches 60 % of the rate of the links for 2 MiB in Simple, 80 % for 4 MiB
 * in LL128 (with 128 of 120 bytes), and all of it for 1 GiB. NCCL's estimate counts with 92 % of
 * this. Rings and plain trees of software without protocols reach the rate of the links. */
static void
trees_fall_short_of_the_links (void **state)
{
  struct weft_cluster two = cluster_of (2, 1);
  union weft_stack simple = stack_of ("simple", "tree"), ll128 = stack_of ("ll128", "tree"),
                   ring = stack_of ("simple", "ring");
  double mib = KIB * KIB, port = two.f.node_nic_bandwidth;

  (void) state;
  struct weft_traffic t = plan_of (&two, &simple, WEFT_OP_ALL_REDUCE, 2 * mib);
  assert_near (t.seconds, t.latency + 2 * mib / port / 0.6);
  assert_near (t.estimate, t.latency + 2 * mib / port / 0.6 / 0.92);
  t = plan_of (&two, &ll128, WEFT_OP_ALL_REDUCE, 4 * mib);
  assert_near (t.seconds, t.latency + round (4 * mib * 128 / 120) / port / 0.8);
  t = plan_of (&two, &simple, WEFT_OP_ALL_REDUCE, 1024 * mib);
  assert_near (t.seconds, t.latency + 1024 * mib / port);
  t = plan_of (&two, &ring, WEFT_OP_ALL_REDUCE, 2 * mib);
  assert_near (t.seconds, t.latency + 2 * mib / port);
  t = plan_of (&two, NULL, WEFT_OP_ALL_REDUCE, 64);
  assert_near (t.estimate, t.seconds);
}

/* An all-gather over sixteen nodes of one rank each: the algorithm PAT takes 4 steps where a ring
 * takes 15, and needs 3 posts to the NIC for each of its 16 messages. */
static void
pat_takes_few_steps (void **state)
{
  struct weft_cluster c = cluster_of (16, 1), dense = cluster_of (2, 8);
  union weft_stack pat = stack_of ("simple", "ring pat");

  (void) state;
  c.f.fabric_post_latency = 1e-6;
  struct weft_traffic t = plan_of (&c, &pat, WEFT_OP_ALL_GATHER, 16e3);
  assert_string_equal (t.algorithm, "pat");
  assert_near (t.latency, 10e-6 + 4 * 20e-6 + 48e-6);
  assert_near (t.seconds - t.latency, 15e3 / (0.75 * MADE_NIC));
  assert_string_equal (plan_of (&c, &pat, WEFT_OP_ALL_GATHER, 1e9).algorithm, "ring");
  assert_string_equal (plan_of (&dense, &pat, WEFT_OP_ALL_GATHER, 16e3).algorithm, "ring");
}

static void
posts_slow_the_steps_of_rings_between_nodes (void **state)
{
  struct weft_cluster one = cluster_of (1, 8), two = cluster_of (2, 4);
  union weft_stack ll = stack_of ("ll", "ring");

  (void) state;
  one.f.fabric_post_latency = two.f.fabric_post_latency = 3e-6;
  assert_near (plan_of (&one, &ll, WEFT_OP_ALL_GATHER, 8).latency, 6e-6 + 7 * 1e-6);
  assert_near (plan_of (&two, &ll, WEFT_OP_ALL_GATHER, 8).latency, 6e-6 + 5 * 3e-6 + 2 * 5e-6);
}

static void
a_transport_has_a_floor_and_nodes_collide (void **state)
{
  struct weft_cluster c = cluster_of (4, 1);
  union weft_stack simple = stack_of ("simple", "ring"), ll = stack_of ("ll", "ring");

  (void) state;
  c.f.fabric_floor_latency = 100e-6;
  c.f.fabric_congestion = 0.05;
  struct weft_traffic t = plan_of (&c, &simple, WEFT_OP_ALL_GATHER, 80e6);
  assert_near (t.latency, 10e-6 + 3 * 120e-6);
  assert_near (t.seconds - t.latency, 60e6 * 1.1 / MADE_NIC);
  assert_near (plan_of (&c, &ll, WEFT_OP_ALL_GATHER, 8).latency, 6e-6 + 3 * 105e-6);
}

/* A search keeps the placements of groups on clusters longer than the plans. A placement that was
 * made for the cluster of the first plan must still price the collectives of the last plan, after
 * the first cluster is gone. */
static void
placements_outlive_the_plan_that_needed_them_first (void **state)
{
  struct weft_cluster last = cluster_of (1, 8), first = last;
  struct weft_fabric of_last = weft_fabric_make (&last), of_first = weft_fabric_make (&first);
  struct weft_group group = { .n = { 8, 1 }, .stride = { 1, 0 } };
  union weft_stack ll = stack_of ("ll", "ring");
  g_autoptr (weft_placements) placements = weft_placements_new ();
  double wanted = plan_of (&last, &ll, WEFT_OP_ALL_GATHER, 80e6).seconds;

  (void) state;
  weft_placements_get (placements, &of_first, &group);
  first = (struct weft_cluster){ .n_gpus = 1 };
  const struct weft_coll_shape *shape = weft_placements_get (placements, &of_last, &group);
  assert_near (weft_coll_plan (shape, WEFT_OP_ALL_GATHER, 80e6, &ll, WEFT_COLL_QUICKEST).seconds,
               wanted);
}

/* Times of all-reduces on 8 H100 with one process per GPU, from NVIDIA/dgxc-benchmarking
 * nccl/README.md. Each predicted time must be within 15 % of the published one. */
static void
a_measured_sweep_is_met (void **state)
{
  static const struct {
    double mib, us;
  } sweep[] = { { 0.25, 20.4 }, { 2, 42.2 },     { 4, 54.2 },   { 16, 123.8 },
                { 64, 324.7 },  { 256, 1112.5 }, { 1024, 4029 } };
  struct weft_cluster c;
  union weft_stack stack;

  (void) state;
  assert_true (weft_cluster_load ("dgx-h100", &c, NULL));
  assert_true (weft_stack_load ("weft", &stack, NULL));
  for (unsigned i = 0; i < G_N_ELEMENTS (sweep); i++) {
    double us = 1e6 * plan_of (&c, &stack, WEFT_OP_ALL_REDUCE, sweep[i].mib * 0x1p20).seconds;
    if (fabs (us / sweep[i].us - 1) > 0.15)
      fail_msg ("%g MiB: %.1f us, measured %.1f", sweep[i].mib, us, sweep[i].us);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (each_protocol_has_its_latency_and_its_flags),
  cmocka_unit_test (each_protocol_is_taken_for_some_sizes),
  cmocka_unit_test (the_library_chooses_by_its_own_estimate),
  cmocka_unit_test (a_small_tensor_uses_few_channels),
  cmocka_unit_test (switches_work_in_loops_of_chunks),
  cmocka_unit_test (few_gpus_of_a_large_node_add),
  cmocka_unit_test (old_releases_fill_one_channel_of_the_switches_after_another),
  cmocka_unit_test (a_topology_without_latencies_has_simple_only),
  cmocka_unit_test (chunks_that_are_passed_on_cost_waits),
  cmocka_unit_test (switches_add_in_one_step),
  cmocka_unit_test (rings_between_nodes_slow_down_when_their_channels_are_full),
  cmocka_unit_test (trees_fall_short_of_the_links),
  cmocka_unit_test (two_nodes_send_half_of_what_inner_nodes_of_a_tree_send),
  cmocka_unit_test (pat_takes_few_steps),
  cmocka_unit_test (posts_slow_the_steps_of_rings_between_nodes),
  cmocka_unit_test (a_transport_has_a_floor_and_nodes_collide),
  cmocka_unit_test (placements_outlive_the_plan_that_needed_them_first),
  cmocka_unit_test (a_measured_sweep_is_met),
};

WEFT_TESTS (tests)
