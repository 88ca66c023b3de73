/* activations.h - closed formulas for the activations that a layer stores for backward, for
 * comparison with the activations that a program stores.
 *
 * Formulas: Korthikanti et al. 2022 (arXiv 2205.05198, section 4), for general widths, and
 * Megatron-LM's own estimate of all activations (megatron/training/theoretical_memory_usage.py).
 * The formulas cover dense layers with ordinary attention, but not MoE layers and multi-latent
 * attention. */
#pragma once
#include "core/job/job.h"
#include "core/program/program.h"

#define WEFT_MOST_ACTIVATIONS 20

struct weft_kept {
  const char *what;
  char formula[64]; /* formula of the size, with the job's numbers filled in */
  double bytes;
};

/* Lists the tensors that one layer stores for one microbatch on one rank. Returns their number; 0:
 * there is no formula for a layer of this kind. The list includes the tensors that full recompute
 * discards. The caller owns kept[WEFT_MOST_ACTIVATIONS]. */
uint32_t weft_activations_of_layer (const struct weft_job *job, struct weft_kept *kept);

/* Bytes that a program stores for a layer and a microbatch between forward and backward: forward
 * writes them, backward reads them. The sum includes the layer's output but not its input, because
 * the input is the output of the previous layer. */
double weft_activations_kept (const weft_program *p, uint32_t layer, uint32_t micro);

/* Bytes of activations of the first stage with all its microbatches in flight, by Megatron-LM's
 * formula for sequence parallelism with selective recompute. */
double weft_activations_megatron (const struct weft_job *job);
