#include "core/plan/launches.h"
#include <math.h>

/* Zero the largest magnitude, find it, make the scale (Transformer Engine, launch_amax_kernel() and
 * compute_scale_from_amax_kernel of common/recipe/current_scaling.cu). */
#define MAGNITUDE_KERNELS 3

gboolean
weft_launches_transposed (const struct weft_cost *cost, enum weft_op_kind kind)
{
  return kind == WEFT_OP_MOE_QUANTISE && cost->cluster->f.gpu_capability > 0 &&
         cost->cluster->f.gpu_capability < cost->stack->expert_fp8_transposes;
}

/* Kernels before an fp8 product that reorder the scales of its operands. */
static double
swizzles (const struct weft_cost *cost, enum weft_op_kind kind)
{
  switch (kind) {
  case WEFT_OP_FP8_MATMUL:
  case WEFT_OP_FP8_MATMUL_DGRAD:
  case WEFT_OP_MOE_FP8_MATMUL:
  case WEFT_OP_MOE_FP8_MATMUL_DGRAD:
    return cost->fp8_recipe == WEFT_FP8_MX ? (double) cost->stack->mx_swizzles : 0;
  case WEFT_OP_FP8_MATMUL_WGRAD:
  case WEFT_OP_MOE_FP8_MATMUL_WGRAD:
    return cost->fp8_recipe == WEFT_FP8_MX && cost->stack->mx_swizzles > 1 ? 2 : 0;
  default:
    return 0;
  }
}

/* Kernels for each group of rows, or for each expert; 0: one kernel for all. */
static double
kernels_of_each (const struct weft_cost *cost, enum weft_op_kind kind)
{
  const union weft_stack *stack = cost->stack;

  switch (kind) {
  case WEFT_OP_MOE_AMAX:
    return stack->expert_conversions ? MAGNITUDE_KERNELS : 0;
  case WEFT_OP_MOE_QUANTISE:
    return stack->expert_conversions &&
           !(cost->fp8_recipe == WEFT_FP8_DELAYED && weft_launches_transposed (cost, kind));
  case WEFT_OP_MOE_QUANTISE_BLOCKS:
    return stack->expert_conversions;
  case WEFT_OP_MOE_ACT_BWD:
    return cost->expert_outputs > 0 ? (double) stack->expert_bias_kernels : 0;
  default:
    return 0;
  }
}

double
weft_launches_kernels (const struct weft_cost *cost, enum weft_op_kind kind,
                       const struct weft_shape *s)
{
  double each = kernels_of_each (cost, kind) * (double) s->dim[2];

  return kind == WEFT_OP_MOE_ACT_BWD ? 1 + each : fmax (1, each) + swizzles (cost, kind);
}

/* Tensors of codes that the software makes for an op beside the first: one for each expert. */
static double
more_tensors (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  gboolean converts = kind == WEFT_OP_MOE_QUANTISE || kind == WEFT_OP_MOE_QUANTISE_BLOCKS;

  return converts && cost->stack->expert_conversions ? (double) s->dim[2] - 1 : 0;
}

double
weft_launches_host (const struct weft_cost *cost, enum weft_op_kind kind,
                    const struct weft_shape *s, double launch)
{
  double kernels = weft_launches_kernels (cost, kind, s) - 1;
  gboolean library = weft_op_kernel (kind) == WEFT_KERNEL_QUANTISE;
  double operations = library ? more_tensors (cost, kind, s) : kernels;

  return kernels * launch +
         operations * cost->stack->host_op_seconds / cost->cluster->f.node_host_speed;
}
