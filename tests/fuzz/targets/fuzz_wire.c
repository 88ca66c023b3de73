/* Messages between processes, sealed records, and host lists of launchers. A message that is parsed
 * and written again must have the same bytes; a record must be opened unless it was changed; text
 * of a peer must be printed without control characters. */
#include "launch/nodelist.h"
#include "launch/wire.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

static void
feed_hello (const struct weft_frame *f)
{
  struct weft_hello hello, again;

  if (!weft_hello_parse (f, &hello))
    return;
  g_autoptr (GBytes) value = weft_hello_pack (&hello);
  gsize n;
  struct weft_frame other = { .kind = WEFT_FRAME_HELLO, .value = g_bytes_get_data (value, &n) };
  other.value_bytes = (uint32_t) n;
  g_assert (weft_hello_parse (&other, &again));
  g_assert (again.n == hello.n && strcmp (again.host, hello.host) == 0);
  g_assert (memcmp (again.nonce, hello.nonce, sizeof hello.nonce) == 0);
}

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
    feed_hello (&f);
    at += (size_t) n;
  }
}

/* Feeds the input as a record of a client: the store must refuse it. Then seals the input in a
 * record: the store must open the record unless one bit was flipped. */
static void
feed_records (const uint8_t *data, size_t size)
{
  g_autoptr (GByteArray) transcript = g_byte_array_new (), record = g_byte_array_new (),
                         opened = g_byte_array_new ();
  g_autoptr (weft_seal) client = weft_seal_new ("secret", transcript, WEFT_SEAL_CLIENT),
                        store = weft_seal_new ("secret", transcript, WEFT_SEAL_STORE);
  uint32_t n = (uint32_t) MIN (size, WEFT_SEAL_MOST);

  g_assert (weft_seal_open (store, data, size, opened) <= 0 && opened->len == 0);
  if (n == 0)
    return;
  weft_seal_put (client, data, n, record);
  record->data[data[0] % record->len] ^= 0x10;
  g_assert (weft_seal_open (store, record->data, record->len, opened) <= 0 && opened->len == 0);
  record->data[data[0] % record->len] ^= 0x10;
  g_assert (weft_seal_open (store, record->data, record->len, opened) == record->len);
  g_assert (opened->len == n && memcmp (opened->data, data, n) == 0);
}

static void
feed_text (const uint8_t *data, size_t size)
{
  g_autofree char *text = weft_wire_text (data, size);

  g_assert (g_utf8_validate (text, -1, NULL));
  for (const char *at = text; *at; at = g_utf8_next_char (at))
    g_assert (!g_unichar_iscntrl (g_utf8_get_char (at)));
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
  feed_records (data, size);
  feed_text (data, size);
  return 0;
}
