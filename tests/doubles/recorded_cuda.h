/* recorded_cuda.h - a test double of a GPU that records its calls (those of exec_gpu/calls.h) and
 * computes nothing.
 *
 * Device memory is inaccessible to the host: an access ends the process. Everything that was opened
 * must be closed, a group must be ended by the thread that started it, communicators must be
 * aborted in one group, and a test can let any call fail. If the test states the time of kernels,
 * the device keeps the clocks of streams. */
#pragma once
#include "core/plan/plan.h"
#include "exec_gpu/calls.h"
#include <pthread.h>

#define RECORDED_ID(name, ...) RECORDED_##name,
enum recorded_kind { WEFT_GPU_CALL_LIST (RECORDED_ID) RECORDED_N };
#undef RECORDED_ID
extern const char *const recorded_words[];

/* A handle: a stream, event, communicator, window or graph. */
struct recorded_thing {
  enum recorded_kind kind; /* kind of the call that opened the handle */
  uint32_t number, device;
  /* stream: TRUE for high priority; event: TRUE if it records a time; window: TRUE if symmetric */
  gboolean flag;
  uint32_t parent, n,
      /* of a communicator: parent = number of the split of its parent, n = members, rank; of a
       * window: parent = number of its communicator + 1 */
      rank;
  uint32_t ctas;          /* communicator: largest number of SMs (CTAs) that it may use */
  _Atomic uint32_t looks; /* number of polls since the last call on the communicator */
  int color;
  /* In seconds. Of a stream: end of its last work. Of an event: time of its record. */
  double clock;
};

struct recorded_call {
  enum recorded_kind kind;
  /* rank and op of the call, set by choose() and about() of the calling thread */
  uint32_t device, row, op;
  /* stream on which the call was made; event, communicator or graph of the call */
  const struct recorded_thing *stream, *thing;
  uint32_t at; /* index of the call's arguments in the array for its kind */
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
  uint32_t devices;      /* number of GPUs that the test reports to Weft; default 64 */
  const char *no_kernel; /* name of a kind of op without a kernel (weft_op_words); may be NULL */
  uint64_t fail_at;      /* the call with this number, counted from 1, fails; 0: none fails */
  /* TRUE: after the call that fails, all other calls fail too, as if the GPUs were lost */
  gboolean lost_then;
  gboolean never_ends;   /* TRUE: events of the device never complete */
  gboolean never_ready;  /* TRUE: communicators never become ready */
  struct weft_gpu_id id; /* id of the newest communicator that is not a split */
  /* plan whose row counts are set to 1 when they are copied to the host; may be NULL */
  const weft_plan *counted;
  uint32_t slow; /* number of polls until a communicator is ready */

  /* struct weft_gpu_activity: what every call for activities returns; may be NULL */
  GArray *activity;
  uint64_t lost;

  /* seconds of a kernel; NULL: kernels take no time */
  double (*seconds) (const struct weft_kernel *k);
  uint64_t room;    /* free memory in bytes that a query returns */
  uint32_t n_looks; /* number of queries of free memory so far */
  /* seconds that recording a timed event takes; seconds per byte of a copy or collective */
  double stamp, byte;

  pthread_mutex_t lock;
  pthread_key_t thread; /* key of the state of each calling thread */
  GPtrArray *threads;
  uint64_t n_calls;
  /* handles opened so far; handles, arenas and scaled sums that are open now */
  uint32_t n_things, n_open;
  GArray *call;  /* all recorded calls, struct recorded_call */
  GArray *arena; /* all arenas, struct recorded_arena */
  GPtrArray *things;
  /* arguments of the calls of each kind; recorded_call.at is an index of one of these arrays */
  GArray *kernel, *copy, *join, *exchange, *collective, *transfer, *mark;
} recorded_cuda;

recorded_cuda *recorded_cuda_new (void);
void recorded_cuda_free (recorded_cuda *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (recorded_cuda, recorded_cuda_free)

/* From now on the device supports tracing, and returns `activity`. This function is not
 * recorded. */
void recorded_cuda_trace (recorded_cuda *device);

/* Drops all recorded calls. Handles stay open. */
void recorded_cuda_forget (recorded_cuda *device);

static inline const struct recorded_call *
recorded_call_at (const recorded_cuda *device, uint32_t i)
{
  return &g_array_index (device->call, struct recorded_call, i);
}

/* Whether a call is work of the device. FALSE for calls that order streams or manage resources. */
gboolean recorded_is_work (enum recorded_kind kind);
