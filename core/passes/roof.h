/* roof.h - private to step.c and init.c: the state of a step, without its program.
 *
 * weft_step_begin() fills `s`, whose job, mesh, role and b are set. weft_step_end() frees it. */
#pragma once
#include "core/passes/params/tensors.h"
#include "core/passes/step.h"

void weft_step_begin (struct weft_step *s);
void weft_step_end (struct weft_step *s);
