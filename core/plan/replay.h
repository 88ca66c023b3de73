/* replay.h - runs programs of several actors against each other by the rules of the machine,
 * without contention: lanes in order, dependencies, collectives start when the last member arrives,
 * a send meets its receive, grouped transfers end together.
 *
 * With no times it proves that nobody waits for ever and that all members of a group agree; with
 * times it is the clock executor. */
#pragma once
#include "core/plan/actors.h"
#include "core/plan/host.h"
#include "core/program/program.h"

struct weft_replay {
  const weft_actors *actors;
  weft_program *const *role;              /* programs, by role */
  double (*seconds) (void *user, uint32_t actor, uint32_t op); /* NULL: everything takes no time */
  void *user;
  double **begin, **end;                  /* [actor][op], filled when not NULL */
  weft_host *const *hosts;                /* by role: no op begins before it was issued; or NULL.
                                             Needs `end` */
};

/* FALSE with an error that names the ops when members disagree or everybody waits. */
gboolean weft_replay_run (const struct weft_replay *replay, GError **error);
