/* recorded_cuda.h - a test double of a GPU that computes nothing and records its calls: those of
 * exec_gpu/calls.h.
 *
 * Device memory is inaccessible to the host: access ends the process. Everything opened must be
 * closed, a group must be ended by the thread that started it, communicators are aborted in one
 * group, and any call can be made to fail. Given the time of kernels, it keeps the clocks of
 * streams. */
#pragma once
#include "core/plan/plan.h"
#include "exec_gpu/calls.h"
#include <pthread.h>

#define RECORDED_ID(name, ...) RECORDED_##name,
enum recorded_kind { WEFT_GPU_CALL_LIST (RECORDED_ID) RECORDED_N };
#undef RECORDED_ID
extern const char *const recorded_words[];

/* A stream, event, communicator, window or graph. */
struct recorded_thing {
  enum recorded_kind kind; /* the call that opened it */
  uint32_t number, device;
  gboolean flag;            /* stream: high priority; event: timed; window: symmetric */
  uint32_t parent, n,
      rank; /* communicator: number of the split of its parent, number of members, rank; window:
             * parent is the number of its communicator + 1 */
  uint32_t ctas;            /* communicator: limit of SMs */
  _Atomic uint32_t looks;   /* polls since its last call */
  int color;
  double clock; /* stream: when its work is done; event: when it was recorded */
};

struct recorded_call {
  enum recorded_kind kind;
  uint32_t device, row, op; /* device, row and op that the calling thread has set by choose() and
                             * about() */
  const struct recorded_thing *stream, *thing; /* thing: event, communicator, graph */
  uint32_t at; /* index of the call's arguments in the list of their kind */
};

struct recorded_arena {
  enum weft_pool pool;
  uint32_t device;
  uint64_t bytes;
  void *at; /* NULL: freed */
};

struct recorded_kernel {
  struct weft_kernel *k;
  uint32_t n;
};

typedef struct recorded_cuda {
  struct weft_gpu_calls calls;
  uint32_t devices;      /* reported device count; default 64 */
  const char *no_kernel; /* an op without kernel, by its word */
  uint64_t fail_at;      /* number of the call that fails, from 1; 0: none */
  gboolean lost_then;    /* all later calls fail too: the GPUs are lost */
  gboolean never_ends;   /* events never complete */
  gboolean never_ready;  /* communicators never become ready */
  struct weft_gpu_id id; /* id of the newest communicator that is not a split */
  /* copies of row counts of this plan to the host return ones */
  const weft_plan *counted;
  uint32_t slow;         /* polls until a communicator is ready */

  /* struct weft_gpu_activity: records returned every time; or NULL */
  GArray *activity;
  uint64_t lost;

  double (*seconds) (const struct weft_kernel *k); /* seconds of a kernel; NULL: nothing takes
                                                    * time */
  uint64_t room;    /* free memory in bytes; only tests set and read it */
  uint32_t n_looks; /* number of queries of free memory; only tests set and read it */
  double stamp, byte; /* seconds per timed event record; per byte of a copy or collective */

  pthread_mutex_t lock;
  pthread_key_t thread; /* thread-local state */
  GPtrArray *threads;
  uint64_t n_calls;
  uint32_t n_things, n_open; /* things opened so far; things, arenas and scaled sums open now */
  GArray *call;              /* struct recorded_call */
  GArray *arena;             /* struct recorded_arena */
  GPtrArray *things;
  GArray *kernel, *copy, *join, *exchange, *collective, *transfer, *mark; /* indexed by `at` */
} recorded_cuda;

recorded_cuda *recorded_cuda_new (void);
void recorded_cuda_free (recorded_cuda *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (recorded_cuda, recorded_cuda_free)

/* From now on the device supports tracing and returns `activity`. This call is not recorded. */
void recorded_cuda_trace (recorded_cuda *device);

/* Forgets recorded calls, but not open handles. */
void recorded_cuda_forget (recorded_cuda *device);

static inline const struct recorded_call *
recorded_call_at (const recorded_cuda *device, uint32_t i)
{
  return &g_array_index (device->call, struct recorded_call, i);
}

/* Device work: a call that neither orders streams nor does bookkeeping. */
gboolean recorded_is_work (enum recorded_kind kind);
