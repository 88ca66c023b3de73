/* sheets.h - `weft topologies` and `weft stacks`: a list of the bundled .ini files, or the page of
 * one file with the comment above or beside each key, which names the source of the number. */
#pragma once
#include "core/base/sheet.h"

struct weft_cli_sheets {
  const struct weft_sheet *sheet;
  const char *command, *example; /* "topologies", "dgx-h100" */
  const char *const *heads;      /* of the list's own columns, NULL-terminated */
  char *(*cell) (const union weft_value *values, unsigned column);
};

/* The whole command: [NAME] [--json] [--help]. */
int weft_cli_sheets (const struct weft_cli_sheets *kind, int argc, char **argv);

/* Text for people; caller frees. */
char *weft_cli_field_human (const struct weft_field *field, union weft_value value);
