/* turn.cuh - rotary embedding: rotates pairs by the position of their token (kernels/rope.c). */
#pragma once
#include "kernels/cuda/place.cuh"

#define TWO_PI 6.283185307179586

struct turning {
  uint64_t sequence; /* tokens of each sequence on this rank */
  struct weft_cuda_spot cp;
  float direction;
  double frequency[WEFT_CUDA_MOST_PAIRS];
};

static inline struct turning
turning_of (const struct weft_cuda_launch *l, float direction)
{
  struct turning t = {};

  t.sequence = l->model.sequence;
  t.cp = l->cp;
  t.direction = direction;
  for (uint32_t i = 0; i < l->model.pairs; i++)
    t.frequency[i] = l->model.frequency[i];
  return t;
}

struct two_floats {
  float low, high;
};

/* Cosine and sine of one position and pair. */
struct turn {
  float cosine, sine;
};

/* Angles grow with the position: whole turns are removed in double, the rest is a float. */
static __device__ __forceinline__ struct turn
turn_of (const struct turning &c, uint64_t token, uint64_t pair)
{
  double turns =
      (double) position_of (c.cp, c.sequence, token % c.sequence) * c.frequency[pair] / TWO_PI;
  float angle = (float) ((turns - floor (turns)) * TWO_PI);
  struct turn turn = { cosf (angle), sinf (angle) * c.direction };

  return turn;
}

static __device__ __forceinline__ struct two_floats
turn_pair (const struct turn &turn, float a, float b)
{
  struct two_floats to = { a * turn.cosine - b * turn.sine, b * turn.cosine + a * turn.sine };

  return to;
}

static __device__ __forceinline__ struct two_floats
turned (const struct turning &c, uint64_t token, uint64_t pair, float a, float b)
{
  return turn_pair (turn_of (c, token, pair), a, b);
}
