#include "exec_cpu/machine.h"

gboolean
cpu_skips (const struct cpu_rank *r, uint32_t op)
{
  return r->m->options.control && r->m->options.control->forward_only &&
         weft_feed_is_training (r->p, op);
}
