/* disturbed.h - weft sim with slow GPUs, slow links or noise: simulates the undisturbed step and
 * the disturbed one. */
#pragma once
#include "core/exec/exec.h"
#include "core/report/disturbance.h"

/* The seconds of a step with jitter differ between runs; this many are simulated unless the user
 * gives another number. */
enum { WEFT_CLI_JITTER_RUNS = 20, WEFT_CLI_MOST_RUNS = 10000 };

/* Whether the options of the executor disturb the step. */
gboolean weft_cli_is_disturbed (const struct weft_exec_ops *executor,
                                const struct weft_exec_options *options);

gboolean weft_cli_has_jitter (const struct weft_exec_ops *executor,
                              const struct weft_exec_options *options);

/* Simulates the plan without disturbance and with it; with jitter `runs` times, from rising seeds
 * and in several processes. Returns the comparison, and in *timeline the disturbed step, with
 * jitter that of the first run. The caller frees both. */
weft_disturbance *weft_cli_disturbed (const weft_plan *plan,
                                      const struct weft_exec_options *options, int64_t runs,
                                      weft_timeline **timeline, GError **error);
