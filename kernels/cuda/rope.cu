/* Rotary embedding of query and key heads, in place (pairs: kernels/rope.c). */
#include "kernels/cuda/turn.cuh"

enum { THREADS = 256, MOST_BLOCKS = 1 << 16 };

struct heads_of_rows {
  uint64_t tokens, heads, all, width; /* of `all` heads per token the first `heads` are rotated */
  uint32_t pairs;
};

/* Rotates the heads of a token. P: as many pairs at a time as two 16-byte loads contain, or one
 * pair. */
template <class P>
static __device__ __forceinline__ void
turn_heads (P *token, const struct heads_of_rows &c, const struct turn *turns)
{
  uint32_t packs = c.pairs / P::n, all = (uint32_t) c.heads * packs;

  for (uint32_t i = threadIdx.x; i < all; i += blockDim.x) {
    uint32_t at = i % packs;
    P *low = token + i / packs * (c.width / P::n) + at, *high = low + packs, a = *low, b = *high;
    for (int j = 0; j < P::n; j++) {
      struct two_floats to =
          turn_pair (turns[at * P::n + j], to_float (a.at[j]), to_float (b.at[j]));
      set (&a.at[j], to.low);
      set (&b.at[j], to.high);
    }
    *low = a;
    *high = b;
  }
}

/* One block per token: sines and cosines are computed once for all heads. */
template <class P>
__global__ void
rope (P *x, const struct heads_of_rows c, const __grid_constant__ struct turning turning)
{
  __shared__ struct turn turns[WEFT_CUDA_MOST_PAIRS];

  for (uint64_t token = blockIdx.x; token < c.tokens; token += gridDim.x) {
    for (uint32_t pair = threadIdx.x; pair < c.pairs; pair += blockDim.x)
      turns[pair] = turn_of (turning, token, pair);
    __syncthreads ();
    turn_heads (x + token * c.all * (c.width / P::n), c, turns);
    __syncthreads (); /* barrier, because the next token overwrites shared memory */
  }
}

template <class P>
static const char *
turn_tokens (const struct weft_cuda_launch *l, const struct heads_of_rows &c, float direction)
{
  WEFT_LAUNCH ((rope<P>), blocks_for (c.tokens, 1, MOST_BLOCKS), THREADS, 0, l->stream,
               (P *) l->operand[0].data, c, turning_of (l, direction));
  return launched ();
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
  if (c.pairs == 0)
    return NULL;
  bool packed = c.pairs % pack<T>::n == 0 && c.width % pack<T>::n == 0 &&
                begins_at_pack (l->operand[0].data);
  return packed ? turn_tokens<pack<T>> (l, c, direction) : turn_tokens<single<T>> (l, c, direction);
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
