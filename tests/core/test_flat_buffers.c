/* Models with several flat gradient buffers, and buckets that are launched together. The
 * expected tables were computed by hand from the rules of Megatron-Core
 * (param_and_grad_buffer.py: _ParamAndGradBuffer, partition_buckets), as stated in layout.h. */
#include "core/program/layout.h"
#include "tests/made/nano.h"
#include "tests/made/own.h"
#include "tests/runner/runner.h"

/* Parameters of the test's model: a tied embedding, two layers of a matrix and a bias each, and a
 * norm. The layers' matrices are in flat buffer 1, all other parameters in flat buffer 0. */
static const struct weft_layout_param model[] = {
  { 1000, TRUE, WEFT_NO_UNIT, 10, 0 },
  { 300, FALSE, 0, 10, 1 },
  { 10, FALSE, 0, 1, 0 },
  { 300, FALSE, 1, 10, 1 },
  { 10, FALSE, 1, 1, 0 },
  { 7, FALSE, WEFT_NO_UNIT, 1, 0 },
};

static void
assert_buckets (const struct weft_layout *l, const struct weft_bucket *wanted, uint32_t n)
{
  assert_int_equal (l->n_bucket, n);
  for (uint32_t k = 0; k < n; k++) {
    assert_int_equal (l->bucket[k].start, wanted[k].start);
    assert_int_equal (l->bucket[k].end, wanted[k].end);
    assert_int_equal (l->bucket[k].unpadded, wanted[k].unpadded);
    assert_int_equal (l->bucket[k].buffer, wanted[k].buffer);
  }
}

/* Asserts which buckets are launched together. `wanted` lists the bucket numbers of each launch,
 * and ends each launch with a bar: "0 1 | 2 | ". */
static void
assert_groups (struct weft_layout *l, enum weft_bucket_launch launch, const char *wanted)
{
  g_autoptr (GString) text = g_string_new (NULL);

  weft_layout_group (l, &(const struct weft_layout_launch){ launch, 1 }, 1, model);
  for (uint32_t g = 0; g < l->n_group; g++) {
    for (uint32_t i = 0; i < l->group[g].n; i++) {
      uint32_t k = l->bucket_of[l->group[g].first + i];
      assert_int_equal (l->bucket[k].group, g);
      g_string_append_printf (text, "%u ", k);
    }
    g_string_append (text, "| ");
  }
  assert_string_equal (text->str, wanted);
  g_clear_pointer (&l->group, g_free);
  g_clear_pointer (&l->bucket_of, g_free);
  l->n_group = 0;
}

static void
every_buffer_is_laid_out_by_itself_and_buckets_are_numbered_through (void **state)
{
  static const uint64_t start[] = { 256, 1664, 128, 1280, 64, 0 };
  static const struct weft_bucket wanted[] = { { .start = 0, .end = 256, .unpadded = 192 },
                                               { .start = 256, .end = 1280, .unpadded = 1000 },
                                               { 1280, 1664, 300, 1, 0 },
                                               { 1664, 2048, 300, 1, 0 } };
  struct weft_layout_rule rule = { .threshold = 300, .group = 4, .sharded = TRUE };
  struct weft_layout l;

  (void) state;
  weft_layout_init (&l, &rule, model, G_N_ELEMENTS (model));
  assert_buckets (&l, wanted, 4);
  for (uint32_t i = 0; i < G_N_ELEMENTS (model); i++)
    assert_int_equal (l.place[i].start, start[i]);
  assert_int_equal (l.n_buffer, 2);
  assert_int_equal (weft_layout_numel (&l, 0), 1280);
  assert_int_equal (weft_layout_numel (&l, 1), 768);
  assert_groups (&l, WEFT_LAUNCH_EACH, "0 | 1 | 2 | 3 | ");
  assert_groups (&l, WEFT_LAUNCH_ALL, "0 1 2 3 | ");
  weft_layout_release (&l);
}

static void
the_last_bucket_that_is_apart_takes_all_other_buckets_along (void **state)
{
  struct weft_layout_rule rule = { .threshold = 300, .group = 4, .sharded = TRUE };
  struct weft_layout l;

  (void) state;
  weft_layout_init (&l, &rule, model, G_N_ELEMENTS (model));
  assert_groups (&l, WEFT_LAUNCH_APART, "2 | 0 1 3 | ");
  weft_layout_release (&l);
  rule.threshold = WEFT_BUCKET_INFINITE;
  weft_layout_init (&l, &rule, model, G_N_ELEMENTS (model));
  assert_groups (&l, WEFT_LAUNCH_APART, "0 1 2 | ");
  weft_layout_release (&l);
}

/* Gradients that are sharded over two ranks: buckets end at multiples of 2 x the row length. The
 * buckets of a layer are launched together, whatever buffers they are in. */
static void
the_buckets_of_a_unit_go_together_whatever_buffers_they_are_in (void **state)
{
  static const struct weft_bucket wanted[] = {
    { .start = 0, .end = 1000, .unpadded = 1000 },
    { .start = 1000, .end = 1010, .unpadded = 10 },
    { .start = 1010, .end = 1020, .unpadded = 10 },
    { .start = 1020, .end = 1028, .unpadded = 7 },
    { 1028, 1328, 300, 1, 0 },
    { 1328, 1628, 300, 1, 0 },
  };
  struct weft_layout_rule rule = { .threshold = 5000, .group = 2, .sharded = TRUE };
  struct weft_layout l;

  (void) state;
  weft_layout_units_init (&l, &rule, model, G_N_ELEMENTS (model));
  assert_buckets (&l, wanted, 6);
  assert_groups (&l, WEFT_LAUNCH_UNITS, "0 | 1 4 | 2 5 | 3 | ");
  weft_layout_release (&l);
}

/* ------------------------------------------------------------- launches */

#define TOGETHER "--disable-bucketing", "true"

/* disable_bucketing: the tied embedding still has a bucket of its own, so there are two buckets.
 * Both are reduced in one launch, and gathered in one launch. */
static void
disable_bucketing_launches_all_buckets_as_one (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, TOGETHER, NULL);
  static const enum weft_op_kind kinds[] = { WEFT_OP_REDUCE_SCATTER, WEFT_OP_ALL_GATHER };
  static const char *const names[] = { "bucket", "gather" };
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (n_buckets (p), 2);
  for (int i = 0; i < 2; i++) {
    uint32_t first = named (p, kinds[i], names[i], 0), second = named (p, kinds[i], names[i], 1);
    assert_int_equal (p->op[first].flags & WEFT_OP_GROUPED, 0);
    assert_int_equal (p->op[second].flags & WEFT_OP_GROUPED, WEFT_OP_GROUPED);
    assert_int_equal (p->pos[second], p->pos[first] + 1);
    assert_int_equal (weft_program_group_end (p, WEFT_LANE_DP, p->pos[first]), p->pos[second] + 1);
  }
  uint32_t last = WEFT_NO_OP;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_EMBED_BWD)
      last = op;
  assert_true (comes_after (p, last, named (p, WEFT_OP_REDUCE_SCATTER, "bucket", 0)));
}

/* The two reduce-scatters of one launch begin and end together. They take as long as a single
 * reduce-scatter of the bytes of both. */
static void
a_launch_takes_as_long_as_one_collective_of_all_its_bytes (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, TOGETHER, NULL);
  const struct weft_exec_ops *executors[] = { &weft_exec_clock, &weft_exec_sim };
  const weft_program *p = plan->role[0];
  uint32_t first = named (p, WEFT_OP_REDUCE_SCATTER, "bucket", 0);
  uint32_t second = named (p, WEFT_OP_REDUCE_SCATTER, "bucket", 1);
  struct weft_group group = weft_mesh_group (&plan->mesh, 0, WEFT_GROUP_DP);
  struct weft_shape all = *weft_op_shape (p, first);
  struct weft_coll_shape where;

  (void) state;
  all.dim[0] += elements (p, second);
  assert_int_equal (weft_program_launch_shape (p, second).dim[0], all.dim[0]);
  weft_coll_shape_init (&where, &plan->fabric, &group);
  double seconds = weft_plan_traffic (plan, &where, WEFT_OP_REDUCE_SCATTER, &all).seconds;
  weft_coll_shape_release (&where);
  assert_float_equal (plan->seconds[0][first] + plan->seconds[0][second], seconds, 1e-12);
  for (int i = 0; i < 2; i++) {
    struct weft_exec_options options = { .own = made_own (executors[i], "unfolded") };
    g_autoptr (weft_timeline) t = weft_exec_run (executors[i], plan, &options, NULL);
    for (uint32_t row = 0; row < t->n; row++) {
      assert_true (t->begin[row][first] == t->begin[row][second]);
      assert_true (t->end[row][first] == t->end[row][second]);
      assert_true (t->end[row][first] - t->begin[row][first] >= seconds * (1 - 1e-9));
    }
  }
}

/* With reduce_scatter_with_fp32_accumulation, each rank sums its part of a bucket itself, after an
 * all-to-all. The buckets of a layer are then not launched together. */
static void
sums_at_the_owner_stay_by_themselves (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (OVERLAP, SHARDED, TOGETHER, "--reduce-scatter-with-fp32-accumulation", "true", NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].lane == WEFT_LANE_DP)
      assert_int_equal (p->op[op].flags & WEFT_OP_GROUPED, 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_buffer_is_laid_out_by_itself_and_buckets_are_numbered_through),
  cmocka_unit_test (the_last_bucket_that_is_apart_takes_all_other_buckets_along),
  cmocka_unit_test (the_buckets_of_a_unit_go_together_whatever_buffers_they_are_in),
  cmocka_unit_test (disable_bucketing_launches_all_buckets_as_one),
  cmocka_unit_test (a_launch_takes_as_long_as_one_collective_of_all_its_bytes),
  cmocka_unit_test (sums_at_the_owner_stay_by_themselves),
};

WEFT_TESTS (tests)
