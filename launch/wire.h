/* wire.h - the protocol between clients of the rendezvous and its store: frames over TCP.
 *
 *   byte 0..3   number of bytes that follow; all numbers are little-endian
 *        4      kind
 *        5..8   a number
 *        9..10  length of the key
 *        11..   the key, printable ASCII; then the value, any bytes
 *
 * The peer is not trusted: every length and kind is checked before use. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* constant           word        sender: meaning (number; key; value) */
#define WEFT_FRAME_LIST(X)                                                                         \
  X (WEFT_FRAME_HELLO, "hello", "process: I am one of you (process; token; number of them, host)") \
  X (WEFT_FRAME_SET, "set", "process: a value for all (; key; value)")                             \
  X (WEFT_FRAME_GET, "get", "process: wants it, and waits (; key; )")                              \
  X (WEFT_FRAME_MEET, "meet", "process: has come, and waits for all others (who gets values; key; value)") \
  X (WEFT_FRAME_LACK, "lack", "process: who has not come (; key; )")                               \
  X (WEFT_FRAME_SAY, "say", "process: how far it is (; ; words)")                                  \
  X (WEFT_FRAME_REPORT, "report", "process: how far is everybody (milliseconds; ; own words)")              \
  X (WEFT_FRAME_ABORT, "abort", "process: all must end (; ; why)")                                 \
  X (WEFT_FRAME_BYE, "bye", "process: leaves, and all is well")                                    \
  X (WEFT_FRAME_WELCOME, "welcome", "store: all have come")                                        \
  X (WEFT_FRAME_REFUSED, "refused", "store: not one of us (; ; why)")                              \
  X (WEFT_FRAME_VALUE, "value", "store: what was wanted (; key; value)")                           \
  X (WEFT_FRAME_MET, "met", "store: all have come (; key; values that are not empty, packed)")     \
  X (WEFT_FRAME_TOLD, "told", "store: answers lack and report (; ; words)")                        \
  X (WEFT_FRAME_ASK, "ask", "store: say how far you are")                                          \
  X (WEFT_FRAME_STOP, "stop", "store: all must end (; ; why)")
#define WEFT_FRAME_ID(id, word, doc) id,
enum weft_frame_kind { WEFT_FRAME_LIST (WEFT_FRAME_ID) WEFT_N_FRAME };
#undef WEFT_FRAME_ID
extern const char *const weft_frame_words[];

/* Who receives the values of an exchange. The frame of the last process to call decides. */
enum weft_meet { WEFT_MEET_ALL, WEFT_MEET_FIRST };

/* Largest frame: the first one of a connection, and any later one. */
#define WEFT_FRAME_FIRST_BYTES 4096u
#define WEFT_FRAME_MOST_BYTES (64u << 20)
#define WEFT_FRAME_MOST_KEY 255u

struct weft_frame {
  enum weft_frame_kind kind;
  uint32_t number;
  const char *key;   /* key_bytes long; not zero-terminated after parsing */
  const void *value; /* value_bytes long */
  uint32_t key_bytes, value_bytes;
};

void weft_frame_put (GByteArray *out, const struct weft_frame *frame);

/* Parses the frame at the start of `data`. Returns its length, 0 if it is incomplete, or -1 if it
 * is malformed or longer than `most` bytes. The frame points into `data`. */
gint64 weft_frame_parse (const uint8_t *data, gsize n, uint32_t most, struct weft_frame *frame);

/* Sets TCP keepalive, so that the connection to a machine that was switched off ends after half a
 * minute, and TCP_NODELAY, so that small frames are sent at once. */
void weft_wire_watch (int socket);

/* Appends the value of one process to a message that holds the values of several. */
void weft_pack_add (GByteArray *pack, uint32_t process, GBytes *value);

/* Parses such a message: GBytes by process, NULL for a process without a value. NULL if it is not a
 * valid message of `n` processes. */
GPtrArray *weft_pack_parse (const void *data, gsize bytes, uint32_t n);
