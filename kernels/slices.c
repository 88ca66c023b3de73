/* What members of a group have sent each other, added. */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include "kernels/sums.h"

#define MOST_DEPTH 33 /* of a fold over 2^32 slices */

uint64_t
weft_extent_sum_slices (const struct weft_kernel *k, uint32_t operand)
{
  return k->shape.dim[0] * (operand == 0 ? k->shape.dim[1] : 1);
}

uint64_t
weft_extent_moe_fold (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_sum_slices (k, operand);
}

/* Elements [first, first + n) of every slice, in the order of fold.h; nodes are rounded where they are
 * those of a canonical sum. */
static void
join (const struct weft_kernel *k, float *sum, const float *x, uint64_t n)
{
  weft_sums_add (sum, x, n);
  if (k->kind == WEFT_OP_MOE_FOLD)
    weft_round (k->operand[1].dtype, n, sum);
}

static void
sum_stretch (const struct weft_kernel *k, uint64_t first, uint64_t n)
{
  const struct weft_operand *x = &k->operand[0], *y = &k->operand[1];
  uint32_t slices = (uint32_t) k->shape.dim[1], top = 0;
  float stack[MOST_DEPTH][WEFT_STRETCH];

  for (uint32_t i = 0; i < slices; i++) {
    const float *slice =
        weft_floats (x->data, x->dtype, i * k->shape.dim[0] + first, n, stack[top]);
    if (slice != stack[top])
      memcpy (stack[top], slice, n * sizeof *slice);
    for (uint32_t merges = weft_fold_merges (i, slices); merges; merges--, top--)
      join (k, stack[top - 1], stack[top], n);
    top++;
  }
  weft_store (y->data, y->dtype, first, n, stack[0]);
}

void
weft_cpu_sum_slices (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range range = weft_part (k->shape.dim[0], WEFT_STRETCH, part, parts);

  for (uint64_t first = range.begin; first < range.end; first += WEFT_STRETCH)
    sum_stretch (k, first, weft_least (range.end - first, WEFT_STRETCH));
}

void
weft_cpu_moe_fold (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_cpu_sum_slices (k, part, parts);
}

void
weft_ref_moe_fold (const struct weft_kernel *k)
{
  weft_ref_sum_slices (k);
}

void
weft_ref_sum_slices (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data;

  for (uint64_t i = 0; i < k->shape.dim[0]; i++) {
    y[i] = 0;
    for (uint64_t s = 0; s < k->shape.dim[1]; s++)
      y[i] += x[s * k->shape.dim[0] + i];
  }
}
