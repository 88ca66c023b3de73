/* accuracy_fit.h - the section of docs/accuracy.md about the constants that `weft fit` adjusts. */
#pragma once
#include <glib.h>

/* Appends the constants of validation/fit.ini, with their values in the present topology and stack
 * files and the source of each value. Appends also what the last fit found for them:
 * validation/fit.json, the output of `weft fit --json`, if that file exists. */
gboolean weft_cli_accuracy_fit (GString *text, GError **error);
