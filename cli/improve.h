/* improve.h - weft plan --improve: the strategy of the user's job beside the best of the search. */
#pragma once
#include "cli/cli.h"
#include "planner/planner.h"

/* The user's job with its strategy as it is, and its prediction. */
struct weft_cli_given {
  struct weft_job job;
  weft_search *search; /* the search of this one strategy */
};
typedef struct weft_cli_given weft_cli_given;
void weft_cli_given_free (weft_cli_given *given);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_given, weft_cli_given_free)

/* Predicts the job of a command line with all its settings. A job that breaks a rule is refused; a
 * job that does not fit in memory is a prediction too. */
weft_cli_given *weft_cli_given_new (const weft_cli_input *input,
                                    const struct weft_search_options *options, GError **error);

/* A copy of the settings of a command line. If `improve` is TRUE, settings of the job file that the
 * search varies are left out; flags stay. A setting whose last value is a list ("4,8") or the word
 * "any" is left out too: a list limits the search (*ranges). NULL: a list has a wrong value. The
 * caller frees the settings. */
weft_settings *weft_cli_open_settings (const weft_cli_input *input, gboolean improve,
                                       struct weft_space_ranges *ranges, GError **error);

/* Prints the prediction of the given job. */
void weft_cli_given_print (const weft_cli_given *given);

/* Prints how much faster `best` is, and the settings in which it differs from the given job.
 * `error`: error of a ratio of two predicted times (planner/sweeps.h); NaN: not known. */
void weft_cli_given_compare (const weft_cli_given *given, const struct weft_candidate *best,
                             const struct weft_job *chosen, double error);

/* Adds the member "given": the predicted step of the given job. */
void weft_cli_given_add (const weft_cli_given *given, JsonBuilder *b);
