/* pace.h - how often a long command prints progress.  The caller gives the time, so tests need no
 * clock. */
#pragma once
#include <glib.h>

typedef struct weft_pace {
  gint64 every; /* shortest time between two messages, microseconds */
  gint64 shown; /* microseconds at which the last message was printed, or the command began */
} weft_pace;

/* Whether a progress message is due now. TRUE also records `now` as the time of the last
 * message. */
static inline gboolean
weft_pace_due (weft_pace *pace, gint64 now)
{
  if (now - pace->shown < pace->every)
    return FALSE;
  pace->shown = now;
  return TRUE;
}
