/* software.h - the configuration of other software on the command line: reading it as a job, and
 * writing a job as one. */
#pragma once
#include "interop/interop.h"

/* Reads the file `path` as a configuration of `software`. `flags`: the settings from flags, which
 * may give what the file lacks. A configuration that needs a setting which neither the file nor a
 * flag gives is refused. */
weft_interop_result *weft_cli_software_read (const char *software, const char *path,
                                             const weft_settings *flags, gboolean partial,
                                             GError **error);

/* Prints on stderr which settings an import leaves out or does not need. */
void weft_cli_software_note_read (const weft_interop_result *result);

/* Refuses an export that leaves settings out. If `partial` is set, prints a note instead. */
gboolean weft_cli_software_is_whole (const weft_interop_result *result, gboolean partial,
                                     GError **error);

/* Fixes settings that the software of an export cannot express at the values that the software has
 * instead: appends them to `settings`, unless `settings` already gives them, and prints a note on
 * stderr. Returns the number of settings that were appended. */
unsigned weft_cli_software_adopt (const weft_interop_result *result, weft_settings *settings);

/* Exports a job after changing knobs that the software cannot express to the values that it has.
 * fixed[]: knobs that are not changed. *changes receives the changes, "NAME=VALUE, ..."; the caller
 * frees it. A changed job that breaks a rule, or that the software still cannot express, has
 * `n_not` above 0. */
weft_interop_result *weft_cli_software_change (const struct weft_target *target,
                                               const gboolean *fixed, struct weft_job *job,
                                               char **changes, GError **error);

/* Prints on stderr how many settings an export has mapped ("17 settings mapped, 290 at the default
 * there"), and what the configuration does not contain. */
void weft_cli_software_note_written (const weft_interop_result *result);
