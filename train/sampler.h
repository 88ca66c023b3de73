/* sampler.h - selects the tokens of each step.
 *
 * The token stream is cut into sequences: sequence i starts at token i * seq_length and has
 * seq_length + 1 tokens, the last of which is only a target. The last `eval_share` of the sequences
 * (rounded, but at least one if the share is not 0) are the evaluation split. The others are
 * visited once per epoch, in file order or in a random order that depends on the seed and the
 * epoch. The random order is a keyed permutation of the index (a Feistel network with cycle
 * walking): nothing is stored, and the sequence at any position is computed directly. A position is
 * the number of sequences visited before; a checkpoint stores only this number. */
#pragma once
#include "train/tokens.h"

struct weft_sampler {
  const weft_tokens *tokens;
  uint64_t n_train, n_eval; /* numbers of sequences for training and for evaluation */
  uint32_t seq_length;
  uint64_t seed;
  gboolean shuffle;
};

/* Returns an error if the file has no training sequence, or no evaluation sequence although
 * `eval_share` is not 0. */
gboolean weft_sampler_init (struct weft_sampler *sampler, const weft_tokens *tokens,
                            uint32_t seq_length, double eval_share, uint64_t seed,
                            gboolean shuffle, GError **error);

/* Returns the number of the sequence at a position of the visiting order. */
uint64_t weft_sampler_sequence (const struct weft_sampler *sampler, uint64_t position);

/* Reads sequences at positions [position, position + n) into out (n, seq_length + 1). */
gboolean weft_sampler_train (const struct weft_sampler *sampler, uint64_t position, uint32_t n,
                             int32_t *out, GError **error);

/* Like weft_sampler_train(), but reads sequences of the evaluation split, in file order. Positions
 * beyond the last sequence begin again at the first one. */
gboolean weft_sampler_eval (const struct weft_sampler *sampler, uint64_t position, uint32_t n,
                            int32_t *out, GError **error);
