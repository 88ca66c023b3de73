/* schedule.h - the pipeline schedules as a table, and which counts a schedule can be made for.
 *
 * core/schedules.def has the rows; grid.h makes the cells.  Nothing here knows a job: job/pipeline.h
 * says which schedule and which counts a job asks for. */
#pragma once
#include "core/base/words.h"
#include <glib.h>

enum weft_schedule {
#define SCHEDULE(id, ...) id,
#include "core/schedules.def"
  WEFT_N_SCHEDULE
};
extern const char *const weft_schedule_words[];

struct weft_grid;

struct weft_grid_spec {
  enum weft_schedule schedule;
  uint32_t n_ranks;
  uint32_t n_chunks; /* virtual_pipeline_model_parallel_size; 0: the schedule's own */
  uint32_t n_micro;
  uint32_t group;        /* microbatch_group_size_per_vp_stage; 0: n_ranks */
  uint32_t extra_warmup; /* forwards that a rank runs ahead of what it must: each later forward is then
                            paired with the backward after it, which does not depend on it */
};

/* Where the chunks of a rank lie in the model:
 *
 *   loop     chunk q of rank r is stage q * n_ranks + r
 *   V        chunk 0 is stage r, chunk 1 stage 2 * n_ranks - 1 - r
 *   two ways chunk 0 is stage r of one copy of the model, chunk 1 stage n_ranks - 1 - r of another,
 *            whose microbatches start at the last rank */
enum weft_grid_shape { WEFT_GRID_LOOP, WEFT_GRID_V, WEFT_GRID_TWO_WAYS };

/* Chunks of a rank are as many as virtual_pipeline_model_parallel_size asks for. */
#define WEFT_CHUNKS_ANY UINT32_MAX

/* What lower bounds of the planner may assume of a schedule (planner/bound.c). */
enum weft_in_flight {
  WEFT_IN_FLIGHT_UNKNOWN, /* nothing: such a schedule has no lower bound */
  WEFT_IN_FLIGHT_WARM_UP, /* the warm-up of 1f1b before the first backward; the ranks fill and drain */
  WEFT_IN_FLIGHT_ALL,     /* all forwards before the first backward; likewise */
};

/* Which pass of the step makes the transfers between stages. */
enum weft_schedule_exchange {
  WEFT_EXCHANGE_FREE,    /* each transfer is posted on its own (exchange_free.c) */
  WEFT_EXCHANGE_IN_STEP, /* as Megatron-Core's own schedules post them (exchange.c) */
};

/* Appends the cells of every rank in order to row[rank], a GArray of struct weft_cell. */
typedef void weft_order_fill (const struct weft_grid *grid, const struct weft_grid_spec *spec,
                              GArray **row);

struct weft_schedule_row {
  const char *word, *doc;
  weft_order_fill *fill;
  enum weft_grid_shape shape;
  uint32_t chunks;          /* of one copy of the model on a rank; 0: one; or WEFT_CHUNKS_ANY */
  gboolean splits_backward; /* cells I and W in place of B: gradients of weights come later */
  gboolean interleaved;     /* several chunks take turns in groups of microbatches, with the knobs of
                               Megatron-Core's interleaved schedule: overlap_p2p_comm,
                               microbatch_group_size_per_vp_stage, pairs of forward and backward */
  gboolean even;            /* ranks and microbatches must be even */
  uint32_t least_micros;    /* microbatches for each rank, at least */
  gboolean steady;          /* between warm-up and end the same cells repeat for every microbatch, or
                               with several chunks for every group of them */
  enum weft_in_flight in_flight;
  enum weft_schedule_exchange exchange;
  gboolean host_waits;      /* batch_p2p_sync: the host waits after each batch of transfers */
  gboolean searched;        /* weft plan tries it when pipeline_schedule is open */
};

extern const struct weft_schedule_row weft_schedules[WEFT_N_SCHEDULE];

/* Copies of the model that the ranks hold together. */
uint32_t weft_shape_copies (enum weft_grid_shape shape);

/* Chunks of one copy of the model on a rank; microbatches of a group. */
uint32_t weft_spec_chunks (const struct weft_grid_spec *spec);
uint32_t weft_spec_group (const struct weft_grid_spec *spec);

enum weft_spec_rule {
#define SCHEDULE_RULE(id, ...) id,
#include "core/schedules.def"
  WEFT_SPEC_FITS
};

/* The first rule that the counts break, or WEFT_SPEC_FITS. */
enum weft_spec_rule weft_spec_broken (const struct weft_grid_spec *spec);
