#include "launch/store_state.h"
#include <string.h>

char *
weft_store_name (uint32_t ranks_each, uint32_t process)
{
  return ranks_each == 1 ? g_strdup_printf ("rank %u", process)
                         : g_strdup_printf ("ranks %u to %u", process * ranks_each,
                                            process * ranks_each + ranks_each - 1);
}

char *
weft_store_name_of (const weft_store *s, uint32_t process)
{
  return weft_store_name (s->options.ranks_each, process);
}

/* ------------------------------------------------------------------------- sending */

void
weft_store_put (struct weft_store_peer *p, enum weft_frame_kind kind, GBytes *key, GBytes *value)
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
  weft_link_put (&p->link, &f, value);
}

void
weft_store_put_text (struct weft_store_peer *p, enum weft_frame_kind kind, const char *text)
{
  gsize n = text ? MIN (strlen (text), WEFT_WIRE_MOST_TEXT) : 0;
  g_autoptr (GBytes) value = g_bytes_new (text, n);
  weft_store_put (p, kind, NULL, value);
}

void
weft_store_refuse (struct weft_store_peer *p, const char *text)
{
  weft_store_put_text (p, WEFT_FRAME_REFUSED, text);
  p->closing_peer = TRUE;
}

void
weft_store_stop (weft_store *s, const char *format, ...)
{
  va_list args;

  if (s->stopped)
    return;
  va_start (args, format);
  s->stopped = g_strdup_vprintf (format, args);
  va_end (args);
  for (uint32_t i = 0; i < s->options.n; i++)
    if (s->member[i].peer)
      weft_store_put_text (s->member[i].peer, WEFT_FRAME_STOP, s->stopped);
}

const char *
weft_store_host_of (const struct weft_store_member *m)
{
  return m->host && *m->host ? m->host : "an unnamed host";
}

void
weft_store_append_member (const weft_store *s, GString *text, uint32_t process)
{
  const struct weft_store_member *m = &s->member[process];
  g_autofree char *name = weft_store_name_of (s, process);

  g_string_append_printf (text, "%s%s", text->len ? ", " : "", name);
  if (!m->joined)
    return;
  g_string_append_printf (text, " on %s", weft_store_host_of (m));
  if (m->left)
    g_string_append (text, " (signed off)");
  else if (m->last)
    g_string_append_printf (text, " (last seen at %s, %.0f s ago)", m->last,
                            1e-6 * (double) (g_get_monotonic_time () - m->heard));
}

void
weft_store_count (weft_store *s, struct weft_store_peer *p, gsize bytes)
{
  uint64_t most = s->options.most_bytes ? s->options.most_bytes : WEFT_STORE_MOST_BYTES;

  s->memory += bytes;
  if (s->memory <= most || p->process == WEFT_STORE_NOBODY)
    return;
  g_autofree char *name = weft_store_name_of (s, p->process);
  weft_store_stop (s, "%s on %s: found more than %" G_GUINT64_FORMAT " bytes in the rendezvous",
                   name, weft_store_host_of (&s->member[p->process]), most);
  p->closing_peer = TRUE;
}
