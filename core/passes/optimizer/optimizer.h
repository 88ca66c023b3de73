/* optimizer.h - what follows the last backward: complete gradients, gradient norm, clip, Adam,
 * weights.
 *
 *   finish.c           the end of a step, in Megatron-Core's order
 *   host_optimizer.c   optimizer_cpu_offload: the part of Adam that runs on the CPU */
#pragma once
#include "core/passes/emit/emit.h"

void weft_optimizer_begin (struct weft_step *s);
void weft_optimizer_end (struct weft_step *s);

/* The step begins: weights in MXFP8 whose forward gathers them through the gradient buffer are put
 * there. */
void weft_optimizer_stage_weights (struct weft_step *s);

/* The end of the step. */
void weft_optimizer_finish_step (struct weft_step *s);
