/* Rotary positions of query and key heads, in place (kernels/rope.c says which elements pair). */
#include "kernels/cuda/place.cuh"

enum { THREADS = 256, MOST_BLOCKS = 8192 };
#define TWO_PI 6.283185307179586

struct turn {
  uint64_t tokens, heads, all, width; /* of each token's `all` heads the first `heads` turn */
  uint64_t sequence;
  struct weft_cuda_spot cp;
  uint32_t pairs;
  float direction;
  double frequency[WEFT_CUDA_MOST_PAIRS];
};

/* Angles grow with positions: what whole turns are is found in double, the rest is a float. */
template <class T>
__global__ void
rope (T *x, const struct turn c)
{
  for (WEFT_EACH (i, c.tokens * c.heads * c.pairs)) {
    uint32_t pair = (uint32_t) (i % c.pairs);
    uint64_t head = i / c.pairs % c.heads, token = i / c.pairs / c.heads;
    T *low = x + (token * c.all + head) * c.width + pair, *high = low + c.pairs;
    double turns = (double) position_of (c.cp, c.sequence, token % c.sequence) * c.frequency[pair] /
                   TWO_PI;
    float angle = (float) ((turns - floor (turns)) * TWO_PI);
    float cosine = cosf (angle), sine = sinf (angle) * c.direction;
    float a = to_float (*low), b = to_float (*high);
    set (low, a * cosine - b * sine);
    set (high, b * cosine + a * sine);
  }
}

template <class T>
static const char *
run (const struct weft_cuda_launch *l, float direction)
{
  struct turn c = {};

  c.heads = l->model.heads + l->model.groups;
  c.all = c.heads + l->model.groups;
  c.tokens = l->dim[0] / c.heads;
  c.width = l->dim[1];
  c.sequence = l->model.sequence;
  c.cp = l->cp;
  c.pairs = l->model.pairs;
  c.direction = direction;
  for (uint32_t i = 0; i < c.pairs; i++)
    c.frequency[i] = l->model.frequency[i];
  if (c.pairs)
    WEFT_LAUNCH ((rope<T>), blocks_for (c.tokens * c.heads * c.pairs, THREADS, MOST_BLOCKS), THREADS,
                 0, l->stream, (T *) l->operand[0].data, c);
  return launched ();
}

const char *
weft_cuda_rope (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[0].dtype, run, l, 1);
}

const char *
weft_cuda_rope_bwd (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[0].dtype, run, l, -1);
}
