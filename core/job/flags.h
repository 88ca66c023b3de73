/* flags.h - settings of a job as a command line spells them: --flag value, --flag=value, and --flag
 * or --no-flag for booleans.  Dashes and underscores are one. */
#pragma once
#include "core/job/job.h"

struct weft_words {
  int n, at; /* at: the word being read */
  const char *const *word;
};

/* A flag as it was typed, in parts: "--nodes", "nodes" in it, and "4" of "--nodes=4" or NULL. */
struct weft_flag {
  char *whole; /* caller frees */
  const char *name, *value;
};
struct weft_flag weft_flag_split (const char *word);

/* What stands after "=", or the next word, which is taken; NULL with an error. */
const char *weft_flag_value (struct weft_words *words, const struct weft_flag *flag,
                             const char *what, GError **error);
gboolean weft_flag_takes_none (const struct weft_flag *flag, GError **error);

/* A setting of the job, added to `settings`; FALSE without an error when there is none of this
 * name. */
gboolean weft_flag_set (struct weft_words *words, const struct weft_flag *flag,
                        weft_settings *settings, GError **error);

/* All words of a job: at most one job file, and flags, which override it wherever they stand.
 * `topology` is that of a job that names none; NULL: it must. */
gboolean weft_flags_read (int n, const char *const *word, const char *topology,
                          weft_settings *settings, GError **error);

/* Flags without their dashes, "model=llama3-8b gpus=8", as tests and benchmarks write a job. */
gboolean weft_flags_words (const char *words, weft_settings *settings, GError **error);

/* A job file that was named as a word. */
gboolean weft_flags_file (const char *path, weft_settings *settings, GError **error);
