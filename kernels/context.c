/* Kernels before and after the communication of context parallelism: pack data by receiver, reorder
 * received data, merge partial softmax results. */
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include <math.h>

/* Copies n elements of operand 0 at `from` to operand 1 at `to`. */
static void
copy (const struct weft_kernel *k, uint64_t from, uint64_t to, uint64_t n)
{
  const struct weft_operand *x = &k->operand[0], *y = &k->operand[1];
  uint64_t size = weft_dtype_bytes (y->dtype);
  float room[WEFT_STRETCH];

  if (x->dtype == y->dtype) {
    memcpy ((char *) y->data + to * size, (const char *) x->data + from * size, n * size);
    return;
  }
  for (uint64_t i = 0; i < n; i += WEFT_STRETCH) {
    uint64_t some = weft_least (n - i, WEFT_STRETCH);
    weft_store (y->data, y->dtype, to + i, some,
                weft_floats (x->data, x->dtype, from + i, some, room));
  }
}

static uint64_t
product (const struct weft_kernel *k, unsigned first, unsigned n)
{
  uint64_t all = 1;

  for (unsigned d = first; d < first + n; d++)
    all *= k->shape.dim[d];
  return all;
}

/* ----------------------------------------------- queries, keys and values side by side */

enum { KV_TOKENS, KV_HEADS, KV_GROUPS, KV_WIDTH, KV_VALUE };

/* Width of a value head: dimension `value`, or the width of a key head if that dimension is 0. */
static uint64_t
value_width (const struct weft_kernel *k, unsigned width, unsigned value)
{
  return k->shape.dim[value] ? k->shape.dim[value] : k->shape.dim[width];
}

/* Number of elements of the queries of a token. */
static uint64_t
of_queries (const struct weft_kernel *k)
{
  return k->shape.dim[KV_HEADS] * k->shape.dim[KV_WIDTH];
}

/* Number of elements of the keys and values of a token. */
static uint64_t
of_kv (const struct weft_kernel *k)
{
  return k->shape.dim[KV_GROUPS] * (k->shape.dim[KV_WIDTH] + value_width (k, KV_WIDTH, KV_VALUE));
}

uint64_t
weft_extent_take_kv (const struct weft_kernel *k, uint32_t operand)
{
  return k->shape.dim[KV_TOKENS] * (of_kv (k) + (operand == 0 ? of_queries (k) : 0));
}

uint64_t
weft_extent_put_kv (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_take_kv (k, !operand);
}

void
weft_cpu_take_kv (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range tokens = weft_part (k->shape.dim[KV_TOKENS], 1, part, parts);
  uint64_t q = of_queries (k), n = of_kv (k);

  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    copy (k, t * (q + n) + q, t * n, n);
}

void
weft_cpu_put_kv (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range tokens = weft_part (k->shape.dim[KV_TOKENS], 1, part, parts);
  uint64_t q = of_queries (k), n = of_kv (k);

  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    copy (k, t * n, t * (q + n) + q, n);
}

/* ------------------------------------------------------------------ zigzag sequence parts */

enum { MEMBERS, BATCH, ROWS, COLUMNS };

uint64_t
weft_extent_split_sequence (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return product (k, MEMBERS, 4);
}

uint64_t
weft_extent_join_sequence (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return product (k, MEMBERS, 4);
}

/* Index of a row in the joined array (whole sequences), given its index in the split array (one
 * slice per member). */
static uint64_t
joined_row (const struct weft_kernel *k, uint64_t row)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t slice = row / dim[ROWS] / dim[BATCH], batch = row / dim[ROWS] % dim[BATCH];
  struct weft_place place = { (uint32_t) slice, (uint32_t) dim[MEMBERS] };

  if (k->before)
    place.at = (uint32_t) (k->cp.at + dim[MEMBERS] - slice) % place.of;
  return batch * dim[MEMBERS] * dim[ROWS] + weft_position (place, dim[ROWS], row % dim[ROWS]);
}

static void
move_rows (const struct weft_kernel *k, gboolean join, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (product (k, MEMBERS, 3), 1, part, parts);
  uint64_t n = k->shape.dim[COLUMNS];

  for (uint64_t row = rows.begin; row < rows.end; row++) {
    uint64_t joined = joined_row (k, row);
    copy (k, (join ? row : joined) * n, (join ? joined : row) * n, n);
  }
}

void
weft_cpu_split_sequence (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  move_rows (k, FALSE, part, parts);
}

void
weft_cpu_join_sequence (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  move_rows (k, TRUE, part, parts);
}

/* ------------------------------------------------- Ulysses: heads distributed over members */

enum { H_TOKENS, H_MEMBERS, H_HEADS, H_GROUPS, H_WIDTH, H_VALUE };

/* Number of elements of a token: its query heads, key heads and value heads. */
static uint64_t
row_of_heads (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;

  return (dim[H_HEADS] + dim[H_GROUPS]) * dim[H_WIDTH] +
         dim[H_GROUPS] * value_width (k, H_WIDTH, H_VALUE);
}

uint64_t
weft_extent_split_heads (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[H_TOKENS] * row_of_heads (k);
}

uint64_t
weft_extent_join_heads (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_split_heads (k, operand);
}

/* For queries, keys and values: copies the heads of one member, which are contiguous per token in
 * both arrays. */
static void
move_token (const struct weft_kernel *k, uint64_t token, uint64_t member, gboolean join)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t kind[] = { dim[H_HEADS] * dim[H_WIDTH], dim[H_GROUPS] * dim[H_WIDTH],
                            dim[H_GROUPS] * value_width (k, H_WIDTH, H_VALUE) };
  uint64_t joined = token * row_of_heads (k);
  uint64_t split = (member * dim[H_TOKENS] + token) * (row_of_heads (k) / dim[H_MEMBERS]);

  for (unsigned i = 0; i < G_N_ELEMENTS (kind); i++) {
    uint64_t n = kind[i] / dim[H_MEMBERS], whole = joined + member * n;
    copy (k, join ? split : whole, join ? whole : split, n);
    joined += kind[i];
    split += n;
  }
}

static void
move_heads (const struct weft_kernel *k, gboolean join, uint32_t part, uint32_t parts)
{
  struct weft_range tokens = weft_part (k->shape.dim[H_TOKENS], 1, part, parts);

  for (uint64_t token = tokens.begin; token < tokens.end; token++)
    for (uint64_t member = 0; member < k->shape.dim[H_MEMBERS]; member++)
      move_token (k, token, member, join);
}

void
weft_cpu_split_heads (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  move_heads (k, FALSE, part, parts);
}

void
weft_cpu_join_heads (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  move_heads (k, TRUE, part, parts);
}

/* ----------------------------------------------------------------- merging ring attention */

enum { O, LSE, PART_O, PART_LSE };
enum { M_TOKENS, M_HEADS, M_WIDTH };

uint64_t
weft_extent_attention_merge (const struct weft_kernel *k, uint32_t operand)
{
  return product (k, M_TOKENS, operand == LSE || operand == PART_LSE ? 2 : 3);
}

/* Index of the log-sum-exp of a row (one token, one head). The array is ordered by sequence, then
 * head, then token. */
static uint64_t
lse_at (const struct weft_kernel *k, uint64_t row)
{
  uint64_t heads = k->shape.dim[M_HEADS], sequence = weft_kernel_sequence (k);
  uint64_t token = row / heads, head = row % heads;

  return (token / sequence * heads + head) * sequence + token % sequence;
}

WEFT_WIDE static void
weigh (float *o, const float *part, const float weight[2], uint64_t n)
{
  float mine = weight[0], theirs = weight[1];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    o[i] = o[i] * mine + part[i] * theirs;
}

/* Merges the attention output of one part of the keys into that of the parts before. A part without
 * visible keys has a log-sum-exp of -infinity and weight 0. Both parts may have no visible keys. */
static void
merge_head (const struct weft_kernel *k, uint64_t row)
{
  const struct weft_operand *o = &k->operand[O], *part = &k->operand[PART_O];
  uint64_t width = k->shape.dim[M_WIDTH], at = lse_at (k, row);
  float *lse = (float *) k->operand[LSE].data + at, mine_room[WEFT_STRETCH], room[WEFT_STRETCH];
  float other = ((const float *) k->operand[PART_LSE].data)[at], most = fmaxf (*lse, other);

  if (other == -INFINITY)
    return;
  float mine = weft_expf (*lse - most), theirs = weft_expf (other - most), sum = mine + theirs;
  const float weight[] = { mine / sum, theirs / sum };
  for (uint64_t w = 0; w < width; w += WEFT_STRETCH) {
    uint64_t n = weft_least (width - w, WEFT_STRETCH), first = row * width + w;
    float *to = (float *) weft_floats (o->data, o->dtype, first, n, mine_room);
    weigh (to, weft_floats (part->data, part->dtype, first, n, room), weight, n);
    weft_store (o->data, o->dtype, first, n, to);
  }
  *lse = most + weft_logf (sum);
}

void
weft_cpu_attention_merge (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (product (k, M_TOKENS, 2), 1, part, parts);

  for (uint64_t row = rows.begin; row < rows.end; row++)
    merge_head (k, row);
}

/* ------------------------------------------------------------------ one part of a gradient */

uint64_t
weft_extent_keep_piece (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[0];
}

static struct weft_range
kept (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[0], tp = MAX (1, k->tp.of), all = tp * MAX (1, k->cp.of);
  uint64_t size = k->shape.dim[1] ? k->shape.dim[1] : all / tp,
           at = (k->cp.at * tp + k->tp.at) / (all / size);

  return (struct weft_range){ n * at / size, n * (at + 1) / size };
}

/* Sets all elements to -0.0, because adding -0.0 changes no number, not even -0.0. */
static void
clear (const struct weft_operand *x, struct weft_range range)
{
  float nothing[WEFT_STRETCH];

  for (unsigned i = 0; i < WEFT_STRETCH; i++)
    nothing[i] = -0.0f;
  for (uint64_t at = range.begin; at < range.end; at += WEFT_STRETCH)
    weft_store (x->data, x->dtype, at, weft_least (range.end - at, WEFT_STRETCH), nothing);
}

void
weft_cpu_keep_piece (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range mine = kept (k);

  (void) part;
  (void) parts;
  clear (&k->operand[0], (struct weft_range){ 0, mine.begin });
  clear (&k->operand[0], (struct weft_range){ mine.end, k->shape.dim[0] });
}

/* -------------------------------------------------------------------------- references */

void
weft_ref_take_kv (const struct weft_kernel *k)
{
  const double *qkv = k->operand[0].data;
  double *kv = k->operand[1].data;
  uint64_t n = of_kv (k), row = n + of_queries (k);

  for (uint64_t i = 0; i < k->shape.dim[KV_TOKENS] * n; i++)
    kv[i] = qkv[i / n * row + of_queries (k) + i % n];
}

void
weft_ref_put_kv (const struct weft_kernel *k)
{
  const double *kv = k->operand[0].data;
  double *qkv = k->operand[1].data;
  uint64_t n = of_kv (k), row = n + of_queries (k);

  for (uint64_t i = 0; i < k->shape.dim[KV_TOKENS] * n; i++)
    qkv[i / n * row + of_queries (k) + i % n] = kv[i];
}

/* In context parallelism, a sequence is cut into 2 * members pieces; member m has pieces m and 2 *
 * members - 1 - m. The split array has one slice per member; the joined array has whole sequences.
 * Returns the index in the joined array of element i of the split array. */
static uint64_t
joined_element (const struct weft_kernel *k, uint64_t i)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t column = i % dim[COLUMNS], row = i / dim[COLUMNS] % dim[ROWS];
  uint64_t batch = i / dim[COLUMNS] / dim[ROWS] % dim[BATCH];
  uint64_t member = i / dim[COLUMNS] / dim[ROWS] / dim[BATCH], half = dim[ROWS] / 2;
  if (k->before)
    member = (k->cp.at + dim[MEMBERS] - member) % dim[MEMBERS];
  uint64_t piece = row < half ? member : 2 * dim[MEMBERS] - 1 - member;
  uint64_t within = dim[MEMBERS] == 1 ? row : piece * half + row % MAX (1, half);

  return (batch * dim[MEMBERS] * dim[ROWS] + within) * dim[COLUMNS] + column;
}

void
weft_ref_split_sequence (const struct weft_kernel *k)
{
  for (uint64_t i = 0; i < k->operand[0].n; i++)
    ((double *) k->operand[1].data)[i] =
        ((const double *) k->operand[0].data)[joined_element (k, i)];
}

void
weft_ref_join_sequence (const struct weft_kernel *k)
{
  for (uint64_t i = 0; i < k->operand[0].n; i++)
    ((double *) k->operand[1].data)[joined_element (k, i)] =
        ((const double *) k->operand[0].data)[i];
}

/* The heads of all tokens are exchanged between the members of a group. i: an element of the array
 * in which each token has all heads. Returns the index of this element in the array that has one
 * block per member, with the member's heads of all tokens. */
static uint64_t
dealt_element (const struct weft_kernel *k, uint64_t i)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t width = dim[H_WIDTH], row = row_of_heads (k), token = i / row, column = i % row;
  uint64_t q = dim[H_HEADS] / dim[H_MEMBERS], g = dim[H_GROUPS] / dim[H_MEMBERS];
  uint64_t keys = dim[H_HEADS] * width, values = keys + dim[H_GROUPS] * width, member, at;

  if (column < keys) {
    member = column / width / q;
    at = column % (q * width);
  } else if (column < values) {
    member = (column - keys) / width / g;
    at = q * width + (column - keys) % (g * width);
  } else {
    uint64_t value = value_width (k, H_WIDTH, H_VALUE);
    member = (column - values) / value / g;
    at = (q + g) * width + (column - values) % (g * value);
  }
  return (member * dim[H_TOKENS] + token) * (row / dim[H_MEMBERS]) + at;
}

void
weft_ref_split_heads (const struct weft_kernel *k)
{
  for (uint64_t i = 0; i < k->operand[0].n; i++)
    ((double *) k->operand[1].data)[dealt_element (k, i)] =
        ((const double *) k->operand[0].data)[i];
}

void
weft_ref_join_heads (const struct weft_kernel *k)
{
  for (uint64_t i = 0; i < k->operand[0].n; i++)
    ((double *) k->operand[1].data)[i] =
        ((const double *) k->operand[0].data)[dealt_element (k, i)];
}

void
weft_ref_attention_merge (const struct weft_kernel *k)
{
  uint64_t width = k->shape.dim[M_WIDTH];
  double *o = k->operand[O].data, *lse = k->operand[LSE].data;
  const double *part = k->operand[PART_O].data, *part_lse = k->operand[PART_LSE].data;

  for (uint64_t row = 0; row < product (k, M_TOKENS, 2); row++) {
    uint64_t at = lse_at (k, row);
    double most = fmax (lse[at], part_lse[at]);
    double sum = exp (lse[at] - most) + exp (part_lse[at] - most);
    if (most == -INFINITY)
      continue;
    for (uint64_t w = row * width; w < (row + 1) * width; w++)
      o[w] = (o[w] * exp (lse[at] - most) + part[w] * exp (part_lse[at] - most)) / sum;
    lse[at] = most + log (sum);
  }
}

void
weft_ref_keep_piece (const struct weft_kernel *k)
{
  struct weft_range mine = kept (k);

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    if (i < mine.begin || i >= mine.end)
      ((double *) k->operand[0].data)[i] = 0;
}
