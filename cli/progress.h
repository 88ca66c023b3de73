/* progress.h - the lines of a training run on stdout: JSON, or text for people.  On a terminal a
 * line of text replaces the one before it, but for some that stay. */
#pragma once
#include "train/trainer.h"

struct weft_cli_progress {
  gboolean json, terminal;
  gboolean open;  /* a line that the next one replaces stands on the terminal */
  gint64 start;   /* of the first step, microseconds */
  uint64_t first; /* its number */
};

/* What the trainer tells goes here; its messages go to stderr.  From now on SIGPIPE ends nothing: when
 * nobody reads stdout any more the trainer is asked to stop. */
struct weft_trainer_sink weft_cli_progress_start (struct weft_cli_progress *progress,
                                                  gboolean json);

/* Ends a line that is still open: something else will be printed. */
void weft_cli_progress_pause (struct weft_cli_progress *progress);

/* The last line. */
void weft_cli_progress_done (const struct weft_cli_progress *progress,
                             const struct weft_trainer_result *result);
