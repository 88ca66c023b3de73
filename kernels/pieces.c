/* Assembles a tensor from received pieces, and cuts pieces out of a tensor. */
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"

enum {
  OWN,
  CAME,
  ALL
}; /* operands of settle: this rank's piece, the received pieces (behind it in
                          * memory), all pieces */
enum { X, Y };

/* ------------------------------------------------------------------ pieces from a ring */

uint64_t
weft_extent_settle (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t parts = k->shape.dim[1], pieces[] = { [OWN] = 1, [CAME] = parts - 1, [ALL] = parts };
  return k->shape.dim[0] / parts * pieces[operand];
}

/* The rank whose piece this rank received after `steps` steps of the ring. The number of that rank
 * is also the index at which the piece is stored in the end. */
static uint64_t
sender (const struct weft_kernel *k, uint64_t steps)
{
  uint64_t parts = k->shape.dim[1];
  return (k->tp.at + parts - steps) % parts;
}

static void
swap (uint8_t *a, uint8_t *b, uint64_t bytes)
{
  uint8_t room[WEFT_STRETCH];

  for (uint64_t at = 0; at < bytes; at += sizeof room) {
    uint64_t n = weft_least (bytes - at, sizeof room);
    memcpy (room, a + at, n);
    memcpy (a + at, b + at, n);
    memcpy (b + at, room, n);
  }
}

/* Sorts the pieces by rank, in place. The permutation consists of swaps: if the piece of rank a
 * lies at place b, then the piece of rank b lies at place a. */
static void
settle (const struct weft_kernel *k, uint64_t size)
{
  uint64_t parts = k->shape.dim[1], bytes = k->shape.dim[0] / parts * size;
  uint8_t *all = k->operand[ALL].data;

  if (k->operand[OWN].data != all)
    memcpy (all, k->operand[OWN].data, bytes);
  for (uint64_t j = 0; j < parts; j++)
    if (j < sender (k, j))
      swap (all + j * bytes, all + sender (k, j) * bytes, bytes);
}

void
weft_cpu_settle (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  settle (k, weft_dtype_bytes (k->operand[ALL].dtype));
}

void
weft_ref_settle (const struct weft_kernel *k)
{
  settle (k, sizeof (double));
}

/* ------------------------------------------------------------------------- column pieces */

uint64_t
weft_extent_join_columns (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[0] * k->shape.dim[1] * k->shape.dim[2];
}

static void
join (const struct weft_kernel *k, struct weft_range rows, uint64_t size)
{
  uint64_t n = k->shape.dim[1] * size, pieces = k->shape.dim[2];
  const uint8_t *x = k->operand[X].data;
  uint8_t *y = k->operand[Y].data;

  for (uint64_t r = rows.begin; r < rows.end; r++)
    for (uint64_t p = 0; p < pieces; p++)
      memcpy (y + (r * pieces + p) * n, x + (p * k->shape.dim[0] + r) * n, n);
}

void
weft_cpu_join_columns (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  join (k, weft_part (k->shape.dim[0], 1, part, parts), weft_dtype_bytes (k->operand[Y].dtype));
}

void
weft_ref_join_columns (const struct weft_kernel *k)
{
  join (k, (struct weft_range){ 0, k->shape.dim[0] }, sizeof (double));
}

/* ------------------------------------------------------------------ one part of the whole */

enum { ROWS, COLUMNS, ROW_PARTS, COLUMN_PARTS };

uint64_t
weft_extent_take_part (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  return dim[ROWS] * dim[COLUMNS] / (operand == Y ? dim[ROW_PARTS] * dim[COLUMN_PARTS] : 1);
}

static void
take_rows (const struct weft_kernel *k, struct weft_range rows, uint64_t size)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t n = dim[COLUMNS] / dim[COLUMN_PARTS] * size;
  uint64_t row = k->tp.at % dim[ROW_PARTS] * (dim[ROWS] / dim[ROW_PARTS]);
  const uint8_t *x = k->operand[X].data;

  x += row * dim[COLUMNS] * size + k->tp.at % dim[COLUMN_PARTS] * n;
  for (uint64_t r = rows.begin; r < rows.end; r++)
    memcpy ((uint8_t *) k->operand[Y].data + r * n, x + r * dim[COLUMNS] * size, n);
}

void
weft_cpu_take_part (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  take_rows (k, weft_part (dim[ROWS] / dim[ROW_PARTS], 1, part, parts),
             weft_dtype_bytes (k->operand[Y].dtype));
}

void
weft_ref_take_part (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  take_rows (k, (struct weft_range){ 0, dim[ROWS] / dim[ROW_PARTS] }, sizeof (double));
}

/* ---------------------------------------------------------------------------- concatenation */

enum { A = 1, B };

/* Number of columns of an operand of concat or of concat_bwd. In concat_bwd, the first operand is
 * the gradient of the concatenated tensor. */
static uint64_t
columns_of (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t columns[] = { dim[A], dim[B], dim[A] + dim[B] };

  return columns[k->kind == WEFT_OP_CONCAT ? operand : (operand + 2) % 3];
}

uint64_t
weft_extent_concat (const struct weft_kernel *k, uint32_t operand)
{
  return k->shape.dim[ROWS] * columns_of (k, operand);
}

uint64_t
weft_extent_concat_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_concat (k, operand);
}

static void
put_together (const struct weft_kernel *k, struct weft_range rows, uint64_t size)
{
  uint64_t a = k->shape.dim[A] * size, b = k->shape.dim[B] * size;

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    uint8_t *y = (uint8_t *) k->operand[2].data + r * (a + b);
    memcpy (y, (const uint8_t *) k->operand[0].data + r * a, a);
    memcpy (y + a, (const uint8_t *) k->operand[1].data + r * b, b);
  }
}

static void
take_apart (const struct weft_kernel *k, struct weft_range rows, uint64_t size)
{
  uint64_t a = k->shape.dim[A] * size, b = k->shape.dim[B] * size;

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    const uint8_t *dy = (const uint8_t *) k->operand[0].data + r * (a + b);
    memcpy ((uint8_t *) k->operand[1].data + r * a, dy, a);
    memcpy ((uint8_t *) k->operand[2].data + r * b, dy + a, b);
  }
}

void
weft_cpu_concat (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  put_together (k, weft_part (k->shape.dim[ROWS], 1, part, parts),
                weft_dtype_bytes (k->operand[0].dtype));
}

void
weft_ref_concat (const struct weft_kernel *k)
{
  put_together (k, (struct weft_range){ 0, k->shape.dim[ROWS] }, sizeof (double));
}

void
weft_cpu_concat_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  take_apart (k, weft_part (k->shape.dim[ROWS], 1, part, parts),
              weft_dtype_bytes (k->operand[0].dtype));
}

void
weft_ref_concat_bwd (const struct weft_kernel *k)
{
  take_apart (k, (struct weft_range){ 0, k->shape.dim[ROWS] }, sizeof (double));
}

/* ------------------------------------------------------ heads of ranks that share a query group */

enum { H_TOKENS, H_PARTS, H_HEADS, H_GROUPS, H_WIDTH, H_TAKEN };

/* Numbers of columns per token. A rank's part of the qkv projection has q columns of queries, k
 * columns of keys and k of values. take_heads joins queries, keys and values of several ranks into
 * one row, the joined row; put_heads does the opposite. */
struct shares {
  uint64_t q, k, sharing; /* sharing: number of ranks that share a query group */
  uint64_t queries;       /* number of ranks whose queries the joined row contains */
  /* part: number of columns of one rank's part; taken: number of columns of the joined row */
  uint64_t part, taken;
};

static struct shares
shares_of (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  struct shares of = { .q = dim[H_HEADS] / dim[H_PARTS] * dim[H_WIDTH],
                       .k = dim[H_GROUPS] * dim[H_WIDTH] / dim[H_PARTS],
                       .sharing = dim[H_PARTS] / dim[H_GROUPS] };

  of.queries = dim[H_TAKEN] == WEFT_HEADS_OWN ? 1 : of.sharing;
  if (dim[H_TAKEN] == WEFT_HEADS_QUERIES)
    of.k = 0;
  of.part = of.q + 2 * of.k;
  of.taken = of.queries * of.q + 2 * of.sharing * of.k;
  return of;
}

/* Whether put_heads writes only the part of this rank. */
static gboolean
puts_one (const struct weft_kernel *k)
{
  return k->kind == WEFT_OP_PUT_HEADS && k->shape.dim[H_TAKEN] != WEFT_HEADS_OWN;
}

uint64_t
weft_extent_take_heads (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  struct shares of = shares_of (k);

  if (operand == Y)
    return dim[H_TOKENS] * of.taken;
  return dim[H_TOKENS] * of.part * (puts_one (k) ? 1 : dim[H_PARTS]);
}

uint64_t
weft_extent_put_heads (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_take_heads (k, operand == X ? Y : X);
}

/* n elements of a token that are contiguous both in a rank's part and in the joined row: the rank,
 * the first column in the rank's part, and the first column in the joined row (`at`). */
struct run {
  uint64_t rank, column, at, n;
};

static struct run
run_of (const struct weft_kernel *k, const struct shares *of, uint64_t i)
{
  uint64_t first = k->tp.at / of->sharing * of->sharing;

  if (i < of->queries)
    return (struct run){ of->queries > 1 ? first + i : k->tp.at, 0, i * of->q, of->q };
  uint64_t value = (i - of->queries) / of->sharing, piece = (i - of->queries) % of->sharing;
  return (struct run){ first + piece, of->q + value * of->k,
                       of->queries * of->q + (value * of->sharing + piece) * of->k, of->k };
}

static void
move_heads (const struct weft_kernel *k, uint64_t token, uint64_t size, gboolean puts)
{
  struct shares of = shares_of (k);
  uint8_t *heads = (uint8_t *) k->operand[puts ? X : Y].data + token * of.taken * size;
  uint8_t *parts = k->operand[puts ? Y : X].data;
  gboolean one = puts_one (k);

  for (uint64_t i = 0; i < of.queries + 2 * of.sharing; i++) {
    struct run run = run_of (k, &of, i);
    if (one && run.rank != k->tp.at)
      continue;
    uint64_t row = (one ? 0 : run.rank) * k->shape.dim[H_TOKENS] + token;
    uint8_t *part = parts + (row * of.part + run.column) * size, *head = heads + run.at * size;
    memcpy (puts ? part : head, puts ? head : part, run.n * size);
  }
}

static void
take_tokens (const struct weft_kernel *k, struct weft_range tokens, uint64_t size)
{
  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    move_heads (k, t, size, FALSE);
}

static void
put_tokens (const struct weft_kernel *k, struct weft_range tokens, uint64_t size)
{
  uint64_t row = shares_of (k).part * size, ranks = puts_one (k) ? 0 : k->shape.dim[H_PARTS];

  for (uint64_t t = tokens.begin; t < tokens.end; t++) {
    for (uint64_t p = 0; p < ranks; p++)
      memset ((uint8_t *) k->operand[Y].data + (p * k->shape.dim[H_TOKENS] + t) * row, 0, row);
    move_heads (k, t, size, TRUE);
  }
}

void
weft_cpu_take_heads (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  take_tokens (k, weft_part (k->shape.dim[H_TOKENS], 1, part, parts),
               weft_dtype_bytes (k->operand[Y].dtype));
}

void
weft_ref_take_heads (const struct weft_kernel *k)
{
  take_tokens (k, (struct weft_range){ 0, k->shape.dim[H_TOKENS] }, sizeof (double));
}

void
weft_cpu_put_heads (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  put_tokens (k, weft_part (k->shape.dim[H_TOKENS], 1, part, parts),
              weft_dtype_bytes (k->operand[Y].dtype));
}

void
weft_ref_put_heads (const struct weft_kernel *k)
{
  put_tokens (k, (struct weft_range){ 0, k->shape.dim[H_TOKENS] }, sizeof (double));
}
