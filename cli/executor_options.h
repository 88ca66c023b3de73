/* executor_options.h - the options of executors (core/exec/options.h) as flags of a command. */
#pragma once
#include "cli/cli.h"

typedef struct weft_cli_options weft_cli_options;

/* Makes the flags of all executors that a command offers; `executors` ends with NULL. Options of
 * several executors that have the same name become one flag. If their help texts differ, --help
 * prints one line per text. A line begins with the names of the executors that have the option,
 * unless all executors have it. */
weft_cli_options *weft_cli_options_new (const struct weft_exec_ops *const *executors);
void weft_cli_options_free (weft_cli_options *options);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_options, weft_cli_options_free)

/* The flags of the options, for struct weft_cli_page; *n is their number. They are valid until
 * weft_cli_options_free(). */
const struct weft_cli_flag *weft_cli_options_flags (const weft_cli_options *options, unsigned *n);

/* Parses the flags of the command line for the executor `chosen`. Refuses an option that this
 * executor does not have; the error names the executors that have it. Refuses a value outside the
 * option's range. */
gboolean weft_cli_options_read (const weft_cli_options *options, const struct weft_exec_ops *chosen,
                                struct weft_own_options *own, GError **error);
