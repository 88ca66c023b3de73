/* gpu_options.h - options that the GPU executors of all vendors share. */
#pragma once
#include "core/exec/options.h"

/* `sources` and `about` come from the vendor. `sources` lists the values of the option --times:
 * first events, then the vendor's kernel trace. `about` is the help text of --times. */
#define WEFT_GPU_OPTION_LIST(X, sources, about)                                                    \
  X (int64_t, threads, WEFT_TYPE_INT, "threads", "none", "1", "1024", "", NULL,                    \
     "CPU threads per rank; none: all processors")                                                 \
  WEFT_OPTION_STRESS (X)                                                                           \
  WEFT_OPTION_POISON (X)                                                                           \
  X (int64_t, ranks_per_gpu, WEFT_TYPE_INT, "ranks-per-gpu", "1", "1", "1024", "", NULL,           \
     "1, or all ranks of the job on one GPU")                                                      \
  X (double, deadline, WEFT_TYPE_REAL, "deadline", "none", "0.001", "1e9", "", NULL,               \
     "seconds after which a step is aborted")                                                      \
  X (int64_t, graph, WEFT_TYPE_BOOL, "graph", "false", NULL, NULL, "", NULL,                       \
     "capture a step once and replay it")                                                          \
  X (int64_t, traced, WEFT_TYPE_WORD, "times", "events", NULL, NULL, "", sources,                  \
     "source of the times for --timeline and --trace: " about)

union weft_gpu_options {
  struct {
    WEFT_GPU_OPTION_LIST (WEFT_OPTION_MEMBER, , )
  };
  union weft_value at[0 WEFT_GPU_OPTION_LIST (WEFT_OPTION_ONE, , )];
};
