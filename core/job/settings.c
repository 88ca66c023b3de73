#include "core/job/job.h"
#include <string.h>

struct weft_settings {
  GPtrArray *list;    /* array of struct weft_setting */
  GPtrArray *ignored; /* array of interned names of flags without effect, terminated by NULL */
};

static void
free_setting (gpointer data)
{
  struct weft_setting *setting = data;
  g_free (setting->section);
  g_free (setting->key);
  g_free (setting->value);
  g_free (setting->where);
  g_free (setting);
}

weft_settings *
weft_settings_new (void)
{
  weft_settings *settings = g_new0 (weft_settings, 1);
  settings->list = g_ptr_array_new_with_free_func (free_setting);
  settings->ignored = g_ptr_array_new ();
  g_ptr_array_add (settings->ignored, NULL);
  return settings;
}

void
weft_settings_free (weft_settings *settings)
{
  if (!settings)
    return;
  g_ptr_array_unref (settings->list);
  g_ptr_array_unref (settings->ignored);
  g_free (settings);
}

static void
add_setting (weft_settings *settings, const char *section, const char *key, const char *value,
             const char *where, gboolean default_only)
{
  struct weft_setting *setting = g_new0 (struct weft_setting, 1);
  setting->section = g_strdup (section);
  setting->key = g_strdup (key);
  setting->value = g_strdup (value);
  setting->where = g_strdup (where);
  setting->default_only = default_only;
  g_ptr_array_add (settings->list, setting);
}

void
weft_settings_add (weft_settings *settings, const char *section, const char *key, const char *value,
                   const char *where)
{
  add_setting (settings, section, key, value, where, FALSE);
}

void
weft_settings_add_default (weft_settings *settings, const char *section, const char *key,
                           const char *value, const char *where)
{
  add_setting (settings, section, key, value, where, TRUE);
}

void
weft_settings_ignore (weft_settings *settings, const char *flag)
{
  if (!g_strv_contains (weft_settings_ignored (settings), flag))
    g_ptr_array_insert (settings->ignored, (gint) settings->ignored->len - 1,
                        (char *) g_intern_string (flag));
}

const char *const *
weft_settings_ignored (const weft_settings *settings)
{
  return (const char *const *) settings->ignored->pdata;
}

void
weft_settings_take (weft_settings *settings, weft_settings *from)
{
  for (const char *const *flag = weft_settings_ignored (from); *flag; flag++)
    weft_settings_ignore (settings, *flag);
  while (from->list->len)
    g_ptr_array_add (settings->list, g_ptr_array_steal_index (from->list, 0));
}

void
weft_settings_add_conf (weft_settings *settings, const weft_conf *conf)
{
  for (unsigned i = 0; i < conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &conf->entry[i];
    g_autofree char *where = g_strdup_printf ("%s:%u", conf->name, entry->line);
    weft_settings_add (settings, entry->section, entry->key, entry->value, where);
  }
}

gboolean
weft_settings_add_file (weft_settings *settings, const char *path, GError **error)
{
  g_autoptr (weft_conf) conf = weft_conf_load (path, error);

  if (!conf)
    return FALSE;
  weft_settings_add_conf (settings, conf);
  return TRUE;
}

unsigned
weft_settings_count (const weft_settings *settings)
{
  return settings->list->len;
}

const struct weft_setting *
weft_settings_at (const weft_settings *settings, unsigned i)
{
  return g_ptr_array_index (settings->list, i);
}

gboolean
weft_settings_touch (const weft_settings *settings, const char *section)
{
  for (unsigned i = 0; i < weft_settings_count (settings); i++)
    if (!section || strcmp (weft_settings_at (settings, i)->section, section) == 0)
      return TRUE;
  return FALSE;
}
