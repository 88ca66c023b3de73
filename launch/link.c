#include "launch/link.h"
#include <string.h>

/* size in bytes from which on a value is shared by all connections instead of copied */
#define LEAST_SHARED 4096u

void
weft_link_init (struct weft_link *l, GSocket *socket)
{
  *l = (struct weft_link){ .socket = socket,
                           .in = g_byte_array_new (),
                           .sealed = g_byte_array_new (),
                           .wire = g_byte_array_new () };
  g_queue_init (&l->out);
  weft_wire_set_keepalive (g_socket_get_fd (socket));
}

void
weft_link_clear (struct weft_link *l)
{
  if (!l->socket)
    return;
  g_socket_close (l->socket, NULL);
  g_clear_object (&l->socket);
  g_clear_pointer (&l->in, g_byte_array_unref);
  g_clear_pointer (&l->sealed, g_byte_array_unref);
  g_clear_pointer (&l->wire, g_byte_array_unref);
  g_clear_pointer (&l->seal, weft_seal_free);
  g_queue_clear_full (&l->out, (GDestroyNotify) g_bytes_unref);
}

/* -------------------------------------------------------------------------- sending */

static void
queue (struct weft_link *l, GBytes *bytes)
{
  l->out_bytes += g_bytes_get_size (bytes);
  g_queue_push_tail (&l->out, bytes);
}

void
weft_link_put (struct weft_link *l, const struct weft_frame *f, GBytes *value)
{
  GByteArray *head = g_byte_array_new ();

  if (!value || f->value_bytes < LEAST_SHARED) {
    weft_frame_put (head, f);
    queue (l, g_byte_array_free_to_bytes (head));
    return;
  }
  weft_frame_put_head (head, f);
  queue (l, g_byte_array_free_to_bytes (head));
  queue (l, g_bytes_ref (value));
}

gsize
weft_link_unsent (const struct weft_link *l)
{
  return l->out_bytes + (l->wire->len - l->wire_at);
}

/* Moves at most n bytes from the head of the queue to `to`. */
static void
take (struct weft_link *l, gsize n, GByteArray *to)
{
  GBytes *first = g_queue_peek_head (&l->out);
  gsize size;
  const uint8_t *data = g_bytes_get_data (first, &size);
  gsize some = MIN (n, size - l->out_at);

  g_byte_array_append (to, data + l->out_at, (guint) some);
  l->out_bytes -= some;
  l->out_at += some;
  if (l->out_at < size)
    return;
  g_bytes_unref (g_queue_pop_head (&l->out));
  l->out_at = 0;
}

/* Moves at most `most` queued bytes to l->wire. The bytes are encrypted here and not in
 * weft_link_put(), so that a value for many processes is in memory only once. */
static void
fill_wire (struct weft_link *l, gsize most)
{
  g_autoptr (GByteArray) plain = g_byte_array_new ();

  g_byte_array_remove_range (l->wire, 0, (guint) l->wire_at);
  l->wire_at = 0;
  while (l->out.length > 0 && plain->len < most)
    take (l, most - plain->len, plain);
  if (plain->len == 0)
    return;
  if (l->seal)
    weft_seal_put (l->seal, plain->data, plain->len, l->wire);
  else
    g_byte_array_append (l->wire, plain->data, plain->len);
}

gboolean
weft_link_send (struct weft_link *l)
{
  g_autoptr (GError) error = NULL;

  for (;;) {
    if (l->wire_at == l->wire->len)
      fill_wire (l, WEFT_SEAL_MOST);
    if (l->wire->len == 0)
      return TRUE;
    gssize n = g_socket_send (l->socket, (const char *) l->wire->data + l->wire_at,
                              l->wire->len - l->wire_at, NULL, &error);
    if (n <= 0)
      return g_error_matches (error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK);
    l->wire_at += (gsize) n;
  }
}

/* ------------------------------------------------------------------------ receiving */

/* Opens the records that are complete. FALSE: a record cannot be opened. */
static gboolean
open_records (struct weft_link *l)
{
  gsize at = 0;
  gint64 n;

  while ((n = weft_seal_open (l->seal, l->sealed->data + at, l->sealed->len - at, l->in)) > 0)
    at += (gsize) n;
  g_byte_array_remove_range (l->sealed, 0, (guint) at);
  return n == 0;
}

/* Removes the frames that have been returned. */
static void
compact (struct weft_link *l)
{
  gsize done = l->at + l->frame_bytes;

  g_byte_array_remove_range (l->in, 0, (guint) done);
  l->at = l->frame_bytes = 0;
}

gboolean
weft_link_receive (struct weft_link *l)
{
  g_autoptr (GError) error = NULL;
  char block[65536];
  gssize n = g_socket_receive (l->socket, block, sizeof block, NULL, &error);

  if (n <= 0)
    return g_error_matches (error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK);
  compact (l);
  g_byte_array_append (l->seal ? l->sealed : l->in, (uint8_t *) block, (guint) n);
  return !l->seal || open_records (l);
}

gboolean
weft_link_set_seal (struct weft_link *l, weft_seal *seal)
{
  fill_wire (l, G_MAXUINT32);
  compact (l);
  l->seal = seal;
  g_byte_array_append (l->sealed, l->in->data, l->in->len);
  g_byte_array_set_size (l->in, 0);
  return open_records (l);
}

gsize
weft_link_unread (const struct weft_link *l)
{
  return l->in->len - l->at - l->frame_bytes;
}

int
weft_link_next (struct weft_link *l, uint32_t most, struct weft_frame *f)
{
  l->at += l->frame_bytes;
  gint64 n = weft_frame_parse (l->in->data + l->at, l->in->len - l->at, most, f);
  l->frame_bytes = (gsize) MAX (n, 0);
  return n > 0 ? 1 : (int) n;
}
