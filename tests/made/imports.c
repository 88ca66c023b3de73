#include "tests/made/imports.h"
#include "core/base/error.h"
#include "tests/runner/runner.h"
#include <string.h>

char *
weft_test_imported (const struct weft_test_import *how, const char *text, const char *setting)
{
  g_autoptr (GError) error = NULL;
  struct weft_import_options options = { .gpus = how->gpus };
  g_autoptr (weft_interop_result) in = weft_import (how->target, text, how->file, &options, &error);
  g_auto (GStrv) defaults = weft_texts_defaults ();

  if (!in)
    fail_msg ("%s: %s", text, error->message);
  for (unsigned i = 0; i < weft_settings_count (in->settings); i++)
    if (strcmp (weft_settings_at (in->settings, i)->key, setting) == 0)
      return g_strdup (weft_settings_at (in->settings, i)->value);
  return weft_texts_find (setting) < 0 ? NULL : g_strdup (defaults[weft_texts_find (setting)]);
}

void
weft_test_means (const struct weft_test_import *how, const char *text, const char *setting,
                 const char *value)
{
  g_autofree char *whole = g_strconcat (how->before, text, NULL);
  g_autofree char *found = weft_test_imported (how, whole, setting);

  if (g_strcmp0 (found, value) != 0)
    fail_msg ("%s: %s is %s, wanted %s", text, setting, found, value);
}

void
weft_test_import_refused (const struct weft_test_import *how, const char *text, const char *part)
{
  g_autoptr (GError) error = NULL;
  struct weft_import_options options = { 0 };
  g_autoptr (weft_interop_result) in = weft_import (how->target, text, how->file, &options, &error);

  if (in)
    fail_msg ("%s: accepted, wanted \"%s\"", text, part);
  assert_int_equal (weft_error_exit_status (error), 2);
  if (!strstr (error->message, part))
    fail_msg ("%s: %s; wanted \"%s\"", text, error->message, part);
}
