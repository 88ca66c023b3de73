/* Computes a text for every setting of a job from the keys of other software. */
#include "interop/target.h"
#include "core/base/error.h"
#include "core/job/job.h"
#include <string.h>

struct weft_reading {
  const struct weft_target *target;
  gint64 gpus;                /* number of GPUs of a job */
  const weft_keys_read *keys; /* NULL: the texts are those of a job */
  char **text;                /* by setting; NULL: not known, or not computed yet */
  guint8 *is_given;              /* settings whose text a key has given */
  guint8 *asked;              /* settings that weft_reading_at() is computing */
};

static weft_reading *
reading_new (const struct weft_target *target, const weft_keys_read *keys, char **text)
{
  weft_reading *reading = g_new0 (weft_reading, 1);

  reading->target = target;
  reading->keys = keys;
  reading->text = text;
  reading->is_given = g_new0 (guint8, weft_texts_count ());
  reading->asked = g_new0 (guint8, weft_texts_count ());
  return reading;
}

weft_reading *
weft_reading_new (const struct weft_target *target, const weft_keys_read *keys)
{
  return reading_new (target, keys, g_new0 (char *, weft_texts_count () + 1));
}

weft_reading *
weft_reading_of_job (const struct weft_target *target, const struct weft_job *job,
                     const weft_keys_read *keys)
{
  weft_reading *reading = reading_new (target, keys, weft_texts_of (job));
  reading->gpus = job->cluster.n_gpus;
  return reading;
}

void
weft_reading_free (weft_reading *reading)
{
  if (!reading)
    return;
  for (unsigned i = 0; i < weft_texts_count (); i++)
    g_free (reading->text[i]);
  g_free (reading->text);
  g_free (reading->is_given);
  g_free (reading->asked);
  g_free (reading);
}

/* --------------------------------------------------------------------- texts of settings */

const char *
weft_reading_key (const weft_reading *reading, const char *name)
{
  const struct weft_given *given =
      reading->keys ? weft_keys_value (reading->keys, reading->target->schema, name) : NULL;

  return given ? given->value : NULL;
}

gint64
weft_reading_gpus (const weft_reading *reading)
{
  return reading->keys ? reading->keys->gpus : reading->gpus;
}

gint64
weft_reading_replicas (const weft_reading *reading)
{
  gint64 model = weft_reading_int (reading, "tensor_model_parallel_size") *
                 weft_reading_int (reading, "pipeline_model_parallel_size") *
                 weft_reading_int (reading, "context_parallel_size");
  return model > 0 ? weft_reading_gpus (reading) / model : 0;
}

const char *
weft_reading_at (const weft_reading *reading, unsigned setting)
{
  if (!reading->text[setting] && !reading->asked[setting]) {
    reading->asked[setting] = TRUE; /* a setting does not depend on itself */
    reading->text[setting] = weft_reading_absent (reading, setting);
    reading->asked[setting] = FALSE;
  }
  return reading->text[setting];
}

const char *
weft_reading_text (const weft_reading *reading, const char *name)
{
  int setting = weft_texts_find (name);

  if (setting < 0)
    g_error ("interop/ asks for \"%s\", which is no setting", name);
  return weft_reading_at (reading, (unsigned) setting);
}

gint64
weft_reading_int (const weft_reading *reading, const char *name)
{
  const char *text = weft_reading_text (reading, name);
  return text ? g_ascii_strtoll (text, NULL, 10) : 0;
}

gint64
weft_reading_pipeline_layers (const weft_reading *reading)
{
  static const char *const also[] = { "account_for_embedding_in_pipeline_split",
                                      "account_for_loss_in_pipeline_split" };
  gint64 layers = weft_reading_int (reading, "num_layers");

  for (unsigned i = 0; i < G_N_ELEMENTS (also); i++)
    layers += g_strcmp0 (weft_reading_text (reading, also[i]), "true") == 0;
  return layers;
}

/* Sets a text that a key or a flag gives. The reading then owns the text. */
static void
give (weft_reading *reading, unsigned setting, char *text)
{
  g_free (reading->text[setting]);
  reading->text[setting] = text;
  reading->is_given[setting] = TRUE;
}

void
weft_reading_set (weft_reading *reading, const char *name, const char *text)
{
  unsigned setting = (unsigned) weft_texts_find (name);
  char *printed = weft_texts_print (setting, text);

  give (reading, setting, printed ? printed : g_strdup (text));
}

void
weft_reading_set_int (weft_reading *reading, const char *name, gint64 value)
{
  g_autofree char *text = g_strdup_printf ("%" G_GINT64_FORMAT, value);
  weft_reading_set (reading, name, text);
}

gboolean
weft_reading_agrees (const weft_reading *reading, const struct weft_pairs *pairs)
{
  for (unsigned i = 0; i < pairs->n; i++) {
    const struct weft_pair *pair = &pairs->at[i];
    const char *text = weft_reading_at (reading, pair->setting);
    if ((g_strcmp0 (text, pair->value) == 0) != pair->equal)
      return FALSE;
  }
  return TRUE;
}

/* ----------------------------------------------------------- settings that no key can give */

/* Drops texts that no key has given: they were computed before all keys were known. */
static void
forget (weft_reading *reading)
{
  for (unsigned i = 0; i < weft_texts_count (); i++)
    if (!reading->is_given[i])
      g_clear_pointer (&reading->text[i], g_free);
}

const char *
weft_reading_elsewhere (const weft_reading *reading, unsigned setting)
{
  const struct weft_meanings *meanings = weft_target_meanings (reading->target);
  const char *section;

  weft_texts_field (setting, &section);
  if (reading->target->model && strcmp (section, "model") == 0)
    return reading->target->model;
  for (unsigned i = 0; i < meanings->n; i++)
    if (meanings->at[i].row->elsewhere && meanings->at[i].sets.at->setting == setting &&
        weft_reading_agrees (reading, &meanings->at[i].when))
      return meanings->at[i].row->doc;
  return NULL;
}

gboolean
weft_reading_is_given (const weft_reading *reading, unsigned setting)
{
  return reading->is_given[setting];
}

void
weft_reading_share (weft_reading *reading, const weft_reading *from)
{
  for (unsigned i = 0; i < weft_texts_count (); i++)
    if (weft_reading_elsewhere (from, i))
      give (reading, i, g_strdup (weft_reading_at (from, i)));
}

void
weft_reading_take_flags (weft_reading *reading, const weft_settings *flags)
{
  for (unsigned i = 0; flags && i < weft_settings_count (flags); i++) {
    const struct weft_setting *flag = weft_settings_at (flags, i);
    int setting = weft_texts_find (flag->key);
    char *text = setting >= 0 && weft_reading_elsewhere (reading, (unsigned) setting)
                     ? weft_texts_print ((unsigned) setting, flag->value)
                     : NULL;
    if (text)
      give (reading, (unsigned) setting, text);
  }
  forget (reading);
}

/* ------------------------------------------------------------------ settings without a key */

/* The value that a row gives a setting, or NULL. */
static const char *
value_of (const struct weft_meaning *meaning, unsigned setting)
{
  for (unsigned i = 0; i < meaning->sets.n; i++)
    if (meaning->sets.at[i].setting == setting)
      return meaning->sets.at[i].value;
  return NULL;
}

/* Sets *text to the value that a setting has without a key, from the last row without a key that
 * holds. FALSE: no such row holds. */
static gboolean
assumed (const weft_reading *reading, unsigned setting, char **text)
{
  const struct weft_meanings *meanings = weft_target_meanings (reading->target);

  for (unsigned i = meanings->n; i--;) {
    const struct weft_meaning *meaning = &meanings->at[i];
    const char *value =
        meaning->key < 0 && !meaning->row->elsewhere ? value_of (meaning, setting) : NULL;
    if (!value || !weft_reading_agrees (reading, &meaning->when))
      continue;
    *text = meaning->row->compute ? meaning->row->compute (reading) : g_strdup (value);
    return TRUE;
  }
  return FALSE;
}

/* Returns the text of a setting if its key is not given: the default of the key. If the key has no
 * default, the text is the default "none", "0" or empty of the setting, or "false"; NULL: the
 * software needs the key. */
static char *
text_of_default (const struct weft_key *key, unsigned setting)
{
  const struct weft_field *field = weft_texts_field (setting, NULL);

  if (strcmp (key->def, "none") != 0)
    return weft_texts_print (setting, key->def);
  if (strcmp (field->def, "none") == 0 || strcmp (field->def, "0") == 0 || !*field->def)
    return g_strdup (field->def);
  return field->type == WEFT_TYPE_BOOL ? g_strdup ("false") : NULL;
}

/* Sets *text to the value that a setting has by the default of its key. FALSE: no key sets this
 * setting. */
static gboolean
by_default (const weft_reading *reading, unsigned setting, char **text)
{
  const struct weft_meanings *meanings = weft_target_meanings (reading->target);
  gboolean is_bool = weft_texts_field (setting, NULL)->type == WEFT_TYPE_BOOL;

  for (unsigned i = 0; i < meanings->n; i++) {
    const struct weft_meaning *meaning = &meanings->at[i];
    const char *value =
        meaning->key >= 0 && !meaning->row->form ? value_of (meaning, setting) : NULL;
    if (!value || (*value != '*' && !is_bool))
      continue;
    *text = *value == '*' ? text_of_default (&reading->target->schema->key[meaning->key], setting)
                          : g_strdup (strcmp (value, "true") == 0 ? "false" : "true");
    return TRUE;
  }
  return FALSE;
}

char *
weft_reading_absent (const weft_reading *reading, unsigned setting)
{
  const struct weft_field *field = weft_texts_field (setting, NULL);
  char *text = NULL;

  if (field->type == WEFT_TYPE_METHOD)
    return g_strdup ("");
  if (assumed (reading, setting, &text) || by_default (reading, setting, &text))
    return text;
  return weft_texts_print (setting, field->def);
}

/* ---------------------------------------------------------------------------------- keys */

/* Whether the second key that a row needs (`with`) is given, or the row needs none. */
static gboolean
has_partner (const weft_reading *reading, const struct weft_key_row *row)
{
  return !row->with || weft_reading_key (reading, row->with) != NULL;
}

static gboolean
set_pairs (weft_reading *reading, const struct weft_pairs *pairs, const char *value, GError **error)
{
  for (unsigned i = 0; i < pairs->n; i++) {
    const struct weft_pair *pair = &pairs->at[i];
    const struct weft_field *field = weft_texts_field (pair->setting, NULL);
    union weft_value parsed;
    gboolean any = *pair->value == '*';
    if (any && !weft_field_parse (field, value, &parsed, error))
      return FALSE;
    give (reading, pair->setting, any ? weft_field_print (field, parsed) : g_strdup (pair->value));
  }
  return TRUE;
}

static gboolean
apply_row (weft_reading *reading, const struct weft_meaning *meaning,
           const struct weft_given *given, GError **error)
{
  const struct weft_target *target = reading->target;
  const struct weft_key_row *row = meaning->row;
  gboolean ok = TRUE;

  if (strcmp (row->theirs, "*") != 0 && strcmp (row->theirs, given->value) != 0)
    return TRUE;
  if (!has_partner (reading, row) && row->without_it)
    ok = weft_bad_input (error, "without %s%s: %s", target->prefix, row->with, row->without_it);
  else if (has_partner (reading, row) && weft_reading_agrees (reading, &meaning->when))
    ok = row->form ? row->form->in (reading, given->value, error)
                   : set_pairs (reading, &meaning->sets, given->value, error);
  if (!ok)
    g_prefix_error (error, "%s: %s%s: ", given->where, target->prefix, row->key);
  return ok;
}

/* Applies the rows that have a condition or a form (`conditional` TRUE), or all other rows.
 * Conditions and forms read settings, so their rows are applied last. */
static gboolean
apply_rows (weft_reading *reading, gboolean conditional, GError **error)
{
  const struct weft_meanings *meanings = weft_target_meanings (reading->target);

  for (unsigned i = 0; i < meanings->n; i++) {
    const struct weft_meaning *meaning = &meanings->at[i];
    gboolean later = meaning->when.n || meaning->row->form;
    const struct weft_given *given = meaning->key >= 0 && meaning->sets.n && later == conditional
                                         ? weft_keys_given (reading->keys, (unsigned) meaning->key)
                                         : NULL;
    if (given && !apply_row (reading, meaning, given, error))
      return FALSE;
  }
  return TRUE;
}

gboolean
weft_reading_apply (weft_reading *reading, GError **error)
{
  if (!apply_rows (reading, FALSE, error) || !apply_rows (reading, TRUE, error))
    return FALSE;
  forget (reading);
  for (unsigned i = 0; i < weft_texts_count (); i++)
    weft_reading_at (reading, i);
  return TRUE;
}
