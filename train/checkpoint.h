/* checkpoint.h - training checkpoints: any strategy on any number of ranks can load one.
 *
 *   DIR/step-00000050/manifest.json       the index of the checkpoint, written last
 *   DIR/step-00000050/shard-0.safetensors the tensors that rank 0 owns, and so on
 *   DIR/latest                            the name of the newest checkpoint
 *   DIR/.lock                             exists while a run saves into DIR; names its process
 *
 * A shard file holds chunks named TENSOR/KIND@ROW,COLUMN. A chunk is a rectangle of a global
 * tensor; a slice of a flat buffer that begins or ends inside a row needs up to three chunks. The
 * manifest (manifest.h) lists each tensor, its chunks with file, offset, extent and checksum, and
 * the progress of training. A checkpoint is written into a directory with a temporary name, synced
 * with fsync, then renamed. Loading refuses a directory that has no manifest or has files that
 * differ from the manifest, and values that are not finite; the error gives the reason and names
 * the newest complete checkpoint in the same place.
 *
 * "Newest" means the checkpoint that DIR/latest names, then the highest step below it. So a run
 * that was resumed from an older step may save into the same directory: the higher steps stay, and
 * only a message mentions them. `latest` is written just before its checkpoint is renamed; if
 * `latest` names a checkpoint that does not exist, the save did not finish. */
#pragma once
#include "train/checkpoint_lock.h"
#include "train/data_file.h"
#include "train/loss_scale.h"
#include "train/state.h"

/* The state of a training run besides its tensors. */
struct weft_progress {
  uint64_t step;     /* number of optimizer steps that are done */
  uint64_t position; /* number of training sequences that were visited (sampler.h) */
  uint64_t seed;
  uint64_t data;     /* fingerprint of the tokens in the token file; 0: unknown */
  uint64_t skipped;  /* number of steps that did not update the weights */
  /* mark (size, time, checksums) of the token file when the run began */
  struct weft_data_mark data_file;
  struct weft_loss_scale loss_scale; /* loss scale for the next step */
};

/* Writes DIR/step-N, replacing an older save of the same step. Afterwards deletes all but the
 * newest `keep` complete checkpoints up to this step (0: deletes none) and the leftovers of
 * unfinished saves. Only one job at a time may save into a directory (checkpoint_lock.h); a second
 * job gets an error. Values that are not finite are an error, too, and nothing is published.
 *
 * The processes of one job save together into a directory that all of them can see: each process
 * writes the shard files of its ranks, the process of rank 0 writes the manifest. */
gboolean weft_checkpoint_save (weft_state *state, const struct weft_job *job,
                               const struct weft_progress *progress, const char *dir,
                               uint32_t keep, GError **error);

/* Like weft_checkpoint_save(), but saves into the directory of `lock`, for a run that holds the
 * lock from its begin to its end. */
gboolean weft_checkpoint_save_held (weft_state *state, const struct weft_job *job,
                                    const struct weft_progress *progress,
                                    const weft_checkpoint_lock *lock, uint32_t keep,
                                    GError **error);

/* Loads a checkpoint. `path` is a checkpoint or a directory of checkpoints. From a directory, the
 * newest complete checkpoint is loaded; *notes receives a text that names each newer checkpoint
 * that is damaged or unfinished, with the reason, and checkpoints of higher steps than `latest`. It
 * also says if the loaded checkpoint is of schema 1, whose numbers have no checksum. (NULL if there
 * is nothing to say; the caller frees the text.) If `path` itself is a damaged checkpoint, the
 * error names the newest complete checkpoint in the same directory. A checkpoint of another model
 * is refused: tensor names and shapes must match, as well as the model settings that shapes do not
 * determine (weft_manifest_model()). An error leaves the state unchanged, except when the state was
 * asked to stop (weft_state_watch()).
 *
 * The precision of checkpoint and job may differ. A bf16 or fp16 job that loads an fp32 checkpoint
 * copies the checkpoint's weights to its fp32 master weights and rounds them to get its weights; an
 * fp32 job loads master weights as its weights. */
gboolean weft_checkpoint_load (weft_state *state, const struct weft_job *job, const char *path,
                               struct weft_progress *progress, char **notes, GError **error);

/* Whether a checkpoint can have this value: weights must be finite, moments may overflow but must
 * not be NaN. */
gboolean weft_checkpoint_accepts (enum weft_state_kind kind, float value);

/* Whether a path names a part of a checkpoint or of a directory of checkpoints: a file in a
 * checkpoint, or the file `latest`. */
gboolean weft_checkpoint_has (const char *path);

/* Path of the newest complete checkpoint of a directory, or NULL if there is none. Complete means
 * that the manifest is valid and all files have the right sizes; checksums are not checked. The
 * caller frees the path. */
char *weft_checkpoint_newest (const char *dir);
