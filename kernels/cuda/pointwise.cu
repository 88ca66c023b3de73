/* Elementwise kernels: activations, sums, casts, dropout. */
#include "core/exec/control.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/mix.cuh"
#include "kernels/cuda/place.cuh"

enum { THREADS = 256, MOST_BLOCKS = 4096 };

struct plus {
  __device__ float
  operator() (float a, float b) const
  {
    return a + b;
  }
};

/* y = f (a, b); b may be NULL. Aligned arrays are processed in packs of 16 bytes. */
template <class T, class F>
__global__ void
flat (const T *a, const T *b, T *y, uint64_t n, bool packed)
{
  const F f = F ();
  uint64_t packs = packed ? n / pack<T>::n : 0;

  for (WEFT_EACH (p, packs)) {
    pack<T> x = ((const pack<T> *) a)[p], other = b ? ((const pack<T> *) b)[p] : x, to;
    for (int i = 0; i < pack<T>::n; i++)
      set (&to.at[i], f (to_float (x.at[i]), to_float (other.at[i])));
    ((pack<T> *) y)[p] = to;
  }
  for (WEFT_EACH (rest, n - packs * pack<T>::n)) {
    uint64_t i = packs * pack<T>::n + rest;
    set (y + i, f (to_float (a[i]), b ? to_float (b[i]) : 0));
  }
}

static bool
begin_at_packs (const void *a, const void *b, const void *c)
{
  return begins_at_pack (a) && begins_at_pack (b) && begins_at_pack (c);
}

template <class F> struct flat_of {
  template <class T>
  static const char *
  run (const struct weft_cuda_launch *l, const void *a, const void *b, void *y)
  {
    uint64_t n = l->dim[0] * l->dim[1];
    bool packed = begin_at_packs (a, b, y);
    unsigned blocks = blocks_for (n, THREADS * (packed ? pack<T>::n : 1), MOST_BLOCKS);

    WEFT_LAUNCH ((flat<T, F>), blocks, THREADS, 0, l->stream, (const T *) a, (const T *) b, (T *) y,
                 n, packed);
    return launched ();
  }
};

#define FLAT(name, functor, second, to)                                                            \
  const char *weft_cuda_##name (const struct weft_cuda_launch *l)                                  \
  {                                                                                                \
    return WEFT_BY_DTYPE (l->operand[to].dtype, flat_of<functor>::run, l, l->operand[0].data,      \
                          second ? l->operand[1].data : NULL, l->operand[to].data);                \
  }
FLAT (relu, relu, false, 1)
FLAT (relu_bwd, relu_slope, true, 2)
FLAT (relu2, relu2, false, 1)
FLAT (relu2_bwd, relu2_slope, true, 2)
FLAT (add, plus, true, 2)

/* GELU in its tanh form, or by the error function. */
const char *
weft_cuda_gelu (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;

  return l->model.activation == WEFT_GELU_ERF
             ? WEFT_BY_DTYPE (o[1].dtype, flat_of<gelu_erf>::run, l, o[0].data, NULL, o[1].data)
             : WEFT_BY_DTYPE (o[1].dtype, flat_of<gelu>::run, l, o[0].data, NULL, o[1].data);
}

const char *
weft_cuda_gelu_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;

  return l->model.activation == WEFT_GELU_ERF
             ? WEFT_BY_DTYPE (o[2].dtype, flat_of<gelu_erf_slope>::run, l, o[0].data, o[1].data,
                              o[2].data)
             : WEFT_BY_DTYPE (o[2].dtype, flat_of<gelu_slope>::run, l, o[0].data, o[1].data,
                              o[2].data);
}

__global__ void
softcap (struct array x, uint64_t n, float cap)
{
  for (WEFT_EACH (i, n))
    put (x, i, cap * tanhf (get (x, i) / cap));
}

const char *
weft_cuda_softcap (const struct weft_cuda_launch *l)
{
  uint64_t n = l->dim[0] * l->dim[1];

  WEFT_LAUNCH (softcap, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[0]), n, l->model.logit_cap);
  return launched ();
}

/* ----------------------------------------------------------------- gates: swiglu, geglu */

/* The grid's y dimension runs over rows, which saves a division per element. */
#define EACH_ROW(row, n) uint64_t row = blockIdx.y; row < (n); row += gridDim.y
#define EACH_COLUMN(i, n)                                                                          \
  uint64_t i = (uint64_t) blockIdx.x * blockDim.x + threadIdx.x; i < (n);                          \
  i += (uint64_t) blockDim.x * gridDim.x

static dim3
grid_of_rows (uint64_t rows, uint64_t columns)
{
  return dim3 (blocks_for (columns, THREADS, MOST_BLOCKS), blocks_for (rows, 1, MOST_IN_Y));
}

/* P: pack type, whose elements are read together; `columns` counts packs. */
template <class G, class P>
__global__ void
swiglu (const P *gate_up, P *y, uint64_t rows, uint64_t columns)
{
  for (EACH_ROW (row, rows))
    for (EACH_COLUMN (i, columns)) {
      const P *from = gate_up + row * 2 * columns + i;
      P gate = from[0], up = from[columns], to;
      for (int j = 0; j < P::n; j++)
        set (&to.at[j], G::value (to_float (gate.at[j]), to_float (up.at[j])));
      y[row * columns + i] = to;
    }
}

template <class G, class P>
__global__ void
swiglu_slope (const P *gate_up, const P *dy, P *dgate_up, uint64_t rows, uint64_t columns)
{
  for (EACH_ROW (row, rows))
    for (EACH_COLUMN (i, columns)) {
      uint64_t at = row * 2 * columns + i;
      P gate = gate_up[at], up = gate_up[at + columns], d = dy[row * columns + i], dgate, dup;
      for (int j = 0; j < P::n; j++) {
        struct gate_and_up to =
            G::slopes (to_float (gate.at[j]), to_float (up.at[j]), to_float (d.at[j]));
        set (&dgate.at[j], to.gate);
        set (&dup.at[j], to.up);
      }
      dgate_up[at] = dgate;
      dgate_up[at + columns] = dup;
    }
}

/* Launches the backward kernel, or, if dy is NULL, the forward kernel. */
template <class G, class P>
static const char *
launch_swiglu (const struct weft_cuda_launch *l, const void *dy, void *to)
{
  uint64_t rows = l->dim[0], columns = l->dim[1] / P::n;
  const P *x = (const P *) l->operand[0].data;
  dim3 grid = grid_of_rows (rows, columns);

  if (dy)
    WEFT_LAUNCH ((swiglu_slope<G, P>), grid, THREADS, 0, l->stream, x, (const P *) dy, (P *) to,
                 rows, columns);
  else
    WEFT_LAUNCH ((swiglu<G, P>), grid, THREADS, 0, l->stream, x, (P *) to, rows, columns);
  return launched ();
}

template <class G> struct swiglu_of {
  template <class T>
  static const char *
  run (const struct weft_cuda_launch *l, const void *dy, void *to)
  {
    bool packed = l->dim[1] % pack<T>::n == 0 && begin_at_packs (l->operand[0].data, dy, to);

    return packed ? launch_swiglu<G, pack<T>> (l, dy, to) : launch_swiglu<G, single<T>> (l, dy, to);
  }
};

static const char *
run_gate (const struct weft_cuda_launch *l, uint8_t dtype, const void *dy, void *to)
{
  return l->model.activation == WEFT_GEGLU
             ? WEFT_BY_DTYPE (dtype, swiglu_of<gelu_gate>::run, l, dy, to)
             : WEFT_BY_DTYPE (dtype, swiglu_of<silu_gate>::run, l, dy, to);
}

const char *
weft_cuda_swiglu (const struct weft_cuda_launch *l)
{
  return run_gate (l, l->operand[1].dtype, NULL, l->operand[1].data);
}

const char *
weft_cuda_swiglu_bwd (const struct weft_cuda_launch *l)
{
  return run_gate (l, l->operand[2].dtype, l->operand[1].data, l->operand[2].data);
}

/* ---------------------------------------------------------------- arrays of any type */

__global__ void
grad_add (struct array main, struct array grad, uint64_t n)
{
  for (WEFT_EACH (i, n))
    put (main, i, get (main, i) + get (grad, i));
}

const char *
weft_cuda_grad_add (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (grad_add, blocks_for (l->dim[0], THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[0]), array_of (&l->operand[1]), l->dim[0]);
  return launched ();
}

__global__ void
scale (struct array x, const float *count, float divisor, uint64_t n)
{
  float by = count ? fmaxf (*count, 1) : divisor;

  for (WEFT_EACH (i, n))
    put (x, i, get (x, i) / by);
}

const char *
weft_cuda_scale (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (scale, blocks_for (l->dim[0], THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[0]), (const float *) l->operand[1].data,
               (float) l->dim[2] / (float) (l->dim[3] ? l->dim[3] : 1), l->dim[0]);
  return launched ();
}

__global__ void
cast (struct array x, struct array y, float divisor, uint64_t n)
{
  for (WEFT_EACH (i, n))
    put (y, i, divisor > 1 ? get (x, i) / divisor : get (x, i));
}

const char *
weft_cuda_cast (const struct weft_cuda_launch *l)
{
  WEFT_LAUNCH (cast, blocks_for (l->dim[0], THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               array_of (&l->operand[0]), array_of (&l->operand[1]), (float) l->dim[2], l->dim[0]);
  return launched ();
}

__global__ void
clear (uint8_t *x, uint64_t bytes)
{
  uint64_t words = ((uintptr_t) x & 15) == 0 ? bytes / 16 : 0;
  const uint4 nothing = { 0, 0, 0, 0 };

  for (WEFT_EACH (i, words))
    ((uint4 *) x)[i] = nothing;
  for (WEFT_EACH (rest, bytes - words * 16))
    x[words * 16 + rest] = 0;
}

static const uint8_t dtype_bytes[] = { 4, 2, 2, 1, 4, 8, 1, 1 }; /* WEFT_DTYPE_LIST */

const char *
weft_cuda_zero (const struct weft_cuda_launch *l)
{
  uint64_t bytes = l->operand[0].n * dtype_bytes[l->operand[0].dtype];

  WEFT_LAUNCH (clear, blocks_for (bytes, THREADS * 16, MOST_BLOCKS), THREADS, 0, l->stream,
               (uint8_t *) l->operand[0].data, bytes);
  return launched ();
}

/* ------------------------------------------------------------ adding a row to each row */

/* y = this rank's rows of x, plus a bias or the rows of the position table. */
struct added_rows {
  uint64_t rows, columns, first;
  /* position embedding: number of tokens of a sequence on this rank; 0: one bias row for all
   * rows */
  uint64_t sequence;
  uint64_t offset;   /* number of first rows of the position table that no token uses */
  struct weft_cuda_spot cp;
};

__global__ void
add_rows (struct array x, struct array added, struct array y, struct added_rows a)
{
  for (WEFT_EACH (i, a.rows * a.columns)) {
    uint64_t row = a.first + i / a.columns, column = i % a.columns;
    uint64_t place = a.sequence ? position_of (a.cp, a.sequence, row % a.sequence) : 0;
    uint64_t other = place + a.offset;
    put (y, i, get (x, row * a.columns + column) + get (added, other * a.columns + column));
  }
}

static const char *
run_add_rows (const struct weft_cuda_launch *l, struct added_rows a)
{
  a.columns = l->dim[1];
  WEFT_LAUNCH (add_rows, blocks_for (a.rows * a.columns, THREADS, MOST_BLOCKS), THREADS, 0,
               l->stream, array_of (&l->operand[0]), array_of (&l->operand[1]),
               array_of (&l->operand[2]), a);
  return launched ();
}

const char *
weft_cuda_bias (const struct weft_cuda_launch *l)
{
  struct added_rows a = {};

  a.rows = l->dim[0];
  return run_add_rows (l, a);
}

/* y = a + (x + bias), with the inner sum rounded as if it were stored. */
template <class T>
__global__ void
bias_add (const T *x, struct array bias, const T *a, T *y, uint64_t n, uint64_t columns)
{
  for (WEFT_EACH (i, n)) {
    T biased;
    set (&biased, to_float (x[i]) + get (bias, i % columns));
    set (&y[i], to_float (a[i]) + to_float (biased));
  }
}

template <class T>
static const char *
run_bias_add (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t n = l->dim[0] * l->dim[1];

  WEFT_LAUNCH (bias_add<T>, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               (const T *) o[0].data, array_of (&o[1]), (const T *) o[2].data, (T *) o[3].data, n,
               l->dim[1]);
  return launched ();
}

const char *
weft_cuda_bias_add (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[3].dtype, run_bias_add, l);
}

const char *
weft_cuda_add_positions (const struct weft_cuda_launch *l)
{
  struct added_rows a = {};

  a.rows = l->dim[0] / l->dim[2];
  a.first = l->dim[2] > 1 ? l->tp.at * a.rows : 0;
  a.sequence = l->model.sequence;
  a.offset = l->model.position_offset;
  a.cp = l->cp;
  return run_add_rows (l, a);
}

/* ---------------------------------------------------------------------------- dropout */

/* The mask of kernels/dropout.h, with the same random numbers. */
enum { DROP_ROWS, DROP_TOKENS, DROP_COLUMNS, DROP_SITE, DROP_DROP, PROBABILITIES = 1 };

struct drop {
  uint64_t dim[5];
  struct weft_cuda_spot tp, cp;
  /* number of tokens of a sequence on this rank; number in the whole sequence; number of heads of
   * all ranks */
  uint64_t sequence, whole, heads;
  uint64_t first;                  /* index in the global batch of the first sequence */
  uint32_t layer;
};

/* The operands: bias is added before dropout, add after it; both may have no data. */
struct dropped {
  struct array bias, add, x, y;
  uint8_t *mask;
};

static __device__ __forceinline__ uint64_t
number_of (const struct drop &d, uint64_t row)
{
  if (d.dim[DROP_SITE] == PROBABILITIES) {
    uint64_t heads = d.dim[DROP_ROWS] / d.dim[DROP_TOKENS], strip = row / d.whole;
    uint64_t head = d.tp.at * heads + strip % heads;
    return ((d.first + strip / heads) * d.heads + head) * d.whole + row % d.whole;
  }
  uint64_t token = row + (d.dim[DROP_ROWS] < d.dim[DROP_TOKENS] ? d.tp.at * d.dim[DROP_ROWS] : 0);
  return (d.first + token / d.sequence) * d.whole +
         position_of (d.cp, d.sequence, token % d.sequence);
}

static __device__ __forceinline__ float
rounded (float x, uint32_t dtype)
{
  return dtype == WEFT_BF16   ? BF16_FLOAT (FLOAT_BF16 (x))
         : dtype == WEFT_FP16 ? FP16_FLOAT (FLOAT_FP16 (x))
                              : x;
}

/* Generates the mask, or reads it if `read`. A sum with the bias is rounded to the type of y. */
__global__ void
dropout (const struct weft_control *control, struct dropped o, struct drop d, bool read)
{
  uint64_t drop = control->forward_only ? 0 : d.dim[DROP_DROP], columns = d.dim[DROP_COLUMNS];
  uint64_t key = mix (mix (mix (control->seed) ^ control->step) ^
                      ((uint64_t) d.layer << 8 | d.dim[DROP_SITE]));
  float grow = (float) (4294967296.0 / (4294967296.0 - (double) drop));

  for (WEFT_EACH (i, d.dim[DROP_ROWS] * columns)) {
    uint64_t number = columns * number_of (d, i / columns) + i % columns;
    uint8_t keeps = read ? o.mask[i] : mix_bits (key + number * WEFT_MIX_STEP) >> 32 >= drop;
    float x = get (o.x, i);
    if (o.bias.data)
      x = rounded (x + get (o.bias, i % columns), o.y.dtype);
    float kept = keeps ? x * grow : 0;
    if (!read)
      o.mask[i] = keeps;
    put (o.y, i, o.add.data ? get (o.add, i) + kept : kept);
  }
}

static const char *
run_dropout (const struct weft_cuda_launch *l, const struct dropped &o, bool read)
{
  struct drop d = {};

  for (int i = 0; i < 5; i++)
    d.dim[i] = l->dim[i];
  d.tp = l->tp;
  d.cp = l->cp;
  d.sequence = l->model.sequence;
  d.whole = l->model.whole;
  d.heads = l->model.all_heads;
  d.first = (uint64_t) l->sequence;
  d.layer = l->layer;
  WEFT_LAUNCH (dropout, blocks_for (d.dim[DROP_ROWS] * d.dim[DROP_COLUMNS], THREADS, MOST_BLOCKS),
               THREADS, 0, l->stream, l->control, o, d, read);
  return launched ();
}

/* The operands with these numbers; a number below 0: no such operand. */
static struct dropped
dropped_of (const struct weft_cuda_launch *l, int bias, int add, const int (&of)[3])
{
  const struct array none = { NULL, WEFT_FP32 };
  const struct weft_cuda_operand *o = l->operand;
  struct dropped d = { bias < 0 ? none : array_of (&o[bias]), add < 0 ? none : array_of (&o[add]),
                       array_of (&o[of[0]]), array_of (&o[of[1]]), (uint8_t *) o[of[2]].data };

  return d;
}

const char *
weft_cuda_dropout (const struct weft_cuda_launch *l)
{
  return run_dropout (l, dropped_of (l, -1, -1, { 0, 1, 2 }), false);
}

const char *
weft_cuda_dropout_add (const struct weft_cuda_launch *l)
{
  return run_dropout (l, dropped_of (l, -1, 0, { 1, 2, 3 }), false);
}

const char *
weft_cuda_bias_dropout_add (const struct weft_cuda_launch *l)
{
  return run_dropout (l, dropped_of (l, 1, 2, { 0, 3, 4 }), false);
}

const char *
weft_cuda_dropout_bwd (const struct weft_cuda_launch *l)
{
  return run_dropout (l, dropped_of (l, -1, -1, { 0, 2, 1 }), true);
}
