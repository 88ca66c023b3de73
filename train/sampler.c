#include "train/sampler.h"
#include "core/base/error.h"
#include "core/base/mix.h"
#include <math.h>

/* Rounds of the Feistel network. Four rounds are pseudorandom if the halves are wide (Luby and
 * Rackoff 1988). The halves of short files have few bits and need more rounds. */
#define ROUNDS 8

/* Maps `index` by a permutation of [0, 4^half), which depends on `key`. */
static uint64_t
scramble (uint64_t index, unsigned half, uint64_t key)
{
  const uint64_t mask = ((uint64_t) 1 << half) - 1;
  uint64_t left = index >> half, right = index & mask;

  for (unsigned round = 0; round < ROUNDS; round++) {
    uint64_t next = left ^ (weft_mix (weft_mix (key + round) ^ right) & mask);
    left = right;
    right = next;
  }
  return left << half | right;
}

/* Maps `index` by a permutation of [0, n). Cycle walking: repeats scramble() until the result is
 * below n, which takes fewer than four calls on average, since 4^half < 4 n. */
static uint64_t
permute (uint64_t index, uint64_t n, uint64_t key)
{
  unsigned half = 1;

  while (half < 32 && n > (uint64_t) 1 << 2 * half)
    half++;
  do
    index = scramble (index, half, key);
  while (index >= n);
  return index;
}

static gboolean
check_split (const struct weft_sampler *sampler, double eval_share, GError **error)
{
  uint64_t length = sampler->seq_length;
  const char *path = weft_tokens_path (sampler->tokens);
  uint64_t count = weft_tokens_count (sampler->tokens);

  if (count <= length)
    return weft_bad_input (error,
                           "%s has %" G_GUINT64_FORMAT " tokens; a sequence of %" G_GUINT64_FORMAT
                           " tokens needs %" G_GUINT64_FORMAT " tokens",
                           path, count, length, length + 1);
  if (sampler->n_train)
    return TRUE;
  return weft_bad_input (error,
                         "%s: found %" G_GUINT64_FORMAT " sequence%s of %" G_GUINT64_FORMAT
                         " tokens, all for evaluation (a share of %g); wanted one for training",
                         path, sampler->n_eval, sampler->n_eval == 1 ? "" : "s", length,
                         eval_share);
}

gboolean
weft_sampler_init (struct weft_sampler *sampler, const weft_tokens *tokens, uint32_t seq_length,
                   double eval_share, uint64_t seed, gboolean shuffle, GError **error)
{
  g_assert (seq_length > 0);
  if (!(eval_share >= 0 && eval_share < 1))
    return weft_bad_input (error, "found an evaluation share of %g, wanted from 0 to below 1",
                           eval_share);
  uint64_t n = (weft_tokens_count (tokens) - 1) / seq_length;
  uint64_t n_eval = eval_share > 0 ? MAX (llround (eval_share * n), 1) : 0;
  *sampler = (struct weft_sampler){ .tokens = tokens,
                                    .n_train = n - MIN (n_eval, n),
                                    .n_eval = MIN (n_eval, n),
                                    .seq_length = seq_length,
                                    .seed = seed,
                                    .shuffle = shuffle };
  return check_split (sampler, eval_share, error);
}

uint64_t
weft_sampler_sequence (const struct weft_sampler *sampler, uint64_t position)
{
  uint64_t epoch = position / sampler->n_train, index = position % sampler->n_train;

  if (!sampler->shuffle)
    return index;
  return permute (index, sampler->n_train, weft_mix (weft_mix (sampler->seed) ^ epoch));
}

static gboolean
read_sequence (const struct weft_sampler *sampler, uint64_t sequence, int32_t *out, GError **error)
{
  uint64_t length = sampler->seq_length;

  return weft_tokens_read (sampler->tokens, sequence * length, length + 1, out, error);
}

gboolean
weft_sampler_train (const struct weft_sampler *sampler, uint64_t position, uint32_t n, int32_t *out,
                    GError **error)
{
  for (uint64_t i = 0; i < n; i++, out += (uint64_t) sampler->seq_length + 1)
    if (!read_sequence (sampler, weft_sampler_sequence (sampler, position + i), out, error))
      return FALSE;
  return TRUE;
}

gboolean
weft_sampler_eval (const struct weft_sampler *sampler, uint64_t position, uint32_t n, int32_t *out,
                   GError **error)
{
  g_assert (sampler->n_eval > 0);
  for (uint64_t i = 0; i < n; i++, out += (uint64_t) sampler->seq_length + 1) {
    uint64_t sequence = sampler->n_train + (position + i) % sampler->n_eval;
    if (!read_sequence (sampler, sequence, out, error))
      return FALSE;
  }
  return TRUE;
}
