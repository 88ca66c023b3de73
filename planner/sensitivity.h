/* sensitivity.h - how much faster a step would be with a better machine or a larger batch.
 *
 * Each quantity is changed by -10 % and by +10 %, and both steps are predicted. The elasticity is
 *   ln (time up / time down) / ln (quantity up / quantity down),
 * the change of the step time in percent for one percent more of the quantity: -1 means that the
 * step is bound by it, 0 that it does not matter. The strategy stays as it is. */
#pragma once
#include "planner/summary.h"

/* X (constant, word, doc) */
#define WEFT_SENSITIVITY_LIST(X)                                                                   \
  X (WEFT_SENSITIVITY_FLOPS, "FLOP/s", "matrix units of the GPU, all dtypes")                      \
  X (WEFT_SENSITIVITY_HBM, "HBM bandwidth", "memory bandwidth of the GPU")                         \
  X (WEFT_SENSITIVITY_NVLINK, "NVLink bandwidth", "links inside a node")                           \
  X (WEFT_SENSITIVITY_NIC, "NIC bandwidth", "links between nodes, or between chips of a torus")    \
  X (WEFT_SENSITIVITY_BATCH, "batch size", "sequences of a step")
enum weft_sensitivity_kind { WEFT_SENSITIVITY_LIST (WEFT_WORD_ID) WEFT_N_SENSITIVITY };

struct weft_sensitivity {
  const char *word, *doc;
  double down, up;              /* the quantity with less and with more, divided by its value */
  struct weft_summary less, more; /* predictions with less and with more */
  double step, rate;            /* elasticity of step time and of tokens/s; NaN: refused */
};

/* Predicts the job and all changes in parallel processes. rows[] is sorted by the absolute value of
 * the elasticity of tokens/s, the largest first. */
gboolean weft_sensitivity_run (const struct weft_job *job, const struct weft_exec_ops *executor,
                               struct weft_summary *as_is,
                               struct weft_sensitivity rows[WEFT_N_SENSITIVITY], GError **error);
