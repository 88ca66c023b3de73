/* replay.h - plays the programs of several actors against each other without contention: lanes in
 * order, dependencies, a collective starts when its last member has issued it, a send matches its
 * receive, grouped transfers end together.
 *
 * Without times it proves that there is no deadlock and that the members of a group agree; with
 * times it is the clock executor. */
#pragma once
#include "core/plan/actors.h"
#include "core/plan/host.h"
#include "core/program/program.h"

struct weft_replay {
  const weft_actors *actors;
  weft_program *const *role;              /* programs, by role */
  double (*seconds) (void *user, uint32_t actor, uint32_t op); /* NULL: ops take no time */
  void *user;
  double **begin, **end;                  /* [actor][op], filled if not NULL */
  weft_host *const *hosts;                /* by role: no op begins before the host has issued it; or
                                           * NULL. Needs `end` */
};

/* FALSE with an error that names the ops if members of a group disagree or there is a deadlock. */
gboolean weft_replay_run (const struct weft_replay *replay, GError **error);
