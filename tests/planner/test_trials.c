/* Trials: the programs that a search builds for its candidates, in one process or in several. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "core/job/flags.h"
#include "exec_sim/exec_sim.h"
#include "planner/planner.h"
#include "planner/space.h"
#include "planner/trials.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Returns a job from words. Rules are not checked, because the search sets further knobs. */
static struct weft_job
job_of (const char *words)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (!weft_flags_words (words, settings, &error) || !weft_job_assemble (settings, &job, &error))
    fail_msg ("%s: %s", words, error->message);
  return job;
}

/* Asserts that the live bytes that a trial computes equal those of the plan of the whole step.
 * Returns whether the step is long enough to be shortened. */
static gboolean
has_the_bytes_of_its_plan (const struct weft_job *job)
{
  g_autoptr (weft_plan) whole = weft_plan_new_draft (job, WEFT_PLAN_PLACED, NULL, NULL);
  g_autoptr (weft_placements) placements = weft_placements_new ();
  struct weft_trials how = { .placements = placements, .n_workers = 1 };
  struct weft_trial trial = { .job = *job, .depth = WEFT_TRIAL_CLOCK };
  gboolean is_long;

  assert_non_null (whole);
  assert_true (weft_trials_run (&how, &trial, 1, NULL));
  assert_null (trial.error);
  assert_int_equal ((uint64_t) trial.least, weft_plan_least_bytes (whole));
  is_long = trial.plans[WEFT_PLAN_PLACED] == 2;
  weft_trial_clear (&trial);
  return is_long;
}

/* The live bytes of a long step can be extrapolated from short steps, checked for every tenth
 * strategy of four spaces. With schedules that begin with all forward passes, live bytes grow with
 * the number of microbatches; with other schedules they are constant. `weft bench search memory`
 * checks 5,000 strategies. */
static void
live_bytes_of_short_steps_are_those_of_the_whole_step (void **state)
{
  static const char *const spaces[] = {
    "model=llama-nano topology=dgx-h100 gpus=4 global_batch_size=64 micro_batch_size=1",
    "model=gpt2-nano topology=dgx-a100 gpus=4 global_batch_size=64 pipeline_schedule=gpipe "
    "pipeline_model_parallel_size=2",
    "model=qwen3moe-nano topology=dgx-h100 gpus=4 global_batch_size=48 micro_batch_size=1",
    "model=deepseek-nano topology=dgx-h100 gpus=2 global_batch_size=32 micro_batch_size=1",
  };
  uint32_t n = 0, n_long = 0;

  (void) state;
  for (unsigned k = 0; k < G_N_ELEMENTS (spaces); k++) {
    struct weft_job job = job_of (spaces[k]);
    g_autoptr (GArray) space = weft_space_enumerate (&job);
    for (guint i = 0; i < space->len; i += 10) {
      struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, i));
      if (!weft_job_check (&one, NULL))
        continue;
      n_long += has_the_bytes_of_its_plan (&one);
      n++;
    }
  }
  assert_in_range (n, 100, 1000);
  assert_true (n_long > 50);
}

/* Runs a plan, proved or not, and returns its step time in seconds. */
static double
seconds_of (const struct weft_exec_ops *ops, const weft_plan *plan)
{
  const struct weft_exec_options folded = { 0 };
  g_autoptr (weft_timeline) t = weft_exec_run (ops, plan, &folded, NULL);

  assert_non_null (t);
  return t->seconds;
}

/* Asserts that the report of a simulated trial has the memory and the times of the plan of the
 * whole step, although short steps were simulated. Clock times of software with an arena are equal;
 * simulated times are extrapolated, and equal to a thousandth. */
static void
reports_its_whole_step (const char *words)
{
  struct weft_job job = job_of (words);
  g_autoptr (weft_placements) placements = weft_placements_new ();
  struct weft_trials how = { .placements = placements, .n_workers = 1 };
  struct weft_trial trial = { .job = job, .depth = WEFT_TRIAL_SIMULATED };
  g_autoptr (weft_plan) plan = weft_plan_new_draft (&job, WEFT_PLAN_PLACED, placements, NULL);

  assert_non_null (plan);
  g_autoptr (weft_report) whole = weft_report_new (plan, NULL);
  assert_true (weft_trials_run (&how, &trial, 1, NULL));
  assert_non_null (trial.report);
  assert_true (trial.plans[WEFT_PLAN_PROVED] == 2);
  for (uint32_t role = 0; role < whole->n_roles; role++) {
    const struct weft_report_role *found = &trial.report->role[role], *wanted = &whole->role[role];
    if (found->peak_bytes != wanted->peak_bytes || found->live_bytes != wanted->live_bytes ||
        found->host_bytes != wanted->host_bytes)
      fail_msg ("%s: stage %u has %" G_GUINT64_FORMAT " bytes, its plan %" G_GUINT64_FORMAT, words,
                role, found->peak_bytes, wanted->peak_bytes);
  }
  double clock = trial.seconds / seconds_of (&weft_exec_clock, plan) - 1,
         simulated = trial.report->iteration.time_s / seconds_of (&weft_exec_sim, plan) - 1;
  if (fabs (clock) > 1e-12 || fabs (simulated) > 1e-3)
    fail_msg ("%s: clock time off by %g, simulated time by %g", words, clock, simulated);
  weft_trial_clear (&trial);
}

/* The arenas of two short steps may be equal, and that of the whole step larger or smaller: the
 * places of buffers repeat only after several microbatches. Waits for free bytes depend on these
 * places, and may delay one of the short steps only. */
static void
a_finalist_has_memory_and_time_of_its_whole_step (void **state)
{
  static const char *const jobs[] = {
    "model=llama-nano topology=dgx-h100 gpus=4 global_batch_size=32 pipeline_model_parallel_size=2 "
    "overlap_grad_reduce=true overlap_param_gather=true use_megatron_fsdp=true "
    "data_parallel_sharding_strategy=optim_grads",
    "model=gpt2-nano topology=dgx-h100 gpus=16 global_batch_size=64 tensor_model_parallel_size=4 "
    "sequence_parallel=true overlap_grad_reduce=true overlap_param_gather=true "
    "use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads_params "
    "cpu_offloading=true cpu_offloading_num_layers=2",
    "model=gpt2-nano topology=dgx-h100 gpus=4 global_batch_size=64 pipeline_schedule=zb-h2 "
    "pipeline_model_parallel_size=4",
    "model=deepseek-nano topology=dgx-h100 gpus=4 global_batch_size=64 pipeline_schedule=dualpipev "
    "pipeline_model_parallel_size=2 expert_model_parallel_size=2 use_distributed_optimizer=true "
    "overlap_grad_reduce=true gradient_accumulation_fusion=true batch_p2p_sync=false "
    "deallocate_pipeline_outputs=true expert_tensor_parallel_size=1",
    "model=llama-nano topology=dgx-h100 gpus=4 global_batch_size=64 stack=torchtitan "
    "pipeline_model_parallel_size=2",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++)
    reports_its_whole_step (jobs[i]);
}

static weft_search *
search_with (const struct weft_job *job, uint32_t n_workers)
{
  struct weft_search_options options = { .finalists = 6,
                                         .near_miss = TRUE,
                                         .n_workers = n_workers };
  g_autoptr (GError) error = NULL;
  weft_search *search = weft_search_run (job, &options, &error);

  assert_null (error);
  return search;
}

/* A search gives the same answer, and does the same work, in one process and in three. */
static void
the_number_of_processes_changes_no_answer (void **state)
{
  struct weft_job job = job_of ("model=gpt2-large topology=dgx-a100 gpus=8 global_batch_size=64");
  g_autoptr (weft_search) one = search_with (&job, 1), three = search_with (&job, 3);

  (void) state;
  assert_int_equal (one->by_fate[WEFT_FATE_SIMULATED], 6);
  assert_memory_equal (one->by_fate, three->by_fate, sizeof one->by_fate);
  assert_memory_equal (&one->plans, &three->plans, sizeof one->plans);
  assert_true (one->gap == three->gap);
  for (uint32_t i = 0; i < 6; i++) {
    const struct weft_candidate *x = &one->candidate[i], *y = &three->candidate[i];
    assert_memory_equal (&x->choice, &y->choice, sizeof x->choice);
    assert_true (x->seconds == y->seconds && x->clock == y->clock && x->bytes == y->bytes);
    assert_memory_equal (&x->report->iteration, &y->report->iteration, sizeof x->report->iteration);
    assert_int_equal (x->report->n_roles, y->report->n_roles);
    for (uint32_t role = 0; role < x->report->n_roles; role++) {
      assert_int_equal (x->report->role[role].live_bytes, y->report->role[role].live_bytes);
      assert_string_equal (x->report->role[role].peak_label, y->report->role[role].peak_label);
    }
  }
}

/* ------------------------------------------------------------------------ contention */

/* Simulates a candidate, whole and from short steps. Returns how much higher than the clock time
 * the bound of contention is, as a fraction of it; negative: there is none. */
static double
gain_of_contention (const struct weft_job *job)
{
  g_autoptr (weft_placements) placements = weft_placements_new ();
  struct weft_trials how = { .placements = placements, .n_workers = 1, .whole = TRUE };
  struct weft_trial whole = { .job = *job, .depth = WEFT_TRIAL_SIMULATED };
  struct weft_trial shortened = { .job = *job, .depth = WEFT_TRIAL_BOUND };

  assert_true (weft_trials_run (&how, &whole, 1, NULL));
  how.whole = FALSE;
  assert_true (weft_trials_run (&how, &shortened, 1, NULL));
  assert_null (whole.error);
  assert_non_null (whole.report);
  double seconds = whole.report->iteration.time_s * (1 + 1e-9), gain;
  if (whole.contended > seconds || shortened.contended > seconds || whole.seconds > seconds) {
    g_autofree char *text = weft_job_print (job);
    fail_msg ("simulated %.9g s, clock %.9g s, contention %.9g s, from short steps %.9g s:\n%s",
              seconds, whole.seconds, whole.contended, shortened.contended, text);
  }
  gain = whole.contended / whole.seconds - 1;
  weft_trial_clear (&whole);
  weft_trial_clear (&shortened);
  return gain;
}

/* Fully sharded steps, whose gathers and reductions take SMs from most kernels; steps that copy
 * activations over links which GPUs share; and others. */
static void
the_bound_of_contention_is_below_the_simulation (void **state)
{
  static const struct {
    const char *words;
    double gain; /* one of the candidates has at least this */
  } jobs[] = {
    { "model=llama2-7b num_layers=24 topology=dgx-h100 nodes=2 global_batch_size=16 "
      "seq_length=4096 use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads_params "
      "micro_batch_size=1 pipeline_model_parallel_size=1 context_parallel_size=1 "
      "recompute_granularity=none cpu_offloading=false",
      0.01 },
    { "model=llama2-7b num_layers=4 topology=dgx-h100 nodes=2 global_batch_size=64 seq_length=2048",
      0.5 },
    { "model=mixtral-8x7b num_layers=2 topology=dgx-h100 nodes=2 global_batch_size=64 "
      "seq_length=2048",
      -1 },
    { "model=llama2-7b num_layers=8 topology=dgx-h100 nodes=2 global_batch_size=32 "
      "seq_length=4096 cpu_offloading=true recompute_granularity=none "
      "pipeline_model_parallel_size=1",
      0.5 },
    { "model=gpt2-large num_layers=8 topology=l40s-pcie nodes=2 global_batch_size=32 "
      "cpu_offloading=true recompute_granularity=none pipeline_model_parallel_size=1",
      0.5 },
  };
  const struct weft_space_ranges wide = { .whole = TRUE };
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (jobs); i++) {
    struct weft_job job = job_of (jobs[i].words);
    g_autoptr (GArray) space = weft_space_enumerate_within (&job, &wide);
    double most = -1;
    for (int done = 0; done < 30;) {
      guint at = (guint) g_rand_int_range (rand, 0, (gint) space->len);
      struct weft_job one = weft_space_job (&job, &g_array_index (space, struct weft_choice, at));
      if (!weft_job_check (&one, NULL))
        continue;
      most = fmax (most, gain_of_contention (&one));
      done++;
    }
    assert_true (most >= jobs[i].gain);
  }
}

/* ------------------------------------------------------------------------ the pool */

enum { N_TASKS = 12, LAST = 5, DEADLY = 8 };

struct answer {
  uint32_t square;
  pid_t pid;
};

/* Task LAST is the last of its process, and task DEADLY kills its process. */
static gboolean
square (void *user, const void *task, void *result)
{
  uint32_t number = *(const uint32_t *) task;

  (void) user;
  if (number == DEADLY)
    kill (getpid (), SIGKILL);
  *(struct answer *) result = (struct answer){ number * number, getpid () };
  return number != LAST;
}

static guint
count_processes (const struct answer *answer, const gboolean *done, uint32_t n)
{
  g_autoptr (GHashTable) pids = g_hash_table_new (NULL, NULL);

  for (uint32_t i = 0; i < n; i++)
    if (done[i])
      g_hash_table_add (pids, GINT_TO_POINTER (answer[i].pid));
  return g_hash_table_size (pids);
}

/* Makes a pool for tasks that are numbers. */
static weft_worker_pool *
pool_of (uint32_t n_workers, gboolean (*run) (void *, const void *, void *), void *user)
{
  const struct weft_worker_pool_work work = { .n_workers = n_workers,
                                              .most = N_TASKS,
                                              .task_bytes = sizeof (uint32_t),
                                              .result_bytes = sizeof (struct answer),
                                              .run = run,
                                              .user = user };

  return weft_worker_pool_new (&work, NULL);
}

/* A process that may not run further tasks, or that dies, is replaced; the others stay. A task that
 * kills each of its processes is not done. */
static void
processes_of_a_pool_stay (void **state)
{
  g_autoptr (weft_worker_pool) pool = pool_of (2, square, NULL);
  uint32_t task[N_TASKS];
  struct answer answer[N_TASKS];
  gboolean done[N_TASKS];

  (void) state;
  for (uint32_t i = 0; i < N_TASKS; i++)
    task[i] = i;
  assert_true (weft_worker_pool_run (pool, task, LAST, answer, done, NULL));
  pid_t first = answer[0].pid;
  assert_in_range (count_processes (answer, done, LAST), 1, 2);
  assert_true (weft_worker_pool_run (pool, task, 1, answer, done, NULL));
  assert_int_equal (answer[0].pid, first);
  assert_true (weft_worker_pool_run (pool, task, N_TASKS, answer, done, NULL));
  for (uint32_t i = 0; i < N_TASKS; i++) {
    assert_int_equal (done[i], i != DEADLY);
    assert_int_equal (answer[i].square, i == DEADLY ? 0 : i * i);
    assert_true (answer[i].pid != getpid ());
  }
  assert_in_range (count_processes (answer, done, N_TASKS), 2, 4);
}

/* Kills the process of the first task that runs; `user` is memory of all processes. */
static gboolean
first_is_killed (void *user, const void *task, void *result)
{
  gint *n_run = user;

  if (g_atomic_int_add (n_run, 1) == 0) {
    *(struct answer *) result = (struct answer){ .square = 7 };
    kill (getpid (), SIGKILL);
  }
  return square (NULL, task, result);
}

/* Processes may be killed, for example for lack of memory, while they run a task or while they wait
 * for one. Other processes then do their work. */
static void
killed_processes_lose_no_task (void **state)
{
  gint *n_run =
      mmap (NULL, sizeof *n_run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g_autoptr (weft_worker_pool) pool = pool_of (1, first_is_killed, n_run);
  const uint32_t task[] = { 2, 3 };
  struct answer answer[2];
  gboolean done[2];

  (void) state;
  for (int run = 0; run < 2; run++) {
    assert_true (weft_worker_pool_run (pool, task, 2, answer, done, NULL));
    assert_true (done[0] && done[1]);
    assert_int_equal (answer[0].square, 4);
    assert_int_equal (answer[1].square, 9);
    kill (answer[1].pid, SIGKILL);
  }
  assert_int_equal (*n_run, 5);
  munmap (n_run, sizeof *n_run);
}

static gboolean
waits_for_ever (void *user, const void *task, void *result)
{
  const int *started = user;
  const pid_t pid = getpid ();

  (void) task;
  (void) result;
  if (write (*started, &pid, sizeof pid) == sizeof pid)
    pause ();
  return TRUE;
}

/* Whether a process has written to the pipe user[2] that its task has started. */
static gboolean
has_started (void *user)
{
  const int *started = user;
  struct pollfd at = { started[0], POLLIN, 0 };
  pid_t pid;

  return poll (&at, 1, 0) == 1 && read (started[0], &pid, sizeof pid) == sizeof pid;
}

static gboolean
writes_and_waits (void *user, const void *task, void *result)
{
  const int *started = user;

  return waits_for_ever ((void *) &started[1], task, result);
}

/* A task that never ends is killed with its process, and the next tasks run. */
static void
tasks_that_are_stopped_are_not_done (void **state)
{
  int started[2];
  struct weft_worker_pool_work work = { .n_workers = 1,
                                        .most = 1,
                                        .task_bytes = sizeof (uint32_t),
                                        .result_bytes = sizeof (struct answer),
                                        .run = writes_and_waits,
                                        .stop = has_started,
                                        .user = started };
  uint32_t task = 0;
  struct answer answer;
  gboolean done;

  (void) state;
  assert_int_equal (pipe (started), 0);
  g_autoptr (weft_worker_pool) pool = weft_worker_pool_new (&work, NULL);
  for (int run = 0; run < 2; run++) {
    assert_true (weft_worker_pool_run (pool, &task, 1, &answer, &done, NULL));
    assert_false (done);
  }
  close (started[0]);
  close (started[1]);
}

/* The end of the pipe is reached when all processes that could write to it have ended. */
static void
processes_end_with_a_search_that_is_killed (void **state)
{
  int started[2];
  pid_t worker = 0;

  (void) state;
  assert_int_equal (pipe (started), 0);
  pid_t search = fork ();
  if (search == 0) {
    uint32_t task = 0;
    struct answer answer;
    gboolean done;
    close (started[0]);
    weft_worker_pool_run (pool_of (1, waits_for_ever, &started[1]), &task, 1, &answer, &done, NULL);
    _exit (0);
  }
  close (started[1]);
  assert_int_equal (read (started[0], &worker, sizeof worker), sizeof worker);
  kill (search, SIGKILL);
  waitpid (search, NULL, 0);
  struct pollfd end = { started[0], POLLIN, 0 };
  gboolean ended = poll (&end, 1, 60000) == 1;
  if (!ended)
    kill (worker, SIGKILL);
  assert_true (ended);
  close (started[0]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_bound_of_contention_is_below_the_simulation),
  cmocka_unit_test (processes_of_a_pool_stay),
  cmocka_unit_test (killed_processes_lose_no_task),
  cmocka_unit_test (tasks_that_are_stopped_are_not_done),
  cmocka_unit_test (processes_end_with_a_search_that_is_killed),
  cmocka_unit_test (live_bytes_of_short_steps_are_those_of_the_whole_step),
  cmocka_unit_test (a_finalist_has_memory_and_time_of_its_whole_step),
  cmocka_unit_test (the_number_of_processes_changes_no_answer),
};

WEFT_TESTS (tests)
