/* executors.h - the executors that commands offer: one table for `weft sim`, `weft compare` and
 * `weft validate`, which predict, and `weft train` and `weft measure`, which run. */
#pragma once
#include "core/exec/exec.h"

/* The executor of that name, which predicts times; NULL selects the first one. */
const struct weft_exec_ops *weft_cli_executor (const char *name, GError **error);

/* The executor of that name, which computes real numbers; NULL or "auto" selects the first one.
 * Loads the libraries of the executor; fails if this machine lacks them. */
const struct weft_exec_ops *weft_cli_real_executor (const char *name, GError **error);

/* The names of the executors for --help: "sim|clock", and "cpu|cuda|auto".  The texts are
 * static. */
const char *weft_cli_executor_names (void);
const char *weft_cli_real_executor_names (void);
