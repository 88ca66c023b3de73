/* site.h - prices, power, failures and storage of the place where a job would run: sites/NAME.ini,
 * or a file of the user.
 *
 * The keys are the rows of site.def. Section [all] holds for all clusters. A section with the name
 * of a bundled topology, or with the file name of another topology (`[mine.ini]`), holds for this
 * topology only and overrides [all]. */
#pragma once
#include "core/base/conf.h"

enum weft_site_field {
#define SITE_TEXT(name, ...) WEFT_SITE_##name,
#define SITE_REAL(name, ...) WEFT_SITE_##name,
#define SITE_BOOL(name, ...) WEFT_SITE_##name,
#include "planner/site.def"
  WEFT_N_SITE_FIELD
};

/* The values of site.def. Numbers that are not known are NaN. */
union weft_site_fields {
  struct {
#define SITE_TEXT(name, ...) int64_t name;
#define SITE_REAL(name, ...) double name;
#define SITE_BOOL(name, ...) int64_t name;
#include "planner/site.def"
  };
  union weft_value at[WEFT_N_SITE_FIELD];
};

extern const struct weft_table weft_site_table;

/* The folder of the bundled site files. */
#define WEFT_SITE_FOLDER "sites"

typedef struct weft_site {
  weft_conf *conf;
} weft_site;

/* Reads a site file, given by its bundled name or its path, and checks all sections, keys and
 * values. The caller frees the result. NULL with an error on failure. */
weft_site *weft_site_load (const char *name_or_path, GError **error);
weft_site *weft_site_parse (const char *text, const char *name, GError **error);
void weft_site_free (weft_site *site);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_site, weft_site_free)

/* The fields that a site file gives for clusters of one topology, which is named by its bundled
 * name or its path. */
void weft_site_of (const weft_site *site, const char *topology, union weft_site_fields *fields);

/* The topologies that have a section in the site file, in the order of the file: bundled names, or
 * paths. The caller frees the array with g_strfreev(). */
char **weft_site_topologies (const weft_site *site);
