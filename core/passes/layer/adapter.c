/* LoRA adapters of linear layers: y = W x + (lora_alpha / lora_dim) B (A x), arXiv 2106.09685.
 *
 * A and B are linear layers of their own (linear.c), so their collectives are those of linear
 * layers that are divided like their matrices (adapter_extent() in params.c). If W is divided by
 * rows, A runs on the rank's own rows of x; with sequence_parallel the small product A x is
 * all-gathered for B, and the gradient of A x is a sum over the ranks. If W is divided by columns,
 * A x is a sum over the ranks, and B runs on the rank's own rows. The factor is applied to A x,
 * which is the smallest of the products; backward stores the scaled A x. */
#include "core/passes/layer/block.h"

/* Place for the scaled A x of a linear map in the current microbatch and layer. */
static uint32_t *
adapted (const struct weft_step *s, enum weft_layer_param a)
{
  size_t slot = (size_t) s->at.micro * s->n_layers + weft_step_slot (s, s->at.layer);

  return &s->layer->adapted[slot * WEFT_N_LORA + (a - WEFT_QKV_LORA_A) / 2];
}

static char *
part_name (const char *name, char matrix)
{
  return g_strdup_printf ("%s_lora_%c", name, matrix);
}

/* Multiplies a buffer by lora_alpha / lora_dim in place. */
static void
scale (struct weft_step *s, const char *name, uint32_t buf)
{
  const union weft_train *t = &s->job->train;

  if (t->lora_alpha != t->lora_dim)
    weft_emit (s, WEFT_OP_SCALE, name,
               WEFT_SHAPE (weft_build_buf_at (s->b, buf)->dtype, weft_step_elements (s, buf), 1,
                           (uint64_t) t->lora_dim, (uint64_t) t->lora_alpha),
               WEFT_USES (WEFT_RW (buf), WEFT_R (WEFT_NO_BUF)));
}

static uint32_t
add (struct weft_step *s, const char *name, const uint32_t term[2], uint64_t columns)
{
  enum weft_dtype dtype = weft_build_buf_at (s->b, term[0])->dtype;
  uint64_t n = weft_step_elements (s, term[0]);
  uint32_t sum = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, n, name);

  weft_emit (s, WEFT_OP_ADD, name, WEFT_SHAPE (dtype, n / columns, columns),
             WEFT_USES (WEFT_R (term[0]), WEFT_R (term[1]), WEFT_W (sum)));
  return sum;
}

uint32_t
weft_linear (struct weft_step *s, const char *name, enum weft_layer_param which, uint32_t x,
             uint64_t n, uint64_t k)
{
  const struct weft_lora_pair lora = weft_params_lora (s, which);
  uint32_t y = weft_linear_alone (s, name, which, x, n, k);
  uint64_t rank = (uint64_t) s->job->train.lora_dim;

  if (lora.a == WEFT_N_LAYER_PARAM)
    return y;
  g_autofree char *a = part_name (name, 'a'), *b = part_name (name, 'b');
  uint32_t ax = weft_linear_alone (s, a, lora.a, x, rank, k);
  scale (s, a, ax);
  *adapted (s, lora.a) = ax;
  return add (s, b, (const uint32_t[]){ y, weft_linear_alone (s, b, lora.b, ax, n, rank) }, n);
}

uint32_t
weft_linear_backward (struct weft_step *s, const char *name, enum weft_layer_param which,
                      uint32_t dy, uint32_t x, uint64_t n, uint64_t k)
{
  const struct weft_lora_pair lora = weft_params_lora (s, which);
  struct weft_linear_operands o = { dy, x, weft_params_flows_below (s, which) };
  uint64_t rank = (uint64_t) s->job->train.lora_dim;

  if (lora.a == WEFT_N_LAYER_PARAM)
    return weft_linear_alone_backward (s, name, which, o, (const uint64_t[]){ n, k });
  g_autofree char *a = part_name (name, 'a'), *b = part_name (name, 'b');
  uint32_t dax = weft_linear_alone_backward (
      s, b, lora.b, (struct weft_linear_operands){ dy, *adapted (s, lora.a), TRUE },
      (const uint64_t[]){ n, rank });
  scale (s, a, dax);
  uint32_t dx_adapter =
      weft_linear_alone_backward (s, a, lora.a, (struct weft_linear_operands){ dax, x, o.flows },
                                  (const uint64_t[]){ rank, k });
  uint32_t dx = weft_linear_alone_backward (s, name, which, o, (const uint64_t[]){ n, k });
  return o.flows ? add (s, a, (const uint32_t[]){ dx, dx_adapter }, k) : WEFT_NO_BUF;
}
