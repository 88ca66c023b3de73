/* Gradient norm, clipping, AdamW (kernels/adam.c), without a transfer to the host. This file is
 * compiled without FMA contraction: with the same order of operations an update gives the bits of
 * the CPU kernel. */
#include "core/exec/control.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mix.cuh"

enum { THREADS = 256, MOST_BLOCKS = 4096, MOST_PARTS = 1024, BATCH = 4 };

/* Added to the norm before dividing (torch.nn.utils.clip_grad_norm_). */
#define NORM_EPSILON 1e-6

/* -------------------------------------------------------------------------------- norm */

/* Loads the pack of elements that begins at `at`. The value is the same with and without
 * alignment, and so is the order of sums. */
template <class T, bool ALIGNED>
static __device__ __forceinline__ pack<T>
load_pack (const T *at)
{
  pack<T> some;

  if (ALIGNED) {
    some = *(const pack<T> *) at;
  } else {
    WEFT_UNROLL
    for (int e = 0; e < pack<T>::n; e++)
      some.at[e] = at[e];
  }
  return some;
}

static __device__ __forceinline__ void
add_square (double *sum, float x)
{
  *sum += (double) x * (double) x;
}

/* Sum of squares of a thread's elements: packs of 16 bytes, of which BATCH are loaded before the
 * first is used, each with a sum of its own; then the elements after the last pack. */
template <class T, bool ALIGNED>
static __device__ __forceinline__ double
thread_squares (const T *grad, uint64_t n)
{
  const uint64_t packs = n / pack<T>::n, step = (uint64_t) gridDim.x * THREADS;
  const uint64_t thread = (uint64_t) blockIdx.x * THREADS + threadIdx.x;
  double sum[BATCH] = {};

  for (uint64_t first = thread; first < packs; first += BATCH * step) {
    pack<T> some[BATCH] = {};
    WEFT_UNROLL
    for (int b = 0; b < BATCH; b++)
      if (first + b * step < packs)
        some[b] = load_pack<T, ALIGNED> (grad + (first + b * step) * pack<T>::n);
    WEFT_UNROLL
    for (int b = 0; b < BATCH; b++)
      WEFT_UNROLL
      for (int e = 0; e < pack<T>::n; e++)
        add_square (&sum[b], to_float (some[b].at[e]));
  }
  if (packs * pack<T>::n + thread < n)
    add_square (&sum[0], to_float (grad[packs * pack<T>::n + thread]));
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The number of partial sums depends on the number of elements only, so the order of additions is
 * fixed. Sums are double at no cost, because memory bandwidth limits the kernel. */
template <class T, bool ALIGNED>
__global__ void __launch_bounds__ (THREADS)
add_squares (const T *grad, uint64_t n, double *part)
{
  __shared__ double room[THREADS];

  room[threadIdx.x] = thread_squares<T, ALIGNED> (grad, n);
  for (unsigned half = THREADS / 2; half; half /= 2) {
    __syncthreads ();
    if (threadIdx.x < half)
      room[threadIdx.x] += room[threadIdx.x + half];
  }
  if (threadIdx.x == 0)
    part[blockIdx.x] = room[0];
}

__global__ void
join_squares (const double *part, unsigned parts, float *squares, bool adds)
{
  double sum = adds ? (double) *squares : 0;

  for (unsigned i = 0; i < parts; i++)
    sum += part[i];
  *squares = (float) sum;
}

static unsigned
norm_parts (uint64_t n)
{
  return blocks_for (n, THREADS * 32, MOST_PARTS);
}

WEFT_CUDA_SCRATCH (grad_norm, norm_parts (s->dim[0]) * sizeof (double))
WEFT_CUDA_SCRATCH (bucket_norm, norm_parts (s->dim[0]) * sizeof (double))

template <class T>
static void
run_squares (const struct weft_cuda_launch *l, unsigned parts)
{
  const T *grad = (const T *) l->operand[0].data;

  if (begins_at_pack (grad))
    WEFT_LAUNCH ((add_squares<T, true>), parts, THREADS, 0, l->stream, grad, l->dim[0],
                 (double *) l->scratch);
  else
    WEFT_LAUNCH ((add_squares<T, false>), parts, THREADS, 0, l->stream, grad, l->dim[0],
                 (double *) l->scratch);
}

const char *
weft_cuda_grad_norm (const struct weft_cuda_launch *l)
{
  double *part = (double *) l->scratch;
  unsigned parts = norm_parts (l->dim[0]);

  WEFT_BY_DTYPE (l->operand[0].dtype, run_squares, l, parts);
  WEFT_LAUNCH (join_squares, 1, 1, 0, l->stream, part, parts, (float *) l->operand[1].data,
               (bool) l->operand[1].accumulate);
  return launched ();
}

const char *
weft_cuda_bucket_norm (const struct weft_cuda_launch *l)
{
  return weft_cuda_grad_norm (l);
}

__global__ void
clip (const float *squares, const float *found, float *factor, const struct weft_control *control)
{
  double norm = squares ? sqrt ((double) *squares) : 0;
  double limit = control->clip_grad / (norm + NORM_EPSILON);
  double keep = !squares ? 1 : isfinite (norm) ? (limit < 1 ? limit : 1) : 0;

  *factor = found && *found != 0 ? 0 : (float) keep;
}

const char *
weft_cuda_clip (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (clip, 1, 1, 0, l->stream, (const float *) l->operand[0].data,
               (const float *) l->operand[1].data, (float *) l->operand[2].data, l->control);
  return launched ();
}

/* ------------------------------------------------------------------------------- adam */

struct update {
  struct array grad, param, master, m, v; /* param or master may be NULL, not both */
  const float *factor;                    /* NULL: 1 */
  uint64_t n;
  bool decays, rewrites; /* rewrites: compute a param that has not been initialised even if the step
                          * is skipped */
  bool drawn;            /* param is bf16 with stochastic rounding (kernels/stochastic.h) */
  bool together;         /* all arrays begin at a multiple of EACH elements */
  struct weft_cuda_whole whole;
};

struct rates {
  float factor, keep, beta1, beta2, new1, new2, step, unbias, epsilon;
  uint64_t key; /* key of the random numbers */
};

static __device__ struct rates
rates_of (const struct update &u, const struct weft_control *c)
{
  struct rates r = {};

  r.factor = u.factor ? *u.factor : 1;
  r.keep = u.decays ? (float) (1 - c->lr * c->weight_decay) : 1;
  r.beta1 = (float) c->beta1;
  r.beta2 = (float) c->beta2;
  r.new1 = (float) (1 - c->beta1);
  r.new2 = (float) (1 - c->beta2);
  r.step = (float) c->corrected.step;
  r.unbias = (float) c->corrected.unbias;
  r.epsilon = (float) c->epsilon;
  r.key = mix (mix (mix (c->seed) ^ c->step) ^ u.whole.key);
  return r;
}

/* Elements that a thread reads together: packs of 16 bytes of fp32, or 8 of 16-bit types. */
enum { EACH = 4 };

/* Tensors updated by one launch, and the first block of each. */
struct updates {
  struct update of[WEFT_CUDA_MOST_TOGETHER];
  uint32_t n, first[WEFT_CUDA_MOST_TOGETHER + 1];
};

#ifdef WEFT_CUDA_EMULATOR
static uint32_t
bits_of (float x)
{
  uint32_t bits;
  memcpy (&bits, &x, sizeof bits);
  return bits;
}
#else
#define bits_of(x) __float_as_uint (x)
#endif

/* Stochastic rounding of element i: weft_bf16_stochastic() on the device. */
static __device__ __forceinline__ uint16_t
round_stochastic (float x, uint64_t key, const struct weft_cuda_whole &w, uint64_t i)
{
  uint64_t at = w.start + i, element = at / w.columns * w.stride + at % w.columns + w.offset;
  uint32_t bits = bits_of (x), draw = (uint32_t) (mix_bits (key + element * WEFT_MIX_STEP) >> 48);

  if ((bits & 0x7f800000u) == 0x7f800000u)
    return FLOAT_BF16 (x);
  return (uint16_t) ((bits + draw) >> 16);
}

/* N consecutive elements that are read or written by one instruction. */
template <class T, int N> struct alignas (N * sizeof (T)) some {
  T at[N];
};

template <class T, int N>
static __device__ __forceinline__ void
load_as (float (&to)[N], const void *data, uint64_t i)
{
  some<T, N> x = ((const some<T, N> *) data)[i];

  WEFT_UNROLL
  for (int e = 0; e < N; e++)
    to[e] = to_float (x.at[e]);
}

template <class T, int N>
static __device__ __forceinline__ void
store_as (void *data, uint64_t i, const float (&x)[N])
{
  some<T, N> to;

  WEFT_UNROLL
  for (int e = 0; e < N; e++)
    set (&to.at[e], x[e]);
  ((some<T, N> *) data)[i] = to;
}

/* Reads the i-th N elements of an array. All threads have the same dtype. */
template <int N>
static __device__ __forceinline__ void
load_some (float (&to)[N], const struct array &a, uint64_t i)
{
  if (a.dtype == WEFT_FP32)
    load_as<float, N> (to, a.data, i);
  else if (a.dtype == WEFT_BF16)
    load_as<bf16, N> (to, a.data, i);
  else
    load_as<fp16, N> (to, a.data, i);
}

template <int N>
static __device__ __forceinline__ void
store_some (const struct array &a, uint64_t i, const float (&x)[N])
{
  if (a.dtype == WEFT_FP32)
    store_as<float, N> (a.data, i, x);
  else if (a.dtype == WEFT_BF16)
    store_as<bf16, N> (a.data, i, x);
  else
    store_as<fp16, N> (a.data, i, x);
}

template <int N>
static __device__ __forceinline__ void
store_stochastic (const struct update &u, const struct rates &r, uint64_t i, const float (&w)[N])
{
  some<bf16, N> to;

  WEFT_UNROLL
  for (int e = 0; e < N; e++)
    to.at[e].bits = round_stochastic (w[e], r.key, u.whole, i * N + e);
  ((some<bf16, N> *) u.param.data)[i] = to;
}

/* Updates the i-th N elements. */
template <int N>
static __device__ __forceinline__ void
update_some (const struct update &u, const struct rates &r, uint64_t i)
{
  const struct array &weight = u.master.data ? u.master : u.param;
  float g[N], w[N], m[N], v[N];

  load_some (g, u.grad, i);
  load_some (w, weight, i);
  load_some (m, u.m, i);
  load_some (v, u.v, i);
  WEFT_UNROLL
  for (int e = 0; e < N; e++) {
    float scaled = g[e] * r.factor;
    m[e] = r.beta1 * m[e] + r.new1 * scaled;
    v[e] = r.beta2 * v[e] + r.new2 * (scaled * scaled);
    w[e] = w[e] * r.keep - r.step * (m[e] / (sqrtf (v[e]) * r.unbias + r.epsilon));
  }
  store_some (u.m, i, m);
  store_some (u.v, i, v);
  if (u.drawn) {
    store_stochastic (u, r, i, w);
    return;
  }
  store_some (weight, i, w);
  if (u.master.data && u.param.data)
    store_some (u.param, i, w);
}

/* Elements from `first` on, N at a time, by all threads of the blocks of a tensor. A skipped step
 * (factor 0) changes nothing, except that weights not yet initialised are copied from their
 * masters. */
template <int N>
static __device__ __forceinline__ void
update_range (const struct update &u, const struct rates &r, uint64_t thread, uint64_t threads,
              uint64_t first)
{
  const uint64_t end = u.n / N;

  for (uint64_t i = first / N + thread; i < end && r.factor != 0; i += threads)
    update_some<N> (u, r, i);
  for (uint64_t i = first / N + thread; i < end && r.factor == 0 && u.rewrites; i += threads) {
    float w[N];
    load_some (w, u.master, i);
    store_some (u.param, i, w);
  }
}

__global__ void __launch_bounds__ (THREADS)
adam (const __grid_constant__ struct updates all, const struct weft_control *control)
{
  __shared__ struct rates shared;
  uint32_t which = 0;

  while (blockIdx.x >= all.first[which + 1])
    which++;
  const struct update &u = all.of[which];
  if (threadIdx.x == 0)
    shared = rates_of (u, control);
  __syncthreads ();
  const struct rates r = shared;
  uint64_t threads = (uint64_t) (all.first[which + 1] - all.first[which]) * THREADS;
  uint64_t thread = (uint64_t) (blockIdx.x - all.first[which]) * THREADS + threadIdx.x;
  if (u.together)
    update_range<EACH> (u, r, thread, threads, 0);
  update_range<1> (u, r, thread, threads, u.together ? u.n / EACH * EACH : 0);
}

enum { GRAD, FACTOR, PARAM, MASTER, M, V };

static struct update
update_of (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct update u = { array_of (&o[GRAD]), array_of (&o[PARAM]), array_of (&o[MASTER]),
                      array_of (&o[M]),    array_of (&o[V]),     (const float *) o[FACTOR].data,
                      l->dim[0],           l->decay != 0,        false,
                      l->dim[2] != 0,      true,                 l->whole };
  const struct array arrays[] = { u.grad, u.param, u.master, u.m, u.v };

  for (const struct array &a : arrays)
    u.together = u.together && (uintptr_t) a.data % ((EACH * (a.dtype == WEFT_FP32 ? 4 : 2))) == 0;
  u.rewrites = u.master.data && u.param.data && !o[PARAM].accumulate;
  return u;
}

const char *
weft_cuda_adam_together (const struct weft_cuda_launch *l, uint32_t n)
{
  struct updates all = {};

  all.n = n;
  for (uint32_t i = 0; i < n; i++) {
    all.of[i] = update_of (&l[i]);
    all.first[i + 1] = all.first[i] + blocks_for (all.of[i].n, THREADS * 4, MOST_BLOCKS);
  }
  WEFT_LAUNCH (adam, all.first[n], THREADS, 0, l->stream, all, l->control);
  return launched ();
}

const char *
weft_cuda_adam (const struct weft_cuda_launch *l)
{
  return weft_cuda_adam_together (l, 1);
}
