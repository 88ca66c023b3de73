/* questions.h - functions that tests ask about a program: which op waits for which, how many bytes
 * are kept ... */
#pragma once
#include "core/plan/check.h"
#include "core/program/layout.h"
#include "core/plan/replay.h"
#include "core/passes/step.h"
#include "tests/made/mutant.h"
#include "tests/made/random_job.h"

/* Returns the program of a stage before the memory plan adds memory waits. */
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

/* Returns the number of kernels of lane gpu that must have ended when `op` starts. */
static inline uint32_t
kernels_before (const weft_program *p, uint32_t op)
{
  g_autofree uint32_t *before = weft_program_order (p);
  return before[(size_t) op * WEFT_N_LANE + WEFT_LANE_GPU];
}

/* Returns the number of elements of the first stage at a level of Megatron-FSDP, with the padding
 * that gives each of `slices` ranks whole rows. */
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

static inline gboolean
is_proved (const weft_plan *plan)
{
  g_autoptr (GError) error = NULL;
  return weft_plan_check (plan, &error);
}

/* Whether two ops use memory of one buffer, directly or through views. */
static inline gboolean
share_a_buffer (const weft_program *p, uint32_t a, uint32_t b)
{
  for (uint32_t i = p->op[a].uses; i < p->op[a + 1].uses; i++)
    for (uint32_t k = p->op[b].uses; k < p->op[b + 1].uses; k++)
      if (p->uses[i].buf != WEFT_NO_BUF && p->uses[k].buf != WEFT_NO_BUF &&
          weft_buf_owner (p, p->uses[i].buf) == weft_buf_owner (p, p->uses[k].buf))
        return TRUE;
  return FALSE;
}

/* `n`: dependencies of ops of one kind on ops of another kind with which they share a buffer.
 * `refused`: how many of them, removed one at a time, make the checker refuse the plan. */
struct edge_count {
  uint32_t n, refused;
};

static inline struct edge_count
count_edges (weft_plan *plan, enum weft_op_kind from, enum weft_op_kind to)
{
  weft_program *whole = plan->role[0];
  struct edge_count edges = { 0 };

  for (uint32_t op = 0; op < whole->n_op; op++)
    for (uint32_t d = whole->op[op].deps; d < whole->op[op + 1].deps; d++) {
      if (whole->op[op].kind != to || whole->op[whole->deps[d]].kind != from ||
          !share_a_buffer (whole, whole->deps[d], op))
        continue;
      g_autoptr (weft_program) mutant = weft_mutant_without_edge (whole, op, d);
      plan->role[0] = mutant;
      edges.n++;
      edges.refused += !is_proved (plan);
    }
  plan->role[0] = whole;
  return edges;
}

/* Returns the largest number of buffers norm1 (one per layer and microbatch) that are alive at
 * once. */
static inline uint32_t
most_norms_kept (const weft_program *p)
{
  uint32_t most = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    uint32_t live = 0;
    for (uint32_t j = 0; j < p->n_buf && p->buf[i].base == WEFT_NO_BUF; j++)
      live += g_str_equal (p->name[p->buf[j].name], "norm1") &&
              p->buf[j].first <= p->buf[i].first && p->buf[j].last >= p->buf[i].first;
    most = MAX (most, live);
  }
  return most;
}

/* Returns the time at which the last op of a job's plan ends. `seconds` returns the duration of an
 * op; its user data is plan->role. */
static inline double
makespan_of (double (*seconds) (void *user, uint32_t actor, uint32_t op), const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_actors) actors = weft_actors_new_roles (&plan->mesh);
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) rows = g_ptr_array_new_with_free_func (g_free);
  double most = 0;

  for (uint32_t i = 0; i < 2 * plan->n_roles; i++)
    g_ptr_array_add (rows, g_new0 (double, plan->role[i % plan->n_roles]->n_op));
  double **end = (double **) rows->pdata + plan->n_roles;
  struct weft_replay replay = { .actors = actors,
                                .role = plan->role,
                                .seconds = seconds,
                                .user = plan->role,
                                .begin = (double **) rows->pdata,
                                .end = end };
  if (!weft_replay_run (&replay, &error))
    g_error ("%s", error->message);
  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++)
      most = MAX (most, end[role][op]);
  return most;
}
