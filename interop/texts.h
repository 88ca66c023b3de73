/* texts.h - the settings of a job in one list, each as a text: the sections model, train and
 * strategy.  Names are unique over the three sections. */
#pragma once
#include "core/job/job.h"

/* Number of settings. Methods of the table of knobs are in the list, without a text. */
unsigned weft_texts_count (void);

/* The field of a setting, and the section that has it (may be NULL). */
const struct weft_field *weft_texts_field (unsigned i, const char **section);

/* The number of a setting by its name or another spelling of the table; -1: there is none. */
int weft_texts_find (const char *name);

/* The texts of a job, and those of the defaults. The caller frees the array with g_strfreev(); an
 * entry is never NULL. */
char **weft_texts_of (const struct weft_job *job);
char **weft_texts_defaults (void);

/* The text as weft_field_print() writes its value: "1.0" becomes "1". NULL if the field does not
 * accept it. The caller frees the text. */
char *weft_texts_print (unsigned i, const char *text);

/* A whole number as text; weft_texts_positive() returns NULL unless the number is positive. The
 * caller frees the text. */
char *weft_texts_int (gint64 value);
char *weft_texts_positive (gint64 value);
