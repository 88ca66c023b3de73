/* axes.h - the settings that are axes of the search (axes.def), and the functions that list the
 * values of each that are worth trying. */
#pragma once
#include "planner/space.h"

struct weft_axis_row {
  enum { WEFT_AXIS_OF_KNOB, WEFT_AXIS_OF_TRAIN } table;
  unsigned field; /* field of this table */
  /* A function that lists the values of an axis. It writes the values to out[] and returns their
   * number. `job` has the values of the earlier axes. */
  uint32_t (*values) (const struct weft_job *job, int64_t out[WEFT_SPACE_VALUES]);
  /* whether a value, which is number `place` of the values, belongs to the whole space only; NULL:
   * no value does */
  gboolean (*wide) (int64_t value, uint32_t place);
};

extern const struct weft_axis_row weft_axes[WEFT_N_AXIS];

/* The only value is the job's own. */
uint32_t weft_axis_as_given_precision (const struct weft_job *job, int64_t out[WEFT_SPACE_VALUES]);
