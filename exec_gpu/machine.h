/* machine.h - the state of the GPU executor, and functions on the state that all of its files use.
 *
 * When the executor opens, it compiles the plan into scripts: lists of calls with all their
 * pointers, one list for each host thread. A step makes the calls of these lists. The order of the
 * ops of all ranks is computed once, from the plan alone.
 *
 * Files have levels; each includes headers of lower levels only (tests/tree/test_structure.c):
 *
 *   machine      the state; converts messages of calls to errors; opens events
 *   script       appends a call to a call list
 *   comm         finds the communicator of an op; checks communicators for errors
 *   watchdog     waits for other ranks, until the deadline
 *   counted      collectives whose numbers of rows the host reads during the step
 *   arena        memory and streams of a rank; the mailbox between host and device
 *   staging      staging buffers for writes between steps
 *   order        launches of a rank and the waits between them, without redundant waits
 *   comms        opens and closes communicators and windows
 *   collectives  the calls of a collective: library calls, or copies and sums on a shared GPU
 *   emit         the calls of a launch: waits, ops, and an event for later launches
 *   issue        the order in which launches of all ranks are issued
 *   reserved     measures GPU memory that is not part of the plan
 *   traced       times of ops, computed from a trace of kernels
 *   step         makes the calls of a step, or launches the graph that was captured from them
 *   exec_gpu     the functions of core/exec/exec.h */
#pragma once
#include "core/exec/feed.h"
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "exec_gpu/gpu_options.h"
#include "kernels/bind.h"
#include <pthread.h>

struct gpu_machine;

/* An array of dependencies has a column for each lane, and one for the begin of the step. */
#define GPU_START WEFT_N_LANE
#define GPU_COLUMNS (WEFT_N_LANE + 1)
#define GPU_NO_UNIT 0xffffffffu

/* Ops that are issued at once: one op, or the ops of one launch (such as an ncclGroup). */
struct gpu_unit {
  uint8_t lane;
  /* awaited: a launch on another stream waits for this one; idle: no work on the device */
  gboolean awaited, idle;
  uint32_t index;                /* index of this launch among the launches of its lane */
  uint32_t pos, n;               /* position of the first op on the lane; number of ops */
  /* Sets of launches that depend on each other. By lane: 1 + index of the last launch of this lane
   * in the set; 0: the set has no launch of this lane. */
  uint32_t need[GPU_COLUMNS];    /* the launches that the plan orders before this launch */
  /* what later launches inherit: this launch, or `need` if this launch has no device work */
  uint32_t implies[GPU_COLUMNS];
  /* the launches whose events this launch must wait for: `need` without redundant waits */
  uint32_t wait[GPU_COLUMNS];
  /* the launches that are known to have ended when this launch starts */
  uint32_t before[GPU_COLUMNS];

  /* for an exchange with row counts: 1 + index of the launch of lane d2h that copies the row counts
   * to the host; 0: the launch has no row counts */
  uint32_t counts_unit;
  weft_gpu_event *event; /* recorded after this launch if `awaited` is set; not owned */

  /* For transfers between ranks that share a GPU. `arrived`: event recorded when the sends of the
   * launch can be read; `begin`: timed event. */
  gboolean posted; /* gpu_emit_post() has been called for this launch */
  weft_gpu_event *arrived, *begin;
};

/* Staging buffers (staging.h). busy: a copy from the buffer may be running; `copied` is the
 * event recorded after it. */
struct gpu_staging {
  struct gpu_staging_side {
    uint8_t *at; /* NULL: not allocated */
    weft_gpu_event *copied;
    gboolean busy;
  } side[2];
  unsigned next; /* the side that gpu_staging_take() returns next */
};

struct gpu_rank {
  struct gpu_machine *m;
  const weft_program *p;
  uint32_t row, rank, device;
  /* TRUE: the rank belongs to this process; ranks of other processes have launches, but no memory
   * and no streams */
  gboolean here;
  weft_bind bind;
  /* the event that begins the step is recorded on lane gpu of this rank */
  gboolean origin;
  /* by lane: the stream; NULL if the lane has no ops (lane gpu always has a stream) */
  weft_gpu_stream *stream[WEFT_N_LANE];
  /* by lane: scratch memory, which one kernel at a time uses */
  struct weft_gpu_scratch scratch[WEFT_N_LANE];

  /* Pinned memory that host and device share: control block, tokens, results. */
  uint8_t *mailbox;
  void *control;  /* address of the control block in device memory */
  uint32_t *slot; /* for copy_in and copy_out ops: offset of the op's data in the mailbox */
  uint64_t mailbox_bytes;
  struct weft_watch watch;
  struct gpu_staging staging;

  /* number of launches of all lanes; index of the first launch of each lane */
  uint32_t n_unit, first_unit[WEFT_N_LANE + 1];
  /* unit: all launches; end: represents the end of the step */
  struct gpu_unit *unit, end;
  uint32_t *unit_of;                            /* op -> unit */
  /* by kind of transfer (send or receive, direction, group): the ops of this kind, and their
   * number */
  uint32_t *transfer[8], n_transfer[8];
  uint32_t *transfer_of;                        /* op -> position of the op in transfer[kind] */

  /* For ranks that share a GPU, by receive op: the event that is recorded after the receiver has
   * copied the data. */
  weft_gpu_event **taken;

  weft_gpu_comm *comm[WEFT_N_GROUP];
  /* communicators of transfers that are launched one by one: [0: with the next stage, 1: with the
   * previous stage][0: data flows to the later stage, 1: to the earlier stage] */
  weft_gpu_comm *pair[2][2];
  weft_gpu_event *tail;      /* event recorded at the end of the newest step */
  uint8_t *issued;            /* by op: whether the op was issued in this step */
  struct weft_team *team;     /* threads that run CPU kernels; NULL: one thread runs them */
};

/* Columns: constant, name, operands of the call. */
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
  uint32_t row, op; /* WEFT_NO_OP: the call belongs to no single op but to the whole step */
  uint32_t at, n;
  weft_gpu_stream *stream;
  weft_gpu_event *event;
};

/* A collective over unequal numbers of rows. The host reads the numbers of rows (row counts) during
 * the step, when it issues the sends and receives. Rows to send begin at `from`, received rows at
 * `to`, both in the order of the members. */
struct gpu_counted {
  weft_gpu_comm *comm;
  enum weft_op_kind kind;
  /* number of members; this member's number; number of row counts per member */
  uint32_t n, me, each;
  /* addresses in the mailbox. counts: row counts of the rows that this member sends; got: for
   * all_to_all_v, row counts of the rows that it receives, else NULL */
  const int64_t *counts, *got;
  uint8_t *from, *to;
  uint64_t from_rows, to_rows; /* number of rows for which the buffers have room */
  uint64_t columns, row;       /* number of elements in a row; number of bytes in a row */
  uint8_t dtype;

  /* Only for reduce_scatter_v: scratch for the rows that other members send; the addresses of the
   * arrays to add; the arguments of the sum. */
  uint8_t *parts;
  const void **term;
  struct weft_gpu_join *sum;
};

/* A kernel that the CPU runs, as a host function of a stream. */
struct gpu_host_work {
  struct weft_kernel kernel;
  struct weft_team *team;
};

/* The calls that one host thread makes in a step: the calls of all ranks that share a GPU, or of
 * one rank with its own GPU. */
struct gpu_script {
  struct gpu_machine *m;
  /* number of the first rank whose calls are in this list */
  uint32_t row;
  GArray *call;                                  /* array of struct gpu_call */
  /* arrays of struct weft_kernel, weft_gpu_copy, weft_gpu_collective and weft_gpu_transfer */
  GArray *kernel, *copy, *collective, *transfer;
  GArray *host;                                  /* array of struct gpu_host_work */
  /* arrays of struct weft_gpu_join *, weft_gpu_exchange * and gpu_counted *, which own their
   * elements */
  GPtrArray *join, *exchange, *counted;
  /* by call: whether the call was made in this step */
  uint8_t *played;
  _Atomic uint32_t n_played;                     /* number of calls that were made in this step */
  /* Events that are recorded at the begin of a step. `start`: launches without other dependencies
   * wait for this event; NULL: none waits. `zero`: timed event; NULL: no times are measured. */
  weft_gpu_event *start, *zero;
  weft_gpu_graph *graph; /* graph of a whole step; NULL: the step has not been captured */

  pthread_t thread;
  gboolean has_thread, failed;
  GError *error;
};

/* An op whose times are recorded: the launch that contains the op, and the timed events at the
 * begin and the end of this launch (NULL if times come from a kernel trace). */
struct gpu_stamp {
  uint32_t row, op, unit;
  weft_gpu_event *begin, *end;
};

/* A reduction object of the collective library (`scaled`) that divides all terms by `divisor`. */
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
  gboolean shared; /* TRUE: all ranks share one GPU; FALSE: each rank has a GPU */
  gboolean apart;  /* transfers between stages are launched one by one, not in groups */
  uint32_t n, n_script;
  /* number of the first rank of this process; number of ranks of this process */
  uint32_t first, n_here;
  struct gpu_rank *rank;
  struct gpu_script *script;
  GPtrArray *event;        /* owns all events of the executor */
  GArray *stamp;           /* array of struct gpu_stamp */
  GPtrArray *comm;         /* owns all communicators */
  GArray *scaled, *window; /* arrays of struct gpu_scaled and of struct gpu_window */
  gboolean traced;         /* TRUE: times of ops come from a trace of kernels; FALSE: from events */
  const char *remark;      /* why kernels could not be traced, or NULL; an interned string */
  uint32_t n_unit;         /* number of launches whose times are recorded */
  /* a call of some thread has failed; the executor can then only be closed */
  _Atomic gboolean broken;
  gboolean begun;          /* a step is in progress */
  uint64_t left;           /* bytes of free memory on the first GPU at the last measurement */
  uint64_t reserved[WEFT_N_RESERVED];
  uint64_t steps;          /* number of steps begun */
  /* time in microseconds when the step or the opening of communicators began */
  gint64 since;
  gint64 took; /* microseconds of the last step that has ended; 0: none */

  pthread_mutex_t lock; /* guards the fields below, which the threads of the call lists share */
  pthread_cond_t changed;
  uint64_t round;
  uint32_t n_busy;
  gboolean closing;
  struct gpu_script *blame; /* the call list that failed first, or NULL */
};

/* A launch together with the rank that issues it. */
struct gpu_rank_unit {
  struct gpu_rank *r;
  struct gpu_unit *u;
};

#define GPU_CALL(m, name, ...) ((m)->calls->name ((m)->calls->self, ##__VA_ARGS__))

/* TRUE: `said`, the result of a call, is NULL (success). FALSE: sets an error with the message
 * `said` and with `what`, a printf format. */
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

/* The i-th op of a launch. */
static inline uint32_t
gpu_unit_op (const struct gpu_rank *r, const struct gpu_unit *u, uint32_t i)
{
  return r->p->lane_ops[u->lane][u->pos + i];
}

/* Space that a value of `bytes` bytes takes in the mailbox, rounded up to 64 bytes. */
static inline uint64_t
gpu_slot_bytes (uint64_t bytes)
{
  return (bytes + 63) / 64 * 64;
}

/* Bytes of an operand that is copied to or from the mailbox; 0: the op does not have this
 * operand. */
static inline uint64_t
gpu_mail_bytes (const struct gpu_rank *r, uint32_t op, uint32_t operand)
{
  uint32_t buf = weft_bind_use (&r->bind, op, operand)->buf;
  return buf == WEFT_NO_BUF ? 0 : r->p->buf[buf].bytes;
}

/* The word of the mailbox in which a lane counts its launches that have ended. */
static inline uint32_t *
gpu_progress (const struct gpu_rank *r, uint32_t lane)
{
  uint8_t *words = r->mailbox + gpu_slot_bytes (sizeof (struct weft_control));
  return (uint32_t *) (void *) words + lane;
}
