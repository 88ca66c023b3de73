/* nodelist.h - Slurm host lists: "node[03-05,7],gpu1", "rack[1-2]n[01-16]". */
#pragma once
#include <glib.h>

/* Maximum number of hosts in a list. */
#define WEFT_NODELIST_MOST 1000000u

/* Expands a list, in order. NULL with an error if the text is malformed. The caller frees the array
 * with g_strfreev(). */
char **weft_nodelist_hosts (const char *text, GError **error);
