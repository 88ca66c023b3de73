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
