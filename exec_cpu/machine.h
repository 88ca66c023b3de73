/* machine.h - the state of the CPU executor.
 *
 * Files have levels; each includes headers of lower levels only (tests/tree/test_structure.c):
 *
 *   machine      the state; the ops that an evaluation skips
 *   arena        memory of a rank: blocks, first and last use of buffers
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

/* The moves of a collective: point-to-point copies, one row for each copy of each round. The rows
 * are sorted by (round, receiving member). first[round * n + receiver] is the first row of one
 * round and one receiver. */
struct cpu_moves {
  uint32_t n, n_rounds;
  uint32_t n_pieces;                 /* equal pieces into which the tensor is cut */
  uint32_t n_slots;                  /* messages that a member keeps at once (struct weft_move) */
  GArray *list;                      /* array of struct weft_move */
  uint32_t *first;                   /* [n_rounds * n + 1] */
};

/* The operands of a member of a collective, and the time in seconds when it started the
 * collective. */
struct cpu_post {
  struct weft_bound_operands bound;
  double arrived;
};

/* A communicator. A collective has 1 + rounds parts: posting the operands, and every round. Each
 * member increments `count` when it has finished a part. A part has ended when all n members have
 * counted it. */
struct cpu_comm {
  struct weft_group group;
  uint32_t n;
  atomic_uint_fast64_t count;
  /* the time in seconds when the last member started the newest collective */
  double begin;
  struct cpu_post *post; /* by member */
  uint8_t **slots;       /* by member: room for the messages that the member keeps */
  uint64_t slot_bytes;   /* of one member: the most that any collective of this group needs */
};

/* A channel from one rank to its neighbour in the next or the previous stage.  The k-th send
 * matches the k-th receive. */
struct cpu_channel {
  atomic_uint_fast64_t posted, taken;
  uint32_t to;      /* number of the receiving rank */
  const void *data; /* address of the data of the newest send, which has number `posted` */
  double sent;      /* time in seconds when the newest send was posted */
  /* time in seconds when both the send and the receive of the newest transfer had been posted */
  double begin;
};

/* --------------------------------------------------------------------------- ranks */

struct cpu_lane {
  /* number of ops of this lane (a queue like a CUDA stream) that were issued; number of ops that
   * have ended */
  uint32_t issued, cursor;
  /* this rank has started the collective or the transfers at the head of the lane, which have not
   * ended */
  gboolean posted;
  /* collective: number of the next round; transfers of one launch: a bit for each one that has
   * ended */
  uint32_t round;
  double arrived;          /* time in seconds when the current transfers were posted */
};

struct cpu_rank {
  struct cpu_machine *m;
  const weft_program *p;
  uint32_t row, rank;
  /* binds operands of ops to addresses; contains the addresses of the memory pools */
  weft_bind bind;
  struct cpu_lane lane[WEFT_N_LANE];

  /* the dependencies of op i are waits[first_wait[i]] to waits[end_wait[i] - 1] */
  uint32_t *waits, *first_wait, *end_wait;
  /* number of dependencies of all ops; of these, dependencies of issued ops */
  uint32_t n_waits, n_issued_waits;

  /* by buffer: number of uses that remain in this step; number of uses in every step */
  uint32_t *uses_left, *uses;
  struct weft_watch watch;

  struct cpu_comm *comm[WEFT_N_GROUP];
  /* by communicator: number of postings and rounds of collectives that this rank has finished */
  uint64_t unit[WEFT_N_GROUP];
  /* by direction (0: to or from the next stage, 1: the previous stage) */
  struct cpu_channel *out[2], *in[2];
  /* by direction: number of sends posted; number of receives completed */
  uint64_t sent[2], received[2];

  /* threads that share the kernels of this rank; NULL: one thread runs each kernel */
  struct weft_team *team;
  /* number of times that the rank was woken; changes only under the machine's lock */
  atomic_uint_fast64_t signals;
  gboolean asleep;              /* the rank has no op that can run; guarded by the machine's lock */
};

struct cpu_machine {
  weft_exec base;
  struct weft_exec_options options;
  union weft_cpu_options own;
  uint32_t n;
  struct cpu_rank *rank;
  uint32_t n_comm;
  struct cpu_comm *comm;
  /* [rank][direction]; direction 0: to the next stage, 1: to the previous stage */
  struct cpu_channel *channel;
  GHashTable *moves;           /* hash table from cpu_moves_key() to struct cpu_moves */
  weft_timeline *t;
  double start; /* time when the step began, on the clock of cpu_clock() */
  gboolean issued; /* some ops that were issued have not run */

  uint32_t n_thread;
  pthread_t *thread; /* [n_thread] */
  uint64_t step;     /* number of steps that were run in stress mode (one thread, random order) */

  pthread_mutex_t lock;
  /* work: a rank has become ready; quiet: no rank is ready and no rank runs */
  pthread_cond_t work, quiet;
  /* [n]: ring buffer of the ranks that are ready and wait for a thread */
  uint32_t *ready;
  uint32_t first_ready, n_ready;
  /* number of threads that run a rank; number of threads that wait for a ready rank */
  uint32_t n_busy, n_idle;
  uint32_t n_done;         /* number of ranks that have run all issued ops */
  gboolean closing;
  /* (1 + rank) << 32 | copy op that read a value that is not finite (check_for_nan_in_grad); 0:
   * none */
  atomic_uint_fast64_t bad;
  /* with the option poison: (1 + rank) << 32 | op that read an invalid index (token id, row number
   * or count); 0: none */
  atomic_uint_fast64_t lost;
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
