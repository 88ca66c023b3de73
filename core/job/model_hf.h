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

enum { WEFT_HF_UNSAID = -1 /* value of a flag that the file does not give */ };

struct weft_hf_reader {
  union weft_model *model;
  const struct weft_family *family;
  GPtrArray *unknown;
  const char *typed[WEFT_N_MODEL_FIELD]; /* key from which a field was read; owned by the JSON */
  const char *prefix;                    /* "rope_parameters." for keys of a nested object */
  JsonObject *object;                    /* the object being read */
  enum weft_activation own;              /* activation of the family */
  enum weft_rotary_scaling scaling;      /* scaling rule of the rope object being read */
  int64_t shared_experts, window_layers, groups, group_topk, full_layers;
  int attention_bias, mlp_bias, use_window, layer_window, normalised; /* unsaid, 0 or 1 */
  gboolean greedy; /* greedy routing: expert groups are ignored */
};

/* Reads every key of an object; a null value counts as not given. */
gboolean weft_hf_walk (struct weft_hf_reader *r, JsonObject *object, const char *prefix,
                       GError **error);

/* Sets a field once; a second key for the same field must agree. */
gboolean weft_hf_assign (struct weft_hf_reader *r, enum weft_model_field f, const char *key,
                         union weft_value value, GError **error);

/* Adds an unknown key to `unknown`. */
void weft_hf_report (struct weft_hf_reader *r, const char *key);

/* All keys of a field, for messages: "num_hidden_layers or n_layer or num_layers". The caller frees
 * it. */
char *weft_hf_spellings (enum weft_model_field f);
