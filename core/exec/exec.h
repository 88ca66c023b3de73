/* exec.h - an executor is a machine with lanes and events, like a GPU with streams.
 *
 * - Ops on one lane of one rank run in the order in which they were issued.
 * - Lanes run concurrently; wait() makes a lane wait until an op of the same rank has ended.
 * - A collective starts when the last member of its group has issued it; a send starts when its
 *   receive has been issued too.
 * - open, wait and issue only enqueue; drain returns when all ops have run.
 *
 * Every executor receives its ops from the function weft_exec_walk() in exec.c, so predictions and
 * runs have the same ops. */
#pragma once
#include "core/exec/control.h"
#include "core/exec/options.h"
#include "core/plan/host.h"
#include "core/plan/parts.h"
#include "core/exec/timeline.h"

typedef struct weft_exec weft_exec;
struct weft_rendezvous; /* launch/rendezvous.h */

/* Options for a run: those that all executors share, and those of one executor. */
struct weft_exec_options {
  /* values for the executor whose weft_exec_ops.options is this table */
  struct weft_own_options own;

  /* Only for executors that compute numbers: */
  /* tokens and hyper-parameters, which every step reads; must outlive the executor */
  const struct weft_control *control;
  /* use the memory of this executor, which must outlive the new one and have its permanent buffers
   * at the same addresses; NULL: allocate memory */
  weft_exec *memory;

  /* Only for executors with WEFT_EXEC_STAMPS: */
  gboolean times; /* whether drain() stores begin and end of every op */
  gboolean total; /* if `times` is not set: whether drain() reports the device time of the step */

  /* Only for executors with WEFT_EXEC_PROCESSES: */
  struct weft_rendezvous *peers; /* connection to the processes that run the other ranks; outlives
                                    the executor. NULL: this process runs all ranks */
};

#define WEFT_EXEC_VIRTUAL 1u /* begin and end of ops are computed; no op runs */
#define WEFT_EXEC_TIMES 2u   /* drain() stores begin and end of every op in the timeline */
/* ranks have memory with numbers: read(), write() and metrics are available */
#define WEFT_EXEC_NUMBERS 4u
/* measures times only if options.times is set, because this slows the step */
#define WEFT_EXEC_STAMPS 8u
#define WEFT_EXEC_HOST 16u   /* ranks are threads of this machine and share its memory */
#define WEFT_EXEC_PROCESSES 32u /* several processes can run the ranks of one job together */

#define WEFT_EXEC_STAGING (16u << 20) /* bytes */

struct weft_exec_ops {
  const char *name, *doc;
  uint32_t flags;
  /* options that only this executor has (options.h); NULL: none */
  const struct weft_table *options;
  /* Loads the libraries that open() needs; fails if this machine does not have them.  NULL:
   * none. */
  gboolean (*load) (GError **error);
  weft_exec *(*open) (const weft_plan *plan, const struct weft_exec_options *options,
                      GError **error);
  gboolean (*wait) (weft_exec *x, uint32_t row, enum weft_lane lane, uint32_t op, GError **error);
  gboolean (*issue) (weft_exec *x, uint32_t row, uint32_t op, GError **error);
  /* Runs the ops that have been issued, then returns; the caller may issue more ops of the step
   * before drain(). NULL: the executor runs only whole steps. */
  gboolean (*run) (weft_exec *x, GError **error);
  weft_timeline *(*drain) (weft_exec *x, GError **error); /* caller owns */
  /* frees the executor; accepts NULL, and an executor whose open() failed halfway */
  void (*close) (weft_exec *x);

  /* read() copies bytes [offset, offset + n) of buffer `buf` to `out` in host memory; write()
   * copies `in` to these bytes. `row` says which rank has the buffer: `row` is the number of this
   * rank among the ranks of weft_exec.actors. Only with WEFT_EXEC_NUMBERS, and between steps. */
  void (*read) (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n, void *out);
  void (*write) (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n,
                 const void *in);
  /* Host memory for bytes [offset, offset + n) of a buffer, from which write() does not copy them
   * once more: the memory of the buffer itself, or pinned memory, from which a device copies while
   * the host goes on. The caller fills it and then passes it to the next write() of this row. n is
   * at most WEFT_EXEC_STAGING. NULL, also as a result: there is none. */
  void *(*staging) (weft_exec *x, uint32_t row, uint32_t buf, uint64_t offset, uint64_t n);
  /* The address of a buffer if the host can read its memory directly; else NULL. */
  void *(*at) (weft_exec *x, uint32_t row, uint32_t buf);

  /* The functions below need WEFT_EXEC_NUMBERS and describe the machine that the executor uses. */
  /* name of the processor or GPU that the executor uses; the caller frees it */
  char *(*machine_name) (void);
  /* Measures what the host spends on a launch: sets seconds[], indexed by enum weft_host_cost.
   * NULL: the executor launches no kernels and copies nothing between host and device. */
  gboolean (*time_launches) (double *seconds, GError **error);
};

/* The state of every executor begins with this struct. */
struct weft_exec {
  const struct weft_exec_ops *ops;
  const weft_plan *plan;
  weft_actors *actors; /* the ranks that run, one for each row of the timeline; owned */
  /* metrics of the newest step, by row; NULL without WEFT_EXEC_NUMBERS */
  struct weft_metrics *metrics;
  uint64_t *allocated;          /* bytes of device memory, by row; NULL without WEFT_EXEC_NUMBERS */
  uint64_t *allocated_host;     /* bytes of the host pool, by row; NULL without WEFT_EXEC_NUMBERS */
  struct weft_rendezvous *peers; /* options.peers */
  /* whether permanent buffers are zero except for what write() wrote: set by open() if it allocates
   * the memory, cleared by the first op; only with WEFT_EXEC_NUMBERS */
  gboolean fresh;
  double deadline;               /* seconds after which a step has failed; 0: no limit */
  /* by row: whether another process runs the rank of this row. For such a row read() returns zeros,
   * write() does nothing and metrics are not set. NULL: this process runs all rows */
  uint8_t *away;
};

static inline gboolean
weft_exec_has (const weft_exec *x, uint32_t row)
{
  return !x->away || !x->away[row];
}

#define WEFT_NULL_OPTION_LIST(X) WEFT_OPTION_UNFOLDED (X)

union weft_null_options {
  struct {
    WEFT_NULL_OPTION_LIST (WEFT_OPTION_MEMBER)
  };
  union weft_value at[0 WEFT_NULL_OPTION_LIST (WEFT_OPTION_ONE)];
};

/* Option `roles`: simulate only the first rank of each stage; the step takes as long as with all
 * ranks. */
#define WEFT_CLOCK_OPTION_LIST(X)                                                                  \
  WEFT_OPTION_UNFOLDED (X)                                                                         \
  WEFT_OPTION_PREDICTED_GRAPH (X)                                                                  \
  X (int64_t, roles, WEFT_TYPE_BOOL, "roles", "false", NULL, NULL, "", NULL, NULL)

union weft_clock_options {
  struct {
    WEFT_CLOCK_OPTION_LIST (WEFT_OPTION_MEMBER)
  };
  union weft_value at[0 WEFT_CLOCK_OPTION_LIST (WEFT_OPTION_ONE)];
};

extern const struct weft_exec_ops weft_exec_null, weft_exec_clock;

/* Opens an executor, runs one step of the plan and closes the executor.  The caller owns the
 * timeline; NULL with an error on failure. */
weft_timeline *weft_exec_run (const struct weft_exec_ops *ops, const weft_plan *plan,
                              const struct weft_exec_options *options, GError **error);

/* Runs one step of an open executor: enqueues the ops of every row, then drains.  The caller owns
 * the timeline; NULL with an error on failure. */
weft_timeline *weft_exec_step (weft_exec *x, GError **error);

/* The loss and the gradient norm, from a rank with an output head. NULL if this process runs no
 * rank with an output head. */
const struct weft_metrics *weft_exec_metrics (const weft_exec *x);

/* Runs a step in parts (parts.h). weft_exec_part() issues the ops of one part for every row and
 * runs them; the caller passes all parts in order. weft_exec_end_parts() ends the step and skips
 * the parts that were not issued. Results are bit-identical to those of a whole step. The executor
 * must have the function run(). */
gboolean weft_exec_part (weft_exec *x, const weft_parts *parts, uint32_t part, GError **error);
weft_timeline *weft_exec_end_parts (weft_exec *x, GError **error);

/* Largest number of ops of all rows together: an executor stores begin and end, 16 bytes, for each
 * op. */
#define WEFT_EXEC_MOST_OPS 100000000u

/* Refuses a run with more than WEFT_EXEC_MOST_OPS ops; open() calls this before it allocates
 * rows. */
gboolean weft_exec_check_size (const weft_plan *plan, const weft_actors *actors, GError **error);

/* Refuses to capture a step as a graph if the host reads token counts of experts in the step. */
gboolean weft_exec_check_graph (const weft_plan *plan, GError **error);

/* Creates the launch models of a predicted step (core/plan/host.h), one per role; the caller frees
 * them with weft_hosts_free(). With `graph` the whole step is one launch (a CUDA graph). Returns
 * FALSE with an error if weft_exec_check_graph() refuses the graph. */
gboolean
weft_exec_hosts (const weft_plan *plan, gboolean graph, weft_host ***hosts, GError **error);

/* Enqueues all ops of one row in program order. The dependencies of an op are enqueued as waits
 * before the op. */
gboolean weft_exec_walk (weft_exec *x, uint32_t row, GError **error);
