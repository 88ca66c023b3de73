/* roof.h - private to step.c and init.c: setup of struct weft_step before a program is built.
 *
 * weft_step_begin() fills `s`, in which the caller has set job, mesh, role and b. weft_step_end()
 * frees the state, but not the builder b. */
#pragma once
#include "core/passes/params/tensors.h"
#include "core/passes/step.h"

void weft_step_begin (struct weft_step *s);
void weft_step_end (struct weft_step *s);
