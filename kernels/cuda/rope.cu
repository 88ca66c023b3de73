/* Rotary positions of query and key heads, in place (kernels/rope.c says which elements pair). */
#include "kernels/cuda/turn.cuh"

enum { THREADS = 256, MOST_BLOCKS = 8192 };

struct heads_of_rows {
  uint64_t tokens, heads, all, width; /* of each token's `all` heads the first `heads` turn */
  uint32_t pairs;
};

template <class T>
__global__ void
rope (T *x, const struct heads_of_rows c, const struct turning turning)
{
  for (WEFT_EACH (i, c.tokens * c.heads * c.pairs)) {
    uint32_t pair = (uint32_t) (i % c.pairs);
    uint64_t head = i / c.pairs % c.heads, token = i / c.pairs / c.heads;
    T *low = x + (token * c.all + head) * c.width + pair, *high = low + c.pairs;
    struct two_floats to = turned (turning, token, pair, to_float (*low), to_float (*high));
    set (low, to.low);
    set (high, to.high);
  }
}

template <class T>
static const char *
run (const struct weft_cuda_launch *l, float direction)
{
  struct heads_of_rows c = {};

  c.heads = l->model.heads + l->model.groups;
  c.all = c.heads + l->model.groups;
  c.tokens = l->dim[0] / c.heads;
  c.width = l->dim[1];
  c.pairs = l->model.pairs;
  if (c.pairs)
    WEFT_LAUNCH ((rope<T>), blocks_for (c.tokens * c.heads * c.pairs, THREADS, MOST_BLOCKS), THREADS,
                 0, l->stream, (T *) l->operand[0].data, c, turning_of (l, direction));
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
