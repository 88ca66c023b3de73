#define _GNU_SOURCE /* pthread_tryjoin_np */
#include "launch/store.h"
#include "core/base/error.h"
#include "launch/signals.h"
#include "launch/wire.h"
#include <gio/gio.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>

#define POLL_MS 20             /* time between two checks of deadlines */
#define HELLO_SECONDS 10       /* time limit for the first frame of a connection */
#define MOST_UNKNOWN_PEERS 64u /* connections accepted beyond the number of processes */
#define MOST_TEXT 65536u
#define FRESH_SECONDS 10 /* a status older than this is not reported */
#define NOBODY 0xffffffffu

/* A connection. */
struct peer {
  GSocket *socket;
  GByteArray *in, *out;
  uint32_t process;      /* NOBODY before the hello of the connection */
  gboolean closing_peer; /* close the connection when `out` has been sent */
  gint64 since;
  char *waiting_key; /* key of the value that the client waits for */
};

/* State of one process of the job. */
struct member {
  struct peer *peer; /* not owned; NULL before the hello and after the connection is lost */
  char *host, *last, *status; /* last: key of the last exchange that the process called */
  gint64 heard, status_at;    /* time of the last frame; of the last status */
  gint64 report_until;     /* deadline of its request for a report; 0: none */
  gboolean joined, left;
};

struct exchange {
  char *key;
  GBytes **value; /* by process */
  uint8_t *joined;
  uint32_t n_joined, n;
};

struct weft_store {
  struct weft_store_options options;
  char *token;
  GSocket *listening;
  uint16_t port;
  pthread_t thread;
  gint closing; /* atomic */

  GPtrArray *peers;
  struct member *member;
  uint32_t n_joined;
  GHashTable *values, *exchanges;
  gint64 opened;
  char *stopped; /* why the job has failed */
};

char *
weft_store_name (uint32_t ranks_each, uint32_t process)
{
  return ranks_each == 1 ? g_strdup_printf ("rank %u", process)
                         : g_strdup_printf ("ranks %u to %u", process * ranks_each,
                                            process * ranks_each + ranks_each - 1);
}

static char *
name_of (const weft_store *s, uint32_t process)
{
  return weft_store_name (s->options.ranks_each, process);
}

/* ------------------------------------------------------------------------- sending */

static void
put (struct peer *p, enum weft_frame_kind kind, GBytes *key, GBytes *value)
{
  struct weft_frame f = { .kind = kind };
  gsize n = 0;

  if (key) {
    f.key = g_bytes_get_data (key, &n);
    f.key_bytes = (uint32_t) n;
  }
  if (value) {
    f.value = g_bytes_get_data (value, &n);
    f.value_bytes = (uint32_t) n;
  }
  weft_frame_put (p->out, &f);
}

static void
send_text (struct peer *p, enum weft_frame_kind kind, const char *text)
{
  g_autoptr (GBytes) value = text ? g_bytes_new (text, strlen (text)) : NULL;
  put (p, kind, NULL, value);
}

static void
refuse (struct peer *p, const char *text)
{
  send_text (p, WEFT_FRAME_REFUSED, text);
  p->closing_peer = TRUE;
}

/* Ends the job: sends the reason to every client, now or when it connects. */
static void stop (weft_store *s, const char *format, ...) G_GNUC_PRINTF (2, 3);

static void
stop (weft_store *s, const char *format, ...)
{
  va_list args;

  if (s->stopped)
    return;
  va_start (args, format);
  s->stopped = g_strdup_vprintf (format, args);
  va_end (args);
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].peer)
      send_text (s->member[i].peer, WEFT_FRAME_STOP, s->stopped);
}

static const char *
host_of (const struct member *m)
{
  return m->host && *m->host ? m->host : "an unnamed host";
}

/* Appends "rank 2 on b (last seen at step 17, 3 s ago)". */
static void
append_member (const weft_store *s, GString *text, uint32_t process)
{
  const struct member *m = &s->member[process];
  g_autofree char *name = name_of (s, process);

  g_string_append_printf (text, "%s%s", text->len ? ", " : "", name);
  if (!m->joined)
    return;
  g_string_append_printf (text, " on %s", host_of (m));
  if (m->left)
    g_string_append (text, " (signed off)");
  else if (m->last)
    g_string_append_printf (text, " (last seen at %s, %.0f s ago)", m->last,
                            1e-6 * (double) (g_get_monotonic_time () - m->heard));
}

/* ----------------------------------------------------------------------- exchanges */

static void
exchange_free (gpointer data)
{
  struct exchange *m = data;

  for (uint32_t i = 0; i < m->n; i++)
    g_clear_pointer (&m->value[i], g_bytes_unref);
  g_free (m->value);
  g_free (m->joined);
  g_free (m->key);
  g_free (m);
}

static struct exchange *
find_exchange (weft_store *s, const char *key)
{
  struct exchange *m = g_hash_table_lookup (s->exchanges, key);

  if (m)
    return m;
  m = g_new0 (struct exchange, 1);
  m->key = g_strdup (key);
  m->n = s->options.n;
  m->value = g_new0 (GBytes *, m->n);
  m->joined = g_new0 (uint8_t, m->n);
  g_hash_table_insert (s->exchanges, m->key, m);
  return m;
}

/* Completes an exchange that every process has called: sends the values to all processes or to
 * process 0 only. */
static void
finish_exchange (weft_store *s, struct exchange *m, enum weft_receivers receivers)
{
  GByteArray *pack = g_byte_array_new ();
  g_autoptr (GBytes) key = g_bytes_new (m->key, strlen (m->key)), none = g_bytes_new (NULL, 0);

  for (uint32_t i = 0; i < m->n; i++)
    if (m->value[i])
      weft_pack_add (pack, i, m->value[i]);
  g_autoptr (GBytes) value = g_byte_array_free_to_bytes (pack);
  if (g_bytes_get_size (value) > WEFT_FRAME_MOST_BYTES / 2)
    stop (s, "%s: found %" G_GSIZE_FORMAT " bytes of all processes, wanted at most %u", m->key,
          g_bytes_get_size (value), WEFT_FRAME_MOST_BYTES / 2);
  for (uint32_t i = 0; i < m->n && !s->stopped; i++)
    if (s->member[i].peer)
      put (s->member[i].peer, WEFT_FRAME_EXCHANGED, key,
           receivers == WEFT_RECEIVERS_FIRST && i > 0 ? none : value);
  g_hash_table_remove (s->exchanges, m->key);
}

/* Ends the job if a process has signed off while other processes wait in an exchange. */
static void
check_leavers (weft_store *s)
{
  if (g_hash_table_size (s->exchanges) == 0)
    return;
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].left) {
      g_autofree char *name = name_of (s, i);
      stop (s, "%s on %s has ended while other processes wait for it", name,
            host_of (&s->member[i]));
    }
}

/* -------------------------------------------------------------------------- frames */

/* A frame of a client that has sent its hello. The key is zero-terminated. */
struct request {
  struct peer *peer;
  struct member *from;
  const struct weft_frame *f;
  const char *key;
};

static void
on_set (weft_store *s, const struct request *request)
{
  GBytes *value = g_bytes_new (request->f->value, request->f->value_bytes);

  g_hash_table_insert (s->values, g_strdup (request->key), value);
  for (uint32_t i = 0; i < s->peers->len; i++) {
    struct peer *p = s->peers->pdata[i];
    if (g_strcmp0 (p->waiting_key, request->key) == 0) {
      put (p, WEFT_FRAME_VALUE, NULL, value);
      g_clear_pointer (&p->waiting_key, g_free);
    }
  }
}

static void
on_get (weft_store *s, const struct request *request)
{
  GBytes *value = g_hash_table_lookup (s->values, request->key);

  g_clear_pointer (&request->peer->waiting_key, g_free);
  if (value)
    put (request->peer, WEFT_FRAME_VALUE, NULL, value);
  else
    request->peer->waiting_key = g_strdup (request->key);
}

static void
on_exchange (weft_store *s, const struct request *request)
{
  struct exchange *m = find_exchange (s, request->key);
  uint32_t process = request->peer->process;

  if (m->joined[process])
    return;
  m->joined[process] = TRUE;
  if (request->f->value_bytes)
    m->value[process] = g_bytes_new (request->f->value, request->f->value_bytes);
  if (++m->n_joined == m->n)
    finish_exchange (s, m, request->f->number);
  check_leavers (s);
}

static void
on_missing (weft_store *s, const struct request *request)
{
  const struct exchange *m = g_hash_table_lookup (s->exchanges, request->key);
  g_autoptr (GString) text = g_string_new (NULL);

  for (uint32_t i = 0; m && i < m->n; i++)
    if (!m->joined[i])
      append_member (s, text, i);
  send_text (request->peer, WEFT_FRAME_ANSWER, text->str);
}

/* The text value of a frame, without control characters. The caller frees it. */
static char *
text_of (const struct weft_frame *f)
{
  char *text = g_strndup (f->value, MIN (f->value_bytes, MOST_TEXT));

  for (char *c = text; *c; c++)
    if (g_ascii_iscntrl (*c))
      *c = ' ';
  return text;
}

static void
on_status (weft_store *s, const struct request *request)
{
  (void) s;
  g_free (request->from->status);
  request->from->status = text_of (request->f);
  request->from->status_at = g_get_monotonic_time ();
}

/* Whether a process has sent a status that is recent enough for a report. */
static gboolean
has_status (const struct member *m)
{
  return m->status && g_get_monotonic_time () - m->status_at < FRESH_SECONDS * G_USEC_PER_SEC;
}

/* Asks every process for a status. The report is sent when all processes have answered, or at the
 * deadline. */
static void
on_report (weft_store *s, const struct request *request)
{
  uint32_t ms = MIN (request->f->number, 60000);

  on_status (s, request);
  request->from->report_until = g_get_monotonic_time () + 1000 * (gint64) ms;
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].peer && !has_status (&s->member[i]))
      send_text (s->member[i].peer, WEFT_FRAME_ASK_STATUS, NULL);
}

static void
on_abort (weft_store *s, const struct request *request)
{
  g_autofree char *name = name_of (s, request->peer->process);
  g_autofree char *why = text_of (request->f);

  request->from->left = TRUE;
  stop (s, "%s on %s has failed: %s", name, host_of (request->from), why);
}

static void
on_bye (weft_store *s, const struct request *request)
{
  request->from->left = TRUE;
  check_leavers (s);
}

/* Kinds of frames that a process may send after its hello, and their handlers. */
#define HANDLER_LIST(X)                                                                            \
  X (WEFT_FRAME_SET, on_set)                                                                       \
  X (WEFT_FRAME_GET, on_get)                                                                       \
  X (WEFT_FRAME_EXCHANGE, on_exchange)                                                             \
  X (WEFT_FRAME_MISSING, on_missing)                                                               \
  X (WEFT_FRAME_STATUS, on_status)                                                                 \
  X (WEFT_FRAME_REPORT, on_report)                                                                 \
  X (WEFT_FRAME_ABORT, on_abort)                                                                   \
  X (WEFT_FRAME_BYE, on_bye)

typedef void (*handler) (weft_store *s, const struct request *request);
static const handler handlers[WEFT_N_FRAME] = {
#define HANDLER_ROW(kind, function) [kind] = function,
  HANDLER_LIST (HANDLER_ROW)
#undef HANDLER_ROW
};

/* --------------------------------------------------------------------------- hello */

/* The reason why a hello is refused, or NULL if the hello is valid. The caller frees the string. */
static char *
check_hello (weft_store *s, const struct weft_frame *f, const char *key, uint32_t n)
{
  g_autofree char *name = name_of (s, f->number);

  if (strcmp (key, s->token) != 0)
    return g_strdup_printf (
        "found the rendezvous of another job at this port, wanted that of job \"%s\"", key);
  if (n != s->options.n)
    return g_strdup_printf ("%s: found a world size of %u, wanted %u as in rank 0", name, n,
                            s->options.n);
  if (f->number >= n)
    return g_strdup_printf ("found process number %u, wanted 0 to %u", f->number, n - 1);
  if (s->member[f->number].joined)
    return g_strdup_printf ("%s: found a second process with this rank, the first is on %s", name,
                            host_of (&s->member[f->number]));
  return NULL;
}

static void
welcome_all (weft_store *s)
{
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].peer)
      send_text (s->member[i].peer, WEFT_FRAME_WELCOME, NULL);
}

/* Handles the first frame of a connection. FALSE: the frame is not a hello, so the peer is not a
 * process of Weft. */
static gboolean
admit (weft_store *s, struct peer *p, const struct weft_frame *f, const char *key)
{
  const uint8_t *value = f->value;

  if (f->kind != WEFT_FRAME_HELLO || f->value_bytes < 4)
    return FALSE;
  uint32_t n =
      value[0] | (uint32_t) value[1] << 8 | (uint32_t) value[2] << 16 | (uint32_t) value[3] << 24;
  g_autofree char *wrong = check_hello (s, f, key, n);
  if (wrong || s->stopped) {
    refuse (p, wrong ? wrong : s->stopped);
    return TRUE;
  }
  struct member *m = &s->member[f->number];
  p->process = f->number;
  m->peer = p;
  m->joined = TRUE;
  m->heard = g_get_monotonic_time ();
  m->host = g_strndup ((const char *) value + 4, MIN (f->value_bytes - 4, 255));
  g_strcanon (m->host, G_CSET_A_2_Z G_CSET_a_2_z G_CSET_DIGITS "-_.", '?');
  if (++s->n_joined == s->options.n)
    welcome_all (s);
  return TRUE;
}

/* Handles a frame. FALSE: the connection must be closed. */
static gboolean
handle (weft_store *s, struct peer *p, const struct weft_frame *f)
{
  g_autofree char *key = g_strndup (f->key, f->key_bytes);

  if (p->process == NOBODY)
    return admit (s, p, f, key);
  struct request request = { p, &s->member[p->process], f, key };
  if (!handlers[f->kind] || (s->n_joined < s->options.n && f->kind != WEFT_FRAME_ABORT))
    return FALSE;
  request.from->heard = g_get_monotonic_time ();
  if (f->kind == WEFT_FRAME_EXCHANGE) {
    g_free (request.from->last);
    request.from->last = g_strdup (key);
  }
  handlers[f->kind](s, &request);
  return TRUE;
}

/* --------------------------------------------------------------------- connections */

static void
peer_free (gpointer data)
{
  struct peer *p = data;

  g_socket_close (p->socket, NULL);
  g_object_unref (p->socket);
  g_byte_array_unref (p->in);
  g_byte_array_unref (p->out);
  g_free (p->waiting_key);
  g_free (p);
}

static void
accept_one (weft_store *s)
{
  GSocket *socket = g_socket_accept (s->listening, NULL, NULL);

  if (!socket)
    return;
  g_socket_set_blocking (socket, FALSE);
  weft_wire_set_keepalive (g_socket_get_fd (socket));
  struct peer *p = g_new0 (struct peer, 1);
  p->socket = socket;
  p->in = g_byte_array_new ();
  p->out = g_byte_array_new ();
  p->process = NOBODY;
  p->since = g_get_monotonic_time ();
  g_ptr_array_add (s->peers, p);
  if (s->peers->len > s->options.n + MOST_UNKNOWN_PEERS)
    refuse (p, "too many connections");
}

/* Handles all complete frames of the input. FALSE: the input is malformed. */
static gboolean
handle_all (weft_store *s, struct peer *p)
{
  struct weft_frame f;
  gsize at = 0;

  while (!p->closing_peer) {
    uint32_t most = p->process == NOBODY ? WEFT_FRAME_FIRST_BYTES : WEFT_FRAME_MOST_BYTES;
    gint64 n = weft_frame_parse (p->in->data + at, p->in->len - at, most, &f);
    if (n < 0 || (n > 0 && !handle (s, p, &f)))
      return FALSE;
    if (n == 0)
      break;
    at += (gsize) n;
  }
  g_byte_array_remove_range (p->in, 0, (guint) at);
  return TRUE;
}

/* Reads input and handles it. FALSE: the connection has ended or its input is malformed. */
static gboolean
receive (weft_store *s, struct peer *p)
{
  g_autoptr (GError) error = NULL;
  char block[65536];
  gssize n = g_socket_receive (p->socket, block, sizeof block, NULL, &error);

  if (n > 0) {
    g_byte_array_append (p->in, (uint8_t *) block, (guint) n);
    return handle_all (s, p);
  }
  return g_error_matches (error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK);
}

static gboolean
send_some (struct peer *p)
{
  g_autoptr (GError) error = NULL;

  while (p->out->len > 0) {
    gssize n = g_socket_send (p->socket, (char *) p->out->data, p->out->len, NULL, &error);
    if (n <= 0)
      return g_error_matches (error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK);
    g_byte_array_remove_range (p->out, 0, (guint) n);
  }
  return TRUE;
}

/* Closes a connection. A process that has not signed off counts as dead, which ends the job. */
static void
drop_peer (weft_store *s, struct peer *p)
{
  if (p->process != NOBODY) {
    struct member *m = &s->member[p->process];
    g_autofree char *name = name_of (s, p->process);
    m->peer = NULL;
    if (!m->left)
      stop (s, "%s on %s is gone: its process has ended or its connection is lost%s%s", name,
            host_of (m), m->last ? "; last seen at " : "", m->last ? m->last : "");
    m->left = TRUE;
  }
  g_ptr_array_remove_fast (s->peers, p);
}

/* ----------------------------------------------------------------------- event loop */

/* Ends the job if the time limit for connecting has passed. */
static void
check_late (weft_store *s, gint64 now)
{
  g_autoptr (GString) text = g_string_new (NULL);

  if (s->n_joined == s->options.n || s->stopped ||
      (double) (now - s->opened) < 1e6 * s->options.seconds)
    return;
  for (uint32_t i = 0; i < s->options.n; i++)
    if (!s->member[i].joined)
      append_member (s, text, i);
  stop (s, "%u of %u processes connected within %g s; missing: %s", s->n_joined, s->options.n,
        s->options.seconds, text->str);
}

static gboolean
have_all_statuses (const weft_store *s)
{
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].peer && !has_status (&s->member[i]))
      return FALSE;
  return TRUE;
}

/* Sends a report about all other processes to the process that has requested it. */
static void
send_report (weft_store *s, uint32_t reporter)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (uint32_t i = 0; i < s->options.n; i++) {
    if (i == reporter)
      continue;
    append_member (s, text, i);
    g_string_append_printf (text, ": %s",
                            has_status (&s->member[i]) ? s->member[i].status : "no answer");
  }
  if (s->member[reporter].peer)
    send_text (s->member[reporter].peer, WEFT_FRAME_ANSWER, text->str);
}

static void
finish_reports (weft_store *s, gint64 now)
{
  for (uint32_t i = 0; i < s->options.n; i++) {
    struct member *m = &s->member[i];
    if (m->report_until && (now >= m->report_until || have_all_statuses (s))) {
      send_report (s, i);
      m->report_until = 0;
    }
  }
}

static gboolean
is_unknown_too_long (const struct peer *p, gint64 now)
{
  return p->process == NOBODY && now - p->since > HELLO_SECONDS * G_USEC_PER_SEC;
}

/* Serves the n connections that were polled. Connections accepted later are polled in the next
 * round. */
static void
serve (weft_store *s, const GPollFD *fds, uint32_t n)
{
  g_autoptr (GPtrArray) gone = g_ptr_array_new ();
  gint64 now = g_get_monotonic_time ();

  for (uint32_t i = 0; i < n; i++) {
    struct peer *p = s->peers->pdata[i];
    gboolean lives = !(fds[i].revents & (G_IO_IN | G_IO_HUP | G_IO_ERR)) || receive (s, p);
    if (!lives || is_unknown_too_long (p, now))
      g_ptr_array_add (gone, p);
  }
  check_late (s, now);
  finish_reports (s, now);
  for (uint32_t i = 0; i < s->peers->len; i++) {
    struct peer *p = s->peers->pdata[i];
    if ((!send_some (p) || (p->closing_peer && p->out->len == 0)) &&
        !g_ptr_array_find (gone, p, NULL))
      g_ptr_array_add (gone, p);
  }
  for (uint32_t i = 0; i < gone->len; i++)
    drop_peer (s, gone->pdata[i]);
}

static void
poll_once (weft_store *s)
{
  uint32_t n = s->peers->len;
  g_autofree GPollFD *fds = g_new0 (GPollFD, n + 1);

  for (uint32_t i = 0; i < n; i++) {
    struct peer *p = s->peers->pdata[i];
    fds[i].fd = g_socket_get_fd (p->socket);
    fds[i].events = G_IO_IN | (p->out->len ? G_IO_OUT : 0);
  }
  fds[n].fd = g_socket_get_fd (s->listening);
  fds[n].events = G_IO_IN;
  g_poll (fds, n + 1, POLL_MS);
  serve (s, fds, n);
  if (fds[n].revents & G_IO_IN)
    accept_one (s);
}

/* Whether every client has signed off and nothing remains to be sent. */
static gboolean
can_end (const weft_store *s)
{
  for (uint32_t i = 0; i < s->peers->len; i++) {
    const struct peer *p = s->peers->pdata[i];
    if (p->process != NOBODY && !s->member[p->process].left)
      return FALSE;
    if (p->out->len)
      return FALSE;
  }
  return TRUE;
}

static void *
store_main (void *data)
{
  weft_store *s = data;

  while (g_atomic_int_get (&s->closing) < 2 && !(g_atomic_int_get (&s->closing) && can_end (s)))
    poll_once (s);
  return NULL;
}

/* ------------------------------------------------------------------------ whole */

static GSocket *
listen_on (GSocketFamily family, uint16_t port, GError **error)
{
  g_autoptr (GSocket) socket =
      g_socket_new (family, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, error);
  g_autoptr (GInetAddress) any = g_inet_address_new_any (family);
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new (any, port);

  if (!socket)
    return NULL;
  g_socket_set_listen_backlog (socket, 1024);
  g_socket_set_blocking (socket, FALSE);
  if (family == G_SOCKET_FAMILY_IPV6) /* accept IPv4 for any net.ipv6.bindv6only */
    g_socket_set_option (socket, IPPROTO_IPV6, IPV6_V6ONLY, FALSE, NULL);
  if (!g_socket_bind (socket, address, TRUE, error) || !g_socket_listen (socket, error))
    return NULL;
  return g_steal_pointer (&socket);
}

/* Listens on IPv6 and IPv4, or on IPv4 alone if the machine has no IPv6. A port that is in use on
 * IPv6 is an error: clients would connect to the process that uses it. */
static gboolean
start_listening (weft_store *s, uint16_t port, GError **error)
{
  g_autoptr (GError) why = NULL;

  s->listening = listen_on (G_SOCKET_FAMILY_IPV6, port, &why);
  if (!s->listening && !g_error_matches (why, G_IO_ERROR, G_IO_ERROR_ADDRESS_IN_USE)) {
    g_clear_error (&why);
    s->listening = listen_on (G_SOCKET_FAMILY_IPV4, port, &why);
  }
  if (!s->listening)
    return weft_run_error (error,
                           "port %u of this machine, for the rendezvous of rank 0: %s "
                           "(set MASTER_PORT to use another)",
                           port, why->message);
  g_autoptr (GSocketAddress) at = g_socket_get_local_address (s->listening, NULL);
  s->port = at ? g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (at)) : port;
  return TRUE;
}

static void
store_free (weft_store *s)
{
  for (uint32_t i = 0; i < s->options.n; i++) {
    g_free (s->member[i].host);
    g_free (s->member[i].last);
    g_free (s->member[i].status);
  }
  g_ptr_array_unref (s->peers);
  g_hash_table_unref (s->values);
  g_hash_table_unref (s->exchanges);
  g_clear_object (&s->listening);
  g_free (s->member);
  g_free (s->token);
  g_free (s->stopped);
  g_free (s);
}

static gboolean
start_thread (weft_store *s, GError **error)
{
  sigset_t before;

  weft_signals_block (&before);
  int failed = pthread_create (&s->thread, NULL, store_main, s);
  weft_signals_restore (&before);
  return !failed ||
         weft_run_error (error, "rendezvous: cannot start a thread: %s", g_strerror (failed));
}

weft_store *
weft_store_open (uint16_t port, const struct weft_store_options *options, GError **error)
{
  weft_store *s = g_new0 (weft_store, 1);

  s->options = *options;
  s->token = g_strdup (options->token);
  s->member = g_new0 (struct member, options->n);
  s->peers = g_ptr_array_new_with_free_func (peer_free);
  s->values =
      g_hash_table_new_full (g_str_hash, g_str_equal, g_free, (GDestroyNotify) g_bytes_unref);
  s->exchanges = g_hash_table_new_full (g_str_hash, g_str_equal, NULL, exchange_free);
  s->opened = g_get_monotonic_time ();
  if (start_listening (s, port, error) && start_thread (s, error))
    return s;
  store_free (s);
  return NULL;
}

uint16_t
weft_store_port (const weft_store *s)
{
  return s->port;
}

void
weft_store_close (weft_store *s, double seconds)
{
  gint64 until = g_get_monotonic_time () + (gint64) (1e6 * seconds);
  gboolean ended = FALSE;

  if (!s)
    return;
  g_atomic_int_set (&s->closing, 1);
  while (!(ended = pthread_tryjoin_np (s->thread, NULL) == 0) && g_get_monotonic_time () < until)
    g_usleep (2000);
  if (!ended) {
    g_atomic_int_set (&s->closing, 2);
    pthread_join (s->thread, NULL);
  }
  store_free (s);
}
