#include "core/job/loss.h"
#include "core/base/zigzag.h"

/* Fewest tokens of a chunk. Every chunk reads and writes the whole gradient of the output head, 8
 * bytes of fp32 per element, and computes a product of 2 FLOPs per element and token. At 800
 * TFLOP/s and 4.3 TB/s (rates that libraries reach on an H200) memory traffic and product need the
 * same time at about 750 tokens. With 4096 tokens the traffic needs a fifth of the time of the
 * product. */
#define LEAST_TOKENS 4096

gboolean
weft_job_fuses_head (const struct weft_job *job)
{
  return job->strategy.cross_entropy_loss_fusion &&
         job->strategy.cross_entropy_fusion_impl == WEFT_LOSS_LINEAR;
}

uint64_t
weft_job_tokens (const struct weft_job *job)
{
  return (uint64_t) (job->train.micro_batch_size * job->model.seq_length /
                     job->strategy.context_parallel_size);
}

static uint64_t
share (uint64_t n, int64_t of)
{
  return (n + (uint64_t) of - 1) / (uint64_t) of;
}

/* The number of tokens per chunk, by the rule of Liger Kernel (arXiv 2410.10989, section 3.2): a
 * power of two, such that the logits of a chunk are about as large as the hidden states of all
 * tokens. */
static uint64_t
balanced_tokens (const struct weft_job *job)
{
  uint64_t words =
      share ((uint64_t) job->model.vocab_size, job->strategy.tensor_model_parallel_size);
  uint64_t wanted = share (weft_job_tokens (job), (int64_t) share (words, job->model.hidden_size));
  uint64_t n = LEAST_TOKENS;

  while (n < wanted)
    n *= 2;
  return n;
}

/* Number of leaves (parts of a canonical sum, kernels/leaves.h) of each sequence that a rank
 * holds. */
static int64_t
leaves_of (const struct weft_job *job)
{
  return weft_chunks ((uint64_t) job->model.seq_length) / job->strategy.context_parallel_size;
}

gboolean
weft_job_loss_leaves (const struct weft_job *job, int64_t chunks)
{
  int64_t sequences = job->train.micro_batch_size, each = sequences / chunks;

  if (chunks == sequences * leaves_of (job))
    return TRUE;
  return each > 0 && sequences % chunks == 0 && (each & (each - 1)) == 0;
}

uint64_t
weft_job_loss_tokens (const struct weft_job *job)
{
  int64_t given = job->strategy.cross_entropy_chunks;
  int64_t most = job->train.micro_batch_size * leaves_of (job);
  uint64_t tokens = weft_job_tokens (job), wanted = balanced_tokens (job);

  if (given != WEFT_NONE)
    return tokens / (uint64_t) given;
  if (job->train.reduction_order != WEFT_ORDER_CANONICAL)
    return MIN (wanted, tokens);
  for (int64_t n = 1; n < most; n++)
    if (weft_job_loss_leaves (job, n) && tokens / (uint64_t) n <= wanted)
      return tokens / (uint64_t) n;
  return tokens / (uint64_t) most;
}
