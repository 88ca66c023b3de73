#include "tests/real_run.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/random_job.h"
#include "train/state.h"
#include <string.h>

/* FNV-1a over the fp32 words of all tensors of a kind: a word at a time, tests hash millions. */
static uint64_t
hash_state (weft_state *state, enum weft_state_kind kind)
{
  uint64_t hash = 0xcbf29ce484222325u;

  for (uint32_t t = 0; t < weft_state_count (state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (state, t);
    uint64_t n = tensor->rows * tensor->columns;
    g_autofree float *value = g_new (float, n);
    weft_state_read (state, t, kind, 0, n, value);
    for (uint64_t i = 0; i < n; i++) {
      uint32_t word;
      memcpy (&word, &value[i], sizeof word);
      hash = (hash ^ word) * 0x100000001b3u;
    }
  }
  return hash;
}

static int32_t *
random_tokens (const weft_plan *plan)
{
  uint64_t n = (uint64_t) plan->job.train.global_batch_size * (plan->job.model.seq_length + 1);
  int32_t *tokens = g_new (int32_t, n);
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);

  for (uint64_t i = 0; i < n; i++)
    tokens[i] = g_rand_int_range (rand, 0, (gint32) MIN (plan->job.model.vocab_size, 97));
  return tokens;
}

static double
loss_of (const weft_exec *x)
{
  return x->metrics[x->actors->n - 1].loss;
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
      result->gradients = hash_state (state, WEFT_STATE_GRAD);
  }
  control->forward_only = TRUE;
  if (!step (x, error))
    return FALSE;
  result->eval_loss = loss_of (x);
  result->weights = hash_state (state, WEFT_STATE_MASTER) ^ hash_state (state, WEFT_STATE_WEIGHT);
  result->moments =
      hash_state (state, WEFT_STATE_EXP_AVG) ^ (hash_state (state, WEFT_STATE_EXP_AVG_SQ) * 31);
  return TRUE;
}

gboolean
weft_test_run_plan (const weft_plan *plan, const struct real_run *run, struct real_result *result,
                    GError **error)
{
  g_autofree int32_t *tokens = random_tokens (plan);
  struct weft_control control = { .lr = 1e-3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .epsilon = 1e-8,
                                  .weight_decay = 0.1,
                                  .clip_grad = plan->job.train.clip_grad,
                                  .tokens = tokens };
  struct weft_exec_options options = {
    .control = &control, .stress = run->stress, .threads = run->threads, .poison = run->poison
  };
  weft_exec *x = weft_exec_cpu.open (plan, &options, error);

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
