/* replay.h - runs the programs of several actors together, without contention. Lanes run in order;
 * ops wait for their dependencies; a collective starts when its last member has issued it; a send
 * and its receive run together; grouped transfers end together.
 *
 * A replay without op times proves that there is no deadlock and that the members of each group
 * issue the same collectives. A replay with op times is the clock executor. */
#pragma once
#include "core/plan/actors.h"
#include "core/plan/host.h"
#include "core/program/program.h"

struct weft_replay {
  const weft_actors *actors;
  weft_program *const *role;              /* the programs, indexed by role */
  /* seconds of each op; NULL: ops take no time */
  double (*seconds) (void *user, uint32_t actor, uint32_t op);
  void *user;
  /* [actor][op], seconds; each array is filled unless it is NULL */
  double **begin, **end;
  /* launch models by role: no op begins before the host has issued it. NULL: ops never wait for the
   * host. Hosts need the array `end` */
  weft_host *const *hosts;
};

/* Runs the replay. Returns FALSE with an error that names the ops if members of a group issue
 * different collectives or there is a deadlock. */
gboolean weft_replay_run (const struct weft_replay *replay, GError **error);
