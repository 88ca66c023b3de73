#include "tests/made/mutant.h"
#include <string.h>

weft_program *
weft_mutant_copy (const weft_program *p)
{
  weft_program *q = g_new0 (weft_program, 1);

  *q = *p;
  q->op = g_memdup2 (p->op, (p->n_op + 1) * sizeof *p->op);
  q->deps = g_memdup2 (p->deps, p->op[p->n_op].deps * sizeof *p->deps);
  q->uses = g_memdup2 (p->uses, p->op[p->n_op].uses * sizeof *p->uses);
  q->buf = g_memdup2 (p->buf, p->n_buf * sizeof *p->buf);
  q->shape = g_memdup2 (p->shape, p->n_shape * sizeof *p->shape);
  q->param = g_memdup2 (p->param, p->n_param * sizeof *p->param);
  q->name = g_strdupv (p->name);
  q->pos = NULL;
  memset (q->lane_ops, 0, sizeof q->lane_ops);
  weft_program_index (q);
  return q;
}

weft_program *
weft_mutant_without_edge (const weft_program *p, uint32_t op, uint32_t edge)
{
  weft_program *q = weft_mutant_copy (p);
  uint32_t n = p->op[p->n_op].deps;

  memmove (&q->deps[edge], &q->deps[edge + 1], (n - edge - 1) * sizeof *q->deps);
  for (uint32_t i = op + 1; i <= q->n_op; i++)
    q->op[i].deps--;
  return q;
}
