/* stages.h - how many layers each stage of the pipeline has.
 *
 * Stages are those of one copy of the model, in the order in which a microbatch goes through them
 * (schedule.h); layers are assigned to them in order, by one of three rules of Megatron-Core
 * (transformer_block.py get_num_layers_to_build, pipeline_parallel_layer_layout.py):
 *
 *   evenly     where account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split say
 *              so, as if that end were a layer more
 *   by ranks   decoder_first_pipeline_num_layers and decoder_last_pipeline_num_layers, evenly among
 *              the chunks of each; the other ranks share the rest evenly
 *   by a text  pipeline_model_parallel_layout: E embedding, t layer, m layer of multi-token prediction,
 *              L loss, | between stages; x*3 is xxx, (xy)*2 is xyxy; commas mean nothing */
#pragma once
#include "core/job/job.h"

/* By stage, of a job that has passed its rules; rank[stage] is where it is.  Caller frees. */
uint32_t *weft_job_stage_layers (const struct weft_job *job, const uint32_t *rank,
                                 uint32_t n_stages);

/* Stages that pipeline_model_parallel_layout has; 0: there is none, or it cannot be read. */
uint32_t weft_job_layout_stages (const struct weft_job *job);

/* The layers of the largest stage; 0 where the rules are broken. */
uint32_t weft_job_most_layers (const struct weft_job *job);

/* Why layers cannot be assigned, for a message; NULL: they can.  Caller frees. */
char *weft_job_stages_problem (const struct weft_job *job);
