#include "core/base/conf.h"
#include "core/base/home.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/suggest.h"
#include <string.h>

#define MOST_BYTES (4 << 20)

/* Results of one pass over the text of an .ini file. GKeyFile parses names and escapes, but it
 * reports neither line numbers nor duplicate keys, and it accepts "# comment" only on a line of its
 * own. The pass therefore records line numbers, refuses duplicates and removes comments; GKeyFile
 * parses the remaining text. */
struct scan {
  weft_conf *conf;
  GArray *entry;
  GHashTable *seen; /* maps "section\nkey" to its line number */
  GString *clean;
  const char *section;
  unsigned line;
};

static gboolean
blame_line (const struct scan *scan, GError **error)
{
  g_prefix_error (error, "%s:%u: ", scan->conf->name, scan->line);
  return FALSE;
}

static gboolean
is_blank (char c)
{
  return c == ' ' || c == '\t';
}

/* Cuts the line where a comment begins: at a hash at the begin of the line, or after a blank. */
static void
cut_comment (char *line)
{
  for (char *c = line; *c; c++)
    if (*c == '#' && (c == line || is_blank (c[-1]))) {
      *c = '\0';
      return;
    }
}

static gboolean
scan_section (struct scan *scan, char *line, GError **error)
{
  size_t length = strlen (line);

  if (line[length - 1] != ']' || length < 3) {
    weft_bad_input (error, "found \"%.60s\", wanted [section]", line);
    return blame_line (scan, error);
  }
  line[length - 1] = '\0';
  scan->section = g_string_chunk_insert_const (scan->conf->strings, g_strstrip (line + 1));
  g_string_append_printf (scan->clean, "[%s]\n", scan->section);
  return TRUE;
}

static gboolean
remember (struct scan *scan, const char *key, GError **error)
{
  char *name = g_strconcat (scan->section, "\n", key, NULL);
  unsigned first = GPOINTER_TO_UINT (g_hash_table_lookup (scan->seen, name));

  g_hash_table_insert (scan->seen, name, GUINT_TO_POINTER (scan->line));
  if (!first)
    return TRUE;
  weft_bad_input (error, "[%s] \"%.60s\" is given twice, first on line %u", scan->section, key,
                  first);
  return blame_line (scan, error);
}

/* Whether a value ends in an odd number of backslashes: the last backslash escapes nothing. */
static gboolean
ends_in_escape (const char *value)
{
  size_t length = strlen (value), n = 0;

  while (n < length && value[length - 1 - n] == '\\')
    n++;
  return n % 2;
}

static gboolean
scan_entry (struct scan *scan, char *line, GError **error)
{
  char *equals = strchr (line, '=');

  if (!equals || equals == line) {
    weft_bad_input (error, "found \"%.60s\", wanted KEY = VALUE", line);
    return blame_line (scan, error);
  }
  if (!scan->section) {
    weft_bad_input (error, "found \"%.60s\", wanted a [section] before it", line);
    return blame_line (scan, error);
  }
  if (ends_in_escape (equals + 1)) {
    weft_bad_input (error, "found \"%.60s\", wanted a character after the last backslash", line);
    return blame_line (scan, error);
  }
  *equals = '\0';
  const char *key = g_string_chunk_insert (scan->conf->strings, g_strchomp (line));
  if (!remember (scan, key, error))
    return FALSE;
  struct weft_conf_entry entry = { scan->section, key, "", scan->line };
  g_array_append_val (scan->entry, entry);
  g_string_append_printf (scan->clean, "%s=%s\n", key, g_strchug (equals + 1));
  return TRUE;
}

static gboolean
scan_line (struct scan *scan, char *line, GError **error)
{
  scan->line++;
  cut_comment (line);
  g_strstrip (line);
  if (!*line)
    return TRUE;
  return *line == '[' ? scan_section (scan, line, error) : scan_entry (scan, line, error);
}

static gboolean
scan_lines (struct scan *scan, const char *text, GError **error)
{
  while (*text) {
    size_t length = strcspn (text, "\n");
    g_autofree char *line = g_strndup (text, length);
    if (!scan_line (scan, line, error))
      return FALSE;
    text += length + (text[length] == '\n');
  }
  return TRUE;
}

/* Stores the value of every entry. GKeyFile replaces the escapes \s \n \t \r \\ by the characters
 * that they stand for. */
static gboolean
read_values (struct scan *scan, GError **error)
{
  g_autoptr (GKeyFile) file = g_key_file_new ();
  g_autoptr (GError) why = NULL;

  if (scan->entry->len && !g_key_file_load_from_data (file, scan->clean->str, scan->clean->len,
                                                      G_KEY_FILE_KEEP_TRANSLATIONS, &why))
    return weft_bad_input (error, "%s: %s", scan->conf->name, why->message);
  for (unsigned i = 0; i < scan->entry->len; i++) {
    struct weft_conf_entry *entry = &g_array_index (scan->entry, struct weft_conf_entry, i);
    g_autofree char *value = g_key_file_get_string (file, entry->section, entry->key, &why);
    if (why) {
      weft_bad_input (error, "%s", why->message);
      return weft_conf_blame (scan->conf, entry, error);
    }
    entry->value = g_string_chunk_insert (scan->conf->strings, value);
  }
  return TRUE;
}

weft_conf *
weft_conf_parse (const char *text, gssize length, const char *name, GError **error)
{
  size_t size = length < 0 ? strlen (text) : (size_t) length;
  g_autoptr (GHashTable) seen = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  g_autoptr (GString) clean = g_string_new (NULL);

  if (!weft_file_check_text (text, size, name, error))
    return NULL;
  g_autofree char *copy = g_strndup (text, size);
  g_autoptr (weft_conf) conf = g_new0 (weft_conf, 1);
  conf->name = g_strdup (name);
  conf->strings = g_string_chunk_new (1024);
  struct scan scan = { .conf = conf, .seen = seen, .clean = clean };
  scan.entry = g_array_new (FALSE, TRUE, sizeof (struct weft_conf_entry));
  const char *start = g_str_has_prefix (copy, "\xef\xbb\xbf") ? copy + 3 : copy;
  gboolean ok = scan_lines (&scan, start, error) && read_values (&scan, error);
  conf->n_entry = scan.entry->len;
  conf->entry = (struct weft_conf_entry *) (void *) g_array_free (scan.entry, FALSE);
  return ok ? g_steal_pointer (&conf) : NULL;
}

weft_conf *
weft_conf_load (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, MOST_BYTES, &length, error);

  const char *name = weft_file_is_stdin (path) ? "stdin" : path;

  return text ? weft_conf_parse (text, length, name, error) : NULL;
}

void
weft_conf_free (weft_conf *conf)
{
  if (!conf)
    return;
  g_free (conf->name);
  g_free (conf->entry);
  g_string_chunk_free (conf->strings);
  g_free (conf);
}

gboolean
weft_conf_blame (const weft_conf *conf, const struct weft_conf_entry *entry, GError **error)
{
  g_prefix_error (error, "%s:%u: [%s] ", conf->name, entry->line, entry->section);
  return FALSE;
}

const char *
weft_data_dir (void)
{
  const char *dir = g_getenv ("WEFT_DATA"), *prefix = weft_home_prefix ();

  if (dir && *dir)
    return dir;
  if (!prefix)
    return WEFT_DATA_DIR;
  g_autofree char *installed = g_build_filename (prefix, "share", "weft", NULL);
  return g_intern_string (installed);
}

static int
compare_names (const void *a, const void *b)
{
  return strcmp (*(char *const *) a, *(char *const *) b);
}

char **
weft_data_names (const char *folder, const char *suffix)
{
  g_autofree char *path = g_build_filename (weft_data_dir (), folder, NULL);
  g_autoptr (GDir) dir = g_dir_open (path, 0, NULL);
  GPtrArray *names = g_ptr_array_new ();
  const char *file;

  while (dir && (file = g_dir_read_name (dir)))
    if (g_str_has_suffix (file, suffix) && *file != '.')
      g_ptr_array_add (names, g_strndup (file, strlen (file) - strlen (suffix)));
  g_ptr_array_sort (names, compare_names);
  g_ptr_array_add (names, NULL);
  return (char **) g_ptr_array_free (names, FALSE);
}

static gboolean
is_file (const char *path)
{
  return g_file_test (path, G_FILE_TEST_EXISTS) && !g_file_test (path, G_FILE_TEST_IS_DIR);
}

/* Relative paths are tried from the working folder, then from the bundled data, so that
 * "models/gpt2.json" works anywhere. */
static char *
find_path (const char *path, GError **error)
{
  if (is_file (path))
    return g_strdup (path);
  g_autofree char *bundled = g_build_filename (weft_data_dir (), path, NULL);
  if (!g_path_is_absolute (path) && is_file (bundled))
    return g_steal_pointer (&bundled);
  weft_bad_input (error, "no such file: %s", path);
  return NULL;
}

char *
weft_data_find (const char *folder, const char *name, const char *suffix, GError **error)
{
  if (strchr (name, '/') || g_str_has_suffix (name, suffix))
    return find_path (name, error);
  g_auto (GStrv) names = weft_data_names (folder, suffix);
  for (unsigned i = 0; names[i]; i++)
    if (weft_same_name (names[i], name)) {
      g_autofree char *file = g_strconcat (names[i], suffix, NULL);
      return g_build_filename (weft_data_dir (), folder, file, NULL);
    }
  g_autofree char *near = weft_suggest_part (name, (const char *const *) names);
  g_autofree char *all = g_strjoinv (", ", names);
  if (near)
    weft_bad_input (error, "nothing named \"%s\" in %s; did you mean %s?", name, folder, near);
  else
    weft_bad_input (error, "nothing named \"%s\" in %s; there are: %s", name, folder, all);
  return NULL;
}
