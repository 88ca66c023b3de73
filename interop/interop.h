/* interop.h - a job as the configuration of other software, and back.
 *
 *   weft_export()   job -> keys of the software, with a line for every setting of Weft
 *   weft_import()   keys of the software -> settings of a job, with a line for every key
 *
 * A setting that the software cannot express, and a key that changes a step and that Weft does not
 * have, are refused unless the caller asks for a partial result.  What is exported imports to the
 * same job: an export is read back, and every difference is a setting that the software cannot
 * express. */
#pragma once
#include "interop/target.h"

#define WEFT_EXPORT_STATE_LIST(X)                                                                  \
  X (WEFT_EXPORT_MAPPED, "mapped", "a key of the software sets it")                                \
  X (WEFT_EXPORT_DEFAULT, "default", "the software does this without a key")                       \
  X (WEFT_EXPORT_OWN, "own", "a setting of Weft that is no part of a run, or has no effect")       \
  X (WEFT_EXPORT_ELSEWHERE, "elsewhere", "the training program sets it, not the configuration")    \
  X (WEFT_EXPORT_NOT, "not expressible", "the software has no key for this value")
enum weft_export_state { WEFT_EXPORT_STATE_LIST (WEFT_WORD_ID) WEFT_N_EXPORT_STATE };
extern const char *const weft_export_state_words[];

#define WEFT_IMPORT_STATE_LIST(X)                                                                  \
  X (WEFT_IMPORT_MAPPED, "mapped", "it sets settings of Weft")                                     \
  X (WEFT_IMPORT_DEFAULT, "default", "at the default of the software")                             \
  X (WEFT_IMPORT_QUIET, "no effect", "it does not change a step")                                  \
  X (WEFT_IMPORT_NOT, "not expressible", "it changes a step, and Weft has no setting for it")
enum weft_import_state { WEFT_IMPORT_STATE_LIST (WEFT_WORD_ID) };
extern const char *const weft_import_state_words[];

/* One line of a report. */
struct weft_interop_line {
  const char *ours;   /* setting of Weft; NULL: none (import) */
  char *value;        /* value of the setting, or of the key (import) */
  const char *theirs; /* key of the software; NULL: none (export) */
  int state;          /* enum weft_export_state or enum weft_import_state */
  char *why;          /* reason of the state; NULL: none is needed */
  char *there;        /* export, not expressible: the value that the software has instead */
  /* export, not expressible: a setting as NAME=VALUE that the software can express instead; NULL:
   * not known */
  char *instead;
};

struct weft_interop_result {
  const struct weft_target *target;
  char *text;              /* export: the file */
  char *launch;            /* export: the command that starts a run; NULL: the text contains it */
  GPtrArray *lines;        /* struct weft_interop_line * */
  unsigned n_not;          /* lines that are not expressible */
  weft_settings *settings; /* import: the settings of a job */
  GPtrArray *needed;       /* import: names of settings that the software needs and no key gives */
  GPtrArray *unknown;      /* import, partial: sentences about unknown keys */
  GPtrArray *elsewhere;    /* import: names of settings, without those of the model, that the
                              training program sets and no flag gives; NULL: none */
};
typedef struct weft_interop_result weft_interop_result;
void weft_interop_result_free (weft_interop_result *result);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_interop_result, weft_interop_result_free)

/* Exports a job. A result with n_not > 0 is partial: its text leaves these settings out. */
weft_interop_result *
weft_export (const struct weft_target *target, const struct weft_job *job, GError **error);

/* A sentence that lists what an export leaves out; NULL: nothing. The caller frees it. */
char *weft_export_left_out (const weft_interop_result *result);

/* The settings of an exported job, without those of its model, that the training program must set
 * to other values than Weft's default; NULL: none. The caller frees the text. */
char *weft_export_elsewhere (const weft_interop_result *result);

struct weft_import_options {
  gint64 gpus; /* size of the cluster, which is used if the text does not give it; 0: not known */
  const weft_settings *flags; /* settings that the caller gives; may be NULL */
  gboolean partial;           /* leave out unknown keys, and keys that Weft cannot express */
};

/* Imports a text. `name` is its name in messages. The result does not contain the flags: they only
 * give settings for which the software has no keys. */
weft_interop_result *weft_import (const struct weft_target *target, const char *text,
                                  const char *name, const struct weft_import_options *options,
                                  GError **error);
