#include "launch/store_state.h"
#include <string.h>

#define FRESH_SECONDS 10   /* a status that is older than this number of seconds is not reported */
/* maximum size in bytes of a status, and of the reason why a process has failed */
#define MOST_STATUS 16384u

/* Upper bound of the memory that a value needs in addition to its key and its bytes. */
#define VALUE_OVERHEAD 256u

/* ----------------------------------------------------------------------- exchanges */

void
weft_store_exchange_free (gpointer data)
{
  struct weft_store_exchange *m = data;

  for (uint32_t i = 0; i < m->n; i++)
    g_clear_pointer (&m->value[i], g_bytes_unref);
  g_free (m->value);
  g_free (m->joined);
  g_free (m->key);
  g_free (m);
}

static struct weft_store_exchange *
find_exchange (weft_store *s, struct weft_store_peer *p, const char *key)
{
  struct weft_store_exchange *m = g_hash_table_lookup (s->exchanges, key);

  if (m)
    return m;
  m = g_new0 (struct weft_store_exchange, 1);
  m->key = g_strdup (key);
  m->n = s->options.n;
  m->value = g_new0 (GBytes *, m->n);
  m->joined = g_new0 (uint8_t, m->n);
  m->memory = m->n * (sizeof *m->value + sizeof *m->joined) + strlen (key) + VALUE_OVERHEAD;
  weft_store_count (s, p, m->memory);
  g_hash_table_insert (s->exchanges, m->key, m);
  return m;
}

/* Completes an exchange that every process has called: sends the values to all processes or to
 * process 0 only. */
static void
finish_exchange (weft_store *s, struct weft_store_exchange *m, enum weft_receivers receivers)
{
  GByteArray *pack = g_byte_array_new ();
  g_autoptr (GBytes) key = g_bytes_new (m->key, strlen (m->key)), none = g_bytes_new (NULL, 0);

  for (uint32_t i = 0; i < m->n; i++)
    if (m->value[i])
      weft_pack_add (pack, i, m->value[i]);
  g_autoptr (GBytes) value = g_byte_array_free_to_bytes (pack);
  for (uint32_t i = 0; i < m->n && !s->stopped; i++)
    if (s->member[i].peer)
      weft_store_put (s->member[i].peer, WEFT_FRAME_EXCHANGED, key,
                      receivers == WEFT_RECEIVERS_FIRST && i > 0 ? none : value);
  s->memory -= m->memory;
  g_hash_table_remove (s->exchanges, m->key);
}

/* Keeps the value of a process until the exchange is complete. FALSE: the values of all processes
 * would not fit in a frame. */
static gboolean
add_value (weft_store *s, struct weft_store_exchange *m, struct weft_store_peer *p,
           const struct weft_frame *f)
{
  m->bytes += f->value_bytes + WEFT_PACK_OVERHEAD;
  if (m->bytes > WEFT_FRAME_MOST_VALUE) {
    weft_store_stop (
        s, "%s: found %" G_GSIZE_FORMAT " bytes of all processes, wanted at most %u bytes", m->key,
        m->bytes, WEFT_FRAME_MOST_VALUE);
    return FALSE;
  }
  m->value[p->process] = g_bytes_new (f->value, f->value_bytes);
  m->memory += f->value_bytes + VALUE_OVERHEAD;
  weft_store_count (s, p, f->value_bytes + VALUE_OVERHEAD);
  return TRUE;
}

/* Ends the job if a process has signed off while other processes wait in an exchange. */
static void
check_leavers (weft_store *s)
{
  if (g_hash_table_size (s->exchanges) == 0)
    return;
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].left) {
      g_autofree char *name = weft_store_name_of (s, i);
      weft_store_stop (s, "%s on %s has ended while other processes wait for it", name,
                       weft_store_host_of (&s->member[i]));
    }
}

/* -------------------------------------------------------------------------- frames */

/* A frame of a client that has sent its hello. The key is zero-terminated. */
struct request {
  struct weft_store_peer *peer;
  struct weft_store_member *from;
  const struct weft_frame *f;
  const char *key;
};

static void
on_set (weft_store *s, const struct request *request)
{
  GBytes *value = g_bytes_new (request->f->value, request->f->value_bytes),
         *old = g_hash_table_lookup (s->values, request->key);
  gsize row = strlen (request->key) + VALUE_OVERHEAD;

  s->memory -= old ? row + g_bytes_get_size (old) : 0;
  weft_store_count (s, request->peer, row + request->f->value_bytes);
  g_hash_table_insert (s->values, g_strdup (request->key), value);
  for (uint32_t i = 0; i < s->peers->len; i++) {
    struct weft_store_peer *p = s->peers->pdata[i];
    if (g_strcmp0 (p->waiting_key, request->key) == 0) {
      weft_store_put (p, WEFT_FRAME_VALUE, NULL, value);
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
    weft_store_put (request->peer, WEFT_FRAME_VALUE, NULL, value);
  else
    request->peer->waiting_key = g_strdup (request->key);
}

static void
on_exchange (weft_store *s, const struct request *request)
{
  struct weft_store_exchange *m = find_exchange (s, request->peer, request->key);
  uint32_t process = request->peer->process;

  if (m->joined[process])
    return;
  m->joined[process] = TRUE;
  if (request->f->value_bytes && !add_value (s, m, request->peer, request->f))
    return;
  if (++m->n_joined == m->n)
    finish_exchange (s, m, request->f->number);
  check_leavers (s);
}

static void
on_missing (weft_store *s, const struct request *request)
{
  const struct weft_store_exchange *m = g_hash_table_lookup (s->exchanges, request->key);
  g_autoptr (GString) text = g_string_new (NULL);

  for (uint32_t i = 0; m && i < m->n; i++)
    if (!m->joined[i])
      weft_store_append_member (s, text, i);
  weft_store_put_text (request->peer, WEFT_FRAME_ANSWER, text->str);
}

/* The value of a frame as text. The caller frees it. */
static char *
text_of (const struct weft_frame *f)
{
  return weft_wire_text (f->value, MIN (f->value_bytes, MOST_STATUS));
}

static void
on_status (weft_store *s, const struct request *request)
{
  (void) s;
  g_free (request->from->status);
  request->from->status = text_of (request->f);
  request->from->status_at = g_get_monotonic_time ();
  request->from->asked = FALSE;
}

/* Whether a process has sent a status that is recent enough for a report. */
static gboolean
has_status (const struct weft_store_member *m)
{
  return m->status && g_get_monotonic_time () - m->status_at < FRESH_SECONDS * G_USEC_PER_SEC;
}

/* Asks a process for a status, unless it was asked before and has not answered. */
static void
ask_status (struct weft_store_member *m)
{
  if (!m->peer || m->asked || has_status (m))
    return;
  m->asked = TRUE;
  weft_store_put_text (m->peer, WEFT_FRAME_ASK_STATUS, NULL);
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
    ask_status (&s->member[i]);
}

static void
on_abort (weft_store *s, const struct request *request)
{
  g_autofree char *name = weft_store_name_of (s, request->peer->process);
  g_autofree char *why = text_of (request->f);

  request->from->left = TRUE;
  weft_store_stop (s, "%s on %s has failed: %s", name, weft_store_host_of (request->from), why);
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

/* ------------------------------------------------------------------------- reports */

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
    weft_store_append_member (s, text, i);
    g_string_append_printf (text, ": %s",
                            has_status (&s->member[i]) ? s->member[i].status : "no answer");
  }
  if (s->member[reporter].peer)
    weft_store_put_text (s->member[reporter].peer, WEFT_FRAME_ANSWER, text->str);
}

void
weft_store_finish_reports (weft_store *s, gint64 now)
{
  for (uint32_t i = 0; i < s->options.n; i++) {
    struct weft_store_member *m = &s->member[i];
    if (m->report_until && (now >= m->report_until || have_all_statuses (s))) {
      send_report (s, i);
      m->report_until = 0;
    }
  }
}

/* -------------------------------------------------------------------------- whole */

gboolean
weft_store_on_request (weft_store *s, struct weft_store_peer *p, const struct weft_frame *f)
{
  g_autofree char *key = g_strndup (f->key, f->key_bytes);
  struct request request = { p, &s->member[p->process], f, key };

  if (!handlers[f->kind] || (s->n_joined < s->options.n && f->kind != WEFT_FRAME_ABORT))
    return FALSE;
  if (s->stopped && f->kind != WEFT_FRAME_ABORT && f->kind != WEFT_FRAME_BYE)
    return TRUE;
  request.from->heard = g_get_monotonic_time ();
  if (f->kind == WEFT_FRAME_EXCHANGE) {
    g_free (request.from->last);
    request.from->last = g_strdup (key);
  }
  handlers[f->kind](s, &request);
  return TRUE;
}
