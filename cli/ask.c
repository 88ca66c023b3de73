#include "cli/ask.h"
#include "cli/cli.h"
#include "core/base/wrap.h"
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

gboolean
weft_cli_ask (int argc, char **argv, gboolean markdown, struct weft_cli_ask *ask, GError **error)
{
  const struct weft_cli_flag flags[] = { { .name = "markdown", .on = &ask->markdown } };
  const struct weft_cli_page page = { .flags = flags,
                                      .n_flags = markdown ? G_N_ELEMENTS (flags) : 0 };
  g_auto (weft_cli_input) input = { 0 };

  memset (ask, 0, sizeof *ask);
  if (!weft_cli_read (&page, argc, argv, &input, error))
    return FALSE;
  ask->name = input.operand;
  ask->json = input.json;
  ask->help = input.help;
  return TRUE;
}

int
weft_cli_columns_of (int fd)
{
  const char *set = g_getenv ("COLUMNS");
  struct winsize size;
  guint64 columns;

  if (ioctl (fd, TIOCGWINSZ, &size) == 0 && size.ws_col)
    return size.ws_col;
  if (set && g_ascii_string_to_unsigned (set, 10, 1, G_MAXINT16, &columns, NULL))
    return (int) columns;
  return G_MAXINT;
}

int
weft_cli_columns (void)
{
  return weft_cli_columns_of (STDOUT_FILENO);
}

void
weft_cli_print_fitting (const char *text)
{
  g_autofree char *fitting = weft_wrap_lines (text, weft_cli_columns ());
  fputs (fitting, stdout);
}

/* Maximum width of wrapped text in columns: longer lines are hard to read on any terminal. */
enum { MOST_COLUMNS = 100 };

void
weft_cli_print_wrapped (const char *text, int indent, int columns)
{
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  int room = MAX (MIN (columns, MOST_COLUMNS) - indent, 20);

  for (unsigned l = 0; lines[l]; l++) {
    g_auto (GStrv) words = g_strsplit (lines[l], " ", -1);
    int used = words[0] ? weft_wrap_width (words[0]) : 0;
    printf ("%*s%s", l ? indent : 0, "", words[0] ? words[0] : "");
    for (unsigned i = 1; words[0] && words[i]; i++) {
      int width = weft_wrap_width (words[i]);
      gboolean fits = used + 1 + width <= room;
      if (fits)
        printf (" %s", words[i]);
      else
        printf ("\n%*s%s", indent, "", words[i]);
      used = fits ? used + 1 + width : width;
    }
    printf ("\n");
  }
}

/* LEAST_BESIDE: text is wrapped beside other text if at least this many columns are free there.
 * BELOW: indentation of text that is wrapped below other text. */
enum { LEAST_BESIDE = 30, BELOW = 8 };

void
weft_cli_print_beside (const char *text, int used, int columns)
{
  if (used < 0 || g_utf8_strlen (text, -1) <= columns - used)
    printf ("%s\n", text);
  else if (columns - used >= LEAST_BESIDE)
    weft_cli_print_wrapped (text, used, columns);
  else {
    printf ("\n%*s", BELOW, "");
    weft_cli_print_wrapped (text, BELOW, columns);
  }
}

void
weft_cli_print_rest (const char *text, int used, int columns)
{
  if (used < 0 || g_utf8_strlen (text, -1) <= columns - used)
    printf ("%s\n", text);
  else if (columns - used > 10) {
    g_autofree char *part = g_utf8_substring (text, 0, columns - used - 3);
    printf ("%s...\n", part);
  } else
    printf ("\n");
}
