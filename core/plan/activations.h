/* activations.h - closed formulas for the activations that a layer keeps, beside what a program keeps.
 *
 * Korthikanti et al. 2022 (arXiv 2205.05198, section 4) in general widths, and Megatron-LM's own
 * estimate of the whole (megatron/training/theoretical_memory_usage.py).  Layers are ordinary ones:
 * dense, with heads of their own keys and values; not those of experts, nor multi-latent attention. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

#define WEFT_MOST_ACTIVATIONS 20

struct weft_kept {
  const char *what;
  char formula[64]; /* with the job's own numbers */
  double bytes;
};

/* Tensors that one layer keeps of one microbatch on one rank; returns how many, 0 where layers are not
 * ordinary.  What full recompute leaves out counts as kept whole. */
uint32_t weft_activations_of_layer (const struct weft_job *job,
                                    struct weft_kept *kept /* [WEFT_MOST_ACTIVATIONS] */);

/* What a program keeps of a layer and microbatch between forward and backward: made by the one, read
 * by the other.  The output counts, the input does not: it is the output of the layer before. */
double weft_activations_kept (const weft_program *p, uint32_t layer, uint32_t micro);

/* Activations of the first stage, all microbatches in flight, as Megatron-LM reports them for
 * sequence parallel and selective recompute. */
double weft_activations_megatron (const struct weft_job *job);
