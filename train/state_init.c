/* Initial weights from a counter-based random generator, so that elements can be drawn in any
 * order. */
#include "core/base/mix.h"
#include "kernels/normals.h"
#include "train/state.h"
#include <math.h>
#include <string.h>

/* "initializer_range" of gpt2 in transformers, and Radford et al. 2018, section 4.1: N(0, 0.02). */
#define DEVIATION 0.02

#define BLOCK (1u << 22) /* number of elements that are drawn and written at once */
#define SHARE (1u << 16) /* one thread is used per this many elements, and one more for the rest */
#define MOST_THREADS 32u

/* Hash of the tensor name, mixed with the seed. */
static uint64_t
key_of (uint64_t seed, const char *name)
{
  uint64_t hash = WEFT_HASH_BEGIN;

  for (; *name; name++)
    hash = weft_hash_byte (hash, (uint8_t) *name);
  return weft_mix_bits (weft_mix (seed) ^ hash);
}

/* A range of elements for one thread, which begins at an even element. */
struct draw {
  struct weft_normals normals;
  float *out;
};

static void *
draw_stretch (void *data)
{
  const struct draw *d = data;

  weft_draw_normals (&d->normals, d->out);
  return NULL;
}

/* Draws the elements with one thread per processor: billions of logarithms would take minutes in
 * one thread. */
static void
draw_block (const struct weft_normals *all, float *out)
{
  uint64_t wanted = MIN (MIN (g_get_num_processors (), MOST_THREADS), all->n / SHARE + 1);
  uint64_t each = (all->n / wanted + 1) & ~(uint64_t) 1;
  struct draw part[MOST_THREADS];
  GThread *thread[MOST_THREADS] = { NULL };

  for (uint64_t t = 0; t < wanted; t++) {
    uint64_t from = MIN (t * each, all->n),
             to = t + 1 < wanted ? MIN (from + each, all->n) : all->n;
    part[t] =
        (struct draw){ { all->key, all->first + from, to - from, all->deviation }, out + from };
    if (t > 0)
      thread[t] = g_thread_try_new ("weft-init", draw_stretch, &part[t], NULL);
    if (t > 0 && !thread[t])
      draw_stretch (&part[t]);
  }
  draw_stretch (&part[0]);
  for (uint64_t t = 1; t < wanted; t++)
    if (thread[t])
      g_thread_join (thread[t]);
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
    draw_block (draw, out);
  for (uint64_t i = 0; i < draw->n && !(draw->deviation > 0); i++)
    out[i] = value;
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
    fill_block (&(struct weft_normals){ key, first, n, deviation }, value, block);
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

  for (uint32_t i = 0; i < weft_state_count (state) && weft_state_go_on (state, NULL); i++)
    init_tensor (state, i, seed, layers, block);
  if (!weft_state_peers (state))
    /* ignores the result: the call cannot fail in a single process */
    weft_state_quantise (state, NULL);
}
