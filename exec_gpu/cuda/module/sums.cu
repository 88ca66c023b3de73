/* Sums and exchanges over the memory of ranks that share a GPU.  One thread reduces all terms of
 * one element, in the order of core/base/fold.h, so the bits are those of the CPU executor. */
#include "core/base/fold.h"
#include "exec_gpu/cuda/module/sums.h"
#include "kernels/cuda/device.cuh"

#define MOST_DEPTH 7 /* depth of a fold over WEFT_GPU_MOST_SHARED terms */
#define THREADS 256
#define MOST_BLOCKS 1024
/* number of thread blocks for each member (sums), or for each pair of members (copies) */
#define ROW_BLOCKS 16

struct terms {
  const void *at[WEFT_GPU_MOST_SHARED];
  /* by term: number of tree nodes (partial sums) that are complete after adding this term */
  uint8_t merges[WEFT_GPU_MOST_SHARED];
};

struct sum {
  uint8_t how;
  float before, after;
  uint32_t n_term;
  void *out;
  uint64_t n;
};

/* A value rounded to type T. */
template <class T>
static __device__ float
rounded (float x)
{
  T stored;
  set (&stored, x);
  return to_float (stored);
}

static __device__ float
joined (uint8_t how, float a, float b)
{
  if (how == WEFT_GPU_LEAST)
    return b < a ? b : a;
  if (how == WEFT_GPU_MOST)
    return b > a ? b : a;
  return a + b;
}

/* Element e of the reduction (sum, minimum or maximum) over all terms. */
template <class T>
static __device__ float
folded (const sum *s, const void *const *term, const uint8_t *merges, uint64_t e)
{
  float stack[MOST_DEPTH];
  uint32_t top = 0;

  for (uint32_t i = 0; i < s->n_term; i++) {
    float x = to_float (((const T *) term[i])[e]);
    stack[top] = s->before == 1 ? x : rounded<T> (x / s->before);
    for (uint32_t left = merges[i]; left; left--, top--)
      stack[top - 1] = rounded<T> (joined (s->how, stack[top - 1], stack[top]));
    top++;
  }
  return stack[0];
}

template <class T>
__global__ void
join_floats (const __grid_constant__ terms t, const __grid_constant__ sum s)
{
  for (WEFT_EACH (e, s.n)) {
    float all = folded<T> (&s, t.at, t.merges, e);
    set ((T *) s.out + e, s.after == 1 ? all : all / s.after);
  }
}

template <class T>
__global__ void
join_words (terms t, sum s)
{
  for (WEFT_EACH (e, s.n)) {
    T all = ((const T *) t.at[0])[e];
    for (uint32_t i = 1; i < s.n_term; i++) {
      T x = ((const T *) t.at[i])[e];
      all = s.how == WEFT_GPU_LEAST   ? (x < all ? x : all)
            : s.how == WEFT_GPU_MOST ? (x > all ? x : all)
                                          : all + x;
    }
    ((T *) s.out)[e] = all;
  }
}

extern "C" const char *
weft_cuda_join_terms (const struct weft_gpu_join *j, void *stream)
{
  sum s = { j->how, j->before, j->after, j->n_term, j->out, j->n };
  unsigned blocks = blocks_for (j->n, THREADS, MOST_BLOCKS);
  terms t;

  if (j->n_term > WEFT_GPU_MOST_SHARED)
    return "more than 64 ranks share a GPU";
  if (j->n == 0)
    return NULL;
  for (uint32_t i = 0; i < j->n_term; i++) {
    t.at[i] = j->term[i];
    t.merges[i] = (uint8_t) weft_fold_merges (i, j->n_term);
  }
  switch (j->dtype) {
  case WEFT_FP32:
    WEFT_LAUNCH (join_floats<float>, blocks, THREADS, 0, stream, t, s);
    break;
  case WEFT_BF16:
    WEFT_LAUNCH (join_floats<bf16>, blocks, THREADS, 0, stream, t, s);
    break;
  case WEFT_FP16:
    WEFT_LAUNCH (join_floats<fp16>, blocks, THREADS, 0, stream, t, s);
    break;
  case WEFT_INT32:
    WEFT_LAUNCH (join_words<int32_t>, blocks, THREADS, 0, stream, t, s);
    break;
  case WEFT_INT64:
    WEFT_LAUNCH (join_words<int64_t>, blocks, THREADS, 0, stream, t, s);
    break;
  default:
    return "no sum of bytes";
  }
  return launched ();
}

extern "C" const char *
weft_cuda_load_joins (void *stream)
{
  static const uint8_t dtypes[] = { WEFT_FP32, WEFT_BF16, WEFT_FP16 };
  const char *error = NULL;

  for (unsigned i = 0; i < sizeof dtypes && !error; i++) {
    const void *term = NULL;
    weft_gpu_join j = { dtypes[i], WEFT_GPU_ADD, 1, 1, 1, &term, NULL, 1 };
    error = weft_cuda_join_terms (&j, stream);
  }
  return error;
}

/* ----------------------------------------- collectives over unequal numbers of rows */

struct rows {
  const void *from[WEFT_GPU_MOST_SHARED];
  const int64_t *send[WEFT_GPU_MOST_SHARED];
  void *to[WEFT_GPU_MOST_SHARED];
  uint8_t merges[WEFT_GPU_MOST_SHARED]; /* for sums: see struct terms */
  uint8_t how;
  uint32_t n, each;
  uint64_t row;
};

/* Number of rows that a member's row counts give for members [first, last). */
static __device__ uint64_t
rows_of (const rows *x, uint32_t member, uint32_t first, uint32_t last)
{
  uint64_t sum = 0;

  for (uint32_t i = first * x->each; i < last * x->each; i++)
    sum += (uint64_t) x->send[member][i];
  return sum;
}

/* Index of the row in member i's result at which the rows from member j begin. */
static __device__ uint64_t
place_of (const rows *x, uint32_t i, uint32_t j)
{
  uint64_t at = 0;

  if (x->how == WEFT_GPU_GATHER)
    return rows_of (x, i, 0, j);
  for (uint32_t k = 0; k < j; k++)
    at += rows_of (x, k, i, i + 1);
  return at;
}

/* Thread blocks (i, j, ...) copy the rows that member j sends to member i. */
__global__ void
exchange (const __grid_constant__ rows x)
{
  uint32_t i = blockIdx.x, j = blockIdx.y;
  __shared__ uint64_t first, at, n;

  if (threadIdx.x == 0) {
    uint32_t part = x.how == WEFT_GPU_GATHER ? j : i;
    first = x.how == WEFT_GPU_GATHER ? 0 : rows_of (&x, j, 0, i) * x.row;
    n = rows_of (&x, j, part, part + 1) * x.row;
    at = place_of (&x, i, j) * x.row;
  }
  __syncthreads ();
  const uint8_t *from = (const uint8_t *) x.from[j] + first;
  uint8_t *to = (uint8_t *) x.to[i] + at;
  for (uint64_t b = threadIdx.x + (uint64_t) blockIdx.z * blockDim.x; b < n;
       b += (uint64_t) blockDim.x * gridDim.z)
    to[b] = from[b];
}

/* Thread blocks (i, ...) add, over all members, the rows that member i receives. */
template <class T>
__global__ void
sum_rows (const __grid_constant__ rows x)
{
  uint32_t i = blockIdx.x;
  __shared__ const void *term[WEFT_GPU_MOST_SHARED];
  __shared__ uint64_t n;
  const sum s = { WEFT_GPU_ADD, 1, 1, x.n, x.to[i], 0 };

  for (uint32_t j = threadIdx.x; j < x.n; j += blockDim.x)
    term[j] = (const uint8_t *) x.from[j] + rows_of (&x, j, 0, i) * x.row;
  if (threadIdx.x == 0)
    n = rows_of (&x, i, i, i + 1) * x.row / sizeof (T);
  __syncthreads ();
  for (uint64_t e = threadIdx.x + (uint64_t) blockIdx.y * blockDim.x; e < n;
       e += (uint64_t) blockDim.x * gridDim.y)
    set ((T *) s.out + e, folded<T> (&s, term, x.merges, e));
}

static const char *
launch_sums (const rows *x, uint8_t dtype, void *stream)
{
  dim3 grid (x->n, ROW_BLOCKS);

  switch (dtype) {
  case WEFT_FP32:
    WEFT_LAUNCH (sum_rows<float>, grid, THREADS, 0, stream, *x);
    break;
  case WEFT_BF16:
    WEFT_LAUNCH (sum_rows<bf16>, grid, THREADS, 0, stream, *x);
    break;
  case WEFT_FP16:
    WEFT_LAUNCH (sum_rows<fp16>, grid, THREADS, 0, stream, *x);
    break;
  default:
    return "no sum of rows but of floats";
  }
  return launched ();
}

extern "C" const char *
weft_cuda_exchange_rows (const struct weft_gpu_exchange *e, void *stream)
{
  rows x = {};

  if (e->n > WEFT_GPU_MOST_SHARED)
    return "more than 64 ranks share a GPU";
  for (uint32_t i = 0; i < e->n; i++) {
    x.from[i] = e->from[i];
    x.send[i] = e->send[i];
    x.to[i] = e->to[i];
    x.merges[i] = (uint8_t) weft_fold_merges (i, e->n);
  }
  x.how = e->how;
  x.n = e->n;
  x.each = e->each;
  x.row = e->row;
  if (e->how == WEFT_GPU_SUM)
    return launch_sums (&x, e->dtype, stream);
  WEFT_LAUNCH (exchange, dim3 (e->n, e->n, ROW_BLOCKS), THREADS, 0, stream, x);
  return launched ();
}
