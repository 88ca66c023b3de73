#include "core/job/finetune.h"
#include <string.h>

const char *const weft_freeze_words[] = { WEFT_FREEZE_LIST (WEFT_WORD_TEXT) NULL };
const char *const weft_lora_words[] = { WEFT_LORA_LIST (WEFT_WORD_TEXT) NULL };

enum { ALL_PARTS = (1 << WEFT_N_FREEZE) - 1 };

/* The names of a text field as bits; no bit for "none". */
static uint32_t
bits_of (int64_t quark, const char *const *words, char **unknown)
{
  const char *text = g_quark_to_string ((GQuark) quark);

  if (unknown)
    *unknown = NULL;
  /* no text: a job without settings, as tests make it */
  return !text || strcmp (text, "none") == 0 ? 0 : weft_word_set (text, words, unknown);
}

uint32_t
weft_job_lora (const struct weft_job *job, char **unknown)
{
  if (job->train.lora_dim == 0 && !unknown)
    return 0;
  uint32_t set = bits_of (job->train.target_modules, weft_lora_words, unknown);
  return job->train.lora_dim > 0 ? set : 0;
}

uint32_t
weft_job_frozen (const struct weft_job *job, char **unknown)
{
  uint32_t set = bits_of (job->train.freeze, weft_freeze_words, unknown);

  return job->train.lora_dim > 0 ? ALL_PARTS : set;
}

gboolean
weft_job_trains (const struct weft_job *job, enum weft_freeze part)
{
  return !(weft_job_frozen (job, NULL) >> part & 1);
}

gboolean
weft_job_trains_layers (const struct weft_job *job)
{
  return weft_job_lora (job, NULL) || weft_job_trains (job, WEFT_FREEZE_ATTENTION) ||
         weft_job_trains (job, WEFT_FREEZE_MLP) || weft_job_trains (job, WEFT_FREEZE_NORM);
}

gboolean
weft_job_enters_layers (const struct weft_job *job)
{
  return weft_job_trains_layers (job) || weft_job_trains (job, WEFT_FREEZE_EMBEDDING);
}

/* ------------------------------------------------------------------------- FLOPs */

/* Inputs and outputs of a linear map of a layer. */
static void
size_of (const union weft_model *m, enum weft_lora map, double size[2])
{
  double h = m->hidden_size, q = m->num_attention_heads * m->kv_channels,
         kv = m->num_query_groups * m->kv_channels, f = m->ffn_hidden_size;
  const double sizes[WEFT_N_LORA][2] = {
    [WEFT_LORA_QKV] = { h, q + 2 * kv },
    [WEFT_LORA_PROJ] = { q, h },
    [WEFT_LORA_FC1] = { h, f * weft_model_wide (m) },
    [WEFT_LORA_FC2] = { f, h },
  };

  size[0] = sizes[map][0];
  size[1] = sizes[map][1];
}

double
weft_job_lora_parameters (const struct weft_job *job)
{
  uint32_t set = weft_job_lora (job, NULL);
  double sum = 0, size[2];

  for (int map = 0; map < WEFT_N_LORA; map++) {
    size_of (&job->model, map, size);
    sum += (set >> map & 1) * (size[0] + size[1]);
  }
  return sum * job->train.lora_dim * job->model.num_layers;
}

/* Elements of the matrices that one part freezes, in all layers of a model without experts. */
static double
matrices_of (const union weft_model *m, enum weft_freeze part)
{
  double sum = 0, size[2];

  for (int map = 0; map < WEFT_N_LORA; map++) {
    size_of (m, map, size);
    if ((map <= WEFT_LORA_PROJ) == (part == WEFT_FREEZE_ATTENTION))
      sum += size[0] * size[1];
  }
  return sum * m->num_layers;
}

struct weft_tuned_flops
weft_job_tuned_flops (const struct weft_job *job, gboolean causal)
{
  const union weft_model *m = &job->model;
  double all = weft_model_matmul_parameters (m), head = (double) m->vocab_size * m->hidden_size;
  double pairs = weft_model_flops_per_token (m, causal) - 6 * all;
  gboolean enters = weft_job_enters_layers (job);
  struct weft_tuned_flops flops = { 2 * all, 2 * all, 2 * all, 0, pairs };

  if (weft_job_frozen (job, NULL) == 0)
    return flops;
  flops.inputs = enters ? 2 * all : weft_job_trains (job, WEFT_FREEZE_NORM) ? 2 * head : 0;
  flops.weights = weft_job_trains (job, WEFT_FREEZE_HEAD) ? 2 * head : 0;
  for (int part = WEFT_FREEZE_ATTENTION; part <= WEFT_FREEZE_MLP; part++)
    if (weft_job_trains (job, part))
      flops.weights += 2 * matrices_of (m, part);
  flops.adapters = 6 * weft_job_lora_parameters (job);
  flops.pairs = enters ? pairs : pairs / 3;
  return flops;
}

double
weft_tuned_flops_sum (const struct weft_tuned_flops *flops)
{
  return flops->forward + flops->inputs + flops->weights + flops->adapters + flops->pairs;
}
