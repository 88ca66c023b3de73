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
  const char *name; /* interned, or static */
  double begin, end; /* seconds since the step began */
};

/* All recorded kernels, copies and fills of one name that belong to no op. */
struct weft_timeline_stray {
  const char *name;
  uint64_t n;
  double seconds;
};

typedef struct weft_timeline {
  uint32_t n;             /* rows: ranks observed */
  uint32_t *rank, *role;  /* rank and role of each row */
  uint32_t *stands_for;   /* ranks that a row represents: 1 without folding */
  double **begin, **end;  /* [row][op], seconds since the step began */
  double seconds;         /* the step: when the last op of all ranks ended */
  double *launch_wait;    /* [row] seconds for which kernels waited for their launch
                             (core/plan/host.h): predictions only; not in files */

  const char *executor;   /* static name */
  const char *engine;     /* version of SimGrid, "3.32"; "" for other executors */
  gboolean folded;        /* a row represents all ranks that behave alike */
  gboolean contended;     /* an op took longer because it shared links or SMs */
  uint64_t n_ops;         /* ops of all rows */
  uint64_t n_activities;  /* flows and timers of the engine */
  double wall_seconds;    /* wall clock time of the executor */

  /* parts: struct weft_timeline_part, sorted by begin.  strays: struct weft_timeline_stray.
   * NULL: none.  Files of timelines contain neither. */
  GArray *parts, *strays;
  uint64_t lost;          /* records that the device dropped */
  const char *remark;     /* why times are not of the requested kind; NULL: they are */

  gboolean knows_reserved;            /* whether `reserved` was measured */
  uint64_t reserved[WEFT_N_RESERVED]; /* bytes of the first GPU */
} weft_timeline;

/* Creates a timeline with a row for each actor.  All times are NaN. */
weft_timeline *weft_timeline_new (const weft_plan *plan, const weft_actors *actors,
                                  const char *executor);
void weft_timeline_free (weft_timeline *timeline);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_timeline, weft_timeline_free)

/* Sum of `reserved`, in bytes. */
uint64_t weft_timeline_reserved (const weft_timeline *timeline);

/* Sets `launch_wait` of each op. hosts[role] predicts when the host issues the ops of a pipeline
 * stage (host.h); NULL: ops of this stage never wait for the host. */
void weft_timeline_add_launches (weft_timeline *timeline, const weft_plan *plan,
                                 weft_host *const *hosts);

/* Sets `seconds` to the end of the last op. */
void weft_timeline_finish (weft_timeline *timeline, const weft_plan *plan);
