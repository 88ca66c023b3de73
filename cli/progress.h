/* progress.h - the lines that a training run prints to stdout: JSON, or text.  On a terminal a line
 * of text overwrites the one before it; about every twentieth stays. */
#pragma once
#include "train/trainer.h"

struct weft_cli_progress {
  gboolean json, terminal;
  gboolean open;  /* the last line has no newline yet: the next one overwrites it */
  gint64 start;   /* begin of the first step, microseconds */
  uint64_t first; /* number of the first step */
};

/* The sink for the trainer's lines; its messages go to stderr.  Ignores SIGPIPE from now on: when
 * the reader of stdout has gone, the trainer is asked to stop. */
struct weft_trainer_sink weft_cli_progress_start (struct weft_cli_progress *progress,
                                                  gboolean json);

/* Ends an open line before something else is printed. */
void weft_cli_progress_pause (struct weft_cli_progress *progress);

/* Prints the last line. */
void weft_cli_progress_done (const struct weft_cli_progress *progress,
                             const struct weft_trainer_result *result);
