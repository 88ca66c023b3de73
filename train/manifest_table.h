/* manifest_table.h - tables of the numeric members of a manifest, shared by parser and printer. */
#pragma once
#include "train/manifest.h"

/* A uint64_t member of a struct: its JSON name and offset. */
struct weft_manifest_number {
  const char *name;
  size_t at;
};

#define WEFT_N_PROGRESS 5
#define WEFT_N_SCALE_NUMBER 2
#define WEFT_N_CHUNK_NUMBER 6
extern const struct weft_manifest_number weft_progress_numbers[WEFT_N_PROGRESS];
extern const struct weft_manifest_number weft_scale_numbers[WEFT_N_SCALE_NUMBER];
extern const struct weft_manifest_number weft_manifest_chunk_numbers[WEFT_N_CHUNK_NUMBER];

static inline uint64_t *
weft_manifest_number (const void *row, const struct weft_manifest_number *number)
{
  return (uint64_t *) (void *) ((char *) (uintptr_t) row + number->at);
}
