/* link.h - one end of a TCP connection of the rendezvous: frames in and out, encrypted once the
 * handshake has produced keys. */
#pragma once
#include "launch/wire.h"
#include <gio/gio.h>

struct weft_link {
  GSocket *socket;
  GByteArray *in;        /* received bytes that contain frames */
  gsize at, frame_bytes; /* position and length in `in` of the frame that was returned last */

  /* NULL: frames are sent and received without encryption; else frames are in encrypted records */
  weft_seal *seal;
  GByteArray *sealed; /* received bytes of a record that is not complete */
  GQueue out;         /* GBytes to be sent; values are shared with other connections */
  /* bytes of the first element of `out` that are already in `wire`; number of bytes left in
   * `out` */
  gsize out_at, out_bytes;
  GByteArray *wire;        /* bytes to send, from position wire_at on; encrypted if `seal` is set */
  gsize wire_at;
};

/* Initialises a link, which then owns the socket. */
void weft_link_init (struct weft_link *link, GSocket *socket);
void weft_link_clear (struct weft_link *link);

/* Encrypts the frames that are queued after this call; frames that are queued already are sent
 * without encryption. Received bytes after the last returned frame are decrypted as records. FALSE:
 * they are not valid records. The link then owns `seal`. */
gboolean weft_link_set_seal (struct weft_link *link, weft_seal *seal);

/* Queues a frame. `value`: the frame's value, which the queue shares; NULL: the queue copies
 * frame->value. */
void weft_link_put (struct weft_link *link, const struct weft_frame *frame, GBytes *value);

/* Number of bytes that are queued and not yet sent. */
gsize weft_link_unsent (const struct weft_link *link);

/* Sends queued bytes: all of them if the socket blocks, else as many as the socket accepts now.
 * FALSE: the connection is lost. */
gboolean weft_link_send (struct weft_link *link);

/* Calls g_socket_receive() once. FALSE: the connection is lost, or its records cannot be opened. */
gboolean weft_link_receive (struct weft_link *link);

/* Number of bytes that have been received but not yet returned in a frame. */
gsize weft_link_unread (const struct weft_link *link);

/* Parses the next frame that has been received. Returns 1 if the frame is complete, 0 if it is
 * incomplete, -1 if it is malformed or longer than `most` bytes. The frame is valid until the next
 * call that receives. */
int weft_link_next (struct weft_link *link, uint32_t most, struct weft_frame *frame);
