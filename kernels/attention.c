/* Attention, forward and backward, out of two products of blocks.
 *
 * One side of a block, the outer one, stays while blocks of the other side pass by:
 *
 *   tile(in, out) = sum over w of inner(in, w) outer(out, w)
 *   sum(out, w)  += sum over in of tile(in, out) value(in, w)
 *
 *   forward    outer: queries         inner: keys            value: values
 *   backward   outer: keys, values    inner: queries, do     value: do, queries    gives dv, dk
 *              outer: queries, do     inner: keys, values    value: keys           gives dq
 *
 * Backward makes its probabilities twice: in one pass dq or dk would have to wait in memory that
 * grows with the sequence. */
#include "kernels/attention.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "kernels/part.h"

#define OUTER 128
#define INNER 64
#define UNIT WEFT_TILE_COLUMNS
/* Columns of a head at a time; a wider one makes its scores once for each piece. */
#define WIDTH 256
_Static_assert(OUTER % UNIT == 0 && UNIT % WEFT_TILE_ROWS == 0 && WIDTH % UNIT == 0 &&
                   INNER % WEFT_TILE_ROWS == 0,
               "whole tiles");

enum { BATCH, SEQUENCE, HEADS, GROUPS, HEAD_WIDTH };
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };

struct room {
  float outer[2][OUTER * WIDTH]; /* panels of the outer side */
  float inner[INNER * WIDTH];    /* and of the inner one, terms along a head */
  float value[INNER * WIDTH];    /* panels, terms along the sequence */
  float sum[2][OUTER * WIDTH];
  float tile[2][INNER * OUTER]; /* scores, then probabilities; gradients of these */
  float peak[OUTER], total[OUTER], shrink[OUTER];
  float outer_lse[OUTER], outer_delta[OUTER], inner_lse[INNER], inner_delta[INNER];
};
_Static_assert(sizeof (struct room) <= WEFT_SCRATCH_FLOATS * sizeof (float), "scratch");

struct attention {
  const struct weft_tile *tile;
  const struct weft_operand *operand;
  uint64_t sequence, heads, groups, width;
  uint64_t window; /* keys a query sees, itself included */
  uint64_t sum_row;
  float scale;
  struct room *room;
};

struct span {
  uint64_t first, n;
};

/* One head of an array of tokens. */
struct strip {
  const struct weft_operand *of;
  uint64_t row;    /* elements of a token */
  uint64_t column; /* where the head begins */
  uint64_t token;  /* where the sequence begins */
};

/* Two blocks that meet.  Row r of the tile sees columns [from + r, to + r); columns [low, high),
 * whole tiles, are seen by some row. */
struct pair {
  struct span outer, inner;
  int64_t from, to;
  uint64_t low, high;
};

static struct attention
describe (const struct weft_attention *call)
{
  const struct weft_kernel *k = call->kernel;
  const uint64_t *dim = k->shape.dim;
  uint64_t window = k->model ? (uint64_t) k->model->sliding_window : 0;

  return (struct attention){
    .tile = call->tile,
    .operand = k->operand,
    .sequence = dim[SEQUENCE],
    .heads = dim[HEADS],
    .groups = dim[GROUPS],
    .width = dim[HEAD_WIDTH],
    .window = window > 0 && window < dim[SEQUENCE] ? window : dim[SEQUENCE],
    .sum_row = (MIN (dim[HEAD_WIDTH], WIDTH) + UNIT - 1) / UNIT * UNIT,
    .scale = 1 / sqrtf ((float) dim[HEAD_WIDTH]),
    .room = (struct room *) weft_scratch (),
  };
}

static struct span
piece (uint64_t first, uint64_t most, uint64_t end)
{
  return (struct span){ first, MIN (most, end - first) };
}

/* Head `head` of the row [query heads | keys | values] of qkv or dqkv. */
static struct strip
qkv_strip (const struct attention *a, uint32_t operand, uint64_t batch, uint64_t head)
{
  return (struct strip){ &a->operand[operand], (a->heads + 2 * a->groups) * a->width,
                         head * a->width, batch * a->sequence };
}

/* A query head, and the heads of keys and values of its group. */
struct heads {
  struct strip q, k, v;
};

static struct heads
heads_of (const struct attention *a, uint32_t operand, uint64_t batch, uint64_t head)
{
  uint64_t group = head / (a->heads / a->groups);

  return (struct heads){ qkv_strip (a, operand, batch, head),
                         qkv_strip (a, operand, batch, a->heads + group),
                         qkv_strip (a, operand, batch, a->heads + a->groups + group) };
}

static struct strip
o_strip (const struct attention *a, uint32_t operand, uint64_t batch, uint64_t head)
{
  return (struct strip){ &a->operand[operand], a->heads * a->width, head * a->width,
                         batch * a->sequence };
}

/* ------------------------------------------------------------------------------- pairs */

static struct pair
meet (struct span outer, struct span inner, int64_t from, uint64_t window)
{
  struct pair p = { outer, inner, from, from + (int64_t) window, 0, 0 };
  int64_t low = MAX (0, p.from), high = MIN ((int64_t) outer.n, p.to + (int64_t) inner.n - 1);

  p.low = (uint64_t) low / UNIT * UNIT;
  p.high = ((uint64_t) MAX (high, low) + UNIT - 1) / UNIT * UNIT;
  return p;
}

/* Key j is seen by queries [j, j + window). */
static struct pair
keys_pass (const struct attention *a, struct span queries, uint64_t key)
{
  return meet (queries, piece (key, INNER, a->sequence), (int64_t) key - (int64_t) queries.first,
               a->window);
}

/* Query i sees keys (i - window, i]. */
static struct pair
queries_pass (const struct attention *a, struct span keys, uint64_t query)
{
  return meet (keys, piece (query, INNER, a->sequence),
               (int64_t) query - (int64_t) a->window + 1 - (int64_t) keys.first, a->window);
}

/* The first block of keys that a block of queries sees. */
static uint64_t
first_key (const struct attention *a, uint64_t query)
{
  return query < a->window ? 0 : (query - a->window + 1) / INNER * INNER;
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

/* A head that is not wider than WIDTH stays packed while the inner side passes. */
static void
pack_outer (const struct attention *a, struct span tokens, const struct strip *outer,
            unsigned which)
{
  if (a->width <= WIDTH)
    pack_rows (outer, tokens, (struct span){ 0, a->width }, a->tile->columns,
               a->room->outer[which]);
}

static void
multiply_tile (const struct attention *a, const struct pair *p, const struct strip *outer,
               const struct strip *inner, unsigned which)
{
  struct room *room = a->room;
  uint32_t rows = a->tile->rows, columns = a->tile->columns;

  for (uint64_t w = 0; w < a->width; w += WIDTH) {
    struct span terms = piece (w, WIDTH, a->width);
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
    if (a->width > WIDTH)
      pack_rows (outer, p->outer, terms, columns, room->outer[which]);
    pack_rows (inner, p->inner, terms, rows, room->inner);
    weft_block_multiply (a->tile, &block, room->inner, room->outer[which] + p->low * terms.n,
                         room->tile[which] + p->low);
  }
}

/* sum[which] += tile[which] transposed times columns of `value`. */
static void
add_product (const struct attention *a, const struct pair *p, const struct strip *value,
             struct span columns, unsigned which)
{
  struct room *room = a->room;
  uint32_t width = a->tile->columns;
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

  pack_columns (value, p->inner, columns, width, room->value);
  weft_block_multiply (a->tile, &block, room->tile[which] + p->low, room->value,
                       room->sum[which] + p->low * a->sum_row);
}

/* What may not be seen gets the score of nothing. */
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

static void
store_sums (const struct attention *a, const struct strip *to, struct span tokens,
            struct span columns, float *sum)
{
  for (uint64_t i = 0; i < tokens.n; i++, sum += a->sum_row)
    weft_store (to->of->data, to->of->dtype,
                (to->token + tokens.first + i) * to->row + to->column + columns.first, columns.n,
                sum);
}

static void
clear_sums (const struct attention *a, float *sum)
{
  memset (sum, 0, OUTER * a->sum_row * sizeof *sum);
}

/* ----------------------------------------------------------------------------- forward */

/* Scores of a block of keys become probabilities, as far as they are known: relative to the
 * largest score so far.  What was summed before shrinks when a larger one is found.  A query that
 * has seen no key yet has no largest score: 0 stands for it. */
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

static void
finish_forward (const struct attention *a, const struct strip *o, struct span queries,
                struct span columns, float *lse)
{
  struct room *room = a->room;

  for (uint64_t i = 0; i < queries.n; i++) {
    float *sum = room->sum[0] + i * a->sum_row;
    for (uint64_t w = 0; w < columns.n; w++)
      sum[w] /= room->total[i];
    lse[i] = room->peak[i] + weft_logf (room->total[i]);
  }
  store_sums (a, o, queries, columns, room->sum[0]);
}

static void
forward_block (const struct attention *a, uint64_t batch, uint64_t head, struct span queries)
{
  uint64_t end = queries.first + queries.n;
  const struct heads in = heads_of (a, QKV, batch, head);
  const struct strip o = o_strip (a, O, batch, head);
  float *lse = (float *) a->operand[LSE].data + (batch * a->heads + head) * a->sequence;
  struct room *room = a->room;

  pack_outer (a, queries, &in.q, 0);
  for (uint64_t w = 0; w < a->width; w += WIDTH) {
    struct span columns = piece (w, WIDTH, a->width);
    for (uint64_t i = 0; i < OUTER; i++) {
      room->peak[i] = -INFINITY;
      room->total[i] = 0;
    }
    clear_sums (a, room->sum[0]);
    for (uint64_t key = first_key (a, queries.first); key < end; key += INNER) {
      struct pair p = keys_pass (a, queries, key);
      multiply_tile (a, &p, &in.q, &in.k, 0);
      hide (&p, room->tile[0]);
      soften (room, &p, a->scale);
      shrink_sums (room, &p, a->sum_row);
      add_product (a, &p, &in.v, columns, 0);
    }
    finish_forward (a, &o, queries, columns, lse + queries.first);
  }
}

void
weft_attention_forward (const struct weft_attention *call)
{
  struct attention a = describe (call);
  uint64_t blocks = (a.sequence + OUTER - 1) / OUTER;
  uint64_t tasks = call->kernel->shape.dim[BATCH] * a.heads * blocks;
  struct weft_range share = weft_part (tasks, 1, call->part, call->parts);

  for (uint64_t t = share.begin; t < share.end; t++) {
    uint64_t row = t / blocks;
    forward_block (&a, row / a.heads, row % a.heads, piece (t % blocks * OUTER, OUTER, a.sequence));
  }
}

/* ---------------------------------------------------------------------------- backward */

/* Sixteen sums side by side, then added in one order. */
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

/* Of a block of queries: the log of the sum of exponentials, and the sum over keys of probability
 * times its gradient, which is the dot product of o and do. */
static void
load_queries (const struct attention *a, uint64_t batch, uint64_t head, struct span queries,
              float *lse, float *delta)
{
  const struct strip o = o_strip (a, BWD_O, batch, head), d = o_strip (a, BWD_DO, batch, head);
  const float *from = a->operand[BWD_LSE].data;

  from += (batch * a->heads + head) * a->sequence + queries.first;
  for (uint64_t i = 0; i < queries.n; i++) {
    lse[i] = from[i];
    delta[i] = dot (&o, &d, queries.first + i, a->width);
  }
}

/* Scores and gradients of probabilities become probabilities and gradients of scores.  Queries are
 * on one side only; the numbers of the other side are 0. */
WEFT_WIDE static void
differentiate (struct room *room, const struct pair *p, float scale)
{
  for (uint64_t r = 0; r < p->inner.n; r++) {
    float *score = room->tile[0] + r * OUTER, *gradient = room->tile[1] + r * OUTER;
    float lse = room->inner_lse[r], delta = room->inner_delta[r];
    for (uint64_t c = p->low; c < p->high; c++) {
      score[c] = weft_expf (score[c] * scale - lse - room->outer_lse[c]);
      gradient[c] = score[c] * (gradient[c] - delta - room->outer_delta[c]);
    }
  }
}

static void
scale_sums (const struct attention *a, float *sum)
{
  for (uint64_t i = 0; i < OUTER * a->sum_row; i++)
    sum[i] *= a->scale;
}

/* The inner side of queries that the gradients of keys and values are made of. */
static void
meet_queries (const struct attention *a, struct span keys, struct span columns, uint64_t batch,
              uint64_t head)
{
  const struct heads in = heads_of (a, BWD_QKV, batch, head);
  const struct strip d = o_strip (a, BWD_DO, batch, head);
  uint64_t end = MIN (a->sequence, keys.first + keys.n - 1 + a->window);

  for (uint64_t query = keys.first / INNER * INNER; query < end; query += INNER) {
    struct pair p = queries_pass (a, keys, query);
    load_queries (a, batch, head, p.inner, a->room->inner_lse, a->room->inner_delta);
    multiply_tile (a, &p, &in.k, &in.q, 0);
    multiply_tile (a, &p, &in.v, &d, 1);
    hide (&p, a->room->tile[0]);
    differentiate (a->room, &p, a->scale);
    add_product (a, &p, &d, columns, 0);
    add_product (a, &p, &in.q, columns, 1);
  }
}

/* dk and dv: sums over the query heads of the group, in order. */
static void
key_gradients (const struct attention *a, uint64_t batch, uint64_t group, struct span keys)
{
  uint64_t ratio = a->heads / a->groups;
  const struct heads in = heads_of (a, BWD_QKV, batch, group * ratio);
  const struct heads out = heads_of (a, BWD_DQKV, batch, group * ratio);
  struct room *room = a->room;

  memset (room->outer_lse, 0, sizeof room->outer_lse);
  memset (room->outer_delta, 0, sizeof room->outer_delta);
  pack_outer (a, keys, &in.k, 0);
  pack_outer (a, keys, &in.v, 1);
  for (uint64_t w = 0; w < a->width; w += WIDTH) {
    struct span columns = piece (w, WIDTH, a->width);
    clear_sums (a, room->sum[0]);
    clear_sums (a, room->sum[1]);
    for (uint64_t head = group * ratio; head < (group + 1) * ratio; head++)
      meet_queries (a, keys, columns, batch, head);
    scale_sums (a, room->sum[1]);
    store_sums (a, &out.v, keys, columns, room->sum[0]);
    store_sums (a, &out.k, keys, columns, room->sum[1]);
  }
}

static void
query_gradients (const struct attention *a, uint64_t batch, uint64_t head, struct span queries)
{
  uint64_t end = queries.first + queries.n;
  const struct heads in = heads_of (a, BWD_QKV, batch, head);
  const struct strip d = o_strip (a, BWD_DO, batch, head);
  const struct strip dq = qkv_strip (a, BWD_DQKV, batch, head);
  struct room *room = a->room;

  memset (room->inner_lse, 0, sizeof room->inner_lse);
  memset (room->inner_delta, 0, sizeof room->inner_delta);
  load_queries (a, batch, head, queries, room->outer_lse, room->outer_delta);
  pack_outer (a, queries, &in.q, 0);
  pack_outer (a, queries, &d, 1);
  for (uint64_t w = 0; w < a->width; w += WIDTH) {
    struct span columns = piece (w, WIDTH, a->width);
    clear_sums (a, room->sum[1]);
    for (uint64_t key = first_key (a, queries.first); key < end; key += INNER) {
      struct pair p = keys_pass (a, queries, key);
      multiply_tile (a, &p, &in.q, &in.k, 0);
      multiply_tile (a, &p, &d, &in.v, 1);
      hide (&p, room->tile[0]);
      differentiate (room, &p, a->scale);
      add_product (a, &p, &in.k, columns, 1);
    }
    scale_sums (a, room->sum[1]);
    store_sums (a, &dq, queries, columns, room->sum[1]);
  }
}

/* A task is a block of one of heads + groups strips of gradients: a query head's or a group's. */
void
weft_attention_backward (const struct weft_attention *call)
{
  struct attention a = describe (call);
  uint64_t blocks = (a.sequence + OUTER - 1) / OUTER, strips = a.heads + a.groups;
  uint64_t tasks = call->kernel->shape.dim[BATCH] * strips * blocks;
  struct weft_range share = weft_part (tasks, 1, call->part, call->parts);

  for (uint64_t t = share.begin; t < share.end; t++) {
    struct span outer = piece (t % blocks * OUTER, OUTER, a.sequence);
    uint64_t batch = t / blocks / strips, strip = t / blocks % strips;
    if (strip < a.heads)
      query_gradients (&a, batch, strip, outer);
    else
      key_gradients (&a, batch, strip - a.heads, outer);
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
