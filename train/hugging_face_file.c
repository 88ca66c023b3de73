/* Import and export in blocks of rows, so that memory use does not grow with the model. */
#include "core/base/error.h"
#include "kernels/float.h"
#include "launch/rendezvous.h"
#include "train/hugging_face.h"
#include "train/peft.h"
#include "train/processes.h"
#include <math.h>
#include <string.h>

/* Number of elements of a block: 4 MiB of floats. */
#define BLOCK (1u << 20)

/* Name prefixes that are missing in files of the bare model: published gpt2 files have
 * "h.0.ln_1.weight" instead of "transformer.h.0.ln_1.weight". */
static const char *const prefixes[] = { "transformer.", "model.", "gpt_neox." };

/* Suffixes of buffers that are not parameters: causal masks of gpt2 and gpt_neox, rotary
 * frequencies of llama. */
static const char *const buffers[] = { ".attn.bias", ".attn.masked_bias", ".attention.bias",
                                       ".attention.masked_bias", ".rotary_emb.inv_freq" };

/* ------------------------------------------------------------------------- blocks */

/* The source of a copy: a matrix in the layout of the destination, and the function that reads its
 * elements. The source is the Hugging Face tensor on import, and the Weft tensor on export. */
struct source {
  uint64_t rows, columns;
  gboolean transposed;                  /* the source stores the matrix as (columns, rows) */
  /* row r of the matrix is row row_at (permuted, r) of the source; NULL: rows of both have the same
   * order */
  const struct weft_hf_piece *permuted;
  uint64_t (*row_at) (const struct weft_hf_piece *piece, uint64_t row);
  gboolean (*read) (const struct source *from, uint64_t first, uint64_t n, float *out,
                    GError **error);
  const weft_safetensors *file; /* import: the file that is read */
  const struct weft_tensor *theirs;
  weft_state *state;             /* export: the state that is written */
  /* on export by several processes: the blocks of all processes are merged in the process of rank
   * 0; else NULL */
  struct weft_rendezvous *peers;
  uint32_t tensor;
  enum weft_state_kind kind;
  uint64_t base; /* index in the tensor of the first element of the piece */
};

static gboolean
read_theirs (const struct source *from, uint64_t first, uint64_t n, float *out, GError **error)
{
  return weft_safetensors_floats (from->file, from->theirs, first, n, out, error);
}

static gboolean
read_ours (const struct source *from, uint64_t first, uint64_t n, float *out, GError **error)
{
  (void) error;
  weft_state_read (from->state, from->tensor, from->kind, from->base + first, n, out);
  return TRUE;
}

static gboolean
read_permuted (const struct source *from, uint64_t row, uint64_t n, float *out, GError **error)
{
  for (uint64_t r = 0; r < n; r++)
    if (!from->read (from, from->row_at (from->permuted, row + r) * from->columns, from->columns,
                     out + r * from->columns, error))
      return FALSE;
  return TRUE;
}

/* Reads rows [row, row + n) of the matrix. `room` is scratch memory for n floats. */
static gboolean
read_rows (const struct source *from, uint64_t row, uint64_t n, float *out, float *room,
           GError **error)
{
  if (from->permuted)
    return read_permuted (from, row, n, out, error);
  if (!from->transposed)
    return from->read (from, row * from->columns, n * from->columns, out, error);
  for (uint64_t c = 0; c < from->columns; c++) {
    if (!from->read (from, c * from->rows + row, n, room, error))
      return FALSE;
    for (uint64_t k = 0; k < n; k++)
      out[k * from->columns + c] = room[k];
  }
  return TRUE;
}

/* Receives elements [first, first + n) of the matrix in `block`. The function may overwrite
 * `block`. */
typedef gboolean (*take_block) (void *to, uint64_t first, uint64_t n, float *block, GError **error);

static gboolean
stream (const struct source *from, take_block take, void *to, GError **error)
{
  uint64_t most = MIN (from->rows, MAX (1, BLOCK / from->columns));
  g_autofree float *block = g_new (float, most * from->columns);
  g_autofree float *room = g_new (float, most);

  for (uint64_t row = 0; row < from->rows; row += most) {
    uint64_t n = MIN (most, from->rows - row);
    if (!read_rows (from, row, n, block, room, error) ||
        !weft_processes_merge_floats (from->peers, "tensors of an export", WEFT_PROCESSES_FIRST,
                                      block, n * from->columns, error) ||
        !take (to, row * from->columns, n * from->columns, block, error))
      return FALSE;
  }
  return TRUE;
}

static void
add (float *block, uint64_t n, float shift)
{
  for (uint64_t i = 0; i < n && shift != 0; i++)
    block[i] += shift;
}

/* ------------------------------------------------------------------------- pieces */

/* The pieces of a tensor of the model. Adapters and the state of an fp8 recipe have none. */
static GArray *
model_pieces (const union weft_model *model, const struct weft_state_tensor *tensor, GError **error)
{
  return tensor->fp8_recipe || weft_peft_is_adapter (tensor)
             ? g_array_new (FALSE, FALSE, sizeof (struct weft_hf_piece))
             : weft_hf_pieces (model, tensor, error);
}

/* The pieces of each tensor of the state: a GArray per tensor, freed with the outer array. */
static GPtrArray *
all_pieces (const struct weft_hf_files *files, GError **error)
{
  g_autoptr (GPtrArray) all = g_ptr_array_new_with_free_func ((GDestroyNotify) g_array_unref);

  for (uint32_t t = 0; t < weft_state_count (files->state); t++) {
    GArray *pieces = files->pieces (files->model, weft_state_at (files->state, t), error);
    if (!pieces)
      return NULL;
    g_ptr_array_add (all, pieces);
  }
  return g_steal_pointer (&all);
}

/* Calls `visit` for every piece (Hugging Face tensor) of every tensor, in order. */
typedef gboolean (*visit_piece) (void *with, uint32_t tensor, const struct weft_hf_piece *piece,
                                 GError **error);

static gboolean
for_pieces (const GPtrArray *all, visit_piece visit, void *with, GError **error)
{
  for (uint32_t t = 0; t < all->len; t++) {
    const GArray *pieces = g_ptr_array_index (all, t);
    for (uint32_t i = 0; i < pieces->len; i++)
      if (!visit (with, t, &g_array_index (pieces, struct weft_hf_piece, i), error))
        return FALSE;
  }
  return TRUE;
}

/* Fills the Hugging Face shape; returns its number of dimensions. */
static uint32_t
their_shape (const struct weft_hf_piece *piece, uint64_t dim[2])
{
  dim[0] = piece->transposed ? piece->columns : piece->rows;
  dim[1] = piece->transposed ? piece->rows : piece->columns;
  return piece->vector ? 1 : 2;
}

/* ------------------------------------------------------------------------- import */

struct import {
  weft_state *state;
  const weft_safetensors *file;
  const char *path;
  GHashTable *used; /* the set of tensors (struct weft_tensor) of the file that were read */
  uint32_t tensor;  /* index of the tensor to which the current block belongs */
  uint64_t base;    /* index in the tensor of the first element of the current piece */
  float shift;      /* number that is added to each element */
};

static const struct weft_tensor *
find (const weft_safetensors *file, const char *name)
{
  const struct weft_tensor *found = weft_safetensors_find (file, name);

  for (unsigned i = 0; i < G_N_ELEMENTS (prefixes) && !found; i++)
    if (g_str_has_prefix (name, prefixes[i]))
      found = weft_safetensors_find (file, name + strlen (prefixes[i]));
  return found;
}

/* A shape as text: "[768, 2304]". The caller frees the text. */
static char *
shape_text (const uint64_t *dim, uint32_t n_dim)
{
  GString *text = g_string_new ("[");

  for (uint32_t d = 0; d < n_dim; d++)
    g_string_append_printf (text, "%s%" G_GUINT64_FORMAT, d ? ", " : "", dim[d]);
  g_string_append_c (text, ']');
  return g_string_free (text, FALSE);
}

static gboolean
check_piece (void *with, uint32_t tensor, const struct weft_hf_piece *piece, GError **error)
{
  struct import *import = with;
  const struct weft_tensor *theirs = find (import->file, piece->name);
  uint64_t dim[2];
  uint32_t n_dim = their_shape (piece, dim);

  if (!theirs)
    return weft_bad_input (error, "%s: found no tensor %s, wanted it for %s", import->path,
                           piece->name, weft_state_at (import->state, tensor)->name);
  g_hash_table_add (import->used, (void *) theirs);
  if (theirs->n_dim == n_dim && memcmp (theirs->dim, dim, n_dim * sizeof *dim) == 0)
    return weft_safetensors_floats (import->file, theirs, 0, 0, NULL, error);
  g_autofree char *found = shape_text (theirs->dim, theirs->n_dim);
  g_autofree char *wanted = shape_text (dim, n_dim);
  return weft_bad_input (error, "%s: tensor %s: found shape %s, wanted %s", import->path,
                         theirs->name, found, wanted);
}

static gboolean
check_finite (const struct import *import, uint64_t first, uint64_t n, const float *block,
              GError **error)
{
  for (uint64_t i = 0; i < n; i++)
    if (!isfinite (block[i]))
      return weft_bad_input (error,
                             "%s: element %" G_GUINT64_FORMAT
                             " of %s is %g, wanted a finite number",
                             import->path, first + i,
                             weft_state_at (import->state, import->tensor)->name,
                             (double) block[i]);
  return TRUE;
}

static gboolean
take_ours (void *to, uint64_t first, uint64_t n, float *block, GError **error)
{
  const struct import *import = to;
  uint64_t at = import->base + first;

  if (!weft_state_go_on (import->state, error) || !check_finite (import, at, n, block, error))
    return FALSE;
  add (block, n, import->shift);
  weft_state_write (import->state, import->tensor, WEFT_STATE_WEIGHT, at, n, block);
  weft_state_write (import->state, import->tensor, WEFT_STATE_MASTER, at, n, block);
  return TRUE;
}

static gboolean
import_piece (void *with, uint32_t tensor, const struct weft_hf_piece *piece, GError **error)
{
  struct import *import = with;
  struct source from = { .rows = piece->rows,
                         .columns = piece->columns,
                         .transposed = piece->transposed,
                         .permuted = weft_hf_permutes (piece) ? piece : NULL,
                         .row_at = weft_hf_their_row,
                         .read = read_theirs,
                         .file = import->file,
                         .theirs = find (import->file, piece->name) };

  import->tensor = tensor;
  import->base = piece->first_row * piece->columns;
  import->shift = piece->shift;
  return stream (&from, take_ours, import, error);
}

/* Whether a tensor of the file is a copy of the embedding or head inside a multi-token prediction
 * layer. Such copies are ignored, because the layer uses the embedding and head of the model. */
static gboolean
is_repeated (const union weft_model *model, const char *name)
{
  static const char *const ends[] = { "embed_tokens.weight", "shared_head.head.weight" };

  for (int64_t d = 0; d < model->mtp_num_layers; d++)
    for (unsigned i = 0; i < G_N_ELEMENTS (ends); i++) {
      g_autofree char *repeated =
          g_strdup_printf ("model.layers.%" G_GINT64_FORMAT ".%s", model->num_layers + d, ends[i]);
      if (g_str_equal (name, repeated))
        return TRUE;
    }
  return model->share_embeddings_and_output_weights && g_str_equal (name, "lm_head.weight");
}

static gboolean
is_known (const union weft_model *model, const char *name)
{
  if (is_repeated (model, name))
    return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (buffers); i++)
    if (g_str_has_suffix (name, buffers[i]))
      return TRUE;
  return FALSE;
}

static char *
unused_names (const struct import *import, const union weft_model *model)
{
  g_autoptr (GString) names = g_string_new (NULL);

  for (uint32_t i = 0; i < weft_safetensors_count (import->file); i++) {
    const struct weft_tensor *t = weft_safetensors_at (import->file, i);
    if (!g_hash_table_contains (import->used, t) && !is_known (model, t->name))
      g_string_append_printf (names, "%s%s", names->len ? ", " : "", t->name);
  }
  return names->len ? g_strdup (names->str) : NULL;
}

/* Files of TensorFlow and Flax hold transposed matrices; those of MLX have PyTorch's layout. A file
 * without this metadata is assumed to have PyTorch's layout. */
static gboolean
has_torch_layout (const struct import *import, GError **error)
{
  const char *format = weft_safetensors_metadata (import->file, "format");

  if (!format || g_str_equal (format, "pt") || g_str_equal (format, "mlx"))
    return TRUE;
  return weft_bad_input (error, "%s: found format %s, wanted pt: a file that PyTorch wrote",
                         import->path, format);
}

gboolean
weft_hf_read (const struct weft_hf_files *files, char **unused, GError **error)
{
  g_autoptr (GPtrArray) all = all_pieces (files, error);
  g_autoptr (weft_safetensors) file = all ? weft_safetensors_open (files->path, error) : NULL;
  g_autoptr (GHashTable) used = g_hash_table_new (NULL, NULL);
  struct import import = {
    .state = files->state, .file = file, .path = files->path, .used = used
  };

  if (unused)
    *unused = NULL;
  if (!file || !has_torch_layout (&import, error) ||
      !for_pieces (all, check_piece, &import, error) ||
      !for_pieces (all, import_piece, &import, error))
    return FALSE;
  if (!weft_state_quantise (files->state, error))
    return FALSE;
  if (unused)
    *unused = unused_names (&import, files->model);
  return TRUE;
}

gboolean
weft_hf_import (weft_state *state, const union weft_model *model, const char *path, char **unused,
                GError **error)
{
  const struct weft_hf_files files = { state, model, model_pieces, path };

  return weft_hf_read (&files, unused, error);
}

/* ------------------------------------------------------------------------- export */

struct exporter {
  weft_state *state;
  weft_safetensors_writer *writer; /* writer of the file; NULL except in the process of rank 0 */
  enum weft_state_kind kind;
  enum weft_tensor_type type;
  float shift; /* number that is added to each element of the current block */
};

static gboolean
declare_piece (void *with, uint32_t tensor, const struct weft_hf_piece *piece, GError **error)
{
  const struct exporter *e = with;
  uint64_t dim[2];
  uint32_t n_dim = their_shape (piece, dim);

  (void) tensor;
  (void) error;
  weft_safetensors_declare (e->writer, piece->name, e->type, n_dim, dim);
  return TRUE;
}

static gboolean
take_nothing (void *to, uint64_t first, uint64_t n, float *block, GError **error)
{
  (void) to, (void) first, (void) n, (void) block, (void) error;
  return TRUE;
}

/* Writes a block to the file. Values of 16 bits are packed in place, at the front of `block`. */
static gboolean
take_theirs (void *to, uint64_t first, uint64_t n, float *block, GError **error)
{
  const struct exporter *e = to;
  uint8_t *bytes = (uint8_t *) block;

  (void) first;
  add (block, n, e->shift);
  for (uint64_t i = 0; i < n && e->type != WEFT_TENSOR_F32; i++) {
    uint16_t rounded =
        e->type == WEFT_TENSOR_F16 ? weft_fp16_round (block[i]) : weft_bf16_round (block[i]);
    memcpy (bytes + i * sizeof rounded, &rounded, sizeof rounded);
  }
  return weft_safetensors_put (e->writer, bytes, n * weft_tensor_type_bytes[e->type], error);
}

static gboolean
export_piece (void *with, uint32_t tensor, const struct weft_hf_piece *piece, GError **error)
{
  struct exporter *e = with;
  gboolean value = e->kind == WEFT_STATE_WEIGHT || e->kind == WEFT_STATE_MASTER;
  uint64_t dim[2];

  their_shape (piece, dim);
  gboolean codes =
      e->kind == WEFT_STATE_WEIGHT && weft_state_at (e->state, tensor)->dtype == WEFT_FP8;
  if (codes && !weft_state_gather (e->state, tensor, error))
    return FALSE;
  struct source from = { .rows = dim[0],
                         .columns = dim[1],
                         .transposed = piece->transposed,
                         .permuted = weft_hf_permutes (piece) ? piece : NULL,
                         .row_at = weft_hf_our_row,
                         .read = read_ours,
                         .state = e->state,
                         .peers = codes ? NULL : weft_state_peers (e->state),
                         .tensor = tensor,
                         .kind = e->kind,
                         .base = piece->first_row * piece->columns };
  e->shift = value ? -piece->shift : 0;
  return stream (&from, e->writer ? take_theirs : take_nothing, e, error);
}

gboolean
weft_hf_writes (const weft_state *state)
{
  struct weft_rendezvous *peers = weft_state_peers (state);

  return !peers || weft_rendezvous_place (peers)->process == 0;
}

gboolean
weft_hf_write (const struct weft_hf_files *files, enum weft_state_kind kind, GError **error)
{
  weft_state *state = files->state;
  g_autoptr (GPtrArray) all = all_pieces (files, error);
  static const enum weft_tensor_type types[] = {
    [WEFT_FP32] = WEFT_TENSOR_F32, [WEFT_BF16] = WEFT_TENSOR_BF16, [WEFT_FP16] = WEFT_TENSOR_F16
  };
  enum weft_dtype dtype = kind == WEFT_STATE_WEIGHT ? weft_state_dtype (state) : WEFT_FP32;

  if (!all)
    return FALSE;
  struct exporter e = { .state = state,
                        .writer = weft_hf_writes (state) ? weft_safetensors_writer_new (files->path)
                                                         : NULL,
                        .kind = kind,
                        .type = types[dtype] };
  if (e.writer) {
    weft_safetensors_declare_metadata (e.writer, "format", "pt");
    for_pieces (all, declare_piece, &e, NULL);
  }
  gboolean ok = for_pieces (all, export_piece, &e, error);
  weft_state_drop_gathered (state);
  if (ok && e.writer)
    return weft_safetensors_close (e.writer, error);
  weft_safetensors_abandon (e.writer);
  return ok;
}

gboolean
weft_hf_export (weft_state *state, const union weft_model *model, enum weft_state_kind kind,
                const char *path, GError **error)
{
  const struct weft_hf_files files = { state, model, model_pieces, path };

  return weft_hf_write (&files, kind, error);
}
