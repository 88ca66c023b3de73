/* machine.h - the state of the CPU executor.
 *
 * Files have levels; each includes headers of lower levels only (tests/tree/test_structure.c):
 *
 *   machine      the state; the ops that an evaluation skips
 *   arena        memory of a rank: mapping, first and last use of buffers
 *   ready        the queue of ranks that threads may run; one rank wakes another
 *   launch       runs an op that needs no other rank: operands, kernel, end
 *   collectives  collectives and transfers, in rounds
 *   lanes        selects the next op: by threads that run ranks, or by one thread in random order
 *   exec_cpu     the functions of core/exec/exec.h
 *
 * No thread waits while it runs a rank.  A rank that cannot continue sleeps, without a thread,
 * until a rank that it may be waiting for wakes it.  Locks and threads are those of POSIX, not of
 * GLib, because the thread sanitizer understands POSIX synchronisation. */
#pragma once
#include "core/exec/feed.h"
#include "core/program/coll.h"
#include "core/exec/exec.h"
#include "exec_cpu/cpu_options.h"
#include "kernels/bind.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct cpu_machine;

/* --------------------------------------------------------------------- collectives */

/* The moves of a collective, sorted by (round, to).  The moves of one round and destination begin
 * at first[round * n + to]. */
struct cpu_moves {
  uint32_t n, n_rounds, last_reduce; /* last_reduce: round after which sums are complete */
  GArray *list;                      /* struct weft_move */
  uint32_t *first;                   /* [n_rounds * n + 1] */
};

/* The operands of a member of a collective, and the time in seconds when it started the
 * collective. */
struct cpu_post {
  struct weft_bound_operands bound;
  double arrived;
};

/* A communicator.  A collective has 1 + rounds units: posting the operands, and every round.  Each
 * member increments `count` when it has finished a unit.  A unit has ended when all n members have
 * counted it. */
struct cpu_comm {
  struct weft_group group;
  uint32_t n;
  atomic_uint_fast64_t count;
  double begin;          /* when the last member started the newest collective */
  struct cpu_post *post; /* by member */
};

/* A channel from one rank to its neighbour in the next or the previous stage.  The k-th send
 * matches the k-th receive. */
struct cpu_channel {
  atomic_uint_fast64_t posted, taken;
  uint32_t to;      /* the row that receives */
  const void *data; /* data of send number `posted` */
  double sent;      /* when send number `posted` was posted */
  double begin;     /* when both sides of the newest transfer were posted */
};

/* --------------------------------------------------------------------------- ranks */

struct cpu_lane {
  uint32_t issued, cursor; /* number of ops of the lane that are enqueued; that have ended */
  gboolean posted;         /* the op at the head is a collective or transfer in progress */
  uint32_t round;          /* next round of a collective; a bit for each transfer that has ended */
  double arrived;          /* when the transfers in progress were posted */
};

struct cpu_rank {
  struct cpu_machine *m;
  const weft_program *p;
  uint32_t row, rank;
  weft_bind bind; /* contains the addresses of the arenas */
  struct cpu_lane lane[WEFT_N_LANE];

  uint32_t *waits, *first_wait, *end_wait; /* op i waits for waits[first_wait[i]..end_wait[i]) */
  uint32_t n_waits, n_issued_waits;        /* number of waits; of those, waits of issued ops */

  uint32_t *uses_left, *uses; /* by buffer: uses that remain in this step; uses in every step */
  struct weft_watch watch;

  struct cpu_comm *comm[WEFT_N_GROUP];
  uint64_t unit[WEFT_N_GROUP];     /* by communicator: number of units that the rank has counted */
  struct cpu_channel *out[2], *in[2]; /* by direction: 0 the next stage, 1 the previous stage */
  uint64_t sent[2], received[2];   /* by direction: number of sends posted; of receives completed */

  struct weft_team *team; /* NULL: a kernel runs on one thread */
  atomic_uint_fast64_t signals; /* number of wake-ups; changes under the machine's lock */
  gboolean asleep;              /* guarded by the machine's lock */
};

struct cpu_machine {
  weft_exec base;
  struct weft_exec_options options;
  union weft_cpu_options own;
  uint32_t n;
  struct cpu_rank *rank;
  uint32_t n_comm;
  struct cpu_comm *comm;
  struct cpu_channel *channel; /* [rank][direction]: 0 to the next stage, 1 to the previous one */
  GHashTable *moves;           /* cpu_moves_key() -> struct cpu_moves */
  weft_timeline *t;
  double start; /* begin of the step, by cpu_clock() */
  gboolean issued; /* some issued ops have not run */

  uint32_t n_thread;
  pthread_t *thread; /* [n_thread] */
  uint64_t step;     /* number of steps run under stress */

  pthread_mutex_t lock;
  pthread_cond_t work, quiet; /* a rank is ready; no rank is ready and no rank runs */
  uint32_t *ready;            /* [n]: rows that wait for a thread; a ring buffer */
  uint32_t first_ready, n_ready;
  uint32_t n_busy, n_idle; /* threads that run a rank; threads that wait for a rank */
  uint32_t n_done;         /* ranks that have run all issued ops */
  gboolean closing;
  atomic_uint_fast64_t bad;  /* (1 + rank) << 32 | op whose bucket is not finite; 0: none */
  atomic_uint_fast64_t lost; /* with poison: (1 + rank) << 32 | op that read invalid token ids */
};

/* Seconds with a resolution of nanoseconds.  GLib's clock has microseconds, and some kernels take
 * less. */
static inline double
cpu_clock (void)
{
  struct timespec t;

  clock_gettime (CLOCK_MONOTONIC, &t);
  return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static inline double
cpu_now (const struct cpu_machine *m)
{
  return cpu_clock () - m->start;
}

static inline const struct weft_use *
cpu_use (const struct cpu_rank *r, uint32_t op, uint32_t operand)
{
  return weft_bind_use (&r->bind, op, operand);
}

/* Whether this step skips an op: an evaluation skips the ops of backward and update. */
gboolean cpu_skips (const struct cpu_rank *r, uint32_t op);
