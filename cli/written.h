/* written.h - the strategy that weft plan writes to a file: as a job file, or as a configuration of
 * other software. */
#pragma once
#include "interop/interop.h"
#include "planner/planner.h"

/* The file that the user wants. */
struct weft_cli_wanted {
  const char *software; /* name of the software (weft export); NULL: a job file */
  const char *output;   /* path of the file */
  gboolean partial;     /* leave out settings that the software cannot express */
};

/* A simulated strategy and its export. */
typedef struct weft_cli_written {
  uint32_t rank;    /* place in the ranking, from 0 */
  gboolean changed; /* knobs were changed for the software after the search */
  struct weft_job job;
  weft_interop_result *result; /* owned; NULL: a job file is written */
} weft_cli_written;

void weft_cli_written_clear (weft_cli_written *written);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_cli_written, weft_cli_written_clear)

/* Chooses the fastest simulated candidate of a search around `job` that the software can express,
 * or, if `partial` is set, the fastest. If there is none, *written has the fastest. */
gboolean weft_cli_written_choose (weft_cli_written *written, const struct weft_cli_wanted *wanted,
                                  const struct weft_job *job, const weft_search *search,
                                  GError **error);

/* For a search of which the software of *written can express no candidate: changes the knobs of
 * each simulated candidate that the software cannot express to the values that it has, but not
 * those that `asked` fixes, and simulates the changed job. *written receives the fastest that the
 * software can express and that fits in memory, with a note on stderr; if there is none, it stays
 * as it is. */
gboolean weft_cli_written_change (weft_cli_written *written, const struct weft_job *asked,
                                  const struct weft_job *job, const weft_search *search,
                                  GError **error);

/* Writes the strategy to the file. Refuses an export that leaves settings out, unless `partial` is
 * set. */
gboolean weft_cli_written_save (const weft_cli_written *written,
                                const struct weft_cli_wanted *wanted, GError **error);
