/* costs.h - makes rows of a cost table (cost_table.h) from one profile: measured seconds of ops.
 *
 * Kernels of a trace are joined with ops of the program, class by class and axis by axis, on each
 * rank:
 *
 *   by shape    matmuls whose host op has recorded shapes (record_shapes: aten::mm, aten::addmm):
 *               an A x B times B x C product is every matmul of the program with these three sizes
 *   by bytes    collectives that PyTorch describes: all ops of the class and axis with this payload
 *   by order    otherwise, if the step has as many calls of the class as the program has ops: the
 *               k-th call is the k-th op
 *
 * Calls that cannot be joined give no row. A row has the mean of its calls; of communication the
 * shortest call, because a kernel of NCCL also waits for its peers. Seconds are those of the
 * kernels alone: gaps between kernels, which Weft's formulas count as a part of each kernel
 * (kernel_gap of a stack), are not in them. */
#pragma once
#include "interop/traces/measured.h"

/* How many calls of one class and axis were joined, over all ranks. */
struct weft_costs_class {
  enum weft_work work;
  unsigned axis;
  uint64_t calls, joined;
  uint64_t ops; /* number of ops in the program */
};

typedef struct weft_costs {
  GArray *row;   /* struct weft_measurement, in the order of the program */
  GArray *class; /* struct weft_costs_class */
} weft_costs;

/* Joins a trace with the ops of a predicted timeline, whose silent and empty ops are left out. The
 * axes of the trace must be set (weft_measured_new()). The caller frees the result. */
weft_costs *weft_costs_new (const weft_plan *plan, const weft_timeline *timeline,
                            const weft_trace *trace, const weft_measured *measured);
void weft_costs_free (weft_costs *costs);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_costs, weft_costs_free)
