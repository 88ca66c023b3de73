/* ask.h - arguments of the commands that list a table or show one row of it: knobs, rules, models.
 * weft_cli_read() parses them. */
#pragma once
#include <glib.h>

struct weft_cli_ask {
  const char *name; /* NULL: all rows */
  gboolean json, markdown, help;
};

/* Reads [NAME] [--json] [--markdown] [--help]; `markdown`: whether the command has that flag. */
gboolean weft_cli_ask (int argc, char **argv, gboolean markdown, struct weft_cli_ask *ask,
                       GError **error);

/* Columns of the terminal on stdout; G_MAXINT when it is a file or a pipe. */
int weft_cli_columns (void);

/* Prints lines of text, wrapped between words at `columns`, or 100 if that is less, and indented by
 * `indent`.  The caller has already printed the indentation of the first line. */
void weft_cli_print_wrapped (const char *text, int indent, int columns);

/* Prints a text at column `used`, cut off before column `columns`, and ends the line. */
void weft_cli_print_rest (const char *text, int used, int columns);
