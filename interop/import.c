#include "interop/result.h"
#include "core/base/error.h"
#include <math.h>
#include <string.h>

/* Whether a row gives the key a meaning for its value. */
static gboolean
has_meaning (const struct weft_target *target, unsigned key, const char *value)
{
  const struct weft_meanings *meanings = weft_target_meanings (target);

  for (unsigned i = 0; i < meanings->n; i++) {
    const struct weft_key_row *row = meanings->at[i].row;
    if (meanings->at[i].key == (int) key && meanings->at[i].sets.n &&
        (strcmp (row->theirs, "*") == 0 || strcmp (row->theirs, value) == 0))
      return TRUE;
  }
  return FALSE;
}

/* Whether a value is the default of a key: "1.0" and "1" are the same number. */
static gboolean
is_same (const struct weft_key *key, const char *text)
{
  return strcmp (key->def, text) == 0 ||
         (key->kind == WEFT_KEY_REAL && strcmp (key->def, "none") != 0 &&
          fabs (g_ascii_strtod (key->def, NULL) - g_ascii_strtod (text, NULL)) <= 0);
}

static int
state_of (const struct weft_target *target, unsigned number, const char *value)
{
  const struct weft_key *key = &target->schema->key[number];

  if (has_meaning (target, number, value))
    return WEFT_IMPORT_MAPPED;
  if (weft_target_quiet (target, number))
    return WEFT_IMPORT_QUIET;
  return key->kind != WEFT_KEY_ON && key->kind != WEFT_KEY_OFF && is_same (key, value)
             ? WEFT_IMPORT_DEFAULT
             : WEFT_IMPORT_NOT;
}

static void
add_lines (weft_interop_result *result, const weft_keys_read *keys)
{
  for (unsigned i = 0; i < keys->given->len; i++) {
    const struct weft_given *given = &g_array_index (keys->given, struct weft_given, i);
    const struct weft_key *key = &result->target->schema->key[given->key];
    int state = state_of (result->target, given->key, given->value);
    const struct weft_key_row *quiet = weft_target_quiet (result->target, given->key);
    struct weft_interop_line *line =
        weft_interop_line_add (result, NULL, given->value, key->name, state);
    if (state == WEFT_IMPORT_QUIET && quiet)
      line->why = g_strdup (quiet->doc);
    else if (state == WEFT_IMPORT_NOT)
      line->why = g_strdup (given->where);
    result->n_not += state == WEFT_IMPORT_NOT;
  }
}

/* Refuses unknown keys, and keys that change a step but have no setting in Weft. One message names
 * all of them. */
static gboolean
refuse (const weft_interop_result *result, const weft_keys_read *keys, GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < keys->unknown->len; i++)
    g_string_append_printf (text, "%s%s", text->len ? "\n" : "",
                            (const char *) keys->unknown->pdata[i]);
  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    if (line->state == WEFT_IMPORT_NOT)
      g_string_append_printf (text, "%s%s: %s%s%s%s changes a step, and Weft has no setting for it",
                              text->len ? "\n" : "", line->why, result->target->prefix,
                              line->theirs, *line->value ? " " : "", line->value);
  }
  if (!text->len)
    return TRUE;
  return weft_bad_input (error, "%s\n(--partial leaves them out)", text->str);
}

/* Whether a setting is written even if it has Weft's default. Its default depends on other fields
 * of the model, on the topology or on the stack. */
static gboolean
is_always_written (const struct weft_field *field, const char *section)
{
  return field->type != WEFT_TYPE_TEXT &&
         (strcmp (section, "model") == 0 || strcmp (field->name, "precision") == 0 ||
          strcmp (field->name, "distributed_config") == 0);
}

/* Adds a setting to the list of settings that the training program sets and no flag gives. */
static void
note_elsewhere (weft_interop_result *result, const struct weft_field *field, const char *section)
{
  if (strcmp (section, "model") == 0)
    return;
  if (!result->elsewhere)
    result->elsewhere = g_ptr_array_new ();
  g_ptr_array_add (result->elsewhere, (char *) field->name);
}

/* Adds the settings that differ from Weft's defaults, and lists the settings for which the software
 * needs a key. */
static void
add_settings (weft_interop_result *result, const weft_reading *reading, const char *name)
{
  g_auto (GStrv) defaults = weft_texts_defaults ();
  const char *section;

  for (unsigned i = 0; i < weft_texts_count (); i++) {
    const struct weft_field *field = weft_texts_field (i, &section);
    const char *text = weft_reading_at (reading, i);
    if (weft_reading_elsewhere (reading, i) && !weft_reading_is_given (reading, i)) {
      note_elsewhere (result, field, section);
      continue;
    }
    if (!text)
      g_ptr_array_add (result->needed, (char *) field->name);
    else if (strcmp (text, defaults[i]) != 0 || is_always_written (field, section))
      weft_settings_add (result->settings, section, field->name, text, name);
  }
}

/* Imports a file of a target whose keys are settings of Weft. */
static weft_interop_result *
import_settings (const struct weft_target *target, const char *text, const char *name,
                 gboolean partial, GError **error)
{
  g_autoptr (weft_interop_result) result = weft_interop_result_new (target);

  result->settings = weft_settings_new ();
  result->needed = g_ptr_array_new ();
  result->unknown = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (weft_keys_read) none = weft_keys_read_new ();
  if (!target->settings (text, name, result->settings, none->unknown, error) ||
      (!partial && !refuse (result, none, error)))
    return NULL;
  for (unsigned i = 0; i < none->unknown->len; i++)
    g_ptr_array_add (result->unknown, g_strdup (none->unknown->pdata[i]));
  for (unsigned i = 0; i < weft_settings_count (result->settings); i++) {
    const struct weft_setting *setting = weft_settings_at (result->settings, i);
    weft_interop_line_add (result, NULL, setting->value, setting->key, WEFT_IMPORT_MAPPED);
  }
  return g_steal_pointer (&result);
}

weft_interop_result *
weft_import (const struct weft_target *target, const char *text, const char *name,
             const struct weft_import_options *options, GError **error)
{
  g_autoptr (weft_interop_result) result = weft_interop_result_new (target);
  g_autoptr (weft_keys_read) keys = weft_keys_read_new ();

  if (target->settings)
    return import_settings (target, text, name, options->partial, error);
  if (!target->read (text, name, keys, error))
    return NULL;
  gboolean says_gpus = keys->gpus > 0;
  if (!says_gpus)
    keys->gpus = options->gpus;
  add_lines (result, keys);
  if (!options->partial && !refuse (result, keys, error))
    return NULL;
  g_autoptr (weft_reading) reading = weft_reading_new (target, keys);
  weft_reading_take_flags (reading, options->flags);
  if (!weft_reading_apply (reading, error))
    return NULL;
  result->settings = weft_settings_new ();
  result->needed = g_ptr_array_new ();
  weft_settings_add (result->settings, "stack", "name", target->stack, name);
  g_autofree char *size = g_strdup_printf ("%" G_GINT64_FORMAT, keys->gpus);
  if (says_gpus)
    weft_settings_add (result->settings, "cluster", "gpus", size, name);
  result->unknown = g_steal_pointer (&keys->unknown);
  keys->unknown = g_ptr_array_new ();
  add_settings (result, reading, name);
  return g_steal_pointer (&result);
}
