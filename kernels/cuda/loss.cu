/* Cross entropy: one pass over a row of logits for its largest and the sum of exponentials, and the
 * gradient in the logits' place.  Losses of rows are added by one block, in an order of their own
 * number.  Columns past the vocabulary, which pad it, do not count. */
#include "core/exec/control.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, MOST_BLOCKS = 1 << 20 };
enum { LOGITS, TARGETS, LSE, COUNT, LOSS };
enum { GRADIENT = 3 };

struct vocabulary {
  uint64_t rows, columns, counted; /* columns of a row; those that count */
  uint64_t first;                  /* the word of the first column */
};

/* Largest and sum of exponentials against it, of what has been seen. */
struct soft {
  float most, sum;
};

static __device__ __forceinline__ void
see (struct soft *s, float x)
{
  float most = fmaxf (s->most, x);

  if (most == -INFINITY)
    return;
  s->sum = s->sum * expf (s->most - most) + expf (x - most);
  s->most = most;
}

/* -------------------------------------------------------------------------- forward */

template <class T>
__global__ void
row_losses (const T *logits, const int32_t *targets, struct vocabulary v, float *lse, float *losses)
{
  __shared__ float room[32];

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T *x = logits + row * v.columns;
    struct soft s = { -INFINITY, 0 };
    for (uint64_t i = threadIdx.x; i < v.counted; i += blockDim.x)
      see (&s, to_float (x[i]));
    float most = block_most (s.most, room);
    float sum = block_sum (s.most == -INFINITY ? 0 : s.sum * expf (s.most - most), room);
    uint64_t target = (uint64_t) targets[row] - v.first;
    if (threadIdx.x == 0) {
      lse[row] = most + logf (sum);
      losses[row] = targets[row] < 0 ? 0 : lse[row] - (target < v.columns ? to_float (x[target]) : 0);
    }
  }
}

__global__ void
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
  struct vocabulary v = { l->dim[0], l->dim[1], l->dim[1], l->tp.at * l->dim[1] };

  if (whole)
    v.counted = v.first >= whole ? 0 : v.columns < whole - v.first ? v.columns : whole - v.first;
  return v;
}

/* Scratch: a loss for each row. */
uint64_t
weft_cuda_scratch_xent (uint64_t rows)
{
  return rows * sizeof (float);
}

template <class T>
static const char *
run (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct vocabulary v = vocabulary_of (l, l->dim[3]);
  float *losses = (float *) l->scratch;

  WEFT_LAUNCH ((row_losses<T>), blocks_for (v.rows, 1, MOST_BLOCKS), THREADS, 0, l->stream,
               (const T *) o[LOGITS].data, (const int32_t *) o[TARGETS].data, v,
               (float *) o[LSE].data, losses);
  WEFT_LAUNCH (add_losses, 1, 1024, 0, l->stream, losses, v.rows, (float *) o[LOSS].data,
               (bool) o[LOSS].accumulate, (float *) o[COUNT].data, (bool) o[COUNT].accumulate);
  return launched ();
}

const char *
weft_cuda_xent (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[LOGITS].dtype, run, l);
}

/* ------------------------------------------------- ranks that have part of the vocabulary */

/* What ranks tell each other of each row: arrays of a float for each, one after the other. */
enum { ALL_MOST, ALL_TARGET, ALL_SUM, N_STATS };
enum { MOST = 1, PART_MOST = 2, PART };
enum { STATS, END_LSE, END_COUNT, END_LOSS, END_TARGETS };

/* Where the parts of a row's softmax go; NULL: not wanted, or for `given` not known. */
struct part {
  const float *given;
  float *most, *target, *sum;
};

template <class T>
__global__ void
row_parts (const T *logits, const int32_t *targets, struct vocabulary v, struct part to)
{
  __shared__ float room[32];

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    const T *x = logits + row * v.columns;
    struct soft s = { -INFINITY, 0 };
    for (uint64_t i = threadIdx.x; i < v.counted; i += blockDim.x)
      see (&s, to_float (x[i]));
    float own = block_most (s.most, room), most = to.given ? to.given[row] : own;
    float sum = block_sum (s.most == -INFINITY ? 0 : s.sum * expf (s.most - most), room);
    uint64_t target = targets ? (uint64_t) targets[row] - v.first : v.columns;
    if (threadIdx.x != 0)
      continue;
    if (to.most)
      to.most[row] = most;
    if (to.sum)
      to.sum[row] = sum;
    if (to.target)
      to.target[row] = target < v.columns ? to_float (x[target]) : 0;
  }
}

template <class T>
static const char *
run_parts (const struct weft_cuda_launch *l, const int32_t *targets, struct part to)
{
  struct vocabulary v = vocabulary_of (l, l->dim[3]);

  WEFT_LAUNCH ((row_parts<T>), blocks_for (v.rows, 1, MOST_BLOCKS), THREADS, 0, l->stream,
               (const T *) l->operand[LOGITS].data, targets, v, to);
  return launched ();
}

const char *
weft_cuda_xent_max (const struct weft_cuda_launch *l)
{
  struct part to = { NULL, (float *) l->operand[MOST].data, NULL, NULL };
  return WEFT_BY_DTYPE (l->operand[LOGITS].dtype, run_parts, l, NULL, to);
}

/* Without the largest of all, each rank says what its sum is taken against. */
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
               (const float *) o[STATS].data, (const int32_t *) o[END_TARGETS].data, rows, l->dim[1],
               (float *) o[END_LSE].data, losses);
  WEFT_LAUNCH (add_losses, 1, 1024, 0, l->stream, losses, rows, (float *) o[END_LOSS].data,
               (bool) o[END_LOSS].accumulate, (float *) o[END_COUNT].data,
               (bool) o[END_COUNT].accumulate);
  return launched ();
}

/* ------------------------------------------------------------------------- backward */

template <class T>
__global__ void
row_gradients (T *logits, const int32_t *targets, const float *lse, const float *gradient,
               struct vocabulary v, float all)
{
  all *= gradient ? *gradient : 1;

  for (uint64_t row = blockIdx.x; row < v.rows; row += gridDim.x) {
    T *x = logits + row * v.columns;
    uint64_t target = (uint64_t) targets[row] - v.first;
    float share = targets[row] < 0 ? 0 : all; /* a token without a target adds nothing */
    for (uint64_t i = threadIdx.x; i < v.columns; i += blockDim.x) {
      float p = i < v.counted ? expf (to_float (x[i]) - lse[row]) : 0;
      set (x + i, i < v.counted ? (p - (i == target ? 1.0f : 0.0f)) * share : 0);
    }
  }
}

template <class T>
static const char *
run_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct vocabulary v = vocabulary_of (l, l->dim[3]);

  WEFT_LAUNCH ((row_gradients<T>), blocks_for (v.rows, 1, MOST_BLOCKS), THREADS, 0, l->stream,
               (T *) o[LOGITS].data, (const int32_t *) o[TARGETS].data, (const float *) o[LSE].data,
               (const float *) o[GRADIENT].data, v, l->share);
  return launched ();
}

const char *
weft_cuda_xent_bwd (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[LOGITS].dtype, run_bwd, l);
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
  WEFT_LAUNCH (scale_loss, 1, 32, 0, l->stream, (float *) l->operand[0].data, l->dim[0], l->control);
  return launched ();
}

/* As torch._amp_foreach_non_finite_check_and_unscale_: whoever finds one that is not finite says so,
 * and all say the same. */
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
