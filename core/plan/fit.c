#include "core/plan/fit.h"
#include <stdlib.h>

enum { TIMES = 64 }; /* times of one bin */

/* Placed pieces by bins of times. A piece is in every bin that it lives in; pieces of a bin are in
 * the order of their offsets. */
struct fit {
  struct weft_fit_piece *piece;
  GArray **bin; /* uint32_t */
  uint32_t n_bins, n;
  uint32_t *by_first;    /* pieces in the order of their first use */
  gboolean *placed;      /* by piece */
  GArray *early, *late;  /* struct range, by offset: bytes that the current piece may not use, of
                          * pieces in its first bin, and of those that begin in later bins */
  uint64_t left;         /* pairs that may be compared */
};

struct range {
  uint64_t from, to;
};

static int
by_size (gconstpointer a, gconstpointer b, gpointer data)
{
  const struct weft_fit_piece *piece = data;
  const struct weft_fit_piece *x = &piece[*(const uint32_t *) a];
  const struct weft_fit_piece *y = &piece[*(const uint32_t *) b];

  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first)
    return x->first < y->first ? -1 : 1;
  return x < y ? -1 : x > y;
}

static int
by_first (gconstpointer a, gconstpointer b, gpointer data)
{
  const struct weft_fit_piece *piece = data;
  const struct weft_fit_piece *x = &piece[*(const uint32_t *) a];
  const struct weft_fit_piece *y = &piece[*(const uint32_t *) b];

  return x->first < y->first ? -1 : x->first > y->first;
}

static int
by_offset (const void *a, const void *b)
{
  const struct range *x = a, *y = b;
  return x->from < y->from ? -1 : x->from > y->from;
}

static uint32_t
last_bin (const struct fit *f, const struct weft_fit_piece *p)
{
  return MIN ((p->end - 1) / TIMES, f->n_bins - 1);
}

static void
add_range (GArray *ranges, const struct weft_fit_piece *p)
{
  struct range range = { p->offset, p->offset + p->bytes };

  g_array_append_val (ranges, range);
}

/* Position in by_first[] of the first piece that begins at `time` or later. */
static uint32_t
begins_from (const struct fit *f, uint32_t time)
{
  uint32_t low = 0, high = f->n;

  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (f->piece[f->by_first[middle]].first < time)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Fills `early` and `late` with the bytes of placed pieces that live at the same time. */
static gboolean
collect (struct fit *f, const struct weft_fit_piece *p)
{
  uint32_t first_bin = p->first / TIMES, i = begins_from (f, (first_bin + 1) * TIMES);
  const GArray *bin = f->bin[first_bin];
  uint64_t pairs = bin->len + begins_from (f, p->end) - MIN (i, begins_from (f, p->end));

  if (pairs > f->left)
    return FALSE;
  f->left -= pairs;
  g_array_set_size (f->early, 0);
  g_array_set_size (f->late, 0);
  for (guint k = 0; k < bin->len; k++) {
    const struct weft_fit_piece *q = &f->piece[g_array_index (bin, uint32_t, k)];
    if (q->end > p->first && p->end > q->first)
      add_range (f->early, q);
  }
  for (; i < f->n && f->piece[f->by_first[i]].first < p->end; i++)
    if (f->placed[f->by_first[i]])
      add_range (f->late, &f->piece[f->by_first[i]]);
  g_array_sort (f->late, by_offset);
  return TRUE;
}

/* The next range, by offset, of the lists f->early and f->late together; NULL at the end of both
 * lists. */
static const struct range *
next_range (const struct fit *f, guint *early, guint *late)
{
  const struct range *x = NULL, *y = NULL;

  if (*early < f->early->len)
    x = &g_array_index (f->early, struct range, *early);
  if (*late < f->late->len)
    y = &g_array_index (f->late, struct range, *late);
  if (x && (!y || x->from <= y->from)) {
    ++*early;
    return x;
  }
  *late += y != NULL;
  return y;
}

/* Returns the lowest offset at which `bytes` fit between the ranges. */
static uint64_t
lowest (const struct fit *f, uint64_t bytes)
{
  guint early = 0, late = 0;
  uint64_t at = 0;

  for (const struct range *r; (r = next_range (f, &early, &late)) && r->from < at + bytes;)
    at = MAX (at, r->to);
  return at;
}

static void
add_to_bin (struct fit *f, GArray *bin, uint32_t number)
{
  guint low = 0, high = bin->len;

  while (low < high) {
    guint middle = (low + high) / 2;
    if (f->piece[g_array_index (bin, uint32_t, middle)].offset < f->piece[number].offset)
      low = middle + 1;
    else
      high = middle;
  }
  g_array_insert_val (bin, low, number);
}

static gboolean
place (struct fit *f, uint32_t number, uint64_t *top)
{
  struct weft_fit_piece *p = &f->piece[number];

  if (!collect (f, p))
    return FALSE;
  p->offset = lowest (f, p->bytes);
  *top = MAX (*top, p->offset + p->bytes);
  f->placed[number] = TRUE;
  for (uint32_t bin = p->first / TIMES; bin <= last_bin (f, p); bin++)
    add_to_bin (f, f->bin[bin], number);
  return TRUE;
}

static uint32_t *
sorted (struct weft_fit_piece *piece, uint32_t n, GCompareDataFunc compare)
{
  uint32_t *order = g_new (uint32_t, n + 1);

  for (uint32_t i = 0; i < n; i++)
    order[i] = i;
  g_qsort_with_data (order, (gint) n, sizeof *order, compare, piece);
  return order;
}

uint64_t
weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t most)
{
  struct fit f = { .piece = piece, .n = n, .n_bins = n_times / TIMES + 1, .left = most };
  g_autofree uint32_t *order = sorted (piece, n, by_size), *first = sorted (piece, n, by_first);
  g_autofree gboolean *placed = g_new0 (gboolean, n + 1);
  uint64_t top = 0;
  gboolean ok = TRUE;

  f.by_first = first;
  f.placed = placed;
  f.bin = g_new (GArray *, f.n_bins);
  f.early = g_array_new (FALSE, FALSE, sizeof (struct range));
  f.late = g_array_new (FALSE, FALSE, sizeof (struct range));
  for (uint32_t i = 0; i < f.n_bins; i++)
    f.bin[i] = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  for (uint32_t i = 0; i < n && ok; i++)
    ok = place (&f, order[i], &top);
  for (uint32_t i = 0; i < f.n_bins; i++)
    g_array_unref (f.bin[i]);
  g_free (f.bin);
  g_array_unref (f.early);
  g_array_unref (f.late);
  return ok ? top : G_MAXUINT64;
}
