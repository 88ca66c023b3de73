/* real_job.h - an open job on an executor that computes real numbers, for tests that run its steps
 * and inspect its tensors.
 *
 * Tokens depend only on the number of the step, so two jobs with equal batches read the same tokens
 * in the same step. */
#pragma once
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "train/state.h"

typedef struct real_job {
  weft_plan *plan;
  weft_exec *x;
  weft_state *state;
  /* number of the newest training step in control.step; 0 before the first step */
  struct weft_control control;
  /* tokens of the next step, which the executor reads through `control` */
  int32_t *tokens;
} real_job;

/* Opens a job, given as text (random_job.h), on the CPU. `how`: options of the executor, or NULL.
 * Fails the test if the job is refused. Weights are not initialised yet. real_job_close() frees the
 * job. */
real_job *real_job_open (const char *words, const struct weft_exec_options *how);

/* Like real_job_open(), but on a device with these calls (NULL: the CPU). Returns NULL and sets
 * *error if the executor refuses the job. */
real_job *real_job_try (const struct weft_gpu_calls *calls, const char *words,
                        const struct weft_exec_options *how, GError **error);
void real_job_close (real_job *job);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (real_job, real_job_close)

/* Returns the AdamW settings (struct weft_control) that all tests use. */
struct weft_control real_control (const weft_plan *plan);

/* Returns token ids below 97 of shape (global_batch_size, seq_length + 1). The caller frees
 * them. */
int32_t *real_tokens (const weft_plan *plan, uint32_t seed);

/* Runs the next training step. Returns the metrics of a rank of the last stage. An error fails the
 * test. */
const struct weft_metrics *real_job_step (real_job *job);

/* Runs a forward-only step, which does not change the step number. Returns metrics like
 * real_job_step(). */
const struct weft_metrics *real_job_evaluate (real_job *job);

/* Saves a checkpoint of the job into the folder `dir`. An error fails the test. */
void real_job_save (const real_job *job, const char *dir);

/* Runs `steps` steps of a job with the words `from`, saves a checkpoint into the folder `dir`, and
 * runs the next step of a job with the words `to`. Returns a hash of all weights and second
 * moments. An error fails the test. */
uint64_t real_job_go_on (const char *dir, const char *from, const char *to, unsigned steps);

/* Returns a hash of the fp32 bits of all tensors of a kind. */
uint64_t real_hash (weft_state *state, enum weft_state_kind kind);

/* Returns the name of the first tensor of which `a` and `b` differ in any bit, or NULL if all
 * tensors are equal. */
const char *real_other_tensor (weft_state *a, weft_state *b, enum weft_state_kind kind);
