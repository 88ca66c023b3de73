/* explain.h - the numbers behind a prediction, formula by formula, for one role.
 *
 * A row has a name, a formula with the numbers of the job, and a value.  The value is taken from
 * the plan and the report; it is not computed a second time.  Sections name the sources of their
 * formulas.
 *
 *   batch        replicas, microbatches, tokens
 *   parameters   the tensors of one layer, the whole stage, the padding
 *   state        bytes of weights, gradients and optimizer state per rank; the sum
 *   levels       the model state under Megatron-FSDP's four sharding levels
 *   transfers    every kind of communication op: algorithm, steps, the slowest link, seconds
 *   kernels      one layer and microbatch: products with their efficiency, attention, the rest
 *   offload      time of activation copies, and the kernels that can overlap with them
 *   pipeline     the bubble by formula and in the simulation
 *   step         seconds as a sum; model FLOPs; MFU
 *   activations  bytes that one layer keeps per microbatch, by formula and in the program;
 *                Megatron-LM's estimate
 *   memory       the parts of the peak */
#pragma once
#include "core/report/report.h"

/*  topic       key           title
 *              source */
#define WEFT_EXPLAIN_LIST(X)                                                                       \
  X (BATCH, "batch", "Batch", "Narayanan et al. 2021, arXiv 2104.04473, section 2")                \
  X (PARAMETERS, "parameters", "Parameters",                                                       \
     "Vaswani et al. 2017, arXiv 1706.03762; the model's config")                                  \
  X (STATE, "state", "Model state", "Rajbhandari et al. 2020, arXiv 1910.02054, section 3")        \
  X (LEVELS, "levels", "Sharding levels",                                                          \
     "Rajbhandari et al. 2020, arXiv 1910.02054, section 5; Megatron-FSDP")                        \
  X (TRANSFERS, "transfers", "Transfers, steps in a node + between nodes",                         \
     "Patarasuk and Yuan 2009; bus bandwidth of nccl-tests; core/program/coll.h")                  \
  X (KERNELS, "kernels", "Kernels of one layer",                                                   \
     "Williams et al. 2009 (roofline); NVIDIA matrix multiplication guide; core/plan/cost.h")      \
  X (OFFLOAD, "offload", "Activations on the host",                                                \
     "Transformer Engine pytorch/cpu_offload.py; core/passes/layer/offload.c")                 \
  X (PIPELINE, "pipeline", "Pipeline", "Narayanan et al. 2021, arXiv 2104.04473, section 2.2")     \
  X (STEP, "step", "Step",                                                                         \
     "Chowdhery et al. 2022, arXiv 2204.02311, appendix B (MFU); core/report/report.h")            \
  X (ACTIVATIONS, "activations", "Activations that one layer keeps per microbatch",                \
     "Korthikanti et al. 2022, arXiv 2205.05198, section 4; core/plan/activations.h")              \
  X (MEMORY, "memory", "Memory", "Korthikanti et al. 2022, arXiv 2205.05198, section 4")
enum weft_explain_topic {
#define WEFT_EXPLAIN_ID(id, ...) WEFT_EXPLAIN_##id,
  WEFT_EXPLAIN_LIST (WEFT_EXPLAIN_ID)
#undef WEFT_EXPLAIN_ID
      WEFT_N_EXPLAIN
};

struct weft_explain_row {
  char *what, *formula;
  double value;     /* value of a single occurrence */
  /* unit of the value: "B", "s", "FLOP", "FLOP/s", "%" (the value is a fraction), or "" */
  const char *unit;
  uint32_t count;   /* number of times that this value occurs in a step; 0: not counted */
  gboolean sum;     /* TRUE: `value` is the sum of the rows above */
};

struct weft_explain_section {
  const char *key, *title, *source;
  GArray *row; /* array of struct weft_explain_row; empty if the topic does not apply to the job */
};

typedef struct weft_explain {
  uint32_t role;
  struct weft_explain_section section[WEFT_N_EXPLAIN];
} weft_explain;

/* Explains the numbers of one role of a report, which must have a timeline. The caller frees the
 * result. */
weft_explain *weft_explain_new (const weft_report *report, uint32_t role);
void weft_explain_free (weft_explain *explain);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_explain, weft_explain_free)
