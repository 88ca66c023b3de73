/* Writes a safetensors file. The header is written at the first call that passes data, because all
 * tensors must be declared before. */
#include "train/safetensors.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "train/durable.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct weft_safetensors_writer {
  char *path;
  char *temporary;      /* name of the temporary file; NULL before the first write */
  int fd;               /* file descriptor of the temporary file, or -1 */
  GArray *tensors;      /* array of struct weft_tensor */
  GHashTable *names;    /* set of the tensors' names; `tensors` owns the strings */
  GPtrArray *metadata;  /* keys and values in turn; owns the strings */
  /* number of bytes of data that were declared; number of bytes written so far */
  uint64_t wanted, put;
  gboolean begun, failed;
};

static void
tensor_clear (struct weft_tensor *t)
{
  g_free (t->name);
}

weft_safetensors_writer *
weft_safetensors_writer_new (const char *path)
{
  weft_safetensors_writer *w = g_new0 (weft_safetensors_writer, 1);

  w->path = g_strdup (path);
  w->fd = -1;
  w->tensors = g_array_new (FALSE, FALSE, sizeof (struct weft_tensor));
  g_array_set_clear_func (w->tensors, (GDestroyNotify) tensor_clear);
  w->names = g_hash_table_new (g_str_hash, g_str_equal);
  w->metadata = g_ptr_array_new_with_free_func (g_free);
  return w;
}

void
weft_safetensors_declare (weft_safetensors_writer *w, const char *name, enum weft_tensor_type type,
                          uint32_t n_dim, const uint64_t *dim)
{
  struct weft_tensor t = { .name = g_strdup (name), .type = type, .n_dim = n_dim };

  g_assert (!w->begun && n_dim <= WEFT_TENSOR_MOST_DIMS);
  gboolean fresh = g_hash_table_add (w->names, t.name);
  g_assert (fresh && !g_str_equal (name, "__metadata__"));
  for (uint32_t d = 0; d < n_dim; d++)
    t.dim[d] = dim[d];
  t.begin = w->wanted;
  t.end = t.begin + weft_tensor_elements (&t) * weft_tensor_type_bytes[type];
  w->wanted = t.end;
  g_array_append_val (w->tensors, t);
}

void
weft_safetensors_declare_metadata (weft_safetensors_writer *w, const char *key, const char *value)
{
  g_assert (!w->begun);
  g_ptr_array_add (w->metadata, g_strdup (key));
  g_ptr_array_add (w->metadata, g_strdup (value));
}

/* ------------------------------------------------------------------------- header */

static void
add_numbers (JsonBuilder *b, const char *member, const uint64_t *number, uint32_t n)
{
  weft_json_array (b, member);
  for (uint32_t i = 0; i < n; i++)
    json_builder_add_int_value (b, number[i]);
  json_builder_end_array (b);
}

static void
add_tensor (JsonBuilder *b, const struct weft_tensor *t)
{
  weft_json_object (b, t->name);
  weft_json_text (b, "dtype", weft_tensor_type_words[t->type]);
  add_numbers (b, "shape", t->dim, t->n_dim);
  add_numbers (b, "data_offsets", (const uint64_t[]){ t->begin, t->end }, 2);
  json_builder_end_object (b);
}

static char *
header_json (const weft_safetensors_writer *w)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  if (w->metadata->len) {
    weft_json_object (b, "__metadata__");
    for (uint32_t i = 0; i < w->metadata->len; i += 2)
      weft_json_text (b, w->metadata->pdata[i], w->metadata->pdata[i + 1]);
    json_builder_end_object (b);
  }
  for (uint32_t i = 0; i < w->tensors->len; i++)
    add_tensor (b, &g_array_index (w->tensors, struct weft_tensor, i));
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  return json_to_string (root, FALSE);
}

/* The header: length, JSON, and spaces up to a multiple of 8 bytes. */
static GByteArray *
header_bytes (const weft_safetensors_writer *w)
{
  g_autofree char *json = header_json (w);
  uint64_t used = strlen (json), length = (used + 7) / 8 * 8;
  GByteArray *bytes = g_byte_array_new ();

  g_byte_array_append (bytes, (const uint8_t *) &length, sizeof length);
  g_byte_array_append (bytes, (const uint8_t *) json, used);
  g_byte_array_append (bytes, (const uint8_t *) "       ", length - used);
  return bytes;
}

/* --------------------------------------------------------------------------- file */

/* Sets an error with the text of errno; returns FALSE. */
static gboolean
fail (weft_safetensors_writer *w, const char *what, GError **error)
{
  const char *text = g_strerror (errno);

  w->failed = TRUE;
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN, "%s: %s: %s", w->path, what, text);
  return FALSE;
}

static gboolean
write_bytes (weft_safetensors_writer *w, const void *data, uint64_t bytes, GError **error)
{
  return weft_write_all (w->fd, data, bytes) || fail (w, "cannot be written", error);
}

/* Refuses three kinds of paths: a device or pipe (the rename would replace it by a file), an input
 * of the command, and a link into another folder. */
static gboolean
check_place (weft_safetensors_writer *w, GError **error)
{
  struct stat there;

  char *target = NULL;

  if (stat (w->path, &there) == 0 && !S_ISREG (there.st_mode)) {
    w->failed = TRUE;
    return weft_run_error (error, "%s: found a directory, pipe or device, wanted a file", w->path);
  }
  w->failed = !weft_output_find (w->path, &target, error);
  if (target) {
    g_free (w->path);
    w->path = target;
  }
  return !w->failed;
}

/* At the first call, opens the temporary file and writes the header; later calls do nothing. */
static gboolean
begin (weft_safetensors_writer *w, GError **error)
{
  g_autofree char *temporary = g_strconcat (w->path, ".tmp-XXXXXX", NULL);

  if (w->begun)
    return TRUE;
  w->begun = TRUE;
  if (!check_place (w, error))
    return FALSE;
  w->fd = g_mkstemp_full (temporary, O_WRONLY | O_CLOEXEC, 0666);
  if (w->fd < 0)
    return fail (w, "cannot be made", error);
  w->temporary = g_steal_pointer (&temporary);
  g_autoptr (GByteArray) header = header_bytes (w);
  return write_bytes (w, header->data, header->len, error);
}

static gboolean
refuse (const weft_safetensors_writer *w, GError **error)
{
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN, "%s: an earlier write failed", w->path);
  return FALSE;
}

gboolean
weft_safetensors_put (weft_safetensors_writer *w, const void *data, uint64_t bytes, GError **error)
{
  g_assert (bytes <= w->wanted - w->put);
  if (w->failed)
    return refuse (w, error);
  if (!begin (w, error) || !write_bytes (w, data, bytes, error))
    return FALSE;
  w->put += bytes;
  return TRUE;
}

/* Calls fsync() on the folder: only then does the new name of the file survive a crash of the
 * machine. */
static gboolean
sync_folder (const weft_safetensors_writer *w, GError **error)
{
  g_autofree char *folder = g_path_get_dirname (w->path);
  return weft_sync_path (folder, error);
}

static gboolean
publish (weft_safetensors_writer *w, GError **error)
{
  if (fsync (w->fd))
    return fail (w, "cannot be written", error);
  int fd = w->fd;
  w->fd = -1;
  if (close (fd))
    return fail (w, "cannot be written", error);
  if (rename (w->temporary, w->path))
    return fail (w, "cannot be renamed", error);
  g_clear_pointer (&w->temporary, g_free);
  return sync_folder (w, error);
}

static gboolean
complete (weft_safetensors_writer *w, GError **error)
{
  if (w->failed)
    return refuse (w, error);
  if (!begin (w, error))
    return FALSE;
  if (w->put == w->wanted)
    return publish (w, error);
  g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN,
               "%s: found %" G_GUINT64_FORMAT " bytes of data, wanted the %" G_GUINT64_FORMAT
               " bytes of the tensors",
               w->path, w->put, w->wanted);
  return FALSE;
}

gboolean
weft_safetensors_close (weft_safetensors_writer *w, GError **error)
{
  gboolean ok = complete (w, error);

  weft_safetensors_abandon (w);
  return ok;
}

void
weft_safetensors_abandon (weft_safetensors_writer *w)
{
  if (!w)
    return;
  if (w->fd >= 0)
    close (w->fd);
  if (w->temporary)
    unlink (w->temporary);
  g_free (w->temporary);
  g_free (w->path);
  g_hash_table_unref (w->names);
  g_array_unref (w->tensors);
  g_ptr_array_unref (w->metadata);
  g_free (w);
}
