#include "kernels/kernel.h"
#include "core/error.h"

const struct weft_kernel_row weft_kernels[WEFT_N_OP] = {
#define WEFT_KERNEL_ROW(id, name, splits)                                                          \
  [id] = { weft_cpu_##name, weft_ref_##name, weft_extent_##name, splits },
  WEFT_KERNEL_LIST (WEFT_KERNEL_ROW)
#undef WEFT_KERNEL_ROW
};

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
