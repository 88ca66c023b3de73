/* Trains random legal jobs with the CUDA executor on a double of a device (computing_cuda.h), and
 * on the CPU. Losses, norms and gradients must agree within rounding.
 *
 * test_emulated cuda_random -- [SEED [JOBS]]: other random jobs, or another number of them */
#include "core/base/sanitize.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/doubles/computing_cuda.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/made/trained.h"
#include "tests/runner/runner.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEED 2026
/* numbers of jobs: usually, and with `./weft test --long` */
#define JOBS (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 2 : 5)
#define ALL_JOBS 12
#define MOST_RANKS 8
#define MOST_PARAMETERS 40000
/* limit of tokens per batch x layers x heads of a job, because emulated threads are slow */
#define MOST_WORK 1000

/* Tolerances of a random job: the device adds in another order than the CPU, and rounds to 16 bits
 * between kernels (trained_cases.c). */
static const struct trained_bound bounds[] = {
  [WEFT_FP32] = { .loss = 1e-5, .norm = 1e-4, .gradient = 1e-3 },
  [WEFT_BF16] = { .loss = 1e-3, .norm = 1e-2, .gradient = 0.3 },
  [WEFT_FP16] = { .loss = 1e-3, .norm = 1e-2, .gradient = 0.3 },
  /* Neighbouring fp8 values differ by an eighth of their value, so tolerances are large. */
  [WEFT_FP8] = { .loss = 3e-3, .norm = 5e-2, .gradient = 0.6 },
};

static int64_t
work_of (const struct weft_job *job)
{
  return job->train.global_batch_size * job->model.seq_length * job->model.num_layers *
         job->model.num_attention_heads;
}

/* Whether ranks exchange rows of experts whose number the router determines during the step. With a
 * fixed capacity per expert the number of rows is known before the step. */
static gboolean
is_counted (const char *words)
{
  return strstr (words, "num_moe_experts=") && !strstr (words, "moe_pad") &&
         (!strstr (words, "expert_model_parallel_size=1") ||
          strstr (words, "tensor_model_parallel_size="));
}

/* Draws random jobs until a legal one is small enough. `counted`: is_counted() must be TRUE for the
 * job, that is, ranks exchange rows of experts whose number is known only during the step. The
 * caller frees the text. */
static char *
draw (GRand *rand, struct weft_job *job, gboolean counted)
{
  for (;;) {
    g_autofree char *plain = weft_random_job (rand);
    if (counted && !is_counted (plain))
      continue;
    g_autofree char *words =
        g_strconcat (plain, " moe_load_imbalance=64 reduction_order=fast", NULL);

    if (weft_test_job (words, job, NULL) && job->cluster.n_gpus <= MOST_RANKS &&
        weft_model_parameters (&job->model) <= MOST_PARAMETERS && work_of (job) <= MOST_WORK)
      return g_steal_pointer (&words);
  }
}

/* Trains job number `number` on the emulated device and on the CPU, and compares the results. Jobs
 * with an odd number have one device per rank; in jobs with an even number all ranks share one
 * device. For two of every four numbers the device has wgmma, as Hopper has. Returns FALSE if the
 * device lacks a kernel of the job, or NCCL does not support the job. */
static gboolean
runs_as_on_the_cpu (const char *words, const struct weft_job *job, uint32_t number)
{
  gboolean own = number % 2;
  struct weft_exec_options how = { .own =
                                       made_own (&weft_exec_cuda, "ranks-per-gpu=%u graph=%d",
                                                 own ? 1 : job->cluster.n_gpus, number % 3 == 0) };
  g_autoptr (computing_cuda) d = computing_cuda_new (number);

  d->warpgroups = number / 2 % 2;
  g_autoptr (trained) device = trained_new (&d->calls, words, &how);

  assert_int_equal (d->n_open, 0);
  if (!device)
    return FALSE;
  g_autoptr (trained) cpu = trained_new (NULL, words, NULL);
  trained_assert_near (device, cpu, bounds[weft_job_linear_dtype (job)], words);
  return TRUE;
}

static void
train_jobs (const struct weft_tests_draw *drawn, gboolean counted)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (drawn->seed + counted);
  uint32_t left = drawn->jobs, lacking = 0;

  trained_limit (0, drawn->seed);
  for (uint32_t i = 0; left; i++) {
    struct weft_job job;
    g_autofree char *words = draw (rand, &job, counted);
    gboolean ran = runs_as_on_the_cpu (words, &job, i);
    left -= ran;
    lacking += !ran;
  }
  print_message ("%u jobs, besides %u that the device lacks something for; launches of experts by "
                 "warpgroups so far: %u, and of codes %u\n",
                 drawn->jobs, lacking, (unsigned) emulated_launches ("warpgroup_tiles"),
                 (unsigned) emulated_launches ("warpgroup_codes"));
}

/* A job that exceeds its time limit must print its seed and its text, and then ends the program.
 * The test runs such a job in a child process. */
static void
a_run_that_takes_too_long_is_named (void **state)
{
  char said[400] = "";
  int pipes[2], status;

  (void) state;
  assert_int_equal (pipe (pipes), 0);
  pid_t child = fork ();
  if (child == 0) {
    dup2 (pipes[1], STDERR_FILENO);
    trained_limit (1e-3, 77);
    trained_new (NULL, "model=gpt2-nano topology=cpu gpus=1", NULL);
    _exit (0);
  }
  close (pipes[1]);
  assert_int_equal (waitpid (child, &status, 0), child);
  assert_true (read (pipes[0], said, sizeof said - 1) > 0);
  close (pipes[0]);
  assert_true (WIFEXITED (status) && WEXITSTATUS (status) == 1);
  assert_string_equal (said, "seed 77: takes longer than 0.001 s: model=gpt2-nano topology=cpu "
                             "gpus=1\n");
}

static void
random_jobs_train_as_on_the_cpu (void **state)
{
  train_jobs (*state, FALSE);
}

/* Trains random jobs in which ranks exchange rows of experts (a row: the vector of one token that
 * is routed to an expert). The number of rows that ranks exchange is known only during the step.
 * The number of jobs is a quarter of drawn.jobs, rounded up. */
static void
random_jobs_whose_rows_go_by_counts_train_as_on_the_cpu (void **state)
{
  struct weft_tests_draw drawn = *(const struct weft_tests_draw *) *state;

  drawn.jobs = (drawn.jobs + 3) / 4;
  train_jobs (&drawn, TRUE);
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
  cmocka_unit_test (a_run_that_takes_too_long_is_named),
  cmocka_unit_test_prestate (random_jobs_train_as_on_the_cpu, &drawn),
  cmocka_unit_test_prestate (random_jobs_whose_rows_go_by_counts_train_as_on_the_cpu, &drawn),
};

WEFT_TESTS (tests, .seconds = 10, .begin = read_draw)
