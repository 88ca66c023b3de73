/* sheets.h - the commands `weft topologies` and `weft stacks`: they print a list of the bundled
 * .ini files, or the page of one file with the comments on its keys, which name the sources. */
#pragma once
#include "core/base/sheet.h"

/* Another form of a file that the command shows. */
struct weft_cli_sheet_form {
  gboolean (*claims) (const char *path); /* whether the file has this form */
  int (*show) (const char *path, gboolean json);
  const char *word; /* in the help, "a SimGrid platform (.xml)"; NULL: it is an .ini file too */
};

struct weft_cli_sheets {
  const struct weft_sheet *sheet;
  const char *command, *example; /* "topologies", "dgx-h100" */
  /* heads of the table's columns for this kind of file, NULL-terminated */
  const char *const *heads;
  char *(*cell) (const union weft_value *values, unsigned column);
  const struct weft_cli_sheet_form *forms; /* the last has no claims(); NULL: no other forms */
};

/* Runs the command with arguments [NAME] [--json] [--help]. Returns the exit status. */
int weft_cli_sheets (const struct weft_cli_sheets *kind, int argc, char **argv);

/* The comment on the value in row `row` of the table, in the file that gives the value: it names
 * the source of the number. "" for a default. NULL with an error if the file cannot be read. The
 * caller frees the text. */
char *weft_cli_field_source (const weft_sheet_file *file, unsigned row, GError **error);

/* A value as text with a human-readable unit. The caller frees the text. */
char *weft_cli_field_human (const struct weft_field *field, union weft_value value);
