/* Embedding. Backward gathers the tokens of each vocabulary row instead of scattering tokens to
 * rows, so that the sum of a row is computed by one thread per column and in token order. */
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/sums.h"
#include "kernels/traits.h"

/* Up to this many tokens, tokens with equal ids are linked in lists (12 bytes of stack per token).
 * With more tokens, the next token with the same id is found by search. */
#define MOST_LINKED 32768
#define NONE (-1)

/* Number of columns of a thread's share: whole cache lines, so that threads write different cache
 * lines. */
#define GRAIN 32

enum { IDS, TABLE, POSITIONS, Y };
enum { BWD_IDS, DY, DTABLE, DPOSITIONS };
enum { TOKENS, HIDDEN, PASSES };

/* Number of elements that a table must have; 0: the number is not checked, because tensor-parallel
 * ranks have parts of the table. */
static uint64_t
table_size (const struct weft_kernel *k, gboolean positions)
{
  int64_t rows = positions ? k->model->max_position_embeddings + k->model->position_offset
                           : k->model->vocab_size;
  return k->tp.of > 1 && !positions ? 0 : (uint64_t) rows * k->shape.dim[1];
}

WEFT_WIDE static void
multiply (float *to, const float *x, float by, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = x[i] * by;
}

/* Number of rows of the embedding table that this rank has. */
static struct weft_range
rows_of (const struct weft_kernel *k, const struct weft_operand *table)
{
  uint64_t rows = table->n / k->shape.dim[1];
  return (struct weft_range){ k->tp.at * rows, (k->tp.at + 1) * rows };
}

static gboolean
lies_in (struct weft_range rows, int32_t id)
{
  return (uint64_t) id >= rows.begin && (uint64_t) id < rows.end;
}

uint64_t
weft_extent_embed (const struct weft_kernel *k, uint32_t operand)
{
  return operand == IDS ? k->shape.dim[0]
         : operand == Y ? k->shape.dim[0] * k->shape.dim[1]
                        : table_size (k, operand == POSITIONS);
}

uint64_t
weft_extent_embed_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return operand == BWD_IDS ? k->shape.dim[0]
         : operand == DY    ? k->shape.dim[0] * k->shape.dim[1]
                            : table_size (k, operand == DPOSITIONS);
}

void
weft_cpu_embed (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  const int32_t *ids = o[IDS].data;
  uint64_t hidden = k->shape.dim[1];
  struct weft_range tokens = weft_part (k->shape.dim[0], 1, part, parts);
  struct weft_range rows = rows_of (k, &o[TABLE]);
  float room[WEFT_STRETCH], y[WEFT_STRETCH], multiplier = weft_embedding_multiplier (k);

  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    for (uint64_t c = 0; c < hidden; c += WEFT_STRETCH) {
      uint64_t n = weft_least (hidden - c, WEFT_STRETCH);
      uint64_t row = ((uint64_t) ids[t] - rows.begin) * hidden;
      const float *from = lies_in (rows, ids[t])
                              ? weft_floats (o[TABLE].data, o[TABLE].dtype, row + c, n, y)
                              : memset (y, 0, n * sizeof *y);
      if (multiplier != 1) {
        multiply (room, from, multiplier, n);
        /* The product is rounded before positions are added, because tensor-parallel ranks also
         * round here: they store the product before an all-reduce. */
        weft_round (o[Y].dtype, n, room);
        from = memcpy (y, room, n * sizeof *y);
      }
      if (o[POSITIONS].data) {
        uint64_t at = weft_kernel_position_row (k, t) * hidden + c;
        memmove (y, from, n * sizeof *y);
        weft_sums_add (y, weft_floats (o[POSITIONS].data, o[POSITIONS].dtype, at, n, room), n);
        from = y;
      }
      weft_store (o[Y].data, o[Y].dtype, t * hidden + c, n, from);
    }
}

/* ------------------------------------------------------------ tokens of one row */

/* Links the tokens whose gradients are added to one row of a table: tokens of one id (embedding
 * table) or of one position (position table). */
struct chain {
  const int32_t *ids; /* ids of all tokens; NULL: links tokens of one position */
  /* by token: number of the next token with the same id, or NONE; NULL: the next token is found by
   * searching */
  const int32_t *next;
  /* if `ids` is NULL: distance from a token to the next token of the same position */
  uint64_t stride;
  uint64_t n; /* number of tokens on this rank */
};

static uint64_t
following (const struct chain *chain, uint64_t token)
{
  if (!chain->ids)
    return token + chain->stride;
  if (chain->next)
    return chain->next[token] == NONE ? chain->n : (uint64_t) chain->next[token];
  uint64_t t = token + 1;
  while (t < chain->n && chain->ids[t] != chain->ids[token])
    t++;
  return t;
}

/* Fills `next`, and a hash table with the first token of each id. n_slot, the size of the table, is
 * a power of two above n. */
static void
link_tokens (const int32_t *ids, uint64_t n, int32_t *next, int32_t *slot, uint32_t n_slot)
{
  for (uint32_t i = 0; i < n_slot; i++)
    slot[i] = NONE;
  for (uint64_t t = n; t-- > 0;) {
    uint32_t at = (uint32_t) ids[t] * 0x9e3779b9u >> 8 & (n_slot - 1);
    while (slot[at] != NONE && ids[slot[at]] != ids[t])
      at = (at + 1) & (n_slot - 1);
    next[t] = slot[at];
    slot[at] = (int32_t) t;
  }
}

/* --------------------------------------------------------------- sums of tokens */

struct gather {
  const struct weft_kernel *k;
  const struct weft_operand *output;
  struct weft_range columns;
  struct chain chain;
  /* multiplier of embeddings, which also multiplies their gradients; 0: the model has none */
  float multiplier;
};

/* Adds n elements of a token's gradient, times the multiplier of embeddings, to `sum`. */
static void
add_token (const struct gather *g, float *sum, uint64_t at, uint64_t n)
{
  const struct weft_operand *dy = &g->k->operand[DY];
  float room[WEFT_STRETCH], product[WEFT_STRETCH];
  const float *x = weft_floats (dy->data, dy->dtype, at, n, room);

  if (g->multiplier != 0) {
    multiply (product, x, g->multiplier, n);
    x = product;
  }
  weft_sums_add (sum, x, n);
}

/* Adds the gradients of those linked tokens (tokens of one table row) that lie in one leaf of the
 * canonical sum. `token` is the first of them. */
static void
sum_leaf (const struct gather *g, uint64_t token, struct weft_range leaf, struct weft_range columns,
          struct weft_sums *sums)
{
  uint64_t hidden = g->k->shape.dim[1];

  if (token >= leaf.end) {
    weft_sums_skip (sums);
    return;
  }
  float *sum = weft_sums_leaf (sums);
  for (; token < leaf.end; token = following (&g->chain, token))
    add_token (g, sum, token * hidden + columns.begin, sums->n);
  weft_sums_close (sums);
}

/* A sequence consists of several chunks, each of which is a leaf. The chain passes the tokens of a
 * sequence from its start, but leaves are added in zigzag order, so this function first finds the
 * token with which the chain enters each chunk. `first`: the first chunk of the sequence. Returns
 * the token of the chain after the last chunk. */
static uint64_t
enter_chunks (const struct gather *g, const struct weft_leaves *leaves, uint32_t first,
              uint64_t token, uint64_t *entry)
{
  uint64_t all = g->chain.n, share = leaves->segment[0].share;

  for (uint32_t chunk = 0; chunk < MAX (1, leaves->zigzag); chunk++) {
    uint64_t end = weft_least ((first + chunk + 1) * share, all);
    entry[chunk] = token;
    while (token < end && end < all)
      token = following (&g->chain, token);
  }
  return token;
}

static void
sum_stretch (const struct gather *g, uint64_t first, uint64_t at, struct weft_range columns)
{
  struct weft_leaves leaves =
      weft_sums_leaves_of (g->k, g->chain.n, MAX (1, g->k->shape.dim[PASSES]));
  float stack[WEFT_SUMS_MOST_DEPTH * WEFT_STRETCH];
  uint64_t entry[WEFT_MOST_CHUNKS], token = first;
  uint32_t each = MAX (1, leaves.zigzag);
  struct weft_sums sums = { .output = g->output,
                            .room = stack,
                            .n = columns.end - columns.begin,
                            .n_leaf = leaves.n,
                            .rounds = g->k->canonical };

  for (uint32_t i = 0; i < leaves.n; i++) {
    if (i % each == 0)
      token = enter_chunks (g, &leaves, i, token, entry);
    sum_leaf (g, entry[weft_leaves_turn (&leaves, i) % each], weft_sums_tokens (&leaves, i),
              columns, &sums);
  }
  weft_sums_store (&sums, at + columns.begin);
}

/* Computes the gradient of one row of the table. `first`: the first of the linked tokens of this
 * row. */
static void
sum_row (const struct gather *g, uint64_t first, uint64_t row)
{
  for (uint64_t c = g->columns.begin; c < g->columns.end; c += WEFT_STRETCH)
    sum_stretch (g, first, row * g->k->shape.dim[1],
                 (struct weft_range){ c, weft_least (c + WEFT_STRETCH, g->columns.end) });
}

/* Computes the gradient of the table row of a token id. Does nothing if the row is on another
 * rank. */
static void
sum_word (const struct gather *g, uint64_t first, int32_t id)
{
  struct weft_range rows = rows_of (g->k, g->output);

  if (lies_in (rows, id))
    sum_row (g, first, (uint64_t) id - rows.begin);
}

static void
sum_linked_rows (const struct gather *unlinked)
{
  int32_t next[MOST_LINKED], slot[2 * MOST_LINKED];
  const int32_t *ids = unlinked->chain.ids;
  struct gather g = *unlinked;
  uint32_t n_slot = 2;

  while (n_slot < 2 * g.chain.n)
    n_slot *= 2;
  link_tokens (ids, g.chain.n, next, slot, n_slot);
  g.chain.next = next;
  for (uint32_t i = 0; i < n_slot; i++)
    if (slot[i] != NONE)
      sum_word (&g, (uint64_t) slot[i], ids[slot[i]]);
}

static void
sum_sought_rows (const struct gather *g)
{
  const int32_t *ids = g->chain.ids;

  for (uint64_t t = 0; t < g->chain.n; t++) {
    uint64_t before = t;
    while (before > 0 && ids[before - 1] != ids[t])
      before--;
    if (before == 0)
      sum_word (g, t, ids[t]);
  }
}

/* Sets gradients that do not accumulate to 0, because rows without tokens are not written later. */
static void
clear (const struct gather *g)
{
  const struct weft_operand *o = g->output;
  uint64_t hidden = g->k->shape.dim[1], size = weft_dtype_bytes (o->dtype);

  for (uint64_t row = 0; row < o->n / hidden && !o->accumulate; row++)
    memset ((char *) o->data + (row * hidden + g->columns.begin) * size, 0,
            (g->columns.end - g->columns.begin) * size);
}

static void
sum_positions (const struct weft_kernel *k, struct weft_range columns)
{
  uint64_t tokens = k->shape.dim[0], sequence = weft_kernel_sequence (k);
  struct gather g = { .k = k,
                      .output = &k->operand[DPOSITIONS],
                      .columns = columns,
                      .chain = { .stride = sequence, .n = tokens } };

  clear (&g);
  for (uint64_t p = 0; p < weft_least (sequence, tokens); p++)
    sum_row (&g, p, weft_kernel_position_row (k, p));
}

void
weft_cpu_embed_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct gather g = { .k = k,
                      .output = &k->operand[DTABLE],
                      .columns = weft_part (k->shape.dim[1], GRAIN, part, parts),
                      .chain = { .ids = k->operand[BWD_IDS].data, .n = k->shape.dim[0] } };

  float multiplier = weft_embedding_multiplier (k);
  g.multiplier = multiplier != 1 ? multiplier : 0;
  clear (&g);
  if (g.chain.n <= MOST_LINKED)
    sum_linked_rows (&g);
  else
    sum_sought_rows (&g);
  if (k->operand[DPOSITIONS].data)
    sum_positions (k, g.columns);
}

/* -------------------------------------------------------------------- reference */

void
weft_ref_embed (const struct weft_kernel *k)
{
  const int32_t *ids = k->operand[IDS].data;
  const double *table = k->operand[TABLE].data, *positions = k->operand[POSITIONS].data;
  double *y = k->operand[Y].data, multiplier = (double) weft_embedding_multiplier (k);
  uint64_t hidden = k->shape.dim[1];

  for (uint64_t t = 0; t < k->shape.dim[0]; t++)
    for (uint64_t i = 0; i < hidden; i++) {
      y[t * hidden + i] = table[(uint64_t) ids[t] * hidden + i] * multiplier +
                          (positions ? positions[weft_kernel_position_row (k, t) * hidden + i] : 0);
    }
}

void
weft_ref_embed_bwd (const struct weft_kernel *k)
{
  const int32_t *ids = k->operand[BWD_IDS].data;
  const double *dy = k->operand[DY].data;
  double *table = k->operand[DTABLE].data, *positions = k->operand[DPOSITIONS].data;
  double multiplier = (double) weft_embedding_multiplier (k);
  uint64_t hidden = k->shape.dim[1];

  for (uint32_t o = DTABLE; o <= DPOSITIONS; o++)
    if (k->operand[o].data && !k->operand[o].accumulate)
      memset (k->operand[o].data, 0, k->operand[o].n * sizeof (double));
  for (uint64_t t = 0; t < k->shape.dim[0]; t++)
    for (uint64_t i = 0; i < hidden; i++) {
      table[(uint64_t) ids[t] * hidden + i] += dy[t * hidden + i] * multiplier;
      if (positions)
        positions[weft_kernel_position_row (k, t) * hidden + i] += dy[t * hidden + i];
    }
}
