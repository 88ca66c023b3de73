/* weft size: the sizes that are searched, and what follows from a search. */
#include "core/base/error.h"
#include "planner/size_points.h"
#include "tests/runner/runner.h"
#include <math.h>

static const char prices[] =
    "[all]\ngpu_hour_price = 2\ngpu_power = 500\npue = 1.5\nkwh_co2 = 0.4\n"
    "kwh_price = 0.1\n";

static weft_settings *
settings_of (void)
{
  weft_settings *settings = weft_settings_new ();

  weft_settings_add (settings, "model", "config", "llama-nano", "--model");
  weft_settings_add (settings, "train", "micro_batch_size", "1", "--micro-batch-size");
  return settings;
}

static const struct weft_size_options asked = { .tokens = 1e9,
                                                .days = NAN,
                                                .budget = NAN,
                                                .batch_tokens = 16 * 128,
                                                .most_gpus = 64,
                                                .refinements = 1,
                                                .finalists = 1,
                                                .n_workers = 1,
                                                .seed = 1 };

static weft_size *
size_of (const char *site_text, const char *const *topologies,
         const struct weft_size_options *options)
{
  g_autoptr (weft_settings) settings = settings_of ();
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_site) site = weft_site_parse (site_text, "site.ini", &error);
  weft_size *size = site ? weft_size_run (settings, topologies, site, options, &error) : NULL;

  if (!size)
    fail_msg ("%s", error->message);
  return size;
}

static const char *const h100[] = { "dgx-h100", NULL };

static weft_size *
size_at (const uint32_t *gpus, uint32_t n)
{
  struct weft_size_options options = asked;

  options.gpus = gpus;
  options.n_gpus = n;
  return size_of (prices, h100, &options);
}

static void
assert_near (double found, double wanted)
{
  if (!(fabs (found - wanted) <= 1e-9 * fabs (wanted)))
    fail_msg ("found %.17g, wanted %.17g", found, wanted);
}

static void
days_and_costs_follow_from_the_step (void **state)
{
  static const uint32_t gpus[] = { 2 };
  g_autoptr (weft_size) size = size_at (gpus, 1);
  const struct weft_size_point *p = weft_size_at (size->point, 0);
  double hours = 488282 * p->found.step / 3600; /* 1e9 tokens in steps of 16 sequences of 128 */

  (void) state;
  assert_int_equal (p->found.fate, WEFT_SIZE_FOUND);
  assert_int_equal (p->batch, 16);
  assert_true (p->found.step > 0 && size->best == 0);
  assert_near (p->days, hours / 24);
  assert_near (p->gpu_hours, 2 * hours);
  assert_near (p->kwh, 2 * 0.5 * 1.5 * hours);
  assert_near (p->co2_kg, 0.4 * p->kwh);
  assert_near (p->cost, 2 * p->gpu_hours + 0.1 * p->kwh);
}

static void
failures_lengthen_the_run_and_spares_cost (void **state)
{
  static const uint32_t gpus[] = { 16 };
  struct weft_size_options options = asked;
  options.gpus = gpus;
  options.n_gpus = 1;
  g_autoptr (weft_size) size =
      size_of ("[all]\ngpu_mtbf_hours = 100\nstorage_bandwidth = 1GB/s\nrestart = 600\n"
               "repair_hours = 1\nspares = 0.5\ngpu_hour_price = 1\n",
               h100, &options);
  const struct weft_size_point *p = weft_size_at (size->point, 0);

  (void) state;
  assert_true (p->goodput.goodput < 0.99);
  assert_near (p->days, p->steps * p->found.step / p->goodput.goodput / 86400);
  assert_near (p->cost, 24 * p->days * (16 + 8));
}

static void
a_cluster_that_always_fails_is_no_answer (void **state)
{
  static const uint32_t gpus[] = { 8 };
  struct weft_size_options options = asked;
  options.gpus = gpus;
  options.n_gpus = 1;
  g_autoptr (weft_size) size =
      size_of ("[all]\ngpu_mtbf_hours = 0.001\nrestart = 600\n", h100, &options);

  (void) state;
  assert_int_equal (weft_size_at (size->point, 0)->found.fate, WEFT_SIZE_FAILING);
  assert_int_equal (size->best, -1);
}

static void
a_deadline_chooses_the_sizes_around_it (void **state)
{
  static const uint32_t gpus[] = { 2, 4 };
  g_autoptr (weft_size) known = size_at (gpus, 2);
  double slow = weft_size_at (known->point, 0)->days, fast = weft_size_at (known->point, 1)->days;
  struct weft_size_options options = asked;

  (void) state;
  assert_true (fast < slow);
  options.days = (slow + fast) / 2;
  g_autoptr (weft_size) size = size_of (prices, h100, &options);
  const struct weft_size_point *best = weft_size_at (size->point, (unsigned) size->best);
  uint32_t searched[5] = { 0 };
  for (unsigned i = 0; i < size->point->len; i++)
    if (weft_size_at (size->point, i)->gpus < 5)
      searched[weft_size_at (size->point, i)->gpus] = 1;
  assert_int_equal (size->topology[0].fewest, 1);
  assert_true (searched[2] && searched[3] && searched[4]); /* 3: between miss and hit */
  assert_true (best->days <= options.days);
  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (p->found.fate == WEFT_SIZE_FOUND && p->days <= options.days)
      assert_true (p->cost >= best->cost);
  }
}

static void
without_a_deadline_sizes_double_from_the_fewest (void **state)
{
  g_autoptr (weft_size) size = size_of (prices, h100, &asked);

  (void) state;
  assert_int_equal (size->point->len, 7);
  for (unsigned i = 0; i < 7; i++)
    assert_int_equal (weft_size_at (size->point, i)->gpus, 1 << i);
}

static void
a_point_is_on_the_front_unless_another_beats_it (void **state)
{
  static const uint32_t gpus[] = { 1, 2, 4, 8, 16 };
  g_autoptr (weft_size) size = size_at (gpus, 5);

  (void) state;
  for (unsigned i = 0; i < 5; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    gboolean beaten = FALSE;
    for (unsigned k = 0; k < 5; k++) {
      const struct weft_size_point *q = weft_size_at (size->point, k);
      beaten |= q->days <= p->days && q->cost <= p->cost && q != p;
    }
    assert_int_equal (p->front, !beaten);
  }
}

static void
a_budget_takes_the_fastest_that_it_pays (void **state)
{
  static const uint32_t gpus[] = { 1, 2, 4, 8 };
  g_autoptr (weft_size) known = size_at (gpus, 4);
  struct weft_size_options options = asked;
  double most = 0;

  (void) state;
  options.gpus = gpus;
  options.n_gpus = 4;
  for (unsigned i = 0; i < 4; i++)
    most = fmax (most, weft_size_at (known->point, i)->cost);
  options.budget = most * 0.999;
  g_autoptr (weft_size) size = size_of (prices, h100, &options);
  const struct weft_size_point *best = weft_size_at (size->point, (unsigned) size->best);
  assert_true (best->cost <= options.budget);
  for (unsigned i = 0; i < 4; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (p->cost <= options.budget)
      assert_true (p->days >= best->days);
  }
  options.budget = 0;
  g_autoptr (weft_size) none = size_of (prices, h100, &options);
  assert_int_equal (none->best, -1);
}

static void
processes_give_the_same_answer_as_one (void **state)
{
  static const uint32_t gpus[] = { 1, 2, 8 };
  g_autoptr (weft_size) one = size_at (gpus, 3);
  struct weft_size_options options = asked;
  options.gpus = gpus;
  options.n_gpus = 3;
  options.n_workers = 2;
  g_autoptr (weft_size) two = size_of (prices, h100, &options);

  (void) state;
  for (unsigned i = 0; i < 3; i++) {
    const struct weft_size_point *a = weft_size_at (one->point, i),
                                 *b = weft_size_at (two->point, i);
    assert_true (a->found.step == b->found.step && a->cost == b->cost);
    assert_memory_equal (&a->found.choice, &b->found.choice, sizeof a->found.choice);
  }
}

static gboolean
stop_at_once (void *user)
{
  (void) user;
  return TRUE;
}

static void
an_interrupted_search_returns_what_is_known (void **state)
{
  static const uint32_t gpus[] = { 1, 2 };
  struct weft_size_options options = asked;
  options.gpus = gpus;
  options.n_gpus = 2;
  options.stop = stop_at_once;
  g_autoptr (weft_size) size = size_of (prices, h100, &options);

  (void) state;
  assert_true (size->stopped);
  assert_int_equal (size->best, -1);
  assert_int_equal (weft_size_at (size->point, 1)->found.fate, WEFT_SIZE_OPEN);
}

static void
other_batches_keep_the_strategy (void **state)
{
  static const uint32_t gpus[] = { 2 };
  g_autoptr (weft_size) size = size_at (gpus, 1);
  const struct weft_size_point *best = weft_size_at (size->point, 0);

  (void) state;
  assert_true (size->batches->len >= 2);
  for (unsigned i = 0; i < size->batches->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->batches, i);
    assert_true (p->batch != best->batch);
    assert_true ((p->batch < best->batch) == (p->found.step < best->found.step));
    assert_memory_equal (&p->found.choice, &best->found.choice, sizeof p->found.choice);
  }
}

static void
a_size_that_no_cluster_has_is_refused_with_a_reason (void **state)
{
  static const uint32_t gpus[] = { 12, 100000 };
  g_autoptr (weft_size) size = size_at (gpus, 2);

  (void) state;
  assert_int_equal (weft_size_at (size->point, 0)->gpus, 16); /* whole nodes */
  assert_int_equal (weft_size_at (size->point, 1)->found.fate, WEFT_SIZE_REFUSED);
  assert_true (*weft_size_at (size->point, 1)->found.why != '\0');
}

static void
batches_suit_the_number_of_gpus (void **state)
{
  (void) state;
  assert_int_equal (weft_size_batch (4e6, 8192, 512), 512);
  assert_int_equal (weft_size_batch (4e6, 8192, 768), 480);
  assert_int_equal (weft_size_batch (4e6, 8192, 72), 504);
  assert_int_equal (weft_size_batch (10, 8192, 8), 1);
  for (uint32_t gpus = 1; gpus < 100; gpus++) {
    double wanted = 4e6 / 8192;
    int64_t batch = weft_size_batch (4e6, 8192, gpus);
    uint32_t odd = gpus;
    while (odd % 2 == 0)
      odd /= 2;
    assert_int_equal (batch % odd, 0);
    assert_true (fabs ((double) batch - wanted) <= wanted / 8 + odd / 2.0);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (days_and_costs_follow_from_the_step),
  cmocka_unit_test (failures_lengthen_the_run_and_spares_cost),
  cmocka_unit_test (a_cluster_that_always_fails_is_no_answer),
  cmocka_unit_test (a_deadline_chooses_the_sizes_around_it),
  cmocka_unit_test (without_a_deadline_sizes_double_from_the_fewest),
  cmocka_unit_test (a_point_is_on_the_front_unless_another_beats_it),
  cmocka_unit_test (a_budget_takes_the_fastest_that_it_pays),
  cmocka_unit_test (processes_give_the_same_answer_as_one),
  cmocka_unit_test (an_interrupted_search_returns_what_is_known),
  cmocka_unit_test (other_batches_keep_the_strategy),
  cmocka_unit_test (a_size_that_no_cluster_has_is_refused_with_a_reason),
  cmocka_unit_test (batches_suit_the_number_of_gpus),
};

WEFT_TESTS (tests)
