#include "launch/nodelist.h"
#include "core/base/error.h"
#include <stdint.h>
#include <string.h>

/* Maximum number of brackets in a name (Slurm allows five: MAX_DIMS) and of digits in a number. */
#define MOST_BRACKETS 8
#define MOST_DIGITS 9

static gboolean
refuse (const char *text, const char *at, const char *wanted, GError **error)
{
  return weft_bad_input (error, "list of hosts \"%.200s\": found \"%.20s\", wanted %s", text, at,
                         wanted);
}

/* Reads the digits at *at. *width receives their number, which is needed to print leading zeros. */
static gboolean
read_number (const char **at, uint32_t *value, int *width)
{
  *value = 0;
  for (*width = 0; g_ascii_isdigit (**at) && *width < MOST_DIGITS; ++*at, ++*width)
    *value = *value * 10 + (uint32_t) (**at - '0');
  return *width > 0 && !g_ascii_isdigit (**at);
}

/* Appends `head` followed by each number of a range. */
static gboolean
add_range (const char *head, uint32_t from, uint32_t to, int width, GPtrArray *out)
{
  if ((uint64_t) to - from + 1 + out->len > WEFT_NODELIST_MOST)
    return FALSE;
  for (uint32_t value = from; value <= to; value++)
    g_ptr_array_add (out, g_strdup_printf ("%s%0*u", head, width, value));
  return TRUE;
}

/* Reads "03-05" or "7". */
static gboolean
read_range (const char **at, uint32_t *from, uint32_t *to, int *width)
{
  int other;

  if (!read_number (at, from, width))
    return FALSE;
  *to = *from;
  if (**at != '-')
    return TRUE;
  ++*at;
  return read_number (at, to, &other) && *to >= *from;
}

/* Appends the names that `head` and one bracket expand to. *at moves past the bracket. */
static gboolean
read_bracket (const char *text, const char **at, const char *head, GPtrArray *names, GError **error)
{
  do {
    const char *here = ++*at;
    uint32_t from, to;
    int width;
    if (!read_range (at, &from, &to, &width))
      return refuse (text, here, "a number or a range of numbers", error);
    if (!add_range (head, from, to, width, names))
      return refuse (text, here, "at most a million hosts", error);
  } while (**at == ',');
  return *(*at)++ == ']' || refuse (text, *at - 1, "]", error);
}

/* Expands one bracket, a list of numbers and ranges in square brackets such as "[03-05,7]". Each of
 * `heads` is one expansion of the text before the bracket: "rack1n" and "rack2n" for "rack[1-2]n".
 * Returns each head followed by each number of the bracket: first all names with the first head,
 * then all names with the second, and so on. *at moves past the bracket. Returns NULL with an error
 * if the bracket is malformed, or if there are more than WEFT_NODELIST_MOST names. */
static GPtrArray *
read_brackets (const char *text, const char **at, const GPtrArray *heads, GError **error)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);
  const char *start = *at;

  for (uint32_t i = 0; i < heads->len; i++) {
    *at = start;
    if (!read_bracket (text, at, heads->pdata[i], names, error))
      return NULL;
  }
  return g_steal_pointer (&names);
}

static gboolean
is_name (char c)
{
  return g_ascii_isalnum (c) || c == '-' || c == '_' || c == '.';
}

static void
append_literal (GPtrArray *names, const char *from, gsize n)
{
  for (uint32_t i = 0; i < names->len && n > 0; i++) {
    char *old = names->pdata[i];
    names->pdata[i] = g_strdup_printf ("%s%.*s", old, (int) n, from);
    g_free (old);
  }
}

/* Expands one item of the list, in which literal text and brackets alternate. */
static GPtrArray *
read_item (const char *text, const char **at, GError **error)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);
  const char *start = *at;

  g_ptr_array_add (names, g_strdup (""));
  for (int brackets = 0;; brackets++) {
    const char *from = *at;
    while (is_name (**at))
      ++*at;
    append_literal (names, from, (gsize) (*at - from));
    if (**at != '[')
      break;
    if (brackets == MOST_BRACKETS) {
      refuse (text, *at, "fewer brackets", error);
      return NULL;
    }
    GPtrArray *more = read_brackets (text, at, names, error);
    if (!more)
      return NULL;
    g_ptr_array_unref (names);
    names = more;
  }
  if (*at > start && *start != '[')
    return g_steal_pointer (&names);
  refuse (text, start, "a host", error);
  return NULL;
}

static gboolean
read_items (const char *text, GPtrArray *hosts, GError **error)
{
  for (const char *at = text;; at++) {
    GPtrArray *names = read_item (text, &at, error);
    if (!names)
      return FALSE;
    if (hosts->len + names->len > WEFT_NODELIST_MOST) {
      g_ptr_array_unref (names);
      return refuse (text, at, "at most a million hosts", error);
    }
    g_ptr_array_extend_and_steal (hosts, names);
    if (!*at)
      return TRUE;
    if (*at != ',')
      return refuse (text, at, "a comma or the end", error);
  }
}

char **
weft_nodelist_hosts (const char *text, GError **error)
{
  g_autoptr (GPtrArray) hosts = g_ptr_array_new_with_free_func (g_free);

  if (!read_items (text, hosts, error))
    return NULL;
  g_ptr_array_add (hosts, NULL);
  return (char **) g_ptr_array_free (g_steal_pointer (&hosts), FALSE);
}
