#include "launch/owner.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Appends an address in the format of /proc/net/tcp: words of 4 bytes in the byte order of this
 * machine, then the port. */
static void
append_address (GString *text, GSocketAddress *address)
{
  GInetSocketAddress *at = G_INET_SOCKET_ADDRESS (address);
  GInetAddress *host = g_inet_socket_address_get_address (at);
  const guint8 *bytes = g_inet_address_to_bytes (host);

  for (gsize i = 0; i < g_inet_address_get_native_size (host); i += 4) {
    guint32 word;
    memcpy (&word, bytes + i, sizeof word);
    g_string_append_printf (text, "%08X", word);
  }
  g_string_append_printf (text, ":%04X ", g_inet_socket_address_get_port (at));
}

enum weft_owner
weft_owner_find (GSocket *socket, uid_t *user)
{
  g_autoptr (GSocketAddress) theirs = g_socket_get_remote_address (socket, NULL),
                             ours = g_socket_get_local_address (socket, NULL);
  g_autoptr (GString) wanted = g_string_new (" ");
  g_autofree char *table = NULL;
  unsigned number;

  if (!G_IS_INET_SOCKET_ADDRESS (theirs) || !G_IS_INET_SOCKET_ADDRESS (ours))
    return WEFT_OWNER_UNKNOWN;
  gboolean ipv6 = g_socket_address_get_family (theirs) == G_SOCKET_FAMILY_IPV6;
  if (!g_file_get_contents (ipv6 ? "/proc/net/tcp6" : "/proc/net/tcp", &table, NULL, NULL))
    return WEFT_OWNER_UNKNOWN;
  /* searches the row of the other end, which begins with the address of the other end */
  append_address (wanted, theirs);
  append_address (wanted, ours);
  const char *row = strstr (table, wanted->str);
  /* The columns after the addresses: state, queues, timer, retransmissions, user. */
  if (!row || sscanf (row + wanted->len, "%*x %*x:%*x %*x:%*x %*x %u", &number) != 1)
    return WEFT_OWNER_GONE;
  *user = number;
  return WEFT_OWNER_KNOWN;
}

gboolean
weft_owner_is_this_user (GSocket *socket)
{
  uid_t user;
  enum weft_owner found = weft_owner_find (socket, &user);

  return found == WEFT_OWNER_UNKNOWN || (found == WEFT_OWNER_KNOWN && user == geteuid ());
}
