/* validate_nccl.h - weft validate --nccl: predictions compared with measured collectives. */
#pragma once
#include <glib.h>

/* Predicts the collectives of a table (NULL: the bundled one), prints the errors, and returns the
 * exit status. */
int weft_cli_validate_nccl (const char *table, gboolean verbose, gboolean json);
