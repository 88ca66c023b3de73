/* space.h - the axes of the search (axes.def) and every combination of their values. */
#pragma once
#include "core/job/job.h"

enum weft_axis {
#define AXIS(table, field, values) WEFT_AXIS_##field,
#include "planner/axes.def"
#undef AXIS
  WEFT_N_AXIS
};

/* A value for each axis. */
struct weft_choice {
  int64_t value[WEFT_N_AXIS];
};

/* All choices around a job, whose knob_set and train_set say what is fixed; rules not yet applied.
 * Element type struct weft_choice. */
GArray *weft_space_enumerate (const struct weft_job *job);

/* The job with the choice made. */
struct weft_job weft_space_job (const struct weft_job *job, const struct weft_choice *choice);
