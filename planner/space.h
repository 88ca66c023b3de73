/* space.h - the axes of the search and every combination of them. */
#pragma once
#include "planner/planner.h"

/* All candidates around a job: rules not yet applied.  Element type struct weft_candidate. */
GArray *weft_space_enumerate (const struct weft_job *job);
