/* attention.cuh - where queries, keys and values lie in rows [queries | keys | values] of tokens, for the
 * kernels of attention.cu and attention_tiles.cu. */
#pragma once
#include "kernels/cuda/device.cuh"

struct attention {
  uint64_t batch, sequence, heads, groups, width, window, value;
  float scale; /* of scores: 1 / root width */
};

/* The heads of one launch: of a batch's query heads one, or of its groups. */
struct head {
  uint64_t batch, query, group;
};

static __device__ __forceinline__ uint64_t
row_elements (const struct attention &a)
{
  return (a.heads + a.groups) * a.width + a.groups * a.value;
}

static __device__ __forceinline__ uint64_t
q_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.sequence + t) * row_elements (a) + h.query * a.width;
}

static __device__ __forceinline__ uint64_t
k_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.sequence + t) * row_elements (a) + (a.heads + h.group) * a.width;
}

static __device__ __forceinline__ uint64_t
v_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.sequence + t) * row_elements (a) + (a.heads + a.groups) * a.width +
         h.group * a.value;
}

static __device__ __forceinline__ uint64_t
o_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return ((h.batch * a.sequence + t) * a.heads + h.query) * a.value;
}

static __device__ __forceinline__ uint64_t
lse_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.heads + h.query) * a.sequence + t;
}

/* The first key that query i sees; i itself is the last. */
static __device__ __forceinline__ uint64_t
first_key (const struct attention &a, uint64_t i)
{
  return a.window && i >= a.window ? i - a.window + 1 : 0;
}

/* One past the last query that sees key j. */
static __device__ __forceinline__ uint64_t
end_of_queries (const struct attention &a, uint64_t j)
{
  return a.window && j + a.window < a.sequence ? j + a.window : a.sequence;
}

static inline struct attention
attention_of (const struct weft_cuda_launch *l)
{
  const uint64_t *dim = l->dim;
  struct attention a = { dim[0], dim[1], dim[2], dim[3], dim[4], dim[5], dim[6] ? dim[6] : dim[4],
                         1 / sqrtf ((float) dim[4]) };
  return a;
}

/* With tiles of tensor cores: heads of 64 or 128 elements of 16 bits, which begin at multiples of 16
 * bytes.  FALSE: not these. */
bool weft_cuda_tiles_take (const struct weft_cuda_launch *l);
const char *weft_cuda_tiles_forward (const struct weft_cuda_launch *l);
const char *weft_cuda_tiles_backward (const struct weft_cuda_launch *l);
