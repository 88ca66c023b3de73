/* own_job.h - Weft's own job file, as a target like the others. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_own_job;
