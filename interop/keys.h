/* keys.h - the keys that a release of other software accepts (its schema), and the keys that a file
 * of this software gives.
 *
 * A schema is a list of rows in schemas/, extracted from the source of the named release.  A key
 * that is not in the list is refused, with the nearest key of the list. */
#pragma once
#include <glib.h>

enum weft_key_kind {
  WEFT_KEY_INT,
  WEFT_KEY_REAL,
  WEFT_KEY_TEXT,
  WEFT_KEY_BOOL, /* has the value true or false */
  WEFT_KEY_ON,   /* has no value and sets its destination to true */
  WEFT_KEY_OFF,  /* has no value and sets its destination to false */
};

struct weft_key {
  const char *name; /* "tensor-model-parallel-size", "parallelism.tensor_parallel_degree" */
  enum weft_key_kind kind;
  gboolean many;       /* takes several values, which texts separate by commas */
  const char *def;     /* its default in the software: "none" if there is none */
  const char *dest;    /* name of the setting in the software */
  const char *choices; /* values that the software accepts, space separated; "": all */
};

struct weft_schema {
  const struct weft_key *key;
  unsigned n;
  gboolean abbreviated; /* the software accepts the beginning of a key if no other key has it */
};

/* The number of a key, or -1. */
int weft_schema_find (const struct weft_schema *schema, const char *name);

/* Refuses a value that the software would refuse: wrong type, or none of its choices. `prefix` is
 * what the software writes before a key: "--". */
gboolean
weft_key_check (const struct weft_key *key, const char *prefix, const char *value, GError **error);

/* A key that a file gives. */
struct weft_given {
  unsigned key; /* number in the schema */
  char *value;  /* "" for a key without value */
  char *where;  /* "train.sh:12" */
};

/* The content of a file: its keys, its number of GPUs, and what could not be read. */
struct weft_keys_read {
  GArray *given;      /* struct weft_given, in the order of the file */
  GPtrArray *unknown; /* char *: a sentence for each key that the schema does not have */
  gint64 gpus;        /* 0: the file does not give it */
};
typedef struct weft_keys_read weft_keys_read;
weft_keys_read *weft_keys_read_new (void);
void weft_keys_read_free (weft_keys_read *read);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_keys_read, weft_keys_read_free)

/* Adds a key with its value (NULL: without), or a sentence about an unknown key. A key that is
 * given twice has its last value. FALSE: the software would refuse the value. */
gboolean weft_keys_add (weft_keys_read *read, const struct weft_schema *schema, const char *prefix,
                        const char *name, const char *value, const char *where, GError **error);

/* The entry of a key in a file, by number or name of the key; NULL: the file has no such key. */
const struct weft_given *weft_keys_given (const weft_keys_read *read, unsigned key);
const struct weft_given *
weft_keys_value (const weft_keys_read *read, const struct weft_schema *schema, const char *name);
