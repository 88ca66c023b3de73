/* MoE permutation: counts and numbers rows by expert, dispatches and combines rows, regroups them
 * by source. */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/moe.h"
#include "kernels/part.h"
#include "kernels/sums.h"
#include <math.h>

/* Number of columns of a thread's share: whole cache lines, so that threads write different cache
 * lines. */
#define GRAIN 32

/* ---------------------------------------------------------------- counts and numbers */

enum { CHOICE, PROB, COUNTS, ROW };
enum { TOKENS, TOPK, EXPERTS, CAPACITY, PADDED, LEAVES };

#define DROPPED (-1)
#define MOST_EXPERTS 65536

static uint64_t
leaves_of (const struct weft_kernel *k)
{
  return k->shape.dim[LEAVES] ? k->shape.dim[LEAVES] : weft_sums_leaves (k, k->shape.dim[TOKENS]).n;
}

uint64_t
weft_extent_moe_sort (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return operand == COUNTS ? dim[EXPERTS] * leaves_of (k) : dim[TOKENS] * dim[TOPK];
}

/* Router weights, which determine the rows that are dropped over capacity. doubles: the elements
 * are doubles (reference). */
struct weights {
  const struct weft_operand *operand;
  gboolean doubles;
};

/* A weight as a number that can be compared. NaN counts as the largest weight, as in torch.topk():
 * if NaN were not ordered, more rows could be kept than the capacity allows. */
static double
weight_of (const struct weights *w, uint64_t i)
{
  float room;
  double weight = w->doubles
                      ? ((const double *) w->operand->data)[i]
                      : (double) *weft_floats (w->operand->data, w->operand->dtype, i, 1, &room);

  return isnan (weight) ? INFINITY : weight;
}

/* Number of rows with priority over row i at its expert, when rows over the capacity are dropped:
 * rows of larger weight, and earlier rows of equal weight (Megatron-Core moe_utils.py, drop policy
 * "probs"). */
static uint64_t
stand_before (const struct weft_kernel *k, const struct weights *w, uint64_t i)
{
  const int32_t *choice = k->operand[CHOICE].data;
  uint64_t n = 0, all = k->shape.dim[TOKENS] * k->shape.dim[TOPK];
  double mine = weight_of (w, i);

  for (uint64_t j = 0; j < all; j++) {
    if (choice[j] != choice[i] || j == i)
      continue;
    double other = weight_of (w, j);
    n += other > mine || (other == mine && j < i);
  }
  return n;
}

/* Sorts rows by expert: counts the rows of each expert, then numbers each row by the start of its
 * expert plus the number of earlier rows of that expert. */
static void
sort (const struct weft_kernel *k, const struct weights *w)
{
  const uint64_t *dim = k->shape.dim;
  const int32_t *choice = k->operand[CHOICE].data;
  int64_t *counts = k->operand[COUNTS].data;
  int32_t *row = k->operand[ROW].data;
  uint64_t leaves = leaves_of (k), all = dim[TOKENS] * dim[TOPK];
  uint64_t leaf = dim[TOKENS] / leaves;
  int32_t next[MOST_EXPERTS];

  g_assert (dim[EXPERTS] <= MOST_EXPERTS);
  memset (counts, 0, dim[EXPERTS] * leaves * sizeof *counts);
  for (uint64_t i = 0; i < all; i++) {
    gboolean dropped = dim[CAPACITY] && stand_before (k, w, i) >= dim[CAPACITY];
    row[i] = dropped ? DROPPED : 0;
    counts[(uint64_t) choice[i] * leaves + i / dim[TOPK] / leaf] += !dropped;
  }
  for (uint64_t e = 0, begin = 0; e < dim[EXPERTS]; e++) {
    next[e] = (int32_t) (dim[PADDED] ? e * dim[CAPACITY] : begin);
    begin += weft_moe_count (counts, e * leaves, leaves);
  }
  for (uint64_t i = 0; i < all; i++)
    if (row[i] != DROPPED)
      row[i] = next[choice[i]]++;
}

void
weft_cpu_moe_sort (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  sort (k, &(struct weights){ &k->operand[PROB], FALSE });
}

void
weft_ref_moe_sort (const struct weft_kernel *k)
{
  sort (k, &(struct weights){ &k->operand[PROB], TRUE });
}

/* ------------------------------------------------------------- dispatch and combine */

enum { X, PERMUTE_ROW, PERMUTE_Y };
enum { UNPERMUTE_ROW = 1, UNPERMUTE_CHOICE, UNPERMUTE_Y };
enum { COLUMNS = 1, EACH };

uint64_t
weft_extent_moe_permute (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return operand == X             ? dim[TOKENS] * dim[COLUMNS]
         : operand == PERMUTE_ROW ? dim[TOKENS] * dim[EACH]
                                  : 0;
}

/* Whether the copied rows fill y completely: no row is dropped, and y has no other rows. */
static gboolean
fills (const struct weft_kernel *k)
{
  const struct weft_operand *row = &k->operand[PERMUTE_ROW];

  for (uint64_t i = 0; i < row->n; i++)
    if (((const int32_t *) row->data)[i] == DROPPED)
      return FALSE;
  return k->operand[PERMUTE_Y].n == row->n * k->shape.dim[COLUMNS];
}

void
weft_cpu_moe_permute (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *x = &k->operand[X], *y = &k->operand[PERMUTE_Y];
  const int32_t *row = k->operand[PERMUTE_ROW].data;
  uint64_t columns = k->shape.dim[COLUMNS], each = k->shape.dim[EACH];
  uint64_t size = weft_dtype_bytes (y->dtype);
  struct weft_range range = weft_part (columns, GRAIN, part, parts);
  uint64_t bytes = (range.end - range.begin) * size;
  uint8_t *to = (uint8_t *) y->data + range.begin * size;
  const uint8_t *from = (const uint8_t *) x->data + range.begin * size;

  g_assert (x->dtype == y->dtype);
  for (uint64_t r = 0; !fills (k) && r < y->n / columns; r++)
    memset (to + r * columns * size, 0, bytes);
  for (uint64_t i = 0; i < k->shape.dim[TOKENS] * each; i++)
    if (row[i] != DROPPED)
      memcpy (to + (uint64_t) row[i] * columns * size, from + i / each * columns * size, bytes);
}

void
weft_ref_moe_permute (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data;
  const int32_t *row = k->operand[PERMUTE_ROW].data;
  double *y = k->operand[PERMUTE_Y].data;
  uint64_t columns = k->shape.dim[COLUMNS], each = k->shape.dim[EACH];

  memset (y, 0, k->operand[PERMUTE_Y].n * sizeof *y);
  for (uint64_t i = 0; i < k->shape.dim[TOKENS] * each; i++)
    for (uint64_t c = 0; c < columns && row[i] != DROPPED; c++)
      y[(uint64_t) row[i] * columns + c] = x[i / each * columns + c];
}

uint64_t
weft_extent_moe_unpermute (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return operand == UNPERMUTE_Y ? dim[TOKENS] * dim[COLUMNS]
         : operand == X         ? 0
                                : dim[TOKENS] * dim[EACH];
}

/* The sum of the rows of one token, for n columns from `first` on. choice: the expert of each
 * row. */
struct sum {
  const struct weft_kernel *k;
  const int32_t *row, *choice;
  uint64_t first, n;
};

/* Adds a range of rows of a token as a tree over the experts: the rows are the leaves of the node
 * over experts [expert, expert + n). Experts that the token does not use count as 0 and are
 * skipped. */
static void
fold (const struct sum *s, struct weft_range rows, uint32_t expert, uint32_t n, float *to)
{
  const struct weft_operand *x = &s->k->operand[X];
  float room[WEFT_STRETCH];

  if (rows.end - rows.begin == 1) {
    uint64_t at = (uint64_t) s->row[rows.begin] * s->k->shape.dim[COLUMNS] + s->first;
    memmove (to, weft_floats (x->data, x->dtype, at, s->n, to), s->n * sizeof *to);
    return;
  }
  uint32_t left = weft_fold_split (n);
  uint64_t middle = rows.begin;
  while (middle < rows.end && (uint32_t) s->choice[middle] < expert + left)
    middle++;
  if (middle == rows.begin || middle == rows.end) {
    fold (s, rows, middle == rows.end ? expert : expert + left,
          middle == rows.end ? left : n - left, to);
    return;
  }
  fold (s, (struct weft_range){ rows.begin, middle }, expert, left, to);
  fold (s, (struct weft_range){ middle, rows.end }, expert + left, n - left, room);
  weft_sums_add (to, room, s->n);
  weft_round (s->k->operand[UNPERMUTE_Y].dtype, s->n, to);
}

/* Adds the n_row rows of a token, one after the other, in the order of their experts. */
static void
chain (const struct sum *s, uint64_t n_row, float *to)
{
  const struct weft_operand *x = &s->k->operand[X];
  float room[WEFT_STRETCH];

  memset (to, 0, s->n * sizeof *to);
  for (uint64_t i = 0; i < n_row; i++)
    weft_sums_add (to,
                   weft_floats (x->data, x->dtype,
                                (uint64_t) s->row[i] * s->k->shape.dim[COLUMNS] + s->first, s->n,
                                room),
                   s->n);
}

#define MOST_TOPK 1024

/* Sums the rows of one token. Adds 0 at the end, which turns -0 into 0. Adding the part of another
 * rank has the same effect, so the bits do not depend on the number of ranks. */
static void
sum_token (const struct weft_kernel *k, uint64_t token, struct weft_range columns)
{
  const struct weft_operand *y = &k->operand[UNPERMUTE_Y], *of = &k->operand[UNPERMUTE_CHOICE];
  uint64_t each = k->shape.dim[EACH], all = k->shape.dim[COLUMNS], n = 0;
  const int32_t *given = (const int32_t *) k->operand[UNPERMUTE_ROW].data + token * each;
  const int32_t *expert = of->data ? (const int32_t *) of->data + token * each : NULL;
  int32_t row[MOST_TOPK], choice[MOST_TOPK];
  float sum[WEFT_STRETCH];

  for (uint64_t i = 0; i < each; i++)
    if (given[i] != DROPPED) {
      row[n] = given[i];
      choice[n++] = expert ? expert[i] : (int32_t) i;
    }
  for (uint64_t c = columns.begin; c < columns.end; c += WEFT_STRETCH) {
    struct sum s = { k, row, choice, c, weft_least (columns.end - c, WEFT_STRETCH) };
    if (k->canonical && n > 1 && expert)
      fold (&s, (struct weft_range){ 0, n }, 0, (uint32_t) k->shape.dim[4], sum);
    else
      chain (&s, n, sum);
    for (uint64_t j = 0; j < s.n; j++)
      sum[j] += 0.0f;
    weft_store (y->data, y->dtype, token * all + c, s.n, sum);
  }
}

void
weft_cpu_moe_unpermute (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range tokens = weft_part (k->shape.dim[TOKENS], 16, part, parts);

  g_assert (k->shape.dim[EACH] <= MOST_TOPK);
  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    sum_token (k, t, (struct weft_range){ 0, k->shape.dim[COLUMNS] });
}

void
weft_ref_moe_unpermute (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data;
  const int32_t *row = k->operand[UNPERMUTE_ROW].data;
  double *y = k->operand[UNPERMUTE_Y].data;
  uint64_t columns = k->shape.dim[COLUMNS], each = k->shape.dim[EACH];

  memset (y, 0, k->operand[UNPERMUTE_Y].n * sizeof *y);
  for (uint64_t i = 0; i < k->shape.dim[TOKENS] * each; i++)
    for (uint64_t c = 0; c < columns && row[i] != DROPPED; c++)
      y[i / each * columns + c] += x[(uint64_t) row[i] * columns + c];
}

/* --------------------------------------------- regrouping by source and by expert */

enum { GROUP_COUNTS, GROUP_X, GROUP_Y };
enum { GROUP_COLUMNS = 1, GROUP_EXPERTS, GROUP_SOURCES, GROUP_STRIDE, GROUP_INNER };

uint64_t
weft_extent_moe_group (const struct weft_kernel *k, uint32_t operand)
{
  (void) k;
  (void) operand;
  return 0;
}

uint64_t
weft_extent_moe_ungroup (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_group (k, operand);
}

/* For MoE rows that are ordered by source rank: returns the i-th source. Source o * inner + j is at
 * place j * outer + o of this order; `inner` is the dimension GROUP_INNER. */
static uint64_t
source_at (const struct weft_kernel *k, uint64_t i)
{
  uint64_t inner = MAX (1, k->shape.dim[GROUP_INNER]), outer = k->shape.dim[GROUP_SOURCES] / inner;

  return i % outer * inner + i / outer;
}

/* Changes the order of blocks of rows; each block belongs to one expert and one source rank. In one
 * operand, blocks are ordered by expert, then by source; in the other, by source, then by expert.
 * `size`: bytes of an element. */
static void
regroup (const struct weft_kernel *k, gboolean by_expert, uint64_t size)
{
  const uint64_t *dim = k->shape.dim;
  const struct weft_operand *counts = &k->operand[GROUP_COUNTS];
  uint64_t experts = dim[GROUP_EXPERTS], sources = dim[GROUP_SOURCES];
  uint64_t leaves = counts->n / (experts * sources), bytes = dim[GROUP_COLUMNS] * size, before = 0;
  const uint8_t *x = k->operand[GROUP_X].data;
  uint8_t *y = k->operand[GROUP_Y].data;

  for (uint64_t s = 0; s < sources; s++)
    for (uint64_t e = 0; e < experts; e++) {
      uint64_t block = e * sources + source_at (k, s);
      uint64_t n = dim[GROUP_STRIDE] ? dim[GROUP_STRIDE]
                                     : weft_moe_count (counts->data, block * leaves, leaves);
      uint64_t sorted = dim[GROUP_STRIDE] ? block * dim[GROUP_STRIDE]
                                          : weft_moe_count (counts->data, 0, block * leaves);
      memcpy (y + (by_expert ? sorted : before) * bytes, x + (by_expert ? before : sorted) * bytes,
              n * bytes);
      before += n;
    }
}

void
weft_cpu_moe_group (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  regroup (k, TRUE, weft_dtype_bytes (k->operand[GROUP_X].dtype));
}

void
weft_cpu_moe_ungroup (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  regroup (k, FALSE, weft_dtype_bytes (k->operand[GROUP_X].dtype));
}

void
weft_ref_moe_group (const struct weft_kernel *k)
{
  regroup (k, TRUE, sizeof (double));
}

void
weft_ref_moe_ungroup (const struct weft_kernel *k)
{
  regroup (k, FALSE, sizeof (double));
}

/* -------------------------------------------------------- transposed tables of counts */

uint64_t
weft_extent_moe_turn (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[0] * k->shape.dim[1] * k->shape.dim[2];
}

/* Row counts are integers also in the fp64 reference. */
void
weft_ref_moe_turn (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  const int64_t *x = k->operand[0].data;
  int64_t *y = k->operand[1].data;

  for (uint64_t i = 0; i < dim[0]; i++)
    for (uint64_t j = 0; j < dim[1]; j++)
      for (uint64_t l = 0; l < dim[2]; l++)
        y[(j * dim[0] + i) * dim[2] + l] = x[(i * dim[1] + j) * dim[2] + l];
}

void
weft_cpu_moe_turn (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  weft_ref_moe_turn (k);
}
