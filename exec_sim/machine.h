/* machine.h - state of the simulation, which exec_sim.c (collectives, transfers) and gpu.c (compute
 * kernels) share. */
#pragma once
#include "core/exec/exec.h"
#include "exec_sim/exec_sim.h"

/* Kernel times of a rank while communication occupies some SMs. prefix[i] is the sum in seconds
 * over the first i ops of the compute lane. */
struct sim_speed {
  uint32_t sms_taken;
  double *prefix;
};

/* Undisturbed kernel times of a pipeline stage on one kind of GPU while communication occupies some
 * SMs, by op. */
struct sim_times {
  uint32_t sms_taken, kind;
  double *seconds;
};

/* The kernel times of all ranks of one role on one kind of GPU with the same slowdown. With jitter
 * every actor has its own kernel times. */
struct sim_pace {
  uint32_t kind, role, actor; /* actor: the only one with these times, or WEFT_NO_ACTOR */
  double slow;
  GArray *speeds;       /* array of struct sim_speed */
};

struct sim_role {
  const weft_program *p;
  /* [position]: last op of the sequence of kernels from this position on that depends on no other
   * lane */
  uint32_t *stop;
  GArray *times;    /* array of struct sim_times */
};

/* The compute kernels of one rank. `cursor` is the position of the first op that has not ended.
 * Kernels [at, stop], which run without interruption and share one timer, began at `since`; `done`
 * is the finished fraction of the first of these kernels. Communication occupies `sms_taken` SMs.
 * Each new timer increments `generation`; the event of a timer with an older generation is
 * ignored. */
struct sim_gpu {
  gboolean running;
  uint32_t cursor, at, stop, sms_taken, generation;
  double since, done;
  struct sim_pace *pace;
};

struct sim_lane {
  uint32_t cursor;
  /* posted: the first op of the lane, or the ops launched with it, has been launched; waking: a
   * timer is set for the date at which the host issues this op */
  gboolean posted, waking;
  uint32_t pending;        /* number of transfers of the current launch that have not ended */
  double since;            /* date of the current launch */
};

/* The current collective of a communicator. arrived: number of actors that have launched the
 * collective; pending: number of flows of the current round that have not ended. */
struct sim_collective {
  uint32_t arrived, pending, round, n_rounds;
  double begin;
  struct weft_traffic traffic;
  const struct weft_coll_round *rounds; /* NULL unless the algorithm is data */
};

/* Traffic of a collective, and its rounds if the algorithm is data; else `rounds` is NULL. */
struct sim_traffic {
  struct weft_traffic t;
  struct weft_coll_round *rounds;
};

/* Cached traffic of the collectives of one communicator. */
struct sim_comm {
  gboolean known;
  struct weft_coll_shape shape;
  GHashTable *traffic; /* from op kind and shape (sim_traffic_of()) to struct sim_traffic */
};

struct sim_post {
  uint32_t op;
  double posted; /* date of the launch of the op */
  /* start date of the current transfer, and its duration in seconds without contention */
  double begin, alone;
};

struct sim {
  weft_exec base;
  gboolean open; /* this executor has opened the bridge and must close it */
  union weft_sim_options own;
  weft_disturb disturb;
  uint32_t rounds;           /* rounds of splitting of a disturbed step (actors.h) */
  double *flow_ends;         /* [actor] sum of the dates at which its flows of collectives ended */
  GHashTable *waits;         /* key of wait_key() -> seconds; NULL: not recorded */
  weft_timeline *t;
  struct sim_role *role;
  GPtrArray *paces;          /* struct sim_pace */
  struct sim_gpu *gpu;          /* [actor] */
  struct sim_lane *lane;        /* [actor][lane] */
  struct sim_collective *collective;  /* [comm] */
  struct sim_comm *comm;        /* [comm] */
  struct sim_post *send, *recv; /* [actor][direction] */
  uint32_t *issued;             /* [actor] */
  weft_host **hosts;            /* by role */
  struct weft_host_clock *clock; /* [actor]: dates at which the host thread issues ops */
};

/* Kinds of events. A bridge tag contains the kind, a detail (generation, lane or direction), and
 * the actor or communicator. */
enum sim_event { SIM_KERNELS, SIM_COLLECTIVE, SIM_TRANSFER, SIM_COPY, SIM_WAKE };

/* Detail of a SIM_COLLECTIVE tag: the actor whose flow has ended, or SIM_NO_FLOW for a timer, which
 * belongs to all members. */
enum { SIM_NO_FLOW = 0xfffffff };

static inline uint64_t
sim_tag (enum sim_event event, uint32_t detail, uint32_t actor_or_comm)
{
  return (uint64_t) event << 60 | (uint64_t) (detail & 0xfffffff) << 32 | actor_or_comm;
}

static inline const weft_program *
sim_program (const struct sim *x, uint32_t actor)
{
  return x->base.plan->role[x->base.actors->role[actor]];
}

static inline struct sim_lane *
sim_lane_at (const struct sim *x, uint32_t actor, uint32_t lane)
{
  return &x->lane[(size_t) actor * WEFT_N_LANE + lane];
}

/* Whether all dependencies of an op have ended. */
gboolean sim_deps_done (const struct sim *x, uint32_t actor, uint32_t op);

/* Whether the date at which the host issues an op is known yet; if so, stores it in *date. *date is
 * minus infinity if the op need not wait for the host. */
gboolean sim_host_issues (struct sim *x, uint32_t actor, uint32_t op, double *date);

/* traffic.c */

/* The cached data of a communicator, computed at its first use. */
struct sim_comm *sim_comm_at (struct sim *x, uint32_t comm);

/* Traffic on the links of the collectives that are launched together, of which `op` is the last.
 * It belongs to the communicator. */
const struct sim_traffic *sim_traffic_of (struct sim *x, uint32_t comm, const weft_program *p,
                                          uint32_t op);

/* Starts the flows of the current round of a collective whose algorithm is data. */
void sim_start_data_round (struct sim *x, uint32_t comm);

/* gpu.c */

/* The factor by which a disturbance lengthens a kernel of an actor. */
double sim_kernel_factor (const struct sim *x, uint32_t actor, uint32_t op);

void sim_gpu_open (struct sim *x);
void sim_gpu_close (struct sim *x);

/* Starts the next sequence of kernels if its first kernel may start. */
void sim_gpu_advance (struct sim *x, uint32_t actor);

/* Handles the timer of a sequence of kernels. FALSE: the timer is outdated, because a newer one was
 * set. */
gboolean sim_gpu_fired (struct sim *x, uint32_t actor, uint32_t generation);

/* Adds `sms`, which may be negative, to the SMs that communication occupies on the GPU. */
void sim_gpu_take_sms (struct sim *x, uint32_t actor, int32_t sms);
