/* executor_options.h - the options of executors (core/exec/options.h) as flags of a command. */
#pragma once
#include "cli/cli.h"

typedef struct weft_cli_options weft_cli_options;

/* Creates the flags of all executors that a command offers; `executors` ends with NULL.  Options of
 * the same name in several executors form one flag.  If their help texts differ, --help prints one
 * line per text.  A line begins with the names of its executors, unless all executors have it. */
weft_cli_options *weft_cli_options_new (const struct weft_exec_ops *const *executors);
void weft_cli_options_free (weft_cli_options *options);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_options, weft_cli_options_free)

/* Rows for a page, which live as long as the options. */
const struct weft_cli_flag *weft_cli_options_flags (const weft_cli_options *options, unsigned *n);

/* Parses the flags that were given, for the executor that was chosen.  Refuses a flag that it does
 * not have, with the names of those that do, and a value outside the range. */
gboolean weft_cli_options_read (const weft_cli_options *options, const struct weft_exec_ops *chosen,
                                struct weft_own_options *own, GError **error);
