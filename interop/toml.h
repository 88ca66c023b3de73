/* toml.h - the values of a TOML document with their places, read by tomlc17. */
#pragma once
#include <glib.h>

struct weft_toml_value {
  char *path; /* "training.seq_len" */
  /* the value as text: of a number, a text that g_ascii_strtod() reads; of a list, its items
   * separated by commas */
  char *text;
  unsigned line;
};

/* All values in the order of the file: an array of struct weft_toml_value, which the caller unrefs.
 * NULL and an error "name:line: ..." if tomlc17 refuses the text, or if it has lists of tables or
 * dates. */
GArray *weft_toml_values (const char *text, const char *name, GError **error);
