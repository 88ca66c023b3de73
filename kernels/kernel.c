#include "kernels/kernel.h"
#include "core/base/error.h"
#include <string.h>

const struct weft_kernel_row weft_kernels[WEFT_N_OP] = {
#define WEFT_KERNEL_ROW(id, name, splits)                                                          \
  [id] = { weft_cpu_##name, weft_ref_##name, weft_extent_##name, splits },
  WEFT_KERNEL_LIST (WEFT_KERNEL_ROW)
#undef WEFT_KERNEL_ROW
};

/* Names of operands that are indices, and what they stay below; rows and targets may be -1. */
static gboolean
is_index (const char *name, const struct weft_kernel *k, int64_t *limit)
{
  gboolean token = g_str_equal (name, "ids") || g_str_equal (name, "targets");

  if (token)
    *limit = k->model->vocab_size;
  else if (g_str_equal (name, "choice"))
    *limit = k->model->num_moe_experts;
  else if (g_str_equal (name, "row") || g_str_equal (name, "counts") || g_str_equal (name, "send"))
    *limit = INT32_MAX;
  else
    return FALSE;
  return TRUE;
}

static gboolean
is_below (const struct weft_operand *o, int64_t least, int64_t limit)
{
  for (uint64_t i = 0; i < o->n; i++) {
    int64_t value =
        o->dtype == WEFT_INT64 ? ((const int64_t *) o->data)[i] : ((const int32_t *) o->data)[i];
    if (value < least || value >= limit)
      return FALSE;
  }
  return TRUE;
}

gboolean
weft_kernel_trusts (const struct weft_kernel *k, uint32_t operand)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[k->kind].operands, " ", -1);
  char name[16];
  int64_t limit;

  if (operand >= g_strv_length (words))
    return TRUE;
  const char *access = strchr (words[operand], ':');
  g_strlcpy (name, words[operand], MIN (sizeof name, (gsize) (access - words[operand]) + 1));
  if (access[1] != 'r' || !is_index (name, k, &limit))
    return TRUE;
  gboolean none = g_str_equal (name, "row") || g_str_equal (name, "targets");
  return is_below (&k->operand[operand], none ? -1 : 0, limit);
}

gboolean
weft_kernels_can (const union weft_model *model, GError **error)
{
  if (model->position_embedding_type == WEFT_ROPE && model->rotary_scaling == WEFT_ROTARY_OTHER)
    return weft_bad_input (error,
                           "rotary_scaling (rope_scaling of a config.json): found %s, wanted none, "
                           "linear or llama3: the model can be planned and simulated, not trained",
                           weft_rotary_scaling_words[model->rotary_scaling]);
  if (model->activation == WEFT_GELU_ERF || model->activation == WEFT_GEGLU ||
      model->activation == WEFT_QUICK_GEGLU)
    return weft_bad_input (
        error,
        "activation: found %s%s, wanted gelu, which is the form by tanh, swiglu or squared_relu: "
        "the model can be planned and simulated, not trained",
        weft_activation_words[model->activation],
        model->activation == WEFT_GELU_ERF ? " (gelu of a config.json)" : "");
  if (model->attn_logit_softcapping != 0)
    return weft_bad_input (error,
                           "attn_logit_softcapping: found %g, wanted 0: the model can be planned "
                           "and simulated, not trained",
                           model->attn_logit_softcapping);
  return TRUE;
}
