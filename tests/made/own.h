/* own.h - options of one executor as text, for tests: "stress=5 poison".  An option without a
 * value is set to true. */
#pragma once
#include "core/exec/exec.h"
#include <stdarg.h>
#include <string.h>

static inline void
made_own_set (struct weft_own_options *own, const struct weft_exec_ops *ops, const char *words)
{
  g_auto (GStrv) word = g_strsplit (words, " ", -1);

  for (char **at = word; *at; at++) {
    g_autoptr (GError) error = NULL;
    char *equals = strchr (*at, '=');
    const char *value = equals ? equals + 1 : "true";
    if (equals)
      *equals = '\0';
    if (**at && !weft_own_options_set (own, ops->options, *at, value, &error))
      g_error ("%s", error->message);
  }
}

/* Adds settings to `own`, which must be zeroed or have options of the same executor `ops`. `words`
 * is a printf format. */
static inline void G_GNUC_PRINTF (3, 4)
made_own_add (struct weft_own_options *own, const struct weft_exec_ops *ops, const char *words, ...)
{
  va_list arguments;

  va_start (arguments, words);
  g_autofree char *text = g_strdup_vprintf (words, arguments);
  va_end (arguments);
  made_own_set (own, ops, text);
}

/* Returns new options with the settings in `words`, which is a printf format. */
static inline struct weft_own_options G_GNUC_PRINTF (2, 3)
made_own (const struct weft_exec_ops *ops, const char *words, ...)
{
  struct weft_own_options own = { 0 };
  va_list arguments;

  va_start (arguments, words);
  g_autofree char *text = g_strdup_vprintf (words, arguments);
  va_end (arguments);
  made_own_set (&own, ops, text);
  return own;
}
