/* suggest.h - "did you mean": the name nearest to a mistyped one. */
#pragma once

/* 1 if two names are equal when case, dashes, dots and underscores are ignored; else 0. */
int weft_same_name (const char *a, const char *b);

typedef const char *(*weft_name_at) (const void *table, unsigned i);

/* The nearest of n names by edit distance, or NULL if no name is near.  Borrowed from the table. */
const char *weft_suggest (const char *typed, weft_name_at name_at, const void *table, unsigned n);

/* weft_suggest() for a NULL-terminated array of names. */
const char *weft_suggest_strv (const char *typed, const char *const *names);

/* Names to ask for instead of a part or an abbreviation of one, as in "did you mean a, b or c?":
 * those that contain `typed`; else the nearest by edit distance; else those that begin with its
 * first letter and contain its letters in order ("mcore": megatron-core).  NULL if there are none;
 * the caller frees the text. */
char *weft_suggest_part (const char *typed, const char *const *names);
