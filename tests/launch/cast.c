#include "tests/launch/cast.h"
#include "tests/runner/processes.h"
#include <string.h>

static gpointer
part_main (gpointer data)
{
  struct part *p = data;
  weft_rendezvous *r = weft_rendezvous_open (&p->place, &p->error);

  if (r)
    p->said = p->play (r, &p->error);
  weft_rendezvous_close (r);
  return NULL;
}

struct cast
cast_of (uint32_t n, double seconds, char *(*play) (weft_rendezvous *r, GError **error))
{
  struct cast c = { .n = n };
  uint16_t port = free_port ();

  for (uint32_t i = 0; i < n; i++)
    c.part[i] = (struct part){ .place = { .host = "127.0.0.1",
                                          .port = port,
                                          .token = "the job",
                                          .n = n,
                                          .process = i,
                                          .ranks_each = 1,
                                          .seconds = seconds },
                               .play = play };
  return c;
}

void
cast_start (struct cast *c, uint32_t i)
{
  c->thread[i] = g_thread_new ("process", part_main, &c->part[i]);
}

void
cast_finish (struct cast *c)
{
  for (uint32_t i = 0; i < c->n; i++)
    if (c->thread[i])
      g_thread_join (g_steal_pointer (&c->thread[i]));
}

void
cast_run (struct cast *c)
{
  for (uint32_t i = 0; i < c->n; i++)
    cast_start (c, i);
  cast_finish (c);
}

void
cast_clear (struct cast *c)
{
  for (uint32_t i = 0; i < c->n; i++) {
    g_clear_error (&c->part[i].error);
    g_free (c->part[i].said);
  }
}

void
cast_assert_said (const struct cast *c, uint32_t i, const char *wanted)
{
  if (c->part[i].error)
    fail_msg ("process %u: %s", i, c->part[i].error->message);
  assert_string_equal (c->part[i].said, wanted);
}

void
cast_assert_failed (const struct cast *c, uint32_t i, const char *part)
{
  if (!c->part[i].error)
    fail_msg ("process %u has not failed, wanted: %s", i, part);
  if (!strstr (c->part[i].error->message, part))
    fail_msg ("process %u: %s, wanted: %s", i, c->part[i].error->message, part);
}

uint32_t
cast_process (const weft_rendezvous *r)
{
  return weft_rendezvous_place (r)->process;
}

gboolean
cast_barrier (weft_rendezvous *r, const char *key, GError **error)
{
  return weft_rendezvous_barrier (r, key, weft_rendezvous_place (r)->seconds, error);
}

GSocketConnection *
cast_connect (uint16_t port, const char *from)
{
  g_autoptr (GSocketClient) client = g_socket_client_new ();
  g_autoptr (GSocketAddress) local = g_inet_socket_address_new_from_string (from, 0);
  GSocketConnection *c = NULL;

  g_socket_client_set_local_address (client, local);
  for (int i = 0; i < 400 && !c; i++) {
    c = g_socket_client_connect_to_host (client, "127.0.0.1", port, NULL, NULL);
    if (!c)
      g_usleep (5000);
  }
  if (!c)
    fail_msg ("nobody listens on port %u", port);
  return c;
}

/* ----------------------------------------------------------------------- raw clients */

struct raw_client
raw_connect (uint16_t port, const char *from)
{
  struct raw_client raw = { cast_connect (port, from), g_byte_array_new (), 0 };

  g_socket_set_timeout (g_socket_connection_get_socket (raw.connection), 10);
  return raw;
}

void
raw_close (struct raw_client *raw)
{
  g_clear_object (&raw->connection);
  g_clear_pointer (&raw->in, g_byte_array_unref);
}

gboolean
raw_send (struct raw_client *raw, const struct weft_frame *frame)
{
  g_autoptr (GByteArray) out = g_byte_array_new ();
  GOutputStream *stream = g_io_stream_get_output_stream (G_IO_STREAM (raw->connection));

  weft_frame_put (out, frame);
  return g_output_stream_write_all (stream, out->data, out->len, NULL, NULL, NULL);
}

gboolean
raw_next (struct raw_client *raw, struct weft_frame *frame)
{
  GSocket *socket = g_socket_connection_get_socket (raw->connection);
  char block[65536];
  gint64 n;

  g_byte_array_remove_range (raw->in, 0, (guint) raw->done);
  raw->done = 0;
  while ((n = weft_frame_parse (raw->in->data, raw->in->len, WEFT_FRAME_MOST_BYTES, frame)) == 0) {
    gssize got = g_socket_receive (socket, block, sizeof block, NULL, NULL);
    if (got <= 0)
      return FALSE;
    g_byte_array_append (raw->in, (uint8_t *) block, (guint) got);
  }
  raw->done = (gsize) MAX (n, 0);
  return n > 0;
}

gboolean
raw_hello (struct raw_client *raw, uint32_t process, uint32_t n, struct weft_frame *answer)
{
  static const struct weft_hello none;
  struct weft_hello hello = none;

  hello.n = n;
  g_strlcpy (hello.host, "elsewhere", sizeof hello.host);
  g_autoptr (GBytes) value = weft_hello_pack (&hello);
  const struct weft_frame f = { .kind = WEFT_FRAME_HELLO,
                                .number = process,
                                .key = "the job",
                                .key_bytes = 7,
                                .value = g_bytes_get_data (value, NULL),
                                .value_bytes = (uint32_t) g_bytes_get_size (value) };
  return raw_send (raw, &f) && raw_next (raw, answer);
}
