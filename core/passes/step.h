/* step.h - the programs of a job: of a training step, and of the initialization before the first
 * step.
 *
 * core/README.md says which wings of core/passes build a step, and in which order. */
#pragma once
#include "core/job/job.h"
#include "core/program/mesh.h"
#include "core/job/pipeline.h"
#include "core/program/program.h"

/* The mesh of a job. */
struct weft_mesh weft_step_mesh (const struct weft_job *job);

/* The program of a training step for one role (pipeline stage).  Buffers have no offsets yet. */
weft_program *weft_step_build (const struct weft_job *job, const struct weft_mesh *mesh,
                               uint32_t role);

/* init.c: the program that initializes weights and broadcasts them among replicas. */
weft_program *weft_init_build (const struct weft_job *job, const struct weft_mesh *mesh,
                               uint32_t role);

/* Whether the program of weft_init_build() has any op. */
gboolean weft_init_does_something (const struct weft_job *job);

/* Whether the program of weft_init_build() broadcasts: there are several replicas, and each holds
 * whole weights. */
gboolean weft_init_broadcasts (const struct weft_job *job);

/* Whether each replica stores only slices of the weights. */
gboolean weft_init_keeps_slices (const struct weft_job *job);

/* The layers of a model chunk on a rank. */
struct weft_stage {
  uint32_t first_layer, n_layers;
  gboolean embedding, head; /* head: final norm, output head and loss */
};
struct weft_stage weft_stage_at (const struct weft_job *job, const weft_grid *grid, uint32_t rank,
                                 uint32_t chunk);
