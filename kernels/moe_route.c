/* MoE router: selects the experts of each token and their weights.
 *
 * Scores of a token over the E experts, as in Megatron-Core's router (moe_utils.py,
 * topk_routing_with_score_function):
 *
 *   softmax after the selection   the k largest logits; weights are the softmax of these k logits
 *   softmax before the selection  the k largest values of the softmax over all experts; weights
 *                                 are these values
 *   sigmoid                       the k largest values of logistic (logit) + bias; weights are
 *                                 logistic (logit), divided by their sum if k > 1
 *
 * Weights are then multiplied by moe_router_topk_scaling_factor. With group-limited routing
 * (DeepSeek-V2, arXiv 2405.04434, and V3, arXiv 2412.19437), only experts of the best groups are
 * eligible; the value of a group is the sum of its best k / moe_router_group_topk values. Ties go
 * to the lower expert number. The experts of a token are listed by number, not by weight: their
 * outputs are added in that order.
 *
 * `scores` stores the values that backward needs: the whole softmax, the logistic values, or the
 * softmax over the chosen experts and 0 for the others. */
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include <math.h>

enum { LOGITS, BIAS, SCORES, CHOICE, PROB };
enum { BWD_SCORES, BWD_CHOICE, DPROB, DLOGITS };
enum { TOKENS, EXPERTS, TOPK };

#define NOBODY 1e-20 /* is added to a sum of logistic values, because all of them may be 0 */

uint64_t
weft_extent_moe_route (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  if (operand == BIAS)
    return dim[EXPERTS];
  return dim[TOKENS] * (operand == CHOICE || operand == PROB ? dim[TOPK] : dim[EXPERTS]);
}

uint64_t
weft_extent_moe_route_bwd (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return dim[TOKENS] * (operand == BWD_CHOICE || operand == DPROB ? dim[TOPK] : dim[EXPERTS]);
}

/* ---------------------------------------------------------------------- selection */

/* Inputs for selecting the experts of one token: a value for each expert, the bias of each expert,
 * and the groups of experts. */
struct candidates {
  /* values of the experts in fp64 (reference); NULL: the values are in `number` */
  const double *value;
  const float *number; /* fp32 values */
  struct weft_operand bias;
  uint64_t n, group, n_group, best_groups, topk; /* n: experts; group: experts per group; n_group:
                                                  * groups; topk: experts per token */
};

static double
bias_of (const struct weft_operand *bias, uint64_t i, gboolean doubles)
{
  float room;

  if (!bias->data)
    return 0;
  return doubles ? ((const double *) bias->data)[i]
                 : (double) *weft_floats (bias->data, bias->dtype, i, 1, &room);
}

/* Value of an expert plus its bias; the sum of fp32 values is rounded to fp32. NaN sorts last. */
static double
value_of (const struct candidates *c, uint64_t i)
{
  double value = c->value ? c->value[i] + bias_of (&c->bias, i, TRUE)
                          : (double) (c->number[i] + (float) bias_of (&c->bias, i, FALSE));

  return isnan (value) ? -INFINITY : value;
}

/* Finds the candidate in [first, last) that follows `before` if candidates are sorted by value
 * (largest first), then by number. `before` = last: finds the first one. Returns `last` if there is
 * none. */
static uint64_t
next_best (const struct candidates *c, uint64_t first, uint64_t last, uint64_t before)
{
  uint64_t best = last;

  for (uint64_t i = first; i < last; i++) {
    double value = value_of (c, i);
    double limit = before == last ? INFINITY : value_of (c, before);
    gboolean open = before == last || value < limit || (value == limit && i > before);
    if (open && (best == last || value > value_of (c, best)))
      best = i;
  }
  return best;
}

/* Value of a group of experts: the sum of its best values. */
static double
group_value (const struct candidates *c, uint64_t group)
{
  uint64_t first = group * c->group, last = first + c->group, at = last;
  double sum = 0;

  for (uint64_t i = 0; i < MAX (1, c->topk / c->best_groups); i++) {
    uint64_t next = next_best (c, first, last, at);
    if (next == last)
      break;
    sum = c->value ? sum + value_of (c, next) : (double) ((float) sum + (float) value_of (c, next));
    at = next;
  }
  return sum;
}

/* Whether a group is eligible: fewer than best_groups groups have a better value. */
static gboolean
group_is_open (const struct candidates *c, uint64_t group)
{
  uint64_t before = 0;
  double mine = group_value (c, group);

  for (uint64_t g = 0; g < c->n_group && before < c->best_groups; g++) {
    double value = g == group ? mine : group_value (c, g);
    before += value > mine || (value == mine && g < group);
  }
  return before < c->best_groups;
}

static void
insert (int32_t *choice, uint64_t n, int32_t expert)
{
  for (; n > 0 && choice[n - 1] > expert; n--)
    choice[n] = choice[n - 1];
  choice[n] = expert;
}

#define MOST_GROUPS 4096

/* Selects the experts of one token, listed by number. */
static void
choose (const struct candidates *c, int32_t *choice)
{
  uint8_t open[MOST_GROUPS];
  uint64_t at = c->n, n = 0;

  for (uint64_t g = 0; g < c->n_group; g++)
    open[g] = c->n_group == c->best_groups || group_is_open (c, g);
  while (n < c->topk && (at = next_best (c, 0, c->n, at)) < c->n)
    if (open[at / c->group])
      insert (choice, n++, (int32_t) at);
  g_assert (n == c->topk);
}

static struct candidates
candidates_of (const struct weft_kernel *k)
{
  const union weft_model *m = k->model;
  gboolean grouped = m->moe_router_num_groups > 0;
  uint64_t n = k->shape.dim[EXPERTS], groups = grouped ? (uint64_t) m->moe_router_num_groups : 1;

  g_assert (groups <= MOST_GROUPS);
  return (struct candidates){ .bias = k->operand[BIAS],
                              .n = n,
                              .group = n / groups,
                              .n_group = groups,
                              .best_groups = grouped ? (uint64_t) m->moe_router_group_topk : 1,
                              .topk = k->shape.dim[TOPK] };
}

/* ------------------------------------------------------------------------ forward */

/* Softmax in place: exp (x - largest) divided by the sum of these exponentials. */
static void
softmax (float *x, uint64_t n)
{
  float most = x[0], sum = 0;

  for (uint64_t i = 1; i < n; i++)
    most = x[i] > most ? x[i] : most;
  for (uint64_t i = 0; i < n; i++)
    sum += x[i] = weft_expf (x[i] - most);
  for (uint64_t i = 0; i < n; i++)
    x[i] /= sum;
}

static void
logistics (float *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++) {
    float e = weft_expf (x[i] < 0 ? x[i] : -x[i]);
    x[i] = x[i] < 0 ? e / (1 + e) : 1 / (1 + e);
  }
}

/* Softmax over the chosen experts only; the scores of the others become 0. */
static void
softmax_of_chosen (float *scores, uint64_t n, const int32_t *choice, float *weight, uint64_t topk)
{
  for (uint64_t i = 0; i < topk; i++)
    weight[i] = scores[choice[i]];
  softmax (weight, topk);
  memset (scores, 0, n * sizeof *scores);
  for (uint64_t i = 0; i < topk; i++)
    scores[choice[i]] = weight[i];
}

#define MOST_TOPK 1024

static void
route_token (const struct weft_kernel *k, struct candidates *c, uint64_t token)
{
  const struct weft_operand *o = k->operand;
  const union weft_model *m = k->model;
  uint64_t n = c->n;
  float *scores = (float *) o[SCORES].data + token * n, weight[MOST_TOPK], sum = 0;
  int32_t *choice = (int32_t *) o[CHOICE].data + token * c->topk;

  for (uint64_t i = 0; i < n; i += WEFT_STRETCH) {
    uint64_t few = weft_least (n - i, WEFT_STRETCH);
    const float *from =
        weft_floats (o[LOGITS].data, o[LOGITS].dtype, token * n + i, few, scores + i);
    memmove (scores + i, from, few * sizeof *from);
  }
  gboolean sigmoid = m->moe_router_score_function == WEFT_SCORE_SIGMOID;
  if (sigmoid)
    logistics (scores, n);
  else if (m->moe_router_pre_softmax)
    softmax (scores, n);
  c->number = scores;
  choose (c, choice);
  if (!sigmoid && !m->moe_router_pre_softmax)
    softmax_of_chosen (scores, n, choice, weight, c->topk);
  for (uint64_t i = 0; i < c->topk; i++)
    sum += weight[i] = scores[choice[i]];
  for (uint64_t i = 0; i < c->topk; i++) {
    weight[i] = sigmoid && c->topk > 1 ? weight[i] / (sum + (float) NOBODY) : weight[i];
    weight[i] *= (float) m->moe_router_topk_scaling_factor;
  }
  weft_store (o[PROB].data, o[PROB].dtype, token * c->topk, c->topk, weight);
}

void
weft_cpu_moe_route (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range tokens = weft_part (k->shape.dim[TOKENS], 16, part, parts);
  struct candidates c = candidates_of (k);

  g_assert (c.topk <= MOST_TOPK);
  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    route_token (k, &c, t);
}

/* ----------------------------------------------------------------------- backward */

/* Gradient of the logits of a softmax: s (g - sum of s g), with g the gradient of the weights, 0
 * for experts that were not chosen. */
static void
softmax_bwd (const float *s, const int32_t *choice, const float *g, uint64_t n, uint64_t topk,
             float *d)
{
  float mean = 0;

  for (uint64_t i = 0; i < topk; i++)
    mean += s[choice[i]] * g[i];
  for (uint64_t i = 0; i < n; i++)
    d[i] = -(s[i] * mean);
  for (uint64_t i = 0; i < topk; i++)
    d[choice[i]] = s[choice[i]] * (g[i] - mean);
}

/* Gradient of the logits of logistic values s that were divided by their sum, p = s / sum: (g - sum
 * of p g) / sum, times s (1 - s). */
static void
sigmoid_bwd (const float *s, const int32_t *choice, const float *g, uint64_t n, uint64_t topk,
             float *d)
{
  float sum = 0, mean = 0;

  for (uint64_t i = 0; i < topk; i++)
    sum += s[choice[i]];
  sum += (float) NOBODY;
  for (uint64_t i = 0; i < topk && topk > 1; i++)
    mean += s[choice[i]] / sum * g[i];
  memset (d, 0, n * sizeof *d);
  for (uint64_t i = 0; i < topk; i++) {
    float of_score = topk > 1 ? (g[i] - mean) / sum : g[i];
    d[choice[i]] = of_score * s[choice[i]] * (1 - s[choice[i]]);
  }
}

#define MOST_EXPERTS 65536

void
weft_cpu_moe_route_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t n = k->shape.dim[EXPERTS], topk = k->shape.dim[TOPK];
  struct weft_range tokens = weft_part (k->shape.dim[TOKENS], 16, part, parts);
  const struct weft_operand *o = k->operand;
  float room[MOST_TOPK], g[MOST_TOPK], d[MOST_EXPERTS];

  g_assert (topk <= MOST_TOPK && n <= MOST_EXPERTS);
  for (uint64_t t = tokens.begin; t < tokens.end; t++) {
    const float *scores = (const float *) o[BWD_SCORES].data + t * n;
    const int32_t *choice = (const int32_t *) o[BWD_CHOICE].data + t * topk;
    const float *of_prob = weft_floats (o[DPROB].data, o[DPROB].dtype, t * topk, topk, room);
    for (uint64_t i = 0; i < topk; i++)
      g[i] = of_prob[i] * (float) k->model->moe_router_topk_scaling_factor;
    if (k->model->moe_router_score_function == WEFT_SCORE_SIGMOID)
      sigmoid_bwd (scores, choice, g, n, topk, d);
    else
      softmax_bwd (scores, choice, g, n, topk, d);
    weft_store (o[DLOGITS].data, o[DLOGITS].dtype, t * n, n, d);
  }
}

/* ---------------------------------------------------------------------- reference */

static void
ref_softmax (double *x, uint64_t n, const double *among)
{
  double sum = 0;

  for (uint64_t i = 0; i < n; i++)
    sum += x[i] = among[i] > 0 ? exp (x[i]) : 0;
  for (uint64_t i = 0; i < n; i++)
    x[i] /= sum;
}

static void
ref_token (const struct weft_kernel *k, uint64_t token)
{
  struct candidates c = candidates_of (k);
  const union weft_model *m = k->model;
  gboolean sigmoid = m->moe_router_score_function == WEFT_SCORE_SIGMOID;
  double *scores = (double *) k->operand[SCORES].data + token * c.n;
  double *prob = (double *) k->operand[PROB].data + token * c.topk, sum = 0;
  int32_t *choice = (int32_t *) k->operand[CHOICE].data + token * c.topk;
  g_autofree double *among = g_new0 (double, c.n);

  for (uint64_t i = 0; i < c.n; i++) {
    scores[i] = ((const double *) k->operand[LOGITS].data)[token * c.n + i];
    scores[i] = sigmoid ? 1 / (1 + exp (-scores[i])) : scores[i];
    among[i] = m->moe_router_pre_softmax;
  }
  if (!sigmoid && m->moe_router_pre_softmax)
    ref_softmax (scores, c.n, among);
  c.value = scores;
  choose (&c, choice);
  for (uint64_t i = 0; i < c.topk; i++)
    among[choice[i]] = 1;
  if (!sigmoid && !m->moe_router_pre_softmax)
    ref_softmax (scores, c.n, among);
  for (uint64_t i = 0; i < c.topk; i++)
    sum += scores[choice[i]];
  for (uint64_t i = 0; i < c.topk; i++)
    prob[i] =
        scores[choice[i]] / (sigmoid && c.topk > 1 ? sum : 1) * m->moe_router_topk_scaling_factor;
}

void
weft_ref_moe_route (const struct weft_kernel *k)
{
  for (uint64_t t = 0; t < k->shape.dim[TOKENS]; t++)
    ref_token (k, t);
}

/* Gradient: derivative of router weight i with respect to router logit j, computed from the
 * scores. */
static double
ref_slope (const struct weft_kernel *k, const double *s, const int32_t *choice, uint64_t i,
           uint64_t j)
{
  uint64_t topk = k->shape.dim[TOPK], at = (uint64_t) choice[i];
  double sum = 0, chosen = 0;

  if (k->model->moe_router_score_function != WEFT_SCORE_SIGMOID)
    return s[at] * ((at == j) - s[j]);
  if (topk == 1)
    return at == j ? s[j] * (1 - s[j]) : 0;
  for (uint64_t e = 0; e < topk; e++) {
    sum += s[choice[e]];
    chosen += (uint64_t) choice[e] == j;
  }
  return chosen * s[j] * (1 - s[j]) * ((at == j) / sum - s[at] / (sum * sum));
}

void
weft_ref_moe_route_bwd (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[EXPERTS], topk = k->shape.dim[TOPK];
  const double *dprob = k->operand[DPROB].data;
  double *d = k->operand[DLOGITS].data;

  for (uint64_t t = 0; t < k->shape.dim[TOKENS]; t++)
    for (uint64_t j = 0; j < n; j++) {
      d[t * n + j] = 0;
      for (uint64_t i = 0; i < topk; i++)
        d[t * n + j] += dprob[t * topk + i] * k->model->moe_router_topk_scaling_factor *
                        ref_slope (k, (const double *) k->operand[BWD_SCORES].data + t * n,
                                   (const int32_t *) k->operand[BWD_CHOICE].data + t * topk, i, j);
    }
}
