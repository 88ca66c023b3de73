/* outputs.h - checks of the files that a command writes, before it begins its work. */
#pragma once
#include <glib.h>

struct weft_cli_output {
  const char *flag, *path; /* path: NULL if the flag is not given */
};

/* Refuses an output that is an input of this command, a folder, or a link that leads into another
 * folder (core/base/output.h), and two outputs that are one file. `inputs` are paths of files that
 * the command has not read yet; NULL: none. Errors begin with the flag. */
gboolean weft_cli_check_outputs (const struct weft_cli_output *outputs, unsigned n,
                                 const char *const *inputs, GError **error);
