#include "core/plan/fit.h"
#include <string.h>

/* Times are ops. A block is TIMES_OF_BLOCK consecutive times, and a leaf of a binary tree over
 * time. Every node of the tree stores ranges of addresses:
 *
 *   any    addresses of pieces that are in use at some time of the node
 *   whole  addresses of pieces that are in use during the whole node, but not during the whole
 *          parent of the node
 *   part   (leaves only) pieces that are in use during a part of the block
 *
 * The addresses that are taken at some time of [first, end) are `any` of the nodes that lie in this
 * interval, `whole` of the nodes above these, and the pieces of `part` at both ends of the
 * interval. Pieces lie close together, so the lists of ranges are short. */
enum { TIMES_OF_BLOCK = 256 };

/* Largest number of lists that a piece must avoid: at most four nodes on each of the 27 levels of
 * the tree. */
enum { MOST_LISTS = 4 * 27 };

struct range {
  uint64_t from, to;
};

/* Ranges that neither overlap nor touch, in the order of addresses. */
struct ranges {
  struct range *range;
  uint32_t n, room;
};

/* Pieces in the order of their offsets. */
struct parts {
  struct weft_fit_piece *piece;
  uint32_t n, room;
};

struct node {
  struct ranges any, whole;
};

/* The part of the tree below a node: the number of the node, and its times. The children of node i
 * are 2 i and 2 i + 1. */
struct branch {
  uint32_t node, from, to;
};

struct fit {
  struct weft_fit_piece *piece;
  uint32_t n;
  uint32_t *kind;             /* [piece]: pieces of one kind have one size and similar lifetimes */
  double *weight;             /* [kind]: kinds with larger weights are placed earlier */
  uint32_t *order;            /* pieces in the order in which they are placed */
  uint32_t n_times, n_blocks; /* number of blocks: a power of two */
  struct node *node;          /* [2 n_blocks]: node 1 is the root */
  struct parts *part;         /* [n_blocks] */
  uint64_t n_steps, most;     /* number of comparisons with ranges and pieces: so far, at most */
};

/* The lists of addresses that a piece must avoid. */
struct taken {
  const struct weft_fit_piece *asks;
  const struct ranges *list[MOST_LISTS];
  uint32_t past[MOST_LISTS]; /* ranges of each list that end at or below the address so far */
  /* the range that follows these: a copy, because most lists are asked many times, and most answers
   * follow from it; at the end of a list, the highest address */
  struct range next[MOST_LISTS];
  uint32_t n;
  /* parts of the blocks in which the use of the piece begins and ends */
  const struct parts *part[2];
  /* n_part: number of entries of part[]; seen[i]: number of pieces of part[i] that were compared */
  uint32_t n_part, seen[2];
  uint64_t n_steps; /* number of comparisons so far */
};

/* The number of orders that are tried: most of them begin with the largest pieces, the last ones
 * with the pieces that live longest. */
enum { ORDERS_BY_SIZE = 6, ORDERS_BY_LIFE = 2 };

/* A kind whose pieces do not fit below the load is placed earlier, as if they were so many times as
 * large. A larger factor would place small pieces before most others. */
static const double promotion = 4;

/* ------------------------------------------------------------------------ lists */

/* The number of the first range that ends at or after an address. */
static uint32_t
find_range (const struct ranges *list, uint64_t at)
{
  uint32_t low = 0, high = list->n;

  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (list->range[middle].to < at)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void
add_range (struct ranges *list, struct range new)
{
  uint32_t at = find_range (list, new.from), end = at;

  for (; end < list->n && list->range[end].from <= new.to; end++) {
    new.from = MIN (new.from, list->range[end].from);
    new.to = MAX (new.to, list->range[end].to);
  }
  if (list->n == list->room) {
    list->room = 2 * list->room + 4;
    list->range = g_renew (struct range, list->range, list->room);
  }
  memmove (&list->range[at + 1], &list->range[end], (list->n - end) * sizeof new);
  list->range[at] = new;
  list->n += at + 1 - end;
}

static void
add_part (struct parts *parts, const struct weft_fit_piece *p)
{
  uint32_t low = 0, high = parts->n;

  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (parts->piece[middle].offset < p->offset)
      low = middle + 1;
    else
      high = middle;
  }
  if (parts->n == parts->room) {
    parts->room = 2 * parts->room + 8;
    parts->piece = g_renew (struct weft_fit_piece, parts->piece, parts->room);
  }
  memmove (&parts->piece[low + 1], &parts->piece[low], (parts->n++ - low) * sizeof *p);
  parts->piece[low] = *p;
}

/* ------------------------------------------------------------------------- tree */

static struct branch
child (const struct branch *b, uint32_t side)
{
  uint32_t half = (b->to - b->from) / 2;

  return (struct branch){ 2 * b->node + side, b->from + side * half, b->to - (1 - side) * half };
}

static gboolean
is_during (const struct branch *b, const struct weft_fit_piece *p)
{
  return p->first < b->to && p->end > b->from;
}

static gboolean
is_whole (const struct branch *b, const struct weft_fit_piece *p)
{
  return p->first <= b->from && p->end >= b->to;
}

static void
add (const struct fit *f, struct branch b, const struct weft_fit_piece *p)
{
  struct node *node = &f->node[b.node];
  const struct range range = { p->offset, p->offset + p->bytes };

  add_range (&node->any, range);
  if (is_whole (&b, p)) {
    add_range (&node->whole, range);
    return;
  }
  if (b.node >= f->n_blocks) {
    add_part (&f->part[b.node - f->n_blocks], p);
    return;
  }
  for (uint32_t side = 0; side < 2; side++) {
    struct branch half = child (&b, side);
    if (is_during (&half, p))
      add (f, half, p);
  }
}

static void
avoid (struct taken *t, const struct ranges *list)
{
  if (list->n == 0)
    return;
  t->past[t->n] = 0;
  t->next[t->n] = list->range[0];
  t->list[t->n++] = list;
}

/* Collects the lists of addresses that are taken at some time of the piece. */
static void
collect (const struct fit *f, struct branch b, struct taken *t)
{
  const struct node *node = &f->node[b.node];

  if (is_whole (&b, t->asks)) {
    avoid (t, &node->any);
    return;
  }
  avoid (t, &node->whole);
  if (b.node >= f->n_blocks) {
    t->part[t->n_part++] = &f->part[b.node - f->n_blocks];
    return;
  }
  for (uint32_t side = 0; side < 2; side++) {
    struct branch half = child (&b, side);
    if (is_during (&half, t->asks))
      collect (f, half, t);
  }
}

/* ---------------------------------------------------------------------- placing */

/* Most ranges that are passed one by one: a search among all costs about as much. */
enum { FEW = 8 };

/* The number of the first range of list[k] that ends above an address. The addresses of later calls
 * are no lower. */
static uint32_t
pass_ranges (const struct taken *t, uint32_t k, uint64_t at)
{
  const struct ranges *list = t->list[k];
  uint32_t i = t->past[k];

  if (i + FEW < list->n && list->range[i + FEW].to <= at)
    i = find_range (list, at + 1);
  while (i < list->n && list->range[i].to <= at)
    i++;
  return i;
}

/* The lowest address from `at` on at which the piece overlaps no range of list[k]. */
static uint64_t
above_ranges (struct taken *t, uint32_t k, uint64_t at)
{
  static const struct range none = { G_MAXUINT64, G_MAXUINT64 };
  const struct ranges *list = t->list[k];
  const uint64_t bytes = t->asks->bytes;

  t->n_steps++;
  if ((t->next[k].to > at) & (t->next[k].from >= at + bytes))
    return at;
  uint32_t i = pass_ranges (t, k, at);
  for (; i < list->n && list->range[i].from < at + bytes; i++, t->n_steps++)
    at = list->range[i].to;
  t->past[k] = i;
  t->next[k] = i < list->n ? list->range[i] : none;
  return at;
}

/* The lowest address from `at` on at which the piece overlaps none of the pieces of part[k] that
 * live at the same time. */
static uint64_t
above_parts (struct taken *t, uint32_t k, uint64_t at)
{
  const struct weft_fit_piece *p = t->asks, *q = t->part[k]->piece;
  uint32_t i = t->seen[k], n = t->part[k]->n;

  for (; i < n && q[i].offset < at + p->bytes; i++)
    if (q[i].end > p->first && p->end > q[i].first)
      at = MAX (at, q[i].offset + q[i].bytes);
  t->n_steps += i - t->seen[k] + 1;
  t->seen[k] = i;
  return at;
}

/* Returns the lowest offset at which a piece fits between the placed pieces that live at the same
 * time: raises the offset above one list after the other until it has passed all lists without
 * being raised. */
static uint64_t
lowest (struct fit *f, const struct branch *root, const struct weft_fit_piece *p)
{
  /* the arrays are large, and collect() sets what is used of them */
  struct taken t;
  uint64_t at = 0;

  t.asks = p;
  t.n = t.n_part = t.seen[0] = t.seen[1] = 0;
  t.n_steps = 0;
  collect (f, *root, &t);
  const uint32_t n = t.n + t.n_part;
  for (uint32_t i = 0, passed = 0; passed < n; i = i + 1 < n ? i + 1 : 0) {
    uint64_t before = at;
    at = i < t.n ? above_ranges (&t, i, at) : above_parts (&t, i - t.n, at);
    passed = at == before ? passed + 1 : 1;
  }
  f->n_steps += t.n_steps;
  return at;
}

/* Makes the tree. A piece may be in use until after the last op, so the blocks cover up to twice
 * the number of times. */
static void
plant (struct fit *f)
{
  for (f->n_blocks = 1; f->n_blocks * TIMES_OF_BLOCK <= f->n_times;)
    f->n_blocks *= 2;
  f->node = g_new0 (struct node, 2 * (size_t) f->n_blocks);
  f->part = g_new0 (struct parts, f->n_blocks);
}

/* Removes all pieces from the tree. */
static void
clear_tree (struct fit *f)
{
  for (uint32_t i = 0; i < 2 * f->n_blocks; i++)
    f->node[i].any.n = f->node[i].whole.n = 0;
  for (uint32_t i = 0; i < f->n_blocks; i++)
    f->part[i].n = 0;
}

static void
fell (struct fit *f)
{
  for (uint32_t i = 0; f->node && i < 2 * f->n_blocks; i++) {
    g_free (f->node[i].any.range);
    g_free (f->node[i].whole.range);
  }
  for (uint32_t i = 0; f->part && i < f->n_blocks; i++)
    g_free (f->part[i].piece);
  g_free (f->node);
  g_free (f->part);
}

/* ------------------------------------------------------------------------ orders */

static uint64_t
life (const struct fit *f, const struct weft_fit_piece *p)
{
  return MIN (p->end, f->n_times + 1) - (uint64_t) p->first;
}

/* Numbers the kinds of pieces: equal sizes, and lifetimes with the same number of bits. */
static void
find_kinds (struct fit *f)
{
  g_autoptr (GHashTable) kinds = g_hash_table_new (g_int64_hash, g_int64_equal);
  g_autofree gint64 *key = g_new (gint64, f->n);

  f->kind = g_new (uint32_t, f->n);
  f->weight = g_new0 (double, f->n);
  for (uint32_t i = 0; i < f->n; i++) {
    guint kind = g_hash_table_size (kinds);
    key[i] = (gint64) (f->piece[i].bytes * 32 + g_bit_storage (life (f, &f->piece[i])));
    gpointer known = g_hash_table_lookup (kinds, &key[i]);
    f->kind[i] = known ? GPOINTER_TO_UINT (known) - 1 : kind;
    if (!known)
      g_hash_table_insert (kinds, &key[i], GUINT_TO_POINTER (kind + 1));
  }
}

/* Weights of the first order: bytes. `by_life`: pieces whose life is long come before all others.
 * These are the pieces that are kept for backward; a life within a layer has fewer ops than twice
 * the square root of all ops. */
static void
weigh (struct fit *f, gboolean by_life)
{
  for (uint32_t i = 0; i < f->n; i++) {
    const struct weft_fit_piece *p = &f->piece[i];
    gboolean is_long = (double) life (f, p) * (double) life (f, p) > 4.0 * f->n_times;
    f->weight[f->kind[i]] = (double) p->bytes * (by_life && is_long ? G_MAXUINT32 : 1);
  }
}

static int
by_weight (gconstpointer a, gconstpointer b, gpointer data)
{
  const struct fit *f = data;
  const uint32_t i = *(const uint32_t *) a, k = *(const uint32_t *) b;
  const struct weft_fit_piece *x = &f->piece[i], *y = &f->piece[k];

  if (f->weight[f->kind[i]] != f->weight[f->kind[k]])
    return f->weight[f->kind[i]] < f->weight[f->kind[k]] ? 1 : -1;
  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first)
    return x->first < y->first ? -1 : 1;
  return i < k ? -1 : i > k;
}

static void
sort (struct fit *f)
{
  for (uint32_t i = 0; i < f->n; i++)
    f->order[i] = i;
  g_qsort_with_data (f->order, (gint) f->n, sizeof *f->order, by_weight, f);
}

/* Places the pieces in order, until one of them does not end below `below`, or until the steps are
 * used up; *top is then at least `below`. Returns the number of pieces with a place. */
static uint32_t
place (struct fit *f, uint64_t below, uint64_t *top)
{
  const struct branch root = { 1, 0, f->n_blocks * TIMES_OF_BLOCK };

  *top = 0;
  clear_tree (f);
  for (uint32_t i = 0; i < f->n; i++) {
    struct weft_fit_piece *p = &f->piece[f->order[i]];
    p->offset = lowest (f, &root, p);
    *top = f->n_steps > f->most ? G_MAXUINT64 : MAX (*top, p->offset + p->bytes);
    if (*top >= below)
      return i + 1;
    add (f, root, p);
  }
  return f->n;
}

/* Moves the kinds of pieces that end above the load forward in the order. */
static void
promote (struct fit *f, uint32_t n_placed, uint64_t load)
{
  g_autofree gboolean *done = g_new0 (gboolean, f->n);

  for (uint32_t i = 0; i < n_placed; i++) {
    const struct weft_fit_piece *p = &f->piece[f->order[i]];
    uint32_t kind = f->kind[f->order[i]];
    if (p->offset + p->bytes <= load || done[kind])
      continue;
    f->weight[kind] *= promotion;
    done[kind] = TRUE;
  }
}

/* Tries one order after the other, and leaves the best offsets in the pieces. Returns the size of
 * the memory; G_MAXUINT64 if the steps do not suffice for the first order. */
static uint64_t
try_orders (struct fit *f, uint64_t slack)
{
  g_autofree uint64_t *offset = g_new (uint64_t, f->n);
  const uint64_t load = weft_fit_load (f->piece, f->n, f->n_times);
  uint64_t best = G_MAXUINT64, top;

  for (int i = 0; i < ORDERS_BY_SIZE + ORDERS_BY_LIFE && best > load + slack; i++) {
    if (f->n_steps > f->most / 4)
      break;
    if (i == ORDERS_BY_SIZE)
      weigh (f, TRUE);
    if (i > 0)
      sort (f);
    uint32_t n_placed = place (f, best, &top);
    for (uint32_t k = 0; k < f->n && top < best; k++)
      offset[k] = f->piece[k].offset;
    best = MIN (best, top);
    promote (f, n_placed, load);
  }
  for (uint32_t k = 0; k < f->n && best < G_MAXUINT64; k++)
    f->piece[k].offset = offset[k];
  return best;
}

uint64_t
weft_fit_load (const struct weft_fit_piece *piece, uint32_t n, uint32_t n_times)
{
  g_autofree int64_t *change = g_new0 (int64_t, n_times + 2);
  int64_t load = 0, most = 0;

  for (uint32_t i = 0; i < n; i++) {
    change[piece[i].first] += (int64_t) piece[i].bytes;
    change[MIN (piece[i].end, n_times + 1)] -= (int64_t) piece[i].bytes;
  }
  for (uint32_t time = 0; time <= n_times; time++) {
    load += change[time];
    most = MAX (most, load);
  }
  return (uint64_t) most;
}

uint64_t
weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t slack, uint64_t most)
{
  struct fit f = { .piece = piece, .n = n, .n_times = n_times, .most = most };

  if (n == 0)
    return 0;
  f.order = g_new (uint32_t, n);
  find_kinds (&f);
  weigh (&f, FALSE);
  sort (&f);
  plant (&f);
  const uint64_t size = try_orders (&f, slack);
  fell (&f);
  g_free (f.kind);
  g_free (f.weight);
  g_free (f.order);
  return size;
}
