/* sections.h - the sections of a job, and the keys of a section that set no single field. */
#pragma once
#include "core/job/job.h"

/* A section of a job: its table of fields, and the position of its values in struct weft_job. */
struct weft_section {
  const char *name;
  const struct weft_table *table;
  size_t values;
};

enum { WEFT_N_SECTION = 5 };
extern const struct weft_section weft_sections[WEFT_N_SECTION];

/* A key that does not set one field. It loads a section from a file, sets the size of the cluster,
 * or gives a number from which another number is computed. A flag with the name `flag` does the
 * same. */
struct weft_part_key {
  const char *section, *key, *flag;
};

enum { WEFT_N_PART_KEY = 6 };
extern const struct weft_part_key weft_part_keys[WEFT_N_PART_KEY];

/* Return the section with this name, or the part key of a section; NULL if there is none. */
const struct weft_section *weft_section_find (const char *name);
const struct weft_part_key *weft_part_key_find (const char *section, const char *key);

/* The values of a section in a job. */
union weft_value *weft_section_values (struct weft_job *job, const struct weft_section *section);
