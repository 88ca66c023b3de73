/* sure.h - how certain a prediction is: the bands of planner/bands.h as text and as JSON. */
#pragma once
#include "planner/bands.h"
#include <json-glib/json-glib.h>

/* The recorded errors of published runs, and the bands computed from them. */
typedef struct weft_cli_sure {
  weft_errors *errors;
  weft_bands *bands;
} weft_cli_sure;

/* Loads the recorded errors that are installed with Weft. The caller frees the result. */
weft_cli_sure *weft_cli_sure_new (GError **error);
void weft_cli_sure_free (weft_cli_sure *sure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_sure, weft_cli_sure_free)

/* The predictions of a command for a job. */
struct weft_cli_answer {
  const struct weft_job *job;
  /* predicted seconds of a step; predicted bytes of the GPU that needs most. NaN: not predicted */
  double seconds, bytes;
};

/* Prints how certain the predictions are, as a paragraph after an empty line. */
void weft_cli_print_sure (weft_cli_sure *sure, const struct weft_cli_answer *answer);

/* Adds the JSON member "accuracy" to the open object: null on a cluster with several kinds of
 * nodes, on which nothing was measured. */
void weft_cli_add_sure (weft_cli_sure *sure, JsonBuilder *b, const struct weft_cli_answer *answer);
