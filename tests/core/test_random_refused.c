/* Random settings in any combination: Weft must plan each job, or refuse it by a named rule.
 * Jobs are planned in a process of their own, so that a crash can be reported with the text of the
 * job. */
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_JOB 3000
#define EACH 100 /* number of jobs of a process */
#define SEED 77
/* time limit of a job in seconds; a job that exceeds it counts as a crash */
#define MOST_SECONDS 60
/* only jobs with at most this many layers x microbatches x stages are planned */
#define MOST_OPS (1 << 14)

enum outcome { PLANNED, REFUSED, TOO_LARGE, NAMELESS };

/* ------------------------------------------------------------------ settings */

/* Returns a random integer for a field: mostly near the lower end of the field's range, sometimes
 * anywhere in the range. */
static int64_t
random_int (GRand *rand, const struct weft_field *field)
{
  int64_t lo = field->lo ? (int64_t) g_ascii_strtod (field->lo, NULL) : 0;
  int64_t hi = field->hi ? (int64_t) g_ascii_strtod (field->hi, NULL) : 1 << 20;
  double most = g_rand_int_range (rand, 0, 8) ? 12 : (double) (hi - lo);

  return lo + (int64_t) (exp (g_rand_double (rand) * log1p (MIN (most, (double) (hi - lo)))) - 1);
}

static double
random_real (GRand *rand, const struct weft_field *field)
{
  double lo = field->lo ? g_ascii_strtod (field->lo, NULL) : 0;
  double hi = field->hi ? g_ascii_strtod (field->hi, NULL) : 1e9;

  return g_rand_int_range (rand, 0, 2) ? lo + (MIN (hi, 4) - lo) * g_rand_double (rand) : hi;
}

static const char *
random_text (GRand *rand)
{
  static const char *const texts[] = {
    "mlp",  "core_attn,layernorm", "2,2", "4,1",    "Et|tL", "layer",
    "what", "Et|(t|)*3,L",         ",,",  "head,x", "moe",   WEFT_SOURCE_DIR "/LICENSE"
  };
  return texts[g_rand_int_range (rand, 0, G_N_ELEMENTS (texts))];
}

static uint32_t
count_words (const struct weft_field *field)
{
  uint32_t n = 0;

  while (field->words[n])
    n++;
  return n;
}

/* Returns, as text, a random value of the type of a setting (field). */
static char *
random_value (GRand *rand, const struct weft_field *field)
{
  union weft_value value = { .i = g_rand_int_range (rand, 0, 2) };

  if (field->type == WEFT_TYPE_TEXT)
    return g_strdup (random_text (rand));
  if (field->type == WEFT_TYPE_INT)
    value.i = random_int (rand, field);
  if (field->type == WEFT_TYPE_REAL)
    value.r = random_real (rand, field);
  if (field->type == WEFT_TYPE_WORD)
    value.i = g_rand_int_range (rand, 0, (gint32) count_words (field));
  return weft_field_print (field, value);
}

static void
set_some (GString *words, GRand *rand, const struct weft_table *table, uint32_t most)
{
  for (uint32_t n = (uint32_t) g_rand_int_range (rand, 0, (gint32) most + 1); n > 0; n--) {
    const struct weft_field *field = &table->field[g_rand_int_range (rand, 0, (gint32) table->n)];
    if (field->type == WEFT_TYPE_METHOD || weft_field_is_pending (field))
      continue;
    g_autofree char *value = random_value (rand, field);
    g_string_append_printf (words, " %s=%s", field->name, value);
  }
}

/* Returns the text of a small job, or of a job of random_job.c, with random settings appended. */
static char *
any_job (GRand *rand)
{
  static const char *const topologies[] = { "cpu", "dgx-h100", "l40s-pcie", "gb200-nvl72" };
  g_autofree char *drawn = weft_random_job (rand);
  const char *topology = topologies[g_rand_int_range (rand, 0, G_N_ELEMENTS (topologies))];
  GString *words = g_string_new (NULL);

  if (g_rand_int_range (rand, 0, 2))
    g_string_append (words, drawn);
  else
    g_string_append_printf (words, "model=%s topology=%s gpus=%d",
                            g_rand_int_range (rand, 0, 2) ? "gpt2-nano" : "llama-nano", topology,
                            1 << g_rand_int_range (rand, 0, 5));
  set_some (words, rand, &weft_strategy_table, 8);
  set_some (words, rand, &weft_train_table, 2);
  set_some (words, rand, &weft_model_table, 2);
  return g_string_free (words, FALSE);
}

/* ------------------------------------------------------------------- outcomes */

/* Whether a job was refused by a rule, or by a check of the model whose message begins with the
 * name of a field. */
static gboolean
is_named (const GError *error)
{
  g_autofree char *first = g_strndup (error->message, strcspn (error->message, " :"));

  return g_str_equal (first, "rule") || weft_table_find (&weft_model_table, first) >= 0;
}

/* Whether planning the job would take too long for this test. */
static gboolean
is_large (const struct weft_job *job)
{
  int64_t layers = job->model.num_layers * weft_job_microbatches (job);

  return layers * job->strategy.pipeline_model_parallel_size > MOST_OPS ||
         job->cluster.n_gpus > 4096;
}

static enum outcome
outcome_of (const char *words)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  if (weft_test_job (words, &job, &error)) {
    if (is_large (&job))
      return TOO_LARGE;
    g_autoptr (weft_plan) plan = weft_plan_new (&job, &error);
    if (plan)
      return PLANNED;
  }
  if (is_named (error))
    return REFUSED;
  fprintf (stderr, "%s\n  %s\n", words, error->message);
  return NAMELESS;
}

/* Plans the jobs one after the other and writes one byte, its outcome, for each. */
static void
plan_all (GPtrArray *jobs, int to)
{
  /* CMocka installs handlers for these signals. The child process restores the default, so that a
   * crash ends it. */
  static const int caught[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };

  for (size_t i = 0; i < G_N_ELEMENTS (caught); i++)
    signal (caught[i], SIG_DFL);
  for (guint i = 0; i < jobs->len; i++) {
    alarm (MOST_SECONDS);
    uint8_t outcome = (uint8_t) outcome_of (g_ptr_array_index (jobs, i));
    if (write (to, &outcome, 1) != 1)
      _exit (1);
  }
  _exit (0);
}

/* Plans jobs in a child process, so that a crash can be reported, and counts the outcomes. A
 * process for each job would take longer than its plan. */
static void
try_jobs (GPtrArray *jobs, uint32_t n[NAMELESS + 1])
{
  int from[2], status;
  guint done = 0;

  assert_int_equal (pipe (from), 0);
  pid_t child = fork ();
  assert_true (child >= 0);
  if (child == 0)
    plan_all (jobs, from[1]);
  close (from[1]);
  for (uint8_t outcome; read (from[0], &outcome, 1) == 1; done++)
    n[outcome]++;
  close (from[0]);
  assert_int_equal (waitpid (child, &status, 0), child);
  if (done < jobs->len)
    fail_msg ("%s: ended by signal %d", (char *) g_ptr_array_index (jobs, done),
              WIFSIGNALED (status) ? WTERMSIG (status) : 0);
}

static void
any_settings_are_planned_or_refused_by_a_named_rule (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED);
  uint32_t n[NAMELESS + 1] = { 0 };

  (void) state;
  for (uint32_t i = 0; i < N_JOB; i += EACH) {
    g_autoptr (GPtrArray) jobs = g_ptr_array_new_with_free_func (g_free);
    for (uint32_t k = i; k < MIN (i + EACH, N_JOB); k++)
      g_ptr_array_add (jobs, any_job (rand));
    try_jobs (jobs, n);
  }
  print_message ("%u jobs: %u planned, %u refused by rules, %u legal and large\n", N_JOB,
                 n[PLANNED], n[REFUSED], n[TOO_LARGE]);
  assert_int_equal (n[NAMELESS], 0);
  assert_true (n[PLANNED] > N_JOB / 20);
  assert_true (n[REFUSED] > N_JOB / 3);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (any_settings_are_planned_or_refused_by_a_named_rule),
};

WEFT_TESTS (tests, .seconds = 30)
