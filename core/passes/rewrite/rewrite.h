/* built.h - what is done with a program that is built: ops that are one kernel. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

/* join.c: pairs of ops that the stack has one kernel for become one op. */
void weft_join (weft_program *program, const struct weft_job *job);

/* fuse.c: marks pointwise ops that belong to the kernel before them. */
void weft_fuse (weft_program *program);
