/* calls.h - every call that the GPU executor makes to a vendor's runtime, kernels and collective
 * library.
 *
 * The executor includes no header of a vendor: it receives a table of these calls.
 * cuda/module/calls_cuda.c implements the table with the CUDA runtime and NCCL; the test devices
 * are tables too.  A call returns NULL on success, else a message that stays valid until the next
 * call of the same thread.
 *
 * The first argument is the table's `self`.  Calls on a stream only enqueue work, and may be
 * captured into a graph.  Calls whose description contains "waits" block; they are never made
 * inside a step. */
#pragma once
#include "core/program/program.h"
#include "exec_gpu/shared.h"
#include "kernels/kernel.h"

typedef struct weft_gpu_stream weft_gpu_stream;
typedef struct weft_gpu_event weft_gpu_event;
typedef struct weft_gpu_graph weft_gpu_graph;
typedef struct weft_gpu_comm weft_gpu_comm;
typedef struct weft_gpu_window weft_gpu_window;

struct weft_gpu_device {
  char name[256];
  /* bytes of device memory; bytes of device memory that no program has allocated */
  uint64_t bytes, free;
  uint32_t sms;
  uint32_t major, minor; /* compute capability */
};

enum weft_gpu_way { WEFT_GPU_TO_DEVICE, WEFT_GPU_TO_HOST, WEFT_GPU_ON_DEVICE };

struct weft_gpu_copy {
  enum weft_gpu_way way;
  void *to;
  const void *from;
  uint64_t bytes;
};

/* Memory for intermediate results of the kernels of one stream. */
struct weft_gpu_scratch {
  void *at;
  uint64_t bytes;
};

#define WEFT_GPU_ID_BYTES 128
struct weft_gpu_id {
  char bytes[WEFT_GPU_ID_BYTES];
};

struct weft_gpu_member {
  const struct weft_gpu_id *id;
  uint32_t n, rank;
  uint32_t most_ctas; /* maximum number of SMs for kernels of the communicator; 0: no limit */
};

/* `n` counts elements as NCCL and RCCL do: the elements of the whole tensor for all_reduce and
 * broadcast, the elements of one member for the other collectives. */
struct weft_gpu_collective {
  /* kind of collective: all_reduce, reduce_scatter, all_gather, all_to_all or broadcast */
  enum weft_op_kind kind;
  weft_gpu_comm *comm;
  const void *from;
  void *to;
  uint64_t n;
  uint8_t dtype, reduce;
  uint32_t root;
  /* for the reduction premul_sum: the library's reduction object, made by scaled_open() */
  int scaled;
};

struct weft_gpu_transfer {
  weft_gpu_comm *comm;
  void *data;
  uint64_t n;
  uint8_t dtype;
  uint32_t peer; /* number of the peer within the communicator */
};

/* A kernel, a copy or a fill that a GPU has executed. */
struct weft_gpu_activity {
  /* the fields row and op are valid, because the launching thread had called about() */
  gboolean keyed;
  uint32_t row, op;
  const char *name;    /* interned or static string, which is never freed */
  uint64_t begin, end; /* nanoseconds, by one clock for all GPUs */
};
typedef void (*weft_gpu_take) (void *user, const struct weft_gpu_activity *a);

/* A library as the loader resolved it, or why it cannot be used. */
struct weft_gpu_library {
  const char *name, *version;
  const char *path;    /* NULL: linked statically, or not found */
  const char *missing; /* what the library lacks, or why it was not loaded; NULL: nothing */
};
typedef void (*weft_gpu_take_library) (void *user, const struct weft_gpu_library *library);

/* Columns: name of the call, parameters after `self`, description. */
#define WEFT_GPU_CALL_LIST(X)                                                                      \
  X (devices, (void *self, uint32_t *n), "number of GPUs")                                         \
  X (describe, (void *self, uint32_t device, struct weft_gpu_device *out),                         \
     "describes a GPU and makes it the GPU of this thread")                                        \
  X (choose, (void *self, uint32_t device), "sets the GPU for the next calls of this thread")      \
  X (about, (void *self, uint32_t row, uint32_t op),                                               \
     "sets the op of the next calls of this thread, for traces; WEFT_NO_OP: the whole step")       \
  X (alloc, (void *self, enum weft_pool pool, uint64_t bytes, void **out),                         \
     "allocates an arena: device memory, symmetric device memory or pinned host memory")           \
  X (release, (void *self, enum weft_pool pool, void *at), "frees an arena")                       \
  X (stream_open, (void *self, gboolean urgent, weft_gpu_stream **out),                            \
     "urgent: kernels on it have priority, for communication")                                     \
  X (stream_close, (void *self, weft_gpu_stream *stream), "")                                      \
  X (event_open, (void *self, gboolean timed, weft_gpu_event **out), "")                           \
  X (event_close, (void *self, weft_gpu_event *event), "")                                         \
  X (record, (void *self, weft_gpu_event *event, weft_gpu_stream *stream),                         \
     "the event completes when all work enqueued on the stream so far has completed")              \
  X (stamp, (void *self, weft_gpu_event *event, weft_gpu_stream *stream),                          \
     "records a timed event for which no stream waits; on a captured stream: its time is that of " \
     "the newest run of the graph")                                                                \
  X (wait, (void *self, weft_gpu_stream *stream, weft_gpu_event *event),                           \
     "work enqueued on the stream from now on runs after the newest record of the event")          \
  X (copy, (void *self, const struct weft_gpu_copy *copy, weft_gpu_stream *stream), "")            \
  X (fill, (void *self, void *at, uint8_t byte, uint64_t bytes, weft_gpu_stream *stream),          \
     "sets all bytes to one value")                                                                \
  X (kernel, (void *self, const struct weft_kernel *k, uint32_t n,                                 \
              const struct weft_gpu_scratch *scratch, weft_gpu_stream *stream),                    \
     "launches the kernels of one op; operands and control are in device memory")                  \
  X (host, (void *self, void (*run) (void *data), void *data, weft_gpu_stream *stream),            \
     "runs a host function, which must not make calls of this table")                              \
  X (mark, (void *self, uint32_t *word, uint32_t value, weft_gpu_stream *stream),                  \
     "writes a word of pinned memory: the progress of the stream")                                 \
  X (join, (void *self, const struct weft_gpu_join *join, weft_gpu_stream *stream), "")            \
  X (exchange, (void *self, const struct weft_gpu_exchange *x, weft_gpu_stream *stream), "")       \
  X (comm_id, (void *self, struct weft_gpu_id *out), "the id of a new communicator")               \
  X (comm_open, (void *self, const struct weft_gpu_member *member, weft_gpu_comm **out),           \
     "begins to open a communicator; it is open when comm_ready() returns TRUE")                   \
  X (comm_split, (void *self, weft_gpu_comm *parent, int color, const struct weft_gpu_member *m,   \
                  weft_gpu_comm **out),                                                            \
     "begins to open a communicator of the members with one color, ordered by m->rank; -1: none. " \
     "All members of the parent call it; until it is done, the parent is not ready")               \
  X (comm_ready, (void *self, weft_gpu_comm *comm, gboolean *ready),                               \
     "whether all calls so far have taken effect; returns errors found since")                     \
  X (comm_finish, (void *self, weft_gpu_comm *comm), "begins to close; comm_close() when ready")   \
  X (comm_close, (void *self, weft_gpu_comm *comm), "")                                            \
  X (comm_abort, (void *self, weft_gpu_comm *comm), "closes at once, also during a call")          \
  X (window_open, (void *self, weft_gpu_comm *comm, void *at, uint64_t bytes, gboolean symmetric,  \
                   weft_gpu_window **out),                                                         \
     "begins to register an arena with a communicator; symmetric: all members register arenas "    \
     "with equal offsets and sizes")                                                               \
  X (window_close, (void *self, weft_gpu_comm *comm, weft_gpu_window *window),                     \
     "comm NULL: the communicator has been aborted")                                               \
  X (scaled_open, (void *self, weft_gpu_comm *comm, enum weft_dtype dtype, double factor,          \
                   int *out),                                                                      \
     "creates a reduction: the sum of the members' values times a factor")                         \
  X (scaled_close, (void *self, weft_gpu_comm *comm, int scaled), "")                              \
  X (group_start, (void *self),                                                                    \
     "communication until group_end is one launch, enqueued when communicators are ready")         \
  X (group_end, (void *self), "")                                                                  \
  X (collective, (void *self, const struct weft_gpu_collective *c, weft_gpu_stream *stream), "")   \
  X (send, (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream), "")           \
  X (recv, (void *self, const struct weft_gpu_transfer *t, weft_gpu_stream *stream), "")           \
  X (capture_start, (void *self, weft_gpu_stream *stream),                                         \
     "calls on the stream, and on streams that wait for it, are recorded, not executed")           \
  X (capture_end, (void *self, weft_gpu_stream *stream, weft_gpu_graph **out), "blocks")           \
  X (graph_run, (void *self, weft_gpu_graph *graph, weft_gpu_stream *stream), "")                  \
  X (graph_close, (void *self, weft_gpu_graph *graph), "")                                         \
  X (query, (void *self, weft_gpu_event *event, gboolean *done), "whether the event is complete")  \
  X (elapsed, (void *self, weft_gpu_event *from, weft_gpu_event *to, double *seconds),             \
     "seconds between two timed events that are complete")                                         \
  X (finish, (void *self, weft_gpu_stream *stream), "waits until the stream is idle")

struct weft_gpu_calls {
  void *self;

  /* Whether the device has a kernel for an op. */
  gboolean (*has_kernel) (void *self, enum weft_op_kind kind);

  /* Bytes of scratch that a launch of a kernel needs. */
  uint64_t (*scratch) (void *self, const struct weft_kernel *k);

  /* Whether the vendor's library executes a kernel that requests fused attention.  NULL: never. */
  gboolean (*fuses) (void *self, const struct weft_kernel *k);
  gboolean canonical; /* TRUE: kernels add in canonical order, and loss and norm are exact sums */

  /* Chooses the algorithms of n kernels and loads their code, before the first step.  May wait.
   * Does not access the operands of the kernels.  NULL: there is nothing to choose. */
  const char *(*prepare) (void *self, const struct weft_kernel *k, uint32_t n,
                          const struct weft_gpu_scratch *scratch, weft_gpu_stream *stream);

  /* Starts to record the kernels, copies and fills that GPUs execute.  NULL: not supported. */
  const char *(*trace_open) (void *self);

  /* Calls take() for every record that has ended since the last call, ordered by begin.  *lost is
   * the number of lost records.  NULL if trace_open is NULL. */
  const char *(*trace_take) (void *self, weft_gpu_take take, void *user, uint64_t *lost);

  /* Bytes of free memory of the chosen GPU, and of all its memory.  NULL: not supported. */
  const char *(*room) (void *self, uint64_t *left, uint64_t *all);

  /* Calls take() for every library behind the calls, for reports.  NULL: not supported. */
  void (*libraries) (void *self, weft_gpu_take_library take, void *user);

#define WEFT_GPU_CALL_POINTER(name, parameters, doc) const char *(*name) parameters;
  WEFT_GPU_CALL_LIST (WEFT_GPU_CALL_POINTER)
#undef WEFT_GPU_CALL_POINTER
};
