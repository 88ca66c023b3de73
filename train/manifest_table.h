/* manifest_table.h - the members of a manifest that parser and printer share: tables of numbers,
 * and the last member, which has the checksum. */
#pragma once
#include "train/manifest.h"

/* A uint64_t member of a struct: its JSON name and offset. */
struct weft_manifest_number {
  const char *name;
  size_t at;
};

#define WEFT_N_PROGRESS 5
#define WEFT_N_DATA_FILE 4
#define WEFT_N_SCALE_NUMBER 2
#define WEFT_N_CHUNK_NUMBER 6
extern const struct weft_manifest_number weft_progress_numbers[WEFT_N_PROGRESS];
extern const struct weft_manifest_number weft_data_file_numbers[WEFT_N_DATA_FILE];
extern const struct weft_manifest_number weft_scale_numbers[WEFT_N_SCALE_NUMBER];
extern const struct weft_manifest_number weft_manifest_chunk_numbers[WEFT_N_CHUNK_NUMBER];

static inline uint64_t *
weft_manifest_number (const void *row, const struct weft_manifest_number *number)
{
  return (uint64_t *) (void *) ((char *) (uintptr_t) row + number->at);
}

/* The end of a manifest: the member crc32c, computed from the n bytes of `text` before it, and the
 * closing brace. The end has the same length for all texts. The caller frees it. */
char *weft_manifest_seal (const char *text, gsize n);
