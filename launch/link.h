/* link.h - one end of a TCP connection of the rendezvous: frames in and out, encrypted once the
 * handshake has produced keys. */
#pragma once
#include "launch/wire.h"
#include <gio/gio.h>

struct weft_link {
  GSocket *socket;
  GByteArray *in;        /* received bytes of frames */
  gsize at, frame_bytes; /* where the frame begins that was returned last, and its length */

  weft_seal *seal;    /* NULL: the bytes are frames; else they are records that contain frames */
  GByteArray *sealed; /* received bytes of an incomplete record */
  GQueue out;         /* GBytes to be sent; values are shared with other connections */
  gsize out_at, out_bytes; /* bytes of the first of `out` that are in `wire`; bytes of all others */
  GByteArray *wire;        /* bytes as they are sent, from wire_at on */
  gsize wire_at;
};

/* Takes the socket over. */
void weft_link_init (struct weft_link *link, GSocket *socket);
void weft_link_clear (struct weft_link *link);

/* Encrypts from now on. The frames that were put before are still sent as they are; bytes received
 * after the frame that was returned last are records. FALSE: they are not. Takes `seal` over. */
gboolean weft_link_set_seal (struct weft_link *link, weft_seal *seal);

/* Queues a frame. `value` is the frame's value, which is then shared, or NULL to copy it. */
void weft_link_put (struct weft_link *link, const struct weft_frame *frame, GBytes *value);

/* Bytes that are queued. */
gsize weft_link_unsent (const struct weft_link *link);

/* Sends queued bytes: all of them if the socket blocks, else as many as it takes now. FALSE: the
 * connection is lost. */
gboolean weft_link_send (struct weft_link *link);

/* Receives some bytes once. FALSE: the connection is lost, or its records cannot be opened. */
gboolean weft_link_receive (struct weft_link *link);

/* Bytes that have been received and not returned. */
gsize weft_link_unread (const struct weft_link *link);

/* Parses the next frame that has been received. Returns 1; 0 if it is incomplete; -1 if it is
 * malformed or longer than `most` bytes. The frame is valid until the next call that receives. */
int weft_link_next (struct weft_link *link, uint32_t most, struct weft_frame *frame);
