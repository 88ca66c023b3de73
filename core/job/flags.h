/* flags.h - settings of a job on a command line: --flag value, --flag=value, and for booleans
 * --flag or --no-flag. A dash and an underscore are the same in names. */
#pragma once
#include "core/job/job.h"

struct weft_words {
  int n, at; /* at: index of the argument that is read */
  const char *const *word;
};

/* A flag split into parts: "--nodes" as typed, its name "nodes", and the "4" of "--nodes=4" or
 * NULL. */
struct weft_flag {
  char *whole; /* the value of the flag as text; the caller frees it */
  const char *name, *value;
};
struct weft_flag weft_flag_split (const char *word);

/* The value of a flag: the text after "=", or the next argument, which is then skipped. NULL with
 * an error if neither exists. */
const char *weft_flag_value (struct weft_words *words, const struct weft_flag *flag,
                             const char *what, GError **error);

/* FALSE with an error if the flag was given a value ("--flag=value"). */
gboolean weft_flag_takes_none (const struct weft_flag *flag, GError **error);

/* Adds a flag to `settings` if the flag is a setting of the job. FALSE without an error if no
 * setting has the name of the flag. */
gboolean weft_flag_set (struct weft_words *words, const struct weft_flag *flag,
                        weft_settings *settings, GError **error);

/* Reads all arguments of a job: at most one job file, and flags. A flag overrides the file, also if
 * the flag stands before it. `topology` is the default topology; NULL: the arguments must name
 * one. */
gboolean weft_flags_read (int n, const char *const *word, const char *topology,
                          weft_settings *settings, GError **error);

/* Reads flags that are written without dashes, "model=llama3-8b gpus=8", in tests and
 * benchmarks. */
gboolean weft_flags_words (const char *words, weft_settings *settings, GError **error);

/* Reads a job file that the command line names. */
gboolean weft_flags_file (const char *path, weft_settings *settings, GError **error);
