#include "launch/owner.h"
#include "launch/store_state.h"
#include <string.h>

#define STRANGER_SECONDS 5 /* time limit in seconds for the admission of a new connection */
/* number of new connections that are accepted before the store serves its connections again */
#define MOST_ACCEPTED 16

/* ----------------------------------------------------------------------- handshake */

/* The reason why a stranger (a new connection, which may be a process of the job) is refused. NULL:
 * the stranger is not refused. The caller frees the string. */
static char *
check_stranger (weft_store *s, const struct weft_store_stranger *stranger)
{
  uint32_t process = stranger->process, n = stranger->hello.n;
  g_autofree char *name = weft_store_name_of (s, process);

  if (n != s->options.n)
    return g_strdup_printf ("%s: found a world size of %u, wanted %u as in rank 0", name, n,
                            s->options.n);
  if (process >= n)
    return g_strdup_printf ("found process number %u, wanted 0 to %u", process, n - 1);
  if (s->member[process].joined)
    return g_strdup_printf ("%s: found a second process with this rank, the first is on %s", name,
                            weft_store_host_of (&s->member[process]));
  return g_strdup (s->stopped);
}

static void
welcome_all (weft_store *s)
{
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].peer)
      weft_store_put_text (s->member[i].peer, WEFT_FRAME_WELCOME, NULL);
}

void
weft_store_stranger_free (struct weft_store_stranger *stranger)
{
  g_clear_object (&stranger->from);
  g_byte_array_unref (stranger->transcript);
  g_free (stranger);
}

/* Tells a client that it is admitted, with the proof that this store knows the secret. From then
 * on, both sides encrypt. */
static gboolean
send_admitted (weft_store *s, struct weft_store_peer *p)
{
  const GByteArray *transcript = p->stranger->transcript;
  uint8_t proof[WEFT_SEAL_NONCE];

  if (!s->secret) {
    weft_store_put (p, WEFT_FRAME_ADMITTED, NULL, NULL);
    return TRUE;
  }
  weft_seal_prove (s->secret, transcript, WEFT_SEAL_STORE, proof);
  g_autoptr (GBytes) value = g_bytes_new (proof, sizeof proof);
  weft_store_put (p, WEFT_FRAME_ADMITTED, NULL, value);
  return weft_link_set_seal (&p->link, weft_seal_new (s->secret, transcript, WEFT_SEAL_STORE));
}

/* Admits a stranger (a new connection) as a process of the job, or refuses it. */
static gboolean
admit (weft_store *s, struct weft_store_peer *p)
{
  g_autofree char *wrong = check_stranger (s, p->stranger);
  struct weft_store_member *m;

  if (wrong) {
    weft_store_refuse (p, wrong);
    return TRUE;
  }
  if (!send_admitted (s, p))
    return FALSE;
  p->process = p->stranger->process;
  m = &s->member[p->process];
  m->peer = p;
  m->joined = TRUE;
  m->heard = g_get_monotonic_time ();
  m->host = g_strdup (p->stranger->hello.host);
  g_clear_pointer (&p->stranger, weft_store_stranger_free);
  s->n_strangers--;
  if (++s->n_joined == s->options.n)
    welcome_all (s);
  return TRUE;
}

/* Handles the first frame of a stranger (a new connection). If the job has a secret, asks the
 * stranger for a proof; else admits the stranger. FALSE: the frame is not a hello of Weft. */
static gboolean
on_hello (weft_store *s, struct weft_store_peer *p, const struct weft_frame *f, const char *key)
{
  uint8_t nonce[WEFT_SEAL_NONCE];
  struct weft_frame challenge = { .kind = WEFT_FRAME_CHALLENGE,
                                  .value = nonce,
                                  .value_bytes = sizeof nonce };

  if (!weft_hello_parse (f, &p->stranger->hello))
    return FALSE;
  if (strcmp (key, s->token) != 0) {
    g_autofree char *wrong = g_strdup_printf (
        "found the rendezvous of another job at this port, wanted that of job \"%s\"", key);
    weft_store_refuse (p, wrong);
    return TRUE;
  }
  p->stranger->process = f->number;
  if (!s->secret)
    return weft_owner_is_this_user (p->link.socket) && admit (s, p);
  weft_seal_random (nonce, sizeof nonce);
  weft_frame_put (p->stranger->transcript, f);
  weft_frame_put (p->stranger->transcript, &challenge);
  weft_link_put (&p->link, &challenge, NULL);
  return TRUE;
}

/* Handles a frame from a stranger (a connection that is not admitted yet). FALSE: the stranger is
 * not a process of Weft. */
gboolean
weft_store_on_stranger (weft_store *s, struct weft_store_peer *p, const struct weft_frame *f)
{
  g_autofree char *key = g_strndup (f->key, f->key_bytes);

  if (p->stranger->process == WEFT_STORE_NOBODY)
    return on_hello (s, p, f, key);
  if (f->kind != WEFT_FRAME_PROOF)
    return FALSE;
  if (weft_seal_is_proof (s->secret, p->stranger->transcript, WEFT_SEAL_CLIENT, f->value,
                          f->value_bytes))
    return admit (s, p);
  weft_store_refuse (
      p, "found another secret than that of rank 0 (WEFT_SECRET or its file), wanted the same "
         "in all processes");
  return TRUE;
}

/* ----------------------------------------------------------------------- strangers */

/* Number of strangers (connections that are not admitted yet) from the address of `of`. */
static uint32_t
count_neighbours (const weft_store *s, const struct weft_store_stranger *of)
{
  uint32_t n = 0;

  for (uint32_t i = 0; i < s->peers->len; i++) {
    const struct weft_store_peer *p = s->peers->pdata[i];
    n += p->stranger && g_inet_address_equal (p->stranger->from, of->from);
  }
  return n;
}

/* Closes the connection of the stranger that has been connected longest, among the strangers from
 * the address with the most strangers. So idle connections from one machine cannot keep out a
 * process of another machine, and a process of the same machine is admitted before that many others
 * connect. */
static void
evict_stranger (weft_store *s)
{
  struct weft_store_peer *oldest = NULL;
  uint32_t most = 0;

  for (uint32_t i = 0; i < s->peers->len; i++) {
    struct weft_store_peer *p = s->peers->pdata[i];
    uint32_t n = p->stranger ? count_neighbours (s, p->stranger) : 0;
    if (n > most || (n > 0 && n == most && p->stranger->until < oldest->stranger->until)) {
      oldest = p;
      most = n;
    }
  }
  if (oldest)
    weft_store_drop (s, oldest);
}

/* The address of the other end of a connection. */
static GInetAddress *
address_of (GSocket *socket)
{
  g_autoptr (GSocketAddress) from = g_socket_get_remote_address (socket, NULL);

  return G_IS_INET_SOCKET_ADDRESS (from)
             ? g_object_ref (g_inet_socket_address_get_address (G_INET_SOCKET_ADDRESS (from)))
             : g_inet_address_new_any (G_SOCKET_FAMILY_IPV4);
}

struct weft_store_peer *
weft_store_add_stranger (weft_store *s, GSocket *socket)
{
  double limit = s->options.stranger_seconds > 0 ? s->options.stranger_seconds : STRANGER_SECONDS;
  struct weft_store_peer *p = g_new0 (struct weft_store_peer, 1);

  g_socket_set_blocking (socket, FALSE);
  weft_link_init (&p->link, socket);
  p->process = WEFT_STORE_NOBODY;
  p->stranger = g_new0 (struct weft_store_stranger, 1);
  *p->stranger =
      (struct weft_store_stranger){ .from = address_of (socket),
                                    .until = g_get_monotonic_time () + (gint64) (1e6 * limit),
                                    .process = WEFT_STORE_NOBODY,
                                    .transcript = g_byte_array_new () };
  g_ptr_array_add (s->peers, p);
  s->n_strangers++;
  return p;
}

/* Accepts connections of one socket that listens. If this process has no file descriptor left,
 * closes the connection of a stranger. */
void
weft_store_accept (weft_store *s, GSocket *listening)
{
  for (int i = 0; i < MOST_ACCEPTED; i++) {
    g_autoptr (GError) error = NULL;
    GSocket *socket = g_socket_accept (listening, NULL, &error);
    if (socket)
      weft_store_add_stranger (s, socket);
    if (s->n_strangers > WEFT_STORE_MOST_STRANGERS ||
        g_error_matches (error, G_IO_ERROR, G_IO_ERROR_TOO_MANY_OPEN_FILES))
      evict_stranger (s);
    if (!socket)
      return;
  }
}
