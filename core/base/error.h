/* error.h - the error domain of Weft, and the exit status of each code.
 *
 * A function that can fail returns a bool or NULL and takes a GError ** last.  Broken invariants
 * abort (invariant.h); out of memory aborts (GLib's rule).  A message says what was found and what
 * was expected, with the name the user typed; very long messages are cut. */
#pragma once
#include <glib.h>

/*       constant                exit  meaning */
#define WEFT_ERROR_LIST(X)                                                                         \
  X (WEFT_ERROR_RUN, 1, "run-time error")                                          \
  X (WEFT_ERROR_INPUT, 2, "usage or bad input")                                                    \
  X (WEFT_ERROR_NO, 3, "the answer is no: does not fit, or exceeds a limit")                 \
  X (WEFT_ERROR_INFEASIBLE, 4, "no feasible strategy")                                             \
  X (WEFT_ERROR_BUG, 70, "an internal check failed: a bug in Weft")

enum weft_error {
#define WEFT_ERROR_ROW(id, status, doc) id,
  WEFT_ERROR_LIST (WEFT_ERROR_ROW)
#undef WEFT_ERROR_ROW
};

#define WEFT_ERROR (weft_error_quark ())
GQuark weft_error_quark (void);

/* The exit status for an error. It is 1 for errors of other error domains (files, JSON). */
int weft_error_exit_status (const GError *error);

/* Sets an input error; returns FALSE so that a check can `return weft_bad_input (...)`. */
gboolean weft_bad_input (GError **error, const char *format, ...) G_GNUC_PRINTF (2, 3);

/* Sets a run-time error: files, memory, a step that cannot continue.  Returns FALSE. */
gboolean weft_run_error (GError **error, const char *format, ...) G_GNUC_PRINTF (2, 3);
