/* aliases.h - flags that set other settings, or nothing (core/aliases.def): short forms, and flags
 * of Megatron-LM command lines. */
#pragma once
#include "core/job/job.h"

enum weft_alias_values { WEFT_ALIAS_FLAG, WEFT_ALIAS_ONE, WEFT_ALIAS_ALL };

struct weft_alias {
  const char *name;
  enum weft_alias_values values; /* what follows the flag: nothing, one value, or all words up to
                                    the next flag */
  const char *sets;              /* "key=value key=value"; with a value, the key that receives it */
  const char *doc;
  gboolean ignored; /* changes nothing; `doc` says why */
};
extern const struct weft_alias weft_aliases[];
extern const unsigned weft_n_aliases;

/* The row of a flag, or NULL. */
const struct weft_alias *weft_alias_find (const char *flag);

/* Adds what a flag sets; `value` is NULL if it takes none.  A flag without effect is remembered
 * (weft_settings_ignored()). */
void weft_alias_set (const struct weft_alias *alias, const char *value, const char *where,
                     weft_settings *settings);

/* A text about what a flag sets: "activation = swiglu".  The caller frees it. */
char *weft_alias_text (const struct weft_alias *alias);
