/* schedule.h - the pipeline schedules as a table, and the numbers of ranks, chunks and microbatches
 * for which each schedule exists.
 *
 * core/schedules.def has the rows; grid.h makes the cells. This header does not depend on jobs:
 * job/pipeline.h chooses the schedule and these numbers for a job. */
#pragma once
#include "core/base/words.h"
#include <glib.h>

enum weft_schedule {
#define SCHEDULE(id, ...) id,
#include "core/schedules.def"
  WEFT_N_SCHEDULE
};
/* The names of the schedules as in a job file, NULL-terminated. */
extern const char *const weft_schedule_words[];

struct weft_grid;

struct weft_grid_spec {
  enum weft_schedule schedule;
  uint32_t n_ranks;
  /* virtual_pipeline_model_parallel_size of the job; 0: the schedule sets the number */
  uint32_t n_chunks;
  uint32_t n_micro;
  uint32_t group;        /* microbatch_group_size_per_vp_stage of the job; 0: n_ranks */
  /* number of additional warm-up forwards; with them, a later forward and the backward after it are
   * independent and can run as a pair */
  uint32_t extra_warmup;
  /* zb-auto: the largest number of activations that a rank keeps (zero_bubble_max_pending_backward
   * of the job; 0: 2 * n_ranks), and the part of one that the weight gradient needs after the input
   * gradient, of WEFT_ACTIVATION (0: half) */
  uint32_t most_pending, for_weights;
};

#define WEFT_ACTIVATION 1000

/* Placement of the chunks of a rank:
 *
 *   loop     chunk q of rank r is stage q * n_ranks + r
 *   V        chunk 0 is stage r, chunk 1 stage 2 * n_ranks - 1 - r
 *   two ways chunk 0 is stage r of one copy of the model, chunk 1 stage n_ranks - 1 - r of another,
 *            whose microbatches start at the last rank */
enum weft_grid_shape { WEFT_GRID_LOOP, WEFT_GRID_V, WEFT_GRID_TWO_WAYS };

/* A value of `chunks` in struct weft_schedule_row: the knob virtual_pipeline_model_parallel_size
 * sets the number of chunks. */
#define WEFT_CHUNKS_ANY UINT32_MAX

/* What the planner's lower bounds of time and memory may assume about a schedule
 * (planner/bound.c). */
enum weft_in_flight {
  /* there is no closed formula: bounds count the microbatches in flight in the cells
   * (planner/flights.h) */
  WEFT_IN_FLIGHT_UNKNOWN,
  /* the warm-up of 1F1B runs before the first backward; the pipeline idles while it fills and
   * drains */
  WEFT_IN_FLIGHT_WARM_UP,
  /* all forwards run before the first backward; the pipeline idles while it fills and drains */
  WEFT_IN_FLIGHT_ALL,
};

/* Which pass creates the transfers between pipeline stages. */
enum weft_schedule_exchange {
  WEFT_EXCHANGE_FREE,    /* each transfer is launched separately (exchange_free.c) */
  /* transfers are launched as in Megatron-Core's own schedules (exchange.c) */
  WEFT_EXCHANGE_IN_STEP,
};

/* Appends the cells of every rank, in order, to row[rank], a GArray of struct weft_cell. */
typedef void weft_order_fill (const struct weft_grid *grid, const struct weft_grid_spec *spec,
                              GArray **row);

struct weft_schedule_row {
  const char *word, *doc;
  weft_order_fill *fill;
  enum weft_grid_shape shape;
  /* number of chunks of one copy of the model on a rank; 0: one; WEFT_CHUNKS_ANY: as set by the
   * job */
  uint32_t chunks;
  /* the schedule has cells I and W instead of B: weight gradients are computed later than input
   * gradients */
  gboolean splits_backward;
  /* chunks alternate in groups of microbatches, and these knobs of Megatron-Core's interleaved
   * schedule apply: overlap_p2p_comm, microbatch_group_size_per_vp_stage, pairs of forward and
   * backward */
  gboolean interleaved;
  gboolean even;            /* the numbers of ranks and of microbatches must be even */
  /* the schedule needs at least this many microbatches for each pipeline rank */
  uint32_t least_micros;
  /* in the steady phase the same cells repeat for every microbatch (with several chunks per rank,
   * for every group of microbatches) */
  gboolean steady;
  /* the steady phase begins after so many microbatches for each pipeline rank; 0: after two. It is
   * later where the order of cells depends on the number of microbatches */
  uint32_t settles;
  enum weft_in_flight in_flight;
  enum weft_schedule_exchange exchange;
  gboolean host_waits;      /* with batch_p2p_sync the host waits after each batch of transfers */
  /* `weft plan` tries this schedule if pipeline_schedule is not set; if it splits the backward
   * pass, in the whole space only */
  gboolean searched;
  /* schedules with fewer microbatches in flight and the same placement of chunks, as bits 1 << enum
   * weft_schedule: `weft memory --fix` tries them instead of this schedule */
  uint32_t leaner;
};

extern const struct weft_schedule_row weft_schedules[WEFT_N_SCHEDULE];

/* Number of copies of the model that the ranks hold together. */
uint32_t weft_shape_copies (enum weft_grid_shape shape);

/* Number of chunks that one copy of the model has on a rank. */
uint32_t weft_spec_chunks (const struct weft_grid_spec *spec);

/* Number of microbatches in a group (microbatch_group_size_per_vp_stage). */
uint32_t weft_spec_group (const struct weft_grid_spec *spec);

enum weft_spec_rule {
#define SCHEDULE_RULE(id, ...) id,
#include "core/schedules.def"
  WEFT_SPEC_FITS
};

/* The first rule of the schedule that the numbers of `spec` break; WEFT_SPEC_FITS if they break
 * none. */
enum weft_spec_rule weft_spec_broken (const struct weft_grid_spec *spec);
