/* With enable_compile, a compiler fuses consecutive pointwise ops of a layer (norms, sums,
 * activations, rotary positions, conversions) into one kernel, if each op reads the output of the
 * previous op (torch.compile of each layer, as NeMo Automodel calls it). The ops stay in the
 * program. A flag marks an op that runs in the kernel of the previous op; cost.h prices marked ops.
 * Intermediate results are still stored in memory, although a compiler may omit them. */
#include "core/passes/rewrite/rewrite.h"

static gboolean
reads_from (const weft_program *p, uint32_t op, uint32_t before)
{
  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
    for (uint32_t v = p->op[before].uses; v < p->op[before + 1].uses; v++)
      if (p->uses[u].buf != WEFT_NO_BUF && p->uses[u].buf == p->uses[v].buf && p->uses[u].read &&
          p->uses[v].write)
        return TRUE;
  return FALSE;
}

/* Whether `op` runs in the kernel of the previous op, `before`. Both must be pointwise and belong
 * to the same layer, microbatch and phase, and `op` must read the output of `before`. `op` may not
 * depend on other lanes, because a kernel that has begun cannot wait. */
static gboolean
fuses (const weft_program *p, uint32_t op, uint32_t before)
{
  const struct weft_op *a = &p->op[before], *b = &p->op[op];

  return weft_op_info[a->kind].pointwise && weft_op_info[b->kind].pointwise &&
         a->layer == b->layer && b->layer != WEFT_NO_LAYER && a->micro == b->micro &&
         a->phase == b->phase && p->op[op].deps == p->op[op + 1].deps && reads_from (p, op, before);
}

void
weft_fuse (weft_program *p)
{
  const uint32_t *gpu = p->lane_ops[WEFT_LANE_GPU];

  for (uint32_t i = 1; i < p->lane_n[WEFT_LANE_GPU]; i++)
    if (fuses (p, gpu[i], gpu[i - 1]))
      p->op[gpu[i]].flags |= WEFT_OP_FUSED;
}
