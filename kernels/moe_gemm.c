/* Grouped GEMM: linear layers of experts, one product per expert over the rows of that expert. */
#include "kernels/float.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/part.h"
#include "kernels/reference.h"
#include "kernels/sums.h"

enum { M, N, K, EXPERTS, STRIDE, LEAVES, TAIL, BLOCK };
enum { SOURCES = LEAVES, PARTS }; /* numbers of the dimensions that only weight gradients have */

/* Operands under their names in forward. dgrad: x is dy, y is dx. wgrad: x is dy, w is x, y is dw.
 * Scales belong to fp8 factors; NULL otherwise. */
struct operands {
  const struct weft_operand *x, *x_scale, *w, *w_scale, *counts, *y;
};

static gboolean
is_fp8 (const struct weft_kernel *k)
{
  return k->kind == WEFT_OP_MOE_FP8_MATMUL || k->kind == WEFT_OP_MOE_FP8_MATMUL_DGRAD ||
         k->kind == WEFT_OP_MOE_FP8_MATMUL_WGRAD;
}

static struct operands
operands_of (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;

  return is_fp8 (k) ? (struct operands){ &o[0], &o[1], &o[2], &o[3], &o[4], &o[5] }
                    : (struct operands){ &o[0], NULL, &o[1], NULL, &o[2], &o[3] };
}

/* Number of elements that an operand must have; 0: not checked. Only weights have a fixed number of
 * elements. Arrays of rows, and their scales, may have room for more rows. */
uint64_t
weft_extent_moe_matmul (const struct weft_kernel *k, uint32_t operand)
{
  const struct weft_operand *w = operands_of (k).w;

  return &k->operand[operand] == w ? k->shape.dim[EXPERTS] * k->shape.dim[N] * k->shape.dim[K] : 0;
}

uint64_t
weft_extent_moe_matmul_dgrad (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_matmul (k, operand);
}

uint64_t
weft_extent_moe_matmul_wgrad (const struct weft_kernel *k, uint32_t operand)
{
  (void) k;
  (void) operand;
  return 0;
}

static void *
element (const struct weft_operand *o, uint64_t i)
{
  return (uint8_t *) o->data + i * weft_dtype_bytes (o->dtype);
}

static struct weft_moe_rows
rows_of (const struct weft_kernel *k, uint64_t e)
{
  return weft_moe_rows_of (operands_of (k).counts, e, k->shape.dim[EXPERTS], k->shape.dim[STRIDE],
                           k->shape.dim[M]);
}

/* -------------------------------------------------------------------------- fp8 factors */

/* Number of groups of token rows that have their own scales. */
static uint64_t
groups_of (const struct weft_kernel *k)
{
  const struct operands o = operands_of (k);
  uint64_t block = k->shape.dim[BLOCK], wide = k->shape.dim[K];

  if (!is_fp8 (k))
    return k->shape.dim[EXPERTS];
  if (block == 0)
    return o.x_scale->n;
  return k->kind == WEFT_OP_MOE_FP8_MATMUL_WGRAD
             ? weft_moe_groups_of (o.w_scale->n, o.w->n / wide, wide, block)
             : k->shape.dim[EXPERTS];
}

static struct weft_moe_rows
rows_of_group (const struct weft_kernel *k, uint64_t g)
{
  return weft_moe_rows_of (operands_of (k).counts, g, groups_of (k), k->shape.dim[STRIDE],
                           k->shape.dim[M]);
}

/* Which scales belong to rows of a factor that begin at row `at`. These rows have `columns`
 * elements and belong to group g (token rows) or to expert g (weights); `first`: the first row of
 * g. */
struct scaled {
  const struct weft_operand *scale;
  enum weft_moe_scales lie;
  uint64_t g, first, at, columns;
};

/* Sets the scales of a factor. turned FALSE: rows of the array are rows of the factor, and columns
 * of the array are its terms. turned TRUE: the array is the transposed factor; its scales must be
 * per square or per block of a column. */
static void
set_scales (const struct weft_kernel *k, struct weft_factor *f, const struct scaled *s,
            gboolean turned)
{
  uint64_t block = k->shape.dim[BLOCK], row = s->at - s->first;
  uint64_t across = block ? weft_fp8_blocks (s->columns, block) : 0;
  uint64_t step = s->lie == WEFT_MOE_DOWN ? s->columns : across;

  f->block = (uint32_t) block;
  f->square = s->lie == WEFT_MOE_SQUARES;
  f->scale_along = turned ? 1 : step;
  f->scale_sum = turned ? step : 1;
  if (block == 0)
    f->scale = element (s->scale, s->g);
  else if (s->lie == WEFT_MOE_ALONG)
    f->scale = element (s->scale, s->at * across);
  else
    f->scale = element (s->scale, (weft_moe_line (s->first, s->g, block) + row / block) * step);
  f->skip = turned && block ? row % block : 0;
}

/* Layout of the scales of expert weights. Scales for blocks of more than 32 elements: one scale per
 * square. Scales for blocks of 32: one scale per block of a row in forward, and per block of a
 * column in dgrad. */
static enum weft_moe_scales
lie_of_weights (const struct weft_kernel *k)
{
  gboolean backward = k->kind == WEFT_OP_MOE_FP8_MATMUL_DGRAD;

  return k->shape.dim[BLOCK] > WEFT_MX_BLOCK ? WEFT_MOE_SQUARES
         : backward                          ? WEFT_MOE_DOWN
                                             : WEFT_MOE_ALONG;
}

/* ------------------------------------------------------ y = x w^T, dx = dy w, by expert */

/* Product of the rows of group g, for a range of columns. */
static struct weft_gemm
product_of (const struct weft_kernel *k, uint64_t g, struct weft_range part)
{
  const uint64_t *dim = k->shape.dim;
  gboolean backward =
      k->kind == WEFT_OP_MOE_MATMUL_DGRAD || k->kind == WEFT_OP_MOE_FP8_MATMUL_DGRAD;
  uint64_t columns = dim[backward ? K : N], terms = dim[backward ? N : K];
  uint64_t e = g / (groups_of (k) / dim[EXPERTS]), along = backward ? 1 : dim[K];
  const struct operands o = operands_of (k);
  struct weft_moe_rows rows = rows_of_group (k, g);
  struct weft_gemm product = {
    .a = { element (o.x, rows.first * terms), terms, 1, o.x->dtype },
    .b = { element (o.w, e * columns * terms + part.begin * along), along, backward ? dim[K] : 1,
           o.w->dtype },
    .c = { .data = element (o.y, rows.first * columns + part.begin),
           .row = columns,
           .dtype = o.y->dtype },
    .last = rows.n,
    .columns = part.end - part.begin,
    .terms = weft_leaves_dealt (terms, (uint32_t) dim[LEAVES], dim[TAIL]),
  };

  if (is_fp8 (k)) {
    struct scaled x = { o.x_scale, WEFT_MOE_ALONG, g, rows.first, rows.first, terms };
    struct scaled w = { o.w_scale, lie_of_weights (k), e, e * dim[N], e * dim[N], dim[K] };
    uint64_t block = dim[BLOCK], high = w.lie == WEFT_MOE_SQUARES ? block : 1;
    set_scales (k, &product.a, &x, FALSE);
    set_scales (k, &product.b, &w, backward);
    if (block)
      product.b.scale = (const uint8_t *) product.b.scale +
                        part.begin / high * product.b.scale_along *
                            weft_dtype_bytes (o.w_scale->dtype);
  }
  return product;
}

/* Divides the columns among threads, because an expert may have few rows. The columns of a thread
 * consist of whole squares of scales. */
static void
multiply (const struct weft_kernel *k, uint64_t columns, uint32_t part, uint32_t parts)
{
  uint64_t grain = is_fp8 (k) ? MAX (k->shape.dim[BLOCK], WEFT_TILE_COLUMNS) : WEFT_TILE_COLUMNS;

  for (uint64_t g = 0; g < groups_of (k); g++) {
    struct weft_gemm product = product_of (k, g, weft_part (columns, grain, part, parts));
    weft_gemm (&product);
  }
}

void
weft_cpu_moe_matmul (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  multiply (k, k->shape.dim[N], part, parts);
}

void
weft_cpu_moe_matmul_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  multiply (k, k->shape.dim[K], part, parts);
}

/* along, sum: strides of the weights, from one column of the result to the next and from one term
 * of a sum to the next. */
static void
ref_multiply (const struct weft_kernel *k, uint64_t columns, uint64_t terms, uint64_t along,
              uint64_t sum)
{
  const struct operands o = operands_of (k);
  const double *x = o.x->data, *w = o.w->data;
  double *y = o.y->data;

  for (uint64_t e = 0; e < k->shape.dim[EXPERTS]; e++) {
    struct weft_moe_rows rows = rows_of (k, e);
    for (uint64_t r = rows.first; r < rows.first + rows.n; r++)
      for (uint64_t c = 0; c < columns; c++) {
        y[r * columns + c] = 0;
        for (uint64_t t = 0; t < terms; t++)
          y[r * columns + c] += x[r * terms + t] * w[e * columns * terms + c * along + t * sum];
      }
  }
}

void
weft_ref_moe_matmul (const struct weft_kernel *k)
{
  ref_multiply (k, k->shape.dim[N], k->shape.dim[K], k->shape.dim[K], 1);
}

void
weft_ref_moe_matmul_dgrad (const struct weft_kernel *k)
{
  ref_multiply (k, k->shape.dim[K], k->shape.dim[N], 1, k->shape.dim[K]);
}

/* ------------------------------------------------------------ dw += dy^T x, by expert */

/* Size in floats of a stack of partial sums. */
#define ROOM 65536

/* Weight gradient of one expert: a sum over all its rows. In canonical order dw holds one gradient
 * per slice, [slices][experts][n][k]: a sum over the rows of a few consecutive sources, whose
 * tokens form whole sequences. */
struct gradient {
  const struct weft_kernel *k;
  /* row counts of the source ranks whose rows are summed: one or several per leaf */
  const int64_t *count;
  uint32_t leaves, parts; /* leaves: number of leaves; parts: row counts per leaf */
  uint64_t each;          /* number of row counts per source rank */
  uint64_t first;         /* index of the first token row of the sum */
  uint64_t first_count;   /* index of count[0] among the row counts of all experts */
  uint64_t at;            /* index in dw of the first element of this gradient */
};

/* Index of the first token row of leaf l. With padding, every source rank has the same number of
 * rows. */
static uint64_t
row_of (const struct gradient *g, uint32_t l)
{
  uint64_t stride = g->k->shape.dim[STRIDE], n = (uint64_t) l * g->parts;

  if (!stride)
    return g->first + weft_moe_count (g->count, 0, n);
  return g->first + n / g->each * stride +
         weft_moe_count (g->count, n / g->each * g->each, n % g->each);
}

/* Sets the fp8 scales of both factors for the rows of a leaf. All rows of a leaf belong to one
 * group of source ranks, which has scales of its own. */
static void
set_leaf_scales (const struct gradient *g, uint32_t l, struct weft_range rows,
                 struct weft_range columns, struct weft_gemm *product)
{
  const struct weft_kernel *k = g->k;
  const struct operands o = operands_of (k);
  uint64_t group = (g->first_count + (uint64_t) l * g->parts) / (o.counts->n / groups_of (k));
  uint64_t first = rows_of_group (k, group).first, at = row_of (g, l);
  const struct scaled dy = { o.x_scale, WEFT_MOE_DOWN, group, first, at, k->shape.dim[N] },
                      x = { o.w_scale, WEFT_MOE_DOWN, group, first, at, k->shape.dim[K] };

  set_scales (k, &product->a, &dy, TRUE);
  set_scales (k, &product->b, &x, TRUE);
  if (k->shape.dim[BLOCK] == 0)
    return;
  product->a.scale =
      (const uint8_t *) product->a.scale + rows.begin * weft_dtype_bytes (o.x_scale->dtype);
  product->b.scale =
      (const uint8_t *) product->b.scale + columns.begin * weft_dtype_bytes (o.w_scale->dtype);
}

static struct weft_gemm
product_of_leaf (const struct gradient *g, uint32_t l, struct weft_range rows,
                 struct weft_range columns)
{
  const struct weft_kernel *k = g->k;
  const struct operands o = operands_of (k);
  uint64_t n = k->shape.dim[N], wide = k->shape.dim[K], at = row_of (g, l);
  struct weft_gemm product = {
    .a = { element (o.x, at * n + rows.begin), 1, n, o.x->dtype },
    .b = { element (o.w, at * wide + columns.begin), 1, wide, o.w->dtype },
    .c = { .row = columns.end - columns.begin },
    .last = rows.end - rows.begin,
    .columns = columns.end - columns.begin,
    .terms = weft_leaves_one (weft_moe_count (g->count, (uint64_t) l * g->parts, g->parts)),
  };

  if (is_fp8 (k))
    set_leaf_scales (g, l, rows, columns, &product);
  return product;
}

/* Computes a block of the weight gradient dw (a range of its rows and of its columns): sums over
 * token rows. */
static void
sum_block (const struct gradient *g, struct weft_range rows, struct weft_range columns)
{
  const struct weft_kernel *k = g->k;
  const struct operands o = operands_of (k);
  float room[ROOM];
  struct weft_sums sums = { .output = o.y,
                            .room = room,
                            .n = (rows.end - rows.begin) * (columns.end - columns.begin),
                            .n_leaf = g->leaves,
                            .rounds = k->canonical };

  for (uint32_t i = 0; i < g->leaves; i++) {
    uint32_t chunks = weft_sums_chunks (k),
             l = i / chunks * chunks + weft_zigzag (i % chunks, chunks);
    if (weft_moe_count (g->count, (uint64_t) l * g->parts, g->parts) == 0) {
      weft_sums_skip (&sums);
      continue;
    }
    struct weft_gemm product = product_of_leaf (g, l, rows, columns);
    product.c.data = weft_sums_leaf (&sums);
    weft_gemm (&product);
    weft_sums_close (&sums);
  }
  weft_sums_store (&sums, g->at + rows.begin * k->shape.dim[K] + columns.begin);
}

static void
sum_rows (const struct gradient *g, struct weft_range rows)
{
  uint64_t room = ROOM / weft_sums_depth (g->leaves), wide = g->k->shape.dim[K];
  uint64_t high = MAX (1, room / wide), width = weft_least (room, wide);

  for (uint64_t r = rows.begin; r < rows.end; r += high)
    for (uint64_t c = 0; c < wide; c += width)
      sum_block (g, (struct weft_range){ r, weft_least (r + high, rows.end) },
                 (struct weft_range){ c, weft_least (c + width, wide) });
}

/* Weight gradient of one expert as one sum over all its rows; padding rows are 0. */
static void
sum_all (const struct weft_kernel *k, uint64_t e, struct weft_range rows)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_moe_rows all = rows_of (k, e);
  int64_t n = (int64_t) all.n;
  uint64_t first = operands_of (k).counts->n / dim[EXPERTS] * e;

  sum_rows (&(struct gradient){ k, &n, 1, 1, 1, all.first, first, e * dim[N] * dim[K] }, rows);
}

static uint64_t
slices_of (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  return k->canonical ? operands_of (k).y->n / (dim[EXPERTS] * dim[N] * dim[K]) : 1;
}

static uint64_t
sources_of (const struct weft_kernel *k)
{
  return k->shape.dim[SOURCES] ? k->shape.dim[SOURCES] : slices_of (k);
}

/* Index of the first token row of one expert and one slice (a group of source ranks). `block` is
 * expert * slices + slice. */
static uint64_t
slice_begins (const struct weft_kernel *k, uint64_t block)
{
  const struct weft_operand *counts = operands_of (k).counts;
  uint64_t n = counts->n / k->shape.dim[EXPERTS] / slices_of (k);

  if (k->shape.dim[STRIDE])
    return block * (sources_of (k) / slices_of (k)) * k->shape.dim[STRIDE];
  return weft_moe_count (counts->data, 0, block * n);
}

static void
sum_slices (const struct weft_kernel *k, uint64_t e, struct weft_range rows)
{
  const uint64_t *dim = k->shape.dim;
  const struct weft_operand *counts = operands_of (k).counts;
  uint64_t slices = slices_of (k), n = counts->n / dim[EXPERTS] / slices;
  uint32_t parts = (uint32_t) MAX (1, dim[PARTS]);

  for (uint64_t s = 0; s < slices; s++) {
    uint64_t block = e * slices + s;
    struct gradient g = {
      .k = k,
      .count = (const int64_t *) counts->data + block * n,
      .leaves = (uint32_t) n / parts,
      .parts = parts,
      .each = counts->n / dim[EXPERTS] / sources_of (k),
      .first = slice_begins (k, block),
      .first_count = block * n,
      .at = (s * dim[EXPERTS] + e) * dim[N] * dim[K],
    };
    sum_rows (&g, rows);
  }
}

void
weft_cpu_moe_matmul_wgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (k->shape.dim[N], WEFT_TILE_ROWS, part, parts);

  for (uint64_t e = 0; e < k->shape.dim[EXPERTS]; e++)
    (k->canonical ? sum_slices : sum_all) (k, e, rows);
}

/* Describes the weight gradient of one expert in one slice of dw. */
static void
ref_gradient (const struct weft_kernel *k, struct weft_moe_rows rows, double *dw)
{
  const uint64_t *dim = k->shape.dim;
  const struct operands o = operands_of (k);
  const double *dy = o.x->data, *x = o.w->data;

  for (uint64_t n = 0; n < dim[N]; n++)
    for (uint64_t t = 0; t < dim[K]; t++) {
      double sum = o.y->accumulate ? dw[n * dim[K] + t] : 0;
      for (uint64_t r = rows.first; r < rows.first + rows.n; r++)
        sum += dy[r * dim[N] + n] * x[r * dim[K] + t];
      dw[n * dim[K] + t] = sum;
    }
}

void
weft_ref_moe_matmul_wgrad (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim, size = dim[EXPERTS] * dim[N] * dim[K];
  const struct weft_operand *counts = operands_of (k).counts;
  uint64_t slices = slices_of (k), per = counts->n / dim[EXPERTS] / slices;
  double *dw = operands_of (k).y->data;

  for (uint64_t e = 0; e < dim[EXPERTS]; e++)
    for (uint64_t s = 0; s < slices; s++) {
      uint64_t block = e * slices + s;
      struct weft_moe_rows rows = rows_of (k, e);
      if (k->canonical)
        rows =
            (struct weft_moe_rows){ slice_begins (k, block),
                                    dim[STRIDE] ? sources_of (k) / slices * dim[STRIDE]
                                                : weft_moe_count (counts->data, block * per, per) };
      ref_gradient (k, rows, dw + s * size + e * dim[N] * dim[K]);
    }
}

/* --------------------------------------------------------- reference values of codes and scales */

static double
value_at (const struct weft_kernel *k, const struct weft_operand *o, const struct scaled *s,
          const uint64_t at[2])
{
  const double *code = o->data, *scale = s->scale->data;
  uint64_t block = k->shape.dim[BLOCK], row = at[0] - s->first;
  double value = code[at[0] * s->columns + at[1]];

  if (block == 0) {
    double most = (double) weft_fp8_most (o->dtype == WEFT_E5M2);
    return value / weft_double_fp8_scale (scale[s->g], most);
  }
  uint64_t across = weft_fp8_blocks (s->columns, block);
  uint64_t line = weft_moe_line (s->first, s->g, block) + row / block;
  return value * scale[s->lie == WEFT_MOE_ALONG  ? at[0] * across + at[1] / block
                       : s->lie == WEFT_MOE_DOWN ? line * s->columns + at[1]
                                                 : line * across + at[1] / block];
}

/* Reads rows [first, last) of a factor as doubles. */
static void
expand (const struct weft_kernel *k, const struct weft_operand *o, const struct scaled *s,
        uint64_t last, double *to)
{
  for (uint64_t row = s->first; row < last; row++)
    for (uint64_t c = 0; c < s->columns; c++)
      to[row * s->columns + c] = value_at (k, o, s, (const uint64_t[]){ row, c });
}

static double *
expand_rows (const struct weft_kernel *k, const struct weft_operand o[2], uint64_t columns)
{
  gboolean sums = k->kind == WEFT_OP_MOE_FP8_MATMUL_WGRAD;
  double *to = g_new0 (double, o->n);

  for (uint64_t g = 0; g < groups_of (k); g++) {
    struct weft_moe_rows rows = rows_of_group (k, g);
    const struct scaled s = { &o[1],      sums ? WEFT_MOE_DOWN : WEFT_MOE_ALONG, g, rows.first,
                              rows.first, columns };
    expand (k, o, &s, rows.first + rows.n, to);
  }
  return to;
}

static double *
expand_weights (const struct weft_kernel *k, const struct weft_operand o[2])
{
  uint64_t n = k->shape.dim[N], wide = k->shape.dim[K];
  double *to = g_new0 (double, o->n);

  for (uint64_t e = 0; e < k->shape.dim[EXPERTS]; e++) {
    const struct scaled s = { &o[1], lie_of_weights (k), e, e * n, e * n, wide };
    expand (k, o, &s, (e + 1) * n, to);
  }
  return to;
}

static void
ref_fp8 (const struct weft_kernel *k, enum weft_op_kind kind, double *x, double *w)
{
  const struct operands o = operands_of (k);
  struct weft_kernel wide = *k;

  wide.kind = kind;
  wide.operand[0].data = x;
  wide.operand[1].data = w;
  wide.operand[2] = *o.counts;
  wide.operand[3] = *o.y;
  weft_kernels[kind].reference (&wide);
  g_free (x);
  g_free (w);
}

void
weft_ref_moe_fp8_matmul (const struct weft_kernel *k)
{
  ref_fp8 (k, WEFT_OP_MOE_MATMUL, expand_rows (k, &k->operand[0], k->shape.dim[K]),
           expand_weights (k, &k->operand[2]));
}

void
weft_ref_moe_fp8_matmul_dgrad (const struct weft_kernel *k)
{
  ref_fp8 (k, WEFT_OP_MOE_MATMUL_DGRAD, expand_rows (k, &k->operand[0], k->shape.dim[N]),
           expand_weights (k, &k->operand[2]));
}

void
weft_ref_moe_fp8_matmul_wgrad (const struct weft_kernel *k)
{
  ref_fp8 (k, WEFT_OP_MOE_MATMUL_WGRAD, expand_rows (k, &k->operand[0], k->shape.dim[N]),
           expand_rows (k, &k->operand[2], k->shape.dim[K]));
}

/* The fp8 ops run the functions of the other types, which read the types from the operands. */
void
weft_cpu_moe_fp8_matmul (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  multiply (k, k->shape.dim[N], part, parts);
}

void
weft_cpu_moe_fp8_matmul_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  multiply (k, k->shape.dim[K], part, parts);
}

void
weft_cpu_moe_fp8_matmul_wgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_cpu_moe_matmul_wgrad (k, part, parts);
}

uint64_t
weft_extent_moe_fp8_matmul (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_matmul (k, operand);
}

uint64_t
weft_extent_moe_fp8_matmul_dgrad (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_matmul (k, operand);
}

uint64_t
weft_extent_moe_fp8_matmul_wgrad (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_matmul_wgrad (k, operand);
}
