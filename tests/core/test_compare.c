/* Timeline files (read back bit for bit, or refused), and the comparison of two timelines by
 * weft compare. */
#include "core/report/compare.h"
#include "core/exec/timeline_file.h"
#include "tests/runner/folder.h"
#include "tests/runner/command.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>

/* A job with four pipeline stages on eight GPUs. */
static const char *const pipeline[] = { "--model",
                                        "gpt2-nano",
                                        "--topology",
                                        "dgx-h100",
                                        "--global-batch-size",
                                        "16",
                                        "--pipeline-model-parallel-size",
                                        "4",
                                        "--use-distributed-optimizer",
                                        "true",
                                        NULL };

/* The job of `pipeline` (same model and GPUs) without pipeline parallelism. */
static const char *const flat[] = { "--model",  "gpt2-nano",           "--topology",
                                    "dgx-h100", "--global-batch-size", "16",
                                    NULL };

struct step {
  weft_plan *plan;
  weft_timeline *timeline;
};

static struct step
make_step (const char *const *flags, const struct weft_exec_ops *exec, gboolean unfolded)
{
  struct weft_job job;
  struct step s;

  made_real_job (&job, flags);
  s.plan = made_real_plan (&job);
  s.timeline = made_run_with (exec, s.plan, unfolded ? "unfolded" : "");
  return s;
}

static void
step_free (struct step *s)
{
  weft_timeline_free (s->timeline);
  weft_plan_free (s->plan);
}

static weft_compare *
compare (const struct step *a, const struct step *b)
{
  const struct weft_compare_side left = { "a", a->plan, a->timeline },
                                 right = { "b", b->plan, b->timeline };
  return weft_compare_new (&left, &right, 5);
}

static const struct weft_compare_sum *
sum_at (const weft_compare *c, unsigned i)
{
  return &g_array_index (c->sum, struct weft_compare_sum, i);
}

static uint32_t
n_op (const struct step *s, uint32_t row)
{
  return s->plan->role[s->timeline->role[row]]->n_op;
}

/* ------------------------------------------------------------------------- files */

static char *folder;

static char *
in_folder (const char *name)
{
  return g_build_filename (folder, name, NULL);
}

static int
make_folder (void **state)
{
  int status = weft_test_folder_make (state);

  folder = *state;
  return status;
}

static void
save (const struct step *s, const char *path)
{
  g_autoptr (GError) error = NULL;

  if (!weft_timeline_save (s->plan, s->timeline, path, &error))
    fail_msg ("%s", error->message);
}

static struct step
load (const char *path)
{
  g_autoptr (GError) error = NULL;
  struct step s;

  if (!weft_timeline_load (path, &s.plan, &s.timeline, &error))
    fail_msg ("%s", error->message);
  return s;
}

static void
assert_same_step (const struct step *a, const struct step *b)
{
  const weft_timeline *t = a->timeline, *u = b->timeline;
  g_autofree char *one = weft_job_print (&a->plan->job), *two = weft_job_print (&b->plan->job);

  assert_string_equal (one, two);
  assert_string_equal (t->executor, u->executor);
  assert_string_equal (t->engine, u->engine);
  assert_int_equal (t->folded, u->folded);
  assert_int_equal (t->contended, u->contended);
  assert_int_equal (t->n_ops, u->n_ops);
  assert_int_equal (t->n_activities, u->n_activities);
  assert_memory_equal (&t->seconds, &u->seconds, sizeof t->seconds);
  assert_memory_equal (&t->wall_seconds, &u->wall_seconds, sizeof t->wall_seconds);
  assert_int_equal (t->n, u->n);
  for (uint32_t row = 0; row < t->n; row++) {
    size_t bytes = n_op (a, row) * sizeof (double);
    assert_int_equal (t->rank[row], u->rank[row]);
    assert_int_equal (t->role[row], u->role[row]);
    assert_int_equal (t->stands_for[row], u->stands_for[row]);
    assert_memory_equal (t->begin[row], u->begin[row], bytes);
    assert_memory_equal (t->end[row], u->end[row], bytes);
  }
}

static void
a_timeline_comes_back_bit_for_bit (void **state)
{
  static const char *const names[] = { "t.json", "t.json.gz" };

  (void) state;
  for (unsigned i = 0; i < 4; i++) {
    struct step s = make_step (pipeline, &weft_exec_sim, i & 1);
    g_autofree char *path = in_folder (names[i / 2]);
    /* op 3 of the first role gets no times, like an op that did not run */
    s.timeline->begin[0][3] = s.timeline->end[0][3] = NAN;
    save (&s, path);
    struct step again = load (path);
    assert_same_step (&s, &again);
    step_free (&again);
    step_free (&s);
  }
}

static void
the_name_says_whether_a_file_is_compressed (void **state)
{
  struct step s = make_step (pipeline, &weft_exec_clock, FALSE);
  g_autofree char *plain = in_folder ("n.json"), *packed = in_folder ("n.json.gz");
  g_autofree char *text = NULL, *gzip = NULL;

  (void) state;
  save (&s, plain);
  save (&s, packed);
  assert_true (g_file_get_contents (plain, &text, NULL, NULL));
  assert_true (g_file_get_contents (packed, &gzip, NULL, NULL));
  assert_true (g_str_has_prefix (text, "{\"schema\":\"weft.timeline/1\","));
  assert_memory_equal (gzip, "\x1f\x8b", 2);
  g_autofree char *other = in_folder ("renamed.json");
  /* A gzip file needs no suffix: the reader recognises it by its content. */
  assert_int_equal (g_rename (packed, other), 0);
  struct step again = load (other);
  assert_same_step (&s, &again);
  step_free (&again);
  step_free (&s);
}

/* ---------------------------------------------------------------- damaged files */

/* One layer on one GPU: the timeline file is small enough to damage it at every place. */
static const char *const small[] = { "--launch-seconds",
                                     "0",
                                     "--num-layers",
                                     "1",
                                     "--hidden-size",
                                     "8",
                                     "--num-attention-heads",
                                     "1",
                                     "--vocab-size",
                                     "16",
                                     "--seq-length",
                                     "8",
                                     "--topology",
                                     "dgx-h100",
                                     "--gpus",
                                     "2",
                                     "--micro-batch-size",
                                     "1",
                                     "--global-batch-size",
                                     "2",
                                     NULL };

static char *
small_text (void)
{
  struct step s = make_step (small, &weft_exec_clock, TRUE);
  g_autofree char *path = in_folder ("small.json");
  char *text = NULL;

  save (&s, path);
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  step_free (&s);
  return text;
}

static void
refused (const char *text, gssize length, const char *part)
{
  g_autoptr (GError) error = NULL;
  weft_plan *plan = NULL;
  weft_timeline *t = NULL;

  if (length < 0)
    length = strlen (text);
  if (weft_timeline_parse (text, length, "t.json", &plan, &t, &error))
    fail_msg ("accepted, wanted \"%s\"", part);
  assert_null (plan);
  assert_null (t);
  if (!g_str_has_prefix (error->message, "t.json") || !strstr (error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, part);
}

/* Returns a copy of `text` in which the first `from` is replaced by `to`. */
static char *
changed (const char *text, const char *from, const char *to)
{
  const char *at = strstr (text, from);

  if (!at)
    fail_msg ("no %s in the file", from);
  return g_strdup_printf ("%.*s%s%s", (int) (at - text), text, to, at + strlen (from));
}

static void
a_damaged_file_is_refused_and_says_where (void **state)
{
  static const char *const cases[][3] = {
    { "weft.timeline/1", "weft.trace/1", "wanted \"weft.timeline/1\"" },
    { "\"schema\"", "\"scheme\"", "found no \"schema\", wanted text" },
    { "\"executor\":\"clock\"", "\"executor\":7", "executor: found 7, wanted text" },
    { "\"folded\":false", "\"folded\":0", "wanted true or false" },
    { "\"folded\":false", "\"folded\":true", "rows[0]: stands_for: found 1 ranks, wanted 2 ranks" },
    { "\"seconds\":", "\"seconds\":-", "wanted seconds from 0 to 1e9" },
    { "\"seconds\":", "\"seconds\":1e999,\"was\":", "seconds" },
    { "\"rank\":1", "\"rank\":0", "rows[1]: found rank 0 a second time" },
    { "\"rank\":1", "\"rank\":2", "rows[1]: rank: found 2, wanted at most 1" },
    { "\"rank\":1", "\"rank\":-1", "wanted a whole number from 0" },
    { "\"role\":0", "\"role\":1", "rows[0]: role: found 1, wanted at most 0" },
    { "\"stands_for\":1", "\"stands_for\":2", "stands_for: found 2 ranks, wanted 1 ranks" },
    { "\"begin\":[", "\"begin\":[0,", "the number of ops of role 0" },
    { "\"begin\":[0,", "\"begin\":[", "the number of ops of role 0" },
    { "\"begin\":[0,", "\"begin\":[null,", "op 0: found begin nan" },
    { "\"begin\":[0,", "\"begin\":[1,", "wanted begin first" },
    { "\"begin\":[0,", "\"begin\":[true,", "op 0: wanted seconds from 0 to 1e9, or null" },
    { "\"begin\":[0,", "\"begin\":[[],", "op 0: wanted seconds" },
    { "\"begin\":[0,", "\"begin\":{},\"b\":[0,", "begin: found {}, wanted an array" },
    { "\"rows\":[", "\"rows\":[],\"x\":[", "rows: found 0 rows, wanted 1 to 2 rows" },
    { "\"rows\":[", "\"rows\":[3,", "rows" },
    { "num_layers = 1", "num_layers = 2", "the number of ops of role 0" },
    { "num_layers = 1", "num_layers = -1", "num_layers" },
    { "topology = dgx-h100", "topology = dgx-h999", "did you mean" },
    { "topology = dgx-h100", "topology = gone.ini", "gone.ini" },
    { "gpus = 2", "gpus = 3", "the job of the timeline cannot be built" },
  };
  g_autofree char *text = small_text ();

  (void) state;
  assert_non_null (strstr (text, "\"begin\":[0,"));
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autofree char *bad = changed (text, cases[i][0], cases[i][1]);
    refused (bad, -1, cases[i][2]);
  }
}

static void
what_is_no_json_is_refused (void **state)
{
  g_autofree char *text = small_text ();

  (void) state;
  refused ("", -1, "wanted");
  refused ("[]", -1, "wanted one object");
  refused ("{", -1, "wanted a closing bracket");
  refused ("\xff\xfe", -1, "not UTF-8");
  refused ("{}", 3, "not UTF-8");
  for (size_t n = 1; n < strlen (text) - 2; n += 97)
    refused (text, n, "");
}

static void
load_fails (const char *path, const char *part)
{
  g_autoptr (GError) error = NULL;
  struct step s;

  assert_false (weft_timeline_load (path, &s.plan, &s.timeline, &error));
  if (!strstr (error->message, path) || !strstr (error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\" and \"%s\"", error->message, path, part);
}

static void
half_a_gzip_file_is_refused (void **state)
{
  struct step s = make_step (pipeline, &weft_exec_clock, FALSE);
  g_autofree char *path = in_folder ("half.json.gz"), *bytes = NULL;
  gsize length;

  (void) state;
  save (&s, path);
  assert_true (g_file_get_contents (path, &bytes, &length, NULL));
  assert_true (g_file_set_contents (path, bytes, length / 2, NULL));
  load_fails (path, "damaged gzip");
  assert_true (g_file_set_contents (path, "", 0, NULL));
  load_fails (path, "found nothing");
  g_unlink (path);
  load_fails (path, "No such file");
  step_free (&s);
}

static void
a_job_whose_topology_is_gone_says_which (void **state)
{
  g_autofree char *topology = in_folder ("mine.ini"), *path = in_folder ("gone.json");
  g_autofree char *bundled = g_build_filename (WEFT_SOURCE_DIR, "topologies/dgx-h100.ini", NULL);
  g_autofree char *text = NULL;
  gsize length;

  (void) state;
  assert_true (g_file_get_contents (bundled, &text, &length, NULL));
  assert_true (g_file_set_contents (topology, text, length, NULL));
  const char *const flags[] = { "--model", "gpt2-nano", "--topology", topology, NULL };
  struct step s = make_step (flags, &weft_exec_clock, FALSE);
  save (&s, path);
  struct step again = load (path);
  assert_same_step (&s, &again);
  g_unlink (topology);
  load_fails (path, topology);
  step_free (&again);
  step_free (&s);
}

static void
more_ops_than_a_reader_takes_are_not_written (void **state)
{
  struct step s = make_step (pipeline, &weft_exec_clock, FALSE);
  g_autofree char *path = in_folder ("large.json");
  g_autoptr (GError) error = NULL;

  (void) state;
  s.timeline->n_ops = WEFT_TIMELINE_MOST_OPS + 1;
  assert_false (weft_timeline_save (s.plan, s.timeline, path, &error));
  assert_non_null (strstr (error->message, "wanted at most 2000000"));
  assert_false (g_file_test (path, G_FILE_TEST_EXISTS));
  step_free (&s);
}

static void
times_that_no_reader_takes_are_not_written (void **state)
{
  const double bad[][2] = { { -1e-9, 1 }, { 1, 0.5 }, { 0, INFINITY }, { NAN, 1 }, { 1, 2e9 } };
  struct step s = make_step (flat, &weft_exec_clock, FALSE);
  g_autofree char *path = in_folder ("times.json");

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autoptr (GError) error = NULL;
    s.timeline->begin[0][6] = bad[i][0];
    s.timeline->end[0][6] = bad[i][1];
    assert_false (weft_timeline_save (s.plan, s.timeline, path, &error));
    assert_non_null (strstr (error->message, "rank 0, op 6: found begin"));
  }
  assert_false (g_file_test (path, G_FILE_TEST_EXISTS));
  step_free (&s);
}

/* ------------------------------------------------------------------ same program */

static void
folded_and_unfolded_runs_share_every_op (void **state)
{
  static const struct weft_exec_ops *const exec[] = { &weft_exec_clock, &weft_exec_sim };

  (void) state;
  for (unsigned i = 0; i < 4; i++) {
    struct step a = make_step (pipeline, exec[i / 2], FALSE);
    struct step b = make_step (pipeline, exec[i % 2], TRUE);
    g_autoptr (weft_compare) c = compare (&a, &b);
    assert_null (c->mismatch);
    assert_int_equal (c->n_only[WEFT_COMPARE_A], 0);
    assert_int_equal (c->n_only[WEFT_COMPARE_B], 0);
    assert_int_equal (c->n_joined, b.timeline->n_ops);
    assert_int_equal (c->n_ranks[WEFT_COMPARE_A], 8);
    /* Both sides were simulated by one executor, one of them folded. Folding must not change any
     * time. */
    if (i / 2 == i % 2)
      assert_int_equal (c->worst->len, 0);
    step_free (&a);
    step_free (&b);
  }
}

/* Kernels of one rank never overlap, so the sum of their times is the compute time of the
 * report. */
static void
sums_of_kernels_are_the_compute_time (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_sim, TRUE);
  struct step b = make_step (flat, &weft_exec_sim, FALSE);
  const struct step *others[] = { &a, &b };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (others); i++) {
    g_autoptr (weft_compare) c = compare (&a, others[i]);
    double seconds[WEFT_N_COMPARE] = { 0 }, labels[WEFT_N_COMPARE] = { 0 };
    for (unsigned s = 0; s < c->sum->len; s++)
      for (int side = 0; side < WEFT_N_COMPARE; side++)
        if (weft_op_info[sum_at (c, s)->kind].class == WEFT_CLASS_COMPUTE)
          *(sum_at (c, s)->label ? &labels[side] : &seconds[side]) += sum_at (c, s)->seconds[side];
    for (int side = 0; side < WEFT_N_COMPARE; side++) {
      assert_near (seconds[side], c->report[side]->overlap.compute_s);
      assert_near (labels[side], seconds[side]);
    }
  }
  step_free (&a);
  step_free (&b);
}

static void
stretch (struct step *s, enum weft_op_kind kind, double factor)
{
  const weft_timeline *t = s->timeline;

  for (uint32_t row = 0; row < t->n; row++)
    for (uint32_t op = 0; op < n_op (s, row); op++)
      if (s->plan->role[t->role[row]]->op[op].kind == kind)
        t->end[row][op] = t->begin[row][op] + factor * (t->end[row][op] - t->begin[row][op]);
}

static void
a_kind_that_takes_twice_as_long_has_ratio_2_and_no_other_has (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_sim, FALSE);
  struct step b = make_step (pipeline, &weft_exec_sim, TRUE);
  unsigned doubled = 0;

  (void) state;
  stretch (&b, WEFT_OP_MATMUL_DGRAD, 2);
  g_autoptr (weft_compare) c = compare (&a, &b);
  for (unsigned i = 0; i < c->sum->len; i++) {
    const struct weft_compare_sum *sum = sum_at (c, i);
    gboolean is = sum->kind == WEFT_OP_MATMUL_DGRAD;
    assert_near (sum->seconds[WEFT_COMPARE_B], (is ? 2 : 1) * sum->seconds[WEFT_COMPARE_A]);
    doubled += is;
  }
  assert_true (doubled > 2);
  assert_int_equal (c->worst->len, 5);
  for (unsigned i = 0; i < c->worst->len; i++) {
    const struct weft_compare_op *op = &g_array_index (c->worst, struct weft_compare_op, i);
    assert_int_equal (a.plan->role[op->role]->op[op->op].kind, WEFT_OP_MATMUL_DGRAD);
    assert_near (op->seconds[WEFT_COMPARE_B], 2 * op->seconds[WEFT_COMPARE_A]);
  }
  step_free (&a);
  step_free (&b);
}

static void
the_rank_that_differs_most_is_named (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_clock, FALSE);
  struct step b = make_step (pipeline, &weft_exec_clock, TRUE);

  (void) state;
  assert_int_equal (b.timeline->rank[5], 5);
  /* Timeline B: op 7 of rank 5 (the second replica of stage 2) ends one second later. */
  b.timeline->end[5][7] += 1;
  g_autoptr (weft_compare) c = compare (&a, &b);
  const struct weft_compare_op *worst = &g_array_index (c->worst, struct weft_compare_op, 0);
  assert_int_equal (c->worst->len, 1);
  assert_int_equal (worst->rank, 5);
  assert_int_equal (worst->role, 2);
  assert_int_equal (worst->op, 7);
  step_free (&a);
  step_free (&b);
}

static void
an_op_that_ran_on_one_side_only_is_counted_there (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_clock, FALSE);
  struct step b = make_step (pipeline, &weft_exec_clock, TRUE);

  (void) state;
  b.timeline->begin[0][4] = b.timeline->end[0][4] = NAN;
  /* Side A is folded: row 3 of its timeline stands for both ranks of stage 3. */
  a.timeline->begin[3][2] = a.timeline->end[3][2] = NAN;
  g_autoptr (weft_compare) c = compare (&a, &b);
  assert_int_equal (c->n_only[WEFT_COMPARE_A], 1);
  assert_int_equal (c->n_only[WEFT_COMPARE_B], 2);
  assert_int_equal (c->n_joined, b.timeline->n_ops - 3);
  step_free (&a);
  step_free (&b);
}

/* Timeline B contains only ranks 0 to 2, as if one process of the job had measured it. weft compare
 * joins only the ops of these ranks. */
static void
only_ranks_that_both_watched_are_joined (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_clock, FALSE);
  struct step b = make_step (pipeline, &weft_exec_clock, TRUE);
  uint32_t all = b.timeline->n;

  (void) state;
  /* Ranks 0 to 2 are both ranks of stage 0 and one of the two ranks of stage 1. */
  b.timeline->n = 3;
  g_autoptr (weft_compare) c = compare (&a, &b);
  assert_int_equal (c->n_ranks[WEFT_COMPARE_A], 3);
  assert_int_equal (c->n_joined, 2 * n_op (&b, 0) + n_op (&b, 2));
  assert_int_equal (c->worst->len, 0);
  b.timeline->n = all;
  step_free (&a);
  step_free (&b);
}

/* ------------------------------------------------------------------------- waits */

/* Op 0 is a kernel, op 1 a copy that depends on it, op 2 a kernel that depends on the copy. */
static weft_plan *
three_ops (void)
{
  const struct weft_cluster cluster = made_cluster (1, 1);
  const struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  uint32_t kernel = made_kernel (b, 5);
  uint32_t copy = made_copy (b, WEFT_OP_COPY_IN, 400000); /* copying 400,000 bytes takes 4 us */
  weft_build_dep (b, kernel);
  made_kernel (b, 7);
  weft_build_dep (b, copy);
  return made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
}

static double
wait_of_kind (const weft_compare *c, enum weft_op_kind kind, int side)
{
  for (unsigned i = 0; i < c->sum->len; i++)
    if (sum_at (c, i)->kind == kind)
      return sum_at (c, i)->wait[side];
  fail_msg ("no such kind");
  return 0;
}

static void
a_wait_is_what_passes_after_lane_and_dependencies_are_free (void **state)
{
  struct step a = { three_ops (), NULL }, b = { a.plan, NULL };

  (void) state;
  a.timeline = made_run_with (&weft_exec_clock, a.plan, "");
  b.timeline = made_run_with (&weft_exec_clock, a.plan, "");
  assert_near (a.timeline->begin[0][2], 9 * MADE_US);
  /* In timeline B the kernel begins 3 us after its last dependency has ended. */
  b.timeline->begin[0][2] += 3 * MADE_US;
  b.timeline->end[0][2] += 3 * MADE_US;
  g_autoptr (weft_compare) c = compare (&a, &b);
  assert_true (wait_of_kind (c, WEFT_OP_ATTENTION, WEFT_COMPARE_A) < 1e-12);
  assert_near (wait_of_kind (c, WEFT_OP_ATTENTION, WEFT_COMPARE_B), 3 * MADE_US);
  assert_true (wait_of_kind (c, WEFT_OP_COPY_IN, WEFT_COMPARE_B) < 1e-12);
  weft_timeline_free (b.timeline);
  step_free (&a);
}

/* Every stage except the first begins with a receive. While earlier stages compute, the receive
 * waits; the comparison must count this time as wait and not as duration of the receive. */
static void
a_receive_waits_for_its_sender (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_clock, FALSE);
  g_autoptr (weft_compare) c = compare (&a, &a);

  (void) state;
  double wait = wait_of_kind (c, WEFT_OP_RECV, WEFT_COMPARE_A);
  assert_true (wait > 0 && wait < a.timeline->seconds);
  assert_near (wait_of_kind (c, WEFT_OP_RECV, WEFT_COMPARE_B), wait);
  step_free (&a);
}

/* ------------------------------------------------------------ different programs */

static void
different_programs_are_summed_up_alone (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_clock, FALSE);
  struct step b = make_step (flat, &weft_exec_clock, FALSE);
  g_autoptr (weft_compare) c = compare (&a, &b);

  (void) state;
  assert_non_null (strstr (c->mismatch, "pipeline 4"));
  assert_int_equal (c->n_joined, 0);
  assert_int_equal (c->worst->len, 0);
  for (unsigned i = 0; i < c->sum->len; i++)
    if (sum_at (c, i)->kind == WEFT_OP_SEND) {
      assert_true (sum_at (c, i)->n[WEFT_COMPARE_A] > 0);
      assert_int_equal (sum_at (c, i)->n[WEFT_COMPARE_B], 0);
    }
  step_free (&a);
  step_free (&b);
}

/* In another order of the axes a rank runs the program of another stage. */
static void
ranks_in_another_order_are_not_joined (void **state)
{
  static const char *const turned[] = { "--model",
                                        "gpt2-nano",
                                        "--topology",
                                        "dgx-h100",
                                        "--global-batch-size",
                                        "16",
                                        "--pipeline-model-parallel-size",
                                        "4",
                                        "--use-tp-pp-dp-mapping",
                                        "true",
                                        NULL };
  struct step a = make_step (pipeline, &weft_exec_clock, FALSE);
  struct step b = make_step (turned, &weft_exec_clock, FALSE);
  g_autoptr (weft_compare) c = compare (&a, &b);

  (void) state;
  assert_non_null (strstr (c->mismatch, "data 2, pipeline 4), B has"));
  assert_non_null (strstr (c->mismatch, "pipeline 4, data 2)"));
  assert_int_equal (c->n_joined, 0);
  step_free (&a);
  step_free (&b);
}

static void
the_first_op_that_differs_is_named (void **state)
{
  static const char *const more[] = { "--model",    "gpt2-nano", "--num-layers",        "9",
                                      "--topology", "dgx-h100",  "--global-batch-size", "16",
                                      NULL };
  struct step a = make_step (flat, &weft_exec_clock, FALSE);
  struct step b = make_step (more, &weft_exec_clock, FALSE);
  g_autoptr (weft_compare) c = compare (&a, &b);

  (void) state;
  assert_non_null (strstr (c->mismatch, "stage 0 has "));
  assert_non_null (strstr (c->mismatch, "in A and add_norm (L8 norm1 m0) in B"));
  step_free (&a);
  step_free (&b);
}

static void
shapes_may_differ_in_the_same_program (void **state)
{
  static const char *const shorter[] = { "--model",    "gpt2-nano", "--seq-length",        "64",
                                         "--topology", "dgx-a100",  "--global-batch-size", "16",
                                         NULL };
  struct step a = make_step (flat, &weft_exec_sim, FALSE);
  struct step b = make_step (shorter, &weft_exec_sim, FALSE);
  g_autoptr (weft_compare) c = compare (&a, &b);
  gboolean found = FALSE;

  (void) state;
  assert_null (c->mismatch);
  for (unsigned i = 0; i < c->setting->len; i++) {
    const struct weft_compare_setting *s =
        &g_array_index (c->setting, struct weft_compare_setting, i);
    assert_string_not_equal (s->text[WEFT_COMPARE_A], s->text[WEFT_COMPARE_B]);
    if (strcmp (s->name, "seq_length") == 0) {
      assert_string_equal (s->text[WEFT_COMPARE_A], "128");
      assert_string_equal (s->text[WEFT_COMPARE_B], "64");
      found = TRUE;
    }
  }
  assert_true (found);
  step_free (&a);
  step_free (&b);
}

static void
a_job_differs_from_itself_in_nothing (void **state)
{
  struct step a = make_step (pipeline, &weft_exec_sim, FALSE);
  g_autoptr (weft_compare) c = compare (&a, &a);

  (void) state;
  assert_int_equal (c->setting->len, 0);
  assert_int_equal (c->worst->len, 0);
  step_free (&a);
}

/* ----------------------------------------------------------------------- command */

static struct answer
run_weft (const char *const *words)
{
  g_autofree char *line = g_strjoinv (" ", (char **) (uintptr_t) words);
  return weft_test_answer (line);
}

static JsonObject *
document (JsonParser *parser, const char *a, const char *b)
{
  const char *const words[] = { "compare", a, b, "--json", "--top", "2", NULL };
  struct answer answer = run_weft (words);
  g_autoptr (GError) error = NULL;

  if (answer.status || !json_parser_load_from_data (parser, answer.out, -1, &error))
    fail_msg ("status %d: %s%s", answer.status, answer.err, error ? error->message : "");
  weft_test_answer_free (&answer);
  return json_node_get_object (json_parser_get_root (parser));
}

static void
the_command_compares_a_job_with_a_timeline (void **state)
{
  struct step s = make_step (pipeline, &weft_exec_clock, FALSE);
  g_autofree char *timeline = in_folder ("cli.json.gz"), *ini = in_folder ("cli.ini");
  g_autofree char *job = weft_job_print (&s.plan->job);
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  save (&s, timeline);
  assert_true (g_file_set_contents (ini, job, -1, NULL));
  JsonObject *root = document (parser, ini, timeline);
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.compare/1");
  assert_true (json_object_get_boolean_member (root, "same_program"));
  JsonObject *step = json_object_get_object_member (root, "step");
  JsonObject *a = json_object_get_object_member (root, "a"),
             *b = json_object_get_object_member (root, "b");
  assert_string_equal (json_object_get_string_member (a, "executor"), "sim");
  assert_string_equal (json_object_get_string_member (b, "executor"), "clock");
  assert_near (json_object_get_double_member (step, "b_s"), s.timeline->seconds);
  assert_near (json_object_get_double_member (step, "ratio"),
               json_object_get_double_member (step, "b_s") /
                   json_object_get_double_member (step, "a_s"));
  JsonArray *kinds = json_object_get_array_member (root, "kinds");
  assert_true (json_array_get_length (kinds) > 10);
  assert_true (json_object_has_member (json_array_get_object_element (kinds, 0), "a_wait_s"));
  assert_true (json_array_get_length (json_object_get_array_member (root, "worst")) <= 2);
  assert_int_equal (json_array_get_length (json_object_get_array_member (root, "differences")), 0);
  step_free (&s);
}

static void
the_command_wants_two_files (void **state)
{
  static const char *const cases[][5] = {
    { "found no file, wanted two job or timeline files", "compare" },
    { "found one file, wanted two job or timeline files", "compare", "a.json" },
    { "expected two files", "compare", "a", "b", "c" },
    { "nowhere.json: No such file", "compare", "nowhere.json", "b" },
    { "nowhere.ini: no such file", "compare", "nowhere.ini", "b" },
    { "--top: found \"x\"", "compare", "a", "b", "--top=x" },
    { "wanted sim or clock", "compare", "a", "b", "--executor=x" },
    { "expected at most one name", "knobs", "a", "b" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    const char *words[5] = { NULL };
    memcpy (words, cases[i] + 1, 4 * sizeof *words);
    struct answer a = run_weft (words);
    assert_int_equal (a.status, 2);
    if (!strstr (a.err, cases[i][0]))
      fail_msg ("found \"%s\", wanted \"%s\"", a.err, cases[i][0]);
    weft_test_answer_free (&a);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_timeline_comes_back_bit_for_bit),
  cmocka_unit_test (the_name_says_whether_a_file_is_compressed),
  cmocka_unit_test (a_damaged_file_is_refused_and_says_where),
  cmocka_unit_test (what_is_no_json_is_refused),
  cmocka_unit_test (half_a_gzip_file_is_refused),
  cmocka_unit_test (a_job_whose_topology_is_gone_says_which),
  cmocka_unit_test (more_ops_than_a_reader_takes_are_not_written),
  cmocka_unit_test (times_that_no_reader_takes_are_not_written),
  cmocka_unit_test (folded_and_unfolded_runs_share_every_op),
  cmocka_unit_test (sums_of_kernels_are_the_compute_time),
  cmocka_unit_test (a_kind_that_takes_twice_as_long_has_ratio_2_and_no_other_has),
  cmocka_unit_test (the_rank_that_differs_most_is_named),
  cmocka_unit_test (an_op_that_ran_on_one_side_only_is_counted_there),
  cmocka_unit_test (only_ranks_that_both_watched_are_joined),
  cmocka_unit_test (a_wait_is_what_passes_after_lane_and_dependencies_are_free),
  cmocka_unit_test (a_receive_waits_for_its_sender),
  cmocka_unit_test (different_programs_are_summed_up_alone),
  cmocka_unit_test (ranks_in_another_order_are_not_joined),
  cmocka_unit_test (the_first_op_that_differs_is_named),
  cmocka_unit_test (shapes_may_differ_in_the_same_program),
  cmocka_unit_test (a_job_differs_from_itself_in_nothing),
  cmocka_unit_test (the_command_compares_a_job_with_a_timeline),
  cmocka_unit_test (the_command_wants_two_files),
};

WEFT_TESTS (tests, .set_up = make_folder, .tear_down = weft_test_folder_remove)
