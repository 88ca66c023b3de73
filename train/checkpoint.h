/* checkpoint.h - training checkpoints: any strategy on any number of ranks can load one.
 *
 *   DIR/step-00000050/manifest.json       the index of the checkpoint, written last
 *   DIR/step-00000050/shard-0.safetensors the tensors that rank 0 owns, and so on
 *   DIR/latest                            the name of the newest complete checkpoint, for people
 *
 * A shard file holds chunks named TENSOR/KIND@ROW,COLUMN: rectangles of a global tensor (a slice of
 * a flat buffer that begins or ends inside a row needs up to three). The manifest (manifest.h)
 * lists each tensor, its chunks with file, offset, extent and checksum, and the state of training.
 * A checkpoint is written into a directory with a temporary name, synced with fsync, then renamed.
 * Loading refuses a directory without a manifest, or whose files differ from the manifest; the
 * error gives the reason and names the newest complete checkpoint beside it. "Newest" means the
 * highest step: to train on from an older step, save into another directory. */
#pragma once
#include "train/loss_scale.h"
#include "train/state.h"

/* State of a run that is not a tensor. */
struct weft_progress {
  uint64_t step;     /* optimizer steps done */
  uint64_t position; /* sequences visited (sampler.h) */
  uint64_t seed;
  uint64_t data;     /* fingerprint of the token file; 0: unknown */
  uint64_t skipped;  /* steps so far that did not update the weights */
  struct weft_loss_scale loss_scale; /* the scale for the next step */
};

/* Publishes DIR/step-N and replaces an existing one. After publishing, deletes all but the newest
 * `keep` complete checkpoints (0 keeps all; the one just published always stays) and the leftovers
 * of unfinished saves. Only one job at a time may save into a directory (flock()); a second one
 * gets an error.
 *
 * The processes of one job save together into a directory that all of them can see: each process
 * writes the shard files of its ranks, the process of rank 0 writes the manifest. */
gboolean weft_checkpoint_save (weft_state *state, const struct weft_job *job,
                               const struct weft_progress *progress, const char *dir,
                               uint32_t keep, GError **error);

/* `path` is a checkpoint or a directory of checkpoints. In a directory the newest complete
 * checkpoint is loaded; `passed_over` receives a text that names each newer one that is damaged or
 * unfinished, with the reason (NULL when none; the caller frees it). If `path` itself is a damaged
 * checkpoint, the error says what is wrong and names the newest complete checkpoint beside it. A
 * checkpoint of another model is refused: tensor names and shapes must match, and so must the model
 * settings that shapes do not show (weft_manifest_model()). An error leaves the state unchanged.
 *
 * Precision may differ. A bf16 or fp16 job that loads an fp32 checkpoint takes its fp32 master
 * weights from the checkpoint's weights and rounds them to get its own; an fp32 job takes the
 * master weights as its weights. The loss scale continues if both runs scale the loss
 * dynamically. */
gboolean weft_checkpoint_load (weft_state *state, const struct weft_job *job, const char *path,
                               struct weft_progress *progress, char **passed_over,
                               GError **error);

/* The newest complete checkpoint of a directory: its manifest is valid and its files have the right
 * sizes; checksums are not read. NULL when there is none. The caller frees the path. */
char *weft_checkpoint_newest (const char *dir);
