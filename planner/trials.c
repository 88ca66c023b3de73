#include "planner/trials.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/job/pipeline.h"
#include "exec_sim/bridge.h"
#include "exec_sim/exec_sim.h"
#include "planner/contention.h"
#include "planner/flights.h"
#include "planner/shorten.h"
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------------- one trial */

/* To build and place an op takes about half as long as to do that, to prove it and to simulate it
 * (bench/README.md, the rows `all` and `plan` without `check`). */
enum { PLACED_OPS_PER_OP = 2 };

/* The plan of a step with more ops takes more than about five seconds, and is not built if both
 * short steps have the same arenas. */
#define MOST_OPS_OF_WHOLE 800000

/* A trial that runs. A long step is extrapolated from two short steps. */
struct run {
  const struct weft_trials *how;
  struct weft_trial *trial;
  struct weft_shortened shortened;
  double seconds[2], contended[2], shared[2], bytes[2], least[2], ops[2]; /* of the short steps */
  weft_report *of[2]; /* reports of the simulated short steps */
};

static weft_plan *
build (struct run *x, const struct weft_job *job, enum weft_plan_depth depth)
{
  x->trial->plans[depth]++;
  return weft_plan_new_draft (job, depth, x->how->placements, &x->trial->error);
}

static double
count_ops (const weft_plan *plan)
{
  double sum = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    sum += plan->role[role]->n_op;
  return sum;
}

/* Marks a step whose plan cannot be executed in the way that is asked for as refused. */
static void
note_refusal (struct run *x)
{
  x->trial->refused = g_error_matches (x->trial->error, WEFT_ERROR, WEFT_ERROR_INPUT);
}

/* The clock time of a plan, seconds; NAN with x->trial->error: it has none. */
static double
clock_seconds (struct run *x, const weft_plan *plan)
{
  const union weft_clock_options own = { { .graph = x->how->graph, .roles = TRUE } };
  const struct weft_exec_options exec = { .own = weft_own_options_of (weft_exec_clock.options,
                                                                      own.at) };
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &exec, &x->trial->error);

  if (!t)
    note_refusal (x);
  return t ? t->seconds : NAN;
}

/* Lengthens the copies of a role as if all ranks of its stage copied at the same time. Returns
 * whether one of them takes longer. */
static gboolean
share_links (weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  const double latency = plan->job.stack.kernel_gap;
  double factor = weft_contention_copies (plan, role), *seconds = plan->seconds[role];
  gboolean longer = FALSE;

  for (uint32_t op = 0; op < p->n_op && factor > 1; op++)
    if (weft_op_info[p->op[op].kind].class == WEFT_CLASS_COPY && seconds[op] > latency) {
      seconds[op] += (factor - 1) * (seconds[op] - latency);
      longer = TRUE;
    }
  return longer;
}

/* The clock time of a plan whose copies share links; 0: none of them does. */
static double
shared_seconds (struct run *x, weft_plan *plan)
{
  double **own = plan->seconds, seconds = 0;
  gboolean longer = FALSE;

  plan->seconds = g_new (double *, plan->n_roles);
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    plan->seconds[role] = g_memdup2 (own[role], plan->role[role]->n_op * sizeof **own);
    longer = share_links (plan, role) || longer;
  }
  if (longer)
    seconds = clock_seconds (x, plan);
  for (uint32_t role = 0; role < plan->n_roles; role++)
    g_free (plan->seconds[role]);
  g_free (plan->seconds);
  plan->seconds = own;
  return seconds;
}

/* Whether a job copies activations to the host in every microbatch. Its links to the host are busy
 * for most of the step. */
static gboolean
copies_activations (const struct weft_job *job)
{
  return job->strategy.cpu_offloading && job->strategy.cpu_offloading_num_layers > 0;
}

/* Computes the bounds of short step i that know contention: that from SMs if it exceeds the clock
 * time, or if that of the other short step does. */
static gboolean
bound_step (struct run *x, uint32_t i, weft_plan *plan)
{
  x->contended[i] = weft_contention_bound (plan, x->contended[0] > 0 ? 0 : x->seconds[i]);
  x->shared[i] = copies_activations (&plan->job) ? shared_seconds (x, plan) : 0;
  return !isnan (x->shared[i]);
}

/* The bytes that are alive at one time in the role that needs most, of a plan without addresses; 0:
 * they are not known, for software without an arena. */
static double
live_bytes (weft_plan *plan)
{
  if (plan->job.stack.live_memory)
    return 0;
  for (uint32_t role = 0; role < plan->n_roles; role++)
    weft_memory_live (plan->role[role], &plan->memory[role]);
  return (double) weft_plan_least_bytes (plan);
}

/* Computes the clock time of short step i and its memory, as far as the plan has it. */
static gboolean
clock_step (struct run *x, uint32_t i, weft_plan *plan)
{
  if (x->how->graph && !weft_exec_check_graph (plan, &x->trial->error)) {
    note_refusal (x);
    return FALSE;
  }
  x->seconds[i] = clock_seconds (x, plan);
  if (isnan (x->seconds[i]))
    return FALSE;
  if (!bound_step (x, i, plan))
    return FALSE;
  if (x->trial->depth == WEFT_TRIAL_BOUND) {
    x->least[i] = live_bytes (plan);
    return TRUE;
  }
  x->bytes[i] = (double) weft_plan_worst_bytes (plan);
  x->least[i] = (double) weft_plan_least_bytes (plan);
  return TRUE;
}

static weft_report *
simulate_step (struct run *x, const weft_plan *plan)
{
  const union weft_sim_options own = { { .graph = x->how->graph } };
  const struct weft_exec_options exec = { .own =
                                              weft_own_options_of (weft_exec_sim.options, own.at) };
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_sim, plan, &exec, &x->trial->error);

  if (!t) {
    note_refusal (x);
    return NULL;
  }
  weft_report *report = weft_report_new (plan, t);
  report->timeline = NULL; /* the timeline is freed here */
  return report;
}

/* Whether the clock time and the simulation of a step use one plan. They do not for software
 * without an arena, where the clock time is computed without buffer addresses, and the simulation
 * needs a plan with addresses. */
static gboolean
shares_plans (const struct run *x)
{
  return x->trial->depth == WEFT_TRIAL_SIMULATED && !x->trial->job.stack.live_memory;
}

/* Whether a simulation is wanted by the memory of short step i. If this step does not fit, the long
 * step is taken not to fit either, because it has at least as many bytes alive. */
static gboolean
may_fit (const struct run *x, uint32_t i)
{
  return x->bytes[i] <= weft_plan_capacity (&x->trial->job);
}

static gboolean
try_step (struct run *x, uint32_t i, gboolean simulates)
{
  static const enum weft_plan_depth depths[] = { WEFT_PLAN_PRICED, WEFT_PLAN_PLACED,
                                                 WEFT_PLAN_PLACED };
  enum weft_plan_depth depth = simulates ? WEFT_PLAN_PROVED : depths[x->trial->depth];
  g_autoptr (weft_plan) plan = build (x, &x->shortened.job[i], depth);

  if (!plan || !clock_step (x, i, plan))
    return FALSE;
  x->ops[i] = count_ops (plan);
  if (!simulates || !may_fit (x, i))
    return TRUE;
  x->of[i] = simulate_step (x, plan);
  return x->of[i] != NULL;
}

/* The bound of the whole step. That from SMs is convex in the number of microbatches, as the least
 * cost of a linear program whose limits grow linearly: the line through two short steps lies below
 * it. Without both bounds there is none. */
static double
further (const struct run *x, const double bound[2])
{
  gboolean both = bound[0] > 0 && (x->shortened.n == 1 || bound[1] > 0);

  return both ? weft_shortened_seconds (&x->shortened, bound) : 0;
}

/* The number of ops of the whole step of which a simulation of the trial needs the plan. */
static double
ops_of_whole (const struct run *x)
{
  if (x->shortened.n == 1 || x->trial->job.stack.live_memory)
    return 0;
  double ops = weft_shortened_seconds (&x->shortened, x->ops);
  return ops <= MOST_OPS_OF_WHOLE ? ops : 0;
}

/* Computes the clock time and the memory of the step and, if one plan serves for both, the reports
 * of the simulated short steps. */
static gboolean
try_steps (struct run *x)
{
  struct weft_trial *t = x->trial;
  gboolean simulates = shares_plans (x);

  for (uint32_t i = 0; i < x->shortened.n; i++) {
    if (!try_step (x, i, simulates))
      return FALSE;
    simulates = simulates && may_fit (x, i);
  }
  t->seconds = weft_shortened_seconds (&x->shortened, x->seconds);
  t->contended = fmax (further (x, x->contended), further (x, x->shared));
  t->bytes = weft_shortened_bytes (&x->shortened, x->bytes);
  t->least = weft_shortened_bytes (&x->shortened, x->least);
  t->ops = (uint64_t) (x->ops[0] + x->ops[1]);
  t->work = t->ops + (uint64_t) ops_of_whole (x) / PLACED_OPS_PER_OP;
  return TRUE;
}

/* Simulates the short steps that try_steps() did not simulate. */
static gboolean
simulate_steps (struct run *x)
{
  for (uint32_t i = 0; i < x->shortened.n; i++) {
    if (x->of[i])
      continue;
    g_autoptr (weft_plan) plan = build (x, &x->shortened.job[i], WEFT_PLAN_PROVED);
    if (!plan || !(x->of[i] = simulate_step (x, plan)))
      return FALSE;
  }
  return TRUE;
}

static gboolean
is_equal (const struct weft_report_role *a, const struct weft_report_role *b)
{
  return a->peak_bytes == b->peak_bytes && a->cached_bytes == b->cached_bytes &&
         a->host_bytes == b->host_bytes && !a->stalls.cause && !b->stalls.cause;
}

/* Whether the longer short step has the memory of the whole step. The bytes that are alive follow
 * from the short steps, so this holds for software without an arena if both short steps have the
 * same memory. It does not hold for an arena. Buffers are packed into an arena by size, over the
 * whole step (core/plan/fit.h): the first microbatches get other places than later ones, and it
 * takes more microbatches than short steps have until the places repeat. In one of 17 strategies
 * whose short steps have the same arenas, the arena of the whole step is larger or smaller. Only
 * for the longest steps, whose plans would take most of the time of a search, is the arena of the
 * short steps taken for that of the whole step. */
static gboolean
tells_memory (const struct run *x)
{
  if (ops_of_whole (x) > 0 || weft_shortened_grows (&x->shortened))
    return FALSE;
  for (uint32_t role = 0; role < x->of[1]->n_roles; role++)
    if (!is_equal (&x->of[0]->role[role], &x->of[1]->role[role]))
      return FALSE;
  return TRUE;
}

/* Makes the report of the memory of the whole step, and sets the clock time of the whole step. Its
 * plan need not be proved, because the plans of the short steps are proved and this plan is not
 * executed. Sets *late to the seconds by which the clock time exceeds the extrapolated one (it may
 * be negative): ops that wait until bytes are free delay each step once, by a time that depends on
 * the places of the buffers. Between two short steps, such a delay looks like the time of
 * microbatches, and is extrapolated. */
static weft_report *
report_whole (struct run *x, double *late)
{
  struct weft_trial *t = x->trial;
  gboolean live = t->job.stack.live_memory;
  g_autoptr (weft_plan) plan = build (x, &t->job, live ? WEFT_PLAN_PROVED : WEFT_PLAN_PLACED);
  double clock = plan ? (live ? t->seconds : clock_seconds (x, plan)) : NAN;

  if (isnan (clock))
    return NULL;
  if (ops_of_whole (x) == 0)
    t->work += (uint64_t) count_ops (plan) / PLACED_OPS_PER_OP;
  *late = clock - t->seconds;
  t->seconds = clock;
  return weft_report_new (plan, NULL);
}

/* Makes the report of the whole step: its memory, and the times of the short steps. A step that is
 * not shortened has this report already. */
static void
report_step (struct run *x)
{
  struct weft_trial *t = x->trial;
  double late = 0;

  if (x->shortened.n == 1) {
    t->report = g_steal_pointer (&x->of[0]);
    return;
  }
  weft_report longer = *x->of[1];
  weft_report *const of[2] = { x->of[0], &longer };
  t->report = tells_memory (x) ? g_steal_pointer (&x->of[1]) : report_whole (x, &late);
  if (t->report)
    weft_shortened_report (&x->shortened, &t->job, of, late, t->report);
}

/* Chooses the steps whose programs a trial of the job builds. */
static void
choose_steps (const struct weft_trials *how, const struct weft_job *job,
              struct weft_shortened *shortened)
{
  if (how->whole)
    *shortened = (struct weft_shortened){ .n = 1, .job[0] = *job };
  else
    weft_shorten (job, shortened);
}

uint64_t
weft_trial_cells (const struct weft_trials *how, const struct weft_job *job)
{
  struct weft_shortened shortened;
  uint64_t sum = 0;

  choose_steps (how, job, &shortened);
  for (uint32_t i = 0; i < shortened.n; i++) {
    const struct weft_grid_spec spec = weft_job_grid_spec (&shortened.job[i]);
    sum += weft_spec_cells (&spec);
  }
  return sum;
}

static void
try (const struct weft_trials *how, struct weft_trial *trial)
{
  struct run x = { .how = how, .trial = trial };

  if (trial->depth == WEFT_TRIAL_ENDS)
    trial->ends = weft_ends_measure (&trial->job, how->placements);
  else if (trial->depth == WEFT_TRIAL_PATHS)
    trial->paths = weft_paths_of_job (&trial->job, how->placements);
  if (trial->depth > WEFT_TRIAL_SIMULATED)
    return;
  choose_steps (how, &trial->job, &x.shortened);
  if (try_steps (&x) && trial->depth == WEFT_TRIAL_SIMULATED &&
      trial->bytes <= weft_plan_capacity (&trial->job) && simulate_steps (&x))
    report_step (&x);
  g_clear_pointer (&x.of[0], weft_report_free);
  g_clear_pointer (&x.of[1], weft_report_free);
}

/* ------------------------------------------------------------- results as bytes */

enum { MOST_LABEL = 512, MOST_CAUSES = 64 };

/* The result of a trial as it is passed between processes. `packed` is the report: its struct, and
 * for each role the struct, the name of the op at the peak, and the causes of stalls. */
struct result {
  gboolean refused, failed;
  int code; /* code of the error */
  char message[2048];
  double seconds, contended, bytes, least;
  uint64_t ops, work;
  uint32_t plans[WEFT_PLAN_PROVED + 1];
  size_t n_packed, room; /* bytes of `packed`: in use and at most; 0: there is no report */
  char packed[];
};

static size_t
room_of (uint32_t n_roles)
{
  return sizeof (weft_report) +
         n_roles * (sizeof (struct weft_report_role) + MOST_LABEL + sizeof (guint) +
                    MOST_CAUSES * sizeof (struct weft_memory_stall));
}

static void
put (struct result *r, const void *from, size_t n)
{
  WEFT_INVARIANT (n <= r->room - r->n_packed);
  if (n > 0)
    memcpy (r->packed + r->n_packed, from, n);
  r->n_packed += n;
}

static void
put_role (struct result *r, const struct weft_report_role *role)
{
  const GArray *cause = role->stalls.cause;
  const guint n = cause ? cause->len : 0;

  put (r, role, sizeof *role);
  put (r, role->peak_label, strlen (role->peak_label) + 1);
  put (r, &n, sizeof n);
  put (r, n ? cause->data : NULL, n * sizeof (struct weft_memory_stall));
}

static void
put_report (struct result *r, const weft_report *report)
{
  put (r, report, sizeof *report);
  for (uint32_t i = 0; i < report->n_roles; i++)
    put_role (r, &report->role[i]);
}

static void
get (const struct result *r, size_t *at, void *to, size_t n)
{
  if (n > 0)
    memcpy (to, r->packed + *at, n);
  *at += n;
}

static void
get_role (const struct result *r, size_t *at, struct weft_report_role *role)
{
  guint n;

  get (r, at, role, sizeof *role);
  role->peak_label = g_strdup (r->packed + *at);
  *at += strlen (role->peak_label) + 1;
  get (r, at, &n, sizeof n);
  if (role->stalls.cause == NULL)
    return;
  role->stalls.cause = g_array_sized_new (FALSE, FALSE, sizeof (struct weft_memory_stall), n);
  g_array_set_size (role->stalls.cause, n);
  get (r, at, role->stalls.cause->data, n * sizeof (struct weft_memory_stall));
}

static weft_report *
get_report (const struct result *r, const weft_plan *plan)
{
  weft_report *report = g_new (weft_report, 1);
  size_t at = 0;

  get (r, &at, report, sizeof *report);
  report->plan = plan;
  report->role = g_new0 (struct weft_report_role, report->n_roles);
  for (uint32_t i = 0; i < report->n_roles; i++)
    get_role (r, &at, &report->role[i]);
  return report;
}

/* ------------------------------------------------------------------------ batches */

/* A trial as a process gets it. */
struct task {
  struct weft_job job;
  enum weft_trial_depth depth;
  size_t room; /* bytes for its report */
};

/* Orders trials by the time that they take: longest first, so that no process runs a long trial
 * alone at the end. */
static int
by_length (gconstpointer a, gconstpointer b, gpointer trials)
{
  const uint32_t *i = a, *k = b;
  const struct weft_trial *x = (const struct weft_trial *) trials + *i,
                          *y = (const struct weft_trial *) trials + *k;

  if (x->depth != y->depth)
    return x->depth > y->depth ? -1 : 1;
  if (x->expected_ops != y->expected_ops)
    return x->expected_ops > y->expected_ops ? -1 : 1;
  return (*i > *k) - (*i < *k);
}

/* Runs a trial. A process that has simulated ends, because its memory of SimGrid would stay. */
static gboolean
run_trial (void *user, const void *asked, void *result)
{
  const struct task *task = asked;
  struct weft_trial trial = { .job = task->job, .depth = task->depth };
  struct result *r = result;

  try (user, &trial);
  r->refused = trial.refused;
  r->failed = trial.error != NULL;
  r->code = trial.error ? trial.error->code : 0;
  g_strlcpy (r->message, trial.error ? trial.error->message : "", sizeof r->message);
  r->seconds = trial.seconds;
  r->contended = trial.contended;
  r->bytes = trial.bytes;
  r->least = trial.least;
  r->ops = trial.ops;
  r->work = trial.work;
  memcpy (r->plans, trial.plans, sizeof r->plans);
  r->room = task->room;
  if (trial.report)
    put_report (r, trial.report);
  if (trial.ends)
    put (r, trial.ends, weft_ends_bytes (trial.ends->n, trial.ends->n_chunks));
  if (trial.paths)
    put (r, trial.paths, weft_paths_bytes (trial.paths));
  weft_trial_clear (&trial);
  return task->depth != WEFT_TRIAL_SIMULATED;
}

static void
take_result (const struct result *r, gboolean done, struct weft_trial *trial)
{
  if (!done)
    g_set_error (&trial->error, WEFT_ERROR, WEFT_ERROR_BUG,
                 "its process ended before it was finished, and so did a second one");
  else if (r->failed)
    g_set_error_literal (&trial->error, WEFT_ERROR, r->code, r->message);
  trial->refused = r->refused;
  trial->seconds = r->seconds;
  trial->contended = r->contended;
  trial->bytes = r->bytes;
  trial->least = r->least;
  trial->ops = r->ops;
  trial->work = r->work;
  memcpy (trial->plans, r->plans, sizeof trial->plans);
  if (!done || r->n_packed == 0)
    return;
  if (trial->depth == WEFT_TRIAL_ENDS)
    trial->ends = g_memdup2 (r->packed, r->n_packed);
  else if (trial->depth == WEFT_TRIAL_PATHS)
    trial->paths = g_memdup2 (r->packed, r->n_packed);
  if (trial->depth > WEFT_TRIAL_SIMULATED)
    return;
  trial->plan = weft_plan_new_draft (&trial->job, WEFT_PLAN_OUTLINED, NULL, &trial->error);
  if (trial->plan)
    trial->report = get_report (r, trial->plan);
}

/* Loads SimGrid before processes are started that simulate, so that not each of them loads it. If
 * it cannot be loaded, the trials report the error. */
static void
load_simulator (const struct weft_trial *trial, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    if (trial[i].depth == WEFT_TRIAL_SIMULATED) {
      (void) weft_bridge_version ();
      return;
    }
}

/* Most trials of one run, and the least number of roles for which a pool has room. */
enum { MOST_TRIALS = 64, ROLES = 64 };

static size_t
result_bytes_for (size_t room)
{
  return (sizeof (struct result) + room + 63) / 64 * 64;
}

static gboolean
stops (void *user)
{
  const struct weft_trials *how = user;

  return how->stop && how->stop (how->user);
}

/* Makes a pool whose results have room for reports of `room` bytes, unless there is one. */
static gboolean
open_pool (struct weft_trials *how, size_t room, GError **error)
{
  const struct weft_worker_pool_work work = { .n_workers = how->n_workers,
                                              .most = MOST_TRIALS,
                                              .task_bytes = sizeof (struct task),
                                              .result_bytes = result_bytes_for (room),
                                              .run = run_trial,
                                              .stop = stops,
                                              .user = how };

  if (how->pool && weft_worker_pool_result_bytes (how->pool) >= work.result_bytes)
    return TRUE;
  weft_trials_end (how);
  how->pool = weft_worker_pool_new (&work, error);
  return how->pool != NULL;
}

/* The bytes of the longest report or paths of n trials. */
static size_t
room_for (const struct weft_trial *trial, uint32_t n)
{
  size_t room = room_of (ROLES);

  for (uint32_t i = 0; i < n; i++) {
    const struct weft_job *job = &trial[i].job;
    room = MAX (room, room_of ((uint32_t) job->strategy.pipeline_model_parallel_size));
    if (trial[i].depth == WEFT_TRIAL_PATHS)
      room = MAX (room, weft_paths_most_bytes (job));
  }
  return room;
}

static gboolean
run_elsewhere (struct weft_trials *how, struct weft_trial *trial, uint32_t n, GError **error)
{
  size_t room = room_for (trial, n);
  g_autofree struct task *task = g_new (struct task, n);
  uint32_t order[MOST_TRIALS];
  gboolean done[MOST_TRIALS];

  for (uint32_t i = 0; i < n; i++)
    order[i] = i;
  g_qsort_with_data (order, (int) n, sizeof *order, by_length, trial);
  for (uint32_t i = 0; i < n; i++)
    task[i] = (struct task){ trial[order[i]].job, trial[order[i]].depth, room };
  load_simulator (trial, n);
  if (!open_pool (how, room, error))
    return FALSE;
  size_t bytes = weft_worker_pool_result_bytes (how->pool);
  g_autofree char *results = g_malloc (n * bytes);
  if (!weft_worker_pool_run (how->pool, task, n, results, done, error))
    return FALSE;
  for (uint32_t i = 0; i < n; i++) {
    trial[order[i]].skipped = !done[i] && stops (how);
    if (!trial[order[i]].skipped)
      take_result ((const struct result *) (void *) (results + i * bytes), done[i],
                   &trial[order[i]]);
  }
  return TRUE;
}

static void
run_here (struct weft_trials *how, struct weft_trial *trial)
{
  const struct task task = { trial->job, trial->depth, room_for (trial, 1) };
  g_autofree struct result *result = g_malloc0 (result_bytes_for (task.room));

  run_trial (how, &task, result);
  take_result (result, TRUE, trial);
}

gboolean
weft_trials_run (struct weft_trials *how, struct weft_trial *trial, uint32_t n, GError **error)
{
  WEFT_INVARIANT (n <= MOST_TRIALS);
  if (how->n_workers != 1)
    return run_elsewhere (how, trial, n, error);
  for (uint32_t i = 0; i < n; i++)
    run_here (how, &trial[i]);
  return TRUE;
}

void
weft_trials_end (struct weft_trials *how)
{
  g_clear_pointer (&how->pool, weft_worker_pool_free);
}

void
weft_trial_clear (struct weft_trial *trial)
{
  g_clear_error (&trial->error);
  g_clear_pointer (&trial->report, weft_report_free);
  g_clear_pointer (&trial->plan, weft_plan_free);
  g_clear_pointer (&trial->ends, g_free);
  g_clear_pointer (&trial->paths, g_free);
}
