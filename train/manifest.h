/* manifest.h - manifest.json, the index of a checkpoint. Loading uses the manifest to check that
 * the checkpoint is complete.
 *
 *   schema, step, position, seed, data, skipped    struct weft_progress, as decimal text
 *   data_file { bytes, modified, head, tail }      decimal text; only if the token file is known
 *   loss_scale { scale, good, hysteresis }         decimal text; only if the run scales the loss
 *   model                                          model settings that shapes do not determine
 *   job                                            the job as INI text, for people
 *   files    [ { name, bytes } ]
 *   tensors  [ { name, rows, columns, chunks [ { kind, type, file, offset, row, column, rows,
 *              columns, crc32c } ] } ]
 *   crc32c   checksum of all bytes of the manifest before this member, which is the last
 *
 * Schema 1 had neither data_file nor the checksum of the manifest. Such manifests are still read.
 *
 * A chunk is a rectangle of a tensor, row-major. weft_manifest_parse() accepts a manifest only if
 * its chunks cover each element of each tensor exactly once for the kind master, and exactly once
 * or not at all for the other kinds. A tensor has the kinds that its optimizer keeps (exp_avg and
 * exp_avg_sq; momentum_buffer; state1 and state2); loading compares them with those of the job. */
#pragma once
#include "train/checkpoint.h"
#include "train/safetensors.h"

#define WEFT_MANIFEST_SCHEMA "weft.checkpoint/2"
/* an old schema, which is read but not written */
#define WEFT_MANIFEST_SCHEMA_1 "weft.checkpoint/1"
#define WEFT_MANIFEST_NAME "manifest.json"

/* Maximum size of a manifest in bytes: about 200 000 chunks, which need a gigabyte of memory while
 * the manifest is parsed. */
#define WEFT_MANIFEST_MOST_BYTES (64u << 20)

struct weft_manifest_chunk {
  uint32_t tensor;            /* index of the chunk's tensor in weft_manifest.tensors */
  enum weft_state_kind kind;  /* any kind except WEFT_STATE_GRAD */
  /* type of the elements: F32; for weights also BF16 or F16; for state1 and state2 U8 */
  enum weft_tensor_type type;
  uint64_t file;              /* index of the shard file in weft_manifest.files */
  uint64_t offset;            /* position in the data section of the shard file, in bytes */
  uint64_t row, column, rows, columns;
  uint32_t crc; /* CRC-32C of the bytes of the chunk */
};

struct weft_manifest_tensor {
  char *name;
  uint64_t rows, columns;
};

struct weft_manifest_file {
  char *name;
  uint64_t bytes; /* size of the shard file in bytes */
};

typedef struct weft_manifest {
  struct weft_progress progress;
  gboolean unsealed; /* schema 1: the manifest has no checksum of its own */
  char *model, *job;
  GArray *files;   /* array of struct weft_manifest_file */
  GArray *tensors; /* array of struct weft_manifest_tensor */
  GArray *chunks;  /* struct weft_manifest_chunk, in the order of tensors */
} weft_manifest;

weft_manifest *weft_manifest_new (void);
void weft_manifest_free (weft_manifest *manifest);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_manifest, weft_manifest_free)

static inline struct weft_manifest_chunk *
weft_manifest_chunk (const weft_manifest *m, uint32_t i)
{
  return &g_array_index (m->chunks, struct weft_manifest_chunk, i);
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
weft_manifest_chunk_bytes (const struct weft_manifest_chunk *c)
{
  return c->rows * c->columns * weft_tensor_type_bytes[c->type];
}

/* Name of a chunk in the shard file: "layers.3.qkv.weight/exp_avg@0,0". The caller frees the
 * name. */
char *weft_manifest_chunk_name (const weft_manifest *m, const struct weft_manifest_chunk *c);

/* Whether the elements of a kind are bytes: codes of 8-bit moments. */
static inline gboolean
weft_manifest_is_bytes (enum weft_state_kind kind)
{
  return kind == WEFT_STATE_STATE1 || kind == WEFT_STATE_STATE2;
}

/* The settings that must match on resume and that tensor shapes do not determine (heads and query
 * groups, activation, norm, positions; with LoRA lora_alpha), as text: "num_attention_heads = 8,
 * ...". The caller frees the text. */
char *weft_manifest_model (const struct weft_job *job);

/* Whether a checkpoint with the text `found` fits a job with the text `wanted`. *older: the
 * checkpoint is of an earlier version, which did not store lora_alpha. */
gboolean weft_manifest_fits (const char *found, const char *wanted, gboolean *older);

/* The manifest as JSON text, which weft_manifest_parse() reads back. The caller frees the text. */
char *weft_manifest_print (const weft_manifest *m);

/* Parses a manifest. Errors contain the place in the text, the value found and the value wanted. */
weft_manifest *weft_manifest_parse (const char *json, gsize length, GError **error);
