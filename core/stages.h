/* stages.h - which layers each stage of the pipeline has, and who has the two ends.
 *
 * Stages are those of one copy of the model, in the order in which a microbatch goes through them
 * (pipeline.h); layers are dealt to them in order. */
#pragma once
#include "core/pipeline.h"

struct weft_stage {
  uint32_t first_layer, n_layers;
  gboolean embedding, head; /* head: final norm, output head and loss */
};

struct weft_stage weft_stage_at (const struct weft_job *job, const weft_grid *grid, uint32_t rank,
                                 uint32_t chunk);

/* Chunks that virtual_pipeline_model_parallel_size asks for: at least one. */
uint32_t weft_job_chunks (const struct weft_job *job);
