/* Collective algorithms as data: their notation, their proof, their moves, and their price. */
#include "core/job/collectives.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

static const char ring[] = WEFT_SOURCE_DIR "/docs/ideas/ring.txt";
static const char halving[] = WEFT_SOURCE_DIR "/docs/ideas/halving_doubling.txt";

static weft_algo *
loaded (const char *path, uint32_t n)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_algo_text) text = weft_algo_load (path, &error);
  weft_algo *a = text ? weft_algo_new (text, n, &error) : NULL;

  if (!a)
    fail_msg ("%s", error->message);
  return a;
}

static weft_algo *
made (const char *lines, uint32_t n, GError **error)
{
  g_autoptr (weft_algo_text) text = weft_algo_parse (lines, "mine.txt", error);

  return text ? weft_algo_new (text, n, error) : NULL;
}

/* ------------------------------------------------------------------- moves */

static void
the_ring_as_data_has_the_moves_of_the_ring (void **state)
{
  (void) state;
  for (uint32_t n = 2; n <= 9; n++) {
    g_autoptr (weft_algo) a = loaded (ring, n);
    struct weft_op op = { .kind = WEFT_OP_ALL_REDUCE };
    g_autoptr (GArray) data = weft_coll_data_moves (&op, a);
    g_autoptr (GArray) moves = weft_coll_moves (&op, n, WEFT_COLL_QUICKEST);
    assert_int_equal (data->len, moves->len);
    assert_int_equal (a->n_slots, 0);
    for (guint i = 0; i < moves->len; i++) {
      const struct weft_move *x = &g_array_index (data, struct weft_move, i),
                             *y = &g_array_index (moves, struct weft_move, i);
      assert_true (x->round == y->round && x->from == y->from && x->to == y->to &&
                   x->piece == y->piece && x->reduce == y->reduce && x->complete == y->complete);
    }
  }
}

static double
original (uint32_t rank, uint32_t piece)
{
  return 1000.0 * (rank + 1) + piece;
}

/* Executes moves as an executor does: those of one round read the values from before the round. */
static void
play (const weft_algo *a, double *values, double *slots)
{
  for (guint i = 0; i < a->moves->len;) {
    g_autofree double *before = g_memdup2 (values, sizeof *values * a->n * a->n_chunks);
    uint32_t round = g_array_index (a->moves, struct weft_move, i).round;
    for (; i < a->moves->len && g_array_index (a->moves, struct weft_move, i).round == round; i++) {
      const struct weft_move *m = &g_array_index (a->moves, struct weft_move, i);
      double *slot = &slots[m->to * (a->n_slots + 1) + m->slot];
      double *into = m->fetch ? slot : &values[m->to * a->n_chunks + m->piece];
      double got = m->slot && !m->fetch ? *slot : before[m->from * a->n_chunks + m->piece];
      *into = got + (m->reduce && !m->fetch ? *into : 0);
    }
  }
}

static void
check_sums (const weft_algo *a)
{
  g_autofree double *values = g_new (double, a->n * a->n_chunks);
  g_autofree double *slots = g_new0 (double, a->n * (a->n_slots + 1));

  for (uint32_t i = 0; i < a->n * a->n_chunks; i++)
    values[i] = original (i / a->n_chunks, i % a->n_chunks);
  play (a, values, slots);
  for (uint32_t i = 0; i < a->n * a->n_chunks; i++) {
    double sum = 0;
    for (uint32_t rank = 0; rank < a->n; rank++)
      sum += original (rank, i % a->n_chunks);
    assert_true (values[i] == sum);
  }
}

/* Both ranks of a pair change the chunk that they send, so messages go through slots. */
static const char doubling[] = "collective all_reduce\nchunks 1\n"
                               "for d in 1 .. n / 2 times 2\n"
                               "  send 0 to r ^ d\n"
                               "  add 0 from r ^ d\n";

/* Every rank sends everything to every rank at once; the sums wait in slots for each other. */
static const char all_pairs[] = "collective all_reduce\nchunks 2\n"
                                "for c in 0 .. 1\n"
                                "  for d in 1 .. n - 1\n"
                                "    channel d\n"
                                "    send c to r + d\n"
                                "for c in 0 .. 1\n"
                                "  for d in 1 .. n - 1\n"
                                "    channel d\n"
                                "    add c from r - d\n";

static void
moves_compute_the_sums (void **state)
{
  static const char *const lines[] = { doubling, all_pairs };

  (void) state;
  for (uint32_t n = 2; n <= 16; n *= 2) {
    g_autoptr (weft_algo) a = loaded (halving, n), b = loaded (ring, n);
    check_sums (a);
    check_sums (b);
    for (unsigned i = 0; i < G_N_ELEMENTS (lines); i++) {
      g_autoptr (weft_algo) c = made (lines[i], n, NULL);
      assert_non_null (c);
      assert_int_equal (c->n_slots, i == 0 ? 1 : 2 * (n - 1));
      check_sums (c);
    }
  }
}

/* ------------------------------------------------------------------- proof */

static void
what_does_not_hold_is_refused_with_its_line (void **state)
{
#define ALL "collective all_reduce\nchunks n\n"
  static const struct {
    const char *lines, *wanted;
  } bad[] = {
    { "chunks n\nsend 0 to 1\n", "no line that begins with \"collective\"" },
    { "collective all_reduce\nsend 0 to 1\n", "no line that begins with \"chunks\"" },
    { "collective all_reduce\nchunks n\n", "then steps follow" },
    { "collective sum\nchunks n\nsend 0 to 1\n", "mine.txt:1: found \"sum\", wanted all_reduce" },
    { "collective all_reduce\nchunks 0\nsend 0 to 1\n", "mine.txt:2: found 0 chunks" },
    { ALL "give 0 to 1\n", "mine.txt:3: found \"give 0 to 1\", wanted send" },
    { ALL "send 0 from 1\n", "mine.txt:3: found \"from 1\", wanted to" },
    { ALL "send x to 1\n", "mine.txt:3: unknown name \"x\"" },
    { ALL "send 0 to 1 2\n", "mine.txt:3: found \"2\", wanted the end of the line" },
    { ALL "send (r to 1\n", "mine.txt:3: found \"to 1\", wanted )" },
    { ALL "send r / (n - n) to r + 1\n", "mine.txt:3: found a division by 0" },
    { ALL "send r to r\n", "mine.txt:3: rank 0 sends to itself" },
    { ALL "for r in 0 .. 3\n  send 0 to 1\n", "wanted a name that is not in use yet" },
    { ALL "for s in 0 .. 3\nsend s to r + 1\n", "mine.txt:3: found no lines that are indented" },
    { ALL "send 0 to r + 1\n  send 1 to r + 1\n", "mine.txt:3: found lines below" },
    { ALL "channel 64\nsend 0 to r + 1\n", "mine.txt:3: found channel 64, wanted 0 to 63" },
    { ALL "for a in 0 .. 99999\n  for b in 0 .. 99999\n    let c = a\n", "fewer lines in total" },
    { ALL "if r == 0\n  send 0 to 1\n", "no receive of the other rank is left" },
    { ALL "if r == 0\n  add 0 from 1\n", "no message of the other rank is left" },
    { ALL "send r to r + 1\nadd r from r - 1\n", "wanted the same chunk" },
    { ALL "send r to r + 1\nadd r - 1 from r - 1\n", "rank 0 ends without the contribution of" },
    { ALL "for s in 1 .. 2\n  send 0 to r + 1\n  add 0 from r - 1\n", "a second time" },
    { "collective all_gather\nchunks n\nsend r + 1 to r + 1\ncopy r from r - 1\n",
      "has not received yet" },
    { "collective all_gather\nchunks n\nsend r to r + 1\nadd r - 1 from r - 1\n", "adds nothing" },
    { "collective all_gather\nchunks 3\nsend r to r + 1\n", "equally many of each rank" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_algo) a = made (bad[i].lines, 4, &error);
    assert_null (a);
    if (!strstr (error->message, bad[i].wanted))
      fail_msg ("%s: found \"%s\", wanted \"%s\"", bad[i].lines, error->message, bad[i].wanted);
  }
}

static void
a_deadlock_is_refused_with_its_cycle (void **state)
{
  g_autoptr (GError) error = NULL;

  (void) state;
  assert_null (made (ALL "add r - 1 from r - 1\nsend r to r + 1\n", 3, &error));
  assert_string_equal (error->message,
                       "mine.txt: with 3 ranks: deadlock: "
                       "rank 0, line 3 (add 2 from 2) waits for rank 2, line 4 (send 2 to 0) "
                       "waits for rank 2, line 3 (add 1 from 1) waits for rank 1, line 4 (send 1 "
                       "to 2) waits for rank 1, line 3 (add 0 from 0) waits for rank 0, line 4 "
                       "(send 0 to 1) waits for rank 0, line 3 (add 2 from 2)");
}

/* ------------------------------------------------------------------- price */

#define JOB                                                                                        \
  "model=gpt2-medium topology=dgx-a100 global_batch_size=64 deterministic_mode=true gpus=8 "

static double
seconds (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "");

  return t->seconds;
}

static void
the_ring_as_data_takes_as_long_as_the_ring (void **state)
{
  static const char *const jobs[] = {
    JOB, JOB "use_distributed_optimizer=false overlap_grad_reduce=true ",
    JOB "tensor_model_parallel_size=2 topology=dgx-h100 "
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autofree char *words = g_strconcat (jobs[i], "collective_algorithm_files=dp:", ring, NULL);
    assert_near (seconds (words), seconds (jobs[i]));
  }
}

/* With one GPU per node every step of the ring is between nodes. */
static void
a_collective_as_data_costs_what_the_formula_says (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1), node = made_cluster (1, 8);
  const struct weft_cluster *const clusters[] = { &cluster, &node };

  (void) state;
  cluster.f.fabric_latency = node.f.node_intra_latency = 10e-6;
  for (unsigned i = 0; i < 2; i++) {
    struct weft_fabric f = weft_fabric_make (clusters[i]);
    struct weft_group group = { 0, { 8, 1 }, { 1, 0 } };
    struct weft_coll_shape shape;
    weft_coll_shape_init (&shape, &f, &group);
    g_autoptr (weft_algo) a = loaded (ring, 8), b = loaded (halving, 8);
    g_autoptr (weft_algo) c = made (doubling, 8, NULL);
    double rate = i ? MADE_PORT : MADE_NIC, latency = 10e-6;
    for (double bytes = 8; bytes < 1e10; bytes *= 50) {
      double moved = bytes > WEFT_COLL_SCALAR_BYTES ? bytes : 0;
      struct weft_traffic t = weft_coll_plan_data (&shape, a, bytes, NULL);
      assert_near (t.seconds, weft_coll_plan (&shape, WEFT_OP_ALL_REDUCE, bytes, NULL,
                                              WEFT_COLL_RING).seconds);
      t = weft_coll_plan_data (&shape, b, bytes, NULL);
      assert_near (t.seconds, 6 * latency + moved * 14 / 8 / rate);
      t = weft_coll_plan_data (&shape, c, bytes, NULL);
      assert_near (t.seconds, 3 * latency + moved * 3 / rate);
    }
    weft_coll_shape_release (&shape);
  }
}

/* ----------------------------------------------------------------- refusals */

static void
a_file_that_no_collective_uses_is_refused (void **state)
{
  static const struct {
    const char *words, *wanted;
  } bad[] = {
    { JOB "collective_algorithm_files=stage:", "found no all_reduce in group stage" },
    { JOB "collective_algorithm_files=tp:", "group tp has 1 rank" },
    { JOB "collective_algorithm_files=pd:", "unknown group \"pd\"" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autoptr (GError) error = NULL;
    g_autofree char *words = g_strconcat (bad[i].words, ring, NULL);
    struct weft_job job;
    if (!weft_test_job (words, &job, &error))
      fail_msg ("%s", error->message);
    assert_null (weft_plan_new (&job, &error));
    if (!strstr (error->message, bad[i].wanted))
      fail_msg ("%s: found \"%s\", wanted \"%s\"", words, error->message, bad[i].wanted);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_ring_as_data_has_the_moves_of_the_ring),
  cmocka_unit_test (moves_compute_the_sums),
  cmocka_unit_test (what_does_not_hold_is_refused_with_its_line),
  cmocka_unit_test (a_deadlock_is_refused_with_its_cycle),
  cmocka_unit_test (the_ring_as_data_takes_as_long_as_the_ring),
  cmocka_unit_test (a_collective_as_data_costs_what_the_formula_says),
  cmocka_unit_test (a_file_that_no_collective_uses_is_refused),
};

WEFT_TESTS (tests)
