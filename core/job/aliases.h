/* aliases.h - flags that set other settings, or nothing (core/aliases.def): short forms, and flags
 * of Megatron-LM command lines. */
#pragma once
#include "core/job/job.h"

enum weft_alias_values { WEFT_ALIAS_FLAG, WEFT_ALIAS_ONE, WEFT_ALIAS_ALL };

struct weft_alias {
  const char *name;
  /* what follows the flag on the command line: nothing, one value, or all words up to the next
   * flag */
  enum weft_alias_values values;
  /* alias without value: "key=value key=value"; alias with a value: the key that receives it */
  const char *sets;
  const char *doc;
  gboolean ignored; /* TRUE: the flag changes nothing; `doc` contains the reason */
};
extern const struct weft_alias weft_aliases[];
extern const unsigned weft_n_aliases;

/* The row of core/aliases.def for a flag, or NULL. */
const struct weft_alias *weft_alias_find (const char *flag);

/* Adds the settings of an alias; `value` is NULL if the flag has no value. A flag without effect is
 * recorded (weft_settings_ignored()). */
void weft_alias_set (const struct weft_alias *alias, const char *value, const char *where,
                     weft_settings *settings);

/* A text that says which settings a flag sets, for example "activation = swiglu". The caller frees
 * the text. */
char *weft_alias_text (const struct weft_alias *alias);
