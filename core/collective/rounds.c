/* The round of a message is the earliest in which its sender can send it: after all rounds whose
 * messages the sender has to receive first. */
#include "core/collective/rounds.h"
#include "core/base/mix.h"
#include <string.h>

static gboolean
sends (const struct weft_algo_step *step)
{
  return step->kind == WEFT_STEP_SEND;
}

/* The first round after step `s`. Nothing waits for the end of a send. */
static uint32_t
after (const weft_algo *a, uint32_t s)
{
  return sends (&a->step[s]) ? a->step[s].round : a->step[s].round + 1;
}

static void
set_rounds (weft_algo *a)
{
  for (uint32_t i = 0; i < a->n_step; i++) {
    struct weft_algo_step *step = &a->step[a->order[i]];
    step->round = sends (step) ? 0 : a->step[step->match].round;
    for (uint32_t w = a->first_wait[a->order[i]]; w < a->first_wait[a->order[i] + 1]; w++)
      step->round = MAX (step->round, after (a, a->wait[w]));
    a->n_rounds = MAX (a->n_rounds, step->round + 1);
  }
}

/* ------------------------------------------------------------ equal rounds */

/* A hash of the senders and receivers of each round, in any order. */
static void
find_like (weft_algo *a)
{
  g_autofree uint64_t *sum = g_new0 (uint64_t, a->n_rounds + 1);
  g_autoptr (GHashTable) first = g_hash_table_new (g_int64_hash, g_int64_equal);

  for (uint32_t s = 0; s < a->n_step; s++)
    if (sends (&a->step[s])) {
      uint64_t pair = (uint64_t) a->step[s].rank << 32 | a->step[s].peer;
      sum[a->step[s].round] += weft_mix (pair + 1);
    }
  a->like = g_new (uint32_t, a->n_rounds + 1);
  for (uint32_t r = 0; r < a->n_rounds; r++) {
    gpointer found;
    if (!g_hash_table_lookup_extended (first, &sum[r], NULL, &found)) {
      found = GUINT_TO_POINTER (r);
      g_hash_table_insert (first, &sum[r], found);
    }
    a->like[r] = GPOINTER_TO_UINT (found);
  }
}

/* ------------------------------------------------------------------- moves */

static int64_t
place (const weft_algo *a, uint32_t rank, uint32_t chunk, uint32_t round)
{
  return ((int64_t) round * a->n + rank) * a->n_chunks + chunk;
}

/* The chunks that receives change, by rank and round. */
static GHashTable *
changed_places (const weft_algo *a)
{
  GHashTable *changed = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);

  for (uint32_t s = 0; s < a->n_step; s++)
    if (!sends (&a->step[s])) {
      int64_t key = place (a, a->step[s].rank, a->step[s].chunk, a->step[s].round);
      g_hash_table_add (changed, g_memdup2 (&key, sizeof key));
    }
  return changed;
}

/* Whether the message of a receive must be kept in a slot: it arrives before the receive, or its
 * round changes the place from which it comes. */
static gboolean
needs_slot (const weft_algo *a, const struct weft_algo_step *receive,
            GHashTable *changed)
{
  const struct weft_algo_step *send = &a->step[receive->match];
  int64_t key = place (a, send->rank, send->chunk, send->round);

  return send->round != receive->round || g_hash_table_contains (changed, &key);
}

/* The slots of one rank: the round after which each one is free. */
static uint32_t
take_slot (GArray *slots, uint32_t from, uint32_t to)
{
  uint32_t i = 0;

  while (i < slots->len && g_array_index (slots, uint32_t, i) > from)
    i++;
  if (i == slots->len)
    g_array_append_val (slots, to);
  g_array_index (slots, uint32_t, i) = to + 1;
  return i + 1;
}

static int
by_round (gconstpointer a, gconstpointer b)
{
  const struct weft_move *m = a, *n = b;

  if (m->round != n->round)
    return m->round < n->round ? -1 : 1;
  return m->to < n->to ? -1 : m->to > n->to;
}

static struct weft_move
move_of (const weft_algo *a, uint32_t s, const gboolean *complete)
{
  const struct weft_algo_step *step = &a->step[s];
  gboolean own = complete[s] && a->collective == WEFT_COLLECTIVE_REDUCE_SCATTER &&
                 (uint64_t) step->chunk * a->n / a->n_chunks == step->rank;
  gboolean adds = step->kind == WEFT_STEP_ADD;

  return (struct weft_move){ .round = step->round,
                             .from = step->peer,
                             .to = step->rank,
                             .piece = step->chunk,
                             .reduce = adds,
                             .complete = adds && complete[s],
                             .own = own };
}

/* Appends the two moves of each message that needs a slot. The messages are taken in the order of
 * their rounds, so that a slot is free again when its message has left it. */
static void
add_kept (weft_algo *a, const gboolean *complete, GHashTable *changed)
{
  g_autoptr (GPtrArray) slots = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);
  g_autoptr (GArray) fetches = g_array_new (FALSE, FALSE, sizeof (struct weft_move));

  for (uint32_t rank = 0; rank < a->n; rank++)
    g_ptr_array_add (slots, g_array_new (FALSE, FALSE, sizeof (uint32_t)));
  for (uint32_t s = 0; s < a->n_step; s++)
    if (!sends (&a->step[s]) && needs_slot (a, &a->step[s], changed)) {
      struct weft_move fetch = { .round = a->step[a->step[s].match].round, .piece = s };
      g_array_append_val (fetches, fetch);
    }
  g_array_sort (fetches, by_round);
  for (guint i = 0; i < fetches->len; i++) {
    struct weft_move fetch = g_array_index (fetches, struct weft_move, i);
    struct weft_move move = move_of (a, fetch.piece, complete);
    move.slot = take_slot (slots->pdata[move.to], fetch.round, move.round);
    g_array_append_val (a->moves, move);
    move.round = fetch.round;
    move.fetch = TRUE;
    g_array_append_val (a->moves, move);
    a->n_slots = MAX (a->n_slots, move.slot);
  }
}

static void
make_moves (weft_algo *a, const gboolean *complete)
{
  g_autoptr (GHashTable) changed = changed_places (a);

  a->moves = g_array_new (FALSE, FALSE, sizeof (struct weft_move));
  add_kept (a, complete, changed);
  for (uint32_t s = 0; s < a->n_step; s++)
    if (!sends (&a->step[s]) && !needs_slot (a, &a->step[s], changed)) {
      struct weft_move move = move_of (a, s, complete);
      g_array_append_val (a->moves, move);
    }
  for (uint32_t i = 0; i < a->moves->len && a->n_slots > 0; i++) {
    struct weft_move *move = &g_array_index (a->moves, struct weft_move, i);
    move->round = 2 * move->round + !move->fetch;
  }
  g_array_sort (a->moves, by_round);
}

void
weft_algo_find_rounds (weft_algo *a, const gboolean *complete)
{
  set_rounds (a);
  find_like (a);
  make_moves (a, complete);
}
