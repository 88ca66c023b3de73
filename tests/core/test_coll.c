/* Collectives: the moves of a ring executed on numbers, the closed formula of the ring's time, the
 * placement of a group on the cluster, and the choice of the fastest algorithm. */
#include "tests/made/made.h"
#include "tests/runner/runner.h"

/* ------------------------------------------------------------------- moves */

/* Value of piece p on rank r before a collective. All values differ, and their sums are exact. */
static double
original (uint32_t rank, uint32_t piece)
{
  return 1000.0 * (rank + 1) + piece;
}

static double
sum_of (uint32_t n, uint32_t piece)
{
  double sum = 0;
  for (uint32_t rank = 0; rank < n; rank++)
    sum += original (rank, piece);
  return sum;
}

/* Executes the moves of a collective algorithm on numbers: values[rank * n + piece]. All moves of a
 * round read the values from before the round. */
static void
play (const GArray *moves, uint32_t n, double *values)
{
  for (guint i = 0; i < moves->len;) {
    g_autofree double *before = g_memdup2 (values, (gsize) n * n * sizeof *values);
    uint32_t round = g_array_index (moves, struct weft_move, i).round;
    for (; i < moves->len && g_array_index (moves, struct weft_move, i).round == round; i++) {
      const struct weft_move *m = &g_array_index (moves, struct weft_move, i);
      double *into = &values[m->to * n + m->piece];
      *into = before[m->from * n + m->piece] + (m->reduce ? *into : 0);
    }
  }
}

static double *
played (enum weft_op_kind kind, uint32_t n, double (*start) (uint32_t rank, uint32_t piece))
{
  g_autoptr (GArray) moves = weft_coll_ring_moves (kind, n);
  double *values = g_new (double, (gsize) n *n);

  for (uint32_t rank = 0; rank < n; rank++)
    for (uint32_t piece = 0; piece < n; piece++)
      values[rank * n + piece] = start (rank, piece);
  play (moves, n, values);
  return values;
}

static void
an_all_reduce_leaves_every_sum_everywhere (void **state)
{
  (void) state;
  for (uint32_t n = 2; n <= 17; n++) {
    g_autofree double *values = played (WEFT_OP_ALL_REDUCE, n, original);
    for (uint32_t i = 0; i < n * n; i++)
      assert_true (values[i] == sum_of (n, i % n));
  }
}

/* A reduce-scatter must leave slice r of the sum on rank r, because programs rely on this order. */
static void
a_reduce_scatter_leaves_sum_r_with_rank_r (void **state)
{
  (void) state;
  for (uint32_t n = 2; n <= 17; n++) {
    g_autofree double *values = played (WEFT_OP_REDUCE_SCATTER, n, original);
    for (uint32_t rank = 0; rank < n; rank++)
      assert_true (values[rank * n + rank] == sum_of (n, rank));
  }
}

/* Value of a piece before an all-gather: a rank has its own piece; its other pieces are undefined
 * (-1). */
static double
own_or_rubbish (uint32_t rank, uint32_t piece)
{
  return rank == piece ? original (rank, piece) : -1;
}

static void
an_all_gather_brings_piece_r_from_rank_r (void **state)
{
  (void) state;
  for (uint32_t n = 2; n <= 17; n++) {
    g_autofree double *values = played (WEFT_OP_ALL_GATHER, n, own_or_rubbish);
    for (uint32_t i = 0; i < n * n; i++)
      assert_true (values[i] == original (i % n, i % n));
  }
}

/* Value of a piece before a broadcast: member 0 has the data; all other members are undefined
 * (-1). */
static double
root_or_rubbish (uint32_t rank, uint32_t piece)
{
  return rank == 0 ? original (rank, piece) : -1;
}

static void
a_broadcast_brings_everything_from_rank_0 (void **state)
{
  (void) state;
  for (uint32_t n = 2; n <= 17; n++) {
    g_autofree double *values = played (WEFT_OP_BROADCAST, n, root_or_rubbish);
    for (uint32_t i = 0; i < n * n; i++)
      assert_true (values[i] == original (0, i % n));
  }
}

static void
the_moves_are_the_closed_formula (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    uint32_t phases;
  } kinds[] = { { WEFT_OP_ALL_REDUCE, 2 },
                { WEFT_OP_REDUCE_SCATTER, 1 },
                { WEFT_OP_ALL_GATHER, 1 } };

  (void) state;
  for (uint32_t n = 2; n <= 17; n++)
    for (size_t k = 0; k < G_N_ELEMENTS (kinds); k++) {
      struct weft_cluster cluster = made_cluster (1, n);
      struct weft_fabric fabric = weft_fabric_make (&cluster);
      struct weft_group group = { .n = { n, 1 }, .stride = { 1, 0 } };
      struct weft_coll_shape shape;
      g_autoptr (GArray) moves = weft_coll_ring_moves (kinds[k].kind, n);
      g_autofree uint32_t *sent = g_new0 (uint32_t, n);
      for (guint i = 0; i < moves->len; i++) {
        const struct weft_move *m = &g_array_index (moves, struct weft_move, i);
        assert_int_equal (m->to, (m->from + 1) % n);
        assert_int_equal (m->round, i / n);
        sent[m->from]++;
      }
      weft_coll_shape_init (&shape, &fabric, &group);
      struct weft_traffic t = weft_coll_plan (&shape, kinds[k].kind, n * 1e6, NULL, FALSE);
      weft_coll_shape_release (&shape);
      assert_string_equal (t.algorithm, "ring");
      assert_int_equal (t.steps[WEFT_WAY_LOCAL], moves->len / n);
      assert_int_equal (t.steps[WEFT_WAY_LOCAL], kinds[k].phases * (n - 1));
      for (uint32_t rank = 0; rank < n; rank++)
        assert_near (t.bytes[WEFT_WAY_LOCAL], sent[rank] * 1e6);
    }
}

/* ----------------------------------------------------- how a group lies */

static struct weft_coll_shape
shape_of (const struct weft_fabric *fabric, uint32_t first, uint32_t n, uint32_t stride)
{
  struct weft_group group = { first, { n, 1 }, { stride, 0 } };
  struct weft_coll_shape shape;

  weft_coll_shape_init (&shape, fabric, &group);
  return shape;
}

static struct weft_traffic
plan_on (const struct weft_cluster *cluster, uint32_t n, uint32_t stride, enum weft_op_kind kind,
         double bytes)
{
  struct weft_fabric fabric = weft_fabric_make (cluster);
  struct weft_coll_shape shape = shape_of (&fabric, 0, n, stride);
  struct weft_traffic t = weft_coll_plan (&shape, kind, bytes, NULL, FALSE);

  weft_coll_shape_release (&shape);
  return t;
}

static void
a_uniform_group_is_k_nodes_of_g_ranks (void **state)
{
  static const struct {
    uint32_t n, stride, n_local, n_nodes;
  } cases[] = { { 32, 1, 8, 4 }, { 16, 2, 4, 4 }, { 8, 4, 2, 4 },
                { 4, 8, 1, 4 },  { 8, 1, 8, 1 },  { 4, 2, 4, 1 } };
  struct weft_cluster cluster = made_cluster (4, 8);
  struct weft_fabric fabric = weft_fabric_make (&cluster);

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_coll_shape shape = shape_of (&fabric, 0, cases[i].n, cases[i].stride);
    assert_true (shape.uniform);
    assert_int_equal (shape.side[WEFT_WAY_LOCAL], cases[i].n_local);
    assert_int_equal (shape.side[WEFT_WAY_REMOTE], cases[i].n_nodes);
    weft_coll_shape_release (&shape);
  }
}

/* A ring over several nodes: every rank has one flow to the next rank of its node, and one flow to
 * the rank with the same local index on the next node. Both flows together carry the bytes of one
 * plain ring over all ranks. */
static void
the_two_levels_add_up_to_the_ring (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 8);
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  struct weft_coll_shape shape = shape_of (&fabric, 0, 32, 1);
  const double bytes = 32e6;

  (void) state;
  for (uint32_t i = 0; i < 32; i++) {
    struct weft_flow flow[WEFT_MAX_WAYS];
    assert_int_equal (weft_coll_flows (&shape, &fabric, i, flow), 2);
    assert_int_equal (flow[0].from, i);
    assert_int_equal (flow[0].to, i / 8 * 8 + (i + 1) % 8);
    assert_int_equal (flow[0].way, WEFT_WAY_LOCAL);
    assert_int_equal (flow[1].from, i);
    assert_int_equal (flow[1].to, (i + 8) % 32);
    assert_int_equal (flow[1].way, WEFT_WAY_REMOTE);
  }
  weft_coll_shape_release (&shape);
  struct weft_traffic t = plan_on (&cluster, 32, 1, WEFT_OP_REDUCE_SCATTER, bytes);
  assert_near (t.bytes[WEFT_WAY_LOCAL] + t.bytes[WEFT_WAY_REMOTE], 31e6);
  assert_near (t.bytes[WEFT_WAY_REMOTE], 31e6 / 8);
  assert_int_equal (t.steps[WEFT_WAY_REMOTE], 4);
  assert_int_equal (t.steps[WEFT_WAY_LOCAL], 31 - 4);
  t = plan_on (&cluster, 32, 1, WEFT_OP_ALL_REDUCE, 1e3 * bytes);
  assert_near (t.bytes[WEFT_WAY_LOCAL] + t.bytes[WEFT_WAY_REMOTE], 62e9);
  assert_int_equal (weft_coll_steps (&t), 62);
  assert_int_equal (t.steps[WEFT_WAY_REMOTE], 8);
}

/* A group of six ranks on nodes of four GPUs: four ranks on the first node, two on the second. The
 * group runs one plain ring, in which every rank sends all its bytes to the next rank. */
static void
unequal_nodes_run_one_plain_ring (void **state)
{
  struct weft_cluster cluster = made_cluster (3, 4);
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  struct weft_coll_shape shape = shape_of (&fabric, 0, 6, 1);

  (void) state;
  assert_false (shape.uniform);
  assert_int_equal (shape.side[WEFT_WAY_REMOTE], 2);
  for (uint32_t i = 0; i < 6; i++) {
    struct weft_flow flow[WEFT_MAX_WAYS];
    assert_int_equal (weft_coll_flows (&shape, &fabric, i, flow), 1);
    assert_int_equal (flow[0].to, (i + 1) % 6);
    assert_int_equal (flow[0].way == WEFT_WAY_REMOTE, i == 3 || i == 5);
  }
  struct weft_traffic t = weft_coll_plan (&shape, WEFT_OP_ALL_REDUCE, 60e6, NULL, FALSE);
  assert_near (t.bytes[WEFT_WAY_LOCAL], 100e6);
  assert_near (t.bytes[WEFT_WAY_REMOTE], 100e6);
  assert_near (t.seconds, 100e6 / MADE_NIC);
  assert_string_equal (t.algorithm, "ring");
  weft_coll_shape_release (&shape);
}

/* A group with two ranks on the first node and four on the second. Although 2 divides 6, the group
 * is not uniform, because its nodes have different numbers of ranks. */
static void
a_divisor_does_not_make_a_group_uniform (void **state)
{
  struct weft_cluster cluster = made_cluster (3, 4);
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  struct weft_coll_shape shape = shape_of (&fabric, 2, 6, 1);

  (void) state;
  assert_int_equal (shape.side[WEFT_WAY_LOCAL], 2);
  assert_false (shape.uniform);
  weft_coll_shape_release (&shape);
}

/* Nodes of eight GPUs and two NICs: each NIC carries the remote flows of four GPUs. */
static void
gpus_that_share_a_nic_load_it_together (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 8);
  uint32_t seen = 0;

  (void) state;
  cluster.f.node_nics = 2;
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  struct weft_coll_shape shape = shape_of (&fabric, 0, 32, 1);
  for (uint32_t i = 0; i < shape.n_load; i++)
    if (shape.load[i].capacity == MADE_NIC) {
      assert_int_equal (shape.load[i].flows[WEFT_WAY_REMOTE], 4);
      assert_int_equal (shape.load[i].flows[WEFT_WAY_LOCAL], 0);
      seen++;
    }
  assert_int_equal (seen, 1);
  weft_coll_shape_release (&shape);
  struct weft_traffic t = plan_on (&cluster, 32, 1, WEFT_OP_ALL_GATHER, 320e6);
  assert_near (t.seconds, 4 * (310e6 / 8) / MADE_NIC);
}

/* In a ring inside a node, the port of each GPU carries one flow in each direction. */
static void
a_port_carries_one_flow_of_its_ring (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 8);
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  struct weft_coll_shape shape = shape_of (&fabric, 0, 8, 1);

  (void) state;
  assert_int_equal (shape.n_load, 1);
  assert_int_equal (shape.load[0].flows[WEFT_WAY_LOCAL], 1);
  assert_int_equal (shape.load[0].flows[WEFT_WAY_REMOTE], 0);
  assert_near (shape.load[0].capacity, MADE_PORT);
  weft_coll_shape_release (&shape);
}

/* -------------------------------------------------------------- algorithms */

/* An all-reduce over eight nodes of one GPU (a: latency of a step, S: bytes, B: bandwidth). A
 * ring takes 14 a + 1.75 S / B, a double tree 6 a + 2 S / B. Both take the same time at S = 32 a
 * B. */
static void
small_tensors_take_the_tree_and_large_ones_the_ring (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);
  const double a = 10e-6, border = 32 * a * MADE_NIC;

  (void) state;
  cluster.f.fabric_latency = a;
  struct weft_traffic small = plan_on (&cluster, 8, 1, WEFT_OP_ALL_REDUCE, border * 0.999);
  assert_string_equal (small.algorithm, "tree");
  assert_int_equal (small.steps[WEFT_WAY_REMOTE], 6);
  assert_near (small.seconds, 6 * a + 2 * round (2 * border * 0.999) / 2 / MADE_NIC);
  struct weft_traffic large = plan_on (&cluster, 8, 1, WEFT_OP_ALL_REDUCE, border * 1.001);
  assert_string_equal (large.algorithm, "ring");
  assert_int_equal (large.steps[WEFT_WAY_REMOTE], 14);
}

/* In Weft's model, a tree inside a node has as many steps as a ring and sends more bytes, so the
 * ring is faster at any size. */
static void
one_node_always_rings (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 8);

  (void) state;
  cluster.f.node_intra_latency = 3e-6;
  for (double bytes = 4; bytes < 1e11; bytes *= 10)
    assert_string_equal (plan_on (&cluster, 8, 1, WEFT_OP_ALL_REDUCE, bytes).algorithm, "ring");
}

static void
only_an_all_reduce_climbs_a_tree (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);

  (void) state;
  cluster.f.fabric_latency = 1;
  assert_string_equal (plan_on (&cluster, 8, 1, WEFT_OP_ALL_REDUCE, 1e3).algorithm, "tree");
  assert_string_equal (plan_on (&cluster, 8, 1, WEFT_OP_REDUCE_SCATTER, 1e3).algorithm, "ring");
  assert_string_equal (plan_on (&cluster, 8, 1, WEFT_OP_ALL_GATHER, 1e3).algorithm, "ring");
  assert_string_equal (plan_on (&cluster, 8, 1, WEFT_OP_BROADCAST, 1e3).algorithm, "ring");
  assert_string_equal (plan_on (&cluster, 8, 1, WEFT_OP_ALL_TO_ALL, 1e3).algorithm, "direct");
}

static void
an_all_to_all_takes_one_step (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 8);

  (void) state;
  cluster.f.node_intra_latency = 3e-6;
  struct weft_traffic t = plan_on (&cluster, 8, 1, WEFT_OP_ALL_TO_ALL, 80e6);
  assert_near (t.seconds, 3e-6 + 70e6 / MADE_PORT);
}

/* A shift (every rank sends to the next) inside a node loads every port with one flow. On two
 * nodes, one rank of each node sends to the other node, over one NIC. */
static void
a_shift_is_one_step_to_each_neighbour (void **state)
{
  struct weft_cluster node = made_cluster (1, 8), nodes = made_cluster (2, 8);

  (void) state;
  node.f.node_intra_latency = 3e-6;
  assert_near (plan_on (&node, 8, 1, WEFT_OP_SHIFT, 80e6).seconds, 3e-6 + 80e6 / MADE_PORT);
  struct weft_traffic t = plan_on (&nodes, 16, 1, WEFT_OP_SHIFT, 80e6);
  assert_string_equal (t.algorithm, "shift");
  assert_near (t.seconds, t.latency + 80e6 / MADE_NIC);
}

static void
a_broadcast_is_pipelined_through_all_ranks (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 8);

  (void) state;
  cluster.f.node_intra_latency = 3e-6;
  struct weft_traffic t = plan_on (&cluster, 8, 1, WEFT_OP_BROADCAST, 80e6);
  assert_near (t.seconds, 7 * 3e-6 + 80e6 / MADE_PORT);
}

/* Canonical order uses a direct all-reduce: a rank sends as many bytes as in a ring, but in one
 * step per phase. With g of n ranks on each node, (n - g) / (n - 1) of the bytes go to other
 * nodes. */
static void
canonical_sums_are_taken_directly (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 4);
  struct weft_fabric fabric = weft_fabric_make (&cluster);
  struct weft_mesh mesh = weft_mesh_make (1, 1, 8, 1);
  struct weft_group group = weft_mesh_group (&mesh, 0, WEFT_GROUP_DP);
  struct weft_coll_shape shape;

  (void) state;
  weft_coll_shape_init (&shape, &fabric, &group);
  struct weft_traffic t = weft_coll_plan (&shape, WEFT_OP_ALL_REDUCE, 56e6, NULL, TRUE);
  assert_string_equal (t.algorithm, "direct");
  assert_int_equal (t.steps[WEFT_WAY_LOCAL], 0);
  assert_int_equal (t.steps[WEFT_WAY_REMOTE], 2);
  assert_near (t.bytes[WEFT_WAY_LOCAL], 42e6);
  assert_near (t.bytes[WEFT_WAY_REMOTE], 56e6);
  t = weft_coll_plan (&shape, WEFT_OP_REDUCE_SCATTER, 56e6, NULL, TRUE);
  assert_near (t.bytes[WEFT_WAY_LOCAL] + t.bytes[WEFT_WAY_REMOTE], 49e6);
  assert_int_equal (t.steps[WEFT_WAY_REMOTE], 1);
  weft_coll_shape_release (&shape);
}

/* Moves of a direct all-reduce: every member receives the terms of its piece from all others, then
 * sends the sum to all others. */
static void
direct_moves_bring_every_term_to_its_owner_once (void **state)
{
  (void) state;
  for (uint32_t n = 2; n < 9; n++) {
    g_autoptr (GArray) moves = weft_coll_direct_moves (WEFT_OP_ALL_REDUCE, n);
    assert_int_equal (moves->len, 2 * n * (n - 1));
    for (uint32_t i = 0; i < moves->len; i++) {
      const struct weft_move *m = &g_array_index (moves, struct weft_move, i);
      assert_int_equal (m->round, !m->reduce);
      assert_int_equal (m->piece, m->reduce ? m->to : m->from);
      assert_true (m->from != m->to);
    }
  }
}

/* A collective of a few bytes (WEFT_COLL_SCALAR_BYTES) is priced by the latency of its steps alone.
 * A collective of 1024 bytes also has bytes on the links. */
static void
scalars_ride_in_the_latency (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 4);

  (void) state;
  cluster.f.node_intra_latency = 3e-6;
  cluster.f.fabric_latency = 7e-6;
  struct weft_traffic t = plan_on (&cluster, 8, 1, WEFT_OP_ALL_REDUCE, WEFT_COLL_SCALAR_BYTES);
  assert_true (t.bytes[WEFT_WAY_LOCAL] == 0 && t.bytes[WEFT_WAY_REMOTE] == 0);
  assert_near (t.seconds, t.steps[WEFT_WAY_LOCAL] * 3e-6 + t.steps[WEFT_WAY_REMOTE] * 7e-6);
  t = plan_on (&cluster, 8, 1, WEFT_OP_ALL_REDUCE, 1024);
  assert_true (t.bytes[WEFT_WAY_LOCAL] > 0 && t.bytes[WEFT_WAY_REMOTE] > 0);
}

static void
one_rank_has_nobody_to_talk_to (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 1);
  struct weft_traffic t = plan_on (&cluster, 1, 0, WEFT_OP_ALL_REDUCE, 1e9);

  (void) state;
  assert_true (t.seconds == 0 && t.latency == 0);
  assert_string_equal (t.algorithm, "none");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (an_all_reduce_leaves_every_sum_everywhere),
  cmocka_unit_test (a_reduce_scatter_leaves_sum_r_with_rank_r),
  cmocka_unit_test (an_all_gather_brings_piece_r_from_rank_r),
  cmocka_unit_test (a_broadcast_brings_everything_from_rank_0),
  cmocka_unit_test (the_moves_are_the_closed_formula),
  cmocka_unit_test (a_uniform_group_is_k_nodes_of_g_ranks),
  cmocka_unit_test (the_two_levels_add_up_to_the_ring),
  cmocka_unit_test (unequal_nodes_run_one_plain_ring),
  cmocka_unit_test (a_divisor_does_not_make_a_group_uniform),
  cmocka_unit_test (gpus_that_share_a_nic_load_it_together),
  cmocka_unit_test (a_port_carries_one_flow_of_its_ring),
  cmocka_unit_test (small_tensors_take_the_tree_and_large_ones_the_ring),
  cmocka_unit_test (one_node_always_rings),
  cmocka_unit_test (only_an_all_reduce_climbs_a_tree),
  cmocka_unit_test (an_all_to_all_takes_one_step),
  cmocka_unit_test (a_shift_is_one_step_to_each_neighbour),
  cmocka_unit_test (a_broadcast_is_pipelined_through_all_ranks),
  cmocka_unit_test (canonical_sums_are_taken_directly),
  cmocka_unit_test (direct_moves_bring_every_term_to_its_owner_once),
  cmocka_unit_test (scalars_ride_in_the_latency),
  cmocka_unit_test (one_rank_has_nobody_to_talk_to),
};

WEFT_TESTS (tests)
