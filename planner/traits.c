#include "planner/traits.h"
#include "core/base/sheet.h"
#include <string.h>

const char *const weft_layout_words[] = { WEFT_LAYOUT_LIST (WEFT_WORD_TEXT) NULL };
const char *const weft_job_size_texts[] = { WEFT_JOB_SIZE_LIST (WEFT_WORD_TEXT) NULL };

enum weft_job_size
weft_job_size_of (uint32_t gpus)
{
#define MOST_GPUS(id, text, most) most,
  static const uint32_t most[] = { WEFT_JOB_SIZE_LIST (MOST_GPUS) };
#undef MOST_GPUS
  enum weft_job_size size = 0;

  while (gpus > most[size])
    size++;
  return size;
}

static enum weft_job_layout
layout_of (const union weft_strategy *s)
{
  return s->pipeline_model_parallel_size > 1 ? WEFT_LAYOUT_PIPELINE
         : s->context_parallel_size > 1      ? WEFT_LAYOUT_CONTEXT
         : s->tensor_model_parallel_size > 1 ? WEFT_LAYOUT_TENSOR
                                             : WEFT_LAYOUT_DATA;
}

/* Sets the name of the stack at the end of the chain of stacks that a stack inherits from; a stack
 * that inherits from none has its own name. */
static void
find_family (const char *stack, char *family, gsize size)
{
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (&weft_stack_sheet, stack, NULL);
  const char *root = stack;

  if (file && file->conf->len > 1) {
    const weft_conf *last = g_ptr_array_index (file->conf, file->conf->len - 1);
    for (unsigned i = 0; i < last->n_entry; i++)
      if (g_str_equal (last->entry[i].key, "name"))
        root = last->entry[i].value;
  }
  g_strlcpy (family, root, size);
}

struct weft_traits
weft_traits_of (const struct weft_job *job)
{
  const char *stack = g_quark_to_string ((GQuark) job->stack.name);
  const union weft_cluster_fields *cluster = &job->cluster.f;
  struct weft_traits traits = { .capability = cluster->gpu_capability,
                                .gpus = job->cluster.n_gpus,
                                .layout = layout_of (&job->strategy),
                                .experts = job->model.num_moe_experts > 0 };

  g_strlcpy (traits.gpu, g_quark_to_string ((GQuark) cluster->gpu_name), sizeof traits.gpu);
  g_strlcpy (traits.precision, weft_precision_words[job->train.precision],
             sizeof traits.precision);
  g_strlcpy (traits.stack, stack, sizeof traits.stack);
  find_family (stack, traits.family, sizeof traits.family);
  return traits;
}

const char *
weft_traits_short_gpu (const struct weft_traits *traits)
{
  gboolean nvidia = g_str_has_prefix (traits->gpu, "NVIDIA ");

  return traits->gpu + (nvidia ? strlen ("NVIDIA ") : 0);
}
