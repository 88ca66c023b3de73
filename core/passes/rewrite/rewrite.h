/* rewrite.h - transformations of a program whose ops have all been appended. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

/* join.c: replaces pairs of ops by one op, where the software stack has one kernel for both. */
void weft_join (weft_program *program, const struct weft_job *job);

/* fuse.c: marks each pointwise op that runs in the kernel of the previous op (enable_compile). */
void weft_fuse (weft_program *program);
