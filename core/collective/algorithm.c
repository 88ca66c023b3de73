/* The proof of a collective algorithm for one number of ranks, and its rounds. */
#include "core/base/error.h"
#include "core/collective/rounds.h"
#include "core/collective/text.h"
#include <string.h>

enum { NO_STEP = G_MAXUINT32 };

static gboolean
sends (const struct weft_algo_step *step)
{
  return step->kind == WEFT_STEP_SEND;
}

static char *
label (const weft_algo *a, uint32_t s)
{
  const struct weft_algo_step *step = &a->step[s];
  static const char *const words[] = { "send", "copy", "add" };

  return g_strdup_printf ("rank %u, line %u (%s %u %s %u%s)", step->rank, step->line,
                          words[step->kind], step->chunk, sends (step) ? "to" : "from", step->peer,
                          step->channel ? ", another channel" : "");
}

/* ---------------------------------------------------------------- messages */

/* The sends, and the receives, of one connection: sender, receiver and channel. */
struct connection {
  GArray *send, *receive; /* uint32_t */
};

static void
connection_free (void *data)
{
  struct connection *c = data;

  g_array_unref (c->send);
  g_array_unref (c->receive);
  g_free (c);
}

static struct connection *
connection_of (GHashTable *all, const struct weft_algo_step *step)
{
  uint32_t from = sends (step) ? step->rank : step->peer,
           to = sends (step) ? step->peer : step->rank;
  int64_t key = ((int64_t) from << 20 | to) << 20 | step->channel;
  struct connection *c = g_hash_table_lookup (all, &key);

  if (!c) {
    c = g_new (struct connection, 1);
    c->send = g_array_new (FALSE, FALSE, sizeof (uint32_t));
    c->receive = g_array_new (FALSE, FALSE, sizeof (uint32_t));
    g_hash_table_insert (all, g_memdup2 (&key, sizeof key), c);
  }
  return c;
}

static gboolean
refuse_match (const weft_algo *a, uint32_t s, const char *why, GError **error)
{
  g_autofree char *step = label (a, s);

  return weft_bad_input (error, "%s: with %u ranks: %s: %s", a->name, a->n, step, why);
}

static gboolean
match (weft_algo *a, uint32_t s, const struct connection *c, GError **error)
{
  uint32_t k = a->step[s].match;
  const GArray *other = sends (&a->step[s]) ? c->receive : c->send;

  if (k >= other->len)
    return refuse_match (a, s,
                         sends (&a->step[s]) ? "no receive of the other rank is left for it, "
                                               "wanted one on the same channel"
                                             : "no message of the other rank is left for it, "
                                               "wanted one on the same channel",
                         error);
  uint32_t partner = g_array_index (other, uint32_t, k);
  if (a->step[partner].chunk != a->step[s].chunk) {
    g_autofree char *step = label (a, partner);
    g_autofree char *why = g_strdup_printf ("its message is that of %s, wanted the same chunk",
                                            step);
    return refuse_match (a, s, why, error);
  }
  a->step[s].match = partner;
  return TRUE;
}

/* Sets the other end of every step. */
static gboolean
match_all (weft_algo *a, GError **error)
{
  g_autoptr (GHashTable) all =
      g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, connection_free);

  for (uint32_t s = 0; s < a->n_step; s++) {
    struct connection *c = connection_of (all, &a->step[s]);
    GArray *own = sends (&a->step[s]) ? c->send : c->receive;
    a->step[s].match = own->len;
    g_array_append_val (own, s);
  }
  for (uint32_t s = 0; s < a->n_step; s++)
    if (!match (a, s, connection_of (all, &a->step[s]), error))
      return FALSE;
  return TRUE;
}

/* ------------------------------------------------------------------- order */

/* The newest steps of the rank that is being read. */
struct newest {
  uint32_t *on_channel; /* [channel] */
  uint32_t *receive;    /* [chunk]: the newest step that changed the chunk */
  uint32_t *send;       /* [chunk]: the newest step that sent it since; older ones by `older` */
  uint32_t *older;      /* [step]: the send before it of the same chunk */
};

static void
add_wait (GArray *wait, uint32_t step)
{
  if (step != NO_STEP)
    g_array_append_val (wait, step);
}

/* Appends the steps that step s waits for. A send reads its chunk; a receive changes it. */
static void
note_step (const weft_algo *a, uint32_t s, struct newest *newest, GArray *wait)
{
  const struct weft_algo_step *step = &a->step[s];

  add_wait (wait, newest->on_channel[step->channel]);
  add_wait (wait, newest->receive[step->chunk]);
  newest->on_channel[step->channel] = s;
  if (sends (step)) {
    newest->older[s] = newest->send[step->chunk];
    newest->send[step->chunk] = s;
    return;
  }
  for (uint32_t i = newest->send[step->chunk]; i != NO_STEP; i = newest->older[i])
    add_wait (wait, i);
  newest->send[step->chunk] = NO_STEP;
  newest->receive[step->chunk] = s;
}

static void
find_waits (weft_algo *a)
{
  struct newest newest = { g_new (uint32_t, a->n_channels), g_new (uint32_t, a->n_chunks),
                           g_new (uint32_t, a->n_chunks), g_new (uint32_t, a->n_step + 1) };
  GArray *wait = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  a->first_wait = g_new (uint32_t, a->n_step + 1);
  for (uint32_t s = 0; s < a->n_step; s++) {
    if (s == 0 || a->step[s].rank != a->step[s - 1].rank) {
      memset (newest.on_channel, 0xff, a->n_channels * sizeof (uint32_t));
      memset (newest.receive, 0xff, a->n_chunks * sizeof (uint32_t));
      memset (newest.send, 0xff, a->n_chunks * sizeof (uint32_t));
    }
    a->first_wait[s] = wait->len;
    note_step (a, s, &newest, wait);
  }
  a->first_wait[a->n_step] = wait->len;
  a->wait = (uint32_t *) (void *) g_array_free (wait, FALSE);
  g_free (newest.on_channel);
  g_free (newest.receive);
  g_free (newest.send);
  g_free (newest.older);
}

/* A step that step s waits for and that has not run; NO_STEP: there is none. */
static uint32_t
open_wait (const weft_algo *a, const gboolean *done, uint32_t s)
{
  for (uint32_t i = a->first_wait[s]; i < a->first_wait[s + 1]; i++)
    if (!done[a->wait[i]])
      return a->wait[i];
  return !sends (&a->step[s]) && !done[a->step[s].match] ? a->step[s].match : NO_STEP;
}

static gboolean
refuse_deadlock (const weft_algo *a, const gboolean *done, uint32_t s, GError **error)
{
  g_autofree gboolean *seen = g_new0 (gboolean, a->n_step + 1);
  GString *text = g_string_new (NULL);

  for (; !seen[s]; s = open_wait (a, done, s))
    seen[s] = TRUE;
  uint32_t first = s;
  do {
    g_autofree char *step = label (a, s);
    g_string_append_printf (text, "%s waits for ", step);
    s = open_wait (a, done, s);
  } while (s != first);
  g_autofree char *last = label (a, first);
  weft_bad_input (error, "%s: with %u ranks: deadlock: %s%s", a->name, a->n, text->str, last);
  g_string_free (text, TRUE);
  return FALSE;
}

/* Sets a->order. Each pass runs, rank by rank, the steps that can run. */
static gboolean
find_order (weft_algo *a, GError **error)
{
  g_autofree gboolean *done = g_new0 (gboolean, a->n_step + 1);
  g_autofree uint32_t *left = g_new0 (uint32_t, a->n_step + 1);
  g_autoptr (GArray) followers = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autofree uint32_t *first = g_new0 (uint32_t, a->n_step + 2);
  uint32_t n = 0;

  a->order = g_new (uint32_t, a->n_step + 1);
  for (uint32_t s = 0; s < a->n_step; s++) {
    left[s] = a->first_wait[s + 1] - a->first_wait[s] + !sends (&a->step[s]);
    for (uint32_t i = a->first_wait[s]; i < a->first_wait[s + 1]; i++)
      first[a->wait[i] + 2]++;
    if (!sends (&a->step[s]))
      first[a->step[s].match + 2]++;
    if (left[s] == 0)
      a->order[n++] = s;
  }
  for (uint32_t s = 0; s < a->n_step; s++)
    first[s + 2] += first[s + 1];
  g_array_set_size (followers, first[a->n_step + 1]);
  for (uint32_t s = 0; s < a->n_step; s++) {
    for (uint32_t i = a->first_wait[s]; i < a->first_wait[s + 1]; i++)
      g_array_index (followers, uint32_t, first[a->wait[i] + 1]++) = s;
    if (!sends (&a->step[s]))
      g_array_index (followers, uint32_t, first[a->step[s].match + 1]++) = s;
  }
  for (uint32_t at = 0; at < n; at++) {
    uint32_t s = a->order[at];
    done[s] = TRUE;
    for (uint32_t i = first[s]; i < first[s + 1]; i++) {
      uint32_t next = g_array_index (followers, uint32_t, i);
      if (--left[next] == 0)
        a->order[n++] = next;
    }
  }
  for (uint32_t s = 0; s < a->n_step; s++)
    if (!done[s])
      return refuse_deadlock (a, done, s, error);
  return TRUE;
}

/* ------------------------------------------------------------------- proof */

/* A set of ranks whose contributions a chunk holds: bits in 64-bit words. */
struct proof {
  const weft_algo *a;
  uint32_t n_word;
  uint64_t *held;      /* [rank][chunk][word] */
  uint64_t *message;   /* [send][word]; unused for receives */
  gboolean *complete;  /* [step]: a receive after which the chunk is as it must be */
};

static uint64_t *
held_at (const struct proof *p, uint32_t rank, uint32_t chunk)
{
  return &p->held[((size_t) rank * p->a->n_chunks + chunk) * p->n_word];
}

static uint32_t
owner (const weft_algo *a, uint32_t chunk)
{
  return (uint32_t) ((uint64_t) chunk * a->n / a->n_chunks);
}

static gboolean
adds (const weft_algo *a)
{
  return a->collective == WEFT_COLLECTIVE_ALL_REDUCE ||
         a->collective == WEFT_COLLECTIVE_REDUCE_SCATTER;
}

/* Whether a chunk must hold the contribution of rank `from` at the end. */
static gboolean
needs (const weft_algo *a, uint32_t chunk, uint32_t from)
{
  return adds (a) || from == (a->collective == WEFT_COLLECTIVE_BROADCAST ? 0 : owner (a, chunk));
}

/* Whether a rank must hold a chunk at the end. */
static gboolean
must_end_with (const weft_algo *a, uint32_t rank, uint32_t chunk)
{
  return a->collective != WEFT_COLLECTIVE_REDUCE_SCATTER || owner (a, chunk) == rank;
}

static gboolean
has_bit (const uint64_t *set, uint32_t bit)
{
  return set[bit / 64] >> bit % 64 & 1;
}

static gboolean
is_complete (const struct proof *p, const uint64_t *set, uint32_t chunk)
{
  for (uint32_t from = 0; from < p->a->n; from++)
    if (has_bit (set, from) != needs (p->a, chunk, from))
      return FALSE;
  return TRUE;
}

static void
start (struct proof *p)
{
  const weft_algo *a = p->a;

  for (uint32_t rank = 0; rank < a->n; rank++)
    for (uint32_t chunk = 0; chunk < a->n_chunks; chunk++)
      if (needs (a, chunk, rank))
        held_at (p, rank, chunk)[rank / 64] |= (uint64_t) 1 << rank % 64;
}

/* The ranks of a set as text: "0, 1, 5"; at most eight of them. The caller frees the text. */
static char *
ranks_text (const struct proof *p, const uint64_t *set)
{
  GString *text = g_string_new (NULL);
  uint32_t n = 0;

  for (uint32_t i = 0; i < p->a->n; i++)
    if (has_bit (set, i) && n++ < 8)
      g_string_append_printf (text, "%s%u", text->len ? ", " : "", i);
  if (n > 8)
    g_string_append_printf (text, " and %u others", n - 8);
  return g_string_free (text, FALSE);
}

static gboolean
send_chunk (struct proof *p, uint32_t s, GError **error)
{
  const struct weft_algo_step *step = &p->a->step[s];
  const uint64_t *set = held_at (p, step->rank, step->chunk);
  gboolean any = FALSE;

  for (uint32_t w = 0; w < p->n_word; w++)
    any |= set[w] != 0;
  if (!any)
    return refuse_match (p->a, s, "found a chunk that the rank has not received yet", error);
  if (p->a->collective == WEFT_COLLECTIVE_REDUCE_SCATTER &&
      owner (p->a, step->chunk) == step->rank && is_complete (p, set, step->chunk))
    return refuse_match (p->a, s,
                         "found a chunk of the rank's own, whose sum is complete: a "
                         "reduce_scatter ends there",
                         error);
  memcpy (&p->message[(size_t) s * p->n_word], set, p->n_word * sizeof *set);
  return TRUE;
}

static gboolean
add_chunk (struct proof *p, uint32_t s, GError **error)
{
  const struct weft_algo_step *step = &p->a->step[s];
  uint64_t *set = held_at (p, step->rank, step->chunk), both[p->n_word];
  const uint64_t *message = &p->message[(size_t) step->match * p->n_word];
  gboolean twice = FALSE;

  if (!adds (p->a))
    return refuse_match (p->a, s, "this collective adds nothing, wanted copy", error);
  for (uint32_t w = 0; w < p->n_word; w++) {
    both[w] = set[w] & message[w];
    twice |= both[w] != 0;
    set[w] |= message[w];
  }
  if (twice) {
    g_autofree char *ranks = ranks_text (p, both);
    g_autofree char *why =
        g_strdup_printf ("adds the contribution of rank %s a second time, wanted once", ranks);
    return refuse_match (p->a, s, why, error);
  }
  p->complete[s] = is_complete (p, set, step->chunk);
  return TRUE;
}

static gboolean
run_step (struct proof *p, uint32_t s, GError **error)
{
  const struct weft_algo_step *step = &p->a->step[s];

  if (sends (step))
    return send_chunk (p, s, error);
  if (step->kind == WEFT_STEP_ADD)
    return add_chunk (p, s, error);
  uint64_t *set = held_at (p, step->rank, step->chunk);
  memcpy (set, &p->message[(size_t) step->match * p->n_word], p->n_word * sizeof *set);
  p->complete[s] = is_complete (p, set, step->chunk);
  return TRUE;
}

static gboolean
check_end (const struct proof *p, uint32_t rank, uint32_t chunk, GError **error)
{
  const uint64_t *set = held_at (p, rank, chunk);
  uint64_t missing[p->n_word];

  if (!must_end_with (p->a, rank, chunk) || is_complete (p, set, chunk))
    return TRUE;
  memset (missing, 0, sizeof missing);
  for (uint32_t from = 0; from < p->a->n; from++)
    if (needs (p->a, chunk, from) && !has_bit (set, from))
      missing[from / 64] |= (uint64_t) 1 << from % 64;
  g_autofree char *ranks = ranks_text (p, missing);
  return weft_bad_input (error,
                         "%s: with %u ranks: rank %u ends without the contribution of rank %s to "
                         "chunk %u, wanted %s",
                         p->a->name, p->a->n, rank, ranks, chunk,
                         weft_collective_words[p->a->collective]);
}

static gboolean
prove (struct proof *p, GError **error)
{
  start (p);
  for (uint32_t i = 0; i < p->a->n_step; i++)
    if (!run_step (p, p->a->order[i], error))
      return FALSE;
  for (uint32_t rank = 0; rank < p->a->n; rank++)
    for (uint32_t chunk = 0; chunk < p->a->n_chunks; chunk++)
      if (!check_end (p, rank, chunk, error))
        return FALSE;
  return TRUE;
}

weft_algo *
weft_algo_new (const weft_algo_text *text, uint32_t n, GError **error)
{
  g_autoptr (weft_algo) a = g_new0 (weft_algo, 1);

  if (!weft_algo_expand (text, n, a, error) || !match_all (a, error))
    return NULL;
  find_waits (a);
  if (!find_order (a, error))
    return NULL;
  struct proof p = { .a = a, .n_word = (n + 63) / 64 };
  p.held = g_new0 (uint64_t, (size_t) n * a->n_chunks * p.n_word);
  p.message = g_new0 (uint64_t, (size_t) a->n_step * p.n_word + 1);
  p.complete = g_new0 (gboolean, a->n_step + 1);
  gboolean good = prove (&p, error);
  if (good)
    weft_algo_find_rounds (a, p.complete);
  g_free (p.held);
  g_free (p.message);
  g_free (p.complete);
  return good ? g_steal_pointer (&a) : NULL;
}

void
weft_algo_free (weft_algo *a)
{
  g_free (a->name);
  g_free (a->step);
  g_free (a->order);
  g_free (a->wait);
  g_free (a->first_wait);
  g_free (a->like);
  if (a->moves)
    g_array_unref (a->moves);
  g_free (a);
}
