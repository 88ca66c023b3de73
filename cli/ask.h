/* ask.h - arguments of the commands that print a table or one of its rows: knobs, rules, models.
 * Also functions that print text to a terminal. */
#pragma once
#include <glib.h>

struct weft_cli_ask {
  const char *name; /* name of the row to show; NULL: all rows */
  gboolean json, markdown, help;
};

/* Reads the arguments [NAME] [--json] [--markdown] [--help]. `markdown`: whether the command has
 * the flag --markdown. */
gboolean weft_cli_ask (int argc, char **argv, gboolean markdown, struct weft_cli_ask *ask,
                       GError **error);

/* Number of columns of the terminal on stdout. If stdout is a file or a pipe, the value of the
 * environment variable COLUMNS; if that is not set, G_MAXINT. */
int weft_cli_columns (void);

/* Columns of the terminal of a file descriptor; otherwise like weft_cli_columns(). */
int weft_cli_columns_of (int fd);

/* Prints the lines of a report. Lines that are wider than the terminal are wrapped between
 * words. */
void weft_cli_print_fitting (const char *text);

/* Prints lines of text, wrapped between words at `columns` columns but at most 100, and indented by
 * `indent` columns.  The caller has already printed the indentation of the first line. */
void weft_cli_print_wrapped (const char *text, int indent, int columns);

/* Prints a text from column `used` on and ends the line. A text that does not fit in the rest of
 * the line is wrapped: beside the text that was printed before, or in the lines below. */
void weft_cli_print_beside (const char *text, int used, int columns);

/* Prints a text at column `used`, cut off before column `columns`, and ends the line. */
void weft_cli_print_rest (const char *text, int used, int columns);
