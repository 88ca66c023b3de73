/* Messages between processes, and host lists: parsing and writing a message returns the same
 * bytes. */
#include "launch/nodelist.h"
#include "launch/wire.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

static void
feed_frames (const uint8_t *data, size_t size)
{
  struct weft_frame f, again;
  size_t at = 0;

  while (at < size) {
    gint64 n = weft_frame_parse (data + at, size - at, WEFT_FRAME_FIRST_BYTES, &f);
    if (n <= 0)
      return;
    g_assert ((size_t) n <= size - at && n <= 4 + (gint64) WEFT_FRAME_FIRST_BYTES);
    g_autoptr (GByteArray) out = g_byte_array_new ();
    weft_frame_put (out, &f);
    g_assert (out->len == n && memcmp (out->data, data + at, out->len) == 0);
    g_assert (weft_frame_parse (out->data, out->len - 1, WEFT_FRAME_MOST_BYTES, &again) == 0);
    g_autoptr (GPtrArray) pack = weft_pack_parse (f.value, f.value_bytes, 5);
    g_assert (!pack || pack->len == 5);
    at += (size_t) n;
  }
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autofree char *text = g_strndup ((const char *) data, size);
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) hosts = size < 200 ? weft_nodelist_hosts (text, &error) : NULL;

  g_assert (!hosts || (hosts[0] && *hosts[0]));
  g_assert (!hosts || !error);
  feed_frames (data, size);
  return 0;
}
