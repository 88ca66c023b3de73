/* AdamW: weight decay is applied to the weight, not to its gradient (Loshchilov and Hutter, arXiv
 * 1711.05101), in the order of torch.optim.AdamW: decay, moments, step. */
#include "kernels/adam_rates.h"
#include "kernels/stochastic.h"
#include "kernels/elementwise.h"
#include "kernels/float.h"
#include "kernels/part.h"
#include <math.h>

enum { GRAD, FACTOR, PARAM, MASTER, M, V };
enum { STOCHASTIC = 2 }; /* number of the dimension that is 1 if the op rounds stochastically */

uint64_t
weft_extent_adam (const struct weft_kernel *k, uint32_t operand)
{
  return operand == FACTOR ? 1 : k->shape.dim[0];
}

WEFT_WIDE static void
update (const void *with, float *const *at, uint64_t count)
{
  const struct weft_adam_rates r = *(const struct weft_adam_rates *) with;
  const float *grad = at[GRAD];
  float *weight = at[MASTER] ? at[MASTER] : at[PARAM], *m = at[M], *v = at[V];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < count; i++) {
    float g = grad[i] * r.factor;
    m[i] = r.beta1 * m[i] + r.new1 * g;
    v[i] = r.beta2 * v[i] + r.new2 * (g * g);
    weight[i] = weight[i] * r.keep - r.step * (m[i] / (sqrtf (v[i]) * r.unbias + r.epsilon));
  }
}

/* Updates weights that are stored as bf16 only, without fp32 masters, with stochastic rounding. */
static void
update_stochastic (const struct weft_kernel *k, const struct weft_adam_rates *r, uint32_t part,
                   uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  struct weft_range range = weft_part (k->shape.dim[0], WEFT_STRETCH, part, parts);
  float grad[WEFT_STRETCH], param[WEFT_STRETCH], m[WEFT_STRETCH], v[WEFT_STRETCH];
  const uint64_t key = weft_stochastic_key (k);

  for (uint64_t first = range.begin; first < range.end; first += WEFT_STRETCH) {
    uint64_t n = weft_least (range.end - first, WEFT_STRETCH);
    float *at[] = {
      [GRAD] = (float *) weft_floats (o[GRAD].data, o[GRAD].dtype, first, n, grad),
      [PARAM] = (float *) weft_floats (o[PARAM].data, o[PARAM].dtype, first, n, param),
      [M] = (float *) weft_floats (o[M].data, o[M].dtype, first, n, m),
      [V] = (float *) weft_floats (o[V].data, o[V].dtype, first, n, v),
    };
    update (r, at, n);
    for (uint64_t i = 0; i < n; i++)
      param[i] = weft_bf16_stochastic (
          param[i], weft_random_key (key, weft_whole_element (&k->whole, first + i)));
    for (uint32_t operand = PARAM; operand <= V; operand++)
      if (at[operand])
        weft_store (o[operand].data, o[operand].dtype, first, n, at[operand]);
  }
}

static void
update_both (const void *with, float *const *at, uint64_t n)
{
  update (with, at, n);
  if (at[PARAM])
    memcpy (at[PARAM], at[MASTER], n * sizeof (float));
}

/* A skipped step changes no operand; only weights that have not been initialised are copied from
 * their masters. Weights stored in fp8 are not an operand of adam: fp8_weights.c rounds them after
 * adam. */
static void
keep (const void *with, float *const *at, uint64_t n)
{
  (void) with;
  memcpy (at[PARAM], at[MASTER], n * sizeof (float));
}

void
weft_cpu_adam (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const float *factor = k->operand[FACTOR].data;
  struct weft_adam_rates r = weft_adam_rates (k, factor ? *factor : 1);
  gboolean master = k->operand[MASTER].data != NULL;
  gboolean copies = master && k->operand[PARAM].data && !k->operand[PARAM].accumulate;
  struct weft_elementwise flat = { master ? "r-wuuu" : "r-u-uu", k->shape.dim[0],
                                   master ? update_both : update, &r };

  if (k->shape.dim[STOCHASTIC] && r.factor != 0) {
    update_stochastic (k, &r, part, parts);
    return;
  }
  if (r.factor == 0)
    flat = (struct weft_elementwise){ "--wr--", k->shape.dim[0], keep, NULL };
  if (r.factor != 0 || copies)
    weft_elementwise_run (k, &flat, part, parts);
}

/* -------------------------------------------------------------------- reference */

void
weft_ref_adam (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  const struct weft_control *c = k->control;
  const double *grad = o[GRAD].data;
  double factor = o[FACTOR].data ? *(const double *) o[FACTOR].data : 1;
  double *param = o[PARAM].data, *weight = o[MASTER].data ? o[MASTER].data : param;
  double *m = o[M].data, *v = o[V].data, t = (double) c->step;

  for (uint64_t i = 0; i < k->shape.dim[0] && factor != 0; i++) {
    double g = grad[i] * factor;
    weight[i] -= k->decay ? c->lr * c->weight_decay * weight[i] : 0;
    m[i] = c->beta1 * m[i] + (1 - c->beta1) * g;
    v[i] = c->beta2 * v[i] + (1 - c->beta2) * g * g;
    double m_hat = m[i] / (1 - pow (c->beta1, t)), v_hat = v[i] / (1 - pow (c->beta2, t));
    weight[i] -= c->lr * m_hat / (sqrt (v_hat) + c->epsilon);
    if (param)
      param[i] = weight[i];
  }
  for (uint64_t i = 0; i < k->shape.dim[0] && factor == 0 && param && !o[PARAM].accumulate; i++)
    param[i] = weight[i];
}
