/* Collectives whose algorithm is data (core/collective/algorithm.h): bytes, latency and seconds on
 * a fabric of nodes and a network. */
#include "core/program/coll_style.h"
#include <math.h>
#include <string.h>

uint32_t
weft_coll_way (const struct weft_fabric *f, uint32_t from, uint32_t to)
{
  return weft_fabric_node (f, from) == weft_fabric_node (f, to) ? WEFT_WAY_LOCAL : WEFT_WAY_REMOTE;
}

/* A message on the fabric: the ranks of its sender and receiver. */
struct message {
  uint32_t from, to, way;
};

static struct message
message_of (const struct weft_coll_shape *s, const struct weft_fabric *f,
            const struct weft_algo_step *send)
{
  struct message m = { .from = weft_group_rank (&s->group, send->rank),
                       .to = weft_group_rank (&s->group, send->peer) };

  m.way = weft_coll_way (f, m.from, m.to);
  return m;
}

/* ------------------------------------------------------------------- bytes */

/* Sets the most chunks that a rank sends, over all rounds: in `way` those of each way, and returns
 * those of all ways. */
static double
count_chunks (const struct weft_coll_shape *s, const weft_algo *a, double way[WEFT_MAX_WAYS])
{
  struct weft_fabric f = weft_fabric_make (s->cluster);
  double most = 0, sent[WEFT_MAX_WAYS], all = 0;

  memset (way, 0, WEFT_MAX_WAYS * sizeof *way);
  for (uint32_t i = 0; i < a->n_step; i++) {
    if (i == 0 || a->step[i].rank != a->step[i - 1].rank) {
      memset (sent, 0, sizeof sent);
      all = 0;
    }
    if (a->step[i].kind != WEFT_STEP_SEND)
      continue;
    uint32_t w = message_of (s, &f, &a->step[i]).way;
    way[w] = fmax (way[w], ++sent[w]);
    most = fmax (most, ++all);
  }
  return most;
}

/* Sets the bytes that a rank sends and those of a chunk, with the flags of the protocol. As for
 * other algorithms, the bytes of a flow are a whole number. */
static void
set_bytes (const struct weft_coll_shape *s, const weft_algo *a, double bytes,
           struct weft_traffic *t)
{
  double chunks[WEFT_MAX_WAYS];

  count_chunks (s, a, chunks);
  for (int way = 0; way < WEFT_MAX_WAYS; way++) {
    t->bytes[way] =
        round (bytes / a->n_chunks * chunks[way] * weft_coll_wire (s, t->protocol, way));
    t->chunk[way] = chunks[way] > 0 ? t->bytes[way] / chunks[way] : 0;
  }
}

/* The bytes of data of a rank, as weft_coll_terms_of() expects them: of each way if every rank
 * sends inside its node and to other nodes, otherwise its total. */
static void
data_bytes (const struct weft_coll_shape *s, const weft_algo *a, double bytes,
            double data[WEFT_MAX_WAYS])
{
  double all = count_chunks (s, a, data);
  gboolean one = !s->uniform || s->side[WEFT_WAY_REMOTE] == 1;

  for (int way = 0; way < WEFT_MAX_WAYS; way++)
    data[way] = (one ? all : data[way]) * bytes / a->n_chunks;
}

/* ------------------------------------------------------------------ rounds */

/* Adds the capacity that a message of `bytes` takes of its links: seconds, by link. Returns the
 * most of them. */
static double
load (const struct weft_fabric *f, const struct message *m, double bytes, GHashTable *by_link)
{
  struct weft_route route;
  double most = 0;

  weft_fabric_route (f, m->from, m->to, &route);
  for (uint32_t i = 0; i < route.n; i++) {
    gpointer key = GUINT_TO_POINTER (route.link[i] + 1);
    double *seconds = g_hash_table_lookup (by_link, key);
    if (!seconds)
      g_hash_table_insert (by_link, key, seconds = g_new0 (double, 1));
    *seconds += bytes / weft_fabric_capacity (f, route.link[i]);
    most = fmax (most, *seconds);
  }
  return most;
}

/* The sends, sorted by round. */
static uint32_t *
sends_by_round (const weft_algo *a, uint32_t *first)
{
  uint32_t *sorted = g_new (uint32_t, a->n_step + 1);

  memset (first, 0, (a->n_rounds + 2) * sizeof *first);
  for (uint32_t i = 0; i < a->n_step; i++)
    if (a->step[i].kind == WEFT_STEP_SEND)
      first[a->step[i].round + 2]++;
  for (uint32_t r = 0; r < a->n_rounds; r++)
    first[r + 2] += first[r + 1];
  for (uint32_t i = 0; i < a->n_step; i++)
    if (a->step[i].kind == WEFT_STEP_SEND)
      sorted[first[a->step[i].round + 1]++] = i;
  return sorted;
}

/* Sets the seconds of the busiest link of every round. Returns their sum. */
static double
find_busy (const struct weft_coll_shape *s, const struct weft_traffic *t,
           struct weft_coll_round *round)
{
  const weft_algo *a = t->data;
  struct weft_fabric f = weft_fabric_make (s->cluster);
  g_autofree uint32_t *first = g_new (uint32_t, a->n_rounds + 2);
  g_autofree uint32_t *sends = sends_by_round (a, first);
  double sum = 0;

  for (uint32_t r = 0; r < a->n_rounds; r++) {
    g_autoptr (GHashTable) by_link = g_hash_table_new_full (NULL, NULL, NULL, g_free);
    for (uint32_t i = first[r]; i < first[r + 1] && a->like[r] == r; i++) {
      struct message m = message_of (s, &f, &a->step[sends[i]]);
      round[r].busy = fmax (round[r].busy, load (&f, &m, t->chunk[m.way], by_link));
    }
    round[r].busy = round[a->like[r]].busy;
    sum += round[r].busy;
  }
  return sum;
}

/* Sets the latency of every round: what the round adds to the longest chain of messages. Returns
 * the latency of that chain. */
static double
find_latency (const struct weft_coll_shape *s, const struct weft_traffic *t,
              struct weft_coll_round *round)
{
  const weft_algo *a = t->data;
  struct weft_fabric f = weft_fabric_make (s->cluster);
  g_autofree double *end = g_new0 (double, a->n_step + 1);
  g_autofree double *until = g_new0 (double, a->n_rounds + 1);

  for (uint32_t i = 0; i < a->n_step; i++) {
    uint32_t step = a->order[i];
    const struct weft_algo_step *row = &a->step[step];
    for (uint32_t w = a->first_wait[step]; w < a->first_wait[step + 1]; w++)
      end[step] = fmax (end[step], end[a->wait[w]]);
    if (row->kind == WEFT_STEP_SEND)
      continue;
    const struct weft_algo_step *send = &a->step[row->match];
    end[step] = fmax (end[step], end[row->match] + t->step[message_of (s, &f, send).way]);
    until[send->round] = fmax (until[send->round], end[step]);
  }
  double latest = 0;
  for (uint32_t r = 0; r < a->n_rounds; r++) {
    round[r].latency = fmax (0, until[r] - latest);
    latest = fmax (latest, until[r]);
  }
  return latest;
}

/* Counts the rounds with messages between nodes, and all other rounds. */
static void
count_rounds (const struct weft_coll_shape *s, const weft_algo *a,
              uint32_t steps[WEFT_MAX_AXES])
{
  struct weft_fabric f = weft_fabric_make (s->cluster);
  g_autofree uint8_t *ways = g_new0 (uint8_t, a->n_rounds + 1);

  for (uint32_t i = 0; i < a->n_step; i++)
    if (a->step[i].kind == WEFT_STEP_SEND)
      ways[a->step[i].round] |= 1u << message_of (s, &f, &a->step[i]).way;
  for (uint32_t r = 0; r < a->n_rounds; r++)
    if (ways[r])
      steps[ways[r] & 1u << WEFT_WAY_REMOTE ? WEFT_WAY_REMOTE : WEFT_WAY_LOCAL]++;
}

/* ------------------------------------------------------------------- plans */

static gboolean
plan_with (const struct weft_coll_shape *s, const weft_algo *a, double bytes,
           const union weft_stack *stack, struct weft_traffic *t)
{
  g_autofree struct weft_coll_round *round = g_new0 (struct weft_coll_round, a->n_rounds + 1);
  struct weft_coll_terms terms;
  double data[WEFT_MAX_WAYS];

  if (!weft_coll_has_protocol (s, t->protocol))
    return FALSE;
  double moved = bytes > WEFT_COLL_SCALAR_BYTES ? bytes : 0;
  data_bytes (s, a, moved, data);
  weft_coll_terms_of (s, stack, t->protocol, bytes, data, &terms);
  weft_coll_wait_for_posts (s, t->protocol, &terms);
  set_bytes (s, a, moved, t);
  memcpy (t->step, terms.step, sizeof t->step);
  count_rounds (s, a, t->steps);
  t->latency = terms.base + find_latency (s, t, round);
  double known = fmax (find_busy (s, t, round), terms.least), busy = fmax (known, terms.hidden);
  t->estimate = t->latency + known;
  t->seconds =
      t->latency + busy + 2 * sqrt (weft_coll_chunk_latency (s, stack, t->protocol) * busy);
  return TRUE;
}

struct weft_traffic
weft_coll_plan_data (const struct weft_coll_shape *s, const weft_algo *a, double bytes,
                     const union weft_stack *stack)
{
  unsigned protocols = a->protocol < 0 ? weft_coll_protocols (stack) : 1u << a->protocol;
  struct weft_traffic best = { .estimate = INFINITY };

  for (unsigned p = 0; p < WEFT_N_PROTOCOL; p++) {
    struct weft_traffic t = { .algorithm = a->name, .protocol = p, .data = a };
    if (protocols >> p & 1 && plan_with (s, a, bytes, stack, &t) && t.estimate < best.estimate)
      best = t;
  }
  if (isinf (best.estimate)) {
    best = (struct weft_traffic){ .algorithm = a->name, .data = a };
    plan_with (s, a, bytes, stack, &best);
  }
  return best;
}

struct weft_coll_round *
weft_coll_rounds (const struct weft_coll_shape *s, const struct weft_traffic *t)
{
  uint32_t n = t->data->n_rounds;
  struct weft_coll_round *round = g_new0 (struct weft_coll_round, n + 1);
  double latency = find_latency (s, t, round), busy = find_busy (s, t, round);
  double seconds = t->seconds - t->latency;

  /* Base latency and copies before the collective are part of its first round. */
  round[0].latency += t->latency - latency;
  for (uint32_t r = 0; r < n && busy > 0; r++)
    round[r].busy *= seconds / busy;
  return round;
}
