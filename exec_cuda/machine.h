/* machine.h - the inside of the CUDA executor.
 *
 *   arena.c    memory of a rank, streams, what the host and the device tell each other
 *   order.c    units of a rank, which of them wait for which, and nothing superfluous
 *   issue.c    the order in which all ranks' units are issued: a meeting when all members are there
 *   emit.c     what one unit is in calls
 *   meet.c     what a collective is: NCCL's, or moves between ranks that share a GPU
 *   counted.c  exchanges between GPUs whose sizes the host learns in the step
 *   comms.c    communicators
 *   room.c     memory that is not the plan's
 *   watch.c    waiting for other ranks, and no longer than agreed
 *   traced.c   times of ops by those of their kernels
 *   step.c     a step: plays the calls, or the graph that they were captured into
 *   exec_cuda.c the contract
 *
 * A plan is compiled once, when the executor opens, into scores: lists of calls with all their
 * pointers. A step plays them.  Whatever order the ops of all ranks have is decided then, from the
 * plan alone. */
#pragma once
#include "core/exec/feed.h"
#include "exec_cuda/exec_cuda.h"
#include "kernels/bind.h"
#include <pthread.h>

struct cuda_machine;

/* One column more than lanes: the beginning of the step, which all lanes come after. */
#define CUDA_START WEFT_N_LANE
#define CUDA_COLUMNS (WEFT_N_LANE + 1)
#define CUDA_NO_UNIT 0xffffffffu

/* What is issued at once: an op, or those of one launch. */
struct cuda_unit {
  uint8_t lane;
  gboolean awaited, idle;        /* idle: nothing on a device */
  uint32_t index;                /* on its lane, counted in units */
  uint32_t pos, n;               /* ops: places on the lane */
  uint32_t need[CUDA_COLUMNS];   /* as the plan says: 1 + index of the last unit of a lane that it
                                    comes after; 0: none */
  uint32_t stands[CUDA_COLUMNS]; /* what to come after it means */
  uint32_t wait[CUDA_COLUMNS];   /* the same without what the others of it, or the lane, imply */
  uint32_t before[CUDA_COLUMNS]; /* units of each lane that have ended when it starts */
  uint32_t told;                 /* 1 + index of the unit of lane d2h that brings the host the counts
                                    of what it exchanges; 0: none */
  weft_cuda_event *event;        /* recorded after it, where somebody waits; not owned */
  gboolean posted; /* of transfers between ranks that share a GPU, while they are issued */
  weft_cuda_event *arrived, *begin;
};

struct cuda_rank {
  struct cuda_machine *m;
  const weft_program *p;
  uint32_t row, rank, device;
  gboolean here; /* in this process; of others there is the order of their units at most */
  weft_bind bind;
  gboolean origin;                       /* the step begins on its gpu lane */
  weft_cuda_stream *stream[WEFT_N_LANE]; /* of lanes with ops, and of gpu */
  struct weft_cuda_scratch scratch[WEFT_N_LANE]; /* its kernels share it, one after the other */

  /* What the host and the device tell each other: control, tokens, numbers; pinned. */
  uint8_t *mailbox;
  void *control;  /* on the device */
  uint32_t *slot; /* where in the mailbox, of each op that copies to or from it */
  uint64_t mailbox_bytes;
  struct weft_watch watch;

  uint32_t n_unit, first_unit[WEFT_N_LANE + 1]; /* of each lane */
  struct cuda_unit *unit, end;                  /* end: what the end of the step comes after */
  uint32_t *unit_of;                            /* op -> unit */
  uint32_t *transfer[8], n_transfer[8];         /* by kind of transfer, then k: ops */
  uint32_t *transfer_of;                        /* op -> k */
  weft_cuda_event **taken;                      /* by receive: who sent it may go on */

  weft_cuda_comm *comm[WEFT_N_GROUP];
  weft_cuda_comm *pair[2][2]; /* [stage before][way back]: of transfers posted one by one */
  weft_cuda_event *tail;      /* the end of the newest step */
  uint8_t *issued;            /* by op */
  struct weft_team *team;     /* that shares its kernels of the CPU; NULL: there are none, or one thread */
};

/*   constant          word                    what is played */
#define CUDA_CALL_LIST(X)                                                                          \
  X (CUDA_RECORD, "record", "event on stream")                                                     \
  X (CUDA_WAIT, "wait", "stream for event")                                                        \
  X (CUDA_STAMP, "stamp", "timed event on stream")                                                 \
  X (CUDA_COPY, "copy", "copies[at]")                                                              \
  X (CUDA_FILL, "fill", "copies[at], whose source is nothing: bytes that are no number")            \
  X (CUDA_KERNEL, "kernel", "n kernels from kernels[at] on")                                       \
  X (CUDA_HOST, "host", "n kernels of the CPU from host[at] on")                                   \
  X (CUDA_JOIN, "join", "joins[at]")                                                               \
  X (CUDA_EXCHANGE, "exchange", "exchanges[at]")                                                   \
  X (CUDA_GROUP_START, "group_start", "")                                                          \
  X (CUDA_GROUP_END, "group_end", "")                                                              \
  X (CUDA_COLLECTIVE, "collective", "collectives[at]")                                             \
  X (CUDA_SEND, "send", "transfers[at]")                                                           \
  X (CUDA_RECV, "recv", "transfers[at]")                                                           \
  X (CUDA_MARK, "mark", "progress of a lane: n")                                                   \
  X (CUDA_READ, "read", "the host waits for an event, and then knows counts")                      \
  X (CUDA_COUNTED, "counted", "sends and receives of counted[at]")                                 \
  X (CUDA_TOTAL, "total", "the sum of what counted[at] has received")
enum cuda_call_kind { CUDA_CALL_LIST (WEFT_WORD_ID) CUDA_N_CALL };
extern const char *const cuda_call_words[];

struct cuda_call {
  uint8_t kind, lane;
  uint32_t row, op; /* op WEFT_NO_OP: of the step as a whole */
  uint32_t at, n;
  weft_cuda_stream *stream;
  weft_cuda_event *event;
};

/* An exchange by counts that the host reads when it is its turn.  Rows are sent from `from` on, and
 * received from `to` on, in the order of the members: */
struct cuda_counted {
  weft_cuda_comm *comm;
  enum weft_op_kind kind;
  uint32_t n, me, each;        /* members, this one, counts for each */
  const int64_t *counts, *got; /* in the mailbox; got: of all_to_all_v */
  uint8_t *from, *to;
  uint64_t from_rows, to_rows; /* that there is room for */
  uint64_t columns, row;       /* of one: elements, bytes */
  uint8_t dtype;

  /* Of reduce_scatter_v: every other member's rows for this one, each to a part of the scratch, and all
   * of them as terms. */
  uint8_t *parts;
  const void **term;
  struct weft_cuda_join *sum;
};

/* A kernel of the CPU, which the GPU's stream waits for. */
struct cuda_host_work {
  struct weft_kernel kernel;
  struct weft_team *team;
};

/* The calls of a step by one thread of the host: of all ranks that share a GPU, or of one that has
 * its own. */
struct cuda_score {
  struct cuda_machine *m;
  uint32_t row;                                  /* the first of them, where it begins */
  GArray *call;                                  /* struct cuda_call */
  GArray *kernel, *copy, *collective, *transfer; /* struct weft_kernel, weft_cuda_copy ... */
  GArray *host;                                  /* struct cuda_host_work */
  GPtrArray *join, *exchange, *counted;          /* struct weft_cuda_join *, owned */
  uint8_t *played;                               /* by call, in the step under way */
  _Atomic uint32_t n_played;                     /* which scores that wait tell of each other */
  weft_cuda_event *start, *zero; /* zero: when that was, where times are asked for */
  weft_cuda_graph *graph; /* of a whole step */

  pthread_t thread;
  gboolean has_thread, failed;
  GError *error;
};

/* Begin and end of an op, where times are asked for: events, or what the GPU tells of all ops of a unit. */
struct cuda_stamp {
  uint32_t row, op, unit;
  weft_cuda_event *begin, *end;
};

struct cuda_scaled {
  weft_cuda_comm *comm;
  uint8_t dtype;
  uint64_t divisor;
  int scaled;
};

struct cuda_window {
  weft_cuda_comm *comm;
  weft_cuda_window *window;
};

struct cuda_machine {
  weft_exec base;
  struct weft_exec_options options;
  const struct weft_cuda_calls *calls;
  gboolean shared; /* virtual ranks */
  gboolean apart;  /* transfers are posted one by one */
  uint32_t n, n_score;
  uint32_t first, n_here; /* rows of this process */
  struct cuda_rank *rank;
  struct cuda_score *score;
  GPtrArray *event;        /* all that were opened */
  GArray *stamp;           /* struct cuda_stamp */
  GPtrArray *comm;         /* likewise */
  GArray *scaled, *window; /* struct cuda_scaled, cuda_window */
  gboolean traced;         /* times are those of kernels */
  const char *remark;      /* why they are not; interned */
  uint32_t n_unit;         /* that have been stamped */
  _Atomic gboolean broken; /* a call has failed, of any thread: it can only be closed */
  gboolean begun;          /* a step is under way */
  uint64_t left;           /* of the first GPU's memory, when somebody looked last */
  uint64_t reserved[WEFT_N_RESERVED];
  uint64_t steps;          /* begun so far */
  gint64 since;            /* when the step, or the opening, began: microseconds */

  pthread_mutex_t lock; /* of what follows: scores with a thread of their own */
  pthread_cond_t changed;
  uint64_t round;
  uint32_t n_busy;
  gboolean closing;
  struct cuda_score *blame; /* the first that has failed: others wait in vain */
};

#define CUDA_CALL(m, name, ...) ((m)->calls->name ((m)->calls->self, ##__VA_ARGS__))

/* What a call said, as an error about `what`, a printf format; TRUE when it said nothing. */
gboolean cuda_ok (struct cuda_machine *m, const char *said, GError **error, const char *what, ...)
    G_GNUC_PRINTF (4, 5);

/* The GPU of a rank, for the calls that follow. */
gboolean cuda_choose (struct cuda_rank *r, GError **error);

/* Whether an op is left out: in an evaluation. */
gboolean cuda_skips (const struct cuda_rank *r, uint32_t op);

static inline struct cuda_score *
cuda_score_of (struct cuda_machine *m, const struct cuda_rank *r)
{
  return &m->score[m->shared ? 0 : r->row - m->first];
}

static inline struct cuda_unit *
cuda_unit_at (const struct cuda_rank *r, uint32_t lane, uint32_t index)
{
  return &r->unit[r->first_unit[lane] + index];
}

static inline uint32_t
cuda_units_of (const struct cuda_rank *r, uint32_t lane)
{
  return r->first_unit[lane + 1] - r->first_unit[lane];
}

/* The first op of a unit, and one of them. */
static inline uint32_t
cuda_unit_op (const struct cuda_rank *r, const struct cuda_unit *u, uint32_t i)
{
  return r->p->lane_ops[u->lane][u->pos + i];
}

/* Bytes that a number or the tokens of `bytes` take in the mailbox. */
static inline uint64_t
cuda_slot_bytes (uint64_t bytes)
{
  return (bytes + 63) / 64 * 64;
}

/* Bytes of an operand that a copy brings in or out; 0: it is absent. */
static inline uint64_t
cuda_mail_bytes (const struct cuda_rank *r, uint32_t op, uint32_t operand)
{
  uint32_t buf = weft_bind_use (&r->bind, op, operand)->buf;
  return buf == WEFT_NO_BUF ? 0 : r->p->buf[buf].bytes;
}

/* The word by which a lane says how far it has come: units of it that are over. */
static inline uint32_t *
cuda_progress (const struct cuda_rank *r, uint32_t lane)
{
  uint8_t *words = r->mailbox + cuda_slot_bytes (sizeof (struct weft_control));
  return (uint32_t *) (void *) words + lane;
}

/* arena.c */
gboolean cuda_arena_open (struct cuda_rank *r, GError **error);
void cuda_arena_close (struct cuda_rank *r);
void cuda_arena_pretend (struct cuda_rank *r); /* of another process: addresses without memory */
void cuda_arena_fill (struct cuda_rank *r); /* the mailbox, before a step */
gboolean cuda_arena_read (struct cuda_rank *r, struct weft_metrics *metrics, GError **error);

/* order.c */
void cuda_order_open (struct cuda_rank *r);
void cuda_order_close (struct cuda_rank *r);

/* The row and op at the other end of a transfer; FALSE where nobody is. */
gboolean cuda_transfer_peer (const struct cuda_rank *r, uint32_t op, uint32_t *row, uint32_t *peer);

/* issue.c: all scores. */
gboolean cuda_issue_all (struct cuda_machine *m, GError **error);

/* emit.c: a unit is its waits, itself, and its record. */
struct cuda_there {
  struct cuda_rank *r;
  struct cuda_unit *u;
};
gboolean cuda_emit_start (struct cuda_score *s, GError **error);
gboolean cuda_emit_local (struct cuda_there at, GError **error);
gboolean cuda_emit_launch (struct cuda_there at, GError **error); /* over communicators */

/* Of ranks that share a GPU: a collective of all its members; a group of transfers that has come,
 * and one whose other ends have all come. */
gboolean cuda_emit_collective (const struct cuda_there *member, uint32_t n, GError **error);
gboolean cuda_emit_post (struct cuda_there at, GError **error);
gboolean cuda_emit_leave (struct cuda_there at, GError **error);
gboolean cuda_emit_end (struct cuda_score *s, GError **error);
gboolean cuda_event_open (struct cuda_rank *r, gboolean timed, weft_cuda_event **out,
                          GError **error);
struct cuda_call *cuda_emit (struct cuda_there at, uint32_t op, enum cuda_call_kind kind);

/* meet.c: calls of one collective op of a unit, without waits. */
void cuda_meet_shared (const struct cuda_there *member, uint32_t n, uint32_t i);
gboolean cuda_meet_nccl (struct cuda_there at, uint32_t op, GError **error);
gboolean cuda_meet_can (const struct cuda_machine *m, const weft_program *p, GError **error);

/* counted.c: between ranks with a GPU each, of as many rows as counts say, which a copy of the plan has
 * brought to the host. */
gboolean cuda_is_counted (enum weft_op_kind kind);
uint32_t cuda_counted_source (const weft_program *p, uint32_t op); /* that copy; or WEFT_NO_OP */
uint64_t cuda_counted_scratch (const struct cuda_rank *r, uint32_t op);
void cuda_counted_emit (struct cuda_there at, uint32_t op);
void cuda_counted_end (struct cuda_there at, uint32_t op); /* when the launch has been given */
const char *cuda_counted_send (const struct cuda_score *s, const struct cuda_call *call);
const char *cuda_counted_sum (const struct cuda_score *s, const struct cuda_call *call);
void cuda_counted_free (void *counted);

/* comms.c */
gboolean cuda_comms_open (struct cuda_machine *m, GError **error);
void cuda_comms_close (struct cuda_machine *m);
gboolean cuda_comms_look (struct cuda_machine *m, GError **error); /* for errors since */
weft_cuda_comm *cuda_comm_of (const struct cuda_rank *r, const struct weft_op *row);
uint32_t cuda_comm_peer (const struct cuda_rank *r, const struct weft_op *row); /* of a transfer */
gboolean cuda_scaled_of (struct cuda_rank *r, weft_cuda_comm *comm, const struct weft_shape *shape,
                         int *out, GError **error); /* of premul_sum */

/* watch.c: for what is waited, and how long it may take from m->since on; 0: for ever. */
struct cuda_vigil {
  const char *what;
  double seconds;
  gulong nap;      /* 0 at first */
  gboolean closely; /* naps stay short */
};

/* Between two looks at what is waited for; FALSE: the time is up, something has gone wrong with a
 * communicator, or another process is gone. */
gboolean cuda_vigil_nap (struct cuda_machine *m, struct cuda_vigil *v, GError **error);
gboolean cuda_vigil_event (struct cuda_machine *m, struct cuda_vigil *v, weft_cuda_event *event,
                           GError **error); /* until it has come */
gboolean cuda_vigil_comm (struct cuda_machine *m, struct cuda_vigil *v, weft_cuda_comm *comm,
                          GError **error); /* until it is ready */

/* step.c */
gboolean cuda_step_open (struct cuda_machine *m, GError **error);
void cuda_step_close (struct cuda_machine *m);
gboolean cuda_step_run (struct cuda_machine *m, GError **error);  /* what has been issued */
gboolean cuda_step_wait (struct cuda_machine *m, GError **error); /* for the end of it */

/* traced.c: begins to ask the GPU for times of kernels, or says why not; and fills in those of a step. */
const char *cuda_traced_open (struct cuda_machine *m);
void cuda_traced_forget (struct cuda_machine *m); /* what it has done between steps */
gboolean cuda_traced_fill (struct cuda_machine *m, weft_timeline *t, GError **error);

/* room.c: what has gone from the first GPU's memory since the last look is `who`'s; of what has gone when
 * scratch is looked at, all but that is the plan's own.  And what was found, for a timeline. */
gboolean cuda_room_look (struct cuda_machine *m, enum weft_reserved who, GError **error);
void cuda_room_tell (const struct cuda_machine *m, weft_timeline *t);
