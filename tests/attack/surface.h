/* surface.h - random command lines from all commands (cli/cli.h), all fields of jobs (the tables of
 * settings), and all flags that `weft COMMAND --help` prints. */
#pragma once
#include "core/base/field.h"

struct surface_flag {
  /* for "--trace FILE": "--trace" and "FILE"; value NULL: the flag has no value */
  char *name, *value;
};

struct surface_command {
  const char *name;
  gboolean job; /* TRUE: the command accepts the settings of a job as flags */
  GArray *flag; /* flags of the command, struct surface_flag */
};

typedef struct surface {
  GArray *command; /* commands of weft, struct surface_command */
} surface;

/* Reads the names of commands and flags from the help pages of weft. surface_free() frees the
 * result. */
surface *surface_new (const char *dir);
void surface_free (surface *s);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (surface, surface_free)

/* Draws a command line; the caller frees the words. */
char **surface_line (const surface *s, GRand *rand);

/* Draws a value of a field: a value in its range, a value at or beyond an end of the range, or
 * absurd text. The caller frees it. */
char *surface_value (GRand *rand, const struct weft_field *field);
