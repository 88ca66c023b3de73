#include "interop/result.h"
#include "interop/accelerate.h"
#include "interop/automodel.h"
#include "interop/deepspeed.h"
#include "interop/hugging_face.h"
#include "interop/megatron.h"
#include "interop/megatron_core.h"
#include "interop/own_job.h"
#include "interop/torchtitan.h"

const struct weft_target *const weft_targets[] = {
  &weft_megatron_lm, &weft_megatron_core, &weft_torchtitan,
  &weft_automodel,   &weft_deepspeed,     &weft_accelerate,
  &weft_own_job,     &weft_hugging_face,  NULL,
};

const char *const weft_export_state_words[] = { WEFT_EXPORT_STATE_LIST (WEFT_WORD_TEXT) NULL };
const char *const weft_import_state_words[] = { WEFT_IMPORT_STATE_LIST (WEFT_WORD_TEXT) NULL };

static void
free_line (gpointer data)
{
  struct weft_interop_line *line = data;
  g_free (line->value);
  g_free (line->why);
  g_free (line->there);
  g_free (line->instead);
  g_free (line);
}

weft_interop_result *
weft_interop_result_new (const struct weft_target *target)
{
  weft_interop_result *result = g_new0 (weft_interop_result, 1);
  result->target = target;
  result->lines = g_ptr_array_new_with_free_func (free_line);
  return result;
}

void
weft_interop_result_free (weft_interop_result *result)
{
  if (!result)
    return;
  g_free (result->text);
  g_free (result->launch);
  g_ptr_array_unref (result->lines);
  g_clear_pointer (&result->settings, weft_settings_free);
  g_clear_pointer (&result->needed, g_ptr_array_unref);
  g_clear_pointer (&result->unknown, g_ptr_array_unref);
  g_clear_pointer (&result->elsewhere, g_ptr_array_unref);
  g_free (result);
}

struct weft_interop_line *
weft_interop_line_add (weft_interop_result *result, const char *ours, const char *value,
                       const char *theirs, int state)
{
  struct weft_interop_line *line = g_new0 (struct weft_interop_line, 1);
  line->ours = ours;
  line->value = g_strdup (value);
  line->theirs = theirs;
  line->state = state;
  g_ptr_array_add (result->lines, line);
  return line;
}
