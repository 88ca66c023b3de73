#include "core/plan/fit.h"
#include <stdlib.h>

enum { TIMES = 64 }; /* times of one bin */

/* Placed pieces by bins of times; a piece is in every bin that it lives in. */
struct fit {
  struct weft_fit_piece *piece;
  GArray **bin; /* uint32_t */
  uint32_t n_bins;
  uint32_t *seen; /* by piece: 1 + number of the last piece that met it */
  GArray *taken;  /* struct range, bytes that the current piece may not use */
  uint64_t left;  /* pairs that may be compared */
};

struct range {
  uint64_t from, to;
};

static int
by_size (gconstpointer a, gconstpointer b, gpointer data)
{
  const struct weft_fit_piece *piece = data;
  const struct weft_fit_piece *x = &piece[*(const uint32_t *) a], *y = &piece[*(const uint32_t *) b];

  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first)
    return x->first < y->first ? -1 : 1;
  return x < y ? -1 : x > y;
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

/* Fills `taken` with the bytes of placed pieces that live at the same time. */
static gboolean
collect (struct fit *f, uint32_t number)
{
  const struct weft_fit_piece *p = &f->piece[number];

  g_array_set_size (f->taken, 0);
  for (uint32_t bin = p->first / TIMES; bin <= last_bin (f, p); bin++) {
    if (f->bin[bin]->len > f->left)
      return FALSE;
    f->left -= f->bin[bin]->len;
    for (guint i = 0; i < f->bin[bin]->len; i++) {
      uint32_t other = g_array_index (f->bin[bin], uint32_t, i);
      const struct weft_fit_piece *q = &f->piece[other];
      if (f->seen[other] == number + 1 || q->end <= p->first || p->end <= q->first)
        continue;
      f->seen[other] = number + 1;
      struct range range = { q->offset, q->offset + q->bytes };
      g_array_append_val (f->taken, range);
    }
  }
  return TRUE;
}

/* Returns the lowest offset at which `bytes` fit between the taken ranges. */
static uint64_t
lowest (struct fit *f, uint64_t bytes)
{
  uint64_t at = 0;

  qsort (f->taken->data, f->taken->len, sizeof (struct range), by_offset);
  for (guint i = 0; i < f->taken->len; i++) {
    const struct range *range = &g_array_index (f->taken, struct range, i);
    if (range->from >= at + bytes)
      break;
    at = MAX (at, range->to);
  }
  return at;
}

static gboolean
place (struct fit *f, uint32_t number, uint64_t *top)
{
  struct weft_fit_piece *p = &f->piece[number];

  if (!collect (f, number))
    return FALSE;
  p->offset = lowest (f, p->bytes);
  *top = MAX (*top, p->offset + p->bytes);
  for (uint32_t bin = p->first / TIMES; bin <= last_bin (f, p); bin++)
    g_array_append_val (f->bin[bin], number);
  return TRUE;
}

uint64_t
weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t most)
{
  struct fit f = { .piece = piece, .n_bins = n_times / TIMES + 1, .left = most };
  g_autofree uint32_t *order = g_new (uint32_t, n + 1);
  uint64_t top = 0;
  gboolean ok = TRUE;

  f.bin = g_new (GArray *, f.n_bins);
  f.seen = g_new0 (uint32_t, n + 1);
  f.taken = g_array_new (FALSE, FALSE, sizeof (struct range));
  for (uint32_t i = 0; i < f.n_bins; i++)
    f.bin[i] = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  for (uint32_t i = 0; i < n; i++)
    order[i] = i;
  g_qsort_with_data (order, (gint) n, sizeof *order, by_size, piece);
  for (uint32_t i = 0; i < n && ok; i++)
    ok = place (&f, order[i], &top);
  for (uint32_t i = 0; i < f.n_bins; i++)
    g_array_unref (f.bin[i]);
  g_free (f.bin);
  g_free (f.seen);
  g_array_unref (f.taken);
  return ok ? top : G_MAXUINT64;
}
