#include "core/base/error.h"
#include "exec_sim/bridge.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <signal.h>
#include <string.h>

#define MAX_ENDS 20000
#define PORT 50e9
#define GIGA 1e9

struct end {
  uint64_t tag;
  double date;
};

/* The ends of flows and timers that the simulator reports, in the order of the reports. */
struct diary {
  unsigned n;
  struct end end[MAX_ENDS];
};

static void
note (void *user, uint64_t tag)
{
  struct diary *diary = user;

  if (diary->n < MAX_ENDS)
    diary->end[diary->n] = (struct end){ tag, weft_bridge_now () };
  diary->n++;
}

static void
begin (weft_bridge_done done, void *user)
{
  g_autoptr (GError) error = NULL;

  if (!weft_bridge_open (done, user, &error))
    fail_msg ("%s", error->message);
}

static void
run (void)
{
  g_autoptr (GError) error = NULL;

  if (!weft_bridge_run (&error))
    fail_msg ("%s", error->message);
}

static struct diary *
diary_open (void)
{
  struct diary *diary = g_new0 (struct diary, 1);

  begin (note, diary);
  return diary;
}

static void
diary_close (struct diary *diary)
{
  weft_bridge_close ();
  g_free (diary);
}

static double
date_of (const struct diary *diary, uint64_t tag)
{
  for (unsigned i = 0; i < diary->n; i++)
    if (diary->end[i].tag == tag)
      return diary->end[i].date;
  fail_msg ("%u never ended", (unsigned) tag);
  return 0;
}

static void
assert_near (double found, double wanted)
{
  if (fabs (found - wanted) > 1e-12 * fabs (wanted))
    fail_msg ("found %.17g, wanted %.17g", found, wanted);
}

static void
assert_order (const struct diary *diary, unsigned n, const uint64_t *tags)
{
  assert_int_equal (diary->n, n);
  for (unsigned i = 0; i < n; i++)
    assert_int_equal (diary->end[i].tag, tags[i]);
}

static void
flow2 (double bytes, uint32_t a, uint32_t b, double latency, uint64_t tag)
{
  const uint32_t links[] = { a, b };

  weft_bridge_flow (bytes, links, 2, latency, tag);
}

static void
a_flow_alone_costs_its_latency_and_its_bytes (void **state)
{
  struct diary *d = diary_open ();
  uint32_t up = weft_bridge_link (PORT), down = weft_bridge_link (2 * PORT);

  (void) state;
  flow2 (GIGA, up, down, 2e-6, 7);
  run ();
  assert_near (date_of (d, 7), GIGA / PORT + 2e-6);
  assert_int_equal (weft_bridge_activities (), 1);
  diary_close (d);
}

static void
flows_share_equally_whatever_their_latencies (void **state)
{
  /* Latencies of two flows over one link. The bytes of the first flow start `ahead` seconds before
   * those of the second. */
  const double near = 1e-6, far = 4e-6, ahead = far - near;
  const double near_ends = far + 2 * (GIGA / PORT - ahead);
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (PORT);

  (void) state;
  weft_bridge_flow (GIGA, &link, 1, near, 0);
  weft_bridge_flow (GIGA, &link, 1, far, 1);
  run ();
  assert_near (date_of (d, 0), near_ends);
  assert_near (date_of (d, 1), near_ends + ahead);
  diary_close (d);
}

/* The pace of a flow limits its rate. First test: the pace is a tenth of the link, so the other
 * flow gets nine tenths. Second test: two flows whose pace is half of the link, which each would
 * get without a pace. */
static void
a_paced_flow_moves_no_faster_than_its_pace (void **state)
{
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (PORT);

  (void) state;
  weft_bridge_paced_flow (GIGA, &link, 1, PORT / 10, 1e-6, 0);
  weft_bridge_flow (GIGA, &link, 1, 1e-6, 1);
  run ();
  assert_near (date_of (d, 0), 1e-6 + 10 * GIGA / PORT);
  assert_near (date_of (d, 1), 1e-6 + GIGA / PORT / 0.9);
  diary_close (d);
  d = diary_open ();
  link = weft_bridge_link (PORT);
  weft_bridge_paced_flow (GIGA, &link, 1, PORT / 2, 0, 0);
  weft_bridge_paced_flow (GIGA, &link, 1, INFINITY, 0, 1);
  run ();
  assert_near (date_of (d, 0), 2 * GIGA / PORT);
  assert_near (date_of (d, 1), 2 * GIGA / PORT);
  diary_close (d);
}

static void
the_longer_flow_gets_the_whole_link_when_the_shorter_ends (void **state)
{
  struct diary *d = diary_open ();
  uint32_t up = weft_bridge_link (PORT);

  (void) state;
  flow2 (GIGA, up, weft_bridge_link (PORT), 0, 0);
  flow2 (2 * GIGA, up, weft_bridge_link (PORT), 0, 1);
  run ();
  assert_near (date_of (d, 0), 2 * GIGA / PORT);
  assert_near (date_of (d, 1), 3 * GIGA / PORT);
  diary_close (d);
}

/* Max-min fair rates on three levels. Five flows, 0 to 4, share one link of 100 GB/s (the core) and
 * get 20 GB/s each. Flow 5 shares the port of flow 4 (50 GB/s), and gets the 30 GB/s that flow 4
 * does not use. Flow 6 shares a link of 80 GB/s with flow 5, and gets the 50 GB/s that flow 5 does
 * not use. Each flow has as many bytes as its rate sends in one second, so all flows end after one
 * second. */
static void
rates_are_max_min_over_three_levels (void **state)
{
  struct diary *d = diary_open ();
  uint32_t core = weft_bridge_link (100e9), wide = weft_bridge_link (80e9), port[5];

  (void) state;
  for (unsigned i = 0; i < 5; i++) {
    port[i] = weft_bridge_link (PORT);
    flow2 (20e9, port[i], core, 0, i);
  }
  flow2 (30e9, port[4], wide, 0, 5);
  weft_bridge_flow (50e9, &wide, 1, 0, 6);
  run ();
  for (unsigned i = 0; i < 7; i++)
    assert_near (date_of (d, i), 1);
  diary_close (d);
}

static void
a_link_listed_three_times_counts_three_times (void **state)
{
  const uint32_t thrice[] = { 0, 0, 0, 1 };
  struct diary *d = diary_open ();

  (void) state;
  weft_bridge_link (PORT);
  weft_bridge_link (PORT);
  weft_bridge_flow (GIGA, thrice, 4, 0, 0);
  run ();
  assert_near (date_of (d, 0), 3 * GIGA / PORT);
  weft_bridge_flow (GIGA, thrice, 4, 0, 1);
  weft_bridge_flow (GIGA, thrice, 1, 0, 2);
  run ();
  /* Both flows have the same rate r. The first crosses the link three times, so 3 r + r = PORT. */
  assert_near (date_of (d, 1), 7 * GIGA / PORT);
  assert_near (date_of (d, 2), 7 * GIGA / PORT);
  diary_close (d);
}

static void
senders_to_one_port_share_it (void **state)
{
  enum { N = 63 };
  struct diary *d = diary_open ();
  uint32_t down = weft_bridge_link (PORT);

  (void) state;
  for (unsigned i = 0; i < N; i++)
    flow2 (GIGA, weft_bridge_link (PORT), down, 5e-6, i);
  run ();
  for (unsigned i = 0; i < N; i++)
    assert_near (date_of (d, i), N * GIGA / PORT + 5e-6);
  diary_close (d);
}

static void
a_ring_all_reduce_takes_its_closed_form (void **state)
{
  const double bytes = 123456789, latency = 3e-6;

  (void) state;
  for (unsigned n = 2; n <= 64; n++) {
    struct diary *d = diary_open ();
    const double hop = 2.0 * (n - 1) / n * bytes;
    for (unsigned i = 0; i < 2 * n; i++)
      weft_bridge_link (PORT); /* rank i has link 2 i as uplink and link 2 i + 1 as downlink */
    for (unsigned i = 0; i < n; i++)
      flow2 (hop, 2 * i, 2 * ((i + 1) % n) + 1, latency * 2 * (n - 1), i);
    run ();
    assert_int_equal (d->n, n);
    for (unsigned i = 0; i < n; i++)
      assert_near (d->end[i].date, hop / PORT + latency * 2 * (n - 1));
    diary_close (d);
  }
}

static void
the_two_directions_do_not_share (void **state)
{
  struct diary *d = diary_open ();

  (void) state;
  for (unsigned i = 0; i < 4; i++)
    weft_bridge_link (PORT);
  flow2 (GIGA, 0, 3, 1e-6, 0);
  flow2 (GIGA, 2, 1, 1e-6, 1);
  run ();
  assert_near (date_of (d, 0), GIGA / PORT + 1e-6);
  assert_near (date_of (d, 1), GIGA / PORT + 1e-6);
  diary_close (d);
}

/* Two NICs of 50 GB/s behind a spine of 60 GB/s: each flow gets 30 GB/s while both run; then the
 * NIC limits the remaining flow. */
static void
a_shared_uplink_binds_only_while_it_is_shared (void **state)
{
  const double both = 3e9 / 30e9;
  struct diary *d = diary_open ();
  uint32_t spine = weft_bridge_link (60e9);

  (void) state;
  flow2 (3e9, weft_bridge_link (PORT), spine, 0, 0);
  flow2 (8e9, weft_bridge_link (PORT), spine, 0, 1);
  run ();
  assert_near (date_of (d, 0), both);
  assert_near (date_of (d, 1), both + (8e9 - 30e9 * both) / PORT);
  diary_close (d);
}

static void
what_shares_nothing_takes_its_latency (void **state)
{
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (PORT);

  (void) state;
  weft_bridge_flow (GIGA, NULL, 0, 3e-6, 0);
  weft_bridge_flow (0, &link, 1, 4e-6, 1);
  weft_bridge_flow (0, NULL, 0, 0, 2);
  run ();
  assert_true (date_of (d, 0) == 3e-6);
  assert_true (date_of (d, 1) == 4e-6);
  assert_true (date_of (d, 2) == 0);
  diary_close (d);
}

static void
parts_of_bytes_count (void **state)
{
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (1);

  (void) state;
  weft_bridge_flow (2.5, &link, 1, 0, 0);
  run ();
  assert_near (date_of (d, 0), 2.5);
  diary_close (d);
}

static void
large_flows_end_too (void **state)
{
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (1e9);

  (void) state;
  weft_bridge_flow (0x1p47, &link, 1, 0.1, 0);
  weft_bridge_after (0.3, 1);
  run ();
  assert_near (date_of (d, 0), 0x1p47 / 1e9 + 0.1);
  diary_close (d);
}

static void
timers_of_one_date_come_in_the_order_of_their_creation (void **state)
{
  static const double delay[] = { 2, 1, 2, 1, 0, 2, 1, 0 };
  static const uint64_t order[] = { 4, 7, 1, 3, 6, 0, 2, 5 };
  struct diary *d = diary_open ();

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (delay); i++)
    weft_bridge_after (delay[i], i);
  run ();
  assert_order (d, G_N_ELEMENTS (order), order);
  for (unsigned i = 0; i < d->n; i++)
    assert_true (d->end[i].date == delay[order[i]]);
  diary_close (d);
}

/* Timer 3 is created last, and flow 0 starts after flow 2, but all end at the same time. Timers
 * must be reported first, then flows in the order of their creation. */
static void
timers_come_before_flows_and_flows_in_the_order_of_their_creation (void **state)
{
  static const uint64_t order[] = { 3, 0, 1, 2 };
  struct diary *d = diary_open ();
  uint32_t link[3];

  (void) state;
  for (unsigned i = 0; i < 3; i++)
    link[i] = weft_bridge_link (1);
  weft_bridge_flow (1, &link[0], 1, 3, 0);
  weft_bridge_flow (2, &link[1], 1, 2, 1);
  weft_bridge_flow (4, &link[2], 1, 0, 2);
  weft_bridge_after (4, 3);
  run ();
  assert_order (d, G_N_ELEMENTS (order), order);
  for (unsigned i = 0; i < d->n; i++)
    assert_true (d->end[i].date == 4);
  diary_close (d);
}

/* A random workload. The end of each flow or timer starts the next one, whose size depends on the
 * order of the ends so far. So any difference in rounding changes the result. */
struct game {
  struct diary diary;
  unsigned left;
  uint32_t link[16];
};

static void
play (void *user, uint64_t tag)
{
  struct game *game = user;
  const uint64_t next = (tag * 2862933555777941757u + 3037000493u) % 1000003;

  note (&game->diary, tag);
  if (game->left == 0)
    return;
  game->left--;
  if (next % 3 == 0)
    weft_bridge_after (1e-7 * (double) (next % 101), next);
  else
    flow2 ((double) (next * 13), game->link[next % 16], game->link[next / 16 % 16],
           1e-7 * (double) (next % 7), next);
}

static struct game *
game_play (double capacity)
{
  struct game *game = g_new0 (struct game, 1);

  begin (play, game);
  game->left = 4000;
  for (unsigned i = 0; i < 16; i++)
    game->link[i] = weft_bridge_link (capacity * (1 + 0.1 * i));
  for (unsigned i = 0; i < 32; i++)
    weft_bridge_after (1e-7 * i, i);
  run ();
  weft_bridge_close ();
  return game;
}

static void
assert_same_game (const struct game *a, const struct game *b)
{
  assert_int_equal (a->diary.n, 4032);
  assert_int_equal (b->diary.n, 4032);
  for (unsigned i = 0; i < a->diary.n; i++) {
    assert_int_equal (a->diary.end[i].tag, b->diary.end[i].tag);
    assert_true (a->diary.end[i].date == b->diary.end[i].date);
  }
}

static void
every_simulation_of_a_process_gives_the_same_bits (void **state)
{
  g_autofree struct game *first = game_play (PORT);
  g_autofree struct game *other = game_play (PORT / 3);

  (void) state;
  assert_false (first->diary.end[4000].date == other->diary.end[4000].date);
  for (unsigned i = 0; i < 5; i++) {
    g_autofree struct game *again = game_play (PORT);
    assert_same_game (first, again);
  }
}

/* A simulation must end at the same date with and without the two shortcuts of
 * weft_bridge_shortcuts(). Only a rounding error is allowed: with the shortcuts SimGrid's clock
 * starts at 0; without the shortcuts SimGrid's clock starts at the end of the previous simulation,
 * and the bridge subtracts the start date from every date. */
static void
the_shortcuts_change_no_result (void **state)
{
  double ends[2];

  (void) state;
  for (unsigned k = 0; k < 2; k++) {
    weft_bridge_shortcuts (k == 0);
    struct diary *d = diary_open ();
    for (unsigned i = 0; i < 200; i++)
      flow2 (1e6 * (i + 1), weft_bridge_link (PORT), i ? i - 1 : 0, 1e-6, i);
    run ();
    assert_int_equal (d->n, 200);
    ends[k] = weft_bridge_now ();
    diary_close (d);
  }
  weft_bridge_shortcuts (TRUE);
  assert_true (fabs (ends[0] - ends[1]) < 1e-9 * ends[0]);
}

static void
links_start_anew_with_every_simulation (void **state)
{
  (void) state;
  for (unsigned k = 1; k < 4; k++) {
    struct diary *d = diary_open ();
    for (uint32_t i = 0; i < 3 * k; i++)
      assert_int_equal (weft_bridge_link (1e9 * (i + k)), i);
    for (uint32_t i = 0; i < 3 * k; i++)
      weft_bridge_flow (GIGA, &i, 1, 0, i);
    run ();
    for (unsigned i = 0; i < 3 * k; i++)
      assert_near (date_of (d, i), 1.0 / (i + k));
    diary_close (d);
  }
}

/* Called when a flow ends: makes a link of half the capacity, and starts the next flow on this
 * link. */
static void
halve (void *user, uint64_t tag)
{
  double *end = user;

  *end = weft_bridge_now ();
  if (tag == 0)
    return;
  uint32_t link = weft_bridge_link (ldexp (1, (int) tag - 10));
  weft_bridge_flow (1, &link, 1, 0, tag - 1);
}

static void
callbacks_may_make_links_and_flows (void **state)
{
  double end = 0;

  (void) state;
  begin (halve, &end);
  weft_bridge_after (0, 10);
  run ();
  weft_bridge_close ();
  assert_near (end, 1023);
}

struct clockwork {
  double sum;
  unsigned n_wrong;
};

static void
tick (void *user, uint64_t tag)
{
  struct clockwork *clockwork = user;

  clockwork->sum += 0.1;
  clockwork->n_wrong += weft_bridge_now () != clockwork->sum;
  if (tag > 0)
    weft_bridge_after (0.1, tag - 1);
}

static void
dates_of_timers_are_plain_sums (void **state)
{
  struct clockwork clockwork = { 0, 0 };

  (void) state;
  begin (tick, &clockwork);
  weft_bridge_after (0.1, 9999);
  run ();
  weft_bridge_close ();
  assert_int_equal (lround (clockwork.sum), 1000);
  assert_int_equal (clockwork.n_wrong, 0);
}

static void
ten_thousand_flows_at_once_all_end (void **state)
{
  enum { N = 10000 };
  struct diary *d = diary_open ();

  (void) state;
  for (uint32_t i = 0; i < N; i++) {
    uint32_t link = weft_bridge_link (PORT);
    weft_bridge_flow (GIGA, &link, 1, 1e-9 * (N - i), i);
  }
  run ();
  assert_int_equal (d->n, N);
  for (unsigned i = 0; i < N; i++) {
    assert_int_equal (d->end[i].tag, N - 1 - i);
    assert_near (d->end[i].date, GIGA / PORT + 1e-9 * (i + 1));
  }
  diary_close (d);
}

static void
a_closed_simulation_is_never_heard_again (void **state)
{
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (PORT);

  (void) state;
  weft_bridge_flow (GIGA, &link, 1, 0, 0);
  weft_bridge_after (1, 1);
  weft_bridge_close ();
  assert_int_equal (d->n, 0);
  begin (note, d);
  assert_int_equal (weft_bridge_activities (), 0);
  assert_true (weft_bridge_now () == 0);
  run ();
  assert_int_equal (d->n, 0);
  weft_bridge_after (0.25, 2);
  run ();
  assert_true (date_of (d, 2) == 0.25);
  diary_close (d);
}

static void
only_one_simulation_is_open_at_a_time (void **state)
{
  g_autoptr (GError) error = NULL;
  struct diary *d = diary_open ();

  (void) state;
  assert_false (weft_bridge_open (note, d, &error));
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_RUN));
  assert_non_null (strstr (error->message, "open already"));
  diary_close (d);
  weft_bridge_close ();
}

static void
a_flow_that_is_too_large_for_simgrid_is_a_failed_run (void **state)
{
  g_autoptr (GError) error = NULL;
  struct diary *d = diary_open ();
  uint32_t link = weft_bridge_link (PORT);

  (void) state;
  weft_bridge_flow (0x1p48, &link, 1, 0, 0);
  assert_false (weft_bridge_run (&error));
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_RUN));
  assert_non_null (strstr (error->message, "bytes"));
  diary_close (d);
  d = diary_open ();
  run ();
  diary_close (d);
}

/* Watts of the meters of the tests. */
static const double watts[] = { 100, 300, 700.5 };

static void
switch_meter (void *user, uint64_t tag)
{
  (void) user;
  if (tag != 9)
    weft_bridge_meter_set ((uint32_t) tag / 4, tag % 4);
}

/* Two meters, of which one changes after 2 s and 5 s, beside a flow of 10 s. Twice in one process:
 * the second simulation begins at date 0 again. */
static void
meters_sum_watts_times_seconds (void **state)
{
  (void) state;
  for (int again = 0; again < 2; again++) {
    begin (switch_meter, NULL);
    uint32_t link = weft_bridge_link (PORT), one = weft_bridge_meter (watts, 3),
             other = weft_bridge_meter (watts, 3);
    weft_bridge_flow (10 * PORT, &link, 1, 0, 9);
    weft_bridge_after (2, 4 * one + 2);
    weft_bridge_after (5, 4 * one + 1);
    run ();
    assert_near (weft_bridge_meter_joules (one), 2 * 100 + 3 * 700.5 + 5 * 300);
    assert_near (weft_bridge_meter_joules (other), 1000);
    weft_bridge_close ();
  }
}

static void
ctrl_c_stays_ours (void **state)
{
  struct sigaction action;

  (void) state;
  diary_close (diary_open ());
  sigaction (SIGINT, NULL, &action);
  assert_true (action.sa_handler == SIG_DFL);
}

static void
the_version_is_that_of_the_library (void **state)
{
  const char *version = weft_bridge_version ();

  (void) state;
  assert_true (g_ascii_isdigit (version[0]));
  assert_non_null (strchr (version, '.'));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_flow_alone_costs_its_latency_and_its_bytes),
  cmocka_unit_test (flows_share_equally_whatever_their_latencies),
  cmocka_unit_test (a_paced_flow_moves_no_faster_than_its_pace),
  cmocka_unit_test (the_longer_flow_gets_the_whole_link_when_the_shorter_ends),
  cmocka_unit_test (rates_are_max_min_over_three_levels),
  cmocka_unit_test (a_link_listed_three_times_counts_three_times),
  cmocka_unit_test (senders_to_one_port_share_it),
  cmocka_unit_test (a_ring_all_reduce_takes_its_closed_form),
  cmocka_unit_test (the_two_directions_do_not_share),
  cmocka_unit_test (a_shared_uplink_binds_only_while_it_is_shared),
  cmocka_unit_test (what_shares_nothing_takes_its_latency),
  cmocka_unit_test (parts_of_bytes_count),
  cmocka_unit_test (large_flows_end_too),
  cmocka_unit_test (timers_of_one_date_come_in_the_order_of_their_creation),
  cmocka_unit_test (timers_come_before_flows_and_flows_in_the_order_of_their_creation),
  cmocka_unit_test (every_simulation_of_a_process_gives_the_same_bits),
  cmocka_unit_test (the_shortcuts_change_no_result),
  cmocka_unit_test (links_start_anew_with_every_simulation),
  cmocka_unit_test (callbacks_may_make_links_and_flows),
  cmocka_unit_test (dates_of_timers_are_plain_sums),
  cmocka_unit_test (ten_thousand_flows_at_once_all_end),
  cmocka_unit_test (a_closed_simulation_is_never_heard_again),
  cmocka_unit_test (only_one_simulation_is_open_at_a_time),
  cmocka_unit_test (a_flow_that_is_too_large_for_simgrid_is_a_failed_run),
  cmocka_unit_test (meters_sum_watts_times_seconds),
  cmocka_unit_test (ctrl_c_stays_ours),
  cmocka_unit_test (the_version_is_that_of_the_library),
};

WEFT_TESTS (tests)
