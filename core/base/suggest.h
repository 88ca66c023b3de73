/* suggest.h - "did you mean": the name nearest to a mistyped one. */
#pragma once

/* 1 if two names are equal when case, dashes, dots and underscores are ignored; else 0. */
int weft_same_name (const char *a, const char *b);

typedef const char *(*weft_name_at) (const void *table, unsigned i);

/* The nearest of n names by edit distance, or NULL if no name is near.  Borrowed from the table. */
const char *weft_suggest (const char *typed, weft_name_at name_at, const void *table, unsigned n);

/* Like weft_suggest(), for a NULL-terminated array of names. */
const char *weft_suggest_strv (const char *typed, const char *const *names);

/* Names to suggest for a text that may be a part of a name or an abbreviation, formatted as "a, b
 * or c". The first of these lists that is not empty: names that contain `typed`; names that are
 * near by edit distance; names that begin with the same letter and contain the letters of `typed`
 * in order ("mcore": megatron-core). NULL if all are empty. The caller frees the text. */
char *weft_suggest_part (const char *typed, const char *const *names);
