#include "cli/watch.h"
#include "core/base/units.h"
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>

/* Microseconds between two lines of progress: on a terminal, where a line replaces the one before
 * it, and in a file. */
enum { TERMINAL_EVERY = G_USEC_PER_SEC / 10, FILE_EVERY = 10 * G_USEC_PER_SEC };

/* A search that exceeds one of these limits prints a notice while it runs. */
#define MUCH_SECONDS 60.0
#define MUCH_BYTES 2e9

struct weft_cli_watch
weft_cli_watch_start (gboolean terminal, gint64 now)
{
  return (struct weft_cli_watch){ .terminal = terminal,
                                  .pace = { terminal ? TERMINAL_EVERY : FILE_EVERY, now },
                                  .start = now,
                                  .began = now };
}

char *
weft_cli_watch_costs (struct weft_cli_watch *w, double bytes, gint64 now)
{
  gboolean large = bytes >= MUCH_BYTES;

  if (w->told || ((double) (now - w->start) < MUCH_SECONDS * G_USEC_PER_SEC && !large))
    return NULL;
  w->told = TRUE;
  g_autofree char *much = weft_units_human (large ? MUCH_BYTES : MUCH_SECONDS, large ? "B" : "s");
  return g_strdup_printf ("the search takes more than %s%s; ctrl-C prints the ranking so far", much,
                          large ? " of memory" : "");
}

/* The remaining time of a phase as text, estimated by the mean time of the work units that are
 * done. The caller frees the text. */
static char *
eta_text (const struct weft_cli_watch *w, const struct weft_search_progress *p, gint64 now)
{
  if (p->done == 0 || p->of == 0)
    return g_strdup ("");
  g_autofree char *left =
      weft_units_human ((double) (now - w->began) * 1e-6 * (p->of - p->done) / p->done, "s");
  return g_strdup_printf (", about %s left", left);
}

char *
weft_cli_watch_line (struct weft_cli_watch *w, const struct weft_search_progress *p, gint64 now)
{
  if (p->phase != w->phase)
    w->began = now;
  w->phase = p->phase;
  if (!weft_pace_due (&w->pace, now))
    return NULL;
  g_autofree char *count = p->of ? g_strdup_printf (": %u of %u", p->done, p->of) : g_strdup ("");
  g_autofree char *best = isfinite (p->best) ? weft_units_human (p->best, "s") : NULL;
  g_autofree char *eta = eta_text (w, p, now);
  return g_strdup_printf ("%s%s; %u bounds and times computed%s%s%s", p->phase, count, p->steps,
                          best ? ", best so far " : "", best ? best : "", eta);
}

void
weft_cli_watch_show (void *user, const struct weft_search_progress *p)
{
  struct weft_cli_watch *w = user;
  gint64 now = g_get_monotonic_time ();
  struct rusage used;

  getrusage (RUSAGE_SELF, &used);
  g_autofree char *costs = weft_cli_watch_costs (w, (double) used.ru_maxrss * 1024, now);
  g_autofree char *line = weft_cli_watch_line (w, p, now);
  if (costs)
    fprintf (stderr, "%sweft: %s\n", w->terminal ? "\r\033[K" : "", costs);
  if (line)
    fprintf (stderr, w->terminal ? "\r%s\033[K" : "weft: %s\n", line);
}

void
weft_cli_watch_clear (const struct weft_cli_watch *w)
{
  if (w->terminal)
    fprintf (stderr, "\r\033[K");
}
