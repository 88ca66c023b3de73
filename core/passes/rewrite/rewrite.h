/* rewrite.h - transformations of a finished program. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

/* join.c: replaces pairs of ops by one op, if the stack has one kernel for both. */
void weft_join (weft_program *program, const struct weft_job *job);

/* fuse.c: marks pointwise ops that run in the kernel of the previous op (enable_compile). */
void weft_fuse (weft_program *program);
