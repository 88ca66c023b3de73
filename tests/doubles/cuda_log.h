/* cuda_log.h - checks of the calls that a recording device (recorded_cuda.h) received in one step.
 * Vector clocks over streams and events give the order of the work, which must be the order of the
 * plan.
 *
 * Every function returns NULL, or an error text that the caller frees. */
#pragma once
#include "core/exec/exec.h"
#include "tests/doubles/recorded_cuda.h"

/* A work item: a kernel, copy, host function or communication on a stream. `seq`: its position
 * among the work items of the stream. `at`: the index of its arguments (struct recorded_call). */
struct cuda_work {
  enum recorded_kind kind;
  uint32_t row, op, stream, seq, at;
  uint32_t *before; /* [stream]: how many work items of this stream end before this item starts */
};

typedef struct cuda_log {
  const recorded_cuda *device;
  weft_exec *x;
  gboolean shared;   /* TRUE: all ranks share one GPU */
  uint32_t first, n; /* the recorded calls of the step: [first, first + n) */

  uint32_t n_stream;
  GHashTable *stream; /* handle of a stream (struct recorded_thing) -> 1 + number of the stream */
  GArray *work;       /* all work items of the step, struct cuda_work */
  /* [row][op]: first and last work item of an op, as indices in `work`; G_MAXUINT32: the op has no
   * work */
  uint32_t **first_work, **last_work;
  /* [row][op]: rank and op whose calls do the work of this op; if ranks share a GPU, this may be
   * another rank */
  uint32_t **worker_row, **worker_op;
  /* [stream]: number of the stream's work items that end before the step begins */
  uint32_t *tail;
  uint8_t *(*base)[WEFT_N_POOL]; /* [row][pool]: address of the rank's arena in each pool */
  uint8_t **mailbox;
  uint64_t *mailbox_bytes;
} cuda_log;

/* Makes a log of calls [first, first + n) of the device. These calls are one step of executor `x`.
 * `shared`: all ranks share one GPU. */
cuda_log *cuda_log_new (const recorded_cuda *device, weft_exec *x, gboolean shared, uint32_t first,
                        uint32_t n);
void cuda_log_free (cuda_log *log);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (cuda_log, cuda_log_free)

/* checks that each memory pool has one arena of the planned size, and finds the addresses */
char *cuda_log_arenas (cuda_log *log);
/* Whether the op before the event of recorded call `wait` and the op of the wait both have work. An
 * exchange of no rows has none, so waits before and after it order nothing. The recording device
 * runs no copies: the counts of rows are those that the memory holds by chance. */
gboolean cuda_log_orders_work (const cuda_log *log, uint32_t wait);
/* checks that every op ran once, with its operands at their addresses */
char *cuda_log_ops (const cuda_log *log);
/* checks that work runs in an order that the plan allows, and ends before the step ends */
char *cuda_log_order (const cuda_log *log);
/* checks that every event wait and every event record is necessary */
char *cuda_log_waits (const cuda_log *log);
/* checks that no call of the step waits for the device, opens a handle or allocates memory */
char *cuda_log_quiet (const cuda_log *log);
/* checks that all members of a communicator make its calls in the same order, without a deadlock */
char *cuda_log_comms (const cuda_log *log);

/* If every rank has its own GPU: checks that no host or stream waits forever, including hosts that
 * wait for row counts. */
char *cuda_log_hosts (const cuda_log *log);

/* Returns call number `i` of the step, counted from 0. */
const struct recorded_call *cuda_log_call (const cuda_log *log, uint32_t i);

/* Returns the number of the stream on which a call was made. */
uint32_t cuda_log_stream (const cuda_log *log, const struct recorded_call *call);

/* Returns a name for messages, such as "rank 1 op 17 (bucket 2)". The caller frees it. */
char *cuda_log_name (const cuda_log *log, uint32_t row, uint32_t op);
