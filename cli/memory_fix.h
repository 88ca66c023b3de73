/* memory_fix.h - weft memory --fix: the changes that make a job fit, and what they cost. */
#pragma once
#include "cli/sure.h"
#include "planner/memory_fix.h"

/* Values of the flags --fix, --memory-limit and --keep. */
struct weft_cli_fix_wishes {
  gboolean fix;
  const char *limit, *keep; /* texts of the flags; NULL: not given */
};

/* Reads the limit and the names of settings to keep. A flag without --fix, a limit above the memory
 * of the GPU and an unknown name are errors. */
gboolean weft_cli_fix_options (const struct weft_cli_fix_wishes *wishes, const struct weft_job *job,
                               struct weft_memory_fix_options *options, GError **error);

/* Finds and prints the changes with which a job fits. Ctrl-C ends the search with the changes found
 * so far. Returns the exit status: 3 if the job as given does not fit. */
int weft_cli_fix (const struct weft_job *job, struct weft_memory_fix_options *options,
                  weft_cli_sure *sure, gboolean json);
