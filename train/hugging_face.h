/* hugging_face.h - models come from and go to other software: names and layouts of checkpoints of
 * transformers, of the families in core/model_families.def that have sets of names.
 *
 * One of our tensors is cut by rows into one or more of theirs: qkv.weight is q_proj, k_proj,
 * v_proj; fc1.weight of a gated MLP is gate_proj, up_proj; gpt2 keeps c_attn and its like
 * transposed (Conv1D: in, out).  Rotary pairs of DeepSeek and GLM are neighbours, ours half a turned
 * part apart: those rows change places.  A tied head has no tensor of its own, nor have embedding
 * and head of a prediction layer, which are the model's: files that repeat them are read without. */
#pragma once
#include "core/job/model.h"
#include "train/safetensors.h"
#include "train/state.h"

/* Rows that stand in other places in theirs.  Of every before + turned + after rows the middle
 * ones, an even number, turn with the position: element i pairs with i + turned / 2 in ours, 2 i
 * with 2 i + 1 in theirs.  Or theirs has query, key and value, `head` rows each, of one head after
 * the other.  With turned and head 0 rows stand alike. */
struct weft_hf_turned {
  uint64_t before, turned, after, head;
};

struct weft_hf_piece {
  char *name;                        /* "model.layers.3.self_attn.q_proj.weight" */
  uint64_t first_row, rows, columns; /* of our tensor */
  gboolean transposed;               /* theirs is (columns, rows) */
  gboolean vector;                   /* theirs has one dimension */
  float shift;                       /* theirs and this is ours: some keep norms less one */
  struct weft_hf_turned moved;
};

/* Whether some row of a piece stands elsewhere in theirs. */
gboolean weft_hf_moves (const struct weft_hf_piece *piece);

/* Where row `row` of a piece of ours stands in theirs, and of theirs in ours, both from the piece's
 * first row. */
uint64_t weft_hf_their_row (const struct weft_hf_piece *piece, uint64_t row);
uint64_t weft_hf_our_row (const struct weft_hf_piece *piece, uint64_t row);

/* The pieces of one tensor, in row order; element type struct weft_hf_piece, owned by the array.
 * NULL for a family without known names: the error lists those with; and for a tensor that the
 * family has no names for, or has of other rows. */
GArray *weft_hf_pieces (const union weft_model *model, const struct weft_state_tensor *tensor,
                        GError **error);

/* Reads every tensor of the model from a file (or index); weights of a file that names the same
 * tensors with or without the prefix of the bare model ("transformer.", "model.") are found.  A
 * missing tensor, another shape or a type that is not a float is an error, found before anything is
 * written.  A tensor that is not used is reported in `unused` (comma separated, NULL when none,
 * caller frees; may be NULL), but for buffers that are no parameters and the head of a tied model.
 * Master weights get the same values before they are rounded. */
gboolean weft_hf_import (weft_state *state, const union weft_model *model, const char *path,
                         char **unused, GError **error);

/* Writes all weights (kind WEIGHT in their own type, any other as F32) under Hugging Face names,
 * with __metadata__ format = pt.  A shift applies to kinds WEIGHT and MASTER alone.  All processes of a
 * job do so, block by block; that of rank 0 writes the file. */
gboolean weft_hf_export (weft_state *state, const union weft_model *model,
                         enum weft_state_kind kind, const char *path, GError **error);
