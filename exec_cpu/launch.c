/* Runs a compute op or a copy: finds the addresses of its operands and calls its kernel. */
#include "exec_cpu/launch.h"
#include "core/exec/feed.h"
#include "exec_cpu/arena.h"
#include "kernels/team.h"
#include <string.h>

/* Whether token ids, row numbers and counts are valid.  Kernels do not check them; poisoned values,
 * which only a wrong program reads, would lead to invalid addresses. */
static gboolean
has_tokens (const struct weft_kernel *k)
{
  for (uint32_t i = 0; i < WEFT_MOST_OPERANDS; i++)
    if (k->operand[i].data && !weft_kernel_index_valid (k, i))
      return FALSE;
  return TRUE;
}

/* A rank, and the op whose kernels it runs. */
struct launch {
  struct cpu_rank *r;
  uint32_t op;
};

static void
run (void *user, const struct weft_kernel *k)
{
  const struct launch *l = user;

  if (l->r->m->own.poison && !has_tokens (k))
    atomic_store (&l->r->m->lost, (uint64_t) (l->r->rank + 1) << 32 | l->op);
  else
    weft_team_run (l->r->team, k);
}

/* Runs a copy_out op: the host reads the metrics of the step, or one number that it waits for. */
static void
read_out (struct cpu_rank *r, uint32_t op)
{
  const void *value[WEFT_MOST_OPERANDS];

  for (uint32_t i = 0; i < r->p->op[op + 1].uses - r->p->op[op].uses; i++)
    value[i] = weft_bind_operand (&r->bind, cpu_use (r, op, i)).data;
  if (!weft_watch_read (&r->watch, r->m->base.plan, r->rank, op, value,
                        &r->m->base.metrics[r->row]))
    atomic_store (&r->m->bad, (uint64_t) (r->rank + 1) << 32 | op);
}

/* Runs a copy between device and host, which are both memory of this process. */
static void
copy_across (const struct cpu_rank *r, uint32_t op)
{
  struct weft_operand from, to;

  weft_bind_copy (&r->bind, op, &from, &to);
  memcpy (to.data, from.data, to.n * weft_dtype_bytes (to.dtype));
}

void
cpu_launch (struct cpu_rank *r, uint32_t op)
{
  enum weft_op_kind kind = r->p->op[op].kind;
  struct launch l = { r, op };

  if (kind == WEFT_OP_COPY_IN)
    weft_feed_tokens (r->m->base.plan, r->rank, op, r->m->options.control->tokens,
                      (int32_t *) (void *) cpu_arena_at (r, cpu_use (r, op, 0)->buf));
  else if (kind == WEFT_OP_COPY_OUT)
    read_out (r, op);
  else if (weft_op_is_pooled_copy (kind))
    copy_across (r, op);
  else
    weft_bind_kernels (&r->bind, op, run, &l);
}

void
cpu_launch_end (struct cpu_rank *r, uint32_t op, double begin, double end)
{
  cpu_arena_release (r, op);
  r->m->t->begin[r->row][op] = begin;
  r->m->t->end[r->row][op] = end;
}
