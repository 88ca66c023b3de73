/* nodelist.h - lists of hosts as Slurm writes them: "node[03-05,7],gpu1", "rack[1-2]n[01-16]". */
#pragma once
#include <glib.h>

/* Most hosts of a list. */
#define WEFT_NODELIST_MOST 1000000u

/* The hosts in order; NULL when it is no such list.  Caller frees with g_strfreev(). */
char **weft_nodelist_hosts (const char *text, GError **error);
