#include "interop/pipelining.h"
#include "interop/texts.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include <string.h>

/* Schedules of torch.distributed.pipelining. `chunks` is 2 for schedules with several stages on a
 * rank, which are model chunks in Weft. */
static const struct schedule_word {
  const char *theirs, *ours;
  gboolean chunks;
} schedules[] = {
  { "1F1B", "1f1b", FALSE },          { "Interleaved1F1B", "1f1b", TRUE },
  { "GPipe", "gpipe", FALSE },        { "LoopedBFS", "breadth-first", TRUE },
  { "ZBVZeroBubble", "zb-v", FALSE }, { "DualPipeV", "dualpipev", FALSE },
};

static gboolean
schedule_in (weft_reading *reading, const char *value, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (schedules); i++)
    if (weft_same_name (schedules[i].theirs, value)) {
      weft_reading_set (reading, "pipeline_schedule", schedules[i].ours);
      weft_reading_set (reading, "virtual_pipeline_model_parallel_size",
                        schedules[i].chunks ? "2" : "none");
      return TRUE;
    }
  const char *names[G_N_ELEMENTS (schedules) + 1] = { NULL };
  for (unsigned i = 0; i < G_N_ELEMENTS (schedules); i++)
    names[i] = schedules[i].theirs;
  g_autofree char *all = g_strjoinv (", ", (char **) names);
  return weft_bad_input (error, "found \"%s\", wanted one of %s", value, all);
}

static char *
schedule_out (const weft_reading *reading)
{
  gboolean chunks =
      strcmp (weft_reading_text (reading, "virtual_pipeline_model_parallel_size"), "none") != 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (schedules); i++)
    if (schedules[i].chunks == chunks &&
        strcmp (schedules[i].ours, weft_reading_text (reading, "pipeline_schedule")) == 0)
      return g_strdup (schedules[i].theirs);
  return NULL;
}

static gboolean
layers_per_stage_in (weft_reading *reading, const char *value, GError **error)
{
  gint64 layers = weft_reading_pipeline_layers (reading), each = g_ascii_strtoll (value, NULL, 10);
  gint64 ranks = weft_reading_int (reading, "pipeline_model_parallel_size");
  gint64 stages = each > 0 ? (layers + each - 1) / each : 0;

  if (!weft_reading_text (reading, "num_layers"))
    return TRUE; /* another message reports that the model is missing */
  if (stages < 1 || ranks < 1 || stages % ranks || layers % stages)
    return weft_bad_input (error,
                           "%" G_GINT64_FORMAT " layers, with those that stand for embedding and "
                           "head, are no equal stages of %s on %" G_GINT64_FORMAT " ranks",
                           layers, value, ranks);
  if (stages > ranks)
    weft_reading_set_int (reading, "virtual_pipeline_model_parallel_size", stages / ranks);
  return TRUE;
}

static char *
layers_per_stage_out (const weft_reading *reading)
{
  gint64 chunks = weft_reading_int (reading, "virtual_pipeline_model_parallel_size");
  gint64 stages = chunks * weft_reading_int (reading, "pipeline_model_parallel_size");
  gint64 layers = weft_reading_pipeline_layers (reading);

  return stages > 0 && layers % stages == 0 ? weft_texts_int (layers / stages) : NULL;
}

const struct weft_form weft_torch_schedule = { schedule_in, schedule_out };
const struct weft_form weft_torch_layers_per_stage = { layers_per_stage_in, layers_per_stage_out };
