/* space.h - the search space of the planner: every combination of the values of the axes
 * (axes.def). */
#pragma once
#include "core/job/job.h"

enum weft_axis {
#define AXIS(table, field, values) WEFT_AXIS_##field,
#include "planner/axes.def"
#undef AXIS
  WEFT_N_AXIS
};

/* A choice: one value for each axis; WEFT_CHOICE_NONE stands for WEFT_NONE. Values have 32 bits,
 * which are enough for all axes, because a space may have a million choices. */
#define WEFT_CHOICE_NONE INT32_MIN
struct weft_choice {
  int32_t value[WEFT_N_AXIS];
};

/* Lists all choices around a job, as an array of struct weft_choice that the caller frees. Settings
 * that are marked in the job's knob_set and train_set keep their values. Rules are not checked. */
GArray *weft_space_enumerate (const struct weft_job *job);

/* The job with the settings of a choice. */
struct weft_job weft_space_job (const struct weft_job *job, const struct weft_choice *choice);

/* Marks all axes as set by the user, so that the job has one choice: its own values. */
void weft_space_close (struct weft_job *job);

/* Whether the setting of a key is an axis, such as "recompute_method". */
gboolean weft_space_varies (const char *key);
