/* Linear layers of experts: one product for each of them, over the rows it has. */
#include "kernels/float.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/part.h"
#include "kernels/sums.h"

enum { X, W, COUNTS, Y }; /* forward; backward has dy, w, counts, dx */
enum { WGRAD_DY, WGRAD_X, WGRAD_COUNTS, DW };
enum { M, N, K, EXPERTS, STRIDE, LEAVES, TAIL };
enum { SOURCES = LEAVES, PARTS }; /* of a weight gradient */

uint64_t
weft_extent_moe_matmul (const struct weft_kernel *k, uint32_t operand)
{
  return operand == W ? k->shape.dim[EXPERTS] * k->shape.dim[N] * k->shape.dim[K] : 0;
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
rows_of (const struct weft_kernel *k, const struct weft_operand *counts, uint64_t e)
{
  return weft_moe_rows_of (counts, e, k->shape.dim[EXPERTS], k->shape.dim[STRIDE], k->shape.dim[M]);
}

/* ------------------------------------------------------ y = x w^T, dx = dy w, by expert */

/* Parts share the columns: rows of an expert may be few. */
static void
multiply (const struct weft_kernel *k, uint64_t columns, uint64_t terms, struct weft_factor w,
          struct weft_range part)
{
  const struct weft_operand *x = &k->operand[X], *y = &k->operand[Y];

  for (uint64_t e = 0; e < k->shape.dim[EXPERTS]; e++) {
    struct weft_moe_rows rows = rows_of (k, &k->operand[COUNTS], e);
    struct weft_gemm g = {
      .a = { element (x, rows.first * terms), terms, 1, x->dtype },
      .b = w,
      .c = { .data = element (y, rows.first * columns + part.begin),
             .row = columns,
             .dtype = y->dtype },
      .last = rows.n,
      .columns = part.end - part.begin,
      .terms = weft_leaves_dealt (terms, (uint32_t) k->shape.dim[LEAVES], k->shape.dim[TAIL]),
    };
    g.b.data = element (&k->operand[W], e * columns * terms + part.begin * w.along);
    weft_gemm (&g);
  }
}

void
weft_cpu_moe_matmul (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;

  multiply (k, dim[N], dim[K],
            (struct weft_factor){ .along = dim[K], .sum = 1, .dtype = k->operand[W].dtype },
            weft_part (dim[N], WEFT_TILE_COLUMNS, part, parts));
}

void
weft_cpu_moe_matmul_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;

  multiply (k, dim[K], dim[N],
            (struct weft_factor){ .along = 1, .sum = dim[K], .dtype = k->operand[W].dtype },
            weft_part (dim[K], WEFT_TILE_COLUMNS, part, parts));
}

/* `along` and `sum` are those of the weights. */
static void
ref_multiply (const struct weft_kernel *k, uint64_t columns, uint64_t terms, uint64_t along,
              uint64_t sum)
{
  const double *x = k->operand[X].data, *w = k->operand[W].data;
  double *y = k->operand[Y].data;

  for (uint64_t e = 0; e < k->shape.dim[EXPERTS]; e++) {
    struct weft_moe_rows rows = rows_of (k, &k->operand[COUNTS], e);
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

/* Floats of a stack of sums. */
#define ROOM 65536

/* A gradient of one expert: of all its rows, or in canonical order of those of some sources, whose tokens
 * make whole sequences, one sequence after the other.  In that order dw holds the gradients slice by
 * slice: [slices][experts][n][k]. */
struct gradient {
  const struct weft_kernel *k;
  const int64_t *count;   /* of rows, by source and part of its tokens */
  uint32_t leaves, parts; /* counts of a leaf */
  uint64_t each;          /* counts of a source */
  uint64_t first;         /* row */
  uint64_t at;            /* element of dw */
};

/* The row that leaf l begins with; padded, every source has as many. */
static uint64_t
row_of (const struct gradient *g, uint32_t l)
{
  uint64_t stride = g->k->shape.dim[STRIDE], n = (uint64_t) l * g->parts;

  if (!stride)
    return g->first + weft_moe_count (g->count, 0, n);
  return g->first + n / g->each * stride +
         weft_moe_count (g->count, n / g->each * g->each, n % g->each);
}

/* n rows of dw from `row` on, and some columns of them: what lies together. */
static void
sum_block (const struct gradient *g, struct weft_range rows, struct weft_range columns)
{
  const struct weft_kernel *k = g->k;
  const struct weft_operand *dy = &k->operand[WGRAD_DY], *x = &k->operand[WGRAD_X];
  uint64_t n = k->shape.dim[N], wide = k->shape.dim[K];
  float room[ROOM];
  struct weft_sums sums = { .output = &k->operand[DW],
                            .room = room,
                            .n = (rows.end - rows.begin) * (columns.end - columns.begin),
                            .n_leaf = g->leaves,
                            .rounds = k->canonical };

  for (uint32_t i = 0; i < g->leaves; i++) {
    uint32_t chunks = weft_sums_chunks (k),
             l = i / chunks * chunks + weft_zigzag (i % chunks, chunks);
    uint64_t terms = weft_moe_count (g->count, (uint64_t) l * g->parts, g->parts),
             at = row_of (g, l);
    if (terms == 0) {
      weft_sums_skip (&sums);
      continue;
    }
    struct weft_gemm product = {
      .a = { element (dy, at * n + rows.begin), 1, n, dy->dtype },
      .b = { element (x, at * wide + columns.begin), 1, wide, x->dtype },
      .c = { .data = weft_sums_leaf (&sums), .row = columns.end - columns.begin },
      .last = rows.end - rows.begin,
      .columns = columns.end - columns.begin,
      .terms = weft_leaves_one (terms),
    };
    weft_gemm (&product);
    weft_sums_close (&sums);
  }
  weft_sums_store (&sums, g->at + rows.begin * wide + columns.begin);
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

/* One sum over all rows; those that pad are 0. */
static void
sum_all (const struct weft_kernel *k, uint64_t e, struct weft_range rows)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_moe_rows all = rows_of (k, &k->operand[WGRAD_COUNTS], e);
  int64_t n = (int64_t) all.n;

  sum_rows (&(struct gradient){ k, &n, 1, 1, 1, all.first, e * dim[N] * dim[K] }, rows);
}

static uint64_t
slices_of (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  return k->canonical ? k->operand[DW].n / (dim[EXPERTS] * dim[N] * dim[K]) : 1;
}

static uint64_t
sources_of (const struct weft_kernel *k)
{
  return k->shape.dim[SOURCES] ? k->shape.dim[SOURCES] : slices_of (k);
}

/* Where the rows of one expert begin that a slice of dw is taken over. */
static uint64_t
slice_begins (const struct weft_kernel *k, uint64_t block)
{
  const struct weft_operand *counts = &k->operand[WGRAD_COUNTS];
  uint64_t n = counts->n / k->shape.dim[EXPERTS] / slices_of (k);

  if (k->shape.dim[STRIDE])
    return block * (sources_of (k) / slices_of (k)) * k->shape.dim[STRIDE];
  return weft_moe_count (counts->data, 0, block * n);
}

static void
sum_slices (const struct weft_kernel *k, uint64_t e, struct weft_range rows)
{
  const uint64_t *dim = k->shape.dim;
  const struct weft_operand *counts = &k->operand[WGRAD_COUNTS];
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

/* The gradient of one expert in one slice of dw. */
static void
ref_gradient (const struct weft_kernel *k, struct weft_moe_rows rows, double *dw)
{
  const uint64_t *dim = k->shape.dim;
  const double *dy = k->operand[WGRAD_DY].data, *x = k->operand[WGRAD_X].data;

  for (uint64_t n = 0; n < dim[N]; n++)
    for (uint64_t t = 0; t < dim[K]; t++) {
      double sum = k->operand[DW].accumulate ? dw[n * dim[K] + t] : 0;
      for (uint64_t r = rows.first; r < rows.first + rows.n; r++)
        sum += dy[r * dim[N] + n] * x[r * dim[K] + t];
      dw[n * dim[K] + t] = sum;
    }
}

void
weft_ref_moe_matmul_wgrad (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim, size = dim[EXPERTS] * dim[N] * dim[K];
  const struct weft_operand *counts = &k->operand[WGRAD_COUNTS];
  uint64_t slices = slices_of (k), per = counts->n / dim[EXPERTS] / slices;
  double *dw = k->operand[DW].data;

  for (uint64_t e = 0; e < dim[EXPERTS]; e++)
    for (uint64_t s = 0; s < slices; s++) {
      uint64_t block = e * slices + s;
      struct weft_moe_rows rows = rows_of (k, counts, e);
      if (k->canonical)
        rows =
            (struct weft_moe_rows){ slice_begins (k, block),
                                    dim[STRIDE] ? sources_of (k) / slices * dim[STRIDE]
                                                : weft_moe_count (counts->data, block * per, per) };
      ref_gradient (k, rows, dw + s * size + e * dim[N] * dim[K]);
    }
}
