/* manifest.h - manifest.json: what a checkpoint holds, and how one knows that it is whole.
 *
 *   schema, step, position, seed, data, skipped    struct weft_progress, as decimal text
 *   loss_scale { scale, good, hysteresis }         of runs that scale the loss, likewise
 *   model                                          what shapes do not say of it
 *   job                                            an INI text for people
 *   files    [ { name, bytes } ]
 *   tensors  [ { name, rows, columns, chunks [ { kind, type, file, offset, row, column, rows,
 *              columns, crc32c } ] } ]
 *
 * A chunk is a rectangle of a tensor, row-major.  What weft_manifest_parse() accepts covers every
 * element of every tensor exactly once in each kind that a checkpoint must have (master, exp_avg,
 * exp_avg_sq), and not at all or once in the others. */
#pragma once
#include "train/checkpoint.h"
#include "train/safetensors.h"

#define WEFT_MANIFEST_SCHEMA "weft.checkpoint/1"
#define WEFT_MANIFEST_NAME "manifest.json"

/* Longer ones are neither written nor read: 200 000 chunks, a gigabyte while read. */
#define WEFT_MANIFEST_MOST_BYTES (64u << 20)

struct weft_chunk {
  uint32_t tensor;            /* of the manifest */
  enum weft_state_kind kind;  /* not a gradient */
  enum weft_tensor_type type; /* F32, or BF16 or F16 for a weight */
  uint64_t file;              /* of the manifest */
  uint64_t offset;            /* bytes, in the data of the file */
  uint64_t row, column, rows, columns;
  uint32_t crc; /* CRC-32C of its bytes */
};

struct weft_manifest_tensor {
  char *name;
  uint64_t rows, columns;
};

struct weft_manifest_file {
  char *name;
  uint64_t bytes; /* of the whole file */
};

typedef struct weft_manifest {
  struct weft_progress progress;
  char *model, *job;
  GArray *files;   /* struct weft_manifest_file */
  GArray *tensors; /* struct weft_manifest_tensor */
  GArray *chunks;  /* struct weft_chunk, by tensor */
} weft_manifest;

weft_manifest *weft_manifest_new (void);
void weft_manifest_free (weft_manifest *manifest);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_manifest, weft_manifest_free)

static inline struct weft_chunk *
weft_manifest_chunk (const weft_manifest *m, uint32_t i)
{
  return &g_array_index (m->chunks, struct weft_chunk, i);
}

static inline const struct weft_manifest_tensor *
weft_manifest_tensor (const weft_manifest *m, uint32_t i)
{
  return &g_array_index (m->tensors, struct weft_manifest_tensor, i);
}

static inline struct weft_manifest_file *
weft_manifest_file (const weft_manifest *m, uint32_t i)
{
  return &g_array_index (m->files, struct weft_manifest_file, i);
}

static inline uint64_t
weft_chunk_bytes (const struct weft_chunk *c)
{
  return c->rows * c->columns * weft_tensor_type_bytes[c->type];
}

/* Its name in the file: "layers.3.qkv.weight/exp_avg@0,0".  Caller frees. */
char *weft_chunk_name (const weft_manifest *m, const struct weft_chunk *c);

/* What must be the same to go on with a model although its shapes do not show it (heads and groups,
 * activation, norm, positions): "num_attention_heads = 8, ...".  Caller frees. */
char *weft_manifest_model (const union weft_model *model);

/* JSON; weft_manifest_parse() inverts it.  Caller frees. */
char *weft_manifest_print (const weft_manifest *m);

/* Errors say where in the text something was found and what was wanted. */
weft_manifest *weft_manifest_parse (const char *json, gsize length, GError **error);
