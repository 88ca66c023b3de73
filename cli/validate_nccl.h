/* validate_nccl.h - weft validate --nccl: predictions compared with measured collectives. */
#pragma once
#include <glib.h>

/* Predicts the collectives of a table by a file of rules (NULL: the bundled ones), prints the
 * errors, and returns the exit status. */
int weft_cli_validate_nccl (const char *table, const char *rules, gboolean verbose,
                            gboolean json);
