/* target.h - a software that Weft exports to and imports from, as tables.
 *
 * The rows of a target define what its keys mean for a job of Weft.  Export and import read the
 * same rows, so a key has one meaning in both directions.  A setting of Weft that no row names is
 * expressible only at Weft's default. */
#pragma once
#include "interop/keys.h"
#include "interop/texts.h"

typedef struct weft_reading weft_reading;

/* A meaning of a key that needs a calculation.  `in` sets settings by weft_reading_set(); `out`
 * returns the value of the key for the settings of a job, or NULL if no value of the key gives
 * these settings. */
struct weft_form {
  gboolean (*in) (weft_reading *reading, const char *value, GError **error);
  char *(*out) (const weft_reading *reading);
};

/* A row: if the key has this value, the settings have these values. */
struct weft_key_row {
  const char *key;    /* NULL: the row describes what the software does without a key */
  const char *theirs; /* the value of the key; "*": any value; "": a key without value */
  /* the settings of Weft that the row sets, each as NAME=VALUE, separated by spaces, for example
   * "activation=swiglu". The VALUE "*", as in "seq_length=*", stands for the value that a file
   * gives to the key. Empty, and `key` is not NULL: the key does not change a step */
  const char *sets;
  const char *when;   /* other settings for which the row holds: "kv_lora_rank!=0"; "": always */
  const char *with;   /* a key that must also be given; NULL: none */
  const char *without_it; /* why the row is refused without `with`; NULL: the software then ignores
                             the key */
  const struct weft_form *form;                   /* NULL: `theirs` and `sets` are the meaning */
  char *(*compute) (const weft_reading *reading); /* key NULL: the value of the setting `sets` */
  const char *also;   /* other keys that an export writes with this one, for example
                         "communication_data_type=fp32"; the value "*" is that of the key's form;
                         NULL: none */
  gboolean elsewhere; /* key NULL: no key gives the setting `sets`; doc names what gives it */
  const char *doc; /* why the key does not change a step; key NULL and `sets` empty: what the
                         software refuses when `when` holds */
};

/* A key that the software needs, with a value that does not change a step. */
struct weft_always {
  const char *key, *value;
};

struct weft_target {
  const char *name;    /* "megatron-lm" */
  const char *release; /* "Megatron-LM core_v0.13.0" */
  const char *doc;
  const char *stack;  /* the stack that imported jobs have */
  const char *prefix; /* prefix of keys in files of the software: "--" */
  const char *file;   /* the file to read if a folder is given; NULL: folders are refused */
  const char *model;  /* what sets the model, if keys do not; NULL: keys */
  const struct weft_schema *schema;
  const struct weft_key_row *rows;
  unsigned n_rows;
  const struct weft_always *always;
  unsigned n_always;
  gboolean same_names; /* a key whose destination is the name of a setting has its meaning, and
                          spellings of core/aliases.def have theirs */
  /* Reads a file whose keys are settings of Weft; NULL: its keys are those of the schema, and the
   * next function reads it. `unknown` gets a sentence (char *) for each key that Weft lacks. */
  gboolean (*settings) (const char *text, const char *name, weft_settings *out, GPtrArray *unknown,
                        GError **error);
  /* Reads a file of the software; messages call it `name`. */
  gboolean (*read) (const char *text, const char *name, weft_keys_read *out, GError **error);
  /* Writes a file of the software; NULL: it is only read. The caller frees it. */
  char *(*write) (const struct weft_target *target, const weft_keys_read *keys,
                  const struct weft_job *job);
  /* The command that starts a run with an exported file; may be NULL. The caller frees it. */
  char *(*launch) (const struct weft_job *job);
};

/* All targets, closed by NULL. */
extern const struct weft_target *const weft_targets[];

/* The names of all targets with `between` between them; `written`: only of those that an export
 * writes. The caller frees the text. */
char *weft_target_names (const char *between, gboolean written);

/* The target of this name; NULL and an error that names the targets. */
const struct weft_target *weft_target_find (const char *name, GError **error);

/* ------------------------------------------------------------------------ reading keys */

/* Makes a reading: the settings of Weft that keys of the software mean, each as a text that is
 * computed on first use. */
weft_reading *weft_reading_new (const struct weft_target *target, const weft_keys_read *keys);

/* Makes a reading from the settings of a job. `keys`: keys on which defaults of the software depend
 * and that every export writes (weft_always); NULL: none. They must live as long as the reading. */
weft_reading *weft_reading_of_job (const struct weft_target *target, const struct weft_job *job,
                                   const weft_keys_read *keys);
void weft_reading_free (weft_reading *reading);

/* Names what sets a setting that no key of the software sets: the training program or a command
 * line. NULL: keys set it. */
const char *weft_reading_elsewhere (const weft_reading *reading, unsigned setting);

/* Whether a key or a flag has given a setting. */
gboolean weft_reading_is_given (const weft_reading *reading, unsigned setting);

/* Set settings of the reading that no key gives: weft_reading_share() from another reading,
 * weft_reading_take_flags() from flags. */
void weft_reading_share (weft_reading *reading, const weft_reading *from);
void weft_reading_take_flags (weft_reading *reading, const weft_settings *flags);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_reading, weft_reading_free)

/* Applies the keys: afterwards every setting has a text, or NULL if the software needs a key for
 * it. */
gboolean weft_reading_apply (weft_reading *reading, GError **error);

/* The text of a setting; NULL: the software needs a key for it. */
const char *weft_reading_text (const weft_reading *reading, const char *name);
const char *weft_reading_at (const weft_reading *reading, unsigned setting);

/* The text of a setting that no key gives; NULL: the software needs a key. The caller frees it. */
char *weft_reading_absent (const weft_reading *reading, unsigned setting);

/* The whole number of a setting; 0 if it has none. */
gint64 weft_reading_int (const weft_reading *reading, const char *name);

/* The number of layers that are divided among pipeline ranks: num_layers, and one each for
 * embedding and output head if they count as a layer. */
gint64 weft_reading_pipeline_layers (const weft_reading *reading);

/* The number of GPUs of the job; 0: it is not known. */
gint64 weft_reading_gpus (const weft_reading *reading);

/* Data-parallel replicas, or 0 if the number of GPUs is not known. */
gint64 weft_reading_replicas (const weft_reading *reading);

/* The value of a key; NULL: it is not given. */
const char *weft_reading_key (const weft_reading *reading, const char *name);

/* Set a setting of the reading. Only functions of a form call this. */
void weft_reading_set (weft_reading *reading, const char *name, const char *text);
void weft_reading_set_int (weft_reading *reading, const char *name, gint64 value);

/* A condition or value in a row: "a=1" or "a!=1". */
struct weft_pair {
  unsigned setting;
  const char *value; /* as weft_field_print() writes it; "*": the value of the key */
  gboolean equal;
};

struct weft_pairs {
  struct weft_pair *at;
  unsigned n;
};

/* A row with its texts parsed. */
struct weft_meaning {
  const struct weft_key_row *row;
  int key; /* number of the key in the schema; -1: none */
  struct weft_pairs sets, when;
};

/* All rows of a target: its own, then those that follow from equal names. A row that names a
 * setting, a key or a value that does not exist aborts: it is a bug in the table. */
struct weft_meanings {
  struct weft_meaning *at;
  unsigned n;
};
const struct weft_meanings *weft_target_meanings (const struct weft_target *target);

/* The row for a key that does not change a step; NULL: the key has none. */
const struct weft_key_row *weft_target_quiet (const struct weft_target *target, unsigned key);

/* Parses "a=1 b!=2". The caller frees the array. */
struct weft_pairs weft_pairs_parse (const char *text);

/* Whether all pairs hold for the texts of a reading. */
gboolean weft_reading_agrees (const weft_reading *reading, const struct weft_pairs *pairs);
