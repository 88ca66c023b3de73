/* First weights: numbers from a counter, so that nobody has to draw them in any order. */
#include "core/base/mix.h"
#include "train/state.h"
#include <math.h>
#include <string.h>

/* "initializer_range" of gpt2 in transformers, and Radford et al. 2018, section 4.1: N(0, 0.02). */
#define DEVIATION 0.02

#define BLOCK (1u << 22) /* elements that are drawn and written at once */
#define SHARE (1u << 16) /* of them, at least, for each thread */
#define MOST_THREADS 32u

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

/* Elements [first, first + n) of a tensor; first is even. */
struct draw {
  uint64_t key, first, n;
  double deviation;
  float *out;
};

/* Box and Muller 1958: elements 2 i and 2 i + 1 are the two coordinates of one point. */
static void *
draw_normals (void *data)
{
  const struct draw *d = data;

  for (uint64_t i = 0; i < d->n; i += 2) {
    uint64_t pair = d->first + i;
    double radius = sqrt (-2 * log (uniform (d->key, pair)));
    double turn = 2 * G_PI * uniform (d->key, pair + 1);
    d->out[i] = (float) (d->deviation * (radius * cos (turn)));
    if (i + 1 < d->n)
      d->out[i + 1] = (float) (d->deviation * (radius * sin (turn)));
  }
  return NULL;
}

/* By as many threads as there are processors: billions of logarithms take minutes. */
static void
draw_block (const struct draw *all)
{
  uint64_t wanted = MIN (MIN (g_get_num_processors (), MOST_THREADS), all->n / SHARE + 1);
  uint64_t each = (all->n / wanted + 1) & ~(uint64_t) 1;
  struct draw part[MOST_THREADS];
  GThread *thread[MOST_THREADS] = { NULL };

  for (uint64_t t = 0; t < wanted; t++) {
    uint64_t from = MIN (t * each, all->n),
             to = t + 1 < wanted ? MIN (from + each, all->n) : all->n;
    part[t] =
        (struct draw){ all->key, all->first + from, to - from, all->deviation, all->out + from };
    if (t > 0)
      thread[t] = g_thread_try_new ("weft-init", draw_normals, &part[t], NULL);
    if (t > 0 && !thread[t])
      draw_normals (&part[t]);
  }
  draw_normals (&part[0]);
  for (uint64_t t = 1; t < wanted; t++)
    if (thread[t])
      g_thread_join (thread[t]);
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
fill_block (const struct draw *draw, float value)
{
  if (draw->deviation > 0)
    draw_block (draw);
  for (uint64_t i = 0; i < draw->n && !(draw->deviation > 0); i++)
    draw->out[i] = value;
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
    fill_block (&(struct draw){ key, first, n, deviation, block }, value);
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
  if (!weft_state_peers (state))
    weft_state_settle (state, NULL); /* alone it cannot fail */
}
