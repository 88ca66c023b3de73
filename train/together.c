#include "train/together.h"
#include "core/base/error.h"
#include "launch/rendezvous.h"
#include <string.h>

static const char *
first_difference (const char *mine, const char *other, gsize bytes)
{
  gsize i = 0;

  while (i < bytes && mine[i] && mine[i] == other[i])
    i++;
  while (i > 0 && mine[i - 1] != '\n')
    i--;
  return mine + i;
}

gboolean
weft_together_same (struct weft_rendezvous *peers, const char *key, const char *what,
                    GError **error)
{
  if (!peers)
    return TRUE;
  const struct weft_rendezvous_place *place = weft_rendezvous_place (peers);
  g_autoptr (GBytes) mine = place->process == 0 ? g_bytes_new (what, strlen (what) + 1) : NULL;
  g_autoptr (GPtrArray) all = weft_rendezvous_meet (peers, key, mine, place->seconds, error);
  if (!all)
    return FALSE;
  gsize n = 0;
  const char *first = all->pdata[0] ? g_bytes_get_data (all->pdata[0], &n) : "";
  if (n == strlen (what) + 1 && memcmp (first, what, n) == 0)
    return TRUE;
  const char *line = first_difference (what, first, n);
  return weft_run_error (error,
                         "%s is not that of rank 0: found \"%.*s\" at rank %u, wanted the same in "
                         "all processes",
                         key, (int) strcspn (line, "\n"), line, place->process * place->each);
}

gboolean
weft_together_allocated (weft_exec *x, GError **error)
{
  uint32_t n = x->actors->n;
  g_autofree uint64_t *mine = g_new0 (uint64_t, 2 * n);

  if (!x->peers)
    return TRUE;
  for (uint32_t row = 0; row < n; row++) {
    mine[row] = x->allocated[row];
    mine[n + row] = x->allocated_host[row];
  }
  const struct weft_rendezvous_place *place = weft_rendezvous_place (x->peers);
  g_autoptr (GBytes) value = g_bytes_new (mine, 2 * n * sizeof *mine);
  g_autoptr (GPtrArray) all =
      weft_rendezvous_meet (x->peers, "memory of all ranks", value, place->seconds, error);
  for (uint32_t i = 0; all && i < all->len; i++) {
    gsize bytes = 0;
    const uint64_t *theirs = all->pdata[i] ? g_bytes_get_data (all->pdata[i], &bytes) : NULL;
    for (uint32_t row = 0; row < n && bytes == 2 * n * sizeof *mine; row++) {
      x->allocated[row] = MAX (x->allocated[row], theirs[row]);
      x->allocated_host[row] = MAX (x->allocated_host[row], theirs[n + row]);
    }
  }
  return all != NULL;
}

/* ------------------------------------------------------------------------ floats */

/* As many zeros in a row as are not sent; a run of others is its place, its length, and itself. */
#define GAP 4u
#define MOST_FLOATS (1u << 22) /* at once */

static gboolean
is_zero (float x)
{
  uint32_t bits;

  memcpy (&bits, &x, sizeof bits); /* a negative zero is somebody's number */
  return bits == 0;
}

/* One past the last number of the run that begins at `at`. */
static uint32_t
run_end (const float *block, uint32_t at, uint32_t n)
{
  uint32_t end = at + 1;

  for (uint32_t i = end; i < n && i - end < GAP; i++)
    if (!is_zero (block[i]))
      end = i + 1;
  return end;
}

static GBytes *
pack_runs (const float *block, uint32_t n)
{
  GByteArray *pack = g_byte_array_new ();

  for (uint32_t at = 0; at < n;) {
    if (is_zero (block[at])) {
      at++;
      continue;
    }
    uint32_t run[2] = { at, run_end (block, at, n) - at };
    g_byte_array_append (pack, (const uint8_t *) run, sizeof run);
    g_byte_array_append (pack, (const uint8_t *) (block + at), run[1] * sizeof *block);
    at += run[1];
  }
  return g_byte_array_free_to_bytes (pack);
}

static gboolean
unpack_runs (GBytes *packed, float *block, uint32_t n)
{
  gsize bytes = 0;
  const uint8_t *at = packed ? g_bytes_get_data (packed, &bytes) : NULL;
  uint32_t run[2];

  while (bytes >= sizeof run) {
    memcpy (run, at, sizeof run);
    at += sizeof run;
    bytes -= sizeof run;
    if (run[0] > n || run[1] > n - run[0] || run[1] * sizeof *block > bytes)
      return FALSE;
    memcpy (block + run[0], at, run[1] * sizeof *block);
    at += run[1] * sizeof *block;
    bytes -= run[1] * sizeof *block;
  }
  return bytes == 0;
}

static gboolean
share_block (struct weft_rendezvous *peers, const char *key, enum weft_together_who who,
             float *block, uint32_t n, GError **error)
{
  g_autoptr (GBytes) mine = pack_runs (block, n);
  g_autoptr (GPtrArray) all =
      (who == WEFT_TOGETHER_ALL ? weft_rendezvous_meet : weft_rendezvous_gather) (peers, key, mine,
                                                                                  0, error);

  for (uint32_t i = 0; all && i < all->len; i++)
    if (!unpack_runs (all->pdata[i], block, n))
      return weft_run_error (error, "%s: found numbers of another place with another process", key);
  return all != NULL;
}

gboolean
weft_together_floats (struct weft_rendezvous *peers, const char *key, enum weft_together_who who,
                      float *block, uint64_t n, GError **error)
{
  for (uint64_t first = 0; peers && first < n; first += MOST_FLOATS)
    if (!share_block (peers, key, who, block + first, (uint32_t) MIN (MOST_FLOATS, n - first),
                      error))
      return FALSE;
  return TRUE;
}

/* --------------------------------------------------------------------- timelines */

static GBytes *
pack_row (const weft_timeline *t, uint32_t row, uint32_t n_op)
{
  GByteArray *pack = g_byte_array_new ();

  g_byte_array_append (pack, (const uint8_t *) t->begin[row], n_op * sizeof (double));
  g_byte_array_append (pack, (const uint8_t *) t->end[row], n_op * sizeof (double));
  return g_byte_array_free_to_bytes (pack);
}

static gboolean
unpack_row (GBytes *packed, weft_timeline *t, uint32_t row, uint32_t n_op, GError **error)
{
  gsize bytes = 0, wanted = n_op * sizeof (double);
  const uint8_t *data = packed ? g_bytes_get_data (packed, &bytes) : NULL;

  if (bytes != 2 * wanted)
    return weft_run_error (
        error, "times of rank %u: found %" G_GSIZE_FORMAT " bytes, wanted %" G_GSIZE_FORMAT,
        t->rank[row], bytes, 2 * wanted);
  memcpy (t->begin[row], data, wanted);
  memcpy (t->end[row], data + wanted, wanted);
  return TRUE;
}

/* One row of each process at a time. */
gboolean
weft_together_timeline (weft_exec *x, weft_timeline *t, GError **error)
{
  if (!x->peers)
    return TRUE;
  const struct weft_rendezvous_place *place = weft_rendezvous_place (x->peers);
  uint32_t first = place->process * place->each;
  for (uint32_t i = 0; i < place->each; i++) {
    g_autofree char *key = g_strdup_printf ("times of rank %u of each process", i);
    g_autoptr (GBytes) mine = pack_row (t, first + i, x->plan->role[t->role[first + i]]->n_op);
    g_autoptr (GPtrArray) all = weft_rendezvous_gather (x->peers, key, mine, 0, error);
    if (!all)
      return FALSE;
    for (uint32_t k = 0; k < all->len && place->process == 0; k++) {
      uint32_t row = k * place->each + i;
      if (!unpack_row (all->pdata[k], t, row, x->plan->role[t->role[row]]->n_op, error))
        return FALSE;
    }
  }
  weft_timeline_finish (t, x->plan);
  return TRUE;
}

/* ------------------------------------------------------------------------ errors */

/* A dead process shows in a communicator, as something that has gone wrong, and here with its name. */
#define CAUSE_SECONDS 0.5

void
weft_together_give_up (struct weft_rendezvous *peers, GError **error)
{
  gint64 until = g_get_monotonic_time () + (gint64) (1e6 * CAUSE_SECONDS);
  g_autoptr (GError) cause = NULL;
  gboolean asked;

  if (!peers || !error || !*error)
    return;
  while (weft_rendezvous_look (peers, &asked, &cause) && g_get_monotonic_time () < until)
    g_usleep (10000);
  if (cause && !strstr ((*error)->message, cause->message))
    g_prefix_error (error, "%s; here: ", cause->message);
  weft_rendezvous_abort (peers, (*error)->message);
}

/* ------------------------------------------------------------------------- steps */

/* What a process brings, when there is something. */
struct news {
  struct weft_metrics metrics;
  uint32_t knows, stop, large;
};

/* Of all ranks with the loss the last one tells it. */
static gboolean
tells_loss (const weft_exec *x)
{
  for (uint32_t row = x->actors->n; row-- > 0;)
    if (weft_program_has_loss (x->plan->role[x->actors->role[row]]))
      return weft_exec_has (x, row);
  return FALSE;
}

static uint32_t
count_large (const weft_exec *x)
{
  uint32_t n = 0;

  for (uint32_t row = 0; row < x->actors->n; row++)
    n += weft_exec_has (x, row) ? x->metrics[row].large : 0;
  return n;
}

static struct news
news_of (const weft_exec *x, gboolean stop)
{
  struct news news;

  memset (&news, 0, sizeof news); /* padding goes over the wire */
  news.knows = tells_loss (x);
  news.stop = stop != FALSE;
  news.large = count_large (x);
  if (news.knows)
    news.metrics = *weft_exec_metrics (x);
  return news;
}

static void
add_news (struct weft_together *to, const struct news *news)
{
  uint32_t large = to->metrics.large + news->large;

  if (news->knows)
    to->metrics = news->metrics;
  to->metrics.large = large;
  to->stop |= news->stop != 0;
}

gboolean
weft_together_step (weft_exec *x, const char *key, gboolean stop, struct weft_together *out,
                    GError **error)
{
  const struct news mine = news_of (x, stop);
  gboolean any = mine.knows || mine.stop || mine.large;

  *out = (struct weft_together){ .seconds = out->seconds };
  if (!x->peers) {
    add_news (out, &mine);
    return TRUE;
  }
  g_autoptr (GBytes) value = any ? g_bytes_new (&mine, sizeof mine) : NULL;
  g_autoptr (GPtrArray) all = weft_rendezvous_meet (x->peers, key, value, out->seconds, error);
  for (uint32_t i = 0; all && i < all->len; i++)
    if (all->pdata[i] && g_bytes_get_size (all->pdata[i]) == sizeof mine) {
      struct news news;
      memcpy (&news, g_bytes_get_data (all->pdata[i], NULL), sizeof news);
      add_news (out, &news);
    }
  return all != NULL;
}
