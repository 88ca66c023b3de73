/* optimizer.h - the ops of a step after the last backward: completion of gradients, gradient norm,
 * clip, Adam, all-gather of weights.
 *
 *   finish.c           the end of a step, in Megatron-Core's order
 *   muon.c             Newton-Schulz iterations of Muon
 *   host_optimizer.c   optimizer_cpu_offload: the part of Adam that runs on the CPU */
#pragma once
#include "core/passes/emit/emit.h"

void weft_optimizer_begin (struct weft_step *s);
void weft_optimizer_end (struct weft_step *s);

/* Used at the start of a step with MXFP8 weights whose all-gather reads the gradient buffer: rounds
 * the fp32 master weights into the gradient buffer. */
void weft_optimizer_stage_weights (struct weft_step *s);

/* Appends all ops of a step that follow the last backward pass. */
void weft_optimizer_finish_step (struct weft_step *s);
