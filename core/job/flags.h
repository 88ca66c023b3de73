/* flags.h - settings of a job on a command line: --flag value, --flag=value, and --flag or
 * --no-flag for booleans. Dashes and underscores are equivalent. */
#pragma once
#include "core/job/job.h"

struct weft_words {
  int n, at; /* at: index of the current argument */
  const char *const *word;
};

/* A flag split into parts: "--nodes" as typed, its name "nodes", and the "4" of "--nodes=4" or
 * NULL. */
struct weft_flag {
  char *whole; /* owned by the caller */
  const char *name, *value;
};
struct weft_flag weft_flag_split (const char *word);

/* The value after "=", or the next argument, which is consumed; NULL with an error. */
const char *weft_flag_value (struct weft_words *words, const struct weft_flag *flag,
                             const char *what, GError **error);

/* FALSE with an error if the flag has a value after "=". */
gboolean weft_flag_takes_none (const struct weft_flag *flag, GError **error);

/* Adds a flag that is a setting of the job to `settings`; FALSE without an error if there is no
 * such setting. */
gboolean weft_flag_set (struct weft_words *words, const struct weft_flag *flag,
                        weft_settings *settings, GError **error);

/* Reads all arguments of a job: at most one job file, and flags, which override the file wherever
 * they stand. `topology` is the default topology; NULL: the job must name one. */
gboolean weft_flags_read (int n, const char *const *word, const char *topology,
                          weft_settings *settings, GError **error);

/* Reads flags without dashes, "model=llama3-8b gpus=8", as used in tests and benchmarks. */
gboolean weft_flags_words (const char *words, weft_settings *settings, GError **error);

/* Reads a job file named on the command line. */
gboolean weft_flags_file (const char *path, weft_settings *settings, GError **error);
