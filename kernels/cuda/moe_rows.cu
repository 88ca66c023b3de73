/* MoE rows: dispatch to expert order and combine, regrouping by source, scaling by router weights
 * (kernels/moe_rows.c, moe_act.c and gate.c define the results). */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/moe.cuh"

enum { THREADS = 256, MOST_BLOCKS = 8192, WARPS = THREADS / 32 };

/* N elements that are read at once. */
template <class T, int N> struct alignas (sizeof (T) * N) some {
  static const int n = N;
  T at[N];
};

static bool
begin_at_packs (const struct weft_cuda_operand *o, unsigned n)
{
  uintptr_t at = 0;

  for (unsigned i = 0; i < n; i++)
    at |= (uintptr_t) o[i].data;
  return at % 16 == 0;
}

/* Calls FUNCTION<T, N> (...) with sixteen bytes per access if rows and arrays are aligned. */
#define RUN_BY_PACKS(dtype, packed, FUNCTION, ...)                                                 \
  ((dtype) == WEFT_FP32                                                                            \
       ? ((packed) ? FUNCTION<float, 4> (__VA_ARGS__) : FUNCTION<float, 1> (__VA_ARGS__))          \
   : (dtype) == WEFT_BF16                                                                          \
       ? ((packed) ? FUNCTION<bf16, 8> (__VA_ARGS__) : FUNCTION<bf16, 1> (__VA_ARGS__))            \
       : ((packed) ? FUNCTION<fp16, 8> (__VA_ARGS__) : FUNCTION<fp16, 1> (__VA_ARGS__)))

/* Whether the rows of the first n operands consist of whole packs. */
static bool
is_packed (const struct weft_cuda_launch *l, unsigned n, uint64_t columns, uint32_t dtype)
{
  return columns % (dtype == WEFT_FP32 ? 4 : 8) == 0 && begin_at_packs (l->operand, n);
}

/* ------------------------------------------------------------- dispatch and combine */

enum { X, ROW };
enum { PERMUTE_Y = 2 };
enum { UNPERMUTE_CHOICE = 2, UNPERMUTE_Y };
enum { TOKENS, COLUMNS, EACH, ROWS };

/* Bytes of scratch: the token of each row. */
WEFT_CUDA_SCRATCH (moe_permute, s->dim[ROWS] * sizeof (int32_t))

__global__ void
nobody (int32_t *from, uint64_t rows)
{
  for (WEFT_EACH (i, rows))
    from[i] = -1;
}

__global__ void
somebody (const int32_t *row, uint64_t n, uint64_t each, int32_t *from)
{
  for (WEFT_EACH (i, n))
    if (row[i] >= 0)
      from[row[i]] = (int32_t) (i / each);
}

/* Copies the token of each row. Rows without a token become 0. */
template <class P>
__global__ void
permute (const P *x, const int32_t *from, P *y, uint64_t rows, uint64_t columns)
{
  for (WEFT_EACH (i, rows * columns)) {
    int32_t token = from[i / columns];
    P value = {};
    if (token >= 0)
      value = x[(uint64_t) token * columns + i % columns];
    y[i] = value;
  }
}

template <class T, int N>
static const char *
run_permute (const struct weft_cuda_launch *l)
{
  typedef some<T, N> P;
  const struct weft_cuda_operand *o = l->operand;
  uint64_t columns = l->dim[COLUMNS] / N, rows = l->dim[ROWS], n = l->dim[TOKENS] * l->dim[EACH];
  int32_t *from = (int32_t *) l->scratch;

  WEFT_LAUNCH (nobody, blocks_for (rows, THREADS, MOST_BLOCKS), THREADS, 0, l->stream, from, rows);
  WEFT_LAUNCH (somebody, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               (const int32_t *) o[ROW].data, n, l->dim[EACH], from);
  WEFT_LAUNCH (permute<P>, blocks_for (rows * columns, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               (const P *) o[X].data, from, (P *) o[PERMUTE_Y].data, rows, columns);
  return launched ();
}

const char *
weft_cuda_moe_permute (const struct weft_cuda_launch *l)
{
  uint32_t dtype = l->operand[X].dtype;
  bool packed = is_packed (l, 3, l->dim[COLUMNS], dtype);

  return RUN_BY_PACKS (dtype, packed, run_permute, l);
}

/* Adds the rows of a token in the order of its experts. */
template <class P>
__global__ void
unpermute (const P *x, const int32_t *row, P *y, uint64_t tokens, uint64_t columns, uint64_t each)
{
  for (WEFT_EACH (i, tokens * columns)) {
    const int32_t *of = row + i / columns * each;
    float sum[P::n] = {};
    P to;
    for (uint64_t e = 0; e < each; e++) {
      if (of[e] < 0)
        continue;
      P value = x[(uint64_t) of[e] * columns + i % columns];
      for (int j = 0; j < P::n; j++)
        sum[j] += to_float (value.at[j]);
    }
    for (int j = 0; j < P::n; j++)
      set (&to.at[j], sum[j]);
    y[i] = to;
  }
}

template <class T, int N>
static const char *
run_unpermute (const struct weft_cuda_launch *l)
{
  typedef some<T, N> P;
  const struct weft_cuda_operand *o = l->operand;
  uint64_t columns = l->dim[COLUMNS] / N, tokens = l->dim[TOKENS];

  WEFT_LAUNCH (unpermute<P>, blocks_for (tokens * columns, THREADS, MOST_BLOCKS), THREADS, 0,
               l->stream, (const P *) o[X].data, (const int32_t *) o[ROW].data,
               (P *) o[UNPERMUTE_Y].data, tokens, columns, l->dim[EACH]);
  return launched ();
}

const char *
weft_cuda_moe_unpermute (const struct weft_cuda_launch *l)
{
  uint32_t dtype = l->operand[X].dtype;
  bool packed = is_packed (l, 4, l->dim[COLUMNS], dtype);

  return RUN_BY_PACKS (dtype, packed, run_unpermute, l);
}

/* --------------------------------------------- regrouping by source and by expert */

enum { GROUP_COUNTS, GROUP_X, GROUP_Y };
enum { GROUP_COLUMNS = 1, GROUP_EXPERTS, GROUP_SOURCES, GROUP_STRIDE, GROUP_INNER };

/* Blocks of rows, one per expert and source. They have two orders: experts outermost, and the order
 * in which they are received from the sources. */
struct blocks {
  uint64_t experts, sources, outer, stride, leaves;
  const int64_t *counts;
};

/* Index, in the order with experts outermost, of the block that is received i-th. */
static __device__ __forceinline__ uint64_t
coming (const struct blocks &b, uint64_t i)
{
  uint64_t source = i / b.experts, inner = b.sources / b.outer;

  return i % b.experts * b.sources + source % b.outer * inner + source / b.outer;
}

struct block_size {
  struct blocks b;
  bool comes;

  __device__ uint64_t
  operator() (uint64_t i) const
  {
    uint64_t block = comes ? coming (b, i) : i;
    return b.stride ? b.stride : count_of (b.counts + block * b.leaves, b.leaves);
  }
};

/* First row of each block in both orders. */
__global__ void
find_blocks (struct blocks b, uint64_t *by_expert, uint64_t *comes)
{
  uint64_t n = b.experts * b.sources;
  struct block_size size = { b, blockIdx.x == 1 };

  scan_by_warp (size, n, blockIdx.x == 1 ? comes : by_expert);
}

/* Writes the rows of y in order, block by block; x has the blocks in the other order. */
template <class P>
__global__ void
regroup (struct blocks b, const uint64_t *by_expert, const uint64_t *comes, const P *x, P *y,
         uint64_t columns, bool to_experts)
{
  uint64_t n = b.experts * b.sources, rows = by_expert[n], lane = threadIdx.x % 32;
  uint64_t row = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32;

  /* Finds the row of x for each row of y. With to_experts, the place of a block in the order
   * received follows from its source and its expert. */
  for (; row < rows; row += (uint64_t) gridDim.x * WARPS) {
    uint64_t from;
    if (to_experts) {
      uint64_t block = block_of (by_expert, n, row), source = block % b.sources;
      uint64_t inner = b.sources / b.outer, place = source % inner * b.outer + source / inner;
      from = comes[place * b.experts + block / b.sources] + row - by_expert[block];
    } else {
      uint64_t at = block_of (comes, n, row);
      from = by_expert[coming (b, at)] + row - comes[at];
    }
    for (uint64_t c = lane; c < columns; c += 32)
      y[row * columns + c] = x[from * columns + c];
  }
}

/* Bytes of scratch: for the first row of each block, in both orders. */
static uint64_t
group_bytes (uint64_t experts, uint64_t sources)
{
  return 2 * (experts * sources + 1) * sizeof (uint64_t);
}

WEFT_CUDA_SCRATCH (moe_group, group_bytes (s->dim[GROUP_EXPERTS], s->dim[GROUP_SOURCES]))
WEFT_CUDA_SCRATCH (moe_ungroup, group_bytes (s->dim[GROUP_EXPERTS], s->dim[GROUP_SOURCES]))

template <class T, int N>
static const char *
run_regroup (const struct weft_cuda_launch *l, bool to_experts)
{
  typedef some<T, N> P;
  const struct weft_cuda_operand *o = l->operand;
  const uint64_t *dim = l->dim;
  uint64_t n = dim[GROUP_EXPERTS] * dim[GROUP_SOURCES], inner = dim[GROUP_INNER];
  struct blocks b = { dim[GROUP_EXPERTS], dim[GROUP_SOURCES],
                      dim[GROUP_SOURCES] / (inner ? inner : 1), dim[GROUP_STRIDE],
                      o[GROUP_COUNTS].n / n, (const int64_t *) o[GROUP_COUNTS].data };
  uint64_t *by_expert = (uint64_t *) l->scratch, *comes = by_expert + n + 1;
  uint64_t columns = dim[GROUP_COLUMNS], most = o[GROUP_Y].n / columns;

  WEFT_LAUNCH (find_blocks, 2, 32, 0, l->stream, b, by_expert, comes);
  WEFT_LAUNCH (regroup<P>, blocks_for (most, WARPS, MOST_BLOCKS), THREADS, 0, l->stream, b,
               by_expert, comes, (const P *) o[GROUP_X].data, (P *) o[GROUP_Y].data, columns / N,
               to_experts);
  return launched ();
}

static const char *
group (const struct weft_cuda_launch *l, bool to_experts)
{
  uint32_t dtype = l->operand[GROUP_X].dtype;
  bool packed = is_packed (l, 3, l->dim[GROUP_COLUMNS], dtype);

  return RUN_BY_PACKS (dtype, packed, run_regroup, l, to_experts);
}

const char *
weft_cuda_moe_group (const struct weft_cuda_launch *l)
{
  return group (l, true);
}

const char *
weft_cuda_moe_ungroup (const struct weft_cuda_launch *l)
{
  return group (l, false);
}

__global__ void
turn (const int64_t *x, int64_t *y, uint64_t a, uint64_t b, uint64_t leaves)
{
  for (WEFT_EACH (i, a * b * leaves)) {
    uint64_t leaf = i % leaves, row = i / leaves / b, column = i / leaves % b;
    y[(column * a + row) * leaves + leaf] = x[i];
  }
}

const char *
weft_cuda_moe_turn (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const uint64_t *dim = l->dim;

  WEFT_LAUNCH (turn, blocks_for (dim[0] * dim[1] * dim[2], THREADS, MOST_BLOCKS), THREADS, 0,
               l->stream, (const int64_t *) o[0].data, (int64_t *) o[1].data, dim[0], dim[1],
               dim[2]);
  return launched ();
}

/* -------------------------------------------------------------------- router weights */

/* Number of rows that contain a token or padding. */
struct used_rows {
  const int64_t *counts; /* NULL: all */
  uint64_t n, rows;
};

static __device__ uint64_t
number_of (const struct used_rows &u)
{
  __shared__ uint64_t room[WARPS];
  uint64_t sum = 0;

  if (!u.counts)
    return u.rows;
  for (uint64_t i = threadIdx.x; i < u.n; i += THREADS)
    sum += (uint64_t) u.counts[i];
  for (unsigned mask = 16; mask; mask /= 2)
    sum += __shfl_xor_sync (~0u, sum, mask);
  if (threadIdx.x % 32 == 0)
    room[threadIdx.x / 32] = sum;
  __syncthreads ();
  sum = 0;
  for (unsigned warp = 0; warp < WARPS; warp++)
    sum += room[warp];
  return sum < u.rows ? sum : u.rows;
}

static struct used_rows
used_rows_of (const struct weft_cuda_operand *counts, uint64_t rows, uint64_t stride)
{
  struct used_rows u = { stride ? NULL : (const int64_t *) counts->data, counts->n, rows };

  return u;
}

/* Factor of a row: the given number, or its logistic function. *slope: derivative of that function,
 * or 1. */
static __device__ __forceinline__ float
factor_of (struct array by, uint64_t row, bool gates, float *slope)
{
  float given = by.data ? get (by, row) : 1, yes = logistic (given);

  *slope = gates ? yes * (1 - yes) : 1;
  return gates ? yes : given;
}

template <class P>
__global__ void
weigh (struct used_rows used, const P *x, struct array by, P *y, uint64_t columns, bool gates)
{
  uint64_t rows = number_of (used);

  for (WEFT_EACH (i, rows * columns)) {
    float slope, factor = factor_of (by, i / columns, gates, &slope);
    P value = x[i];
    for (int j = 0; j < P::n; j++)
      set (&value.at[j], to_float (value.at[j]) * factor);
    y[i] = value;
  }
}

/* Operands of weigh_bwd(), which uses one warp per row. */
template <class P> struct weight_gradient {
  const P *x, *dy;
  struct array by, dby;
  P *dx;
  uint64_t columns;
  bool gates;
};

template <class P>
__global__ void
weigh_bwd (struct used_rows used, weight_gradient<P> w)
{
  uint64_t rows = number_of (used), lane = threadIdx.x % 32;
  uint64_t row = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32;

  for (; row < rows; row += (uint64_t) gridDim.x * WARPS) {
    float slope, factor = factor_of (w.by, row, w.gates, &slope), sum = 0;
    for (uint64_t c = lane; c < w.columns; c += 32) {
      P x = w.x[row * w.columns + c], dy = w.dy[row * w.columns + c];
      for (int j = 0; j < P::n; j++) {
        float d = to_float (dy.at[j]);
        sum += d * to_float (x.at[j]);
        set (&dy.at[j], d * factor);
      }
      w.dx[row * w.columns + c] = dy;
    }
    sum = warp_sum (sum);
    if (lane == 0)
      put (w.dby, row, sum * slope);
  }
}

/* gates TRUE: operands of gate; FALSE: operands of moe_weigh, which also has counts. */
template <class T, int N>
static const char *
run_weigh (const struct weft_cuda_launch *l, bool gates)
{
  typedef some<T, N> P;
  const struct weft_cuda_operand *o = l->operand, *y = o + (gates ? 2 : 3);
  uint64_t rows = o[0].n / l->dim[1], columns = l->dim[1] / N;
  struct used_rows used = used_rows_of (&o[2], rows, gates ? 1 : l->dim[3]);

  WEFT_LAUNCH (weigh<P>, blocks_for (rows * columns, THREADS, MOST_BLOCKS), THREADS, 0, l->stream,
               used, (const P *) o[0].data, array_of (&o[1]), (P *) y->data, columns, gates);
  return launched ();
}

template <class T, int N>
static const char *
run_weigh_bwd (const struct weft_cuda_launch *l, bool gates)
{
  typedef some<T, N> P;
  const struct weft_cuda_operand *o = l->operand, *dy = o + (gates ? 2 : 3);
  uint64_t rows = o[0].n / l->dim[1];
  struct used_rows used = used_rows_of (&o[2], rows, gates ? 1 : l->dim[3]);
  weight_gradient<P> w = { (const P *) o[0].data, (const P *) dy->data, array_of (&o[1]),
                           array_of (dy + 2),     (P *) dy[1].data,     l->dim[1] / N,
                           gates };

  WEFT_LAUNCH (weigh_bwd<P>, blocks_for (rows, WARPS, MOST_BLOCKS), THREADS, 0, l->stream, used, w);
  return launched ();
}

const char *
weft_cuda_gate (const struct weft_cuda_launch *l)
{
  return RUN_BY_PACKS (l->operand[0].dtype, is_packed (l, 3, l->dim[1], l->operand[0].dtype),
                       run_weigh, l, true);
}

const char *
weft_cuda_gate_bwd (const struct weft_cuda_launch *l)
{
  return RUN_BY_PACKS (l->operand[0].dtype, is_packed (l, 4, l->dim[1], l->operand[0].dtype),
                       run_weigh_bwd, l, true);
}

const char *
weft_cuda_moe_weigh (const struct weft_cuda_launch *l)
{
  return RUN_BY_PACKS (l->operand[0].dtype, is_packed (l, 4, l->dim[1], l->operand[0].dtype),
                       run_weigh, l, false);
}

const char *
weft_cuda_moe_weigh_bwd (const struct weft_cuda_launch *l)
{
  return RUN_BY_PACKS (l->operand[0].dtype, is_packed (l, 5, l->dim[1], l->operand[0].dtype),
                       run_weigh_bwd, l, false);
}

/* --------------------------------------------------------------- activations of experts */

enum { U, PROB, ACT_COUNTS, ACT_Y };
enum { BWD_DY = 3, DU, DPROB };
enum { ACT_ROWS, ACT_COLUMNS, ACT_STRIDE = 3 };

/* For gated activations, a row contains the gates, followed by the values that they multiply. For
 * other activations, a row has only one half. */
template <class G> struct of_gate : G {
  static const int wide = 2;
};

template <class F, class S> struct of_one {
  static const int wide = 1;
  static __device__ float
  value (float x, float)
  {
    return F () (x, 0);
  }
  static __device__ struct gate_and_up
  slopes (float x, float, float dy)
  {
    struct gate_and_up d = { S () (x, dy), 0 };
    return d;
  }
};

template <class A, class P>
__global__ void
activate (struct used_rows used, const P *u, struct array prob, P *y, uint64_t columns)
{
  uint64_t rows = number_of (used);

  for (WEFT_EACH (i, rows * columns)) {
    uint64_t row = i / columns;
    const P *at = u + row * columns * A::wide + i % columns;
    P gate = at[0], up = A::wide > 1 ? at[columns] : gate, to;
    float weight = prob.data ? get (prob, row) : 1;
    for (int j = 0; j < P::n; j++)
      set (&to.at[j], A::value (to_float (gate.at[j]), to_float (up.at[j])) * weight);
    y[i] = to;
  }
}

template <class P> struct act_gradient {
  const P *u, *dy;
  struct array prob, dprob;
  P *du;
  uint64_t columns;
};

/* One warp per row. */
template <class A, class P>
__global__ void
activate_bwd (struct used_rows used, act_gradient<P> a)
{
  uint64_t rows = number_of (used), lane = threadIdx.x % 32;
  uint64_t row = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32;

  for (; row < rows; row += (uint64_t) gridDim.x * WARPS) {
    float weight = a.prob.data ? get (a.prob, row) : 1, sum = 0;
    for (uint64_t c = lane; c < a.columns; c += 32) {
      uint64_t at = row * a.columns * A::wide + c;
      P gate = a.u[at], up = A::wide > 1 ? a.u[at + a.columns] : gate;
      P dy = a.dy[row * a.columns + c], dgate, dup;
      for (int j = 0; j < P::n; j++) {
        float x = to_float (gate.at[j]), other = to_float (up.at[j]), d = to_float (dy.at[j]);
        struct gate_and_up to = A::slopes (x, other, d * weight);
        sum += d * A::value (x, other);
        set (&dgate.at[j], to.gate);
        set (&dup.at[j], to.up);
      }
      a.du[at] = dgate;
      if (A::wide > 1)
        a.du[at + a.columns] = dup;
    }
    sum = warp_sum (sum);
    if (lane == 0 && a.dprob.data)
      put (a.dprob, row, sum);
  }
}

template <class A> struct run_act {
  template <class T, int N>
  static const char *
  forward (const struct weft_cuda_launch *l)
  {
    typedef some<T, N> P;
    const struct weft_cuda_operand *o = l->operand;
    uint64_t rows = l->dim[ACT_ROWS], columns = l->dim[ACT_COLUMNS] / N;
    struct used_rows used = used_rows_of (&o[ACT_COUNTS], o[ACT_Y].n / l->dim[ACT_COLUMNS],
                                          l->dim[ACT_STRIDE]);

    WEFT_LAUNCH ((activate<A, P>), blocks_for (rows * columns, THREADS, MOST_BLOCKS), THREADS, 0,
                 l->stream, used, (const P *) o[U].data, array_of (&o[PROB]), (P *) o[ACT_Y].data,
                 columns);
    return launched ();
  }

  template <class T, int N>
  static const char *
  backward (const struct weft_cuda_launch *l)
  {
    typedef some<T, N> P;
    const struct weft_cuda_operand *o = l->operand;
    struct used_rows used = used_rows_of (&o[ACT_COUNTS], o[BWD_DY].n / l->dim[ACT_COLUMNS],
                                          l->dim[ACT_STRIDE]);
    act_gradient<P> a = { (const P *) o[U].data, (const P *) o[BWD_DY].data, array_of (&o[PROB]),
                          array_of (&o[DPROB]),  (P *) o[DU].data, l->dim[ACT_COLUMNS] / N };

    WEFT_LAUNCH ((activate_bwd<A, P>), blocks_for (l->dim[ACT_ROWS], WARPS, MOST_BLOCKS), THREADS,
                 0, l->stream, used, a);
    return launched ();
  }
};

template <class A>
static const char *
run_act_by_packs (const struct weft_cuda_launch *l, bool back)
{
  uint32_t dtype = l->operand[U].dtype;
  bool packed = is_packed (l, back ? 5 : 4, l->dim[ACT_COLUMNS], dtype);

  return back ? RUN_BY_PACKS (dtype, packed, run_act<A>::template backward, l)
              : RUN_BY_PACKS (dtype, packed, run_act<A>::template forward, l);
}

static const char *
run_activation (const struct weft_cuda_launch *l, bool back)
{
  switch (l->model.activation) {
  case WEFT_SWIGLU:
    return run_act_by_packs<of_gate<silu_gate>> (l, back);
  case WEFT_GEGLU:
    return run_act_by_packs<of_gate<gelu_gate>> (l, back);
  case WEFT_RELU:
    return run_act_by_packs<of_one<relu, relu_slope>> (l, back);
  case WEFT_GELU_ERF:
    return run_act_by_packs<of_one<gelu_erf, gelu_erf_slope>> (l, back);
  case WEFT_SQUARED_RELU:
    return run_act_by_packs<of_one<relu2, relu2_slope>> (l, back);
  default:
    return run_act_by_packs<of_one<gelu, gelu_slope>> (l, back);
  }
}

const char *
weft_cuda_moe_act (const struct weft_cuda_launch *l)
{
  return run_activation (l, false);
}

const char *
weft_cuda_moe_act_bwd (const struct weft_cuda_launch *l)
{
  return run_activation (l, true);
}
