/* stages.h - number of layers of each pipeline stage.
 *
 * Stages are those of one copy of the model, in the order in which a microbatch passes through them
 * (schedule.h). Layers are assigned to stages in order, by one of three rules of Megatron-Core
 * (transformer_block.py get_num_layers_to_build, pipeline_parallel_layer_layout.py):
 *
 *   evenly     with account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split,
 *              that end counts as one more layer
 *   by ranks   decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers, divided
 *              evenly among the chunks of that rank; the other ranks share the rest evenly
 *   by a text  pipeline_model_parallel_layout: E embedding, t layer, m multi-token prediction
 *              layer, L loss, | between stages; x*3 is xxx, (xy)*2 is xyxy; commas are ignored */
#pragma once
#include "core/job/job.h"

/* Number of layers of each stage, for a job that satisfies the rules; rank[stage] becomes the
 * pipeline rank of the stage. The caller frees the array. */
uint32_t *weft_job_stage_layers (const struct weft_job *job, const uint32_t *rank,
                                 uint32_t n_stages);

/* Number of stages in the text pipeline_model_parallel_layout. 0: the text is not given, or is
 * malformed. */
uint32_t weft_job_layout_stages (const struct weft_job *job);

/* Number of layers of the largest stage; 0 if the job breaks the rules for stages. */
uint32_t weft_job_most_layers (const struct weft_job *job);

/* Why the layers cannot be assigned to stages, as text for a message; NULL if they can. The caller
 * frees the text. */
char *weft_job_stages_problem (const struct weft_job *job);
