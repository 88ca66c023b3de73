/* Chips on a 3D torus: links, routes, groups and collectives against numbers computed by hand, and
 * simulations, folded and unfolded, against closed formulas. */
#include "core/cluster/torus.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

#define LINK 50e9
#define STEP 2e-6 /* latency of a torus link to a neighbouring chip */
#define HOP 1e-6  /* latency that every chip on the way adds */

/* Returns a torus without latencies, with hosts of 2 x 2 x 1 chips. If the lengths of all axes are
 * multiples of 4, every axis has a wraparound link (is "closed"), as on Cloud TPUs. */
static struct weft_cluster
torus (uint32_t x, uint32_t y, uint32_t z)
{
  uint32_t n = x * y * z;
  struct weft_cluster c = made_cluster (n / 4, 4);

  c.f.fabric_kind = WEFT_FABRIC_TORUS;
  c.f.fabric_link_bandwidth = LINK;
  c.f.fabric_wrap_multiple = 4;
  c.f.fabric_host_x = c.f.fabric_host_y = 2;
  c.f.fabric_x = x;
  c.f.fabric_y = y;
  c.f.fabric_z = z;
  return c;
}

/* Returns a torus whose hosts have one chip. Its axes have wraparound links, whatever their
 * length. */
static struct weft_cluster
odd_torus (uint32_t x, uint32_t y, uint32_t z)
{
  struct weft_cluster c = torus (x, y, z);

  c.n_gpus = c.n_nodes = x * y * z;
  c.f.node_gpus = c.f.fabric_wrap_multiple = c.f.fabric_host_x = c.f.fabric_host_y = 1;
  return c;
}

static struct weft_cluster
slow_torus (uint32_t x, uint32_t y, uint32_t z)
{
  struct weft_cluster c = torus (x, y, z);

  c.f.fabric_latency = STEP;
  c.f.fabric_hop_latency = HOP;
  return c;
}

static uint32_t
chip (const struct weft_fabric *f, uint32_t x, uint32_t y, uint32_t z)
{
  return x + f->side[0] * (y + f->side[1] * z);
}

/* ------------------------------------------------------------------- links */

static void
assert_links (const struct weft_cluster *c, const uint32_t wanted[3], gboolean wraps)
{
  struct weft_fabric f = weft_fabric_make (c);

  assert_int_equal (f.wraps, wraps);
  for (uint32_t kind = 0; kind < WEFT_TORUS_HOST; kind++)
    assert_int_equal (f.first[kind + 1] - f.first[kind], wanted[kind / 2]);
  uint32_t pcie = WEFT_TORUS_HOST + WEFT_HOST_PCIE_UP, memory = WEFT_TORUS_HOST + WEFT_HOST_MEMORY;
  assert_int_equal (f.first[pcie + 1] - f.first[pcie], c->n_gpus);
  assert_int_equal (f.first[memory + 1] - f.first[memory], c->n_nodes);
}

static void
a_ring_has_a_link_more_than_a_line (void **state)
{
  struct weft_cluster cube = torus (4, 4, 4), box = torus (2, 4, 4), host = torus (2, 2, 1);

  (void) state;
  assert_links (&cube, (const uint32_t[]){ 64, 64, 64 }, TRUE);
  assert_links (&box, (const uint32_t[]){ 16, 24, 24 }, FALSE);
  assert_links (&host, (const uint32_t[]){ 2, 2, 0 }, FALSE);
}

static void
a_host_is_a_box_of_chips (void **state)
{
  struct weft_cluster c = torus (4, 8, 4);
  struct weft_fabric f = weft_fabric_make (&c);
  g_autofree uint32_t *slots = g_new0 (uint32_t, c.n_nodes);

  (void) state;
  assert_int_equal (weft_fabric_node (&f, chip (&f, 3, 5, 2)), 1 + 2 * (2 + 4 * 2));
  assert_int_equal (f.ops->slot (&f, chip (&f, 3, 5, 2)), 1 + 2 * 1);
  for (uint32_t gpu = 0; gpu < c.n_gpus; gpu++) {
    assert_true (weft_fabric_node (&f, gpu) < c.n_nodes);
    slots[weft_fabric_node (&f, gpu)] |= 1u << f.ops->slot (&f, gpu);
  }
  for (uint32_t node = 0; node < c.n_nodes; node++)
    assert_int_equal (slots[node], 15);
}

/* For 4 to 512 chips, the torus gets the shape of Cloud TPU's slices. */
static void
unasked_sizes_are_near_a_cube (void **state)
{
  static const uint32_t wanted[][3] = { { 1, 1, 1 }, { 2, 1, 1 }, { 2, 2, 1 }, { 2, 2, 2 },
                                        { 2, 2, 4 }, { 2, 4, 4 }, { 4, 4, 4 }, { 4, 4, 8 },
                                        { 4, 8, 8 }, { 8, 8, 8 }, { 4, 4, 12 } };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (wanted); i++) {
    struct weft_cluster c = torus (4, 4, 4);
    c.f.fabric_x = c.f.fabric_y = c.f.fabric_z = 0;
    c.n_gpus = wanted[i][0] * wanted[i][1] * wanted[i][2];
    c.n_nodes = MAX (1, c.n_gpus / 4);
    struct weft_fabric f = weft_fabric_make (&c);
    if (c.n_gpus == 2) /* a host with two chips may have them as neighbours on either axis */
      assert_int_equal (f.side[0] + f.side[1] + f.side[2], 4);
    else
      assert_memory_equal (f.side, wanted[i], sizeof wanted[i]);
  }
}

/* ------------------------------------------------------------------ routes */

struct hop {
  enum weft_torus_link kind;
  uint32_t chip; /* chip at the sending end of the link */
};

static void
assert_hops (const struct weft_fabric *f, uint32_t from, uint32_t to, uint32_t way,
             const struct hop *hop, uint32_t n)
{
  struct weft_route route;

  weft_fabric_route_way (f, from, to, way, &route);
  assert_int_equal (route.n, n);
  for (uint32_t i = 0; i < n; i++)
    assert_int_equal (route.link[i], weft_fabric_owner (f, hop[i].kind, hop[i].chip));
  assert_near (route.latency, STEP + (n - 1) * HOP);
}

#define assert_route(f, from, to, way, ...)                                                        \
  assert_hops ((f), (from), (to), (way), (const struct hop[]){ __VA_ARGS__ },                      \
               sizeof ((const struct hop[]){ __VA_ARGS__ }) / sizeof (struct hop))

static void
routes_go_axis_by_axis_the_shorter_way (void **state)
{
  struct weft_cluster c = slow_torus (4, 4, 4);
  struct weft_fabric f = weft_fabric_make (&c);

  (void) state;
  assert_route (&f, 0, 1, 0, { WEFT_TORUS_X_UP, 0 });
  assert_route (&f, 0, 3, 0, { WEFT_TORUS_X_DOWN, 0 });
  assert_route (&f, 3, 0, 0, { WEFT_TORUS_X_UP, 3 });
  assert_route (&f, 0, chip (&f, 1, 3, 2), 0, { WEFT_TORUS_X_UP, 0 }, { WEFT_TORUS_Y_DOWN, 1 },
                { WEFT_TORUS_Z_UP, chip (&f, 1, 3, 0) }, { WEFT_TORUS_Z_UP, chip (&f, 1, 3, 1) });
}

static void
the_way_decides_between_two_halves_of_a_ring (void **state)
{
  struct weft_cluster c = slow_torus (4, 4, 4);
  struct weft_fabric f = weft_fabric_make (&c);

  (void) state;
  assert_route (&f, 0, 2, 0, { WEFT_TORUS_X_UP, 0 }, { WEFT_TORUS_X_UP, 1 });
  assert_route (&f, 0, 2, 1, { WEFT_TORUS_X_DOWN, 0 }, { WEFT_TORUS_X_DOWN, 3 });
  assert_route (&f, 0, 2, 3, { WEFT_TORUS_X_UP, 0 }, { WEFT_TORUS_X_UP, 1 });
}

static void
a_line_is_crossed_from_end_to_end (void **state)
{
  struct weft_cluster c = slow_torus (2, 4, 4);
  struct weft_fabric f = weft_fabric_make (&c);

  (void) state;
  assert_route (&f, chip (&f, 0, 3, 0), 0, 0, { WEFT_TORUS_Y_DOWN, chip (&f, 0, 3, 0) },
                { WEFT_TORUS_Y_DOWN, chip (&f, 0, 2, 0) },
                { WEFT_TORUS_Y_DOWN, chip (&f, 0, 1, 0) });
}

static uint32_t
ring_distance (uint32_t a, uint32_t b, uint32_t side)
{
  uint32_t up = (b + side - a) % side;
  return MIN (up, side - up);
}

/* The route between two chips has as many links as the chips are apart along all axes, and no link
 * twice. */
static void
no_route_is_longer_than_the_axes_are_apart (void **state)
{
  struct weft_cluster c = odd_torus (3, 4, 5);
  struct weft_fabric f = weft_fabric_make (&c);

  (void) state;
  for (uint32_t from = 0; from < c.n_gpus; from++)
    for (uint32_t to = 0; to < c.n_gpus; to++) {
      struct weft_route route;
      uint32_t a[3], b[3], apart = 0;
      f.ops->place (&f, from, a);
      f.ops->place (&f, to, b);
      for (int axis = 0; axis < 3; axis++)
        apart += ring_distance (a[axis], b[axis], f.side[axis]);
      weft_fabric_route (&f, from, to, &route);
      assert_int_equal (route.n, apart);
      for (uint32_t i = 0; i < route.n; i++)
        for (uint32_t j = 0; j < i; j++)
          assert_int_not_equal (route.link[i], route.link[j]);
    }
}

/* ------------------------------------------------------------------ groups */

static void
assert_shape (const struct weft_cluster *c, struct weft_group group, const uint32_t side[3],
              const gboolean ring[3])
{
  struct weft_fabric f = weft_fabric_make (c);
  struct weft_coll_shape shape;

  weft_coll_shape_outline (&shape, &f, &group);
  assert_int_equal (shape.uniform, side != NULL);
  for (int axis = 0; side && axis < 3; axis++) {
    assert_int_equal (shape.side[axis], side[axis]);
    assert_int_equal (shape.ring[axis], ring[axis]);
  }
}

static void
a_group_that_fills_a_box_is_as_many_rings_as_axes (void **state)
{
  struct weft_cluster c = torus (4, 4, 4);
  struct weft_group line = { 4, { 4, 1 }, { 1, 0 } }, half = { 0, { 2, 1 }, { 1, 0 } },
                    every_other = { 1, { 2, 1 }, { 2, 0 } }, column = { 5, { 4, 1 }, { 16, 0 } },
                    halves = { 0, { 32, 1 }, { 2, 0 } }, all = { 0, { 64, 1 }, { 1, 0 } },
                    askew = { 2, { 4, 1 }, { 1, 0 } }, six = { 0, { 6, 1 }, { 1, 0 } };

  (void) state;
  assert_shape (&c, line, (const uint32_t[]){ 4, 1, 1 }, (const gboolean[]){ 1, 0, 0 });
  assert_shape (&c, half, (const uint32_t[]){ 2, 1, 1 }, (const gboolean[]){ 0, 0, 0 });
  assert_shape (&c, every_other, (const uint32_t[]){ 2, 1, 1 }, (const gboolean[]){ 1, 0, 0 });
  assert_shape (&c, column, (const uint32_t[]){ 1, 1, 4 }, (const gboolean[]){ 0, 0, 1 });
  assert_shape (&c, halves, (const uint32_t[]){ 2, 4, 4 }, (const gboolean[]){ 1, 1, 1 });
  assert_shape (&c, all, (const uint32_t[]){ 4, 4, 4 }, (const gboolean[]){ 1, 1, 1 });
  assert_shape (&c, askew, NULL, NULL);
  assert_shape (&c, six, NULL, NULL);
}

/* ---------------------------------------------------------- closed formulas */

static struct weft_traffic
traffic_of (const struct weft_cluster *c, struct weft_group group, enum weft_op_kind kind,
            double bytes, enum weft_coll_choice choice)
{
  struct weft_fabric f = weft_fabric_make (c);
  struct weft_coll_shape shape;

  weft_coll_shape_init (&shape, &f, &group);
  struct weft_traffic t = weft_coll_plan (&shape, kind, bytes, NULL, choice);
  weft_coll_shape_release (&shape);
  return t;
}

static double
seconds_of (const struct weft_cluster *c, uint32_t n, uint32_t stride, enum weft_op_kind kind,
            double bytes)
{
  struct weft_group group = { 0, { n, 1 }, { stride, 0 } };
  return traffic_of (c, group, kind, bytes, WEFT_COLL_QUICKEST).seconds;
}

/* Bytes of a tensor. All numbers by which the tests below divide are divisors of this size, so
 * nothing is rounded. */
#define S 92160e3

/* A ring that uses both directions of an axis: every piece moves at most half way around. The
 * opposite chip is equally far in both directions, so half of a piece reaches it in each
 * direction. */
static void
one_axis_is_a_ring_in_both_directions (void **state)
{
  struct weft_cluster c = slow_torus (4, 4, 8);

  (void) state;
  assert_near (seconds_of (&c, 4, 1, WEFT_OP_ALL_GATHER, S), 3. / 4 * S / (2 * LINK) + 2 * STEP);
  assert_near (seconds_of (&c, 4, 1, WEFT_OP_ALL_REDUCE, S),
               2 * 3. / 4 * S / (2 * LINK) + 4 * STEP);
  assert_near (seconds_of (&c, 8, 16, WEFT_OP_REDUCE_SCATTER, S),
               7. / 8 * S / (2 * LINK) + 4 * STEP);
  assert_near (seconds_of (&c, 4, 1, WEFT_OP_BROADCAST, S), S / (2 * LINK) + 2 * STEP);
}

/* On a 4 x 4 x 4 torus, all six links of a chip carry equal parts of the data that it sends. */
static void
three_equal_axes_are_three_times_as_quick (void **state)
{
  struct weft_cluster c = slow_torus (4, 4, 4);

  (void) state;
  assert_near (seconds_of (&c, 64, 1, WEFT_OP_ALL_REDUCE, S),
               2 * 63. / 64 * S / (6 * LINK) + 12 * STEP);
  assert_near (seconds_of (&c, 16, 1, WEFT_OP_ALL_GATHER, S), 15. / 16 * S / (4 * LINK) + 4 * STEP);
}

/* A collective splits the tensor into thirds, and each third begins at another axis. On a 4 x 4 x 8
 * torus the links of z (length 8) carry most: 7/8 of the third that begins at z, 7/8 of a sixteenth
 * of the third that passes x and y first, and 7/8 of a quarter of the third that passes y first. */
static void
the_longest_axis_is_the_slowest (void **state)
{
  struct weft_cluster c = torus (4, 4, 8);
  double z = 7. / 8 * (1 + 1. / 16 + 1. / 4) / 3;

  (void) state;
  assert_near (seconds_of (&c, 128, 1, WEFT_OP_ALL_GATHER, S), z * S / (2 * LINK));
}

static void
without_links_round_the_end_a_line_takes_twice_as_long (void **state)
{
  struct weft_cluster open = slow_torus (4, 4, 2), closed = slow_torus (4, 4, 4);

  (void) state;
  for (int kind = 0; kind < 2; kind++) {
    enum weft_op_kind op = kind ? WEFT_OP_ALL_GATHER : WEFT_OP_ALL_TO_ALL;
    double line = seconds_of (&open, 4, 1, op, S) - 3 * STEP;
    double ring = seconds_of (&closed, 4, 1, op, S) - 2 * STEP;
    assert_near (line, 2 * ring);
  }
}

/* An all-to-all sends half of all data to the other half of the longest axis, over two cuts of this
 * axis. */
static void
all_to_all_is_limited_by_the_bisection (void **state)
{
  struct weft_cluster c = torus (4, 4, 8);
  double crossing = 128 / 2 * S / 2, links = 2 * 16;

  (void) state;
  assert_near (seconds_of (&c, 128, 1, WEFT_OP_ALL_TO_ALL, S), crossing / (links * LINK));
}

/* On axes of odd length, one direction is always shorter. The bytes on the busiest link, added over
 * the routes of all pairs, must equal the bytes that the closed formula of the all-to-all
 * (core/program/coll.h) gives. */
static void
all_to_all_is_what_its_routes_carry (void **state)
{
  struct weft_cluster c = odd_torus (3, 3, 5);
  struct weft_fabric f = weft_fabric_make (&c);
  g_autofree uint32_t *crossed = g_new0 (uint32_t, weft_fabric_links (&f));
  uint32_t most = 0;

  (void) state;
  for (uint32_t from = 0; from < c.n_gpus; from++)
    for (uint32_t to = 0; to < c.n_gpus; to++) {
      struct weft_route route;
      weft_fabric_route (&f, from, to, &route);
      for (uint32_t i = 0; i < route.n; i++) {
        crossed[route.link[i]]++;
        most = MAX (most, crossed[route.link[i]]);
      }
    }
  assert_near (seconds_of (&c, 45, 1, WEFT_OP_ALL_TO_ALL, S), most * S / 45 / LINK);
}

/* In canonical order, each owner of a piece receives the terms of all other members. So a
 * reduce-scatter takes as long as one all-to-all, an all-reduce as long as two. */
static void
canonical_sums_travel_to_their_owners (void **state)
{
  struct weft_cluster c = torus (4, 4, 4);
  struct weft_group all = { 0, { 64, 1 }, { 1, 0 } };
  double swap = traffic_of (&c, all, WEFT_OP_ALL_TO_ALL, S, WEFT_COLL_CANONICAL).seconds;

  (void) state;
  assert_near (traffic_of (&c, all, WEFT_OP_REDUCE_SCATTER, S, WEFT_COLL_CANONICAL).seconds, swap);
  assert_near (traffic_of (&c, all, WEFT_OP_ALL_REDUCE, S, WEFT_COLL_CANONICAL).seconds, 2 * swap);
}

/* A group of chips that is no box: chips 2, 3, 4, 5 of a 4 x 4 x 4 torus. Its ring crosses one link
 * from 2 to 3, two links (x and y) from 3 to 4, one link from 4 to 5, and two links from 5 back to
 * 2. */
static void
a_group_askew_runs_a_plain_ring (void **state)
{
  struct weft_cluster c = slow_torus (4, 4, 4);
  struct weft_group askew = { 2, { 4, 1 }, { 1, 0 } };
  struct weft_traffic t = traffic_of (&c, askew, WEFT_OP_ALL_GATHER, S, WEFT_COLL_QUICKEST);

  (void) state;
  assert_near (t.bytes[0], 3. / 4 * S);
  assert_near (t.latency, 3 * (STEP + HOP));
  assert_true (t.seconds >= t.latency + 3. / 4 * S / LINK);
}

/* --------------------------------------------------------------- simulated */

static const char *const all_options[] = { "", "unfolded", "step-by-step",
                                           "unfolded step-by-step" };

static void
collectives_take_their_formula (void **state)
{
  static const uint32_t sizes[][3] = {
    { 4, 4, 4 }, { 4, 4, 8 }, { 2, 2, 2 }, { 2, 2, 1 }, { 2, 4, 4 }
  };
  static const enum weft_op_kind kinds[] = { WEFT_OP_ALL_REDUCE, WEFT_OP_REDUCE_SCATTER,
                                             WEFT_OP_ALL_GATHER, WEFT_OP_ALL_TO_ALL,
                                             WEFT_OP_BROADCAST };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (sizes); i++)
    for (size_t k = 0; k < G_N_ELEMENTS (kinds); k++) {
      struct weft_cluster c = slow_torus (sizes[i][0], sizes[i][1], sizes[i][2]);
      struct weft_job job = made_job (&c);
      double wanted = seconds_of (&c, c.n_gpus, 1, kinds[k], S);
      job.stack.collective_base_latency = 5e-6;
      g_autoptr (weft_plan) plan = made_collective_plan (&job, kinds[k], (uint64_t) S);
      for (size_t o = 0; o < G_N_ELEMENTS (all_options); o++) {
        g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, all_options[o]);
        assert_near (t->seconds, 5e-6 + wanted);
        assert_false (t->contended);
      }
    }
}

static uint32_t
n_actors (const struct weft_cluster *c, struct weft_mesh mesh)
{
  struct weft_fabric f = weft_fabric_make (c);
  g_autoptr (weft_actors) a = weft_actors_new (&f, &mesh, TRUE);
  return a->n;
}

/* On a torus with wraparound links all chips are alike. On an open axis they are not: the first
 * chip sends only to larger coordinates, the last only to smaller ones, those between to both. So
 * axes of length 2, 2 and 6 have two, two and three kinds of chips. */
static void
a_closed_torus_is_one_actor (void **state)
{
  struct weft_cluster closed = torus (8, 8, 8), open = torus (2, 2, 6);

  (void) state;
  assert_int_equal (n_actors (&closed, weft_mesh_make (1, 1, 512, 1)), 1);
  assert_int_equal (n_actors (&closed, weft_mesh_make (8, 8, 8, 1)), 1);
  /* 4 pipeline stages, each of 2 planes of chips along z */
  assert_int_equal (n_actors (&closed, weft_mesh_make (8, 1, 16, 4)), 8);
  assert_int_equal (n_actors (&open, weft_mesh_make (1, 1, 24, 1)), 2 * 2 * 3);
}

static weft_timeline *
run_dp (const struct weft_cluster *c, struct weft_mesh mesh, enum weft_op_kind kind)
{
  struct weft_job job = made_job (c);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  made_collective (b, kind, WEFT_GROUP_DP, (uint64_t) S);
  g_autoptr (weft_plan) plan = made_plan (&job, mesh, &b);
  return made_run (plan);
}

/* Two neighbours in x are a tensor parallel pair. Replicas of a rank are the chips at even
 * distances in x, so the data parallel rings of the two ranks of a pair share all links of x. */
static void
two_groups_on_one_axis_get_half_each (void **state)
{
  struct weft_cluster c = torus (4, 4, 4);
  struct weft_group dp = { 0, { 32, 1 }, { 2, 0 } };
  struct weft_traffic alone = traffic_of (&c, dp, WEFT_OP_ALL_REDUCE, S, WEFT_COLL_QUICKEST);

  (void) state;
  g_autoptr (weft_timeline) t = run_dp (&c, weft_mesh_make (2, 1, 32, 1), WEFT_OP_ALL_REDUCE);
  assert_near (t->seconds, fmax (2 * alone.bytes[0], alone.bytes[2]) / LINK);
  assert_true (t->contended == (2 * alone.bytes[0] > alone.bytes[2]));
  /* The simulation has two actors: one for each rank of a tensor parallel pair. */
  assert_int_equal (t->n, 2);
}

/* Tensor parallel groups are planes of the torus and data parallel groups run along z, so the two
 * kinds of groups share no links. */
static void
groups_on_axes_of_their_own_do_not_meet (void **state)
{
  struct weft_cluster c = torus (4, 4, 4);

  (void) state;
  g_autoptr (weft_timeline) t = run_dp (&c, weft_mesh_make (16, 1, 4, 1), WEFT_OP_ALL_GATHER);
  assert_near (t->seconds, 3. / 4 * S / (2 * LINK));
  assert_false (t->contended);
}

static weft_timeline *
run_sends (const struct weft_cluster *c, struct weft_mesh mesh)
{
  struct weft_job job = made_job (c);
  weft_builder *b[4];

  for (uint32_t role = 0; role < mesh.pp; role++) {
    b[role] = weft_builder_new (role, mesh.pp);
    if (role == 0)
      made_transfer (b[role], WEFT_OP_SEND, 1, (uint64_t) S);
    if (role == 1)
      made_transfer (b[role], WEFT_OP_RECV, -1, (uint64_t) S);
  }
  g_autoptr (weft_plan) plan = made_plan (&job, mesh, b);
  for (uint32_t role = 0; role < mesh.pp; role++)
    weft_builder_free (b[role]);
  return made_run (plan);
}

/* If a pipeline stage is one plane of chips, every chip sends to the next stage over a link of its
 * own. If a stage is two planes, a send crosses two links, and the link between the planes carries
 * the sends of both planes. */
static void
stages_of_two_planes_share_the_links_between (void **state)
{
  struct weft_cluster c = slow_torus (4, 4, 4);

  (void) state;
  g_autoptr (weft_timeline) planes = run_sends (&c, weft_mesh_make (1, 1, 16, 4));
  assert_near (planes->seconds, S / LINK + STEP);
  assert_false (planes->contended);
  g_autoptr (weft_timeline) halves = run_sends (&c, weft_mesh_make (1, 1, 32, 2));
  assert_near (halves->seconds, 2 * S / LINK + STEP + HOP);
  assert_true (halves->contended);
}

static double
copy_seconds (const struct weft_cluster *c)
{
  struct weft_job job = made_job (c);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  made_copy (b, WEFT_OP_COPY_IN, (uint64_t) S);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, c->n_gpus, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  return t->seconds;
}

static void
chips_of_a_host_share_its_memory (void **state)
{
  struct weft_cluster c = torus (4, 4, 4);

  (void) state;
  assert_near (copy_seconds (&c), S / MADE_HOST);
  c.f.node_host_bandwidth = 2 * MADE_HOST;
  assert_near (copy_seconds (&c), 4 * S / (2 * MADE_HOST));
  c.f.node_host_bandwidth = 1e15;
  c.f.node_gpus_per_switch = 2;
  assert_near (copy_seconds (&c), 2 * S / MADE_HOST);
}

/* On a TPU, transfers have engines of their own, so a collective does not slow kernels down. */
static void
communication_takes_nothing_from_kernels (void **state)
{
  struct weft_cluster c = torus (4, 4, 4);
  struct weft_job job = made_job (&c);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  job.stack.collective_sms = 100;
  made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, (uint64_t) (1000 * S));
  made_kernel (b, 500);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 64, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->end[0][1], 500 * MADE_US);
}

/* Steps of real jobs on slices with and without wraparound links, and on a part of a host: folded
 * and unfolded simulations must agree. */
static void
real_steps_fold_without_a_trace (void **state)
{
  static const char *const jobs[][12] = {
    { "--gpus", "64", "--tensor-model-parallel-size", "4", "--sequence-parallel", "true",
      "--use-distributed-optimizer", "true" },
    { "--gpus", "64", "--pipeline-model-parallel-size", "2", "--tensor-model-parallel-size", "2" },
    { "--gpus", "64", "--context-parallel-size", "4", "--use-megatron-fsdp", "true",
      "--zero-dp-strategy", "3" },
    { "--gpus", "32", "--pipeline-model-parallel-size", "4" },
    { "--gpus", "16", "--tensor-model-parallel-size", "2", "--context-parallel-size", "2" },
    { "--gpus", "12", "--pipeline-model-parallel-size", "2" },
    { "--gpus", "2" },
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++) {
    const char *flags[24] = { "--model", "llama-nano", "--topology", "tpu-v4", NULL };
    struct weft_job job;
    for (int k = 0; jobs[i][k]; k++)
      flags[4 + k] = jobs[i][k];
    made_real_job (&job, flags);
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    g_autoptr (weft_timeline) t = made_run (plan);
    assert_true (t->seconds > 0);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_ring_has_a_link_more_than_a_line),
  cmocka_unit_test (a_host_is_a_box_of_chips),
  cmocka_unit_test (unasked_sizes_are_near_a_cube),
  cmocka_unit_test (routes_go_axis_by_axis_the_shorter_way),
  cmocka_unit_test (the_way_decides_between_two_halves_of_a_ring),
  cmocka_unit_test (a_line_is_crossed_from_end_to_end),
  cmocka_unit_test (no_route_is_longer_than_the_axes_are_apart),
  cmocka_unit_test (a_group_that_fills_a_box_is_as_many_rings_as_axes),
  cmocka_unit_test (one_axis_is_a_ring_in_both_directions),
  cmocka_unit_test (three_equal_axes_are_three_times_as_quick),
  cmocka_unit_test (the_longest_axis_is_the_slowest),
  cmocka_unit_test (without_links_round_the_end_a_line_takes_twice_as_long),
  cmocka_unit_test (all_to_all_is_limited_by_the_bisection),
  cmocka_unit_test (all_to_all_is_what_its_routes_carry),
  cmocka_unit_test (canonical_sums_travel_to_their_owners),
  cmocka_unit_test (a_group_askew_runs_a_plain_ring),
  cmocka_unit_test (collectives_take_their_formula),
  cmocka_unit_test (a_closed_torus_is_one_actor),
  cmocka_unit_test (two_groups_on_one_axis_get_half_each),
  cmocka_unit_test (groups_on_axes_of_their_own_do_not_meet),
  cmocka_unit_test (stages_of_two_planes_share_the_links_between),
  cmocka_unit_test (chips_of_a_host_share_its_memory),
  cmocka_unit_test (communication_takes_nothing_from_kernels),
  cmocka_unit_test (real_steps_fold_without_a_trace),
};

WEFT_TESTS (tests)
