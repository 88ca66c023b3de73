/* Layernorm and rmsnorm of rows, and of query and key heads (formula: kernels/row.h).
 *
 * Rows that consist of whole 16-byte packs and are not too wide use norm_rows.cuh, which reads
 * everything once, if the weights are packs of the same type or fp32. Heads and other rows use the
 * kernels here, element by element. Backward then uses three kernels: mean and scale of each row,
 * into scratch; weight gradients by columns, in chunks of rows added in order; input gradients row
 * by row, last, because dx may overwrite dy. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/norm_rows.cuh"

enum { NARROW = 32, WIDE = 256, SHORT_ROW = 256 };

/* Maximum length of a row that stays in shared memory as floats and is read once. */
enum { MOST_KEPT = 12288 / 2 };

/* Maximum length of a row of which backward keeps two floats per element in shared memory. */
enum { MOST_KEPT_TWICE = 12288 / 2 - 64 };

/* Rows of a matrix, or heads of tokens: of the `all` heads of each token the first `heads` are
 * normalised. The first `queries` of the normalised heads have the first weight, the others the
 * second weight. */
struct rows {
  uint64_t n, columns;
  uint64_t heads, all, queries; /* 0: the rows are not heads */
  /* if stride is not 0, a token has one row, which begins at token * stride + first, and in the
   * array of rows kept for backward at token * kept + first */
  uint64_t stride, kept, first;
};

static __device__ __forceinline__ uint64_t
start_of (const struct rows &r, uint64_t row)
{
  if (r.stride)
    return row * r.stride + r.first;
  return (r.heads ? row / r.heads * r.all + row % r.heads : row) * r.columns;
}

/* Where a row begins in the array of rows that forward kept for backward. */
static __device__ __forceinline__ uint64_t
kept_start (const struct rows &r, uint64_t row)
{
  return r.stride ? row * r.kept + r.first : row * r.columns;
}

static __device__ __forceinline__ bool
is_key (const struct rows &r, uint64_t row)
{
  return r.heads && row % r.heads >= r.queries;
}

enum { TOGETHER = 2 /* number of the dimension `together` of head_norm (core/ops.def) */ };

struct norm {
  struct rows rows;
  float epsilon;
  bool centred;
};

/* Two addends, and the array that receives their sum. */
template <class T> struct addends {
  const T *a, *b;
  T *sum;
};

/* Computes the mean and scale of the row at x. `kept` receives the row as floats (NULL: no room).
 * With addends, this function first stores their sum at x. */
template <class T>
static __device__ struct moments
moments_of (const struct norm &c, const T *x, const struct addends<T> *of, float *kept, float *room)
{
  uint64_t n = c.rows.columns;
  struct moments m = {};
  float sum = 0;

  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    if (of)
      set (of->sum + i, to_float (of->a[i]) + to_float (of->b[i]));
    float value = to_float (x[i]);
    if (kept)
      kept[i] = value;
    sum += value;
  }
  m.mean = c.centred ? block_sum (sum, room) / (float) n : 0;
  sum = 0;
  for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float off = (kept ? kept[i] : to_float (x[i])) - m.mean;
    sum += off * off;
  }
  m.scale = 1 / sqrtf (block_sum (sum, room) / (float) n + c.epsilon);
  return m;
}

/* ---------------------------------------------------------------------------- forward */

struct weights {
  struct array first, second, bias;
};

/* raw: array that receives copies of the rows, one after the other; NULL: no copies are stored. x
 * may be the sum of two addends. */
template <class T>
__global__ void
forward (struct norm c, const T *x, struct addends<T> of, struct weights w, T *y, T *raw)
{
  WEFT_DYNAMIC_SHARED (float, shared);
  __shared__ float room[32];
  uint64_t n = c.rows.columns;
  float *kept = n <= MOST_KEPT ? shared : NULL;

  for (uint64_t row = blockIdx.x; row < c.rows.n; row += gridDim.x) {
    uint64_t at = start_of (c.rows, row);
    struct array weight = is_key (c.rows, row) ? w.second : w.first;
    struct addends<T> here = { of.a + at, of.b + at, of.sum + at };
    struct moments m = moments_of (c, x + at, of.a ? &here : NULL, kept, room);
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
      float value = kept ? kept[i] : to_float (x[at + i]);
      float to = (value - m.mean) * m.scale * get (weight, i);
      if (raw)
        raw[kept_start (c.rows, row) + i] = x[at + i];
      set (y + at + i, w.bias.data ? to + get (w.bias, i) : to);
    }
    __syncthreads (); /* barrier, because the next row overwrites shared memory */
  }
}

/* --------------------------------------------------------------------------- backward */

template <class T>
__global__ void
keep_moments (struct norm c, const T *x, struct moments *to)
{
  __shared__ float room[32];

  for (uint64_t row = blockIdx.x; row < c.rows.n; row += gridDim.x) {
    struct moments m =
        moments_of (c, x + kept_start (c.rows, row), (const struct addends<T> *) NULL, NULL, room);
    if (threadIdx.x == 0)
      to[row] = m;
  }
}

/* x: the rows that forward stored (kept_start()). The rows of dy, dresidual and dx begin at
 * start_of(). */
template <class T> struct gradient {
  const T *dy, *x, *dresidual;
  T *dx;
  struct array first, second; /* weights */
  const struct moments *moments;
};

template <class T>
__global__ void
input_gradient (struct norm c, struct gradient<T> g)
{
  WEFT_DYNAMIC_SHARED (float, shared);
  __shared__ float room[32];
  uint64_t n = c.rows.columns;
  float *kept = n <= MOST_KEPT_TWICE ? shared : NULL; /* each thread uses its own elements only */

  for (uint64_t row = blockIdx.x; row < c.rows.n; row += gridDim.x) {
    uint64_t at = start_of (c.rows, row), from = kept_start (c.rows, row);
    struct array weight = is_key (c.rows, row) ? g.second : g.first;
    struct moments m = g.moments[row];
    float of_g = 0, of_gx = 0;
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
      float one = to_float (g.dy[at + i]) * get (weight, i);
      float xhat = (to_float (g.x[from + i]) - m.mean) * m.scale;
      of_g += one;
      of_gx += one * xhat;
      if (kept) {
        kept[i] = one;
        kept[n + i] = xhat;
      }
    }
    of_g = c.centred ? block_sum (of_g, room) / (float) n : 0;
    of_gx = block_sum (of_gx, room) / (float) n;
    for (uint64_t i = threadIdx.x; i < n; i += blockDim.x) {
      float one = kept ? kept[i] : to_float (g.dy[at + i]) * get (weight, i);
      float xhat = kept ? kept[n + i] : (to_float (g.x[from + i]) - m.mean) * m.scale;
      float dx = (one - of_g - xhat * of_gx) * m.scale;
      set (g.dx + at + i, g.dresidual ? dx + to_float (g.dresidual[at + i]) : dx);
    }
  }
}

/* Terms of the weight gradients: for one column, and for the i-th of the rows that use this
 * weight. */
template <class T> struct weight_terms {
  struct norm c;
  struct gradient<T> g;
  /* which heads of a token use this weight: number of the first one, and how many; 0: rows are not
   * heads */
  uint64_t first, each;

  __device__ void
  operator() (uint64_t i, uint64_t column, float term[2]) const
  {
    uint64_t row = each ? i / each * c.rows.heads + first + i % each : i;
    float dy = to_float (g.dy[start_of (c.rows, row) + column]);
    struct moments m = g.moments[row];
    term[0] = dy * ((to_float (g.x[kept_start (c.rows, row) + column]) - m.mean) * m.scale);
    term[1] = dy;
  }
};

/* --------------------------------------------------------------------------- launches */

static unsigned
threads_of (uint64_t columns)
{
  return columns <= SHORT_ROW ? NARROW : WIDE;
}

static unsigned
blocks_of (const struct norm *c)
{
  return blocks_for (c->rows.n, 1, 1u << 20);
}

static struct norm
norm_of (const struct weft_cuda_launch *l)
{
  struct norm c = {};

  c.rows.n = l->dim[0];
  c.rows.columns = l->dim[1];
  c.epsilon = (float) l->model.epsilon;
  c.centred = l->model.layernorm;
  return c;
}

static struct norm
head_norm_of (const struct weft_cuda_launch *l)
{
  struct norm c = norm_of (l);

  c.rows.heads = l->model.heads + l->model.groups;
  c.rows.all = c.rows.heads + l->model.groups;
  c.rows.queries = l->model.heads;
  c.centred = false;
  return c;
}

/* The heads of a token that are normalised as one row: its query heads, or its key heads. */
static struct norm
together_of (const struct weft_cuda_launch *l, bool keys)
{
  uint64_t heads = l->model.heads, groups = l->model.groups, width = l->dim[1];
  struct norm c = norm_of (l);

  c.rows.n = l->dim[0] / l->dim[TOGETHER];
  c.rows.columns = (keys ? groups : heads) * width;
  c.rows.stride = (heads + 2 * groups) * width;
  c.rows.kept = (heads + groups) * width;
  c.rows.first = keys ? heads * width : 0;
  c.centred = false;
  return c;
}

static uint64_t
kept_bytes (const struct norm *c)
{
  return c->rows.columns <= MOST_KEPT ? c->rows.columns * sizeof (float) : 0;
}

static uint64_t
kept_twice_bytes (const struct norm *c)
{
  return c->rows.columns <= MOST_KEPT_TWICE ? 2 * c->rows.columns * sizeof (float) : 0;
}

template <class T>
static const char *
run_forward (const struct weft_cuda_launch *l, const struct norm *c, const struct addends<T> &of,
             const struct weights *w, void *y, void *raw)
{
  const T *x = of.sum ? of.sum : (const T *) l->operand[0].data;

  WEFT_LAUNCH ((forward<T>), blocks_of (c), threads_of (c->rows.columns), kept_bytes (c), l->stream,
               *c, x, of, *w, (T *) y, (T *) raw);
  return launched ();
}

static struct row_norm
row_norm_of (const struct norm *c)
{
  struct row_norm r = { c->rows.n, c->rows.columns, c->epsilon, c->centred };
  return r;
}

/* Operand numbers of a forward norm: second addend, weight, sum of the addends, result y. */
struct places {
  /* addend 0: there is no second addend; the bias has the operand number after `weight` */
  unsigned addend, weight, sum, y;
};

template <class T>
static const char *
run_rows (const struct weft_cuda_launch *l, struct places at)
{
  const struct weft_cuda_operand *o = l->operand;
  struct norm c = norm_of (l);
  struct row_norm r = row_norm_of (&c);
  struct weights w = { array_of (&o[at.weight]), array_of (&o[at.weight]),
                       array_of (&o[at.weight + 1]) };
  struct addends<T> of = {};
  struct row_forward<T> rows = {};

  if (at.addend)
    of = { (const T *) o[0].data, (const T *) o[at.addend].data, (T *) o[at.sum].data };
  if (!holds_rows<T> (r) || !are_packs (o[0].data, of.b, of.sum, o[at.y].data) ||
      !takes_weights (o[0].dtype, w.first, w.bias, &rows.packed))
    return run_forward<T> (l, &c, of, &w, o[at.y].data, NULL);
  rows.x = (const T *) o[0].data;
  rows.addend = of.b;
  rows.sum = of.sum;
  rows.y = (T *) o[at.y].data;
  rows.weight = w.first;
  rows.bias = w.bias;
  return launch_forward_rows (l->stream, r, rows);
}

const char *
weft_cuda_norm (const struct weft_cuda_launch *l)
{
  const struct places at = { 0, 1, 0, 3 };
  return WEFT_BY_DTYPE (l->operand[0].dtype, run_rows, l, at);
}

const char *
weft_cuda_add_norm (const struct weft_cuda_launch *l)
{
  const struct places at = { 1, 2, 4, 5 };
  return WEFT_BY_DTYPE (l->operand[0].dtype, run_rows, l, at);
}

template <class T>
static const char *
run_heads (const struct weft_cuda_launch *l, const struct norm *c, const struct weights *w,
           void *raw)
{
  const struct addends<T> none = {};
  return run_forward<T> (l, c, none, w, l->operand[0].data, raw);
}

const char *
weft_cuda_head_norm (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct norm c = head_norm_of (l);
  struct weights w = { array_of (&o[1]), array_of (&o[2]), { NULL, WEFT_FP32 } };

  if (l->dim[TOGETHER] == 0)
    return WEFT_BY_DTYPE (o[0].dtype, run_heads, l, &c, &w, o[3].data);
  struct norm queries = together_of (l, false), keys = together_of (l, true);
  const char *error = WEFT_BY_DTYPE (o[0].dtype, run_heads, l, &queries, &w, o[3].data);
  w.first = w.second;
  return error ? error : WEFT_BY_DTYPE (o[0].dtype, run_heads, l, &keys, &w, o[3].data);
}

static uint64_t
moments_bytes (uint64_t rows)
{
  return rows * sizeof (struct moments);
}

/* Bytes of scratch: for the moments of the rows and the scratch of columns.cuh, or for the scratch
 * of norm_rows.cuh, whichever is larger. */
static uint64_t
gradient_bytes (uint64_t rows, uint64_t columns)
{
  uint64_t one_by_one = moments_bytes (rows) + column_scratch (rows, columns, 2);
  uint64_t by_rows = row_scratch (rows, columns);

  return one_by_one > by_rows ? one_by_one : by_rows;
}

/* Bytes of scratch of backward over heads: each head is a row, or all heads of a token are one
 * row. */
static uint64_t
head_gradient_bytes (const uint64_t *dim)
{
  uint64_t alone = gradient_bytes (dim[0], dim[1]), n = dim[2] ? dim[2] : 1;
  uint64_t together = gradient_bytes (dim[0] / n, dim[1] * dim[2]);

  return alone > together ? alone : together;
}

WEFT_CUDA_SCRATCH (norm_bwd, gradient_bytes (s->dim[0], s->dim[1]))
WEFT_CUDA_SCRATCH (norm_dgrad, gradient_bytes (s->dim[0], s->dim[1]))
WEFT_CUDA_SCRATCH (norm_wgrad, gradient_bytes (s->dim[0], s->dim[1]))
WEFT_CUDA_SCRATCH (head_norm_bwd, head_gradient_bytes (s->dim))
WEFT_CUDA_SCRATCH (head_norm_dgrad, gradient_bytes (s->dim[0], s->dim[1]))
WEFT_CUDA_SCRATCH (head_norm_wgrad, gradient_bytes (s->dim[0] * s->dim[2], s->dim[1]))

/* The operands that receive the outputs of a backward; NULL: the output is not computed. */
struct wanted {
  const struct weft_cuda_operand *dx, *dweight, *dbias, *dsecond;
};

template <class T>
static const char *
run_weights (const struct weft_cuda_launch *l, const struct norm *c, const struct gradient<T> *g,
             const struct wanted *w)
{
  struct column_sums sums = { l->stream, (char *) l->scratch + moments_bytes (c->rows.n),
                              c->rows.columns };
  uint64_t heads = c->rows.heads, tokens = heads ? c->rows.n / heads : c->rows.n;
  struct weight_terms<T> terms = { *c, *g, 0, c->rows.queries };
  const char *error =
      sum_columns<2> (&sums, terms, tokens * (heads ? terms.each : 1), w->dweight, w->dbias);

  if (error || !heads)
    return error;
  terms.first = c->rows.queries;
  terms.each = heads - c->rows.queries;
  return sum_columns<2> (&sums, terms, tokens * terms.each, w->dsecond, NULL);
}

template <class T>
static const char *
run_backward (const struct weft_cuda_launch *l, const struct norm *c, struct gradient<T> g,
              const struct wanted *w)
{
  struct moments *moments = (struct moments *) l->scratch;
  unsigned threads = threads_of (c->rows.columns);

  g.moments = moments;
  WEFT_LAUNCH ((keep_moments<T>), blocks_of (c), threads, 0, l->stream, *c, g.x, moments);
  const char *error = launched ();
  if (!error && w->dweight)
    error = run_weights (l, c, &g, w);
  if (error || !w->dx)
    return error;
  WEFT_LAUNCH ((input_gradient<T>), blocks_of (c), threads, kept_twice_bytes (c), l->stream, *c, g);
  return launched ();
}

template <class T>
static struct gradient<T>
gradient_of (const struct weft_cuda_launch *l)
{
  struct gradient<T> g = {};

  g.dy = (const T *) l->operand[0].data;
  g.x = (const T *) l->operand[1].data;
  return g;
}

template <class T>
static const char *
run_backward_rows (const struct weft_cuda_launch *l, const struct row_norm *r,
                   const struct gradient<T> *g, const struct wanted *w, bool packed)
{
  struct row_backward<T> o = { g->dy, g->x, g->dresidual, g->dx, g->first, NULL, packed };
  struct row_sums sums = {};

  if (w->dweight) {
    sums.to[0] = array_of (w->dweight);
    sums.adds[0] = w->dweight->accumulate;
  }
  if (w->dbias) {
    sums.to[1] = array_of (w->dbias);
    sums.adds[1] = w->dbias->accumulate;
  }
  return launch_backward_rows (l, *r, o, w->dweight ? &sums : NULL);
}

template <class T>
static const char *
run_norm_bwd (const struct weft_cuda_launch *l, const struct wanted *w)
{
  const struct weft_cuda_operand *o = l->operand;
  struct gradient<T> g = gradient_of<T> (l);
  struct norm c = norm_of (l);
  struct row_norm r = row_norm_of (&c);
  const struct array no_bias = {};
  bool packed = false;

  if (w->dx) {
    g.first = g.second = array_of (&o[2]);
    g.dresidual = (const T *) o[3].data;
    g.dx = (T *) w->dx->data;
  }
  return holds_rows<T> (r) && are_packs (g.dy, g.x, g.dresidual, g.dx) &&
                 (!w->dx || takes_weights (o[0].dtype, g.first, no_bias, &packed))
             ? run_backward_rows (l, &r, &g, w, packed)
             : run_backward (l, &c, g, w);
}

const char *
weft_cuda_norm_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct wanted w = { &o[4], &o[5], o[6].data ? &o[6] : NULL, NULL };

  return WEFT_BY_DTYPE (o[0].dtype, run_norm_bwd, l, &w);
}

const char *
weft_cuda_norm_dgrad (const struct weft_cuda_launch *l)
{
  struct wanted w = { &l->operand[4], NULL, NULL, NULL };

  return WEFT_BY_DTYPE (l->operand[0].dtype, run_norm_bwd, l, &w);
}

const char *
weft_cuda_norm_wgrad (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct wanted w = { NULL, &o[2], o[3].data ? &o[3] : NULL, NULL };

  return WEFT_BY_DTYPE (o[0].dtype, run_norm_bwd, l, &w);
}

/* The arrays of several ranks, which are stored one after the other, are treated as one array. */
template <class T>
static const char *
run_head_norm_bwd (const struct weft_cuda_launch *l, const struct wanted *w, uint64_t ranks)
{
  const struct weft_cuda_operand *o = l->operand;
  struct gradient<T> g = gradient_of<T> (l);
  struct norm c = head_norm_of (l);

  c.rows.n *= ranks;
  if (w->dx) {
    g.first = array_of (&o[2]);
    g.second = array_of (&o[3]);
    g.dx = (T *) w->dx->data;
  }
  return run_backward (l, &c, g, w);
}

/* Computes the gradients of the queries, then those of the keys: both calls use the same
 * scratch. */
template <class T>
static const char *
run_together_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  const char *error = NULL;

  for (int keys = 0; keys < 2 && !error; keys++) {
    struct wanted w = { &o[0], &o[4 + keys], NULL, NULL };
    struct gradient<T> g = gradient_of<T> (l);
    struct norm c = together_of (l, keys);
    g.first = array_of (&o[2 + keys]);
    g.dx = (T *) o[0].data;
    error = run_backward (l, &c, g, &w);
  }
  return error;
}

const char *
weft_cuda_head_norm_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct wanted w = { &o[0], &o[4], NULL, &o[5] };

  if (l->dim[TOGETHER] > 0)
    return WEFT_BY_DTYPE (o[0].dtype, run_together_bwd, l);
  return WEFT_BY_DTYPE (o[0].dtype, run_head_norm_bwd, l, &w, 1);
}

const char *
weft_cuda_head_norm_dgrad (const struct weft_cuda_launch *l)
{
  struct wanted w = { &l->operand[0], NULL, NULL, NULL };
  return WEFT_BY_DTYPE (l->operand[0].dtype, run_head_norm_bwd, l, &w, 1);
}

const char *
weft_cuda_head_norm_wgrad (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct wanted w = { NULL, &o[2], NULL, &o[3] };

  return WEFT_BY_DTYPE (o[0].dtype, run_head_norm_bwd, l, &w, l->dim[2]);
}
