#include "interop/hugging_face.h"

/* Adds a sentence for every key that Weft does not know. */
static void
add_unknown (const GPtrArray *keys, const char *name, GPtrArray *unknown)
{
  for (unsigned i = 0; i < keys->len; i++)
    g_ptr_array_add (unknown,
                     g_strdup_printf ("%s: unknown key %s", name, (const char *) keys->pdata[i]));
}

static gboolean
hugging_face_settings (const char *text, const char *name, weft_settings *out, GPtrArray *unknown,
                       GError **error)
{
  g_autoptr (GPtrArray) keys = g_ptr_array_new_with_free_func (g_free);
  union weft_model model;

  if (!weft_model_parse (text, -1, name, &model, keys, error))
    return FALSE;
  add_unknown (keys, name, unknown);
  for (unsigned f = 0; f < weft_model_table.n; f++) {
    g_autofree char *value = weft_field_print (&weft_model_table.field[f], model.at[f]);
    weft_settings_add (out, "model", weft_model_table.field[f].name, value, name);
  }
  return TRUE;
}

static const struct weft_schema schema = { NULL, 0, FALSE };

const struct weft_target weft_hugging_face = {
  .name = "hugging-face",
  .release = "Hugging Face config.json",
  .doc = "the model alone",
  .prefix = "",
  .file = "config.json",
  .schema = &schema,
  .settings = hugging_face_settings,
};
