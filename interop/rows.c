/* Builds the list of all rows of a target (target.h). A target is a software that Weft exports to
 * and imports from; a row defines what a key of this software, or its absence, means for the
 * settings of Weft.
 *
 * The list has the rows that the target declares; a declared row for all keys of a table
 * ("metrics.*") becomes one row for each of these keys that has no row of its own. If
 * target.same_names is set, each key without a row of its own also gets a row if its destination
 * (weft_key.dest) has the name of a setting of Weft, or else if core/aliases.def has the key. */
#include "interop/target.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/job/aliases.h"
#include <string.h>

/* Parses "name=value" or "name!=value". */
static struct weft_pair
parse_pair (const char *text)
{
  const char *sign = strchr (text, '=');
  gboolean differs = sign && sign > text && sign[-1] == '!';
  g_autofree char *name = sign ? g_strndup (text, sign - text - differs) : g_strdup (text);
  int setting = weft_texts_find (name);

  if (!sign || setting < 0)
    g_error ("a row of interop/ names \"%s\", which is no setting", text);
  g_autofree char *value = strcmp (sign + 1, "*") == 0
                               ? g_strdup ("*")
                               : weft_texts_print ((unsigned) setting, sign + 1);
  if (!value)
    g_error ("a row of interop/ has \"%s\", which is no value of %s", text, name);
  return (struct weft_pair){ (unsigned) setting, g_intern_string (value), !differs };
}

struct weft_pairs
weft_pairs_parse (const char *text)
{
  g_auto (GStrv) words = g_strsplit (text, " ", -1);
  struct weft_pairs pairs = { g_new (struct weft_pair, g_strv_length (words)), 0 };

  for (unsigned i = 0; words[i]; i++)
    if (*words[i])
      pairs.at[pairs.n++] = parse_pair (words[i]);
  return pairs;
}

static gboolean
has_row (const struct weft_target *target, const char *key)
{
  for (unsigned i = 0; i < target->n_rows; i++)
    if (target->rows[i].key && strcmp (target->rows[i].key, key) == 0)
      return TRUE;
  return FALSE;
}

/* Makes the row of a key whose destination is a setting of Weft. The setting gets the value of the
 * key, or, if the key has no value, true or false. */
static struct weft_key_row
row_of_dest (const struct weft_key *key, const char *setting)
{
  static const char *const text[] = { [WEFT_KEY_ON] = "true", [WEFT_KEY_OFF] = "false" };
  gboolean has_value = key->kind != WEFT_KEY_ON && key->kind != WEFT_KEY_OFF;
  g_autofree char *sets = g_strconcat (setting, "=", has_value ? "*" : text[key->kind], NULL);

  return (struct weft_key_row){
    .key = key->name, .theirs = has_value ? "*" : "", .sets = g_intern_string (sets), .when = ""
  };
}

static struct weft_key_row
row_of_alias (const struct weft_key *key, const struct weft_alias *alias)
{
  gboolean one = alias->values == WEFT_ALIAS_ONE;
  g_autofree char *value = g_strconcat (alias->sets, one && !alias->ignored ? "=*" : "", NULL);

  return (struct weft_key_row){ .key = key->name,
                                .theirs = key->kind == WEFT_KEY_ON || key->kind == WEFT_KEY_OFF
                                              ? ""
                                              : "*",
                                .sets = alias->ignored ? "" : g_intern_string (value),
                                .when = "",
                                .doc = alias->doc };
}

/* Appends a row for a key that has no declared row: the setting has the name of the key's
 * destination, or else the key is an alias of the setting. */
static void
append_named (GArray *rows, const struct weft_key *key)
{
  int setting = weft_texts_find (key->dest);
  const struct weft_alias *alias = weft_alias_find (key->name);
  struct weft_key_row row;

  if (setting >= 0)
    row = row_of_dest (key, weft_texts_field (setting, NULL)->name);
  else if (alias)
    row = row_of_alias (key, alias);
  else
    return;
  g_array_append_val (rows, row);
}

static void
append_meaning (GArray *meanings, const struct weft_target *target, const struct weft_key_row *row)
{
  struct weft_meaning meaning = { row, row->key ? weft_schema_find (target->schema, row->key) : -1,
                                  weft_pairs_parse (row->sets), weft_pairs_parse (row->when) };

  if (row->key && meaning.key < 0)
    g_error ("a row of %s has the key \"%s\", which its schema does not have", target->name,
             row->key);
  g_array_append_val (meanings, meaning);
}

/* Appends a row for every key of a table ("metrics.*") that has no row of its own. */
static void
append_table (GArray *rows, const struct weft_target *target, const struct weft_key_row *table)
{
  g_autofree char *prefix = g_strndup (table->key, strlen (table->key) - 1);

  for (unsigned i = 0; i < target->schema->n; i++) {
    struct weft_key_row row = *table;
    row.key = target->schema->key[i].name;
    if (g_str_has_prefix (row.key, prefix) && !has_row (target, row.key))
      g_array_append_val (rows, row);
  }
}

static struct weft_meanings *
build_meanings (const struct weft_target *target)
{
  GArray *named = g_array_new (FALSE, FALSE, sizeof (struct weft_key_row));
  g_autoptr (GArray) all = g_array_new (FALSE, FALSE, sizeof (struct weft_meaning));
  struct weft_meanings *meanings = g_new (struct weft_meanings, 1);

  for (unsigned i = 0; i < target->n_rows; i++)
    if (target->rows[i].key && g_str_has_suffix (target->rows[i].key, ".*") &&
        weft_schema_find (target->schema, target->rows[i].key) < 0)
      append_table (named, target, &target->rows[i]);
    else
      append_meaning (all, target, &target->rows[i]);
  for (unsigned i = 0; target->same_names && i < target->schema->n; i++)
    if (!has_row (target, target->schema->key[i].name))
      append_named (named, &target->schema->key[i]);
  unsigned n = named->len;
  const struct weft_key_row *rows = (const void *) g_array_free (named, FALSE);
  for (unsigned i = 0; i < n; i++)
    append_meaning (all, target, &rows[i]);
  meanings->n = all->len;
  meanings->at = (void *) g_array_free (g_steal_pointer (&all), FALSE);
  return meanings;
}

/* Tables are parsed once and kept. */
const struct weft_meanings *
weft_target_meanings (const struct weft_target *target)
{
  static GHashTable *all;
  static GMutex mutex;

  g_mutex_lock (&mutex);
  if (!all)
    all = g_hash_table_new (NULL, NULL);
  struct weft_meanings *meanings = g_hash_table_lookup (all, target);
  if (!meanings)
    g_hash_table_insert (all, (gpointer) target, meanings = build_meanings (target));
  g_mutex_unlock (&mutex);
  return meanings;
}

const struct weft_key_row *
weft_target_quiet (const struct weft_target *target, unsigned key)
{
  const struct weft_meanings *meanings = weft_target_meanings (target);

  for (unsigned i = 0; i < meanings->n; i++)
    if (meanings->at[i].key == (int) key && meanings->at[i].sets.n == 0)
      return meanings->at[i].row;
  return NULL;
}

static const char *
target_at (const void *targets, unsigned i)
{
  return ((const struct weft_target *const *) targets)[i]->name;
}

char *
weft_target_names (const char *between, gboolean written)
{
  GString *names = g_string_new (NULL);

  for (unsigned n = 0; weft_targets[n]; n++)
    if (weft_targets[n]->write || !written)
      g_string_append_printf (names, "%s%s", names->len ? between : "", weft_targets[n]->name);
  return g_string_free (names, FALSE);
}

const struct weft_target *
weft_target_find (const char *name, GError **error)
{
  g_autofree char *names = weft_target_names (", ", FALSE);
  unsigned n = 0;

  for (; weft_targets[n]; n++)
    if (weft_same_name (weft_targets[n]->name, name))
      return weft_targets[n];
  const char *near = weft_suggest (name, target_at, weft_targets, n);
  if (near)
    weft_bad_input (error, "unknown software \"%s\"; did you mean %s?", name, near);
  else
    weft_bad_input (error, "unknown software \"%s\"; known are %s", name, names);
  return NULL;
}
