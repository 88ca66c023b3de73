/* executor_options.h - the options of executors (core/exec/options.h) as flags of a command. */
#pragma once
#include "cli/cli.h"

typedef struct weft_cli_options weft_cli_options;

/* Creates the flags of all executors that a command offers; `executors` ends with NULL.  Options of
 * the same name in several executors form one flag.  If their help texts differ, --help prints one
 * line per text.  A line begins with the names of its executors, unless all executors have the
 * option. */
weft_cli_options *weft_cli_options_new (const struct weft_exec_ops *const *executors);
void weft_cli_options_free (weft_cli_options *options);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_options, weft_cli_options_free)

/* The *n flags for struct weft_cli_page. They are valid until weft_cli_options_free(). */
const struct weft_cli_flag *weft_cli_options_flags (const weft_cli_options *options, unsigned *n);

/* Parses the flags of the command line for the executor `chosen`.  Refuses an option that this
 * executor does not have, with the names of the executors that have the option, and a value outside
 * its range. */
gboolean weft_cli_options_read (const weft_cli_options *options, const struct weft_exec_ops *chosen,
                                struct weft_own_options *own, GError **error);
