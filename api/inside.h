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

/* module.c: FALSE with an error if a step is in progress. `call` is the name of the API function
 * that is allowed only between steps. */
bool weft_api_between_steps (weft_module *module, const char *call, weft_error *error);

/* module.c: sets the loss scale of the next step. */
void weft_api_set_loss_scale (weft_module *module, struct weft_loss_scale scale);

/* state_dict.c: recomputes fp32 masters from bf16 weights. */
void weft_api_refresh_masters (weft_module *module);
