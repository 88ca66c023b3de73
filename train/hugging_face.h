/* hugging_face.h - import and export of weights in the names and layouts of Hugging Face
 * transformers, for the families of core/model_families.def that have sets of names.
 *
 * A Weft tensor maps to one or more Hugging Face tensors, each of which is a block of its rows:
 * qkv.weight is q_proj, k_proj and v_proj; fc1.weight of a gated MLP is gate_proj and up_proj. gpt2
 * stores c_attn and its other projections transposed (Conv1D: in, out). DeepSeek and GLM pair
 * neighbouring rotary dimensions; Weft pairs dimensions i and i + half, so these rows are permuted.
 * GPT-NeoX and BLOOM store query, key and value of one head together. A tied head has no tensor of
 * its own. A multi-token prediction layer uses the embedding and head of the model; copies of them
 * in a file are ignored. */
#pragma once
#include "core/job/model.h"
#include "train/safetensors.h"
#include "train/state.h"

/* Row permutation of a piece. All fields are zero if the rows have the same order.
 *
 * before, rope_rows, after  rows come in groups of before + rope_rows + after; rotary embedding is
 *                           applied to the rope_rows rows in the middle (an even number): Weft
 *                           rotates row i with row i + rope_rows / 2, Hugging Face row 2 i with row
 *                           2 i + 1
 * head                      rows of a head: the Hugging Face tensor contains query, key and value
 *                           of one head, then those of the next */
struct weft_hf_order {
  uint64_t before, rope_rows, after, head;
};

struct weft_hf_piece {
  char *name;                        /* for example "model.layers.3.self_attn.q_proj.weight" */
  uint64_t first_row, rows, columns; /* numbers of rows and columns in the Weft tensor */
  gboolean transposed;               /* the Hugging Face tensor is stored as (columns, rows) */
  gboolean vector;                   /* the Hugging Face tensor has one dimension */
  float shift;                       /* Weft's value = Hugging Face's value + shift: nemotron and
                                      * gemma store norm weights minus one */
  struct weft_hf_order order;
};

/* Whether the rows of a piece (a Hugging Face tensor that is a part of a Weft tensor) have another
 * order than in the Weft tensor. */
gboolean weft_hf_permutes (const struct weft_hf_piece *piece);

/* Maps a row of the Weft tensor to the row of the Hugging Face tensor (weft_hf_their_row), and back
 * (weft_hf_our_row). Both indices count from the first row of the piece. */
uint64_t weft_hf_their_row (const struct weft_hf_piece *piece, uint64_t row);
uint64_t weft_hf_our_row (const struct weft_hf_piece *piece, uint64_t row);

/* Returns the pieces of one tensor in the order of its rows: an array of struct weft_hf_piece,
 * which the caller unrefs. NULL: error, because the model family has no name table (the message
 * lists the families that have one), or because the pieces in the name table do not cover exactly
 * the rows of the tensor. */
GArray *weft_hf_pieces (const union weft_model *model, const struct weft_state_tensor *tensor,
                        GError **error);

/* What weft_hf_read() and weft_hf_write() need: the state, the model, a function that returns the
 * pieces of a tensor like weft_hf_pieces() (an empty array for tensors that are not in the file),
 * and the file. */
struct weft_hf_files {
  weft_state *state;
  const union weft_model *model;
  GArray *(*pieces) (const union weft_model *model, const struct weft_state_tensor *tensor,
                     GError **error);
  const char *path;
};
gboolean weft_hf_read (const struct weft_hf_files *files, char **unused, GError **error);
gboolean weft_hf_write (const struct weft_hf_files *files, enum weft_state_kind kind,
                        GError **error);

/* Whether this process writes the files of its job. */
gboolean weft_hf_writes (const weft_state *state);

/* Reads every tensor of the model, but no adapter, from a safetensors file, index or folder. Names
 * with and without the prefix of the bare model ("transformer.", "model.") are accepted. A missing
 * tensor, a wrong shape or a type that is not a float is an error and leaves the state unchanged.
 * Master weights are set to the same values, not rounded. *unused (`unused` may be NULL) receives
 * the comma-separated names of tensors in the file that the model does not use, except buffers that
 * are not parameters and the head of a tied model. *unused is NULL if there are none; the caller
 * frees the text. */
gboolean weft_hf_import (weft_state *state, const union weft_model *model, const char *path,
                         char **unused, GError **error);

/* Writes all tensors of the model, but no adapter, of one kind under Hugging Face names, with
 * __metadata__ format = pt. Kind WEIGHT is written in the type of the weights, other kinds as F32.
 * The shift applies to kinds WEIGHT and MASTER only. All processes of a job must call this
 * function: they exchange data block by block, and the process of rank 0 writes the file. */
gboolean weft_hf_export (weft_state *state, const union weft_model *model,
                         enum weft_state_kind kind, const char *path, GError **error);
