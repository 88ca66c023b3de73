/* seal.h - authentication and encryption between processes that share a secret.
 *
 * Each side proves that it knows the secret by an HMAC-SHA256 (RFC 2104) of the transcript of the
 * handshake, which contains a random nonce of each side (wire.h). The secret itself is not sent.
 * The keys of the connection are HMACs of the same transcript. After the handshake, the bytes of
 * each direction are a sequence of records:
 *
 *   byte 0..3   number of bytes n, from 1 to WEFT_SEAL_MOST; little-endian
 *        4..    n bytes, encrypted with ChaCha20 (RFC 8439); the number of the record is the nonce
 *        4+n..  16 bytes: truncated HMAC-SHA256 of the number of the record and the bytes above
 *
 * A record that was changed, repeated, reordered or omitted cannot be opened. */
#pragma once
#include <glib.h>
#include <stdint.h>

#define WEFT_SEAL_NONCE 32u /* size in bytes of a nonce, and of a proof */
#define WEFT_SEAL_MOST 65536u
/* number of bytes that a record adds to its contents: length and authentication tag */
#define WEFT_SEAL_OVERHEAD 20u

enum weft_seal_side { WEFT_SEAL_CLIENT, WEFT_SEAL_STORE };

typedef struct weft_seal weft_seal;

/* Fills `bytes` with n random bytes from the kernel. */
void weft_seal_random (uint8_t *bytes, gsize n);

/* Computes the proof that `side` knows the secret. */
void weft_seal_prove (const char *secret, const GByteArray *transcript, enum weft_seal_side side,
                      uint8_t proof[WEFT_SEAL_NONCE]);

/* Whether `proof` is the proof of `side`. The running time does not depend on the bytes of
 * `proof`. */
gboolean weft_seal_is_proof (const char *secret, const GByteArray *transcript,
                             enum weft_seal_side side, const void *proof, gsize bytes);

/* Derives the keys of a connection, for the end at `side`. */
weft_seal *weft_seal_new (const char *secret, const GByteArray *transcript,
                          enum weft_seal_side side);
void weft_seal_free (weft_seal *seal);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_seal, weft_seal_free)

/* Appends the next record of this side, with n bytes from 1 to WEFT_SEAL_MOST, to `out`. */
void weft_seal_put (weft_seal *seal, const uint8_t *data, uint32_t n, GByteArray *out);

/* Opens the next record of the other side at the start of `data` and appends its bytes to `out`.
 * Returns the length of the record; 0 if the record is incomplete; -1 if it cannot be opened. */
gint64 weft_seal_open (weft_seal *seal, const uint8_t *data, gsize n, GByteArray *out);

/* Encrypts or decrypts n bytes in place with ChaCha20, from block `counter` on. */
void weft_seal_chacha20 (const uint8_t key[32], const uint8_t nonce[12], uint32_t counter,
                         uint8_t *data, gsize n);
