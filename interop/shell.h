/* shell.h - the words of the commands of a shell script, without running it.
 *
 * Variables, arrays, ${NAME:-DEFAULT}, $((sums and products)), quotes, comments, continued lines,
 * `if` with comparisons of texts and numbers, and `sh -c "..."` are followed.  A loop, a `case` or
 * a condition that needs a file or a program is refused with its line.  What the script does not
 * set ($1, $(date)) stays as it is written. */
#pragma once
#include <glib.h>

struct weft_shell_word {
  char *text;
  unsigned line;
};

/* The commands of a script: an array of arrays of struct weft_shell_word. The caller unrefs it.
 * NULL and an error that begins with "name:line: " if the script cannot be followed. */
GPtrArray *weft_shell_commands (const char *text, const char *name, GError **error);
