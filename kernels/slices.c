/* Reduction after an exchange: adds the slices that a rank has received from the members of a
 * group. */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include "kernels/sums.h"

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

/* A stack of sums over slices; each entry has n elements. */
struct stack {
  const struct weft_kernel *k;
  uint64_t n;
  float entry[WEFT_FOLD_MOST_DEPTH][WEFT_STRETCH];
};

/* Adds two entries of the stack. Only moe_fold rounds partial sums, because its sum is a canonical
 * sum. */
static void
join_sums (void *stack, uint32_t below)
{
  struct stack *s = stack;

  weft_sums_add (s->entry[below], s->entry[below + 1], s->n);
  if (s->k->kind == WEFT_OP_MOE_FOLD)
    weft_round (s->k->operand[1].dtype, s->n, s->entry[below]);
}

/* Adds elements [first, first + n) of all slices as a tree (core/base/fold.h). */
static void
sum_stretch (const struct weft_kernel *k, uint64_t first, uint64_t n)
{
  const struct weft_operand *x = &k->operand[0], *y = &k->operand[1];
  uint32_t slices = (uint32_t) k->shape.dim[1], top = 0;
  struct stack stack;

  stack.k = k;
  stack.n = n;
  for (uint32_t i = 0; i < slices; i++) {
    float *entry = stack.entry[top];
    const float *slice = weft_floats (x->data, x->dtype, i * k->shape.dim[0] + first, n, entry);
    if (slice != entry)
      memcpy (entry, slice, n * sizeof *slice);
    top = weft_fold_push (top, i, slices, join_sums, &stack);
  }
  weft_store (y->data, y->dtype, first, n, stack.entry[0]);
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
