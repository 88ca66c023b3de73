/* First weights: numbers from a counter, so that nobody has to draw them in any order. */
#include "core/base/mix.h"
#include "train/state.h"
#include <math.h>
#include <string.h>

/* "initializer_range" of gpt2 in transformers, and Radford et al. 2018, section 4.1: N(0, 0.02). */
#define DEVIATION 0.02

#define BLOCK 65536u

/* The hash of the name, mixed with the seed. */
static uint64_t
key_of (uint64_t seed, const char *name)
{
  uint64_t hash = WEFT_HASH_BEGIN;

  for (; *name; name++)
    hash = weft_hash_byte (hash, (uint8_t) *name);
  return weft_mix_bits (weft_mix (seed) ^ hash);
}

/* Uniform in (0, 1]. */
static double
uniform (uint64_t key, uint64_t counter)
{
  return (double) ((weft_mix_bits (key + counter * WEFT_MIX_STEP) >> 11) + 1) * 0x1p-53;
}

/* Box and Muller 1958: elements 2 i and 2 i + 1 are the two coordinates of one point. */
static double
normal (uint64_t key, uint64_t element)
{
  uint64_t pair = element & ~(uint64_t) 1;
  double radius = sqrt (-2 * log (uniform (key, pair)));
  double turn = 2 * G_PI * uniform (key, pair + 1);

  return radius * (element & 1 ? sin (turn) : cos (turn));
}

/* What is added to the residual stream: of experts and shared experts too. */
static gboolean
is_residual (const struct weft_state_tensor *t)
{
  return g_str_equal (t->param, "proj.weight") || g_str_has_suffix (t->param, "fc2.weight");
}

/* Deviation of a matrix; of a vector 0, and `value` is what it is filled with. */
static double
deviation_of (const struct weft_state_tensor *t, int64_t layers, float *value)
{
  *value = g_str_has_suffix (t->param, ".weight") ? 1 : 0;
  if (t->columns == 1)
    return 0;
  return is_residual (t) ? DEVIATION / sqrt (2.0 * layers) : DEVIATION;
}

static void
init_tensor (weft_state *state, uint32_t tensor, uint64_t seed, int64_t layers, float *block)
{
  const struct weft_state_tensor *t = weft_state_at (state, tensor);
  uint64_t key = key_of (seed, t->name), total = t->rows * t->columns;
  float value;
  double deviation = deviation_of (t, layers, &value);

  for (uint64_t first = 0; first < total; first += BLOCK) {
    uint64_t n = MIN (BLOCK, total - first);
    for (uint64_t i = 0; i < n; i++)
      block[i] = deviation > 0 ? (float) (deviation * normal (key, first + i)) : value;
    weft_state_write (state, tensor, WEFT_STATE_WEIGHT, first, n, block);
    weft_state_write (state, tensor, WEFT_STATE_MASTER, first, n, block);
    memset (block, 0, n * sizeof *block);
    weft_state_write (state, tensor, WEFT_STATE_EXP_AVG, first, n, block);
    weft_state_write (state, tensor, WEFT_STATE_EXP_AVG_SQ, first, n, block);
  }
}

static int64_t
count_layers (const weft_state *state)
{
  int64_t most = 0;

  for (uint32_t i = 0; i < weft_state_count (state); i++) {
    const struct weft_state_tensor *t = weft_state_at (state, i);
    if (t->layer != WEFT_NO_LAYER)
      most = MAX (most, (int64_t) t->layer + 1);
  }
  return most;
}

void
weft_state_init (weft_state *state, uint64_t seed)
{
  g_autofree float *block = g_new (float, BLOCK);
  int64_t layers = count_layers (state);

  for (uint32_t i = 0; i < weft_state_count (state); i++)
    init_tensor (state, i, seed, layers, block);
  weft_state_settle (state);
}
