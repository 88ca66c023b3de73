/* wire.h - the protocol between clients of the rendezvous and its store: frames over TCP.
 *
 *   byte 0..3   number of bytes that follow; all numbers are little-endian
 *        4      kind of the frame
 *        5..8   a number, whose meaning depends on the kind
 *        9..10  length of the key in bytes
 *        11..   the key, printable ASCII; then the value, any bytes
 *
 * A connection begins with a handshake of these frames:
 *
 *   client: hello       the job, the process, and a random nonce
 *   store:  challenge   a random nonce; only if the job has a secret
 *   client: proof       HMAC of the two frames above with the secret; only after a challenge
 *   store:  admitted    the store's proof; no bytes if the job has no secret
 *
 * If the job has a secret, every later byte is encrypted and authenticated (seal.h). When all
 * processes have been admitted, the store sends each of them a welcome.
 *
 * The peer is not trusted: every length and kind is checked before use. */
#pragma once
#include "launch/seal.h"

/* Columns: constant; name; sender: meaning (number; key; value of the frame). */
#define WEFT_FRAME_LIST(X)                                                                         \
  X (WEFT_FRAME_HELLO, "hello", "client: joins the job (process; token; struct weft_hello)")       \
  X (WEFT_FRAME_PROOF, "proof", "client: knows the secret (; ; proof)")                            \
  X (WEFT_FRAME_SET, "set", "client: sets a value (; key; value)")                                 \
  X (WEFT_FRAME_GET, "get", "client: waits for a value (; key; )")                                 \
  X (WEFT_FRAME_EXCHANGE, "exchange", "client: waits for all (receivers; key; value)")             \
  X (WEFT_FRAME_MISSING, "missing", "client: asks which processes are missing (; key; )")          \
  X (WEFT_FRAME_STATUS, "status", "client: its status (; ; text)")                                 \
  X (WEFT_FRAME_REPORT, "report", "client: asks for all statuses (milliseconds; ; its status)")    \
  X (WEFT_FRAME_ABORT, "abort", "client: the job has failed (; ; reason)")                         \
  X (WEFT_FRAME_BYE, "bye", "client: signs off")                                                   \
  X (WEFT_FRAME_CHALLENGE, "challenge", "store: wants a proof (; ; nonce)")                        \
  X (WEFT_FRAME_ADMITTED, "admitted", "store: accepts a client (; ; proof)")                       \
  X (WEFT_FRAME_WELCOME, "welcome", "store: all processes are connected")                          \
  X (WEFT_FRAME_REFUSED, "refused", "store: rejects a client (; ; reason)")                        \
  X (WEFT_FRAME_VALUE, "value", "store: the value (; key; value)")                                 \
  X (WEFT_FRAME_EXCHANGED, "exchanged", "store: all have called (; key; packed values)")           \
  X (WEFT_FRAME_ANSWER, "answer", "store: answers missing and report (; ; text)")                  \
  X (WEFT_FRAME_ASK_STATUS, "ask_status", "store: asks for a status")                              \
  X (WEFT_FRAME_STOP, "stop", "store: the job has failed (; ; reason)")
#define WEFT_FRAME_ID(id, word, doc) id,
enum weft_frame_kind { WEFT_FRAME_LIST (WEFT_FRAME_ID) WEFT_N_FRAME };
#undef WEFT_FRAME_ID
extern const char *const weft_frame_words[];

/* The processes that receive the values of an exchange: all, or process 0 only. The frame of the
 * last process to call decides. */
enum weft_receivers { WEFT_RECEIVERS_ALL, WEFT_RECEIVERS_FIRST };

/* Maximum sizes in bytes, in both directions: a value, a key, and the part of a frame after its
 * length. FIRST_BYTES limits frames before a connection is admitted, MOST_BYTES later frames. */
#define WEFT_FRAME_MOST_VALUE (32u << 20)
#define WEFT_FRAME_MOST_KEY 255u
#define WEFT_FRAME_FIRST_BYTES 4096u
#define WEFT_FRAME_MOST_BYTES (WEFT_FRAME_MOST_VALUE + WEFT_FRAME_MOST_KEY + 7)

struct weft_frame {
  enum weft_frame_kind kind;
  uint32_t number;
  const char *key;   /* has key_bytes bytes; not zero-terminated after parsing */
  const void *value; /* has value_bytes bytes */
  uint32_t key_bytes, value_bytes;
};

/* Appends the bytes of a frame to `out`. */
void weft_frame_put (GByteArray *out, const struct weft_frame *frame);

/* Appends the bytes of a frame up to its value, which the caller sends next. */
void weft_frame_put_head (GByteArray *out, const struct weft_frame *frame);

/* Parses the frame at the start of `data`. Returns the length of the frame; 0 if the frame is
 * incomplete; -1 if it is malformed or longer than `most` bytes. The frame points into `data`. */
gint64 weft_frame_parse (const uint8_t *data, gsize n, uint32_t most, struct weft_frame *frame);

/* The value of the first frame (hello) of a connection. */
struct weft_hello {
  uint32_t n; /* world size */
  uint8_t nonce[WEFT_SEAL_NONCE];
  char host[256]; /* host name of the client, printable; for messages */
};

/* Packs the value of a hello, the first frame of a connection. The caller unrefs the value. */
GBytes *weft_hello_pack (const struct weft_hello *hello);

/* Parses the value of a hello frame. FALSE: the frame is not a hello. */
gboolean weft_hello_parse (const struct weft_frame *frame, struct weft_hello *hello);

/* A text from a peer as valid UTF-8 of at most WEFT_WIRE_MOST_TEXT bytes. Spaces replace characters
 * that could control a terminal: control, format and unassigned characters, line separators. The
 * caller frees the text. */
#define WEFT_WIRE_MOST_TEXT (1u << 20)
char *weft_wire_text (const void *data, gsize n);

/* Sets TCP keepalive and TCP_NODELAY. With keepalive, the connection to a machine that was switched
 * off ends after half a minute; with TCP_NODELAY, small frames are sent at once. */
void weft_wire_set_keepalive (int socket);

/* Appends the value of one process, and WEFT_PACK_OVERHEAD bytes, to a message that contains the
 * values of several processes. */
#define WEFT_PACK_OVERHEAD 8u
void weft_pack_add (GByteArray *pack, uint32_t process, GBytes *value);

/* Parses a message of packed values. Returns an array of GBytes by process, NULL for a process
 * without a value; the caller unrefs the array. NULL: not a valid message of `n` processes. */
GPtrArray *weft_pack_parse (const void *data, gsize bytes, uint32_t n);
