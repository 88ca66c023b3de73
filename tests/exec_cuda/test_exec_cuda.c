/* The CUDA executor on a device that records calls: streams and events implement exactly the order
 * of the plan. */
#include "core/base/sanitize.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/doubles/cuda_log.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define SEED 20261122
#define SPARSE (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 6 : 1)
#define N_JOB (weft_tests_cases (150, 300) / SPARSE)
#define MOST_RANKS 8
#define NANO "model=gpt2-nano topology=cpu seq_length=16 num_layers=2 global_batch_size=4 "
/* limit of a job's ops over all ranks, because checking more takes long */
#define MOST_OPS 20000

/* Draws random jobs until a job is legal and small. The caller frees the plan and *words. */
static weft_plan *
draw (GRand *rand, char **words)
{
  for (;;) {
    struct weft_job job;
    g_autoptr (weft_plan) plan = NULL;
    *words = weft_random_job (rand);
    if (weft_test_job (*words, &job, NULL) && job.cluster.n_gpus <= MOST_RANKS)
      plan = weft_plan_new (&job, NULL);
    if (plan && weft_test_ops (plan) <= MOST_OPS)
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

/* Checks the recorded calls of a step, from call `first` on, with the functions of cuda_log.h. */
static void
look (const recorded_cuda *d, weft_exec *x, gboolean shared, uint32_t first, const char *words)
{
  uint32_t n = d->call->len - first;

  while (n > 0 && (recorded_call_at (d, first + n - 1)->kind == RECORDED_query ||
                   recorded_call_at (d, first + n - 1)->kind == RECORDED_elapsed))
    n--;
  g_autoptr (cuda_log) log = cuda_log_new (d, x, shared, first, n);
  assert_right (words, cuda_log_arenas (log));
  assert_right (words, cuda_log_quiet (log));
  assert_right (words, cuda_log_ops (log));
  assert_right (words, cuda_log_order (log));
  assert_right (words, cuda_log_waits (log));
  if (!shared)
    assert_right (words, cuda_log_comms (log));
}

static void
step (weft_exec *x, const char *words)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);

  if (!t)
    fail_msg ("%s; in %s", error->message, words);
}

/* Whether an error is a legitimate refusal: NCCL lacks an operation, or no GPU computes the job. */
static gboolean
is_refusal (const GError *error)
{
  static const char *const reasons[] = { "between GPUs:", "NCCL needs equal parts",
                                         "--graph: found", "moe_load_imbalance: found",
                                         "planned and simulated" };

  for (unsigned i = 0; i < G_N_ELEMENTS (reasons); i++)
    if (strstr (error->message, reasons[i]))
      return TRUE;
  return FALSE;
}

/* Opens an executor. Returns NULL if the plan was refused for a legitimate reason. */
static weft_exec *
open_plan (recorded_cuda *d, const weft_plan *plan, struct weft_exec_options options,
           const char *words)
{
  g_autoptr (GError) error = NULL;
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &options, &error);

  if (!x && !is_refusal (error))
    fail_msg ("%s; in %s", error->message, words);
  if (!x)
    assert_int_equal (d->n_open, 0);
  return x;
}

static void
close_plan (recorded_cuda *d, weft_exec *x)
{
  x->ops->close (x);
  assert_int_equal (d->n_open, 0);
}

static struct weft_exec_options
how (const weft_plan *plan, gboolean shared)
{
  return (struct weft_exec_options){ .own = made_own (&weft_exec_cuda, "ranks-per-gpu=%u",
                                                      shared ? plan->mesh.n_ranks : 1) };
}

static gboolean
look_at_plan (const weft_plan *plan, gboolean shared, const char *words)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  weft_exec *x = open_plan (d, plan, how (plan, shared), words);

  if (!x)
    return FALSE;
  for (int i = 0; i < 2; i++) {
    uint32_t first = d->call->len;
    step (x, words);
    look (d, x, shared, first, words);
  }
  close_plan (d, x);
  return TRUE;
}

static void
streams_and_events_are_the_plan (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED);
  uint32_t real = 0, shared = 0;

  (void) state;
  for (uint32_t i = 0; i < N_JOB; i++) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    real += look_at_plan (plan, FALSE, words);
    shared += plan->mesh.n_ranks > 1 && look_at_plan (plan, TRUE, words);
  }
  print_message ("%u jobs with a GPU for each rank, %u with one for all\n", real, shared);
  assert_true (real > N_JOB / 2 && shared > N_JOB / 3);
}

/* ------------------------------------------------------------------ without a wait */

#define N_WAITS 40 /* random calls of a job; each event wait among them is removed once */
#define FEW_OPS 2000

/* Whether the checks of cuda_log.h notice that wait i is missing. TRUE if it orders no work. */
static gboolean
is_missed (recorded_cuda *d, weft_exec *x, uint32_t first, uint32_t i)
{
  struct recorded_call *call = &g_array_index (d->call, struct recorded_call, i), keep = *call;

  call->kind = RECORDED_choose;
  call->stream = NULL;
  g_autoptr (cuda_log) log = cuda_log_new (d, x, FALSE, first, d->call->len - first);
  g_autofree char *wrong = cuda_log_order (log);
  *call = keep;
  return wrong || !cuda_log_orders_work (log, i);
}

static void
take_out_waits (const weft_plan *plan, GRand *rand, const char *words)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  weft_exec *x = open_plan (d, plan, how (plan, FALSE), words);

  if (!x)
    return;
  uint32_t first = d->call->len;
  step (x, words);
  for (int i = 0; i < N_WAITS; i++) {
    uint32_t at = (uint32_t) g_rand_int_range (rand, (gint32) first, (gint32) d->call->len);
    const struct recorded_call *call = recorded_call_at (d, at);
    if (call->kind == RECORDED_wait && !is_missed (d, x, first, at))
      fail_msg ("%s: call %u, a wait of op %u of rank %u, can be left out", words, at, call->op,
                call->row);
  }
  close_plan (d, x);
}

static void
without_any_of_its_waits_a_step_has_another_order (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED + 1);
  uint32_t left = 40 / SPARSE;

  (void) state;
  while (left > 0) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    if (weft_test_ops (plan) > FEW_OPS)
      continue;
    take_out_waits (plan, rand, words);
    left--;
  }
}

static void
any_order_of_issue_is_the_plan (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED + 4);

  (void) state;
  for (uint32_t i = 0; i < 60 / SPARSE; i++) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    g_autoptr (recorded_cuda) d = recorded_cuda_new ();
    struct weft_exec_options options = how (plan, TRUE);
    made_own_add (&options.own, &weft_exec_cuda, "stress=%u", 1 + i);
    weft_exec *x = open_plan (d, plan, options, words);
    if (!x)
      continue;
    uint32_t first = d->call->len;
    step (x, words);
    look (d, x, TRUE, first, words);
    close_plan (d, x);
  }
}

/* ------------------------------------------------------------------------- offload */

/* Returns the number of kernels of lane gpu that may run concurrently with a work item. */
static uint32_t
count_beside (const cuda_log *log, const struct cuda_work *w)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < log->work->len; i++) {
    const struct cuda_work *k = &g_array_index (log->work, struct cuda_work, i);
    n += k->kind == RECORDED_kernel && k->stream != w->stream && k->row == w->row &&
         w->before[k->stream] <= k->seq && k->before[w->stream] <= w->seq;
  }
  return n;
}

static enum weft_lane
lane_of (const weft_plan *plan, const struct cuda_work *w)
{
  return plan->role[weft_mesh_stage (&plan->mesh, w->row)]->op[w->op].lane;
}

/* Counts work items of a lane: count[0] all, count[1] those that may overlap with a kernel. */
static void
count_lane (const weft_plan *plan, const cuda_log *log, enum weft_lane lane, uint32_t count[2])
{
  count[0] = count[1] = 0;
  for (uint32_t i = 0; i < log->work->len; i++) {
    const struct cuda_work *w = &g_array_index (log->work, struct cuda_work, i);
    if (w->op == WEFT_NO_OP || lane_of (plan, w) != lane)
      continue;
    count[0]++;
    count[1] += count_beside (log, w) > 0;
  }
}

/* Copies and the CPU optimizer have streams of their own, so kernels may run concurrently with most
 * copies and optimizer updates. Each stream still makes its calls in the order of the plan. */
static void
what_is_on_the_host_moves_and_is_updated_beside_kernels (void **state)
{
  static const char *const jobs[] = {
    NANO "num_layers=6 cpu_offloading=true cpu_offloading_num_layers=4 "
         "cpu_offloading_double_buffering=true",
    NANO "num_layers=6 gpus=2 optimizer_cpu_offload=true optimizer_offload_fraction=0.5 "
         "overlap_cpu_optimizer_d2h_h2d=true",
  };
  static const uint32_t back[] = { 100, 1 }, updates[] = { 0, 2 };
  uint32_t to_host[2], from_host[2], host[2];

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", jobs[i]);
    g_autoptr (recorded_cuda) d = recorded_cuda_new ();
    weft_exec *x = open_plan (d, plan, how (plan, TRUE), jobs[i]);
    uint32_t first = d->call->len;
    step (x, jobs[i]);
    look (d, x, TRUE, first, jobs[i]);
    cuda_log *log = cuda_log_new (d, x, TRUE, first, d->call->len - first);
    assert_right (jobs[i], cuda_log_arenas (log));
    assert_right (jobs[i], cuda_log_order (log));
    count_lane (plan, log, WEFT_LANE_D2H, to_host);
    count_lane (plan, log, WEFT_LANE_H2D, from_host);
    count_lane (plan, log, WEFT_LANE_HOST, host);
    assert_true (to_host[0] > 0 && to_host[1] == to_host[0]);
    assert_true (from_host[1] >= back[i]); /* most copies of the CPU optimizer end the step */
    assert_true (host[0] >= updates[i] && host[1] == host[0]);
    cuda_log_free (log);
    close_plan (d, x);
  }
}

/* --------------------------------------------------------------------------- parts */

static void
run_parts (weft_exec *x, const weft_parts *parts, const char *words)
{
  g_autoptr (GError) error = NULL;

  for (uint32_t i = 0; i < parts->n; i++)
    if (!weft_exec_part (x, parts, i, &error))
      fail_msg ("%s: part %u: %s", words, i, error->message);
  g_autoptr (weft_timeline) t = weft_exec_end_parts (x, &error);
  if (!t)
    fail_msg ("%s; in %s", error->message, words);
}

static void
look_at_parts (const weft_plan *plan, gboolean shared, const char *words)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (weft_parts) parts = weft_parts_new (plan);
  weft_exec *x = open_plan (d, plan, how (plan, shared), words);

  if (!x)
    return;
  for (int i = 0; i < 2; i++) {
    uint32_t first = d->call->len;
    run_parts (x, parts, words);
    look (d, x, shared, first, words);
  }
  close_plan (d, x);
}

static void
a_step_in_parts_is_the_step (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED + 2);

  (void) state;
  for (int i = 0; i < 60 / SPARSE; i++) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    look_at_parts (plan, i % 2, words);
  }
}

static void
a_step_that_ends_early_waits_for_all_streams (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO "gpus=2");
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (weft_parts) parts = weft_parts_new (plan);
  g_autoptr (GError) error = NULL;
  weft_exec *x = open_plan (d, plan, how (plan, FALSE), NANO);
  uint32_t finished = 0;

  (void) state;
  assert_true (weft_exec_part (x, parts, 0, &error) && weft_exec_part (x, parts, 1, &error));
  g_autoptr (weft_timeline) t = weft_exec_end_parts (x, &error);
  assert_non_null (t);
  for (uint32_t i = 0; i < d->call->len; i++)
    finished += recorded_call_at (d, i)->kind == RECORDED_finish;
  assert_true (finished >= 2 * 4); /* two ranks, one `finish` call for each of at least 4 lanes */
  uint32_t first = d->call->len;
  step (x, NANO);
  look (d, x, FALSE, first, NANO);
  close_plan (d, x);
}

/* -------------------------------------------------------------------------- graphs */

static gboolean
is_enqueued (const struct recorded_call *c, uint32_t row)
{
  return c->row == row && (recorded_is_work (c->kind) || c->kind == RECORDED_record ||
                           c->kind == RECORDED_wait || c->kind == RECORDED_mark ||
                           c->kind == RECORDED_group_start || c->kind == RECORDED_group_end);
}

static gboolean
is_same_kernel (const recorded_cuda *d, uint32_t a, uint32_t b)
{
  const struct recorded_kernel *x = &g_array_index (d->kernel, struct recorded_kernel, a),
                               *y = &g_array_index (d->kernel, struct recorded_kernel, b);
  return x->n == y->n && memcmp (x->k, y->k, x->n * sizeof *x->k) == 0;
}

static gboolean
is_same_call (const recorded_cuda *d, const struct recorded_call *a, const struct recorded_call *b)
{
  const struct weft_gpu_copy *x, *y;

  if (a->kind != b->kind || a->stream != b->stream || a->thing != b->thing || a->op != b->op)
    return FALSE;
  if (a->kind == RECORDED_kernel || a->kind == RECORDED_host)
    return is_same_kernel (d, a->at, b->at);
  if (a->kind != RECORDED_copy)
    return TRUE;
  x = &g_array_index (d->copy, struct weft_gpu_copy, a->at);
  y = &g_array_index (d->copy, struct weft_gpu_copy, b->at);
  return x->to == y->to && x->from == y->from && x->bytes == y->bytes;
}

/* Returns the calls among [first, end) that enqueue work of rank `row`. The caller unrefs them. */
static GPtrArray *
calls_of (const recorded_cuda *d, uint32_t row, uint32_t first, uint32_t end)
{
  GPtrArray *calls = g_ptr_array_new ();

  for (uint32_t i = first; i < end; i++)
    if (is_enqueued (recorded_call_at (d, i), row))
      g_ptr_array_add (calls, (void *) (uintptr_t) recorded_call_at (d, i));
  return calls;
}

static void
assert_same_calls (const recorded_cuda *d, uint32_t row, const uint32_t *at, const char *words)
{
  g_autoptr (GPtrArray) played = calls_of (d, row, at[0], at[1]),
                        captured = calls_of (d, row, at[1], at[2]);

  if (played->len != captured->len)
    fail_msg ("%s: rank %u: %u calls are played and %u captured", words, row, played->len,
              captured->len);
  for (uint32_t i = 0; i < played->len; i++)
    if (!is_same_call (d, g_ptr_array_index (played, i), g_ptr_array_index (captured, i)))
      fail_msg ("%s: rank %u: call %u is another when it is captured", words, row, i);
}

/* Checks that a capture enqueues work only on its origin stream and streams that joined the
 * capture. */
static void
assert_forked (const recorded_cuda *d, uint32_t first, uint32_t end, const char *words)
{
  g_autoptr (GHashTable) inside = g_hash_table_new (NULL, NULL);

  for (uint32_t i = first; i < end; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    if (c->kind == RECORDED_capture_start)
      g_hash_table_add (inside, (void *) (uintptr_t) c->stream);
    if (c->kind == RECORDED_graph_run)
      return;
    if (c->kind == RECORDED_wait && g_hash_table_contains (inside, c->thing))
      g_hash_table_add (inside, (void *) (uintptr_t) c->stream);
    else if (c->stream && !g_hash_table_contains (inside, c->stream))
      fail_msg ("%s: %s of op %u is on a stream that is not captured", words,
                recorded_words[c->kind], c->op);
    else if (c->kind == RECORDED_record)
      g_hash_table_add (inside, (void *) (uintptr_t) c->thing);
  }
}

static void
look_at_graph (const weft_plan *plan, gboolean shared, const char *words)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  struct weft_exec_options options = how (plan, shared);
  uint32_t at[4], runs = 0;

  made_own_add (&options.own, &weft_exec_cuda, "graph");
  weft_exec *x = open_plan (d, plan, options, words);
  if (!x)
    return;
  for (int i = 0; i < 3; i++) {
    at[i] = d->call->len;
    step (x, words);
  }
  at[3] = d->call->len;
  for (uint32_t row = 0; row < x->actors->n; row++)
    assert_same_calls (d, row, at, words);
  if (shared)
    assert_forked (d, at[1], at[2], words);
  for (uint32_t i = at[2]; i < at[3]; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    runs += c->kind == RECORDED_graph_run;
    assert_false (recorded_is_work (c->kind) || c->kind == RECORDED_wait);
  }
  assert_int_equal (runs, shared ? 1 : x->actors->n);
  close_plan (d, x);
}

static void
a_graph_is_what_is_played_without_it (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED + 3);

  (void) state;
  for (int i = 0; i < 60 / SPARSE; i++) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    look_at_graph (plan, i % 2, words);
  }
}

/* ---------------------------------------------------------- row counts on the host */

/* Opens an executor, runs three steps and closes it. Returns FALSE if a call fails. */
static gboolean
live (recorded_cuda *d, const weft_plan *plan, const struct weft_exec_options *options,
      GError **error)
{
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, options, error);
  gboolean ok = x != NULL;

  for (int i = 0; i < 3 && ok; i++) {
    g_autoptr (weft_timeline) t = weft_exec_step (x, error);
    ok = t != NULL;
  }
  weft_exec_cuda.close (x);
  return ok;
}

#define EXPERTS                                                                                    \
  "model=mixtral-nano topology=cpu seq_length=16 num_layers=2 global_batch_size=4 "                \
  "reduction_order=fast moe_load_imbalance=8 gpus=2 expert_model_parallel_size=2 "

/* Returns the number of rows that `from` sends to `to`, which is different for each pair. */
static uint64_t
rows_of (uint32_t from, uint32_t to)
{
  return 8 + 2 * from + to;
}

/* Writes row counts to the addresses in the mailbox to which calls [first, end) copy counts,
 * because the recording device copies nothing. Copies of a rank alternate between rows sent and
 * rows received; each copy contains the counts of 2 ranks with 4 experts each. */
static void
put_counts (const recorded_cuda *d, const weft_plan *plan, uint32_t first, uint32_t end)
{
  for (uint32_t i = first, n[2] = { 0 }; i < end; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    if (c->kind != RECORDED_copy || c->op == WEFT_NO_OP ||
        plan->role[0]->op[c->op].kind != WEFT_OP_COPY_OUT ||
        plan->role[0]->op[c->op].phase != WEFT_PHASE_FORWARD)
      continue;
    const struct weft_gpu_copy *copy = &g_array_index (d->copy, struct weft_gpu_copy, c->at);
    int64_t *counts = copy->to;
    gboolean got = n[c->row]++ % 2;
    for (uint32_t k = 0; k < 8; k++)
      counts[k] =
          (int64_t) (k % 4 ? 2 : (got ? rows_of (k / 4, c->row) : rows_of (c->row, k / 4)) - 6);
  }
}

/* Checks that the event for which the host waits before a launch was recorded after the copies of
 * row counts, on the stream of these copies. */
static void
assert_told (const recorded_cuda *d, const weft_plan *plan, uint32_t first, uint32_t launch)
{
  const struct recorded_call *start = recorded_call_at (d, launch), *query = NULL, *c;
  uint32_t copies = 0, i = launch;

  while (!query && i-- > first)
    if ((c = recorded_call_at (d, i))->row == start->row && c->kind == RECORDED_query)
      query = c;
  assert_true (query && query->op == start->op);
  for (; i-- > first &&
         ((c = recorded_call_at (d, i))->kind != RECORDED_record || c->thing != query->thing);)
    ;
  const struct recorded_thing *stream = recorded_call_at (d, i)->stream;
  while (i-- > first)
    if ((c = recorded_call_at (d, i))->stream == stream && c->kind == RECORDED_copy)
      copies += plan->role[0]->op[c->op].kind == WEFT_OP_COPY_OUT;
  assert_true (copies >= 2);
}

static void
assert_counted (const recorded_cuda *d, const weft_plan *plan, uint32_t first)
{
  uint32_t n[2] = { 0 }, there = 0;

  for (uint32_t i = first; i < d->call->len; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    gboolean recv = c->kind == RECORDED_recv;
    if (c->kind == RECORDED_group_start && c->op != WEFT_NO_OP &&
        plan->role[0]->op[c->op].kind == WEFT_OP_ALL_TO_ALL_V)
      assert_told (d, plan, first, i);
    if (c->kind != RECORDED_send && !recv)
      continue;
    const struct weft_gpu_transfer *t =
        &g_array_index (d->transfer, struct weft_gpu_transfer, c->at);
    uint64_t columns = weft_op_shape (plan->role[0], c->op)->dim[1];
    gboolean goes = t->n == columns * rows_of (c->row, t->peer);
    assert_int_equal (plan->role[0]->op[c->op].kind, WEFT_OP_ALL_TO_ALL_V);
    assert_true (goes || t->n == columns * rows_of (t->peer, c->row));
    there += goes && !recv && t->peer != c->row;
    n[recv]++;
  }
  assert_int_equal (n[0], n[1]);
  /* 2 ranks, 2 peers each, 2 layers, 2 microbatches; 3 exchanges in forward, 3 in backward */
  assert_int_equal (n[0], 2 * 2 * 2 * 2 * 6);
  assert_int_equal (there, n[0] / 4);
}

/* Whether a rank sent a byte to the peer of a transfer and received one, among the first `opened`
 * calls, with which the executor opened. */
static gboolean
has_met (const recorded_cuda *d, const struct weft_gpu_transfer *t, uint32_t opened)
{
  gboolean met[2] = { FALSE };

  for (uint32_t i = 0; i < opened; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    if (c->kind != RECORDED_send && c->kind != RECORDED_recv)
      continue;
    const struct weft_gpu_transfer *first =
        &g_array_index (d->transfer, struct weft_gpu_transfer, c->at);
    met[c->kind == RECORDED_recv] |= first->comm == t->comm && first->peer == t->peer;
  }
  return met[0] && met[1];
}

static void
stages_that_send_have_met_before_the_first_step (void **state)
{
  static const char *const ways[] = { "batch_p2p_comm=false pipeline_schedule=zb-h1",
                                      "batch_p2p_comm=true pipeline_schedule=1f1b" };

  (void) state;
  for (unsigned way = 0; way < G_N_ELEMENTS (ways); way++) {
    g_autofree char *words = g_strdup_printf (
        "model=gpt2-nano topology=cpu seq_length=16 num_layers=4 gpus=4 global_batch_size=6 "
        "pipeline_model_parallel_size=4 %s",
        ways[way]);
    g_autoptr (weft_plan) plan = weft_test_plan (words);
    g_autoptr (recorded_cuda) d = recorded_cuda_new ();
    weft_exec *x = open_plan (d, plan, how (plan, FALSE), words);
    uint32_t opened = d->call->len, sent = 0;
    assert_non_null (x);
    step (x, words);
    for (uint32_t i = opened; i < d->call->len; i++) {
      const struct recorded_call *c = recorded_call_at (d, i);
      if (c->kind == RECORDED_send || c->kind == RECORDED_recv)
        assert_true (
            has_met (d, &g_array_index (d->transfer, struct weft_gpu_transfer, c->at), opened));
      sent += c->kind == RECORDED_send;
    }
    assert_int_equal (sent, 2 * 3 * 6); /* 2 directions, 3 stage boundaries, 6 microbatches */
    close_plan (d, x);
  }
}

static void
rows_between_gpus_are_as_many_as_the_host_was_told (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (EXPERTS);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  weft_exec *x = open_plan (d, plan, how (plan, FALSE), EXPERTS);
  uint32_t first = d->call->len, second;

  (void) state;
  assert_non_null (x);
  step (x, EXPERTS);
  for (uint32_t i = first; i < d->call->len; i++)
    assert_true (recorded_call_at (d, i)->kind != RECORDED_send); /* counts of 0 rows */
  second = d->call->len;
  put_counts (d, plan, first, second);
  step (x, EXPERTS);
  look (d, x, FALSE, second, EXPERTS);
  assert_counted (d, plan, second);
  close_plan (d, x);
}

static void
counts_that_do_not_come_or_do_not_fit_end_the_step (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (EXPERTS);
  g_autoptr (recorded_cuda) d = recorded_cuda_new (), never = recorded_cuda_new ();
  struct weft_exec_options options = { .own = made_own (&weft_exec_cuda, "deadline=0.05") },
                           graph = { .own = made_own (&weft_exec_cuda, "graph") };
  g_autoptr (GError) error = NULL, late = NULL, one = NULL;
  uint32_t aborted = 0;

  (void) state;
  assert_false (live (d, plan, &graph, &one));
  assert_non_null (strstr (one->message, "--graph: found all_to_all_v"));
  never->never_ends = TRUE;
  assert_false (live (never, plan, &options, &late));
  assert_non_null (strstr (late->message, "takes longer than 0.05 s (deadline)"));
  assert_non_null (strstr (late->message, "has issued"));
  for (uint32_t i = 0; i < never->call->len; i++)
    aborted += recorded_call_at (never, i)->kind == RECORDED_comm_abort;
  assert_true (aborted >= 2);
  assert_int_equal (never->n_open + d->n_open, 0);

  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &(struct weft_exec_options){ 0 }, NULL);
  uint32_t first = d->call->len;
  step (x, EXPERTS);
  put_counts (d, plan, first, d->call->len);
  for (uint32_t i = 0; i < d->copy->len; i++) {
    const struct weft_gpu_copy *copy = &g_array_index (d->copy, struct weft_gpu_copy, i);
    if (copy->way == WEFT_GPU_TO_HOST && copy->bytes == 8 * sizeof (int64_t))
      *(int64_t *) copy->to = -1;
  }
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);
  assert_null (t);
  assert_non_null (strstr (error->message, "the buffer is too small for the counted rows"));
  close_plan (d, x);
}

/* ---------------------------------------------------------------------- evaluation */

static uint32_t
count_kernels (const recorded_cuda *d, enum weft_op_kind kind)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < d->kernel->len; i++)
    n += g_array_index (d->kernel, struct recorded_kernel, i).k->kind == kind;
  return n;
}

static void
an_evaluation_keeps_its_order_and_leaves_out_what_follows_from_gradients (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO "gpus=2 use_distributed_optimizer=true");
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  struct weft_control control = { .forward_only = TRUE };
  struct weft_exec_options options = how (plan, TRUE);

  (void) state;
  options.control = &control;
  weft_exec *x = open_plan (d, plan, options, NANO);
  uint32_t first = d->call->len;
  step (x, NANO);
  cuda_log *log = cuda_log_new (d, x, TRUE, first, d->call->len - first);
  assert_right (NANO, cuda_log_order (log));
  cuda_log_free (log);
  assert_int_equal (count_kernels (d, WEFT_OP_ADAM), 0);
  assert_int_equal (count_kernels (d, WEFT_OP_ATTENTION_BWD), 0);
  /* ranks x layers x microbatches */
  assert_int_equal (count_kernels (d, WEFT_OP_ATTENTION), 2 * 2 * 2);
  recorded_cuda_forget (d);
  control.forward_only = FALSE;
  step (x, NANO);
  assert_true (count_kernels (d, WEFT_OP_ADAM) > 0);
  close_plan (d, x);
}

/* -------------------------------------------------------------------------- errors */

/* Counts the calls from open to close. Then repeats the run for every stride-th of these calls and
 * lets this call fail (with `lost` also all later calls). Each run must leave no resource open. */
static void
fail_calls (const char *words, const struct weft_exec_options *options, uint32_t stride,
            gboolean lost)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (recorded_cuda) whole = recorded_cuda_new ();
  uint32_t told = 0;

  assert_true (live (whole, plan, options, NULL));
  assert_int_equal (whole->n_open, 0);
  for (uint64_t n = 1; n <= whole->n_calls; n += stride * SPARSE) {
    g_autoptr (recorded_cuda) d = recorded_cuda_new ();
    g_autoptr (GError) error = NULL;
    d->fail_at = n;
    d->lost_then = lost;
    gboolean ok = live (d, plan, options, &error);
    told += !ok;
    if (ok == (error != NULL) || d->n_open)
      fail_msg ("%s: call %u: %s, %u things left", words, (unsigned) n,
                error ? error->message : "-", d->n_open);
    if (error && !strstr (error->message, "the test wants"))
      fail_msg ("%s: call %u: %s", words, (unsigned) n, error->message);
  }
  assert_true (told > 100 / (stride * SPARSE)); /* errors of closing calls are not reported */
}

#define TINY                                                                                       \
  "model=gpt2-nano topology=cpu seq_length=16 num_layers=1 micro_batch_size=4 "                    \
  "global_batch_size=8 "

#define STAGES                                                                                     \
  "model=gpt2-nano topology=cpu seq_length=16 num_layers=2 global_batch_size=4 gpus=2 "            \
  "pipeline_model_parallel_size=2"

static void
any_call_may_fail_and_nothing_is_left (void **state)
{
  struct weft_exec_options own = { .times = TRUE },
                           shared = { .own = made_own (&weft_exec_cuda, "ranks-per-gpu=2") },
                           graph = { .own = made_own (&weft_exec_cuda, "ranks-per-gpu=2 graph") };

  (void) state;
  fail_calls (TINY "gpus=2", &own, 1, FALSE);
  fail_calls (TINY "gpus=2", &shared, 1, FALSE);
  fail_calls (TINY "gpus=2", &graph, 3, FALSE);
  fail_calls (EXPERTS "num_layers=1 global_batch_size=2", &own, 5, FALSE);
  fail_calls (STAGES, &shared, 3, FALSE);
  fail_calls (STAGES, &own, 3, FALSE);
  /* lost GPUs: all threads fail at once, and so do calls that close resources */
  fail_calls (TINY "gpus=2", &own, 7, TRUE);
  fail_calls (TINY "gpus=2", &graph, 11, TRUE);
  fail_calls (STAGES, &own, 11, TRUE);
}

static char *
refused (const char *words, recorded_cuda *d, const struct weft_exec_options *options)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (GError) error = NULL;

  assert_false (live (d, plan, options, &error));
  assert_int_equal (d->n_open, 0);
  return g_strdup (error->message);
}

static void
what_a_device_lacks_is_told_when_it_opens (void **state)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  const struct weft_exec_options plain = { 0 },
                                 three = { .own = made_own (&weft_exec_cuda, "ranks-per-gpu=3") },
                                 stressed = { .own = made_own (&weft_exec_cuda, "stress=1") };
  g_autofree char *kernel = NULL, *sums = NULL, *gpus = NULL, *split = NULL, *stress = NULL;

  (void) state;
  d->no_kernel = "norm_bwd";
  kernel = refused (TINY "gpus=2", d, &plain);
  assert_non_null (strstr (kernel, "has no kernel for norm_bwd"));
  d->no_kernel = NULL;
  d->calls.canonical = FALSE;
  sums = refused (TINY "gpus=2 reduction_order=canonical", d, &plain);
  assert_non_null (strstr (sums, "reduction_order: found canonical, wanted fast"));
  d->calls.canonical = TRUE;
  d->devices = 1;
  gpus = refused (TINY "gpus=2", d, &plain);
  assert_non_null (strstr (gpus, "found 1 GPU, wanted 2"));
  split = refused (TINY "gpus=2", d, &three);
  assert_non_null (strstr (split, "--ranks-per-gpu: found 3, wanted 1"));
  stress = refused (TINY "gpus=2", d, &stressed);
  assert_non_null (strstr (stress, "found one GPU per rank, wanted --ranks-per-gpu 2"));
}

static void
a_step_that_does_not_end_names_what_is_late (void **state)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  const struct weft_exec_options options = { .own = made_own (&weft_exec_cuda, "deadline=0.01") };
  uint32_t aborted = 0;

  (void) state;
  d->never_ends = TRUE;
  g_autofree char *late = refused (TINY "gpus=2", d, &options);
  assert_non_null (strstr (late, "takes longer than 0.01 s (deadline)"));
  assert_non_null (strstr (late, "rank 1 has not finished all_reduce bucket 0"));
  for (uint32_t i = 0; i < d->call->len; i++)
    aborted += recorded_call_at (d, i)->kind == RECORDED_comm_abort;
  assert_true (aborted >= 2);
}

static void
times_are_those_of_events (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO "gpus=2");
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (GError) error = NULL;
  struct weft_exec_options options = { .times = TRUE };
  weft_exec *x = open_plan (d, plan, options, NANO);

  (void) state;
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);
  assert_non_null (t);
  for (uint32_t row = 0; row < t->n; row++)
    for (uint32_t op = 0; op < plan->role[t->role[row]]->n_op; op++)
      assert_true (t->end[row][op] > t->begin[row][op]);
  close_plan (d, x);
}

/* weft_cuda_load() returns the CUDA module, or an error: CUDA, a driver or a GPU is missing. */
static void
this_machine_has_cuda_or_says_what_is_missing (void **state)
{
  g_autoptr (GError) error = NULL;
  const struct weft_gpu_calls *calls = weft_cuda_load (&error);

  (void) state;
  assert_true ((calls == NULL) == (error != NULL));
  if (error)
    assert_true (g_str_has_prefix (error->message, "--executor: cuda "));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (streams_and_events_are_the_plan),
  cmocka_unit_test (without_any_of_its_waits_a_step_has_another_order),
  cmocka_unit_test (any_order_of_issue_is_the_plan),
  cmocka_unit_test (what_is_on_the_host_moves_and_is_updated_beside_kernels),
  cmocka_unit_test (a_step_in_parts_is_the_step),
  cmocka_unit_test (a_step_that_ends_early_waits_for_all_streams),
  cmocka_unit_test (a_graph_is_what_is_played_without_it),
  cmocka_unit_test (stages_that_send_have_met_before_the_first_step),
  cmocka_unit_test (rows_between_gpus_are_as_many_as_the_host_was_told),
  cmocka_unit_test (counts_that_do_not_come_or_do_not_fit_end_the_step),
  cmocka_unit_test (an_evaluation_keeps_its_order_and_leaves_out_what_follows_from_gradients),
  cmocka_unit_test (any_call_may_fail_and_nothing_is_left),
  cmocka_unit_test (what_a_device_lacks_is_told_when_it_opens),
  cmocka_unit_test (a_step_that_does_not_end_names_what_is_late),
  cmocka_unit_test (times_are_those_of_events),
  cmocka_unit_test (this_machine_has_cuda_or_says_what_is_missing),
};

WEFT_TESTS (tests, .seconds = 22)
