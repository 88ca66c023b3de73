/* recorded_cuda.h - a device that does nothing and writes down what it is told: the calls of
 * exec_cuda/calls.h for tests.
 *
 * Memory of the device cannot be touched by the host: who does, dies.  What is opened must be
 * closed, a group that was started ended by its thread, communicators are aborted in one, and any
 * call can be made to fail.  Told what kernels take, it keeps the time of its streams. */
#pragma once
#include "core/plan/plan.h"
#include "exec_cuda/calls.h"
#include <pthread.h>

#define RECORDED_ID(name, ...) RECORDED_##name,
enum recorded_kind { WEFT_CUDA_CALL_LIST (RECORDED_ID) RECORDED_N };
#undef RECORDED_ID
extern const char *const recorded_words[];

/* Streams, events, communicators, windows and graphs are one of these. */
struct recorded_thing {
  enum recorded_kind kind; /* of the call that opened it */
  uint32_t number, device;
  gboolean flag;            /* of a stream: urgent; of an event: timed; of a window: symmetric */
  uint32_t parent, n,
      rank; /* of a communicator: which split of its parent it is, members, place; of a
                               window: parent is its communicator's number + 1 */
  uint32_t ctas;            /* of a communicator: how many SMs it may take */
  _Atomic uint32_t looks;   /* at it, since it was told something */
  int color;
  double clock; /* of a stream: when all it was given is done; of an event: when it came to pass */
};

struct recorded_call {
  enum recorded_kind kind;
  uint32_t device, row, op;                    /* as choose() and about() of its thread have said */
  const struct recorded_thing *stream, *thing; /* thing: event, communicator, graph */
  uint32_t at; /* of what the call was given: index in its own list */
};

struct recorded_arena {
  enum weft_pool pool;
  uint32_t device;
  uint64_t bytes;
  void *at; /* NULL: given back */
};

struct recorded_kernel {
  struct weft_kernel *k;
  uint32_t n;
};

typedef struct recorded_cuda {
  struct weft_cuda_calls calls;
  uint32_t devices;      /* that it says it has; 64 */
  const char *no_kernel; /* an op without kernel, by its word */
  uint64_t fail_at;      /* the call, counted from 1, that fails; 0: none */
  gboolean lost_then;    /* and so does every call after it: the GPUs are gone */
  gboolean never_ends;   /* no event comes to pass */
  gboolean never_ready;  /* nor is a communicator what it was told to be */
  struct weft_cuda_id id; /* of the newest communicator that was not cut off another */
  /* copies of whole numbers to the host bring ones: counts of this plan */
  const weft_plan *counted;
  uint32_t slow;         /* looks at a communicator until it is, every time */

  /* struct weft_cuda_activity: what it says that it has done, every time; or NULL */
  GArray *activity;
  uint64_t lost;

  double (*seconds) (const struct weft_kernel *k); /* of a kernel; NULL: nothing takes time */
  uint64_t room; /* left, and how often somebody has looked; the test's own */
  uint32_t n_looks;
  double stamp, byte; /* seconds of a record of a timed event, and of a byte of a collective */

  pthread_mutex_t lock;
  pthread_key_t thread; /* struct of each */
  GPtrArray *threads;
  uint64_t n_calls;
  uint32_t n_things, n_open; /* ever; now: things, arenas and scaled sums */
  GArray *call;              /* struct recorded_call */
  GArray *arena;             /* struct recorded_arena */
  GPtrArray *things;
  GArray *kernel, *copy, *join, *exchange, *collective, *transfer, *mark; /* by `at` */
} recorded_cuda;

recorded_cuda *recorded_cuda_new (void);
void recorded_cuda_free (recorded_cuda *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (recorded_cuda, recorded_cuda_free)

/* The device tells of `activity` from now on, which is empty; not one of its counted calls. */
void recorded_cuda_trace (recorded_cuda *device);

/* Forgets calls, not what is open. */
void recorded_cuda_forget (recorded_cuda *device);

static inline const struct recorded_call *
recorded_call_at (const recorded_cuda *device, uint32_t i)
{
  return &g_array_index (device->call, struct recorded_call, i);
}

/* Work for the device: whatever is neither an order of streams nor bookkeeping. */
gboolean recorded_is_work (enum recorded_kind kind);
