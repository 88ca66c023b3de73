/* owner.h - the user at the other end of a connection within this machine. */
#pragma once
#include <gio/gio.h>
#include <sys/types.h>

enum weft_owner {
  /* the user is unknown, because the kernel's table of connections cannot be read */
  WEFT_OWNER_UNKNOWN,
  /* the table of connections does not contain the other end, which may have been closed */
  WEFT_OWNER_GONE,
  WEFT_OWNER_KNOWN,
};

/* Whether the other end of a connection may belong to a process of this user; TRUE if its user is
 * unknown. FALSE: the other end is closed or belongs to another user. In a job without a secret,
 * both ends of a connection make this check. */
gboolean weft_owner_is_this_user (GSocket *socket);

/* Finds the user who opened the other end of a TCP connection, from /proc/net/tcp and tcp6. */
enum weft_owner weft_owner_find (GSocket *socket, uid_t *user);
