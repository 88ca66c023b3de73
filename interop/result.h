/* result.h - filling the report of an export or import. */
#pragma once
#include "interop/interop.h"

weft_interop_result *weft_interop_result_new (const struct weft_target *target);

/* Appends a line; `value` is copied. */
struct weft_interop_line *weft_interop_line_add (weft_interop_result *result, const char *ours,
                                                 const char *value, const char *theirs, int state);
