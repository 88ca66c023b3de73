/* suggest.h - "did you mean": the name nearest to a mistyped one. */
#pragma once

/* Compares names without case, dashes, dots and underscores. */
int weft_same_name (const char *a, const char *b);

typedef const char *(*weft_name_at) (const void *table, unsigned i);

/* The nearest of n names by edit distance, or NULL when none is near.  Borrowed from the table. */
const char *weft_suggest (const char *typed, weft_name_at name_at, const void *table, unsigned n);

/* A NULL-terminated array of names as a table of weft_suggest. */
const char *weft_suggest_strv (const char *typed, const char *const *names);
