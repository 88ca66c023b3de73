/* timeline.h - the result of a run: begin and end of every op of the observed ranks.  All reports
 * are computed from plan and timeline (report.h, trace.h). */
#pragma once
#include "core/plan/host.h"
#include "core/plan/plan.h"

/* GPU memory that the plan does not allocate, in the order in which an executor measures it.
 *   constant                     word             used by */
#define WEFT_RESERVED_LIST(X)                                                                      \
  X (WEFT_RESERVED_CONTEXT, "context", "the driver, and other programs")                           \
  X (WEFT_RESERVED_SCRATCH, "scratch", "scratch memory of kernels")                                \
  X (WEFT_RESERVED_COMMUNICATORS, "communicators", "communicators of the collective library")      \
  X (WEFT_RESERVED_PRODUCTS, "products", "the matmul library")                                     \
  X (WEFT_RESERVED_STEP, "first_step", "code loaded and connections made in the first step")
enum weft_reserved { WEFT_RESERVED_LIST (WEFT_WORD_ID) WEFT_N_RESERVED };
extern const char *const weft_reserved_words[];

/* A kernel, a copy or a fill that is part of an op, as the device recorded it. */
struct weft_timeline_part {
  uint32_t row, op;
  const char *name; /* name of the kernel, copy or fill; interned or static, so it is not freed */
  double begin, end; /* begin and end in seconds since the step began */
};

/* All recorded kernels, copies and fills of one name that belong to no op. */
struct weft_timeline_stray {
  const char *name;
  uint64_t n;
  double seconds;
};

/* Time in which communication of row `row` on one lane was ready and waited for its peers. Row
 * `behind` is the peer that was ready last. */
struct weft_timeline_wait {
  uint32_t row, behind;
  enum weft_lane lane;
  double seconds; /* sum over the step */
};

typedef struct weft_timeline {
  uint32_t n;             /* number of rows: one for each observed rank */
  uint32_t *rank, *role;  /* rank and role of each row */
  uint32_t *stands_for;   /* ranks that a row represents: 1 without folding */
  double **begin, **end;  /* begin and end of each op, [row][op], in seconds since the step began */
  double seconds;         /* seconds of the step: the end of the last op of all ranks */
  /* [row] seconds for which kernels waited for their launch (core/plan/host.h). Only predictions
   * set these, and files of timelines do not contain them */
  double *launch_wait;

  const char *executor;   /* static name */
  const char *engine;     /* version of SimGrid, "3.32"; "" for other executors */
  gboolean folded;        /* TRUE: a row represents all ranks that behave alike */
  /* [rank] row that represents the rank, if `folded` and the step was disturbed or `waits` are
   * recorded; otherwise NULL, and the rows are those of weft_actors_new() */
  uint32_t *row_of;
  /* Largest difference, in seconds, between times of ranks that the classes of a folded, disturbed
   * step should have in common. Below WEFT_SAME_TIME times the step it is rounding, and the step is
   * that of all ranks simulated one by one. */
  double misfit;
  /* whether an op of this run took longer because it shared links or SMs with other ops */
  gboolean contended;
  uint64_t n_ops;         /* number of ops of all rows together */
  uint64_t n_activities;  /* number of flows and timers of the simulation engine */
  double wall_seconds;    /* seconds of wall clock time that the executor needed */

  /* `parts` is sorted by begin and contains struct weft_timeline_part, `strays` contains struct
   * weft_timeline_stray. NULL: none were recorded. Files of timelines contain neither array. */
  GArray *parts, *strays;
  GArray *waits;          /* struct weft_timeline_wait, if they were asked for; otherwise NULL */
  uint64_t lost;          /* number of records of kernels and copies that the device dropped */
  const char *remark;     /* why the times are not of the kind that was requested; NULL: they are */

  gboolean knows_reserved;            /* whether `reserved` was measured on this machine */
  uint64_t reserved[WEFT_N_RESERVED]; /* bytes of each kind on the first GPU */
} weft_timeline;

/* Two times of one step that differ by less than this share of the step are equal but for
 * rounding. */
#define WEFT_SAME_TIME 1e-9

/* Creates a timeline with a row for each actor.  All times are NaN. */
weft_timeline *weft_timeline_new (const weft_plan *plan, const weft_actors *actors,
                                  const char *executor);
void weft_timeline_free (weft_timeline *timeline);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_timeline, weft_timeline_free)

/* Sum of `reserved`, in bytes. */
uint64_t weft_timeline_reserved (const weft_timeline *timeline);

/* Sets `launch_wait` of each row. hosts[role] predicts when the host issues the ops of a pipeline
 * stage (host.h); NULL: ops of this stage never wait for the host. */
void weft_timeline_add_launches (weft_timeline *timeline, const weft_plan *plan,
                                 weft_host *const *hosts);

/* Sets `seconds`, the time of the step, to the end of the last op. */
void weft_timeline_finish (weft_timeline *timeline, const weft_plan *plan);
