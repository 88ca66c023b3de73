/* enable_compile: a compiler makes one kernel of pointwise ops (norms, sums, activations, rotary
 * positions, conversions) that follow each other in a layer, each reading what the one before it
 * has made (torch.compile of each layer, as NeMo Automodel calls it). The ops stay; the flag says
 * that one belongs to the kernel of the op before it, which cost.h prices. Intermediate results
 * are still kept in memory, which a compiler may spare. */
#include "core/passes/rewrite/rewrite.h"

static gboolean
is_pointwise (uint8_t kind)
{
  static const uint8_t kinds[] = {
    WEFT_OP_NORM,        WEFT_OP_NORM_BWD,    WEFT_OP_HEAD_NORM, WEFT_OP_HEAD_NORM_BWD,
    WEFT_OP_ROPE,        WEFT_OP_ROPE_BWD,    WEFT_OP_GELU,      WEFT_OP_GELU_BWD,
    WEFT_OP_SWIGLU,      WEFT_OP_SWIGLU_BWD,  WEFT_OP_RELU2,     WEFT_OP_RELU2_BWD,
    WEFT_OP_ADD,         WEFT_OP_SCALE,       WEFT_OP_CAST,      WEFT_OP_BIAS,
    WEFT_OP_DROPOUT_ADD, WEFT_OP_DROPOUT_BWD, WEFT_OP_ADD_NORM,  WEFT_OP_RELU,
    WEFT_OP_RELU_BWD,
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    if (kinds[i] == kind)
      return TRUE;
  return FALSE;
}

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

/* A kernel that has begun waits for no other lane. */
static gboolean
fuses (const weft_program *p, uint32_t op, uint32_t before)
{
  const struct weft_op *a = &p->op[before], *b = &p->op[op];

  return is_pointwise (a->kind) && is_pointwise (b->kind) && a->layer == b->layer &&
         b->layer != WEFT_NO_LAYER && a->micro == b->micro && a->phase == b->phase &&
         p->op[op].deps == p->op[op + 1].deps && reads_from (p, op, before);
}

void
weft_fuse (weft_program *p)
{
  const uint32_t *gpu = p->lane_ops[WEFT_LANE_GPU];

  for (uint32_t i = 1; i < p->lane_n[WEFT_LANE_GPU]; i++)
    if (fuses (p, gpu[i], gpu[i - 1]))
      p->op[gpu[i]].flags |= WEFT_OP_FUSED;
}
