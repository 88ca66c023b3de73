/* model_hf.h - how a Hugging Face config.json becomes fields of model.def; shared by the files that
 * read one and by nobody else.
 *
 *   model_hf.c       the file: its family, what that fixes and wants, what keys say together
 *   model_hf_keys.c  its keys, one after the other
 *
 * Three tables say it all: what an architecture fixes (model_families.def), which keys carry shape
 * (`keys`), which do not (model_ignored.def).  A key is looked up in `keys`, then among the fields'
 * own Megatron names, then among those without effect; keys that begin with an underscore are
 * comments; the rest is reported. */
#pragma once
#include "core/base/json_scan.h"
#include "core/job/family.h"

enum { WEFT_HF_UNSAID = -1 /* of a flag */ };

struct weft_hf_reader {
  union weft_model *model;
  const struct weft_family *family;
  GPtrArray *unknown;
  const char *typed[WEFT_N_MODEL_FIELD]; /* the key a field was read from; the JSON owns it */
  const char *prefix;                    /* "rope_parameters." inside it */
  JsonObject *object;                    /* the one being walked */
  enum weft_activation own;              /* the family's */
  enum weft_rotary_scaling scaling;      /* of the rope object being walked */
  int64_t shared_experts, window_layers, groups, group_topk, full_layers;
  int attention_bias, mlp_bias, use_window, layer_window, normalised; /* unsaid, 0 or 1 */
  gboolean greedy;                                                    /* groups do not count */
};

/* Reads every key of an object; null is the same as not given. */
gboolean weft_hf_walk (struct weft_hf_reader *r, JsonObject *object, const char *prefix,
                       GError **error);

/* Sets a field once; a second spelling must agree. */
gboolean weft_hf_assign (struct weft_hf_reader *r, enum weft_model_field f, const char *key,
                         union weft_value value, GError **error);

/* A key that nobody knows. */
void weft_hf_report (struct weft_hf_reader *r, const char *key);

/* "num_hidden_layers or n_layer or num_layers"; the caller's. */
char *weft_hf_spellings (enum weft_model_field f);
