/* machine.h - the state of the GPU executor, and functions on the state that all of its files use.
 *
 * When the executor opens, it compiles the plan into scripts: lists of calls with all their
 * pointers.  A step replays the scripts.  The order of the ops of all ranks is computed once, from
 * the plan alone.
 *
 * Files have levels; each includes headers of lower levels only (tests/tree/test_structure.c):
 *
 *   machine      the state; converts messages of calls to errors; events
 *   script       appends a call to a script
 *   comm         the communicator of an op; errors of communicators
 *   watchdog     waits for other ranks, until the deadline
 *   counted      exchanges between GPUs whose sizes the host learns during the step
 *   arena        memory and streams of a rank; the mailbox between host and device
 *   order        units of a rank and the waits between them, without redundant waits
 *   comms        opens and closes communicators and windows
 *   collectives  the calls of a collective: library calls, or copies and sums on a shared GPU
 *   emit         the calls of a unit: its waits, its ops, its event
 *   issue        the order in which units of all ranks are issued
 *   reserved     GPU memory outside the plan
 *   traced       times of ops, computed from the times of their kernels
 *   step         a step replays the scripts, or the graph that was captured from them
 *   exec_gpu     the functions of core/exec/exec.h */
#pragma once
#include "core/exec/feed.h"
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "exec_gpu/gpu_options.h"
#include "kernels/bind.h"
#include <pthread.h>

struct gpu_machine;

/* Columns of dependencies: one for each lane, and one for the begin of the step. */
#define GPU_START WEFT_N_LANE
#define GPU_COLUMNS (WEFT_N_LANE + 1)
#define GPU_NO_UNIT 0xffffffffu

/* A unit of issue: one op, or the ops of one launch. */
struct gpu_unit {
  uint8_t lane;
  gboolean awaited, idle;        /* awaited: another unit waits for it; idle: no device work */
  uint32_t index;                /* position on its lane, counted in units */
  uint32_t pos, n;               /* position of the first op on the lane; number of ops */
  /* Sets of units. By column: 1 + index of the last unit of this lane in the set; 0: the set has no
   * unit of this lane. */
  uint32_t need[GPU_COLUMNS];    /* units that the plan orders before this unit */
  uint32_t implies[GPU_COLUMNS]; /* units that dependants wait for: this unit, or `need` if idle */
  uint32_t wait[GPU_COLUMNS];    /* `need`, without units that other waits or the lane imply */
  uint32_t before[GPU_COLUMNS];  /* units that have ended when this unit starts */

  uint32_t counts_unit; /* 1 + index of the unit of lane d2h that copies the counts of this unit's
                           exchange to the host; 0: none */
  weft_gpu_event *event; /* recorded after the unit if `awaited`; not owned */

  /* For transfers between ranks that share a GPU. `arrived`: recorded when a unit with sends is
   * posted; `begin`: timed. */
  gboolean posted; /* gpu_emit_post() has appended the unit */
  weft_gpu_event *arrived, *begin;
};

struct gpu_rank {
  struct gpu_machine *m;
  const weft_program *p;
  uint32_t row, rank, device;
  gboolean here; /* the rank belongs to this process; ranks of other processes have only units */
  weft_bind bind;
  gboolean origin;                       /* the step begins on lane gpu of this rank */
  weft_gpu_stream *stream[WEFT_N_LANE]; /* lane gpu and lanes with ops; else NULL */
  struct weft_gpu_scratch scratch[WEFT_N_LANE]; /* one per lane; one kernel uses it at a time */

  /* Pinned memory that host and device share: control, tokens, results. */
  uint8_t *mailbox;
  void *control;  /* control block on the device */
  uint32_t *slot; /* by op: offset in the mailbox; for copy_in and copy_out */
  uint64_t mailbox_bytes;
  struct weft_watch watch;

  uint32_t n_unit, first_unit[WEFT_N_LANE + 1]; /* number of units; first unit of each lane */
  struct gpu_unit *unit, end;                  /* end: a unit for the end of the step */
  uint32_t *unit_of;                            /* op -> unit */
  uint32_t *transfer[8], n_transfer[8];         /* by kind of transfer: its ops, their number */
  uint32_t *transfer_of;                        /* op -> its index in transfer[kind] */

  /* For ranks that share a GPU. By receive op: the event that is recorded after its copy. */
  weft_gpu_event **taken;

  weft_gpu_comm *comm[WEFT_N_GROUP];
  weft_gpu_comm *pair[2][2]; /* of transfers posted one by one: [0: next stage, 1: previous stage]
                                [0: towards the later stage, 1: towards the earlier stage] */
  weft_gpu_event *tail;      /* recorded at the end of the newest step */
  uint8_t *issued;            /* by op: whether the op was issued */
  struct weft_team *team;     /* threads for CPU kernels; NULL: one thread */
};

/*   constant          word                    operands */
#define GPU_CALL_LIST(X)                                                                           \
  X (GPU_RECORD, "record", "event on stream")                                                      \
  X (GPU_WAIT, "wait", "stream waits for event")                                                   \
  X (GPU_STAMP, "stamp", "timed event on stream")                                                  \
  X (GPU_COPY, "copy", "copies[at]")                                                               \
  X (GPU_FILL, "fill", "copies[at] without a source: fills with bytes that are NaN")               \
  X (GPU_KERNEL, "kernel", "n kernels from kernels[at] on")                                        \
  X (GPU_HOST, "host", "n kernels of the CPU from host[at] on")                                    \
  X (GPU_JOIN, "join", "joins[at]")                                                                \
  X (GPU_EXCHANGE, "exchange", "exchanges[at]")                                                    \
  X (GPU_GROUP_START, "group_start", "")                                                           \
  X (GPU_GROUP_END, "group_end", "")                                                               \
  X (GPU_COLLECTIVE, "collective", "collectives[at]")                                              \
  X (GPU_SEND, "send", "transfers[at]")                                                            \
  X (GPU_RECV, "recv", "transfers[at]")                                                            \
  X (GPU_MARK, "mark", "progress of a lane: n")                                                    \
  X (GPU_READ, "read", "the host waits for an event, then reads the counts")                       \
  X (GPU_COUNTED, "counted", "sends and receives of counted[at]")                                  \
  X (GPU_TOTAL, "total", "adds the rows that counted[at] has received")
enum gpu_call_kind { GPU_CALL_LIST (WEFT_WORD_ID) GPU_N_CALL };
extern const char *const gpu_call_words[];

struct gpu_call {
  uint8_t kind, lane;
  uint32_t row, op; /* op WEFT_NO_OP: the call belongs to the whole step */
  uint32_t at, n;
  weft_gpu_stream *stream;
  weft_gpu_event *event;
};

/* An exchange of rows; the host reads the numbers of rows (row counts) when it issues the exchange.
 * Sent rows begin at `from`, received rows at `to`, both in the order of the members. */
struct gpu_counted {
  weft_gpu_comm *comm;
  enum weft_op_kind kind;
  uint32_t n, me, each;        /* number of members; this member; row counts per member */
  const int64_t *counts, *got; /* in the mailbox; got: received rows of all_to_all_v, or NULL */
  uint8_t *from, *to;
  uint64_t from_rows, to_rows; /* capacity of the buffers in rows */
  uint64_t columns, row;       /* elements of a row; bytes of a row */
  uint8_t dtype;

  /* For reduce_scatter_v: scratch for the rows that other members send; the terms of the sum; the
   * sum. */
  uint8_t *parts;
  const void **term;
  struct weft_gpu_join *sum;
};

/* A CPU kernel in a host function of a stream. */
struct gpu_host_work {
  struct weft_kernel kernel;
  struct weft_team *team;
};

/* The calls that one host thread makes in a step: the calls of all ranks that share a GPU, or of
 * one rank with its own GPU. */
struct gpu_script {
  struct gpu_machine *m;
  uint32_t row;                                  /* row of the first rank */
  GArray *call;                                  /* struct gpu_call */
  GArray *kernel, *copy, *collective, *transfer; /* struct weft_kernel, weft_gpu_copy ... */
  GArray *host;                                  /* struct gpu_host_work */
  GPtrArray *join, *exchange, *counted;          /* struct weft_gpu_join * ..., owned */
  uint8_t *played;                               /* by call: whether made in this step */
  _Atomic uint32_t n_played;                     /* number of calls made in this step */
  /* Events that are recorded at the begin of a step. `start`: units without other dependencies wait
   * for it; NULL: no unit waits. `zero`: timed; NULL: no times are measured. */
  weft_gpu_event *start, *zero;
  weft_gpu_graph *graph; /* graph of a whole step; NULL: not captured */

  pthread_t thread;
  gboolean has_thread, failed;
  GError *error;
};

/* An op whose times are recorded: its unit and, unless times are traced, the events at the begin
 * and end of the unit. */
struct gpu_stamp {
  uint32_t row, op, unit;
  weft_gpu_event *begin, *end;
};

/* A reduction that divides by `divisor`, and its number in the library (`scaled`). */
struct gpu_scaled {
  weft_gpu_comm *comm;
  uint8_t dtype;
  uint64_t divisor;
  int scaled;
};

struct gpu_window {
  weft_gpu_comm *comm;
  weft_gpu_window *window;
};

struct gpu_machine {
  weft_exec base;
  struct weft_exec_options options;
  union weft_gpu_options own;
  const struct weft_gpu_calls *calls;
  gboolean shared; /* all ranks share one GPU */
  gboolean apart;  /* transfers between stages are posted one by one */
  uint32_t n, n_script;
  uint32_t first, n_here; /* first row of this process; number of its rows */
  struct gpu_rank *rank;
  struct gpu_script *script;
  GPtrArray *event;        /* all events, owned */
  GArray *stamp;           /* struct gpu_stamp */
  GPtrArray *comm;         /* all communicators, owned */
  GArray *scaled, *window; /* struct gpu_scaled, gpu_window */
  gboolean traced;         /* times of ops are computed from a trace of kernels */
  const char *remark;      /* why tracing was not possible, or NULL; interned */
  uint32_t n_unit;         /* number of units whose times are recorded */
  _Atomic gboolean broken; /* a call of any thread has failed: the machine can only be closed */
  gboolean begun;          /* a step is in progress */
  uint64_t left;           /* free memory of the first GPU, when last measured */
  uint64_t reserved[WEFT_N_RESERVED];
  uint64_t steps;          /* number of steps begun */
  gint64 since;            /* when the step or the opening began, microseconds */

  pthread_mutex_t lock; /* guards the fields below, for scripts with threads */
  pthread_cond_t changed;
  uint64_t round;
  uint32_t n_busy;
  gboolean closing;
  struct gpu_script *blame; /* the first script that has failed, or NULL */
};

/* A unit of a rank. */
struct gpu_rank_unit {
  struct gpu_rank *r;
  struct gpu_unit *u;
};

#define GPU_CALL(m, name, ...) ((m)->calls->name ((m)->calls->self, ##__VA_ARGS__))

/* TRUE if `said`, the result of a call, is NULL. Else sets an error from this message and `what`, a
 * printf format, and returns FALSE. */
gboolean gpu_ok (struct gpu_machine *m, const char *said, GError **error, const char *what, ...)
    G_GNUC_PRINTF (4, 5);

/* Chooses the GPU of a rank for the calls that follow. */
gboolean gpu_choose (struct gpu_rank *r, GError **error);

/* Whether this step skips an op: an evaluation skips the ops of backward and update. */
gboolean gpu_skips (const struct gpu_rank *r, uint32_t op);

/* Opens an event of the rank's GPU. The machine owns and closes the event. */
gboolean gpu_event_open (struct gpu_rank *r, gboolean timed, weft_gpu_event **out, GError **error);

static inline struct gpu_script *
gpu_script_of (struct gpu_machine *m, const struct gpu_rank *r)
{
  return &m->script[m->shared ? 0 : r->row - m->first];
}

static inline struct gpu_unit *
gpu_unit_at (const struct gpu_rank *r, uint32_t lane, uint32_t index)
{
  return &r->unit[r->first_unit[lane] + index];
}

static inline uint32_t
gpu_units_of (const struct gpu_rank *r, uint32_t lane)
{
  return r->first_unit[lane + 1] - r->first_unit[lane];
}

/* The i-th op of a unit. */
static inline uint32_t
gpu_unit_op (const struct gpu_rank *r, const struct gpu_unit *u, uint32_t i)
{
  return r->p->lane_ops[u->lane][u->pos + i];
}

/* Bytes of a slot in the mailbox for a value of `bytes`. */
static inline uint64_t
gpu_slot_bytes (uint64_t bytes)
{
  return (bytes + 63) / 64 * 64;
}

/* Bytes of an operand of a copy to or from the mailbox; 0: the operand is absent. */
static inline uint64_t
gpu_mail_bytes (const struct gpu_rank *r, uint32_t op, uint32_t operand)
{
  uint32_t buf = weft_bind_use (&r->bind, op, operand)->buf;
  return buf == WEFT_NO_BUF ? 0 : r->p->buf[buf].bytes;
}

/* The word of the mailbox in which a lane counts its units that have ended. */
static inline uint32_t *
gpu_progress (const struct gpu_rank *r, uint32_t lane)
{
  uint8_t *words = r->mailbox + gpu_slot_bytes (sizeof (struct weft_control));
  return (uint32_t *) (void *) words + lane;
}
