/* conf.h - the one INI reader (on top of GKeyFile): entries with their line numbers.
 *
 * Accepts `# comment` on its own line and after a value (preceded by a blank).  A duplicate key in
 * a section, a line that is no entry, and text that is not UTF-8 are errors that name file and
 * line. */
#pragma once
#include "core/base/field.h"

struct weft_conf_entry {
  const char *section, *key, *value; /* owned by the weft_conf */
  unsigned line;                     /* 1-based */
};

typedef struct weft_conf {
  char *name;                    /* name of the file in messages */
  unsigned n_entry;
  struct weft_conf_entry *entry; /* the entries, n_entry of them, in the order of the file */
  GStringChunk *strings;
} weft_conf;

/* Reads a file, or parses a text of `length` bytes (-1: up to its NUL) that messages call `name`.
 * NULL and an error if the input is bad. */
weft_conf *weft_conf_load (const char *path, GError **error);
weft_conf *weft_conf_parse (const char *text, gssize length, const char *name, GError **error);
void weft_conf_free (weft_conf *conf);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_conf, weft_conf_free)

/* Prefixes an input error with "file:line: [section] ".  Always returns FALSE. */
gboolean weft_conf_blame (const weft_conf *conf, const struct weft_conf_entry *entry,
                          GError **error);

/* The path of a file; caller frees.  A name with a slash or with `suffix` is a path.  Any other
 * name is that of a bundled file of `folder`; case, dashes, dots and underscores are ignored.  The
 * error for an unknown name suggests the nearest name. */
char *weft_data_find (const char *folder, const char *name, const char *suffix, GError **error);

/* Names of the bundled files of a folder, without suffix, sorted; free with g_strfreev(). */
char **weft_data_names (const char *folder, const char *suffix);

/* The folder of bundled data: $WEFT_DATA; if that is not set, share/weft of the installation; if
 * Weft is not installed, the source folder. */
const char *weft_data_dir (void);
