/* executors.h - the executors that commands offer: one table for `weft sim`, `weft compare` and
 * `weft validate`, which predict, and `weft train` and `weft measure`, which run. */
#pragma once
#include "core/exec/exec.h"

/* The executors that predict times, and those that compute real numbers: lists that end with NULL.
 * The first executor of each list is the default. */
const struct weft_exec_ops *const *weft_cli_executors (void);
const struct weft_exec_ops *const *weft_cli_real_executors (void);

/* The executor of that name in the first or second list; NULL selects the first executor of the
 * list, and so does "auto" in the second list.  Does not load its libraries (ops->load). */
const struct weft_exec_ops *weft_cli_executor (const char *name, GError **error);
const struct weft_exec_ops *weft_cli_real_executor (const char *name, GError **error);

/* The names of the executors for --help: "sim|clock", and "cpu|cuda|auto".  The texts are
 * static. */
const char *weft_cli_executor_names (void);
const char *weft_cli_real_executor_names (void);

/* A property of executors. */
typedef gboolean weft_cli_has (const struct weft_exec_ops *ops, const void *what);
weft_cli_has weft_cli_has_flags; /* ops has all flags of the uint32_t *what */

/* The names of the executors that have a property: "cuda or hip".  The caller frees the text. */
char *weft_cli_executors_with (const struct weft_exec_ops *const *executors, weft_cli_has *has,
                               const void *what);

/* The begin of a --help line for the executors that have a property: "executor cuda or hip: ", or
 * "" if all executors have the property.  The caller frees the text. */
char *weft_cli_executors_about (const struct weft_exec_ops *const *executors, weft_cli_has *has,
                                const void *what);
