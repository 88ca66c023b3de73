/* Loading a checkpoint. All checks run before the first byte of the state changes. */
#include "train/checkpoint.h"
#include "core/base/error.h"
#include "train/checkpoint_dir.h"
#include "train/crc32c.h"

/* Number of elements that are copied at a time: 4 MiB as floats. */
#define BLOCK 1048576u

/* An open checkpoint: its manifest and its shard files. */
typedef struct stored {
  char *path;
  weft_manifest *m;
  /* array of weft_safetensors, in the order of the manifest's files */
  GPtrArray *files;
  /* by chunk: the tensor in the shard file that contains the chunk */
  const struct weft_tensor **content;
} stored;

static void
stored_free (stored *s)
{
  g_ptr_array_unref (s->files);
  weft_manifest_free (s->m);
  g_free (s->content);
  g_free (s->path);
  g_free (s);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC (stored, stored_free)

/* ------------------------------------------------------------------------ opening */

/* Checks that the header of a shard file describes a chunk as the manifest does. */
static gboolean
find_content (stored *s, uint32_t chunk, GError **error)
{
  const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, chunk);
  const char *file = weft_manifest_file (s->m, c->file)->name;
  g_autofree char *name = weft_manifest_chunk_name (s->m, c);
  const struct weft_tensor *t = weft_safetensors_find (s->files->pdata[c->file], name);

  if (!t)
    return weft_bad_input (error, "%s/%s: found no tensor %s, which the manifest lists", s->path,
                           file, name);
  s->content[chunk] = t;
  if (t->type == c->type && t->n_dim == 2 && t->dim[0] == c->rows && t->dim[1] == c->columns &&
      t->begin == c->offset)
    return TRUE;
  return weft_bad_input (error, "%s/%s: tensor %s: type, shape or offset differ from the manifest",
                         s->path, file, name);
}

static gboolean
open_files (stored *s, GError **error)
{
  for (uint32_t i = 0; i < s->m->files->len; i++) {
    g_autofree char *path = g_build_filename (s->path, weft_manifest_file (s->m, i)->name, NULL);
    weft_safetensors *file = weft_safetensors_open (path, error);
    if (!file)
      return FALSE;
    g_ptr_array_add (s->files, file);
  }
  s->content = g_new0 (const struct weft_tensor *, s->m->chunks->len);
  for (uint32_t i = 0; i < s->m->chunks->len; i++)
    if (!find_content (s, i, error))
      return FALSE;
  return TRUE;
}

/* Opens a checkpoint. The manifest must agree with the sizes and the headers of the shard files. */
static stored *
stored_open (const char *path, GError **error)
{
  weft_manifest *m = weft_checkpoint_manifest (path, error);

  if (!m)
    return NULL;
  g_autoptr (stored) s = g_new0 (stored, 1);
  s->path = g_strdup (path);
  s->m = m;
  s->files = g_ptr_array_new_with_free_func ((GDestroyNotify) weft_safetensors_free);
  return open_files (s, error) ? g_steal_pointer (&s) : NULL;
}

/* Reads elements [first, first + n) of a chunk as floats. */
static gboolean
read_chunk (const stored *s, uint32_t chunk, uint64_t first, uint64_t n, float *out, GError **error)
{
  weft_safetensors *file = s->files->pdata[weft_manifest_chunk (s->m, chunk)->file];
  const uint8_t *bytes = weft_safetensors_data (file, s->content[chunk]);

  if (s->content[chunk]->type != WEFT_TENSOR_U8)
    return weft_safetensors_floats (file, s->content[chunk], first, n, out, error);
  for (uint64_t i = 0; i < n; i++)
    out[i] = bytes[first + i];
  return TRUE;
}

/* Checks that a run can continue from the values of a chunk (weft_checkpoint_accepts()). */
static gboolean
check_values (const stored *s, uint32_t chunk, float *block, GError **error)
{
  const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, chunk);

  for (uint64_t first = 0, n; first < c->rows * c->columns; first += n) {
    n = MIN (BLOCK, c->rows * c->columns - first);
    if (!read_chunk (s, chunk, first, n, block, error))
      return FALSE;
    for (uint64_t i = 0; i < n; i++)
      if (!weft_checkpoint_accepts (c->kind, block[i]))
        return weft_bad_input (
            error, "%s/%s: element %" G_GUINT64_FORMAT " of %s is %g, wanted a finite number",
            s->path, weft_manifest_file (s->m, c->file)->name, first + i, s->content[chunk]->name,
            (double) block[i]);
  }
  return TRUE;
}

/* Checks the checksums and the values of all chunks. */
static gboolean
check_content (const stored *s, const weft_state *state, GError **error)
{
  g_autofree float *block = g_new (float, BLOCK);
  struct weft_crc32c crc;

  weft_crc32c_init (&crc);
  for (uint32_t i = 0; i < s->m->chunks->len; i++) {
    const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, i);
    if (!weft_state_go_on (state, error))
      return FALSE;
    const void *data = weft_safetensors_data (s->files->pdata[c->file], s->content[i]);
    uint32_t found = weft_crc32c (&crc, 0, data, weft_manifest_chunk_bytes (c));
    if (found != c->crc)
      return weft_bad_input (error, "%s/%s: %s is damaged: found checksum %08x, wanted %08x",
                             s->path, weft_manifest_file (s->m, c->file)->name, s->content[i]->name,
                             found, c->crc);
    if (!check_values (s, i, block, error))
      return FALSE;
  }
  return TRUE;
}

/* ----------------------------------------------------------------------- matching */

/* Marks a tensor of the checkpoint that this job does not have. */
#define NOT_OURS UINT32_MAX

static gboolean
match_tensor (const stored *s, const struct weft_manifest_tensor *theirs,
              const struct weft_state_tensor *ours, GError **error)
{
  if (!ours)
    return weft_bad_input (error,
                           "%s: of another model: found tensor %s, which this model does not have",
                           s->path, theirs->name);
  if (ours->rows == theirs->rows && ours->columns == theirs->columns)
    return TRUE;
  if (ours->scales)
    return weft_bad_input (error,
                           "%s: found %" G_GUINT64_FORMAT " scales of 8-bit moments in %s, wanted "
                           "%" G_GUINT64_FORMAT ": they resume with the number of tensor and "
                           "expert parallel ranks that saved them",
                           s->path, theirs->rows, ours->name, ours->rows);
  return weft_bad_input (
      error,
      "%s: of another model: found %s as %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
      " elements, wanted %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT " elements",
      s->path, ours->name, theirs->rows, theirs->columns, ours->rows, ours->columns);
}

/* Maps the tensor names of `state` to indices. The keys are owned by `state`. */
static GHashTable *
index_names (const weft_state *state)
{
  GHashTable *places = g_hash_table_new (g_str_hash, g_str_equal);

  for (uint32_t i = 0; i < weft_state_count (state); i++)
    g_hash_table_insert (places, weft_state_at (state, i)->name, GUINT_TO_POINTER (i));
  return places;
}

static gboolean
has_scale_name (const char *name)
{
  return g_str_has_suffix (name, WEFT_ABSMAX_SUFFIX "1") ||
         g_str_has_suffix (name, WEFT_ABSMAX_SUFFIX "2");
}

/* For each tensor of the checkpoint, the index of the job's tensor or NOT_OURS. NULL with an error
 * if the checkpoint is of another model. The caller frees the array. */
static uint32_t *
match_tensors (const stored *s, const weft_state *state, GError **error)
{
  g_autoptr (GHashTable) places = index_names (state);
  g_autofree uint32_t *ours = g_new (uint32_t, s->m->tensors->len);
  void *place;

  for (uint32_t i = 0; i < s->m->tensors->len; i++) {
    const struct weft_manifest_tensor *t = weft_manifest_tensor (s->m, i);
    gboolean known = g_hash_table_lookup_extended (places, t->name, NULL, &place);
    ours[i] = known ? GPOINTER_TO_UINT (place) : NOT_OURS;
    if (!known && (g_str_has_suffix (t->name, WEFT_AMAX_SUFFIX) || has_scale_name (t->name)))
      continue;
    if (!match_tensor (s, t, known ? weft_state_at (state, ours[i]) : NULL, error))
      return NULL;
    g_hash_table_remove (places, t->name);
  }
  for (uint32_t i = 0; i < weft_state_count (state); i++) {
    const char *name = weft_state_at (state, i)->name;
    const struct weft_state_tensor *t = weft_state_at (state, i);
    if (g_hash_table_contains (places, name) && !t->fp8_recipe && !t->scales) {
      weft_bad_input (error, "%s: of another model: found no tensor %s", s->path, name);
      return NULL;
    }
  }
  return g_steal_pointer (&ours);
}

/* Kinds as text, for example "exp_avg and exp_avg_sq". The caller frees the text. */
static char *
list_kinds (uint32_t kinds)
{
  GString *out = g_string_new (NULL);

  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    if (kinds >> kind & 1)
      g_string_append_printf (out, "%s%s", out->len ? " and " : "", weft_state_kind_words[kind]);
  return g_string_free (out, FALSE);
}

/* The state of the optimizer that a job keeps for a tensor, as bits 1 << kind. */
static uint32_t
kept_kinds (const weft_state *state, uint32_t tensor)
{
  uint32_t kinds = 0;

  for (int kind = WEFT_STATE_MASTER + 1; kind < WEFT_STATE_GRAD; kind++)
    kinds |= (uint32_t) (weft_state_keeps (state, tensor, kind) != 0) << kind;
  return kinds;
}

/* Checks that the checkpoint has for each tensor of the job the state that its optimizer keeps. */
static gboolean
match_optimizer (const stored *s, const weft_state *state, const uint32_t *ours,
                 const struct weft_job *job, GError **error)
{
  g_autofree uint32_t *found = g_new0 (uint32_t, weft_state_count (state));

  for (uint32_t i = 0; i < s->m->chunks->len; i++) {
    const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, i);
    if (ours[c->tensor] != NOT_OURS)
      found[ours[c->tensor]] |= 1u << c->kind;
  }
  for (uint32_t i = 0; i < weft_state_count (state); i++) {
    const struct weft_state_tensor *t = weft_state_at (state, i);
    uint32_t kept = kept_kinds (state, i), has = found[i] & ~(3u << WEFT_STATE_WEIGHT);
    g_autofree char *wanted = list_kinds (kept), *there = list_kinds (has);
    if (has != kept && !t->fp8_recipe)
      return weft_bad_input (error,
                             "%s: of another optimizer: found %s of %s, wanted %s (optimizer = %s)",
                             s->path, has ? there : "no state", t->name, wanted,
                             weft_optimizer_words[job->train.optimizer]);
    if (t->scales && !found[i])
      return weft_bad_input (error, "%s: found no tensor %s", s->path, t->name);
  }
  return TRUE;
}

static uint32_t *
match (const stored *s, const weft_state *state, const struct weft_job *job, GError **error)
{
  g_autofree char *wanted = weft_manifest_model (job);
  uint32_t *ours = match_tensors (s, state, error);
  gboolean older;

  if (ours && !match_optimizer (s, state, ours, job, error))
    g_clear_pointer (&ours, g_free);
  if (!ours || weft_manifest_fits (s->m->model, wanted, &older))
    return ours;
  weft_bad_input (error, "%s: of another model: found %s; wanted %s", s->path, s->m->model, wanted);
  g_free (ours);
  return NULL;
}

/* ------------------------------------------------------------------------ writing */

struct target {
  weft_state *state;
  uint32_t tensor;
  /* TRUE: the checkpoint has no weights in the type of the job, so they are rounded from the
   * masters */
  gboolean derive;
  float *block;
};

/* Copies elements [from, from + n) of a chunk to elements [first, first + n) of the tensor. */
static gboolean
write_elements (const stored *s, uint32_t chunk, const struct target *to, uint64_t from,
                uint64_t first, uint64_t n, GError **error)
{
  const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, chunk);

  for (uint64_t done = 0, few; done < n; done += few) {
    few = MIN (n - done, BLOCK);
    if (!weft_state_go_on (to->state, error) ||
        !read_chunk (s, chunk, from + done, few, to->block, error))
      return FALSE;
    weft_state_write (to->state, to->tensor, c->kind, first + done, few, to->block);
    if (to->derive && c->kind == WEFT_STATE_MASTER)
      weft_state_write (to->state, to->tensor, WEFT_STATE_WEIGHT, first + done, few, to->block);
  }
  return TRUE;
}

/* Copies a chunk to the tensor: in one run of elements if it consists of whole tensor rows, else
 * row by row. */
static gboolean
write_chunk (const stored *s, uint32_t chunk, const struct target *to, GError **error)
{
  const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, chunk);
  uint64_t width = weft_manifest_tensor (s->m, c->tensor)->columns;
  gboolean whole = c->columns == width;
  uint64_t lines = whole ? 1 : c->rows, n = whole ? c->rows * c->columns : c->columns;

  for (uint64_t line = 0; line < lines; line++)
    if (!write_elements (s, chunk, to, line * n, (c->row + line) * width + c->column, n, error))
      return FALSE;
  return TRUE;
}

/* Whether weights of this type are rounded to 16 bits. If the checkpoint has weights of another
 * type than the job, the job's weights are rounded from the masters. */
static gboolean
is_rounded (enum weft_dtype dtype)
{
  return dtype == WEFT_BF16 || dtype == WEFT_FP16;
}

static gboolean
has_type (const struct weft_manifest_chunk *c, const struct weft_state_tensor *ours)
{
  return c->type == (ours->dtype == WEFT_FP16 ? WEFT_TENSOR_F16 : WEFT_TENSOR_BF16);
}

/* For each tensor of the checkpoint, whether it has 16-bit weights in the job's type beside the
 * masters. The caller frees the array. */
static gboolean *
find_weights (const stored *s, const weft_state *state, const uint32_t *ours)
{
  gboolean *has = g_new0 (gboolean, s->m->tensors->len);

  for (uint32_t i = 0; i < s->m->chunks->len; i++) {
    const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, i);
    if (ours[c->tensor] != NOT_OURS && c->kind == WEFT_STATE_WEIGHT &&
        has_type (c, weft_state_at (state, ours[c->tensor])))
      has[c->tensor] = TRUE;
  }
  return has;
}

/* Sets the state of the fp8 recipe to zero: a checkpoint of a job without fp8 has no such state. */
static void
clear_fp8_recipe (weft_state *state)
{
  for (uint32_t i = 0; i < weft_state_count (state); i++) {
    const struct weft_state_tensor *t = weft_state_at (state, i);
    g_autofree float *zeros = g_new0 (float, t->fp8_recipe ? t->rows : 0);
    if (t->fp8_recipe)
      weft_state_write (state, i, WEFT_STATE_MASTER, 0, t->rows, zeros);
  }
}

/* Copies all chunks to the state. If the job has fp32 weights, the masters are the weights, and
 * rounded weights of the checkpoint are skipped. fp8 weights are quantised from the masters. */
static gboolean
write_state (const stored *s, weft_state *state, const uint32_t *ours, GError **error)
{
  g_autofree gboolean *has_weights = find_weights (s, state, ours);
  g_autofree float *block = g_new (float, BLOCK);

  clear_fp8_recipe (state);
  for (uint32_t i = 0; i < s->m->chunks->len; i++) {
    const struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, i);
    if (ours[c->tensor] == NOT_OURS)
      continue;
    gboolean rounded = is_rounded (weft_state_at (state, ours[c->tensor])->dtype);
    gboolean wanted = c->kind != WEFT_STATE_WEIGHT || has_weights[c->tensor];
    struct target to = { state, ours[c->tensor], rounded && !has_weights[c->tensor], block };
    if (wanted && !write_chunk (s, i, &to, error))
      return FALSE;
  }
  return weft_state_quantise (state, error);
}

/* -------------------------------------------------------------------------- whole */

static void
note (GString *notes, const char *text)
{
  g_string_append_printf (notes, "%s%s", notes->len ? "; " : "", text);
}

static void
note_schema (GString *notes, const stored *s)
{
  g_autofree char *text = g_strdup_printf (
      "%s: an older format (" WEFT_MANIFEST_SCHEMA_1 "), whose numbers have no checksum", s->path);

  if (s->m->unsealed)
    note (notes, text);
}

struct load {
  weft_state *state;
  const struct weft_job *job;
  struct weft_progress *progress;
  GString *notes;
};

static void
note_alpha (const struct load *l, const stored *s)
{
  g_autofree char *wanted = weft_manifest_model (l->job);
  gboolean older;

  if (weft_manifest_fits (s->m->model, wanted, &older) && older)
    note (l->notes, "an older checkpoint, which does not say its lora_alpha: it was not compared");
}

/* Loads one checkpoint. *damaged, after an error: TRUE if the checkpoint is damaged, so that an
 * older one may still load; FALSE if the checkpoint is of another model. */
static gboolean
load_one (const struct load *l, const char *path, gboolean *damaged, GError **error)
{
  g_autoptr (stored) s = stored_open (path, error);

  *damaged = TRUE;
  if (!s)
    return FALSE;
  g_autofree uint32_t *ours = match (s, l->state, l->job, error);
  *damaged = ours != NULL;
  if (!ours || !check_content (s, l->state, error) || !write_state (s, l->state, ours, error))
    return FALSE;
  *l->progress = s->m->progress;
  note_schema (l->notes, s);
  note_alpha (l, s);
  return TRUE;
}

static gboolean
load_step (const struct load *l, const char *path, GError **error)
{
  g_autoptr (GError) why = NULL;
  gboolean damaged;

  if (load_one (l, path, &damaged, &why))
    return TRUE;
  g_autofree char *dir = g_path_get_dirname (path), *name = g_path_get_basename (path);
  g_autofree char *other = damaged ? weft_checkpoint_newest_except (dir, name) : NULL;
  if (other)
    return weft_bad_input (error, "%s; the newest complete checkpoint beside it is %s",
                           why->message, other);
  g_propagate_error (error, g_steal_pointer (&why));
  return FALSE;
}

/* Adds a note for the user: the i-th candidate was loaded although another checkpoint, which was
 * not tried, has a higher step. */
static void
note_higher (GString *notes, const char *dir, const GArray *steps, uint32_t i)
{
  uint64_t loaded = g_array_index (steps, uint64_t, i), last = loaded, latest;

  for (uint32_t k = i + 1; k < steps->len; k++)
    last = MAX (last, g_array_index (steps, uint64_t, k));
  if (last == loaded || !weft_checkpoint_latest (dir, &latest))
    return;
  g_autofree char *text = g_strdup_printf (
      "%s: loaded step %" G_GUINT64_FORMAT ", because the file " WEFT_CHECKPOINT_LATEST
      " names step %" G_GUINT64_FORMAT "; to continue from step %" G_GUINT64_FORMAT
      ", give its directory",
      dir, loaded, latest, last);
  note (notes, text);
}

/* Loads the newest complete checkpoint. Notes the errors of newer checkpoints that are damaged or
 * unfinished. */
static gboolean
load_newest (const struct load *l, const char *dir, GError **error)
{
  g_autoptr (GArray) steps = weft_checkpoint_candidates (dir);

  for (uint32_t i = 0; i < steps->len; i++) {
    g_autofree char *path = weft_checkpoint_path (dir, g_array_index (steps, uint64_t, i));
    g_autoptr (GError) why = NULL;
    gboolean damaged;
    if (load_one (l, path, &damaged, &why)) {
      note_higher (l->notes, dir, steps, i);
      return TRUE;
    }
    if (!damaged) {
      g_propagate_error (error, g_steal_pointer (&why));
      return FALSE;
    }
    note (l->notes, why->message);
  }
  return weft_bad_input (error, "%s: found no complete checkpoint%s%s", dir,
                         l->notes->len ? ": " : "", l->notes->str);
}

gboolean
weft_checkpoint_load (weft_state *state, const struct weft_job *job, const char *path,
                      struct weft_progress *progress, char **notes, GError **error)
{
  g_autofree char *manifest = g_build_filename (path, WEFT_MANIFEST_NAME, NULL);
  g_autoptr (GString) text = g_string_new (NULL);
  const struct load load = { state, job, progress, text };

  *notes = NULL;
  gboolean one = weft_checkpoint_is_step (path) || g_file_test (manifest, G_FILE_TEST_EXISTS);
  if (!(one ? load_step : load_newest) (&load, path, error))
    return FALSE;
  if (text->len)
    *notes = g_string_free (g_steal_pointer (&text), FALSE);
  return TRUE;
}
