/* executors.h - the executors that commands offer: one table for `weft sim`, `weft compare` and
 * `weft validate`, which predict, and `weft train` and `weft measure`, which run. */
#pragma once
#include "core/exec/exec.h"

/* Executors of predicted time; NULL names the first one. */
const struct weft_exec_ops *weft_cli_executor (const char *name, GError **error);

/* Executors of real numbers; NULL or "auto" selects the first one. Loads the libraries it needs;
 * fails where this machine lacks them. */
const struct weft_exec_ops *weft_cli_real_executor (const char *name, GError **error);

/* Their names for --help: "sim|clock", "cpu|cuda|auto".  The text stays. */
const char *weft_cli_executor_names (void);
const char *weft_cli_real_executor_names (void);
