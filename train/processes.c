#include "train/processes.h"
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
weft_processes_check_same (struct weft_rendezvous *peers, const char *key, const char *what,
                           GError **error)
{
  if (!peers)
    return TRUE;
  const struct weft_rendezvous_place *place = weft_rendezvous_place (peers);
  g_autoptr (GBytes) mine = place->process == 0 ? g_bytes_new (what, strlen (what) + 1) : NULL;
  g_autoptr (GPtrArray) all = weft_rendezvous_all_gather (peers, key, mine, place->seconds, error);
  if (!all)
    return FALSE;
  gsize n = 0;
  const char *first = all->pdata[0] ? g_bytes_get_data (all->pdata[0], &n) : "";
  if (n == strlen (what) + 1 && memcmp (first, what, n) == 0)
    return TRUE;
  const char *line = first_difference (what, first, n);
  return weft_run_error (
      error,
      "%s differs from that of rank 0: found \"%.*s\" at rank %u, wanted the same in "
      "all processes",
      key, (int) strcspn (line, "\n"), line, place->process * place->ranks_each);
}

/* Each process sends only the memory sizes of its own ranks: with the sizes of all ranks, the
 * gathered message would grow with the square of the number of processes. */
gboolean
weft_processes_gather_allocated (weft_exec *x, GError **error)
{
  if (!x->peers)
    return TRUE;
  const struct weft_rendezvous_place *place = weft_rendezvous_place (x->peers);
  gsize ranks_each = place->ranks_each, bytes = ranks_each * sizeof *x->allocated;
  GByteArray *mine = g_byte_array_new ();
  g_byte_array_append (mine, (void *) (x->allocated + place->process * ranks_each), (guint) bytes);
  g_byte_array_append (mine, (void *) (x->allocated_host + place->process * ranks_each),
                       (guint) bytes);
  g_autoptr (GBytes) value = g_byte_array_free_to_bytes (mine);
  g_autoptr (GPtrArray) all =
      weft_rendezvous_all_gather (x->peers, "memory of all ranks", value, place->seconds, error);
  for (uint32_t i = 0; all && i < all->len; i++) {
    const uint8_t *theirs = all->pdata[i] ? g_bytes_get_data (all->pdata[i], NULL) : NULL;
    if (!theirs || g_bytes_get_size (all->pdata[i]) != 2 * bytes)
      return weft_run_error (error,
                             "memory of all ranks: found a malformed message from process %u", i);
    memcpy (x->allocated + i * ranks_each, theirs, bytes);
    memcpy (x->allocated_host + i * ranks_each, theirs + bytes, bytes);
  }
  return all != NULL;
}

/* ------------------------------------------------------------------------ floats */

/* A message contains only runs of elements: index of the first element, number of elements, the
 * elements as floats. At least GAP consecutive zeros end a run and are not sent. */
#define GAP 4u
#define MOST_FLOATS (1u << 22) /* per message */

static gboolean
is_zero (float x)
{
  uint32_t bits;

  memcpy (&bits, &x, sizeof bits); /* -0.0 is not a zero here, and must be sent */
  return bits == 0;
}

/* A run is a list of elements in which fewer than GAP consecutive elements are zero. Returns the
 * index after the last element of the run that begins at `at`. */
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
merge_block (struct weft_rendezvous *peers, const char *key,
             enum weft_processes_receivers receivers, float *block, uint32_t n, GError **error)
{
  g_autoptr (GBytes) mine = pack_runs (block, n);
  g_autoptr (GPtrArray) all =
      (receivers == WEFT_PROCESSES_ALL ? weft_rendezvous_all_gather
                                       : weft_rendezvous_gather) (peers, key, mine, 0, error);

  for (uint32_t i = 0; all && i < all->len; i++)
    if (!unpack_runs (all->pdata[i], block, n))
      return weft_run_error (error, "%s: found a malformed message from another process", key);
  return all != NULL;
}

gboolean
weft_processes_merge_floats (struct weft_rendezvous *peers, const char *key,
                             enum weft_processes_receivers receivers, float *block, uint64_t n,
                             GError **error)
{
  for (uint64_t first = 0; peers && first < n; first += MOST_FLOATS)
    if (!merge_block (peers, key, receivers, block + first, (uint32_t) MIN (MOST_FLOATS, n - first),
                      error))
      return FALSE;
  return TRUE;
}

/* --------------------------------------------------------------------- timelines */

/* Maximum number of ops in one exchange of begin and end times over all processes. The message that
 * the process of rank 0 receives is limited (WEFT_FRAME_MOST_BYTES), and a job may have thousands
 * of processes. */
#define MOST_TIMES (1u << 16)

/* A range of ops of one rank. The range is empty beyond the end of the rank's program. */
struct op_range {
  uint32_t row, first, n;
};

static struct op_range
range_of (const weft_exec *x, const weft_timeline *t, uint32_t row, uint32_t first, uint32_t most)
{
  uint32_t n_op = x->plan->role[t->role[row]]->n_op;
  return (struct op_range){ row, first, n_op > first ? MIN (n_op - first, most) : 0 };
}

static GBytes *
pack_times (const weft_timeline *t, struct op_range range)
{
  GByteArray *pack = g_byte_array_new ();
  guint bytes = range.n * (guint) sizeof (double);

  g_byte_array_append (pack, (const uint8_t *) (t->begin[range.row] + range.first), bytes);
  g_byte_array_append (pack, (const uint8_t *) (t->end[range.row] + range.first), bytes);
  return g_byte_array_free_to_bytes (pack);
}

static gboolean
unpack_times (GBytes *packed, weft_timeline *t, struct op_range range, GError **error)
{
  gsize bytes = 0, wanted = range.n * sizeof (double);
  const uint8_t *data = packed ? g_bytes_get_data (packed, &bytes) : NULL;

  if (bytes != 2 * wanted)
    return weft_run_error (
        error,
        "times of rank %u: found %" G_GSIZE_FORMAT " bytes, wanted %" G_GSIZE_FORMAT " bytes",
        t->rank[range.row], bytes, 2 * wanted);
  if (range.n) {
    memcpy (t->begin[range.row] + range.first, data, wanted);
    memcpy (t->end[range.row] + range.first, data + wanted, wanted);
  }
  return TRUE;
}

/* Gathers the times of the i-th rank of each process, for `most` ops from op `first` on. */
static gboolean
gather_times (weft_exec *x, weft_timeline *t, uint32_t i, uint32_t first, uint32_t most,
              GError **error)
{
  const struct weft_rendezvous_place *place = weft_rendezvous_place (x->peers);
  g_autofree char *key = g_strdup_printf ("times of rank %u of each process, from op %u", i, first);
  g_autoptr (GBytes) mine =
      pack_times (t, range_of (x, t, place->process * place->ranks_each + i, first, most));
  g_autoptr (GPtrArray) all = weft_rendezvous_gather (x->peers, key, mine, 0, error);

  for (uint32_t k = 0; all && k < all->len && place->process == 0; k++)
    if (!unpack_times (all->pdata[k], t, range_of (x, t, k * place->ranks_each + i, first, most),
                       error))
      return FALSE;
  return all != NULL;
}

gboolean
weft_processes_gather_timeline (weft_exec *x, weft_timeline *t, GError **error)
{
  uint32_t longest = 0;

  if (!x->peers)
    return TRUE;
  const struct weft_rendezvous_place *place = weft_rendezvous_place (x->peers);
  uint32_t most = MAX (MOST_TIMES / place->n, 1);
  for (uint32_t role = 0; role < x->plan->n_roles; role++)
    longest = MAX (longest, x->plan->role[role]->n_op);
  for (uint32_t i = 0; i < place->ranks_each; i++)
    for (uint32_t first = 0; first < longest; first += most)
      if (!gather_times (x, t, i, first, most, error))
        return FALSE;
  weft_timeline_finish (t, x->plan);
  return TRUE;
}

/* ------------------------------------------------------------------------ errors */

/* If a process dies, the other processes first get an error of a communicator. They wait this long
 * for the rendezvous to report which process died. */
#define CAUSE_SECONDS 0.5

void
weft_processes_abort (struct weft_rendezvous *peers, GError **error)
{
  gint64 until = g_get_monotonic_time () + (gint64) (1e6 * CAUSE_SECONDS);
  g_autoptr (GError) cause = NULL;
  gboolean asked;

  if (!peers || !error || !*error)
    return;
  while (weft_rendezvous_poll (peers, &asked, &cause) && g_get_monotonic_time () < until)
    g_usleep (10000);
  if (cause && !strstr ((*error)->message, cause->message))
    g_prefix_error (error, "%s; here: ", cause->message);
  weft_rendezvous_abort (peers, (*error)->message);
}

/* ------------------------------------------------------------------------- steps */

/* The report of a process after a step. A process that has nothing to report sends no message. */
struct message {
  struct weft_metrics metrics;
  uint32_t has_loss, stop, large;
};

/* Whether this process holds the last rank that computes the loss, which reports it. */
static gboolean
reports_loss (const weft_exec *x)
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

static struct message
make_message (const weft_exec *x, gboolean stop)
{
  struct message message;

  memset (&message, 0, sizeof message); /* sets also the padding of the struct, which is sent */
  message.has_loss = reports_loss (x);
  message.stop = stop != FALSE;
  message.large = count_large (x);
  if (message.has_loss)
    message.metrics = *weft_exec_metrics (x);
  return message;
}

static void
add_message (struct weft_processes_step *to, const struct message *message)
{
  uint32_t large = to->metrics.large + message->large;

  if (message->has_loss)
    to->metrics = message->metrics;
  to->metrics.large = large;
  to->stop |= message->stop != 0;
}

gboolean
weft_processes_merge_step (weft_exec *x, const char *key, gboolean stop,
                           struct weft_processes_step *out, GError **error)
{
  const struct message mine = make_message (x, stop);
  gboolean any = mine.has_loss || mine.stop || mine.large;

  *out = (struct weft_processes_step){ .seconds = out->seconds };
  if (!x->peers) {
    add_message (out, &mine);
    return TRUE;
  }
  g_autoptr (GBytes) value = any ? g_bytes_new (&mine, sizeof mine) : NULL;
  g_autoptr (GPtrArray) all =
      weft_rendezvous_all_gather (x->peers, key, value, out->seconds, error);
  for (uint32_t i = 0; all && i < all->len; i++)
    if (all->pdata[i] && g_bytes_get_size (all->pdata[i]) == sizeof mine) {
      struct message message;
      memcpy (&message, g_bytes_get_data (all->pdata[i], NULL), sizeof message);
      add_message (out, &message);
    }
  return all != NULL;
}
