#include "core/base/suggest.h"
#include <glib.h>
#include <string.h>

/* Names are compared very often, so letters are converted to lower case without a function call. */
static inline char
next_letter (const char **s)
{
  while (**s == '-' || **s == '_' || **s == '.')
    (*s)++;
  char letter = **s;
  *s += letter != '\0';
  return letter >= 'A' && letter <= 'Z' ? (char) (letter - 'A' + 'a') : letter;
}

int
weft_same_name (const char *a, const char *b)
{
  for (;;) {
    char x = next_letter (&a), y = next_letter (&b);
    if (x != y)
      return 0;
    if (!x)
      return 1;
  }
}

/* The Levenshtein distance of two names. `row` is memory for one row of the usual table. */
static unsigned
distance (const char *a, const char *b)
{
  size_t n = strlen (b);
  g_autofree unsigned *row = g_new (unsigned, n + 1);

  for (size_t j = 0; j <= n; j++)
    row[j] = j;
  for (; *a; a++) {
    unsigned diagonal = row[0]++;
    for (size_t j = 1; j <= n; j++) {
      unsigned replace = diagonal + (g_ascii_tolower (*a) != g_ascii_tolower (b[j - 1]));
      diagonal = row[j];
      row[j] = MIN (replace, MIN (row[j], row[j - 1]) + 1);
    }
  }
  return row[n];
}

const char *
weft_suggest (const char *typed, weft_name_at name_at, const void *table, unsigned n)
{
  const char *best = NULL;
  unsigned best_distance = 2 + strlen (typed) / 3;

  if (strlen (typed) > 200)
    return NULL;
  for (unsigned i = 0; i < n; i++) {
    const char *name = name_at (table, i);
    unsigned d = distance (typed, name);
    if (d < best_distance) {
      best = name;
      best_distance = d;
    }
  }
  return best;
}

static const char *
strv_at (const void *table, unsigned i)
{
  return ((const char *const *) table)[i];
}

const char *
weft_suggest_strv (const char *typed, const char *const *names)
{
  return weft_suggest (typed, strv_at, names, g_strv_length ((char **) names));
}

/* The letters and digits of a name, in lower case. The caller frees the text. */
static char *
letters_of (const char *name)
{
  GString *letters = g_string_new (NULL);

  for (char c; (c = next_letter (&name));)
    g_string_append_c (letters, c);
  return g_string_free (letters, FALSE);
}

static gboolean
contains (const char *name, const char *part)
{
  return strstr (name, part) != NULL;
}

static gboolean
abbreviates (const char *name, const char *part)
{
  if (*name != *part)
    return FALSE;
  for (; *part && name; part++)
    if ((name = strchr (name, *part)))
      name++;
  return name != NULL;
}

/* At most this many names are suggested, because a longer list does not help. */
enum { LEAST_LETTERS = 2, MOST_NAMES = 16 };

/* The names that match the typed text, formatted as "a, b or c"; NULL if none match. */
static char *
join_matches (const char *typed, const char *const *names,
              gboolean (*matches) (const char *name, const char *part))
{
  g_autofree char *part = letters_of (typed);
  g_autoptr (GPtrArray) found = g_ptr_array_new ();

  for (; strlen (part) >= LEAST_LETTERS && *names; names++) {
    g_autofree char *name = letters_of (*names);
    if (matches (name, part))
      g_ptr_array_add (found, (char *) *names);
  }
  if (found->len == 0 || found->len > MOST_NAMES)
    return NULL;
  GString *text = g_string_new (found->pdata[0]);
  for (unsigned i = 1; i < found->len; i++)
    g_string_append_printf (text, "%s%s", i + 1 < found->len ? ", " : " or ",
                            (char *) found->pdata[i]);
  return g_string_free (text, FALSE);
}

char *
weft_suggest_part (const char *typed, const char *const *names)
{
  char *text = join_matches (typed, names, contains);

  if (!text)
    text = g_strdup (weft_suggest_strv (typed, names));
  return text ? text : join_matches (typed, names, abbreviates);
}
