/* calls.h - every call of a runtime that the CUDA executor makes, and nothing else.
 *
 * The executor knows no header of CUDA: it is handed a table of these calls.  calls_cuda.c makes
 * them of the CUDA runtime and NCCL; a recording device of the tests writes them down.  Every call
 * returns NULL, or what went wrong in words that stay until the next call of the same thread.
 *
 * `self` is the table's own.  Calls on a stream only enqueue; they may be captured into a graph,
 * but for those marked "waits", which are never made inside a step. */
#pragma once
#include "core/program/program.h"
#include "exec_cuda/shared.h"
#include "kernels/kernel.h"

typedef struct weft_cuda_stream weft_cuda_stream;
typedef struct weft_cuda_event weft_cuda_event;
typedef struct weft_cuda_graph weft_cuda_graph;
typedef struct weft_cuda_comm weft_cuda_comm;
typedef struct weft_cuda_window weft_cuda_window;

struct weft_cuda_device {
  char name[256];
  uint64_t bytes, free; /* of its memory; of it, not allocated by anybody */
  uint32_t sms;
  uint32_t major, minor; /* compute capability */
};

enum weft_cuda_way { WEFT_CUDA_TO_DEVICE, WEFT_CUDA_TO_HOST, WEFT_CUDA_ON_DEVICE };

struct weft_cuda_copy {
  enum weft_cuda_way way;
  void *to;
  const void *from;
  uint64_t bytes;
};

/* Where kernels of one stream may leave what they need besides their operands. */
struct weft_cuda_scratch {
  void *at;
  uint64_t bytes;
};

#define WEFT_CUDA_ID_BYTES 128
struct weft_cuda_id {
  char bytes[WEFT_CUDA_ID_BYTES];
};

struct weft_cuda_member {
  const struct weft_cuda_id *id;
  uint32_t n, rank;
  uint32_t most_ctas; /* SMs that its kernels may take; 0: as many as they like */
};

/* Elements are counted as NCCL does: of the whole for all_reduce and broadcast, of one member for
 * the others. */
struct weft_cuda_collective {
  enum weft_op_kind kind; /* all_reduce, reduce_scatter, all_gather, all_to_all, broadcast */
  weft_cuda_comm *comm;
  const void *from;
  void *to;
  uint64_t n;
  uint8_t dtype, reduce;
  uint32_t root;
  int scaled; /* of premul_sum: what scaled_open() gave */
};

struct weft_cuda_transfer {
  weft_cuda_comm *comm;
  void *data;
  uint64_t n;
  uint8_t dtype;
  uint32_t peer; /* in the communicator */
};

/* A kernel, a copy or a fill that a GPU has done. */
struct weft_cuda_activity {
  gboolean keyed;      /* it belongs to what about() was told: */
  uint32_t row, op;
  const char *name;    /* interned, or static */
  uint64_t begin, end; /* nanoseconds, by one clock of all GPUs */
};
typedef void (*weft_cuda_take) (void *user, const struct weft_cuda_activity *a);

/*     call            parameters after self                                     what it does */
#define WEFT_CUDA_CALL_LIST(X)                                                                     \
  X (devices, (void *self, uint32_t *n), "how many there are")                                     \
  X (describe, (void *self, uint32_t device, struct weft_cuda_device *out),                       \
     "what one is; it is chosen")                                                                  \
  X (choose, (void *self, uint32_t device), "the one that further calls of this thread mean")      \
  X (about, (void *self, uint32_t row, uint32_t op),                                               \
     "what further calls of this thread belong to, for traces; op WEFT_NO_OP: the step")           \
  X (alloc, (void *self, enum weft_pool pool, uint64_t bytes, void **out),                         \
     "an arena: of the device, of the device for windows of NCCL, or pinned on the host")          \
  X (release, (void *self, enum weft_pool pool, void *at), "gives it back")                        \
  X (stream_open, (void *self, gboolean urgent, weft_cuda_stream **out),                           \
     "urgent: communication, whose kernels go first")                                              \
  X (stream_close, (void *self, weft_cuda_stream *stream), "")                                     \
  X (event_open, (void *self, gboolean timed, weft_cuda_event **out), "")                          \
  X (event_close, (void *self, weft_cuda_event *event), "")                                        \
  X (record, (void *self, weft_cuda_event *event, weft_cuda_stream *stream),                       \
     "the event is what the stream has been given so far")                                         \
  X (stamp, (void *self, weft_cuda_event *event, weft_cuda_stream *stream),                        \
     "a timed event, for which no stream waits: when the stream comes there; of a captured stream, " \
     "when it does in the newest run of the graph")                                                \
  X (wait, (void *self, weft_cuda_stream *stream, weft_cuda_event *event),                         \
     "what the stream is given from now on comes after the newest record")                         \
  X (copy, (void *self, const struct weft_cuda_copy *copy, weft_cuda_stream *stream), "")          \
  X (fill, (void *self, void *at, uint8_t byte, uint64_t bytes, weft_cuda_stream *stream),         \
     "all bytes the same")                                                                         \
  X (kernel, (void *self, const struct weft_kernel *k, uint32_t n,                                 \
              const struct weft_cuda_scratch *scratch, weft_cuda_stream *stream),                  \
     "n calls of one op's kernel; operands and control are of the device")                         \
  X (host, (void *self, void (*run) (void *data), void *data, weft_cuda_stream *stream),           \
     "a function of the host, which makes no call of this table")                                  \
  X (mark, (void *self, uint32_t *word, uint32_t value, weft_cuda_stream *stream),                 \
     "pinned word = value: how far the stream has come")                                           \
  X (join, (void *self, const struct weft_cuda_join *join, weft_cuda_stream *stream), "")          \
  X (exchange, (void *self, const struct weft_cuda_exchange *x, weft_cuda_stream *stream), "")     \
  X (comm_id, (void *self, struct weft_cuda_id *out), "what the members of a new one agree on")    \
  X (comm_open, (void *self, const struct weft_cuda_member *member, weft_cuda_comm **out),         \
     "begins: comm_ready() says when all members have come")                                       \
  X (comm_split, (void *self, weft_cuda_comm *parent, int color, const struct weft_cuda_member *m, \
                  weft_cuda_comm **out),                                                           \
     "members of one color, by m->rank; -1: none.  Begins likewise, with all members of the "       \
     "parent, which is not ready meanwhile")                                                       \
  X (comm_ready, (void *self, weft_cuda_comm *comm, gboolean *ready),                              \
     "whether all that it was told has been done, or is on its stream; what has gone wrong since") \
  X (comm_finish, (void *self, weft_cuda_comm *comm), "begins to end it: then, ready, it is closed") \
  X (comm_close, (void *self, weft_cuda_comm *comm), "")                                           \
  X (comm_abort, (void *self, weft_cuda_comm *comm), "whatever it was doing")                      \
  X (window_open, (void *self, weft_cuda_comm *comm, void *at, uint64_t bytes, gboolean symmetric, \
                   weft_cuda_window **out),                                                        \
     "an arena is registered with a communicator; symmetric: by all members, whose offsets and "    \
     "sizes are the same.  Begins likewise")                                                        \
  X (window_close, (void *self, weft_cuda_comm *comm, weft_cuda_window *window),                   \
     "comm NULL: that has been aborted")                                                           \
  X (scaled_open, (void *self, weft_cuda_comm *comm, enum weft_dtype dtype, double factor,         \
                   int *out),                                                                      \
     "a sum of what each member has multiplied by a factor")                                       \
  X (scaled_close, (void *self, weft_cuda_comm *comm, int scaled), "likewise")                     \
  X (group_start, (void *self),                                                                    \
     "communication up to the end is one launch, on its streams when communicators are ready")     \
  X (group_end, (void *self), "")                                                                  \
  X (collective, (void *self, const struct weft_cuda_collective *c, weft_cuda_stream *stream), "") \
  X (send, (void *self, const struct weft_cuda_transfer *t, weft_cuda_stream *stream), "")         \
  X (recv, (void *self, const struct weft_cuda_transfer *t, weft_cuda_stream *stream), "")         \
  X (capture_start, (void *self, weft_cuda_stream *stream),                                        \
     "calls on it, and on streams that wait for it, are written down instead of made")             \
  X (capture_end, (void *self, weft_cuda_stream *stream, weft_cuda_graph **out), "waits")          \
  X (graph_run, (void *self, weft_cuda_graph *graph, weft_cuda_stream *stream), "")                \
  X (graph_close, (void *self, weft_cuda_graph *graph), "")                                        \
  X (query, (void *self, weft_cuda_event *event, gboolean *done), "whether it has come to pass")   \
  X (elapsed, (void *self, weft_cuda_event *from, weft_cuda_event *to, double *seconds),           \
     "between two timed events that have")                                                         \
  X (finish, (void *self, weft_cuda_stream *stream), "waits for all that the stream was given")

struct weft_cuda_calls {
  void *self;

  /* Whether the device has a kernel for an op, and the scratch that a call of it needs. */
  gboolean (*has_kernel) (void *self, enum weft_op_kind kind);
  uint64_t (*scratch) (void *self, const struct weft_kernel *k);

  /* Whether a call that is to be fused is done by the vendor's library.  NULL: none ever is. */
  gboolean (*fuses) (void *self, const struct weft_kernel *k);
  gboolean canonical; /* its kernels add in canonical order, and know the exact sums of it */

  /* Finds out, before the first step, how calls of these kernels are done best.  May wait; leaves the
   * memory of their operands alone.  NULL: nothing to find out. */
  const char *(*prepare) (void *self, const struct weft_kernel *k, uint32_t n,
                          const struct weft_cuda_scratch *scratch, weft_cuda_stream *stream);

  /* From now on what GPUs do is written down; gives all that has ended since, and how many records there
   * was no room for.  NULL: nobody can. */
  const char *(*trace_open) (void *self);
  const char *(*trace_take) (void *self, weft_cuda_take take, void *user, uint64_t *lost);

  /* Memory of the GPU that nobody has, and all of it.  NULL: nobody knows. */
  const char *(*room) (void *self, uint64_t *left, uint64_t *all);
#define WEFT_CUDA_CALL_POINTER(name, parameters, doc) const char *(*name) parameters;
  WEFT_CUDA_CALL_LIST (WEFT_CUDA_CALL_POINTER)
#undef WEFT_CUDA_CALL_POINTER
};
