/* launch.h - weft train as one of several processes. */
#pragma once
#include "core/job/job.h"
#include "launch/environment.h"
#include "launch/rendezvous.h"

/* What --launcher says of the variables of this process; `cuda`: with --executor cuda, which alone
 * knows of other processes. */
gboolean weft_cli_launch (const char *asked, gboolean cuda, weft_launch *launch, GError **error);

/* The ranks of a job shared out over processes; `asked`: --ranks-per-process. */
gboolean weft_cli_launch_check (const weft_launch *launch, const char *asked,
                                const struct weft_job *job, GError **error);

/* Meets the others, for `seconds` at most; *peers is NULL where there are none. */
gboolean weft_cli_launch_meet (const weft_launch *launch, const struct weft_job *job,
                               double seconds, weft_rendezvous **peers, GError **error);
