/* listening.h - the sockets on which the process of rank 0 waits for the others. */
#pragma once
#include <gio/gio.h>
#include <stdint.h>

/* Whether a host is a loopback name or address, which only this machine can reach: "localhost",
 * "127.0.0.1", "::1". FALSE for another name that resolves to a loopback address: other machines
 * may resolve the name differently. */
gboolean weft_host_is_loopback (const char *host);

/* The sockets that listen, all on one port. */
struct weft_listening {
  GPtrArray *sockets;
  uint16_t port;
  gboolean everywhere; /* the sockets listen on every address of this machine */
};

/* Listens on a port (0: any free port) of the addresses that `host` resolves to. If none of them
 * belongs to this machine, for example because /etc/hosts maps the host's name to 127.0.1.1 or
 * because the address is that of a Kubernetes service, listens on every address, provided that
 * `everywhere` allows it. The caller clears *listening. */
gboolean weft_listening_open (const char *host, uint16_t port, gboolean everywhere,
                              struct weft_listening *listening, GError **error);
void weft_listening_clear (struct weft_listening *listening);

/* An address at which this process can connect to its own sockets. The caller unrefs it. */
GSocketAddress *weft_listening_own_address (const struct weft_listening *listening);
