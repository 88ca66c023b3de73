#include "launch/seal.h"
#include "core/base/invariant.h"
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define KEY 32u
#define TAG 16u
#define HEAD 4u /* number of bytes of the length at the begin of a record */

/* State of one direction of a connection: its keys, and the number of records so far. */
struct direction {
  uint8_t key[KEY];
  GHmac *mac; /* has the key for authentication tags, but no data; each record uses a copy */
  uint64_t n;
};

struct weft_seal {
  struct direction mine, theirs;
};

void
weft_seal_random (uint8_t *bytes, gsize n)
{
  while (n > 0) {
    ssize_t got = getrandom (bytes, n, 0);
    WEFT_INVARIANT (got >= 0 || errno == EINTR);
    bytes += MAX (got, 0);
    n -= (gsize) MAX (got, 0);
  }
}

static void
put_number (uint8_t *at, uint64_t value, unsigned bytes)
{
  for (unsigned i = 0; i < bytes; i++)
    at[i] = (uint8_t) (value >> (8 * i));
}

static uint32_t
number_at (const uint8_t *at)
{
  return at[0] | (uint32_t) at[1] << 8 | (uint32_t) at[2] << 16 | (uint32_t) at[3] << 24;
}

/* ------------------------------------------------------------------------ ChaCha20 */

#define BLOCK 64u
#define WORDS 16
#define LANES 8 /* blocks that are computed at once, for vector instructions */

typedef uint32_t lanes[WORDS][LANES];

static inline uint32_t
rotate (uint32_t x, int bits)
{
  return x << bits | x >> (32 - bits);
}

/* The quarter round of RFC 8439, 2.1, on words a, b, c, d of every block. */
static inline void
mix (lanes x, int a, int b, int c, int d)
{
  for (int i = 0; i < LANES; i++) {
    x[a][i] += x[b][i], x[d][i] = rotate (x[d][i] ^ x[a][i], 16);
    x[c][i] += x[d][i], x[b][i] = rotate (x[b][i] ^ x[c][i], 12);
    x[a][i] += x[b][i], x[d][i] = rotate (x[d][i] ^ x[a][i], 8);
    x[c][i] += x[d][i], x[b][i] = rotate (x[b][i] ^ x[c][i], 7);
  }
}

/* The key stream of LANES blocks from block `counter` on (RFC 8439, 2.3). */
static void
make_stream (const uint32_t state[WORDS], uint32_t counter, uint8_t stream[LANES * BLOCK])
{
  lanes x;

  for (int w = 0; w < WORDS; w++)
    for (int i = 0; i < LANES; i++)
      x[w][i] = w == 12 ? counter + (uint32_t) i : state[w];
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < 4; i++)
      mix (x, i, 4 + i, 8 + i, 12 + i);
    for (int i = 0; i < 4; i++)
      mix (x, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
  }
  for (int w = 0; w < WORDS; w++)
    for (int i = 0; i < LANES; i++)
      put_number (stream + BLOCK * (unsigned) i + 4 * (unsigned) w,
                  x[w][i] + (w == 12 ? counter + (uint32_t) i : state[w]), 4);
}

void
weft_seal_chacha20 (const uint8_t key[KEY], const uint8_t nonce[12], uint32_t counter,
                    uint8_t *data, gsize n)
{
  static const uint8_t constants[] = "expand 32-byte k";
  uint8_t stream[LANES * BLOCK];
  uint32_t state[WORDS] = { 0 };

  for (int i = 0; i < 4; i++)
    state[i] = number_at (constants + 4 * i);
  for (int i = 0; i < 8; i++)
    state[4 + i] = number_at (key + 4 * i);
  for (int i = 0; i < 3; i++)
    state[13 + i] = number_at (nonce + 4 * i);
  for (gsize at = 0; at < n; at += sizeof stream, counter += LANES) {
    gsize some = MIN (n - at, sizeof stream);
    make_stream (state, counter, stream);
    for (gsize i = 0; i < some; i++)
      data[at + i] ^= stream[i];
  }
}

/* ------------------------------------------------------------------ proofs and keys */

/* HMAC-SHA256 of a label and the transcript. The label includes its terminating zero, which
 * separates it from the transcript. */
static void
derive (const char *secret, const GByteArray *transcript, const char *label, uint8_t out[KEY])
{
  g_autoptr (GHmac) mac = g_hmac_new (G_CHECKSUM_SHA256, (const guchar *) secret, strlen (secret));
  gsize n = KEY;

  g_hmac_update (mac, (const guchar *) label, (gssize) strlen (label) + 1);
  g_hmac_update (mac, transcript->data, transcript->len);
  g_hmac_get_digest (mac, out, &n);
}

void
weft_seal_prove (const char *secret, const GByteArray *transcript, enum weft_seal_side side,
                 uint8_t proof[WEFT_SEAL_NONCE])
{
  derive (secret, transcript, side == WEFT_SEAL_STORE ? "weft store proof" : "weft client proof",
          proof);
}

/* Whether two arrays are equal, in a time that does not depend on the bytes. */
static gboolean
is_equal (const uint8_t *a, const uint8_t *b, gsize n)
{
  volatile uint8_t differs = 0;

  for (gsize i = 0; i < n; i++)
    differs |= a[i] ^ b[i];
  return !differs;
}

gboolean
weft_seal_is_proof (const char *secret, const GByteArray *transcript, enum weft_seal_side side,
                    const void *proof, gsize bytes)
{
  uint8_t wanted[WEFT_SEAL_NONCE];

  weft_seal_prove (secret, transcript, side, wanted);
  return bytes == sizeof wanted && is_equal (wanted, proof, bytes);
}

/* Derives the keys of the records that the side `from` sends. */
static void
derive_direction (struct direction *d, const char *secret, const GByteArray *transcript,
                  enum weft_seal_side from)
{
  gboolean store = from == WEFT_SEAL_STORE;
  uint8_t key[KEY];

  derive (secret, transcript, store ? "weft store cipher" : "weft client cipher", d->key);
  derive (secret, transcript, store ? "weft store tags" : "weft client tags", key);
  d->mac = g_hmac_new (G_CHECKSUM_SHA256, key, sizeof key);
}

weft_seal *
weft_seal_new (const char *secret, const GByteArray *transcript, enum weft_seal_side side)
{
  weft_seal *seal = g_new0 (weft_seal, 1);

  derive_direction (&seal->mine, secret, transcript, side);
  derive_direction (&seal->theirs, secret, transcript,
                    side == WEFT_SEAL_STORE ? WEFT_SEAL_CLIENT : WEFT_SEAL_STORE);
  return seal;
}

void
weft_seal_free (weft_seal *seal)
{
  g_hmac_unref (seal->mine.mac);
  g_hmac_unref (seal->theirs.mac);
  g_free (seal);
}

/* ------------------------------------------------------------------------- records */

static void
make_tag (const struct direction *d, const uint8_t *record, gsize n, uint8_t tag[TAG])
{
  g_autoptr (GHmac) mac = g_hmac_copy (d->mac);
  uint8_t number[8], digest[KEY];
  gsize size = sizeof digest;

  put_number (number, d->n, sizeof number);
  g_hmac_update (mac, number, sizeof number);
  g_hmac_update (mac, record, (gssize) n);
  g_hmac_get_digest (mac, digest, &size);
  memcpy (tag, digest, TAG);
}

static void
encrypt (const struct direction *d, uint8_t *data, gsize n)
{
  uint8_t nonce[12] = { 0 };

  put_number (nonce + 4, d->n, 8);
  weft_seal_chacha20 (d->key, nonce, 0, data, n);
}

void
weft_seal_put (weft_seal *seal, const uint8_t *data, uint32_t n, GByteArray *out)
{
  guint start = out->len;

  g_byte_array_set_size (out, start + n + WEFT_SEAL_OVERHEAD);
  uint8_t *record = out->data + start;
  put_number (record, n, HEAD);
  memcpy (record + HEAD, data, n);
  encrypt (&seal->mine, record + HEAD, n);
  make_tag (&seal->mine, record, HEAD + n, record + HEAD + n);
  seal->mine.n++;
}

gint64
weft_seal_open (weft_seal *seal, const uint8_t *data, gsize n, GByteArray *out)
{
  uint8_t tag[TAG];
  guint start = out->len;

  if (n < HEAD)
    return 0;
  uint32_t bytes = number_at (data);
  if (bytes == 0 || bytes > WEFT_SEAL_MOST)
    return -1;
  if (n < bytes + WEFT_SEAL_OVERHEAD)
    return 0;
  make_tag (&seal->theirs, data, HEAD + bytes, tag);
  if (!is_equal (tag, data + HEAD + bytes, TAG))
    return -1;
  g_byte_array_append (out, data + HEAD, bytes);
  encrypt (&seal->theirs, out->data + start, bytes);
  seal->theirs.n++;
  return bytes + WEFT_SEAL_OVERHEAD;
}
