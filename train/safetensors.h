/* safetensors.h - the safetensors file format (github.com/huggingface/safetensors, README): the
 * length of the header as u64, the header as JSON, then the data; little-endian, row-major.
 *
 * Opening a file checks sizes, overlaps, holes, duplicate names, and shapes against offsets. Errors
 * name the file, the tensor, the value found and the value wanted. Files are mapped (mapped_file.h)
 * and must keep their size while they are open. */
#pragma once
#include <glib.h>
#include <stdint.h>

#define WEFT_TENSOR_MOST_DIMS 8

/* Columns: constant, name, bytes of an element. */
#define WEFT_TENSOR_TYPE_LIST(X)                                                                   \
  X (WEFT_TENSOR_BOOL, "BOOL", 1)                                                                  \
  X (WEFT_TENSOR_U8, "U8", 1)                                                                      \
  X (WEFT_TENSOR_I8, "I8", 1)                                                                      \
  X (WEFT_TENSOR_F8_E4M3, "F8_E4M3", 1)                                                            \
  X (WEFT_TENSOR_F8_E5M2, "F8_E5M2", 1)                                                            \
  X (WEFT_TENSOR_I16, "I16", 2)                                                                    \
  X (WEFT_TENSOR_U16, "U16", 2)                                                                    \
  X (WEFT_TENSOR_F16, "F16", 2)                                                                    \
  X (WEFT_TENSOR_BF16, "BF16", 2)                                                                  \
  X (WEFT_TENSOR_I32, "I32", 4)                                                                    \
  X (WEFT_TENSOR_U32, "U32", 4)                                                                    \
  X (WEFT_TENSOR_F32, "F32", 4)                                                                    \
  X (WEFT_TENSOR_F64, "F64", 8)                                                                    \
  X (WEFT_TENSOR_I64, "I64", 8)                                                                    \
  X (WEFT_TENSOR_U64, "U64", 8)
enum weft_tensor_type {
#define WEFT_TENSOR_ID(id, word, bytes) id,
  WEFT_TENSOR_TYPE_LIST (WEFT_TENSOR_ID)
#undef WEFT_TENSOR_ID
      WEFT_N_TENSOR_TYPE
};
extern const char *const weft_tensor_type_words[];
extern const uint8_t weft_tensor_type_bytes[];

struct weft_tensor {
  char *name;
  enum weft_tensor_type type;
  uint32_t n_dim;
  uint64_t dim[WEFT_TENSOR_MOST_DIMS];
  uint64_t begin, end; /* position of the tensor in the data section of the file, in bytes */
};

static inline uint64_t
weft_tensor_elements (const struct weft_tensor *t)
{
  uint64_t n = 1;
  for (uint32_t d = 0; d < t->n_dim; d++)
    n *= t->dim[d];
  return n;
}

/* ---------------------------------------------------------------------- reading */

typedef struct weft_safetensors weft_safetensors;

/* Opens a safetensors file; its tensors are listed in the order of their data. If the name ends in
 * .json, opens the index of a sharded model; the tensors of all shards are listed in the order of
 * the index, and tensors that the index lacks are not listed. For a folder, opens the
 * model.safetensors.index.json or model.safetensors in it. */
weft_safetensors *weft_safetensors_open (const char *path, GError **error);
void weft_safetensors_free (weft_safetensors *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_safetensors, weft_safetensors_free)

/* The number of tensors (weft_safetensors_count), and the i-th tensor. */
uint32_t weft_safetensors_count (const weft_safetensors *file);
const struct weft_tensor *weft_safetensors_at (const weft_safetensors *file, uint32_t i);

/* The tensor with this name, or NULL if the file has no such tensor. */
const struct weft_tensor *weft_safetensors_find (const weft_safetensors *file, const char *name);

/* The value of a key of __metadata__, from the first shard that has the key; else NULL. */
const char *weft_safetensors_metadata (const weft_safetensors *file, const char *key);

/* The mapped bytes of a tensor, not necessarily aligned. They are valid until the file is
 * closed. */
const void *weft_safetensors_data (const weft_safetensors *file, const struct weft_tensor *tensor);

/* Converts elements [first, first + n) to floats. Types other than F32, F16, BF16 and F64 are an
 * error. n = 0 only checks the type. */
gboolean weft_safetensors_floats (const weft_safetensors *file, const struct weft_tensor *tensor,
                                  uint64_t first, uint64_t n, float *out, GError **error);

/* ---------------------------------------------------------------------- writing */

/* The caller declares all tensors, then passes their data in the order of declaration, in pieces of
 * any size. The file appears under its name only when weft_safetensors_close() succeeds (temporary
 * name in the same folder, fsync, rename, fsync of the folder). The data section begins at a
 * multiple of 8 bytes: declare the widest types first to align all tensors. Declaring a name twice,
 * or passing more bytes than declared, is a programming error. */
typedef struct weft_safetensors_writer weft_safetensors_writer;

weft_safetensors_writer *weft_safetensors_writer_new (const char *path);
void weft_safetensors_declare (weft_safetensors_writer *w, const char *name,
                               enum weft_tensor_type type, uint32_t n_dim, const uint64_t *dim);
void weft_safetensors_declare_metadata (weft_safetensors_writer *w, const char *key,
                                        const char *value);
gboolean weft_safetensors_put (weft_safetensors_writer *w, const void *data, uint64_t bytes,
                               GError **error);
/* Completes and publishes the file. Always frees the writer. Fails, and leaves no file, if fewer
 * bytes were passed than declared or if an earlier call failed. */
gboolean weft_safetensors_close (weft_safetensors_writer *w, GError **error);
/* Deletes the unfinished file and frees the writer, which may be NULL. */
void weft_safetensors_abandon (weft_safetensors_writer *w);
