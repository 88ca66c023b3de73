/* Initial weights from a counter-based random generator, so that elements can be drawn in any
 * order. */
#include "core/base/mix.h"
#include "kernels/normals.h"
#include "train/spread.h"
#include "train/state.h"
#include <math.h>
#include <string.h>

/* "initializer_range" of gpt2 in transformers, and Radford et al. 2018, section 4.1: N(0, 0.02). */
#define DEVIATION 0.02

#define BLOCK (1u << 22) /* number of elements that are drawn and written at once */

/* Hash of the tensor name, mixed with the seed. */
static uint64_t
key_of (uint64_t seed, const char *name)
{
  uint64_t hash = WEFT_HASH_BEGIN;

  for (; *name; name++)
    hash = weft_hash_byte (hash, (uint8_t) *name);
  return weft_mix_bits (weft_mix (seed) ^ hash);
}

struct draw {
  struct weft_normals normals;
  float *out;
};

static void
draw_stretch (void *data, uint64_t first, uint64_t n)
{
  const struct draw *d = data;
  const struct weft_normals some = { d->normals.key, d->normals.first + first, n,
                                     d->normals.deviation };

  weft_draw_normals (&some, d->out + first);
}

/* Whether a tensor is a projection that adds to the residual stream, including the projections of
 * experts and shared experts. */
static gboolean
is_residual (const struct weft_state_tensor *t)
{
  return g_str_equal (t->param, "proj.weight") || g_str_has_suffix (t->param, "fc2.weight");
}

/* Standard deviation of a matrix; 0 for a vector or the second matrix of an adapter, which are
 * filled with *value. */
static double
deviation_of (const struct weft_state_tensor *t, int64_t layers, float *value)
{
  gboolean lora_b = g_str_has_suffix (t->param, ".lora_b.weight");

  *value = g_str_has_suffix (t->param, ".weight") && !lora_b ? 1 : 0;
  if (t->columns == 1 || lora_b)
    return 0;
  if (g_str_has_suffix (t->param, ".lora_a.weight"))
    return sqrt (2.0 / (double) (t->rows + t->columns));
  return is_residual (t) ? DEVIATION / sqrt (2.0 * layers) : DEVIATION;
}

static void
fill_block (const struct weft_normals *draw, float value, float *out)
{
  if (draw->deviation > 0)
    weft_spread (draw->n, draw_stretch, &(struct draw){ *draw, out });
  for (uint64_t i = 0; i < draw->n && !(draw->deviation > 0); i++)
    out[i] = value;
}

static void
init_weights (weft_state *state, uint32_t tensor, uint64_t seed, int64_t layers, float *block)
{
  const struct weft_state_tensor *t = weft_state_at (state, tensor);
  uint64_t key = key_of (seed, t->name), total = t->rows * t->columns;
  float value;
  double deviation = deviation_of (t, layers, &value);

  for (uint64_t first = 0; first < total; first += BLOCK) {
    uint64_t n = MIN (BLOCK, total - first);
    fill_block (&(struct weft_normals){ key, first, n, deviation }, value, block);
    weft_state_write (state, tensor, WEFT_STATE_WEIGHT, first, n, block);
    weft_state_write (state, tensor, WEFT_STATE_MASTER, first, n, block);
  }
}

static void
clear_moments (weft_state *state, uint32_t tensor, float *block)
{
  const struct weft_state_tensor *t = weft_state_at (state, tensor);
  uint64_t total = t->rows * t->columns;

  memset (block, 0, MIN (BLOCK, total) * sizeof *block);
  for (uint64_t first = 0; first < total; first += BLOCK) {
    uint64_t n = MIN (BLOCK, total - first);
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
  gboolean clear = weft_state_is_clear (state);

  for (uint32_t i = 0; i < weft_state_count (state) && weft_state_go_on (state, NULL); i++) {
    init_weights (state, i, seed, layers, block);
    if (!clear)
      clear_moments (state, i, block);
  }
  if (!weft_state_peers (state))
    /* ignores the result: the call cannot fail in a single process */
    weft_state_quantise (state, NULL);
}
