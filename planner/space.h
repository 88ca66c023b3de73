/* space.h - the search space of the planner: every combination of the values of the axes
 * (axes.def). */
#pragma once
#include "core/job/job.h"

enum weft_axis {
#define AXIS(table, field, values, wide) WEFT_AXIS_##field,
#include "planner/axes.def"
#undef AXIS
  WEFT_N_AXIS
};

/* A choice: one value for each axis; WEFT_CHOICE_NONE stands for WEFT_NONE. Values have 32 bits,
 * which are enough for all axes, because a space may have a million choices. */
#define WEFT_CHOICE_NONE INT32_MIN
struct weft_choice {
  int32_t value[WEFT_N_AXIS];
};

/* Values to which the user limits axes, such as tensor_model_parallel_size to 4 and 8. */
#define WEFT_SPACE_VALUES 64
struct weft_space_range {
  uint32_t n; /* number of values; 0: the axis is not limited */
  int64_t value[WEFT_SPACE_VALUES];
};
struct weft_space_ranges {
  struct weft_space_range of[WEFT_N_AXIS];
  /* TRUE: open axes also take the values that only the whole space has: schedules that split the
   * backward pass, selective recompute, offload, groups of sharding, bucket sizes, overlap of
   * matrix products with tensor parallel collectives, stages inside replicas */
  gboolean whole;
};

/* Limits the axis with the name `key` to the values in `text`, which are separated by commas. FALSE
 * with an error if there is no such axis, or a value is not one of its setting. */
gboolean weft_space_limit (struct weft_space_ranges *ranges, const char *key, const char *text,
                           GError **error);

/* Whether a list of values may be given for a key: it is an axis whose values contain no commas. */
gboolean weft_space_lists (const char *key);

/* Lists all choices around a job, as an array of struct weft_choice that the caller frees. Settings
 * that are marked in the job's knob_set and train_set keep their values. Axes that are limited take
 * exactly these values; `ranges` may be NULL. Rules are not checked. */
GArray *
weft_space_enumerate_within (const struct weft_job *job, const struct weft_space_ranges *ranges);

/* Like weft_space_enumerate_within(), without limits. */
GArray *weft_space_enumerate (const struct weft_job *job);

/* A search divides its space into families: choices with equal values of the first axes. */
enum weft_space_level {
  /* equal mesh, layers, microbatches and schedule. Of its members, that without recompute and
   * activation offload has the shortest passes */
  WEFT_SPACE_SCHEDULES,
  /* also equal recompute and activation offload. The members differ only in how replicas shard and
   * exchange state: all have the same kernels in a layer, and keep the same activations */
  WEFT_SPACE_KERNELS,
  WEFT_SPACE_STRATEGIES, /* all axes are equal: one choice */
};

/* Replaces the contents of `list`, an array of struct weft_choice, by the families of one level
 * (the choices, for WEFT_SPACE_STRATEGIES) within a family of the level `from`. Only the axes of
 * their level are set. `family` NULL: within the whole space. The order is that of
 * weft_space_enumerate_within(). */
void weft_space_families (const struct weft_job *job, const struct weft_space_ranges *ranges,
                          const struct weft_choice *family, enum weft_space_level from,
                          enum weft_space_level level, GArray *list);

/* The number of choices within a family of the level `from`. */
uint32_t weft_space_count (const struct weft_job *job, const struct weft_space_ranges *ranges,
                           const struct weft_choice *family, enum weft_space_level from);

/* The job of a family from which the lower bounds of its time are computed. `choice` is one of the
 * choices of the family. */
struct weft_job weft_space_family_job (const struct weft_job *job, const struct weft_choice *choice,
                                       enum weft_space_level level);

/* Sets of modules that selective recompute runs again, in order of the memory that they save, and
 * the models on which they have an effect. */
enum weft_recompute_models {
  WEFT_MODELS_ANY,
  WEFT_MODELS_DENSE,   /* without experts */
  WEFT_MODELS_EXPERTS, /* with experts */
  WEFT_MODELS_SHARED,  /* with shared experts */
  WEFT_MODELS_LATENT,  /* with latent attention */
  WEFT_MODELS_UNFUSED, /* any, with an attention that keeps its probabilities */
};
struct weft_recompute_set {
  const char *modules;
  enum weft_recompute_models models;
  gboolean searched; /* the search tries the set */
};
#define WEFT_N_RECOMPUTE_SETS 11
extern const struct weft_recompute_set weft_recompute_sets[WEFT_N_RECOMPUTE_SETS];

/* The job with the settings of a choice. */
struct weft_job weft_space_job (const struct weft_job *job, const struct weft_choice *choice);

/* Lists the values of an axis that are worth trying for a job, whether or not the user set the
 * axis. Returns their number, at most WEFT_SPACE_VALUES. */
uint32_t weft_space_values (const struct weft_job *job, enum weft_axis axis,
                            int64_t values[WEFT_SPACE_VALUES]);

/* The row of the table of settings that describes an axis. */
const struct weft_field *weft_space_field (enum weft_axis axis);

/* The value of the job's setting that is an axis. */
union weft_value *weft_space_setting (struct weft_job *job, enum weft_axis axis);

/* Sets each axis from `first` to `last` to its first value that is worth trying, if its own value
 * is none of them: after a change of the mesh, the division of layers among stages follows. */
void weft_space_settle (struct weft_job *job, enum weft_axis first, enum weft_axis last);

/* Sets all axes to the defaults of their settings. Two jobs belong to one search space if they are
 * equal afterwards. */
void weft_space_forget (struct weft_job *job);

/* Marks all axes as set by the user, so that the job has one choice: its own values. */
void weft_space_close (struct weft_job *job);

/* Whether the search chooses the setting of a key, such as "recompute_method". FALSE for axes whose
 * only value is the job's own. */
gboolean weft_space_varies (const char *key);
