/* accuracy_fit.h - the part of docs/accuracy.md about the constants that `weft fit` adjusts. */
#pragma once
#include <glib.h>

/* Appends the constants of validation/fit.ini, with their values in today's files and where each
 * comes from, and what the last fit said of them: validation/fit.json, the output of `weft fit
 * --json`, if it exists. */
gboolean weft_cli_accuracy_fit (GString *text, GError **error);
