/* Saves and loads files of choices (trial.h). */
#include "core/base/error.h"
#include "kernels/cuda/trial.h"
#include <string.h>

static void
append_bytes (GString *text, const void *data, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++)
    g_string_append_printf (text, "%02x", ((const uint8_t *) data)[i]);
}

static gboolean
take_bytes (const char *text, void *data, size_t bytes)
{
  if (strlen (text) != 2 * bytes)
    return FALSE;
  for (size_t i = 0; i < bytes; i++) {
    int high = g_ascii_xdigit_value (text[2 * i]), low = g_ascii_xdigit_value (text[2 * i + 1]);
    if (high < 0 || low < 0)
      return FALSE;
    ((uint8_t *) data)[i] = (uint8_t) (high << 4 | low);
  }
  return TRUE;
}

gboolean
weft_trial_save (const struct weft_trial_file *file, GHashTable *values, GError **error)
{
  g_autofree char *folder = g_path_get_dirname (file->path);
  g_autoptr (GString) text = g_string_new (NULL);
  GHashTableIter iter;
  gpointer value;

  g_string_append_printf (text, "%s\n", file->machine);
  g_hash_table_iter_init (&iter, values);
  while (g_hash_table_iter_next (&iter, NULL, &value)) {
    append_bytes (text, value, file->bytes);
    if (file->describe)
      file->describe (value, g_string_append_c (text, ' '));
    g_string_append_c (text, '\n');
  }
  /* ignores an error here: if the folder cannot be made, writing the file fails */
  (void) g_mkdir_with_parents (folder, 0700);
  return g_file_set_contents (file->path, text->str, (gssize) text->len, error);
}

gboolean
weft_trial_load (const struct weft_trial_file *file, uint32_t *found, GError **error)
{
  g_autofree char *text = NULL;
  g_autofree uint8_t *value = g_malloc (file->bytes);

  *found = 0;
  if (!g_file_get_contents (file->path, &text, NULL, error))
    return FALSE;
  g_auto (GStrv) line = g_strsplit (text, "\n", -1);
  for (guint i = 1; line[0] && g_str_equal (line[0], file->machine) && line[i]; i++) {
    if (!*line[i])
      continue;
    line[i][strcspn (line[i], " ")] = '\0';
    if (!take_bytes (line[i], value, file->bytes))
      return weft_bad_input (error, "%s:%u: found no %s, wanted %zu hex digits", file->path, i + 1,
                             file->what, 2 * file->bytes);
    file->take (file->user, value);
    ++*found;
  }
  return TRUE;
}

char *
weft_trial_path (const char *kind, const char *machine)
{
  g_autofree char *hash = g_compute_checksum_for_string (G_CHECKSUM_SHA256, machine, -1);
  g_autofree char *name = g_strdup_printf ("%s-%.16s.txt", kind, hash);

  return g_build_filename (g_get_user_cache_dir (), "weft", name, NULL);
}
