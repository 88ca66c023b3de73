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
  WEFT_TYPE_INT,    /* int64_t within [lo, hi] */
  WEFT_TYPE_BOOL,   /* 0 or 1 */
  WEFT_TYPE_REAL,   /* double in `unit`, within [lo, hi] */
  WEFT_TYPE_WORD,   /* index into words[] */
  WEFT_TYPE_TEXT,   /* GQuark of the text */
  WEFT_TYPE_METHOD, /* an API entry: documented here, cannot be set */
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
  const char *def;          /* "none" makes the field optional */
  const char *lo, *hi;      /* inclusive, NULL: unbounded */
  const char *unit;         /* "B", "B/s", "s", "FLOP/s", "" */
  const char *const *words; /* NULL-terminated, for WEFT_TYPE_WORD */
  const char *source;       /* classes or files that have the field, space separated */
  const char *affects;      /* words of "program memory cost executor init"; "none: why"; "not
                               yet" */
  const char *aliases;      /* other spellings, space separated, or "" */
  const char *doc;          /* one line */
  gboolean optional;        /* a sheet (sheet.h) may omit the field: it keeps its default */
  const char *only;         /* the kinds of sheets that have the field; NULL: all kinds */
};

struct weft_table {
  const char *noun; /* "knob", "model field": used in messages */
  const struct weft_field *field;
  unsigned n;
};

const char *weft_type_word (enum weft_type type);

/* Parses every default.  A default that does not parse aborts: it is a bug in the table. */
void weft_table_defaults (const struct weft_table *table, union weft_value *values);

/* Row number by name or alias, ignoring case, dashes and underscores; -1 when unknown. */
int weft_table_find (const struct weft_table *table, const char *name);

/* Sets "unknown <noun> NAME; did you mean OTHER?".  Always returns FALSE. */
gboolean weft_table_unknown (const struct weft_table *table, const char *name, GError **error);

gboolean weft_field_parse (const struct weft_field *field, const char *text,
                           union weft_value *value, GError **error);
/* Whether a value is one that weft_field_parse() accepts. */
gboolean weft_field_holds (const struct weft_field *field, union weft_value value);
gboolean weft_field_is_default (const struct weft_field *field, union weft_value value);

/* Inverts weft_field_parse().  Caller frees. */
char *weft_field_print (const struct weft_field *field, union weft_value value);

/* What a number without a unit counts, by the first part of the field's doc: " (tokens in one
 * training sequence)". Empty for other fields.  Caller frees. */
char *weft_field_counts (const struct weft_field *field);

/* "1..1024", "none|selective|full", "true|false": for help and messages.  Caller frees. */
char *weft_field_range (const struct weft_field *field);

/* Whether `affects` begins with "not yet": the field is known, but no code reads it yet. */
gboolean weft_field_is_pending (const struct weft_field *field);
