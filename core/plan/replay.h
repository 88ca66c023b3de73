/* replay.h - plays the programs of several actors against each other without contention: lanes run
 * in order; ops wait for their dependencies; a collective starts when the last member has issued
 * it; a send matches its receive; grouped transfers end together.
 *
 * A replay without op times proves that there is no deadlock and that the members of each group
 * issue the same collectives. A replay with op times is the clock executor. */
#pragma once
#include "core/plan/actors.h"
#include "core/plan/host.h"
#include "core/program/program.h"

struct weft_replay {
  const weft_actors *actors;
  weft_program *const *role;              /* programs, by role */
  double (*seconds) (void *user, uint32_t actor, uint32_t op); /* NULL: ops take no time */
  void *user;
  double **begin, **end;                  /* [actor][op], seconds; each is filled if it is not
                                           * NULL */
  weft_host *const *hosts;                /* launch models by role: no op begins before the host has
                                           * issued it. NULL: hosts are ignored. Requires `end` */
};

/* Runs the replay. Returns FALSE with an error that names the ops if members of a group issue
 * different collectives or there is a deadlock. */
gboolean weft_replay_run (const struct weft_replay *replay, GError **error);
