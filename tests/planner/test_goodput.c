/* Goodput: the closed forms against each other, against simulated runs, and against a numeric
 * search of the best interval. */
#include "core/base/error.h"
#include "planner/goodput.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* 16,384 GPUs with one failure in 50,700 GPU-hours, checkpoints of a minute, restarts of ten. */
static const struct weft_failures large = {
  .mtbf = 11136, .write = 60, .stop = 60, .restart = 600, .step = 1e-3
};

static void
assert_near (double found, double wanted, double fraction)
{
  if (!(fabs (found - wanted) <= fraction * fabs (wanted)))
    fail_msg ("found %.9g, wanted %.9g within %g", found, wanted, fraction);
}

static double
goodput_at (struct weft_failures f, double interval)
{
  double seconds = f.mtbf * exp (f.restart / f.mtbf) * expm1 ((interval + f.stop) / f.mtbf);
  return interval / seconds;
}

static void
young_and_daly_give_the_intervals_of_their_papers (void **state)
{
  struct weft_goodput g = weft_goodput_of (&large);

  (void) state;
  assert_near (g.young, 1155.99, 1e-5);
  assert_near (g.daly, 1116.34, 1e-5); /* 1155.99 (1 + 0.01730 + 0.00030) - 60 */
  assert_near (g.interval, g.daly, 1e-5);
}

static void
no_interval_has_a_better_goodput_than_dalys (void **state)
{
  (void) state;
  for (double stop = 1; stop < 2000; stop *= 3) {
    struct weft_failures f = large;
    f.stop = f.write = stop;
    double best = 0, found = weft_goodput_of (&f).goodput;
    for (double interval = 10; interval < 1e5; interval *= 1.01)
      best = fmax (best, goodput_at (f, interval));
    assert_near (found, best, 1e-4);
  }
}

static void
the_parts_of_the_time_add_up (void **state)
{
  struct weft_failures f = large;
  f.repair = 40000;
  f.spares = 3;
  struct weft_goodput g = weft_goodput_of (&f);

  (void) state;
  assert_near (g.goodput + g.checkpoints + g.waits + g.failures, 1, 1e-12);
  assert_true (g.checkpoints > 0 && g.waits > 0 && g.failures > 0);
}

static void
waits_follow_erlangs_formula (void **state)
{
  struct weft_failures f = large;
  f.repair = f.mtbf;

  (void) state;
  assert_near (weft_goodput_of (&f).waits, 1.0 / 2, 1e-12); /* load 1, 1 server */
  f.spares = 1;
  assert_near (weft_goodput_of (&f).waits, 1.0 / 5, 1e-12); /* 1/2 / (1 + 1 + 1/2) */
  f.spares = 2;
  assert_near (weft_goodput_of (&f).waits, 1.0 / 16, 1e-12);
}

static void
simulated_runs_have_the_mean_of_the_closed_form (void **state)
{
  static const struct weft_failures cases[] = {
    { .mtbf = 11136, .write = 60, .stop = 60, .restart = 600, .step = 10 },
    { .mtbf = 3000, .write = 200, .stop = 5, .restart = 900, .step = 7 },
    { .mtbf = 11136, .write = 60, .stop = 60, .restart = 600, .step = 10, .repair = 20000 },
    { .mtbf = 5000,
      .write = 30,
      .stop = 30,
      .restart = 60,
      .step = 10,
      .repair = 9000,
      .spares = 2 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_goodput g = weft_goodput_of (&cases[i]);
    double work = 2000 * g.interval;
    struct weft_percentiles p = weft_goodput_simulate (&cases[i], &g, work, 7);
    assert_near (p.mean, work / g.goodput, 0.01);
    assert_true (p.p10 < p.p50 && p.p50 < p.p90);
  }
}

static void
the_same_seed_gives_the_same_percentiles (void **state)
{
  struct weft_goodput g = weft_goodput_of (&large);
  struct weft_percentiles a = weft_goodput_simulate (&large, &g, 1e6, 1),
                          b = weft_goodput_simulate (&large, &g, 1e6, 1),
                          c = weft_goodput_simulate (&large, &g, 1e6, 2);

  (void) state;
  assert_memory_equal (&a, &b, sizeof a);
  assert_true (a.p50 != c.p50);
}

static void
machines_that_never_fail_train_all_the_time (void **state)
{
  struct weft_failures f = large;
  f.mtbf = INFINITY;
  struct weft_goodput g = weft_goodput_of (&f);
  struct weft_percentiles p = weft_goodput_simulate (&f, &g, 1e6, 1);

  (void) state;
  assert_true (g.goodput == 1 && p.p10 == 1e6 && p.p90 == 1e6);
}

static void
machines_that_fail_all_the_time_never_train (void **state)
{
  struct weft_failures f = large;
  f.mtbf = 0.01;

  (void) state;
  assert_true (weft_goodput_of (&f).goodput == 0);
}

/* ------------------------------------------------------------------------ sites */

static void
load_job (const char *nodes, struct weft_job *job)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;

  weft_settings_add (settings, "model", "config", "llama3-8b", "");
  weft_settings_add (settings, "cluster", "topology", "dgx-h100", "");
  weft_settings_add (settings, "cluster", "nodes", nodes, "");
  if (!weft_job_assemble (settings, job, &error))
    fail_msg ("%s", error->message);
}

static weft_site *
site_of (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_site *site = weft_site_parse (text, "site.ini", &error);

  if (!site)
    fail_msg ("%s", error->message);
  return site;
}

static void
failures_and_checkpoints_follow_from_the_site (void **state)
{
  g_autoptr (weft_site) site =
      site_of ("[all]\ngpu_mtbf_hours = 1000\nnic_mtbf_hours = 2000\nnode_mtbf_hours = 4000\n"
               "checkpoint_parameter_bytes = 10\nnode_storage_bandwidth = 1GB/s\n"
               "storage_bandwidth = 100GB/s\ndetection = 5\nrestart = 7\nrepair_hours = 2\n"
               "spares = 0.3\n[dgx-h100]\nspares = 0.5\n");
  union weft_site_fields fields;
  struct weft_job job;

  (void) state;
  load_job ("4", &job);
  weft_site_of (site, "dgx_h100", &fields);
  struct weft_failures f = weft_failures_of (&job, &fields, 1);
  double bytes = 10 * (double) weft_model_parameters (&job.model);
  assert_near (f.mtbf, 3600 / (32 / 1000.0 + 32 / 2000.0 + 4 / 4000.0), 1e-12);
  assert_near (f.part[WEFT_NIC_FAILS], 3600 * 2000 / 32.0, 1e-12);
  assert_near (f.write, bytes / 4e9, 1e-12);
  assert_near (f.stop, f.write, 0);
  assert_near (f.restart, 12 + f.write, 1e-12);
  assert_int_equal (f.spares, 2);
  weft_site_of (site, "dgx-b200", &fields);
  assert_near (fields.spares, 0.3, 0);
  load_job ("256", &job);
  assert_near (weft_failures_of (&job, &fields, 1).write, bytes / 100e9, 1e-12);
}

static void
an_asynchronous_checkpoint_stops_training_for_a_copy (void **state)
{
  g_autoptr (weft_site) site = site_of ("[all]\ngpu_mtbf_hours = 1000\ncheckpoint_async = true\n"
                                        "storage_bandwidth = 1GB/s\n");
  union weft_site_fields fields;
  struct weft_job job;

  (void) state;
  load_job ("1", &job);
  weft_site_of (site, "dgx-h100", &fields);
  struct weft_failures f = weft_failures_of (&job, &fields, 1);
  assert_near (f.stop, f.bytes / 8 / job.cluster.f.gpu_host_link, 1e-12);
  assert_true (weft_goodput_of (&f).interval >= f.write - f.stop);
}

static void
what_a_site_does_not_give_is_not_known (void **state)
{
  g_autoptr (weft_site) site = site_of ("[all]\npue = 1.5\n");
  union weft_site_fields fields;
  struct weft_job job;

  (void) state;
  load_job ("1", &job);
  weft_site_of (site, "dgx-h100", &fields);
  assert_true (isnan (fields.gpu_hour_price) && isnan (fields.gpu_power));
  assert_true (isinf (weft_failures_of (&job, &fields, 1).mtbf));
}

static void
bad_sites_are_refused_with_file_line_and_key (void **state)
{
  static const char *const bad[][2] = {
    { "[all]\ngpu_hour_price = -1\n",
      "site.ini:2: [all] gpu_hour_price: found \"-1\", wanted none|0..1e6 (price of one GPU for "
      "one hour, with its share of node, network and storage)" },
    { "[all]\ngpu_hour_prise = 1\n",
      "site.ini:2: [all] unknown site field \"gpu_hour_prise\"; did you mean gpu_hour_price?" },
    { "[dgx-h1000]\npue = 1\n", "site.ini:2: [dgx-h1000] unknown section [dgx-h1000], wanted" },
    { "[dgx-h1000]\npue = 1\n", "did you mean dgx-h100?" },
    { "[all]\npue = 0.5\n", "found \"0.5\", wanted 1..10" },
    { "[all]\ngpu_mtbf_hours = 0\n", "gpu_mtbf_hours: found \"0\"" },
    { "[all]\nstorage_bandwidth = 2TB\n", "wanted none|1..1e18 B/s" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autoptr (GError) error = NULL;
    assert_null (weft_site_parse (bad[i][0], "site.ini", &error));
    assert_int_equal (error->code, WEFT_ERROR_INPUT);
    if (!strstr (error->message, bad[i][1]))
      fail_msg ("found \"%s\", wanted \"%s\"", error->message, bad[i][1]);
  }
}

static void
the_sections_of_a_site_name_topologies (void **state)
{
  g_autoptr (weft_site) site =
      weft_site_parse ("[all]\npue = 1\n[dgx-h100]\npue = 2\n[mine.ini]\npue = 3\n"
                       "[mine.ini]\nspares = 0.1\n",
                       "folder/site.ini", NULL);
  g_auto (GStrv) names = weft_site_topologies (site);
  union weft_site_fields fields;

  (void) state;
  assert_int_equal (g_strv_length (names), 2);
  assert_string_equal (names[0], "dgx-h100");
  assert_string_equal (names[1], "folder/mine.ini");
  weft_site_of (site, names[1], &fields);
  assert_near (fields.pue, 3, 0);
}

/* The comment beside or above a number says where the number is from. */
static void
every_number_of_the_example_has_a_source (void **state)
{
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_site) site = weft_site_load ("example", &error);
  gboolean sourced = FALSE;

  (void) state;
  if (!site)
    fail_msg ("%s", error->message);
  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/sites/example.ini", &text, NULL, NULL));
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  for (unsigned l = 0; lines[l]; l++) {
    gboolean is_value = strstr (lines[l], " = ") && *lines[l] != '#';
    gboolean is_source = g_regex_match_simple (
        "# (example|derived|specification|estimate|our choice)", lines[l], 0, 0);
    if (is_value && !is_source && !sourced && !g_str_has_prefix (lines[l], "currency"))
      fail_msg ("sites/example.ini:%u: found no source, wanted one", l + 1);
    sourced = *lines[l] == '#' && (is_source || sourced);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (young_and_daly_give_the_intervals_of_their_papers),
  cmocka_unit_test (no_interval_has_a_better_goodput_than_dalys),
  cmocka_unit_test (the_parts_of_the_time_add_up),
  cmocka_unit_test (waits_follow_erlangs_formula),
  cmocka_unit_test (simulated_runs_have_the_mean_of_the_closed_form),
  cmocka_unit_test (the_same_seed_gives_the_same_percentiles),
  cmocka_unit_test (machines_that_never_fail_train_all_the_time),
  cmocka_unit_test (machines_that_fail_all_the_time_never_train),
  cmocka_unit_test (failures_and_checkpoints_follow_from_the_site),
  cmocka_unit_test (an_asynchronous_checkpoint_stops_training_for_a_copy),
  cmocka_unit_test (what_a_site_does_not_give_is_not_known),
  cmocka_unit_test (bad_sites_are_refused_with_file_line_and_key),
  cmocka_unit_test (the_sections_of_a_site_name_topologies),
  cmocka_unit_test (every_number_of_the_example_has_a_source),
};

WEFT_TESTS (tests)
