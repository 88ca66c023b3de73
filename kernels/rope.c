/* Rotary embedding. Dimension i of the rotated part of a head pairs with i + half, as in Hugging
 * Face models; frequencies: core/job/rotary.h. Key heads follow the query heads. Values, after
 * both, are unchanged: the op works in place. */
#include "core/job/rotary.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include <math.h>

/* Maximum number of rotated pairs of a head: half the width of the widest head (model.def). */
#define MOST_PAIRS 2048

enum { LOCAL = 2 /* dimension */ };

static uint64_t
token_heads (const struct weft_kernel *k)
{
  return weft_kernel_heads (k) + weft_kernel_groups (k);
}

static uint64_t
token_elements (const struct weft_kernel *k)
{
  return (token_heads (k) + weft_kernel_groups (k)) * k->shape.dim[1];
}

/* Number of pairs of a head that rotary embedding rotates. */
static uint64_t
pairs (const struct weft_kernel *k)
{
  return weft_rotary_pairs (k->model, k->shape.dim[1]);
}

/* Rotary frequency of pair i in the op's layer, radians per position. */
static double
frequency_of (const struct weft_kernel *k, uint64_t i)
{
  return weft_rotary_frequency (k->model, (uint32_t) i, 2 * (uint32_t) pairs (k),
                                k->shape.dim[LOCAL] > 0);
}

static uint64_t
extent (const struct weft_kernel *k)
{
  return k->shape.dim[0] / token_heads (k) * token_elements (k);
}

uint64_t
weft_extent_rope (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return extent (k);
}

uint64_t
weft_extent_rope_bwd (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return extent (k);
}

/* Cosine and sine of the rotation of each pair at one position; backward rotates in the opposite
 * direction. */
struct turn {
  uint64_t n;
  float cosine[MOST_PAIRS], sine[MOST_PAIRS];
};

static void
set_turn (struct turn *turn, const double *frequency, uint64_t position, double direction)
{
  for (uint64_t i = 0; i < turn->n; i++) {
    double angle = (double) position * frequency[i];
    turn->cosine[i] = (float) cos (angle);
    turn->sine[i] = (float) (sin (angle) * direction);
  }
}

WEFT_WIDE static void
turn_pairs (float *low, float *high, const float *cosine, const float *sine, uint64_t n)
{
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++) {
    float a = low[i], b = high[i];
    low[i] = a * cosine[i] - b * sine[i];
    high[i] = b * cosine[i] + a * sine[i];
  }
}

static void
turn_token (const struct weft_kernel *k, const struct turn *turn, uint64_t token)
{
  const struct weft_operand *o = &k->operand[0];
  float low[MOST_PAIRS], high[MOST_PAIRS];

  for (uint64_t head = 0; head < token_heads (k); head++) {
    uint64_t at = token * token_elements (k) + head * k->shape.dim[1];
    float *a = (float *) weft_floats (o->data, o->dtype, at, turn->n, low);
    float *b = (float *) weft_floats (o->data, o->dtype, at + turn->n, turn->n, high);
    turn_pairs (a, b, turn->cosine, turn->sine, turn->n);
    weft_store (o->data, o->dtype, at, turn->n, a);
    weft_store (o->data, o->dtype, at + turn->n, turn->n, b);
  }
}

/* Positions, not tokens, are divided among threads, so that sines and cosines are computed once for
 * all sequences. */
static void
turn_all (const struct weft_kernel *k, struct weft_range share, double direction)
{
  uint64_t tokens = k->shape.dim[0] / token_heads (k);
  uint64_t sequence = weft_kernel_sequence (k);
  double frequency[MOST_PAIRS];
  struct turn turn = { .n = pairs (k) };

  for (uint64_t i = 0; i < turn.n; i++)
    frequency[i] = frequency_of (k, i);
  for (uint64_t p = share.begin; p < share.end; p++) {
    set_turn (&turn, frequency, weft_position (k->cp, sequence, p), direction);
    for (uint64_t t = p; t < tokens; t += sequence)
      turn_token (k, &turn, t);
  }
}

static struct weft_range
share (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t tokens = k->shape.dim[0] / token_heads (k);
  return weft_part (weft_least (tokens, weft_kernel_sequence (k)), 1, part, parts);
}

void
weft_cpu_rope (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  turn_all (k, share (k, part, parts), 1);
}

void
weft_cpu_rope_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  turn_all (k, share (k, part, parts), -1);
}

/* -------------------------------------------------------------------- reference */

static void
ref_turn (const struct weft_kernel *k, double direction)
{
  uint64_t half = pairs (k);

  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    uint64_t token = r / token_heads (k), head = r % token_heads (k);
    double *x = (double *) k->operand[0].data + token * token_elements (k) + head * k->shape.dim[1];
    for (uint64_t i = 0; i < half; i++) {
      double position = (double) weft_kernel_position (k, token);
      double angle = direction * position * frequency_of (k, i);
      double a = x[i], b = x[i + half];
      x[i] = a * cos (angle) - b * sin (angle);
      x[i + half] = b * cos (angle) + a * sin (angle);
    }
  }
}

void
weft_ref_rope (const struct weft_kernel *k)
{
  ref_turn (k, 1);
}

void
weft_ref_rope_bwd (const struct weft_kernel *k)
{
  ref_turn (k, -1);
}
