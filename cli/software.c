#include "cli/software.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include <stdio.h>
#include <string.h>

/* Largest size of a file of settings that is read, in bytes. */
#define MOST_BYTES ((gsize) 16 << 20)

static gboolean
is_set (const weft_settings *settings, const char *key)
{
  for (unsigned i = 0; i < weft_settings_count (settings); i++)
    if (strcmp (weft_settings_at (settings, i)->key, key) == 0)
      return TRUE;
  return FALSE;
}

/* Refuses a file that lacks a setting which the other software needs, unless a flag gives the
 * setting. */
static gboolean
is_complete (const weft_interop_result *result, const weft_settings *flags, const char *name,
             GError **error)
{
  for (unsigned i = 0; i < result->needed->len; i++) {
    const char *key = result->needed->pdata[i];
    g_autofree char *flag = g_strdelimit (g_strdup (key), "_", '-');
    if (!is_set (flags, key))
      return weft_bad_input (error, "%s: no key gives %s, and %s has no default for it; give --%s",
                             name, key, result->target->release, flag);
  }
  return TRUE;
}

/* The number of GPUs that the flags give, as a number or as nodes of a topology; 0: no flag gives
 * it. */
static gint64
gpus_of (const weft_settings *flags)
{
  struct weft_cluster cluster;
  gint64 gpus = 0, nodes = 0, per_node = 0;

  for (unsigned i = 0; i < weft_settings_count (flags); i++) {
    const struct weft_setting *flag = weft_settings_at (flags, i);
    if (strcmp (flag->key, "gpus") == 0)
      gpus = g_ascii_strtoll (flag->value, NULL, 10);
    else if (strcmp (flag->key, "nodes") == 0)
      nodes = g_ascii_strtoll (flag->value, NULL, 10);
    else if (strcmp (flag->key, "topology") == 0 && weft_cluster_load (flag->value, &cluster, NULL))
      per_node = cluster.f.node_gpus;
  }
  return CLAMP (gpus > 0 ? gpus : nodes * per_node, 0, (gint64) 1 << 24);
}

/* Sets the error that no flag gives the model. Always returns NULL. */
static gpointer
says_no_model (const struct weft_target *target, const char *path, GError **error)
{
  weft_bad_input (error, "%s: a configuration of %s does not contain the model; give --model", path,
                  target->release);
  return NULL;
}

weft_interop_result *
weft_cli_software_read (const char *software, const char *path, const weft_settings *flags,
                        gboolean partial, GError **error)
{
  gsize length = 0;
  const struct weft_target *target = weft_target_find (software, error);
  g_autofree char *inside = target && target->file && g_file_test (path, G_FILE_TEST_IS_DIR)
                                ? g_build_filename (path, target->file, NULL)
                                : g_strdup (path);
  g_autofree char *text = target ? weft_file_read (inside, MOST_BYTES, &length, error) : NULL;

  if (!text || !weft_file_check_text (text, length, path, error))
    return NULL;
  if (target->model && !weft_settings_touch (flags, "model"))
    return says_no_model (target, path, error);
  struct weft_import_options options = { gpus_of (flags), flags, partial };
  g_autoptr (weft_interop_result) result = weft_import (target, text, path, &options, error);
  if (!result || !is_complete (result, flags, path, error))
    return NULL;
  return g_steal_pointer (&result);
}

/* Prints on stderr which settings have Weft's defaults because the training program sets them. */
static void
note_defaults (const weft_interop_result *result)
{
  g_autoptr (GString) names = g_string_new (NULL);

  for (unsigned i = 0; result->elsewhere && i < result->elsewhere->len; i++)
    g_string_append_printf (names, "%s%s", i ? ", " : "",
                            (const char *) result->elsewhere->pdata[i]);
  if (names->len)
    fprintf (stderr,
             "weft: note: at Weft's defaults, because the training program sets them and no "
             "flag gives them: %s\n",
             names->str);
}

void
weft_cli_software_note_read (const weft_interop_result *result)
{
  unsigned quiet = 0;

  for (unsigned i = 0; i < result->unknown->len; i++)
    fprintf (stderr, "weft: note: left out: %s\n", (const char *) result->unknown->pdata[i]);
  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    quiet += line->state == WEFT_IMPORT_QUIET;
    if (line->state == WEFT_IMPORT_NOT)
      fprintf (stderr, "weft: note: left out: %s: %s%s %s\n", line->why, result->target->prefix,
               line->theirs, line->value);
  }
  fprintf (stderr,
           "weft: note: %s: %u keys, %u without effect on a step; weft import --report lists "
           "them\n",
           result->target->release, result->lines->len, quiet);
  note_defaults (result);
}

gboolean
weft_cli_software_is_whole (const weft_interop_result *result, gboolean partial, GError **error)
{
  g_autofree char *left_out = weft_export_left_out (result);

  if (!left_out)
    return TRUE;
  if (partial) {
    fprintf (stderr, "weft: note: left out: %s\n", left_out);
    return TRUE;
  }
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_NO, "%s cannot express: %s (--partial leaves it out)",
               result->target->release, left_out);
  return FALSE;
}

/* Prints on stderr what the configuration does not contain: the command that starts a run, and
 * settings of the training program. */
static void
note_outside (const weft_interop_result *result)
{
  g_autofree char *elsewhere = weft_export_elsewhere (result);

  if (result->launch)
    fprintf (stderr, "weft: note: start: %s\n", result->launch);
  if (elsewhere)
    fprintf (stderr, "weft: note: the training program must set: %s\n", elsewhere);
}

void
weft_cli_software_note_written (const weft_interop_result *result)
{
  unsigned n[WEFT_N_EXPORT_STATE] = { 0 };

  for (unsigned i = 0; i < result->lines->len; i++)
    n[((const struct weft_interop_line *) result->lines->pdata[i])->state]++;
  fprintf (stderr,
           "weft: note: %s: %u settings mapped, %u at the default there, %u not expressible; "
           "weft export --report lists them\n",
           result->target->release, n[WEFT_EXPORT_MAPPED], n[WEFT_EXPORT_DEFAULT],
           n[WEFT_EXPORT_NOT]);
  note_outside (result);
}

/* Appends a setting NAME=VALUE of the strategy, unless its key is given. */
static gboolean
adopt (weft_settings *settings, const char *setting)
{
  g_auto (GStrv) part = g_strsplit (setting, "=", 2);
  const char *section, *key;
  gboolean boolean;

  if (!weft_job_flag (part[0], &section, &key, &boolean) || is_set (settings, key) ||
      strcmp (section, "strategy") != 0)
    return FALSE;
  weft_settings_add (settings, section, key, part[1], "--for");
  return TRUE;
}

unsigned
weft_cli_software_adopt (const weft_interop_result *result, weft_settings *settings)
{
  g_autoptr (GString) adopted = g_string_new (NULL);
  unsigned n = 0;

  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    if (line->state != WEFT_EXPORT_NOT || !line->instead || !adopt (settings, line->instead))
      continue;
    g_string_append_printf (adopted, "%s%s", n ? ", " : "", line->instead);
    n++;
  }
  if (n)
    fprintf (stderr, "weft: note: for %s the search fixes %s\n", result->target->release,
             adopted->str);
  return n;
}

/* Sets a knob of the job, "NAME=VALUE", unless it is fixed. */
static gboolean
change_knob (struct weft_job *job, const gboolean *fixed, const char *setting)
{
  g_auto (GStrv) part = g_strsplit (setting, "=", 2);
  int knob = weft_table_find (&weft_strategy_table, part[0]);

  return knob >= 0 && !fixed[knob] &&
         weft_field_parse (&weft_strategy_table.field[knob], part[1], &job->strategy.at[knob],
                           NULL);
}

/* Changes knobs that the software cannot express, and appends the changes to `text`. Returns
 * whether a knob was changed and the changed job keeps the rules. */
static gboolean
change_knobs (const weft_interop_result *result, const gboolean *fixed, struct weft_job *job,
              GString *text)
{
  struct weft_job changed = *job;
  gsize before = text->len;

  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    if (line->state == WEFT_EXPORT_NOT && line->instead &&
        change_knob (&changed, fixed, line->instead))
      g_string_append_printf (text, "%s%s", text->len ? ", " : "", line->instead);
  }
  weft_job_derive (&changed);
  if (text->len == before || !weft_job_check (&changed, NULL))
    return FALSE;
  *job = changed;
  return TRUE;
}

weft_interop_result *
weft_cli_software_change (const struct weft_target *target, const gboolean *fixed,
                          struct weft_job *job, char **changes, GError **error)
{
  enum { MOST_CHANGES = 4 }; /* a change can reveal another setting that the software lacks */
  g_autoptr (GString) text = g_string_new (NULL);
  weft_interop_result *result = weft_export (target, job, error);

  for (unsigned i = 0; result && result->n_not && i < MOST_CHANGES; i++) {
    if (!change_knobs (result, fixed, job, text))
      break;
    weft_interop_result_free (result);
    result = weft_export (target, job, error);
  }
  *changes = g_string_free (g_steal_pointer (&text), FALSE);
  return result;
}
