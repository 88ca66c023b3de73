/* machine.h - the state of the CPU executor.
 *
 * Files have levels; each includes headers of lower levels only (tests/tree/test_structure.c):
 *
 *   machine      state; which ops an evaluation leaves out
 *   arena        memory of a rank: mapping, first and last use of buffers
 *   ready        ranks that threads may run; one rank wakes another
 *   launch       an op that needs no other rank: operands, kernel, its end
 *   collectives  collectives and transfers, in rounds
 *   lanes        the next op: of all lanes of a rank, by threads, or at random by one thread
 *   exec_cpu     the contract of core/exec/exec.h
 *
 * No thread waits while it runs a rank: a rank that cannot go on sleeps, without a thread, until a
 * rank that it may be waiting for wakes it.  Locks and threads are POSIX ones, not GLib's: the
 * thread sanitizer sees what they order. */
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

/* A collective as moves, sorted by (round, to): those of one round and destination begin at
 * first[round * n + to]. */
struct cpu_moves {
  uint32_t n, n_rounds, last_reduce; /* last_reduce: round after which sums are complete */
  GArray *list;                      /* struct weft_move */
  uint32_t *first;                   /* [n_rounds * n + 1] */
};

/* The operands of a member. */
struct cpu_post {
  struct weft_bound_operands bound;
  double arrived;
};

/* A communicator.  A collective is 1 + rounds units: the arrival and every round.  A unit has ended
 * when all n members have counted it, so `count` tells the progress of all. */
struct cpu_comm {
  struct weft_group group;
  uint32_t n;
  atomic_uint_fast64_t count;
  double begin;          /* when the last member of the newest collective arrived */
  struct cpu_post *post; /* by member */
};

/* From one rank to the next stage or to the one before: the k-th send matches the k-th receive. */
struct cpu_channel {
  atomic_uint_fast64_t posted, taken;
  uint32_t to;      /* the row that receives */
  const void *data; /* of send number `posted` */
  double sent;      /* when it was posted */
  double begin;     /* when both sides of the newest transfer were posted */
};

/* --------------------------------------------------------------------------- ranks */

struct cpu_lane {
  uint32_t issued, cursor; /* ops enqueued and ended, as places on the lane */
  gboolean posted;         /* the head is a collective or transfer under way */
  uint32_t round;          /* of a collective; of transfers, a bit for each that has ended */
  double arrived;          /* when transfers under way were posted */
};

struct cpu_rank {
  struct cpu_machine *m;
  const weft_program *p;
  uint32_t row, rank;
  weft_bind bind; /* holds its arenas */
  struct cpu_lane lane[WEFT_N_LANE];

  uint32_t *waits, *first_wait, *end_wait; /* of each op, as enqueued */
  uint32_t n_waits, n_issued_waits;        /* number of waits: of all ops; of issued ops */

  uint32_t *uses_left, *uses; /* by buffer: uses that remain in this step; uses in every step */
  struct weft_watch watch;

  struct cpu_comm *comm[WEFT_N_GROUP];
  uint64_t unit[WEFT_N_GROUP];     /* by communicator: the unit that the rank counts next */
  struct cpu_channel *out[2], *in[2]; /* to and from the next stage, and the one before */
  uint64_t sent[2], received[2];   /* transfers posted and taken */

  struct weft_team *team; /* NULL: a kernel runs on one thread */
  atomic_uint_fast64_t signals; /* changes under the machine's lock */
  gboolean asleep;              /* likewise */
};

struct cpu_machine {
  weft_exec base;
  struct weft_exec_options options;
  union weft_cpu_options own;
  uint32_t n;
  struct cpu_rank *rank;
  uint32_t n_comm;
  struct cpu_comm *comm;
  struct cpu_channel *channel; /* [rank][direction]: 0 to the next stage, 1 to the one before */
  GHashTable *moves;           /* cpu_moves_key() -> struct cpu_moves */
  weft_timeline *t;
  double start; /* of the step, by cpu_clock() */
  gboolean issued; /* there are ops that have not run */

  uint32_t n_thread;
  pthread_t *thread; /* [n_thread] */
  uint64_t step;     /* under stress: steps so far */

  pthread_mutex_t lock;
  pthread_cond_t work, quiet; /* a rank is ready; none is ready and none runs */
  uint32_t *ready;            /* [n]: rows that wait for a thread; a ring buffer */
  uint32_t first_ready, n_ready;
  uint32_t n_busy, n_idle; /* threads that run a rank; threads that wait for one */
  uint32_t n_done;         /* ranks that have run all that was issued */
  gboolean closing;
  atomic_uint_fast64_t bad;  /* 1 + rank << 32 | op whose bucket is not finite */
  atomic_uint_fast64_t lost; /* with poison: 1 + rank << 32 | op that read invalid token ids */
};

/* In nanoseconds: some kernels take less than a microsecond, the unit of GLib's clock. */
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

/* Whether a step leaves an op out: those of backward and update in an evaluation. */
gboolean cpu_skips (const struct cpu_rank *r, uint32_t op);
