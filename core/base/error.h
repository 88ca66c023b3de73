/* error.h - the one error domain of Weft and what each code means to a shell.
 *
 * What can fail returns bool or NULL and takes a GError ** last; nothing else can fail.  Broken
 * invariants of our own are g_assert, out of memory aborts (GLib's rule).  Messages say what was
 * found and what was wanted, with the name the user typed; one of pages is cut. */
#pragma once
#include <glib.h>

/*       constant                exit  meaning */
#define WEFT_ERROR_LIST(X)                                                                         \
  X (WEFT_ERROR_RUN, 1, "something failed while running")                                          \
  X (WEFT_ERROR_INPUT, 2, "usage or bad input")                                                    \
  X (WEFT_ERROR_NO, 3, "the answer is no: does not fit, or above the asked limit")                 \
  X (WEFT_ERROR_INFEASIBLE, 4, "nothing feasible was found")

enum weft_error {
#define WEFT_ERROR_ROW(id, status, doc) id,
  WEFT_ERROR_LIST (WEFT_ERROR_ROW)
#undef WEFT_ERROR_ROW
};

#define WEFT_ERROR (weft_error_quark ())
GQuark weft_error_quark (void);

/* The exit status for an error; 1 for errors of other domains (files, JSON). */
int weft_error_exit_status (const GError *error);

/* Sets an input error; returns false so that a check can `return weft_bad_input (...)`. */
gboolean weft_bad_input (GError **error, const char *format, ...) G_GNUC_PRINTF (2, 3);

/* Likewise for what failed while running: files, memory, a step that cannot go on. */
gboolean weft_run_error (GError **error, const char *format, ...) G_GNUC_PRINTF (2, 3);
