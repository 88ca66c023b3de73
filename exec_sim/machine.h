/* machine.h - state of the simulated machine, shared by exec_sim.c (meetings, transfers) and gpu.c
 * (kernels). */
#pragma once
#include "core/exec/exec.h"

/* Kernel times of a role with some SMs taken: prefix[i] is that of the first i ops of lane gpu. */
struct sim_speed {
  uint32_t sms_taken;
  double *prefix;
};

struct sim_role {
  const weft_program *p;
  uint32_t *stop;   /* [position]: last op of the run of kernels that may go without looking up */
  GArray *speeds;   /* struct sim_speed */
};

/* The kernels of one rank: a run of ops [at, stop] that began at `since`, of whose first op `done`
 * is already behind. */
struct sim_gpu {
  gboolean running;
  uint32_t cursor, at, stop, sms_taken, generation;
  double since, done;
};

struct sim_lane {
  uint32_t cursor;
  gboolean posted, waking; /* waking: a timer is set for when the host has issued its head */
  uint32_t pending;
};

struct sim_meeting {
  uint32_t arrived, pending, round, n_rounds;
  double begin;
  struct weft_traffic traffic;
};

/* Times of one shape of collective on one communicator, made once. */
struct sim_comm {
  gboolean known;
  struct weft_coll_shape shape;
  GHashTable *traffic; /* (kind, bytes) -> struct weft_traffic */
};

struct sim_post {
  uint32_t op;
  double begin, alone; /* of the transfer under way: start, closed formula */
};

struct sim {
  weft_exec base;
  gboolean open; /* the bridge is ours to close */
  gboolean step_by_step;
  weft_timeline *t;
  struct sim_role *role;
  struct sim_gpu *gpu;          /* [actor] */
  struct sim_lane *lane;        /* [actor][lane] */
  struct sim_meeting *meeting;  /* [comm] */
  struct sim_comm *comm;        /* [comm] */
  struct sim_post *send, *recv; /* [actor][direction] */
  uint32_t *issued;             /* [actor] */
  weft_host **hosts;            /* by role */
  struct weft_host_clock *clock; /* [actor]: of its host */
};

/* What a bridge tag says: kind, generation or lane, actor or communicator. */
enum sim_event { SIM_KERNELS, SIM_COLLECTIVE, SIM_TRANSFER, SIM_COPY, SIM_WAKE };

static inline uint64_t
sim_tag (enum sim_event event, uint32_t detail, uint32_t who)
{
  return (uint64_t) event << 60 | (uint64_t) (detail & 0xfffffff) << 32 | who;
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

/* Whether it is known when the host issues an op, and when: minus infinity where nothing waits for
 * it. */
gboolean sim_host_issues (struct sim *x, uint32_t actor, uint32_t op, double *date);

/* gpu.c */
void sim_gpu_open (struct sim *x);
void sim_gpu_close (struct sim *x);

/* Starts a run of kernels if one may start. */
void sim_gpu_advance (struct sim *x, uint32_t actor);

/* The timer of a run; FALSE when it is stale. */
gboolean sim_gpu_fired (struct sim *x, uint32_t actor, uint32_t generation);

/* Communication takes more SMs, or fewer. */
void sim_gpu_take_sms (struct sim *x, uint32_t actor, int32_t sms);
