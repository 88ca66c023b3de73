/* sure.h - how sure a prediction is: the bands of planner/bands.h as text and as JSON. */
#pragma once
#include "planner/bands.h"
#include <json-glib/json-glib.h>

/* The recorded errors and their bands. */
typedef struct weft_cli_sure {
  weft_errors *errors;
  weft_bands *bands;
} weft_cli_sure;

/* Loads the bundled errors. The caller frees the result. */
weft_cli_sure *weft_cli_sure_new (GError **error);
void weft_cli_sure_free (weft_cli_sure *sure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_sure, weft_cli_sure_free)

/* What a command has predicted for a job. */
struct weft_cli_answer {
  const struct weft_job *job;
  double seconds, bytes; /* of a step; of the fullest GPU. NaN: not predicted */
};

/* Prints a paragraph, which begins with an empty line. */
void weft_cli_print_sure (weft_cli_sure *sure, const struct weft_cli_answer *answer);

/* Adds member "accuracy" to the open object. */
void weft_cli_add_sure (weft_cli_sure *sure, JsonBuilder *b, const struct weft_cli_answer *answer);
