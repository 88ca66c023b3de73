/* Links and routes of every kind of cluster; classes of ranks for folded simulations, and the
 * loads of links, which folding must not change. */
#include "core/cluster/rails.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

static struct weft_fabric
fabric_of (const struct weft_cluster *cluster)
{
  return weft_fabric_make (cluster);
}

/* One link of an expected route: its kind, and any GPU that uses the link. A route ends with
 * WEFT_N_LINK. */
struct hop {
  enum weft_rails_link kind;
  uint32_t gpu;
};

static void
assert_hops (const struct weft_fabric *f, const struct weft_route *route, const struct hop *hop)
{
  uint32_t n = 0;

  for (; hop[n].kind != WEFT_N_LINK; n++) {
    assert_true (n < route->n);
    assert_int_equal (weft_fabric_kind (f, route->link[n]), hop[n].kind);
    assert_int_equal (route->link[n], weft_fabric_owner (f, hop[n].kind, hop[n].gpu));
  }
  assert_int_equal (route->n, n);
}

#define assert_route(f, from, to, ...)                                                             \
  do {                                                                                             \
    struct weft_route route_;                                                                      \
    weft_fabric_route ((f), (from), (to), &route_);                                                \
    assert_hops ((f), &route_, (const struct hop[]) { __VA_ARGS__, { WEFT_N_LINK, 0 } });          \
  } while (0)

static double
latency (const struct weft_fabric *f, uint32_t from, uint32_t to)
{
  struct weft_route route;
  weft_fabric_route (f, from, to, &route);
  return route.latency;
}

/* A cluster with every level of a rail fabric: two pods of two units; two nodes per unit; four
 * GPUs, two NICs and two PCIe switches per node. Leaf and spine switches are oversubscribed. */
static struct weft_cluster
deep_cluster (void)
{
  struct weft_cluster c = made_cluster (8, 4);

  c.f.node_nics = 2;
  c.f.node_gpus_per_switch = 2;
  c.f.fabric_nodes_per_unit = 2;
  c.f.fabric_units_per_pod = 2;
  c.f.fabric_leaf_oversubscription = 2;
  c.f.fabric_spine_oversubscription = 4;
  c.f.node_intra_latency = 1e-6;
  c.f.fabric_latency = 5e-6;
  c.f.fabric_spine_latency = 2e-6;
  return c;
}

/* ------------------------------------------------------------------- links */

static void
ids_count_the_links_of_each_kind (void **state)
{
  static const uint32_t wanted[WEFT_N_LINK] = {
    [WEFT_LINK_PORT_UP] = 32,   [WEFT_LINK_PORT_DOWN] = 32, [WEFT_LINK_PCIE_UP] = 32,
    [WEFT_LINK_PCIE_DOWN] = 32, [WEFT_LINK_HOST_UP] = 16,   [WEFT_LINK_HOST_DOWN] = 16,
    [WEFT_LINK_MEMORY] = 8,     [WEFT_LINK_NIC_UP] = 16,    [WEFT_LINK_NIC_DOWN] = 16,
    [WEFT_LINK_LEAF_UP] = 8,    [WEFT_LINK_LEAF_DOWN] = 8,  [WEFT_LINK_SPINE_UP] = 2,
    [WEFT_LINK_SPINE_DOWN] = 2,
  };
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  for (int kind = 0; kind < WEFT_N_LINK; kind++) {
    assert_int_equal (f.first[kind + 1] - f.first[kind], wanted[kind]);
    for (uint32_t link = f.first[kind]; link < f.first[kind + 1]; link++)
      assert_int_equal (weft_fabric_kind (&f, link), kind);
  }
}

/* All links of one kind serve equally many GPUs. */
static void
owners_are_spread_evenly (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);
  g_autofree uint32_t *served = g_new0 (uint32_t, weft_fabric_links (&f));

  (void) state;
  for (int kind = 0; kind < WEFT_N_LINK; kind++)
    for (uint32_t gpu = 0; gpu < c.n_gpus; gpu++) {
      uint32_t link = weft_fabric_owner (&f, kind, gpu);
      assert_true (link >= f.first[kind] && link < f.first[kind + 1]);
      served[link]++;
    }
  for (int kind = 0; kind < WEFT_N_LINK; kind++)
    for (uint32_t link = f.first[kind]; link < f.first[kind + 1]; link++)
      assert_int_equal (served[link], c.n_gpus / (f.first[kind + 1] - f.first[kind]));
}

/* Where GPU 23 is: it is the last GPU of node 5, which is in the third unit, in pod 1. It uses the
 * second PCIe switch and the second NIC of its node. */
static void
a_gpu_belongs_to_its_switch_nic_leaf_and_pod (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_int_equal (weft_fabric_node (&f, 23), 5);
  assert_int_equal (weft_fabric_owner (&f, WEFT_LINK_HOST_UP, 23) - f.first[WEFT_LINK_HOST_UP], 11);
  assert_int_equal (weft_fabric_owner (&f, WEFT_LINK_NIC_UP, 23) - f.first[WEFT_LINK_NIC_UP], 11);
  assert_int_equal (weft_fabric_owner (&f, WEFT_LINK_LEAF_UP, 23) - f.first[WEFT_LINK_LEAF_UP], 5);
  assert_int_equal (weft_fabric_owner (&f, WEFT_LINK_SPINE_UP, 23) - f.first[WEFT_LINK_SPINE_UP],
                    1);
}

/* Capacity of a leaf's uplink: a leaf serves the NICs of 2 nodes, divided by its oversubscription
 * of 2. Capacity of a pod's uplink: the 8 NICs of the pod's 4 nodes, divided by the spine's
 * oversubscription of 4. */
static void
oversubscription_divides_the_ports_up (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_near (weft_fabric_capacity (&f, f.first[WEFT_LINK_LEAF_UP]), 2 * MADE_NIC / 2);
  assert_near (weft_fabric_capacity (&f, f.first[WEFT_LINK_SPINE_DOWN]), 8 * MADE_NIC / 4);
  assert_near (weft_fabric_capacity (&f, f.first[WEFT_LINK_PORT_UP]), MADE_PORT);
  assert_near (weft_fabric_capacity (&f, f.first[WEFT_LINK_NIC_DOWN]), MADE_NIC);
  assert_near (weft_fabric_capacity (&f, f.first[WEFT_LINK_HOST_DOWN]), MADE_HOST);
}

/* ------------------------------------------------------------------ routes */

static void
gpus_of_a_node_meet_at_its_switch (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_route (&f, 4, 7, { WEFT_LINK_PORT_UP, 4 }, { WEFT_LINK_PORT_DOWN, 7 });
  assert_near (latency (&f, 4, 7), 1e-6);
}

static void
gpus_without_nvlink_cross_pcie (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  c.f.node_intra = WEFT_PCIE;
  assert_route (&f, 4, 7, { WEFT_LINK_PORT_UP, 4 }, { WEFT_LINK_PCIE_UP, 4 },
                { WEFT_LINK_PCIE_DOWN, 7 }, { WEFT_LINK_PORT_DOWN, 7 });
}

static void
ranks_of_one_machine_share_its_memory (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  c.f.node_intra = WEFT_SHARED_MEMORY;
  assert_route (&f, 4, 7, { WEFT_LINK_PORT_UP, 4 }, { WEFT_LINK_MEMORY, 4 },
                { WEFT_LINK_PORT_DOWN, 7 });
}

/* The route from GPU 1 of node 0 to GPU 0 of node 1. Both nodes are in one unit, and both GPUs use
 * the first NIC of their node (the same rail). So the route crosses only the leaf switch of this
 * rail. */
static void
one_rail_of_a_unit_stays_under_its_leaf (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_route (&f, 1, 4, { WEFT_LINK_PCIE_UP, 1 }, { WEFT_LINK_NIC_UP, 1 },
                { WEFT_LINK_NIC_DOWN, 4 }, { WEFT_LINK_PCIE_DOWN, 4 });
  assert_near (latency (&f, 1, 4), 5e-6);
}

/* GPUs 1 and 6 use NICs of different rails. The route between them crosses the spine, even inside
 * one unit, because each rail has a leaf switch of its own. */
static void
another_rail_is_across_the_spine (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_route (&f, 1, 6, { WEFT_LINK_PCIE_UP, 1 }, { WEFT_LINK_NIC_UP, 1 },
                { WEFT_LINK_LEAF_UP, 1 }, { WEFT_LINK_LEAF_DOWN, 6 }, { WEFT_LINK_NIC_DOWN, 6 },
                { WEFT_LINK_PCIE_DOWN, 6 });
  assert_near (latency (&f, 1, 6), 7e-6);
}

static void
another_unit_is_across_the_spine (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_route (&f, 0, 8, { WEFT_LINK_PCIE_UP, 0 }, { WEFT_LINK_NIC_UP, 0 },
                { WEFT_LINK_LEAF_UP, 0 }, { WEFT_LINK_LEAF_DOWN, 8 }, { WEFT_LINK_NIC_DOWN, 8 },
                { WEFT_LINK_PCIE_DOWN, 8 });
  assert_near (latency (&f, 0, 8), 7e-6);
}

static void
another_pod_is_across_the_core (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);

  (void) state;
  assert_route (&f, 0, 16, { WEFT_LINK_PCIE_UP, 0 }, { WEFT_LINK_NIC_UP, 0 },
                { WEFT_LINK_LEAF_UP, 0 }, { WEFT_LINK_SPINE_UP, 0 }, { WEFT_LINK_SPINE_DOWN, 16 },
                { WEFT_LINK_LEAF_DOWN, 16 }, { WEFT_LINK_NIC_DOWN, 16 },
                { WEFT_LINK_PCIE_DOWN, 16 });
}

/* A leaf or spine switch without oversubscription cannot be a bottleneck. So the fabric has no link
 * for such a switch, and routes contain none. */
static void
wide_switches_are_no_links (void **state)
{
  struct weft_cluster c = deep_cluster ();

  (void) state;
  c.f.fabric_leaf_oversubscription = 1;
  struct weft_fabric f = fabric_of (&c);
  assert_int_equal (f.first[WEFT_LINK_LEAF_UP], f.first[WEFT_LINK_SPINE_UP]);
  assert_route (&f, 0, 16, { WEFT_LINK_PCIE_UP, 0 }, { WEFT_LINK_NIC_UP, 0 },
                { WEFT_LINK_SPINE_UP, 0 }, { WEFT_LINK_SPINE_DOWN, 16 }, { WEFT_LINK_NIC_DOWN, 16 },
                { WEFT_LINK_PCIE_DOWN, 16 });
  assert_near (latency (&f, 0, 8), 7e-6);
  c.f.fabric_spine_oversubscription = 1;
  f = fabric_of (&c);
  assert_int_equal (f.first[WEFT_LINK_LEAF_UP], weft_fabric_links (&f));
  assert_route (&f, 0, 16, { WEFT_LINK_PCIE_UP, 0 }, { WEFT_LINK_NIC_UP, 0 },
                { WEFT_LINK_NIC_DOWN, 16 }, { WEFT_LINK_PCIE_DOWN, 16 });
}

static void
copies_cross_memory_the_switch_and_pcie (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);
  struct weft_route route;

  (void) state;
  weft_fabric_host_route (&f, 6, TRUE, &route);
  assert_hops (&f, &route,
               (const struct hop[]) { { WEFT_LINK_MEMORY, 6 },
                                     { WEFT_LINK_HOST_DOWN, 6 },
                                     { WEFT_LINK_PCIE_DOWN, 6 },
                                     { WEFT_N_LINK, 0 } });
  weft_fabric_host_route (&f, 6, FALSE, &route);
  assert_hops (&f, &route,
               (const struct hop[]) { { WEFT_LINK_MEMORY, 6 },
                                     { WEFT_LINK_HOST_UP, 6 },
                                     { WEFT_LINK_PCIE_UP, 6 },
                                     { WEFT_N_LINK, 0 } });
}

static void
a_flow_alone_gets_the_narrowest_link (void **state)
{
  struct weft_cluster c = deep_cluster ();
  struct weft_fabric f = fabric_of (&c);
  struct weft_route route;

  (void) state;
  weft_fabric_route (&f, 0, 16, &route);
  assert_near (weft_fabric_route_rate (&f, &route), MADE_NIC);
  c.f.fabric_leaf_oversubscription = 8;
  assert_near (weft_fabric_route_rate (&f, &route), 2 * MADE_NIC / 8);
}

/* ------------------------------------------------------------------ actors */

static weft_actors *
fold (const struct weft_cluster *c, struct weft_mesh mesh)
{
  struct weft_fabric f = weft_fabric_make (c);
  return weft_actors_new (&f, &mesh, TRUE);
}

/* Checks the classes of ranks: the sizes of all classes add up to the number of ranks, all
 * members of a class are in one stage, and the member with the lowest rank is the representative
 * (actor). */
static void
assert_partition (const weft_actors *a, struct weft_mesh mesh)
{
  uint32_t sum = 0;

  for (uint32_t i = 0; i < a->n; i++) {
    sum += a->stands_for[i];
    assert_int_equal (a->actor_of[a->rank[i]], i);
    assert_int_equal (a->role[i], weft_mesh_stage (&mesh, a->rank[i]));
  }
  assert_int_equal (sum, mesh.n_ranks);
  for (uint32_t rank = 0; rank < mesh.n_ranks; rank++) {
    assert_int_equal (a->role[a->actor_of[rank]], weft_mesh_stage (&mesh, rank));
    assert_true (a->rank[a->actor_of[rank]] <= rank);
  }
}

static uint32_t
n_actors (const struct weft_cluster *c, struct weft_mesh mesh)
{
  g_autoptr (weft_actors) a = fold (c, mesh);

  assert_partition (a, mesh);
  assert_int_equal (a->folded, a->n < mesh.n_ranks);
  return a->n;
}

static void
a_symmetric_job_has_one_actor_a_stage (void **state)
{
  struct weft_cluster c = made_cluster (8, 4);

  (void) state;
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 32, 1)), 1);
  assert_int_equal (n_actors (&c, weft_mesh_make (4, 1, 8, 1)), 1);
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 8, 4)), 4);
  assert_int_equal (n_actors (&c, weft_mesh_make (2, 2, 2, 4)), 4);
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 4, 8)), 8);
}

/* Stages of 2 ranks on nodes of 4 GPUs. Stage 0 sends to the next stage within its node, stage 1 to
 * another node. The ranks of each stage still fold to one actor. */
static void
stages_that_share_a_node_still_fold (void **state)
{
  struct weft_cluster c = made_cluster (4, 4);

  (void) state;
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 2, 8)), 8);
}

/* Pipeline stages of 6 ranks on nodes of 4 GPUs do not fold. A stage ends inside a node, so its
 * collectives are rings over different numbers of ranks per node, and no two ranks behave alike: 12
 * actors for 12 ranks. */
static void
a_stage_that_ends_inside_a_node_does_not_fold (void **state)
{
  struct weft_cluster c = made_cluster (3, 4);

  (void) state;
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 6, 2)), 12);
}

/* Nodes of one GPU, four nodes per unit. If leaf switches are not oversubscribed, each stage folds
 * to one actor. If they are, stages of 4 ranks, which fill a unit, still fold, but stages of 6
 * ranks do not: ranks 0 and 1 send from unit 0 to unit 1, ranks 2 and 3 from unit 0 to unit 2,
 * ranks 4 and 5 from unit 1 to unit 2, and the ring crosses units at two places. */
static void
a_narrow_leaf_partly_covered_breaks_the_symmetry (void **state)
{
  struct weft_cluster c = made_cluster (12, 1);

  (void) state;
  c.f.fabric_nodes_per_unit = 4;
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 6, 2)), 2);
  c.f.fabric_leaf_oversubscription = 4;
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 4, 3)), 3);
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 6, 2)), 12);
}

/* A ring has the latency of its longest hop for all members, so different latencies do not prevent
 * folding. Transfers between stages have a latency each: in stages of three ranks, rank 0 sends
 * within unit 0 but rank 1 over the spine, so these two ranks do not fold. */
static void
latency_breaks_the_symmetry_of_transfers_but_not_of_rings (void **state)
{
  struct weft_cluster c = made_cluster (12, 1);

  (void) state;
  c.f.fabric_nodes_per_unit = 4;
  c.f.fabric_spine_latency = 1e-6;
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 4, 3)), 3);
  assert_int_equal (n_actors (&c, weft_mesh_make (1, 1, 6, 2)), 2);
  assert_true (n_actors (&c, weft_mesh_make (1, 1, 3, 4)) > 4);
}

static void
unfolded_keeps_every_rank (void **state)
{
  struct weft_cluster c = made_cluster (2, 4);
  struct weft_fabric f = weft_fabric_make (&c);
  struct weft_mesh mesh = weft_mesh_make (2, 1, 2, 2);
  g_autoptr (weft_actors) a = weft_actors_new (&f, &mesh, FALSE);

  (void) state;
  assert_int_equal (a->n, 8);
  assert_false (a->folded);
  for (uint32_t i = 0; i < a->n; i++) {
    assert_int_equal (a->rank[i], i);
    assert_int_equal (a->stands_for[i], 1);
  }
}

/* The peers of an actor are the actors of the next and of the previous stage. The last stage has no
 * next peer, and the first stage has no previous peer. */
static void
peers_are_the_neighbour_stages (void **state)
{
  struct weft_cluster c = made_cluster (4, 4);
  g_autoptr (weft_actors) a = fold (&c, weft_mesh_make (1, 1, 4, 4));

  (void) state;
  assert_int_equal (a->n, 4);
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal (a->peer[2 * i], i < 3 ? i + 1 : WEFT_NO_ACTOR);
    assert_int_equal (a->peer[2 * i + 1], i > 0 ? i - 1 : WEFT_NO_ACTOR);
  }
}

/* The embedding group sums the gradients of a tied embedding. Only the first and the last stage
 * are in such a group. */
static void
only_the_ends_are_in_embedding_groups (void **state)
{
  struct weft_cluster c = made_cluster (4, 4);
  g_autoptr (weft_actors) a = fold (&c, weft_mesh_make (1, 1, 4, 4));

  (void) state;
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t comm = a->comm_of[i * WEFT_N_GROUP + WEFT_GROUP_EMBD];
    assert_int_equal (comm == WEFT_NO_ACTOR, i == 1 || i == 2);
  }
  uint32_t comm = a->comm_of[WEFT_GROUP_EMBD];
  assert_int_equal (comm, a->comm_of[3 * WEFT_N_GROUP + WEFT_GROUP_EMBD]);
  assert_int_equal (a->comm[comm].n_actor, 2);
}

/* ------------------------------------------------------------------- loads */

/* Returns the bytes that an actor of stage `role` sends in a communication pattern. Different pairs
 * of role and pattern have different bytes, so that a mix-up is noticed. */
static double
bytes_of (uint32_t role, uint32_t pattern)
{
  return 1 + 17 * role + 1.25 * pattern * pattern;
}

/* Seconds for which each link is busy if every actor sends its bytes along its paths. The caller
 * frees the array. */
static double *
fill_links (const weft_actors *a)
{
  double *full = g_new0 (double, a->n_link + 1);

  for (uint32_t i = 0; i < a->n; i++)
    for (uint32_t p = 0; p < a->n_pattern; p++) {
      const struct weft_path *path = weft_actors_path (a, i, p);
      for (uint32_t l = 0; l < path->n; l++)
        full[path->link[l]] += bytes_of (a->role[i], p) / a->capacity[path->link[l]];
    }
  return full;
}

static int
by_value (const void *a, const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* Returns the loads of all links of a path, sorted. A link that the path crosses twice counts
 * once. */
static GArray *
fullness (const struct weft_path *path, const double *full)
{
  GArray *all = g_array_new (FALSE, FALSE, sizeof (double));

  for (uint32_t l = 0; l < path->n; l++) {
    gboolean again = FALSE;
    for (uint32_t before = 0; before < l; before++)
      again |= path->link[before] == path->link[l];
    if (!again)
      g_array_append_val (all, full[path->link[l]]);
  }
  g_array_sort (all, by_value);
  return all;
}

/* In a folded and in an unfolded simulation, every flow of every rank must cross links with the
 * same loads. Folding may merge two links of a route into one link with the same load. */
static void
assert_same_loads (const struct weft_cluster *c, struct weft_mesh mesh)
{
  struct weft_fabric f = weft_fabric_make (c);
  g_autoptr (weft_actors) folded = weft_actors_new (&f, &mesh, TRUE);
  g_autoptr (weft_actors) whole = weft_actors_new (&f, &mesh, FALSE);
  g_autofree double *folded_full = fill_links (folded), *whole_full = fill_links (whole);

  for (uint32_t rank = 0; rank < mesh.n_ranks; rank++)
    for (uint32_t p = 0; p < whole->n_pattern; p++) {
      const struct weft_path *one = weft_actors_path (whole, rank, p);
      const struct weft_path *many = weft_actors_path (folded, folded->actor_of[rank], p);
      assert_int_equal (one->exists, many->exists);
      g_autoptr (GArray) a = fullness (one, whole_full), b = fullness (many, folded_full);
      for (uint32_t i = 0, j = 0; i < a->len; i++) {
        while (j + 1 < b->len &&
               g_array_index (b, double, j) < g_array_index (a, double, i) * (1 - 1e-9))
          j++;
        assert_true (b->len > 0);
        assert_near (g_array_index (b, double, j), g_array_index (a, double, i));
      }
      if (a->len)
        assert_near (g_array_index (b, double, b->len - 1), g_array_index (a, double, a->len - 1));
    }
}

static void
classes_fill_links_as_their_ranks_do (void **state)
{
  static const uint32_t meshes[][4] = { { 1, 1, 32, 1 }, { 1, 1, 16, 2 }, { 2, 1, 8, 2 },
                                        { 1, 2, 4, 4 },  { 4, 1, 2, 4 },  { 1, 1, 4, 8 },
                                        { 2, 2, 1, 8 },  { 1, 1, 2, 16 } };
  struct weft_cluster clusters[] = { made_cluster (8, 4), deep_cluster (), deep_cluster () };

  (void) state;
  clusters[0].f.node_nics = 1;
  clusters[2].f.node_nics = 3;
  clusters[2].f.node_intra = WEFT_PCIE;
  clusters[2].f.fabric_nodes_per_unit = 3;
  for (size_t c = 0; c < G_N_ELEMENTS (clusters); c++)
    for (size_t i = 0; i < G_N_ELEMENTS (meshes); i++) {
      struct weft_mesh mesh =
          weft_mesh_make (meshes[i][0], meshes[i][1], meshes[i][2], meshes[i][3]);
      assert_same_loads (&clusters[c], mesh);
      n_actors (&clusters[c], mesh);
    }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (ids_count_the_links_of_each_kind),
  cmocka_unit_test (owners_are_spread_evenly),
  cmocka_unit_test (a_gpu_belongs_to_its_switch_nic_leaf_and_pod),
  cmocka_unit_test (oversubscription_divides_the_ports_up),
  cmocka_unit_test (gpus_of_a_node_meet_at_its_switch),
  cmocka_unit_test (gpus_without_nvlink_cross_pcie),
  cmocka_unit_test (ranks_of_one_machine_share_its_memory),
  cmocka_unit_test (one_rail_of_a_unit_stays_under_its_leaf),
  cmocka_unit_test (another_rail_is_across_the_spine),
  cmocka_unit_test (another_unit_is_across_the_spine),
  cmocka_unit_test (another_pod_is_across_the_core),
  cmocka_unit_test (wide_switches_are_no_links),
  cmocka_unit_test (copies_cross_memory_the_switch_and_pcie),
  cmocka_unit_test (a_flow_alone_gets_the_narrowest_link),
  cmocka_unit_test (a_symmetric_job_has_one_actor_a_stage),
  cmocka_unit_test (stages_that_share_a_node_still_fold),
  cmocka_unit_test (a_stage_that_ends_inside_a_node_does_not_fold),
  cmocka_unit_test (a_narrow_leaf_partly_covered_breaks_the_symmetry),
  cmocka_unit_test (latency_breaks_the_symmetry_of_transfers_but_not_of_rings),
  cmocka_unit_test (unfolded_keeps_every_rank),
  cmocka_unit_test (peers_are_the_neighbour_stages),
  cmocka_unit_test (only_the_ends_are_in_embedding_groups),
  cmocka_unit_test (classes_fill_links_as_their_ranks_do),
};

WEFT_TESTS (tests)
