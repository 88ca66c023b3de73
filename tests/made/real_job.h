/* real_job.h - a job that stands open on the executor of real numbers, for tests that step it and
 * look at its tensors.
 *
 * Tokens are drawn from a fixed seed and the number of the step, so two jobs with equal batches
 * read the same ones in the same step. */
#pragma once
#include "core/exec/exec.h"
#include "exec_cuda/calls.h"
#include "train/state.h"

typedef struct real_job {
  weft_plan *plan;
  weft_exec *x;
  weft_state *state;
  struct weft_control control; /* step is that of the newest step, 0 before the first */
  int32_t *tokens;             /* of the batch that control shows */
} real_job;

/* Words of random_job.h; `how` may be NULL.  Fails the test when the job is refused.  Weights are
 * not yet set. */
real_job *real_job_open (const char *words, const struct weft_exec_options *how);

/* The same on a device of these calls, on the CPU where they are NULL; NULL when it is refused. */
real_job *real_job_try (const struct weft_cuda_calls *calls, const char *words,
                        const struct weft_exec_options *how, GError **error);
void real_job_close (real_job *job);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (real_job, real_job_close)

/* Hyper-parameters that every test takes. */
struct weft_control real_control (const weft_plan *plan);

/* (global_batch_size, seq_length + 1) token ids of the first 97; caller frees. */
int32_t *real_tokens (const weft_plan *plan, uint32_t seed);

/* The next step, on tokens of its own, or only its forward half, which changes no count.  Returns
 * the metrics of a row of the last stage; fails the test when the step is refused. */
const struct weft_metrics *real_job_step (real_job *job);
const struct weft_metrics *real_job_evaluate (real_job *job);

/* FNV-1a over the bytes of all tensors of a kind. */
uint64_t real_hash (weft_state *state, enum weft_state_kind kind);

/* The first tensor that has other bits there; NULL when there is none. */
const char *real_other_tensor (weft_state *a, weft_state *b, enum weft_state_kind kind);
