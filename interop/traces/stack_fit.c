#include "interop/traces/stack_fit.h"
#include <math.h>

/* The fields that are fitted. Two fields of one class are changed by the same factor. A field with
 * value 0 takes the value of memory_share, so memory_share is fitted last. */
static const struct {
  unsigned row;
  enum weft_work work;
} fields[] = {
  { WEFT_STACK_attention_forward_share, WEFT_WORK_ATTENTION },
  { WEFT_STACK_attention_backward_share, WEFT_WORK_ATTENTION },
  { WEFT_STACK_norm_memory_share, WEFT_WORK_NORM },
  { WEFT_STACK_softmax_memory_share, WEFT_WORK_SOFTMAX },
  { WEFT_STACK_quantise_memory_share, WEFT_WORK_QUANTISE },
  { WEFT_STACK_optimizer_memory_share, WEFT_WORK_OPTIMIZER },
  { WEFT_STACK_dispatch_memory_share, WEFT_WORK_DISPATCH },
  { WEFT_STACK_memory_share, WEFT_WORK_POINTWISE },
};

/* Largest number of changes of a value. Only a part of the time depends on the value, so one change
 * is not enough. */
enum { MOST_ROUNDS = 12 };

/* Range of the fields, which are fractions of a rate. */
#define LEAST 0.01
#define MOST 1.0

/* Seconds of a class in the programs of the observed roles, without the gap of each kernel. */
static double
priced_seconds (const weft_plan *plan, const weft_measured *m, enum weft_work work)
{
  double sum = 0, roles = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    roles += m->roles[role];
    for (uint32_t op = 0; op < p->n_op && m->roles[role]; op++) {
      gboolean fused = (p->op[op].flags & WEFT_OP_FUSED) != 0;
      double gap = fused ? 0 : plan->job.stack.kernel_gap;
      if (p->op[op].lane == WEFT_LANE_GPU && weft_work_of_op (p->op[op].kind) == work)
        sum += fmax (0, plan->seconds[role][op] - gap);
    }
  }
  return sum / roles;
}

/* Multiplies the value of each field by predicted / measured, and prices the plan with the
 * result. */
static void
improve (weft_plan *plan, const weft_measured *m, GArray *fitted, union weft_stack *stack)
{
  for (guint i = 0; i < fitted->len; i++) {
    struct weft_stack_fitted *f = &g_array_index (fitted, struct weft_stack_fitted, i);
    f->after = CLAMP (f->after * priced_seconds (plan, m, f->work) / f->measured, LEAST, MOST);
  }
  for (guint i = 0; i < fitted->len; i++) {
    const struct weft_stack_fitted *f = &g_array_index (fitted, struct weft_stack_fitted, i);
    stack->at[f->row].r = f->after;
  }
  weft_plan_price (plan, &plan->job.cluster.f, stack);
}

GArray *
weft_stack_fit_new (weft_plan *plan, const weft_measured *m)
{
  GArray *fitted = g_array_new (FALSE, FALSE, sizeof (struct weft_stack_fitted));
  union weft_stack stack = plan->job.stack;
  const union weft_stack before = plan->job.stack;

  for (unsigned i = 0; i < G_N_ELEMENTS (fields); i++) {
    double value = stack.at[fields[i].row].r;
    struct weft_stack_fitted f = { .row = fields[i].row, .work = fields[i].work };
    f.before = f.after = value > 0 ? value : stack.memory_share;
    f.measured = m->mean.cell[f.work][WEFT_LANE_GPU].busy_s;
    if (f.measured > 0 && priced_seconds (plan, m, f.work) > 0)
      g_array_append_val (fitted, f);
  }
  for (int round = 0; round < MOST_ROUNDS; round++)
    improve (plan, m, fitted, &stack);
  for (guint i = 0; i < fitted->len; i++) {
    struct weft_stack_fitted *f = &g_array_index (fitted, struct weft_stack_fitted, i);
    f->predicted = priced_seconds (plan, m, f->work);
  }
  weft_plan_price (plan, &plan->job.cluster.f, &before);
  return fitted;
}

char *
weft_stack_fit_print (const weft_plan *plan, const GArray *fitted, const char *source)
{
  const char *name = g_quark_to_string ((GQuark) plan->job.stack.name);
  GString *text = g_string_new (NULL);

  g_string_append_printf (text,
                          "# Stack %s with efficiencies out of one profile (weft compare):\n"
                          "# %s\n\n[stack]\nbase = %s\nname = %s-fitted\n",
                          name, source, name, name);
  for (guint i = 0; i < fitted->len; i++) {
    const struct weft_stack_fitted *f = &g_array_index (fitted, struct weft_stack_fitted, i);
    g_string_append_printf (text,
                            "# fitted: %s of %.4g s measured, %.4g s with this value, which was "
                            "%.3g\n%s = %.4g\n",
                            weft_work_words[f->work], f->measured, f->predicted, f->before,
                            weft_stack_table.field[f->row].name, f->after);
  }
  return g_string_free (text, FALSE);
}
