/* unit_modules.h - megatron_fsdp_unit_modules: the modules of a model that are units of
 * Megatron-FSDP.
 *
 * A name is a word of the list below or a class, as a whole path or its last part, in Megatron-Core
 * or transformers. Classes of transformers belong to one model family and match nothing in others.
 * A module inside a unit is part of that unit (megatron_fsdp.py skips nested ones): `layer`
 * includes attention and mlp.
 *
 * A norm belongs to the linear map that follows it, as in Megatron-Core with Transformer Engine,
 * where both are one module. */
#pragma once
#include "core/job/model.h"

/* constant              word          Megatron-Core's class                      meaning */
#define WEFT_UNIT_LIST(X)                                                                          \
  X (WEFT_UNIT_LAYER, "layer", "megatron.core.transformer.transformer_layer.TransformerLayer",     \
     "a transformer layer")                                                                        \
  X (WEFT_UNIT_ATTENTION, "attention", "megatron.core.transformer.attention.SelfAttention",        \
     "its first norm and its attention")                                                           \
  X (WEFT_UNIT_MLP, "mlp", "megatron.core.transformer.mlp.MLP", "its second norm and its MLP")     \
  X (WEFT_UNIT_EMBEDDING, "embedding",                                                             \
     "megatron.core.models.common.embeddings.language_model_embedding.LanguageModelEmbedding",     \
     "word and position embeddings")                                                               \
  X (WEFT_UNIT_HEAD, "head", "megatron.core.tensor_parallel.layers.ColumnParallelLinear",          \
     "the last norm and the output layer")
enum weft_unit {
#define WEFT_UNIT_ROW(id, ...) id,
  WEFT_UNIT_LIST (WEFT_UNIT_ROW)
#undef WEFT_UNIT_ROW
      WEFT_N_UNIT
};

/* Parses names that are separated by commas or blanks ("none": no names) to bits 1 << enum
 * weft_unit. *unknown (may be NULL) receives the first name that matches no module of the model;
 * the caller frees it. */
uint32_t weft_unit_modules (const char *text, const union weft_model *model, char **unknown);

/* Text for an error message: "found X; did you mean Y? This model has ...". The caller frees the
 * text. */
char *weft_unit_modules_problem (const char *name, const union weft_model *model);
