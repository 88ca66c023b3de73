#include "launch/rendezvous.h"
#include "core/base/error.h"
#include "launch/link.h"
#include "launch/listening.h"
#include "launch/owner.h"
#include "launch/secret.h"
#include "launch/signals.h"
#include "launch/store.h"
#include <pthread.h>
#include <string.h>

/* Added to the time limit of a wait for an answer, so that the store can report which processes are
 * missing before this client gives up. */
#define GRACE_SECONDS 5
#define RETRY_MICROSECONDS 50000
#define FAREWELL_SECONDS 10 /* process 0 waits this long for the others to sign off */

struct weft_rendezvous {
  struct weft_rendezvous_place place;
  char *host, *token, *secret, *secret_file;
  weft_store *store; /* the store (server); NULL except in process 0 */

  GSocketConnection *connection;

  pthread_mutex_t lock; /* guards the fields below, because any thread may poll */
  struct weft_link link;
  gboolean admitted;       /* the store has admitted this process; the handshake is complete */
  gboolean lost;           /* the connection to the store has ended */
  gboolean status_wanted;  /* another process has asked for the status of this process */
  /* key of the exchange or value that this process waits for; NULL: the process does not wait */
  const char *waiting_key;
  char *stopped;           /* why the job has failed, or NULL */
  gboolean failed;         /* this process has ended the job by weft_rendezvous_abort() */
};

const struct weft_rendezvous_place *
weft_rendezvous_place (const weft_rendezvous *r)
{
  return &r->place;
}

static gint64
after (double seconds)
{
  return seconds > 0 ? g_get_monotonic_time () + (gint64) (1e6 * seconds) : G_MAXINT64;
}

/* ------------------------------------------------------------------- sending */

static gboolean
is_stopped (const weft_rendezvous *r, GError **error)
{
  return r->stopped && !weft_run_error (error, "%s", r->stopped);
}

static void
stop (weft_rendezvous *r, char *why)
{
  if (!r->stopped)
    r->stopped = why;
  else
    g_free (why);
}

static void
lost_store (weft_rendezvous *r)
{
  g_autofree char *name = weft_store_name (r->place.ranks_each, 0);
  stop (r, g_strdup_printf ("%s, which runs the rendezvous at %s port %u, is gone", name, r->host,
                            r->place.port));
}

/* A send error is ignored here: the wait for the answer reports it. */
static void
send_frame (weft_rendezvous *r, const struct weft_frame *f)
{
  weft_link_put (&r->link, f, NULL);
  weft_link_send (&r->link);
}

static struct weft_frame
frame_of (enum weft_frame_kind kind, const char *key, GBytes *value)
{
  gsize n = 0;
  const void *data = value ? g_bytes_get_data (value, &n) : NULL;

  return (struct weft_frame){ .kind = kind,
                              .key = key,
                              .key_bytes = (uint32_t) strlen (key),
                              .value = data,
                              .value_bytes = (uint32_t) n };
}

/* ------------------------------------------------------------------- receiving */

/* Parses the next frame of the input. FALSE: the input has no complete frame. */
static gboolean
next_frame (weft_rendezvous *r, struct weft_frame *f)
{
  int found = weft_link_next (&r->link, WEFT_FRAME_MOST_BYTES, f);

  if (found < 0)
    stop (r, g_strdup_printf ("%s port %u: found another service, wanted the rendezvous of a job",
                              r->host, r->place.port));
  return found > 0;
}

/* Sends the status of this process while one of its threads waits in the rendezvous. */
static void
send_own_status (weft_rendezvous *r)
{
  g_autofree char *words = g_strdup_printf ("waits for all processes at %s", r->waiting_key);
  const struct weft_frame f = { .kind = WEFT_FRAME_STATUS,
                                .value = words,
                                .value_bytes = (uint32_t) strlen (words) };

  send_frame (r, &f);
}

/* Handles a frame that the store sends without a request. FALSE: the frame answers a request. */
static gboolean
handle_notice (weft_rendezvous *r, const struct weft_frame *f)
{
  if (f->kind == WEFT_FRAME_ASK_STATUS && r->waiting_key)
    send_own_status (r);
  r->status_wanted |= f->kind == WEFT_FRAME_ASK_STATUS && !r->waiting_key;
  if (f->kind == WEFT_FRAME_STOP || f->kind == WEFT_FRAME_REFUSED)
    stop (r, weft_wire_text (f->value, f->value_bytes));
  return f->kind == WEFT_FRAME_ASK_STATUS || f->kind == WEFT_FRAME_STOP ||
         f->kind == WEFT_FRAME_REFUSED;
}

/* Waits for input and reads it. FALSE: the time limit has passed or the connection is lost. The
 * store may close the connection of a process that is not admitted yet, to make room for others;
 * be_admitted() then connects again. */
static gboolean
read_some (weft_rendezvous *r, gint64 until)
{
  gint64 left = until == G_MAXINT64 ? -1 : MAX (until - g_get_monotonic_time (), 0);

  if (!g_socket_condition_timed_wait (r->link.socket, G_IO_IN, left, NULL, NULL))
    return FALSE;
  r->lost = !weft_link_receive (&r->link);
  if (r->lost && r->admitted)
    lost_store (r);
  return !r->lost;
}

static uint32_t
bit (enum weft_frame_kind kind)
{
  return 1u << kind;
}

/* Waits for an answer. `kinds` is a bit mask of the kinds of frames that are accepted. FALSE: the
 * time limit has passed, the connection is lost or the job has failed. */
static gboolean
await (weft_rendezvous *r, uint32_t kinds, gint64 until, struct weft_frame *f)
{
  for (;;) {
    while (!r->stopped && next_frame (r, f))
      if (!handle_notice (r, f) && (kinds & bit (f->kind)))
        return TRUE;
    if (r->stopped || r->lost || !read_some (r, until))
      return FALSE;
  }
}

/* ------------------------------------------------------------------ requests */

/* Sends a request that the store answers with text. The caller frees the text. NULL: no answer
 * within `seconds`, or the job has failed. */
static char *
request (weft_rendezvous *r, const struct weft_frame *question, double seconds)
{
  struct weft_frame f;

  send_frame (r, question);
  return await (r, bit (WEFT_FRAME_ANSWER), after (seconds), &f)
             ? weft_wire_text (f.value, f.value_bytes)
             : NULL;
}

/* Sets an error that names the processes that did not call an exchange in time. Returns FALSE. */
static gboolean
fail_missing (weft_rendezvous *r, const char *key, double seconds, GError **error)
{
  const struct weft_frame missing = frame_of (WEFT_FRAME_MISSING, key, NULL);
  g_autofree char *missing_ranks = request (r, &missing, GRACE_SECONDS);

  if (is_stopped (r, error))
    return FALSE;
  return weft_run_error (error, "%s: missing after %g s: %s", key, seconds,
                         missing_ranks && *missing_ranks ? missing_ranks
                                                         : "unknown, rank 0 does not answer");
}

/* Checks that a value is small enough for a frame. */
static gboolean
check_value (const struct weft_frame *f, GBytes *value, GError **error)
{
  gsize n = value ? g_bytes_get_size (value) : 0;

  return n <= WEFT_FRAME_MOST_VALUE ||
         weft_run_error (error, "%.*s: found %" G_GSIZE_FORMAT " bytes, wanted at most %u bytes",
                         (int) f->key_bytes, f->key, n, WEFT_FRAME_MOST_VALUE);
}

gboolean
weft_rendezvous_set (weft_rendezvous *r, const char *key, GBytes *value, GError **error)
{
  const struct weft_frame f = frame_of (WEFT_FRAME_SET, key, value);

  if (!check_value (&f, value, error))
    return FALSE;
  pthread_mutex_lock (&r->lock);
  gboolean stopped = is_stopped (r, error);
  if (!stopped)
    send_frame (r, &f);
  pthread_mutex_unlock (&r->lock);
  return !stopped;
}

static GBytes *
get (weft_rendezvous *r, const char *key, GError **error)
{
  const struct weft_frame question = frame_of (WEFT_FRAME_GET, key, NULL);
  struct weft_frame f;

  if (is_stopped (r, error))
    return NULL;
  send_frame (r, &question);
  r->waiting_key = key;
  gboolean found = await (r, bit (WEFT_FRAME_VALUE), after (r->place.seconds), &f);
  r->waiting_key = NULL;
  if (found)
    return g_bytes_new (f.value, f.value_bytes);
  if (!is_stopped (r, error))
    weft_run_error (error, "%s: no process has set it within %g s", key, r->place.seconds);
  return NULL;
}

GBytes *
weft_rendezvous_get (weft_rendezvous *r, const char *key, GError **error)
{
  pthread_mutex_lock (&r->lock);
  GBytes *value = get (r, key, error);
  pthread_mutex_unlock (&r->lock);
  return value;
}

static GPtrArray *
exchange (weft_rendezvous *r, const struct weft_frame *mine, double seconds, GError **error)
{
  struct weft_frame f;

  if (is_stopped (r, error))
    return NULL;
  send_frame (r, mine);
  r->waiting_key = mine->key;
  gboolean exchanged = await (r, bit (WEFT_FRAME_EXCHANGED), after (seconds), &f);
  r->waiting_key = NULL;
  if (!exchanged) {
    if (!is_stopped (r, error))
      fail_missing (r, mine->key, seconds, error);
    return NULL;
  }
  GPtrArray *all = weft_pack_parse (f.value, f.value_bytes, r->place.n);
  if (!all)
    weft_run_error (error, "%s: found a malformed answer, wanted the values of %u processes",
                    mine->key, r->place.n);
  return all;
}

GPtrArray *
weft_rendezvous_all_gather (weft_rendezvous *r, const char *key, GBytes *value, double seconds,
                            GError **error)
{
  const struct weft_frame mine = frame_of (WEFT_FRAME_EXCHANGE, key, value);

  if (!check_value (&mine, value, error))
    return NULL;
  pthread_mutex_lock (&r->lock);
  GPtrArray *all = exchange (r, &mine, seconds, error);
  pthread_mutex_unlock (&r->lock);
  return all;
}

GPtrArray *
weft_rendezvous_gather (weft_rendezvous *r, const char *key, GBytes *value, double seconds,
                        GError **error)
{
  struct weft_frame mine = frame_of (WEFT_FRAME_EXCHANGE, key, value);

  if (!check_value (&mine, value, error))
    return NULL;
  mine.number = WEFT_RECEIVERS_FIRST;
  pthread_mutex_lock (&r->lock);
  GPtrArray *all = exchange (r, &mine, seconds, error);
  pthread_mutex_unlock (&r->lock);
  return all;
}

gboolean
weft_rendezvous_barrier (weft_rendezvous *r, const char *key, double seconds, GError **error)
{
  g_autoptr (GPtrArray) all = weft_rendezvous_all_gather (r, key, NULL, seconds, error);
  return all != NULL;
}

/* -------------------------------------------------------------------- polling */

gboolean
weft_rendezvous_poll (weft_rendezvous *r, gboolean *status_wanted, GError **error)
{
  struct weft_frame f;

  *status_wanted = FALSE;
  if (pthread_mutex_trylock (&r->lock))
    return TRUE; /* another thread of this process polls or waits */
  for (gboolean found = TRUE; found && !r->stopped;)
    if ((found = next_frame (r, &f)))
      handle_notice (r, &f);
    else
      found = read_some (r, 0);
  gboolean stopped = is_stopped (r, error);
  *status_wanted = r->status_wanted;
  r->status_wanted = FALSE;
  pthread_mutex_unlock (&r->lock);
  return !stopped;
}

void
weft_rendezvous_set_status (weft_rendezvous *r, const char *words)
{
  g_autoptr (GBytes) value = g_bytes_new (words, strlen (words));
  const struct weft_frame f = frame_of (WEFT_FRAME_STATUS, "", value);

  pthread_mutex_lock (&r->lock);
  send_frame (r, &f);
  pthread_mutex_unlock (&r->lock);
}

char *
weft_rendezvous_ask_status (weft_rendezvous *r, const char *words, double seconds)
{
  g_autoptr (GBytes) value = g_bytes_new (words, strlen (words));
  struct weft_frame f = frame_of (WEFT_FRAME_REPORT, "", value);

  f.number = (uint32_t) (1e3 * seconds);
  pthread_mutex_lock (&r->lock);
  char *text = request (r, &f, seconds + GRACE_SECONDS);
  if (!text)
    text = g_strdup (r->stopped ? r->stopped : "no answer from rank 0");
  pthread_mutex_unlock (&r->lock);
  return text;
}

void
weft_rendezvous_abort (weft_rendezvous *r, const char *why)
{
  g_autoptr (GBytes) value = g_bytes_new (why, strlen (why));
  const struct weft_frame f = frame_of (WEFT_FRAME_ABORT, "", value);

  pthread_mutex_lock (&r->lock);
  send_frame (r, &f);
  r->failed = TRUE;
  pthread_mutex_unlock (&r->lock);
}

/* ---------------------------------------------------------------- connecting */

/* Tries once to connect. GLib resolves host names in threads that stay alive afterwards; they must
 * block signals. */
static GSocketConnection *
connect_once (const weft_rendezvous *r, GError **error)
{
  g_autoptr (GSocketClient) client = g_socket_client_new ();
  g_autoptr (GSocketAddress) own = r->store ? weft_store_own_address (r->store) : NULL;
  sigset_t before;

  g_socket_client_set_timeout (client, 5);
  g_socket_client_set_enable_proxy (client, FALSE);
  weft_signals_block (&before);
  GSocketConnection *connection =
      own ? g_socket_client_connect (client, G_SOCKET_CONNECTABLE (own), NULL, error)
          : g_socket_client_connect_to_host (client, r->host, r->place.port, NULL, error);
  weft_signals_restore (&before);
  return connection;
}

/* Tries to connect until the time `until`: rank 0 may start later than the other processes. */
static gboolean
connect_all (weft_rendezvous *r, gint64 until, GError **error)
{
  g_autoptr (GError) why = NULL;

  g_clear_object (&r->connection);
  while (!(r->connection = connect_once (r, &why)) && g_get_monotonic_time () < until) {
    g_clear_error (&why);
    g_usleep (RETRY_MICROSECONDS);
  }
  if (!r->connection) {
    g_autofree char *name = weft_store_name (r->place.ranks_each, 0);
    return weft_run_error (error, "%s is missing after %g s: no answer at %s port %u: %s", name,
                           r->place.seconds, r->host, r->place.port,
                           why ? why->message : "time limit reached");
  }
  weft_link_clear (&r->link);
  weft_link_init (&r->link, g_object_ref (g_socket_connection_get_socket (r->connection)));
  g_socket_set_timeout (r->link.socket, 0);
  r->lost = FALSE;
  return TRUE;
}

/* ------------------------------------------------------------------ handshake */

/* Sends the hello, the first frame of the connection, and returns the bytes of this frame. The
 * caller unrefs them. */
static GByteArray *
send_hello (weft_rendezvous *r)
{
  GByteArray *bytes = g_byte_array_new ();
  struct weft_hello hello = { .n = r->place.n };

  weft_seal_random (hello.nonce, sizeof hello.nonce);
  g_strlcpy (hello.host, g_get_host_name (), sizeof hello.host);
  g_autoptr (GBytes) value = weft_hello_pack (&hello);
  struct weft_frame f = frame_of (WEFT_FRAME_HELLO, r->token, value);
  f.number = r->place.process;
  weft_frame_put (bytes, &f);
  send_frame (r, &f);
  return bytes;
}

/* Reads the secret from its file, unless it has been read. FALSE: no secret could be read; then the
 * job has failed in this process. */
static gboolean
need_secret (weft_rendezvous *r)
{
  g_autoptr (GError) error = NULL;

  if (!r->secret && r->secret_file)
    r->secret = weft_secret_read (r->secret_file, FALSE, &error);
  if (!r->secret)
    stop (r, g_strdup (error ? error->message
                             : "rank 0 has a secret, and this process has none: set WEFT_SECRET to "
                               "the same secret in all processes"));
  return r->secret != NULL;
}

/* Answers the challenge of the store with a proof, and checks the proof of the store. */
static gboolean
exchange_proofs (weft_rendezvous *r, const GByteArray *transcript, gint64 until)
{
  uint8_t proof[WEFT_SEAL_NONCE];
  struct weft_frame f = { .kind = WEFT_FRAME_PROOF, .value = proof, .value_bytes = sizeof proof };

  if (!need_secret (r))
    return FALSE;
  weft_seal_prove (r->secret, transcript, WEFT_SEAL_CLIENT, proof);
  send_frame (r, &f);
  if (!await (r, bit (WEFT_FRAME_ADMITTED), until, &f))
    return FALSE;
  if (!weft_seal_is_proof (r->secret, transcript, WEFT_SEAL_STORE, f.value, f.value_bytes))
    stop (r, g_strdup_printf ("%s port %u: found a service that does not know the secret, wanted "
                              "the rendezvous of the job",
                              r->host, r->place.port));
  else if (!weft_link_set_seal (&r->link, weft_seal_new (r->secret, transcript, WEFT_SEAL_CLIENT)))
    lost_store (r);
  return !r->stopped;
}

/* Joins the job over a new connection. FALSE: the job has failed, or the store has closed the
 * connection. */
static gboolean
shake_hands (weft_rendezvous *r, gint64 until)
{
  g_autoptr (GByteArray) transcript = send_hello (r);
  struct weft_frame f;

  if (!await (r, bit (WEFT_FRAME_CHALLENGE) | bit (WEFT_FRAME_ADMITTED), until, &f))
    return FALSE;
  if (f.kind == WEFT_FRAME_CHALLENGE) {
    weft_frame_put (transcript, &f);
    r->admitted = exchange_proofs (r, transcript, until);
  } else if (r->secret || r->secret_file)
    stop (r, g_strdup_printf ("%s port %u: found a rendezvous without a secret, wanted the secret "
                              "of this process (%s)",
                              r->host, r->place.port,
                              r->place.secret ? "WEFT_SECRET" : r->secret_file));
  else if (!weft_owner_is_this_user (r->link.socket))
    stop (r, g_strdup_printf ("%s port %u: found a rendezvous of another user, wanted that of the "
                              "job",
                              r->host, r->place.port));
  else
    r->admitted = TRUE;
  return r->admitted;
}

/* Connects and shakes hands until the store admits this process. The store closes connections that
 * are not admitted if too many strangers are connected. */
static gboolean
be_admitted (weft_rendezvous *r, gint64 until, GError **error)
{
  while (connect_all (r, until, error)) {
    if (shake_hands (r, until))
      return TRUE;
    if (is_stopped (r, error))
      return FALSE;
    if (g_get_monotonic_time () >= until)
      return weft_run_error (error, "%s port %u: connected, but no answer within %g s", r->host,
                             r->place.port, r->place.seconds);
    g_usleep (RETRY_MICROSECONDS);
  }
  return FALSE;
}

/* -------------------------------------------------------------------- opening */

/* Checks that the job has a secret, or needs no secret. Process 0 creates the file of the secret;
 * the others read it later, because it may not exist yet. */
static gboolean
prepare_secret (weft_rendezvous *r, GError **error)
{
  if (r->secret)
    return weft_secret_check (r->secret, "WEFT_SECRET", error);
  if (!r->secret_file)
    return weft_host_is_loopback (r->host) ||
           weft_bad_input (error,
                           "%s: found no secret of the rendezvous, wanted one for an address that "
                           "other machines reach: set WEFT_SECRET to the same secret in all "
                           "processes",
                           r->host);
  if (r->place.process == 0)
    r->secret = weft_secret_read (r->secret_file, TRUE, error);
  return r->place.process > 0 || r->secret;
}

static gboolean
open_store (weft_rendezvous *r, GError **error)
{
  const struct weft_store_options options = { .token = r->token,
                                              .secret = r->secret,
                                              .host = r->host,
                                              .n = r->place.n,
                                              .ranks_each = r->place.ranks_each,
                                              .seconds = r->place.seconds };

  if (r->place.process != 0)
    return TRUE;
  if (!(r->store = weft_store_open (r->place.port, &options, error)))
    return FALSE;
  r->place.port = weft_store_port (r->store);
  return TRUE;
}

/* Opens the store in process 0, joins the job and waits for the welcome. The wait is longer than
 * the store's time limit, so that the store can report which ranks are missing. */
static gboolean
join (weft_rendezvous *r, GError **error)
{
  struct weft_frame f;

  if (!prepare_secret (r, error) || !open_store (r, error) ||
      !be_admitted (r, after (r->place.seconds), error))
    return FALSE;
  if (await (r, bit (WEFT_FRAME_WELCOME), after (r->place.seconds + GRACE_SECONDS), &f))
    return TRUE;
  return is_stopped (r, error)
             ? FALSE
             : weft_run_error (error, "%s port %u: admitted, but no welcome within %g s", r->host,
                               r->place.port, r->place.seconds);
}

static void
rendezvous_free (weft_rendezvous *r, double seconds)
{
  weft_link_clear (&r->link);
  g_clear_object (&r->connection);
  weft_store_close (r->store, seconds);
  pthread_mutex_destroy (&r->lock);
  g_free (r->host);
  g_free (r->token);
  g_free (r->secret);
  g_free (r->secret_file);
  g_free (r->stopped);
  g_free (r);
}

weft_rendezvous *
weft_rendezvous_open (const struct weft_rendezvous_place *place, GError **error)
{
  weft_rendezvous *r = g_new0 (weft_rendezvous, 1);

  r->place = *place;
  r->place.host = r->host = g_strdup (place->host);
  r->place.token = r->token = g_strndup (place->token, WEFT_FRAME_MOST_KEY);
  r->place.secret = r->secret = g_strdup (place->secret);
  r->place.secret_file = r->secret_file = g_strdup (place->secret_file);
  pthread_mutex_init (&r->lock, NULL);
  if (join (r, error))
    return r;
  rendezvous_free (r, FAREWELL_SECONDS);
  return NULL;
}

weft_rendezvous *
weft_rendezvous_open_launch (const struct weft_launch *launch, uint32_t ranks_each, double seconds,
                             GError **error)
{
  const struct weft_rendezvous_place place = { .host = launch->host,
                                               .port = launch->port,
                                               .token = launch->token,
                                               .secret = launch->secret,
                                               .secret_file = launch->secret_file,
                                               .n = launch->n,
                                               .process = launch->rank,
                                               .local = launch->local_rank,
                                               .ranks_each = ranks_each,
                                               .seconds = seconds };

  return weft_rendezvous_open (&place, error);
}

gboolean
weft_rendezvous_is_everywhere (const weft_rendezvous *r)
{
  return r->store && weft_store_is_everywhere (r->store);
}

void
weft_rendezvous_close (weft_rendezvous *r)
{
  const struct weft_frame bye = frame_of (WEFT_FRAME_BYE, "", NULL);

  if (!r)
    return;
  if (!r->stopped && !r->failed)
    send_frame (r, &bye);
  rendezvous_free (r, FAREWELL_SECONDS);
}
