/* Load balancing without an auxiliary loss (Wang et al. 2024, arXiv 2408.15664; DeepSeek-V3, arXiv
 * 2412.19437, section 2.1.2): after each batch the routing bias of an expert moves by one step: up
 * if the expert got fewer tokens than the mean of its layer, down if it got more (Megatron-Core
 * moe_utils.py, get_updated_expert_bias).
 *
 * Token counts are whole numbers in fp32, exact in any order of addition up to 2^24 tokens per
 * expert. */
#include "kernels/kernel.h"

enum { CHOICE, TALLY };
enum { BALANCE_TALLY, BIAS };
enum { TOKENS, EXPERTS, TOPK };
enum { LAYERS, OF_LAYER };

uint64_t
weft_extent_moe_tally (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return operand == CHOICE ? dim[TOKENS] * dim[TOPK] : dim[EXPERTS];
}

uint64_t
weft_extent_moe_balance (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[LAYERS] * k->shape.dim[OF_LAYER];
}

void
weft_cpu_moe_tally (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const int32_t *choice = k->operand[CHOICE].data;
  float *tally = k->operand[TALLY].data;

  (void) part, (void) parts;
  for (uint64_t i = 0; i < k->operand[CHOICE].n; i++)
    tally[choice[i]] += 1;
}

/* Change of an expert's routing bias. `tally` is the number of tokens that the expert received; the
 * function compares it with the mean, sum / number of experts, without dividing. */
static double
step (const struct weft_kernel *k, double sum, double tally)
{
  double less = sum - tally * (double) k->shape.dim[OF_LAYER];

  return k->model->moe_router_bias_update_rate * ((less > 0) - (less < 0));
}

void
weft_cpu_moe_balance (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t n = k->shape.dim[OF_LAYER];

  (void) part, (void) parts;
  for (uint64_t layer = 0; layer < k->shape.dim[LAYERS]; layer++) {
    const float *tally = (const float *) k->operand[BALANCE_TALLY].data + layer * n;
    float *bias = (float *) k->operand[BIAS].data + layer * n;
    double sum = 0;
    for (uint64_t e = 0; e < n; e++)
      sum += (double) tally[e];
    for (uint64_t e = 0; e < n; e++)
      bias[e] += (float) step (k, sum, (double) tally[e]);
  }
}

/* ---------------------------------------------------------------------- reference */

void
weft_ref_moe_tally (const struct weft_kernel *k)
{
  const int32_t *choice = k->operand[CHOICE].data;
  double *tally = k->operand[TALLY].data;

  for (uint64_t e = 0; e < k->shape.dim[EXPERTS]; e++)
    for (uint64_t i = 0; i < k->operand[CHOICE].n; i++)
      tally[e] += choice[i] == (int32_t) e;
}

void
weft_ref_moe_balance (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[OF_LAYER];
  const double *tally = k->operand[BALANCE_TALLY].data;
  double *bias = k->operand[BIAS].data;

  for (uint64_t i = 0; i < k->shape.dim[LAYERS] * n; i++) {
    double sum = 0;
    for (uint64_t e = i / n * n; e < (i / n + 1) * n; e++)
      sum += tally[e];
    bias[i] += step (k, sum, tally[i]);
  }
}
