/* nano.h - plans of a real small model from flags, and questions about their ops. */
#pragma once
#include "tests/made.h"

/* A plan of gpt2-nano (8 layers, tied embedding) on one node of 8 GPUs, with more flags, NULL at
 * the end. */
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

/* -------------------------------------------------------------- questions */

static inline gboolean
has_name (const weft_program *p, uint32_t op, const char *start)
{
  return g_str_has_prefix (p->name[p->op[op].name], start);
}

/* The i-th op of a kind whose name starts so, or WEFT_NO_OP. */
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

static inline uint32_t
n_buckets (const weft_program *p)
{
  uint32_t most = 0;
  for (uint32_t i = 0; i < p->n_param; i++)
    most = MAX (most, p->param[i].bucket + 1);
  return most;
}

/* Kernels that are known to be over when `op` starts. */
static inline uint32_t
kernels_before (const weft_program *p, uint32_t op)
{
  g_autofree uint32_t *before = weft_program_order (p);
  return before[(size_t) op * WEFT_N_LANE + WEFT_LANE_GPU];
}

static inline gboolean
comes_after (const weft_program *p, uint32_t first, uint32_t then)
{
  g_autofree uint32_t *before = weft_program_order (p);
  return weft_ordered (p, before, first, then);
}

static inline uint64_t
elements (const weft_program *p, uint32_t op)
{
  return weft_op_shape (p, op)->dim[0];
}
