#include "tests/made/trained.h"
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
/* CMocka requires the headers above before its own. */

#include <cmocka.h>

enum { SEED = 42 };

/* ----------------------------------------------------------------------- limit */

static struct {
  double seconds;
  uint32_t seed;
  char *message; /* message that is printed if the run exceeds its time limit */
} limit;

static void
too_long (int number)
{
  ssize_t written = write (STDERR_FILENO, limit.message, strlen (limit.message));

  (void) number;
  (void) written;
  _exit (1);
}

static void
set_timer (double seconds)
{
  const struct itimerval timer = { .it_value = { (time_t) seconds,
                                                 (suseconds_t) (fmod (seconds, 1) * 1e6) } };

  setitimer (ITIMER_REAL, &timer, NULL);
}

/* The time limit of a run: far longer than any run needs, but shorter than the limit of ctest,
 * which ends a test without a message. */
static double
seconds_allowed (void)
{
  double most = *WEFT_SANITIZE ? 1800 : 300;

  return limit.seconds > 0 ? limit.seconds : most;
}

static void
begin_limit (const char *words)
{
  limit.message = g_strdup_printf ("seed %u: takes longer than %g s: %s\n", limit.seed,
                                   seconds_allowed (), words);
  signal (SIGALRM, too_long);
  set_timer (seconds_allowed ());
}

static void
end_limit (void)
{
  set_timer (0);
  g_clear_pointer (&limit.message, g_free);
}

void
trained_limit (double seconds, uint32_t seed)
{
  limit.seconds = seconds;
  limit.seed = seed;
}

/* ------------------------------------------------------------------------- run */

static void
keep_gradients (real_job *job, trained *t)
{
  for (uint32_t i = 0; i < weft_state_count (job->state); i++) {
    const struct weft_state_tensor *tensor = weft_state_at (job->state, i);
    uint64_t n = tensor->rows * tensor->columns;
    uint32_t first = t->gradient->len;
    g_array_set_size (t->gradient, first + (uint32_t) n);
    weft_state_read (job->state, i, WEFT_STATE_GRAD, 0, n,
                     &g_array_index (t->gradient, float, first));
    g_array_append_val (t->tensor, n);
  }
}

/* Whether an error means that the device or NCCL lacks something that the job needs. */
static gboolean
is_lack (const GError *error)
{
  static const char *const reasons[] = { "has no kernel for",         "between GPUs:",
                                         "NCCL needs equal parts",    "--graph: found",
                                         "precision fp8 needs a GPU", "fp8_recipe mxfp8 needs",
                                         "fp8_recipe blockwise is" };

  for (unsigned i = 0; i < G_N_ELEMENTS (reasons); i++)
    if (strstr (error->message, reasons[i]))
      return TRUE;
  return FALSE;
}

static trained *
train (const struct weft_gpu_calls *calls, const char *words, const struct weft_exec_options *how)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (real_job) job = real_job_try (calls, words, how, &error);

  if (!job && is_lack (error))
    return NULL;
  if (!job)
    fail_msg ("%s: %s", words, error->message);
  trained *t = g_new0 (trained, 1);
  t->gradient = g_array_new (FALSE, FALSE, sizeof (float));
  t->tensor = g_array_new (FALSE, FALSE, sizeof (uint64_t));
  weft_state_init (job->state, SEED);
  for (int step = 0; step < TRAINED_STEPS; step++) {
    const struct weft_metrics *m = real_job_step (job);
    t->loss[step] = m->loss;
    t->norm[step] = m->grad_norm;
    if (step == 0)
      keep_gradients (job, t);
  }
  t->eval_loss = real_job_evaluate (job)->loss;
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    t->state[kind] = real_hash (job->state, kind);
  return t;
}

trained *
trained_new (const struct weft_gpu_calls *calls, const char *words,
             const struct weft_exec_options *how)
{
  begin_limit (words);
  trained *t = train (calls, words, how);
  end_limit ();
  return t;
}

void
trained_free (trained *t)
{
  g_array_unref (t->gradient);
  g_array_unref (t->tensor);
  g_free (t);
}

static double
share (double found, double wanted)
{
  return isnan (found) && isnan (wanted) ? 0
         : isfinite (found)              ? fabs (found - wanted) / fabs (wanted)
                                         : INFINITY;
}

/* Returns the largest difference between elements of two tensors, divided by the root mean square
 * of `wanted` plus 1e-6. The 1e-6 is for gradients of parameters that do not affect the loss, which
 * are rounding noise. */
static double
tensor_share (const float *found, const float *wanted, uint64_t n)
{
  double most = 0, squares = 0;

  for (uint64_t i = 0; i < n; i++) {
    double d = fabs ((double) found[i] - (double) wanted[i]);
    most = isfinite (d) ? MAX (most, d) : INFINITY;
    squares += (double) wanted[i] * (double) wanted[i];
  }
  return most / (sqrt (squares / (double) n) + 1e-6);
}

static double
whole_share (const GArray *found, const GArray *wanted)
{
  double apart = 0, squares = 0;

  for (guint i = 0; i < wanted->len; i++) {
    double w = (double) g_array_index (wanted, float, i);
    double d = (double) g_array_index (found, float, i) - w;
    apart += d * d;
    squares += w * w;
  }
  return sqrt (apart / squares);
}

struct trained_bound
trained_difference (const trained *found, const trained *wanted)
{
  struct trained_bound d = { .loss = share (found->eval_loss, wanted->eval_loss) };
  uint64_t first = 0;

  for (int step = 0; step < TRAINED_STEPS; step++) {
    d.loss = MAX (d.loss, share (found->loss[step], wanted->loss[step]));
    d.norm = MAX (d.norm, share (found->norm[step], wanted->norm[step]));
  }
  assert_int_equal (found->gradient->len, wanted->gradient->len);
  for (uint32_t i = 0; i < wanted->tensor->len; i++) {
    uint64_t n = g_array_index (wanted->tensor, uint64_t, i);
    d.gradient =
        MAX (d.gradient, tensor_share (&g_array_index (found->gradient, float, first),
                                       &g_array_index (wanted->gradient, float, first), n));
    first += n;
  }
  d.whole = whole_share (found->gradient, wanted->gradient);
  return d;
}

void
trained_assert_near (const trained *found, const trained *wanted, struct trained_bound bound,
                     const char *words)
{
  struct trained_bound d = trained_difference (found, wanted);

  if (g_getenv ("WEFT_TRAINED_SHOW"))
    print_message ("loss %.1e norm %.1e gradient %.1e whole %.1e: %s\n", d.loss, d.norm, d.gradient,
                   d.whole, words);
  if (bound.whole > 0 && !(d.whole <= bound.whole))
    fail_msg ("%s: gradients differ by %g of their length; wanted at most %g", words, d.whole,
              bound.whole);
  if (!(d.loss <= bound.loss && d.norm <= bound.norm && d.gradient <= bound.gradient))
    fail_msg ("%s: losses differ by %g, norms by %g, gradients by %g; wanted at most %g, %g, %g "
              "(losses %.9g, wanted %.9g; norms %.9g, wanted %.9g)",
              words, d.loss, d.norm, d.gradient, bound.loss, bound.norm, bound.gradient,
              found->loss[0], wanted->loss[0], found->norm[0], wanted->norm[0]);
}

void
trained_assert_same (const trained *found, const trained *wanted, const char *words)
{
  uint64_t bytes = wanted->gradient->len * sizeof (float);

  for (int step = 0; step < TRAINED_STEPS; step++)
    if (memcmp (&found->loss[step], &wanted->loss[step], sizeof (double)) ||
        memcmp (&found->norm[step], &wanted->norm[step], sizeof (double)))
      fail_msg ("%s: step %d: loss %.17g, wanted %.17g; norm %.17g, wanted %.17g", words, step + 1,
                found->loss[step], wanted->loss[step], found->norm[step], wanted->norm[step]);
  assert_int_equal (found->gradient->len, wanted->gradient->len);
  if (memcmp (found->gradient->data, wanted->gradient->data, bytes))
    fail_msg ("%s: gradients have other bits", words);
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    if (found->state[kind] != wanted->state[kind])
      fail_msg ("%s: %s has other bits", words, weft_state_kind_words[kind]);
}
