/* The CUDA executor in several processes of one job, on devices that record calls. */
#include "exec_gpu/cuda/exec_cuda.h"
#include "launch/rendezvous.h"
#include "tests/runner/processes.h"
#include "tests/made/random_job.h"
#include "tests/doubles/recorded_cuda.h"
#include "tests/made/own.h"
#include "tests/runner/runner.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SEED 20261123
#define N_JOB 40
#define MOST_RANKS 8
#define MOST_OPS 12000

/* ------------------------------------------------------------------------- digests */

/* Returns a number for a stream or event. The streams and events of a rank are counted from 1 in
 * the order of their first use, so that the numbers do not depend on the process. */
static uint32_t
number_of (GHashTable *numbers, const void *thing)
{
  void *known;

  if (!thing)
    return 0;
  if (g_hash_table_lookup_extended (numbers, thing, NULL, &known))
    return GPOINTER_TO_UINT (known);
  uint32_t n = g_hash_table_size (numbers) + 1;
  g_hash_table_insert (numbers, (void *) (uintptr_t) thing, GUINT_TO_POINTER (n));
  return n;
}

static void
append_comm (GString *text, const void *comm)
{
  const struct recorded_thing *c = comm;

  g_string_append_printf (text, " comm %d.%u.%u.%u.%d", c->kind, c->parent, c->n, c->rank,
                          c->color);
}

/* Appends the arguments of a call to a text, except addresses, which depend on the process. */
static void
append_what (GString *text, const recorded_cuda *d, const struct recorded_call *c)
{
  if (c->kind == RECORDED_collective) {
    const struct weft_gpu_collective *x =
        &g_array_index (d->collective, struct weft_gpu_collective, c->at);
    append_comm (text, x->comm);
    g_string_append_printf (text, " %d %" G_GUINT64_FORMAT " %u %u %u", x->kind, x->n, x->dtype,
                            x->reduce, x->root);
  } else if (c->kind == RECORDED_send || c->kind == RECORDED_recv) {
    const struct weft_gpu_transfer *x =
        &g_array_index (d->transfer, struct weft_gpu_transfer, c->at);
    append_comm (text, x->comm);
    g_string_append_printf (text, " %" G_GUINT64_FORMAT " %u %u", x->n, x->dtype, x->peer);
  } else if (c->kind == RECORDED_copy) {
    const struct weft_gpu_copy *x = &g_array_index (d->copy, struct weft_gpu_copy, c->at);
    g_string_append_printf (text, " %d %" G_GUINT64_FORMAT, x->way, x->bytes);
  } else if (c->kind == RECORDED_kernel || c->kind == RECORDED_host) {
    const struct recorded_kernel *x = &g_array_index (d->kernel, struct recorded_kernel, c->at);
    g_string_append_printf (text, " %s %u", weft_op_words[x->k->kind], x->n);
  }
}

static gboolean
is_enqueued (const struct recorded_call *c)
{
  return recorded_is_work (c->kind) || c->kind == RECORDED_record || c->kind == RECORDED_wait ||
         c->kind == RECORDED_mark || c->kind == RECORDED_group_start ||
         c->kind == RECORDED_group_end;
}

/* Returns the SHA-1 of all work that a rank enqueues from call `first` on, as text. The caller
 * frees it. */
static char *
digest_of (const recorded_cuda *d, uint32_t row, uint32_t first)
{
  g_autoptr (GHashTable) numbers = g_hash_table_new (NULL, NULL);
  g_autoptr (GString) text = g_string_new (NULL);

  for (uint32_t i = first; i < d->call->len; i++) {
    const struct recorded_call *c = recorded_call_at (d, i);
    if (c->row != row || !is_enqueued (c))
      continue;
    g_string_append_printf (text, "%s %u %u %u", recorded_words[c->kind], c->op,
                            number_of (numbers, c->stream), number_of (numbers, c->thing));
    append_what (text, d, c);
    g_string_append_c (text, '\n');
  }
  return g_compute_checksum_for_string (G_CHECKSUM_SHA1, text->str, -1);
}

/* ------------------------------------------------------------ processes that are threads */

struct part {
  const weft_plan *plan;
  struct weft_rendezvous_place place;
  struct weft_exec_options options;
  uint32_t slow, devices;
  uint32_t n_here;
  /* [rank of this process]: digest of the calls that enqueue the rank's work */
  char *digest[MOST_RANKS];
  uint32_t device[MOST_RANKS];
  GError *error;
};

static void
keep_digests (struct part *p, const recorded_cuda *d, uint32_t first)
{
  for (uint32_t i = 0; i < p->n_here; i++) {
    uint32_t row = p->place.process * p->n_here + i;
    p->digest[i] = digest_of (d, row, first);
    for (uint32_t c = first; c < d->call->len; c++)
      if (recorded_call_at (d, c)->row == row && recorded_call_at (d, c)->stream)
        p->device[i] = recorded_call_at (d, c)->device;
  }
}

/* Opens an executor, runs two steps, stores the digests of the calls of the second step, and closes
 * the executor. */
static void
live (struct part *p)
{
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  uint32_t first = 0;

  d->slow = p->slow;
  d->devices = p->devices;
  weft_exec *x = weft_exec_cuda_open (&d->calls, p->plan, &p->options, &p->error);
  for (int i = 0; x && i < 2 && !p->error; i++) {
    first = d->call->len;
    g_autoptr (weft_timeline) t = weft_exec_step (x, &p->error);
    (void) t;
  }
  if (x && !p->error)
    keep_digests (p, d, first);
  weft_exec_cuda.close (x);
  if (d->n_open)
    g_error ("%u things are left open", d->n_open);
}

static gpointer
part_main (gpointer data)
{
  struct part *p = data;
  g_autoptr (weft_rendezvous) r = weft_rendezvous_open (&p->place, &p->error);

  p->options.peers = r;
  if (r)
    live (p);
  if (r && p->error)
    weft_rendezvous_abort (r, p->error->message);
  return NULL;
}

static void
run_parts (const weft_plan *plan, uint32_t n, uint32_t slow, struct part *part)
{
  GThread *thread[MOST_RANKS];
  uint16_t port = free_port ();

  for (uint32_t i = 0; i < n; i++) {
    part[i] = (struct part){ .plan = plan,
                             .place = { .host = "127.0.0.1",
                                        .port = port,
                                        .token = "",
                                        .n = n,
                                        .process = i,
                                        .local = i,
                                        .ranks_each = plan->mesh.n_ranks / n,
                                        .seconds = 60 },
                             .slow = slow,
                             .devices = 64,
                             .n_here = plan->mesh.n_ranks / n };
    thread[i] = g_thread_new ("process", part_main, &part[i]);
  }
  for (uint32_t i = 0; i < n; i++)
    g_thread_join (thread[i]);
}

static void
parts_clear (struct part *part, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t k = 0; k < part[i].n_here; k++)
      g_free (part[i].digest[k]);
    g_clear_error (&part[i].error);
  }
}

/* Opens the plan and runs its step with all ranks in this process. */
static struct part
run_whole (const weft_plan *plan)
{
  struct part whole = { .plan = plan, .devices = 64, .n_here = plan->mesh.n_ranks };

  live (&whole);
  return whole;
}

/* Compares a run with n processes to a run with one process: all digests must be equal. Returns
 * FALSE if all processes refuse the plan. */
static gboolean
look_at (const weft_plan *plan, uint32_t n, uint32_t slow, const char *words)
{
  struct part whole = run_whole (plan), part[MOST_RANKS];
  uint32_t each = plan->mesh.n_ranks / n;
  gboolean refused = whole.error != NULL;

  run_parts (plan, n, slow, part);
  for (uint32_t i = 0; i < n; i++) {
    if (!part[i].error != !refused)
      fail_msg ("process %u of %u: %s; in %s", i, n,
                refused ? "not refused" : part[i].error->message, words);
    for (uint32_t k = 0; k < each && !refused; k++) {
      if (strcmp (part[i].digest[k], whole.digest[i * each + k]) != 0)
        fail_msg ("%s: rank %u in process %u of %u has other calls than in one process", words,
                  i * each + k, i, n);
      assert_int_equal (part[i].device[k], i * each + k);
    }
  }
  parts_clear (part, n);
  parts_clear (&whole, 1);
  return !refused;
}

static weft_plan *
draw (GRand *rand, char **words)
{
  for (;;) {
    struct weft_job job;
    g_autoptr (weft_plan) plan = NULL;
    *words = weft_random_job (rand);
    if (weft_test_job (*words, &job, NULL) && job.cluster.n_gpus <= MOST_RANKS &&
        job.cluster.n_gpus > 1)
      plan = weft_plan_new (&job, NULL);
    if (plan && weft_test_ops (plan) <= MOST_OPS)
      return g_steal_pointer (&plan);
    g_free (*words);
  }
}

static void
each_process_plays_its_ranks_as_one_process_would (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED);
  uint32_t looked = 0;

  (void) state;
  for (int i = 0; i < N_JOB; i++) {
    g_autofree char *words = NULL;
    g_autoptr (weft_plan) plan = draw (rand, &words);
    uint32_t n = plan->mesh.n_ranks;
    /* every third job has two or more ranks in each process */
    if (i % 3 == 2 && n % 2 == 0 && n > 2)
      n /= 2;
    looked += look_at (plan, n, (uint32_t) i % 4, words);
  }
  print_message ("%u jobs\n", looked);
  assert_true (looked > N_JOB / 2);
}

#define TINY                                                                                       \
  "model=gpt2-nano topology=cpu seq_length=16 num_layers=2 micro_batch_size=2 "                    \
  "global_batch_size=24 reduction_order=fast "

/* A launcher may hide all GPUs from a process except those of its own ranks. The process then uses
 * all visible GPUs, from GPU 0 on. */
static void
a_process_that_sees_as_many_gpus_as_it_has_ranks_takes_all_of_them (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=2");
  struct part p = { .plan = plan, .devices = 1, .n_here = 1 };
  uint16_t port = free_port ();
  GThread *thread[2];
  struct part part[2] = { p, p };

  (void) state;
  for (uint32_t i = 0; i < 2; i++) {
    part[i].place = (struct weft_rendezvous_place){ .host = "localhost",
                                                    .port = port,
                                                    .token = "",
                                                    .n = 2,
                                                    .process = i,
                                                    .local = i,
                                                    .ranks_each = 1,
                                                    .seconds = 20 };
    thread[i] = g_thread_new ("process", part_main, &part[i]);
  }
  for (uint32_t i = 0; i < 2; i++) {
    g_thread_join (thread[i]);
    assert_null (part[i].error);
    assert_int_equal (part[i].device[0], 0);
  }
  parts_clear (part, 2);
}

static void
numbers_of_processes_and_gpus_that_do_not_fit_are_refused (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=4");
  struct part part[3];

  (void) state;
  run_parts (plan, 3, 0, part);
  for (int i = 0; i < 3; i++)
    assert_non_null (
        strstr (part[i].error->message, "found 3 processes and 4 ranks, wanted the same number"));
  parts_clear (part, 3);
}

/* After a group of NCCL calls, a rank must not enqueue work until the communicator is ready. */
static void
what_follows_a_launch_waits_until_its_communicator_is_ready (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=2");
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { 0 };
  uint32_t launches = 0;

  (void) state;
  d->slow = 2;
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &options, &error);
  assert_non_null (x);
  recorded_cuda_forget (d);
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);
  assert_non_null (t);
  for (uint32_t row = 0; row < 2; row++) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < d->call->len; i++) {
      const struct recorded_call *c = recorded_call_at (d, i);
      if (c->row != row || !(is_enqueued (c) || c->kind == RECORDED_comm_ready))
        continue;
      if (left > 0)
        assert_int_equal (c->kind, RECORDED_comm_ready);
      left = c->kind == RECORDED_group_end ? 3 : left ? left - 1 : 0;
      launches += c->kind == RECORDED_group_end;
    }
  }
  assert_true (launches >= 2);
  x->ops->close (x);
  assert_int_equal (d->n_open, 0);
}

static void
communicators_that_are_never_ready_are_given_up (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=2");
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  g_autoptr (GError) error = NULL;
  const struct weft_exec_options options = { .own = made_own (&weft_exec_cuda, "deadline=0.05") };
  uint32_t aborted = 0;

  (void) state;
  d->never_ready = TRUE;
  assert_null (weft_exec_cuda_open (&d->calls, plan, &options, &error));
  assert_non_null (strstr (error->message, "communicators takes longer than 0.05 s (deadline)"));
  for (uint32_t i = 0; i < d->call->len; i++)
    aborted += recorded_call_at (d, i)->kind == RECORDED_comm_abort;
  assert_int_equal (aborted, 2);
  assert_int_equal (d->n_open, 0);
}

/* --------------------------------------------------------------------- real processes */

/* The behaviour of a process of the test: "play": every rank trains; "die", "hang" or "stuck": rank
 * `who` does this instead. */
struct ask {
  const char *what;
  uint32_t who;
};

static gboolean
is_stuck (const struct ask *ask, uint32_t rank)
{
  return strcmp (ask->what, "stuck") == 0 && rank == ask->who;
}

static gboolean
second_step (recorded_cuda *d, weft_exec *x, const struct ask *ask, uint32_t rank, GError **error)
{
  gboolean plays = strcmp (ask->what, "play") == 0, chosen = rank == ask->who;

  if (chosen && strcmp (ask->what, "die") == 0)
    raise (SIGKILL);
  if (chosen && strcmp (ask->what, "hang") == 0)
    sleep (30);
  d->never_ends = !plays;
  g_autoptr (weft_timeline) t = weft_exec_step (x, error);
  return t != NULL;
}

static gboolean
play (weft_rendezvous *r, const struct weft_launch *launch, const struct ask *ask, GError **error)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=%u", launch->n);
  g_autoptr (recorded_cuda) d = recorded_cuda_new ();
  struct weft_exec_options options = { .own = made_own (&weft_exec_cuda, "deadline=%g",
                                                        strcmp (ask->what, "hang") ? 60 : 1.5),
                                       .peers = r };

  d->never_ready = is_stuck (ask, launch->rank);
  weft_exec *x = weft_exec_cuda_open (&d->calls, plan, &options, error);
  gboolean ok =
      x && weft_rendezvous_barrier (r, "step 1", weft_rendezvous_place (r)->seconds, error);
  for (int i = 0; ok && i < 2; i++) {
    recorded_cuda_forget (d);
    d->never_ends = FALSE;
    ok = i == 0 ? second_step (d, x, &(struct ask){ "play", 0 }, 0, error)
                : second_step (d, x, ask, launch->rank, error);
  }
  g_autofree char *digest = digest_of (d, launch->rank, 0);
  uint64_t id;
  memcpy (&id, d->id.bytes + 8, sizeof id);
  if (ok)
    printf ("%s %" G_GUINT64_FORMAT, digest, id);
  weft_exec_cuda.close (x);
  return ok && d->n_open == 0;
}

static int
be_process (int argc, char **argv)
{
  if (argc < 2)
    return WEFT_TESTS_RUN;

  const struct ask ask = { argv[1],
                           argc > 2 ? (uint32_t) g_ascii_strtoull (argv[2], NULL, 10) : 0 };
  g_auto (weft_launch) launch = { 0 };
  g_autoptr (GError) error = NULL;

  if (!weft_launch_read (NULL, NULL, &launch, &error)) {
    fprintf (stderr, "%s\n", error->message);
    return 2;
  }
  double seconds = is_stuck (&ask, launch.rank) ? 3 : 60;
  g_autoptr (weft_rendezvous) r = weft_rendezvous_open_launch (&launch, 1, seconds, &error);
  gboolean ok = r && play (r, &launch, &ask, &error);
  if (error) {
    fprintf (stderr, "rank %u: %s\n", launch.rank, error->message);
    if (r)
      weft_rendezvous_abort (r, error->message);
  }
  return ok ? 0 : 1;
}

/* Checks that every process has printed the digest that its rank has in a run with a single
 * process. */
static void
assert_played (const struct processes *p, const char *launcher)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=%u", p->n);
  struct part whole = run_whole (plan);
  const char *id = NULL;

  for (uint32_t i = 0; i < p->n; i++) {
    if (p->at[i].status)
      fail_msg ("%s: process %u: %s", launcher, i, p->at[i].err);
    if (!g_str_has_prefix (p->at[i].out, whole.digest[i]))
      fail_msg ("%s: rank %u has other calls than in one process", launcher, i);
    const char *mine = strchr (p->at[i].out, ' ');
    if (id)
      assert_string_equal (mine, id); /* every process must use the same id of the communicator */
    id = mine;
  }
  parts_clear (&whole, 1);
}

static void
processes_of_every_launcher_play_the_plan_together (void **state)
{
  (void) state;
  for (int launcher = 0; launcher < WEFT_N_LAUNCHER; launcher++) {
    struct processes p = processes_start ("play", launcher, 3 + launcher % 2, free_port ());
    processes_wait (&p);
    assert_played (&p, weft_launcher_words[launcher]);
    processes_clear (&p);
  }
}

static void
a_step_ends_when_a_process_is_killed_and_it_is_named (void **state)
{
  struct processes p = processes_start ("die 1", WEFT_LAUNCHER_OPENMPI, 3, free_port ());

  (void) state;
  processes_wait (&p);
  assert_int_equal (p.at[1].status, 128 + SIGKILL);
  process_assert_told (&p.at[0], "rank 1 on ");
  process_assert_told (&p.at[0], " is gone: its process has ended");
  process_assert_told (&p.at[2], "rank 1 on ");
  processes_clear (&p);
}

/* The process of rank 2 hangs. Each other process must end with an error that names the
 * communication for which it waits, and names rank 2 as the rank that does not answer. */
static void
a_step_that_takes_too_long_names_the_communication_and_who_is_not_there (void **state)
{
  struct processes p = processes_start ("hang 2", WEFT_LAUNCHER_TORCHRUN, 3, free_port ());

  (void) state;
  process_wait (&p.at[0]);
  process_wait (&p.at[1]);
  const struct process *first = strstr (p.at[0].err, "has failed:") ? &p.at[1] : &p.at[0];
  process_assert_told (first, "a step takes longer than 1.5 s (deadline)");
  process_assert_told (first, " has not finished all_reduce bucket 0 (op ");
  process_assert_told (first, "rank 2 on ");
  process_assert_told (first, ": no answer");
  process_assert_told (&p.at[0], "rank 1");
  process_assert_told (&p.at[1], "rank 0");
  processes_clear (&p);
}

static void
a_communicator_that_one_process_cannot_open_ends_all (void **state)
{
  struct processes p = processes_start ("stuck 1", WEFT_LAUNCHER_SLURM, 2, free_port ());

  (void) state;
  processes_wait (&p);
  process_assert_told (&p.at[1], "communicators takes longer than 3 s (deadline)");
  process_assert_told (&p.at[0], "rank 1");
  processes_clear (&p);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (each_process_plays_its_ranks_as_one_process_would),
  cmocka_unit_test (a_process_that_sees_as_many_gpus_as_it_has_ranks_takes_all_of_them),
  cmocka_unit_test (numbers_of_processes_and_gpus_that_do_not_fit_are_refused),
  cmocka_unit_test (what_follows_a_launch_waits_until_its_communicator_is_ready),
  cmocka_unit_test (communicators_that_are_never_ready_are_given_up),
  cmocka_unit_test (processes_of_every_launcher_play_the_plan_together),
  cmocka_unit_test (a_step_ends_when_a_process_is_killed_and_it_is_named),
  cmocka_unit_test (a_step_that_takes_too_long_names_the_communication_and_who_is_not_there),
  cmocka_unit_test (a_communicator_that_one_process_cannot_open_ends_all),
};

WEFT_TESTS (tests, .seconds = 17, .begin = be_process)
