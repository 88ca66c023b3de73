/* bind.h - an op of a plan as calls of kernels: operands in the memory of a rank, arguments, and
 * one call for each tensor where kernels treat tensors differently.
 *
 * Executors of real numbers share it; addresses may be of any memory, nothing is read. */
#pragma once
#include "core/plan/plan.h"
#include "core/program/segment.h"
#include "kernels/kernel.h"

typedef struct weft_bind {
  const weft_plan *plan;
  const weft_program *p;
  uint32_t rank;
  uint8_t *arena[WEFT_N_POOL];        /* the caller's */
  const struct weft_control *control; /* likewise */
  struct weft_place place[WEFT_N_GROUP]; /* of the rank in its groups */
  struct weft_slice *slice;           /* one for each adam op */
  uint32_t n_slice;
  struct weft_segment *segment; /* room for one walk */
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

/* As kernels see it: of a buffer that is a shard, this rank's. */
struct weft_operand weft_bind_operand (const weft_bind *b, const struct weft_use *use);

/* The calls of an op that computes, in order; none of an op without kernel. */
typedef void (*weft_bind_call) (void *user, const struct weft_kernel *k);
void weft_bind_kernels (const weft_bind *b, uint32_t op, weft_bind_call call, void *user);

/* Both sides of a to_host or from_host, equally long. */
void weft_bind_copy (const weft_bind *b, uint32_t op, struct weft_operand *from,
                     struct weft_operand *to);

/* What a member brings to a collective: the whole tensor, which a sum or an exchange begins with
 * and a gather ends with; its own slice of it, which may lie elsewhere, or what an exchange ends
 * with; and of an exchange by counts, rows for each member. */
struct weft_bound {
  uint8_t *data, *slice;
  struct weft_operand send;
};
struct weft_bound weft_bind_collective (const weft_bind *b, uint32_t op,
                                        const struct weft_place *member);

/* Refuses a plan that no executor of real numbers can run: ops that nobody has, a model that
 * kernels would compute as another, too little room for real tokens.  `name` is the executor's. */
gboolean weft_bind_can (const weft_plan *plan, const char *name, GError **error);
