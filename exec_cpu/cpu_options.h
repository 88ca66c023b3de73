/* cpu_options.h - options of the CPU executor. */
#pragma once
#include "core/exec/options.h"

#define WEFT_CPU_OPTION_LIST(X)                                                                    \
  X (int64_t, threads, WEFT_TYPE_INT, "threads", "none", "1", "1024", "", NULL,                    \
     "CPU threads per rank; none: 1")                                                              \
  WEFT_OPTION_STRESS (X)                                                                           \
  WEFT_OPTION_POISON (X)

union weft_cpu_options {
  struct {
    WEFT_CPU_OPTION_LIST (WEFT_OPTION_MEMBER)
  };
  union weft_value at[0 WEFT_CPU_OPTION_LIST (WEFT_OPTION_ONE)];
};
