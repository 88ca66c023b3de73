/* Hostile clients of a rendezvous: a store that runs without a thread receives frames from three
 * connections in any order. The first input byte selects whether the job has a secret. Then follow
 * frames, each behind a byte with the number of its connection. After each frame, the memory that
 * the store has counted is compared with the bytes of its values. */
#include "launch/store_state.h"
#include "tests/fuzz/fuzz.h"
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 3u
#define MOST_BYTES (1u << 14)

/* Returns the bytes of all values in the store. The memory that the store counts must be at least
 * this large. */
static gsize
count_values (const weft_store *s)
{
  GHashTableIter at;
  gpointer key, value;
  gsize n = 0;

  g_hash_table_iter_init (&at, s->values);
  while (g_hash_table_iter_next (&at, &key, &value))
    n += g_bytes_get_size (value);
  g_hash_table_iter_init (&at, s->exchanges);
  while (g_hash_table_iter_next (&at, &key, &value))
    for (uint32_t i = 0; i < s->options.n; i++) {
      const struct weft_store_exchange *m = value;
      n += m->value[i] ? g_bytes_get_size (m->value[i]) : 0;
    }
  return n;
}

static void
check (const weft_store *s)
{
  uint32_t n_joined = 0, n_strangers = 0;

  for (uint32_t i = 0; i < s->options.n; i++) {
    const struct weft_store_member *m = &s->member[i];
    n_joined += m->joined;
    g_assert (!m->peer || (m->peer->process == i && !m->peer->stranger));
  }
  for (uint32_t i = 0; i < s->peers->len; i++)
    n_strangers += ((struct weft_store_peer *) s->peers->pdata[i])->stranger != NULL;
  g_assert (n_joined == s->n_joined && n_strangers == s->n_strangers);
  gsize values = count_values (s);
  g_assert (values <= s->memory && (s->stopped || s->memory <= MOST_BYTES));
  if (g_hash_table_size (s->values) + g_hash_table_size (s->exchanges) == 0)
    g_assert (s->memory == 0);
}

/* Returns a connection whose other end reads nothing more: everything that the store sends stays in
 * the queue of the connection, whose size the store must limit. */
static struct weft_store_peer *
connect_peer (weft_store *s)
{
  int end[2];

  g_assert (socketpair (AF_UNIX, SOCK_STREAM, 0, end) == 0);
  close (end[1]);
  return weft_store_add_stranger (s, g_socket_new_from_fd (end[0], NULL));
}

/* If a proof frame has a key, replaces its value by the correct proof, which a fuzzer could not
 * guess. So clients with the secret are tested too. */
static void
complete_proof (const struct weft_store_peer *p, struct weft_frame *f,
                uint8_t proof[WEFT_SEAL_NONCE])
{
  if (f->kind != WEFT_FRAME_PROOF || !f->key_bytes || !p->stranger || !p->stranger->transcript->len)
    return;
  weft_seal_prove ("secret", p->stranger->transcript, WEFT_SEAL_CLIENT, proof);
  f->value = proof;
  f->value_bytes = WEFT_SEAL_NONCE;
}

/* Passes a frame to the store. If the store closes the connection, a new connection replaces it. */
static void
feed_frame (weft_store *s, struct weft_store_peer **peer, struct weft_frame *f)
{
  struct weft_store_peer *p = *peer;
  uint8_t proof[WEFT_SEAL_NONCE];

  complete_proof (p, f, proof);
  gboolean lives = (p->stranger ? weft_store_on_stranger : weft_store_on_request) (s, p, f);
  if (lives && !p->closing_peer)
    return;
  weft_store_drop (s, p);
  *peer = connect_peer (s);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  const struct weft_store_options options = { .token = "job",
                                              .secret = size && data[0] % 2 ? "secret" : NULL,
                                              .n = 2,
                                              .ranks_each = 1,
                                              .most_bytes = MOST_BYTES };
  weft_store *s = weft_store_new (&options);
  struct weft_store_peer *peer[CONNECTIONS];
  struct weft_frame f;
  gint64 n = 1;

  for (unsigned i = 0; i < CONNECTIONS; i++)
    peer[i] = connect_peer (s);
  for (size_t at = 1; at + 1 < size && n > 0; at += (size_t) n) {
    struct weft_store_peer **p = &peer[data[at++] % CONNECTIONS];
    n = weft_frame_parse (data + at, size - at,
                          (*p)->stranger ? WEFT_FRAME_FIRST_BYTES : WEFT_FRAME_MOST_BYTES, &f);
    if (n > 0)
      feed_frame (s, p, &f);
    weft_store_finish_reports (s, g_get_monotonic_time ());
    check (s);
  }
  weft_store_free (s);
  return 0;
}
