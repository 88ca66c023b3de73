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
  if (model->position_embedding_type != WEFT_ROPE || model->rotary_scaling != WEFT_ROTARY_OTHER)
    return TRUE;
  return weft_bad_input (error,
                         "rotary_scaling: found %s, wanted none, linear or llama3: such a model "
                         "can be planned and simulated, not trained",
                         weft_rotary_scaling_words[model->rotary_scaling]);
}
