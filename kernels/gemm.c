/* Whole products: blocks that fit into the caches, and the order of canonical sums.
 *
 * Rooms of the scratch, in floats: a block of a, a block of b, and blocks of c: one, or a stack of
 * them in canonical order.  Blocks of b meet the first-level cache one panel at a time, all three
 * live in the second. */
#include "kernels/gemm.h"
#include "core/fold.h"
#include "core/zigzag.h"
#include "kernels/float.h"

#define TERMS 240 /* a panel of b: 30 kB */
#define ROWS 240
#define COLUMNS 384
#define A_ROOM (ROWS * TERMS)
#define B_ROOM (COLUMNS * TERMS)
#define C_ROOM (WEFT_SCRATCH_FLOATS - A_ROOM - B_ROOM)
_Static_assert(C_ROOM >= ROWS * COLUMNS, "a block of c has room");
_Static_assert(ROWS % WEFT_TILE_ROWS == 0 && COLUMNS % WEFT_TILE_COLUMNS == 0, "whole tiles");

static uint64_t
round_up (uint64_t n, uint64_t unit)
{
  return (n + unit - 1) / unit * unit;
}

/* n in as few pieces of at most `most` as there must be, and those alike. */
static uint64_t
even_piece (uint64_t n, uint64_t most, uint64_t unit)
{
  uint64_t pieces = MAX (1, (n + most - 1) / most);

  return MAX (unit, round_up ((n + pieces - 1) / pieces, unit));
}

/* ------------------------------------------------------------------ what becomes of sums */

/* Sums over leaves, all of the same elements of the result. */
struct stack {
  float *entry;
  uint64_t n; /* floats of an entry */
  uint32_t top, leaves;
  uint64_t leaf; /* terms of each */
  uint32_t zigzag;
};

static struct stack
stack_new (const struct weft_gemm_result *c, uint64_t terms)
{
  struct stack s = { .entry = weft_scratch () + A_ROOM + B_ROOM,
                     .leaves = 1,
                     .leaf = terms,
                     .zigzag = MAX (1, c->zigzag) };

  if (c->leaf > 0 && terms > 0) {
    g_assert (terms % c->leaf == 0);
    s.leaves = (uint32_t) (terms / c->leaf);
    s.leaf = c->leaf;
  }
  return s;
}

/* The first term of leaf i. */
static uint64_t
leaf_start (const struct stack *s, uint32_t i)
{
  return (i - i % s->zigzag + weft_zigzag (i % s->zigzag, s->zigzag)) * s->leaf;
}

/* The sum over leaf i is the entry at `top`. */
static void
push_leaf (struct stack *s, uint32_t i, enum weft_dtype dtype)
{
  weft_round (dtype, s->n, s->entry + s->top++ * s->n);
  for (uint32_t merges = weft_fold_merges (i, s->leaves); merges > 0; merges--) {
    float *right = s->entry + --s->top * s->n, *left = right - s->n;
    for (uint64_t e = 0; e < s->n; e++)
      left[e] += right[e];
    weft_round (dtype, s->n, left);
  }
}

/* n <= WEFT_STRETCH sums of one row of the result. */
static void
finish_row (const struct weft_gemm_result *c, uint64_t row, uint64_t column, uint64_t n, float *sum)
{
  uint64_t at = row * c->row + column;
  float room[WEFT_STRETCH];

  if (c->bias) {
    const float *bias = weft_floats (c->bias, c->bias_dtype, column, n, room);
    for (uint64_t j = 0; j < n; j++)
      sum[j] += bias[j];
  }
  if (c->accumulate) {
    const float *old = weft_floats (c->data, c->dtype, at, n, room);
    for (uint64_t j = 0; j < n; j++)
      sum[j] += old[j];
  }
  weft_store (c->data, c->dtype, at, n, sum);
}

/* ---------------------------------------------------------------------------- products */

/* A block of the result. */
struct area {
  uint64_t row, rows, column, columns;
  uint64_t c_row; /* floats from one row of its sums to the next */
};

/* The sums of a block over terms [first, last). */
static void
sum_terms (const struct weft_gemm *g, const struct area *area, uint64_t first, uint64_t last,
           float *c)
{
  const struct weft_tile *tile = g->tile;
  float *a = weft_scratch (), *b = a + A_ROOM;
  struct weft_block block = {
    .rows = round_up (area->rows, tile->rows),
    .columns = round_up (area->columns, tile->columns),
    .a_step = tile->rows,
    .b_step = tile->columns,
    .c_row = area->c_row,
    .fresh = TRUE,
  };
  uint64_t step = even_piece (last - first, TERMS, 1);

  if (first == last)
    memset (c, 0, block.rows * block.c_row * sizeof *c);
  for (uint64_t t = first; t < last; t += block.terms, block.fresh = FALSE) {
    block.terms = MIN (step, last - t);
    block.a_next = block.a_step * block.terms;
    block.b_next = block.b_step * block.terms;
    struct weft_pack_range range = { area->row, area->rows, t, block.terms };
    weft_pack (&g->a, &range, tile->rows, a);
    range = (struct weft_pack_range){ area->column, area->columns, t, block.terms };
    weft_pack (&g->b, &range, tile->columns, b);
    weft_block_multiply (tile, &block, a, b, c);
  }
}

static void
make_area (const struct weft_gemm *g, const struct area *area, struct stack stack)
{
  stack.n = round_up (area->rows, WEFT_TILE_ROWS) * area->c_row;
  for (uint32_t i = 0; i < stack.leaves; i++) {
    uint64_t first = leaf_start (&stack, i);
    sum_terms (g, area, first, first + stack.leaf, stack.entry + stack.top * stack.n);
    if (g->c.leaf > 0)
      push_leaf (&stack, i, g->c.dtype);
  }
  for (uint64_t i = 0; i < area->rows; i++)
    finish_row (&g->c, area->row + i, area->column, area->columns, stack.entry + i * area->c_row);
}

/* The largest area whose stack has room, near to a square: the deeper the stack, the smaller. */
static struct area
largest_area (const struct weft_gemm *g, const struct stack *stack)
{
  uint64_t room = C_ROOM / (g->c.leaf > 0 ? weft_fold_depth (stack->leaves) : 1);
  uint64_t columns = COLUMNS;

  while (columns * columns / 2 > room && columns / 2 % WEFT_TILE_COLUMNS == 0)
    columns /= 2;
  uint64_t rows = MIN (room / columns, ROWS) / WEFT_TILE_ROWS * WEFT_TILE_ROWS;
  g_assert (rows > 0);
  return (struct area){ .rows = even_piece (g->last - g->first, rows, WEFT_TILE_ROWS),
                        .columns = even_piece (g->columns, columns, WEFT_TILE_COLUMNS) };
}

void
weft_gemm (const struct weft_gemm *given)
{
  struct weft_gemm g = *given;
  if (!g.tile)
    g.tile = weft_tile_best ();
  struct stack stack = stack_new (&g.c, g.terms);
  struct area most = largest_area (&g, &stack), area = { .c_row = most.columns };

  for (area.column = 0; area.column < g.columns; area.column += most.columns) {
    area.columns = MIN (most.columns, g.columns - area.column);
    for (area.row = g.first; area.row < g.last; area.row += most.rows) {
      area.rows = MIN (most.rows, g.last - area.row);
      make_area (&g, &area, stack);
    }
  }
}

/* -------------------------------------------------------------------------------- sums */

/* Of n <= WEFT_STRETCH columns over terms [term, last). */
static void
sum_columns (const struct weft_factor *x, const struct weft_pack_range *range, float *sum)
{
  float room[WEFT_STRETCH];

  memset (sum, 0, range->n * sizeof *sum);
  for (uint64_t t = 0; t < range->terms; t++) {
    uint64_t at = range->first * x->along + (range->term + t) * x->sum;
    const float *row = weft_floats (x->data, x->dtype, at, range->n, room);
    for (uint64_t j = 0; j < range->n; j++)
      sum[j] += row[j];
  }
}

void
weft_gemm_sums (const struct weft_factor *x, const struct weft_gemm_result *c, uint64_t first,
                uint64_t last, uint64_t terms)
{
  g_assert (x->along == 1);
  for (uint64_t j = first; j < last; j += WEFT_STRETCH) {
    struct stack stack = stack_new (c, terms);
    stack.n = MIN (WEFT_STRETCH, last - j);
    for (uint32_t i = 0; i < stack.leaves; i++) {
      struct weft_pack_range range = { j, stack.n, leaf_start (&stack, i), stack.leaf };
      sum_columns (x, &range, stack.entry + stack.top * stack.n);
      if (c->leaf > 0)
        push_leaf (&stack, i, c->dtype);
    }
    finish_row (c, 0, j, stack.n, stack.entry);
  }
}
