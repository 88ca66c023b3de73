/* AdamW whose moments are codes of 8 bits (Dettmers et al. 2022, arXiv 2110.02861). The order is
 * that of bitsandbytes (csrc/kernels.cu, kOptimizerStatic8bit2StateBlockwise): moments are decoded
 * and updated in fp32, the weight takes its step from them, then each moment is divided by the
 * largest magnitude of its block and rounded to the nearest number of a table. The weight decays
 * before its step, as in adam.c; bitsandbytes decays it after. */
#include "kernels/adam_rates.h"
#include "kernels/eight_bits.h"
#include "kernels/float.h"
#include "kernels/part.h"
#include <math.h>

enum { GRAD, FACTOR, PARAM, MASTER, M, V, M_SCALE, V_SCALE };

uint64_t
weft_extent_adam_8bit (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t n = k->shape.dim[0];

  return operand == FACTOR    ? 1
         : operand >= M_SCALE ? (n + WEFT_8BIT_BLOCK - 1) / WEFT_8BIT_BLOCK
                              : n;
}

/* Decodes n <= WEFT_8BIT_BLOCK moments of a block. */
static void
decode (const struct weft_operand *codes, const struct weft_operand *scales, uint64_t block,
        uint64_t n, const float *table, float *out)
{
  const uint8_t *code = (const uint8_t *) codes->data + block * WEFT_8BIT_BLOCK;
  float scale = ((const float *) scales->data)[block];

  for (uint64_t i = 0; i < n; i++)
    out[i] = table[code[i]] * scale;
}

static void
encode (const struct weft_operand *codes, const struct weft_operand *scales, uint64_t block,
        uint64_t n, const float *table, const float *in)
{
  uint8_t *code = (uint8_t *) codes->data + block * WEFT_8BIT_BLOCK;
  float most = 0;

  for (uint64_t i = 0; i < n; i++)
    most = fmaxf (most, fabsf (in[i]));
  ((float *) scales->data)[block] = most;
  for (uint64_t i = 0; i < n; i++)
    code[i] = weft_eight_bits_code (table, most > 0 ? in[i] / most : 0);
}

static void
update_block (const struct weft_kernel *k, const struct weft_adam_rates *r, uint64_t block)
{
  const struct weft_operand *o = k->operand;
  const struct weft_operand *to = o[MASTER].data ? &o[MASTER] : &o[PARAM];
  const float *first = weft_eight_bits_table (TRUE), *second = weft_eight_bits_table (FALSE);
  uint64_t at = block * WEFT_8BIT_BLOCK, n = weft_least (k->shape.dim[0] - at, WEFT_8BIT_BLOCK);
  float grads[WEFT_8BIT_BLOCK], weights[WEFT_8BIT_BLOCK], m[WEFT_8BIT_BLOCK], v[WEFT_8BIT_BLOCK];
  const float *grad = weft_floats (o[GRAD].data, o[GRAD].dtype, at, n, grads);
  const float *old = weft_floats (to->data, to->dtype, at, n, weights);

  decode (&o[M], &o[M_SCALE], block, n, first, m);
  decode (&o[V], &o[V_SCALE], block, n, second, v);
  for (uint64_t i = 0; i < n; i++) {
    float g = grad[i] * r->factor;
    m[i] = r->beta1 * m[i] + r->new1 * g;
    v[i] = r->beta2 * v[i] + r->new2 * (g * g);
    weights[i] = old[i] * r->keep - r->step * (m[i] / (sqrtf (v[i]) * r->unbias + r->epsilon));
  }
  encode (&o[M], &o[M_SCALE], block, n, first, m);
  encode (&o[V], &o[V_SCALE], block, n, second, v);
  weft_store (to->data, to->dtype, at, n, weights);
  if (o[MASTER].data && o[PARAM].data)
    weft_store (o[PARAM].data, o[PARAM].dtype, at, n, weights);
}

/* A skipped step changes nothing but weights that have not been initialised: adam.c. */
void
weft_cpu_adam_8bit (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  const float *factor = o[FACTOR].data;
  const struct weft_adam_rates r = weft_adam_rates (k, factor ? *factor : 1);
  struct weft_range range = weft_part (k->shape.dim[0], WEFT_8BIT_BLOCK, part, parts);

  for (uint64_t at = range.begin; at < range.end && r.factor != 0; at += WEFT_8BIT_BLOCK)
    update_block (k, &r, at / WEFT_8BIT_BLOCK);
  if (r.factor == 0 && o[MASTER].data && o[PARAM].data && !o[PARAM].accumulate)
    weft_store (o[PARAM].data, o[PARAM].dtype, range.begin, range.end - range.begin,
                (const float *) o[MASTER].data + range.begin);
}

/* -------------------------------------------------------------------- reference */

static void
reference_block (const struct weft_kernel *k, double factor, uint64_t block)
{
  const struct weft_operand *o = k->operand;
  const struct weft_control *c = k->control;
  uint64_t at = block * WEFT_8BIT_BLOCK, n = weft_least (k->shape.dim[0] - at, WEFT_8BIT_BLOCK);
  double *weight = (double *) (o[MASTER].data ? o[MASTER].data : o[PARAM].data) + at;
  double *param = o[PARAM].data, *scale[] = { o[M_SCALE].data, o[V_SCALE].data }, most[2] = { 0 };
  double t = (double) c->step, moment[2][WEFT_8BIT_BLOCK];
  const double *grad = (const double *) o[GRAD].data + at, beta[] = { c->beta1, c->beta2 };
  uint8_t *code[] = { (uint8_t *) o[M].data + at, (uint8_t *) o[V].data + at };

  for (uint64_t i = 0; i < n; i++) {
    for (int w = 0; w < 2; w++) {
      double g = grad[i] * factor, old = weft_eight_bits_table (w == 0)[code[w][i]];
      moment[w][i] = beta[w] * old * scale[w][block] + (1 - beta[w]) * (w ? g * g : g);
      most[w] = fmax (most[w], fabs (moment[w][i]));
    }
    double m = moment[0][i] / (1 - pow (beta[0], t)), v = moment[1][i] / (1 - pow (beta[1], t));
    weight[i] -= k->decay ? c->lr * c->weight_decay * weight[i] : 0;
    weight[i] -= c->lr * m / (sqrt (v) + c->epsilon);
    if (param)
      param[at + i] = weight[i];
  }
  for (int w = 0; w < 2; w++) {
    scale[w][block] = most[w];
    for (uint64_t i = 0; i < n; i++)
      code[w][i] = weft_eight_bits_code (weft_eight_bits_table (w == 0),
                                         (float) (most[w] > 0 ? moment[w][i] / most[w] : 0));
  }
}

void
weft_ref_adam_8bit (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  double factor = o[FACTOR].data ? *(const double *) o[FACTOR].data : 1;
  double *param = o[PARAM].data;

  for (uint64_t at = 0; at < k->shape.dim[0] && factor != 0; at += WEFT_8BIT_BLOCK)
    reference_block (k, factor, at / WEFT_8BIT_BLOCK);
  for (uint64_t i = 0; i < k->shape.dim[0] && factor == 0 && param && o[MASTER].data &&
                       !o[PARAM].accumulate; i++)
    param[i] = ((const double *) o[MASTER].data)[i];
}
