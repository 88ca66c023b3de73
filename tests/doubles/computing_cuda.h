/* computing_cuda.h - a test double of a GPU that computes on the CPU: the calls of
 * exec_gpu/calls.h.
 *
 * Streams queue work as on a GPU. Work runs when the host waits for it: in the order of the calls
 * or, with a seed, in a random order that streams and events allow. Kernel threads run forwards or
 * backwards. Kernels are those of kernels/cuda/ on the emulator; matmuls are plain loops.
 * Communicators wait for all members and check NCCL's rules about buffers; sums are in the order of
 * core/base/fold.h, as for ranks that share a GPU. A captured graph replays its calls, and CUDA's
 * rules of capture are checked.
 *
 * New memory is NaN. Device memory is inaccessible to the host while no work runs: access ends the
 * process. Everything opened must be closed. */
#pragma once
#include "exec_gpu/calls.h"
#include <pthread.h>

/* Kinds of work items on a stream. */
enum computing_kind {
  COMPUTING_RECORD,
  COMPUTING_WAIT,
  COMPUTING_COPY,
  COMPUTING_FILL,
  COMPUTING_KERNEL,
  COMPUTING_HOST,
  COMPUTING_MARK,
  COMPUTING_JOIN,
  COMPUTING_EXCHANGE,
  COMPUTING_LAUNCH, /* the communication calls of one group, as one work item */
};

/* One communication call. In a transfer, `from` (send) or `to` (receive) is the only buffer. */
struct computing_talk {
  enum weft_op_kind kind;
  weft_gpu_stream *on;
  weft_gpu_comm *comm;
  const void *from;
  void *to;
  uint64_t n;
  uint8_t dtype, reduce;
  uint32_t root, peer;
  double factor; /* factor of the reduction premul_sum; 0 for other calls */
};

struct computing_meeting;

struct computing_item {
  enum computing_kind kind;
  uint64_t number; /* number of the work item, in the order in which work items are enqueued */
  weft_gpu_event *event;
  /* Of a record: its number among the records of the event, from 1. Of a wait: the number of the
   * record that it waits for. */
  uint64_t generation;
  struct weft_gpu_copy copy; /* arguments of a copy; a fill uses only `to` and `bytes` */
  /* of a kernel: `n` elements of struct weft_cuda_launch, from g_rc_box_alloc() */
  void *kernel;
  enum weft_op_kind op;
  gboolean fused, same; /* fused: attention by cuDNN; same: results must be deterministic */
  uint32_t n;
  void (*run) (void *data);
  void *data;
  uint32_t *word, value;
  struct weft_gpu_join join;
  struct weft_gpu_exchange exchange;
  GArray *talk; /* communication calls of the work item, struct computing_talk */
  /* collective or transfer of each call in `talk`; NULL until the work item is enqueued */
  GPtrArray *meeting;
  gboolean posted;
};

struct computing_arena {
  void *base;
  uint64_t pages; /* bytes of the arena without the inaccessible page behind it */
  void *at;
  uint64_t bytes;
  enum weft_pool pool;
};

struct weft_rendezvous;
struct weft_cudnn_attention;

typedef struct computing_cuda {
  struct weft_gpu_calls calls;
  uint32_t devices;    /* number of GPUs that the test reports to Weft; default 64 */
  uint8_t warpgroups; /* enum weft_cuda_warpgroups; the devices have none by default */
  GRand *rand;         /* random order of work; NULL: work runs in the order of the calls */
  /* Not NULL: the other ranks of the job are in other processes. This process then has one rank,
   * and work runs in the order of calls. */
  struct weft_rendezvous *peers;
  /* cuDNN double, owned by the caller; NULL: attention runs on Weft's kernels */
  struct weft_cudnn_attention *cudnn;
  uint32_t n_fused;
  const char *said;      /* the first error of a call; all later calls return this error too */
  uint64_t now, n_given; /* number of work items that are done, and of those that were enqueued */
  uint64_t n_seen;       /* value of n_given at the last query of an event */
  gint64 seen;           /* time of the last query that found new work or a completed event */
  uint32_t n_open;
  gboolean open;                         /* TRUE: work is running, so device memory is accessible */
  uint64_t bytes[WEFT_N_POOL];           /* bytes that are allocated now in each memory pool */
  uint64_t n_work[COMPUTING_LAUNCH + 1]; /* number of work items done, for each kind */

  pthread_mutex_t lock;
  pthread_key_t thread; /* key of the state of each calling thread */
  GPtrArray *threads, *stream, *clique;
  GArray *arena, *scaled; /* elements: struct computing_arena; double */
  uint8_t *region;        /* addresses of all device memory; NULL before the first allocation */
  uint64_t used;          /* bytes of the region up to the end of its last arena */
  int empty_file;
} computing_cuda;

/* Returns a device that runs work in the order of the calls (seed 0) or in a random order. */
computing_cuda *computing_cuda_new (uint32_t seed);
void computing_cuda_free (computing_cuda *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (computing_cuda, computing_cuda_free)

/* ------------------------------------------------- for doubles built on this one */

/* Enqueues a copy of the work item `like` on a stream. Returns NULL, or an error. */
typedef const char *computing_adder (void *self, weft_gpu_stream *stream,
                                     const struct computing_item *like);
extern computing_adder *const computing_add;

/* Allocates memory of a pool. The host cannot access device memory until computing_let_host()
 * allows it. */
void *computing_map (computing_cuda *d, enum weft_pool pool, uint64_t bytes);

/* Frees memory and sets *bytes to its size. Returns FALSE if `at` is not allocated memory. */
gboolean computing_unmap (computing_cuda *d, enum weft_pool pool, const void *at, uint64_t *bytes);

/* Unmaps the region of device memory. */
void computing_close_region (computing_cuda *d);

/* touch TRUE: makes all device memory accessible to the host; FALSE: makes it inaccessible. */
void computing_let_host (computing_cuda *d, gboolean touch);

/* Runs a copy or a fill. Only the pages of its operands are accessible meanwhile, unless all device
 * memory is. */
void computing_copy (computing_cuda *d, const struct computing_item *item);

/* Unmaps the region of device memory. */
void computing_close_region (computing_cuda *d);

/* touch TRUE: makes all device memory accessible to the host; FALSE: makes it inaccessible. */
void computing_let_host (computing_cuda *d, gboolean touch);

/* In builds with the address sanitizer: until computing_unfence(), kernels can access only the
 * operands, the control data and the scratch of the given n launches. */
struct weft_cuda_launch;
void computing_fence (const computing_cuda *d, const struct weft_cuda_launch *l, uint32_t n);
void computing_unfence (const computing_cuda *d);

/* Sets the calls for communicators (comm_..., scaled_..., window_...) in the table of calls. */
void computing_comm_calls (struct weft_gpu_calls *calls);
void computing_comm_clear (computing_cuda *d);

/* Returns the communication call for a send or a receive (`kind`). */
struct computing_talk computing_transfer (enum weft_op_kind kind,
                                          const struct weft_gpu_transfer *t);

/* Returns the collective or transfer that a communication call takes part in: the next one of its
 * communicator. */
struct computing_meeting *computing_meet (const struct computing_talk *talk);

/* Counts a participant of a communication; the caller calls it when the communication call is the
 * first item of its stream. The last participant runs the communication. Returns NULL, or an
 * error. */
const char *computing_come (computing_cuda *d, struct computing_meeting *meeting,
                            const struct computing_talk *talk);
gboolean computing_is_over (const struct computing_meeting *meeting);

/* Attention by the double of cuDNN (d->cudnn) in place of exec_gpu/cuda/module/fused.h. The double
 * computes attention of every shape. */
gboolean computing_fused_takes (const computing_cuda *d, const struct weft_kernel *k);
uint64_t computing_fused_scratch (computing_cuda *d, const struct weft_kernel *k);
const char *computing_fused_run (computing_cuda *d, const struct computing_item *item);
