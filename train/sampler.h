/* sampler.h - which tokens a step reads.
 *
 * The stream is cut into sequences: number i starts at token i * seq_length and has seq_length + 1
 * tokens, the last one only as a target.  The last `eval_share` of them (rounded, but at least one
 * when it is not 0) are for evaluation.  The others are visited once an epoch, in order or in an
 * order drawn from the seed and the epoch by a keyed permutation of the index (a Feistel network
 * with cycle walking: nothing is stored, any position is found at once).  Position: sequences
 * visited so far; it is all a checkpoint keeps. */
#pragma once
#include "train/tokens.h"

struct weft_sampler {
  const weft_tokens *tokens;
  uint64_t n_train, n_eval; /* sequences */
  uint32_t seq_length;
  uint64_t seed;
  gboolean shuffle;
};

/* Refuses a file with fewer than one training sequence (and one for evaluation, when asked). */
gboolean weft_sampler_init (struct weft_sampler *sampler, const weft_tokens *tokens,
                            uint32_t seq_length, double eval_share, uint64_t seed,
                            gboolean shuffle, GError **error);

/* The sequence at a position. */
uint64_t weft_sampler_sequence (const struct weft_sampler *sampler, uint64_t position);

/* Sequences [position, position + n) into out (n, seq_length + 1). */
gboolean weft_sampler_train (const struct weft_sampler *sampler, uint64_t position, uint32_t n,
                             int32_t *out, GError **error);

/* Evaluation sequences, in order, from the first again after the last. */
gboolean weft_sampler_eval (const struct weft_sampler *sampler, uint64_t position, uint32_t n,
                            int32_t *out, GError **error);
