/* progress.h - the lines that a training run prints to stdout: JSON, or text.  On a terminal, a
 * line of text overwrites the previous line; about 20 lines of a run stay. */
#pragma once
#include "train/trainer.h"

struct weft_cli_progress {
  gboolean json, terminal;
  gboolean open;  /* TRUE: the last line has no newline yet, and the next line overwrites it */
  gint64 start;   /* begin of the first step in microseconds */
  uint64_t first; /* number of the run's first step */
};

/* Returns the sink for the trainer's lines and messages; messages are printed to stderr.  From now
 * on the process ignores SIGPIPE: if the reader of stdout has ended, the sink asks the trainer to
 * stop. */
struct weft_trainer_sink weft_cli_progress_start (struct weft_cli_progress *progress,
                                                  gboolean json);

/* If a line has no newline yet, ends it, so that other text can be printed. */
void weft_cli_progress_pause (struct weft_cli_progress *progress);

/* Prints the last line of a run. */
void weft_cli_progress_done (const struct weft_cli_progress *progress,
                             const struct weft_trainer_result *result);
