/* Fused attention, forward and backward, from two matrix products per pair of blocks.
 *
 * Queries and keys are runs of tokens that are contiguous in their sequence: one run if a rank has
 * the whole sequence, two with zigzag context parallelism (core/base/zigzag.h). The causal mask
 * follows from positions alone.
 *
 * The outer block stays in registers and cache during a loop over the inner blocks:
 *
 *   tile(in, out) = sum over w of inner(in, w) outer(out, w)
 *   sum(out, w)  += sum over in of tile(in, out) value(in, w)
 *
 *   forward    outer: queries         inner: keys            value: values
 *   backward   outer: keys, values    inner: queries, do     value: do, queries    gives dv, dk
 *              outer: queries, do     inner: keys, values    value: keys           gives dq
 *
 * Backward computes the probabilities twice: with one pass, dq or dk would have to be accumulated
 * in memory that grows with the sequence. In canonical order, a sum over queries is computed for
 * each chunk of the sequence in fp32, and the sums of the chunks are added as a tree. */
#include "kernels/attention.h"
#include "kernels/bend.h"
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include "kernels/sums.h"
#include "kernels/traits.h"

#define OUTER 128
#define INNER 64
#define UNIT WEFT_TILE_COLUMNS
/* Columns of a head that are processed at a time; a wider head recomputes its scores each time. */
#define WIDTH 256
/* Columns of a head that are processed at a time for gradients of keys and values: fewer, because a
 * sum over leaves (kernels/leaves.h) keeps a stack of partial sums in the scratch. */
#define LEAF_WIDTH 128
#define DEPTH 4 /* stack entries of a tree sum (core/base/fold.h) of WEFT_MOST_CHUNKS leaves */
_Static_assert(OUTER % UNIT == 0 && UNIT % WEFT_TILE_ROWS == 0 && WIDTH % UNIT == 0 &&
                   INNER % WEFT_TILE_ROWS == 0,
               "whole tiles");

enum { BATCH, SEQUENCE, HEADS, GROUPS, HEAD_WIDTH, WINDOW, VALUE_WIDTH };
enum { TOKENS, KEYS }; /* first two dimension numbers of attention_part(_bwd) */
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };
enum { PART_Q, PART_KV, PART_O, PART_LSE };
enum { PART_BWD_Q, PART_BWD_KV, PART_BWD_O, PART_BWD_LSE, PART_BWD_DO, PART_DQ, PART_DKV };

struct room {
  float outer[2][OUTER * WIDTH];            /* panels of the outer block (packed for products) */
  float inner[INNER * WIDTH];               /* inner block, packed for sums along the head */
  float value[INNER * WIDTH];               /* values, packed for sums over tokens */
  /* a stack of partial sums with LEAF_WIDTH columns, or one sum with twice as many columns */
  float sum[2 * DEPTH][OUTER * LEAF_WIDTH];
  /* [0]: scores or probabilities of a pair of blocks; [1]: their gradients */
  float tile[2][INNER * OUTER];
  float peak[OUTER], total[OUTER], shrink[OUTER];
  float outer_lse[OUTER], outer_delta[OUTER], inner_lse[INNER], inner_delta[INNER];
};
_Static_assert(sizeof (struct room) <= WEFT_SCRATCH_FLOATS * sizeof (float), "scratch");

struct span {
  uint64_t first, n;
};

/* A run of contiguous tokens: their rows in the array, and the position of the first token in the
 * sequence. */
struct run {
  struct span rows;
  uint64_t position;
};

/* The tokens of a sequence that one side (queries or keys) has on this rank. */
struct side {
  uint64_t tokens;
  uint32_t n;
  struct run run[2];
};

/* The heads of queries, keys or values in an array that has one row per token. */
struct heads {
  const struct weft_operand *of;
  uint64_t row, column; /* number of elements in a row; column at which the first head begins */
  uint64_t width;       /* number of elements of a head */
};

struct attention {
  const struct weft_tile *tile;
  struct heads q, k, v, o, d_o, dq, dk, dv;
  const struct weft_operand *lse;
  struct side queries, keys;
  uint64_t batch, n_heads, groups;
  /* number of elements of a query or key head; number of elements of a value head */
  uint64_t width, value;
  uint64_t window;       /* number of keys that a query sees, including the key of its own token */
  uint64_t sum_row;
  uint32_t leaves; /* partial sums (kernels/leaves.h) of a sum over the queries of a sequence */
  float scale;
  float cap;                        /* scores x become cap tanh (x / cap); 0: no soft-capping */
  const struct weft_kernel *kernel; /* the kernel call; the ALiBi slopes of heads depend on it */
  struct room *room;
};

/* One head of one sequence. */
struct strip {
  const struct weft_operand *of;
  uint64_t row;    /* distance in elements from one token to the next */
  uint64_t column; /* column of the row at which this head begins */
  uint64_t width;
  uint64_t token; /* index of the row at which this sequence begins */
};

/* A pair of blocks and their tile: rows are tokens of the inner block, columns of the outer block.
 * In row r, columns [from + r, to + r) are visible. Columns [low, high), rounded to whole tiles,
 * contain all columns that are visible in at least one row. */
struct pair {
  struct span outer, inner;
  int64_t from, to;
  uint64_t low, high;
};

static struct span
piece (uint64_t first, uint64_t most, uint64_t end)
{
  return (struct span){ first, MIN (most, end - first) };
}

/* Rows [from, from + most) of a run of contiguous tokens, or fewer at the end of the run. */
static struct run
part_of (const struct run *run, uint64_t from, uint64_t most)
{
  return (struct run){ { run->rows.first + from, MIN (most, run->rows.n - from) },
                       run->position + from };
}

static struct side
side_of (struct weft_place place, uint64_t tokens)
{
  uint64_t half = tokens / 2;

  if (place.of <= 1)
    return (struct side){ tokens, 1, { { { 0, tokens }, 0 } } };
  return (struct side){ tokens,
                        2,
                        { { { 0, half }, weft_position (place, tokens, 0) },
                          { { half, half }, weft_position (place, tokens, half) } } };
}

/* Number of blocks of at most OUTER tokens. A block contains tokens of one run only. */
static uint64_t
blocks_of (const struct side *side)
{
  return side->n * ((side->run[0].rows.n + OUTER - 1) / OUTER);
}

static struct run
block_at (const struct side *side, uint64_t block)
{
  uint64_t each = blocks_of (side) / side->n;

  return part_of (&side->run[block / each], block % each * OUTER, OUTER);
}

/* Sets the fields that all kinds of attention ops share: all sizes except the numbers of queries
 * and keys. */
static struct attention
describe_any (const struct weft_attention *call, uint64_t sequence)
{
  const struct weft_kernel *k = call->kernel;
  const uint64_t *dim = k->shape.dim;
  return (struct attention){
    .tile = call->tile,
    .n_heads = dim[HEADS],
    .groups = dim[GROUPS],
    .width = dim[HEAD_WIDTH],
    .value = dim[VALUE_WIDTH] ? dim[VALUE_WIDTH] : dim[HEAD_WIDTH],
    .window = dim[WINDOW] > 0 && dim[WINDOW] < sequence ? dim[WINDOW] : sequence,
    .sum_row = (MIN (MAX (dim[HEAD_WIDTH], dim[VALUE_WIDTH]), WIDTH) + UNIT - 1) / UNIT * UNIT,
    .leaves = k->canonical ? weft_chunks (sequence) : 1,
    .scale = weft_attention_scale (k, dim[HEAD_WIDTH]),
    .cap = (float) k->model->attn_logit_softcapping,
    .kernel = k,
    .room = (struct room *) weft_scratch (),
  };
}

/* The key heads in an operand with `row` elements per row; the first head begins at column `column`
 * of each row. value_heads() is for heads with the width of a value. */
static struct heads
key_heads (const struct attention *a, const struct weft_operand *of, uint64_t row, uint64_t column)
{
  return (struct heads){ of, row, column, a->width };
}

static struct heads
value_heads (const struct attention *a, const struct weft_operand *of, uint64_t row,
             uint64_t column)
{
  return (struct heads){ of, row, column, a->value };
}

/* Describes attention whose queries, keys and values are in one array. */
static struct attention
describe_whole (const struct weft_attention *call)
{
  const uint64_t *dim = call->kernel->shape.dim;
  struct attention a = describe_any (call, dim[SEQUENCE]);
  const struct weft_operand *o = call->kernel->operand;
  gboolean backward = call->kernel->kind == WEFT_OP_ATTENTION_BWD;
  uint64_t k = a.n_heads * a.width, v = k + a.groups * a.width, all = v + a.groups * a.value;
  uint64_t values = a.n_heads * a.value;

  a.batch = dim[BATCH];
  a.queries = a.keys = side_of ((struct weft_place){ 0, 1 }, dim[SEQUENCE]);
  a.q = key_heads (&a, &o[QKV], all, 0);
  a.k = key_heads (&a, &o[QKV], all, k);
  a.v = value_heads (&a, &o[QKV], all, v);
  a.o = value_heads (&a, &o[backward ? BWD_O : O], values, 0);
  a.lse = &o[backward ? BWD_LSE : LSE];
  a.d_o = value_heads (&a, &o[BWD_DO], values, 0);
  a.dq = key_heads (&a, &o[BWD_DQKV], all, 0);
  a.dk = key_heads (&a, &o[BWD_DQKV], all, k);
  a.dv = value_heads (&a, &o[BWD_DQKV], all, v);
  return a;
}

/* Describes context-parallel attention: queries of this rank; keys and values of the whole sequence
 * (all-gather), or of the rank `before` places earlier (ring attention). */
static struct attention
describe_part (const struct weft_attention *call)
{
  const struct weft_kernel *k = call->kernel;
  const struct weft_operand *o = k->operand;
  struct weft_place place = { k->cp.at, MAX (1, k->cp.of) }, from = place;
  uint64_t tokens = weft_kernel_sequence (k);
  struct attention a = describe_any (call, tokens * place.of);
  gboolean backward = k->kind == WEFT_OP_ATTENTION_PART_BWD;
  uint64_t keys = a.groups * a.width, kv = keys + a.groups * a.value;
  uint64_t all = a.n_heads * a.width + kv, values = a.n_heads * a.value;

  from.at = (place.at + place.of - k->before) % place.of;
  if (k->shape.dim[KEYS] == tokens * place.of)
    from = (struct weft_place){ 0, 1 };
  a.batch = k->shape.dim[TOKENS] / tokens;
  a.leaves = MAX (1, a.leaves / place.of);
  a.queries = side_of (place, tokens);
  a.keys = side_of (from, k->shape.dim[KEYS]);
  a.q = key_heads (&a, &o[PART_Q], all, 0);
  a.k = key_heads (&a, &o[PART_KV], kv, 0);
  a.v = value_heads (&a, &o[PART_KV], kv, keys);
  a.o = value_heads (&a, &o[backward ? PART_BWD_O : PART_O], values, 0);
  a.lse = &o[backward ? PART_BWD_LSE : PART_LSE];
  a.d_o = value_heads (&a, &o[PART_BWD_DO], values, 0);
  a.dq = key_heads (&a, &o[PART_DQ], all, 0);
  a.dk = key_heads (&a, &o[PART_DKV], kv, 0);
  a.dv = value_heads (&a, &o[PART_DKV], kv, keys);
  return a;
}

static struct attention
describe (const struct weft_attention *call)
{
  enum weft_op_kind kind = call->kernel->kind;
  gboolean part = kind == WEFT_OP_ATTENTION_PART || kind == WEFT_OP_ATTENTION_PART_BWD;

  return part ? describe_part (call) : describe_whole (call);
}

/* The work of one thread at a time: an outer block of tokens of one head, and the columns of the
 * head whose sums are computed. */
struct task {
  const struct attention *a;
  uint64_t batch, head; /* batch element, and number of the query head */
  struct run outer;
  struct span columns;
};

static struct strip
strip_of (const struct task *t, struct heads of, uint64_t head, const struct side *side)
{
  return (struct strip){ of.of, of.row, of.column + head * of.width, of.width,
                         t->batch * side->tokens };
}

static struct strip
query_strip (const struct task *t, struct heads of)
{
  return strip_of (t, of, t->head, &t->a->queries);
}

/* The keys (or values) that the query head of the task reads: those of the head's group. */
static struct strip
key_strip (const struct task *t, struct heads of)
{
  return strip_of (t, of, t->head / (t->a->n_heads / t->a->groups), &t->a->keys);
}

/* --------------------------------------------------------------------- pairs of blocks */

static struct pair
meet (struct span outer, struct span inner, int64_t from, uint64_t window)
{
  struct pair p = { outer, inner, from, from + (int64_t) window, 0, 0 };
  int64_t low = MAX (0, p.from), high = MIN ((int64_t) outer.n, p.to + (int64_t) inner.n - 1);

  p.low = (uint64_t) low / UNIT * UNIT;
  p.high = ((uint64_t) MAX (high, low) + UNIT - 1) / UNIT * UNIT;
  return p;
}

static int64_t
ahead (const struct run *run, const struct run *of)
{
  return (int64_t) run->position - (int64_t) of->position;
}

/* The outer block holds queries, the inner block keys. The visible pairs: key j is seen by queries
 * [j, j + window). */
static struct pair
keys_pass (const struct attention *a, const struct run *queries, const struct run *keys)
{
  return meet (queries->rows, keys->rows, ahead (keys, queries), a->window);
}

/* The outer block holds keys, the inner block queries. The visible pairs: query i sees keys (i -
 * window, i]. */
static struct pair
queries_pass (const struct attention *a, const struct run *keys, const struct run *queries)
{
  return meet (keys->rows, queries->rows, ahead (queries, keys) - (int64_t) a->window + 1,
               a->window);
}

/* Rows [first, end) of a run, limited to the rows that exist. The first row is rounded down to the
 * start of a block. */
static struct span
between (const struct run *run, int64_t first, int64_t end)
{
  uint64_t from = (uint64_t) MAX (first, 0) / INNER * INNER;

  end = MIN (end, (int64_t) run->rows.n);
  return (struct span){ from, end > (int64_t) from ? (uint64_t) end - from : 0 };
}

/* The range of keys that at least one query of a block sees. */
static struct span
seen_keys (const struct attention *a, const struct run *queries, const struct run *keys)
{
  int64_t first = ahead (queries, keys);

  return between (keys, first - (int64_t) a->window + 1, first + (int64_t) queries->rows.n);
}

/* The range of queries that see at least one key of a block. */
static struct span
seeing_queries (const struct attention *a, const struct run *keys, const struct run *queries)
{
  int64_t first = ahead (keys, queries);

  return between (queries, first, first + (int64_t) (keys->rows.n - 1 + a->window));
}

static void
pack_rows (const struct strip *s, struct span tokens, struct span columns, uint32_t width,
           float *to)
{
  const struct weft_factor f = { s->of->data, s->row, 1, s->of->dtype };
  const struct weft_pack_range range = { s->token + tokens.first, tokens.n,
                                         s->column + columns.first, columns.n };

  weft_pack (&f, &range, width, to);
}

static void
pack_columns (const struct strip *s, struct span tokens, struct span columns, uint32_t width,
              float *to)
{
  const struct weft_factor f = { s->of->data, 1, s->row, s->of->dtype };
  const struct weft_pack_range range = { s->column + columns.first, columns.n,
                                         s->token + tokens.first, tokens.n };

  weft_pack (&f, &range, width, to);
}

/* Packs the outer block if a head has at most WIDTH columns; the block then stays packed during the
 * whole loop over the inner side. */
static void
pack_outer (const struct attention *a, struct span tokens, const struct strip *outer,
            unsigned which)
{
  if (outer->width <= WIDTH)
    pack_rows (outer, tokens, (struct span){ 0, outer->width }, a->tile->columns,
               a->room->outer[which]);
}

static void
multiply_tile (const struct attention *a, const struct pair *p, const struct strip *outer,
               const struct strip *inner, unsigned which)
{
  struct room *room = a->room;
  uint32_t rows = a->tile->rows, columns = a->tile->columns;

  for (uint64_t w = 0; w < outer->width; w += WIDTH) {
    struct span terms = piece (w, WIDTH, outer->width);
    const struct weft_block block = {
      .rows = (p->inner.n + rows - 1) / rows * rows,
      .columns = p->high - p->low,
      .terms = terms.n,
      .a_step = rows,
      .b_step = columns,
      .a_next = rows * terms.n,
      .b_next = columns * terms.n,
      .c_row = OUTER,
      .fresh = w == 0,
    };
    if (outer->width > WIDTH)
      pack_rows (outer, p->outer, terms, columns, room->outer[which]);
    pack_rows (inner, p->inner, terms, rows, room->inner);
    weft_block_multiply (a->tile, &block, room->inner, room->outer[which] + p->low * terms.n,
                         room->tile[which] + p->low);
  }
}

/* The right factor of a product: a range of columns of the values. The left factor is
 * room->tile[tile], transposed. */
struct factor {
  const struct strip *value;
  struct span columns;
  unsigned tile;
};

/* The part of a range of columns that lies inside the head. */
static struct span
within (const struct strip *s, struct span columns)
{
  uint64_t left = s->width > columns.first ? s->width - columns.first : 0;

  return (struct span){ columns.first, MIN (columns.n, left) };
}

/* sum += p x v for a pair of blocks: the transposed tile times a range of columns of the values. */
static void
add_product (const struct attention *a, const struct pair *p, const struct factor *f, float *sum)
{
  struct room *room = a->room;
  uint32_t width = a->tile->columns;
  struct span columns = within (f->value, f->columns);
  const struct weft_block block = {
    .rows = p->high - p->low,
    .columns = (columns.n + width - 1) / width * width,
    .terms = p->inner.n,
    .a_step = OUTER,
    .b_step = width,
    .a_next = a->tile->rows,
    .b_next = width * p->inner.n,
    .c_row = a->sum_row,
  };

  if (columns.n == 0)
    return;
  pack_columns (f->value, p->inner, columns, width, room->value);
  weft_block_multiply (a->tile, &block, room->tile[f->tile] + p->low, room->value,
                       sum + p->low * a->sum_row);
}

/* Sets the scores of pairs that the mask hides to -infinity. */
static void
hide (const struct pair *p, float *tile)
{
  for (uint64_t r = 0; r < p->inner.n; r++, tile += OUTER) {
    int64_t from = p->from + (int64_t) r, to = p->to + (int64_t) r;
    for (int64_t c = (int64_t) p->low; c < MIN (from, (int64_t) p->high); c++)
      tile[c] = -INFINITY;
    for (int64_t c = MAX (to, (int64_t) p->low); c < (int64_t) p->high; c++)
      tile[c] = -INFINITY;
  }
}

WEFT_WIDE static void
scale_floats (float *x, float by, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    x[i] *= by;
}

/* Turns products of queries and keys into attention scores (bend.h). Returns the factor by which
 * the caller must still multiply the scores. */
static float
bend (const struct task *t, const struct pair *p, gboolean rows_are_keys)
{
  const struct attention *a = t->a;
  float slope = (float) weft_kernel_slope (a->kernel, t->head);
  const struct weft_bend bend = { a->scale, a->cap, slope };
  const struct weft_bend_tile tile = { a->room->tile[0], OUTER, p->inner.n, p->low, p->high,
                                       rows_are_keys ? p->from : p->to - 1, rows_are_keys };

  return weft_bend_scores (&bend, &tile) ? 1 : a->scale;
}

static void
store_sums (const struct attention *a, const struct strip *to, struct span tokens,
            struct span columns, float *sum)
{
  const struct weft_operand *of = to->of;
  float room[WIDTH];

  columns = within (to, columns);
  for (uint64_t i = 0; i < tokens.n && columns.n; i++, sum += a->sum_row) {
    uint64_t at = (to->token + tokens.first + i) * to->row + to->column + columns.first;
    const float *old =
        of->accumulate ? weft_floats (of->data, of->dtype, at, columns.n, room) : sum;
    for (uint64_t w = 0; w < columns.n && of->accumulate; w++)
      sum[w] += old[w];
    weft_store (of->data, of->dtype, at, columns.n, sum);
  }
}

/* Number of floats in the sums of a task's outer block: the rows of the block, rounded up to whole
 * tiles, times the floats per row. */
static uint64_t
n_sums (const struct task *t)
{
  return (t->outer.rows.n + UNIT - 1) / UNIT * UNIT * t->a->sum_row;
}

static void
clear_sums (const struct task *t, float *sum)
{
  memset (sum, 0, n_sums (t) * sizeof *sum);
}

/* ----------------------------------------------------------------------------- forward */

/* Online softmax: turns the scores of a key block into probabilities relative to the largest score
 * so far. A larger score than before rescales the sums so far. A query that has not seen any key
 * uses 0 as its largest score. */
WEFT_WIDE static void
soften (struct room *room, const struct pair *p, float scale)
{
  float shift[OUTER];

  for (uint64_t c = p->low; c < p->high; c++)
    shift[c] = room->peak[c];
  for (uint64_t r = 0; r < p->inner.n; r++) {
    float *score = room->tile[0] + r * OUTER;
    for (uint64_t c = p->low; c < p->high; c++) {
      score[c] *= scale;
      shift[c] = score[c] > shift[c] ? score[c] : shift[c];
    }
  }
  for (uint64_t c = p->low; c < p->high; c++) {
    float before = room->peak[c];
    room->peak[c] = shift[c];
    shift[c] = shift[c] == -INFINITY ? 0 : shift[c];
    room->shrink[c] = weft_expf (before - shift[c]);
    room->total[c] *= room->shrink[c];
  }
  for (uint64_t r = 0; r < p->inner.n; r++) {
    float *score = room->tile[0] + r * OUTER;
    for (uint64_t c = p->low; c < p->high; c++) {
      score[c] = weft_expf (score[c] - shift[c]);
      room->total[c] += score[c];
    }
  }
}

WEFT_WIDE static void
shrink_sums (struct room *room, const struct pair *p, uint64_t sum_row)
{
  for (uint64_t c = p->low; c < p->high; c++) {
    float *sum = room->sum[0] + c * sum_row, factor = room->shrink[c];
    for (uint64_t w = 0; factor != 1 && w < sum_row; w++)
      sum[w] *= factor;
  }
}

/* Divides the output by the sum of exponentials, and stores output and log-sum-exp. A query that
 * sees no key of its part gets output 0 and log-sum-exp -infinity. */
static void
finish_forward (const struct task *t)
{
  const struct attention *a = t->a;
  const struct strip o = query_strip (t, a->o);
  struct room *room = a->room;
  float *lse = (float *) a->lse->data + (t->batch * a->n_heads + t->head) * a->queries.tokens;

  lse += t->outer.rows.first;
  for (uint64_t i = 0; i < t->outer.rows.n; i++) {
    float *sum = room->sum[0] + i * a->sum_row;
    gboolean blind = room->peak[i] == -INFINITY;
    for (uint64_t w = 0; w < t->columns.n && !blind; w++)
      sum[w] /= room->total[i];
    lse[i] = blind ? -INFINITY : room->peak[i] + weft_logf (room->total[i]);
  }
  store_sums (a, &o, t->outer.rows, t->columns, room->sum[0]);
}

static void
pass_keys (const struct task *t, const struct run *keys)
{
  const struct attention *a = t->a;
  const struct strip q = query_strip (t, a->q), k = key_strip (t, a->k), v = key_strip (t, a->v);
  struct span seen = seen_keys (a, &t->outer, keys);
  struct room *room = a->room;

  for (uint64_t at = 0; at < seen.n; at += INNER) {
    struct run block = part_of (keys, seen.first + at, MIN (INNER, seen.n - at));
    struct pair p = keys_pass (a, &t->outer, &block);
    multiply_tile (a, &p, &q, &k, 0);
    float scale = bend (t, &p, TRUE);
    hide (&p, room->tile[0]);
    soften (room, &p, scale);
    shrink_sums (room, &p, a->sum_row);
    add_product (a, &p, &(struct factor){ &v, t->columns, 0 }, room->sum[0]);
  }
}

static void
forward_block (struct task *t)
{
  const struct attention *a = t->a;
  const struct strip q = query_strip (t, a->q);
  struct room *room = a->room;

  pack_outer (a, t->outer.rows, &q, 0);
  for (uint64_t w = 0; w < a->value; w += WIDTH) {
    t->columns = piece (w, WIDTH, a->value);
    for (uint64_t i = 0; i < OUTER; i++) {
      room->peak[i] = -INFINITY;
      room->total[i] = 0;
    }
    clear_sums (t, room->sum[0]);
    for (uint32_t i = 0; i < a->keys.n; i++)
      pass_keys (t, &a->keys.run[i]);
    finish_forward (t);
  }
}

void
weft_attention_forward (const struct weft_attention *call)
{
  const struct attention a = describe (call);
  uint64_t blocks = blocks_of (&a.queries);
  struct weft_range share = weft_part (a.batch * a.n_heads * blocks, 1, call->part, call->parts);

  for (uint64_t i = share.begin; i < share.end; i++) {
    struct task t = { .a = &a,
                      .batch = i / blocks / a.n_heads,
                      .head = i / blocks % a.n_heads,
                      .outer = block_at (&a.queries, i % blocks) };
    forward_block (&t);
  }
}

/* ---------------------------------------------------------------------------- backward */

/* Dot product of two rows: sixteen partial sums, which are added in a fixed order. */
static float
dot (const struct strip *x, const struct strip *y, uint64_t token, uint64_t width)
{
  float lane[16] = { 0 }, x_room[WIDTH], y_room[WIDTH];

  for (uint64_t w = 0; w < width; w += WIDTH) {
    struct span part = piece (w, WIDTH, width);
    const float *left = weft_floats (x->of->data, x->of->dtype,
                                     (x->token + token) * x->row + x->column + w, part.n, x_room);
    const float *right = weft_floats (y->of->data, y->of->dtype,
                                      (y->token + token) * y->row + y->column + w, part.n, y_room);
    for (uint64_t i = 0; i < part.n; i += 16)
      for (uint64_t l = 0; l < MIN (16, part.n - i); l++)
        lane[l] += left[i + l] * right[i + l];
  }
  for (unsigned half = 8; half > 0; half /= 2)
    for (unsigned l = 0; l < half; l++)
      lane[l] += lane[l + half];
  return lane[0];
}

/* Loads the log-sum-exp of each query of a block, and computes its delta: the sum over keys of
 * probability times its gradient, which equals the dot product of o and do. */
static void
load_queries (const struct task *t, struct span queries, float *lse, float *delta)
{
  const struct attention *a = t->a;
  const struct strip o = query_strip (t, a->o), d = query_strip (t, a->d_o);
  const float *from = a->lse->data;

  from += (t->batch * a->n_heads + t->head) * a->queries.tokens + queries.first;
  for (uint64_t i = 0; i < queries.n; i++) {
    lse[i] = from[i];
    delta[i] = dot (&o, &d, queries.first + i, a->value);
  }
}

/* Turns scores into probabilities, and gradients of probabilities into gradients of scores. lse and
 * delta are values of queries; for the block that holds keys (inner or outer) they are 0. */
static void
differentiate (struct room *room, const struct pair *p, float scale, float cap)
{
  weft_bend_gradients (scale, cap,
                       &(struct weft_bend_gradients){ room->tile[0], room->tile[1], OUTER,
                                                      p->inner.n, p->low, p->high, room->inner_lse,
                                                      room->inner_delta, room->outer_lse,
                                                      room->outer_delta });
}

static void
scale_sums (const struct task *t, float *sum)
{
  scale_floats (sum, t->a->scale, n_sums (t));
}

/* Returns entry i of the stack of partial sums. `which` 0: gradients of values; 1: gradients of
 * keys. */
static float *
entry (const struct attention *a, uint32_t i, unsigned which)
{
  return a->room->sum[2 * i + which];
}

/* Adds the contribution of the queries of a run to the gradients of the outer block of keys. */
static void
pass_queries (const struct task *t, const struct run *queries, uint32_t top)
{
  const struct attention *a = t->a;
  const struct strip q = query_strip (t, a->q), k = key_strip (t, a->k);
  const struct strip d = query_strip (t, a->d_o), v = key_strip (t, a->v);
  struct span seeing = seeing_queries (a, &t->outer, queries);

  for (uint64_t at = 0; at < seeing.n; at += INNER) {
    struct run block = part_of (queries, seeing.first + at, MIN (INNER, seeing.n - at));
    struct pair p = queries_pass (a, &t->outer, &block);
    load_queries (t, p.inner, a->room->inner_lse, a->room->inner_delta);
    multiply_tile (a, &p, &k, &q, 0);
    multiply_tile (a, &p, &v, &d, 1);
    float scale = bend (t, &p, FALSE);
    hide (&p, a->room->tile[0]);
    differentiate (a->room, &p, scale, a->cap);
    add_product (a, &p, &(struct factor){ &d, t->columns, 0 }, entry (a, top, 0));
    add_product (a, &p, &(struct factor){ &q, t->columns, 1 }, entry (a, top, 1));
  }
}

/* Sums the contributions of the queries in one leaf of the canonical sum. The query heads of a
 * group are added in order. */
static void
sum_leaf (struct task *t, uint32_t leaf, uint32_t top)
{
  const struct attention *a = t->a;
  uint64_t ratio = a->n_heads / a->groups, first_head = t->head, n = a->queries.tokens / a->leaves;
  uint64_t first = weft_zigzag (leaf, a->leaves) * n;

  clear_sums (t, entry (a, top, 0));
  clear_sums (t, entry (a, top, 1));
  for (; t->head < first_head + ratio; t->head++)
    for (uint32_t i = 0; i < a->queries.n; i++) {
      const struct run *run = &a->queries.run[i];
      uint64_t from = MAX (first, run->rows.first), end = run->rows.first + run->rows.n;
      if (from >= MIN (end, first + n))
        continue;
      struct run queries = part_of (run, from - run->rows.first, first + n - from);
      pass_queries (t, &queries, top);
    }
  t->head = first_head;
  scale_sums (t, entry (a, top, 1));
}

static void
fold_entries (void *task, uint32_t below)
{
  const struct task *t = task;

  for (unsigned which = 0; which < 2; which++)
    weft_sums_add (entry (t->a, below, which), entry (t->a, below + 1, which), n_sums (t));
}

/* Computes the gradients of a block of keys and of its values: a tree sum over the leaves of
 * queries. The task's head is the first head of its group. */
static void
key_gradients (struct task *t)
{
  struct attention a = *t->a;
  struct room *room = a.room;

  t->a = &a;
  a.sum_row = MIN (a.sum_row, LEAF_WIDTH);
  const struct strip k = key_strip (t, a.k), v = key_strip (t, a.v);
  const struct strip dk = key_strip (t, a.dk), dv = key_strip (t, a.dv);
  memset (room->outer_lse, 0, sizeof room->outer_lse);
  memset (room->outer_delta, 0, sizeof room->outer_delta);
  pack_outer (&a, t->outer.rows, &k, 0);
  pack_outer (&a, t->outer.rows, &v, 1);
  for (uint64_t w = 0; w < MAX (a.width, a.value); w += LEAF_WIDTH) {
    uint32_t top = 0;
    t->columns = piece (w, LEAF_WIDTH, MAX (a.width, a.value));
    for (uint32_t leaf = 0; leaf < a.leaves; leaf++) {
      sum_leaf (t, leaf, top);
      top = weft_fold_push (top, leaf, a.leaves, fold_entries, t);
    }
    store_sums (&a, &dv, t->outer.rows, t->columns, entry (&a, 0, 0));
    store_sums (&a, &dk, t->outer.rows, t->columns, entry (&a, 0, 1));
  }
}

static void
pass_keys_backward (const struct task *t, const struct run *keys)
{
  const struct attention *a = t->a;
  const struct strip q = query_strip (t, a->q), k = key_strip (t, a->k);
  const struct strip d = query_strip (t, a->d_o), v = key_strip (t, a->v);
  struct span seen = seen_keys (a, &t->outer, keys);
  struct room *room = a->room;

  for (uint64_t at = 0; at < seen.n; at += INNER) {
    struct run block = part_of (keys, seen.first + at, MIN (INNER, seen.n - at));
    struct pair p = keys_pass (a, &t->outer, &block);
    multiply_tile (a, &p, &q, &k, 0);
    multiply_tile (a, &p, &d, &v, 1);
    float scale = bend (t, &p, TRUE);
    hide (&p, room->tile[0]);
    differentiate (room, &p, scale, a->cap);
    add_product (a, &p, &(struct factor){ &k, t->columns, 1 }, room->sum[0]);
  }
}

static void
query_gradients (struct task *t)
{
  const struct attention *a = t->a;
  const struct strip q = query_strip (t, a->q), d = query_strip (t, a->d_o);
  const struct strip dq = query_strip (t, a->dq);
  struct room *room = a->room;

  memset (room->inner_lse, 0, sizeof room->inner_lse);
  memset (room->inner_delta, 0, sizeof room->inner_delta);
  load_queries (t, t->outer.rows, room->outer_lse, room->outer_delta);
  pack_outer (a, t->outer.rows, &q, 0);
  pack_outer (a, t->outer.rows, &d, 1);
  for (uint64_t w = 0; w < a->width; w += WIDTH) {
    t->columns = piece (w, WIDTH, a->width);
    clear_sums (t, room->sum[0]);
    for (uint32_t i = 0; i < a->keys.n; i++)
      pass_keys_backward (t, &a->keys.run[i]);
    scale_sums (t, room->sum[0]);
    store_sums (a, &dq, t->outer.rows, t->columns, room->sum[0]);
  }
}

/* Backward is divided into tasks. A task computes the gradients of one block of queries of one
 * head, or of one block of keys of one key and value head. */
void
weft_attention_backward (const struct weft_attention *call)
{
  const struct attention a = describe (call);
  uint64_t query_blocks = blocks_of (&a.queries), key_blocks = blocks_of (&a.keys);
  uint64_t of_queries = a.n_heads * query_blocks, each = of_queries + a.groups * key_blocks;
  struct weft_range share = weft_part (a.batch * each, 1, call->part, call->parts);

  for (uint64_t i = share.begin; i < share.end; i++) {
    uint64_t n = i % each, block = n - of_queries;
    struct task t = { .a = &a, .batch = i / each };
    if (n < of_queries) {
      t.head = n / query_blocks;
      t.outer = block_at (&a.queries, n % query_blocks);
      query_gradients (&t);
    } else {
      t.head = block / key_blocks * (a.n_heads / a.groups);
      t.outer = block_at (&a.keys, block % key_blocks);
      key_gradients (&t);
    }
  }
}

/* ------------------------------------------------------------------------------- table */

void
weft_cpu_attention (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_attention_forward (&(struct weft_attention){ k, weft_tile_best (), part, parts });
}

void
weft_cpu_attention_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_attention_backward (&(struct weft_attention){ k, weft_tile_best (), part, parts });
}

void
weft_cpu_attention_part (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_attention_forward (&(struct weft_attention){ k, weft_tile_best (), part, parts });
}

void
weft_cpu_attention_part_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_attention_backward (&(struct weft_attention){ k, weft_tile_best (), part, parts });
}
