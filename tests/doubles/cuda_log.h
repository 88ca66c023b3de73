/* cuda_log.h - checks of the calls that a recording device received in one step: vector clocks over
 * streams and events give the order of work, which must be that of the plan.
 *
 * Every function returns NULL, or an error text that the caller frees. */
#pragma once
#include "core/exec/exec.h"
#include "tests/doubles/recorded_cuda.h"

/* A work item: a kernel, copy, host function or communication on a stream. `seq`: its index among
 * the work items of the stream; `at`: index of its arguments (struct recorded_call). */
struct cuda_work {
  enum recorded_kind kind;
  uint32_t row, op, stream, seq, at;
  uint32_t *before; /* [stream]: number of work items that end before this one starts */
};

typedef struct cuda_log {
  const recorded_cuda *device;
  weft_exec *x;
  gboolean shared;   /* ranks share a GPU */
  uint32_t first, n; /* calls of the step */

  uint32_t n_stream;
  GHashTable *stream;                 /* struct recorded_thing -> 1 + index of the stream */
  GArray *work;                       /* struct cuda_work */
  uint32_t **first_work, **last_work; /* [row][op]: indices; G_MAXUINT32: none */
  uint32_t **worker_row, **worker_op; /* [row][op]: rank and op whose calls do the op's work:
                                       * another rank's, if ranks share a GPU */
  uint32_t *tail;                     /* [stream]: number of work items that end before the step */
  uint8_t *(*base)[WEFT_N_POOL];      /* [row]: arenas */
  uint8_t **mailbox;
  uint64_t *mailbox_bytes;
} cuda_log;

/* Calls [first, first + n) of the device are one step, whole or in parts, of executor `x`.
 * `shared`: all ranks share a GPU. */
cuda_log *cuda_log_new (const recorded_cuda *device, weft_exec *x, gboolean shared, uint32_t first,
                        uint32_t n);
void cuda_log_free (cuda_log *log);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (cuda_log, cuda_log_free)

char *cuda_log_arenas (cuda_log *log);      /* checks one arena per pool, of the planned size; finds
                                             * their addresses */
char *cuda_log_ops (const cuda_log *log);   /* checks that every op ran once, with its operands at
                                             * their addresses */
char *cuda_log_order (const cuda_log *log); /* checks that work is ordered as the plan orders its
                                             * ops, and ends before the step ends */
char *cuda_log_waits (const cuda_log *log); /* checks that no wait and no record is redundant */
char *cuda_log_quiet (const cuda_log *log); /* checks that nothing in the step waits for the device,
                                             * opens or allocates */
char *cuda_log_comms (const cuda_log *log); /* checks that all members of a communicator call it
                                             * in the same order, and that none deadlocks */

/* For ranks with a GPU each: checks that no host or stream waits forever, including hosts that wait
 * for row counts. */
char *cuda_log_hosts (const cuda_log *log);

/* Call i of the step. */
const struct recorded_call *cuda_log_call (const cuda_log *log, uint32_t i);

/* The index of a call's stream. */
uint32_t cuda_log_stream (const cuda_log *log, const struct recorded_call *call);

/* "rank 1 op 17 (bucket 2)", for messages. The caller frees it. */
char *cuda_log_name (const cuda_log *log, uint32_t row, uint32_t op);
