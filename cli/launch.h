/* launch.h - runs weft train as one of several processes. */
#pragma once
#include "core/exec/exec.h"
#include "launch/environment.h"
#include "launch/rendezvous.h"

/* Reads the variables of the launcher that --launcher (`asked`) names. Refuses several processes if
 * the executor cannot run as several processes (WEFT_EXEC_PROCESSES). The caller clears *launch. */
gboolean weft_cli_launch (const char *asked, const struct weft_exec_ops *ops, weft_launch *launch,
                          GError **error);

/* Checks that all processes run equally many ranks of the job. `asked`: value of
 * --ranks-per-process, or NULL. */
gboolean weft_cli_launch_check (const weft_launch *launch, const char *asked,
                                const struct weft_job *job, GError **error);

/* Connects to the rendezvous and waits for the other processes, at most `seconds`. *peers becomes
 * NULL if there is only one process. */
gboolean weft_cli_launch_meet (const weft_launch *launch, const struct weft_job *job,
                               double seconds, weft_rendezvous **peers, GError **error);
