/* field.h - a closed set of named settings is one table; parsing, printing, checking, help and docs
 * are loops over it.
 *
 * The tables are strategy.def (knobs), model.def, cluster.def, stack.def and train.def.  A row
 * holds text only: defaults pass through the parser, so a wrong default fails the first
 * test.  A value is 8 bytes, an int64_t or a double, so a struct of settings is also an array of
 * values:
 *
 *   union weft_strategy { struct { int64_t tensor_model_parallel_size; ... }; union weft_value
 *   at[N]; }
 */
#pragma once
#include <glib.h>
#include <stdint.h>

/* X(ID, "word", "doc"): the enum constant is spelled whole, so grep finds it. A list may have more
 * columns, which its comment names. */
#define WEFT_WORD_ID(id, text, ...) id,
#define WEFT_WORD_TEXT(id, text, ...) text,

enum weft_type {
  WEFT_TYPE_INT,    /* int64_t; must be in [lo, hi] */
  WEFT_TYPE_BOOL,   /* 0 or 1 */
  WEFT_TYPE_REAL,   /* double in `unit`; must be in [lo, hi] */
  WEFT_TYPE_WORD,   /* index of a word in words[] */
  WEFT_TYPE_TEXT,   /* number of an interned text (GQuark) */
  WEFT_TYPE_METHOD, /* a method of an upstream class: listed in the help, but a job cannot set it */
};

/* The value of an optional field that is not given; prints and parses as "none". */
#define WEFT_NONE INT64_MIN

union weft_value {
  int64_t i;
  double r;
};

struct weft_field {
  const char *name;
  enum weft_type type;
  const char *def;          /* default value as text; "none": the field may be without a value */
  const char *lo, *hi;      /* least and largest value, both allowed; NULL: no limit */
  const char *unit;         /* "B", "B/s", "s", "FLOP/s", "" */
  const char *const *words; /* the allowed words of a WEFT_TYPE_WORD; NULL-terminated */
  /* names of the classes or files that have the field, separated by spaces */
  const char *source;
  /* what the field changes: words of "program memory cost executor init", or "none: REASON", or
   * "not yet" */
  const char *affects;
  const char *aliases;      /* other names of the field, separated by spaces; "": none */
  const char *doc;          /* one line */
  gboolean optional;        /* a sheet (sheet.h) may omit the field: it keeps its default */
  /* the kinds of sheet files that may set the field, separated by spaces; NULL: every kind */
  const char *only;
};

struct weft_table {
  const char *noun; /* what messages call a row of the table: "knob", "model field" */
  const struct weft_field *field;
  unsigned n;
};

const char *weft_type_word (enum weft_type type);

/* Parses every default.  A default that does not parse aborts: it is a bug in the table. */
void weft_table_defaults (const struct weft_table *table, union weft_value *values);

/* The row with this name or alias; case, dashes and underscores are ignored. -1 if there is
 * none. */
int weft_table_find (const struct weft_table *table, const char *name);

/* Sets an error with a suggestion: "unknown <noun> NAME; did you mean OTHER?". Always returns
 * FALSE. */
gboolean weft_table_unknown (const struct weft_table *table, const char *name, GError **error);

gboolean weft_field_parse (const struct weft_field *field, const char *text,
                           union weft_value *value, GError **error);
/* Whether a value is one that weft_field_parse() accepts. */
gboolean weft_field_holds (const struct weft_field *field, union weft_value value);
gboolean weft_field_is_default (const struct weft_field *field, union weft_value value);

/* Prints a value such that weft_field_parse() returns the same value. The caller frees the text. */
char *weft_field_print (const struct weft_field *field, union weft_value value);

/* The things that a number without a unit counts, for example " (tokens in one training sequence)".
 * The text is the first part of the field's doc; it is empty for fields that are not numbers or
 * have a unit. The caller frees the text. */
char *weft_field_counts (const struct weft_field *field);

/* The allowed values of a field as text for help and messages: "1..1024", "none|selective|full",
 * "true|false". The caller frees the text. */
char *weft_field_range (const struct weft_field *field);

/* Whether `affects` begins with "not yet": the field is known, but no code reads it yet. */
gboolean weft_field_is_pending (const struct weft_field *field);
