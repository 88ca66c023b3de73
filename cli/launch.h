/* launch.h - weft train as one of several processes. */
#pragma once
#include "core/exec/exec.h"
#include "launch/environment.h"
#include "launch/rendezvous.h"

/* Reads the launcher's variables, as --launcher (`asked`) says.  Refuses several processes unless
 * the executor has WEFT_EXEC_PROCESSES. */
gboolean weft_cli_launch (const char *asked, const struct weft_exec_ops *ops, weft_launch *launch,
                          GError **error);

/* Checks that the ranks of the job divide over the processes; `asked`: --ranks-per-process. */
gboolean weft_cli_launch_check (const weft_launch *launch, const char *asked,
                                const struct weft_job *job, GError **error);

/* Joins the rendezvous, waiting at most `seconds`; *peers is NULL for a single process. */
gboolean weft_cli_launch_meet (const weft_launch *launch, const struct weft_job *job,
                               double seconds, weft_rendezvous **peers, GError **error);
