/* ask.h - the command line of a command that lists a table or shows one row of it: knobs, rules.
 * weft_cli_read() does the reading. */
#pragma once
#include <glib.h>

struct weft_cli_ask {
  const char *name; /* NULL: all rows */
  gboolean json, markdown, help;
};

/* Reads [NAME] [--json] [--markdown] [--help]; `markdown` says whether the command has that form.
 */
gboolean weft_cli_ask (int argc, char **argv, gboolean markdown, struct weft_cli_ask *ask,
                       GError **error);

/* Columns of the terminal on stdout; G_MAXINT when it is a file or a pipe. */
int weft_cli_columns (void);

/* Prints as much of a line as fits before `columns` when `used` are taken, and ends the line. */
void weft_cli_print_rest (const char *text, int used, int columns);
