/* Fits: the solver finds known minima, constants apply to the jobs that use them, a plan that is
 * priced again equals a new plan, and a fit finds the constant that made its measurements. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "core/base/error.h"
#include "core/job/flags.h"
#include "core/plan/plan.h"
#include "exec_sim/exec_sim.h"
#include "planner/fit.h"
#include "planner/least_squares.h"
#include "planner/row_plans.h"
#include "planner/workers.h"
#include "tests/runner/folder.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void
near_to (double found, double wanted, double share)
{
  if (!(fabs (found - wanted) <= share * fabs (wanted)))
    fail_msg ("found %.12g, wanted %.12g", found, wanted);
}

/* ------------------------------------------------------------------------ least squares */

/* The linear problem of these tests: residuals 3 x - 6, x - 2 and y - 1 of two unknowns x and y.
 * The spread of the prior is so large that the prior does not count. */
static const double slope[] = { 3, 0, 1, 0, 0, 1 }, weight[] = { 1, 1, 1 };
static const double prior[] = { 0, 0 }, spread[] = { 1e6, 1e6 };
static const double low[] = { -10, -10 }, high[] = { 10, 10 };

static struct weft_least_squares
problem (void)
{
  return (struct weft_least_squares){ .n_x = 2,
                                      .n_r = 3,
                                      .weight = weight,
                                      .prior = prior,
                                      .spread = spread,
                                      .low = low,
                                      .high = high,
                                      .elbow = 1e6 };
}

static void
residuals_of (const double *x, double *r)
{
  r[0] = 3 * x[0] - 6;
  r[1] = x[0] - 2;
  r[2] = x[1] - 1;
}

static void
one_step_solves_a_linear_problem (void **state)
{
  const struct weft_least_squares p = problem ();
  double x[] = { 7, -4 }, r[3], next[2];

  (void) state;
  residuals_of (x, r);
  weft_least_squares_step (&p, x, r, slope, next);
  near_to (next[0], 2, 1e-9);
  near_to (next[1], 1, 1e-9);
}

/* The bounds fix y at 0.25. The step must then find the minimum over x for this y. */
static void
an_unknown_stops_at_its_bound_and_the_others_are_solved_again (void **state)
{
  const double ceiling[] = { 10, 0.25 }, floor_of[] = { -10, 0.25 };
  /* Least squares with y fixed at 0.25 by its bounds. These slopes replace the third residual by x
   * + y - 1; the first two remain 3 x - 6 and x - 2. The sum of squares is 9 (x - 2)^2 + (x - 2)^2
   * + (x - 0.75)^2, whose minimum is at x = 20.75 / 11. */
  const double both[] = { 3, 0, 1, 0, 1, 1 };
  struct weft_least_squares p = problem ();
  double x[] = { 0, 0 }, r[] = { -6, -2, -1 }, next[2];

  (void) state;
  p.high = ceiling;
  p.low = floor_of;
  weft_least_squares_step (&p, (double[]){ 0, 0.25 }, (double[]){ -6, -2, -0.75 }, both, next);
  near_to (next[1], 0.25, 1e-12);
  near_to (next[0], 20.75 / 11, 1e-9);
  p.low = low;
  weft_least_squares_step (&p, x, r, (const double[]){ 3, 0, 1, 0, 0, 1 }, next);
  near_to (next[1], 0.25, 1e-12);
  near_to (next[0], 2, 1e-9);
}

static void
the_prior_pulls_by_its_spread (void **state)
{
  const double at[] = { 5, 1 }, narrow[] = { 0.1, 1e6 };
  struct weft_least_squares p = problem ();
  double x[] = { 5, 1 }, r[3], next[2];

  (void) state;
  p.prior = at;
  p.spread = narrow;
  residuals_of (x, r);
  weft_least_squares_step (&p, x, r, slope, next);
  /* the minimum of 10 (x - 2)^2 from the residuals plus 100 (x - 5)^2 from the prior */
  near_to (next[0], 520. / 110, 1e-9);
}

static void
one_row_that_the_model_cannot_explain_hardly_counts (void **state)
{
  const double one[] = { 1, 1, 1, 1, 1 }, weights[] = { 1, 1, 1, 1, 1 };
  const double r[] = { -1.01, -0.99, -1, -1, 9 };
  struct weft_least_squares p = problem ();
  double x = 0, next;

  (void) state;
  p.n_x = 1;
  p.n_r = 5;
  p.weight = weights;
  p.elbow = 0.05;
  weft_least_squares_step (&p, &x, r, one, &next);
  /* Four residuals are 0 at x = 1, and a fifth at x = -9. The robust fit must stay near 1; the mean
   * would be -1. */
  near_to (next, 1, 0.03);
}

/* ------------------------------------------------------------------------ constants */

static char *
write_text (const char *dir, const char *name, const char *text)
{
  char *path = g_build_filename (dir, name, NULL);

  assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

/* Loads a table of constants (which `weft fit` may change) from a text. If `wanted` is not NULL,
 * asserts that the text is refused with a message that contains `wanted`. */
static weft_constants *
constants_of (const char *dir, const char *text, const char *wanted)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = write_text (dir, "fit.ini", text);
  weft_constants *constants = weft_constants_load (path, &error);

  if (!wanted && !constants)
    fail_msg ("%s", error->message);
  if (wanted && constants)
    fail_msg ("not refused: %s", text);
  if (wanted && !strstr (error->message, wanted))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, wanted);
  return constants;
}

static void
constants_are_read_or_refused_by_line (void **state)
{
  static const struct {
    const char *text, *wanted;
  } bad[] = {
    { "[cluster x]\na = 1 in 0.5..2\n", "fit.ini:2: [cluster x] unknown section" },
    { "[stack megatron-core]\nmemory_shar = 0.8 in 0.5..1\n", "did you mean memory_share" },
    { "[stack megatron-core]\nmemory_share = 0.8\n", "wanted PRIOR in LOW..HIGH" },
    { "[stack megatron-core]\nmemory_share = 0.8 in 0.9..1\n", "wanted 0 < LOW < PRIOR < HIGH" },
    { "[stack megatron-core]\nmemory_share = 0.8 in 0..1\n", "wanted 0 < LOW" },
    { "[stack megatron-core]\ncollective_sms = 8 in 4..32\n", "wanted a field with a real number" },
    { "[stack megatron-cor]\nmemory_share = 0.8 in 0.5..1\n", "did you mean megatron-core" },
  };
  weft_constants *good = constants_of (
      *state, "[topology dgx-h100|dgx-a100]\ngpu_memory_bandwidth = 2.5TB/s in 1TB/s..3TB/s\n"
              "[stack megatron-core]\nmemory_share = 0.8 in 0.5..1 within 0.1\n", NULL);

  assert_int_equal (good->n, 2);
  assert_int_equal (good->constant[0].sheets->len, 2);
  assert_true (good->constant[0].high == 3e12 && good->constant[0].spread == WEFT_CONSTANT_SPREAD);
  assert_true (good->constant[1].prior == 0.8 && good->constant[1].spread == 0.1);
  weft_constants_free (good);
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++)
    constants_of (*state, bad[i].text, bad[i].wanted);
}

static void
the_bundled_constants_load (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_constants) constants = weft_constants_load (NULL, &error);

  (void) state;
  if (!constants)
    fail_msg ("%s", error->message);
  /* `weft fit` may have at most 60 constants of time and 20 of memory */
  assert_in_range (constants->n, 1, 80);
}

static struct weft_job
job_of (const char *text)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (!weft_flags_words (text, settings, &error) || !weft_job_build (settings, &job, &error))
    fail_msg ("%s", error->message);
  return job;
}

static weft_row_job
row_job (const char *words)
{
  return (weft_row_job){ .job = job_of (words) };
}

/* mine.ini is a stack that builds on megatron-core and states its own memory_share. A constant
 * of megatron-core applies to a job with this stack unless mine.ini states the value itself. */
static void
a_constant_applies_where_its_file_gives_the_value (void **state)
{
  g_autofree char *mine = write_text (*state, "mine.ini",
                                      "[stack]\nname = mine\nbase = megatron-core\n"
                                      "memory_share = 0.6 # estimate: a test\n");
  g_autofree char *words =
      g_strdup_printf ("model=gpt2-nano topology=dgx-h100 gpus=2 stack=%s", mine);
  g_autoptr (weft_constants) constants =
      constants_of (*state, "[stack megatron-core]\nmemory_share = 0.8 in 0.5..1\n"
                            "attention_forward_share = 0.7 in 0.5..1\n"
                            "[topology dgx-h100]\ngpu_memory_bandwidth = 2.9TB/s in 1TB/s..3TB/s\n",
                    NULL);
  const weft_row_job core =
      row_job ("model=gpt2-nano topology=dgx-h100 gpus=2 stack=megatron-core");
  const weft_row_job other = row_job ("model=gpt2-nano topology=dgx-a100 gpus=2");
  weft_row_job based = row_job (words);
  gboolean applies[3];

  weft_constants_of (constants, &core, applies);
  assert_true (applies[0] && applies[1] && applies[2]);
  weft_constants_of (constants, &based, applies);
  assert_true (!applies[0] && applies[1] && applies[2]);
  /* An assumption for a published row may replace the bandwidth that the topology states. The
   * constant of the topology must then not apply to the job. */
  based.job.cluster.f.gpu_memory_bandwidth = 1e12;
  weft_constants_of (constants, &based, applies);
  assert_false (applies[2]);
  weft_constants_of (constants, &other, applies);
  assert_true (!applies[0] && !applies[1] && !applies[2]);
}

static void
a_fitted_value_is_written_into_its_line (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *mine = write_text (*state, "mine.ini",
                                      "[stack]\nname = mine\nbase = megatron-core\n"
                                      "# what it is\nmemory_share = 0.6 # estimate: a test\n"
                                      "p2p_sms = 3\n");
  g_autofree char *text = g_strdup_printf ("[stack %s]\nmemory_share = 0.6 in 0.5..1\n", mine);
  g_autofree char *written = NULL;
  g_autoptr (weft_constants) constants = constants_of (*state, text, NULL);

  assert_true (weft_constant_write (&constants->constant[0], 0.712345, "a test", &error));
  assert_true (g_file_get_contents (mine, &written, NULL, NULL));
  assert_string_equal (written, "[stack]\nname = mine\nbase = megatron-core\n# what it is\n"
                                "memory_share = 0.7123  # fitted: a test\np2p_sms = 3\n");
}

/* ------------------------------------------------------------------------ prices */

static void
a_plan_that_is_priced_again_equals_a_new_plan (void **state)
{
  struct weft_job job = job_of ("model=gpt2-nano topology=dgx-h100 nodes=2 stack=megatron-core "
                                       "tensor_model_parallel_size=2 "
                                       "pipeline_model_parallel_size=2");
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = weft_plan_new_draft (&job, WEFT_PLAN_PRICED, NULL, &error);

  (void) state;
  job.stack.memory_share = 0.5;
  job.stack.collective_base_latency *= 2;
  job.cluster.f.node_nic_bandwidth /= 3;
  g_autoptr (weft_plan) wanted = weft_plan_new_draft (&job, WEFT_PLAN_PRICED, NULL, &error);
  weft_plan_price (plan, &job.cluster.f, &job.stack);
  for (uint32_t role = 0; role < plan->n_roles; role++)
    assert_memory_equal (plan->seconds[role], wanted->seconds[role],
                         plan->role[role]->n_op * sizeof (double));
  g_autoptr (weft_timeline) again =
      weft_exec_run (&weft_exec_sim, plan, &(struct weft_exec_options){ 0 }, &error);
  g_autoptr (weft_timeline) fresh =
      weft_exec_run (&weft_exec_sim, wanted, &(struct weft_exec_options){ 0 }, &error);
  assert_true (again->seconds == fresh->seconds);
}

/* ------------------------------------------------------------------------ workers */

static void
square (void *user, uint32_t task, void *result)
{
  const int *deadly = user;

  if ((int) task == *deadly)
    kill (getpid (), SIGKILL);
  *(uint32_t *) result = task * task;
}

static void
check_progress (void *user, uint32_t done, uint32_t of)
{
  uint32_t *last = user;

  assert_true (done > *last && done <= of);
  *last = done;
}

static void
run_squares (uint32_t n_workers, int deadly)
{
  g_autoptr (GError) error = NULL;
  uint32_t result[40], last = 0;
  gboolean done[40];
  const struct weft_workers workers = { .n_tasks = 40,
                                        .n_workers = n_workers,
                                        .result_bytes = sizeof *result,
                                        .run = square,
                                        .user = &deadly,
                                        .progress = check_progress,
                                        .progress_user = &last };

  assert_true (weft_workers_run (&workers, result, done, &error));
  assert_int_equal (last, deadly < 0 ? 40 : 39);
  for (uint32_t i = 0; i < 40; i++) {
    assert_int_equal (done[i], (int) i != deadly);
    assert_int_equal (result[i], (int) i == deadly ? 0 : i * i);
  }
}

static void
workers_give_results_in_the_order_of_the_tasks (void **state)
{
  (void) state;
  run_squares (1, -1);
  run_squares (3, -1);
  run_squares (3, 17);
}

/* Kills the worker that begins task 5 for the first time; `user` is memory of all processes. */
static void
square_once_killed (void *user, uint32_t task, void *result)
{
  gint *n_begun = user;
  int deadly = -1;

  *(uint32_t *) result = 7;
  if (task == 5 && g_atomic_int_add (n_begun, 1) == 0)
    kill (getpid (), SIGKILL);
  square (&deadly, task, result);
}

static void
a_killed_worker_loses_no_task (void **state)
{
  gint *n_begun =
      mmap (NULL, sizeof *n_begun, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  uint32_t result[8];
  gboolean done[8];
  const struct weft_workers workers = { .n_tasks = 8,
                                        .n_workers = 2,
                                        .result_bytes = sizeof *result,
                                        .run = square_once_killed,
                                        .user = n_begun };

  (void) state;
  assert_true (weft_workers_run (&workers, result, done, NULL));
  for (uint32_t i = 0; i < 8; i++)
    assert_true (done[i] && result[i] == i * i);
  assert_int_equal (*n_begun, 2);
  munmap (n_begun, sizeof *n_begun);
}

/* ------------------------------------------------------------------------ the fit */

/* Returns a table of published runs: the header, and n rows of gpt2-like models on GPUs of one
 * node, with these step times. The caller frees the text. */
static char *
table_text (const double *seconds, unsigned n)
{
  GString *text = g_string_new (
      "id,source,tier,group,model_name,model_ref,layers,hidden,heads,kv_heads,ffn,vocab,seq,"
      "gated_mlp,gpu,num_gpus,gpus_per_node,dtype,tp,pp,vpp,dp,cp,ep,dp_sharding,seq_parallel,"
      "micro_batch,global_batch,recompute,offload,overlap_notes,iter_time_s,tflops_per_gpu,"
      "tokens_per_s_per_gpu,mfu_pct,peak_mem_gib,notes\n");

  for (unsigned i = 0; i < n; i++)
    g_string_append_printf (text,
                            "mine-%u,a test,A,mine,m,,8,%u,16,16,%u,50304,1024,0,H100-80GB-SXM,"
                            "8,8,bf16,1,1,1,8,1,,none,0,4,32,none,,,%.17g,,,,,\n",
                            i, 1024 * (i + 1), 4096 * (i + 1), seconds[i]);
  return g_string_free (text, FALSE);
}

static weft_published *
table_of (const double *seconds, unsigned n)
{
  g_autofree char *text = table_text (seconds, n);
  g_autoptr (GError) error = NULL;
  weft_published *table = weft_published_parse (text, -1, "mine.csv", &error);

  if (!table)
    fail_msg ("%s", error->message);
  return table;
}

/* Computes the step times of all rows with another sustained bf16 rate of the GPU, which is the
 * constant that the fit must find. */
static void
measure (const weft_assumptions *assumptions, double sustained, double *seconds, unsigned n)
{
  g_autoptr (weft_published) table = table_of (seconds, n);

  for (unsigned i = 0; i < n; i++) {
    weft_row_job *job = weft_row_job_new (assumptions, table, i, NULL);
    job->job.cluster.f.gpu_bf16_sustained = sustained;
    g_autoptr (weft_row_plans) plans = weft_row_plans_new (job, NULL);
    seconds[i] = weft_row_plans_seconds (plans, &weft_exec_clock, NULL);
  }
}

static void
a_fit_finds_the_constant_that_made_the_measurements (void **state)
{
  double seconds[] = { 1, 1, 1 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_assumptions) assumptions = weft_assumptions_load (NULL, &error);
  g_autoptr (weft_constants) constants = constants_of (
      *state, "[topology dgx-h100]\ngpu_bf16_sustained = 0.9 in 0.5..1 within 10\n"
              "[topology dgx-a100]\ngpu_bf16_sustained = 0.9 in 0.5..1\n", NULL);
  const struct weft_fit_options options = { .executor = &weft_exec_clock, .jobs = 1,
                                            .most_rounds = 6 };

  measure (assumptions, 0.7, seconds, 3);
  g_autoptr (weft_published) table = table_of (seconds, 3);
  g_autoptr (weft_fit) fit = weft_fit_new (table, assumptions, constants, &options, &error);
  if (!fit)
    fail_msg ("%s", error->message);
  near_to (fit->constant[0].value, 0.7, 0.01);
  assert_int_equal (fit->constant[0].n_time, 3);
  assert_int_equal (fit->constant[0].on_bound, FALSE);
  assert_true (fit->time[WEFT_FIT_FITTED] < 0.005 && fit->time[WEFT_FIT_PRIOR] > 0.1);
  near_to (fit->constant[0].time_without, fit->time[WEFT_FIT_PRIOR], 0.2);
  /* no row runs on dgx-a100: the constant of this topology keeps its prior value */
  near_to (fit->constant[1].value, 0.9, 1e-12);
  assert_true (isinf (fit->constant[1].standard_error));
  /* all rows have one source; if this source is left out, the constant keeps its prior value */
  near_to (fit->time[WEFT_FIT_LEFT_OUT], fit->time[WEFT_FIT_PRIOR], 0.01);
}

/* The first three rows are a series. The row with 16 GPUs is left out, but not the row with 32
 * GPUs, whose memory was measured. The last row has another width. */
static void
a_thin_fit_takes_the_smallest_run_of_a_series (void **state)
{
  static const unsigned gpus[] = { 32, 16, 8, 8 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_assumptions) assumptions = weft_assumptions_load (NULL, &error);
  g_autoptr (weft_constants) constants =
      constants_of (*state, "[topology dgx-h100]\ngpu_bf16_sustained = 0.9 in 0.5..1\n", NULL);
  g_autofree char *header = table_text (NULL, 0);
  GString *text = g_string_new (header);

  for (unsigned i = 0; i < G_N_ELEMENTS (gpus); i++)
    g_string_append_printf (text,
                            "mine-%u,a test,A,mine,m,,8,%u,16,16,4096,50304,1024,0,H100-80GB-SXM,"
                            "%u,8,bf16,1,1,1,%u,1,,none,0,4,%u,none,,,0.5,,,,%s,\n",
                            i, i < 3 ? 1024 : 2048, gpus[i], gpus[i], 4 * gpus[i],
                            i == 0 ? "10" : "");
  g_autoptr (weft_published) table = weft_published_parse (text->str, -1, "mine.csv", &error);
  for (int thin = 0; thin < 2; thin++) {
    const struct weft_fit_options options = { .executor = &weft_exec_clock, .jobs = 1,
                                              .thin = thin };
    g_autoptr (weft_fit) fit = weft_fit_new (table, assumptions, constants, &options, &error);
    assert_non_null (fit);
    assert_int_equal (fit->constant[0].n_time, thin ? 3 : 4);
  }
  g_string_free (text, TRUE);
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (one_step_solves_a_linear_problem),
  cmocka_unit_test (an_unknown_stops_at_its_bound_and_the_others_are_solved_again),
  cmocka_unit_test (the_prior_pulls_by_its_spread),
  cmocka_unit_test (one_row_that_the_model_cannot_explain_hardly_counts),
  IN_FOLDER (constants_are_read_or_refused_by_line),
  cmocka_unit_test (the_bundled_constants_load),
  IN_FOLDER (a_constant_applies_where_its_file_gives_the_value),
  IN_FOLDER (a_fitted_value_is_written_into_its_line),
  cmocka_unit_test (a_plan_that_is_priced_again_equals_a_new_plan),
  cmocka_unit_test (workers_give_results_in_the_order_of_the_tasks),
  cmocka_unit_test (a_killed_worker_loses_no_task),
  IN_FOLDER (a_fit_finds_the_constant_that_made_the_measurements),
  IN_FOLDER (a_thin_fit_takes_the_smallest_run_of_a_series),
};

WEFT_TESTS (tests)
