/* questions.h - what tests ask of a program. */
#pragma once
#include "core/layout.h"
#include "core/step.h"
#include "tests/random_job.h"

/* The program of a stage as it is built, before the memory planner adds dependencies of its own. */
static inline weft_program *
built (const char *words, uint32_t role)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  return weft_step_build (&plan->job, &plan->mesh, role);
}

static inline gboolean
has_name (const weft_program *p, uint32_t op, const char *start)
{
  return g_str_has_prefix (p->name[p->op[op].name], start);
}

static inline gboolean
is_named (const weft_program *p, uint32_t op, const char *name)
{
  return g_str_equal (p->name[p->op[op].name], name);
}

static inline uint32_t
count_kind (const weft_program *p, enum weft_op_kind kind)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += p->op[op].kind == kind;
  return n;
}

static inline uint64_t
elements (const weft_program *p, uint32_t op)
{
  return weft_op_shape (p, op)->dim[0];
}

static inline uint32_t
n_buckets (const weft_program *p)
{
  uint32_t most = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    most = MAX (most, p->param[i].bucket + 1);
  return most;
}

static inline gboolean
comes_after (const weft_program *p, uint32_t first, uint32_t then)
{
  g_autofree uint32_t *before = weft_program_order (p);
  return weft_ordered (p, before, first, then);
}

/* Kernels that are known to be over when `op` starts. */
static inline uint32_t
kernels_before (const weft_program *p, uint32_t op)
{
  g_autofree uint32_t *before = weft_program_order (p);
  return before[(size_t) op * WEFT_N_LANE + WEFT_LANE_GPU];
}

/* N of the first stage under Megatron-FSDP: padded so that `slices` ranks get whole rows. */
static inline uint64_t
padded_elements (const weft_plan *plan, int level, uint32_t slices)
{
  const weft_program *p = plan->role[0];
  struct weft_layout_rule rule = { .threshold = WEFT_BUCKET_INFINITE,
                                   .group = slices,
                                   .sharded = level > 0 };
  g_autofree struct weft_layout_param *list = g_new0 (struct weft_layout_param, p->n_param);
  struct weft_layout layout;

  for (uint32_t i = 0; i < p->n_param; i++)
    list[i] = (struct weft_layout_param){ .numel = p->param[i].rows * p->param[i].columns,
                                          .shared_embedding = p->param[i].tied,
                                          .unit = level == 3 && p->param[i].layer != WEFT_NO_LAYER
                                                      ? p->param[i].layer
                                                      : WEFT_NO_UNIT,
                                          .columns = p->param[i].columns };
  weft_layout_units_init (&layout, &rule, list, p->n_param);
  uint64_t n = layout.numel;
  weft_layout_release (&layout);
  return n;
}
