/* bind.h - turns an op of a plan into kernel calls: operands at addresses in a rank's memory,
 * arguments, and one call per tensor for kernels that treat tensors separately.
 *
 * Shared by the executors that compute real numbers. Addresses may be of host or device memory;
 * nothing is dereferenced. */
#pragma once
#include "core/plan/plan.h"
#include "core/program/segment.h"
#include "kernels/kernel.h"

typedef struct weft_bind {
  const weft_plan *plan;
  const weft_program *p;
  uint32_t rank;
  uint8_t *arena[WEFT_N_POOL];           /* base address of each memory pool; owned by the caller */
  /* parameters of the step (seed, learning rate, ...); owned by the caller */
  const struct weft_control *control;
  /* for each group of ranks: the number of this rank in the group and the size of the group */
  struct weft_place place[WEFT_N_GROUP];
  /* for each adam op: the part of a flat buffer that the op updates */
  struct weft_slice *slice;
  uint32_t n_slice;
  /* scratch memory: the parameters that lie in the buffers of one op */
  struct weft_segment *segment;
} weft_bind;

void weft_bind_init (weft_bind *b, const weft_plan *plan, uint32_t rank);
void weft_bind_clear (weft_bind *b);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_bind, weft_bind_clear)

uint8_t *weft_bind_at (const weft_bind *b, uint32_t buf);

static inline const struct weft_use *
weft_bind_use (const weft_bind *b, uint32_t op, uint32_t operand)
{
  return &b->p->uses[b->p->op[op].uses + operand];
}

/* The operand of an op for a buffer that it uses. If the buffer contains the shards of all ranks,
 * the operand is the shard of this rank. */
struct weft_operand weft_bind_operand (const weft_bind *b, const struct weft_use *use);

/* Makes the kernel calls of a compute op: calls `call` once for each kernel launch, in order. An op
 * without a kernel causes no call. */
typedef void (*weft_bind_call) (void *user, const struct weft_kernel *k);
void weft_bind_kernels (const weft_bind *b, uint32_t op, weft_bind_call call, void *user);

/* Source and destination of a to_host or from_host copy. Both have the same length. */
void weft_bind_copy (const weft_bind *b, uint32_t op, struct weft_operand *from,
                     struct weft_operand *to);

/* Operands of one member of a collective. `data`: the whole tensor, which all-reduce,
 * reduce-scatter and all-to-all read and all-gather writes. `slice`: the member's own slice, inside
 * the whole tensor or in a separate buffer; for an all-to-all, its output. `send`: for an
 * all-to-all with counts, the number of rows for each member. */
struct weft_bound_operands {
  uint8_t *data, *slice;
  struct weft_operand send;
};
struct weft_bound_operands weft_bind_collective (const weft_bind *b, uint32_t op,
                                        const struct weft_place *member);

/* Refuses a plan that no executor with real numbers can run: ops without a kernel, a model that the
 * kernels cannot compute exactly, too little memory for the tokens of a MoE layer. `name`: name of
 * the executor, for messages. */
gboolean weft_bind_check (const weft_plan *plan, const char *name, GError **error);
