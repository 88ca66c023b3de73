/* Matrix products: cache blocking and the order of canonical sums.
 *
 * Scratch, in floats: a block of a, a block of b, and a block of c (in canonical order a stack of
 * blocks). Blocks of b pass through the L1 cache panel by panel; all three blocks fit into the L2
 * cache. */
#include "kernels/gemm.h"
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/sums.h"

#define TERMS 240 /* number of terms in a panel of b, which then has 30 kB */
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

/* Divides n into the fewest pieces of at most `most`, all of about equal size. */
static uint64_t
even_piece (uint64_t n, uint64_t most, uint64_t unit)
{
  uint64_t pieces = MAX (1, (n + most - 1) / most);

  return MAX (unit, round_up ((n + pieces - 1) / pieces, unit));
}

/* -------------------------------------------------------------------------- storing sums */

/* A stack of partial sums for one block of the result, if the sum is a tree over leaves
 * (core/base/fold.h). Each entry is a partial sum that waits for the other partial sum of its tree
 * node. */
struct stack {
  float *entry;
  uint64_t n; /* number of floats of an entry */
  uint32_t top, leaves;
  enum weft_dtype dtype; /* type to which partial sums are rounded */
};

static struct stack
stack_new (uint32_t leaves, const struct weft_gemm_result *c)
{
  return (struct stack){ .entry = weft_scratch () + A_ROOM + B_ROOM,
                         .leaves = leaves,
                         .dtype = c->rounds ? c->dtype : WEFT_FP32 };
}

static void
join_sums (void *stack, uint32_t below)
{
  const struct stack *s = stack;
  float *left = s->entry + below * s->n, *right = left + s->n;

  weft_sums_add (left, right, s->n);
  weft_round (s->dtype, s->n, left);
}

/* Adds the sum of leaf i to the tree sum (core/base/fold.h). The sum of the leaf is in `top`, the
 * first free entry of the stack. */
static void
push_leaf (struct stack *s, uint32_t i)
{
  weft_round (s->dtype, s->n, s->entry + s->top * s->n);
  s->top = weft_fold_push (s->top, i, s->leaves, join_sums, s);
}

/* Adds the bias to n <= WEFT_STRETCH sums of one row, and stores them, or adds them to the old
 * contents. */
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

/* A block of the result: a range of rows and a range of columns. */
struct area {
  uint64_t row, rows, column, columns;
  uint64_t c_row; /* distance between rows of the block's sums, in floats */
};

static struct weft_block
block_of (const struct weft_gemm *g, const struct area *area)
{
  return (struct weft_block){
    .rows = round_up (area->rows, g->tile->rows),
    .columns = round_up (area->columns, g->tile->columns),
    .a_step = g->tile->rows,
    .b_step = g->tile->columns,
    .c_row = area->c_row,
    .fresh = TRUE,
  };
}

/* Adds the products of a range of terms to the sums of a block of the result. */
static void
sum_terms (const struct weft_gemm *g, const struct area *area, struct weft_range terms,
           struct weft_block *block, float *c)
{
  const struct weft_tile *tile = g->tile;
  float *a = weft_scratch (), *b = a + A_ROOM;
  uint64_t step = even_piece (terms.end - terms.begin, TERMS, 1);

  for (uint64_t t = terms.begin; t < terms.end; t += block->terms, block->fresh = FALSE) {
    block->terms = MIN (step, terms.end - t);
    block->a_next = block->a_step * block->terms;
    block->b_next = block->b_step * block->terms;
    struct weft_pack_range range = { area->row, area->rows, t, block->terms };
    weft_pack (&g->a, &range, tile->rows, a);
    range = (struct weft_pack_range){ area->column, area->columns, t, block->terms };
    weft_pack (&g->b, &range, tile->columns, b);
    weft_block_multiply (tile, block, a, b, c);
  }
}

static void
sum_leaf (const struct weft_gemm *g, const struct area *area, uint32_t leaf, float *c)
{
  struct weft_block block = block_of (g, area);

  for (uint32_t s = 0; s < WEFT_LEAF_SEGMENTS; s++)
    sum_terms (g, area, weft_leaves_segment (&g->terms, leaf, s), &block, c);
  if (block.fresh)
    memset (c, 0, block.rows * block.c_row * sizeof *c);
}

static void
make_area (const struct weft_gemm *g, const struct area *area, struct stack stack)
{
  stack.n = round_up (area->rows, WEFT_TILE_ROWS) * area->c_row;
  for (uint32_t i = 0; i < stack.leaves; i++) {
    sum_leaf (g, area, i, stack.entry + stack.top * stack.n);
    push_leaf (&stack, i);
  }
  for (uint64_t i = 0; i < area->rows; i++)
    finish_row (&g->c, area->row + i, area->column, area->columns, stack.entry + i * area->c_row);
}

/* The largest block of the result, about as high as wide, for which a stack of partial sums fits
 * into the scratch. */
static struct area
largest_area (const struct weft_gemm *g, const struct stack *stack)
{
  uint64_t room = C_ROOM / weft_fold_depth (stack->leaves);
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
  struct stack stack = stack_new (g.terms.n, &g.c);
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

/* For each column j of a range of at most WEFT_STRETCH columns: adds the terms of the range to
 * sum[j]. */
static void
sum_columns (const struct weft_factor *x, const struct weft_pack_range *range, float *sum)
{
  float room[WEFT_STRETCH];

  for (uint64_t t = 0; t < range->terms; t++) {
    uint64_t at = range->first * x->along + (range->term + t) * x->sum;
    const struct weft_pack_range one = { range->first, range->n, range->term + t, 1 };
    const float *row = room;
    if (x->along == 1)
      row = weft_floats (x->data, x->dtype, at, range->n, room);
    else
      weft_pack (x, &one, (uint32_t) range->n, room);
    for (uint64_t j = 0; j < range->n; j++)
      sum[j] += row[j];
  }
}

void
weft_gemm_sums (const struct weft_factor *x, const struct weft_gemm_result *c,
                struct weft_range columns, const struct weft_leaves *terms)
{
  for (uint64_t j = columns.begin; j < columns.end; j += WEFT_STRETCH) {
    struct stack stack = stack_new (terms->n, c);
    stack.n = MIN (WEFT_STRETCH, columns.end - j);
    for (uint32_t i = 0; i < stack.leaves; i++) {
      float *sum = memset (stack.entry + stack.top * stack.n, 0, stack.n * sizeof *sum);
      for (uint32_t s = 0; s < WEFT_LEAF_SEGMENTS; s++) {
        struct weft_range some = weft_leaves_segment (terms, i, s);
        struct weft_pack_range range = { j, stack.n, some.begin, some.end - some.begin };
        sum_columns (x, &range, sum);
      }
      push_leaf (&stack, i);
    }
    finish_row (c, 0, j, stack.n, stack.entry);
  }
}
