/* outputs.h - checks the files that a command will write, before the command begins its work. */
#pragma once
#include <glib.h>

struct weft_cli_output {
  /* flag, and path that the user gave; path is NULL if the flag is not given */
  const char *flag, *path;
};

/* Refuses an output that is an input of this command, a folder, or a link that leads into another
 * folder (core/base/output.h). Refuses two outputs that are the same file. `inputs` are paths of
 * files that the command has not read yet; NULL: none. Errors begin with the flag. */
gboolean weft_cli_check_outputs (const struct weft_cli_output *outputs, unsigned n,
                                 const char *const *inputs, GError **error);
