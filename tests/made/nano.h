/* nano.h - plans of a small real model from flags, and queries of their ops. */
#pragma once
#include "tests/made/made.h"
#include "tests/made/questions.h"

/* Returns a plan of gpt2-nano (8 layers, tied embedding) on one node of 8 GPUs. The arguments are
 * more flags, ended by NULL. */
static inline weft_plan *
plan_of (const char *first, ...)
{
  const char *flags[40] = { "--model", "gpt2-nano", "--topology", "dgx-h100", "--gpus", "8" };
  uint32_t n = 6;
  struct weft_job job;
  va_list more;

  va_start (more, first);
  for (const char *flag = first; flag; flag = va_arg (more, const char *))
    flags[n++] = flag;
  va_end (more);
  g_assert (n < G_N_ELEMENTS (flags));
  made_real_job (&job, flags);
  return made_real_plan (&job);
}

#define OVERLAP "--overlap-grad-reduce", "true", "--bucket-size", "100000"
#define SHARDED "--use-distributed-optimizer", "true"
#define PLAIN "--average-in-collective", "true", "--gradient-accumulation-fusion", "true"
#define STAGES(n) "--pipeline-model-parallel-size", n
#define BATCH(n) "--global-batch-size", n

/* ---------------------------------------------------------------- queries */

/* Returns the i-th op of a kind whose name begins with this prefix, or WEFT_NO_OP. */
static inline uint32_t
nth (const weft_program *p, enum weft_op_kind kind, const char *name, uint32_t i)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && has_name (p, op, name) && i-- == 0)
      return op;
  return WEFT_NO_OP;
}

static inline uint32_t
count (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  uint32_t n = 0;
  while (nth (p, kind, name, n) != WEFT_NO_OP)
    n++;
  return n;
}

static inline uint32_t
named (const weft_program *p, enum weft_op_kind kind, const char *format, uint32_t k)
{
  g_autofree char *name = g_strdup_printf ("%s %u", format, k);
  uint32_t op = nth (p, kind, name, 0);

  assert_true (op != WEFT_NO_OP);
  return op;
}

