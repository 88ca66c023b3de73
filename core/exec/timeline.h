/* timeline.h - what happened: begin and end of every (rank, op) that was watched.  Everything that
 * is reported is computed from plan + timeline (report.h, trace.h). */
#pragma once
#include "core/plan/host.h"
#include "core/plan/plan.h"

/* Memory of a GPU that is not the plan's, in the order in which an executor measures it.
 *   constant                     word             who has it */
#define WEFT_RESERVED_LIST(X)                                                                      \
  X (WEFT_RESERVED_CONTEXT, "context", "the driver, and other programs")                           \
  X (WEFT_RESERVED_SCRATCH, "scratch", "kernels, beside their operands")                           \
  X (WEFT_RESERVED_COMMUNICATORS, "communicators", "the collective library, for communicators")    \
  X (WEFT_RESERVED_PRODUCTS, "products", "the library of matrix products")                         \
  X (WEFT_RESERVED_STEP, "first_step", "what loads or connects in the first step")
enum weft_reserved { WEFT_RESERVED_LIST (WEFT_WORD_ID) WEFT_N_RESERVED };
extern const char *const weft_reserved_words[];

/* A kernel, a copy or a fill of an op, if the device records them. */
struct weft_timeline_part {
  uint32_t row, op;
  const char *name; /* interned, or static */
  double begin, end;
};

/* All of one name that belong to no op. */
struct weft_timeline_stray {
  const char *name;
  uint64_t n;
  double seconds;
};

typedef struct weft_timeline {
  uint32_t n;             /* ranks watched */
  uint32_t *rank, *role;  /* of each row */
  uint32_t *stands_for;   /* ranks that a row represents: 1 without folding */
  double **begin, **end;  /* [row][op], seconds since the step began */
  double seconds;         /* the step: when the last op of all ranks ended */
  double *launch_wait;    /* [row] seconds for which kernels waited for their launch
                             (core/plan/host.h): of predictions; in no file */

  const char *executor;   /* static name */
  const char *engine;     /* "3.32" for SimGrid, "" otherwise */
  gboolean folded;        /* rows represent all ranks of their orbit */
  gboolean contended;     /* an op took longer than alone: links or SMs were shared */
  uint64_t n_ops;         /* ops run, all actors */
  uint64_t n_activities;  /* flows and timers of the engine */
  double wall_seconds;    /* of the executor */

  /* struct weft_timeline_part by begin, struct weft_timeline_stray; or NULL.  In no file. */
  GArray *parts, *strays;
  uint64_t lost;          /* records that the device dropped */
  const char *remark;     /* why times are not of the kind asked for, or NULL */

  gboolean knows_reserved;            /* the next was measured */
  uint64_t reserved[WEFT_N_RESERVED]; /* bytes of the first GPU */
} weft_timeline;

/* Rows for all actors, times not a number. */
weft_timeline *weft_timeline_new (const weft_plan *plan, const weft_actors *actors,
                                  const char *executor);
void weft_timeline_free (weft_timeline *timeline);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_timeline, weft_timeline_free)

/* All of it. */
uint64_t weft_timeline_reserved (const weft_timeline *timeline);

/* Sets `launch_wait`, of hosts by role. */
void weft_timeline_add_launches (weft_timeline *timeline, const weft_plan *plan,
                                 weft_host *const *hosts);

/* Sets `seconds` from the rows. */
void weft_timeline_finish (weft_timeline *timeline, const weft_plan *plan);
