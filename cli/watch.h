/* watch.h - progress of weft plan on stderr. The output depends on times and bytes that the caller
 * passes, so tests need no clock. weft_cli_watch_show() reads time and bytes from the system and
 * prints. */
#pragma once
#include "core/base/pace.h"
#include "planner/planner.h"

struct weft_cli_watch {
  gboolean terminal; /* TRUE: each line replaces the previous line */
  weft_pace pace;
  /* microseconds at which the search began, and at which the current phase began */
  gint64 start, began;
  gboolean told;       /* whether the notice about time and memory was printed */
  const char *phase;
};

struct weft_cli_watch weft_cli_watch_start (gboolean terminal, gint64 now);

/* A notice that the search takes more than 60 s or 2 GB, and how the user can end it. NULL if the
 * search takes less, or if the notice was given before. `bytes` is the largest memory of the
 * process until `now`. The caller frees the text. */
char *weft_cli_watch_costs (struct weft_cli_watch *watch, double bytes, gint64 now);

/* The line of progress at time `now`. NULL if the previous line is newer than 0.1 s on a terminal,
 * or 10 s elsewhere. The caller frees the text. */
char *weft_cli_watch_line (struct weft_cli_watch *watch,
                           const struct weft_search_progress *progress, gint64 now);

/* Prints the notice of weft_cli_watch_costs() and the line of weft_cli_watch_line(). `user` is a
 * struct weft_cli_watch. */
void weft_cli_watch_show (void *user, const struct weft_search_progress *progress);

/* Erases the line of progress on a terminal. */
void weft_cli_watch_clear (const struct weft_cli_watch *watch);
