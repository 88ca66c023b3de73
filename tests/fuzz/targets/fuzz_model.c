/* Hugging Face config.json: an accepted model must have at least as many parameters as active
 * parameters, and causal attention must not need more FLOPs than full attention. */
#include "core/job/model.h"
#include "tests/fuzz/fuzz.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  union weft_model model;
  g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GError) error = NULL;

  if (!weft_model_parse ((const char *) data, size, "config.json", &model, unknown, &error)) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  g_assert_no_error (error);
  g_assert_cmpuint (weft_model_active_parameters (&model), <=, weft_model_parameters (&model));
  g_assert_cmpfloat (weft_model_flops_per_token (&model, TRUE), <=,
                     weft_model_flops_per_token (&model, FALSE));
  return 0;
}
