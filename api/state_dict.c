/* State dicts: references to tensors by name. Loading copies values into the tensors. Also
 * checkpoint files. */
#include "core/base/error.h"
#include "train/hugging_face.h"
#include "api/inside.h"
#include <string.h>

/* number of elements that are copied at once */
#define BLOCK 65536u

struct weft_open_state_dict {
  weft_module *module;
  gboolean keep_vars;
  /* values that a read returns: the weights of the module, or their fp32 masters */
  enum weft_state_kind kind;
  size_t n;
  weft_tensor_face *face;
  char **name; /* name of each tensor, with the prefix */
};

/* --------------------------------------------------------------------- references */

static void
add_face (weft_state_dict *d, const char *prefix, uint32_t i)
{
  const struct weft_state_tensor *t = weft_state_at (d->module->state, i);
  enum weft_dtype dtype =
      d->kind == WEFT_STATE_WEIGHT ? weft_state_dtype (d->module->state) : WEFT_FP32;

  d->name[i] = g_strconcat (prefix ? prefix : "", t->name, NULL);
  d->face[i] = (weft_tensor_face){ .name = d->name[i],
                                   .dtype = weft_dtype_words[dtype],
                                   .n_dims = t->columns == 1 ? 1 : 2,
                                   .shape = { t->rows, t->columns },
                                   .elements = t->rows * t->columns };
}

static weft_state_dict *
make_dict (weft_module *m, const char *prefix, bool keep_vars, enum weft_state_kind kind)
{
  if (!m)
    return NULL;
  weft_state_dict *d = g_new0 (weft_state_dict, 1);
  d->module = m;
  d->keep_vars = keep_vars;
  d->kind = kind;
  d->n = weft_state_count (m->state);
  d->face = g_new0 (weft_tensor_face, d->n);
  d->name = g_new0 (char *, d->n + 1);
  for (uint32_t i = 0; i < d->n; i++)
    add_face (d, prefix, i);
  return d;
}

weft_state_dict *
weft_module_state_dict (weft_module *m, const char *prefix, bool keep_vars)
{
  return make_dict (m, prefix, keep_vars, WEFT_STATE_WEIGHT);
}

weft_state_dict *
weft_module_state_dict_for_save_checkpoint (weft_module *m, const char *prefix, bool keep_vars)
{
  return make_dict (m, prefix, keep_vars, WEFT_STATE_MASTER);
}

void
weft_state_dict_close (weft_state_dict *d)
{
  if (!d)
    return;
  g_strfreev (d->name);
  g_free (d->face);
  g_free (d);
}

size_t
weft_state_dict_count (const weft_state_dict *d)
{
  return d ? d->n : 0;
}

const weft_tensor_face *
weft_state_dict_at (const weft_state_dict *d, size_t i)
{
  return d && i < d->n ? &d->face[i] : NULL;
}

size_t
weft_state_dict_find (const weft_state_dict *d, const char *name)
{
  size_t i = 0;

  if (!d || !name)
    return weft_state_dict_count (d);
  while (i < d->n && strcmp (d->name[i], name))
    i++;
  return i;
}

static bool
read_kind (weft_state_dict *d, size_t i, enum weft_state_kind kind, const uint64_t extent[2],
           float *out, weft_error *error)
{
  if (!weft_api_given ("state_dict", "dict", d, error) ||
      !weft_api_given ("state_dict", "out", out, error))
    return false;
  if (i >= d->n)
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                               "state_dict: found tensor %zu, wanted 0..%zu", i, d->n - 1);
  if (extent[0] > d->face[i].elements || extent[1] > d->face[i].elements - extent[0])
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                               "%s: found %" G_GUINT64_FORMAT " elements from %" G_GUINT64_FORMAT
                               " on, wanted them among %" G_GUINT64_FORMAT,
                               d->face[i].name, extent[1], extent[0], d->face[i].elements);
  weft_state_read (d->module->state, (uint32_t) i, kind, extent[0], extent[1], out);
  return weft_api_done (error);
}

bool
weft_state_dict_read (weft_state_dict *d, size_t i, uint64_t first, uint64_t n, float *out,
                      weft_error *error)
{
  return read_kind (d, i, d ? d->kind : WEFT_STATE_WEIGHT, (const uint64_t[]){ first, n }, out,
                    error);
}

bool
weft_state_dict_read_grad (weft_state_dict *d, size_t i, uint64_t first, uint64_t n, float *out,
                           weft_error *error)
{
  if (d && !d->keep_vars)
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                               "state_dict: values without keep_vars have no gradient");
  return read_kind (d, i, WEFT_STATE_GRAD, (const uint64_t[]){ first, n }, out, error);
}

void *
weft_state_dict_data (weft_state_dict *d, size_t i, uint32_t rank)
{
  if (!d || i >= d->n || rank >= d->module->x->actors->n ||
      (d->kind == WEFT_STATE_MASTER && weft_state_dtype (d->module->state) != WEFT_FP32))
    return NULL;
  return weft_state_address (d->module->state, (uint32_t) i, rank);
}

/* -------------------------------------------------------------------------- loading */

static void
write_both (weft_state *state, uint32_t tensor, uint64_t first, uint64_t n, const float *in)
{
  weft_state_write (state, tensor, WEFT_STATE_WEIGHT, first, n, in);
  weft_state_write (state, tensor, WEFT_STATE_MASTER, first, n, in);
}

void
weft_api_refresh_masters (weft_module *m)
{
  g_autofree float *block = g_new (float, BLOCK);

  if (weft_state_dtype (m->state) == WEFT_FP32) /* fp32 weights have no separate masters */
    return;
  for (uint32_t i = 0; i < weft_state_count (m->state); i++) {
    const struct weft_state_tensor *t = weft_state_at (m->state, i);
    for (uint64_t first = 0, n; first < t->rows * t->columns; first += n) {
      n = MIN (BLOCK, t->rows * t->columns - first);
      weft_state_read (m->state, i, WEFT_STATE_WEIGHT, first, n, block);
      weft_state_write (m->state, i, WEFT_STATE_MASTER, first, n, block);
    }
  }
}

/* Index of the tensor with this name; if there is none, the number of tensors. */
static uint32_t
find_tensor (weft_state *state, const char *name)
{
  uint32_t i = 0;

  while (i < weft_state_count (state) && strcmp (weft_state_at (state, i)->name, name))
    i++;
  return i;
}

static void
note (GString *list, const char *name)
{
  g_string_append_printf (list, "%s%s", list->len ? ", " : "", name);
}

static bool
check_shape (const struct weft_state_tensor *t, const weft_tensor *in, weft_error *error)
{
  if (t->rows == in->shape[0] && t->columns == in->shape[1])
    return true;
  return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                             "load_state_dict: %s: found %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
                             ", wanted %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT,
                             in->name, in->shape[0], in->shape[1], t->rows, t->columns);
}

/* Fills `where` with the tensor that each name belongs to, and fills the lists of unknown and
 * missing names. FALSE with an error if a shape is wrong. */
static bool
match (weft_state *state, const weft_tensor *tensors, size_t n, uint32_t *where, GString **lists,
       weft_error *error)
{
  g_autofree gboolean *given = g_new0 (gboolean, weft_state_count (state));

  for (size_t i = 0; i < n; i++) {
    if (!weft_api_given ("load_state_dict", "name", tensors[i].name, error) ||
        !weft_api_given ("load_state_dict", "data", tensors[i].data, error))
      return false;
    where[i] = find_tensor (state, tensors[i].name);
    if (where[i] == weft_state_count (state)) {
      note (lists[0], tensors[i].name);
      continue;
    }
    if (!check_shape (weft_state_at (state, where[i]), &tensors[i], error))
      return false;
    given[where[i]] = TRUE;
  }
  for (uint32_t t = 0; t < weft_state_count (state); t++)
    if (!given[t])
      note (lists[1], weft_state_at (state, t)->name);
  return true;
}

static bool
tell_names (GString *const *lists, weft_status status, weft_error *error)
{
  return weft_api_fail_with (error, status, "load_state_dict: unknown: %s; missing: %s",
                             lists[0]->len ? lists[0]->str : "none",
                             lists[1]->len ? lists[1]->str : "none");
}

bool
weft_module_load_state_dict (weft_module *m, const weft_tensor *tensors, size_t n, bool strict,
                             weft_error *error)
{
  if (!weft_api_between_steps (m, "load_state_dict", error) ||
      (n && !weft_api_given ("load_state_dict", "tensors", tensors, error)))
    return false;
  if (n > UINT32_MAX)
    return weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                               "load_state_dict: found %zu tensors, wanted at most %u", n,
                               UINT32_MAX);
  g_autoptr (GString) unknown = g_string_new (NULL), missing = g_string_new (NULL);
  g_autofree uint32_t *where = g_new (uint32_t, n + 1);
  GString *lists[] = { unknown, missing };
  if (!match (m->state, tensors, n, where, lists, error))
    return false;
  gboolean differs = unknown->len || missing->len;
  if (differs && strict)
    return tell_names (lists, WEFT_STATUS_BAD_INPUT, error);
  for (size_t i = 0; i < n; i++)
    if (where[i] < weft_state_count (m->state))
      write_both (m->state, where[i], 0, tensors[i].shape[0] * tensors[i].shape[1],
                  tensors[i].data);
  weft_api_done (error);
  if (differs)
    tell_names (lists, WEFT_STATUS_DONE, error);
  return true;
}

/* ---------------------------------------------------------------------------- files */

bool
weft_module_save_checkpoint (weft_module *m, const char *dir, uint32_t keep, uint64_t position,
                             uint64_t seed, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_between_steps (m, "save_checkpoint", error) ||
      !weft_api_given ("save_checkpoint", "dir", dir, error))
    return false;
  struct weft_progress progress = m->progress;
  progress.position = position;
  progress.seed = seed;
  if (!weft_checkpoint_save (m->state, &m->plan->job, &progress, dir, keep, &reason))
    return weft_api_fail (error, reason);
  return weft_api_done (error);
}

bool
weft_module_load_checkpoint (weft_module *m, const char *path, uint64_t *position, uint64_t *seed,
                             weft_error *error)
{
  g_autofree char *passed_over = NULL;
  GError *reason = NULL;

  if (!weft_api_between_steps (m, "load_checkpoint", error) ||
      !weft_api_given ("load_checkpoint", "path", path, error))
    return false;
  if (!weft_checkpoint_load (m->state, &m->plan->job, path, &m->progress, &passed_over, &reason))
    return weft_api_fail (error, reason);
  weft_api_set_loss_scale (m, weft_loss_scale_resume (&m->progress.loss_scale, &m->plan->job));
  if (position)
    *position = m->progress.position;
  if (seed)
    *seed = m->progress.seed;
  weft_api_done (error);
  if (passed_over)
    weft_api_fail_with (error, WEFT_STATUS_DONE, "%s", passed_over);
  return true;
}

bool
weft_module_import_safetensors (weft_module *m, const char *path, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_between_steps (m, "import_safetensors", error) ||
      !weft_api_given ("import_safetensors", "path", path, error))
    return false;
  if (!weft_hf_import (m->state, &m->plan->job.model, path, NULL, &reason))
    return weft_api_fail (error, reason);
  return weft_api_done (error);
}

bool
weft_module_export_safetensors (weft_module *m, const char *path, weft_error *error)
{
  GError *reason = NULL;

  if (!weft_api_between_steps (m, "export_safetensors", error) ||
      !weft_api_given ("export_safetensors", "path", path, error))
    return false;
  if (!weft_hf_export (m->state, &m->plan->job.model, WEFT_STATE_WEIGHT, path, &reason))
    return weft_api_fail (error, reason);
  return weft_api_done (error);
}
