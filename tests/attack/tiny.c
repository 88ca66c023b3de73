#include "tests/attack/tiny.h"
#include <glib.h>
#include <string.h>

static int
by_name (gconstpointer a, gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

static void
collect (GPtrArray *files, const char *folder, const char *inside)
{
  g_autofree char *path = g_build_filename (folder, inside, NULL);
  g_autoptr (GDir) dir = g_dir_open (path, 0, NULL);
  const char *name;

  if (!dir) {
    g_ptr_array_add (files, g_strdup (inside));
    return;
  }
  while ((name = g_dir_read_name (dir))) {
    g_autofree char *next = *inside ? g_build_filename (inside, name, NULL) : g_strdup (name);
    collect (files, folder, next);
  }
}

GPtrArray *
tiny_files (const char *folder)
{
  GPtrArray *files = g_ptr_array_new_with_free_func (g_free);

  collect (files, folder, "");
  g_ptr_array_sort (files, by_name);
  return files;
}

char *
tiny_numbers (const char *out)
{
  g_autoptr (GRegex) times =
      g_regex_new ("\"(time_s|tokens_per_s|mfu)\":[^,}]*", G_REGEX_DEFAULT, 0, NULL);
  return g_regex_replace_literal (times, out, -1, 0, "", 0, NULL);
}
