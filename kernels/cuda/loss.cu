/* Cross entropy. One pass over a row of logits finds the largest logit and the sum of exponentials;
 * the gradient overwrites the logits. One block adds the losses of rows in a fixed order. Padding
 * columns beyond the vocabulary do not count.
 *
 * One block per row, with 16-byte loads if rows are aligned. Where loss and gradient are computed
 * by one op, the row stays in shared memory: logits are read once and written once. The part of a
 * longer row that does not fit is read again, mostly from the L2 cache. */
#include "core/exec/control.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, ROW_THREADS = 512, MOST_BLOCKS = 1 << 20, BATCH = 4 };
enum { MOST_THREADS = 1024 /* threads of a block */ };

/* MOST_KEPT: bytes of a row that are kept in shared memory, if the device has MOST_KEPT + ROOM
 * bytes. SHARED_BY_TWO: if a row keeps at most this many bytes, two blocks run on one
 * multiprocessor of sm_90 (227 KB); otherwise one block runs, with twice the threads. */
enum { MOST_KEPT = 160 * 1024, SHARED_BY_TWO = 112 * 1024, ROOM = 32 * sizeof (float) };
enum { LOGITS, TARGETS, LSE, COUNT, LOSS };
enum { GRADIENT = 3 };

struct vocabulary {
  /* number of columns of a row; number of columns that belong to the vocabulary */
  uint64_t rows, columns, counted;
  uint64_t first;                  /* token id of the first column */
  /* 1 / cap of the soft-capping that the logits have gone through; 0: no soft-capping */
  float less;
};

/* Online softmax: largest so far, and sum of exponentials relative to it. */
struct soft {
  float most, sum;
};

#define LOG2_E 1.44269504088896341f

/* 2^x, with a relative error of at most 2^-22; results below 2^-126 are 0 (PTX ISA,
 * ex2.approx.ftz.f32). */
#ifdef WEFT_CUDA_EMULATOR
#define EXP2(x) exp2f (x)
#else
static __device__ __forceinline__ float
EXP2 (float x)
{
  float y;
  asm ("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

/* exp (x - from). One multiply-add of x with log2 (e) would save an instruction, but round
 * from * log2 (e): an error of |from| 2^-24 in every probability. */
static __device__ __forceinline__ float
exp_from (float x, float from)
{
  return EXP2 ((x - from) * LOG2_E);
}

/* Adds a vector of a row to the online softmax. `left`: how many of its elements belong to the
 * vocabulary. `sums` FALSE: only the largest logit is computed. */
template <class V>
static __device__ __forceinline__ void
see (struct soft *s, const V &x, int left, bool sums)
{
  float value[V::n], most = s->most;

  WEFT_UNROLL
  for (int e = 0; e < V::n; e++) {
    value[e] = e < left ? to_float (x.at[e]) : -INFINITY;
    most = fmaxf (most, value[e]);
  }
  if (most == -INFINITY)
    return;
  float sum = s->sum;
  if (most > s->most)
    sum *= exp_from (s->most, most);
  WEFT_UNROLL
  for (int e = 0; e < V::n && sums; e++)
    sum += exp_from (value[e], most);
  s->most = most;
  s->sum = sum;
}

/* How many of the elements of vector i belong to the vocabulary, which ends within a row if the row
 * is padded. */
template <class V>
static __device__ __forceinline__ int
left_in (uint64_t i, uint64_t counted)
{
  uint64_t first = i * V::n;

  return first >= counted ? 0 : counted - first < V::n ? (int) (counted - first) : V::n;
}

/* A copy of the first n vectors of a row in shared memory; each thread uses its own vectors. */
template <class V> struct copy {
  V *at;
  uint64_t n;
};

/* Scans a thread's part of a row, copying it to `kept`: first the vectors whose elements all belong
 * to the vocabulary, then the others. */
template <class V>
static __device__ __forceinline__ struct soft
see_row (const V *x, struct vocabulary v, struct soft s, bool sums, struct copy<V> kept)
{
  const uint32_t n = (uint32_t) (v.columns / V::n), full = (uint32_t) (v.counted / V::n);

  for (uint32_t first = threadIdx.x; first < full; first += BATCH * blockDim.x) {
    V some[BATCH];
    WEFT_UNROLL
    for (int b = 0; b < BATCH; b++)
      if (first + b * blockDim.x < full)
        some[b] = x[first + b * blockDim.x];
    WEFT_UNROLL
    for (int b = 0; b < BATCH; b++) {
      uint32_t i = first + b * blockDim.x;
      if (i >= full)
        continue;
      if (i < kept.n)
        kept.at[i] = some[b];
      see (&s, some[b], V::n, sums);
    }
  }
  for (uint32_t i = full + threadIdx.x; i < n; i += blockDim.x) {
    V some = x[i];
    if (i < kept.n)
      kept.at[i] = some;
    see (&s, some, left_in<V> (i, v.counted), sums);
  }
  return s;
}

/* Joins the maxima and sums of exponentials of all threads; every thread gets the result. */
static __device__ __forceinline__ struct soft
join_threads (struct soft own, float *room)
{
  struct soft all = { block_most (own.most, room), 0 };

  all.sum = block_sum (own.most == -INFINITY ? 0 : own.sum * expf (own.most - all.most), room);
  return all;
}

/* Values that the gradient of a row depends on, besides its logits. */
struct row_loss {
  float lse, share;     /* log-sum-exp; gradient of the loss of this row */
  uint32_t at, element; /* vector that contains the target, and the target's place in it */
};

template <class V>
static __device__ __forceinline__ struct row_loss
row_loss_of (float lse, float share, uint64_t target)
{
  /* the target of a row without one, or on another rank, is a vector beyond the row */
  uint64_t at = target / V::n;
  struct row_loss r = { lse, share, at < UINT32_MAX ? (uint32_t) at : UINT32_MAX,
                        (uint32_t) (target % V::n) };
  return r;
}

/* Replaces vector i of a row by its gradient. */
template <class V>
static __device__ __forceinline__ V
gradient_of (V some, uint32_t i, const struct row_loss &r, float less, int left)
{
  float d[V::n];

  WEFT_UNROLL
  for (int e = 0; e < V::n; e++)
    d[e] = exp_from (to_float (some.at[e]), r.lse) * r.share;
  WEFT_UNROLL
  for (int e = 0; e < V::n && i == r.at; e++)
    d[e] -= (uint32_t) e == r.element ? r.share : 0;
  WEFT_UNROLL
  for (int e = 0; e < V::n && less != 0; e++) {
    float capped = to_float (some.at[e]) * less;
    d[e] *= 1 - capped * capped;
  }
  WEFT_UNROLL
  for (int e = 0; e < V::n; e++)
    set (&some.at[e], e < left ? d[e] : 0);
  return some;
}

/* Gradient of a row, from its log-sum-exp. Each thread has the vectors that see_row() gave it. */
template <class V>
static __device__ __forceinline__ void
put_gradient (V *x, struct copy<V> kept, const struct vocabulary &v, const struct row_loss &r)
{
  const uint32_t n = (uint32_t) (v.columns / V::n), full = (uint32_t) (v.counted / V::n);

  for (uint32_t i = threadIdx.x; i < full; i += blockDim.x)
    x[i] = gradient_of (i < kept.n ? kept.at[i] : x[i], i, r, v.less, V::n);
  for (uint32_t i = full + threadIdx.x; i < n; i += blockDim.x)
    x[i] = gradient_of (i < kept.n ? kept.at[i] : x[i], i, r, v.less,
                        left_in<V> (i, v.counted));
}

/* -------------------------------------------------------------------------- forward */

/* Logit of a row's target if it is among the columns, else 0. */
template <class T>
static __device__ __forceinline__ float
target_logit (const T *x, uint64_t target, struct vocabulary v)
{
  return target < v.columns ? to_float (x[target]) : 0;
}

template <class T, class V>
__global__ void __launch_bounds__ (ROW_THREADS)
row_losses (const T *logits, const int32_t *targets, struct vocabulary v, float *lse, float *losses)
{
  __shared__ float room[32];

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T *x = logits + row * v.columns;
    struct soft none = { -INFINITY, 0 };
    struct soft s = join_threads (see_row ((const V *) x, v, none, true, copy<V>{}), room);
    if (threadIdx.x == 0) {
      lse[row] = s.most + logf (s.sum);
      losses[row] = targets[row] < 0
                        ? 0
                        : lse[row] - target_logit (x, (uint64_t) targets[row] - v.first, v);
    }
  }
}

__global__ void __launch_bounds__ (MOST_THREADS)
add_losses (const float *losses, uint64_t rows, float *loss, bool adds, float *count, bool counts)
{
  __shared__ float room[32];
  float sum = 0;

  for (uint64_t i = threadIdx.x; i < rows; i += blockDim.x)
    sum += losses[i];
  sum = block_sum (sum, room);
  if (threadIdx.x != 0)
    return;
  *loss = adds ? *loss + sum : sum;
  if (count)
    *count = counts ? *count + (float) rows : (float) rows;
}

static struct vocabulary
vocabulary_of (const struct weft_cuda_launch *l, uint64_t whole)
{
  struct vocabulary v = { l->dim[0], l->dim[1], l->dim[1], l->tp.at * l->dim[1],
                          l->model.logit_cap > 0 ? 1 / l->model.logit_cap : 0 };

  if (whole)
    v.counted = v.first >= whole ? 0 : v.columns < whole - v.first ? v.columns : whole - v.first;
  return v;
}

/* Scratch: one loss per row. */
WEFT_CUDA_SCRATCH (xent, s->dim[0] * sizeof (float))
WEFT_CUDA_SCRATCH (xent_grad, s->dim[0] * sizeof (float))
WEFT_CUDA_SCRATCH (xent_end, s->dim[0] * sizeof (float))

/* Whether each row of logits begins at a multiple of sixteen bytes. */
template <class T>
static bool
is_aligned (const struct weft_cuda_launch *l)
{
  return l->dim[1] % pack<T>::n == 0 && begins_at_pack (l->operand[LOGITS].data);
}

/* Launches KERNEL<T, vector> by the alignment of rows. */
#define BY_ROWS(kernel, T, l, threads, shared, ...)                                                \
  if (is_aligned<T> (l))                                                                           \
    WEFT_LAUNCH ((kernel<T, pack<T>>), blocks_for (v.rows, 1, MOST_BLOCKS), threads, shared,       \
                 l->stream, __VA_ARGS__);                                                          \
  else                                                                                             \
    WEFT_LAUNCH ((kernel<T, single<T>>), blocks_for (v.rows, 1, MOST_BLOCKS), threads, shared,     \
                 l->stream, __VA_ARGS__)

template <class T>
static const char *
run (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct vocabulary v = vocabulary_of (l, l->dim[3]);
  float *losses = (float *) l->scratch;

  BY_ROWS (row_losses, T, l, ROW_THREADS, 0,
               (const T *) o[LOGITS].data, (const int32_t *) o[TARGETS].data, v,
               (float *) o[LSE].data, losses);
  WEFT_LAUNCH (add_losses, 1, MOST_THREADS, 0, l->stream, losses, v.rows, (float *) o[LOSS].data,
               (bool) o[LOSS].accumulate, (float *) o[COUNT].data, (bool) o[COUNT].accumulate);
  return launched ();
}

const char *
weft_cuda_xent (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[LOGITS].dtype, run, l);
}

/* -------------------------------------------------------------------- vocabulary parallel */

/* Statistics that ranks exchange: arrays with one float per row, one after the other. */
enum { ALL_MOST, ALL_TARGET, ALL_SUM, N_STATS };
enum { MOST = 1, PART_MOST = 2, PART };
enum { STATS, END_LSE, END_COUNT, END_LOSS, END_TARGETS };

/* A rank's part of the softmax, per row. given: largest logit of the whole row, or NULL. most,
 * target, sum: results; NULL: not computed. */
struct part {
  const float *given;
  float *most, *target, *sum;
};

template <class T, class V>
__global__ void __launch_bounds__ (ROW_THREADS)
row_parts (const T *logits, const int32_t *targets, struct vocabulary v, struct part to)
{
  __shared__ float room[32];

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T *x = logits + row * v.columns;
    float given = to.given ? to.given[row] : -INFINITY;
    struct soft s = { given, 0 };
    s = join_threads (see_row ((const V *) x, v, s, to.sum != NULL, copy<V>{}), room);
    if (s.most > given && to.given) /* the given logit was not the largest */
      s.sum *= expf (s.most - given);
    uint64_t target = targets ? (uint64_t) targets[row] - v.first : v.columns;
    if (threadIdx.x != 0)
      continue;
    if (to.most)
      to.most[row] = s.most;
    if (to.sum)
      to.sum[row] = s.sum;
    if (to.target)
      to.target[row] = target_logit (x, target, v);
  }
}

template <class T>
static const char *
run_parts (const struct weft_cuda_launch *l, const int32_t *targets, struct part to)
{
  struct vocabulary v = vocabulary_of (l, l->dim[3]);

  BY_ROWS (row_parts, T, l, ROW_THREADS, 0, (const T *) l->operand[LOGITS].data, targets, v, to);
  return launched ();
}

const char *
weft_cuda_xent_max (const struct weft_cuda_launch *l)
{
  struct part to = { NULL, (float *) l->operand[MOST].data, NULL, NULL };
  return WEFT_BY_DTYPE (l->operand[LOGITS].dtype, run_parts, l, NULL, to);
}

/* Without a global largest logit, also stores the largest logit that the sum is relative to. */
const char *
weft_cuda_xent_part (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const float *given = (const float *) o[PART_MOST].data;
  float *stats = (float *) o[PART].data, *target = given ? stats : stats + l->dim[0];
  struct part to = { given, given ? NULL : stats, target, target + l->dim[0] };

  return WEFT_BY_DTYPE (o[LOGITS].dtype, run_parts, l, (const int32_t *) o[TARGETS].data, to);
}

__global__ void
join_parts (const float *stats, const int32_t *targets, uint64_t rows, uint64_t parts, float *lse,
            float *losses)
{
  for (WEFT_EACH (row, rows)) {
    float most = -INFINITY, sum = 0, target = 0;
    for (uint64_t i = 0; i < parts; i++)
      most = fmaxf (most, stats[(i * N_STATS + ALL_MOST) * rows + row]);
    for (uint64_t i = 0; i < parts; i++) {
      const float *one = stats + i * N_STATS * rows + row;
      sum += one[ALL_SUM * rows] != 0
                 ? one[ALL_SUM * rows] * expf (one[ALL_MOST * rows] - most)
                 : 0;
      target += one[ALL_TARGET * rows];
    }
    lse[row] = most + logf (sum);
    losses[row] = targets[row] < 0 ? 0 : lse[row] - target;
  }
}

const char *
weft_cuda_xent_end (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t rows = l->dim[0];
  float *losses = (float *) l->scratch;

  WEFT_LAUNCH (join_parts, blocks_for (rows, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               (const float *) o[STATS].data, (const int32_t *) o[END_TARGETS].data, rows,
               l->dim[1], (float *) o[END_LSE].data, losses);
  WEFT_LAUNCH (add_losses, 1, MOST_THREADS, 0, l->stream, losses, rows, (float *) o[END_LOSS].data,
               (bool) o[END_LOSS].accumulate, (float *) o[END_COUNT].data,
               (bool) o[END_COUNT].accumulate);
  return launched ();
}

/* ------------------------------------------------------------------------- backward */

template <class T, class V>
__global__ void __launch_bounds__ (ROW_THREADS)
row_gradients (T *logits, const int32_t *targets, const float *lse, const float *gradient,
               struct vocabulary v, float all)
{
  all *= gradient ? *gradient : 1;

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    V *x = (V *) (logits + row * v.columns);
    float share = targets[row] < 0 ? 0 : all; /* no target (-1): no loss */
    put_gradient (x, copy<V>{}, v,
                  row_loss_of<V> (lse[row], share, (uint64_t) targets[row] - v.first));
  }
}

template <class T>
static const char *
run_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct vocabulary v = vocabulary_of (l, l->dim[3]);

  BY_ROWS (row_gradients, T, l, ROW_THREADS, 0, (T *) o[LOGITS].data,
           (const int32_t *) o[TARGETS].data, (const float *) o[LSE].data,
           (const float *) o[GRADIENT].data, v, l->share);
  return launched ();
}

const char *
weft_cuda_xent_bwd (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[LOGITS].dtype, run_bwd, l);
}

/* ------------------------------------------------------- loss and gradient in one op */

enum { BOTH_COUNT = 2, BOTH_GRADIENT, BOTH_LOSS };

template <class T, class V>
__global__ void __launch_bounds__ (2 * ROW_THREADS)
row_both (T *logits, const int32_t *targets, const float *gradient, struct vocabulary v, float all,
          float *losses, uint64_t n_kept)
{
  WEFT_DYNAMIC_SHARED (V, shared);
  __shared__ float room[32];
  struct copy<V> kept = { shared, n_kept };
  all *= gradient ? *gradient : 1;

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    T *x = logits + row * v.columns;
    uint64_t target = (uint64_t) targets[row] - v.first;
    struct soft none = { -INFINITY, 0 };
    /* reads the logit before put_gradient() overwrites it */
    float hit = threadIdx.x == 0 ? target_logit (x, target, v) : 0;
    struct soft s = join_threads (see_row ((const V *) x, v, none, true, kept), room);
    float lse = s.most + logf (s.sum);
    if (threadIdx.x == 0)
      losses[row] = targets[row] < 0 ? 0 : lse - hit;
    put_gradient ((V *) x, kept, v, row_loss_of<V> (lse, targets[row] < 0 ? 0 : all, target));
  }
}

/* Number of bytes of a row to copy to shared memory. */
static uint64_t
kept_bytes (uint64_t row)
{
  uint64_t has = most_shared (), most = has > ROOM ? (has - ROOM) / 16 * 16 : 0;

  most = most < MOST_KEPT ? most : (uint64_t) MOST_KEPT;
  return row < most ? row : most;
}

/* Requests as much as possible of the memory that shared memory and L1 cache divide: otherwise the
 * driver may choose a division that holds one block where two fit. */
template <class F>
static const char *
prefer_shared (F *kernel)
{
#ifdef WEFT_CUDA_EMULATOR
  (void) kernel;
  return NULL;
#else
  return told (cudaFuncSetAttribute ((const void *) kernel,
                                     cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
#endif
}

template <class T, class V>
static const char *
run_rows (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct vocabulary v = vocabulary_of (l, l->dim[3]);
  uint64_t kept = kept_bytes (v.columns * sizeof (T));
  unsigned threads = kept > SHARED_BY_TWO ? 2 * ROW_THREADS : ROW_THREADS;
  const char *error = allow (row_both<T, V>, kept);

  if (!error)
    error = prefer_shared (row_both<T, V>);
  if (error)
    return error;
  WEFT_LAUNCH ((row_both<T, V>), blocks_for (v.rows, 1, MOST_BLOCKS), threads, kept, l->stream,
               (T *) o[LOGITS].data, (const int32_t *) o[TARGETS].data,
               (const float *) o[BOTH_GRADIENT].data, v, l->share, (float *) l->scratch,
               kept / sizeof (V));
  return launched ();
}

template <class T>
static const char *
run_both (const struct weft_cuda_launch *l)
{
  return is_aligned<T> (l) ? run_rows<T, pack<T>> (l) : run_rows<T, single<T>> (l);
}

const char *
weft_cuda_xent_grad (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const char *error = WEFT_BY_DTYPE (o[LOGITS].dtype, run_both, l);

  if (error)
    return error;
  WEFT_LAUNCH (add_losses, 1, MOST_THREADS, 0, l->stream, (const float *) l->scratch, l->dim[0],
               (float *) o[BOTH_LOSS].data, (bool) o[BOTH_LOSS].accumulate,
               (float *) o[BOTH_COUNT].data, (bool) o[BOTH_COUNT].accumulate);
  return launched ();
}

/* ---------------------------------------------------------------------- loss scale */

static __device__ __forceinline__ float
loss_scale (const struct weft_control *control)
{
  return control->loss_scale > 0 ? (float) control->loss_scale : 1;
}

__global__ void
scale_loss (float *gradient, uint64_t n, const struct weft_control *control)
{
  for (WEFT_EACH (i, n))
    gradient[i] = loss_scale (control);
}

const char *
weft_cuda_scale_loss (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (scale_loss, 1, 32, 0, l->stream, (float *) l->operand[0].data, l->dim[0],
               l->control);
  return launched ();
}

/* As torch._amp_foreach_non_finite_check_and_unscale_; every thread that finds a value that is not
 * finite writes the same flag. */
__global__ void
unscale (struct array grad, float *found, uint64_t n, const struct weft_control *control)
{
  float inverse = 1 / loss_scale (control);

  for (WEFT_EACH (i, n)) {
    float x = get (grad, i);
    if (!(x - x == 0))
      *found = 1;
    put (grad, i, x * inverse);
  }
}

const char *
weft_cuda_unscale (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (unscale, blocks_for (l->dim[0], THREADS, 4096), THREADS, 0, l->stream,
               array_of (&l->operand[0]), (float *) l->operand[1].data, l->dim[0], l->control);
  return launched ();
}
