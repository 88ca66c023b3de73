/* accuracy.h - writes docs/accuracy.md: errors of predictions by source and by kind of job, bands,
 * order of strategies, constants, collectives, and published runs with errors that are not
 * explained. */
#pragma once
#include "planner/errors.h"

/* Writes the page to `path`, and its picture beside it, with the suffix .svg. Besides `errors` it
 * reads the bundled files of validation/: accuracy.ini, fit.ini, fit.json (if it exists) and
 * nccl.csv. */
gboolean weft_cli_accuracy (const weft_errors *errors, const char *path, GError **error);

/* The path of the picture that belongs to a page. The caller frees the text. */
char *weft_cli_accuracy_beside (const char *path);
