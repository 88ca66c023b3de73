/* Gradient norm, clipping, AdamW (kernels/adam.c), without a transfer to the host. This file is
 * compiled without FMA contraction: with the same order of operations an update gives the bits of
 * the CPU kernel. */
#include "core/exec/control.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mix.cuh"

enum { THREADS = 256, MOST_BLOCKS = 4096, MOST_PARTS = 1024 };

/* Added to the norm before dividing (torch.nn.utils.clip_grad_norm_). */
#define NORM_EPSILON 1e-6

/* -------------------------------------------------------------------------------- norm */

/* The number of partial sums depends on the number of elements only, so the order of additions is
 * fixed. Sums are double at no cost, because memory bandwidth limits the kernel. */
__global__ void
add_squares (struct array grad, uint64_t n, double *part)
{
  __shared__ double room[THREADS];
  double sum = 0;

  for (WEFT_EACH (i, n)) {
    double x = (double) get (grad, i);
    sum += x * x;
  }
  room[threadIdx.x] = sum;
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
  return blocks_for (n, THREADS * 16, MOST_PARTS);
}

WEFT_CUDA_SCRATCH (grad_norm, norm_parts (s->dim[0]) * sizeof (double))
WEFT_CUDA_SCRATCH (bucket_norm, norm_parts (s->dim[0]) * sizeof (double))

const char *
weft_cuda_grad_norm (const struct weft_cuda_launch *l)
{
  double *part = (double *) l->scratch;
  unsigned parts = norm_parts (l->dim[0]);

  WEFT_LAUNCH (add_squares, parts, THREADS, 0, l->stream, array_of (&l->operand[0]), l->dim[0],
               part);
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
  struct weft_cuda_whole whole;
};

struct rates {
  float factor, keep, beta1, beta2, new1, new2, step, unbias, epsilon;
  uint64_t key; /* key of the random numbers */
};

static __device__ struct rates
rates_of (const struct update &u, const struct weft_control *c)
{
  double t = (double) c->step;
  struct rates r = {};

  r.factor = u.factor ? *u.factor : 1;
  r.keep = u.decays ? (float) (1 - c->lr * c->weight_decay) : 1;
  r.beta1 = (float) c->beta1;
  r.beta2 = (float) c->beta2;
  r.new1 = (float) (1 - c->beta1);
  r.new2 = (float) (1 - c->beta2);
  r.step = (float) (c->lr / (1 - pow (c->beta1, t)));
  r.unbias = (float) (1 / sqrt (1 - pow (c->beta2, t)));
  r.epsilon = (float) c->epsilon;
  r.key = mix (mix (mix (c->seed) ^ c->step) ^ u.whole.key);
  return r;
}

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

/* Updates one element. A skipped step (factor 0) changes nothing, except that weights not yet
 * initialised are copied from their masters. */
static __device__ __forceinline__ void
update_element (const struct update &u, const struct rates &r, uint64_t i)
{
  struct array weight = u.master.data ? u.master : u.param;

  if (r.factor == 0) {
    if (u.rewrites)
      put (u.param, i, get (u.master, i));
    return;
  }
  float g = get (u.grad, i) * r.factor;
  float m = r.beta1 * get (u.m, i) + r.new1 * g, v = r.beta2 * get (u.v, i) + r.new2 * (g * g);
  float w = get (weight, i) * r.keep - r.step * (m / (sqrtf (v) * r.unbias + r.epsilon));
  put (u.m, i, m);
  put (u.v, i, v);
  if (u.drawn)
    ((bf16 *) u.param.data)[i].bits = round_stochastic (w, r.key, u.whole, i);
  else
    put (weight, i, w);
  if (u.master.data && u.param.data)
    put (u.param, i, w);
}

__global__ void
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
  uint64_t step = (uint64_t) (all.first[which + 1] - all.first[which]) * THREADS;
  uint64_t begin = (uint64_t) (blockIdx.x - all.first[which]) * THREADS + threadIdx.x;
  for (uint64_t i = begin; i < u.n; i += step)
    update_element (u, r, i);
}

enum { GRAD, FACTOR, PARAM, MASTER, M, V };

static struct update
update_of (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct update u = { array_of (&o[GRAD]), array_of (&o[PARAM]), array_of (&o[MASTER]),
                      array_of (&o[M]),    array_of (&o[V]),     (const float *) o[FACTOR].data,
                      l->dim[0],           l->decay != 0,        false,
                      l->dim[2] != 0,      l->whole };

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
