/* surface.h - random command lines over everything that can be typed: commands (cli/cli.h), fields
 * of jobs (the tables of settings), and the flags that `weft COMMAND --help` prints. */
#pragma once
#include "core/base/field.h"

struct surface_flag {
  char *name, *value; /* "--trace", "FILE"; value NULL: none */
};

struct surface_command {
  const char *name;
  gboolean job; /* takes every setting of a job */
  GArray *flag; /* struct surface_flag */
};

typedef struct surface {
  GArray *command; /* struct surface_command */
} surface;

/* Asks weft for the pages of all commands. */
surface *surface_new (const char *dir);
void surface_free (surface *s);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (surface, surface_free)

/* A random command line; the caller frees the words. */
char **surface_line (const surface *s, GRand *rand);

/* A random value of a field: one of its range, one at or beyond an end of the range, or an absurd
 * one. The caller frees it. */
char *surface_value (GRand *rand, const struct weft_field *field);
