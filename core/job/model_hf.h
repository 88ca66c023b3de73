/* model_hf.h - how a Hugging Face config.json becomes fields of model.def. Private to the
 * files that read it:
 *
 *   model_hf.c       the file: its family, fixed and required fields, keys that interact
 *   model_hf_keys.c  single keys
 *
 * Three tables: values fixed by an architecture (model_families.def), keys that define the shape
 * (`keys`), keys that do not (model_ignored.def). A key is looked up in `keys`, then among the
 * fields' Megatron names, then among ignored keys; keys that begin with an underscore are comments;
 * other keys are reported. */
#pragma once
#include "core/base/json_scan.h"
#include "core/job/family.h"

/* Value of a Boolean key that the file does not contain. */
enum { WEFT_HF_UNSAID = -1 };

struct weft_hf_reader {
  union weft_model *model;
  const struct weft_family *family;
  GPtrArray *unknown;
  /* name of the key from which each field was read; owned by the JSON document */
  const char *typed[WEFT_N_MODEL_FIELD];
  /* prefix of the name of a nested key, for example "rope_parameters." */
  const char *prefix;
  JsonObject *object;                    /* the JSON object that is read */
  enum weft_activation own;              /* activation that config files of this family mean */
  /* how the rope object that is read scales rotary frequencies */
  enum weft_rotary_scaling scaling;
  int64_t shared_experts, window_layers, groups, group_topk, full_layers;
  int attention_bias, mlp_bias, use_window, layer_window, normalised; /* WEFT_HF_UNSAID, 0 or 1 */
  gboolean greedy; /* greedy choice of experts: groups of experts are ignored */
};

/* Reads every key of a JSON object. A key with the value null counts as not given. */
gboolean weft_hf_walk (struct weft_hf_reader *r, JsonObject *object, const char *prefix,
                       GError **error);

/* Sets a field of the model. A second key of the file that sets the same field must have the same
 * value. */
gboolean weft_hf_assign (struct weft_hf_reader *r, enum weft_model_field f, const char *key,
                         union weft_value value, GError **error);

/* Adds the name of an unknown key to the list `unknown`. */
void weft_hf_report (struct weft_hf_reader *r, const char *key);

/* All names of the keys that set a field, for messages: "num_hidden_layers or n_layer or
 * num_layers". The caller frees the text. */
char *weft_hf_spellings (enum weft_model_field f);
