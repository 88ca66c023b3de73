/* watch.h - progress of weft plan on stderr.  What is printed depends on times and bytes that the
 * caller gives, so tests need no clock; weft_cli_watch_show() reads them and prints. */
#pragma once
#include "core/base/pace.h"
#include "planner/planner.h"

struct weft_cli_watch {
  gboolean terminal; /* a line replaces the one before it */
  weft_pace pace;
  gint64 start, began; /* microseconds: begin of the search and of the current phase */
  gboolean told;       /* whether the notice of costs was printed */
  const char *phase;
};

struct weft_cli_watch weft_cli_watch_start (gboolean terminal, gint64 now);

/* Once, when the search exceeds 60 s or 2 GB: a notice of this, and of how to end the search.
 * Otherwise NULL. `bytes` is the largest memory of the process until `now`. The caller frees the
 * text. */
char *weft_cli_watch_costs (struct weft_cli_watch *watch, double bytes, gint64 now);

/* The line of progress at `now`, or NULL if the last one is newer than 0.1 s on a terminal or 10 s
 * elsewhere. The caller frees the text. */
char *weft_cli_watch_line (struct weft_cli_watch *watch,
                           const struct weft_search_progress *progress, gint64 now);

/* Prints notice and line. `user` is a struct weft_cli_watch. */
void weft_cli_watch_show (void *user, const struct weft_search_progress *progress);

/* Clears the line on a terminal. */
void weft_cli_watch_clear (const struct weft_cli_watch *watch);
