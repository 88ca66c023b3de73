#include "core/job/aliases.h"
#include "core/base/suggest.h"
#include <string.h>

const struct weft_alias weft_aliases[] = {
#define ALIAS(name, sets, doc) { #name, WEFT_ALIAS_FLAG, sets, doc, sizeof (sets) == 1 },
#define ALIAS_VALUE(name, key, doc) { #name, WEFT_ALIAS_ONE, key, doc, FALSE },
#define IGNORED(name, doc) { #name, WEFT_ALIAS_FLAG, "", doc, TRUE },
#define IGNORED_VALUE(name, doc) { #name, WEFT_ALIAS_ONE, "", doc, TRUE },
#define IGNORED_VALUES(name, doc) { #name, WEFT_ALIAS_ALL, "", doc, TRUE },
#include "core/aliases.def"
};
const unsigned weft_n_aliases = G_N_ELEMENTS (weft_aliases);

const struct weft_alias *
weft_alias_find (const char *flag)
{
  for (unsigned i = 0; i < weft_n_aliases; i++)
    if (weft_same_name (weft_aliases[i].name, flag))
      return &weft_aliases[i];
  return NULL;
}

static void
add (weft_settings *settings, const char *key, const char *value, const char *where,
     gboolean default_only)
{
  const char *section, *name;
  gboolean boolean;

  g_return_if_fail (weft_job_flag (key, &section, &name, &boolean));
  if (default_only)
    weft_settings_add_default (settings, section, name, value, where);
  else
    weft_settings_add (settings, section, name, value, where);
}

void
weft_alias_set (const struct weft_alias *alias, const char *value, const char *where,
                weft_settings *settings)
{
  if (alias->ignored)
    weft_settings_ignore (settings, alias->name);
  else if (alias->values == WEFT_ALIAS_ONE)
    add (settings, alias->sets, value, where, FALSE);
  else {
    g_auto (GStrv) pairs = g_strsplit (alias->sets, " ", -1);
    for (unsigned i = 0; pairs[i]; i++) {
      char *equals = strchr (pairs[i], '=');
      gboolean default_only = equals[-1] == '?';
      equals[default_only ? -1 : 0] = '\0';
      add (settings, pairs[i], equals + 1, where, default_only);
    }
  }
}

char *
weft_alias_text (const struct weft_alias *alias)
{
  if (alias->ignored)
    return g_strdup_printf ("no effect: %s", alias->doc);
  if (alias->values == WEFT_ALIAS_ONE)
    return g_strdup (*alias->doc ? alias->doc : alias->sets);
  g_autoptr (GString) text = g_string_new (alias->sets);
  g_string_replace (text, "?=", "=", 0);
  g_string_replace (text, " ", ", ", 0);
  g_string_replace (text, "=", " = ", 0);
  if (*alias->doc)
    g_string_append_printf (text, " (%s)", alias->doc);
  return g_string_free (g_steal_pointer (&text), FALSE);
}
