#include "tests/made/real_job.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "tests/made/random_job.h"
#include "train/checkpoint.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* CMocka requires the headers above before its own. */

#include <cmocka.h>

/* Returns the loss scale for the steps of a job, or 0 without loss scaling. A dynamic scale is
 * replaced by 1024; otherwise the first steps would be skipped until the scale has fallen. */
static double
loss_scale (const struct weft_job *job)
{
  return !weft_job_scales_loss (job)         ? 0
         : weft_job_scales_dynamically (job) ? 1024
                                             : job->train.loss_scale;
}

struct weft_control
real_control (const weft_plan *plan)
{
  return (struct weft_control){ .lr = 1e-3,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .epsilon = 1e-8,
                                .weight_decay = 0.1,
                                .loss_scale = loss_scale (&plan->job),
                                .clip_grad = plan->job.train.clip_grad };
}

static uint64_t
batch_tokens (const weft_plan *plan)
{
  return (uint64_t) plan->job.train.global_batch_size * (plan->job.model.seq_length + 1);
}

static void
draw_tokens (const weft_plan *plan, uint32_t seed, int32_t *tokens)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);

  for (uint64_t i = 0; i < batch_tokens (plan); i++)
    tokens[i] = g_rand_int_range (rand, 0, (gint32) MIN (plan->job.model.vocab_size, 97));
}

int32_t *
real_tokens (const weft_plan *plan, uint32_t seed)
{
  int32_t *tokens = g_new (int32_t, batch_tokens (plan));

  draw_tokens (plan, seed, tokens);
  return tokens;
}

real_job *
real_job_try (const struct weft_gpu_calls *calls, const char *words,
              const struct weft_exec_options *how, GError **error)
{
  real_job *job = g_new0 (real_job, 1);
  struct weft_exec_options options = how ? *how : (struct weft_exec_options){ 0 };

  job->plan = weft_test_plan ("%s", words);
  job->tokens = real_tokens (job->plan, 1);
  job->control = real_control (job->plan);
  job->control.tokens = job->tokens;
  options.control = &job->control;
  job->x = calls ? weft_exec_cuda_open (calls, job->plan, &options, error)
                 : weft_exec_cpu.open (job->plan, &options, error);
  if (!job->x) {
    real_job_close (job);
    return NULL;
  }
  job->state = weft_state_new (job->x);
  return job;
}

real_job *
real_job_open (const char *words, const struct weft_exec_options *how)
{
  g_autoptr (GError) error = NULL;
  real_job *job = real_job_try (NULL, words, how, &error);

  if (!job)
    fail_msg ("%s: %s", words, error->message);
  return job;
}

void
real_job_save (const real_job *job, const char *dir)
{
  struct weft_progress progress = { .step = job->control.step };
  g_autoptr (GError) error = NULL;

  if (!weft_checkpoint_save (job->state, &job->plan->job, &progress, dir, 0, &error))
    fail_msg ("%s", error->message);
}

uint64_t
real_job_go_on (const char *dir, const char *from, const char *to, unsigned steps)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *passed_over = NULL;
  g_autoptr (real_job) a = real_job_open (from, NULL);
  g_autoptr (real_job) b = real_job_open (to, NULL);
  struct weft_progress progress = { .step = steps };

  weft_state_init (a->state, 5);
  for (unsigned i = 0; i < steps; i++)
    real_job_step (a);
  if (!weft_checkpoint_save (a->state, &a->plan->job, &progress, dir, 1, &error) ||
      !weft_checkpoint_load (b->state, &b->plan->job, dir, &progress, &passed_over, &error))
    fail_msg ("%s to %s: %s", from, to, error->message);
  b->control.step = a->control.step;
  real_job_step (b);
  return real_hash (b->state, WEFT_STATE_WEIGHT) ^ real_hash (b->state, WEFT_STATE_EXP_AVG_SQ) * 3;
}

void
real_job_close (real_job *job)
{
  if (job->state)
    weft_state_free (job->state);
  if (job->x)
    job->x->ops->close (job->x);
  weft_plan_free (job->plan);
  g_free (job->tokens);
  g_free (job);
}

static const struct weft_metrics *
run (real_job *job, gboolean forward_only)
{
  g_autoptr (GError) error = NULL;

  draw_tokens (job->plan, (uint32_t) job->control.step + forward_only, job->tokens);
  job->control.forward_only = forward_only;
  g_autoptr (weft_timeline) t = weft_exec_step (job->x, &error);
  if (!t)
    fail_msg ("%s", error->message);
  return weft_exec_metrics (job->x);
}

const struct weft_metrics *
real_job_step (real_job *job)
{
  job->control.step++;
  return run (job, FALSE);
}

const struct weft_metrics *
real_job_evaluate (real_job *job)
{
  return run (job, TRUE);
}

uint64_t
real_hash (weft_state *state, enum weft_state_kind kind)
{
  /* Four hashes in turn, of every fourth element each. A processor overlaps the multiplications of
   * different hashes, so this is faster than one hash. */
  uint64_t hash[4] = { 0xcbf29ce484222325u, 1, 2, 3 };

  for (uint32_t t = 0; t < weft_state_count (state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (state, t);
    uint64_t n = tensor->rows * tensor->columns;
    g_autofree float *value = g_new (float, n);
    weft_state_read (state, t, kind, 0, n, value);
    for (uint64_t i = 0; i < n; i++) { /* The hash uses 32-bit words instead of bytes, for speed. */
      uint32_t word;
      memcpy (&word, &value[i], sizeof word);
      hash[i % 4] = (hash[i % 4] ^ word) * 0x100000001b3u;
    }
  }
  for (unsigned i = 1; i < 4; i++)
    hash[0] = (hash[0] ^ hash[i]) * 0x100000001b3u;
  return hash[0];
}

const char *
real_other_tensor (weft_state *a, weft_state *b, enum weft_state_kind kind)
{
  assert_int_equal (weft_state_count (a), weft_state_count (b));
  for (uint32_t t = 0; t < weft_state_count (a); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (a, t);
    uint64_t n = tensor->rows * tensor->columns;
    g_autofree float *x = g_new (float, n), *y = g_new (float, n);
    weft_state_read (a, t, kind, 0, n, x);
    weft_state_read (b, t, kind, 0, n, y);
    if (strcmp (tensor->name, weft_state_at (b, t)->name) || memcmp (x, y, n * sizeof *x))
      return tensor->name;
  }
  return NULL;
}
