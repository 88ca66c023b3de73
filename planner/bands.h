/* bands.h - how far real steps are from a prediction: the band of measured / predicted - 1 in
 * published runs that resemble a job.
 *
 * The runs are the rows of the recorded errors (errors.h) that count in totals. Which of them
 * resemble the job is decided by a ladder: its rungs, from narrow to wide, say which traits must be
 * equal, and the first rung with WEFT_BAND_ROWS rows is taken.
 *
 * The band goes from the 10th to the 90th percentile of measured / predicted of these rows: a tenth
 * of them lies at or beyond each end. The rows of one source count as at most WEFT_BAND_SOURCE_ROWS
 * rows together. Rows of one source have errors in common, so a run of another source falls outside
 * more often than in two of ten cases. Therefore both ends are moved outwards by a margin, the same
 * factor for all groups of one nearness: the smallest margin with which WEFT_BAND_SHARE of all rows
 * lie in the band that is made without the rows of their own source (each source counts once). */
#pragma once
#include "planner/errors.h"

#define WEFT_BAND_ROWS 10
#define WEFT_BAND_SOURCE_ROWS 20.0
#define WEFT_BAND_SHARE 0.8

/* The traits that two jobs can have in common, as bits. */
enum {
  WEFT_SAME_GPU = 1,
  WEFT_SAME_GENERATION = 2, /* GPUs of equal compute capability */
  WEFT_SAME_STACK = 4,
  WEFT_SAME_FAMILY = 8,
  WEFT_SAME_LAYOUT = 16,
  WEFT_SAME_EXPERTS = 32, /* both models have experts, or neither has */
  WEFT_SAME_SIZE = 64,
  WEFT_SAME_PRECISION = 128
};

/* X (ID, word, doc): traits that the published runs of a band have in common with the job. */
#define WEFT_NEARNESS_LIST(X)                                                                      \
  X (WEFT_NEAR, "near", "this generation of GPUs with this software was measured")                 \
  X (WEFT_SOFTWARE_ONLY, "software", "this software was measured, on other GPUs")                  \
  X (WEFT_HARDWARE_ONLY, "hardware", "GPUs of this generation were measured, with other software") \
  X (WEFT_NOTHING_NEAR, "nothing", "neither these GPUs nor this software was ever measured")
enum weft_nearness { WEFT_NEARNESS_LIST (WEFT_WORD_ID) WEFT_N_NEARNESS };
extern const char *const weft_nearness_words[], *const weft_nearness_docs[];

/* The rungs of the ladder, from narrow to wide: X (traits that must be equal, nearness). */
#define WEFT_BAND_LADDER(X)                                                                        \
  X (WEFT_SAME_GPU | WEFT_SAME_STACK | WEFT_SAME_EXPERTS | WEFT_SAME_LAYOUT | WEFT_SAME_SIZE |     \
         WEFT_SAME_PRECISION,                                                                      \
     WEFT_NEAR)                                                                                    \
  X (WEFT_SAME_GPU | WEFT_SAME_FAMILY | WEFT_SAME_EXPERTS | WEFT_SAME_LAYOUT | WEFT_SAME_SIZE,     \
     WEFT_NEAR)                                                                                    \
  X (WEFT_SAME_GPU | WEFT_SAME_FAMILY | WEFT_SAME_EXPERTS | WEFT_SAME_LAYOUT, WEFT_NEAR)           \
  X (WEFT_SAME_GENERATION | WEFT_SAME_FAMILY | WEFT_SAME_EXPERTS, WEFT_NEAR)                       \
  X (WEFT_SAME_GENERATION | WEFT_SAME_FAMILY, WEFT_NEAR)                                           \
  X (WEFT_SAME_FAMILY | WEFT_SAME_EXPERTS, WEFT_SOFTWARE_ONLY)                                     \
  X (WEFT_SAME_FAMILY, WEFT_SOFTWARE_ONLY)                                                         \
  X (WEFT_SAME_GENERATION | WEFT_SAME_EXPERTS, WEFT_HARDWARE_ONLY)                                 \
  X (WEFT_SAME_GENERATION, WEFT_HARDWARE_ONLY)                                                     \
  X (0, WEFT_NOTHING_NEAR)

/* The band of a job. The numbers are NaN if `rows` is 0, that is, no similar run was ever
 * measured. */
struct weft_band {
  double low, high;    /* ends of the band of measured / predicted - 1, with the margin */
  double margin;       /* factor by which both ends were moved outwards */
  double median;       /* median of the absolute values of predicted / measured - 1 */
  uint32_t rows, sources;
  /* numbers of runs with software of the same family; with GPUs of the same generation; with the
   * same software and the same GPUs */
  uint32_t software_rows, hardware_rows, near_rows;
  /* index of the rung in the ladder, and the traits that the rung requires to be equal */
  unsigned rung, same;
  enum weft_nearness nearness;
};

/* The recorded errors of the published runs that count in totals, in a form from which many bands
 * can be computed. */
typedef struct weft_bands weft_bands;

/* Prepares the bands. `errors` must outlive the result. The caller frees the result. */
weft_bands *weft_bands_new (const weft_errors *errors);
void weft_bands_free (weft_bands *bands);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_bands, weft_bands_free)

/* Computes the band of a job. */
struct weft_band weft_bands_of (weft_bands *bands, const struct weft_traits *traits,
                                enum weft_quantity quantity);

/* The traits that the published runs of a band have in common: "H100 80GB HBM3, stack nemo-2, dense
 * models". The caller frees the text. */
char *weft_band_group (const struct weft_band *band, const struct weft_traits *traits);

/* A warning that no published run, or hardly any, has the job's software or GPUs. NULL if the runs
 * of the band are near the job (WEFT_NEAR). The caller frees the text. */
char *weft_band_warning (const struct weft_band *band, const struct weft_traits *traits);

/* A test of the bands of one nearness. Each published run gets a band that is computed, with its
 * margin, without the runs of the same source. `rows` and `sources`: numbers of runs whose band has
 * this nearness, and of their sources. */
struct weft_coverage {
  uint32_t rows, sources;
  /* fraction of these runs that are inside their bands: mean over sources; NaN without runs */
  double share;
  double width; /* median, over the runs, of the upper end of the band divided by the lower end */
};
struct weft_coverage weft_bands_coverage (weft_bands *bands, enum weft_quantity quantity,
                                          enum weft_nearness nearness);
