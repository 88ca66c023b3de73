/* step.h - the programs of a job: one for a training step, and one for the initialization before
 * the first step.
 *
 * core/README.md states which subfolders of core/passes build a step, and in which order. */
#pragma once
#include "core/job/job.h"
#include "core/program/mesh.h"
#include "core/job/pipeline.h"
#include "core/program/program.h"

/* Returns the mesh of a job: its ranks as coordinates on the parallel axes. */
struct weft_mesh weft_step_mesh (const struct weft_job *job);

/* Returns the program of a training step for one role (pipeline stage). Buffers have no addresses
 * yet. The caller frees the program. */
weft_program *weft_step_build (const struct weft_job *job, const struct weft_mesh *mesh,
                               uint32_t role);

/* init.c: returns the program that initializes weights and broadcasts them among data parallel
 * replicas. The caller frees the program. */
weft_program *weft_init_build (const struct weft_job *job, const struct weft_mesh *mesh,
                               uint32_t role);

/* Whether the program of weft_init_build() has at least one op. */
gboolean weft_init_does_something (const struct weft_job *job);

/* Whether the program of weft_init_build() broadcasts weights. TRUE if there are several replicas
 * and each stores whole weights. */
gboolean weft_init_broadcasts (const struct weft_job *job);

/* Whether each data parallel replica stores only a slice of the weights. */
gboolean weft_init_keeps_slices (const struct weft_job *job);

/* The layers of one model chunk on one pipeline rank. */
struct weft_stage {
  uint32_t first_layer, n_layers;
  gboolean embedding, head; /* head: the chunk has final norm, output layer and loss */
};
struct weft_stage weft_stage_at (const struct weft_job *job, const weft_grid *grid, uint32_t rank,
                                 uint32_t chunk);
