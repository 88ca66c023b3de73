/* optimizer.h - the end of a step, after the last backward: completion of gradients, gradient norm,
 * clip, Adam, gather of weights.
 *
 *   finish.c           the end of a step, in Megatron-Core's order
 *   host_optimizer.c   optimizer_cpu_offload: the part of Adam that runs on the CPU */
#pragma once
#include "core/passes/emit/emit.h"

void weft_optimizer_begin (struct weft_step *s);
void weft_optimizer_end (struct weft_step *s);

/* When the step begins: rounds masters into the gradient buffer, for MXFP8 weights that forward
 * gathers through this buffer. */
void weft_optimizer_stage_weights (struct weft_step *s);

/* Appends all ops after the last backward. */
void weft_optimizer_finish_step (struct weft_step *s);
