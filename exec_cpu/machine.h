/* machine.h - the inside of the CPU executor.
 *
 *   arena.c    memory of a rank: mapping, births and deaths of buffers
 *   launch.c   an op that computes or copies: operands, kernel, the threads that share it
 *   meet.c     ranks that meet: collectives and transfers, in rounds
 *   lanes.c    which op is next: by lane heads, by threads that take ranks or by one at random
 *   exec_cpu.c the contract
 *
 * Nothing here waits while it holds the processor: a rank that can do nothing sleeps until somebody
 * it may be waiting for has done something.  Locks and threads are POSIX ones, not GLib's: the thread
 * sanitizer sees what they order. */
#pragma once
#include "core/exec/feed.h"
#include "core/program/coll.h"
#include "exec_cpu/exec_cpu.h"
#include "kernels/bind.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct cpu_machine;

/* ------------------------------------------------------------------------ meetings */

/* A collective as moves, sorted by (round, to): those of one round and destination begin at
 * first[round * n + to]. */
struct cpu_moves {
  uint32_t n, n_rounds, last_reduce; /* last_reduce: round after which sums are complete */
  GArray *list;                      /* struct weft_move */
  uint32_t *first;                   /* [n_rounds * n + 1] */
};

/* What a member brings. */
struct cpu_post {
  struct weft_bound_operands bound;
  double arrived;
};

/* One communicator.  Every collective is 1 + rounds units: all arrive, then every round; a unit is
 * over when all n members have counted it, so `count` tells where everyone is. */
struct cpu_comm {
  struct weft_group group;
  uint32_t n;
  atomic_uint_fast64_t count;
  double begin;          /* when the last member of the newest collective arrived */
  struct cpu_post *post; /* by member */
};

/* From one rank to the next stage or the one before: the k-th send meets the k-th receive. */
struct cpu_channel {
  atomic_uint_fast64_t posted, taken;
  uint32_t to;      /* the row that receives */
  const void *data; /* of send `posted`, and when it was */
  double sent;
  double begin;     /* when both sides of the newest transfer were there */
};

/* --------------------------------------------------------------------------- ranks */

struct cpu_lane {
  uint32_t issued, cursor; /* ops enqueued and ended, as places on the lane */
  gboolean posted;         /* the head is a meeting under way */
  uint32_t round;          /* of a collective; of transfers, a bit for each that is over */
  double arrived;          /* when transfers under way were posted */
};

struct cpu_rank {
  struct cpu_machine *m;
  const weft_program *p;
  uint32_t row, rank;
  weft_bind bind; /* holds its arenas */
  struct cpu_lane lane[WEFT_N_LANE];

  uint32_t *waits, *first_wait, *end_wait; /* of each op, as enqueued */
  uint32_t n_waits, n_issued_waits;        /* in all; of ops that have been issued */

  uint32_t *uses_left, *uses; /* of each buffer that owns memory: this step, every step */
  struct weft_watch watch;

  struct cpu_comm *comm[WEFT_N_GROUP];
  uint64_t unit[WEFT_N_GROUP];     /* of the communicator: the one it counts next */
  struct cpu_channel *out[2], *in[2]; /* to and from the next stage, and the one before */
  uint64_t sent[2], received[2];   /* transfers posted and taken */

  struct weft_team *team; /* NULL: a kernel runs on one thread alone */
  atomic_uint_fast64_t signals; /* changes under the machine's lock */
  gboolean asleep;              /* likewise */
};

struct cpu_machine {
  weft_exec base;
  struct weft_exec_options options;
  uint32_t n;
  struct cpu_rank *rank;
  uint32_t n_comm;
  struct cpu_comm *comm;
  struct cpu_channel *channel; /* [rank][direction]: 0 to the next stage, 1 to the one before */
  GHashTable *moves;           /* cpu_moves_key() -> struct cpu_moves */
  weft_timeline *t;
  double start; /* of the step, by cpu_clock() */
  gboolean issued; /* something that has not been run */

  uint32_t n_thread;
  pthread_t *thread; /* [n_thread] */
  uint64_t step;     /* under stress: how many were run */

  pthread_mutex_t lock;
  pthread_cond_t work, quiet; /* a rank is ready; none is, and none runs */
  uint32_t *ready;            /* [n]: rows that wait for a thread, a ring */
  uint32_t first_ready, n_ready;
  uint32_t n_busy, n_idle; /* threads that have a rank; that wait for one */
  uint32_t n_done;         /* ranks that are through with what was issued */
  gboolean closing;
  atomic_uint_fast64_t bad;  /* 1 + rank << 32 | op whose bucket is not finite */
  atomic_uint_fast64_t lost; /* with poison: 1 + rank << 32 | op that found no tokens in its ids */
};

/* Some kernels take less than the microsecond that GLib's clock counts in. */
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

/* arena.c: the buffers of a program at their planned places.  cpu_arena_close() accepts what
 * cpu_arena_open() left half open. */
gboolean cpu_arena_open (struct cpu_rank *r, const struct weft_memory *memory, GError **error);
void cpu_arena_close (struct cpu_rank *r, const struct weft_memory *memory);
void cpu_arena_start (struct cpu_rank *r);                /* before a step */
void cpu_arena_touch (struct cpu_rank *r, uint32_t op);   /* before an op: buffers are born */
void cpu_arena_release (struct cpu_rank *r, uint32_t op); /* after it: and die */
uint8_t *cpu_arena_at (const struct cpu_rank *r, uint32_t buf);

/* launch.c: runs an op that needs no other rank. */
void cpu_launch (struct cpu_rank *r, uint32_t op);

/* meet.c: does what can be done of the lane's head, a collective or a group of transfers, without
 * waiting; TRUE when something happened.  The op ends (cpu_end_op) once all its units are done. */
gboolean cpu_meet_collective (struct cpu_rank *r, enum weft_lane lane, uint32_t op);
gboolean cpu_meet_transfers (struct cpu_rank *r, enum weft_lane lane);
void cpu_moves_free (struct cpu_moves *moves);
uint64_t cpu_moves_key (const struct weft_op *row, uint32_t n_members);

/* lanes.c.  Whoever changes what another rank may be waiting for wakes it afterwards; times are
 * seconds since the step began. */
gboolean cpu_skips (const struct cpu_rank *r, uint32_t op); /* in an evaluation */
void cpu_end_op (struct cpu_rank *r, uint32_t op, double begin, double end);
void cpu_wake (struct cpu_machine *m, const struct weft_group *group);
void cpu_wake_rank (struct cpu_machine *m, uint32_t row);
void *cpu_thread_main (void *machine); /* takes ranks that may move, until the machine closes */

/* All ops that were issued and have not run, on all ranks.  After an error the machine can only be
 * closed. */
gboolean cpu_run_issued (struct cpu_machine *m, GError **error);
