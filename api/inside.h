/* inside.h - the definitions of the structs that weft.h only declares. */
#pragma once
#include "core/plan/parts.h"
#include "train/checkpoint.h"
#include "train/state.h"
#include "api/include/weft/weft.h"

struct weft_open_job {
  weft_plan *plan;  /* plan of a step; the plan contains the job */
  GPtrArray *notes;
};

struct weft_open_module {
  const struct weft_open_job *job;
  const weft_plan *plan;
  weft_exec *x;
  weft_parts *parts;
  weft_state *state;
  struct weft_control control; /* inputs of a step, which the executor reads */
  /* tokens, read through `control`: (global_batch_size, seq_length + 1) */
  int32_t *batch;
  struct weft_progress progress;

  /* whether gradients are reduced in the last backward only, as with overlap_grad_reduce */
  gboolean only_last_reduces;
  gboolean no_sync, broken; /* broken: a step has failed, so that the module can only be closed */
  uint32_t next;            /* index of the next part of the step; 0 between steps */
  char wants[64];           /* text that weft_module_wants() has returned */
};

/* error.c: fills `error` from `reason` and frees `reason`. Always returns false. Both pointers may
 * be NULL. */
bool weft_api_fail (weft_error *error, GError *reason);
bool weft_api_fail_with (weft_error *error, weft_status status, const char *format, ...)
    G_GNUC_PRINTF (3, 4);
/* error.c: checks that a pointer argument of an API function is not NULL. False with an error if it
 * is; `call` is the name of the function, `what` the name of the argument. */
bool weft_api_given (const char *call, const char *what, const void *pointer, weft_error *error);
bool weft_api_done (weft_error *error); /* Clears `error`; always returns true. */

/* job.c: checks the number of words, and that none of the words is NULL. */
bool weft_api_words (const char *call, size_t n, const char *const *words, weft_error *error);

/* simulation.c: finds the executor of predictions with this name; without a name (NULL) returns the
 * first. Returns NULL with an error if no executor has the name. */
const struct weft_exec_ops *weft_api_predictor (const char *name, weft_error *error);

/* thread.c: calls run(user) in the thread in which SimGrid runs, and returns when it has returned.
 * Calls of several threads run one after the other. */
bool weft_api_in_thread (void (*run) (void *user), void *user, weft_error *error);

/* table.c: makes a table without columns, and adds columns. The caller fills the returned arrays,
 * which have `rows` elements. `name`, `unit` and `doc` are static texts. */
weft_table *weft_api_table_new (size_t rows);
int64_t *weft_api_add_integers (weft_table *table, const char *name, const char *unit,
                                const char *doc);
double *weft_api_add_reals (weft_table *table, const char *name, const char *unit,
                            const char *doc);
/* A column of indices into `words`, a static, NULL-terminated list. */
int32_t *weft_api_add_words (weft_table *table, const char *name, const char *doc,
                             const char *const *words);
/* A column of texts, of which every different one is stored once. weft_api_add_texts() returns the
 * number of the column, and weft_api_set_text() sets one of its rows; NULL: no value. */
size_t weft_api_add_texts (weft_table *table, const char *name, const char *doc);
void weft_api_set_text (weft_table *table, size_t column, size_t row, const char *text);

/* module.c: FALSE with an error if a step is in progress. `call` is the name of the API function
 * that is allowed only between steps. */
bool weft_api_between_steps (weft_module *module, const char *call, weft_error *error);

/* module.c: sets the loss scale of the next step. */
void weft_api_set_loss_scale (weft_module *module, struct weft_loss_scale scale);

/* state_dict.c: recomputes fp32 masters from bf16 weights. */
void weft_api_refresh_masters (weft_module *module);
