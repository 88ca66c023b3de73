/* cuda_log.h - what a recording device was told in one step, looked at: which work comes after
 * which, by vector clocks over streams and events, and whether that is what the plan says.
 *
 * Every function returns NULL, or what is wrong; the caller frees it. */
#pragma once
#include "core/exec/exec.h"
#include "tests/doubles/recorded_cuda.h"

/* One piece of work: its place on its stream, and what of every stream comes before it. */
struct cuda_work {
  enum recorded_kind kind;
  uint32_t row, op, stream, seq, at;
  uint32_t *before; /* [stream]: how many works are known to have ended */
};

typedef struct cuda_log {
  const recorded_cuda *device;
  weft_exec *x;
  gboolean shared;   /* ranks share a GPU */
  uint32_t first, n; /* calls of the step */

  uint32_t n_stream;
  GHashTable *stream;                 /* thing -> 1 + index */
  GArray *work;                       /* struct cuda_work */
  uint32_t **first_work, **last_work; /* [row][op], indices; G_MAXUINT32: none */
  uint32_t **worker_row, **worker_op; /* who does the work of an op, where ranks share a GPU */
  uint32_t *tail;                     /* [stream]: how many works end before the step does */
  uint8_t *(*base)[WEFT_N_POOL];      /* [row]: arenas */
  uint8_t **mailbox;
  uint64_t *mailbox_bytes;
} cuda_log;

/* Calls [first, first + n) of the device are a step, or the parts of one, of this executor. */
cuda_log *cuda_log_new (const recorded_cuda *device, weft_exec *x, gboolean shared, uint32_t first,
                        uint32_t n);
void cuda_log_free (cuda_log *log);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (cuda_log, cuda_log_free)

char *cuda_log_arenas (cuda_log *log);      /* one for each pool, as planned; finds the bases */
char *cuda_log_ops (const cuda_log *log);   /* every op once, with its operands where they lie */
char *cuda_log_order (const cuda_log *log); /* all that the plan orders is ordered, the tail last */
char *cuda_log_waits (const cuda_log *log); /* no wait and no record could be left out */
char *cuda_log_quiet (const cuda_log *log); /* nothing waits for the device, opens or allocates */
char *cuda_log_comms (const cuda_log *log); /* the same order for all members, and no deadlock */

/* With a GPU each: hosts that wait for counts, and streams for each other, get to the end. */
char *cuda_log_hosts (const cuda_log *log);

/* A call of the step, the index of its stream, and "rank 1 op 17 (bucket 2)" for messages. */
const struct recorded_call *cuda_log_call (const cuda_log *log, uint32_t i);
uint32_t cuda_log_stream (const cuda_log *log, const struct recorded_call *call);
char *cuda_log_name (const cuda_log *log, uint32_t row, uint32_t op);
