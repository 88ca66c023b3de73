/* inside.h - what stands behind the types of weft.h. */
#pragma once
#include "core/plan/parts.h"
#include "train/checkpoint.h"
#include "train/state.h"
#include "include/weft/weft.h"

struct weft_open_job {
  weft_plan *plan;  /* of a step; has the job */
  GPtrArray *notes;
};

struct weft_open_module {
  const struct weft_open_job *job;
  const weft_plan *plan;
  weft_exec *x;
  weft_parts *parts;
  weft_state *state;
  struct weft_control control; /* read by the executor */
  int32_t *batch;              /* what control shows: (global_batch_size, seq_length + 1) */
  struct weft_progress progress;

  gboolean only_last_reduces; /* gradients leave in the last backward, as with overlap_grad_reduce */
  gboolean no_sync, broken; /* broken: a step has failed */
  uint32_t next;            /* part of the step; 0 between steps */
  char wants[64];           /* of weft_module_wants() */
};

/* error.c: fills `error` from ours and frees that; always false.  Both may be NULL. */
bool weft_api_fail (weft_error *error, GError *reason);
bool weft_api_fail_with (weft_error *error, weft_status status, const char *format, ...)
    G_GNUC_PRINTF (3, 4);
bool weft_api_done (weft_error *error); /* clears it; always true */

/* module.c: refuses what may only be called between steps. */
bool weft_api_between_steps (weft_module *module, const char *call, weft_error *error);

/* module.c: what the next step multiplies its loss by. */
void weft_api_set_loss_scale (weft_module *module, struct weft_loss_scale scale);

/* state_dict.c: masters of a model in bf16 from its weights. */
void weft_api_refresh_masters (weft_module *module);
