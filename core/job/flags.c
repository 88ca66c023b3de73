#include "core/job/flags.h"
#include "core/job/aliases.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include <string.h>

struct weft_flag
weft_flag_split (const char *word)
{
  const char *equals = strchr (word, '=');
  char *whole = equals ? g_strndup (word, equals - word) : g_strdup (word);

  return (struct weft_flag){ whole, whole + strlen ("--"), equals ? equals + 1 : NULL };
}

const char *
weft_flag_value (struct weft_words *words, const struct weft_flag *flag, const char *what,
                 GError **error)
{
  if (flag->value)
    return flag->value;
  if (words->at + 1 < words->n && !g_str_has_prefix (words->word[words->at + 1], "--"))
    return words->word[++words->at];
  weft_bad_input (error, "%s: wanted a value: %s %s", flag->whole, flag->whole, what);
  return NULL;
}

gboolean
weft_flag_takes_none (const struct weft_flag *flag, GError **error)
{
  if (!flag->value)
    return TRUE;
  return weft_bad_input (error, "%s: found \"%s\", wanted no value", flag->whole, flag->value);
}

/* Whether the flag is "--no-NAME" for a boolean setting. If so, stores the section and key of this
 * setting. */
static gboolean
clears (const struct weft_flag *flag, const char **section, const char **key)
{
  gboolean boolean;
  return (g_str_has_prefix (flag->name, "no-") || g_str_has_prefix (flag->name, "no_")) &&
         weft_job_flag (flag->name + strlen ("no-"), section, key, &boolean) && boolean;
}

/* Skips the values of a flag that has several values, up to the next flag. */
static const char *
skip_values (struct weft_words *words, const struct weft_flag *flag, GError **error)
{
  const char *first = weft_flag_value (words, flag, "VALUE...", error);

  while (first && words->at + 1 < words->n && !g_str_has_prefix (words->word[words->at + 1], "--"))
    words->at++;
  return first;
}

static gboolean
set_alias (struct weft_words *words, const struct weft_flag *flag, weft_settings *settings,
           GError **error)
{
  const struct weft_alias *alias = weft_alias_find (flag->name);
  const char *value = NULL;

  if (!alias)
    return FALSE;
  if (alias->values == WEFT_ALIAS_FLAG ? !weft_flag_takes_none (flag, error)
      : alias->values == WEFT_ALIAS_ONE
          ? !(value = weft_flag_value (words, flag, "VALUE", error))
          : !(value = skip_values (words, flag, error)))
    return FALSE;
  weft_alias_set (alias, value, flag->whole, settings);
  return TRUE;
}

gboolean
weft_flag_set (struct weft_words *words, const struct weft_flag *flag, weft_settings *settings,
               GError **error)
{
  const char *section, *key, *value;
  gboolean boolean;

  if (weft_job_flag (flag->name, &section, &key, &boolean))
    value = boolean ? flag->value ? flag->value : "true"
                    : weft_flag_value (words, flag, "VALUE", error);
  else if (clears (flag, &section, &key))
    value = weft_flag_takes_none (flag, error) ? "false" : NULL;
  else
    return set_alias (words, flag, settings, error);
  if (!value)
    return FALSE;
  weft_settings_add (settings, section, key, value, flag->whole);
  return TRUE;
}

/* Adds one word of a command line: a setting such as "model=gpt2-nano", or a flag without value
 * such as "swiglu". */
static gboolean
add_word (const char *word, weft_settings *settings, GError **error)
{
  g_auto (GStrv) pair = g_strsplit (word, "=", 2);
  g_autofree char *where = g_strconcat ("--", pair[0], NULL);
  const struct weft_alias *alias = weft_alias_find (pair[0]);
  const char *section, *key;
  gboolean boolean;

  if (!alias && !weft_job_flag (pair[0], &section, &key, &boolean))
    return weft_job_unknown_flag (where, error);
  if (!pair[1] && (!alias || alias->values == WEFT_ALIAS_ONE))
    return weft_bad_input (error, "%s: wanted a value: %s=VALUE", where, pair[0]);
  if (alias)
    weft_alias_set (alias, pair[1], where, settings);
  else
    weft_settings_add (settings, section, key, pair[1], where);
  return TRUE;
}

gboolean
weft_flags_words (const char *words, weft_settings *settings, GError **error)
{
  g_auto (GStrv) word = g_strsplit (words, " ", -1);

  for (char **at = word; *at; at++)
    if (**at && !add_word (*at, settings, error))
      return FALSE;
  return TRUE;
}

gboolean
weft_flags_file (const char *path, weft_settings *settings, GError **error)
{
  if (weft_file_is_stdin (path))
    return weft_settings_add_file (settings, path, error);
  if (g_file_test (path, G_FILE_TEST_IS_DIR))
    return weft_bad_input (error, "%s: is a folder (expected a job file or flags)", path);
  if (!g_file_test (path, G_FILE_TEST_EXISTS))
    return weft_bad_input (error, "%s: no such file (expected a job file or flags)", path);
  return weft_settings_add_file (settings, path, error);
}

static gboolean
read_flag (struct weft_words *words, const char *word, weft_settings *flags, GError **error)
{
  struct weft_flag flag = weft_flag_split (word);
  GError *wrong = NULL;
  gboolean ok = weft_flag_set (words, &flag, flags, &wrong);

  if (wrong)
    g_propagate_error (error, wrong);
  else if (!ok)
    weft_job_unknown_flag (flag.name, error);
  g_free (flag.whole);
  return ok;
}

static gboolean
read_file (const char *word, const char **file, GError **error)
{
  if (*word == '-' && !weft_file_is_stdin (word))
    return weft_bad_input (error, "unknown flag %s: flags begin with two dashes", word);
  if (*file)
    return weft_bad_input (error, "unexpected \"%s\" after \"%s\": expected at most one job file",
                           word, *file);
  *file = word;
  return TRUE;
}

gboolean
weft_flags_read (int n, const char *const *word, const char *topology, weft_settings *settings,
                 GError **error)
{
  g_autoptr (weft_settings) flags = weft_settings_new ();
  struct weft_words words = { .n = n, .word = word };
  const char *file = NULL;

  for (; words.at < n; words.at++) {
    const char *at = word[words.at];
    if (!(g_str_has_prefix (at, "--") ? read_flag (&words, at, flags, error)
                                      : read_file (at, &file, error)))
      return FALSE;
  }
  if (topology)
    weft_settings_add (settings, "cluster", "topology", topology, "--topology");
  if (file && !weft_flags_file (file, settings, error))
    return FALSE;
  weft_settings_take (settings, flags);
  return TRUE;
}
