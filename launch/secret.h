/* secret.h - the secret that the processes of a job share. */
#pragma once
#include <glib.h>

/* Minimum number of characters of a secret: whoever records the handshake can guess short secrets
 * offline. */
#define WEFT_SECRET_LEAST 16u

/* Checks the length of a secret; `name` is the variable or file that contains it. */
gboolean weft_secret_check (const char *secret, const char *name, GError **error);

/* Reads the first line of a file that only its owner can read. If the file is absent and `create`
 * is set, creates it with a random secret and mode 0600; if several processes create the file at
 * the same time, all of them return the same secret. The caller frees the string. */
char *weft_secret_read (const char *path, gboolean create, GError **error);
