#include "launch/wire.h"
#include "core/base/invariant.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define WORD(id, word, doc) word,
const char *const weft_frame_words[] = { WEFT_FRAME_LIST (WORD) NULL };
#undef WORD

#define HEAD 11u /* size in bytes of the part of a frame before the key */

static void
put_number (uint8_t *at, uint32_t value, unsigned bytes)
{
  for (unsigned i = 0; i < bytes; i++)
    at[i] = (uint8_t) (value >> (8 * i));
}

static uint32_t
number_at (const uint8_t *at, unsigned bytes)
{
  uint32_t value = 0;

  for (unsigned i = 0; i < bytes; i++)
    value |= (uint32_t) at[i] << (8 * i);
  return value;
}

void
weft_frame_put_head (GByteArray *out, const struct weft_frame *f)
{
  uint8_t head[HEAD];

  WEFT_INVARIANT (f->key_bytes <= WEFT_FRAME_MOST_KEY && f->value_bytes <= WEFT_FRAME_MOST_VALUE);
  put_number (head, HEAD - 4 + f->key_bytes + f->value_bytes, 4);
  head[4] = (uint8_t) f->kind;
  put_number (head + 5, f->number, 4);
  put_number (head + 9, f->key_bytes, 2);
  g_byte_array_append (out, head, HEAD);
  if (f->key_bytes)
    g_byte_array_append (out, (const void *) f->key, f->key_bytes);
}

void
weft_frame_put (GByteArray *out, const struct weft_frame *f)
{
  weft_frame_put_head (out, f);
  if (f->value_bytes)
    g_byte_array_append (out, f->value, f->value_bytes);
}

static gboolean
is_key (const uint8_t *key, uint32_t n)
{
  for (uint32_t i = 0; i < n; i++)
    if (!g_ascii_isprint ((char) key[i]))
      return FALSE;
  return n <= WEFT_FRAME_MOST_KEY;
}

gint64
weft_frame_parse (const uint8_t *data, gsize n, uint32_t most, struct weft_frame *f)
{
  if (n < 4)
    return 0;
  uint32_t follow = number_at (data, 4);
  if (follow < HEAD - 4 || follow > most)
    return -1;
  if (n < HEAD)
    return 0;
  uint32_t key = number_at (data + 9, 2);
  if (data[4] >= WEFT_N_FRAME || key > WEFT_FRAME_MOST_KEY || key > follow - (HEAD - 4) ||
      follow - (HEAD - 4) - key > WEFT_FRAME_MOST_VALUE)
    return -1;
  if (n < 4 + (gsize) follow)
    return 0;
  *f = (struct weft_frame){ .kind = data[4],
                            .number = number_at (data + 5, 4),
                            .key = (const char *) data + HEAD,
                            .value = data + HEAD + key,
                            .key_bytes = key,
                            .value_bytes = follow - (HEAD - 4) - key };
  return is_key (data + HEAD, key) ? 4 + (gint64) follow : -1;
}

/* --------------------------------------------------------------------------- hello */

#define HELLO (4u + WEFT_SEAL_NONCE) /* size in bytes of the part of a hello before the host name */

GBytes *
weft_hello_pack (const struct weft_hello *hello)
{
  GByteArray *value = g_byte_array_new ();
  uint8_t n[4];

  put_number (n, hello->n, 4);
  g_byte_array_append (value, n, sizeof n);
  g_byte_array_append (value, hello->nonce, WEFT_SEAL_NONCE);
  g_byte_array_append (value, (const uint8_t *) hello->host, (guint) strlen (hello->host));
  return g_byte_array_free_to_bytes (value);
}

gboolean
weft_hello_parse (const struct weft_frame *f, struct weft_hello *hello)
{
  const uint8_t *value = f->value;

  if (f->kind != WEFT_FRAME_HELLO || f->value_bytes < HELLO)
    return FALSE;
  *hello = (struct weft_hello){ .n = number_at (value, 4) };
  memcpy (hello->nonce, value + 4, WEFT_SEAL_NONCE);
  memcpy (hello->host, value + HELLO, MIN (f->value_bytes - HELLO, sizeof hello->host - 1));
  g_strcanon (hello->host, G_CSET_A_2_Z G_CSET_a_2_z G_CSET_DIGITS "-_.", '?');
  return TRUE;
}

/* Whether a character moves no cursor, changes no colour and reverses no text. */
static gboolean
is_harmless (gunichar c)
{
  switch (g_unichar_type (c)) {
  case G_UNICODE_CONTROL:
  case G_UNICODE_FORMAT:
  case G_UNICODE_UNASSIGNED:
  case G_UNICODE_PRIVATE_USE:
  case G_UNICODE_SURROGATE:
  case G_UNICODE_LINE_SEPARATOR:
  case G_UNICODE_PARAGRAPH_SEPARATOR:
    return FALSE;
  default:
    return TRUE;
  }
}

char *
weft_wire_text (const void *data, gsize n)
{
  GString *text = g_string_new (NULL);
  gssize bytes = data ? (gssize) MIN (n, WEFT_WIRE_MOST_TEXT) : 0;
  g_autofree char *valid = g_utf8_make_valid (data ? data : "", bytes);

  for (const char *at = valid; *at && text->len < WEFT_WIRE_MOST_TEXT; at = g_utf8_next_char (at)) {
    gunichar c = g_utf8_get_char (at);
    g_string_append_unichar (text, is_harmless (c) ? c : ' ');
  }
  return g_string_free (text, FALSE);
}

/* ---------------------------------------------------------------------- keepalive */

void
weft_wire_set_keepalive (int socket)
{
  static const struct {
    int level, name, value;
  } options[] = { { SOL_SOCKET, SO_KEEPALIVE, 1 },          { IPPROTO_TCP, TCP_KEEPIDLE, 10 },
                  { IPPROTO_TCP, TCP_KEEPINTVL, 5 },        { IPPROTO_TCP, TCP_KEEPCNT, 4 },
                  { IPPROTO_TCP, TCP_USER_TIMEOUT, 30000 }, { IPPROTO_TCP, TCP_NODELAY, 1 } };

  for (unsigned i = 0; i < G_N_ELEMENTS (options); i++)
    setsockopt (socket, options[i].level, options[i].name, &options[i].value,
                sizeof options[i].value);
}

/* ----------------------------------------------------------------- packed values */

void
weft_pack_add (GByteArray *pack, uint32_t process, GBytes *value)
{
  gsize n;
  const void *data = g_bytes_get_data (value, &n);
  uint8_t head[8];

  put_number (head, process, 4);
  put_number (head + 4, (uint32_t) n, 4);
  g_byte_array_append (pack, head, sizeof head);
  g_byte_array_append (pack, data, (guint) n);
}

static void
unref_value (gpointer value)
{
  if (value)
    g_bytes_unref (value);
}

GPtrArray *
weft_pack_parse (const void *data, gsize bytes, uint32_t n)
{
  g_autoptr (GPtrArray) values = g_ptr_array_new_with_free_func (unref_value);
  const uint8_t *at = data;

  g_ptr_array_set_size (values, (gint) n);
  while (bytes > 0) {
    uint32_t process = bytes < 8 ? n : number_at (at, 4),
             size = bytes < 8 ? 0 : number_at (at + 4, 4);
    if (process >= n || size > bytes - 8 || values->pdata[process])
      return NULL;
    values->pdata[process] = g_bytes_new (at + 8, size);
    at += 8 + size;
    bytes -= 8 + size;
  }
  return g_steal_pointer (&values);
}
