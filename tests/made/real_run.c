#include "tests/made/real_run.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/random_job.h"
#include "tests/made/real_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* CMocka requires the headers above before its own. */

#include <cmocka.h>

static double
loss_of (const weft_exec *x)
{
  return weft_exec_metrics (x)->loss;
}

static gboolean
step (weft_exec *x, GError **error)
{
  g_autoptr (weft_timeline) t = weft_exec_step (x, error);
  return t != NULL;
}

static gboolean
run_steps (weft_exec *x, const struct real_run *run, struct weft_control *control,
           struct real_result *result, GError **error)
{
  g_autoptr (weft_state) state = weft_state_new (x);

  weft_state_init (state, 42);
  for (control->step = 1; control->step <= run->steps; control->step++) {
    if (!step (x, error))
      return FALSE;
    result->loss[control->step - 1] = loss_of (x);
    result->norm[control->step - 1] = x->metrics[0].grad_norm;
    if (control->step == 1)
      result->gradients = real_hash (state, WEFT_STATE_GRAD);
  }
  control->forward_only = TRUE;
  if (!step (x, error))
    return FALSE;
  result->eval_loss = loss_of (x);
  result->weights =
      real_hash (state, WEFT_STATE_MASTER) ^ (real_hash (state, WEFT_STATE_WEIGHT) * 31);
  result->moments = 0;
  for (int kind = WEFT_STATE_MASTER + 1; kind < WEFT_STATE_GRAD; kind++)
    result->moments = result->moments * 31 ^ real_hash (state, kind);
  return TRUE;
}

gboolean
weft_test_run_plan (const weft_plan *plan, const struct real_run *run, struct real_result *result,
                    GError **error)
{
  g_autofree int32_t *tokens = real_tokens (plan, 7);
  struct weft_control control = real_control (plan);
  const union weft_cpu_options own = {
    { .stress = (int64_t) run->stress, .threads = run->threads, .poison = run->poison }
  };
  struct weft_exec_options options = { .own = weft_own_options_of (weft_exec_cpu.options, own.at),
                                       .control = &control };
  weft_exec *x = weft_exec_cpu.open (plan, &options, error);

  control.tokens = tokens;
  *result = (struct real_result){ 0 };
  g_assert (run->steps <= REAL_RUN_MOST_STEPS);
  gboolean ok = x && run_steps (x, run, &control, result, error);
  weft_exec_cpu.close (x);
  return ok;
}

struct real_result
weft_test_run (const struct real_run *run)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", run->words);
  g_autoptr (GError) error = NULL;
  struct real_result result;

  if (!weft_test_run_plan (plan, run, &result, &error))
    g_error ("%s: %s", run->words, error->message);
  return result;
}

gboolean
weft_test_same_bits (const struct real_result *a, const struct real_result *b, uint32_t steps)
{
  return memcmp (a->loss, b->loss, steps * sizeof *a->loss) == 0 &&
         memcmp (a->norm, b->norm, steps * sizeof *a->norm) == 0 &&
         memcmp (&a->eval_loss, &b->eval_loss, sizeof a->eval_loss) == 0 &&
         a->gradients == b->gradients && a->weights == b->weights && a->moments == b->moments;
}

/* Whether `a` differs from `b` by at most the fraction `part` of `b`. Two NaN count as equal,
 * because the norm of a step is NaN if it is not computed. */
static gboolean
is_within (double part, double a, double b)
{
  return (isnan (a) && isnan (b)) || fabs (a - b) <= part * fabs (b);
}

gboolean
weft_test_is_near (const struct real_result *a, const struct real_result *b, uint32_t steps)
{
  for (uint32_t i = 0; i < steps; i++)
    if (!is_within (1e-6, a->loss[i], b->loss[i]) ||
        !is_within (i ? 1e-5 : 1e-6, a->norm[i], b->norm[i]))
      return FALSE;
  return is_within (1e-6, a->eval_loss, b->eval_loss);
}

static const char *
sameness (gboolean same)
{
  return same ? "same" : "other";
}

void
weft_test_check_run (const struct real_run *run, const struct real_result *one)
{
  struct real_result other = weft_test_run (run);
  uint32_t last = run->steps - 1;

  if (weft_test_same_bits (one, &other, run->steps))
    return;
  fail_msg (
      "%s: loss %.17g to %.17g, of one rank %.17g to %.17g; norm %.17g and %.17g; eval %.17g and "
      "%.17g; gradients %s; weights %s; moments %s",
      run->words, other.loss[0], other.loss[last], one->loss[0], one->loss[last], other.norm[0],
      one->norm[0], other.eval_loss, one->eval_loss, sameness (other.gradients == one->gradients),
      sameness (other.weights == one->weights), sameness (other.moments == one->moments));
}

void
weft_test_check_bits (const char *words, uint32_t steps, const struct real_result *one,
                      unsigned seed)
{
  weft_test_check_run (
      &(struct real_run){
          .words = words, .steps = steps, .poison = TRUE, .stress = seed % 3 ? 0 : 1 + seed },
      one);
}

void
weft_test_check_strategies (const char *model, const char *const *strategies, unsigned n)
{
  enum { STEPS = 2 };
  g_autofree char *alone = g_strconcat (model, "gpus=1", NULL);
  const struct real_result one =
      weft_test_run (&(struct real_run){ .words = alone, .steps = STEPS });

  for (unsigned i = 0; i < n; i++) {
    g_autofree char *words = g_strconcat (model, strategies[i], NULL);
    weft_test_check_bits (words, STEPS, &one, i);
  }
}

char *
weft_test_cpu_words (const char *model, const char *precision, const char *strategy)
{
  return g_strdup_printf ("topology=cpu %s %s %s", model, precision, strategy);
}

struct real_result
weft_test_run_words (const char *model, const char *precision, const char *strategy,
                     struct real_run run)
{
  g_autofree char *words = weft_test_cpu_words (model, precision, strategy);

  run.words = words;
  return weft_test_run (&run);
}

static char *
words_in (const struct real_sweep *sweep, const char *model, const char *precision,
          const char *strategy)
{
  const char *more = sweep->more ? sweep->more (precision, strategy) : "";
  g_autofree char *both = g_strjoin (" ", strategy, more, NULL);

  return weft_test_cpu_words (model, precision, both);
}

void
weft_test_check_one (const struct real_sweep *sweep, const char *model, const char *precision,
                     const char *strategy, const struct real_result *one, unsigned seed)
{
  g_autofree char *words = words_in (sweep, model, precision, strategy);

  weft_test_check_bits (words, sweep->steps, one, seed);
}

/* Whether a strategy runs with a model in a precision: with the first model in one precision, with
 * all others in another. With `./weft test --long`, or if there is only one model, the first model
 * runs in every precision. */
static gboolean
is_swept (const struct real_sweep *sweep, unsigned model, unsigned precision, unsigned strategy)
{
  if (model == 0 && (sweep->n_models == 1 || weft_tests_long ()))
    return TRUE;
  return precision == (strategy + (model == 0)) % sweep->n_precisions;
}

void
weft_test_check_sweep (const struct real_sweep *sweep)
{
  unsigned n = 0;

  for (unsigned m = 0; m < sweep->n_models; m++)
    for (unsigned p = 0; p < sweep->n_precisions; p++) {
      const char *model = sweep->models[m], *precision = sweep->precisions[p];
      g_autofree char *alone = words_in (sweep, model, precision, "gpus=1");
      struct real_result one = weft_test_run (
          &(struct real_run){ .words = alone, .steps = sweep->steps, .poison = TRUE });
      assert_true (isfinite (one.loss[1]) && one.loss[1] < one.loss[0]);
      for (unsigned s = 0; s < sweep->n_strategies; s++, n++)
        if (n % sweep->stride == 0 && is_swept (sweep, m, p, s))
          weft_test_check_one (sweep, model, precision, sweep->strategies[s], &one, n);
    }
}
