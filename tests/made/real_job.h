/* real_job.h - an open job on the executor with real numbers, for tests that step it and inspect
 * its tensors.
 *
 * Tokens depend on a fixed seed and the step number, so two jobs with equal batches read the same
 * tokens in a step. */
#pragma once
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "train/state.h"

typedef struct real_job {
  weft_plan *plan;
  weft_exec *x;
  weft_state *state;
  struct weft_control control; /* `step` is the newest step, 0 before the first */
  int32_t *tokens;             /* the batch, read through `control` */
} real_job;

/* Text as in random_job.h; `how` may be NULL. Fails the test if the job is refused. Weights are not
 * set. */
real_job *real_job_open (const char *words, const struct weft_exec_options *how);

/* The same on a device with these calls (NULL: the CPU); returns NULL if it is refused. */
real_job *real_job_try (const struct weft_gpu_calls *calls, const char *words,
                        const struct weft_exec_options *how, GError **error);
void real_job_close (real_job *job);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (real_job, real_job_close)

/* Hyper-parameters of all tests. */
struct weft_control real_control (const weft_plan *plan);

/* Token ids (global_batch_size, seq_length + 1) below 97; the caller frees them. */
int32_t *real_tokens (const weft_plan *plan, uint32_t seed);

/* Runs the next step on its tokens, or a forward-only step, which does not count. Returns the
 * metrics of a rank of the last stage; fails the test on an error. */
const struct weft_metrics *real_job_step (real_job *job);
const struct weft_metrics *real_job_evaluate (real_job *job);

/* FNV-1a over the bytes of all tensors of a kind. */
uint64_t real_hash (weft_state *state, enum weft_state_kind kind);

/* The first tensor whose bits differ; NULL if there is none. */
const char *real_other_tensor (weft_state *a, weft_state *b, enum weft_state_kind kind);
