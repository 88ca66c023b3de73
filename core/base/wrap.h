/* wrap.h - lines of text in the width of a terminal.  Characters are counted, not bytes; escape
 * sequences of colours have no width. */
#pragma once
#include <glib.h>

/* Number of columns of the terminal that a line takes. */
int weft_wrap_width (const char *line);

/* Breaks each line that is wider than `columns` between words. The rest of a line is indented to
 * its last gap of two or more blanks in the left half, else by two columns more than the line. A
 * word that is wider than the terminal is not broken. The caller frees the text. */
char *weft_wrap_lines (const char *text, int columns);

/* Like weft_wrap(), for rows of a language with quoted strings and comments after '#'. A broken row
 * ends with " \" before each continuation line. Continuation lines of a comment begin with "#". */
char *weft_wrap_rows (const char *text, int columns);
