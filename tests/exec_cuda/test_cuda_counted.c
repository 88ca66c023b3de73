/* Exchanges of the token rows of experts, whose number is known only during the step: hosts wait
 * for the numbers of rows (row counts) in the middle of the step. Random jobs with one GPU per
 * rank, on a device that records calls.
 *
 * test_exec_cuda cuda_counted -- [SEED [JOBS]]: other jobs, or fewer of them */
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/doubles/cuda_log.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <stdlib.h>
#include <string.h>

#define SEED 2027
/* numbers of jobs: usually, and with `./weft test --long` */
enum { JOBS = 50, ALL_JOBS = 120 };
#define MOST_RANKS 8
/* only jobs with at most this many ops over all ranks are drawn, because the checks of more ops
 * take long */
#define MOST_OPS 12000

static uint32_t
count_exchanges (const weft_plan *plan)
{
  uint32_t n = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++) {
      enum weft_op_kind kind = plan->role[role]->op[op].kind;
      n += kind != weft_op_even (kind);
    }
  return n;
}

/* Draws random jobs until a job can run, is small, and exchanges rows of experts whose number is
 * known only during the step. The caller frees the plan and *words. */
static weft_plan *
draw (GRand *rand, char **words)
{
  for (;;) {
    struct weft_job job;
    g_autofree char *plain = weft_random_job (rand);
    g_autoptr (weft_plan) plan = NULL;
    if (!strstr (plain, "num_moe_experts=") || strstr (plain, "moe_pad"))
      continue;
    *words = g_strconcat (plain, " moe_load_imbalance=64 reduction_order=fast", NULL);
    if (weft_test_job (*words, &job, NULL) && job.cluster.n_gpus <= MOST_RANKS)
      plan = weft_plan_new (&job, NULL);
    if (plan && count_exchanges (plan) && weft_test_ops (plan) <= MOST_OPS)
      return g_steal_pointer (&plan);
    g_free (*words);
  }
}

static void
assert_right (const char *words, char *wrong)
{
  if (wrong)
    fail_msg ("%s; in %s", wrong, words);
}

static void
look (weft_exec *x, const recorded_cuda *d, uint32_t first, const char *words)
{
  uint32_t n = d->call->len - first;

  while (n > 0 && recorded_call_at (d, first + n - 1)->kind == RECORDED_query)
    n--; /* leaves out the polls that wait for the end of the step */
  g_autoptr (cuda_log) log = cuda_log_new (d, x, FALSE, first, n);
  assert_right (words, cuda_log_arenas (log));
  assert_right (words, cuda_log_ops (log));
  assert_right (words, cuda_log_order (log));
  assert_right (words, cuda_log_comms (log));
  assert_right (words, cuda_log_hosts (log));
}

/* Runs a step and checks its calls. Returns FALSE if the buffers have too little room for the
 * counted rows. */
static gboolean
step (weft_exec *x, const recorded_cuda *d, const char *words)
{
  g_autoptr (GError) error = NULL;
  uint32_t first = d->call->len;
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);

  if (!t && !strstr (error->message, "the buffer is too small for the counted rows"))
    fail_msg ("%s; in %s", error->message, words);
  if (t)
    look (x, d, first, words);
  return t != NULL;
}

static weft_exec *
open_plan (recorded_cuda *d, const weft_plan *plan, const char *words)
{
  struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &options, &error);

  if (!x && !strstr (error->message, "NCCL needs equal parts") &&
      !strstr (error->message, "planned and simulated"))
    fail_msg ("%s; in %s", error->message, words);
  return x;
}

/* Runs a step in which every row count is 1 (`ones`) or 0. If buffers have no room for counts of 1,
 * the counts are 0 instead. Adds the number of sends to *sent. Returns FALSE if the executor
 * refuses the plan, for example because NCCL needs equal parts. */
static gboolean
look_at_plan (const weft_plan *plan, const char *words, gboolean ones, uint32_t *sent)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  weft_exec *x = open_plan (d, plan, words);

  if (!x)
    return FALSE;
  d->counted = ones ? plan : NULL;
  gboolean fits = step (x, d, words);
  for (uint32_t i = 0; i < d->call->len && fits; i++)
    *sent += recorded_call_at (d, i)->kind == RECORDED_send;
  x->ops->close (x);
  assert_int_equal (d->n_open, 0);
  return fits || look_at_plan (plan, words, FALSE, sent);
}

static void
hosts_that_wait_for_counts_keep_nobody_waiting_for_ever (void **state)
{
  const struct weft_tests_draw *drawn = *state;
  g_autoptr (GRand) rand = g_rand_new_with_seed (drawn->seed);
  uint32_t left = drawn->jobs, staged = 0, lacking = 0, sent = 0, moved = 0;

  while (left) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    uint32_t before = sent;
    gboolean ran = look_at_plan (plan, words, TRUE, &sent);
    left -= ran;
    lacking += !ran;
    staged += ran && plan->mesh.pp > 1;
    moved += sent > before;
  }
  print_message ("%u jobs, %u of them with stages, %u with sends; besides %u that NCCL lacks "
                 "something for\n",
                 drawn->jobs, staged, moved, lacking);
  assert_true (staged >= drawn->jobs / 8 && moved >= drawn->jobs / 2);
}

/* Whether all hosts still reach the end of the step if call i is removed. */
static gboolean
ends_without (recorded_cuda *d, weft_exec *x, uint32_t i, uint32_t n)
{
  struct recorded_call *call = &g_array_index (d->call, struct recorded_call, i), keep = *call;

  call->kind = RECORDED_choose;
  g_autoptr (cuda_log) log = cuda_log_new (d, x, FALSE, 0, n);
  g_autofree char *wrong = cuda_log_hosts (log);
  *call = keep;
  return wrong == NULL;
}

static void
without_a_record_a_host_waits_for_or_one_end_of_a_send_nobody_ends (void **state)
{
  const char *words = "model=mixtral-nano topology=cpu seq_length=16 num_layers=2 gpus=4 "
                      "global_batch_size=4 reduction_order=fast expert_model_parallel_size=2 "
                      "pipeline_model_parallel_size=2";
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  weft_exec *x = open_plan (d, plan, words);
  uint32_t n, queries = 0, sends = 0;

  (void) state;
  recorded_cuda_forget (d);
  d->counted = plan;
  assert_true (step (x, d, words));
  for (n = d->call->len; recorded_call_at (d, n - 1)->kind == RECORDED_query;)
    n--;
  for (uint32_t i = 0; i < n; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    for (uint32_t j = i; c->kind == RECORDED_query && j-- > 0;)
      if (recorded_call_at (d, j)->kind == RECORDED_record &&
          recorded_call_at (d, j)->thing == c->thing) {
        assert_false (ends_without (d, x, j, n));
        queries++;
        break;
      }
    if (c->kind == RECORDED_send) {
      assert_false (ends_without (d, x, i, n));
      sends++;
    }
  }
  assert_true (queries >= 8 && sends > 2 * queries);
  x->ops->close (x);
}

static weft_exec *
open_graph (recorded_cuda *d, const weft_plan *plan, GError **error)
{
  struct weft_exec_options options = { .own = made_own (&weft_exec_cuda, "graph") };

  return weft_exec_cuda_open (&d->calls, plan, &options, error);
}

/* --graph is refused if ranks exchange rows whose number is known only during the step: the whole
 * step would be one graph, in which the host cannot read the row counts. Jobs whose expert inputs
 * are padded to the capacity may run as a graph, because the number of rows is fixed. */
static void
graphs_are_for_shares_that_are_padded (void **state)
{
#define TINY                                                                                       \
  "model=mixtral-nano topology=cpu seq_length=16 num_layers=1 gpus=2 global_batch_size=2 "         \
  "reduction_order=fast "
  static const char *const jobs[][2] = {
    { TINY "expert_model_parallel_size=2", "all_to_all_v" },
    { TINY "tensor_model_parallel_size=2 sequence_parallel=true", "all_gather_v" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", jobs[i][0]);
    g_autoptr (weft_plan) padded = weft_test_plan (
        "%s moe_expert_capacity_factor=1.5 moe_pad_expert_input_to_capacity=true", jobs[i][0]);
    g_autoptr (recorded_cuda) d = recorded_cuda_new ();
    g_autoptr (GError) error = NULL;
    g_autofree char *named = g_strdup_printf ("--graph: found %s ", jobs[i][1]);
    assert_null (open_graph (d, plan, &error));
    assert_non_null (strstr (error->message, named));
    assert_non_null (strstr (error->message, "moe_pad_expert_input_to_capacity"));
    weft_exec *x = open_graph (d, padded, NULL);
    assert_non_null (x);
    for (int k = 0; k < 3; k++) {
      g_autoptr (weft_timeline) t = weft_exec_step (x, NULL);
      assert_non_null (t);
    }
    x->ops->close (x);
    assert_int_equal (d->n_open, 0);
  }
}

#define EXPERTS                                                                                    \
  "model=mixtral-nano topology=cpu seq_length=16 num_layers=2 global_batch_size=4 "                \
  "reduction_order=fast moe_load_imbalance=8 gpus=2 expert_model_parallel_size=2 "

/* Number of rows that the buffer of the first all-to-all with row counts can hold. */
static uint64_t
room_for_rows (const weft_plan *plan)
{
  const weft_program *p = plan->role[0];
  uint32_t op = 0;

  while (p->op[op].kind != WEFT_OP_ALL_TO_ALL_V)
    op++;
  uint64_t row = weft_op_shape (p, op)->dim[1] * weft_dtype_bytes (weft_op_shape (p, op)->dtype);
  return p->buf[p->uses[p->op[op].uses].buf].bytes / row;
}

/* Runs a step in which the host of every rank reads these 8 row counts. Returns whether the step
 * succeeded. *why: the error message, or NULL; the caller frees it. */
static gboolean
runs_with (const weft_plan *plan, const int64_t counts[8], char **why)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (GError) error = NULL;
  weft_exec *x = open_plan (d, plan, EXPERTS);

  assert_true (step (x, d, EXPERTS));
  for (uint32_t i = 0; i < d->copy->len; i++) {
    const struct weft_gpu_copy *copy = &g_array_index (d->copy, struct weft_gpu_copy, i);
    if (copy->way == WEFT_GPU_TO_HOST && copy->bytes == 8 * sizeof (int64_t))
      memcpy (copy->to, counts, 8 * sizeof (int64_t));
  }
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);
  *why = error ? g_strdup (error->message) : NULL;
  x->ops->close (x);
  assert_int_equal (d->n_open, 0);
  return t != NULL;
}

/* The host must accept row counts that fill the buffer to its last row. It must refuse: one row
 * more, negative counts, counts whose sum overflows, and counts whose lower 32 bits are small. */
static void
counts_fit_to_the_last_row_and_never_by_overflow (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (EXPERTS);
  const int64_t most = (int64_t) room_for_rows (plan), huge = G_MAXINT64, word = (int64_t) 1 << 32;
  const struct {
    int64_t counts[8];
    gboolean fits;
  } cases[] = {
    { { most }, TRUE },
    { { 0, 0, 0, 0, 0, 0, 0, most }, TRUE },
    { { most - 1, 0, 0, 0, 1 }, TRUE },
    { { most, 0, 0, 0, 1 }, FALSE },
    { { most + 1 }, FALSE },
    { { huge, huge, 2 }, FALSE }, /* the sum of these counts is 2^64 */
    { { huge, 0, 0, 0, huge, 2 }, FALSE },
    { { word }, FALSE },
    { { word + 1, 0, 0, 0, 1 }, FALSE },
    { { 2, -1 }, FALSE },
    { { 0, 0, 0, 0, 0, 0, 0, -1 }, FALSE },
    { { 1, 0, 0, 0, G_MININT64 }, FALSE },
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autofree char *why = NULL;
    if (runs_with (plan, cases[i].counts, &why) != cases[i].fits)
      fail_msg ("case %zu: %s", i, why ? why : "ran");
    if (why)
      assert_non_null (strstr (why, "the buffer is too small for the counted rows"));
  }
}

static struct weft_tests_draw drawn = { .seed = SEED };

static int
read_draw (int argc, char **argv)
{
  drawn.jobs = weft_tests_cases (JOBS, ALL_JOBS);
  weft_tests_read_draw (argc, argv, &drawn);
  return WEFT_TESTS_RUN;
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_prestate (hosts_that_wait_for_counts_keep_nobody_waiting_for_ever, &drawn),
  cmocka_unit_test (without_a_record_a_host_waits_for_or_one_end_of_a_send_nobody_ends),
  cmocka_unit_test (graphs_are_for_shares_that_are_padded),
  cmocka_unit_test (counts_fit_to_the_last_row_and_never_by_overflow),
};

WEFT_TESTS (tests, .seconds = 6, .begin = read_draw)
