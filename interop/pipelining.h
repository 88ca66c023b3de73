/* pipelining.h - schedules and stages of torch.distributed.pipelining. */
#pragma once
#include "interop/target.h"

/* The name of a schedule, which sets pipeline_schedule and virtual_pipeline_model_parallel_size. */
extern const struct weft_form weft_torch_schedule;

/* Layers of a stage, which set virtual_pipeline_model_parallel_size. */
extern const struct weft_form weft_torch_layers_per_stage;
