/* executors.h - the executors that commands offer: one table for `weft sim`, `weft compare` and
 * `weft validate`, which predict, and `weft train` and `weft measure`, which run. */
#pragma once
#include "core/exec/exec.h"

/* The executors that predict times, and those that compute real numbers: lists that end with NULL.
 * The first executor of each list is the default. */
const struct weft_exec_ops *const *weft_cli_executors (void);
const struct weft_exec_ops *const *weft_cli_real_executors (void);

/* The executor with this name, in the list for predictions (weft_cli_executor) or for real runs
 * (weft_cli_real_executor). NULL stands for the first executor of the list; for real runs "auto"
 * does, too. The libraries of the executor are not loaded (ops->load). NULL with an error for an
 * unknown name. */
const struct weft_exec_ops *weft_cli_executor (const char *name, GError **error);
const struct weft_exec_ops *weft_cli_real_executor (const char *name, GError **error);

/* The names of the executors for --help: "sim|clock", and "cpu|cuda|auto".  The texts are
 * static. */
const char *weft_cli_executor_names (void);
const char *weft_cli_real_executor_names (void);

/* A function that returns whether an executor has a property. `what` may describe the property. */
typedef gboolean weft_cli_has (const struct weft_exec_ops *ops, const void *what);
weft_cli_has weft_cli_has_flags; /* property: ops->flags contains all bits of the uint32_t *what */

/* The names of the executors that have a property: "cuda or hip".  The caller frees the text. */
char *weft_cli_executors_with (const struct weft_exec_ops *const *executors, weft_cli_has *has,
                               const void *what);

/* The begin of a --help line for an option of the executors that have a property: "executor cuda or
 * hip: ", or "" if all executors have the property. The caller frees the text. */
char *weft_cli_executors_about (const struct weft_exec_ops *const *executors, weft_cli_has *has,
                                const void *what);
