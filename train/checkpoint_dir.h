/* checkpoint_dir.h - the directory of checkpoints: names, what is complete, changes that last. */
#pragma once
#include "train/manifest.h"

/* Of unfinished directories, until they are renamed. */
#define WEFT_CHECKPOINT_HIDDEN ".step-"

/* DIR/step-00000050.  Caller frees. */
char *weft_checkpoint_path (const char *dir, uint64_t step);

/* Whether a path ends in such a name. */
gboolean weft_checkpoint_is_step (const char *path);

/* Steps of a directory, complete or not (uint64_t), newest first.  Caller frees. */
GArray *weft_checkpoint_steps (const char *dir);

/* The manifest of a checkpoint whose files have the sizes it says.  Errors begin with the path of
 * what is wrong. */
weft_manifest *weft_checkpoint_manifest (const char *path, GError **error);

/* weft_checkpoint_newest() of the others than `name` (which may be NULL).  Caller frees. */
char *weft_checkpoint_newest_but (const char *dir, const char *name);

/* A directory and the files in it.  What cannot be removed stays. */
void weft_remove_directory (const char *path);
