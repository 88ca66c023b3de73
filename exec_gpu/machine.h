/* machine.h - the state of the GPU executor, and what all of its files do with it.
 *
 * When the executor opens it compiles the plan into scripts: lists of calls with all their
 * pointers.  A step replays them.  The order of the ops of all ranks is decided once, from the plan
 * alone.
 *
 * Files have levels; each includes headers of lower levels only (tests/tree/test_structure.c):
 *
 *   machine      state; a call's message as an error; events
 *   script       a call is appended to a script
 *   comm         which communicator an op uses; errors of communicators
 *   watchdog     waiting for other ranks, until the deadline
 *   counted      exchanges between GPUs whose sizes the host learns during the step
 *   arena        memory and streams of a rank; the mailbox between host and device
 *   order        units of a rank and the waits between them, without redundant ones
 *   comms        communicators and windows are opened and closed
 *   collectives  a collective as calls: of the library, or copies and sums on a shared GPU
 *   emit         a unit as calls: its waits, the op, its event
 *   issue        the order in which units of all ranks are issued
 *   reserved     GPU memory that is not the plan's
 *   traced       times of ops from those of their kernels
 *   step         a step replays the scripts, or the graph that they were captured into
 *   exec_gpu     the contract of core/exec/exec.h */
#pragma once
#include "core/exec/feed.h"
#include "core/exec/exec.h"
#include "exec_gpu/calls.h"
#include "exec_gpu/gpu_options.h"
#include "kernels/bind.h"
#include <pthread.h>

struct gpu_machine;

/* One column more than lanes: the beginning of the step. */
#define GPU_START WEFT_N_LANE
#define GPU_COLUMNS (WEFT_N_LANE + 1)
#define GPU_NO_UNIT 0xffffffffu

/* An op, or the ops of one launch. */
struct gpu_unit {
  uint8_t lane;
  gboolean awaited, idle;        /* awaited: another unit waits for it; idle: no device work */
  uint32_t index;                /* on its lane, counted in units */
  uint32_t pos, n;               /* ops: places on the lane */
  /* By column, 1 + index of the last unit of a lane; 0: none. */
  uint32_t need[GPU_COLUMNS];    /* ordered before it by the plan */
  uint32_t implies[GPU_COLUMNS]; /* transitively ordered before it */
  uint32_t wait[GPU_COLUMNS];    /* need without those that other waits or the lane imply */
  uint32_t before[GPU_COLUMNS];  /* units of each lane that have ended when it starts */

  uint32_t counts_unit; /* 1 + index of the unit of lane d2h that brings the host the counts of its
                           exchange; 0: none */
  weft_gpu_event *event; /* recorded after it if awaited; not owned */
  gboolean posted; /* of transfers between ranks that share a GPU, while they are issued */
  weft_gpu_event *arrived, *begin;
};

struct gpu_rank {
  struct gpu_machine *m;
  const weft_program *p;
  uint32_t row, rank, device;
  gboolean here; /* in this process; others have at most the order of their units */
  weft_bind bind;
  gboolean origin;                       /* the step begins on its gpu lane */
  weft_gpu_stream *stream[WEFT_N_LANE]; /* of lanes with ops, and of lane gpu */
  struct weft_gpu_scratch scratch[WEFT_N_LANE]; /* shared by its kernels, one at a time */

  /* Pinned memory that host and device share: control, tokens, results. */
  uint8_t *mailbox;
  void *control;  /* on the device */
  uint32_t *slot; /* by op that copies to or from the mailbox: the offset */
  uint64_t mailbox_bytes;
  struct weft_watch watch;

  uint32_t n_unit, first_unit[WEFT_N_LANE + 1]; /* of each lane */
  struct gpu_unit *unit, end;                  /* end: the end of the step */
  uint32_t *unit_of;                            /* op -> unit */
  uint32_t *transfer[8], n_transfer[8];         /* by kind of transfer, then k: ops */
  uint32_t *transfer_of;                        /* op -> k */
  weft_gpu_event **taken;                      /* by receive: the sender may continue */

  weft_gpu_comm *comm[WEFT_N_GROUP];
  weft_gpu_comm *pair[2][2]; /* [stage before][way back]: of transfers posted one by one */
  weft_gpu_event *tail;      /* the end of the newest step */
  uint8_t *issued;            /* by op */
  struct weft_team *team;     /* runs its CPU kernels; NULL: one thread does */
};

/*   constant          word                    operands */
#define GPU_CALL_LIST(X)                                                                          \
  X (GPU_RECORD, "record", "event on stream")                                                     \
  X (GPU_WAIT, "wait", "stream for event")                                                        \
  X (GPU_STAMP, "stamp", "timed event on stream")                                                 \
  X (GPU_COPY, "copy", "copies[at]")                                                              \
  X (GPU_FILL, "fill", "copies[at] without a source: bytes that are NaN")                          \
  X (GPU_KERNEL, "kernel", "n kernels from kernels[at] on")                                       \
  X (GPU_HOST, "host", "n kernels of the CPU from host[at] on")                                   \
  X (GPU_JOIN, "join", "joins[at]")                                                               \
  X (GPU_EXCHANGE, "exchange", "exchanges[at]")                                                   \
  X (GPU_GROUP_START, "group_start", "")                                                          \
  X (GPU_GROUP_END, "group_end", "")                                                              \
  X (GPU_COLLECTIVE, "collective", "collectives[at]")                                             \
  X (GPU_SEND, "send", "transfers[at]")                                                           \
  X (GPU_RECV, "recv", "transfers[at]")                                                           \
  X (GPU_MARK, "mark", "progress of a lane: n")                                                   \
  X (GPU_READ, "read", "the host waits for an event, after which it has the counts")              \
  X (GPU_COUNTED, "counted", "sends and receives of counted[at]")                                 \
  X (GPU_TOTAL, "total", "the sum of the rows that counted[at] has received")
enum gpu_call_kind { GPU_CALL_LIST (WEFT_WORD_ID) GPU_N_CALL };
extern const char *const gpu_call_words[];

struct gpu_call {
  uint8_t kind, lane;
  uint32_t row, op; /* op WEFT_NO_OP: of the whole step */
  uint32_t at, n;
  weft_gpu_stream *stream;
  weft_gpu_event *event;
};

/* An exchange whose counts the host reads when it issues it.  Rows are sent from `from` on, and
 * received from `to` on, in the order of the members. */
struct gpu_counted {
  weft_gpu_comm *comm;
  enum weft_op_kind kind;
  uint32_t n, me, each;        /* members, this one, counts for each */
  const int64_t *counts, *got; /* in the mailbox; got: of all_to_all_v */
  uint8_t *from, *to;
  uint64_t from_rows, to_rows; /* capacity */
  uint64_t columns, row;       /* of one row: elements, bytes */
  uint8_t dtype;

  /* Of reduce_scatter_v: the rows of the other members, each in a part of the scratch; all
   * terms. */
  uint8_t *parts;
  const void **term;
  struct weft_gpu_join *sum;
};

/* A kernel that the CPU runs, for which a stream of the GPU waits. */
struct gpu_host_work {
  struct weft_kernel kernel;
  struct weft_team *team;
};

/* The calls that one thread of the host makes in a step: of all ranks that share a GPU, or of one
 * rank with its own. */
struct gpu_script {
  struct gpu_machine *m;
  uint32_t row;                                  /* of the first rank */
  GArray *call;                                  /* struct gpu_call */
  GArray *kernel, *copy, *collective, *transfer; /* struct weft_kernel, weft_gpu_copy ... */
  GArray *host;                                  /* struct gpu_host_work */
  GPtrArray *join, *exchange, *counted;          /* struct weft_gpu_join *, owned */
  uint8_t *played;                               /* by call: made in this step */
  _Atomic uint32_t n_played;                     /* for messages about a late step */
  weft_gpu_event *start, *zero; /* zero: a timed event there, if times are asked for */
  weft_gpu_graph *graph; /* of a whole step */

  pthread_t thread;
  gboolean has_thread, failed;
  GError *error;
};

/* Begin and end of an op, if times are asked for: events; of traced times, the unit alone. */
struct gpu_stamp {
  uint32_t row, op, unit;
  weft_gpu_event *begin, *end;
};

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
  gboolean shared; /* virtual ranks */
  gboolean apart;  /* transfers between stages are posted one by one */
  uint32_t n, n_script;
  uint32_t first, n_here; /* rows of this process */
  struct gpu_rank *rank;
  struct gpu_script *script;
  GPtrArray *event;        /* all, owned */
  GArray *stamp;           /* struct gpu_stamp */
  GPtrArray *comm;         /* all, owned */
  GArray *scaled, *window; /* struct gpu_scaled, gpu_window */
  gboolean traced;         /* times are those of kernels */
  const char *remark;      /* why they are not, or NULL; interned */
  uint32_t n_unit;         /* units that have been stamped */
  _Atomic gboolean broken; /* a call of any thread has failed: the machine can only be closed */
  gboolean begun;          /* a step is under way */
  uint64_t left;           /* free memory of the first GPU, when last measured */
  uint64_t reserved[WEFT_N_RESERVED];
  uint64_t steps;          /* that have begun */
  gint64 since;            /* when the step, or the opening, began: microseconds */

  pthread_mutex_t lock; /* guards what follows, for scripts with threads */
  pthread_cond_t changed;
  uint64_t round;
  uint32_t n_busy;
  gboolean closing;
  struct gpu_script *blame; /* the first that has failed */
};

/* A unit of a rank. */
struct gpu_rank_unit {
  struct gpu_rank *r;
  struct gpu_unit *u;
};

#define GPU_CALL(m, name, ...) ((m)->calls->name ((m)->calls->self, ##__VA_ARGS__))

/* TRUE when a call said nothing; else its message becomes an error about `what`, a printf
 * format. */
gboolean gpu_ok (struct gpu_machine *m, const char *said, GError **error, const char *what, ...)
    G_GNUC_PRINTF (4, 5);

/* Chooses the GPU of a rank for the calls that follow. */
gboolean gpu_choose (struct gpu_rank *r, GError **error);

/* Whether a step leaves an op out: those of backward and update in an evaluation. */
gboolean gpu_skips (const struct gpu_rank *r, uint32_t op);

/* An event of the rank's GPU, which the machine closes. */
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

/* Op i of a unit. */
static inline uint32_t
gpu_unit_op (const struct gpu_rank *r, const struct gpu_unit *u, uint32_t i)
{
  return r->p->lane_ops[u->lane][u->pos + i];
}

/* Bytes that a value of `bytes` takes in the mailbox. */
static inline uint64_t
gpu_slot_bytes (uint64_t bytes)
{
  return (bytes + 63) / 64 * 64;
}

/* Bytes of an operand of a copy to or from the mailbox; 0: it is absent. */
static inline uint64_t
gpu_mail_bytes (const struct gpu_rank *r, uint32_t op, uint32_t operand)
{
  uint32_t buf = weft_bind_use (&r->bind, op, operand)->buf;
  return buf == WEFT_NO_BUF ? 0 : r->p->buf[buf].bytes;
}

/* The word in which a lane counts its units that have ended. */
static inline uint32_t *
gpu_progress (const struct gpu_rank *r, uint32_t lane)
{
  uint8_t *words = r->mailbox + gpu_slot_bytes (sizeof (struct weft_control));
  return (uint32_t *) (void *) words + lane;
}
