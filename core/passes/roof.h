/* roof.h - private to step.c and init.c: setup of struct weft_step before a program is built.
 *
 * The caller sets job, mesh, role and b of `s`. weft_step_begin() sets the other fields.
 * weft_step_end() frees the content of all fields except the builder b. */
#pragma once
#include "core/passes/params/tensors.h"
#include "core/passes/step.h"

void weft_step_begin (struct weft_step *s);
void weft_step_end (struct weft_step *s);
