#include "core/base/wrap.h"
#include <string.h>

/* How one line of text is broken into several. */
struct rule {
  int hang;         /* column at which each continuation line begins */
  /* text at the end of each line that is continued on the next line: " \" or "" */
  const char *more;
  const char *head; /* text at the begin of each continuation line: "#" for a comment, else "" */
  gboolean quotes;  /* TRUE: do not break a line inside a quoted string */
};

/* The position after one character, or after one escape sequence, in a line. *columns becomes the
 * width of that character. */
static const char *
step (const char *at, int *columns)
{
  *columns = *at != '\033';
  if (*columns)
    return g_utf8_next_char (at);
  while (*at && *at != 'm')
    at++;
  return *at ? at + 1 : at;
}

/* Number of columns that the text between two positions of a line takes. */
static int
width (const char *at, const char *end)
{
  int sum = 0, one;

  while (at < end && *at) {
    at = step (at, &one);
    sum += one;
  }
  return sum;
}

int
weft_wrap_width (const char *line)
{
  return width (line, line + strlen (line));
}

static const char *
word_end (const char *at, gboolean quotes)
{
  gboolean inside = FALSE;

  for (; *at && (*at != ' ' || inside); at++) {
    if (quotes && inside && *at == '\\' && at[1])
      at++;
    else if (quotes && *at == '"')
      inside = !inside;
  }
  return at;
}

static void
put_broken (GString *out, const char *line, int columns, const struct rule *rule)
{
  const int room = columns - (int) strlen (rule->more);
  int used = 0;

  for (const char *at = line; *at;) {
    const char *word = at + strspn (at, " "), *end = word_end (word, rule->quotes);
    int need = width (at, end);
    if (at > line && used + need > room) {
      g_string_append_printf (out, "%s\n%s%*s", rule->more, rule->head,
                              rule->hang - (int) strlen (rule->head), "");
      used = rule->hang;
      at = word;
      need = width (at, end);
    }
    g_string_append_len (out, at, end - at);
    used += need;
    at = end;
  }
}

/* Column at which the continuation of a broken line begins. */
static int
hang_of (const char *line, int columns)
{
  int begin = (int) strspn (line, " "), hang = begin + 2;

  for (const char *at = line + begin; (at = strstr (at, "  "));) {
    at += strspn (at, " ");
    int place = width (line, at);
    if (place > columns / 2)
      break;
    hang = place;
  }
  return hang;
}

static char *
wrapped (const char *text, int columns, gboolean rows)
{
  g_auto (GStrv) line = g_strsplit (text, "\n", -1);
  GString *out = g_string_new (NULL);

  for (unsigned i = 0; line[i]; i++) {
    gboolean comment = rows && *line[i] == '#';
    struct rule rule = { .more = rows && !comment ? " \\" : "", .head = comment ? "#" : "" };
    rule.quotes = rows && !comment;
    rule.hang = rows ? 4 : hang_of (line[i], columns);
    g_string_append (out, i ? "\n" : "");
    if (weft_wrap_width (line[i]) <= columns)
      g_string_append (out, line[i]);
    else
      put_broken (out, line[i], columns, &rule);
  }
  return g_string_free (out, FALSE);
}

char *
weft_wrap_lines (const char *text, int columns)
{
  return wrapped (text, columns, FALSE);
}

char *
weft_wrap_rows (const char *text, int columns)
{
  return wrapped (text, columns, TRUE);
}
