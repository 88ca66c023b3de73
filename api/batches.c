#include "train/sampler.h"
#include "api/inside.h"

struct weft_open_batches {
  const struct weft_job *job;
  weft_tokens *tokens;
  struct weft_sampler sampler;
};

weft_batches *
weft_batches_open (const weft_job *job, const char *path, uint64_t seed, bool shuffle,
                   weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_given ("batches_open", "job", job, error) ||
      !weft_api_given ("batches_open", "path", path, error))
    return NULL;
  weft_batches *b = g_new0 (weft_batches, 1);
  b->job = &job->plan->job;
  b->tokens = weft_tokens_open (path, b->job->model.vocab_size, &reason);
  if (!b->tokens || !weft_sampler_init (&b->sampler, b->tokens, (uint32_t) b->job->model.seq_length,
                                        0, seed, shuffle, &reason)) {
    weft_batches_close (b);
    weft_api_fail (error, reason);
    return NULL;
  }
  weft_api_done (error);
  return b;
}

void
weft_batches_close (weft_batches *b)
{
  if (!b)
    return;
  g_clear_pointer (&b->tokens, weft_tokens_free);
  g_free (b);
}

bool
weft_batches_read (weft_batches *b, uint64_t position, int32_t *tokens, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_given ("batches_read", "batches", b, error) ||
      !weft_api_given ("batches_read", "tokens", tokens, error))
    return false;
  if (!weft_sampler_train (&b->sampler, position, (uint32_t) b->job->train.global_batch_size,
                           tokens, &reason))
    return weft_api_fail (error, reason);
  return weft_api_done (error);
}

bool
weft_batches_read_micro (weft_batches *b, uint64_t position, uint32_t micro, int32_t *tokens,
                         weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_given ("batches_read_micro", "batches", b, error) ||
      !weft_api_given ("batches_read_micro", "tokens", tokens, error))
    return false;
  uint32_t size = (uint32_t) b->job->train.micro_batch_size;
  int64_t n_micro = weft_job_microbatches (b->job);
  if (micro >= n_micro)
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT, "microbatch: found %u, wanted 0..%d",
                               micro, (int) n_micro - 1);
  for (int64_t replica = 0; replica < weft_job_dp (b->job); replica++) {
    uint64_t row = (uint64_t) weft_job_sequence (b->job, replica, micro);
    if (!weft_sampler_train (&b->sampler, position + row, size, tokens, &reason))
      return weft_api_fail (error, reason);
    tokens += (size_t) size * (b->sampler.seq_length + 1);
  }
  return weft_api_done (error);
}
