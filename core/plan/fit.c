#include "core/plan/fit.h"
#include <string.h>

/* Numbers of pieces in the order of their offsets. */
struct bin {
  uint32_t *number;
  uint32_t n, room;
};

/* Bin k of a level has the placed pieces that live in [k * step, (k + 2) * step). Bins overlap, so
 * a lifetime that is not longer than `step` lies within one bin. */
struct level {
  struct bin *bin;
  uint32_t n, step;
};

enum { FIRST_STEP = 64, FACTOR = 8, MOST_LEVELS = 28 };

struct fit {
  struct weft_fit_piece *piece;
  uint32_t n_times, n_levels;
  struct level level[MOST_LEVELS]; /* the last level has one bin, with all placed pieces */
  uint32_t *begun;                 /* [time]: pieces that begin earlier */
  uint32_t *living;                /* [time / FIRST_STEP]: placed pieces that live in these times */
  uint64_t left;                   /* most pairs of pieces that may be compared */
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

/* Whether the pairs to which a piece belongs may still be compared: with placed pieces that live at
 * about the time of its first use, and with all pieces that begin later during its life. */
static gboolean
may_compare (struct fit *f, const struct weft_fit_piece *p)
{
  uint32_t time = p->first / FIRST_STEP, end = f->begun[MIN (p->end, f->n_times)];
  uint32_t later = f->begun[MIN ((time + 1) * FIRST_STEP, f->n_times)];
  uint64_t pairs = f->living[time] + end - MIN (later, end);

  if (pairs > f->left)
    return FALSE;
  f->left -= pairs;
  return TRUE;
}

/* Returns the lowest offset at which a piece fits between the placed pieces that live at the same
 * time. */
static uint64_t
lowest (const struct fit *f, const struct weft_fit_piece *p)
{
  const struct level *level = f->level;
  uint64_t at = 0;

  while (level->step < p->end - p->first && level->n > 1)
    level++;
  const struct bin *bin = &level->bin[p->first / level->step];
  for (uint32_t i = 0; i < bin->n; i++) {
    const struct weft_fit_piece *q = &f->piece[bin->number[i]];
    if (q->offset >= at + p->bytes)
      break;
    if (q->end > p->first && p->end > q->first)
      at = MAX (at, q->offset + q->bytes);
  }
  return at;
}

static void
add_to_bin (const struct fit *f, struct bin *bin, uint32_t number)
{
  uint32_t low = 0, high = bin->n;

  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (f->piece[bin->number[middle]].offset < f->piece[number].offset)
      low = middle + 1;
    else
      high = middle;
  }
  if (bin->n == bin->room) {
    bin->room = 2 * bin->room + 8;
    bin->number = g_renew (uint32_t, bin->number, bin->room);
  }
  memmove (&bin->number[low + 1], &bin->number[low], (bin->n++ - low) * sizeof *bin->number);
  bin->number[low] = number;
}

static void
add_to_levels (struct fit *f, uint32_t number)
{
  const struct weft_fit_piece *p = &f->piece[number];
  uint32_t last = MIN (p->end - 1, f->n_times);

  for (uint32_t time = p->first / FIRST_STEP; time <= last / FIRST_STEP; time++)
    f->living[time]++;
  for (uint32_t i = 0; i < f->n_levels; i++) {
    struct level *level = &f->level[i];
    uint32_t k = p->first / level->step;
    for (k -= k > 0; k <= MIN (last / level->step, level->n - 1); k++)
      add_to_bin (f, &level->bin[k], number);
  }
}

static gboolean
place (struct fit *f, uint32_t number, uint64_t *top)
{
  struct weft_fit_piece *p = &f->piece[number];

  if (!may_compare (f, p))
    return FALSE;
  p->offset = lowest (f, p);
  *top = MAX (*top, p->offset + p->bytes);
  add_to_levels (f, number);
  return TRUE;
}

static void
fit_init (struct fit *f, uint32_t n)
{
  uint32_t step = FIRST_STEP;

  f->begun = g_new0 (uint32_t, f->n_times + 1);
  f->living = g_new0 (uint32_t, f->n_times / FIRST_STEP + 1);
  for (uint32_t i = 0; i < n; i++)
    f->begun[f->piece[i].first + 1]++;
  for (uint32_t time = 0; time < f->n_times; time++)
    f->begun[time + 1] += f->begun[time];
  do {
    uint32_t bins = f->n_times / step + 1;
    f->level[f->n_levels++] = (struct level){ g_new0 (struct bin, bins), bins, step };
    step *= FACTOR;
  } while (f->level[f->n_levels - 1].n > 1);
}

static void
fit_clear (struct fit *f)
{
  for (uint32_t i = 0; i < f->n_levels; i++) {
    for (uint32_t k = 0; k < f->level[i].n; k++)
      g_free (f->level[i].bin[k].number);
    g_free (f->level[i].bin);
  }
  g_free (f->begun);
  g_free (f->living);
}

uint64_t
weft_fit (struct weft_fit_piece *piece, uint32_t n, uint32_t n_times, uint64_t most)
{
  struct fit f = { .piece = piece, .n_times = n_times, .left = most };
  g_autofree uint32_t *order = g_new (uint32_t, n + 1);
  uint64_t top = 0;
  gboolean ok = TRUE;

  for (uint32_t i = 0; i < n; i++)
    order[i] = i;
  g_qsort_with_data (order, (gint) n, sizeof *order, by_size, piece);
  fit_init (&f, n);
  for (uint32_t i = 0; i < n && ok; i++)
    ok = place (&f, order[i], &top);
  fit_clear (&f);
  return ok ? top : G_MAXUINT64;
}
