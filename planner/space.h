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

/* Lists the values of an axis that are worth trying for a job, whether or not the user set the
 * axis. Returns their number, at most WEFT_SPACE_VALUES. */
#define WEFT_SPACE_VALUES 64
uint32_t weft_space_values (const struct weft_job *job, enum weft_axis axis,
                            int64_t values[WEFT_SPACE_VALUES]);

/* The row of the table of settings that describes an axis. */
const struct weft_field *weft_space_field (enum weft_axis axis);

/* The value of the job's setting that is an axis. */
union weft_value *weft_space_setting (struct weft_job *job, enum weft_axis axis);

/* Sets each axis from `first` to `last` to its first value that is worth trying, if its own value
 * is none of them: after a change of the mesh, the division of layers among stages follows. */
void weft_space_settle (struct weft_job *job, enum weft_axis first, enum weft_axis last);

/* Sets all axes to the defaults of their settings. Two jobs belong to one search space if they are
 * equal afterwards. */
void weft_space_forget (struct weft_job *job);

/* Marks all axes as set by the user, so that the job has one choice: its own values. */
void weft_space_close (struct weft_job *job);

/* Whether the setting of a key is an axis, such as "recompute_method". */
gboolean weft_space_varies (const char *key);
