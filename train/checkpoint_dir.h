/* checkpoint_dir.h - a directory of checkpoints: naming, listing, completeness checks, deletion. */
#pragma once
#include "train/manifest.h"

/* Begin of the name of a directory while a save is in progress. A finished save is renamed. */
#define WEFT_CHECKPOINT_HIDDEN ".step-"

/* Name of a file whose content is the name of the newest checkpoint. */
#define WEFT_CHECKPOINT_LATEST "latest"

/* The path DIR/step-00000050. The caller frees the path. */
char *weft_checkpoint_path (const char *dir, uint64_t step);

/* Whether the last component of a path has the form step-00000050. */
gboolean weft_checkpoint_is_step (const char *path);

/* Steps of all checkpoints in a directory, complete or not: uint64_t, highest first. The caller
 * frees the array. */
GArray *weft_checkpoint_steps (const char *dir);

/* The step of the checkpoint that the file `latest` names. The checkpoint may be missing. FALSE if
 * there is no such file, or if it names no checkpoint. */
gboolean weft_checkpoint_latest (const char *dir, uint64_t *step);

/* Like weft_checkpoint_steps(), but in the order in which a resumed run tries them: from the step
 * of `latest` downwards, then the higher steps. After a run was resumed from an older checkpoint,
 * higher steps belong to the run that was given up. */
GArray *weft_checkpoint_candidates (const char *dir);

/* Whether a name is that of the directory of a save in progress: WEFT_CHECKPOINT_HIDDEN and more,
 * without separators. */
gboolean weft_checkpoint_is_hidden (const char *name);

/* Reads the manifest of a checkpoint and checks that its step is that of the directory's name, and
 * that the shard files have the sizes that it lists. Errors begin with the path of the wrong
 * file. */
weft_manifest *weft_checkpoint_manifest (const char *path, GError **error);

/* Like weft_checkpoint_newest(), but ignores the checkpoint `name` (NULL: ignores none). The caller
 * frees the path. */
char *weft_checkpoint_newest_except (const char *dir, const char *name);

/* Deletes a directory and the files in it. A file that cannot be deleted stays. */
void weft_remove_directory (const char *path);
