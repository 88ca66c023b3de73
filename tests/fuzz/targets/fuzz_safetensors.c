/* safetensors files: the input is opened as a file of tensors, and then as an index of several
 * files. Every data byte of an accepted file must belong to one tensor, and must be readable. */
#include "train/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include <glib/gstdio.h>

static uint64_t
look_at (const weft_safetensors *file, uint32_t i)
{
  const struct weft_tensor *t = weft_safetensors_at (file, i);
  const uint8_t *data = weft_safetensors_data (file, t);
  volatile uint8_t byte = 0; /* volatile, so that the compiler keeps the read of every byte */
  float f;

  g_assert_true (weft_safetensors_find (file, t->name) == t);
  g_assert_cmpuint (weft_tensor_elements (t) * weft_tensor_type_bytes[t->type], ==,
                    t->end - t->begin);
  for (uint64_t b = 0; b < t->end - t->begin; b++)
    byte = data[b];
  (void) byte;
  if (t->end > t->begin)
    weft_safetensors_floats (file, t, weft_tensor_elements (t) - 1, 1, &f, NULL);
  return t->end - t->begin;
}

static void
try_open (const char *path)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, &error);
  uint64_t bytes = 0;

  g_assert_true ((file == NULL) == (error != NULL));
  if (!file) {
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return;
  }
  for (uint32_t i = 0; i < weft_safetensors_count (file); i++)
    bytes += look_at (file, i);
  weft_safetensors_metadata (file, "format");
  GStatBuf info;
  if (g_str_has_suffix (path, ".safetensors") && g_stat (path, &info) == 0)
    g_assert_cmpuint (bytes, <=, info.st_size - 8);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  static const char *const names[] = { "a.safetensors", "index.json" };
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp ("weft-fuzz-XXXXXX", &error);

  g_assert_no_error (error);
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *path = g_build_filename (folder, names[i], NULL);
    g_file_set_contents (path, (const char *) data, size, &error);
    g_assert_no_error (error);
    try_open (path);
  }
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *path = g_build_filename (folder, names[i], NULL);
    g_unlink (path);
  }
  g_rmdir (folder);
  return 0;
}
