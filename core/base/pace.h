/* pace.h - how often a long command prints progress.  The caller gives the time, so tests need no
 * clock. */
#pragma once
#include <glib.h>

typedef struct weft_pace {
  gint64 every; /* microseconds between two messages */
  gint64 shown; /* time of the last message or of the start, microseconds */
} weft_pace;

/* Whether it is time for a message; if so, it counts as printed. */
static inline gboolean
weft_pace_due (weft_pace *pace, gint64 now)
{
  if (now - pace->shown < pace->every)
    return FALSE;
  pace->shown = now;
  return TRUE;
}
