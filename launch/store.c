#define _GNU_SOURCE /* declares pthread_tryjoin_np() */
#include "launch/store.h"
#include "core/base/error.h"
#include "launch/signals.h"
#include "launch/store_state.h"
#include <string.h>

#define POLL_MS 20 /* milliseconds between two checks of deadlines */

/* --------------------------------------------------------------------- connections */

static void
peer_free (gpointer data)
{
  struct weft_store_peer *p = data;

  weft_link_clear (&p->link);
  g_clear_pointer (&p->stranger, weft_store_stranger_free);
  g_free (p->waiting_key);
  g_free (p);
}

/* Whether a request of the peer may be handled now. */
static gboolean
may_read (const struct weft_store_peer *p)
{
  return !p->closing_peer && weft_link_unsent (&p->link) <= WEFT_STORE_MOST_UNSENT;
}

/* Handles the complete frames of the input. FALSE: the input is malformed. */
static gboolean
handle_all (weft_store *s, struct weft_store_peer *p)
{
  struct weft_frame f;
  int found = 0;

  while (may_read (p) &&
         (found = weft_link_next (
              &p->link, p->stranger ? WEFT_FRAME_FIRST_BYTES : WEFT_FRAME_MOST_BYTES, &f)) > 0)
    if (!(p->stranger ? weft_store_on_stranger : weft_store_on_request) (s, p, &f))
      return FALSE;
  return found >= 0;
}

/* Receives some input. FALSE: the connection has ended. */
static gboolean
receive (weft_store *s, struct weft_store_peer *p)
{
  gboolean lives = weft_link_receive (&p->link);

  s->memory -= p->counted;
  p->counted = p->link.in->len + p->link.sealed->len;
  weft_store_count (s, p, p->counted);
  return lives;
}

void
weft_store_drop (weft_store *s, struct weft_store_peer *p)
{
  s->memory -= p->counted;
  s->n_strangers -= p->stranger != NULL;
  if (p->process != WEFT_STORE_NOBODY) {
    struct weft_store_member *m = &s->member[p->process];
    g_autofree char *name = weft_store_name_of (s, p->process);
    m->peer = NULL;
    if (!m->left)
      weft_store_stop (s, "%s on %s is gone: its process has ended or its connection is lost%s%s",
                       name, weft_store_host_of (m), m->last ? "; last seen at " : "",
                       m->last ? m->last : "");
    m->left = TRUE;
  }
  g_ptr_array_remove_fast (s->peers, p);
}

/* ----------------------------------------------------------------------- event loop */

/* Ends the job if the time limit for connecting has passed and processes are missing. */
static void
check_late (weft_store *s, gint64 now)
{
  g_autoptr (GString) text = g_string_new (NULL);

  if (s->n_joined == s->options.n || s->stopped ||
      (double) (now - s->opened) < 1e6 * s->options.seconds)
    return;
  for (uint32_t i = 0; i < s->options.n; i++)
    if (!s->member[i].joined)
      weft_store_append_member (s, text, i);
  weft_store_stop (s, "%u of %u processes connected within %g s; missing: %s", s->n_joined,
                   s->options.n, s->options.seconds, text->str);
}

static gboolean
is_late (const struct weft_store_peer *p, gint64 now)
{
  return p->stranger && now > p->stranger->until;
}

/* Serves a connection. FALSE: the connection has ended. */
static gboolean
serve_peer (weft_store *s, struct weft_store_peer *p, gushort events)
{
  if (events && !receive (s, p))
    return FALSE;
  return weft_link_unread (&p->link) == 0 || handle_all (s, p);
}

/* Serves the n connections that were polled. Connections accepted later are polled in the next
 * round. */
static void
serve (weft_store *s, const GPollFD *fds, uint32_t n)
{
  g_autoptr (GPtrArray) gone = g_ptr_array_new ();
  gint64 now = g_get_monotonic_time ();

  for (uint32_t i = 0; i < n; i++) {
    struct weft_store_peer *p = s->peers->pdata[i];
    if (!serve_peer (s, p, fds[i].revents & (G_IO_IN | G_IO_HUP | G_IO_ERR)) || is_late (p, now))
      g_ptr_array_add (gone, p);
  }
  check_late (s, now);
  weft_store_finish_reports (s, now);
  for (uint32_t i = 0; i < s->peers->len; i++) {
    struct weft_store_peer *p = s->peers->pdata[i];
    if ((!weft_link_send (&p->link) || (p->closing_peer && weft_link_unsent (&p->link) == 0)) &&
        !g_ptr_array_find (gone, p, NULL))
      g_ptr_array_add (gone, p);
  }
  for (uint32_t i = 0; i < gone->len; i++)
    weft_store_drop (s, gone->pdata[i]);
}

static void
poll_once (weft_store *s)
{
  const GPtrArray *sockets = s->listening.sockets;
  uint32_t n = s->peers->len;
  g_autofree GPollFD *fds = g_new0 (GPollFD, n + sockets->len);

  for (uint32_t i = 0; i < n; i++) {
    struct weft_store_peer *p = s->peers->pdata[i];
    fds[i].fd = g_socket_get_fd (p->link.socket);
    fds[i].events = (may_read (p) ? G_IO_IN : 0) | (weft_link_unsent (&p->link) ? G_IO_OUT : 0);
  }
  for (uint32_t i = 0; i < sockets->len; i++) {
    fds[n + i].fd = g_socket_get_fd (sockets->pdata[i]);
    fds[n + i].events = G_IO_IN;
  }
  g_poll (fds, n + sockets->len, POLL_MS);
  serve (s, fds, n);
  for (uint32_t i = 0; i < sockets->len; i++)
    if (fds[n + i].revents & G_IO_IN)
      weft_store_accept (s, sockets->pdata[i]);
}

/* Whether every process has signed off and all queued bytes have been sent. */
static gboolean
can_end (const weft_store *s)
{
  for (uint32_t i = 0; i < s->peers->len; i++) {
    const struct weft_store_peer *p = s->peers->pdata[i];
    if (!p->stranger && (!s->member[p->process].left || weft_link_unsent (&p->link)))
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

void
weft_store_free (weft_store *s)
{
  for (uint32_t i = 0; i < s->options.n; i++) {
    g_free (s->member[i].host);
    g_free (s->member[i].last);
    g_free (s->member[i].status);
  }
  g_ptr_array_unref (s->peers);
  g_hash_table_unref (s->values);
  g_hash_table_unref (s->exchanges);
  weft_listening_clear (&s->listening);
  g_free (s->member);
  g_free (s->token);
  g_free (s->secret);
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
weft_store_new (const struct weft_store_options *options)
{
  weft_store *s = g_new0 (weft_store, 1);

  s->options = *options;
  s->token = g_strdup (options->token);
  s->secret = g_strdup (options->secret);
  s->member = g_new0 (struct weft_store_member, options->n);
  s->peers = g_ptr_array_new_with_free_func (peer_free);
  s->values =
      g_hash_table_new_full (g_str_hash, g_str_equal, g_free, (GDestroyNotify) g_bytes_unref);
  s->exchanges = g_hash_table_new_full (g_str_hash, g_str_equal, NULL, weft_store_exchange_free);
  s->opened = g_get_monotonic_time ();
  return s;
}

weft_store *
weft_store_open (uint16_t port, const struct weft_store_options *options, GError **error)
{
  weft_store *s = weft_store_new (options);

  if (weft_listening_open (options->host, port, options->secret != NULL, &s->listening, error) &&
      start_thread (s, error))
    return s;
  weft_store_free (s);
  return NULL;
}

uint16_t
weft_store_port (const weft_store *s)
{
  return s->listening.port;
}

gboolean
weft_store_is_everywhere (const weft_store *s)
{
  return s->listening.everywhere;
}

GSocketAddress *
weft_store_own_address (const weft_store *s)
{
  return weft_listening_own_address (&s->listening);
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
  weft_store_free (s);
}
