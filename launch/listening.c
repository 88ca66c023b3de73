#include "launch/listening.h"
#include "core/base/error.h"
#include "launch/signals.h"
#include <netinet/in.h>
#include <string.h>

#define BACKLOG 1024
#define MOST_TRIES 16 /* free ports that are tried, each on all addresses of the host */

/* The host without the brackets of "[::1]". The caller frees the string. */
static char *
bare_host (const char *host)
{
  gsize n = strlen (host);

  return *host == '[' && n > 2 && host[n - 1] == ']' ? g_strndup (host + 1, n - 2)
                                                     : g_strdup (host);
}

gboolean
weft_host_is_loopback (const char *host)
{
  g_autofree char *bare = bare_host (host);
  g_autoptr (GInetAddress) address = g_inet_address_new_from_string (bare);

  return address ? g_inet_address_get_is_loopback (address)
                 : g_ascii_strcasecmp (bare, "localhost") == 0;
}

/* --------------------------------------------------------------------------- sockets */

static GSocket *
listen_on (GInetAddress *at, uint16_t port, GError **error)
{
  GSocketFamily family = g_inet_address_get_family (at);
  g_autoptr (GSocket) socket =
      g_socket_new (family, G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_TCP, error);
  g_autoptr (GSocketAddress) address = g_inet_socket_address_new (at, port);

  if (!socket)
    return NULL;
  g_socket_set_listen_backlog (socket, BACKLOG);
  g_socket_set_blocking (socket, FALSE);
  if (family == G_SOCKET_FAMILY_IPV6) /* the IPv6 wildcard address also accepts IPv4 */
    g_socket_set_option (socket, IPPROTO_IPV6, IPV6_V6ONLY, !g_inet_address_get_is_any (at), NULL);
  if (!g_socket_bind (socket, address, TRUE, error) || !g_socket_listen (socket, error))
    return NULL;
  return g_steal_pointer (&socket);
}

static gboolean
is_about_port (const GError *why)
{
  return g_error_matches (why, G_IO_ERROR, G_IO_ERROR_ADDRESS_IN_USE) ||
         g_error_matches (why, G_IO_ERROR, G_IO_ERROR_PERMISSION_DENIED);
}

/* Listens on one more address. FALSE: the port is in use there, or not allowed. An address that
 * does not belong to this machine is skipped. */
static gboolean
add_address (struct weft_listening *l, GInetAddress *at, uint16_t port, GError **error)
{
  g_autoptr (GError) why = NULL;
  GSocket *socket = listen_on (at, l->sockets->len ? l->port : port, &why);

  if (!socket && is_about_port (why)) {
    g_propagate_error (error, g_steal_pointer (&why));
    return FALSE;
  }
  if (!socket)
    return TRUE;
  g_autoptr (GSocketAddress) local = g_socket_get_local_address (socket, NULL);
  l->port = local ? g_inet_socket_address_get_port (G_INET_SOCKET_ADDRESS (local)) : port;
  g_ptr_array_add (l->sockets, socket);
  return TRUE;
}

/* ------------------------------------------------------------------------- addresses */

/* The addresses of a host, or NULL. GLib resolves names in threads that stay alive afterwards; they
 * must block signals. */
static GList *
resolve (const char *host)
{
  g_autoptr (GResolver) resolver = g_resolver_get_default ();
  g_autofree char *bare = bare_host (host);
  sigset_t before;

  weft_signals_block (&before);
  GList *all = g_resolver_lookup_by_name (resolver, bare, NULL, NULL);
  weft_signals_restore (&before);
  return all;
}

/* Listens on the addresses of the host: on loopback addresses if the host is a loopback name or
 * address, else on all other addresses. */
static gboolean
add_host (struct weft_listening *l, const char *host, uint16_t port, GError **error)
{
  GList *all = resolve (host);
  gboolean loopback = weft_host_is_loopback (host), ok = TRUE;

  for (GList *at = all; at && ok; at = at->next)
    if (!g_inet_address_get_is_loopback (at->data) == !loopback)
      ok = add_address (l, at->data, port, error);
  g_resolver_free_addresses (all);
  return ok;
}

/* Listens on every address of this machine: IPv6 and IPv4, or only IPv4 if the machine has no
 * IPv6. */
static gboolean
add_everywhere (struct weft_listening *l, uint16_t port, GError **error)
{
  static const GSocketFamily families[] = { G_SOCKET_FAMILY_IPV6, G_SOCKET_FAMILY_IPV4 };
  gboolean ok = TRUE;

  for (unsigned i = 0; i < G_N_ELEMENTS (families) && ok && l->sockets->len == 0; i++) {
    g_autoptr (GInetAddress) any = g_inet_address_new_any (families[i]);
    ok = add_address (l, any, port, error);
  }
  l->everywhere = ok && l->sockets->len > 0;
  return ok;
}

/* Listens on one port of the host or, if `everywhere` is set and no address of the host belongs to
 * this machine, of every address. FALSE with an error if the port is in use. */
static gboolean
try_port (struct weft_listening *l, const char *host, uint16_t port, gboolean everywhere,
          GError **error)
{
  g_ptr_array_set_size (l->sockets, 0);
  return add_host (l, host, port, error) &&
         (l->sockets->len > 0 || !everywhere || add_everywhere (l, port, error));
}

gboolean
weft_listening_open (const char *host, uint16_t port, gboolean everywhere, struct weft_listening *l,
                     GError **error)
{
  g_autoptr (GError) why = NULL;
  int tries = port ? 1 : MOST_TRIES;

  *l = (struct weft_listening){ .sockets = g_ptr_array_new_with_free_func (g_object_unref) };
  while (tries-- > 0 && !try_port (l, host, port, everywhere, &why))
    if (tries > 0)
      g_clear_error (&why);
  if (why)
    return weft_run_error (error,
                           "port %u of this machine, for the rendezvous of rank 0: %s "
                           "(set MASTER_PORT to use another)",
                           port, why->message);
  return l->sockets->len > 0 ||
         weft_run_error (error,
                         "%s: found no address of this machine, wanted one for the rendezvous of "
                         "rank 0 (set MASTER_ADDR to a name or address of this machine)",
                         host);
}

void
weft_listening_clear (struct weft_listening *l)
{
  g_clear_pointer (&l->sockets, g_ptr_array_unref);
}

GSocketAddress *
weft_listening_own_address (const struct weft_listening *l)
{
  GSocketAddress *address = g_socket_get_local_address (l->sockets->pdata[0], NULL);
  GInetAddress *at =
      address ? g_inet_socket_address_get_address (G_INET_SOCKET_ADDRESS (address)) : NULL;

  if (at && !g_inet_address_get_is_any (at))
    return address;
  g_autoptr (GInetAddress) loopback =
      g_inet_address_new_loopback (at ? g_inet_address_get_family (at) : G_SOCKET_FAMILY_IPV4);
  g_clear_object (&address);
  return g_inet_socket_address_new (loopback, l->port);
}
