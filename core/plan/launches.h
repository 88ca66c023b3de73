/* launches.h - kernels that the software of a stack launches one after another for one op.
 *
 * An op of a program is one kernel, and one launch. Some software has more:
 *
 *   expert_conversions  a conversion of grouped operands to fp8 is one kernel for each expert. With
 *                       one scale per tensor, three kernels before it zero the largest magnitude,
 *                       find it, and make the scale. Delayed scaling has one kernel for all
 *                       experts if it also writes transposed copies (writes_transposed), which it
 *                       makes in one pass over all tensors
 *   mx_swizzles         with one scale per 32 elements, kernels before a product reorder the scales
 *                       as tensor cores read them, one for all experts: of both operands (2), or
 *                       of weights only (1), so that weight gradients need none
 *   expert_bias_kernels with experts_priced_as_gpt_oss, kernels for the bias of the last product,
 *                       forward and backward together. As their bytes they count with the backward
 *                       activation, which every microbatch has once
 *
 * Each kernel has a gap before it (kernel_gap) and a launch of its own. Kernels of conversions are
 * launched by a library, and take launch_seconds of the host; but the tensor of each expert is an
 * operation of the framework, which takes host_op_seconds. All other kernels take both. */
#pragma once
#include "core/plan/cost.h"

/* The number of kernels for an op, at least 1. */
double weft_launches_kernels (const struct weft_cost *cost, enum weft_op_kind kind,
                              const struct weft_shape *shape);

/* Host seconds of all kernels of an op but the first. `launch`: seconds of one launch. */
double weft_launches_host (const struct weft_cost *cost, enum weft_op_kind kind,
                           const struct weft_shape *shape, double launch);

/* Whether conversions of experts' operands also write a transposed copy, because fp8 products of
 * the GPU read only operands that are contiguous along the summed dimension. */
gboolean weft_launches_transposed (const struct weft_cost *cost, enum weft_op_kind kind);
